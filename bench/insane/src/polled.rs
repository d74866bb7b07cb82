//! Ends that give their runtime's network its turns: the thread that asks, or answers, is also the one that sends and receives
//! (`Server::start_polled`). So two cores, one on each host, are enough for everything to spin, and where nobody spins without end a
//! message wakes one process on each host instead of two: such an end sleeps when a runtime's thread would.
//!
//! Until an end is asked for its first turn, and while it opens something, a thread beside it has them.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use bench_harness::{Args, Mode, Waiting};
use insane::{Message, Sink, WaitSet};
use insane_runtime::network::Poller;
use insane_runtime::server::Server;

use crate::{MEETING, bypass};

/// What is behind the datapath's name in variants with such ends.
const SUFFIX: &str = "polled";

/// Turns between two looks at the clock.
const TURNS: u32 = 1 << 16;

/// The variant without saying who polls; `None` if its ends do not.
pub(crate) fn base(variant: &str) -> Option<&str> {
    let base = variant.strip_suffix(SUFFIX)?;
    if base.is_empty() { Some(base) } else { base.strip_suffix('-') }
}

/// What there is of such ends: spinning ones over kernel UDP, AF_XDP and, where there is DPDK, its ports; over kernel UDP also others.
pub(crate) fn modes() -> impl Iterator<Item = Mode> {
    let over_dpdk = ["dpdk-memif-polled", "dpdk-af-packet-polled", "dpdk-af-xdp-polled"];
    let spinning = [SUFFIX, "xdp-polled"].into_iter().chain(over_dpdk.into_iter().filter(|_| bypass::has_dpdk()));
    let others = [Waiting::Adaptive, Waiting::Sleep].map(|waiting| (waiting, SUFFIX));
    let all = spinning.map(|variant| (Waiting::Spin, variant)).chain(others);
    all.map(|(waiting, variant)| Mode::new("rtt", waiting, "datagram").variant(variant).veth())
}

/// A runtime whose network this process polls.
pub(crate) struct Polled {
    server: Option<Server>,
    turns: Turns,
    /// Has the sink that is waited for, and what wakes it; `None`: nobody sleeps.
    sleeps: Option<WaitSet>,
}

/// Who has the turns.
enum Turns {
    Beside(Arc<AtomicBool>, JoinHandle<Poller>),
    Here(Box<Poller>),
    Nobody,
}

fn beside(mut poller: Poller) -> Turns {
    let over = Arc::new(AtomicBool::new(false));
    let seen = over.clone();
    let poll = move || {
        // Relaxed: nothing is read on the strength of it.
        while !seen.load(Ordering::Relaxed) {
            if !poller.turn() {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        poller
    };
    Turns::Beside(over, std::thread::spawn(poll))
}

impl Turns {
    /// Takes them to this thread.
    fn here(&mut self) -> Result<&mut Poller> {
        if !matches!(self, Self::Here(_)) {
            *self = match std::mem::replace(self, Self::Nobody) {
                Self::Beside(over, thread) => {
                    over.store(true, Ordering::Relaxed);
                    Self::Here(Box::new(thread.join().map_err(|_| anyhow!("who polled has panicked"))?))
                }
                other => other,
            };
        }
        match self {
            Self::Here(poller) => Ok(poller),
            _ => bail!("nobody polls"),
        }
    }
}

impl Polled {
    /// Starts the runtime of this process's host, if the variant has such ends.
    pub(crate) fn start(args: &Args) -> Result<Option<Self>> {
        if base(&args.variant).is_none() {
            return Ok(None);
        }
        let (server, poller) = Server::start_polled(crate::configuration(args)?)?;
        let poller = poller.context("a runtime without a network")?;
        let sleeps = (args.waiting != Waiting::Spin).then(WaitSet::new).transpose()?;
        Ok(Some(Self { server: Some(server), turns: beside(poller), sleeps }))
    }

    /// Lets another thread have the turns.
    pub(crate) fn let_go(&mut self) {
        self.turns = match std::mem::replace(&mut self.turns, Turns::Nobody) {
            Turns::Here(poller) => beside(*poller),
            other => other,
        };
    }

    /// A turn: what was emitted before goes.
    pub(crate) fn turn(&mut self) -> Result<()> {
        self.turns.here()?.turn();
        Ok(())
    }

    /// The next message; `None` if none has come for a while.
    pub(crate) fn consume<'s>(&mut self, sink: &'s Sink) -> Result<Option<Message<'s>>> {
        let poller = self.turns.here()?;
        let start = Instant::now();
        while start.elapsed() < crate::LOOK {
            for _ in 0..TURNS {
                let busy = poller.turn();
                if let Some(message) = sink.try_consume()? {
                    return Ok(Some(message));
                }
                let Some(set) = self.sleeps.as_mut().filter(|_| !busy) else { continue };
                if set.is_empty() {
                    set.add(sink)?;
                }
                if poller.idle() && set.arm()? {
                    poller.sleep(&[set.as_fd()], crate::LOOK);
                    break;
                }
            }
        }
        Ok(None)
    }

    /// The next message, which must come.
    pub(crate) fn expect<'s>(&mut self, sink: &'s Sink) -> Result<Message<'s>> {
        let start = Instant::now();
        while start.elapsed() < MEETING {
            if let Some(message) = self.consume(sink)? {
                return Ok(message);
            }
        }
        bail!("nothing came in {} s", MEETING.as_secs())
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        // It says goodbye before its server goes.
        let _ = self.turns.here();
        self.turns = Turns::Nobody;
        self.server.take().into_iter().for_each(Server::stop);
    }
}
