//! Spinning where others may want the core.
//!
//! Purpose: who waits adaptively looks again and again for a while before it sleeps, and where whom it waits for has no core but
//! this one, lets it have that. Non-purpose: sleeping (`insane_shm::wait`). See ADR 13.

use crate::rx::now_ns;
use insane_shm::hogs::Hogs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long an adaptive waiter spins before it sleeps: about what a sleep and a wake-up cost on a virtual machine.
pub(crate) const SPIN: Duration = Duration::from_micros(50);

/// How long it spins between two offers of its core to others.
const TURN: Duration = Duration::from_micros(4);

/// A yield that takes longer let somebody else run.
const NOBODY: Duration = Duration::from_micros(1);

/// Waits on a core that others want between two that try whether they still do.
const WAITS_PER_TRIAL: u32 = 64;

/// Lets others have the core. How long that took.
fn give_way() -> Duration {
    let before = Instant::now();
    rustix::thread::sched_yield();
    before.elapsed()
}

/// What who waits knows of others on its core that do not give it back, and how to ask how much there has been for it.
pub(crate) struct Others<'a, F: Fn() -> u64> {
    pub(crate) hogs: &'a Hogs,
    pub(crate) done: F,
}

impl<F: Fn() -> u64> Others<'_, F> {
    /// Whether to sleep at once, without offering the core first.
    #[inline]
    pub(crate) fn are_hogs(&self) -> bool {
        self.hogs.are_there(|| Duration::from_nanos(now_ns()), &self.done)
    }

    /// Lets them have the core. Whether somebody ran.
    pub(crate) fn give_way(&self) -> bool {
        let took = give_way();
        self.hogs.offered(took, &self.done);
        took > NOBODY
    }
}

/// One wait, spinning.
#[derive(Debug)]
pub(crate) struct Spin {
    began: Instant,
    offered: Instant,
    wanted: bool,
}

impl Spin {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self { began: now, offered: now, wanted: false }
    }

    /// Whether to look once more: not if it took long already, and not if others have used the core when it was offered.
    pub(crate) fn goes_on(&mut self, others: &Others<'_, impl Fn() -> u64>) -> bool {
        self.began.elapsed() < SPIN && !self.offers(|| others.give_way())
    }

    /// Whether others used the core when it was last offered.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// A rest between two looks of one who waits for somebody who may need this core, and who makes no difference between a
    /// waiter asleep and one that looks. Whether to look once more; not if it took long already.
    pub(crate) fn rests(&mut self) -> bool {
        if self.wanted {
            self.wanted = give_way() > NOBODY;
        } else if !self.offers(|| give_way() > NOBODY) {
            std::hint::spin_loop();
        }
        self.began.elapsed() < SPIN
    }

    fn offers(&mut self, give_way: impl FnOnce() -> bool) -> bool {
        if self.offered.elapsed() < TURN {
            return false;
        }
        self.wanted = give_way();
        self.offered = Instant::now();
        self.wanted
    }
}

/// What a waiter remembers from one wait to the next: whether others want its core. Something else runs now and then on every
/// core; only who is in the way twice in a row is taken for one that stays.
#[derive(Debug, Default)]
pub(crate) struct Crowd(AtomicU32);

/// Nobody is known, somebody was there at the last trial, and above that the waits until the next.
const NONE: u32 = 0;
const ONCE: u32 = 1;

impl Crowd {
    /// Whether others are known to want the core.
    #[inline]
    pub(crate) fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed) > ONCE
    }

    /// Whether to sleep at once this time: whoever spins holds up the one that it waits for.
    pub(crate) fn is_there(&self) -> bool {
        let known = self.0.load(Ordering::Relaxed);
        if known > ONCE {
            // Threads that share a waiter may lose a count.
            self.0.store(known - 1, Ordering::Relaxed);
        }
        known > ONCE
    }

    /// A trial's end: whether others used the core.
    pub(crate) fn tried(&self, wanted: bool) {
        let next = match (wanted, self.0.load(Ordering::Relaxed)) {
            (false, _) => NONE,
            (true, NONE) => ONCE,
            (true, _) => ONCE + WAITS_PER_TRIAL,
        };
        self.0.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_one_that_was_there_twice_and_is_looked_for_again() {
        let crowd = Crowd::default();
        crowd.tried(true);
        assert!(!crowd.is_known() && !crowd.is_there(), "something runs now and then");
        crowd.tried(false);
        crowd.tried(true);
        assert!(!crowd.is_there());
        crowd.tried(true);
        assert!(crowd.is_known());
        assert_eq!((0..1000).take_while(|_| crowd.is_there()).count(), WAITS_PER_TRIAL as usize);
        crowd.tried(true);
        assert!((0..WAITS_PER_TRIAL).all(|_| crowd.is_there()));
        crowd.tried(false);
        assert!(!crowd.is_known());
    }

    #[test]
    fn a_spin_has_an_end() {
        let (mut spin, began) = (Spin::new(), Instant::now());
        let hogs = Hogs::default();
        let others = Others { hogs: &hogs, done: || 0 };
        while spin.goes_on(&others) {}
        assert!(spin.is_wanted() || began.elapsed() >= SPIN);
        let (mut spin, began) = (Spin::new(), Instant::now());
        while spin.rests() {}
        assert!(began.elapsed() >= SPIN);
    }
}
