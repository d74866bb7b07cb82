//! PDCP as far as sizes and sequence numbers go (TS 38.323): no ciphering, no header compression.

/// The length of the sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum SnLength {
    /// 12 bits: a header of two bytes.
    Bits12,
    /// 18 bits: a header of three bytes.
    #[default]
    Bits18,
}

impl TryFrom<u8> for SnLength {
    type Error = &'static str;
    fn try_from(bits: u8) -> Result<Self, Self::Error> {
        match bits {
            12 => Ok(Self::Bits12),
            18 => Ok(Self::Bits18),
            _ => Err("PDCP sequence numbers have 12 or 18 bits"),
        }
    }
}

impl From<SnLength> for u8 {
    fn from(length: SnLength) -> Self {
        match length {
            SnLength::Bits12 => 12,
            SnLength::Bits18 => 18,
        }
    }
}

impl SnLength {
    /// Bytes of the header of a data PDU (TS 38.323 §6.2.2).
    #[must_use]
    pub const fn header(self) -> u32 {
        match self {
            Self::Bits12 => 2,
            Self::Bits18 => 3,
        }
    }

    /// What of a count goes on the wire.
    #[must_use]
    pub fn truncate(self, count: u64) -> u32 {
        (count & ((1 << u8::from(self)) - 1)) as u32
    }

    /// The count nearest to `reference` that has these bits.
    #[must_use]
    pub fn expand(self, sn: u32, reference: u64) -> u64 {
        nearest(sn, u8::from(self), reference)
    }
}

/// The count nearest to `reference` whose low `bits` bits are those of `sn`.
#[must_use]
pub fn nearest(sn: u32, bits: u8, reference: u64) -> u64 {
    let modulus = 1_u64 << bits.min(32);
    let sn = u64::from(sn) & (modulus - 1);
    let base = reference & !(modulus - 1);
    let candidates = [base.checked_sub(modulus), Some(base), base.checked_add(modulus)];
    candidates.into_iter().flatten().map(|b| b + sn).min_by_key(|c| c.abs_diff(reference)).unwrap_or(sn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expanding_finds_the_count_that_was_truncated() {
        for length in [SnLength::Bits12, SnLength::Bits18] {
            let half = 1_u64 << (u8::from(length) - 1);
            for reference in [0, 5, half, 2 * half - 1, 2 * half, 1_000_000_007] {
                for count in [reference.saturating_sub(half - 1), reference, reference + half - 1] {
                    assert_eq!(length.expand(length.truncate(count), reference), count, "{length:?} {reference}");
                }
            }
        }
    }

    #[test]
    fn other_lengths_are_refused() {
        assert!(SnLength::try_from(7).is_err());
        assert_eq!(SnLength::try_from(12).map(SnLength::header), Ok(2));
    }
}
