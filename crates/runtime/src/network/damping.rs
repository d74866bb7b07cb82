//! How long a datapath that was lost must stand before streams come back to it.
//!
//! What is lost is left at once. If streams came back at once, too, they would move twice with each flap of an interface or of a
//! neighbour. So the first loss holds them off for a while, and each further one for twice as long, up to a limit; once the datapath has
//! stood for as long as that limit beyond its hold, its losses are forgotten. Who opens a stream, insists on a datapath or asks for it is
//! not held off.

use crate::config;
use std::time::Duration;

/// Further losses make no hold longer: it is past any limit.
const MOST_LOSSES: u32 = 24;

/// How long streams are held off: by the first loss, and at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holds {
    first: Duration,
    most: Duration,
}

impl Holds {
    pub(crate) fn new(settings: &config::Network) -> Self {
        let first = Duration::from_millis(settings.return_ms);
        Self { first, most: Duration::from_millis(settings.return_most_ms).max(first) }
    }

    fn after(self, losses: u32) -> Duration {
        let doubled = losses.checked_sub(1).map_or(Duration::ZERO, |further| self.first.saturating_mul(1 << further));
        doubled.min(self.most)
    }
}

/// What is remembered of a path over one datapath.
#[derive(Debug, Clone, Default)]
pub(crate) struct Steadiness {
    /// Since when it stands.
    since: Option<Duration>,
    losses: u32,
    /// Until when streams are held off, and how long that is in all.
    hold: Option<(Duration, Duration)>,
}

impl Steadiness {
    /// The path stands.
    pub(crate) fn stands(&mut self, now: Duration, holds: Holds) {
        self.since = Some(now);
        let hold = holds.after(self.losses);
        self.hold = (!hold.is_zero()).then_some((now + hold, hold));
    }

    /// It does not any more.
    pub(crate) fn falls(&mut self, now: Duration, holds: Holds) {
        let Some(since) = self.since.take() else { return };
        let known = if now.saturating_sub(since) < holds.after(self.losses) + holds.most { self.losses } else { 0 };
        (self.losses, self.hold) = ((known + 1).min(MOST_LOSSES), None);
    }

    /// Whether streams are to go on where they are for now.
    pub(crate) fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    /// Until when, and for how long in all.
    pub(crate) fn hold(&self) -> Option<(Duration, Duration)> {
        self.hold
    }

    /// Time has passed. Returns whether streams may come from now on.
    pub(crate) fn on_time(&mut self, now: Duration) -> bool {
        self.hold.take_if(|(until, _)| *until <= now).is_some()
    }

    /// How often it was lost is of no meaning any more. Returns whether streams may come from now on.
    pub(crate) fn forget(&mut self) -> bool {
        self.losses = 0;
        self.hold.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn holds(first: u64, most: u64) -> Holds {
        Holds::new(&config::Network { return_ms: first, return_most_ms: most, ..config::Network::default() })
    }

    /// For how long streams are held off after each of so many losses, each so long after the path stood.
    fn held(steadiness: &mut Steadiness, now: &mut Duration, stood: Duration, losses: usize, holds: Holds) -> Vec<u64> {
        let loss = |_| {
            *now += stood;
            steadiness.falls(*now, holds);
            assert!(!steadiness.is_held(), "what is lost holds nobody");
            *now += seconds(1);
            steadiness.stands(*now, holds);
            steadiness.hold().map_or(0, |(_, hold)| hold.as_secs())
        };
        (0..losses).map(loss).collect()
    }

    #[test]
    fn each_loss_holds_streams_off_for_twice_as_long_up_to_a_limit_and_is_forgotten_in_time() {
        let (mut one, mut now, holds) = (Steadiness::default(), seconds(5), holds(1000, 60_000));
        one.stands(now, holds);
        assert!(!one.is_held(), "it was never lost");
        assert_eq!(held(&mut one, &mut now, seconds(3), 8, holds), [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(held(&mut one, &mut now, seconds(59), 40, holds), [60; 40]);
        // Streams were back for as long as they are held off at most.
        assert_eq!(held(&mut one, &mut now, seconds(119), 1, holds), [60]);
        assert_eq!(held(&mut one, &mut now, seconds(120), 2, holds), [1, 1]);
        assert_eq!(held(&mut one, &mut now, seconds(60), 2, holds), [2, 4]);
        assert!(one.forget() && !one.forget());
        assert_eq!(held(&mut one, &mut now, seconds(1), 2, holds), [1, 2]);
    }

    #[test]
    fn a_hold_ends_when_its_time_is_over_and_not_before() {
        let (mut one, mut now, holds) = (Steadiness::default(), seconds(5), holds(1000, 60_000));
        one.stands(now, holds);
        assert_eq!(held(&mut one, &mut now, seconds(3), 2, holds), [1, 2]);
        assert!(!one.on_time(now + Duration::from_millis(1999)) && one.is_held());
        assert!(one.on_time(now + seconds(2)) && !one.is_held());
        assert!(!one.on_time(now + seconds(3)), "that is said once");
        // A second word about one loss is none.
        one.falls(now, holds);
        one.falls(now, holds);
        one.stands(now, holds);
        assert_eq!(one.hold(), Some((now + seconds(4), seconds(4))));
    }

    #[test]
    fn nobody_is_held_off_if_that_is_not_wanted_and_the_limit_is_never_below_the_first() {
        let (mut one, mut now) = (Steadiness::default(), seconds(5));
        one.stands(now, holds(0, 60_000));
        assert_eq!(held(&mut one, &mut now, seconds(3), 3, holds(0, 60_000)), [0; 3]);
        assert!(!one.is_held());
        one.forget();
        assert_eq!(held(&mut one, &mut now, seconds(3), 3, holds(5000, 1000)), [5; 3]);
    }
}
