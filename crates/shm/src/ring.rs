//! A ring of entries in control memory, one writer and one reader, each entry with its own sequence number.
//!
//! Invariants:
//! - `INV-RING-1` A [`Block`]'s head and its `entries` entries lie inside its backing, aligned, for as long as the block
//!   lives; `entries` is a power of two.
//! - `INV-RING-2` Only the block's owner writes to it; the other side maps it read-only. Nobody reads back what the peer
//!   can write: a reader copies each word once and checks the copy.
//! - `INV-RING-3` An entry's words are written first and word 0 last, with Release (`publish`); it pairs with the Acquire
//!   in `read`. Word 0 holds the low 32 bits of the position plus one, so that no head or tail is shared and zeroed memory
//!   reads as empty.
//! - `INV-RING-4` The writer reuses an entry only after it knows that the reader has passed it. The link sees to that by
//!   credit: no more than `entries` positions are out at any time (see `link`).

use crate::ShmError;
use crate::memory::Backing;
use crate::mutate::{Mutation, left_out};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::ptr::NonNull;
use std::sync::Arc;

/// What control memory begins with: "INSNLINK" in little-endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"INSNLINK");

/// The version of the layout of control memory, descriptors and return entries.
pub const LAYOUT: u32 = 2;

/// The fewest entries of a ring.
pub const MIN_ENTRIES: u32 = 4;

/// The most entries of a ring.
pub const MAX_ENTRIES: u32 = 65_536;

/// A word on a pair of cache lines of its own, so that nothing else moves with it.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Lone(pub(crate) AtomicU32);

/// The first bytes of control memory.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Head {
    magic: AtomicU64,
    layout: AtomicU32,
    entries: AtomicU32,
    /// Counts the wake-ups that the owner gave; the peer sleeps on it.
    pub(crate) wake: Lone,
    /// Whether the owner sleeps, and how often it has gone to sleep.
    pub(crate) sleep: Lone,
    /// loom has no futex: the model's queue of sleepers.
    #[cfg(loom)]
    pub(crate) model: crate::wait::ModelFutex,
}

/// One entry of a ring: word 0 publishes the others.
#[derive(Debug)]
#[repr(C)]
pub struct Entry<const W: usize> {
    words: [AtomicU64; W],
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Head>() == 384 && align_of::<Head>() == 128);
    assert!(size_of::<Entry<16>>() == 128 && size_of::<Entry<2>>() == 16);
};

/// A head and a ring behind it: one side's control memory of a link.
#[derive(Debug)]
pub struct Block<const W: usize> {
    head: NonNull<Head>,
    entries: NonNull<Entry<W>>,
    mask: u64,
    _backing: Arc<dyn std::any::Any + Send + Sync>,
}

// SAFETY: INV-RING-1 and INV-RING-2; all that is reached through a block is atomic.
unsafe impl<const W: usize> Send for Block<W> {}
// SAFETY: as above.
unsafe impl<const W: usize> Sync for Block<W> {}

impl<const W: usize> Block<W> {
    /// The bytes of control memory with a ring of `entries`.
    ///
    /// # Errors
    /// [`ShmError::Geometry`] unless `entries` is a power of two from [`MIN_ENTRIES`] to [`MAX_ENTRIES`].
    pub fn bytes(entries: u32) -> Result<usize, ShmError> {
        if !entries.is_power_of_two() || !(MIN_ENTRIES..=MAX_ENTRIES).contains(&entries) {
            return Err(ShmError::Geometry {
                text: format!(
                    "a ring of {entries} entries: it takes a power of two from {MIN_ENTRIES} to {MAX_ENTRIES}"
                ),
            });
        }
        Ok(size_of::<Head>() + entries as usize * size_of::<Entry<W>>())
    }

    /// Lays a block over zeroed memory that this process owns.
    ///
    /// # Errors
    /// [`ShmError::Geometry`] or [`ShmError::WrongSize`]; the memory is unchanged then.
    #[cfg(not(loom))]
    pub fn create<B: Backing + 'static>(backing: Arc<B>, entries: u32) -> Result<Self, ShmError> {
        let block = Self::lay(backing, entries)?;
        block.head().entries.store(entries, Ordering::Relaxed);
        block.head().layout.store(LAYOUT, Ordering::Relaxed);
        // Relaxed: the peer maps the memory only after a message that carries its descriptor.
        block.head().magic.store(MAGIC, Ordering::Relaxed);
        Ok(block)
    }

    /// Lays a block over a peer's memory.
    ///
    /// # Errors
    /// [`ShmError::Layout`] if it is not control memory of this layout with so many entries, or as `create`.
    #[cfg(not(loom))]
    pub fn open<B: Backing + 'static>(backing: Arc<B>, entries: u32) -> Result<Self, ShmError> {
        let block = Self::lay(backing, entries)?;
        let (magic, layout) = (block.head().magic.load(Ordering::Relaxed), block.head().layout.load(Ordering::Relaxed));
        if magic != MAGIC || layout != LAYOUT || block.head().entries.load(Ordering::Relaxed) != entries {
            return Err(ShmError::Layout { magic, layout, expected: LAYOUT });
        }
        Ok(block)
    }

    #[cfg(not(loom))]
    fn lay<B: Backing + 'static>(backing: Arc<B>, entries: u32) -> Result<Self, ShmError> {
        let needs = Self::bytes(entries)?;
        if backing.len() < needs {
            return Err(ShmError::WrongSize { has: backing.len() as u64, needs: needs as u64 });
        }
        let head = backing.base().cast::<Head>();
        if !head.is_aligned() {
            return Err(ShmError::Geometry { text: "control memory is not 128-byte aligned".into() });
        }
        // SAFETY: INV-RING-1; the length was just checked.
        let entries_at = unsafe { head.add(1) }.cast();
        Ok(Self { head, entries: entries_at, mask: u64::from(entries) - 1, _backing: backing })
    }

    /// A block for a model: two handles on the same memory, the owner's and the peer's.
    #[cfg(loom)]
    pub fn modelled(entries: u32) -> (Self, Self) {
        let head = Box::new(Head {
            magic: AtomicU64::new(MAGIC),
            layout: AtomicU32::new(LAYOUT),
            entries: AtomicU32::new(entries),
            wake: Lone(AtomicU32::new(0)),
            sleep: Lone(AtomicU32::new(0)),
            model: crate::wait::ModelFutex::default(),
        });
        let ring: Box<[Entry<W>]> =
            (0..entries).map(|_| Entry { words: std::array::from_fn(|_| AtomicU64::new(0)) }).collect();
        let held = Arc::new((head, ring));
        let make = || Self {
            head: NonNull::from(&*held.0),
            entries: NonNull::from(&held.1[0]),
            mask: u64::from(entries) - 1,
            _backing: held.clone(),
        };
        (make(), make())
    }

    /// How many entries the ring has.
    #[inline]
    #[must_use]
    pub fn entries(&self) -> u32 {
        u32::try_from(self.mask + 1).unwrap_or(MAX_ENTRIES)
    }

    /// One less than the entries.
    #[inline(always)]
    pub(crate) fn mask(&self) -> u64 {
        self.mask
    }

    /// What keeps the memory alive.
    pub(crate) fn backing(&self) -> Arc<dyn std::any::Any + Send + Sync> {
        self._backing.clone()
    }

    #[inline]
    pub(crate) fn head(&self) -> &Head {
        // SAFETY: INV-RING-1; only atomics are reached through it (INV-MEM-4).
        unsafe { self.head.as_ref() }
    }

    #[inline(always)]
    fn entry(&self, position: u64) -> &Entry<W> {
        let index = (position & self.mask) as usize;
        // SAFETY: INV-RING-1; the mask keeps the index below the number of entries.
        let at = unsafe { self.entries.add(index) };
        // SAFETY: INV-RING-1; only atomics are reached through it (INV-MEM-4).
        unsafe { at.as_ref() }
    }

    /// The words of the entry at `position`, to be found once per entry: between two of its stores the compiler has to look
    /// up base and mask again.
    #[inline(always)]
    pub(crate) fn words(&self, position: u64) -> &[AtomicU64; W] {
        &self.entry(position).words
    }

    /// Writes word `word` of the entry at `position`; invisible until [`Self::publish`].
    #[inline]
    pub(crate) fn write(&self, position: u64, word: usize, value: u64) {
        debug_assert!(word > 0 && word < W);
        // Relaxed: `publish` releases it.
        self.entry(position).words[word].store(value, Ordering::Relaxed);
    }

    /// Publishes the entry at `position` with `high` in the upper half of word 0.
    #[inline]
    pub(crate) fn publish(&self, position: u64, high: u32) {
        Self::publish_in(self.words(position), position, high);
    }

    /// As [`Self::publish`], of the entry with these words.
    #[inline(always)]
    pub(crate) fn publish_in(words: &[AtomicU64; W], position: u64, high: u32) {
        let order = if left_out(Mutation::PublishRelease) { Ordering::Relaxed } else { Ordering::Release };
        // Release pairs with: the Acquire in `read` (INV-RING-3).
        words[0].store(stamp(position) | u64::from(high) << 32, order);
    }

    /// Word 0's upper half, if the entry at `position` is published.
    #[inline]
    pub(crate) fn read(&self, position: u64) -> Option<u32> {
        Self::read_in(self.words(position), position)
    }

    /// As [`Self::read`], of the entry with these words.
    #[inline(always)]
    pub(crate) fn read_in(words: &[AtomicU64; W], position: u64) -> Option<u32> {
        // Acquire pairs with: the Release in `publish` (INV-RING-3).
        let word = words[0].load(Ordering::Acquire);
        (word & 0xffff_ffff == stamp(position)).then_some((word >> 32) as u32)
    }

    /// Copies word `word` of the entry at `position`, once.
    #[inline]
    pub(crate) fn word(&self, position: u64, word: usize) -> u64 {
        // Relaxed: `read` acquired it; a hostile writer may have changed it since, so the caller checks the copy.
        self.entry(position).words[word].load(Ordering::Relaxed)
    }
}

/// The low half of word 0 at `position`. Zero, which fresh memory holds, comes only once in 2^32 positions, when every
/// entry has long been written.
#[inline]
fn stamp(position: u64) -> u64 {
    position.wrapping_add(1) & 0xffff_ffff
}
