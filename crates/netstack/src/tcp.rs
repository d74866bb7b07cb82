//! TCP over the engine: streams of bytes, by smoltcp (ADR 20).
//!
//! smoltcp has the state machine of TCP (RFC 9293), with retransmission, windows and congestion control (Reno). Everything
//! below is the engine's: a segment comes here after the engine has checked and put together its packet, and what TCP sends
//! goes through the engine's routes, neighbours and path MTUs. Memory for connections is taken when the user listens or
//! connects, never because of what comes in.
//!
//! No call waits. What was written is sent by the next [`Engine::poll`].

mod pipe;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use smoltcp::iface::{self, SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::tcp as smol;
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, IpListenEndpoint};

use crate::emit::Emit;
use crate::engine::{Engine, Event};
use crate::ether::Mac;
use crate::flow::endpoint;
use crate::ip::{self, Head, Ip};
use crate::nd;
use crate::stats::Reason;
use crate::waiting::Meta;
use pipe::Pipe;

/// How much of TCP there may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpConfig {
    /// Connections, with those that listeners hold ready.
    pub connections: usize,
    /// How many bytes of a connection wait to be read.
    pub receive_bytes: usize,
    /// How many bytes of a connection wait to be sent or acknowledged.
    pub send_bytes: usize,
    /// How long a peer may be silent while it owes an answer, in nanoseconds; then the connection is reset.
    pub patience_ns: u64,
    /// After how long a pause a peer is asked whether it is there, in nanoseconds; 0 for never. This also finds out that a
    /// peer that had no room has some again, should its word of it get lost: TCP here has no other probe for that.
    pub keep_alive_ns: u64,
    /// Whether small pieces wait for the acknowledgement of what was sent before (RFC 9293 §3.7.4).
    pub gather_small: bool,
}

impl Default for TcpConfig {
    /// 64 connections with 256 KiB each way; 15 s of patience, asked after 1 s; small pieces go at once.
    fn default() -> Self {
        Self {
            connections: 64,
            receive_bytes: 256 << 10,
            send_bytes: 256 << 10,
            patience_ns: 15_000_000_000,
            keep_alive_ns: 1_000_000_000,
            gather_small: false,
        }
    }
}

/// A connection of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Connection(u32);

/// A port at which an engine takes connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Listener(u32);

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TcpState {
    /// The peer has not answered yet.
    Opening,
    /// Both ends may send.
    Open,
    /// The peer sends no more; what it has sent may not be read yet.
    PeerClosed,
    /// Nothing more is sent, by either end: closed, reset, or never opened.
    Closed,
}

/// Why something cannot be done with TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum TcpError {
    /// The configuration has no TCP.
    #[error("this engine has no TCP: its configuration says so")]
    Off,
    /// There are as many connections as the configuration allows.
    #[error("there are as many connections as the configuration allows")]
    Full,
    /// Somebody listens there already.
    #[error("port {0} is taken already")]
    InUse(u16),
    /// There is no way to that address, or the port is 0.
    #[error("there is no way to that address")]
    NoRoute,
    /// The connection is not open, or was released.
    #[error("the connection is not open")]
    NotOpen,
    /// The peer has closed, and everything that it sent was read.
    #[error("the peer has closed the connection and everything was read")]
    Ended,
    /// The peer has reset the connection, or has not answered.
    #[error("the connection was reset, or its peer has gone")]
    Reset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Held ready by a listener, or with a peer and not accepted yet.
    Ready(Listener),
    Used(Connection),
    /// Given up by its user: closes by itself.
    Leaving(Leave),
}

/// How far an end is that nobody uses any more, and until when that must change: a peer that takes nothing, or never closes, does not
/// hold its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Leave {
    /// Its state, and what is left to be sent; `None` if that was not looked at yet.
    seen: Option<(smol::State, usize)>,
    until: u64,
}

#[derive(Debug, Clone, Copy)]
struct Listening {
    listener: Listener,
    at: IpListenEndpoint,
    backlog: usize,
}

pub(crate) struct Tcp {
    config: TcpConfig,
    iface: iface::Interface,
    sockets: SocketSet<'static>,
    pipe: Pipe,
    ends: Vec<(SocketHandle, Role)>,
    listeners: Vec<Listening>,
    next: u32,
    dynamic: u16,
    askers: Askers,
}

/// Who sent segments last that are of no connection, with the interfaces and stations that these came from: what TCP answers goes
/// there. The oldest makes room.
struct Askers {
    list: Vec<(IpAddr, (usize, Mac))>,
    oldest: usize,
}

impl Askers {
    /// As many as there can be answers on their way.
    const MOST: usize = 128;

    fn note(&mut self, asker: IpAddr, from: (usize, Mac)) {
        if let Some(known) = self.list.iter_mut().find(|(address, _)| *address == asker) {
            known.1 = from;
        } else if self.list.len() < Self::MOST {
            self.list.push((asker, from));
        } else {
            self.list[self.oldest] = (asker, from);
            self.oldest = (self.oldest + 1) % Self::MOST;
        }
    }

    fn find(&self, asker: IpAddr) -> Option<(usize, Mac)> {
        self.list.iter().find(|(address, _)| *address == asker).map(|(_, from)| *from)
    }
}

impl core::fmt::Debug for Tcp {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Tcp").field("ends", &self.ends).field("listeners", &self.listeners).finish_non_exhaustive()
    }
}

/// The ports from which connections go out.
const DYNAMIC: core::ops::RangeInclusive<u16> = 49_152..=65_535;

fn instant(now: u64) -> Instant {
    Instant::from_micros(i64::try_from(now / 1000).unwrap_or(i64::MAX))
}

impl Tcp {
    pub(crate) fn new(config: &TcpConfig, seed: u64, mtu: usize) -> Self {
        let mut pipe = Pipe::new(mtu);
        let mut of_iface = iface::Config::new(HardwareAddress::Ip);
        of_iface.random_seed = seed;
        let mut iface = iface::Interface::new(of_iface, &mut pipe, Instant::ZERO);
        // Whose addresses are ours is the engine's affair: TCP takes everything that it is given. That is done by a route
        // to everything through an address of its own, which appears nowhere (RFC 7600, RFC 6666).
        let (four, six) = (Ipv4Addr::new(192, 0, 0, 8), Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1));
        iface.update_ip_addrs(|own| {
            // There is room for two.
            let _ = own.push(IpCidr::new(IpAddress::Ipv4(four), 32));
            let _ = own.push(IpCidr::new(IpAddress::Ipv6(six), 128));
        });
        let _ = iface.routes_mut().add_default_ipv4_route(four);
        let _ = iface.routes_mut().add_default_ipv6_route(six);
        iface.set_any_ip(true);
        let storage: Vec<SocketStorage<'static>> = (0..config.connections).map(|_| SocketStorage::EMPTY).collect();
        Self {
            config: config.clone(),
            iface,
            sockets: SocketSet::new(storage),
            pipe,
            ends: Vec::with_capacity(config.connections),
            listeners: Vec::new(),
            next: 0,
            dynamic: DYNAMIC.start() + (seed >> 16) as u16 % 16_384,
            askers: Askers { list: Vec::with_capacity(Askers::MOST), oldest: 0 },
        }
    }

    fn number(&mut self) -> u32 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    /// A new end, with memory of its own.
    fn add(&mut self, role: Role) -> Result<SocketHandle, TcpError> {
        if self.ends.len() >= self.config.connections {
            return Err(TcpError::Full);
        }
        let buffer = |len: usize| smol::SocketBuffer::new(vec![0; len.max(1)]);
        let mut socket = smol::Socket::new(buffer(self.config.receive_bytes), buffer(self.config.send_bytes));
        let span = |ns: u64| (ns > 0).then(|| Duration::from_micros(ns / 1000));
        socket.set_timeout(span(self.config.patience_ns));
        socket.set_keep_alive(span(self.config.keep_alive_ns));
        socket.set_nagle_enabled(self.config.gather_small);
        socket.set_congestion_control(smol::CongestionControl::Reno);
        let handle = self.sockets.add(socket);
        self.ends.push((handle, role));
        Ok(handle)
    }

    fn socket(&mut self, connection: Connection) -> Result<&mut smol::Socket<'static>, TcpError> {
        let found = self.ends.iter().find(|(_, role)| *role == Role::Used(connection));
        let handle = found.ok_or(TcpError::NotOpen)?.0;
        Ok(self.sockets.get_mut(handle))
    }

    /// Lets listeners hold as many ends ready as they were asked to, and frees those that have ended.
    fn tidy(&mut self) {
        let mut at = 0;
        while let Some((handle, role)) = self.ends.get(at).copied() {
            let socket = self.sockets.get_mut::<smol::Socket<'_>>(handle);
            let closed = socket.state() == smol::State::Closed;
            match role {
                Role::Leaving(_) if closed => {
                    self.sockets.remove(handle);
                    self.ends.swap_remove(at);
                    continue;
                }
                Role::Ready(listener) if closed => {
                    // Its peer was reset or has gone before it was accepted.
                    if let Some(listening) = self.listeners.iter().find(|one| one.listener == listener) {
                        let _ = socket.listen(listening.at);
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Resets what was given up and gets no further.
    fn hurry(&mut self, now: u64) {
        let patience = self.config.patience_ns;
        for (handle, role) in &mut self.ends {
            let Role::Leaving(leave) = role else { continue };
            let socket = self.sockets.get_mut::<smol::Socket<'_>>(*handle);
            let seen = Some((socket.state(), socket.send_queue()));
            if leave.seen != seen {
                // The last wait ends by itself.
                let never = patience == 0 || socket.state() == smol::State::TimeWait;
                let until = if never { u64::MAX } else { now.saturating_add(patience) };
                *leave = Leave { seen, until };
            } else if now >= leave.until {
                socket.abort();
            }
        }
    }

    /// When something that was given up must have got further.
    fn hurry_at(&self) -> u64 {
        let leaving = self.ends.iter().filter_map(|(_, role)| match role {
            Role::Leaving(leave) => Some(leave.until),
            _ => None,
        });
        leaving.min().unwrap_or(u64::MAX)
    }

    fn listen(&mut self, listening: Listening) -> Result<(), TcpError> {
        let ready = |tcp: &Self| tcp.ends.iter().filter(|(_, role)| *role == Role::Ready(listening.listener)).count();
        while ready(self) < listening.backlog {
            let handle = self.add(Role::Ready(listening.listener))?;
            let _ = self.sockets.get_mut::<smol::Socket<'_>>(handle).listen(listening.at);
        }
        Ok(())
    }

    /// How far the connection between two ends is, if there is one.
    fn state(&self, own: (IpAddr, u16), peer: (IpAddr, u16)) -> Option<smol::State> {
        let same = |end: Option<smoltcp::wire::IpEndpoint>, other: (IpAddr, u16)| {
            end.is_some_and(|end| (IpAddr::from(end.addr), end.port) == other)
        };
        let mut sockets = self.ends.iter().map(|(handle, _)| self.sockets.get::<smol::Socket<'_>>(*handle));
        let found = sockets.find(|one| same(one.local_endpoint(), own) && same(one.remote_endpoint(), peer));
        found.map(smol::Socket::state)
    }

    /// Whether a segment that has come in is of a connection.
    fn has(&self, ip: &Ip, segment: &[u8]) -> bool {
        let Some((from, to)) = ports(segment) else { return false };
        self.state((ip.to, to), (ip.from, from)).is_some()
    }

    /// Whether a segment that goes out only answers a stranger: it is of no connection, or of one that nobody here wanted and
    /// whose peer has not shown yet that it hears us.
    fn answers(&self, ip: &Ip, segment: &[u8]) -> bool {
        let Some((from, to)) = ports(segment) else { return true };
        self.state((ip.from, from), (ip.to, to)).is_none_or(|state| state == smol::State::SynReceived)
    }

    /// A free port for a connection to an address.
    fn free_port(&mut self, to: SocketAddr) -> Option<u16> {
        let taken = |port: u16| {
            self.ends.iter().any(|(handle, _)| {
                let socket = self.sockets.get::<smol::Socket<'_>>(*handle);
                socket.local_endpoint().is_some_and(|own| own.port == port)
                    && socket.remote_endpoint().is_some_and(|peer| peer.port == to.port())
            }) || self.listeners.iter().any(|one| one.at.port == port)
        };
        let count = DYNAMIC.len() as u16;
        let nth = |n: u16| DYNAMIC.start() + (self.dynamic - DYNAMIC.start() + n) % count;
        let port = (0..count).map(nth).find(|port| !taken(*port))?;
        self.dynamic = if port == u16::MAX { *DYNAMIC.start() } else { port + 1 };
        Some(port)
    }
}

impl Engine {
    fn tcp_mut(&mut self) -> Result<&mut Tcp, TcpError> {
        self.tcp.as_deref_mut().ok_or(TcpError::Off)
    }

    /// Takes connections to a port, of one of our addresses or (`None`) of all. `backlog` ends are held ready, each with the
    /// memory of a connection: so many may open between two calls of [`Engine::tcp_accept`].
    ///
    /// # Errors
    /// [`TcpError::Off`], [`TcpError::InUse`], [`TcpError::Full`].
    pub fn tcp_listen(&mut self, address: Option<IpAddr>, port: u16, backlog: usize) -> Result<Listener, TcpError> {
        let tcp = self.tcp_mut()?;
        let at = IpListenEndpoint { addr: address.map(IpAddress::from), port };
        let clash = |one: &Listening| {
            one.at.port == port && (one.at.addr.is_none() || at.addr.is_none() || one.at.addr == at.addr)
        };
        if port == 0 || tcp.listeners.iter().any(clash) {
            return Err(TcpError::InUse(port));
        }
        let listener = Listener(tcp.number());
        let listening = Listening { listener, at, backlog: backlog.max(1) };
        tcp.listeners.push(listening);
        tcp.listen(listening).inspect_err(|_| {
            let _ = self.tcp_unlisten(listener);
        })?;
        Ok(listener)
    }

    /// Takes no more connections there; those that were not accepted are reset. Whether it was listening.
    pub fn tcp_unlisten(&mut self, listener: Listener) -> bool {
        let Some(tcp) = self.tcp.as_deref_mut() else { return false };
        for (handle, role) in tcp.ends.iter_mut().filter(|(_, role)| *role == Role::Ready(listener)) {
            tcp.sockets.get_mut::<smol::Socket<'_>>(*handle).abort();
            *role = Role::Leaving(Leave::default());
        }
        let before = tcp.listeners.len();
        tcp.listeners.retain(|one| one.listener != listener);
        tcp.listeners.len() < before
    }

    /// A connection that a peer has opened, if there is one. Another end is held ready in its place, if there is room.
    pub fn tcp_accept(&mut self, now: u64, listener: Listener) -> Option<Connection> {
        let tcp = self.tcp.as_deref_mut()?;
        let sockets = &tcp.sockets;
        let open = |handle: SocketHandle| {
            let socket = sockets.get::<smol::Socket<'_>>(handle);
            matches!(socket.state(), smol::State::Established | smol::State::CloseWait)
        };
        let at = tcp.ends.iter().position(|(handle, role)| *role == Role::Ready(listener) && open(*handle))?;
        let connection = Connection(tcp.number());
        let handle = tcp.ends[at].0;
        tcp.ends[at].1 = Role::Used(connection);
        let peer = tcp.sockets.get::<smol::Socket<'_>>(handle).remote_endpoint();
        let listening = tcp.listeners.iter().find(|one| one.listener == listener).copied();
        // If there is no room now, the place is filled when a connection was released.
        let _ = listening.map(|listening| tcp.listen(listening));
        if let Some(peer) = peer {
            self.paths.touch(now, peer.addr.into());
        }
        Some(connection)
    }

    /// Opens a connection. It is [`TcpState::Opening`] until the peer has answered.
    ///
    /// # Errors
    /// [`TcpError::Off`], [`TcpError::NoRoute`], [`TcpError::Full`].
    pub fn tcp_connect(&mut self, now: u64, to: SocketAddr) -> Result<Connection, TcpError> {
        if self.tcp.is_none() {
            return Err(TcpError::Off);
        }
        let from = self.source_to(to).ok_or(TcpError::NoRoute)?;
        let tcp = self.tcp_mut()?;
        tcp.tidy();
        let port = tcp.free_port(to).ok_or(TcpError::Full)?;
        let connection = Connection(tcp.number());
        let handle = tcp.add(Role::Used(connection))?;
        let socket = tcp.sockets.get_mut::<smol::Socket<'_>>(handle);
        let peer = (IpAddress::from(to.ip()), to.port());
        if socket.connect(tcp.iface.context(), peer, (IpAddress::from(from), port)).is_err() {
            tcp.sockets.remove(handle);
            tcp.ends.retain(|(other, _)| *other != handle);
            return Err(TcpError::NoRoute);
        }
        self.paths.touch(now, to.ip());
        Ok(connection)
    }

    /// How far a connection is.
    ///
    /// # Errors
    /// [`TcpError::Off`], [`TcpError::NotOpen`] for one that was released.
    pub fn tcp_state(&mut self, connection: Connection) -> Result<TcpState, TcpError> {
        use smol::State;
        Ok(match self.tcp_mut()?.socket(connection)?.state() {
            State::Listen | State::SynSent | State::SynReceived => TcpState::Opening,
            State::Established | State::FinWait1 | State::FinWait2 => TcpState::Open,
            State::CloseWait => TcpState::PeerClosed,
            State::Closed | State::Closing | State::LastAck | State::TimeWait => TcpState::Closed,
        })
    }

    /// Our end and the peer's.
    ///
    /// # Errors
    /// [`TcpError::Off`], [`TcpError::NotOpen`] for one that was released or has ended.
    pub fn tcp_ends(&mut self, connection: Connection) -> Result<(SocketAddr, SocketAddr), TcpError> {
        let socket = self.tcp_mut()?.socket(connection)?;
        let (own, peer) = (socket.local_endpoint(), socket.remote_endpoint());
        let (own, peer) = own.zip(peer).ok_or(TcpError::NotOpen)?;
        let link = self.links.iter().position(|link| link.has(own.addr.into())).unwrap_or(0);
        Ok((endpoint(own.addr.into(), own.port, link), endpoint(peer.addr.into(), peer.port, link)))
    }

    /// Takes bytes to be sent; how many, 0 if there is no room now.
    ///
    /// # Errors
    /// [`TcpError::Off`]; [`TcpError::NotOpen`] if it is not open yet or was closed at this end; [`TcpError::Reset`].
    pub fn tcp_send(&mut self, connection: Connection, bytes: &[u8]) -> Result<usize, TcpError> {
        let socket = self.tcp_mut()?.socket(connection)?;
        let gone = socket.state() == smol::State::Closed;
        socket.send_slice(bytes).map_err(|_| if gone { TcpError::Reset } else { TcpError::NotOpen })
    }

    /// How many bytes [`Engine::tcp_send`] would take now; 0 while the connection is not open.
    ///
    /// # Errors
    /// [`TcpError::Off`], [`TcpError::NotOpen`] for one that was released.
    pub fn tcp_room(&mut self, connection: Connection) -> Result<usize, TcpError> {
        let socket = self.tcp_mut()?.socket(connection)?;
        let room = socket.send_capacity().saturating_sub(socket.send_queue());
        Ok(if socket.may_send() { room } else { 0 })
    }

    /// How many bytes have come that were not read yet, in whatever state the connection is.
    ///
    /// # Errors
    /// [`TcpError::Off`], [`TcpError::NotOpen`] for one that was released.
    pub fn tcp_readable(&mut self, connection: Connection) -> Result<usize, TcpError> {
        self.tcp_mut()?.socket(connection).map(|socket| socket.recv_queue())
    }

    /// Reads bytes that have come; how many, 0 if there are none now.
    ///
    /// # Errors
    /// [`TcpError::Off`]; [`TcpError::Ended`] when the peer has closed and all was read; [`TcpError::NotOpen`] if it is not
    /// open yet; [`TcpError::Reset`].
    pub fn tcp_receive(&mut self, connection: Connection, out: &mut [u8]) -> Result<usize, TcpError> {
        let socket = self.tcp_mut()?.socket(connection)?;
        let gone = socket.state() == smol::State::Closed;
        socket.recv_slice(out).map_err(|error| match error {
            smol::RecvError::Finished => TcpError::Ended,
            smol::RecvError::InvalidState if gone => TcpError::Reset,
            smol::RecvError::InvalidState => TcpError::NotOpen,
        })
    }

    /// Sends no more after what was taken already. The peer may go on sending.
    ///
    /// # Errors
    /// [`TcpError::Off`], [`TcpError::NotOpen`] for one that was released.
    pub fn tcp_close(&mut self, connection: Connection) -> Result<(), TcpError> {
        self.tcp_mut()?.socket(connection).map(smol::Socket::close)
    }

    /// Ends a connection at once: what was not sent is lost, and the peer is told that it is reset.
    ///
    /// # Errors
    /// [`TcpError::Off`], [`TcpError::NotOpen`] for one that was released.
    pub fn tcp_abort(&mut self, connection: Connection) -> Result<(), TcpError> {
        self.tcp_mut()?.socket(connection).map(smol::Socket::abort)
    }

    /// Gives a connection up: it is closed if it was not, and its memory given back when the peer has closed too, was
    /// silent for too long, or neither took anything nor closed for as long ([`TcpConfig::patience_ns`]); then it is reset.
    pub fn tcp_release(&mut self, connection: Connection) {
        let Some(tcp) = self.tcp.as_deref_mut() else { return };
        if let Ok(socket) = tcp.socket(connection) {
            socket.close();
        }
        for (_, role) in tcp.ends.iter_mut().filter(|(_, role)| *role == Role::Used(connection)) {
            *role = Role::Leaving(Leave::default());
        }
        tcp.tidy();
    }

    /// Hands a segment to TCP, with the interface and the station that it came from.
    pub(crate) fn tcp_segment(
        &mut self,
        now: u64,
        ip: &Ip,
        from: (usize, Mac),
        payload: &[u8],
        out: &mut dyn Emit,
    ) -> Result<Event, Reason> {
        if self.tcp.is_some() && largest_asked_for(payload).is_some_and(|most| most < LEAST_SEGMENT) {
            return Err(Reason::TcpTiny);
        }
        let Some(mut tcp) = self.tcp.take() else { return Err(Reason::TcpOff) };
        if !tcp.pipe.has_room() {
            self.tcp_flush(&mut tcp, now, out);
        }
        let event = if tcp.pipe.has_room() {
            if !tcp.has(ip, payload) {
                tcp.askers.note(ip.from, from);
            }
            let head = Head {
                from: ip.from,
                to: ip.to,
                protocol: ip::TCP,
                hop_limit: ip.hop_limit.max(1),
                class: 0,
                payload: payload.len() as u16,
                fragment: None,
            };
            let room = tcp.pipe.incoming();
            let len = head.write(room) + payload.len();
            if let Some(room) = room.get_mut(head.len()..len) {
                room.copy_from_slice(payload);
            }
            tcp.pipe.arrived(len);
            tcp.iface.poll_ingress_single(instant(now), &mut tcp.pipe, &mut tcp.sockets);
            Ok(Event::Tcp)
        } else {
            Err(Reason::TcpFull)
        };
        self.tcp = Some(tcp);
        event
    }

    /// Lets TCP send what it can.
    pub(crate) fn tcp_poll(&mut self, now: u64, out: &mut dyn Emit) {
        let Some(mut tcp) = self.tcp.take() else { return };
        tcp.hurry(now);
        loop {
            self.tcp_flush(&mut tcp, now, out);
            let before = tcp.pipe.next().is_some();
            if before {
                // The datapath takes no more.
                break;
            }
            tcp.iface.poll_egress(instant(now), &mut tcp.pipe, &mut tcp.sockets);
            if tcp.pipe.next().is_none() {
                break;
            }
        }
        tcp.tidy();
        for at in 0..tcp.listeners.len() {
            let listening = tcp.listeners[at];
            let _ = tcp.listen(listening);
        }
        self.tcp = Some(tcp);
    }

    /// Sends the packets that TCP has made, as long as the datapath has room.
    fn tcp_flush(&mut self, tcp: &mut Tcp, now: u64, out: &mut dyn Emit) {
        while out.room() > 0 {
            let Some(packet) = tcp.pipe.next() else { return };
            let parsed = match packet.first().map(|byte| byte >> 4) {
                Some(4) => parse_v4(packet),
                _ => Ip::parse_v6(packet).ok(),
            };
            if let Some(ip) = parsed {
                let payload = packet.get(ip.header..ip.end).unwrap_or(&[]);
                let link = self.links.iter().position(|link| link.has(ip.from));
                let local = matches!(ip.to, IpAddr::V6(to) if nd::is_link_local(to));
                let meta = Meta {
                    from: ip.from,
                    to: ip.to,
                    protocol: ip::TCP,
                    hop_limit: self.hop_limit,
                    class: 0,
                    interface: link.filter(|_| local).map(|link| link as u8),
                    may_cut: true,
                };
                // Counted if it fails, and sent again by TCP.
                let _ = if tcp.answers(&ip, payload) {
                    self.reply(now, &meta, tcp.askers.find(ip.to), &[payload], out)
                } else {
                    self.output(now, &meta, &[payload], out)
                };
            }
            tcp.pipe.sent();
        }
    }

    /// When TCP has something to do.
    pub(crate) fn tcp_next(&mut self, now: u64) -> u64 {
        let Some(tcp) = self.tcp.as_deref_mut() else { return u64::MAX };
        let next = tcp.iface.poll_at(instant(now), &tcp.sockets);
        let next = next.map_or(u64::MAX, |at| u64::try_from(at.total_micros()).unwrap_or(0).saturating_mul(1000));
        next.min(tcp.hurry_at()).max(now)
    }

    /// Whether there is a connection between two ends.
    pub(crate) fn tcp_knows(&self, own: SocketAddr, peer: SocketAddr) -> bool {
        self.tcp.as_deref().is_some_and(|tcp| tcp.state((own.ip(), own.port()), (peer.ip(), peer.port())).is_some())
    }
}

/// The least that a peer may ask for as the most payload of a segment: with less, a few bytes of its window cost a packet each. As
/// Linux's `tcp_min_snd_mss`.
const LEAST_SEGMENT: u16 = 48;

/// The most payload that a segment which opens a connection asks for, if it says so (RFC 9293 §3.7.1).
fn largest_asked_for(segment: &[u8]) -> Option<u16> {
    const SYN: u8 = 2;
    let (head, _) = segment.split_first_chunk::<20>()?;
    if head[13] & SYN == 0 {
        return None;
    }
    let mut options = segment.get(20..usize::from(head[12] >> 4) * 4)?;
    loop {
        options = match *options {
            [1, ref rest @ ..] => rest,
            [2, 4, a, b, ..] => return Some(u16::from_be_bytes([a, b])),
            [0, ..] | [_, 0 | 1, ..] => return None,
            [_, len, ..] => options.get(usize::from(len)..)?,
            _ => return None,
        };
    }
}

/// The ports of a segment, the sender's first.
fn ports(segment: &[u8]) -> Option<(u16, u16)> {
    let [a, b, c, d, ..] = *segment else { return None };
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

/// The header of an IPv4 packet that TCP has made: without a checksum, which the engine makes.
fn parse_v4(packet: &[u8]) -> Option<Ip> {
    let (head, _) = packet.split_first_chunk::<{ ip::V4_BYTES }>()?;
    Some(Ip {
        from: Ipv4Addr::new(head[12], head[13], head[14], head[15]).into(),
        to: Ipv4Addr::new(head[16], head[17], head[18], head[19]).into(),
        protocol: head[9],
        hop_limit: head[8],
        header: usize::from(head[0] & 0x0f) * 4,
        end: packet.len().min(usize::from(u16::from_be_bytes([head[2], head[3]]))),
        fragment: None,
        dont_fragment: true,
        extended: false,
    })
}
