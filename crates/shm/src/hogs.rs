//! Who does not give a core back.
//!
//! Purpose: who waits for somebody that may need this very core offers it, by `sched_yield`, between two looks. Whom it waits for
//! takes it for some microseconds and leaves what was waited for. A process that computes takes it for a time slice, some
//! milliseconds, where who sleeps goes before it as soon as it is woken. This tells the two apart, by how long an offer took and what
//! had been done once there was nothing more to do; then it is better to sleep than to offer. Non-purpose: offering and sleeping.
//!
//! Threads that share one may lose a judgement to each other, no more.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// An offer that takes so long gave somebody a time slice: the kernel's are 0.7 ms at least, mostly 3 to 4.
const SLICE: Duration = Duration::from_micros(500);

/// Who got it was no hog if it left something to do for each so long.
const WORTH: Duration = Duration::from_micros(20);

/// Whoever runs once may be a stranger that was due, or another guest of the machine: one that stays comes again within so long.
const AGAIN: Duration = Duration::from_millis(50);

/// How long nothing is offered at first, and at most as it is twice as long each time.
const HOLD: (Duration, Duration) = (Duration::from_millis(4), Duration::from_secs(4));

/// What is known of others on this core. Times are since any one moment.
#[derive(Debug, Default)]
pub struct Hogs {
    /// How long an offer took that is to be judged, and what had been done before.
    took: AtomicU64,
    done: AtomicU64,
    /// When one was last found, and for how long it was held then: not at all if it had come for the first time.
    found: AtomicU64,
    held: AtomicU64,
    /// Until when nothing is to be offered.
    until: AtomicU64,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Hogs {
    /// An offer took so long. `done`: how much has ever been done, in what takes about a microsecond or less; asked if need be.
    #[inline]
    pub fn offered(&self, took: Duration, done: impl FnOnce() -> u64) {
        if took >= SLICE {
            self.done.store(done(), Relaxed);
            self.took.store(nanos(took), Relaxed);
        }
    }

    /// Whether to sleep rather than to offer the core: asked when there is nothing to do, or between so much and so much of it.
    #[inline]
    pub fn are_there(&self, now: impl FnOnce() -> Duration, done: impl FnOnce() -> u64) -> bool {
        let (took, until) = (self.took.load(Relaxed), self.until.load(Relaxed));
        (took != 0 || until != 0) && self.judge(took, until, nanos(now()), done)
    }

    #[cold]
    #[inline(never)]
    fn judge(&self, took: u64, mut until: u64, now: u64, done: impl FnOnce() -> u64) -> bool {
        if took != 0 {
            self.took.store(0, Relaxed);
            let gained = done().wrapping_sub(self.done.load(Relaxed));
            if gained.saturating_mul(nanos(WORTH)) < took {
                let (found, held) = (self.found.swap(now, Relaxed), self.held.load(Relaxed));
                let again =
                    found != 0 && now.saturating_sub(found) < took.saturating_add(held).saturating_add(nanos(AGAIN));
                let hold = if again { held.saturating_mul(2).clamp(nanos(HOLD.0), nanos(HOLD.1)) } else { 0 };
                self.held.store(hold, Relaxed);
                until = now.saturating_add(hold);
            }
        }
        let there = now < until;
        self.until.store(if there { until } else { 0 }, Relaxed);
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// An offer at `at`, after which so much is done. Whether not to offer again.
    fn offer(hogs: &Hogs, at: u64, took: u64, gain: u64) -> bool {
        hogs.offered(Duration::from_nanos(took), || 7);
        hogs.are_there(|| Duration::from_nanos(at), || 7 + gain)
    }

    fn is_there(hogs: &Hogs, at: u64) -> bool {
        hogs.are_there(|| Duration::from_nanos(at), || unreachable!("nothing is to be judged"))
    }

    #[test]
    fn who_takes_a_slice_twice_and_leaves_nothing_is_held_off_longer_and_longer() {
        let hogs = Hogs::default();
        assert!(!is_there(&hogs, 1));
        assert!(!offer(&hogs, 100 * MS, 4 * MS, 1), "a stranger that was due");
        assert!(offer(&hogs, 108 * MS, 4 * MS, 1));
        assert!(is_there(&hogs, 112 * MS - 1) && !is_there(&hogs, 112 * MS));
        let (mut at, mut holds) = (112 * MS, Vec::new());
        for _ in 0..12 {
            at += 4 * MS;
            assert!(offer(&hogs, at, 4 * MS, 0));
            let began = at;
            while is_there(&hogs, at) {
                at += MS;
            }
            holds.push((at - began) / MS);
        }
        assert_eq!(holds, [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4000, 4000, 4000]);
        // Gone, and another one much later.
        at += 60 * MS;
        assert!(!offer(&hogs, at, 4 * MS, 0) && offer(&hogs, at + 8 * MS, 4 * MS, 0));
        assert!(!is_there(&hogs, at + 12 * MS));
    }

    #[test]
    fn who_leaves_something_to_do_or_is_short_is_none() {
        let hogs = Hogs::default();
        for at in 1..100 {
            assert!(!offer(&hogs, at * MS, MS, 50), "it leaves one for each 20 us");
            hogs.offered(Duration::from_micros(499), || unreachable!("that is no slice"));
        }
        assert!(!offer(&hogs, 100 * MS, MS, 49) && offer(&hogs, 101 * MS, MS, 49));
    }
}
