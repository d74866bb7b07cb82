//! The native half of the Python package: `insane/__init__.pyi` says what each class does.

mod message;
mod session;
mod traffic;
mod values;
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
    m.add_class::<message::Piece>()?;
    m.add_class::<session::Copies>()?;
    m.add_class::<session::Outcome>()?;
    m.add_class::<traffic::TrafficClient>()?;
    m.add_class::<traffic::TrafficSubscription>()?;
    Ok(())
}
