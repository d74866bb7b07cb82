//! Stage 4, the scheduler: which queue the next packet comes from.

use crate::packet::QueueId;
use crate::spec::{SchedulerSpec, WeightSpec};
use crate::stats::StatMap;
use crate::time::Time;

mod conditional;
mod drr;
mod fq_codel;
mod list;
mod round_robin;
mod strict;
mod weighted;

pub use conditional::Conditional;
pub use drr::Drr;
pub use fq_codel::FqCodel;
pub use round_robin::RoundRobin;
pub(crate) use strict::MAX_LEVELS;
pub use strict::Strict;
pub use weighted::Weighted;

/// Weights in the order of their queues.
fn sorted(weights: &[WeightSpec]) -> Vec<WeightSpec> {
    let mut weights = weights.to_vec();
    weights.sort_unstable_by_key(|w| w.queue);
    weights
}

/// A queue's weight, 1 if it has none. `weights` is sorted.
fn weight_of(weights: &[WeightSpec], queue: QueueId) -> u32 {
    weights.binary_search_by_key(&queue, |w| w.queue).map_or(1, |n| weights[n].weight)
}

/// What a scheduler may ask about the queues.
pub trait QueueView {
    /// Packets in a queue; 0 for one that does not exist.
    fn packets(&self, queue: QueueId) -> usize;
    /// Bytes in a queue.
    fn bytes(&self, queue: QueueId) -> u64;
    /// When the oldest packet of a queue was handed in.
    fn head_time(&self, queue: QueueId) -> Option<Time>;
}

/// Chooses among the queues that have packets and that no shaper holds back.
///
/// [`Self::next`] may be asked many times for one packet, because the shaper or the pacer may say no: it must give the
/// same answer until one of the other calls is made. Only [`Self::sent`] means that a packet has left.
pub trait Scheduler: Send {
    /// A queue exists from now on. It is empty for the scheduler until [`Self::activate`].
    fn add(&mut self, queue: QueueId);

    /// A queue is gone.
    fn remove(&mut self, queue: QueueId);

    /// An empty queue got a packet. May be called again for a queue that the scheduler never found empty.
    fn activate(&mut self, queue: QueueId);

    /// The queue whose turn it is; it may turn out to be empty, then [`Self::emptied`] follows.
    fn next(&mut self, now: Time, queues: &dyn QueueView) -> Option<QueueId>;

    /// Whether a head of `size` bytes may leave in this turn. False means that it is another queue's turn now.
    fn offer(&mut self, _queue: QueueId, _size: u32) -> bool {
        true
    }

    /// A packet of `size` bytes has left the queue.
    fn sent(&mut self, queue: QueueId, size: u32);

    /// The queue whose turn it was has no packet.
    fn emptied(&mut self, queue: QueueId);

    /// The queue's shaper holds it back: it must not be chosen until [`Self::unblock`].
    fn block(&mut self, queue: QueueId);

    /// The queue may be chosen again.
    fn unblock(&mut self, queue: QueueId);

    /// Takes new parameters and keeps its state; false if they are for another kind of scheduler.
    fn modify(&mut self, _spec: &SchedulerSpec) -> bool {
        false
    }

    /// Adds its statistics.
    fn stats(&self, _out: &mut StatMap) {}
}
