//! Frames for tests and for fuzzing: well-formed ones, and checksums put right in others.
#![allow(dead_code, unreachable_pub, reason = "not every user needs all")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use insane_netstack::arp::{Arp, Operation};
use insane_netstack::checksum::{self, Sum};
use insane_netstack::ether::{self, Ethernet, Tag};
use insane_netstack::icmp::{self, Message};
use insane_netstack::ip::{self, Fragment, Head};
use insane_netstack::nd::Discovery;
use insane_netstack::udp::Udp;
use insane_netstack::{Config, Interface, Mac};

/// The engine's station and the peer's.
pub const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const PEER: Mac = Mac([2, 0, 0, 0, 0, 2]);

pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// `10.0.0.n`, or `fd00::n`.
pub fn host(six: bool, n: u8) -> IpAddr {
    if six { Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into()).into() } else { Ipv4Addr::new(10, 0, 0, n).into() }
}

/// An interface with `10.0.0.n/24` and `fd00::n/64`.
pub fn interface(n: u8, mac: Mac) -> Interface {
    Interface::new(
        mac,
        vec![format!("10.0.0.{n}/24").parse().expect("it is"), format!("fd00::{n}/64").parse().expect("it is")],
    )
}

/// An engine's configuration with one interface, the peer being host 2.
pub fn config() -> Config {
    Config::new(vec![interface(1, OURS)], 42)
}

pub fn frame(to: Mac, tag: Option<Tag>, kind: u16, rest: &[&[u8]]) -> Vec<u8> {
    let mut head = [0; 18];
    let len = Ethernet { to, from: PEER, tag, kind }.write(&mut head);
    [&head[..len], &rest.concat()].concat()
}

pub fn arp(operation: Operation, sender: Mac, sender_ip: &str, target_ip: &str, to: Mac) -> Vec<u8> {
    let four = |text: &str| text.parse().expect("an address");
    let target = if operation == Operation::Reply { OURS } else { Mac::default() };
    let arp = Arp { operation, sender, sender_ip: four(sender_ip), target, target_ip: four(target_ip) };
    frame(to, None, ether::ARP, &[&arp.bytes()])
}

/// A packet from one host to another in a frame from the peer.
pub fn packet(
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    hop_limit: u8,
    fragment: Option<Fragment>,
    payload: &[u8],
) -> Vec<u8> {
    let head = Head { from, to, protocol, hop_limit, class: 0, payload: payload.len() as u16, fragment };
    let mut bytes = [0; 48];
    let len = head.write(&mut bytes);
    let kind = if to.is_ipv4() { ether::IPV4 } else { ether::IPV6 };
    let broadcast = to == IpAddr::from([255; 4]) || to == IpAddr::from([10, 0, 0, 255]);
    let station = if broadcast { Mac::BROADCAST } else { Mac::of_group(to).unwrap_or(OURS) };
    frame(station, None, kind, &[&bytes[..len], payload])
}

/// A datagram as an IP payload.
pub fn datagram(from: IpAddr, to: IpAddr, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let udp = Udp { from: ports.0, to: ports.1, len: payload.len() as u16 + 8 };
    [&udp.sealed(from, to, &[payload])[..], payload].concat()
}

pub fn udp(from: IpAddr, to: IpAddr, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    packet(from, to, ip::UDP, 64, None, &datagram(from, to, ports, payload))
}

/// The frames of a datagram that was cut every `step` bytes.
pub fn pieces(from: IpAddr, to: IpAddr, ident: u32, payload: &[u8], step: usize) -> Vec<Vec<u8>> {
    let whole = datagram(from, to, (2000, 1000), payload);
    let piece = |(n, part): (usize, &[u8])| {
        let more = (n + 1) * step < whole.len();
        packet(from, to, ip::UDP, 64, Some(Fragment { ident, offset: (n * step) as u16, more }), part)
    };
    whole.chunks(step).enumerate().map(piece).collect()
}

pub fn icmp(from: IpAddr, to: IpAddr, kind: [u8; 2], rest: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let head = icmp::sealed(from, to, kind, rest, &[payload]);
    packet(from, to, icmp::protocol(to.is_ipv6()), 64, None, &[&head[..], payload].concat())
}

pub fn echo(from: IpAddr, to: IpAddr, payload: &[u8]) -> Vec<u8> {
    let (kind, rest) = Message::EchoRequest([0, 1, 0, 2]).head(to.is_ipv6()).expect("there is one");
    icmp(from, to, kind, rest, payload)
}

pub fn discovery(from: Ipv6Addr, to: Ipv6Addr, hop_limit: u8, message: &Discovery) -> Vec<u8> {
    let (kind, flags, rest, len) = message.bytes();
    let head = icmp::sealed(from.into(), to.into(), kind, flags, &[&rest[..len]]);
    packet(from.into(), to.into(), ip::ICMP6, hop_limit, None, &[&head[..], &rest[..len]].concat())
}

/// A TCP segment without options or payload.
pub fn segment(from: IpAddr, to: IpAddr, ports: (u16, u16), sequence: u32, acknowledged: u32, flags: u8) -> Vec<u8> {
    let mut bytes = [0; 20];
    bytes[..2].copy_from_slice(&ports.0.to_be_bytes());
    bytes[2..4].copy_from_slice(&ports.1.to_be_bytes());
    bytes[4..8].copy_from_slice(&sequence.to_be_bytes());
    bytes[8..12].copy_from_slice(&acknowledged.to_be_bytes());
    bytes[12..16].copy_from_slice(&[0x50, flags, 0xff, 0xff]);
    let mut sum = Sum::default();
    sum.pseudo(from, to, ip::TCP, 20);
    sum.add(&bytes);
    bytes[16..18].copy_from_slice(&sum.finish().to_be_bytes());
    packet(from, to, ip::TCP, 64, None, &bytes)
}

/// Puts the checksums of a frame right, as far as it is one that has some: what was changed is then looked at.
pub fn reseal(frame: &mut [u8]) {
    let at = if frame.get(12..14) == Some(&[0x81, 0]) { 18 } else { 14 };
    match frame.get(at - 2..at) {
        Some([8, 0]) => reseal_v4(&mut frame[at..]),
        Some([0x86, 0xdd]) => reseal_v6(&mut frame[at..]),
        _ => {}
    }
}

fn reseal_v4(packet: &mut [u8]) {
    let Some(first) = packet.first() else { return };
    let header = usize::from(first & 0xf) * 4;
    if header < 20 || packet.len() < header {
        return;
    }
    packet[10..12].fill(0);
    let sum = checksum::of(&packet[..header]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    if packet[6] & 0x3f != 0 || packet[7] != 0 {
        return;
    }
    let address = |at: usize| IpAddr::from(core::array::from_fn::<u8, 4, _>(|i| packet[at + i]));
    let (from, to, protocol) = (address(12), address(16), packet[9]);
    let end = usize::from(u16::from_be_bytes([packet[2], packet[3]])).min(packet.len());
    if let Some(payload) = packet.get_mut(header..end) {
        reseal_payload(from, to, protocol, payload);
    }
}

fn reseal_v6(packet: &mut [u8]) {
    if packet.len() < 40 {
        return;
    }
    let address = |at: usize| IpAddr::from(core::array::from_fn::<u8, 16, _>(|i| packet[at + i]));
    let (from, to, protocol) = (address(8), address(24), packet[6]);
    let end = (40 + usize::from(u16::from_be_bytes([packet[4], packet[5]]))).min(packet.len());
    reseal_payload(from, to, protocol, &mut packet[40..end]);
}

fn reseal_payload(from: IpAddr, to: IpAddr, protocol: u8, payload: &mut [u8]) {
    let at = match protocol {
        ip::ICMP | ip::ICMP6 => 2,
        ip::TCP => 16,
        ip::UDP => 6,
        _ => return,
    };
    let len = payload.len();
    let Some(field) = payload.get_mut(at..at + 2) else { return };
    field.fill(0);
    let mut sum = Sum::default();
    if protocol != ip::ICMP {
        sum.pseudo(from, to, protocol, len as u32);
    }
    sum.add(payload);
    payload[at..at + 2].copy_from_slice(&sum.finish_udp().to_be_bytes());
}

/// One well-formed frame of each kind that the engine takes.
pub fn corpus() -> Vec<Vec<u8>> {
    let mut all = vec![
        arp(Operation::Request, PEER, "10.0.0.2", "10.0.0.1", Mac::BROADCAST),
        arp(Operation::Reply, PEER, "10.0.0.2", "10.0.0.1", OURS),
        arp(Operation::Reply, PEER, "10.0.0.9", "10.0.0.1", OURS),
    ];
    let (IpAddr::V6(us), IpAddr::V6(peer)) = (host(true, 1), host(true, 2)) else { return all };
    let group = insane_netstack::nd::group_of(us);
    all.push(discovery(peer, group, 255, &Discovery::Solicitation { target: us, station: Some(PEER) }));
    all.push(discovery(Ipv6Addr::UNSPECIFIED, group, 255, &Discovery::Solicitation { target: us, station: None }));
    let told = Discovery::Advertisement { target: peer, station: Some(PEER), solicited: true, overrides: true };
    all.push(discovery(peer, us, 255, &told));
    for six in [false, true] {
        let (us, peer) = (host(six, 1), host(six, 2));
        all.push(udp(peer, us, (2000, 1000), b"hello"));
        all.push(udp(peer, us, (2000, 999), b"nobody"));
        all.push(echo(peer, us, &[7; 100]));
        all.extend(pieces(peer, us, 5, &[9; 2000], 1000));
        all.push(segment(peer, us, (3000, 80), 1, 0, 2));
        all.push(segment(peer, us, (3000, 80), 2, 1, 16));
        let sent = udp(us, peer, (1000, 2000), &[1; 1400]);
        let too_big = if six { ([2, 0], [0, 0, 5, 0]) } else { ([3, 4], [0, 0, 5, 0]) };
        all.push(icmp(peer, us, too_big.0, too_big.1, &sent[14..]));
        all.push(icmp(peer, us, if six { [1, 4] } else { [3, 3] }, [0; 4], &sent[14..]));
        all.push(packet(peer, us, 99, 64, None, b"what is this"));
    }
    all
}
