//! What is under way to other hosts, by token: payloads in local segments, small ones copied, and control messages.

use crate::network::domain::Domain;
use insane_datapath::memory::Piece;
use insane_shm::link::{Delivery, Descriptor};
use insane_shm::pack::bytes_for;
use insane_shm::segment::SegmentView;
use insane_transport::{Fit, Payloads, Rest};
use insane_wire::frame::record::{self, bundle_prefix, bundled};

/// What a token stands for.
#[derive(Debug)]
pub(crate) enum Held {
    /// Nothing: the token is free.
    Free,
    /// A control message, or a payload that was copied.
    Bytes(Vec<u8>),
    /// A payload that came inside its descriptor.
    Inside([u64; 8]),
    /// A payload in a slot of a local source.
    Slot(Place),
    /// A pack in one, and the lengths of its messages: what was checked once does not change any more.
    Pack(Place, Vec<u16>),
    /// Small reliable messages that came one after the other, copied as a bundle; their slots, which stay their owner's until all are
    /// confirmed. The place is that of the first.
    Run(Place, Vec<u8>, Vec<Spot>),
    /// Larger ones, that are copied when they go: a bundle whose messages lie each in its own slot.
    Slots(Place, Vec<Lent>),
}

/// A payload in a slot, one of several.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lent {
    pub(crate) spot: Spot,
    pub(crate) offset: u32,
    /// Where it begins in the bundle.
    pub(crate) at: u32,
    pub(crate) len: u16,
}

impl Lent {
    /// Where it ends in the bundle, and the next begins.
    pub(crate) fn end(&self) -> u32 {
        self.at + bytes_for(self.len.into())
    }
}

/// A slot of a local source: its segment and its place there.
pub(crate) type Spot = (u16, u32);

/// Where a local payload lies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) domain: usize,
    pub(crate) link: usize,
    pub(crate) generation: u32,
    pub(crate) descriptor: Descriptor,
}

#[derive(Debug)]
struct Entry {
    held: Held,
    /// How many hosts it is under way to.
    hosts: u32,
}

/// All that is under way.
#[derive(Debug, Default)]
pub(crate) struct Underway {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Empty lists of what has gone, for what comes: growing each anew costs more than what is put there.
    bytes: Vec<Vec<u8>>,
    spots: Vec<Vec<Spot>>,
}

/// So many empty lists are kept of each kind.
const MOST_SPARE: usize = 64;

/// Lists of fewer and of more bytes are not worth it.
const WORTH_KEEPING: core::ops::RangeInclusive<usize> = 256..=16 << 10;

impl Underway {
    /// Takes something in that goes to so many hosts; its token.
    pub(crate) fn add(&mut self, held: Held, hosts: u32) -> u64 {
        let entry = Entry { held, hosts };
        match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                u64::from(at)
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u64 - 1
            }
        }
    }

    /// It is under way to one host less. With the last it is given back.
    pub(crate) fn release(&mut self, token: u64) -> Option<Held> {
        let at = usize::try_from(token).ok()?;
        let entry = self.entries.get_mut(at)?;
        entry.hosts = entry.hosts.saturating_sub(1);
        if entry.hosts > 0 || matches!(entry.held, Held::Free) {
            return None;
        }
        self.free.push(u32::try_from(token).unwrap_or(u32::MAX));
        Some(std::mem::replace(&mut entry.held, Held::Free))
    }

    /// An empty list for payloads, with room if one is kept.
    pub(crate) fn bytes(&mut self) -> Vec<u8> {
        self.bytes.pop().unwrap_or_default()
    }

    /// An empty list for where they are, with room if one is kept.
    pub(crate) fn spots(&mut self) -> Vec<Spot> {
        self.spots.pop().unwrap_or_default()
    }

    /// Keeps the lists of what was given back for what comes.
    pub(crate) fn recycle(&mut self, held: Held) {
        let (mut bytes, spots) = match held {
            Held::Run(_, bytes, spots) => (bytes, Some(spots)),
            Held::Bytes(bytes) => (bytes, None),
            _ => return,
        };
        if self.bytes.len() < MOST_SPARE && WORTH_KEEPING.contains(&bytes.capacity()) {
            bytes.clear();
            self.bytes.push(bytes);
        }
        if let Some(mut spots) = spots.filter(|_| self.spots.len() < MOST_SPARE) {
            spots.clear();
            self.spots.push(spots);
        }
    }

    fn held(&self, token: u64) -> Option<&Held> {
        usize::try_from(token).ok().and_then(|at| self.entries.get(at)).map(|entry| &entry.held)
    }

    /// How much is under way.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

/// What came inside its descriptor.
pub(crate) fn inside(delivery: &Delivery) -> Held {
    Held::Inside(delivery.inline)
}

impl Held {
    /// The place of the first of its slots that are a local source's, if it has any.
    pub(crate) fn place(&self) -> Option<&Place> {
        match self {
            Self::Slot(place) | Self::Pack(place, _) | Self::Run(place, ..) | Self::Slots(place, _) => Some(place),
            Self::Free | Self::Bytes(_) | Self::Inside(_) => None,
        }
    }

    /// The descriptors by which its slots are given back.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = Descriptor> + '_ {
        let d = self.place().map(|place| place.descriptor);
        let (spots, lent) = match self {
            Self::Run(_, _, spots) => (&spots[..], &[][..]),
            Self::Slots(_, lent) => (&[][..], &lent[..]),
            _ => (&[][..], &[][..]),
        };
        let one = d.filter(|_| spots.is_empty() && lent.is_empty());
        let several = d.into_iter().flat_map(move |d| {
            let spots = spots.iter().copied().chain(lent.iter().map(|one| one.spot));
            (0..).zip(spots).map(move |(n, (segment, slot))| Descriptor {
                sequence: d.sequence.wrapping_add(n),
                segment,
                slot,
                ..d
            })
        });
        one.into_iter().chain(several)
    }
}

/// The payloads for a path.
pub(crate) struct Sources<'a> {
    pub(crate) underway: &'a Underway,
    pub(crate) domains: &'a [Domain],
}

impl Sources<'_> {
    /// Appends what lies in a slot, if that is still there.
    fn append(&self, place: &Place, offset: u32, len: u32, out: &mut Vec<u8>) {
        let d = &place.descriptor;
        let _ = self.view(place).is_some_and(|v| v.append(d.slot, d.offset + offset, len, out));
    }

    /// Payload of a message where it lies, if that is still there and not several.
    pub(crate) fn piece(&self, token: u64, offset: u32, len: u32) -> Option<Piece<'_>> {
        let shared = |place: &Place, segment: u16, slot, offset| {
            self.segments(place)?.get(usize::from(segment))?.as_ref()?.shared(slot, offset, len)
        };
        match self.underway.held(token)? {
            Held::Bytes(bytes) | Held::Run(_, bytes, _) => Piece::of(bytes).part(offset as usize, len as usize),
            Held::Slot(place) | Held::Pack(place, _) => {
                let d = &place.descriptor;
                shared(place, d.segment, d.slot, d.offset + offset).map(Piece::shared)
            }
            Held::Slots(place, lent) => {
                let (one, from) = at(lent, offset)?;
                let (segment, slot) = one.spot;
                shared(place, segment, slot, one.offset + from).map(Piece::shared)
            }
            _ => None,
        }
    }

    /// The segment of a slot, if that is still there.
    fn view(&self, place: &Place) -> Option<&SegmentView> {
        self.segments(place)?.get(usize::from(place.descriptor.segment))?.as_ref()
    }

    /// The segments of the session that emitted it, if that is still there.
    fn segments(&self, place: &Place) -> Option<&[Option<SegmentView>]> {
        let link = self.domains.get(place.domain)?.intakes.get(place.link)?.as_ref()?;
        (link.generation == place.generation).then_some(&link.segments)
    }

    /// Appends payloads that lie in slots of their own, each after what `head` appends for it, filled up to as many bytes as
    /// `filled` says if they are shorter or no longer there.
    fn append_each(
        &self,
        place: &Place,
        lent: &[Lent],
        out: &mut Vec<u8>,
        mut head: impl FnMut(&Lent, &mut Vec<u8>),
        filled: impl Fn(&Lent) -> u32,
    ) {
        let segments = self.segments(place).unwrap_or(&[]);
        for one in lent {
            head(one, out);
            let (end, (segment, slot)) = (out.len() + filled(one) as usize, one.spot);
            let view = segments.get(usize::from(segment)).and_then(Option::as_ref);
            let _ = view.is_some_and(|view| view.append(slot, one.offset, one.len.into(), out));
            out.resize(end, 0);
        }
    }
}

/// What is left of the messages of a pack or of several slots.
fn left<T>(all: &[T], rest: Rest) -> Option<&[T]> {
    all.get(all.len().checked_sub(rest.count.into())?..)
}

/// What fits of messages of these lengths.
fn fit(mut lengths: impl Iterator<Item = u32>, room: u32, most: u16) -> Option<Fit> {
    let first = lengths.next()?;
    let mut fit = Fit { count: 0, len: 0, payload: 0, first };
    for len in std::iter::once(first).chain(lengths).take(most.into()) {
        if fit.len + bytes_for(len) > room {
            break;
        }
        (fit.count, fit.len, fit.payload) = (fit.count + 1, fit.len + bytes_for(len), fit.payload + len);
    }
    if fit.count == 0 {
        fit.len = bytes_for(first);
    }
    Some(fit)
}

/// The message of several in slots that has byte `offset` of their bundle in its payload, and where that byte is in it. Each frame asks.
fn at(lent: &[Lent], offset: u32) -> Option<(&Lent, u32)> {
    let behind = lent.partition_point(|one| one.at <= offset);
    let one = lent.get(behind.checked_sub(1)?).filter(|one| offset < one.end())?;
    Some((one, offset.checked_sub(one.at + bytes_for(0))?))
}

impl Payloads for Sources<'_> {
    fn bundle(&mut self, token: u64, rest: Rest, room: u32, most: u16) -> Option<Fit> {
        match self.underway.held(token)? {
            Held::Bytes(bytes) | Held::Run(_, bytes, _) => {
                let bytes = bytes.get(rest.offset as usize..)?;
                let (len, count) = bundle_prefix(bytes, room as usize, most)?;
                let first = bytes.first_chunk().map(|word| u64::from_le_bytes(*word))?;
                let first = u32::try_from(first).ok()?;
                let payload = bundled(bytes, record::Place { at: 0, len }).map(|place| place.len).sum::<usize>();
                let len = if count == 0 { bytes_for(first) } else { u32::try_from(len).ok()? };
                Some(Fit { count, len, payload: u32::try_from(payload).ok()?, first })
            }
            Held::Pack(_, lengths) => fit(left(lengths, rest)?.iter().map(|len| u32::from(*len)), room, most),
            Held::Slots(_, lent) => fit(left(lent, rest)?.iter().map(|one| one.len.into()), room, most),
            _ => None,
        }
    }

    fn copy_bundle(&mut self, token: u64, rest: Rest, fit: Fit, out: &mut Vec<u8>) {
        let (place, lengths) = match self.underway.held(token) {
            Some(Held::Pack(place, lengths)) => (place, lengths),
            Some(Held::Slots(place, lent)) => {
                let lent = left(lent, rest).and_then(|left| left.get(..fit.count.into())).unwrap_or(&[]);
                let word = |one: &Lent, out: &mut Vec<u8>| out.extend_from_slice(&u64::from(one.len).to_le_bytes());
                return self.append_each(place, lent, out, word, |one| bytes_for(one.len.into()) - bytes_for(0));
            }
            _ => return self.copy(token, rest.offset, fit.len, out),
        };
        let mut at = rest.offset;
        for len in left(lengths, rest).unwrap_or(&[]).iter().take(fit.count.into()) {
            let start = out.len();
            out.extend_from_slice(&u64::from(*len).to_le_bytes());
            self.append(place, at + bytes_for(0), (*len).into(), out);
            at += bytes_for((*len).into());
            out.resize(start + bytes_for((*len).into()) as usize, 0);
        }
    }

    fn count_alike(&mut self, token: u64, rest: Rest, (size, most): (u32, u16)) -> u16 {
        let same = |lengths: &mut dyn Iterator<Item = u16>| {
            lengths.take(most.into()).take_while(|len| u32::from(*len) == size).count() as u16
        };
        match self.underway.held(token) {
            Some(Held::Pack(_, lengths)) => same(&mut left(lengths, rest).unwrap_or(&[]).iter().copied()),
            Some(Held::Slots(_, lent)) => same(&mut left(lent, rest).unwrap_or(&[]).iter().map(|one| one.len)),
            _ => insane_transport::count_alike(self, token, rest, (size, most)),
        }
    }

    fn copy_alike(
        &mut self,
        token: u64,
        rest: Rest,
        (size, most): (u32, u16),
        out: &mut Vec<u8>,
        head: &mut dyn FnMut(&mut Vec<u8>),
    ) -> u16 {
        let alike = self.count_alike(token, rest, (size, most));
        let place = match self.underway.held(token) {
            Some(Held::Pack(place, _)) => place,
            Some(Held::Slots(place, lent)) => {
                let next = left(lent, rest).and_then(|left| left.get(..alike.into())).unwrap_or(&[]);
                self.append_each(place, next, out, |_, out| head(out), |_| size);
                return alike;
            }
            _ => return insane_transport::copy_alike(self, token, rest, (size, most), out, head),
        };
        let view = self.view(place);
        let mut at = place.descriptor.offset + rest.offset + bytes_for(0);
        for _ in 0..alike {
            head(out);
            let end = out.len() + size as usize;
            // What is no longer there is zeros, as in [`Self::copy`].
            let _ = view.is_some_and(|view| view.append(place.descriptor.slot, at, size, out));
            out.resize(end, 0);
            at += bytes_for(size);
        }
        alike
    }

    fn copy(&mut self, token: u64, offset: u32, len: u32, out: &mut Vec<u8>) {
        let (from, to) = (offset as usize, offset as usize + len as usize);
        let end = out.len() + len as usize;
        match self.underway.held(token) {
            Some(Held::Bytes(bytes) | Held::Run(_, bytes, _)) => {
                out.extend_from_slice(bytes.get(from..to).unwrap_or(&[]))
            }
            Some(Held::Inside(words)) => {
                let mut bytes = [0u8; 64];
                for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
                    chunk.copy_from_slice(&word.to_le_bytes());
                }
                out.extend_from_slice(bytes.get(from..to).unwrap_or(&[]));
            }
            Some(Held::Slot(place) | Held::Pack(place, _)) => self.append(place, offset, len, out),
            Some(Held::Slots(place, lent)) => {
                if let Some((one, from)) = at(lent, offset) {
                    let (segment, slot) = one.spot;
                    let view = self.segments(place).and_then(|all| all.get(usize::from(segment))?.as_ref());
                    let _ = view.is_some_and(|view| view.append(slot, one.offset + from, len, out));
                }
            }
            _ => {}
        }
        // The frame says this length: what is no longer there is zeros. Nobody is to get it, its flow has been abandoned.
        out.resize(end, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_bundle_of_slots_is_found_in_its_message() {
        let (mut lent, mut expected) = (Vec::<Lent>::new(), Vec::new());
        for (slot, len) in (0..).zip([65u16, 100, 2048, 96, 1]) {
            let at = lent.last().map_or(0, Lent::end);
            lent.push(Lent { spot: (0, slot), offset: 0, at, len });
            // A word with the length, the payload, and what fills it up.
            let all = bytes_for(len.into());
            expected.extend((0..all).map(|byte| byte.checked_sub(bytes_for(0)).map(|from| (slot, from))));
        }
        expected.push(None);
        let found = |offset: usize| at(&lent, offset as u32).map(|(one, from)| (one.spot.1, from));
        (0..expected.len()).for_each(|offset| assert_eq!(found(offset), expected[offset], "byte {offset}"));
        assert!(at(&[], 0).is_none());
    }
}
