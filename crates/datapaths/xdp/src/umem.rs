//! The memory that frames lie in while the kernel has them, and who has which frame.
//!
//! A [`Frame`] is moved, never shared: whoever has the value may touch the memory, and nobody else does. What is given to the
//! kernel is a number; the [`Ledger`] keeps, in private memory, which frames the kernel has and for what, and makes a [`Frame`]
//! again of a number only if the kernel had it. So no frame is ever in two places, whatever the rings say.
//!
//! Invariants:
//! - `INV-UMEM-1` The memory is mapped, readable and writable, from [`Umem::new`] on until the value is dropped; its size is
//!   the number of its frames times their size.
//! - `INV-UMEM-2` For each frame there is at most one [`Frame`], with a number below that of the frames: [`Umem::frames`] makes
//!   each once, [`Ledger::give`] ends it, and [`Ledger::take_back`] makes it again when it had been ended.
//! - `INV-UMEM-3` While there is a [`Frame`], the kernel neither reads nor writes that memory: it only uses what lies between
//!   the fill and the receive ring, and between the send and the completion ring.
//! - `INV-UMEM-4` Memory that frames are received into may be a memfd, sealed before anybody else sees it: this process and the
//!   kernel alone can write it, as the rest. While a frame is lent ([`For::Lent`]) nobody writes to it, and the memory stays mapped
//!   for as long as a frame of it is (`Queue`'s end sees to that).

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use insane_datapath::memory::{Lent, Slot};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;

/// The bytes before a received frame that the kernel keeps for programs.
pub(crate) const HEADROOM: usize = 256;

/// Memory cut into frames of one size.
#[derive(Debug)]
pub(crate) struct Umem {
    base: NonNull<u8>,
    frames: u32,
    frame_bytes: usize,
    /// The memories that may be lent out of, one a queue, and how many frames each has.
    lendable: Vec<OwnedFd>,
    lendable_frames: u32,
    /// By which what is lent out of it is told from what was lent out of others.
    number: u64,
}

/// The number of the next one.
static NEXT: AtomicU64 = AtomicU64::new(1);

// SAFETY: INV-UMEM-2, access to the memory goes with the `Frame`, whichever thread has it.
unsafe impl Send for Umem {}
// SAFETY: as above.
unsafe impl Sync for Umem {}

/// The right to touch one frame's memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame(u32);

impl Umem {
    /// Maps memory for `frames` frames of `frame_bytes`, which is a power of two from 2048 to a page. With `lend` the first half of
    /// each share of so many frames can be lent out of.
    pub(crate) fn new(frames: u32, frame_bytes: usize, lend: Option<u32>) -> io::Result<Self> {
        let len = frames as usize * frame_bytes;
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
        // SAFETY: a new mapping where the kernel likes it touches no memory that is in use.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), len, rights, flags)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // Relaxed: a number that is used once, and no more.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let lendable_frames = lend.map_or(0, |share| share / 2);
        let mut umem = Self { base, frames, frame_bytes, lendable: Vec::new(), lendable_frames, number };
        for share in (0..frames).step_by(lend.unwrap_or(u32::MAX) as usize).filter(|_| lendable_frames > 0) {
            umem.make_lendable(share as usize * frame_bytes)?;
        }
        // SAFETY: INV-UMEM-1; this changes nothing here. A forked child has no use for it and shall not be able to write it.
        unsafe { madvise(umem.base.as_ptr().cast(), len, Advice::LinuxDontFork)? };
        Ok(umem)
    }

    /// Puts memory that others can be shown in the place of so many frames from byte `at` on, before anybody uses them.
    fn make_lendable(&mut self, at: usize) -> io::Result<()> {
        let len = self.lendable_frames as usize * self.frame_bytes;
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len()) && len.is_multiple_of(page_size()));
        let fd = memfd_create("insane-receive", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        // SAFETY: INV-UMEM-1, so far from its beginning.
        let place = unsafe { self.base.as_ptr().add(at) }.cast();
        let (rights, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE);
        // SAFETY: INV-UMEM-1: this is memory of this value alone, whose frames were not handed out yet, and all of the new mapping
        // lies in it.
        unsafe { mmap(place, len, rights, flags, &fd, 0)? };
        // After this mapping no other one can be written through.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        self.lendable.push(fd);
        Ok(())
    }

    /// The memories that may be lent out of, and how many frames each has.
    pub(crate) fn lendable(&self) -> (impl Iterator<Item = BorrowedFd<'_>>, u32) {
        (self.lendable.iter().map(AsFd::as_fd), self.lendable_frames)
    }

    /// Its number among all that this process ever had.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// A slot over bytes of a frame that is about to be lent, which is the `slot`th of the `memory`th that may be lent out of.
    ///
    /// # Safety
    /// The frame ends by [`Ledger::give`] for [`For::Lent`] before anybody can write to it, and comes back no sooner than the slot
    /// does; the memory stays mapped until then.
    pub(crate) unsafe fn lend(
        &self,
        frame: &Frame,
        memory: u16,
        slot: u32,
        bytes: core::ops::Range<usize>,
    ) -> Option<Slot> {
        let there = self.bytes(frame).get(bytes.clone())?;
        let place = Lent { memory, slot, offset: u32::try_from(bytes.start).ok()? };
        // SAFETY: INV-UMEM-1 and INV-UMEM-4, with the caller's promise.
        Some(unsafe { Slot::lent(self.number, place, NonNull::from(there).cast(), there.len()) })
    }

    /// Where it begins, for the kernel.
    pub(crate) fn address(&self) -> u64 {
        self.base.addr().get() as u64
    }

    /// Its size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.frames as usize * self.frame_bytes
    }

    /// The size of a frame in bytes.
    pub(crate) fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// All its frames, each once. `&mut self`: before the memory is shared.
    pub(crate) fn frames(&mut self) -> Vec<Frame> {
        (0..self.frames).map(Frame).collect()
    }

    /// The frame's bytes.
    pub(crate) fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        let at = frame.0 as usize * self.frame_bytes;
        // SAFETY: INV-UMEM-1 for the memory, INV-UMEM-2 and INV-UMEM-3 for nobody writing to it.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr().add(at), self.frame_bytes) }
    }

    /// The frame's bytes, to be written.
    pub(crate) fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let at = frame.0 as usize * self.frame_bytes;
        // SAFETY: INV-UMEM-1; INV-UMEM-2 and INV-UMEM-3, and `&mut` of the only right to it.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr().add(at), self.frame_bytes) }
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: INV-UMEM-1, and what the kernel has of it, it has pinned for itself.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len()) };
    }
}

/// What a frame is given away for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    /// To receive into.
    Receiving,
    /// To send.
    Sending,
    /// Nothing: others read it.
    Lent,
}

/// Which frames of one queue the kernel has. Those of a queue follow each other.
#[derive(Debug)]
pub(crate) struct Ledger {
    frame_bytes: usize,
    first: u32,
    lent: Vec<Option<For>>,
    receiving: u32,
    sending: u32,
    out: u32,
}

impl Ledger {
    /// A ledger for these frames, none of which the kernel has.
    pub(crate) fn new(frame_bytes: usize, frames: &[Frame]) -> Self {
        let first = frames.first().map_or(0, |frame| frame.0);
        Self { frame_bytes, first, lent: vec![None; frames.len()], receiving: 0, sending: 0, out: 0 }
    }

    fn count(&mut self, purpose: For) -> &mut u32 {
        match purpose {
            For::Receiving => &mut self.receiving,
            For::Sending => &mut self.sending,
            For::Lent => &mut self.out,
        }
    }

    /// Ends the right to a frame; the kernel is to be given the address that comes back.
    pub(crate) fn give(&mut self, frame: Frame, purpose: For) -> u64 {
        let at = frame.0.wrapping_sub(self.first) as usize;
        debug_assert!(self.lent.get(at).is_some_and(Option::is_none));
        if let Some(lent) = self.lent.get_mut(at) {
            *lent = Some(purpose);
            *self.count(purpose) += 1;
        }
        u64::from(frame.0) * self.frame_bytes as u64
    }

    /// The frame that the kernel gave back by naming an address in it, and where in it that is; `None` if the kernel did not
    /// have it for this.
    pub(crate) fn take_back(&mut self, address: u64, purpose: For) -> Option<(Frame, usize)> {
        let number = u32::try_from(address / self.frame_bytes as u64).ok()?;
        let lent = self.lent.get_mut(number.checked_sub(self.first)? as usize)?;
        if *lent != Some(purpose) {
            return None;
        }
        *lent = None;
        *self.count(purpose) -= 1;
        Some((Frame(number), (address % self.frame_bytes as u64) as usize))
    }

    /// A frame's number among those of the ledger.
    pub(crate) fn place(&self, frame: &Frame) -> u32 {
        frame.0.wrapping_sub(self.first)
    }

    /// The frame of a number among those of the ledger, if it was lent.
    pub(crate) fn returned(&mut self, place: u32) -> Option<Frame> {
        let address = (u64::from(self.first) + u64::from(place)) * self.frame_bytes as u64;
        self.take_back(address, For::Lent).map(|(frame, _)| frame)
    }

    /// How many frames are lent.
    pub(crate) fn lent(&self) -> u32 {
        self.out
    }

    /// How many frames there are, how many of them the kernel has for receiving, and how many for sending.
    pub(crate) fn counts(&self) -> (u32, u32, u32) {
        (self.lent.len() as u32, self.receiving, self.sending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_in_one_place_whatever_the_kernel_says() {
        let mut umem = Umem::new(8, 2048, None).unwrap();
        let mut frames = umem.frames();
        let mut theirs = frames.split_off(4);
        let mut ledger = Ledger::new(2048, &theirs);
        umem.bytes_mut(&mut theirs[1])[7] = 9;
        assert_eq!(umem.bytes(&theirs[1])[7], 9);
        let first = ledger.give(theirs.remove(0), For::Receiving);
        let second = ledger.give(theirs.remove(0), For::Sending);
        assert_eq!((first, second, ledger.counts()), (4 * 2048, 5 * 2048, (4, 1, 1)));
        // Another queue's frame, one beyond all, one it never had, one that it had for something else.
        for (address, purpose) in [
            (0, For::Receiving),
            (u64::MAX, For::Receiving),
            (8 * 2048, For::Receiving),
            (6 * 2048, For::Sending),
            (second, For::Receiving),
        ] {
            assert_eq!(ledger.take_back(address, purpose), None);
        }
        let (frame, at) = ledger.take_back(second + 256, For::Sending).unwrap();
        assert_eq!((umem.bytes(&frame)[7], at), (9, 256));
        assert_eq!(ledger.take_back(second + 256, For::Sending), None, "a frame came back twice");
        assert_eq!(ledger.counts(), (4, 1, 0));
    }
}
