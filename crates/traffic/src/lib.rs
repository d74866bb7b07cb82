#![forbid(unsafe_code)]
//! Traffic control: a pipeline of classifier, policer, queue, scheduler, shaper and pacer, recomposed while packets flow.
//!
//! One library for two places: the RAN data plane between SDAP and PDCP (TC-RAN), where packets are bytes, and the
//! runtime's scheduler between links and datapaths, where they are slot descriptors. It is sans-IO: the caller hands
//! packets in, asks for them, and says what time it is. It never reads a clock, sleeps, locks or does a system call.
//!
//! It does not: parse or change payloads (but for the ECN field and the names in DNS and TLS that classifiers may use),
//! talk E2, load shared objects (`insane-traffic-plugin` does), or speak C (`insane-traffic-capi` does).
//!
//! Layer: below the runtime, beside `insane-wire`; depends on nothing of the project.
//!
//! Main types: [`Pipeline`], [`PipelineSpec`] (a pipeline as a file), [`Change`] (what can be done to a live one),
//! [`Packet`] (what a packet must offer), [`PassThrough`] (no pipeline at all, for free).
//!
//! ```
//! use insane_traffic::{Dequeued, Pipeline, PipelineSpec, Time};
//!
//! let spec = PipelineSpec::from_toml(
//!     r#"
//!     version = 1
//!     [[filter]]
//!     id = 1
//!     match = { dst_port = "5201-5204" }
//!     to = { type = "queue", queue = 1 }
//!     [[queue]]
//!     id = 0
//!     [[queue]]
//!     id = 1
//!     kind = { type = "codel", target = "5ms" }
//!     shaper = { type = "token-bucket", rate = "15mbit", burst = "6k" }
//!     "#,
//! )?;
//! let mut pipeline = Pipeline::new(&spec, 42)?;
//! pipeline.enqueue(Time::ZERO, vec![0_u8; 100], &mut ()).ok();
//! assert!(matches!(pipeline.dequeue(Time::from_micros(1), &mut ()), Dequeued::Packet(..)));
//! # Ok::<(), insane_traffic::SpecError>(())
//! ```

pub mod classify;
pub mod pace;
pub mod parse;
pub mod police;
pub mod queue;
pub mod schedule;
pub mod shape;
pub mod spec;
pub mod stats;

mod packet;
mod passthrough;
mod pipeline;
mod random;
mod table;
mod time;

pub use pace::RlcStatus;
pub use packet::{DropReason, Dropped, Drops, Ecn, Meta, Outlet, Packet, QueueId, Queued};
pub use passthrough::{Discipline, PassThrough};
pub use pipeline::{Dequeued, Draft, Pipeline, Plan, PluginError, Plugins};
pub use random::{Rng, keyed_hash};
pub use spec::{Change, PipelineSpec, SpecError};
pub use stats::PipelineStats;
pub use time::{Span, Time};
