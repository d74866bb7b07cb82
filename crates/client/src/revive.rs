//! Reliable streams when the runtime dies (architecture §3 rule 7).
//!
//! A link to the runtime is not dissolved then but *parked*: its flows stay, and what is emitted goes on to its ring, which is this
//! process's own memory, until that is full. When the next runtime has the same flows again, another link becomes its *heir*: it
//! is given, in the order of the ring, every message that is not known to have ended, and then the flows. A message too many does
//! no harm, because the sinks' cursors take it out; one too few would be lost.
//!
//! The parked link keeps its holds on slots until the heir has everything: the heir may die too, and then it begins again.

use crate::log::Entry;
use crate::tx::{Tx, TxFlow, TxLink, TxSource};
use insane_shm::counters::CellWriter;
use insane_shm::doorbell::Doorbell;
use insane_shm::link::{FLAG_INLINE, later_join};
use insane_shm::slab::{SlotId, Told};
use insane_wire::id::SinkId;
use std::collections::{HashMap, HashSet};

/// A link whose runtime is gone.
#[derive(Debug)]
pub(crate) struct Parked {
    heir: Option<Heir>,
}

/// The link that takes over.
#[derive(Debug)]
struct Heir {
    at: usize,
    /// The position on the parked ring of the next message that it is given.
    next: u64,
}

/// A flow that is open again at the next runtime.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reopened {
    /// Its cell with that.
    pub(crate) cell: u32,
    /// Under which number its sink joined the source there.
    pub(crate) join: u16,
}

/// The flows of a parked link that are open again, by the source's number and the sink.
pub(crate) type AllReopened = HashMap<(u32, SinkId), Reopened>;

/// Of each source, by its number, the number of the sink that joined it last.
fn joined(reopened: &AllReopened) -> HashMap<u32, u16> {
    let mut last = HashMap::new();
    for ((number, _), one) in reopened {
        let known = last.entry(*number).or_insert(one.join);
        *known = later_join(*known, one.join);
    }
    last
}

/// Whether a message of a source may not have ended for all of its flows on a link. As long as one in a slot was not given back it may
/// not: counts say how many have ended, which need not be the first ones, because one that expires ends before others that are under
/// way. Of one without a slot there are only the counts, and those before it: `behind` says that one of them may not have ended.
fn is_needed(source: &TxSource, at: usize, link: &TxLink, entry: &Entry, behind: bool) -> bool {
    let (sequence, in_slot) = (entry.descriptor.sequence, entry.descriptor.flags & FLAG_INLINE == 0);
    let all = in_slot || behind;
    let is_left = |f: &TxFlow| f.start <= sequence && (all || f.ordinal(sequence) > link.finished_of(f));
    source.routes.iter().filter(|r| r.link == at).any(|r| r.flows.iter().any(is_left))
}

impl TxLink {
    /// Whether it waits for the next runtime.
    pub(crate) fn is_parked(&self) -> bool {
        self.parked.is_some()
    }
}

impl Tx {
    /// The runtime at the other end of a link is gone. Returns the cells to end; the link is gone too if nothing is to be kept.
    pub(crate) fn park(&mut self, at: usize) -> Vec<CellWriter> {
        self.reclaim_all();
        if self.links[at].as_ref().is_none_or(|l| l.log.is_none() || l.broken.is_some()) {
            return self.dissolve(at);
        }
        self.end_closing(at);
        self.forget_questions(at);
        // Nobody waits for an observer.
        let mut cells = Vec::new();
        for (number, sink, observer) in self.flows_on(at) {
            if observer {
                cells.extend(self.end_flow(at, number, sink, true));
            }
        }
        if self.flows_on(at).is_empty() {
            cells.extend(self.dissolve(at));
            return cells;
        }
        let Self { links, slab, .. } = self;
        if let Some(link) = links[at].as_mut() {
            link.parked = Some(Parked { heir: None });
            link.doorbell = Doorbell::default();
            link.told = Told::default();
            for (number, segment) in slab.segments() {
                if !link.producer.is_mapped(number) {
                    link.producer.add_segment(number, segment.geometry().slots);
                }
            }
        }
        cells
    }

    /// The flows on a link: the source's number, the sink, and whether that is an observer.
    pub(crate) fn flows_on(&self, at: usize) -> Vec<(u32, SinkId, bool)> {
        let sources = self.sources.iter().flatten().map(|s| (s.number, s));
        let routes = sources.flat_map(|(n, s)| s.routes.iter().filter(|r| r.link == at).map(move |r| (n, r)));
        routes.flat_map(|(n, r)| r.flows.iter().map(move |f| (n, f.sink, f.observer))).collect()
    }

    /// Whether a link waits for the next runtime.
    pub(crate) fn has_parked(&self) -> bool {
        self.links.iter().flatten().any(TxLink::is_parked)
    }

    /// Whether a source has flows that wait for the next runtime.
    pub(crate) fn is_parked(&self, number: u32) -> bool {
        self.source(number).is_some_and(|s| s.routes.iter().any(|r| self.is_link_parked(r.link)))
    }

    /// Whether a link is there and waits for the next runtime.
    pub(crate) fn is_link_parked(&self, at: usize) -> bool {
        self.links[at].as_ref().is_some_and(TxLink::is_parked)
    }

    /// Forgets what has ended of what a source's links have to remember, when that is much.
    #[inline]
    pub(crate) fn tend_logs(&mut self, index: usize) {
        let Some(Some(source)) = self.sources.get(index) else { return };
        let long =
            |at: usize| self.links[at].as_ref().and_then(|l| l.log.as_ref()).is_some_and(crate::log::Log::is_long);
        if source.routes.iter().any(|r| long(r.link)) {
            let links: Vec<usize> = source.routes.iter().map(|r| r.link).filter(|at| long(*at)).collect();
            self.reclaim_all();
            links.into_iter().for_each(|at| self.retain_needed(at));
        }
    }

    /// Leaves on a link's log what is under way and not known to have ended.
    fn retain_needed(&mut self, at: usize) {
        let Some(mut link) = self.links[at].take() else { return };
        let mut log = link.log.take().unwrap_or_default();
        let mut left = HashSet::new();
        log.retain(|entry| {
            let number = entry.descriptor.source;
            let source = self.source(number);
            let needed = |s| is_needed(s, at, &link, entry, left.contains(&number));
            let closing = || link.closing.iter().any(|c| c.source == number);
            let stays = entry.is_out(&link.producer) && (source.is_some_and(needed) || closing());
            if stays {
                left.insert(number);
            }
            stays
        });
        link.log = Some(log);
        self.links[at] = Some(link);
    }

    /// Gives the heir of a parked link what it has room for. Whether it has everything now.
    pub(crate) fn hand_on(&mut self, parked: usize, heir: usize, reopened: &AllReopened) -> bool {
        let known = |l: &TxLink| l.parked.as_ref().is_some_and(|p| p.heir.as_ref().is_some_and(|h| h.at == heir));
        if !self.links[parked].as_ref().is_some_and(known) {
            self.retain_needed(parked);
            if let Some(state) = self.links[parked].as_mut().and_then(|l| l.parked.as_mut()) {
                state.heir = Some(Heir { at: heir, next: 0 });
            }
            if let Some(link) = self.links[heir].as_mut() {
                link.stands_for = Some(parked);
            }
        }
        let (Some(mut old), Some(mut new)) = (self.links[parked].take(), self.links[heir].take()) else { return false };
        let joined = joined(reopened);
        let mut next = old.parked.as_ref().and_then(|p| p.heir.as_ref()).map_or(0, |h| h.next);
        let done = loop {
            let Some(entry) = old.log.as_ref().and_then(|l| l.from(next)) else { break true };
            let mut d = entry.descriptor;
            d.joined = joined.get(&d.source).copied().unwrap_or(0);
            let slot = (d.flags & FLAG_INLINE == 0).then_some(SlotId { segment: d.segment, slot: d.slot });
            if new.producer.credit() == 0 {
                new.reclaim(&mut self.slab);
            }
            let mapped = slot.is_none_or(|s| new.producer.is_mapped(s.segment));
            if new.producer.credit() == 0 || !mapped || new.broken.is_some() {
                break false;
            }
            if let Some(slot) = slot {
                self.slab.hold(slot);
                new.held += self.slab.stride(slot.segment);
            }
            if let Some(log) = &mut new.log {
                log.put(&new.producer, &d, slot.is_some(), &entry.inline);
            }
            new.producer.push(&d, &entry.inline);
            next = entry.position + 1;
        };
        new.wake();
        if let Some(state) = old.parked.as_mut().and_then(|p| p.heir.as_mut()) {
            state.next = next;
        }
        (self.links[parked], self.links[heir]) = (Some(old), Some(new));
        self.reclaim_all();
        done
    }

    /// The heir of a parked link has everything: it gets the flows.
    pub(crate) fn succeed(&mut self, parked: usize, heir: usize, reopened: &AllReopened) {
        let Some(mut old) = self.links[parked].take() else { return };
        let joined = joined(reopened);
        // What the heir has of each flow; all else has ended.
        let mut moved: HashMap<u32, Vec<u64>> = HashMap::new();
        for entry in old.log.iter().flat_map(|l| l.iter()) {
            moved.entry(entry.descriptor.source).or_default().push(entry.descriptor.sequence);
        }
        for source in self.sources.iter_mut().flatten() {
            let number = source.number;
            let sequences = moved.get(&number).map_or(&[][..], |s| s);
            for route in source.routes.iter_mut().filter(|r| r.link == parked) {
                (route.link, route.joined) = (heir, joined.get(&number).copied().unwrap_or(0));
                for flow in &mut route.flows {
                    let left = sequences.iter().filter(|s| **s >= flow.start).count() as u64;
                    let ended = flow.given.saturating_sub(left).max(flow.before);
                    flow.known = old.finished_of(flow).max(flow.known);
                    old.take_over(&flow.cell, flow.sink, flow.peer_cell, ended - flow.before);
                    flow.before = ended;
                    flow.peer_cell = reopened.get(&(number, flow.sink)).map_or(u32::MAX, |r| r.cell);
                }
            }
        }
        let slab = &mut self.slab;
        old.producer.dissolve(|segment, slot| {
            slab.unhold(SlotId { segment, slot });
        });
        if let Some(link) = self.links[heir].as_mut() {
            link.stands_for = None;
        }
        self.share_out();
    }

    /// The link that takes over from a parked one.
    pub(crate) fn heir_of(&self, parked: usize) -> Option<usize> {
        let parked = self.links.get(parked)?.as_ref()?.parked.as_ref()?;
        parked.heir.as_ref().map(|h| h.at)
    }

    /// A link that was to take over is gone: the parked one waits for another.
    pub(crate) fn disinherit(&mut self, heir: usize) {
        let stands_for = self.links[heir].as_mut().and_then(|l| l.stands_for.take());
        if let Some(state) = stands_for.and_then(|at| self.links[at].as_mut()).and_then(|l| l.parked.as_mut()) {
            state.heir = None;
        }
    }
}

#[cfg(test)]
mod tests;
