//! The native half of the Python package: `insane/__init__.pyi` says what each class does.

mod message;
mod session;
mod waitset;

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Makes the Python exception of an error; only errors pay for the import.
pub(crate) fn raise(e: insane::Error) -> PyErr {
    Python::attach(|py| {
        let made = py
            .import("insane._errors")
            .and_then(|m| m.getattr("make"))
            .and_then(|make| make.call1((e.code().number(), e.code().name(), e.to_string())));
        match made {
            Ok(exception) => PyErr::from_value(exception),
            Err(failure) => failure,
        }
    })
}

pub(crate) fn invalid(text: impl Into<String>) -> PyErr {
    raise(insane::Error::new(insane::Code::InvalidArgument, text))
}

pub(crate) fn seconds(value: f64, what: &str) -> PyResult<std::time::Duration> {
    std::time::Duration::try_from_secs_f64(value).map_err(|_| invalid(format!("{what} is {value}: it takes seconds from 0 on")))
}

/// A channel as Python names it: text, or a plain id.
#[derive(Debug, FromPyObject)]
pub(crate) enum ChannelName {
    /// By name.
    Name(String),
    /// By id.
    Id(u64),
}

impl ChannelName {
    pub(crate) fn get(&self) -> insane::Channel<'_> {
        match self {
            Self::Name(name) => insane::Channel::Name(name),
            Self::Id(id) => insane::Channel::Id(*id),
        }
    }
}

#[pymodule]
fn _native(py: Python<'_>, m: &Bound<'_, PyModule>) -> PyResult<()> {
    let codes = PyDict::new(py);
    for code in insane::Code::ALL {
        codes.set_item(code.name(), code.number())?;
    }
    m.add("CODES", codes)?;
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<session::Session>()?;
    m.add_class::<session::Stream>()?;
    m.add_class::<session::Source>()?;
    m.add_class::<session::Sink>()?;
    m.add_class::<waitset::WaitSet>()?;
    m.add_class::<message::Buffer>()?;
    m.add_class::<message::Message>()?;
    m.add_class::<session::Outcome>()?;
    Ok(())
}
