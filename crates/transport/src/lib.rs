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

#![forbid(unsafe_code)]

mod config;
mod congestion;
mod counts;
mod inflow;
mod keyed;
mod outflow;
mod path;
mod receive;
mod rtt;
mod seen;
mod transmit;

pub use config::{Config, FlowSpec, Outgoing};
pub use counts::{Counts, PathStats};
pub use path::{Built, End, Event, Landing, Lies, LostReason, Path, Payloads, Receipt, Rejected, SendError, Store};
