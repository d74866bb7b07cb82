//! PIE (RFC 8033) with the delay measured by time stamps, and on request the enhancements of its §5.

use super::{Queue, Store};
use crate::packet::{DropReason, Outlet, Packet, Queued};
use crate::random::Rng;
use crate::spec::{PieSpec, QueueKind};
use crate::stats::StatMap;
use crate::time::{Span, Time};

/// Updates that are made up for after a pause, at most. After so many the probability has settled.
const MAX_CATCH_UP: u32 = 4_096;
/// Above this drop probability even ECN-capable packets are dropped (RFC 8033 §5.1).
const MARK_LIMIT: f64 = 0.1;

/// A PIE queue. The names of the state are RFC 8033's.
#[derive(Debug)]
pub struct Pie<P> {
    store: Store<P>,
    spec: PieSpec,
    rng: Rng,
    drop_prob: f64,
    accu_prob: f64,
    qdelay_old: Span,
    burst_allowance: Span,
    next_update: Option<Time>,
    early: u64,
    ecn_mark: u64,
    packets_in: u64,
    maxq: u64,
}

/// The delay of the packet that is at the head, zero if there is none.
fn delay<P: Packet>(store: &Store<P>, now: Time) -> Span {
    store.front().map_or(Span::ZERO, |item| now.since(item.meta.at))
}

impl<P: Packet> Pie<P> {
    /// An empty queue whose chances come from `seed`.
    #[must_use]
    pub const fn new(spec: PieSpec, seed: u64) -> Self {
        Self {
            store: Store::new(spec.limit),
            spec,
            rng: Rng::new(seed),
            drop_prob: 0.0,
            accu_prob: 0.0,
            qdelay_old: Span::ZERO,
            burst_allowance: spec.max_burst.0,
            next_update: None,
            early: 0,
            ecn_mark: 0,
            packets_in: 0,
            maxq: 0,
        }
    }

    /// The drop probability.
    #[must_use]
    pub const fn probability(&self) -> f64 {
        self.drop_prob
    }

    /// Makes the updates that were due. Nothing happened in between, so each is what a timer would have made of it.
    fn tick(&mut self, now: Time) {
        let period = self.spec.tupdate.0;
        let mut due = *self.next_update.get_or_insert(now + period);
        let mut left = MAX_CATCH_UP;
        while due <= now {
            self.update(delay(&self.store, due));
            due += period;
            left -= 1;
            if left == 0 {
                due = due.max(now + period);
            }
        }
        self.next_update = Some(due);
    }

    /// RFC 8033 §4.2: the new drop probability, and §4.4: the burst allowance.
    fn update(&mut self, qdelay: Span) {
        let (delay, old) = (qdelay.secs_f64(), self.qdelay_old.secs_f64());
        let mut p = self.spec.alpha * (delay - self.spec.target.0.secs_f64()) + self.spec.beta * (delay - old);
        p /= match self.drop_prob {
            d if d < 0.000_001 => 2048.0,
            d if d < 0.000_01 => 512.0,
            d if d < 0.000_1 => 128.0,
            d if d < 0.001 => 32.0,
            d if d < 0.01 => 8.0,
            d if d < 0.1 => 2.0,
            _ => 1.0,
        };
        if self.spec.enhanced && self.drop_prob >= 0.1 && p > 0.02 {
            p = 0.02;
        }
        self.drop_prob += p;
        if qdelay == Span::ZERO && self.qdelay_old == Span::ZERO {
            self.drop_prob *= 0.98;
        }
        self.drop_prob = self.drop_prob.clamp(0.0, 1.0);
        self.qdelay_old = qdelay;
        self.burst_allowance = self.burst_allowance - self.spec.tupdate.0;
    }

    fn half_target(&self) -> Span {
        Span::from_nanos(self.spec.target.0.nanos() / 2)
    }

    /// RFC 8033 §4.1, with §5.4's derandomisation where it is enabled: whether the arriving packet is to be dropped.
    fn drop_early(&mut self) -> bool {
        let calm = self.qdelay_old < self.half_target() && self.drop_prob < 0.2;
        if calm || self.store.bytes() <= 2 * u64::from(self.spec.mean_packet) {
            return false;
        }
        if self.spec.enhanced {
            if self.drop_prob == 0.0 {
                self.accu_prob = 0.0;
            }
            self.accu_prob += self.drop_prob;
            if self.accu_prob < 0.85 {
                return false;
            }
            if self.accu_prob >= 8.5 {
                return true;
            }
        }
        self.rng.unit() < self.drop_prob
    }
}

impl<P: Packet> Queue<P> for Pie<P> {
    fn enqueue(&mut self, now: Time, mut item: Queued<P>, out: &mut dyn Outlet<P>) {
        self.tick(now);
        self.packets_in += 1;
        let half = self.half_target();
        if self.drop_prob == 0.0 && delay(&self.store, now) < half && self.qdelay_old < half {
            self.burst_allowance = self.spec.max_burst.0;
        }
        if self.burst_allowance == Span::ZERO && self.drop_early() {
            self.accu_prob = 0.0;
            if !(self.spec.ecn && self.drop_prob < MARK_LIMIT && item.mark()) {
                self.early += 1;
                return out.dropped(item, DropReason::AqmEnqueue);
            }
            self.ecn_mark += 1;
        }
        self.store.push(item, out);
        self.maxq = self.maxq.max(self.store.packets() as u64);
    }
    fn restore(&mut self, item: Queued<P>) {
        self.store.push_always(item);
    }
    fn head(&mut self, now: Time, _out: &mut dyn Outlet<P>) -> Option<u32> {
        self.tick(now);
        self.store.front().map(|item| item.meta.size)
    }
    fn pop(&mut self, now: Time) -> Option<Queued<P>> {
        self.tick(now);
        self.store.pop()
    }
    fn shed(&mut self) -> Option<Queued<P>> {
        self.store.pop()
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
    fn modify(&mut self, now: Time, kind: &QueueKind) -> bool {
        let QueueKind::Pie(spec) = kind else { return false };
        self.tick(now);
        self.spec = *spec;
        self.store.limit = spec.limit;
        true
    }
    fn stats(&self, out: &mut StatMap) {
        out.real("prob", self.drop_prob);
        out.count("delay_ns", self.qdelay_old.nanos());
        out.count("packets_in", self.packets_in);
        out.count("dropped", self.early);
        out.count("overlimit", self.store.overlimits);
        out.count("maxq", self.maxq);
        out.count("ecn_mark", self.ecn_mark);
    }
}
