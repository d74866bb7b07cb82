//! Neighbour discovery's two messages that hosts with configured routes need (RFC 4861 §4.3, §4.4): solicitation and
//! advertisement. Duplicate address detection of our own addresses is the operator's; others' is answered (RFC 4862 §5.4.3).

use std::net::Ipv6Addr;

use crate::ether::Mac;
use crate::stats::Reason;

/// The type of a solicitation.
pub const SOLICITATION: u8 = 135;
/// The type of an advertisement.
pub const ADVERTISEMENT: u8 = 136;
/// The size of a message with an address of a station, in bytes.
pub const MESSAGE_BYTES: usize = 32;
/// The hop limit that shows that a message comes from the link.
pub const HOP_LIMIT: u8 = 255;

const SOURCE: u8 = 1;
const TARGET: u8 = 2;

/// A message of neighbour discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discovery {
    /// Who has `target`?
    Solicitation {
        /// The address asked for.
        target: Ipv6Addr,
        /// The asker's station, if it says it.
        station: Option<Mac>,
    },
    /// `target` is at `station`.
    Advertisement {
        /// The address.
        target: Ipv6Addr,
        /// Its station, if it is said.
        station: Option<Mac>,
        /// It answers a solicitation.
        solicited: bool,
        /// It replaces what is known.
        overrides: bool,
    },
}

impl Discovery {
    /// Reads a message whose ICMPv6 header was checked, by the rules of RFC 4861 §7.1.
    ///
    /// # Errors
    /// [`Reason`]: against one of the rules, or a message between hosts and routers.
    pub fn parse(from: Ipv6Addr, to: Ipv6Addr, hop_limit: u8, bytes: &[u8]) -> Result<Self, Reason> {
        let bad = Reason::DiscoveryMalformed;
        if hop_limit != HOP_LIMIT {
            return Err(bad);
        }
        let kind = *bytes.first().ok_or(bad)?;
        if !matches!(kind, SOLICITATION | ADVERTISEMENT) {
            return Err(Reason::RouterMessage);
        }
        let (head, options) = bytes.split_first_chunk::<24>().ok_or(bad)?;
        let target = Ipv6Addr::from(core::array::from_fn::<u8, 16, _>(|i| head[8 + i]));
        if head[1] != 0 || target.is_multicast() || target.is_unspecified() {
            return Err(bad);
        }
        let station = station(options, if kind == SOLICITATION { SOURCE } else { TARGET })?;
        if kind == SOLICITATION {
            // Somebody tries an address out: to the group alone, and without a station.
            if from.is_unspecified() && (station.is_some() || to != group_of(target)) {
                return Err(bad);
            }
            return Ok(Self::Solicitation { target, station });
        }
        let (solicited, overrides) = (head[4] & 0x40 != 0, head[4] & 0x20 != 0);
        if to.is_multicast() && solicited {
            return Err(bad);
        }
        Ok(Self::Advertisement { target, station, solicited, overrides })
    }

    /// Type and code, the four bytes after the checksum, and what follows them.
    #[must_use]
    pub fn bytes(&self) -> ([u8; 2], [u8; 4], [u8; MESSAGE_BYTES - 8], usize) {
        let (kind, flags, target, station, option) = match *self {
            Self::Solicitation { target, station } => (SOLICITATION, 0, target, station, SOURCE),
            Self::Advertisement { target, station, solicited, overrides } => {
                let flags = u8::from(solicited) << 6 | u8::from(overrides) << 5;
                (ADVERTISEMENT, flags, target, station, TARGET)
            }
        };
        let mut rest = [0; MESSAGE_BYTES - 8];
        rest[..16].copy_from_slice(&target.octets());
        let mut len = 16;
        if let Some(station) = station {
            rest[16..18].copy_from_slice(&[option, 1]);
            rest[18..].copy_from_slice(&station.0);
            len = rest.len();
        }
        ([kind, 0], [flags, 0, 0, 0], rest, len)
    }
}

/// The station that an option of this kind names. Others are passed over; one without a length spoils the message.
fn station(mut options: &[u8], wanted: u8) -> Result<Option<Mac>, Reason> {
    let mut found = None;
    while let Some((&kind, rest)) = options.split_first() {
        let len = usize::from(*rest.first().ok_or(Reason::DiscoveryMalformed)?) * 8;
        let option = options.get(..len).filter(|_| len > 0).ok_or(Reason::DiscoveryMalformed)?;
        if kind == wanted {
            let mac = Mac(option[2..8].try_into().map_err(|_| Reason::DiscoveryMalformed)?);
            if len != 8 || !mac.is_station() {
                return Err(Reason::DiscoveryMalformed);
            }
            found = Some(mac);
        }
        options = &options[len..];
    }
    Ok(found)
}

/// The group to which solicitations for an address go (RFC 4291 §2.7.1).
#[must_use]
pub fn group_of(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

/// The address that a station has on its link without being configured (RFC 4291 appendix A).
#[must_use]
pub fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Whether an address belongs to a link.
#[must_use]
pub const fn is_link_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

    fn wire(message: &Discovery) -> Vec<u8> {
        let (kind, flags, rest, len) = message.bytes();
        [&kind[..], &[0, 0], &flags, &rest[..len]].concat()
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let (from, to): (Ipv6Addr, Ipv6Addr) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        for station in [None, Some(MAC)] {
            for message in [
                Discovery::Solicitation { target: to, station },
                Discovery::Advertisement { target: from, station, solicited: true, overrides: false },
                Discovery::Advertisement { target: from, station, solicited: false, overrides: true },
            ] {
                let bytes = wire(&message);
                assert_eq!(Discovery::parse(from, to, 255, &bytes), Ok(message));
                assert_eq!(Discovery::parse(from, to, 254, &bytes), Err(Reason::DiscoveryMalformed));
                for len in (0..bytes.len()).filter(|len| ![1, 24].contains(len)) {
                    assert!(Discovery::parse(from, to, 255, &bytes[..len]).is_err(), "{len}");
                }
            }
        }
    }

    #[test]
    fn the_rules_of_the_rfc() {
        let any = Ipv6Addr::UNSPECIFIED;
        let (from, to): (Ipv6Addr, Ipv6Addr) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let all: Ipv6Addr = "ff02::1".parse().unwrap();
        let bad = Err(Reason::DiscoveryMalformed);
        let ask = |target, station| wire(&Discovery::Solicitation { target, station });
        assert_eq!(Discovery::parse(from, to, 255, &ask(all, None)), bad);
        assert_eq!(Discovery::parse(any, to, 255, &ask(to, None)), bad);
        assert_eq!(Discovery::parse(any, group_of(to), 255, &ask(to, Some(MAC))), bad);
        assert!(Discovery::parse(any, group_of(to), 255, &ask(to, None)).is_ok());
        assert_eq!(Discovery::parse(from, to, 255, &ask(to, Some(Mac::BROADCAST))), bad);
        let mut zero = ask(to, Some(MAC));
        zero[25] = 0;
        assert_eq!(Discovery::parse(from, to, 255, &zero), bad);
        let mut code = ask(to, Some(MAC));
        code[1] = 1;
        assert_eq!(Discovery::parse(from, to, 255, &code), bad);
        let told =
            wire(&Discovery::Advertisement { target: from, station: Some(MAC), solicited: true, overrides: true });
        assert_eq!(Discovery::parse(from, all, 255, &told), bad);
        let mut router = ask(to, None);
        router[0] = 134;
        assert_eq!(Discovery::parse(from, to, 255, &router), Err(Reason::RouterMessage));
    }

    #[test]
    fn addresses_of_links_and_groups() {
        assert_eq!(link_local(MAC), "fe80::ff:fe00:9".parse::<Ipv6Addr>().unwrap());
        assert_eq!(group_of("fd00::12:3456".parse().unwrap()), "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap());
        assert!(is_link_local("fe80::1".parse().unwrap()) && !is_link_local("fd00::1".parse().unwrap()));
    }
}
