//! Wait sets: one descriptor for many sinks.

use crate::handles::SinkHandle;
use crate::{call, close, get, invalid, own, put};
use client::{Error, WaitSet};
use std::ffi::{c_int, c_long};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `insane_waitset_t`: a set, and the keys that the caller's array had no room for.
#[derive(Debug)]
pub struct SetHandle {
    inner: Mutex<(WaitSet, Vec<usize>)>,
}

impl SetHandle {
    fn lock(&self) -> MutexGuard<'_, (WaitSet, Vec<usize>)> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_create_waitset(place: *mut *mut SetHandle) -> c_int {
    call(|| {
        if place.is_null() {
            return Err(invalid("the place for the handle is NULL"));
        }
        let set = SetHandle { inner: Mutex::new((WaitSet::new()?, Vec::new())) };
        // SAFETY: the header's contract.
        unsafe { put(place, set) }
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_close_waitset(set: *mut SetHandle) -> c_int {
    // SAFETY: the header's contract.
    unsafe { close(set) }
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_waitset_add(set: *const SetHandle, sink: *const SinkHandle) -> c_long {
    call(|| {
        // SAFETY: the header's contract.
        let set = unsafe { own(set, "set is NULL") }?;
        // SAFETY: the header's contract.
        let sink = unsafe { get(sink, "sink is NULL") }?;
        let SinkHandle::Plain(sink) = sink else { return Err(invalid("the sink's messages go to its callback")) };
        let key = set.lock().0.add(sink)?;
        Ok(c_long::try_from(key).unwrap_or(c_long::MAX))
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_waitset_remove(set: *const SetHandle, key: c_long) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let mut held = unsafe { own(set, "set is NULL") }?.lock();
        let key = usize::try_from(key).map_err(|_| invalid("key is negative"))?;
        held.0.remove(key);
        held.1.retain(|k| *k != key);
        Ok(0)
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_waitset_fd(set: *const SetHandle) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let set = unsafe { own(set, "set is NULL") }?;
        Ok(set.lock().0.as_fd().as_raw_fd())
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_waitset_arm(set: *const SetHandle) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let mut held = unsafe { own(set, "set is NULL") }?.lock();
        Ok(c_int::from(held.1.is_empty() && held.0.arm()?))
    })
}

/// Hands out keys: those that were left over first.
///
/// # Safety
/// `keys` is NULL or has room for `size`.
unsafe fn hand_out(
    set: *const SetHandle,
    keys: *mut usize,
    size: usize,
    look: impl FnOnce(&mut WaitSet, &mut Vec<usize>) -> Result<usize, Error>,
) -> c_long {
    call(|| {
        // SAFETY: the caller's promise.
        let mut held = unsafe { own(set, "set is NULL") }?.lock();
        if keys.is_null() || size == 0 {
            return Err(invalid("no room for keys"));
        }
        let (set, left) = &mut *held;
        if left.is_empty() {
            look(set, left)?;
        }
        let count = left.len().min(size);
        for (at, key) in left.drain(..count).enumerate() {
            // SAFETY: the caller's promise; `at` is below `size`.
            let place = unsafe { keys.add(at) };
            // SAFETY: as above.
            unsafe { place.write(key) };
        }
        Ok(c_long::try_from(count).unwrap_or(c_long::MAX))
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_waitset_ready(set: *const SetHandle, keys: *mut usize, size: usize) -> c_long {
    // SAFETY: the header's contract.
    unsafe { hand_out(set, keys, size, WaitSet::ready) }
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_waitset_wait(
    set: *const SetHandle,
    keys: *mut usize,
    size: usize,
    timeout_ms: u64,
) -> c_long {
    let timeout = crate::timeout(timeout_ms);
    // SAFETY: the header's contract.
    unsafe { hand_out(set, keys, size, |set, keys| set.wait(keys, timeout)) }
}
