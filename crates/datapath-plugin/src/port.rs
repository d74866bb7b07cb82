//! The calls of a plug-in, with what they return checked. Everything unsafe about a running datapath is here.
//!
//! Invariants; the header makes the first four the plug-in's to keep, and whoever loads an object trusts it for them:
//! - `INV-PLUG-1` A port is used by one thread at a time: the calls take `&mut self`, and [`Port`] is not `Sync`.
//! - `INV-PLUG-2` A [`Room`]'s bytes are writable memory that nobody else uses, from `reserve` until it is sent or released.
//! - `INV-PLUG-3` An [`Arrived`]'s bytes are memory that nobody writes, from `receive` until it is released.
//! - `INV-PLUG-4` `send` reads no payload after it has returned.
//! - `INV-PLUG-5` Room and arrived frames do not outlive the time that the port is open: they are values of this crate alone,
//!   which [`crate::PluginDatapath`] gives back before it closes.
//! - `INV-PLUG-6` What is lent ([`Arrived::lend`]) stays as it is, and mapped, until it is released, or for as long as the process
//!   lives if the port is closed before.

use core::ptr::NonNull;
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, OwnedFd};

use insane_datapath::DatapathError;
use insane_datapath::memory::{Lent, Piece, Slot};

use crate::abi::{self, BURST};
use crate::load::{Handle, Loaded, Options, text};

/// The least Ethernet frame without its checksum, in bytes: shorter ones are filled up before they are sent.
pub(crate) const LEAST_FRAME: usize = 60;
/// An Ethernet header, in bytes.
pub(crate) const ETHERNET: usize = 14;

/// Why a port does not work any more.
pub(crate) type Fault = String;

/// Room for a frame.
#[derive(Debug)]
pub(crate) struct Room {
    handle: Handle,
    data: NonNull<u8>,
    capacity: usize,
}

impl Room {
    /// What the plug-in gave; `None` if no frame fits there.
    #[inline]
    fn of(buffer: &abi::Buffer, max_frame: usize) -> Option<Self> {
        let data = NonNull::new(buffer.data).filter(|_| buffer.capacity as usize >= max_frame)?;
        // No more than a frame is used: whatever else the plug-in says of its size is not relied on.
        Some(Self { handle: buffer.handle, data, capacity: max_frame })
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: INV-PLUG-2, `capacity` is what the plug-in said, at most that of a frame, and `&mut self` is the only way in.
        unsafe { core::slice::from_raw_parts_mut(self.data.as_ptr(), self.capacity) }
    }
}

/// A frame to be sent.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) room: Room,
    /// Bytes of the room.
    pub(crate) len: usize,
    /// Payload behind them, where it lies.
    pub(crate) payload: Option<(NonNull<u8>, usize)>,
}

impl Built {
    /// As the plug-in sees it.
    #[inline]
    fn outgoing(&self) -> abi::Outgoing {
        let (payload, payload_length) =
            self.payload.map_or((core::ptr::null(), 0), |(at, len)| (at.as_ptr().cast_const(), len));
        let (handle, length) = (self.room.handle, self.len as u32);
        abi::Outgoing { handle, length, payload_length: payload_length as u32, payload }
    }

    /// Copies the payload behind what is built: the caller's memory is its own again. To be called before the transmit returns that
    /// the payload was given to.
    pub(crate) fn own(&mut self) {
        if let Some((base, len)) = self.payload.take() {
            // SAFETY: INV-MEM-2 of the contract: the frame has no outcome yet.
            let piece = unsafe { Piece::from_raw(base, len) };
            let room = self.room.bytes_mut().get_mut(self.len..self.len + len).unwrap_or(&mut []);
            let copied = piece.copy_part(0, room);
            self.len += copied;
        }
    }
}

/// A frame that was received.
#[derive(Debug)]
pub(crate) struct Arrived {
    handle: Handle,
    data: NonNull<u8>,
    len: usize,
}

impl Arrived {
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: INV-PLUG-3.
        unsafe { core::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }

    pub(crate) const fn handle(&self) -> Handle {
        self.handle
    }

    /// A slot over a range of it, to be kept; `number` is what the port was opened as.
    ///
    /// # Safety
    /// The frame is not released before the slot is gone, and never once the port was closed.
    pub(crate) unsafe fn lend(&self, lends: &Lends, number: u64, range: core::ops::Range<usize>) -> Option<Slot> {
        let bytes = self.bytes().get(range)?;
        let (slot, offset) = lends.find(bytes)?;
        let place = Lent { memory: 0, slot, offset };
        // SAFETY: INV-PLUG-3 and INV-PLUG-6 with the caller's promise.
        Some(unsafe { Slot::lent(number, place, NonNull::from(bytes).cast(), bytes.len()) })
    }
}

/// What a port is, once it is open: checked.
#[derive(Debug)]
pub(crate) struct Info {
    pub(crate) gathers: bool,
    pub(crate) max_frame: usize,
    pub(crate) burst: usize,
    pub(crate) gather_from: usize,
    pub(crate) address: [u8; 6],
    /// A duplicate of the plug-in's, so that it stays what it is.
    pub(crate) wake: Option<OwnedFd>,
    /// Where received frames lie, if they may be kept.
    pub(crate) lends: Option<Lends>,
}

/// Memory that received frames lie in and that may be shown to others.
#[derive(Debug)]
pub(crate) struct Lends {
    /// A duplicate of the plug-in's.
    pub(crate) memory: OwnedFd,
    pub(crate) stride: u32,
    pub(crate) slots: u32,
    pub(crate) most: u32,
    /// Its first byte's address: compared, never read by.
    base: usize,
}

impl Lends {
    /// The slot that bytes lie in, and where in it they begin; `None` if they do not lie in one.
    fn find(&self, bytes: &[u8]) -> Option<(u32, u32)> {
        let at = bytes.as_ptr().addr().checked_sub(self.base)?;
        let (slot, offset) = (at / self.stride as usize, at % self.stride as usize);
        let there = slot < self.slots as usize && offset + bytes.len() <= self.stride as usize;
        there.then(|| (u32::try_from(slot).unwrap_or(u32::MAX), u32::try_from(offset).unwrap_or(u32::MAX)))
    }
}

/// What became of frames that were to be sent.
pub(crate) enum Sent {
    /// So many were taken.
    Taken(usize),
    /// There is no link.
    Down,
}

/// A port of a plug-in's.
#[derive(Debug)]
pub(crate) struct Port {
    plugin: &'static Loaded,
    port: NonNull<c_void>,
    outgoing: Vec<abi::Outgoing>,
    buffers: Vec<abi::Buffer>,
    /// As many as one call brings, each [`NOTHING`] between calls.
    incoming: [abi::Incoming; BURST],
}

/// What there is of a frame that has not come.
const NOTHING: abi::Incoming =
    abi::Incoming { handle: core::ptr::null_mut(), data: core::ptr::null(), length: 0, reserved: 0 };

// SAFETY: the header: a port is used by one thread at a time, not always by the same (INV-PLUG-1). The lists name nothing
// between calls.
unsafe impl Send for Port {}
// SAFETY: INV-PLUG-2, a value goes with its memory.
unsafe impl Send for Room {}
// SAFETY: INV-PLUG-2 for the room; the payload is read by `send` alone, or copied by who built the frame.
unsafe impl Send for Built {}
// SAFETY: INV-PLUG-3.
unsafe impl Send for Arrived {}

/// How many of what was asked for there are.
fn count(call: &str, found: i32, most: usize) -> Result<usize, Fault> {
    match usize::try_from(found) {
        Ok(found) if found <= most => Ok(found),
        Ok(found) => Err(format!("`{call}` returned {found}, of {most} at most")),
        Err(_) if found == abi::FAILED => Err(format!("`{call}` says that it does not work any more")),
        Err(_) => Err(format!("`{call}` returned {found}, which means nothing")),
    }
}

impl Port {
    pub(crate) fn create(plugin: &'static Loaded, options: &Options) -> Result<Self, DatapathError> {
        let mut made = None;
        let why = text(|error, capacity| {
            // SAFETY: the calls of a table that was checked; the options and the room for the reason outlive the call.
            let port = options.with(|list, count| unsafe { (plugin.calls.create)(list, count, error, capacity) });
            made = NonNull::new(port);
        });
        let Some(port) = made else {
            let reason = if why.is_empty() { "it gives no reason".into() } else { why };
            return Err(DatapathError::Unavailable { technology: &plugin.name, reason });
        };
        Ok(Self { plugin, port, outgoing: Vec::new(), buffers: Vec::new(), incoming: [NOTHING; BURST] })
    }

    pub(crate) const fn plugin(&self) -> &'static Loaded {
        self.plugin
    }

    pub(crate) fn open(&mut self) -> Result<Info, DatapathError> {
        let unavailable = |reason| DatapathError::Unavailable { technology: &self.plugin.name, reason };
        let mut info = abi::Info::default();
        let mut result = 0;
        let why = text(|error, capacity| {
            // SAFETY: INV-PLUG-1; info and the room for the reason outlive the call.
            result = unsafe { (self.plugin.calls.open)(self.port.as_ptr(), &mut info, error, capacity) };
        });
        if result != 0 {
            let reason = if why.is_empty() { format!("opening returned {result}") } else { why };
            let technology = &self.plugin.name;
            return Err(match result {
                abi::FINAL => DatapathError::Final { technology, reason },
                _ => unavailable(reason),
            });
        }
        check(&info).map_err(|why| {
            self.close();
            unavailable(format!("the object {} breaks its contract: {why}", self.plugin.path.display()))
        })
    }

    /// To be called for an open port alone, with all room and frames given back.
    pub(crate) fn close(&mut self) {
        // SAFETY: INV-PLUG-1, INV-PLUG-5.
        unsafe { (self.plugin.calls.close)(self.port.as_ptr()) };
    }

    /// Room for up to `most` frames of `max_frame` bytes, onto `to`.
    pub(crate) fn reserve(&mut self, most: usize, max_frame: usize, to: &mut Vec<Room>) -> Result<(), Fault> {
        let most = most.min(BURST);
        let empty =
            abi::Buffer { handle: core::ptr::null_mut(), data: core::ptr::null_mut(), capacity: 0, reserved: 0 };
        self.buffers.clear();
        self.buffers.resize(most, empty);
        // SAFETY: INV-PLUG-1; the list has room for as many.
        let found = unsafe { (self.plugin.calls.reserve)(self.port.as_ptr(), self.buffers.as_mut_ptr(), most as u32) };
        let found = count("reserve", found, most)?;
        for buffer in &self.buffers[..found] {
            let Some(room) = Room::of(buffer, max_frame) else {
                return Err(format!(
                    "`reserve` returned a buffer of {} bytes, less than the {max_frame} of a frame",
                    buffer.capacity
                ));
            };
            to.push(room);
        }
        Ok(())
    }

    /// Sends frames from the first on; those that were taken are out of the list afterwards.
    pub(crate) fn send(&mut self, frames: &mut Vec<Built>) -> Result<Sent, Fault> {
        self.outgoing.clear();
        self.outgoing.extend(frames.iter().take(BURST).map(Built::outgoing));
        let (first, most) = (self.outgoing.as_ptr(), self.outgoing.len());
        // SAFETY: each entry is a room that was reserved with what was built in it, and payload that stays where it is during the call
        // (INV-MEM-2 of the contract).
        let sent = unsafe { self.send_list(first, most) };
        if let Ok(Sent::Taken(taken)) = sent {
            frames.drain(..taken);
        }
        sent
    }

    /// Sends one frame: if it was taken its room is used up.
    #[inline]
    pub(crate) fn send_one(&mut self, frame: &Built) -> Result<Sent, Fault> {
        let outgoing = frame.outgoing();
        // SAFETY: as in `send`.
        unsafe { self.send_list(&raw const outgoing, 1) }
    }

    /// # Safety
    /// From `first` on there are `most` entries of frames that were built, with payload that stays where it is during the call.
    #[inline]
    unsafe fn send_list(&mut self, first: *const abi::Outgoing, most: usize) -> Result<Sent, Fault> {
        // SAFETY: INV-PLUG-1, and the caller's promise.
        let taken = unsafe { (self.plugin.calls.send)(self.port.as_ptr(), first, most as u32) };
        if taken == abi::DOWN {
            return Ok(Sent::Down);
        }
        count("send", taken, most).map(Sent::Taken)
    }

    /// Up to `most` frames, onto `to`.
    pub(crate) fn receive(
        &mut self,
        most: usize,
        max_frame: usize,
        to: &mut impl Extend<Arrived>,
    ) -> Result<usize, Fault> {
        let most = most.min(BURST);
        // SAFETY: INV-PLUG-1; the list has room for as many.
        let found = unsafe { (self.plugin.calls.receive)(self.port.as_ptr(), self.incoming.as_mut_ptr(), most as u32) };
        let found = count("receive", found, most)?;
        for frame in &mut self.incoming[..found] {
            let frame = core::mem::replace(frame, NOTHING);
            let len = frame.length as usize;
            let Some(data) = NonNull::new(frame.data.cast_mut()).filter(|_| (ETHERNET..=max_frame).contains(&len))
            else {
                return Err(format!("`receive` returned a frame of {len} bytes; they have {ETHERNET} to {max_frame}"));
            };
            to.extend([Arrived { handle: frame.handle, data, len }]);
        }
        Ok(found)
    }

    /// Gives buffers back.
    pub(crate) fn release(&mut self, handles: &mut Vec<Handle>) {
        for some in handles.chunks(BURST) {
            // SAFETY: INV-PLUG-1; each was given by this port and is given back once: whoever calls has taken the value apart.
            unsafe { (self.plugin.calls.release)(self.port.as_ptr(), some.as_ptr(), some.len() as u32) };
        }
        handles.clear();
    }

    pub(crate) fn arm(&mut self) -> Result<insane_datapath::Armed, Fault> {
        use insane_datapath::Armed;
        let Some(arm) = self.plugin.calls.arm else { return Ok(Armed::Poll) };
        // SAFETY: INV-PLUG-1.
        match unsafe { arm(self.port.as_ptr()) } {
            abi::SLEEP => Ok(Armed::Sleep),
            abi::READY => Ok(Armed::Ready),
            abi::POLL => Ok(Armed::Poll),
            other => Err(format!("`arm` returned {other}, which means nothing")),
        }
    }

    /// The largest frame now, if that changes.
    pub(crate) fn limit(&mut self) -> Option<usize> {
        // SAFETY: INV-PLUG-1.
        self.plugin.calls.limit.map(|limit| unsafe { limit(self.port.as_ptr()) } as usize)
    }

    pub(crate) fn stats(&self) -> abi::Stats {
        let mut stats = abi::Stats { size: size_of::<abi::Stats>() as u32, ..abi::Stats::default() };
        if let Some(count) = self.plugin.calls.stats {
            // SAFETY: a port is not used by another thread meanwhile, because `self` is not `Sync`; stats outlive the call.
            unsafe { count(self.port.as_ptr(), &mut stats) };
        }
        stats
    }

    pub(crate) fn describe(&self) -> String {
        let Some(describe) = self.plugin.calls.describe else { return String::new() };
        // SAFETY: as for `stats`; the room outlives the call.
        text(|room, capacity| unsafe { describe(self.port.as_ptr(), room, capacity) })
    }
}

impl Room {
    pub(crate) const fn handle(&self) -> Handle {
        self.handle
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // SAFETY: INV-PLUG-1, and the last call: the value goes.
        unsafe { (self.plugin.calls.destroy)(self.port.as_ptr()) };
    }
}

/// What is wrong with what `open` has said, or what it means.
fn check(info: &abi::Info) -> Result<Info, Fault> {
    let (max_frame, burst) = (info.max_frame as usize, info.burst as usize);
    if !(64..=65_535).contains(&max_frame) {
        return Err(format!("its largest frame has {max_frame} bytes; 64 to 65535 can be"));
    }
    if !(1..=BURST).contains(&burst) {
        return Err(format!("its burst is {burst}; 1 to {BURST} can be"));
    }
    if info.address[0] & 1 != 0 || info.address == [0; 6] {
        return Err("its address is not a station's".into());
    }
    let wake = match info.wake_fd {
        -1 => None,
        fd if fd < 0 => return Err(format!("its descriptor is {fd}")),
        fd => {
            // SAFETY: duplicating what is no descriptor is an error, and it is not closed here.
            let plugins = unsafe { BorrowedFd::borrow_raw(fd) };
            Some(rustix::io::fcntl_dupfd_cloexec(plugins, 0).map_err(|e| format!("its descriptor {fd}: {e}"))?)
        }
    };
    let lends = if info.flags & abi::LENDS == 0 { None } else { Some(check_lending(info)?) };
    Ok(Info {
        lends,
        gathers: info.flags & abi::GATHERS != 0,
        max_frame,
        burst,
        gather_from: info.gather_from as usize,
        address: info.address,
        wake,
    })
}

/// What is wrong with the memory that frames are to be lent out of, or what it is.
fn check_lending(info: &abi::Info) -> Result<Lends, Fault> {
    let (stride, slots, most) = (info.lend_stride, info.lend_slots, info.lend_most);
    let fits = stride.is_power_of_two() && stride >= 2048 && u64::from(stride) * u64::from(slots) <= 1 << 40;
    if !fits || most >= slots || info.lend_memory.is_null() || info.lend_fd < 0 {
        return Err(format!("it lends {most} of {slots} slots of {stride} bytes by the descriptor {}", info.lend_fd));
    }
    // SAFETY: as for the descriptor to wait on.
    let plugins = unsafe { BorrowedFd::borrow_raw(info.lend_fd) };
    let memory = rustix::io::fcntl_dupfd_cloexec(plugins, 0)
        .map_err(|e| format!("its memory's descriptor {}: {e}", info.lend_fd))?;
    Ok(Lends { memory, stride, slots, most, base: info.lend_memory.addr() })
}
