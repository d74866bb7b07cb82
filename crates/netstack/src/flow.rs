//! Headers for datagrams that somebody else builds: written in front of a payload that is copied at most once.

use core::ops::Range;
use std::net::{IpAddr, SocketAddr};

use crate::checksum::Sum;
use crate::ether;
use crate::ip::{UDP, V4_BYTES, V6_BYTES};
use crate::ports::Binding;
use crate::udp;

/// The most bytes that stand before a payload: leave this much room in front of it.
pub const HEADROOM: usize = ether::HEADER_BYTES + ether::TAG_BYTES + V6_BYTES + udp::HEADER_BYTES;

/// Datagrams from one port of ours to one destination. It remembers how their headers look; the engine sees to it that what
/// it remembers still holds. Belongs to the engine that made it.
#[derive(Debug, Clone)]
pub struct Flow {
    pub(crate) binding: Binding,
    pub(crate) to: SocketAddr,
    /// The headers with lengths and checksums zero.
    pub(crate) template: [u8; HEADROOM],
    pub(crate) ip_at: usize,
    pub(crate) len: usize,
    /// The largest payload in bytes.
    pub(crate) limit: usize,
    pub(crate) device: u8,
    /// Of the IPv4 header, without its length.
    pub(crate) ip_sum: Sum,
    /// Of the pseudo-header, without the length.
    pub(crate) udp_sum: Sum,
    pub(crate) generation: u64,
    /// Not used after this time.
    pub(crate) until: u64,
}

impl Flow {
    pub(crate) fn new(binding: Binding, to: SocketAddr) -> Self {
        Self {
            binding,
            to,
            template: [0; HEADROOM],
            ip_at: 0,
            len: 0,
            limit: 0,
            device: 0,
            ip_sum: Sum::default(),
            udp_sum: Sum::default(),
            generation: 0,
            until: 0,
        }
    }

    /// Where its datagrams go.
    #[must_use]
    pub const fn to(&self) -> SocketAddr {
        self.to
    }

    /// Fills in what is the same in all headers. `head` is the Ethernet and the IP header for an empty datagram.
    pub(crate) fn fill(&mut self, head: &[u8], ip_at: usize, from: SocketAddr, mtu: u32) {
        let (six, udp_at) = (self.to.is_ipv6(), head.len());
        self.template = [0; HEADROOM];
        self.template[..udp_at].copy_from_slice(head);
        self.template[udp_at..udp_at + 2].copy_from_slice(&from.port().to_be_bytes());
        self.template[udp_at + 2..udp_at + 4].copy_from_slice(&self.to.port().to_be_bytes());
        (self.ip_at, self.len) = (ip_at, udp_at + udp::HEADER_BYTES);
        self.limit = (mtu as usize).saturating_sub(self.len - ip_at);
        (self.ip_sum, self.udp_sum) = (Sum::default(), Sum::default());
        if six {
            self.template[ip_at + 4..ip_at + 6].fill(0);
        } else {
            self.template[ip_at + 2..ip_at + 4].fill(0);
            self.template[ip_at + 10..ip_at + 12].fill(0);
            self.ip_sum.add(&self.template[ip_at..udp_at]);
        }
        self.udp_sum.pseudo(from.ip(), self.to.ip(), UDP, 0);
    }

    /// The header for a payload of so many bytes, at most `limit`.
    #[inline]
    pub(crate) fn header(&self, payload: usize) -> Header {
        let mut bytes = self.template;
        let datagram = (payload + udp::HEADER_BYTES) as u16;
        if self.to.is_ipv4() {
            let total = datagram + V4_BYTES as u16;
            let mut sum = self.ip_sum;
            sum.word(total);
            bytes[self.ip_at + 2..self.ip_at + 4].copy_from_slice(&total.to_be_bytes());
            bytes[self.ip_at + 10..self.ip_at + 12].copy_from_slice(&sum.finish().to_be_bytes());
        } else {
            bytes[self.ip_at + 4..self.ip_at + 6].copy_from_slice(&datagram.to_be_bytes());
        }
        bytes[self.len - 4..self.len - 2].copy_from_slice(&datagram.to_be_bytes());
        let mut pseudo = self.udp_sum;
        pseudo.word(datagram);
        Header { bytes, len: self.len, device: self.device, payload, pseudo }
    }
}

/// The headers of one datagram, but for the UDP checksum. Exactly one of [`Header::checksum`] (after which the datagram is
/// complete), [`Header::offload`] (the device completes it) and [`Header::write_in_front`] is to be called.
#[derive(Debug, Clone)]
pub struct Header {
    bytes: [u8; HEADROOM],
    len: usize,
    device: u8,
    payload: usize,
    pseudo: Sum,
}

/// A frame has no room for a header and its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a header of {header} bytes and {payload} bytes of payload do not lie in the frame around {at}")]
pub struct NoRoom {
    /// The header's size.
    pub header: usize,
    /// The payload's size.
    pub payload: usize,
    /// Where the payload was said to be.
    pub at: usize,
}

impl Header {
    /// The device over which it goes.
    #[must_use]
    pub const fn device(&self) -> u8 {
        self.device
    }

    /// The header's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Writes the checksum over the payload, whose pieces are given in order and must have the length that was asked for.
    #[inline]
    pub fn checksum<'a>(&mut self, pieces: impl IntoIterator<Item = &'a [u8]>) {
        self.checksum_of(|see| pieces.into_iter().for_each(&mut *see));
    }

    /// As [`Header::checksum`], for a payload that is shown piece by piece.
    #[inline]
    pub fn checksum_of(&mut self, show: impl FnOnce(&mut dyn FnMut(&[u8]))) {
        let mut sum = self.pseudo;
        sum.add(&self.bytes[self.len - 8..self.len - 2]);
        let mut len = 0;
        show(&mut |piece| {
            sum.add(piece);
            len += piece.len();
        });
        debug_assert_eq!(len, self.payload, "the payload has another length than its header says");
        self.bytes[self.len - 2..self.len].copy_from_slice(&sum.finish_udp().to_be_bytes());
    }

    /// Writes what devices that compute checksums want: the sum of the pseudo-header. UDP begins eight bytes before the
    /// header's end, its checksum field two.
    #[inline]
    pub fn offload(&mut self) {
        let sum = self.pseudo.folded();
        self.bytes[self.len - 2..self.len].copy_from_slice(&sum.to_be_bytes());
    }

    /// Writes header and checksum in front of a payload that lies in a frame's memory already; says which bytes of the
    /// memory the frame is.
    ///
    /// # Errors
    /// [`NoRoom`]: nothing was written.
    #[inline]
    pub fn write_in_front(mut self, memory: &mut [u8], payload_at: usize) -> Result<Range<usize>, NoRoom> {
        let error = NoRoom { header: self.len, payload: self.payload, at: payload_at };
        let end = payload_at.checked_add(self.payload).ok_or(error)?;
        let start = payload_at.checked_sub(self.len).ok_or(error)?;
        let frame = memory.get_mut(start..end).ok_or(error)?;
        let (head, payload) = frame.split_at_mut(self.len);
        self.checksum([&*payload]);
        head.copy_from_slice(self.bytes());
        Ok(start..end)
    }
}

/// Why something cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// There is no route, or it leads to an interface without an address of that family, or back here.
    #[error("there is no route to that address: add one, or give an interface an address of its network")]
    NoRoute,
    /// The next hop is being asked for; try again.
    #[error("the neighbour on the way is being looked for: try again")]
    Resolving,
    /// The next hop does not answer.
    #[error("the neighbour on the way does not answer")]
    Silent,
    /// Larger than the path carries in one packet, or than a packet can be.
    #[error("the payload is larger than the path carries: {limit} bytes")]
    TooLarge {
        /// The largest payload in bytes.
        limit: usize,
    },
    /// The port is not bound, or to an address of the other family.
    #[error("the port is not bound for this address: bind it first")]
    NotBound,
    /// There is no room: for another neighbour, for another packet that waits, or in the datapath.
    #[error("there is no room for it now: try again")]
    Full,
}

/// The address and port of a SocketAddr, its scope given for an address of a link.
pub(crate) fn endpoint(address: IpAddr, port: u16, interface: usize) -> SocketAddr {
    match address {
        IpAddr::V6(six) if crate::nd::is_link_local(six) => {
            std::net::SocketAddrV6::new(six, port, 0, interface as u32 + 1).into()
        }
        address => SocketAddr::new(address, port),
    }
}
