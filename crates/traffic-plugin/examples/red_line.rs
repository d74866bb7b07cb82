//! A plug-in in Rust: a queue that keeps the delay below a line. A packet that stood for longer than `line_us` microseconds is
//! marked, or discarded if it is not capable of ECN; the last packet of a queue always leaves.
//!
//! Build it with `cargo build -p insane-traffic-plugin --example red_line`, and name it in a pipeline:
//!
//! ```toml
//! kind = { type = "plugin", name = "red-line", options = "line_us=5000" }
//! ```

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use insane_traffic_plugin::Kind;
use insane_traffic_plugin::abi::{ABI, Emit, Item, KEEP, MARK_OR_DISCARD, QueueCalls, SENT, Table};

/// One queue.
struct RedLine {
    line_ns: u64,
    sent: u64,
    worst_ns: u64,
}

/// Reads `line_us=NUMBER`.
fn line(options: &str) -> Result<u64, String> {
    let mut line_ns = 5_000_000;
    for pair in options.split_ascii_whitespace() {
        let value = pair.strip_prefix("line_us=").ok_or_else(|| format!("`{pair}` is not known; there is line_us"))?;
        let micros: u64 =
            value.parse().map_err(|_| format!("line_us is `{value}`; it must be a number of microseconds"))?;
        if !(1..=10_000_000).contains(&micros) {
            return Err(format!("line_us is {micros}; it must be 1 to 10000000"));
        }
        line_ns = micros * 1_000;
    }
    Ok(line_ns)
}

/// # Safety
/// `options` is a text with a NUL at its end.
unsafe fn read(options: *const c_char) -> Result<u64, String> {
    // SAFETY: the caller's promise.
    line(&unsafe { CStr::from_ptr(options) }.to_string_lossy())
}

unsafe extern "C" fn create(options: *const c_char, error: *mut c_char, capacity: usize) -> *mut c_void {
    // SAFETY: the host hands over a text.
    match unsafe { read(options) } {
        Ok(line_ns) => Box::into_raw(Box::new(RedLine { line_ns, sent: 0, worst_ns: 0 })).cast(),
        Err(text) => {
            let length = text.len().min(capacity.saturating_sub(1));
            // SAFETY: the host hands over `capacity` bytes that are zero, and the last one stays so.
            unsafe { ptr::copy_nonoverlapping(text.as_ptr(), error.cast(), length) };
            ptr::null_mut()
        }
    }
}

/// # Safety
/// `stage` is from [`create`], not destroyed, and nobody else uses it.
unsafe fn queue<'a>(stage: *mut c_void) -> &'a mut RedLine {
    // SAFETY: the caller's promise.
    unsafe { &mut *stage.cast() }
}

unsafe extern "C" fn modify(stage: *mut c_void, options: *const c_char) -> i32 {
    // SAFETY: the host's contract.
    let (queue, line) = unsafe { (queue(stage), read(options)) };
    let Ok(line_ns) = line else { return -1 };
    queue.line_ns = line_ns;
    0
}

unsafe extern "C" fn destroy(stage: *mut c_void) {
    // SAFETY: the host's contract: the last use.
    drop(unsafe { Box::from_raw(stage.cast::<RedLine>()) });
}

unsafe extern "C" fn stats(stage: *const c_void, emit: Emit, context: *mut c_void) {
    // SAFETY: the host's contract.
    let queue = unsafe { queue(stage.cast_mut()) };
    for (name, value) in [(c"line_ns", queue.line_ns), (c"sent", queue.sent), (c"worst_ns", queue.worst_ns)] {
        // SAFETY: the name has its NUL, and the context is the host's own.
        unsafe { emit(context, name.as_ptr(), value) };
    }
}

unsafe extern "C" fn arrives(_stage: *mut c_void, _now: u64, _item: *const Item) -> i32 {
    KEEP
}

unsafe extern "C" fn departs(stage: *mut c_void, now: u64, item: *const Item) -> i32 {
    // SAFETY: the host's contract.
    let (queue, item) = unsafe { (queue(stage), &*item) };
    if now.saturating_sub(item.arrived) <= queue.line_ns || item.queued_packets == 0 { KEEP } else { MARK_OR_DISCARD }
}

unsafe extern "C" fn left(stage: *mut c_void, now: u64, item: *const Item, why: u32) {
    // SAFETY: the host's contract.
    let (queue, item) = unsafe { (queue(stage), &*item) };
    if why == SENT {
        queue.sent += 1;
        queue.worst_ns = queue.worst_ns.max(now.saturating_sub(item.arrived));
    }
}

static CALLS: QueueCalls = QueueCalls { arrives: Some(arrives), departs: Some(departs), left: Some(left) };

static TABLE: Table = Table {
    abi: ABI,
    size: size_of::<Table>() as u32,
    kind: Kind::Queue as u32,
    calls_size: size_of::<QueueCalls>() as u32,
    name: c"red-line".as_ptr(),
    create: Some(create),
    modify: Some(modify),
    destroy: Some(destroy),
    stats: Some(stats),
    calls: (&raw const CALLS).cast(),
};

/// The symbol that the host looks for.
#[unsafe(no_mangle)]
pub extern "C" fn insane_traffic_stage(n: u32) -> *const Table {
    if n == 0 { &raw const TABLE } else { ptr::null() }
}
