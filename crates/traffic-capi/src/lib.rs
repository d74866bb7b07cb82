//! The C interface of the traffic pipeline: `include/insane_tc.h` says what each call does. Every call checks its pointers for
//! NULL, catches panics, and keeps the text of the last failure for its thread.
//!
//! Purpose: to let a RAN stack in C embed the pipeline, one per bearer. Non-purpose: E2, threads, clocks. Layer: below
//! `insane-traffic`. Main type: [`Tc`], the handle.
#![allow(clippy::missing_safety_doc, reason = "the header is the contract of these functions")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

use insane_traffic::spec::Change;
use insane_traffic::{Dequeued, Packet, Pipeline, PipelineSpec, RlcStatus, Time};

const INVALID: i64 = -1;
const NO_BEARER: i64 = -2;
const EXISTS: i64 = -3;
const REFUSED: i64 = -4;
const DROPPED: i64 = -5;
const TOO_SMALL: i64 = -6;
const BUG: i64 = -7;

/// The largest packet that is taken, in bytes.
const MAX_PACKET: usize = 65_535;

struct Failure(i64, String);

fn failure<T>(code: i64, text: impl Into<String>) -> Result<T, Failure> {
    Err(Failure(code, text.into()))
}

thread_local!(static LAST: RefCell<CString> = RefCell::new(CString::default()));

fn note(text: &str) {
    // A NUL inside a text would end it early.
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    LAST.with(|last| *last.borrow_mut() = text);
}

/// Runs a call; its failure becomes a number and a text, and a panic does not get out.
fn call(f: impl FnOnce() -> Result<i64, Failure>) -> i64 {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)) {
        Ok(Ok(value)) => {
            note("");
            value
        }
        Ok(Err(Failure(code, text))) => {
            note(&text);
            code
        }
        Err(_) => {
            note("the library has a bug: a panic was caught");
            BUG
        }
    }
}

fn small(value: i64) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// A packet with the QoS flow identifier that came beside it.
struct Pdu {
    bytes: Box<[u8]>,
    qfi: Option<u8>,
}

impl Packet for Pdu {
    fn size(&self) -> u32 {
        u32::try_from(self.bytes.len()).unwrap_or(u32::MAX)
    }
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
    fn qfi(&self) -> Option<u8> {
        self.qfi
    }
}

struct Bearer {
    pipeline: Pipeline<Pdu>,
    /// A packet that left the pipeline and did not fit the caller's memory.
    held: Option<Pdu>,
}

/// The handle: a set of bearers.
#[expect(missing_debug_implementations, reason = "opaque to its users, which are in C")]
pub struct Tc {
    seeds: insane_traffic::Rng,
    bearers: BTreeMap<(u16, u8), Bearer>,
}

/// What can be said of a bearer in numbers; `insane_tc_counts` of the header.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets handed in.
    pub packets_in: u64,
    /// Bytes handed in.
    pub bytes_in: u64,
    /// Packets taken out.
    pub packets_out: u64,
    /// Bytes taken out.
    pub bytes_out: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Packets queued.
    pub queued_packets: u64,
    /// Bytes queued.
    pub queued_bytes: u64,
}

/// # Safety
/// `tc` is NULL or from [`insane_tc_open`], not closed, and no other thread uses it.
unsafe fn bearer<'a>(tc: *mut Tc, rnti: u16, drb: u8) -> Result<&'a mut Bearer, Failure> {
    // SAFETY: the caller's promise.
    let Some(tc) = (unsafe { tc.as_mut() }) else { return failure(INVALID, "the handle is NULL") };
    let missing = || Failure(NO_BEARER, format!("there is no bearer {drb} of RNTI {rnti:#06x}"));
    tc.bearers.get_mut(&(rnti, drb)).ok_or_else(missing)
}

/// # Safety
/// `text` is NULL or points to a string with a NUL.
unsafe fn utf8<'a>(text: *const c_char) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).or_else(|_| failure(INVALID, "the text is not UTF-8"))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn insane_tc_open(seed: u64) -> *mut Tc {
    note("");
    Box::into_raw(Box::new(Tc { seeds: insane_traffic::Rng::new(seed), bearers: BTreeMap::new() }))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_tc_close(tc: *mut Tc) {
    call(|| {
        if !tc.is_null() {
            // SAFETY: the handle came from `insane_tc_open` and is not used again, which is the caller's promise.
            drop(unsafe { Box::from_raw(tc) });
        }
        Ok(0)
    });
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn insane_tc_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_tc_add(tc: *mut Tc, rnti: u16, drb: u8, pipeline: *const c_char) -> c_int {
    small(call(|| {
        // SAFETY: the caller's promises about the text and the handle.
        let (text, tc) = unsafe { (utf8(pipeline)?, tc.as_mut()) };
        let Some(tc) = tc else { return failure(INVALID, "the handle is NULL") };
        if tc.bearers.contains_key(&(rnti, drb)) {
            return failure(EXISTS, format!("bearer {drb} of RNTI {rnti:#06x} exists"));
        }
        let spec = match text.map(|text| (text, text.strip_prefix("preset:"))) {
            None => Ok(PipelineSpec::default()),
            Some((_, Some(name))) => PipelineSpec::preset(name),
            Some((text, None)) => PipelineSpec::from_toml(text),
        };
        let made = spec.and_then(|spec| Pipeline::new(&spec, tc.seeds.bits()));
        let pipeline = made.map_err(|e| Failure(INVALID, e.to_string()))?;
        tc.bearers.insert((rnti, drb), Bearer { pipeline, held: None });
        Ok(0)
    }))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_tc_remove(tc: *mut Tc, rnti: u16, drb: u8) -> i64 {
    call(|| {
        // SAFETY: the caller's promise about the handle.
        let queued = unsafe { bearer(tc, rnti, drb) }.map(|b| b.pipeline.packets() + u64::from(b.held.is_some()))?;
        // SAFETY: as above; it was not NULL.
        if let Some(tc) = unsafe { tc.as_mut() } {
            tc.bearers.remove(&(rnti, drb));
        }
        Ok(queued.cast_signed())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_tc_push(
    tc: *mut Tc,
    rnti: u16,
    drb: u8,
    now: u64,
    packet: *const c_void,
    size: usize,
    qfi: c_int,
) -> c_int {
    small(call(|| {
        // SAFETY: the caller's promise about the handle.
        let bearer = unsafe { bearer(tc, rnti, drb)? };
        if packet.is_null() || size == 0 || size > MAX_PACKET {
            return failure(INVALID, format!("a packet has 1 to {MAX_PACKET} bytes, and is not NULL"));
        }
        let qfi = match qfi {
            -1 => None,
            0..=63 => Some(qfi as u8),
            _ => {
                return failure(
                    INVALID,
                    format!("{qfi} is no QoS flow identifier: it must be 0 to 63, or -1 for none"),
                );
            }
        };
        // SAFETY: `packet` may be read for `size` bytes, which is the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(packet.cast::<u8>(), size) };
        let pdu = Pdu { bytes: bytes.into(), qfi };
        match bearer.pipeline.enqueue(Time::from_nanos(now), pdu, &mut ()) {
            Ok(_) => Ok(0),
            Err(reason) => failure(DROPPED, format!("the packet was dropped: {}", reason.name())),
        }
    }))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_tc_pull(
    tc: *mut Tc,
    rnti: u16,
    drb: u8,
    now: u64,
    buffer: *mut c_void,
    capacity: usize,
    wake: *mut u64,
) -> i64 {
    call(|| {
        // SAFETY: the caller's promise about the handle.
        let bearer = unsafe { bearer(tc, rnti, drb)? };
        let next = match bearer.held.take() {
            Some(held) => Dequeued::Packet(held, insane_traffic::QueueId::DEFAULT),
            None => bearer.pipeline.dequeue(Time::from_nanos(now), &mut ()),
        };
        let again = match next {
            Dequeued::Packet(pdu, _) => {
                let size = pdu.bytes.len();
                if buffer.is_null() || capacity < size {
                    bearer.held = Some(pdu);
                    return failure(TOO_SMALL, format!("the next packet has {size} bytes"));
                }
                // SAFETY: `buffer` may be written for `capacity` bytes, which is the caller's promise, and is apart from
                // memory of this library.
                unsafe { buffer.cast::<u8>().copy_from_nonoverlapping(pdu.bytes.as_ptr(), size) };
                return Ok(size as i64);
            }
            Dequeued::Wait(until) => until.nanos(),
            Dequeued::Empty => u64::MAX,
        };
        // SAFETY: `wake` is NULL or may be written, which is the caller's promise.
        if let Some(wake) = unsafe { wake.as_mut() } {
            *wake = again;
        }
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_tc_rlc_status(
    tc: *mut Tc,
    rnti: u16,
    drb: u8,
    now: u64,
    bytes: u64,
    packets: u64,
) -> c_int {
    small(call(|| {
        // SAFETY: the caller's promise about the handle.
        let bearer = unsafe { bearer(tc, rnti, drb)? };
        let status = RlcStatus { bytes, packets: Some(packets), ..RlcStatus::default() };
        bearer.pipeline.report(Time::from_nanos(now), &status);
        Ok(0)
    }))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_tc_change(tc: *mut Tc, rnti: u16, drb: u8, now: u64, changes: *const c_char) -> i64 {
    call(|| {
        // SAFETY: the caller's promises about the handle and the text.
        let (bearer, text) = unsafe { (bearer(tc, rnti, drb)?, utf8(changes)?) };
        let Some(text) = text else { return failure(INVALID, "the changes are NULL") };
        let changes: Vec<Change> = serde_json::from_str(text).map_err(|e| Failure(INVALID, e.to_string()))?;
        let done = bearer.pipeline.apply(Time::from_nanos(now), &changes, &mut ());
        done.map(u64::cast_signed).map_err(|e| Failure(REFUSED, e.to_string()))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_tc_count(tc: *mut Tc, rnti: u16, drb: u8, counts: *mut Counts) -> c_int {
    small(call(|| {
        // SAFETY: the caller's promise about the handle.
        let bearer = unsafe { bearer(tc, rnti, drb)? };
        // SAFETY: `counts` is NULL or may be written, which is the caller's promise.
        let Some(counts) = (unsafe { counts.as_mut() }) else { return failure(INVALID, "counts is NULL") };
        let stats = bearer.pipeline.stats();
        let held = bearer.held.as_ref().map_or((0, 0), |pdu| (1, pdu.bytes.len() as u64));
        *counts = Counts {
            packets_in: stats.packets_in,
            bytes_in: stats.bytes_in,
            packets_out: stats.basic.packets - held.0,
            bytes_out: stats.basic.bytes - held.1,
            dropped: stats.basic.drops,
            queued_packets: stats.basic.qlen + held.0,
            queued_bytes: stats.basic.backlog + held.1,
        };
        Ok(0)
    }))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn insane_tc_stats(tc: *mut Tc, rnti: u16, drb: u8, text: *mut c_char, capacity: usize) -> i64 {
    call(|| {
        // SAFETY: the caller's promise about the handle.
        let bearer = unsafe { bearer(tc, rnti, drb)? };
        let json = serde_json::to_string(&bearer.pipeline.stats()).map_err(|e| Failure(BUG, e.to_string()))?;
        if !text.is_null() && capacity > json.len() {
            // SAFETY: `text` may be written for `capacity` bytes, which is the caller's promise: the JSON and a NUL fit.
            unsafe {
                text.cast::<u8>().copy_from_nonoverlapping(json.as_ptr(), json.len());
                *text.add(json.len()) = 0;
            }
        }
        Ok(json.len() as i64)
    })
}
