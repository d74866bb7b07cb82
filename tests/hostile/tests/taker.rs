//! A sink's session that takes a link and then does not keep to what it has said.

use insane::{Event, Qos, Session, Source};
use insane_shm::counters::CellState;
use insane_shm::link::{Consumer, DeliveryBlock, ReturnBlock};
use insane_shm::memory::{Backing, SharedMemory, map_peer};
use insane_tests_host::hostile::{Raw, next, say};
use insane_tests_host::{Host, Watchdog, reconcile_cells};
use insane_wire::id::{Epoch, SinkId};
use insane_wire::peer::{self, ToPeer, to_peer::Body};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

/// A raw sink on a link that it has accepted, with a flow that it has opened.
struct Taker {
    _raw: Raw,
    socket: OwnedFd,
    _consumer: Consumer,
    link: u32,
    source: u32,
}

impl Taker {
    fn join(host: &Host, channel: &str) -> Self {
        let mut raw = Raw::open(&host.socket()).unwrap();
        let sink = raw.endpoint(channel, false).unwrap();
        let (pairs, _) = raw.pairs(Duration::from_millis(300));
        let socket = pairs.into_iter().next().unwrap();
        let mut consumer = None;
        loop {
            let (message, fds) = next::<ToPeer>(socket.as_fd(), LIMIT).expect("the source's session says something");
            match message.body.unwrap() {
                Body::LinkOffer(offer) => {
                    let theirs = Arc::new(map_peer(fds[0].as_fd(), 0, u64::MAX).unwrap());
                    let bytes = ReturnBlock::bytes(offer.entries).unwrap();
                    let memory = Arc::new(SharedMemory::create("r", bytes, false, true).unwrap());
                    let returns = ReturnBlock::create(memory.clone(), offer.entries).unwrap();
                    consumer = Some(Consumer::new(returns, DeliveryBlock::open(theirs, offer.entries).unwrap()));
                    let accept = Body::LinkAccept(peer::LinkAccept { counter_bytes: raw.memory.len() as u64 });
                    say(&socket, message.link, accept, &[memory.fd(), raw.memory.fd()]).unwrap();
                }
                Body::SegmentAdd(add) => {
                    let ack = peer::SegmentRef { segment: add.segment };
                    say(&socket, message.link, Body::SegmentAck(ack), &[]).unwrap();
                }
                Body::FlowOpen(flow) => {
                    let ids = (Epoch::from_bytes(&flow.epoch).unwrap(), SinkId::from_bytes(&sink).unwrap());
                    raw.counters.start(0, CellState::Consuming, ids.0.0, ids.1.0).unwrap();
                    let (source, link) = (flow.source, message.link);
                    let opened = peer::FlowOpened { source, sink, cell: 0, cursor: 0, join: 1, scattered: false };
                    say(&socket, link, Body::FlowOpened(opened), &[]).unwrap();
                    return Self { _raw: raw, socket, _consumer: consumer.unwrap(), link, source };
                }
                _ => {}
            }
        }
    }

    fn say(&self, body: Body) {
        say(&self.socket, self.link, body, &[]).unwrap();
    }

    /// Waits until the source's session has said something of this kind.
    fn hear(&self, wanted: impl Fn(&Body) -> bool) {
        loop {
            let (message, _) = next::<ToPeer>(self.socket.as_fd(), LIMIT).expect("the source's session answers");
            if message.body.as_ref().is_some_and(&wanted) {
                return;
            }
        }
    }
}

fn source(host: &Host, channel: &str) -> (Session, Source) {
    let session = host.session("source");
    let source = session.stream(Qos::default()).unwrap().source(channel).unwrap();
    (session, source)
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn broken(session: &Session) -> String {
    let mut found = None;
    wait("the source's session is told that a peer broke its promises", || {
        while let Some(event) = session.next_event() {
            if let Event::PeerBroken { text, .. } = event {
                found = Some(text);
            }
        }
        found.is_some()
    });
    found.unwrap_or_default()
}

#[test]
fn who_refuses_a_link_that_it_has_accepted_holds_nothing_of_it() {
    let _watchdog = Watchdog::start("refused", 2 * LIMIT);
    let host = Host::start();
    let (session, source) = source(&host, "refused");
    let stream = session.stream(Qos::default()).unwrap();
    // Who joins later is told of the memory at once.
    source.send(&[0; 5000]).unwrap();
    for round in 0..3 {
        let taker = Taker::join(&host, "refused");
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
        source.send(&[round; 5000]).unwrap();
        assert_eq!(stream.audit().held, 1);
        taker.say(Body::LinkRefuse(peer::Refuse::default()));
        let text = broken(&session);
        assert!(text.contains("refused"), "{text}");
        wait("nothing is held for it", || (source.sinks(), stream.audit().held) == (0, 0));
    }
    let other = host.session("sink");
    let sink = other.stream(Qos::default()).unwrap().sink("refused").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    source.send(&[9; 5000]).unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), [9; 5000]);
    let id = sink.id().0;
    reconcile_cells(|| session.counts().into_iter().chain(other.counts()).filter(|c| c.sink == id).collect(), 1, 1);
}

#[test]
fn who_closes_the_flow_of_another_session_ends_nothing() {
    let _watchdog = Watchdog::start("closed", 2 * LIMIT);
    let host = Host::start();
    let (session, source) = source(&host, "closed");
    let other = host.session("sink");
    let sink = other.stream(Qos::default()).unwrap().sink("closed").unwrap();
    let taker = Taker::join(&host, "closed");
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
    let close = peer::FlowRef { source: taker.source, sink: sink.id().to_bytes() };
    taker.say(Body::FlowClose(close));
    taker.hear(|b| matches!(b, Body::FlowClosed(_)));
    assert_eq!(source.sinks(), 2);
    source.send(b"still for both").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"still for both");
    let id = sink.id().0;
    reconcile_cells(|| session.counts().into_iter().chain(other.counts()).filter(|c| c.sink == id).collect(), 1, 1);
}
