//! What the whole-system tests share: a runtime of their own, a watchdog, and the accounting law.

pub mod hostile;
pub mod pair;
pub mod programs;

use insane::{Session, SessionBuilder};
use insane_runtime::config::Config;
use insane_runtime::server::Server;
use insane_shm::counters::{CellCounts, CellState, Count};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A runtime in this process, on a socket of its own.
#[derive(Debug)]
pub struct Host {
    server: Option<Server>,
    config: Config,
    dir: tempfile::TempDir,
}

impl Host {
    /// Starts one with the default configuration.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn start() -> Self {
        Self::with(|_| ())
    }

    /// Starts one with a changed configuration.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the socket");
        let mut config = Config::default();
        config.runtime.socket = dir.path().join("insaned.sock");
        change(&mut config);
        let server = Server::start(config.clone()).expect("the runtime starts");
        Self { server: Some(server), config, dir }
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("insaned.sock")
    }

    /// A session to be opened with it.
    #[must_use]
    pub fn builder(&self, app: &str) -> SessionBuilder {
        Session::builder(app).socket(self.socket())
    }

    /// A session with it.
    ///
    /// # Panics
    /// When it cannot be opened.
    #[must_use]
    pub fn session(&self, app: &str) -> Session {
        self.builder(app).open().expect("a session")
    }

    /// Stops the runtime.
    pub fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }

    /// Starts it again.
    ///
    /// # Panics
    /// When it cannot.
    pub fn restart(&mut self) {
        self.restart_with(|_| ());
    }

    /// Starts it again with a changed configuration.
    ///
    /// # Panics
    /// When it cannot.
    pub fn restart_with(&mut self, change: impl FnOnce(&mut Config)) {
        self.stop();
        change(&mut self.config);
        self.server = Some(Server::start(self.config.clone()).expect("the runtime starts again"));
    }
}

/// Ends the test's process when it has not finished in time: a hang is a failure that says where it was.
/// Programs that the test has to build first ([`programs::program`]) do not count.
#[derive(Debug)]
pub struct Watchdog {
    _ended: std::sync::mpsc::Sender<()>,
}

impl Watchdog {
    /// Watches until dropped.
    #[must_use]
    pub fn start(what: &'static str, limit: Duration) -> Self {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let (start, before) = (Instant::now(), programs::time_of_builds());
            loop {
                // A program that a test has to build first is no part of what it does.
                let end = limit + (programs::time_of_builds() - before);
                let left = end.saturating_sub(start.elapsed());
                if left.is_zero() {
                    eprintln!("watchdog: {what} has not finished within {limit:?}");
                    std::process::abort();
                }
                if receiver.recv_timeout(left) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        Self { _ended: sender }
    }
}

/// What message `n` of a test says, in `len` bytes: another message, or one of another length, says something else.
#[must_use]
pub fn payload(n: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (n as usize * 7 + i * 31 + len) as u8).collect()
}

/// Sums of the counts of one source's flows at both ends, for the accounting law.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    /// Meant for some sink.
    pub intended: u64,
    /// Ended in a count at the source's end.
    pub at_source: u64,
    /// Ended in a count at the sink's end.
    pub at_sink: u64,
    /// Of these, delivered.
    pub delivered: u64,
}

/// Adds the cells of any number of sessions up.
#[must_use]
pub fn account<'a>(cells: impl IntoIterator<Item = &'a CellCounts>) -> Account {
    let mut sum = Account::default();
    for cell in cells {
        match cell.state {
            CellState::Producing => {
                sum.intended += cell.get(Count::Intended);
                // What a runtime that is gone had counted was taken over, in any of the counts.
                sum.at_source += insane_shm::counters::FINAL_AT_SINK.iter().map(|c| cell.get(*c)).sum::<u64>();
            }
            CellState::Consuming => {
                sum.delivered += cell.get(Count::Delivered);
                sum.at_sink += insane_shm::counters::FINAL_AT_SINK.iter().map(|c| cell.get(*c)).sum::<u64>();
            }
            _ => {}
        }
    }
    sum
}

impl Account {
    /// Whether every intended message is in exactly one state.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.intended == self.at_source + self.at_sink
    }
}

/// Reconciles three independent counts over sessions that have come to rest: what the applications emitted towards sinks (a
/// message to two sinks counts twice), what the counter memory says at both ends, and what the applications of the sinks saw.
///
/// # Panics
/// When the counts do not agree.
pub fn reconcile<'a>(sessions: impl IntoIterator<Item = &'a Session> + Clone, emitted: u64, seen: u64) -> Account {
    reconcile_cells(|| sessions.clone().into_iter().flat_map(Session::counts).collect(), emitted, seen)
}

/// As [`reconcile`], over the cells that `cells` gives: with those of sessions that are closed by now, or of some flows only.
///
/// The ends count a moment after the applications' calls return, so it looks until the law holds, for some seconds.
///
/// # Panics
/// When the counts do not agree.
pub fn reconcile_cells(cells: impl Fn() -> Vec<CellCounts>, emitted: u64, seen: u64) -> Account {
    let end = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        let cells = cells();
        let sum = account(&cells);
        if sum.holds() && (sum.intended, sum.delivered) == (emitted, seen) {
            return sum;
        }
        let counts = format!("emitted towards sinks {emitted}, seen {seen}, counted {sum:?}");
        assert!(std::time::Instant::now() < end, "the accounting law is broken: {counts}\n{cells:#?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
