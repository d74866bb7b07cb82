//! A bell that comes late: a sink's session gives it over a socket, and messages do not wait for it.

use insane::Qos;
use insane_shm::counters::{CellState, Count};
use insane_shm::link::{Consumer, DeliveryBlock, Fate, ReturnBlock};
use insane_shm::memory::{Backing, SharedMemory, map_peer};
use insane_shm::wait::SleepKinds;
use insane_tests_host::{Host, Watchdog, reconcile_cells};
use insane_tests_hostile::{Raw, next, say};
use insane_wire::id::{Epoch, SinkId};
use insane_wire::peer::{self, ToPeer, to_peer::Body};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

/// The next message of a pair of this kind.
fn wait_for<T>(socket: &OwnedFd, pick: impl Fn(Body) -> Option<T>) -> (T, u32, Vec<OwnedFd>) {
    loop {
        let (message, fds) = next::<ToPeer>(socket.as_fd(), LIMIT).expect("the source's session says something");
        if let Some(found) = message.body.and_then(&pick) {
            return (found, message.link, fds);
        }
    }
}

/// The sink arms, the source publishes and finds no bell to ring, and only then the bell arrives.
#[test]
fn what_was_published_before_the_bell_came_rings_it() {
    let _watchdog = Watchdog::start("doorbell", LIMIT);
    let host = Host::start();
    let session = host.session("source");
    let source = session.stream(Qos::default()).unwrap().source("late").unwrap();

    let mut raw = Raw::open(&host.socket()).unwrap();
    let sink = raw.endpoint("late", false).unwrap();
    let (pairs, _) = raw.pairs(Duration::from_millis(300));
    let socket = pairs.into_iter().next().unwrap();
    let offered = |b| if let Body::LinkOffer(o) = b { Some(o) } else { None };
    let (offer, link, fds) = wait_for(&socket, offered);
    let theirs = Arc::new(map_peer(fds[0].as_fd(), 0, u64::MAX).unwrap());
    let bytes = ReturnBlock::bytes(offer.entries).unwrap();
    let memory = Arc::new(SharedMemory::create("r", bytes, false, true).unwrap());
    let returns = ReturnBlock::create(memory.clone(), offer.entries).unwrap();
    let mut consumer = Consumer::new(returns, DeliveryBlock::open(theirs, offer.entries).unwrap());
    let accept = Body::LinkAccept(peer::LinkAccept { counter_bytes: raw.memory.len() as u64 });
    say(&socket, link, accept, &[memory.fd(), raw.memory.fd()]).unwrap();
    let opens = |b| if let Body::FlowOpen(f) = b { Some(f) } else { None };
    let (flow, ..) = wait_for(&socket, opens);
    let ids = (Epoch::from_bytes(&flow.epoch).unwrap(), SinkId::from_bytes(&sink).unwrap());
    let cell = raw.counters.start(0, CellState::Consuming, ids.0.0, ids.1.0).unwrap();
    say(
        &socket,
        link,
        Body::FlowOpened(peer::FlowOpened { source: flow.source, sink, cell: 0, cursor: 0, join: 1, scattered: false }),
        &[],
    )
    .unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);

    consumer.prepare_sleep(SleepKinds::DOORBELL);
    assert!(!consumer.ready());
    source.send(b"before the bell").unwrap();
    let (mine, bell) = insane_shm::socket::pair().unwrap();
    say(&socket, link, Body::Doorbell(peer::Empty {}), &[bell.as_fd()]).unwrap();
    let mut fds = [rustix::event::PollFd::new(&mine, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(
        rustix::event::poll(&mut fds, Some(&patience)),
        Ok(1),
        "the bell does not ring: the sink sleeps for ever"
    );

    let message = consumer.poll().unwrap().expect("what was sent");
    assert_eq!(message.inline_bytes(), b"before the bell");
    cell.add(Count::Delivered, 1);
    consumer.release(&message.descriptor, Fate::AsCounted);
    let sinks = raw.counters.get(0).unwrap();
    reconcile_cells(|| session.counts().into_iter().chain([sinks.clone()]).collect(), 1, 1);
}
