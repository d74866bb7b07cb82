//! When to try again to send what a session's socket did not take.

use std::time::Duration;

/// The first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(128));

/// The pause before the next try; `last` was in vain, if there was one.
pub(crate) fn pause(last: Option<Duration>) -> Duration {
    last.map_or(PAUSES.0, |last| (last * 2).min(PAUSES.1))
}
