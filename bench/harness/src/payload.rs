//! What is in a message: the sender writes every byte, the receiver reads every byte.

use anyhow::{Result, bail};

/// Fills the whole message for number `n`: every byte its low byte, the first eight the number itself.
#[inline]
pub fn stamp(message: &mut [u8], n: u64) {
    message.fill(n as u8);
    message[..8].copy_from_slice(&n.to_le_bytes());
}

/// Reads every byte, eight at a time; the optimiser may neither drop nor widen it. The floor reads in the same way
/// (`floor/method.c`), so that large messages are compared with it on equal terms.
#[inline]
pub fn read_all(message: &[u8]) -> u64 {
    let mut sum = 0u64;
    for word in message.chunks_exact(8) {
        // SAFETY: `word` is eight readable bytes; no alignment is asked for.
        sum = sum.wrapping_add(unsafe { word.as_ptr().cast::<Unaligned>().read_volatile() }.0);
    }
    std::hint::black_box(sum)
}

/// Eight bytes anywhere.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Unaligned(u64);

/// Reads every byte of a message, checks it and returns its number.
///
/// # Errors
/// A wrong length, or a message whose ends do not agree: the system under test damaged it.
#[inline]
pub fn check(message: &[u8], payload: usize) -> Result<u64> {
    if message.len() != payload {
        bail!("a message of {} bytes where {payload} were sent", message.len());
    }
    read_all(message);
    let n = u64::from_le_bytes(message[..8].try_into().expect("eight bytes"));
    if payload > 8 && message[payload - 1] != n as u8 {
        bail!("message {n} was damaged: its last byte is {}", message[payload - 1]);
    }
    Ok(n)
}

/// A sink's account of one flow: what came, what is missing.
#[derive(Clone, Debug)]
pub struct Tally {
    payload: usize,
    /// Messages received.
    pub received: u64,
    /// Messages skipped over, by the sequence numbers.
    pub lost: u64,
    next: u64,
}

impl Tally {
    /// An empty account for messages of `payload` bytes.
    #[must_use]
    pub fn new(payload: usize) -> Self {
        Self { payload, received: 0, lost: 0, next: 0 }
    }

    /// Reads every byte of one message and books it.
    ///
    /// # Errors
    /// A damaged, repeated or reordered message.
    #[inline]
    pub fn take(&mut self, message: &[u8]) -> Result<()> {
        self.book(check(message, self.payload)?)
    }

    /// The same of one that lies in several places, of which the first has eight bytes or more.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_pieces<'m>(&mut self, pieces: impl Iterator<Item = &'m [u8]>) -> Result<()> {
        let (mut length, mut n, mut last) = (0, None, 0);
        for piece in pieces {
            read_all(piece);
            length += piece.len();
            n = n.or_else(|| piece.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)));
            last = piece.last().copied().unwrap_or(last);
        }
        match n {
            Some(n) if length == self.payload && (length <= 8 || last == n as u8) => self.book(n),
            _ => bail!("a message of {length} bytes was damaged: its number is {n:?}, its last byte {last}"),
        }
    }

    #[inline]
    fn book(&mut self, n: u64) -> Result<()> {
        if n < self.next {
            bail!("message {n} came again or out of order, {} was due", self.next);
        }
        // What was sent before this sink was there is not lost.
        if self.received > 0 {
            self.lost += n - self.next;
        }
        self.next = n + 1;
        self.received += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(n: u64) -> Vec<u8> {
        let mut m = vec![0; 64];
        stamp(&mut m, n);
        m
    }

    #[test]
    fn a_message_in_pieces_is_booked_as_a_whole_one() {
        let (whole, mut tally) = (message(0), Tally::new(64));
        tally.take(&whole).unwrap();
        let mut damaged = message(1);
        damaged[63] ^= 1;
        assert!(tally.take_pieces(damaged.chunks(20)).is_err());
        assert!(tally.take_pieces(message(1)[..60].chunks(20)).is_err());
        tally.take_pieces(message(3).chunks(20)).unwrap();
        assert_eq!((tally.received, tally.lost), (2, 2));
        assert!(tally.take_pieces(message(2).chunks(20)).is_err(), "out of order");
    }

    #[test]
    fn a_stamped_message_checks() {
        for n in [0, 1, 255, 256, u64::MAX] {
            assert_eq!(check(&message(n), 64).expect("intact"), n);
        }
    }

    #[test]
    fn damage_is_seen() {
        let mut m = message(7);
        m[63] = 8;
        assert!(check(&m, 64).is_err());
        assert!(check(&m[..32], 64).is_err());
    }

    #[test]
    fn gaps_are_losses_and_repeats_are_errors() {
        let mut tally = Tally::new(64);
        for n in [5, 6, 9, 10, 20] {
            tally.take(&message(n)).expect("in order");
        }
        assert_eq!((tally.received, tally.lost), (5, 2 + 9));
        assert!(tally.take(&message(20)).is_err());
        assert!(tally.take(&message(3)).is_err());
    }
}
