//! Buffers: borrowed, emitted, consumed, released.

use crate::handles::{DataCallback, SinkHandle};
use crate::{call, get, invalid, own, timeout};
use client::{Code, Error, RawBuffer, RawMessage, Source, Token};
use std::ffi::{c_int, c_long, c_void};
use std::mem::MaybeUninit;
use std::ptr::from_ref;

const WORDS: usize = 8;
const EMPTY: u64 = 0;
const LENT: u64 = 0x4c45_4e54;
const CONSUMED: u64 = 0x434f_4e53;

/// `insane_buffer_t`: the last word of `opaque` says what the others hold, the one before it from which handle it is.
#[derive(Debug)]
#[repr(C)]
pub struct Buffer {
    data: *mut c_void,
    length: usize,
    capacity: usize,
    sequence: u64,
    channel: u64,
    opaque: [MaybeUninit<u64>; WORDS - 2],
    owner: *const c_void,
    kind: u64,
}

const _: () = {
    assert!(size_of::<RawBuffer>() <= (WORDS - 2) * 8 && align_of::<RawBuffer>() <= 8);
    assert!(size_of::<RawMessage>() <= (WORDS - 2) * 8 && align_of::<RawMessage>() <= 8);
};

impl Buffer {
    fn place<T>(&mut self) -> *mut T {
        self.opaque.as_mut_ptr().cast()
    }

    /// The message inside, if it is one and from this handle.
    fn message<H>(&mut self, owner: &H) -> Result<&RawMessage, Error> {
        if self.kind != CONSUMED {
            return Err(invalid("the buffer holds no message: it was given back already, or is from elsewhere"));
        }
        if self.owner != from_ref(owner).cast() {
            return Err(invalid("the buffer is from another sink"));
        }
        // SAFETY: `kind` says that a message was written here, and it stays until it is taken.
        Ok(unsafe { &*self.place::<RawMessage>() })
    }

    /// Takes what is inside out, if it is of this kind and from this handle; else nothing changes.
    fn take<T, H>(&mut self, kind: u64, owner: &H) -> Result<T, Error> {
        if self.kind != kind {
            return Err(invalid(
                "the buffer holds nothing of this kind: it was given back already, or is from elsewhere",
            ));
        }
        if self.owner != from_ref(owner).cast() {
            return Err(invalid("the buffer is from another source or sink, and goes back there"));
        }
        self.kind = EMPTY;
        self.data = std::ptr::null_mut();
        // SAFETY: `kind` says that a value of this type was written here, and it is taken once.
        Ok(unsafe { self.place::<T>().read() })
    }
}

/// # Safety
/// `buffer` is NULL or may be written.
unsafe fn buffer<'a>(buffer: *mut Buffer) -> Result<&'a mut Buffer, Error> {
    // SAFETY: the caller's promise.
    unsafe { buffer.as_mut() }.ok_or_else(|| invalid("buffer is NULL"))
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_get_buffer(source: *const Source, size: usize, flags: c_int, to: *mut Buffer) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let source = unsafe { get(source, "source is NULL") }?;
        // SAFETY: the header's contract.
        let to = unsafe { buffer(to) }?;
        if flags != 0 {
            return Err(invalid("flags is 0"));
        }
        // SAFETY: the header asks for what `raw_buffer` does.
        let raw = unsafe { source.raw_buffer(size) }?;
        to.capacity = raw.capacity();
        to.length = size;
        (to.sequence, to.channel) = (0, source.channel().0);
        let place = to.place::<RawBuffer>();
        // SAFETY: the place is large enough (asserted above) and aligned.
        unsafe { place.write(raw) };
        (to.owner, to.kind) = (from_ref(source).cast(), LENT);
        // SAFETY: it was just written.
        to.data = unsafe { &mut *place }.as_mut_ptr().cast();
        Ok(0)
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_emit_data(source: *const Source, from: *mut Buffer) -> i64 {
    call(|| {
        // SAFETY: the header's contract.
        let source = unsafe { get(source, "source is NULL") }?;
        // SAFETY: the header's contract.
        let from = unsafe { buffer(from) }?;
        let raw = from.take::<RawBuffer, _>(LENT, source)?;
        let token = source.emit_raw(raw, from.length, 0)?;
        Ok(i64::try_from(token.0).unwrap_or(i64::MAX))
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_emit_more(source: *const Source, from: *mut Buffer) -> i64 {
    call(|| {
        // SAFETY: the header's contract.
        let source = unsafe { get(source, "source is NULL") }?;
        // SAFETY: the header's contract.
        let from = unsafe { buffer(from) }?;
        let raw = from.take::<RawBuffer, _>(LENT, source)?;
        let token = source.emit_raw_more(raw, from.length)?;
        Ok(i64::try_from(token.0).unwrap_or(i64::MAX))
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_flush(source: *const Source) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let source = unsafe { get(source, "source is NULL") }?;
        source.flush()?;
        Ok(0)
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_discard_buffer(source: *const Source, from: *mut Buffer) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let source = unsafe { get(source, "source is NULL") }?;
        // SAFETY: the header's contract.
        let raw = unsafe { buffer(from) }?.take::<RawBuffer, _>(LENT, source)?;
        source.discard_raw(raw);
        Ok(0)
    })
}

/// `insane_outcome_t`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Outcome {
    intended: u32,
    pending: u32,
    delivered: u32,
    dropped: u32,
    expired: u32,
    unconfirmed: u32,
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_check_emit_outcome(source: *const Source, token: i64, to: *mut Outcome) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let source = unsafe { get(source, "source is NULL") }?;
        let token = u64::try_from(token).map_err(|_| Error::from(Code::UnknownToken))?;
        let o = source.outcome(Token(token))?;
        if to.is_null() {
            return Err(invalid("outcome is NULL"));
        }
        let outcome = Outcome {
            intended: o.intended,
            pending: o.pending,
            delivered: o.delivered,
            dropped: o.dropped,
            expired: o.expired,
            unconfirmed: o.unconfirmed,
        };
        // SAFETY: the header's contract.
        unsafe { to.write(outcome) };
        Ok(0)
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_data_available(sink: *const SinkHandle, flags: c_int) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let sink = unsafe { get(sink, "sink is NULL") }?;
        let _ = flags;
        Ok(c_int::from(sink.sink().has_message()?))
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_consume_data(
    sink: *const SinkHandle,
    flags: c_int,
    timeout_ms: u64,
    to: *mut Buffer,
) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let handle = unsafe { get(sink, "sink is NULL") }?;
        // SAFETY: the header's contract.
        let to = unsafe { buffer(to) }?;
        let SinkHandle::Plain(sink) = handle else { return Err(invalid("the sink's messages go to its callback")) };
        let message = match flags {
            // SAFETY: the header asks for what `try_raw` does.
            0 => unsafe { sink.consume_raw(timeout(timeout_ms)) }?,
            // SAFETY: as above.
            1 => unsafe { sink.try_raw() }?.ok_or_else(|| Error::from(Code::WouldBlock))?,
            _ => return Err(invalid("flags is INSANE_BLOCKING or INSANE_NONBLOCKING")),
        };
        to.length = message.len();
        to.capacity = message.len();
        (to.sequence, to.channel) = (message.sequence(), message.channel());
        let place = to.place::<RawMessage>();
        // SAFETY: the place is large enough (asserted above) and aligned.
        unsafe { place.write(message) };
        (to.owner, to.kind) = (from_ref(handle).cast(), CONSUMED);
        // SAFETY: it was just written.
        let message = unsafe { &*place };
        // Where it lies in several places, its address would cost a copy.
        let several = message.pieces().len() > 1;
        to.data = if several { std::ptr::null_mut() } else { message.as_ptr().cast_mut().cast() };
        Ok(0)
    })
}

/// `insane_piece_t`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Piece {
    data: *const c_void,
    length: usize,
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_pieces(
    sink: *const SinkHandle,
    from: *mut Buffer,
    to: *mut Piece,
    count: usize,
) -> c_long {
    call(|| {
        // SAFETY: the header's contract.
        let sink = unsafe { own(sink, "sink is NULL") }?;
        // SAFETY: the header's contract.
        let message = unsafe { buffer(from) }?.message(sink)?;
        if to.is_null() && count > 0 {
            return Err(invalid("pieces is NULL"));
        }
        for (at, piece) in message.pieces().take(count).enumerate() {
            // SAFETY: the header asks for room for `count`.
            let place = unsafe { to.add(at) };
            // SAFETY: as above.
            unsafe { place.write(Piece { data: piece.as_ptr().cast(), length: piece.len() }) };
        }
        Ok(c_long::try_from(message.pieces().len()).unwrap_or(c_long::MAX))
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_contiguous(sink: *const SinkHandle, from: *mut Buffer) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let sink = unsafe { own(sink, "sink is NULL") }?;
        // SAFETY: the header's contract.
        let from = unsafe { buffer(from) }?;
        from.data = from.message(sink)?.as_ptr().cast_mut().cast();
        Ok(0)
    })
}

/// `insane_copies_t`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Copies {
    scattered: u64,
    pieces: u64,
    runtime: u64,
    here: u64,
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_check_copies(sink: *const SinkHandle, to: *mut Copies) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let sink = unsafe { own(sink, "sink is NULL") }?;
        if to.is_null() {
            return Err(invalid("copies is NULL"));
        }
        let c = sink.sink().copies();
        let copies = Copies { scattered: c.scattered, pieces: c.pieces, runtime: c.runtime, here: c.here };
        // SAFETY: the header's contract.
        unsafe { to.write(copies) };
        Ok(0)
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_consume_each(
    sink: *const SinkHandle,
    flags: c_int,
    timeout_ms: u64,
    most: usize,
    f: DataCallback,
    user: *mut c_void,
) -> c_long {
    call(|| {
        // SAFETY: the header's contract.
        let sink = unsafe { get(sink, "sink is NULL") }?;
        let SinkHandle::Plain(sink) = sink else { return Err(invalid("the sink's messages go to its callback")) };
        let Some(f) = f else { return Err(invalid("f is NULL")) };
        if most == 0 {
            return Err(invalid("most is 0: no message could be taken"));
        }
        // SAFETY: the header's contract.
        let each = |m: &RawMessage| unsafe { f(m.as_ptr().cast(), m.len(), m.sequence(), user) };
        let count = match flags {
            0 => sink.consume_each(most, timeout(timeout_ms), each)?,
            1 => match sink.try_each(most, each)? {
                0 => return Err(Code::WouldBlock.into()),
                count => count,
            },
            _ => return Err(invalid("flags is INSANE_BLOCKING or INSANE_NONBLOCKING")),
        };
        Ok(c_long::try_from(count).unwrap_or(c_long::MAX))
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_release_buffer(sink: *const SinkHandle, from: *mut Buffer) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let sink = unsafe { get(sink, "sink is NULL") }?;
        // SAFETY: the header's contract.
        let message = unsafe { buffer(from) }?.take::<RawMessage, _>(CONSUMED, sink)?;
        sink.sink().release(message);
        Ok(0)
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_wait_any(
    sinks: *const *const SinkHandle,
    count: usize,
    start: usize,
    timeout_ms: u64,
) -> c_long {
    call(|| {
        if sinks.is_null() || count == 0 {
            return Err(invalid("no sinks to wait for"));
        }
        // SAFETY: the header asks for `count` handles.
        let handles = unsafe { std::slice::from_raw_parts(sinks, count) };
        let sinks: Result<Vec<_>, Error> = handles
            .iter()
            // SAFETY: the header's contract.
            .map(|h| unsafe { get(*h, "a sink is NULL") }.map(SinkHandle::sink))
            .collect();
        let timeout = timeout(timeout_ms);
        let index = client::wait_any(&sinks?, start, timeout)?;
        Ok(c_long::try_from(index).unwrap_or(c_long::MAX))
    })
}
