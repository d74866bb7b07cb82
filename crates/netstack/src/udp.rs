//! UDP headers (RFC 768; RFC 8200 §8.1 for IPv6).

use std::net::IpAddr;

use crate::checksum::Sum;
use crate::ip::UDP;
use crate::stats::Reason;

/// The header's size in bytes.
pub const HEADER_BYTES: usize = 8;

/// What a UDP header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Udp {
    /// The sender's port; 0 if it wants no answer.
    pub from: u16,
    /// The receiver's port.
    pub to: u16,
    /// Header and payload in bytes.
    pub len: u16,
}

impl Udp {
    /// Reads the header at the start of an IP payload. Bytes after the datagram's own length are no part of it. With
    /// `verified` somebody else has checked the checksum already.
    ///
    /// # Errors
    /// [`Reason`]: a length that cannot be, port 0 as destination, a wrong checksum, or none on IPv6.
    #[inline]
    pub fn parse(from: IpAddr, to: IpAddr, bytes: &[u8], verified: bool) -> Result<Self, Reason> {
        let (head, _) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(Reason::UdpMalformed)?;
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let udp = Self { from: word(0), to: word(2), len: word(4) };
        let datagram = bytes.get(..usize::from(udp.len)).ok_or(Reason::UdpMalformed)?;
        if datagram.len() < HEADER_BYTES || udp.to == 0 {
            return Err(Reason::UdpMalformed);
        }
        if word(6) == 0 {
            return if to.is_ipv4() { Ok(udp) } else { Err(Reason::UdpChecksum) };
        }
        if !verified {
            let mut sum = Sum::default();
            sum.pseudo(from, to, UDP, u32::from(udp.len));
            sum.add(datagram);
            if sum.finish() != 0 {
                return Err(Reason::UdpChecksum);
            }
        }
        Ok(udp)
    }

    /// The header's bytes with this checksum.
    #[inline]
    #[must_use]
    pub fn bytes(&self, checksum: u16) -> [u8; HEADER_BYTES] {
        let ([a, b], [c, d]) = (self.from.to_be_bytes(), self.to.to_be_bytes());
        let ([e, f], [g, h]) = (self.len.to_be_bytes(), checksum.to_be_bytes());
        [a, b, c, d, e, f, g, h]
    }

    /// The header's bytes with the checksum over the payload's pieces.
    #[must_use]
    pub fn sealed(&self, from: IpAddr, to: IpAddr, pieces: &[&[u8]]) -> [u8; HEADER_BYTES] {
        let mut sum = Sum::default();
        sum.pseudo(from, to, UDP, u32::from(self.len));
        sum.add(&self.bytes(0));
        pieces.iter().for_each(|piece| sum.add(piece));
        self.bytes(sum.finish_udp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::ends;

    #[test]
    fn a_known_datagram() {
        // From 10.0.0.1:1000 to 10.0.0.2:2000, "hi"; the checksum summed by hand.
        let (from, to) = ends(false);
        let bytes = Udp { from: 1000, to: 2000, len: 10 }.sealed(from, to, &[b"hi"]);
        let words = [0x0a00u32, 0x0001, 0x0a00, 0x0002, 17, 10, 1000, 2000, 10, 0x6869];
        assert_eq!(bytes[6..], (!(words.iter().sum::<u32>() as u16)).to_be_bytes());
    }

    #[test]
    fn every_change_of_a_bit_is_found() {
        for six in [false, true] {
            let (from, to) = ends(six);
            let mut bytes = Udp { from: 7, to: 9, len: 13 }.sealed(from, to, &[b"he", b"llo"]).to_vec();
            bytes.extend_from_slice(b"hello");
            assert_eq!(Udp::parse(from, to, &bytes, false).unwrap().len, 13);
            for bit in 0..bytes.len() * 8 {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(Udp::parse(from, to, &bytes, false).is_err(), "{bit}");
            }
        }
    }

    #[test]
    fn without_checksum_on_ipv4_only() {
        let bytes = Udp { from: 7, to: 9, len: 8 }.bytes(0);
        let (from, to) = ends(false);
        assert!(Udp::parse(from, to, &bytes, false).is_ok());
        let (from, to) = ends(true);
        assert_eq!(Udp::parse(from, to, &bytes, true), Err(Reason::UdpChecksum));
    }

    #[test]
    fn lengths_that_cannot_be() {
        let (from, to) = ends(false);
        for len in [0, 7, 11, 65_535] {
            let mut bytes = Udp { from: 7, to: 9, len }.bytes(0).to_vec();
            bytes.extend_from_slice(&[1, 2]);
            assert_eq!(Udp::parse(from, to, &bytes, false), Err(Reason::UdpMalformed), "{len}");
        }
    }
}
