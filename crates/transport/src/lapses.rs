//! What an incoming best-effort flow did not hand on, and how it stood at an index that its sender asks about.

use std::collections::VecDeque;

use insane_wire::frame::control::Account;

use crate::shares::ASKED;

/// So many runs of messages that were not handed on are remembered.
const RUNS: usize = 512;

/// Messages that follow each other and ended alike.
#[derive(Debug)]
struct Run {
    first: u64,
    count: u32,
    dropped: bool,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Lapses {
    runs: VecDeque<Run>,
    /// From this index on none is forgotten.
    from: u64,
    asked: Vec<u64>,
}

impl Lapses {
    /// The next message was not handed on: it was lost, or dropped for want of room.
    pub(crate) fn add(&mut self, index: u64, dropped: bool) {
        let next = |run: &&mut Run| run.first + u64::from(run.count) == index && run.dropped == dropped;
        if let Some(run) = self.runs.back_mut().filter(next).filter(|run| run.count < u32::MAX) {
            run.count += 1;
            return;
        }
        if self.runs.len() == RUNS {
            let gone = self.runs.pop_front();
            self.from = gone.map_or(self.from, |run| run.first + u64::from(run.count));
        }
        self.runs.push_back(Run { first: index, count: 1, dropped });
    }

    /// The sender asks how it stands at an index. What it asks besides that, more than it may, is passed over.
    pub(crate) fn ask(&mut self, at: u64) {
        if self.asked.len() < ASKED && !self.asked.contains(&at) {
            self.asked.push(at);
        }
    }

    /// Whether something can be answered when so much is settled.
    pub(crate) fn can_answer(&self, settled: u64) -> bool {
        self.asked.iter().any(|at| *at <= settled)
    }

    /// The next answer, which is forgotten.
    pub(crate) fn answer(&mut self, now: &Account) -> Option<Account> {
        while let Some(place) = self.asked.iter().position(|at| *at <= now.settled) {
            let at = self.asked.swap_remove(place);
            if at >= self.from {
                return Some(self.account_at(at, now));
            }
        }
        None
    }

    fn account_at(&self, at: u64, now: &Account) -> Account {
        let mut then = Account { settled: at, ..*now };
        for run in self.runs.iter().rev() {
            let after = (run.first + u64::from(run.count)).saturating_sub(run.first.max(at));
            if after == 0 {
                break;
            }
            let count = if run.dropped { &mut then.dropped } else { &mut then.lost };
            *count = count.saturating_sub(after);
        }
        then.delivered = at.saturating_sub(then.lost + then.dropped + then.expired);
        then
    }
}
