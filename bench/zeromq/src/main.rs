//! ZeroMQ over its ipc transport; between two hosts over TCP.
//!
//! Round trips use PAIR sockets, one-way PUSH and PULL, fan-out XPUB and SUB with XPUB_NODROP, so that nothing is
//! lost. All threads of a process share its core, as in every other system here.

use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use bench_harness::{
    Absent, Args, Consumer, Description, Echoer, Mode, Pinger, Producer, Role, Stop, System, Tally, Waiting, check,
    stamp,
};
use zmq::{Context, Error, Message, Socket, SocketType};

/// How long a call may block before the process looks whether it should end.
const LOOK_MS: i32 = 50;
/// The deepest queues of the default configuration are 1000 messages; a deeper one gains nothing measurable here.
const HIGH_WATER_MARK: i32 = 1000;

struct ZeroMq;

fn address(args: &Args) -> String {
    format!("ipc://{}/zeromq", args.dir.display())
}

/// Binds the one end that the other connects to, and tells where, if that is not known beforehand.
fn bind(socket: &Socket, args: &Args) -> Result<()> {
    if !args.two_hosts() {
        return socket.bind(&address(args)).context("binding");
    }
    socket.bind(&format!("tcp://{}:*", args.own)).context("binding")?;
    let bound = socket.get_last_endpoint()?.map_err(|_| anyhow!("the address that was bound is no text"))?;
    std::fs::write(args.dir.join("zeromq"), bound).context("leaving the address for the other end")
}

/// Connects to the end that is bound.
fn connect(socket: &Socket, args: &Args) -> Result<()> {
    let to = if args.two_hosts() {
        std::fs::read_to_string(args.dir.join("zeromq")).context("the other end left no address")?
    } else {
        address(args)
    };
    socket.connect(&to).with_context(|| format!("connecting to {to}"))
}

/// One context for the whole process: it has to outlive every socket, whoever holds it.
static CONTEXT: LazyLock<Context> = LazyLock::new(Context::new);

fn socket(args: &Args, kind: SocketType) -> Result<Socket> {
    if args.waiting != Waiting::Sleep {
        bail!("ZeroMQ only sleeps");
    }
    let socket = CONTEXT.socket(kind)?;
    socket.set_linger(0)?;
    socket.set_sndhwm(HIGH_WATER_MARK)?;
    socket.set_rcvhwm(HIGH_WATER_MARK)?;
    socket.set_sndtimeo(LOOK_MS)?;
    socket.set_rcvtimeo(LOOK_MS)?;
    Ok(socket)
}

/// Both ends of `rtt` and `large`.
struct Pair {
    socket: Socket,
    message: Vec<u8>,
    /// What the other end sends: as much as it got, except for large messages.
    answer: Vec<u8>,
}

impl Pair {
    fn new(args: &Args) -> Result<Self> {
        let large = matches!(args.role, Role::LargeSource | Role::LargeSink);
        let answer = vec![0; if large { 8 } else { args.payload }];
        Ok(Self { socket: socket(args, zmq::PAIR)?, message: vec![0; args.payload], answer })
    }
}

fn received(socket: &Socket) -> Result<Option<Message>> {
    match socket.recv_msg(0) {
        Ok(message) => Ok(Some(message)),
        Err(Error::EAGAIN | Error::EINTR) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

struct Asking(Pair);

impl Pinger for Asking {
    fn exchange(&mut self, n: u64) -> Result<()> {
        let Pair { socket, message, answer } = &mut self.0;
        stamp(message, n);
        while let Err(e) = socket.send(&message[..], 0) {
            if e != Error::EAGAIN && e != Error::EINTR {
                return Err(e.into());
            }
        }
        for _ in 0..30_000 / LOOK_MS {
            if let Some(back) = received(socket)? {
                if check(&back, answer.len())? != n {
                    bail!("an answer to another message than {n}");
                }
                return Ok(());
            }
        }
        bail!("no answer to message {n} in 30 s")
    }
}

struct Answering(Pair);

impl Echoer for Answering {
    fn serve(&mut self) -> Result<()> {
        let Pair { socket, message, answer } = &mut self.0;
        if let Some(came) = received(socket)? {
            let n = check(&came, message.len())?;
            stamp(answer, n);
            socket.send(&answer[..], 0)?;
        }
        Ok(())
    }
}

struct Sending {
    socket: Socket,
    message: Vec<u8>,
}

impl Producer for Sending {
    fn send(&mut self, n: u64, stop: &Stop) -> Result<bool> {
        stamp(&mut self.message, n);
        loop {
            match self.socket.send(&self.message[..], 0) {
                Ok(()) => return Ok(true),
                Err(Error::EAGAIN | Error::EINTR) if !stop.requested() => {}
                Err(Error::EAGAIN | Error::EINTR) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

struct Reading(Socket);

impl Consumer for Reading {
    fn receive(&mut self, tally: &mut Tally) -> Result<()> {
        match received(&self.0)? {
            Some(message) => tally.take(&message),
            None => Ok(()),
        }
    }
}

/// Sets XPUB_NODROP, which the Rust binding does not offer: sending waits for the slowest sink.
fn without_drops(socket: Socket) -> Result<Socket> {
    let on: i32 = 1;
    let raw = socket.into_raw();
    // SAFETY: `raw` is a live socket that nothing else owns; the option's value is an int that outlives the call.
    let rc = unsafe {
        zmq_sys::zmq_setsockopt(raw, zmq_sys::ZMQ_XPUB_NODROP as i32, (&raw const on).cast(), size_of::<i32>())
    };
    // SAFETY: `raw` comes from `into_raw` just above and is given back once. The context lives on in the caller.
    let socket = unsafe { Socket::from_raw(raw) };
    if rc != 0 {
        bail!("libzmq refuses XPUB_NODROP");
    }
    Ok(socket)
}

/// Fan-out: the sinks started first and connect to an address that the source has not bound yet; ZeroMQ goes on
/// trying. The source waits for one subscription from each.
fn publisher(args: &Args) -> Result<Socket> {
    let socket = socket(args, zmq::XPUB)?;
    socket.set_xpub_verbose(true)?;
    let socket = without_drops(socket)?;
    socket.bind(&address(args))?;
    for _ in 0..args.sinks {
        let mut tries = 0;
        while received(&socket)?.is_none() {
            tries += 1;
            if tries * LOOK_MS > 20_000 {
                bail!("not all of {} sinks have subscribed in 20 s", args.sinks);
            }
        }
    }
    Ok(socket)
}

impl System for ZeroMq {
    const GRACE: Duration = Duration::from_millis(200);

    fn describe() -> Description {
        let (major, minor, patch) = zmq::version();
        let local = ["rtt", "oneway", "fanout", "large"].map(|e| Mode::new(e, Waiting::Sleep, "reliable"));
        let veth = ["rtt", "oneway"].map(|e| Mode::new(e, Waiting::Sleep, "reliable").veth());
        Description {
            system: "zeromq".into(),
            language: "rust",
            version: format!("libzmq {major}.{minor}.{patch}"),
            modes: local.into_iter().chain(veth).collect(),
            absent: vec![
                Absent {
                    experiment: "*",
                    waiting: "spin",
                    reason: "its I/O threads sleep whatever the application does",
                },
                Absent { experiment: "*", waiting: "adaptive", reason: "libzmq has no such setting" },
                Absent { experiment: "open", waiting: "*", reason: "it has no sessions or channels" },
            ],
        }
    }

    fn pinger(args: &Args) -> Result<impl Pinger> {
        let pair = Pair::new(args)?;
        connect(&pair.socket, args)?;
        Ok(Asking(pair))
    }

    fn echoer(args: &Args) -> Result<impl Echoer> {
        let pair = Pair::new(args)?;
        bind(&pair.socket, args)?;
        Ok(Answering(pair))
    }

    fn producer(args: &Args) -> Result<impl Producer> {
        let socket = if args.role == Role::FanoutSource {
            publisher(args)?
        } else {
            let socket = socket(args, zmq::PUSH)?;
            connect(&socket, args)?;
            socket
        };
        Ok(Sending { socket, message: vec![0; args.payload] })
    }

    fn consumer(args: &Args) -> Result<impl Consumer> {
        if args.role == Role::FanoutSink {
            let socket = socket(args, zmq::SUB)?;
            socket.set_reconnect_ivl(5)?;
            socket.set_subscribe(b"")?;
            socket.connect(&address(args))?;
            return Ok(Reading(socket));
        }
        let socket = socket(args, zmq::PULL)?;
        bind(&socket, args)?;
        Ok(Reading(socket))
    }
}

fn main() -> Result<()> {
    bench_harness::main::<ZeroMq>()
}
