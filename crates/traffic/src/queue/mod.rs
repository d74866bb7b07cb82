//! Stage 3, the queue: holds packets, and decides by its AQM which of them are dropped or marked.

use std::collections::VecDeque;

use crate::packet::{DropReason, Outlet, Packet, Queued};
use crate::spec::{QueueKind, QueueLimit};
use crate::stats::StatMap;
use crate::time::Time;

mod codel;
mod dualpi2;
mod fifo;
mod pie;
mod red;

pub use codel::Codel;
pub use dualpi2::{Coupling, Dualpi2};
pub use fifo::Fifo;
pub use pie::Pie;
pub use red::Red;

/// A queue with its AQM.
///
/// An AQM that decides when packets leave does so once per packet: [`Self::head`] decides and keeps the packet that it
/// chose; asking again before [`Self::pop`] changes nothing. So a shaper or pacer may hold the head as long as it likes.
pub trait Queue<P>: Send {
    /// Takes a packet, or gives it up to `out`. It must end in exactly one of the two.
    fn enqueue(&mut self, now: Time, item: Queued<P>, out: &mut dyn Outlet<P>);

    /// Takes a packet from another queue that was changed or deleted. Neither limits nor the AQM may refuse it.
    fn restore(&mut self, item: Queued<P>);

    /// The size of the next packet to leave, in bytes. Packets that the AQM decides against go to `out`.
    fn head(&mut self, now: Time, out: &mut dyn Outlet<P>) -> Option<u32>;

    /// Removes the packet that [`Self::head`] spoke of.
    fn pop(&mut self, now: Time) -> Option<Queued<P>>;

    /// Removes the oldest packet without asking the AQM: for moving packets and for a full pipeline.
    fn shed(&mut self) -> Option<Queued<P>>;

    /// Packets queued.
    fn packets(&self) -> usize;

    /// Bytes queued.
    fn bytes(&self) -> u64;

    /// When the oldest packet was handed in.
    fn head_time(&self) -> Option<Time>;

    /// Takes new parameters and keeps packets and state; false if they are for another kind of queue.
    fn modify(&mut self, _now: Time, _kind: &QueueKind) -> bool {
        false
    }

    /// Adds the statistics of its kind.
    fn stats(&self, _out: &mut StatMap) {}
}

/// Packets in order with a limit: what all kinds of queue are made of.
#[derive(Debug)]
pub struct Store<P> {
    items: VecDeque<Queued<P>>,
    bytes: u64,
    /// How much may be stored.
    pub limit: QueueLimit,
    /// Packets refused because of the limit.
    pub overlimits: u64,
}

/// Below this capacity memory is never handed back.
const KEPT_CAPACITY: usize = 16;

impl<P: Packet> Store<P> {
    /// An empty store.
    #[must_use]
    pub const fn new(limit: QueueLimit) -> Self {
        Self { items: VecDeque::new(), bytes: 0, limit, overlimits: 0 }
    }

    /// Appends a packet, or gives it to `out` where the limit does not allow it. True if it was appended.
    pub fn push(&mut self, item: Queued<P>, out: &mut dyn Outlet<P>) -> bool {
        match self.refusal(item.meta.size) {
            None => {
                self.push_always(item);
                true
            }
            Some(reason) => {
                self.overlimits += 1;
                out.dropped(item, reason);
                false
            }
        }
    }

    /// Why a packet of this size cannot be taken.
    #[must_use]
    pub fn refusal(&self, size: u32) -> Option<DropReason> {
        if self.items.len() >= self.limit.packets as usize {
            Some(DropReason::QueuePackets)
        } else if self.bytes + u64::from(size) > self.limit.bytes.0 {
            Some(DropReason::QueueBytes)
        } else {
            None
        }
    }

    /// Appends a packet whatever the limit says.
    pub fn push_always(&mut self, item: Queued<P>) {
        self.bytes += u64::from(item.meta.size);
        self.items.push_back(item);
    }

    /// Removes the oldest packet.
    pub fn pop(&mut self) -> Option<Queued<P>> {
        let item = self.items.pop_front()?;
        self.bytes -= u64::from(item.meta.size);
        // A thousand queues that were long once must not keep a thousand long buffers.
        if self.items.capacity() > KEPT_CAPACITY && self.items.len() * 8 < self.items.capacity() {
            self.items.shrink_to((self.items.len() * 2).max(KEPT_CAPACITY));
        }
        Some(item)
    }

    /// The oldest packet.
    #[must_use]
    pub fn front(&self) -> Option<&Queued<P>> {
        self.items.front()
    }

    /// Sets congestion experienced in the oldest packet; false if there is none, or it is Not-ECT or cannot be written.
    pub fn mark_front(&mut self) -> bool {
        self.items.front_mut().is_some_and(Queued::mark)
    }

    /// Packets stored.
    #[must_use]
    pub fn packets(&self) -> usize {
        self.items.len()
    }

    /// Bytes stored.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}
