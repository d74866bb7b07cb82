//! Messages and buffers: memory borrowed from the library, seen through Python's buffer protocol without a copy.

use crate::invalid;
use crate::session::{Sink, Source};
use crate::values::Born;
use insane::{RawBuffer, RawMessage};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::c_int;

/// Fills Python's view of `len` bytes at `at`.
///
/// # Safety
/// `view` is the place that Python gave, and the bytes live as long as `owner` has exports.
unsafe fn export(
    owner: *mut ffi::PyObject,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    at: *mut u8,
    len: usize,
    readonly: bool,
) -> PyResult<()> {
    let len = ffi::Py_ssize_t::try_from(len).unwrap_or(ffi::Py_ssize_t::MAX);
    // SAFETY: the caller's promise; Python takes a reference to the owner.
    let rc = unsafe { ffi::PyBuffer_FillInfo(view, owner, at.cast(), len, c_int::from(readonly), flags) };
    if rc == 0 { Ok(()) } else { Err(Python::attach(PyErr::fetch)) }
}

/// A message's memory, to be written and emitted.
#[pyclass(module = "insane")]
#[derive(Debug)]
pub(crate) struct Buffer {
    /// Only ever reached through `&mut`, so nothing is locked.
    pub(crate) raw: std::sync::Mutex<Option<RawBuffer>>,
    pub(crate) len: usize,
    pub(crate) exports: usize,
    pub(crate) source: Py<Source>,
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.len
    }

    /// Gives the memory back without emitting it.
    fn discard(&mut self) -> PyResult<()> {
        self.check()?;
        if let Some(raw) = self.take() {
            self.source.get().inner.discard_raw(raw);
        }
        Ok(())
    }

    unsafe fn __getbuffer__(mut slf: PyRefMut<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let len = slf.len;
        slf.source.get().born.check()?;
        let Some(raw) = slf.held().as_mut() else {
            return Err(PyBufferError::new_err("the buffer was emitted or discarded"));
        };
        let at = raw.as_mut_ptr();
        // SAFETY: the memory is this buffer's until it is emitted, which is refused while there are exports.
        unsafe { export(slf.as_ptr(), view, flags, at, len, false) }?;
        slf.exports += 1;
        Ok(())
    }

    unsafe fn __releasebuffer__(mut slf: PyRefMut<'_, Self>, _view: *mut ffi::Py_buffer) {
        slf.exports -= 1;
    }
}

impl Buffer {
    fn held(&mut self) -> &mut Option<RawBuffer> {
        self.raw.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn take(&mut self) -> Option<RawBuffer> {
        self.held().take()
    }

    pub(crate) fn check(&self) -> PyResult<()> {
        if self.exports > 0 {
            return Err(PyBufferError::new_err("a view of the buffer is still in use: release it first"));
        }
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(raw) = self.take() {
            self.source.get().inner.discard_raw(raw);
        }
    }
}

/// A consumed message, borrowed until it is released.
#[pyclass(module = "insane")]
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) raw: Option<RawMessage>,
    pub(crate) exports: usize,
    pub(crate) sink: Py<Sink>,
    pub(crate) born: Born,
}

impl Message {
    fn get(&self) -> PyResult<&RawMessage> {
        // A child does not have the memory.
        self.born.check()?;
        self.raw.as_ref().ok_or_else(|| invalid("the message was released"))
    }
}

#[pymethods]
impl Message {
    fn __len__(&self) -> PyResult<usize> {
        Ok(self.get()?.len())
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let raw = self.get()?;
        PyBytes::new_with(py, raw.len(), |to| {
            raw.read(to);
            Ok(())
        })
    }

    #[getter]
    fn sequence(&self) -> PyResult<u64> {
        Ok(self.get()?.sequence())
    }

    #[getter]
    fn channel(&self) -> PyResult<u64> {
        Ok(self.get()?.channel())
    }

    #[getter]
    fn source(&self) -> PyResult<String> {
        Ok(self.get()?.source().to_string())
    }

    #[getter]
    fn timestamp_ns(&self) -> PyResult<Option<u64>> {
        Ok(self.get()?.timestamp_ns())
    }

    #[getter]
    fn priority(&self) -> PyResult<u8> {
        Ok(self.get()?.priority())
    }

    /// How often user code of this host has copied the payload up to now.
    #[getter]
    fn copies(&self) -> PyResult<u32> {
        Ok(self.get()?.copies())
    }

    /// The pieces in which the payload lies.
    fn pieces(slf: Py<Self>, py: Python<'_>) -> PyResult<Vec<Piece>> {
        let count = slf.try_borrow(py)?.get()?.pieces().len();
        Ok((0..count).map(|at| Piece { message: slf.clone_ref(py), at }).collect())
    }

    /// Gives the memory back.
    fn release(&mut self) -> PyResult<()> {
        if self.exports > 0 {
            return Err(PyBufferError::new_err("a view of the message is still in use: release it first"));
        }
        if let Some(raw) = self.raw.take() {
            self.sink.get().inner.release(raw);
        }
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&mut self, _args: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.release()
    }

    unsafe fn __getbuffer__(mut slf: PyRefMut<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let raw = slf.get()?;
        let (at, len) = (raw.as_ptr().cast_mut(), raw.len());
        // SAFETY: the memory is readable until the message is released, which is refused while there are exports; a small
        // message lies in this object, which Python does not move.
        unsafe { export(slf.as_ptr(), view, flags, at, len, true) }?;
        slf.exports += 1;
        Ok(())
    }

    unsafe fn __releasebuffer__(mut slf: PyRefMut<'_, Self>, _view: *mut ffi::Py_buffer) {
        slf.exports -= 1;
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            self.sink.get().inner.release(raw);
        }
    }
}

/// Bytes of a message that lie in one place.
#[pyclass(module = "insane", frozen)]
#[derive(Debug)]
pub(crate) struct Piece {
    message: Py<Message>,
    at: usize,
}

impl Piece {
    /// Its address and its length.
    fn place(&self, message: &Message) -> PyResult<(*mut u8, usize)> {
        let piece = message.get()?.pieces().nth(self.at).ok_or_else(|| invalid("the message was released"))?;
        Ok((piece.as_ptr().cast_mut(), piece.len()))
    }
}

#[pymethods]
impl Piece {
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let message = self.message.try_borrow(py)?;
        Ok(self.place(&message)?.1)
    }

    unsafe fn __getbuffer__(slf: PyRef<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let mut message = slf.message.try_borrow_mut(slf.py())?;
        let (at, len) = slf.place(&message)?;
        // SAFETY: the memory is readable until the message is released, which is refused while there are exports; the piece keeps
        // the message.
        unsafe { export(slf.as_ptr(), view, flags, at, len, true) }?;
        message.exports += 1;
        Ok(())
    }

    unsafe fn __releasebuffer__(slf: PyRef<'_, Self>, _view: *mut ffi::Py_buffer) {
        slf.message.borrow_mut(slf.py()).exports -= 1;
    }
}
