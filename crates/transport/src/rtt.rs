//! The round-trip time: smoothed, its variation, and how long to wait for an answer (RFC 6298, with the clock's granularity
//! and the peer's acknowledgement delay as in RFC 9002 §5).

use std::time::Duration;

/// Timers finer than this are not worth having.
const GRANULARITY: Duration = Duration::from_micros(500);

/// No answer is waited for in vain for less.
pub(crate) const SOONEST: Duration = GRANULARITY;

/// Before anything was measured.
const INITIAL: Duration = Duration::from_millis(50);

/// The longest time that is waited for an answer.
const MOST: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Rtt {
    smoothed: Duration,
    variation: Duration,
    latest: Duration,
    measured: bool,
}

impl Default for Rtt {
    fn default() -> Self {
        Self { smoothed: INITIAL, variation: INITIAL / 2, latest: INITIAL, measured: false }
    }
}

impl Rtt {
    pub(crate) fn sample(&mut self, time: Duration) {
        self.latest = time;
        if self.measured {
            let off = self.smoothed.abs_diff(time);
            self.variation = (self.variation * 3 + off) / 4;
            self.smoothed = (self.smoothed * 7 + time) / 8;
        } else {
            (self.smoothed, self.variation, self.measured) = (time, time / 2, true);
        }
    }

    pub(crate) fn smoothed(&self) -> Duration {
        self.smoothed
    }

    /// How long to wait for an acknowledgement, `backoff` doublings on.
    pub(crate) fn timeout(&self, ack_delay: Duration, backoff: u32) -> Duration {
        let once = self.smoothed + (self.variation * 4).max(GRANULARITY) + ack_delay;
        once.saturating_mul(1 << backoff.min(10)).min(MOST)
    }

    /// How much later than the newest acknowledged frame an older one may be before it counts as lost (RACK).
    pub(crate) fn reordering(&self) -> Duration {
        (self.smoothed.max(self.latest) * 5 / 4).max(GRANULARITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_follows_the_round_trip_time_and_backs_off() {
        let mut rtt = Rtt::default();
        for _ in 0..100 {
            rtt.sample(Duration::from_millis(10));
        }
        assert_eq!(rtt.smoothed(), Duration::from_millis(10));
        let once = rtt.timeout(Duration::ZERO, 0);
        assert!(once >= Duration::from_millis(10) && once < Duration::from_millis(12), "{once:?}");
        assert_eq!(rtt.timeout(Duration::ZERO, 2), once * 4);
        assert_eq!(rtt.timeout(Duration::ZERO, 40), MOST);
    }
}
