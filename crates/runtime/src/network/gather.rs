//! Messages of one best-effort source that arrive one after the other are handed to its sinks together, in one slot, as a pack:
//! one descriptor, one return and one count for all of them. None waits for another: a pack leaves when what was received with it
//! has been looked at.

use crate::network::domain::Domain;
use insane_shm::link::{Descriptor, FLAG_COPIED, FLAG_PACKED, FLAG_WIDE};
use insane_shm::pack::{MAX_BYTES, MAX_COPIED, MAX_MESSAGE, bytes_for};
use insane_shm::slab::SlotId;
use insane_wire::frame::record::bundle_longest;

/// The sizes of the slots that packs are put together in, in bytes. Few, so that every size finds its slots used before.
const SIZES: [u32; 3] = [4096, 16384, MAX_BYTES];

/// The most messages that are put together: a sink that takes fewer at a time takes those of a pack one by one.
const MOST: u16 = 32;

/// A pack that is being put together.
#[derive(Debug)]
pub(crate) struct Gather {
    source: usize,
    /// Of the first message.
    first: Descriptor,
    slot: SlotId,
    capacity: u32,
    used: u32,
    count: u16,
    longest: u32,
}

/// What a message, or those of a bundle, would be in a pack.
#[derive(Debug, Clone, Copy)]
struct Part {
    bytes: u32,
    count: u16,
    longest: u32,
}

/// Payloads of one length, at least one, that lie in lines of the same length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lined<'a> {
    /// From the first payload on.
    bytes: &'a [u8],
    stride: usize,
    len: usize,
    count: u16,
}

impl<'a> Lined<'a> {
    /// `count` payloads of `len` bytes in `bytes`, one every `stride` bytes; fewer if that ends before.
    pub(crate) fn new(bytes: &'a [u8], stride: usize, len: usize, count: u16) -> Self {
        let stride = stride.max(1);
        let whole = bytes.len().checked_sub(len).map_or(0, |more| more / stride + 1);
        Self { bytes, stride, len, count: count.min(u16::try_from(whole).unwrap_or(u16::MAX)) }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    fn first(&self) -> &'a [u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// Takes out the next `count`, which must be there.
    pub(crate) fn take(&mut self, count: u16) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (len, bytes) = (self.len, self.bytes);
        self.bytes = bytes.get(usize::from(count) * self.stride..).unwrap_or(&[]);
        self.count = self.count.saturating_sub(count);
        bytes.chunks(self.stride).take(count.into()).map(move |line| line.get(..len).unwrap_or(&[]))
    }
}

/// Writes a message to its place in a pack. What follows up to the next multiple of eight is nobody's.
fn write(to: &mut [u8], payload: &[u8]) {
    if let Some((word, to)) = to.split_first_chunk_mut()
        && let Some(to) = to.get_mut(..payload.len())
    {
        *word = (payload.len() as u64).to_le_bytes();
        to.copy_from_slice(payload);
    }
}

impl Part {
    /// `None`: it is not for packs.
    fn of(d: &Descriptor, payload: &[u8]) -> Option<Self> {
        let len = u32::try_from(payload.len()).ok()?;
        match d.flags {
            FLAG_PACKED => Some(Self { bytes: len, count: d.count, longest: bundle_longest(payload) }),
            // A smaller one goes inside its descriptor.
            0 if len > MAX_COPIED && len <= MAX_MESSAGE => Some(Self { bytes: bytes_for(len), count: 1, longest: len }),
            _ => None,
        }
    }
}

impl Gather {
    /// Whether a part of the same source that comes next belongs here.
    fn takes(&self, source: usize, d: &Descriptor, part: Part) -> bool {
        let f = &self.first;
        self.source == source
            && f.sequence.wrapping_add(self.count.into()) == d.sequence
            && (f.priority, f.joined) == (d.priority, d.joined)
            && self.count + part.count <= MOST
            && self.used + part.bytes <= self.capacity
    }
}

impl Domain {
    /// Puts a message, or those of a bundle, to others of its source that arrived just before, or, if `coming` more were received
    /// with it, begins a pack with it. `false`: it is to be handed out by itself.
    pub(crate) fn gather(&mut self, source: usize, d: &Descriptor, payload: &[u8], coming: usize) -> bool {
        let part = Part::of(d, payload).filter(|_| d.deadline_ns == 0);
        if let (Some(gather), Some(part)) = (&self.gathering, part)
            && gather.takes(source, d, part)
        {
            self.put(d, payload, part);
            return true;
        }
        self.hand_out_gathered();
        let Some(part) = part.filter(|_| coming > 0) else { return false };
        let frames = u32::try_from(coming.saturating_add(1)).unwrap_or(u32::MAX).min(MOST.into());
        let all = part.bytes.saturating_mul(frames);
        let capacity = SIZES.into_iter().find(|size| *size >= all).unwrap_or(MAX_BYTES);
        if part.bytes > capacity || part.count >= MOST {
            return false;
        }
        let Some(slot) = self.take_slot(capacity) else { return false };
        let gather = Gather { source, first: *d, slot, capacity, used: 0, count: 0, longest: 0 };
        self.gathering = Some(gather);
        self.put(d, payload, part);
        true
    }

    /// Puts messages of a best-effort source to others of it that arrived just before, as many as belong there: takes them out of
    /// `lined` and says how many they were.
    pub(crate) fn gather_more(&mut self, source: usize, d: &Descriptor, lined: &mut Lined<'_>) -> u16 {
        let (Some(remote), Some(gather)) = (self.remotes[source].as_mut(), &mut self.gathering) else { return 0 };
        let d = Descriptor { source: remote.number, ..*d };
        let part = Part::of(&d, lined.first()).filter(|_| d.deadline_ns == 0);
        let Some(part) = part.filter(|part| gather.takes(source, &d, *part)) else { return 0 };
        let room = u32::from(MOST - gather.count).min((gather.capacity - gather.used) / part.bytes);
        let count = u16::try_from(room).unwrap_or(MOST).min(lined.count);
        let all = part.bytes * u32::from(count);
        let Some(to) = self.slab.bytes_mut(gather.slot, gather.used, all) else { return 0 };
        for (to, payload) in to.chunks_exact_mut(part.bytes as usize).zip(lined.take(count)) {
            write(to, payload);
        }
        gather.used += all;
        gather.count += count;
        gather.longest = gather.longest.max(part.longest);
        remote.last = remote.last.max(d.sequence + u64::from(count) - 1);
        count
    }

    fn put(&mut self, d: &Descriptor, payload: &[u8], part: Part) {
        let Some(gather) = &mut self.gathering else { return };
        if let Some(to) = self.slab.bytes_mut(gather.slot, gather.used, part.bytes) {
            if d.flags & FLAG_PACKED != 0 {
                to.copy_from_slice(payload);
            } else {
                write(to, payload);
            }
        }
        gather.used += part.bytes;
        gather.count += part.count;
        gather.longest = gather.longest.max(part.longest);
    }

    /// Hands out the pack that is being put together if it is of a time when its source knew of other sinks than it did with a message
    /// that comes now: it is not for those that join with that.
    pub(crate) fn hand_out_older(&mut self, source: usize, joined: u16) {
        if self.gathering.as_ref().is_some_and(|gather| gather.source == source && gather.first.joined != joined) {
            self.hand_out_gathered();
        }
    }

    /// Hands out the pack that is being put together.
    pub(crate) fn hand_out_gathered(&mut self) {
        let Some(Gather { source, first, slot, used, count, longest, .. }) = self.gathering.take() else { return };
        // Its source may have ended meanwhile, and its place may be another's.
        let known = self.remotes.get(source).and_then(Option::as_ref).is_some_and(|r| r.number == first.source);
        if !known {
            self.slab.unhold(slot);
            return;
        }
        let mut d = if count == 1 && first.flags & FLAG_PACKED == 0 {
            Descriptor { offset: bytes_for(0), length: longest, flags: first.flags | FLAG_COPIED, ..first }
        } else {
            let wide = if longest > MAX_COPIED { FLAG_WIDE } else { 0 };
            Descriptor { flags: FLAG_PACKED | wide, length: used, count, ..first }
        };
        self.hand_out(source, &mut d, &[], Some(slot));
    }
}
