//! Stage 2, the policer: whether a queue's traffic is within its rate. At most one per queue.

use crate::classify::PacketView;
use crate::packet::QueueId;
use crate::spec::PolicerSpec;
use crate::stats::StatMap;
use crate::time::Time;

mod meter;
mod tricolour;

pub use meter::{Colour, Meter, TokenClock};
pub use tricolour::Tricolour;

/// What a policer decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet goes on to its queue.
    Pass,
    /// It goes to another queue instead, without passing that queue's policer.
    Redirect(QueueId),
    /// It is dropped.
    Drop,
}

/// Decides over packets before they are queued.
pub trait Policer: Send {
    /// Decides over one packet. Every packet that is offered counts, also one that is dropped later.
    fn police(&mut self, now: Time, packet: &PacketView<'_>) -> Verdict;

    /// The queue of the last [`Verdict::Redirect`] does not exist; the packet goes to the default queue.
    fn misdirected(&mut self) {}

    /// Takes new parameters and keeps its state; false if they are for another kind of policer.
    fn modify(&mut self, _spec: &PolicerSpec) -> bool {
        false
    }

    /// Adds its statistics.
    fn stats(&self, _out: &mut StatMap) {}
}
