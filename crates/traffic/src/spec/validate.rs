//! What is wrong with a pipeline or with a change of it.

use super::units::UnitError;
use super::{
    CodelSpec, ColourAction, Colours, Dualpi2Spec, LimitSpec, PacerSpec, PieSpec, PolicerSpec, Protection, QueueKind,
    QueueLimit, RedSpec, SchedulerSpec, ShaperSpec,
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
    #[error("{count} {what} are more than the {limit} that are allowed")]
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

/// How long the text for a plug-in may be, in bytes.
const MAX_OPTIONS: usize = 65_536;

/// Whether a name and a text can be those of a plug-in.
pub(super) fn plugin(name: &str, options: &str) -> Result<(), SpecError> {
    let can_be = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let expected = "it must be 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-'";
    let shown = || name.chars().take(80).collect::<String>().escape_debug().to_string();
    require((1..=64).contains(&name.len()) && name.bytes().all(can_be), "the plug-in's name", shown(), expected)?;
    let expected = "it must be at most 65536 bytes without a NUL";
    let size = format!("{} bytes long", options.len());
    require(options.len() <= MAX_OPTIONS && !options.contains('\0'), "the text for the plug-in", size, expected)
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

/// A probability or a share.
fn fraction(what: &str, value: f64) -> Result<(), SpecError> {
    require(value > 0.0 && value <= 1.0, what, value, "it must be above 0 and at most 1")
}

/// The gain of a controller.
fn gain(what: &str, value: f64) -> Result<(), SpecError> {
    require((0.0..=1_000.0).contains(&value), what, value, "it must be 0 to 1000")
}

/// A time that something happens every so often, or that is aimed at.
fn period(what: &str, value: super::Duration) -> Result<(), SpecError> {
    let range = 10_000..=100_000_000_000;
    require(range.contains(&value.0.nanos()), what, value, "it must be 10 us to 100 s")
}

impl RedSpec {
    fn validate(&self) -> Result<(), SpecError> {
        self.limit.validate()?;
        let in_order = self.min.0 > 0 && self.min < self.max && self.max.0 <= 1 << 40;
        require(in_order, "red.max", self.max, "min must be above 0 and below max, max at most 1 TiB")?;
        fraction("red.probability", self.probability)?;
        fraction("red.weight", self.weight)?;
        require(self.avpkt > 0, "red.avpkt", self.avpkt, "it must be above 0")?;
        require(self.bandwidth.0 > 0, "red.bandwidth", self.bandwidth, "it must be above 0")
    }
}

impl PieSpec {
    fn validate(&self) -> Result<(), SpecError> {
        self.limit.validate()?;
        period("pie.target", self.target)?;
        period("pie.tupdate", self.tupdate)?;
        gain("pie.alpha", self.alpha)?;
        gain("pie.beta", self.beta)
    }
}

impl Dualpi2Spec {
    fn validate(&self) -> Result<(), SpecError> {
        self.limit.validate()?;
        period("dualpi2.target", self.target)?;
        period("dualpi2.tupdate", self.tupdate)?;
        gain("dualpi2.alpha", self.alpha)?;
        gain("dualpi2.beta", self.beta)?;
        let factor = self.coupling_factor;
        require((0.1..=100.0).contains(&factor), "dualpi2.coupling_factor", factor, "it must be 0.1 to 100")
    }

    /// Whether both have the same parameters, as the queues of a pair must.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        let alike =
            Self { role: self.role, limit: QueueLimit { packets: self.limit.packets, ..other.limit }, ..other.clone() };
        *self == alike
    }
}

impl QueueKind {
    pub(super) fn validate(&self) -> Result<(), SpecError> {
        match self {
            Self::Fifo { limit } => limit.validate(),
            Self::Plugin { name, options, limit } => plugin(name, options).and_then(|()| limit.validate()),
            Self::Codel(codel) => codel.validate(),
            Self::Red(red) => red.validate(),
            Self::Pie(pie) => pie.validate(),
            Self::Dualpi2(dualpi2) => dualpi2.validate(),
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
            Self::Plugin { name, options } => plugin(name, options),
        }
    }
}

impl ShaperSpec {
    pub(super) fn validate(&self) -> Result<(), SpecError> {
        let (rate, burst) = match self {
            Self::TokenBucket { rate, burst } => (rate, burst),
            Self::Plugin { name, options } => return plugin(name, options),
        };
        require((1..=1_000_000_000_000).contains(&rate.0), "shaper.rate", rate, "it must be 1bit to 1000gbit")?;
        require((1..=16 << 30).contains(&burst.0), "shaper.burst", burst, "it must be 1 byte to 16 GiB")
    }
}

impl SchedulerSpec {
    /// The queues that it names.
    pub(super) fn names(&self) -> Vec<QueueId> {
        match self {
            Self::RoundRobin {} | Self::FqCodel { .. } | Self::Plugin { .. } => Vec::new(),
            Self::Drr { weights, .. } | Self::Weighted { weights } => weights.iter().map(|w| w.queue).collect(),
            Self::Strict { order } => order.iter().flatten().copied().collect(),
            Self::Conditional { high, .. } => high.clone(),
        }
    }

    /// Takes a queue out of it.
    pub(super) fn forget(&mut self, queue: QueueId) {
        match self {
            Self::RoundRobin {} | Self::FqCodel { .. } | Self::Plugin { .. } => {}
            Self::Drr { weights, .. } | Self::Weighted { weights } => weights.retain(|w| w.queue != queue),
            Self::Strict { order } => {
                order.iter_mut().for_each(|level| level.retain(|&q| q != queue));
                order.retain(|level| !level.is_empty());
            }
            Self::Conditional { high, .. } => high.retain(|&q| q != queue),
        }
    }

    pub(super) fn validate(&self) -> Result<(), SpecError> {
        let mut names = self.names();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        require(names.len() == count, "scheduler", "naming a queue twice", "each may be named once")?;
        match self {
            Self::Drr { quantum, .. } | Self::FqCodel { quantum } => require(
                (256..=16 << 20).contains(quantum),
                "scheduler.quantum",
                quantum,
                "it must be 256 to 16777216 bytes",
            )?,
            Self::Strict { order } => require(
                order.len() < crate::schedule::MAX_LEVELS,
                "scheduler.order",
                format!("{} levels", order.len()),
                "it may have at most 63, the last is for queues that are not named",
            )?,
            Self::Conditional { protection: Protection::Share { percent }, .. } => {
                require(
                    (1..=50).contains(percent),
                    "scheduler.protection.share.percent",
                    percent,
                    "it must be 1 to 50",
                )?;
            }
            Self::Plugin { name, options } => plugin(name, options)?,
            _ => {}
        }
        let (Self::Drr { weights, .. } | Self::Weighted { weights }) = self else { return Ok(()) };
        let wrong = weights.iter().find(|w| !(1..=10_000).contains(&w.weight));
        wrong.map_or(Ok(()), |w| {
            Err(SpecError::invalid(format!("the weight of queue {}", w.queue), w.weight, "it must be 1 to 10000"))
        })
    }
}

impl PacerSpec {
    pub(super) fn validate(&self) -> Result<(), SpecError> {
        match self {
            Self::None {} => Ok(()),
            Self::Plugin { name, options } => plugin(name, options),
            Self::Dql(dql) => {
                let in_order = dql.min_limit.0 > 0 && dql.min_limit <= dql.max_limit && dql.max_limit.0 <= 1 << 40;
                let expected = "min_limit must be above 0 and at most max_limit, that at most 1 TiB";
                require(in_order, "pacer.max_limit", dql.max_limit, expected)?;
                period("pacer.hold_time", dql.hold_time)?;
                period("pacer.stale", dql.stale)
            }
            Self::Bdp(bdp) => {
                let in_order = bdp.min.0 >= u64::from(bdp.mtu) && bdp.min <= bdp.max && bdp.max.0 <= 1 << 40;
                let expected = "min must be at least mtu and at most max, that at most 1 TiB";
                require(in_order, "pacer.max", bdp.max, expected)?;
                require(bdp.mtu > 0, "pacer.mtu", bdp.mtu, "it must be above 0")?;
                fraction("pacer.gain", bdp.gain)?;
                period("pacer.horizon", bdp.horizon)?;
                period("pacer.window", bdp.window)?;
                period("pacer.stale", bdp.stale)
            }
        }
    }
}
