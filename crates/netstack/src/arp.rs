//! ARP for IPv4 over Ethernet (RFC 826, RFC 5227).

use std::net::Ipv4Addr;

use crate::ether::Mac;
use crate::stats::Reason;

/// The packet's size in bytes.
pub const PACKET_BYTES: usize = 28;

const START: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// What an ARP packet asks or says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Who has the target's address?
    Request,
    /// The sender has.
    Reply,
}

/// An ARP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arp {
    /// Question or answer.
    pub operation: Operation,
    /// The sender's station.
    pub sender: Mac,
    /// The sender's address.
    pub sender_ip: Ipv4Addr,
    /// The target's station; zeros in a request.
    pub target: Mac,
    /// The target's address.
    pub target_ip: Ipv4Addr,
}

impl Arp {
    /// Reads a packet; what follows it is padding.
    ///
    /// # Errors
    /// [`Reason`]: too short, or not about Ethernet and IPv4.
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let (packet, _) = bytes.split_first_chunk::<PACKET_BYTES>().ok_or(Reason::Truncated)?;
        if packet[..6] != START {
            return Err(Reason::ArpMalformed);
        }
        let operation = match packet[6..8] {
            [0, 1] => Operation::Request,
            [0, 2] => Operation::Reply,
            _ => return Err(Reason::ArpMalformed),
        };
        let mac = |at: usize| Mac(core::array::from_fn(|i| packet[at + i]));
        let ip = |at: usize| Ipv4Addr::from(core::array::from_fn::<u8, 4, _>(|i| packet[at + i]));
        Ok(Self { operation, sender: mac(8), sender_ip: ip(14), target: mac(18), target_ip: ip(24) })
    }

    /// The packet's bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; PACKET_BYTES] {
        let mut packet = [0; PACKET_BYTES];
        packet[..6].copy_from_slice(&START);
        packet[7] = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        packet[8..14].copy_from_slice(&self.sender.0);
        packet[14..18].copy_from_slice(&self.sender_ip.octets());
        packet[18..24].copy_from_slice(&self.target.0);
        packet[24..].copy_from_slice(&self.target_ip.octets());
        packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request as Linux sends it.
    const REQUEST: [u8; 28] = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 10, 0, 0, 9, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1];

    #[test]
    fn a_request_is_read_and_written() {
        let arp = Arp::parse(&REQUEST).unwrap();
        assert_eq!(arp.operation, Operation::Request);
        assert_eq!((arp.sender, arp.sender_ip), (Mac([2, 0, 0, 0, 0, 9]), Ipv4Addr::new(10, 0, 0, 9)));
        assert_eq!((arp.target, arp.target_ip), (Mac::default(), Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(arp.bytes(), REQUEST);
        let reply = Arp { operation: Operation::Reply, target: Mac([6; 6]), ..arp };
        assert_eq!(Arp::parse(&reply.bytes()), Ok(reply));
    }

    #[test]
    fn other_kinds_and_cuts_are_refused() {
        for at in 0..8 {
            let mut bytes = REQUEST;
            bytes[at] ^= 0x40;
            assert_eq!(Arp::parse(&bytes), Err(Reason::ArpMalformed), "{at}");
        }
        for len in 0..28 {
            assert_eq!(Arp::parse(&REQUEST[..len]), Err(Reason::Truncated));
        }
    }
}
