//! Waiting for any of several sinks.

use crate::error::{Code, Error, Result};
use crate::sink::{SPIN, Sink};
use insane_shm::wait::{MAX_WAIT_WORDS, wait_any as sleep_on};
use std::time::{Duration, Instant};

/// Waits until one of the sinks has a message, at most `timeout` (for ever without one), and returns its index. The sinks are
/// looked at round robin from `start` on: pass the last index plus one, and a busy sink does not starve the others. Spins
/// for a short while, then sleeps.
///
/// # Errors
/// [`Code::Timeout`], [`Code::Closed`] when a sink was closed, [`Code::InvalidArgument`] without sinks, [`Code::Forked`].
pub fn wait_any(sinks: &[&Sink], start: usize, timeout: Option<Duration>) -> Result<usize> {
    if sinks.is_empty() {
        return Err(Error::new(Code::InvalidArgument, "no sinks to wait for"));
    }
    let began = Instant::now();
    let mut spun = began;
    loop {
        for turn in 0..sinks.len() {
            let index = (start.wrapping_add(turn)) % sinks.len();
            if sinks[index].has_message()? {
                return Ok(index);
            }
        }
        let now = Instant::now();
        let left = timeout.map(|t| t.saturating_sub(now - began));
        if left == Some(Duration::ZERO) {
            return Err(Code::Timeout.into());
        }
        if now - spun >= SPIN {
            sleep(sinks, left);
            spun = Instant::now();
        }
    }
}

fn sleep(sinks: &[&Sink], timeout: Option<Duration>) {
    let mut sleeps = Vec::with_capacity(sinks.len());
    for sink in sinks {
        match sink.announce() {
            Some(sleep) => sleeps.push((*sink, sleep)),
            None => break,
        }
    }
    if sleeps.len() == sinks.len() {
        let words: Vec<_> = sleeps.iter().flat_map(|(_, s)| s.words.iter().cloned()).collect();
        // More links than one thread can sleep on: look at the rest in slices.
        let slice = (words.len() > MAX_WAIT_WORDS).then_some(Duration::from_millis(1));
        let timeout = match (timeout, slice) {
            (Some(t), Some(s)) => Some(t.min(s)),
            (t, s) => t.or(s),
        };
        sleep_on(&words, timeout);
    }
    for (sink, sleep) in sleeps {
        sink.awake(&sleep);
    }
}
