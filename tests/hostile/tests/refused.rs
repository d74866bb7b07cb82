//! What the runtime does not open again after its restart: the application hears of it, and calls say why. And what it says in an order
//! that two sockets do not keep.

use insane::{Code, EffectiveQos, Event, Qos, Session, WaitSet};
use insane_shm::counters::{Counters, bytes as counter_bytes};
use insane_shm::link::ReturnBlock;
use insane_shm::memory::{Backing, SharedMemory};
use insane_shm::socket::{Received, pair, receive, send};
use insane_tests_host::hostile::{next, say};
use insane_tests_host::{Host, Watchdog, reconcile};
use insane_wire::control::{self, ToClient, ToRuntime, to_client, to_runtime};
use insane_wire::id::{PairToken, SessionId, SinkId};
use insane_wire::peer::{self, ToPeer, to_peer};
use insane_wire::{MAX_CONTROL_BYTES, PROTOCOL, decode, encode};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

/// The next event that `is` is true of.
fn event(session: &Session, is: impl Fn(&Event) -> bool) -> Event {
    let end = Instant::now() + LIMIT;
    loop {
        match session.next_event() {
            Some(event) if is(&event) => return event,
            Some(_) => {}
            None => {
                assert!(Instant::now() < end, "the event does not come");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

fn is_refusal(event: &Event) -> bool {
    matches!(event, Event::StreamRefused { .. })
}

#[test]
fn a_sink_that_a_quota_keeps_out_says_why_and_is_back_when_there_is_room() {
    let _watchdog = Watchdog::start("refused-quota", Duration::from_secs(60));
    let mut host = Host::start();
    let (a, b) = (host.session("source"), host.session("sinks"));
    let (from, to) = (a.stream(Qos::default()).unwrap(), b.stream(Qos::default()).unwrap());
    let (first, second) = (to.sink("first").unwrap(), to.sink("second").unwrap());
    let mut set = WaitSet::new().unwrap();
    let key = set.add(&second).unwrap();
    host.restart_with(|config| config.quota.endpoints_per_session = 1);
    let Event::StreamRefused { stream, end, error, retried } = event(&b, is_refusal) else { unreachable!() };
    let said = (stream.as_str(), end.as_str(), error.code(), retried);
    assert_eq!(said, (to.name(), "the sink of channel `second`", Code::QuotaExceeded, true));
    // Whoever would wait for ever is told.
    assert_eq!(second.consume().unwrap_err().code(), Code::QuotaExceeded);
    assert_eq!(second.try_consume().unwrap_err().code(), Code::QuotaExceeded);
    let mut keys = Vec::new();
    assert_eq!((set.wait(&mut keys, Some(LIMIT)).unwrap(), &keys[..]), (1, &[key][..]));
    // It may come to pass, and then it is said too.
    first.close();
    let back = event(&b, |event| matches!(event, Event::QosChanged { .. }));
    assert!(
        matches!(&back, Event::QosChanged { stream, effective, .. } if stream == to.name() && effective.peer == "local")
    );
    let source = from.source("second").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    source.send(b"back").unwrap();
    assert_eq!(second.consume_timeout(LIMIT).unwrap().to_vec(), b"back");
    assert!(matches!(second.try_consume(), Ok(None)));
    reconcile([&a, &b], 1, 1);
}

#[test]
fn a_session_that_lost_its_domain_says_why_instead_of_waiting() {
    let _watchdog = Watchdog::start("refused-domain", Duration::from_secs(60));
    let mut host = Host::with(|config| {
        config.domains.insert("plant".into(), insane_runtime::config::Domain::default());
    });
    let session = host.builder("loop").domain("plant").open().unwrap();
    let stream = session.stream(Qos::default()).unwrap();
    let (source, sink) = (stream.source("c").unwrap(), stream.sink("c").unwrap());
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| sink.consume().map(|_| ()));
        host.restart_with(|config| config.domains.clear());
        assert_eq!(waits.join().unwrap().unwrap_err().code(), Code::NotPermitted);
    });
    let Event::StreamRefused { error, retried, .. } = event(&session, is_refusal) else { unreachable!() };
    assert_eq!((error.code(), retried), (Code::NotPermitted, false));
    let not_permitted = |code| assert_eq!(code, Code::NotPermitted);
    not_permitted(source.send(b"x").unwrap_err().code());
    not_permitted(stream.source("d").unwrap_err().code());
    not_permitted(session.stream(Qos::default()).unwrap_err().code());
    not_permitted(session.stream_named("other", Qos::default()).unwrap_err().code());
    assert!(session.next_event().is_none(), "it is said once");
    reconcile([&session], 0, 0);
}

/// A runtime that says what a test wants it to.
struct Scripted {
    dir: tempfile::TempDir,
    listener: Option<OwnedFd>,
    connection: Option<OwnedFd>,
    limits: control::Limits,
}

impl Scripted {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let limits = control::Limits {
            memory_bytes: 8 << 20,
            streams: 8,
            endpoints: 8,
            link_entries: 64,
            message_bytes: 1 << 20,
            ..control::Limits::default()
        };
        let mut this = Self { dir, listener: None, connection: None, limits };
        this.listen();
        this
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("insaned.sock")
    }

    fn listen(&mut self) {
        (self.listener, self.connection) = (None, None);
        let _ = std::fs::remove_file(self.socket());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&fd, &SocketAddrUnix::new(self.socket()).unwrap()).unwrap();
        rustix::net::listen(&fd, 8).unwrap();
        self.listener = Some(fd);
    }

    /// The next request. Hellos are answered.
    fn next(&mut self) -> (u64, to_runtime::Body) {
        let end = Instant::now() + LIMIT;
        while Instant::now() < end {
            if let Some(listener) = &self.listener
                && let Ok(fd) = rustix::net::accept(listener)
            {
                self.connection = Some(fd);
            }
            let received = self.connection.as_ref().map(|fd| receive(fd.as_fd(), MAX_CONTROL_BYTES));
            let Some(Ok(Received::Message(bytes, _))) = received else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            let ToRuntime { request, body } = decode(&bytes).unwrap();
            match body.unwrap() {
                to_runtime::Body::Hello(_) => {
                    let limits = Some(self.limits);
                    let welcome = control::Welcome { protocol: PROTOCOL, limits, ..control::Welcome::default() };
                    self.answer(request, to_client::Body::Welcome(welcome));
                }
                body => return (request, body),
            }
        }
        panic!("no request comes");
    }

    fn answer(&self, request: u64, body: to_client::Body) {
        let message = encode(&ToClient { request, body: Some(body) });
        assert!(send(self.connection.as_ref().unwrap().as_fd(), &message, &[]).unwrap());
    }

    fn refuse(&self, request: u64, code: Code) {
        let refused = control::Refused { code: code.number(), text: "as the script says".into() };
        self.answer(request, to_client::Body::Refused(refused));
    }

    /// The next request is for a stream: its number is given.
    fn stream(&mut self) -> (u64, String) {
        match self.next() {
            (request, to_runtime::Body::OpenStream(open)) => (request, open.name),
            other => panic!("{other:?}"),
        }
    }

    fn opened(&self, request: u64, stream: u32, name: &str, datapath: &str) {
        let ceiling = EffectiveQos { peer: "local".into(), datapath: datapath.into(), ..EffectiveQos::default() };
        let opened = control::StreamOpened { stream, name: name.into(), ceiling: Some(ceiling) };
        self.answer(request, to_client::Body::StreamOpened(opened));
    }

    /// The next request is for a source: on which stream.
    fn source(&mut self) -> (u64, u32) {
        match self.next() {
            (request, to_runtime::Body::OpenSource(open)) => (request, open.stream),
            other => panic!("{other:?}"),
        }
    }

    fn source_opened(&self, request: u64) {
        self.answer(request, to_client::Body::SourceOpened(control::SourceOpened { channel: 1, flows: 0 }));
    }
}

/// A session with two streams, open at a runtime as 1 and 2, of which the second has a source.
fn two_streams(runtime: &mut Scripted) -> (Session, [insane::Stream; 2], insane::Source) {
    let socket = runtime.socket();
    let opener = std::thread::spawn(move || {
        let session = Session::builder("scripted").socket(socket).open().unwrap();
        let streams = ["one", "two"].map(|name| session.stream_named(name, Qos::default()).unwrap());
        let source = streams[1].source(1).unwrap();
        (session, streams, source)
    });
    for number in [1, 2] {
        let (request, name) = runtime.stream();
        runtime.opened(request, number, &name, "shm");
    }
    let (request, stream) = runtime.source();
    assert_eq!(stream, 2);
    runtime.source_opened(request);
    opener.join().unwrap()
}

#[test]
fn nothing_of_a_stream_that_is_refused_goes_to_another_that_has_its_number() {
    let _watchdog = Watchdog::start("refused-number", Duration::from_secs(60));
    let mut runtime = Scripted::start();
    let (session, [one, two], source) = two_streams(&mut runtime);
    assert_eq!(two.effective_qos()[0].datapath, "shm");
    runtime.limits.memory_bytes = 4 << 20;
    runtime.listen();
    // The first is refused, and the second gets its number.
    let (request, name) = runtime.stream();
    assert_eq!(name, "one");
    runtime.refuse(request, Code::QosConflict);
    let (request, name) = runtime.stream();
    assert_eq!(name, "two");
    runtime.opened(request, 1, &name, "less");
    let (request, stream) = runtime.source();
    assert_eq!(stream, 1);
    runtime.source_opened(request);
    let Event::StreamRefused { stream, end, error, retried } = event(&session, is_refusal) else { unreachable!() };
    assert_eq!((stream.as_str(), end.as_str(), error.code(), retried), ("one", "", Code::QosConflict, true));
    assert_eq!(one.sink(7).unwrap_err().code(), Code::QosConflict);
    let (limit, text) = (4 << 20, source.buffer(1 << 20).map(|_| source.buffer(1 << 20)).err());
    assert!(text.is_none(), "the session may still use some: {text:?}");
    // What the runtime allows now is what counts.
    assert_eq!(two.effective_qos()[0].datapath, "less");
    let held: Vec<_> = std::iter::from_fn(|| source.buffer(1 << 19).ok()).take(64).collect();
    assert!(held.len() as u64 * (1 << 19) <= limit / 2, "{} buffers of half a MiB", held.len());
    drop(held);
    // A refusal that can pass: it is asked for again, and said to be back.
    let (request, name) = runtime.stream();
    assert_eq!(name, "one");
    runtime.refuse(request, Code::QosConflict);
    let (request, _) = runtime.stream();
    runtime.opened(request, 2, "one", "shm");
    let mut seen = Vec::new();
    event(&session, |event| seen_is(event) || matches!(event, Event::QosChanged { stream, .. } if stream == "one"));
    seen.extend(session.events());
    assert!(seen.is_empty(), "{seen:?}");
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| one.source(3).map(|_| ()));
        let (request, stream) = runtime.source();
        assert_eq!(stream, 2, "it has the number that the stream has now");
        runtime.source_opened(request);
        opener.join().unwrap().unwrap();
    });
    reconcile([&session], 0, 0);
}

/// A second word on what was said already.
fn seen_is(event: &Event) -> bool {
    assert!(!is_refusal(event), "{event:?}");
    false
}

#[test]
fn a_refusal_that_cannot_pass_closes_what_it_is_about() {
    let _watchdog = Watchdog::start("refused-for-good", Duration::from_secs(60));
    let mut runtime = Scripted::start();
    let (session, [one, two], source) = two_streams(&mut runtime);
    runtime.listen();
    let (request, _) = runtime.stream();
    runtime.opened(request, 1, "one", "shm");
    let (request, _) = runtime.stream();
    runtime.refuse(request, Code::QosUnavailable);
    let Event::StreamRefused { stream, error, retried, .. } = event(&session, is_refusal) else { unreachable!() };
    assert_eq!((stream.as_str(), error.code(), retried), ("two", Code::QosUnavailable, false));
    let said = error.to_string();
    assert!(said.contains("as the script says"), "{said}");
    let end = Instant::now() + LIMIT;
    while source.send(b"x").is_ok() {
        assert!(Instant::now() < end, "it is not closed");
    }
    assert_eq!(source.send(b"x").unwrap_err().code(), Code::QosUnavailable);
    assert_eq!(source.flush().unwrap_err().code(), Code::QosUnavailable);
    assert_eq!(two.sink(1).unwrap_err().code(), Code::QosUnavailable);
    drop(source);
    // Nothing more is asked for it: the next request is one that the application makes.
    std::thread::sleep(Duration::from_millis(300));
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| one.source(3).map(|_| ()));
        loop {
            match runtime.next() {
                (request, to_runtime::Body::OpenSource(open)) => {
                    assert_eq!(open.stream, 1);
                    break runtime.source_opened(request);
                }
                (_, to_runtime::Body::CloseSource(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        opener.join().unwrap().unwrap();
    });
    reconcile([&session], 0, 0);
}

/// The next thing that a session says on a pair, of those that `is` is true of.
fn said(socket: &OwnedFd, is: impl Fn(&to_peer::Body) -> bool) -> (u32, to_peer::Body) {
    loop {
        let (ToPeer { link, body }, _) = next(socket.as_fd(), LIMIT).expect("the session says something");
        if let Some(body) = body.filter(&is) {
            return (link, body);
        }
    }
}

#[test]
fn a_sink_that_is_said_to_be_back_before_it_is_said_to_be_gone_is_asked_for_again() {
    let _watchdog = Watchdog::start("added-again", Duration::from_secs(60));
    let mut runtime = Scripted::start();
    let (session, _streams, source) = two_streams(&mut runtime);
    let (ours, theirs) = pair().unwrap();
    let (peer, sink) = (SessionId::random().to_bytes(), SinkId::random().to_bytes());
    let told = control::Pair {
        peer: peer.clone(),
        token: PairToken::random().to_bytes(),
        app: "network".into(),
        network: true,
        ..control::Pair::default()
    };
    let message = encode(&ToClient { request: 0, body: Some(to_client::Body::Pair(told)) });
    assert!(send(runtime.connection.as_ref().unwrap().as_fd(), &message, &[theirs.as_fd()]).unwrap());
    let flow = control::Flow {
        stream: 2,
        channel: 1,
        epoch: source.epoch().to_bytes(),
        sink: sink.clone(),
        peer,
        producer: true,
        observer: false,
    };
    runtime.answer(0, to_client::Body::FlowAdded(flow.clone()));
    let (link, offer) = said(&ours, |body| matches!(body, to_peer::Body::LinkOffer(_)));
    let to_peer::Body::LinkOffer(offer) = offer else { unreachable!() };
    let returns = ReturnBlock::bytes(offer.entries).unwrap();
    let returns = Arc::new(SharedMemory::create("r", returns, false, true).unwrap());
    ReturnBlock::create(returns.clone(), offer.entries).unwrap();
    let counts = Arc::new(SharedMemory::create("c", counter_bytes(4), false, false).unwrap());
    Counters::create(counts.clone(), 4).unwrap();
    let accept = peer::LinkAccept { counter_bytes: counts.len() as u64 };
    say(&ours, link, to_peer::Body::LinkAccept(accept), &[returns.fd(), counts.fd()]).unwrap();
    let opened = |join| {
        let (_, open) = said(&ours, |body| matches!(body, to_peer::Body::FlowOpen(_)));
        let to_peer::Body::FlowOpen(open) = open else { unreachable!() };
        let opened = peer::FlowOpened { source: open.source, sink: open.sink, join, ..peer::FlowOpened::default() };
        say(&ours, link, to_peer::Body::FlowOpened(opened), &[]).unwrap();
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
        open.source
    };
    let number = opened(1);
    // It is back, and its session has not read yet that it was gone.
    runtime.answer(0, to_client::Body::FlowAdded(flow));
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| session.report("status"));
        let (request, _) = runtime.next();
        runtime.answer(request, to_client::Body::Report(control::Report { json: "{}".into(), more: false }));
        asks.join().unwrap().unwrap();
    });
    assert_eq!(source.sinks(), 1);
    let close = peer::FlowRef { source: number, sink };
    say(&ours, link, to_peer::Body::FlowClose(close), &[]).unwrap();
    said(&ours, |body| matches!(body, to_peer::Body::FlowClosed(_)));
    opened(2);
    reconcile([&session], 0, 0);
}
