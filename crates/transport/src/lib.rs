//! Connections between runtimes.
//!
//! Purpose: everything between a source's messages and frames on a datapath: connections that notice a dead peer, a restart
//! or a cut link; flows, reliable (each message once, in order, whatever the network does and whichever runtime dies) and
//! best-effort (loss counted exactly); acknowledgement, resending, credit, pacing and congestion. Non-purpose: memory,
//! sockets and clocks, which are the caller's; links and cursors of sinks, which are the runtime's and the clients'.
//!
//! Layer: sans-IO, above the wire format alone. Time is a [`Duration`](std::time::Duration) since any fixed moment.
//!
//! A [`Path`] is this host's side of everything with one other host. Its user
//! 1. gives it messages by token ([`Path::send`]) and frames that came ([`Path::receive`]),
//! 2. asks it for frames until there are none ([`Path::transmit`]) and sends them,
//! 3. takes its [`Event`]s, and
//! 4. comes back at [`Path::timeout`] at the latest.
//!
//! The path never blocks, allocates nothing per frame once it has grown, and is bounded by its [`Config`].
//!
//! **Exactly once.** A reliable message stays the sender's (its token is not released) until the receiving host's cursor
//! covers it. The receiver's user says the cursor when it accepts a flow and as the sinks take messages; a connection that
//! begins anew, for whatever reason, goes on after it. So whoever dies, what the sinks have decides what is sent again.
//!
//! **The accounting law.** Every message that [`Path::send`] took ends in exactly one [`End`], and
//! `accepted = waiting + under way + the sum of all ends` holds at any time ([`Counts`]).
//!
//! **Memory.** The path holds no payload. A sender's payloads are named by tokens; each comes back in one
//! [`Event::Released`], and may be written again once the frames that were built before are sent. A receiver's are named by
//! [`Lies`]: in the frame that came, until the events that are there now were taken; in a slot of the [`Store`]; or, if it waits for
//! those before it, in a copy of its own ([`Store::hold`]), so that nothing small keeps a large frame. Each comes back in one
//! [`Event::Message`] or [`Event::Discard`]. A flow holds no more bytes of such copies than its credit and two frames, the
//! store as many as it likes: what finds no room is not acknowledged (tests: a_small_message_that_waits_keeps_no_frame,
//! what_a_store_has_no_room_to_hold_comes_again).
//!
//! **Credit.** The receiver's user says when memory is free again ([`Path::consumed`]) and when the sinks have a message
//! ([`Path::advance`], the smallest cursor of all sinks of that source on the host). Without the first the sender stops, without
//! the second it keeps its slots. Sinks may have messages by an earlier flow or connection that this one has still to bring: what
//! their cursor covers is kept until the credit says that it came, for the receiver hands nothing on before it.
//!
//! **Death.** A path that hears nothing for [`Config::silence`] says [`Event::Lost`] and goes on saying hello; outgoing flows stay
//! and are opened again by themselves. To give a peer up for good, [`Path::abandon`] its flows and drop the path. A runtime
//! that starts anew makes new paths, opens a flow per source and peer with `first` the oldest message that is not covered by
//! that peer's cursor, and gives all of those messages in order.
//!
//! ```
//! use std::time::Duration;
//! use insane_transport::{Config, Event, FlowSpec, Lies, Outgoing, Path, Payloads, Store};
//!
//! struct Memory;
//! impl Payloads for Memory {
//!     fn copy(&mut self, _token: u64, _offset: u32, _len: u32, out: &mut Vec<u8>) { out.extend_from_slice(b"hello") }
//! }
//! impl Store for Memory {
//!     fn reserve(&mut self, _flow: u32, _bytes: u32, _urgent: bool) -> Option<u64> { None }
//!     fn fill(&mut self, _slot: u64, _at: u32, _bytes: &[u8]) {}
//!     fn hold(&mut self, _flow: u32, _bytes: &[u8]) -> Option<u64> { None }
//!     fn copy_out(&self, _slot: u64, _at: u32, _len: u32, _out: &mut Vec<u8>) {}
//! }
//!
//! let mut now = Duration::from_secs(1);
//! let mut ends = [Path::new(Config::default(), 1, now), Path::new(Config::default(), 2, now)];
//! let flow = ends[0].open(FlowSpec { domain: 1, epoch: 7, channel: 3, reliable: true, first: 1 });
//! ends[0].send(flow, Outgoing { token: 9, len: 5, sequence: 1, ..Outgoing::default() }).unwrap();
//!
//! let (mut arrived, mut released) = (None, None);
//! while released.is_none() {
//!     for (from, to) in [(0, 1), (1, 0)] {
//!         let mut frame = Vec::new();
//!         while ends[from].transmit(now, &mut frame, &mut Memory).is_some() {
//!             ends[to].receive(now, &frame, 0, &mut Memory).result.unwrap();
//!             while let Some(event) = ends[to].event() {
//!                 match event {
//!                     // The runtime knows the sinks of that source; they have nothing yet.
//!                     Event::Requested { open, .. } => ends[to].accept(open.flow, 0),
//!                     Event::Message { flow, message, lies: Lies::Frame { at, len, .. } } => {
//!                         arrived = Some(frame[at..at + len].to_vec());
//!                         ends[to].consumed(flow, 1, len as u64);
//!                         ends[to].advance(flow, message.sequence);
//!                     }
//!                     Event::Released { token, .. } => released = Some(token),
//!                     _ => {}
//!                 }
//!             }
//!             frame.clear();
//!         }
//!     }
//!     now += Duration::from_millis(1);
//! }
//! assert_eq!((arrived.as_deref(), released), (Some(&b"hello"[..]), Some(9)));
//! ```

#![forbid(unsafe_code)]

mod alone;
mod config;
mod congestion;
mod counts;
mod inflow;
mod landing;
mod lapses;
mod outflow;
mod path;
mod payloads;
mod receive;
mod rtt;
mod seen;
mod shares;
mod sizes;
// Thousands of frames each, and no unsafe code for Miri to look at.
#[cfg(all(test, not(miri)))]
mod tests;
mod transmit;
mod turns;

pub use config::{Config, FlowSpec, Outgoing};
pub use counts::{Counts, PathStats, Share};
pub use landing::{Landing, Landings, MOST_REGIONS, Region, Stray};
pub use path::{Alike, Built, End, Event, Gather, Lies, LostReason, Path, Receipt, Rejected, Row, SendError, Store};
pub use payloads::{Fit, Payloads, Rest, copy_alike, count_alike};
