//! Forks: a child's session is closed and says so when used (architecture §3 rule 11).
//!
//! Segments are not inherited (`MADV_DONTFORK`), so the child must not touch them; a counter tells it that it is a child.
//! Its copies of the sockets would keep peers from noticing the parent's death: the child puts `/dev/null` in their place,
//! which keeps the numbers valid for whoever closes them later.

use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// How many sockets one process may have open for all its sessions.
const PLACES: usize = 16_384;

// A plain table of atomics: the child's handler may take no lock.
static SOCKETS: [AtomicI32; PLACES] = [const { AtomicI32::new(-1) }; PLACES];
static NULL: OnceLock<OwnedFd> = OnceLock::new();

/// How many forks lie between the first process and this one. For bindings, whose objects ask before they touch memory that
/// a child does not have.
#[inline]
pub fn count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// A socket that a forked child does not keep open.
#[derive(Debug)]
pub(crate) struct Guarded {
    fd: OwnedFd,
    place: Option<usize>,
}

impl Guarded {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        watch();
        let raw = fd.as_raw_fd();
        let place =
            SOCKETS.iter().position(|p| p.compare_exchange(-1, raw, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        Self { fd, place }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        use rustix::fd::AsFd;
        self.fd.as_fd()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            SOCKETS[place].store(-1, Ordering::Release);
        }
    }
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let Some(null) = NULL.get() else { return };
    for place in &SOCKETS {
        let raw: RawFd = place.load(Ordering::Acquire);
        if raw >= 0 {
            // SAFETY: dup3 is safe after a fork and takes numbers only; `raw` is a socket of this library.
            unsafe { libc::dup3(null.as_raw_fd(), raw, libc::O_CLOEXEC) };
        }
    }
}

fn watch() {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        if let Ok(fd) = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()) {
            let _ = NULL.set(fd);
        }
        // SAFETY: the handler only uses atomics and dup3, which are safe in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}
