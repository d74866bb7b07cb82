//! The owner's slots: which are free, and how many holds each of the others has.
//!
//! Private memory of one process; nothing here is shared (architecture §3 rules 2 and 9).
//!
//! Invariants:
//! - `INV-SLAB-1` A slot is on the free list of its class exactly when its count of holds is 0.
//! - `INV-SLAB-2` The application's buffer is one hold, and each time a link was given the slot is one more. The slot is
//!   free again when the last of them ends.

use crate::ShmError;
use crate::segment::{Geometry, MAX_STRIDE, MIN_STRIDE, Segment};
use crate::steps::{Step, reach};
use std::ptr::NonNull;
use std::sync::Arc;

/// A slot of this owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotId {
    /// The segment, in the order in which the owner added them.
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

const CLASSES: usize = 20;

/// The slots of one stream of a session.
#[derive(Debug, Default)]
pub struct Slab {
    segments: Vec<Arc<Segment>>,
    holds: Vec<Box<[u32]>>,
    free: [Vec<SlotId>; CLASSES],
    in_use: u64,
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
    /// Adds a segment; its number is the order of these calls.
    ///
    /// # Errors
    /// [`ShmError::Limit`] when there are [`MAX_SEGMENTS`] already.
    pub fn add(&mut self, segment: Arc<Segment>) -> Result<u16, ShmError> {
        if self.segments.len() >= MAX_SEGMENTS {
            return Err(ShmError::Limit {
                what: "segments of a stream",
                needs: self.segments.len() as u64 + 1,
                limit: MAX_SEGMENTS as u64,
            });
        }
        let number = u16::try_from(self.segments.len()).unwrap_or(u16::MAX);
        let geometry = segment.geometry();
        let class = class_of(geometry.stride).unwrap_or(0);
        self.holds.push(vec![0; geometry.slots as usize].into_boxed_slice());
        // The lowest slot ends on top of the stack, so that fresh memory is used in order.
        self.free[class].extend((0..geometry.slots).rev().map(|slot| SlotId { segment: number, slot }));
        self.segments.push(segment);
        Ok(number)
    }

    /// The segments, in order.
    #[must_use]
    pub fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    /// The bytes of all segments.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|s| s.bytes()).sum()
    }

    /// Slots that are free for messages of `len` bytes without taking a larger class.
    #[inline]
    #[must_use]
    pub fn available(&self, len: u64) -> usize {
        class_of(len).map_or(0, |class| self.free[class].len())
    }

    /// Takes a slot for a message of `len` bytes, of the next larger class that has one if need be. Touches nothing shared.
    #[inline]
    pub fn take(&mut self, len: u64) -> Option<Taken> {
        let first = class_of(len)?;
        let id = self.free[first].pop().or_else(|| self.free[first + 1..].iter_mut().find_map(Vec::pop))?;
        reach(Step::Alloc);
        self.holds[usize::from(id.segment)][id.slot as usize] = 1;
        self.in_use += 1;
        let segment = &self.segments[usize::from(id.segment)];
        let capacity = u32::try_from(segment.geometry().stride).unwrap_or(u32::MAX);
        Some(Taken { id, base: segment.slot(id.slot), capacity })
    }

    /// One more hold on a slot that has some.
    #[inline]
    pub fn hold(&mut self, id: SlotId) {
        self.holds[usize::from(id.segment)][id.slot as usize] += 1;
    }

    /// One hold less; the slot is free when it was the last. `false` when the slot does not exist or had none, which is an
    /// error of the caller.
    #[inline]
    pub fn unhold(&mut self, id: SlotId) -> bool {
        let Some(count) = self.holds.get_mut(usize::from(id.segment)).and_then(|s| s.get_mut(id.slot as usize)) else {
            return false;
        };
        if *count == 0 {
            return false;
        }
        *count -= 1;
        if *count == 0 {
            let stride = self.segments[usize::from(id.segment)].geometry().stride;
            self.free[class_of(stride).unwrap_or(0)].push(id);
            self.in_use -= 1;
        }
        true
    }

    /// `len` bytes of a slot from byte `at` on, to be written by this process. `None` if they are not there, or the slot is free.
    ///
    /// Peers may read them meanwhile, and nobody else writes: a slab whose owner uses this gives the addresses of its slots to
    /// no other thread.
    #[must_use]
    pub fn bytes_mut(&mut self, id: SlotId, at: u32, len: u32) -> Option<&mut [u8]> {
        let segment = self.segments.get(usize::from(id.segment))?;
        let there = u64::from(at) + u64::from(len) <= segment.geometry().stride;
        if !there || id.slot >= segment.geometry().slots || self.holds_on(id) == 0 {
            return None;
        }
        // SAFETY: INV-SEG-1; the place was checked to lie in its slot.
        let base = unsafe { segment.slot(id.slot).add(at as usize) };
        // SAFETY: INV-SEG-2: only the owner writes, and `&mut self` is the owner's only way in; peers map it read-only. The
        // segment lives as long as the slab.
        Some(unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), len as usize) })
    }

    /// `len` bytes of a slot from byte `at` on, as this process wrote them. `None` if they are not there, or the slot is free.
    #[must_use]
    pub fn written(&self, id: SlotId, at: u32, len: u32) -> Option<&[u8]> {
        let segment = self.segments.get(usize::from(id.segment))?;
        let there = u64::from(at) + u64::from(len) <= segment.geometry().stride;
        if !there || id.slot >= segment.geometry().slots || self.holds_on(id) == 0 {
            return None;
        }
        // SAFETY: INV-SEG-1; the place was checked to lie in its slot.
        let base = unsafe { segment.slot(id.slot).add(at as usize) };
        // SAFETY: as in `bytes_mut`; `&self` keeps this process from writing meanwhile.
        Some(unsafe { std::slice::from_raw_parts(base.as_ptr(), len as usize) })
    }

    /// How many slots are not free.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    /// The holds on one slot.
    #[must_use]
    pub fn holds_on(&self, id: SlotId) -> u32 {
        self.holds.get(usize::from(id.segment)).and_then(|s| s.get(id.slot as usize)).copied().unwrap_or(0)
    }

    /// Counts every slot once: where it is, and whether that agrees (INV-SLAB-1).
    #[must_use]
    pub fn audit(&self) -> Audit {
        let mut audit = Audit { total: self.holds.iter().map(|s| s.len() as u64).sum(), ..Audit::default() };
        let mut seen: Vec<Vec<u32>> = self.holds.iter().map(|s| vec![0; s.len()]).collect();
        for id in self.free.iter().flatten() {
            seen[usize::from(id.segment)][id.slot as usize] += 1;
        }
        for (listed, holds) in seen.iter().flatten().zip(self.holds.iter().flat_map(|s| s.iter())) {
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
