//! Memory that a datapath writes to or reads from, and who owns it.
//!
//! A [`Slot`] is moved, never shared: whoever has the value may write to the memory. So ownership is what the compiler
//! checks, and a batch that comes back says where every slot is. A [`Piece`] is payload to be read, which a client may still
//! be able to change: it is never made into a reference, only handed to the technology.
//!
//! Invariants:
//! - `INV-MEM-1` The memory of a slot is mapped and writable, and used by nobody else in this process, for as long as the
//!   value exists. Whoever made it with [`Slot::from_raw`] promised so; [`Slot::owned`] allocates it.
//! - `INV-MEM-2` The memory of a piece stays mapped until its frame has an outcome (and is done, with
//!   [`crate::Foreign::InPlace`]). Whoever made it with [`Piece::from_raw`] promised so; [`Piece::of`] and [`Piece::shared`] borrow it.
//! - `INV-MEM-3` The memory of a lent slot is mapped and written by nobody for as long as the value exists; this process only
//!   reads it. Whoever made it with [`Slot::lent`] promised so.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU8;

/// Memory to receive into, or with something received that the technology lends.
#[derive(Debug)]
pub struct Slot {
    id: u64,
    base: NonNull<u8>,
    len: usize,
    owned: bool,
    lent: Option<Lent>,
}

// SAFETY: INV-MEM-1 and INV-MEM-3, the value alone gives access to the memory, wherever it goes.
unsafe impl Send for Slot {}
// SAFETY: as above; a shared one only reads.
unsafe impl Sync for Slot {}

/// Where the memory of a lent slot lies, for those who map what it is lent out of ([`crate::Lendable`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent {
    /// Which of the technology's memories: its place in what [`crate::Datapath::lends`] says.
    pub memory: u16,
    /// Which of its slots.
    pub slot: u32,
    /// Where in that it begins, in bytes.
    pub offset: u32,
}

impl Slot {
    /// A slot over memory of the caller's; `id` is the caller's name for it.
    ///
    /// # Safety
    /// `base` is valid for reads and writes of `len` bytes until the value is dropped or forgotten, and nothing else in this
    /// process reads or writes there while it exists. Other processes may read.
    #[must_use]
    pub unsafe fn from_raw(id: u64, base: NonNull<u8>, len: usize) -> Self {
        Self { id, base, len, owned: false, lent: None }
    }

    /// A slot over memory that is allocated with it and goes with it.
    #[must_use]
    pub fn owned(id: u64, len: usize) -> Self {
        let memory = Box::leak(vec![0u8; len].into_boxed_slice());
        Self { id, base: NonNull::from(&mut *memory).cast(), len, owned: true, lent: None }
    }

    /// A slot over memory that a technology has received into and lends: it is read only, and to be given back by
    /// [`crate::batch::RxBatch::give_back`]. `id` is the technology's name for what it was opened as.
    ///
    /// # Safety
    /// `base` is valid for reads of `len` bytes until the value is dropped, and nobody writes there while it exists.
    #[must_use]
    pub unsafe fn lent(id: u64, place: Lent, base: NonNull<u8>, len: usize) -> Self {
        Self { id, base, len, owned: false, lent: Some(place) }
    }

    /// A slot that is as one that is lent, over memory that is allocated with it and goes with it: for those who try what becomes of
    /// lent ones.
    #[must_use]
    pub fn as_lent(id: u64, place: Lent, bytes: &[u8]) -> Self {
        let mut slot = Self::owned(id, bytes.len());
        slot.bytes_mut().copy_from_slice(bytes);
        slot.lent = Some(place);
        slot
    }

    /// Where it lies, if it is lent.
    #[inline]
    #[must_use]
    pub const fn place(&self) -> Option<Lent> {
        self.lent
    }

    /// The caller's name for it.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Its size in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Exchanges its memory with that of another slot, while both keep their names. `false`, and nothing is done, unless both are of one
    /// size and were made by [`Slot::owned`]: whose memory is somebody else's wants it back where it was.
    #[must_use]
    pub const fn exchange(&mut self, other: &mut Self) -> bool {
        let both = self.owned && other.owned && self.lent.is_none() && other.lent.is_none() && self.len == other.len;
        if both {
            core::mem::swap(&mut self.base, &mut other.base);
        }
        both
    }

    /// Its bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: INV-MEM-1, INV-MEM-3.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// Its bytes, to be written; none if it is lent.
    #[inline]
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.lent.is_some() {
            return &mut [];
        }
        // SAFETY: INV-MEM-1, and `&mut self` is the only way in.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.owned {
            let memory = core::ptr::slice_from_raw_parts_mut(self.base.as_ptr(), self.len);
            // SAFETY: `owned` leaked exactly this box, and the value is dropped once.
            drop(unsafe { Box::from_raw(memory) });
        }
    }
}

/// Payload to be gathered from where it lies.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'m> {
    base: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'m [u8]>,
}

// SAFETY: INV-MEM-2; a piece gives nobody more than an address and a length.
unsafe impl Send for Piece<'_> {}

impl<'m> Piece<'m> {
    /// Payload in memory that nobody changes.
    #[must_use]
    pub fn of(bytes: &'m [u8]) -> Self {
        Self { base: NonNull::from(bytes).cast(), len: bytes.len(), memory: PhantomData }
    }

    /// Payload in memory that another process may change meanwhile: what is sent is then whatever was there.
    #[must_use]
    pub fn shared(bytes: &'m [AtomicU8]) -> Self {
        Self { base: NonNull::from(bytes).cast(), len: bytes.len(), memory: PhantomData }
    }

    /// As [`Self::shared`], by its address.
    ///
    /// # Safety
    /// `base` is valid for reads of `len` bytes until the frame that it is added to is done with.
    #[must_use]
    pub const unsafe fn from_raw(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len, memory: PhantomData }
    }

    /// Where it lies. To be handed to the technology, or copied from; never to be made into a reference.
    #[inline]
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its length in bytes.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` bytes of it from byte `from` on, if it has them.
    #[inline]
    #[must_use]
    pub fn part(&self, from: usize, len: usize) -> Option<Self> {
        if from > self.len || len > self.len - from {
            return None;
        }
        // SAFETY: INV-MEM-2, no further than one past the end; checked above.
        Some(Self { base: unsafe { self.base.add(from) }, len, memory: PhantomData })
    }

    /// Copies bytes of it, from byte `from` on, to the whole of `out`; says how many there were.
    #[inline]
    pub fn copy_part(&self, from: usize, out: &mut [u8]) -> usize {
        let count = self.len.saturating_sub(from).min(out.len());
        if count > 0 {
            // SAFETY: INV-MEM-2 and `from + count <= len`; `out` is memory of this process that nobody else uses.
            unsafe { core::ptr::copy_nonoverlapping(self.base.as_ptr().add(from), out.as_mut_ptr(), count) };
        }
        count
    }

    /// Copies it to the end of `out`.
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.len);
        let at = out.len();
        let to = out.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: INV-MEM-2 for the source; `reserve` made room at the target, which is another allocation.
        unsafe { core::ptr::copy_nonoverlapping(self.base.as_ptr(), to, self.len) };
        // SAFETY: the bytes up to there were just written.
        unsafe { out.set_len(at + self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_pieces_are_the_bytes_they_were_made_of() {
        let mut slot = Slot::owned(3, 16);
        slot.bytes_mut()[..4].copy_from_slice(b"abcd");
        let mut out = vec![b'x'];
        Piece::of(&slot.bytes()[1..4]).copy_to(&mut out);
        assert_eq!((out.as_slice(), slot.id(), slot.len()), (&b"xbcd"[..], 3, 16));
        let shared = [1, 2, 3].map(AtomicU8::new);
        let piece = Piece::shared(&shared);
        piece.part(1, 2).unwrap().copy_to(&mut out);
        assert_eq!(out, b"xbcd\x02\x03");
        assert!(piece.part(3, 0).is_some() && piece.part(2, 2).is_none() && piece.part(4, 0).is_none());
        let mut memory = [0u8; 8];
        // SAFETY: `memory` outlives the slot and is not touched meanwhile.
        let mut raw = unsafe { Slot::from_raw(1, NonNull::from(&mut memory).cast(), 8) };
        raw.bytes_mut()[7] = 9;
        drop(raw);
        assert_eq!(memory[7], 9);
    }

    #[test]
    fn slots_exchange_memory_that_goes_with_them_and_no_other() {
        let [mut one, mut other] = [(1, b"one"), (2, b"two")].map(|(id, bytes)| {
            let mut slot = Slot::owned(id, 3);
            slot.bytes_mut().copy_from_slice(bytes);
            slot
        });
        assert!(one.exchange(&mut other));
        assert_eq!((one.id(), one.bytes(), other.id(), other.bytes()), (1, &b"two"[..], 2, &b"one"[..]));
        assert!(!one.exchange(&mut Slot::owned(3, 4)));
        assert!(!one.exchange(&mut Slot::as_lent(4, Lent { memory: 0, slot: 0, offset: 0 }, b"abc")));
        let mut memory = [0u8; 3];
        // SAFETY: `memory` outlives the slot and is not touched meanwhile.
        let mut raw = unsafe { Slot::from_raw(5, NonNull::from(&mut memory).cast(), 3) };
        assert!(!one.exchange(&mut raw) && !raw.exchange(&mut one));
        assert_eq!(one.bytes(), b"two");
    }

    #[test]
    fn what_is_lent_is_not_written() {
        let memory = [7u8; 8];
        let place = Lent { memory: 1, slot: 2, offset: 3 };
        // SAFETY: `memory` outlives the slot, and nobody writes to it.
        let mut slot = unsafe { Slot::lent(4, place, NonNull::from(&memory).cast(), 8) };
        assert_eq!((slot.bytes_mut().len(), slot.bytes(), slot.place()), (0, &memory[..], Some(place)));
    }
}
