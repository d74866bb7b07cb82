//! Memory: sealed memfds mapped by their owner or by a peer, and the heap for models.
//!
//! Invariants:
//! - `INV-MEM-1` A [`Mapping`] is valid for `len` bytes until it is dropped: the memfd is sealed against shrinking before
//!   anyone but its owner maps it, and its owner never shrinks it.
//! - `INV-MEM-2` Only the owner's mapping is writable: the owner maps first, then sets `F_SEAL_FUTURE_WRITE` and
//!   `F_SEAL_SEAL`, and only then lets the descriptor out ([`SharedMemory::create`] does all three).
//! - `INV-MEM-3` A peer's memory is mapped read-only after its seals and its size were checked ([`map_peer`]). An
//!   `O_RDONLY` descriptor alone is no protection: it can be reopened for writing through `/proc`; the seal is.
//! - `INV-MEM-4` Nothing that a peer can write is ever seen as a plain reference: control memory holds atomics only,
//!   payloads are raw pointers behind views.

use crate::ShmError;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ptr::NonNull;

/// The seals without which a peer's memory is not mapped.
pub const REQUIRED_SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// The size of a huge page, where segments lie on such.
pub const HUGE_PAGE: usize = 2 << 20;

/// So many bytes rounded up to the kernel's ordinary pages, of which there are kernels with 4, 16 and 64 KB.
#[must_use]
pub fn whole_pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(rustix::param::page_size() as u64)
}

/// Where memory comes from: a mapping, or the heap for loom, Miri and tests in one process.
pub trait Backing: Send + Sync + std::fmt::Debug {
    /// The first byte; at least 128-byte aligned.
    fn base(&self) -> NonNull<u8>;
    /// How many bytes.
    fn len(&self) -> usize;
    /// Whether it is empty, which no backing is.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A mapped piece of shared memory. Dropping it unmaps.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: INV-MEM-1; a mapping belongs to the process, not to a thread, and hands out no references itself.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, len: usize, prot: ProtFlags, populate: bool) -> Result<Self, ShmError> {
        let mut flags = MapFlags::SHARED;
        if populate {
            flags |= MapFlags::POPULATE;
        }
        // SAFETY: INV-MEM-1; a fresh mapping at an address that the kernel chooses aliases nothing.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, fd, 0) }
            .map_err(ShmError::system("mmap"))?;
        // A child must not inherit segments (architecture §3 rule 11). Failure would only weaken that.
        // SAFETY: INV-MEM-1; the range is the mapping that was just made.
        let _ = unsafe { rustix::mm::madvise(base, len, Advice::LinuxDontFork) };
        let base = NonNull::new(base.cast()).expect("mmap never gives address 0 without MAP_FIXED");
        Ok(Self { base, len })
    }
}

impl Backing for Mapping {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: INV-MEM-1; made by mmap with this length, and nobody holds a pointer into it past its owner.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Memory that this process owns, writable here alone, with the descriptor to share.
#[derive(Debug)]
pub struct SharedMemory {
    mapping: Mapping,
    fd: OwnedFd,
}

impl SharedMemory {
    /// Creates `len` bytes of zeroed memory, rounded up to pages, maps it writable, and seals it. Blocks while the pages
    /// are faulted in when `populate` is set.
    ///
    /// # Errors
    /// [`ShmError::System`] with the call that failed: no memory, no huge pages, no descriptors left.
    pub fn create(name: &str, len: usize, huge: bool, populate: bool) -> Result<Self, ShmError> {
        let page = if huge { HUGE_PAGE } else { rustix::param::page_size() };
        let len = len.max(1).next_multiple_of(page);
        let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        if huge {
            flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        }
        let fd = rustix::fs::memfd_create(name, flags).map_err(ShmError::system("memfd_create"))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(ShmError::system("ftruncate"))?;
        let mapping = Mapping::new(fd.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE, populate)?;
        crate::steps::reach(crate::steps::Step::Seal);
        rustix::fs::fcntl_add_seals(&fd, REQUIRED_SEALS).map_err(ShmError::system("F_ADD_SEALS"))?;
        Ok(Self { mapping, fd })
    }

    /// Faults in the pages of `bytes` bytes from byte `at` on, a multiple of the size of a page, as far as they are there: whoever writes
    /// to them next need not wait for it. Changes nothing that can be read. Blocks, for some 2 µs a page. Before Linux 5.14 it does nothing.
    pub fn fault_in(&self, at: usize, bytes: usize) {
        let Some(left) = self.mapping.len.checked_sub(at) else { return };
        // SAFETY: INV-MEM-1; the range lies in the mapping.
        let from = unsafe { self.mapping.base.add(at) };
        // SAFETY: as above; the advice writes nothing.
        let _ = unsafe { rustix::mm::madvise(from.as_ptr().cast(), bytes.min(left), Advice::LinuxPopulateWrite) };
    }

    /// The descriptor to send to peers. It is safe in anyone's hands: see `INV-MEM-2`.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Backing for SharedMemory {
    fn base(&self) -> NonNull<u8> {
        self.mapping.base
    }
    fn len(&self) -> usize {
        self.mapping.len
    }
}

/// Maps a peer's memory read-only after checking that it is a sealed memfd of at least `needs` bytes and at most
/// `limit` bytes.
///
/// # Errors
/// [`ShmError::NotSealed`], [`ShmError::WrongSize`], [`ShmError::Limit`] or [`ShmError::System`]; nothing is mapped then.
pub fn map_peer(fd: BorrowedFd<'_>, needs: u64, limit: u64) -> Result<Mapping, ShmError> {
    let size = check_sealed(fd, needs, limit)?;
    let len = usize::try_from(size).map_err(|_| ShmError::WrongSize { has: size, needs })?;
    Mapping::new(fd, len, ProtFlags::READ, false)
}

/// Checks what [`map_peer`] checks; the size of the memory in bytes.
///
/// # Errors
/// As [`map_peer`].
pub fn check_sealed(fd: BorrowedFd<'_>, needs: u64, limit: u64) -> Result<u64, ShmError> {
    let has = rustix::fs::fcntl_get_seals(fd).map_err(ShmError::system("F_GET_SEALS"))?;
    if !has.contains(REQUIRED_SEALS) {
        return Err(ShmError::NotSealed { has: has.bits(), needs: REQUIRED_SEALS.bits() });
    }
    let stat = rustix::fs::fstat(fd).map_err(ShmError::system("fstat"))?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if needs > limit || size > limit {
        return Err(ShmError::Limit { what: "a peer's memory", needs: needs.max(size), limit });
    }
    // Whole pages, whatever the kernel says of them: of an ordinary memfd 4 KB, or more where it may join them, whatever the memfd's size;
    // of one with huge pages the kernel sees to it that they are whole.
    if size < needs || size == 0 || size != whole_pages(size) {
        return Err(ShmError::WrongSize { has: size, needs });
    }
    Ok(size)
}

/// Heap memory of one process, for models, fuzzing and property tests.
#[derive(Debug)]
pub struct Heap {
    base: NonNull<u8>,
    layout: std::alloc::Layout,
}

// SAFETY: INV-MEM-1 holds for the allocation as for a mapping.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Heap {
    /// `len` zeroed bytes, 128-byte aligned.
    ///
    /// # Panics
    /// When `len` is 0 or more than an allocation can be.
    #[must_use]
    pub fn new(len: usize) -> Self {
        assert!(len > 0, "an empty heap backing has no use");
        let layout = std::alloc::Layout::from_size_align(len, 128).expect("a length that fits the address space");
        // SAFETY: INV-MEM-1; the size is not zero.
        let raw = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(raw) else { std::alloc::handle_alloc_error(layout) };
        Self { base, layout }
    }
}

impl Backing for Heap {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: INV-MEM-1; allocated with this layout in `new`.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use super::*;

    fn sealed(bytes: u64) -> OwnedFd {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&fd, REQUIRED_SEALS).unwrap();
        fd
    }

    #[test]
    fn a_peers_memory_has_whole_pages_of_whatever_size_the_kernel_has() {
        let page = rustix::param::page_size() as u64;
        for bytes in [page, 3 * page, HUGE_PAGE as u64, HUGE_PAGE as u64 + page] {
            assert_eq!(check_sealed(sealed(bytes).as_fd(), 1, bytes).unwrap(), bytes);
        }
        for bytes in [0, 1, page - 1, page + 1, HUGE_PAGE as u64 + 512] {
            let said = check_sealed(sealed(bytes).as_fd(), 0, 1 << 30);
            assert!(matches!(said, Err(ShmError::WrongSize { has, .. }) if has == bytes), "{bytes}: {said:?}");
        }
        assert!(matches!(check_sealed(sealed(page).as_fd(), page + 1, 2 * page), Err(ShmError::WrongSize { .. })));
    }
}
