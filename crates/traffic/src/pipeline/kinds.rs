//! The stages of a queue as its slot holds them: the usual ones in place, all others behind a pointer.
//!
//! A pipeline may have thousands of queues, and each packet goes through another one: what it meets there is seldom in a
//! cache. A stage in place saves the pointer to follow, and its calls are known when this is compiled.

use crate::classify::PacketView;
use crate::packet::{Outlet, Packet, Queued};
use crate::police::{Policer, Tricolour, Verdict};
use crate::queue::{Codel, Fifo, Queue};
use crate::shape::{Readiness, Shaper, TokenBucket};
use crate::spec::{PolicerSpec, QueueKind, ShaperSpec};
use crate::stats::StatMap;
use crate::time::Time;

/// A queue.
pub(super) enum AnyQueue<P> {
    Codel(Codel<P>),
    Fifo(Fifo<P>),
    Other(Box<dyn Queue<P>>),
}

/// A policer.
pub(super) enum AnyPolicer {
    Tricolour(Tricolour),
    Other(Box<dyn Policer>),
}

/// A shaper.
pub(super) enum AnyShaper {
    TokenBucket(TokenBucket),
    Other(Box<dyn Shaper>),
}

/// Does the same with the stage of whatever kind it is.
macro_rules! with {
    ($any:expr, $($kind:ident)|+, $stage:ident => $what:expr) => {
        match $any { $(Self::$kind($stage) => $what,)+ }
    };
}

impl<P: Packet> Queue<P> for AnyQueue<P> {
    #[inline]
    fn enqueue(&mut self, now: Time, item: Queued<P>, out: &mut dyn Outlet<P>) {
        with!(self, Codel | Fifo | Other, queue => queue.enqueue(now, item, out));
    }
    fn restore(&mut self, item: Queued<P>) {
        with!(self, Codel | Fifo | Other, queue => queue.restore(item));
    }
    #[inline]
    fn head(&mut self, now: Time, out: &mut dyn Outlet<P>) -> Option<u32> {
        with!(self, Codel | Fifo | Other, queue => queue.head(now, out))
    }
    #[inline]
    fn pop(&mut self, now: Time) -> Option<Queued<P>> {
        with!(self, Codel | Fifo | Other, queue => queue.pop(now))
    }
    fn shed(&mut self) -> Option<Queued<P>> {
        with!(self, Codel | Fifo | Other, queue => queue.shed())
    }
    #[inline]
    fn packets(&self) -> usize {
        with!(self, Codel | Fifo | Other, queue => queue.packets())
    }
    #[inline]
    fn bytes(&self) -> u64 {
        with!(self, Codel | Fifo | Other, queue => queue.bytes())
    }
    fn head_time(&self) -> Option<Time> {
        with!(self, Codel | Fifo | Other, queue => queue.head_time())
    }
    fn modify(&mut self, now: Time, kind: &QueueKind) -> bool {
        with!(self, Codel | Fifo | Other, queue => queue.modify(now, kind))
    }
    fn stats(&self, out: &mut StatMap) {
        with!(self, Codel | Fifo | Other, queue => queue.stats(out));
    }
}

impl Policer for AnyPolicer {
    #[inline]
    fn police(&mut self, now: Time, packet: &PacketView<'_>) -> Verdict {
        with!(self, Tricolour | Other, policer => policer.police(now, packet))
    }
    fn misdirected(&mut self) {
        with!(self, Tricolour | Other, policer => policer.misdirected());
    }
    fn modify(&mut self, spec: &PolicerSpec) -> bool {
        with!(self, Tricolour | Other, policer => policer.modify(spec))
    }
    fn stats(&self, out: &mut StatMap) {
        with!(self, Tricolour | Other, policer => policer.stats(out));
    }
}

impl Shaper for AnyShaper {
    #[inline]
    fn ready(&mut self, now: Time, size: u32) -> Readiness {
        with!(self, TokenBucket | Other, shaper => shaper.ready(now, size))
    }
    #[inline]
    fn sent(&mut self, now: Time, size: u32) {
        with!(self, TokenBucket | Other, shaper => shaper.sent(now, size));
    }
    fn modify(&mut self, spec: &ShaperSpec) -> bool {
        with!(self, TokenBucket | Other, shaper => shaper.modify(spec))
    }
    fn stats(&self, out: &mut StatMap) {
        with!(self, TokenBucket | Other, shaper => shaper.stats(out));
    }
}
