//! Weighted fair queueing by start times (Goyal, Vin, Cheng 1996): the packet whose service began earliest in virtual time
//! goes first. It needs no packet's size beforehand, so an AQM may drop heads at will.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{QueueView, Scheduler};
use crate::packet::QueueId;
use crate::spec::{SchedulerSpec, WeightSpec};
use crate::stats::StatMap;
use crate::time::Time;

/// Virtual time per byte at weight 1; what is lost to rounding is below a millionth of a byte.
const SCALE: u128 = 1 << 20;

#[derive(Clone, Copy, Debug, Default)]
struct State {
    weight: u32,
    /// When the head begins in virtual time.
    start: u128,
    active: bool,
}

/// Shares bytes in proportion to weights, packet by packet instead of turn by turn.
#[derive(Clone, Debug)]
pub struct Weighted {
    states: Vec<State>,
    weights: Vec<WeightSpec>,
    now: u128,
    /// Start times; an entry counts only if it is its queue's present one.
    heap: BinaryHeap<Reverse<(u128, u32)>>,
    active: usize,
}

impl Weighted {
    /// A queue without a weight here has weight 1.
    #[must_use]
    pub fn new(weights: &[WeightSpec]) -> Self {
        Self { states: Vec::new(), weights: super::sorted(weights), now: 0, heap: BinaryHeap::new(), active: 0 }
    }

    fn deactivate(&mut self, queue: QueueId) {
        if let Some(state) = self.states.get_mut(queue.index())
            && std::mem::take(&mut state.active)
        {
            self.active -= 1;
        }
    }

    fn is_current(states: &[State], start: u128, queue: u32) -> bool {
        states.get(queue as usize).is_some_and(|s| s.active && s.start == start)
    }

    fn push(&mut self, start: u128, queue: QueueId) {
        self.heap.push(Reverse((start, queue.0)));
        if self.heap.len() > 2 * self.active + 64 {
            let states = &self.states;
            self.heap.retain(|Reverse((start, queue))| Self::is_current(states, *start, *queue));
        }
    }
}

impl Scheduler for Weighted {
    fn add(&mut self, queue: QueueId) {
        if queue.index() >= self.states.len() {
            self.states.resize(queue.index() + 1, State::default());
        }
        self.deactivate(queue);
        let weight = super::weight_of(&self.weights, queue);
        self.states[queue.index()] = State { weight, ..State::default() };
    }

    fn remove(&mut self, queue: QueueId) {
        self.deactivate(queue);
    }

    fn activate(&mut self, queue: QueueId) {
        let now = self.now;
        let Some(state) = self.states.get_mut(queue.index()).filter(|s| !s.active) else { return };
        state.active = true;
        state.start = state.start.max(now);
        let start = state.start;
        self.active += 1;
        self.push(start, queue);
    }

    fn next(&mut self, _now: Time, _queues: &dyn QueueView) -> Option<QueueId> {
        while let Some(&Reverse((start, queue))) = self.heap.peek() {
            if Self::is_current(&self.states, start, queue) {
                return Some(QueueId(queue));
            }
            self.heap.pop();
        }
        None
    }

    fn sent(&mut self, queue: QueueId, size: u32) {
        let Some(state) = self.states.get_mut(queue.index()) else { return };
        self.now = self.now.max(state.start);
        state.start += u128::from(size.max(1)) * SCALE / u128::from(state.weight.max(1));
        let (start, active) = (state.start, state.active);
        if active {
            self.push(start, queue);
        }
    }

    fn emptied(&mut self, queue: QueueId) {
        self.deactivate(queue);
    }

    fn block(&mut self, queue: QueueId) {
        self.deactivate(queue);
    }

    fn unblock(&mut self, queue: QueueId) {
        self.activate(queue);
    }

    fn modify(&mut self, spec: &SchedulerSpec) -> bool {
        let SchedulerSpec::Weighted { weights } = spec else { return false };
        self.weights = super::sorted(weights);
        for n in 0..self.states.len() {
            self.states[n].weight = super::weight_of(&self.weights, QueueId(n as u32));
        }
        true
    }

    fn stats(&self, out: &mut StatMap) {
        out.count("active", self.active as u64);
    }
}
