//! The bytes of a frame, in the UMEM: written from several places for sending, read where they lie when received.

use core::cell::Cell;
use core::ops::Range;

use insane_datapath::Address;
use insane_datapath::batch::{Outcome, TxFrame};
use insane_datapath::memory::{Piece, Slot};

use crate::queue::Part;
use crate::umem::{Frame, Umem};

/// A frame being written into its buffers, front to back.
#[derive(Debug)]
pub(crate) struct Gather<'a> {
    umem: &'a Umem,
    frames: &'a mut [Frame],
    /// How long the frame will be, in bytes.
    len: usize,
    at: usize,
}

impl<'a> Gather<'a> {
    pub(crate) fn new(umem: &'a Umem, frames: &'a mut [Frame], len: usize) -> Self {
        Self { umem, frames, len, at: 0 }
    }

    /// What is left of the buffer that is being written, at most `most` bytes of it.
    fn room(&mut self, most: usize) -> &mut [u8] {
        let size = self.umem.frame_bytes();
        let (number, start) = (self.at / size, self.at % size);
        let end = size.min(start + most).min(start + (self.len - self.at));
        match self.frames.get_mut(number) {
            Some(frame) => self.umem.bytes_mut(frame).get_mut(start..end).unwrap_or(&mut []),
            None => &mut [],
        }
    }

    /// Leaves bytes out that are written later.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.at = (self.at + bytes).min(self.len);
    }

    /// Writes bytes of this process. What does not fit any more is left out: the caller has said how long the frame is.
    pub(crate) fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.room(bytes.len());
            let count = room.len();
            if count == 0 {
                return;
            }
            let (now, rest) = bytes.split_at(count);
            room.copy_from_slice(now);
            bytes = rest;
            self.at += count;
        }
    }

    /// Writes payload that another process may be changing meanwhile: the one copy that is made of it.
    pub(crate) fn put_piece(&mut self, piece: &Piece<'_>) {
        let mut done = 0;
        while done < piece.len() {
            let room = self.room(piece.len() - done);
            let count = room.len();
            if count == 0 {
                return;
            }
            crate::sys::copy_from_piece(piece, done, room);
            done += count;
            self.at += count;
        }
    }

    /// Fills up with zeros what is left.
    pub(crate) fn finish(&mut self) {
        while self.at < self.len {
            let room = self.room(usize::MAX / 2);
            let count = room.len();
            if count == 0 {
                return;
            }
            room.fill(0);
            self.at += count;
        }
    }

    /// The first `bytes` of the frame, to be written, and what follows them, as far as it was written.
    pub(crate) fn split(&mut self, bytes: usize) -> Option<(&mut [u8], Body<'_>)> {
        let (umem, at) = (self.umem, self.at);
        let (first, rest) = self.frames.split_first_mut()?;
        let (front, begun) = umem.bytes_mut(first).split_at_mut_checked(bytes)?;
        let first_bytes = begun.len().min(at.saturating_sub(bytes));
        let begun = begun.get(..first_bytes).unwrap_or(&[]);
        Some((front, Body { umem, begun, rest, left: at.saturating_sub(bytes + first_bytes) }))
    }
}

/// What follows the front of a frame that is to be sent, as it lies in the UMEM: nobody can change it any more.
#[derive(Debug)]
pub struct Body<'a> {
    umem: &'a Umem,
    begun: &'a [u8],
    rest: &'a [Frame],
    left: usize,
}

impl Body<'_> {
    /// Its bytes, a slice for each buffer, in order.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let size = self.umem.frame_bytes();
        let later = self.rest.iter().enumerate().map(move |(n, frame)| {
            let bytes = self.left.saturating_sub(n * size).min(size);
            self.umem.bytes(frame).get(..bytes).unwrap_or(&[])
        });
        core::iter::once(self.begun).chain(later).filter(|part| !part.is_empty())
    }
}

/// Puts something in front of each frame of a batch, straight into the memory that it is sent from: the headers of a packet
/// engine. What stands behind was copied there once and is not changed by anybody any more when [`Front::write`] sees it.
pub trait Front {
    /// How many bytes it puts before this frame, at most [`MOST_FRONT`]; or what becomes of the frame instead.
    ///
    /// # Errors
    /// The frame's outcome; [`Outcome::Sent`] if it has taken the frame over, with a copy of its own.
    fn room(&mut self, frame: &TxFrame<'_>, head: &[u8]) -> Result<usize, Outcome>;

    /// Writes them. `front` is as long as was said; `body` is the frame itself, without the zeros that may follow it.
    ///
    /// # Errors
    /// The frame's outcome: it is not sent.
    fn write(&mut self, frame: &TxFrame<'_>, front: &mut [u8], body: &Body<'_>) -> Result<(), Outcome>;
}

/// The most bytes that a [`Front`] may put before a frame.
pub const MOST_FRONT: usize = 256;

/// Nothing in front: the frames of the batch are whole Ethernet frames.
#[derive(Debug)]
pub(crate) struct Bare;

impl Front for Bare {
    fn room(&mut self, frame: &TxFrame<'_>, _head: &[u8]) -> Result<usize, Outcome> {
        match frame.to {
            // Less is no Ethernet frame, and old kernels do not survive one.
            Address::Ethernet(_) if frame.len() < ETHERNET_HEADER => Err(Outcome::Failed),
            Address::Ethernet(_) => Ok(0),
            _ => Err(Outcome::Unreachable),
        }
    }

    fn write(&mut self, _frame: &TxFrame<'_>, _front: &mut [u8], _body: &Body<'_>) -> Result<(), Outcome> {
        Ok(())
    }
}

/// The bytes of an Ethernet header without tags.
pub(crate) const ETHERNET_HEADER: usize = 14;

/// A received frame where it lies: memory that only the kernel and this process write.
#[derive(Debug)]
pub struct Received<'a> {
    umem: &'a Umem,
    parts: &'a [Part],
    /// Where it lies, if it may be lent; whether it is.
    lendable: Option<(u16, u32)>,
    lent: Cell<bool>,
    /// The queue that it came by.
    pub queue: u32,
}

impl<'a> Received<'a> {
    pub(crate) fn new(umem: &'a Umem, parts: &'a [Part], queue: u32, lendable: Option<(u16, u32)>) -> Self {
        Self { umem, parts, lendable, lent: Cell::new(false), queue }
    }

    /// Whether it was lent: then its memory is not the kernel's before it has come back.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent.get()
    }

    /// Lends a range of it, once.
    pub(crate) fn lend(&self, range: Range<usize>) -> Option<Slot> {
        let (memory, place) = self.lendable.filter(|_| !self.lent.get())?;
        let part = self.parts.first().filter(|part| range.start <= range.end && range.end <= part.bytes.len())?;
        let bytes = part.bytes.start + range.start..part.bytes.start + range.end;
        // SAFETY: who has shown this sees that it is lent, gives the frame away for that, and takes it back by its slot alone
        // (`XdpDatapath::take_back_lent`); the memory outlives what is lent (`XdpDatapath::close`).
        let slot = unsafe { self.umem.lend(&part.frame, memory, place, bytes)? };
        self.lent.set(true);
        Some(slot)
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.bytes.len()).sum()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of its first buffer: all of it, unless it is a jumbo frame; the first 1792 bytes at least of those.
    #[must_use]
    pub fn first(&self) -> &'a [u8] {
        self.parts.first().map_or(&[], |part| self.bytes(part))
    }

    fn bytes(&self, part: &'a Part) -> &'a [u8] {
        self.umem.bytes(&part.frame).get(part.bytes.clone()).unwrap_or(&[])
    }

    /// Its bytes, a slice for each buffer, in order.
    pub fn parts(&self) -> impl Iterator<Item = &'a [u8]> {
        self.parts.iter().map(|part| self.bytes(part))
    }

    /// Copies a range of it to the beginning of `out`; says how many bytes there were.
    pub fn copy_to(&self, range: Range<usize>, out: &mut [u8]) -> usize {
        let (mut at, mut done) = (0, 0);
        for part in self.parts() {
            let from = range.start.saturating_sub(at).min(part.len());
            let to = range.end.saturating_sub(at).min(part.len()).max(from);
            let bytes = &part[from..to];
            let Some(out) = out.get_mut(done..).filter(|out| !out.is_empty()) else { break };
            let count = bytes.len().min(out.len());
            out[..count].copy_from_slice(&bytes[..count]);
            done += count;
            at += part.len();
        }
        done
    }

    /// Who sent it, by its Ethernet header.
    #[must_use]
    pub fn from(&self) -> Address {
        let mut mac = [0; 6];
        if let Some(source) = self.first().get(6..12) {
            mac.copy_from_slice(source);
        }
        Address::Ethernet(mac)
    }
}
