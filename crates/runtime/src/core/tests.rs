//! What streams get towards other hosts: told once, told again to who opens a stream again, and forgotten with what it is of. Which
//! sessions are taken in, streams that other hosts alone have, channels that a refusal leaves, and what an end costs.

use super::*;

const CONN: Conn = 1;

const WHO: Credentials = Credentials { pid: Some(1), uid: 1000, gid: 1000 };

fn ask(core: &mut Core, body: to_runtime::Body) -> to_client::Body {
    ask_as(core, CONN, body)
}

fn ask_as(core: &mut Core, conn: Conn, body: to_runtime::Body) -> to_client::Body {
    let message = ToRuntime { request: 1, body: Some(body) };
    let answer = core.request(conn, WHO, message, |_| true).into_iter().find_map(|action| match action {
        Action::Send(to, ToClient { request: 1, body }) if to == conn => body,
        _ => None,
    });
    answer.expect("an answer")
}

fn open(core: &mut Core, name: &str) -> u32 {
    open_as(core, CONN, name, Qos::default())
}

fn open_as(core: &mut Core, conn: Conn, name: &str, qos: Qos) -> u32 {
    let open = control::OpenStream { name: name.into(), qos: Some(qos), strict: false };
    match ask_as(core, conn, to_runtime::Body::OpenStream(open)) {
        to_client::Body::StreamOpened(opened) => opened.stream,
        other => panic!("{other:?}"),
    }
}

fn hello(core: &mut Core, session: SessionId) {
    hello_as(core, CONN, session);
}

fn hello_as(core: &mut Core, conn: Conn, session: SessionId) {
    hello_with(core, conn, session, &[]);
}

/// A session of this connection, with these pairs.
fn hello_with(core: &mut Core, conn: Conn, session: SessionId, pairs: &[(SessionId, PairToken)]) {
    let claim =
        |(peer, token): &(SessionId, PairToken)| control::PairClaim { peer: peer.to_bytes(), token: token.to_bytes() };
    let hello = control::Hello {
        protocol_min: PROTOCOL,
        protocol_max: PROTOCOL,
        app: "app".into(),
        session: session.to_bytes(),
        pairs: pairs.iter().map(claim).collect(),
        ..control::Hello::default()
    };
    assert!(matches!(ask_as(core, conn, to_runtime::Body::Hello(hello)), to_client::Body::Welcome(_)));
}

/// The stream's number in what its session is told, if it is told anything.
fn told(core: &mut Core, session: SessionId, stream: &str, peer: &str, datapath: &str) -> Option<u32> {
    let effective = EffectiveQos { peer: peer.into(), datapath: datapath.into(), ..EffectiveQos::default() };
    let mut actions = core.effective(session, stream, effective.clone(), None);
    assert!(actions.len() <= 1, "{actions:?}");
    actions.pop().map(|action| match action {
        Action::Send(CONN, ToClient { request: 0, body: Some(to_client::Body::QosChanged(changed)) }) => {
            assert_eq!(changed.effective, Some(effective));
            changed.stream
        }
        other => panic!("{other:?}"),
    })
}

#[test]
fn what_a_stream_gets_is_told_when_it_changes_and_forgotten_with_it() {
    let mut core = Core::new(Config::default(), "here".into());
    let me = SessionId::random();
    hello(&mut core, me);
    let domain = crate::config::DEFAULT_DOMAIN;
    let towards = |core: &Core, stream: &str| {
        core.towards(domain, stream).iter().map(|e| format!("{}:{}", e.peer, e.datapath)).collect::<Vec<_>>()
    };
    let (one, two) = (open(&mut core, "one"), open(&mut core, "two"));
    assert_eq!(told(&mut core, me, "one", "b", "udp"), Some(one));
    assert_eq!(told(&mut core, me, "one", "b", "udp"), None, "it knows");
    assert_eq!(told(&mut core, me, "one", "b", "xdp"), Some(one));
    assert_eq!(told(&mut core, me, "one", "a", "udp"), Some(one));
    assert_eq!(told(&mut core, me, "two", "a", "dpdk"), Some(two));
    assert_eq!(towards(&core, "one"), ["a:udp", "b:xdp"]);
    // That it has moved to where it was said to go is told, each time.
    for took in [7, 7, 0] {
        let xdp = EffectiveQos { peer: "b".into(), datapath: "xdp".into(), ..EffectiveQos::default() };
        let actions = core.effective(me, "one", xdp, Some(took));
        let [Action::Send(CONN, ToClient { body: Some(to_client::Body::QosChanged(changed)), .. })] = &actions[..]
        else {
            panic!("{actions:?}")
        };
        assert_eq!((changed.stream, changed.moved_us), (one, Some(took)));
    }
    // Of a host that is no more nothing is left, and one of its name is told of again.
    core.forget_host("a");
    assert_eq!(towards(&core, "one"), ["b:xdp"]);
    assert!(towards(&core, "two").is_empty());
    assert_eq!(told(&mut core, me, "two", "a", "dpdk"), Some(two));
    // What comes for a stream that was closed meanwhile is nobody's.
    ask(&mut core, to_runtime::Body::CloseStream(control::CloseStream { stream: one }));
    assert_eq!(told(&mut core, me, "one", "b", "udp"), None);
    assert_eq!(core.sessions[&CONN].effective.len(), 1, "of `two` alone");
    // Who opens it again has heard nothing yet.
    let again = open(&mut core, "one");
    assert!(again != one && towards(&core, "one").is_empty());
    assert_eq!(told(&mut core, me, "one", "b", "xdp"), Some(again));
    assert_eq!(told(&mut core, SessionId::random(), "one", "b", "udp"), None, "of no session");
}

#[test]
fn a_library_that_does_not_name_itself_in_plain_text_is_refused() {
    let long = "a".repeat(256);
    for library in ["rust/1\u{1b}]0;gone\u{7}", "\u{9b}2J", "two\nlines", "\u{7f}", &long] {
        let mut core = Core::new(Config::default(), "here".into());
        let hello = |library: &str| {
            to_runtime::Body::Hello(control::Hello {
                protocol_min: PROTOCOL,
                protocol_max: PROTOCOL,
                app: "app".into(),
                library: library.into(),
                session: SessionId::random().to_bytes(),
                ..control::Hello::default()
            })
        };
        match ask(&mut core, hello(library)) {
            to_client::Body::Refused(refused) => assert_eq!(refused.code, Code::InvalidName.number(), "{library:?}"),
            other => panic!("{library:?}: {other:?}"),
        }
        assert!(core.sessions.is_empty());
        let plain = ["", "raw", "C++ (größer)/1.2"][library.len() % 3];
        assert!(matches!(ask(&mut core, hello(plain)), to_client::Body::Welcome(_)), "{plain:?}");
    }
}

/// The runtime's own session.
const NETWORK: Conn = 2;

fn sink(stream: u32, sink: SinkId, channel: Option<u64>) -> to_runtime::Body {
    let channel = channel.map(|id| control::Channel { name: None, id: Some(id) });
    to_runtime::Body::OpenSink(control::OpenSink { stream, channel, sink: sink.to_bytes(), observer: false })
}

#[test]
fn a_stream_that_other_hosts_have_is_closed_with_the_last_that_they_have_in_it() {
    let mut core = Core::new(Config::default(), "here".into());
    core.attach(NETWORK, crate::config::DEFAULT_DOMAIN, WHO);
    hello(&mut core, SessionId::random());
    let mut reliable = Qos::default();
    reliable.set_reliability(insane_wire::qos::Reliability::Reliable);
    let ids = [SinkId(1), SinkId(2)];
    let opened = |answer: &to_client::Body| {
        matches!(answer, to_client::Body::SinkOpened(_) | to_client::Body::SourceOpened(_) | to_client::Body::Done(_))
    };
    for round in 0..3 {
        let stream = open_as(&mut core, NETWORK, "theirs", reliable);
        for (id, channel) in ids.iter().zip([5, 6]) {
            assert!(opened(&ask_as(&mut core, NETWORK, sink(stream, *id, Some(channel)))));
        }
        let (channel, epoch) = (Some(control::Channel { name: None, id: Some(5) }), Epoch(1).to_bytes());
        let source = control::OpenSource { stream, channel, epoch: epoch.clone() };
        assert!(opened(&ask_as(&mut core, NETWORK, to_runtime::Body::OpenSource(source))));
        for id in ids {
            let close = control::CloseSink { sink: id.to_bytes() };
            assert!(opened(&ask_as(&mut core, NETWORK, to_runtime::Body::CloseSink(close))));
            assert_eq!((core.streams.len(), core.sessions[&NETWORK].streams()), (1, 1), "its source is there");
        }
        let close = control::CloseSource { epoch };
        assert!(opened(&ask_as(&mut core, NETWORK, to_runtime::Body::CloseSource(close))));
        assert_eq!((core.streams.len(), core.sessions[&NETWORK].streams()), (0, 0), "round {round}");
    }
    // What is refused leaves no stream behind, and one of another QoS finds none.
    let stream = open_as(&mut core, NETWORK, "theirs", reliable);
    assert!(matches!(ask_as(&mut core, NETWORK, sink(stream, ids[0], None)), to_client::Body::Refused(_)));
    let own = open(&mut core, "theirs");
    // An application's lasts until it closes it, whatever others have in it.
    let stream = open_as(&mut core, NETWORK, "theirs", Qos::default());
    assert!(opened(&ask_as(&mut core, NETWORK, sink(stream, ids[0], Some(5)))));
    core.gone(NETWORK);
    let key = (crate::config::DEFAULT_DOMAIN.to_owned(), "theirs".to_owned());
    assert_eq!((core.streams[&key].sessions, core.streams[&key].channels.len()), (1, 0));
    assert!(opened(&ask(&mut core, sink(own, ids[1], Some(5)))));
    let close = control::CloseSink { sink: ids[1].to_bytes() };
    assert!(opened(&ask(&mut core, to_runtime::Body::CloseSink(close))));
    assert_eq!(core.streams.len(), 1);
    ask(&mut core, to_runtime::Body::CloseStream(control::CloseStream { stream: own }));
    assert!(core.streams.is_empty());
}

/// A source, or a sink, of an identity.
fn end(stream: u32, producer: bool, id: u128, channel: control::Channel) -> to_runtime::Body {
    let channel = Some(channel);
    if producer {
        return to_runtime::Body::OpenSource(control::OpenSource { stream, channel, epoch: Epoch(id).to_bytes() });
    }
    let sink = SinkId(id).to_bytes();
    to_runtime::Body::OpenSink(control::OpenSink { stream, channel, sink, observer: false })
}

#[test]
fn a_source_or_sink_that_is_refused_leaves_no_channel_behind() {
    const OTHER: Conn = 3;
    for producer in [true, false] {
        let mut config = Config::default();
        config.quota.endpoints_per_session = 2;
        let mut core = Core::new(config, "here".into());
        hello(&mut core, SessionId::random());
        hello_as(&mut core, OTHER, SessionId::random());
        let (mine, theirs) = (open(&mut core, "one"), open_as(&mut core, OTHER, "one", Qos::default()));
        let by_id = |id: u64| control::Channel { name: None, id: Some(id) };
        let opened = |answer: &to_client::Body| {
            matches!(answer, to_client::Body::SourceOpened(_) | to_client::Body::SinkOpened(_))
        };
        let refused = |answer: to_client::Body| match answer {
            to_client::Body::Refused(refused) => Code::from_number(refused.code),
            other => panic!("{other:?}"),
        };
        let domain = crate::config::DEFAULT_DOMAIN;
        let named = channel_id(domain, "one", "named").0;
        assert!(opened(&ask(&mut core, end(mine, producer, 7, by_id(5)))));
        // The identity is another channel's: an id that is nobody's, and that of a name, stay free.
        for id in [6, 7, named] {
            assert_eq!(refused(ask(&mut core, end(mine, producer, 7, by_id(id)))), Some(Code::IdentityTaken));
        }
        // Nor do the other refusals leave one: somebody else's identity, and one source or sink too many.
        assert_eq!(refused(ask_as(&mut core, OTHER, end(theirs, producer, 7, by_id(8)))), Some(Code::IdentityTaken));
        assert!(opened(&ask(&mut core, end(mine, producer, 9, by_id(5)))));
        assert_eq!(refused(ask(&mut core, end(mine, producer, 10, by_id(8)))), Some(Code::QuotaExceeded));
        let channels = |core: &Core| core.streams[&(domain.to_owned(), "one".to_owned())].channels.len();
        assert_eq!(channels(&core), 1);
        let channel = control::Channel { name: Some("named".into()), id: None };
        assert!(opened(&ask_as(&mut core, OTHER, end(theirs, producer, 11, channel))), "its id is free");
        assert_eq!(channels(&core), 2);
        // What is there is opened again in its channel, which takes no place of the quota.
        assert!(opened(&ask(&mut core, end(mine, producer, 7, by_id(5)))));
        core.gone(CONN);
        core.gone(OTHER);
        assert!(core.is_empty());
    }
}

/// Processor time of this thread for something, the least of three times.
fn time_of(mut act: impl FnMut()) -> std::time::Duration {
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let took = (0..3).map(|_| {
        let before = now();
        act();
        std::time::Duration::try_from(now() - before).unwrap()
    });
    took.min().unwrap()
}

/// Opens as many sinks of a session, closes each second, and ends it. Each has a channel of its own, or a stream.
fn come_and_go(conn: Conn, sinks: u64, streams: bool) {
    let mut config = Config::default();
    config.quota.endpoints_per_session = u32::MAX;
    let mut core = Core::new(config, "here".into());
    if conn == NETWORK {
        core.attach(NETWORK, crate::config::DEFAULT_DOMAIN, WHO);
    } else {
        hello_as(&mut core, conn, SessionId::random());
    }
    let mut stream = open_as(&mut core, conn, "one", Qos::default());
    for i in 0..sinks {
        if streams {
            stream = open_as(&mut core, conn, &format!("stream {i}"), Qos::default());
        }
        let answer = ask_as(&mut core, conn, sink(stream, SinkId(u128::from(i) + 1), Some(i)));
        assert!(matches!(answer, to_client::Body::SinkOpened(_)));
    }
    for i in (0..sinks).step_by(2) {
        let close = control::CloseSink { sink: SinkId(u128::from(i) + 1).to_bytes() };
        ask_as(&mut core, conn, to_runtime::Body::CloseSink(close));
    }
    core.gone(conn);
    assert!(core.is_empty());
}

#[test]
fn what_sinks_cost_at_their_start_and_end_does_not_grow_with_how_many_others_there_are() {
    for (conn, streams) in [(CONN, false), (NETWORK, false), (NETWORK, true)] {
        let few = time_of(|| come_and_go(conn, 500, streams));
        let many = time_of(|| come_and_go(conn, 8_000, streams));
        // 16 times as much and something for larger maps, far from 256 times.
        assert!(
            many < few * 64,
            "{few:?} for five hundred, {many:?} for 16 times as many: connection {conn}, {streams}"
        );
    }
}

/// Opens a source or a sink of one channel; the token of the pair that is made for it, if one is.
fn open_end(core: &mut Core, conn: Conn, source: bool) -> Option<PairToken> {
    let stream = open_as(core, conn, "s", Qos::default());
    let channel = control::Channel { id: None, name: Some("c".into()) };
    let body = end(stream, source, SinkId::random().0, channel);
    let made = |action: &Action| match action {
        Action::Pair(_, ToClient { body: Some(to_client::Body::Pair(pair)), .. }, ..) => {
            PairToken::from_bytes(&pair.token)
        }
        _ => None,
    };
    core.request(conn, WHO, ToRuntime { request: 1, body: Some(body) }, |_| true).iter().find_map(made)
}

#[test]
fn who_comes_anew_alone_has_its_pairs_still_and_one_that_was_lost_is_made_again() {
    let mut core = Core::new(Config::default(), "here".into());
    let ids = [SessionId::random(), SessionId::random()];
    hello_with(&mut core, 1, ids[0], &[]);
    hello_with(&mut core, 2, ids[1], &[]);
    assert_eq!(open_end(&mut core, 1, true), None);
    let token = open_end(&mut core, 2, false).expect("a pair");
    // The runtime lives, and so does the other session, which has said hello before there was a pair.
    core.gone(1);
    hello_with(&mut core, 1, ids[0], &[(ids[1], token)]);
    assert_eq!(open_end(&mut core, 1, true), None);
    assert_eq!((core.tally.pairs_made, core.tally.pairs_resumed), (1, 1));
    // Who has lost its end of it says so, and comes anew without.
    assert!(matches!(core.no_pair(1, 2), Some(Action::Close(1))) && core.pairs.is_empty());
    core.gone(1);
    hello_with(&mut core, 1, ids[0], &[]);
    assert!(open_end(&mut core, 1, true).is_some_and(|new| new != token));
    // The network's own session stays.
    let network = core.attach(3, crate::config::DEFAULT_DOMAIN, WHO);
    assert!(matches!(core.no_pair(3, 1), Some(Action::Close(1))));
    assert!(matches!(core.pair_lost(3, ids[1]), Some(Action::Close(2))));
    assert!(core.pair_lost(3, SessionId::random()).is_none() && core.pair_lost(1, network).is_some());
}

#[test]
fn what_is_kept_of_pairs_with_sessions_that_are_gone_is_bounded() {
    let mut config = Config::default();
    config.quota.sessions = 4;
    let mut core = Core::new(config, "here".into());
    hello_with(&mut core, 1, SessionId::random(), &[]);
    open_end(&mut core, 1, true);
    for _ in 0..50 {
        hello_with(&mut core, 2, SessionId::random(), &[]);
        assert!(open_end(&mut core, 2, false).is_some());
        core.gone(2);
        assert!(core.sessions[&1].claims.len() <= 4);
    }
}
