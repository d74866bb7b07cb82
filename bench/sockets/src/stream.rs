//! Messages of a fixed size over a byte stream. One `send` per message, as many messages per `read` as there are.

use std::os::fd::OwnedFd;

use anyhow::{Result, bail};
use bench_harness::{
    Absent, Args, Consumer, Description, Echoer, Mode, Pinger, Producer, Role, Stop, System, Tally, Waiting, check,
    stamp,
};
use rustix::event::PollFlags;
use rustix::net::{SendFlags, send};

use crate::wait::{prepare, until_ready};

/// A kind of stream socket: how its ends meet.
pub trait Kind {
    /// The system's name in rows.
    const NAME: &'static str;
    /// Whether its ends may be on two hosts.
    const TWO_HOSTS: bool = false;
    /// What waits for connections.
    type Listener;

    /// Makes end `index` reachable; done before it says `ready`.
    ///
    /// # Errors
    /// What the socket calls report.
    fn listen(args: &Args, index: u32) -> Result<Self::Listener>;

    /// The one connection that comes.
    ///
    /// # Errors
    /// What the socket calls report.
    fn accept(listener: &Self::Listener) -> Result<OwnedFd>;

    /// Connects to end `index`, which is ready.
    ///
    /// # Errors
    /// What the socket calls report.
    fn connect(args: &Args, index: u32) -> Result<OwnedFd>;
}

/// One connection and its waiting class.
#[derive(Debug)]
struct Conn {
    socket: OwnedFd,
    waiting: Waiting,
}

impl Conn {
    fn new(socket: OwnedFd, waiting: Waiting) -> Result<Self> {
        prepare(&socket, waiting)?;
        Ok(Self { socket, waiting })
    }

    fn read_some(&self, into: &mut [u8]) -> Result<usize> {
        let call = || rustix::io::read(&self.socket, &mut *into);
        match until_ready(&self.socket, self.waiting, PollFlags::IN, None, call)? {
            None | Some(0) => bail!("the other end closed the connection"),
            Some(n) => Ok(n),
        }
    }

    fn read_all(&self, into: &mut [u8]) -> Result<()> {
        let mut from = 0;
        while from < into.len() {
            from += self.read_some(&mut into[from..])?;
        }
        Ok(())
    }

    fn write_all(&self, message: &[u8], stop: Option<&Stop>) -> Result<bool> {
        let mut from = 0;
        while from < message.len() {
            let call = || send(&self.socket, &message[from..], SendFlags::NOSIGNAL);
            match until_ready(&self.socket, self.waiting, PollFlags::OUT, stop, call)? {
                None => return Ok(false),
                Some(n) => from += n,
            }
        }
        Ok(true)
    }
}

/// A large message is answered by a short one; otherwise the answer is as long as the message.
fn answer_bytes(args: &Args) -> usize {
    if matches!(args.role, Role::LargeSource | Role::LargeSink) { 8 } else { args.payload }
}

struct Asking {
    conn: Conn,
    message: Vec<u8>,
    answer: Vec<u8>,
}

impl Pinger for Asking {
    fn exchange(&mut self, n: u64) -> Result<()> {
        stamp(&mut self.message, n);
        self.conn.write_all(&self.message, None)?;
        self.conn.read_all(&mut self.answer)?;
        if check(&self.answer, self.answer.len())? != n {
            bail!("an answer to another message than {n}");
        }
        Ok(())
    }
}

/// A listening end; its one connection comes after it has said `ready`.
struct Answering<K: Kind> {
    listener: K::Listener,
    conn: Option<Conn>,
    waiting: Waiting,
    message: Vec<u8>,
    answer: Vec<u8>,
}

fn connected<'a, K: Kind>(conn: &'a mut Option<Conn>, listener: &K::Listener, waiting: Waiting) -> Result<&'a Conn> {
    if conn.is_none() {
        *conn = Some(Conn::new(K::accept(listener)?, waiting)?);
    }
    Ok(conn.as_ref().expect("just connected"))
}

impl<K: Kind> Echoer for Answering<K> {
    fn serve(&mut self) -> Result<()> {
        let conn = connected::<K>(&mut self.conn, &self.listener, self.waiting)?;
        conn.read_all(&mut self.message)?;
        let n = check(&self.message, self.message.len())?;
        stamp(&mut self.answer, n);
        conn.write_all(&self.answer, None)?;
        Ok(())
    }
}

/// One connection to each sink.
struct Fan {
    conns: Vec<Conn>,
    message: Vec<u8>,
}

impl Producer for Fan {
    fn send(&mut self, n: u64, stop: &Stop) -> Result<bool> {
        stamp(&mut self.message, n);
        for conn in &self.conns {
            if !conn.write_all(&self.message, Some(stop))? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A sink that takes many messages per read.
struct Reading<K: Kind> {
    listener: K::Listener,
    conn: Option<Conn>,
    waiting: Waiting,
    payload: usize,
    buffer: Vec<u8>,
    filled: usize,
}

impl<K: Kind> Consumer for Reading<K> {
    fn receive(&mut self, tally: &mut Tally) -> Result<()> {
        let conn = connected::<K>(&mut self.conn, &self.listener, self.waiting)?;
        self.filled += conn.read_some(&mut self.buffer[self.filled..])?;
        let whole = self.filled / self.payload * self.payload;
        for message in self.buffer[..whole].chunks_exact(self.payload) {
            tally.take(message)?;
        }
        self.buffer.copy_within(whole..self.filled, 0);
        self.filled -= whole;
        Ok(())
    }
}

/// The system program over one kind of stream.
#[derive(Debug)]
pub struct Stream<K>(std::marker::PhantomData<K>);

impl<K: Kind> System for Stream<K> {
    fn describe() -> Description {
        let waits = [Waiting::Spin, Waiting::Adaptive, Waiting::Sleep];
        let mut modes = Vec::new();
        for experiment in ["rtt", "oneway", "fanout"] {
            modes.extend(waits.map(|waiting| Mode::new(experiment, waiting, "reliable")));
        }
        modes.push(Mode::new("large", Waiting::Sleep, "reliable"));
        if K::TWO_HOSTS {
            modes.extend(waits.map(|waiting| Mode::new("rtt", waiting, "reliable").veth()));
            modes.push(Mode::new("oneway", Waiting::Sleep, "reliable").veth());
        }
        Description {
            system: K::NAME.into(),
            language: "rust",
            version: "kernel".into(),
            modes,
            absent: vec![Absent { experiment: "open", waiting: "*", reason: "sockets have no sessions or channels" }],
        }
    }

    fn pinger(args: &Args) -> Result<impl Pinger> {
        let conn = Conn::new(K::connect(args, 0)?, args.waiting)?;
        Ok(Asking { conn, message: vec![0; args.payload], answer: vec![0; answer_bytes(args)] })
    }

    fn echoer(args: &Args) -> Result<impl Echoer> {
        Ok(Answering::<K> {
            listener: K::listen(args, 0)?,
            conn: None,
            waiting: args.waiting,
            message: vec![0; args.payload],
            answer: vec![0; answer_bytes(args)],
        })
    }

    fn producer(args: &Args) -> Result<impl Producer> {
        let conns = (0..args.sinks).map(|i| Conn::new(K::connect(args, i)?, args.waiting)).collect::<Result<_>>()?;
        Ok(Fan { conns, message: vec![0; args.payload] })
    }

    fn consumer(args: &Args) -> Result<impl Consumer> {
        Ok(Reading::<K> {
            listener: K::listen(args, args.index)?,
            conn: None,
            waiting: args.waiting,
            payload: args.payload,
            buffer: vec![0; (256 << 10).max(args.payload * 2)],
            filled: 0,
        })
    }
}
