//! What clients and the server say to each other, as protocol buffers (ADR 2). Numbers of fields are never used again;
//! unknown fields are passed over.
//!
//! Numbers of this layer only: what the stages are made of is [`crate::value::Value`], whose names and units are those of
//! the pipeline file.

use crate::value::Value;

/// A bearer's name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct BearerId {
    /// The UE's identity in the cell; below 65536.
    #[prost(uint32, tag = "1")]
    pub rnti: u32,
    /// The bearer of the UE; below 256.
    #[prost(uint32, tag = "2")]
    pub drb: u32,
}

impl std::fmt::Display for BearerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bearer {} of RNTI {:#06x}", self.drb, self.rnti)
    }
}

/// Which of the stages a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Stage {
    /// Never sent on purpose: what a missing field reads as.
    Unspecified = 0,
    /// A filter of the classifier, by its id.
    Filter = 1,
    /// The policer of a queue.
    Policer = 2,
    /// A queue.
    Queue = 3,
    /// The scheduler: there is always one, so it can only be modified.
    Scheduler = 4,
    /// The shaper of a queue.
    Shaper = 5,
    /// The pacer.
    Pacer = 6,
    /// What the pipeline as a whole may hold: it can only be modified.
    Limit = 7,
}

/// What is done to a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Action {
    /// Never sent on purpose: what a missing field reads as.
    Unspecified = 0,
    /// It must not be there yet.
    Add = 1,
    /// It must be there. What is given takes the place of all that it was.
    Modify = 2,
    /// It must be there, and nothing may need it.
    Delete = 3,
}

/// One change of one stage.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StageChange {
    /// What is done.
    #[prost(enumeration = "Action", tag = "1")]
    pub action: i32,
    /// To which kind of stage.
    #[prost(enumeration = "Stage", tag = "2")]
    pub stage: i32,
    /// Which: a filter's id, or a queue's for queues, policers and shapers.
    #[prost(uint32, tag = "3")]
    pub id: u32,
    /// What it is to be, as the pipeline file has it; absent for deletions.
    #[prost(message, optional, tag = "4")]
    pub spec: Option<Value>,
    /// Of a deleted queue: its packets are dropped, and not put at the end of queue 0.
    #[prost(bool, tag = "5")]
    pub drop_packets: bool,
    /// Of a deleted queue: who names it forgets it. Otherwise a queue that is named is in use.
    #[prost(bool, tag = "6")]
    pub remove_references: bool,
}

/// A request of a client.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// [`crate::VERSION`].
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Who asks: a random number of its own choice.
    #[prost(fixed64, tag = "2")]
    pub client: u64,
    /// The request's number, from 1. One that is sent again with the same number is done once.
    #[prost(uint64, tag = "3")]
    pub number: u64,
    /// When it was sent, in nanoseconds of the host's CLOCK_MONOTONIC.
    #[prost(fixed64, tag = "4")]
    pub sent_ns: u64,
    /// What is asked.
    #[prost(oneof = "request::Body", tags = "10, 11, 12, 13, 14, 15")]
    pub body: Option<request::Body>,
}

/// The bodies of [`Request`].
pub mod request {
    /// What a client asks.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Body {
        /// Which bearers there are. Answered by `Bearers`.
        #[prost(message, tag = "10")]
        List(super::List),
        /// A pipeline and its state. Answered by `Shown`.
        #[prost(message, tag = "11")]
        Show(super::Show),
        /// Changes of stages, all or none. Answered by `Changed`.
        #[prost(message, tag = "12")]
        Change(super::Change),
        /// A whole pipeline in the place of the one that is there. Answered by `Changed`.
        #[prost(message, tag = "13")]
        Load(super::Load),
        /// Indications from now on, or longer. Answered by `Subscribed`.
        #[prost(message, tag = "14")]
        Subscribe(super::Subscribe),
        /// No more indications. Answered without a body.
        #[prost(message, tag = "15")]
        Unsubscribe(super::Unsubscribe),
    }
}

/// Asks for the bearers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct List {}

/// Asks for a pipeline and its state.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Show {
    /// Whose.
    #[prost(message, optional, tag = "1")]
    pub bearer: Option<BearerId>,
}

/// Asks for changes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Change {
    /// Of whose pipeline.
    #[prost(message, optional, tag = "1")]
    pub bearer: Option<BearerId>,
    /// The changes, in this order.
    #[prost(message, repeated, tag = "2")]
    pub changes: Vec<StageChange>,
    /// Only if the pipeline's generation is this.
    #[prost(uint64, optional, tag = "3")]
    pub generation: Option<u64>,
}

/// Asks for another pipeline.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Load {
    /// In the place of whose.
    #[prost(message, optional, tag = "1")]
    pub bearer: Option<BearerId>,
    /// The pipeline, as its file has it.
    #[prost(message, optional, tag = "2")]
    pub pipeline: Option<Value>,
    /// Packets of queues that it does not have are dropped, and not put at the end of queue 0.
    #[prost(bool, tag = "3")]
    pub drop_packets: bool,
    /// Only if the pipeline's generation is this.
    #[prost(uint64, optional, tag = "4")]
    pub generation: Option<u64>,
}

/// Asks for indications.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Subscribe {
    /// Of these bearers; of all without any.
    #[prost(message, repeated, tag = "1")]
    pub bearers: Vec<BearerId>,
    /// One indication each so many microseconds.
    #[prost(uint32, tag = "2")]
    pub period_us: u32,
    /// How long without renewal, in milliseconds.
    #[prost(uint32, tag = "3")]
    pub lease_ms: u32,
    /// The subscription to renew, with another period or other bearers if so wished; 0 for a new one.
    #[prost(fixed64, tag = "4")]
    pub subscription: u64,
}

/// Ends a subscription.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Unsubscribe {
    /// Which.
    #[prost(fixed64, tag = "1")]
    pub subscription: u64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Outcome {
    /// Done.
    Done = 0,
    /// The versions of both sides do not meet.
    Version = 1,
    /// The request lacks something, or cannot be read.
    Malformed = 2,
    /// There is no such bearer.
    UnknownBearer = 3,
    /// There is no filter, queue, policer, shaper or plug-in of this id or name.
    Unknown = 4,
    /// The id is taken.
    Exists = 5,
    /// Something needs it.
    InUse = 6,
    /// A value is out of range.
    Invalid = 7,
    /// More than there may be.
    TooMany = 8,
    /// The pipeline is of another generation.
    Stale = 9,
    /// This server does not do that.
    Unsupported = 10,
    /// There is no such subscription, or not any more.
    UnknownSubscription = 11,
    /// The data path does not answer.
    Unavailable = 12,
}

impl Outcome {
    /// Its name, the same in Rust, Python and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Version => "version",
            Self::Malformed => "malformed",
            Self::UnknownBearer => "unknown-bearer",
            Self::Unknown => "unknown",
            Self::Exists => "exists",
            Self::InUse => "in-use",
            Self::Invalid => "invalid",
            Self::TooMany => "too-many",
            Self::Stale => "stale",
            Self::Unsupported => "unsupported",
            Self::UnknownSubscription => "unknown-subscription",
            Self::Unavailable => "unavailable",
        }
    }
}
