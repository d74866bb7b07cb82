//! What the last UDP datagram looked like: most frames have the headers of the one before, but for the checksum, and what those mean
//! is known then. BSD has such a one-behind cache for its ports; here it is for all headers.

use core::ops::Range;
use std::net::SocketAddr;

use super::{Arrival, Engine, Event};
use crate::checksum::Sum;
use crate::flow::HEADROOM;
use crate::ports::Binding;
use crate::udp;

/// Headers that were found right, and what followed from them. It is forgotten when anything changes that they were looked up in.
#[derive(Debug)]
pub(super) struct Last {
    device: u8,
    /// The headers up to the UDP checksum, which stands at `len`.
    head: [u8; HEADROOM],
    len: usize,
    /// Where the payload is in the frame.
    payload: Range<usize>,
    /// Of all that the UDP checksum is over but itself and the payload.
    sum: Sum,
    binding: Binding,
    from: SocketAddr,
    to: SocketAddr,
}

impl Last {
    /// Whether a frame is right, if it has these headers; otherwise it is to be looked at as any other.
    #[inline]
    fn is_of(&self, arrival: &Arrival<'_>) -> bool {
        let Some((head, rest)) = arrival.frame.split_at_checked(self.len) else { return false };
        let (Some(field), Some(payload)) = (rest.first_chunk(), arrival.frame.get(self.payload.clone())) else {
            return false;
        };
        let field = u16::from_be_bytes(*field);
        if arrival.device != self.device || head != &self.head[..self.len] || field == 0 {
            return false;
        }
        let mut sum = self.sum;
        sum.word(field);
        arrival.verified || {
            sum.add(payload);
            sum.finish() == 0
        }
    }
}

impl Engine {
    /// What a frame is that has the headers of the one before.
    #[inline]
    pub(super) fn again(&self, arrival: &Arrival<'_>) -> Option<Event> {
        let Last { payload, binding, from, to, .. } = self.last.as_ref().filter(|last| last.is_of(arrival))?;
        Some(Event::Udp { binding: *binding, from: *from, to: *to, payload: payload.clone() })
    }

    /// Remembers the headers of a frame with which a datagram came; its payload, where `payload` says in the frame, ends with the packet.
    pub(super) fn remember(&mut self, arrival: &Arrival<'_>, payload: Range<usize>, event: &Event) {
        let Event::Udp { binding, from, to, .. } = *event else { return };
        let Some(headers) = arrival.frame.get(..payload.start).filter(|headers| headers.len() <= HEADROOM) else {
            return;
        };
        let len = headers.len() - 2;
        let mut head = [0; HEADROOM];
        head[..len].copy_from_slice(&headers[..len]);
        let mut sum = Sum::default();
        sum.pseudo(from.ip(), to.ip(), crate::ip::UDP, (payload.len() + udp::HEADER_BYTES) as u32);
        sum.add(&headers[len + 2 - udp::HEADER_BYTES..len]);
        self.last = Some(Last { device: arrival.device, head, len, payload, sum, binding, from, to });
    }
}
