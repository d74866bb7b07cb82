//! Datapaths that come later, or go and come back while the runtime works: interfaces that are made again, at the start or under load,
//! and a plug-in's object that is not there yet. Without root: SKIPPED.

use insane::{Event, Qos, Reliability, Session, SinkOptions, SourceOptions};
use insane_runtime::config::{Config, Thread};
use insane_tests_host::Watchdog;
use insane_tests_network::cables::{Cables, accelerated, dpdk_object, ends, goes_over, on_dpdk, towards, unsparing};
use insane_tests_network::load::{are_whole, flows, numbers, take_the_rest};
use insane_tests_network::{LIMIT, Process, eventually, law, law_holds, reliable, status};
use std::path::Path;
use std::time::Duration;

const TEST: Duration = Duration::from_secs(240);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

/// What a runtime says of the datapath beside kernel UDP.
fn datapath(session: &insane::Session) -> serde_json::Value {
    status(session)["network"]["datapaths"][1].clone()
}

/// What goes again and again is meant to: streams are held off no longer than by the first loss.
fn goes_often(config: &mut Config) {
    let network = config.network.get_or_insert_default();
    network.return_most_ms = network.return_ms;
}

/// A stream that runs goes elsewhere when the cable is taken away and comes back when it is made again, so many times.
fn comes_back(qos: Qos, rounds: u64, kind: &str, library: Option<&Path>, change: impl Fn(&mut Config)) {
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| {
        cables.runtime(PROGRAM, end, |config| {
            goes_often(config);
            change(config);
            library.into_iter().for_each(|library| on_dpdk(config, library));
        })
    });
    let (a, b) = (one.session("source"), two.session("sink"));
    let (stream, source, sink) = ends(&a, &b, qos, "c");
    goes_over(&stream, "host-1", kind);
    let reliable = qos.reliability() == Reliability::Reliable;
    let mut held = Vec::new();
    let (sent, mut got) = numbers(&source, &sink, reliable, |seen| {
        for round in 0..rounds {
            flows(seen, &a);
            cables.take_away("veth1");
            goes_over(&stream, "host-1", "udp");
            let reasons = || towards(&stream, "host-1").reasons;
            let said = format!("host-0 has no {kind}: ");
            assert!(eventually(|| reasons().iter().any(|reason| reason.contains(&said))), "{:?}", reasons());
            flows(seen, &a);
            cables.make_again("veth1");
            goes_over(&stream, "host-1", kind);
            let report = datapath(&a);
            assert_eq!((report["state"].as_str(), report["losses"].as_u64()), (Some("open"), Some(round + 1)));
            assert!(eventually(|| datapath(&b)["losses"] == report["losses"]), "{}", datapath(&b));
            // The move is through: nothing of it waits for the other path any more.
            let flows_out = || status(&a)["network"]["hosts"][0]["flows_out"].as_u64();
            assert!(eventually(|| flows_out() == Some(1)), "{}", law(&a));
            // What one round takes is known after two of them. A best-effort sink that is late has more or less of the domain's memory.
            if reliable && (round == 1 || round + 1 == rounds) {
                held.push([&one, &two].map(Process::holds));
            }
        }
        flows(seen, &a);
    });
    take_the_rest(&sink, &mut got, &a);
    are_whole(sent, &got, reliable, &a);
    let seen = || insane_tests_host::account(&b.counts()).delivered;
    assert!(eventually(|| seen() == got.len() as u64), "{} counted, {} seen", seen(), got.len());
    let pending = || status(&a)["network"]["hosts"][0]["pending"].as_u64();
    assert!(eventually(|| pending() == Some(0)), "{}", law(&a));
    if let [first, .., last] = &held[..] {
        for (before, after) in first.iter().zip(last) {
            // A descriptor or two may be on its way between the sessions and the runtime. Receive memory has 8 MiB.
            assert!(after.descriptors <= before.descriptors + 2, "{held:?}");
            assert!(after.resident_kib < before.resident_kib + (24 << 10), "{held:?}");
        }
    }
    if kind == "xdp" {
        assert!((0..2).all(|end| cables.has_program(end)));
        drop((one, two));
        assert!(!(0..2).any(|end| cables.has_program(end)), "a program is left");
    }
}

#[test]
fn a_reliable_stream_comes_back_to_an_interface_that_is_made_again_twenty_times() {
    let _watchdog = Watchdog::start("comes back", TEST);
    comes_back(accelerated(reliable()), 20, "xdp", None, |_| ());
}

#[test]
fn a_stream_comes_back_to_a_polling_thread_whose_interface_is_made_again() {
    let _watchdog = Watchdog::start("comes back to a thread", TEST);
    comes_back(accelerated(reliable()), 4, "xdp", None, |config| {
        let datapaths = vec!["udp".into(), "veth1".into()];
        config.network.get_or_insert_default().thread.push(Thread { datapaths, ..Thread::default() });
    });
}

/// All that comes, comes by the queue that the second thread has, on both hosts.
#[test]
fn xdp_on_two_threads_carries_messages_and_comes_back() {
    let _watchdog = Watchdog::start("xdp on two threads", TEST);
    let Some(cables) = Cables::new() else { return };
    let make = || {
        cables.take_away("veth1");
        cables.make_with_queues("veth1", 2);
    };
    make();
    let [one, two] = [0, 1].map(|end| {
        cables.runtime(PROGRAM, end, |config| {
            goes_often(config);
            let network = config.network.get_or_insert_default();
            // The first of them sends, and is the first thread's.
            network.datapath[0].queues = [[0, 1], [1, 0]][end].to_vec();
            let thread = Thread { datapaths: vec!["veth1".into()], ..Thread::default() };
            network.thread = vec![thread.clone(), thread];
        })
    });
    let (a, b) = (one.session("source"), two.session("sink"));
    let (stream, source, sink) = ends(&a, &b, accelerated(reliable()), "c");
    goes_over(&stream, "host-1", "xdp");
    let (sent, got) = numbers(&source, &sink, true, |seen| {
        for round in 1..=3 {
            flows(seen, &a);
            for session in [&a, &b] {
                let report = datapath(session);
                let received = report["threads"]["received"].as_array().unwrap();
                assert!(received.len() == 2 && received[1].as_u64() > Some(10), "{report}");
                assert!(report["text"].as_str().unwrap().ends_with("; received by 2 threads"), "{report}");
            }
            make();
            assert!(eventually(|| datapath(&a)["losses"] == round && datapath(&b)["losses"] == round));
            goes_over(&stream, "host-1", "xdp");
        }
        flows(seen, &a);
    });
    are_whole(sent, &got, true, &a);
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

#[test]
fn a_best_effort_stream_comes_back_in_order_to_an_interface_that_is_made_again() {
    let _watchdog = Watchdog::start("best effort comes back", TEST);
    comes_back(accelerated(Qos::default()), 6, "xdp", None, |_| ());
}

#[test]
fn a_stream_comes_back_to_dpdk_on_an_interface_that_is_made_again() {
    let _watchdog = Watchdog::start("dpdk comes back", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    comes_back(unsparing(reliable()), 4, "dpdk", Some(&library), |_| ());
}

#[test]
fn a_runtime_that_started_before_its_interface_takes_it_when_it_is_there() {
    let _watchdog = Watchdog::start("before its interface", TEST);
    let Some(cables) = Cables::new() else { return };
    cables.take_away("veth1");
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, |_| ()));
    let (a, b) = (one.session("source"), two.session("sink"));
    let (stream, source, sink) = ends(&a, &b, accelerated(reliable()), "c");
    goes_over(&stream, "host-1", "udp");
    let there = || datapath(&a)["text"].as_str().unwrap_or_default().to_owned();
    assert!(eventually(|| there().contains("there is no interface veth1") && there().contains("times, and it will")));
    let doctor = a.report("doctor").unwrap();
    assert!(doctor.contains("xdp on veth1 at 10.96.0.100/24: absent") && doctor.contains("tried again by itself"));
    let (sent, got) = numbers(&source, &sink, true, |seen| {
        flows(seen, &a);
        cables.make_again("veth1");
        goes_over(&stream, "host-1", "xdp");
        assert!(towards(&stream, "host-1").reasons.is_empty());
        flows(seen, &a);
    });
    are_whole(sent, &got, true, &a);
    assert_eq!((datapath(&a)["state"].as_str(), datapath(&a)["losses"].as_u64()), (Some("open"), Some(0)));
    // Who connects now is told of it, too.
    drop((stream, source, sink));
    let mut two = two;
    two.again();
    let (stream, source, sink) = ends(&a, &b, accelerated(reliable()), "later");
    goes_over(&stream, "host-1", "xdp");
    source.send(b"over xdp").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"over xdp");
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

#[test]
fn kernel_udp_goes_on_when_its_interface_is_made_again() {
    home_goes_on(|_| (), "kernel UDP");
}

#[test]
fn kernel_udp_on_several_threads_goes_on_when_its_interface_is_made_again() {
    let several = |config: &mut Config| {
        let thread = Thread { datapaths: vec!["udp".into()], ..Thread::default() };
        config.network.get_or_insert_default().thread = vec![thread.clone(), thread];
    };
    home_goes_on(several, "kernel UDP; received by 2 threads");
}

/// Messages go on; and it is what it was afterwards.
fn home_goes_on(change: impl Fn(&mut Config), is: &str) {
    let _watchdog = Watchdog::start("home", TEST);
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, &change));
    let (a, b) = (one.session("source"), two.session("sink"));
    let (stream, source, sink) = ends(&a, &b, reliable(), "c");
    goes_over(&stream, "host-1", "udp");
    let (sent, got) = numbers(&source, &sink, true, |seen| {
        for _ in 0..3 {
            flows(seen, &a);
            cables.take_away("veth0");
            std::thread::sleep(Duration::from_millis(200));
            cables.make_again("veth0");
        }
        flows(seen, &a);
    });
    are_whole(sent, &got, true, &a);
    let home = &status(&a)["network"]["datapaths"][0];
    assert_eq!((home["losses"].as_u64(), home["text"].as_str()), (Some(3), Some(is)));
}

/// What a session keeps of the memory of an interface that is gone stays what it is, until it lets go of it.
#[test]
fn messages_in_frames_outlive_their_interface_and_their_memory_goes_with_them() {
    let _watchdog = Watchdog::start("in frames", TEST);
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, goes_often));
    let (a, b) = (one.session("source"), two.session("sink"));
    let qos = accelerated(reliable());
    let options = SinkOptions { scattered: true, ..SinkOptions::default() };
    let sink = b.stream(qos).unwrap().sink_with("c", options).unwrap();
    let stream = a.stream(qos).unwrap();
    let source = stream.source("c").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1, "{}", law(&a));
    let payload = |number: usize| (0..64 << 10).map(|at| (at * 31 + number * 7 + at / 251) as u8).collect::<Vec<u8>>();
    let pass = |number| {
        source.send(&payload(number)).unwrap();
        let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{number}: {e}; {}", law(&a)));
        assert!(message.to_vec() == payload(number), "message {number} differs");
        message
    };
    goes_over(&stream, "host-1", "xdp");
    assert!(eventually(|| pass(0).pieces().len() > 1), "{}", status(&b));
    let mut resident = Vec::new();
    for round in 0..6 {
        let kept = pass(1);
        assert!(kept.pieces().len() > 1);
        cables.take_away("veth1");
        goes_over(&stream, "host-1", "udp");
        cables.make_again("veth1");
        goes_over(&stream, "host-1", "xdp");
        // As long as one has something of the old memory nothing of the new one is lent: so there are no more than two.
        for _ in 0..20 {
            assert_eq!(pass(2).pieces().len(), 1);
        }
        assert!(kept.to_vec() == payload(1), "what was kept has changed");
        drop(kept);
        assert!(eventually(|| pass(3).pieces().len() > 1), "{round}: {}", status(&b));
        resident.push(two.holds());
    }
    let (first, last) = (&resident[1], &resident[5]);
    assert!(last.descriptors <= first.descriptors + 2, "{resident:?}");
    assert!(last.resident_kib < first.resident_kib + (24 << 10), "{resident:?}");
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

/// Whether a session was told that a stream is refused under strict towards a host, and nothing of that host since.
fn is_refused(session: &Session, host: &str) -> bool {
    let of = |event: Event| match event {
        Event::QosRefused { effective, .. } => (effective.peer == host).then_some(true),
        Event::QosChanged { effective, .. } => (effective.peer == host).then_some(false),
        _ => None,
    };
    session.events().into_iter().filter_map(of).next_back().unwrap_or(false)
}

#[test]
fn what_strict_refused_while_its_datapath_was_away_comes_when_that_is_back() {
    let _watchdog = Watchdog::start("strict", TEST);
    for (number, qos) in [Qos::default(), reliable()].map(accelerated).into_iter().enumerate() {
        let Some(cables) = Cables::new() else { return };
        cables.take_away("veth1");
        let mut runtimes = [0, 1].map(|end| cables.runtime(PROGRAM, end, |_| ()));
        let (a, b) = (runtimes[0].session("source"), runtimes[1].session("sink"));
        let [to, from] = [&a, &b].map(|session| session.stream_with("strict", qos, true).unwrap());
        let sink = from.sink("c").unwrap();
        let options = SourceOptions { deadline: LIMIT, ..SourceOptions::default() };
        let source = to.source_with("c", options).unwrap();
        // At first; then after a restart of the source's runtime, with everything open.
        for round in 0..2u8 {
            let case = format!("{number}, {round}");
            if round > 0 {
                cables.take_away("veth1");
                runtimes[0].kill();
                runtimes[0].again();
            }
            let (mut here, mut there) = (false, false);
            let told = || {
                here |= is_refused(&a, "host-1");
                there |= is_refused(&b, "host-0");
                here && there
            };
            assert!(eventually(told), "{case}: {}", law(&a));
            assert!(eventually(|| source.sinks() == 0), "{case}: {}", law(&a));
            assert!(source.buffer(8).is_ok() && sink.try_consume().unwrap().is_none(), "{case}: both are open");
            cables.make_again("veth1");
            assert_eq!(source.wait_for_sinks(1, LIMIT), 1, "{case}: {}", law(&a));
            for (stream, host) in [(&to, "host-1"), (&from, "host-0")] {
                goes_over(stream, host, "xdp");
                assert!(towards(stream, host).reasons.is_empty(), "{case}: {:?}", towards(stream, host));
            }
            source.send(&[round]).unwrap();
            assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), [round], "{case}");
            assert!(!is_refused(&a, "host-1") && !is_refused(&b, "host-0"), "{case}");
            // What a runtime has counted goes with it.
            assert!(round > 0 || eventually(|| law_holds(&a)), "{case}: {}", law(&a));
        }
    }
}
