//! INSANE over kernel UDP.
//!
//! Purpose: a [`Datapath`] that gets out of kernel sockets what they can give: frames of one size to one address go to the
//! kernel as one piece (UDP_SEGMENT) and come from it joined (UDP_GRO), many such pieces a system call (`sendmmsg`,
//! `recvmmsg`), into the caller's slots, and large messages straight to where they belong (peeked at, then scattered).
//! Several threads receive from as many sockets at the address, which the kernel chooses by who has sent ([`Datapath::split`]).
//! Nothing ever waits. The path's MTU is respected: frames are never cut by IP. Non-purpose: what is in the frames.
//!
//! Layer: a datapath. `unsafe` is in `sys` alone, for the calls that no safe crate offers.
//!
//! ```
//! use insane_datapath::Datapath;
//! use insane_datapath_udp::{UdpConfig, UdpDatapath};
//!
//! let mut udp = UdpDatapath::new(UdpConfig::new("127.0.0.1:0".parse().unwrap()));
//! udp.open().unwrap();
//! println!("at {}, {:?}", udp.address().unwrap(), udp.notes());
//! ```

mod config;
mod group;
mod lines;
mod receive;
mod socket;
mod sys;
mod transmit;

pub use config::UdpConfig;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use insane_datapath::batch::{PEEK_BYTES, Place, RxBatch, RxReport, TxBatch, TxReport};
use insane_datapath::memory::Slot;
use insane_datapath::{Address, Armed, Capabilities, Datapath, DatapathError, Foreign, Split, Stats};
use rustix::net::{self, sockopt};

use crate::lines::Lines;
use crate::socket::system;

/// The most bytes that UDP over IPv4 carries in a datagram.
const MAX_V4: usize = 65_507;

/// The most bytes that UDP over IPv6 carries in a datagram.
const MAX_V6: usize = 65_487;

/// What IPv4 and UDP add to a frame, in bytes.
const HEADERS_V4: usize = 28;

/// What IPv6 and UDP add to a frame, in bytes.
const HEADERS_V6: usize = 48;

/// A slot that joined frames always fit in.
const SLOT_BYTES: usize = 65_536;

/// A UDP socket as a datapath.
#[derive(Debug)]
pub struct UdpDatapath {
    config: UdpConfig,
    socket: Option<OwnedFd>,
    /// Never used to send: it is connected to peers to ask for their path's MTU.
    probe: Option<OwnedFd>,
    address: Option<SocketAddr>,
    /// The number of the only interface that it uses.
    index: Option<u32>,
    lines: Lines,
    /// Whether the kernel cuts pieces into segments; off when it has refused to.
    segmentation: bool,
    notes: Vec<String>,
    /// It is a further socket of another one's group.
    is_part: bool,
    /// What the socket's receive buffer holds, in bytes as the kernel counts them.
    holds: usize,
    stats: Stats,
    out: sys::Messages,
    into: sys::Messages,
    /// The line along which `out` goes; without one each message has its address.
    line: Option<usize>,
    /// The frames of each message in `out`.
    runs: Vec<usize>,
    filling: Vec<Slot>,
    /// How many messages of `into` are as they were made for slots, for nothing came.
    offered: usize,
    /// How many looks in a row have brought one frame each, and whether the last of them has left it open if there were more.
    lone: u8,
    left_open: bool,
    peeked: [u8; PEEK_BYTES],
    overruns: u32,
}

impl UdpDatapath {
    /// A datapath, closed.
    #[must_use]
    pub fn new(config: UdpConfig) -> Self {
        Self {
            config,
            socket: None,
            probe: None,
            address: None,
            index: None,
            lines: Lines::default(),
            segmentation: false,
            notes: Vec::new(),
            is_part: false,
            holds: 0,
            stats: Stats::default(),
            out: sys::Messages::new(),
            into: sys::Messages::new(),
            line: None,
            runs: Vec::new(),
            filling: Vec::new(),
            offered: 0,
            lone: 0,
            left_open: false,
            peeked: [0; PEEK_BYTES],
            overruns: 0,
        }
    }

    /// What the kernel refused or gave less of than was asked, in words for `doctor` and the log.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn set_options(&mut self, socket: &OwnedFd) {
        let on = |option, value| sys::set(socket.as_fd(), option, value);
        if self.config.joined_receive
            && let Err(e) = on(sys::SocketOption::Gro, 1)
        {
            self.notes.push(format!("frames are received one by one: UDP_GRO: {e}"));
        }
        if let Err(e) = on(sys::SocketOption::CountOverruns, 1) {
            self.notes.push(format!("datagrams that the socket drops are not counted: SO_RXQ_OVFL: {e}"));
        }
        if let Some(time) = self.config.busy_poll
            && let Err(e) = on(sys::SocketOption::BusyPoll, i32::try_from(time.as_micros()).unwrap_or(i32::MAX))
        {
            self.notes.push(format!("the device is not polled: SO_BUSY_POLL: {e}; it takes CAP_NET_ADMIN"));
        }
    }

    /// How many peers are sent to through sockets of their own, for which the kernel keeps the route.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.lines.count()
    }

    /// The number that its interface has now, if it is bound to one and that is there.
    fn index_now(&self, by: &OwnedFd) -> Option<u32> {
        self.config.interface.as_ref().and_then(|name| net::netdevice::name_to_index(by, name).ok())
    }

    /// What UDP can carry to this family at most.
    fn family_limit(&self) -> (usize, usize) {
        if self.config.bind.is_ipv4() { (MAX_V4, HEADERS_V4) } else { (MAX_V6, HEADERS_V6) }
    }
}

impl Datapath for UdpDatapath {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::plain("udp", self.family_limit().0);
        can.slot_bytes = SLOT_BYTES;
        can.holds = self.holds;
        can.burst = 256;
        can.joins = if self.segmentation { (transmit::MAX_SEGMENTS, transmit::MAX_SEGMENTED) } else { (1, 0) };
        can.foreign = Foreign::Gathers;
        can.places = true;
        can.detects_changes = true;
        can
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        if self.socket.is_some() {
            return Ok(());
        }
        if self.is_part {
            return Err(DatapathError::Closed);
        }
        let socket = socket::new(&self.config)?;
        self.index = self.index_now(&socket);
        (self.holds, self.notes) = socket::size_buffers(&socket, &self.config);
        self.set_options(&socket);
        net::bind(&socket, &self.config.bind).map_err(system("bind"))?;
        let address = net::getsockname(&socket).map_err(system("getsockname"))?;
        self.address = SocketAddr::try_from(address).ok();
        self.probe = Some(socket::new(&self.config)?);
        self.lines = match self.address {
            Some(address) if self.config.lines => Lines::new(address, &self.config),
            _ => Lines::default(),
        };
        self.segmentation = self.config.segmentation;
        self.stats = Stats::default();
        self.overruns = 0;
        self.socket = Some(socket);
        Ok(())
    }

    fn address(&self) -> Option<Address> {
        self.address.map(Address::Ip)
    }

    fn frame_limit(&mut self, to: Address) -> usize {
        let (most, headers) = self.family_limit();
        let (Address::Ip(to), Some(probe)) = (to, &self.probe) else { return most };
        if net::connect(probe, &to).is_err() {
            return most;
        }
        let mtu = if to.is_ipv4() { sockopt::ip_mtu(probe) } else { sockopt::ipv6_mtu(probe) };
        mtu.map_or(most, |mtu| (mtu as usize).saturating_sub(headers).min(most))
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        self.send_batch(batch)
    }

    fn receive(&mut self, batch: &mut RxBatch, place: Option<&mut dyn Place>) -> RxReport {
        self.receive_batch(batch, place)
    }

    fn split(&mut self, most: usize) -> Split {
        self.split_sockets(most)
    }

    fn wake_handle(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    fn arm(&mut self) -> Armed {
        // The socket stays readable as long as something is there, so nothing can be missed.
        if self.socket.is_some() { Armed::Sleep } else { Armed::Poll }
    }

    fn lost(&mut self) -> Option<String> {
        let Some(socket) = &self.socket else { return Some("it is closed".into()) };
        // The sockets are bound to its number. As long as there is none, nothing is gained by letting go of the address.
        let other = self.index_now(socket).filter(|now| Some(*now) != self.index)?;
        let name = self.config.interface.as_deref().unwrap_or_default();
        Some(format!("the interface {name} was made again, as number {other}"))
    }

    fn stats(&self) -> Stats {
        self.stats
    }

    fn close(&mut self) {
        self.socket = None;
        self.probe = None;
        self.lines = Lines::default();
        self.address = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_socket_polls_its_device_as_long_as_it_was_told_or_a_note_says_why_not() {
        let mut config = UdpConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        let open = |config: &UdpConfig| {
            let mut udp = UdpDatapath::new(config.clone());
            udp.open().unwrap();
            let is = sys::get(udp.socket.as_ref().unwrap().as_fd(), sys::SocketOption::BusyPoll).unwrap();
            (is, udp.notes().iter().any(|note| note.contains("SO_BUSY_POLL")))
        };
        let (before, noted) = open(&config);
        assert!(!noted && before != 77);
        config.busy_poll = Some(Duration::from_micros(77));
        let (is, noted) = open(&config);
        assert!(if noted { is == before } else { is == 77 }, "{is}");
    }
}
