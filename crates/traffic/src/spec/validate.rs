//! What is wrong with a pipeline or with a change of it.

use super::units::UnitError;
use super::{
    CodelSpec, ColourAction, Colours, LimitSpec, PacerSpec, PolicerSpec, QueueKind, QueueLimit, SchedulerSpec,
    ShaperSpec,
};
use crate::packet::QueueId;

/// Why a pipeline or a change is refused. The pipeline is as it was before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The text is not a pipeline.
    #[error("cannot read the pipeline: {text}")]
    Syntax {
        /// What the reader found, with its place.
        text: String,
    },
    /// The file is for another release.
    #[error("pipeline version {found} is not supported; this release reads version {}", super::SPEC_VERSION)]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// A value is out of range.
    #[error("{what} is {value}; {expected}")]
    Invalid {
        /// Which value.
        what: String,
        /// What it is.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// Nothing of this id exists.
    #[error("there is no {what} {id}")]
    Unknown {
        /// A filter, a queue, a policer of queue, a shaper of queue, a plug-in.
        what: &'static str,
        /// Its id.
        id: String,
    },
    /// The id is taken.
    #[error("{what} {id} exists already; modify it, or choose another id")]
    Exists {
        /// A filter, a queue, a policer of queue, a shaper of queue.
        what: &'static str,
        /// Its id.
        id: u32,
    },
    /// Something cannot be deleted because something else needs it.
    #[error("{what} is in use by {by}")]
    InUse {
        /// What cannot be deleted.
        what: String,
        /// Who needs it.
        by: String,
    },
    /// There are too many.
    #[error("{count} {what} are more than the {limit} that a pipeline may have")]
    TooMany {
        /// Filters or queues.
        what: &'static str,
        /// How many there would be.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A plug-in could not be made.
    #[error("plug-in `{name}`: {text}")]
    Plugin {
        /// Its name.
        name: String,
        /// What went wrong.
        text: String,
    },
    /// The pipeline changed since the plan was made.
    #[error("the plan was made for generation {planned} of the pipeline, which is at {current} now; plan again")]
    Stale {
        /// The generation that the plan was made for.
        planned: u64,
        /// The generation now.
        current: u64,
    },
}

impl SpecError {
    /// A stable number for interfaces without types.
    #[must_use]
    pub const fn number(&self) -> u32 {
        match self {
            Self::Syntax { .. } => 1,
            Self::Version { .. } => 2,
            Self::Invalid { .. } => 3,
            Self::Unknown { .. } => 4,
            Self::Exists { .. } => 5,
            Self::InUse { .. } => 6,
            Self::TooMany { .. } => 7,
            Self::Plugin { .. } => 8,
            Self::Stale { .. } => 9,
        }
    }

    pub(crate) fn invalid(what: impl Into<String>, value: impl ToString, expected: &'static str) -> Self {
        Self::Invalid { what: what.into(), value: value.to_string(), expected }
    }

    pub(crate) fn unknown_queue(id: QueueId) -> Self {
        Self::Unknown { what: "queue", id: id.to_string() }
    }
}

impl From<UnitError> for SpecError {
    fn from(error: UnitError) -> Self {
        Self::Syntax { text: error.to_string() }
    }
}

/// Refuses unless `ok`.
pub(super) fn require(ok: bool, what: &str, value: impl ToString, expected: &'static str) -> Result<(), SpecError> {
    if ok { Ok(()) } else { Err(SpecError::invalid(what, value, expected)) }
}

impl LimitSpec {
    pub(super) fn validate(&self) -> Result<(), SpecError> {
        require((1..=16 << 20).contains(&self.packets), "limit.packets", self.packets, "it must be 1 to 16777216")?;
        require((1..=64 << 30).contains(&self.bytes.0), "limit.bytes", self.bytes, "it must be 1 byte to 64 GiB")
    }
}

impl QueueLimit {
    fn validate(&self) -> Result<(), SpecError> {
        LimitSpec { packets: self.packets, bytes: self.bytes, ..LimitSpec::default() }.validate()
    }
}

impl CodelSpec {
    pub(super) fn validate(&self) -> Result<(), SpecError> {
        self.limit.validate()?;
        let nanos = self.interval.0.nanos();
        require(
            nanos > 0 && nanos <= 100_000_000_000,
            "interval",
            self.interval,
            "it must be above 0 and at most 100 s",
        )?;
        require(
            self.target.0.nanos() > 0 && self.target <= self.interval,
            "target",
            self.target,
            "it must be above 0 and at most the interval",
        )
    }
}

impl QueueKind {
    pub(super) fn validate(&self) -> Result<(), SpecError> {
        match self {
            Self::Fifo { limit } | Self::Plugin { limit, .. } => limit.validate(),
            Self::Codel(codel) => codel.validate(),
        }
    }
}

impl PolicerSpec {
    /// The queues that it may redirect to.
    pub(super) fn redirects(&self) -> impl Iterator<Item = QueueId> {
        let colours = match self {
            Self::Srtcm { colours, .. } | Self::Trtcm { colours, .. } => *colours,
            Self::Plugin { .. } => Colours::default(),
        };
        [colours.green, colours.yellow, colours.red].into_iter().filter_map(|action| match action {
            ColourAction::Redirect(queue) => Some(queue),
            _ => None,
        })
    }

    /// Turns redirections to a queue into drops.
    pub(super) fn forget(&mut self, queue: QueueId) {
        let (Self::Srtcm { colours, .. } | Self::Trtcm { colours, .. }) = self else { return };
        for action in [&mut colours.green, &mut colours.yellow, &mut colours.red] {
            if *action == ColourAction::Redirect(queue) {
                *action = ColourAction::Drop;
            }
        }
    }

    pub(super) fn validate(&self) -> Result<(), SpecError> {
        let rate = |what: &str, rate: super::Rate| {
            require(rate.0 <= 1_000_000_000_000, what, rate, "it must be at most 1000gbit")
        };
        let burst =
            |what: &str, size: super::Size| require(size.0 <= 16 << 30, what, size, "it must be at most 16 GiB");
        match self {
            Self::Srtcm { cir, cbs, ebs, .. } => {
                rate("policer.cir", *cir)?;
                burst("policer.cbs", *cbs)?;
                burst("policer.ebs", *ebs)?;
                require(cbs.0 + ebs.0 > 0, "policer.cbs", cbs, "it or ebs must be above 0 (RFC 2697 §2)")
            }
            Self::Trtcm { cir, cbs, pir, pbs, .. } => {
                rate("policer.cir", *cir)?;
                rate("policer.pir", *pir)?;
                burst("policer.cbs", *cbs)?;
                burst("policer.pbs", *pbs)?;
                require(pir >= cir, "policer.pir", pir, "it must be at least cir (RFC 2698 §2)")?;
                require(cbs.0 > 0 && pbs.0 > 0, "policer.cbs", cbs, "it and pbs must be above 0 (RFC 2698 §2)")
            }
            Self::Plugin { .. } => Ok(()),
        }
    }
}

impl ShaperSpec {
    pub(super) fn validate(&self) -> Result<(), SpecError> {
        let Self::TokenBucket { rate, burst } = self else { return Ok(()) };
        require((1..=1_000_000_000_000).contains(&rate.0), "shaper.rate", rate, "it must be 1bit to 1000gbit")?;
        require((1..=16 << 30).contains(&burst.0), "shaper.burst", burst, "it must be 1 byte to 16 GiB")
    }
}

impl SchedulerSpec {
    /// The queues that it names.
    pub(super) fn names(&self) -> Vec<QueueId> {
        Vec::new()
    }

    /// Takes a queue out of it.
    pub(super) fn forget(&mut self, _queue: QueueId) {}

    pub(super) fn validate(&self) -> Result<(), SpecError> {
        Ok(())
    }
}

impl PacerSpec {
    pub(super) fn validate(&self) -> Result<(), SpecError> {
        Ok(())
    }
}
