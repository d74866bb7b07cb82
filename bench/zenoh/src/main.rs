//! Eclipse Zenoh between two peers over TCP: one listens at its own address, the other connects. Scouting by multicast and
//! gossip are off, everything else is as shipped.
//!
//! The echo publishes in its subscriber's callback, as Zenoh's own `z_pong` does; other ends receive by the default handler, a
//! channel. Publishers are reliable, which is the default, and wait where a full queue would drop.
#![forbid(unsafe_code)]

use std::net::TcpListener;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use bench_harness::{
    Absent, Args, Consumer, Description, Echoer, Mode, Pinger, Producer, Stop, System, Tally, Waiting, check, stamp,
};
use zenoh::Wait;
use zenoh::handlers::FifoChannelHandler;
use zenoh::pubsub::{Publisher, Subscriber};
use zenoh::qos::CongestionControl;
use zenoh::sample::Sample;
use zenoh::{Config, Session};

/// How long a call may block before the process looks whether it should end.
const LOOK: Duration = Duration::from_millis(50);
/// How long an end waits for the other one, or for an answer.
const MEETING: Duration = Duration::from_secs(20);
const QUESTIONS: &str = "bench/questions";
const ANSWERS: &str = "bench/answers";
const FLOW: &str = "bench/flow";

struct Zenoh;

/// Zenoh's errors know no `std::error::Error` that can be kept.
fn word(error: zenoh::Error) -> anyhow::Error {
    anyhow!("{error}")
}

/// Opens a session that listens, or connects, and does nothing else.
fn open(args: &Args, listens: bool) -> Result<Session> {
    if args.waiting != Waiting::Sleep || !args.variant.is_empty() {
        bail!("Zenoh only sleeps and has no variants");
    }
    let file = args.dir.join("zenoh");
    let (listen, connect) = if listens {
        // A free port: the listener is gone before Zenoh takes it, and nobody else is at the address.
        let port = TcpListener::bind((args.own, 0)).context("a port")?.local_addr()?.port();
        std::fs::write(&file, port.to_string()).context("leaving the port for the other end")?;
        (format!("[\"tcp/{}:{port}\"]", args.own), "[]".to_owned())
    } else {
        let port = std::fs::read_to_string(&file).context("the other end left no port")?;
        ("[]".to_owned(), format!("[\"tcp/{}:{port}\"]", args.peer))
    };
    let mut config = Config::default();
    for (key, value) in [
        ("mode", "\"peer\""),
        ("listen/endpoints", &listen),
        ("connect/endpoints", &connect),
        ("scouting/multicast/enabled", "false"),
        ("scouting/gossip/enabled", "false"),
    ] {
        config.insert_json5(key, value).map_err(word).with_context(|| format!("setting {key}"))?;
    }
    zenoh::open(config).wait().map_err(word).context("opening a session")
}

fn publisher(session: &Session, key: &'static str) -> Result<Publisher<'static>> {
    let publisher = session.declare_publisher(key).congestion_control(CongestionControl::Block);
    publisher.wait().map_err(word)
}

/// Waits until somebody subscribes to what this publisher publishes.
fn await_subscriber(publisher: &Publisher<'_>) -> Result<()> {
    let start = Instant::now();
    while !publisher.matching_status().wait().map_err(word)?.matching() {
        if start.elapsed() > MEETING {
            bail!("nobody subscribed to {} in {} s", publisher.key_expr(), MEETING.as_secs());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A message of its own, for Zenoh keeps what it is given.
fn message(payload: usize, n: u64) -> Vec<u8> {
    let mut bytes = vec![0; payload];
    stamp(&mut bytes, n);
    bytes
}

type Receiver = Subscriber<FifoChannelHandler<Sample>>;

fn subscriber(session: &Session, key: &'static str) -> Result<Receiver> {
    session.declare_subscriber(key).wait().map_err(word)
}

struct Asking {
    publisher: Publisher<'static>,
    answers: Receiver,
    payload: usize,
    _session: Session,
}

impl Pinger for Asking {
    fn exchange(&mut self, n: u64) -> Result<()> {
        self.publisher.put(message(self.payload, n)).wait().map_err(word)?;
        let answer = self.answers.recv_timeout(MEETING).map_err(word)?.context("no answer")?;
        if check(&answer.payload().to_bytes(), self.payload)? != n {
            bail!("an answer to another message than {n}");
        }
        Ok(())
    }
}

struct Answering {
    _subscriber: Subscriber<()>,
    _session: Session,
}

impl Echoer for Answering {
    fn serve(&mut self) -> Result<()> {
        std::thread::sleep(LOOK);
        Ok(())
    }
}

struct Sending {
    publisher: Publisher<'static>,
    payload: usize,
    _session: Session,
}

impl Producer for Sending {
    fn send(&mut self, n: u64, _stop: &Stop) -> Result<bool> {
        self.publisher.put(message(self.payload, n)).wait().map_err(word)?;
        Ok(true)
    }
}

struct Receiving {
    flow: Receiver,
    _session: Session,
}

impl Consumer for Receiving {
    fn receive(&mut self, tally: &mut Tally) -> Result<()> {
        if let Some(sample) = self.flow.recv_timeout(LOOK).map_err(word)? {
            tally.take(&sample.payload().to_bytes())?;
        }
        Ok(())
    }
}

impl System for Zenoh {
    const GRACE: Duration = Duration::from_millis(200);

    fn describe() -> Description {
        let mode = |experiment| Mode::new(experiment, Waiting::Sleep, "reliable").veth();
        Description {
            system: "zenoh".into(),
            language: "rust",
            version: "1.10.2".into(),
            modes: vec![mode("rtt"), mode("oneway")],
            absent: vec![
                Absent { experiment: "*", waiting: "spin", reason: "its threads sleep whatever the application does" },
                Absent { experiment: "*", waiting: "adaptive", reason: "it has no such setting" },
                Absent { experiment: "fanout", waiting: "*", reason: "measured between two hosts only" },
                Absent { experiment: "large", waiting: "*", reason: "measured between two hosts only" },
                Absent { experiment: "open", waiting: "*", reason: "measured between two hosts only" },
            ],
        }
    }

    fn pinger(args: &Args) -> Result<impl Pinger> {
        let session = open(args, false)?;
        let answers = subscriber(&session, ANSWERS)?;
        let publisher = publisher(&session, QUESTIONS)?;
        await_subscriber(&publisher)?;
        Ok(Asking { publisher, answers, payload: args.payload, _session: session })
    }

    fn echoer(args: &Args) -> Result<impl Echoer> {
        let session = open(args, true)?;
        let publisher = publisher(&session, ANSWERS)?;
        let payload = args.payload;
        let echo = move |question: Sample| {
            let answered = check(&question.payload().to_bytes(), payload)
                .and_then(|n| publisher.put(message(payload, n)).wait().map_err(word));
            if let Err(e) = answered {
                eprintln!("{e:#}");
                std::process::exit(1);
            }
        };
        let subscriber = session.declare_subscriber(QUESTIONS).callback(echo).wait().map_err(word)?;
        Ok(Answering { _subscriber: subscriber, _session: session })
    }

    fn producer(args: &Args) -> Result<impl Producer> {
        let session = open(args, false)?;
        let publisher = publisher(&session, FLOW)?;
        await_subscriber(&publisher)?;
        Ok(Sending { publisher, payload: args.payload, _session: session })
    }

    fn consumer(args: &Args) -> Result<impl Consumer> {
        let session = open(args, true)?;
        Ok(Receiving { flow: subscriber(&session, FLOW)?, _session: session })
    }
}

fn main() -> Result<()> {
    bench_harness::main::<Zenoh>()
}
