//! Arguments as Python gives them: a wrong type is a `TypeError`, a wrong value an `InvalidArgument` that says what it takes.

use crate::{invalid, raise};
use insane::Code;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyUnicodeError};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString};
use std::time::Duration;

/// The longest time, in seconds: some thirty years, which every clock can add to now.
const MOST_SECONDS: f64 = 1e9;

/// A whole number; the text of one that does not fit 64 bits.
#[derive(Debug)]
pub(crate) struct Whole(Result<u64, String>);

impl Whole {
    pub(crate) const fn of(value: u64) -> Self {
        Self(Ok(value))
    }

    /// The number, if it is in range.
    pub(crate) fn within(&self, name: &str, min: u64, max: u64) -> PyResult<u64> {
        match &self.0 {
            Ok(n) if (min..=max).contains(n) => Ok(*n),
            Ok(n) => Err(invalid(format!("{name} is {n}: it takes {min} to {max}"))),
            Err(text) => Err(invalid(format!("{name} is {text}: it takes {min} to {max}"))),
        }
    }

    /// As [`Self::within`], for what counts things in memory.
    pub(crate) fn size(&self, name: &str, max: u64) -> PyResult<usize> {
        Ok(usize::try_from(self.within(name, 0, max)?).unwrap_or(usize::MAX))
    }
}

impl<'py> FromPyObject<'_, 'py> for Whole {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let number = match object.cast::<PyInt>() {
            Ok(number) => number.to_owned().into_any(),
            // Whole numbers of other libraries.
            Err(_) if object.hasattr("__index__")? => object.call_method0("__index__")?,
            Err(_) => return Err(PyTypeError::new_err(format!("it takes an int, not {}", object.get_type().name()?))),
        };
        Ok(Self(number.extract::<u64>().map_err(|_| short(&number))))
    }
}

/// A number as text, of which a long one has but the sign: printing it would take long, or be refused.
fn short(number: &Bound<'_, PyAny>) -> String {
    let text = number.extract::<i128>().map(|n| n.to_string());
    text.unwrap_or_else(|_| if number.lt(0).unwrap_or(false) { "far below 0" } else { "far too large" }.to_owned())
}

/// Seconds.
#[derive(Debug)]
pub(crate) struct Time(pub(crate) f64);

impl Time {
    pub(crate) fn get(&self, name: &str) -> PyResult<Duration> {
        let value = Some(self.0).filter(|v| (0.0..=MOST_SECONDS).contains(v));
        let time = value.and_then(|v| Duration::try_from_secs_f64(v).ok());
        time.ok_or_else(|| invalid(format!("{name} is {}: it takes seconds from 0 to {MOST_SECONDS}", self.0)))
    }
}

impl<'py> FromPyObject<'_, 'py> for Time {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.extract::<f64>() {
            Err(e) if e.is_instance_of::<PyOverflowError>(object.py()) => Ok(Self(f64::INFINITY)),
            other => other.map(Self),
        }
    }
}

/// A text, which Python lets be none that others can read.
#[derive(Debug)]
pub(crate) struct Text(Option<String>);

impl Text {
    pub(crate) fn empty() -> Self {
        Self(Some(String::new()))
    }

    pub(crate) fn get(&self, name: &str) -> PyResult<&str> {
        let why = || raise(insane::Error::new(Code::InvalidName, format!("{name} holds half of a Unicode character")));
        self.0.as_deref().ok_or_else(why)
    }
}

impl<'py> FromPyObject<'_, 'py> for Text {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let text = object.cast::<PyString>();
        let text = text.map_err(|_| PyTypeError::new_err(format!("it takes a str, not {}", type_of(&object))))?;
        match text.extract::<String>() {
            Err(e) if e.is_instance_of::<PyUnicodeError>(object.py()) => Ok(Self(None)),
            other => Ok(Self(Some(other?))),
        }
    }
}

fn type_of(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "that".to_owned(), |name| name.to_string())
}

/// A channel as Python names it: text, or a plain id.
#[derive(Debug)]
pub(crate) enum ChannelName {
    /// By name.
    Name(Text),
    /// By id.
    Id(Whole),
}

impl ChannelName {
    pub(crate) fn get(&self) -> PyResult<insane::Channel<'_>> {
        match self {
            Self::Name(name) => Ok(insane::Channel::Name(name.get("channel")?)),
            Self::Id(id) => Ok(insane::Channel::Id(id.within("channel", 0, u64::MAX)?)),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for ChannelName {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            return Ok(Self::Name(object.extract()?));
        }
        let wrong = |_| PyTypeError::new_err(format!("it takes a name (str) or an id (int), not {}", type_of(&object)));
        object.extract().map(Self::Id).map_err(wrong)
    }
}

/// When an object was made, in forks: a child has no part of its parent's objects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Born(u32);

impl Born {
    pub(crate) fn now() -> Self {
        Self(insane::forks())
    }

    pub(crate) fn forked(self) -> bool {
        self.0 != insane::forks()
    }

    #[inline]
    pub(crate) fn check(self) -> PyResult<()> {
        if self.forked() { Err(raise(Code::Forked.into())) } else { Ok(()) }
    }
}
