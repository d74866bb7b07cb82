//! Writing frames.

use super::control::{Ask, Close, Closed, Credit, FlowAck, FlowOpen, Hello, MAX_ACK_RANGES, first};
use super::record::{BUNDLE_BYTES, FRAGMENT_BYTES, LAUNCH, MESSAGE_BYTES, Message, Part, TIMESTAMP, kind};
use super::{ALIGN, CHECKED, HEADER_BYTES, Header, MAX_FRAME_BYTES, SEALED, TAG_BYTES, checksum, padded};

/// Writes one frame at the end of a buffer that the caller keeps, so that nothing is allocated once it has grown.
///
/// Each call adds a record if it fits and says whether it did; a record is added whole or not at all. A payload can be
/// written into the buffer with its record, or be left out to be gathered by the datapath from where it lies
/// ([`FrameBuilder::message_apart`], [`FrameBuilder::fragment_apart`]): the frame's length then counts it, the buffer
/// does not hold it. [`FrameBuilder::finish`] must be called; it sets the length.
#[derive(Debug)]
pub struct FrameBuilder<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    header: Header,
    limit: usize,
    /// Payload and padding bytes that count but are not in the buffer.
    apart: usize,
}

impl<'a> FrameBuilder<'a> {
    /// Begins a frame of at most `limit` bytes, the tag included.
    pub fn new(out: &'a mut Vec<u8>, header: Header, limit: usize) -> Self {
        let start = out.len();
        out.extend_from_slice(&header.to_bytes());
        let tag = if header.flags & SEALED == 0 { 0 } else { TAG_BYTES };
        // Limits that are no multiple of 8 would make the padding of the last record exceed them.
        let limit = limit.min(MAX_FRAME_BYTES).saturating_sub(tag) & !7;
        Self { out, start, header, limit, apart: 0 }
    }

    /// The frame's length so far in bytes, without its tag.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.out.len() - self.start + self.apart
    }

    /// Says of which domain the frame's messages are.
    pub fn set_domain(&mut self, domain: u32) {
        self.header.domain = domain;
    }

    /// Whether it holds no record yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == HEADER_BYTES
    }

    /// How many bytes are left for records.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.len())
    }

    /// The most payload bytes that a fragment added now may have, rounded down to 8.
    #[must_use]
    pub fn fragment_room(&self, message: &Message) -> usize {
        self.room().saturating_sub(FRAGMENT_BYTES + message.option_bytes()) & !7
    }

    /// Adds a whole message and copies its payload.
    #[inline]
    pub fn message(&mut self, message: &Message, payload: &[u8]) -> bool {
        let fits = self.data(message, None, payload.len());
        if fits {
            self.out.extend_from_slice(payload);
            self.pad(payload.len());
        }
        fits
    }

    /// Adds a whole message of `len` bytes that `fill` appends to the buffer; if it appends fewer or more, the payload is
    /// made up with zeros or cut.
    #[inline]
    pub fn message_from(&mut self, message: &Message, len: usize, fill: impl FnOnce(&mut Vec<u8>)) -> bool {
        let fits = self.data(message, None, len);
        if fits {
            let end = self.out.len() + len;
            fill(self.out);
            self.out.resize(end, 0);
            self.pad(len);
        }
        fits
    }

    /// Adds a whole message whose `len` bytes of payload the datapath gathers after what is in the buffer. Nothing else can
    /// be added after it, so it ends the frame: its padding is left out.
    #[inline]
    pub fn message_apart(&mut self, message: &Message, len: usize) -> bool {
        let fits = self.data(message, None, len);
        if fits {
            self.apart += len;
            self.limit = 0;
        }
        fits
    }

    /// The most bytes that the messages of a bundle added now may take.
    #[must_use]
    pub fn bundle_room(&self) -> usize {
        self.room().saturating_sub(BUNDLE_BYTES) & !7
    }

    /// Adds `count` messages that follow each other; `message` is of the first, without times. `fill` appends their
    /// `len` bytes as [`Record::Bundle`](super::record::Record::Bundle) has them.
    pub fn bundle_from(&mut self, message: &Message, count: u16, len: usize, fill: impl FnOnce(&mut Vec<u8>)) -> bool {
        let Ok(length) = u16::try_from(len) else { return false };
        if self.room() < BUNDLE_BYTES + padded(len) {
            return false;
        }
        let mut head = [0; BUNDLE_BYTES];
        put_head(&mut head, kind::BUNDLE, message.priority << 4, length, message);
        head[24..26].copy_from_slice(&count.to_le_bytes());
        self.out.extend_from_slice(&head);
        let end = self.out.len() + len;
        fill(self.out);
        self.out.resize(end, 0);
        self.pad(len);
        true
    }

    /// Adds a part of a message and copies its payload.
    pub fn fragment(&mut self, message: &Message, part: Part, payload: &[u8]) -> bool {
        let fits = self.data(message, Some(part), payload.len());
        if fits {
            self.out.extend_from_slice(payload);
            self.pad(payload.len());
        }
        fits
    }

    /// Adds a part of a message of `len` bytes that `fill` appends; see [`FrameBuilder::message_from`].
    pub fn fragment_from(
        &mut self,
        message: &Message,
        part: Part,
        len: usize,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let fits = self.data(message, Some(part), len);
        if fits {
            let end = self.out.len() + len;
            fill(self.out);
            self.out.resize(end, 0);
            self.pad(len);
        }
        fits
    }

    /// Adds a part of a message whose payload the datapath gathers; see [`FrameBuilder::message_apart`].
    #[inline]
    pub fn fragment_apart(&mut self, message: &Message, part: Part, len: usize) -> bool {
        let fits = self.data(message, Some(part), len);
        if fits {
            self.apart += len;
            self.limit = 0;
        }
        fits
    }

    #[inline]
    fn data(&mut self, message: &Message, part: Option<Part>, len: usize) -> bool {
        let fixed = if part.is_some() { FRAGMENT_BYTES } else { MESSAGE_BYTES };
        let Ok(length) = u16::try_from(len) else { return false };
        if self.room() < padded(fixed + message.option_bytes() + len) {
            return false;
        }
        let mut flags = message.priority << 4;
        flags |= if message.timestamp_ns != 0 { TIMESTAMP } else { 0 };
        flags |= if message.launch_ns != 0 { LAUNCH } else { 0 };
        let mut head = [0; FRAGMENT_BYTES];
        let kind = if part.is_some() { kind::FRAGMENT } else { kind::MESSAGE };
        put_head(&mut head, kind, flags, length, message);
        if let Some(part) = part {
            head[24..28].copy_from_slice(&part.total.to_le_bytes());
            head[28..32].copy_from_slice(&part.offset.to_le_bytes());
        }
        self.out.extend_from_slice(&head[..fixed]);
        for option in [message.timestamp_ns, message.launch_ns] {
            if option != 0 {
                self.out.extend_from_slice(&option.to_le_bytes());
            }
        }
        true
    }

    #[inline]
    fn pad(&mut self, len: usize) {
        self.out.resize(self.out.len() + padded(len) - len, 0);
    }

    fn control(&mut self, (word, body): ([u8; 8], impl AsRef<[u8]>)) -> bool {
        let body = body.as_ref();
        let fits = self.room() >= padded(word.len() + body.len());
        if fits {
            self.out.extend_from_slice(&word);
            self.out.extend_from_slice(body);
            self.pad(body.len());
        }
        fits
    }

    /// Adds an acknowledgement: runs of counters, the largest first, each as (first, last), not touching each other. As many
    /// as fit and as are allowed are taken, up to the first that is longer, or further from the next, than can be said: of that run
    /// the newer end is taken. False if there is none, or not even one fits.
    pub fn ack(&mut self, delay_us: u32, ranges: impl IntoIterator<Item = (u64, u64)>) -> bool {
        let fit = self.room().saturating_sub(16) / 8;
        let mut ranges = ranges.into_iter().take(fit.min(MAX_ACK_RANGES)).peekable();
        let Some(&(_, largest)) = ranges.peek() else { return false };
        let at = self.out.len();
        self.out.extend_from_slice(&first(kind::ACK, 0, 0, delay_us));
        self.out.extend_from_slice(&largest.to_le_bytes());
        let (mut runs, mut ends) = (0u8, false);
        while let Some((low, high)) = ranges.next().filter(|_| !ends) {
            let gap = ranges.peek().map_or(0, |&(_, next_high)| low.saturating_sub(next_high).saturating_sub(1));
            let (len, gap) = (u32::try_from(high - low + 1), u32::try_from(gap));
            // What lies behind more than a run or gap can say was said long ago.
            ends = len.is_err() || gap.is_err();
            self.out.extend_from_slice(&len.unwrap_or(u32::MAX).to_le_bytes());
            self.out.extend_from_slice(&if ends { 0 } else { gap.unwrap_or(0) }.to_le_bytes());
            runs += 1;
        }
        self.out[at + 1] = runs;
        let length = 8 + u16::from(runs) * 8;
        self.out[at + 2..at + 4].copy_from_slice(&length.to_le_bytes());
        true
    }

    /// Adds a hello.
    pub fn hello(&mut self, hello: &Hello) -> bool {
        self.control(hello.write())
    }

    /// Adds a flow's opening.
    pub fn flow_open(&mut self, open: &FlowOpen) -> bool {
        self.control(open.write())
    }

    /// Adds the answer to a flow's opening.
    pub fn flow_ack(&mut self, ack: &FlowAck) -> bool {
        self.control(ack.write())
    }

    /// Adds a flow's credit.
    pub fn credit(&mut self, credit: &Credit) -> bool {
        self.control(credit.write())
    }

    /// Adds what a flow has carried, or its end.
    pub fn close(&mut self, close: &Close) -> bool {
        self.control(close.write())
    }

    /// Adds the question for a flow's account at an index.
    pub fn ask(&mut self, ask: &Ask) -> bool {
        self.control(ask.write())
    }

    /// Adds a flow's last account.
    pub fn closed(&mut self, closed: &Closed) -> bool {
        self.control(closed.write())
    }

    /// Adds a sign of life.
    pub fn ping(&mut self) -> bool {
        self.control((first(kind::PING, 0, 0, 0), []))
    }

    /// Adds a sign of life that fills the frame up to `bytes` bytes, a multiple of 8, with zeros: who acknowledges it has taken a frame
    /// of that size.
    pub fn ping_up_to(&mut self, bytes: usize) -> bool {
        let body = bytes.checked_sub(self.len() + ALIGN).filter(|_| bytes <= self.len() + self.room());
        let Some(Ok(length)) = body.map(u16::try_from) else { return false };
        self.out.extend_from_slice(&first(kind::PING, 0, length, 0));
        self.out.resize(self.out.len() + padded(length.into()), 0);
        true
    }

    /// Adds the connection's end.
    pub fn bye(&mut self) -> bool {
        self.control((first(kind::BYE, 0, 0, 0), []))
    }

    /// Ends the frame and returns its length in bytes, with what is gathered, without the tag that sealing adds.
    ///
    /// With [`CHECKED`] in the header and nothing left to gather the check is computed; a payload apart makes it the caller's
    /// business ([`checksum`]). With [`SEALED`] the length says the tag, and the caller seals and appends it.
    pub fn finish(mut self) -> usize {
        let len = self.len();
        let tag = if self.header.flags & SEALED == 0 { 0 } else { TAG_BYTES };
        self.header.length = u16::try_from(len + tag).unwrap_or(u16::MAX);
        let (start, end) = (self.start, self.start + HEADER_BYTES);
        self.out[start..end].copy_from_slice(&self.header.to_bytes());
        if self.header.flags & CHECKED != 0 && self.apart == 0 && tag == 0 {
            self.header.check = checksum(&[&self.out[start..]]);
            self.out[start..end].copy_from_slice(&self.header.to_bytes());
        }
        len
    }

    /// Takes the frame back: the buffer is as it was before [`FrameBuilder::new`].
    pub fn abandon(self) {
        self.out.truncate(self.start);
    }
}

/// What the headers of all kinds of data begin with.
#[inline]
pub(super) fn put_head(head: &mut [u8], kind: u8, flags: u8, length: u16, message: &Message) {
    (head[0], head[1]) = (kind, flags);
    head[2..4].copy_from_slice(&length.to_le_bytes());
    head[4..8].copy_from_slice(&message.flow.to_le_bytes());
    head[8..12].copy_from_slice(&message.index.to_le_bytes());
    head[12..16].copy_from_slice(&message.lifetime_us.to_le_bytes());
    head[16..24].copy_from_slice(&message.sequence.to_le_bytes());
    head[23] = message.joined;
}
