//! Several small messages in one slot, behind one descriptor.
//!
//! A descriptor costs both ends more than a small message does: two cache lines that move between the cores, checks, and a
//! return. So messages that follow each other at once are put one after the other into a slot, and one descriptor with
//! [`crate::link::FLAG_PACKED`] says where and how many. Their numbers follow each other, and the descriptor has the first;
//! channel, source, priority and deadline are the same for all. The slot goes back when the last of them was released.
//!
//! A message in a pack is a word that is the payload's length in bytes, then the payload, then nothing up to the next multiple of
//! eight. Payloads are of at most [`MAX_COPIED`] bytes, which consumers copy out; with [`crate::link::FLAG_WIDE`] of at most
//! [`MAX_MESSAGE`] bytes, and longer ones than [`MAX_COPIED`] are read where they are.
//!
//! Invariants:
//! - `INV-PACK-1` A writer owns its slot (`INV-SLAB-2`) and never writes past the capacity it was given.
//! - `INV-PACK-2` A reader reads each length once and checks the copy: what it hands out lies between the beginning and the
//!   end that the descriptor's checks allowed (`INV-LINK-4`), whatever the producer writes meanwhile.

use crate::link::{Descriptor, FLAG_WIDE, INLINE_BYTES};
use crate::segment::SegmentView;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most messages in one pack: what a consumer keeps per message is bounded by this and the link's credit.
pub const MAX_MESSAGES: u16 = 64;

/// The longest message that consumers copy out of a pack, as they do one inside a descriptor, in bytes.
pub const MAX_COPIED: u32 = INLINE_BYTES as u32;

/// The longest message that is packed, in bytes: beyond that a descriptor costs next to nothing beside the payload.
pub const MAX_MESSAGE: u32 = 2048;

/// The longest pack in bytes.
pub const MAX_BYTES: u32 = 1 << 16;

const WORD: u32 = 8;

/// The bytes that a message of `len` bytes takes in a pack.
#[inline]
#[must_use]
pub const fn bytes_for(len: u32) -> u32 {
    WORD + len.next_multiple_of(WORD)
}

/// A slot that messages are put into.
#[derive(Debug)]
pub struct PackWriter {
    base: NonNull<u8>,
    capacity: u32,
    used: u32,
    payload: u32,
    count: u16,
}

// SAFETY: INV-PACK-1; the memory is the writer's alone.
unsafe impl Send for PackWriter {}

impl PackWriter {
    /// A writer for the `capacity` bytes at `base`; more than [`MAX_BYTES`] are not used.
    ///
    /// # Safety
    /// The bytes are writable, aligned to eight, and nobody else's in this process for as long as the writer lives.
    #[must_use]
    pub unsafe fn new(base: NonNull<u8>, capacity: u32) -> Self {
        debug_assert!(base.cast::<u64>().is_aligned());
        Self { base, capacity: capacity.min(MAX_BYTES), used: 0, payload: 0, count: 0 }
    }

    /// Whether a message of `len` bytes fits.
    #[inline]
    #[must_use]
    pub fn fits(&self, len: u32) -> bool {
        self.count < MAX_MESSAGES && len <= MAX_MESSAGE && self.used + bytes_for(len) <= self.capacity
    }

    /// Where the payload of a message of up to `len` bytes is to be written that is added next, by [`Self::commit`], and that
    /// place's distance from the beginning. `None`: it does not fit.
    #[inline]
    #[must_use]
    pub fn room(&self, len: u32) -> Option<(NonNull<u8>, u32)> {
        let at = self.used + WORD;
        // SAFETY: INV-PACK-1: it fits.
        self.fits(len).then(|| (unsafe { self.base.add(at as usize) }, at))
    }

    /// Where a payload may be written once `bytes` more are used; `None` at the end.
    #[inline(always)]
    #[must_use]
    pub fn after(&self, bytes: u32) -> Option<NonNull<u8>> {
        let at = self.used + bytes;
        // SAFETY: INV-PACK-1: it lies before the end.
        (at < self.capacity).then(|| unsafe { self.base.add(at as usize) })
    }

    /// Adds the message of `len` bytes whose payload was written where [`Self::room`] said. `false`: it does not fit, nothing was
    /// changed.
    #[inline]
    pub fn commit(&mut self, len: u32) -> bool {
        if !self.fits(len) {
            return false;
        }
        // SAFETY: INV-PACK-1: it fits.
        let at = unsafe { self.base.add(self.used as usize) };
        // SAFETY: INV-PACK-1; aligned, since all before it are multiples of eight.
        unsafe { at.cast::<u64>().write(u64::from(len)) };
        self.used += bytes_for(len);
        self.payload += len;
        self.count += 1;
        true
    }

    /// Adds a message. `false`: it does not fit, nothing was changed.
    #[inline]
    pub fn append(&mut self, payload: &[u8]) -> bool {
        let len = u32::try_from(payload.len()).unwrap_or(MAX_BYTES);
        let Some((to, _)) = self.room(len) else { return false };
        // SAFETY: INV-PACK-1: it fits, and a borrowed slice is elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), to.as_ptr(), payload.len()) };
        self.commit(len)
    }

    /// How many messages are in it.
    #[inline]
    #[must_use]
    pub fn count(&self) -> u16 {
        self.count
    }

    /// The bytes that they take.
    #[inline]
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// The bytes of their payloads.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> u32 {
        self.payload
    }

    /// Where the first message's payload begins, in bytes from the beginning.
    #[inline]
    #[must_use]
    pub const fn first_at(&self) -> u32 {
        WORD
    }

    /// The first message's payload; empty if there is none.
    #[must_use]
    pub fn first(&self) -> &[u8] {
        if self.count == 0 {
            return &[];
        }
        // SAFETY: INV-PACK-1: `append` wrote it.
        let len = unsafe { self.base.cast::<u64>().read() };
        // SAFETY: INV-PACK-1: the first payload follows its length.
        let at = unsafe { self.base.add(WORD as usize) };
        // SAFETY: INV-PACK-1: `append` wrote as many bytes there.
        unsafe { std::slice::from_raw_parts(at.as_ptr(), len as usize) }
    }
}

/// Where the next message of a pack is looked for.
#[derive(Debug, Clone, Copy)]
pub struct PackReader {
    base: NonNull<u8>,
    at: u32,
    end: u32,
    longest: u32,
    left: u16,
}

// SAFETY: INV-PACK-2; the memory is only read, and is mapped for as long as the reader's owner keeps the segment.
unsafe impl Send for PackReader {}

/// A message of a pack: where its payload begins, counted from the pack's beginning, and its length, both in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// The first byte.
    pub offset: u32,
    /// The bytes.
    pub length: u32,
}

/// A pack whose lengths go past its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overrun;

impl PackReader {
    /// A reader of the `count` messages in `length` bytes at `base`, of which none is longer than `longest` bytes.
    ///
    /// # Safety
    /// The bytes are mapped for as long as the reader is used, and aligned to eight. Another process may write to them.
    #[inline]
    #[must_use]
    pub unsafe fn new(base: NonNull<u8>, length: u32, count: u16, longest: u32) -> Self {
        debug_assert!(base.cast::<u64>().is_aligned());
        Self { base, at: 0, end: length, longest, left: count }
    }

    /// As [`Self::new`], of the pack that a descriptor speaks of and that begins at `base`.
    ///
    /// # Safety
    /// As for [`Self::new`].
    #[inline]
    #[must_use]
    pub unsafe fn of(base: NonNull<u8>, d: &Descriptor) -> Self {
        let longest = if d.flags & FLAG_WIDE == 0 { MAX_COPIED } else { MAX_MESSAGE };
        // SAFETY: the caller's promise.
        unsafe { Self::new(base, d.length, d.count, longest) }
    }

    /// How many messages are left.
    #[inline]
    #[must_use]
    pub fn left(&self) -> u16 {
        self.left
    }

    /// The next message; `None` after the last.
    ///
    /// # Errors
    /// [`Overrun`]: the producer wrote what no library writes; nothing more is to be read.
    #[inline(always)]
    #[allow(clippy::should_implement_trait)] // Not an iterator: the bytes it speaks of may change.
    pub fn next(&mut self) -> Option<Result<Packed, Overrun>> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        if self.end - self.at < WORD {
            return Some(Err(Overrun));
        }
        // SAFETY: INV-PACK-2: eight bytes are there.
        let at = unsafe { self.base.add(self.at as usize) };
        // SAFETY: as above, aligned; atomics are all that is reached (INV-MEM-4).
        let word = unsafe { at.cast::<AtomicU64>().as_ref() };
        // Relaxed: the descriptor was acquired; the peer may change it at any time, so only the copy is used.
        let length = word.load(Ordering::Relaxed);
        let left = self.end - self.at - WORD;
        if length > u64::from(left.min(self.longest)) {
            return Some(Err(Overrun));
        }
        let (offset, length) = (self.at + WORD, length as u32);
        // The last one need not be filled up to the multiple.
        self.at = (offset + length.next_multiple_of(WORD)).min(self.end);
        if self.left > 0 && !self.at.is_multiple_of(WORD) {
            return Some(Err(Overrun));
        }
        Some(Ok(Packed { offset, length }))
    }
}

/// The lengths in bytes of the messages in the pack that a descriptor speaks of, which passed a link's checks; they lie one after
/// the other, each behind a word, as [`bytes_for`] says. `None`: it is no pack. The payloads are not looked at.
#[must_use]
pub fn lengths(view: &SegmentView, d: &Descriptor) -> Option<Vec<u16>> {
    let base = view.locate(d.slot, d.offset, d.length).filter(|base| base.cast::<u64>().is_aligned())?;
    // SAFETY: `locate` has checked it, and the view is borrowed for as long.
    let mut reader = unsafe { PackReader::of(base, d) };
    let mut lengths = Vec::with_capacity(d.count.min(MAX_MESSAGES).into());
    while let Some(found) = reader.next() {
        // No longer than MAX_MESSAGE, as the reader has checked.
        lengths.push(u16::try_from(found.ok()?.length).ok()?);
    }
    Some(lengths)
}

/// Copies a payload of up to [`MAX_COPIED`] bytes, each word once, up to the next multiple of eight.
///
/// # Safety
/// The words are mapped and aligned; another process may write to them.
#[inline(always)]
pub unsafe fn copy_words(from: NonNull<u8>, length: u32, to: &mut [u64; INLINE_BYTES / 8]) {
    let word = |i: usize| {
        // SAFETY: the caller's promise.
        let at = unsafe { from.cast::<AtomicU64>().add(i) };
        // SAFETY: the caller's promise.
        unsafe { at.as_ref() }.load(Ordering::Relaxed)
    };
    // The longest one without a loop: it is what small fixed-size messages mostly are.
    if length as usize == INLINE_BYTES {
        for (i, to) in to.iter_mut().enumerate() {
            *to = word(i);
        }
        return;
    }
    for (i, to) in to.iter_mut().enumerate().take((length as usize).div_ceil(8)) {
        *to = word(i);
    }
}

/// The messages of a pack that are copied out, one by one; that one is longer ends it like a fault.
#[derive(Debug)]
pub struct Messages<'a> {
    base: NonNull<u8>,
    reader: PackReader,
    _mapped: PhantomData<&'a SegmentView>,
}

impl<'a> Messages<'a> {
    /// Those of a descriptor that passed a link's checks, in its segment. `None`: it is not there.
    #[must_use]
    pub fn of(view: &'a SegmentView, d: &Descriptor) -> Option<Self> {
        let base = view.locate(d.slot, d.offset, d.length)?;
        if !base.cast::<u64>().is_aligned() {
            return None;
        }
        // SAFETY: `locate` has checked it, and the view is borrowed for as long.
        let reader = unsafe { PackReader::new(base, d.length, d.count, MAX_COPIED) };
        Some(Self { base, reader, _mapped: PhantomData })
    }
}

impl Iterator for Messages<'_> {
    type Item = Result<([u64; INLINE_BYTES / 8], u32), Overrun>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = match self.reader.next()? {
            Ok(found) => found,
            Err(overrun) => return Some(Err(overrun)),
        };
        let mut words = [0; INLINE_BYTES / 8];
        // SAFETY: INV-PACK-2: the reader has checked it.
        let at = unsafe { self.base.add(found.offset as usize) };
        // SAFETY: INV-PACK-2: a payload begins at a multiple of eight, and the slot ends at one.
        unsafe { copy_words(at, found.length, &mut words) };
        Some(Ok((words, found.length)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn memory(words: usize) -> (Vec<u64>, NonNull<u8>, u32) {
        let mut memory = vec![u64::MAX; words];
        let base = NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap();
        (memory, base, words as u32 * 8)
    }

    fn read(base: NonNull<u8>, packed: Packed) -> Vec<u8> {
        let mut bytes = vec![0; packed.length as usize];
        // SAFETY: a test's own memory.
        let at = unsafe { base.add(packed.offset as usize) };
        // SAFETY: as above; the reader has checked the length.
        unsafe { crate::segment::copy_out(at, &mut bytes) };
        bytes
    }

    #[test]
    fn what_is_put_in_comes_out() {
        let (_keep, base, capacity) = memory(64);
        // SAFETY: `_keep` is nobody else's.
        let mut writer = unsafe { PackWriter::new(base, capacity) };
        let sent: Vec<Vec<u8>> = (0..20u8).map(|n| vec![n; usize::from(n)]).collect();
        for message in &sent {
            assert!(writer.append(message));
        }
        assert_eq!((writer.count(), writer.payload(), writer.first()), (20, 190, &[][..]));
        // SAFETY: as above.
        let mut reader = unsafe { PackReader::new(base, writer.used(), writer.count(), MAX_COPIED) };
        for message in &sent {
            assert_eq!(&read(base, reader.next().unwrap().unwrap()), message);
        }
        assert!(reader.next().is_none());
    }

    #[test]
    fn nothing_is_written_past_the_end() {
        let (keep, base, capacity) = memory(8);
        // SAFETY: `keep` is nobody else's.
        let mut writer = unsafe { PackWriter::new(base, capacity - 8) };
        assert!(!writer.append(&[7; 49]), "48 and a length are all there is");
        assert!(!writer.append(&[7; 2049]), "too long for a pack");
        assert!(writer.append(&[7; 10]));
        assert!(writer.append(&[8; 17]) == writer.fits(17) || writer.count() == 2);
        while writer.append(&[9]) {}
        assert_eq!(keep[7], u64::MAX);
        let (_keep, base, capacity) = memory(4096);
        // SAFETY: as above.
        let mut writer = unsafe { PackWriter::new(base, capacity) };
        let mut count = 0;
        while writer.append(&[]) {
            count += 1;
        }
        assert_eq!(count, MAX_MESSAGES);
    }

    #[test]
    fn what_is_written_in_place_is_added_when_it_is_committed() {
        let (_keep, base, capacity) = memory(64);
        // SAFETY: `_keep` is nobody else's.
        let mut writer = unsafe { PackWriter::new(base, capacity) };
        assert!(writer.append(&[1; 3]));
        let (to, at) = writer.room(100).unwrap();
        assert_eq!((at, writer.count()), (24, 1));
        // SAFETY: as above, and it fits.
        unsafe { to.write_bytes(2, 90) };
        assert!(writer.commit(90) && writer.append(&[3; 8]));
        assert!(writer.room(MAX_MESSAGE + 1).is_none() && !writer.commit(capacity));
        // SAFETY: as above.
        let reader = |longest| unsafe { PackReader::new(base, writer.used(), writer.count(), longest) };
        let mut wide = reader(MAX_MESSAGE);
        for message in [&[1; 3][..], &[2; 90], &[3; 8]] {
            assert_eq!(read(base, wide.next().unwrap().unwrap()), message);
        }
        let mut narrow = reader(MAX_COPIED);
        assert!(narrow.next().unwrap().is_ok());
        assert_eq!(narrow.next(), Some(Err(Overrun)), "longer than what consumers copy");
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let words = |memory: &[u64], count: u16| {
            let memory = memory.to_vec();
            let base = NonNull::new(memory.as_ptr().cast_mut().cast::<u8>()).unwrap();
            // SAFETY: `memory` lives until the end of this closure.
            let mut reader = unsafe { PackReader::new(base, memory.len() as u32 * 8, count, MAX_COPIED) };
            let mut all = Vec::new();
            while let Some(next) = reader.next() {
                let over = next.is_err();
                all.push(next);
                if over {
                    break;
                }
            }
            all
        };
        assert_eq!(words(&[9, 0], 1), [Err(Overrun)], "longer than the pack");
        assert_eq!(words(&[u64::MAX, 0], 1), [Err(Overrun)]);
        assert_eq!(words(&[1 << 32, 0], 1), [Err(Overrun)], "the high half counts");
        assert_eq!(words(&[8, 0], 2)[1], Err(Overrun), "more messages than there are");
        assert_eq!(words(&[], 1), [Err(Overrun)]);
        assert_eq!(words(&[5, 0, 0, 0], 2).len(), 2);
    }
}
