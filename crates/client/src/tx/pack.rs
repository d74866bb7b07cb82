//! How a source packs messages that follow each other into one slot.
//!
//! Small messages are copied into a pack when they are emitted. A larger one is written where it will lie: its buffer is a *piece*
//! of the pack, lent one at a time, and emitting it adds it. A pack that has to go before a piece of it came back goes without it;
//! the piece then is a part of a slot as any other, and its buffer holds that slot.

use super::{Emit, Place, Tx};
use insane_shm::counters::Count;
use insane_shm::link::{Descriptor, FLAG_PACKED, FLAG_WIDE, INLINE_BYTES};
use insane_shm::pack::{MAX_COPIED, PackWriter, bytes_for};
use insane_shm::segment::prefetch_to_write;
use insane_shm::slab::SlotId;
use std::ptr::NonNull;

/// The size of the slots that small messages are packed into, in bytes: some fifty of them, and one page.
pub(crate) const PACK_BYTES: u64 = 4096;

/// The size of the slots that larger messages are packed into, in bytes: as many of a kilobyte as a pack has. What is not filled is
/// not touched.
pub(crate) const WIDE_BYTES: u64 = 65536;

/// After so many packs in a row that went without a piece of them no more pieces are lent.
const ASTRAY: u8 = 8;

/// Slots to pack messages into: one segment is made when they are first wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Packs {
    #[default]
    Unasked,
    Wanted,
    Made,
}

/// A slot that a source puts messages into. Unless it is wide it has room for one more small one at any time.
#[derive(Debug)]
pub(crate) struct Pack {
    slot: SlotId,
    bytes: u64,
    writer: PackWriter,
    /// Whether messages may be longer than consumers copy out.
    wide: bool,
    /// Where the piece begins that is lent, in bytes from the slot's beginning; 0: none is.
    lent: u32,
}

impl Pack {
    /// Whether this is the piece that is lent.
    #[inline(always)]
    fn has_lent(&self, piece: Place) -> bool {
        self.lent != 0 && Place::piece(self.slot, self.lent) == piece
    }

    /// Lends a piece for a message of `len` bytes, if the pack is wide, has room, and none is lent.
    #[inline(always)]
    fn lend(&mut self, len: u32) -> Option<(NonNull<u8>, Place)> {
        if !self.wide || self.lent != 0 {
            return None;
        }
        let (base, offset) = self.writer.room(len)?;
        self.lent = offset;
        // Sinks have read what lies where the next one will. Getting it back takes as long as filling this one.
        if let Some(next) = self.writer.after(bytes_for(len)) {
            prefetch_to_write(next, len as usize);
        }
        Some((base, Place::piece(self.slot, offset)))
    }
}

impl Tx {
    /// Adds a small message to the pack that the source fills, if it fills one; without `more`, and once it is full, the
    /// pack is on its way. Returns the message's number.
    #[inline(always)]
    pub(crate) fn append(&mut self, index: usize, payload: &[u8], more: bool) -> Option<u64> {
        let source = self.sources.get_mut(index)?.as_mut()?;
        let pack = source.pack.as_mut().filter(|pack| pack.lent == 0)?;
        if !pack.writer.append(payload) {
            return None;
        }
        source.sequence += 1;
        let sequence = source.sequence;
        if !more || !pack.writer.fits(INLINE_BYTES as u32) {
            self.close_pack(index, more);
        }
        Some(sequence)
    }

    /// Begins a pack of small messages for a source, if there is a slot for it and every link that it goes to has room.
    #[inline]
    pub(crate) fn open_pack(&mut self, index: usize) -> bool {
        self.open(index, false)
    }

    #[inline(always)]
    fn open(&mut self, index: usize, wide: bool) -> bool {
        let Some(Some(source)) = self.sources.get(index) else { return false };
        if source.pack.is_some() || source.routes.is_empty() {
            return source.pack.is_some();
        }
        // A plan is for single messages.
        if self.has_faults(index) {
            return false;
        }
        let slot_bytes = if wide { WIDE_BYTES } else { PACK_BYTES };
        if self.slab.available(slot_bytes) == 0 {
            self.reclaim_all();
            if self.slab.available(slot_bytes) == 0 {
                let packs = if wide { &mut self.wide_packs } else { &mut self.packs };
                if *packs == Packs::Unasked {
                    *packs = Packs::Wanted;
                }
                return false;
            }
        }
        let Some(Some(source)) = self.sources.get(index) else { return false };
        for route in &source.routes {
            let Some(Some(link)) = self.links.get_mut(route.link) else { return false };
            if link.broken.is_some() || !link.has_room(slot_bytes, self.link_cap, &mut self.slab) {
                return false;
            }
        }
        let Some(taken) = self.take(slot_bytes) else { return false };
        let bytes = u64::from(taken.capacity);
        let Some(Some(source)) = self.sources.get_mut(index) else { return false };
        for route in &source.routes {
            if let Some(Some(link)) = self.links.get_mut(route.link) {
                link.reserved += 1;
                link.held += bytes;
            }
        }
        // SAFETY: INV-SLAB-2: the slot is held for the pack until it is closed.
        let writer = unsafe { PackWriter::new(taken.base, taken.capacity) };
        source.pack = Some(Pack { slot: taken.id, bytes, writer, wide, lent: 0 });
        true
    }

    /// Lends a piece of the pack that the source fills, or of a new one, for a message of `len` bytes that is not small. `None`: the
    /// source does not emit in batches, or there is no slot, or no room, or a piece is lent.
    #[inline(always)]
    pub(crate) fn lend_piece(&mut self, index: usize, len: u32) -> Option<(NonNull<u8>, Place)> {
        let Some(Some(source)) = self.sources.get_mut(index) else { return None };
        if let Some(piece) = source.pack.as_mut().and_then(|pack| pack.lend(len)) {
            return Some(piece);
        }
        if !source.batching || source.astray >= ASTRAY {
            return None;
        }
        self.lend_first_piece(index, len)
    }

    #[inline(never)]
    fn lend_first_piece(&mut self, index: usize, len: u32) -> Option<(NonNull<u8>, Place)> {
        let source = self.sources.get(index)?.as_ref()?;
        if source.pack.as_ref().is_some_and(|pack| pack.lent != 0) {
            return None;
        }
        self.close_pack(index, true);
        if !self.open(index, true) {
            return None;
        }
        self.sources.get_mut(index)?.as_mut()?.pack.as_mut()?.lend(len)
    }

    /// Emits `len` bytes of a piece, if it is lent of the pack that the source fills; without `more`, and once there is no room for
    /// another such message, the pack is on its way. Returns the message's number. `None`: the piece is to be emitted by itself,
    /// after [`Self::part`].
    #[inline(always)]
    pub(crate) fn commit_piece(&mut self, index: usize, piece: Place, len: u32, more: bool) -> Option<u64> {
        let source = self.sources.get_mut(index)?.as_mut()?;
        let pack = source.pack.as_mut().filter(|pack| pack.has_lent(piece))?;
        if !pack.writer.commit(len) {
            return None;
        }
        pack.lent = 0;
        source.astray = 0;
        source.sequence += 1;
        let sequence = source.sequence;
        if !more || !pack.writer.fits(len) {
            self.close_pack(index, more);
        }
        Some(sequence)
    }

    /// Makes a lent piece a part of a slot that its buffer holds. The pack that it is a piece of goes without it.
    #[cold]
    pub(crate) fn part(&mut self, piece: Place) {
        let lender = |s: &super::TxSource| s.pack.as_ref().is_some_and(|pack| pack.has_lent(piece));
        if let Some(index) = self.sources.iter().position(|s| s.as_ref().is_some_and(lender)) {
            self.close_pack(index, true);
        }
    }

    /// Takes back a lent piece that is not emitted.
    #[cold]
    pub(super) fn take_back(&mut self, piece: Place) {
        let packs = self.sources.iter_mut().flatten().filter_map(|s| s.pack.as_mut());
        match packs.into_iter().find(|pack| pack.has_lent(piece)) {
            Some(pack) => pack.lent = 0,
            None => {
                if let Some(slot) = piece.slot() {
                    self.slab.unhold(slot);
                }
            }
        }
    }

    /// Sends what a source has packed. To be called before anything that changes where its messages go.
    #[inline(never)]
    pub(crate) fn close_pack(&mut self, index: usize, more: bool) {
        let Some(Some(source)) = self.sources.get_mut(index) else { return };
        let Some(Pack { slot, bytes, writer, wide, lent }) = source.pack.take() else { return };
        let count = writer.count();
        for route in &source.routes {
            if let Some(Some(link)) = self.links.get_mut(route.link) {
                link.reserved -= 1;
                link.held -= bytes;
            }
        }
        if lent != 0 {
            source.astray = source.astray.saturating_add(1);
            self.slab.hold(slot);
        }
        if count > 0 {
            source.cell.add(Count::Emitted, count.into());
            source.cell.add(Count::Bytes, writer.payload().into());
            // One alone goes as if it had not waited: inside its descriptor if it is small.
            let alone = count == 1;
            let inside = alone && writer.payload() <= MAX_COPIED;
            let place = match (alone, inside) {
                (_, true) => Place::NONE,
                (true, false) => Place::piece(slot, writer.first_at()),
                (false, false) => Place::of(slot),
            };
            let length = if alone { writer.payload() } else { writer.used() };
            let emit = Emit {
                place,
                inline: if inside { writer.first() } else { &[] },
                length,
                deadline_ns: 0,
                timestamp_ns: 0,
                priority: source.priority,
                more,
            };
            let flags = match (alone, wide) {
                (true, _) => 0,
                (false, true) => FLAG_PACKED | FLAG_WIDE,
                (false, false) => FLAG_PACKED,
            };
            let mut descriptor = Descriptor {
                channel: source.channel,
                sequence: source.sequence + 1 - u64::from(count),
                slot: slot.slot,
                offset: place.offset(),
                length,
                source: source.number,
                segment: slot.segment,
                flags,
                priority: source.priority,
                count,
                ..Descriptor::default()
            };
            let bytes = if inside { 0 } else { bytes };
            for route in &mut source.routes {
                if let Some(Some(link)) = self.links.get_mut(route.link) {
                    descriptor.joined = route.joined;
                    link.give(&mut route.flows, &descriptor, &emit, bytes, self.link_cap, &mut self.slab);
                }
            }
        }
        self.slab.unhold(slot);
    }

    /// Sends what a source has packed, and wakes its sleeping sinks that were not looked at since messages were emitted.
    pub(crate) fn flush(&mut self, index: usize) {
        self.close_pack(index, false);
        let Some(Some(source)) = self.sources.get(index) else { return };
        for route in &source.routes {
            if let Some(Some(link)) = self.links.get_mut(route.link)
                && link.unwoken
            {
                link.wake();
            }
        }
    }
}
