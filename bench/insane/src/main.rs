//! INSANE through its Rust client. The helper process is a runtime with the shipped configuration, but for a larger quota
//! where a large message needs it; it is on no path that is measured and sleeps.
//!
//! Between two hosts each has a runtime, on the path of every message: its network thread looks again and again for as long as
//! the class says, which is not at all for sleeping ends, without end for spinning ones where it has a core to itself, and
//! otherwise as in the shipped configuration.
//!
//! Round trips: the echo releases after it has answered. One way and fan-out: nothing is lost, a source waits for room before
//! it takes a buffer; it says that more follows and looks for sleepers once per [`BATCH`] messages, in the variant
//! `unbatched` with every message. Between two hosts nobody waits for a best-effort sink, so it tells now and then how far it is,
//! on a channel of its own, and the source stays within a window of that: of each sink's, in a fan-out to several on the other host.
//!
//! In `apps` and `threads` applications on the first host send to as many on the second, each pair on a channel of its own. In `threads`
//! several threads poll the second host's kernel UDP, and each application of the first host has a runtime of its own, at ports of its
//! address in turns: who has sent says which thread receives (`crowd`).
//!
//! `calls` has both ends in one thread, so that nothing comes from another core and nobody is waited for: what is left are the client's
//! own instructions (`calls`).
//!
//! `turns` has both ends and both runtimes of two hosts in one thread (`turns`).
//!
//! In variants that end in `polled` each end gives its runtime's network its turns (`polled`); there is no helper.
//!
//! Variants named after a datapath take it instead of kernel UDP (`bypass`); `rebind` moves a stream from one to the other and back
//! while messages flow (`moves`).

mod bypass;
mod calls;
mod crowd;
mod moves;
mod open;
mod pace;
mod polled;
mod turns;

use anyhow::{Context, Result, anyhow, bail};
use bench_harness::{
    Args, Consumer, Control, Description, Echoer, Mode, Pinger, Producer, Role, Stop, System, Tally, Waiting, Window,
    Words, check, read_all, stamp,
};
use insane::{Code, Qos, RawMessage, Reliability, Session, Sink, SinkOptions, Source, SourceOptions, Stream, Wait};
use insane_runtime::config::Kind;
use polled::Polled;
use std::path::PathBuf;
use std::time::Duration;

/// Messages between two looks for sleepers, and the most that a sink takes at once.
const BATCH: u64 = 32;
const UNBATCHED: &str = "unbatched";
/// The longest message that is copied rather than lent, in bytes.
const SMALL: usize = 64;
const RELIABLE: &str = "reliable";
/// How long a wait may last before the process looks whether it should end.
const LOOK: Duration = Duration::from_millis(50);
/// How long a source waits for all its sinks.
const MEETING: Duration = Duration::from_secs(20);

struct Insane;

/// What may be on its way of a best-effort flow between two hosts, in bytes of payload, and in messages if they are small or large: a
/// sink's link holds 2048 entries, small messages of a batch arrive as one, and of large ones some are to be on their way at each
/// place where they wait.
const WINDOW_BYTES: usize = 512 << 10;
/// The same of a fan-out, whose ends all sleep: as much as bare UDP in runs has.
const WINDOW_FAN_OUT: usize = 2 << 20;
const WINDOW_MESSAGES: usize = 2048;
const WINDOW_LARGE: usize = 128;
const WINDOW_SCATTERED: usize = 8;
const WINDOW_MOST: usize = 4 << 20;
/// How long a source waits for its sink's word on that.
const WORD: Duration = Duration::from_millis(20);
/// The port of both runtimes' datapaths; their hosts are theirs alone.
const PORT: u16 = 7400;

/// The window of a best-effort flow, in bytes of payload. Those of several applications share one: what waits at a runtime is all of
/// theirs. Messages that stay in the frames in which they came take no more of them than a datapath lends.
fn window_bytes(args: &Args) -> usize {
    let payload = args.payload;
    if bypass::is_scattered(&args.variant) {
        return WINDOW_SCATTERED * payload;
    }
    // Who is woken for a batch goes to sleep again unless the next one is on its way by then.
    let usual = if matches!(args.role, Role::FanoutSource | Role::FanoutSink) { WINDOW_FAN_OUT } else { WINDOW_BYTES };
    let whole = usual.min(WINDOW_MESSAGES * payload).max((WINDOW_LARGE * payload).min(WINDOW_MOST));
    if crowd::is_one(args) { whole / args.sinks as usize } else { whole }
}

/// The channel of a sink's words on its progress.
fn progress_channel(index: u32) -> String {
    format!("progress-{index}")
}

/// The variant that says which datapath there is besides kernel UDP. Unless told otherwise, a stream that moves does so between that
/// and AF_XDP; its variant says what it is like.
fn datapath_variant(args: &Args) -> &str {
    if args.moves { bypass::XDP } else { polled::base(&args.variant).unwrap_or(&args.variant) }
}

/// The runtime of this process.
fn socket(args: &Args) -> PathBuf {
    args.dir.join(match crowd::runtime(args) {
        0 => "insane.sock".into(),
        number => format!("insane-{number}.sock"),
    })
}

/// What every process of a repetition opens.
struct Host {
    session: Session,
    wait: Wait,
    qos: Qos,
    /// The datapath that the variant asks for.
    kind: Option<Kind>,
    payload: usize,
    two_hosts: bool,
    scattered: bool,
}

impl Host {
    fn new(args: &Args) -> Result<Self> {
        Self::at(args, socket(args))
    }

    /// At the runtime of this socket.
    fn at(args: &Args, socket: PathBuf) -> Result<Self> {
        let mut qos = Qos::default();
        match polled::base(&args.variant).unwrap_or(&args.variant) {
            "" | UNBATCHED | turns::IDLE => {}
            RELIABLE => qos.set_reliability(Reliability::Reliable),
            other if bypass::kind(other).is_some() => {}
            other => bail!("no variant '{other}'"),
        }
        let kind = bypass::kind(datapath_variant(args));
        if let Some(kind) = kind {
            bypass::ask(&mut qos, kind);
        }
        let wait = match args.waiting {
            Waiting::Spin => Wait::Spin,
            Waiting::Adaptive => Wait::Adaptive,
            Waiting::Sleep => Wait::Sleep,
        };
        let session = Session::builder("bench").socket(socket).open().context("opening a session")?;
        let scattered = bypass::is_scattered(&args.variant);
        Ok(Self { session, wait, qos, kind, payload: args.payload, two_hosts: args.two_hosts(), scattered })
    }

    /// Waits until a source has so many sinks, and, if a datapath was asked for, goes to them by that.
    fn await_sinks(&self, source: &Source, count: usize) -> Result<()> {
        let found = source.wait_for_sinks(count, MEETING);
        if found < count {
            bail!("{found} of {count} sinks came in {} s", MEETING.as_secs());
        }
        self.kind.map_or(Ok(()), |kind| bypass::await_path(&self.stream()?, kind))
    }

    fn stream(&self) -> Result<Stream> {
        self.session.stream(self.qos).context("opening a stream")
    }

    fn source(&self, channel: &str, payload: usize) -> Result<Source> {
        let options = SourceOptions { wait: self.wait, message_bytes: payload, ..SourceOptions::default() };
        self.stream()?.source_with(channel, options).with_context(|| format!("opening a source on {channel}"))
    }

    fn sink(&self, channel: &str) -> Result<Sink> {
        let options = SinkOptions { wait: self.wait, scattered: self.scattered, ..SinkOptions::default() };
        self.stream()?.sink_with(channel, options).with_context(|| format!("opening a sink on {channel}"))
    }
}

/// Reads every byte, in place where the configuration trusts the peer (the shipped one trusts the same user).
fn read(message: &RawMessage, copy: &mut Vec<u8>, each: impl FnOnce(&[u8]) -> Result<()>) -> Result<()> {
    if let Some(bytes) = message.as_slice() {
        return each(bytes);
    }
    copy.resize(message.len(), 0);
    message.read(copy);
    each(copy)
}

/// Emits one message: a small one is copied anyway, a larger one is written where it is read.
#[inline]
fn emit(source: &Source, payload: usize, n: u64) -> Result<()> {
    if payload <= SMALL {
        let mut message = [0; SMALL];
        stamp(&mut message[..payload], n);
        source.send(&message[..payload])?;
    } else {
        let mut buffer = source.buffer(payload)?;
        stamp(&mut buffer, n);
        source.emit(buffer)?;
    }
    Ok(())
}

/// A source and a sink in opposite directions.
struct Line {
    host: Host,
    source: Option<Source>,
    sink: Sink,
    copy: Vec<u8>,
    polled: Option<Polled>,
}

struct Asking {
    line: Line,
    large: bool,
    in_place: Option<bool>,
}

impl Asking {
    fn large(&mut self, n: u64) -> Result<()> {
        let Some(source) = &self.line.source else { bail!("no source") };
        let mut buffer = source.buffer(self.line.host.payload)?;
        stamp(&mut buffer, n);
        let mine = open::place_of(buffer.as_ptr())?;
        source.emit(buffer)?;
        let answer = self.line.sink.consume_timeout(MEETING)?;
        // What the sink says of where it has read: the file, and the offset in it.
        let theirs = answer.to_vec();
        let same = theirs == mine;
        self.in_place = Some(same && self.in_place.unwrap_or(true));
        Ok(())
    }
}

impl Pinger for Asking {
    fn exchange(&mut self, n: u64) -> Result<()> {
        if self.large {
            return self.large(n);
        }
        let Line { host, source, sink, copy, polled } = &mut self.line;
        let Some(source) = source else { bail!("no source") };
        emit(source, host.payload, n)?;
        let answer = match polled {
            Some(polled) => polled.expect(sink)?,
            None => sink.consume()?,
        };
        read(&answer, copy, |bytes| {
            let got = check(bytes, host.payload)?;
            if got != n {
                bail!("the answer to {n} is {got}");
            }
            Ok(())
        })
    }

    fn in_place(&self) -> Option<bool> {
        self.in_place
    }
}

struct Answering {
    line: Line,
    large: bool,
}

impl Echoer for Answering {
    fn serve(&mut self) -> Result<()> {
        let Line { host, source, sink, copy, polled } = &mut self.line;
        // Without a timer, as the other systems: the process is ended from outside.
        let question = match polled.as_mut().map(|polled| polled.consume(sink)).transpose()? {
            Some(Some(question)) => question,
            Some(None) => return Ok(()),
            None => sink.consume()?,
        };
        if source.is_none() {
            polled.iter_mut().for_each(Polled::let_go);
            let answers = host.source("answers", host.payload.min(8192))?;
            if host.two_hosts {
                host.await_sinks(&answers, 1)?;
            }
            *source = Some(answers);
        }
        let Some(source) = source else { bail!("no source") };
        if self.large {
            let Some(bytes) = question.as_slice() else { bail!("the peer is not trusted: nothing is read in place") };
            read_all(bytes);
            let place = open::place_of(bytes.as_ptr())?;
            source.send(&place)?;
            return Ok(());
        }
        let mut n = 0;
        read(&question, copy, |bytes| {
            n = check(bytes, host.payload)?;
            Ok(())
        })?;
        emit(source, host.payload, n)?;
        polled.as_mut().map_or(Ok(()), Polled::turn)?;
        // The question is released here, after the answer is on its way.
        Ok(())
    }
}

struct Sending {
    source: Source,
    payload: usize,
    batch: u64,
    waits: bool,
    /// Unless it is as fast as it can be.
    pace: Option<pace::Pace>,
    /// With two hosts and best effort: what each sink says of its progress.
    windows: Vec<(Window, Sink)>,
    _host: Host,
}

impl Producer for Sending {
    #[inline]
    fn send(&mut self, n: u64, stop: &Stop) -> Result<bool> {
        if self.windows.iter().any(|(window, _)| window.is_full()) && !self.await_windows(stop)? {
            return Ok(false);
        }
        self.windows.iter_mut().for_each(|(window, _)| window.add(1));
        if let Some(pace) = &mut self.pace {
            pace.wait();
        }
        if self.payload <= SMALL && self.waits {
            return self.send_small(n, stop);
        }
        while self.waits && self.source.wait_for_room(LOOK).is_err() {
            if stop.requested() {
                return Ok(false);
            }
        }
        let mut buffer = self.source.buffer(self.payload)?;
        stamp(&mut buffer, n);
        if n % self.batch == self.batch - 1 {
            self.source.emit(buffer)?
        } else {
            self.source.emit_more(buffer)?
        };
        Ok(true)
    }
}

impl Sending {
    fn await_windows(&mut self, stop: &Stop) -> Result<bool> {
        // Nobody else says now that this was the last for a while.
        self.source.flush()?;
        for (window, words) in &mut self.windows {
            while window.is_full() {
                match words.consume_timeout(WORD) {
                    Ok(word) => {
                        window.progress(word.to_vec().try_into().map_err(|_| anyhow!("a word of another length"))?);
                    }
                    Err(e) if e.code() != Code::Timeout => return Err(e.into()),
                    Err(_) if stop.requested() => return Ok(false),
                    Err(_) => window.forget(),
                }
            }
        }
        Ok(true)
    }

    /// Small messages are copied anyway: into their descriptors, or into a slot with others.
    #[inline]
    fn send_small(&mut self, n: u64, stop: &Stop) -> Result<bool> {
        let mut message = [0; SMALL];
        let message = &mut message[..self.payload];
        stamp(message, n);
        let last = n % self.batch == self.batch - 1;
        loop {
            let sent = if last { self.source.try_send(message)? } else { self.source.try_send_more(message)? };
            if sent.is_some() {
                return Ok(true);
            }
            while self.source.wait_for_room(LOOK).is_err() {
                if stop.requested() {
                    return Ok(false);
                }
            }
        }
    }
}

struct Receiving {
    sink: Sink,
    copy: Vec<u8>,
    /// With two hosts and best effort.
    words: Option<Words>,
    progress: Option<Source>,
    index: u32,
    host: Host,
}

impl Receiving {
    /// Tells the source how far this sink is. The way back is opened with the first word.
    fn tell(&mut self, word: [u8; 8]) -> Result<()> {
        if self.progress.is_none() {
            let progress = self.host.source(&progress_channel(self.index), word.len())?;
            self.host.await_sinks(&progress, 1)?;
            self.progress = Some(progress);
        }
        let Some(progress) = &self.progress else { bail!("no source") };
        progress.send(&word)?;
        Ok(())
    }
}

impl Consumer for Receiving {
    #[inline]
    fn receive(&mut self, tally: &mut Tally) -> Result<()> {
        let mut read_all = Ok(());
        let scattered = self.host.scattered;
        let each = |message: &RawMessage| {
            let pieces = message.pieces();
            let taken = if scattered && pieces.len() > 1 {
                tally.take_pieces(pieces.map(|piece| piece.as_slice().unwrap_or(&[])))
            } else {
                read(message, &mut self.copy, |bytes| tally.take(bytes))
            };
            if let Err(e) = taken {
                read_all = Err(e);
            }
        };
        match self.sink.consume_each(BATCH as usize, Some(LOOK), each) {
            Err(e) if e.code() != Code::Timeout => return Err(e.into()),
            _ => read_all?,
        }
        match self.words.as_mut().and_then(|words| words.due(tally.received + tally.lost)) {
            Some(word) => self.tell(word),
            None => Ok(()),
        }
    }

    fn copies(&self) -> Option<u64> {
        self.host.scattered.then(|| self.sink.copies().all())
    }
}

fn modes() -> Vec<Mode> {
    let mut modes = Vec::new();
    for waiting in [Waiting::Spin, Waiting::Adaptive, Waiting::Sleep] {
        for experiment in ["rtt", "oneway", "fanout"] {
            let mode = Mode::new(experiment, waiting, "shm");
            // What 8 KB over memif is compared with, too.
            modes.push(if experiment == "oneway" && waiting == Waiting::Spin { mode.also(&[8192]) } else { mode });
        }
        modes.push(Mode::new("oneway", waiting, "shm").variant(UNBATCHED));
        modes.push(Mode::new("oneway", waiting, "shm").variant(RELIABLE));
        modes.push(Mode::new("fanout", waiting, "shm").variant(UNBATCHED));
    }
    modes.extend([Waiting::Spin, Waiting::Adaptive, Waiting::Sleep].map(|waiting| Mode::new("calls", waiting, "shm")));
    modes.push(Mode::new("rtt", Waiting::Spin, "shm").variant(RELIABLE));
    modes.push(Mode::new("large", Waiting::Spin, "shm"));
    modes.push(Mode::new("large", Waiting::Sleep, "shm"));
    modes.push(Mode::new("open", Waiting::Sleep, "shm").variant(open::SESSION));
    modes.push(Mode::new("open", Waiting::Sleep, "shm").variant(open::CHANNELS));
    for waiting in [Waiting::Spin, Waiting::Adaptive, Waiting::Sleep] {
        modes.push(Mode::new("rtt", waiting, "datagram").veth());
    }
    for waiting in [Waiting::Adaptive, Waiting::Sleep] {
        modes.push(Mode::new("oneway", waiting, "datagram").veth());
        modes.push(Mode::new("oneway", waiting, "reliable").variant(RELIABLE).veth());
    }
    for variant in ["", bypass::XDP] {
        modes.push(Mode::new("fanout", Waiting::Sleep, "datagram").variant(variant).veth());
    }
    modes.push(Mode::new("rebind", Waiting::Adaptive, "datagram").veth());
    modes.push(Mode::new("rebind", Waiting::Adaptive, "reliable").variant(RELIABLE).veth());
    modes.extend(bypass::modes());
    modes.extend(crowd::modes());
    let alone = bypass::alone()
        .chain([turns::IDLE])
        .map(|variant| Mode::new("turns", Waiting::Spin, "datagram").variant(variant));
    modes.into_iter().map(Mode::aux).chain(alone).chain(polled::modes()).collect()
}

fn configuration(args: &Args) -> Result<insane_runtime::config::Config> {
    let mut config = insane_runtime::config::Config::default();
    config.runtime.socket = socket(args);
    if args.two_hosts() {
        config.runtime.host = format!("host-{}", crowd::runtime(args));
        let network = config.network.get_or_insert_default();
        (network.listen, network.peers) = crowd::addresses(args);
        network.thread = crowd::threads(args);
        if args.alone && !network.thread.is_empty() {
            network.core = args.core.first().and_then(|core| i32::try_from(*core).ok()).unwrap_or(-1);
        }
        if args.alone && (args.waiting == Waiting::Spin || args.polling > 0) {
            network.spin_us = 1_000_000;
        } else if args.waiting == Waiting::Sleep {
            (network.spin_us, network.spin_most_us) = (0, 0);
        }
        network.datapath.extend(bypass::datapath(args, datapath_variant(args)));
    }
    if args.payload >= 1 << 20 {
        // A stream gets its share of it, and a link a part of that.
        config.quota.memory_mib_per_session = 2048;
    }
    config.check().context("the runtime's configuration")?;
    Ok(config)
}

impl System for Insane {
    const GRACE: Duration = Duration::from_millis(200);

    fn describe() -> Description {
        Description {
            system: "insane".into(),
            language: "rust",
            version: env!("CARGO_PKG_VERSION").into(),
            modes: modes(),
            absent: bypass::absent().into_iter().chain(crowd::absent()).collect(),
        }
    }

    fn pinger(args: &Args) -> Result<impl Pinger> {
        if args.role == Role::Open {
            return Ok(open::Asker::Opening(open::Opening::new(args, socket(args))?));
        }
        let polled = Polled::start(args)?;
        let host = Host::new(args)?;
        let sink = host.sink("answers")?;
        let source = host.source("questions", args.payload)?;
        host.await_sinks(&source, 1)?;
        let line = Line { host, source: Some(source), sink, copy: Vec::new(), polled };
        Ok(open::Asker::Asking(Asking { line, large: args.role == Role::LargeSource, in_place: None }))
    }

    fn echoer(args: &Args) -> Result<impl Echoer> {
        let polled = Polled::start(args)?;
        let host = Host::new(args)?;
        let sink = host.sink("questions")?;
        // The other end is not there yet: the way back is opened with its first message.
        let line = Line { host, source: None, sink, copy: Vec::new(), polled };
        Ok(Answering { line, large: args.role == Role::LargeSink })
    }

    fn producer(args: &Args) -> Result<impl Producer> {
        let host = Host::new(args)?;
        let windowed = args.two_hosts() && args.variant != RELIABLE;
        let window = |index| -> Result<_> {
            let words = host.sink(&progress_channel(index))?;
            Ok((Window::new(window_bytes(args), args.payload), words))
        };
        let (flow, sinks) = crowd::flow(args);
        let count = sinks.len();
        let windows = sinks.filter(|_| windowed).map(window).collect::<Result<_>>()?;
        let source = host.source(&flow, args.payload)?;
        host.await_sinks(&source, count)?;
        let pace = bypass::is_paced(&args.variant).then(pace::Pace::new);
        let batch = if args.variant == UNBATCHED || pace.is_some() { 1 } else { BATCH };
        Ok(Sending {
            source,
            payload: args.payload,
            batch,
            waits: args.variant != RELIABLE,
            pace,
            windows,
            _host: host,
        })
    }

    fn consumer(args: &Args) -> Result<impl Consumer> {
        let host = Host::new(args)?;
        let windowed = args.two_hosts() && args.variant != RELIABLE;
        let words = windowed.then(|| Words::new(window_bytes(args), args.payload));
        Ok(Receiving {
            sink: host.sink(&crowd::flow(args).0)?,
            copy: Vec::new(),
            words,
            progress: None,
            index: args.index,
            host,
        })
    }

    fn rebind(args: &Args, control: &Control) -> Result<()> {
        if args.role == Role::RebindSource { moves::source(args, control) } else { moves::sink(args, control) }
    }

    fn calls(args: &Args, control: &Control) -> Result<()> {
        calls::measure(args, control)
    }

    fn turns(args: &Args, control: &Control) -> Result<()> {
        turns::measure(args, control)
    }

    fn aux(args: &Args, control: &Control) -> Result<()> {
        let config = configuration(args)?;
        let server = insane_runtime::server::Server::start(config)?;
        control.ready()?;
        let _watch = control.await_go()?;
        control.await_stop();
        server.stop();
        Ok(())
    }
}

fn main() -> Result<()> {
    bench_harness::main::<Insane>()
}
