//! Where a plan of faults ([`crate::faults`]) gets hold of what a source emits.
//!
//! A message that is lost is counted as one that found the link full. One that is held back is, for all that the rest knows, on the
//! link already: it is counted, holds its slot and has its entry of the ring set aside, so that nothing can come between; only its
//! descriptor is published later. So it is let go before a flow of it ends, and is then unconfirmed, or for its sink, as any other.

use super::{Emit, Route, Tx, TxLink, TxSource};
use crate::error::Result;
use crate::faults::{Control, Plan, Random};
use insane_shm::counters::Count;
use insane_shm::link::Descriptor;
use insane_shm::slab::Slab;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The faults of one source.
#[derive(Debug)]
pub(crate) struct Faults {
    control: Control,
    seed: u64,
    /// For calls that borrow memory.
    calls: Random,
    links: Vec<OnLink>,
    /// How many links there were so far.
    begun: u64,
}

/// Those on one link.
#[derive(Debug)]
struct OnLink {
    at: usize,
    random: Random,
    /// For the next message, if somebody asked whether there is room for it.
    next: Option<Draw>,
    full_until: Option<Instant>,
    held: VecDeque<Held>,
}

/// What chance has for a message: what comes of it is the plan's affair.
#[derive(Debug, Clone, Copy)]
struct Draw {
    lose: u32,
    delay: u32,
    /// Its loss became a wait, which is over.
    spared: bool,
}

/// A message that is held back.
#[derive(Debug)]
struct Held {
    due: Instant,
    descriptor: Descriptor,
    inline: Box<[u8]>,
}

/// As far ahead as it goes.
fn later(now: Instant, by: Duration) -> Instant {
    now.checked_add(by).unwrap_or_else(|| now + Duration::from_secs(1 << 30))
}

impl Draw {
    fn is_lost(self, plan: &Plan) -> bool {
        !self.spared && self.lose < plan.lose_ppm
    }
}

impl OnLink {
    fn draw(&mut self) -> Draw {
        Draw { lose: self.random.part(), delay: self.random.part(), spared: false }
    }

    /// Whether it has no room for who asks now.
    fn is_full(&mut self, control: &Control, now: Instant) -> bool {
        let mut draw = self.next.unwrap_or_else(|| self.draw());
        let mut state = control.lock();
        let plan = state.plan;
        let lost = draw.is_lost(&plan);
        let full = match self.full_until {
            _ if !lost => false,
            Some(until) => now < until,
            None => {
                self.full_until = Some(later(now, plan.delay));
                state.injected.full += 1;
                true
            }
        };
        draw.spared |= lost && !full;
        self.next = Some(draw);
        full || plan.cut
    }

    /// Publishes what is due by `now`, or all. The caller knows that the link is this one's.
    fn let_go(&mut self, link: &mut TxLink, now: Option<Instant>) {
        let mut gone = false;
        let is_due = |held: &mut Held| now.is_none_or(|now| held.due <= now);
        while self.held.front_mut().is_some_and(is_due)
            && let Some(held) = self.held.pop_front()
        {
            link.reserved -= 1;
            link.producer.push(&held.descriptor, &held.inline);
            gone = true;
        }
        if gone {
            link.wake();
        }
    }
}

/// Whether messages on a link are at the plan's mercy: towards the runtime it is the datapaths that have faults, and who looks on is
/// to see what was emitted.
fn is_spoiled(link: Option<&Option<TxLink>>, route: &Route) -> bool {
    link.and_then(Option::as_ref).is_some_and(|link| !link.network) && route.is_meant()
}

impl Faults {
    pub(crate) fn new(control: Control, seed: u64) -> Self {
        Self { control, seed, calls: Random::new(seed, 0), links: Vec::new(), begun: 0 }
    }

    fn on(&mut self, at: usize) -> (&Control, &mut OnLink) {
        let known = self.links.iter().position(|on| on.at == at);
        let nth = known.unwrap_or_else(|| {
            self.begun += 1;
            let random = Random::new(self.seed, self.begun);
            self.links.push(OnLink { at, random, next: None, full_until: None, held: VecDeque::new() });
            self.links.len() - 1
        });
        (&self.control, &mut self.links[nth])
    }

    /// Loses a message on a link, or holds it back, which is as [`TxLink::give`]; `None`: it is to be given to the link. A slot has
    /// `bytes`, and a link's cap is `cap`.
    pub(super) fn take(
        &mut self,
        link: &mut TxLink,
        route: &mut Route,
        (descriptor, emit): (&Descriptor, &Emit<'_>),
        (bytes, cap): (u64, u64),
        slab: &mut Slab,
    ) -> Option<bool> {
        if link.network || !route.is_meant() || link.broken.is_some() {
            return None;
        }
        let sinks = route.flows.iter().filter(|flow| !flow.observer).count() as u64;
        let (control, on) = self.on(route.link);
        let draw = on.next.take().unwrap_or_else(|| on.draw());
        on.full_until = None;
        let mut state = control.lock();
        let plan = state.plan;
        let injected = &mut state.injected;
        injected.seen += sinks;
        if plan.cut || draw.is_lost(&plan) {
            *if plan.cut { &mut injected.cut } else { &mut injected.lost } += sinks;
            route.flows.iter_mut().for_each(|flow| flow.dropped(descriptor, Count::SinkFull));
            return Some(false);
        }
        let late = draw.delay < plan.delay_ppm;
        if !late && on.held.is_empty() {
            return None;
        }
        let full = !link.fits(bytes, cap);
        let room = !full || link.has_room_again(bytes, cap, slab);
        let mapped = emit.place.slot().is_none_or(|s| link.producer.is_mapped(s.segment));
        if !room || !mapped || link.broken.is_some() {
            return None;
        }
        injected.delayed += if late { sinks } else { 0 };
        for flow in &mut route.flows {
            flow.given += 1;
            if !flow.observer {
                flow.cell.add(Count::Intended, 1);
            }
        }
        if let Some(slot) = emit.place.slot() {
            slab.hold(slot);
            link.held += bytes;
        }
        link.reserved += 1;
        let now = Instant::now();
        let due = if late { later(now, plan.delay) } else { now };
        let due = on.held.back().map_or(due, |last| last.due.max(due));
        on.held.push_back(Held { due, descriptor: *descriptor, inline: emit.inline.into() });
        if state.due.is_none_or(|first| due < first) {
            state.due = Some(due);
            control.ring();
        }
        Some(full)
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        self.control.lock().over = true;
        self.control.ring();
    }
}

impl Tx {
    /// Gives a source a plan, in the place of the one that it may have.
    pub(crate) fn spoil(&mut self, index: usize, faults: Faults) -> Result<()> {
        // What is packed already goes without faults.
        self.close_pack(index, false);
        let Self { sources, links, .. } = self;
        let Some(Some(source)) = sources.get_mut(index) else { return Err(self.closed(index)) };
        for on in source.faults.iter_mut().flat_map(|faults| &mut faults.links) {
            if let Some(link) = &mut links[on.at] {
                on.let_go(link, None);
            }
        }
        source.faults = Some(Box::new(faults));
        Ok(())
    }

    /// Whether a source has a plan.
    #[inline(always)]
    pub(super) fn has_faults(&self, index: usize) -> bool {
        self.sources.get(index).and_then(Option::as_ref).is_some_and(|source| source.faults.is_some())
    }

    /// Whether a call that borrows memory for a source is to be told that there is none.
    #[inline(always)]
    pub(crate) fn refuses(&mut self, index: usize) -> bool {
        self.has_faults(index) && self.draws_a_refusal(index)
    }

    #[cold]
    fn draws_a_refusal(&mut self, index: usize) -> bool {
        let Some(Some(TxSource { faults: Some(faults), .. })) = self.sources.get_mut(index) else { return false };
        let drawn = faults.calls.part();
        let mut state = faults.control.lock();
        let refused = drawn < state.plan.refuse_ppm;
        state.injected.refused += u64::from(refused);
        refused
    }

    /// Whether a source's plan leaves no room for who asks, on some link.
    #[inline(always)]
    pub(super) fn is_made_full(&mut self, index: usize) -> bool {
        self.has_faults(index) && self.made_full(index, |_| true)
    }

    /// As [`Self::is_made_full`], on one link.
    pub(crate) fn is_made_full_on(&mut self, index: usize, at: usize) -> bool {
        self.made_full(index, |link| link == at)
    }

    #[cold]
    fn made_full(&mut self, index: usize, asked: impl Fn(usize) -> bool) -> bool {
        let Self { sources, links, .. } = self;
        let Some(Some(TxSource { faults: Some(faults), routes, .. })) = sources.get_mut(index) else { return false };
        let (now, mut full) = (Instant::now(), false);
        // Every one of them is asked: they are full at the same time, not one after the other.
        for route in routes.iter().filter(|r| asked(r.link) && is_spoiled(links.get(r.link), r)) {
            let (control, on) = faults.on(route.link);
            full |= on.is_full(control, now);
        }
        full
    }

    /// Lets go what the plan of the source with this number has held back long enough, unless the links are cut.
    pub(crate) fn let_go(&mut self, number: u32, now: Instant) {
        let Some(index) = self.place_of(number) else { return };
        let Self { sources, links, .. } = self;
        let Some(Some(TxSource { faults: Some(faults), .. })) = sources.get_mut(index) else { return };
        let Faults { control, links: all, .. } = &mut **faults;
        let mut state = control.lock();
        if state.plan.cut {
            return;
        }
        for on in all.iter_mut() {
            if let Some(link) = &mut links[on.at] {
                on.let_go(link, Some(now));
            }
        }
        state.due = all.iter().filter_map(|on| on.held.front()).map(|held| held.due).min();
    }

    /// Lets go all that a source's plan has held back on a link, before a flow there ends; with the last flow the link is forgotten.
    pub(super) fn let_go_on(&mut self, index: usize, at: usize) {
        let Self { sources, links, .. } = self;
        let Some(Some(TxSource { faults: Some(faults), routes, .. })) = sources.get_mut(index) else { return };
        let Some(nth) = faults.links.iter().position(|on| on.at == at) else { return };
        if let Some(link) = &mut links[at] {
            faults.links[nth].let_go(link, None);
        }
        if routes.iter().all(|route| route.link != at || route.flows.len() == 1) {
            faults.links.remove(nth);
        }
    }
}

#[cfg(test)]
mod tests;
