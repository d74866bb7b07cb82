//! Policers, schedulers, shapers and pacers of a pipeline file.

use serde::{Deserialize, Serialize};

use super::{Rate, Size};
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

/// The kinds of scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum SchedulerSpec {
    /// One packet per queue and turn.
    RoundRobin {},
    /// A scheduler from a shared object.
    Plugin {
        /// Its name.
        name: String,
        /// Text handed to it.
        #[serde(default)]
        options: String,
    },
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

/// The kinds of pacer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum PacerSpec {
    /// None: everything passes.
    None {},
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
