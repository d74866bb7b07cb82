//! A bound on how often something is done.

/// So many a second, and so many at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Per second, on average.
    pub per_second: u32,
    /// At once, after a pause.
    pub burst: u32,
}

/// Keeps a [`Rate`].
#[derive(Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    /// Nanoseconds saved up, not more than the burst costs.
    saved: u64,
    last: u64,
}

impl Bucket {
    pub(crate) fn new(rate: Rate) -> Self {
        let mut bucket = Self { rate, saved: 0, last: 0 };
        bucket.saved = bucket.most();
        bucket
    }

    fn cost(&self) -> u64 {
        1_000_000_000 / u64::from(self.rate.per_second.max(1))
    }

    fn most(&self) -> u64 {
        self.cost() * u64::from(self.rate.burst)
    }

    /// Whether it may be done now; if so, it counts as done.
    pub(crate) fn take(&mut self, now: u64) -> bool {
        if self.rate.per_second == 0 {
            return false;
        }
        self.saved = self.saved.saturating_add(now.saturating_sub(self.last)).min(self.most());
        self.last = self.last.max(now);
        let cost = self.cost();
        let may = self.saved >= cost;
        if may {
            self.saved -= cost;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_the_rate() {
        let mut bucket = Bucket::new(Rate { per_second: 10, burst: 3 });
        let mut at = |now_ms: u64| (0..100).filter(|_| bucket.take(now_ms * 1_000_000)).count();
        assert_eq!([at(0), at(50), at(100), at(1000), at(500)], [3, 0, 1, 3, 0]);
        assert!(!Bucket::new(Rate { per_second: 0, burst: 9 }).take(1));
    }
}
