//! Two runtimes with AF_XDP beside kernel UDP, in network namespaces: which streams take which, and what an operator is told.
//! Without root: SKIPPED.

use insane::{Acceleration, Event, Qos, Session, Sink, Source, Stream};
use insane_tests_host::Watchdog;
use insane_tests_network::cables::{Cables, accelerated, ends, towards};
use insane_tests_network::{LIMIT, eventually, law, law_holds, reliable, status};
use serde_json::Value;
use std::time::Duration;

const TEST: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

/// Sends a message until it has come; a reliable one comes the first time.
fn deliver((stream, source, sink): &(Stream, Source, Sink), payload: &[u8], session: &Session) {
    let reliable = stream.effective_qos().iter().any(|e| e.transport == "reliable");
    for _ in 0..20 {
        source.send(payload).unwrap();
        let patience = if reliable { LIMIT } else { Duration::from_secs(1) };
        match sink.consume_timeout(patience) {
            Ok(message) => {
                assert!(message.to_vec() == payload, "{} bytes differ", payload.len());
                // Nobody else's comes late.
                while sink.consume_timeout(Duration::from_millis(if reliable { 0 } else { 5 })).is_ok() {}
                return;
            }
            Err(e) => assert!(!reliable, "{} bytes: {e}; {}", payload.len(), law(session)),
        }
    }
    panic!("{} bytes never came; {}", payload.len(), law(session));
}

/// Frames that a runtime has sent over each of its datapaths.
fn sent(session: &Session) -> Vec<(String, u64)> {
    let status = status(session);
    let ports = status["network"]["ports"].as_array().cloned().unwrap_or_default();
    ports.iter().map(|p| (p["name"].as_str().unwrap_or("").into(), p["sent_frames"].as_u64().unwrap_or(0))).collect()
}

fn datapath<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let all = status["network"]["datapaths"].as_array().expect("datapaths");
    all.iter().find(|d| d["kind"] == kind).expect("it is reported")
}

#[test]
fn streams_that_ask_for_acceleration_go_over_xdp_and_others_over_udp() {
    let _watchdog = Watchdog::start("side by side", TEST);
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, |_| ()));
    let (a, b) = (one.session("ping"), two.session("pong"));
    let kinds = [
        (Qos::default(), "udp", "datagram"),
        (accelerated(Qos::default()), "xdp", "datagram"),
        (reliable(), "udp", "reliable"),
        (accelerated(reliable()), "xdp", "reliable"),
    ];
    let mut pairs = Vec::new();
    for (qos, datapath, transport) in kinds {
        let there = ends(&a, &b, qos, "ping");
        let back = ends(&b, &a, qos, "pong");
        for (stream, host) in [(&there.0, "host-1"), (&back.0, "host-0")] {
            let effective = towards(stream, host);
            assert_eq!((effective.datapath.as_str(), effective.transport.as_str()), (datapath, transport));
            assert!(effective.reasons.is_empty() && effective.qos == Some(qos), "{effective:?}");
        }
        // An operator sees it, too.
        let towards_it = |status: &Value| {
            let streams = status["streams"].as_array().expect("streams").clone();
            let stream = streams.into_iter().find(|s| s["qos"] == qos.canonical()).expect("it is reported");
            let peers = stream["effective"].as_array().expect("a ceiling").iter();
            peers
                .map(|e| ["peer", "datapath", "transport"].map(|key| e[key].as_str().unwrap_or("").to_owned()))
                .collect()
        };
        let expected =
            [["local", "shm", "shm"], ["host-1", datapath, transport]].map(|e| e.map(str::to_owned)).to_vec();
        let mut seen: Vec<[String; 3]> = Vec::new();
        eventually(|| {
            seen = towards_it(&status(&a));
            seen == expected
        });
        assert_eq!(seen, expected);
        pairs.push((there, back));
    }
    assert!(cables.has_program(0) && cables.has_program(1));
    // At the same time, and the interface's own traffic keeps flowing.
    for round in 0..50usize {
        for (n, (there, back)) in pairs.iter().enumerate() {
            let payload: Vec<u8> = (0..round * 29 + n).map(|i| (i * 31 + round) as u8).collect();
            there.1.send(&payload).unwrap();
            let message = there.2.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{round} {n}: {e}; {}", law(&a)));
            assert!(message.to_vec() == payload, "round {round} of {n}");
            back.1.send(&message.to_vec()).unwrap();
            let message = back.2.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{round} {n}: {e}; {}", law(&b)));
            assert!(message.to_vec() == payload, "round {round} of {n}, back");
        }
    }
    cables.ping("10.96.0.2").unwrap();
    let before = sent(&a);
    for (there, _) in &pairs {
        for len in [0usize, 64, 65, 1400, 9000, 65_536, 3 << 20] {
            let payload: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
            deliver(there, &payload, &a);
        }
    }
    cables.ping("10.96.0.2").unwrap();
    // Each went where it was said to go: twice 3 MiB by each datapath.
    let mut after = Vec::new();
    eventually(|| {
        after = sent(&a);
        after.iter().zip(&before).all(|(after, before)| after.1 >= before.1 + 4000)
    });
    for (after, before) in after.iter().zip(&before) {
        assert!(after.1 >= before.1 + 4000, "{before:?} {after:?}");
    }
    for session in [&a, &b] {
        assert!(eventually(|| law_holds(session)), "{}", law(session));
    }
}

#[test]
fn frames_are_no_longer_than_the_smaller_of_two_interfaces_takes() {
    let _watchdog = Watchdog::start("unlike interfaces", TEST);
    let Some(cables) = Cables::new() else { return };
    cables.0.ip(0, "link set dev veth1 mtu 9000").expect("an interface for longer frames");
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, |_| ()));
    let (a, b) = (one.session("long"), two.session("short"));
    for (from, to, host) in [(&a, &b, "host-1"), (&b, &a, "host-0")] {
        let there = ends(from, to, accelerated(reliable()), host);
        assert_eq!(towards(&there.0, host).datapath, "xdp");
        for len in [1000usize, 1470, 4000, 100_000] {
            deliver(&there, &vec![len as u8; len], from);
        }
    }
}

#[test]
fn one_interface_serves_the_kernel_and_xdp() {
    let _watchdog = Watchdog::start("one interface", TEST);
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| {
        cables.runtime(PROGRAM, end, |config| {
            let network = config.network.get_or_insert_default();
            let at = |end: usize| format!("10.96.0.{}:7400", end + 1).parse().expect("an address");
            (network.interface, network.listen, network.peers) = ("veth1".into(), at(end), vec![at(1 - end)]);
        })
    });
    let (a, b) = (one.session("source"), two.session("sink"));
    for (qos, datapath) in [(reliable(), "udp"), (accelerated(reliable()), "xdp")] {
        let there = ends(&a, &b, qos, "c");
        assert_eq!(towards(&there.0, "host-1").datapath, datapath);
        for len in [1usize, 1400, 100_000] {
            deliver(&there, &vec![len as u8; len], &a);
        }
        cables.ping("10.96.0.2").unwrap();
    }
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

#[test]
fn who_insists_on_acceleration_gets_it() {
    let _watchdog = Watchdog::start("strict", TEST);
    let Some(cables) = Cables::new() else { return };
    let mut runtimes = [0, 1].map(|end| cables.runtime(PROGRAM, end, |_| ()));
    for round in 0..2 {
        let (a, b) = (runtimes[0].session("source"), runtimes[1].session("sink"));
        // At once: the path over AF_XDP is not there yet, and it is waited for.
        let sink = b.stream_with("strict", accelerated(Qos::default()), true).unwrap().sink("c").unwrap();
        let stream = a.stream_with("strict", accelerated(Qos::default()), true).unwrap();
        let source = stream.source("c").unwrap();
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1, "round {round}: {}", law(&a));
        source.send(b"strictly").unwrap();
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"strictly");
        let effective = towards(&stream, "host-1");
        assert!(effective.datapath == "xdp" && effective.reasons.is_empty(), "{effective:?}");
        let events = [a.events(), b.events()].concat();
        assert!(!events.iter().any(|event| matches!(event, Event::QosRefused { .. })), "{events:?}");
        // The next round's with a host that was away for longer than anything is waited for.
        runtimes[1].kill();
        std::thread::sleep(Duration::from_millis(1500));
        runtimes[1].again();
    }
}

#[test]
fn one_end_without_xdp_falls_back_and_says_why() {
    let _watchdog = Watchdog::start("fall back", TEST);
    let Some(cables) = Cables::new() else { return };
    let one = cables.runtime(PROGRAM, 0, |_| ());
    // Its interface is not there: the datapath is absent, and that is all.
    let two = cables.runtime(PROGRAM, 1, |config| {
        config.network.get_or_insert_default().datapath[0].interface = "veth7".into();
    });
    let (a, b) = (one.session("one"), two.session("two"));
    let absent = status(&b);
    assert_eq!(datapath(&absent, "xdp")["state"], "absent");
    assert!(datapath(&absent, "xdp")["text"].as_str().unwrap().contains("no interface veth7"), "{absent}");
    assert_eq!(datapath(&status(&a), "xdp")["state"], "open");
    let doctor: Value = serde_json::from_str(&b.report("doctor").unwrap()).unwrap();
    let checks = doctor["checks"].as_array().unwrap().iter();
    let warned = checks.filter(|c| c["check"] == "datapath" && c["state"] == "warn").count();
    assert_eq!(warned, 1, "{doctor}");
    let qos = accelerated(Qos::default());
    for (from, to, host, reason) in
        [(&a, &b, "host-1", "host-1 offers no xdp"), (&b, &a, "host-0", "host-1 has no xdp: xdp is not available here")]
    {
        let (stream, source, sink) = ends(from, to, qos, host);
        let effective = towards(&stream, host);
        assert_eq!((effective.datapath.as_str(), effective.qos), ("udp", Some(Qos::default())));
        assert!(effective.reasons.iter().any(|text| text.contains(reason)), "{:?}", effective.reasons);
        source.send(b"by the kernel").unwrap();
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"by the kernel");
    }
    // Who insists gets nothing, and both ends hear why.
    let (strict, told) = (a.stream_with("strict", qos, true).unwrap(), b.stream_with("strict", qos, false).unwrap());
    let source = strict.source("c").unwrap();
    let _sink = told.sink("c").unwrap();
    let refused = |session: &Session, host: &str| {
        let mut reasons = Vec::new();
        eventually(|| {
            for event in session.events() {
                if let Event::QosRefused { effective, .. } = event
                    && effective.peer == host
                {
                    reasons = effective.reasons;
                }
            }
            !reasons.is_empty()
        });
        reasons
    };
    for (session, host) in [(&a, "host-1"), (&b, "host-0")] {
        let reasons = refused(session, host);
        assert!(
            reasons.iter().any(|text| text.contains("refused under strict: acceleration=preferred: host-0 and host-1")
                && text.contains("host-1 offers no xdp")),
            "{host}: {reasons:?}"
        );
    }
    assert_eq!(source.sinks(), 0);
}

#[test]
fn a_policy_of_the_operators_decides() {
    let _watchdog = Watchdog::start("policy", TEST);
    let Some(cables) = Cables::new() else { return };
    // The source's host decides: the other way it is the default.
    let one = cables.runtime(PROGRAM, 0, |config| {
        let network = config.network.get_or_insert_default();
        let row = |when: &str, datapaths: &[insane_runtime::config::Kind]| insane_runtime::config::Policy {
            when: when.into(),
            datapaths: datapaths.to_vec(),
            ..Default::default()
        };
        use insane_runtime::config::Kind::{Udp, Xdp};
        network.policy = vec![row("reliability=reliable", &[Xdp, Udp]), row("", &[Udp])];
    });
    let two = cables.runtime(PROGRAM, 1, |_| ());
    let (a, b) = (one.session("one"), two.session("two"));
    for (from, to, host, qos, datapath) in [
        (&a, &b, "host-1", reliable(), "xdp"),
        (&a, &b, "host-1", accelerated(Qos::default()), "udp"),
        (&b, &a, "host-0", reliable(), "udp"),
        (&b, &a, "host-0", accelerated(Qos::default()), "xdp"),
    ] {
        let (stream, source, sink) = ends(from, to, qos, host);
        let effective = towards(&stream, host);
        assert_eq!(effective.datapath, datapath, "{effective:?}");
        let downgraded = qos.acceleration() == Acceleration::Preferred && datapath == "udp";
        assert_eq!(effective.reasons.iter().any(|r| r.contains("network.policy names none")), downgraded);
        source.send(b"as the operator says").unwrap();
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"as the operator says");
    }
}
