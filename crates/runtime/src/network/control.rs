//! What is under way to other hosts, by token: payloads in local segments, small ones copied, and control messages.

use crate::network::domain::Domain;
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
}

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
            Self::Slot(place) | Self::Pack(place, _) | Self::Run(place, ..) => Some(place),
            Self::Free | Self::Bytes(_) | Self::Inside(_) => None,
        }
    }

    /// The descriptors by which its slots are given back.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = Descriptor> + '_ {
        let (d, spots) = match self {
            Self::Slot(place) | Self::Pack(place, _) => (Some(place.descriptor), &[][..]),
            Self::Run(place, _, spots) => (Some(place.descriptor), &spots[..]),
            Self::Free | Self::Bytes(_) | Self::Inside(_) => (None, &[][..]),
        };
        let run = d.into_iter().flat_map(move |d| {
            (0..).zip(spots).map(move |(n, &(segment, slot))| Descriptor {
                sequence: d.sequence.wrapping_add(n),
                segment,
                slot,
                ..d
            })
        });
        d.filter(|_| spots.is_empty()).into_iter().chain(run)
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

    /// The segment of a slot, if that is still there.
    fn view(&self, place: &Place) -> Option<&SegmentView> {
        let link = self.domains.get(place.domain)?.intakes.get(place.link)?.as_ref()?;
        let link = (link.generation == place.generation).then_some(link)?;
        link.segments.get(usize::from(place.descriptor.segment))?.as_ref()
    }
}

/// The lengths of the messages that are left of a pack.
fn left(lengths: &[u16], rest: Rest) -> Option<&[u16]> {
    lengths.get(lengths.len().checked_sub(rest.count.into())?..)
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
            Held::Pack(_, lengths) => {
                let left = left(lengths, rest)?;
                let first = u32::from(*left.first()?);
                let mut fit = Fit { count: 0, len: 0, payload: 0, first };
                for len in left.iter().take(most.into()).map(|len| u32::from(*len)) {
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
            _ => None,
        }
    }

    fn copy_bundle(&mut self, token: u64, rest: Rest, fit: Fit, out: &mut Vec<u8>) {
        let Some(Held::Pack(place, lengths)) = self.underway.held(token) else {
            return self.copy(token, rest.offset, fit.len, out);
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

    fn copy_alike(
        &mut self,
        token: u64,
        rest: Rest,
        (size, most): (u32, u16),
        out: &mut Vec<u8>,
        head: &mut dyn FnMut(&mut Vec<u8>),
    ) -> u16 {
        let Some(Held::Pack(place, lengths)) = self.underway.held(token) else {
            return insane_transport::copy_alike(self, token, rest, (size, most), out, head);
        };
        let view = self.view(place);
        let alike = left(lengths, rest).unwrap_or(&[]).iter().take(most.into());
        let mut at = place.descriptor.offset + rest.offset + bytes_for(0);
        let mut copied = 0;
        for _ in alike.take_while(|len| u32::from(**len) == size) {
            head(out);
            let end = out.len() + size as usize;
            // What is no longer there is zeros, as in [`Self::copy`].
            let _ = view.is_some_and(|view| view.append(place.descriptor.slot, at, size, out));
            out.resize(end, 0);
            at += bytes_for(size);
            copied += 1;
        }
        copied
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
            _ => {}
        }
        // The frame says this length: what is no longer there is zeros. Nobody is to get it, its flow has been abandoned.
        out.resize(end, 0);
    }
}
