//! The session server's state machine: messages in, actions out; no input, output or clock of its own.
//!
//! What it knows it learns from its clients, and after a restart again from them (architecture §3 rule 6): sessions, sources
//! and sinks bring their own identities, live pairs are matched by the token that both ends present.

use crate::config::{Config, Trust};
use crate::policy::{self, Standing};
use insane_wire::PROTOCOL;
use insane_wire::control::{self, ToClient, ToRuntime, to_client, to_runtime};
use insane_wire::error::Code;
use insane_wire::host;
use insane_wire::id::{Epoch, PairToken, SessionId, SinkId, channel_id, valid_name};
use insane_wire::qos::{EffectiveQos, Qos};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A connection, as the shell numbers it. Never used again after it closed.
pub type Conn = u64;

/// Who is at the other end of a connection, as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// Process id; `None`: the process is in a PID namespace that the runtime's does not show.
    pub pid: Option<u32>,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Credentials {
    /// Whether it is root or the runtime's own user.
    #[must_use]
    pub fn is_operator(self) -> bool {
        self.uid == 0 || self.uid == rustix::process::getuid().as_raw()
    }
}

/// Why there is nothing to do with datapaths.
pub(crate) const NO_NETWORK: &str = "this runtime has no [network] section, and local messages go through no datapath";

/// What the shell is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Send a message.
    Send(Conn, ToClient),
    /// Make a socket pair and send one end with each of the two messages.
    Pair(Conn, ToClient, Conn, ToClient),
    /// Close a connection once what was sent to it before is on its way.
    Close(Conn),
    /// A session of this host has a sink: other hosts are to know.
    Announce(host::Announce),
    /// It is closed.
    Withdraw(SinkId),
    /// Nobody has a stream of a domain open any more.
    StreamClosed(String, String),
}

/// A session as reports show it.
#[derive(Debug, Clone)]
pub struct Session {
    /// Its identity.
    pub id: SessionId,
    /// The application's name.
    pub app: String,
    /// The library's name and version.
    pub library: String,
    /// The domain it joined.
    pub domain: String,
    /// Who it is.
    pub credentials: Credentials,
    streams: BTreeMap<u32, String>,
    /// The same by name.
    open: HashMap<String, Open>,
    /// The streams that it opened under `strict`.
    strict: BTreeSet<String>,
    next_stream: u32,
    sources: BTreeMap<Epoch, (String, u64)>,
    sinks: BTreeMap<SinkId, (String, u64)>,
    claims: HashMap<SessionId, PairToken>,
    /// What its streams get towards other hosts, as it was told last.
    effective: BTreeMap<(String, String), EffectiveQos>,
    /// Whether it is the runtime's own, for the sources and sinks of other hosts.
    pub(crate) network: bool,
}

impl Session {
    /// One that has nothing yet.
    fn new(id: SessionId, app: String, library: String, domain: &str, credentials: Credentials) -> Self {
        Self {
            id,
            app,
            library,
            domain: domain.to_owned(),
            credentials,
            streams: BTreeMap::new(),
            open: HashMap::new(),
            strict: BTreeSet::new(),
            next_stream: 1,
            sources: BTreeMap::new(),
            sinks: BTreeMap::new(),
            claims: HashMap::new(),
            effective: BTreeMap::new(),
            network: false,
        }
    }

    /// How many sources and sinks it has.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        self.sources.len() + self.sinks.len()
    }

    /// How many streams it has open.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// The number of a stream that it has open.
    fn number(&self, stream: &str) -> Option<u32> {
        self.open.get(stream).map(|open| open.number)
    }

    /// Changes what it has in a stream that it has open.
    fn within(&mut self, stream: &str, change: impl FnOnce(&mut Open) -> bool) {
        self.open.get_mut(stream).map(change);
    }
}

/// A stream that a session has open.
#[derive(Debug, Clone, Default)]
struct Open {
    number: u32,
    sources: BTreeSet<Epoch>,
    sinks: BTreeSet<SinkId>,
}

/// Both ends of a flow, each with the connection of its session.
type Ends = ((Epoch, Conn), (SinkId, Conn));

/// A channel as reports show it.
#[derive(Debug, Clone, Default)]
pub struct Channel {
    /// Its name, if it was opened by one.
    pub name: Option<String>,
    /// Its sources and the connections of their sessions.
    pub sources: BTreeMap<Epoch, Conn>,
    /// Its sinks, the connections of their sessions, and whether each is an observer.
    pub sinks: BTreeMap<SinkId, (Conn, bool)>,
}

/// A stream as reports show it.
#[derive(Debug, Clone)]
pub struct Stream {
    /// What it asks for.
    pub qos: Qos,
    /// This host's ceiling.
    pub ceiling: EffectiveQos,
    /// How many sessions have it open.
    pub sessions: usize,
    /// Its channels by id.
    pub channels: BTreeMap<u64, Channel>,
}

/// What was refused or went wrong, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// Sessions that were taken in.
    pub sessions_opened: u64,
    /// Sessions that ended without a goodbye.
    pub sessions_lost: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Connections that broke the protocol.
    pub protocol_errors: u64,
    /// Flows that were matched.
    pub flows_matched: u64,
    /// Pairs that were made.
    pub pairs_made: u64,
    /// Pairs that both ends brought back after a restart.
    pub pairs_resumed: u64,
}

type Refusal = (Code, String);

/// The state.
#[derive(Debug)]
pub struct Core {
    config: Config,
    host: String,
    /// Sessions by connection.
    pub sessions: BTreeMap<Conn, Session>,
    /// Streams by domain and name.
    pub streams: BTreeMap<(String, String), Stream>,
    /// What was counted.
    pub tally: Tally,
    pairs: HashMap<(SessionId, SessionId), PairToken>,
    actions: Vec<Action>,
}

fn refusal<T>(code: Code, text: impl Into<String>) -> Result<T, Refusal> {
    Err((code, text.into()))
}

/// The domain and the name of a stream.
type StreamKey = (String, String);

fn ordered(a: SessionId, b: SessionId) -> (SessionId, SessionId) {
    if a <= b { (a, b) } else { (b, a) }
}

impl Core {
    /// An empty runtime.
    #[must_use]
    pub fn new(config: Config, host: String) -> Self {
        Self {
            config,
            host,
            sessions: BTreeMap::new(),
            streams: BTreeMap::new(),
            tally: Tally::default(),
            pairs: HashMap::new(),
            actions: Vec::new(),
        }
    }

    /// Whether some session has a sink.
    #[must_use]
    pub fn has_sinks(&self) -> bool {
        self.sessions.values().any(|s| !s.network && !s.sinks.is_empty())
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Takes one request of a connection. `may_join` says whether the user may join a domain. Queries are the shell's.
    pub fn request(
        &mut self,
        conn: Conn,
        credentials: Credentials,
        message: ToRuntime,
        may_join: impl Fn(&str) -> bool,
    ) -> Vec<Action> {
        let request = message.request;
        let known = self.sessions.contains_key(&conn);
        let answer = match (message.body, known) {
            (Some(to_runtime::Body::Hello(hello)), false) => self.hello(conn, credentials, hello, may_join),
            (Some(to_runtime::Body::Hello(_)), true) | (None, _) | (Some(_), false) => {
                self.tally.protocol_errors += 1;
                refusal(Code::Protocol, "not in this order: the first message is one hello, and requests have a body")
            }
            (Some(body), true) => self.body(conn, body),
        };
        let failed = answer.is_err();
        let body = answer.unwrap_or_else(|(code, text)| {
            self.tally.refused += 1;
            to_client::Body::Refused(control::Refused { code: code.number(), text })
        });
        let goodbye = matches!(body, to_client::Body::Done(_)) && !self.sessions.contains_key(&conn);
        self.send(conn, request, body);
        if goodbye || (failed && !self.sessions.contains_key(&conn)) {
            self.actions.push(Action::Close(conn));
        }
        std::mem::take(&mut self.actions)
    }

    fn send(&mut self, conn: Conn, request: u64, body: to_client::Body) {
        self.actions.push(Action::Send(conn, ToClient { request, body: Some(body) }));
    }

    fn body(&mut self, conn: Conn, body: to_runtime::Body) -> Result<to_client::Body, Refusal> {
        let done = to_client::Body::Done(control::Done {});
        match body {
            to_runtime::Body::OpenStream(open) => self.open_stream(conn, &open),
            to_runtime::Body::OpenSource(open) => {
                let answer = self.open_source(conn, &open);
                answer.inspect_err(|_| self.close_unused(conn, open.stream))
            }
            to_runtime::Body::OpenSink(open) => {
                let answer = self.open_sink(conn, &open);
                answer.inspect_err(|_| self.close_unused(conn, open.stream))
            }
            to_runtime::Body::CloseStream(close) => self.close_stream(conn, close.stream).map(|()| done),
            to_runtime::Body::CloseSource(close) => {
                let epoch = Epoch::from_bytes(&close.epoch).ok_or((Code::InvalidArgument, "no epoch".to_owned()))?;
                self.close_source(conn, epoch);
                Ok(done)
            }
            to_runtime::Body::CloseSink(close) => {
                let sink = SinkId::from_bytes(&close.sink).ok_or((Code::InvalidArgument, "no sink".to_owned()))?;
                self.close_sink(conn, sink);
                Ok(done)
            }
            to_runtime::Body::Goodbye(_) => {
                self.forget(conn);
                Ok(done)
            }
            to_runtime::Body::Query(query) => {
                refusal(Code::InvalidArgument, format!("no report `{}`: there are status and doctor", query.what))
            }
            to_runtime::Body::Hello(_) => refusal(Code::Protocol, "a second hello"),
            to_runtime::Body::Capture(_) => refusal(Code::NotFound, "there is nothing to capture in a session"),
            to_runtime::Body::Rebind(_) => refusal(Code::NotFound, "there is nothing to move in a session"),
        }
    }

    fn hello(
        &mut self,
        conn: Conn,
        credentials: Credentials,
        hello: control::Hello,
        may_join: impl Fn(&str) -> bool,
    ) -> Result<to_client::Body, Refusal> {
        let quota = self.config.quota.clone();
        if hello.protocol_min > PROTOCOL || hello.protocol_max < PROTOCOL {
            let text =
                format!("the client speaks {} to {}, this runtime {PROTOCOL}", hello.protocol_min, hello.protocol_max);
            return refusal(Code::VersionMismatch, text);
        }
        let domain = if hello.domain.is_empty() { crate::config::DEFAULT_DOMAIN } else { hello.domain.as_str() };
        if !valid_name(&hello.app) {
            return refusal(Code::InvalidName, "the application's name");
        }
        // It is shown to people, too.
        if !hello.library.is_empty() && !valid_name(&hello.library) {
            return refusal(Code::InvalidName, "the library's name and version");
        }
        // One text for both, so that nobody learns which domains there are.
        if !self.config.domains().contains_key(domain) || !may_join(domain) {
            return refusal(Code::NotPermitted, format!("user {} and domain `{domain}`", credentials.uid));
        }
        let Some(id) = SessionId::from_bytes(&hello.session) else {
            return refusal(Code::InvalidArgument, "a session without identity");
        };
        if self.sessions.values().any(|s| s.id == id) {
            return refusal(Code::IdentityTaken, format!("session {id:?}"));
        }
        let of_user = self.sessions.values().filter(|s| !s.network && s.credentials.uid == credentials.uid).count();
        if self.sessions.values().filter(|s| !s.network).count() >= quota.sessions as usize
            || of_user >= quota.sessions_per_user as usize
        {
            let text =
                format!("quota.sessions = {}, quota.sessions_per_user = {}", quota.sessions, quota.sessions_per_user);
            return refusal(Code::QuotaExceeded, text);
        }
        let claims = hello
            .pairs
            .iter()
            .filter_map(|p| Some((SessionId::from_bytes(&p.peer)?, PairToken::from_bytes(&p.token)?)));
        let mut session = Session::new(id, hello.app.clone(), hello.library.clone(), domain, credentials);
        session.claims = claims.take(quota.sessions as usize).collect();
        let domain = session.domain.clone();
        self.sessions.insert(conn, session);
        self.tally.sessions_opened += 1;
        Ok(to_client::Body::Welcome(control::Welcome {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            domain,
            host: self.host.clone(),
            limits: Some(control::Limits {
                memory_bytes: quota.memory_mib_per_session << 20,
                streams: quota.streams_per_session,
                endpoints: quota.endpoints_per_session,
                link_entries: quota.link_entries,
                message_bytes: quota.message_mib << 20,
                huge_pages: self.config.memory.huge_pages,
                patience_ms: u32::try_from(self.config.network.as_ref().map_or(0, |n| n.patience_ms.max(1)))
                    .unwrap_or(u32::MAX),
            }),
        }))
    }

    fn open_stream(&mut self, conn: Conn, open: &control::OpenStream) -> Result<to_client::Body, Refusal> {
        let limit = self.config.quota.streams_per_session as usize;
        let qos = open.qos.unwrap_or_default();
        let session = self.sessions.get_mut(&conn).ok_or((Code::Closed, String::new()))?;
        if !qos.is_known() {
            return refusal(Code::InvalidArgument, "a QoS value that this runtime does not know");
        }
        let name = if open.name.is_empty() { qos.unnamed_stream() } else { open.name.clone() };
        if !valid_name(&name) {
            return refusal(Code::InvalidName, format!("stream `{}`", name.escape_debug()));
        }
        if name.starts_with("qos:") && name != qos.unnamed_stream() {
            return refusal(Code::InvalidName, format!("`{name}`: names with `qos:` are those of unnamed streams"));
        }
        let ceiling = policy::local(qos);
        if open.strict && !ceiling.reasons.is_empty() {
            return refusal(Code::QosUnavailable, ceiling.reasons.join("; "));
        }
        let key = (session.domain.clone(), name.clone());
        if let Some(stream) = self.streams.get(&key).filter(|s| s.qos != qos) {
            let text = format!("`{name}` is open with `{}`, asked for `{}`", stream.qos.canonical(), qos.canonical());
            return refusal(Code::QosConflict, text);
        }
        let number = if let Some(number) = session.number(&name) {
            number
        } else {
            if session.streams.len() >= limit && !session.network {
                return refusal(Code::QuotaExceeded, format!("quota.streams_per_session = {limit}"));
            }
            let number = session.next_stream;
            session.next_stream += 1;
            session.streams.insert(number, name.clone());
            session.open.insert(name.clone(), Open { number, ..Open::default() });
            let fresh = || Stream { qos, ceiling: ceiling.clone(), sessions: 0, channels: BTreeMap::new() };
            self.streams.entry(key).or_insert_with(fresh).sessions += 1;
            number
        };
        if open.strict {
            session.strict.insert(name.clone());
        }
        Ok(to_client::Body::StreamOpened(control::StreamOpened { stream: number, name, ceiling: Some(ceiling) }))
    }

    /// The key of a channel's stream, its id, and its name if it has one; refuses two names with one id.
    fn channel(
        &self,
        conn: Conn,
        stream: u32,
        channel: Option<&control::Channel>,
    ) -> Result<(StreamKey, u64, Option<String>), Refusal> {
        let session = self.sessions.get(&conn).ok_or((Code::Closed, String::new()))?;
        let name = session.streams.get(&stream).ok_or((Code::NotFound, format!("stream number {stream}")))?;
        let key = (session.domain.clone(), name.clone());
        let (id, wanted) = match channel {
            Some(control::Channel { name: Some(n), id: None }) if valid_name(n) => {
                (channel_id(&key.0, &key.1, n).0, Some(n.clone()))
            }
            Some(control::Channel { name: Some(n), id: None }) => {
                return refusal(Code::InvalidName, format!("channel `{}`", n.escape_debug()));
            }
            Some(control::Channel { name: None, id: Some(id) }) => (*id, None),
            _ => return refusal(Code::InvalidArgument, "a channel has a name or an id, and not both"),
        };
        let known = self.streams.get(&key).and_then(|s| s.channels.get(&id));
        if let Some(known) = known.filter(|c| c.name != wanted) {
            let text = format!("id {id:016x} belongs to {:?}, asked for {wanted:?}", known.name);
            return refusal(Code::ChannelIdTaken, text);
        }
        Ok((key, id, wanted))
    }

    /// The session of a new source or sink, what it has in that one's stream, and the channel, which comes to be with its first. After
    /// this nothing is refused: an empty channel would be nobody's to close.
    fn enter(
        &mut self,
        conn: Conn,
        key: &StreamKey,
        id: u64,
        name: Option<String>,
    ) -> Result<(&mut Session, &mut Channel), Refusal> {
        let limit = self.config.quota.endpoints_per_session as usize;
        let session = self.sessions.get_mut(&conn).ok_or((Code::Closed, String::new()))?;
        if session.endpoints() >= limit && !session.network {
            return refusal(Code::QuotaExceeded, format!("quota.endpoints_per_session = {limit}"));
        }
        let stream = self.streams.get_mut(key).ok_or((Code::NotFound, "the stream".to_owned()))?;
        Ok((session, stream.channels.entry(id).or_insert_with(|| Channel { name, ..Channel::default() })))
    }

    fn open_source(&mut self, conn: Conn, open: &control::OpenSource) -> Result<to_client::Body, Refusal> {
        let epoch = Epoch::from_bytes(&open.epoch).ok_or((Code::InvalidArgument, "no epoch".to_owned()))?;
        if self.sessions.iter().any(|(c, s)| *c != conn && s.sources.contains_key(&epoch)) {
            return refusal(Code::IdentityTaken, format!("{epoch:?}"));
        }
        let (key, id, name) = self.channel(conn, open.stream, open.channel.as_ref())?;
        // Opened again by its own session: it reconnected while the application's request was waiting.
        if let Some((stream, channel)) = self.sessions.get(&conn).and_then(|s| s.sources.get(&epoch)) {
            if (stream, *channel) != (&key.1, id) {
                return refusal(Code::IdentityTaken, format!("{epoch:?}"));
            }
            let there = self.streams.get(&key).and_then(|s| s.channels.get(&id)).map_or(0, |c| c.sinks.len());
            let flows = u32::try_from(there).unwrap_or(u32::MAX);
            return Ok(to_client::Body::SourceOpened(control::SourceOpened { channel: id, flows }));
        }
        let (session, channel) = self.enter(conn, &key, id, name)?;
        session.sources.insert(epoch, (key.1.clone(), id));
        session.within(&key.1, |open| open.sources.insert(epoch));
        channel.sources.insert(epoch, conn);
        let sinks: Vec<_> = channel.sinks.iter().map(|(s, (c, o))| (*s, *c, *o)).collect();
        for (sink, other, observer) in &sinks {
            self.match_flow(&key.1, id, (epoch, conn), (*sink, *other), *observer);
        }
        let flows = u32::try_from(sinks.len()).unwrap_or(u32::MAX);
        Ok(to_client::Body::SourceOpened(control::SourceOpened { channel: id, flows }))
    }

    fn open_sink(&mut self, conn: Conn, open: &control::OpenSink) -> Result<to_client::Body, Refusal> {
        let sink = SinkId::from_bytes(&open.sink).ok_or((Code::InvalidArgument, "no sink".to_owned()))?;
        if self.sessions.iter().any(|(c, s)| *c != conn && s.sinks.contains_key(&sink)) {
            return refusal(Code::IdentityTaken, format!("{sink:?}"));
        }
        let (key, id, name) = self.channel(conn, open.stream, open.channel.as_ref())?;
        // Opened again by its own session: it reconnected while the application's request was waiting.
        if let Some((stream, channel)) = self.sessions.get(&conn).and_then(|s| s.sinks.get(&sink)) {
            if (stream, *channel) != (&key.1, id) {
                return refusal(Code::IdentityTaken, format!("{sink:?}"));
            }
            let there = self.streams.get(&key).and_then(|s| s.channels.get(&id)).map_or(0, |c| c.sources.len());
            let flows = u32::try_from(there).unwrap_or(u32::MAX);
            return Ok(to_client::Body::SinkOpened(control::SinkOpened { channel: id, flows }));
        }
        let (session, channel) = self.enter(conn, &key, id, name)?;
        session.sinks.insert(sink, (key.1.clone(), id));
        session.within(&key.1, |open| open.sinks.insert(sink));
        channel.sinks.insert(sink, (conn, open.observer));
        let sources: Vec<_> = channel.sources.iter().map(|(e, c)| (*e, *c)).collect();
        self.announce(conn, sink);
        for source in &sources {
            self.match_flow(&key.1, id, *source, (sink, conn), open.observer);
        }
        let flows = u32::try_from(sources.len()).unwrap_or(u32::MAX);
        Ok(to_client::Body::SinkOpened(control::SinkOpened { channel: id, flows }))
    }

    fn match_flow(&mut self, stream: &str, channel: u64, source: (Epoch, Conn), sink: (SinkId, Conn), observer: bool) {
        // What comes from one host is not sent on to another.
        if [source.1, sink.1].iter().all(|c| self.is_network(*c)) {
            return;
        }
        self.ensure_pair(source.1, sink.1);
        self.tally.flows_matched += 1;
        let mut ends = [(source.1, sink.1, true), (sink.1, source.1, false)];
        if self.is_network(sink.1) {
            // It hears first which flows a source's session may open: that can say so as soon as it is told.
            ends.reverse();
        }
        for (to, peer, producer) in ends {
            let (Some(me), Some(peer)) = (self.sessions.get(&to), self.sessions.get(&peer)) else { continue };
            let flow = control::Flow {
                stream: me.number(stream).unwrap_or(0),
                channel,
                epoch: source.0.to_bytes(),
                sink: sink.0.to_bytes(),
                peer: peer.id.to_bytes(),
                producer,
                observer,
            };
            self.send(to, 0, to_client::Body::FlowAdded(flow));
        }
    }

    /// Sees to it that two sessions share a socket pair: one that both still have, or a new one.
    fn ensure_pair(&mut self, a: Conn, b: Conn) {
        let (Some(one), Some(two)) = (self.sessions.get(&a), self.sessions.get(&b)) else { return };
        let key = ordered(one.id, two.id);
        if self.pairs.contains_key(&key) {
            return;
        }
        if let Some(token) = one.claims.get(&two.id).filter(|t| two.claims.get(&one.id) == Some(t)) {
            self.pairs.insert(key, *token);
            self.tally.pairs_resumed += 1;
            return;
        }
        let token = PairToken::random();
        let trust = self.config.domains().get(&one.domain).map_or(Trust::None, |d| d.trust);
        let trusted = match trust {
            Trust::None => false,
            Trust::SameUser if one.network || two.network => true,
            Trust::SameUser => one.credentials.uid == two.credentials.uid,
            Trust::All => true,
        };
        let tell = |peer: &Session, initiator| {
            let body = to_client::Body::Pair(control::Pair {
                peer: peer.id.to_bytes(),
                token: token.to_bytes(),
                app: peer.app.clone(),
                pid: peer.credentials.pid.unwrap_or(0),
                uid: peer.credentials.uid,
                initiator,
                trusted,
                network: peer.network,
            });
            ToClient { request: 0, body: Some(body) }
        };
        let action = Action::Pair(a, tell(two, true), b, tell(one, false));
        // Who comes anew alone has the pair still, and so has the other. The network's session drops what it had of who comes anew.
        if !one.network && !two.network {
            let (one, two) = (one.id, two.id);
            self.claim(a, two, token);
            self.claim(b, one, token);
        }
        self.pairs.insert(key, token);
        self.tally.pairs_made += 1;
        self.actions.push(action);
    }

    /// Notes that a session has a pair with another.
    fn claim(&mut self, conn: Conn, other: SessionId, token: PairToken) {
        let most = self.config.quota.sessions as usize;
        let there: BTreeSet<SessionId> = match self.sessions.get(&conn) {
            Some(session) if session.claims.len() >= most => self.sessions.values().map(|s| s.id).collect(),
            _ => BTreeSet::new(),
        };
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        if session.claims.len() >= most {
            session.claims.retain(|id, _| there.contains(id));
        }
        session.claims.insert(other, token);
    }

    /// Two sessions have no pair though they should: there was no socket for one, or an end of it went for want of something. One of them is
    /// to come anew, and gets another one then.
    pub(crate) fn pair_lost(&mut self, conn: Conn, other: SessionId) -> Option<Action> {
        let one = self.sessions.get(&conn)?;
        let (other, _) = self.sessions.iter().find(|(_, session)| session.id == other)?;
        self.pairs.remove(&ordered(one.id, self.sessions[other].id));
        Some(Action::Close(if one.network { *other } else { conn }))
    }

    /// As [`Self::pair_lost`], of connections.
    pub(crate) fn no_pair(&mut self, a: Conn, b: Conn) -> Option<Action> {
        let other = self.sessions.get(&b)?.id;
        self.pair_lost(a, other)
    }

    fn close_stream(&mut self, conn: Conn, number: u32) -> Result<(), Refusal> {
        let session = self.sessions.get(&conn).ok_or((Code::Closed, String::new()))?;
        let name = session.streams.get(&number).ok_or((Code::NotFound, format!("stream number {number}")))?.clone();
        let Open { sources, sinks, .. } = session.open.get(&name).cloned().unwrap_or_default();
        let key = (session.domain.clone(), name);
        for epoch in sources {
            self.close_source(conn, epoch);
        }
        for sink in sinks {
            self.close_sink(conn, sink);
        }
        self.leave_stream(conn, number, key);
        Ok(())
    }

    /// A session has nothing in a stream, and has it open no more.
    fn leave_stream(&mut self, conn: Conn, number: u32, key: (String, String)) {
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        // The network's session has left it with the last that was in it.
        let Some(name) = session.streams.remove(&number) else { return };
        session.open.remove(&name);
        session.strict.remove(&name);
        session.effective.retain(|(stream, _), _| *stream != name);
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.sessions -= 1;
            if stream.sessions == 0 {
                self.streams.remove(&key);
                self.actions.push(Action::StreamClosed(key.0, key.1));
            }
        }
    }

    /// Closes a stream of the network's session in which nothing is: other hosts say what they have, and never that they have done
    /// with a stream.
    fn close_unused(&mut self, conn: Conn, number: u32) {
        let Some(session) = self.sessions.get(&conn).filter(|s| s.network) else { return };
        let Some(name) = session.streams.get(&number) else { return };
        if session.open.get(name).is_some_and(|open| open.sources.is_empty() && open.sinks.is_empty()) {
            let key = (session.domain.clone(), name.clone());
            self.leave_stream(conn, number, key);
        }
    }

    fn close_source(&mut self, conn: Conn, epoch: Epoch) {
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        let Some((stream, id)) = session.sources.remove(&epoch) else { return };
        session.within(&stream, |open| open.sources.remove(&epoch));
        let key = (session.domain.clone(), stream);
        let Some(channel) = self.streams.get_mut(&key).and_then(|s| s.channels.get_mut(&id)) else { return };
        channel.sources.remove(&epoch);
        let ends: Vec<_> = channel.sinks.iter().map(|(s, (c, _))| ((epoch, conn), (*s, *c))).collect();
        self.unmatch(&key, id, conn, &ends);
    }

    fn close_sink(&mut self, conn: Conn, sink: SinkId) {
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        let Some((stream, id)) = session.sinks.remove(&sink) else { return };
        session.within(&stream, |open| open.sinks.remove(&sink));
        let key = (session.domain.clone(), stream);
        if !session.network {
            self.actions.push(Action::Withdraw(sink));
        }
        let Some(channel) = self.streams.get_mut(&key).and_then(|s| s.channels.get_mut(&id)) else { return };
        channel.sinks.remove(&sink);
        let ends: Vec<_> = channel.sources.iter().map(|(e, c)| ((*e, *c), (sink, conn))).collect();
        self.unmatch(&key, id, conn, &ends);
    }

    /// Tells those that remain of flows that ended, and forgets a channel that nobody uses, and a stream that the network does not.
    fn unmatch(&mut self, key: &(String, String), id: u64, leaving: Conn, ends: &[Ends]) {
        for ((epoch, source), (sink, sink_conn)) in ends {
            let other = if *source == leaving { *sink_conn } else { *source };
            let (Some(me), Some(peer)) = (self.sessions.get(&other), self.sessions.get(&leaving)) else { continue };
            let flow = control::Flow {
                stream: me.number(&key.1).unwrap_or(0),
                channel: id,
                epoch: epoch.to_bytes(),
                sink: sink.to_bytes(),
                peer: peer.id.to_bytes(),
                producer: *source == other,
                observer: false,
            };
            self.send(other, 0, to_client::Body::FlowRemoved(flow));
        }
        if let Some(stream) = self.streams.get_mut(key)
            && stream.channels.get(&id).is_some_and(|c| c.sources.is_empty() && c.sinks.is_empty())
        {
            stream.channels.remove(&id);
        }
        let number = self.sessions.get(&leaving).and_then(|s| s.number(&key.1));
        number.into_iter().for_each(|number| self.close_unused(leaving, number));
    }

    fn forget(&mut self, conn: Conn) {
        let numbers: Vec<u32> = self.sessions.get(&conn).map_or_else(Vec::new, |s| s.streams.keys().copied().collect());
        for number in numbers {
            let _ = self.close_stream(conn, number);
        }
        if let Some(session) = self.sessions.remove(&conn) {
            self.pairs.retain(|(a, b), _| *a != session.id && *b != session.id);
        }
    }

    /// Adds the runtime's own session of a domain, by which the sources and sinks of other hosts take part.
    pub fn attach(&mut self, conn: Conn, domain: &str, credentials: Credentials) -> SessionId {
        let id = SessionId::random();
        let library = concat!("insaned/", env!("CARGO_PKG_VERSION"));
        let mut session = Session::new(id, "network".into(), library.into(), domain, credentials);
        session.network = true;
        self.sessions.insert(conn, session);
        id
    }

    /// Whether a report for this connection's session names what a domain has: tenants do not see each other; the operator sees all.
    #[must_use]
    pub fn shows(&self, asker: Conn, domain: &str) -> bool {
        self.sessions.get(&asker).is_some_and(|s| s.credentials.is_operator() || s.domain == domain)
    }

    /// Whether a connection is the runtime's own.
    #[must_use]
    pub fn is_network(&self, conn: Conn) -> bool {
        self.sessions.get(&conn).is_some_and(|s| s.network)
    }

    /// Tells a session what a stream that it has open gets towards another host, if that is not what it was told last, and
    /// keeps it until the stream is closed. That it has moved there, and how long that took in microseconds, it is told in any case.
    pub fn effective(
        &mut self,
        session: SessionId,
        stream: &str,
        effective: EffectiveQos,
        moved_us: Option<u64>,
    ) -> Vec<Action> {
        let open = |s: &&mut Session| s.id == session && s.number(stream).is_some();
        let Some(is) = self.sessions.values_mut().find(open) else { return Vec::new() };
        let was = is.effective.insert((stream.to_owned(), effective.peer.clone()), effective.clone());
        if moved_us.is_none() && was.as_ref() == Some(&effective) {
            return Vec::new();
        }
        self.tell(session, stream, effective, moved_us)
    }

    /// No host has this name any more: what streams got towards it is forgotten.
    pub fn forget_host(&mut self, name: &str) {
        self.sessions.values_mut().for_each(|s| s.effective.retain(|(_, peer), _| peer != name));
    }

    fn tell(
        &mut self,
        session: SessionId,
        stream: &str,
        effective: EffectiveQos,
        moved_us: Option<u64>,
    ) -> Vec<Action> {
        let found = self.sessions.iter().find(|(_, s)| s.id == session);
        if let Some((conn, stream)) = found.and_then(|(c, s)| Some((*c, s.number(stream)?))) {
            let changed = control::QosChanged { stream, effective: Some(effective), moved_us };
            self.send(conn, 0, to_client::Body::QosChanged(changed));
        }
        std::mem::take(&mut self.actions)
    }

    /// What a stream gets towards other hosts, in the order of their names. Its sessions get the same, but while it moves.
    pub(crate) fn towards(&self, domain: &str, stream: &str) -> Vec<&EffectiveQos> {
        let mut all: Vec<&EffectiveQos> = Vec::new();
        for session in self.sessions.values().filter(|s| s.domain == domain) {
            for (_, one) in session.effective.iter().filter(|((of, _), _)| of == stream) {
                if !all.contains(&one) {
                    all.push(one);
                }
            }
        }
        all.sort_by(|one, other| one.peer.cmp(&other.peer));
        all
    }

    /// A host refuses a sink of this one, because `strict` was asked for at either end: its session is told, for which reasons.
    pub fn refused(&mut self, sink: SinkId, host: &str, reasons: Vec<String>) -> Vec<Action> {
        let found = self.sessions.values().filter(|s| !s.network).find_map(|s| Some((s, s.sinks.get(&sink)?)));
        let known = found.and_then(|(session, (name, _))| {
            let stream = self.streams.get(&(session.domain.clone(), name.clone()))?;
            // A host of before they were told has kernel UDP alone.
            let serves = || policy::Table::default().choose(stream.qos, (&self.host, host), |_| Standing::NotThere);
            let served =
                EffectiveQos { qos: Some(stream.qos), peer: host.to_owned(), reasons, ..EffectiveQos::default() };
            let served = if served.reasons.is_empty() { serves().effective } else { served };
            Some((session.id, name.clone(), policy::refused(served)?))
        });
        known.map_or_else(Vec::new, |(session, name, effective)| self.tell(session, &name, effective, None))
    }

    /// A host that had refused a sink of this one serves its stream: its session is told what that gets.
    pub fn served(&mut self, sink: SinkId, effective: EffectiveQos) -> Vec<Action> {
        let mut sessions = self.sessions.values().filter(|s| !s.network);
        let found = sessions.find_map(|s| Some((s.id, s.sinks.get(&sink)?.0.clone())));
        found.map_or_else(Vec::new, |(session, stream)| self.tell(session, &stream, effective, None))
    }

    /// The network's session of this connection can have a flow now that it had refused: both ends hear of it as of a new one.
    pub fn match_again(&mut self, conn: Conn, epoch: Epoch, sink: SinkId) -> Vec<Action> {
        let found = self.sessions.get(&conn).and_then(|network| {
            let (stream, id) = network.sinks.get(&sink)?;
            let channel = self.streams.get(&(network.domain.clone(), stream.clone()))?.channels.get(id)?;
            Some((stream.clone(), *id, *channel.sources.get(&epoch)?, channel.sinks.get(&sink)?.1))
        });
        if let Some((stream, id, source, observer)) = found {
            self.match_flow(&stream, id, (epoch, source), (sink, conn), observer);
        }
        std::mem::take(&mut self.actions)
    }

    /// What other hosts are to know of a sink.
    fn announce(&mut self, conn: Conn, sink: SinkId) {
        let Some(session) = self.sessions.get(&conn).filter(|s| !s.network) else { return };
        let Some((stream, id)) = session.sinks.get(&sink) else { return };
        let found = self.streams.get(&(session.domain.clone(), stream.clone()));
        let Some((stream_is, channel)) = found.and_then(|s| Some((s, s.channels.get(id)?))) else { return };
        let announce = host::Announce {
            domain: session.domain.clone(),
            stream: stream.clone(),
            qos: Some(stream_is.qos),
            channel: *id,
            name: channel.name.clone(),
            sink: sink.to_bytes(),
            observer: channel.sinks.get(&sink).is_some_and(|(_, observer)| *observer),
            strict: session.strict.contains(stream),
        };
        self.actions.push(Action::Announce(announce));
    }

    /// A connection has ended without a goodbye, or never said hello.
    pub fn gone(&mut self, conn: Conn) -> Vec<Action> {
        if self.sessions.contains_key(&conn) {
            self.tally.sessions_lost += 1;
            self.forget(conn);
        }
        std::mem::take(&mut self.actions)
    }

    /// Whether nothing at all is left; for tests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.streams.is_empty() && self.pairs.is_empty()
    }
}

#[cfg(test)]
mod tests;
