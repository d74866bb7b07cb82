//! Load that shows what became of it: numbers that a source counts up and a sink takes.

use crate::{eventually, law, law_holds};
use insane::{Message, Session, Sink, Source};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// How often a number is in its message: those of up to 1200 bytes fit a frame of Ethernet, of which some take more than 600, and the
/// longest does not.
fn times(n: u32) -> usize {
    [50, 300, 50, 120, 375][n as usize % 5]
}

/// How fast numbers are emitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Some, and then a millisecond of nothing.
    Steady,
    /// As fast as the source gets buffers.
    Full,
}

/// Emits numbers until it is told to stop; how many.
fn count_up(source: &Source, pace: Pace, stop: &AtomicBool) -> u32 {
    let mut next = 0u32;
    while !stop.load(Ordering::Relaxed) {
        source.send(&next.to_le_bytes().repeat(times(next))).expect("it is taken");
        next += 1;
        if pace == Pace::Steady && next.is_multiple_of(16) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    next
}

/// The number that a message is made of.
fn number_of(message: &Message<'_>) -> u32 {
    let bytes = message.to_vec();
    let number = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    assert!(bytes == number.to_le_bytes().repeat(times(number)), "{number} is not whole");
    number
}

/// Takes numbers until nothing comes any more after `over` was told; all of them.
fn take_numbers(sink: &Sink, over: &AtomicBool, seen: &AtomicUsize) -> Vec<u32> {
    let mut got = Vec::new();
    loop {
        match sink.consume_timeout(Duration::from_millis(300)) {
            Ok(message) => {
                got.push(number_of(&message));
                seen.store(got.len(), Ordering::Relaxed);
            }
            Err(_) if over.load(Ordering::Relaxed) => return got,
            Err(_) => {}
        }
    }
}

/// Numbers go from a source to a sink for as long as `meanwhile` takes, which is told how many have come. How many were sent, and
/// which came; from a reliable source all are waited for.
///
/// # Panics
/// As `meanwhile`, or when a number is not whole.
pub fn numbers(source: &Source, sink: &Sink, reliable: bool, meanwhile: impl FnOnce(&AtomicUsize)) -> (u32, Vec<u32>) {
    numbers_at(Pace::Steady, source, sink, reliable, meanwhile)
}

/// As [`numbers`], this fast.
///
/// # Panics
/// As [`numbers`].
pub fn numbers_at(
    pace: Pace,
    source: &Source,
    sink: &Sink,
    reliable: bool,
    meanwhile: impl FnOnce(&AtomicUsize),
) -> (u32, Vec<u32>) {
    let (stop, over, seen) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| count_up(source, pace, &stop));
        let taker = scope.spawn(|| take_numbers(sink, &over, &seen));
        // Ends the threads even if something here fails.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| meanwhile(&seen)));
        stop.store(true, Ordering::Relaxed);
        let sent = sender.join();
        let all = sent.as_ref().map_or(0, |sent| *sent as usize);
        eventually(|| !reliable || seen.load(Ordering::Relaxed) >= all || taker.is_finished());
        over.store(true, Ordering::Relaxed);
        let got = taker.join();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (sent.expect("it sends"), got.expect("it takes"))
    })
}

/// Waits until messages go on coming, whatever was lost on the way.
///
/// # Panics
/// When none come.
pub fn flows(seen: &AtomicUsize, session: &Session) {
    let before = seen.load(Ordering::Relaxed);
    assert!(eventually(|| seen.load(Ordering::Relaxed) > before + 100), "nothing comes; {}", law(session));
}

/// Takes what still comes until every message is in a count: what a sink has and nobody takes is in none.
///
/// # Panics
/// When some are not, or a number is not whole.
pub fn take_the_rest(sink: &Sink, got: &mut Vec<u32>, session: &Session) {
    let counted = eventually(|| {
        while let Some(message) = sink.try_consume().expect("it is open") {
            got.push(number_of(&message));
        }
        law_holds(session)
    });
    assert!(counted, "{}", law(session));
}

/// Of the numbers that were sent, those that came are in order, each once, and all of them from a reliable source.
///
/// # Panics
/// When they are not.
pub fn in_order(sent: u32, got: &[u32], reliable: bool, session: &Session) {
    let odd: Vec<_> = got.windows(2).enumerate().filter(|(_, pair)| pair[0] >= pair[1]).take(8).collect();
    assert!(odd.is_empty(), "reordered or repeated, of {sent}: {odd:?}");
    assert!(got.len() > 400, "{} of {sent}", got.len());
    if reliable {
        assert!(got.iter().copied().eq(0..sent), "{} of {sent}; {}", got.len(), law(session));
    }
}

/// [`in_order`], and the counts agree.
///
/// # Panics
/// When they are not or do not.
pub fn are_whole(sent: u32, got: &[u32], reliable: bool, session: &Session) {
    in_order(sent, got, reliable, session);
    assert!(eventually(|| law_holds(session)), "{}", law(session));
}
