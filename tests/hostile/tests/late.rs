//! Answers that come late: a source's session has asked a sink for a flow, and before the sink's session answers the sink is gone and
//! back, or the source is closed.

use insane::{Qos, Session};
use insane_shm::counters::CellState;
use insane_shm::link::ReturnBlock;
use insane_shm::memory::{Backing, SharedMemory};
use insane_tests_host::hostile::{Raw, next, say};
use insane_tests_host::{Host, Watchdog};
use insane_wire::control::{self, to_runtime};
use insane_wire::peer::{self, ToPeer, to_peer::Body};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
const CHANNEL: &str = "late";

/// A raw sink that was asked for a flow by a source's session and has not answered.
struct Asked {
    raw: Raw,
    sink: Vec<u8>,
    socket: OwnedFd,
    flow: peer::FlowOpen,
}

/// What the source's session says next that is wanted.
fn heard(socket: &OwnedFd, wanted: impl Fn(&Body) -> bool) -> Body {
    loop {
        let (message, _) = next::<ToPeer>(socket.as_fd(), LIMIT).expect("the source's session says something");
        if let Some(body) = message.body.filter(&wanted) {
            return body;
        }
    }
}

fn asked(socket: &OwnedFd) -> peer::FlowOpen {
    match heard(socket, |body| matches!(body, Body::FlowOpen(_))) {
        Body::FlowOpen(flow) => flow,
        other => panic!("{other:?}"),
    }
}

impl Asked {
    /// The source is of a session that has none besides.
    fn new(host: &Host) -> (Self, Session, insane::Source) {
        let mut raw = Raw::open(&host.socket()).unwrap();
        let sink = raw.endpoint(CHANNEL, false).unwrap();
        let session = host.session("source");
        let source = session.stream(Qos::default()).unwrap().source(CHANNEL).unwrap();
        let socket = raw.pairs(Duration::from_millis(300)).0.into_iter().next().expect("a pair");
        heard(&socket, |body| matches!(body, Body::LinkOffer(_)));
        let bytes = ReturnBlock::bytes(raw.entries).unwrap();
        let returns = Arc::new(SharedMemory::create("returns", bytes, false, true).unwrap());
        ReturnBlock::create(returns.clone(), raw.entries).unwrap();
        let accept = peer::LinkAccept { counter_bytes: raw.memory.len() as u64 };
        say(&socket, 1, Body::LinkAccept(accept), &[returns.fd(), raw.memory.fd()]).unwrap();
        let flow = asked(&socket);
        (Self { raw, sink, socket, flow }, session, source)
    }

    /// It opens, or closes, for the runtime.
    fn tell(&mut self, opens: bool) {
        let sink = self.sink.clone();
        let channel = Some(control::Channel { name: Some(CHANNEL.into()), id: None });
        let body = if opens {
            let stream = self.raw.number();
            to_runtime::Body::OpenSink(control::OpenSink { stream, channel, sink, observer: false })
        } else {
            to_runtime::Body::CloseSink(control::CloseSink { sink })
        };
        let answer = self.raw.ask(body, &[]).unwrap();
        assert!(!matches!(answer, control::to_client::Body::Refused(_)), "{answer:?}");
    }

    fn answer(&self, flow: &peer::FlowOpen) {
        let [epoch, sink] =
            [&flow.epoch, &flow.sink].map(|id| u128::from_le_bytes(id[..].try_into().expect("16 bytes")));
        self.raw.counters.start(0, CellState::Consuming, epoch, sink).expect("a cell");
        let opened = peer::FlowOpened { source: flow.source, sink: flow.sink.clone(), ..Default::default() };
        say(&self.socket, 1, Body::FlowOpened(opened), &[]).unwrap();
    }
}

#[test]
fn a_sink_that_is_back_before_it_is_heard_to_be_gone_is_asked_again() {
    let _watchdog = Watchdog::start("back", LIMIT * 2);
    let host = Host::start();
    let (mut sink, session, source) = Asked::new(&host);
    sink.tell(false);
    sink.tell(true);
    // Its session has heard of all that when an answer to what it asks after it is there.
    session.report("status").unwrap();
    let gone = peer::FlowRef { source: sink.flow.source, sink: sink.flow.sink.clone() };
    say(&sink.socket, 1, Body::FlowClose(gone), &[]).unwrap();
    heard(&sink.socket, |body| matches!(body, Body::FlowClosed(_)));
    let again = asked(&sink.socket);
    assert_eq!((again.source, &again.epoch, &again.sink), (sink.flow.source, &sink.flow.epoch, &sink.sink));
    assert_eq!(source.sinks(), 0);
    sink.answer(&again);
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
}

#[test]
fn a_sink_whose_source_closed_before_it_answered_is_told() {
    let _watchdog = Watchdog::start("closed", LIMIT * 2);
    let host = Host::start();
    let (sink, _session, source) = Asked::new(&host);
    drop(source);
    sink.answer(&sink.flow);
    let closed = heard(&sink.socket, |body| matches!(body, Body::FlowClosed(_)));
    let Body::FlowClosed(closed) = closed else { panic!("{closed:?}") };
    assert_eq!((closed.source, closed.sink, closed.position), (sink.flow.source, sink.sink, 0));
}
