//! The network thread's state between a host that says anything and sessions that come and go: no thread, no socket to elsewhere,
//! and a clock that the caller moves. For fuzzing (`fuzz/fuzz_targets/host.rs`) and for the tests below.
//!
//! The made-up host has a real path, so what it says arrives as frames of a connection that stands, as from a host that runs. The
//! core is real too; its clients' ends of pairs are held and never read, as of a session that hangs.

use crate::config::{self, Config, Kind};
use crate::core::{Action, Conn, Core, Credentials};
use crate::network::domain::Domain;
use crate::network::host::path_config;
use crate::network::hub::{Ends, Hub};
use crate::network::pages::Pages;
use crate::network::ports::Port;
use crate::network::{Bell, FromNetwork, ToNetwork};
use insane_datapath::batch::{Outcome, Place, RxBatch, RxReport, Taken, TxBatch, TxReport};
use insane_datapath::{Address, Capabilities, Datapath, DatapathError, Stats};
use insane_shm::socket::pair;
use insane_transport::{Event, FlowSpec, Lies, Outgoing, Path, Payloads, Store};
use insane_wire::control::{self as session, ToClient, ToRuntime, to_client, to_runtime};
use insane_wire::encode;
use insane_wire::host::{self as wire, CONTROL};
use insane_wire::qos::{Qos, Reliability};
use rustix::fd::OwnedFd;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The network's session, and the first of the others.
const NETWORK: Conn = 1;
const SESSIONS: Conn = 2;

/// How many made-up sessions there are, one stream each; those of odd numbers are reliable.
pub const SESSION_COUNT: u64 = 4;

/// The largest frame, in bytes: some words are longer.
const MAX_FRAME: usize = 2048;

/// Another host's address that nobody has been told of.
const STRANGER: ([u8; 4], u16) = ([127, 0, 0, 9], 7409);

type Frames = Arc<Mutex<VecDeque<(Address, Vec<u8>)>>>;

/// A datapath to the made-up host: two queues.
struct Wire {
    own: Address,
    to_host: Frames,
    from_host: Frames,
    stats: Stats,
}

impl Datapath for Wire {
    fn capabilities(&self) -> Capabilities {
        // So that frames need no check of their own, and those made up are taken.
        let mut can = Capabilities::plain("stand", MAX_FRAME);
        can.detects_changes = true;
        can
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        Ok(())
    }

    fn address(&self) -> Option<Address> {
        Some(self.own)
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        let mut report = TxReport::default();
        let mut queue = self.to_host.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(frame) = batch.pending().first() {
            let mut bytes = Vec::with_capacity(frame.len());
            batch.copy_to(frame, &mut bytes);
            queue.push_back((frame.to, bytes));
            batch.settle(1, Outcome::Sent);
            report.sent += 1;
        }
        report
    }

    fn receive(&mut self, batch: &mut RxBatch, _place: Option<&mut dyn Place>) -> RxReport {
        batch.landed.clear();
        batch.heads.clear();
        let mut report = RxReport::default();
        let mut queue = self.from_host.lock().unwrap_or_else(PoisonError::into_inner);
        while report.frames < batch.limit && !queue.is_empty() {
            let Some(mut slot) = batch.free.pop() else { break };
            let Some((from, bytes)) = queue.pop_front() else { break };
            let Some(to) = slot.bytes_mut().get_mut(..bytes.len()) else {
                batch.free.push(slot);
                continue;
            };
            to.copy_from_slice(&bytes);
            report.frames += 1;
            batch.taken.push(Taken { slot, len: bytes.len(), stride: bytes.len().max(1), from });
        }
        report
    }

    fn stats(&self) -> Stats {
        self.stats
    }

    fn close(&mut self) {}
}

/// What the made-up host has under way.
#[derive(Default)]
struct Said(HashMap<u64, Vec<u8>>);

impl Payloads for Said {
    fn copy(&mut self, token: u64, offset: u32, len: u32, out: &mut Vec<u8>) {
        let end = out.len() + len as usize;
        let bytes = self.0.get(&token).and_then(|b| b.get(offset as usize..offset as usize + len as usize));
        out.extend_from_slice(bytes.unwrap_or(&[]));
        out.resize(end, 0);
    }
}

/// The made-up host takes nothing that is longer than a frame.
struct Nowhere;

impl Store for Nowhere {
    fn reserve(&mut self, _flow: u32, _bytes: u32, _urgent: bool) -> Option<u64> {
        None
    }

    fn fill(&mut self, _slot: u64, _at: u32, _bytes: &[u8]) {}

    fn hold(&mut self, _flow: u32, _bytes: &[u8]) -> Option<u64> {
        None
    }

    fn copy_out(&self, _slot: u64, _at: u32, _len: u32, _out: &mut Vec<u8>) {}
}

/// How much the network side holds because of what was said to it, in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Holds {
    /// Sinks of other hosts, and those that wait for their turn.
    pub sinks: usize,
    /// Sources of other hosts, and those that wait for an old one's end.
    pub sources: usize,
    /// Questions to the core without an answer.
    pub wants: usize,
    /// What is under way to the host.
    pub under_way: usize,
    /// Pairs that are attached there, refused sinks, flows asked for.
    pub notes: usize,
    /// Sources and sinks of the host that the core has.
    pub in_the_core: usize,
}

impl Holds {
    /// All of it.
    #[must_use]
    pub fn sum(&self) -> usize {
        self.sinks + self.sources + self.wants + self.under_way + self.notes + self.in_the_core
    }
}

/// See the module's head.
pub struct Stand {
    hub: Hub,
    core: Core,
    who: Credentials,
    to: Sender<ToNetwork>,
    bell: Bell,
    from: Receiver<FromNetwork>,
    to_host: Frames,
    from_host: Frames,
    peer: Path,
    peer_config: insane_transport::Config,
    peer_address: Address,
    control: Option<u32>,
    /// Whether it says hello when the connection stands.
    greets: bool,
    flows: Vec<u32>,
    sequences: HashMap<u32, u64>,
    said: Said,
    next_token: u64,
    incarnations: u64,
    now: Duration,
    /// The made-up sessions' ends of their pairs.
    ends: Vec<(Conn, OwnedFd)>,
    streams: HashMap<Conn, u32>,
    present: BTreeSet<Conn>,
    /// The words that the host has heard.
    heard: Vec<Vec<u8>>,
}

impl std::fmt::Debug for Stand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stand").field("now", &self.now).field("holds", &self.holds()).finish_non_exhaustive()
    }
}

impl Stand {
    /// A network side that is connected to a host, with sessions that have nothing.
    ///
    /// # Panics
    /// If the operating system gives no memory or descriptors.
    #[must_use]
    pub fn new() -> Self {
        let [own, there] = [1, 2].map(|last| SocketAddr::from(([127, 0, 0, last], 7400)));
        let settings =
            config::Network { listen: own, peers: vec![there], memory_mib: 16, ..config::Network::default() };
        let config = Config { network: Some(settings.clone()), ..Config::default() };
        let (to_host, from_host) = (Frames::default(), Frames::default());
        let wire = Wire {
            own: Address::Ip(own),
            to_host: to_host.clone(),
            from_host: from_host.clone(),
            stats: Stats::default(),
        };
        let who = Credentials { pid: Some(1), uid: 0, gid: 0 };
        let mut core = Core::new(config.clone(), "here".into());
        core.attach(NETWORK, "default", who);
        let domain =
            Domain::new(NETWORK, "default".into(), &config, Pages::without_thread()).expect("memory for a domain");
        let (to, inbox) = channel();
        let (outbox, from) = channel();
        let [bell, out_bell] = [(); 2].map(|()| Bell::new().expect("a descriptor"));
        let ends = Ends { inbox, bell: bell.clone(), outbox, out_bell, report: Arc::default() };
        let port = Port::new(Kind::Udp, Box::new(wire));
        let hub = Hub::new(
            settings.clone(),
            ("here".into(), 1),
            (vec![port], Arc::default(), Vec::new()),
            vec![domain],
            ends,
        );
        let now = Duration::from_secs(1);
        let peer_config = path_config(&settings, 2, MAX_FRAME, true);
        let mut stand = Self {
            hub: hub.expect("an epoll set"),
            core,
            who,
            to,
            bell,
            from,
            to_host,
            from_host,
            peer: Path::new(peer_config, 7, now),
            peer_config,
            peer_address: Address::Ip(there),
            control: None,
            greets: true,
            flows: Vec::new(),
            sequences: HashMap::new(),
            said: Said::default(),
            next_token: 0,
            incarnations: 0,
            now,
            ends: Vec::new(),
            streams: HashMap::new(),
            present: BTreeSet::new(),
            heard: Vec::new(),
        };
        for number in 0..SESSION_COUNT {
            stand.comes(number);
        }
        stand.connect();
        stand
    }

    /// The host begins a connection and a control flow, unless it stands.
    fn connect(&mut self) {
        for _ in 0..40 {
            self.settle();
            if self.peer.is_connected() && self.control.is_some() {
                return;
            }
            self.now += Duration::from_millis(50);
        }
    }

    /// The host's runtime dies and another one is there, with nothing of the old one's.
    pub fn restart(&mut self) {
        self.incarnations += 1;
        self.peer = Path::new(self.peer_config, 7 + self.incarnations, self.now);
        self.control = None;
        self.flows.clear();
        self.sequences.clear();
        self.said.0.clear();
        self.connect();
    }

    /// Whether both ends have the connection.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.peer.is_connected() && self.hub.hosts[0].is_connected()
    }

    fn send(&mut self, flow: u32, bytes: &[u8]) {
        let sequence = self.sequences.entry(flow).or_default();
        *sequence += 1;
        self.next_token += 1;
        let len = u32::try_from(bytes.len()).unwrap_or(0);
        let next = Outgoing { token: self.next_token, len, sequence: *sequence, ..Outgoing::default() };
        if self.peer.send(flow, next).is_ok() {
            self.said.0.insert(self.next_token, bytes.to_vec());
        } else {
            *sequence -= 1;
        }
    }

    /// The host says something over its control flow: any bytes, up to 32 KiB.
    pub fn say(&mut self, bytes: &[u8]) {
        if let Some(control) = self.control {
            self.send(control, &bytes[..bytes.len().min(32 << 10)]);
        }
        self.settle();
    }

    /// A frame that no path has built, from the host's address or from a stranger's.
    pub fn frame(&mut self, bytes: &[u8], stranger: bool) {
        let from = if stranger { Address::Ip(STRANGER.into()) } else { self.peer_address };
        self.from_host.lock().unwrap_or_else(PoisonError::into_inner).push_back((from, bytes.to_vec()));
        self.settle();
    }

    /// The host opens a flow for a source. Its number for [`Self::give`] is its place among those opened; there are 64 at most.
    pub fn open(&mut self, domain: &str, epoch: u128, channel: u64, reliable: bool) {
        if self.flows.len() < 64 {
            let domain = insane_wire::frame::domain_id(domain);
            self.flows.push(self.peer.open(FlowSpec { domain, epoch, channel, reliable, first: 1 }));
        }
        self.settle();
    }

    /// The host sends a message by one of its flows.
    pub fn give(&mut self, flow: usize, bytes: &[u8]) {
        if let Some(flow) = self.flows.get(flow).copied() {
            self.send(flow, bytes);
        }
        self.settle();
    }

    /// The host ends one of its flows.
    pub fn close(&mut self, flow: usize) {
        if let Some(flow) = self.flows.get(flow).copied() {
            self.peer.close(flow);
        }
        self.settle();
    }

    /// A session is there, if it was not.
    pub fn comes(&mut self, number: u64) {
        let conn = SESSIONS + number % SESSION_COUNT;
        if !self.present.insert(conn) {
            return;
        }
        let hello = session::Hello {
            protocol_min: insane_wire::PROTOCOL,
            protocol_max: insane_wire::PROTOCOL,
            app: "stand".into(),
            session: u128::from(conn).to_le_bytes().to_vec(),
            ..session::Hello::default()
        };
        self.ask(conn, to_runtime::Body::Hello(hello));
        let mut qos = Qos::default();
        if number % 2 == 1 {
            qos.set_reliability(Reliability::Reliable);
        }
        let name = stream_name(number).to_owned();
        self.ask(conn, to_runtime::Body::OpenStream(session::OpenStream { name, qos: Some(qos), strict: false }));
        self.settle();
    }

    /// A session is gone.
    pub fn goes(&mut self, number: u64) {
        let conn = SESSIONS + number % SESSION_COUNT;
        if self.present.remove(&conn) {
            self.ends.retain(|(of, _)| *of != conn);
            self.streams.remove(&conn);
            let actions = self.core.gone(conn);
            self.act(actions);
        }
        self.settle();
    }

    /// A session opens a sink, or closes it if it is open.
    pub fn sink(&mut self, number: u64, id: [u8; 16], channel: u64, opens: bool) {
        let sink = id.to_vec();
        self.endpoint(number, channel, |stream, channel| {
            if opens {
                to_runtime::Body::OpenSink(session::OpenSink { stream, channel, sink, observer: false })
            } else {
                to_runtime::Body::CloseSink(session::CloseSink { sink })
            }
        });
    }

    /// A session opens a source, or closes it.
    pub fn source(&mut self, number: u64, id: [u8; 16], channel: u64, opens: bool) {
        let epoch = id.to_vec();
        self.endpoint(number, channel, |stream, channel| {
            if opens {
                to_runtime::Body::OpenSource(session::OpenSource { stream, channel, epoch })
            } else {
                to_runtime::Body::CloseSource(session::CloseSource { epoch })
            }
        });
    }

    /// A session that is there asks for what is made of its stream and a channel.
    fn endpoint(
        &mut self,
        number: u64,
        channel: u64,
        make: impl FnOnce(u32, Option<session::Channel>) -> to_runtime::Body,
    ) {
        let conn = SESSIONS + number % SESSION_COUNT;
        let Some(stream) = self.streams.get(&conn).copied() else { return };
        let channel = session::Channel { name: None, id: Some(channel) };
        self.ask(conn, make(stream, Some(channel)));
        self.settle();
    }

    /// Time passes, in which both look at each other as often as they would.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now = until.min(self.now + Duration::from_millis(100));
            self.settle();
        }
    }

    /// The host is gone without a word, and so much time passes that everything of it is forgotten.
    pub fn end(&mut self) {
        self.control = None;
        self.flows.clear();
        for number in 0..SESSION_COUNT {
            self.goes(number);
        }
        let patience = Duration::from_millis(self.hub.settings.patience_ms + self.hub.settings.silence_ms);
        let until = self.now + patience + Duration::from_secs(2);
        while self.now < until {
            // Whoever looks more seldom than this takes the silence for its own.
            self.now += Duration::from_millis(200);
            self.turns(false);
        }
    }

    /// How much is held.
    #[must_use]
    pub fn holds(&self) -> Holds {
        let (hub, host) = (&self.hub, &self.hub.hosts[0]);
        let remotes = hub.domains.iter().flat_map(|d| d.remotes.iter().flatten()).count();
        Holds {
            sinks: hub.sinks.len() + hub.later.len() + usize::from(hub.directory.knows(0)),
            sources: remotes + hub.hosts.iter().map(|host| host.postponed.len() + host.claims.len()).sum::<usize>(),
            wants: hub.wants.len(),
            under_way: hub.underway.len() + host.kept.len() + host.long_words.len(),
            notes: host.ready.len() + host.refused.len() + host.requested.len() + host.incoming.len(),
            in_the_core: self.core.sessions.get(&NETWORK).map_or(0, crate::core::Session::endpoints),
        }
    }

    /// What was said and does not fit: words that are malformed, unknown or about nothing that is here.
    #[must_use]
    pub fn strays(&self) -> u64 {
        self.hub.hosts[0].stray
    }

    /// Frames from addresses of no host.
    #[must_use]
    pub fn strangers(&self) -> u64 {
        self.hub.unknown
    }

    fn ask(&mut self, conn: Conn, body: to_runtime::Body) {
        let actions = self.core.request(conn, self.who, ToRuntime { request: 1, body: Some(body) }, |_| true);
        self.act(actions);
    }

    /// What the server does with actions.
    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(conn, message) => self.hand(conn, message, None),
                Action::Pair(a, to_a, b, to_b) => {
                    if let Ok((one, two)) = pair() {
                        self.hand(a, to_a, Some(one));
                        self.hand(b, to_b, Some(two));
                    }
                }
                Action::Close(conn) => {
                    self.present.remove(&conn);
                    self.ends.retain(|(of, _)| *of != conn);
                    let actions = self.core.gone(conn);
                    self.act(actions);
                }
                Action::Announce(sink) => self.tell(ToNetwork::Announce(sink)),
                Action::Withdraw(sink) => self.tell(ToNetwork::Withdraw(sink)),
                Action::StreamClosed(domain, stream) => self.tell(ToNetwork::StreamClosed(domain, stream)),
            }
        }
    }

    fn hand(&mut self, conn: Conn, message: ToClient, fd: Option<OwnedFd>) {
        if conn == NETWORK {
            return self.tell(ToNetwork::Message(conn, message, fd));
        }
        if let Some(to_client::Body::StreamOpened(opened)) = &message.body {
            self.streams.insert(conn, opened.stream);
        }
        self.ends.extend(fd.map(|fd| (conn, fd)));
    }

    fn tell(&self, message: ToNetwork) {
        // The other end is in this very object.
        let _ = self.to.send(message);
        self.bell.ring();
    }

    fn settle(&mut self) {
        self.turns(true);
    }

    /// Turns of both ends, until they have nothing more to say or have said a lot.
    fn turns(&mut self, host_lives: bool) {
        for _ in 0..12 {
            // More than the thread waits between two looks at its orders.
            self.now += Duration::from_millis(2);
            let mut busy = self.hub.turn(self.now);
            while let Ok(message) = self.from.try_recv() {
                busy = true;
                let actions = message.apply(&mut self.core, self.who);
                self.act(actions);
            }
            busy |= host_lives && self.host_turn();
            self.to_host.lock().unwrap_or_else(PoisonError::into_inner).clear();
            if !busy {
                break;
            }
        }
    }

    fn host_turn(&mut self) -> bool {
        let arrived = std::mem::take(&mut *self.to_host.lock().unwrap_or_else(PoisonError::into_inner));
        let mut busy = !arrived.is_empty();
        for (to, frame) in arrived {
            if to == self.peer_address {
                self.next_token += 1;
                self.peer.receive(self.now, &frame, self.next_token, &mut Nowhere);
                self.host_events(&frame);
            }
        }
        self.peer.on_time(self.now);
        self.host_events(&[]);
        for _ in 0..64 {
            let mut bytes = Vec::new();
            if self.peer.transmit(self.now, &mut bytes, &mut self.said).is_none() {
                break;
            }
            busy = true;
            self.from_host.lock().unwrap_or_else(PoisonError::into_inner).push_back((self.peer_address, bytes));
        }
        self.host_events(&[]);
        busy
    }

    /// The host says its first word.
    fn greet(&mut self) {
        let run = u128::from(self.incarnations).to_le_bytes().to_vec();
        let hello = wire::Hello { host: "there".into(), run, ..wire::Hello::default() };
        let bytes = encode(&wire::ToHost { body: Some(wire::to_host::Body::Hello(hello)) });
        self.control.into_iter().for_each(|control| self.send(control, &bytes));
    }

    /// What a host does of itself: it takes what is sent to it, in this frame if in any, and speaks when the connection stands.
    fn host_events(&mut self, frame: &[u8]) {
        while let Some(event) = self.peer.event() {
            match event {
                Event::Connected { .. } => {
                    let spec = FlowSpec { domain: CONTROL.0, epoch: 1, channel: CONTROL.1, reliable: true, first: 1 };
                    let control = self.peer.open(spec);
                    self.sequences.remove(&control);
                    self.control = Some(control);
                    if self.greets {
                        self.greet();
                    }
                }
                Event::Lost(_) => {
                    self.control.take().into_iter().for_each(|old| self.peer.abandon(old));
                }
                Event::Requested { open, .. } => self.peer.accept(open.flow, 0),
                Event::Message { flow, message, lies } => {
                    if let (true, Lies::Frame { at, len, .. }) = (cfg!(test), lies) {
                        self.heard.extend(frame.get(at..at + len).map(<[u8]>::to_vec));
                    }
                    self.peer.advance(flow, message.sequence);
                    self.peer.consumed(flow, 1, 0);
                }
                Event::Released { token, .. } => drop(self.said.0.remove(&token)),
                _ => {}
            }
        }
    }
}

impl Default for Stand {
    fn default() -> Self {
        Self::new()
    }
}

/// The name of a made-up session's stream.
#[must_use]
pub fn stream_name(number: u64) -> &'static str {
    ["plain", "sure"][usize::from(number % 2 == 1)]
}

#[cfg(test)]
mod floods;
#[cfg(test)]
mod paths;
#[cfg(test)]
mod returns;
#[cfg(test)]
mod sources;

#[cfg(test)]
mod tests;
