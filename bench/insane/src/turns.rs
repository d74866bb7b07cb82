//! A round trip in turns: one thread is both applications and polls both runtimes, so that nothing comes from another core, nobody waits
//! and nobody is woken. What each of them takes of a message is known apart: what a client's calls take, what a runtime's turn takes in
//! which it sends, what one takes in which it receives. A turn is a whole look at everything: in one that sends nothing is received, and
//! the other way round, so of that part a turn in which there is nothing to do says how much it is.
//!
//! Kernel UDP goes over the loopback interface here, and beside it stands what two bare sockets take there. In the variant [`IDLE`] both
//! ends have many other channels, on which nothing goes on.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bench_harness::summary::at;
use bench_harness::sys::now_ns;
use bench_harness::{Args, Control, Stop, stamp};
use insane::{Sink, Source};
use insane_runtime::config::Config;
use insane_runtime::network::Poller;
use insane_runtime::server::Server;
use serde::Serialize;

use crate::{Host, MEETING, PORT, bypass};

/// Round trips at most.
const MOST: usize = 1 << 17;
/// The variant in which there are [`IDLE_CHANNELS`] in each direction as well.
pub(crate) const IDLE: &str = "idle-1000";
const IDLE_CHANNELS: usize = 1000;
/// Turns in which a message may not arrive.
const PATIENCE: u32 = 100_000;

/// The result line: medians, in nanoseconds.
#[derive(Debug, Serialize)]
struct Took {
    /// Round trips in the window.
    samples: u64,
    /// CPU time of all processes in the window.
    cpu_ns: u64,
    /// All of a round trip.
    round_ns: f64,
    /// The calls of both clients, of one direction.
    client_ns: f64,
    /// The turn in which a message is sent, and that in which it is received.
    sending_ns: f64,
    receiving_ns: f64,
    /// A turn in which there is nothing.
    idle_ns: f64,
    /// Two bare sockets' send and receive of a datagram as long.
    bare_send_ns: f64,
    bare_receive_ns: f64,
}

/// An end: what it sends and receives by.
struct End {
    source: Source,
    sink: Sink,
    /// Those of channels on which nothing goes on.
    _idle: Vec<(Source, Sink)>,
    _host: Host,
}

/// Times of one kind.
#[derive(Default)]
struct Times(Vec<u64>);

impl Times {
    fn add(&mut self, since: &mut u64) {
        let now = now_ns();
        self.0.push(now - *since);
        *since = now;
    }

    fn median(&mut self) -> Result<f64> {
        self.0.sort_unstable();
        (!self.0.is_empty()).then(|| at(&self.0, 50_000) as f64).context("no round trip within the window")
    }
}

fn configuration(args: &Args, host: usize) -> Result<Config> {
    // One address: the routes between them have it as their source.
    let address = |host: usize| SocketAddr::from((Ipv4Addr::LOCALHOST, PORT + host as u16));
    let mut config = Config::default();
    config.runtime.socket = socket(args, host);
    config.runtime.host = format!("host-{host}");
    let network = config.network.get_or_insert_default();
    (network.listen, network.peers) = (address(host), vec![address(1 - host)]);
    network.datapath.extend(bypass::datapath_at(args, &args.variant, host));
    config.check().context("a runtime's configuration")?;
    Ok(config)
}

fn socket(args: &Args, host: usize) -> std::path::PathBuf {
    args.dir.join(format!("turns-{host}.sock"))
}

/// Opens both ends.
fn open(args: &Args) -> Result<[End; 2]> {
    let half = |number: usize, channel: &str| -> Result<_> {
        let host = Host::at(args, socket(args, number))?;
        let sink = host.sink(channel)?;
        let idle = if args.variant == IDLE { idle(&host, number)? } else { Vec::new() };
        Ok((host, sink, idle))
    };
    // A source waits for the other end's sink.
    let (here, there) = (half(0, "answers")?, half(1, "questions")?);
    let whole = |(host, sink, idle): (Host, Sink, _), channel: &str| -> Result<_> {
        let source = host.source(channel, args.payload)?;
        host.await_sinks(&source, 1)?;
        Ok(End { source, sink, _idle: idle, _host: host })
    };
    let ends = [whole(here, "questions")?, whole(there, "answers")?];
    // Each knows of the other's.
    for (source, _) in ends.iter().flat_map(|end| &end._idle) {
        if source.wait_for_sinks(1, MEETING) == 0 {
            bail!("an idle channel has no sink after {} s", MEETING.as_secs());
        }
    }
    Ok(ends)
}

/// Both ends of many channels, of which one end of each is on the other host.
fn idle(host: &Host, number: usize) -> Result<Vec<(Source, Sink)>> {
    let stream = host.stream()?;
    let channel = |number: usize, at: usize| format!("idle-{number}-{at}");
    let both = |at| Ok((stream.source(&channel(number, at))?, stream.sink(&channel(1 - number, at))?));
    (0..IDLE_CHANNELS).map(both).collect()
}

/// Opens both ends on another thread, and polls for them.
fn open_polled(args: &Args, pollers: &mut [Poller]) -> Result<[End; 2]> {
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| open(args));
        while !opening.is_finished() {
            if !pollers.iter_mut().fold(false, |busy, poller| poller.turn() | busy) {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        opening.join().map_err(|_| anyhow!("opening both ends panicked"))?
    })
}

/// Half a round trip: `from` sends, `to` receives.
fn one_way(
    (from, to): (&End, &End),
    (sending, receiving): (&mut Poller, &mut Poller),
    message: &[u8],
    times: &mut [Times; 4],
    now: &mut u64,
) -> Result<()> {
    let [calls, takes, sends, receives] = times;
    from.source.send(message)?;
    calls.add(now);
    sending.turn();
    sends.add(now);
    for _ in 0..PATIENCE {
        receiving.turn();
        receives.add(now);
        if let Some(taken) = to.sink.try_consume()? {
            drop(taken);
            takes.add(now);
            return Ok(());
        }
        receives.0.pop();
    }
    bail!("a message did not arrive in {PATIENCE} turns")
}

fn bare(payload: usize, stop: &Stop) -> Result<[f64; 2]> {
    let [one, other] = [1, 2].map(|n| UdpSocket::bind((Ipv4Addr::new(127, 0, 0, n), 0)));
    let (one, other) = (one?, other?);
    one.connect(other.local_addr()?)?;
    other.connect(one.local_addr()?)?;
    let (message, mut room) = (vec![0; payload], vec![0; payload]);
    let (mut sends, mut receives, mut now) = (Times::default(), Times::default(), now_ns());
    for _ in 0..20_000 {
        if stop.requested() {
            break;
        }
        one.send(&message)?;
        sends.add(&mut now);
        other.recv(&mut room)?;
        receives.add(&mut now);
    }
    Ok([sends.median()?, receives.median()?])
}

/// Both ends and both runtimes.
pub(crate) fn measure(args: &Args, control: &Control) -> Result<()> {
    if args.payload > crate::SMALL {
        bail!("turns are those of messages of up to {} bytes", crate::SMALL);
    }
    let started: Vec<_> = [0, 1]
        .map(|host| Server::start_polled(configuration(args, host)?).map_err(anyhow::Error::from))
        .into_iter()
        .collect::<Result<_>>()?;
    let (servers, pollers): (Vec<Server>, Vec<Option<Poller>>) = started.into_iter().unzip();
    let mut pollers: Vec<Poller> = pollers.into_iter().flatten().collect();
    let ends = open_polled(args, &mut pollers)?;
    let [here, there] = &mut pollers[..] else { bail!("a runtime without a network") };
    let mut message = vec![0; args.payload];
    stamp(&mut message, 0);
    control.ready()?;
    let (cpu, stop) = (control.await_go()?, control.stop());
    let mut round = |times: &mut [Times; 4], rounds: &mut Times| -> Result<()> {
        let (mut now, mut start) = (now_ns(), now_ns());
        one_way((&ends[0], &ends[1]), (here, there), &message, times, &mut now)?;
        one_way((&ends[1], &ends[0]), (there, here), &message, times, &mut now)?;
        rounds.add(&mut start);
        Ok(())
    };
    for _ in 0..args.warmup {
        round(&mut Default::default(), &mut Times::default())?;
    }
    let (start, cpu_start, limit) = (now_ns(), cpu.total_ns()?, (args.seconds * 1e9) as u64);
    let (mut times, mut rounds) = <([Times; 4], Times)>::default();
    while rounds.0.len() < MOST && now_ns() - start < limit && !stop.requested() {
        round(&mut times, &mut rounds)?;
    }
    let (samples, cpu_ns) = (rounds.0.len() as u64, cpu.total_ns()? - cpu_start);
    let (mut idle, mut now) = (Times::default(), now_ns());
    for _ in 0..20_000 {
        here.turn();
        idle.add(&mut now);
    }
    let [bare_send_ns, bare_receive_ns] = bare(args.payload, &stop)?;
    let [calls, takes, sends, receives] = &mut times;
    control.result(&Took {
        samples,
        cpu_ns,
        round_ns: rounds.median()?,
        client_ns: calls.median()? + takes.median()?,
        sending_ns: sends.median()?,
        receiving_ns: receives.median()?,
        idle_ns: idle.median()?,
        bare_send_ns,
        bare_receive_ns,
    })?;
    control.await_stop();
    drop(ends);
    drop(pollers);
    servers.into_iter().for_each(Server::stop);
    Ok(())
}
