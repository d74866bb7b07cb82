//! A message in several slots, behind one descriptor.
//!
//! What a device received lies where the device put it: each frame in a slot of its own. With
//! [`crate::link::FLAG_SCATTERED`] a descriptor names a slot of the producer that holds no payload but a list of the places where
//! the message's pieces lie, in order, so that nobody has to copy them together. One descriptor, one credit and one return are for
//! all of it: while the slot of the list is out, so are the slots that it names.
//!
//! A list is a word with the number of pieces in its lower half and the message's length in bytes in its upper one, then two words
//! a piece: slot, segment from bit 32 on; offset, length from bit 32 on.
//!
//! Invariants:
//! - `INV-SCATTER-1` A reader copies the list once and reads the copy ([`read`]): as many pieces as it has room for, each of at
//!   least a byte, together as long as the message and no longer than [`MAX_BYTES`]. That they lie in what is mapped, the reader asks the segments themselves
//!   ([`SegmentView::locate`]), piece by piece.
//! - `INV-SCATTER-2` A reader keeps the mappings of the pieces' segments for as long as it has the message: the link counts
//!   the list's segment only (`INV-LINK-6`).
//! - `INV-SCATTER-3` The slots that a list names are a device's ([`crate::segment::Segment::lent`]), or the producer's own with a
//!   hold, and nobody writes to them while the list's slot is out.

use crate::segment::{MAX_STRIDE, SegmentView};

/// The most pieces of a message.
pub const MAX_PIECES: usize = 4096;

/// The most bytes of a message: as many as one slot may have. Pieces may name the same place, so what is mapped is no bound.
pub const MAX_BYTES: u32 = MAX_STRIDE as u32;

const WORD: usize = 8;

/// Where a piece of a message lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The segment's number on the link.
    pub segment: u16,
    /// The slot within it.
    pub slot: u32,
    /// Where the piece begins in the slot, in bytes.
    pub offset: u32,
    /// Its length in bytes.
    pub length: u32,
}

/// The bytes of a list of so many pieces.
#[must_use]
pub const fn bytes_for(pieces: usize) -> usize {
    WORD + pieces * 2 * WORD
}

/// The length of a message in such pieces. `None`: it is too long.
fn sum(pieces: &[Place]) -> Option<u32> {
    let sum = pieces.iter().try_fold(0u32, |sum, piece| sum.checked_add(piece.length))?;
    (sum <= MAX_BYTES).then_some(sum)
}

/// Writes a list to the beginning of `to`; its length in bytes. `None`, and nothing written, if it does not fit, there are no pieces
/// or too many, or they are too long together.
pub fn write(pieces: &[Place], to: &mut [u8]) -> Option<usize> {
    let total = sum(pieces)?;
    let count = u32::try_from(pieces.len()).ok().filter(|_| (1..=MAX_PIECES).contains(&pieces.len()))?;
    let len = bytes_for(pieces.len());
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let head = pair(count, total);
    let words = pieces.iter().flat_map(|p| [pair(p.slot, p.segment.into()), pair(p.offset, p.length)]);
    for (to, word) in to.get_mut(..len)?.chunks_exact_mut(WORD).zip(core::iter::once(head).chain(words)) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    Some(len)
}

/// Copies a list out of a peer's slot and reads it: the message's length in bytes, and its pieces in order. `None` if it is not
/// there or cannot be (INV-SCATTER-1).
#[must_use]
pub fn read(view: &SegmentView, slot: u32, offset: u32, length: u32) -> Option<(u32, Vec<Place>)> {
    if length as usize > bytes_for(MAX_PIECES) {
        return None;
    }
    let mut bytes = Vec::new();
    view.append(slot, offset, length, &mut bytes).then(|| parse(&bytes))?
}

/// Reads a list that nobody changes any more; as [`read`].
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<(u32, Vec<Place>)> {
    let (words, []) = bytes.as_chunks::<WORD>() else { return None };
    let half = |word: &[u8; WORD]| {
        let word = u64::from_ne_bytes(*word);
        (word as u32, (word >> 32) as u32)
    };
    let ((count, total), rest) = words.split_first().map(|(head, rest)| (half(head), rest))?;
    let (pairs, []) = rest.as_chunks::<2>() else { return None };
    if pairs.len() != count as usize || !(1..=MAX_PIECES).contains(&pairs.len()) {
        return None;
    }
    let place = |[first, second]: &[[u8; WORD]; 2]| {
        let ((slot, segment), (offset, length)) = (half(first), half(second));
        Some(Place { segment: u16::try_from(segment).ok()?, slot, offset, length }).filter(|place| place.length > 0)
    };
    let places: Vec<Place> = pairs.iter().map(place).collect::<Option<_>>()?;
    (sum(&places)? == total).then_some((total, places))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> [Place; 2] {
        [
            Place { segment: 3, slot: 9, offset: 298, length: 1400 },
            Place { segment: u16::MAX, slot: u32::MAX, offset: u32::MAX, length: 1 },
        ]
    }

    #[test]
    fn what_was_written_is_read() {
        let mut bytes = [0xee; 64];
        let len = write(&two(), &mut bytes).unwrap();
        assert_eq!((len, len), (bytes_for(2), 40));
        assert_eq!(parse(&bytes[..len]), Some((1401, two().to_vec())));
        assert_eq!(bytes[len..], [0xee; 24], "it wrote past its end");
    }

    #[test]
    fn what_cannot_be_is_not_written() {
        let mut bytes = vec![0; bytes_for(MAX_PIECES + 1)];
        let one = Place { segment: 0, slot: 0, offset: 0, length: 1 };
        assert_eq!(write(&[], &mut bytes), None);
        assert_eq!(write(&vec![one; MAX_PIECES + 1], &mut bytes), None);
        assert_eq!(write(&[Place { length: u32::MAX, ..one }, one], &mut bytes), None);
        assert_eq!(write(&[Place { length: MAX_BYTES, ..one }, one], &mut bytes), None);
        assert_eq!(write(&[one, one], &mut bytes[..39]), None);
        assert!(bytes.iter().all(|byte| *byte == 0), "something was written");
        assert_eq!(write(&vec![one; MAX_PIECES], &mut bytes), Some(bytes_for(MAX_PIECES)));
    }

    #[test]
    fn what_lies_about_itself_is_not_read() {
        let mut bytes = [0; 40];
        write(&two(), &mut bytes).unwrap();
        for len in (0..40).filter(|len| *len != 40) {
            assert_eq!(parse(&bytes[..len]), None, "{len} bytes");
        }
        let changed = |at: usize, to: u8| {
            let mut bytes = bytes;
            bytes[at] = to;
            parse(&bytes)
        };
        // The number of pieces; the length of the message; a segment beyond all; the length of the last piece.
        for (at, to) in [(0, 1), (0, 3), (4, 0), (14, 1), (36, 0), (36, 2)] {
            assert_eq!(changed(at, to), None, "byte {at} is {to}");
        }
        // Lengths whose sum wraps around to the message's.
        let wraps = [[2u32, 0], [0, 0], [0, u32::MAX], [0, 0], [0, 1]];
        let wraps: Vec<u8> = wraps.iter().flatten().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(parse(&wraps), None);
    }

    #[test]
    fn what_names_the_same_place_again_and_again_is_no_longer_than_a_message_may_be() {
        let list = |count: u32, length: u32| {
            let head = [count, count.wrapping_mul(length)];
            let rest = (0..count).flat_map(|_| [0, 0, 0, length]);
            head.into_iter().chain(rest).flat_map(u32::to_ne_bytes).collect::<Vec<_>>()
        };
        assert_eq!(parse(&list(128, 1 << 20)).map(|(total, places)| (total, places.len())), Some((MAX_BYTES, 128)));
        assert_eq!(parse(&list(129, 1 << 20)), None);
        assert_eq!(parse(&list(4095, 1 << 20)), None, "4 GiB out of 1 MiB");
    }
}
