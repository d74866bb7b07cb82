//! Datapaths that carry whole Ethernet frames, as a packet engine needs them: headers are written in front of payload where it
//! is sent from, and what arrives is looked at where it lies, so that payload is copied once each way.

use core::ops::Range;

use crate::Datapath;
use crate::batch::{Outcome, RxReport, TxBatch, TxFrame, TxReport};
use crate::memory::Slot;

/// A datapath with [`crate::Capabilities::needs_packet_engine`]. As [`Datapath`], it belongs to one thread at a time, and no
/// call here waits.
pub trait RawDatapath: Datapath {
    /// As [`Datapath::transmit`], with something in front of each frame that `front` writes straight into the memory that it is
    /// sent from. Then [`TxFrame::to`] is `front`'s to understand, and the largest frame is counted with what stands in front.
    fn transmit_behind(&mut self, batch: &mut TxBatch<'_>, front: &mut dyn Front) -> TxReport;

    /// Shows up to `limit` received frames where they lie, in order for each queue, until `see` says `false`: that was then the
    /// last. Each one's memory is the technology's again when `see` returns.
    fn receive_in_place(&mut self, limit: usize, see: &mut dyn FnMut(&dyn InPlace) -> bool) -> RxReport;

    /// As [`Datapath::split`], into parts that are of raw frames as well. What is no datagram may come by any of them.
    fn split_raw(&mut self, most: usize) -> RawSplit {
        let short = Datapath::split(self, most).short;
        RawSplit { parts: Vec::new(), short }
    }

    /// Takes back what was lent by [`InPlace::lend`]; anything else is let go of.
    fn take_back(&mut self, lent: &mut Vec<Slot>) {
        lent.clear();
    }
}

/// A frame that lies in one piece, in memory of one's own.
#[derive(Debug, Clone, Copy)]
pub struct Whole<'a>(pub &'a [u8]);

impl InPlace for Whole<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn first(&self) -> &[u8] {
        self.0
    }

    fn copy_to(&self, range: Range<usize>, out: &mut [u8]) -> usize {
        let bytes = self.0.get(range).unwrap_or(&[]);
        let count = bytes.len().min(out.len());
        out[..count].copy_from_slice(&bytes[..count]);
        count
    }
}

/// What receives beside a datapath of raw frames: see [`RawDatapath::split_raw`].
pub type RawSplit = crate::Split<dyn RawDatapath>;

impl<R: RawDatapath + ?Sized> RawDatapath for Box<R> {
    fn transmit_behind(&mut self, batch: &mut TxBatch<'_>, front: &mut dyn Front) -> TxReport {
        (**self).transmit_behind(batch, front)
    }

    fn receive_in_place(&mut self, limit: usize, see: &mut dyn FnMut(&dyn InPlace) -> bool) -> RxReport {
        (**self).receive_in_place(limit, see)
    }

    fn split_raw(&mut self, most: usize) -> RawSplit {
        (**self).split_raw(most)
    }

    fn take_back(&mut self, lent: &mut Vec<Slot>) {
        (**self).take_back(lent);
    }
}

/// A received frame where it lies: in memory that no client can write.
pub trait InPlace {
    /// Its length in bytes.
    fn len(&self) -> usize;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of its first buffer: all of it, unless it lies in several.
    fn first(&self) -> &[u8];

    /// Copies a range of it to the beginning of `out`; says how many bytes there were.
    fn copy_to(&self, range: Range<usize>, out: &mut [u8]) -> usize;

    /// Lends a range of it: its memory is then the technology's again when the slot has been taken back
    /// ([`RawDatapath::take_back`]). `None` if it cannot be lent, or too much is lent already.
    fn lend(&self, _range: Range<usize>) -> Option<Slot> {
        None
    }
}

/// Shows bytes piece by piece, in order, to whom it is given.
pub type Body<'a> = dyn FnMut(&mut dyn FnMut(&[u8])) + 'a;

/// Puts something in front of each frame of a batch: the headers of a packet engine. What stands behind was copied there once
/// and is not changed by anybody any more when [`Front::write`] sees it; but a datapath with [`crate::Foreign::Gathers`] may show
/// payload as it lay at its place a moment ago. If its owner changes it meanwhile, a checksum over it is wrong, and that frame
/// alone is lost. Frames are given where their batch has them, in its order; one that there was no room for may be put together again.
pub trait Front {
    /// How many bytes it puts before this frame; or what becomes of the frame instead.
    ///
    /// # Errors
    /// The frame's outcome. [`Outcome::Sent`] if it has taken the frame over, with a copy of its own.
    fn room(&mut self, frame: &TxFrame<'_>, head: &[u8]) -> Result<usize, Outcome>;

    /// Writes them. `front` is as long as was said; `body` shows the bytes of the frame itself, in order.
    ///
    /// # Errors
    /// The frame's outcome: it is not sent.
    fn write(&mut self, frame: &TxFrame<'_>, front: &mut [u8], body: &mut Body<'_>) -> Result<(), Outcome>;
}
