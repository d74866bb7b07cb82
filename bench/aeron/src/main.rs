//! Aeron over its IPC transport, between two hosts over UDP: the C client and the C media driver.
//!
//! Two variants. `invoker` embeds the driver in one of the two ends, whose thread runs it now and then: one busy thread
//! per side and nothing else. `driver-core` gives the driver a process and a core of its own. With two hosts each has a driver.

mod client;
mod driver;

use std::time::Duration;

use anyhow::{Result, bail};
use bench_harness::{
    Absent, Args, Consumer, Control, Description, Echoer, Mode, Pinger, Producer, Role, Stop, System, Tally, Waiting,
    check,
};

use client::End;
use driver::Embedded;

const INVOKER: &str = "invoker";
const DRIVER_CORE: &str = "driver-core";
/// Stream numbers.
const ASK: i32 = 1;
const ANSWER: i32 = 2;
/// See [`client::End`].
const ROUND_TRIP_IDLE: u32 = 16_384;
const ONE_WAY_IDLE: u32 = 64;

struct AeronIpc;

/// The driver for this process: the first passive end has it in the `invoker` variant.
fn embedded(args: &Args) -> Result<Embedded> {
    match (args.variant.as_str(), args.waiting) {
        (INVOKER, Waiting::Spin) | (DRIVER_CORE, Waiting::Spin | Waiting::Adaptive) => {}
        _ => bail!("Aeron has no variant '{}' that waits by '{}'", args.variant, args.waiting.word()),
    }
    let first_passive = match args.role {
        _ if args.two_hosts() => true,
        Role::RttServer | Role::OnewaySink => true,
        Role::FanoutSink => args.index == 0,
        _ => false,
    };
    if args.variant == INVOKER && first_passive { Embedded::start(args) } else { Ok(Embedded::None) }
}

struct Asking {
    end: End,
    payload: usize,
}

impl Pinger for Asking {
    fn exchange(&mut self, n: u64) -> Result<()> {
        let payload = self.payload;
        self.end.send(n, payload, None)?;
        let mut answer = None;
        while answer.is_none() {
            self.end.poll(|m| {
                answer = Some(check(m, payload)?);
                Ok(())
            })?;
        }
        if answer != Some(n) {
            bail!("an answer to message {answer:?} instead of {n}");
        }
        Ok(())
    }
}

struct Answering {
    end: End,
    payload: usize,
}

impl Echoer for Answering {
    fn serve(&mut self) -> Result<()> {
        let mut asked = None;
        self.end.poll(|m| {
            asked = Some(check(m, self.payload)?);
            Ok(())
        })?;
        if let Some(n) = asked {
            self.end.send(n, self.payload, None)?;
        }
        Ok(())
    }
}

struct Sending {
    end: End,
    payload: usize,
}

impl Producer for Sending {
    fn send(&mut self, n: u64, stop: &Stop) -> Result<bool> {
        self.end.send(n, self.payload, Some(stop))
    }
}

struct Reading(End);

impl Consumer for Reading {
    fn receive(&mut self, tally: &mut Tally) -> Result<()> {
        self.0.poll(|m| tally.take(m))?;
        Ok(())
    }
}

impl System for AeronIpc {
    const GRACE: Duration = Duration::from_secs(2);

    fn describe() -> Description {
        let mut modes = Vec::new();
        for experiment in ["rtt", "oneway", "fanout"] {
            let mode = |waiting| Mode::new(experiment, waiting, "shm");
            modes.push(mode(Waiting::Spin).variant(INVOKER));
            modes.push(mode(Waiting::Spin).variant(DRIVER_CORE).aux_core());
            modes.push(mode(Waiting::Adaptive).variant(DRIVER_CORE).aux_core());
        }
        for experiment in ["rtt", "oneway"] {
            let mode = |waiting| Mode::new(experiment, waiting, "reliable").veth();
            modes.push(mode(Waiting::Spin).variant(INVOKER));
            modes.push(mode(Waiting::Spin).variant(DRIVER_CORE).aux_core());
            modes.push(mode(Waiting::Adaptive).variant(DRIVER_CORE).aux_core());
        }
        Description {
            system: "aeron".into(),
            language: "c",
            version: "C client and media driver of rusteron 0.2.16".into(),
            modes,
            absent: vec![
                Absent {
                    experiment: "*",
                    waiting: "sleep",
                    reason: "nobody is woken: its idle strategies only back off",
                },
                Absent { experiment: "large", waiting: "*", reason: "a message is at most 16 MiB" },
                Absent { experiment: "open", waiting: "*", reason: "its streams are not channels of a session" },
            ],
        }
    }

    fn pinger(args: &Args) -> Result<impl Pinger> {
        let end = End::new(args, embedded(args)?, ASK, ANSWER, ROUND_TRIP_IDLE)?;
        end.await_peers(1)?;
        Ok(Asking { end, payload: args.payload })
    }

    fn echoer(args: &Args) -> Result<impl Echoer> {
        let end = End::new(args, embedded(args)?, ANSWER, ASK, ROUND_TRIP_IDLE)?;
        Ok(Answering { end, payload: args.payload })
    }

    fn producer(args: &Args) -> Result<impl Producer> {
        let end = End::new(args, embedded(args)?, ASK, 0, ONE_WAY_IDLE)?;
        end.await_peers(args.sinks)?;
        Ok(Sending { end, payload: args.payload })
    }

    fn consumer(args: &Args) -> Result<impl Consumer> {
        Ok(Reading(End::new(args, embedded(args)?, 0, ASK, ONE_WAY_IDLE)?))
    }

    fn aux(args: &Args, control: &Control) -> Result<()> {
        driver::run(args, control)
    }
}

fn main() -> Result<()> {
    bench_harness::main::<AeronIpc>()
}
