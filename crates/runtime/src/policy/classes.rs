//! Which streams share a class of the weighted scheduler, as a table like that of datapaths: [`DEFAULT`], or the configuration's
//! `[[network.class]]`.

use super::when::{self, When};
use crate::config::{Class, ConfigError};
use insane_wire::qos::Qos;

/// The table that holds where the configuration has none: control before bulk. The fields that a QoS must have, and the weight.
const DEFAULT: &[(&str, u32)] = &[("timing=sensitive", 8), ("reliability=reliable", 4), ("", 1)];

/// The classes of streams, and what each gets of a link that is full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classes(Vec<(When, u32)>);

impl Default for Classes {
    /// [`DEFAULT`].
    fn default() -> Self {
        Self(DEFAULT.iter().filter_map(|(fields, weight)| Some((When::parse(fields)?, *weight))).collect())
    }
}

impl Classes {
    /// The configuration's classes; without rows [`DEFAULT`].
    ///
    /// # Errors
    /// As [`Table::new`](super::Table::new).
    pub fn new(rows: &[Class]) -> Result<Self, ConfigError> {
        if rows.is_empty() {
            return Ok(Self::default());
        }
        when::checked("network.class", rows.iter().map(|row| (row.when.as_str(), row.weight))).map(Self)
    }

    /// The class of streams of this QoS: the number of its row, from 0.
    #[must_use]
    pub fn of(&self, qos: &Qos) -> u32 {
        when::first(&self.0, qos).and_then(|at| u32::try_from(at).ok()).unwrap_or(0)
    }

    /// The weight of each class, in bytes in proportion to those of the others.
    pub fn weights(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().map(|(_, weight)| *weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(when: &str, weight: u32) -> Class {
        Class { when: when.into(), weight }
    }

    #[test]
    fn every_stream_has_a_class_and_tables_with_gaps_are_refused() {
        let qos = |text| Qos::parse(text).unwrap();
        let default = Classes::default();
        assert_eq!(default.weights().collect::<Vec<_>>(), [8, 4, 1]);
        for (text, class) in [("", 2), ("reliability=reliable", 1), ("timing=sensitive,reliability=reliable", 0)] {
            assert_eq!(default.of(&qos(text)), class, "{text}");
        }
        let own = Classes::new(&[row("acceleration=preferred", 3), row("", 1)]).unwrap();
        assert_eq!((own.of(&qos("acceleration=preferred")), own.of(&qos("reliability=reliable"))), (0, 1));
        for (rows, error) in [
            (&[row("timing=sensitive", 2)][..], "network.class: no row is for"),
            (&[row("", 1), row("timing=sensitive", 2)], "network.class[1].when"),
            (&[row("colour=red", 1), row("", 1)], "network.class[0].when"),
        ] {
            let found = Classes::new(rows).unwrap_err().to_string();
            assert!(found.contains(error), "{found}");
        }
    }
}
