//! IPv4 and IPv6 headers, extension headers, and the ports of the transports that have them.

use super::{be16, be32};
use crate::packet::Ecn;

/// How many IPv6 extension headers are stepped over.
const MAX_EXTENSIONS: u8 = 8;

/// An IP address as a number, so that prefixes and ranges are comparisons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Whether it is an IPv6 address.
    pub v6: bool,
    /// The address, most significant byte first; an IPv4 address is the low 32 bits.
    pub bits: u128,
}

impl From<std::net::IpAddr> for Address {
    fn from(ip: std::net::IpAddr) -> Self {
        match ip {
            std::net::IpAddr::V4(ip) => Self { v6: false, bits: u32::from(ip).into() },
            std::net::IpAddr::V6(ip) => Self { v6: true, bits: ip.into() },
        }
    }
}

/// Whether a packet is a part of a larger one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragment {
    /// It is whole.
    #[default]
    No,
    /// The first part: it has the transport header.
    First,
    /// A later part: it has no transport header.
    Later,
}

/// One IP header and what follows it, as far as filters ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Source address.
    pub src: Address,
    /// Destination address.
    pub dst: Address,
    /// The transport protocol after all extension headers.
    pub proto: u8,
    /// Differentiated services code point.
    pub dscp: u8,
    /// The ECN field.
    pub ecn: Ecn,
    /// Source and destination port, where the transport has ports and this packet has its header.
    pub ports: Option<(u16, u16)>,
    /// The security parameter index of ESP, the only thing that tells such flows apart.
    pub spi: u32,
    /// Whether this is a part of a larger packet.
    pub fragment: Fragment,
    /// The identification that the parts of one packet share.
    pub fragment_id: u32,
}

/// Where the parts of a packet are whose IP header was read.
pub(super) struct Found {
    /// Where the transport header starts.
    pub(super) transport: usize,
    /// Where the transport's payload starts.
    pub(super) payload: usize,
    /// Where the packet ends, by its own length field.
    pub(super) end: usize,
}

/// Reads the IP header at `at` into `flow`, which is the default one before; the bytes beyond `limit` are not the packet's.
/// `None` if it is not a whole IP packet: then `flow` means nothing.
#[inline]
pub(super) fn read(bytes: &[u8], at: usize, limit: usize, flow: &mut Flow) -> Option<Found> {
    let bytes = bytes.get(..limit)?;
    let mut found = match bytes.get(at)? >> 4 {
        4 => read_v4(bytes, at, flow)?,
        6 => read_v6(bytes, at, flow)?,
        _ => return None,
    };
    if flow.fragment == Fragment::Later {
        found.payload = found.transport;
        return Some(found);
    }
    read_transport(bytes, flow, &mut found)?;
    Some(found)
}

#[inline]
fn read_v4(bytes: &[u8], at: usize, flow: &mut Flow) -> Option<Found> {
    let header = bytes.get(at..at + 20)?;
    let header_len = usize::from(header[0] & 15) * 4;
    let total = usize::from(be16(header, 2)?);
    if header_len < 20 || total < header_len || at + total > bytes.len() {
        return None;
    }
    let fragment_word = be16(header, 6)?;
    flow.src = Address { v6: false, bits: be32(header, 12)?.into() };
    flow.dst = Address { v6: false, bits: be32(header, 16)?.into() };
    flow.proto = header[9];
    flow.dscp = header[1] >> 2;
    flow.ecn = Ecn::from_bits(header[1]);
    flow.fragment = fragment_kind(fragment_word & 0x1fff, fragment_word & 0x2000 != 0);
    flow.fragment_id = be16(header, 4)?.into();
    let transport = at + header_len;
    Some(Found { transport, payload: transport, end: at + total })
}

const fn fragment_kind(offset: u16, more: bool) -> Fragment {
    match (offset, more) {
        (0, false) => Fragment::No,
        (0, true) => Fragment::First,
        _ => Fragment::Later,
    }
}

fn read_v6(bytes: &[u8], at: usize, flow: &mut Flow) -> Option<Found> {
    let header = bytes.get(at..at + 40)?;
    let end = at + 40 + usize::from(be16(header, 4)?);
    if end > bytes.len() {
        return None;
    }
    let class = (be16(header, 0)? >> 4) as u8;
    let address = |from: usize| -> Option<Address> {
        let raw: [u8; 16] = header.get(from..from + 16)?.try_into().ok()?;
        Some(Address { v6: true, bits: u128::from_be_bytes(raw) })
    };
    flow.src = address(8)?;
    flow.dst = address(24)?;
    flow.proto = header[6];
    flow.dscp = class >> 2;
    flow.ecn = Ecn::from_bits(class);
    let mut found = Found { transport: at + 40, payload: at + 40, end };
    skip_extensions(bytes, flow, &mut found)?;
    Some(found)
}

/// Steps over hop-by-hop, routing, fragment, destination, mobility, HIP and Shim6 headers (RFC 8200 §4.1).
fn skip_extensions(bytes: &[u8], flow: &mut Flow, found: &mut Found) -> Option<()> {
    for _ in 0..MAX_EXTENSIONS {
        let at = found.transport;
        let len = match flow.proto {
            0 | 43 | 60 | 135 | 139 | 140 => (usize::from(*bytes.get(at + 1)?) + 1) * 8,
            44 => {
                let word = be16(bytes, at + 2)?;
                flow.fragment = fragment_kind(word >> 3, word & 1 != 0);
                flow.fragment_id = be32(bytes, at + 4)?;
                8
            }
            _ => return Some(()),
        };
        flow.proto = *bytes.get(at)?;
        found.transport = at + len;
        if found.transport > found.end {
            return None;
        }
        if flow.fragment == Fragment::Later {
            return Some(());
        }
    }
    None
}

/// Reads the ports of TCP, UDP, UDP-Lite, SCTP and DCCP, steps over an authentication header, notes the SPI of ESP.
#[inline]
fn read_transport(bytes: &[u8], flow: &mut Flow, found: &mut Found) -> Option<()> {
    let bytes = bytes.get(..found.end)?;
    if flow.proto == 51 {
        let len = (usize::from(*bytes.get(found.transport + 1)?) + 2) * 4;
        flow.proto = *bytes.get(found.transport)?;
        found.transport += len;
    }
    let at = found.transport;
    found.payload = at;
    let header_len = match flow.proto {
        6 => (usize::from(*bytes.get(at + 12)?) >> 4) * 4,
        17 | 136 => 8,
        33 | 132 => 12,
        50 => {
            flow.spi = be32(bytes, at)?;
            return Some(());
        }
        _ => return (at <= found.end).then_some(()),
    };
    if flow.proto == 6 && header_len < 20 {
        return None;
    }
    flow.ports = Some((be16(bytes, at)?, be16(bytes, at + 2)?));
    found.payload = at + header_len;
    // A first fragment may end inside a long TCP header; a whole packet may not.
    (found.payload <= found.end || flow.fragment == Fragment::First).then_some(())
}
