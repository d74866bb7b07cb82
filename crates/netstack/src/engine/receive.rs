//! What comes in.

use core::ops::Range;
use std::net::{IpAddr, SocketAddr};

use super::{Arrival, Datagram, Engine, Payload, Received, Report};
use crate::emit::Emit;
use crate::ether::{self, Ethernet, Mac};
use crate::flow::endpoint;
use crate::icmp::Problem;
use crate::ip::{self, Ip};
use crate::nd;
use crate::ports::Binding;
use crate::stats::Reason;
use crate::udp::{self, Udp};

/// What became of a packet, without references.
pub(crate) enum Event {
    Udp { binding: Binding, from: SocketAddr, to: SocketAddr, payload: Range<usize> },
    Tcp,
    Problem(Report),
    Done,
    Held,
}

/// Where a packet came from.
#[derive(Clone, Copy)]
pub(super) struct Context {
    pub(super) now: u64,
    /// The interface.
    pub(super) link: usize,
    /// Its frame went to a group of stations.
    pub(super) group: bool,
    /// Whoever sent its frame.
    pub(super) station: Mac,
    pub(super) verified: bool,
    /// It came in several pieces.
    pub(super) assembled: bool,
}

impl Context {
    /// Where an answer can go, if it is known.
    pub(super) fn asker(&self) -> Option<(usize, Mac)> {
        self.station.is_station().then_some((self.link, self.station))
    }
}

impl Engine {
    /// Takes a frame that has the headers of the last datagram's, and asks nobody for the time; `None` for any other, with nothing done:
    /// that is for [`Engine::receive`]. Never waits, allocates nothing.
    #[inline]
    pub fn receive_alike(&mut self, arrival: &Arrival<'_>) -> Option<Datagram<'static>> {
        let Some(Event::Udp { binding, from, to, payload }) = self.again(arrival) else { return None };
        self.stats.received += 1;
        self.stats.udp += 1;
        // Only frames that are a datagram each are remembered: it begins with the frame.
        Some(Datagram { binding, from, to, payload: Payload::Frame(payload) })
    }

    /// Takes a frame. What is to be answered at once goes to `out`. Never waits; allocates nothing for UDP.
    pub fn receive(&mut self, now: u64, arrival: &Arrival<'_>, out: &mut dyn Emit) -> Received<'_> {
        if let Some(datagram) = self.receive_alike(arrival) {
            return Received::Udp(datagram);
        }
        self.stats.received += 1;
        let mut at = 0;
        let mut whole = false;
        match self.frame(now, arrival, &mut at, &mut whole, out) {
            Ok(Event::Udp { binding, from, to, payload }) => {
                self.stats.udp += 1;
                let payload = if whole {
                    Payload::Whole(self.assembled.get(payload).unwrap_or(&[]))
                } else {
                    Payload::Frame(at + payload.start..at + payload.end)
                };
                Received::Udp(Datagram { binding, from, to, payload })
            }
            Ok(Event::Tcp) => {
                self.stats.tcp += 1;
                Received::Tcp
            }
            Ok(Event::Problem(report)) => {
                self.stats.control += 1;
                Received::Problem(report)
            }
            Ok(Event::Done) => {
                self.stats.control += 1;
                Received::Done
            }
            Ok(Event::Held) => {
                self.stats.held += 1;
                Received::Held
            }
            Err(reason) => {
                self.stats.drop(reason);
                Received::Dropped(reason)
            }
        }
    }

    /// `at` becomes where the packet begins in the frame, `whole` whether it was put together from several.
    fn frame(
        &mut self,
        now: u64,
        arrival: &Arrival<'_>,
        at: &mut usize,
        whole: &mut bool,
        out: &mut dyn Emit,
    ) -> Result<Event, Reason> {
        let (ethernet, header) = Ethernet::parse(arrival.frame)?;
        let link = self.arrived_on(arrival.device, &ethernet)?;
        let group = ethernet.to.is_group();
        let own = self.links[link].mac;
        if !group && ethernet.to != own {
            return Err(Reason::NotOurStation);
        }
        if !ethernet.from.is_station() || ethernet.from == own {
            return Err(Reason::BadStation);
        }
        *at = header;
        let packet = &arrival.frame[header..];
        let context =
            Context { now, link, group, station: ethernet.from, verified: arrival.verified, assembled: false };
        let ip = match ethernet.kind {
            ether::IPV4 => Ip::parse_v4(packet)?,
            ether::IPV6 => Ip::parse_v6(packet)?,
            ether::ARP => return self.arp(&context, packet, out),
            _ => return Err(Reason::UnknownType),
        };
        let own = self.check_addresses(&context, &ip)?;
        if ip.fragment.is_none() {
            let event = self.packet(&context, own, &ip, packet, out)?;
            if let Event::Udp { payload, .. } = &event
                && payload.end == ip.end
            {
                self.remember(arrival, header + payload.start..header + payload.end, &event);
            }
            return Ok(event);
        }
        let mut assembled = core::mem::take(&mut self.assembled);
        let offered = self.reassembly.offer(now, &ip, packet, &mut assembled);
        for _ in 0..core::mem::take(&mut self.reassembly.evicted) {
            self.stats.drop(Reason::ReassemblyEvicted);
        }
        let event = match offered {
            Ok(None) => Ok(Event::Held),
            Err(reason) => Err(reason),
            Ok(Some(len)) => {
                *whole = true;
                let packet = assembled.get(..len).unwrap_or(&[]);
                let parsed = if ip.to.is_ipv4() { Ip::parse_v4(packet) } else { Ip::parse_v6(packet) };
                let context = Context { assembled: true, verified: false, ..context };
                // A packet in pieces within pieces is nothing that anybody sends.
                parsed.and_then(|ip| match ip.fragment {
                    None => self.packet(&context, own, &ip, packet, out),
                    Some(_) => Err(Reason::FragmentMalformed),
                })
            }
        };
        self.assembled = assembled;
        event
    }

    /// The interface of a frame.
    fn arrived_on(&self, device: u8, ethernet: &Ethernet) -> Result<usize, Reason> {
        let vlan = ethernet.tag.map(|tag| tag.vlan).filter(|vlan| *vlan != 0);
        let found = self.links.iter().position(|link| link.device == device && link.vlan == vlan);
        found.ok_or_else(|| {
            let known = self.links.iter().any(|link| link.device == device);
            if known { Reason::UnknownVlan } else { Reason::UnknownDevice }
        })
    }

    /// Whether a packet may come from where it comes and go where it goes; whether that is one of our own addresses.
    fn check_addresses(&self, context: &Context, ip: &Ip) -> Result<bool, Reason> {
        let link = &self.links[context.link];
        let source_ok = match ip.from {
            IpAddr::V4(from) => {
                let special = from.is_multicast() || from.is_loopback() || from.is_unspecified();
                !(special || from.octets()[0] >= 240 || self.links.iter().any(|link| link.is_broadcast(ip.from)))
            }
            // Whoever tries out an address has none yet; that is looked at where it may be.
            IpAddr::V6(from) => {
                !(from.is_multicast() || from.is_loopback())
                    && from.to_ipv4_mapped().is_none()
                    && (!from.is_unspecified() || ip.protocol == ip::ICMP6)
            }
        };
        // What is ours on one link comes from nobody on another, but for addresses that hold on one link alone.
        let local = matches!(ip.from, IpAddr::V6(from) if nd::is_link_local(from));
        let ours = link.has(ip.from) || !local && self.links.iter().any(|link| link.has(ip.from));
        if !source_ok || ours {
            return Err(Reason::BadSource);
        }
        if link.has(ip.to) {
            // A frame to many with a packet to one is an attempt to make many answer (RFC 1122 §3.3.6).
            return if context.group { Err(Reason::NotOurAddress) } else { Ok(true) };
        }
        if ip.to.is_multicast() {
            return if link.groups.contains(&ip.to) { Ok(false) } else { Err(Reason::NotOurGroup) };
        }
        if link.is_broadcast(ip.to) { Ok(false) } else { Err(Reason::NotOurAddress) }
    }

    /// A whole packet for us (`own`) or for a group.
    fn packet(
        &mut self,
        context: &Context,
        own: bool,
        ip: &Ip,
        packet: &[u8],
        out: &mut dyn Emit,
    ) -> Result<Event, Reason> {
        let payload = packet.get(ip.header..ip.end).ok_or(Reason::Truncated)?;
        match ip.protocol {
            ip::UDP => {
                let udp = Udp::parse(ip.from, ip.to, payload, context.verified)?;
                let found = if own { self.ports.find(ip.to, udp.to) } else { self.ports.find_any(udp.to) };
                let Some(binding) = found else {
                    self.error(context, own, ip, packet, Problem::Port, out);
                    return Err(Reason::UdpPort);
                };
                Ok(Event::Udp {
                    binding,
                    from: endpoint(ip.from, udp.from, context.link),
                    to: endpoint(ip.to, udp.to, context.link),
                    payload: ip.header + udp::HEADER_BYTES..ip.header + usize::from(udp.len),
                })
            }
            ip::TCP if own => self.tcp_segment(context.now, ip, (context.link, context.station), payload, out),
            ip::ICMP if ip.to.is_ipv4() => self.icmp(context, own, ip, payload, out),
            ip::ICMP6 if ip.to.is_ipv6() => self.icmp(context, own, ip, payload, out),
            ip::TCP => Err(Reason::NotOurGroup),
            _ => {
                if !ip.extended {
                    self.error(context, own, ip, packet, Problem::Protocol, out);
                }
                Err(Reason::UnknownProtocol)
            }
        }
    }
}
