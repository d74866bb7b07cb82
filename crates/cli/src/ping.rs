//! `insane ping` and `insane pong`: round trips.

use crate::common::{
    Context, Failure, Outcome, Progress, StreamArguments, WaitArguments, interrupted, is_set, parse_stem, percentile,
    sleep_until,
};
use insane::{Code, SinkOptions, SourceOptions};
use insane_arguments::{numbered_size, seconds, size, whole};
use std::time::{Duration, Instant};

/// The most round trips of one run.
const MOST: u64 = 1_000_000_000;

/// Measure the round trip to a `pong`.
#[derive(Debug, clap::Args)]
pub(crate) struct Ping {
    /// Payload in bytes (8 to 128M).
    #[arg(long, default_value = "64", value_parser = numbered_size)]
    size: usize,
    /// How many round trips.
    #[arg(long, default_value = "10000", value_parser = whole(1, MOST))]
    count: u64,
    /// Round trips before those that are counted.
    #[arg(long, default_value = "1000", value_parser = whole(0, MOST))]
    warm_up: u64,
    /// Time from the beginning of a round trip to that of the next, in seconds; one that takes longer is followed by the next at once.
    #[arg(long, default_value = "0", value_parser = seconds)]
    interval: Duration,
    /// How long an answer is waited for, in seconds.
    #[arg(long, default_value = "2", value_parser = seconds)]
    timeout: Duration,
    /// The channels are called NAME/ping and NAME/pong.
    #[arg(long, default_value = "echo", value_name = "NAME", value_parser = parse_stem)]
    channel: String,
    #[command(flatten)]
    wait: WaitArguments,
    #[command(flatten)]
    stream: StreamArguments,
}

/// Answer every `ping`.
#[derive(Debug, clap::Args)]
pub(crate) struct Pong {
    /// The channels are called NAME/ping and NAME/pong.
    #[arg(long, default_value = "echo", value_name = "NAME", value_parser = parse_stem)]
    channel: String,
    /// The message size in bytes to have buffers ready for.
    #[arg(long, default_value = "1K", value_parser = size)]
    size: usize,
    #[command(flatten)]
    wait: WaitArguments,
    #[command(flatten)]
    stream: StreamArguments,
}

impl Ping {
    pub(crate) fn run(&self, context: &Context) -> Outcome {
        self.wait.pin()?;
        let session = context.session("insane ping")?;
        let stream = self.stream.open(&session)?;
        let sink = stream.sink_with(
            format!("{}/pong", self.channel).as_str(),
            SinkOptions { wait: self.wait.wait, ..SinkOptions::default() },
        )?;
        let options = SourceOptions { message_bytes: self.size, wait: self.wait.wait, ..SourceOptions::default() };
        let source = stream.source_with(format!("{}/ping", self.channel).as_str(), options)?;
        if source.wait_for_sinks(1, self.timeout) == 0 {
            let text = format!("nobody answers on `{}/ping`: start `insane pong --channel {0}` first", self.channel);
            return Err(Failure { number: Code::Timeout.number(), text, usage: false });
        }
        let stop = interrupted()?;
        let (mut samples, mut lost) = (Vec::with_capacity(usize::try_from(self.count.min(1 << 20)).unwrap_or(0)), 0u64);
        let mut progress = Progress::new();
        let mut payload = vec![0u8; self.size];
        let mut due = Instant::now();
        for round in 0..self.warm_up + self.count {
            if is_set(&stop) {
                break;
            }
            payload[..8].copy_from_slice(&round.to_le_bytes());
            let start = Instant::now();
            source.send(&payload)?;
            match self.answer(&sink, round) {
                Ok(()) if round >= self.warm_up => {
                    samples.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
                }
                Ok(()) => {}
                // The first answer of all may be given before who answers knows of this sink.
                Err(e) if e.code() == Code::Timeout => lost += u64::from(round >= self.warm_up),
                Err(e) => return Err(e.into()),
            }
            if round.is_multiple_of(256) {
                progress.show(|| format!("{} of {} round trips", samples.len(), self.count));
            }
            // What is late is not made up for: rounds are never closer than the interval for that.
            due = Instant::now().max(due + self.interval);
            sleep_until(due, &stop);
        }
        progress.end();
        self.report(context, samples, lost)
    }

    /// Waits for the answer to this round; older ones, of rounds that were given up, are passed over.
    fn answer(&self, sink: &insane::Sink, round: u64) -> insane::Result<()> {
        loop {
            let message = sink.consume_timeout(self.timeout)?;
            let mut number = [0u8; 8];
            message.read(&mut number);
            if u64::from_le_bytes(number) == round && message.len() == self.size {
                return Ok(());
            }
        }
    }

    fn report(&self, context: &Context, mut samples: Vec<u64>, lost: u64) -> Outcome {
        if samples.is_empty() {
            return Err(Failure { number: Code::Timeout.number(), text: "no answer came".into(), usage: false });
        }
        samples.sort_unstable();
        let us = |p| percentile(&samples, p) as f64 / 1e3;
        if context.json {
            let json = serde_json::json!({
                "payload_bytes": self.size, "count": samples.len(), "lost": lost, "waiting": self.wait.name(),
                "min_us": us(0.0), "median_us": us(50.0), "p90_us": us(90.0), "p99_us": us(99.0), "p999_us": us(99.9),
                "max_us": us(100.0), "histogram": histogram(&samples),
            });
            say!("{json}");
        } else {
            say!("{} round trips of {} bytes, {lost} lost, waiting {}", samples.len(), self.size, self.wait.name());
            say!(
                "min {:.2}  median {:.2}  p90 {:.2}  p99 {:.2}  p99.9 {:.2}  max {:.2} microseconds",
                us(0.0),
                us(50.0),
                us(90.0),
                us(99.0),
                us(99.9),
                us(100.0)
            );
            let bars = histogram(&samples);
            let top = bars.iter().map(|(_, n)| *n).max().unwrap_or(1);
            for (below, n) in bars {
                let width = usize::try_from(n * 50 / top.max(1)).unwrap_or(0);
                say!("  < {:>10.2} us {n:>9} {}", below as f64 / 1e3, "#".repeat(width));
            }
        }
        Ok(())
    }
}

/// Counts per power of two: the upper border in nanoseconds, and how many lie below it.
fn histogram(sorted: &[u64]) -> Vec<(u64, u64)> {
    let mut bars: Vec<(u64, u64)> = Vec::new();
    for sample in sorted {
        let below = (sample + 1).next_power_of_two();
        match bars.last_mut() {
            Some((border, n)) if *border == below => *n += 1,
            _ => bars.push((below, 1)),
        }
    }
    bars
}

impl Pong {
    pub(crate) fn run(&self, context: &Context) -> Outcome {
        self.wait.pin()?;
        let session = context.session("insane pong")?;
        let stream = self.stream.open(&session)?;
        let options = SourceOptions { message_bytes: self.size, wait: self.wait.wait, ..SourceOptions::default() };
        let source = stream.source_with(format!("{}/pong", self.channel).as_str(), options)?;
        let sink = stream.sink_with(
            format!("{}/ping", self.channel).as_str(),
            SinkOptions { wait: self.wait.wait, ..SinkOptions::default() },
        )?;
        let stop = interrupted()?;
        let mut answered = 0u64;
        if !context.json {
            eprintln!("answering on `{}/ping`, until interrupted", self.channel);
        }
        while !is_set(&stop) {
            let message = match sink.consume_timeout(Duration::from_millis(200)) {
                Ok(message) => message,
                Err(e) if e.code() == Code::Timeout => continue,
                Err(e) => return Err(e.into()),
            };
            match source.buffer(message.len()) {
                Ok(mut buffer) => {
                    message.read(&mut buffer);
                    source.emit(buffer)?;
                    // Given back after the answer is on its way: that is not on the path of the round trip.
                    drop(message);
                    answered += 1;
                }
                Err(e) if e.code() == Code::NoBuffer => {}
                Err(e) => return Err(e.into()),
            }
        }
        if context.json {
            say!("{}", serde_json::json!({"answered": answered}));
        } else {
            say!("answered {answered}");
        }
        Ok(())
    }
}
