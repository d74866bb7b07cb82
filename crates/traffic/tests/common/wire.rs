//! Packets as they are on the wire, built by hand.
#![allow(unreachable_pub, dead_code, reason = "a module in several tests, each of which uses a part")]

use std::net::{Ipv4Addr, Ipv6Addr};

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

pub fn udp(src: u16, dst: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = [src.to_be_bytes(), dst.to_be_bytes(), (8 + payload.len() as u16).to_be_bytes(), [0, 0]].concat();
    out.extend(payload);
    out
}

pub fn tcp(src: u16, dst: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = [src.to_be_bytes(), dst.to_be_bytes()].concat();
    out.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    out.extend(payload);
    out
}

/// The Internet checksum (RFC 1071).
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An IPv4 packet whose header has `options` bytes of options (a multiple of four).
pub fn ipv4_with(
    src: Ipv4Addr,
    dst: Ipv4Addr,
    proto: u8,
    tos: u8,
    options: usize,
    fragment: u16,
    inner: &[u8],
) -> Vec<u8> {
    let header = 20 + options;
    let mut out = vec![0; header];
    out[0] = 0x40 | (header / 4) as u8;
    out[1] = tos;
    out[2..4].copy_from_slice(&((header + inner.len()) as u16).to_be_bytes());
    out[4..6].copy_from_slice(&[0x12, 0x34]);
    out[6..8].copy_from_slice(&fragment.to_be_bytes());
    out[8] = 64;
    out[9] = proto;
    out[12..16].copy_from_slice(&src.octets());
    out[16..20].copy_from_slice(&dst.octets());
    out[20..header].fill(1);
    let sum = checksum(&out);
    out[10..12].copy_from_slice(&sum.to_be_bytes());
    out.extend(inner);
    out
}

pub fn ipv4(src: [u8; 4], dst: [u8; 4], proto: u8, inner: &[u8]) -> Vec<u8> {
    ipv4_with(src.into(), dst.into(), proto, 0, 0, 0, inner)
}

pub fn ipv6(src: Ipv6Addr, dst: Ipv6Addr, proto: u8, class: u8, inner: &[u8]) -> Vec<u8> {
    let mut out = vec![0x60 | class >> 4, class << 4, 0, 0];
    out.extend((inner.len() as u16).to_be_bytes());
    out.extend([proto, 64]);
    out.extend(src.octets());
    out.extend(dst.octets());
    out.extend(inner);
    out
}

/// An IPv6 extension header of eight bytes.
pub fn extension(next: u8, inner: &[u8]) -> Vec<u8> {
    [&[next, 0, 1, 4, 0, 0, 0, 0], inner].concat()
}

/// An IPv6 fragment header: `offset` in units of eight bytes.
pub fn fragment6(next: u8, offset: u16, more: bool, id: u32, inner: &[u8]) -> Vec<u8> {
    let word = (offset << 3 | u16::from(more)).to_be_bytes();
    [&[next, 0], &word[..], &id.to_be_bytes(), inner].concat()
}

pub fn ethernet(dst: [u8; 6], src: [u8; 6], vlans: &[u16], ether_type: u16, inner: &[u8]) -> Vec<u8> {
    let mut out = [dst, src].concat();
    for vlan in vlans {
        out.extend([0x81, 0x00]);
        out.extend(vlan.to_be_bytes());
    }
    out.extend(ether_type.to_be_bytes());
    out.extend(inner);
    out
}

/// A GTP-U G-PDU, with a PDU session container as extension header (TS 38.415) if `qfi` is given.
pub fn gtp_u(qfi: Option<u8>, inner: &[u8]) -> Vec<u8> {
    let mut out = vec![if qfi.is_some() { 0x34 } else { 0x30 }, 255];
    let extension = qfi.map_or(vec![], |qfi| vec![0, 0, 0, 0x85, 1, 0, qfi, 0]);
    out.extend(((extension.len() + inner.len()) as u16).to_be_bytes());
    out.extend([0, 0, 0, 1]);
    out.extend(extension);
    out.extend(inner);
    out
}

/// A DNS response with one question, aliases and addresses.
pub fn dns_response(name: &str, aliases: usize, addresses: &[Ipv4Addr]) -> Vec<u8> {
    let mut out = vec![0x12, 0x34, 0x81, 0x80, 0, 1];
    out.extend(((aliases + addresses.len()) as u16).to_be_bytes());
    out.extend([0, 0, 0, 0]);
    for label in name.split('.') {
        out.push(label.len() as u8);
        out.extend(label.as_bytes());
    }
    out.extend([0, 0, 1, 0, 1]);
    for _ in 0..aliases {
        out.extend([0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 60, 0, 4, 1, b'a', 0xc0, 12]);
    }
    for address in addresses {
        out.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        out.extend(address.octets());
    }
    out
}

/// A TLS ClientHello with `padding` bytes of another extension before the server name.
pub fn client_hello(name: &str, padding: usize) -> Vec<u8> {
    let be = |n: usize| (n as u16).to_be_bytes();
    let mut sni = vec![];
    sni.extend(be(name.len() + 3));
    sni.push(0);
    sni.extend(be(name.len()));
    sni.extend(name.as_bytes());
    let mut extensions = [&[0, 21][..], &be(padding), &vec![0; padding], &[0, 0], &be(sni.len()), &sni].concat();
    extensions.extend([0, 43, 0, 3, 2, 3, 4]);
    let mut hello = vec![3, 3];
    hello.extend([7; 32]);
    hello.push(32);
    hello.extend([9; 32]);
    hello.extend([0, 4, 0x13, 0x01, 0x13, 0x02, 1, 0]);
    hello.extend(be(extensions.len()));
    hello.extend(extensions);
    let handshake = [&[1, 0][..], &be(hello.len()), &hello].concat();
    [&[22, 3, 1][..], &be(handshake.len()), &handshake].concat()
}
