//! The C interface: `include/insane.h` says what each call does. Every call checks its handles, catches panics and keeps the
//! text of the last failure for its thread.
#![allow(unreachable_pub, reason = "C reaches these by their symbols")]
#![allow(clippy::missing_safety_doc, reason = "the header is the contract of these functions")]

mod data;
mod handles;
mod waitset;

use client::{Code, Error};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

thread_local!(static LAST: RefCell<CString> = RefCell::new(CString::default()));

fn note(error: &Error) -> c_int {
    // A NUL inside a text would end it early; there is none, but nothing breaks if there is.
    let text = error.to_string().replace('\0', " ");
    LAST.with(|last| *last.borrow_mut() = CString::new(text).unwrap_or_default());
    -(c_int::try_from(error.code().number()).unwrap_or(c_int::MAX))
}

/// Runs a call; its failure becomes a number and a text, and a panic does not get out.
fn call<T: From<c_int>>(f: impl FnOnce() -> Result<T, Error>) -> T {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)) {
        Ok(Ok(value)) => value,
        Ok(Err(e)) => T::from(note(&e)),
        Err(_) => T::from(note(&Error::new(Code::System, "the library has a bug: a panic was caught"))),
    }
}

fn invalid(what: &str) -> Error {
    Error::new(Code::InvalidArgument, what)
}

/// How long to wait; `None` for ever.
fn timeout(ms: u64) -> Option<std::time::Duration> {
    (ms != u64::MAX).then(|| std::time::Duration::from_millis(ms))
}

/// The text behind a pointer; `None` for NULL.
///
/// # Safety
/// `text` is NULL or points to a string with a NUL.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>, Error> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Error::new(Code::InvalidName, format!("{what} is not UTF-8")))
}

/// # Safety
/// `place` is NULL or may be written.
unsafe fn put<T>(place: *mut *mut T, value: T) -> Result<c_int, Error> {
    if place.is_null() {
        return Err(invalid("the place for the handle is NULL"));
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(Box::into_raw(Box::new(value))) };
    Ok(0)
}

/// # Safety
/// `handle` is NULL or came from [`put`] and was not closed.
unsafe fn get<'a, T>(handle: *const T, what: &str) -> Result<&'a T, Error> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| invalid(what))
}

/// # Safety
/// `handle` is NULL or came from [`put`] and was not closed; it is not used again.
unsafe fn close<T>(handle: *mut T) -> c_int {
    call(|| {
        if !handle.is_null() {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(handle) });
        }
        Ok(0)
    })
}

fn code(number: c_int) -> Option<Code> {
    Code::from_number(number.unsigned_abs())
}

macro_rules! of_code {
    ($name:ident, $method:ident, $other:literal) => {
        /// See `insane.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(number: c_int) -> *const c_char {
            thread_local!(static TEXT: RefCell<CString> = RefCell::new(CString::default()));
            let text = code(number).map_or($other, |c| c.$method());
            TEXT.with(|place| {
                *place.borrow_mut() = CString::new(text).unwrap_or_default();
                place.borrow().as_ptr()
            })
        }
    };
}

of_code!(insane_error_name, name, "Unknown");
of_code!(insane_error_text, text, "no such error number");
of_code!(insane_error_hint, hint, "see enum insane_code");

/// See `insane.h`.
#[unsafe(no_mangle)]
pub extern "C" fn insane_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub extern "C" fn insane_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
