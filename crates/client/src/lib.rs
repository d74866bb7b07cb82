//! The client library of INSANE: name the data, state the QoS, and let the runtime pick the technology.
//!
//! Purpose: what applications link. A [`Session`] opens [`Stream`]s, streams open [`Source`]s and [`Sink`]s of channels, and
//! messages cross as [`Buffer`]s and [`Message`]s without a copy. Non-purpose: no policy and no network, which are the
//! runtime's. Layer: above `insane-shm` and `insane-wire`.
//!
//! ```no_run
//! use insane::{Qos, Session};
//!
//! # fn main() -> insane::Result<()> {
//! let session = Session::open("hello")?;
//! let stream = session.stream(Qos::default())?;
//! let sink = stream.sink("telemetry")?;
//! let source = stream.source("telemetry")?;
//! source.send(b"hello")?;
//! let message = sink.consume()?;
//! assert_eq!(message.to_vec(), b"hello");
//! # Ok(())
//! # }
//! ```
#![deny(clippy::multiple_unsafe_ops_per_block)]

mod batch;
mod blocks;
mod cells;
mod cursors;
pub mod error;
#[cfg(feature = "faults")]
pub mod faults;
mod fork;
mod grow;
mod log;
mod message;
pub mod options;
mod peers;
mod revive;
mod rx;
mod service;
mod session;
mod sink;
mod source;
mod spin;
mod stream;
mod tx;
mod waitset;

pub use error::{Code, Error, Result};
#[doc(hidden)]
pub use fork::count as forks;
pub use insane_shm::counters::{CellCounts, CellState, Count};
pub use insane_wire::id::{ChannelId, Epoch, SessionId, SinkId};
pub use insane_wire::qos::{Acceleration, EffectiveQos, Qos, Reliability, Resources, Timing};
pub use message::{CopyCounts, Piece, Pieces, RawMessage};
pub use options::{SinkOptions, SourceOptions, Wait, WhenFull};
#[doc(hidden)]
pub use service::connect_first;
pub use session::{Event, Session, SessionBuilder, find_socket};
pub use sink::{Callback, Message, Receive, Sink};
pub use source::{Buffer, RawBuffer, Source, Token};
pub use stream::{Channel, Stream};
pub use tx::Outcome;
pub use waitset::{WaitSet, wait_any};
