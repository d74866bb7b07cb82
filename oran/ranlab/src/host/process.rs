//! Programs in namespaces: started, read, and always ended.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{HostError, sys};

/// Where a program is, by PATH and the places where administrators' programs are.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Runs a command to its end; its standard output.
///
/// # Errors
/// It could not be started, or what it said when it failed.
pub fn call(program: &str, arguments: &[&str]) -> Result<String, HostError> {
    let what = || format!("{program} {}", arguments.join(" "));
    let found = find(program).ok_or_else(|| HostError::new(what(), "no such program"))?;
    let output =
        Command::new(found).args(arguments).stdin(Stdio::null()).output().map_err(|e| HostError::new(what(), e))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(HostError::new(what(), String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// A command line to run in a namespace.
#[must_use]
pub fn in_namespace<S: AsRef<OsStr>>(namespace: &str, line: &[S]) -> Command {
    let mut command = Command::new(find("ip").unwrap_or_else(|| "ip".into()));
    command.args(["netns", "exec", namespace]).args(line).stdin(Stdio::null());
    sys::die_with_parent(&mut command);
    command
}

/// A program that is ended when this goes.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    output: Option<JoinHandle<String>>,
    ended: bool,
}

impl Running {
    /// Starts a program in a namespace and gathers what it writes to standard output. It must be started from a thread
    /// that outlives it.
    ///
    /// # Errors
    /// It could not be started.
    pub fn start<S: AsRef<OsStr>>(namespace: &str, line: &[S]) -> Result<Self, HostError> {
        let words: Vec<_> = line.iter().map(|w| w.as_ref().to_string_lossy().into_owned()).collect();
        let name = words.join(" ");
        let mut child = in_namespace(namespace, line)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A shell's children are to end with it.
            .process_group(0)
            .spawn()
            .map_err(|e| HostError::new(&name, e))?;
        let output = child.stdout.take().map(|mut pipe| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                // What was read before an error is as good as without one.
                let _ = pipe.read_to_end(&mut bytes);
                String::from_utf8_lossy(&bytes).into_owned()
            })
        });
        Ok(Self { name, child, output, ended: false })
    }

    /// Waits for its end, at most so long; what it wrote.
    ///
    /// # Errors
    /// It was still running, and was ended.
    pub fn finish(mut self, limit: Duration) -> Result<String, HostError> {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return Ok(self.text());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(HostError::new(&self.name, format!("still running after {limit:?}")))
    }

    /// Interrupts it as Ctrl-C would, and waits a little for it to end by itself; what it wrote.
    pub fn interrupt(mut self) -> String {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            // It may have ended already.
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::INT);
        }
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.end();
        self.text()
    }

    fn end(&mut self) {
        // Once: its number may be somebody else's afterwards.
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        // It may have ended already; what it started may not.
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
        let _ = self.child.wait();
    }

    fn text(&mut self) -> String {
        self.end();
        self.output.take().and_then(|reader| reader.join().ok()).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
