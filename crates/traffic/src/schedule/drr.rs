//! Deficit round robin (Shreedhar and Varghese, 1996), with a weight per queue.

use super::list::Lists;
use super::{QueueView, Scheduler};
use crate::packet::QueueId;
use crate::spec::{SchedulerSpec, WeightSpec};
use crate::stats::StatMap;
use crate::time::Time;

#[derive(Clone, Copy, Debug, Default)]
struct State {
    deficit: u64,
    quantum: u64,
    /// Whether the queue has been given its quantum in this turn.
    in_turn: bool,
    /// The head that was too large at its last turn.
    refused: u32,
}

/// Shares bytes in proportion to quantum times weight, whatever the packets' sizes.
#[derive(Clone, Debug)]
pub struct Drr {
    active: Lists,
    states: Vec<State>,
    quantum: u64,
    weights: Vec<WeightSpec>,
    /// Turns in a row that ended without a packet, every active queue's among them once this reaches their number.
    refusals: usize,
}

impl Drr {
    /// A scheduler that gives `quantum` bytes per turn times the queue's weight, 1 if it has none.
    #[must_use]
    pub fn new(quantum: u32, weights: &[WeightSpec]) -> Self {
        let weights = super::sorted(weights);
        Self { active: Lists::new(1), states: Vec::new(), quantum: u64::from(quantum), weights, refusals: 0 }
    }

    fn quantum_of(&self, queue: QueueId) -> u64 {
        self.quantum * u64::from(super::weight_of(&self.weights, queue))
    }

    /// Gives all queues at once the quanta of the rounds in which none of them could send, so that a quantum far below
    /// the packets' size costs no time.
    fn skip_rounds(&mut self) {
        let all = |active: &Lists| std::iter::successors(active.front(0), |&q| active.after(q)).collect::<Vec<_>>();
        let queues = all(&self.active);
        let missing = |s: &State| u64::from(s.refused).saturating_sub(s.deficit).div_ceil(s.quantum.max(1));
        let rounds = queues.iter().map(|q| missing(&self.states[q.index()])).min().unwrap_or(0).saturating_sub(1);
        for queue in queues {
            let state = &mut self.states[queue.index()];
            state.deficit += rounds * state.quantum;
        }
        self.refusals = 0;
    }
}

impl Scheduler for Drr {
    fn add(&mut self, queue: QueueId) {
        self.active.reserve(queue);
        if queue.index() >= self.states.len() {
            self.states.resize(queue.index() + 1, State::default());
        }
        self.states[queue.index()] = State { quantum: self.quantum_of(queue), ..State::default() };
    }

    fn remove(&mut self, queue: QueueId) {
        self.active.remove(queue);
    }

    fn activate(&mut self, queue: QueueId) {
        self.active.push_back(0, queue);
        self.refusals = 0;
    }

    fn next(&mut self, _now: Time, _queues: &dyn QueueView) -> Option<QueueId> {
        if self.refusals > 0 && self.refusals >= self.active.len(0) {
            self.skip_rounds();
        }
        self.active.front(0)
    }

    fn offer(&mut self, queue: QueueId, size: u32) -> bool {
        let Some(state) = self.states.get_mut(queue.index()) else { return true };
        if !state.in_turn {
            state.in_turn = true;
            state.deficit += state.quantum;
        }
        if u64::from(size) <= state.deficit {
            return true;
        }
        state.in_turn = false;
        state.refused = size;
        self.refusals += 1;
        self.active.move_back(0, queue);
        false
    }

    fn sent(&mut self, queue: QueueId, size: u32) {
        self.refusals = 0;
        if let Some(state) = self.states.get_mut(queue.index()) {
            state.deficit = state.deficit.saturating_sub(size.into());
        }
    }

    fn emptied(&mut self, queue: QueueId) {
        self.active.remove(queue);
        if let Some(state) = self.states.get_mut(queue.index()) {
            (state.deficit, state.in_turn) = (0, false);
        }
    }

    fn block(&mut self, queue: QueueId) {
        // It keeps its turn: it must not be given another quantum for having been held back.
        self.active.remove(queue);
    }

    fn unblock(&mut self, queue: QueueId) {
        self.activate(queue);
    }

    fn modify(&mut self, spec: &SchedulerSpec) -> bool {
        let SchedulerSpec::Drr { quantum, weights } = spec else { return false };
        self.quantum = u64::from(*quantum);
        self.weights = super::sorted(weights);
        for n in 0..self.states.len() {
            self.states[n].quantum = self.quantum_of(QueueId(n as u32));
        }
        true
    }

    fn stats(&self, out: &mut StatMap) {
        out.count("active", self.active.len(0) as u64);
        out.count("quantum", self.quantum);
    }
}
