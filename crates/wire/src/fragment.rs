//! How a message larger than a frame is cut.
//!
//! All parts but the last are of one size, a multiple of 8, and as near to each other as that allows: frames of one size can
//! be handed to the kernel as one piece (UDP segmentation offload), and a receiver that has seen one header of a run knows
//! where all the others' payloads belong.

use crate::frame::record::{FRAGMENT_BYTES, MESSAGE_BYTES, Message, Part};
use crate::frame::{ALIGN, HEADER_BYTES, MAX_FRAME_BYTES, padded};

/// The largest payload in bytes that travels whole in a frame of at most `frame_limit` bytes (its tag excluded).
#[must_use]
pub fn whole_limit(frame_limit: usize, message: &Message) -> usize {
    (frame_limit.min(MAX_FRAME_BYTES) & !(ALIGN - 1))
        .saturating_sub(HEADER_BYTES + MESSAGE_BYTES + message.option_bytes())
}

/// The parts of one message, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragments {
    total: u32,
    size: u32,
    next: u32,
}

impl Fragments {
    /// Cuts a message of `total` bytes for frames of at most `frame_limit` bytes (their tags excluded). `None` if the limit
    /// leaves no room for any payload.
    #[must_use]
    pub fn new(total: u32, frame_limit: usize, message: &Message) -> Option<Self> {
        let head = HEADER_BYTES + FRAGMENT_BYTES + message.option_bytes();
        let most = (frame_limit.min(MAX_FRAME_BYTES) & !(ALIGN - 1)).checked_sub(head).filter(|&most| most >= ALIGN)?;
        let count = (total as usize).div_ceil(most).max(1);
        let size = padded((total as usize).div_ceil(count)).clamp(ALIGN, most);
        Some(Self { total, size: u32::try_from(size).unwrap_or(u32::MAX), next: 0 })
    }

    /// The size in bytes of all parts but the last.
    #[must_use]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// How many parts there are in all.
    #[must_use]
    pub const fn parts(&self) -> u32 {
        self.total.div_ceil(self.size)
    }

    /// Goes on at `offset`, which must be where a part begins.
    #[must_use]
    pub const fn from(mut self, offset: u32) -> Self {
        self.next = offset;
        self
    }
}

impl Iterator for Fragments {
    type Item = (Part, u32);

    fn next(&mut self) -> Option<Self::Item> {
        let left = self.total.checked_sub(self.next).filter(|&left| left > 0)?;
        let part = Part { total: self.total, offset: self.next };
        let len = left.min(self.size);
        self.next += len;
        Some((part, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::MAX_MESSAGE_BYTES;

    #[test]
    fn parts_cover_the_message_exactly_and_fit_their_frames() {
        let message = Message { timestamp_ns: 1, ..Message::default() };
        for limit in [512, 1472, 1452, 8972, 65_507] {
            for total in [1, 7, 8, 1500, 8192, 65_536, 1_000_003] {
                let parts = Fragments::new(total, limit, &message).unwrap();
                let mut next = 0;
                for (part, len) in parts {
                    assert_eq!((part.offset, part.total), (next, total));
                    let frame = HEADER_BYTES + FRAGMENT_BYTES + 8 + padded(len as usize);
                    assert!(len > 0 && frame <= limit && len <= parts.size());
                    next += len;
                }
                assert_eq!(next, total);
                assert_eq!(parts.parts() as usize, parts.collect::<Vec<_>>().len());
            }
        }
    }

    #[test]
    fn parts_of_one_message_are_of_nearly_one_size() {
        let parts: Vec<u32> = Fragments::new(8192, 1472, &Message::default()).unwrap().map(|(_, len)| len).collect();
        assert_eq!(parts, [1368, 1368, 1368, 1368, 1368, 1352]);
        let largest = Fragments::new(MAX_MESSAGE_BYTES, 1472, &Message::default()).unwrap();
        assert_eq!(u64::from(largest.parts()), u64::from(MAX_MESSAGE_BYTES).div_ceil(u64::from(largest.size())));
    }

    #[test]
    fn a_limit_without_room_is_refused() {
        assert_eq!(Fragments::new(100, 64, &Message::default()), None);
        assert_eq!(whole_limit(40, &Message::default()), 0);
        assert_eq!(whole_limit(1472, &Message::default()), 1416);
    }
}
