//! A ring that is shared with the kernel.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::net::xdp::XdpRingOffset;

/// Entries of every ring: a power of two.
pub const ENTRIES: u32 = 2048;

/// A frame in the rings of a socket: where it is, and its length.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub address: u64,
    pub len: u32,
    pub options: u32,
}

/// A ring of entries of one kind, `u64` or [`Descriptor`]; `next` is this side's index. The mapping is never taken away, so what
/// the pointers lead to is there for as long as the process is.
#[derive(Debug)]
pub struct Ring<T> {
    producer: *const AtomicU32,
    consumer: *const AtomicU32,
    entries: *mut T,
    next: u32,
}

impl<T: Copy> Ring<T> {
    pub fn map(socket: &OwnedFd, at: u64, offsets: &XdpRingOffset) -> io::Result<Self> {
        let len = offsets.desc as usize + ENTRIES as usize * size_of::<T>();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which nothing else knows of.
        let base = unsafe { mmap(ptr::null_mut(), len, rights, MapFlags::SHARED | MapFlags::POPULATE, socket, at)? };
        let base = base.cast::<u8>();
        let index = |offset: u64| base.wrapping_add(offset as usize).cast::<AtomicU32>().cast_const();
        let entries = base.wrapping_add(offsets.desc as usize).cast();
        Ok(Self { producer: index(offsets.producer), consumer: index(offsets.consumer), entries, next: 0 })
    }

    fn entry(&self, ahead: u32) -> *mut T {
        self.entries.wrapping_add((self.next.wrapping_add(ahead) & (ENTRIES - 1)) as usize)
    }

    /// Entries that the kernel has put there and this side has not taken.
    #[inline]
    pub fn came(&self) -> u32 {
        // SAFETY: the word is in the mapping. Acquire: the entries were written before it.
        unsafe { &*self.producer }.load(Ordering::Acquire).wrapping_sub(self.next)
    }

    /// Entries that this side has put there and the kernel has not taken.
    #[inline]
    pub fn waiting(&self) -> u32 {
        // SAFETY: the word is in the mapping. Acquire: the entries were read before it.
        self.next.wrapping_sub(unsafe { &*self.consumer }.load(Ordering::Acquire))
    }

    /// The entry so far ahead, below [`Self::came`].
    #[inline]
    pub fn get(&self, ahead: u32) -> T {
        // SAFETY: the entry is in the mapping and the kernel has written it.
        unsafe { self.entry(ahead).read() }
    }

    /// Writes the entry so far ahead; there must be room for it.
    #[inline]
    pub fn put(&self, ahead: u32, entry: T) {
        // SAFETY: the entry is in the mapping, and not the kernel's.
        unsafe { self.entry(ahead).write(entry) };
    }

    /// Hands so many entries that were put to the kernel.
    #[inline]
    pub fn produced(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
        // SAFETY: the word is in the mapping. Release: the entries are written before it.
        unsafe { &*self.producer }.store(self.next, Ordering::Release);
    }

    /// Gives so many entries that were got back to the kernel.
    #[inline]
    pub fn consumed(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
        // SAFETY: the word is in the mapping. Release: the entries are read before it.
        unsafe { &*self.consumer }.store(self.next, Ordering::Release);
    }
}
