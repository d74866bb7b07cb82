//! Segments that come and go: an owner's slots and what its links were told, against a model, by random operations.
//! Makes real segments, so neither under loom nor under Miri.
#![cfg(not(any(loom, miri)))]

use insane_shm::link::{Broken, Consumer, Descriptor, Fate, Producer, Returned, pair_on_heap};
use insane_shm::segment::{Geometry, Segment};
use insane_shm::slab::{News, Slab, SlotId, Told};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const ENTRIES: u32 = 8;

fn segment(stride: u64, slots: u32) -> Arc<Segment> {
    Arc::new(Segment::create(Geometry::checked(stride, slots).unwrap(), false).unwrap())
}

/// A link and both ends' knowledge of the segments. What one end says reaches the other later.
struct Link {
    producer: Producer,
    consumer: Consumer,
    told: Told,
    to_consumer: VecDeque<Said>,
    to_producer: VecDeque<u16>,
    taken: Vec<Descriptor>,
}

enum Said {
    Add(u16, Geometry),
    Remove(u16),
}

impl Link {
    fn new() -> Self {
        let (producer, consumer) = pair_on_heap(ENTRIES);
        let (to_consumer, to_producer) = (VecDeque::new(), VecDeque::new());
        Self { producer, consumer, told: Told::default(), to_consumer, to_producer, taken: Vec::new() }
    }

    fn tell(&mut self, slab: &Slab) {
        let News { gone, new } = self.told.news(slab, &self.producer, true);
        self.to_consumer.extend(gone.into_iter().map(Said::Remove));
        self.to_consumer.extend(new.into_iter().map(|(n, s)| Said::Add(n, s.geometry())));
    }

    /// The consumer hears one thing.
    fn hear(&mut self) {
        match self.to_consumer.pop_front() {
            Some(Said::Add(n, g)) => {
                self.consumer.add_segment(n, g.slots, g.stride);
                self.to_producer.push_back(n);
            }
            Some(Said::Remove(n)) => self.consumer.remove_segment(n).expect("an honest producer removes what is idle"),
            None => {}
        }
    }

    /// The producer hears one answer.
    fn answer(&mut self, slab: &Slab) {
        if let Some(n) = self.to_producer.pop_front() {
            self.told.answered(n.into(), slab, &mut self.producer).expect("in order");
        }
    }

    fn reclaim(&mut self, slab: &mut Slab) {
        self.producer
            .reclaim(|returned| {
                if let Returned::Slot { segment, slot, .. } = returned {
                    assert!(slab.unhold(SlotId { segment, slot }));
                }
            })
            .expect("an honest consumer");
    }
}

#[derive(Debug, Clone)]
enum Op {
    Add(usize),
    GiveBack(usize),
    Tell(usize),
    Hear(usize),
    Answer(usize),
    Send(usize, u64),
    Poll(usize),
    Release(usize),
    Reclaim(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let link = 0..2usize;
    prop_oneof![
        2 => (0..3usize).prop_map(Op::Add),
        3 => (0..8usize).prop_map(Op::GiveBack),
        3 => link.clone().prop_map(Op::Tell),
        4 => link.clone().prop_map(Op::Hear),
        4 => link.clone().prop_map(Op::Answer),
        8 => (link.clone(), 1..5000u64).prop_map(|(l, n)| Op::Send(l, n)),
        6 => link.clone().prop_map(Op::Poll),
        6 => link.clone().prop_map(Op::Release),
        4 => link.prop_map(Op::Reclaim),
    ]
}

fn sound(slab: &Slab) {
    let audit = slab.audit();
    assert_eq!((audit.lost, audit.doubly_owned), (0, 0), "{audit:?}");
    assert_eq!(audit.held, slab.in_use());
    let used = slab.segments().map(|(segment, s)| {
        let held = (0..s.geometry().slots).filter(|slot| slab.holds_on(SlotId { segment, slot: *slot }) > 0);
        held.count() as u64 * s.geometry().stride
    });
    assert_eq!(slab.bytes_in_use(), used.sum::<u64>());
    assert_eq!(slab.bytes(), slab.segments().map(|(_, s)| s.bytes()).sum::<u64>());
}

/// A slot that is taken has what its segment says.
fn check_taken(slab: &Slab, taken: &insane_shm::slab::Taken, len: u64) {
    let segment = slab.segment(taken.id.segment).expect("a segment that is there");
    assert!(u64::from(taken.capacity) >= len && taken.id.slot < segment.geometry().slots);
}

fn run(ops: &[Op]) {
    let strides = [256, 1024, 4096];
    let (mut slab, mut links, mut sequence) = (Slab::default(), [Link::new(), Link::new()], 0);
    let mut live: BTreeMap<u16, u64> = BTreeMap::new();
    for op in ops {
        match *op {
            Op::Add(size) if live.len() < 6 => {
                let usable = |n| !links.iter().any(|l| l.told.awaits(n));
                let number = slab.add(segment(strides[size], 4), usable).unwrap();
                assert!(live.insert(number, strides[size]).is_none(), "a number that is in use");
                assert!(!links.iter().any(|l| l.told.awaits(number)), "a number with an answer under way");
            }
            Op::GiveBack(n) => {
                let Some((number, stride)) = live.iter().nth(n).map(|(n, s)| (*n, *s)) else { continue };
                let held = (0..4).any(|slot| slab.holds_on(SlotId { segment: number, slot }) > 0);
                let gone = slab.give_back(number);
                assert_eq!(gone.is_none(), held, "given back exactly when nothing holds it");
                if gone.is_some() {
                    live.remove(&number);
                    assert_eq!(slab.stride(number), 0);
                    links.iter_mut().for_each(|l| l.told.given_back(number, &mut l.producer));
                } else {
                    assert_eq!(slab.stride(number), stride);
                }
            }
            Op::Tell(l) => links[l].tell(&slab),
            Op::Hear(l) => links[l].hear(),
            Op::Answer(l) => links[l].answer(&slab),
            Op::Send(l, len) => {
                let Some(taken) = slab.take(len) else { continue };
                check_taken(&slab, &taken, len);
                let link = &mut links[l];
                if link.producer.credit() > 0 && link.producer.is_mapped(taken.id.segment) {
                    sequence += 1;
                    let SlotId { segment, slot } = taken.id;
                    slab.hold(taken.id);
                    let d = Descriptor { sequence, slot, segment, length: 1, ..Descriptor::default() };
                    link.producer.push(&d, &[]);
                }
                assert!(slab.unhold(taken.id));
            }
            Op::Poll(l) => {
                // What is on the ring names only what this consumer has mapped.
                if let Some(d) = links[l].consumer.poll().expect("an honest producer") {
                    links[l].taken.push(d.descriptor);
                }
            }
            Op::Release(l) => {
                if let Some(d) = links[l].taken.pop() {
                    links[l].consumer.release(&d, Fate::AsCounted);
                }
            }
            Op::Reclaim(l) => links[l].reclaim(&mut slab),
            Op::Add(_) => {}
        }
        sound(&slab);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn segments_come_and_go_and_no_slot_is_lost(ops in prop::collection::vec(op(), 1..300)) {
        run(&ops);
    }
}

#[test]
fn room_is_made_by_the_fewest_segments_without_holds() {
    let mut slab = Slab::default();
    for (stride, slots) in [(256, 16), (1024, 16), (256, 64), (4096, 1)] {
        slab.add(segment(stride, slots), |_| true).unwrap();
    }
    // Of 4, 16, 16 and 4 KB; for messages of 1 KB those of that size stay.
    assert_eq!(slab.spare(1, 1000), [2]);
    assert_eq!(slab.spare(17 << 10, 1000), [2, 0]);
    assert_eq!(slab.spare(24 << 10, 1000), [2, 0, 3]);
    assert_eq!(slab.spare(25 << 10, 1000), [], "no half measures");
    assert_eq!(slab.largest_idle(25 << 10, |number, _| number != 1), (vec![2, 0, 3], 24 << 10), "or all there are");
    assert_eq!(slab.largest_idle(0, |_, _| true), (vec![], 0));
    let held = slab.take(100).unwrap();
    assert_eq!(held.id.segment, 2);
    assert_eq!(slab.spare(1, 1000), [0], "what has holds stays");
}

#[test]
fn a_slot_that_is_very_much_too_large_is_the_last_resort() {
    let mut slab = Slab::default();
    slab.add(segment(1 << 20, 1), |_| true).unwrap();
    assert!(slab.take(100).is_none());
    assert_eq!(slab.take_any(100).map(|t| t.capacity), Some(1 << 20));
    assert!(slab.take_any(100).is_none());
}

/// How many KiB of a segment this process has in its mappings, as the kernel counts them.
fn resident(segment: &Segment) -> usize {
    let file = std::fs::File::from(segment.fd().try_clone_to_owned().unwrap());
    let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap()).to_string();
    let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
    // What is said of a mapping follows the line with its addresses, in which the inode is the fifth word.
    let (mut own, mut sum) = (false, 0);
    for line in all.lines() {
        match line.strip_prefix("Rss:") {
            Some(size) if own => sum += size.trim().trim_end_matches(" kB").parse::<usize>().unwrap(),
            Some(_) => {}
            None if line.split_whitespace().next().is_some_and(|first| !first.ends_with(':')) => {
                own = line.split_whitespace().nth(4) == Some(&inode);
            }
            None => {}
        }
    }
    sum
}

#[test]
fn a_bare_segment_is_faulted_in_a_part_at_a_time() {
    const PART: usize = 8 << 20;
    let bare = Segment::create_bare(Geometry::checked(1 << 20, 24).unwrap(), false).unwrap();
    // Of this segment alone: other tests have some, too, which come and go.
    assert!(resident(&bare) < (PART >> 10) / 2);
    assert!(bare.fault_in(0, PART) && bare.fault_in(PART, PART));
    let two = resident(&bare);
    assert!((2 * (PART >> 10)..5 * (PART >> 10) / 2).contains(&two), "{two}");
    assert!(!bare.fault_in(2 * PART, PART) && !bare.fault_in(3 * PART, PART));
    assert!(resident(&bare) >= 3 * (PART >> 10));
}

#[test]
fn several_slots_are_written_at_once_and_none_twice() {
    let mut slab = Slab::default();
    slab.add(segment(256, 4), |_| true).unwrap();
    let [first, second] = [(); 2].map(|()| slab.take(200).unwrap().id);
    let free = SlotId { slot: 3, ..first };
    let [one, other, none] = slab.several_mut([Some((first, 8, 4)), Some((second, 0, 256)), None]).unwrap();
    one.unwrap().copy_from_slice(b"some");
    other.unwrap().fill(7);
    assert!(none.is_none());
    assert_eq!(slab.written(first, 8, 4), Some(&b"some"[..]));
    assert_eq!(slab.written(second, 255, 1), Some(&[7][..]));
    for wanted in [(first, 16, 4), (second, 8, 249), (free, 0, 1), (SlotId { segment: 1, slot: 0 }, 0, 1)] {
        assert!(slab.several_mut([Some((first, 0, 8)), Some(wanted)]).is_none(), "{wanted:?}");
    }
    // What comes after one that is not wanted is not looked at.
    assert!(
        slab.several_mut([Some((first, 0, 8)), None, Some((first, 0, 8))]).is_some_and(|[_, _, last]| last.is_none())
    );
}

/// A producer that removes a segment of which a message is out breaks its own link; the segment stays.
#[test]
fn a_segment_stays_while_something_of_it_is_out() {
    let (mut producer, mut consumer) = pair_on_heap(ENTRIES);
    producer.add_segment(0, 4);
    consumer.add_segment(0, 4, 256);
    producer.push(&Descriptor { sequence: 1, slot: 3, length: 9, ..Descriptor::default() }, &[]);
    let taken = consumer.poll().unwrap().unwrap().descriptor;
    assert_eq!(consumer.remove_segment(0), Err(Broken::SegmentInUse { segment: 0, out: 1 }));
    assert_eq!(consumer.remove_segment(1), Err(Broken::SegmentInUse { segment: 1, out: 0 }), "not there");
    consumer.release(&taken, Fate::AsCounted);
    assert_eq!(consumer.remove_segment(0), Ok(()));
    // What names it afterwards fails the checks.
    producer.push(&Descriptor { sequence: 2, slot: 3, length: 9, ..Descriptor::default() }, &[]);
    assert!(matches!(consumer.poll(), Err(Broken::BadDescriptor { segment: 0, .. })));
}

#[test]
fn answers_out_of_order_are_refused() {
    let (mut producer, _) = pair_on_heap(ENTRIES);
    let (mut slab, mut told) = (Slab::default(), Told::default());
    for _ in 0..2 {
        slab.add(segment(256, 4), |_| true).unwrap();
    }
    assert_eq!(told.news(&slab, &producer, true).new.len(), 2);
    assert!(told.answered(1, &slab, &mut producer).is_err());
    assert!(told.answered(0, &slab, &mut producer).is_ok());
    assert!(told.answered(0, &slab, &mut producer).is_err(), "twice");
    assert!(told.answered(70_000, &slab, &mut producer).is_err());
    assert!(told.answered(1, &slab, &mut producer).is_ok());
    assert!(told.news(&slab, &producer, true).new.is_empty(), "all is known");
}
