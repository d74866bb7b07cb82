//! The demo's dApp: emits E2 indications at a steady rate and measures how long each takes to be answered by the control
//! request of each xApp; over INSANE, a Unix datagram socket, UDP, or ZeroMQ. Prints one line of JSON a second, and a last one.
#![forbid(unsafe_code)]

mod e2;
mod path;
#[cfg(feature = "zeromq")]
mod zeromq;

use clap::Parser;
use path::Path;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What `--path` takes besides, in this build.
const ALSO: &str = if cfg!(feature = "zeromq") { ", zeromq" } else { "" };
/// How long the first answers may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long late answers are waited for in the end.
const AFTERWARDS: Duration = Duration::from_millis(500);

/// Emits E2 indications and waits for the control requests that answer each.
#[derive(Debug, Parser)]
struct Arguments {
    /// insane, unix, udp, or (if built so) zeromq.
    #[arg(long, default_value = "insane")]
    path: String,
    /// How long, in seconds.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Indications a second.
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    /// For insane: sinks to wait for.
    #[arg(long, default_value_t = 1)]
    sinks: usize,
    /// xApps that answer, as instances 0, 1, ...
    #[arg(long, default_value_t = 1)]
    xapps: usize,
    /// For unix: the directory of the sockets.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// For udp: the address of this host.
    #[arg(long, default_value = "127.0.0.1")]
    address: IpAddr,
    /// For udp and zeromq: where indications go, ADDRESS:PORT, once for each xApp.
    #[arg(long)]
    peer: Vec<String>,
    /// For zeromq: where answers come from, once for each xApp.
    #[arg(long)]
    back: Vec<String>,
}

type Failure = Box<dyn std::error::Error>;

/// What is known of one xApp's answers.
#[derive(Debug, Default)]
struct Xapp {
    /// Which indications it has answered, by number.
    answered: Vec<bool>,
    /// Number and microseconds of each answer.
    answers: Vec<(usize, f64)>,
    /// Answers to what was answered already.
    twice: u64,
}

/// The loop's state: indications are numbered from 0, and carry the lower half of the number.
struct Loop {
    path: Path,
    e2: e2::E2,
    sent: Vec<Instant>,
    xapps: Vec<Xapp>,
    wrong: u64,
}

impl Loop {
    fn emit(&mut self) -> Result<(), Failure> {
        let number = self.sent.len();
        self.sent.push(Instant::now());
        self.xapps.iter_mut().for_each(|x| x.answered.push(false));
        self.path.emit(self.e2.indication(number as u16))
    }

    /// Takes answers until `due`, or `until_answered`: until all xApps have answered the last indication.
    fn take(&mut self, due: Instant, until_answered: bool) -> Result<(), Failure> {
        while !(until_answered && self.is_answered()) {
            let left = due.saturating_duration_since(Instant::now());
            let Some((at, pdu)) = self.path.answer(left)? else { break };
            self.count(at, &pdu);
        }
        Ok(())
    }

    /// Counts what came at a time.
    fn count(&mut self, at: Instant, pdu: &[u8]) {
        let last = self.sent.len().wrapping_sub(1);
        let answer = self.e2.control(pdu).and_then(|control| {
            // Its number is the last one with this lower half.
            let number = last.checked_sub(usize::from((last as u16).wrapping_sub(control.sn)))?;
            let xapp = self.xapps.get_mut(usize::from(control.instance))?;
            Some((number, self.sent.get(number)?, xapp))
        });
        match answer {
            None => self.wrong += 1,
            Some((number, _, xapp)) if xapp.answered[number] => xapp.twice += 1,
            Some((number, sent, xapp)) => {
                xapp.answered[number] = true;
                xapp.answers.push((number, (at - *sent).as_nanos() as f64 / 1e3));
            }
        }
    }

    /// Whether all xApps have answered the last indication.
    fn is_answered(&self) -> bool {
        self.xapps.iter().all(|x| x.answered.last().is_none_or(|a| *a))
    }

    /// Emits now and then until every xApp has answered: the loop runs. What is emitted so counts as warm-up.
    fn warm_up(&mut self) -> Result<(), Failure> {
        let start = Instant::now();
        while self.sent.is_empty() || !self.is_answered() {
            if start.elapsed() > PATIENCE {
                let silent: Vec<_> = (0..self.xapps.len()).filter(|x| self.xapps[*x].answers.is_empty()).collect();
                return Err(format!("no answers of the xApps {silent:?} within {} s", PATIENCE.as_secs()).into());
            }
            self.emit()?;
            self.take(Instant::now() + Duration::from_millis(20), true)?;
        }
        Ok(())
    }

    fn answered(&self, first: usize) -> Vec<usize> {
        self.xapps.iter().map(|x| x.answered[first..].iter().filter(|a| **a).count()).collect()
    }
}

/// Seconds of the clock that the demo reads too.
fn monotonic_s() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn main() -> Result<(), Failure> {
    let a = Arguments::parse();
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, stop.clone())?;
    let xapps = (0..a.xapps).map(|_| Xapp::default()).collect();
    let mut l = Loop { path: Path::open(&a)?, e2: e2::E2::new(), sent: Vec::new(), xapps, wrong: 0 };
    l.warm_up()?;
    let first = l.sent.len();
    let tick = Duration::from_secs_f64(1.0 / a.rate);
    let (start_s, start) = (monotonic_s(), Instant::now());
    println!("{}", json!({"start_s": start_s, "pid": std::process::id(), "warm_up": first}));
    let mut shown = start;
    while start.elapsed().as_secs_f64() < a.seconds && !stop.load(Ordering::Relaxed) {
        let due = start + tick.mul_f64((l.sent.len() - first) as f64);
        l.take(due, true)?;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if shown.elapsed() >= Duration::from_secs(1) {
            shown = Instant::now();
            let answered = l.answered(first);
            println!(
                "{}",
                json!({"at_s": start.elapsed().as_secs_f64(), "emitted": l.sent.len() - first, "answered": answered})
            );
        }
        l.emit()?;
    }
    // What is on its way is taken before it is counted.
    l.take(Instant::now() + AFTERWARDS, false)?;
    let since = |at: &Instant| (*at - start).as_nanos() as f64 / 1e3;
    let xapps: Vec<Value> = l
        .xapps
        .iter()
        .map(|x| {
            let answers = || x.answers.iter().filter(|(n, _)| *n >= first);
            json!({
                "answered": answers().count(), "unanswered": l.sent.len() - first - answers().count(), "twice": x.twice,
                "numbers": answers().map(|(n, _)| n - first).collect::<Vec<_>>(),
                "times_us": answers().map(|(_, t)| t).collect::<Vec<_>>(),
            })
        })
        .collect();
    let last = json!({
        "path": a.path, "pid": std::process::id(), "start_s": start_s, "warm_up": first, "emitted": l.sent.len() - first,
        "sent_us": l.sent[first..].iter().map(since).collect::<Vec<_>>(), "xapps": xapps, "wrong_answers": l.wrong,
        "accounting": l.path.accounting(),
    });
    println!("{last}");
    Ok(())
}
