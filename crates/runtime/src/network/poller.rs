//! The network side without a thread of its own.

use crate::network::hub::Hub;

/// The network side of a runtime that was started by [`crate::server::Server::start_polled`]: it does nothing but in the turns that its
/// owner gives it. Whoever has a loop that never sleeps, on a core that nobody else is to have, polls with it.
///
/// Without a turn for `network.silence_ms` a host is lost to the others. Dropped, it says goodbye to them; the server
/// then serves local channels alone. Not shared between threads; may move from one to another.
pub struct Poller(Box<Hub>);

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Poller")
    }
}

impl Poller {
    pub(crate) fn new(hub: Hub) -> Self {
        Self(Box::new(hub))
    }

    /// One look at everything: sends what local sources have emitted, a bounded burst of each, receives what has come and hands it out,
    /// does what is due by time, and wakes sinks that sleep. Returns whether there was something to do, never again once the server has
    /// stopped. Never waits.
    pub fn turn(&mut self) -> bool {
        let now = self.0.now();
        !self.0.is_stopping() && self.0.turn(now)
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.0.farewell();
    }
}
