//! The session's counter cells: which are free, and how many each peer has asked for.

use crate::error::{Code, Result};
use insane_shm::counters::{CellState, CellWriter, Counters};
use insane_wire::id::{Epoch, SinkId};
use std::collections::{HashMap, VecDeque};

/// Free and used cells of the session's counter memory.
#[derive(Debug)]
pub(crate) struct Cells {
    pub(crate) counters: Counters,
    free: Vec<u32>,
    ended: VecDeque<u32>,
    /// Cells that were started for a pair, and how many each pair has.
    owners: HashMap<u32, usize>,
    held: HashMap<usize, u32>,
}

impl Cells {
    pub(crate) fn new(counters: Counters) -> Self {
        let free = (0..counters.cells()).rev().collect();
        Self { counters, free, ended: VecDeque::new(), owners: HashMap::new(), held: HashMap::new() }
    }

    /// Starts a cell; an ended one is used again when no other is left.
    pub(crate) fn start(&mut self, state: CellState, epoch: Epoch, sink: SinkId) -> Result<CellWriter> {
        let index = self.free.pop().or_else(|| self.ended.pop_front());
        let index = index.ok_or_else(|| crate::Error::new(Code::QuotaExceeded, "no counter cell is left"))?;
        self.counters.start(index, state, epoch.0, sink.0).ok_or_else(|| Code::System.into())
    }

    /// Starts a cell because a peer asked for it: one of them may have a quarter of all.
    pub(crate) fn start_for(
        &mut self,
        pair: usize,
        state: CellState,
        epoch: Epoch,
        sink: SinkId,
    ) -> Result<CellWriter> {
        let held = self.held.get(&pair).copied().unwrap_or(0);
        if held >= self.counters.cells() / 4 {
            return Err(crate::Error::new(Code::QuotaExceeded, format!("one peer asked for more than {held} flows")));
        }
        let cell = self.start(state, epoch, sink)?;
        self.owners.insert(cell.index(), pair);
        self.held.insert(pair, held + 1);
        Ok(cell)
    }

    /// Marks a cell's counts as final; they stay to be read.
    pub(crate) fn end(&mut self, index: u32) {
        self.counters.end(index);
        self.ended.push_back(index);
        if let Some(held) = self.owners.remove(&index).and_then(|pair| self.held.get_mut(&pair)) {
            *held -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use insane_shm::memory::Heap;
    use std::sync::Arc;

    #[test]
    fn one_peer_leaves_cells_for_the_others() {
        let counters = Counters::create(Arc::new(Heap::new(insane_shm::counters::bytes(16))), 16).unwrap();
        let mut cells = Cells::new(counters);
        let mut ask = |pair| cells.start_for(pair, CellState::Consuming, Epoch(1), SinkId(2));
        let first: Vec<_> = (0..4).map(|_| ask(7).unwrap()).collect();
        assert_eq!(ask(7).unwrap_err().code(), Code::QuotaExceeded);
        ask(8).expect("another peer has its share");
        cells.end(first[0].index());
        cells.start_for(7, CellState::Consuming, Epoch(1), SinkId(2)).expect("what has ended is given back");
        let own: Vec<_> = (0..11).map(|_| cells.start(CellState::Source, Epoch(3), SinkId(0))).collect();
        assert!(own.iter().all(Result::is_ok), "the rest is the session's own");
    }
}
