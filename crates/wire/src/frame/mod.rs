//! Frames: what runtimes say to each other over a datapath. `docs/wire-format.md` is the same in words and tables.
//!
//! A frame is one datagram: a [`Header`] of 32 bytes, then [`record::Record`]s, each padded to 8 bytes, then, if sealed, a
//! tag of 16 bytes. One frame is of one connection and one domain and carries any number of messages of any flows of that
//! domain, beside acknowledgements and credit. All numbers are little-endian. Everything here is a view over the bytes that
//! arrived: nothing is copied, nothing is allocated, nothing panics whatever the bytes are.
//!
//! ```
//! use insane_wire::frame::{FrameBuilder, Header, parse, record::{Message, Record}};
//!
//! let mut bytes = Vec::new();
//! let mut frame = FrameBuilder::new(&mut bytes, Header { domain: 7, connection: 3, counter: 1, ..Header::default() }, 1472);
//! assert!(frame.message(&Message { flow: 1, index: 0, sequence: 1, ..Message::default() }, b"hello"));
//! frame.finish();
//!
//! let (header, mut records) = parse(&bytes).unwrap();
//! assert_eq!(header.domain, 7);
//! let Some(Ok(Record::Message(message, place))) = records.next() else { panic!() };
//! assert_eq!((message.sequence, &bytes[place.range()]), (1, &b"hello"[..]));
//! ```

mod alike;
mod build;
pub mod control;
pub mod record;

pub use alike::{LONE_BYTES, build_lone, followers, lone_head, next_message, next_part, read_lone};
pub use build::FrameBuilder;
use record::Records;

/// The first byte of every frame: `I`.
pub const MAGIC: u8 = b'I';

/// The version of the frame format that this crate speaks.
pub const VERSION: u8 = 1;

/// The size of a frame's header in bytes.
pub const HEADER_BYTES: usize = 32;

/// The size in bytes of the tag that ends a sealed frame.
pub const TAG_BYTES: usize = 16;

/// The largest frame in bytes: what the length field can say, rounded down to 8.
pub const MAX_FRAME_BYTES: usize = 65_528;

/// The smallest frame limit in bytes that a datapath may have: room for one fragment of a useful size, and what every
/// IPv4 path carries.
pub const MIN_FRAME_LIMIT: usize = 512;

/// The largest number of a frame. No connection comes to it; so nothing that is counted on from a frame's number overflows.
pub const MAX_COUNTER: u64 = (1 << 63) - 1;

/// The largest message in bytes.
pub const MAX_MESSAGE_BYTES: u32 = 128 * 1024 * 1024;

/// Records begin at multiples of this many bytes from the frame's first.
pub const ALIGN: usize = 8;

/// Header flag: what follows the header is sealed, and a tag ends the frame.
pub const SEALED: u8 = 1;

/// Header flag: `check` holds the frame's CRC-32C.
pub const CHECKED: u8 = 2;

const KNOWN_FLAGS: u8 = SEALED | CHECKED;

/// What every frame begins with. See the table in `docs/wire-format.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// [`SEALED`], [`CHECKED`].
    pub flags: u8,
    /// The whole frame's length in bytes; what lies beyond is padding of the network. Set by [`FrameBuilder`].
    pub length: u16,
    /// The key under which the frame is sealed; 0 when it is not.
    pub key: u16,
    /// The domain that all messages in it are of ([`domain_id`]); 0 when there are none.
    pub domain: u32,
    /// The connection and direction ([`control::Hello::connection`]); 0 in frames that carry only a hello.
    pub connection: u32,
    /// The frame's number in its connection and direction, from 1, at most [`MAX_COUNTER`], never used twice.
    pub counter: u64,
    /// The sender's clock when the frame was built, in microseconds, wrapping.
    pub sent_us: u32,
    /// CRC-32C over the whole frame with this field as zero, if [`CHECKED`]; else 0.
    pub check: u32,
}

/// Why bytes are no frame, or not one for us. Each is a reason in the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FrameError {
    /// Shorter than it must be.
    #[error("a frame of {bytes} bytes is cut short")]
    Truncated {
        /// Bytes there.
        bytes: usize,
    },
    /// Not ours: another protocol on this port.
    #[error("the first byte is {found:#04x}, not that of a frame")]
    Magic {
        /// What is there.
        found: u8,
    },
    /// A version that this one does not speak.
    #[error("frame version {found}; this side speaks {VERSION}")]
    Version {
        /// What is there.
        found: u8,
    },
    /// Flags that this version does not know, or reserved bits that are set.
    #[error("unknown frame flags {found:#04x}")]
    Flags {
        /// What is there.
        found: u8,
    },
    /// A field is set that has a meaning only with a flag, and the flag is not.
    #[error("key id {key} or check {check:#010x} in a frame that is not sealed or not checked")]
    Unflagged {
        /// The key id that is there.
        key: u16,
        /// The check that is there.
        check: u32,
    },
    /// A number that no connection comes to.
    #[error("frame number {found} is above {MAX_COUNTER}")]
    Counter {
        /// What is there.
        found: u64,
    },
    /// The CRC is another.
    #[error("the frame was changed on its way: check {found:#010x}, computed {computed:#010x}")]
    Check {
        /// What the frame says.
        found: u32,
        /// What it comes to.
        computed: u32,
    },
    /// A record that does not fit in its frame, or breaks the rules of its kind.
    #[error("a record of kind {kind} at byte {at} is malformed")]
    Record {
        /// Its kind.
        kind: u8,
        /// Where it begins.
        at: usize,
    },
}

/// The 32-bit number of a domain in frames: the first four bytes, little-endian, of SHA-256 over `"insane/domain/1\0"` and
/// the name; 1 if they are all zero. Frozen. A runtime refuses a configuration in which two domains have one number.
#[must_use]
pub fn domain_id(name: &str) -> u32 {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    hash.update(b"insane/domain/1\0");
    hash.update(name.as_bytes());
    le32(&hash.finalize(), 0).max(1)
}

impl Header {
    /// The 32 bytes, as they travel.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0] = MAGIC;
        out[1] = VERSION;
        out[2] = self.flags;
        out[4..6].copy_from_slice(&self.length.to_le_bytes());
        out[6..8].copy_from_slice(&self.key.to_le_bytes());
        out[8..12].copy_from_slice(&self.domain.to_le_bytes());
        out[12..16].copy_from_slice(&self.connection.to_le_bytes());
        out[16..24].copy_from_slice(&self.counter.to_le_bytes());
        out[24..28].copy_from_slice(&self.sent_us.to_le_bytes());
        out[28..32].copy_from_slice(&self.check.to_le_bytes());
        out
    }

    /// Reads a header. `bytes` is at least the header; whether the rest of the frame is there is for [`parse`] to say.
    ///
    /// # Errors
    /// [`FrameError`], of which every kind but [`FrameError::Counter`], [`FrameError::Check`] and [`FrameError::Record`] can occur.
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<Self, FrameError> {
        let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(FrameError::Truncated { bytes: bytes.len() });
        };
        if head[0] != MAGIC {
            return Err(FrameError::Magic { found: head[0] });
        }
        if head[1] != VERSION {
            return Err(FrameError::Version { found: head[1] });
        }
        if head[2] & !KNOWN_FLAGS != 0 || head[3] != 0 {
            return Err(FrameError::Flags { found: head[2] | head[3] });
        }
        let header = Self {
            flags: head[2],
            length: le16(head, 4),
            key: le16(head, 6),
            domain: le32(head, 8),
            connection: le32(head, 12),
            counter: le64(head, 16),
            sent_us: le32(head, 24),
            check: le32(head, 28),
        };
        let key = if header.flags & SEALED == 0 { header.key } else { 0 };
        let check = if header.flags & CHECKED == 0 { header.check } else { 0 };
        if key != 0 || check != 0 {
            return Err(FrameError::Unflagged { key, check });
        }
        let tag = if header.flags & SEALED == 0 { 0 } else { TAG_BYTES };
        if usize::from(header.length) < HEADER_BYTES + tag {
            return Err(FrameError::Truncated { bytes: usize::from(header.length) });
        }
        Ok(header)
    }
}

/// Reads a frame's header and opens its records for reading. `bytes` may be longer than the frame. Of a sealed frame the
/// records must have been unsealed in place before.
///
/// # Errors
/// [`FrameError`]: the frame is to be counted and dropped.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<(Header, Records<'_>), FrameError> {
    let header = Header::read(bytes)?;
    let Some(frame) = bytes.get(..usize::from(header.length)) else {
        return Err(FrameError::Truncated { bytes: bytes.len() });
    };
    if header.flags & CHECKED != 0 {
        let computed = checksum(&[frame]);
        if computed != header.check {
            return Err(FrameError::Check { found: header.check, computed });
        }
    }
    let tag = if header.flags & SEALED == 0 { 0 } else { TAG_BYTES };
    Ok((header, Records::new(frame, frame.len() - tag)))
}

/// How far apart the frames lie in bytes that are one frame, or several of one sender that were joined on their way: all but the last of
/// one length, each perhaps filled up with zeros. What is not ours is one frame, whatever it is.
#[inline]
#[must_use]
pub fn stride(bytes: &[u8]) -> usize {
    let first = usize::from(le16(bytes, 4));
    if first == bytes.len() {
        return first;
    }
    stride_of_several(bytes).unwrap_or(bytes.len())
}

/// A frame begins with a byte that is not zero: what lies between two is what the first was filled up with.
#[cold]
fn stride_of_several(bytes: &[u8]) -> Option<usize> {
    let first = usize::from(Header::read(bytes).ok()?.length);
    let filled = bytes.get(first..)?.iter().position(|&byte| byte != 0)?;
    Header::read(bytes.get(first + filled..)?).ok().map(|_| first + filled)
}

/// The CRC-32C of a frame in pieces, with its `check` field taken as zero. The first piece holds the whole header.
#[must_use]
pub fn checksum(pieces: &[&[u8]]) -> u32 {
    let mut sum = 0;
    for (number, piece) in pieces.iter().enumerate() {
        sum = match piece.split_at_checked(HEADER_BYTES) {
            Some((head, rest)) if number == 0 => {
                let upto_check = head.get(..28).unwrap_or(head);
                crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(upto_check), &[0; 4]), rest)
            }
            _ => crc32c::crc32c_append(sum, piece),
        };
    }
    sum
}

/// Two bytes at `at`, which the caller has made sure of; 0 if they are not there.
#[inline]
pub(crate) fn le16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
}

/// As [`le16`], four bytes.
#[inline]
pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// As [`le16`], eight bytes.
#[inline]
pub(crate) fn le64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// `bytes` rounded up to [`ALIGN`].
#[inline]
#[must_use]
pub const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}
