//! Processes that the test starts, holds, goes on with and kills: by pid, and only its own.

use crate::board::{Board, Word};
use insane_shm::counters::{Counters, MAX_CELLS, bytes};
use insane_shm::memory::map_peer;
use rustix::fd::AsFd;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Every process that lives, for the watchdog.
static LIVING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

fn living() -> std::sync::MutexGuard<'static, Vec<Pid>> {
    LIVING.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Kills what the test started, says why, and ends the test's process.
pub fn abort(text: &str) -> ! {
    eprintln!("watchdog: {text}");
    for pid in living().iter() {
        let _ = kill_process(*pid, Signal::KILL);
    }
    std::process::abort();
}

/// Waits until `done`, looking every two milliseconds.
///
/// # Errors
/// What was waited for, when it did not come in time.
pub fn until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) -> Result<(), String> {
    let end = Instant::now() + limit;
    while !done() {
        if Instant::now() >= end {
            return Err(format!("not within {limit:?}: {what}"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// What a process was last seen as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Running, or continued.
    Running,
    /// Stopped.
    Stopped,
    /// Ended and reaped.
    Ended,
}

/// A process of the test.
#[derive(Debug)]
pub struct Process {
    /// Its name in reports.
    pub name: String,
    pid: Pid,
    seen: Seen,
    /// Where a party writes; the runtime writes nothing there.
    pub board: Board,
    /// Whether the test killed it.
    pub killed: bool,
    counters: Option<Counters>,
}

impl Process {
    /// Starts a program; `hold` is the value of `INSANE_HOLD`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    #[expect(clippy::zombie_processes, reason = "reaped by waitpid in `look`, which sees stops too")]
    pub fn start(name: &str, program: &Path, arguments: &[&str], board: &Path, hold: Option<&str>) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).env_remove("INSANE_HOLD");
        if let Some(hold) = hold {
            command.env("INSANE_HOLD", hold);
        }
        let child = command.spawn().unwrap_or_else(|e| panic!("{}: {e}", program.display()));
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(0)).expect("a process id");
        living().push(pid);
        let board = Board::open(board);
        Self { name: name.to_owned(), pid, seen: Seen::Running, board, killed: false, counters: None }
    }

    /// Looks whether it stopped or ended.
    pub fn look(&mut self) -> Seen {
        if self.seen == Seen::Ended {
            return self.seen;
        }
        let options = WaitOptions::UNTRACED | WaitOptions::CONTINUED | WaitOptions::NOHANG;
        while let Ok(Some((_, status))) = waitpid(Some(self.pid), options) {
            if status.stopped() {
                self.seen = Seen::Stopped;
            } else if status.continued() {
                self.seen = Seen::Running;
            } else {
                self.ended();
                break;
            }
        }
        self.seen
    }

    fn ended(&mut self) {
        self.seen = Seen::Ended;
        living().retain(|p| *p != self.pid);
    }

    /// Whether it lives and was not killed.
    pub fn lives(&mut self) -> bool {
        !self.killed && self.look() != Seen::Ended
    }

    /// Kills it and waits for its end.
    ///
    /// # Errors
    /// When it does not end.
    pub fn kill(&mut self) -> Result<(), String> {
        self.map_counters();
        self.killed = true;
        if self.look() != Seen::Ended {
            let _ = kill_process(self.pid, Signal::KILL);
        }
        until("the end of a killed process", Duration::from_secs(5), || self.look() == Seen::Ended)
    }

    /// Stops it where it is.
    pub fn hold(&self) {
        let _ = kill_process(self.pid, Signal::STOP);
    }

    /// Lets it go on.
    pub fn go_on(&mut self) {
        if self.look() == Seen::Stopped {
            let _ = kill_process(self.pid, Signal::CONT);
        }
    }

    fn descriptors(&self) -> Vec<(PathBuf, String)> {
        let dir = std::fs::read_dir(format!("/proc/{}/fd", self.pid.as_raw_nonzero()));
        let entries = dir.into_iter().flatten().flatten();
        entries
            .filter_map(|e| Some((e.path(), std::fs::read_link(e.path()).ok()?.to_string_lossy().into_owned())))
            .collect()
    }

    /// How many descriptors it has open.
    #[must_use]
    pub fn fds(&self) -> usize {
        self.descriptors().len()
    }

    /// How many of them are segments of slots.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.descriptors().iter().filter(|(_, link)| link.contains("memfd:insane-segment")).count()
    }

    /// How many mappings of shared memory it has.
    #[must_use]
    pub fn maps(&self) -> usize {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid.as_raw_nonzero())).unwrap_or_default();
        maps.lines().filter(|l| l.contains("memfd:insane")).count()
    }

    /// Maps its counter memory, as a peer would, once it is there. It stays readable after the process's end.
    pub fn map_counters(&mut self) -> Option<&Counters> {
        if self.counters.is_none() {
            let found = self.descriptors().into_iter().find(|(_, link)| link.contains("memfd:insane-counters"))?;
            let file = std::fs::File::open(found.0).ok()?;
            let mapping = map_peer(file.as_fd(), 0, bytes(MAX_CELLS) as u64).ok()?;
            self.counters = Counters::open(Arc::new(mapping)).ok();
        }
        self.counters.as_ref()
    }

    /// Its counter memory, if it was mapped.
    #[must_use]
    pub fn counters(&self) -> Option<&Counters> {
        self.counters.as_ref()
    }

    /// Asks for a command and waits until it is done.
    ///
    /// # Errors
    /// When it is not done in time.
    pub fn ask(&mut self, command: crate::board::Command) -> Result<(), String> {
        let word = self.request(command);
        until(&format!("{command:?} by {}", self.name), Duration::from_secs(5), || self.board.get(Word::Done) == word)
    }

    /// Asks for a command without waiting.
    pub fn request(&mut self, command: crate::board::Command) -> u64 {
        let word = (self.board.get(Word::Command) / 16 + 1) * 16 + command as u64;
        self.board.set(Word::Command, word);
        word
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
