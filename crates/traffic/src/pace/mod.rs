//! Stage 6, the pacer: how much the next buffer down the path may hold, over all queues together.

use crate::spec::PacerSpec;
use crate::stats::StatMap;
use crate::time::Time;

mod bdp;
mod dql;

pub use bdp::Bdp;
pub use dql::Dql;

/// The state of the buffer that the pipeline feeds, as the RLC reports it or as F1-U's downlink delivery status (TS 38.425)
/// carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RlcStatus {
    /// Bytes in the buffer.
    pub bytes: u64,
    /// Packets in the buffer, if known.
    #[serde(default)]
    pub packets: Option<u64>,
    /// The buffer size that the other side asks for, in bytes (TS 38.425: desired buffer size).
    #[serde(default)]
    pub desired_bytes: Option<u64>,
    /// The rate that the other side asks for, in bit/s (TS 38.425: desired data rate).
    #[serde(default)]
    pub desired_rate: Option<u64>,
}

/// Whether the next packet may leave the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Now.
    Pass,
    /// After the next report, or at this instant if no report comes.
    Wait(Time),
}

/// Keeps the next buffer full enough and no fuller.
pub trait Pacer: Send {
    /// Whether a packet of `size` bytes may leave. Asking changes nothing.
    fn admit(&mut self, now: Time, size: u32) -> Pace;

    /// A packet of `size` bytes has left the pipeline.
    fn sent(&mut self, now: Time, size: u32);

    /// The state of the buffer.
    fn report(&mut self, _now: Time, _status: &RlcStatus) {}

    /// Takes new parameters and keeps its state; false if they are for another kind of pacer.
    fn modify(&mut self, _spec: &PacerSpec) -> bool {
        false
    }

    /// Adds its statistics.
    fn stats(&self, _out: &mut StatMap) {}
}

/// No pacer: everything passes.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPacer;

impl Pacer for NoPacer {
    fn admit(&mut self, _now: Time, _size: u32) -> Pace {
        Pace::Pass
    }
    fn sent(&mut self, _now: Time, _size: u32) {}
    fn modify(&mut self, spec: &PacerSpec) -> bool {
        matches!(spec, PacerSpec::None {})
    }
}
