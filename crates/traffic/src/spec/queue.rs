//! The queues of a pipeline file.

use serde::{Deserialize, Serialize};

use super::{Duration, PolicerSpec, Rate, ShaperSpec, Size};
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

/// RED's parameters (Floyd and Jacobson 1993), named as tc does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedSpec {
    /// How much the queue may hold.
    pub limit: QueueLimit,
    /// Average below which nothing happens.
    pub min: Size,
    /// Average at which the probability is `probability`; about three times `min`.
    pub max: Size,
    /// Probability of an early drop or mark at `max`.
    pub probability: f64,
    /// Weight of the newest length in the average.
    pub weight: f64,
    /// Size of a small packet in bytes, for the decay of an idle queue's average.
    pub avpkt: u32,
    /// Rate at which an idle queue's average decays.
    pub bandwidth: Rate,
    /// Mark ECN-capable packets instead of dropping them early.
    pub ecn: bool,
    /// Between `max` and twice `max` let the probability rise to 1 instead of dropping everything.
    pub gentle: bool,
}

impl Default for RedSpec {
    fn default() -> Self {
        Self {
            limit: QueueLimit::default(),
            min: Size(30_000),
            max: Size(90_000),
            probability: 0.02,
            weight: 0.002,
            avpkt: 1_000,
            bandwidth: Rate(10_000_000),
            ecn: false,
            gentle: true,
        }
    }
}

/// PIE's parameters (RFC 8033), named as tc does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PieSpec {
    /// How much the queue may hold.
    pub limit: QueueLimit,
    /// `QDELAY_REF`: the delay aimed at.
    pub target: Duration,
    /// `T_UPDATE`: how often the probability is computed.
    pub tupdate: Duration,
    /// Gain of the deviation from the target, per second.
    pub alpha: f64,
    /// Gain of the trend, per second.
    pub beta: f64,
    /// `MAX_BURST`: how long a burst may last before anything is dropped.
    pub max_burst: Duration,
    /// `MEAN_PKTSIZE` in bytes; two of them are never dropped from.
    pub mean_packet: u32,
    /// Mark ECN-capable packets while the probability is below 10 %.
    pub ecn: bool,
    /// Spread drops evenly and bound the growth of the probability (RFC 8033 §5.4, §5.5).
    pub enhanced: bool,
}

impl Default for PieSpec {
    fn default() -> Self {
        Self {
            limit: QueueLimit::default(),
            target: Duration::millis(15),
            tupdate: Duration::millis(15),
            alpha: 0.125,
            beta: 1.25,
            max_burst: Duration::millis(150),
            mean_packet: 1_000,
            ecn: false,
            enhanced: false,
        }
    }
}

/// Which queue of a DualPI2 pair one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PairRole {
    /// The low-latency queue L.
    L4s = 0,
    /// The classic queue C.
    Classic = 1,
}

/// DualPI2's parameters (RFC 9332), named as tc does. Those of both queues of a pair are equal but for role and packet
/// limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dualpi2Spec {
    /// The name that both queues of a pair share.
    pub pair: String,
    /// Which of the two this is.
    pub role: PairRole,
    /// How much the queue may hold; the bytes are those of both together.
    #[serde(default)]
    pub limit: QueueLimit,
    /// The delay aimed at in the classic queue.
    #[serde(default = "dualpi2::target")]
    pub target: Duration,
    /// How often the base probability is computed.
    #[serde(default = "dualpi2::tupdate")]
    pub tupdate: Duration,
    /// Gain of the deviation from the target, per second.
    #[serde(default = "dualpi2::alpha")]
    pub alpha: f64,
    /// Gain of the trend, per second.
    #[serde(default = "dualpi2::beta")]
    pub beta: f64,
    /// k: how much stronger scalable flows are signalled to.
    #[serde(default = "dualpi2::coupling_factor")]
    pub coupling_factor: f64,
    /// Delay in the L queue from which its own ramp marks.
    #[serde(default = "dualpi2::ramp_min")]
    pub ramp_min: Duration,
    /// Delay beyond that at which it marks everything; 0 makes a step of it.
    #[serde(default = "dualpi2::ramp_range")]
    pub ramp_range: Duration,
    /// So many packets may stand in the L queue without being marked by the ramp.
    #[serde(default = "dualpi2::min_packets")]
    pub min_packets: u32,
    /// The largest packet in bytes; below two of them in both queues together nothing is signalled by probability.
    #[serde(default = "dualpi2::mtu")]
    pub mtu: u32,
}

/// The defaults of RFC 9332 and Linux.
mod dualpi2 {
    use super::Duration;

    pub(super) const fn target() -> Duration {
        Duration::millis(15)
    }
    pub(super) const fn tupdate() -> Duration {
        Duration::millis(16)
    }
    pub(super) const fn alpha() -> f64 {
        0.16
    }
    pub(super) const fn beta() -> f64 {
        3.2
    }
    pub(super) const fn coupling_factor() -> f64 {
        2.0
    }
    pub(super) const fn ramp_min() -> Duration {
        Duration::micros(800)
    }
    pub(super) const fn ramp_range() -> Duration {
        Duration::micros(400)
    }
    pub(super) const fn min_packets() -> u32 {
        1
    }
    pub(super) const fn mtu() -> u32 {
        1_514
    }
}

impl Dualpi2Spec {
    /// A queue with the defaults of RFC 9332 and Linux.
    #[must_use]
    pub fn new(pair: &str, role: PairRole) -> Self {
        Self {
            pair: pair.to_owned(),
            role,
            limit: QueueLimit::default(),
            target: dualpi2::target(),
            tupdate: dualpi2::tupdate(),
            alpha: dualpi2::alpha(),
            beta: dualpi2::beta(),
            coupling_factor: dualpi2::coupling_factor(),
            ramp_min: dualpi2::ramp_min(),
            ramp_range: dualpi2::ramp_range(),
            min_packets: dualpi2::min_packets(),
            mtu: dualpi2::mtu(),
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
    /// RED.
    Red(RedSpec),
    /// PIE.
    Pie(PieSpec),
    /// One of the two coupled queues of DualPI2.
    Dualpi2(Dualpi2Spec),
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
            Self::Red(_) => "red",
            Self::Pie(_) => "pie",
            Self::Dualpi2(_) => "dualpi2",
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
