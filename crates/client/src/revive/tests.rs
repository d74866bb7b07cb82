use super::*;
use crate::session::Shared;
use crate::tx::{Emit, Holder, Place, Route, TxSource};
use insane_shm::counters::{CellState, CellWriter, Count, Counters, FINAL_AT_SINK, bytes};
use insane_shm::link::{Consumer, DeliveryBlock, Descriptor, Fate, Producer, ReturnBlock};
use insane_shm::memory::Heap;
use insane_shm::segment::Segment;
use insane_shm::slab::{geometry_for, stride_for};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

const ENTRIES: u32 = 16;
const SOURCES: usize = 2;
const SINKS: u128 = 2;
const SLOT: u64 = 64;

fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// A runtime as its client sees it: it takes messages, its sinks get them at their own pace, it counts and gives back when it
/// comes to that, and it may die before.
struct Runtime {
    at: usize,
    consumer: Consumer,
    cells: BTreeMap<(usize, u128), (CellWriter, u32)>,
    /// What each sink is still to get.
    queues: BTreeMap<(usize, u128), VecDeque<u64>>,
    /// What was delivered and not counted.
    uncounted: BTreeMap<(usize, u128), u64>,
    /// Messages, and how many sinks are still to get them.
    held: Vec<(Descriptor, u32)>,
}

/// The sinks, whose sessions live on.
#[derive(Default)]
struct Sinks {
    cursors: BTreeMap<(usize, u128), u64>,
    /// What each has got, in order.
    got: BTreeMap<(usize, u128), Vec<u64>>,
}

struct World {
    tx: Tx,
    shared: Arc<Shared>,
    cells: Counters,
    next_cell: u32,
    sinks: Sinks,
    seed: u64,
}

fn pair_of(tx: &mut Tx, shared: &Arc<Shared>, next_cell: &mut u32) -> Runtime {
    let delivery = Arc::new(Heap::new(DeliveryBlock::bytes(ENTRIES).unwrap()));
    let returns = Arc::new(Heap::new(ReturnBlock::bytes(ENTRIES).unwrap()));
    let own = DeliveryBlock::create(delivery.clone(), ENTRIES).unwrap();
    let back = ReturnBlock::create(returns.clone(), ENTRIES).unwrap();
    let mut producer = Producer::new(own, ReturnBlock::open(returns, ENTRIES).unwrap());
    let mut consumer = Consumer::new(back, DeliveryBlock::open(delivery, ENTRIES).unwrap());
    for (number, segment) in tx.slab.segments() {
        let geometry = segment.geometry();
        producer.add_segment(number, geometry.slots);
        consumer.add_segment(number, geometry.slots, geometry.stride);
    }
    let counters = Counters::create(Arc::new(Heap::new(bytes(8))), 8).unwrap();
    let mut cells = BTreeMap::new();
    for source in 0..SOURCES {
        for sink in 1..=SINKS {
            let number = cells.len() as u32;
            let cell = counters.start(number, CellState::Consuming, source as u128 + 1, sink).unwrap();
            cells.insert((source, sink), (cell, number));
        }
    }
    let at = tx.links.iter().position(Option::is_none).unwrap_or(tx.links.len());
    if at == tx.links.len() {
        tx.links.push(None);
    }
    tx.links[at] = Some(TxLink::new(producer, counters, (true, true), shared.clone()));
    tx.share_out();
    *next_cell += 1;
    Runtime { at, consumer, cells, queues: BTreeMap::new(), uncounted: BTreeMap::new(), held: Vec::new() }
}

impl World {
    fn new(seed: u64) -> (Self, Runtime) {
        let shared = Shared::for_tests();
        let mut tx = Tx { share: 1 << 20, ..Tx::default() };
        let segment = Segment::create(geometry_for(SLOT, stride_for(SLOT).unwrap() * 24).unwrap(), false).unwrap();
        tx.add_segment(Arc::new(segment)).unwrap();
        let cells = Counters::create(Arc::new(Heap::new(bytes(64))), 64).unwrap();
        let mut next_cell = 0;
        let runtime = pair_of(&mut tx, &shared, &mut next_cell);
        let mut cell = 0;
        for source in 0..SOURCES {
            let mut start = |state, sink| {
                cell += 1;
                cells.start(cell, state, source as u128 + 1, sink).unwrap()
            };
            let own = start(CellState::Source, 0);
            let flows = (1..=SINKS)
                .map(|sink| {
                    let cell = start(CellState::Producing, sink);
                    TxFlow::new(SinkId(sink), cell, runtime.cells[&(source, sink)].1, false, 1)
                })
                .collect();
            let routes = vec![Route { link: runtime.at, flows, joined: SINKS as u16 }];
            assert_eq!(tx.add_source(TxSource { routes, ..TxSource::new(1, 0, own) }), (source, source as u32));
        }
        (Self { tx, shared, cells, next_cell, sinks: Sinks::default(), seed }, runtime)
    }

    fn roll(&mut self, sides: u64) -> u64 {
        next(&mut self.seed) % sides
    }

    /// Emits one message of a source if there is room, with or without a slot.
    fn emit(&mut self, source: usize, empty: bool) -> bool {
        let taken = if empty { None } else { self.tx.take(SLOT) };
        let place = taken.map_or(Place::NONE, |t| Place::of(t.id));
        let room = (empty || taken.is_some()) && self.tx.has_room(source, place);
        if room {
            let length = if empty { 0 } else { 9 };
            let (deadline_ns, timestamp_ns) = (0, 0);
            let emit = Emit { place, inline: &[], length, deadline_ns, timestamp_ns, priority: 0, more: false };
            self.tx.emit(source, &emit).unwrap();
            self.tx.tend_logs(source);
        }
        if let Some(slot) = place.slot() {
            self.tx.slab.unhold(slot);
        }
        room
    }

    /// One step of a runtime.
    fn step(&mut self, runtime: &mut Runtime) {
        match self.roll(4) {
            0 | 1 => {
                let Some(delivery) = runtime.consumer.poll().unwrap() else { return };
                let d = delivery.descriptor;
                for sink in 1..=SINKS {
                    runtime.queues.entry((d.source as usize, sink)).or_default().push_back(d.sequence);
                }
                // Without a slot its credit is its source's again at once.
                if delivery.is_inline() {
                    runtime.consumer.release(&d, Fate::AsCounted);
                    runtime.consumer.settle();
                } else {
                    runtime.held.push((d, SINKS as u32));
                }
            }
            2 => {
                let key = (self.roll(SOURCES as u64) as usize, u128::from(self.roll(SINKS as u64)) + 1);
                let Some(sequence) = runtime.queues.get_mut(&key).and_then(VecDeque::pop_front) else { return };
                let cursor = self.sinks.cursors.entry(key).or_default();
                if sequence > *cursor {
                    *cursor = sequence;
                    self.sinks.got.entry(key).or_default().push(sequence);
                }
                *runtime.uncounted.entry(key).or_default() += 1;
                let held = runtime.held.iter_mut().find(|(d, _)| (d.source as usize, d.sequence) == (key.0, sequence));
                held.into_iter().for_each(|(_, left)| *left -= 1);
            }
            _ if self.roll(2) == 0 => {
                for (key, count) in std::mem::take(&mut runtime.uncounted) {
                    runtime.cells[&key].0.add(Count::Delivered, count);
                }
            }
            _ => {
                let consumer = &mut runtime.consumer;
                runtime.held.retain(|(d, left)| {
                    if *left == 0 {
                        consumer.release(d, Fate::AsCounted);
                    }
                    *left > 0
                });
            }
        }
    }

    fn reopened(runtime: &Runtime) -> AllReopened {
        let reopened = |sink: u128, cell| Reopened { cell, join: sink as u16 };
        let all = runtime.cells.iter();
        all.map(|((source, sink), (_, cell))| ((*source as u32, SinkId(*sink)), reopened(*sink, *cell))).collect()
    }
}

/// What a source's cells and the runtime's say of one flow: intended, and ended at either end.
fn law(world: &World, runtime: &Runtime, key: (usize, u128)) -> (u64, u64) {
    let cells = world.cells.live();
    let own = cells.iter().find(|c| c.epoch == key.0 as u128 + 1 && c.sink == key.1).unwrap();
    let ended: u64 = FINAL_AT_SINK.iter().map(|c| own.get(*c)).sum();
    (own.get(Count::Intended), ended + runtime.cells[&key].0.value(Count::Delivered))
}

#[test]
fn whenever_runtimes_die_every_sink_gets_every_message_once_and_in_order() {
    for seed in 0..if cfg!(miri) { 1 } else { 300u64 } {
        let (mut world, mut runtime) = World::new(seed.wrapping_mul(7919) + 1);
        for _ in 0..4 {
            for _ in 0..world.roll(300) {
                if world.roll(3) == 0 {
                    let (source, empty) = (world.roll(SOURCES as u64) as usize, world.roll(4) == 0);
                    world.emit(source, empty);
                }
                world.step(&mut runtime);
            }
            // It dies, with whatever it had not counted or given back.
            let parked = runtime.at;
            assert!(world.tx.park(parked).is_empty());
            drop(runtime);
            runtime = loop {
                for _ in 0..world.roll(40) {
                    let (source, empty) = (world.roll(SOURCES as u64) as usize, world.roll(4) == 0);
                    world.emit(source, empty);
                }
                let mut heir = pair_of(&mut world.tx, &world.shared, &mut world.next_cell);
                let mut dies = world.roll(3) == 0;
                loop {
                    if dies && world.roll(4) == 0 {
                        break;
                    }
                    if world.tx.hand_on(parked, heir.at, &World::reopened(&heir)) {
                        dies = false;
                        break;
                    }
                    (0..world.roll(30)).for_each(|_| world.step(&mut heir));
                    if world.roll(4) == 0 {
                        world.emit(0, false);
                    }
                }
                if dies {
                    assert!(world.tx.dissolve(heir.at).is_empty());
                    continue;
                }
                world.tx.succeed(parked, heir.at, &World::reopened(&heir));
                break heir;
            };
            let audit = world.tx.slab.audit();
            assert_eq!((audit.lost, audit.doubly_owned), (0, 0), "seed {seed}: {audit:?}");
        }
        for _ in 0..20_000 {
            world.step(&mut runtime);
        }
        world.tx.reclaim_all();
        let audit = world.tx.slab.audit();
        assert_eq!((audit.held, audit.lost, audit.doubly_owned), (0, 0, 0), "seed {seed}: {audit:?}");
        for key in (0..SOURCES).flat_map(|source| (1..=SINKS).map(move |sink| (source, sink))) {
            let emitted = world.tx.sources[key.0].as_ref().unwrap().sequence;
            let got = world.sinks.got.remove(&key).unwrap_or_default();
            assert_eq!(got, (1..=emitted).collect::<Vec<_>>(), "seed {seed}, flow {key:?}");
            let (intended, ended) = law(&world, &runtime, key);
            assert_eq!((intended, ended), (emitted, emitted), "seed {seed}, flow {key:?}");
        }
        for source in 0..SOURCES {
            for sequence in 1..=world.tx.sources[source].as_ref().unwrap().sequence {
                let outcome = world.tx.outcome(source, sequence).unwrap();
                assert_eq!((outcome.intended, outcome.delivered), (2, 2), "seed {seed}, {source}: {sequence}");
            }
        }
    }
}

#[test]
fn what_expired_is_not_taken_for_what_was_emitted_before_it_and_is_under_way() {
    // With and without a slot, behind one that is under way.
    for last_is_empty in [false, true] {
        let (mut world, mut runtime) = World::new(7);
        assert!(world.emit(0, false) && world.emit(0, false) && world.emit(0, last_is_empty));
        let taken: Vec<Descriptor> = (0..3).map(|_| runtime.consumer.poll().unwrap().unwrap().descriptor).collect();
        // The one in the middle has expired, and is given back before the runtime dies.
        runtime.consumer.release(&taken[1], Fate::Expired);
        runtime.consumer.settle();
        (1..=SINKS).for_each(|sink| runtime.cells[&(0, sink)].0.add(Count::Expired, 1));
        let parked = runtime.at;
        assert!(world.tx.park(parked).is_empty());
        let mut heir = pair_of(&mut world.tx, &world.shared, &mut world.next_cell);
        assert!(world.tx.hand_on(parked, heir.at, &World::reopened(&heir)));
        world.tx.succeed(parked, heir.at, &World::reopened(&heir));
        (0..200).for_each(|_| world.step(&mut heir));
        world.tx.reclaim_all();
        for sink in 1..=SINKS {
            assert_eq!(world.sinks.got.remove(&(0, sink)), Some(vec![1, 3]), "{last_is_empty}");
            assert_eq!(law(&world, &heir, (0, sink)), (3, 3), "{last_is_empty}");
        }
        let audit = world.tx.slab.audit();
        assert_eq!((audit.held, audit.lost, audit.doubly_owned), (0, 0, 0), "{audit:?}");
    }
}

#[test]
fn what_no_runtime_takes_over_is_unconfirmed() {
    let (mut world, mut runtime) = World::new(5);
    for n in 0..12 {
        assert!(world.emit(0, n % 3 == 0));
    }
    (0..200).for_each(|_| world.step(&mut runtime));
    assert!(world.tx.park(runtime.at).is_empty());
    let delivered = runtime.cells[&(0, 1)].0.value(Count::Delivered);
    for n in 0..3 {
        assert!(world.emit(0, n == 0));
    }
    assert_eq!(world.tx.flows_on(runtime.at).len(), 4);
    assert!(world.tx.is_parked(0) && world.tx.has_parked());
    assert_eq!(world.tx.outcome(0, 15).unwrap().pending, 2);
    assert_eq!(world.tx.dissolve(runtime.at).len(), 4);
    let cells = world.cells.live();
    let own = cells.iter().find(|c| c.epoch == 1 && c.sink == 1).unwrap();
    let (ended, lost) = (own.get(Count::Delivered), own.get(Count::Unconfirmed));
    assert!(ended >= delivered && lost >= 3 && ended + lost == 15, "{own:?}");
    assert_eq!(world.tx.outcome(0, 15).unwrap().unconfirmed, 2);
    let audit = world.tx.slab.audit();
    assert_eq!((audit.held, audit.lost, audit.doubly_owned), (0, 0, 0), "{audit:?}");
}

/// Who holds a source up is told by what its sinks have taken, and by whose messages keep the link; what was asked of a runtime that
/// is gone by then has no answer and is not waited for.
#[test]
fn who_holds_a_source_up_is_told_by_what_its_sinks_have_taken() {
    let (mut world, runtime) = World::new(3);
    let (at, second) = (runtime.at, Duration::from_secs(1));
    while world.emit(0, false) {}
    let count = |source, sink, n| runtime.cells[&(source, sink)].0.add(Count::Delivered, n);
    let all = |by| Holder::Among(by, (1..=SINKS).map(SinkId).collect());
    let half = world.tx.taken_on(&[at]);
    assert_eq!(world.tx.who_holds(at, 0, second, &half), all(0));
    assert!(!world.tx.have_taken(at, [0, 1], &half));
    // The other source has nothing on the link, and may give up the sinks of this one if that would.
    let others = |tx: &mut Tx, gives_up| {
        tx.source_mut(0).unwrap().gives_up = gives_up;
        tx.who_holds(at, 1, second, &half)
    };
    assert_eq!(others(&mut world.tx, None), Holder::Others);
    assert_eq!(others(&mut world.tx, Some(2 * second)), Holder::Others);
    assert_eq!(others(&mut world.tx, Some(second)), all(0));
    // One of them goes on.
    count(0, 1, 1);
    assert_eq!(world.tx.who_holds(at, 0, second, &half), Holder::Among(0, vec![SinkId(2)]));
    assert!(world.tx.have_taken(at, [0, 1], &half) && !world.tx.have_taken(at, [1, 1], &half));
    count(0, 2, 1);
    assert_eq!(world.tx.who_holds(at, 0, second, &half), Holder::Nobody);
    assert_eq!(world.tx.who_holds(at, 1, second, &half), Holder::Nobody);
    // They have all, of what their host has not said that yet.
    [1, 2].into_iter().for_each(|sink| count(0, sink, u64::from(ENTRIES) - 1));
    let half = world.tx.taken_on(&[at]);
    assert_eq!(world.tx.who_holds(at, 0, second, &half), Holder::Others);

    let (number, asks) = world.tx.ask(vec![(at, 0, vec![SinkId(2)])]);
    assert!(asks.len() == 1 && world.tx.is_asked(&asks[0].question));
    assert_eq!(world.tx.unanswered(number), [at]);
    assert!(world.tx.park(at).is_empty() && world.tx.is_link_parked(at));
    assert!(world.tx.unanswered(number).is_empty() && !world.tx.is_asked(&asks[0].question));
    let (number, _) = world.tx.ask(vec![(at, 0, Vec::new())]);
    world.tx.dissolve(at);
    assert!(world.tx.unanswered(number).is_empty());
}
