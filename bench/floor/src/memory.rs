//! Shared memory and futex: the unsafe ground of the floor.
//!
//! Invariants
//! - MEM-1: a [`Shared`] maps `len` bytes, readable and writable, zeroed at birth, until it is dropped.
//! - MEM-2: everything handed out lies inside the mapping (checked), aligned as its type asks (checked).
//! - MEM-3: payload bytes are touched only between an Acquire that saw them published and the Release that hands
//!   them on; the flag or ring sequence beside them says whose they are.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64};

use anyhow::{Context, Result, bail};

/// A shared mapping.
#[derive(Debug)]
pub struct Shared {
    base: *mut u8,
    len: usize,
}

impl Shared {
    /// Memory shared by whoever maps the same file. Whoever comes first makes it; it starts as zeros.
    pub fn file(path: &Path, len: usize) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("opening {}", path.display()))?;
        file.set_len(len as u64).with_context(|| format!("sizing {}", path.display()))?;
        let (fd, flags) = (file.as_raw_fd(), libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a fresh mapping chosen by the kernel overlaps nothing of ours.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            bail!("mmap of {len} bytes: {}", std::io::Error::last_os_error());
        }
        Ok(Self { base: base.cast(), len })
    }

    fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset.is_multiple_of(align_of::<T>()) && offset + size_of::<T>() <= self.len, "outside the mapping");
        // SAFETY: inside the mapping (MEM-2), checked above.
        unsafe { self.base.add(offset) }.cast()
    }

    /// The 64-bit word at `offset`.
    #[inline]
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: MEM-2; the borrow of self keeps the mapping (MEM-1).
        unsafe { AtomicU64::from_ptr(self.at(offset)) }
    }

    /// The 32-bit word at `offset`; never one that is also used as a 64-bit word.
    #[inline]
    pub fn word32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.at(offset)) }
    }

    /// Sets `len` payload bytes at `offset`.
    #[inline]
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        assert!(offset + len <= self.len, "outside the mapping");
        // SAFETY: inside the mapping, checked above; ours to write by MEM-3.
        unsafe { self.base.add(offset).write_bytes(byte, len) };
    }

    /// Copies payload to `offset`.
    #[inline]
    pub fn write(&self, offset: usize, payload: &[u8]) {
        assert!(offset + payload.len() <= self.len, "outside the mapping");
        // SAFETY: inside the mapping, checked above; ours to write by MEM-3; what is borrowed is no part of the mapping.
        unsafe { self.base.add(offset).copy_from_nonoverlapping(payload.as_ptr(), payload.len()) };
    }

    /// Copies payload from `offset`.
    #[inline]
    pub fn read(&self, offset: usize, payload: &mut [u8]) {
        assert!(offset + payload.len() <= self.len, "outside the mapping");
        // SAFETY: inside the mapping, checked above; nobody writes it meanwhile (MEM-3).
        unsafe { self.base.add(offset).copy_to_nonoverlapping(payload.as_mut_ptr(), payload.len()) };
    }

    /// Reads every word of `len` payload bytes at `offset`.
    #[inline]
    pub fn read_all(&self, offset: usize, len: usize) {
        assert!(offset + len <= self.len, "outside the mapping");
        // SAFETY: inside the mapping, checked above; nobody writes it meanwhile (MEM-3).
        bench_harness::read_all(unsafe { std::slice::from_raw_parts(self.base.add(offset), len) });
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: MEM-1: the mapping is ours, and no borrow outlives self.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// Sleeps while `word` is `value`; may return early. Works across processes.
pub fn futex_wait(word: &AtomicU32, value: u32) {
    // SAFETY: the word is valid while borrowed; without a timeout the kernel reads nothing else.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, std::ptr::null::<libc::timespec>())
    };
}

/// Wakes up to `count` sleepers on `word`.
pub fn futex_wake(word: &AtomicU32, count: i32) {
    // SAFETY: the word is valid while borrowed.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count) };
}
