//! IP headers: IPv4 (RFC 791, RFC 1122 §3.2.1), IPv6 with its extension headers (RFC 8200 §3 and §4), fragments of both.
//!
//! Both families come out as one [`Ip`]. Options of IPv4 are passed over, but those that ask for a way of their own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum;
use crate::stats::Reason;

/// The size of an IPv4 header without options, in bytes.
pub const V4_BYTES: usize = 20;
/// The size of an IPv6 header in bytes.
pub const V6_BYTES: usize = 40;
/// The size of IPv6's fragment header in bytes.
pub const FRAGMENT_BYTES: usize = 8;
/// The most bytes of a packet.
pub const MAX_PACKET: usize = 65_535;

/// The number of ICMP.
pub const ICMP: u8 = 1;
/// The number of TCP.
pub const TCP: u8 = 6;
/// The number of UDP.
pub const UDP: u8 = 17;
/// The number of ICMPv6.
pub const ICMP6: u8 = 58;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
const NOTHING: u8 = 59;
/// More extension headers than this are refused.
const MAX_EXTENSIONS: usize = 8;

/// Which piece of a packet this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// The packet's number at its source.
    pub ident: u32,
    /// Where in the packet's payload, in bytes: a multiple of 8.
    pub offset: u16,
    /// Whether others follow.
    pub more: bool,
}

/// What the headers of a packet say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ip {
    /// The sender.
    pub from: IpAddr,
    /// The receiver.
    pub to: IpAddr,
    /// What the payload is; for a piece of a packet, what the packet's payload begins with.
    pub protocol: u8,
    /// How many more hops it had.
    pub hop_limit: u8,
    /// Where the payload begins: after all headers that were understood.
    pub header: usize,
    /// Where the packet ends; what follows is padding.
    pub end: usize,
    /// Set for a piece of a packet.
    pub fragment: Option<Fragment>,
    /// IPv4: no router may cut it.
    pub dont_fragment: bool,
    /// Whether headers stand between IPv6's first one and the payload.
    pub extended: bool,
}

impl Ip {
    /// Reads the headers of an IPv4 packet.
    ///
    /// # Errors
    /// [`Reason`]: a header that cannot be, a wrong checksum, a source route.
    #[inline]
    pub fn parse_v4(bytes: &[u8]) -> Result<Self, Reason> {
        let (head, _) = bytes.split_first_chunk::<V4_BYTES>().ok_or(Reason::Truncated)?;
        let header = usize::from(head[0] & 0x0f) * 4;
        let end = usize::from(u16::from_be_bytes([head[2], head[3]]));
        if head[0] >> 4 != 4 || header < V4_BYTES || end < header {
            return Err(Reason::IpMalformed);
        }
        let packet = bytes.get(..end).ok_or(Reason::Truncated)?;
        let whole = packet.get(..header).ok_or(Reason::Truncated)?;
        if checksum::of(whole) != 0 {
            return Err(Reason::IpChecksum);
        }
        let bits = u16::from_be_bytes([head[6], head[7]]);
        if bits & 0x8000 != 0 {
            return Err(Reason::IpMalformed);
        }
        if header > V4_BYTES {
            v4_options(&whole[V4_BYTES..])?;
        }
        let (more, offset) = (bits & 0x2000 != 0, (bits & 0x1fff) * 8);
        let ident = u32::from(u16::from_be_bytes([head[4], head[5]]));
        Ok(Self {
            from: Ipv4Addr::new(head[12], head[13], head[14], head[15]).into(),
            to: Ipv4Addr::new(head[16], head[17], head[18], head[19]).into(),
            protocol: head[9],
            hop_limit: head[8],
            header,
            end,
            fragment: (more || offset > 0).then_some(Fragment { ident, offset, more }),
            dont_fragment: bits & 0x4000 != 0,
            extended: false,
        })
    }

    /// Reads the headers of an IPv6 packet: up to the payload, or up to and with the fragment header of a piece.
    ///
    /// # Errors
    /// [`Reason`]: a header that cannot be, a routing header, an option that asks to be dropped, too many headers.
    #[inline]
    pub fn parse_v6(bytes: &[u8]) -> Result<Self, Reason> {
        let (head, _) = bytes.split_first_chunk::<V6_BYTES>().ok_or(Reason::Truncated)?;
        if head[0] >> 4 != 6 {
            return Err(Reason::IpMalformed);
        }
        let end = V6_BYTES + usize::from(u16::from_be_bytes([head[4], head[5]]));
        let address = |at: usize| Ipv6Addr::from(core::array::from_fn::<u8, 16, _>(|i| head[at + i]));
        let mut ip = Self {
            from: address(8).into(),
            to: address(24).into(),
            protocol: head[6],
            hop_limit: head[7],
            header: V6_BYTES,
            end,
            fragment: None,
            dont_fragment: true,
            extended: false,
        };
        let packet = bytes.get(..end).ok_or(Reason::Truncated)?;
        if !matches!(ip.protocol, UDP | TCP | ICMP6) {
            ip.extensions(packet)?;
        }
        Ok(ip)
    }

    fn extensions(&mut self, packet: &[u8]) -> Result<(), Reason> {
        for count in 0.. {
            let at = self.header;
            match self.protocol {
                HOP_BY_HOP if count > 0 => return Err(Reason::BadExtension),
                HOP_BY_HOP | DESTINATION | ROUTING | FRAGMENT if count >= MAX_EXTENSIONS => {
                    return Err(Reason::BadExtension);
                }
                HOP_BY_HOP | DESTINATION | ROUTING => {
                    let (head, _) = packet[at..].split_first_chunk::<8>().ok_or(Reason::Truncated)?;
                    let len = usize::from(head[1]) * 8 + 8;
                    let whole = packet.get(at..at + len).ok_or(Reason::Truncated)?;
                    if self.protocol != ROUTING {
                        v6_options(&whole[2..])?;
                    } else if whole[3] != 0 {
                        // Segments left: we are no router (RFC 8200 §4.4, RFC 5095).
                        return Err(Reason::SourceRouted);
                    }
                    (self.protocol, self.header) = (head[0], at + len);
                }
                FRAGMENT => {
                    let (head, _) = packet[at..].split_first_chunk::<FRAGMENT_BYTES>().ok_or(Reason::Truncated)?;
                    let bits = u16::from_be_bytes([head[2], head[3]]);
                    let (offset, more) = (bits & 0xfff8, bits & 1 != 0);
                    (self.protocol, self.header, self.extended) = (head[0], at + FRAGMENT_BYTES, true);
                    if more || offset > 0 {
                        let ident = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
                        self.fragment = Some(Fragment { ident, offset, more });
                        return Ok(());
                    }
                    // A fragment that is all of its packet is a packet like others (RFC 6946).
                }
                NOTHING => return Err(Reason::UnknownProtocol),
                _ => return Ok(()),
            }
            self.extended = true;
        }
        Ok(())
    }
}

/// Whether options of IPv4 can be passed over.
fn v4_options(mut options: &[u8]) -> Result<(), Reason> {
    const LOOSE: u8 = 131;
    const STRICT: u8 = 137;
    while let Some((&kind, rest)) = options.split_first() {
        options = match kind {
            0 => return Ok(()),
            1 => rest,
            LOOSE | STRICT => return Err(Reason::SourceRouted),
            _ => {
                let len = usize::from(*rest.first().ok_or(Reason::IpMalformed)?);
                options.get(len..).filter(|_| len >= 2).ok_or(Reason::IpMalformed)?
            }
        };
    }
    Ok(())
}

/// Whether options of IPv6 can be passed over: each says in its two highest bits what is to be done with it if unknown.
fn v6_options(mut options: &[u8]) -> Result<(), Reason> {
    while let Some((&kind, rest)) = options.split_first() {
        options = if kind == 0 {
            rest
        } else {
            let len = usize::from(*rest.first().ok_or(Reason::IpMalformed)?);
            if kind >> 6 != 0 {
                return Err(Reason::BadExtension);
            }
            options.get(2 + len..).ok_or(Reason::IpMalformed)?
        };
    }
    Ok(())
}

/// The headers of a packet to be sent. Both addresses are of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The sender.
    pub from: IpAddr,
    /// The receiver.
    pub to: IpAddr,
    /// What the payload is.
    pub protocol: u8,
    /// How many hops it may take.
    pub hop_limit: u8,
    /// The traffic class (DSCP and ECN).
    pub class: u8,
    /// The payload of this packet or piece in bytes.
    pub payload: u16,
    /// Set for a piece of a packet.
    pub fragment: Option<Fragment>,
}

impl Head {
    /// How many bytes its headers have.
    #[must_use]
    pub const fn len(&self) -> usize {
        match (self.to, self.fragment) {
            (IpAddr::V4(_), _) => V4_BYTES,
            (IpAddr::V6(_), None) => V6_BYTES,
            (IpAddr::V6(_), Some(_)) => V6_BYTES + FRAGMENT_BYTES,
        }
    }

    /// There always are some.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the headers to the start of `out`, which has room for them; says how long they are. A whole IPv4 packet
    /// goes with "don't fragment" and number 0 (RFC 6864 §4.1).
    pub fn write(&self, out: &mut [u8]) -> usize {
        let mut bytes = [0; V6_BYTES + FRAGMENT_BYTES];
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => self.write_v4(&mut bytes, from, to),
            (IpAddr::V6(from), IpAddr::V6(to)) => self.write_v6(&mut bytes, from, to),
            _ => debug_assert!(false, "addresses of two families"),
        }
        let len = self.len();
        if let Some(out) = out.get_mut(..len) {
            out.copy_from_slice(&bytes[..len]);
        }
        len
    }

    fn write_v4(&self, bytes: &mut [u8; 48], from: Ipv4Addr, to: Ipv4Addr) {
        bytes[0] = 0x45;
        bytes[1] = self.class;
        bytes[2..4].copy_from_slice(&(V4_BYTES as u16).saturating_add(self.payload).to_be_bytes());
        let bits = match self.fragment {
            None => 0x4000,
            Some(fragment) => {
                bytes[4..6].copy_from_slice(&(fragment.ident as u16).to_be_bytes());
                (u16::from(fragment.more) << 13) | (fragment.offset / 8)
            }
        };
        bytes[6..8].copy_from_slice(&bits.to_be_bytes());
        bytes[8] = self.hop_limit;
        bytes[9] = self.protocol;
        bytes[12..16].copy_from_slice(&from.octets());
        bytes[16..20].copy_from_slice(&to.octets());
        let sum = checksum::of(&bytes[..V4_BYTES]);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    }

    fn write_v6(&self, bytes: &mut [u8; 48], from: Ipv6Addr, to: Ipv6Addr) {
        bytes[..2].copy_from_slice(&(0x6000 | u16::from(self.class) << 4).to_be_bytes());
        bytes[6] = self.protocol;
        bytes[7] = self.hop_limit;
        bytes[8..24].copy_from_slice(&from.octets());
        bytes[24..40].copy_from_slice(&to.octets());
        let mut payload = self.payload;
        if let Some(fragment) = self.fragment {
            payload = payload.saturating_add(FRAGMENT_BYTES as u16);
            bytes[6] = FRAGMENT;
            bytes[40] = self.protocol;
            bytes[42..44].copy_from_slice(&(fragment.offset & 0xfff8 | u16::from(fragment.more)).to_be_bytes());
            bytes[44..48].copy_from_slice(&fragment.ident.to_be_bytes());
        }
        bytes[4..6].copy_from_slice(&payload.to_be_bytes());
    }
}

/// Two addresses for tests.
#[cfg(test)]
pub(crate) fn ends(six: bool) -> (IpAddr, IpAddr) {
    let [a, b] = if six { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] };
    (a.parse().unwrap(), b.parse().unwrap())
}

#[cfg(test)]
mod tests;
