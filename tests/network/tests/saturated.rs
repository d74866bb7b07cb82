//! Two hosts while every core is busy with something else, at the priority of any application: nobody is taken for dead, and
//! what is emitted arrives. `INSANE_SECONDS` says for how long.

use insane::{Event, Qos, Session, Sink, Source};
use insane_tests_host::Watchdog;
use insane_tests_network::{
    Ends, LIMIT, Process, eventually, law, law_holds, leave, length, network_count, progress, reliable, status, two,
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

/// Between two messages of a source.
const PAUSE: Duration = Duration::from_millis(1);

/// Between two looks at what the hosts know of each other.
const LOOK: Duration = Duration::from_secs(1);

/// Between two words on how far the test is.
const WORD: Duration = Duration::from_secs(10);

/// A channel from one host to the other.
struct Way {
    name: &'static str,
    reliable: bool,
    source: Source,
    sink: Sink,
    emitted: AtomicU64,
    seen: AtomicU64,
}

impl Way {
    fn open(name: &'static str, from: &Session, to: &Session, qos: Qos) -> Self {
        let sink = to.stream(qos).expect("a stream").sink(name).expect("a sink");
        let source = from.stream(qos).expect("a stream").source(name).expect("a source");
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1, "{name}");
        Self { name, reliable: qos == reliable(), source, sink, emitted: AtomicU64::new(0), seen: AtomicU64::new(0) }
    }

    fn emit(&self, stop: &AtomicBool) {
        let mut number = 0u64;
        while !stop.load(Ordering::Relaxed) {
            // Small ones, one that fills a frame, and one of several.
            let len = [8, 200, 1400, 4000][(number % 4) as usize];
            let mut bytes = vec![number as u8; len];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            self.source.send(&bytes).unwrap_or_else(|e| panic!("{}: message {number}: {e}", self.name));
            number += 1;
            self.emitted.store(number, Ordering::Relaxed);
            std::thread::sleep(PAUSE);
        }
    }

    /// Takes what comes until it is told to stop: once, and of a reliable channel all and in order.
    fn take(&self, stop: &AtomicBool) {
        let mut taken: Vec<bool> = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let Ok(message) = self.sink.consume_timeout(Duration::from_millis(50)) else { continue };
            let bytes = message.to_vec();
            let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            assert!(bytes[8..].iter().all(|b| *b == number as u8), "{}: message {number} is not as sent", self.name);
            let seen = self.seen.load(Ordering::Relaxed);
            assert!(!self.reliable || number == seen, "{}: message {number} came, {seen} was the next", self.name);
            let at = usize::try_from(number).expect("few messages");
            taken.resize(taken.len().max(at + 1), false);
            assert!(!std::mem::replace(&mut taken[at], true), "{}: message {number} came twice", self.name);
            self.seen.store(seen + 1, Ordering::Relaxed);
        }
    }

    fn counts(&self) -> (u64, u64) {
        (self.emitted.load(Ordering::Relaxed), self.seen.load(Ordering::Relaxed))
    }
}

/// Sees to it that no host has lost the other, and that nobody was told of anything like it.
fn nobody_is_lost(sessions: &[Session; 2], hosts: &mut [Process; 2], when: &str) {
    for (at, session) in sessions.iter().enumerate() {
        assert!(hosts[at].lives(), "{when}: the runtime of host {at} has ended");
        let report = status(session);
        let peer = &report["network"]["hosts"][0];
        assert!(peer["losses"] == 0 && peer["connected"] == true, "{when}: host {at}: {}", law(session));
        let told: Vec<Event> = session.events();
        // What tells of a better or worse path tells of no loss.
        let told: Vec<&Event> = told.iter().filter(|e| !matches!(e, Event::QosChanged { .. })).collect();
        assert!(told.is_empty(), "{when}: host {at} was told {told:?}");
    }
}

fn saturated(length: Duration) -> Value {
    let _watchdog = Watchdog::start("saturated", length + 3 * LIMIT);
    let mut hosts = two(PROGRAM);
    let sessions = [hosts[0].session("zero"), hosts[1].session("one")];
    let [zero, one] = &sessions;
    let ways = [
        Way::open("best effort there", zero, one, Qos::default()),
        Way::open("best effort back", one, zero, Qos::default()),
        Way::open("reliable there", zero, one, reliable()),
        Way::open("reliable back", one, zero, reliable()),
    ];
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (quiet, over, turns) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let (start, mut looks, mut said) = (Instant::now(), 0u64, Instant::now());
    std::thread::scope(|scope| {
        let (stops, ends) = (Ends(&quiet), Ends(&over));
        for _ in 0..cores {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    (0..1_000_000).for_each(|_| std::hint::spin_loop());
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let readers = ways.each_ref().map(|way| scope.spawn(|| way.take(&over)));
        let emitters = ways.each_ref().map(|way| scope.spawn(|| way.emit(&quiet)));
        let works = || readers.iter().chain(&emitters).all(|thread| !thread.is_finished());
        let mut before = ways.each_ref().map(Way::counts);
        while start.elapsed() < length && works() {
            std::thread::sleep(LOOK.min(length.saturating_sub(start.elapsed())));
            nobody_is_lost(&sessions, &mut hosts, &format!("after {:?}", start.elapsed()));
            looks += 1;
            if said.elapsed() >= WORD {
                said = Instant::now();
                let now = ways.each_ref().map(Way::counts);
                for (way, (now, before)) in ways.iter().zip(now.iter().zip(before)) {
                    assert!(now.0 > before.0 && now.1 > before.1, "{} stands still at {now:?}", way.name);
                }
                before = now;
                progress(&format!("{} of {} s, {now:?} emitted and seen", start.elapsed().as_secs(), length.as_secs()));
            }
        }
        drop(stops);
        for emitter in emitters {
            emitter.join().expect("it emits");
        }
        // The cores are still busy while the rest arrives.
        let arrived = || ways.iter().filter(|w| w.reliable).all(|w| w.counts().0 == w.counts().1);
        assert!(eventually(arrived), "{:?}: {} {}", ways.each_ref().map(Way::counts), law(zero), law(one));
        assert!(eventually(|| law_holds(zero) && law_holds(one)), "{} {}", law(zero), law(one));
        nobody_is_lost(&sessions, &mut hosts, "at the end");
        drop(ends);
        for reader in readers {
            reader.join().expect("it takes");
        }
    });
    let sum = |reliable: bool| {
        let counts = ways.iter().filter(|w| w.reliable == reliable).map(Way::counts);
        counts.fold((0, 0), |sum, way| (sum.0 + way.0, sum.1 + way.1))
    };
    let ((emitted, seen), (all, came)) = (sum(false), sum(true));
    assert!(emitted > 0 && all > 0 && looks > 0 && turns.into_inner() >= cores as u64);
    assert_eq!(all, came, "reliable messages");
    let delivered: u64 = sessions.iter().map(|s| network_count(&status(s), "delivered")).sum();
    assert_eq!(delivered, seen + came, "{} {}", law(zero), law(one));
    for session in &sessions {
        for qos in [Qos::default(), reliable()] {
            let stream = session.stream(qos).expect("the stream");
            assert!(eventually(|| stream.audit().held == 0), "{:?}", stream.audit());
            assert_eq!((stream.audit().lost, stream.audit().doubly_owned), (0, 0), "{:?}", stream.audit());
        }
    }
    let report = json!({
        "seconds": start.elapsed().as_secs(), "busy_threads": cores, "looks": looks, "losses": 0,
        "best_effort": {"emitted": emitted, "seen": seen}, "reliable": {"emitted": all, "seen": came},
    });
    println!("{report}");
    report
}

#[test]
fn nobody_is_taken_for_dead_while_every_core_is_busy() {
    saturated(length("INSANE_SECONDS", 60));
}

#[test]
#[ignore = "ten minutes"]
fn soak_nobody_is_taken_for_dead_while_every_core_is_busy() {
    leave(&saturated(length("INSANE_SOAK_SECONDS", 600)));
}
