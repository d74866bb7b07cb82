//! Requested QoS to effective QoS, as a declared table (architecture §5; INSANE paper §5.2). On one host all data crosses
//! shared memory. Towards another host the first row that fits a stream's QoS names datapaths, the best first, and the first of
//! them that both hosts have and are connected by is taken; the source's host decides. Which rows there are is data:
//! [`DEFAULT`], or the configuration's `[[network.policy]]`.

use crate::config::{ConfigError, Kind, Policy};
use insane_wire::qos::{Acceleration, EffectiveQos, Qos, REFUSED, Reliability, Resources, Timing};

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
    /// Both have it, and no connection stands.
    Unconnected,
    /// The other host offers none.
    NotThere,
    /// This host has none, and why.
    NotHere(String),
}

impl Standing {
    /// Why a datapath of this kind cannot be used from this host, `own`, towards another; `None` if it can.
    #[must_use]
    pub fn why_not(&self, kind: Kind, (own, host): (&str, &str)) -> Option<String> {
        let kind = kind.name();
        match self {
            Self::Connected => None,
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

/// A row: the fields that a QoS must have, by their canonical text.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    fields: Vec<(Field, i32)>,
    datapaths: Vec<Kind>,
}

/// A field of a QoS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Acceleration,
    Resources,
    Timing,
    Reliability,
}

impl Field {
    const ALL: [(&'static str, Self); 4] = [
        ("acceleration", Self::Acceleration),
        ("resources", Self::Resources),
        ("timing", Self::Timing),
        ("reliability", Self::Reliability),
    ];

    const fn of(self, qos: &Qos) -> i32 {
        match self {
            Self::Acceleration => qos.acceleration,
            Self::Resources => qos.resources,
            Self::Timing => qos.timing,
            Self::Reliability => qos.reliability,
        }
    }
}

impl Row {
    fn parse(when: &str, datapaths: &[Kind]) -> Option<Self> {
        let mut fields: Vec<(Field, i32)> = Vec::new();
        for part in when.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let qos = Qos::parse(part).ok()?;
            let name = part.split('=').next()?.trim();
            let field = Field::ALL.iter().find(|(known, _)| *known == name)?.1;
            if fields.iter().any(|(known, _)| *known == field) {
                return None;
            }
            fields.push((field, field.of(&qos)));
        }
        Some(Self { fields, datapaths: datapaths.to_vec() })
    }

    fn fits(&self, qos: &Qos) -> bool {
        self.fields.iter().all(|(field, value)| field.of(qos) == *value)
    }
}

/// Every QoS that there can be.
fn every_qos() -> impl Iterator<Item = Qos> {
    (0..16u32).map(|bits| {
        let mut qos = Qos::default();
        qos.set_acceleration(if bits & 1 == 0 { Acceleration::None } else { Acceleration::Preferred });
        qos.set_resources(if bits & 2 == 0 { Resources::Frugal } else { Resources::Unlimited });
        qos.set_timing(if bits & 4 == 0 { Timing::BestEffort } else { Timing::Sensitive });
        qos.set_reliability(if bits & 8 == 0 { Reliability::BestEffort } else { Reliability::Reliable });
        qos
    })
}

/// Which streams go over which datapaths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table(Vec<Row>);

impl Default for Table {
    /// [`DEFAULT`].
    fn default() -> Self {
        Self(DEFAULT.iter().filter_map(|(when, datapaths)| Row::parse(when, datapaths)).collect())
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
        let refuse = |at: usize, value: &str, takes| {
            let (key, value) = (format!("network.policy[{at}].when"), format!("\"{value}\""));
            Err(ConfigError::Value { key, value, takes })
        };
        let mut table = Self(Vec::new());
        for (at, Policy { when, datapaths }) in rows.iter().enumerate() {
            let Some(row) = Row::parse(when, datapaths) else {
                return refuse(
                    at,
                    when,
                    "fields of a QoS, each once, such as acceleration=preferred,reliability=reliable",
                );
            };
            if !every_qos().any(|qos| row.fits(&qos) && table.row(&qos).is_none()) {
                return refuse(at, when, "a stream that no earlier row is for: put the narrower row first");
            }
            table.0.push(row);
        }
        match every_qos().find(|qos| table.row(qos).is_none()) {
            Some(qos) => Err(ConfigError::Policy { qos: qos.canonical() }),
            None => Ok(table),
        }
    }

    fn row(&self, qos: &Qos) -> Option<&Row> {
        self.0.iter().find(|row| row.fits(qos))
    }

    /// The datapaths for streams of this QoS, the best first; the last is always there.
    #[must_use]
    pub fn datapaths(&self, qos: Qos) -> &[Kind] {
        self.row(&qos).map_or(&[Kind::Udp], |row| &row.datapaths)
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
mod tests {
    use super::{DEFAULT, Kind, Standing, Table, every_qos, local, refused};
    use crate::config::Policy;
    use insane_wire::qos::{Acceleration, Reliability, Resources, Timing};

    /// What two hosts have in common of one accelerated datapath, in all combinations.
    fn standings() -> Vec<(bool, Standing)> {
        let mut all = Vec::new();
        for (here, there, connected) in (0..8).map(|n| (n & 1 != 0, n & 2 != 0, n & 4 != 0)) {
            let standing = match (here, there, connected) {
                (false, ..) => Standing::NotHere("no such interface".into()),
                (_, false, _) => Standing::NotThere,
                (.., false) => Standing::Unconnected,
                _ => Standing::Connected,
            };
            all.push((here && there && connected, standing));
        }
        all
    }

    #[test]
    fn every_combination_has_its_row() {
        let table = Table::new(&[]).unwrap();
        for qos in every_qos() {
            let effective = local(qos);
            assert_eq!(effective.datapath, "shm");
            let served = effective.qos.unwrap();
            // A downgrade has a reason, and nothing else has one.
            assert_eq!(served != qos, !effective.reasons.is_empty(), "{qos:?}");
            assert_eq!(served.reliability(), qos.reliability());
            for (usable, standing) in standings() {
                let choice = table.choose(qos, ("here", "there"), |kind| {
                    if kind == Kind::Udp { Standing::Connected } else { standing.clone() }
                });
                let wanted = qos.acceleration() == Acceleration::Preferred;
                let best = if qos.resources() == Resources::Unlimited { Kind::Dpdk } else { Kind::Xdp };
                let expected = if wanted && usable { best } else { Kind::Udp };
                assert_eq!(choice.kind, expected, "{qos:?} {standing:?}");
                let effective = choice.effective;
                assert_eq!((effective.datapath.as_str(), effective.peer.as_str()), (expected.name(), "there"));
                let served = effective.qos.unwrap();
                assert_eq!(served != qos, !effective.reasons.is_empty(), "{qos:?} {standing:?}");
                let reasons = usize::from(wanted && !usable) + usize::from(qos.timing() == Timing::Sensitive);
                assert_eq!(effective.reasons.len(), reasons, "{:?}", effective.reasons);
                assert_eq!(served.acceleration() == Acceleration::Preferred, wanted && usable);
                assert_eq!(effective.transport == "reliable", served.reliability() == Reliability::Reliable);
                // Under `strict` what is served with a reason is not served.
                let none = refused(effective.clone());
                assert_eq!(none.is_some(), served != qos, "{qos:?}");
                assert!(none.is_none_or(|e| e.datapath == "none" && e.reasons.len() == effective.reasons.len()));
            }
        }
    }

    #[test]
    fn a_fall_back_says_what_is_missing_and_where() {
        let table = Table::new(&[]).unwrap();
        let mut qos = insane_wire::qos::Qos::default();
        qos.set_acceleration(Acceleration::Preferred);
        for (standing, text) in [
            (Standing::NotThere, "berlin offers no xdp"),
            (Standing::NotHere("no right".into()), "paris has no xdp: no right"),
            (Standing::Unconnected, "paris does not reach berlin over xdp"),
        ] {
            let choice = table.choose(qos, ("paris", "berlin"), |_| standing.clone());
            assert!(choice.effective.reasons[0].contains(text), "{:?}", choice.effective.reasons);
        }
    }

    #[test]
    fn who_spares_no_resources_gets_dpdk_or_the_next_best() {
        let table = Table::new(&[]).unwrap();
        let qos = insane_wire::qos::Qos::parse("acceleration=preferred,resources=unlimited").unwrap();
        let with = |has: &[Kind]| {
            let standing = |kind| if has.contains(&kind) { Standing::Connected } else { Standing::NotThere };
            table.choose(qos, ("here", "there"), standing)
        };
        assert_eq!(with(&[Kind::Udp, Kind::Xdp, Kind::Dpdk]).kind, Kind::Dpdk);
        let next = with(&[Kind::Udp, Kind::Xdp]);
        assert_eq!((next.kind, next.effective.reasons.len()), (Kind::Xdp, 0), "it is accelerated all the same");
        let last = with(&[Kind::Udp]);
        assert!(last.effective.reasons[0].contains("there offers no dpdk; there offers no xdp"), "{last:?}");
    }

    #[test]
    fn what_was_asked_for_is_served_with_its_reasons() {
        for qos in every_qos() {
            for kind in Kind::ALL {
                let choice = Table::asked(kind, qos, "there");
                let effective = choice.effective;
                assert_eq!((choice.kind, effective.datapath.as_str()), (kind, kind.name()));
                assert_eq!(effective.qos != Some(qos), !effective.reasons.is_empty(), "{qos:?}");
                let less = qos.acceleration() == Acceleration::Preferred && kind == Kind::Udp;
                assert_eq!(effective.reasons.iter().any(|reason| reason.contains("asked to go over udp")), less);
            }
        }
    }

    #[test]
    fn the_users_table_replaces_the_default() {
        let row = |when: &str, datapaths: &[Kind]| Policy { when: when.into(), datapaths: datapaths.to_vec() };
        let rows = [
            row("acceleration=preferred, reliability=reliable", &[Kind::Udp]),
            row("timing=sensitive", &[Kind::Xdp, Kind::Udp]),
            row("", &[Kind::Udp]),
        ];
        let table = Table::new(&rows).unwrap();
        for qos in every_qos() {
            let choice = table.choose(qos, ("here", "there"), |_| Standing::Connected);
            let both = qos.acceleration() == Acceleration::Preferred && qos.reliability() == Reliability::Reliable;
            let xdp = !both && qos.timing() == Timing::Sensitive;
            assert_eq!(choice.kind, if xdp { Kind::Xdp } else { Kind::Udp }, "{qos:?}");
            if qos.acceleration() == Acceleration::Preferred && !xdp {
                assert!(choice.effective.reasons[0].contains("network.policy names none"), "{qos:?}");
            }
        }
        assert_ne!(table, Table::new(&[]).unwrap());
        assert!(DEFAULT.iter().all(|(_, datapaths)| datapaths.last() == Some(&Kind::Udp)));
    }
}
