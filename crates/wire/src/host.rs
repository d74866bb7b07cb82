//! What two runtimes say to each other beside their data: over the control flow of their path (reliable, in order, of no domain
//! and of channel 0), one message of the flow each.
//!
//! The first is [`Hello`], then one [`Announce`] per sink of the sender's host, then [`Snapshot`]; after that what changes. A new
//! control flow begins again with [`Hello`]: what it does not repeat is gone.

use crate::qos::Qos;

/// The version of what is said here.
pub const HOST_PROTOCOL: u32 = 1;

/// The domain number and the channel of the control flow.
pub const CONTROL: (u32, u64) = (0, 0);

/// A message of one runtime to another.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ToHost {
    /// What is said.
    #[prost(oneof = "to_host::Body", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub body: Option<to_host::Body>,
}

/// The bodies of [`ToHost`].
pub mod to_host {
    /// What a runtime says to another.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Body {
        /// Who speaks.
        #[prost(message, tag = "1")]
        Hello(super::Hello),
        /// A sink of the sender's host.
        #[prost(message, tag = "2")]
        Announce(super::Announce),
        /// It is closed.
        #[prost(message, tag = "3")]
        Withdraw(super::Withdraw),
        /// All sinks that there were at the hello have been announced.
        #[prost(message, tag = "4")]
        Snapshot(super::Snapshot),
        /// The sender will open a flow for this source; without this the flow is not accepted.
        #[prost(message, tag = "5")]
        Source(super::Source),
        /// A sink joins a source.
        #[prost(message, tag = "6")]
        Ready(super::Ready),
        /// What became of the messages that reached the sender's host.
        #[prost(message, tag = "7")]
        Report(super::Report),
        /// A sink of the receiver's host is refused.
        #[prost(message, tag = "8")]
        Refused(super::Refused),
        /// Of a source that was announced by [`super::Source`] no flow is left.
        #[prost(message, tag = "9")]
        Ended(super::Ended),
        /// How much the sender can hold of what it has not taken yet.
        #[prost(message, tag = "10")]
        Room(super::Room),
    }
}

/// Who speaks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    /// [`HOST_PROTOCOL`].
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// The host's name, for people.
    #[prost(string, tag = "2")]
    pub host: String,
    /// The runtime's version.
    #[prost(string, tag = "3")]
    pub version: String,
    /// The kinds of datapaths that it has: `udp`, `xdp`, `dpdk`.
    #[prost(string, repeated, tag = "4")]
    pub datapaths: Vec<String>,
    /// Drawn at random when the runtime began: another one counts its reports from nothing.
    #[prost(bytes = "vec", tag = "5")]
    pub run: Vec<u8>,
    /// Where it is reached by others than the one by which this is said. A receiver passes over kinds that it has not.
    #[prost(message, repeated, tag = "6")]
    pub reach: Vec<Reach>,
}

/// How much of what the receiver sends over the path by which this is said the sender can hold before it has taken it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Room {
    /// In bytes of frames, each with 832 besides. It is said anew when it changes.
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
}

/// Where a host is reached by one of its datapaths.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Reach {
    /// The kind of the datapath: `xdp`.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// The address there, an IP address and a UDP port: `10.0.0.102:7400`.
    #[prost(string, tag = "2")]
    pub address: String,
}

/// A sink, with everything that must agree with a source's for both to match.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Announce {
    /// The domain's name.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The stream's name.
    #[prost(string, tag = "2")]
    pub stream: String,
    /// What the stream asks for.
    #[prost(message, optional, tag = "3")]
    pub qos: Option<Qos>,
    /// The channel's id.
    #[prost(fixed64, tag = "4")]
    pub channel: u64,
    /// The channel's name, if it has one.
    #[prost(string, optional, tag = "5")]
    pub name: Option<String>,
    /// The sink ([`crate::id::SinkId`]).
    #[prost(bytes = "vec", tag = "6")]
    pub sink: Vec<u8>,
    /// Whether it is an observer.
    #[prost(bool, tag = "7")]
    pub observer: bool,
    /// Whether its stream was opened under `strict`: a host that serves less than its QoS is to refuse it.
    #[prost(bool, tag = "8")]
    pub strict: bool,
}

/// A source of the sender's host wanted a sink of the receiver's, and one of both asks under `strict` for more than the two hosts
/// have in common.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Refused {
    /// The sink.
    #[prost(bytes = "vec", tag = "1")]
    pub sink: Vec<u8>,
    /// What would be served less, and why, in words for operators of both hosts. Empty from hosts that do not say it.
    #[prost(string, repeated, tag = "2")]
    pub reasons: Vec<String>,
}

/// A sink is closed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Withdraw {
    /// The sink.
    #[prost(bytes = "vec", tag = "1")]
    pub sink: Vec<u8>,
}

/// All that there was has been said.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Snapshot {}

/// A source whose messages will come.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Source {
    /// The source ([`crate::id::Epoch`]).
    #[prost(bytes = "vec", tag = "1")]
    pub epoch: Vec<u8>,
    /// The domain's name.
    #[prost(string, tag = "2")]
    pub domain: String,
    /// The stream's name.
    #[prost(string, tag = "3")]
    pub stream: String,
    /// What the stream asks for.
    #[prost(message, optional, tag = "4")]
    pub qos: Option<Qos>,
    /// The channel's id.
    #[prost(fixed64, tag = "5")]
    pub channel: u64,
    /// The channel's name, if it has one.
    #[prost(string, optional, tag = "6")]
    pub name: Option<String>,
    /// The sinks of the receiving host that are attached to it. A reliable flow is accepted once they are again.
    #[prost(bytes = "vec", repeated, tag = "7")]
    pub sinks: Vec<Vec<u8>>,
    /// The flow that carried its messages before is gone with its path: nothing more comes by it, so its end is not to be waited
    /// for.
    #[prost(bool, tag = "8")]
    pub gone: bool,
}

/// The flows of a source have all ended at its host, and it has not heard that each of them was accepted: the receiver may never have
/// seen the opening of one, which will not come any more. [`Source`] begins again.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ended {
    /// The source.
    #[prost(bytes = "vec", tag = "1")]
    pub epoch: Vec<u8>,
}

/// A sink of the sender's host is attached to a source; or, from the source's host, the number under which it joins. The other end
/// repeats that with the number, and only then the source gets to know of the sink.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ready {
    /// The source.
    #[prost(bytes = "vec", tag = "1")]
    pub epoch: Vec<u8>,
    /// The sink.
    #[prost(bytes = "vec", tag = "2")]
    pub sink: Vec<u8>,
    /// Its number among the sinks of its host that joined the source, from 1; 0 while it has none. Messages say it modulo 256.
    #[prost(uint32, tag = "3")]
    pub join: u32,
    /// It comes from the source's host.
    #[prost(bool, tag = "4")]
    pub answer: bool,
}

/// What became, until now, of the messages of one source for one sink. Every number only rises.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Report {
    /// The source.
    #[prost(bytes = "vec", tag = "1")]
    pub epoch: Vec<u8>,
    /// The sink.
    #[prost(bytes = "vec", tag = "2")]
    pub sink: Vec<u8>,
    /// Handed to the application.
    #[prost(uint64, tag = "3")]
    pub delivered: u64,
    /// Past their deadline when the sink took them.
    #[prost(uint64, tag = "4")]
    pub expired: u64,
    /// The sink was closed.
    #[prost(uint64, tag = "5")]
    pub sink_closed: u64,
    /// Refused by the checks of the sink's session.
    #[prost(uint64, tag = "6")]
    pub invalid: u64,
    /// Dropped by the sink's runtime for want of room: the link was full.
    #[prost(uint64, tag = "7")]
    pub sink_full: u64,
    /// The sink's session was lost before it was known.
    #[prost(uint64, tag = "8")]
    pub unconfirmed: u64,
    /// The number under which the sink joined the source ([`Ready::join`]): all of this is about what came for it since then. 0 if it has
    /// none, or is not said: since it was attached.
    #[prost(uint32, tag = "9")]
    pub join: u32,
}
