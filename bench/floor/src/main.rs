//! What two processes on two cores can do at all, so that messaging figures have a floor beside them.
//!
//! A system program by the contract of `bench/README.md`: futex ping-pong, fan-out to sleeping and polling readers,
//! large messages. The two spinning floors that everything is compared with (`rtt`, `oneway`) are measured by
//! `method.c` beside this crate; the same loops in Rust are kept here for the test that compares the two, and are not
//! offered by `describe`.
//!
//! `chain-2` and `chain-6` are round trips of so many wake-ups by futex, placed as INSANE's processes are between two hosts: in
//! the first the ends wake each other, in the second each message and each answer goes through both hosts' helpers. `relay` has
//! the network between those helpers: see [`relay`].

mod line;
mod memory;
mod relay;
mod ring;

use anyhow::{Result, bail};
use bench_harness::{
    Args, Consumer, Control, Description, Echoer, Mode, Pinger, Producer, Role, Stop, System, Tally, Waiting,
};

use bench_sockets::gso::SEGMENT;
use line::{Line, Patience};
use memory::Shared;
use ring::{Reader, Ring, Wake, Writer};

/// The variant of sleeping fan-out in which each reader is woken by a system call of its own.
const WAKE_EACH: &str = "wake-each";
/// Round trips of two wake-ups and of six.
const CHAIN_2: &str = "chain-2";
const CHAIN_6: &str = "chain-6";
/// Helpers with a socket between the ends: a datagram for each message, and runs of datagrams.
const RELAY: &str = "relay";
const RELAY_GSO: &str = "relay-gso";

struct Floor;

struct Asking(Line);

impl Pinger for Asking {
    fn exchange(&mut self, n: u64) -> Result<()> {
        self.0.ask(n);
        Ok(())
    }
}

struct Answering {
    line: Line,
    next: u64,
}

impl Echoer for Answering {
    fn serve(&mut self) -> Result<()> {
        self.line.answer(self.next);
        self.next += 1;
        Ok(())
    }
}

impl Producer for Writer {
    fn send(&mut self, n: u64, stop: &Stop) -> Result<bool> {
        Ok(self.put(n, stop))
    }
}

struct Reading(Reader);

impl Consumer for Reading {
    fn receive(&mut self, tally: &mut Tally) -> Result<()> {
        self.0.take();
        tally.received += 1;
        Ok(())
    }
}

fn offered(args: &Args) -> Result<()> {
    match args.variant.as_str() {
        RELAY | RELAY_GSO if args.waiting == Waiting::Adaptive && args.two_hosts() && args.payload <= SEGMENT => Ok(()),
        _ if args.waiting == Waiting::Adaptive => bail!("the floor only spins or sleeps"),
        "" => Ok(()),
        WAKE_EACH | CHAIN_2 | CHAIN_6 if args.waiting == Waiting::Sleep => Ok(()),
        other => bail!("no variant '{other}'"),
    }
}

/// The line of an end: the only one, or in a chain of six the first or the last of three.
fn open_line(args: &Args) -> Result<Line> {
    let number = match args.variant.as_str() {
        CHAIN_6 => 2 * args.host(),
        RELAY => args.host(),
        _ => 0,
    };
    open_line_of(args, number)
}

fn open_line_of(args: &Args, number: u32) -> Result<Line> {
    offered(args)?;
    let shared = Shared::file(&args.dir.join(format!("floor-line-{number}")), Line::bytes(args.payload))?;
    // A large message goes one way; the answer only says that it was read.
    let large = matches!(args.role, Role::LargeSource | Role::LargeSink);
    let patience = match args.waiting {
        Waiting::Spin => Patience::Spins,
        Waiting::Adaptive if args.role == Role::Aux => Patience::Yields,
        // Nothing is faster for an end that shares its core with its helper.
        Waiting::Adaptive | Waiting::Sleep => Patience::Sleeps,
    };
    Ok(Line::new(shared, args.payload, if large { 8 } else { args.payload }, patience))
}

fn open_ring(args: &Args) -> Result<Ring> {
    offered(args)?;
    let readers = args.sinks as usize;
    let name = if args.variant == RELAY_GSO { format!("floor-ring-{}", args.host()) } else { "floor-ring".into() };
    let shared = Shared::file(&args.dir.join(name), Ring::bytes(args.payload, readers))?;
    let wake = match (args.waiting, args.variant.as_str()) {
        (Waiting::Adaptive, _) => Wake::Yield,
        (Waiting::Spin, _) => Wake::Never,
        (_, WAKE_EACH) => Wake::Each,
        _ => Wake::Together,
    };
    Ok(Ring::new(shared, args.payload, readers, wake))
}

impl System for Floor {
    fn describe() -> Description {
        let mode = |experiment, waiting| Mode::new(experiment, waiting, "shm");
        Description {
            system: "floor".into(),
            language: "rust",
            version: env!("CARGO_PKG_VERSION").into(),
            modes: vec![
                mode("rtt", Waiting::Sleep),
                mode("oneway", Waiting::Sleep),
                mode("fanout", Waiting::Spin),
                mode("fanout", Waiting::Sleep),
                mode("fanout", Waiting::Sleep).variant(WAKE_EACH),
                mode("fanout", Waiting::Sleep).veth(),
                mode("large", Waiting::Spin),
                mode("large", Waiting::Sleep),
                mode("rtt", Waiting::Sleep).variant(CHAIN_2).veth(),
                mode("rtt", Waiting::Sleep).variant(CHAIN_6).veth().aux(),
                mode("rtt", Waiting::Adaptive).variant(RELAY).veth().aux(),
                mode("oneway", Waiting::Adaptive).variant(RELAY_GSO).veth().aux().payloads(&[64, 1024]),
            ],
            absent: vec![],
        }
    }

    fn pinger(args: &Args) -> Result<impl Pinger> {
        Ok(Asking(open_line(args)?))
    }

    fn echoer(args: &Args) -> Result<impl Echoer> {
        Ok(Answering { line: open_line(args)?, next: 1 })
    }

    fn producer(args: &Args) -> Result<impl Producer> {
        Ok(Writer::new(open_ring(args)?))
    }

    fn consumer(args: &Args) -> Result<impl Consumer> {
        if args.index >= args.sinks {
            bail!("sink {} of {}", args.index, args.sinks);
        }
        Ok(Reading(Reader::new(open_ring(args)?, args.index as usize)))
    }

    fn aux(args: &Args, control: &Control) -> Result<()> {
        let begin = || control.ready().and_then(|()| control.await_go()).map(drop);
        match (args.variant.as_str(), args.index) {
            (RELAY, index) => {
                let (line, socket) = (open_line_of(args, index)?, relay::socket(args)?);
                begin()?;
                let pass_on = if index == 0 { relay::asking } else { relay::answering };
                pass_on(&line, &socket, args.payload)
            }
            (RELAY_GSO, index) => {
                let (ring, socket) = (open_ring(args)?, relay::socket(args)?);
                begin()?;
                match index {
                    0 => relay::sending(Reader::new(ring, 0), &socket, args.payload),
                    _ => relay::receiving(Writer::new(ring), &socket, args.payload),
                }
            }
            (CHAIN_6, index) => {
                let (from, to) = (open_line_of(args, index)?, open_line_of(args, index + 1)?);
                begin()?;
                for n in 1.. {
                    // The process is ended where it sleeps, when its standard input closes.
                    from.pass_on(&to, n);
                }
                Ok(())
            }
            _ => bail!("only a chain of six and relays have helpers"),
        }
    }
}

fn main() -> Result<()> {
    bench_harness::main::<Floor>()
}
