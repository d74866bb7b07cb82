//! The line protocol between the orchestrator and a system program.
//!
//! The program prints `ready`, reads `go PID…`, prints one JSON line if its role measures, and ends when its standard
//! input closes. The pids are all processes of the repetition: the measuring end reads their CPU clocks at both ends
//! of its window.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::sys;

/// Set once the orchestrator has closed our standard input.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Whether the process should end now.
    #[inline]
    #[must_use]
    pub fn requested(&self) -> bool {
        // Relaxed: nothing is read on the strength of it.
        self.0.load(Ordering::Relaxed)
    }

    /// Asks for the end, as a closed standard input does.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The CPU clocks of all processes of a repetition.
#[derive(Clone, Debug, Default)]
pub struct CpuWatch {
    pids: Vec<u32>,
}

impl CpuWatch {
    /// Watches `pids`.
    #[must_use]
    pub fn new(pids: Vec<u32>) -> Self {
        Self { pids }
    }

    /// Watches the first `count` of them alone, or all if there are fewer.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        Self::new(self.pids[..count.min(self.pids.len())].to_vec())
    }

    /// CPU time of all of them so far, in nanoseconds.
    ///
    /// # Errors
    /// One of them is gone, which fails the repetition.
    pub fn total_ns(&self) -> Result<u64> {
        let mut sum = Duration::ZERO;
        for &pid in &self.pids {
            sum += sys::cpu_time(pid).with_context(|| format!("CPU clock of process {pid}"))?;
        }
        Ok(u64::try_from(sum.as_nanos())?)
    }
}

/// This end of the protocol.
#[derive(Debug)]
pub struct Control {
    stop: Stop,
    grace: Duration,
}

impl Control {
    /// A control whose process is ended `grace` after its standard input closed, if it has not ended by itself. Zero
    /// suits a system that leaves nothing behind.
    #[must_use]
    pub fn new(grace: Duration) -> Self {
        Self { stop: Stop::default(), grace }
    }

    /// The flag that loops look at.
    #[must_use]
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Tells the orchestrator that the other end may come.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn ready(&self) -> Result<()> {
        say("ready")
    }

    /// Waits for `go` and from then on watches for the end of standard input in a thread.
    ///
    /// # Errors
    /// Anything but a `go` line.
    pub fn await_go(&self) -> Result<CpuWatch> {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).context("reading standard input")?;
        let mut words = line.split_whitespace();
        match words.next() {
            Some("go") => {}
            None => std::process::exit(0), // Closed before it began: the repetition was called off.
            Some(other) => bail!("expected 'go PID…' on standard input, got '{other}'"),
        }
        let pids = words.map(str::parse).collect::<Result<Vec<u32>, _>>().context("pids after 'go'")?;
        let (stop, grace, waiting) = (self.stop.clone(), self.grace, std::thread::current());
        std::thread::spawn(move || {
            let mut rest = String::new();
            while std::io::stdin().lock().read_line(&mut rest).is_ok_and(|n| n > 0) {
                rest.clear();
            }
            stop.request();
            waiting.unpark();
            std::thread::sleep(grace);
            std::process::exit(0);
        });
        Ok(CpuWatch::new(pids))
    }

    /// Prints the result line.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn result(&self, result: &impl Serialize) -> Result<()> {
        say(&serde_json::to_string(result)?)
    }

    /// Waits until the orchestrator closes standard input, asleep: who only helps must not take the core from those that are
    /// measured. To be called by the thread that called [`Self::await_go`].
    pub fn await_stop(&self) {
        while !self.stop.requested() {
            std::thread::park();
        }
    }
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}
