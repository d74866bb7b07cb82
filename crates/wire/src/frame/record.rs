//! Records: the messages, fragments and control pieces in a frame.

use core::ops::Range;

use super::control::{Ack, Ask, Close, Closed, Credit, FlowAck, FlowOpen, Hello};
use super::{ALIGN, FrameError, HEADER_BYTES, MAX_MESSAGE_BYTES, le16, le32, le64, padded};

/// The kinds of records, the first byte of each.
pub mod kind {
    /// The rest of the frame is padding.
    pub const END: u8 = 0;
    /// A whole message.
    pub const MESSAGE: u8 = 1;
    /// A part of a message.
    pub const FRAGMENT: u8 = 2;
    /// Frames that arrived.
    pub const ACK: u8 = 3;
    /// A connection is opened or confirmed.
    pub const HELLO: u8 = 4;
    /// A flow is opened.
    pub const FLOW_OPEN: u8 = 5;
    /// A flow is accepted or refused.
    pub const FLOW_ACK: u8 = 6;
    /// What a flow may send, and what became of what it sent.
    pub const CREDIT: u8 = 7;
    /// What a flow has carried; perhaps its end.
    pub const CLOSE: u8 = 8;
    /// A flow has ended, with its last account.
    pub const CLOSED: u8 = 9;
    /// Nothing but a sign of life; it is acknowledged as every other.
    pub const PING: u8 = 10;
    /// The connection ends: its sender stops.
    pub const BYE: u8 = 11;
    /// Messages of one flow that follow each other.
    pub const BUNDLE: u8 = 12;
    /// The account of a flow at an index is asked for.
    pub const ASK: u8 = 13;
}

/// Flag of a message or fragment: eight bytes of emission time follow its header.
pub const TIMESTAMP: u8 = 1;

/// Flag of a message or fragment: eight bytes of launch time follow (after the emission time, if that is there too).
pub const LAUNCH: u8 = 2;

const MESSAGE_FLAGS: u8 = TIMESTAMP | LAUNCH;

/// The size in bytes of a message's header without its optional fields.
pub const MESSAGE_BYTES: usize = 24;

/// The size in bytes of a fragment's header without its optional fields.
pub const FRAGMENT_BYTES: usize = 32;

/// The size in bytes of a bundle's header.
pub const BUNDLE_BYTES: usize = 32;

/// The highest number that a message can have at its source.
pub const MAX_SEQUENCE: u64 = (1 << 56) - 1;

/// The most messages in one bundle.
pub const MAX_BUNDLE: u16 = 64;

/// The longest message in a bundle, in bytes.
pub const MAX_BUNDLED: u32 = 2048;

/// What is said of a message, whole or in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Message {
    /// The flow, as its sender numbered it in its connection.
    pub flow: u32,
    /// The message's number in its flow, from 0, without gaps: the low half of it.
    pub index: u32,
    /// The message's number at its source, from 1: the lower 56 bits of it.
    pub sequence: u64,
    /// The number, modulo 256, of the sink of the receiving host that the source knew of last when it emitted this: it is for
    /// none that joined later.
    pub joined: u8,
    /// How long the message is still worth something, in microseconds from when its frame was built; 0 for ever.
    pub lifetime_us: u32,
    /// 0 (lowest) to 15.
    pub priority: u8,
    /// When it was emitted, in nanoseconds of the sender's CLOCK_REALTIME; 0 when not asked for.
    pub timestamp_ns: u64,
    /// When it is to be sent or shown, in nanoseconds of TAI; 0 for at once.
    pub launch_ns: u64,
}

impl Message {
    /// Whether nothing is said of it but its priority.
    #[inline]
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.lifetime_us == 0 && self.timestamp_ns == 0 && self.launch_ns == 0
    }

    /// The bytes of the optional fields.
    #[must_use]
    pub const fn option_bytes(&self) -> usize {
        (if self.timestamp_ns != 0 { 8 } else { 0 }) + (if self.launch_ns != 0 { 8 } else { 0 })
    }
}

/// The part of a message that a fragment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Part {
    /// The whole message's length in bytes.
    pub total: u32,
    /// Where the part belongs in the message, in bytes.
    pub offset: u32,
}

/// Where a payload lies in the frame's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The first byte.
    pub at: usize,
    /// How many.
    pub len: usize,
}

impl Place {
    /// The same as a range.
    #[inline]
    #[must_use]
    pub const fn range(self) -> Range<usize> {
        self.at..self.at + self.len
    }
}

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
    /// A whole message.
    Message(Message, Place),
    /// A part of one.
    Fragment(Message, Part, Place),
    /// Several, none of them large, as many as the number says; index and sequence are those of the first. Each is a word of eight
    /// bytes that is its length, then its bytes, then nothing up to the next multiple of eight. They were checked.
    Bundle(Message, u16, Place),
    /// Frames that arrived.
    Ack(Ack<'a>),
    /// A connection is opened or confirmed.
    Hello(Hello),
    /// A flow is opened.
    FlowOpen(FlowOpen),
    /// A flow is accepted or refused.
    FlowAck(FlowAck),
    /// Credit and account of a flow.
    Credit(Credit),
    /// What a flow has carried; perhaps its end.
    Close(Close),
    /// A flow has ended.
    Closed(Closed),
    /// The account of a flow at an index is asked for.
    Ask(Ask),
    /// A sign of life.
    Ping,
    /// The connection ends.
    Bye,
    /// A kind that this version does not know; it is passed over.
    Unknown(u8),
}

/// The records of a frame, in order. After an error there are no more.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    frame: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Records<'a> {
    #[inline]
    pub(super) fn new(frame: &'a [u8], end: usize) -> Self {
        Self { frame, at: HEADER_BYTES, end }
    }

    /// The records in a frame's head of which the payload is elsewhere: reads one message or fragment whose header is here
    /// and whose payload may not be. For datapaths that peek at a header before they read the payload.
    #[must_use]
    pub fn peek(head: &'a [u8]) -> Option<(Message, Option<Part>, Place)> {
        let mut records = Self { frame: head, at: HEADER_BYTES, end: usize::MAX };
        match records.step(true)? {
            Ok(Record::Message(message, place)) => Some((message, None, place)),
            Ok(Record::Fragment(message, part, place)) => Some((message, Some(part), place)),
            _ => None,
        }
    }

    #[inline]
    fn step(&mut self, peek: bool) -> Option<Result<Record<'a>, FrameError>> {
        let start = self.at;
        let rest = self.frame.get(start..self.end.min(self.frame.len()))?;
        // Less than a record's first word is padding.
        let head = rest.first_chunk::<ALIGN>()?;
        let (code, flags, length) = (head[0], head[1], usize::from(le16(head, 2)));
        if code == kind::END {
            return None;
        }
        let fixed = match code {
            kind::MESSAGE => MESSAGE_BYTES,
            kind::FRAGMENT => FRAGMENT_BYTES,
            kind::BUNDLE => BUNDLE_BYTES,
            _ => ALIGN,
        };
        let data = matches!(code, kind::MESSAGE | kind::FRAGMENT | kind::BUNDLE);
        let options = if data { 8 * (flags & MESSAGE_FLAGS).count_ones() as usize } else { 0 };
        let head_bytes = fixed + options;
        let known = if data && peek { head_bytes } else { head_bytes + length };
        let Some(whole) = rest.get(..known) else {
            self.at = usize::MAX;
            return Some(Err(FrameError::Record { kind: code, at: start }));
        };
        self.at = start + padded(head_bytes + length);
        let place = Place { at: start + head_bytes, len: length };
        let read = if data { read_data(whole, fixed, place) } else { read_control(whole) };
        Some(read.ok_or_else(|| {
            self.at = usize::MAX;
            FrameError::Record { kind: code, at: start }
        }))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, FrameError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.step(false)
    }
}

#[inline]
fn read_data(bytes: &[u8], fixed: usize, place: Place) -> Option<Record<'static>> {
    let flags = bytes[1];
    // Bits 2 and 3 are not given out yet.
    if flags & 0x0c != 0 {
        return None;
    }
    let mut message = read_head(bytes);
    let mut at = fixed;
    if flags & TIMESTAMP != 0 {
        message.timestamp_ns = le64(bytes, at);
        at += 8;
    }
    if flags & LAUNCH != 0 {
        message.launch_ns = le64(bytes, at);
    }
    if bytes[0] == kind::MESSAGE {
        return Some(Record::Message(message, place));
    }
    if bytes[0] == kind::BUNDLE {
        let count = le16(bytes, 24);
        // What is said of all of them would have to be said of each.
        let plain = flags & MESSAGE_FLAGS == 0 && message.lifetime_us == 0 && bytes[26..32] == [0; 6];
        let sound = plain && is_bundle(bytes.get(fixed..)?, count);
        return sound.then_some(Record::Bundle(message, count, place));
    }
    let part = Part { total: le32(bytes, 24), offset: le32(bytes, 28) };
    let end = part.offset as usize + place.len;
    let fits = part.total <= MAX_MESSAGE_BYTES && place.len > 0 && end <= part.total as usize;
    fits.then_some(Record::Fragment(message, part, place))
}

/// What the headers of all kinds of data begin with, of at least [`MESSAGE_BYTES`]; without times.
#[inline]
pub(super) fn read_head(bytes: &[u8]) -> Message {
    Message {
        flow: le32(bytes, 4),
        index: le32(bytes, 8),
        lifetime_us: le32(bytes, 12),
        sequence: le64(bytes, 16) & MAX_SEQUENCE,
        joined: bytes[23],
        priority: bytes[1] >> 4,
        timestamp_ns: 0,
        launch_ns: 0,
    }
}

/// Puts a message of at most [`MAX_BUNDLED`] bytes behind those of a bundle.
pub fn bundle_append(bundle: &mut Vec<u8>, payload: &[u8]) {
    debug_assert!(payload.len() <= MAX_BUNDLED as usize);
    bundle.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bundle.extend_from_slice(payload);
    bundle.resize(bundle.len().next_multiple_of(ALIGN), 0);
}

/// Whether bytes are `count` messages as a bundle has them, no more and no less.
#[must_use]
pub fn is_bundle(bytes: &[u8], count: u16) -> bool {
    (1..=MAX_BUNDLE).contains(&count) && bundle_prefix(bytes, bytes.len(), count) == Some((bytes.len(), count))
}

/// How many whole messages from the beginning of a bundle fit into `room` bytes, `most` at most: their bytes and their number.
/// `None`: it is no bundle, or they are fewer than `most` and fill it all the same.
#[must_use]
pub fn bundle_prefix(bytes: &[u8], room: usize, most: u16) -> Option<(usize, u16)> {
    let (mut at, mut count) = (0, 0);
    while count < most {
        let length = bytes.get(at..)?.first_chunk::<ALIGN>().map(|word| u64::from_le_bytes(*word))?;
        let length = usize::try_from(length).ok().filter(|length| *length <= MAX_BUNDLED as usize)?;
        let next = at + ALIGN + padded(length);
        if next > bytes.len() {
            return None;
        }
        if next > room {
            break;
        }
        (at, count) = (next, count + 1);
    }
    Some((at, count))
}

/// The length in bytes of the longest message of a bundle that was checked; 0 of anything else.
#[must_use]
pub fn bundle_longest(bundle: &[u8]) -> u32 {
    let (mut rest, mut longest) = (bundle, 0);
    while let Some((word, behind)) = rest.split_first_chunk::<ALIGN>() {
        let length = u32::try_from(u64::from_le_bytes(*word)).unwrap_or(0);
        longest = longest.max(length);
        rest = behind.get(padded(length as usize)..).unwrap_or(&[]);
    }
    longest
}

/// Where the payloads of a bundle's messages lie, of one that was checked and is at a place of a frame.
pub fn bundled(frame: &[u8], place: Place) -> impl Iterator<Item = Place> + '_ {
    let (mut at, end) = (place.at, place.at + place.len);
    core::iter::from_fn(move || {
        let word = frame.get(at..end)?.first_chunk::<ALIGN>()?;
        let len = usize::try_from(u64::from_le_bytes(*word)).ok()?;
        let payload = Place { at: at + ALIGN, len };
        at = payload.at + padded(len);
        Some(payload)
    })
}

fn read_control(bytes: &[u8]) -> Option<Record<'_>> {
    let (_, body) = bytes.split_at_checked(ALIGN)?;
    let word = le32(bytes, 4);
    Some(match bytes[0] {
        kind::ACK => Record::Ack(Ack::read(bytes[1], word, body)?),
        kind::HELLO => Record::Hello(Hello::read(bytes[1], word, body)?),
        kind::FLOW_OPEN => Record::FlowOpen(FlowOpen::read(bytes[1], word, body)?),
        kind::FLOW_ACK => Record::FlowAck(FlowAck::read(bytes[1], word, body)?),
        kind::CREDIT => Record::Credit(Credit::read(word, body)?),
        kind::CLOSE => Record::Close(Close::read(bytes[1], word, body)?),
        kind::CLOSED => Record::Closed(Closed::read(word, body)?),
        kind::ASK => Record::Ask(Ask::read(word, body)?),
        kind::PING => Record::Ping,
        kind::BYE => Record::Bye,
        other => Record::Unknown(other),
    })
}
