//! Frames that follow each other and differ in their numbers alone: built, and recognised, by what is in the first of them.

use super::build::put_head;
use super::record::{MAX_SEQUENCE, MESSAGE_BYTES, Message, kind, read_head};
use super::{ALIGN, HEADER_BYTES, Header, le64, padded};

/// The bytes before the payload of a frame that carries one whole message without options.
pub const LONE_BYTES: usize = HEADER_BYTES + MESSAGE_BYTES;

/// Begins a frame at the end of `out` that carries the next part of a message, of the same size: as one that was built before, up to
/// its payload (`head`), but for the frame's number and the part's place. The payload is to follow, which must be a multiple of 8
/// bytes long; nothing if `head` is not that of a part.
#[inline]
pub fn next_part(out: &mut Vec<u8>, head: &[u8], counter: u64, offset: u32) {
    let start = begin_alike(out, head, counter);
    put(out, start + 28, &offset.to_le_bytes());
}

/// As [`next_part`], for a frame that carries the next message of a flow, whole.
#[inline]
pub fn next_message(out: &mut Vec<u8>, head: &[u8], counter: u64, index: u32, sequence: u64) {
    let start = begin_alike(out, head, counter);
    put(out, start + 8, &index.to_le_bytes());
    put(out, start + 16, &sequence.to_le_bytes()[..7]);
}

/// Repeats a frame's head with another number; says where its record begins.
#[inline]
fn begin_alike(out: &mut Vec<u8>, head: &[u8], counter: u64) -> usize {
    let start = out.len();
    out.extend_from_slice(head);
    put(out, start + 16, &counter.to_le_bytes());
    start + HEADER_BYTES
}

/// Writes over what is there; nothing if it is not.
#[inline]
fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = out.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// The head of a frame that carries one whole message without options and nothing else, and how many bytes its payload has; `None` of
/// any other, and of one that is sealed or checked. The frame was parsed; what lies behind it is padding.
#[inline]
#[must_use]
pub fn lone_head(frame: &[u8]) -> Option<([u8; LONE_BYTES], usize)> {
    let head = frame.first_chunk::<LONE_BYTES>()?;
    let payload = usize::from(u16::from_le_bytes([head[34], head[35]]));
    let length = usize::from(u16::from_le_bytes([head[4], head[5]]));
    // Neither flags of the frame, nor times.
    let plain = head[2] == 0 && head[32] == kind::MESSAGE && head[33] & 0x0f == 0;
    // Less than a record's first word is padding.
    let alone = (LONE_BYTES + payload..LONE_BYTES + payload + ALIGN).contains(&length);
    (plain && alone && frame.len() >= length).then_some((*head, payload))
}

/// What a head of [`lone_head`]'s says. `None`: no frame begins like that.
#[inline]
#[must_use]
pub fn read_lone(head: &[u8; LONE_BYTES]) -> Option<(Header, Message)> {
    let header = Header::read(head).ok()?;
    Some((header, read_head(&head[HEADER_BYTES..])))
}

/// Writes a frame at the end of `out` that carries one whole message without options and nothing else, as [`FrameBuilder`] would: `fill`
/// appends its `len` bytes of payload, and what it appends fewer or more is made up with zeros or cut. The frame's length in bytes;
/// `None`, with nothing done, if that is above `limit` or the frame another one.
///
/// [`FrameBuilder`]: super::FrameBuilder
#[inline]
pub fn build_lone(
    out: &mut Vec<u8>,
    header: &Header,
    message: &Message,
    (len, limit): (usize, usize),
    fill: impl FnOnce(&mut Vec<u8>),
) -> Option<usize> {
    let all = LONE_BYTES + padded(len);
    let (length, payload) = (u16::try_from(all).ok()?, u16::try_from(len).ok()?);
    if all > limit || header.flags != 0 || message.option_bytes() != 0 {
        return None;
    }
    let mut head = [0; LONE_BYTES];
    head[..HEADER_BYTES].copy_from_slice(&Header { length, ..*header }.to_bytes());
    put_head(&mut head[HEADER_BYTES..], kind::MESSAGE, message.priority << 4, payload, message);
    let start = out.len();
    out.reserve(all);
    out.extend_from_slice(&head);
    fill(out);
    out.resize(start + LONE_BYTES + len, 0);
    out.resize(start + all, 0);
    Some(all)
}

/// How many frames follow the one that begins with `head`, one every `stride` bytes: each with the next message of the same flow, of
/// the same length and with the same fields. Index, sequence and the frame's number rise by one from each to the next; when they
/// were sent may differ. Those of a flow's numbers that wrap are not recognised.
#[inline]
#[must_use]
pub fn followers(head: &[u8; LONE_BYTES], frames: &[u8], stride: usize) -> usize {
    let length = usize::from(u16::from_le_bytes([head[4], head[5]]));
    let word = |bytes: &[u8], n: usize| le64(bytes, 8 * n);
    let (low, high) = (0xffff_ffff, !0xffff_ffff);
    let (counter, index, sequence) = (word(head, 2), word(head, 5), word(head, 6));
    let wraps = |by: u64| {
        counter.checked_add(by).is_none() || (index & low) + by > low || (sequence & MAX_SEQUENCE) + by > MAX_SEQUENCE
    };
    let follows = |(n, frame): (usize, &[u8])| {
        let by = n as u64 + 1;
        frame.len() >= length
            && word(frame, 0) == word(head, 0)
            && word(frame, 1) == word(head, 1)
            && word(frame, 2) == counter.wrapping_add(by)
            && word(frame, 3) & high == word(head, 3) & high
            && word(frame, 4) == word(head, 4)
            && word(frame, 5) == index.wrapping_add(by)
            && word(frame, 6) == sequence.wrapping_add(by)
            && !wraps(by)
    };
    frames.chunks(stride.max(1)).enumerate().take_while(|&(n, frame)| follows((n, frame))).count()
}
