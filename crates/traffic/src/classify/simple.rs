//! Classifiers that need one look: round robin, QoS flow, traffic class, L4S identifier.

use std::collections::BTreeSet;

use super::{Classifier, Decision, PacketView};
use crate::packet::QueueId;
use crate::parse::Shape;
use crate::spec::{NumberSet, QfiSpec, TargetSpec};
use crate::time::Time;

/// Each packet to the next queue.
#[derive(Clone, Debug, Default)]
pub struct RoundRobin {
    only: Option<NumberSet>,
    members: BTreeSet<QueueId>,
    last: Option<QueueId>,
}

impl RoundRobin {
    /// Goes round the queues in `only`, or round all.
    #[must_use]
    pub const fn new(only: Option<NumberSet>) -> Self {
        Self { only, members: BTreeSet::new(), last: None }
    }

    fn wants(&self, queue: QueueId) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(queue.0))
    }
}

impl Classifier for RoundRobin {
    fn classify(&mut self, _now: Time, _packet: &PacketView<'_>) -> Decision {
        let after = self.last.map_or(0, |last| last.0.saturating_add(1));
        let next = self.members.range(QueueId(after)..).next().or_else(|| self.members.first());
        self.last = next.copied();
        self.last.map_or(Decision::Pass, Decision::Queue)
    }
    fn queue_added(&mut self, queue: QueueId) {
        if self.wants(queue) {
            self.members.insert(queue);
        }
    }
    fn queue_removed(&mut self, queue: QueueId, _moved_to: QueueId) {
        self.members.remove(&queue);
    }
    fn modify(&mut self, to: &TargetSpec, queues: &[QueueId]) -> bool {
        let TargetSpec::RoundRobin { queues: only } = to else { return false };
        self.only.clone_from(only);
        self.members = queues.iter().copied().filter(|&q| self.wants(q)).collect();
        true
    }
}

/// A queue per QoS flow identifier; other identifiers, and packets without one, are left to the next filter.
#[derive(Clone, Debug)]
pub struct ByQfi {
    queues: [Option<QueueId>; 64],
}

impl ByQfi {
    /// The queues of a map; the first entry that has an identifier counts.
    #[must_use]
    pub fn new(map: &[QfiSpec]) -> Self {
        let mut queues = [None; 64];
        for (qfi, slot) in queues.iter_mut().enumerate() {
            *slot = map.iter().find(|entry| entry.qfi.contains(qfi as u32)).map(|entry| entry.queue);
        }
        Self { queues }
    }
}

impl Classifier for ByQfi {
    fn classify(&mut self, _now: Time, packet: &PacketView<'_>) -> Decision {
        let queue = packet.qfi.and_then(|qfi| *self.queues.get(usize::from(qfi))?);
        queue.map_or(Decision::Pass, Decision::Queue)
    }
}

/// A queue per traffic class that came with the packet; classes beyond the list are left to the next filter.
#[derive(Clone, Debug)]
pub struct ByClass {
    queues: Vec<QueueId>,
}

impl ByClass {
    /// The queue of class n is the n-th.
    #[must_use]
    pub fn new(queues: &[QueueId]) -> Self {
        Self { queues: queues.to_vec() }
    }
}

impl Classifier for ByClass {
    fn classify(&mut self, _now: Time, packet: &PacketView<'_>) -> Decision {
        self.queues.get(packet.class as usize).map_or(Decision::Pass, |&queue| Decision::Queue(queue))
    }
}

/// ECT(1) and CE to one queue, other IP packets to another (RFC 9331 §5.1, RFC 9332 §2.3).
#[derive(Clone, Copy, Debug)]
pub struct ByL4s {
    /// The low-latency queue.
    pub l4s: QueueId,
    /// The classic queue.
    pub classic: QueueId,
}

impl Classifier for ByL4s {
    fn classify(&mut self, _now: Time, packet: &PacketView<'_>) -> Decision {
        if packet.headers.shape != Shape::Ip {
            return Decision::Pass;
        }
        Decision::Queue(if packet.headers.outer.ecn.is_l4s() { self.l4s } else { self.classic })
    }
}
