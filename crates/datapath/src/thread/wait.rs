//! How a thread that polls waits, and how it is woken.

use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// How a thread waits while there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// It looks again and again, and never sleeps: for a core of its own.
    Spin,
    /// It looks again and again for so long at least and at most, as long as that saves sleeps ([`Looking`]), offering its core to
    /// others between two looks, and then sleeps.
    Adaptive {
        /// At least.
        least: Duration,
        /// At most.
        most: Duration,
    },
    /// It sleeps at once.
    Sleep,
}

/// To what the time of looking grows first.
const GROWS: Duration = Duration::from_micros(20);

/// How long to look again and again before going to sleep: longer, as long as that would have saved sleeps, and less once it is in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Looking {
    least: Duration,
    most: Duration,
    now: Duration,
}

impl Looking {
    /// So long at least, and at most, which is never less.
    #[must_use]
    pub fn new(least: Duration, most: Duration) -> Self {
        Self { least, most: most.max(least), now: least }
    }

    /// How long, now.
    #[inline]
    #[must_use]
    pub const fn time(&self) -> Duration {
        self.now
    }

    /// It has slept, and now `idle` has passed since there was last something to do; `woken`, there is something again, which a sleep
    /// that a timer ended says nothing of.
    pub fn slept(&mut self, idle: Duration, woken: bool) {
        if idle >= self.most {
            self.now = (self.now / 2).max(self.least);
        } else if woken {
            self.now = (self.now * 2).max(GROWS).min(self.most);
        }
    }
}

/// A counter that wakes whoever waits for it to be readable (eventfd(2)). Clones are the same.
#[derive(Debug, Clone)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    /// One that has not rung.
    ///
    /// # Errors
    /// The operating system's, for want of descriptors.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Makes it readable. Does not wait.
    pub fn ring(&self) {
        // Fails only when the count is at its top, and then its owner is awake.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Makes it readable no more. Does not wait.
    pub fn clear(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
