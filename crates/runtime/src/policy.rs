//! Requested QoS to effective QoS, as a declared table (architecture §5; INSANE paper §5.2). On one host all data crosses
//! shared memory. Towards another host the first row that fits a stream's QoS names datapaths, the best first, and the first of
//! them that both hosts have and are connected by is taken; the source's host decides. Which rows there are is data:
//! [`DEFAULT`], or the configuration's `[[network.policy]]`.

mod classes;
mod when;

pub use classes::Classes;

use crate::config::{ConfigError, Kind, Policy, Transport, Via};
use insane_wire::qos::{Acceleration, EffectiveQos, Qos, REFUSED, Reliability, Timing};
use when::{When, every_qos};

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

    /// Why there is no such way from this host, `own`, to another; `None` if there is.
    #[must_use]
    pub fn why_not(&self, way: Via, (own, host): (&str, &str)) -> Option<String> {
        match self {
            Self::Connected => None,
            Self::Held => Some(format!(
                "{own} reaches {host} over {way} again, and streams come back once it has stood for a while"
            )),
            Self::Unconnected => Some(format!("{own} does not reach {host} over {way}")),
            Self::NotThere => Some(format!("{host} offers no {way}")),
            Self::NotHere(why) => Some(format!("{own} has no {way}: {why}")),
        }
    }
}

/// What was chosen for a stream towards a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The datapath, and whether it goes over its TCP.
    pub via: Via,
    /// What the stream gets, with a reason for every downgrade.
    pub effective: EffectiveQos,
}

/// Which streams go over which datapaths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table(Vec<(When, Row)>);

/// What a row says of the streams that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    datapaths: Vec<Kind>,
    /// Those that are reliable go over TCP, where that can be.
    tcp: bool,
}

impl Default for Table {
    /// [`DEFAULT`].
    fn default() -> Self {
        let row = |datapaths: &[Kind]| Row { datapaths: datapaths.to_vec(), tcp: false };
        Self(DEFAULT.iter().filter_map(|(when, datapaths)| Some((When::parse(when)?, row(datapaths)))).collect())
    }
}

impl Table {
    /// The configuration's table; without rows [`DEFAULT`].
    ///
    /// # Errors
    /// A row that cannot be read, that no stream ever comes to, or that is missing: every QoS must have one. TCP in a row to which no
    /// reliable stream comes.
    pub fn new(rows: &[Policy]) -> Result<Self, ConfigError> {
        if rows.is_empty() {
            return Ok(Self::default());
        }
        let read = rows.iter().map(|one| {
            let row = Row { datapaths: one.datapaths.clone(), tcp: one.transport == Transport::Tcp };
            (one.when.as_str(), row)
        });
        let table = Self(when::checked("network.policy", read)?);
        let comes = |at: usize| every_qos().any(|qos| is_reliable(qos) && when::first(&table.0, &qos) == Some(at));
        if let Some(at) = (0..table.0.len()).find(|at| table.0[*at].1.tcp && !comes(*at)) {
            let (key, value) = (format!("network.policy[{at}].transport"), "\"tcp\"".into());
            let takes = "reliable: no reliable stream comes to this row, and others never go over TCP";
            return Err(ConfigError::Value { key, value, takes });
        }
        Ok(table)
    }

    fn row(&self, qos: Qos) -> Option<&Row> {
        when::first(&self.0, &qos).and_then(|at| self.0.get(at)).map(|(_, row)| row)
    }

    /// The datapaths for streams of this QoS, the best first; the last is always there.
    #[must_use]
    pub fn datapaths(&self, qos: Qos) -> &[Kind] {
        self.row(qos).map_or(&[Kind::Udp], |row| &row.datapaths)
    }

    /// The datapaths over whose TCP a stream of this QoS may go, the best first. Kernel UDP has none.
    fn with_tcp(&self, qos: Qos) -> Option<impl Iterator<Item = Via> + '_> {
        let row = self.row(qos).filter(|row| row.tcp && is_reliable(qos))?;
        Some(row.datapaths.iter().filter(|kind| **kind != Kind::Udp).map(|kind| Via::tcp_of(*kind)))
    }

    /// All ways for streams of this QoS, the best first.
    pub fn ways(&self, qos: Qos) -> impl Iterator<Item = Via> + '_ {
        self.with_tcp(qos).into_iter().flatten().chain(self.datapaths(qos).iter().map(|kind| Via::of(*kind)))
    }

    /// The first datapath, of those that `may` be, over whose TCP a stream of this QoS goes; if it should and there is none, why. `None`:
    /// it has nothing to do with TCP.
    fn tcp(
        &self,
        qos: Qos,
        names: (&str, &str),
        standing: &impl Fn(Via) -> Standing,
        may: impl Fn(&Via) -> bool,
    ) -> Option<Result<Via, String>> {
        let mut passed = Vec::new();
        for way in self.with_tcp(qos)?.filter(may) {
            match standing(way).why_not(way, names) {
                None => return Some(Ok(way)),
                Some(why) => passed.push(why),
            }
        }
        Some(Err(passed.join("; ")))
    }

    /// What a stream gets from this host, `own`, towards another.
    #[must_use]
    pub fn choose(&self, requested: Qos, (own, host): (&str, &str), standing: impl Fn(Via) -> Standing) -> Choice {
        let without = match self.tcp(requested, (own, host), &standing, |_| true) {
            Some(Ok(way)) => return serve(way, requested, host, "", None),
            Some(Err(why)) => Some(format!("{own} and {host} have no TCP in common: {why}")),
            None => None,
        };
        let (mut kind, mut passed) = (Kind::Udp, Vec::new());
        for one in self.datapaths(requested) {
            let way = Via::of(*one);
            let Some(why) = standing(way).why_not(way, (own, host)) else {
                kind = *one;
                break;
            };
            // Without kernel UDP there is no host.
            passed.extend((*one != Kind::Udp).then_some(why));
        }
        let why = if passed.is_empty() { "network.policy names none for it".into() } else { passed.join("; ") };
        let why = format!("{own} and {host} have no accelerated datapath in common: {why}");
        serve(Via::of(kind), requested, host, &why, without)
    }

    /// What a stream gets over the datapath that an operator has asked for, instead of the one that the table says.
    #[must_use]
    pub fn asked(
        &self,
        kind: Kind,
        requested: Qos,
        (own, host): (&str, &str),
        standing: impl Fn(Via) -> Standing,
    ) -> Choice {
        let asked = format!("it was asked to go over {}", kind.name());
        match self.tcp(requested, (own, host), &standing, |way| way.kind == kind) {
            Some(Ok(way)) => serve(way, requested, host, &asked, None),
            Some(Err(why)) => {
                let why = if why.is_empty() { String::new() } else { format!(": {why}") };
                serve(Via::of(kind), requested, host, &asked, Some(format!("{asked}, which has no TCP here{why}")))
            }
            None => serve(Via::of(kind), requested, host, &asked, None),
        }
    }
}

fn is_reliable(qos: Qos) -> bool {
    qos.reliability() == Reliability::Reliable
}

/// What a stream gets by a way, and if its datapath is not accelerated, `why`; if it should go over TCP and does not, why it is
/// `without`.
fn serve(via: Via, requested: Qos, host: &str, why: &str, without: Option<String>) -> Choice {
    let kind = via.kind;
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
    if let Some(without) = without {
        reasons.push(format!("transport=tcp: {without}; the runtime's own reliability carries it"));
    }
    let transport = match (is_reliable(requested), via.tcp) {
        (false, _) => "datagram",
        (true, false) => "reliable",
        (true, true) => "tcp",
    };
    let effective = EffectiveQos {
        qos: Some(served),
        datapath: kind.name().into(),
        transport: transport.into(),
        peer: host.to_owned(),
        reasons,
    };
    Choice { via, effective }
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
