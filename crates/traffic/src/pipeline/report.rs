//! Statistics of a pipeline, and the check that they add up.

use super::{Pipeline, Volume};
use crate::packet::{DropReason, Packet};
use crate::police::Policer;
use crate::queue::Queue;
use crate::shape::Shaper;
use crate::stats::{Basic, PipelineStats, QueueStats, StatMap};

impl<P: Packet> Pipeline<P> {
    /// Everything that is counted, stage by stage.
    #[must_use]
    pub fn stats(&self) -> PipelineStats {
        self.stats_within(usize::MAX).0
    }

    /// As [`Self::stats`], with at most `most` queues, those first that hold packets, and at most `most` filters, in the order
    /// in which they are tried: what it costs does not grow with the pipeline. The second value is how many are left out.
    #[must_use]
    pub fn stats_within(&self, most: usize) -> (PipelineStats, usize) {
        let mut dropped = StatMap::default();
        for reason in DropReason::ALL {
            dropped.count(reason.name(), self.dropped[reason as usize].packets);
        }
        let drops = self.dropped.iter().map(|v| v.packets).sum();
        let basic = Basic {
            bytes: self.forwarded.bytes,
            packets: self.forwarded.packets,
            drops,
            overlimits: self.overlimits,
            requeues: self.requeues,
            backlog: self.held.bytes,
            qlen: self.held.packets,
            maxpacket: self.maxpacket.into(),
        };
        let map = |fill: &dyn Fn(&mut StatMap)| {
            let mut out = StatMap::default();
            fill(&mut out);
            out
        };
        let filters = self.classifier.filter_stats(most);
        let queues = self.queue_stats(most);
        let left_out = self.layout.filters.len() - filters.len() + self.slots.count - queues.len();
        let stats = PipelineStats {
            generation: self.generation,
            packets_in: self.arrived.packets,
            bytes_in: self.arrived.bytes,
            basic,
            dropped,
            filters,
            unmatched: self.classifier.unmatched,
            classifier: map(&|out| self.classifier.stats(out)),
            queues,
            scheduler: map(&|out| {
                self.scheduler.stats(out);
                // A scheduler from elsewhere has faults of its own.
                out.add("faults", self.scheduler_faults);
            }),
            pacer: map(&|out| self.pacer.stats(out)),
        };
        (stats, left_out)
    }

    fn queue_stats(&self, most: usize) -> Vec<QueueStats> {
        let one = |(id, slot): (crate::QueueId, &super::slots::Slot<P>)| {
            let basic = Basic { backlog: slot.queue.bytes(), qlen: slot.queue.packets() as u64, ..slot.basic };
            let mut xstats = StatMap::default();
            slot.queue.stats(&mut xstats);
            let police = slot.policer.as_ref().map(|p| {
                let mut out = StatMap::default();
                p.stats(&mut out);
                out
            });
            let shaper = slot.shaper.as_ref().map(|s| {
                let mut out = StatMap::default();
                s.stats(&mut out);
                out
            });
            QueueStats {
                id: id.0,
                kind: self.layout.queues.get(&id).map_or("", |q| q.kind.name()).to_owned(),
                basic,
                avg_sojourn_ns: slot.avg_sojourn.nanos(),
                last_sojourn_ns: slot.last_sojourn.nanos(),
                xstats,
                police,
                shaper,
            }
        };
        if self.slots.count <= most {
            return self.slots.iter().map(one).collect();
        }
        let of = |busy: bool| self.slots.iter().filter(move |(_, slot)| (slot.queue.packets() > 0) == busy);
        let mut chosen: Vec<_> = of(true).chain(of(false)).take(most).collect();
        chosen.sort_unstable_by_key(|(id, _)| *id);
        chosen.into_iter().map(one).collect()
    }

    /// Checks that every packet handed in is forwarded, dropped for a counted reason, or in a queue, and likewise every
    /// byte; and that what each queue says it holds is what the pipeline believes.
    ///
    /// # Errors
    /// What does not add up.
    pub fn audit(&self) -> Result<(), String> {
        let mut queued = Volume::default();
        for (id, slot) in self.slots.iter() {
            let bytes = slot.queue.bytes();
            queued.packets += slot.queue.packets() as u64;
            queued.bytes += bytes;
            if self.slots.backlog(id) != bytes {
                return Err(format!("queue {id} holds {bytes} bytes, noted are {}", self.slots.backlog(id)));
            }
        }
        let dropped = self
            .dropped
            .iter()
            .fold(Volume::default(), |sum, v| Volume { packets: sum.packets + v.packets, bytes: sum.bytes + v.bytes });
        let sum = Volume {
            packets: self.forwarded.packets + dropped.packets + queued.packets,
            bytes: self.forwarded.bytes + dropped.bytes + queued.bytes,
        };
        if queued != self.held || sum != self.arrived {
            return Err(format!(
                "in {:?}, forwarded {:?}, dropped {dropped:?}, queued {queued:?}, believed to be queued {:?}",
                self.arrived, self.forwarded, self.held
            ));
        }
        Ok(())
    }
}
