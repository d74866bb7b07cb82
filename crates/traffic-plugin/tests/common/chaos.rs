//! Stages of all kinds that answer at random: half of the answers are ones that can be, the others are anything.

use std::ffi::{CStr, c_char, c_void};
use std::num::Wrapping;
use std::ptr;

use insane_traffic::Rng;
use insane_traffic_plugin::Kind;
use insane_traffic_plugin::abi::{
    ABI, ClassifierCalls, Emit, Item, PacerCalls, Packet, PolicerCalls, QueueCalls, Rlc, SchedulerCalls, ShaperCalls,
    Table, View,
};

struct Chaos {
    rng: Rng,
    /// Makes up for reading what the host hands over, so that nothing is optimised away.
    read: Wrapping<u64>,
}

unsafe extern "C" fn create(options: *const c_char, error: *mut c_char, capacity: usize) -> *mut c_void {
    // SAFETY: the host hands over a text.
    let options = unsafe { CStr::from_ptr(options) }.to_string_lossy();
    let Ok(seed) = options.parse() else {
        let text = b"the options are no seed";
        assert!(capacity > text.len());
        // SAFETY: it fits, and the host's memory is zero behind it.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), error.cast(), text.len()) };
        return ptr::null_mut();
    };
    Box::into_raw(Box::new(Chaos { rng: Rng::new(seed), read: Wrapping(0) })).cast()
}

/// # Safety
/// `stage` is from [`create`] and nobody else uses it.
unsafe fn chaos<'a>(stage: *mut c_void) -> &'a mut Chaos {
    // SAFETY: the caller's promise.
    unsafe { &mut *stage.cast() }
}

unsafe extern "C" fn modify(stage: *mut c_void, options: *const c_char) -> i32 {
    // SAFETY: the host's contract.
    let (chaos, options) = unsafe { (chaos(stage), CStr::from_ptr(options)) };
    chaos.read += Wrapping(options.to_bytes().len() as u64);
    (chaos.rng.bits() % 2) as i32
}

unsafe extern "C" fn destroy(stage: *mut c_void) {
    // SAFETY: the host's contract: the last use.
    drop(unsafe { Box::from_raw(stage.cast::<Chaos>()) });
}

unsafe extern "C" fn stats(stage: *const c_void, emit: Emit, context: *mut c_void) {
    // SAFETY: the host's contract.
    let read = unsafe { chaos(stage.cast_mut()) }.read.0;
    let names = [c"read", c"read", c"faults", c"", c"two words", c"\x01\xff"];
    for name in names.iter().map(|n| n.as_ptr()).chain([ptr::null()]).chain([c"more".as_ptr(); 100]) {
        // SAFETY: names have their NUL, the context is the host's own.
        unsafe { emit(context, name, read) };
    }
}

/// One of the answers that make sense, or any number.
fn answer(stage: *mut c_void, sensible: &[i64]) -> i64 {
    // SAFETY: the host's contract, which all calls below pass on.
    let rng = unsafe { &mut chaos(stage).rng };
    let bits = rng.bits();
    match bits % 4 {
        0 | 1 => sensible[(rng.bits() % sensible.len() as u64) as usize],
        2 => (bits >> 2) as i64 % 8,
        _ => rng.bits() as i64,
    }
}

unsafe extern "C" fn decide(stage: *mut c_void, _now: u64, packet: *const Packet) -> i64 {
    // SAFETY: the host's contract.
    let packet = unsafe { &*packet };
    let mut sum = u64::from(packet.size) + u64::from(packet.dscp);
    if !packet.bytes.is_null() {
        // SAFETY: so many bytes can be read.
        let bytes = unsafe { std::slice::from_raw_parts(packet.bytes, packet.length as usize) };
        sum += bytes.iter().map(|b| u64::from(*b)).sum::<u64>();
    }
    // SAFETY: the host's contract.
    unsafe { chaos(stage) }.read += Wrapping(sum);
    answer(stage, &[-1, -2, 0, 1, 2])
}

unsafe extern "C" fn judge(stage: *mut c_void, _now: u64, item: *const Item) -> i32 {
    // SAFETY: the host's contract.
    let (chaos, item) = unsafe { (chaos(stage), &*item) };
    chaos.read += Wrapping(item.queued_bytes + u64::from(item.queued_packets) + u64::from(item.size));
    answer(stage, &[0, 0, 0, 1, 2, 3]) as i32
}

unsafe extern "C" fn left(stage: *mut c_void, _now: u64, item: *const Item, why: u32) {
    // SAFETY: the host's contract.
    let (chaos, item) = unsafe { (chaos(stage), &*item) };
    chaos.read += Wrapping(u64::from(item.size) + u64::from(why));
}

unsafe extern "C" fn about(stage: *mut c_void, queue: u32) {
    // SAFETY: the host's contract.
    unsafe { chaos(stage) }.read += Wrapping(u64::from(queue));
}

unsafe extern "C" fn about_two(stage: *mut c_void, queue: u32, number: u32) {
    // SAFETY: the host's contract.
    unsafe { chaos(stage) }.read += Wrapping(u64::from(queue) + u64::from(number));
}

unsafe extern "C" fn next(stage: *mut c_void, _now: u64, view: *const View) -> i64 {
    let asked = answer(stage, &[0, 1, 2]);
    // SAFETY: the host's contract: any number may be asked about.
    let sum = unsafe {
        let view = &*view;
        let queue = asked as u32;
        let sum = (view.packets)(view.context, queue).wrapping_add((view.bytes)(view.context, queue));
        sum.wrapping_add((view.head_time)(view.context, queue))
    };
    // SAFETY: the host's contract.
    let chaos = unsafe { chaos(stage) };
    chaos.read += Wrapping(sum);
    asked
}

unsafe extern "C" fn offer(stage: *mut c_void, _queue: u32, _size: u32) -> i32 {
    // One of them refuses for long.
    // SAFETY: the host's contract.
    if unsafe { chaos(stage) }.read.0.is_multiple_of(3) { 0 } else { answer(stage, &[0, 1]) as i32 }
}

unsafe extern "C" fn when(stage: *mut c_void, now: u64, size: u32) -> u64 {
    let now = now as i64;
    answer(stage, &[0, now, now + 1, now + i64::from(size) * 1_000, i64::MAX, -1]) as u64
}

unsafe extern "C" fn has_left(stage: *mut c_void, _now: u64, size: u32) {
    // SAFETY: the host's contract.
    unsafe { chaos(stage) }.read += Wrapping(u64::from(size));
}

unsafe extern "C" fn report(stage: *mut c_void, _now: u64, status: *const Rlc) {
    // SAFETY: the host's contract.
    let (chaos, status) = unsafe { (chaos(stage), &*status) };
    chaos.read += Wrapping(status.bytes) + Wrapping(status.packets);
}

static CLASSIFIER: ClassifierCalls =
    ClassifierCalls { classify: Some(decide), queue_added: Some(about), queue_removed: Some(about) };
static POLICER: PolicerCalls = PolicerCalls { police: Some(decide) };
static QUEUE: QueueCalls = QueueCalls { arrives: Some(judge), departs: Some(judge), left: Some(left) };
static SCHEDULER: SchedulerCalls = SchedulerCalls {
    add: Some(about),
    remove: Some(about),
    activate: Some(about),
    deactivate: Some(about_two),
    next: Some(next),
    offer: Some(offer),
    sent: Some(about_two),
};
static SHAPER: ShaperCalls = ShaperCalls { ready: Some(when), sent: Some(has_left) };
static PACER: PacerCalls = PacerCalls { admit: Some(when), sent: Some(has_left), report: Some(report) };

const fn table<T>(kind: Kind, calls: &'static T) -> Table {
    Table {
        abi: ABI,
        size: size_of::<Table>() as u32,
        kind: kind as u32,
        calls_size: size_of::<T>() as u32,
        name: c"chaos".as_ptr(),
        create: Some(create),
        modify: Some(modify),
        destroy: Some(destroy),
        stats: Some(stats),
        calls: ptr::from_ref(calls).cast(),
    }
}

pub(crate) static TABLES: [Table; 6] = [
    table(Kind::Classifier, &CLASSIFIER),
    table(Kind::Policer, &POLICER),
    table(Kind::Queue, &QUEUE),
    table(Kind::Scheduler, &SCHEDULER),
    table(Kind::Shaper, &SHAPER),
    table(Kind::Pacer, &PACER),
];
