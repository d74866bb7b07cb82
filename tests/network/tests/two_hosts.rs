//! Two runtimes on loopback addresses carry channels between applications that know nothing of it.

use insane::{Acceleration, Code, Event, Qos, Timing};
use insane_tests_host::Watchdog;
use insane_tests_network::{LIMIT, eventually, hosts, reliable, status};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(30);

#[test]
fn ping_pong_between_two_hosts() {
    let _watchdog = Watchdog::start("ping-pong", TEST);
    let hosts = hosts(2, |_, _| ());
    for qos in [Qos::default(), reliable()] {
        let (ping, pong) = (hosts[0].session("ping"), hosts[1].session("pong"));
        let (a, b) = (ping.stream(qos).unwrap(), pong.stream(qos).unwrap());
        let (there, back) = (b.sink("there").unwrap(), a.sink("back").unwrap());
        let (out, reply) = (a.source("there").unwrap(), b.source("back").unwrap());
        assert_eq!((out.wait_for_sinks(1, LIMIT), reply.wait_for_sinks(1, LIMIT)), (1, 1));
        for len in [0usize, 1, 64, 65, 1000, 1472, 5000, 70_000, 1 << 20] {
            let payload: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
            let token = out.send(&payload).unwrap();
            let message = there.consume_timeout(LIMIT).unwrap();
            assert_eq!((message.source(), message.sequence()), (out.epoch(), token.0));
            let bytes = message.to_vec();
            assert!(bytes == payload, "{len} bytes differ");
            drop(message);
            reply.send(&bytes).unwrap();
            assert!(back.consume_timeout(LIMIT).unwrap().to_vec() == payload, "{len} bytes differ on the way back");
            let outcome = || out.outcome(token).unwrap();
            assert!(eventually(|| outcome().is_final()), "{:?}", outcome());
            assert_eq!((outcome().intended, outcome().delivered), (1, 1), "{len} bytes: {:?}", outcome());
        }
        let effective = a.effective_qos();
        let there = effective.iter().find(|e| e.peer == "host-1").expect("the other host's");
        assert_eq!(there.datapath, "udp");
        assert_eq!(there.transport, if qos == reliable() { "reliable" } else { "datagram" });
        assert!(eventually(|| a.audit().held == 0 && b.audit().held == 0), "{:?} {:?}", a.audit(), b.audit());
    }
}

#[test]
fn a_name_has_another_qos_once_the_other_host_has_closed_its_sink() {
    let _watchdog = Watchdog::start("name", TEST);
    let hosts = hosts(2, |_, _| ());
    let (a, b) = (hosts[0].session("here"), hosts[1].session("there"));
    let _sink = b.stream_named("x", reliable()).unwrap().sink("c").unwrap();
    let known = || status(&a)["streams"].as_array().is_some_and(|all| all.iter().any(|stream| stream["name"] == "x"));
    assert!(eventually(known), "{}", status(&a));
    assert!(a.stream_named("x", Qos::default()).is_err_and(|e| e.code() == Code::QosConflict));
    b.close();
    assert!(eventually(|| !known()), "{}", status(&a));
    let b = hosts[1].session("there again");
    let [here, there] = [&a, &b].map(|session| session.stream_named("x", Qos::default()).unwrap());
    let (source, sink) = (here.source("c").unwrap(), there.sink("c").unwrap());
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    source.send(b"hello").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"hello");
}

#[test]
fn one_channel_has_local_and_remote_sinks_and_hosts_pass_nothing_on() {
    let _watchdog = Watchdog::start("fan-out", TEST);
    let hosts = hosts(3, |_, _| ());
    let sessions: Vec<_> = hosts.iter().map(|h| h.session("party")).collect();
    let sinks: Vec<_> = sessions.iter().map(|s| s.stream(Qos::default()).unwrap().sink("all").unwrap()).collect();
    let twice = sessions[1].stream(Qos::default()).unwrap().sink("all").unwrap();
    let source = sessions[0].stream(Qos::default()).unwrap().source("all").unwrap();
    assert_eq!(source.wait_for_sinks(4, LIMIT), 4);
    for i in 0..100u8 {
        source.send(&[i; 100]).unwrap();
        for sink in sinks.iter().chain([&twice]) {
            assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), [i; 100]);
        }
    }
    // A second source on another host reaches the same sinks, and nothing comes a second time.
    let other = sessions[2].stream(Qos::default()).unwrap().source("all").unwrap();
    assert_eq!(other.wait_for_sinks(4, LIMIT), 4);
    other.send(b"hello").unwrap();
    for sink in sinks.iter().chain([&twice]) {
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"hello");
    }
    std::thread::sleep(Duration::from_millis(100));
    assert!(sinks.iter().chain([&twice]).all(|s| s.try_consume().unwrap().is_none()));
    // A sink that closes is gone everywhere.
    twice.close();
    assert!(eventually(|| source.sinks() == 3 && other.sinks() == 3));
}

#[test]
fn names_are_compared_and_domains_stay_apart() {
    let _watchdog = Watchdog::start("names", TEST);
    let hosts = hosts(2, |_, c| {
        for name in ["blue", "red"] {
            c.domains.insert(name.into(), insane_runtime::config::Domain::default());
        }
    });
    let open = |host: usize, domain: &str| hosts[host].builder("party").domain(domain).open().unwrap();
    let (a, b, other) = (open(0, "blue"), open(1, "blue"), open(1, "red"));
    let sink = b.stream(Qos::default()).unwrap().sink("telemetry").unwrap();
    let foreign = other.stream(Qos::default()).unwrap().sink("telemetry").unwrap();
    let stream = a.stream(Qos::default()).unwrap();
    let source = stream.source("telemetry").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    source.send(b"blue").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"blue");
    assert_eq!(source.sinks(), 1);
    assert!(foreign.try_consume().unwrap().is_none());
    // The plain id of a name that another host uses is taken here too.
    let error = stream.source(sink.channel().0).unwrap_err();
    assert_eq!(error.code(), insane::Code::ChannelIdTaken);
    // Another host's stream of that name with another QoS is another one.
    let named = b.stream_named("s", Qos::default()).unwrap();
    let _elsewhere = named.sink("c").unwrap();
    let streams = || insane_tests_network::status(&a)["streams"].to_string();
    assert!(eventually(|| streams().contains("\"s\"")), "{}", streams());
    assert_eq!(a.stream_named("s", reliable()).unwrap_err().code(), insane::Code::QosConflict);
}

#[test]
fn without_a_network_section_no_socket_is_opened() {
    let _watchdog = Watchdog::start("no socket", TEST);
    let program = env!("CARGO_BIN_EXE_runtime");
    let sockets = |network: bool| {
        let mut config = insane_tests_network::config("host", insane_tests_network::free_addresses(1)[0], &[]);
        config.network = config.network.filter(|_| network);
        let process = insane_tests_network::Process::start(program, None, &config);
        let _session = process.session("probe");
        process.network_sockets()
    };
    // The test sees them where there are some.
    assert_eq!((sockets(false), sockets(true) > 0), (0, true));
}

#[test]
fn what_comes_from_strangers_is_counted_and_goes_nowhere() {
    let _watchdog = Watchdog::start("strangers", TEST);
    let hosts = hosts(2, |_, _| ());
    let (a, b) = (hosts[0].session("source"), hosts[1].session("sink"));
    let listen = insane_tests_network::status(&b)["network"]["listen"].as_str().map(str::to_owned);
    let mut report = listen;
    assert!(eventually(|| {
        report = insane_tests_network::status(&b)["network"]["listen"].as_str().map(str::to_owned);
        report.is_some()
    }));
    let stranger = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for i in 0..1000usize {
        let bytes: Vec<u8> = (0..i % 1400).map(|at| (at * i) as u8).collect();
        stranger.send_to(&bytes, report.as_deref().unwrap()).unwrap();
    }
    let sink = b.stream(Qos::default()).unwrap().sink("c").unwrap();
    let source = a.stream(Qos::default()).unwrap().source("c").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    source.send(b"still here").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"still here");
    let strangers = || insane_tests_network::status(&b)["network"]["unknown_senders"].as_u64();
    assert!(eventually(|| strangers().is_some_and(|n| n > 900)), "{:?}", strangers());
}

#[test]
fn with_strict_priority_everything_arrives_and_each_source_is_in_order() {
    let _watchdog = Watchdog::start("priority", TEST);
    let hosts = hosts(2, |_, c| {
        c.network.get_or_insert_default().scheduler = insane_runtime::config::Scheduler::Strict;
    });
    let (a, b) = (hosts[0].session("source"), hosts[1].session("sink"));
    let sink = b.stream(reliable()).unwrap().sink("c").unwrap();
    let stream = a.stream(reliable()).unwrap();
    let with = |priority| {
        let options = insane::SourceOptions { priority, ..insane::SourceOptions::default() };
        stream.source_with("c", options).unwrap()
    };
    let (low, high) = (with(0), with(15));
    assert_eq!((low.wait_for_sinks(1, LIMIT), high.wait_for_sinks(1, LIMIT)), (1, 1));
    // Both are in the link at once: a burst of low ones, and high ones after them.
    let emit = |source: &insane::Source, count: u32| {
        for i in 0..count {
            source.send(&[&[source.epoch().0 as u8], &i.to_le_bytes()[..], &[0; 1000]].concat()).unwrap();
        }
    };
    emit(&low, 400);
    emit(&high, 100);
    let mut order = Vec::new();
    for _ in 0..500 {
        let message = sink.consume_timeout(LIMIT).unwrap();
        assert_eq!(message.priority(), if message.source() == high.epoch() { 15 } else { 0 });
        order.push((message.source(), u32::from_le_bytes(message.to_vec()[1..5].try_into().unwrap())));
    }
    for (source, count) in [(&low, 400), (&high, 100)] {
        let own: Vec<u32> = order.iter().filter(|(e, _)| *e == source.epoch()).map(|(_, i)| *i).collect();
        assert_eq!(own, (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn with_weighted_classes_everything_arrives_and_each_stream_is_in_order() {
    let _watchdog = Watchdog::start("classes", TEST);
    let hosts = hosts(2, |_, c| {
        c.network.get_or_insert_default().scheduler = insane_runtime::config::Scheduler::Weighted;
    });
    let (a, b) = (hosts[0].session("source"), hosts[1].session("sink"));
    let mut urgent = reliable();
    urgent.set_timing(Timing::Sensitive);
    let pairs = [("urgent", urgent), ("bulk", reliable())].map(|(name, qos)| {
        let sink = b.stream_with(name, qos, false).unwrap().sink("c").unwrap();
        let source = a.stream_with(name, qos, false).unwrap().source("c").unwrap();
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
        (source, sink)
    });
    std::thread::scope(|scope| {
        for (source, sink) in &pairs {
            scope.spawn(|| {
                for n in 0..3000_u32 {
                    source.send(&[&n.to_le_bytes()[..], &[0; 1000]].concat()).unwrap();
                }
            });
            scope.spawn(|| {
                for n in 0..3000_u32 {
                    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec()[..4], n.to_le_bytes());
                }
            });
        }
    });
}

#[test]
fn a_reliable_stream_is_in_order_when_there_is_no_memory_for_some_of_it() {
    let _watchdog = Watchdog::start("memory", TEST);
    let hosts = hosts(2, |_, c| c.network.get_or_insert_default().memory_mib = 1);
    let (a, b) = (hosts[0].session("source"), hosts[1].session("sink"));
    let sink = b.stream(reliable()).unwrap().sink("c").unwrap();
    let source = a.stream(reliable()).unwrap().source("c").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let payload = |n: u32| {
        // Small ones of several sizes, and some in parts, for which memory is taken before they are whole.
        let len = [64, 1000, 100_000, 300, 5000, 60_000][n as usize % 6];
        let mut bytes = vec![n as u8; len];
        bytes[..4].copy_from_slice(&n.to_le_bytes());
        bytes
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..1200 {
                source.send(&payload(n)).unwrap();
            }
        });
        // What a sink keeps others cannot have.
        let mut kept = std::collections::VecDeque::new();
        for n in 0..1200 {
            let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{n}: {e}"));
            assert!(message.to_vec() == payload(n), "{n}: {:?}", &message.to_vec()[..4]);
            kept.push_back(message);
            if kept.len() > 5 {
                kept.pop_front();
            }
        }
    });
}

#[test]
fn the_largest_messages_cross() {
    let _watchdog = Watchdog::start("largest", TEST);
    let hosts = hosts(2, |_, _| ());
    let (a, b) = (hosts[0].session("source"), hosts[1].session("sink"));
    let sink = b.stream(reliable()).unwrap().sink("large").unwrap();
    let source = a.stream(reliable()).unwrap().source("large").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    for len in [128usize << 20, 7, (20 << 20) + 5] {
        let payload: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251 + len) as u8).collect();
        source.send(&payload).unwrap();
        let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{len} bytes: {e}"));
        assert!(message.to_vec() == payload, "{len} bytes differ");
    }
}

#[test]
fn under_strict_a_host_that_serves_less_is_refused_with_an_error_at_both_ends() {
    let _watchdog = Watchdog::start("strict", TEST);
    let hosts = hosts(2, |_, _| ());
    let mut fast = Qos::default();
    fast.set_acceleration(Acceleration::Preferred);
    for strict_source in [true, false] {
        let (here, there) = (hosts[0].session("source"), hosts[1].session("sink"));
        let out = here.stream_with("fast", fast, strict_source).unwrap();
        let (near, far) = (out.sink("data").unwrap(), there.stream_with("fast", fast, !strict_source).unwrap());
        let (source, sink) = (out.source("data").unwrap(), far.sink("data").unwrap());
        for (session, peer) in [(&here, "host-1"), (&there, "host-0")] {
            let mut seen = Vec::new();
            let told = eventually(|| {
                seen.extend(session.next_event());
                seen.iter().any(|e| matches!(e, Event::QosRefused { effective, .. } if effective.peer == peer))
            });
            assert!(told, "strict at the source: {strict_source}, {peer}: {seen:?}");
            let refused = seen.last().unwrap();
            assert_eq!((refused.number(), refused.name()), (7, "QosRefused"));
            let text = refused.to_string();
            assert!(text.contains(peer) && text.contains("acceleration=preferred"), "{text}");
        }
        let effective = out.effective_qos();
        let towards = effective.iter().find(|e| e.peer == "host-1").unwrap();
        assert_eq!((towards.datapath.as_str(), towards.reasons.len()), ("none", 1), "{towards:?}");
        // On this host nothing is less than asked for.
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
        source.send(b"near").unwrap();
        assert_eq!(near.consume_timeout(LIMIT).unwrap().to_vec(), b"near");
        assert_eq!(source.sinks(), 1);
        assert!(sink.consume_timeout(Duration::from_millis(200)).is_err_and(|e| e.code() == Code::Timeout));
    }
    // What both hosts serve in full meets under `strict`; what no host serves is refused at once.
    let (here, there) = (hosts[0].session("source"), hosts[1].session("sink"));
    let sink = there.stream_with("plain", reliable(), true).unwrap().sink("data").unwrap();
    let source = here.stream_with("plain", reliable(), true).unwrap().source("data").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    source.send(b"far").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"far");
    let mut gated = Qos::default();
    gated.set_timing(Timing::Sensitive);
    assert!(here.stream_with("gated", gated, true).is_err_and(|e| e.code() == Code::QosUnavailable));
}
