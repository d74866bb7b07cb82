//! Datapaths from shared objects.
//!
//! Purpose: to load a datapath through the C interface of `include/insane_datapath.h` ([`Plugin`]) and to make of it what every
//! other datapath with raw frames is, a [`RawDatapath`] ([`PluginDatapath`]); with the packet engine's adaptor on top
//! (`insane-datagrams`) it carries datagrams. Non-purpose: protection against what an object does. Loading is trust; what is checked
//! is who could have written the file, and every count, length and size that the object returns.
//!
//! Layer: beside the datapaths' contract, below it. A port belongs to one thread at a time, as every datapath. What an object
//! returns as an error ends the port: frames that were to be sent fail, [`PluginDatapath::fault`] says why, and it may be opened
//! again. `unsafe` is in `load` and `port`, with the invariants at their heads, and in one line of
//! `receive`.
//!
//! ```
//! use insane_datapath_plugin::Plugin;
//!
//! let error = Plugin::load("/usr/lib/insane/no-such-datapath.so").unwrap_err().to_string();
//! assert!(error.contains("No such file"), "{error}");
//! ```

pub mod abi;

mod load;
mod port;
mod receive;
mod transmit;

pub use load::{LoadError, Plugin};

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use insane_datapath::batch::{Place, RxBatch, RxReport, TxBatch, TxReport};
use insane_datapath::memory::Slot;
use insane_datapath::raw::{Front, InPlace, RawDatapath};
use insane_datapath::{Address, Armed, Capabilities, Datapath, DatapathError, Foreign, Lendable, Stats};

use crate::load::{Handle, Options};
use crate::port::{Arrived, Built, ETHERNET, Fault, Info, Port, Room};

/// A port of a plug-in's as a datapath.
#[derive(Debug)]
pub struct PluginDatapath {
    port: Port,
    opened: Option<Opened>,
    stats: Stats,
    /// The last transmit found no room.
    congested: bool,
    fault: Option<Fault>,
}

/// What it has while it is open.
#[derive(Debug)]
struct Opened {
    info: Info,
    /// Room that was reserved and not used.
    spare: Vec<Room>,
    /// Frames on their way to the plug-in. Between calls: whole ones that it had no room for, which the caller was told are sent;
    /// there are some only when a packet engine took over a frame behind them.
    built: Vec<Built>,
    /// Frames that have come and were not wanted yet.
    held: VecDeque<Arrived>,
    /// To be released together.
    done: Vec<Handle>,
    /// Those that are lent, by their slot, and the number of this opening among all of this process.
    lent: HashMap<u32, Handle>,
    number: u64,
}

/// The number of the next opening.
static NEXT: AtomicU64 = AtomicU64::new(1);

// SAFETY: handles are names; what they stand for goes with them (INV-PLUG-2, INV-PLUG-3).
unsafe impl Send for Opened {}

impl Plugin {
    /// A port with these options, closed.
    ///
    /// # Errors
    /// [`DatapathError::Unavailable`] with the plug-in's reason, as for an option that it does not know.
    pub fn port(&self, options: &[(&str, &str)]) -> Result<PluginDatapath, DatapathError> {
        let options = Options::new(options).ok_or_else(|| DatapathError::Unavailable {
            technology: self.name(),
            reason: "an option has a NUL in it".into(),
        })?;
        let port = Port::create(self.0, &options)?;
        Ok(PluginDatapath { port, opened: None, stats: Stats::default(), congested: false, fault: None })
    }
}

impl PluginDatapath {
    /// Why it was closed without being asked to: what it returned broke its contract, or was an error. `None` once it is open
    /// again.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// What the plug-in chose when it was opened, in its own words; empty if it says nothing.
    #[must_use]
    pub fn describe(&self) -> String {
        self.port.describe()
    }

    /// The plug-in broke its contract or does not work any more.
    fn fail(&mut self, fault: Fault) {
        self.close();
        self.fault = Some(fault);
    }
}

impl Datapath for PluginDatapath {
    fn capabilities(&self) -> Capabilities {
        let technology = &self.port.plugin().name;
        let Some(Opened { info, .. }) = &self.opened else {
            let mut can = Capabilities::plain(technology, 1500 + ETHERNET);
            (can.places, can.needs_packet_engine) = (true, true);
            return can;
        };
        let mut can = Capabilities::plain(technology, info.max_frame);
        can.burst = info.burst;
        can.foreign = if info.gathers { Foreign::Gathers } else { Foreign::Copies };
        can.places = true;
        can.needs_packet_engine = true;
        can
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        if self.opened.is_none() {
            let info = self.port.open()?;
            (self.stats, self.fault) = (Stats::default(), None);
            let (spare, built, held, done) = (Vec::new(), Vec::new(), VecDeque::new(), Vec::new());
            // Relaxed: a number that is used once, and no more.
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            self.opened = Some(Opened { info, spare, built, held, done, lent: HashMap::new(), number });
        }
        Ok(())
    }

    fn address(&self) -> Option<Address> {
        self.opened.as_ref().map(|opened| Address::Ethernet(opened.info.address))
    }

    fn frame_limit(&mut self, _to: Address) -> usize {
        let most = self.capabilities().max_frame;
        if self.opened.is_none() {
            return most;
        }
        self.port.limit().map_or(most, |limit| limit.min(most))
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        self.send_batch(batch, None)
    }

    fn receive(&mut self, batch: &mut RxBatch, place: Option<&mut dyn Place>) -> RxReport {
        self.receive_batch(batch, place)
    }

    fn lends(&self) -> Vec<Lendable<'_>> {
        let lends = self.opened.as_ref().and_then(|opened| opened.info.lends.as_ref());
        let one = lends.map(|lends| Lendable {
            memory: lends.memory.as_fd(),
            stride: lends.stride.into(),
            slots: lends.slots,
            most: lends.most,
        });
        one.into_iter().collect()
    }

    fn wake_handle(&self) -> Option<BorrowedFd<'_>> {
        self.opened.as_ref()?.info.wake.as_ref().map(AsFd::as_fd)
    }

    fn arm(&mut self) -> Armed {
        self.flush();
        let Some(opened) = &self.opened else { return Armed::Poll };
        if opened.info.wake.is_none() {
            return Armed::Poll;
        }
        if !opened.held.is_empty() || !opened.built.is_empty() {
            return Armed::Ready;
        }
        self.port.arm().unwrap_or_else(|fault| {
            self.fail(fault);
            Armed::Poll
        })
    }

    fn lost(&mut self) -> Option<String> {
        self.fault.clone()
    }

    fn stats(&self) -> Stats {
        let mut stats = self.stats;
        if self.opened.is_some() {
            let port = self.port.stats();
            (stats.overruns, stats.dropped, stats.calls) = (port.overruns, port.dropped, port.calls);
        }
        stats
    }

    fn close(&mut self) {
        // What was counted stays.
        self.stats = self.stats();
        let Some(opened) = self.opened.take() else { return };
        let Opened { spare, built, held, mut done, .. } = opened;
        done.extend(spare.iter().map(Room::handle));
        done.extend(built.iter().map(|frame| frame.room.handle()));
        done.extend(held.iter().map(Arrived::handle));
        drop((spare, built, held));
        self.port.release(&mut done);
        self.port.close();
    }
}

impl RawDatapath for PluginDatapath {
    fn transmit_behind(&mut self, batch: &mut TxBatch<'_>, front: &mut dyn Front) -> TxReport {
        self.send_batch(batch, Some(front))
    }

    fn receive_in_place(&mut self, limit: usize, see: &mut dyn FnMut(&dyn InPlace) -> bool) -> RxReport {
        self.receive_while(limit, see)
    }

    fn take_back(&mut self, lent: &mut Vec<Slot>) {
        self.take_back_lent(lent);
    }
}

impl Drop for PluginDatapath {
    fn drop(&mut self) {
        self.close();
    }
}
