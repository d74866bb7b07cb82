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
use std::sync::OnceLock;

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

/// What a handle points to: its value comes first.
#[repr(C)]
struct Made<T> {
    value: T,
    /// In which process it was made.
    forks: u32,
}

/// # Safety
/// `place` is NULL or may be written.
unsafe fn put<T>(place: *mut *mut T, value: T) -> Result<c_int, Error> {
    if place.is_null() {
        return Err(invalid("the place for the handle is NULL"));
    }
    let made = Box::new(Made { value, forks: client::forks() });
    // SAFETY: the caller's promise.
    unsafe { place.write(Box::into_raw(made).cast()) };
    Ok(0)
}

/// # Safety
/// `handle` is NULL or came from [`put`] and was not closed.
unsafe fn get<'a, T>(handle: *const T, what: &str) -> Result<&'a T, Error> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| invalid(what))
}

/// As [`get`], of this process: for calls that would not find out by themselves that they are in a forked child.
///
/// # Safety
/// As [`get`].
unsafe fn own<'a, T>(handle: *const T, what: &str) -> Result<&'a T, Error> {
    // SAFETY: the caller's promise: it points to what `put` made.
    let made = unsafe { handle.cast::<Made<T>>().as_ref() }.ok_or_else(|| invalid(what))?;
    if made.forks == client::forks() { Ok(&made.value) } else { Err(Code::Forked.into()) }
}

/// # Safety
/// `handle` is NULL or came from [`put`] and was not closed; it is not used again.
unsafe fn close<T>(handle: *mut T) -> c_int {
    call(|| {
        if !handle.is_null() {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(handle.cast::<Made<T>>()) });
        }
        Ok(0)
    })
}

macro_rules! of_code {
    ($name:ident, $method:ident, $other:literal) => {
        /// See `insane.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(number: c_int) -> *const c_char {
            // Made once: C may keep them.
            static TEXTS: OnceLock<Vec<(Code, CString)>> = OnceLock::new();
            let of = |code: &Code| (*code, CString::new(code.$method()).unwrap_or_default());
            let texts = TEXTS.get_or_init(|| Code::ALL.iter().map(of).collect());
            let code = Code::from_number(number.unsigned_abs());
            let found = texts.iter().find(|(known, _)| Some(*known) == code);
            found.map_or(concat!($other, "\0").as_ptr().cast(), |(_, text)| text.as_ptr())
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
