//! Which frames of the peer have arrived: for acknowledging them and for refusing those that come twice.

use std::collections::VecDeque;

/// The most separate runs that are remembered. What is older than them counts as seen.
const RUNS: usize = 64;

/// Runs of counters, the largest first.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    runs: VecDeque<(u64, u64)>,
    /// Everything up to here counts as seen.
    floor: u64,
}

impl Seen {
    /// Whether a counter is new; nothing is recorded.
    #[inline]
    pub(crate) fn is_new(&self, counter: u64) -> bool {
        counter > self.floor && !self.runs.iter().any(|run| (run.0..=run.1).contains(&counter))
    }

    /// The largest so far; 0 for none.
    pub(crate) fn largest(&self) -> u64 {
        self.runs.front().map_or(0, |run| run.1)
    }

    /// Records a counter that is new. Says whether it is the next after the largest.
    #[inline]
    pub(crate) fn add(&mut self, counter: u64) -> bool {
        if let Some(front) = self.runs.front_mut()
            && front.1 + 1 == counter
        {
            front.1 = counter;
            return true;
        }
        let in_order = self.runs.is_empty();
        let at = self.runs.iter().position(|run| run.1 < counter).unwrap_or(self.runs.len());
        let touches_above = at > 0 && self.runs[at - 1].0 == counter + 1;
        let touches_below = self.runs.get(at).is_some_and(|run| run.1 + 1 == counter);
        match (touches_above, touches_below) {
            (true, true) => {
                self.runs[at - 1].0 = self.runs[at].0;
                self.runs.remove(at);
            }
            (true, false) => self.runs[at - 1].0 = counter,
            (false, true) => self.runs[at].1 = counter,
            (false, false) => self.runs.insert(at, (counter, counter)),
        }
        if self.runs.len() > RUNS
            && let Some(oldest) = self.runs.pop_back()
        {
            self.floor = self.floor.max(oldest.1);
        }
        in_order
    }

    /// Records so many counters after the largest.
    #[inline]
    pub(crate) fn goes_on(&mut self, count: u64) {
        if let Some(front) = self.runs.front_mut() {
            front.1 += count;
        }
    }

    /// The runs of which an acknowledgement can tell, the largest first: without those that are further above the next than it can say,
    /// which are of nobody who counts on.
    pub(crate) fn to_tell(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let far = |(high, low): &((u64, u64), (u64, u64))| high.0 - low.1 > u32::MAX.into();
        let astray = self.runs().zip(self.runs().skip(1)).take_while(far).count();
        self.runs().skip(astray)
    }

    /// The runs, the largest first.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.runs.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_was_seen_is_never_new_again() {
        let (mut seen, mut oracle, mut x) = (Seen::default(), BTreeSet::new(), 1u64);
        for n in 0..if cfg!(miri) { 300 } else { 20_000u64 } {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let counter = (n / 2 + (x >> 33) % 40).max(1);
            if seen.is_new(counter) {
                assert!(oracle.insert(counter), "{counter} twice");
                seen.add(counter);
            }
            assert!(!seen.is_new(counter) && seen.runs.len() <= RUNS);
        }
        assert!(seen.runs().zip(seen.runs().skip(1)).all(|(high, low)| low.1 + 1 < high.0));
        assert_eq!(seen.largest(), *oracle.last().unwrap());
    }
}
