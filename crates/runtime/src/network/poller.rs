//! The network side without a thread of its own.

use crate::network::Begins;
use crate::network::hub::Hub;
use crate::network::patience::Patience;
use rustix::fd::BorrowedFd;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// The network side of a runtime that was started by [`crate::server::Server::start_polled`]: it does nothing but in the turns that its
/// owner gives it. For an application with a loop of its own, which then is a process less on each message's way: a loop that never
/// sleeps calls [`Self::turn`] again and again; one that does asks [`Self::idle`] when there was nothing, and then [`Self::sleep`]s.
///
/// ```no_run
/// use insane_runtime::{config::Config, server::Server};
/// use std::time::Duration;
///
/// let mut config = Config::default();
/// config.runtime.socket = "/tmp/insane-example.sock".into();
/// config.network.get_or_insert_default();
/// let (server, poller) = Server::start_polled(config)?;
/// let mut poller = poller.expect("there is a network");
/// // The application opens its session at that socket, then:
/// loop {
///     let busy = poller.turn();
///     // Here it takes what its sinks have, and emits.
///     if !busy && poller.idle() {
///         // Nothing came for a while. A `WaitSet` that is armed first belongs beside, for what comes from its own host.
///         poller.sleep(&[], Duration::from_secs(1));
///     }
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), insane_runtime::server::StartError>(())
/// ```
///
/// Such a loop does little between two turns: what comes meanwhile and has no room in the datapath's buffers is lost, best effort, or sent
/// again, reliable, and without a turn for `network.silence_ms` a host is lost to the others. Dropped, it says goodbye to them; the server
/// then serves local channels alone. Not shared between threads; may move from one to another.
pub struct Poller {
    hub: Box<Hub>,
    patience: Patience,
    /// What it takes to begin, until it has.
    first: Option<(Receiver<()>, Begins)>,
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Poller")
    }
}

impl Poller {
    /// It begins when all datapaths `tried` to open.
    pub(crate) fn new(hub: Hub, tried: Receiver<()>, begins: Begins) -> Self {
        let patience = Patience::new(&hub.settings);
        Self { hub: Box::new(hub), patience, first: Some((tried, begins)) }
    }

    /// Waits for that, as [`Hub::begin`].
    pub(crate) fn begin(&mut self) {
        if let Some((tried, _begins)) = self.first.take() {
            self.hub.begin(&tried);
        }
    }

    /// One look at everything: sends what local sources have emitted, a bounded burst of each, receives what has come and hands it out,
    /// does what is due by time, and wakes sinks that sleep. Returns whether there was something to do, never again once the server has
    /// stopped. Never waits.
    pub fn turn(&mut self) -> bool {
        let now = self.hub.now();
        !self.hub.is_stopping() && self.hub.look_round(now, &mut self.patience)
    }

    /// Between two turns, when neither the last one nor the owner has found anything: `true`, nothing was there for so long that the
    /// thread of a runtime would sleep now (`network.spin_us`, `network.spin_most_us`), and so may the owner; `false`, it would look
    /// again, and the core was offered to others, unless the configuration says that it is this loop's alone. Never waits for longer
    /// than others take that core.
    pub fn idle(&mut self) -> bool {
        let over = self.hub.is_stopping() || self.hub.may_sleep(self.hub.now(), &self.patience);
        if !over {
            self.patience.go_on(|| self.hub.done());
        }
        over
    }

    /// Sleeps until there is something for a turn, a descriptor of `also` is readable, a signal comes, or `at_most` is over. Returns
    /// whether there may be something; after either, a turn comes next. It returns sooner than it need where something is due by time or
    /// where a datapath can wake nobody, so it belongs in a loop. Once the server has stopped it returns at once.
    ///
    /// `also` is what the owner waits for besides, such as a `WaitSet` of the sinks on which it awaits messages of its own host; those
    /// of other hosts come by the turns.
    pub fn sleep(&mut self, also: &[BorrowedFd<'_>], at_most: Duration) -> bool {
        let now = self.hub.now();
        !self.hub.is_stopping() && self.hub.sleep_patiently(now, &mut self.patience, also, at_most)
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.hub.farewell();
    }
}
