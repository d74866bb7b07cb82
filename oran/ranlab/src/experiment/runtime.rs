//! The INSANE runtime of an experiment: a process of its own, on a socket of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::config::{Absent, Config, ControlSpec, ControlWait};
use crate::host::{HostError, process, sys};

/// How long the runtime may take to start.
const START: Duration = Duration::from_secs(10);

/// A runtime; it ends with this, or with the thread that started it.
pub(super) struct Runtime {
    child: Child,
    folder: PathBuf,
}

/// The program: beside this one, or by PATH.
fn program() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join("insaned")));
    beside.filter(|path| path.is_file()).or_else(|| process::find("insaned"))
}

/// The path of this program, to be started once more with another verb.
pub(super) fn own_program() -> Result<String, HostError> {
    let own = std::env::current_exe().map_err(|e| HostError::new("own program", e))?;
    Ok(own.to_string_lossy().into_owned())
}

impl Runtime {
    /// Starts one.
    pub(super) fn start() -> Result<Self, HostError> {
        let failed = |e: &dyn std::fmt::Display| HostError::new("insaned", e);
        let program = program().ok_or_else(|| failed(&"it is neither beside this program nor in PATH"))?;
        let folder = std::env::temp_dir().join(format!("ranlab-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|e| failed(&e))?;
        let socket = folder.join("insaned.sock");
        // What an earlier run left is nobody's.
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new(program);
        command.arg("--socket").arg(&socket).args(["--log", "error"]).stdin(Stdio::null());
        sys::die_with_parent(&mut command);
        let mut runtime = Self { child: command.spawn().map_err(|e| failed(&e))?, folder };
        let began = Instant::now();
        while !socket.exists() {
            if let Some(status) = runtime.child.try_wait().map_err(|e| failed(&e))? {
                return Err(failed(&status));
            }
            if began.elapsed() > START {
                return Err(failed(&"it does not start"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(runtime)
    }

    /// Its socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("insaned.sock")
    }

    /// A configuration whose lab serves control here.
    pub(super) fn serve(&self, config: &Config, wait: ControlWait) -> Config {
        let control = ControlSpec {
            socket: Some(self.socket()),
            wait,
            absent: Absent::Fail,
            ..config.control.clone().unwrap_or_default()
        };
        Config { control: Some(control), ..config.clone() }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Runs a program beside the lab, in no namespace, to its end and at most so long; its standard output.
pub(super) fn beside(line: &[&str], envs: &[(&str, &Path)], limit: Duration) -> Result<String, HostError> {
    let name = line.first().copied().unwrap_or_default();
    let failed = |e: &dyn std::fmt::Display| HostError::new(name, e);
    let mut command = Command::new(name);
    command.args(&line[1..]).envs(envs.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped());
    sys::die_with_parent(&mut command);
    let mut child = command.spawn().map_err(|e| failed(&e))?;
    let began = Instant::now();
    let mut out = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        // What is no text is no report, and told as that.
        let _ = out.as_mut().map(|out| std::io::Read::read_to_string(out, &mut text));
        text
    });
    let status = loop {
        match child.try_wait().map_err(|e| failed(&e))? {
            Some(status) => break status,
            None if began.elapsed() > limit => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(&format!("still running after {limit:?}")));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let text = reader.join().unwrap_or_default();
    if status.success() { Ok(text) } else { Err(failed(&status)) }
}
