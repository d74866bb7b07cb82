//! Ethernet II headers with up to two VLAN tags.

use super::be16;

/// An Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// Destination address.
    pub dst: [u8; 6],
    /// Source address.
    pub src: [u8; 6],
    /// The type after all VLAN tags.
    pub ether_type: u16,
    /// The outer VLAN tag's identifier.
    pub vlan: Option<u16>,
    /// The outer VLAN tag's priority code point.
    pub pcp: Option<u8>,
}

impl Ethernet {
    /// Whether an IP header follows.
    #[must_use]
    pub const fn carries_ip(&self) -> bool {
        matches!(self.ether_type, 0x0800 | 0x86dd)
    }
}

/// The header at `at` and where its payload starts.
pub(super) fn read(bytes: &[u8], at: usize) -> Option<(Ethernet, usize)> {
    let dst = bytes.get(at..at + 6)?.try_into().ok()?;
    let src = bytes.get(at + 6..at + 12)?.try_into().ok()?;
    let mut next = at + 12;
    let mut ether_type = be16(bytes, next)?;
    let (mut vlan, mut pcp) = (None, None);
    for _ in 0..2 {
        if !matches!(ether_type, 0x8100 | 0x88a8) {
            break;
        }
        let tag = be16(bytes, next + 2)?;
        vlan = vlan.or(Some(tag & 0x0fff));
        pcp = pcp.or(Some((tag >> 13) as u8));
        next += 4;
        ether_type = be16(bytes, next)?;
    }
    Some((Ethernet { dst, src, ether_type, vlan, pcp }, next + 2))
}
