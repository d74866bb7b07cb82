//! ICMP (RFC 792) and ICMPv6 (RFC 4443): echoes, and errors with the packet that they are about.

use std::net::IpAddr;

use crate::checksum::Sum;
use crate::ip::{ICMP, ICMP6};
use crate::stats::Reason;

/// The size of the part that all messages here have.
pub const HEADER_BYTES: usize = 8;

/// What an error says about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Problem {
    /// Nobody has bound the port.
    Port,
    /// The protocol is not served there.
    Protocol,
    /// The host or its network cannot be reached, or a filter forbids it.
    Host,
    /// Too large for a link of the path, whose MTU in bytes this is; 0 from routers that do not say.
    TooBig(u32),
    /// It took too many hops.
    Hops,
    /// Some of its pieces did not come in time.
    Reassembly,
    /// Its headers were not understood.
    Header,
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// A question whether somebody is there; identifier and sequence number are to come back with the payload.
    EchoRequest([u8; 4]),
    /// The answer.
    EchoReply([u8; 4]),
    /// An error. The payload is the start of the packet that it is about.
    Error(Problem),
    /// A message of neighbour discovery, by its type.
    Discovery(u8),
    /// Another message.
    Other,
}

impl Message {
    /// Reads the header at the start of an IP payload, `from` and `to` being the packet's. What follows the first
    /// [`HEADER_BYTES`] is the message's payload.
    ///
    /// # Errors
    /// [`Reason::IcmpMalformed`]: too short, or a wrong checksum.
    pub fn parse(from: IpAddr, to: IpAddr, bytes: &[u8]) -> Result<Self, Reason> {
        let (head, _) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(Reason::IcmpMalformed)?;
        let [kind, code, _, _, rest @ ..] = *head;
        let mut sum = Sum::default();
        if to.is_ipv6() {
            sum.pseudo(from, to, ICMP6, u32::try_from(bytes.len()).map_err(|_| Reason::IcmpMalformed)?);
        }
        sum.add(bytes);
        if sum.finish() != 0 {
            return Err(Reason::IcmpMalformed);
        }
        let four = u32::from_be_bytes(rest);
        Ok(match (to.is_ipv6(), kind, code) {
            (false, 8, 0) | (true, 128, 0) => Self::EchoRequest(rest),
            (false, 0, 0) | (true, 129, 0) => Self::EchoReply(rest),
            (false, 3, 2) => Self::Error(Problem::Protocol),
            (false, 3, 3) | (true, 1, 4) => Self::Error(Problem::Port),
            (false, 3, 4) => Self::Error(Problem::TooBig(four & 0xffff)),
            (true, 2, _) => Self::Error(Problem::TooBig(four)),
            (false, 3, _) | (true, 1, _) => Self::Error(Problem::Host),
            (false, 11, 0) | (true, 3, 0) => Self::Error(Problem::Hops),
            (false, 11, 1) | (true, 3, 1) => Self::Error(Problem::Reassembly),
            (true, 4, 1) => Self::Error(Problem::Protocol),
            (false, 12, _) | (true, 4, _) => Self::Error(Problem::Header),
            (true, 133..=137, _) => Self::Discovery(kind),
            _ => Self::Other,
        })
    }

    /// Type, code and the four bytes after the checksum; `None` for what is never sent from here.
    #[must_use]
    pub const fn head(self, six: bool) -> Option<([u8; 2], [u8; 4])> {
        let zeros = [0; 4];
        Some(match (self, six) {
            (Self::EchoRequest(rest), false) => ([8, 0], rest),
            (Self::EchoRequest(rest), true) => ([128, 0], rest),
            (Self::EchoReply(rest), false) => ([0, 0], rest),
            (Self::EchoReply(rest), true) => ([129, 0], rest),
            (Self::Error(Problem::Port), false) => ([3, 3], zeros),
            (Self::Error(Problem::Port), true) => ([1, 4], zeros),
            (Self::Error(Problem::Protocol), false) => ([3, 2], zeros),
            // The pointer: the next header field of a packet without extension headers.
            (Self::Error(Problem::Protocol), true) => ([4, 1], [0, 0, 0, 6]),
            (Self::Error(Problem::Reassembly), false) => ([11, 1], zeros),
            (Self::Error(Problem::Reassembly), true) => ([3, 1], zeros),
            (Self::Error(Problem::TooBig(mtu)), false) => ([3, 4], mtu.to_be_bytes()),
            (Self::Error(Problem::TooBig(mtu)), true) => ([2, 0], mtu.to_be_bytes()),
            _ => return None,
        })
    }
}

/// The header of a message with the checksum over it and its payload.
#[must_use]
pub fn sealed(from: IpAddr, to: IpAddr, kind: [u8; 2], rest: [u8; 4], payload: &[&[u8]]) -> [u8; HEADER_BYTES] {
    let len: usize = payload.iter().map(|piece| piece.len()).sum();
    let mut sum = Sum::default();
    if to.is_ipv6() {
        sum.pseudo(from, to, ICMP6, (HEADER_BYTES + len) as u32);
    }
    sum.add(&kind);
    sum.add(&rest);
    payload.iter().for_each(|piece| sum.add(piece));
    let [a, b] = sum.finish().to_be_bytes();
    [kind[0], kind[1], a, b, rest[0], rest[1], rest[2], rest[3]]
}

/// The number of ICMP for a family.
#[must_use]
pub const fn protocol(six: bool) -> u8 {
    if six { ICMP6 } else { ICMP }
}

/// Whether a packet is an ICMP error, or may be: about such no error is sent (RFC 1122 §3.2.2, RFC 4443 §2.4).
#[must_use]
pub fn is_error(protocol: u8, payload: &[u8]) -> bool {
    match (protocol, payload.first()) {
        (ICMP, Some(kind)) => !matches!(kind, 0 | 8 | 13..=18),
        (ICMP6, Some(kind)) => *kind < 128 || *kind == 137,
        (ICMP | ICMP6, None) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::ends;

    #[test]
    fn messages_are_read_as_they_were_written() {
        for six in [false, true] {
            let (from, to) = ends(six);
            for message in [
                Message::EchoRequest([1, 2, 3, 4]),
                Message::EchoReply([0, 1, 0xff, 4]),
                Message::Error(Problem::Port),
                Message::Error(Problem::Protocol),
                Message::Error(Problem::TooBig(1400)),
                Message::Error(Problem::Reassembly),
            ] {
                let (kind, rest) = message.head(six).unwrap();
                let mut bytes = sealed(from, to, kind, rest, &[b"abc", b"de"]).to_vec();
                bytes.extend_from_slice(b"abcde");
                assert_eq!(Message::parse(from, to, &bytes), Ok(message));
                for bit in 0..bytes.len() * 8 {
                    let mut bytes = bytes.clone();
                    bytes[bit / 8] ^= 1 << (bit % 8);
                    assert_eq!(Message::parse(from, to, &bytes), Err(Reason::IcmpMalformed));
                }
                for len in 0..8 {
                    assert_eq!(Message::parse(from, to, &bytes[..len]), Err(Reason::IcmpMalformed));
                }
            }
        }
    }

    #[test]
    fn a_known_echo_request() {
        let (from, to) = ends(false);
        let bytes = sealed(from, to, [8, 0], [0, 1, 0, 2], &[]);
        assert_eq!(bytes, [8, 0, 0xf7, 0xfc, 0, 1, 0, 2]);
    }

    #[test]
    fn about_errors_no_errors() {
        assert!(is_error(ICMP, &[3]) && is_error(ICMP, &[]) && is_error(ICMP, &[99]) && is_error(ICMP6, &[1]));
        assert!(!is_error(ICMP, &[8]) && !is_error(ICMP6, &[128]) && !is_error(17, &[3]));
    }
}
