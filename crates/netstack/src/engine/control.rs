//! The engine's own protocols: ARP, neighbour discovery and ICMP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::receive::{Context, Event};
use super::{Engine, Report};
use crate::arp::{Arp, Operation};
use crate::emit::Emit;
use crate::ether::{self, Ethernet, Mac};
use crate::flow::endpoint;
use crate::icmp::{self, Message, Problem};
use crate::ip::{self, Fragment, Head, Ip, MAX_PACKET, V4_BYTES, V6_BYTES};
use crate::nd::{self, Discovery};
use crate::neighbour::{Key, Said};
use crate::reassembly::Expired;
use crate::stats::Reason;
use crate::waiting::Meta;

/// How much of an IPv4 packet an error about it repeats at most (RFC 1812 §4.3.2.3).
const V4_QUOTE: usize = 576 - V4_BYTES - icmp::HEADER_BYTES;
/// The same for IPv6 (RFC 4443 §2.4).
const V6_QUOTE: usize = 1280 - V6_BYTES - icmp::HEADER_BYTES;

impl Engine {
    pub(super) fn arp(&mut self, context: &Context, bytes: &[u8], out: &mut dyn Emit) -> Result<Event, Reason> {
        let arp = Arp::parse(bytes)?;
        let link = &self.links[context.link];
        if arp.sender != context.station {
            return Err(Reason::ArpSpoofed);
        }
        let sender = IpAddr::V4(arp.sender_ip);
        if link.has(sender) {
            return Err(Reason::AddressConflict);
        }
        let asks_us = arp.operation == Operation::Request && link.has(arp.target_ip.into());
        if arp.sender_ip.is_unspecified() && asks_us {
            // Somebody tries out an address that is ours (RFC 5227 §2.4).
            self.arp_reply(context, &arp, out);
            return Ok(Event::Done);
        }
        if link.beside(sender).is_none() {
            return Err(Reason::ArpSpoofed);
        }
        let own = link.mac;
        let key = (context.link as u8, sender);
        let said = match arp.operation {
            Operation::Request if asks_us => {
                let said = self.heard(context.now, key, Said::Question(arp.sender), Reason::ArpUnsolicited, out);
                self.arp_reply(context, &arp, out);
                // A table that is full is no reason not to answer.
                return said.map(|()| Event::Done);
            }
            Operation::Request if arp.target_ip != arp.sender_ip => return Err(Reason::NotOurNeighbour),
            Operation::Reply if !context.group && arp.target == own => None,
            Operation::Request | Operation::Reply => Some(false),
        };
        let said = Said::Answer { mac: Some(arp.sender), solicited: said, overrides: true };
        self.heard(context.now, key, said, Reason::ArpUnsolicited, out).map(|()| Event::Done)
    }

    fn arp_reply(&mut self, context: &Context, question: &Arp, out: &mut dyn Emit) {
        let arp = Arp {
            operation: Operation::Reply,
            sender: self.links[context.link].mac,
            sender_ip: question.target_ip,
            target: question.sender,
            target_ip: question.sender_ip,
        };
        self.emit_frame(context.link, question.sender, ether::ARP, &[&arp.bytes()], out);
    }

    /// Asks for the station of an address: all hosts, or the one that is said.
    pub(super) fn ask(&mut self, now: u64, key: Key, station: Option<Mac>, out: &mut dyn Emit) {
        let number = usize::from(key.0);
        let Some(link) = self.links.get(number) else { return };
        match key.1 {
            IpAddr::V4(target_ip) => {
                let Some(IpAddr::V4(sender_ip)) = link.source(key.1, key.1) else { return };
                let sender = link.mac;
                let arp = Arp { operation: Operation::Request, sender, sender_ip, target: Mac::default(), target_ip };
                let to = station.unwrap_or(Mac::BROADCAST);
                self.emit_frame(number, to, ether::ARP, &[&arp.bytes()], out);
            }
            IpAddr::V6(target) => {
                let Some(IpAddr::V6(from)) = link.source(key.1, key.1) else { return };
                let message = Discovery::Solicitation { target, station: Some(link.mac) };
                let to = if station.is_some() { target } else { nd::group_of(target) };
                let mac = station.or(Mac::of_group(to.into())).unwrap_or(Mac::BROADCAST);
                self.emit_discovery(now, number, mac, from, to, &message, out);
            }
        }
    }

    /// Tells all neighbours where our addresses are: after an interface has moved to another device or host. Those who do
    /// not know an address yet take no notice (RFC 5227 §2.3, RFC 4861 §7.2.6).
    pub fn announce(&mut self, now: u64, out: &mut dyn Emit) {
        for link in 0..self.links.len() {
            for at in 0..self.links[link].addresses.len() {
                let (own, address) = (self.links[link].mac, self.links[link].addresses[at].address);
                match address {
                    IpAddr::V4(ip) => {
                        let operation = Operation::Request;
                        let arp = Arp { operation, sender: own, sender_ip: ip, target: Mac::default(), target_ip: ip };
                        self.emit_frame(link, Mac::BROADCAST, ether::ARP, &[&arp.bytes()], out);
                    }
                    IpAddr::V6(target) => {
                        let told =
                            Discovery::Advertisement { target, station: Some(own), solicited: false, overrides: true };
                        self.tell_all(now, link, target, &told, out);
                    }
                }
            }
        }
    }

    /// Sends an advertisement to all hosts of a link.
    fn tell_all(&mut self, now: u64, link: usize, from: Ipv6Addr, told: &Discovery, out: &mut dyn Emit) {
        let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let station = Mac::of_group(all.into()).unwrap_or(Mac::BROADCAST);
        self.emit_discovery(now, link, station, from, all, told, out);
    }

    #[expect(clippy::too_many_arguments, reason = "one caller more would be a structure")]
    fn emit_discovery(
        &mut self,
        now: u64,
        link: usize,
        station: Mac,
        from: Ipv6Addr,
        to: Ipv6Addr,
        message: &Discovery,
        out: &mut dyn Emit,
    ) {
        let (kind, flags, rest, len) = message.bytes();
        let head = icmp::sealed(from.into(), to.into(), kind, flags, &[&rest[..len]]);
        let meta = Meta {
            from: from.into(),
            to: to.into(),
            protocol: ip::ICMP6,
            hop_limit: nd::HOP_LIMIT,
            class: 0,
            interface: None,
            may_cut: false,
        };
        // 72 bytes fit every link.
        let _ = self.emit_ip(now, link, station, &meta, &[&head, &rest[..len]], out);
    }

    fn discovery(&mut self, context: &Context, ip: &Ip, bytes: &[u8], out: &mut dyn Emit) -> Result<Event, Reason> {
        let (IpAddr::V6(from), IpAddr::V6(to)) = (ip.from, ip.to) else { return Err(Reason::DiscoveryMalformed) };
        if context.assembled {
            // RFC 6980 §5.
            return Err(Reason::DiscoveryMalformed);
        }
        let message = Discovery::parse(from, to, ip.hop_limit, bytes)?;
        let link = &self.links[context.link];
        let own = link.mac;
        let key = |address: Ipv6Addr| (context.link as u8, IpAddr::V6(address));
        match message {
            Discovery::Solicitation { target, station } => {
                if !link.has(target.into()) {
                    return Err(Reason::NotOurNeighbour);
                }
                let answer =
                    |solicited| Discovery::Advertisement { target, station: Some(own), solicited, overrides: true };
                if from.is_unspecified() {
                    self.tell_all(context.now, context.link, target, &answer(false), out);
                    return Ok(Event::Done);
                }
                if link.beside(from.into()).is_none() || station.is_some_and(|station| station != context.station) {
                    return Err(Reason::DiscoveryMalformed);
                }
                let said = station.map_or(Ok(()), |station| {
                    let said = Said::Question(station);
                    self.heard(context.now, key(from), said, Reason::DiscoveryUnsolicited, out)
                });
                self.emit_discovery(context.now, context.link, context.station, target, from, &answer(true), out);
                said.map(|()| Event::Done)
            }
            Discovery::Advertisement { target, station, solicited, overrides } => {
                if link.has(target.into()) {
                    return Err(Reason::AddressConflict);
                }
                let said = Said::Answer { mac: station, solicited: Some(solicited), overrides };
                self.heard(context.now, key(target), said, Reason::DiscoveryUnsolicited, out).map(|()| Event::Done)
            }
        }
    }

    pub(super) fn icmp(
        &mut self,
        context: &Context,
        own: bool,
        ip: &Ip,
        bytes: &[u8],
        out: &mut dyn Emit,
    ) -> Result<Event, Reason> {
        let message = Message::parse(ip.from, ip.to, bytes)?;
        let payload = bytes.get(icmp::HEADER_BYTES..).unwrap_or(&[]);
        if let Message::Discovery(_) = message {
            return self.discovery(context, ip, bytes, out);
        }
        if ip.from.is_unspecified() {
            return Err(Reason::BadSource);
        }
        match message {
            Message::EchoRequest(rest) => {
                if !own {
                    return Err(Reason::EchoRefused);
                }
                if !self.echoes.take(context.now) {
                    return Err(Reason::EchoLimited);
                }
                let sent = self.answer(context, ip, Message::EchoReply(rest), payload, out);
                self.stats.echoes += u64::from(sent);
                if sent { Ok(Event::Done) } else { Err(Reason::EchoRefused) }
            }
            Message::Error(problem) => self.problem(context, ip, problem, payload),
            _ => Err(Reason::IcmpUnknown),
        }
    }

    /// Sends an ICMP message to where a packet came from; whether it could.
    fn answer(&mut self, context: &Context, ip: &Ip, message: Message, payload: &[u8], out: &mut dyn Emit) -> bool {
        let six = ip.to.is_ipv6();
        let Some((kind, rest)) = message.head(six) else { return false };
        let head = icmp::sealed(ip.to, ip.from, kind, rest, &[payload]);
        let meta = Meta {
            from: ip.to,
            to: ip.from,
            protocol: icmp::protocol(six),
            hop_limit: self.hop_limit,
            class: 0,
            interface: Some(context.link as u8),
            may_cut: true,
        };
        self.reply(context.now, &meta, context.asker(), &[&head, payload], out).is_ok()
    }

    /// Tells a packet's sender what is wrong with it, where that is allowed.
    pub(super) fn error(
        &mut self,
        context: &Context,
        own: bool,
        ip: &Ip,
        packet: &[u8],
        problem: Problem,
        out: &mut dyn Emit,
    ) {
        let payload = packet.get(ip.header..ip.end).unwrap_or(&[]);
        if !own || context.group || ip.from.is_unspecified() || icmp::is_error(ip.protocol, payload) {
            return;
        }
        if !self.errors.take(context.now) {
            self.stats.drop(Reason::ErrorLimited);
            return;
        }
        let most = if ip.to.is_ipv4() { V4_QUOTE } else { V6_QUOTE };
        let quote = packet.get(..ip.end.min(most)).unwrap_or(&[]);
        self.stats.errors += u64::from(self.answer(context, ip, Message::Error(problem), quote, out));
    }

    /// Tells the source of an unfinished packet that it was given up.
    pub(super) fn reassembly_error(&mut self, now: u64, told: &Expired, out: &mut dyn Emit) {
        let Some(link) = self.links.iter().position(|link| link.has(told.to)) else { return };
        let quote = &told.start[..told.len];
        let parsed = (told.from, told.to, quote.get(if told.to.is_ipv4() { 9 } else { 6 }).copied());
        let (from, to, Some(protocol)) = parsed else { return };
        let ip = Ip {
            from,
            to,
            protocol,
            hop_limit: 0,
            header: if told.to.is_ipv4() { V4_BYTES } else { V6_BYTES },
            end: told.len,
            fragment: None::<Fragment>,
            dont_fragment: false,
            extended: false,
        };
        let context = Context { now, link, group: false, station: Mac::default(), verified: false, assembled: true };
        self.error(&context, true, &ip, quote, Problem::Reassembly, out);
    }

    /// An ICMP error: believed if it is about something that can have been sent from here.
    fn problem(&mut self, context: &Context, ip: &Ip, problem: Problem, quote: &[u8]) -> Result<Event, Reason> {
        let quoted = Quoted::parse(quote, ip.to.is_ipv6()).ok_or(Reason::IcmpForeign)?;
        let ours = quoted.from == ip.to && self.paths.is_known(quoted.to);
        let binding = match quoted.protocol {
            ip::UDP => Some(self.ports.find(quoted.from, quoted.ports.0).ok_or(Reason::IcmpForeign)?),
            ip::TCP => {
                let (from, to) = quoted.ends(context.link);
                if !self.tcp_knows(from, to) {
                    return Err(Reason::IcmpForeign);
                }
                None
            }
            _ => return Err(Reason::IcmpForeign),
        };
        if !ours {
            return Err(Reason::IcmpForeign);
        }
        let mut problem = problem;
        if let Problem::TooBig(mtu) = problem {
            if !self.paths.lower(context.now, quoted.to, quoted.len, mtu) {
                return Err(Reason::MtuImplausible);
            }
            self.generation += 1;
            problem = Problem::TooBig(self.paths.mtu(context.now, quoted.to, self.links[context.link].mtu));
        }
        let (from, to) = quoted.ends(context.link);
        Ok(Event::Problem(Report { binding, from, to, reporter: ip.from, problem }))
    }

    /// One frame with a header of Ethernet.
    pub(super) fn emit_frame(&mut self, link: usize, to: Mac, kind: u16, pieces: &[&[u8]], out: &mut dyn Emit) {
        let Some(link) = self.links.get(link) else { return };
        let mut head = [0; ether::HEADER_BYTES + ether::TAG_BYTES];
        let len = Ethernet { to, from: link.mac, tag: link.tag, kind }.write(&mut head);
        let mut whole = smallvec::SmallVec::<[&[u8]; 8]>::new();
        whole.push(&head[..len]);
        whole.extend_from_slice(pieces);
        if out.emit(link.device, &whole) {
            self.stats.emitted += 1;
        } else {
            self.stats.drop(Reason::OutputFull);
        }
    }
}

/// The start of a packet, as an error repeats it.
struct Quoted {
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    /// The whole packet's size in bytes.
    len: u32,
    ports: (u16, u16),
}

impl Quoted {
    fn parse(bytes: &[u8], six: bool) -> Option<Self> {
        let (from, to, protocol, len, at): (IpAddr, IpAddr, u8, u32, usize) = if six {
            let (head, rest) = bytes.split_first_chunk::<V6_BYTES>()?;
            let address = |at: usize| Ipv6Addr::from(core::array::from_fn::<u8, 16, _>(|i| head[at + i])).into();
            let len = V6_BYTES as u32 + u32::from(u16::from_be_bytes([head[4], head[5]]));
            // The first piece of a packet has the ports, others have not.
            let (protocol, at) = match (head[6], rest) {
                (44, [next, _, 0, 0 | 1, ..]) => (*next, V6_BYTES + ip::FRAGMENT_BYTES),
                (protocol, _) => (protocol, V6_BYTES),
            };
            (head[0] >> 4 == 6).then_some((address(8), address(24), protocol, len, at))?
        } else {
            let (head, _) = bytes.split_first_chunk::<V4_BYTES>()?;
            let address = |at: usize| Ipv4Addr::new(head[at], head[at + 1], head[at + 2], head[at + 3]).into();
            let (at, len) = (usize::from(head[0] & 0xf) * 4, u32::from(u16::from_be_bytes([head[2], head[3]])));
            let first = u16::from_be_bytes([head[6], head[7]]) & 0x1fff == 0;
            (head[0] >> 4 == 4 && at >= V4_BYTES && first).then_some((address(12), address(16), head[9], len, at))?
        };
        if len as usize > MAX_PACKET + V6_BYTES {
            return None;
        }
        let ports = bytes.get(at..at + 4)?;
        let word = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
        Some(Self { from, to, protocol, len, ports: (word(0), word(2)) })
    }

    fn ends(&self, link: usize) -> (SocketAddr, SocketAddr) {
        (endpoint(self.from, self.ports.0, link), endpoint(self.to, self.ports.1, link))
    }
}

/// The headers of a packet of ours.
pub(super) fn head_of(meta: &Meta, payload: usize, fragment: Option<Fragment>) -> Head {
    Head {
        from: meta.from,
        to: meta.to,
        protocol: meta.protocol,
        hop_limit: meta.hop_limit,
        class: meta.class,
        payload: payload as u16,
        fragment,
    }
}
