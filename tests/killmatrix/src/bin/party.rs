//! A source or a sink that the kill matrix holds and kills: `party source|sink SOCKET CHANNEL BOARD best-effort|reliable`.
#![forbid(unsafe_code)]

use insane::{Code, Qos, Reliability, Session, Sink, SinkOptions, Source, SourceOptions, Stream, Wait};
use insane_tests_killmatrix::board::{Board, Command, Word};
use insane_tests_killmatrix::cell::LARGE;
use insane_tests_killmatrix::law::PACKED;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The message from which on some are too large for the first segment.
const GROW_AT: u64 = 1500;

/// Opens with patience: a runtime may die in the middle of it.
fn patiently<T>(what: &str, mut open: impl FnMut() -> insane::Result<T>) -> T {
    let end = Instant::now() + Duration::from_secs(15);
    loop {
        match open() {
            Ok(value) => return value,
            Err(e) if Instant::now() >= end => panic!("{what}: {e}"),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Ends with the test: a party whose parent is gone has no use.
fn end_with_parent() {
    let parent = rustix::process::getppid();
    std::thread::spawn(move || {
        while rustix::process::getppid() == parent {
            std::thread::sleep(Duration::from_millis(200));
        }
        std::process::exit(3);
    });
}

/// The longest stall of a thread that only wants to run every half millisecond: what the machine does to everybody.
fn hiccups() -> Arc<AtomicU64> {
    let worst = Arc::new(AtomicU64::new(0));
    let shared = worst.clone();
    std::thread::spawn(move || {
        let mut last = Instant::now();
        loop {
            std::thread::sleep(Duration::from_micros(500));
            shared.fetch_max(u64::try_from(last.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
            last = Instant::now();
        }
    });
    worst
}

fn main() {
    end_with_parent();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, socket, channel, board, kind] = &arguments[..] else { panic!("source|sink SOCKET CHANNEL BOARD KIND") };
    let board = Board::open(Path::new(board));
    let socket = PathBuf::from(socket);
    let session = patiently("session", || Session::builder(role.as_str()).socket(&socket).open());
    let mut qos = Qos::default();
    if kind == "reliable" {
        qos.set_reliability(Reliability::Reliable);
    }
    let stream = patiently("stream", || session.stream(qos));
    if role == "source" {
        emit(&stream, channel, &board)
    } else {
        consume(&stream, channel, &board, kind == "reliable")
    }
}

/// Runs of small messages, which are packed on best-effort streams, and others.
fn length(n: u64) -> usize {
    match n {
        n if n >= GROW_AT && n.is_multiple_of(64) => 5000,
        n if n % CYCLE < PACKED => 40,
        _ => 300,
    }
}

/// Whether more follows at once: small messages, which wait for one that is by itself, then larger ones, packed with the last.
fn waits(n: u64) -> bool {
    length(n) <= 300 && ![PACKED, CYCLE - 1].contains(&(n % CYCLE))
}

const CYCLE: u64 = 2 * PACKED + 1;

fn emit(stream: &Stream, channel: &str, board: &Board) -> ! {
    // A reliable source waits for a sink that is held for as long as a cell may take.
    let options = SourceOptions { message_bytes: 300, deadline: Duration::from_secs(60), ..SourceOptions::default() };
    let source: Source = patiently("source", || stream.source_with(channel, options.clone()));
    board.set(Word::Open, 1);
    let worst = hiccups();
    let mut n = 0u64;
    loop {
        let command = board.get(Word::Command);
        if Command::of(command) == Command::Measure && board.get(Word::Done) != command {
            worst.store(0, Ordering::Relaxed);
        }
        board.set(Word::Stall, worst.load(Ordering::Relaxed));
        if Command::of(command) == Command::Pause {
            let audit = stream.audit();
            board.set(Word::Total, audit.total);
            board.set(Word::Held, audit.held);
            board.set(Word::Lost, audit.lost);
            board.set(Word::Doubly, audit.doubly_owned);
            board.set(Word::Sinks, source.sinks() as u64);
            board.set(Word::Done, command);
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let mut large = Command::of(command) == Command::Reshape && board.get(Word::Done) != command;
        if !large {
            board.set(Word::Done, command);
        }
        board.set(Word::Sinks, source.sinks() as u64);
        for _ in 0..10 {
            let payload = vec![n as u8; if large { LARGE } else { length(n) }];
            let waits = payload.len() <= 300 && waits(n);
            match if waits { source.send_more(&payload) } else { source.send(&payload) } {
                Ok(_) => {
                    n += 1;
                    if std::mem::take(&mut large) {
                        board.set(Word::Done, command);
                    }
                    if !waits {
                        board.set(Word::Count, n);
                    }
                }
                // The slots that a stopped sink holds are its own; this source waits for its share.
                Err(e) if e.code() == Code::NoBuffer => break,
                Err(e) => panic!("emit: {e}"),
            }
            if n == GROW_AT + 64 {
                board.set(Word::Grown, 1);
            }
        }
        flush(&source);
        board.set(Word::Count, n);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends what waits; until then the application does not count it.
fn flush(source: &Source) {
    source.flush().expect("this process has not forked");
}

fn consume(stream: &Stream, channel: &str, board: &Board, reliable: bool) -> ! {
    let options = SinkOptions { wait: Wait::Sleep, ..SinkOptions::default() };
    let mut sink: Sink = patiently("sink", || stream.sink_with(channel, options.clone()));
    board.set(Word::Open, 1);
    let worst = hiccups();
    // The number of the last message of each source.
    let (mut numbers, mut disorder) = (HashMap::new(), 0u64);
    let (mut seen, mut wrong, mut gap, mut last) = (0u64, 0u64, 0u64, Instant::now());
    loop {
        let command = board.get(Word::Command);
        if board.get(Word::Done) != command {
            match Command::of(command) {
                Command::Reopen => {
                    drop(sink);
                    // What is emitted in between is not for it.
                    numbers.clear();
                    sink = patiently("sink", || stream.sink_with(channel, options.clone()));
                }
                Command::Measure => {
                    (gap, last) = (0, Instant::now());
                    worst.store(0, Ordering::Relaxed);
                }
                _ => {}
            }
            board.set(Word::Done, command);
        }
        match sink.consume_timeout(Duration::from_millis(20)) {
            Ok(message) => {
                seen += 1;
                board.set(Word::Count, seen);
                let number = message.sequence();
                let before = numbers.insert(message.source(), number);
                if before.is_some_and(|b| number <= b || reliable && number != b + 1) {
                    disorder += 1;
                    board.set(Word::Disorder, disorder);
                }
                let bytes = message.to_vec();
                let length = bytes.len();
                // All bytes are the same: those from the second on are those before the last.
                let same = bytes.get(1..).is_some_and(|rest| rest == &bytes[..length - 1]);
                if ![40, 300, 5000, LARGE].contains(&length) || !same {
                    wrong += 1;
                    board.set(Word::Wrong, wrong);
                }
            }
            Err(e) if e.code() == Code::Timeout => {}
            Err(e) => panic!("consume: {e}"),
        }
        let pause = u64::try_from(last.elapsed().as_nanos()).unwrap_or(u64::MAX);
        last = Instant::now();
        if pause > gap {
            gap = pause;
            board.set(Word::Gap, gap);
        }
        board.set(Word::Stall, worst.load(Ordering::Relaxed));
    }
}
