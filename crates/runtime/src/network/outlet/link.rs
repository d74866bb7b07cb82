//! One link to a session with sinks: what is put on it, and what comes back.

use super::Outlet;
use insane_shm::doorbell::Doorbell;
use insane_shm::link::{Descriptor, Producer, Returned};
use insane_shm::memory::SharedMemory;
use insane_shm::slab::{Slab, SlotId, Told};
use insane_shm::wait::WakeNeed;
use insane_wire::id::SinkId;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

impl Outlet {
    pub(crate) fn new(stream: String, reliable: bool, pair: usize, number: u32, memory: Arc<SharedMemory>) -> Self {
        Self {
            stream,
            reliable,
            pair,
            number,
            offered: Some(memory),
            producer: None,
            counters: None,
            doorbell: Doorbell::default(),
            told: Told::default(),
            waiting: Vec::new(),
            asked: HashSet::new(),
            scattered: false,
            lent: 0,
            lists: HashMap::new(),
            held: 0,
            backlog: VecDeque::new(),
            unwoken: false,
            broken: None,
        }
    }

    pub(crate) fn has_mapped(&self, segment: u16) -> bool {
        self.producer.as_ref().is_some_and(|producer| producer.is_mapped(segment))
    }

    /// A flow is not to be opened any more. Returns whether it was still to be: then the session has not heard of it.
    pub(crate) fn withdraw(&mut self, source: u32, sink: SinkId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(number, of, _)| (*number, *of) != (source, sink));
        self.waiting.len() < before
    }

    pub(crate) fn position(&self) -> u64 {
        self.producer.as_ref().map_or(0, Producer::position)
    }

    /// Wakes the session if it sleeps on this link. Never blocks.
    pub(crate) fn wake(&mut self) {
        self.unwoken = false;
        if self.producer.as_mut().is_some_and(|p| p.wake() == WakeNeed::Ring) {
            self.doorbell.ring();
        }
    }

    /// Whether nothing comes back on it before something is put on it.
    pub(super) fn rests(&self) -> bool {
        let none = self.broken.is_some() || self.producer.as_ref().is_none_or(|producer| producer.out() == 0);
        none && !self.unwoken && !self.is_behind()
    }

    /// Whether something waits for room.
    pub(crate) fn is_behind(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Whether a message that needs no slot can be put on it now.
    pub(super) fn has_room(&self) -> bool {
        self.producer.as_ref().is_some_and(|p| p.credit() > 0) && !self.is_behind() && self.broken.is_none()
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> Vec<u64> {
        self.backlog.iter().map(|one| one.descriptor.sequence).collect()
    }

    /// Takes back what the session returned.
    pub(super) fn reclaim(&mut self, slab: &mut Slab) -> u32 {
        let Self { producer: Some(producer), held, lent, lists, .. } = self else { return 0 };
        let result = producer.reclaim(|returned| {
            if let Returned::Slot { segment, slot, .. } = returned {
                *held = held.saturating_sub(slab.stride(segment));
                slab.unhold(SlotId { segment, slot });
                if !lists.is_empty() {
                    *lent -= lists.remove(&SlotId { segment, slot }).unwrap_or(0);
                }
            }
        });
        match result {
            Ok(taken) => taken,
            Err(broken) => {
                self.broken = Some(broken);
                0
            }
        }
    }

    /// Whether a message in a slot of so many bytes may wait behind those that wait, as far as memory goes: counted as if all were as large.
    pub(super) fn could_hold(&self, bytes: u64, cap: u64) -> bool {
        let waiting = self.backlog.len() as u64;
        waiting == 0 || (waiting + 1).saturating_mul(bytes).saturating_add(self.held) <= cap
    }

    /// Puts a message on the link. `false`: there is no room now, or its segment is not mapped yet.
    pub(super) fn push(
        &mut self,
        d: &Descriptor,
        inline: &[u8],
        (slot, frames): (Option<SlotId>, u32),
        cap: u64,
        slab: &mut Slab,
    ) -> Pushed {
        // What is empty goes inside its descriptor, wherever it waited.
        let slot = slot.filter(|_| d.length > 0);
        let bytes = slot.map_or(0, |s| slab.stride(s.segment));
        let fits = |l: &Self| {
            l.producer.as_ref().is_some_and(|p| p.credit() > 0) && (l.held == 0 || bytes == 0 || l.held + bytes <= cap)
        };
        if !fits(self) {
            self.reclaim(slab);
        }
        let room = fits(self) && self.broken.is_none();
        let Some(producer) = self.producer.as_mut().filter(|_| room) else { return Pushed::NoRoom };
        if slot.is_some_and(|s| !producer.is_mapped(s.segment)) {
            return Pushed::NotMapped;
        }
        if let Some(slot) = slot {
            slab.hold(slot);
            self.held += bytes;
            if frames > 0 {
                self.lent += frames;
                self.lists.insert(slot, frames);
            }
        }
        producer.push(d, inline);
        self.unwoken = true;
        Pushed::Done
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    Done,
    NoRoom,
    NotMapped,
}
