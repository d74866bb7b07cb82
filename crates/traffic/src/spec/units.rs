//! Times, rates and sizes as texts with units, as tc writes them.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer};
use serde::{Serialize, Serializer};

use crate::time::Span;

/// Why a text is not a time, rate, size or set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct UnitError {
    text: String,
    expected: &'static str,
}

impl UnitError {
    pub(super) fn new(text: impl fmt::Display, expected: &'static str) -> Self {
        Self { text: text.to_string(), expected }
    }
}

/// Splits a text into its number and its unit.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    number.is_finite().then(|| (number, text[end..].trim()))
}

/// The number times its unit as a whole number.
#[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "checked to be in range")]
fn scaled(number: f64, unit: f64) -> Option<u64> {
    let value = (number * unit).round();
    (0.0..=9e18).contains(&value).then_some(value as u64)
}

macro_rules! unit_type {
    ($(#[$doc:meta])* $name:ident($inner:ty), $expected:literal, $visit_number:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl de::Visitor<'_> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                    fn visit_u64<E: de::Error>(self, number: u64) -> Result<$name, E> {
                        let of_number: fn(u64) -> Option<$name> = $visit_number;
                        of_number(number).ok_or_else(|| E::custom(UnitError::new(number, $expected)))
                    }
                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$name, E> {
                        match u64::try_from(number) {
                            Ok(number) => self.visit_u64(number),
                            Err(_) => Err(E::custom(UnitError::new(number, $expected))),
                        }
                    }
                }
                deserializer.deserialize_any(Visitor)
            }
        }
    };
}

unit_type!(
    /// A length of time: `5ms`, `800us`, `1s`. The unit is never left out.
    Duration(Span), "a time with its unit, such as \"5ms\" (ns, us, ms, s)", |_| None
);
unit_type!(
    /// A rate in bit/s: `15mbit`, `800kbit`, `1gbit`, or in bytes with tc's `kbps`, `mbps`. A bare number is bit/s.
    Rate(u64), "a rate such as \"15mbit\" (bit, kbit, mbit, gbit, bps, kbps, mbps, gbps)", |n| Some(Rate(n))
);
unit_type!(
    /// A size in bytes: `6000`, `64k`, `32m` (powers of 1024 as in tc, also spelt `64KiB`, `32MiB`).
    Size(u64), "a size such as \"64k\" or a number of bytes (b, k, m, g, KiB, MiB, GiB)", |n| Some(Size(n))
);

impl Duration {
    /// `millis` milliseconds.
    #[must_use]
    pub const fn millis(millis: u64) -> Self {
        Self(Span::from_millis(millis))
    }

    /// `micros` microseconds.
    #[must_use]
    pub const fn micros(micros: u64) -> Self {
        Self(Span::from_micros(micros))
    }
}

impl FromStr for Duration {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let parse = || {
            let (number, unit) = split(text)?;
            let factor = match unit {
                "ns" => 1.0,
                "us" | "usec" | "µs" => 1e3,
                "ms" | "msec" => 1e6,
                "s" | "sec" => 1e9,
                _ => return None,
            };
            scaled(number, factor).map(|n| Self(Span::from_nanos(n)))
        };
        parse().ok_or_else(|| UnitError::new(text, "a time with its unit, such as \"5ms\" (ns, us, ms, s)"))
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Rate {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let parse = || {
            let (number, unit) = split(text)?;
            let factor = match unit.to_ascii_lowercase().as_str() {
                "" | "bit" => 1.0,
                "kbit" => 1e3,
                "mbit" => 1e6,
                "gbit" => 1e9,
                "bps" => 8.0,
                "kbps" => 8e3,
                "mbps" => 8e6,
                "gbps" => 8e9,
                _ => return None,
            };
            scaled(number, factor).map(Self)
        };
        parse().ok_or_else(|| {
            UnitError::new(text, "a rate such as \"15mbit\" (bit, kbit, mbit, gbit, bps, kbps, mbps, gbps)")
        })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n > 0 && n % 1_000_000_000 == 0 => write!(f, "{}gbit", n / 1_000_000_000),
            n if n > 0 && n % 1_000_000 == 0 => write!(f, "{}mbit", n / 1_000_000),
            n if n > 0 && n % 1_000 == 0 => write!(f, "{}kbit", n / 1_000),
            n => write!(f, "{n}bit"),
        }
    }
}

impl FromStr for Size {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let parse = || {
            let (number, unit) = split(text)?;
            let factor = match unit.to_ascii_lowercase().as_str() {
                "" | "b" => 1_u64,
                "k" | "kb" | "kib" => 1 << 10,
                "m" | "mb" | "mib" => 1 << 20,
                "g" | "gb" | "gib" => 1 << 30,
                _ => return None,
            };
            scaled(number, factor as f64).map(Self)
        };
        parse().ok_or_else(|| {
            UnitError::new(text, "a size such as \"64k\" or a number of bytes (b, k, m, g, KiB, MiB, GiB)")
        })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n > 0 && n % (1 << 30) == 0 => write!(f, "{}GiB", n >> 30),
            n if n > 0 && n % (1 << 20) == 0 => write!(f, "{}MiB", n >> 20),
            n if n > 0 && n % (1 << 10) == 0 => write!(f, "{}KiB", n >> 10),
            n => write!(f, "{n}b"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_tc() {
        assert_eq!("5ms".parse(), Ok(Duration::millis(5)));
        assert_eq!("1.5ms".parse(), Ok(Duration::micros(1500)));
        assert_eq!("15mbit".parse(), Ok(Rate(15_000_000)));
        assert_eq!("1mbps".parse(), Ok(Rate(8_000_000)));
        assert_eq!("64k".parse(), Ok(Size(65536)));
        assert_eq!("32MiB".parse(), Ok(Size(32 << 20)));
    }

    #[test]
    fn nonsense_is_refused_with_what_was_expected() {
        assert!("5".parse::<Duration>().unwrap_err().to_string().contains("unit"));
        for text in ["", "-1ms", "1e400s", "ms", "5 parsecs", "..ms", "99999999999999999999s"] {
            assert!(text.parse::<Duration>().is_err(), "{text}");
        }
        assert!("1zbit".parse::<Rate>().is_err());
        assert!("1q".parse::<Size>().is_err());
    }

    #[test]
    fn printing_reads_back() {
        for n in [0, 1, 999, 1000, 1024, 1 << 20, 15_000_000, 3_000_000_001] {
            assert_eq!(Rate(n).to_string().parse(), Ok(Rate(n)));
            assert_eq!(Size(n).to_string().parse(), Ok(Size(n)));
            assert_eq!(Duration(Span::from_nanos(n)).to_string().parse(), Ok(Duration(Span::from_nanos(n))));
        }
    }
}
