//! Sessions, streams, sources and sinks.

use crate::message::{Buffer, Message};
use crate::values::{Born, ChannelName, Text, Time, Whole};
use crate::{invalid, raise};
use insane::{Code, Qos, RawBuffer, Reliability, SinkOptions, SourceOptions, Token, Wait, WhenFull};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// How often a blocked call looks for signals such as Ctrl-C.
const SLICE: Duration = Duration::from_millis(50);

/// Peer, datapath, QoS served, reasons for downgrades.
type Effective = (String, String, String, String, Vec<String>);

/// The largest message, in bytes.
const MOST_BYTES: u64 = 128 << 20;

pub(crate) fn wait_of(text: &str) -> PyResult<Wait> {
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
    born: Born,
}

impl Session {
    pub(crate) fn with<R: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&insane::Session) -> insane::Result<R> + Send,
    ) -> PyResult<R> {
        self.born.check()?;
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
    fn new(py: Python<'_>, app: Text, domain: Option<Text>, socket: Option<std::path::PathBuf>) -> PyResult<Self> {
        let mut builder = insane::Session::builder(app.get("app")?);
        if let Some(domain) = domain {
            builder = builder.domain(domain.get("domain")?);
        }
        if let Some(socket) = socket {
            builder = builder.socket(socket);
        }
        let session = py.detach(|| builder.open()).map_err(raise)?;
        Ok(Self { inner: std::sync::Mutex::new(Some(session)), born: Born::now() })
    }

    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |s| Ok(s.id().to_string()))
    }

    #[getter]
    fn domain(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |s| Ok(s.domain()))
    }

    #[pyo3(signature = (name=Text::empty(), *, qos=Text::empty(), strict=false))]
    #[pyo3(text_signature = "($self, name='', *, qos='', strict=False)")]
    fn stream(&self, py: Python<'_>, name: Text, qos: Text, strict: bool) -> PyResult<Stream> {
        let qos = Qos::parse(qos.get("qos")?).map_err(invalid)?;
        let name = name.get("name")?;
        let inner = self.with(py, |s| s.stream_with(name, qos, strict))?;
        Ok(Stream { inner, born: self.born })
    }

    fn report(&self, py: Python<'_>, what: Text) -> PyResult<String> {
        let what = what.get("what")?;
        self.with(py, |s| s.report(what))
    }

    fn events<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let made = py.import("insane._events")?.getattr("Event")?;
        let events = self.with(py, |s| Ok(s.events()))?;
        let made = events.iter().map(|e| {
            let moved_us = e.moved().map(|moved| moved.as_micros());
            made.call1((e.number(), e.name(), e.to_string(), e.stream(), e.peer(), moved_us))
        });
        made.collect()
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
        if self.born.forked() {
            return;
        }
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
    born: Born,
}

#[pymethods]
impl Stream {
    #[getter]
    fn name(&self) -> String {
        self.inner.name().to_owned()
    }

    fn effective_qos(&self) -> PyResult<Vec<Effective>> {
        self.born.check()?;
        let all = self.inner.effective_qos().into_iter();
        Ok(all.map(|e| (e.peer, e.datapath, e.transport, e.qos.unwrap_or_default().canonical(), e.reasons)).collect())
    }

    #[pyo3(signature = (channel, *, message_bytes=Whole::of(1024), deadline=Time(1.0), fail_when_full=false,
        timestamps=false, priority=Whole::of(0)))]
    #[pyo3(
        text_signature = "($self, channel, *, message_bytes=1024, deadline=1.0, fail_when_full=False, timestamps=False, \
                             priority=0)"
    )]
    #[allow(clippy::too_many_arguments, reason = "keywords in Python")]
    fn source(
        &self,
        py: Python<'_>,
        channel: ChannelName,
        message_bytes: Whole,
        deadline: Time,
        fail_when_full: bool,
        timestamps: bool,
        priority: Whole,
    ) -> PyResult<Source> {
        self.born.check()?;
        let options = SourceOptions {
            message_bytes: message_bytes.size("message_bytes", MOST_BYTES)?,
            deadline: deadline.get("deadline")?,
            when_full: if fail_when_full { WhenFull::Fail } else { WhenFull::DropSink },
            timestamps,
            priority: u8::try_from(priority.within("priority", 0, 255)?).unwrap_or(u8::MAX),
            wait: Wait::Adaptive,
        };
        let channel = channel.get()?;
        let inner = py.detach(|| self.inner.source_with(channel, options)).map_err(raise)?;
        let reliable = self.inner.qos().reliability() == Reliability::Reliable;
        Ok(Source { inner, reliable, born: self.born })
    }

    #[pyo3(signature = (channel, *, wait=None, observer=false, scattered=false))]
    #[pyo3(text_signature = "($self, channel, *, wait='adaptive', observer=False, scattered=False)")]
    fn sink(
        &self,
        py: Python<'_>,
        channel: ChannelName,
        wait: Option<Text>,
        observer: bool,
        scattered: bool,
    ) -> PyResult<Sink> {
        self.born.check()?;
        let wait = wait.as_ref().map_or(Ok(Wait::Adaptive), |wait| wait_of(wait.get("wait")?))?;
        let channel = channel.get()?;
        let options = SinkOptions { wait, observer, scattered };
        let inner = py.detach(|| self.inner.sink_with(channel, options)).map_err(raise)?;
        Ok(Sink { inner, wait, alone: std::sync::Mutex::new(None), born: self.born })
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

#[pyclass(module = "insane", frozen, get_all)]
#[derive(Debug)]
pub(crate) struct Copies {
    scattered: u64,
    pieces: u64,
    runtime: u64,
    here: u64,
}

#[pyclass(module = "insane", frozen)]
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) inner: insane::Source,
    /// An emit may have to wait for sinks.
    reliable: bool,
    pub(crate) born: Born,
}

impl Source {
    /// Whether it is open: one that is closed knows no token, not even the one that no message has.
    fn open(&self) -> PyResult<()> {
        match self.inner.outcome(Token(0)) {
            Err(e) if e.code() == Code::Closed => Err(raise(e)),
            _ => Ok(()),
        }
    }

    /// Memory for a message, which is to go back to the source once. The lock of the interpreter is kept unless it has to wait.
    fn lend(&self, py: Python<'_>, size: usize) -> PyResult<RawBuffer> {
        // SAFETY: the caller gives it back.
        if let Some(raw) = unsafe { self.inner.try_raw_buffer(size) }.map_err(raise)? {
            return Ok(raw);
        }
        // SAFETY: as above.
        py.detach(|| unsafe { self.inner.raw_buffer(size) }).map_err(raise)
    }

    fn send_bytes(&self, py: Python<'_>, bytes: &[u8], more: bool) -> PyResult<Token> {
        let send = || if more { self.inner.send_more(bytes) } else { self.inner.send(bytes) };
        if !self.reliable {
            return send().map_err(raise);
        }
        let sent = if more { self.inner.try_send_more(bytes) } else { self.inner.try_send(bytes) };
        sent.map_err(raise)?.map_or_else(|| py.detach(send).map_err(raise), Ok)
    }
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
    fn sinks(&self) -> PyResult<usize> {
        self.born.check()?;
        Ok(self.inner.sinks())
    }

    #[pyo3(signature = (count=Whole::of(1), timeout=Time(5.0)), text_signature = "($self, count=1, timeout=5.0)")]
    fn wait_for_sinks(&self, py: Python<'_>, count: Whole, timeout: Time) -> PyResult<usize> {
        self.born.check()?;
        let (count, timeout) = (count.size("count", 65_535)?, timeout.get("timeout")?);
        self.open()?;
        let found = py.detach(|| self.inner.wait_for_sinks(count, timeout));
        if found < count {
            self.open()?;
        }
        Ok(found)
    }

    #[pyo3(signature = (timeout=Time(5.0)), text_signature = "($self, timeout=5.0)")]
    fn wait_for_room(&self, py: Python<'_>, timeout: Time) -> PyResult<()> {
        self.born.check()?;
        let timeout = timeout.get("timeout")?;
        self.open()?;
        py.detach(|| self.inner.wait_for_room(timeout)).map_err(raise)
    }

    /// Copies a bytes-like object into a buffer and emits it. The lock of the interpreter is kept, as this is short, unless a sink
    /// has to make room first: that may be the work of another thread of this interpreter.
    #[pyo3(signature = (data, *, more=false))]
    fn send(&self, py: Python<'_>, data: &Bound<'_, PyAny>, more: bool) -> PyResult<u64> {
        if let Ok(bytes) = data.cast::<pyo3::types::PyBytes>() {
            let bytes = bytes.as_bytes();
            return Ok(self.send_bytes(py, bytes, more)?.0);
        }
        let view = PyBuffer::<u8>::get(data).map_err(|e| not_bytes(py, data, e))?;
        let len = view.len_bytes();
        let mut raw = self.lend(py, len)?;
        // SAFETY: it was just lent, and has as many bytes.
        let to = unsafe { std::slice::from_raw_parts_mut(raw.as_mut_ptr(), len) };
        if let Err(e) = view.copy_to_slice(py, to) {
            self.inner.discard_raw(raw);
            return Err(e);
        }
        let raw = match self.inner.try_emit_raw(raw, len, more).map_err(raise)? {
            Ok(token) => return Ok(token.0),
            Err(raw) => raw,
        };
        let emit = || if more { self.inner.emit_raw_more(raw, len) } else { self.inner.emit_raw(raw, len, 0) };
        Ok(py.detach(emit).map_err(raise)?.0)
    }

    fn flush(&self) -> PyResult<()> {
        self.inner.flush().map_err(raise)
    }

    fn buffer(slf: Py<Self>, py: Python<'_>, size: Whole) -> PyResult<Buffer> {
        let size = size.size("size", MOST_BYTES)?;
        // The buffer keeps the source, and goes back to it once.
        let raw = slf.get().lend(py, size)?;
        Ok(Buffer { raw: std::sync::Mutex::new(Some(raw)), len: size, exports: 0, source: slf })
    }

    #[pyo3(signature = (buffer, length=None, *, more=false))]
    fn emit(&self, py: Python<'_>, buffer: &Bound<'_, Buffer>, length: Option<Whole>, more: bool) -> PyResult<u64> {
        self.born.check()?;
        // Whatever is refused here leaves the buffer as it is; what is emitted is gone, whatever comes of it.
        let (raw, length) = {
            let mut buffer = buffer.borrow_mut();
            buffer.check()?;
            if !std::ptr::eq(buffer.source.get(), self) {
                return Err(invalid("the buffer is from another source"));
            }
            let most = buffer.len as u64;
            let length = length.map_or(Ok(buffer.len), |length| length.size("length", most))?;
            (buffer.take().ok_or_else(|| invalid("the buffer was emitted or discarded"))?, length)
        };
        let emit = || if more { self.inner.emit_raw_more(raw, length) } else { self.inner.emit_raw(raw, length, 0) };
        Ok(py.detach(emit).map_err(raise)?.0)
    }

    fn outcome(&self, token: Whole) -> PyResult<Outcome> {
        let token = Token(token.within("token", 0, u64::MAX)?);
        let o = self.inner.outcome(token).map_err(raise)?;
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
    born: Born,
}

/// What to say of something that is not a row of bytes.
fn not_bytes(py: Python<'_>, data: &Bound<'_, PyAny>, e: PyErr) -> PyErr {
    if e.is_instance_of::<PyTypeError>(py) {
        let name = data.get_type().name().map(|name| name.to_string()).unwrap_or_default();
        return PyTypeError::new_err(format!("argument 'data': it takes a bytes-like object, not {name}"));
    }
    invalid(format!("data is no row of bytes ({e}): cast it, as in memoryview(data).cast('B')"))
}

fn message(slf: &Py<Sink>, py: Python<'_>, raw: insane::RawMessage) -> Message {
    Message { raw: Some(raw), exports: 0, sink: slf.clone_ref(py), born: Born::now() }
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
        // SAFETY: the message keeps the sink, and goes back to it once.
        let raw = unsafe { slf.get().inner.try_raw() }.map_err(raise)?;
        Ok(raw.map(|raw| message(&slf, py, raw)))
    }

    #[pyo3(signature = (timeout=None))]
    fn consume(slf: Py<Self>, py: Python<'_>, timeout: Option<Time>) -> PyResult<Message> {
        let this = slf.get();
        let timeout = timeout.map(|t| t.get("timeout")).transpose()?;
        // SAFETY: as in `try_consume`.
        if let Some(raw) = unsafe { this.inner.try_raw() }.map_err(raise)? {
            return Ok(message(&slf, py, raw));
        }
        let end = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            let left = end.map_or(SLICE, |end| end.saturating_duration_since(Instant::now()).min(SLICE));
            // SAFETY: as in `try_consume`.
            match py.detach(|| unsafe { this.inner.consume_raw(Some(left)) }) {
                Ok(raw) => return Ok(message(&slf, py, raw)),
                Err(e) if e.code() == Code::Timeout && end.is_none_or(|end| Instant::now() < end) => {
                    py.check_signals()?
                }
                Err(e) => return Err(raise(e)),
            }
        }
    }

    /// The descriptor of a wait set of this sink alone, for an event loop.
    fn _fileno(&self) -> PyResult<i32> {
        self.born.check()?;
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
        self.born.check()?;
        let arm = || {
            let mut alone = self.alone.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            alone.as_mut().map_or(Ok(false), insane::WaitSet::arm)
        };
        py.detach(arm).map_err(raise)
    }

    /// What was copied of its messages by user code of this host.
    #[getter]
    fn copies(&self) -> PyResult<Copies> {
        self.born.check()?;
        let insane::CopyCounts { scattered, pieces, runtime, here } = self.inner.copies();
        Ok(Copies { scattered, pieces, runtime, here })
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
