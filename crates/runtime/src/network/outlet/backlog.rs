//! What waits on the links to local sinks, for room or for its session to know a segment, and what becomes of it when a sink leaves.

use crate::network::domain::Domain;
use crate::network::outlet::link::Pushed;
use crate::network::outlet::{Tap, TapState, Waiting};
use insane_wire::id::SinkId;

impl Waiting {
    /// Whether it was given to a sink of its source, on this link.
    fn is_for(&self, tap: &Tap) -> bool {
        // For whom it may not be dropped is told by its number.
        self.sinks.contains(&tap.sink) || tap.sequences.binary_search(&self.descriptor.sequence).is_ok()
    }
}

impl Domain {
    /// Puts on a link what waits for it. What is best effort, or for observers alone, and finds no room does not wait for that as
    /// well: it is dropped, as it would have been had its segment been known.
    pub(crate) fn flush_backlog(&mut self, at: usize) -> bool {
        let cap = self.link_cap();
        let Some(outlet) = self.outlets[at].as_mut() else { return false };
        let mut any = false;
        while let Some(first) = outlet.backlog.pop_front() {
            let pushed = outlet.push(&first.descriptor, &first.inline, (first.slot, first.frames), cap, &mut self.slab);
            if pushed == Pushed::NotMapped || (pushed == Pushed::NoRoom && first.needed) {
                outlet.backlog.push_front(first);
                break;
            }
            first.slot.map(|slot| self.slab.unhold(slot));
            any = true;
            let d = &first.descriptor;
            if pushed == Pushed::NoRoom
                && let Some(remote) = self.remotes.find_mut(|r| r.number == d.source)
            {
                for tap in remote.taps.iter_mut().filter(|t| first.sinks.contains(&t.sink) && t.outlet == Some(at)) {
                    tap.had_no_room(d.messages());
                }
            }
        }
        any
    }

    /// Ends one sink of a source, on its link: nothing that arrives from now on is for it.
    pub(crate) fn end_tap(&mut self, at: usize, source: usize, sink: SinkId) {
        let Some(remote) = self.remotes.get_mut(source).and_then(Option::as_mut) else { return };
        let is_it = |t: &&mut Tap| t.sink == sink && t.outlet == Some(at);
        remote.taps.iter_mut().filter(is_it).for_each(|t| t.state = TapState::Closed);
    }

    /// A sink leaves by itself: its session counts what was put on the link until now, and never what waits. That is no longer for
    /// it, and is gone if it was for no other.
    pub(crate) fn take_back(&mut self, at: usize, source: usize, sink: SinkId) {
        let Self { outlets, remotes, slab, .. } = self;
        let (Some(outlet), Some(remote)) = (outlets[at].as_mut(), remotes[source].as_mut()) else { return };
        let (leaving, others): (Vec<&mut Tap>, Vec<&mut Tap>) =
            remote.taps.iter_mut().filter(|t| t.outlet == Some(at)).partition(|t| t.sink == sink);
        // Once: what waits is much, and a session may say that it closes as often as it likes.
        for tap in leaving.into_iter().filter(|t| t.state == TapState::Open) {
            let (mut descriptors, mut messages) = (0, 0);
            outlet.backlog.retain_mut(|one| {
                if one.descriptor.source != remote.number || !one.is_for(tap) {
                    return true;
                }
                (descriptors, messages) = (descriptors + 1, messages + one.descriptor.messages());
                one.sinks.retain(|s| *s != sink);
                let stays = others.iter().any(|other| one.is_for(other));
                one.needed &= others.iter().any(|other| !other.observer && one.is_for(other));
                one.slot.filter(|_| !stays).map(|slot| slab.unhold(slot));
                stays
            });
            // What waits came last.
            tap.sequences.truncate(tap.sequences.len().saturating_sub(descriptors));
            // A session that lies may have counted it.
            let messages = messages.min(tap.given.saturating_sub(tap.finished));
            tap.leaves(messages);
        }
    }
}
