//! What two sessions that share links say to each other over their socket pair (`SOCK_SEQPACKET`, one message a packet).
//!
//! The runtime makes the pair, hands one end to each and is not needed after that: new segments, flows and the end of a peer (EOF) all travel here. Messages are in order; nothing here is on the path of data. The *link*
//! number is chosen by the producer and is unique per direction of the pair.

/// A message between the two ends of a pair.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ToPeer {
    /// The link it is about, as the producer numbered it.
    #[prost(uint32, tag = "1")]
    pub link: u32,
    /// What is said.
    #[prost(oneof = "to_peer::Body", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15, 16, 17, 18")]
    pub body: Option<to_peer::Body>,
}

/// The bodies of [`ToPeer`].
pub mod to_peer {
    /// What a peer says. P marks messages of the producer, C of the consumer of the link.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Body {
        /// P: a new link, with one descriptor: the producer's control memory.
        #[prost(message, tag = "2")]
        LinkOffer(super::LinkOffer),
        /// C: taken, with two descriptors: the consumer's control memory and its session's counter memory.
        #[prost(message, tag = "3")]
        LinkAccept(super::LinkAccept),
        /// C: not taken.
        #[prost(message, tag = "4")]
        LinkRefuse(super::Refuse),
        /// P: a segment to map, with one descriptor.
        #[prost(message, tag = "5")]
        SegmentAdd(super::SegmentAdd),
        /// C: mapped; from now on descriptors may name it.
        #[prost(message, tag = "6")]
        SegmentAck(super::SegmentRef),
        /// C: not mapped.
        #[prost(message, tag = "7")]
        SegmentRefuse(super::SegmentRefuse),
        /// P: no descriptor names it any more; unmap it when the last buffer in it is released.
        #[prost(message, tag = "8")]
        SegmentRemove(super::SegmentRef),
        /// P: a flow starts at the next message of the source.
        #[prost(message, tag = "9")]
        FlowOpen(super::FlowOpen),
        /// C: the flow has a counter cell; from the receipt of this on the sink is an intended one.
        #[prost(message, tag = "10")]
        FlowOpened(super::FlowOpened),
        /// C: the sink closes.
        #[prost(message, tag = "11")]
        FlowClose(super::FlowRef),
        /// P: the flow has ended: no descriptor at or after `position` of the delivery ring is for it. Answers
        /// `FlowClose`, or comes unasked when the source closes.
        #[prost(message, tag = "12")]
        FlowClosed(super::FlowClosed),
        /// C: with one descriptor: a socket on which the producer leaves a byte when this consumer sleeps there.
        #[prost(message, tag = "15")]
        Doorbell(super::Empty),
        /// P: how much the link may keep: after it was taken, and again when others take from that.
        #[prost(message, tag = "16")]
        LinkRoom(super::LinkRoom),
        /// P: the link of a reliable source has been full for as long as that waits: which of its sinks hold it up?
        #[prost(message, tag = "17")]
        FlowLag(super::FlowLag),
        /// C: answers `FlowLag`. The flows that it names are then ended by `FlowClosed`.
        #[prost(message, tag = "18")]
        FlowLagging(super::FlowLag),
    }
}

/// Nothing more to say.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

/// A new link.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LinkOffer {
    /// The stream's name.
    #[prost(string, tag = "1")]
    pub stream: String,
    /// Entries of both rings: a power of two.
    #[prost(uint32, tag = "2")]
    pub entries: u32,
    /// Whether the stream is reliable: the producer may sleep for room.
    #[prost(bool, tag = "3")]
    pub reliable: bool,
    /// The version of the layout of control memory.
    #[prost(uint32, tag = "4")]
    pub layout: u32,
}

/// A link was taken.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LinkAccept {
    /// The size in bytes of the consumer's counter memory.
    #[prost(uint64, tag = "1")]
    pub counter_bytes: u64,
}

/// How much a link may keep.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LinkRoom {
    /// Bytes of slots that the consumer may have at a time.
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
}

/// Something was refused.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Refuse {
    /// A [`crate::error::Code`] number.
    #[prost(uint32, tag = "1")]
    pub code: u32,
    /// Why.
    #[prost(string, tag = "2")]
    pub text: String,
}

/// A segment's geometry.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SegmentAdd {
    /// Its number on this link.
    #[prost(uint32, tag = "1")]
    pub segment: u32,
    /// Bytes from one slot to the next.
    #[prost(uint64, tag = "2")]
    pub stride: u64,
    /// How many slots.
    #[prost(uint32, tag = "3")]
    pub slots: u32,
    /// Bytes at the start of each slot that no message uses.
    #[prost(uint32, tag = "4")]
    pub headroom: u32,
    /// The size of the whole memory in bytes.
    #[prost(uint64, tag = "5")]
    pub bytes: u64,
}

/// A segment by number.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SegmentRef {
    /// Its number on this link.
    #[prost(uint32, tag = "1")]
    pub segment: u32,
}

/// A segment was not mapped.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SegmentRefuse {
    /// Its number on this link.
    #[prost(uint32, tag = "1")]
    pub segment: u32,
    /// A [`crate::error::Code`] number.
    #[prost(uint32, tag = "2")]
    pub code: u32,
    /// Why.
    #[prost(string, tag = "3")]
    pub text: String,
}

/// A flow starts.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FlowOpen {
    /// The number of the source in descriptors of this link.
    #[prost(uint32, tag = "1")]
    pub source: u32,
    /// The source's epoch.
    #[prost(bytes = "vec", tag = "2")]
    pub epoch: Vec<u8>,
    /// The sink.
    #[prost(bytes = "vec", tag = "3")]
    pub sink: Vec<u8>,
    /// The channel's id.
    #[prost(fixed64, tag = "4")]
    pub channel: u64,
    /// The source's stream was opened under `strict`: a host that serves less than its QoS is to be refused.
    #[prost(bool, tag = "5")]
    pub strict: bool,
}

/// A flow has its counter cell.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FlowOpened {
    /// The source's number on this link.
    #[prost(uint32, tag = "1")]
    pub source: u32,
    /// The sink.
    #[prost(bytes = "vec", tag = "2")]
    pub sink: Vec<u8>,
    /// The index of the flow's cell in the consumer's counter memory.
    #[prost(uint32, tag = "3")]
    pub cell: u32,
    /// The sink's cursor: the number of the last message of this source that it has had by another link. 0 for none, and from
    /// those who do not keep any.
    #[prost(uint64, tag = "4")]
    pub cursor: u64,
    /// Which of the sinks it is that joined this source on this link, from 1. Descriptors say how many of them the source knew.
    #[prost(uint32, tag = "5")]
    pub join: u32,
    /// The sink takes a message as the list of the slots in which its pieces arrived, where the producer has it so.
    #[prost(bool, tag = "6")]
    pub scattered: bool,
}

/// A flow by its ends.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FlowRef {
    /// The source's number on this link.
    #[prost(uint32, tag = "1")]
    pub source: u32,
    /// The sink.
    #[prost(bytes = "vec", tag = "2")]
    pub sink: Vec<u8>,
}

/// A flow has ended.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FlowClosed {
    /// The source's number on this link.
    #[prost(uint32, tag = "1")]
    pub source: u32,
    /// The sink.
    #[prost(bytes = "vec", tag = "2")]
    pub sink: Vec<u8>,
    /// The first position of the delivery ring that is not for it.
    #[prost(uint64, tag = "3")]
    pub position: u64,
    /// The source gave the sink up: what the sink has not taken is let go where others want the room.
    #[prost(bool, tag = "4")]
    pub given_up: bool,
}

/// Sinks of a source, in the question who holds that up, and in its answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FlowLag {
    /// The source's number on this link.
    #[prost(uint32, tag = "1")]
    pub source: u32,
    /// The question's number, for the answer.
    #[prost(uint32, tag = "2")]
    pub number: u32,
    /// Asked: its sinks that have taken nothing for a while; one of the others that holds the oldest message is slow, and holds up nobody.
    /// Answered: those that hold it up; none: it is to wait on.
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub sinks: Vec<Vec<u8>>,
}
