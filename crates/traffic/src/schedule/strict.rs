//! Strict priority (tc: prio): a level sends only while all levels above it have nothing to send.

use super::list::Lists;
use super::{QueueView, Scheduler};
use crate::packet::QueueId;
use crate::spec::SchedulerSpec;
use crate::stats::StatMap;
use crate::time::Time;

/// How many levels there may be.
pub(crate) const MAX_LEVELS: usize = 64;

/// Levels of queues; round robin by packets within a level.
#[derive(Clone, Debug)]
pub struct Strict {
    levels: Lists,
    /// Which levels have a queue in them, the first as the lowest bit.
    occupied: u64,
    /// The level of each queue that is named, by queue.
    order: Vec<(QueueId, u8)>,
    bands: usize,
    level_of: Vec<u8>,
}

fn by_queue(order: &[Vec<QueueId>]) -> Vec<(QueueId, u8)> {
    let last = MAX_LEVELS - 1;
    let levels = order.iter().enumerate().flat_map(|(n, level)| level.iter().map(move |&q| (q, n.min(last) as u8)));
    let mut levels: Vec<_> = levels.collect();
    levels.sort_unstable();
    levels
}

impl Strict {
    /// The first level goes first; queues in no level go last.
    #[must_use]
    pub fn new(order: &[Vec<QueueId>]) -> Self {
        let order_len = order.len();
        let order = by_queue(order);
        Self { levels: Lists::new(MAX_LEVELS), occupied: 0, order, bands: order_len + 1, level_of: Vec::new() }
    }

    fn level_by_order(&self, queue: QueueId) -> u8 {
        self.order.binary_search_by_key(&queue, |o| o.0).map_or((MAX_LEVELS - 1) as u8, |n| self.order[n].1)
    }

    fn level(&self, queue: QueueId) -> usize {
        self.level_of.get(queue.index()).map_or(MAX_LEVELS - 1, |&level| level.into())
    }

    fn take_out(&mut self, queue: QueueId) {
        let Some(level) = self.levels.list_of(queue) else { return };
        self.levels.remove(queue);
        if self.levels.front(level).is_none() {
            self.occupied &= !(1 << level);
        }
    }
}

impl Scheduler for Strict {
    fn add(&mut self, queue: QueueId) {
        self.levels.reserve(queue);
        if queue.index() >= self.level_of.len() {
            self.level_of.resize(queue.index() + 1, (MAX_LEVELS - 1) as u8);
        }
        self.level_of[queue.index()] = self.level_by_order(queue);
    }

    fn remove(&mut self, queue: QueueId) {
        self.take_out(queue);
    }

    fn activate(&mut self, queue: QueueId) {
        if self.levels.list_of(queue).is_none() {
            let level = self.level(queue);
            self.levels.push_back(level, queue);
            self.occupied |= 1 << level;
        }
    }

    fn next(&mut self, _now: Time, _queues: &dyn QueueView) -> Option<QueueId> {
        if self.occupied == 0 {
            return None;
        }
        self.levels.front(self.occupied.trailing_zeros() as usize)
    }

    fn sent(&mut self, queue: QueueId, _size: u32) {
        if let Some(level) = self.levels.list_of(queue) {
            self.levels.move_back(level, queue);
        }
    }

    fn emptied(&mut self, queue: QueueId) {
        self.take_out(queue);
    }

    fn block(&mut self, queue: QueueId) {
        self.take_out(queue);
    }

    fn unblock(&mut self, queue: QueueId) {
        self.activate(queue);
    }

    fn modify(&mut self, spec: &SchedulerSpec) -> bool {
        let SchedulerSpec::Strict { order } = spec else { return false };
        self.bands = order.len() + 1;
        self.order = by_queue(order);
        for n in 0..self.level_of.len() {
            let queue = QueueId(n as u32);
            let level = self.level_by_order(queue);
            if level != self.level_of[n] {
                let was_active = self.levels.list_of(queue).is_some();
                self.take_out(queue);
                self.level_of[n] = level;
                if was_active {
                    self.activate(queue);
                }
            }
        }
        true
    }

    fn stats(&self, out: &mut StatMap) {
        out.count("bands", self.bands as u64);
        out.count("active_bands", self.occupied.count_ones().into());
    }
}
