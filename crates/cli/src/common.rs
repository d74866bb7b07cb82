//! What the commands share: the session, errors, waiting, percentiles and progress.

use insane::{Error, Qos, Session, Stream, Wait};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What is said on the command line for every command.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) socket: Option<PathBuf>,
    pub(crate) domain: String,
    pub(crate) json: bool,
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) number: u32,
    pub(crate) text: String,
    pub(crate) usage: bool,
}

impl Failure {
    /// The command was called in a way that cannot be.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { number: insane::Code::InvalidArgument.number(), text: text.into(), usage: true }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self { number: e.code().number(), text: e.to_string(), usage: false }
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        Self { number: insane::Code::System.number(), text: e.to_string(), usage: false }
    }
}

pub(crate) type Outcome = Result<(), Failure>;

impl Context {
    pub(crate) fn session(&self, app: &str) -> Result<Session, Failure> {
        let mut builder = Session::builder(app);
        if let Some(socket) = &self.socket {
            builder = builder.socket(socket);
        }
        if !self.domain.is_empty() {
            builder = builder.domain(&self.domain);
        }
        Ok(builder.open()?)
    }
}

/// The stream that a command works in.
#[derive(Debug, clap::Args)]
pub(crate) struct StreamArguments {
    /// The stream's name; made of the QoS without it.
    #[arg(long, default_value = "", value_name = "NAME")]
    pub(crate) stream: String,
    /// The QoS: acceleration=preferred, resources=unlimited, timing=sensitive, reliability=reliable, by commas.
    #[arg(long, default_value = "", value_parser = Qos::parse)]
    pub(crate) qos: Qos,
    /// Refuse rather than downgrade.
    #[arg(long)]
    pub(crate) strict: bool,
}

impl StreamArguments {
    pub(crate) fn open(&self, session: &Session) -> Result<Stream, Failure> {
        let stream = session.stream_with(&self.stream, self.qos, self.strict)?;
        for reason in stream.effective_qos().iter().flat_map(|e| &e.reasons) {
            eprintln!("insane: {reason}");
        }
        Ok(stream)
    }
}

/// How an end waits, and on which core.
#[derive(Debug, clap::Args)]
pub(crate) struct WaitArguments {
    /// How to wait for messages: spin, adaptive or sleep.
    #[arg(long, default_value = "adaptive", value_parser = parse_wait)]
    pub(crate) wait: Wait,
    /// Pin the thread to this core.
    #[arg(long, value_name = "CORE")]
    pub(crate) core: Option<usize>,
}

fn parse_wait(text: &str) -> Result<Wait, String> {
    match text {
        "spin" => Ok(Wait::Spin),
        "adaptive" => Ok(Wait::Adaptive),
        "sleep" => Ok(Wait::Sleep),
        _ => Err("it takes spin, adaptive or sleep".into()),
    }
}

impl WaitArguments {
    pub(crate) fn name(&self) -> &'static str {
        match self.wait {
            Wait::Spin => "spin",
            Wait::Adaptive => "adaptive",
            Wait::Sleep => "sleep",
        }
    }

    pub(crate) fn pin(&self) -> Outcome {
        let Some(core) = self.core else { return Ok(()) };
        if core >= rustix::thread::CpuSet::MAX_CPU {
            return Err(Failure::usage(format!("--core {core}: there is no such core")));
        }
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        rustix::thread::sched_setaffinity(None, &set).map_err(|e| Failure::usage(format!("--core {core}: {e}")))
    }
}

/// Reads a size in bytes: `64`, `8K`, `128M`.
pub(crate) fn parse_size(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        _ => (text, 1),
    };
    let number: usize = digits.parse().map_err(|_| "it takes a number of bytes, such as 64, 8K or 128M".to_owned())?;
    number.checked_mul(factor).filter(|n| *n <= 128 << 20).ok_or_else(|| "at most 128M".to_owned())
}

/// Reads a time: `10`, `1.5`, in seconds.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "it takes seconds, such as 10 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "it takes seconds from 0 on".to_owned())
}

/// Set when the user interrupts: results so far are still printed.
pub(crate) fn interrupted() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second signal ends the program at once.
        signal_hook::flag::register_conditional_shutdown(signal, 1, flag.clone())?;
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(flag)
}

pub(crate) fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}

/// A line on a terminal that says how far a longer command is.
#[derive(Debug)]
pub(crate) struct Progress {
    last: Instant,
    shown: bool,
    terminal: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { last: Instant::now(), shown: false, terminal: std::io::stderr().is_terminal() }
    }

    /// Shows a line at most once a second.
    pub(crate) fn show(&mut self, text: impl FnOnce() -> String) {
        if self.last.elapsed() >= Duration::from_secs(1) {
            self.last = Instant::now();
            self.shown = true;
            if self.terminal { eprint!("\r\x1b[K{}", text()) } else { eprintln!("{}", text()) }
        }
    }

    pub(crate) fn end(&self) {
        if self.shown && self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}

/// Percentiles of durations in nanoseconds; `p` from 0 to 100. The samples are sorted.
pub(crate) fn percentile(sorted: &[u64], p: f64) -> u64 {
    if sorted.is_empty() {
        return 0;
    }
    // The little that is taken off keeps 99.9 % of 1000 at 999.
    let rank = (p * sorted.len() as f64 / 100.0 - 1e-6).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// A number with a unit that fits: 1.2 M, 640 k.
pub(crate) fn human(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.2} G", v / 1e9),
        v if v >= 1e6 => format!("{:.2} M", v / 1e6),
        v if v >= 1e3 => format!("{:.1} k", v / 1e3),
        v => format!("{v:.0} "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_percentiles() {
        assert_eq!(parse_size("64"), Ok(64));
        assert_eq!(parse_size("8K"), Ok(8192));
        assert!(parse_size("129M").is_err() && parse_size("x").is_err() && parse_size("").is_err());
        let samples: Vec<u64> = (1..=1000).collect();
        assert_eq!((percentile(&samples, 50.0), percentile(&samples, 99.9), percentile(&[], 50.0)), (500, 999, 0));
        assert!(parse_seconds("-1").is_err() && parse_seconds("0.5").is_ok());
    }
}
