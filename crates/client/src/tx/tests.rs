use super::*;
use insane_shm::counters::{CellState, bytes};
use insane_shm::link::{Consumer, DeliveryBlock, ReturnBlock};
use insane_shm::memory::Heap;
use insane_shm::slab::{geometry_for, stride_for};

pub(super) const ENTRIES: u32 = 16;

/// A source of small messages on a best-effort stream, and the link to its only sink.
pub(super) fn source_and_sink() -> (Tx, Consumer) {
    source_and_sink_over(false)
}

/// The same, or of a reliable stream and towards the runtime.
fn source_and_sink_over(network: bool) -> (Tx, Consumer) {
    let delivery = Arc::new(Heap::new(DeliveryBlock::bytes(ENTRIES).unwrap()));
    let returns = Arc::new(Heap::new(ReturnBlock::bytes(ENTRIES).unwrap()));
    let own = DeliveryBlock::create(delivery.clone(), ENTRIES).unwrap();
    let back = ReturnBlock::create(returns.clone(), ENTRIES).unwrap();
    let producer = Producer::new(own, ReturnBlock::open(returns, ENTRIES).unwrap());
    let consumer = Consumer::new(back, DeliveryBlock::open(delivery, ENTRIES).unwrap());
    let counters = || Counters::create(Arc::new(Heap::new(bytes(4))), 4).unwrap();
    let (cells, theirs) = (counters(), counters());
    theirs.start(0, CellState::Consuming, 1, 1).unwrap();
    theirs.start(1, CellState::Consuming, 2, 1).unwrap();
    let cell = cells.start(1, CellState::Producing, 1, 1).unwrap();
    let flows = vec![TxFlow::new(SinkId(1), cell, 0, false, 1)];
    let mut tx = Tx { share: 1 << 20, ..Tx::default() };
    tx.links.push(Some(TxLink::new(producer, theirs, (network, network), Shared::for_tests())));
    let source = TxSource::new(1, 0, cells.start(0, CellState::Source, 1, 0).unwrap());
    tx.add_source(TxSource { routes: vec![Route { link: 0, flows, joined: 1 }], ..source });
    tx.share_out();
    (tx, consumer)
}

/// Emits a small message with a deadline; its number.
pub(super) fn emit_one(tx: &mut Tx, index: usize) -> u64 {
    let (place, inline, length, timestamp_ns) = (Place::NONE, &[7; 8], 8, 0);
    tx.emit(index, &Emit { place, inline, length, deadline_ns: 1, timestamp_ns, priority: 0, more: false }).unwrap()
}

fn expire_all(consumer: &mut Consumer) {
    while let Some(delivery) = consumer.poll().unwrap() {
        consumer.release(&delivery.descriptor, Fate::Expired);
    }
    consumer.settle();
}

/// `ask`: the source looks for room before it emits.
fn expire_many(ask: bool) {
    let (mut tx, mut consumer) = source_and_sink();
    for n in 1..=3 * REMEMBERED as u64 {
        if ask && !tx.has_room(0, Place::NONE) {
            expire_all(&mut consumer);
            assert!(tx.has_room(0, Place::NONE));
        }
        assert_eq!(emit_one(&mut tx, 0), n);
        if !ask && n % u64::from(ENTRIES) == 0 {
            expire_all(&mut consumer);
        }
        let link = tx.links[0].as_ref().unwrap();
        assert!(link.fates.len() <= ENTRIES as usize, "{} fates wait to be noted", link.fates.len());
    }
    tx.reclaim_all();
    let flow = &tx.sources[0].as_ref().unwrap().routes[0].flows[0];
    assert_eq!((flow.given, flow.fates.len()), (3 * REMEMBERED as u64, REMEMBERED));
}

#[test]
fn what_is_kept_of_expired_messages_is_bounded() {
    expire_many(false);
    expire_many(true);
}

/// Closes the source in a place, without waiting for what it has emitted.
fn close(tx: &mut Tx, place: usize) -> TxSource {
    let number = tx.sources[place].as_ref().unwrap().number;
    for (source, sink, _) in tx.flows_on(0).into_iter().filter(|(source, ..)| *source == number) {
        tx.end_flow(0, source, sink, false).unwrap();
    }
    tx.take_source(number).unwrap()
}

#[test]
fn the_place_of_a_closed_source_is_used_again_once_its_handle_is_gone() {
    let (mut tx, _consumer) = source_and_sink();
    let cell = close(&mut tx, 0).cell;
    let add = |tx: &mut Tx| tx.add_source(TxSource::new(1, 0, cell.clone()));
    assert_eq!(add(&mut tx), (1, 1));
    tx.leave_place(0);
    assert_eq!(add(&mut tx), (0, 2));
    // Its handle is gone before it is closed, as when the runtime is gone or the service thread has much to do.
    tx.leave_place(0);
    assert_eq!(add(&mut tx), (2, 3));
    assert!(tx.refuse(2, &Code::QuotaExceeded.into()).is_none());
    close(&mut tx, 0);
    assert!(tx.place_of(2).is_none() && !tx.is_back(2) && tx.take_source(2).is_none());
    assert_eq!(add(&mut tx), (0, 4));
    assert!(tx.refused.is_empty() && tx.source(4).is_some());
    // All numbers were used once.
    tx.places.next = 1;
    assert_eq!(add(&mut tx), (3, 2));
    let before = tx.records();
    for _ in 0..10_000 {
        let (place, _) = add(&mut tx);
        close(&mut tx, place);
        tx.leave_place(place);
    }
    assert!(tx.records() <= before + 2, "{} and {before} before", tx.records());
}

#[test]
fn what_comes_late_of_a_closed_source_is_not_taken_for_that_of_the_next_in_its_place() {
    for dies in [false, true] {
        let (mut tx, mut consumer) = source_and_sink();
        assert_eq!(emit_one(&mut tx, 0), 1);
        let old = close(&mut tx, 0);
        tx.leave_place(0);
        let flow = &old.ended[0].flow;
        let counts = Counters::create(Arc::new(Heap::new(bytes(1))), 1).unwrap();
        let new = TxFlow::new(flow.sink, counts.start(0, CellState::Producing, 2, 1).unwrap(), 1, false, 1);
        let routes = vec![Route { link: 0, flows: vec![new], joined: 2 }];
        let next = TxSource { routes, ..TxSource::new(1, 0, old.cell.clone()) };
        assert_eq!(tx.add_source(next), (0, 1));
        assert_eq!(emit_one(&mut tx, 0), 1);
        if dies {
            // Of each one message is unconfirmed.
            tx.dissolve(0);
            assert_eq!(flow.cell.value(Count::Unconfirmed), 1);
            assert_eq!(counts.get(0).unwrap().get(Count::Unconfirmed), 1);
            assert_eq!(tx.outcome(0, 1).unwrap().unconfirmed, 1);
            continue;
        }
        let first = consumer.poll().unwrap().unwrap().descriptor;
        consumer.release(&first, Fate::Expired);
        consumer.settle();
        tx.reclaim_all();
        assert!(tx.sources[0].as_ref().unwrap().routes[0].flows[0].fates.is_empty());
        let second = consumer.poll().unwrap().unwrap().descriptor;
        assert_ne!((first.source, first.sequence), (second.source, second.sequence));
        consumer.release(&second, Fate::Expired);
        consumer.settle();
        tx.reclaim_all();
        assert_eq!(tx.sources[0].as_ref().unwrap().routes[0].flows[0].fates, [(1, Fate::Expired)]);
    }
}

#[test]
fn a_reliable_source_that_outruns_its_runtime_is_held_to_little_until_it_is_kept_up_with() {
    const SLOT: u64 = 1 << 20;
    let (mut tx, mut consumer) = source_and_sink_over(true);
    tx.share = 100 * SLOT;
    tx.share_out();
    let stride = stride_for(SLOT).unwrap();
    let segment = Segment::create(geometry_for(SLOT, stride * 20).unwrap(), false).unwrap();
    let number = tx.add_segment(Arc::new(segment)).unwrap();
    let geometry = tx.slab.segments().find(|(other, _)| *other == number).unwrap().1.geometry();
    tx.links[0].as_mut().unwrap().producer.add_segment(number, geometry.slots);
    consumer.add_segment(number, geometry.slots, geometry.stride);
    // Emits while there is room; how many.
    let fill = |tx: &mut Tx| {
        let emitted = (0..).find(|_| {
            let place = Place::of(tx.take(SLOT).unwrap().id);
            let room = tx.has_room(0, place);
            if room {
                let (deadline_ns, timestamp_ns, inline) = (0, 0, &[][..]);
                let emit = Emit { place, inline, length: 9, deadline_ns, timestamp_ns, priority: 0, more: false };
                tx.emit(0, &emit).unwrap();
            }
            tx.slab.unhold(place.slot().unwrap());
            !room
        });
        emitted.unwrap()
    };
    let mut give_back = |most: usize| {
        for _ in 0..most {
            let Some(delivery) = consumer.poll().unwrap() else { break };
            consumer.release(&delivery.descriptor, Fate::AsCounted);
        }
        consumer.settle();
    };
    // A burst goes at once, as far as the ring holds it.
    assert_eq!(fill(&mut tx), ENTRIES as usize);
    // From then on eight of them wait at most, as they are large, so that the runtime takes what was just written.
    for taken in 1..=8 {
        give_back(1);
        assert_eq!(fill(&mut tx), 0, "{taken} of 16 were taken");
    }
    for _ in 0..3 {
        give_back(1);
        assert_eq!(fill(&mut tx), 1);
    }
    // Who is kept up with gets twice as much each time, until it fills the ring again.
    for room in [8, 16] {
        give_back(16);
        assert_eq!(fill(&mut tx), room);
    }
    give_back(1);
    assert_eq!(fill(&mut tx), 0);
    // What holds others up, or is not given back for whatever reason, is not bounded before the link is full.
    for room in [0, 1] {
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(fill(&mut tx), room, "nothing came back for a while");
    }
    give_back(1);
    assert_eq!(fill(&mut tx), 0);
    let cells = Counters::create(Arc::new(Heap::new(bytes(4))), 4).unwrap();
    let flows = vec![TxFlow::new(SinkId(2), cells.start(1, CellState::Producing, 2, 2).unwrap(), 1, false, 1)];
    let second = TxSource::new(1, 0, cells.start(0, CellState::Source, 2, 0).unwrap());
    tx.add_source(TxSource { routes: vec![Route { link: 0, flows, joined: 1 }], ..second });
    assert_eq!(fill(&mut tx), 1, "another source is to have the room that there is");
}
