//! CoDel (RFC 8289) with optional ECN marking and Linux's `ce_threshold`.

use super::{Queue, Store};
use crate::packet::{DropReason, Meta, Outlet, Packet, Queued};
use crate::spec::{CodelSpec, QueueKind};
use crate::stats::StatMap;
use crate::time::{Span, Time};

/// A CoDel queue. The names of the state are RFC 8289's.
#[derive(Debug)]
pub struct Codel<P> {
    store: Store<P>,
    /// It has been decided that the head leaves.
    ready: bool,
    spec: CodelSpec,
    first_above_time: Option<Time>,
    drop_next: Time,
    count: u32,
    lastcount: u32,
    dropping: bool,
    ldelay: Span,
    drops: u64,
    ecn_mark: u64,
    ce_mark: u64,
}

impl<P: Packet> Codel<P> {
    /// An empty queue.
    #[must_use]
    pub const fn new(spec: CodelSpec) -> Self {
        Self {
            store: Store::new(spec.limit),
            ready: false,
            spec,
            first_above_time: None,
            drop_next: Time::ZERO,
            count: 0,
            lastcount: 0,
            dropping: false,
            ldelay: Span::ZERO,
            drops: 0,
            ecn_mark: 0,
            ce_mark: 0,
        }
    }

    /// RFC 8289 §5.6 `control_law`.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "times below 2^53 ns"
    )]
    fn control_law(&self, from: Time) -> Time {
        from + Span::from_nanos((self.spec.interval.0.nanos() as f64 / f64::from(self.count.max(1)).sqrt()) as u64)
    }

    /// RFC 8289 §5.6 `dodequeue`, which only looks: whether the head may be dropped; `None` if there is none.
    #[inline]
    fn look(&mut self, now: Time) -> Option<bool> {
        let Some(Meta { at, size, .. }) = self.store.front().map(|item| item.meta) else {
            self.first_above_time = None;
            return None;
        };
        self.ldelay = now.since(at);
        if self.ldelay < self.spec.target.0 || self.store.bytes() - u64::from(size) <= u64::from(self.spec.mtu) {
            self.first_above_time = None;
            return Some(false);
        }
        match self.first_above_time {
            None => {
                self.first_above_time = Some(now + self.spec.interval.0);
                Some(false)
            }
            Some(above) => Some(now >= above),
        }
    }

    /// Marks the head where that is allowed; false if it has to be dropped.
    fn mark(&mut self) -> bool {
        let marked = self.spec.ecn && self.store.mark_front();
        self.ecn_mark += u64::from(marked);
        marked
    }

    fn drop_head(&mut self, out: &mut dyn Outlet<P>) {
        let Some(item) = self.store.pop() else { return };
        self.drops += 1;
        out.dropped(item, DropReason::AqmDequeue);
    }

    /// RFC 8289 §5.5 `deque`, after which the head is what leaves; where a packet is marked instead of dropped it is that.
    #[inline]
    fn decide(&mut self, now: Time, out: &mut dyn Outlet<P>) {
        let may_drop = self.look(now) == Some(true);
        if self.dropping {
            self.dropping = may_drop;
            while self.dropping && now >= self.drop_next {
                self.count = self.count.saturating_add(1);
                if self.mark() {
                    self.drop_next = self.control_law(self.drop_next);
                    return;
                }
                self.drop_head(out);
                self.dropping = self.look(now) == Some(true);
                if self.dropping {
                    self.drop_next = self.control_law(self.drop_next);
                }
            }
        } else if may_drop {
            if !self.mark() {
                self.drop_head(out);
                self.look(now);
            }
            self.dropping = true;
            let delta = self.count.saturating_sub(self.lastcount);
            let recent = now.since(self.drop_next) < self.spec.interval.0.times(16);
            self.count = if delta > 1 && recent { delta } else { 1 };
            self.drop_next = self.control_law(now);
            self.lastcount = self.count;
        }
    }

    fn step_mark(&mut self, now: Time) {
        if let Some(threshold) = self.spec.ce_threshold
            && self.store.front().is_some_and(|item| now.since(item.meta.at) > threshold.0)
            && self.store.mark_front()
        {
            self.ce_mark += 1;
        }
    }
}

impl<P: Packet> Queue<P> for Codel<P> {
    fn enqueue(&mut self, _now: Time, item: Queued<P>, out: &mut dyn Outlet<P>) {
        self.store.push(item, out);
    }
    fn restore(&mut self, item: Queued<P>) {
        self.store.push_always(item);
    }
    fn head(&mut self, now: Time, out: &mut dyn Outlet<P>) -> Option<u32> {
        if !self.ready {
            self.decide(now, out);
            self.step_mark(now);
        }
        let size = self.store.front().map(|item| item.meta.size);
        self.ready = size.is_some();
        size
    }
    fn pop(&mut self, _now: Time) -> Option<Queued<P>> {
        std::mem::take(&mut self.ready).then(|| self.store.pop()).flatten()
    }
    fn shed(&mut self) -> Option<Queued<P>> {
        self.ready = false;
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
    fn modify(&mut self, _now: Time, kind: &QueueKind) -> bool {
        let QueueKind::Codel(spec) = kind else { return false };
        self.spec = *spec;
        self.store.limit = spec.limit;
        true
    }
    fn stats(&self, out: &mut StatMap) {
        out.count("count", self.count.into());
        out.count("lastcount", self.lastcount.into());
        out.count("ldelay_ns", self.ldelay.nanos());
        out.count("drop_next_ns", if self.dropping { self.drop_next.nanos() } else { 0 });
        out.count("drop_overlimit", self.store.overlimits);
        out.count("aqm_drops", self.drops);
        out.count("ecn_mark", self.ecn_mark);
        out.count("ce_mark", self.ce_mark);
        out.count("dropping", self.dropping.into());
    }
}
