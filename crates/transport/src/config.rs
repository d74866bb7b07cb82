//! What a path is told.

use std::time::Duration;

use insane_wire::reassembly::Limits;

/// How a path behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// This host, as the directory knows it.
    pub host: u128,
    /// The largest frame to send, in bytes: the datapath's limit to this peer.
    pub frame_limit: usize,
    /// The largest frame that can be received, in bytes.
    pub max_frame: u32,
    /// Whether frames carry a check of their own: on datapaths that do not find changed frames.
    pub checked: bool,
    /// Nobody else uses the link: no congestion response, no pacing.
    pub dedicated: bool,
    /// The connection is lost when nothing has come for so long.
    pub silence: Duration,
    /// Once nothing has come for so long, best-effort messages that wait to be sent are dropped: what will be emitted when the peer
    /// is heard again is worth more. Zero: never. Not below two heartbeats.
    pub stale: Duration,
    /// A sign of life is sent when nothing else was for so long.
    pub heartbeat: Duration,
    /// An acknowledgement is held back at most so long.
    pub ack_delay: Duration,
    /// Messages that a sender may have under way per flow.
    pub credit_messages: u32,
    /// Payload bytes that a sender may have under way per flow. One message is always let through.
    pub credit_bytes: u64,
    /// Messages that may wait per outgoing flow; more are refused.
    pub queue_messages: usize,
    /// Flows that the peer may have open.
    pub flows: usize,
    /// Payloads of up to so many bytes are copied into the frame, so that many share one and the kernel is given one piece of
    /// memory; larger ones are gathered. `u32::MAX` copies the parts of large messages too, which pays where the sender's
    /// and the receiver's cores share no cache (ADR 11).
    pub copy_bytes: u32,
    /// What may be unfinished on the receiving side.
    pub reassembly: Limits,
}

impl Default for Config {
    /// For a shared Ethernet: frames of 1472 bytes, a lost peer noticed after 1.75 s, 16384 messages and 4 MiB of credit.
    fn default() -> Self {
        Self {
            host: 0,
            frame_limit: 1472,
            max_frame: 65_507,
            checked: false,
            dedicated: false,
            silence: Duration::from_millis(1750),
            stale: Duration::from_millis(500),
            heartbeat: Duration::from_millis(250),
            ack_delay: Duration::from_micros(500),
            credit_messages: 16_384,
            credit_bytes: 4 << 20,
            queue_messages: 4096,
            flows: 4096,
            copy_bytes: 2048,
            reassembly: Limits::default(),
        }
    }
}

/// What an outgoing flow carries: the messages of one source to the sinks of one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowSpec {
    /// The domain's number ([`insane_wire::frame::domain_id`]).
    pub domain: u32,
    /// The source.
    pub epoch: u128,
    /// Its channel.
    pub channel: u64,
    /// Whether messages are sent again until the sinks have them.
    pub reliable: bool,
    /// The number at the source of the first message that will be given.
    pub first: u64,
}

/// A message to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outgoing {
    /// The caller's name for the payload; it comes back when the payload is the caller's again.
    pub token: u64,
    /// The payload's length in bytes.
    pub len: u32,
    /// The message's number at its source; rising within a flow.
    pub sequence: u64,
    /// See [`insane_wire::frame::record::Message::joined`].
    pub joined: u8,
    /// From then on it is worthless and not sent any more; `None` for never.
    pub deadline: Option<Duration>,
    /// 0 to 15.
    pub priority: u8,
    /// See [`insane_wire::frame::record::Message::timestamp_ns`].
    pub timestamp_ns: u64,
    /// See [`insane_wire::frame::record::Message::launch_ns`].
    pub launch_ns: u64,
    /// 0 for one message. Otherwise the payload is so many messages that follow each other, as a bundle has them
    /// ([`insane_wire::frame::record::Record::Bundle`]); `sequence` is that of the first, and they have no deadline and no times.
    /// They may travel in several parts, of which each is whole messages, and are released together. None is longer than
    /// [`crate::Path::whole_bytes`]. If frames become smaller meanwhile, one that no longer fits is lost of a best-effort flow; of a
    /// reliable flow the bundle is cut into its messages, which go on one by one.
    pub bundle: u16,
    /// Of a message that was cut out of a bundle: the byte of the bundle with which its payload begins. Otherwise 0.
    pub base: u32,
    /// Whether others follow it that were cut out of the same bundle: the payload is released with the last of them.
    pub more: bool,
}

impl Outgoing {
    /// How many messages it is.
    #[must_use]
    pub fn messages(&self) -> u64 {
        u64::from(self.bundle.max(1))
    }

    /// The token, if the payload is no longer needed once this message is not.
    #[must_use]
    pub fn releases(&self) -> Option<u64> {
        (!self.more).then_some(self.token)
    }
}
