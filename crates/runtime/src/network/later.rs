//! What hosts have said and cannot have yet: sinks whose turn has not come, and sources that another host has. Each is looked at again for
//! its own sake alone, or few at a time, so that much that waits costs what else there is to do nothing.

use insane_wire::host::{Announce, Source};
use insane_wire::id::{Epoch, SinkId};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

/// So many sinks are looked at again at a time.
pub(crate) const AT_ONCE: usize = 64;

/// The most sources of others that one host may claim.
const MOST_CLAIMS: usize = 4096;

/// So often a host is heard to say that it will send what another has: once for each flow.
const MOST_WORDS: u8 = 16;

/// Sinks whose turn has not come, with their hosts.
#[derive(Debug, Default)]
pub(crate) struct Later {
    all: BTreeMap<SinkId, (usize, Announce)>,
    /// The last that was looked at.
    last: Option<SinkId>,
}

impl Later {
    pub(crate) fn add(&mut self, sink: SinkId, host: usize, announced: Announce) {
        self.all.insert(sink, (host, announced));
    }

    pub(crate) fn remove(&mut self, sink: SinkId) {
        self.all.remove(&sink);
    }

    /// Takes out the next to be looked at: as many at most as are looked at at once, each in its turn.
    pub(crate) fn next(&mut self) -> Vec<(SinkId, usize, Announce)> {
        let from = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let after = self.all.range((from, Bound::Unbounded)).map(|(sink, _)| *sink);
        let mut next: Vec<SinkId> = after.take(AT_ONCE).collect();
        if next.len() < AT_ONCE
            && let Some(last) = self.last
        {
            let begin = self.all.range(..=last).map(|(sink, _)| *sink);
            next.extend(begin.take(AT_ONCE - next.len()));
        }
        self.last = next.last().copied();
        next.into_iter().filter_map(|sink| self.all.remove(&sink).map(|(host, known)| (sink, host, known))).collect()
    }

    /// Whether a sink of a host is among them.
    pub(crate) fn has(&self, sink: SinkId, host: usize) -> bool {
        self.all.get(&sink).is_some_and(|(of, _)| *of == host)
    }

    /// Whether any sink of a host is.
    pub(crate) fn has_any_of(&self, host: usize) -> bool {
        self.all.values().any(|(of, _)| *of == host)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

/// Sources that a host claims and another has, each with how often it was said.
#[derive(Debug, Default)]
pub(crate) struct Claims(HashMap<Epoch, (Source, u8)>);

impl Claims {
    /// Whether there is room for one of this source.
    pub(crate) fn fits(&self, epoch: Epoch) -> bool {
        self.0.len() < MOST_CLAIMS || self.0.contains_key(&epoch)
    }

    /// What is said last counts.
    pub(crate) fn add(&mut self, epoch: Epoch, about: Source) {
        let words = self.0.get(&epoch).map_or(0, |(_, words)| *words);
        self.0.insert(epoch, (about, words.saturating_add(1).min(MOST_WORDS)));
    }

    /// Takes out the one of a source, with how often it was said.
    pub(crate) fn take(&mut self, epoch: Epoch) -> Option<(Source, u8)> {
        self.0.remove(&epoch)
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_wait_have_their_turn_few_at_a_time() {
        let mut later = Later::default();
        let all = 3 * AT_ONCE as u128 + 7;
        (0..all).for_each(|n| later.add(SinkId(n), 1, Announce::default()));
        let mut seen = vec![0; all as usize];
        for _ in 0..7 {
            let next = later.next();
            assert_eq!(next.len(), AT_ONCE);
            for (sink, host, announced) in next {
                seen[sink.0 as usize] += 1;
                later.add(sink, host, announced);
            }
        }
        assert!(seen.iter().all(|times| (2..=3).contains(times)), "{seen:?}");
        (3..all).for_each(|n| later.remove(SinkId(n)));
        assert_eq!((later.next().len(), later.len(), later.next().len()), (3, 0, 0));
        later.add(SinkId(5), 2, Announce::default());
        assert!(later.has(SinkId(5), 2) && !later.has(SinkId(5), 1) && later.has_any_of(2) && !later.has_any_of(1));
        assert_eq!(later.next().len(), 1);
    }
}
