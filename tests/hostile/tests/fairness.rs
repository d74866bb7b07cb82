//! One end that takes all it can takes nothing from the others.

use insane::{Code, Qos, Session, Sink};
use insane_tests_host::{Host, Watchdog, reconcile};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bad {
    /// Takes every message and gives none back.
    Holds,
    /// Takes none.
    Sleeps,
}

fn reader(sink: Sink, seen: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            if let Ok(message) = sink.consume_timeout(Duration::from_millis(20)) {
                assert_eq!(message.sequence(), seen.load(Ordering::Relaxed) + 1, "a message was lost");
                seen.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
}

#[test]
fn one_bad_sink_costs_seven_others_nothing() {
    let _watchdog = Watchdog::start("eight sinks", Duration::from_secs(120));
    for (bad, bytes, count) in [(Bad::Holds, 300, 6000), (Bad::Holds, 60_000, 2000), (Bad::Sleeps, 40, 6000)] {
        let host = Host::with(|c| c.quota.memory_mib_per_session = 64);
        let sessions: Vec<Session> = (0..8).map(|i| host.session(&format!("sink {i}"))).collect();
        let source_session = host.session("source");
        let stream = source_session.stream(Qos::default()).unwrap();
        let source = stream.source("all").unwrap();
        let mut sinks: Vec<Sink> =
            sessions.iter().map(|s| s.stream(Qos::default()).unwrap().sink("all").unwrap()).collect();
        assert_eq!(source.wait_for_sinks(8, LIMIT), 8);
        let bad_sink = sinks.pop().unwrap();
        let (stop, mut seen, mut threads) = (Arc::new(AtomicBool::new(false)), Vec::new(), Vec::new());
        for sink in sinks {
            seen.push(Arc::new(AtomicU64::new(0)));
            threads.push(reader(sink, seen.last().unwrap().clone(), stop.clone()));
        }
        let mut held = Vec::new();
        let end = Instant::now() + LIMIT;
        for n in 1..=count {
            source.send(&vec![n as u8; bytes]).expect("seven honest sinks leave a slot");
            while bad == Bad::Holds
                // SAFETY: they are given back to this sink, which is closed later.
                && let Some(message) = unsafe { bad_sink.try_raw() }.unwrap()
            {
                held.push(message);
            }
            // The seven are given time: what is asked here is what the eighth costs them, not how fast they are.
            while seen.iter().any(|s| s.load(Ordering::Relaxed) + 20 < n) {
                assert!(Instant::now() < end, "{bad:?}: the seven have {seen:?} of {n}");
                std::thread::yield_now();
            }
        }
        while seen.iter().any(|s| s.load(Ordering::Relaxed) < count) {
            assert!(Instant::now() < end, "{bad:?}: the seven have {seen:?} of {count}");
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|t| t.join().expect("nothing was lost"));
        println!("{bad:?}: {count} messages of {bytes} bytes to each of seven, {} held", held.len());
        let seen = 7 * count + held.len() as u64;
        for message in held {
            bad_sink.release(message);
        }
        bad_sink.close();
        while stream.audit().held > 0 {
            assert!(Instant::now() < end, "{:?}", stream.audit());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((stream.audit().lost, stream.audit().doubly_owned), (0, 0));
        reconcile(sessions.iter().chain([&source_session]), 8 * count, seen);
    }
}

/// One sink that takes a bounded number a second has ten sources: nine ask for less than a tenth of it, one for all.
#[test]
fn a_flooding_source_costs_nine_others_less_than_a_tenth() {
    let _watchdog = Watchdog::start("ten sources", Duration::from_secs(60));
    let host = Host::start();
    let reader = host.session("sink");
    let sink = reader.stream(Qos::default()).unwrap().sink("in").unwrap();
    let sessions: Vec<Session> = (0..10).map(|i| host.session(&format!("source {i}"))).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let (mut threads, mut epochs) = (Vec::new(), Vec::new());
    let emitted: Vec<_> = (0..10).map(|_| Arc::new(AtomicU64::new(0))).collect();
    for (i, session) in sessions.iter().enumerate() {
        let source = session.stream(Qos::default()).unwrap().source("in").unwrap();
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
        epochs.push(source.epoch());
        let (stop, emitted) = (stop.clone(), emitted[i].clone());
        threads.push(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                match source.send(&[i as u8; 100]) {
                    Ok(_) => drop(emitted.fetch_add(1, Ordering::Relaxed)),
                    Err(e) => assert_eq!(e.code(), Code::NoBuffer, "{e}"),
                }
                if i > 0 {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            // What is on its way is still taken.
            std::thread::sleep(Duration::from_secs(2));
        }));
    }
    let mut seen = [0u64; 10];
    let start = Instant::now();
    // At most 20 a millisecond, and the nine ask for 4.5 of them.
    let mut quiet = 0;
    while quiet < 100 {
        let mut any = false;
        for _ in 0..20 {
            let Some(message) = sink.try_consume().unwrap() else { break };
            any = true;
            let from = epochs.iter().position(|e| *e == message.source()).expect("a known source");
            seen[from] += 1;
        }
        quiet = if any { 0 } else { quiet + 1 };
        std::thread::sleep(Duration::from_millis(1));
        if start.elapsed() > Duration::from_secs(3) {
            stop.store(true, Ordering::Relaxed);
        }
        assert!(start.elapsed() < LIMIT, "the sink has {seen:?}");
    }
    threads.into_iter().for_each(|t| t.join().expect("a source"));
    let emitted: Vec<u64> = emitted.iter().map(|e| e.load(Ordering::Relaxed)).collect();
    println!("emitted {emitted:?}\nseen    {seen:?}");
    assert!(emitted[0] > 2 * seen[0], "the first source did not flood: {emitted:?} {seen:?}");
    for i in 1..10 {
        assert!(emitted[i] > 100, "source {i} emitted {}", emitted[i]);
        assert!(seen[i] * 10 > emitted[i] * 9, "source {i}: {} of {} arrived", seen[i], emitted[i]);
    }
    reconcile(sessions.iter().chain([&reader]), emitted.iter().sum(), seen.iter().sum());
}
