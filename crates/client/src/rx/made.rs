//! How messages are made of what a link has.

use super::{AHEAD, RxLink};
use crate::blocks::Pool;
use crate::message::{Extra, Origin, RawMessage, Taken};
use insane_shm::link::{Descriptor, FLAG_INLINE, FLAG_PACKED};
use insane_shm::pack::{MAX_COPIED, copy_words};
use insane_shm::segment::prefetch;
use insane_wire::id::Epoch;
use std::ptr::NonNull;

/// A piece for a message, and where its own copy of the payload begins.
#[inline(always)]
pub(super) fn piece(pool: &mut Pool<Taken>) -> (NonNull<Taken>, NonNull<u8>) {
    let place = pool.lend();
    // The address of a part is taken before a reference to the whole is made.
    // SAFETY: INV-BLOCK-1: it was just lent.
    let inside = unsafe { &raw mut (*place.as_ptr()).inside };
    (place, NonNull::new(inside.cast()).unwrap_or(NonNull::dangling()))
}

/// Says of a message in a pack where its payload is: in its copy if it is small, else where it lies.
#[inline(always)]
pub(super) fn lies_in_a_pack(taken: &mut Taken, there: NonNull<u8>, length: u32, inside: NonNull<u8>) {
    if length <= MAX_COPIED {
        // SAFETY: INV-PACK-2: in a pack a payload begins at a multiple of eight, and the slot ends at one.
        unsafe { copy_words(there, length, &mut taken.inside.0) };
        taken.lies_at(inside);
    } else {
        prefetch(there, (length as usize).min(AHEAD));
        taken.lies_at(there);
    }
}

#[inline(always)]
pub(super) fn raw(
    link: &RxLink,
    pool: &mut Pool<Taken>,
    at: usize,
    d: &Descriptor,
    position: u64,
    epoch: Epoch,
    extra: Option<Box<Extra>>,
) -> RawMessage {
    let (mut place, inside) = piece(pool);
    // SAFETY: INV-BLOCK-1: it is this message's alone.
    let taken = unsafe { place.as_mut() };
    taken.length = d.length;
    if d.flags & FLAG_INLINE != 0 {
        link.consumer.copy_inline(position, d.length, &mut taken.inside.0);
        taken.lies_at(inside);
    } else {
        let segment = link.segments.get(usize::from(d.segment)).and_then(Option::as_ref);
        match segment.and_then(|s| s.locate(d.slot, d.offset, d.length)) {
            Some(there) if d.flags & FLAG_PACKED != 0 => lies_in_a_pack(taken, there, d.length, inside),
            Some(there) => {
                prefetch(there, (d.length as usize).min(AHEAD));
                taken.lies_at(there);
            }
            None => taken.length = 0,
        }
    }
    taken.sequence = d.sequence;
    taken.flags = d.flags;
    match link.opened {
        Some(pack) if d.flags & FLAG_PACKED != 0 => taken.comes_in(pack),
        _ => taken.comes_from(Origin::new(d, epoch, at, link.generation, link.trusted)),
    }
    if let Some(extra) = extra {
        // The list says how long the message is, and where it lies.
        if let Some(scattered) = &extra.scattered {
            taken.length = scattered.length;
            if let Some(only) = scattered.only() {
                taken.lies_at(only);
            }
        }
        taken.extra = Some(extra);
    }
    RawMessage(place)
}
