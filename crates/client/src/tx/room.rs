//! Whether sinks can take one more message of a source now.

use std::time::{Duration, Instant};

use super::{Place, Route, Tx, TxFlow, TxLink, TxSource};

/// What a reliable source that is held back may be ahead of the runtime: what is under way to a sink at most (4 MiB of credit), and what
/// fills the time until it is awake. More would be memory that has left the caches when the runtime reads it, and time that a message waits.
const LEAST_LEAD: u64 = (4 << 20) + (1 << 18);

/// As many messages, if that is more.
const LEAST_MESSAGES: u64 = 8;

/// For how long nothing may come back before it is said that the bound is what holds the source up.
const STALL: Duration = Duration::from_millis(20);

/// For how long a source that has all that it was given more, and waits, keeps it.
const KEPT: Duration = Duration::from_millis(100);

/// How many bytes a reliable source that waits for room may be ahead of the runtime on a link. At first there is no bound but the link's
/// share, so that a burst goes at once. Who has filled that is faster than what it sends over, and is held to the least, until it is seen
/// that the runtime has kept up with it, or gives nothing back: each time, to twice as much, which it has for a while if it fills that, too.
///
/// Only for a link of a single source without observers: what some have under way is to hold up no others before the link is full.
#[derive(Debug)]
pub(super) struct Lead {
    most: u64,
    /// Since when the source waits for room and nothing has come back.
    stalled: Option<Instant>,
    /// When it was given more the last time.
    loosened: Option<Instant>,
}

impl Default for Lead {
    fn default() -> Self {
        Self { most: u64::MAX, stalled: None, loosened: None }
    }
}

impl Lead {
    /// The bound when one more message of so many bytes goes.
    #[inline(always)]
    pub(super) const fn for_one_of(&self, bytes: u64) -> u64 {
        let few = LEAST_MESSAGES.saturating_mul(bytes);
        if few > self.most { few } else { self.most }
    }

    /// So many bytes were held before what came back was taken, and so many are now.
    #[inline(always)]
    pub(super) fn follow(&mut self, before: u64, held: u64) {
        if held < before && self.most < u64::MAX {
            self.stalled = None;
            if held == 0 {
                self.loosen(Instant::now());
            }
        }
    }

    #[inline(never)]
    fn loosen(&mut self, now: Instant) {
        (self.most, self.loosened) = (self.most.saturating_mul(2), Some(now));
    }

    fn tighten(&mut self) {
        *self = Self { most: LEAST_LEAD, ..Self::default() };
    }

    /// A message has no room because of this bound.
    fn hold_back(&mut self, now: Instant) {
        if now - *self.stalled.get_or_insert(now) >= STALL {
            self.stalled = Some(now);
            self.loosen(now);
        } else if self.loosened.is_some_and(|then| now - then >= KEPT) {
            self.tighten();
        }
    }
}

impl Tx {
    /// Whether every link of the source, but for those to observers alone, has room for one more message, after taking back what was
    /// returned, and has mapped what it lies in. On a link that sinks share, best effort, that is half of it: beyond, the other end may give none to a sink that has let much
    /// wait (ADR 32).
    #[inline(always)]
    pub(crate) fn has_room(&mut self, source: usize, place: Place) -> bool {
        let bytes = place.slot().map_or(0, |s| self.slab.stride(s.segment));
        !self.is_made_full(source)
            && self.have_room(source, bytes)
            && (self.fresh.is_empty() || self.is_mapped(source, place))
    }

    /// As [`Self::has_room`], for a message in any slot of `bytes`.
    #[inline(always)]
    pub(crate) fn has_room_for(&mut self, source: usize, bytes: u64) -> bool {
        !self.is_made_full(source)
            && self.have_room(source, bytes)
            && (self.fresh.is_empty() || bytes == 0 || self.is_all_mapped(source))
    }

    #[inline(never)]
    fn is_mapped(&mut self, source: usize, place: Place) -> bool {
        self.note_mapped();
        self.waited_for(source).all(|link| self.reaches(link, place))
    }

    #[inline(never)]
    fn is_all_mapped(&mut self, source: usize) -> bool {
        self.note_mapped();
        self.waited_for(source).all(|link| self.fresh.iter().all(|number| self.has_mapped(link, *number)))
    }

    fn has_mapped(&self, at: usize, segment: u16) -> bool {
        self.links[at].as_ref().is_none_or(|link| link.producer.is_mapped(segment))
    }

    pub(super) fn note_mapped(&mut self) {
        let links = &self.links;
        self.fresh.retain(|number| links.iter().flatten().any(|link| !link.producer.is_mapped(*number)));
    }

    #[inline(always)]
    fn have_room(&mut self, source: usize, bytes: u64) -> bool {
        // As they mostly are.
        if let Some(Some(TxSource { routes, .. })) = self.sources.get(source)
            && let [Route { link, ref flows, .. }] = routes[..]
            && let [TxFlow { observer: false, .. }] = flows[..]
        {
            return self.link_has_room(link, bytes);
        }
        self.all_have_room(source, bytes)
    }

    #[inline(never)]
    fn all_have_room(&mut self, source: usize, bytes: u64) -> bool {
        let count = self.waited_for(source).count();
        (0..count).all(|nth| {
            let link = self.waited_for(source).nth(nth);
            link.is_none_or(|link| self.link_has_room(link, bytes))
        })
    }

    /// The links to sinks of the source that messages are meant for. Nobody waits for observers.
    fn waited_for(&self, source: usize) -> impl Iterator<Item = usize> {
        self.routes(source).filter(|route| route.is_meant()).map(|route| route.link)
    }

    /// Whether a link of the source has no room for who is to lose nothing, though it may have some for others.
    #[inline(always)]
    pub(crate) fn is_short(&mut self, source: usize) -> bool {
        let is_shared = |link: usize| self.links[link].as_ref().is_some_and(|link| link.shared);
        self.shares && self.waited_for(source).any(is_shared) && !self.have_room(source, 0)
    }

    /// The links of a source that have no room, or have not mapped yet what a message lies in.
    pub(crate) fn full_links(&mut self, source: usize, place: Place) -> Vec<usize> {
        let bytes = place.slot().map_or(0, |s| self.slab.stride(s.segment));
        let links: Vec<usize> = self.waited_for(source).collect();
        let is_full =
            |l: &usize| self.is_made_full_on(source, *l) || !self.link_has_room(*l, bytes) || !self.reaches(*l, place);
        links.into_iter().filter(is_full).collect()
    }

    /// Whether the consumer of a link has mapped what a message lies in.
    pub(crate) fn reaches(&self, at: usize, place: Place) -> bool {
        place.slot().is_none_or(|slot| self.has_mapped(at, slot.segment))
    }

    #[inline(always)]
    fn link_has_room(&mut self, at: usize, bytes: u64) -> bool {
        let cap = self.link_cap;
        self.links[at].as_ref().is_none_or(|link| link.fits_for_all(bytes, cap)) || self.link_has_room_again(at, bytes)
    }

    /// As `TxLink::has_room_again`; what came back is noted at once.
    #[inline(never)]
    fn link_has_room_again(&mut self, at: usize, bytes: u64) -> bool {
        let cap = self.link_cap;
        if let Some(link) = self.links[at].as_mut() {
            link.reclaim(&mut self.slab);
        }
        self.note_fates_of(at);
        let fits = |tx: &Self| tx.links[at].as_ref().is_none_or(|link| link.fits_for_all(bytes, cap));
        if fits(self) {
            return true;
        }
        let Some(link) = self.links[at].as_ref() else { return true };
        let full = !link.fits(bytes, cap);
        // Of best-effort messages nothing is kept until it is acknowledged: who sends them is ahead by less.
        if link.log.is_none() || (full && link.lead.most == LEAST_LEAD) {
            return false;
        }
        let single = self.is_of_one_source(at);
        let Some(TxLink { lead, .. }) = self.links[at].as_mut() else { return true };
        match (single, full) {
            (false, _) => *lead = Lead::default(),
            (true, true) => lead.tighten(),
            (true, false) => lead.hold_back(Instant::now()),
        }
        fits(self)
    }

    /// Whether all that a link holds is of one source, which waits for everybody who is to have it.
    fn is_of_one_source(&self, at: usize) -> bool {
        let routes = self.sources.iter().flatten().flat_map(|source| &source.routes).filter(|route| route.link == at);
        let mut routes = routes.map(|route| route.flows.iter().all(|flow| !flow.observer));
        let closes = self.links[at].as_ref().is_some_and(|link| !link.closing.is_empty());
        !closes && routes.next() == Some(true) && routes.next().is_none()
    }
}
