//! What became of the messages of one local source for one sink of another host, counted in a cell that the source's session
//! reads. Each message that was given to the network ends in exactly one count.

use insane_shm::counters::{CellState, CellWriter, Count, Counters};
use insane_wire::host::Report;
use insane_wire::id::{Epoch, SinkId};
use std::collections::VecDeque;

/// Cells of one domain's counter memory.
pub(crate) const CELLS: u32 = 16_384;

/// The cells of one domain. Ended ones are used again only when no other is left, so that they can be read for long.
#[derive(Debug)]
pub(crate) struct Cells {
    pub(crate) counters: Counters,
    free: Vec<u32>,
    ended: VecDeque<u32>,
}

impl Cells {
    pub(crate) fn new(counters: Counters) -> Self {
        let free = (0..counters.cells()).rev().collect();
        Self { counters, free, ended: VecDeque::new() }
    }

    pub(crate) fn start(&mut self, epoch: Epoch, sink: SinkId) -> Option<CellWriter> {
        let index = self.free.pop().or_else(|| self.ended.pop_front())?;
        self.counters.start(index, CellState::Consuming, epoch.0, sink.0)
    }

    pub(crate) fn end(&mut self, index: u32) {
        self.counters.end(index);
        self.ended.push_back(index);
    }
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) domain: usize,
    pub(crate) sink: SinkId,
    /// The link that its source is on, and the source's number there.
    pub(crate) link: usize,
    pub(crate) source: u32,
    pub(crate) reliable: bool,
    pub(crate) cell: CellWriter,
    /// Messages that were meant for the sink.
    given: u64,
    /// Messages that have ended.
    ended: u64,
    heard: [u64; 6],
    /// When the connection was lost: pending messages that the sink has and its runtime had not reported.
    pub(crate) unsaid: u64,
    /// When it was lost: messages that have ended, as its runtime had reported, and go to the sink again, because it was not known yet that
    /// the sink had them.
    ahead: u64,
    /// How many of those the next runtime has not reported: what it reports first was counted before.
    repeated: u64,
    /// They will not be reported, because that runtime is gone. They count once the sink is attached again: then its session
    /// lives, and has them.
    in_doubt: u64,
    /// The number under which the sink is to join its source, or has; 0 for none.
    pub(crate) number: u32,
    /// The runtime that its host had before knew of it: whatever is under way is meant for it.
    was_meant: bool,
    /// The sink was attached once.
    pub(crate) was_attached: bool,
    /// It is, or was, attached to the runtime that its host has now: that will say what became of messages.
    attached: bool,
    /// Nothing more will be given.
    pub(crate) closing: bool,
    /// The sink's host has it no more.
    pub(crate) gone: bool,
}

impl Account {
    pub(crate) fn new(
        domain: usize,
        sink: SinkId,
        (link, source): (usize, u32),
        reliable: bool,
        cell: CellWriter,
    ) -> Self {
        Self {
            domain,
            sink,
            link,
            source,
            reliable,
            cell,
            given: 0,
            ended: 0,
            heard: [0; 6],
            unsaid: 0,
            ahead: 0,
            repeated: 0,
            in_doubt: 0,
            number: 0,
            was_meant: false,
            was_attached: false,
            attached: false,
            closing: false,
            gone: false,
        }
    }

    /// More messages are under way to the sink.
    pub(crate) fn give(&mut self, messages: u64) {
        self.given += messages;
    }

    /// Messages of which it is not known what became of them.
    pub(crate) fn pending(&self) -> u64 {
        self.given - self.ended
    }

    /// Messages have ended; never more than are pending, whatever another host says.
    pub(crate) fn end(&mut self, count: Count, messages: u64) {
        let messages = messages.min(self.pending());
        self.ended += messages;
        self.cell.add(count, messages);
    }

    /// Whether a message is meant for the sink that says this number of the sink that joined last.
    pub(crate) fn is_meant(&self, joined: u32) -> bool {
        self.was_meant || self.number == 0 || joined.wrapping_sub(self.number) < 1 << 31
    }

    /// The sink's host says what became of messages there. What it says of those that came under another number was another account's.
    pub(crate) fn reported(&mut self, report: &Report) {
        if report.join != 0 && report.join != self.number {
            return;
        }
        let said = [
            (Count::Delivered, report.delivered),
            (Count::Expired, report.expired),
            (Count::SinkClosed, report.sink_closed),
            (Count::Invalid, report.invalid),
            (Count::SinkFull, report.sink_full),
            (Count::Unconfirmed, report.unconfirmed),
        ];
        for (at, (count, total)) in said.into_iter().enumerate() {
            let more = total.saturating_sub(self.heard[at]);
            self.heard[at] = self.heard[at].max(total);
            let before = more.min(self.repeated);
            self.repeated -= before;
            self.end(count, more - before);
        }
    }

    /// The connection is lost, or there again. `again` messages of its source are given to the sink's host once more, those that were given
    /// last: some of them may not be for this sink, which were there before it.
    pub(crate) fn note_again(&mut self, again: u64) {
        let again = again.min(self.given);
        self.unsaid = self.pending().saturating_sub(again);
        self.ahead = again.saturating_sub(self.pending());
    }

    /// The sink's host has begun anew: it counts from nothing.
    pub(crate) fn begin_anew(&mut self) {
        (self.heard, self.attached, self.number) = ([0; 6], false, 0);
        self.was_meant |= self.was_attached;
        self.in_doubt = self.in_doubt.max(std::mem::take(&mut self.unsaid)).min(self.pending());
        self.repeated = std::mem::take(&mut self.ahead);
    }

    /// The sink is attached, at first or with the next runtime of its host.
    pub(crate) fn is_attached_again(&mut self) {
        (self.was_attached, self.attached) = (true, true);
        let had = std::mem::take(&mut self.in_doubt);
        self.end(Count::Delivered, had);
    }

    /// The sink is gone, and so is its host: a runtime that comes back there may have forgotten it, so that nothing is waited for
    /// unless it is attached again.
    pub(crate) fn forsake(&mut self) {
        self.attached = false;
    }

    /// Whether nothing more will come of it: it is closing, and pending is at most what nobody will say any more. Of a sink that
    /// has gone and never came back to its host's next runtime, or not with its host, that knows nothing.
    pub(crate) fn is_over(&mut self) -> bool {
        let unheard = self.gone && !self.attached;
        if self.closing && (unheard || self.pending() <= self.in_doubt) {
            self.end(Count::Unconfirmed, self.pending());
        }
        self.closing && self.pending() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use insane_shm::memory::Heap;
    use std::sync::Arc;

    #[test]
    fn what_was_for_a_sink_that_did_not_come_back_to_the_next_runtime_is_unconfirmed() {
        let counters = Counters::create(Arc::new(Heap::new(insane_shm::counters::bytes(4))), 4).unwrap();
        let mut cells = Cells::new(counters.clone());
        for comes_back in [false, true] {
            let mut account = Account::new(0, SinkId(2), (0, 0), true, cells.start(Epoch(1), SinkId(2)).unwrap());
            account.is_attached_again();
            account.give(10);
            account.begin_anew();
            if comes_back {
                account.is_attached_again();
            }
            (account.gone, account.closing) = (true, true);
            assert_eq!(account.is_over(), !comes_back);
            assert_eq!(account.pending(), if comes_back { 10 } else { 0 });
            let unconfirmed = counters.get(account.cell.index()).unwrap().get(Count::Unconfirmed);
            assert_eq!(unconfirmed, if comes_back { 0 } else { 10 });
        }
    }

    #[test]
    fn what_two_runtimes_report_of_one_message_counts_once() {
        let counters = Counters::create(Arc::new(Heap::new(insane_shm::counters::bytes(4))), 4).unwrap();
        let mut cells = Cells::new(counters.clone());
        let mut account = Account::new(0, SinkId(2), (0, 0), true, cells.start(Epoch(1), SinkId(2)).unwrap());
        let report = |delivered, expired| Report { delivered, expired, ..Report::default() };
        account.give(10);
        account.reported(&report(6, 1));
        assert_eq!(account.pending(), 3);
        // Of the seven two are not known to have arrived, and go again with the three.
        for again in [4, 5] {
            account.note_again(again);
        }
        account.begin_anew();
        account.is_attached_again();
        account.reported(&report(1, 0));
        assert_eq!(account.pending(), 3);
        // That one is lost too, when it has said of one of the two that it arrived, which goes again all the same.
        account.note_again(5);
        account.begin_anew();
        account.is_attached_again();
        for (delivered, pending) in [(0, 3), (2, 3), (3, 2), (5, 0), (6, 0)] {
            account.reported(&report(delivered, 0));
            assert_eq!(account.pending(), pending, "{delivered}");
        }
        // A connection that is there again with the same runtime changes nothing, nor what was under way before this sink was there.
        account.give(3);
        account.note_again(3 + 100);
        account.reported(&report(7, 0));
        assert_eq!(account.pending(), 2);
        let counted = counters.get(account.cell.index()).unwrap();
        assert_eq!((counted.get(Count::Delivered), counted.get(Count::Expired)), (10, 1));
    }

    #[test]
    fn a_message_ends_once_whatever_is_reported() {
        let counters = Counters::create(Arc::new(Heap::new(insane_shm::counters::bytes(4))), 4).unwrap();
        let mut cells = Cells::new(counters.clone());
        let mut account = Account::new(0, SinkId(2), (0, 0), false, cells.start(Epoch(1), SinkId(2)).unwrap());
        account.give(10);
        account.end(Count::Dropped, 3);
        account.reported(&Report { delivered: 4, sink_full: 1, ..Report::default() });
        account.reported(&Report { delivered: 4, sink_full: 1, ..Report::default() });
        assert_eq!(account.pending(), 2);
        account.reported(&Report { delivered: 1000, sink_full: 1000, ..Report::default() });
        assert_eq!((account.pending(), counters.finished(0)), (0, 10));
        let cell = counters.get(0).unwrap();
        assert_eq!((cell.get(Count::Delivered), cell.get(Count::SinkFull), cell.get(Count::Dropped)), (6, 1, 3));
    }
}
