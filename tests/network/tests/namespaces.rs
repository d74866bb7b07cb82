//! Two runtimes in network namespaces with a cable between them, as on two hosts. Without root: SKIPPED.

use insane::{Qos, SourceOptions};
use insane_runtime::config::{Network, Thread};
use insane_tests_host::Watchdog;
use insane_tests_namespaces::Namespaces;
use insane_tests_network::load::{are_whole, flows, numbers};
use insane_tests_network::{
    LIMIT, Process, config, eventually, law, law_holds, network_count, reliable, status, within,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TEST: Duration = Duration::from_secs(30);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

/// Two namespaces with a cable between them.
struct Cable(Namespaces);

impl Cable {
    /// `None` where namespaces cannot be made; then it has said so.
    fn new() -> Option<Self> {
        let namespaces = Namespaces::new(["na", "nb"], |[a, b]| {
            vec![
                format!("link add veth0 netns {a} type veth peer name veth0 netns {b}"),
                format!("-n {a} addr add 10.97.0.1/24 dev veth0"),
                format!("-n {b} addr add 10.97.0.2/24 dev veth0"),
                format!("-n {a} addr add fd97::1/64 dev veth0 nodad"),
                format!("-n {b} addr add fd97::2/64 dev veth0 nodad"),
                format!("-n {a} link set veth0 up"),
                format!("-n {b} link set veth0 up"),
            ]
        })?;
        Some(Self(namespaces))
    }

    fn runtimes(&self, addresses: [&str; 2]) -> [Process; 2] {
        self.runtimes_with(addresses, |_| ())
    }

    fn runtimes_with(&self, addresses: [&str; 2], set: impl Fn(&mut Network)) -> [Process; 2] {
        let peers = addresses.map(|a| a.parse().expect("an address"));
        [0, 1].map(|at| {
            let mut config = config(&format!("host-{at}"), peers[at], &peers);
            let network = config.network.get_or_insert_default();
            network.interface = "veth0".into();
            set(network);
            Process::start(PROGRAM, Some(self.0.name(at)), &config)
        })
    }
}

#[test]
fn messages_of_all_sizes_cross_the_cable() {
    let _watchdog = Watchdog::start("cable", TEST);
    let Some(cable) = Cable::new() else { return };
    for addresses in [["10.97.0.1:7400", "10.97.0.2:7400"], ["[fd97::1]:7400", "[fd97::2]:7400"]] {
        let [one, two] = cable.runtimes(addresses);
        let (a, b) = (one.session("source"), two.session("sink"));
        for qos in [Qos::default(), reliable()] {
            let sink = b.stream(qos).unwrap().sink("c").unwrap();
            let source = a.stream(qos).unwrap().source("c").unwrap();
            assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
            for len in [0usize, 64, 65, 1400, 9000, 65_536, 3 << 20] {
                let payload: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
                source.send(&payload).unwrap();
                let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{len} bytes: {e}; {}", law(&a)));
                assert!(message.to_vec() == payload, "{len} bytes differ");
            }
        }
        assert!(eventually(|| law_holds(&a)), "{}", law(&a));
        assert_eq!(network_count(&status(&a), "delivered"), 14, "{}", law(&a));
    }
}

/// Best effort: each is cut into some ninety thousand frames, and is lost with one of them.
#[test]
fn ninety_nine_of_a_hundred_of_the_largest_messages_arrive() {
    const LENGTH: usize = 128 << 20;
    const PATIENCE: Duration = Duration::from_secs(20);
    let _watchdog = Watchdog::start("largest over the cable", Duration::from_secs(300));
    let Some(cable) = Cable::new() else { return };
    let [one, two] = cable.runtimes(["10.97.0.1:7400", "10.97.0.2:7400"]);
    let (a, b) = (one.session("source"), two.session("sink"));
    let sink = b.stream(Qos::default()).unwrap().sink("largest").unwrap();
    let source = a.stream(Qos::default()).unwrap().source("largest").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let mut payload: Vec<u8> = (0..LENGTH).map(|i| (i * 31 + i / 4096) as u8).collect();
    // At the beginning, at the end, and where frames of any size meet.
    let number = |payload: &mut [u8], n: u64| {
        [0, LENGTH / 3, LENGTH - 8].into_iter().for_each(|at| payload[at..at + 8].copy_from_slice(&n.to_le_bytes()));
    };
    let (mut arrived, mut last) = (0, 0);
    for n in 1..=100u64 {
        number(&mut payload, n);
        source.wait_for_room(LIMIT).unwrap();
        let mut buffer = source.buffer(LENGTH).unwrap();
        buffer.copy_from_slice(&payload);
        source.emit(buffer).unwrap();
        // One that is late because the machine has other things to do has arrived, too.
        while last < n {
            let Ok(message) = sink.consume_timeout(PATIENCE) else { break };
            let bytes = message.as_slice().expect("it lies in one piece");
            let got = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert!(last < got && got <= n, "{got} after {last}, of {n}");
            number(&mut payload, got);
            assert!(bytes == payload, "message {got} is changed");
            (arrived, last) = (arrived + 1, got);
        }
    }
    assert!(arrived >= 99, "{arrived} of 100; {}", law(&a));
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

/// Its socket holds what is on its way, however fast the other one could go on.
#[test]
fn a_runtime_that_gets_no_core_for_a_while_loses_nothing_that_comes() {
    let _watchdog = Watchdog::start("held", TEST * 2);
    let Some(cable) = Cable::new() else { return };
    // As much as the kernel gives to who has no rights.
    let little = |network: &mut Network| network.receive_buffer_kib = 208;
    let [one, two] = cable.runtimes_with(["10.97.0.1:7400", "10.97.0.2:7400"], little);
    let (a, b) = (one.session("source"), two.session("sink"));
    let sink = b.stream(Qos::default()).unwrap().sink("c").unwrap();
    let source = a.stream(Qos::default()).unwrap().source("c").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let over = AtomicBool::new(false);
    let came = std::thread::scope(|scope| {
        scope.spawn(|| {
            let payload = vec![7; 65_536];
            while !over.load(Ordering::Relaxed) {
                source.send(&payload).unwrap();
            }
        });
        let sink = scope.spawn(|| {
            let mut came = 0u64;
            loop {
                match sink.consume_timeout(Duration::from_millis(500)) {
                    Ok(_) => came += 1,
                    Err(_) if over.load(Ordering::Relaxed) => return came,
                    Err(_) => {}
                }
            }
        });
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(60));
            two.hold();
            std::thread::sleep(Duration::from_millis(40));
            two.go_on();
        }
        over.store(true, Ordering::Relaxed);
        sink.join().unwrap()
    });
    assert!(came > 100, "{came} came; {}", law(&a));
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
    let ports = &status(&b)["network"]["ports"];
    assert_eq!((&ports[0]["overruns"], &ports[0]["dropped"]), (&0.into(), &0.into()), "{ports}, {}", law(&a));
}

#[test]
fn a_cut_cable_is_noticed_and_reliable_streams_survive_it() {
    let _watchdog = Watchdog::start("cut", TEST);
    let Some(cable) = Cable::new() else { return };
    let [one, two] = cable.runtimes(["10.97.0.1:7400", "10.97.0.2:7400"]);
    let (a, b) = (one.session("source"), two.session("sink"));
    let plain_sink = b.stream(Qos::default()).unwrap().sink("c").unwrap();
    let sink = b.stream(reliable()).unwrap().sink("c").unwrap();
    let plain = a.stream(Qos::default()).unwrap().source("c").unwrap();
    let source = a.stream(reliable()).unwrap().source("c").unwrap();
    assert_eq!((source.wait_for_sinks(1, LIMIT), plain.wait_for_sinks(1, LIMIT)), (1, 1));
    cable.0.ip(0, "link set veth0 down").unwrap();
    for i in 0..100u32 {
        source.send(&i.to_le_bytes().repeat(40)).unwrap();
    }
    assert!(within(Duration::from_secs(3), || plain.sinks() == 0), "{}", law(&a));
    assert_eq!(source.sinks(), 1, "the reliable sink outlives it");
    cable.0.ip(0, "link set veth0 up").unwrap();
    for i in 0..100u32 {
        let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("message {i}: {e}; {}", law(&a)));
        assert_eq!(message.to_vec(), i.to_le_bytes().repeat(40));
    }
    assert_eq!(plain.wait_for_sinks(1, LIMIT), 1);
    plain.send(b"again").unwrap();
    assert_eq!(plain_sink.consume_timeout(LIMIT).unwrap().to_vec(), b"again");
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

/// What fitted a frame when it was taken from its source does not when the cable's frames become smaller, and goes in parts.
#[test]
fn a_reliable_stream_goes_on_while_frames_become_smaller_and_larger() {
    frames_become_smaller(|_| ());
}

/// The same where that is found out by another thread than the one that built the frames.
#[test]
fn a_reliable_stream_goes_on_while_the_frames_of_a_polling_thread_become_smaller() {
    frames_become_smaller(|network| {
        network.thread.push(Thread { datapaths: vec!["udp".into()], ..Thread::default() });
    });
}

fn frames_become_smaller(set: impl Fn(&mut Network)) {
    let _watchdog = Watchdog::start("smaller frames", TEST);
    let Some(cable) = Cable::new() else { return };
    let [one, two] = cable.runtimes_with(["10.97.0.1:7400", "10.97.0.2:7400"], set);
    let (a, b) = (one.session("source"), two.session("sink"));
    let sink = b.stream(reliable()).unwrap().sink("c").unwrap();
    // On a machine with others at work a cut may be mended after its usual patience, a second, and then it gives its sink up.
    let options = SourceOptions { deadline: LIMIT, ..SourceOptions::default() };
    let source = a.stream(reliable()).unwrap().source_with("c", options).unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let (sent, got) = numbers(&source, &sink, true, |seen| {
        for mtu in [600, 1500, 1000, 600, 9000, 600] {
            flows(seen, &a);
            // So that messages wait, in bundles, for frames as they were.
            cable.0.ip(1, "link set veth0 down").unwrap();
            std::thread::sleep(Duration::from_millis(50));
            cable.0.ip(0, &format!("link set veth0 mtu {mtu}")).unwrap();
            cable.0.ip(1, "link set veth0 up").unwrap();
            flows(seen, &a);
        }
    });
    are_whole(sent, &got, true, &a);
}

#[test]
fn after_a_short_cut_a_sink_gets_what_is_new() {
    let _watchdog = Watchdog::start("short cut", TEST);
    let Some(cable) = Cable::new() else { return };
    let [one, two] = cable.runtimes(["10.97.0.1:7400", "10.97.0.2:7400"]);
    let (a, b) = (one.session("source"), two.session("sink"));
    let sink = b.stream(Qos::default()).unwrap().sink("c").unwrap();
    let source = a.stream(Qos::default()).unwrap().source("c").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let start = Instant::now();
    let since = |start: Instant| u64::try_from(start.elapsed().as_micros()).unwrap();
    let send = |millis| {
        let end = Instant::now() + Duration::from_millis(millis);
        while Instant::now() < end {
            source.send(&since(start).to_le_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let (mended, oldest) = std::thread::scope(|scope| {
        let taker = scope.spawn(|| {
            // Of each, when it came and how old it was.
            let mut came = Vec::new();
            while let Ok(message) = sink.consume_timeout(Duration::from_secs(5)) {
                let Ok(at) = message.to_vec().try_into().map(u64::from_le_bytes) else { break };
                came.push((since(start), since(start) - at));
            }
            came
        });
        send(300);
        cable.0.ip(0, "link set veth0 down").unwrap();
        send(1400);
        cable.0.ip(0, "link set veth0 up").unwrap();
        let mended = since(start);
        // The sink is still there: the silence was shorter than what takes a host for lost.
        send(1500);
        assert_eq!(source.sinks(), 1, "{}", law(&a));
        source.send(b"over").unwrap();
        let came = taker.join().unwrap();
        let after = came.iter().filter(|(at, _)| *at > mended);
        (after.clone().count(), after.map(|(_, age)| *age).max().unwrap_or(0))
    });
    assert!(mended >= 100, "{mended} came after it was mended; {}", law(&a));
    assert!(oldest < 900_000, "one was {oldest} microseconds old; {}", law(&a));
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
    assert!(network_count(&status(&a), "dropped") > 500, "{}", law(&a));
}
