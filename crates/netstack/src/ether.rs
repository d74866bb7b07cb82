//! Ethernet II frames with at most one VLAN tag (IEEE 802.3 clause 3, 802.1Q clause 9), and group addresses (RFC 1112 §6.4,
//! RFC 2464 §7).

use std::net::IpAddr;

use crate::stats::Reason;

/// The header's size in bytes without a tag.
pub const HEADER_BYTES: usize = 14;
/// A VLAN tag's size in bytes.
pub const TAG_BYTES: usize = 4;
/// The type of IPv4.
pub const IPV4: u16 = 0x0800;
/// The type of ARP.
pub const ARP: u16 = 0x0806;
/// The type of IPv6.
pub const IPV6: u16 = 0x86dd;
/// The type of a customer's VLAN tag.
pub const VLAN: u16 = 0x8100;
/// The type of a provider's VLAN tag, which stands before a customer's.
pub const PROVIDER_VLAN: u16 = 0x88a8;

/// The address of a station, or of a group of stations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All stations.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether it is a group's (all stations are one).
    #[inline]
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Whether it can be one station's: no group's, not all zeros.
    #[must_use]
    pub fn is_station(self) -> bool {
        !self.is_group() && self.0 != [0; 6]
    }

    /// Where packets to a group of hosts go; for one host there is no such rule.
    #[must_use]
    pub fn of_group(group: IpAddr) -> Option<Self> {
        match group {
            IpAddr::V4(group) if group.is_multicast() => {
                let [_, b, c, d] = group.octets();
                Some(Self([0x01, 0x00, 0x5e, b & 0x7f, c, d]))
            }
            IpAddr::V6(group) if group.is_multicast() => {
                let [.., a, b, c, d] = group.octets();
                Some(Self([0x33, 0x33, a, b, c, d]))
            }
            _ => None,
        }
    }
}

impl core::fmt::Display for Mac {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A VLAN tag as it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// The VLAN, 1 to 4094; 0 in a tag that says a priority only.
    pub vlan: u16,
    /// The priority, 0 to 7.
    pub priority: u8,
}

/// An Ethernet header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ethernet {
    /// Where to.
    pub to: Mac,
    /// Where from.
    pub from: Mac,
    /// Its tag.
    pub tag: Option<Tag>,
    /// What follows.
    pub kind: u16,
}

impl Ethernet {
    /// Reads the header; says how long it is.
    ///
    /// # Errors
    /// [`Reason`]: too short, two tags, or a length where the type should be.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(Self, usize), Reason> {
        let (head, rest) = frame.split_first_chunk::<HEADER_BYTES>().ok_or(Reason::Truncated)?;
        let [t0, t1, t2, t3, t4, t5, f0, f1, f2, f3, f4, f5, k0, k1] = *head;
        let mut header = Self {
            to: Mac([t0, t1, t2, t3, t4, t5]),
            from: Mac([f0, f1, f2, f3, f4, f5]),
            tag: None,
            kind: u16::from_be_bytes([k0, k1]),
        };
        let mut len = HEADER_BYTES;
        if header.kind == VLAN {
            let (tag, _) = rest.split_first_chunk::<TAG_BYTES>().ok_or(Reason::Truncated)?;
            let control = u16::from_be_bytes([tag[0], tag[1]]);
            header.tag = Some(Tag { vlan: control & 0x0fff, priority: (control >> 13) as u8 });
            header.kind = u16::from_be_bytes([tag[2], tag[3]]);
            len += TAG_BYTES;
            if header.kind == VLAN {
                return Err(Reason::StackedVlan);
            }
        }
        match header.kind {
            PROVIDER_VLAN => Err(Reason::StackedVlan),
            0..0x0600 => Err(Reason::UnknownType),
            _ => Ok((header, len)),
        }
    }

    /// Writes the header to the start of `out`, which has room for it; says how long it is.
    #[inline]
    pub fn write(&self, out: &mut [u8]) -> usize {
        let mut bytes = [0; HEADER_BYTES + TAG_BYTES];
        bytes[..6].copy_from_slice(&self.to.0);
        bytes[6..12].copy_from_slice(&self.from.0);
        let len = self.len();
        if let Some(tag) = self.tag {
            bytes[12..14].copy_from_slice(&VLAN.to_be_bytes());
            let control = u16::from(tag.priority & 7) << 13 | tag.vlan & 0x0fff;
            bytes[14..16].copy_from_slice(&control.to_be_bytes());
        }
        bytes[len - 2..len].copy_from_slice(&self.kind.to_be_bytes());
        if let Some(out) = out.get_mut(..len) {
            out.copy_from_slice(&bytes[..len]);
        }
        len
    }

    /// How many bytes it has.
    #[must_use]
    pub const fn len(&self) -> usize {
        if self.tag.is_some() { HEADER_BYTES + TAG_BYTES } else { HEADER_BYTES }
    }

    /// A header is never empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6];

    #[test]
    fn headers_are_read_as_they_were_written() {
        for tag in [None, Some(Tag { vlan: 5, priority: 7 }), Some(Tag { vlan: 0, priority: 3 })] {
            let header = Ethernet { to: Mac([2, 0, 0, 0, 0, 1]), from: Mac([2, 0, 0, 0, 0, 2]), tag, kind: ARP };
            let mut bytes = [0; 18];
            let len = header.write(&mut bytes);
            assert_eq!(Ethernet::parse(&bytes[..len]), Ok((header, len)));
            if tag.is_none() {
                assert_eq!(bytes[..len], PLAIN);
            }
        }
    }

    #[test]
    fn stacked_tags_lengths_and_cuts_are_refused() {
        let mut bytes = [0; 22];
        bytes[..12].copy_from_slice(&PLAIN[..12]);
        bytes[12..].copy_from_slice(&[0x81, 0, 0, 1, 0x81, 0, 0, 2, 8, 0]);
        assert_eq!(Ethernet::parse(&bytes), Err(Reason::StackedVlan));
        bytes[12..14].copy_from_slice(&[0x88, 0xa8]);
        assert_eq!(Ethernet::parse(&bytes), Err(Reason::StackedVlan));
        bytes[12..14].copy_from_slice(&[0x05, 0xdc]);
        assert_eq!(Ethernet::parse(&bytes), Err(Reason::UnknownType));
        bytes[12..14].copy_from_slice(&[0x81, 0]);
        for len in 0..18 {
            assert_eq!(Ethernet::parse(&bytes[..len]), Err(Reason::Truncated), "{len}");
        }
    }

    #[test]
    fn groups_have_their_stations() {
        assert_eq!(Mac::of_group("224.129.2.3".parse().unwrap()), Some(Mac([1, 0, 0x5e, 1, 2, 3])));
        assert_eq!(Mac::of_group("ff02::1:ff00:1".parse().unwrap()), Some(Mac([0x33, 0x33, 0xff, 0, 0, 1])));
        assert_eq!(Mac::of_group("10.0.0.1".parse().unwrap()), None);
        assert!(Mac::BROADCAST.is_group() && !Mac::BROADCAST.is_station() && !Mac::default().is_station());
    }
}
