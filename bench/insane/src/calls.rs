//! What the calls of a client take by themselves: a thread sends messages to itself, then takes them. It finds all of it in its own
//! core's caches, waits for nobody and wakes nobody.

use std::hint::black_box;

use anyhow::{Context, Result, bail};
use bench_harness::summary::at;
use bench_harness::sys::now_ns;
use bench_harness::{Args, Control, stamp};
use insane::{Sink, Source};
use serde::Serialize;

use crate::Host;

/// Messages of a run: less than a link holds, and enough for the clock not to matter.
const RUN: u64 = 64;
/// Runs at most.
const MOST_RUNS: usize = 1 << 16;

/// The result line.
#[derive(Debug, Serialize)]
struct Took {
    /// Messages in the window.
    samples: u64,
    /// CPU time of all processes in the window, in nanoseconds.
    cpu_ns: u64,
    /// What a message takes to be sent, and to be taken and released: the medians of runs, in nanoseconds.
    send_ns: f64,
    consume_ns: f64,
}

/// Sends a run; how long it took in nanoseconds.
fn send(source: &Source, message: &[u8]) -> Result<u64> {
    let start = now_ns();
    for _ in 0..RUN {
        source.send(message)?;
    }
    Ok(now_ns() - start)
}

/// Takes a run, and reads nothing of it; how long it took in nanoseconds.
fn consume(sink: &Sink) -> Result<u64> {
    let start = now_ns();
    for _ in 0..RUN {
        drop(black_box(sink.consume()?));
    }
    Ok(now_ns() - start)
}

/// A message's part of the middle run.
fn per_message(mut runs: Vec<u64>) -> Option<f64> {
    runs.sort_unstable();
    (!runs.is_empty()).then(|| at(&runs, 50_000) as f64 / RUN as f64)
}

/// Both ends.
pub(crate) fn measure(args: &Args, control: &Control) -> Result<()> {
    if args.payload > crate::SMALL {
        bail!("calls are those of messages of up to {} bytes, which are copied", crate::SMALL);
    }
    let host = Host::new(args)?;
    let (sink, source) = (host.sink("calls")?, host.source("calls", args.payload)?);
    host.await_sinks(&source, 1)?;
    let mut message = vec![0; args.payload];
    stamp(&mut message, 0);
    control.ready()?;
    let (cpu, stop) = (control.await_go()?, control.stop());
    for _ in 0..args.warmup.div_ceil(RUN) {
        send(&source, &message)?;
        consume(&sink)?;
    }
    let (start, cpu_start, limit) = (now_ns(), cpu.total_ns()?, (args.seconds * 1e9) as u64);
    let (mut sends, mut consumes) = (Vec::new(), Vec::new());
    while sends.len() < MOST_RUNS && now_ns() - start < limit && !stop.requested() {
        sends.push(send(&source, &message)?);
        consumes.push(consume(&sink)?);
    }
    let (samples, cpu_ns) = (sends.len() as u64 * RUN, cpu.total_ns()? - cpu_start);
    let (send_ns, consume_ns) = per_message(sends).zip(per_message(consumes)).context("no run within the window")?;
    control.result(&Took { samples, cpu_ns, send_ns, consume_ns })?;
    control.await_stop();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_part_of_the_middle_run() {
        assert_eq!(per_message(vec![64 * 9, 64 * 30, 64 * 2]), Some(9.0));
        assert_eq!(per_message(vec![]), None);
    }
}
