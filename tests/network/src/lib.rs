//! What the tests of the network side share: hosts that know each other, on loopback addresses.

pub mod cables;
pub mod load;

use insane::{Qos, Reliability};
use insane_datapath::fault::Plan;
use insane_runtime::config::Config;
use insane_tests_host::Host;
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long anything may take that has no limit of its own.
pub const LIMIT: Duration = Duration::from_secs(25);

/// A reliable stream's QoS.
#[must_use]
pub fn reliable() -> Qos {
    let mut qos = Qos::default();
    qos.set_reliability(Reliability::Reliable);
    qos
}

/// Numbers that follow from a seed, which is not 0.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next, from 0 up to below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Two runtimes in processes of their own that know each other.
#[must_use]
pub fn two(program: &str) -> [Process; 2] {
    two_with(program, |_| ())
}

/// As [`two`], with changed configurations.
#[must_use]
pub fn two_with(program: &str, change: impl Fn(&mut Config)) -> [Process; 2] {
    let addresses = free_addresses(2);
    [0, 1].map(|at| {
        let mut config = config(&format!("host-{at}"), addresses[at], &addresses);
        change(&mut config);
        Process::start(program, None, &config)
    })
}

/// Addresses with ports that are free, for UDP.
///
/// The sockets that found them are closed again, and until the runtime has its own, whoever asks the kernel for any port can
/// be given the same one. So each process has an address of its own on the loopback interface, and none is named twice in it.
///
/// # Panics
/// When there are none.
#[must_use]
pub fn free_addresses(count: usize) -> Vec<SocketAddr> {
    unused(count, |address| UdpSocket::bind(address)?.local_addr())
}

/// The same for TCP.
///
/// # Panics
/// When there are none.
#[must_use]
pub fn free_ports(count: usize) -> Vec<SocketAddr> {
    unused(count, |address| TcpListener::bind(address)?.local_addr())
}

fn unused(count: usize, bind: impl Fn(SocketAddr) -> std::io::Result<SocketAddr>) -> Vec<SocketAddr> {
    static NAMED: Mutex<Vec<SocketAddr>> = Mutex::new(Vec::new());
    // The kernel's largest process id has 22 bits; the bit before them keeps clear of 127.0.0.1.
    let own = Ipv4Addr::from_bits(0x7f40_0000 | (std::process::id() & 0x3f_ffff));
    let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    let before = named.len();
    while named.len() < before + count {
        let address = bind((own, 0).into()).expect("a free port");
        if !named.contains(&address) {
            named.push(address);
        }
    }
    named[before..].to_vec()
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

/// Tells threads to go on no longer, when it is dropped: also when the test fails.
#[derive(Debug)]
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Watches for stalls that are the machine's: a thread that wants to run every half millisecond, until it is dropped.
#[derive(Debug)]
pub struct Stalls {
    state: Arc<(AtomicBool, AtomicU64)>,
    thread: Option<JoinHandle<()>>,
}

impl Stalls {
    /// What a thread may be late without being counted: what a scheduler does to each.
    const USUAL: Duration = Duration::from_millis(5);

    /// Begins to watch.
    #[must_use]
    pub fn start() -> Self {
        let state = Arc::new((AtomicBool::new(false), AtomicU64::new(0)));
        let shared = state.clone();
        let watch = move || {
            let mut last = Instant::now();
            while !shared.0.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_micros(500));
                let late = last.elapsed().saturating_sub(Self::USUAL);
                shared.1.fetch_add(u64::try_from(late.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
                last = Instant::now();
            }
        };
        Self { state, thread: Some(std::thread::spawn(watch)) }
    }

    /// How long nobody ran until now, in all.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.state.1.load(Ordering::Relaxed))
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.state.0.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
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

/// How many seconds a long test runs: what the variable says, else `default`.
#[must_use]
pub fn length(variable: &str, default: u64) -> Duration {
    Duration::from_secs(std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default))
}

/// Says how far a long test is, past the harness, which keeps back what a test prints until it has ended.
pub fn progress(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "progress: {text}");
}

/// Leaves the report of a soak test where the runner of those wants it.
///
/// # Panics
/// When it cannot be written.
pub fn leave(report: &Value) {
    if let Ok(path) = std::env::var("INSANE_SOAK_REPORT") {
        std::fs::write(path, format!("{report}\n")).expect("the report");
    }
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

/// The slots and the copies that a runtime has for what arrived, in all its domains: how many, and of how many bytes. `None` if it does
/// not say.
#[must_use]
pub fn arrived(status: &Value) -> Option<[u64; 2]> {
    let domains = status["network"]["memory"].as_array().filter(|domains| !domains.is_empty())?;
    let sum = |name: &str| domains.iter().map(|domain| domain[name].as_u64()).sum::<Option<u64>>();
    Some([sum("slots")?, sum("bytes")? + sum("copied_bytes")?])
}

/// Waits until a runtime has nothing left of what arrived: its sinks were given it, and have given it back.
///
/// # Panics
/// When something is left.
pub fn gives_back_all(session: &insane::Session) {
    // A report is of half a second ago where nothing happens: the first that counts is a newer one.
    std::thread::sleep(Duration::from_millis(600));
    let none = eventually(|| arrived(&status(session)) == Some([0, 0]));
    assert!(none, "of what arrived something is left: {}", status(session)["network"]["memory"]);
}

/// What a process holds of the machine's.
#[derive(Debug, Clone, Copy)]
pub struct Holds {
    /// Open descriptors.
    pub descriptors: usize,
    /// Memory that is there for it, in KiB.
    pub resident_kib: u64,
}

/// A runtime in a process of its own.
#[derive(Debug)]
pub struct Process {
    program: PathBuf,
    /// The network namespace that it runs in.
    namespace: Option<String>,
    child: Option<Child>,
    /// What happens to the frames that it sends.
    faults: Option<(Plan, u64)>,
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
        let mut process = Self { program: program.into(), namespace, child: None, faults: None, dir };
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
        if let Some((plan, seed)) = &mut self.faults {
            *seed += 1;
            let parts = [plan.lose_ppm, plan.repeat_ppm, plan.delay_ppm, plan.change_ppm];
            command.args(parts.map(|n| n.to_string())).arg(seed.to_string());
        }
        self.child = Some(command.spawn().expect("it starts"));
    }

    /// Starts it again, on a bad network from now on.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn again_with(&mut self, faults: Plan, seed: u64) {
        self.faults = Some((faults, seed));
        self.again();
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends it in good order: it closes what it has and goes.
    pub fn leave(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }

    /// The processor time that it has taken, in ticks of 10 ms.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        insane_tests_host::programs::ticks(self.child.as_ref().expect("it was started").id())
    }

    /// Whether it was started and has not ended.
    pub fn lives(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
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

    /// What it holds of the machine's.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn holds(&self) -> Holds {
        let pid = self.child.as_ref().map_or(0, Child::id);
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident_kib = resident.and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok()).expect("a size");
        Holds { descriptors: std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count(), resident_kib }
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("insaned.sock")
    }

    /// A session with it, once it serves.
    ///
    /// # Panics
    /// When it does not serve in time.
    #[must_use]
    pub fn session(&self, app: &str) -> insane::Session {
        self.session_in("", app)
    }

    /// A session of a domain with it, once it serves. Empty: the default domain.
    ///
    /// # Panics
    /// When it does not serve in time.
    #[must_use]
    pub fn session_in(&self, domain: &str, app: &str) -> insane::Session {
        let mut session = None;
        let builder = || insane::Session::builder(app).socket(self.dir.path().join("insaned.sock"));
        let open = || if domain.is_empty() { builder().open() } else { builder().domain(domain).open() };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_is_named_twice() {
        let mut all: Vec<SocketAddr> = (0..100).flat_map(|_| [free_addresses(2), free_ports(1)].concat()).collect();
        assert!(all.iter().all(|address| address.ip().is_loopback() && address.ip() != Ipv4Addr::LOCALHOST));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 300);
    }
}
