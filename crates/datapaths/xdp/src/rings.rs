//! The four rings that a socket shares with the kernel, each with one producer and one consumer.
//!
//! Invariants:
//! - `INV-RING-1` The mapping lives as long as the ring, and both indices, the flags and all entries lie in it, aligned:
//!   checked when it was made, by the offsets that the kernel said.
//! - `INV-RING-2` The number of entries is a power of two; an index says its entry by its lower bits, so every index leads to
//!   one that is there.
//! - `INV-RING-3` Entries from the consumer's index up to the producer's are the consumer's, all others the producer's. The
//!   producer's index is stored with Release after its entries were written, and loaded with Acquire before they are read; the
//!   consumer's is stored with Release after they were read, and loaded with Acquire before they are written again; or what
//!   was in them came back over another ring, which says the same sooner.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use std::io;
use std::os::fd::BorrowedFd;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::XdpRingOffset;

/// What a ring's flags say when the kernel waits for a call.
const NEED_WAKEUP: u32 = 1;

/// A descriptor of the receive and the send ring.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) options: u32,
}

/// In [`Descriptor::options`]: the frame goes on with the next descriptor.
pub(crate) const CONTINUED: u32 = 1;

/// What lies in rings: plain data of which every bit pattern is a value.
pub(crate) trait Entry: Copy {}
impl Entry for u64 {}
impl Entry for Descriptor {}

/// One of a socket's rings, as both ends see it.
#[derive(Debug)]
struct Ring<T> {
    base: NonNull<u8>,
    len: usize,
    producer: usize,
    consumer: usize,
    flags: Option<usize>,
    entries: usize,
    mask: u32,
    kind: PhantomData<T>,
}

impl<T: Entry> Ring<T> {
    fn map(socket: BorrowedFd<'_>, at: u64, offsets: &XdpRingOffset, count: u32) -> io::Result<Self> {
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's ring is not laid out as expected");
        let entries = usize::try_from(offsets.desc).map_err(|_| bad())?;
        let len = entries + count as usize * size_of::<T>();
        let index = |offset: u64| {
            let offset = usize::try_from(offset).map_err(|_| bad())?;
            if offset % 4 == 0 && offset < entries.max(4) && offset + 4 <= len { Ok(offset) } else { Err(bad()) }
        };
        let (producer, consumer) = (index(offsets.producer)?, index(offsets.consumer)?);
        let flags = offsets.flags.map(index).transpose()?;
        if entries % align_of::<T>() != 0 || !count.is_power_of_two() {
            return Err(bad());
        }
        let (rights, how) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping where the kernel likes it touches no memory that is in use.
        let base = unsafe { mmap(core::ptr::null_mut(), len, rights, how, socket, at)? };
        let base = NonNull::new(base.cast()).ok_or_else(bad)?;
        Ok(Self { base, len, producer, consumer, flags, entries, mask: count - 1, kind: PhantomData })
    }

    fn index(&self, at: usize) -> &AtomicU32 {
        // SAFETY: INV-RING-1; the kernel uses these words by atomic operations too.
        unsafe { self.base.add(at).cast::<AtomicU32>().as_ref() }
    }

    fn entry(&self, index: u32) -> *mut T {
        let at = self.entries + (index & self.mask) as usize * size_of::<T>();
        // SAFETY: INV-RING-1 and INV-RING-2.
        unsafe { self.base.add(at).cast::<T>().as_ptr() }
    }

    fn needs_wakeup(&self) -> bool {
        // Relaxed: the fence in `Producer::publish` keeps this behind the index that was shown; the driver sets the word and
        // looks at the index once more before it stops.
        self.flags.is_some_and(|at| self.index(at).load(Ordering::Relaxed) & NEED_WAKEUP != 0)
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: INV-RING-1.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A ring that this side fills.
#[derive(Debug)]
pub(crate) struct Producer<T> {
    ring: Ring<T>,
    /// The index of the next entry, published or not.
    next: u32,
    published: u32,
    /// The consumer's index when it was last looked at.
    consumed: u32,
}

// SAFETY: INV-RING-3, the value is this side's end of the ring, in whichever thread.
unsafe impl<T: Entry> Send for Producer<T> {}

impl<T: Entry> Producer<T> {
    /// Maps the ring of `count` entries that lies at this offset of a socket.
    pub(crate) fn map(socket: BorrowedFd<'_>, at: u64, offsets: &XdpRingOffset, count: u32) -> io::Result<Self> {
        Ok(Self { ring: Ring::map(socket, at, offsets, count)?, next: 0, published: 0, consumed: 0 })
    }

    /// How many entries can be pushed now, at least `want` if there is so much room.
    pub(crate) fn room(&mut self, want: u32) -> u32 {
        let size = self.ring.mask + 1;
        if size.saturating_sub(self.next.wrapping_sub(self.consumed)) < want {
            // Acquire: pairs with the kernel's Release after it has read the entries.
            self.consumed = self.ring.index(self.ring.consumer).load(Ordering::Acquire);
        }
        size.saturating_sub(self.next.wrapping_sub(self.consumed))
    }

    /// Writes an entry, for which there must be room: by [`Self::room`], or because the kernel has handed out what it read in the
    /// entry that is written over. It does so for a received frame before it moves its index on the fill ring.
    pub(crate) fn push(&mut self, entry: T) {
        // SAFETY: INV-RING-2 and INV-RING-3.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Shows the kernel what was pushed.
    pub(crate) fn publish(&mut self) {
        if self.published != self.next {
            self.published = self.next;
            // Release: pairs with the kernel's Acquire before it reads the entries.
            self.ring.index(self.ring.producer).store(self.next, Ordering::Release);
            // Sequentially consistent: what was shown comes before the look at the flags, or a driver that is about to wait
            // for a call and this side could miss each other.
            fence(Ordering::SeqCst);
        }
    }

    /// How many entries the kernel has been shown and has not taken.
    pub(crate) fn used(&self) -> u32 {
        // Acquire: as in `room`.
        self.published.wrapping_sub(self.ring.index(self.ring.consumer).load(Ordering::Acquire))
    }

    /// Whether the kernel goes on only after a call.
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// A ring that the kernel fills.
#[derive(Debug)]
pub(crate) struct Consumer<T> {
    ring: Ring<T>,
    /// The index of the next entry, released or not.
    next: u32,
    released: u32,
    /// The producer's index when it was last looked at.
    produced: u32,
}

// SAFETY: as for `Producer`.
unsafe impl<T: Entry> Send for Consumer<T> {}

impl<T: Entry> Consumer<T> {
    /// Maps the ring of `count` entries that lies at this offset of a socket.
    pub(crate) fn map(socket: BorrowedFd<'_>, at: u64, offsets: &XdpRingOffset, count: u32) -> io::Result<Self> {
        Ok(Self { ring: Ring::map(socket, at, offsets, count)?, next: 0, released: 0, produced: 0 })
    }

    /// Looks what has come.
    pub(crate) fn look(&mut self) {
        // Acquire: pairs with the kernel's Release after it has written the entries.
        self.produced = self.ring.index(self.ring.producer).load(Ordering::Acquire);
    }

    /// The entry after `skip` others, if it has come; looks again if there seems to be none.
    pub(crate) fn peek(&mut self, skip: u32) -> Option<T> {
        if self.produced.wrapping_sub(self.next) <= skip {
            self.look();
            if self.produced.wrapping_sub(self.next) <= skip {
                return None;
            }
        }
        // SAFETY: INV-RING-2 and INV-RING-3; any bits are an entry.
        Some(unsafe { self.ring.entry(self.next.wrapping_add(skip)).read() })
    }

    /// Goes on behind `count` entries that were peeked at.
    pub(crate) fn advance(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
    }

    /// Shows the kernel how far the entries were read.
    pub(crate) fn release(&mut self) {
        if self.released != self.next {
            self.released = self.next;
            // Release: pairs with the kernel's Acquire before it writes there again.
            self.ring.index(self.ring.consumer).store(self.next, Ordering::Release);
        }
    }

    /// How many entries have come and were not released.
    pub(crate) fn used(&self) -> u32 {
        // Acquire: as in `look`.
        self.ring.index(self.ring.producer).load(Ordering::Acquire).wrapping_sub(self.released)
    }
}
