//! What is inside a tunnel: IP in IP, GRE, GTP-U, VXLAN and Geneve. Encrypted tunnels stay closed.

use super::ip::{Flow, Found, Fragment};
use super::{be16, ethernet};

/// Where the IP packet inside the one that was found starts, if it is a tunnel that can be read.
#[inline]
pub(super) fn inner_ip(bytes: &[u8], outer: &Flow, found: &Found) -> Option<usize> {
    if outer.fragment != Fragment::No {
        return None;
    }
    let inside = bytes.get(..found.end)?;
    match (outer.proto, outer.ports) {
        (4 | 41, _) => Some(found.transport),
        (47, _) => gre(inside, found.transport),
        (17, Some((_, 2152))) => gtp_u(inside, found.payload),
        (17, Some((_, 4789))) => vxlan(inside, found.payload),
        (17, Some((_, 6081))) => geneve(inside, found.payload),
        _ => None,
    }
}

fn by_ether_type(bytes: &[u8], ether_type: u16, at: usize) -> Option<usize> {
    match ether_type {
        0x0800 | 0x86dd => Some(at),
        0x6558 => inside_ethernet(bytes, at),
        _ => None,
    }
}

fn inside_ethernet(bytes: &[u8], at: usize) -> Option<usize> {
    ethernet::read(bytes, at).filter(|(e, _)| e.carries_ip()).map(|(_, next)| next)
}

/// GRE (RFC 2784, 2890): checksum, key and sequence number are four bytes each where their bit is set.
fn gre(bytes: &[u8], at: usize) -> Option<usize> {
    let flags = be16(bytes, at)?;
    if flags & 7 != 0 || flags & 0x4000 != 0 {
        return None;
    }
    let options = [0x8000, 0x2000, 0x1000].iter().filter(|&&bit| flags & bit != 0).count();
    by_ether_type(bytes, be16(bytes, at + 2)?, at + 4 + 4 * options)
}

/// GTP-U (TS 29.281 §5): only G-PDUs of version 1 carry a packet; extension headers say their length in words.
fn gtp_u(bytes: &[u8], at: usize) -> Option<usize> {
    let flags = *bytes.get(at)?;
    if flags >> 4 != 0b0011 || *bytes.get(at + 1)? != 255 {
        return None;
    }
    if flags & 7 == 0 {
        return Some(at + 8);
    }
    let mut kind = if flags & 4 == 0 { 0 } else { *bytes.get(at + 11)? };
    let mut next = at + 12;
    for _ in 0..8 {
        if kind == 0 {
            return Some(next);
        }
        let len = usize::from(*bytes.get(next)?) * 4;
        if len == 0 {
            return None;
        }
        kind = *bytes.get(next + len - 1)?;
        next += len;
    }
    None
}

/// VXLAN (RFC 7348): eight bytes, then an Ethernet frame.
fn vxlan(bytes: &[u8], at: usize) -> Option<usize> {
    (bytes.get(at)? & 0x08 != 0).then_some(())?;
    inside_ethernet(bytes, at + 8)
}

/// Geneve (RFC 8926): eight bytes and options in words of four.
fn geneve(bytes: &[u8], at: usize) -> Option<usize> {
    let first = *bytes.get(at)?;
    (first >> 6 == 0).then_some(())?;
    by_ether_type(bytes, be16(bytes, at + 2)?, at + 8 + usize::from(first & 0x3f) * 4)
}
