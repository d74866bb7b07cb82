//! Sessions, streams, sources and sinks.

use crate::message::{Buffer, Message};
use crate::{ChannelName, invalid, raise, seconds};
use insane::{Code, Qos, SinkOptions, SourceOptions, Token, Wait, WhenFull};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// How often a blocked call looks for signals such as Ctrl-C.
const SLICE: Duration = Duration::from_millis(50);

fn wait_of(text: &str) -> PyResult<Wait> {
    match text {
        "adaptive" => Ok(Wait::Adaptive),
        "spin" => Ok(Wait::Spin),
        "sleep" => Ok(Wait::Sleep),
        _ => Err(invalid(format!("wait is {text:?}: it takes 'adaptive', 'spin' or 'sleep'"))),
    }
}

#[pyclass(module = "insane", frozen)]
#[derive(Debug)]
pub(crate) struct Session {
    inner: std::sync::Mutex<Option<insane::Session>>,
}

impl Session {
    fn with<R: Send>(&self, py: Python<'_>, f: impl FnOnce(&insane::Session) -> insane::Result<R> + Send) -> PyResult<R> {
        py.detach(|| {
            let held = self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            held.as_ref().map_or_else(|| Err(Code::Closed.into()), f)
        })
        .map_err(raise)
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (app, *, domain=None, socket=None))]
    fn new(py: Python<'_>, app: String, domain: Option<String>, socket: Option<std::path::PathBuf>) -> PyResult<Self> {
        let mut builder = insane::Session::builder(app);
        if let Some(domain) = domain {
            builder = builder.domain(domain);
        }
        if let Some(socket) = socket {
            builder = builder.socket(socket);
        }
        let session = py.detach(|| builder.open()).map_err(raise)?;
        Ok(Self { inner: std::sync::Mutex::new(Some(session)) })
    }

    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |s| Ok(s.id().to_string()))
    }

    #[getter]
    fn domain(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |s| Ok(s.domain()))
    }

    #[pyo3(signature = (name="", *, qos="", strict=false))]
    fn stream(&self, py: Python<'_>, name: &str, qos: &str, strict: bool) -> PyResult<Stream> {
        let qos = Qos::parse(qos).map_err(invalid)?;
        let inner = self.with(py, |s| s.stream_with(name, qos, strict))?;
        Ok(Stream { inner })
    }

    fn report(&self, py: Python<'_>, what: &str) -> PyResult<String> {
        self.with(py, |s| s.report(what))
    }

    fn events(&self, py: Python<'_>) -> PyResult<Vec<(u32, &'static str, String)>> {
        self.with(py, |s| Ok(s.events().iter().map(|e| (e.number(), e.name(), e.to_string())).collect()))
    }

    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let cells = self.with(py, |s| Ok(s.counts()))?;
        let made = cells.iter().map(|cell| {
            let dict = PyDict::new(py);
            dict.set_item("end", format!("{:?}", cell.state).to_lowercase())?;
            dict.set_item("ended", cell.ended)?;
            dict.set_item("source", format!("{:032x}", cell.epoch))?;
            dict.set_item("sink", (cell.sink != 0).then(|| format!("{:032x}", cell.sink)))?;
            for count in insane::Count::ALL {
                dict.set_item(count.name(), cell.get(count))?;
            }
            Ok(dict)
        });
        made.collect()
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, py: Python<'_>, _args: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}

#[pyclass(module = "insane", frozen)]
#[derive(Debug)]
pub(crate) struct Stream {
    inner: insane::Stream,
}

#[pymethods]
impl Stream {
    #[getter]
    fn name(&self) -> String {
        self.inner.name().to_owned()
    }

    fn effective_qos(&self) -> Vec<(String, String, String, Vec<String>)> {
        let all = self.inner.effective_qos().into_iter();
        all.map(|e| (e.peer, e.datapath, e.qos.unwrap_or_default().canonical(), e.reasons)).collect()
    }

    #[pyo3(signature = (channel, *, message_bytes=1024, deadline=1.0, fail_when_full=false, timestamps=false, priority=0))]
    #[allow(clippy::too_many_arguments, reason = "keywords in Python")]
    fn source(
        &self,
        py: Python<'_>,
        channel: ChannelName,
        message_bytes: usize,
        deadline: f64,
        fail_when_full: bool,
        timestamps: bool,
        priority: u8,
    ) -> PyResult<Source> {
        let options = SourceOptions {
            message_bytes,
            deadline: seconds(deadline, "deadline")?,
            when_full: if fail_when_full { WhenFull::Fail } else { WhenFull::DropSink },
            timestamps,
            priority,
            wait: Wait::Adaptive,
        };
        let inner = py.detach(|| self.inner.source_with(channel.get(), options)).map_err(raise)?;
        Ok(Source { inner })
    }

    #[pyo3(signature = (channel, *, wait="adaptive", observer=false))]
    fn sink(&self, py: Python<'_>, channel: ChannelName, wait: &str, observer: bool) -> PyResult<Sink> {
        let wait = wait_of(wait)?;
        let inner = py.detach(|| self.inner.sink_with(channel.get(), SinkOptions { wait, observer })).map_err(raise)?;
        Ok(Sink { inner, wait, alone: std::sync::Mutex::new(None) })
    }
}

#[pyclass(module = "insane", frozen, get_all)]
#[derive(Debug)]
pub(crate) struct Outcome {
    intended: u32,
    pending: u32,
    delivered: u32,
    dropped: u32,
    expired: u32,
    unconfirmed: u32,
}

#[pyclass(module = "insane", frozen)]
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) inner: insane::Source,
}

#[pymethods]
impl Source {
    #[getter]
    fn epoch(&self) -> String {
        self.inner.epoch().to_string()
    }

    #[getter]
    fn channel(&self) -> u64 {
        self.inner.channel().0
    }

    #[getter]
    fn sinks(&self) -> usize {
        self.inner.sinks()
    }

    #[pyo3(signature = (count=1, timeout=5.0))]
    fn wait_for_sinks(&self, py: Python<'_>, count: usize, timeout: f64) -> PyResult<usize> {
        let timeout = seconds(timeout, "timeout")?;
        Ok(py.detach(|| self.inner.wait_for_sinks(count, timeout)))
    }

    #[pyo3(signature = (timeout=5.0))]
    fn wait_for_room(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let timeout = seconds(timeout, "timeout")?;
        py.detach(|| self.inner.wait_for_room(timeout)).map_err(raise)
    }

    /// Copies a bytes-like object into a buffer and emits it. The lock of the interpreter is kept: this is short.
    fn send(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        if let Ok(bytes) = data.cast::<pyo3::types::PyBytes>() {
            return Ok(self.inner.send(bytes.as_bytes()).map_err(raise)?.0);
        }
        let view = PyBuffer::<u8>::get(data)?;
        let mut buffer = self.inner.buffer(view.len_bytes()).map_err(raise)?;
        view.copy_to_slice(py, &mut buffer)?;
        Ok(self.inner.emit(buffer).map_err(raise)?.0)
    }

    fn buffer(slf: Py<Self>, py: Python<'_>, size: usize) -> PyResult<Buffer> {
        let raw = slf.borrow(py).inner.raw_buffer(size).map_err(raise)?;
        Ok(Buffer { raw: Some(raw), len: size, exports: 0, source: slf })
    }

    #[pyo3(signature = (buffer, length=None))]
    fn emit(&self, py: Python<'_>, buffer: &Bound<'_, Buffer>, length: Option<usize>) -> PyResult<u64> {
        let mut buffer = buffer.borrow_mut();
        buffer.check()?;
        if !std::ptr::eq(&*buffer.source.borrow(py), self) {
            return Err(invalid("the buffer is from another source"));
        }
        let length = length.unwrap_or(buffer.len);
        let raw = buffer.raw.take().ok_or_else(|| invalid("the buffer was emitted or discarded"))?;
        Ok(py.detach(|| self.inner.emit_raw(raw, length, 0)).map_err(raise)?.0)
    }

    fn outcome(&self, token: u64) -> PyResult<Outcome> {
        let o = self.inner.outcome(Token(token)).map_err(raise)?;
        Ok(Outcome {
            intended: o.intended,
            pending: o.pending,
            delivered: o.delivered,
            dropped: o.dropped,
            expired: o.expired,
            unconfirmed: o.unconfirmed,
        })
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.close());
    }
}

#[pyclass(module = "insane", frozen, subclass)]
#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) inner: insane::Sink,
    wait: Wait,
    /// For `asyncio`.
    alone: std::sync::Mutex<Option<insane::WaitSet>>,
}

fn message(slf: &Py<Sink>, py: Python<'_>, raw: insane::RawMessage) -> Message {
    Message { raw: Some(raw), exports: 0, sink: slf.clone_ref(py) }
}

#[pymethods]
impl Sink {
    #[getter]
    fn id(&self) -> String {
        self.inner.id().to_string()
    }

    #[getter]
    fn channel(&self) -> u64 {
        self.inner.channel().0
    }

    fn try_consume(slf: Py<Self>, py: Python<'_>) -> PyResult<Option<Message>> {
        let raw = slf.get().inner.try_raw().map_err(raise)?;
        Ok(raw.map(|raw| message(&slf, py, raw)))
    }

    #[pyo3(signature = (timeout=None))]
    fn consume(slf: Py<Self>, py: Python<'_>, timeout: Option<f64>) -> PyResult<Message> {
        let this = slf.get();
        if let Some(raw) = this.inner.try_raw().map_err(raise)? {
            return Ok(message(&slf, py, raw));
        }
        let end = timeout.map(|t| seconds(t, "timeout")).transpose()?.map(|t| Instant::now() + t);
        loop {
            let left = end.map_or(SLICE, |end| end.saturating_duration_since(Instant::now()).min(SLICE));
            match py.detach(|| this.inner.consume_raw(Some(left))) {
                Ok(raw) => return Ok(message(&slf, py, raw)),
                Err(e) if e.code() == Code::Timeout && end.is_none_or(|end| Instant::now() < end) => py.check_signals()?,
                Err(e) => return Err(raise(e)),
            }
        }
    }

    /// The descriptor of a wait set of this sink alone, for an event loop.
    fn _fileno(&self) -> PyResult<i32> {
        let mut alone = self.alone.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if alone.is_none() {
            let mut set = insane::WaitSet::new().map_err(raise)?;
            set.add(&self.inner).map_err(raise)?;
            *alone = Some(set);
        }
        Ok(alone.as_ref().map_or(-1, |set| set.as_fd().as_raw_fd()))
    }

    /// Whether that descriptor becomes readable when something comes; if not, something is there now.
    fn _arm(&self, py: Python<'_>) -> PyResult<bool> {
        let arm = || {
            let mut alone = self.alone.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            alone.as_mut().map_or(Ok(false), insane::WaitSet::arm)
        };
        py.detach(arm).map_err(raise)
    }

    #[getter]
    fn wait(&self) -> &'static str {
        match self.wait {
            Wait::Adaptive => "adaptive",
            Wait::Spin => "spin",
            Wait::Sleep => "sleep",
        }
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.close());
    }
}
