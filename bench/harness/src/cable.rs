//! The second cable between the two hosts (`suite/hosts.py`), for what goes past the kernel's network stack: the kernel has no
//! address on it, so whoever takes an end has it alone.

use std::time::Instant;

use anyhow::{Result, bail};

/// Its end, on both hosts.
pub const DEVICE: &str = "veth1";
/// Bytes of an Ethernet header.
pub const HEADER: usize = 14;
/// The shortest frame of Ethernet, in bytes.
pub const LEAST: usize = 60;
/// The type of frames that carry messages, and of those that carry a receiver's word on its progress: the two that the standard
/// leaves to everyone.
pub const MESSAGE: [u8; 2] = [0x88, 0xb5];
/// See [`MESSAGE`].
pub const WORD: [u8; 2] = [0x88, 0xb6];

/// The MAC address of a host's end.
#[must_use]
pub const fn mac(host: u32) -> [u8; 6] {
    [2, 0x62, 0, 0, 0, 1 + host as u8]
}

/// The header of frames of a type from a host to the other.
#[must_use]
pub fn header(from: u32, kind: [u8; 2]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..6].copy_from_slice(&mac(1 - from));
    header[6..12].copy_from_slice(&mac(from));
    header[12..].copy_from_slice(&kind);
    header
}

/// Where a frame of a longer message says which message that is, by its number's low byte, and which part of it this is, from 0: in
/// the sender's MAC address, which nobody looks at.
pub const PART: core::ops::Range<usize> = 9..11;

/// What a frame is, and what it carries; `None` for others' frames.
#[must_use]
#[inline]
pub fn open(frame: &[u8]) -> Option<([u8; 2], &[u8])> {
    let kind = [*frame.get(12)?, *frame.get(13)?];
    (kind == MESSAGE || kind == WORD).then(|| (kind, &frame[HEADER..]))
}

/// How long an end waits for an answer before the repetition is void: a lost frame is not sent again by anybody.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

/// Counts looks for something that has to come, and says now and then whether the patience is over.
#[derive(Debug, Default)]
pub struct Patience {
    looks: u32,
    since: Option<Instant>,
}

impl Patience {
    /// One more look that found nothing.
    ///
    /// # Errors
    /// It has been too long.
    #[inline]
    pub fn look(&mut self) -> Result<()> {
        self.looks = self.looks.wrapping_add(1);
        if !self.looks.is_multiple_of(1024) {
            return Ok(());
        }
        if self.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            bail!("a frame was lost: no answer for {} s", PATIENCE.as_secs());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_both_kinds_are_told_from_others() {
        let mut frame = header(0, MESSAGE).to_vec();
        frame.extend_from_slice(&[7; 64]);
        assert_eq!((&frame[..6], &frame[6..12]), (&mac(1)[..], &mac(0)[..]));
        assert_eq!(open(&frame), Some((MESSAGE, &[7; 64][..])));
        assert_eq!(open(&header(1, WORD)), Some((WORD, &[][..])));
        assert_eq!(open(&header(1, [8, 0])), None);
        assert_eq!(open(&frame[..13]), None);
    }
}
