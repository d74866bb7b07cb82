//! The link: the only way a slot crosses a process border (architecture §3). One producer, one consumer, two rings.
//!
//! ```text
//!  producer's memory: delivery ring, wake, sleep       consumer's memory: return ring, wake, sleep
//!  (the consumer maps it read-only)                    (the producer maps it read-only)
//! ```
//!
//! Invariants:
//! - `INV-LINK-1` Every descriptor uses one *credit*; a link has as many credits as its rings have entries. A credit comes
//!   back when the consumer returns the slot, or, for messages inside descriptors, as a count. So at most `entries`
//!   descriptors are out, neither ring can overflow, and releasing never fails.
//! - `INV-LINK-2` With at most `entries` out, the entry about to be written was read by the consumer: of the first
//!   `tail + 1 - entries` descriptors at least one with an index of `tail - entries` or more has come back, and the consumer
//!   reads in order (`INV-RING-4`).
//! - `INV-LINK-3` What a link holds is known in the producer's private memory only. A return is taken as often as the link
//!   was given the slot, never more; a count never above the credits that are out. Anything else breaks this link alone.
//! - `INV-LINK-4` The consumer copies each word of a descriptor once and checks the copy: segment, slot, offset and length
//!   lie in what it has mapped; a message inside the descriptor has at most [`INLINE_BYTES`] bytes; the messages in one
//!   slot are checked one by one (`INV-PACK-2`).
//! - `INV-LINK-5` After a consumer's death the producer still knows, from its own delivery ring and the consumer's counts,
//!   which messages were not finished ([`Producer::recent`]).
//! - `INV-LINK-6` A consumer unmaps a segment only while it has nothing of it ([`Consumer::remove_segment`]). An honest
//!   producer knows when that is: all that it gave has come back. Another one breaks its own link.

mod consumer;
mod descriptor;
mod producer;

pub use consumer::{Consumer, Delivery, Small};
pub use descriptor::{Broken, Descriptor, Fate, Returned, later_join};
pub use descriptor::{
    FLAG_COPIED, FLAG_INLINE, FLAG_LAUNCH_TIME, FLAG_MORE, FLAG_PACKED, FLAG_SCATTERED, FLAG_TIMESTAMP, FLAG_WIDE,
};
pub use producer::Producer;

use crate::ring::Block;

/// The words of an entry of the delivery ring: eight of descriptor, eight of payload.
pub const DELIVERY_WORDS: usize = 16;

/// The words of an entry of the return ring.
pub const RETURN_WORDS: usize = 2;

/// The longest message that travels inside its descriptor, in bytes.
pub const INLINE_BYTES: usize = 64;

const DESCRIPTOR_WORDS: usize = 8;

/// The producer's control memory.
pub type DeliveryBlock = Block<DELIVERY_WORDS>;

/// The consumer's control memory.
pub type ReturnBlock = Block<RETURN_WORDS>;

/// Both ends of a link on the heap of this process, for tests, models and fuzzing.
///
/// # Panics
/// When `entries` is no valid ring size.
#[cfg(not(loom))]
#[must_use]
pub fn pair_on_heap(entries: u32) -> (Producer, Consumer) {
    use crate::memory::Heap;
    use std::sync::Arc;
    let delivery = Arc::new(Heap::new(DeliveryBlock::bytes(entries).expect("a valid ring size")));
    let returns = Arc::new(Heap::new(ReturnBlock::bytes(entries).expect("a valid ring size")));
    let producer = Producer::new(
        DeliveryBlock::create(delivery.clone(), entries).expect("fits"),
        ReturnBlock::create(returns.clone(), entries).expect("fits"),
    );
    let consumer = Consumer::new(
        ReturnBlock::open(returns, entries).expect("was just made"),
        DeliveryBlock::open(delivery, entries).expect("was just made"),
    );
    (producer, consumer)
}

/// Both ends of a link in a model.
#[cfg(loom)]
#[must_use]
pub fn pair_on_heap(entries: u32) -> (Producer, Consumer) {
    let (delivery, delivery_peer) = DeliveryBlock::modelled(entries);
    let (returns, returns_peer) = ReturnBlock::modelled(entries);
    (Producer::new(delivery, returns_peer), Consumer::new(returns, delivery_peer))
}
