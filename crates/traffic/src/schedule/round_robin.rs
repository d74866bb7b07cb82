//! Round robin by packets: each queue that has one sends one.

use super::list::Lists;
use super::{QueueView, Scheduler};
use crate::packet::QueueId;
use crate::spec::SchedulerSpec;
use crate::time::Time;

/// One packet per queue and turn.
#[derive(Clone, Debug)]
pub struct RoundRobin {
    active: Lists,
}

impl Default for RoundRobin {
    fn default() -> Self {
        Self { active: Lists::new(1) }
    }
}

impl Scheduler for RoundRobin {
    fn add(&mut self, queue: QueueId) {
        self.active.reserve(queue);
    }
    fn remove(&mut self, queue: QueueId) {
        self.active.remove(queue);
    }
    fn activate(&mut self, queue: QueueId) {
        self.active.push_back(0, queue);
    }
    fn next(&mut self, _now: Time, _queues: &dyn QueueView) -> Option<QueueId> {
        self.active.front(0)
    }
    fn sent(&mut self, queue: QueueId, _size: u32) {
        self.active.move_back(0, queue);
    }
    fn emptied(&mut self, queue: QueueId) {
        self.active.remove(queue);
    }
    fn block(&mut self, queue: QueueId) {
        self.active.remove(queue);
    }
    fn unblock(&mut self, queue: QueueId) {
        self.active.push_back(0, queue);
    }
    fn modify(&mut self, spec: &SchedulerSpec) -> bool {
        matches!(spec, SchedulerSpec::RoundRobin {})
    }
}
