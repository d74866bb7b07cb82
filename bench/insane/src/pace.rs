//! Sending at a steady pace.

use bench_harness::sys::{now_ns, sleep_precisely, sleep_until};

/// From one message to the next, in nanoseconds: twenty thousand a second.
const PACE_NS: u64 = 50_000;
/// What is later than this is not sent any more, in nanoseconds.
const LATE_NS: u64 = 1_000_000;

/// When the next message is due. What a longer stop has made late is not made up for: it would be a burst.
#[derive(Debug)]
pub(crate) struct Pace {
    due: u64,
}

impl Pace {
    /// A pace that begins now, for the calling thread.
    pub(crate) fn new() -> Self {
        sleep_precisely();
        Self { due: now_ns() }
    }

    /// Waits until the next message is due.
    pub(crate) fn wait(&mut self) {
        if now_ns() < self.due {
            sleep_until(self.due);
        }
        self.due = self.after(now_ns());
    }

    fn after(&self, now: u64) -> u64 {
        self.due.max(now.saturating_sub(LATE_NS)) + PACE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_is_made_up_for_and_a_longer_stop_is_not() {
        let pace = Pace { due: 5_000_000 };
        assert_eq!(pace.after(5_000_010), 5_000_000 + PACE_NS);
        assert_eq!(pace.after(5_900_000), 5_000_000 + PACE_NS);
        assert_eq!(pace.after(9_000_000), 9_000_000 - LATE_NS + PACE_NS);
    }
}
