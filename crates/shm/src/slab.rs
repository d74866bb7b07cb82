//! The owner's slots: which are free, and how many holds each of the others has.
//!
//! Private memory of one process; nothing here is shared (architecture §3 rules 2 and 9).
//!
//! Invariants:
//! - `INV-SLAB-1` A slot is on the free list of its class exactly when its count of holds is 0.
//! - `INV-SLAB-2` The application's buffer is one hold, and each time a link was given the slot is one more. The slot is
//!   free again when the last of them ends.
//! - `INV-SLAB-3` A segment is given back only while none of its slots has a hold. Its number is used again only when no link
//!   still has an answer to give about it ([`Told::awaits`]), so that no answer is taken for another segment's.

use crate::ShmError;
use crate::link::Producer;
use crate::segment::{Geometry, MAX_STRIDE, MIN_STRIDE, Segment};
use crate::steps::{Step, reach};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

/// A slot of this owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotId {
    /// The segment's number at its owner.
    pub segment: u16,
    /// The slot within it.
    pub slot: u32,
}

/// A slot taken for writing.
#[derive(Debug, Clone, Copy)]
pub struct Taken {
    /// Which.
    pub id: SlotId,
    /// Its first byte.
    pub base: NonNull<u8>,
    /// Its bytes.
    pub capacity: u32,
}

/// The most segments of one slab.
pub const MAX_SEGMENTS: usize = 4096;

/// The most segments of one peer that a process maps, over all links with it. An honest one has a few for each stream.
pub const MAX_OF_PEER: usize = 4000;

/// The most segments of peers that a session maps, and a runtime in a domain. The kernel lets a process have 65 530 mappings, and
/// one that has them all cannot even start a thread.
pub const MAX_OF_PEERS: usize = 32_000;

/// So many a peer may have whatever others have taken, so that nobody is cut off for what another one does.
pub const FEW_OF_PEER: usize = 64;

/// Whether one more segment may be mapped of a peer that has `of_peer`, where all peers have `all`.
#[must_use]
pub const fn may_map(of_peer: usize, all: usize) -> bool {
    of_peer < MAX_OF_PEER && (all < MAX_OF_PEERS || of_peer < FEW_OF_PEER)
}

const CLASSES: usize = 20;

/// How many classes larger a slot may be than a message needs without more ado: 16 times its size. A larger one would spend a
/// link's share on next to nothing.
const LARGER: usize = 4;

/// The slots of one stream of a session.
#[derive(Debug, Default)]
pub struct Slab {
    parts: Vec<Part>,
    free: [Vec<SlotId>; CLASSES],
    bytes: u64,
}

/// One segment; or a number without one, whose segment was given back.
#[derive(Debug, Default)]
struct Part {
    segment: Option<Arc<Segment>>,
    holds: Box<[u32]>,
    /// How many of its slots have holds.
    used: u32,
}

// SAFETY: INV-SLAB-2; raw addresses are only handed out together with a hold.
unsafe impl Send for Slab {}

/// The class of messages of `len` bytes; `None` when no slot is that large.
fn class_of(len: u64) -> Option<usize> {
    if len > MAX_STRIDE {
        return None;
    }
    let stride = len.max(MIN_STRIDE).next_power_of_two();
    Some((stride / MIN_STRIDE).trailing_zeros() as usize)
}

/// The stride of slots for messages of `len` bytes, if any slot is that large.
#[must_use]
pub fn stride_for(len: u64) -> Option<u64> {
    class_of(len).map(|class| MIN_STRIDE << class)
}

/// A good geometry for a segment for messages of `len` bytes: about `target` bytes of slots, at least one slot.
///
/// # Errors
/// [`ShmError::Limit`] when no slot is that large.
pub fn geometry_for(len: u64, target: u64) -> Result<Geometry, ShmError> {
    let stride = stride_for(len).ok_or(ShmError::Limit { what: "a message", needs: len, limit: MAX_STRIDE })?;
    let slots = (target / stride).clamp(1, u64::from(crate::segment::MAX_SLOTS));
    Geometry::checked(stride, u32::try_from(slots).unwrap_or(1))
}

impl Slab {
    /// Adds a segment and returns its number: one that was given back, if its owner says that it is `usable` again, or a new
    /// one.
    ///
    /// # Errors
    /// [`ShmError::Limit`] when there are [`MAX_SEGMENTS`] numbers already.
    pub fn add(&mut self, segment: Arc<Segment>, usable: impl Fn(u16) -> bool) -> Result<u16, ShmError> {
        let number = self.number(usable)?;
        let geometry = segment.geometry();
        let class = class_of(geometry.stride).unwrap_or(0);
        // The lowest slot ends on top of the stack, so that fresh memory is used in order.
        self.free[class].extend((0..geometry.slots).rev().map(|slot| SlotId { segment: number, slot }));
        self.bytes += segment.bytes();
        let holds = vec![0; geometry.slots as usize].into_boxed_slice();
        self.parts[usize::from(number)] = Part { segment: Some(segment), holds, used: 0 };
        Ok(number)
    }

    /// Adds a device's segment ([`Segment::lent`]) and returns its number. Its slots are on no free list and have no holds: whoever
    /// lends them counts. It is not among [`Self::bytes`] and is given back by [`Self::take_lent`] alone.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn add_lent(&mut self, segment: Arc<Segment>, usable: impl Fn(u16) -> bool) -> Result<u16, ShmError> {
        let number = self.number(usable)?;
        // In use, by whoever lends it, until that takes it out.
        self.parts[usize::from(number)] = Part { segment: Some(segment), holds: Box::default(), used: 1 };
        Ok(number)
    }

    /// A number for a segment.
    fn number(&mut self, usable: impl Fn(u16) -> bool) -> Result<u16, ShmError> {
        let given_back = self.parts.iter().enumerate().filter(|(_, p)| p.segment.is_none());
        let given_back = given_back.map(|(n, _)| n).find(|n| usable(u16::try_from(*n).unwrap_or(u16::MAX)));
        let at = given_back.unwrap_or(self.parts.len());
        if at >= MAX_SEGMENTS {
            return Err(ShmError::Limit {
                what: "segments of a stream",
                needs: at as u64 + 1,
                limit: MAX_SEGMENTS as u64,
            });
        }
        if at == self.parts.len() {
            self.parts.push(Part::default());
        }
        Ok(u16::try_from(at).unwrap_or(u16::MAX))
    }

    /// The segments and their numbers.
    pub fn segments(&self) -> impl Iterator<Item = (u16, &Arc<Segment>)> {
        let numbered = self.parts.iter().enumerate();
        numbered.filter_map(|(n, p)| Some((u16::try_from(n).ok()?, p.segment.as_ref()?)))
    }

    /// One segment.
    #[inline]
    #[must_use]
    pub fn segment(&self, number: u16) -> Option<&Arc<Segment>> {
        self.parts.get(usize::from(number)).and_then(|p| p.segment.as_ref())
    }

    /// The size of a segment's slots in bytes; 0 when there is none of that number.
    #[inline]
    #[must_use]
    pub fn stride(&self, segment: u16) -> u64 {
        self.segment(segment).map_or(0, |s| s.geometry().stride)
    }

    /// The bytes of all segments.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Segments that nothing has a hold on.
    fn idle(&self) -> impl Iterator<Item = (u16, &Arc<Segment>)> {
        let idle = self.parts.iter().enumerate().filter(|(_, part)| part.used == 0);
        idle.filter_map(|(n, part)| Some((u16::try_from(n).ok()?, part.segment.as_ref()?)))
    }

    /// Finds segments to give back, the largest without holds first, of those that `may` go, until together they are of `bytes` bytes or
    /// more: which, and of how many bytes they are. All there are if they do not suffice.
    #[must_use]
    pub fn largest_idle(&self, bytes: u64, may: impl Fn(u16, &Segment) -> bool) -> (Vec<u16>, u64) {
        let idle = self.idle().filter(|(number, segment)| may(*number, segment));
        let mut idle: Vec<(u64, u16)> = idle.map(|(number, segment)| (segment.bytes(), number)).collect();
        idle.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let (mut numbers, mut found) = (Vec::new(), 0);
        for (of, number) in idle {
            if found >= bytes {
                break;
            }
            numbers.push(number);
            found += of;
        }
        (numbers, found)
    }

    /// Finds segments to give back, so that together they are of `bytes` bytes or more: the largest without holds first, of
    /// those whose slots are of another size than a message of `len` bytes takes. Empty when they would not suffice.
    #[must_use]
    pub fn spare(&self, bytes: u64, len: u64) -> Vec<u16> {
        let class = class_of(len);
        let (numbers, found) = self.largest_idle(bytes, |_, segment| class_of(segment.geometry().stride) != class);
        if found >= bytes { numbers } else { Vec::new() }
    }

    /// Gives a segment back, if none of its slots has a hold (INV-SLAB-3). Its memory goes when the last who maps it lets go:
    /// drop what is returned where that may take time.
    pub fn give_back(&mut self, number: u16) -> Option<Arc<Segment>> {
        let part = self.parts.get_mut(usize::from(number)).filter(|p| p.used == 0)?;
        let segment = part.segment.take()?;
        part.holds = Box::default();
        self.bytes -= segment.bytes();
        let class = class_of(segment.geometry().stride).unwrap_or(0);
        self.free[class].retain(|slot| slot.segment != number);
        reach(Step::Shrink);
        Some(segment)
    }

    /// Takes a device's segment out again, of which nothing is lent any more. `None` if it is no device's.
    pub fn take_lent(&mut self, number: u16) -> Option<Arc<Segment>> {
        let part = self.parts.get_mut(usize::from(number))?;
        let segment = part.segment.take_if(|segment| segment.is_lent())?;
        part.used = 0;
        reach(Step::Shrink);
        Some(segment)
    }

    /// Slots that are free for messages of `len` bytes without taking a larger class.
    #[inline]
    #[must_use]
    pub fn available(&self, len: u64) -> usize {
        class_of(len).map_or(0, |class| self.free[class].len())
    }

    /// Takes a slot for a message of `len` bytes, of the next larger class that has one if need be, but not of one that is very
    /// much larger. Touches nothing shared.
    #[inline]
    pub fn take(&mut self, len: u64) -> Option<Taken> {
        let first = class_of(len)?;
        let larger = first + 1..(first + 1 + LARGER).min(CLASSES);
        let id = self.free[first].pop().or_else(|| self.free[larger].iter_mut().find_map(Vec::pop))?;
        Some(self.taken(id))
    }

    /// As [`Self::take`], of whatever larger class: better than nothing.
    #[cold]
    pub fn take_any(&mut self, len: u64) -> Option<Taken> {
        let first = class_of(len)?;
        let id = self.free[first..].iter_mut().find_map(Vec::pop)?;
        Some(self.taken(id))
    }

    #[inline]
    fn taken(&mut self, id: SlotId) -> Taken {
        reach(Step::Alloc);
        let part = &mut self.parts[usize::from(id.segment)];
        part.holds[id.slot as usize] = 1;
        part.used += 1;
        // A slot on a free list has a segment (INV-SLAB-3).
        let segment = part.segment.as_ref().expect("a segment with free slots");
        let capacity = u32::try_from(segment.geometry().stride).unwrap_or(u32::MAX);
        Taken { id, base: segment.slot(id.slot), capacity }
    }

    /// One more hold on a slot that has some.
    #[inline]
    pub fn hold(&mut self, id: SlotId) {
        self.parts[usize::from(id.segment)].holds[id.slot as usize] += 1;
    }

    /// One hold less; the slot is free when it was the last. `false` when the slot does not exist or had none, which is an
    /// error of the caller.
    #[inline]
    pub fn unhold(&mut self, id: SlotId) -> bool {
        let Some(part) = self.parts.get_mut(usize::from(id.segment)) else { return false };
        let Some(count) = part.holds.get_mut(id.slot as usize).filter(|count| **count > 0) else { return false };
        *count -= 1;
        if *count == 0 {
            part.used -= 1;
            let stride = part.segment.as_ref().map_or(0, |s| s.geometry().stride);
            self.free[class_of(stride).unwrap_or(0)].push(id);
        }
        true
    }

    /// The segment of a slot with holds, if bytes `at` to `at + len` lie in the slot.
    fn place(&self, id: SlotId, at: u32, len: u32) -> Option<&Segment> {
        let segment = self.segment(id.segment)?;
        let there = u64::from(at) + u64::from(len) <= segment.geometry().stride;
        (there && id.slot < segment.geometry().slots && self.holds_on(id) > 0).then_some(&**segment)
    }

    /// `len` bytes of a slot from byte `at` on, to be written by this process. `None` if they are not there, or the slot is free.
    ///
    /// Peers may read them meanwhile, and nobody else writes: a slab whose owner uses this gives the addresses of its slots to
    /// no other thread.
    #[must_use]
    pub fn bytes_mut(&mut self, id: SlotId, at: u32, len: u32) -> Option<&mut [u8]> {
        let segment = self.place(id, at, len)?;
        // SAFETY: INV-SEG-1; the place was checked to lie in its slot.
        let base = unsafe { segment.slot(id.slot).add(at as usize) };
        // SAFETY: INV-SEG-2: only the owner writes, and `&mut self` is the owner's only way in; peers map it read-only. A
        // segment with holds stays (INV-SLAB-3), and holds end by `&mut self` too.
        Some(unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), len as usize) })
    }

    /// As [`Slab::bytes_mut`], for several slots at once, up to the first that is `None`. `None` if one is not there, or two are the same.
    #[must_use]
    pub fn several_mut<const N: usize>(
        &mut self,
        wanted: [Option<(SlotId, u32, u32)>; N],
    ) -> Option<[Option<&mut [u8]>; N]> {
        let mut places = [None; N];
        for (n, (id, at, len)) in wanted.into_iter().map_while(|one| one).enumerate() {
            let segment = self.place(id, at, len)?;
            if wanted[..n].iter().flatten().any(|other| other.0 == id) {
                return None;
            }
            // SAFETY: INV-SEG-1; the place was checked to lie in its slot.
            places[n] = Some((unsafe { segment.slot(id.slot).add(at as usize) }, len as usize));
        }
        // SAFETY: as in `bytes_mut`; no two of them are the same slot, and slots do not meet.
        Some(places.map(|place| place.map(|(base, len)| unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), len) })))
    }

    /// `len` bytes of a slot from byte `at` on, as this process wrote them. `None` if they are not there, or the slot is free.
    #[must_use]
    pub fn written(&self, id: SlotId, at: u32, len: u32) -> Option<&[u8]> {
        let segment = self.place(id, at, len)?;
        // SAFETY: INV-SEG-1; the place was checked to lie in its slot.
        let base = unsafe { segment.slot(id.slot).add(at as usize) };
        // SAFETY: as in `bytes_mut`; `&self` keeps this process from writing meanwhile.
        Some(unsafe { std::slice::from_raw_parts(base.as_ptr(), len as usize) })
    }

    /// How many slots are not free.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        self.parts.iter().filter(|p| !p.holds.is_empty()).map(|p| u64::from(p.used)).sum()
    }

    /// The bytes of the slots that are not free.
    #[must_use]
    pub fn bytes_in_use(&self) -> u64 {
        let used = self.parts.iter().filter(|p| !p.holds.is_empty());
        used.map(|p| u64::from(p.used) * p.segment.as_ref().map_or(0, |s| s.geometry().stride)).sum()
    }

    /// The holds on one slot.
    #[must_use]
    pub fn holds_on(&self, id: SlotId) -> u32 {
        let part = self.parts.get(usize::from(id.segment));
        part.and_then(|p| p.holds.get(id.slot as usize)).copied().unwrap_or(0)
    }

    /// Counts every slot once: where it is, and whether that agrees (INV-SLAB-1).
    #[must_use]
    pub fn audit(&self) -> Audit {
        let mut audit = Audit { total: self.parts.iter().map(|p| p.holds.len() as u64).sum(), ..Audit::default() };
        let mut seen: Vec<Vec<u32>> = self.parts.iter().map(|p| vec![0; p.holds.len()]).collect();
        for id in self.free.iter().flatten() {
            seen[usize::from(id.segment)][id.slot as usize] += 1;
        }
        for (listed, holds) in seen.iter().flatten().zip(self.parts.iter().flat_map(|p| p.holds.iter())) {
            audit.free += u64::from(*listed > 0);
            audit.held += u64::from(*holds > 0);
            audit.lost += u64::from(*listed == 0 && *holds == 0);
            audit.doubly_owned += u64::from(*listed > 1 || (*listed > 0 && *holds > 0));
            audit.holds += u64::from(*holds);
        }
        audit
    }
}

/// What [`Slab::audit`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Audit {
    /// Slots there are.
    pub total: u64,
    /// Slots on a free list.
    pub free: u64,
    /// Slots with holds.
    pub held: u64,
    /// Slots found nowhere.
    pub lost: u64,
    /// Slots found more than once.
    pub doubly_owned: u64,
    /// All holds together.
    pub holds: u64,
}

/// What one link's consumer was told of the owner's segments, and what it has answered.
#[derive(Debug, Default)]
pub struct Told {
    /// Told of and not answered yet, in the order of telling; `false`: given back meanwhile.
    asked: VecDeque<(u16, bool)>,
    /// Given back, and the consumer does not know yet.
    gone: Vec<u16>,
}

/// What there is to tell a link's consumer: first of the segments that are gone, then of the new ones.
#[derive(Debug, Default)]
pub struct News {
    /// To be unmapped.
    pub gone: Vec<u16>,
    /// To be mapped.
    pub new: Vec<(u16, Arc<Segment>)>,
}

impl Told {
    /// What the consumer does not know yet, with or without devices' segments. It counts as told.
    pub fn news(&mut self, slab: &Slab, producer: &Producer, with_lent: bool) -> News {
        let gone = std::mem::take(&mut self.gone);
        let known = |n: u16| producer.is_mapped(n) || self.asked.contains(&(n, true));
        let new: Vec<_> = slab
            .segments()
            .filter(|(n, s)| !known(*n) && (with_lent || !s.is_lent()))
            .map(|(n, s)| (n, s.clone()))
            .collect();
        self.asked.extend(new.iter().map(|(n, _)| (*n, true)));
        News { gone, new }
    }

    /// The consumer has mapped a segment. They answer in the order in which they were told.
    ///
    /// # Errors
    /// [`ShmError::Geometry`]: it was not asked for that one.
    pub fn answered(&mut self, number: u32, slab: &Slab, producer: &mut Producer) -> Result<(), ShmError> {
        let next = self.asked.front().copied().filter(|(n, _)| u32::from(*n) == number);
        let (number, stays) = next.ok_or_else(|| ShmError::Geometry {
            text: format!("segment {number} was mapped, which is not the next that was offered"),
        })?;
        self.asked.pop_front();
        if let Some(segment) = slab.segment(number).filter(|_| stays) {
            producer.add_segment(number, segment.geometry().slots);
        }
        Ok(())
    }

    /// The owner has given a segment back, of which this link holds nothing.
    pub fn given_back(&mut self, number: u16, producer: &mut Producer) {
        let asked = self.asked.iter_mut().find(|asked| **asked == (number, true));
        let knew = asked.is_some() || producer.is_mapped(number);
        if let Some(asked) = asked {
            asked.1 = false;
        }
        producer.remove_segment(number);
        if knew {
            self.gone.push(number);
        }
    }

    /// Whether an answer about a segment of this number is still to come.
    #[must_use]
    pub fn awaits(&self, number: u16) -> bool {
        self.asked.iter().any(|(n, _)| *n == number)
    }
}
