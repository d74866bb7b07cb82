//! `include/insane_traffic_stage.h` in Rust, field by field; the header says what everything means. Plug-ins in Rust use it,
//! too (`examples/red_line.rs`). All calls may be absent here, because what comes from an object is checked and not believed.

use std::ffi::{c_char, c_void};

/// The version of everything here.
pub const ABI: u32 = 1;
/// The name of the one symbol that an object must define.
pub const SYMBOL: &str = "insane_traffic_stage";
/// Stages that one object is asked for at most.
pub const MAX_STAGES: u32 = 64;

/// Classifier and policer: no opinion, or on to the packet's own queue.
pub const PASS: i64 = -1;
/// Classifier and policer: the packet is dropped.
pub const DROP: i64 = -2;

/// Queue: the packet is kept.
pub const KEEP: i32 = 0;
/// Queue: it is discarded.
pub const DISCARD: i32 = 1;
/// Queue: it is marked, or kept if it is not capable of ECN.
pub const MARK: i32 = 2;
/// Queue: it is marked, or discarded if it is not capable of ECN.
pub const MARK_OR_DISCARD: i32 = 3;

/// A packet left its queue: it was sent.
pub const SENT: u32 = 0;
/// A packet left its queue: the stage said so.
pub const DISCARDED: u32 = 1;
/// A packet left its queue: a change, or the pipeline is full.
pub const REMOVED: u32 = 2;

/// A queue is not to be chosen: it is empty.
pub const EMPTY: u32 = 0;
/// A queue is not to be chosen: its shaper holds it back.
pub const HELD_BACK: u32 = 1;

/// A field that is not known.
pub const UNKNOWN: u64 = u64::MAX;

/// `insane_traffic_packet`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// What can be read of it, or null.
    pub bytes: *const u8,
    /// The flow identity that came with it, if `has_flow`.
    pub flow: u64,
    /// How many bytes can be read.
    pub length: u32,
    /// How many bytes count.
    pub size: u32,
    /// The traffic class that came with it.
    pub traffic_class: u32,
    /// Its QoS flow identifier, or -1.
    pub qfi: i32,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
    /// 4, 6, or 0 if no IP header could be read.
    pub ip_version: u8,
    /// The transport protocol.
    pub protocol: u8,
    /// Differentiated services code point.
    pub dscp: u8,
    /// The ECN field.
    pub ecn: u8,
    /// Whether `flow` is known.
    pub has_flow: u8,
    /// Whether the ports are known.
    pub has_ports: u8,
    /// Zero.
    pub reserved: [u8; 2],
}

/// `insane_traffic_item`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// When it was handed in, in nanoseconds.
    pub arrived: u64,
    /// Bytes in the queue besides it.
    pub queued_bytes: u64,
    /// Packets in the queue besides it.
    pub queued_packets: u32,
    /// Its size in bytes.
    pub size: u32,
    /// Its ECN field.
    pub ecn: u8,
    /// Zero.
    pub reserved: [u8; 7],
}

/// `insane_traffic_rlc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rlc {
    /// Bytes in the buffer.
    pub bytes: u64,
    /// Packets in it.
    pub packets: u64,
    /// Bytes that the other side asks for.
    pub desired_bytes: u64,
    /// The rate that it asks for, in bit/s.
    pub desired_rate: u64,
}

/// A question about a queue.
pub type Ask = unsafe extern "C" fn(*const c_void, u32) -> u64;

/// `insane_traffic_view`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// The first argument of the calls.
    pub context: *const c_void,
    /// Packets in a queue.
    pub packets: Ask,
    /// Bytes in a queue.
    pub bytes: Ask,
    /// When its oldest packet was handed in, or [`UNKNOWN`].
    pub head_time: Ask,
}

/// A call about a queue.
pub type AboutQueue = unsafe extern "C" fn(*mut c_void, u32);
/// A classifier's or a policer's decision.
pub type Decide = unsafe extern "C" fn(*mut c_void, u64, *const Packet) -> i64;
/// A queue's decision.
pub type Judge = unsafe extern "C" fn(*mut c_void, u64, *const Item) -> i32;
/// A shaper's or a pacer's answer to the time and a size.
pub type When = unsafe extern "C" fn(*mut c_void, u64, u32) -> u64;
/// Tells a shaper or a pacer the time and the size of a packet that has left.
pub type HasLeft = unsafe extern "C" fn(*mut c_void, u64, u32);

/// `insane_traffic_classifier`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ClassifierCalls {
    /// Chooses.
    pub classify: Option<Decide>,
    /// A queue exists. Optional.
    pub queue_added: Option<AboutQueue>,
    /// A queue is gone. Optional.
    pub queue_removed: Option<AboutQueue>,
}

/// `insane_traffic_policer`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PolicerCalls {
    /// Decides.
    pub police: Option<Decide>,
}

/// `insane_traffic_queue`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QueueCalls {
    /// Whether a packet is taken.
    pub arrives: Option<Judge>,
    /// Whether it leaves. Optional.
    pub departs: Option<Judge>,
    /// It has left. Optional.
    pub left: Option<unsafe extern "C" fn(*mut c_void, u64, *const Item, u32)>,
}

/// `insane_traffic_scheduler`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SchedulerCalls {
    /// A queue exists.
    pub add: Option<AboutQueue>,
    /// A queue is gone.
    pub remove: Option<AboutQueue>,
    /// A queue may be chosen.
    pub activate: Option<AboutQueue>,
    /// It must not.
    pub deactivate: Option<unsafe extern "C" fn(*mut c_void, u32, u32)>,
    /// Whose turn it is.
    pub next: Option<unsafe extern "C" fn(*mut c_void, u64, *const View) -> i64>,
    /// Whether so many bytes may leave. Optional.
    pub offer: Option<unsafe extern "C" fn(*mut c_void, u32, u32) -> i32>,
    /// They have left.
    pub sent: Option<unsafe extern "C" fn(*mut c_void, u32, u32)>,
}

/// `insane_traffic_shaper`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ShaperCalls {
    /// When so many bytes may leave.
    pub ready: Option<When>,
    /// They have left.
    pub sent: Option<HasLeft>,
}

/// `insane_traffic_pacer`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PacerCalls {
    /// When so many bytes may leave.
    pub admit: Option<When>,
    /// They have left.
    pub sent: Option<HasLeft>,
    /// The state of the buffer. Optional.
    pub report: Option<unsafe extern "C" fn(*mut c_void, u64, *const Rlc)>,
}

/// `insane_traffic_emit`.
pub type Emit = unsafe extern "C" fn(*mut c_void, *const c_char, u64);

/// `insane_traffic_stage_table`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// [`ABI`].
    pub abi: u32,
    /// The size of this struct.
    pub size: u32,
    /// The number of a [`Kind`](crate::Kind).
    pub kind: u32,
    /// The size of what `calls` points to.
    pub calls_size: u32,
    /// Its name, with a NUL.
    pub name: *const c_char,
    /// Makes a stage, or says why not.
    pub create: Option<unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> *mut c_void>,
    /// Gives it other options. Optional.
    pub modify: Option<unsafe extern "C" fn(*mut c_void, *const c_char) -> i32>,
    /// Ends it.
    pub destroy: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Tells its statistics. Optional.
    pub stats: Option<unsafe extern "C" fn(*const c_void, Emit, *mut c_void)>,
    /// The calls of its kind.
    pub calls: *const c_void,
}

// SAFETY: a table is data that nobody writes while its object is loaded (the header's contract), so threads may share it.
unsafe impl Sync for Table {}
