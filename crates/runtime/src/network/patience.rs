//! How long who polls goes on looking before it sleeps: as long as that saves sleeps.

use crate::config;
use insane_shm::hogs::Hogs;
use std::time::{Duration, Instant};

/// Who is to look so long at least has been given a core of its own; below, the core is offered to others with each look.
const OWN_CORE: Duration = Duration::from_millis(1);

/// To what the time grows first.
const GROWS: Duration = Duration::from_micros(20);

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Patience {
    least: Duration,
    pub(crate) most: Duration,
    /// How long it looks now.
    spin: Duration,
    pub(crate) busy_at: Duration,
    /// It offers the core to others.
    pub(crate) polite: bool,
    /// Others on its core that do not give that back.
    pub(crate) hogs: Hogs,
}

impl Patience {
    pub(crate) fn new(settings: &config::Network) -> Self {
        let least = Duration::from_micros(settings.spin_us);
        let most = least.max(Duration::from_micros(settings.spin_most_us));
        Self { least, most, spin: least, busy_at: Duration::ZERO, polite: least < OWN_CORE, hogs: Hogs::default() }
    }

    /// Whether it has looked for long enough.
    pub(crate) fn is_over(&self, now: Duration) -> bool {
        now.saturating_sub(self.busy_at) >= self.spin
    }

    /// Whether others have this core who do not give it back when it is offered: asleep it is back as soon as it is woken. `done`
    /// is how much there has ever been to do.
    pub(crate) fn is_crowded(&self, now: Duration, done: impl FnOnce() -> u64) -> bool {
        self.polite && self.hogs.are_there(|| now, done)
    }

    /// Offers the core to others: whom it waits for may be waiting for it.
    pub(crate) fn offer(&self, done: impl FnOnce() -> u64) {
        let before = Instant::now();
        rustix::thread::sched_yield();
        self.hogs.offered(before.elapsed(), done);
    }

    /// Between two looks.
    pub(crate) fn go_on(&self, done: impl FnOnce() -> u64) {
        if self.polite { self.offer(done) } else { std::hint::spin_loop() }
    }

    /// It has slept: more patience, as long as some more would have saved that; less once it is in vain.
    pub(crate) fn slept(&mut self, now: Duration, woken: bool) {
        if now.saturating_sub(self.busy_at) >= self.most {
            self.spin = (self.spin / 2).max(self.least);
        } else if woken {
            self.spin = (self.spin * 2).max(GROWS).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn patience(spin_us: u64, spin_most_us: u64) -> Patience {
        Patience::new(&config::Network { spin_us, spin_most_us, ..config::Network::default() })
    }

    #[test]
    fn patience_grows_with_sleeps_that_it_would_have_saved_and_shrinks_with_others() {
        let mut one = patience(0, 100);
        assert!(one.is_over(us(0)) && one.polite);
        let mut until = Vec::new();
        for woken_after in [10, 10, 10, 10, 500, 500, 500, 500, 500, 500, 500, 500] {
            one.busy_at = us(1000);
            one.slept(us(1000 + woken_after), true);
            until.push(one.spin.as_nanos() / 100);
        }
        assert_eq!(until[..6], [200, 400, 800, 1000, 500, 250]);
        // A sleep that a timer ended says nothing.
        let before = one.spin;
        one.slept(us(1010), false);
        assert_eq!(one.spin, before);
    }

    #[test]
    fn who_has_a_core_alone_does_not_offer_it_and_looks_as_long_as_it_is_told() {
        let mut alone = patience(1_000, 0);
        alone.busy_at = us(50);
        assert!(!alone.polite && !alone.is_over(us(1_049)) && alone.is_over(us(1_050)));
        alone.slept(us(9_000), true);
        assert!(!alone.is_over(us(1_049)));
    }
}
