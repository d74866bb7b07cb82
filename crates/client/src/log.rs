//! What is under way on a link to the runtime on a reliable stream: the descriptors of the messages that may have to be put on
//! another link, because the runtime has died.
//!
//! The delivery ring does not tell it: a descriptor is written over when others were given back before it, and a message without
//! a slot has its credit back before any sink has it.

use insane_shm::link::{Descriptor, FLAG_INLINE, Producer};
use std::collections::VecDeque;

/// Below so many entries those that are done are not looked for.
const FEW: usize = 1024;

/// One message, in the order of the ring.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) position: u64,
    /// Without a slot if `FLAG_INLINE` is set.
    pub(crate) descriptor: Descriptor,
    /// The payload of one without a slot.
    pub(crate) inline: Box<[u8]>,
}

impl Entry {
    /// Whether its slot is with the consumer. One without a slot always is, for all that the link knows.
    pub(crate) fn is_out(&self, producer: &Producer) -> bool {
        let d = &self.descriptor;
        d.flags & FLAG_INLINE != 0 || producer.is_out(d.segment, d.slot, self.position)
    }
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
    /// How many there are when those that are done are to be looked for.
    enough: usize,
}

impl Log {
    /// A message is about to be put on the link.
    pub(crate) fn put(&mut self, producer: &Producer, descriptor: &Descriptor, slot: bool, inline: &[u8]) {
        debug_assert_eq!(descriptor.messages(), 1, "nothing is packed on reliable streams");
        let flags = if slot { descriptor.flags } else { descriptor.flags | FLAG_INLINE };
        let entry = Entry {
            position: producer.position(),
            descriptor: Descriptor { flags, ..*descriptor },
            inline: inline.into(),
        };
        self.entries.push_back(entry);
    }

    /// Forgets what came back, as far as that is at the front.
    pub(crate) fn trim(&mut self, producer: &Producer) {
        while self.entries.front().is_some_and(|e| !e.is_out(producer)) {
            self.entries.pop_front();
        }
    }

    /// Whether [`Self::retain`] is worth its while.
    pub(crate) fn is_long(&self) -> bool {
        self.entries.len() > self.enough.max(FEW)
    }

    /// Forgets all that `is_left` does not want.
    pub(crate) fn retain(&mut self, is_left: impl FnMut(&Entry) -> bool) {
        self.entries.retain(is_left);
        self.enough = 2 * self.entries.len();
    }

    /// The entries in the order of the ring.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The first entry from a position on.
    pub(crate) fn from(&self, position: u64) -> Option<&Entry> {
        self.entries.get(self.entries.partition_point(|e| e.position < position))
    }
}

#[cfg(test)]
mod tests;
