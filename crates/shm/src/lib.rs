//! Segments, slots, links and wait sets: messages between processes without a copy (architecture §3).
//!
//! Purpose: the one primitive of INSANE. A *link* carries descriptors from one producer to one consumer and returned
//! slots back; a *segment* is sealed memory of one owner, cut into slots. Non-purpose: no protocol between processes, no
//! names, no policy; the client library and the runtime bring those.
//!
//! This crate is where lock-free code and `unsafe` live. Each module's head numbers its invariants (`INV-…`), every
//! `unsafe` cites one, every Release names its Acquire. Memory comes through [`memory::Backing`], so that loom and Miri
//! run the same code on the heap.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`memory`] | mapped and heap memory, sealing and its checks |
//! | [`ring`] | a ring of entries, each with its own sequence number |
//! | [`link`] | the producing and the consuming end |
//! | [`wait`] | sleeping and waking |
//! | [`pack`] | several small messages in one slot |
//! | [`scatter`] | one large message in several slots |
//! | [`slab`] | the owner's slots and who holds them |
//! | [`segment`] | segments: created, sealed, checked, mapped |
//! | [`counters`] | counts that survive the process that counts |
//! | [`biased`] | a lock that costs nothing to the thread that mostly takes it |
//! | [`socket`] | sequenced-packet sockets that carry descriptors |
//! | [`hogs`] | who takes an offered core for a time slice |
//! | [`doorbell`] | sockets that wake who waits for several things |
//! | [`steps`], [`mutate`] | hooks of test builds |
//!
//! ```
//! # #[cfg(not(loom))] {
//! use insane_shm::link::{Descriptor, pair_on_heap};
//!
//! let (mut producer, mut consumer) = pair_on_heap(8);
//! producer.reclaim(|_| ()).unwrap();
//! producer.push(&Descriptor { channel: 7, sequence: 1, ..Descriptor::default() }, b"hello");
//! let got = consumer.poll().unwrap().unwrap();
//! assert_eq!((got.descriptor.channel, got.inline_bytes()), (7, &b"hello"[..]));
//! # }
//! ```
#![deny(unsafe_op_in_unsafe_fn, clippy::multiple_unsafe_ops_per_block)]

pub mod biased;
pub mod counters;
pub mod doorbell;
pub mod error;
pub mod hogs;
pub mod link;
pub mod memory;
pub mod mutate;
pub mod pack;
pub mod ring;
pub mod scatter;
pub mod segment;
pub mod slab;
pub mod socket;
pub mod steps;
mod sync;
pub mod wait;

pub use error::ShmError;
