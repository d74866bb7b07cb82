//! What is under way to other hosts, by token: payloads in local segments, small ones copied, and control messages.

use crate::network::domain::Domain;
use insane_shm::link::{Delivery, Descriptor};
use insane_transport::Payloads;
use insane_wire::frame::record::bundle_prefix;

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
}

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

    /// How much is under way.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

/// What came inside its descriptor.
pub(crate) fn inside(delivery: &Delivery) -> Held {
    Held::Inside(delivery.inline)
}

/// The payloads for a path.
pub(crate) struct Sources<'a> {
    pub(crate) underway: &'a Underway,
    pub(crate) domains: &'a [Domain],
}

impl Payloads for Sources<'_> {
    fn bundle(&mut self, token: u64, offset: u32, len: u32, room: u32, most: u16) -> Option<(u32, u16)> {
        let held = usize::try_from(token).ok().and_then(|at| self.underway.entries.get(at)).map(|e| &e.held);
        let Some(Held::Bytes(bytes)) = held else { return None };
        let bytes = bytes.get(offset as usize..offset as usize + len as usize)?;
        let (len, count) = bundle_prefix(bytes, room as usize, most)?;
        Some((u32::try_from(len).ok()?, count))
    }

    fn copy(&mut self, token: u64, offset: u32, len: u32, out: &mut Vec<u8>) {
        let (from, to) = (offset as usize, offset as usize + len as usize);
        let end = out.len() + len as usize;
        match usize::try_from(token).ok().and_then(|at| self.underway.entries.get(at)).map(|e| &e.held) {
            Some(Held::Bytes(bytes)) => out.extend_from_slice(bytes.get(from..to).unwrap_or(&[])),
            Some(Held::Inside(words)) => {
                let mut bytes = [0u8; 64];
                for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
                    chunk.copy_from_slice(&word.to_le_bytes());
                }
                out.extend_from_slice(bytes.get(from..to).unwrap_or(&[]));
            }
            Some(Held::Slot(place)) => {
                let link =
                    self.domains.get(place.domain).and_then(|d| d.intakes.get(place.link)).and_then(Option::as_ref);
                let d = &place.descriptor;
                let view = link
                    .filter(|l| l.generation == place.generation)
                    .and_then(|l| l.segments.get(usize::from(d.segment)))
                    .and_then(Option::as_ref);
                let _ = view.is_some_and(|v| v.append(d.slot, d.offset + offset, len, out));
            }
            _ => {}
        }
        // The frame says this length: what is no longer there is zeros. Nobody is to get it, its flow has been abandoned.
        out.resize(end, 0);
    }
}
