//! What goes out.

use std::net::{IpAddr, SocketAddr};

use smallvec::SmallVec;

use super::Engine;
use super::control::head_of;
use crate::config::Link;
use crate::emit::Emit;
use crate::ether::{self, Ethernet, Mac};
use crate::flow::{Flow, Header, SendError, endpoint};
use crate::ip::{FRAGMENT_BYTES, Fragment, MAX_PACKET, UDP, V4_BYTES, V6_BYTES};
use crate::nd;
use crate::neighbour::Found;
use crate::ports::Binding;
use crate::stats::Reason;
use crate::udp::{self, Udp};
use crate::waiting::Meta;

const HEAD: usize = ether::HEADER_BYTES + ether::TAG_BYTES + V6_BYTES + FRAGMENT_BYTES;

/// The station of a next hop.
enum Station {
    Known(Mac, u64),
    /// Being asked for; the neighbour's place.
    Asked(usize),
}

/// The interface that an address of a link names.
pub(super) fn scope(to: SocketAddr) -> Option<u8> {
    match to {
        SocketAddr::V6(six) if six.scope_id() > 0 => Some(u8::try_from(six.scope_id() - 1).unwrap_or(u8::MAX)),
        _ => None,
    }
}

impl Engine {
    /// The interface over which something goes to an address, and the next hop.
    pub(super) fn hop(&self, to: IpAddr, interface: Option<u8>) -> Result<(usize, IpAddr), SendError> {
        // An answer leaves where its question came in, if there is a way from there; what belongs to a link stays on it.
        let elsewhere = !match to {
            IpAddr::V4(four) => four.is_multicast() || four.is_broadcast(),
            IpAddr::V6(six) => six.is_multicast() || nd::is_link_local(six),
        };
        let route = self.routes.find(to, interface);
        let route = route.or_else(|| elsewhere.then(|| self.routes.find(to, None)).flatten());
        let link = match (route, interface) {
            (Some(route), _) => usize::from(route.interface),
            (None, Some(interface)) => usize::from(interface),
            // Groups and all hosts of a link are on every link.
            (None, None) => 0,
        };
        let own = self.links.get(link).ok_or(SendError::NoRoute)?;
        if own.is_broadcast(to) || to.is_multicast() {
            return Ok((link, to));
        }
        if to.is_unspecified() || to.is_loopback() || self.links.iter().any(|link| link.has(to)) {
            return Err(SendError::NoRoute);
        }
        let route = route.ok_or(SendError::NoRoute)?;
        let next = route.gateway.unwrap_or(to);
        if route.to.is_edge(next) { Err(SendError::NoRoute) } else { Ok((link, next)) }
    }

    /// The station of a next hop; asks for it if it is not known.
    fn station(&mut self, now: u64, link: usize, next: IpAddr, out: &mut dyn Emit) -> Result<Station, SendError> {
        if let Some(group) = Mac::of_group(next) {
            return Ok(Station::Known(group, u64::MAX));
        }
        if self.links[link].is_broadcast(next) {
            return Ok(Station::Known(Mac::BROADCAST, u64::MAX));
        }
        let key = (link as u8, next);
        match self.neighbours.find(now, key) {
            Found::Station(station, until) => Ok(Station::Known(station, until)),
            Found::Asked(place) => Ok(Station::Asked(place)),
            Found::Ask(place) => {
                self.ask(now, key, None, out);
                Ok(Station::Asked(place))
            }
            Found::Silent => Err(SendError::Silent),
            Found::Full => Err(SendError::Full),
        }
    }

    /// Sends a packet, or lets it wait for its next hop.
    pub(crate) fn output(
        &mut self,
        now: u64,
        meta: &Meta,
        pieces: &[&[u8]],
        out: &mut dyn Emit,
    ) -> Result<(), SendError> {
        let hop = self.hop(meta.to, meta.interface).inspect_err(|_| self.stats.drop(Reason::NoRoute));
        let (link, next) = hop?;
        match self.station(now, link, next, out) {
            Ok(Station::Known(station, _)) => self.emit_ip(now, link, station, meta, pieces, out),
            Ok(Station::Asked(place)) => {
                let pushed = self.waiting.park(place, meta, pieces);
                for _ in 0..pushed.unwrap_or(1) {
                    self.stats.drop(Reason::WaitingFull);
                }
                pushed.map(|_| ()).ok_or(SendError::Full)
            }
            Err(error) => {
                let full = error == SendError::Full;
                self.stats.drop(if full { Reason::WaitingFull } else { Reason::NeighbourSilent });
                Err(error)
            }
        }
    }

    /// Sends an answer to a packet that came over an interface from a station, if that is remembered. Nobody is asked for anything
    /// and nothing waits: strangers take no place among the neighbours.
    pub(crate) fn reply(
        &mut self,
        now: u64,
        meta: &Meta,
        asker: Option<(usize, Mac)>,
        pieces: &[&[u8]],
        out: &mut dyn Emit,
    ) -> Result<(), SendError> {
        let hop = self.hop(meta.to, meta.interface).inspect_err(|_| self.stats.drop(Reason::NoRoute));
        let (link, next) = hop?;
        let known = self.neighbours.known(now, (link as u8, next)).map(|station| (link, station));
        let Some((link, station)) = known.or(asker) else {
            self.stats.drop(Reason::NeighbourSilent);
            return Err(SendError::Silent);
        };
        self.emit_ip(now, link, station, meta, pieces, out)
    }

    /// Sends a packet to a station, in pieces if it must be and may.
    pub(super) fn emit_ip(
        &mut self,
        now: u64,
        link: usize,
        station: Mac,
        meta: &Meta,
        pieces: &[&[u8]],
        out: &mut dyn Emit,
    ) -> Result<(), SendError> {
        let own = &self.links[link];
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let header = Link::ip_header(meta.to) as usize;
        let mtu = self.paths.mtu(now, meta.to, own.mtu) as usize;
        let most = if meta.to.is_ipv4() { MAX_PACKET - V4_BYTES } else { MAX_PACKET };
        let limit = if meta.may_cut { most } else { mtu - header };
        if len > limit {
            return Err(SendError::TooLarge { limit });
        }
        let kind = if meta.to.is_ipv4() { ether::IPV4 } else { ether::IPV6 };
        let ethernet = Ethernet { to: station, from: own.mac, tag: own.tag, kind };
        let device = own.device;
        if header + len <= mtu {
            return self.emit_piece(device, &ethernet, meta, None, pieces, 0..len, out);
        }
        let extra = if meta.to.is_ipv4() { 0 } else { FRAGMENT_BYTES };
        let step = (mtu - header - extra) / 8 * 8;
        let ident = self.paths.ident(meta.to);
        for start in (0..len).step_by(step) {
            let end = len.min(start + step);
            let fragment = Fragment { ident, offset: start as u16, more: end < len };
            self.emit_piece(device, &ethernet, meta, Some(fragment), pieces, start..end, out)?;
        }
        Ok(())
    }

    /// One frame with the bytes of `range` of the payload.
    #[expect(clippy::too_many_arguments, reason = "the inside of one loop")]
    fn emit_piece(
        &mut self,
        device: u8,
        ethernet: &Ethernet,
        meta: &Meta,
        fragment: Option<Fragment>,
        pieces: &[&[u8]],
        range: core::ops::Range<usize>,
        out: &mut dyn Emit,
    ) -> Result<(), SendError> {
        let mut head = [0; HEAD];
        let at = ethernet.write(&mut head);
        let end = at + head_of(meta, range.len(), fragment).write(&mut head[at..]);
        let mut frame = SmallVec::<[&[u8]; 8]>::new();
        frame.push(&head[..end]);
        let mut at = 0;
        for piece in pieces {
            let (low, high) = (range.start.max(at), range.end.min(at + piece.len()));
            if low < high {
                frame.push(&piece[low - at..high - at]);
            }
            at += piece.len();
        }
        if out.emit(device, &frame) {
            self.stats.emitted += 1;
            Ok(())
        } else {
            self.stats.drop(Reason::OutputFull);
            Err(SendError::Full)
        }
    }

    /// The address from which something goes to another.
    pub(crate) fn source_to(&self, to: SocketAddr) -> Option<IpAddr> {
        let (link, next) = self.hop(to.ip(), scope(to)).ok()?;
        self.links.get(link)?.source(to.ip(), next)
    }

    /// From where datagrams of a binding go to an address, and over which interface.
    fn origin(&self, binding: Binding, to: SocketAddr) -> Result<(SocketAddr, usize, IpAddr), SendError> {
        let (address, port) = self.ports.get(binding).ok_or(SendError::NotBound)?;
        let mut interface = scope(to);
        if let Some(own) = address {
            if own.is_ipv4() != to.is_ipv4() {
                return Err(SendError::NotBound);
            }
            let has = self.links.iter().position(|link| link.has(own));
            interface = interface.or(has.map(|link| link as u8));
        }
        let (link, next) = self.hop(to.ip(), interface)?;
        let own = self.links.get(link).ok_or(SendError::NoRoute)?;
        let from = address.or_else(|| own.source(to.ip(), next)).ok_or(SendError::NoRoute)?;
        Ok((endpoint(from, port, link), link, next))
    }

    /// The headers for a datagram of `payload` bytes that goes in one packet, never to be cut on its way. Cheap and without
    /// allocation as long as nothing changes for the flow.
    ///
    /// # Errors
    /// [`SendError`]. With [`SendError::Resolving`] the question has been put to `out`; ask again when something was
    /// received. Nothing is counted as dropped.
    #[inline]
    pub fn header(
        &mut self,
        now: u64,
        flow: &mut Flow,
        payload: usize,
        out: &mut dyn Emit,
    ) -> Result<Header, SendError> {
        if flow.generation != self.generation() || now >= flow.until {
            self.refresh(now, flow, out)?;
        }
        if payload > flow.limit {
            return Err(SendError::TooLarge { limit: flow.limit });
        }
        self.stats.headers += 1;
        Ok(flow.header(payload))
    }

    #[cold]
    fn refresh(&mut self, now: u64, flow: &mut Flow, out: &mut dyn Emit) -> Result<(), SendError> {
        let to = flow.to.ip();
        let (from, link, next) = self.origin(flow.binding, flow.to)?;
        let (station, until) = match self.station(now, link, next, out)? {
            Station::Known(station, until) => (station, until),
            Station::Asked(_) => return Err(SendError::Resolving),
        };
        self.paths.touch(now, to);
        let own = &self.links[link];
        let meta = Meta {
            from: from.ip(),
            to,
            protocol: UDP,
            hop_limit: self.hop_limit,
            class: 0,
            interface: None,
            may_cut: false,
        };
        let kind = if to.is_ipv4() { ether::IPV4 } else { ether::IPV6 };
        let mut head = [0; HEAD];
        let at = Ethernet { to: station, from: own.mac, tag: own.tag, kind }.write(&mut head);
        let end = at + head_of(&meta, 0, None).write(&mut head[at..]);
        flow.device = own.device;
        flow.fill(&head[..end], at, from, self.paths.mtu(now, to, own.mtu));
        flow.until = until.min(self.paths.holds_until(now, to));
        flow.generation = self.generation();
        Ok(())
    }

    /// Sends a datagram, in fragments if it does not fit its path. If the next hop has to be looked for, a copy waits.
    ///
    /// # Errors
    /// [`SendError`]; the datagram is lost then.
    pub fn send(
        &mut self,
        now: u64,
        binding: Binding,
        to: SocketAddr,
        pieces: &[&[u8]],
        out: &mut dyn Emit,
    ) -> Result<(), SendError> {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let most = MAX_PACKET - udp::HEADER_BYTES - if to.is_ipv4() { V4_BYTES } else { 0 };
        if len > most {
            return Err(SendError::TooLarge { limit: most });
        }
        let (from, link, _) = self.origin(binding, to)?;
        let udp = Udp { from: from.port(), to: to.port(), len: (len + udp::HEADER_BYTES) as u16 };
        let head = udp.sealed(from.ip(), to.ip(), pieces);
        self.paths.touch(now, to.ip());
        let meta = Meta {
            from: from.ip(),
            to: to.ip(),
            protocol: UDP,
            hop_limit: self.hop_limit,
            class: 0,
            interface: Some(link as u8),
            may_cut: true,
        };
        let mut whole = SmallVec::<[&[u8]; 8]>::new();
        whole.push(&head);
        whole.extend_from_slice(pieces);
        self.output(now, &meta, &whole, out)
    }
}
