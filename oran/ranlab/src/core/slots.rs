//! The TDD pattern: which slot of the frame carries what.

use insane_traffic::{Span, Time};

/// What a slot carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotKind {
    /// Downlink data.
    Downlink,
    /// A few symbols of downlink, the gap, a few symbols of uplink.
    Mixed,
    /// Uplink data.
    Uplink,
    /// Downlink, but all of it taken by synchronisation and system information.
    Reserved,
}

/// A repeating pattern of slots.
#[derive(Clone, Debug)]
pub struct Pattern {
    kinds: Vec<SlotKind>,
    length: Span,
}

impl Pattern {
    /// The pattern of the letters D, M and U, each a slot of `length`. Within each period of `frame` slots the slots of
    /// `reserved` carry no data. `None` if a letter is another, nothing repeats, or there are too many slots.
    #[must_use]
    pub fn new(letters: &str, length: Span, frame: usize, reserved: &[u16]) -> Option<Self> {
        let letters: Vec<char> = letters.chars().collect();
        if letters.is_empty() || letters.len() > 160 || frame == 0 || frame > 160 || length == Span::ZERO {
            return None;
        }
        // As long as both periods take to meet again.
        let total = (1..=frame).map(|n| n * letters.len()).find(|n| n % frame == 0)?;
        let kind = |n: usize| match letters[n % letters.len()] {
            'D' if reserved.iter().any(|&r| usize::from(r) == n % frame) => Some(SlotKind::Reserved),
            'D' => Some(SlotKind::Downlink),
            'M' => Some(SlotKind::Mixed),
            'U' => Some(SlotKind::Uplink),
            _ => None,
        };
        Some(Self { kinds: (0..total).map(kind).collect::<Option<_>>()?, length })
    }

    /// What slot `n` carries.
    #[must_use]
    pub fn kind(&self, n: u64) -> SlotKind {
        self.kinds[(n % self.kinds.len() as u64) as usize]
    }

    /// When slot `n` begins.
    #[must_use]
    pub const fn start(&self, n: u64) -> Time {
        Time::from_nanos(n.saturating_mul(self.length.nanos()))
    }

    /// The length of a slot.
    #[must_use]
    pub const fn slot(&self) -> Span {
        self.length
    }

    /// How many slots of a kind there are in one period, and how many slots the period has.
    #[must_use]
    pub fn share(&self, kind: SlotKind) -> (usize, usize) {
        (self.kinds.iter().filter(|k| **k == kind).count(), self.kinds.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_repeats_and_reserved_slots_are_those_of_the_frame() {
        let pattern = Pattern::new("DDDDDDDMUU", Span::from_micros(500), 20, &[0, 10]).unwrap();
        assert_eq!(pattern.share(SlotKind::Downlink), (12, 20));
        assert_eq!(pattern.share(SlotKind::Uplink), (4, 20));
        assert_eq!([0, 1, 7, 8, 10, 20, 21].map(|n| pattern.kind(n)), {
            use SlotKind::*;
            [Reserved, Downlink, Mixed, Uplink, Reserved, Reserved, Downlink]
        });
        assert_eq!(pattern.start(21), Time::from_micros(10_500));
    }

    #[test]
    fn periods_that_do_not_divide_each_other_meet_at_their_common_multiple() {
        let pattern = Pattern::new("DDU", Span::from_millis(1), 10, &[0]).unwrap();
        assert_eq!(pattern.share(SlotKind::Uplink), (10, 30));
        assert_eq!(pattern.share(SlotKind::Reserved), (2, 30));
    }

    #[test]
    fn other_letters_and_empty_patterns_are_refused() {
        for bad in ["", "DDX", "ddu"] {
            assert!(Pattern::new(bad, Span::from_millis(1), 20, &[]).is_none(), "{bad}");
        }
        assert!(Pattern::new("D", Span::ZERO, 20, &[]).is_none());
        assert!(Pattern::new("D", Span::from_millis(1), 0, &[]).is_none());
    }
}
