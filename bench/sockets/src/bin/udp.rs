//! UDP over loopback, one datagram per message.
#![forbid(unsafe_code)]

use std::net::{Ipv4Addr, UdpSocket};

use anyhow::{Context, Result, bail};
use bench_harness::{
    Absent, Args, Consumer, Description, Echoer, Mode, Pinger, Producer, Stop, System, Tally, Waiting, check, stamp,
};
use bench_sockets::meet::{learn_port, tell_port};
use bench_sockets::wait::{prepare, until_ready};
use rustix::event::PollFlags;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

/// Asked of the kernel for each socket's buffers; what it grants depends on the machine's limit and our rights.
const SOCKET_BUFFER: usize = 8 << 20;
/// The largest payload that one datagram over IPv4 carries.
const LARGEST: usize = 65_507;

struct Udp;

struct Port {
    socket: UdpSocket,
    waiting: Waiting,
    buffer: Vec<u8>,
}

impl Port {
    fn new(args: &Args) -> Result<Self> {
        if args.payload > LARGEST {
            bail!("a datagram carries at most {LARGEST} bytes");
        }
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("binding a loopback port")?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER)?;
        }
        prepare(&socket, args.waiting)?;
        Ok(Self { socket, waiting: args.waiting, buffer: vec![0; args.payload] })
    }

    fn listening(args: &Args, index: u32) -> Result<Self> {
        let port = Self::new(args)?;
        tell_port(&args.dir, index, port.socket.local_addr()?.port())?;
        Ok(port)
    }

    fn connected(args: &Args, index: u32) -> Result<Self> {
        let port = Self::new(args)?;
        port.socket.connect((Ipv4Addr::LOCALHOST, learn_port(&args.dir, index)?))?;
        Ok(port)
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
            // The first datagram tells who asks; from then on both ends use connected sockets.
            prepare(&self.port.socket, Waiting::Sleep)?;
            let mut first = [0; 1];
            let from = self.port.socket.peek_from(&mut first)?.1;
            self.port.socket.connect(from)?;
            prepare(&self.port.socket, self.port.waiting)?;
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

impl System for Udp {
    fn describe() -> Description {
        let waits = [Waiting::Spin, Waiting::Adaptive, Waiting::Sleep];
        let experiments = ["rtt", "oneway", "fanout"];
        Description {
            system: "udp".into(),
            language: "rust",
            version: "kernel".into(),
            modes: experiments.iter().flat_map(|e| waits.map(|w| Mode::new(e, w, "datagram"))).collect(),
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
        let ports = (0..args.sinks).map(|i| Port::connected(args, i)).collect::<Result<_>>()?;
        Ok(Fan { ports, message: vec![0; args.payload] })
    }

    fn consumer(args: &Args) -> Result<impl Consumer> {
        Ok(Reading(Port::listening(args, args.index)?))
    }
}

fn main() -> Result<()> {
    bench_harness::main::<Udp>()
}
