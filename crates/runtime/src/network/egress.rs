//! What stands between the links and a host's path: nothing (first in, first out), or a pipeline of `insane-traffic` with strict
//! priority or weighted classes of streams.
//!
//! With a pipeline messages wait there, not in the path, which is given only so many that it always has something to send. Then a
//! message waits behind at most that many that should come later.

use crate::config::{Network, Scheduler};
use crate::network::lanes::FlowId;
use crate::policy::Classes;
use insane_traffic::{Discipline, Packet, PassThrough, Pipeline, PipelineSpec, SpecError, Time};
use insane_transport::Outgoing;
use insane_wire::qos::Qos;
use std::time::Duration;

/// How many messages the path is given beyond what it has sent, while others wait here.
pub(crate) const IN_THE_PATH: u64 = 64;

/// As many queues as there are classes, bounded by who looks after the flows, not here. The scheduler follows.
fn classes(count: usize) -> String {
    let queues: Vec<usize> = (0..count).collect();
    format!(
        r#"
version = 1
limit = {{ packets = 16777216, bytes = "64g", overflow = "tail" }}
[[filter]]
id = 1
to = {{ type = "class", queues = {queues:?} }}
[[queue]]
id = 0
count = {count}
kind = {{ type = "fifo", limit = {{ packets = 16777216, bytes = "64g" }} }}
[scheduler]
"#
    )
}

/// Sixteen classes, one per priority; class 0 is priority 15.
fn strict() -> String {
    let order: Vec<[u32; 1]> = (0..16).map(|queue| [queue]).collect();
    format!("{}type = \"strict\"\norder = {order:?}\n", classes(16))
}

/// A class for each row of the table.
fn weighted(table: &Classes) -> String {
    let weights =
        table.weights().enumerate().map(|(queue, weight)| format!("{{ queue = {queue}, weight = {weight} }}"));
    let weights: Vec<String> = weights.collect();
    format!("{}type = \"weighted\"\nweights = [{}]\n", classes(weights.len()), weights.join(", "))
}

/// A message for a flow of the host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    /// The flow's place at the host, and its number on its path: places are used again.
    pub(crate) flow: (usize, FlowId),
    pub(crate) next: Outgoing,
    /// From [`Egress::class`].
    pub(crate) class: u32,
}

impl Packet for Item {
    fn size(&self) -> u32 {
        self.next.len
    }
    fn class(&self) -> u32 {
        self.class
    }
}

/// See the module's head.
pub(crate) enum Egress {
    /// Everything goes to the path at once.
    Fifo(PassThrough),
    /// Classes are served as the pipeline says: those of streams, or without any one per priority. How many messages wait.
    Classes(Box<Pipeline<Item>>, Option<Classes>, u64),
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
    pub(crate) fn new(settings: &Network) -> Result<Self, SpecError> {
        let (text, classes) = match settings.scheduler {
            Scheduler::Fifo => return Ok(Self::Fifo(PassThrough)),
            Scheduler::Strict => (strict(), None),
            Scheduler::Weighted => {
                // The configuration was checked.
                let classes = Classes::new(&settings.class).unwrap_or_default();
                (weighted(&classes), Some(classes))
            }
        };
        let pipeline = Pipeline::new(&PipelineSpec::from_toml(&text)?, 0)?;
        Ok(Self::Classes(Box::new(pipeline), classes, 0))
    }

    /// The class of a message of a stream.
    pub(crate) fn class(&self, qos: Option<&Qos>, priority: u8) -> u32 {
        match self {
            Self::Fifo(_) => 0,
            Self::Classes(_, Some(classes), _) => {
                qos.map_or_else(|| classes.of(&Qos::default()), |qos| classes.of(qos))
            }
            Self::Classes(_, None, _) => 15 - u32::from(priority.min(15)),
        }
    }

    pub(crate) fn is_fifo(&self) -> bool {
        matches!(self, Self::Fifo(_))
    }

    /// How many messages wait here.
    pub(crate) fn waiting(&self) -> u64 {
        if let Self::Classes(_, _, waiting) = self { *waiting } else { 0 }
    }

    /// Takes a message; what is returned is to go to the path at once.
    pub(crate) fn push(&mut self, now: Duration, item: Item) -> Option<Item> {
        match self {
            Self::Fifo(fifo) => fifo.push(|| time(now), item, &mut ()),
            Self::Classes(pipeline, _, waiting) => {
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
            Self::Classes(pipeline, _, waiting) => {
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

    fn egress(scheduler: Scheduler) -> Egress {
        Egress::new(&Network { scheduler, ..Network::default() }).unwrap()
    }

    fn item(egress: &Egress, token: u64, priority: u8, qos: &str) -> Item {
        Item {
            flow: (0, FlowId { lane: 0, number: 1 }),
            next: Outgoing { token, len: 100, priority, ..Outgoing::default() },
            class: egress.class(Some(&Qos::parse(qos).unwrap()), priority),
        }
    }

    #[test]
    fn higher_priorities_go_first_and_equal_ones_in_order() {
        let mut egress = egress(Scheduler::Strict);
        let now = Duration::from_secs(1);
        for (token, priority) in [(1, 0), (2, 15), (3, 7), (4, 15), (5, 0), (6, 200)] {
            let item = item(&egress, token, priority, "");
            assert!(egress.push(now, item).is_none());
        }
        assert_eq!(egress.waiting(), 6);
        let order: Vec<u64> = std::iter::from_fn(|| egress.pull(now)).map(|i| i.next.token).collect();
        assert_eq!((order, egress.waiting()), (vec![2, 4, 6, 3, 1, 5], 0));
    }

    #[test]
    fn classes_of_streams_share_by_weight_and_each_is_in_order() {
        let mut egress = egress(Scheduler::Weighted);
        let now = Duration::from_secs(1);
        let classes = ["timing=sensitive", "reliability=reliable", ""];
        for n in 0..1000 {
            for (class, qos) in classes.iter().enumerate() {
                let item = item(&egress, class as u64 * 1000 + n, 0, qos);
                assert!(egress.push(now, item).is_none());
            }
        }
        // 8 : 4 : 1 while all have something.
        let mut seen = [0_u64; 3];
        for _ in 0..1300 {
            let token = egress.pull(now).unwrap().next.token;
            let class = (token / 1000) as usize;
            assert_eq!(token % 1000, seen[class], "in order");
            seen[class] += 1;
        }
        assert!(seen.iter().zip([800_u64, 400, 100]).all(|(n, want)| n.abs_diff(want) <= 2), "{seen:?}");
        // What one does not use the others get.
        let rest = std::iter::from_fn(|| egress.pull(now)).count();
        assert_eq!((rest, egress.waiting()), (1700, 0));
    }

    #[test]
    fn first_in_first_out_holds_nothing() {
        let mut egress = egress(Scheduler::Fifo);
        let item = item(&egress, 9, 0, "");
        assert_eq!(egress.push(Duration::ZERO, item).map(|i| i.next.token), Some(9));
        assert!(egress.pull(Duration::ZERO).is_none() && egress.waiting() == 0);
    }
}
