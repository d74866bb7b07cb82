//! What is counted.

/// What became of the messages of an outgoing flow. Every message that was accepted is in exactly one of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Taken by [`crate::Path::send`].
    pub accepted: u64,
    /// Not sent yet.
    pub waiting: u64,
    /// Sent, and not known yet what became of them.
    pub under_way: u64,
    /// The receiving host has handed them on (best effort), or its sinks have them (reliable).
    pub delivered: u64,
    /// They never arrived there, or not whole; or were not sent, because nothing came from there for long.
    pub lost: u64,
    /// They were dropped there for want of room.
    pub dropped: u64,
    /// Their deadline passed, at either end.
    pub expired: u64,
    /// The connection or the flow ended before it was known what became of them.
    pub unconfirmed: u64,
}

impl Counts {
    /// Whether the accounting law holds.
    #[must_use]
    pub const fn balance(&self) -> bool {
        let ended = self.delivered + self.lost + self.dropped + self.expired + self.unconfirmed;
        self.accepted == self.waiting + self.under_way + ended
    }
}

/// What ended otherwise than delivered of those messages of an outgoing flow that said the same number
/// ([`insane_wire::frame::record::Message::joined`]). The counts are those of [`Counts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    /// That number.
    pub joined: u8,
    /// See [`Counts::lost`].
    pub lost: u64,
    /// See [`Counts::dropped`].
    pub dropped: u64,
    /// See [`Counts::expired`].
    pub expired: u64,
    /// See [`Counts::unconfirmed`].
    pub unconfirmed: u64,
}

/// What a path has counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathStats {
    /// Frames built.
    pub sent_frames: u64,
    /// Frames taken.
    pub received_frames: u64,
    /// Frames of the peer that came twice.
    pub duplicates: u64,
    /// Frames that are not of this connection, and hellos of nobody that is there.
    pub foreign: u64,
    /// Bytes that are no frame.
    pub malformed: u64,
    /// Data of a flow that is not open, data and openings of another domain than their flow.
    pub stray: u64,
    /// Messages of best-effort flows that came after a later one, and were not handed on.
    pub overtaken: u64,
    /// Frames that could not be taken for want of room; they are sent again.
    pub refused: u64,
    /// Frames taken for lost.
    pub lost_frames: u64,
    /// Frames that were sent because no answer came in time.
    pub probes: u64,
    /// Connections established.
    pub connections: u64,
    /// Bytes sent and not acknowledged.
    pub in_flight: u64,
    /// How many bytes may be.
    pub window: u64,
    /// The smoothed round-trip time in microseconds.
    pub rtt_us: u64,
    /// The largest frame that goes to the peer now, in bytes.
    pub frame_bytes: u64,
    /// The largest that the interfaces of both ends take, in bytes. If that is more, frames of that size do not pass, or it is not known yet.
    pub most_frame_bytes: u64,
}
