//! How messages are given back.

use super::Rx;
use crate::message::{RawMessage, Taken};
use insane_shm::link::{Descriptor, FLAG_INLINE, FLAG_PACKED, Fate};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

impl Rx {
    /// Gives a message back. Safe after its link or its sink is gone.
    #[inline(always)]
    pub(crate) fn release(&mut self, message: RawMessage) {
        // What a control loop does, in one straight line.
        let taken = message.get();
        let origin = taken.origin();
        if taken.flags == FLAG_INLINE
            && taken.extra.is_none()
            && let Some(Some(link)) = self.links.get_mut(origin.link as usize)
            && link.generation == origin.generation
            && !(link.reliable || link.peer_gone || link.broken.is_some())
        {
            link.out -= 1;
            link.consumer.release_small();
            self.taken.give_back(message.0);
            return;
        }
        self.release_slowly(message);
    }

    /// As [`Self::release`], of any message.
    #[inline(never)]
    pub(crate) fn release_slowly(&mut self, message: RawMessage) {
        self.release_as(message, Fate::AsCounted);
    }

    #[inline(always)]
    pub(super) fn release_as(&mut self, message: RawMessage, fate: Fate) {
        let last = message.get().extra.is_none() || shared_no_more(message.0);
        let taken = message.get();
        let pack = (taken.flags & FLAG_PACKED != 0).then_some(taken.pack);
        // Of a pack's messages only the last is of interest to the link.
        let told = match pack {
            _ if !last => None,
            Some(pack) => pack.done(taken.sequence, fate),
            None => Some((taken.sequence, fate)),
        };
        if let Some((sequence, fate)) = told {
            let origin = taken.origin();
            let (at, generation) = (origin.link as usize, origin.generation);
            let descriptor = Descriptor { sequence, ..taken.descriptor() };
            if let Some(pack) = pack {
                pack.give_back(&mut self.packs);
            }
            self.returned(at, generation, &descriptor, fate);
        }
        self.taken.give_back(message.0);
    }

    /// What a link is told of a message or a pack that nobody has any more.
    #[inline(always)]
    fn returned(&mut self, at: usize, generation: u32, descriptor: &Descriptor, fate: Fate) {
        let Some(Some(link)) = self.links.get_mut(at) else { return };
        if link.generation != generation {
            return;
        }
        link.out -= 1;
        link.release(descriptor, fate);
        if link.peer_gone || link.broken.is_some() {
            self.sweep(at);
        }
    }
}

/// Whether nobody else of this session has the message; frees what only some messages have.
#[cold]
fn shared_no_more(mut taken: NonNull<Taken>) -> bool {
    // SAFETY: INV-BLOCK-1: the caller has it, and gives it back.
    let extra = unsafe { taken.as_mut() }.extra.take();
    extra.and_then(|e| e.shared).is_none_or(|left| left.fetch_sub(1, Ordering::AcqRel) == 1)
}
