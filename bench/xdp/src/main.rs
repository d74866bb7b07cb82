//! Bare AF_XDP: a socket on each host's end of the second cable, one Ethernet frame per message, nothing else. What INSANE over
//! AF_XDP is compared with.
//!
//! The program takes every frame in the driver, as INSANE does where it can, and the kernel copies each (veth has no zero-copy).
//! A source puts runs of frames into its ring with one system call, and stays within a window of what its sink tells of its
//! progress: a sender is faster than a receiver, and a rate with loss says little.

mod bpf;
mod port;
mod ring;

use std::time::Instant;

use anyhow::{Result, bail};
use bench_harness::{
    Args, Consumer, Description, Echoer, Mode, Pinger, Producer, Stop, System, Tally, Waiting, Window, Words,
    cable::{self, Patience},
    check, stamp,
};

use port::{LARGEST, Port};

/// Messages of one system call.
const RUN: u64 = 32;
/// What may be on its way, in messages: less than the receiver's ring has.
const WINDOW: usize = 1024;
/// How long a sender waits for its receiver's word.
const WORD: std::time::Duration = std::time::Duration::from_millis(20);
/// What is measured here; a frame of the usual MTU carries no more.
const PAYLOADS: &[usize] = &[64, 1024];

struct Xdp;

/// One end.
struct End {
    port: Port,
    message: [u8; cable::HEADER],
    word: [u8; cable::HEADER],
    payload: usize,
}

impl End {
    fn new(args: &Args) -> Result<Self> {
        if !args.two_hosts() {
            bail!("it takes two hosts");
        }
        if !args.variant.is_empty() {
            bail!("no variant '{}'", args.variant);
        }
        if args.payload > LARGEST {
            bail!("a frame carries at most {LARGEST} bytes");
        }
        let (message, word) = (cable::header(args.host(), cable::MESSAGE), cable::header(args.host(), cable::WORD));
        Ok(Self { port: Port::open(args.waiting)?, message, word, payload: args.payload })
    }

    /// Sends message `n` at once.
    #[inline]
    fn send(&mut self, n: u64) -> Result<()> {
        while !self.port.put(&self.message, self.payload, |message| stamp(message, n)) {}
        self.port.flush()
    }

    /// Waits for a message and reads all of it.
    #[inline]
    fn receive(&mut self, patience: Option<&mut Patience>) -> Result<u64> {
        let (mut got, payload, mut patience) = (None, self.payload, patience);
        while got.is_none() {
            let came = self.port.receive(|frame| {
                if let Some((cable::MESSAGE, message)) = cable::open(frame) {
                    got = Some(check(&message[..payload.min(message.len())], payload)?);
                }
                Ok(())
            })?;
            if let (0, Some(patience)) = (came, &mut patience) {
                patience.look()?;
            }
        }
        got.ok_or_else(|| anyhow::anyhow!("no message"))
    }
}

struct Asking(End);

impl Pinger for Asking {
    fn exchange(&mut self, n: u64) -> Result<()> {
        self.0.send(n)?;
        match self.0.receive(Some(&mut Patience::default()))? {
            got if got == n => Ok(()),
            got => bail!("the answer to {n} is {got}"),
        }
    }
}

struct Answering(End);

impl Echoer for Answering {
    fn serve(&mut self) -> Result<()> {
        let n = self.0.receive(None)?;
        self.0.send(n)
    }
}

struct Sending {
    end: End,
    window: Window,
    put: u64,
}

impl Sending {
    /// Takes the receiver's words until there is room.
    fn await_room(&mut self, stop: &Stop) -> Result<bool> {
        let Self { end, window, .. } = self;
        end.port.flush()?;
        let mut since = Instant::now();
        while window.is_full() {
            end.port.receive(|frame| {
                if let Some((cable::WORD, word)) = cable::open(frame) {
                    window.progress(word[..8].try_into()?);
                }
                Ok(())
            })?;
            if stop.requested() {
                return Ok(false);
            }
            if since.elapsed() >= WORD {
                window.forget();
                since = Instant::now();
            }
        }
        Ok(true)
    }
}

impl Producer for Sending {
    #[inline]
    fn send(&mut self, n: u64, stop: &Stop) -> Result<bool> {
        if self.window.is_full() && !self.await_room(stop)? {
            return Ok(false);
        }
        while !self.end.port.put(&self.end.message, self.end.payload, |message| stamp(message, n)) {
            self.end.port.flush()?;
        }
        self.window.add(1);
        self.put += 1;
        if self.put.is_multiple_of(RUN) {
            self.end.port.flush()?;
        }
        Ok(true)
    }
}

struct Receiving {
    end: End,
    words: Words,
}

impl Consumer for Receiving {
    #[inline]
    fn receive(&mut self, tally: &mut Tally) -> Result<()> {
        let payload = self.end.payload;
        self.end.port.receive(|frame| match cable::open(frame) {
            Some((cable::MESSAGE, message)) => tally.take(&message[..payload.min(message.len())]),
            _ => Ok(()),
        })?;
        if let Some(word) = self.words.due(tally.received + tally.lost) {
            while !self.end.port.put(&self.end.word, word.len(), |out| out.copy_from_slice(&word)) {}
            self.end.port.flush()?;
        }
        Ok(())
    }
}

fn modes() -> Vec<Mode> {
    let mut modes = Vec::new();
    for waiting in [Waiting::Spin, Waiting::Adaptive, Waiting::Sleep] {
        let of = |experiment| Mode::new(experiment, waiting, "frames").veth().payloads(PAYLOADS);
        let both = match waiting {
            // What it is compared with spins on four.
            Waiting::Spin => vec![of("rtt").four_cores(), of("oneway").four_cores()],
            Waiting::Adaptive => vec![of("rtt"), of("oneway")],
            Waiting::Sleep => vec![],
        };
        modes.extend(both);
    }
    modes
}

impl System for Xdp {
    fn describe() -> Description {
        Description {
            system: "af-xdp".into(),
            language: "rust",
            version: "kernel".into(),
            modes: modes(),
            absent: vec![],
        }
    }

    fn pinger(args: &Args) -> Result<impl Pinger> {
        Ok(Asking(End::new(args)?))
    }

    fn echoer(args: &Args) -> Result<impl Echoer> {
        Ok(Answering(End::new(args)?))
    }

    fn producer(args: &Args) -> Result<impl Producer> {
        let window = Window::new(WINDOW * args.payload, args.payload);
        Ok(Sending { end: End::new(args)?, window, put: 0 })
    }

    fn consumer(args: &Args) -> Result<impl Consumer> {
        Ok(Receiving { end: End::new(args)?, words: Words::new(WINDOW * args.payload, args.payload) })
    }
}

fn main() -> Result<()> {
    bench_harness::main::<Xdp>()
}
