//! What stands between the links and a host's path: nothing (first in, first out), or strict priority by `insane-traffic`.
//!
//! With strict priority messages wait here, not in the path, which is given only so many that it always has something to send.
//! Then a message waits behind at most that many of lower priority.

use crate::config::Scheduler;
use crate::network::lanes::FlowId;
use insane_traffic::{Discipline, Packet, PassThrough, Pipeline, PipelineSpec, SpecError, Time};
use insane_transport::Outgoing;
use std::time::Duration;

/// How many messages the path is given beyond what it has sent, while others wait here.
pub(crate) const IN_THE_PATH: u64 = 64;

/// Sixteen queues, one per priority; class 0 is priority 15. What is full is the flow, which is looked after by the caller.
const STRICT: &str = r#"
version = 1
limit = { packets = 16777216, bytes = "64g", overflow = "tail" }
[[filter]]
id = 1
to = { type = "class", queues = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0] }
[[queue]]
id = 0
count = 16
kind = { type = "fifo", limit = { packets = 16777216, bytes = "64g" } }
[scheduler]
type = "strict"
order = [[1], [2], [3], [4], [5], [6], [7], [8], [9], [10], [11], [12], [13], [14], [15], [0]]
"#;

/// A message for a flow of the host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    /// The flow's place at the host, and its number on its path: places are used again.
    pub(crate) flow: (usize, FlowId),
    pub(crate) next: Outgoing,
}

impl Packet for Item {
    fn size(&self) -> u32 {
        self.next.len
    }
    fn class(&self) -> u32 {
        15 - u32::from(self.next.priority.min(15))
    }
}

/// See the module's head.
pub(crate) enum Egress {
    /// Everything goes to the path at once.
    Fifo(PassThrough),
    /// Higher priorities first.
    Strict(Box<Pipeline<Item>>, u64),
}

impl std::fmt::Debug for Egress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_fifo() { "Fifo" } else { "Strict" })
    }
}

fn time(now: Duration) -> Time {
    Time::from_nanos(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

impl Egress {
    /// # Errors
    /// None, as the pipeline is fixed; a test makes one.
    pub(crate) fn new(scheduler: Scheduler) -> Result<Self, SpecError> {
        match scheduler {
            Scheduler::Fifo => Ok(Self::Fifo(PassThrough)),
            Scheduler::Strict => {
                let pipeline = Pipeline::new(&PipelineSpec::from_toml(STRICT)?, 0)?;
                Ok(Self::Strict(Box::new(pipeline), 0))
            }
        }
    }

    pub(crate) fn is_fifo(&self) -> bool {
        matches!(self, Self::Fifo(_))
    }

    /// How many messages wait here.
    pub(crate) fn waiting(&self) -> u64 {
        if let Self::Strict(_, waiting) = self { *waiting } else { 0 }
    }

    /// Takes a message; what is returned is to go to the path at once.
    pub(crate) fn push(&mut self, now: Duration, item: Item) -> Option<Item> {
        match self {
            Self::Fifo(fifo) => fifo.push(|| time(now), item, &mut ()),
            Self::Strict(pipeline, waiting) => {
                let mut dropped = false;
                let mut drops = |_: Item, _| dropped = true;
                let out = pipeline.push(|| time(now), item, &mut drops);
                *waiting += u64::from(out.is_none() && !dropped);
                // Its limits are beyond what links can hold; if one is met all the same, the message is not lost here.
                out.or_else(|| dropped.then_some(item))
            }
        }
    }

    /// The next message for the path.
    pub(crate) fn pull(&mut self, now: Duration) -> Option<Item> {
        match self {
            Self::Fifo(fifo) => fifo.pull(|| time(now), &mut ()),
            Self::Strict(pipeline, waiting) => {
                let item = pipeline.pull(|| time(now), &mut ())?;
                *waiting = waiting.saturating_sub(1);
                Some(item)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(token: u64, priority: u8) -> Item {
        Item {
            flow: (0, FlowId { lane: 0, number: 1 }),
            next: Outgoing { token, len: 100, priority, ..Outgoing::default() },
        }
    }

    #[test]
    fn higher_priorities_go_first_and_equal_ones_in_order() {
        let mut egress = Egress::new(Scheduler::Strict).unwrap();
        let now = Duration::from_secs(1);
        for (token, priority) in [(1, 0), (2, 15), (3, 7), (4, 15), (5, 0), (6, 200)] {
            assert!(egress.push(now, item(token, priority)).is_none());
        }
        assert_eq!(egress.waiting(), 6);
        let order: Vec<u64> = std::iter::from_fn(|| egress.pull(now)).map(|i| i.next.token).collect();
        assert_eq!((order, egress.waiting()), (vec![2, 4, 6, 3, 1, 5], 0));
    }

    #[test]
    fn first_in_first_out_holds_nothing() {
        let mut egress = Egress::new(Scheduler::Fifo).unwrap();
        assert_eq!(egress.push(Duration::ZERO, item(9, 0)).map(|i| i.next.token), Some(9));
        assert!(egress.pull(Duration::ZERO).is_none() && egress.waiting() == 0);
    }
}
