//! Batches: the frames of one call, and the slots they go to.

use core::ops::Range;

use crate::Address;
use crate::memory::{Piece, Slot};

/// What became of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// Not yet tried, or the technology was busy: it goes with the next transmit.
    Pending,
    /// Handed to the technology, or to a thread that hands it on: what is refused then is said later
    /// ([`crate::Datapath::refused_later`]). Its memory is the caller's again.
    Sent,
    /// Larger than the path carries. Ask [`crate::Datapath::frame_limit`], and cut the message anew.
    TooLarge,
    /// No way to that address now.
    Unreachable,
    /// Refused for another reason, or the datapath is closed.
    Failed,
}

/// One frame of a batch.
#[derive(Debug, Clone)]
pub struct TxFrame<'m> {
    /// Where it goes.
    pub to: Address,
    /// The bytes of the batch that it begins with.
    pub head: Range<usize>,
    /// Payload that follows them.
    pub piece: Option<Piece<'m>>,
    /// The caller's name for it.
    pub cookie: u64,
    /// Whether the datapath may add zeros to its end: the frame says its own length. It lets a frame that is a little
    /// shorter than its neighbours travel joined with them.
    pub may_pad: bool,
    /// What became of it.
    pub outcome: Outcome,
}

impl TxFrame<'_> {
    /// Its length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.head.len() + self.piece.map_or(0, |piece| piece.len())
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Frames to be sent. Kept and cleared, it allocates nothing once it has grown.
#[derive(Debug, Default)]
pub struct TxBatch<'m> {
    bytes: Vec<u8>,
    frames: Vec<TxFrame<'m>>,
    next: usize,
}

/// What a transmit did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxReport {
    /// Frames of this call that were sent.
    pub sent: usize,
    /// Frames of this call that were refused; their outcome says why.
    pub refused: usize,
    /// Frames that stay for the next call: the technology is busy.
    pub pending: usize,
}

impl<'m> TxBatch<'m> {
    /// The buffer in which frames are built, to be written to at its end and then [`TxBatch::commit`]ted.
    #[inline]
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Makes a frame of everything in the buffer from byte `start` on, and of a payload that follows it.
    #[inline]
    pub fn commit(&mut self, to: Address, start: usize, piece: Option<Piece<'m>>, cookie: u64) {
        let head = start..self.bytes.len();
        self.frames.push(TxFrame { to, head, piece, cookie, may_pad: false, outcome: Outcome::Pending });
    }

    /// Makes frames of `len` bytes each of everything in the buffer from byte `start` on; the ends of all of them may be added zeros
    /// to, or of none. Payload that follows them is given to them by [`TxBatch::attach`].
    pub fn commit_alike(&mut self, to: Address, start: usize, len: usize, may_pad: bool) {
        let end = self.bytes.len();
        self.frames.extend((start..end).step_by(len.max(1)).map(|start| {
            let head = start..(start + len).min(end);
            TxFrame { to, head, piece: None, cookie: 0, may_pad, outcome: Outcome::Pending }
        }));
    }

    /// Gives frame number `at` of all ([`TxBatch::frames`]) the payload that follows its bytes of the buffer.
    #[inline]
    pub fn attach(&mut self, at: usize, piece: Piece<'m>) {
        if let Some(frame) = self.frames.get_mut(at) {
            frame.piece = Some(piece);
        }
    }

    /// The batch without any memory but its own: payloads of frames that are pending are copied into it, and those that have an outcome are
    /// left with their heads alone. It allocates nothing where nothing is pending.
    #[must_use]
    pub fn into_owned(self) -> TxBatch<'static> {
        let Self { mut bytes, frames, next } = self;
        let mut own = |(at, frame): (usize, TxFrame<'m>)| {
            let TxFrame { to, mut head, piece, cookie, may_pad, outcome } = frame;
            if let Some(piece) = piece.filter(|_| at >= next) {
                let start = bytes.len();
                bytes.extend_from_within(head);
                piece.copy_to(&mut bytes);
                head = start..bytes.len();
            }
            TxFrame { to, head, piece: None, cookie, may_pad, outcome }
        };
        let frames = frames.into_iter().enumerate().map(&mut own).collect();
        TxBatch { bytes, frames, next }
    }

    /// Lets the datapath add zeros to the end of the frame that was added last.
    #[inline]
    pub fn allow_padding(&mut self) {
        if let Some(last) = self.frames.last_mut() {
            last.may_pad = true;
        }
    }

    /// Adds a frame that is all in `bytes`.
    pub fn frame(&mut self, to: Address, bytes: &[u8], cookie: u64) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.commit(to, start, None, cookie);
    }

    /// All frames, with their outcomes, in the order in which they were added.
    #[must_use]
    pub fn frames(&self) -> &[TxFrame<'m>] {
        &self.frames
    }

    /// The frames without an outcome.
    #[must_use]
    pub fn pending(&self) -> &[TxFrame<'m>] {
        self.frames.get(self.next..).unwrap_or(&[])
    }

    /// The bytes that a frame begins with.
    #[inline]
    #[must_use]
    pub fn head(&self, frame: &TxFrame<'_>) -> &[u8] {
        self.bytes.get(frame.head.clone()).unwrap_or(&[])
    }

    /// For datapaths: the first `count` pending frames have this outcome.
    pub fn settle(&mut self, count: usize, outcome: Outcome) {
        let end = (self.next + count).min(self.frames.len());
        for frame in &mut self.frames[self.next..end] {
            frame.outcome = outcome;
        }
        self.next = end;
    }

    /// For datapaths: a whole frame, copied to `out`.
    pub fn copy_to(&self, frame: &TxFrame<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(self.head(frame));
        if let Some(piece) = &frame.piece {
            piece.copy_to(out);
        }
    }

    /// Whether every frame has an outcome.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.next == self.frames.len()
    }

    /// Forgets all frames, those without outcome too.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.bytes.clear();
        self.next = 0;
    }
}

/// Something received: one frame, or several of one length (the last may be shorter) that the technology, or the packet engine, joined.
#[derive(Debug)]
pub struct Taken {
    /// The slot that it lies in, from its first byte on.
    pub slot: Slot,
    /// How many bytes.
    pub len: usize,
    /// From one frame to the next, in bytes. Not 0.
    pub stride: usize,
    /// Who sent it.
    pub from: Address,
}

impl Taken {
    /// All of it.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.slot.bytes().get(..self.len).unwrap_or(&[])
    }

    /// The frames, in order.
    #[inline]
    pub fn frames(&self) -> core::slice::Chunks<'_, u8> {
        self.bytes().chunks(self.stride.max(1))
    }

    /// How many frames those are.
    #[inline]
    #[must_use]
    pub fn count(&self) -> usize {
        // Most come one by one, and a division is the longest instruction there is.
        if self.len > self.stride { self.len.div_ceil(self.stride.max(1)) } else { usize::from(self.len > 0) }
    }
}

/// Something received whose payload went where [`Place`] said. Frame `n` begins with the `n`th piece of `heads`; its payload
/// is at `n * (stride - head_bytes)` of the landing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landed {
    /// The landing's token.
    pub token: u64,
    /// The heads, in [`RxBatch::heads`].
    pub heads: Range<usize>,
    /// What of the last frame of each memory had no room there, one after the other, in the same place.
    pub tails: Range<usize>,
    /// The size of each head in bytes.
    pub head_bytes: usize,
    /// From one frame to the next as they were sent, in bytes.
    pub stride: usize,
    /// All bytes, heads and payload.
    pub len: usize,
    /// Who sent it.
    pub from: Address,
}

impl Landed {
    /// The payload bytes of frame `n` beyond its head, as a range of the landing's memory if there is but one.
    #[must_use]
    pub fn payload(&self, n: usize) -> Range<usize> {
        let body = self.stride - self.head_bytes;
        let frame = self.len.saturating_sub(n * self.stride).min(self.stride);
        n * body..n * body + frame.saturating_sub(self.head_bytes)
    }

    /// How many frames.
    #[must_use]
    pub fn count(&self) -> usize {
        self.len.div_ceil(self.stride)
    }
}

/// What is known of a piece before it is read.
#[derive(Debug, Clone, Copy)]
pub struct Peeked<'a> {
    /// Its first bytes, at least [`PEEK_BYTES`] if it is that long.
    pub head: &'a [u8],
    /// Its length in bytes, with all joined frames.
    pub len: usize,
    /// From one frame to the next, in bytes.
    pub stride: usize,
    /// Who sent it.
    pub from: Address,
}

/// How many bytes of a piece are shown before it is read.
pub const PEEK_BYTES: usize = 128;

/// Where the payload of a piece is to go.
#[derive(Debug)]
pub struct Landing<'a> {
    /// The memory: payloads are written one after the other from its first byte on. If it and what follows are too short for
    /// them all, the piece goes into a slot as if there had been no landing.
    pub memory: &'a mut [u8],
    /// Where the frames go that come after `memory` is full, and so on. Each begins with a frame: what had no room in the memory before
    /// is filling, and becomes a tail ([`Landed::tails`]). None for a piece of one frame.
    pub then: Then<'a>,
    /// How many bytes at the start of each frame are no payload. Not 0, less than a frame.
    pub head_bytes: usize,
    /// The caller's name for it.
    pub token: u64,
}

/// The memories of what follows, in turn, up to the first that is `None`.
pub type Then<'a> = [Option<&'a mut [u8]>; 8];

/// Says where payload belongs before it is read.
pub trait Place {
    /// Whether it is worth a look now: a large message is under way. If not, nothing is peeked at.
    fn expects(&self) -> bool;

    /// Where the payload of this piece goes; `None` for an ordinary slot. The caller of receive must check each head
    /// afterwards: only the first is certain.
    fn place(&mut self, peeked: Peeked<'_>) -> Option<Landing<'_>>;
}

/// Copies a frame, which is in one piece, to where its payload belongs, if it belongs somewhere.
pub fn land(frame: &[u8], from: Address, place: &mut dyn Place, heads: &mut Vec<u8>) -> Option<Landed> {
    let head = frame.get(..PEEK_BYTES).unwrap_or(frame);
    land_with(head, frame.len(), from, place, heads, |memory, head_bytes| {
        memory.copy_from_slice(frame.get(head_bytes..).unwrap_or(&[]));
    })
}

/// As [`land`], a frame of `len` bytes that begins with `head`; `copy` is given room for its payload, and where in it that begins.
pub fn land_with(
    head: &[u8],
    len: usize,
    from: Address,
    place: &mut dyn Place,
    heads: &mut Vec<u8>,
    copy: impl FnOnce(&mut [u8], usize),
) -> Option<Landed> {
    let Landing { memory, head_bytes, token, .. } = place.place(Peeked { head, len, stride: len, from })?;
    let head = head.get(..head_bytes).filter(|head| !head.is_empty() && head_bytes < len)?;
    copy(memory.get_mut(..len - head_bytes)?, head_bytes);
    let start = heads.len();
    heads.extend_from_slice(head);
    let end = heads.len();
    Some(Landed { token, heads: start..end, tails: end..end, head_bytes, stride: len, len, from })
}

/// Slots to receive into, and what was received. Kept, it allocates nothing once it has grown.
#[derive(Debug)]
pub struct RxBatch {
    /// Slots that may be received into; used from the end.
    pub free: Vec<Slot>,
    /// What was received into slots. The caller takes it out.
    pub taken: Vec<Taken>,
    /// What was received elsewhere, before all that was taken. The caller takes it out before the next call, which writes over
    /// its heads.
    pub landed: Vec<Landed>,
    /// The heads of what was received elsewhere.
    pub heads: Vec<u8>,
    /// The most pieces of one call.
    pub limit: usize,
    /// Whether what is received may be lent where it lies rather than copied, by a technology that can
    /// ([`crate::Datapath::lends`]): it is then taken, in its turn, in a slot with a [`crate::memory::Slot::place`], and nothing lands.
    pub lend: bool,
    /// Lent slots that nobody needs any more: the next call takes them back.
    pub back: Vec<Slot>,
}

impl RxBatch {
    /// Gives back the slot of something that was taken.
    #[inline]
    pub fn give_back(&mut self, slot: Slot) {
        if slot.place().is_some() { self.back.push(slot) } else { self.free.push(slot) }
    }
}

impl Default for RxBatch {
    /// No slots, at most 16 pieces a call.
    fn default() -> Self {
        Self {
            free: Vec::new(),
            taken: Vec::new(),
            landed: Vec::new(),
            heads: Vec::new(),
            limit: 16,
            lend: false,
            back: Vec::new(),
        }
    }
}

/// What a receive did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxReport {
    /// Frames, counted one by one.
    pub frames: usize,
    /// There may be more: the batch's limit was met or its slots have run out. Without it there may still be more if what came had come
    /// alone for a while, and nobody has looked for others.
    pub more: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_are_alike_are_as_those_that_are_added_one_by_one() {
        let to = Address::Ip(([127, 0, 0, 1], 1).into());
        let [mut one, mut other] = [TxBatch::default(), TxBatch::default()];
        for bytes in [[1; 24], [2; 24], [3; 24]] {
            one.frame(to, &bytes, 0);
            one.allow_padding();
            other.buffer().extend_from_slice(&bytes);
        }
        other.commit_alike(to, 0, 24, true);
        let seen = |batch: &TxBatch<'_>| -> Vec<_> {
            batch.frames().iter().map(|frame| (batch.head(frame).to_vec(), frame.may_pad, frame.outcome)).collect()
        };
        assert_eq!((seen(&one), other.frames().len()), (seen(&other), 3));
    }

    #[test]
    fn what_is_pending_keeps_its_payload_when_its_memory_goes() {
        let to = Address::Port(1);
        let mut batch = TxBatch::default();
        {
            let payload = *b"abcdef";
            let mut lent: TxBatch<'_> = batch;
            lent.buffer().extend_from_slice(b"1122");
            lent.commit_alike(to, 0, 2, false);
            lent.frame(to, b"33", 0);
            (0..3).for_each(|at| lent.attach(at, Piece::of(&payload[2 * at..2 * at + 2])));
            // There is no such frame.
            lent.attach(3, Piece::of(&payload));
            lent.settle(1, Outcome::Sent);
            batch = lent.into_owned();
        }
        let whole = |frame: &TxFrame<'_>| {
            let mut bytes = Vec::new();
            batch.copy_to(frame, &mut bytes);
            (bytes, frame.piece.is_none(), frame.outcome)
        };
        let pending = |bytes: &[u8]| (bytes.to_vec(), true, Outcome::Pending);
        let all: Vec<_> = batch.frames().iter().map(whole).collect();
        assert_eq!(all, [(b"11".to_vec(), true, Outcome::Sent), pending(b"22cd"), pending(b"33ef")]);
        assert_eq!(batch.pending().len(), 2);
    }
}
