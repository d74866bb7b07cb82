//! Messages that follow each other at once travel together, and are handed out together: nothing of what applications see changes.

use insane::{Qos, Session, Sink, Source};
use insane_tests_host::{Watchdog, payload};
use insane_tests_network::cables::{Cables, accelerated};
use insane_tests_network::{LIMIT, eventually, hosts, law, law_holds, reliable};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");
const MESSAGES: u64 = 20_000;

/// So many are emitted before the sinks have them all: fewer than their links and the sockets hold.
const WINDOW: u64 = 256;

/// Runs of larger ones of all sizes that are packed, some of them longer than a frame on Ethernet, with small ones, empty ones and
/// such as are never packed between.
fn length(n: u64) -> usize {
    match n % 61 {
        60 => 2049,
        20..24 => (n % 65) as usize,
        31 => 5000,
        40..60 => 1024,
        m => 65 + (m * m * 29 % 1984) as usize,
    }
}

/// Takes all messages, `most` at once, and says how far it is.
fn take_all(sink: &Sink, most: usize, seen: &AtomicU64) {
    let mut next = 1;
    while next <= MESSAGES {
        sink.consume_each(most, Some(LIMIT), |message| {
            assert_eq!((message.sequence(), message.len()), (next, length(next)));
            assert!(message.to_vec() == payload(next, length(next)), "message {next} is changed");
            next += 1;
        })
        .unwrap_or_else(|e| panic!("message {next}: {e}"));
        seen.store(next - 1, Ordering::Release);
    }
}

fn emit_all(source: &Source, seen: &[AtomicU64]) {
    for n in 1..=MESSAGES {
        source.wait_for_room(LIMIT).unwrap();
        let mut buffer = source.buffer(length(n)).unwrap();
        buffer.copy_from_slice(&payload(n, length(n)));
        // Now and then one does not wait for more.
        if n.is_multiple_of(97) { source.emit(buffer) } else { source.emit_more(buffer) }.unwrap();
        if n.is_multiple_of(WINDOW) || n == MESSAGES {
            source.flush().unwrap();
            assert!(eventually(|| seen.iter().all(|seen| seen.load(Ordering::Acquire) >= n)), "after {n}: {seen:?}");
        }
    }
}

/// Sinks there that take one, some and many messages at once.
fn every_message_comes_once_and_in_order(here: &Session, there: &[&Session], qos: Qos) {
    let source = here.stream(qos).unwrap().source("packs").unwrap();
    let mut sinks = Vec::new();
    for (session, most) in there.iter().flat_map(|session| [(session, 1), (session, 32), (session, usize::MAX)]) {
        sinks.push((session.stream(qos).unwrap().sink("packs").unwrap(), most));
    }
    assert_eq!(source.wait_for_sinks(sinks.len(), LIMIT), sinks.len());
    let seen: Vec<AtomicU64> = sinks.iter().map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for ((sink, most), seen) in sinks.iter().zip(&seen) {
            scope.spawn(move || take_all(sink, *most, seen));
        }
        emit_all(&source, &seen);
    });
    assert!(eventually(|| law_holds(here)), "{}", law(here));
}

#[test]
fn between_hosts_whose_frames_are_large() {
    let _watchdog = Watchdog::start("packs", TEST);
    let hosts = hosts(2, |_, _| ());
    let (here, there) = (hosts[0].session("source"), hosts[1].session("sinks"));
    every_message_comes_once_and_in_order(&here, &[&there], Qos::default());
    every_message_comes_once_and_in_order(&here, &[&there], reliable());
}

#[test]
fn between_hosts_whose_frames_are_small_and_to_several() {
    let _watchdog = Watchdog::start("packs over a cable", TEST);
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, |_| ()));
    let (here, there, too) = (one.session("source"), two.session("sinks"), two.session("more sinks"));
    for qos in [Qos::default(), reliable(), accelerated(Qos::default()), accelerated(reliable())] {
        every_message_comes_once_and_in_order(&here, &[&there, &too], qos);
    }
}
