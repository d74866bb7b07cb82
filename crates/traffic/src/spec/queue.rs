//! The queues of a pipeline file.

use serde::{Deserialize, Serialize};

use super::{Duration, PolicerSpec, ShaperSpec, Size};
use crate::packet::QueueId;

/// How much one queue may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueLimit {
    /// Packets.
    pub packets: u32,
    /// Bytes.
    pub bytes: Size,
}

impl Default for QueueLimit {
    fn default() -> Self {
        Self { packets: 10_240, bytes: Size(32 << 20) }
    }
}

/// CoDel's parameters (RFC 8289), named as tc does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CodelSpec {
    /// How much the queue may hold.
    pub limit: QueueLimit,
    /// Acceptable standing delay.
    pub target: Duration,
    /// How long the delay must stay above it; about the worst round-trip time.
    pub interval: Duration,
    /// Backlog up to which nothing is dropped, in bytes: the largest packet.
    pub mtu: u32,
    /// Mark ECN-capable packets instead of dropping them.
    pub ecn: bool,
    /// Mark every packet that stood longer than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ce_threshold: Option<Duration>,
}

impl Default for CodelSpec {
    fn default() -> Self {
        Self {
            limit: QueueLimit::default(),
            target: Duration::millis(5),
            interval: Duration::millis(100),
            mtu: 1514,
            ecn: false,
            ce_threshold: None,
        }
    }
}

/// The kinds of queue and their parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum QueueKind {
    /// First in, first out.
    Fifo {
        /// How much it may hold.
        #[serde(default)]
        limit: QueueLimit,
    },
    /// CoDel, with ECN if asked.
    Codel(CodelSpec),
    /// A queue from a shared object.
    Plugin {
        /// Its name.
        name: String,
        /// Text handed to it.
        #[serde(default)]
        options: String,
        /// How much it may hold; kept by the pipeline, not by the plug-in.
        #[serde(default)]
        limit: QueueLimit,
    },
}

impl Default for QueueKind {
    fn default() -> Self {
        Self::Fifo { limit: QueueLimit::default() }
    }
}

impl QueueKind {
    /// The name of the kind, as in the file.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Fifo { .. } => "fifo",
            Self::Codel(_) => "codel",
            Self::Plugin { .. } => "plugin",
        }
    }
}

/// A queue, or several of one kind with consecutive ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueSpec {
    /// The (first) queue's id.
    pub id: QueueId,
    /// How many such queues there are.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u32,
    /// What kind it is.
    #[serde(default)]
    pub kind: QueueKind,
    /// Stage 2: its policer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policer: Option<PolicerSpec>,
    /// Stage 5: its shaper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaper: Option<ShaperSpec>,
}

const fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
const fn is_one(count: &u32) -> bool {
    *count == 1
}

impl QueueSpec {
    /// A queue without policer and shaper.
    #[must_use]
    pub const fn new(id: QueueId, kind: QueueKind) -> Self {
        Self { id, count: 1, kind, policer: None, shaper: None }
    }
}
