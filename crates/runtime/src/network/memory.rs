//! Where the payload of what arrives belongs: the domains' memory, as a path and a datapath see it.

use crate::network::addresses::Addresses;
use crate::network::domain::Domain;
use crate::network::host::{Host, Incoming};
use crate::network::kept::Kept;
use crate::network::lanes::FlowId;
use crate::network::long_words::LongWords;
use crate::network::scatter::{Loan, is_making};
use insane_datapath::batch::{self, Peeked, Place};
use insane_shm::slab::SlotId;
use insane_transport::{Landings, MOST_REGIONS, Store};
use insane_wire::keyed::Keyed;
use std::sync::Arc;
use std::time::Duration;

/// The domains' memory for a path. A slot is named by its domain, segment and place.
pub(crate) struct Memory<'a> {
    pub(crate) domains: &'a mut [Domain],
    pub(crate) incoming: &'a Keyed<FlowId, Incoming>,
    /// Whose flows' numbers are meant.
    pub(crate) lane: usize,
    /// The host's control flow.
    pub(crate) control: Option<FlowId>,
    pub(crate) long_words: &'a mut LongWords,
    /// What is kept of the host.
    pub(crate) kept: &'a mut Kept,
    /// The frame that is looked at, if it is lent.
    pub(crate) loan: Option<&'a Arc<Loan>>,
}

/// A slot's name.
pub(crate) fn name_of(domain: usize, slot: SlotId) -> u64 {
    (domain as u64) << 48 | u64::from(slot.segment) << 32 | u64::from(slot.slot)
}

/// The slot of a name.
pub(crate) fn slot_of(name: u64) -> (usize, SlotId) {
    ((name >> 48) as usize, SlotId { segment: (name >> 32) as u16, slot: name as u32 })
}

impl Store for Memory<'_> {
    fn reserve(&mut self, flow: u32, bytes: u32, urgent: bool) -> Option<u64> {
        let flow = FlowId { lane: self.lane, number: flow };
        if self.control == Some(flow) {
            return self.long_words.reserve(bytes, urgent);
        }
        let Incoming { domain, source } = *self.incoming.get(&flow)?;
        let of = self.domains.get_mut(domain)?;
        let making = self.loan.and_then(|_| of.begin_making(source, bytes));
        let slot = making.or_else(|| of.take_slot(bytes));
        let slot = slot.or_else(|| urgent.then(|| of.begin_without_slot(bytes)).flatten())?;
        of.note_fresh(slot);
        Some(name_of(domain, slot))
    }

    fn fill(&mut self, slot: u64, at: u32, bytes: &[u8]) {
        if self.long_words.fill(slot, at, bytes) {
            return;
        }
        let (domain, slot) = slot_of(slot);
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let Some(domain) = self.domains.get_mut(domain) else { return };
        if is_making(slot) {
            return domain.add_to_making(slot, at, bytes, self.loan);
        }
        domain.note_copy(slot);
        domain.slab.bytes_mut(slot, at, len).into_iter().for_each(|to| to.copy_from_slice(bytes));
    }

    fn hold(&mut self, flow: u32, bytes: &[u8]) -> Option<u64> {
        let flow = FlowId { lane: self.lane, number: flow };
        if self.control == Some(flow) {
            return self.kept.hold(None, bytes);
        }
        let Incoming { domain, .. } = *self.incoming.get(&flow)?;
        self.kept.hold(Some((domain, &mut self.domains.get_mut(domain)?.waiting)), bytes)
    }

    fn copy_out(&self, slot: u64, at: u32, len: u32, out: &mut Vec<u8>) {
        let word = self.long_words.get(slot, at, len);
        let (domain, slot) = slot_of(slot);
        let from = word.or_else(|| self.domains.get(domain).and_then(|d| d.slab.written(slot, at, len)));
        out.extend_from_slice(from.unwrap_or(&[]));
    }
}

/// Tells the datapath where payloads belong.
pub(crate) struct Placer<'a> {
    pub(crate) hosts: &'a mut [Host],
    pub(crate) domains: &'a mut [Domain],
    pub(crate) by_address: &'a Addresses,
    pub(crate) port: usize,
    pub(crate) copies: bool,
    pub(crate) now: Duration,
    pub(crate) landings: &'a mut Landings,
    /// Whose they are, by their numbers.
    pub(crate) owners: &'a mut Vec<usize>,
}

impl Place for Placer<'_> {
    fn expects(&self) -> bool {
        self.hosts.iter().any(|h| h.lanes.get(self.port).is_some_and(|lane| lane.path.expects_fragments()))
    }

    fn place(&mut self, peeked: Peeked<'_>) -> Option<batch::Landing<'_>> {
        let at = self.by_address.find(self.port, peeked.from)?;
        let Host { lanes, incoming, control_in, long_words, kept, .. } = &mut self.hosts[at];
        let (lane, control) = (self.port, *control_in);
        let mut store = Memory { domains: self.domains, incoming, lane, control, long_words, kept, loan: None };
        let Peeked { head, len, stride, .. } = peeked;
        let landing = lanes.path(self.port)?.place(self.now, head, len, stride, &mut store, self.landings)?;
        self.owners.push(at);
        let regions = self.landings.regions(&landing);
        let (domain, _) = slot_of(regions.first()?.slot);
        let domain = self.domains.get_mut(domain)?;
        // All are of one flow, so of one domain.
        let mut wanted = [None; MOST_REGIONS];
        for (to, region) in wanted.iter_mut().zip(regions) {
            let (_, slot) = slot_of(region.slot);
            if self.copies {
                domain.note_copy(slot);
            }
            *to = Some((slot, region.at, region.bytes));
        }
        let [memory, then @ ..] = domain.slab.several_mut(wanted)?;
        Some(batch::Landing { memory: memory?, then, head_bytes: landing.head_bytes, token: landing.number as u64 })
    }
}
