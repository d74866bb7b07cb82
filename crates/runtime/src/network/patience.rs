//! How long who polls goes on looking before it sleeps: as long as that saves sleeps.
//!
//! That is learned apart for what follows what. In a control loop the answer follows the question at once, and the next question
//! the answer only much later: taken together neither is worth waiting for, since each second sleep is a long one.

use crate::config;
use insane_datapath::thread::Looking;
use insane_shm::hogs::Hogs;
use std::time::{Duration, Instant};

/// Who is to look so long at least has been given a core of its own; below, the core is offered to others with each look.
const OWN_CORE: Duration = Duration::from_millis(1);

/// What was done last, on which it depends how soon there is something to do again.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Last {
    /// Messages of local sources were taken: what may follow is an answer from another host.
    #[default]
    Took,
    /// Messages of other hosts were handed out: what may follow is an answer of a local sink.
    HandedOut,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Patience {
    pub(crate) most: Duration,
    /// How long it looks now, by what was done last.
    spin: [Looking; 2],
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
        let (spin, polite) = ([Looking::new(least, most); 2], least < OWN_CORE);
        Self { most, spin, busy_at: Duration::ZERO, polite, hogs: Hogs::default() }
    }

    /// Whether it has looked for long enough after what was done last.
    pub(crate) fn is_over(&self, now: Duration, last: Last) -> bool {
        now.saturating_sub(self.busy_at) >= self.spin[last as usize].time()
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
    pub(crate) fn slept(&mut self, now: Duration, woken: bool, last: Last) {
        self.spin[last as usize].slept(now.saturating_sub(self.busy_at), woken);
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
        assert!(one.is_over(us(0), Last::Took) && one.polite);
        let mut until = Vec::new();
        for woken_after in [10, 10, 10, 10, 500, 500, 500, 500, 500, 500, 500, 500] {
            one.busy_at = us(1000);
            one.slept(us(1000 + woken_after), true, Last::Took);
            until.push(one.spin[Last::Took as usize].time().as_nanos() / 100);
        }
        assert_eq!(until[..6], [200, 400, 800, 1000, 500, 250]);
        // A sleep that a timer ended says nothing.
        let before = one.spin;
        one.slept(us(1010), false, Last::Took);
        assert_eq!(one.spin, before);
    }

    #[test]
    fn in_a_control_loop_only_the_answer_is_waited_for() {
        let mut far = patience(0, 200);
        let mut sleeps = 0;
        for period in 0..100 {
            // A message is handed out every millisecond; 60 microseconds later its sink answers.
            for (last, at, gap) in [(Last::HandedOut, 0, 60), (Last::Took, 60, 940)] {
                far.busy_at = us(period * 1000 + at);
                let next = far.busy_at + us(gap);
                if far.is_over(next, last) {
                    far.slept(next, true, last);
                    sleeps += 1;
                }
            }
        }
        assert_eq!(far.spin[Last::Took as usize].time(), us(0));
        assert_eq!(sleeps, 100 + 3, "the answer is slept for until as much patience was learned");
    }

    #[test]
    fn who_has_a_core_alone_does_not_offer_it_and_looks_as_long_as_it_is_told() {
        let mut alone = patience(1_000, 0);
        alone.busy_at = us(50);
        assert!(!alone.polite && !alone.is_over(us(1_049), Last::Took) && alone.is_over(us(1_050), Last::Took));
        alone.slept(us(9_000), true, Last::Took);
        assert!(!alone.is_over(us(1_049), Last::Took));
    }
}
