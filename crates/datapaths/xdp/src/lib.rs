//! INSANE over AF_XDP: whole Ethernet frames, past the kernel's network stack.
//!
//! Purpose: a [`Datapath`] that takes INSANE's frames, and no others, off an interface before the kernel's stack sees them,
//! and sends frames past it. A small program in the kernel (see [`Filter`]) decides frame by frame; the interface's other
//! traffic goes on as before. Each queue has a socket; all share one memory, the UMEM, that this process and the kernel alone
//! write. Non-purpose: what is in the frames. ARP, IP and UDP are the packet engine's, which is why
//! [`insane_datapath::Capabilities::needs_packet_engine`] is set; for it, [`XdpDatapath::transmit_behind`] writes headers in
//! front of frames in the UMEM, and [`XdpDatapath::receive_with`] shows received frames there, so that payload is copied once.
//!
//! Layer: a datapath. `unsafe` is in `sys`, `bpf`, `interface`, `rings` and `umem`, each with its invariants at its head.
//!
//! It takes Linux 5.9 or newer, and for frames of more than about 3800 bytes 6.6; CAP_NET_RAW, CAP_BPF and CAP_NET_ADMIN.
//! What is attached leaves with the process, however it ends (test: a_killed_process_leaves_nothing_behind).
//!
//! ```
//! use insane_datapath::{Datapath, DatapathError};
//! use insane_datapath_xdp::{XdpConfig, XdpDatapath};
//!
//! let mut xdp = XdpDatapath::new(XdpConfig::new("no-such-if0"));
//! match xdp.open() {
//!     Ok(()) => println!("{}", xdp.chosen().unwrap()),
//!     Err(DatapathError::Unavailable { reason, .. }) => assert!(reason.contains("no interface no-such-if0"), "{reason}"),
//!     Err(error) => panic!("{error}"),
//! }
//! ```

mod asm;
mod bpf;
mod chosen;
mod config;
mod filter;
mod gather;
mod interface;
mod open;
mod queue;
mod raw;
mod receive;
mod rings;
mod split;
mod sys;
mod transmit;
mod umem;
mod watch;

pub use chosen::{Attached, Chosen, FrameCounts, XdpCounts};
pub use config::{Attach, Filter, LOCAL_ETHERTYPE, Queues, Vlan, XdpConfig};
pub use gather::{Body, Front, MOST_FRONT, Received};

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use insane_datapath::batch::{Place, RxBatch, RxReport, TxBatch, TxReport};
use insane_datapath::{Address, Armed, Capabilities, Datapath, DatapathError, Foreign, Lendable, Stats};

use crate::gather::{Bare, ETHERNET_HEADER};
use crate::open::{NAME, Opened};

/// An interface as a datapath, or some of its queues.
#[derive(Debug)]
pub struct XdpDatapath {
    config: XdpConfig,
    opened: Option<Opened>,
    /// The interface was found down, or without a carrier.
    down: bool,
    /// The interface was taken away: what has its name now is another one, until it is opened anew.
    gone: bool,
    /// Some of what was put was not sent yet, because the device had no room for it, and the kernel goes on only after a call.
    left: bool,
    /// The queue that is received from first by the next call.
    turn: usize,
    stats: Stats,
    counts: XdpCounts,
    chosen: Option<Chosen>,
    /// It has some of another one's queues.
    is_part: bool,
}

impl XdpDatapath {
    /// A datapath, closed.
    #[must_use]
    pub fn new(config: XdpConfig) -> Self {
        let (stats, counts) = (Stats::default(), XdpCounts::default());
        let (down, gone, left, is_part) = (false, false, false, false);
        Self { config, opened: None, down, gone, left, turn: 0, stats, counts, chosen: None, is_part }
    }

    /// What was chosen when it was last opened, and why; `None` if it never was. Its text is for `doctor` and the log.
    #[must_use]
    pub fn chosen(&self) -> Option<&Chosen> {
        self.chosen.as_ref()
    }

    /// Where the UMEM's frames are now; all zero while it is closed. Makes no system call.
    #[must_use]
    pub fn frames(&self) -> FrameCounts {
        let mut counts = FrameCounts::default();
        self.opened.iter().flat_map(|opened| &opened.queues).for_each(|queue| counts.add(queue.frames()));
        counts
    }

    /// What it has counted beyond [`Datapath::stats`] since it was opened. Makes a system call a queue.
    #[must_use]
    pub fn counts(&self) -> XdpCounts {
        let mut counts = self.counts;
        for queue in self.opened.iter().flat_map(|opened| &opened.queues) {
            counts.lies += queue.lies;
            if let Some(kernel) = queue.statistics() {
                counts.no_buffer += kernel.rx_dropped;
                counts.ring_full += kernel.rx_ring_full.unwrap_or(0);
                counts.invalid += kernel.rx_invalid_descs + kernel.tx_invalid_descs;
            }
        }
        counts
    }
}

impl Datapath for XdpDatapath {
    fn capabilities(&self) -> Capabilities {
        let (max_frame, slot_bytes) = match &self.opened {
            Some(opened) => (opened.chosen.max_frame, opened.slot_bytes),
            None => {
                let most = usize::from(self.config.mtu.unwrap_or(1500)) + ETHERNET_HEADER;
                (most, most)
            }
        };
        let mut can = Capabilities::plain(NAME, max_frame);
        can.slot_bytes = slot_bytes;
        can.foreign = Foreign::Gathers;
        can.places = true;
        can.needs_packet_engine = true;
        can
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        if self.opened.is_none() && self.is_part {
            return Err(DatapathError::Closed);
        }
        if self.opened.is_none() {
            let opened = open::open(&self.config)?;
            (self.stats, self.counts) = (Stats::default(), XdpCounts::default());
            (self.down, self.gone, self.left) = (false, false, false);
            self.chosen = Some(opened.chosen.clone());
            self.opened = Some(opened);
        }
        Ok(())
    }

    fn address(&self) -> Option<Address> {
        self.opened.as_ref().map(|opened| Address::Ethernet(opened.mac))
    }

    fn frame_limit(&mut self, _to: Address) -> usize {
        let Some(opened) = &self.opened else { return self.capabilities().max_frame };
        let now = opened.interface.mtu().map_or(usize::MAX, |mtu| mtu + opened.headers);
        opened.chosen.max_frame.min(now)
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        self.send_batch(batch, &mut Bare)
    }

    fn receive(&mut self, batch: &mut RxBatch, place: Option<&mut dyn Place>) -> RxReport {
        self.receive_batch(batch, place)
    }

    fn lends(&self) -> Vec<Lendable<'_>> {
        let Some(opened) = &self.opened else { return Vec::new() };
        let (memories, slots) = opened.umem.lendable();
        let (stride, most) = (opened.umem.frame_bytes() as u64, open::most_lent(self.config.frames));
        memories.map(|memory| Lendable { memory, stride, slots, most }).collect()
    }

    fn wake_handle(&self) -> Option<BorrowedFd<'_>> {
        let opened = self.opened.as_ref()?;
        match &opened.epoll {
            Some(all) => Some(all.as_fd()),
            None => opened.queues.first().map(queue::Queue::socket),
        }
    }

    fn arm(&mut self) -> Armed {
        if self.left {
            self.kick_all();
        }
        let Some(opened) = &mut self.opened else { return Armed::Poll };
        // Nothing says when the device has room again.
        let mut armed = if self.left { Armed::Poll } else { Armed::Sleep };
        for queue in &mut opened.queues {
            // The driver may wait for a call before it fills the ring again; a socket with something in its ring is readable.
            queue.settle();
            if queue.has_more() {
                armed = Armed::Ready;
            }
        }
        armed
    }

    fn lost(&mut self) -> Option<String> {
        if self.opened.is_some() && self.is_gone() {
            return Some(format!("the interface {} was taken away", self.config.interface));
        }
        // Hosts whose frames come by queues that were not there would be heard by the kernel alone.
        let changed = self.opened.as_mut()?.watch.as_mut()?.changed()?;
        Some(format!("the interface {} {changed}", self.config.interface))
    }

    fn stats(&self) -> Stats {
        let (mut stats, counts) = (self.stats, self.counts());
        stats.overruns = counts.ring_full + counts.no_buffer;
        stats.calls += self.opened.iter().flat_map(|opened| &opened.queues).map(|queue| queue.calls).sum::<u64>();
        stats
    }

    fn close(&mut self) {
        // What was counted stays; the sockets take their counts with them.
        self.stats = self.stats();
        self.counts = self.counts();
        if let Some(opened) = self.opened.take() {
            for queue in &opened.queues {
                let _ = bpf::remove(opened.map.as_fd(), queue.number);
            }
            // Older kernels do it when the descriptor is closed.
            let _ = opened.link.as_ref().map(|link| bpf::detach(link.as_fd()));
            // What is lent is still read by others of this process: the memory stays for as long as the process lives.
            if opened.queues.iter().any(queue::Queue::is_lent) {
                core::mem::forget(Arc::clone(&opened.umem));
            }
        }
    }
}

impl Drop for XdpDatapath {
    fn drop(&mut self) {
        self.close();
    }
}
