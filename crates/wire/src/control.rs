//! What a session and its runtime say to each other over their Unix socket (`SOCK_SEQPACKET`, one message a packet).
//!
//! A client sends requests numbered from 1; each is answered once, by the same number. Number 0 marks an event that the
//! runtime pushes. The first request is [`Hello`]. After a restart of the runtime the client says `Hello` again with the
//! same session id, opens its streams, sources and sinks again under their old identities and hands in the tokens of
//! the pairs that still live (architecture §3 rule 6); all of that is idempotent within one session.

use crate::qos::{EffectiveQos, Qos};

/// A request of a client.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ToRuntime {
    /// The request's number, from 1.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// What is asked.
    #[prost(oneof = "to_runtime::Body", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12")]
    pub body: Option<to_runtime::Body>,
}

/// The bodies of [`ToRuntime`].
pub mod to_runtime {
    /// What a client asks.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Body {
        /// First message. Travels with one descriptor: the session's counter memory. Answered by `Welcome`.
        #[prost(message, tag = "2")]
        Hello(super::Hello),
        /// Answered by `StreamOpened`.
        #[prost(message, tag = "3")]
        OpenStream(super::OpenStream),
        /// Closes a stream with all its sources and sinks. Answered by `Done`.
        #[prost(message, tag = "4")]
        CloseStream(super::CloseStream),
        /// Answered by `SourceOpened`.
        #[prost(message, tag = "5")]
        OpenSource(super::OpenSource),
        /// Answered by `Done`.
        #[prost(message, tag = "6")]
        CloseSource(super::CloseSource),
        /// Answered by `SinkOpened`.
        #[prost(message, tag = "7")]
        OpenSink(super::OpenSink),
        /// Answered by `Done`.
        #[prost(message, tag = "8")]
        CloseSink(super::CloseSink),
        /// Answered by `Report`.
        #[prost(message, tag = "9")]
        Query(super::Query),
        /// The session ends in good order; the runtime closes the socket. Answered by `Done`.
        #[prost(message, tag = "10")]
        Goodbye(super::Goodbye),
        /// May come without a hello. Travels with one descriptor, a stream socket. Answered by `Done`: from then on a pcapng
        /// capture comes by that socket, and when its other end is shut for writing the capture ends with its statistics.
        #[prost(message, tag = "11")]
        Capture(super::Capture),
        /// May come without a hello. Answered by `Rebound`.
        #[prost(message, tag = "12")]
        Rebind(super::Rebind),
    }
}

/// Opens a session, or takes one up again after a restart of the runtime.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    /// The lowest protocol version the client speaks.
    #[prost(uint32, tag = "1")]
    pub protocol_min: u32,
    /// The highest.
    #[prost(uint32, tag = "2")]
    pub protocol_max: u32,
    /// The application's name, for people: `insane status` shows it.
    #[prost(string, tag = "3")]
    pub app: String,
    /// The library and its version: `rust/0.1.0`.
    #[prost(string, tag = "4")]
    pub library: String,
    /// The domain to join; empty for the runtime's default.
    #[prost(string, tag = "5")]
    pub domain: String,
    /// The session's identity ([`crate::id::SessionId`], 16 bytes).
    #[prost(bytes = "vec", tag = "6")]
    pub session: Vec<u8>,
    /// The pairs that live, after a restart of the runtime.
    #[prost(message, repeated, tag = "7")]
    pub pairs: Vec<PairClaim>,
    /// The size in bytes of the counter memory that travels with this message.
    #[prost(uint64, tag = "8")]
    pub counter_bytes: u64,
}

/// A live pair that a reconnecting client still has. A pair counts as live only when both ends claim one token.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PairClaim {
    /// The peer's session ([`crate::id::SessionId`]).
    #[prost(bytes = "vec", tag = "1")]
    pub peer: Vec<u8>,
    /// The pair's token ([`crate::id::PairToken`]).
    #[prost(bytes = "vec", tag = "2")]
    pub token: Vec<u8>,
}

/// Opens a stream.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OpenStream {
    /// Its name; empty for the name made of the QoS.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What is asked for.
    #[prost(message, optional, tag = "2")]
    pub qos: Option<Qos>,
    /// Refuse rather than downgrade.
    #[prost(bool, tag = "3")]
    pub strict: bool,
}

/// Closes a stream.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CloseStream {
    /// The number from `StreamOpened`.
    #[prost(uint32, tag = "1")]
    pub stream: u32,
}

/// A channel by name or by a plain id; exactly one of both.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Channel {
    /// The name, hashed into an id by [`crate::id::channel_id`].
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// The plain id.
    #[prost(fixed64, optional, tag = "2")]
    pub id: Option<u64>,
}

/// Opens a source.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OpenSource {
    /// The stream's number.
    #[prost(uint32, tag = "1")]
    pub stream: u32,
    /// The channel.
    #[prost(message, optional, tag = "2")]
    pub channel: Option<Channel>,
    /// The source's identity ([`crate::id::Epoch`]).
    #[prost(bytes = "vec", tag = "3")]
    pub epoch: Vec<u8>,
}

/// Closes a source.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CloseSource {
    /// The source's identity.
    #[prost(bytes = "vec", tag = "1")]
    pub epoch: Vec<u8>,
}

/// Opens a sink.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OpenSink {
    /// The stream's number.
    #[prost(uint32, tag = "1")]
    pub stream: u32,
    /// The channel.
    #[prost(message, optional, tag = "2")]
    pub channel: Option<Channel>,
    /// The sink's identity ([`crate::id::SinkId`]).
    #[prost(bytes = "vec", tag = "3")]
    pub sink: Vec<u8>,
    /// An observer is never an intended sink and holds nothing up.
    #[prost(bool, tag = "4")]
    pub observer: bool,
}

/// Closes a sink.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CloseSink {
    /// The sink's identity.
    #[prost(bytes = "vec", tag = "1")]
    pub sink: Vec<u8>,
}

/// Asks for a report.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Query {
    /// `status` (sessions, streams, channels, counters) or `doctor` (what this host can do, near misses of names).
    #[prost(string, tag = "1")]
    pub what: String,
}

/// Captures what goes through a datapath, whichever domain it is of: for root and the runtime's own user only.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Capture {
    /// The kind of the datapath: `udp`, `xdp`, `dpdk`, `plugin`.
    #[prost(string, tag = "1")]
    pub datapath: String,
}

/// Moves streams of this host to another datapath while they run: for root and the runtime's own user only. It holds for what
/// they open later too, until it is asked for otherwise or the runtime ends; where that datapath does not stand, the policy's
/// table holds.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Rebind {
    /// The stream's name; empty for all.
    #[prost(string, tag = "1")]
    pub stream: String,
    /// The name of the host that they go to; empty for all.
    #[prost(string, tag = "2")]
    pub host: String,
    /// The kind of the datapath: `udp`, `xdp`, `dpdk`, `plugin`; empty for what the table says.
    #[prost(string, tag = "3")]
    pub datapath: String,
}

/// What came of a [`Rebind`]. A source has a flow to each host with sinks of its channel.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Rebound {
    /// Flows that are moving now.
    #[prost(uint32, tag = "1")]
    pub moving: u32,
    /// Flows that were where they are to be.
    #[prost(uint32, tag = "2")]
    pub there: u32,
    /// Flows that are not accepted yet, and move when they are.
    #[prost(uint32, tag = "3")]
    pub later: u32,
}

/// Ends a session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Goodbye {}

/// A message of the runtime: an answer, or an event when `request` is 0.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ToClient {
    /// The number of the request that this answers; 0 for an event.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// What is said.
    #[prost(oneof = "to_client::Body", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14")]
    pub body: Option<to_client::Body>,
}

/// The bodies of [`ToClient`].
pub mod to_client {
    /// What the runtime says.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Body {
        /// Answers `Hello`.
        #[prost(message, tag = "2")]
        Welcome(super::Welcome),
        /// Answers any request that was refused.
        #[prost(message, tag = "3")]
        Refused(super::Refused),
        /// Answers requests that have nothing to tell.
        #[prost(message, tag = "4")]
        Done(super::Done),
        /// Answers `OpenStream`.
        #[prost(message, tag = "5")]
        StreamOpened(super::StreamOpened),
        /// Answers `OpenSource`.
        #[prost(message, tag = "6")]
        SourceOpened(super::SourceOpened),
        /// Answers `OpenSink`.
        #[prost(message, tag = "7")]
        SinkOpened(super::SinkOpened),
        /// Answers `Query`.
        #[prost(message, tag = "8")]
        Report(super::Report),
        /// Event: a socket to another session (one descriptor). Precedes the first flow with that session.
        #[prost(message, tag = "9")]
        Pair(super::Pair),
        /// Event: a source and a sink of one channel were matched; sent to both sessions, the source's first.
        #[prost(message, tag = "10")]
        FlowAdded(super::Flow),
        /// Event: one end of a flow was closed or its session is gone; sent to both sessions that remain.
        #[prost(message, tag = "11")]
        FlowRemoved(super::Flow),
        /// Event: the effective QoS of a stream towards a peer changed.
        #[prost(message, tag = "12")]
        QosChanged(super::QosChanged),
        /// Event: the runtime is stopping; local links go on, the client reconnects.
        #[prost(message, tag = "13")]
        Stopping(super::Stopping),
        /// Answers `Rebind`.
        #[prost(message, tag = "14")]
        Rebound(super::Rebound),
    }
}

/// A session is open.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Welcome {
    /// The protocol version to speak.
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// The runtime's version.
    #[prost(string, tag = "2")]
    pub version: String,
    /// The domain that was joined.
    #[prost(string, tag = "3")]
    pub domain: String,
    /// The runtime's name of this host.
    #[prost(string, tag = "4")]
    pub host: String,
    /// What the session may use.
    #[prost(message, optional, tag = "5")]
    pub limits: Option<Limits>,
}

/// What a session may use; the configuration's `[quota]`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Limits {
    /// Bytes of segments the session may own, and the most a peer maps of it.
    #[prost(uint64, tag = "1")]
    pub memory_bytes: u64,
    /// Streams.
    #[prost(uint32, tag = "2")]
    pub streams: u32,
    /// Sources and sinks together.
    #[prost(uint32, tag = "3")]
    pub endpoints: u32,
    /// Entries of each ring of a link: a power of two. It is also the cap on what one link may hold.
    #[prost(uint32, tag = "4")]
    pub link_entries: u32,
    /// The largest message in bytes.
    #[prost(uint64, tag = "5")]
    pub message_bytes: u64,
    /// Whether segments lie on 2 MB huge pages.
    #[prost(bool, tag = "6")]
    pub huge_pages: bool,
    /// How long the ends of reliable streams outlive a runtime or a host that is lost, in milliseconds; 0 from those who do not
    /// say.
    #[prost(uint32, tag = "7")]
    pub patience_ms: u32,
}

/// A request was refused; nothing was changed by it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Refused {
    /// A [`crate::error::Code`] number.
    #[prost(uint32, tag = "1")]
    pub code: u32,
    /// What was wrong with which value, and what to do.
    #[prost(string, tag = "2")]
    pub text: String,
}

/// Done, nothing to tell.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Done {}

/// A stream is open.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StreamOpened {
    /// The stream's number in this session.
    #[prost(uint32, tag = "1")]
    pub stream: u32,
    /// The stream's name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// This host's ceiling.
    #[prost(message, optional, tag = "3")]
    pub ceiling: Option<EffectiveQos>,
}

/// A source is open.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SourceOpened {
    /// The channel's id.
    #[prost(fixed64, tag = "1")]
    pub channel: u64,
    /// How many flows to sinks that exist already were announced (as events before this answer).
    #[prost(uint32, tag = "2")]
    pub flows: u32,
}

/// A sink is open.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SinkOpened {
    /// The channel's id.
    #[prost(fixed64, tag = "1")]
    pub channel: u64,
    /// How many flows from sources that exist already were announced (as events before this answer).
    #[prost(uint32, tag = "2")]
    pub flows: u32,
}

/// A report, as JSON.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Report {
    /// The JSON text. A report that does not fit one message is split; the last part has `more` unset.
    #[prost(string, tag = "1")]
    pub json: String,
    /// More parts follow under the same request number.
    #[prost(bool, tag = "2")]
    pub more: bool,
}

/// A socket to another session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Pair {
    /// The peer's session. It is this session's own id when a session has source and sink of one channel: then both
    /// ends of the socket come, in two events, `initiator` set in the first.
    #[prost(bytes = "vec", tag = "1")]
    pub peer: Vec<u8>,
    /// The pair's token.
    #[prost(bytes = "vec", tag = "2")]
    pub token: Vec<u8>,
    /// The peer application's name.
    #[prost(string, tag = "3")]
    pub app: String,
    /// The peer's process id, as the kernel told the runtime; 0: it cannot tell, the process is in another PID namespace.
    #[prost(uint32, tag = "4")]
    pub pid: u32,
    /// Its user id.
    #[prost(uint32, tag = "5")]
    pub uid: u32,
    /// Whether this end opened first; it only breaks ties.
    #[prost(bool, tag = "6")]
    pub initiator: bool,
    /// Whether the configuration trusts this peer: its payloads may be read as plain slices.
    #[prost(bool, tag = "7")]
    pub trusted: bool,
    /// Whether the peer is the runtime itself, for the sources and sinks of other hosts.
    #[prost(bool, tag = "8")]
    pub network: bool,
}

/// One (source, sink) pair of a channel.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Flow {
    /// The stream's number in the receiving session.
    #[prost(uint32, tag = "1")]
    pub stream: u32,
    /// The channel's id.
    #[prost(fixed64, tag = "2")]
    pub channel: u64,
    /// The source's epoch.
    #[prost(bytes = "vec", tag = "3")]
    pub epoch: Vec<u8>,
    /// The sink's identity.
    #[prost(bytes = "vec", tag = "4")]
    pub sink: Vec<u8>,
    /// The session at the other end.
    #[prost(bytes = "vec", tag = "5")]
    pub peer: Vec<u8>,
    /// Whether the receiving session is the source's.
    #[prost(bool, tag = "6")]
    pub producer: bool,
    /// Whether the sink is an observer.
    #[prost(bool, tag = "7")]
    pub observer: bool,
}

/// The effective QoS of a stream towards a peer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct QosChanged {
    /// The stream's number in the receiving session.
    #[prost(uint32, tag = "1")]
    pub stream: u32,
    /// What is served now.
    #[prost(message, optional, tag = "2")]
    pub effective: Option<EffectiveQos>,
    /// What the receiving session emits on the stream has come to the datapath that is said, for `effective.peer`: how long it was on its
    /// way there at most, in microseconds.
    #[prost(uint64, optional, tag = "3")]
    pub moved_us: Option<u64>,
}

/// The runtime is stopping.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Stopping {
    /// Why, for people.
    #[prost(string, tag = "1")]
    pub reason: String,
}
