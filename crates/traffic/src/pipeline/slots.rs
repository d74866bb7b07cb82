//! The queues by id, each with its policer, its shaper and its counters.

use super::Volume;
use super::kinds::{AnyPolicer, AnyQueue, AnyShaper};
use crate::classify::ClassifierStage;
use crate::packet::{DropReason, Dropped, Drops, Outlet, Packet, QueueId, Queued};
use crate::queue::Queue;
use crate::schedule::QueueView;
use crate::stats::Basic;
use crate::time::{Span, Time};

/// A queue in place.
pub(super) struct Slot<P> {
    pub(super) queue: AnyQueue<P>,
    pub(super) policer: Option<AnyPolicer>,
    pub(super) shaper: Option<AnyShaper>,
    /// Until when the shaper holds the queue back.
    pub(super) blocked: Option<Time>,
    pub(super) basic: Basic,
    pub(super) avg_sojourn: Span,
    pub(super) last_sojourn: Span,
}

impl<P> Slot<P> {
    /// Counts a packet that leaves.
    #[inline]
    pub(super) fn forwarded(&mut self, size: u32, sojourn: Span) {
        self.basic.bytes += u64::from(size);
        self.basic.packets += 1;
        self.last_sojourn = sojourn;
        let (avg, new) = (self.avg_sojourn.nanos(), sojourn.nanos());
        self.avg_sojourn = Span::from_nanos(avg - avg / 8 + new / 8);
    }
}

/// All queues.
pub(super) struct Slots<P> {
    slots: Vec<Option<Box<Slot<P>>>>,
    /// Bytes per queue in one piece, so that the fattest is found without touching the queues.
    backlog: Vec<u64>,
    pub(super) count: usize,
}

impl<P: Packet> Slots<P> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), backlog: Vec::new(), count: 0 }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: QueueId) -> Option<&mut Slot<P>> {
        self.slots.get_mut(id.index())?.as_deref_mut()
    }

    pub(super) fn get(&self, id: QueueId) -> Option<&Slot<P>> {
        self.slots.get(id.index())?.as_deref()
    }

    pub(super) fn insert(&mut self, id: QueueId, slot: Box<Slot<P>>) {
        if id.index() >= self.slots.len() {
            self.slots.resize_with(id.index() + 1, || None);
            self.backlog.resize(id.index() + 1, 0);
        }
        self.backlog[id.index()] = slot.queue.bytes();
        if self.slots[id.index()].replace(slot).is_none() {
            self.count += 1;
        }
    }

    pub(super) fn remove(&mut self, id: QueueId) -> Option<Box<Slot<P>>> {
        let slot = self.slots.get_mut(id.index())?.take()?;
        self.backlog[id.index()] = 0;
        self.count -= 1;
        while self.slots.last().is_some_and(Option::is_none) {
            self.slots.pop();
            self.backlog.pop();
        }
        Some(slot)
    }

    /// Notes a queue's bytes after something changed in it.
    #[inline]
    pub(super) fn note(&mut self, id: QueueId, bytes: u64) {
        if let Some(backlog) = self.backlog.get_mut(id.index()) {
            *backlog = bytes;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (QueueId, &Slot<P>)> {
        self.slots.iter().enumerate().filter_map(|(n, slot)| Some((QueueId(n as u32), slot.as_deref()?)))
    }

    /// The queue with the most bytes.
    pub(super) fn fattest(&self) -> QueueId {
        let most = self.backlog.iter().copied().max().unwrap_or(0);
        QueueId(self.backlog.iter().position(|&b| b == most).unwrap_or(0) as u32)
    }

    pub(super) fn backlog(&self, id: QueueId) -> u64 {
        self.backlog.get(id.index()).copied().unwrap_or(0)
    }
}

impl<P: Packet> QueueView for Slots<P> {
    fn packets(&self, queue: QueueId) -> usize {
        self.get(queue).map_or(0, |s| s.queue.packets())
    }
    fn bytes(&self, queue: QueueId) -> u64 {
        self.backlog(queue)
    }
    fn head_time(&self, queue: QueueId) -> Option<Time> {
        self.get(queue)?.queue.head_time()
    }
}

/// The way out for packets that are dropped: counts them, tells the filter that sent them, hands them to their owner.
pub(super) struct Exit<'a, D> {
    pub(super) classifier: &'a mut ClassifierStage,
    pub(super) dropped: &'a mut [Volume; DropReason::ALL.len()],
    pub(super) queue: QueueId,
    pub(super) drops: &'a mut D,
    /// What went through since this was made.
    pub(super) volume: Volume,
    pub(super) last: Option<DropReason>,
}

impl<P, D: Drops<P>> Outlet<P> for Exit<'_, D> {
    fn dropped(&mut self, item: Queued<P>, reason: DropReason) {
        self.dropped[reason as usize].add(item.meta.size);
        self.volume.add(item.meta.size);
        self.last = Some(reason);
        self.classifier.left(item.meta.ticket);
        self.drops.dropped(item.packet, Dropped { queue: self.queue, reason });
    }
}
