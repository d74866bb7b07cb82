//! Reliable streams outlive the runtimes: every message once and in order, whichever runtime is killed, and when.

use insane::{Session, Sink, Source, SourceOptions};
use insane_datapath::fault::Plan;
use insane_shm::counters::Count;
use insane_tests_host::Watchdog;
use insane_tests_network::{
    LIMIT, Process, config, eventually, free_addresses, law, law_holds, network_count, reliable, status, two,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const TEST: Duration = Duration::from_secs(90);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

/// A payload that says its number; its length changes with it.
fn payload(number: u64) -> Vec<u8> {
    let len = [8, 40, 300, 1400, 5000][(number % 5) as usize];
    let mut bytes = vec![number as u8; len];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Takes what comes and sees to it that it is every number once and in order.
struct Reader {
    seen: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Sink>,
}

impl Reader {
    fn start(sink: Sink, pause: Duration) -> Self {
        let (seen, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counts, ends) = (seen.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let Ok(message) = sink.consume_timeout(Duration::from_millis(50)) else { continue };
                let (bytes, next) = (message.to_vec(), counts.load(Ordering::Relaxed));
                let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
                assert_eq!(number, next, "the next was to be {next}");
                assert!(bytes == payload(number), "message {number} is not what was sent");
                counts.store(next + 1, Ordering::Relaxed);
                drop(message);
                if !pause.is_zero() && number % 64 == 0 {
                    std::thread::sleep(pause);
                }
            }
            sink
        });
        Self { seen, stop, thread }
    }

    fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Waits until it has seen so many, and for something more that must not come.
    fn finish(self, count: u64, what: impl Fn() -> String) -> Sink {
        let all = eventually(|| self.seen() >= count || self.thread.is_finished());
        if all {
            std::thread::sleep(Duration::from_millis(300));
        }
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.seen.clone();
        let sink = self.thread.join().unwrap_or_else(|_| panic!("{}", what()));
        assert_eq!(seen.load(Ordering::Relaxed), count, "messages were seen; {}", what());
        sink
    }
}

/// Emits as fast as the sinks take it, until it is told to stop. Returns how many there were.
fn emit(source: Source, stop: &Arc<AtomicBool>, pause_every: u64) -> JoinHandle<(Source, u64)> {
    let stop = stop.clone();
    std::thread::spawn(move || {
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            source.send(&payload(number)).unwrap_or_else(|e| panic!("message {number}: {e}"));
            number += 1;
            if number % pause_every == 0 {
                std::thread::sleep(Duration::from_micros(300));
            }
        }
        (source, number)
    })
}

/// Kills a runtime and starts it again so many times, each time and at the end after a reader has seen `more`.
fn kill_under_load(runtime: &mut Process, times: u32, reader: &Reader, more: u64, source: &Session) {
    for round in 0..=times {
        let before = reader.seen();
        assert!(eventually(|| reader.seen() > before + more), "round {round}: {}", law(source));
        if round < times {
            runtime.again();
        }
    }
}

/// A source on one host and a sink on another that know each other.
fn ends(one: &Process, two: &Process) -> (Session, Session, Source, Sink) {
    let (a, b) = (one.session("source"), two.session("sink"));
    let sink = b.stream(reliable()).expect("a stream").sink("c").expect("a sink");
    // On a busy machine a host may be away for longer than a source waits for one that is slow.
    let options = SourceOptions { deadline: LIMIT, ..SourceOptions::default() };
    let source = a.stream(reliable()).expect("a stream").source_with("c", options).expect("a source");
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    (a, b, source, sink)
}

#[test]
fn the_sinks_runtime_is_killed_under_load() {
    let _watchdog = Watchdog::start("sink's runtime", TEST);
    let [one, mut two] = two(PROGRAM);
    let (a, _b, source, sink) = ends(&one, &two);
    let reader = Reader::start(sink, Duration::ZERO);
    let stop = Arc::new(AtomicBool::new(false));
    let emitter = emit(source, &stop, 8);
    kill_under_load(&mut two, 4, &reader, 500, &a);
    stop.store(true, Ordering::Relaxed);
    let (_source, emitted) = emitter.join().expect("it emits");
    reader.finish(emitted, || law(&a));
    let counted = || network_count(&status(&a), "delivered");
    assert!(eventually(|| counted() == emitted), "{emitted} were emitted; {}", law(&a));
    assert_eq!(network_count(&status(&a), "unconfirmed"), 0, "{}", law(&a));
}

#[test]
fn two_sinks_of_the_killed_runtime_both_get_everything() {
    let _watchdog = Watchdog::start("two sinks", TEST);
    let [one, mut two] = two(PROGRAM);
    let (a, b, source, sink) = ends(&one, &two);
    // One in the same session, one in another.
    let c = two.session("third");
    let others = [&b, &c].map(|s| s.stream(reliable()).expect("a stream").sink("c").expect("a sink"));
    assert_eq!(source.wait_for_sinks(3, LIMIT), 3);
    let [second, third] = others;
    let pauses = [Duration::ZERO, Duration::from_millis(3), Duration::from_millis(1)];
    let sinks = [sink, second, third].into_iter().zip(pauses);
    let readers: Vec<Reader> = sinks.map(|(sink, pause)| Reader::start(sink, pause)).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let emitter = emit(source, &stop, 8);
    kill_under_load(&mut two, 3, &readers[1], 300, &a);
    stop.store(true, Ordering::Relaxed);
    let (_source, emitted) = emitter.join().expect("it emits");
    readers.into_iter().for_each(|reader| drop(reader.finish(emitted, || law(&a))));
    let counted = || network_count(&status(&a), "delivered");
    assert!(eventually(|| counted() == 3 * emitted), "{emitted} were emitted; {}", law(&a));
    assert_eq!(network_count(&status(&a), "unconfirmed"), 0, "{}", law(&a));
}

/// One count over all cells of a session.
fn count(session: &Session, count: Count) -> u64 {
    session.counts().iter().map(|c| c.get(count)).sum()
}

/// Every message that was emitted was meant for the sink and ended well, by the counts of the source's session and of the runtime.
fn reconcile(a: &Session, emitted: u64) {
    assert!(eventually(|| law_holds(a)), "{emitted} were emitted; {}", law(a));
    let unconfirmed = count(a, Count::Unconfirmed) + network_count(&status(a), "unconfirmed");
    let delivered = count(a, Count::Delivered) + network_count(&status(a), "delivered");
    let meant = (count(a, Count::Intended), count(a, Count::NoSink));
    assert_eq!((meant, delivered, unconfirmed), ((emitted, 0), emitted, 0), "{}", law(a));
    // No slot is lost, none is owned twice, and all are free again.
    let stream = a.stream(reliable()).expect("the stream");
    assert!(eventually(|| stream.audit().held == 0), "{:?}", stream.audit());
    let audit = stream.audit();
    assert_eq!((audit.lost, audit.doubly_owned), (0, 0), "{audit:?}");
}

#[test]
fn the_sources_runtime_is_killed_under_load() {
    let _watchdog = Watchdog::start("source's runtime", TEST);
    let [mut one, two] = two(PROGRAM);
    let (a, _b, source, sink) = ends(&one, &two);
    let reader = Reader::start(sink, Duration::ZERO);
    let stop = Arc::new(AtomicBool::new(false));
    let emitter = emit(source, &stop, 8);
    kill_under_load(&mut one, 4, &reader, 500, &a);
    stop.store(true, Ordering::Relaxed);
    let (_source, emitted) = emitter.join().expect("it emits");
    reader.finish(emitted, || law(&a));
    reconcile(&a, emitted);
}

#[test]
fn a_source_without_a_runtime_waits_and_loses_nothing() {
    let _watchdog = Watchdog::start("without", TEST);
    let [mut one, two] = two(PROGRAM);
    let (a, _b, source, sink) = ends(&one, &two);
    drop(source);
    // Its patience with a sink that is slow, a second, is not that with a runtime that is gone.
    let source = a.stream(reliable()).expect("a stream").source("c").expect("a source");
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let reader = Reader::start(sink, Duration::ZERO);
    source.send(&payload(0)).expect("it goes");
    assert!(eventually(|| reader.seen() == 1));
    one.kill();
    let gone = Instant::now();
    let (stop, emitted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(1)));
    let (ends, counts) = (stop.clone(), emitted.clone());
    let emitter = std::thread::spawn(move || {
        while !ends.load(Ordering::Relaxed) {
            let number = counts.load(Ordering::Relaxed);
            source.send(&payload(number)).unwrap_or_else(|e| panic!("message {number}: {e}"));
            counts.store(number + 1, Ordering::Relaxed);
        }
        source
    });
    // Until the link is full and the source waits, for longer than it waits for a sink.
    let mut last = 0;
    while gone.elapsed() < Duration::from_secs(3) {
        last = emitted.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(last > 100 && emitted.load(Ordering::Relaxed) == last, "{last} were emitted without a runtime");
    assert_eq!(reader.seen(), 1);
    one.again();
    assert!(eventually(|| reader.seen() > last), "{}", law(&a));
    stop.store(true, Ordering::Relaxed);
    let source = emitter.join().expect("it emits");
    let emitted = emitted.load(Ordering::Relaxed);
    reader.finish(emitted, || law(&a));
    reconcile(&a, emitted);
    // Tokens of before, of meanwhile and of after.
    for token in [1, last / 2, emitted] {
        let outcome = source.outcome(insane::Token(token)).expect("it is known");
        assert_eq!((outcome.intended, outcome.delivered), (1, 1), "message {token} of {emitted}");
    }
}

#[test]
fn a_source_that_closes_without_a_runtime_still_delivers() {
    let _watchdog = Watchdog::start("closes", TEST);
    let [mut one, two] = two(PROGRAM);
    let (a, _b, source, sink) = ends(&one, &two);
    let reader = Reader::start(sink, Duration::ZERO);
    source.send(&payload(0)).expect("it goes");
    assert!(eventually(|| reader.seen() == 1));
    one.kill();
    for number in 1..50 {
        source.send(&payload(number)).expect("it is emitted");
    }
    drop(source);
    one.again();
    reader.finish(50, || law(&a));
    reconcile(&a, 50);
    // Then it is gone everywhere.
    let watcher = two.session("watcher");
    let left = || status(&watcher)["network"]["hosts"][0]["flows_in"].as_u64();
    assert!(eventually(|| left() == Some(0)), "{}", status(&watcher));
}

#[test]
fn a_local_sink_goes_on_without_the_runtime() {
    let _watchdog = Watchdog::start("local", TEST);
    let [mut one, two] = two(PROGRAM);
    let (a, _b, source, sink) = ends(&one, &two);
    let c = one.session("local");
    let local = c.stream(reliable()).expect("a stream").sink("c").expect("a sink");
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
    let (near, far) = (Reader::start(local, Duration::ZERO), Reader::start(sink, Duration::ZERO));
    for number in 0..100 {
        source.send(&payload(number)).expect("it goes");
    }
    assert!(eventually(|| near.seen() == 100 && far.seen() == 100));
    one.kill();
    for number in 100..200 {
        source.send(&payload(number)).expect("it goes");
        assert!(eventually(|| near.seen() == number + 1), "the local sink has not got message {number}");
    }
    assert_eq!(far.seen(), 100);
    one.again();
    near.finish(200, || law(&a));
    far.finish(200, || law(&a));
    assert_eq!(count(&a, Count::Unconfirmed), 0);
}

#[test]
fn a_runtime_that_does_not_come_back_leaves_its_messages_unconfirmed() {
    let _watchdog = Watchdog::start("never", TEST);
    let addresses = free_addresses(2);
    let [mut one, two] = [0, 1].map(|at| {
        let mut config = config(&format!("host-{at}"), addresses[at], &addresses);
        config.network.get_or_insert_default().patience_ms = 1500;
        Process::start(PROGRAM, None, &config)
    });
    let (a, _b, source, sink) = ends(&one, &two);
    let first = source.send(&payload(0)).expect("it goes");
    assert_eq!(sink.consume_timeout(LIMIT).expect("it comes").to_vec(), payload(0));
    assert!(eventually(|| source.outcome(first).expect("it is known").delivered == 1));
    one.kill();
    let lost = source.send(&payload(1)).expect("it is emitted");
    assert_eq!(source.outcome(lost).expect("it is known").pending, 1);
    assert!(eventually(|| source.outcome(lost).expect("it is known").unconfirmed == 1));
    assert_eq!(source.outcome(first).expect("it is known").delivered, 1);
    assert_eq!((source.sinks(), count(&a, Count::Unconfirmed), count(&a, Count::Delivered)), (0, 1, 1));
    assert!(a.events().iter().any(|e| matches!(e, insane::Event::SinkGivenUp { .. })));
    // It goes on, for nobody at first.
    source.send(&payload(2)).expect("it is emitted");
    assert_eq!(count(&a, Count::NoSink), 1);
    one.again();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let token = source.send(&payload(3)).expect("it goes");
    assert_eq!(sink.consume_timeout(LIMIT).expect("it comes").to_vec(), payload(3));
    assert!(eventually(|| source.outcome(token).expect("it is known").delivered == 1));
}

#[test]
fn both_runtimes_are_killed_again_and_again_on_a_bad_network() {
    let _watchdog = Watchdog::start("both", TEST);
    let plan = Plan { lose_ppm: 20_000, repeat_ppm: 20_000, delay_ppm: 20_000, change_ppm: 5_000, cut: false };
    let mut both = two(PROGRAM);
    both[0].again_with(plan, 1);
    both[1].again_with(plan, 1001);
    let (a, b, source, sink) = ends(&both[0], &both[1]);
    let second = b.stream(reliable()).expect("a stream").sink("c").expect("a sink");
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
    let (reader, other) = (Reader::start(sink, Duration::ZERO), Reader::start(second, Duration::from_millis(1)));
    let stop = Arc::new(AtomicBool::new(false));
    let emitter = emit(source, &stop, 4);
    // Another course of events: OUTLIVE_SEED.
    let mut seed = std::env::var("OUTLIVE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20u64);
    let mut next = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let start = Instant::now();
    let mut rounds = 0;
    while start.elapsed() < Duration::from_secs(30) && rounds < 24 {
        let before = reader.seen();
        // Mostly something gets through in between, sometimes the next dies in the middle of it.
        if next(3) > 0 {
            assert!(eventually(|| reader.seen() > before), "round {rounds}: {}", law(&a));
        }
        std::thread::sleep(Duration::from_millis(next(700)));
        match next(3) {
            0 => both[0].again(),
            1 => both[1].again(),
            _ => both.iter_mut().for_each(Process::again),
        }
        rounds += 1;
    }
    let before = reader.seen();
    assert!(eventually(|| reader.seen() > before + 100), "{}", law(&a));
    stop.store(true, Ordering::Relaxed);
    let (_source, emitted) = emitter.join().expect("it emits");
    println!("{rounds} rounds, {emitted} messages");
    reader.finish(emitted, || law(&a));
    other.finish(emitted, || law(&a));
    reconcile(&a, 2 * emitted);
}
