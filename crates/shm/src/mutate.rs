//! Switches of test builds (feature `mutate`) that take out one fence, re-check or check each, so that named tests can
//! show that each is needed. Without the feature every switch is the constant `false` and costs nothing.

/// One piece of the protocols that a test build can leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Mutation {
    /// The sleeper's sequentially consistent fence between saying that it sleeps and looking again.
    SleeperFence = 1,
    /// The sleeper's second look.
    SleeperRecheck = 2,
    /// The waker's fence between publishing and looking for a sleeper.
    WakerFence = 3,
    /// The check that a returned slot is one of the segment's.
    ReturnRange = 4,
    /// The check that the link holds the slot it returns.
    ReturnHeld = 5,
    /// The check that no more credit comes back than was used.
    ReturnCredit = 6,
    /// The Release of an entry's publication.
    PublishRelease = 7,
    /// The fence of the biased lock's fast path.
    BiasedFence = 8,
}

#[cfg(feature = "mutate")]
mod switch {
    use super::Mutation;
    use std::sync::atomic::{AtomicU32, Ordering};

    static OFF: AtomicU32 = AtomicU32::new(0);

    /// Leaves `mutation` out from now on in this process; `None` puts all back.
    pub fn leave_out(mutation: Option<Mutation>) {
        OFF.store(mutation.map_or(0, |m| m as u32), Ordering::SeqCst);
    }

    /// Whether `mutation` is left out.
    #[must_use]
    pub fn left_out(mutation: Mutation) -> bool {
        OFF.load(Ordering::Relaxed) == mutation as u32
    }
}

#[cfg(feature = "mutate")]
pub use switch::{leave_out, left_out};

/// Whether `mutation` is left out: never, in a build without the feature.
#[cfg(not(feature = "mutate"))]
#[must_use]
#[inline(always)]
pub const fn left_out(_mutation: Mutation) -> bool {
    false
}
