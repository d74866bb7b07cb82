//! What the two ends tell each other: descriptors one way, returns the other, and what breaks a link.

/// Flag of a descriptor: its payload is in the entry, no slot is used.
pub const FLAG_INLINE: u16 = 1;

/// Flag of a descriptor: the message goes on in the next descriptor of the same source.
pub const FLAG_MORE: u16 = 2;

/// Flag of a descriptor: `deadline_ns` is the time to send at, not the time after which the message is worthless.
pub const FLAG_LAUNCH_TIME: u16 = 4;

/// Flag of a descriptor: `timestamp_ns` is set.
pub const FLAG_TIMESTAMP: u16 = 8;

/// Flag of a descriptor: the slot holds several messages, see [`crate::pack`].
pub const FLAG_PACKED: u16 = 16;

/// Flag of a descriptor, beside [`FLAG_PACKED`]: there are longer messages among them than consumers copy out. No runtime takes
/// such a pack.
pub const FLAG_WIDE: u16 = 32;

/// Flag of a descriptor: the slot holds a list of the places where the message's pieces lie, see [`crate::scatter`]; `length` is
/// that of the list. Only for consumers that have asked for it.
pub const FLAG_SCATTERED: u16 = 64;

/// Flag of a descriptor: the payload was copied by the producer on its way here, or a part of it was. Only said to consumers that
/// count copies.
pub const FLAG_COPIED: u16 = 128;

/// What the producer says of one piece of a message. 64 bytes in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// The channel.
    pub channel: u64,
    /// The message's number at its source, from 1; with `FLAG_PACKED` that of the first.
    pub sequence: u64,
    /// Deadline or launch time, in nanoseconds of CLOCK_MONOTONIC; 0 for none.
    pub deadline_ns: u64,
    /// When it was emitted, in nanoseconds of CLOCK_MONOTONIC; 0 when not asked for.
    pub timestamp_ns: u64,
    /// The slot within its segment.
    pub slot: u32,
    /// Where the piece begins in the slot, in bytes.
    pub offset: u32,
    /// The piece's length in bytes.
    pub length: u32,
    /// The source's number on this link.
    pub source: u32,
    /// The segment's number on this link.
    pub segment: u16,
    /// `FLAG_…` bits.
    pub flags: u16,
    /// The priority, 0 lowest.
    pub priority: u8,
    /// With `FLAG_PACKED`: how many messages there are.
    pub count: u16,
    /// The number of the sink that had joined the source on this link last when this was emitted: it is for none that joined
    /// later. The consumer numbers those that join, from 1, and the low half of that is here.
    pub joined: u16,
}

impl Descriptor {
    /// How many messages it stands for.
    #[inline]
    #[must_use]
    pub fn messages(&self) -> u64 {
        if self.flags & FLAG_PACKED != 0 { self.count.into() } else { 1 }
    }

    /// Whether the sink of that number had joined when this was emitted: if so, it and all that follow are for it. Of numbers
    /// that are more than half of their range apart the later one looks like the earlier.
    #[inline]
    #[must_use]
    pub fn is_after(&self, join: u16) -> bool {
        later_join(join, self.joined) == self.joined
    }
}

/// The later of two numbers of sinks that joined a source, of which the low halves are known.
#[inline]
#[must_use]
pub fn later_join(one: u16, other: u16) -> u16 {
    if other.wrapping_sub(one) < 1 << 15 { other } else { one }
}

/// A return entry's kind; the fourth byte group of its word 1.
pub(super) const RETURN_SLOT: u64 = 1;
pub(super) const RETURN_CREDIT: u64 = 2;

/// What became of a returned message beyond the ordinary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Fate {
    /// What the sink's counts say: delivered.
    #[default]
    AsCounted = 0,
    /// It was past its deadline when the sink took it.
    Expired = 1,
    /// The sink was closed, or refused it.
    Dropped = 2,
}

impl Fate {
    pub(super) const fn from_number(n: u64) -> Self {
        match n {
            1 => Self::Expired,
            2 => Self::Dropped,
            _ => Self::AsCounted,
        }
    }
}

/// Something that came back over the return ring and passed the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// One hold on a slot ended.
    Slot {
        /// The segment on this link.
        segment: u16,
        /// The slot.
        slot: u32,
        /// What became of the message.
        fate: Fate,
        /// The low half of the message's number.
        sequence: u32,
    },
    /// Messages inside descriptors were consumed.
    Credit {
        /// How many.
        count: u32,
        /// What became of it, when `count` is 1.
        fate: Fate,
        /// The low half of the message's number, when `fate` is set.
        sequence: u32,
        /// The source's number on the link, when `fate` is set.
        source: u32,
    },
}

/// The peer broke the link's protocol; the link is to be closed, nothing else is touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// It returned a slot that is none of the segment's.
    #[error("the peer returned slot {slot} of segment {segment}, which does not exist")]
    ForeignSlot {
        /// Segment.
        segment: u16,
        /// Slot.
        slot: u32,
    },
    /// It returned a slot more often than it was given it.
    #[error("the peer returned slot {slot} of segment {segment}, which it does not hold")]
    NotHeld {
        /// Segment.
        segment: u16,
        /// Slot.
        slot: u32,
    },
    /// It returned more credit than is out.
    #[error("the peer returned credit for {count} messages, {out} are out")]
    TooMuchCredit {
        /// Returned.
        count: u32,
        /// Out.
        out: u64,
    },
    /// An entry of an unknown kind.
    #[error("the peer returned an entry of unknown kind {kind}")]
    UnknownKind {
        /// The kind.
        kind: u64,
    },
    /// It published more descriptors than it has credit for.
    #[error("the peer published a descriptor while {owed} were out, and it has credit for {entries}")]
    NoCredit {
        /// Descriptors read and not given back.
        owed: u64,
        /// The credit of the link.
        entries: u32,
    },
    /// It gave a segment back of which messages are out, or that is not there.
    #[error("the peer gave back segment {segment}, of which {out} messages are out, or which is not there")]
    SegmentInUse {
        /// Segment.
        segment: u16,
        /// Messages that were not given back.
        out: u32,
    },
    /// A descriptor that names memory outside of what was mapped.
    #[error(
        "the peer's descriptor names segment {segment} slot {slot} offset {offset} length {length}, which is not there"
    )]
    BadDescriptor {
        /// Segment.
        segment: u16,
        /// Slot.
        slot: u32,
        /// Offset.
        offset: u32,
        /// Length.
        length: u32,
    },
}

impl Broken {
    /// What a descriptor names is not there, or is not what it says.
    #[must_use]
    pub fn of(d: &Descriptor) -> Self {
        Self::BadDescriptor { segment: d.segment, slot: d.slot, offset: d.offset, length: d.length }
    }
}
