//! Stage 3 from an object: it decides, the packets are here.

use insane_traffic::queue::{self, Store};
use insane_traffic::spec::{QueueKind, QueueLimit};
use insane_traffic::stats::StatMap;
use insane_traffic::{DropReason, Outlet, Packet, Queued, Time};

use crate::abi;
use crate::stage::Instance;

/// Packets that a stage may discard in a row before one leaves.
const MAX_DISCARDS: u32 = 64;

/// A queue.
#[derive(Debug)]
pub(crate) struct Queue<P> {
    stage: Instance,
    arrives: abi::Judge,
    calls: abi::QueueCalls,
    store: Store<P>,
    /// Whether it was decided that the oldest packet leaves.
    decided: bool,
    /// The latest time that was told.
    last: Time,
    faults: u64,
    discards: u64,
    marks: u64,
}

/// What an answer comes to.
enum Verdict {
    Keep,
    Discard,
    Mark,
    MarkOrDiscard,
}

impl<P: Packet> Queue<P> {
    pub(crate) fn new(stage: Instance, arrives: abi::Judge, calls: abi::QueueCalls, limit: QueueLimit) -> Self {
        let (decided, last, store) = (false, Time::ZERO, Store::new(limit));
        Self { stage, arrives, calls, store, decided, last, faults: 0, discards: 0, marks: 0 }
    }

    fn verdict(&mut self, answer: i32) -> Verdict {
        match answer {
            abi::KEEP => Verdict::Keep,
            abi::DISCARD => Verdict::Discard,
            abi::MARK => Verdict::Mark,
            abi::MARK_OR_DISCARD => Verdict::MarkOrDiscard,
            _ => {
                self.faults += 1;
                Verdict::Keep
            }
        }
    }

    /// Tells the stage that a packet is gone that was in the store.
    fn left(&mut self, item: &Queued<P>, why: u32) {
        self.decided = false;
        let Some(left) = self.calls.left else { return };
        let told = describe(item, &self.store, false);
        // SAFETY: the stage lives, and the description lives through the call.
        unsafe { left(self.stage.raw(), self.last.nanos(), &raw const told, why) };
    }
}

/// A packet as the calls see it. `stored` says whether the store's counts include it.
fn describe<P: Packet>(item: &Queued<P>, store: &Store<P>, stored: bool) -> abi::Item {
    let size = item.meta.size;
    let besides = if stored { (1, u64::from(size)) } else { (0, 0) };
    abi::Item {
        arrived: item.meta.at.nanos(),
        queued_bytes: store.bytes().saturating_sub(besides.1),
        queued_packets: u32::try_from(store.packets().saturating_sub(besides.0)).unwrap_or(u32::MAX),
        size,
        ecn: item.meta.ecn as u8,
        reserved: [0; 7],
    }
}

impl<P: Packet> queue::Queue<P> for Queue<P> {
    fn enqueue(&mut self, now: Time, mut item: Queued<P>, out: &mut dyn Outlet<P>) {
        self.last = now;
        if self.store.refusal(item.meta.size).is_some() {
            self.store.push(item, out);
            return;
        }
        let told = describe(&item, &self.store, false);
        // SAFETY: the stage lives, and the description lives through the call.
        let answer = unsafe { (self.arrives)(self.stage.raw(), now.nanos(), &raw const told) };
        let keep = match self.verdict(answer) {
            Verdict::Keep => true,
            Verdict::Discard => false,
            verdict @ (Verdict::Mark | Verdict::MarkOrDiscard) => {
                let marked = item.mark();
                self.marks += u64::from(marked);
                marked || matches!(verdict, Verdict::Mark)
            }
        };
        if keep {
            self.store.push(item, out);
        } else {
            self.discards += 1;
            out.dropped(item, DropReason::Plugin);
        }
    }

    fn restore(&mut self, item: Queued<P>) {
        self.store.push_always(item);
    }

    fn head(&mut self, now: Time, out: &mut dyn Outlet<P>) -> Option<u32> {
        self.last = now;
        let mut in_a_row = 0;
        loop {
            let item = self.store.front()?;
            let size = item.meta.size;
            let Some(departs) = self.calls.departs.filter(|_| !self.decided) else { return Some(size) };
            let told = describe(item, &self.store, true);
            // SAFETY: the stage lives, and the description lives through the call.
            let answer = unsafe { departs(self.stage.raw(), now.nanos(), &raw const told) };
            let keep = match self.verdict(answer) {
                Verdict::Keep => true,
                Verdict::Discard => false,
                verdict @ (Verdict::Mark | Verdict::MarkOrDiscard) => {
                    let marked = self.store.mark_front();
                    self.marks += u64::from(marked);
                    marked || matches!(verdict, Verdict::Mark)
                }
            };
            self.faults += u64::from(!keep && in_a_row == MAX_DISCARDS);
            if keep || in_a_row == MAX_DISCARDS {
                self.decided = true;
                return Some(size);
            }
            in_a_row += 1;
            let item = self.store.pop()?;
            self.discards += 1;
            self.left(&item, abi::DISCARDED);
            out.dropped(item, DropReason::Plugin);
        }
    }

    fn pop(&mut self, now: Time) -> Option<Queued<P>> {
        self.last = now;
        let item = self.store.pop()?;
        self.left(&item, abi::SENT);
        Some(item)
    }

    fn shed(&mut self) -> Option<Queued<P>> {
        let item = self.store.pop()?;
        self.left(&item, abi::REMOVED);
        Some(item)
    }

    fn packets(&self) -> usize {
        self.store.packets()
    }

    fn bytes(&self) -> u64 {
        self.store.bytes()
    }

    fn head_time(&self) -> Option<Time> {
        self.store.front().map(|item| item.meta.at)
    }

    fn modify(&mut self, _now: Time, kind: &QueueKind) -> bool {
        let QueueKind::Plugin { name, options, limit } = kind else { return false };
        if !self.stage.modify(name, options) {
            return false;
        }
        self.store.limit = *limit;
        true
    }

    fn stats(&self, out: &mut StatMap) {
        let counts = [
            ("faults", self.faults),
            ("discarded", self.discards),
            ("ecn_mark", self.marks),
            ("refused", self.store.overlimits),
        ];
        self.stage.stats(&counts, out);
    }
}
