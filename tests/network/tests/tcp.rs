//! Reliable streams over TCP of AF_XDP, between runtimes in network namespaces. Without root: SKIPPED.

use insane::{Event, Qos};
use insane_runtime::config::{Config, Kind, Policy, Transport};
use insane_tests_host::Watchdog;
use insane_tests_network::cables::{Cables, accelerated, ends, goes_over, towards};
use insane_tests_network::load::{are_whole, flows, numbers, take_the_rest};
use insane_tests_network::{LIMIT, eventually, law, law_holds, reliable, status};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(120);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

/// AF_XDP with TCP, and reliable streams with acceleration over it.
fn with_tcp(config: &mut Config) {
    let network = config.network.get_or_insert_default();
    network.datapath[0].tcp = true;
    let row = |when: &str, datapaths: &[Kind], transport| Policy {
        when: when.into(),
        datapaths: datapaths.to_vec(),
        transport,
    };
    network.policy = vec![
        row("acceleration=preferred,reliability=reliable", &[Kind::Xdp, Kind::Udp], Transport::Tcp),
        row("acceleration=preferred", &[Kind::Xdp, Kind::Udp], Transport::Reliable),
        row("", &[Kind::Udp], Transport::Reliable),
    ];
}

/// Waits until a stream goes by a transport.
fn goes_by(stream: &insane::Stream, transport: &str) {
    let there = eventually(|| stream.effective_qos().iter().any(|e| e.peer == "host-1" && e.transport == transport));
    assert!(there, "not by {transport}: {:?}", stream.effective_qos());
}

/// Frames that a runtime has sent by one of its ways.
fn sent(session: &insane::Session, name: &str) -> u64 {
    let status = status(session);
    let ports = status["network"]["ports"].as_array().cloned().unwrap_or_default();
    ports.iter().find(|port| port["name"] == name).and_then(|port| port["sent_frames"].as_u64()).unwrap_or(0)
}

#[test]
fn reliable_streams_go_over_tcp_where_the_policy_says_so() {
    let _watchdog = Watchdog::start("over tcp", TEST);
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, with_tcp));
    let (a, b) = (one.session("one"), two.session("two"));
    for (qos, datapath, transport) in [
        (accelerated(reliable()), "xdp", "tcp"),
        (accelerated(Qos::default()), "xdp", "datagram"),
        (reliable(), "udp", "reliable"),
    ] {
        for (from, to, host) in [(&a, &b, "host-1"), (&b, &a, "host-0")] {
            let (stream, source, sink) = ends(from, to, qos, host);
            let effective = towards(&stream, host);
            assert_eq!((effective.datapath.as_str(), effective.transport.as_str()), (datapath, transport));
            assert!(effective.reasons.is_empty() && effective.qos == Some(qos), "{effective:?}");
            if transport != "tcp" {
                continue;
            }
            let before = sent(from, "xdp+tcp");
            for len in [0_usize, 1, 64, 65, 1400, 9000, 16_384, 65_536, 3 << 20, 7] {
                let payload: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
                source.send(&payload).unwrap();
                let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{len}: {e}; {}", law(from)));
                assert!(message.to_vec() == payload, "{len} bytes differ");
            }
            // 3 MiB in frames of 16 KiB.
            assert!(eventually(|| sent(from, "xdp+tcp") >= before + 190), "{}", law(from));
            assert!(eventually(|| law_holds(from)), "{}", law(from));
        }
    }
    // An operator sees it.
    let doctor = a.report("doctor").unwrap();
    assert!(doctor.contains("xdp+tcp on veth1 at 10.96.0.100/24: open"), "{doctor}");
    // One after the other, without an answer between them.
    let (_stream, source, sink) = ends(&a, &b, accelerated(reliable()), "load");
    let (sent, got) = numbers(&source, &sink, true, |seen| (0..5).for_each(|_| flows(seen, &a)));
    are_whole(sent, &got, true, &a);
}

#[test]
fn cuts_and_new_interfaces_cost_a_reliable_stream_over_tcp_nothing() {
    let _watchdog = Watchdog::start("cut", TEST);
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, with_tcp));
    let (a, b) = (one.session("source"), two.session("sink"));
    let (stream, source, sink) = ends(&a, &b, accelerated(reliable()), "c");
    goes_by(&stream, "tcp");
    let (sent, mut got) = numbers(&source, &sink, true, |seen| {
        for round in 0..2 {
            flows(seen, &a);
            // The cable is cut.
            for end in 0..2 {
                cables.0.ip(end, "link set veth1 down").expect("it goes down");
            }
            goes_over(&stream, "host-1", "udp");
            let is = towards(&stream, "host-1");
            assert_eq!(is.transport, "reliable");
            assert!(is.reasons.iter().any(|reason| reason.starts_with("transport=tcp: host-0 and host-1 ")), "{is:?}");
            flows(seen, &a);
            for end in 0..2 {
                cables.0.ip(end, "link set veth1 up").expect("it goes up");
            }
            goes_by(&stream, "tcp");
            flows(seen, &a);
            if round == 0 {
                // The device is another one then, for TCP and for datagrams.
                cables.take_away("veth1");
                goes_over(&stream, "host-1", "udp");
                cables.make_again("veth1");
                goes_by(&stream, "tcp");
                assert!(towards(&stream, "host-1").reasons.is_empty(), "{:?}", stream.effective_qos());
            }
        }
    });
    take_the_rest(&sink, &mut got, &a);
    are_whole(sent, &got, true, &a);
}

#[test]
fn a_runtime_that_starts_anew_is_reached_over_tcp_again() {
    let _watchdog = Watchdog::start("anew", TEST);
    let Some(cables) = Cables::new() else { return };
    let [one, mut two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, with_tcp));
    let (a, b) = (one.session("source"), two.session("sink"));
    let (stream, source, sink) = ends(&a, &b, accelerated(reliable()), "c");
    goes_by(&stream, "tcp");
    let (sent, mut got) = numbers(&source, &sink, true, |seen| {
        for _ in 0..2 {
            flows(seen, &a);
            two.again();
            goes_by(&stream, "tcp");
            flows(seen, &a);
        }
    });
    take_the_rest(&sink, &mut got, &a);
    are_whole(sent, &got, true, &a);
}

#[test]
fn a_host_without_tcp_is_reached_without_it_and_refused_under_strict() {
    let _watchdog = Watchdog::start("without", TEST);
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| {
        cables.runtime(PROGRAM, end, |config| {
            with_tcp(config);
            let network = config.network.get_or_insert_default();
            if end == 1 {
                network.datapath[0].tcp = false;
                network.policy.clear();
            }
        })
    });
    let (a, b) = (one.session("source"), two.session("sink"));
    let qos = accelerated(reliable());
    let (stream, source, sink) = ends(&a, &b, qos, "c");
    let is = towards(&stream, "host-1");
    assert_eq!((is.datapath.as_str(), is.transport.as_str(), is.qos), ("xdp", "reliable", Some(qos)));
    let why = "transport=tcp: host-0 and host-1 have no TCP in common: host-1 offers no xdp with TCP";
    assert!(is.reasons.len() == 1 && is.reasons[0].starts_with(why), "{is:?}");
    let (sent, mut got) = numbers(&source, &sink, true, |seen| (0..5).for_each(|_| flows(seen, &a)));
    take_the_rest(&sink, &mut got, &a);
    are_whole(sent, &got, true, &a);
    // Who has asked for nothing less is refused, with that reason.
    let _sink = b.stream_with("strict", qos, false).unwrap().sink("c").unwrap();
    let strict = a.stream_with("strict", qos, true).unwrap();
    let _source = strict.source("c").unwrap();
    let mut told = Vec::new();
    let refused = eventually(|| {
        for event in a.events() {
            if let Event::QosRefused { effective, .. } = event {
                told.extend(effective.reasons);
            }
        }
        told.iter().any(|reason| reason.contains(&format!("refused under strict: {why}")))
    });
    assert!(refused, "{told:?}");
}
