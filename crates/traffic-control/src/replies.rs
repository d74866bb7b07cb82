//! What the server says: replies and indications.

use super::messages::BearerId;
use crate::value::Value;

/// The answer to a request. All clients of a server see it; `client` and `number` say whose it is.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Reply {
    /// [`crate::VERSION`].
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Who asked.
    #[prost(fixed64, tag = "2")]
    pub client: u64,
    /// The number of what was asked.
    #[prost(uint64, tag = "3")]
    pub number: u64,
    /// Who answers: a random number that is another one after each start.
    #[prost(fixed64, tag = "4")]
    pub server: u64,
    /// How it ended.
    #[prost(enumeration = "super::messages::Outcome", tag = "5")]
    pub outcome: i32,
    /// Why it was refused, for people; empty when done.
    #[prost(string, tag = "6")]
    pub reason: String,
    /// When the request was taken, and when what it asks for was in force, in nanoseconds of the host's CLOCK_MONOTONIC.
    #[prost(fixed64, tag = "7")]
    pub taken_ns: u64,
    /// As above.
    #[prost(fixed64, tag = "8")]
    pub done_ns: u64,
    /// When the request was sent, as it said itself.
    #[prost(fixed64, tag = "9")]
    pub sent_ns: u64,
    /// What was asked for.
    #[prost(oneof = "reply::Body", tags = "10, 11, 12, 13")]
    pub body: Option<reply::Body>,
}

/// The bodies of [`Reply`].
pub mod reply {
    /// What was asked for.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Body {
        /// The bearers.
        #[prost(message, tag = "10")]
        Bearers(super::Bearers),
        /// A pipeline and its state.
        #[prost(message, boxed, tag = "11")]
        Shown(Box<super::Shown>),
        /// The pipeline after a change.
        #[prost(message, tag = "12")]
        Changed(super::Changed),
        /// A subscription.
        #[prost(message, tag = "13")]
        Subscribed(super::Subscribed),
    }
}

/// The bearers that there are.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Bearers {
    /// Their names.
    #[prost(message, repeated, tag = "1")]
    pub bearers: Vec<BearerId>,
}

/// A pipeline and its state.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Shown {
    /// The pipeline, as its file has it.
    #[prost(message, optional, tag = "1")]
    pub pipeline: Option<Value>,
    /// What is counted.
    #[prost(message, optional, tag = "2")]
    pub state: Option<BearerMessage>,
}

/// A change was made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Changed {
    /// The pipeline's generation now.
    #[prost(uint64, tag = "1")]
    pub generation: u64,
}

/// A subscription was made or renewed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Subscribed {
    /// Its name, for renewals.
    #[prost(fixed64, tag = "1")]
    pub subscription: u64,
    /// The number of the channel on which its indications come: `PREFIX/indication/NUMBER`.
    #[prost(uint32, tag = "2")]
    pub channel: u32,
    /// Its period and lease, as they are.
    #[prost(uint32, tag = "3")]
    pub period_us: u32,
    /// As above, in milliseconds.
    #[prost(uint32, tag = "4")]
    pub lease_ms: u32,
}

/// Statistics at one instant.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Indication {
    /// [`crate::VERSION`].
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Whose it is.
    #[prost(fixed64, tag = "2")]
    pub subscription: u64,
    /// Its number, from 1. One that was dropped has a number too.
    #[prost(uint64, tag = "3")]
    pub number: u64,
    /// Periods that went by without an indication because the server was late.
    #[prost(uint64, tag = "4")]
    pub late: u64,
    /// Indications that the subscriber had no room for.
    #[prost(uint64, tag = "5")]
    pub dropped: u64,
    /// When the statistics were taken, and when they were sent, in nanoseconds of the host's CLOCK_MONOTONIC.
    #[prost(fixed64, tag = "6")]
    pub taken_ns: u64,
    /// As above.
    #[prost(fixed64, tag = "7")]
    pub sent_ns: u64,
    /// The bearers.
    #[prost(message, repeated, tag = "8")]
    pub bearers: Vec<BearerMessage>,
    /// Bearers of the subscription that are not there.
    #[prost(uint32, tag = "9")]
    pub missing: u32,
}

/// A bearer's counts; [`crate::BearerState`] explains them.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BearerMessage {
    /// Whose.
    #[prost(message, optional, tag = "1")]
    pub bearer: Option<BearerId>,
    /// The lab's own time in nanoseconds.
    #[prost(uint64, tag = "2")]
    pub time_ns: u64,
    /// The statistics of the pipeline, in tc's names.
    #[prost(message, optional, tag = "3")]
    pub pipeline: Option<Value>,
    /// Queues and filters that are left out of them.
    #[prost(uint32, tag = "4")]
    pub left_out: u32,
    /// The downlink RLC.
    #[prost(message, optional, tag = "5")]
    pub rlc: Option<Rlc>,
    /// The uplink RLC.
    #[prost(message, optional, tag = "6")]
    pub uplink_rlc: Option<Rlc>,
}

/// The RLC of one bearer and direction, in the names of the RLC service model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct Rlc {
    /// Packets accepted.
    #[prost(uint64, tag = "1")]
    pub rxsdu_pkts: u64,
    /// Packets refused because the buffer was full.
    #[prost(uint64, tag = "2")]
    pub rxsdu_dd_pkts: u64,
    /// Bytes in the buffer.
    #[prost(uint64, tag = "3")]
    pub txbuf_occ_bytes: u64,
    /// Packets in the buffer.
    #[prost(uint64, tag = "4")]
    pub txbuf_occ_pkts: u64,
    /// Packets whose last byte was sent.
    #[prost(uint64, tag = "5")]
    pub txpdu_pkts: u64,
    /// Bytes sent for the first time, without headers.
    #[prost(uint64, tag = "6")]
    pub txpdu_bytes: u64,
    /// Pieces of packets that did not fit a block whole.
    #[prost(uint64, tag = "7")]
    pub txpdu_segmented: u64,
    /// Pieces sent again.
    #[prost(uint64, tag = "8")]
    pub txpdu_retx_pkts: u64,
    /// Sum of the packets' times in the buffer, in nanoseconds.
    #[prost(uint64, tag = "9")]
    pub txpdu_wt_ns: u64,
    /// How long the first packet in the buffer has been there, in nanoseconds.
    #[prost(uint64, tag = "10")]
    pub head_sojourn_ns: u64,
}
