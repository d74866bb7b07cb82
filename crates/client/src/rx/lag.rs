//! Which sinks of this session hold a reliable source up, and what becomes of what they have once they were given up.

use super::Rx;
use insane_shm::counters::Count;
use insane_shm::link::Fate;
use insane_wire::id::SinkId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many messages of a reliable source one of its sinks has: those that wait for it, and those that the application has had out of its
/// queue and not released.
#[derive(Debug, Default)]
pub(crate) struct Tally(Arc<AtomicU32>);

/// One of these, until it is released.
#[derive(Debug)]
pub(crate) struct One(Arc<AtomicU32>);

// Relaxed: it is a count, and is read with the stream's lock held.

impl Tally {
    pub(super) fn one(&self) -> One {
        self.0.fetch_add(1, Ordering::Relaxed);
        One(self.0.clone())
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Rx {
    /// Of these sinks of a source, which have taken nothing for a while, those that hold it up: they keep more of its messages than any
    /// other on the link does, and so the oldest. If that is one that has taken something, nobody does.
    pub(crate) fn lagging(&mut self, at: usize, source: u32, asked: &[SinkId]) -> Vec<SinkId> {
        if self.links[at].as_ref().is_none_or(|link| !link.reliable || link.is_over()) {
            return Vec::new();
        }
        // What nobody has looked at is on the ring, for whom it may be.
        self.drain_to(at, u64::MAX);
        let flow = self.links[at].as_ref().and_then(|link| link.flows.get(&source));
        let open = || flow.into_iter().flat_map(|flow| &flow.sinks).filter(|sink| sink.end.is_none());
        let most = open().map(|sink| sink.has.count()).max().unwrap_or(0);
        let lags = open().filter(|sink| most > 0 && sink.has.count() == most && asked.contains(&sink.id));
        lags.map(|sink| sink.id).collect()
    }

    /// A source has given up a sink on a link.
    pub(crate) fn note_given_up(&mut self, at: usize, source: u32, id: SinkId) {
        let Some(link) = self.links[at].as_mut() else { return };
        let sinks = link.flows.get(&source).into_iter().flat_map(|flow| &flow.sinks);
        let given_up = sinks.filter(|sink| sink.id == id).map(|sink| (source, sink.index, id));
        link.given_up.extend(given_up);
    }

    /// Lets go of what waits for sinks that were given up, if there are others on the link, who want the room. As long as there are none they
    /// may still take it; what the application has is never touched.
    pub(crate) fn let_go(&mut self, at: usize) {
        let Some(link) = self.links[at].as_mut().filter(|link| !link.flows.is_empty()) else { return };
        let generation = link.generation;
        for (source, index, id) in std::mem::take(&mut link.given_up) {
            if !self.is_open(index, id) {
                continue;
            }
            for message in self.pull_from(index, (at, generation, source)) {
                let extra = message.get().extra.as_ref();
                if let Some(cell) = extra.and_then(|extra| extra.cell.as_ref()) {
                    cell.add(Count::SinkFull, 1);
                }
                // Others may have taken it, and their source is not to hear that it was dropped.
                let shared = extra.is_some_and(|extra| extra.shared.is_some());
                self.release_as(message, if shared { Fate::AsCounted } else { Fate::Dropped });
            }
        }
    }
}
