//! Who owns which slot: random operations of an owner and of links against one oracle, and peers that lie.
//! Runs on the heap, so under Miri too.
#![cfg(not(loom))]

use insane_shm::link::{Broken, Consumer, Delivery, Descriptor, FLAG_INLINE, FLAG_TIMESTAMP, Fate, Producer, Returned};
use insane_shm::memory::{Backing, Heap};
use insane_shm::ring::Block;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const ENTRIES: u32 = 8;
const SLOTS: u32 = 12;

/// A link whose control memory the test can write to, as a hostile peer can write to its own.
struct Link {
    producer: Producer,
    consumer: Consumer,
    returns: Arc<Heap>,
    delivery: Arc<Heap>,
}

fn link() -> Link {
    let delivery = Arc::new(Heap::new(Block::<16>::bytes(ENTRIES).unwrap()));
    let returns = Arc::new(Heap::new(Block::<2>::bytes(ENTRIES).unwrap()));
    let mut producer = Producer::new(
        Block::create(delivery.clone(), ENTRIES).unwrap(),
        Block::create(returns.clone(), ENTRIES).unwrap(),
    );
    let mut consumer =
        Consumer::new(Block::open(returns.clone(), ENTRIES).unwrap(), Block::open(delivery.clone(), ENTRIES).unwrap());
    for segment in 0..2 {
        producer.add_segment(segment, SLOTS);
        consumer.add_segment(segment, SLOTS, 256);
    }
    Link { producer, consumer, returns, delivery }
}

/// Writes a word of control memory behind the link's back.
fn scribble(memory: &Heap, word: usize, value: u64) {
    let words = memory.base().cast::<AtomicU64>();
    assert!((word + 1) * 8 <= memory.len());
    // SAFETY: the word lies inside, and control memory is atomic words.
    let at = unsafe { words.add(word) };
    // SAFETY: as above.
    unsafe { at.as_ref() }.store(value, Ordering::Release);
}

/// Forges the return entry at `position`: low half and segment, kind, fate.
fn forge(l: &Link, position: u64, low: u32, segment: u16, kind: u8, fate: u8) {
    let entry = 48 + (position % u64::from(ENTRIES)) as usize * 2;
    let word = u64::from(low) | u64::from(segment) << 32 | u64::from(kind) << 48 | u64::from(fate) << 56;
    scribble(&l.returns, entry + 1, word);
    scribble(&l.returns, entry, (position + 1) & 0xffff_ffff);
}

#[derive(Debug, Clone)]
enum Op {
    Push(usize, u16),
    /// The second segment goes, if nothing of it is out, or comes back.
    Swap,
    Inline,
    /// With a deadline: not as most small messages are.
    Unusual,
    Poll,
    PollSmall,
    PollSlot,
    Release(usize),
    Reclaim,
    Settle,
    Forge {
        low: u32,
        segment: u16,
        kind: u8,
        fate: u8,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..SLOTS as usize, 0..2u16).prop_map(|(slot, segment)| Op::Push(slot, segment)),
        1 => Just(Op::Swap),
        3 => Just(Op::Inline),
        1 => Just(Op::Unusual),
        4 => Just(Op::Poll),
        4 => Just(Op::PollSmall),
        4 => Just(Op::PollSlot),
        6 => (0..32usize).prop_map(Op::Release),
        3 => Just(Op::Reclaim),
        1 => Just(Op::Settle),
        1 => (0..16u32, 0..3u16, 0..5u8, 0..4u8).prop_map(|(low, segment, kind, fate)| Op::Forge { low, segment, kind, fate }),
    ]
}

/// A segment and a slot of it.
type Place = (u16, u32);

/// What is true of a link, kept in the plainest way.
#[derive(Default)]
struct Oracle {
    /// Number, slot, and whether it has a deadline.
    sent: VecDeque<(u64, Option<Place>, bool)>,
    taken: Vec<Delivery>,
    held: BTreeMap<Place, u64>,
    /// Where each slot was named, in order.
    named: BTreeMap<Place, Vec<u64>>,
    inline_out: u64,
    forged: bool,
}

#[allow(clippy::too_many_lines)] // One match over all that can happen.
fn run(ops: &[Op]) {
    let mut l = link();
    let mut o = Oracle::default();
    let mut sequence = 0;
    let mut returned = 0u64;
    for op in ops {
        match op {
            Op::Push(slot, segment) if l.producer.credit() > 0 && l.producer.is_mapped(*segment) => {
                sequence += 1;
                let (slot, segment) = (*slot as u32, *segment);
                let d = Descriptor { sequence, slot, segment, length: 100, ..Descriptor::default() };
                o.named.entry((segment, slot)).or_default().push(l.producer.position());
                l.producer.push(&d, &[]);
                o.sent.push_back((sequence, Some((segment, slot)), false));
                *o.held.entry((segment, slot)).or_default() += 1;
            }
            Op::Swap if !l.producer.is_mapped(1) => {
                l.producer.add_segment(1, SLOTS);
                l.consumer.add_segment(1, SLOTS, 256);
            }
            Op::Swap => {
                let out = o.taken.iter().filter(|d| !d.is_inline() && d.descriptor.segment == 1).count() as u32;
                if o.held.iter().all(|((segment, _), n)| *segment == 0 || *n == 0) {
                    l.producer.remove_segment(1);
                    assert_eq!(l.consumer.remove_segment(1), Ok(()), "all of it came back");
                } else if out > 0 {
                    // Only who lies removes it now.
                    assert_eq!(l.consumer.remove_segment(1), Err(Broken::SegmentInUse { segment: 1, out }));
                }
            }
            Op::Inline if l.producer.credit() > 0 => {
                sequence += 1;
                l.producer.push(&Descriptor { sequence, ..Descriptor::default() }, &sequence.to_le_bytes());
                o.sent.push_back((sequence, None, false));
                o.inline_out += 1;
            }
            Op::Unusual if l.producer.credit() > 0 => {
                sequence += 1;
                let d = Descriptor { sequence, deadline_ns: 1, ..Descriptor::default() };
                l.producer.push(&d, &sequence.to_le_bytes());
                o.sent.push_back((sequence, None, true));
                o.inline_out += 1;
            }
            Op::PollSmall => {
                let usual = o.sent.front().is_some_and(|(_, slot, deadline)| slot.is_none() && !deadline);
                match l.consumer.poll_small(0) {
                    Some(small) => {
                        assert!(usual, "neither a slot nor a deadline");
                        let (sequence, ..) = o.sent.pop_front().expect("it was sent");
                        let mut inline = [0; 8];
                        small.copy(&mut inline);
                        assert_eq!((small.sequence(), small.length, inline[0]), (sequence, 8, sequence));
                        let descriptor =
                            Descriptor { sequence, flags: FLAG_INLINE, length: 8, ..Descriptor::default() };
                        o.taken.push(Delivery { descriptor, inline, position: 0 });
                    }
                    None => assert!(!usual, "a small message was passed over"),
                }
            }
            Op::PollSlot => {
                let usual = o.sent.front().is_some_and(|(_, slot, _)| slot.is_some());
                match l.consumer.poll_slot(0) {
                    Some(found) => {
                        assert!(usual, "inside its descriptor");
                        let (sequence, slot, _) = o.sent.pop_front().expect("it was sent");
                        assert_eq!((found.sequence, found.length, found.offset), (sequence, 100, 0));
                        assert_eq!(Some((found.segment, found.slot)), slot);
                        let (segment, slot) = (found.segment, found.slot);
                        let descriptor = Descriptor { sequence, slot, segment, length: 100, ..Descriptor::default() };
                        o.taken.push(Delivery { descriptor, inline: [0; 8], position: 0 });
                    }
                    None => assert!(!usual, "a message in a slot was passed over"),
                }
            }
            Op::Poll => match (l.consumer.poll().unwrap(), o.sent.pop_front()) {
                (Some(d), Some((sequence, slot, _))) => {
                    assert_eq!(d.descriptor.sequence, sequence);
                    assert_eq!((!d.is_inline()).then_some((d.descriptor.segment, d.descriptor.slot)), slot);
                    if slot.is_none() {
                        assert_eq!(d.inline_bytes(), sequence.to_le_bytes());
                    }
                    o.taken.push(d);
                }
                (None, None) => {}
                (got, expected) => panic!("got {got:?}, expected {expected:?}"),
            },
            Op::Release(at) if !o.taken.is_empty() => {
                let d = o.taken.remove(at % o.taken.len());
                let place = &d.descriptor;
                if d.is_inline() && at % 2 == 0 {
                    l.consumer.release_small();
                } else if at % 2 == 0 {
                    l.consumer.release_slot(place.segment, place.slot, place.sequence as u32);
                } else {
                    l.consumer.release(&d.descriptor, Fate::AsCounted);
                }
            }
            Op::Settle => l.consumer.settle(),
            Op::Reclaim => {
                let mut bad = None;
                let result = l.producer.reclaim(|r| match r {
                    Returned::Slot { slot, segment, .. } => {
                        let held = o.held.get_mut(&(segment, slot)).filter(|n| **n > 0);
                        held.map_or_else(|| bad = Some(r), |n| *n -= 1);
                        returned += 1;
                    }
                    Returned::Credit { count, .. } => {
                        if u64::from(count) > o.inline_out {
                            bad = Some(r);
                        }
                        o.inline_out = o.inline_out.saturating_sub(count.into());
                        returned += u64::from(count);
                    }
                });
                assert_eq!(bad, None, "a return was taken that the oracle does not know");
                match result {
                    Ok(_) => assert_eq!(l.producer.out(), sequence - returned),
                    // Only who lies breaks a link.
                    Err(broken) => {
                        assert!(o.forged, "an honest peer was called {broken:?}");
                        break;
                    }
                }
            }
            Op::Forge { low, segment, kind, fate } => {
                // The position after what the consumer has returned honestly.
                l.consumer.settle();
                let position = l.consumer_returns();
                forge(&l, position, *low, *segment, *kind, *fate);
                o.forged = true;
                let _ = l.producer.reclaim(|r| {
                    if let Returned::Slot { slot, segment, .. } = r {
                        let held = o.held.entry((segment, slot)).or_default();
                        assert!(*held > 0, "slot {slot} came back more often than it was given");
                        *held -= 1;
                    } else if let Returned::Credit { count, .. } = r {
                        assert!(u64::from(count) <= o.inline_out, "more credit than is out");
                        o.inline_out -= u64::from(count);
                    }
                });
                // After a forged entry the two sides no longer agree on positions: the link would be closed.
                break;
            }
            _ => {}
        }
    }
    for ((segment, slot), positions) in &o.named {
        let held = o.held.get(&(*segment, *slot)).is_some_and(|n| *n > 0);
        let out: Vec<_> = positions.iter().filter(|at| l.producer.is_out(*segment, *slot, **at)).collect();
        let newest: Vec<_> = positions.last().into_iter().filter(|_| held).collect();
        assert_eq!(out, newest, "a slot that is out is out by the descriptor that named it last");
    }
    let mut left: BTreeMap<Place, u64> = BTreeMap::new();
    l.producer.dissolve(|segment, slot| *left.entry((segment, slot)).or_default() += 1);
    o.held.retain(|_, n| *n > 0);
    assert_eq!(left, o.held, "what a link holds at its end is what it was given and has not returned");
}

impl Link {
    /// How many entries the consumer has put on its return ring.
    fn consumer_returns(&self) -> u64 {
        let mut highest = 0;
        for entry in 0..ENTRIES as usize {
            let at = self.returns.base().cast::<AtomicU64>();
            // SAFETY: the entry lies inside the block.
            let word = unsafe { at.add(48 + entry * 2) };
            // SAFETY: as above; control memory is atomic words.
            highest = highest.max(unsafe { word.as_ref() }.load(Ordering::Acquire) & 0xffff_ffff);
        }
        highest
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 8 } else { 2000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_link_holds_what_it_was_given(ops in prop::collection::vec(op(), 1..if cfg!(miri) { 40 } else { 200 })) {
        run(&ops);
    }

    #[test]
    fn no_bytes_of_a_producer_make_a_consumer_read_elsewhere(
        words in prop::collection::vec(any::<u64>(), 16),
        length in prop_oneof![any::<u32>(), 0..80u32],
        small in 0..3u8,
    ) {
        let mut l = link();
        let mut words = words;
        if small > 0 {
            let flags = if small == 1 { FLAG_INLINE } else { FLAG_TIMESTAMP };
            words[6] = u64::from(flags) << 48 | (words[6] & 7) | (words[6] & 1) << 32;
            words[3] &= 1;
            words[5] &= 0x0000_007f_0000_000f;
        }
        for (i, word) in words.iter().enumerate().skip(1) {
            scribble(&l.delivery, 48 + i, *word);
        }
        scribble(&l.delivery, 48, 1 | u64::from(length) << 32);
        let usual = words[6] == u64::from(FLAG_INLINE) << 48 | 7 && words[3] == 0 && length <= 64;
        if let Some(small) = l.consumer.poll_small(7) {
            assert!(usual && small.length <= 64);
            return Ok(());
        }
        assert!(!usual);
        if let Some(found) = l.consumer.poll_slot(7) {
            let end = u64::from(found.offset) + u64::from(found.length);
            assert!(found.segment < 2 && found.slot < SLOTS && end <= 256);
            assert!(words[6] as u32 == 7 && words[3] == 0 && (words[6] >> 48) & !u64::from(FLAG_TIMESTAMP) == 0);
            return Ok(());
        }
        match l.consumer.poll() {
            Ok(Some(d)) if d.is_inline() => assert!(d.inline_bytes().len() <= 64),
            Ok(Some(d)) => {
                let d = d.descriptor;
                assert!(d.segment < 2 && d.slot < SLOTS && u64::from(d.offset) + u64::from(d.length) <= 256);
            }
            Ok(None) => panic!("a published entry was passed over"),
            Err(Broken::BadDescriptor { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
}

fn given(slot: u32) -> Link {
    let mut l = link();
    l.producer.push(&Descriptor { sequence: 1, slot, length: 1, ..Descriptor::default() }, &[]);
    l
}

#[test]
fn a_slot_that_does_not_exist_is_refused() {
    let mut l = given(3);
    forge(&l, 0, SLOTS, 0, 1, 0);
    assert_eq!(l.producer.reclaim(|_| ()), Err(Broken::ForeignSlot { segment: 0, slot: SLOTS }));
    let mut l = given(3);
    forge(&l, 0, 3, 2, 1, 0);
    assert_eq!(l.producer.reclaim(|_| ()), Err(Broken::ForeignSlot { segment: 2, slot: 3 }));
}

#[test]
fn a_slot_comes_back_once() {
    let mut l = given(3);
    forge(&l, 0, 3, 0, 1, 0);
    forge(&l, 1, 3, 0, 1, 0);
    let mut taken = 0;
    assert_eq!(l.producer.reclaim(|_| taken += 1), Err(Broken::NotHeld { segment: 0, slot: 3 }));
    assert_eq!(taken, 1);
}

#[test]
fn credit_comes_back_once() {
    let mut l = link();
    l.producer.push(&Descriptor { sequence: 1, ..Descriptor::default() }, b"x");
    forge(&l, 0, 2, 0, 2, 0);
    assert_eq!(l.producer.reclaim(|_| ()), Err(Broken::TooMuchCredit { count: 2, out: 1 }));
}

#[test]
fn an_unknown_kind_is_refused() {
    let mut l = given(0);
    forge(&l, 0, 0, 0, 9, 0);
    assert_eq!(l.producer.reclaim(|_| ()), Err(Broken::UnknownKind { kind: 9 }));
}
