//! Tables with a row for every QoS: the first that fits a stream's QoS is its.

use crate::config::ConfigError;
use insane_wire::qos::{Acceleration, Qos, Reliability, Resources, Timing};

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

/// The fields that a QoS must have, by their canonical text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct When(Vec<(Field, i32)>);

impl When {
    pub(super) fn parse(when: &str) -> Option<Self> {
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
        Some(Self(fields))
    }

    pub(super) fn fits(&self, qos: &Qos) -> bool {
        self.0.iter().all(|(field, value)| field.of(qos) == *value)
    }
}

/// Every QoS that there can be.
pub(super) fn every_qos() -> impl Iterator<Item = Qos> {
    (0..16u32).map(|bits| {
        let mut qos = Qos::default();
        qos.set_acceleration(if bits & 1 == 0 { Acceleration::None } else { Acceleration::Preferred });
        qos.set_resources(if bits & 2 == 0 { Resources::Frugal } else { Resources::Unlimited });
        qos.set_timing(if bits & 4 == 0 { Timing::BestEffort } else { Timing::Sensitive });
        qos.set_reliability(if bits & 8 == 0 { Reliability::BestEffort } else { Reliability::Reliable });
        qos
    })
}

/// The number of the first row that fits.
pub(super) fn first<T>(rows: &[(When, T)], qos: &Qos) -> Option<usize> {
    rows.iter().position(|(when, _)| when.fits(qos))
}

/// The rows of a table of the configuration, whose name is for errors.
///
/// # Errors
/// A row that cannot be read, that no stream ever comes to, or that is missing: every QoS must have one.
pub(super) fn checked<'a, T>(
    table: &'static str,
    rows: impl IntoIterator<Item = (&'a str, T)>,
) -> Result<Vec<(When, T)>, ConfigError> {
    let refuse = |at: usize, value: &str, takes| {
        let (key, value) = (format!("{table}[{at}].when"), format!("\"{value}\""));
        Err(ConfigError::Value { key, value, takes })
    };
    let mut read = Vec::new();
    for (at, (when, what)) in rows.into_iter().enumerate() {
        let Some(row) = When::parse(when) else {
            return refuse(at, when, "fields of a QoS, each once, such as acceleration=preferred,reliability=reliable");
        };
        if !every_qos().any(|qos| row.fits(&qos) && first(&read, &qos).is_none()) {
            return refuse(at, when, "a stream that no earlier row is for: put the narrower row first");
        }
        read.push((row, what));
    }
    match every_qos().find(|qos| first(&read, qos).is_none()) {
        Some(qos) => Err(ConfigError::Uncovered { table, qos: qos.canonical() }),
        None => Ok(read),
    }
}
