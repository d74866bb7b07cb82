//! Bells that come late, and bells that nobody rings any more: a sink's session gives a bell over a socket, and messages do not
//! wait for it; whoever has it may close it, or be gone while its messages are read.

use insane::{Code, Event, Qos, Session, WaitSet};
use insane_shm::counters::{CellState, Count};
use insane_shm::link::{Consumer, DeliveryBlock, Fate, ReturnBlock};
use insane_shm::memory::{Backing, SharedMemory, map_peer};
use insane_shm::ring::LAYOUT;
use insane_shm::wait::SleepKinds;
use insane_tests_host::hostile::{Raw, next, say};
use insane_tests_host::{Host, Watchdog, reconcile, reconcile_cells};
use insane_wire::id::{Epoch, SinkId};
use insane_wire::peer::{self, ToPeer, to_peer::Body};
use rustix::fd::{AsFd, OwnedFd};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

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

/// A raw source with a link, and a flow to the sink of a channel.
struct Ringer {
    _raw: Raw,
    socket: OwnedFd,
    _memory: Arc<SharedMemory>,
}

impl Ringer {
    fn join(host: &Host, channel: &str) -> Self {
        let mut raw = Raw::open(&host.socket()).unwrap();
        let epoch = raw.endpoint(channel, true).unwrap();
        let (pairs, sinks) = raw.pairs(Duration::from_millis(300));
        let (socket, sink) = (pairs.into_iter().next().unwrap(), sinks[0].clone());
        let memory = SharedMemory::create("d", DeliveryBlock::bytes(raw.entries).unwrap(), false, true).unwrap();
        let memory = Arc::new(memory);
        DeliveryBlock::create(memory.clone(), raw.entries).unwrap();
        let (stream, entries) = (raw.stream().to_owned(), raw.entries);
        let offer = peer::LinkOffer { stream, entries, reliable: false, layout: LAYOUT };
        say(&socket, 1, Body::LinkOffer(offer), &[memory.fd()]).unwrap();
        let open = peer::FlowOpen { source: 0, epoch, sink, channel: 0, strict: false };
        say(&socket, 1, Body::FlowOpen(open), &[]).unwrap();
        wait_for(&socket, |b| matches!(b, Body::FlowOpened(_)).then_some(()));
        Self { _raw: raw, socket, _memory: memory }
    }

    /// Takes the bell that it is given, and closes it.
    fn close_bell(&self) {
        wait_for(&self.socket, |b| matches!(b, Body::Doorbell(_)).then_some(()));
    }
}

/// Waits until an event comes that is `wanted`, and does something meanwhile.
fn event(session: &Session, wanted: impl Fn(&Event) -> bool, mut meanwhile: impl FnMut()) {
    let end = Instant::now() + LIMIT;
    loop {
        while let Some(event) = session.next_event() {
            if wanted(&event) {
                return;
            }
        }
        assert!(Instant::now() < end, "the session is not told");
        meanwhile();
    }
}

/// More looks than a session's thread has reason for while nothing happens.
const MANY: u64 = 200;

fn is_quiet(session: &Session, since: u64) {
    std::thread::sleep(Duration::from_millis(5));
    let rounds = session.rounds() - since;
    assert!(rounds < MANY, "its thread was woken {rounds} times by a bell that nobody rings");
}

fn broken(event: &Event) -> bool {
    matches!(event, Event::PeerBroken { text, .. } if text.contains("doorbell"))
}

#[test]
fn who_closes_its_bell_wakes_nobody_and_is_cut_off() {
    let _watchdog = Watchdog::start("closed bell", 2 * LIMIT);
    let host = Host::start();
    let session = host.session("sink");
    let sink = session.stream(Qos::default()).unwrap().sink("bell").unwrap();
    let ringer = Ringer::join(&host, "bell");
    let mut next = pin!(sink.receive());
    assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    ringer.close_bell();
    let before = session.rounds();
    event(&session, broken, || is_quiet(&session, before));
}

#[test]
fn who_closes_the_bell_of_a_wait_set_is_cut_off() {
    let _watchdog = Watchdog::start("wait set", 2 * LIMIT);
    let host = Host::start();
    let session = host.session("sink");
    let sink = session.stream(Qos::default()).unwrap().sink("set").unwrap();
    let ringer = Ringer::join(&host, "set");
    let mut set = WaitSet::new().unwrap();
    set.add(&sink).unwrap();
    assert!(set.arm().unwrap());
    ringer.close_bell();
    event(&session, broken, || {
        let found = set.wait(&mut Vec::new(), Some(Duration::from_millis(20)));
        assert_eq!(found.unwrap_err().code(), Code::Timeout);
    });
}

/// Its link stays as long as the message does, and its bell rings for ever.
#[test]
fn who_is_gone_while_its_message_is_read_wakes_nobody() {
    let _watchdog = Watchdog::start("gone", 2 * LIMIT);
    let host = Host::start();
    let (session, theirs) = (host.session("sink"), host.session("source"));
    let sink = session.stream(Qos::default()).unwrap().sink("gone").unwrap();
    let source = theirs.stream(Qos::default()).unwrap().source("gone").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let mut next = pin!(sink.receive());
    assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    source.send(b"the last word").unwrap();
    let held = sink.consume_timeout(LIMIT).unwrap();
    reconcile([&session, &theirs], 1, 1);
    drop((source, theirs));
    event(&session, |e| matches!(e, Event::PeerLost { .. }), || std::thread::sleep(Duration::from_millis(1)));
    let before = session.rounds();
    (0..40).for_each(|_| is_quiet(&session, before));
    assert_eq!(held.to_vec(), b"the last word");
    assert!(session.next_event().is_none(), "nobody has broken anything");
}
