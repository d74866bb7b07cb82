//! Whether sinks can take one more message of a source now.

use super::{Place, Route, Tx, TxFlow, TxSource};

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
        self.links[at].as_ref().is_none_or(|link| link.fits_for_all(bytes, cap))
    }
}
