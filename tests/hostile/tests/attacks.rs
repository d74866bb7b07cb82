//! Hostile peers, as the same user and as another one: the others lose nothing, the runtime neither ends, blocks nor grows.

use insane::{CellCounts, Qos, Session};
use insane_tests_host::programs::{copy_program, program};
use insane_tests_host::{Watchdog, reconcile_cells};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);
const NOBODY: u32 = 65_534;

/// Private memory that the runtime may gain under attack, in KiB.
const GROWTH_KIB: u64 = 6 << 10;

/// Private memory that the honest peers may gain, in KiB.
const OWN_GROWTH_KIB: u64 = 48 << 10;

/// One test at a time: they all measure the machine.
static TURN: Mutex<()> = Mutex::new(());

struct Runtime {
    child: Child,
    dir: tempfile::TempDir,
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn private_kib(pid: u32, what: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let lines = text.lines().filter(|l| l.starts_with(what));
    lines.filter_map(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}

fn own_kib() -> u64 {
    private_kib(std::process::id(), "Private_Dirty")
}

impl Runtime {
    fn start(quota: &str, all_users: bool) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let program = program("insaned", "insaned");
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let config = format!(
            "[runtime]\nsocket = \"{0}/s\"\nsocket_mode = \"0666\"\nlog_level = \"error\"\n[quota]\n{quota}\n\
             [domains.default]\nall_users = {all_users}\n",
            dir.path().display()
        );
        std::fs::write(dir.path().join("c.toml"), config).unwrap();
        // Another user must be able to start it, wherever the tests were built.
        copy_program(Path::new(env!("CARGO_BIN_EXE_hostile")), &dir.path().join("hostile"));
        let child = Command::new(program).arg("--config").arg(dir.path().join("c.toml")).spawn().unwrap();
        let this = Self { child, dir };
        wait("the socket", || this.socket().exists());
        this
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    fn session(&self, app: &str) -> Session {
        Session::builder(app).socket(self.socket()).open().expect("a session")
    }

    /// Private memory that it has written to, in KiB; `all`: pages of the program's file too.
    fn private_kib(&self, all: bool) -> u64 {
        private_kib(self.child.id(), if all { "Private_" } else { "Private_Dirty" })
    }

    /// CPU time, in clock ticks of 10 ms.
    fn ticks(&self) -> u64 {
        insane_tests_host::programs::ticks(self.child.id())
    }

    fn attack(&self, mode: &str, uid: Option<u32>) -> Child {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(self.dir.path().join("hostile"));
        command.arg(mode).arg(self.socket()).arg("main").stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        command.spawn().unwrap()
    }
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The users to attack as: this one, and another one where that is possible.
fn users() -> Vec<Option<u32>> {
    if rustix::process::getuid().is_root() {
        return vec![None, Some(NOBODY)];
    }
    println!("SKIPPED: attacks as another user, which only root can start");
    vec![None]
}

/// A source and two sinks that do their work while something else happens.
struct Honest {
    sessions: [Session; 3],
    stop: Arc<AtomicBool>,
    emitted: Arc<AtomicU64>,
    seen: Vec<Arc<AtomicU64>>,
    /// The source and the sinks, as the counters name them.
    flows: (u128, Vec<u128>),
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Honest {
    fn start(runtime: &Runtime) -> Self {
        let sessions = ["source", "first", "second"].map(|app| runtime.session(app));
        let stop = Arc::new(AtomicBool::new(false));
        let emitted = Arc::new(AtomicU64::new(0));
        let source = sessions[0].stream(Qos::default()).unwrap().source("main").unwrap();
        let epoch = source.epoch();
        let sinks: Vec<_> =
            sessions[1..].iter().map(|s| s.stream(Qos::default()).unwrap().sink("main").unwrap()).collect();
        assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
        let flows = (epoch.0, sinks.iter().map(|s| s.id().0).collect());
        let (mut threads, mut seen) = (Vec::new(), Vec::new());
        for sink in sinks {
            let (count, stop) = (Arc::new(AtomicU64::new(0)), stop.clone());
            seen.push(count.clone());
            threads.push(std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let Ok(message) = sink.consume_timeout(Duration::from_millis(20)) else { continue };
                    if message.source() != epoch {
                        continue;
                    }
                    let n = count.load(Ordering::Relaxed) + 1;
                    assert_eq!(message.sequence(), n, "an honest message was lost");
                    assert!(message.to_vec().iter().all(|b| *b == n as u8), "message {n} is not what was sent");
                    count.store(n, Ordering::Relaxed);
                }
            }));
        }
        let (count, ended) = (emitted.clone(), stop.clone());
        threads.push(std::thread::spawn(move || {
            let mut n = 0u64;
            while !ended.load(Ordering::Relaxed) {
                if count.load(Ordering::Relaxed) == u64::MAX >> 1 {
                    break;
                }
                let bytes = vec![(n + 1) as u8; if n.is_multiple_of(2) { 40 } else { 300 }];
                if n < PAUSE.load(Ordering::Relaxed) {
                    source.send(&bytes).expect("an honest source emits");
                    n += 1;
                    count.store(n, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        }));
        PAUSE.store(u64::MAX, Ordering::Relaxed);
        Self { sessions, stop, emitted, seen, flows, threads }
    }

    /// Everything that was emitted arrived at both sinks; no slot is lost, doubly owned or still held.
    fn finish(self, mode: &str) {
        let before = self.emitted.load(Ordering::Relaxed);
        wait("the honest source goes on", || self.emitted.load(Ordering::Relaxed) > before + 100);
        PAUSE.store(0, Ordering::Relaxed);
        wait("all honest messages arrived", || {
            let emitted = self.emitted.load(Ordering::Relaxed);
            self.seen.iter().all(|s| s.load(Ordering::Relaxed) == emitted)
        });
        let stream = self.sessions[0].stream(Qos::default()).unwrap();
        wait("every slot is free again", || stream.audit().held == 0);
        let audit = stream.audit();
        assert_eq!((audit.lost, audit.doubly_owned), (0, 0), "{mode}: {audit:?}");
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("an honest party saw nothing wrong");
        }
        // Only what honest parties said to each other: an attacker may emit, and count, as it likes.
        let honest = |cell: &CellCounts| cell.epoch == self.flows.0 && self.flows.1.contains(&cell.sink);
        let cells = || self.sessions.iter().flat_map(Session::counts).filter(honest).collect();
        let seen = self.seen.iter().map(|s| s.load(Ordering::Relaxed)).sum();
        reconcile_cells(cells, 2 * self.emitted.load(Ordering::Relaxed), seen);
        println!("{mode}: {} messages to each of two honest sinks", self.emitted.load(Ordering::Relaxed));
    }
}

/// The number of messages after which the honest source pauses.
static PAUSE: AtomicU64 = AtomicU64::new(u64::MAX);

fn survive(modes: &[&str]) {
    survive_with("", modes, || ());
}

/// As [`survive`], with more of a configuration, and something that must hold while the honest peers run.
fn survive_with(config: &str, modes: &[&str], holds: impl Fn()) {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let _watchdog = Watchdog::start("attacks", Duration::from_secs(120));
    for uid in users() {
        for mode in modes {
            let mut runtime = Runtime::start(config, true);
            let honest = Honest::start(&runtime);
            holds();
            let own = own_kib();
            let before = runtime.private_kib(false);
            let mut attacker = runtime.attack(mode, uid);
            let (mut most, mut opened) = (before, 0);
            while attacker.try_wait().unwrap().is_none() {
                most = most.max(runtime.private_kib(false));
                // It still lets others in.
                if *mode != "connections" || uid.is_some() {
                    drop(runtime.session("late"));
                    opened += 1;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let output = attacker.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{mode} as {uid:?}: {text} {:?}", output.status);
            assert!(runtime.child.try_wait().unwrap().is_none(), "{mode}: the runtime ended");
            assert!(most < before + GROWTH_KIB, "{mode}: the runtime grew from {before} to {most} KiB");
            let grown = own_kib().saturating_sub(own);
            assert!(grown < OWN_GROWTH_KIB, "{mode}: the honest peers grew by {grown} KiB");
            println!(
                "as {uid:?}, honest peers +{grown} KiB, {opened} sessions opened meanwhile, {before} to {most} KiB; {}",
                text.trim()
            );
            honest.finish(mode);
        }
    }
}

#[test]
fn memory_that_was_shared_stays_its_owners() {
    survive(&["memory"]);
}

/// Huge pages that this test reserved; given back whatever happens.
struct HugePages(u64);

const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

impl HugePages {
    fn reserve(count: u64) -> Result<Self, String> {
        let read = || std::fs::read_to_string(HUGE_PAGES).ok().and_then(|t| t.trim().parse::<u64>().ok());
        let before = read().ok_or("this kernel has no huge pages")?;
        let this = Self(before);
        std::fs::write(HUGE_PAGES, (before + count).to_string()).map_err(|e| format!("{HUGE_PAGES}: {e}"))?;
        let got = read().unwrap_or(before) - before;
        if got < count { Err(format!("{got} of {count} huge pages were to be had")) } else { Ok(this) }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = std::fs::write(HUGE_PAGES, self.0.to_string());
    }
}

#[test]
fn memory_on_huge_pages_stays_its_owners() {
    let _pages = match HugePages::reserve(16) {
        Ok(pages) => pages,
        Err(why) => {
            println!("SKIPPED: {why}");
            return;
        }
    };
    survive_with("[memory]\nhuge_pages = true", &["memory"], || {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        assert!(
            maps.lines().any(|l| l.starts_with("KernelPageSize:") && l.contains("2048 kB")),
            "no huge page is mapped"
        );
    });
}

#[test]
fn without_huge_pages_applications_run_on_ordinary_ones() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let runtime = Runtime::start("[memory]\nhuge_pages = true", true);
    Honest::start(&runtime).finish("no huge pages");
}

#[test]
fn returns_that_lie_break_one_link() {
    survive(&["returns", "scribble"]);
}

#[test]
fn who_holds_all_or_sleeps_holds_nobody_up() {
    survive(&["hold"]);
}

#[test]
fn descriptors_that_lie_break_one_link() {
    survive(&["source"]);
}

#[test]
fn bad_answers_are_hung_up_on() {
    survive(&["unsealed", "small", "many", "half"]);
}

#[test]
fn floods_do_not_move_the_runtime() {
    survive(&["queries", "descriptors", "connections"]);
}

#[test]
fn who_has_no_right_does_not_get_in() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !rustix::process::getuid().is_root() {
        println!("SKIPPED: another user, which only root can start");
        return;
    }
    let runtime = Runtime::start("", false);
    let output = runtime.attack("denied", Some(NOBODY)).wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("Refused") && text.contains("user 65534"), "{text}");
}

#[test]
fn quotas_hold() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let quota = "sessions = 4\nsessions_per_user = 3\nstreams_per_session = 2\nendpoints_per_session = 2\n\
                 memory_mib_per_session = 16\nmessage_mib = 1";
    let runtime = Runtime::start(quota, true);
    let sessions: Vec<_> = (0..3).map(|_| runtime.session("one")).collect();
    let refused = |e: insane::Error| assert_eq!(e.code(), insane::Code::QuotaExceeded, "{e}");
    refused(Session::builder("four").socket(runtime.socket()).open().unwrap_err());
    let streams: Vec<_> = ["a", "b"].iter().map(|n| sessions[0].stream_named(n, Qos::default()).unwrap()).collect();
    refused(sessions[0].stream_named("c", Qos::default()).unwrap_err());
    let _ends = [streams[0].sink("x").unwrap(), streams[1].sink("x").unwrap()];
    refused(streams[0].sink("y").unwrap_err());
    let source = sessions[1].stream(Qos::default()).unwrap().source("z").unwrap();
    assert_eq!(source.buffer((1 << 20) + 1).unwrap_err().code(), insane::Code::MessageTooLarge);
    let mut held = Vec::new();
    let full = loop {
        match source.buffer(1 << 20) {
            Ok(buffer) => held.push(buffer),
            Err(e) => break e,
        }
    };
    assert_eq!(full.code(), insane::Code::NoBuffer, "{full}");
    assert!(held.len() <= 16, "{} MiB of a quota of 16", held.len());
}

#[test]
fn an_idle_runtime_costs_next_to_nothing() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let runtime = Runtime::start("", true);
    // Two clients that know each other, and have nothing to say any more.
    let sessions = ["source", "sink"].map(|app| runtime.session(app));
    let [to, from] = sessions.each_ref().map(|s| s.stream(Qos::default()).unwrap());
    let (sink, source) = (from.sink("idle").unwrap(), to.source("idle").unwrap());
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    source.send(b"the last word").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"the last word");
    std::thread::sleep(Duration::from_millis(200));
    let before = runtime.ticks();
    let span = Duration::from_secs(20);
    std::thread::sleep(span);
    let (ticks, kib) = (runtime.ticks() - before, runtime.private_kib(true));
    println!("{} ms of CPU in {span:?}, {kib} KiB private", ticks * 10);
    assert!(u128::from(ticks) * 10 * 100 < span.as_millis(), "{ticks} ticks of 10 ms in {span:?}");
    assert!(kib > 0 && kib < 32 << 10, "{kib} KiB private");
    let cells = || sessions.iter().flat_map(Session::counts).collect();
    reconcile_cells(cells, 1, 1);
}
