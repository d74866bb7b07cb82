//! First in, first out, bounded by packets and bytes (tc: pfifo, bfifo).

use super::{Queue, Store};
use crate::packet::{Outlet, Packet, Queued};
use crate::spec::{QueueKind, QueueLimit};
use crate::time::Time;

/// A queue without AQM.
#[derive(Debug)]
pub struct Fifo<P> {
    store: Store<P>,
}

impl<P: Packet> Fifo<P> {
    /// An empty queue.
    #[must_use]
    pub const fn new(limit: QueueLimit) -> Self {
        Self { store: Store::new(limit) }
    }
}

impl<P: Packet> Queue<P> for Fifo<P> {
    fn enqueue(&mut self, _now: Time, item: Queued<P>, out: &mut dyn Outlet<P>) {
        self.store.push(item, out);
    }
    fn restore(&mut self, item: Queued<P>) {
        self.store.push_always(item);
    }
    fn head(&mut self, _now: Time, _out: &mut dyn Outlet<P>) -> Option<u32> {
        self.store.front().map(|item| item.meta.size)
    }
    fn pop(&mut self, _now: Time) -> Option<Queued<P>> {
        self.store.pop()
    }
    fn shed(&mut self) -> Option<Queued<P>> {
        self.store.pop()
    }
    fn packets(&self) -> usize {
        self.store.packets()
    }
    fn bytes(&self) -> u64 {
        self.store.bytes()
    }
    fn head_time(&self) -> Option<Time> {
        self.store.front().map(|item| item.meta.at)
    }
    fn modify(&mut self, _now: Time, kind: &QueueKind) -> bool {
        let QueueKind::Fifo { limit } = kind else { return false };
        self.store.limit = *limit;
        true
    }
}
