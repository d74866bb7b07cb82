//! Counter memory of random words, which change while it is read: it is refused or has the cells that it said at first, all of them inside,
//! and what is read of one is what stands there.
#![no_main]

use insane_shm::counters::{CellState, Counters, FINAL_AT_SINK, LAYOUT, MAGIC, bytes};
use insane_shm::memory::{Backing, Heap};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The words of a cell, and of the header.
const WORDS: usize = 16;

/// Where a cell's state is, and its first count.
const STATE: usize = 4;
const COUNTS: usize = 5;

/// So many cells have room in the memory.
const ROOM: u32 = 4;

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    let memory = Arc::new(Heap::new(bytes(ROOM)));
    let word = |at: usize| {
        // SAFETY: `at` is below the words of the memory, which is aligned for them; all are atomic.
        unsafe { memory.base().cast::<AtomicU64>().add(at % (bytes(ROOM) / 8)).as_ref() }
    };
    let words: Vec<u64> = rest.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    for (at, value) in words.iter().enumerate().take(bytes(ROOM) / 8) {
        word(at).store(*value, Ordering::Relaxed);
    }
    // Most are to get as far as the cells.
    if first & 1 == 0 {
        word(0).store(MAGIC, Ordering::Relaxed);
        word(1).store(u64::from(LAYOUT) | u64::from(first >> 4) << 32, Ordering::Relaxed);
    }
    let said = word(1).load(Ordering::Relaxed);
    let (layout, cells) = (said as u32, (said >> 32) as u32);
    let is_one = word(0).load(Ordering::Relaxed) == MAGIC && layout == LAYOUT && cells <= ROOM;
    let Ok(counters) = Counters::open(memory.clone()) else { return assert!(!is_one) };
    assert!(is_one && counters.cells() == cells);
    // Whoever owns it may write there what it likes at any time, more cells too.
    word(1).store(u64::MAX, Ordering::Relaxed);
    for value in words.iter().rev().take(8) {
        word(*value as usize).store(value.rotate_left(17), Ordering::Relaxed);
    }
    for index in (0..ROOM + 2).chain([u32::MAX]) {
        let at = |offset: usize| word(WORDS * (1 + index as usize) + offset).load(Ordering::Relaxed);
        let Some(cell) = counters.get(index) else {
            assert!(index >= cells && counters.finished(index) == 0);
            continue;
        };
        assert!(index < cells && cell.index == index);
        let state = at(STATE) as u32;
        assert!(cell.state == CellState::Free || cell.state as u32 == state);
        assert_eq!(cell.ended, at(STATE) >> 32 != 0);
        assert_eq!(cell.epoch, u128::from(at(0)) | u128::from(at(1)) << 64);
        assert_eq!(cell.sink, u128::from(at(2)) | u128::from(at(3)) << 64);
        assert!((COUNTS..).zip(cell.counts).all(|(offset, count)| at(offset) == count));
        let finished = FINAL_AT_SINK.iter().fold(0u64, |sum, count| sum.wrapping_add(cell.get(*count)));
        assert_eq!(counters.finished(index), finished);
    }
    let live = counters.live();
    assert!(
        live.len() <= cells as usize && live.iter().all(|cell| cell.index < cells && cell.state != CellState::Free)
    );
});
