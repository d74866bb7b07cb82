//! Requested QoS to effective QoS, as a declared table (architecture §5; INSANE paper §5.2). On one host all data crosses
//! shared memory. Towards another host the first row that fits a stream's QoS names datapaths, the best first, and the first of
//! them that both hosts have and are connected by is taken; the source's host decides. Which rows there are is data:
//! [`DEFAULT`], or the configuration's `[[network.policy]]`.

mod classes;
mod when;

pub use classes::Classes;

use crate::config::{ConfigError, Kind, Policy};
use insane_wire::qos::{Acceleration, EffectiveQos, Qos, REFUSED, Reliability, Timing};
use when::When;

/// The name of this host's ceiling among the peers of a stream.
pub const LOCAL: &str = "local";

/// The table that holds where the configuration has none: the paper's, of what there is. The fields that a QoS must have, and the
/// datapaths.
pub const DEFAULT: &[(&str, &[Kind])] = &[
    ("acceleration=none", &[Kind::Udp]),
    ("resources=unlimited", &[Kind::Dpdk, Kind::Xdp, Kind::Udp]),
    ("", &[Kind::Xdp, Kind::Udp]),
];

/// What a stream of this QoS gets between sessions of one host.
#[must_use]
pub fn local(requested: Qos) -> EffectiveQos {
    let mut served = requested;
    let mut reasons = Vec::new();
    if requested.timing() == Timing::Sensitive {
        served.set_timing(Timing::BestEffort);
        reasons.push(
            "timing=sensitive: between sessions of one host messages do not wait for a time-aware gate, they are \
             delivered at once"
                .to_owned(),
        );
    }
    EffectiveQos { qos: Some(served), datapath: "shm".into(), transport: "shm".into(), peer: LOCAL.into(), reasons }
}

/// What this host and another have of a kind of datapath.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Both have it, and are connected by it.
    Connected,
    /// Both have it, and are connected by it again: so soon after it was lost that streams do not come back yet.
    Held,
    /// Both have it, and no connection stands.
    Unconnected,
    /// The other host offers none.
    NotThere,
    /// This host has none, and why.
    NotHere(String),
}

impl Standing {
    /// What this host has (or why not), whether the other one has it too, and whether they are connected by it.
    #[must_use]
    pub fn of(here: Result<(), &str>, there: bool, connected: bool) -> Self {
        match (here, there, connected) {
            (Err(why), ..) => Self::NotHere(why.to_owned()),
            (_, false, _) => Self::NotThere,
            (.., false) => Self::Unconnected,
            _ => Self::Connected,
        }
    }

    /// Why a datapath of this kind cannot be used from this host, `own`, towards another; `None` if it can.
    #[must_use]
    pub fn why_not(&self, kind: Kind, (own, host): (&str, &str)) -> Option<String> {
        let kind = kind.name();
        match self {
            Self::Connected => None,
            Self::Held => Some(format!(
                "{own} reaches {host} over {kind} again, and streams come back once it has stood for a while"
            )),
            Self::Unconnected => Some(format!("{own} does not reach {host} over {kind}")),
            Self::NotThere => Some(format!("{host} offers no {kind}")),
            Self::NotHere(why) => Some(format!("{own} has no {kind}: {why}")),
        }
    }
}

/// What was chosen for a stream towards a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The datapath.
    pub kind: Kind,
    /// What the stream gets, with a reason for every downgrade.
    pub effective: EffectiveQos,
}

/// Which streams go over which datapaths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table(Vec<(When, Vec<Kind>)>);

impl Default for Table {
    /// [`DEFAULT`].
    fn default() -> Self {
        Self(DEFAULT.iter().filter_map(|(when, datapaths)| Some((When::parse(when)?, datapaths.to_vec()))).collect())
    }
}

impl Table {
    /// The configuration's table; without rows [`DEFAULT`].
    ///
    /// # Errors
    /// A row that cannot be read, that no stream ever comes to, or that is missing: every QoS must have one.
    pub fn new(rows: &[Policy]) -> Result<Self, ConfigError> {
        if rows.is_empty() {
            return Ok(Self::default());
        }
        when::checked("network.policy", rows.iter().map(|row| (row.when.as_str(), row.datapaths.clone()))).map(Self)
    }

    /// The datapaths for streams of this QoS, the best first; the last is always there.
    #[must_use]
    pub fn datapaths(&self, qos: Qos) -> &[Kind] {
        when::first(&self.0, &qos).and_then(|at| self.0.get(at)).map_or(&[Kind::Udp], |(_, datapaths)| datapaths)
    }

    /// What a stream gets from this host, `own`, towards another.
    #[must_use]
    pub fn choose(&self, requested: Qos, (own, host): (&str, &str), standing: impl Fn(Kind) -> Standing) -> Choice {
        let (mut kind, mut passed) = (Kind::Udp, Vec::new());
        for one in self.datapaths(requested) {
            let Some(why) = standing(*one).why_not(*one, (own, host)) else {
                kind = *one;
                break;
            };
            // Without kernel UDP there is no host.
            passed.extend((*one != Kind::Udp).then_some(why));
        }
        let why = if passed.is_empty() { "network.policy names none for it".into() } else { passed.join("; ") };
        let why = format!("{own} and {host} have no accelerated datapath in common: {why}");
        serve(kind, requested, host, &why)
    }

    /// What a stream gets over the datapath that an operator has asked for, instead of the one that the table says.
    #[must_use]
    pub fn asked(kind: Kind, requested: Qos, host: &str) -> Choice {
        serve(kind, requested, host, &format!("it was asked to go over {}", kind.name()))
    }
}

/// What a stream gets over a datapath, and if that is not accelerated, `why`.
fn serve(kind: Kind, requested: Qos, host: &str, why: &str) -> Choice {
    let mut served = requested;
    let mut reasons = Vec::new();
    if requested.acceleration() == Acceleration::Preferred && !kind.is_accelerated() {
        served.set_acceleration(Acceleration::None);
        reasons.push(format!("acceleration=preferred: {why}"));
    }
    if requested.timing() == Timing::Sensitive {
        served.set_timing(Timing::BestEffort);
        let what = if kind == Kind::Udp { "kernel UDP" } else { kind.name() };
        reasons.push(format!("timing=sensitive: {what} has no time-aware gate, messages go as soon as they can"));
    }
    let transport = if requested.reliability() == Reliability::Reliable { "reliable" } else { "datagram" };
    let effective = EffectiveQos {
        qos: Some(served),
        datapath: kind.name().into(),
        transport: transport.into(),
        peer: host.to_owned(),
        reasons,
    };
    Choice { kind, effective }
}

/// What a stream gets towards another host when `strict` was asked for and that host serves less, for these reasons: nothing.
/// `None`: there is no reason, it serves all of it.
#[must_use]
pub fn refused(served: EffectiveQos) -> Option<EffectiveQos> {
    let reasons = served.reasons.iter().map(|reason| format!("refused under strict: {reason}")).collect();
    let less = !served.reasons.is_empty();
    less.then(|| EffectiveQos { datapath: REFUSED.into(), transport: REFUSED.into(), reasons, ..served })
}

#[cfg(test)]
mod tests;
