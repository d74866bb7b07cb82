//! The lists of new and old flows of FQ-CoDel (RFC 8290 §4.2). With a stochastic hash before it and CoDel in the queues
//! this is FQ-CoDel.

use super::list::Lists;
use super::{QueueView, Scheduler};
use crate::packet::QueueId;
use crate::spec::SchedulerSpec;
use crate::stats::StatMap;
use crate::time::Time;

const NEW: usize = 0;
const OLD: usize = 1;

/// Serves queues that have just become active before the others, and all by bytes.
#[derive(Clone, Debug)]
pub struct FqCodel {
    lists: Lists,
    credits: Vec<i64>,
    quantum: i64,
    new_flow_count: u64,
}

impl FqCodel {
    /// A scheduler that gives `quantum` bytes per turn.
    #[must_use]
    pub fn new(quantum: u32) -> Self {
        Self { lists: Lists::new(2), credits: Vec::new(), quantum: quantum.into(), new_flow_count: 0 }
    }

    /// Adds the quanta of the rounds in which every queue would still be in debt: a packet of many quanta costs no time.
    fn skip_rounds(&mut self) {
        let all = |lists: &Lists| std::iter::successors(lists.front(OLD), |&q| lists.after(q)).collect::<Vec<_>>();
        let queues = all(&self.lists);
        let debt_rounds = |credits: i64| (-credits).max(0) / self.quantum;
        let rounds = queues.iter().map(|q| debt_rounds(self.credits[q.index()])).min().unwrap_or(0);
        for queue in queues {
            self.credits[queue.index()] += rounds * self.quantum;
        }
    }
}

impl Scheduler for FqCodel {
    fn add(&mut self, queue: QueueId) {
        self.lists.reserve(queue);
        if queue.index() >= self.credits.len() {
            self.credits.resize(queue.index() + 1, 0);
        }
        self.credits[queue.index()] = 0;
    }

    fn remove(&mut self, queue: QueueId) {
        self.lists.remove(queue);
    }

    fn activate(&mut self, queue: QueueId) {
        if self.lists.list_of(queue).is_some() || queue.index() >= self.credits.len() {
            return;
        }
        self.lists.push_back(NEW, queue);
        self.credits[queue.index()] = self.quantum;
        self.new_flow_count += 1;
    }

    fn next(&mut self, _now: Time, _queues: &dyn QueueView) -> Option<QueueId> {
        let mut passed_over = 0;
        loop {
            let queue = self.lists.front(NEW).or_else(|| self.lists.front(OLD))?;
            let credits = &mut self.credits[queue.index()];
            if *credits > 0 {
                return Some(queue);
            }
            *credits += self.quantum;
            self.lists.move_back(OLD, queue);
            passed_over += 1;
            if passed_over == self.lists.len(OLD) {
                self.skip_rounds();
            }
        }
    }

    fn sent(&mut self, queue: QueueId, size: u32) {
        if let Some(credits) = self.credits.get_mut(queue.index()) {
            *credits -= i64::from(size);
        }
    }

    fn emptied(&mut self, queue: QueueId) {
        match self.lists.list_of(queue) {
            // A new queue that ran empty waits behind the old ones, lest it come back as new again and again.
            Some(NEW) => self.lists.move_back(OLD, queue),
            _ => self.lists.remove(queue),
        }
    }

    fn block(&mut self, queue: QueueId) {
        self.lists.remove(queue);
    }

    fn unblock(&mut self, queue: QueueId) {
        self.lists.push_back(OLD, queue);
    }

    fn modify(&mut self, spec: &SchedulerSpec) -> bool {
        let SchedulerSpec::FqCodel { quantum } = spec else { return false };
        self.quantum = i64::from(*quantum);
        true
    }

    fn stats(&self, out: &mut StatMap) {
        out.count("new_flow_count", self.new_flow_count);
        out.count("new_flows_len", self.lists.len(NEW) as u64);
        out.count("old_flows_len", self.lists.len(OLD) as u64);
        out.count("quantum", self.quantum.unsigned_abs());
    }
}
