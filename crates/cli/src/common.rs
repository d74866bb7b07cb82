//! What the commands share: the session, errors, waiting, percentiles and progress.

use insane::{Error, Qos, Session, Stream, Wait};
use insane_arguments::whole;
use rustix::thread::CpuSet;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What is said on the command line for every command.
#[derive(Debug, Clone)]
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
        let number = e.code().number();
        // The numbers from 20 to 39 are those of arguments.
        Self { number, text: e.to_string(), usage: (20..40).contains(&number) }
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
    #[arg(long, value_name = "NAME", value_parser = parse_stream)]
    pub(crate) stream: Option<String>,
    /// The QoS: acceleration=preferred, resources=unlimited, timing=sensitive, reliability=reliable, by commas.
    #[arg(long, default_value = "", value_parser = Qos::parse)]
    pub(crate) qos: Qos,
    /// Refuse rather than downgrade.
    #[arg(long)]
    pub(crate) strict: bool,
}

impl StreamArguments {
    pub(crate) fn open(&self, session: &Session) -> Result<Stream, Failure> {
        let stream = session.stream_with(self.stream.as_deref().unwrap_or_default(), self.qos, self.strict)?;
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
    #[arg(long, value_name = "CORE", value_parser = whole(0, 65_535))]
    pub(crate) core: Option<u64>,
}

fn parse_wait(text: &str) -> Result<Wait, String> {
    match text {
        "spin" => Ok(Wait::Spin),
        "adaptive" => Ok(Wait::Adaptive),
        "sleep" => Ok(Wait::Sleep),
        _ => Err("it takes spin, adaptive or sleep".into()),
    }
}

/// Numbers in order as people write them: `0-3, 8`.
fn spans(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for n in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *n => *last = *n,
            _ => runs.push((*n, *n)),
        }
    }
    let texts = runs.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") });
    texts.collect::<Vec<_>>().join(", ")
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
        let allowed = rustix::thread::sched_getaffinity(None).map_err(std::io::Error::from)?;
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|c| allowed.is_set(*c)).collect();
        let refuse = || Failure::usage(format!("--core <CORE> is '{core}': it takes one of {}", spans(&cores)));
        let core = usize::try_from(core).ok().filter(|c| cores.contains(c)).ok_or_else(refuse)?;
        let mut set = CpuSet::new();
        set.set(core);
        rustix::thread::sched_setaffinity(None, &set).map_err(|_| refuse())
    }
}

/// Reads the name of a domain, a stream or a channel.
pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    let fits = insane_wire::id::valid_name(text);
    fits.then(|| text.to_owned())
        .ok_or_else(|| "it takes a name of 1 to 255 bytes without control characters".to_owned())
}

/// Reads the name of a stream; those that begin with `qos:` are the unnamed ones'.
pub(crate) fn parse_stream(text: &str) -> Result<String, String> {
    if text.starts_with("qos:") {
        return Err("names that begin with `qos:` are those of unnamed streams: give --qos instead".into());
    }
    parse_name(text)
}

/// Reads a name that more is added to.
pub(crate) fn parse_stem(text: &str) -> Result<String, String> {
    let fits = insane_wire::id::valid_name(text) && text.len() <= 250;
    fits.then(|| text.to_owned())
        .ok_or_else(|| "it takes a name of 1 to 250 bytes without control characters".to_owned())
}

/// A signal so soon after the first is the same one, told twice: `timeout` tells the program and then its whole group.
const AGAIN: Duration = Duration::from_millis(200);

/// Set when the user interrupts (SIGINT, SIGTERM): results so far are still printed. A second signal ends the program at once.
pub(crate) fn interrupted() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let set = flag.clone();
    let listen = move || {
        let mut first = None;
        for _ in signals.forever() {
            set.store(true, Ordering::Relaxed);
            if first.get_or_insert_with(Instant::now).elapsed() >= AGAIN {
                signal_hook::low_level::exit(1);
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(listen)?;
    Ok(flag)
}

pub(crate) fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}

/// The longest that [`sleep_until`] sleeps at a time.
const SLICE: Duration = Duration::from_millis(100);

/// Sleeps until then, or until the flag of [`interrupted`] is set.
pub(crate) fn sleep_until(due: Instant, stop: &AtomicBool) {
    // In slices: nothing wakes a thread that sleeps.
    let left = || due.saturating_duration_since(Instant::now()).min(SLICE);
    while !left().is_zero() && !is_set(stop) {
        std::thread::sleep(left());
    }
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
    fn each_word_for_waiting_is_its_own_way() {
        let ways = ["spin", "adaptive", "sleep"].map(parse_wait);
        assert_eq!(ways, [Ok(Wait::Spin), Ok(Wait::Adaptive), Ok(Wait::Sleep)]);
    }

    #[test]
    fn percentiles() {
        let samples: Vec<u64> = (1..=1000).collect();
        assert_eq!(spans(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
        assert_eq!((percentile(&samples, 50.0), percentile(&samples, 99.9), percentile(&[], 50.0)), (500, 999, 0));
    }
}
