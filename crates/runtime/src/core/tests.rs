//! What streams get towards other hosts: told once, told again to who opens a stream again, and forgotten with what it is of. Which
//! sessions are taken in.

use super::*;

const CONN: Conn = 1;

fn ask(core: &mut Core, body: to_runtime::Body) -> to_client::Body {
    let who = Credentials { pid: 1, uid: 1000, gid: 1000 };
    let message = ToRuntime { request: 1, body: Some(body) };
    let answer = core.request(CONN, who, message, |_| true).into_iter().find_map(|action| match action {
        Action::Send(CONN, ToClient { request: 1, body }) => body,
        _ => None,
    });
    answer.expect("an answer")
}

fn open(core: &mut Core, name: &str) -> u32 {
    let open = control::OpenStream { name: name.into(), qos: Some(Qos::default()), strict: false };
    match ask(core, to_runtime::Body::OpenStream(open)) {
        to_client::Body::StreamOpened(opened) => opened.stream,
        other => panic!("{other:?}"),
    }
}

/// The stream's number in what its session is told, if it is told anything.
fn told(core: &mut Core, session: SessionId, stream: &str, peer: &str, datapath: &str) -> Option<u32> {
    let effective = EffectiveQos { peer: peer.into(), datapath: datapath.into(), ..EffectiveQos::default() };
    let mut actions = core.effective(session, stream, effective.clone());
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
    let hello = control::Hello {
        protocol_min: PROTOCOL,
        protocol_max: PROTOCOL,
        app: "app".into(),
        session: me.to_bytes(),
        ..control::Hello::default()
    };
    assert!(matches!(ask(&mut core, to_runtime::Body::Hello(hello)), to_client::Body::Welcome(_)));
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
