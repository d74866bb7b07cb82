//! Segments: shared memory with one owner, cut into slots of one size.
//!
//! Invariants:
//! - `INV-SEG-1` `stride × slots` bytes fit the memory; a slot never crosses it. Strides are powers of two from
//!   [`MIN_STRIDE`], so that a slot below 4 KB never crosses a 4 KB chunk and a larger one starts on one: the memory can
//!   serve a device (UMEM, DMA) without another layout.
//! - `INV-SEG-2` Only the owner writes. A consumer reads through [`SegmentView`], whose bytes may change under it: nothing
//!   here gives out a reference to them.

use crate::ShmError;
use crate::memory::{Backing, Mapping, SharedMemory, check_sealed, map_peer};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

/// The most bytes of segments that are mapped of a session that may own `quota`: twice as much. What it gives back may be told after what takes its
/// place, and it may have had more before its runtime began anew with a smaller quota.
#[must_use]
pub const fn most_mapped(quota: u64) -> u64 {
    quota.saturating_mul(2)
}

/// The smallest slot in bytes.
pub const MIN_STRIDE: u64 = 256;

/// The largest slot, and so the largest message, in bytes.
pub const MAX_STRIDE: u64 = 128 << 20;

/// The most slots of a segment.
pub const MAX_SLOTS: u32 = 1 << 20;

/// How a segment is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes from one slot to the next.
    pub stride: u64,
    /// How many slots.
    pub slots: u32,
}

impl Geometry {
    /// Checks a geometry, from wherever it comes.
    ///
    /// # Errors
    /// [`ShmError::Geometry`].
    pub fn checked(stride: u64, slots: u32) -> Result<Self, ShmError> {
        if !stride.is_power_of_two() || !(MIN_STRIDE..=MAX_STRIDE).contains(&stride) {
            return Err(ShmError::Geometry {
                text: format!("slots of {stride} bytes: it takes a power of two from {MIN_STRIDE} to {MAX_STRIDE}"),
            });
        }
        if slots == 0 || slots > MAX_SLOTS {
            return Err(ShmError::Geometry { text: format!("{slots} slots: it takes 1 to {MAX_SLOTS}") });
        }
        Ok(Self { stride, slots })
    }

    /// The bytes of all slots.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.stride * u64::from(self.slots)
    }
}

/// A segment of this process.
#[derive(Debug)]
pub struct Segment {
    memory: Memory,
    geometry: Geometry,
}

#[derive(Debug)]
enum Memory {
    Own(SharedMemory),
    /// A device's: others write it, and this process passes it on.
    Lent(OwnedFd, u64),
}

impl Segment {
    /// Makes and seals a segment and faults it in. Blocks for about 0.1 s per 128 MiB: not for the path of data.
    ///
    /// # Errors
    /// [`ShmError::System`]: no memory or no huge pages.
    pub fn create(geometry: Geometry, huge: bool) -> Result<Self, ShmError> {
        Self::make(geometry, huge, true)
    }

    /// As [`Self::create`], but that its pages come when they are first written to, or by [`Self::fault_in`]: for a thread that must not
    /// wait for all of them.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_bare(geometry: Geometry, huge: bool) -> Result<Self, ShmError> {
        Self::make(geometry, huge, false)
    }

    fn make(geometry: Geometry, huge: bool, populate: bool) -> Result<Self, ShmError> {
        let len = usize::try_from(geometry.bytes()).map_err(|_| ShmError::Limit {
            what: "a segment",
            needs: geometry.bytes(),
            limit: usize::MAX as u64,
        })?;
        crate::steps::reach(crate::steps::Step::Grow);
        Ok(Self { memory: Memory::Own(SharedMemory::create("insane-segment", len, huge, populate)?), geometry })
    }

    /// Faults in what lies in `bytes` bytes from byte `at` on, which is a multiple of the size of a page; whether there is more behind it.
    /// Blocks for some 2 µs a page; any thread may do it while others write and read.
    pub fn fault_in(&self, at: usize, bytes: usize) -> bool {
        let Memory::Own(memory) = &self.memory else { return false };
        memory.fault_in(at, bytes);
        at.saturating_add(bytes) < memory.len()
    }

    /// A segment over sealed memory that a device receives into, to be shown to peers: its slots are not this process's to write.
    ///
    /// # Errors
    /// As [`map_peer`], of memory that is not sealed or too small; nothing is mapped.
    pub fn lent(fd: OwnedFd, geometry: Geometry) -> Result<Self, ShmError> {
        let bytes = check_sealed(fd.as_fd(), geometry.bytes(), u64::MAX)?;
        Ok(Self { memory: Memory::Lent(fd, bytes), geometry })
    }

    /// Whether it is a device's.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        matches!(self.memory, Memory::Lent(..))
    }

    /// How it is cut.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The bytes of the memory, which is `geometry().bytes()` rounded up to pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.memory {
            Memory::Own(memory) => memory.len() as u64,
            Memory::Lent(_, bytes) => *bytes,
        }
    }

    /// The descriptor for peers.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        match &self.memory {
            Memory::Own(memory) => memory.fd(),
            Memory::Lent(fd, _) => fd.as_fd(),
        }
    }

    /// The first byte of a slot, writable by this process.
    ///
    /// # Panics
    /// If there is no such slot, or the segment is a device's.
    #[inline]
    #[must_use]
    pub fn slot(&self, slot: u32) -> NonNull<u8> {
        assert!(slot < self.geometry.slots);
        let Memory::Own(memory) = &self.memory else { panic!("a device's segment is not written here") };
        let offset = usize::try_from(self.geometry.stride * u64::from(slot)).unwrap_or(0);
        // SAFETY: INV-SEG-1.
        unsafe { memory.base().add(offset) }
    }
}

/// A peer's segment, mapped read-only.
#[derive(Debug, Clone)]
pub struct SegmentView {
    mapping: Arc<Mapping>,
    geometry: Geometry,
}

impl SegmentView {
    /// Checks and maps a peer's segment of at most `limit` bytes.
    ///
    /// # Errors
    /// As [`map_peer`].
    pub fn map(fd: BorrowedFd<'_>, geometry: Geometry, limit: u64) -> Result<Self, ShmError> {
        Ok(Self { mapping: Arc::new(map_peer(fd, geometry.bytes(), limit)?), geometry })
    }

    /// How it is cut.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The mapped bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.mapping.len() as u64
    }

    /// The address of `length` bytes in a slot, if they are there. They may change while they are read; see
    /// [`crate::segment::copy_out`].
    #[inline]
    #[must_use]
    pub fn locate(&self, slot: u32, offset: u32, length: u32) -> Option<NonNull<u8>> {
        if slot >= self.geometry.slots || u64::from(offset) + u64::from(length) > self.geometry.stride {
            return None;
        }
        let at = usize::try_from(self.geometry.stride * u64::from(slot) + u64::from(offset)).ok()?;
        // SAFETY: INV-SEG-1; checked above.
        Some(unsafe { self.mapping.base().add(at) })
    }

    /// `length` bytes of a slot where they lie, if they are there: for who reads them while their owner may write.
    #[inline]
    #[must_use]
    pub fn shared(&self, slot: u32, offset: u32, length: u32) -> Option<&[AtomicU8]> {
        let base = self.locate(slot, offset, length)?;
        // SAFETY: `locate` has checked that `length` bytes are mapped there, and the view keeps them mapped while it is borrowed. Atomics
        // may be changed by others at any time; loads of bytes are allowed of memory that is mapped read-only.
        Some(unsafe { std::slice::from_raw_parts(base.as_ptr().cast::<AtomicU8>(), length as usize) })
    }

    /// Appends `length` bytes of a slot to `out`, each read once. `false`, and nothing appended, if they are not there.
    #[must_use]
    pub fn append(&self, slot: u32, offset: u32, length: u32, out: &mut Vec<u8>) -> bool {
        let Some(from) = self.locate(slot, offset, length) else { return false };
        let bytes = length as usize;
        out.reserve(bytes);
        let Some(to) = out.spare_capacity_mut().get_mut(..bytes) else { return false };
        // SAFETY: `locate` has checked that `length` bytes are mapped there, and the view keeps them mapped.
        unsafe { copy_into(from, to) };
        // SAFETY: so many were reserved, and have just been written.
        unsafe { out.set_len(out.len() + bytes) };
        true
    }
}

/// Asks for the cache lines of the first `bytes` bytes from `from` on, without waiting for them and without reading anything into
/// the program. The address may be any.
#[inline(always)]
pub fn prefetch(from: NonNull<u8>, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    ask_for::<{ std::arch::x86_64::_MM_HINT_T0 }>(from, bytes);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, bytes);
}

/// As [`prefetch`], of lines that are to be written: whoever has them gives them up.
#[inline(always)]
pub fn prefetch_to_write(from: NonNull<u8>, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    ask_for::<{ std::arch::x86_64::_MM_HINT_ET0 }>(from, bytes);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, bytes);
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn ask_for<const HINT: i32>(from: NonNull<u8>, bytes: usize) {
    #[cfg(not(any(miri, loom)))]
    for at in (0..bytes).step_by(64) {
        // SAFETY: a hint, which faults on no address.
        unsafe { std::arch::x86_64::_mm_prefetch::<HINT>(from.as_ptr().wrapping_add(at).cast_const().cast()) };
    }
    #[cfg(any(miri, loom))]
    let _ = (from, bytes);
}

/// Copies bytes out of memory that another process may be writing to. Each byte is read once, so that what lands in `to` is
/// what is checked and used later.
///
/// # Safety
/// `from` must be readable for `to.len()` bytes.
#[inline]
pub unsafe fn copy_out(from: NonNull<u8>, to: &mut [u8]) {
    // SAFETY: what is a byte may be overwritten as if it were none yet; only bytes are written.
    let to = unsafe { &mut *(std::ptr::from_mut(to) as *mut [MaybeUninit<u8>]) };
    // SAFETY: the caller's promise.
    unsafe { copy_into(from, to) };
}

/// As [`copy_out`], into memory that holds nothing yet; all of it is written.
///
/// # Safety
/// As [`copy_out`].
#[inline]
pub unsafe fn copy_into(from: NonNull<u8>, to: &mut [MaybeUninit<u8>]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    let done = {
        let blocks = to.len() / 64;
        if blocks > 0 {
            // SAFETY: the caller's promise for `from`; `to` has as many bytes.
            unsafe { copy_blocks(from, to.as_mut_ptr().cast(), blocks) };
        }
        blocks * 64
    };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let done = 0;
    // SAFETY: the caller's promise: still inside, or one past the end.
    let rest = unsafe { from.add(done) };
    // SAFETY: the caller's promise.
    unsafe { copy_words(rest, &mut to[done..]) };
}

/// Copies `blocks` times 64 bytes. In assembly, because ordinary loads of memory that another process writes are undefined to
/// the compiler, and its atomic ones are of eight bytes at most, which takes four times as long.
///
/// # Safety
/// Both addresses are good for `blocks` times 64 bytes; `blocks` is at least 1.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_blocks(from: NonNull<u8>, to: *mut u8, blocks: usize) {
    // SAFETY: SSE2 is part of x86_64; the caller's promise for the addresses.
    unsafe {
        std::arch::asm!(
            "2:",
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            "movdqu [{to}], {a}",
            "movdqu [{to} + 16], {b}",
            "movdqu [{to} + 32], {c}",
            "movdqu [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {blocks}",
            "jnz 2b",
            from = inout(reg) from.as_ptr() => _,
            to = inout(reg) to => _,
            blocks = inout(reg) blocks => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Copies bytes by atomic words of eight.
///
/// # Safety
/// As [`copy_out`].
#[inline]
unsafe fn copy_words(from: NonNull<u8>, to: &mut [MaybeUninit<u8>]) {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    let (mut at, mut done) = (from, 0);
    let head = at.as_ptr().align_offset(8).min(to.len());
    let byte = |p: NonNull<u8>| {
        // SAFETY: the caller's promise; a byte is always aligned.
        unsafe { p.cast::<AtomicU8>().as_ref() }.load(Relaxed)
    };
    while done < head {
        to[done].write(byte(at));
        // SAFETY: the caller's promise: still inside, or one past the end.
        at = unsafe { at.add(1) };
        done += 1;
    }
    while to.len() - done >= 8 {
        // SAFETY: the caller's promise; aligned since `head`.
        let word = unsafe { at.cast::<AtomicU64>().as_ref() }.load(Relaxed);
        for (to, byte) in to[done..done + 8].iter_mut().zip(word.to_ne_bytes()) {
            to.write(byte);
        }
        // SAFETY: the caller's promise: still inside, or one past the end.
        at = unsafe { at.add(8) };
        done += 8;
    }
    while done < to.len() {
        to[done].write(byte(at));
        // SAFETY: the caller's promise: still inside, or one past the end.
        at = unsafe { at.add(1) };
        done += 1;
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn bytes_of_a_slot_are_read_where_they_lie_and_none_beside_it() {
        let geometry = Geometry { stride: 4096, slots: 2 };
        let segment = Segment::create(geometry, false).unwrap();
        let view = SegmentView::map(segment.fd(), geometry, u64::MAX).unwrap();
        let shared = view.shared(1, 4090, 6).unwrap();
        // SAFETY: inside the slot.
        let last = unsafe { segment.slot(1).add(4095) };
        for byte in [7, 9] {
            // SAFETY: the last byte of the slot, which nobody else writes.
            unsafe { last.write_volatile(byte) };
            assert_eq!((shared.len(), shared[5].load(Relaxed)), (6, byte));
        }
        assert!(view.shared(1, 4090, 7).is_none() && view.shared(2, 0, 0).is_none());
    }
}
