//! Wait sets: one descriptor for many sinks, for event loops.

use crate::session::Sink;
use crate::values::{Born, Time};
use crate::{invalid, raise};
use insane::Code;
use pyo3::prelude::*;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a blocked call looks for signals such as Ctrl-C.
const SLICE: Duration = Duration::from_millis(50);

#[derive(Debug)]
struct Held {
    set: insane::WaitSet,
    /// The sinks by their keys.
    sinks: Vec<Option<Py<Sink>>>,
}

/// Several sinks that one thread or one event loop serves.
#[pyclass(module = "insane", frozen)]
#[derive(Debug)]
pub(crate) struct WaitSet {
    held: Mutex<Held>,
    born: Born,
}

impl WaitSet {
    /// Checked first: in a child the lock may be held by a thread that is not there.
    fn checked(&self) -> PyResult<MutexGuard<'_, Held>> {
        self.born.check()?;
        Ok(self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn sinks(&self, py: Python<'_>, keys: &[usize]) -> Vec<Py<Sink>> {
        keys.iter().filter_map(|k| self.sinks.get(*k)?.as_ref().map(|s| s.clone_ref(py))).collect()
    }
}

#[pymethods]
impl WaitSet {
    #[new]
    fn new() -> PyResult<Self> {
        let set = insane::WaitSet::new().map_err(raise)?;
        Ok(Self { held: Mutex::new(Held { set, sinks: Vec::new() }), born: Born::now() })
    }

    fn add(&self, sink: Py<Sink>) -> PyResult<()> {
        let mut held = self.checked()?;
        let key = held.set.add(&sink.get().inner).map_err(raise)?;
        if held.sinks.len() <= key {
            held.sinks.resize_with(key + 1, || None);
        }
        held.sinks[key] = Some(sink);
        Ok(())
    }

    fn remove(&self, sink: &Bound<'_, Sink>) -> PyResult<()> {
        let mut held = self.checked()?;
        let key = held.sinks.iter().position(|s| s.as_ref().is_some_and(|s| s.is(sink)));
        let key = key.ok_or_else(|| invalid("the sink is not in the set"))?;
        held.set.remove(key);
        held.sinks[key] = None;
        Ok(())
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.checked()?.set.len())
    }

    fn fileno(&self) -> PyResult<i32> {
        Ok(self.checked()?.set.as_fd().as_raw_fd())
    }

    fn arm(&self, py: Python<'_>) -> PyResult<bool> {
        self.born.check()?;
        py.detach(|| self.lock().set.arm()).map_err(raise)
    }

    fn ready(&self, py: Python<'_>) -> PyResult<Vec<Py<Sink>>> {
        let mut keys = Vec::new();
        let mut held = self.checked()?;
        held.set.ready(&mut keys).map_err(raise)?;
        Ok(held.sinks(py, &keys))
    }

    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<Time>) -> PyResult<Vec<Py<Sink>>> {
        let end = timeout.map(|t| t.get("timeout")).transpose()?.and_then(|t| Instant::now().checked_add(t));
        if end.is_none() && self.checked()?.set.is_empty() {
            return Err(invalid("an empty set would wait for ever"));
        }
        let mut keys = Vec::new();
        loop {
            let left = end.map_or(SLICE, |end| end.saturating_duration_since(Instant::now()).min(SLICE));
            match py.detach(|| self.lock().set.wait(&mut keys, Some(left))) {
                Ok(_) => return Ok(self.lock().sinks(py, &keys)),
                Err(e) if e.code() == Code::Timeout && end.is_none_or(|end| Instant::now() < end) => {
                    py.check_signals()?
                }
                Err(e) => return Err(raise(e)),
            }
        }
    }
}
