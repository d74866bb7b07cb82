//! RED (Floyd and Jacobson 1993), with the gentle region of Floyd's later note and optional ECN.

use super::{Queue, Store};
use crate::packet::{DropReason, Outlet, Packet, Queued};
use crate::random::Rng;
use crate::spec::{QueueKind, RedSpec};
use crate::stats::StatMap;
use crate::time::Time;

/// A RED queue: early drops or marks by the moving average of its length in bytes.
#[derive(Debug)]
pub struct Red<P> {
    store: Store<P>,
    spec: RedSpec,
    rng: Rng,
    /// The moving average in bytes.
    avg: f64,
    /// Packets since the last early drop or mark; -1 below the minimum.
    count: i64,
    idle_since: Option<Time>,
    /// The last instant anything happened at.
    last: Time,
    early: u64,
    forced: u64,
    ecn_mark: u64,
}

/// What RED decides for an arriving packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signal {
    None,
    /// A drop or mark by chance.
    Early,
    /// Above the maximum: always a drop.
    Forced,
}

#[expect(clippy::cast_precision_loss, reason = "queue lengths are far below 2^53")]
impl<P: Packet> Red<P> {
    /// An empty queue whose chances come from `seed`.
    #[must_use]
    pub const fn new(spec: RedSpec, seed: u64) -> Self {
        Self {
            store: Store::new(spec.limit),
            spec,
            rng: Rng::new(seed),
            avg: 0.0,
            count: -1,
            idle_since: Some(Time::ZERO),
            last: Time::ZERO,
            early: 0,
            forced: 0,
            ecn_mark: 0,
        }
    }

    /// The average in bytes.
    #[must_use]
    pub const fn average(&self) -> f64 {
        self.avg
    }

    /// Brings the average up to an arrival. An idle queue's decays as if small packets had gone by.
    fn update(&mut self, now: Time) {
        let weight = self.spec.weight;
        match self.idle_since.take() {
            None => self.avg += weight * (self.store.bytes() as f64 - self.avg),
            Some(since) => {
                let small_packets =
                    now.since(since).secs_f64() * self.spec.bandwidth.0 as f64 / 8.0 / f64::from(self.spec.avpkt);
                self.avg *= (1.0 - weight).powf(small_packets);
            }
        }
    }

    fn signal(&mut self) -> Signal {
        let (min, max) = (self.spec.min.0 as f64, self.spec.max.0 as f64);
        if self.avg < min {
            self.count = -1;
            return Signal::None;
        }
        let chance = if self.avg < max {
            self.spec.probability * (self.avg - min) / (max - min)
        } else if self.spec.gentle && self.avg < 2.0 * max {
            self.spec.probability + (1.0 - self.spec.probability) * (self.avg - max) / max
        } else {
            self.count = 0;
            return Signal::Forced;
        };
        self.count += 1;
        let spread = 1.0 - self.count as f64 * chance;
        let chance = if spread <= 0.0 { 1.0 } else { chance / spread };
        if self.rng.unit() < chance {
            self.count = 0;
            return Signal::Early;
        }
        Signal::None
    }

    /// Notes since when the queue is empty, if it is.
    fn note_idle(&mut self, now: Time) {
        self.last = now;
        if self.store.packets() == 0 {
            self.idle_since = Some(now);
        }
    }
}

impl<P: Packet> Queue<P> for Red<P> {
    fn enqueue(&mut self, now: Time, mut item: Queued<P>, out: &mut dyn Outlet<P>) {
        self.update(now);
        match self.signal() {
            Signal::None => {}
            Signal::Early if self.spec.ecn && item.mark() => self.ecn_mark += 1,
            Signal::Early => {
                self.early += 1;
                self.note_idle(now);
                return out.dropped(item, DropReason::AqmEnqueue);
            }
            Signal::Forced => {
                self.forced += 1;
                self.note_idle(now);
                return out.dropped(item, DropReason::AqmEnqueue);
            }
        }
        self.store.push(item, out);
        self.note_idle(now);
    }
    fn restore(&mut self, item: Queued<P>) {
        self.idle_since = None;
        self.store.push_always(item);
    }
    fn head(&mut self, _now: Time, _out: &mut dyn Outlet<P>) -> Option<u32> {
        self.store.front().map(|item| item.meta.size)
    }
    fn pop(&mut self, now: Time) -> Option<Queued<P>> {
        let item = self.store.pop();
        self.note_idle(now);
        item
    }
    fn shed(&mut self) -> Option<Queued<P>> {
        let item = self.store.pop();
        self.note_idle(self.last);
        item
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
        let QueueKind::Red(spec) = kind else { return false };
        self.spec = *spec;
        self.store.limit = spec.limit;
        true
    }
    fn stats(&self, out: &mut StatMap) {
        out.count("early", self.early);
        out.count("pdrop", self.store.overlimits);
        out.count("forced", self.forced);
        out.count("marked", self.ecn_mark);
        out.count("ecn_mark", self.ecn_mark);
        out.real("qavg", self.avg);
    }
}
