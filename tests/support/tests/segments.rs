//! Memory that messages of one size no longer need serves messages of another size.

use insane::{Code, Qos, Reliability, SinkOptions, Source, SourceOptions};
use insane_tests_host::programs::{Running, program};
use insane_tests_host::{Host, Watchdog, payload, reconcile};
use rustix::process::Signal;
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// What a stream may have: half of what its session may.
const SHARE: usize = 16 << 20;

/// Needs half of the share, in one slot, so that segments of small slots have to go.
const LARGE: usize = 8 << 20;

const SMALL: usize = 300;

fn host() -> Host {
    Host::with(|config| config.quota.memory_mib_per_session = ((2 * SHARE) >> 20) as u64)
}

/// How many segments this process maps, as owner and as peer together, and of how many bytes.
fn mapped() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let sizes = maps.lines().filter(|line| line.contains("insane-segment")).map(|line| {
        let (from, to) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')).unwrap();
        usize::from_str_radix(to, 16).unwrap() - usize::from_str_radix(from, 16).unwrap()
    });
    let sizes: Vec<usize> = sizes.collect();
    (sizes.len(), sizes.iter().sum())
}

/// Tests of one process count its mappings: one at a time.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Fills the stream's share with small slots: borrows until there is no more, and gives all of it back.
fn fill(source: &Source) {
    let mut buffers = Vec::new();
    let why = loop {
        match source.buffer(SMALL) {
            Ok(buffer) => buffers.push(buffer),
            Err(e) => break e,
        }
    };
    assert_eq!(why.code(), Code::NoBuffer, "{why}");
    assert!(why.to_string().contains("in use"), "{why}");
    assert!(buffers.len() * 512 >= SHARE - LARGE, "{} buffers", buffers.len());
}

#[test]
fn a_share_full_of_small_slots_has_room_for_large_messages() {
    let _alone = alone();
    for reliability in [Reliability::BestEffort, Reliability::Reliable] {
        let _watchdog = Watchdog::start("segments", LIMIT);
        let host = host();
        let (a, b) = (host.session("source"), host.session("sink"));
        let mut qos = Qos::default();
        qos.set_reliability(reliability);
        let sink = b.stream(qos).unwrap().sink("reshaped").unwrap();
        // A reliable source waits so long for slots before it says that there are none.
        let options = SourceOptions { deadline: Duration::from_millis(20), ..SourceOptions::default() };
        let source = a.stream(qos).unwrap().source_with("reshaped", options).unwrap();
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
        fill(&source);
        // Again and again: numbers are used anew, nothing piles up.
        for n in 1..=40u64 {
            let len = if n % 2 == 1 { LARGE - n as usize } else { SMALL };
            source.send(&payload(n, len)).unwrap();
            let message = sink.consume_timeout(LIMIT).unwrap();
            assert_eq!((message.sequence(), message.len()), (n, len));
            assert!(message.to_vec() == payload(n, len), "message {n}");
            drop(message);
            fill(&source);
            let (count, bytes) = mapped();
            assert!(bytes <= 2 * SHARE, "{count} segments of {bytes} bytes, at both ends");
        }
        reconcile([&a, &b], 40, 40);
    }
}

#[test]
fn what_a_sink_holds_stays_readable() {
    let _alone = alone();
    let _watchdog = Watchdog::start("held", LIMIT);
    let host = host();
    let (a, b) = (host.session("source"), host.session("sink"));
    let sink = b.stream(Qos::default()).unwrap().sink("held").unwrap();
    let options = SourceOptions { message_bytes: SMALL, ..SourceOptions::default() };
    let source = a.stream(Qos::default()).unwrap().source_with("held", options).unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    source.send(&payload(1, SMALL)).unwrap();
    let held = sink.consume_timeout(LIMIT).unwrap();
    for n in 2..=9u64 {
        fill(&source);
        let len = if n % 2 == 0 { LARGE / 2 - 1 } else { 5000 };
        source.send(&payload(n, len)).unwrap();
        let message = sink.consume_timeout(LIMIT).unwrap();
        assert!(message.to_vec() == payload(n, len), "message {n}");
        assert_eq!(held.to_vec(), payload(1, SMALL), "the first one, after message {n}");
    }
    drop(held);
    reconcile([&a, &b], 9, 9);
}

#[test]
fn what_is_in_use_is_not_taken() {
    let _alone = alone();
    let _watchdog = Watchdog::start("in use", LIMIT);
    let host = host();
    let (a, b) = (host.session("source"), host.session("sink"));
    let sink = b.stream(Qos::default()).unwrap().sink_with("used", SinkOptions::default()).unwrap();
    let source = a.stream(Qos::default()).unwrap().source("used").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let mut buffers = Vec::new();
    while let Ok(buffer) = source.buffer(SMALL) {
        buffers.push(buffer);
    }
    // One buffer of every segment is kept.
    let per_segment = (2 << 20) / 512;
    let mut n = 0;
    buffers.retain(|_| {
        n += 1;
        n % per_segment == 1
    });
    let why = source.send(&payload(1, LARGE)).unwrap_err();
    assert_eq!(why.code(), Code::NoBuffer, "{why}");
    let emitted = source.send(&payload(1, SMALL)).unwrap();
    assert_eq!(source.outcome(emitted).unwrap().intended, 1);
    drop(buffers);
    source.send(&payload(2, LARGE - 1)).unwrap();
    drop((source, sink));
    reconcile([&a, &b], 2, 0);
}

#[test]
fn a_sink_that_stands_still_gets_what_lies_in_memory_that_it_has_not_mapped_yet() {
    let _alone = alone();
    let _watchdog = Watchdog::start("segments that are not mapped", 2 * LIMIT);
    let (host, insane) = (Host::start(), program("insane-cli", "insane"));
    let mut command = Command::new(&insane);
    command.args(["--json", "perf", "sink", "--qos", "reliability=reliable", "--silence", "60"]);
    let sink = Running::start(command.env("INSANE_SOCKET", host.socket()));
    let session = host.session("source");
    let mut qos = Qos::default();
    qos.set_reliability(Reliability::Reliable);
    let options = SourceOptions { deadline: LIMIT, ..SourceOptions::default() };
    let source = session.stream(qos).unwrap().source_with("perf", options).unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let send = |n: u64| source.send(&payload(n, 64 << 10)).unwrap();
    send(1);
    sink.signal(Signal::STOP);
    // More than are in a segment; the sink goes on after it was waited for in vain.
    let tokens = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(3));
            sink.signal(Signal::CONT);
        });
        (2..=100).map(send).collect::<Vec<_>>()
    });
    let end = Instant::now() + LIMIT;
    let outcomes = || tokens.iter().map(|token| source.outcome(*token).unwrap()).collect::<Vec<_>>();
    while outcomes().iter().any(|outcome| outcome.pending > 0) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(outcomes().iter().all(|outcome| outcome.delivered == 1), "{:?}", outcomes());
    sink.signal(Signal::INT);
    let said = sink.end(LIMIT);
    let said: serde_json::Value = serde_json::from_str(&said.out).expect("one line of JSON");
    assert!(said["received"] == 100 && said["lost"] == 0, "{said}");
}

/// Borrows buffers until there are no more; how many bytes of slots they have, and why there are none.
fn borrow_all<'a>(source: &'a Source, held: &mut Vec<insane::Buffer<'a>>) -> (usize, insane::Error) {
    let before = held.len();
    loop {
        match source.buffer(SMALL) {
            Ok(buffer) => held.push(buffer),
            Err(e) => return ((held.len() - before) * 512, e),
        }
    }
}

#[test]
fn the_streams_of_a_session_together_have_no_more_than_its_quota() {
    let _alone = alone();
    let _watchdog = Watchdog::start("together", LIMIT);
    let host = host();
    let a = host.session("many");
    let options = SourceOptions { message_bytes: SMALL, ..SourceOptions::default() };
    let sources: Vec<Source> = (0..5)
        .map(|n| {
            let stream = a.stream_named(&format!("s{n}"), Qos::default()).unwrap();
            stream.source_with("c", options.clone()).unwrap()
        })
        .collect();
    let mut held: Vec<_> = sources.iter().map(|_| Vec::new()).collect();
    let took: Vec<_> = sources.iter().zip(&mut held).map(|(source, held)| borrow_all(source, held)).collect();
    let all: usize = took.iter().map(|(bytes, _)| bytes).sum();
    assert!((3 * SHARE / 2..=2 * SHARE).contains(&all), "{all} bytes, {took:?}");
    let (count, bytes) = mapped();
    assert!(bytes <= 2 * SHARE, "{count} segments of {bytes} bytes");
    // The first has what one stream may have, the last what was left.
    assert!(took[0].1.to_string().contains("the stream has"), "{took:?}");
    let why = &took[4].1;
    assert_eq!(why.code(), Code::NoBuffer);
    assert!(why.to_string().contains("quota.memory_mib_per_session"), "{why}");
    // Nor is there room for a source that begins.
    let begins = || a.stream_named("begins", Qos::default()).unwrap().source_with("c", options.clone());
    assert_eq!(begins().unwrap_err().code(), Code::NoBuffer);
    // What one stream no longer needs serves another.
    held[0].clear();
    let start = Instant::now();
    while sources[4].buffer(LARGE / 4).is_err() {
        assert!(start.elapsed() < LIMIT, "what the first stream does not need is not given");
        std::thread::sleep(Duration::from_millis(1));
    }
    let (count, bytes) = mapped();
    assert!(bytes <= 2 * SHARE, "{count} segments of {bytes} bytes");
}
