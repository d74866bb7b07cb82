//! A stream that is moved from AF_XDP to kernel UDP and back while messages flow: how long its sink waits for the next message.
//!
//! The source sends at a steady pace, and asks its host's runtime for a move every [`SPAN`], as `insane rebind` does. Before, it
//! leaves some spans without a move, to compare with. The sink notes the longest pause in each millisecond, and what the machine's
//! own stalls were. Both tell when, by the clock that all processes of the machine have; the suite puts it together.

use crate::pace::Pace;
use crate::{BATCH, Host, LOOK, MEETING, bypass, socket};
use anyhow::{Context, Result, anyhow, bail};
use bench_harness::hiccup::Hiccups;
use bench_harness::sys::{now_ns, sleep_until};
use bench_harness::{Args, Control, Tally, stamp};
use insane::{Code, RawMessage, Source, SourceOptions};
use insane_runtime::config::Kind;
use insane_shm::socket::{Received, receive, send};
use insane_wire::control::{Rebind, ToClient, ToRuntime, to_client, to_runtime};
use insane_wire::{MAX_CONTROL_BYTES, decode, encode};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// From one move to the next, in nanoseconds: twice the pause that the slowest hundredth may take.
const SPAN_NS: u64 = 40_000_000;
/// Messages flow for so long before anything is noted, in nanoseconds.
const RUN_UP_NS: u64 = 200_000_000;
/// Spans without a move.
const STILL: u64 = 12;
/// The number of the message that ends it. It is sent several times: best-effort ones may be lost.
const END: u64 = u64::MAX;
const ENDS: usize = 20;
/// Pauses are noted per so many nanoseconds.
const BUCKET_NS: u64 = 1_000_000;

/// What the source tells.
#[derive(Debug, Default, Serialize)]
struct Asked {
    /// When a span without a move began.
    still: Vec<u64>,
    /// When a move was asked for, and how many flows it moved.
    moves: Vec<(u64, u32)>,
    /// When the last span ended.
    end: u64,
    sent: u64,
    cpu_ns: u64,
}

/// What the sink tells.
#[derive(Debug, Serialize)]
struct Seen {
    /// The longest pause that ended in a millisecond: from the arrival before it to the one after.
    gaps: Vec<(u64, u64)>,
    /// The machine's stalls; nothing where they cannot be seen.
    stalls: Option<Vec<(u64, u64)>>,
    received: u64,
    lost: u64,
}

/// A connection over which an operator asks.
struct Operator(OwnedFd);

impl Operator {
    fn connect(path: &Path) -> Result<Self> {
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&fd, &SocketAddrUnix::new(path)?).context("the runtime's socket")?;
        Ok(Self(fd))
    }

    /// Asks that all streams go by a datapath; how many flows move.
    fn rebind(&self, to: Kind) -> Result<u32> {
        let wanted = Rebind { datapath: to.name().into(), ..Rebind::default() };
        let request = ToRuntime { request: 1, body: Some(to_runtime::Body::Rebind(wanted)) };
        send(self.0.as_fd(), &encode(&request), &[]).map_err(|e| anyhow!("asking for a move: {e}"))?;
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None)?;
        let answer = match receive(self.0.as_fd(), MAX_CONTROL_BYTES) {
            Ok(Received::Message(bytes, _)) => decode::<ToClient>(&bytes).ok().and_then(|answer| answer.body),
            _ => None,
        };
        match answer {
            Some(to_client::Body::Rebound(rebound)) => Ok(rebound.moving),
            Some(to_client::Body::Refused(refused)) => bail!("a move was refused: {}", refused.text),
            _ => bail!("the runtime did not answer"),
        }
    }
}

/// Sends at the pace until it is over; how many.
fn pace(source: &Source, payload: usize, over: &AtomicBool) -> Result<u64> {
    let (mut message, mut pace, mut n) = (vec![0; payload], Pace::new(), 0);
    while !over.load(Ordering::Relaxed) {
        pace.wait();
        stamp(&mut message, n);
        source.send(&message)?;
        n += 1;
    }
    stamp(&mut message, END);
    for _ in 0..ENDS {
        source.send(&message)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(n)
}

/// How often a flow has moved, by the runtime's own count.
fn moved(host: &Host) -> Result<u64> {
    let status: serde_json::Value = serde_json::from_str(&host.session.report("status")?)?;
    status["network"]["hosts"][0]["moves"].as_u64().context("the runtime's status counts no moves")
}

/// Leaves the stream alone for some spans, then has it moved in each.
fn ask(host: &Host, operator: &Operator, spans: u64) -> Result<Asked> {
    let mut asked = Asked::default();
    let start = now_ns() + RUN_UP_NS;
    let before = moved(host)?;
    for span in 0..STILL + spans {
        sleep_until(start + span * SPAN_NS);
        let now = now_ns();
        if span < STILL {
            asked.still.push(now);
            continue;
        }
        let to = if (span - STILL).is_multiple_of(2) { Kind::Udp } else { Kind::Xdp };
        asked.moves.push((now, operator.rebind(to)?));
    }
    sleep_until(start + (STILL + spans) * SPAN_NS);
    asked.end = now_ns();
    let wanted = if spans.is_multiple_of(2) { Kind::Xdp } else { Kind::Udp };
    bypass::await_path(&host.stream()?, wanted)?;
    let told = asked.moves.iter().map(|(_, flows)| u64::from(*flows)).sum::<u64>();
    let (mut counted, asked_at) = (moved(host)? - before, now_ns());
    // What the runtime reports is some milliseconds old.
    while counted < told {
        if now_ns() - asked_at > MEETING.as_nanos() as u64 / 4 {
            bail!("{told} moves were begun and {counted} were made");
        }
        std::thread::sleep(Duration::from_millis(5));
        counted = moved(host)? - before;
    }
    Ok(asked)
}

/// The sending end.
pub(crate) fn source(args: &Args, control: &Control) -> Result<()> {
    let host = Host::new(args)?;
    // A reliable one waits for a machine that is slow, rather than giving the sink up.
    let options =
        SourceOptions { wait: host.wait, message_bytes: args.payload, deadline: MEETING, ..SourceOptions::default() };
    let source = host.stream()?.source_with("flow", options).context("opening a source on flow")?;
    host.await_sinks(&source, 1)?;
    let operator = Operator::connect(&socket(args))?;
    control.ready()?;
    let cpu = control.await_go()?;
    let spans = ((args.seconds * 1e9) as u64 / SPAN_NS).max(2);
    let (over, cpu_start) = (AtomicBool::new(false), cpu.total_ns()?);
    let (asked, sent) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| pace(&source, args.payload, &over));
        let asked = ask(&host, &operator, spans);
        over.store(true, Ordering::Relaxed);
        (asked, sender.join())
    });
    let sent = sent.map_err(|_| anyhow!("the sending thread panicked"))??;
    control.result(&Asked { sent, cpu_ns: cpu.total_ns()? - cpu_start, ..asked? })?;
    control.await_stop();
    Ok(())
}

/// Notes pauses.
#[derive(Debug, Default)]
struct Gaps {
    last: u64,
    longest: Vec<(u64, u64)>,
}

impl Gaps {
    /// Something came now.
    fn came(&mut self, now: u64) {
        let last = std::mem::replace(&mut self.last, now);
        if last == 0 {
            return;
        }
        match self.longest.last_mut() {
            Some((from, to)) if *to / BUCKET_NS == now / BUCKET_NS => {
                if now - last > *to - *from {
                    (*from, *to) = (last, now);
                }
            }
            _ => self.longest.push((last, now)),
        }
    }
}

/// The receiving end.
pub(crate) fn sink(args: &Args, control: &Control) -> Result<()> {
    let host = Host::new(args)?;
    let sink = host.sink("flow")?;
    let (mut gaps, mut tally, mut over) = (Gaps::default(), Tally::new(args.payload), false);
    let hiccups = Hiccups::watch(&args.watch).map_err(|e| eprintln!("the machine's stalls are not seen: {e:#}")).ok();
    control.ready()?;
    control.await_go()?;
    let (stop, mut copy, mut taken) = (control.stop(), Vec::new(), Ok(()));
    let mut heard = now_ns();
    while !over && !stop.requested() {
        let each = |message: &RawMessage| {
            let one = crate::read(message, &mut copy, |bytes| match bytes.get(..8) {
                Some(number) if number == END.to_le_bytes() => {
                    over = true;
                    Ok(())
                }
                _ if over => Ok(()),
                _ => tally.take(bytes),
            });
            if taken.is_ok() {
                taken = one;
            }
        };
        match sink.consume_each(BATCH as usize, Some(LOOK), each) {
            Ok(_) => {
                heard = now_ns();
                if !over {
                    gaps.came(heard);
                }
            }
            Err(e) if e.code() != Code::Timeout => return Err(e.into()),
            Err(_) if tally.received > 0 && now_ns() - heard > MEETING.as_nanos() as u64 => {
                bail!("nothing comes any more")
            }
            Err(_) => {}
        }
        std::mem::replace(&mut taken, Ok(()))?;
    }
    let stalls = hiccups.map(|hiccups| hiccups.stalls());
    control.result(&Seen { gaps: gaps.longest, stalls, received: tally.received, lost: tally.lost })?;
    control.await_stop();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_of_each_millisecond_is_noted() {
        let mut gaps = Gaps::default();
        for at in [1_000_000, 1_100_000, 1_400_000, 1_450_000, 9_000_000, 9_100_000] {
            gaps.came(at);
        }
        assert_eq!(gaps.longest, [(1_100_000, 1_400_000), (1_450_000, 9_000_000)]);
    }
}
