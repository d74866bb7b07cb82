//! Whose what was lost is, of sinks that joined at different times.

use std::collections::BTreeMap;

use insane_wire::frame::parse;
use insane_wire::frame::record::Record;

use super::*;
use crate::counts::{Counts, Share};

/// A best-effort flow of 1000 bytes a message, one in a frame, and what ended of it by what its messages said.
struct Joins {
    pair: Pair,
    flow: u32,
    sent: u64,
    shares: BTreeMap<u8, Share>,
    closed: Option<Counts>,
}

impl Joins {
    fn new() -> Self {
        Self::over(Config::default())
    }

    fn over(config: Config) -> Self {
        let mut pair = Pair::new(config);
        let flow = pair.open(1, false);
        (0..20).for_each(|_| pair.step());
        Self { pair, flow, sent: 0, shares: BTreeMap::new(), closed: None }
    }

    /// Emits messages that say `joined`; of those `arrives` says which do not get lost.
    fn burst(&mut self, joined: u8, count: u64, arrives: impl Fn(u64) -> bool) {
        for n in 0..count {
            self.sent += 1;
            let next = Outgoing { token: self.sent, len: 1000, sequence: self.sent, joined, ..Outgoing::default() };
            assert_eq!(self.pair.ends[0].send(self.flow, next), Ok(()));
            for frame in self.pair.frames(0) {
                if arrives(n) {
                    self.pair.arrive(1, &frame);
                }
            }
        }
    }

    /// Lets time pass. What the first end says goes through `passes`.
    fn wait(&mut self, millis: u32, mut passes: impl FnMut(&mut Vec<u8>) -> bool) {
        for _ in 0..millis {
            for mut frame in self.pair.frames(0) {
                if passes(&mut frame) {
                    self.pair.arrive(1, &frame);
                }
            }
            for frame in self.pair.frames(1) {
                self.pair.arrive(0, &frame);
            }
            self.pair.now += MS;
            let (mut shares, _) = self.pair.ends[0].take_shares(self.flow);
            shares.extend(self.pair.told.drain(..).filter_map(|event| match event {
                Event::Shared { share, .. } => Some(share),
                Event::Closed { counts, .. } => {
                    self.closed = Some(counts);
                    None
                }
                _ => None,
            }));
            shares.iter().for_each(|share| self.note(share));
        }
    }

    fn note(&mut self, share: &Share) {
        let sum = self.shares.entry(share.joined).or_default();
        sum.lost += share.lost;
        sum.dropped += share.dropped;
        sum.expired += share.expired;
        sum.unconfirmed += share.unconfirmed;
    }

    fn lost(&self) -> Vec<(u8, u64)> {
        self.shares.iter().map(|(joined, share)| (*joined, share.lost)).collect()
    }
}

fn asks(frame: &[u8]) -> usize {
    let records = parse(frame).unwrap().1;
    records.filter(|record| matches!(record, Ok(Record::Ask(_)))).count()
}

#[test]
fn a_sink_that_joins_is_not_charged_with_what_was_lost_before() {
    // Some of the frames that ask are lost too.
    for unheard in 0..3 {
        let mut joins = Joins::new();
        // The receiver knows of none of the lost ones before it has messages from after the join.
        joins.burst(1, 10, |n| n < 6);
        joins.burst(2, 10, |n| n != 3);
        joins.burst(3, 5, |_| true);
        // Again the number of the first: 256 sinks joined between.
        joins.burst(1, 5, |n| n % 2 == 0);
        let mut asked = 0;
        joins.wait(1000, |frame| {
            asked += asks(frame).min(1);
            asks(frame) == 0 || asked > unheard
        });
        assert_eq!(joins.lost(), [(1, 4 + 2), (2, 1)], "{unheard}");
        assert_eq!(joins.pair.ends[0].take_shares(joins.flow), (Vec::new(), true));
        let counts = joins.pair.ends[0].counts(joins.flow).unwrap();
        assert!(counts.balance() && (counts.lost, counts.under_way) == (7, 0), "{counts:?}");
        // What is known is not asked for again.
        joins.burst(1, 5, |n| n != 0);
        joins.wait(500, |frame| {
            assert_eq!(asks(frame), 0);
            true
        });
        assert_eq!(joins.lost(), [(1, 7), (2, 1)]);
    }
}

#[test]
fn more_losses_than_are_remembered_are_told_apart_if_it_is_asked_in_time() {
    let mut joins = Joins::over(Config { dedicated: true, ..Config::default() });
    for n in 0..300 {
        joins.burst(if n < 150 { 1 } else { 2 }, 20, |n| n % 2 == 0);
        joins.wait(1, |_| true);
    }
    joins.wait(500, |_| true);
    assert_eq!(joins.lost(), [(1, 1500), (2, 1500)]);
}

#[test]
fn a_receiver_that_gives_no_answer_is_not_asked_for_ever() {
    let mut joins = Joins::new();
    joins.burst(1, 10, |n| n < 6);
    joins.burst(2, 10, |n| n != 3);
    // An earlier version passes over what it does not know.
    let old = |frame: &mut Vec<u8>| {
        let words: Vec<usize> =
            (32..frame.len()).step_by(8).filter(|at| frame[*at..*at + 4] == [13, 0, 8, 0]).collect();
        words.iter().for_each(|at| frame[*at] = 99);
        true
    };
    let flow = joins.flow;
    joins.pair.ends[0].close(flow);
    joins.wait(300, old);
    assert!(!joins.pair.ends[0].take_shares(joins.flow).1 && joins.lost().is_empty());
    joins.wait(2000, old);
    // Nobody is charged too little.
    assert_eq!(joins.lost(), [(2, 5)]);
    assert!(joins.closed.is_some_and(|counts| counts.lost == 5));
}

#[test]
fn a_flow_that_ends_says_whose_its_last_losses_are() {
    for lose_connection in [false, true] {
        let mut joins = Joins::new();
        joins.burst(1, 10, |n| n < 6);
        joins.burst(2, 10, |n| n != 3);
        let flow = joins.flow;
        let now = joins.pair.now;
        if lose_connection {
            joins.pair.ends[0].disconnect(now);
        }
        joins.pair.ends[0].close(flow);
        joins.wait(1000, |_| true);
        let by = |n| joins.shares.get(&n).map(|share| (share.lost, share.unconfirmed));
        let wanted = if lose_connection { [Some((0, 10)), Some((0, 10))] } else { [Some((4, 0)), Some((1, 0))] };
        assert_eq!([by(1), by(2)], wanted);
        assert!(joins.closed.is_some_and(|counts| counts.balance()));
    }
}
