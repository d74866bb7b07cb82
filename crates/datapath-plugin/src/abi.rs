//! `include/insane_datapath.h` in Rust, field by field; the header says what everything means. All calls may be absent here,
//! because what comes from an object is checked and not believed.

use std::ffi::{c_char, c_void};

/// The version of everything here.
pub const ABI: u32 = 1;
/// The name of the one symbol that an object must define.
pub const SYMBOL: &str = "insane_datapath";
/// The most buffers that one call is asked for or given.
pub const BURST: usize = 64;

/// There is no link now.
pub const DOWN: i32 = -1;
/// It does not work any more until it is opened again.
pub const FAILED: i32 = -2;
/// `open`: nor can it be opened again in this process.
pub const FINAL: i32 = -3;

/// `arm`: the descriptor will become readable.
pub const SLEEP: i32 = 0;
/// `arm`: receive first.
pub const READY: i32 = 1;
/// `arm`: poll.
pub const POLL: i32 = 2;

/// `send` takes payload from where it lies, and is done with it when it returns.
pub const GATHERS: u32 = 1;

/// Received frames may be kept, and lie in memory that can be shown to others.
pub const LENDS: u32 = 2;

/// `insane_datapath_option`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Its name.
    pub key: *const c_char,
    /// What it is set to.
    pub value: *const c_char,
}

/// `insane_datapath_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// The bytes that the plug-in may write.
    pub size: u32,
    /// [`GATHERS`], [`LENDS`].
    pub flags: u32,
    /// The largest frame in bytes.
    pub max_frame: u32,
    /// Frames that one `send` does best with.
    pub burst: u32,
    /// Payload shorter than this is better copied.
    pub gather_from: u32,
    /// To be waited on, or -1.
    pub wake_fd: i32,
    /// Its MAC address.
    pub address: [u8; 6],
    /// Zero.
    pub reserved: [u8; 2],
    /// The memory that received frames lie in, or -1.
    pub lend_fd: i32,
    /// Bytes from one of its slots to the next.
    pub lend_stride: u32,
    /// How many slots.
    pub lend_slots: u32,
    /// The most frames that are kept at a time.
    pub lend_most: u32,
    /// Where it is mapped.
    pub lend_memory: *const u8,
}

impl Default for Info {
    /// Nothing, and no descriptors.
    fn default() -> Self {
        Self {
            size: size_of::<Self>() as u32,
            flags: 0,
            max_frame: 0,
            burst: 0,
            gather_from: 0,
            wake_fd: -1,
            address: [0; 6],
            reserved: [0; 2],
            lend_fd: -1,
            lend_stride: 0,
            lend_slots: 0,
            lend_most: 0,
            lend_memory: core::ptr::null(),
        }
    }
}

/// `insane_datapath_stats`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// The bytes that the plug-in may write.
    pub size: u32,
    /// Zero.
    pub reserved: u32,
    /// Lost before they could be received.
    pub overruns: u64,
    /// Taken and lost before they left.
    pub dropped: u64,
    /// Calls into the technology.
    pub calls: u64,
}

/// `insane_datapath_buffer`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// The plug-in's name for it.
    pub handle: *mut c_void,
    /// Its bytes.
    pub data: *mut u8,
    /// How many.
    pub capacity: u32,
    /// Zero.
    pub reserved: u32,
}

/// `insane_datapath_outgoing`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// Of a buffer that was reserved.
    pub handle: *mut c_void,
    /// Bytes of the buffer.
    pub length: u32,
    /// Bytes of payload after them.
    pub payload_length: u32,
    /// Where they lie, or null.
    pub payload: *const u8,
}

/// `insane_datapath_incoming`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// The plug-in's name for it.
    pub handle: *mut c_void,
    /// Its bytes.
    pub data: *const u8,
    /// How many.
    pub length: u32,
    /// Zero.
    pub reserved: u32,
}

/// `create`.
pub type Create = unsafe extern "C" fn(*const Choice, usize, *mut c_char, usize) -> *mut c_void;
/// `destroy`, `close`.
pub type End = unsafe extern "C" fn(*mut c_void);
/// `open`.
pub type Open = unsafe extern "C" fn(*mut c_void, *mut Info, *mut c_char, usize) -> i32;
/// `reserve`.
pub type Reserve = unsafe extern "C" fn(*mut c_void, *mut Buffer, u32) -> i32;
/// `send`.
pub type Send = unsafe extern "C" fn(*mut c_void, *const Outgoing, u32) -> i32;
/// `receive`.
pub type Receive = unsafe extern "C" fn(*mut c_void, *mut Incoming, u32) -> i32;
/// `release`.
pub type Release = unsafe extern "C" fn(*mut c_void, *const *mut c_void, u32);
/// `arm`.
pub type Arm = unsafe extern "C" fn(*mut c_void) -> i32;
/// `limit`.
pub type Limit = unsafe extern "C" fn(*mut c_void) -> u32;
/// `stats`.
pub type Count = unsafe extern "C" fn(*const c_void, *mut Stats);
/// `describe`.
pub type Describe = unsafe extern "C" fn(*const c_void, *mut c_char, usize);

/// `insane_datapath_table`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// [`ABI`].
    pub abi: u32,
    /// The size of this struct as the plug-in knows it.
    pub size: u32,
    /// The technology's name.
    pub name: *const c_char,
    /// Makes a port.
    pub create: Option<Create>,
    /// Ends it.
    pub destroy: Option<End>,
    /// Opens it.
    pub open: Option<Open>,
    /// Closes it.
    pub close: Option<End>,
    /// Room for frames.
    pub reserve: Option<Reserve>,
    /// Sends frames.
    pub send: Option<Send>,
    /// Frames that have come.
    pub receive: Option<Receive>,
    /// Takes buffers back.
    pub release: Option<Release>,
    /// Prepares the descriptor. Optional.
    pub arm: Option<Arm>,
    /// The largest frame now. Optional.
    pub limit: Option<Limit>,
    /// Counts. Optional.
    pub stats: Option<Count>,
    /// What was chosen. Optional.
    pub describe: Option<Describe>,
}

impl Table {
    /// The smallest table of this version: what later ones add comes after it.
    pub const LEAST: usize = size_of::<Self>();
}
