//! The one door to atomics, fences and threads: loom's under `--cfg loom`, the standard library's otherwise.

#[cfg(not(loom))]
mod door {
    pub(crate) use core::cell::UnsafeCell;
    #[cfg(not(miri))]
    pub(crate) use core::sync::atomic::compiler_fence;
    pub(crate) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use std::sync::{Mutex, MutexGuard};
    pub(crate) use std::thread::yield_now;

    /// One turn of a spin loop.
    #[inline]
    pub(crate) fn spin() {
        core::hint::spin_loop();
    }
}

#[cfg(loom)]
mod door {
    pub(crate) use core::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
    pub(crate) use loom::thread::yield_now;

    /// One turn of a spin loop: loom needs to hear that another thread must run.
    pub(crate) fn spin() {
        loom::thread::yield_now();
    }
}

pub(crate) use door::*;
