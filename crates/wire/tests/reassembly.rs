//! Reassembly against an oracle that keeps one flag per byte, and its bounds.

use std::collections::HashMap;
use std::time::Duration;

use insane_wire::frame::record::Part;
use insane_wire::reassembly::{Key, Limits, Reassembler, Refused};
use proptest::prelude::*;

fn key(source: u64, message: u64) -> Key {
    Key { domain: 1, source, message }
}

proptest! {
    #[test]
    fn a_message_is_whole_exactly_when_every_byte_has_come(
        offers in proptest::collection::vec((0u64..3, 0u32..64, 1u32..24), 1..200)
    ) {
        let mut unfinished = Reassembler::new(Limits::default());
        let mut oracle: HashMap<u64, Vec<bool>> = HashMap::new();
        for (message, offset, len) in offers {
            let len = len.min(64 - offset);
            let bytes = oracle.entry(message).or_insert_with(|| vec![false; 64]);
            let range = offset as usize..(offset + len) as usize;
            let missing = bytes[range.clone()].iter().filter(|there| !**there).count() as u32;
            let free = unfinished.where_to(key(1, message), offset, len);
            if bytes.iter().any(|there| *there) {
                prop_assert_eq!(free.is_some(), missing == len);
            }
            let placed = unfinished
                .offer(Duration::ZERO, key(1, message), Part { total: 64, offset }, len, false, |_| Some(message))
                .unwrap();
            bytes[range].fill(true);
            prop_assert_eq!((placed.slot, placed.at, placed.fresh), (message, offset, missing));
            let whole = bytes.iter().all(|there| *there);
            prop_assert_eq!(placed.complete, whole);
            if whole {
                oracle.remove(&message);
            }
        }
        prop_assert_eq!(unfinished.len(), oracle.len());
    }
}

fn offer(r: &mut Reassembler, now: u64, key: Key, total: u32, keep: bool) -> Result<(), Refused> {
    let part = Part { total, offset: 0 };
    r.offer(Duration::from_millis(now), key, part, 1, keep, |_| Some(key.message)).map(|_| ())
}

#[test]
fn a_source_gives_up_its_own_older_messages_and_nobody_elses() {
    let limits = Limits { source_bytes: 250, source_messages: 10, domain_bytes: 400, ..Limits::default() };
    let mut r = Reassembler::new(limits);
    for message in 1..=2 {
        offer(&mut r, 0, key(1, message), 100, false).unwrap();
    }
    offer(&mut r, 0, key(1, 3), 100, false).unwrap();
    let gone = r.given_up().unwrap();
    assert_eq!((gone.key, gone.slot, gone.timed_out), (key(1, 1), 1, false));
    offer(&mut r, 0, key(2, 1), 200, false).unwrap();
    // The domain is full and a third source has nothing that it could give up.
    assert_eq!(offer(&mut r, 0, key(3, 1), 100, false), Err(Refused::DomainFull));
    assert_eq!((r.len(), r.given_up()), (3, None));
}

#[test]
fn what_was_acknowledged_is_kept_and_the_newer_refused() {
    let mut r = Reassembler::new(Limits { source_bytes: 250, ..Limits::default() });
    offer(&mut r, 0, key(1, 1), 200, true).unwrap();
    assert_eq!(offer(&mut r, 0, key(1, 2), 100, true), Err(Refused::SourceFull));
    assert_eq!(r.forget(key(1, 1)), Some(1));
    offer(&mut r, 0, key(1, 2), 100, true).unwrap();
    // An older message never pushes out a newer one.
    offer(&mut r, 0, key(4, 9), 200, false).unwrap();
    assert_eq!(offer(&mut r, 0, key(4, 8), 100, false), Err(Refused::SourceFull));
}

#[test]
fn what_gets_nothing_more_is_given_up_in_time() {
    let mut r = Reassembler::new(Limits { patience: Duration::from_secs(1), ..Limits::default() });
    assert_eq!(r.timeout(), None);
    offer(&mut r, 0, key(1, 1), 100, false).unwrap();
    offer(&mut r, 500, key(1, 2), 100, false).unwrap();
    assert_eq!(r.timeout(), Some(Duration::from_secs(1)));
    r.expire(Duration::from_millis(999));
    assert_eq!(r.given_up(), None);
    r.expire(Duration::from_millis(1000));
    let gone = r.given_up().unwrap();
    assert_eq!((gone.key, gone.timed_out, r.given_up()), (key(1, 1), true, None));
    assert_eq!(r.timeout(), Some(Duration::from_millis(1500)));
    // A duplicate is no progress.
    offer(&mut r, 1400, key(1, 2), 100, false).unwrap();
    r.expire(Duration::from_millis(1500));
    assert!(r.given_up().is_some() && r.is_empty());
}

#[test]
fn fragments_that_lie_or_contradict_are_refused() {
    let mut r = Reassembler::new(Limits { runs: 2, ..Limits::default() });
    let now = Duration::ZERO;
    let mut at = |total, offset, len| r.offer(now, key(1, 1), Part { total, offset }, len, false, |_| Some(1));
    assert_eq!(at(100, 90, 11).unwrap_err(), Refused::Malformed);
    assert_eq!(at(100, u32::MAX, 2).unwrap_err(), Refused::Malformed);
    assert_eq!(at(u32::MAX, 0, 2).unwrap_err(), Refused::Malformed);
    assert_eq!(at(100, 0, 0).unwrap_err(), Refused::Malformed);
    assert!(at(100, 0, 10).is_ok() && at(100, 20, 10).is_ok());
    assert_eq!(at(100, 40, 10).unwrap_err(), Refused::TooManyRuns);
    assert_eq!(at(101, 30, 10).unwrap_err(), Refused::Contradicts);
    assert!(at(100, 10, 10).is_ok());
    assert_eq!(r.where_to(key(1, 1), 30, 70), Some(1));
    assert_eq!(r.where_to(key(1, 1), 29, 71), None);
    assert_eq!(r.where_to(key(1, 1), 30, 71), None);
}
