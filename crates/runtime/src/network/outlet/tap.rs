//! What became of the messages of a source of another host for one sink of this one, as its host is told.

use crate::network::outlet::{Tap, TapState};
use insane_shm::counters::{Count, Counters};
use insane_wire::host::Report;
use insane_wire::id::Epoch;

/// How many tallies a report has.
const TALLIES: usize = 6;

fn tallies_mut(r: &mut Report) -> [&mut u64; TALLIES] {
    [&mut r.delivered, &mut r.expired, &mut r.sink_closed, &mut r.invalid, &mut r.sink_full, &mut r.unconfirmed]
}

impl Tap {
    /// Looks what the sink has counted.
    pub(super) fn look(&mut self, epoch: Epoch, counters: &Counters) {
        if self.state == TapState::Opening || self.finished >= self.given {
            return;
        }
        // A cell that is another flow's by now was this one's until all was counted.
        let Some(cell) = counters.get(self.cell).filter(|c| c.sink == self.sink.0 && c.epoch == epoch.0) else {
            return;
        };
        let (mut left, told) = (self.given, self.tallies());
        let mut take = |count: Count| {
            let taken = cell.get(count).min(left);
            left -= taken;
            taken
        };
        self.report.delivered = self.had + take(Count::Delivered);
        self.report.expired = take(Count::Expired);
        let closed = take(Count::SinkClosed);
        self.report.invalid = take(Count::Invalid);
        self.report.sink_full = self.full + take(Count::SinkFull);
        self.report.sink_closed = self.late + closed;
        self.finish(self.given - left, told);
    }

    /// A message came that the sink has had.
    pub(super) fn came_again(&mut self, messages: u64) {
        self.had += messages;
        self.report.delivered += messages;
    }

    /// Whether a message is to be handed to the sink.
    pub(super) fn wants(&self, sequence: u64) -> bool {
        self.state == TapState::Open && self.joined && (self.cursor == 0 || sequence > self.cursor)
    }

    /// Whether a message is for it and, if reliable, may not be dropped.
    pub(super) fn needs(&self, sequence: u64) -> bool {
        !self.observer && self.wants(sequence)
    }

    /// There was no room for so many, which were not given to it.
    pub(super) fn found_full(&mut self, messages: u64) {
        self.full += messages;
        self.report.sink_full += messages;
    }

    pub(super) fn came_late(&mut self, messages: u64) {
        self.late += messages;
        self.report.sink_closed += messages;
    }

    /// So many of those given have been counted; `told` is what the tallies were before.
    fn finish(&mut self, finished: u64, told: [u64; TALLIES]) {
        let more = usize::try_from(finished.saturating_sub(self.finished)).unwrap_or(usize::MAX);
        self.sequences.drain(..more.min(self.sequences.len()));
        // Sinks count in order, so those of accounts that have ended come first. Of those that are counted together nobody knows which is
        // which: what is first among the tallies is taken to be.
        self.set_aside(self.owed.min(finished).saturating_sub(self.finished), told);
        self.finished = self.finished.max(finished);
    }

    /// So many of what the tallies have grown by were for accounts that have ended.
    fn set_aside(&mut self, mut messages: u64, told: [u64; TALLIES]) {
        if messages > 0 {
            let grown = self.tallies();
            for ((before, now), then) in tallies_mut(&mut self.before).into_iter().zip(grown).zip(told) {
                let part = now.saturating_sub(then).min(messages);
                (*before, messages) = (*before + part, messages - part);
            }
        }
    }

    fn tallies(&self) -> [u64; TALLIES] {
        let r = &self.report;
        [r.delivered, r.expired, r.sink_closed, r.invalid, r.sink_full, r.unconfirmed]
    }

    /// Its session is gone: what that has not counted nobody will.
    pub(super) fn is_lost(&mut self) {
        let told = self.tallies();
        self.report.unconfirmed += self.given.saturating_sub(self.finished);
        self.finish(self.given, told);
    }

    /// So many that were given last were not put on its link, and will not be: there was no room.
    pub(super) fn had_no_room(&mut self, messages: u64) {
        let told = self.tallies();
        self.found_full(messages);
        self.take_off(messages, told);
    }

    /// As [`Self::had_no_room`]: it leaves.
    pub(super) fn leaves(&mut self, messages: u64) {
        let told = self.tallies();
        self.came_late(messages);
        self.take_off(messages, told);
    }

    fn take_off(&mut self, messages: u64, told: [u64; TALLIES]) {
        self.given = self.given.saturating_sub(messages);
        self.set_aside(self.owed.saturating_sub(self.given), told);
        self.owed = self.owed.min(self.given);
    }

    /// The source's host counts for it under this number. If that was another until now, what it had counted for has ended: from now on
    /// the tallies are about what comes for the next, which is what says so.
    pub(crate) fn joins_as(&mut self, number: u32) {
        if self.number.replace(number).is_some_and(|before| before != number) {
            self.joined = false;
            (self.before, self.told, self.owed) = (self.report.clone(), self.report.clone(), self.given);
        }
    }

    /// What its source's host is to be told.
    pub(super) fn tell(&mut self) -> Report {
        self.told = self.report.clone();
        let mut report = Report { join: self.number.unwrap_or(0), ..self.report.clone() };
        let mut before = self.before.clone();
        for (now, before) in tallies_mut(&mut report).into_iter().zip(tallies_mut(&mut before)) {
            *now = now.saturating_sub(*before);
        }
        report
    }
}
