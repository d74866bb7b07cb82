//! UDP, one datagram per message; in the variant `gso` runs of datagrams per system call.
#![forbid(unsafe_code)]

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use bench_harness::{
    Absent, Args, Consumer, Description, Echoer, Mode, Pinger, Producer, Stop, System, Tally, Waiting, Window, Words,
    check, stamp,
};
use bench_sockets::gso::{self, JOINED_BYTES, Joiner, Run, WINDOW_BYTES, WORD};
use bench_sockets::meet::{learn_port, tell_port};
use bench_sockets::wait::{prepare, until_ready};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// The largest payload that one datagram over IPv4 carries.
const LARGEST: usize = 65_507;
const GSO: &str = "gso";

struct Udp;

struct Port {
    socket: UdpSocket,
    waiting: Waiting,
    buffer: Vec<u8>,
}

impl Port {
    fn new(args: &Args) -> Result<Self> {
        let bytes = match args.variant.as_str() {
            "" if args.payload > LARGEST => bail!("a datagram carries at most {LARGEST} bytes"),
            "" => args.payload,
            GSO => JOINED_BYTES,
            other => bail!("no variant '{other}'"),
        };
        let socket = UdpSocket::bind((args.own, 0)).context("binding a port")?;
        gso::make_room(&socket)?;
        prepare(&socket, args.waiting)?;
        Ok(Self { socket, waiting: args.waiting, buffer: vec![0; bytes] })
    }

    fn listening(args: &Args, index: u32) -> Result<Self> {
        let port = Self::new(args)?;
        tell_port(&args.dir, index, port.socket.local_addr()?.port())?;
        Ok(port)
    }

    fn connected(args: &Args, index: u32) -> Result<Self> {
        let port = Self::new(args)?;
        port.socket.connect((args.peer, learn_port(&args.dir, index)?))?;
        Ok(port)
    }

    /// The first datagram tells who is there; from then on both ends use connected sockets.
    fn connect_to_first(&self) -> Result<()> {
        prepare(&self.socket, Waiting::Sleep)?;
        let mut first = [0; 1];
        let from = self.socket.peek_from(&mut first)?.1;
        self.socket.connect(from)?;
        prepare(&self.socket, self.waiting)?;
        Ok(())
    }

    fn send(&self, message: &[u8], stop: Option<&Stop>) -> Result<bool> {
        let call = || send(&self.socket, message, SendFlags::empty());
        Ok(until_ready(&self.socket, self.waiting, PollFlags::OUT, stop, call)?.is_some())
    }

    fn receive(&mut self) -> Result<usize> {
        let Self { socket, waiting, buffer } = self;
        // TRUNC: the datagram's true length, so that a longer one is noticed.
        let call = || Ok(recv(&*socket, &mut buffer[..], RecvFlags::TRUNC)?.1);
        until_ready(socket, *waiting, PollFlags::IN, None, call)?.context("no datagram")
    }
}

struct Asking(Port);

impl Pinger for Asking {
    fn exchange(&mut self, n: u64) -> Result<()> {
        let port = &mut self.0;
        stamp(&mut port.buffer, n);
        port.send(&port.buffer, None)?;
        let got = port.receive()?;
        if got != port.buffer.len() || check(&port.buffer, got)? != n {
            bail!("an answer to another message than {n}");
        }
        Ok(())
    }
}

struct Answering {
    port: Port,
    connected: bool,
}

impl Echoer for Answering {
    fn serve(&mut self) -> Result<()> {
        if !self.connected {
            self.port.connect_to_first()?;
            self.connected = true;
        }
        let got = self.port.receive()?;
        if got != self.port.buffer.len() {
            bail!("a datagram of {got} bytes");
        }
        let n = check(&self.port.buffer, got)?;
        stamp(&mut self.port.buffer, n);
        self.port.send(&self.port.buffer, None)?;
        Ok(())
    }
}

struct Fan {
    ports: Vec<Port>,
    message: Vec<u8>,
}

impl Producer for Fan {
    fn send(&mut self, n: u64, stop: &Stop) -> Result<bool> {
        stamp(&mut self.message, n);
        for port in &self.ports {
            if !port.send(&self.message, Some(stop))? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

struct Reading(Port);

impl Consumer for Reading {
    fn receive(&mut self, tally: &mut Tally) -> Result<()> {
        let got = self.0.receive()?;
        if got != self.0.buffer.len() {
            bail!("a datagram of {got} bytes");
        }
        tally.take(&self.0.buffer)
    }
}

/// Either way of sending.
enum Source {
    Plain(Fan),
    Runs(Flow),
}

/// Runs of datagrams, within a window.
struct Flow {
    port: Port,
    run: Run,
    window: Window,
}

impl Flow {
    fn new(args: &Args) -> Result<Self> {
        let port = Port::connected(args, 0)?;
        gso::cut(port.socket.as_fd(), args.payload).context("UDP_SEGMENT")?;
        // For the sleeping class; the spinning one looks at the clock.
        port.socket.set_read_timeout(Some(WORD))?;
        Ok(Self { port, run: Run::new(args.payload), window: Window::new(WINDOW_BYTES, args.payload) })
    }

    /// Waits for the receiver's word; whether there is room now.
    fn await_room(&mut self, stop: &Stop) -> Result<bool> {
        let since = Instant::now();
        while self.window.is_full() {
            let mut word = [0; 8];
            match recv(&self.port.socket, &mut word, RecvFlags::empty()) {
                Ok((_, 8)) => self.window.progress(word),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if stop.requested() => return Ok(false),
                Err(Errno::AGAIN) if since.elapsed() >= WORD => self.window.forget(),
                Err(Errno::AGAIN) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(true)
    }

    #[inline]
    fn send(&mut self, n: u64, stop: &Stop) -> Result<bool> {
        if !self.run.add(n) {
            return Ok(true);
        }
        if self.window.is_full() && !self.await_room(stop)? {
            return Ok(false);
        }
        for call in self.run.calls() {
            if !self.port.send(call, Some(stop))? {
                return Ok(false);
            }
        }
        self.window.add(self.run.messages());
        Ok(true)
    }
}

impl Producer for Source {
    #[inline]
    fn send(&mut self, n: u64, stop: &Stop) -> Result<bool> {
        match self {
            Self::Plain(fan) => fan.send(n, stop),
            Self::Runs(flow) => flow.send(n, stop),
        }
    }
}

/// Either way of receiving.
enum Sink {
    Plain(Reading),
    Runs(Joining),
}

/// Runs of datagrams, and a word on them now and then.
struct Joining {
    port: Port,
    joiner: Joiner,
    words: Words,
    connected: bool,
}

impl Joining {
    #[inline]
    fn receive(&mut self, tally: &mut Tally) -> Result<()> {
        if !self.connected {
            self.port.connect_to_first()?;
            self.connected = true;
        }
        let came = self.port.receive()?;
        self.joiner.take(&self.port.buffer[..came], tally)?;
        if let Some(word) = self.words.due(tally.received + tally.lost) {
            // A word that is lost is made up for by the next.
            let _ = send(&self.port.socket, &word, SendFlags::DONTWAIT);
        }
        Ok(())
    }
}

impl Consumer for Sink {
    #[inline]
    fn receive(&mut self, tally: &mut Tally) -> Result<()> {
        match self {
            Self::Plain(reading) => reading.receive(tally),
            Self::Runs(joining) => joining.receive(tally),
        }
    }
}

fn modes() -> Vec<Mode> {
    let waits = [Waiting::Spin, Waiting::Adaptive, Waiting::Sleep];
    let mut modes: Vec<Mode> =
        ["rtt", "oneway", "fanout"].iter().flat_map(|e| waits.map(|w| Mode::new(e, w, "datagram"))).collect();
    let veth = |experiment, waiting| Mode::new(experiment, waiting, "datagram").veth();
    modes.extend(waits.map(|w| veth("rtt", w)));
    modes.push(veth("oneway", Waiting::Sleep).most_bytes(LARGEST));
    modes.push(veth("oneway", Waiting::Sleep).variant(GSO));
    modes.push(veth("oneway", Waiting::Spin).variant(GSO));
    modes
}

impl System for Udp {
    fn describe() -> Description {
        Description {
            system: "udp".into(),
            language: "rust",
            version: "kernel".into(),
            modes: modes(),
            absent: vec![
                Absent { experiment: "large", waiting: "*", reason: "a datagram carries at most 65507 bytes" },
                Absent { experiment: "open", waiting: "*", reason: "sockets have no sessions or channels" },
            ],
        }
    }

    fn pinger(args: &Args) -> Result<impl Pinger> {
        Ok(Asking(Port::connected(args, 0)?))
    }

    fn echoer(args: &Args) -> Result<impl Echoer> {
        Ok(Answering { port: Port::listening(args, 0)?, connected: false })
    }

    fn producer(args: &Args) -> Result<impl Producer> {
        if args.variant == GSO {
            return Ok(Source::Runs(Flow::new(args)?));
        }
        let ports = (0..args.sinks).map(|i| Port::connected(args, i)).collect::<Result<_>>()?;
        Ok(Source::Plain(Fan { ports, message: vec![0; args.payload] }))
    }

    fn consumer(args: &Args) -> Result<impl Consumer> {
        let port = Port::listening(args, args.index)?;
        if args.variant == GSO {
            gso::join(port.socket.as_fd()).context("UDP_GRO")?;
            let (joiner, words) = (Joiner::new(args.payload), Words::new(WINDOW_BYTES, args.payload));
            return Ok(Sink::Runs(Joining { port, joiner, words, connected: false }));
        }
        Ok(Sink::Plain(Reading(port)))
    }
}

fn main() -> Result<()> {
    bench_harness::main::<Udp>()
}
