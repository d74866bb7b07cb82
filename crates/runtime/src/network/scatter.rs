//! Large messages that stay where their frames arrived, in memory that the datapath lends, for sinks that have asked for it: such a
//! sink gets a list of the places, in a slot of the domain, and nobody copies the payload. One that came in one frame has one place.
//!
//! A frame that is lent is a [`Loan`], shared by all that lies in it; with the last of them it goes back to its datapath, whoever
//! has let go of it. While a message is put together its [`Making`] has them, afterwards the list, which the domain holds for as
//! long as a link does. Bounded: a datapath lends no more than it can spare, and of that each link that asks may hold an equal share.
//! What goes beyond is copied together into one slot, as for everybody else, and said to be.

use crate::network::domain::Domain;
use crate::network::outlet::{Arrived, Outlet, Tap, TapState};
use insane_datapath::Lendable;
use insane_datapath::memory::Slot;
use insane_shm::link::{Descriptor, FLAG_COPIED};
use insane_shm::scatter::{MAX_PIECES, Place, bytes_for, write};
use insane_shm::segment::{Geometry, Segment};
use insane_shm::slab::{MAX_SEGMENTS, SlotId};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

/// The segment that a slot's name has if it is a message in the making. No slab has so many.
const MAKING: u16 = u16::MAX;
const _: () = assert!(MAX_SEGMENTS < MAKING as usize);

/// A message that came whole in a frame stays there from so many bytes on. A frame of an ordinary MTU takes 2 KiB of what a device
/// receives into, however little of it is payload, and a slot the next power of two: who keeps a shorter message keeps half as much in a
/// slot, and its few cache lines are copied while they are still there from the packet engine's check, where a list costs both ends
/// allocations, a lock and a slot of its own.
const LEAST_LENT: usize = 1024;

/// The frames of one port that are lent.
#[derive(Debug, Default)]
pub(crate) struct Loans {
    back: Arc<Mutex<Vec<Slot>>>,
    out: u32,
}

impl Loans {
    /// A frame is lent.
    pub(crate) fn lend(&mut self, slot: Slot, lender: usize) -> Arc<Loan> {
        self.out += 1;
        Arc::new(Loan { slot: Some(slot), lender, back: Arc::clone(&self.back) })
    }

    /// How many somebody has.
    pub(crate) fn out(&self) -> u32 {
        let back = self.back.lock().unwrap_or_else(PoisonError::into_inner).len();
        self.out.saturating_sub(u32::try_from(back).unwrap_or(u32::MAX))
    }

    /// Those that nobody has any more.
    pub(crate) fn returned(&mut self, to: &mut Vec<Slot>) {
        if self.out > 0 {
            let before = to.len();
            to.append(&mut self.back.lock().unwrap_or_else(PoisonError::into_inner));
            self.out = self.out.saturating_sub(u32::try_from(to.len() - before).unwrap_or(u32::MAX));
        }
    }
}

/// A frame that is lent.
#[derive(Debug)]
pub(crate) struct Loan {
    /// Until it goes back.
    slot: Option<Slot>,
    /// Which of all ports that ever were.
    lender: usize,
    back: Arc<Mutex<Vec<Slot>>>,
}

impl Drop for Loan {
    fn drop(&mut self) {
        let slot = self.slot.take();
        self.back.lock().unwrap_or_else(PoisonError::into_inner).extend(slot);
    }
}

impl Loan {
    /// The frame.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.slot.as_ref().map_or(&[], Slot::bytes)
    }

    /// Where in it these very bytes are, if they lie there.
    fn find(&self, bytes: &[u8]) -> Option<u32> {
        let (all, part) = (self.bytes().as_ptr_range(), bytes.as_ptr_range());
        let there = all.start <= part.start && part.end <= all.end;
        u32::try_from(part.start.addr().checked_sub(all.start.addr())?).ok().filter(|_| there)
    }
}

/// A part of a message in a frame.
#[derive(Debug)]
struct Part {
    /// Where in the message.
    at: u32,
    len: u32,
    /// Where in the frame.
    from: u32,
    loan: Arc<Loan>,
}

impl Part {
    fn end(&self) -> u32 {
        self.at + self.len
    }

    fn bytes(&self) -> &[u8] {
        self.loan.bytes().get(self.from as usize..(self.from + self.len) as usize).unwrap_or(&[])
    }
}

/// A message that is put together, or is whole.
#[derive(Debug)]
pub(crate) enum Making {
    /// Of so many bytes, in frames: in order.
    Frames(u32, Parts),
    /// Something of it could not be lent: copied, into a slot; or, where there was none, into memory that nobody shares.
    Slot(u32, SlotId),
    Heap(Vec<u8>),
}

/// Parts of a message, in order.
#[derive(Debug, Default)]
pub(crate) struct Parts(Vec<Part>);

impl Parts {
    /// All of a message, which lies in one frame. `None`: it does not.
    pub(crate) fn whole(bytes: &[u8], loan: &Arc<Loan>) -> Option<Self> {
        let (len, from) = (u32::try_from(bytes.len()).ok()?, loan.find(bytes)?);
        Some(Self(vec![Part { at: 0, len, from, loan: Arc::clone(loan) }]))
    }

    /// Adds one; `false` if there are too many.
    fn add(&mut self, part: Part) -> bool {
        let at = self.0.partition_point(|other| other.at <= part.at);
        let had =
            at.checked_sub(1).and_then(|before| self.0.get(before)).is_some_and(|before| before.end() >= part.end());
        if !had {
            if self.0.len() >= MAX_PIECES {
                return false;
            }
            self.0.insert(at, part);
        }
        true
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The places of the pieces of a message of so many bytes, none twice: what came again in other parts is left out.
    fn places(&self, total: u32, memories: &HashMap<(usize, u16), u16>) -> Option<Vec<Place>> {
        let mut next = 0u32;
        let mut places = Vec::with_capacity(self.0.len());
        for part in &self.0 {
            let known = next.checked_sub(part.at)?;
            if known >= part.len {
                continue;
            }
            let frame = part.loan.slot.as_ref()?.place()?;
            let segment = *memories.get(&(part.loan.lender, frame.memory))?;
            let (offset, length) = (frame.offset + part.from + known, part.len - known);
            places.push(Place { segment, slot: frame.slot, offset, length });
            next = part.end();
        }
        (next == total).then_some(places)
    }

    /// Copies all of it together.
    pub(crate) fn copy_to(&self, to: &mut [u8]) {
        for part in &self.0 {
            let to = to.get_mut(part.at as usize..part.end() as usize);
            to.into_iter().for_each(|to| to.copy_from_slice(part.bytes()));
        }
    }
}

/// A list that is handed out.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) slot: SlotId,
    /// Its bytes.
    pub(crate) length: u32,
    /// How many frames go with it.
    pub(crate) frames: u32,
    /// To which links.
    pub(crate) outlets: Vec<usize>,
}

/// What a domain has in frames that are lent.
#[derive(Debug, Default)]
pub(crate) struct Scatter {
    /// The segments of the memories that ports lend out of, by lender.
    memories: HashMap<(usize, u16), u16>,
    /// Those of lenders that are gone, until nobody has anything of them any more.
    leaving: Vec<(usize, u16)>,
    /// The most that each lends.
    shares: HashMap<usize, u32>,
    /// The most frames that are lent in all, and the bytes of one.
    most: u32,
    frame_bytes: u32,
    /// How many links want messages scattered.
    links: u32,
    makings: HashMap<u32, Making>,
    next: u32,
    /// The frames of lists that are out, by the list's slot, on which the domain has a hold.
    lists: HashMap<SlotId, Parts>,
    /// Slots that payload was copied into, of messages that are put together for sinks that want to know.
    copied: HashSet<SlotId>,
    pub(crate) counts: Counts,
}

/// What was counted of messages that sinks wanted scattered.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Handed over as lists, and how many pieces these had.
    pub(crate) messages: u64,
    pub(crate) pieces: u64,
    /// Copied together, because something of them could not be lent or a link had its share.
    pub(crate) copied: u64,
}

/// Whether a slot's name is that of a message in the making.
pub(crate) fn is_making(slot: SlotId) -> bool {
    slot.segment == MAKING
}

impl Domain {
    /// A port can lend out of these memories; they are the domain's alone to see.
    pub(crate) fn borrow_from(&mut self, lender: usize, memories: &[Lendable<'_>]) -> Result<(), insane_shm::ShmError> {
        for (number, memory) in memories.iter().enumerate() {
            let geometry = Geometry::checked(memory.stride, memory.slots)?;
            let fd = memory
                .memory
                .try_clone_to_owned()
                .map_err(|e| insane_shm::ShmError::System { call: "dup", source: e })?;
            let outlets = &self.outlets;
            let usable = |n| !outlets.iter().flatten().any(|o| o.told.awaits(n));
            let segment = self.slab.add_lent(Arc::new(Segment::lent(fd, geometry)?), usable)?;
            self.scatter.memories.insert((lender, u16::try_from(number).unwrap_or(u16::MAX)), segment);
            *self.scatter.shares.entry(lender).or_default() += memory.most;
            self.scatter.frame_bytes = u32::try_from(memory.stride).unwrap_or(u32::MAX);
        }
        self.scatter.most = self.scatter.shares.values().sum();
        (0..self.outlets.len()).for_each(|at| self.send_segments(at));
        Ok(())
    }

    /// A port lends no more. What is made of frames that it has lent already is copied; who has some keeps them.
    pub(crate) fn borrow_no_more(&mut self, lender: usize) {
        let Scatter { memories, leaving, shares, most, .. } = &mut self.scatter;
        memories.retain(|(of, _), segment| {
            if *of == lender {
                leaving.push((lender, *segment));
            }
            *of != lender
        });
        shares.remove(&lender);
        *most = shares.values().sum();
    }

    /// Nobody has anything any more of what such a port had lent: sessions let go of its memory.
    pub(crate) fn forget_lender(&mut self, lender: usize) {
        let (gone, stay) = std::mem::take(&mut self.scatter.leaving).into_iter().partition(|(of, _)| *of == lender);
        self.scatter.leaving = stay;
        let gone: Vec<(usize, u16)> = gone;
        for (_, number) in gone {
            let Some(segment) = self.slab.take_lent(number) else { continue };
            self.pages.let_go(segment);
            for outlet in self.outlets.iter_mut().flatten() {
                if let Some(producer) = &mut outlet.producer {
                    outlet.told.given_back(number, producer);
                }
            }
        }
        (0..self.outlets.len()).for_each(|at| self.send_segments(at));
    }

    /// Whether some link wants messages scattered.
    pub(crate) fn wants_scattered(&self) -> bool {
        self.scatter.links > 0
    }

    /// A link wants messages scattered: its session is to know the memories that datapaths lend out of.
    pub(crate) fn scatter_to(&mut self, at: usize) {
        if let Some(outlet) = self.outlets[at].as_mut().filter(|outlet| !outlet.scattered) {
            outlet.scattered = true;
            self.scatter.links += 1;
            self.send_segments(at);
        }
    }

    /// A link is gone.
    pub(crate) fn scatter_no_more(&mut self, outlet: &Outlet) {
        self.scatter.links -= u32::from(outlet.scattered);
    }

    /// What one link may have of the frames that are lent.
    fn share(&self) -> u32 {
        self.scatter.most / self.scatter.links.max(1)
    }

    /// Begins a message of a source in frames, if a sink wants it so and it is not too large for that. The name is a slot's.
    pub(crate) fn begin_making(&mut self, source: usize, bytes: u32) -> Option<SlotId> {
        // More than half of a frame is payload.
        let frames = bytes.div_ceil((self.scatter.frame_bytes / 2).max(1));
        self.stays_in(source, frames).then(|| self.begin(Making::Frames(bytes, Parts::default())))?
    }

    /// Whether a message of a source stays in so many frames, for some sink.
    fn stays_in(&self, source: usize, frames: u32) -> bool {
        let wanted = |t: &Tap| t.scattered && t.state == TapState::Open;
        let remote = self.remotes.get(source).and_then(Option::as_ref);
        let wanted = self.wants_scattered() && remote.is_some_and(|remote| remote.taps.iter().any(wanted));
        wanted && !self.scatter.memories.is_empty() && frames <= self.share()
    }

    /// A message that came whole in a frame, perhaps with others: it stays there if the frame is lent, it is large enough, and a sink of
    /// its source wants it so.
    pub(crate) fn arrived<'a>(&self, source: usize, bytes: &'a [u8], loan: Option<&'a Arc<Loan>>) -> Arrived<'a> {
        let stays = |_: &&Arc<Loan>| bytes.len() >= LEAST_LENT && self.stays_in(source, 1);
        loan.filter(stays).map_or(Arrived::Bytes(bytes), |loan| Arrived::Lent(bytes, loan))
    }

    /// Begins a message that all later ones of its flow wait for, in memory that nobody shares: they may have all slots there are, and
    /// give none back before they are handed on. The name is a slot's. All such messages together are no more than the domain may have
    /// in slots, or one.
    pub(crate) fn begin_without_slot(&mut self, bytes: u32) -> Option<SlotId> {
        let of = |making: &Making| if let Making::Heap(all) = making { all.len() as u64 } else { 0 };
        let others: u64 = self.scatter.makings.values().map(of).sum();
        let fits = others == 0 || others + u64::from(bytes) <= self.memory_limit;
        fits.then(|| self.begin(Making::Heap(vec![0; bytes as usize])))?
    }

    fn begin(&mut self, making: Making) -> Option<SlotId> {
        let scatter = &mut self.scatter;
        scatter.next = scatter.next.wrapping_add(1);
        // Not one that is in use still, after four thousand million others.
        if scatter.makings.contains_key(&scatter.next) {
            return None;
        }
        scatter.makings.insert(scatter.next, making);
        Some(SlotId { segment: MAKING, slot: scatter.next })
    }

    /// Adds bytes to a message in the making: where they lie, if they lie in a frame that is lent.
    pub(crate) fn add_to_making(&mut self, name: SlotId, at: u32, bytes: &[u8], loan: Option<&Arc<Loan>>) {
        let Some(mut making) = self.scatter.makings.remove(&name.slot) else { return };
        if let Making::Frames(total, parts) = &mut making {
            let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            let part =
                loan.and_then(|loan| loan.find(bytes).map(|from| Part { at, len, from, loan: Arc::clone(loan) }));
            if part.is_none_or(|part| !parts.add(part)) {
                making = self.copy_together(*total, &std::mem::take(parts));
            }
        }
        match &mut making {
            Making::Frames(..) => {}
            Making::Slot(_, slot) => {
                let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                let to = self.slab.bytes_mut(*slot, at, len);
                to.into_iter().for_each(|to| to.copy_from_slice(bytes));
            }
            Making::Heap(all) => {
                let to = all.get_mut(at as usize..at as usize + bytes.len());
                to.into_iter().for_each(|to| to.copy_from_slice(bytes));
            }
        }
        self.scatter.makings.insert(name.slot, making);
    }

    /// Copies what there is of a message to where the rest can follow.
    fn copy_together(&mut self, total: u32, parts: &Parts) -> Making {
        self.scatter.counts.copied += 1;
        let slot = self.take_slot(total);
        if let Some(slot) = slot
            && let Some(to) = self.slab.bytes_mut(slot, 0, total)
        {
            parts.copy_to(to);
            self.scatter.copied.insert(slot);
            return Making::Slot(total, slot);
        }
        let mut all = vec![0; total as usize];
        parts.copy_to(&mut all);
        Making::Heap(all)
    }

    /// Takes a message that is whole, or will not be.
    pub(crate) fn take_making(&mut self, name: SlotId) -> Option<Making> {
        self.scatter.makings.remove(&name.slot)
    }

    /// A slot into which a message is put together is not needed any more, or is a message in the making.
    pub(crate) fn discard(&mut self, slot: SlotId) {
        match is_making(slot).then(|| self.take_making(slot)) {
            Some(Some(Making::Slot(_, slot))) => self.discard(slot),
            Some(_) => {}
            None => {
                self.scatter.copied.remove(&slot);
                self.slab.unhold(slot);
            }
        }
    }

    /// Payload of a message is copied into a slot by this process.
    pub(crate) fn note_copy(&mut self, slot: SlotId) {
        if self.wants_scattered() {
            self.scatter.copied.insert(slot);
        }
    }

    /// A slot is taken for a new message.
    pub(crate) fn note_fresh(&mut self, slot: SlotId) {
        if !self.scatter.copied.is_empty() {
            self.scatter.copied.remove(&slot);
        }
    }

    /// What a descriptor says of copies into a slot.
    pub(crate) fn copies_into(&mut self, slot: SlotId) -> u16 {
        let copied = !self.scatter.copied.is_empty() && self.scatter.copied.remove(&slot);
        if copied { FLAG_COPIED } else { 0 }
    }

    /// Makes the list of a message in frames, for those of its source's links that take it so and have not their share yet.
    /// The parts come back if there is none such, or no memory for a list.
    fn make_list(&mut self, source: usize, d: &Descriptor, parts: Parts) -> Result<List, Parts> {
        let Some(places) = parts.places(d.length, &self.scatter.memories) else { return Err(parts) };
        let frames = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        let share = self.share();
        let takes = |at: usize| {
            let all = self.remotes.get(source).and_then(Option::as_ref).is_some_and(|remote| remote.is_scattered(at));
            let outlet = self.outlets.get(at).and_then(Option::as_ref).filter(|_| all);
            outlet.is_some_and(|outlet| {
                // What waits for the link is not counted yet.
                !outlet.is_behind()
                    && outlet.lent.saturating_add(frames) <= share
                    && places.iter().all(|place| outlet.has_mapped(place.segment))
            })
        };
        let outlets: Vec<usize> = self.takers(source, d.sequence).into_iter().filter(|at| takes(*at)).collect();
        if outlets.is_empty() {
            return Err(parts);
        }
        let Ok(length) = u32::try_from(bytes_for(places.len())) else { return Err(parts) };
        let Some(slot) = self.take_slot(length) else { return Err(parts) };
        let written = self.slab.bytes_mut(slot, 0, length).and_then(|to| write(&places, to));
        if written.is_none() {
            self.slab.unhold(slot);
            return Err(parts);
        }
        self.scatter.counts.messages += 1;
        self.scatter.counts.pieces += places.len() as u64;
        // The domain's own hold on it ends when no link has one any more.
        self.scatter.lists.insert(slot, parts);
        Ok(List { slot, length, frames, outlets })
    }

    /// A message in frames that its source's sinks are to have: a list to those links that take one and have not their share yet, all
    /// of it in a slot to the others. Returns whether it has left the network's own memory.
    pub(crate) fn deliver_parts(&mut self, source: usize, mut d: Descriptor, total: u32, parts: Parts) -> bool {
        d.length = total;
        self.hand_out_gathered();
        let behind = self.is_behind(source);
        let (list, parts) = match if behind { Err(parts) } else { self.make_list(source, &d, parts) } {
            Ok(list) => (Some(list), None),
            Err(parts) => (None, Some(parts)),
        };
        let listed = |at: &usize| list.as_ref().is_some_and(|list| list.outlets.contains(at));
        let others: Vec<usize> = self.takers(source, d.sequence).into_iter().filter(|at| !listed(at)).collect();
        let mut whole = None;
        // Behind others it waits also if nobody is known yet to whom it will go.
        if behind || !others.is_empty() {
            d.flags |= FLAG_COPIED;
            let asked = |at: &usize| self.outlets[*at].as_ref().is_some_and(|outlet| outlet.scattered);
            self.scatter.counts.copied += u64::from(others.iter().any(asked));
            whole = if behind { None } else { self.take_slot(total) };
            let parts = list.as_ref().and_then(|list| self.scatter.lists.get(&list.slot)).or(parts.as_ref());
            let Some(slot) = whole else {
                let mut bytes = vec![0; total as usize];
                parts.into_iter().for_each(|parts| parts.copy_to(&mut bytes));
                return self.no_memory(source, d, bytes);
            };
            if let Some((parts, to)) = parts.zip(self.slab.bytes_mut(slot, 0, total)) {
                parts.copy_to(to);
            }
        }
        self.hand_out_as(source, &mut d, &[], whole, list.as_ref());
        true
    }

    /// Lets go of the frames of lists that no link has any more.
    pub(crate) fn sweep_lists(&mut self) {
        let slab = &mut self.slab;
        self.scatter.lists.retain(|slot, _| {
            let out = slab.holds_on(*slot) > 1;
            if !out {
                slab.unhold(*slot);
            }
            out
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use insane_datapath::memory::Lent;

    /// A frame of the numbers from 0 on, which is slot 5 of the second memory that the port lends out of, from byte 100 on.
    fn loan(loans: &mut Loans) -> Arc<Loan> {
        let bytes: Vec<u8> = (0..64).collect();
        loans.lend(Slot::as_lent(1, Lent { memory: 1, slot: 5, offset: 100 }, &bytes), 3)
    }

    fn part(loan: &Arc<Loan>, at: u32, bytes: core::ops::Range<usize>) -> Part {
        let from = loan.find(&loan.bytes()[bytes.clone()]).unwrap();
        assert_eq!(from as usize, bytes.start);
        Part { at, len: bytes.len() as u32, from, loan: Arc::clone(loan) }
    }

    #[test]
    fn a_frame_goes_back_with_the_last_who_has_it() {
        let mut loans = Loans::default();
        let (one, two) = (loan(&mut loans), loan(&mut loans));
        let mut parts = Parts::default();
        assert!(parts.add(part(&one, 0, 0..4)) && parts.add(part(&one, 4, 10..14)) && parts.add(part(&two, 8, 0..1)));
        assert_eq!(one.find(b"elsewhere"), None);
        let mut back = Vec::new();
        drop(one);
        loans.returned(&mut back);
        assert_eq!((back.len(), loans.out()), (0, 2));
        drop(parts);
        assert_eq!(loans.out(), 1, "who has let go has it no more, though it is not back yet");
        loans.returned(&mut back);
        assert_eq!((back.len(), loans.out()), (1, 1));
        drop(two);
        loans.returned(&mut back);
        assert_eq!((back.len(), loans.out()), (2, 0));
    }

    #[test]
    fn pieces_are_in_order_and_none_is_there_twice() {
        let mut loans = Loans::default();
        let frame = loan(&mut loans);
        let memories = HashMap::from([((3, 1), 77)]);
        let mut parts = Parts::default();
        // Out of order; again; again in a larger part that overlaps both of its neighbours; within another.
        for (at, bytes) in [(8, 8..12), (0, 0..4), (8, 8..12), (3, 3..9), (9, 9..11), (12, 30..32)] {
            assert!(parts.add(part(&frame, at, bytes)));
        }
        let piece = |offset, length| Place { segment: 77, slot: 5, offset, length };
        let pieces = vec![piece(100, 4), piece(104, 5), piece(109, 3), piece(130, 2)];
        assert_eq!(parts.places(14, &memories), Some(pieces));
        let mut whole = [0; 14];
        parts.copy_to(&mut whole);
        assert_eq!(whole, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 30, 31]);
        // Of more bytes than there are, of other memory, with a hole.
        assert_eq!((parts.places(15, &memories), parts.places(14, &HashMap::new())), (None, None));
        assert!(parts.add(part(&frame, 20, 0..1)));
        assert_eq!(parts.places(21, &memories), None);
    }

    #[test]
    fn there_are_no_more_parts_than_a_list_has() {
        let mut loans = Loans::default();
        let frame = loan(&mut loans);
        let mut parts = Parts::default();
        assert!((0..MAX_PIECES as u32).all(|at| parts.add(part(&frame, at, 0..1))));
        assert!(!parts.add(part(&frame, MAX_PIECES as u32, 0..1)));
        assert!(parts.add(part(&frame, 7, 0..1)), "what is there already adds nothing");
        assert_eq!(parts.len(), MAX_PIECES);
    }
}
