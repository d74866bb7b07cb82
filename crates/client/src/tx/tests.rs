use super::*;
use insane_shm::counters::{CellState, bytes};
use insane_shm::link::{Consumer, DeliveryBlock, ReturnBlock};
use insane_shm::memory::Heap;

const ENTRIES: u32 = 16;

/// A source of small messages on a best-effort stream, and the link to its only sink.
fn source_and_sink() -> (Tx, Consumer) {
    let delivery = Arc::new(Heap::new(DeliveryBlock::bytes(ENTRIES).unwrap()));
    let returns = Arc::new(Heap::new(ReturnBlock::bytes(ENTRIES).unwrap()));
    let own = DeliveryBlock::create(delivery.clone(), ENTRIES).unwrap();
    let back = ReturnBlock::create(returns.clone(), ENTRIES).unwrap();
    let producer = Producer::new(own, ReturnBlock::open(returns, ENTRIES).unwrap());
    let consumer = Consumer::new(back, DeliveryBlock::open(delivery, ENTRIES).unwrap());
    let counters = || Counters::create(Arc::new(Heap::new(bytes(4))), 4).unwrap();
    let (cells, theirs) = (counters(), counters());
    theirs.start(0, CellState::Consuming, 1, 1).unwrap();
    let cell = cells.start(1, CellState::Producing, 1, 1).unwrap();
    let flows = vec![TxFlow::new(SinkId(1), cell, 0, false, 1)];
    let mut tx = Tx { share: 1 << 20, ..Tx::default() };
    tx.links.push(Some(TxLink::new(producer, theirs, (false, false), Shared::for_tests())));
    tx.sources.push(Some(TxSource {
        channel: 1,
        sequence: 0,
        priority: 0,
        cell: cells.start(0, CellState::Source, 1, 0).unwrap(),
        routes: vec![Route { link: 0, flows, joined: 1 }],
        ended: VecDeque::new(),
        pack: None,
        batching: false,
        astray: 0,
    }));
    tx.share_out();
    (tx, consumer)
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
        let emit = Emit {
            place: Place::NONE,
            inline: &[7; 8],
            length: 8,
            deadline_ns: 1,
            timestamp_ns: 0,
            priority: 0,
            more: false,
        };
        assert_eq!(tx.emit(0, &emit).unwrap(), n);
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
