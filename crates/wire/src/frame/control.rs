//! The records that carry no payload. Each is a first word of eight bytes (kind, flags, length, a 32-bit word) and a body.
//! A body may be longer than this version knows: what is more is passed over.

use super::{ALIGN, le32, le64, record::kind};

/// The most ranges of one acknowledgement.
pub const MAX_ACK_RANGES: usize = 64;

/// Frames that arrived: the largest counter and runs of arrived and missing ones below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack<'a> {
    /// How long the largest was held back before this was said, in microseconds.
    pub delay_us: u32,
    /// The largest counter that arrived.
    pub largest: u64,
    runs: &'a [u8],
}

impl<'a> Ack<'a> {
    pub(super) fn read(runs: u8, delay_us: u32, body: &'a [u8]) -> Option<Self> {
        let runs = body.get(8..8 + usize::from(runs) * 8)?;
        let ack = Self { delay_us, largest: le64(body, 0), runs };
        // A run may not be empty nor reach below the first frame; checked here once, so that reading cannot go wrong.
        let mut low = ack.largest.checked_add(1)?;
        for run in runs.chunks_exact(8) {
            let (len, gap) = (u64::from(le32(run, 0)), u64::from(le32(run, 4)));
            low = (len > 0).then(|| low.checked_sub(len))??;
            if low == 0 {
                return None;
            }
            low = low.saturating_sub(gap);
        }
        (!runs.is_empty() && runs.len() <= MAX_ACK_RANGES * 8).then_some(ack)
    }

    /// The runs of counters that arrived, the largest first, each as (first, last).
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + 'a {
        let mut high = self.largest;
        self.runs.chunks_exact(8).map(move |run| {
            let (len, gap) = (u64::from(le32(run, 0)), u64::from(le32(run, 4)));
            let first = (high + 1).saturating_sub(len);
            let range = (first, high);
            high = first.saturating_sub(gap + 1);
            range
        })
    }
}

/// Opens and confirms a connection. It is repeated until the other side's hello echoes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hello {
    /// The sender's host, as the directory knows it.
    pub host: u128,
    /// Chosen at random by the sender for this connection. Not 0.
    pub incarnation: u64,
    /// The receiver's incarnation, if the sender has heard it; else 0.
    pub echo: u64,
    /// The largest frame that the sender can receive, in bytes.
    pub max_frame: u32,
    /// The sender has taken the receiver's incarnation (`echo`) for its peer; a hello without this is to be answered.
    pub adopted: bool,
}

impl Hello {
    /// What goes into the headers of frames of one direction of a connection: both ends work it out from their incarnations,
    /// so that a frame of an earlier connection of either is never taken for one of this. Never 0.
    #[must_use]
    pub const fn connection(receiver: u64, sender: u64) -> u32 {
        let mixed = (receiver ^ sender.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let folded = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (folded >> 32) as u32 | 1
    }

    pub(super) fn read(flags: u8, word: u32, body: &[u8]) -> Option<Self> {
        let host = body.first_chunk::<16>()?;
        let hello = Self {
            host: u128::from_le_bytes(*host),
            incarnation: le64(body, 16),
            echo: le64(body.get(..32)?, 24),
            max_frame: word,
            adopted: flags & 1 != 0,
        };
        (hello.incarnation != 0 && flags & !1 == 0).then_some(hello)
    }

    pub(super) fn write(&self) -> ([u8; ALIGN], [u8; 32]) {
        let mut body = [0; 32];
        body[..16].copy_from_slice(&self.host.to_le_bytes());
        body[16..24].copy_from_slice(&self.incarnation.to_le_bytes());
        body[24..32].copy_from_slice(&self.echo.to_le_bytes());
        (first(kind::HELLO, u8::from(self.adopted), 32, self.max_frame), body)
    }
}

/// Opens a flow: all messages of one source to the sinks of one host. It is repeated until it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowOpen {
    /// The sender's number for it, not used before in this connection.
    pub flow: u32,
    /// Whether its messages are sent again until they arrive, and handed on in order.
    pub reliable: bool,
    /// The source.
    pub epoch: u128,
    /// Its channel.
    pub channel: u64,
    /// The number at the source of the first message that the flow can carry.
    pub first: u64,
}

impl FlowOpen {
    pub(super) fn read(flags: u8, flow: u32, body: &[u8]) -> Option<Self> {
        let epoch = u128::from_le_bytes(*body.get(..32)?.first_chunk::<16>()?);
        let known = flags & !1 == 0 && epoch != 0;
        known.then(|| Self { flow, reliable: flags & 1 != 0, epoch, channel: le64(body, 16), first: le64(body, 24) })
    }

    pub(super) fn write(&self) -> ([u8; ALIGN], [u8; 32]) {
        let mut body = [0; 32];
        body[..16].copy_from_slice(&self.epoch.to_le_bytes());
        body[16..24].copy_from_slice(&self.channel.to_le_bytes());
        body[24..].copy_from_slice(&self.first.to_le_bytes());
        (first(kind::FLOW_OPEN, u8::from(self.reliable), 32, self.flow), body)
    }
}

/// Answers [`FlowOpen`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowAck {
    /// The flow.
    pub flow: u32,
    /// 0: accepted. Else why not: 1 no such channel or no sink, 2 the domain is not served here, 3 no room, 4 the
    /// source was announced as reliable and the flow is not, or the reverse.
    pub status: u8,
    /// The sinks have everything of this source up to and with this number: resume after it. 0 for nothing.
    pub cursor: u64,
    /// The first index that may not be sent yet.
    pub limit_index: u32,
    /// How many payload bytes the flow may carry in all for now.
    pub limit_bytes: u64,
}

impl FlowAck {
    pub(super) fn read(status: u8, flow: u32, body: &[u8]) -> Option<Self> {
        let body = body.get(..24)?;
        Some(Self { flow, status, cursor: le64(body, 0), limit_index: le32(body, 8), limit_bytes: le64(body, 16) })
    }

    pub(super) fn write(&self) -> ([u8; ALIGN], [u8; 24]) {
        let mut body = [0; 24];
        body[..8].copy_from_slice(&self.cursor.to_le_bytes());
        body[8..12].copy_from_slice(&self.limit_index.to_le_bytes());
        body[16..].copy_from_slice(&self.limit_bytes.to_le_bytes());
        (first(kind::FLOW_ACK, self.status, 24, self.flow), body)
    }
}

/// What became of a flow's messages at the receiving host. Every number only rises; a smaller one is out of date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Account {
    /// The sinks have everything of this source up to and with this number.
    pub cursor: u64,
    /// Messages with a lower index have ended, each in exactly one of the counts below.
    pub settled: u64,
    /// Handed on.
    pub delivered: u64,
    /// Never arrived, or not whole.
    pub lost: u64,
    /// Arrived and dropped for want of room.
    pub dropped: u64,
    /// Arrived after its lifetime.
    pub expired: u64,
}

/// Credit of a flow, and its account so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Credit {
    /// The flow.
    pub flow: u32,
    /// The first index that may not be sent yet.
    pub limit_index: u32,
    /// How many payload bytes the flow may carry in all for now.
    pub limit_bytes: u64,
    /// The account.
    pub account: Account,
}

impl Account {
    fn read(body: &[u8]) -> Self {
        Self {
            cursor: le64(body, 0),
            settled: le64(body, 8),
            delivered: le64(body, 16),
            lost: le64(body, 24),
            dropped: le64(body, 32),
            expired: le64(body, 40),
        }
    }

    fn write(&self, body: &mut [u8]) {
        let words = [self.cursor, self.settled, self.delivered, self.lost, self.dropped, self.expired];
        for (to, word) in body.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }
}

impl Credit {
    pub(super) fn read(flow: u32, body: &[u8]) -> Option<Self> {
        let body = body.get(..64)?;
        let account = Account::read(body);
        Some(Self { flow, limit_index: le32(body, 48), limit_bytes: le64(body, 56), account })
    }

    pub(super) fn write(&self) -> ([u8; ALIGN], [u8; 64]) {
        let mut body = [0; 64];
        self.account.write(&mut body[..48]);
        body[48..52].copy_from_slice(&self.limit_index.to_le_bytes());
        body[56..].copy_from_slice(&self.limit_bytes.to_le_bytes());
        (first(kind::CREDIT, 0, 64, self.flow), body)
    }
}

/// How many messages a flow has carried, so that the receiver knows of those that were lost at the end: when a best-effort
/// flow pauses, and as the last word on any flow, which is repeated until it is acknowledged and answered by [`Closed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Close {
    /// The flow.
    pub flow: u32,
    /// How many messages it carried in all.
    pub end: u64,
    /// There will be no more.
    pub last: bool,
}

impl Close {
    pub(super) fn read(flags: u8, flow: u32, body: &[u8]) -> Option<Self> {
        (flags & !1 == 0).then_some(())?;
        Some(Self { flow, end: le64(body.get(..8)?, 0), last: flags & 1 != 0 })
    }

    pub(super) fn write(&self) -> ([u8; ALIGN], [u8; 8]) {
        (first(kind::CLOSE, u8::from(self.last), 8, self.flow), self.end.to_le_bytes())
    }
}

/// Asks for a best-effort flow's account as it is at an index. The answer is a [`Credit`] that has settled just up to there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ask {
    /// The flow.
    pub flow: u32,
    /// What became of the messages with a lower index; so many were sent.
    pub at: u64,
}

impl Ask {
    pub(super) fn read(flow: u32, body: &[u8]) -> Option<Self> {
        Some(Self { flow, at: le64(body.get(..8)?, 0) })
    }

    pub(super) fn write(&self) -> ([u8; ALIGN], [u8; 8]) {
        (first(kind::ASK, 0, 8, self.flow), self.at.to_le_bytes())
    }
}

/// A flow has ended, with its last account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Closed {
    /// The flow.
    pub flow: u32,
    /// The account: `settled` is all that was carried.
    pub account: Account,
}

impl Closed {
    pub(super) fn read(flow: u32, body: &[u8]) -> Option<Self> {
        Some(Self { flow, account: Account::read(body.get(..48)?) })
    }

    pub(super) fn write(&self) -> ([u8; ALIGN], [u8; 48]) {
        let mut body = [0; 48];
        self.account.write(&mut body);
        (first(kind::CLOSED, 0, 48, self.flow), body)
    }
}

/// A control record's first word.
pub(super) fn first(kind: u8, flags: u8, length: u16, word: u32) -> [u8; ALIGN] {
    let mut out = [kind, flags, 0, 0, 0, 0, 0, 0];
    out[2..4].copy_from_slice(&length.to_le_bytes());
    out[4..].copy_from_slice(&word.to_le_bytes());
    out
}
