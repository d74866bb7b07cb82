//! Spinning where others may want the core.
//!
//! Purpose: who waits adaptively looks again and again for a while before it sleeps, and where whom it waits for has no core but
//! this one, lets it have that. Non-purpose: sleeping (`insane_shm::wait`). See ADR 13.

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

/// Lets others have the core. Whether somebody ran.
pub(crate) fn give_way() -> bool {
    let before = Instant::now();
    rustix::thread::sched_yield();
    before.elapsed() > NOBODY
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
    pub(crate) fn goes_on(&mut self) -> bool {
        self.began.elapsed() < SPIN && !self.offers()
    }

    /// Whether others used the core when it was last offered.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// A rest between two looks of one who waits for somebody who may need this core, and who makes no difference between a
    /// waiter asleep and one that looks. Whether to look once more; not if it took long already.
    pub(crate) fn rests(&mut self) -> bool {
        if self.wanted {
            self.wanted = give_way();
        } else if !self.offers() {
            std::hint::spin_loop();
        }
        self.began.elapsed() < SPIN
    }

    fn offers(&mut self) -> bool {
        if self.offered.elapsed() < TURN {
            return false;
        }
        self.wanted = give_way();
        self.offered = Instant::now();
        self.wanted
    }
}

/// What a waiter remembers from one wait to the next: whether others want its core.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// Waits until the next trial.
    left: AtomicU32,
}

impl Crowd {
    /// Whether others are known to want the core.
    #[inline]
    pub(crate) fn is_known(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    /// Whether to sleep at once this time: whoever spins holds up the one that it waits for.
    pub(crate) fn is_there(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            // Threads that share a waiter may lose a count.
            self.left.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    pub(crate) fn seen(&self) {
        self.left.store(WAITS_PER_TRIAL, Ordering::Relaxed);
    }
}
