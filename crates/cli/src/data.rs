//! `insane pub` and `insane sub`: messages by hand.

use crate::common::{Context, Failure, Outcome, StreamArguments, WaitArguments, interrupted, is_set, parse_name};
use crate::perf::MOST_SINKS;
use insane::{Code, SinkOptions, SourceOptions};
use insane_arguments::{MOST_BYTES, seconds, whole};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Emit messages: arguments, files, or the lines of standard input.
#[derive(Debug, clap::Args)]
pub(crate) struct Pub {
    /// The channel.
    #[arg(value_parser = parse_name)]
    channel: String,
    /// Messages, one each; the lines of standard input without any and without files.
    messages: Vec<String>,
    /// Files, each one message.
    #[arg(long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Emit everything so often.
    #[arg(long, default_value = "1", value_parser = whole(1, u64::MAX))]
    repeat: u64,
    /// Pause between messages, in seconds.
    #[arg(long, default_value = "0", value_parser = seconds)]
    interval: Duration,
    /// Sinks to wait for first.
    #[arg(long, default_value = "1", value_parser = whole(0, MOST_SINKS))]
    sinks: u64,
    /// How long sinks, and the delivery of the last message, are waited for, in seconds.
    #[arg(long, default_value = "5", value_parser = seconds)]
    timeout: Duration,
    #[command(flatten)]
    stream: StreamArguments,
}

/// Print messages of a channel.
#[derive(Debug, clap::Args)]
pub(crate) struct Sub {
    /// The channel.
    #[arg(value_parser = parse_name)]
    channel: String,
    /// End after so many messages.
    #[arg(long, value_parser = whole(1, u64::MAX))]
    count: Option<u64>,
    /// End after so long, in seconds.
    #[arg(long, value_parser = seconds)]
    duration: Option<Duration>,
    /// Write each message to a file of its own in this directory, named by its number.
    #[arg(long, value_name = "DIR", conflicts_with = "hex")]
    to: Option<PathBuf>,
    /// Print in hexadecimal.
    #[arg(long)]
    hex: bool,
    /// Look on as an observer: hold nothing up, be no intended sink.
    #[arg(long)]
    observer: bool,
    #[command(flatten)]
    wait: WaitArguments,
    #[command(flatten)]
    stream: StreamArguments,
}

impl Pub {
    /// What can be known to be wrong before anything is emitted.
    fn check(&self) -> Outcome {
        if self.repeat > 1 && self.messages.is_empty() && self.files.is_empty() {
            let text = "--repeat <REPEAT> needs messages or --file: standard input can be read once only";
            return Err(Failure::usage(text));
        }
        for file in &self.files {
            let refuse = |why: &str| Failure::usage(format!("--file <FILE> is '{}': {why}", file.display()));
            let metadata = std::fs::metadata(file).map_err(|e| refuse(&e.to_string()))?;
            if metadata.is_dir() {
                return Err(refuse("it is a directory, and it takes a file"));
            }
            if metadata.len() > MOST_BYTES as u64 {
                return Err(refuse("it takes a file of at most 128M"));
            }
        }
        Ok(())
    }

    pub(crate) fn run(&self, context: &Context) -> Outcome {
        self.check()?;
        let session = context.session("insane pub")?;
        let stream = self.stream.open(&session)?;
        let source = stream.source_with(self.channel.as_str(), SourceOptions::default())?;
        let found = source.wait_for_sinks(usize::try_from(self.sinks).unwrap_or(usize::MAX), self.timeout);
        if (found as u64) < self.sinks {
            let text = format!(
                "{found} of {} sinks on `{}` within the time allowed (--timeout, --sinks 0 not to wait)",
                self.sinks, self.channel
            );
            return Err(Failure { number: Code::Timeout.number(), text, usage: false });
        }
        let stop = interrupted()?;
        let (mut emitted, mut last) = (0u64, None);
        let mut emit = |payload: &[u8]| -> Outcome {
            if found > 0 {
                source.wait_for_room(self.timeout)?;
            }
            last = Some(source.send(payload)?);
            emitted += 1;
            if !self.interval.is_zero() {
                std::thread::sleep(self.interval);
            }
            Ok(())
        };
        for _ in 0..self.repeat {
            for message in &self.messages {
                emit(message.as_bytes())?;
            }
            for file in &self.files {
                let bytes = std::fs::read(file)
                    .map_err(|e| Failure::usage(format!("--file <FILE> is '{}': {e}", file.display())))?;
                emit(&bytes)?;
            }
            if self.messages.is_empty() && self.files.is_empty() {
                for line in std::io::stdin().lock().lines() {
                    emit(line?.as_bytes())?;
                    if is_set(&stop) {
                        break;
                    }
                }
                break;
            }
            if is_set(&stop) {
                break;
            }
        }
        // The memory is this process's: it stays until the sinks have what is in it.
        let end = Instant::now() + self.timeout;
        let outcome = loop {
            let Some(token) = last else { break insane::Outcome::default() };
            let outcome = source.outcome(token)?;
            if outcome.is_final() || Instant::now() >= end || is_set(&stop) {
                break outcome;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        if context.json {
            say!(
                "{}",
                serde_json::json!({"emitted": emitted, "sinks": found, "last": {"delivered": outcome.delivered,
                    "pending": outcome.pending, "dropped": outcome.dropped}})
            );
        } else {
            say!(
                "{emitted} emitted to {found} sinks; of the last, {} delivered, {} pending",
                outcome.delivered,
                outcome.pending
            );
        }
        Ok(())
    }
}

impl Sub {
    pub(crate) fn run(&self, context: &Context) -> Outcome {
        self.wait.pin()?;
        if let Some(dir) = &self.to {
            std::fs::create_dir_all(dir)
                .map_err(|e| Failure::usage(format!("--to <DIR> is '{}': {e}", dir.display())))?;
        }
        let session = context.session("insane sub")?;
        let stream = self.stream.open(&session)?;
        let options = SinkOptions { wait: self.wait.wait, observer: self.observer, ..SinkOptions::default() };
        let sink = stream.sink_with(self.channel.as_str(), options)?;
        let stop = interrupted()?;
        let (start, mut taken) = (Instant::now(), 0u64);
        let mut out = std::io::stdout().lock();
        while !is_set(&stop)
            && self.count.is_none_or(|c| taken < c)
            && self.duration.is_none_or(|d| start.elapsed() < d)
        {
            let message = match sink.consume_timeout(Duration::from_millis(100)) {
                Ok(message) => message,
                Err(e) if e.code() == Code::Timeout => continue,
                Err(e) => return Err(e.into()),
            };
            taken += 1;
            let bytes = message.to_vec();
            let (sequence, source) = (message.sequence(), message.source());
            drop(message);
            if let Some(dir) = &self.to {
                // Sources count each for itself, and none is ever there twice.
                let path = dir.join(format!("{source}-{sequence}"));
                std::fs::File::create_new(&path)
                    .and_then(|mut file| file.write_all(&bytes))
                    .map_err(|e| std::io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
            } else if context.json {
                let text = std::str::from_utf8(&bytes).ok().filter(|_| !self.hex);
                let hex = text.is_none().then(|| hex(&bytes));
                let json = serde_json::json!({"sequence": sequence, "source": source.to_string(), "bytes": bytes.len(), "text": text, "hex": hex});
                writeln!(out, "{json}")?;
            } else if self.hex {
                writeln!(out, "{}", hex(&bytes))?;
            } else {
                out.write_all(&bytes)?;
                out.write_all(b"\n")?;
            }
            out.flush()?;
        }
        Ok(())
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    })
}
