//! Lines: sockets that are connected to one peer each, to send through.
//!
//! The kernel looks the route up anew for every message that names its receiver; a connected socket keeps it. (0.7 of 7.5 us
//! of a round trip of 64 B between two polled sockets over veth.) But a socket that is connected on the datapath's own
//! address would also receive what the peer sends, so that every peer's socket had to be asked. A line is therefore bound
//! to a multicast group that it never joins: it has the datapath's port, the kernel gives it the address of the route as
//! its source as for any socket without one, and nothing that arrives matches it. Whether the kernel does all this is
//! tried once when the datapath opens, between two sockets of its own; whether a route's source is the datapath's address,
//! for each peer. Where it is not so, the datapath's own socket sends, as it does for peers beyond [`MAX_LINES`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, sockopt};

use crate::UdpConfig;
use crate::socket;

/// The most peers that have a line; further ones share the datapath's own socket.
pub(crate) const MAX_LINES: usize = 64;

/// Of the calls that send to peers without a line, one in so many tries to make one.
const TRY_EVERY: u32 = 256;

/// The groups that lines are bound to; they are for private use (RFC 2365) or no group at all (RFC 4291, section 2.7: an
/// organisation's, transient), and nobody joins them here.
const GROUPS: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(239, 255, 73, 83), Ipv6Addr::new(0xff18, 0, 0, 0, 0, 0, 0x494e, 0x5341));

/// One peer's.
#[derive(Debug)]
struct Line {
    to: SocketAddr,
    /// `None` if it could not be made, or was given up.
    socket: Option<OwnedFd>,
    /// When it was used last, in calls of [`Lines::find`]; 0 for a new one.
    used: u64,
}

/// All lines of a datapath.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// The address that their messages must come from; `None` if there are to be no lines.
    from: Option<SocketAddr>,
    lines: Vec<Line>,
    /// The one that was used last.
    last: usize,
    clock: u64,
    without: u32,
}

impl Lines {
    /// Lines of a datapath at `from`, if this kernel does what they need.
    pub(crate) fn new(from: SocketAddr, config: &UdpConfig) -> Self {
        let works = !from.ip().is_unspecified() && try_out(from, config).unwrap_or(false);
        Self { from: works.then_some(from), ..Self::default() }
    }

    /// How many peers have one.
    pub(crate) fn count(&self) -> usize {
        self.lines.iter().filter(|line| line.socket.is_some()).count()
    }

    /// The number of the line to `to`, which is made if there is none and it is time.
    pub(crate) fn find(&mut self, to: SocketAddr, config: &UdpConfig) -> Option<usize> {
        let from = self.from?;
        self.clock += 1;
        let at = if self.lines.get(self.last).is_some_and(|line| line.to == to) {
            self.last
        } else {
            self.lines.iter().position(|line| line.to == to).or_else(|| self.place_for(to))?
        };
        let line = self.lines.get_mut(at)?;
        if line.socket.is_none() {
            self.without = self.without.wrapping_add(1);
            if line.used == 0 || self.without.is_multiple_of(TRY_EVERY) {
                line.socket = connect(from, to, config);
            }
        }
        line.used = self.clock;
        self.last = at;
        line.socket.is_some().then_some(at)
    }

    /// A new place, or that of the line that was idle for longest if it is time.
    fn place_for(&mut self, to: SocketAddr) -> Option<usize> {
        let line = Line { to, socket: None, used: 0 };
        if self.lines.len() < MAX_LINES {
            self.lines.push(line);
            return Some(self.lines.len() - 1);
        }
        self.without = self.without.wrapping_add(1);
        if !self.without.is_multiple_of(TRY_EVERY) {
            return None;
        }
        let (at, idle) = self.lines.iter_mut().enumerate().min_by_key(|(_, line)| line.used)?;
        *idle = line;
        Some(at)
    }

    pub(crate) fn socket(&self, at: usize) -> Option<BorrowedFd<'_>> {
        self.lines.get(at)?.socket.as_ref().map(AsFd::as_fd)
    }

    /// The line has refused what the datapath's own socket may not: it is made again later.
    pub(crate) fn give_up(&mut self, at: usize) {
        if let Some(line) = self.lines.get_mut(at) {
            line.socket = None;
        }
    }
}

/// A line from `from` to `to`, if the route to it has that source.
fn connect(from: SocketAddr, to: SocketAddr, config: &UdpConfig) -> Option<OwnedFd> {
    let asks = socket::new(config).ok()?;
    net::connect(&asks, &to).ok()?;
    let source = SocketAddr::try_from(net::getsockname(&asks).ok()?).ok()?;
    if source.ip() != from.ip() {
        return None;
    }
    let line = socket::new(config).ok()?;
    socket::size_send_buffer(&line, config.send_buffer);
    sockopt::set_socket_reuseaddr(&line, true).ok()?;
    let group = match from.ip() {
        IpAddr::V4(_) => IpAddr::V4(GROUPS.0),
        IpAddr::V6(_) => IpAddr::V6(GROUPS.1),
    };
    net::bind(&line, &SocketAddr::new(group, from.port())).ok()?;
    net::connect(&line, &to).ok()?;
    Some(line)
}

/// Whether what is sent through a line comes from the datapath's address, and what is sent there does not come to the line.
/// Nothing leaves the host: a socket at a port of the kernel's choice talks to itself.
fn try_out(from: SocketAddr, config: &UdpConfig) -> Option<bool> {
    let own = socket::new(config).ok()?;
    net::bind(&own, &SocketAddr::new(from.ip(), 0)).ok()?;
    let here = SocketAddr::try_from(net::getsockname(&own).ok()?).ok()?;
    let line = connect(here, here, config)?;
    let (sent, mut came) = ([0x49, 0x4e], [0; 4]);
    net::send(&line, &sent, SendFlags::DONTWAIT).ok()?;
    let (_, got, source) = net::recvfrom(&own, &mut came, RecvFlags::DONTWAIT).ok()?;
    let right = got == sent.len() && source.and_then(|a| SocketAddr::try_from(a).ok()) == Some(here);
    // And nothing else was sent or copied to the line.
    let nothing = matches!(net::recv(&line, &mut came, RecvFlags::DONTWAIT), Err(Errno::AGAIN));
    Some(right && nothing)
}
