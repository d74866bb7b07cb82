//! How far sinks have come with sources whose link has ended: handed back to the next runtime, so that it does not deliver a
//! second time what the sink has had (architecture §3 rule 7).

use insane_wire::id::{Epoch, SinkId};
use std::collections::{HashMap, VecDeque};

/// How many are kept: those that ended last.
const KEPT: usize = 1024;

/// The cursors of one stream.
#[derive(Debug, Default)]
pub(crate) struct Cursors {
    kept: HashMap<(Epoch, SinkId), (u64, u64)>,
    /// In the order in which they were put, with the number of that; of two of a kind the later one counts.
    order: VecDeque<((Epoch, SinkId), u64)>,
    puts: u64,
    /// How many were forgotten for others.
    forgotten: u64,
}

impl Cursors {
    /// A flow has ended: the number of the last message that its sink has had.
    pub(crate) fn put(&mut self, epoch: Epoch, sink: SinkId, cursor: u64) {
        let key = (epoch, sink);
        let before = self.get(epoch, sink);
        if cursor.max(before) == 0 {
            return;
        }
        self.puts += 1;
        self.kept.insert(key, (cursor.max(before), self.puts));
        self.order.push_back((key, self.puts));
        while self.kept.len() > KEPT || self.order.len() > 2 * KEPT {
            let Some((key, put)) = self.order.pop_front() else { break };
            if self.kept.get(&key).is_some_and(|(_, last)| *last == put) {
                self.kept.remove(&key);
                self.forgotten += 1;
            }
        }
    }

    /// The cursor of a sink for a source; 0 for none.
    pub(crate) fn get(&self, epoch: Epoch, sink: SinkId) -> u64 {
        self.kept.get(&(epoch, sink)).map_or(0, |(cursor, _)| *cursor)
    }

    /// How many were forgotten.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_only_rises_and_nothing_is_kept_as_nothing() {
        let mut cursors = Cursors::default();
        cursors.put(Epoch(1), SinkId(1), 0);
        assert!(cursors.kept.is_empty());
        cursors.put(Epoch(1), SinkId(1), 7);
        cursors.put(Epoch(1), SinkId(1), 3);
        assert_eq!((cursors.get(Epoch(1), SinkId(1)), cursors.get(Epoch(1), SinkId(2))), (7, 0));
    }

    #[test]
    fn the_oldest_are_forgotten_and_counted() {
        let mut cursors = Cursors::default();
        let all = KEPT as u128 + 10;
        (0..all).for_each(|n| cursors.put(Epoch(n), SinkId(1), 5));
        assert_eq!((cursors.forgotten(), cursors.kept.len()), (10, KEPT));
        assert_eq!((cursors.get(Epoch(9), SinkId(1)), cursors.get(Epoch(10), SinkId(1))), (0, 5));
        // One that is put again and again pushes none of the others out.
        let mut cursors = Cursors::default();
        (0..KEPT as u128 - 1).for_each(|n| cursors.put(Epoch(n), SinkId(1), 5));
        (0..500u64).for_each(|n| cursors.put(Epoch(u128::MAX), SinkId(1), n));
        assert_eq!((cursors.forgotten(), cursors.get(Epoch(0), SinkId(1))), (0, 5));
    }
}
