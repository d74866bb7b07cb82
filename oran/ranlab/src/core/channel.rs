//! What the radio channel gives: the modulation and coding scheme over time, and which blocks are in error.

use insane_traffic::spec::Duration;
use insane_traffic::{Rng, Time};
use serde::{Deserialize, Serialize};

/// One step of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// How long it lasts.
    pub lasts: Duration,
    /// The index in the table.
    pub index: u8,
}

/// How the modulation and coding scheme changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum McsSpec {
    /// It does not.
    Fixed {
        /// The index in the table.
        index: u8,
    },
    /// By a list of steps; from the beginning again when it ends.
    Profile {
        /// The steps.
        steps: Vec<Step>,
    },
    /// At random: each `every` one step of -1, 0 or +1, reflected at both ends.
    Walk {
        /// The lowest index.
        min: u8,
        /// The highest index.
        max: u8,
        /// Where it begins.
        start: u8,
        /// How often it may change.
        every: Duration,
    },
}

impl Default for McsSpec {
    fn default() -> Self {
        Self::Fixed { index: 10 }
    }
}

impl McsSpec {
    /// What is wrong with it, for a table whose highest index is `last`.
    #[must_use]
    pub fn fault(&self, last: u8) -> Option<String> {
        let high = match self {
            Self::Fixed { index } => *index,
            Self::Profile { steps } => {
                if steps.is_empty() || steps.len() > 10_000 {
                    return Some("a profile has 1 to 10000 steps".into());
                }
                if steps.iter().any(|s| s.lasts.0.nanos() < 1_000_000) {
                    return Some("a step lasts 1ms or longer".into());
                }
                steps.iter().map(|s| s.index).max().unwrap_or(0)
            }
            Self::Walk { min, max, start, every } => {
                if min > max || !(min..=max).contains(&start) {
                    return Some("a walk needs min <= start <= max".into());
                }
                if every.0.nanos() < 1_000_000 {
                    return Some("a walk may change every 1ms at most".into());
                }
                *max
            }
        };
        (high > last).then(|| format!("index {high} is not in the table, whose last is {last}"))
    }
}

/// The scheme of one receiver as time goes on. Asked in order of time.
#[derive(Clone, Debug)]
pub struct Mcs {
    spec: McsSpec,
    rng: Rng,
    current: u8,
    until: Time,
    step: usize,
}

impl Mcs {
    /// Begins at time zero.
    #[must_use]
    pub fn new(spec: McsSpec, seed: u64) -> Self {
        let current = match &spec {
            McsSpec::Fixed { index } => *index,
            McsSpec::Profile { steps } => steps.first().map_or(0, |s| s.index),
            McsSpec::Walk { start, .. } => *start,
        };
        let until = match &spec {
            McsSpec::Fixed { .. } => Time::MAX,
            McsSpec::Profile { steps } => steps.first().map_or(Time::MAX, |s| Time::ZERO + s.lasts.0),
            McsSpec::Walk { every, .. } => Time::ZERO + every.0,
        };
        Self { spec, rng: Rng::new(seed), current, until, step: 0 }
    }

    /// The index now.
    pub fn at(&mut self, now: Time) -> u8 {
        while now >= self.until {
            match &self.spec {
                McsSpec::Fixed { .. } => self.until = Time::MAX,
                McsSpec::Profile { steps } => {
                    self.step = (self.step + 1) % steps.len();
                    self.current = steps[self.step].index;
                    self.until += steps[self.step].lasts.0;
                }
                McsSpec::Walk { min, max, every, .. } => {
                    self.current = match self.rng.bits() % 3 {
                        0 if self.current > *min => self.current - 1,
                        2 if self.current < *max => self.current + 1,
                        _ => self.current,
                    };
                    self.until += every.0;
                }
            }
        }
        self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_followed_and_repeats() {
        let steps = [(5, 6), (10, 7)].map(|(ms, index)| Step { lasts: Duration::millis(ms), index }).to_vec();
        let mut mcs = Mcs::new(McsSpec::Profile { steps }, 1);
        let seen = [0, 4, 5, 14, 15, 20, 299, 300].map(|ms| mcs.at(Time::from_millis(ms)));
        assert_eq!(seen, [6, 6, 7, 7, 6, 7, 7, 6]);
    }

    #[test]
    fn a_walk_stays_between_its_ends_and_visits_both() {
        let spec = McsSpec::Walk { min: 6, max: 9, start: 7, every: Duration::millis(10) };
        let mut mcs = Mcs::new(spec, 3);
        let seen: Vec<u8> = (0..1_000).map(|n| mcs.at(Time::from_millis(10 * n))).collect();
        assert_eq!((seen.iter().min(), seen.iter().max()), (Some(&6), Some(&9)));
        assert!(seen.windows(2).all(|pair| pair[0].abs_diff(pair[1]) <= 1));
    }

    #[test]
    fn indices_beyond_the_table_are_a_fault() {
        assert!(McsSpec::Fixed { index: 28 }.fault(27).unwrap().contains("27"));
        assert_eq!(McsSpec::Fixed { index: 27 }.fault(27), None);
        assert!(McsSpec::Profile { steps: vec![] }.fault(27).is_some());
        let every = Duration::millis(1);
        assert!(McsSpec::Walk { min: 3, max: 2, start: 3, every }.fault(27).is_some());
    }
}
