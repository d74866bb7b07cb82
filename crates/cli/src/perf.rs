//! `insane perf`: how much goes one way.

use crate::common::{
    Context, Failure, Outcome, Progress, StreamArguments, WaitArguments, human, interrupted, is_set, parse_name,
    sleep_until,
};
use insane::{Code, RawMessage, Reliability, Sink, SinkOptions, Source, SourceOptions};
use insane_arguments::{numbered_size, rate, seconds, whole};
use std::time::{Duration, Instant};

/// How long it waits at most before it looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// The most sinks that one end waits for.
pub(crate) const MOST_SINKS: u64 = 65_535;

/// Messages that a source emits between two looks at the clock.
const MOST_AT_ONCE: u64 = 64;

/// One end of a measurement.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Perf {
    /// Emit as fast as it goes.
    Source(PerfSource),
    /// Read every byte of what comes, and count.
    Sink(PerfSink),
}

/// Emit as fast as it goes.
#[derive(Debug, clap::Args)]
pub(crate) struct PerfSource {
    /// Payload in bytes (8 to 128M).
    #[arg(long, default_value = "1K", value_parser = numbered_size)]
    size: usize,
    /// How long, in seconds.
    #[arg(long, default_value = "5", value_parser = seconds)]
    duration: Duration,
    /// Sinks to wait for.
    #[arg(long, default_value = "1", value_parser = whole(0, MOST_SINKS))]
    sinks: u64,
    /// Messages a second; as many as go without it.
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// Messages that follow each other at once, 1 to 64: all but the last of them say that more is to come.
    #[arg(long, default_value = "32", value_name = "N", value_parser = whole(1, 64))]
    batch: u64,
    /// Drop what a full sink has no room for, rather than waiting for it.
    #[arg(long)]
    drop: bool,
    /// The channel.
    #[arg(long, default_value = "perf", value_name = "NAME", value_parser = parse_name)]
    channel: String,
    #[command(flatten)]
    wait: WaitArguments,
    #[command(flatten)]
    stream: StreamArguments,
}

/// Read every byte of what comes, and count.
#[derive(Debug, clap::Args)]
pub(crate) struct PerfSink {
    /// How long, in seconds, from the first message; until the source ends without it.
    #[arg(long, value_parser = seconds)]
    duration: Option<Duration>,
    /// How long silence lasts before the source has ended, in seconds.
    #[arg(long, default_value = "1", value_parser = seconds)]
    silence: Duration,
    /// How long the first message is waited for, in seconds.
    #[arg(long, default_value = "60", value_parser = seconds)]
    patience: Duration,
    /// The channel.
    #[arg(long, default_value = "perf", value_name = "NAME", value_parser = parse_name)]
    channel: String,
    #[command(flatten)]
    wait: WaitArguments,
    #[command(flatten)]
    stream: StreamArguments,
}

impl Perf {
    pub(crate) fn run(&self, context: &Context) -> Outcome {
        match self {
            Self::Source(source) => source.run(context),
            Self::Sink(sink) => sink.run(context),
        }
    }
}

impl PerfSource {
    fn run(&self, context: &Context) -> Outcome {
        if self.drop && self.stream.qos.reliability() == Reliability::Reliable {
            return Err(Failure::usage("--drop cannot be combined with --qos reliability=reliable: its sources wait"));
        }
        self.wait.pin()?;
        let session = context.session("insane perf source")?;
        let stream = self.stream.open(&session)?;
        let options = SourceOptions { message_bytes: self.size, wait: self.wait.wait, ..SourceOptions::default() };
        let source = stream.source_with(self.channel.as_str(), options)?;
        let sinks = usize::try_from(self.sinks).unwrap_or(usize::MAX);
        if source.wait_for_sinks(sinks, Duration::from_secs(30)) < sinks {
            let text = format!("fewer than {} sinks on `{}` within 30 s", self.sinks, self.channel);
            return Err(Failure { number: Code::Timeout.number(), text, usage: false });
        }
        let stop = interrupted()?;
        let mut progress = Progress::new();
        let (start, mut emitted) = (Instant::now(), 0u64);
        // The clock is read once in a while: it costs as much as an emit. With a rate, what is due within a millisecond goes together.
        let burst = self.rate.map_or(MOST_AT_ONCE, |rate| ((rate / 1000.0) as u64).clamp(1, MOST_AT_ONCE));
        while !is_set(&stop) {
            for _ in 0..burst {
                self.emit_one(&source, emitted)?;
                emitted += 1;
            }
            // What is not the last of its batch goes all the same.
            source.flush()?;
            if let Some(rate) = self.rate {
                let due = Duration::try_from_secs_f64(emitted as f64 / rate).unwrap_or(self.duration);
                sleep_until(start + due.min(self.duration), &stop);
            }
            let elapsed = start.elapsed();
            if elapsed >= self.duration {
                break;
            }
            progress.show(|| format!("{emitted} emitted, {:.0} s left", (self.duration - elapsed).as_secs_f64()));
        }
        progress.end();
        let seconds = start.elapsed().as_secs_f64();
        let counts = session.counts();
        let sum = |count| counts.iter().map(|c| c.get(count)).sum::<u64>();
        let (intended, full) = (sum(insane::Count::Intended), sum(insane::Count::SinkFull));
        let rate = emitted as f64 / seconds;
        if context.json {
            say!(
                "{}",
                serde_json::json!({
                    "payload_bytes": self.size, "emitted": emitted, "seconds": seconds, "msgs_per_s": rate,
                    "gbit_per_s": rate * self.size as f64 * 8.0 / 1e9, "intended": intended, "sink_full": full,
                })
            );
        } else {
            say!(
                "{emitted} messages of {} bytes in {seconds:.2} s: {}msg/s, {}bit/s; {full} of {intended} dropped at full sinks",
                self.size,
                human(rate),
                human(rate * self.size as f64 * 8.0)
            );
        }
        Ok(())
    }

    /// Emits one message; without `--drop` it first waits until every sink has room.
    #[inline]
    fn emit_one(&self, source: &Source, number: u64) -> Result<(), Failure> {
        let mut buffer = loop {
            match source.buffer(self.size) {
                Ok(buffer) => break buffer,
                // Sinks that sleep have to hear of what they are to give back.
                Err(e) if e.code() == Code::NoBuffer => source.flush()?,
                Err(e) => return Err(e.into()),
            }
        };
        buffer.fill(number as u8);
        buffer[..8].copy_from_slice(&number.to_le_bytes());
        if !self.drop {
            source.wait_for_room(Duration::from_secs(10))?;
        }
        if number % self.batch == self.batch - 1 { source.emit(buffer) } else { source.emit_more(buffer) }?;
        Ok(())
    }
}

/// Reads every byte, in words where the payload may be read in place.
#[inline]
pub(crate) fn read_all(message: &RawMessage) -> u64 {
    match message.as_slice() {
        Some(bytes) => {
            let (words, rest) = bytes.as_chunks::<8>();
            let sum = words.iter().fold(0u64, |sum, w| sum.wrapping_add(u64::from_le_bytes(*w)));
            rest.iter().fold(sum, |sum, b| sum.wrapping_add(u64::from(*b)))
        }
        None => message.to_vec().iter().fold(0u64, |sum, b| sum.wrapping_add(u64::from(*b))),
    }
}

impl PerfSink {
    fn run(&self, context: &Context) -> Outcome {
        self.wait.pin()?;
        let session = context.session("insane perf sink")?;
        let stream = self.stream.open(&session)?;
        let sink =
            stream.sink_with(self.channel.as_str(), SinkOptions { wait: self.wait.wait, ..SinkOptions::default() })?;
        let stop = interrupted()?;
        if !context.json {
            eprintln!("reading `{}`", self.channel);
        }
        let waited = Instant::now();
        let first = loop {
            match sink.consume_timeout(Duration::from_millis(200)) {
                Ok(message) => break message,
                Err(e) if e.code() == Code::Timeout && waited.elapsed() < self.patience && !is_set(&stop) => {}
                Err(e) if e.code() == Code::Timeout => {
                    let text = format!("nothing came on `{}` in time (--patience)", self.channel);
                    return Err(Failure { number: e.code().number(), text, usage: false });
                }
                Err(e) => return Err(e.into()),
            }
        };
        let mut tally = Tally { first: first.sequence(), last: first.sequence(), ..Tally::default() };
        tally.take(&first);
        drop(first);
        self.count(&sink, &mut tally, || is_set(&stop))?;
        tally.report(context.json)
    }

    fn count(&self, sink: &Sink, tally: &mut Tally, stop: impl Fn() -> bool) -> Outcome {
        let start = Instant::now();
        let mut progress = Progress::new();
        let (look, mut silent) = (self.silence.min(LOOK), Duration::ZERO);
        loop {
            for _ in 0..64 {
                let (waits, come) = match sink.consume_timeout(Duration::ZERO) {
                    Err(e) if e.code() == Code::Timeout => (true, sink.consume_timeout(look)),
                    come => (false, come),
                };
                match come {
                    Ok(message) => {
                        tally.take(&message);
                        silent = Duration::ZERO;
                    }
                    Err(e) if e.code() == Code::Timeout => {
                        silent += look;
                        if silent >= self.silence {
                            progress.end();
                            // The last message came so long ago.
                            tally.seconds = start.elapsed().saturating_sub(silent).as_secs_f64();
                            return Ok(());
                        }
                    }
                    Err(e) => return Err(e.into()),
                }
                // Who waits for messages has time to look at the clock.
                if waits {
                    break;
                }
            }
            tally.seconds = start.elapsed().as_secs_f64();
            if stop() || self.duration.is_some_and(|d| start.elapsed() >= d) {
                progress.end();
                return Ok(());
            }
            progress.show(|| format!("{} received", tally.received));
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    received: u64,
    bytes: u64,
    first: u64,
    last: u64,
    lost: u64,
    sum: u64,
    seconds: f64,
}

impl Tally {
    #[inline]
    fn take(&mut self, message: &RawMessage) {
        self.sum = self.sum.wrapping_add(read_all(message));
        let sequence = message.sequence();
        // One source: gaps in its numbers are messages that this sink's link had no room for.
        self.lost += sequence.saturating_sub(self.last + 1);
        self.last = self.last.max(sequence);
        self.received += 1;
        self.bytes += message.len() as u64;
    }

    fn report(&self, json: bool) -> Outcome {
        let rate = if self.seconds > 0.0 { self.received as f64 / self.seconds } else { 0.0 };
        let bits = if self.seconds > 0.0 { self.bytes as f64 * 8.0 / self.seconds } else { 0.0 };
        if json {
            say!(
                "{}",
                serde_json::json!({
                    "received": self.received, "lost": self.lost, "bytes": self.bytes, "seconds": self.seconds,
                    "msgs_per_s": rate, "gbit_per_s": bits / 1e9, "first": self.first, "last": self.last,
                    "checksum": self.sum,
                })
            );
        } else {
            say!(
                "{} received, {} lost, in {:.2} s: {}msg/s, {}bit/s",
                self.received,
                self.lost,
                self.seconds,
                human(rate),
                human(bits)
            );
        }
        Ok(())
    }
}
