//! The Internet checksum (RFC 1071), over bytes that lie in several places.
//!
//! ```
//! use insane_netstack::checksum::Sum;
//!
//! let mut sum = Sum::default();
//! sum.add(&[0x00, 0x01, 0xf2]);
//! sum.add(&[0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
//! assert_eq!(sum.finish(), !0xddf2);
//! ```

use std::net::IpAddr;

/// A sum under way. Pieces may have odd lengths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    total: u64,
    odd: bool,
}

impl Sum {
    /// Adds bytes that follow those added before.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        let sum = native(bytes);
        self.total += u64::from(if self.odd { sum.swap_bytes() } else { sum });
        self.odd ^= bytes.len() % 2 == 1;
    }

    /// Adds a 16-bit word, wherever the bytes added before have ended: for fields of a pseudo-header.
    #[inline]
    pub fn word(&mut self, value: u16) {
        self.total += u64::from(value.to_be());
    }

    /// Adds what stands before a UDP, TCP or ICMPv6 header in its checksum (RFC 768, RFC 8200 §8.1): both addresses, which
    /// must be of one family, the length and the protocol.
    #[inline]
    pub fn pseudo(&mut self, from: IpAddr, to: IpAddr, protocol: u8, len: u32) {
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                self.add(&from.octets());
                self.add(&to.octets());
            }
            (from, to) => {
                self.add(&six(from));
                self.add(&six(to));
            }
        }
        self.word((len >> 16) as u16);
        self.word(len as u16);
        self.word(u16::from(protocol));
    }

    /// The sum so far, not complemented: what hardware that computes checksums wants in the field.
    #[inline]
    #[must_use]
    pub fn folded(self) -> u16 {
        u16::from_be(fold(self.total))
    }

    /// The checksum. Over bytes with a right checksum among them it is 0.
    #[inline]
    #[must_use]
    pub fn finish(self) -> u16 {
        !self.folded()
    }

    /// The checksum as UDP sends it, where 0 means that there is none.
    #[inline]
    #[must_use]
    pub fn finish_udp(self) -> u16 {
        match self.finish() {
            0 => 0xffff,
            sum => sum,
        }
    }
}

/// The checksum of bytes that lie together.
#[inline]
#[must_use]
pub fn of(bytes: &[u8]) -> u16 {
    let mut sum = Sum::default();
    sum.add(bytes);
    sum.finish()
}

fn six(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The sum of the 16-bit words in this machine's byte order: the sum in the other order is the same with its bytes swapped.
#[inline]
fn native(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut total: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    total += u64::from(u32::from_ne_bytes(last));
    fold(total)
}

#[inline]
fn fold(mut total: u64) -> u16 {
    total = (total >> 32) + (total & 0xffff_ffff);
    total = (total >> 32) + (total & 0xffff_ffff);
    let mut total = (total >> 16) + (total & 0xffff);
    total = (total >> 16) + (total & 0xffff);
    ((total >> 16) + (total & 0xffff)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 word by word.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !(sum as u16)
    }

    #[test]
    fn the_header_of_a_known_packet() {
        // An IPv4 header from a capture, its checksum 0xb1e6.
        let header = [
            0x45, 0x00, 0x00, 0x3c, 0x1c, 0x46, 0x40, 0x00, 0x40, 0x06, 0xb1, 0xe6, 0xac, 0x10, 0x0a, 0x63, 0xac, 0x10,
            0x0a, 0x0c,
        ];
        assert_eq!(of(&header), 0);
        let mut without = header;
        without[10..12].fill(0);
        assert_eq!(of(&without), 0xb1e6);
    }

    #[test]
    fn a_udp_checksum_is_never_sent_as_zero() {
        let mut sum = Sum::default();
        sum.word(0xffff);
        assert_eq!((sum.finish(), sum.finish_udp()), (0, 0xffff));
    }

    #[test]
    fn large_words_do_not_overflow() {
        assert_eq!(of(&[0xff; 65_535]), plain(&[0xff; 65_535]));
    }

    proptest! {
        #[test]
        fn pieces_of_any_length_sum_up_as_a_whole(pieces in proptest::collection::vec(
            proptest::collection::vec(any::<u8>(), 0..70), 0..8
        )) {
            let mut sum = Sum::default();
            for piece in &pieces {
                sum.add(piece);
            }
            prop_assert_eq!(sum.finish(), plain(&pieces.concat()));
        }
    }
}
