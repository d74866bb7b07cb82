//! Sets of numbers and addresses as texts: `5201-5204,80`, `10.0.0.0/8,2001:db8::1-2001:db8::9`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer};
use serde::{Serialize, Serializer};

use super::units::UnitError;
use crate::parse::Address;

/// How many ranges a set may be made of.
const MAX_RANGES: usize = 64;

const NUMBERS: &str = "a number, a range \"a-b\" or a list of them with commas (at most 64 ranges), or \"*\"";
const ADDRESSES: &str =
    "an address, a prefix \"a/n\", a range \"a-b\" or a list of them with commas (at most 64), or \"*\"";

/// A set of numbers as inclusive ranges. `*` holds them all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NumberSet(Vec<(u32, u32)>);

impl NumberSet {
    /// The set of one inclusive range.
    #[must_use]
    pub fn range(from: u32, to: u32) -> Self {
        Self(vec![(from.min(to), from.max(to))])
    }

    /// In order and without numbers that are named twice.
    fn merged(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (from, to) in ranges {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        Self(merged)
    }

    /// Whether a number is in the set.
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        self.0.iter().any(|&(from, to)| from <= number && number <= to)
    }

    /// The largest number in the set.
    #[must_use]
    pub fn max(&self) -> u32 {
        self.0.iter().map(|r| r.1).max().unwrap_or(0)
    }

    /// The numbers of the set in ascending order, at most `limit` of them.
    pub fn numbers(&self, limit: usize) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().flat_map(|&(from, to)| from..=to).take(limit)
    }

    /// Takes a number out. False if nothing is left.
    pub(crate) fn remove(&mut self, number: u32) -> bool {
        let ranges = std::mem::take(&mut self.0);
        for (from, to) in ranges {
            if number < from || number > to {
                self.0.push((from, to));
                continue;
            }
            if from < number {
                self.0.push((from, number - 1));
            }
            if number < to {
                self.0.push((number + 1, to));
            }
        }
        !self.0.is_empty()
    }
}

impl From<u32> for NumberSet {
    fn from(number: u32) -> Self {
        Self::range(number, number)
    }
}

impl FromStr for NumberSet {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        if text.trim() == "*" {
            return Ok(Self::range(0, u32::MAX));
        }
        let one = |part: &str| -> Option<(u32, u32)> {
            let part = part.trim();
            if let Some((from, to)) = part.split_once('-') {
                let (from, to) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
                return (from <= to).then_some((from, to));
            }
            part.parse().ok().map(|n| (n, n))
        };
        let ranges: Option<Vec<_>> = text.split(',').map(one).collect();
        ranges.filter(|r| r.len() <= MAX_RANGES).map(Self::merged).ok_or_else(|| UnitError::new(text, NUMBERS))
    }
}

impl fmt::Display for NumberSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (from, to)) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            match (from, to) {
                (0, &u32::MAX) => write!(f, "{comma}*")?,
                (from, to) if from == to => write!(f, "{comma}{from}")?,
                (from, to) => write!(f, "{comma}{from}-{to}")?,
            }
        }
        Ok(())
    }
}

impl Serialize for NumberSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0[..] {
            [(from, to)] if from == to => serializer.serialize_u32(from),
            _ => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for NumberSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = NumberSet;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(NUMBERS)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<NumberSet, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<NumberSet, E> {
                u32::try_from(number).map(NumberSet::from).map_err(|_| E::custom(UnitError::new(number, NUMBERS)))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<NumberSet, E> {
                u32::try_from(number).map(NumberSet::from).map_err(|_| E::custom(UnitError::new(number, NUMBERS)))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A set of IP addresses as inclusive ranges, IPv4 and IPv6 mixed as one likes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AddressSet {
    ranges: Vec<(Address, Address)>,
    text: String,
}

impl AddressSet {
    /// Whether an address is in the set.
    #[must_use]
    pub fn contains(&self, address: Address) -> bool {
        self.ranges
            .iter()
            .any(|(from, to)| from.v6 == address.v6 && from.bits <= address.bits && address.bits <= to.bits)
    }
}

fn prefix(address: Address, len: u32) -> Option<(Address, Address)> {
    let width = if address.v6 { 128 } else { 32 };
    let host_bits = width - Some(len).filter(|&len| len <= width)?;
    let host = 1_u128.checked_shl(host_bits).map_or(u128::MAX, |bit| bit - 1);
    let from = Address { bits: address.bits & !host, ..address };
    Some((from, Address { bits: from.bits | host, ..address }))
}

impl FromStr for AddressSet {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let address = |text: &str| text.trim().parse::<IpAddr>().ok().map(Address::from);
        let one = |part: &str| -> Option<Vec<(Address, Address)>> {
            if part.trim() == "*" {
                let all = |v6| prefix(Address { v6, bits: 0 }, 0);
                return Some(vec![all(false)?, all(true)?]);
            }
            if let Some((base, len)) = part.split_once('/') {
                return Some(vec![prefix(address(base)?, len.trim().parse().ok()?)?]);
            }
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let (from, to) = (address(from)?, address(to)?);
            (from.v6 == to.v6 && from <= to).then(|| vec![(from, to)])
        };
        let ranges: Option<Vec<_>> = text.split(',').map(one).collect();
        let ranges = ranges.map(|r| r.into_iter().flatten().collect::<Vec<_>>()).filter(|r| r.len() <= MAX_RANGES);
        ranges.map(|ranges| Self { ranges, text: text.to_owned() }).ok_or_else(|| UnitError::new(text, ADDRESSES))
    }
}

impl fmt::Display for AddressSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for AddressSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for AddressSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_hold_what_they_say() {
        let set: NumberSet = "5201-5204, 80".parse().unwrap();
        assert!(set.contains(5201) && set.contains(5204) && set.contains(80));
        assert!(!set.contains(5205) && !set.contains(81));
        assert_eq!(set.to_string(), "80,5201-5204");
        assert_eq!("7,1-3,2-5,7".parse::<NumberSet>().unwrap().to_string(), "1-5,7");
        assert!("*".parse::<NumberSet>().unwrap().contains(u32::MAX));
        for bad in ["", "a", "5-", "9-3", "1,,2", "-1", "4294967296"] {
            assert!(bad.parse::<NumberSet>().is_err(), "{bad}");
        }
    }

    #[test]
    fn removing_splits_ranges() {
        let mut set: NumberSet = "0-4".parse().unwrap();
        assert!(set.remove(2));
        assert_eq!(set.to_string(), "0-1,3-4");
        let mut one = NumberSet::from(7);
        assert!(!one.remove(7));
    }

    #[test]
    fn addresses_by_prefix_range_and_version() {
        let set: AddressSet = "10.0.0.0/8, 2001:db8::/32,192.168.0.5-192.168.0.9".parse().unwrap();
        let has = |text: &str| set.contains(text.parse::<IpAddr>().unwrap().into());
        assert!(has("10.255.1.2") && has("2001:db8::7") && has("192.168.0.5") && has("192.168.0.9"));
        assert!(!has("11.0.0.0") && !has("2001:db9::") && !has("192.168.0.10") && !has("::a00:1"));
        assert!("*".parse::<AddressSet>().unwrap().contains("::1".parse::<IpAddr>().unwrap().into()));
        for bad in ["", "10.0.0.0/33", "::/129", "10.0.0.9-10.0.0.1", "1.2.3.4-::1", "x"] {
            assert!(bad.parse::<AddressSet>().is_err(), "{bad}");
        }
    }
}
