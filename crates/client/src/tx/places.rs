//! Places and numbers of a stream's sources.
//!
//! A source has a place in a list, where its handle finds it without a search, and a number, by which all others name it: descriptors,
//! flows, peers and the service thread, who may do so when it is closed. Places are used again, so that a session that opens and closes
//! sources all the time does not grow; numbers are not, before there were 2^32.

use super::{Tx, TxSource};
use crate::error::Error;
use insane_shm::counters::CellWriter;
use std::collections::{BTreeMap, VecDeque};

/// Which places of a stream's sources are free, and who is in the others.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Those whose handle is gone. As long as there is one, nobody else gets its source's place, closed or not.
    left: Vec<usize>,
    by_number: BTreeMap<u32, usize>,
    /// The next number.
    pub(super) next: u32,
}

impl TxSource {
    /// One without sinks, and until it is added without a number.
    pub(crate) fn new(channel: u64, priority: u8, cell: CellWriter) -> Self {
        Self {
            number: 0,
            channel,
            sequence: 0,
            priority,
            cell,
            routes: Vec::new(),
            ended: VecDeque::new(),
            pack: None,
            batching: false,
            astray: 0,
            gives_up: None,
            #[cfg(feature = "faults")]
            faults: None,
        }
    }
}

impl Tx {
    /// Adds a source; returns its place, which is its handle's until that leaves it, and its number.
    pub(crate) fn add_source(&mut self, mut source: TxSource) -> (usize, u32) {
        while self.places.by_number.contains_key(&self.places.next) {
            self.places.next = self.places.next.wrapping_add(1);
        }
        let number = self.places.next;
        self.places.next = number.wrapping_add(1);
        let free = self.places.left.iter().position(|at| self.sources[*at].is_none());
        let at = free.map_or(self.sources.len(), |free| self.places.left.swap_remove(free));
        if at == self.sources.len() {
            self.sources.push(None);
        }
        // The source that had the place may have been refused when its handle was gone.
        self.refused.remove(&at);
        source.number = number;
        self.sources[at] = Some(source);
        self.places.by_number.insert(number, at);
        (at, number)
    }

    /// The handle of the source in this place is gone.
    pub(crate) fn leave_place(&mut self, index: usize) {
        self.refused.remove(&index);
        self.places.left.push(index);
    }

    /// Takes out a source that closes.
    pub(crate) fn take_source(&mut self, number: u32) -> Option<TxSource> {
        self.sources[self.places.by_number.remove(&number)?].take()
    }

    /// The place of the source with this number.
    pub(crate) fn place_of(&self, number: u32) -> Option<usize> {
        self.places.by_number.get(&number).copied()
    }

    /// The source with this number.
    pub(crate) fn source(&self, number: u32) -> Option<&TxSource> {
        self.sources[self.place_of(number)?].as_ref()
    }

    /// As [`Self::source`], to be changed.
    pub(crate) fn source_mut(&mut self, number: u32) -> Option<&mut TxSource> {
        let at = self.place_of(number)?;
        self.sources[at].as_mut()
    }

    /// The numbers of all sources.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.places.by_number.keys().copied().collect()
    }

    /// Why the runtime does not open a source again. The reason that there was before is returned.
    pub(crate) fn refuse(&mut self, number: u32, why: &Error) -> Option<Error> {
        self.refused.insert(self.place_of(number)?, why.clone())
    }

    /// A source is open again at the runtime. Whether it was refused.
    pub(crate) fn is_back(&mut self, number: u32) -> bool {
        self.place_of(number).is_some_and(|at| self.refused.remove(&at).is_some())
    }

    /// How many records there are of sources and their flows, open and closed.
    pub(crate) fn records(&self) -> usize {
        let links = self.links.iter().flatten();
        let of_links: usize = links.map(|l| l.closing.len() + l.log.as_ref().map_or(0, |log| log.iter().count())).sum();
        self.sources.len() + self.places.left.len() + self.places.by_number.len() + self.refused.len() + of_links
    }
}
