//! What the server controls: bearers with pipelines, behind a trait that a RAN implements.

use insane_traffic::spec::{Change, Leftover};
use insane_traffic::{PipelineSpec, PipelineStats, SpecError};
use serde::{Deserialize, Serialize};

use crate::messages::{BearerId, Outcome};
use crate::replies::Rlc;

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// What kind of refusal.
    pub outcome: Outcome,
    /// The reason, for people.
    pub reason: String,
}

impl Refusal {
    /// A refusal with its reason.
    pub fn new(outcome: Outcome, reason: impl Into<String>) -> Self {
        Self { outcome, reason: reason.into() }
    }

    /// There is no such bearer.
    #[must_use]
    pub fn no_bearer(bearer: BearerId) -> Self {
        Self::new(Outcome::UnknownBearer, format!("there is no {bearer}"))
    }
}

impl From<SpecError> for Refusal {
    fn from(error: SpecError) -> Self {
        let outcome = match &error {
            SpecError::Version { .. } => Outcome::Version,
            SpecError::Unknown { .. } => Outcome::Unknown,
            SpecError::Exists { .. } => Outcome::Exists,
            SpecError::InUse { .. } => Outcome::InUse,
            SpecError::TooMany { .. } => Outcome::TooMany,
            SpecError::Stale { .. } => Outcome::Stale,
            _ => Outcome::Invalid,
        };
        Self::new(outcome, error.to_string())
    }
}

/// What a bearer counts at one instant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BearerState {
    /// Whose.
    pub bearer: BearerId,
    /// The lab's own time in nanoseconds.
    pub time_ns: u64,
    /// The pipeline. Of many queues and filters not all are listed.
    pub pipeline: PipelineStats,
    /// How many queues and filters are not.
    pub left_out: u32,
    /// The downlink RLC.
    pub rlc: Rlc,
    /// The uplink RLC.
    pub uplink_rlc: Rlc,
}

/// What is to become of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    /// These changes, all or none.
    Change(Vec<Change>),
    /// This pipeline in its place; what becomes of the packets of queues that it does not have.
    Load(Box<PipelineSpec>, Leftover),
}

/// Bearers with pipelines. A call may wait for the data path for as long as one turn of it takes; whoever implements it sees
/// to it that the data path never waits for a call.
pub trait Bearers {
    /// The bearers that there are, at most 1024.
    ///
    /// # Errors
    /// The data path does not answer.
    fn list(&mut self) -> Result<Vec<BearerId>, Refusal>;

    /// A pipeline as it is.
    ///
    /// # Errors
    /// There is no such bearer, or the data path does not answer.
    fn pipeline(&mut self, bearer: BearerId) -> Result<PipelineSpec, Refusal>;

    /// Changes a pipeline, all or nothing, if its generation is the one given or none is. Returns the new generation.
    ///
    /// # Errors
    /// Why not; the pipeline is as it was.
    fn edit(&mut self, bearer: BearerId, edit: &Edit, generation: Option<u64>) -> Result<u64, Refusal>;

    /// The counts of those of these bearers that exist, of all without any, in the order of their names. Of each at most `most`
    /// queues and as many filters.
    ///
    /// # Errors
    /// The data path does not answer.
    fn states(&mut self, bearers: &[BearerId], most: usize) -> Result<Vec<BearerState>, Refusal>;
}
