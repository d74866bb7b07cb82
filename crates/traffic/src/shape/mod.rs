//! Stage 5, the shaper: whether a queue may send now. At most one per queue; it never drops, and it never holds back any
//! other queue.

use crate::spec::ShaperSpec;
use crate::stats::StatMap;
use crate::time::Time;

mod token_bucket;

pub use token_bucket::TokenBucket;

/// Whether a packet may leave its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Now.
    Now,
    /// Not before this instant.
    At(Time),
}

/// Delays a queue. A time-aware gate is one more of these: it answers when the gate opens.
pub trait Shaper: Send {
    /// Whether a packet of `size` bytes may leave. Asking changes nothing but the clock.
    fn ready(&mut self, now: Time, size: u32) -> Readiness;

    /// A packet of `size` bytes has left.
    fn sent(&mut self, now: Time, size: u32);

    /// Takes new parameters and keeps its state; false if they are for another kind of shaper.
    fn modify(&mut self, _spec: &ShaperSpec) -> bool {
        false
    }

    /// Adds its statistics.
    fn stats(&self, _out: &mut StatMap) {}
}
