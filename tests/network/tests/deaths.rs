//! A runtime that dies, comes back, or is not heard for a while.

use insane::{Qos, Sink, Source};
use insane_shm::counters::Count;
use insane_tests_host::Watchdog;
use insane_tests_network::{
    Ends, LIMIT, Process, Stalls, config, eventually, free_addresses, gives_back_all, law, law_holds, network_count,
    reliable, status, two, within,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TEST: Duration = Duration::from_secs(30);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

#[test]
fn a_killed_runtime_is_noticed_within_two_seconds_and_its_links_end() {
    let _watchdog = Watchdog::start("killed", TEST);
    let [one, mut two] = two(PROGRAM);
    let (a, b) = (one.session("source"), two.session("sink"));
    let sink = b.stream(Qos::default()).unwrap().sink("c").unwrap();
    let stream = a.stream(Qos::default()).unwrap();
    let source = stream.source("c").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    for i in 0..100u32 {
        source.send(&i.to_le_bytes().repeat(40)).unwrap();
    }
    for _ in 0..100 {
        sink.consume_timeout(LIMIT).unwrap();
    }
    two.kill();
    let killed = Instant::now();
    while source.sinks() > 0 && killed.elapsed() < Duration::from_secs(10) {
        source.send(&[1; 160]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    let took = killed.elapsed();
    assert!(source.sinks() == 0 && took < Duration::from_millis(2000), "noticed after {took:?}");
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
    assert!(network_count(&status(&a), "unconfirmed") > 0, "{}", law(&a));
    assert!(eventually(|| stream.audit().held == 0), "{:?}", stream.audit());
    // It comes back, its session with it, and the same ends go on.
    two.again();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1, "{}", law(&a));
    let token = source.send(b"again").unwrap();
    let got = || sink.consume_timeout(LIMIT).unwrap().to_vec();
    assert_eq!(got(), b"again");
    assert!(eventually(|| source.outcome(token).unwrap().delivered == 1));
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
    gives_back_all(&b);
}

/// How long a channel waits for a runtime that is started: from there until the first message is through, and how much of that the
/// machine let nobody run.
fn resumes(process: &mut Process, source: &Source, sink: &Sink) -> (Duration, Duration) {
    let stalls = Stalls::start();
    let start = Instant::now();
    process.again();
    loop {
        source.send(b"again").unwrap();
        if sink.consume_timeout(Duration::from_millis(1)).is_ok() {
            return (start.elapsed(), stalls.sum());
        }
        assert!(start.elapsed() < LIMIT, "nothing comes");
    }
}

#[test]
fn network_channels_resume_within_a_second_of_their_runtimes_restart() {
    let _watchdog = Watchdog::start("resume", Duration::from_secs(120));
    let [mut one, mut two] = two(PROGRAM);
    let (a, b) = (one.session("source"), two.session("sink"));
    let spinners = std::thread::available_parallelism().map_or(1, usize::from);
    let over = AtomicBool::new(false);
    for qos in [Qos::default(), reliable()] {
        let sink = b.stream(qos).unwrap().sink("c").unwrap();
        let source = a.stream(qos).unwrap().source("c").unwrap();
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
        for loaded in [false, true] {
            std::thread::scope(|scope| {
                over.store(false, Ordering::Relaxed);
                let ends = Ends(&over);
                for _ in 0..if loaded { spinners } else { 0 } {
                    scope.spawn(|| {
                        while !over.load(Ordering::Relaxed) {
                            std::hint::spin_loop();
                        }
                    });
                }
                // Of the sink's host, and of the source's; at once, and when the other host has noticed that it is away.
                for (sinks, noticed) in [(true, false), (true, true), (false, false), (false, true)] {
                    let (process, other) = if sinks { (&mut two, &a) } else { (&mut one, &b) };
                    process.kill();
                    let is_away = || status(other)["network"]["hosts"][0]["connected"] == false;
                    assert!(!noticed || eventually(is_away), "{}", law(other));
                    let (took, stalled) = resumes(process, &source, &sink);
                    assert!(
                        took.saturating_sub(stalled) < Duration::from_secs(1),
                        "{took:?}, of which the machine stood {stalled:?}; {qos:?}, loaded: {loaded}, of sinks: {sinks}, noticed: {noticed}"
                    );
                    while sink.consume_timeout(Duration::from_millis(100)).is_ok() {}
                }
                drop(ends);
            });
        }
    }
}

#[test]
fn what_is_emitted_while_a_source_lets_go_of_a_lost_sink_is_counted() {
    let _watchdog = Watchdog::start("let go", TEST);
    let [one, mut two] = two(PROGRAM);
    let (a, b) = (one.session("source"), two.session("sink"));
    let sink = b.stream(Qos::default()).unwrap().sink("c").unwrap();
    let source = a.stream(Qos::default()).unwrap().source("c").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let (seen, silent, over) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (silences, ends) = (Ends(&silent), Ends(&over));
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                seen.fetch_add(u64::from(sink.consume_timeout(Duration::from_millis(5)).is_ok()), Ordering::Relaxed);
            }
        });
        // Closely enough that some are emitted when the host is known to be lost and the source has not heard of it.
        let emitter = scope.spawn(|| {
            while !silent.load(Ordering::Relaxed) {
                source.send(&[1; 40]).unwrap();
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let losses = || status(&a)["network"]["hosts"][0]["losses"].as_u64();
        for round in 1..=10 {
            // At once, so that the connection begins anew before the silence is noticed.
            two.again();
            assert!(eventually(|| losses() == Some(round)), "round {round}: {}", law(&a));
            let before = seen.load(Ordering::Relaxed);
            assert!(eventually(|| seen.load(Ordering::Relaxed) > before + 100), "round {round}: {}", law(&a));
        }
        drop(silences);
        emitter.join().unwrap();
        assert!(within(Duration::from_secs(5), || law_holds(&a)), "{}", law(&a));
        drop(ends);
    });
    let (seen, report) = (seen.into_inner(), status(&a));
    let [delivered, unconfirmed] = ["delivered", "unconfirmed"].map(|name| network_count(&report, name));
    assert!((delivered..=delivered + unconfirmed).contains(&seen), "{seen} seen, {}", law(&a));
    assert!(eventually(|| status(&a)["network"]["under_way"] == 0), "payloads are kept: {}", law(&a));
    gives_back_all(&b);
}

#[test]
fn what_a_killed_runtime_had_taken_and_not_brought_to_the_sinks_is_unconfirmed() {
    let _watchdog = Watchdog::start("taken", TEST);
    let [mut one, two] = two(PROGRAM);
    let (a, b) = (one.session("source"), two.session("sink"));
    let _sink = b.stream(Qos::default()).unwrap().sink("c").unwrap();
    let source = a.stream(Qos::default()).unwrap().source("c").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    // Nobody answers, so messages gather in the runtime: more of them than its link has entries.
    two.hold();
    let mut emitted = 0;
    for _ in 0..60 {
        for _ in 0..50 {
            source.send(&[7; 40]).unwrap();
            emitted += 1;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    one.kill();
    assert!(within(Duration::from_secs(5), || source.sinks() == 0));
    two.go_on();
    let cells = a.counts();
    let count = |count| cells.iter().map(|cell| cell.get(count)).sum::<u64>();
    let account = insane_tests_host::account(&cells);
    assert_eq!(account.intended, emitted);
    assert!(account.holds(), "{account:?}, unconfirmed {}", count(Count::Unconfirmed));
    assert!(count(Count::Unconfirmed) > 1024, "{} are unconfirmed", count(Count::Unconfirmed));
}

#[test]
fn a_reliable_stream_goes_on_after_a_silence() {
    let _watchdog = Watchdog::start("silence", TEST);
    let [one, two] = two(PROGRAM);
    let (a, b) = (one.session("source"), two.session("sink"));
    let sink = b.stream(reliable()).unwrap().sink("c").unwrap();
    let source = a.stream(reliable()).unwrap().source("c").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let losses = || status(&a)["network"]["hosts"][0]["losses"].as_u64();
    for i in 0..50u32 {
        source.send(&i.to_le_bytes().repeat(40)).unwrap();
    }
    two.hold();
    for i in 50..200u32 {
        source.send(&i.to_le_bytes().repeat(40)).unwrap();
    }
    assert!(within(Duration::from_secs(3), || losses() == Some(1)), "{}", law(&a));
    two.go_on();
    for i in 200..300u32 {
        source.send(&i.to_le_bytes().repeat(40)).unwrap();
    }
    for i in 0..300u32 {
        let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("message {i}: {e}; {}", law(&a)));
        assert_eq!(message.to_vec(), i.to_le_bytes().repeat(40), "message {i}");
    }
    assert!(sink.consume_timeout(Duration::from_millis(300)).is_err(), "something came twice");
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
    assert_eq!(network_count(&status(&a), "delivered"), 300, "{}", law(&a));
    gives_back_all(&b);
}

#[test]
fn a_reliable_sink_that_closed_in_a_silence_is_gone_when_its_host_is_heard_again() {
    let _watchdog = Watchdog::start("closed in a silence", TEST);
    let addresses = free_addresses(2);
    let [one, two] = [0, 1].map(|at| {
        let mut config = config(&format!("host-{at}"), addresses[at], &addresses);
        // Nobody waits for as long.
        config.network.as_mut().unwrap().patience_ms = 600_000;
        Process::start(PROGRAM, None, &config)
    });
    let (a, b, c) = (one.session("source"), two.session("closes"), two.session("stays"));
    let sinks = [&b, &c].map(|session| session.stream(reliable()).unwrap().sink("c").unwrap());
    let stream = a.stream(reliable()).unwrap();
    let source = stream.source("c").unwrap();
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
    two.hold();
    for _ in 0..20 {
        source.send(&[1; 100]).unwrap();
    }
    let losses = || status(&a)["network"]["hosts"][0]["losses"].as_u64();
    assert!(within(Duration::from_secs(3), || losses() == Some(1)), "{}", law(&a));
    let [closes, stays] = sinks;
    drop(closes);
    b.close();
    assert_eq!(source.sinks(), 2, "nobody knows yet");
    two.go_on();
    for i in 0..20 {
        stays.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("message {i}: {e}; {}", law(&a)));
    }
    assert!(within(Duration::from_secs(10), || source.sinks() == 1), "{}", law(&a));
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
    assert!(eventually(|| stream.audit().held == 0), "{:?}", stream.audit());
}

#[test]
fn a_reliable_stream_goes_on_after_the_sinks_runtime_was_killed() {
    let _watchdog = Watchdog::start("restart", TEST);
    let [one, mut two] = two(PROGRAM);
    let (a, b) = (one.session("source"), two.session("sink"));
    let sink = b.stream(reliable()).unwrap().sink("c").unwrap();
    let source = a.stream(reliable()).unwrap().source("c").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    for i in 0..100u32 {
        source.send(&i.to_le_bytes().repeat(40)).unwrap();
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), i.to_le_bytes().repeat(40));
    }
    // Until all of it is acknowledged: what the sink has and its runtime had not said yet would come a second time.
    assert!(eventually(|| network_count(&status(&a), "delivered") == 100), "{}", law(&a));
    two.kill();
    for i in 100..200u32 {
        source.send(&i.to_le_bytes().repeat(40)).unwrap();
    }
    two.again();
    for i in 100..200u32 {
        let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("message {i}: {e}; {}", law(&a)));
        assert_eq!(message.to_vec(), i.to_le_bytes().repeat(40), "message {i}");
    }
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

/// Two hosts that wait a second for what has gone.
fn impatient() -> [Process; 2] {
    let addresses = free_addresses(2);
    [0, 1].map(|at| {
        let mut config = config(&format!("host-{at}"), addresses[at], &addresses);
        config.network.as_mut().unwrap().patience_ms = 1000;
        Process::start(PROGRAM, None, &config)
    })
}

#[test]
fn what_waits_for_a_reliable_sink_that_closed_while_its_runtime_was_away_is_unconfirmed() {
    let _watchdog = Watchdog::start("away", TEST);
    let [one, mut two] = impatient();
    let (a, b) = (one.session("source"), two.session("sink"));
    let sink = b.stream(reliable()).unwrap().sink("c").unwrap();
    let stream = a.stream(reliable()).unwrap();
    let source = stream.source("c").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    source.send(b"before").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"before");
    assert!(eventually(|| network_count(&status(&a), "delivered") == 1), "{}", law(&a));
    two.kill();
    for _ in 0..20 {
        source.send(&[1; 100]).unwrap();
    }
    drop(sink);
    b.close();
    two.again();
    assert!(within(Duration::from_secs(10), || law_holds(&a)), "{}", law(&a));
    assert_eq!(network_count(&status(&a), "unconfirmed"), 20, "{}", law(&a));
    assert!(eventually(|| stream.audit().held == 0), "{:?}", stream.audit());
}

#[test]
fn what_a_runtime_that_is_killed_for_good_had_not_said_is_unconfirmed() {
    let _watchdog = Watchdog::start("for good", TEST);
    let [one, mut two] = impatient();
    let (a, b) = (one.session("source"), two.session("sink"));
    let sink = b.stream(reliable()).unwrap().sink("c").unwrap();
    let stream = a.stream(reliable()).unwrap();
    let source = stream.source("c").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let (seen, dead, over) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
    let last = std::thread::scope(|scope| {
        let (deaths, ends) = (Ends(&dead), Ends(&over));
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                seen.fetch_add(u64::from(sink.consume_timeout(Duration::from_millis(5)).is_ok()), Ordering::Relaxed);
            }
        });
        let emitter = scope.spawn(|| {
            let mut last = source.send(&[1; 40]).unwrap();
            while !dead.load(Ordering::Relaxed) {
                last = source.send(&[1; 40]).unwrap();
            }
            last
        });
        // Under load, so that the sink has some of which its runtime has said that they came and not yet what became of them.
        assert!(eventually(|| seen.load(Ordering::Relaxed) > 10_000), "{}", law(&a));
        two.kill();
        drop(deaths);
        let last = emitter.join().unwrap();
        drop(ends);
        last
    });
    assert!(eventually(|| source.sinks() == 0), "{}", law(&a));
    assert!(within(Duration::from_secs(5), || law_holds(&a)), "{}", law(&a));
    assert_eq!(source.outcome(last).unwrap().pending, 0);
    assert!(eventually(|| stream.audit().held == 0), "{:?}", stream.audit());
}

#[test]
fn the_sources_runtime_was_killed_and_its_source_goes_on() {
    let _watchdog = Watchdog::start("source restart", TEST);
    let [mut one, two] = two(PROGRAM);
    let (a, b) = (one.session("source"), two.session("sink"));
    let sink = b.stream(Qos::default()).unwrap().sink("c").unwrap();
    let source = a.stream(Qos::default()).unwrap().source("c").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    source.send(b"before").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"before");
    one.kill();
    assert!(eventually(|| source.sinks() == 0));
    source.send(b"into the void").unwrap();
    one.again();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    source.send(b"after").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"after");
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

#[test]
fn a_sink_or_a_source_that_dies_is_gone_on_the_other_host() {
    let _watchdog = Watchdog::start("ends", TEST);
    let [one, two] = two(PROGRAM);
    let a = one.session("source");
    let source = a.stream(Qos::default()).unwrap().source("c").unwrap();
    for round in 0..5 {
        let b = two.session("sink");
        let sink = b.stream(Qos::default()).unwrap().sink("c").unwrap();
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1, "round {round}: {}", law(&a));
        source.send(b"hello").unwrap();
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"hello");
        source.send(b"for nobody").unwrap();
        b.close();
        assert!(eventually(|| source.sinks() == 0), "round {round}: {}", law(&a));
        assert!(eventually(|| law_holds(&a)), "round {round}: {}", law(&a));
    }
    drop(source);
    a.close();
    let watcher = two.session("watcher");
    let left = || status(&watcher)["network"]["hosts"][0]["flows_in"].as_u64();
    assert!(eventually(|| left() == Some(0)), "{}", status(&watcher));
    gives_back_all(&watcher);
}
