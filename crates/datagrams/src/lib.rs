//! A datapath that carries raw frames and the packet engine, together a datapath that carries datagrams.
//!
//! Purpose: [`Datagrams`] is to its user what kernel UDP is: an IP address and a port, datagrams of up to what the link carries,
//! one copy each way. Headers are written in front of a payload in the memory that it is sent from; what arrives is checked where
//! it lies, and its payload copied once, to a slot or to where it belongs. Non-purpose: the frames' way through the device, which
//! is the [`RawDatapath`]'s below; what is in the datagrams. Large datagrams are not cut: who sends cuts by
//! [`Datapath::frame_limit`].
//!
//! Where the device can be split ([`RawDatapath::split_raw`]) so can its datagrams: a part receives those that are whole, and gives all
//! else that comes by it to the engine of the first.
//!
//! [`with_streams`] makes two datapaths of one device: such datagrams, and [`Streams`], frames over TCP of the packet engine.
//!
//! Layer: above the packet engine and the datapaths' contract, below the datapaths and the runtime. As a datapath it belongs to
//! one thread at a time, and no call waits but [`Datapath::open`]. The engine's clock runs in `transmit`, `receive` and `arm`: a
//! neighbour that does not answer is asked again when one of them is called; of calls of `receive` in a row that bring nothing, by one
//! in 32.
//!
//! A first datagram to a neighbour waits in the engine until it has answered, as in the kernel; of more than 64 of them the
//! oldest are lost. Meanwhile `transmit` looks for the answer itself, and what else comes then is kept for the next `receive`.
//!
//! ```
//! use insane_datagrams::{DatagramConfig, station_of};
//!
//! let config = DatagramConfig { address: "10.0.0.7/24".parse().unwrap(), port: 7400, gateway: None, vlan: None };
//! assert_eq!(station_of(config.address.address), [0x02, 0x49, 10, 0, 0, 7]);
//! ```
#![forbid(unsafe_code)]

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
mod config;
mod connections;
mod outbox;
mod receive;
mod send;
mod shared;
mod strays;

pub use config::{DatagramConfig, station_of};
pub use connections::{MAX_RECORD, StreamStats};
pub use shared::{SharedDatagrams, StreamCounts, Streams, with_streams};

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use insane_datapath::batch::{Place, RxBatch, RxReport, TxBatch, TxReport};
use insane_datapath::raw::{RawDatapath, RawSplit};
use insane_datapath::{Address, Armed, Capabilities, Datapath, DatapathError, Lendable, Split, Stats};
use insane_netstack::tcp::TcpConfig;
use insane_netstack::{Binding, Config, Engine, Interface, Limits, Mac, Route};

use crate::outbox::Outbox;
use crate::strays::{Strays, Taking};

/// An Ethernet header without tags, in bytes; with one.
const ETHERNET: [usize; 2] = [14, 18];

/// What IPv4 and UDP add to a datagram, in bytes; IPv6 and UDP.
const HEADERS: [usize; 2] = [28, 48];

/// Datagrams that are alike are received into one slot, up to so many bytes.
const JOINED_BYTES: usize = 16 << 10;

/// The engine's bounds. A neighbour is asked again four times a second: who waits for it is a path that says hello.
const LIMITS: Limits = Limits {
    neighbours: 512,
    paths: 1024,
    ports: 4,
    waiting_packets: 256,
    waiting_bytes: 1 << 20,
    waiting_per_neighbour: 64,
    unfinished_packets: 16,
    unfinished_bytes: 512 << 10,
    source_packets: 4,
    source_bytes: 256 << 10,
    smallest_fragment: 256,
    errors: insane_netstack::Rate { per_second: 100, burst: 20 },
    echoes: insane_netstack::Rate { per_second: 1000, burst: 100 },
    retry_ns: 250_000_000,
};

/// See the crate's head.
#[derive(Debug)]
pub struct Datagrams<R> {
    raw: R,
    config: DatagramConfig,
    /// How much of TCP there may be, if somebody wants it.
    tcp: Option<TcpConfig>,
    start: Instant,
    opened: Option<Opened>,
    stats: Stats,
    /// Whether the last look brought something, or there was none yet.
    brought: bool,
    /// How many looks there were.
    looks: u32,
    /// It has a part of another one's device.
    is_part: bool,
}

/// What it has while it is open.
#[derive(Debug)]
struct Opened {
    engine: Engine,
    binding: Binding,
    flows: send::Flows,
    outbox: Outbox,
    /// A frame or a payload in one piece, where it lies in several.
    scratch: Vec<u8>,
    /// What came while an answer was looked for: who sent it, and its payload.
    came: VecDeque<(SocketAddr, Vec<u8>)>,
    /// When the engine has something to do.
    due: u64,
    /// How many of the longest datagrams a slot has room for.
    joined: usize,
    /// The engine has been polled since somebody looked at its connections.
    stirred: bool,
    /// It is a part, and gives what is not for it to these.
    gives: Option<Arc<Strays>>,
    /// It was split, and takes what is not for its parts.
    takes: Option<Taking>,
}

impl<R: RawDatapath> Datagrams<R> {
    /// Datagrams over `raw`, closed. Its filter must let in what is for the address, questions for it included.
    #[must_use]
    pub fn new(raw: R, config: DatagramConfig) -> Self {
        Self {
            raw,
            config,
            tcp: None,
            start: Instant::now(),
            opened: None,
            stats: Stats::default(),
            brought: true,
            looks: 0,
            is_part: false,
        }
    }

    /// What carries the frames.
    #[must_use]
    pub const fn raw(&self) -> &R {
        &self.raw
    }

    /// What the engine has counted since it was opened; `None` while it is closed.
    #[must_use]
    pub fn engine_stats(&self) -> Option<&insane_netstack::Stats> {
        self.opened.as_ref().map(|opened| opened.engine.stats())
    }

    fn now(&self) -> u64 {
        nanoseconds(self.start)
    }

    fn ethernet(&self) -> usize {
        ETHERNET[usize::from(self.config.vlan.is_some())]
    }

    fn headers(&self) -> usize {
        HEADERS[usize::from(self.config.address.address.is_ipv6())]
    }

    /// The engine for a device that was opened.
    fn engine(&self) -> Result<(Engine, Binding), String> {
        let Some(Address::Ethernet(mac)) = self.raw.address() else {
            return Err("what carries its frames has no Ethernet address".into());
        };
        let DatagramConfig { address, port, gateway, vlan } = self.config;
        let mut interface = Interface::new(Mac(mac), vec![address]);
        interface.vlan = vlan;
        let mtu = self.raw.capabilities().max_frame.saturating_sub(self.ethernet());
        interface.mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        let mut config = Config::new(vec![interface], seed());
        config.limits = LIMITS;
        config.tcp = self.tcp.clone();
        let all = insane_netstack::Prefix::new(address.address, 0);
        config.routes.extend(gateway.map(|by| Route { to: all, gateway: Some(by), interface: 0, metric: 1 }));
        let mut engine = Engine::new(&config).map_err(|e| e.to_string())?;
        let binding = engine.bind(Some(address.address), port).map_err(|e| e.to_string())?;
        Ok((engine, binding))
    }

    /// What it has over a device that was opened.
    fn over_device(&self) -> Result<Opened, String> {
        let (engine, binding) = self.engine()?;
        let can = self.capabilities();
        Ok(Opened {
            engine,
            binding,
            flows: send::Flows::default(),
            outbox: Outbox::default(),
            scratch: Vec::new(),
            came: VecDeque::new(),
            due: u64::MAX,
            joined: (can.slot_bytes / can.max_frame.max(1)).max(1),
            stirred: false,
            gives: None,
            takes: None,
        })
    }

    /// Datagrams over a part of the device, which gives what is not for it to `strays`.
    fn part(&self, raw: Box<dyn RawDatapath>, strays: &Arc<Strays>) -> Result<Box<dyn Datapath>, String> {
        let mut part = Datagrams { is_part: true, ..Datagrams::new(raw, self.config) };
        part.opened = Some(Opened { gives: Some(strays.clone()), ..part.over_device()? });
        Ok(Box::new(part))
    }
}

/// How long ago that was.
fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A number that nobody outside can guess.
fn seed() -> u64 {
    let mut bytes = [0; 8];
    // Without the system's source nothing is random: numbers of packets can be guessed then, and no more.
    let _ = getrandom::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

impl<R: RawDatapath> Datapath for Datagrams<R> {
    fn capabilities(&self) -> Capabilities {
        let below = self.raw.capabilities();
        let mut can = below;
        can.max_frame = below.max_frame.saturating_sub(self.ethernet() + self.headers());
        can.slot_bytes = can.max_frame.max(JOINED_BYTES);
        can.places = true;
        // By UDP's checksum.
        can.detects_changes = true;
        can.needs_packet_engine = false;
        can
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        if self.opened.is_some() {
            return Ok(());
        }
        if self.is_part {
            return Err(DatapathError::Closed);
        }
        self.raw.open()?;
        let opened = self.over_device().map_err(|reason| {
            self.raw.close();
            DatapathError::Unavailable { technology: self.raw.capabilities().technology, reason }
        })?;
        self.stats = Stats::default();
        self.opened = Some(opened);
        Ok(())
    }

    fn address(&self) -> Option<Address> {
        let own = SocketAddr::new(self.config.address.address, self.config.port);
        self.opened.as_ref().map(|_| Address::Ip(own))
    }

    fn frame_limit(&mut self, to: Address) -> usize {
        let headers = self.ethernet() + self.headers();
        let most = self.capabilities().max_frame;
        let Address::Ip(to) = to else { return most };
        let (now, link) = (self.now(), self.raw.frame_limit(Address::Ethernet([0; 6])).saturating_sub(headers));
        let path = self.opened.as_ref().and_then(|opened| opened.engine.limit(now, to));
        most.min(link).min(path.unwrap_or(most))
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        self.send_batch(batch)
    }

    fn receive(&mut self, batch: &mut RxBatch, place: Option<&mut dyn Place>) -> RxReport {
        self.receive_batch(batch, place)
    }

    fn lends(&self) -> Vec<Lendable<'_>> {
        self.raw.lends()
    }

    fn split(&mut self, most: usize) -> Split {
        let taking = Taking::new(self.raw.wake_handle());
        let (Ok(taking), Some(_)) = (taking, &self.opened) else {
            return Split { parts: Vec::new(), short: Some("no descriptor is left for its parts".into()) };
        };
        let RawSplit { parts, mut short } = self.raw.split_raw(most);
        let parts = parts.into_iter().map(|raw| self.part(raw, &taking.strays));
        let parts = parts.collect::<Result<Vec<_>, _>>().unwrap_or_else(|why| {
            short = Some(why);
            Vec::new()
        });
        if let Some(opened) = self.opened.as_mut().filter(|_| !parts.is_empty()) {
            opened.takes = Some(taking);
        }
        Split { parts, short }
    }

    fn wake_handle(&self) -> Option<BorrowedFd<'_>> {
        let takes = self.opened.as_ref().and_then(|opened| opened.takes.as_ref());
        takes.map_or_else(|| self.raw.wake_handle(), Taking::wake_handle)
    }

    fn arm(&mut self) -> Armed {
        self.tick(self.now());
        let armed = self.raw.arm();
        let kept = |opened: &Opened| !opened.came.is_empty() || opened.takes.as_ref().is_some_and(Taking::arm);
        if self.opened.as_ref().is_some_and(kept) { Armed::Ready } else { armed }
    }

    fn lost(&mut self) -> Option<String> {
        self.raw.lost()
    }

    fn stats(&self) -> Stats {
        let (mut stats, below) = (self.stats, self.raw.stats());
        (stats.calls, stats.dropped) = (below.calls, below.dropped);
        stats.overruns += below.overruns;
        stats
    }

    fn close(&mut self) {
        self.raw.close();
        self.opened = None;
    }
}
