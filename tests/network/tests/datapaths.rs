//! Two runtimes with AF_XDP beside kernel UDP, in network namespaces: which streams take which, what an operator is told, and how
//! streams move when a datapath fails. Without root: SKIPPED.

use insane::{Acceleration, EffectiveQos, Event, Qos, Reliability, Session, Sink, Source, Stream};
use insane_datapath::fault::Plan;
use insane_runtime::config::{Config, Datapath, Mode};
use insane_tests_host::Watchdog;
use insane_tests_namespaces::{Namespaces, run};
use insane_tests_network::{LIMIT, Process, config, eventually, law, law_holds, network_count, reliable, status};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

/// Two namespaces with two cables between them: UDP is bound to the first, AF_XDP to the second.
struct Cables(Namespaces);

impl Cables {
    /// `None` where namespaces or AF_XDP sockets cannot be made; then it has said so.
    fn new() -> Option<Self> {
        let namespaces = Namespaces::new(["pa", "pb"], |names| {
            let [a, b] = names;
            let mut steps: Vec<String> = ["veth0", "veth1"]
                .map(|device| format!("link add {device} netns {a} type veth peer name {device} netns {b}"))
                .into();
            for (end, name) in (1..).zip(names) {
                for (net, device) in ["veth0", "veth1"].iter().enumerate() {
                    steps.push(format!("-n {name} addr add 10.9{}.0.{end}/24 dev {device}", 5 + net));
                    steps.push(format!("-n {name} link set {device} up"));
                }
            }
            steps
        })?;
        let socket = rustix::net::socket(rustix::net::AddressFamily::XDP, rustix::net::SocketType::RAW, None);
        if let Err(error) = socket {
            println!("SKIPPED: AF_XDP sockets cannot be made here: {error}");
            return None;
        }
        Some(Self(namespaces))
    }

    /// The configuration of an end, with AF_XDP.
    fn config(end: usize) -> Config {
        let addresses = [1, 2].map(|host| format!("10.95.0.{host}:7400").parse().expect("an address"));
        let mut config = config(&format!("host-{end}"), addresses[end], &addresses);
        let network = config.network.get_or_insert_default();
        network.interface = "veth0".into();
        network.datapath.push(Datapath {
            interface: "veth1".into(),
            address: format!("10.96.0.10{end}/24"),
            mode: Mode::Auto,
            ..Datapath::default()
        });
        config
    }

    /// A runtime at an end.
    fn runtime(&self, end: usize, change: impl FnOnce(&mut Config)) -> Process {
        let mut config = Self::config(end);
        change(&mut config);
        Process::start(PROGRAM, Some(self.0.name(end)), &config)
    }

    fn ping(&self, to: &str) -> Result<String, String> {
        run("ip", &format!("netns exec {} ping -n -q -c 3 -i 0.02 -W 5 {to}", self.0.name(0)))
    }

    /// Whether an XDP program is attached to an end's interface.
    fn has_program(&self, end: usize) -> bool {
        self.0.ip(end, "link show dev veth1").expect("it is there").contains("xdp")
    }
}

fn accelerated(mut qos: Qos) -> Qos {
    qos.set_acceleration(Acceleration::Preferred);
    qos
}

/// What a stream gets towards a host, once that is known.
fn towards(stream: &Stream, host: &str) -> EffectiveQos {
    let mut found = None;
    let known = eventually(|| {
        found = stream.effective_qos().into_iter().find(|e| e.peer == host);
        found.is_some()
    });
    assert!(known, "{:?}", stream.effective_qos());
    found.expect("just found")
}

/// Waits until a stream goes over a datapath.
fn goes_over(stream: &Stream, host: &str, datapath: &str) {
    let there = eventually(|| stream.effective_qos().iter().any(|e| e.peer == host && e.datapath == datapath));
    assert!(there, "not over {datapath}: {:?}", stream.effective_qos());
}

/// A source at one end and a sink at the other, of a stream of this QoS.
fn ends(from: &Session, to: &Session, qos: Qos, channel: &str) -> (Stream, Source, Sink) {
    let sink = to.stream(qos).unwrap().sink(channel).unwrap();
    let stream = from.stream(qos).unwrap();
    let source = stream.source(channel).unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1, "{}", law(from));
    (stream, source, sink)
}

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
    let [one, two] = [0, 1].map(|end| cables.runtime(end, |_| ()));
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
    for (n, (there, _)) in pairs.iter().enumerate() {
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
fn who_insists_on_acceleration_gets_it() {
    let _watchdog = Watchdog::start("strict", TEST);
    let Some(cables) = Cables::new() else { return };
    let mut runtimes = [0, 1].map(|end| cables.runtime(end, |_| ()));
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
    let one = cables.runtime(0, |_| ());
    // Its interface is not there: the datapath is absent, and that is all.
    let two = cables.runtime(1, |config| {
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
    let one = cables.runtime(0, |config| {
        let network = config.network.get_or_insert_default();
        let row = |when: &str, datapaths: &[insane_runtime::config::Kind]| insane_runtime::config::Policy {
            when: when.into(),
            datapaths: datapaths.to_vec(),
        };
        use insane_runtime::config::Kind::{Udp, Xdp};
        network.policy = vec![row("reliability=reliable", &[Xdp, Udp]), row("", &[Udp])];
    });
    let two = cables.runtime(1, |_| ());
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

#[test]
fn a_killed_runtime_leaves_no_program_and_its_streams_come_back_over_xdp() {
    let _watchdog = Watchdog::start("killed", TEST);
    let Some(cables) = Cables::new() else { return };
    let [one, mut two] = [0, 1].map(|end| cables.runtime(end, |_| ()));
    let (a, b) = (one.session("source"), two.session("sink"));
    let (stream, source, sink) = ends(&a, &b, accelerated(reliable()), "c");
    goes_over(&stream, "host-1", "xdp");
    let send = |from: u32, to: u32| {
        for i in from..to {
            source.send(&i.to_le_bytes().repeat(30)).unwrap();
        }
    };
    let expect = |from: u32, to: u32| {
        for i in from..to {
            let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("message {i}: {e}; {}", law(&a)));
            assert_eq!(message.to_vec(), i.to_le_bytes().repeat(30));
        }
    };
    send(0, 100);
    expect(0, 50);
    assert!(cables.has_program(1));
    two.kill();
    // The kernel takes it away when the last descriptor is closed, which may be a moment after the process's end.
    assert!(eventually(|| !cables.has_program(1)), "the program is still there");
    cables.ping("10.96.0.2").unwrap();
    send(100, 200);
    two.again();
    expect(50, 200);
    goes_over(&stream, "host-1", "xdp");
    send(200, 300);
    expect(200, 300);
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

#[test]
fn a_bad_network_over_xdp_costs_only_what_is_counted() {
    let _watchdog = Watchdog::start("bad", TEST);
    let Some(cables) = Cables::new() else { return };
    let mut runtimes = [0, 1].map(|end| cables.runtime(end, |_| ()));
    let plan = Plan { lose_ppm: 20_000, repeat_ppm: 20_000, delay_ppm: 20_000, change_ppm: 5000, cut: false };
    for (runtime, seed) in runtimes.iter_mut().zip([3, 5]) {
        runtime.again_with(plan, seed);
    }
    let [one, two] = &runtimes;
    let (a, b) = (one.session("source"), two.session("sink"));
    for qos in [accelerated(Qos::default()), accelerated(reliable())] {
        let (stream, source, sink) = ends(&a, &b, qos, "load");
        goes_over(&stream, "host-1", "xdp");
        let (stop, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let (sent, got) = std::thread::scope(|scope| {
            let sender = scope.spawn(|| count_up(&source, &stop));
            let taker = scope.spawn(|| take_numbers(&sink, &over));
            std::thread::sleep(Duration::from_millis(700));
            stop.store(true, Ordering::Relaxed);
            let sent = sender.join();
            over.store(true, Ordering::Relaxed);
            (sent.expect("it sends"), taker.join().expect("it takes"))
        });
        assert!(!got.is_empty() && sent > 100, "{} of {sent}", got.len());
        let mut once = got.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), got.len(), "repeated");
        if qos.reliability() == Reliability::Reliable {
            assert!(got.iter().copied().eq(0..sent), "{} of {sent}", got.len());
        }
        assert!(eventually(|| law_holds(&a)), "{}", law(&a));
    }
    assert!(network_count(&status(&a), "dropped") > 0, "nothing was lost: {}", law(&a));
}

#[test]
fn an_interface_that_goes_away_costs_only_its_datapath() {
    let _watchdog = Watchdog::start("gone", TEST);
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| cables.runtime(end, |_| ()));
    let (a, b) = (one.session("source"), two.session("sink"));
    let (stream, source, sink) = ends(&a, &b, accelerated(reliable()), "c");
    goes_over(&stream, "host-1", "xdp");
    cables.0.ip(0, "link del veth1").unwrap();
    for round in 0..200u32 {
        source.send(&round.to_le_bytes()).unwrap();
    }
    for round in 0..200u32 {
        let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{round}: {e}; {}", law(&a)));
        assert_eq!(message.to_vec(), round.to_le_bytes());
    }
    goes_over(&stream, "host-1", "udp");
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

/// Emits numbers until it is told to stop; how many.
fn count_up(source: &Source, stop: &AtomicBool) -> u32 {
    let mut next = 0u32;
    while !stop.load(Ordering::Relaxed) {
        source.send(&next.to_le_bytes().repeat(50)).expect("it is taken");
        next += 1;
        if next % 16 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    next
}

/// Takes numbers until nothing comes any more after `last` was told; all of them.
fn take_numbers(sink: &Sink, over: &AtomicBool) -> Vec<u32> {
    let mut got = Vec::new();
    loop {
        match sink.consume_timeout(Duration::from_millis(300)) {
            Ok(message) => {
                let bytes = message.to_vec();
                assert!(bytes.len() == 200 && bytes.chunks_exact(4).all(|part| part == &bytes[..4]), "it is not whole");
                got.push(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            }
            Err(_) if over.load(Ordering::Relaxed) => return got,
            Err(_) => {}
        }
    }
}

/// A stream moves from one datapath to the other while it runs, when its cable is cut and when it is mended.
fn moves(qos: Qos) {
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| cables.runtime(end, |_| ()));
    let (a, b) = (one.session("source"), two.session("sink"));
    let (stream, source, sink) = ends(&a, &b, qos, "c");
    goes_over(&stream, "host-1", "xdp");
    let (stop, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (sent, got) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| count_up(&source, &stop));
        let taker = scope.spawn(|| take_numbers(&sink, &over));
        // Ends the threads even if something here fails.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(200));
                cables.0.ip(0, "link set veth1 down").unwrap();
                goes_over(&stream, "host-1", "udp");
                let effective = towards(&stream, "host-1");
                assert!(effective.reasons[0].contains("host-0 does not reach host-1 over xdp"), "{effective:?}");
                std::thread::sleep(Duration::from_millis(200));
                cables.0.ip(0, "link set veth1 up").unwrap();
                goes_over(&stream, "host-1", "xdp");
            }
            std::thread::sleep(Duration::from_millis(200));
        }));
        stop.store(true, Ordering::Relaxed);
        let sent = sender.join();
        over.store(true, Ordering::Relaxed);
        let got = taker.join();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (sent.expect("it sends"), got.expect("it takes"))
    });
    assert!(got.windows(2).all(|pair| pair[0] < pair[1]), "reordered or repeated");
    assert!(got.len() > 100 && sent > 1000, "{} of {sent}", got.len());
    if qos.reliability() == Reliability::Reliable {
        assert!(got.iter().copied().eq(0..sent), "{} of {sent}", got.len());
    } else {
        // The last ones went over a path that stands.
        assert_eq!(got.last(), Some(&(sent - 1)));
    }
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
    let moved = status(&a)["network"]["hosts"][0]["moves"].as_u64();
    assert!(moved >= Some(4), "{}", law(&a));
}

#[test]
fn a_reliable_stream_moves_without_a_loss() {
    let _watchdog = Watchdog::start("reliable moves", TEST);
    moves(accelerated(reliable()));
}

#[test]
fn a_best_effort_stream_moves_in_order() {
    let _watchdog = Watchdog::start("best effort moves", TEST);
    moves(accelerated(Qos::default()));
}
