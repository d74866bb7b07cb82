//! The engine: what comes in, what goes out, and when something is to be done.

mod control;
mod last;
mod receive;
pub(crate) use receive::Event;
mod send;

use core::ops::Range;
use std::net::{IpAddr, SocketAddr};

use crate::config::{Config, ConfigError, Link};
use crate::emit::Emit;
use crate::flow::Flow;
use crate::icmp::Problem;
use crate::neighbour::{Due, Key, Neighbours, Said};
use crate::path::Paths;
use crate::ports::{BindError, Binding, Ports};
use crate::rate::Bucket;
use crate::reassembly::{Bounds, Reassembly};
use crate::route::{Route, Routes};
use crate::stats::{Reason, Stats};
use crate::tcp::Tcp;
use crate::waiting::Waiting;

/// A frame that came in.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'f> {
    /// The device that it came from.
    pub device: u8,
    /// Its bytes, from the destination's station on, without the checksum of Ethernet.
    pub frame: &'f [u8],
    /// The device has found the UDP checksum right, or the frame has not left this machine.
    pub verified: bool,
}

impl<'f> Arrival<'f> {
    /// A frame about which the device says nothing.
    #[must_use]
    pub const fn new(device: u8, frame: &'f [u8]) -> Self {
        Self { device, frame, verified: false }
    }
}

/// What became of a frame.
#[derive(Debug)]
#[non_exhaustive]
pub enum Received<'e> {
    /// It is a UDP datagram for a bound port, or completed one.
    Udp(Datagram<'e>),
    /// It was handed to TCP, whose connections may have changed.
    Tcp,
    /// Somebody says that something sent from here had a problem.
    Problem(Report),
    /// The engine has dealt with it.
    Done,
    /// It is a piece of a packet that waits for others.
    Held,
    /// It was dropped, and counted.
    Dropped(Reason),
}

/// A UDP datagram.
#[derive(Debug)]
#[non_exhaustive]
pub struct Datagram<'e> {
    /// Whose it is.
    pub binding: Binding,
    /// Who sent it. An address of a link has the interface's number plus 1 as its scope.
    pub from: SocketAddr,
    /// To which of our addresses, or groups, it came.
    pub to: SocketAddr,
    /// Its payload.
    pub payload: Payload<'e>,
}

/// Where a payload is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload<'e> {
    /// In the frame that was received: these of its bytes.
    Frame(Range<usize>),
    /// In the engine, put together from several frames; until its next call.
    Whole(&'e [u8]),
}

impl<'e> Payload<'e> {
    /// The bytes; `frame` is the frame that was received.
    #[must_use]
    pub fn bytes<'a>(&'a self, frame: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Frame(range) => frame.get(range.clone()).unwrap_or(&[]),
            Self::Whole(bytes) => bytes,
        }
    }
}

/// A problem with something sent from here, as a router or the receiver reports it. The reporter may lie: it has to know
/// who sent what to whom, no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Whose datagram it was; `None` for TCP.
    pub binding: Option<Binding>,
    /// From where it was sent.
    pub from: SocketAddr,
    /// To where.
    pub to: SocketAddr,
    /// Who reports it.
    pub reporter: IpAddr,
    /// What is wrong. [`Problem::TooBig`] has been taken into account already, with the MTU that is used from now on.
    pub problem: Problem,
}

/// A stack of protocols over raw frames: see the crate's head.
#[derive(Debug)]
pub struct Engine {
    pub(crate) links: Vec<Link>,
    pub(crate) routes: Routes,
    pub(crate) neighbours: Neighbours,
    pub(crate) waiting: Waiting,
    pub(crate) paths: Paths,
    pub(crate) ports: Ports,
    pub(crate) reassembly: Reassembly,
    pub(crate) errors: Bucket,
    pub(crate) echoes: Bucket,
    pub(crate) stats: Stats,
    pub(crate) hop_limit: u8,
    /// Of everything here that flows remember; the neighbours have their own.
    pub(crate) generation: u64,
    /// A packet put together from its pieces.
    pub(crate) assembled: Vec<u8>,
    /// A packet that has waited.
    pub(crate) scratch: Vec<u8>,
    pub(crate) tcp: Option<Box<Tcp>>,
    last: Option<last::Last>,
}

impl Engine {
    /// Makes an engine. Takes all memory that it will ever need for what others send.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        if config.interfaces.is_empty() || config.interfaces.len() > 64 {
            return Err(ConfigError::Interfaces(config.interfaces.len()));
        }
        let links = config.interfaces.iter().enumerate().map(|(number, one)| Link::new(number, one));
        let links = links.collect::<Result<Vec<Link>, _>>()?;
        let mut routes = Routes::default();
        for (number, link) in links.iter().enumerate() {
            if links[..number].iter().any(|other| (other.device, other.vlan) == (link.device, link.vlan)) {
                return Err(ConfigError::Duplicate(number));
            }
            for prefix in &link.addresses {
                routes.add(Route { to: *prefix, gateway: None, interface: number as u8, metric: 0 });
            }
        }
        for (number, route) in config.routes.iter().enumerate() {
            if usize::from(route.interface) >= links.len() || !routes.add(*route) {
                return Err(ConfigError::Route(number));
            }
        }
        let limits = &config.limits;
        let bounds = Bounds {
            packets: limits.unfinished_packets,
            bytes: limits.unfinished_bytes,
            source_packets: limits.source_packets,
            source_bytes: limits.source_bytes,
            smallest: limits.smallest_fragment,
        };
        let smallest_mtu = links.iter().map(|link| link.mtu).min().unwrap_or(1500);
        Ok(Self {
            links,
            routes,
            neighbours: Neighbours::new(limits.neighbours, limits.retry_ns.max(1_000_000), config.seed),
            waiting: Waiting::new(limits.waiting_packets, limits.waiting_bytes, limits.waiting_per_neighbour),
            paths: Paths::new(limits.paths, config.seed),
            ports: Ports::new(limits.ports, config.seed),
            reassembly: Reassembly::new(bounds),
            errors: Bucket::new(limits.errors),
            echoes: Bucket::new(limits.echoes),
            stats: Stats::default(),
            hop_limit: config.hop_limit.max(1),
            generation: 1,
            assembled: vec![0; crate::ip::MAX_PACKET + crate::ip::V6_BYTES],
            scratch: vec![0; crate::ip::MAX_PACKET],
            tcp: config.tcp.as_ref().map(|tcp| Box::new(Tcp::new(tcp, config.seed, smallest_mtu as usize))),
            last: None,
        })
    }

    /// Binds a UDP port, for one of our addresses or (`None`) for all of both families; port 0 takes a free one, which
    /// [`Engine::bound`] tells. Allocates.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(&mut self, address: Option<IpAddr>, port: u16) -> Result<Binding, BindError> {
        if let Some(address) = address.filter(|address| !self.links.iter().any(|link| link.has(*address))) {
            return Err(BindError::NotOurs(address));
        }
        self.last = None;
        self.ports.bind(address, port).map(|(binding, _)| binding)
    }

    /// Gives a port back. Flows of it can no longer be sent on. Whether it was bound.
    pub fn unbind(&mut self, binding: Binding) -> bool {
        self.generation += 1;
        self.last = None;
        self.ports.unbind(binding)
    }

    /// The address, if bound to one, and the port of a binding.
    #[must_use]
    pub fn bound(&self, binding: Binding) -> Option<(Option<IpAddr>, u16)> {
        self.ports.get(binding)
    }

    /// Datagrams from a bound port to a destination, for [`Engine::header`]. For an address of a link, the scope is the
    /// interface's number plus 1; with 0 the first interface that can is taken.
    #[must_use]
    pub fn flow(&self, binding: Binding, to: SocketAddr) -> Flow {
        Flow::new(binding, to)
    }

    /// Adds a route, in the place of one with the same prefix, metric and interface.
    ///
    /// # Errors
    /// [`ConfigError::Route`] with its place among the routes: its interface is not there, its gateway is of another
    /// family, or there are too many.
    pub fn add_route(&mut self, route: Route) -> Result<(), ConfigError> {
        self.generation += 1;
        if usize::from(route.interface) < self.links.len() && self.routes.add(route) {
            return Ok(());
        }
        Err(ConfigError::Route(self.routes.all().len()))
    }

    /// Takes a route out; whether it was there.
    pub fn remove_route(&mut self, route: &Route) -> bool {
        self.generation += 1;
        self.routes.remove(route)
    }

    /// Our addresses with the prefixes of their links and the numbers of their interfaces.
    pub fn addresses(&self) -> impl Iterator<Item = (u8, crate::route::Prefix)> + '_ {
        let numbered = self.links.iter().enumerate();
        numbered.flat_map(|(number, link)| link.addresses.iter().map(move |prefix| (number as u8, *prefix)))
    }

    /// All routes, in the order in which they are tried.
    #[must_use]
    pub fn routes(&self) -> &[Route] {
        self.routes.all()
    }

    /// What was counted.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// How much there is of what is bounded: neighbours, unfinished packets, waiting packets.
    #[must_use]
    pub fn usage(&self) -> [usize; 3] {
        [self.neighbours.len(), self.reassembly.len(), self.waiting.len()]
    }

    /// The largest UDP payload that goes to an address in one packet, in bytes; `None` without a route.
    #[must_use]
    pub fn limit(&self, now: u64, to: SocketAddr) -> Option<usize> {
        let (link, _) = self.hop(to.ip(), send::scope(to)).ok()?;
        let mtu = self.paths.mtu(now, to.ip(), self.links.get(link)?.mtu);
        Some((mtu - Link::ip_header(to.ip())) as usize - crate::udp::HEADER_BYTES)
    }

    pub(crate) fn generation(&self) -> u64 {
        // Both only rise, so that their sum changes when one does.
        self.generation + self.neighbours.generation
    }

    /// Does what is due: asks for neighbours, gives up what has waited too long, lets TCP send. To be called after frames
    /// were received, and at the time that it returns; `None` if nothing will be due.
    pub fn poll(&mut self, now: u64, out: &mut dyn Emit) -> Option<u64> {
        self.tcp_poll(now, out);
        let mut from = 0;
        while let Some((place, key, due)) = self.neighbours.due(now, from) {
            from = place + 1;
            match due {
                Due::Ask(station) => self.ask(now, key, station, out),
                Due::Silent => {
                    while self.waiting.give_up(place) {
                        self.stats.drop(Reason::NeighbourSilent);
                    }
                }
            }
        }
        self.neighbours.settle(now);
        while let Some((spoiled, told)) = self.reassembly.expire(now) {
            if !spoiled {
                self.stats.drop(Reason::ReassemblyTimeout);
            }
            if let Some(told) = told {
                self.reassembly_error(now, &told, out);
            }
        }
        self.due(now)
    }

    /// When [`Engine::poll`] is to be called next; `None` if nothing will be due.
    pub fn due(&mut self, now: u64) -> Option<u64> {
        let next = self.neighbours.next().min(self.reassembly.next()).min(self.tcp_next(now));
        (next < u64::MAX).then_some(next)
    }

    /// Takes in what a neighbour said, and sends what has waited for it.
    fn heard(&mut self, now: u64, key: Key, said: Said, unasked: Reason, out: &mut dyn Emit) -> Result<(), Reason> {
        use crate::neighbour::Learnt;
        match self.neighbours.hear(now, key, said) {
            Learnt::Known => Ok(()),
            Learnt::Unasked => Err(unasked),
            Learnt::Full => Err(Reason::NeighboursFull),
            Learnt::Resolved(place) => {
                let mut scratch = core::mem::take(&mut self.scratch);
                while let Some((meta, len)) = self.waiting.unpark(place, &mut scratch) {
                    // Counted if it fails.
                    let _ = self.output(now, &meta, &[&scratch[..len]], out);
                }
                self.scratch = scratch;
                Ok(())
            }
        }
    }
}
