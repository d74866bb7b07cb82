//! Policers, schedulers, shapers and pacers of a pipeline file.

use serde::{Deserialize, Serialize};

use super::{Duration, Rate, Size};
use crate::packet::QueueId;

/// What a policer does with a packet of one colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ColourAction {
    /// The packet goes on to its queue.
    Pass,
    /// It is dropped.
    Drop,
    /// It goes to this queue instead.
    Redirect(QueueId),
}

/// What a policer does with each colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Colours {
    /// Within the committed rate and burst.
    pub green: ColourAction,
    /// Between committed and excess or peak.
    pub yellow: ColourAction,
    /// Beyond both.
    pub red: ColourAction,
}

impl Default for Colours {
    fn default() -> Self {
        Self { green: ColourAction::Pass, yellow: ColourAction::Pass, red: ColourAction::Drop }
    }
}

/// The kinds of policer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum PolicerSpec {
    /// The single-rate three-colour meter (RFC 2697).
    Srtcm {
        /// Committed information rate.
        cir: Rate,
        /// Committed burst size.
        cbs: Size,
        /// Excess burst size; nothing is ever yellow without one.
        #[serde(default)]
        ebs: Size,
        /// What happens to each colour.
        #[serde(default)]
        colours: Colours,
        /// Take the colour that the DSCP's drop precedence gives (RFC 2597) as the packet's colour so far.
        #[serde(default)]
        colour_aware: bool,
    },
    /// The two-rate three-colour meter (RFC 2698).
    Trtcm {
        /// Committed information rate.
        cir: Rate,
        /// Committed burst size.
        cbs: Size,
        /// Peak information rate, at least the committed one.
        pir: Rate,
        /// Peak burst size.
        pbs: Size,
        /// What happens to each colour.
        #[serde(default)]
        colours: Colours,
        /// Take the colour that the DSCP's drop precedence gives (RFC 2597) as the packet's colour so far.
        #[serde(default)]
        colour_aware: bool,
    },
    /// A policer from a shared object.
    Plugin {
        /// Its name.
        name: String,
        /// Text handed to it.
        #[serde(default)]
        options: String,
    },
}

/// A queue's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightSpec {
    /// Which queue.
    pub queue: QueueId,
    /// How many times the share of a queue of weight 1 it gets.
    pub weight: u32,
}

/// What keeps conditional priority from starving the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Protection {
    /// The low queues get at least this share of the bytes while they have any.
    Share {
        /// 1 to 50.
        percent: u8,
    },
    /// A low packet goes before a high one that came this much later, or more (RFC 9332: time-shifted FIFO).
    TimeShift {
        /// How much.
        shift: Duration,
    },
}

impl Default for Protection {
    fn default() -> Self {
        Self::Share { percent: 10 }
    }
}

/// The kinds of scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum SchedulerSpec {
    /// One packet per queue and turn.
    RoundRobin {},
    /// Deficit round robin by bytes.
    Drr {
        /// Bytes per turn at weight 1: 256 or more, best the largest packet.
        #[serde(default = "quantum")]
        quantum: u32,
        /// Weights of queues; 1 for those not named.
        #[serde(default)]
        weights: Vec<WeightSpec>,
    },
    /// Strict priority.
    Strict {
        /// Levels of queues, first come first; queues not named come last.
        order: Vec<Vec<QueueId>>,
    },
    /// Priority within bounds, as DualPI2's coupled queues need it.
    Conditional {
        /// The queues with priority.
        high: Vec<QueueId>,
        /// What protects the others.
        #[serde(default)]
        protection: Protection,
    },
    /// Weighted fair queueing by bytes.
    Weighted {
        /// Weights of queues; 1 for those not named.
        #[serde(default)]
        weights: Vec<WeightSpec>,
    },
    /// The new and old flows of FQ-CoDel (RFC 8290).
    FqCodel {
        /// Bytes per turn: 256 or more, best the largest packet.
        #[serde(default = "quantum")]
        quantum: u32,
    },
    /// A scheduler from a shared object.
    Plugin {
        /// Its name.
        name: String,
        /// Text handed to it.
        #[serde(default)]
        options: String,
    },
}

const fn quantum() -> u32 {
    1_514
}

impl Default for SchedulerSpec {
    fn default() -> Self {
        Self::RoundRobin {}
    }
}

/// The kinds of shaper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ShaperSpec {
    /// A token bucket.
    TokenBucket {
        /// The rate that the queue may send at.
        rate: Rate,
        /// How much it may send at once after a pause.
        burst: Size,
    },
    /// A shaper from a shared object.
    Plugin {
        /// Its name.
        name: String,
        /// Text handed to it.
        #[serde(default)]
        options: String,
    },
}

/// DQL's parameters, named as in Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DqlSpec {
    /// The limit is at least this; two of the largest packets or more.
    pub min_limit: Size,
    /// The limit is at most this.
    pub max_limit: Size,
    /// How long slack must last before the limit is lowered.
    pub hold_time: Duration,
    /// After so long without a report the buffer is taken for empty.
    pub stale: Duration,
}

impl Default for DqlSpec {
    fn default() -> Self {
        Self {
            min_limit: Size(3_028),
            max_limit: Size(4 << 20),
            hold_time: Duration::millis(20),
            stale: Duration::millis(20),
        }
    }
}

/// The 5G-BDP pacer's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BdpSpec {
    /// How long the buffer must last: the reports' period, the longest gap between downlink slots, and jitter.
    pub horizon: Duration,
    /// Over how long the rate is measured: whole periods of the TDD pattern.
    pub window: Duration,
    /// Weight of the newest measurement when it is below the estimate; above, it counts at once.
    pub gain: f64,
    /// The largest packet in bytes.
    pub mtu: u32,
    /// The buffer may always hold this.
    pub min: Size,
    /// The buffer may never hold more than this.
    pub max: Size,
    /// After so long without a report the buffer is taken for empty.
    pub stale: Duration,
}

impl Default for BdpSpec {
    fn default() -> Self {
        Self {
            horizon: Duration::millis(3),
            window: Duration::millis(10),
            gain: 0.25,
            mtu: 1_500,
            min: Size(9_000),
            max: Size(4 << 20),
            stale: Duration::millis(20),
        }
    }
}

/// The kinds of pacer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum PacerSpec {
    /// None: everything passes.
    None {},
    /// Dynamic queue limits.
    Dql(DqlSpec),
    /// 5G-BDP.
    #[serde(rename = "5g-bdp")]
    Bdp(BdpSpec),
    /// A pacer from a shared object.
    Plugin {
        /// Its name.
        name: String,
        /// Text handed to it.
        #[serde(default)]
        options: String,
    },
}

impl Default for PacerSpec {
    fn default() -> Self {
        Self::None {}
    }
}
