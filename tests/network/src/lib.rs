//! What the tests of the network side share: hosts that know each other, on loopback addresses.

use insane_runtime::config::Config;
use insane_tests_host::Host;
use serde_json::Value;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take that has no limit of its own.
pub const LIMIT: Duration = Duration::from_secs(25);

/// Addresses with ports that are free now.
///
/// # Panics
/// When there are none.
#[must_use]
pub fn free_addresses(count: usize) -> Vec<SocketAddr> {
    let sockets: Vec<UdpSocket> = (0..count).map(|_| UdpSocket::bind("127.0.0.1:0").expect("a free port")).collect();
    sockets.iter().map(|s| s.local_addr().expect("an address")).collect()
}

/// Runtimes that know each other.
#[must_use]
pub fn hosts(count: usize, change: impl Fn(usize, &mut Config)) -> Vec<Host> {
    let addresses = free_addresses(count);
    (0..count)
        .map(|at| {
            Host::with(|config| {
                config.runtime.host = format!("host-{at}");
                let network = config.network.get_or_insert_default();
                network.listen = addresses[at];
                network.peers = addresses.iter().copied().filter(|a| *a != addresses[at]).collect();
                change(at, config);
            })
        })
        .collect()
}

/// Waits until something holds, at most [`LIMIT`].
pub fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    within(LIMIT, &mut holds)
}

/// Waits until something holds, at most so long.
pub fn within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < limit {
        if holds() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    holds()
}

/// A runtime's report.
///
/// # Panics
/// When it gives none.
#[must_use]
pub fn status(session: &insane::Session) -> Value {
    serde_json::from_str(&session.report("status").expect("a report")).expect("JSON")
}

/// The sum of one count over the cells of the network's sessions in a report.
#[must_use]
pub fn network_count(status: &Value, name: &str) -> u64 {
    let sessions = status["sessions"].as_array().into_iter().flatten().filter(|s| s["app"] == "network");
    let cells = sessions.flat_map(|s| s["counters"].as_array().into_iter().flatten());
    cells.filter_map(|c| c["counts"][name].as_u64()).sum()
}

/// A runtime in a process of its own.
#[derive(Debug)]
pub struct Process {
    program: PathBuf,
    /// The network namespace that it runs in.
    namespace: Option<String>,
    child: Option<Child>,
    dir: tempfile::TempDir,
}

impl Process {
    /// Starts one. `program` is the test crate's `runtime`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(program: &str, namespace: Option<&str>, config: &Config) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = config.clone();
        config.runtime.socket = dir.path().join("insaned.sock");
        std::fs::write(dir.path().join("insaned.toml"), config.to_toml()).expect("it can be written");
        let namespace = namespace.map(str::to_owned);
        let mut process = Self { program: program.into(), namespace, child: None, dir };
        process.again();
        process
    }

    /// Starts it again.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn again(&mut self) {
        self.kill();
        let mut command = match &self.namespace {
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace]).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command.arg(self.dir.path().join("insaned.toml")).stdin(Stdio::piped());
        self.child = Some(command.spawn().expect("it starts"));
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let child = self.child.as_ref().map(|c| i32::try_from(c.id()).unwrap_or(0));
        if let Some(pid) = child.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Stops it where it is.
    pub fn hold(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    /// How many sockets it has that are not Unix sockets.
    #[must_use]
    pub fn network_sockets(&self) -> usize {
        let pid = self.child.as_ref().map_or(0, Child::id);
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
        let unix = read("unix");
        let local: Vec<&str> = unix.lines().filter_map(|l| l.split_whitespace().nth(6)).collect();
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let links = entries.filter_map(|e| Some(std::fs::read_link(e.path()).ok()?.to_string_lossy().into_owned()));
        let inodes = links.filter_map(|l| Some(l.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()));
        inodes.filter(|inode| !local.contains(&inode.as_str())).count()
    }

    /// A session with it, once it serves.
    ///
    /// # Panics
    /// When it does not serve in time.
    #[must_use]
    pub fn session(&self, app: &str) -> insane::Session {
        let mut session = None;
        let open = || insane::Session::builder(app).socket(self.dir.path().join("insaned.sock")).open();
        eventually(|| {
            session = open().ok();
            session.is_some()
        });
        session.expect("a session")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A configuration of a host.
#[must_use]
pub fn config(name: &str, listen: SocketAddr, peers: &[SocketAddr]) -> Config {
    let mut config = Config::default();
    config.runtime.host = name.into();
    let network = config.network.get_or_insert_default();
    (network.listen, network.peers) = (listen, peers.iter().copied().filter(|p| *p != listen).collect());
    config
}

/// The counts of one source's flows to sinks of other hosts: what was meant for them, what ended in a count before the network,
/// and what in a count of the network's cells.
#[must_use]
pub fn at_the_source(session: &insane::Session) -> (u64, u64, Value) {
    let account = insane_tests_host::account(&session.counts());
    let report = status(session);
    (account.intended, account.at_source, report)
}

/// The counts that end a message in a cell of the network's.
pub const ENDS: [&str; 7] = ["delivered", "expired", "sink_closed", "invalid", "sink_full", "unconfirmed", "dropped"];

/// Whether every message that a session's sources emitted for sinks of other hosts is in exactly one count. All of its sinks
/// must be on other hosts, and no other session of its host may have such sources.
#[must_use]
pub fn law_holds(session: &insane::Session) -> bool {
    let (intended, at_source, report) = at_the_source(session);
    let ended: u64 = ENDS.iter().map(|name| network_count(&report, name)).sum();
    intended == at_source + ended
}

/// What the law has to do with, in words.
#[must_use]
pub fn law(session: &insane::Session) -> String {
    let (intended, at_source, report) = at_the_source(session);
    let ended: Vec<String> = ENDS.iter().map(|name| format!("{name} {}", network_count(&report, name))).collect();
    format!("intended {intended}, at the source {at_source}, in the network {ended:?}, {}", report["network"])
}
