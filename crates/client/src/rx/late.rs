//! Messages that came for a sink after it was closed, until its source has said up to where they were still meant for it.

use std::collections::VecDeque;

/// The most runs that are remembered of a closed sink. Sources that take turns on a link make few; of more the oldest count as meant for it.
const MOST: usize = 1 << 14;

/// Positions of the ring at equal distances, with as many messages at each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    first: u64,
    step: u64,
    positions: u64,
    each: u64,
}

impl Run {
    const fn one(position: u64, each: u64) -> Self {
        Self { first: position, step: 1, positions: 1, each }
    }

    const fn last(&self) -> u64 {
        self.first + self.step * (self.positions - 1)
    }

    /// Takes in a position behind it. Whether it fits.
    fn extend(&mut self, position: u64, each: u64) -> bool {
        let Some(step) = position.checked_sub(self.last()).filter(|step| *step > 0) else { return false };
        let fits = each == self.each && (self.positions == 1 || step == self.step);
        if fits {
            (self.step, self.positions) = (step, self.positions + 1);
        }
        fits
    }

    /// How many of its messages lie before a position.
    const fn before(&self, end: u64) -> u64 {
        if end <= self.first {
            return 0;
        }
        let positions = (end - 1 - self.first) / self.step + 1;
        let positions = if positions < self.positions { positions } else { self.positions };
        positions * self.each
    }
}

/// Where messages came and how many, in as little memory as their order allows.
#[derive(Debug, Default)]
pub(crate) struct Late {
    runs: VecDeque<Run>,
    /// The last position, at which more may come, and how many have.
    last: Option<(u64, u64)>,
}

impl Late {
    pub(super) fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// One more message came, at the last position or behind it. Returns how many older ones it has no room to remember.
    pub(super) fn add(&mut self, position: u64) -> u64 {
        if let Some((_, messages)) = self.last.as_mut().filter(|(at, _)| *at == position) {
            *messages += 1;
            return 0;
        }
        let Some((at, messages)) = self.last.replace((position, 1)) else { return 0 };
        if self.runs.back_mut().is_some_and(|run| run.extend(at, messages)) {
            return 0;
        }
        self.runs.push_back(Run::one(at, messages));
        let forgotten = if self.runs.len() > MOST { self.runs.pop_front() } else { None };
        forgotten.map_or(0, |run| run.before(u64::MAX))
    }

    /// How many came before a position.
    pub(super) fn before(&self, end: u64) -> u64 {
        let last = self.last.filter(|(at, _)| *at < end).map_or(0, |(_, messages)| messages);
        self.runs.iter().map(|run| run.before(end)).sum::<u64>() + last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sources that take turns, packs of several messages, and what has no order: always as many before a position as in a plain list.
    #[test]
    fn as_many_are_counted_before_a_position_as_came_there() {
        let mut random = 7u64;
        for case in 0..if cfg!(miri) { 5 } else { 60u64 } {
            let (mut late, mut plain, mut position) = (Late::default(), Vec::new(), case * 1000);
            assert!(late.is_empty());
            for n in 0..200u64 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                position += match case % 4 {
                    0 => 1,
                    1 => 3,
                    2 => 1 + n / 50,
                    _ => 1 + (random >> 60),
                };
                for _ in 0..if case % 3 == 0 { 1 } else { 1 + (random >> 40) % (case % 3 + 1) } {
                    assert_eq!(late.add(position), 0);
                    plain.push(position);
                }
            }
            for end in (plain[0].saturating_sub(2)..position + 3).chain([0, u64::MAX]) {
                let there = plain.iter().filter(|at| **at < end).count() as u64;
                assert_eq!(late.before(end), there, "case {case}, before {end}");
            }
        }
    }

    #[test]
    fn what_comes_in_order_takes_no_memory_and_what_does_not_is_bounded() {
        let count = if cfg!(miri) { 1000 } else { 1_000_000u64 };
        let mut late = Late::default();
        assert_eq!((0..count).map(|n| late.add(n * 2)).sum::<u64>(), 0);
        assert_eq!((late.runs.len(), late.before(u64::MAX), late.before(11)), (1, count, 6));
        let (mut late, most, mut forgotten, mut position) = (Late::default(), MOST as u64 * 3, 0, 0);
        for n in 0..most {
            position += 1 + n * n % 7 + n % 3;
            forgotten += late.add(position) + if n % 5 == 0 { late.add(position) } else { 0 };
        }
        assert!(late.runs.len() <= MOST && forgotten > 0);
        assert_eq!(forgotten + late.before(u64::MAX), most + most.div_ceil(5));
    }
}
