//! Sessions, streams, sources and sinks as handles.

use crate::{call, close, get, invalid, own, put, text};
use client::{Channel, Error, Event, Qos, Session, Sink, SinkOptions, Source, SourceOptions, Stream, Wait};
use std::ffi::{c_char, c_int, c_long, c_void};
use std::time::Duration;

/// `insane_options_t`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Options {
    acceleration: c_int,
    resources: c_int,
    timing: c_int,
    reliability: c_int,
    strict: c_int,
}

/// `insane_data_cb`
pub type DataCallback = Option<unsafe extern "C" fn(*const c_void, usize, u64, *mut c_void)>;

/// `insane_sink_t`: a sink for `insane_consume_data`, or one whose messages go to a callback.
#[derive(Debug)]
pub enum SinkHandle {
    /// To be consumed.
    Plain(Sink),
    /// To be called.
    Called(client::Callback),
}

impl SinkHandle {
    pub(crate) fn sink(&self) -> &Sink {
        match self {
            Self::Plain(sink) => sink,
            Self::Called(callback) => callback.sink(),
        }
    }
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_init_session(
    app: *const c_char,
    domain: *const c_char,
    socket: *const c_char,
    session: *mut *mut Session,
) -> c_int {
    call(|| {
        if session.is_null() {
            return Err(invalid("the place for the session is NULL"));
        }
        // SAFETY: the header asks for strings or NULL.
        let app = unsafe { text(app, "app") }?.ok_or_else(|| invalid("app is NULL"))?;
        let mut builder = Session::builder(app);
        // SAFETY: as above.
        if let Some(domain) = unsafe { text(domain, "domain") }? {
            builder = builder.domain(domain);
        }
        // SAFETY: as above.
        if let Some(socket) = unsafe { text(socket, "socket") }? {
            builder = builder.socket(socket);
        }
        // SAFETY: it was checked.
        unsafe { put(session, builder.open()?) }
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_close_session(session: *mut Session) -> c_int {
    // SAFETY: the header's contract.
    unsafe { close(session) }
}

fn qos(options: &Options) -> Result<Qos, Error> {
    let qos = Qos {
        acceleration: options.acceleration,
        resources: options.resources,
        timing: options.timing,
        reliability: options.reliability,
    };
    if qos.is_known() { Ok(qos) } else { Err(invalid("an option is neither 0 nor 1")) }
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_create_stream(
    session: *const Session,
    name: *const c_char,
    options: *const Options,
    stream: *mut *mut Stream,
) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let session = unsafe { get(session, "session is NULL") }?;
        // SAFETY: NULL, or the header's contract.
        let options = unsafe { options.as_ref() };
        let (qos, strict) =
            options.map_or(Ok((Qos::default(), false)), |o| Ok::<_, Error>((qos(o)?, o.strict != 0)))?;
        // SAFETY: the header's contract.
        let name = unsafe { text(name, "name") }?.unwrap_or("");
        let opened = session.stream_with(name, qos, strict)?;
        // SAFETY: the header's contract.
        unsafe { put(stream, opened) }
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_close_stream(stream: *mut Stream) -> c_int {
    // SAFETY: the header's contract.
    unsafe { close(stream) }
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_effective_qos(stream: *const Stream, to: *mut c_char, size: usize) -> c_long {
    call(|| {
        // SAFETY: the header's contract.
        let stream = unsafe { own(stream, "stream is NULL") }?;
        let lines: Vec<String> = stream
            .effective_qos()
            .iter()
            .map(|e| {
                let qos = e.qos.unwrap_or_default().canonical();
                format!("{}: {}/{} {qos} {}", e.peer, e.datapath, e.transport, e.reasons.join("; "))
                    .trim_end()
                    .to_owned()
            })
            .collect();
        // SAFETY: the header asks for `size` bytes.
        unsafe { write_text(&lines.join("\n"), to, size) }
    })
}

/// Writes a text and its NUL into `size` bytes, shortened if need be; returns how many the whole takes.
///
/// # Safety
/// `to` has `size` bytes, or `size` is 0.
unsafe fn write_text(all: &str, to: *mut c_char, size: usize) -> Result<c_long, Error> {
    if size > 0 && to.is_null() {
        return Err(invalid("text is NULL"));
    }
    if size > 0 {
        let n = all.len().min(size - 1);
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(all.as_ptr().cast(), to, n) };
        // SAFETY: as above; `n` is below `size`.
        unsafe { to.add(n).write(0) };
    }
    Ok(c_long::try_from(all.len() + 1).unwrap_or(c_long::MAX))
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_next_event(session: *const Session, to: *mut c_char, size: usize) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let session = unsafe { own(session, "session is NULL") }?;
        if size > 0 && to.is_null() {
            return Err(invalid("text is NULL"));
        }
        let Some(event) = session.next_event() else { return Ok(0) };
        // SAFETY: the header asks for `size` bytes.
        unsafe { write_text(&event.to_string(), to, size) }?;
        Ok(c_int::try_from(event.number()).unwrap_or(c_int::MAX))
    })
}

/// `insane_event_facts_t`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct EventFacts {
    moved_us: i64,
    stream: [c_char; 256],
    peer: [c_char; 256],
}

impl EventFacts {
    fn of(event: &Event) -> Self {
        let words = |text: Option<&str>| {
            let mut to = [0; 256];
            // The last one is the NUL.
            to.iter_mut().take(255).zip(text.unwrap_or_default().bytes()).for_each(|(to, byte)| *to = byte as c_char);
            to
        };
        let moved_us = event.moved().map(|moved| i64::try_from(moved.as_micros()).unwrap_or(i64::MAX));
        Self { moved_us: moved_us.unwrap_or(-1), stream: words(event.stream()), peer: words(event.peer()) }
    }
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_next_event_facts(
    session: *const Session,
    facts: *mut EventFacts,
    facts_size: usize,
    to: *mut c_char,
    size: usize,
) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let session = unsafe { own(session, "session is NULL") }?;
        if facts.is_null() {
            return Err(invalid("facts is NULL"));
        }
        if size > 0 && to.is_null() {
            return Err(invalid("text is NULL"));
        }
        let Some(event) = session.next_event() else { return Ok(0) };
        let (are, bytes) = (EventFacts::of(&event), facts_size.min(size_of::<EventFacts>()));
        // SAFETY: the caller has `facts_size` bytes there, and no more than the facts have are read.
        unsafe { std::ptr::copy_nonoverlapping((&raw const are).cast::<u8>(), facts.cast(), bytes) };
        // SAFETY: the header asks for `size` bytes.
        unsafe { write_text(&event.to_string(), to, size) }?;
        Ok(c_int::try_from(event.number()).unwrap_or(c_int::MAX))
    })
}

unsafe fn source(stream: *const Stream, channel: Channel<'_>, to: *mut *mut Source) -> Result<c_int, Error> {
    // SAFETY: the header's contract.
    let stream = unsafe { get(stream, "stream is NULL") }?;
    if to.is_null() {
        return Err(invalid("the place for the source is NULL"));
    }
    let source = stream.source_with(channel, SourceOptions::default())?;
    // SAFETY: it was checked.
    unsafe { put(to, source) }
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_create_source(stream: *const Stream, channel: u64, to: *mut *mut Source) -> c_int {
    // SAFETY: the header's contract.
    call(|| unsafe { source(stream, Channel::Id(channel), to) })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_create_source_named(
    stream: *const Stream,
    channel: *const c_char,
    to: *mut *mut Source,
) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let name = unsafe { text(channel, "channel") }?.ok_or_else(|| invalid("channel is NULL"))?;
        // SAFETY: the header's contract.
        unsafe { source(stream, Channel::Name(name), to) }
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_close_source(source: *mut Source) -> c_int {
    // SAFETY: the header's contract.
    unsafe { close(source) }
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_wait_sinks(source: *const Source, count: usize, timeout_ms: u64) -> c_long {
    call(|| {
        // SAFETY: the header's contract.
        let source = unsafe { own(source, "source is NULL") }?;
        let found = source.wait_for_sinks(count, Duration::from_millis(timeout_ms));
        Ok(c_long::try_from(found).unwrap_or(c_long::MAX))
    })
}

struct User(*mut c_void);
// SAFETY: the header says that the callback runs in a thread of the library; what `user` points to is the caller's care.
unsafe impl Send for User {}

/// `INSANE_SCATTERED`
const SCATTERED: c_int = 0x100;

unsafe fn sink(
    stream: *const Stream,
    channel: Channel<'_>,
    wait: c_int,
    callback: DataCallback,
    user: *mut c_void,
    to: *mut *mut SinkHandle,
) -> Result<c_int, Error> {
    // SAFETY: the header's contract.
    let stream = unsafe { get(stream, "stream is NULL") }?;
    if to.is_null() {
        return Err(invalid("the place for the sink is NULL"));
    }
    let scattered = wait & SCATTERED != 0;
    let wait = match wait & !SCATTERED {
        0 => Wait::Adaptive,
        1 => Wait::Spin,
        2 => Wait::Sleep,
        _ => return Err(invalid("wait is none of INSANE_WAIT_…, with or without INSANE_SCATTERED")),
    };
    let sink = stream.sink_with(channel, SinkOptions { wait, scattered, ..SinkOptions::default() })?;
    let handle = match callback {
        None => SinkHandle::Plain(sink),
        Some(callback) => {
            let user = User(user);
            SinkHandle::Called(sink.on_message(move |m| {
                let user: &User = &user;
                // SAFETY: the header's contract for the callback.
                unsafe { callback(m.as_ptr().cast(), m.len(), m.sequence(), user.0) };
            })?)
        }
    };
    // SAFETY: it was checked.
    unsafe { put(to, handle) }
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_create_sink(
    stream: *const Stream,
    channel: u64,
    wait: c_int,
    callback: DataCallback,
    user: *mut c_void,
    to: *mut *mut SinkHandle,
) -> c_int {
    // SAFETY: the header's contract.
    call(|| unsafe { sink(stream, Channel::Id(channel), wait, callback, user, to) })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_create_sink_named(
    stream: *const Stream,
    channel: *const c_char,
    wait: c_int,
    callback: DataCallback,
    user: *mut c_void,
    to: *mut *mut SinkHandle,
) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let name = unsafe { text(channel, "channel") }?.ok_or_else(|| invalid("channel is NULL"))?;
        // SAFETY: the header's contract.
        unsafe { sink(stream, Channel::Name(name), wait, callback, user, to) }
    })
}

/// See `insane.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_close_sink(sink: *mut SinkHandle) -> c_int {
    // SAFETY: the header's contract.
    unsafe { close(sink) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::EffectiveQos;

    #[test]
    fn the_pause_of_a_move_and_its_host_are_among_the_facts_of_an_event() {
        let read = |from: &[c_char; 256]| -> String {
            from.iter().take_while(|c| **c != 0).map(|c| char::from(*c as u8)).collect()
        };
        let effective = EffectiveQos { peer: "far".into(), ..EffectiveQos::default() };
        let event =
            |stream: &str, moved| Event::QosChanged { stream: stream.into(), effective: effective.clone(), moved };
        let facts = EventFacts::of(&event("fast", Some(Duration::from_micros(1500))));
        assert_eq!((facts.moved_us, read(&facts.stream), read(&facts.peer)), (1500, "fast".into(), "far".into()));
        let facts = EventFacts::of(&event(&"x".repeat(300), None));
        assert_eq!((facts.moved_us, read(&facts.stream)), (-1, "x".repeat(255)));
        let facts = EventFacts::of(&Event::RuntimeLost);
        assert_eq!((facts.moved_us, read(&facts.stream), read(&facts.peer)), (-1, String::new(), String::new()));
    }
}
