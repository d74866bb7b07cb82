//! Conditional priority (RFC 9332 §4.2.2): priority that cannot starve the others.

use super::list::Lists;
use super::{QueueView, Scheduler};
use crate::packet::QueueId;
use crate::spec::{Protection, SchedulerSpec};
use crate::stats::StatMap;
use crate::time::Time;

const HIGH: usize = 0;
const LOW: usize = 1;
/// The packet size that the low side may be behind by at first (Linux dualpi2: the device's MTU).
const MTU: i64 = 1514;

/// Serves the high queues first, within the bounds that protect the low ones.
#[derive(Clone, Debug)]
pub struct Conditional {
    lists: Lists,
    high: Vec<QueueId>,
    protection: Protection,
    /// Below or at zero it is the high side's turn. Moves only while both sides have packets.
    credit: i64,
    contended: bool,
}

fn sorted(high: &[QueueId]) -> Vec<QueueId> {
    let mut high = high.to_vec();
    high.sort_unstable();
    high
}

impl Conditional {
    /// The queues in `high` have conditional priority over all others.
    #[must_use]
    pub fn new(high: &[QueueId], protection: Protection) -> Self {
        let mut new = Self { lists: Lists::new(2), high: sorted(high), protection, credit: 0, contended: false };
        new.reset_credit();
        new
    }

    fn side(&self, queue: QueueId) -> usize {
        if self.high.binary_search(&queue).is_ok() { HIGH } else { LOW }
    }

    /// What a byte of each side costs: the low side's share of `share` percent is held on average.
    const fn shares(&self) -> (i64, i64) {
        match self.protection {
            Protection::Share { percent } => (percent as i64, 100 - percent as i64),
            Protection::TimeShift { .. } => (0, 0),
        }
    }

    const fn reset_credit(&mut self) {
        let (low, high) = self.shares();
        self.credit = MTU * (low - high);
    }

    fn high_first(&self, high: QueueId, low: QueueId, queues: &dyn QueueView) -> bool {
        match self.protection {
            Protection::Share { .. } => self.credit <= 0,
            Protection::TimeShift { shift } => match (queues.head_time(high), queues.head_time(low)) {
                (Some(high), Some(low)) => high - shift.0 <= low,
                _ => true,
            },
        }
    }
}

impl Scheduler for Conditional {
    fn add(&mut self, queue: QueueId) {
        self.lists.reserve(queue);
    }

    fn remove(&mut self, queue: QueueId) {
        self.lists.remove(queue);
    }

    fn activate(&mut self, queue: QueueId) {
        let side = self.side(queue);
        self.lists.push_back(side, queue);
    }

    fn next(&mut self, _now: Time, queues: &dyn QueueView) -> Option<QueueId> {
        self.contended = false;
        match (self.lists.front(HIGH), self.lists.front(LOW)) {
            // A queue that ran empty is named, to be taken out, before two heads are compared.
            (Some(high), Some(_)) if queues.packets(high) == 0 => Some(high),
            (Some(_), Some(low)) if queues.packets(low) == 0 => Some(low),
            (Some(high), Some(low)) => {
                self.contended = true;
                Some(if self.high_first(high, low, queues) { high } else { low })
            }
            (None, None) => {
                self.reset_credit();
                None
            }
            (high, low) => high.or(low),
        }
    }

    fn sent(&mut self, queue: QueueId, size: u32) {
        let Some(side) = self.lists.list_of(queue) else { return };
        if self.contended {
            let (low, high) = self.shares();
            self.credit += i64::from(size) * if side == HIGH { low } else { -high };
        }
        self.lists.move_back(side, queue);
    }

    fn emptied(&mut self, queue: QueueId) {
        self.lists.remove(queue);
    }

    fn block(&mut self, queue: QueueId) {
        self.lists.remove(queue);
    }

    fn unblock(&mut self, queue: QueueId) {
        self.activate(queue);
    }

    fn modify(&mut self, spec: &SchedulerSpec) -> bool {
        let SchedulerSpec::Conditional { high, protection } = spec else { return false };
        let active: Vec<QueueId> = [HIGH, LOW]
            .into_iter()
            .flat_map(|side| std::iter::successors(self.lists.front(side), |&q| self.lists.after(q)))
            .collect();
        self.high = sorted(high);
        if self.protection != *protection {
            self.protection = *protection;
            self.reset_credit();
        }
        for queue in active {
            self.lists.remove(queue);
            self.activate(queue);
        }
        true
    }

    fn stats(&self, out: &mut StatMap) {
        out.signed("credit", self.credit);
    }
}
