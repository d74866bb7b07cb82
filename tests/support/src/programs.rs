//! The programs of the workspace, and running them with an end.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Since when somebody builds, and how long it took all who have built.
static BUILDS: Mutex<(Option<Instant>, Duration)> = Mutex::new((None, Duration::ZERO));

/// How long this process has been building programs so far.
#[must_use]
pub(crate) fn time_of_builds() -> Duration {
    let (since, before) = *BUILDS.lock().unwrap_or_else(PoisonError::into_inner);
    before + since.map_or(Duration::ZERO, |at| at.elapsed())
}

/// A program of the workspace: where the test runner has put it, else built here. Watchdogs wait for that.
///
/// # Panics
/// When it does not build.
#[must_use]
pub fn program(package: &str, name: &str) -> PathBuf {
    if let Some(dir) = std::env::var_os("INSANE_BIN_DIR") {
        return Path::new(&dir).join(name);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = root.join("target/plain");
    let mut build = Command::new(env!("CARGO"));
    build.current_dir(&root).args(["build", "-q", "--locked", "-j2", "-p", package, "--target-dir"]).arg(&target);
    static ONE_BUILDS: Mutex<()> = Mutex::new(());
    let alone = ONE_BUILDS.lock().unwrap_or_else(PoisonError::into_inner);
    let note = |change: fn(&mut (Option<Instant>, Duration))| {
        change(&mut BUILDS.lock().unwrap_or_else(PoisonError::into_inner))
    };
    note(|(since, _)| *since = Some(Instant::now()));
    let status = build.status();
    note(|(since, before)| *before += since.take().map_or(Duration::ZERO, |at| at.elapsed()));
    drop(alone);
    assert!(status.expect("cargo runs").success(), "{package} does not build");
    target.join("debug").join(name)
}

/// Copies a program, by a process of its own: what another thread starts meanwhile would hold a file that this process writes to, until it
/// has become another program, and a file that somebody may write to cannot be run ("text file busy").
///
/// # Panics
/// When it cannot be copied.
pub fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).status().expect("cp runs");
    assert!(status.success(), "{} is not copied", from.display());
}

/// What a program said, and how it ended.
#[derive(Debug)]
pub struct Said {
    /// How it ended; none: it had to be killed.
    pub status: Option<ExitStatus>,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Said {
    /// Its exit code; -1 if a signal ended it, or this test.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.status.and_then(|s| s.code()).unwrap_or(-1)
    }
}

/// A program without input that was started. It ends with this, and so does what it leaves behind in its process group.
#[derive(Debug)]
pub struct Running {
    child: Child,
    said: [Option<JoinHandle<String>>; 2],
}

impl Running {
    /// Starts it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let said = [Some(collect(child.stdout.take())), Some(collect(child.stderr.take()))];
        Self { child, said }
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it, and not its group, a signal.
    ///
    /// # Panics
    /// When its end has been seen.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it is there");
    }

    /// Waits for its end, at most `limit`; then it is ended.
    pub fn end(mut self, limit: Duration) -> Said {
        let status = wait(&mut self.child, limit);
        self.kill();
        let [out, err] =
            self.said.each_mut().map(|said| said.take().and_then(|said| said.join().ok()).unwrap_or_default());
        Said { status, out, err }
    }

    fn pid(&self) -> Pid {
        i32::try_from(self.id()).ok().and_then(Pid::from_raw).expect("a process has a number")
    }

    fn kill(&mut self) {
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.said[0].is_some() {
            self.kill();
        }
    }
}

/// Runs a program without input, at most `limit`. What it leaves behind in its process group is ended.
///
/// # Panics
/// When it cannot be started.
pub fn run(command: &mut Command, limit: Duration) -> Said {
    Running::start(command).end(limit)
}

/// Waits for a child's end, at most `limit`.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            Ok(status) => return status,
            Err(_) => return None,
        }
    }
}

fn collect(from: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            let _ = from.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The processor time that a process has taken since it began, in ticks of 10 ms (proc(5)).
///
/// # Panics
/// When there is no such process.
#[must_use]
pub fn ticks(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("a process");
    let (_, after) = text.rsplit_once(')').expect("a name in brackets");
    after.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}
