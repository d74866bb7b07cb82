//! DualPI2 (RFC 9332 Appendix A): a classic and a low-latency queue whose AQMs are coupled.
//!
//! The two are queues of the pipeline like any other, so that each can have a policer, a shaper and statistics, and any
//! scheduler serves them (conditional priority is the one RFC 9332 asks for). What they share is [`Coupling`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Queue, Store};
use crate::packet::{DropReason, Ecn, Outlet, Packet, Queued};
use crate::spec::{Dualpi2Spec, PairRole, QueueKind};
use crate::stats::StatMap;
use crate::time::{Span, Time};

/// Updates that are made up for after a pause, at most.
const MAX_CATCH_UP: u32 = 4_096;
/// The published head time of an empty queue.
const EMPTY: u64 = u64::MAX;

/// What the two queues of a pair know of each other.
///
/// Only one thread uses a pipeline at a time, so relaxed atomics are enough: they are here to share without `unsafe` and
/// without a lock, not to synchronise. Whoever moves a pipeline between threads synchronises.
#[derive(Debug)]
pub struct Coupling {
    /// When the head of each queue arrived, in nanoseconds, by role.
    heads: [AtomicU64; 2],
    /// Bytes in each queue, by role.
    bytes: [AtomicU64; 2],
    /// The base probability p' as bits of an `f64`.
    p_base: AtomicU64,
    /// The delay at the last update, in nanoseconds.
    prev_delay: AtomicU64,
    /// When the next update is due, in nanoseconds; 0 before the first.
    next_update: AtomicU64,
}

impl Default for Coupling {
    fn default() -> Self {
        Self {
            heads: [AtomicU64::new(EMPTY), AtomicU64::new(EMPTY)],
            bytes: [AtomicU64::new(0), AtomicU64::new(0)],
            p_base: AtomicU64::new(0),
            prev_delay: AtomicU64::new(0),
            next_update: AtomicU64::new(0),
        }
    }
}

impl Coupling {
    /// The base probability p'.
    #[must_use]
    pub fn base(&self) -> f64 {
        f64::from_bits(self.p_base.load(Relaxed))
    }

    fn delay(&self, role: PairRole, now: Time) -> Span {
        match self.heads[role as usize].load(Relaxed) {
            EMPTY => Span::ZERO,
            head => now.since(Time::from_nanos(head)),
        }
    }

    fn total_bytes(&self) -> u64 {
        self.bytes[0].load(Relaxed) + self.bytes[1].load(Relaxed)
    }

    /// RFC 9332 A.1 `dualpi2_update`, as often as it was due.
    fn tick(&self, now: Time, spec: &Dualpi2Spec) {
        let period = spec.tupdate.0;
        let mut due = match self.next_update.load(Relaxed) {
            0 => now + period,
            at => Time::from_nanos(at),
        };
        let mut left = MAX_CATCH_UP;
        while due <= now {
            self.update(due, spec);
            due += period;
            left -= 1;
            if left == 0 {
                due = due.max(now + period);
            }
        }
        self.next_update.store(due.nanos(), Relaxed);
    }

    fn update(&self, at: Time, spec: &Dualpi2Spec) {
        let current = self.delay(PairRole::L4s, at).max(self.delay(PairRole::Classic, at));
        let previous = Span::from_nanos(self.prev_delay.swap(current.nanos(), Relaxed));
        let step = spec.alpha * (current.secs_f64() - spec.target.0.secs_f64())
            + spec.beta * (current.secs_f64() - previous.secs_f64());
        self.p_base.store((self.base() + step).clamp(0.0, 1.0).to_bits(), Relaxed);
    }
}

/// One queue of a pair.
#[derive(Debug)]
pub struct Dualpi2<P> {
    store: Store<P>,
    /// The head, once it has been decided that it leaves.
    ready: Option<Queued<P>>,
    spec: Dualpi2Spec,
    coupling: Arc<Coupling>,
    /// What the likelihoods since the last signal add up to (RFC 9332 A.1 `recur`).
    count: f64,
    drops: u64,
    ecn_mark: u64,
    step_marks: u64,
    packets_in: u64,
    maxq: u64,
}

impl<P: Packet> Dualpi2<P> {
    /// An empty queue of the pair that `coupling` stands for.
    #[must_use]
    pub fn new(spec: Dualpi2Spec, coupling: Arc<Coupling>) -> Self {
        Self {
            store: Store::new(spec.limit),
            ready: None,
            spec,
            coupling,
            count: 0.0,
            drops: 0,
            ecn_mark: 0,
            step_marks: 0,
            packets_in: 0,
            maxq: 0,
        }
    }

    /// Tells the other queue how this one stands.
    fn publish(&self) {
        let role = self.spec.role as usize;
        self.coupling.heads[role].store(self.head_time().map_or(EMPTY, Time::nanos), Relaxed);
        self.coupling.bytes[role].store(self.bytes(), Relaxed);
    }

    /// True as often as the likelihood says, evenly spread.
    fn recur(&mut self, likelihood: f64) -> bool {
        self.count += likelihood;
        if self.count > 1.0 {
            self.count -= 1.0;
            return true;
        }
        false
    }

    /// The native AQM of the L queue: a ramp over the packet's own delay.
    fn ramp(&self, delay: Span, queued: usize) -> f64 {
        if queued <= self.spec.min_packets as usize {
            return 0.0;
        }
        let (delay, min) = (delay.nanos(), self.spec.ramp_min.0.nanos());
        let range = self.spec.ramp_range.0.nanos();
        if delay <= min {
            0.0
        } else if delay - min >= range {
            1.0
        } else {
            #[expect(clippy::cast_precision_loss, reason = "delays below 2^53 ns")]
            {
                (delay - min) as f64 / range as f64
            }
        }
    }

    /// Whether the packet that leaves is marked, dropped or left alone. `queued` counts it.
    fn decide(&mut self, item: &mut Queued<P>, now: Time, queued: usize) -> bool {
        let base = self.coupling.base();
        // Too little stands in both queues together to speak of congestion.
        let few = self.coupling.total_bytes() < 2 * u64::from(self.spec.mtu);
        let (p_classic, p_coupled) = if few { (0.0, 0.0) } else { (base * base, self.spec.coupling_factor * base) };
        match self.spec.role {
            PairRole::Classic => {
                if !self.recur(p_classic) {
                    return true;
                }
                // Above the most that k leaves room for even ECN is no way out (RFC 9332 A.2).
                let saturated = p_classic >= (1.0 / self.spec.coupling_factor.powi(2)).min(1.0);
                let kept = !saturated && item.meta.ecn != Ecn::NotEct && item.mark();
                self.ecn_mark += u64::from(kept);
                kept
            }
            PairRole::L4s if p_coupled < 1.0 => {
                let native = self.ramp(now.since(item.meta.at), queued);
                if !self.recur(native.max(p_coupled)) {
                    return true;
                }
                self.step_marks += u64::from(native >= p_coupled);
                self.mark_l4s(item)
            }
            PairRole::L4s => {
                if self.recur(p_classic) {
                    return false;
                }
                !self.recur(p_coupled) || self.mark_l4s(item)
            }
        }
    }

    /// A packet in the L queue that cannot be marked is dropped: it would never hear of the congestion.
    fn mark_l4s(&mut self, item: &mut Queued<P>) -> bool {
        let marked = item.mark();
        self.ecn_mark += u64::from(marked);
        marked
    }
}

impl<P: Packet> Queue<P> for Dualpi2<P> {
    fn enqueue(&mut self, now: Time, item: Queued<P>, out: &mut dyn Outlet<P>) {
        self.coupling.tick(now, &self.spec);
        self.packets_in += 1;
        if self.coupling.total_bytes() + u64::from(item.meta.size) > self.spec.limit.bytes.0 {
            self.store.overlimits += 1;
            return out.dropped(item, DropReason::QueueBytes);
        }
        self.store.push(item, out);
        self.maxq = self.maxq.max(self.packets() as u64);
        self.publish();
    }
    fn restore(&mut self, item: Queued<P>) {
        self.store.push_always(item);
        self.publish();
    }
    fn head(&mut self, now: Time, out: &mut dyn Outlet<P>) -> Option<u32> {
        self.coupling.tick(now, &self.spec);
        while self.ready.is_none() {
            let queued = self.store.packets();
            let Some(mut item) = self.store.pop() else { break };
            if self.decide(&mut item, now, queued) {
                self.ready = Some(item);
            } else {
                self.drops += 1;
                out.dropped(item, DropReason::AqmDequeue);
            }
            self.publish();
        }
        self.ready.as_ref().map(|item| item.meta.size)
    }
    fn pop(&mut self, now: Time) -> Option<Queued<P>> {
        self.coupling.tick(now, &self.spec);
        let item = self.ready.take();
        self.publish();
        item
    }
    fn shed(&mut self) -> Option<Queued<P>> {
        let item = self.ready.take().or_else(|| self.store.pop());
        self.publish();
        item
    }
    fn packets(&self) -> usize {
        self.store.packets() + usize::from(self.ready.is_some())
    }
    fn bytes(&self) -> u64 {
        self.store.bytes() + self.ready.as_ref().map_or(0, |item| u64::from(item.meta.size))
    }
    fn head_time(&self) -> Option<Time> {
        self.ready.as_ref().or_else(|| self.store.front()).map(|item| item.meta.at)
    }
    fn modify(&mut self, now: Time, kind: &QueueKind) -> bool {
        let QueueKind::Dualpi2(spec) = kind else { return false };
        if spec.role != self.spec.role || spec.pair != self.spec.pair {
            return false;
        }
        self.coupling.tick(now, &self.spec);
        self.spec = spec.clone();
        self.store.limit = spec.limit;
        true
    }
    fn stats(&self, out: &mut StatMap) {
        out.real("prob", self.coupling.base());
        out.count("packets_in", self.packets_in);
        out.count("maxq", self.maxq);
        out.count("ecn_mark", self.ecn_mark);
        out.count("step_marks", self.step_marks);
        out.count("drops_aqm", self.drops);
        out.count("overlimit", self.store.overlimits);
    }
}
