//! Counts that survive the process that counts.
//!
//! Every session owns one piece of counter memory: a sealed memfd that the runtime and the session's peers map read-only.
//! It holds cells of 128 bytes; a cell belongs to one flow (source epoch and sink id) and is written by the session at its
//! own end of it: the source's end counts what was intended, dropped there or left unconfirmed, the sink's end what became
//! of each message that reached it. A message ends in exactly one count, by one store, so that the law
//!
//! `intended = sink_full + expired + unconfirmed (source's cell) + delivered + expired + sink_closed (sink's cell) + under way`
//!
//! (where the sink's end was a cell of a runtime that is gone, its counts are taken over into the source's cell) holds whenever anything is killed between two instructions (architecture §5, accounting law).
//!
//! Invariants:
//! - `INV-CTR-1` Cells lie inside the backing; an index is checked before it becomes an address.
//! - `INV-CTR-2` A cell's identity is written before its `state` becomes live (Release), and a reader takes `state` first
//!   (Acquire). Counts only rise while a cell is live.
//! - `INV-CTR-3` A reader range-checks what it uses: the writer may be hostile.

use crate::ShmError;
use crate::memory::Backing;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What counter memory begins with: "INSNCNTR" in little-endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"INSNCNTR");

/// The version of the layout of counter memory.
pub const LAYOUT: u32 = 1;

/// The most cells that one piece of counter memory may have.
pub const MAX_CELLS: u32 = 1 << 20;

/// The number of counts in a cell.
pub const COUNTS: usize = 11;

/// A count in a cell, by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
#[non_exhaustive]
pub enum Count {
    /// Messages that the source emitted (in the source's own cell, whose sink id is 0).
    Emitted = 0,
    /// Messages meant for this sink when they were emitted.
    Intended = 1,
    /// Dropped because there was no room: at the source, on the link or in the stream's share; at the sink, as others of its session had
    /// no room beside what it has not taken.
    SinkFull = 2,
    /// Past their deadline, at whichever end the cell is.
    Expired = 3,
    /// The peer was lost before it was known what became of them.
    Unconfirmed = 4,
    /// Handed to the application at the sink.
    Delivered = 5,
    /// Reached the sink's session after the sink was closed.
    SinkClosed = 6,
    /// Reached the sink's session in a form that its checks refused.
    Invalid = 7,
    /// Payload bytes emitted (source's own cell) or delivered (sink's cell).
    Bytes = 8,
    /// Emitted when no sink was in the source's view (source's own cell).
    NoSink = 9,
    /// Dropped at the source for another reason: the sink was given up, or the path was closing.
    Dropped = 10,
}

impl Count {
    /// Every count, in order of the index.
    pub const ALL: [Self; COUNTS] = [
        Self::Emitted,
        Self::Intended,
        Self::SinkFull,
        Self::Expired,
        Self::Unconfirmed,
        Self::Delivered,
        Self::SinkClosed,
        Self::Invalid,
        Self::Bytes,
        Self::NoSink,
        Self::Dropped,
    ];

    /// The name in metrics and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Emitted => "emitted",
            Self::Intended => "intended",
            Self::SinkFull => "sink_full",
            Self::Expired => "expired",
            Self::Unconfirmed => "unconfirmed",
            Self::Delivered => "delivered",
            Self::SinkClosed => "sink_closed",
            Self::Invalid => "invalid",
            Self::Bytes => "bytes",
            Self::NoSink => "no_sink",
            Self::Dropped => "dropped",
        }
    }
}

/// The counts that end a message at the sink's end of a flow. The last two are used only where the sink is on another host and the cell is
/// the runtime's: it was lost with its host, or on the network. There `sink_full` is what found no room on that host at all.
pub const FINAL_AT_SINK: [Count; 7] = [
    Count::Delivered,
    Count::Expired,
    Count::SinkClosed,
    Count::Invalid,
    Count::SinkFull,
    Count::Unconfirmed,
    Count::Dropped,
];

/// Which end of a flow a cell counts, or that it is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum CellState {
    /// Never used, or given back.
    Free = 0,
    /// A source's own cell.
    Source = 1,
    /// The source's end of a flow.
    Producing = 2,
    /// The sink's end of a flow.
    Consuming = 3,
    /// The flow has ended; its counts are final.
    Ended = 4,
}

impl CellState {
    const fn from_number(n: u32) -> Self {
        match n {
            1 => Self::Source,
            2 => Self::Producing,
            3 => Self::Consuming,
            4 => Self::Ended,
            _ => Self::Free,
        }
    }
}

#[repr(C, align(128))]
struct Header {
    magic: AtomicU64,
    layout: AtomicU32,
    cells: AtomicU32,
}

#[repr(C, align(128))]
struct Cell {
    epoch: [AtomicU64; 2],
    sink: [AtomicU64; 2],
    state: AtomicU32,
    end: AtomicU32,
    counts: [AtomicU64; COUNTS],
}

const _: () = assert!(size_of::<Cell>() == 128 && size_of::<Header>() == 128);

/// The bytes of counter memory with so many cells.
#[must_use]
pub const fn bytes(cells: u32) -> usize {
    size_of::<Header>() + cells as usize * size_of::<Cell>()
}

/// One cell as a reader saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellCounts {
    /// Its index.
    pub index: u32,
    /// Which end it counts; what it counted last when `ended`.
    pub state: CellState,
    /// Whether the flow has ended.
    pub ended: bool,
    /// The source's epoch.
    pub epoch: u128,
    /// The sink's id; 0 in a source's own cell.
    pub sink: u128,
    /// The counts, by [`Count`].
    pub counts: [u64; COUNTS],
}

impl CellCounts {
    /// One of the counts.
    #[must_use]
    pub fn get(&self, count: Count) -> u64 {
        self.counts[count as usize]
    }
}

/// Counter memory: the owner's handle or a reader's. Thread-safe; each cell has one writing thread at a time.
#[derive(Debug, Clone)]
pub struct Counters {
    base: NonNull<u8>,
    cells: u32,
    _backing: Arc<dyn Backing>,
}

// SAFETY: INV-CTR-1; all that is reached through it is atomic.
unsafe impl Send for Counters {}
// SAFETY: as above.
unsafe impl Sync for Counters {}

impl Counters {
    /// Lays counters over zeroed memory that this process owns.
    ///
    /// # Errors
    /// [`ShmError::WrongSize`] or [`ShmError::Geometry`].
    pub fn create<B: Backing + 'static>(backing: Arc<B>, cells: u32) -> Result<Self, ShmError> {
        let counters = Self::lay(backing, cells)?;
        counters.header().cells.store(cells, Ordering::Relaxed);
        counters.header().layout.store(LAYOUT, Ordering::Relaxed);
        counters.header().magic.store(MAGIC, Ordering::Relaxed);
        Ok(counters)
    }

    /// Lays counters over a peer's memory, which was checked and mapped by [`crate::memory::map_peer`].
    ///
    /// # Errors
    /// [`ShmError::Layout`], [`ShmError::WrongSize`] or [`ShmError::Geometry`].
    pub fn open<B: Backing + 'static>(backing: Arc<B>) -> Result<Self, ShmError> {
        let mut counters = Self::lay(backing, 0)?;
        let header = counters.header();
        let (magic, layout, cells) = (
            header.magic.load(Ordering::Relaxed),
            header.layout.load(Ordering::Relaxed),
            header.cells.load(Ordering::Relaxed),
        );
        if magic != MAGIC || layout != LAYOUT {
            return Err(ShmError::Layout { magic, layout, expected: LAYOUT });
        }
        counters.check(cells)?;
        counters.cells = cells;
        Ok(counters)
    }

    fn lay<B: Backing + 'static>(backing: Arc<B>, cells: u32) -> Result<Self, ShmError> {
        let base = backing.base();
        if !base.cast::<Header>().is_aligned() {
            return Err(ShmError::Geometry { text: "counter memory is not 128-byte aligned".into() });
        }
        let counters = Self { base, cells, _backing: backing };
        counters.check(cells)?;
        Ok(counters)
    }

    fn check(&self, cells: u32) -> Result<(), ShmError> {
        let (has, needs) = (self._backing.len() as u64, bytes(cells) as u64);
        if cells > MAX_CELLS {
            return Err(ShmError::Limit { what: "counter cells", needs: cells.into(), limit: MAX_CELLS.into() });
        }
        if has < needs {
            return Err(ShmError::WrongSize { has, needs });
        }
        Ok(())
    }

    fn header(&self) -> &Header {
        // SAFETY: INV-CTR-1; checked in `lay`, and all fields are atomic.
        unsafe { self.base.cast().as_ref() }
    }

    /// How many cells there are.
    #[must_use]
    pub fn cells(&self) -> u32 {
        self.cells
    }

    fn cell(&self, index: u32) -> Option<NonNull<Cell>> {
        if index >= self.cells {
            return None;
        }
        // SAFETY: INV-CTR-1; the index was checked, the header is one cell long.
        Some(unsafe { self.base.cast::<Cell>().add(1 + index as usize) })
    }

    fn with<R>(&self, index: u32, f: impl FnOnce(&Cell) -> R) -> Option<R> {
        let cell = self.cell(index)?;
        // SAFETY: INV-CTR-1; all fields are atomic.
        Some(f(unsafe { cell.as_ref() }))
    }

    /// Starts a cell. The caller keeps track of which are free.
    pub fn start(&self, index: u32, state: CellState, epoch: u128, sink: u128) -> Option<CellWriter> {
        self.with(index, |cell| {
            for count in &cell.counts {
                count.store(0, Ordering::Relaxed);
            }
            for (i, half) in [epoch as u64, (epoch >> 64) as u64].into_iter().enumerate() {
                cell.epoch[i].store(half, Ordering::Relaxed);
            }
            for (i, half) in [sink as u64, (sink >> 64) as u64].into_iter().enumerate() {
                cell.sink[i].store(half, Ordering::Relaxed);
            }
            cell.end.store(0, Ordering::Relaxed);
            // Release pairs with: the Acquire in `get` (INV-CTR-2).
            cell.state.store(state as u32, Ordering::Release);
        })?;
        Some(CellWriter { cell: self.cell(index)?, index, _backing: self._backing.clone() })
    }

    /// Marks a cell's counts as final.
    pub fn end(&self, index: u32) {
        self.with(index, |cell| cell.end.store(1, Ordering::Release));
    }

    /// Gives a cell back.
    pub fn free(&self, index: u32) {
        self.with(index, |cell| cell.state.store(CellState::Free as u32, Ordering::Release));
    }

    /// A copy of one cell; `None` when there is no such cell.
    #[must_use]
    pub fn get(&self, index: u32) -> Option<CellCounts> {
        self.with(index, |cell| {
            // Acquire pairs with: the Release in `start` (INV-CTR-2).
            let state = CellState::from_number(cell.state.load(Ordering::Acquire));
            let wide = |halves: &[AtomicU64; 2]| {
                u128::from(halves[0].load(Ordering::Relaxed)) | u128::from(halves[1].load(Ordering::Relaxed)) << 64
            };
            CellCounts {
                index,
                state,
                ended: cell.end.load(Ordering::Acquire) != 0,
                epoch: wide(&cell.epoch),
                sink: wide(&cell.sink),
                counts: std::array::from_fn(|i| cell.counts[i].load(Ordering::Relaxed)),
            }
        })
    }

    /// The messages whose fate at the sink's end is final, by the sink's own counts. The caller checks it against what it
    /// gave (INV-CTR-3).
    #[must_use]
    pub fn finished(&self, index: u32) -> u64 {
        self.with(index, |cell| {
            // Acquire: what the sink did before counting is seen by who reads the count.
            FINAL_AT_SINK.iter().fold(0u64, |sum, c| sum.wrapping_add(cell.counts[*c as usize].load(Ordering::Acquire)))
        })
        .unwrap_or(0)
    }

    /// Copies of all cells that are in use.
    #[must_use]
    pub fn live(&self) -> Vec<CellCounts> {
        (0..self.cells).filter_map(|i| self.get(i)).filter(|c| c.state != CellState::Free).collect()
    }
}

/// The writing end of one cell: one thread at a time (the session's lock of the stream sees to it). Keeps the memory alive.
#[derive(Debug, Clone)]
pub struct CellWriter {
    cell: NonNull<Cell>,
    index: u32,
    _backing: Arc<dyn Backing>,
}

// SAFETY: INV-CTR-1; all fields are atomic.
unsafe impl Send for CellWriter {}
// SAFETY: as above.
unsafe impl Sync for CellWriter {}

impl CellWriter {
    /// The cell's index.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Adds to a count by one plain store: there is one writer.
    #[inline]
    pub fn add(&self, count: Count, n: u64) {
        // SAFETY: INV-CTR-1; the backing lives with this handle.
        let cell = unsafe { self.cell.as_ref() };
        let word = &cell.counts[count as usize];
        // Release pairs with: the Acquire in `finished`.
        word.store(word.load(Ordering::Relaxed).wrapping_add(n), Ordering::Release);
    }

    /// Reads a count back: it is this process's own memory.
    #[must_use]
    pub fn value(&self, count: Count) -> u64 {
        // SAFETY: INV-CTR-1; the backing lives with this handle.
        unsafe { self.cell.as_ref() }.counts[count as usize].load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::Heap;

    #[test]
    fn cells_count_and_end() {
        let backing = Arc::new(Heap::new(bytes(4)));
        let own = Counters::create(backing.clone(), 4).unwrap();
        let writer = own.start(2, CellState::Consuming, 7, 9).unwrap();
        writer.add(Count::Delivered, 3);
        writer.add(Count::Expired, 1);
        let reader = Counters::open(backing).unwrap();
        assert_eq!(reader.finished(2), 4);
        own.end(2);
        let cell = reader.get(2).unwrap();
        assert!(cell.ended && cell.epoch == 7 && cell.sink == 9 && cell.get(Count::Delivered) == 3);
        assert_eq!(reader.live().len(), 1);
        own.free(2);
        assert!(reader.live().is_empty() && reader.get(4).is_none());
    }

    #[test]
    fn foreign_memory_is_refused() {
        let backing = Arc::new(Heap::new(bytes(1)));
        assert!(matches!(Counters::open(backing.clone()), Err(ShmError::Layout { .. })));
        assert!(matches!(Counters::create(backing, 2), Err(ShmError::WrongSize { .. })));
    }
}
