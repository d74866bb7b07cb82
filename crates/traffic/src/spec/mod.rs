//! A pipeline as a file: every stage with its parameters, and every change that can be made to a live one.
//!
//! The same types are what control messages carry. Unknown keys are errors.

use serde::{Deserialize, Serialize};

use crate::packet::QueueId;
use crate::parse::PduFormat;

mod change;
mod filter;
mod layout;
mod presets;
mod queue;
mod sets;
mod stages;
mod units;
mod validate;

pub use change::{Change, Leftover, References};
pub use filter::{FilterSpec, FragmentMatch, Layer, MatchSpec, QfiSpec, RawSpec, TargetSpec};
pub(crate) use layout::{Effect, Layout};
pub use presets::{PRESETS, Preset};
pub use queue::{CodelSpec, Dualpi2Spec, PairRole, PieSpec, QueueKind, QueueLimit, QueueSpec, RedSpec};
pub use sets::{AddressSet, NumberSet};
pub use stages::{
    BdpSpec, ColourAction, Colours, DqlSpec, PacerSpec, PolicerSpec, Protection, SchedulerSpec, ShaperSpec, WeightSpec,
};
pub use units::{Duration, Rate, Size, UnitError};
pub use validate::SpecError;

/// The version of the file format that this release reads and writes.
pub const SPEC_VERSION: u32 = 1;
/// Queue ids are below this.
pub const MAX_QUEUES: u32 = 65_536;
/// How many filters a pipeline may have.
pub const MAX_FILTERS: usize = 4_096;

/// What happens when the pipeline as a whole is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overflow {
    /// The arriving packet is dropped.
    #[default]
    Tail,
    /// The oldest packets of the queue with the most bytes are dropped: half of them, at most 64 (RFC 8290 §4.1.3).
    Fattest,
}

/// How much a pipeline may hold over all its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitSpec {
    /// Packets.
    pub packets: u32,
    /// Bytes.
    pub bytes: Size,
    /// What is dropped when there is one more.
    pub overflow: Overflow,
}

impl Default for LimitSpec {
    fn default() -> Self {
        Self { packets: 10_240, bytes: Size(32 << 20), overflow: Overflow::Tail }
    }
}

/// A whole pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipelineSpec {
    /// [`SPEC_VERSION`].
    pub version: u32,
    /// How packets are read.
    #[serde(default)]
    pub pdu: PduFormat,
    /// How much the pipeline may hold.
    #[serde(default)]
    pub limit: LimitSpec,
    /// Stage 1: the filters of the classifier.
    #[serde(default, rename = "filter", skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<FilterSpec>,
    /// Stages 2, 3 and 5: the queues, each with its policer and shaper. Queue 0 must be among them.
    #[serde(rename = "queue")]
    pub queues: Vec<QueueSpec>,
    /// Stage 4.
    #[serde(default)]
    pub scheduler: SchedulerSpec,
    /// Stage 6.
    #[serde(default)]
    pub pacer: PacerSpec,
}

impl Default for PipelineSpec {
    /// One FIFO, round robin over it, no pacer.
    fn default() -> Self {
        Self {
            version: SPEC_VERSION,
            pdu: PduFormat::default(),
            limit: LimitSpec::default(),
            filters: Vec::new(),
            queues: vec![QueueSpec::new(QueueId::DEFAULT, QueueKind::default())],
            scheduler: SchedulerSpec::default(),
            pacer: PacerSpec::default(),
        }
    }
}

impl PipelineSpec {
    /// Reads a pipeline file and checks it.
    ///
    /// # Errors
    /// The line that cannot be read, or what does not fit together.
    pub fn from_toml(text: &str) -> Result<Self, SpecError> {
        let spec: Self = toml::from_str(text).map_err(|e| SpecError::Syntax { text: e.to_string() })?;
        spec.check()?;
        Ok(spec)
    }

    /// Checks that all parts are in range and name only what exists. Whether plug-ins are there is not known before a
    /// pipeline is made.
    ///
    /// # Errors
    /// What does not fit together.
    pub fn check(&self) -> Result<(), SpecError> {
        Layout::new(self).map(|_| ())
    }

    /// The pipeline as a file.
    ///
    /// # Errors
    /// A value that TOML cannot hold; none that [`Self::from_toml`] accepts has one.
    pub fn to_toml(&self) -> Result<String, SpecError> {
        toml::to_string(self).map_err(|e| SpecError::Syntax { text: e.to_string() })
    }
}
