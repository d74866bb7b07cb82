//! Local choices of each end: no part of the QoS that the two ends agree on.

use std::time::Duration;

/// How an end waits. It is the end's own affair (architecture §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wait {
    /// Never sleep: lowest latency, one whole core.
    Spin,
    /// Spin for a short while, then sleep. The default: at speed while traffic flows, idle when none does.
    #[default]
    Adaptive,
    /// Sleep at once.
    Sleep,
}

/// What a reliable source does with a sink that makes no room before the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// Give that sink up, with an event; the others go on. Of another host all sinks of the source are given up.
    #[default]
    DropSink,
    /// Fail the emit with `SinkFull`; the message may be emitted again.
    Fail,
}

/// Options of a source.
#[derive(Debug, Clone)]
pub struct SourceOptions {
    /// The message size in bytes to have buffers ready for when the source opens. Larger messages are possible; the first of
    /// a new size costs the making of a segment. [`crate::Source::wait_for_room`] waits for room for one of it.
    pub message_bytes: usize,
    /// How long an emit on a reliable stream waits for room. While the runtime of this host is gone it waits for the next as long as
    /// that one's configuration says (`network.patience_ms`, 10 s by default), if that is longer and `when_full` is not
    /// [`WhenFull::Fail`].
    pub deadline: Duration,
    /// What happens after that.
    pub when_full: WhenFull,
    /// Whether each message carries the time at which it was emitted.
    pub timestamps: bool,
    /// The priority of its messages, 0 lowest.
    pub priority: u8,
    /// How an emit or [`crate::Source::buffer`] waits for room.
    pub wait: Wait,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            message_bytes: 1024,
            deadline: Duration::from_secs(1),
            when_full: WhenFull::DropSink,
            timestamps: false,
            priority: 0,
            wait: Wait::Adaptive,
        }
    }
}

/// Options of a sink.
#[derive(Debug, Clone, Default)]
pub struct SinkOptions {
    /// How it waits.
    pub wait: Wait,
    /// An observer sees messages but is never an intended sink and holds nothing up.
    pub observer: bool,
    /// Whether it takes a message of 1024 bytes or more of another host as the list of the places in which its frames arrived, where the
    /// datapath has it so: [`crate::RawMessage::pieces`] are then several, or one if it came in one frame, and nobody has copied them.
    /// Whatever reads several as one (all that does not go by pieces) costs a copy in this process, once a message. Copies are counted:
    /// [`crate::Sink::copies`]. Who keeps such messages keeps the interface's receive memory; beyond this session's share of it messages
    /// come copied together.
    pub scattered: bool,
}
