//! A lock that costs the thread that mostly takes it two plain stores, and others a mutex.
//!
//! Emitting and releasing are safe from any thread (architecture §3 rule 11), but an atomic read-modify-write per message,
//! which drains the store buffer, would cost more than half of a link's rate. So the lock is biased: the first thread to take
//! it owns it and from then on only raises a flag. Another thread takes the mutex, forbids the fast path, lets a
//! `membarrier` run through all threads of the process and waits until the flag is down. A thread that comes for a moment
//! (the session's own service thread) gives the bias back; a second thread of the application ends it for good, and the lock
//! is a plain mutex from then on.
//!
//! Invariants:
//! - `INV-BIAS-1` The value is reached either with `busy` up, `revoked` down and `owner` being this thread, or with the mutex
//!   held, `revoked` up and `busy` down.
//! - `INV-BIAS-2` Between the owner's store of `busy` and its load of `revoked` stands a compiler fence; between the other's
//!   store of `revoked` and its load of `busy` stands a `membarrier`, which is a full fence in every running thread. So at
//!   least one of both sees the other (Dekker). In models both are SeqCst fences.
//! - `INV-BIAS-3` `owner` changes only with the mutex held and the fast path forbidden or never allowed.

use crate::mutate::{Mutation, left_out};
use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, UnsafeCell, spin, yield_now};
use std::ops::{Deref, DerefMut};

const NOBODY: u64 = 0;
const NEVER: u64 = u64::MAX;

/// A biased lock around `T`.
#[derive(Debug)]
pub struct BiasedLock<T> {
    owner: AtomicU64,
    busy: AtomicBool,
    revoked: AtomicBool,
    slow: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: INV-BIAS-1: one thread at a time reaches the value.
unsafe impl<T: Send> Send for BiasedLock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

/// Who asks for the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asker {
    Application,
    Visitor,
}

/// The value, while the lock is held.
#[derive(Debug)]
pub struct BiasedGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    slow: Option<(MutexGuard<'a, ()>, Asker)>,
}

impl<T> BiasedLock<T> {
    /// A lock that belongs to nobody yet.
    pub fn new(value: T) -> Self {
        let owner = if barrier::available() { NOBODY } else { NEVER };
        Self {
            owner: AtomicU64::new(owner),
            busy: AtomicBool::new(false),
            revoked: AtomicBool::new(true),
            slow: Mutex::new(()),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock for a thread of the application. Blocks while another thread has it. Not reentrant.
    #[inline]
    pub fn lock(&self) -> BiasedGuard<'_, T> {
        if self.owner.load(Ordering::Relaxed) == thread_token() {
            // Relaxed: only the owner raises it, by this very code.
            debug_assert!(!self.busy.load(Ordering::Relaxed), "the lock is taken again by the thread that has it");
            self.busy.store(true, Ordering::Relaxed);
            if !left_out(Mutation::BiasedFence) {
                // INV-BIAS-2; pairs with: `barrier::heavy` in `lock_slowly`.
                barrier::light();
            }
            // Acquire pairs with: the Release that allowed the fast path again in `drop`.
            if !self.revoked.load(Ordering::Acquire) {
                return BiasedGuard { lock: self, slow: None };
            }
            self.busy.store(false, Ordering::Release);
        }
        self.lock_slowly(Asker::Application)
    }

    /// Takes the lock for a moment, without ending the bias of the thread that owns it.
    pub fn visit(&self) -> BiasedGuard<'_, T> {
        self.lock_slowly(Asker::Visitor)
    }

    #[cold]
    fn lock_slowly(&self, asker: Asker) -> BiasedGuard<'_, T> {
        // A panic while the lock was held left the value in some valid state: each change to it is complete in itself.
        let held = self.slow.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !self.revoked.load(Ordering::Relaxed) {
            self.revoked.store(true, Ordering::Relaxed);
            // INV-BIAS-2; pairs with: `barrier::light` in `lock`.
            barrier::heavy();
            let mut turns = 0u32;
            // Acquire pairs with: the Release of `busy` in `drop`.
            while self.busy.load(Ordering::Acquire) {
                turns += 1;
                if turns < 64 { spin() } else { yield_now() }
            }
        }
        BiasedGuard { lock: self, slow: Some((held, asker)) }
    }
}

impl<T> BiasedGuard<'_, T> {
    /// Whether it was taken without the mutex: nobody else wanted the lock.
    #[inline]
    #[must_use]
    pub fn is_fast(guard: &Self) -> bool {
        guard.slow.is_none()
    }
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: INV-BIAS-1: the guard is the right to reach the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: INV-BIAS-1: the guard is the right to reach the value.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for BiasedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        match self.slow.take() {
            // Release pairs with: the Acquire of `busy` in `lock_slowly`.
            None => self.lock.busy.store(false, Ordering::Release),
            Some((held, asker)) => self.lock.unlock_slowly(held, asker),
        }
    }
}

impl<T> BiasedLock<T> {
    #[cold]
    fn unlock_slowly(&self, held: MutexGuard<'_, ()>, asker: Asker) {
        let me = thread_token();
        let owner = self.owner.load(Ordering::Relaxed);
        match (owner, asker) {
            (NEVER, _) | (NOBODY, Asker::Visitor) => {}
            (NOBODY, Asker::Application) => {
                self.owner.store(me, Ordering::Relaxed);
                // Release pairs with: the Acquire in `lock`.
                self.revoked.store(false, Ordering::Release);
            }
            // Release pairs with: the Acquire in `lock`.
            (owner, asker) if owner == me || asker == Asker::Visitor => self.revoked.store(false, Ordering::Release),
            _ => self.owner.store(NEVER, Ordering::Relaxed),
        }
        drop(held);
    }
}

#[cfg(not(loom))]
fn thread_token() -> u64 {
    use core::cell::Cell;
    use core::sync::atomic::AtomicU64 as Plain;
    static NEXT: Plain = Plain::new(1);
    thread_local!(static TOKEN: Cell<u64> = const { Cell::new(0) });
    #[cold]
    fn fresh() -> u64 {
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
    TOKEN
        .try_with(|token| {
            let mut mine = token.get();
            if mine == 0 {
                mine = fresh();
                token.set(mine);
            }
            mine
        })
        // In a thread's last destructors: a token that owns nothing.
        .unwrap_or(NEVER - 1)
}

#[cfg(loom)]
fn thread_token() -> u64 {
    loom::lazy_static! { static ref NEXT: AtomicU64 = AtomicU64::new(1); }
    loom::thread_local!(static TOKEN: core::cell::Cell<u64> = core::cell::Cell::new(0));
    TOKEN.with(|token| {
        if token.get() == 0 {
            token.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        token.get()
    })
}

#[cfg(all(not(loom), not(miri)))]
mod barrier {
    use std::sync::OnceLock;

    const QUERY: libc::c_long = 0;
    const PRIVATE_EXPEDITED: libc::c_long = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_long = 1 << 4;

    fn membarrier(command: libc::c_long) -> libc::c_long {
        // SAFETY: the call takes numbers only.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0u32, 0i32) }
    }

    /// Whether the kernel has the call and this process may use it.
    pub(super) fn available() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(|| {
            let commands = membarrier(QUERY);
            commands > 0 && commands & PRIVATE_EXPEDITED != 0 && membarrier(REGISTER_PRIVATE_EXPEDITED) == 0
        })
    }

    #[inline(always)]
    pub(super) fn light() {
        crate::sync::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    }

    pub(super) fn heavy() {
        let rc = membarrier(PRIVATE_EXPEDITED);
        assert!(rc == 0, "membarrier was registered and cannot fail after that");
    }
}

#[cfg(any(loom, miri))]
mod barrier {
    use crate::sync::fence;
    use std::sync::atomic::Ordering;

    pub(super) fn available() -> bool {
        true
    }
    pub(super) fn light() {
        fence(Ordering::SeqCst);
    }
    pub(super) fn heavy() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::BiasedLock;
    use std::sync::Arc;

    #[test]
    fn threads_exclude_each_other() {
        let rounds: u64 = if cfg!(miri) { 50 } else { 20_000 };
        let lock = Arc::new(BiasedLock::new((0u64, 0u64)));
        *lock.lock() = (0, 0);
        let handles: Vec<_> = (0..3)
            .map(|i| {
                let lock = lock.clone();
                std::thread::spawn(move || {
                    for _ in 0..rounds {
                        let mut guard = if i == 2 { lock.visit() } else { lock.lock() };
                        guard.0 += 1;
                        guard.1 += 1;
                        assert_eq!(guard.0, guard.1);
                    }
                })
            })
            .collect();
        for _ in 0..rounds {
            lock.lock().0 += 0;
        }
        for handle in handles {
            handle.join().unwrap();
        }
        assert_eq!(lock.lock().0, 3 * rounds);
    }

    #[test]
    fn a_visitor_leaves_the_bias() {
        let rounds: u64 = if cfg!(miri) { 50 } else { 2_000 };
        let lock = Arc::new(BiasedLock::new(0u64));
        *lock.lock() += 1;
        let other = lock.clone();
        let visitor = std::thread::spawn(move || {
            for _ in 0..rounds {
                *other.visit() += 1;
            }
        });
        for _ in 0..rounds {
            *lock.lock() += 1;
        }
        visitor.join().unwrap();
        assert!(lock.lock().slow.is_none(), "the first thread still owns the lock");
        assert_eq!(*lock.lock(), 2 * rounds + 1);
    }
}
