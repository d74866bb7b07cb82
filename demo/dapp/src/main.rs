//! The demo's dApp: emits E2 indications at a steady rate and measures how long each takes to be answered by a control
//! request; over INSANE, a Unix datagram socket or UDP on loopback. Prints one line of JSON a second, and a last one.
#![forbid(unsafe_code)]

use clap::Parser;
use insane::{CellState, Code, Count, Qos, Session, Sink, Source};
use serde_json::json;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// RICindication of RAN function 146, SN 7, encoded by an independent implementation of E2AP (pycrate).
const INDICATION: &str = "00054080b6000007001d00050003fd0000000500020092000f000100001b00020007001c0001000019000504000000\
    00001a0080868084000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f3031\
    32333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b\
    6c6d6e6f707172737475767778797a7b7c7d7e7f80818283";

/// RICcontrolRequest of the same RAN function.
const CONTROL: &str = "00040039000005001d00050003fd0000000500020092001600050400000000001700151402000000000000000100000005\
    000000640000000015000140";

/// Emits E2 indications and waits for the control request that answers each.
#[derive(Debug, Parser)]
struct Arguments {
    /// insane, unix or udp.
    #[arg(long, default_value = "insane")]
    path: String,
    /// How long, in seconds.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Indications a second.
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    /// Sinks to wait for.
    #[arg(long, default_value_t = 1)]
    sinks: usize,
    /// For unix: the directory of the sockets.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// For udp: the port of the xApp on 127.0.0.1.
    #[arg(long, default_value_t = 0)]
    port: u16,
}

type Failure = Box<dyn std::error::Error>;

/// One of the ways to an xApp and back.
enum Path {
    Insane(Box<(Session, Source, Sink)>),
    Unix(UnixDatagram, PathBuf),
    Udp(UdpSocket, u16),
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let value = |d: u8| (d as char).to_digit(16).unwrap_or(0) as u8;
    digits.chunks_exact(2).map(|d| value(d[0]) << 4 | value(d[1])).collect()
}

impl Path {
    fn open(a: &Arguments) -> Result<Self, Failure> {
        match a.path.as_str() {
            "insane" => {
                let session = Session::open("dApp")?;
                let stream = session.stream_named("e2", Qos::default())?;
                let sink = stream.sink("control")?;
                let source = stream.source("indication")?;
                if source.wait_for_sinks(a.sinks, Duration::from_secs(20)) < a.sinks {
                    return Err(format!("fewer than {} xApps within 20 s", a.sinks).into());
                }
                Ok(Self::Insane(Box::new((session, source, sink))))
            }
            "unix" => Ok(Self::Unix(UnixDatagram::bind(a.dir.join("dapp.sock"))?, a.dir.join("xapp.sock"))),
            "udp" => Ok(Self::Udp(UdpSocket::bind("127.0.0.1:0")?, a.port)),
            other => Err(format!("--path {other}: it takes insane, unix or udp").into()),
        }
    }

    fn emit(&self, payload: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Insane(i) => drop(i.1.send(payload)?),
            // Nobody there is no failure: the xApp may be killed on purpose.
            Self::Unix(socket, to) => drop(socket.send_to(payload, to)),
            Self::Udp(socket, port) => drop(socket.send_to(payload, ("127.0.0.1", *port))),
        }
        Ok(())
    }

    /// Waits for an answer, at most `left`; `None` when none came.
    fn answer(&self, left: Duration) -> Result<Option<Vec<u8>>, Failure> {
        let mut buffer = [0u8; 2048];
        let left = left.max(Duration::from_micros(1));
        let n = match self {
            Self::Insane(i) => {
                return match i.2.consume_timeout(left) {
                    Ok(message) => Ok(Some(message.to_vec())),
                    Err(e) if e.code() == Code::Timeout => Ok(None),
                    Err(e) => Err(e.into()),
                };
            }
            Self::Unix(socket, _) => {
                socket.set_read_timeout(Some(left))?;
                socket.recv(&mut buffer)
            }
            Self::Udp(socket, _) => {
                socket.set_read_timeout(Some(left))?;
                socket.recv(&mut buffer)
            }
        };
        Ok(n.ok().map(|n| buffer[..n].to_vec()))
    }
}

fn accounting(path: &Path) -> serde_json::Value {
    let Path::Insane(i) = path else { return json!([]) };
    let cells = i.0.counts();
    let flows = cells.iter().filter(|c| c.state == CellState::Producing);
    flows
        .map(|c| {
            let count = |k| c.get(k);
            json!({
                "sink": format!("{:032x}", c.sink), "ended": c.ended, "intended": count(Count::Intended),
                "sink_full": count(Count::SinkFull), "dropped": count(Count::Dropped), "expired": count(Count::Expired),
                "unconfirmed": count(Count::Unconfirmed),
            })
        })
        .collect()
}

fn main() -> Result<(), Failure> {
    let a = Arguments::parse();
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, stop.clone())?;
    let path = Path::open(&a)?;
    let (indication, control) = (bytes(INDICATION), bytes(CONTROL));
    let tick = Duration::from_secs_f64(1.0 / a.rate);
    let (start, mut shown) = (Instant::now(), Instant::now());
    let (mut times, mut emitted, mut unanswered, mut wrong) = (Vec::new(), 0u64, 0u64, 0u64);
    while start.elapsed().as_secs_f64() < a.seconds && !stop.load(Ordering::Relaxed) {
        let due = tick.mul_f64(emitted as f64);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
        // An answer that missed its tick is no answer to the next indication.
        while path.answer(Duration::ZERO)?.is_some() {}
        let at = Instant::now();
        path.emit(&indication)?;
        emitted += 1;
        match path.answer(tick)? {
            Some(answer) => {
                times.push(at.elapsed().as_nanos() as f64 / 1e3);
                wrong += u64::from(answer != control);
            }
            None => unanswered += 1,
        }
        if shown.elapsed() >= Duration::from_secs(1) {
            shown = Instant::now();
            println!("{}", json!({"emitted": emitted, "answered": times.len(), "unanswered": unanswered}));
        }
    }
    // What is on its way is taken before it is counted.
    std::thread::sleep(Duration::from_millis(50));
    let last = json!({
        "path": a.path, "emitted": emitted, "answered": times.len(), "unanswered": unanswered, "wrong_answers": wrong,
        "accounting": accounting(&path), "times_us": times,
    });
    println!("{last}");
    Ok(())
}
