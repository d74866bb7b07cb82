//! Datapaths: how frames get to other hosts and come from them (architecture §6).
//!
//! Purpose: one object-safe trait, [`Datapath`], for every network technology; [`batch::TxBatch`] and [`batch::RxBatch`],
//! which say who owns every piece of memory; [`loopback`], [`fault`] (a wrapper that loses, repeats, reorders, changes and
//! cuts, by a seed), [`tap`] (one by which the traffic is captured), [`thread`] (one that works on a thread of its own) and [`conformance`], the tests that every datapath passes. Non-purpose: what is in a frame
//! (`insane-wire`), what is sent again (`insane-transport`), what goes first (`insane-traffic`).
//!
//! Layer: below the sans-IO crates, above the datapaths and the runtime. A datapath belongs to one thread at a time: the
//! trait is `Send`, and its calls take `&mut self`. No call waits, but for [`Datapath::open`]; on a [`thread`], those
//! wait for a turn of it that are rare.
//!
//! ```
//! use insane_datapath::{Address, Datapath, batch::{RxBatch, TxBatch}, loopback::Hub, memory::Slot};
//!
//! let hub = Hub::default();
//! let (mut a, mut b) = (hub.port(1), hub.port(2));
//! a.open().unwrap();
//! b.open().unwrap();
//! let mut tx = TxBatch::default();
//! tx.frame(Address::Port(2), b"hello", 0);
//! assert_eq!(a.transmit(&mut tx).sent, 1);
//!
//! let mut rx = RxBatch::default();
//! rx.free.push(Slot::owned(7, 65_536));
//! assert_eq!(b.receive(&mut rx, None).frames, 1);
//! let got = rx.taken.pop().unwrap();
//! assert_eq!((got.frames().next().unwrap(), got.slot.id()), (&b"hello"[..], 7));
//! ```

pub mod batch;
pub mod conformance;
pub mod fault;
pub mod loopback;
pub mod memory;
pub mod pcapng;
pub mod raw;
pub mod tap;
pub mod thread;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use batch::{Outcome, Place, RxBatch, RxReport, TxBatch, TxReport};

/// Where a frame goes or comes from, in the terms of its technology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Address {
    /// An IP address and a UDP port.
    Ip(SocketAddr),
    /// A station of an Ethernet.
    Ethernet([u8; 6]),
    /// A port of a [`loopback::Hub`], or a number that the technology gives its peers.
    Port(u32),
}

impl core::fmt::Display for Address {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Ip(address) => write!(f, "{address}"),
            Self::Ethernet([a, b, c, d, e, g]) => write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"),
            Self::Port(port) => write!(f, "port {port}"),
        }
    }
}

/// What a datapath does with payload that it did not allocate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Foreign {
    /// It gathers it from where it lies, by the one copy that the technology makes in any case.
    Gathers,
    /// It copies it into memory of its own first.
    Copies,
    /// It reads it in place after [`Datapath::transmit`] has returned; [`TxReport`] says when it is done.
    InPlace,
}

/// What a datapath can do. Fields are added as technologies need them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The technology's name: `udp`, `loopback`.
    pub technology: &'static str,
    /// The largest frame in bytes to any address; [`Datapath::frame_limit`] says it for one.
    pub max_frame: usize,
    /// How many bytes a slot given for receiving must have.
    pub slot_bytes: usize,
    /// How many bytes of frames it holds that have come and were not received yet, each with 832 besides, which is what Linux takes for
    /// it; 0 if it does not know.
    pub holds: usize,
    /// How many frames one transmit does best with.
    pub burst: usize,
    /// The most frames of one length, and bytes of them, that it hands to the technology as one piece, which costs not much more than
    /// a frame by itself; (1, 0) if it does not, or has found that it cannot.
    pub joins: (usize, usize),
    /// What it does with payload that it did not allocate.
    pub foreign: Foreign,
    /// Whether payload can be received straight into a message's slot ([`Place`]).
    pub places: bool,
    /// Whether the technology finds frames that were changed on their way, so that frames need no check of their own.
    pub detects_changes: bool,
    /// Whether frames carry whole Ethernet frames and need the packet engine.
    pub needs_packet_engine: bool,
}

impl Capabilities {
    /// Those of a technology that carries datagrams of up to `max_frame` bytes, copies and can nothing else.
    #[must_use]
    pub const fn plain(technology: &'static str, max_frame: usize) -> Self {
        Self {
            technology,
            max_frame,
            slot_bytes: max_frame,
            holds: 0,
            burst: 64,
            joins: (1, 0),
            foreign: Foreign::Copies,
            places: false,
            detects_changes: false,
            needs_packet_engine: false,
        }
    }

    /// How many frames of so many bytes it hands to the technology as one piece, at least 1.
    #[inline]
    #[must_use]
    pub fn joined(&self, bytes: usize) -> usize {
        self.joins.0.min(self.joins.1 / bytes.max(1)).max(1)
    }
}

/// Why a datapath cannot be opened, or has failed for good.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatapathError {
    /// The technology is not there on this host.
    #[error("{technology} is not available here: {reason}")]
    Unavailable {
        /// Which.
        technology: &'static str,
        /// Why, and what to do.
        reason: String,
    },
    /// The technology is not there on this host, and nothing that is mended changes that as long as this process lives.
    #[error("{technology} is not available here: {reason}")]
    Final {
        /// Which.
        technology: &'static str,
        /// Why, and what to do.
        reason: String,
    },
    /// The operating system refused something.
    #[error("{call}: {source}")]
    System {
        /// What was asked of it.
        call: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
    /// It is closed.
    #[error("the datapath is closed")]
    Closed,
}

impl DatapathError {
    /// Whether there is no use in trying again before the process starts anew.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Final { .. })
    }
}

/// Whether its user may go to sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    /// The wake handle will become readable when something can be received.
    Sleep,
    /// Something is there already: receive first.
    Ready,
    /// There is no way to be woken: poll.
    Poll,
}

/// What a datapath has counted since it was opened. Counts only rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Frames handed to the technology.
    pub sent_frames: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames that could not be sent, and were reported as refused.
    pub refused_frames: u64,
    /// Times that the technology could take no more for now.
    pub busy: u64,
    /// Frames received.
    pub received_frames: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Received pieces whose payload went straight to its slot.
    pub placed: u64,
    /// Received and thrown away: cut short, or read while the plan for it did not hold.
    pub spoiled: u64,
    /// What the technology says that it lost before it could be received.
    pub overruns: u64,
    /// What the technology says that it took to send and lost before it left.
    pub dropped: u64,
    /// Calls into the technology.
    pub calls: u64,
}

/// Memory that a datapath receives into and may lend slots of, where they lie.
#[derive(Debug, Clone, Copy)]
pub struct Lendable<'a> {
    /// A sealed memfd that other processes can map read-only; the datapath and its device alone write it. It also holds what was
    /// received for others: to be shown to those only who may see all that comes by this datapath.
    pub memory: BorrowedFd<'a>,
    /// Bytes from one slot to the next: a power of two.
    pub stride: u64,
    /// How many slots.
    pub slots: u32,
    /// The most of them that are lent at a time, so that enough are left to receive into.
    pub most: u32,
}

impl core::ops::Add for Stats {
    type Output = Self;

    /// Those of two together.
    fn add(self, other: Self) -> Self {
        Self {
            sent_frames: self.sent_frames + other.sent_frames,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            refused_frames: self.refused_frames + other.refused_frames,
            busy: self.busy + other.busy,
            received_frames: self.received_frames + other.received_frames,
            received_bytes: self.received_bytes + other.received_bytes,
            placed: self.placed + other.placed,
            spoiled: self.spoiled + other.spoiled,
            overruns: self.overruns + other.overruns,
            dropped: self.dropped + other.dropped,
            calls: self.calls + other.calls,
        }
    }
}

/// What receives beside a datapath: see [`Datapath::split`].
pub struct Split<D: ?Sized = dyn Datapath> {
    /// The parts, open.
    pub parts: Vec<Box<D>>,
    /// Why there are not as many as were asked for.
    pub short: Option<String>,
}

impl<D: ?Sized> Default for Split<D> {
    fn default() -> Self {
        Self { parts: Vec::new(), short: None }
    }
}

impl<D: ?Sized> core::fmt::Debug for Split<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Split").field("parts", &self.parts.len()).field("short", &self.short).finish()
    }
}

/// One network technology, opened on one address or port.
///
/// `transmit` and `receive` are one dynamic call per batch, whatever is in it, and never wait: batching is with what is
/// there. Every frame that was handed in has an outcome in its batch; every slot that was handed in is in the batch
/// afterwards, free or taken.
pub trait Datapath: Send {
    /// What it can do. Constant while it is open, but for [`Capabilities::joins`].
    fn capabilities(&self) -> Capabilities;

    /// Opens it. May take as long as the technology needs, and may be called again after [`Datapath::close`].
    ///
    /// # Errors
    /// [`DatapathError`]; it is closed then.
    fn open(&mut self) -> Result<(), DatapathError>;

    /// The address under which it receives; `None` while it is closed.
    fn address(&self) -> Option<Address>;

    /// The largest frame in bytes that can go to an address now: follows the path's MTU. May make a system call.
    fn frame_limit(&mut self, _to: Address) -> usize {
        self.capabilities().max_frame
    }

    /// Sends the frames of a batch that have no outcome yet, in order for each address. Those that the technology cannot
    /// take now stay without outcome.
    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport;

    /// As [`Datapath::transmit`], for who does not look at the frames afterwards: the whole batch may be taken, all of whose frames count as
    /// sent then, and an empty one left in its place.
    fn hand_over(&mut self, batch: &mut TxBatch<'static>) -> TxReport {
        self.transmit(batch)
    }

    /// Adds what was refused after it had been reported as sent, each address and outcome once: what a thread in between has found
    /// out since the last call ([`thread::OnThread`]). Who waits for something to receive is woken for it, too.
    fn refused_later(&mut self, _refused: &mut Vec<(Address, Outcome)>) {}

    /// Receives what is there, up to the batch's limit, into its free slots or where `place` says.
    fn receive(&mut self, batch: &mut RxBatch, place: Option<&mut dyn Place>) -> RxReport;

    /// Has up to `most` further parts of it receive beside it, each on a thread of its own, from now until it is closed. What comes is
    /// spread over it and its parts by who sent it, so that the frames of one address stay in order, but for those that come while it is
    /// being split. Parts have its address and want its slots; they are not sent by, are closed before it is, and not opened again. To
    /// be called once after it was opened. May take as long as opening.
    fn split(&mut self, most: usize) -> Split {
        let alone = || format!("{} is received by one thread", self.capabilities().technology);
        Split { parts: Vec::new(), short: (most > 0).then(alone) }
    }

    /// The memories that it may lend received slots of while it is open; most technologies have none.
    fn lends(&self) -> Vec<Lendable<'_>> {
        Vec::new()
    }

    /// A descriptor to wait on for reading after [`Datapath::arm`]; `None` if there is no way but polling.
    fn wake_handle(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Prepares the wake handle. To be called before every sleep, after a receive that got nothing.
    fn arm(&mut self) -> Armed {
        Armed::Poll
    }

    /// Why nothing goes or comes by it any more until it is opened afresh: what it was opened on was taken away, or it failed and has
    /// closed itself. `None` while it works, or may again as it is, as on an interface that is down. May make a few system calls.
    fn lost(&mut self) -> Option<String> {
        None
    }

    /// What it has counted.
    fn stats(&self) -> Stats;

    /// Closes it and lets go of everything. Closing twice is no error.
    fn close(&mut self);
}

impl<D: Datapath + ?Sized> Datapath for Box<D> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        (**self).open()
    }

    fn address(&self) -> Option<Address> {
        (**self).address()
    }

    fn frame_limit(&mut self, to: Address) -> usize {
        (**self).frame_limit(to)
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        (**self).transmit(batch)
    }

    fn hand_over(&mut self, batch: &mut TxBatch<'static>) -> TxReport {
        (**self).hand_over(batch)
    }

    fn refused_later(&mut self, refused: &mut Vec<(Address, Outcome)>) {
        (**self).refused_later(refused);
    }

    fn receive(&mut self, batch: &mut RxBatch, place: Option<&mut dyn Place>) -> RxReport {
        (**self).receive(batch, place)
    }

    fn split(&mut self, most: usize) -> Split {
        (**self).split(most)
    }

    fn lends(&self) -> Vec<Lendable<'_>> {
        (**self).lends()
    }

    fn wake_handle(&self) -> Option<BorrowedFd<'_>> {
        (**self).wake_handle()
    }

    fn arm(&mut self) -> Armed {
        (**self).arm()
    }

    fn lost(&mut self) -> Option<String> {
        (**self).lost()
    }

    fn stats(&self) -> Stats {
        (**self).stats()
    }

    fn close(&mut self) {
        (**self).close();
    }
}
