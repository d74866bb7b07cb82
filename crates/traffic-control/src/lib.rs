//! Control of traffic pipelines over INSANE channels.
//!
//! Purpose: what xApps, `insane tc` and later an E2 service model ask of the pipelines of a RAN, and how they are told what
//! these count. [`Control`] is the server, which a RAN runs beside its data path; [`Client`] is the other end. Messages are
//! protocol buffers (ADR 2); parameters of stages have the names and units of the pipeline file. Non-purpose: E2AP, and the
//! data path, which implements [`Bearers`]. Layer: above `insane` and `insane-traffic`.
//!
//! Channels, below a prefix of the server's choice, all in streams without a name:
//!
//! | channel | stream | carries |
//! | --- | --- | --- |
//! | `PREFIX/request` | reliable | [`messages::Request`] |
//! | `PREFIX/reply` | best effort | [`replies::Reply`], to all clients |
//! | `PREFIX/indication/N` | best effort | [`replies::Indication`] of the subscription that has place N |
//!
//! A request whose reply does not come is sent again under its number, and done once.
//!
//! ```no_run
//! use insane_traffic_control::{Client, ClientOptions, BearerId};
//!
//! # fn main() -> Result<(), insane_traffic_control::ClientError> {
//! let session = insane::Session::open("xapp")?;
//! let mut client = Client::open(&session, &ClientOptions::new("ranlab"))?;
//! let bearer = BearerId { rnti: 0x4601, drb: 1 };
//! let (pipeline, state) = client.show(bearer)?;
//! println!("{} queues, {} bytes in the RLC", pipeline.queues.len(), state.rlc.txbuf_occ_bytes);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod bearers;
mod client;
mod desk;
mod edit;
pub mod messages;
pub mod replies;
mod server;
mod stand_in;
mod subscription;
pub mod value;

pub use bearers::{BearerState, Bearers, Edit, Refusal};
pub use client::{Client, ClientError, ClientOptions, Timing};
pub use desk::{Desk, DeskCounts, LEASES_MS, MAX_LISTED, MAX_SUBSCRIPTIONS, PERIODS_US};
pub use edit::MAX_STEPS;
pub use messages::{Action, BearerId, Outcome, Stage, StageChange};
pub use replies::Rlc;
pub use server::{Control, ControlOptions};
pub use stand_in::StandIn;
pub use subscription::{Indicated, Subscription};

/// The version of the messages.
pub const VERSION: u32 = 1;
/// The largest message in bytes, of either side.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Nanoseconds of CLOCK_MONOTONIC, which all processes of a host have in common.
#[must_use]
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// A random number that is not 0.
fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without the system's numbers, the time and the process still tell two apart by all likelihood.
    if getrandom::fill(&mut bytes).is_err() {
        bytes = (now_ns() ^ (u64::from(std::process::id()) << 40)).to_le_bytes();
    }
    u64::from_le_bytes(bytes).max(1)
}
