//! The link: the only way a slot crosses a process border (architecture §3). One producer, one consumer, two rings.
//!
//! ```text
//!  producer's memory: delivery ring, wake, sleep       consumer's memory: return ring, wake, sleep
//!  (the consumer maps it read-only)                    (the producer maps it read-only)
//! ```
//!
//! Invariants:
//! - `INV-LINK-1` Every descriptor uses one *credit*; a link has as many credits as its rings have entries. A credit comes
//!   back when the consumer returns the slot, or, for messages inside descriptors, as a count. So at most `entries`
//!   descriptors are out, neither ring can overflow, and releasing never fails.
//! - `INV-LINK-2` With at most `entries` out, the entry about to be written was read by the consumer: of the first
//!   `tail + 1 - entries` descriptors at least one with an index of `tail - entries` or more has come back, and the consumer
//!   reads in order (`INV-RING-4`).
//! - `INV-LINK-3` What a link holds is known in the producer's private memory only. A return is taken as often as the link
//!   was given the slot, never more; a count never above the credits that are out. Anything else breaks this link alone.
//! - `INV-LINK-4` The consumer copies each word of a descriptor once and checks the copy: segment, slot, offset and length
//!   lie in what it has mapped; a message inside the descriptor has at most [`INLINE_BYTES`] bytes; the messages in one
//!   slot are checked one by one (`INV-PACK-2`).
//! - `INV-LINK-5` After a consumer's death the producer still knows, from its own delivery ring and the consumer's counts,
//!   which messages were not finished ([`Producer::recent`]).
//! - `INV-LINK-6` A consumer unmaps a segment only while it has nothing of it ([`Consumer::remove_segment`]). An honest
//!   producer knows when that is: all that it gave has come back. Another one breaks its own link.

use crate::mutate::{Mutation, left_out};
use crate::ring::Block;
use crate::steps::{Step, reach};
use crate::sync::{AtomicU64, Ordering};
use crate::wait::{Announced, SleepKinds, Sleeper, WaitWord, WakeNeed, Waker};

/// The words of an entry of the delivery ring: eight of descriptor, eight of payload.
pub const DELIVERY_WORDS: usize = 16;

/// The words of an entry of the return ring.
pub const RETURN_WORDS: usize = 2;

/// The longest message that travels inside its descriptor, in bytes.
pub const INLINE_BYTES: usize = 64;

const DESCRIPTOR_WORDS: usize = 8;

/// The producer's control memory.
pub type DeliveryBlock = Block<DELIVERY_WORDS>;

/// The consumer's control memory.
pub type ReturnBlock = Block<RETURN_WORDS>;

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
}

impl Descriptor {
    /// How many messages it stands for.
    #[inline]
    #[must_use]
    pub fn messages(&self) -> u64 {
        if self.flags & FLAG_PACKED != 0 { self.count.into() } else { 1 }
    }
}

/// A return entry's kind; the fourth byte group of its word 1.
const RETURN_SLOT: u64 = 1;
const RETURN_CREDIT: u64 = 2;

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
    const fn from_number(n: u64) -> Self {
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

/// The producing end.
#[derive(Debug)]
pub struct Producer {
    own: DeliveryBlock,
    peer: ReturnBlock,
    tail: u64,
    credit: u64,
    return_head: u64,
    inline_out: u64,
    /// Per segment, per slot: how often the link holds it (INV-LINK-3).
    held: Vec<Box<[u32]>>,
    waker: Waker,
    sleeper: Sleeper,
}

impl Producer {
    /// The producing end over its own control memory and the consumer's.
    #[must_use]
    pub fn new(own: DeliveryBlock, peer: ReturnBlock) -> Self {
        let credit = u64::from(own.entries());
        Self {
            own,
            peer,
            tail: 0,
            credit,
            return_head: 0,
            inline_out: 0,
            held: Vec::new(),
            waker: Waker::default(),
            sleeper: Sleeper::default(),
        }
    }

    /// Tells the link of a segment that the consumer has mapped under this number.
    pub fn add_segment(&mut self, segment: u16, slots: u32) {
        let at = usize::from(segment);
        if self.held.len() <= at {
            self.held.resize_with(at + 1, Box::default);
        }
        self.held[at] = vec![0; slots as usize].into_boxed_slice();
    }

    /// Forgets a segment, so that its number can be used again.
    ///
    /// # Panics
    /// When the link holds a slot of it: an error of this library, not of a peer.
    pub fn remove_segment(&mut self, segment: u16) {
        if let Some(held) = self.held.get_mut(usize::from(segment)) {
            assert!(held.iter().all(|n| *n == 0), "a segment with slots on a link");
            *held = Box::default();
        }
    }

    /// Whether the consumer has mapped a segment: its slots may be pushed.
    #[inline]
    #[must_use]
    pub fn is_mapped(&self, segment: u16) -> bool {
        self.held.get(usize::from(segment)).is_some_and(|held| !held.is_empty())
    }

    /// Credits at hand: how many descriptors may be pushed now without taking returns.
    #[inline]
    #[must_use]
    pub fn credit(&self) -> u64 {
        self.credit
    }

    /// Descriptors that are out.
    #[must_use]
    pub fn out(&self) -> u64 {
        u64::from(self.own.entries()) - self.credit
    }

    /// The position of the next descriptor.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// How often this end woke the peer.
    #[must_use]
    pub fn wakes(&self) -> u64 {
        self.waker.wakes
    }

    /// Publishes a descriptor whose payload is `inline` (copied into the entry) or, with an empty `inline`, lies in the slot
    /// that it names. The consumer is not woken: call [`Self::wake`] after the batch.
    ///
    /// # Panics
    /// Without credit, with more than [`INLINE_BYTES`] inside, or for a slot that was never added: errors of this library,
    /// not of a peer.
    #[inline(always)]
    pub fn push(&mut self, descriptor: &Descriptor, inline: &[u8]) {
        assert!(self.credit > 0 && inline.len() <= INLINE_BYTES);
        let at = self.tail;
        let words = self.own.words(at);
        // Relaxed, all of them: `publish_in` releases them.
        let write = |word: usize, value: u64| words[word].store(value, Ordering::Relaxed);
        let (mut flags, mut length) = (descriptor.flags & !FLAG_INLINE, descriptor.length);
        if inline.is_empty() && descriptor.length > 0 {
            self.held[usize::from(descriptor.segment)][descriptor.slot as usize] += 1;
        } else {
            flags = flags & !FLAG_PACKED | FLAG_INLINE;
            length = inline.len() as u32;
            self.inline_out += 1;
            write_inline(words, inline);
        }
        write(1, descriptor.channel);
        write(2, descriptor.sequence);
        write(3, descriptor.deadline_ns);
        write(4, descriptor.timestamp_ns);
        write(5, u64::from(descriptor.slot) | u64::from(descriptor.offset) << 32);
        let middle = u64::from(descriptor.segment) << 32 | u64::from(flags) << 48;
        write(6, u64::from(descriptor.source) | middle);
        write(7, u64::from(descriptor.priority) | u64::from(descriptor.count) << 16);
        reach(Step::Publish);
        DeliveryBlock::publish_in(words, at, length);
        self.tail += 1;
        self.credit -= 1;
    }

    /// Wakes the consumer if it sleeps; once per batch.
    #[inline]
    pub fn wake(&mut self) -> WakeNeed {
        reach(Step::Wake);
        self.waker.wake(&self.own, &self.peer)
    }

    /// Takes what has come back, at most one ring full. Each item was checked; the caller puts slots back on its free list.
    ///
    /// # Errors
    /// [`Broken`]: the link is to be closed. What was taken before stays taken.
    #[inline]
    pub fn reclaim(&mut self, mut item: impl FnMut(Returned)) -> Result<u32, Broken> {
        let mut taken = 0;
        while taken < self.own.entries() {
            let Some(high) = self.peer.read(self.return_head) else { break };
            let word = self.peer.word(self.return_head, 1);
            let returned = self.check(high, word)?;
            self.return_head += 1;
            taken += 1;
            reach(Step::Drain);
            item(returned);
        }
        Ok(taken)
    }

    #[inline]
    fn check(&mut self, high: u32, word: u64) -> Result<Returned, Broken> {
        let (low, segment) = (word as u32, (word >> 32) as u16);
        let (kind, fate) = ((word >> 48) & 0xff, Fate::from_number(word >> 56));
        match kind {
            RETURN_SLOT => {
                let slots = self.held.get_mut(usize::from(segment));
                let Some(held) = slots.and_then(|s| s.get_mut(low as usize)) else {
                    if left_out(Mutation::ReturnRange) {
                        return Ok(Returned::Slot { segment, slot: low, fate, sequence: high });
                    }
                    return Err(Broken::ForeignSlot { segment, slot: low });
                };
                if *held == 0 && !left_out(Mutation::ReturnHeld) {
                    return Err(Broken::NotHeld { segment, slot: low });
                }
                *held = held.wrapping_sub(1);
                self.credit += 1;
                Ok(Returned::Slot { segment, slot: low, fate, sequence: high })
            }
            RETURN_CREDIT => {
                // A fate names one message; its source then stands where the count would.
                let count = if fate == Fate::AsCounted { low } else { 1 };
                if u64::from(count) > self.inline_out && !left_out(Mutation::ReturnCredit) {
                    return Err(Broken::TooMuchCredit { count, out: self.inline_out });
                }
                self.inline_out = self.inline_out.wrapping_sub(count.into());
                self.credit += u64::from(count);
                let source = if fate == Fate::AsCounted { 0 } else { low };
                Ok(Returned::Credit { count, fate, sequence: high, source })
            }
            kind => Err(Broken::UnknownKind { kind }),
        }
    }

    /// Ends the link: every hold it still has, so that the owner can take the slots back.
    pub fn dissolve(&mut self, mut hold: impl FnMut(u16, u32)) {
        for (segment, slots) in self.held.iter_mut().enumerate() {
            for (slot, held) in slots.iter_mut().enumerate() {
                for _ in 0..std::mem::take(held) {
                    hold(u16::try_from(segment).unwrap_or(u16::MAX), slot as u32);
                }
            }
        }
        self.inline_out = 0;
        self.credit = u64::from(self.own.entries());
    }

    /// The sources and numbers of the messages in the delivery ring, newest first: this side's own memory, whatever the
    /// consumer did (INV-LINK-5). Not more than the last `entries`.
    pub fn recent(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let oldest = self.tail.saturating_sub(u64::from(self.own.entries()));
        (oldest..self.tail).rev().flat_map(|at| {
            let (origin, first) = (self.own.word(at, 6), self.own.word(at, 2));
            let count = self.messages_at(at);
            (0..count).rev().map(move |n| (origin as u32, first.wrapping_add(n)))
        })
    }

    fn messages_at(&self, at: u64) -> u64 {
        let packed = (self.own.word(at, 6) >> 48) as u16 & FLAG_PACKED != 0;
        if packed { (self.own.word(at, 7) >> 16) & 0xffff } else { 1 }
    }

    /// The source of a message that came back with a fate, and how many messages of its descriptor have it: the message and,
    /// in a pack, those after it. From this side's own delivery ring; `None` when it is too old.
    #[must_use]
    pub fn source_of(&self, segment: u16, slot: u32, sequence: u32) -> Option<(u32, u32)> {
        let oldest = self.tail.saturating_sub(u64::from(self.own.entries()));
        (oldest..self.tail)
            .rev()
            .find(|at| {
                let origin = self.own.word(*at, 6);
                self.own.word(*at, 5) as u32 == slot
                    && (origin >> 32) as u16 == segment
                    && (origin >> 48) as u16 & FLAG_INLINE == 0
                    && u64::from(sequence.wrapping_sub(self.own.word(*at, 2) as u32)) < self.messages_at(*at)
            })
            .map(|at| {
                let before = u64::from(sequence.wrapping_sub(self.own.word(at, 2) as u32));
                (self.own.word(at, 6) as u32, (self.messages_at(at) - before) as u32)
            })
    }

    /// How many holds the link has on all slots; for audits.
    #[must_use]
    pub fn holds(&self) -> u64 {
        self.held.iter().flat_map(|s| s.iter()).map(|n| u64::from(*n)).sum()
    }

    /// Announces that this end sleeps for room; look again with [`Self::reclaim`], then wait or take it back.
    pub fn prepare_sleep(&mut self) -> Announced {
        self.sleeper.prepare(&self.own, &self.peer, SleepKinds::FUTEX)
    }

    /// Where to wait after [`Self::prepare_sleep`].
    #[must_use]
    pub fn wait_word(&self, announced: Announced) -> WaitWord {
        WaitWord::new(&self.peer, announced)
    }

    /// This end is awake again.
    pub fn awake(&mut self) {
        self.sleeper.awake(&self.own);
    }
}

/// Writes a payload into the entry with these words.
#[inline(always)]
fn write_inline(words: &[AtomicU64; DELIVERY_WORDS], bytes: &[u8]) {
    // The longest one without a loop: it is what small fixed-size messages mostly are.
    if let Ok(whole) = <&[u8; INLINE_BYTES]>::try_from(bytes) {
        for (word, chunk) in words[DESCRIPTOR_WORDS..].iter().zip(whole.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
        }
        return;
    }
    let (chunks, rest) = bytes.as_chunks::<8>();
    for (word, chunk) in words[DESCRIPTOR_WORDS..].iter().zip(chunks) {
        word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        let mut last = [0u8; 8];
        last[..rest.len()].copy_from_slice(rest);
        words[DESCRIPTOR_WORDS + chunks.len()].store(u64::from_le_bytes(last), Ordering::Relaxed);
    }
}

/// The slots of a mapped segment, for the consumer's check (INV-LINK-4).
#[derive(Debug, Clone, Copy)]
struct Geometry {
    slots: u32,
    stride: u64,
    /// Descriptors that name it and were not given back (INV-LINK-6).
    out: u32,
}

/// A descriptor that passed the checks, with its payload if that was inside.
#[derive(Debug, Clone, Copy)]
pub struct Delivery {
    /// The descriptor; `FLAG_INLINE` says where the payload is.
    pub descriptor: Descriptor,
    /// The payload of a message inside its descriptor; the first `length` bytes count.
    pub inline: [u64; 8],
    /// The position in the delivery ring.
    pub position: u64,
}

impl Delivery {
    /// Whether the payload was inside the descriptor.
    #[inline]
    #[must_use]
    pub fn is_inline(&self) -> bool {
        self.descriptor.flags & FLAG_INLINE != 0
    }

    /// The payload of a message inside its descriptor; empty for others.
    #[must_use]
    #[inline]
    pub fn inline_bytes(&self) -> &[u8] {
        if !self.is_inline() {
            return &[];
        }
        let base = self.inline.as_ptr().cast::<u8>();
        // SAFETY: INV-LINK-4: the length of an inline message was checked to be at most the array's 64 bytes, which are a
        // private copy.
        unsafe { std::slice::from_raw_parts(base, (self.descriptor.length as usize).min(INLINE_BYTES)) }
    }
}

/// A message that [`Consumer::poll_small`] took, still in its entry.
#[derive(Debug, Clone, Copy)]
pub struct Small<'a> {
    words: &'a [AtomicU64; DELIVERY_WORDS],
    /// The bytes of its payload, which were checked to be at most [`INLINE_BYTES`].
    pub length: u32,
}

impl Small<'_> {
    // Relaxed, all of them, and each to be called once: as in `poll_descriptor`.

    /// The channel.
    #[inline(always)]
    #[must_use]
    pub fn channel(&self) -> u64 {
        self.words[1].load(Ordering::Relaxed)
    }

    /// The number at the source.
    #[inline(always)]
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.words[2].load(Ordering::Relaxed)
    }

    /// When it was emitted, in nanoseconds of CLOCK_MONOTONIC; 0 if its source does not say.
    #[inline(always)]
    #[must_use]
    pub fn timestamp_ns(&self) -> u64 {
        self.words[4].load(Ordering::Relaxed)
    }

    /// The priority.
    #[inline(always)]
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.words[7].load(Ordering::Relaxed) as u8
    }

    /// Copies the payload out, and what lies behind it, which is the producer's too.
    #[inline(always)]
    pub fn copy(&self, to: &mut [u64; INLINE_BYTES / 8]) {
        for (to, word) in to.iter_mut().zip(&self.words[DESCRIPTOR_WORDS..]) {
            *to = word.load(Ordering::Relaxed);
        }
    }
}

/// The consuming end.
#[derive(Debug)]
pub struct Consumer {
    own: ReturnBlock,
    peer: DeliveryBlock,
    head: u64,
    return_tail: u64,
    /// Descriptors read whose credit was not given back yet.
    owed: u64,
    /// Messages inside descriptors that were released, to be given back as a count.
    unreturned: u32,
    segments: Vec<Option<Geometry>>,
    sleeper: Sleeper,
    waker: Waker,
}

impl Consumer {
    /// The consuming end over its own control memory and the producer's.
    #[must_use]
    pub fn new(own: ReturnBlock, peer: DeliveryBlock) -> Self {
        Self {
            own,
            peer,
            head: 0,
            return_tail: 0,
            owed: 0,
            unreturned: 0,
            segments: Vec::new(),
            sleeper: Sleeper::default(),
            waker: Waker::default(),
        }
    }

    /// A segment was mapped under this number.
    pub fn add_segment(&mut self, segment: u16, slots: u32, stride: u64) {
        let at = usize::from(segment);
        if self.segments.len() <= at {
            self.segments.resize(at + 1, None);
        }
        self.segments[at] = Some(Geometry { slots, stride, out: 0 });
    }

    /// The producer has given a segment back: it may be unmapped, and its number be used again. What names it from now on
    /// fails the checks.
    ///
    /// # Errors
    /// [`Broken::SegmentInUse`] when something of it was not given back (INV-LINK-6): the link is to be closed, and the segment
    /// stays mapped until all of it came back.
    pub fn remove_segment(&mut self, segment: u16) -> Result<(), Broken> {
        let there = self.segments.get_mut(usize::from(segment));
        match there.as_ref().and_then(|s| s.as_ref()).map(|s| s.out) {
            Some(0) => {
                if let Some(there) = there {
                    *there = None;
                }
                Ok(())
            }
            out => Err(Broken::SegmentInUse { segment, out: out.unwrap_or(0) }),
        }
    }

    /// The position of the next descriptor to read.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.head
    }

    /// The entries of its rings: the most descriptors that are out.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.own.entries()
    }

    /// Descriptors that were read and not given back.
    #[must_use]
    pub fn owed(&self) -> u64 {
        self.owed
    }

    /// Whether a descriptor is there; takes nothing.
    #[inline]
    #[must_use]
    pub fn ready(&self) -> bool {
        self.peer.read(self.head).is_some()
    }

    /// Whether a descriptor is there and speaks of a pack; takes nothing. What is taken afterwards may say otherwise if the
    /// producer is hostile.
    #[inline(always)]
    #[must_use]
    pub fn packed_is_next(&self) -> bool {
        let words = self.peer.words(self.head);
        // Relaxed: `read_in` acquired it.
        let flags = || (words[6].load(Ordering::Relaxed) >> 48) as u16;
        DeliveryBlock::read_in(words, self.head).is_some() && flags() & FLAG_PACKED != 0
    }

    /// Looks up to `looks` times whether a descriptor is there; takes nothing.
    ///
    /// The payload inside an entry lies in a cache line of its own. It is asked for with each look, so that both lines are on
    /// their way at once: fetched only after the descriptor was seen it would cost a second transfer between the cores, which
    /// was a fifth of a round trip.
    #[inline(always)]
    #[must_use]
    pub fn look(&self, looks: u32) -> bool {
        let words = self.peer.words(self.head);
        (0..looks).any(|_| {
            fetch(&words[DESCRIPTOR_WORDS]);
            DeliveryBlock::read_in(words, self.head).is_some()
        })
    }

    /// Takes the next descriptor, if one is there, with the payload inside it. Never blocks.
    ///
    /// # Errors
    /// [`Broken`] if it fails the checks; it was taken, and the link is to be closed.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Delivery>, Broken> {
        let Some((descriptor, position)) = self.poll_descriptor()? else { return Ok(None) };
        let mut delivery = Delivery { descriptor, inline: [0; 8], position };
        if delivery.is_inline() {
            self.copy_inline(position, descriptor.length, &mut delivery.inline);
        }
        Ok(Some(delivery))
    }

    /// Takes the next message if it is as most small ones are: from `source`, its payload inside its descriptor, without a
    /// deadline and all else that a flag says. `None`: nothing is there, or something else, for which there is
    /// [`Self::poll_descriptor`]. Never blocks.
    #[inline(always)]
    pub fn poll_small(&mut self, source: u32) -> Option<Small<'_>> {
        let at = self.head;
        let words = self.peer.words(at);
        let length = DeliveryBlock::read_in(words, at)?;
        // Relaxed, and each word once: as in `poll_descriptor`.
        let word = |i: usize| words[i].load(Ordering::Relaxed);
        let usual = word(6) == u64::from(source) | u64::from(FLAG_INLINE) << 48 && word(3) == 0;
        if !usual || length as usize > INLINE_BYTES || self.owed > self.own.mask() {
            return None;
        }
        reach(Step::Pop);
        self.head += 1;
        self.owed += 1;
        Some(Small { words, length })
    }

    /// Takes the next descriptor and its position, if one is there. A payload inside it is still in the entry: take it with
    /// [`Self::copy_inline`] before anything is released. Never blocks.
    ///
    /// # Errors
    /// As [`Self::poll`].
    #[inline(always)]
    pub fn poll_descriptor(&mut self) -> Result<Option<(Descriptor, u64)>, Broken> {
        let at = self.head;
        let words = self.peer.words(at);
        let Some(length) = DeliveryBlock::read_in(words, at) else { return Ok(None) };
        reach(Step::Pop);
        // Relaxed: `read_in` acquired them; a hostile writer may have changed them since, so the copies are checked.
        let word = |i: usize| words[i].load(Ordering::Relaxed);
        let (place, origin, last) = (word(5), word(6), word(7));
        let descriptor = Descriptor {
            channel: word(1),
            sequence: word(2),
            deadline_ns: word(3),
            timestamp_ns: word(4),
            slot: place as u32,
            offset: (place >> 32) as u32,
            length,
            source: origin as u32,
            segment: (origin >> 32) as u16,
            flags: (origin >> 48) as u16,
            priority: last as u8,
            count: (last >> 16) as u16,
        };
        // What this end keeps for a peer is bounded by the link's credit, whatever the peer does (INV-LINK-1).
        if self.owed > self.own.mask() {
            return Err(Broken::NoCredit { owed: self.owed, entries: self.own.entries() });
        }
        self.head += 1;
        self.owed += 1;
        let sound = match descriptor.flags & (FLAG_INLINE | FLAG_PACKED) {
            FLAG_INLINE => length as usize <= INLINE_BYTES,
            0 => self.goes_out(&descriptor),
            FLAG_PACKED => sound_pack(&descriptor) && self.goes_out(&descriptor),
            _ => false,
        };
        if sound { Ok(Some((descriptor, at))) } else { Err(Broken::of(&descriptor)) }
    }

    /// Copies the payload inside the descriptor at `position`, if its checked length is not 0, each word once. All words are
    /// copied: what lies behind the payload is the producer's too.
    #[inline(always)]
    pub fn copy_inline(&self, position: u64, length: u32, to: &mut [u64; INLINE_BYTES / 8]) {
        if length > 0 {
            let words = self.peer.words(position);
            for (to, word) in to.iter_mut().zip(&words[DESCRIPTOR_WORDS..]) {
                // Relaxed: as in `poll_descriptor`.
                *to = word.load(Ordering::Relaxed);
            }
        }
    }

    /// Checks that what a descriptor names is mapped, and counts it as out.
    #[inline(always)]
    fn goes_out(&mut self, d: &Descriptor) -> bool {
        let Some(Some(g)) = self.segments.get_mut(usize::from(d.segment)) else { return false };
        let there = d.slot < g.slots && u64::from(d.offset) + u64::from(d.length) <= g.stride;
        g.out += u32::from(there);
        there
    }

    /// Gives a message back that came inside its descriptor and was counted. Never fails.
    #[inline(always)]
    pub fn release_small(&mut self) {
        self.unreturned += 1;
        // A quarter of the ring is enough to save the stores and little enough to keep the producer going.
        if u64::from(self.unreturned) * 4 > self.own.mask() {
            self.settle();
        }
    }

    /// Gives a message back, or a pack once all of its messages are done with: then a `fate` says that of the message with the
    /// descriptor's number and all after it. Never fails (INV-LINK-1).
    #[inline]
    pub fn release(&mut self, d: &Descriptor, fate: Fate) {
        let ordinary = fate == Fate::AsCounted;
        if d.flags & FLAG_INLINE == 0 {
            if let Some(Some(segment)) = self.segments.get_mut(usize::from(d.segment)) {
                segment.out = segment.out.saturating_sub(1);
            }
            let word = u64::from(d.slot) | u64::from(d.segment) << 32 | RETURN_SLOT << 48 | (fate as u64) << 56;
            self.put(d.sequence as u32, word);
            self.owed = self.owed.saturating_sub(1);
        } else if ordinary {
            self.release_small();
        } else {
            let word = u64::from(d.source) | RETURN_CREDIT << 48 | (fate as u64) << 56;
            self.put(d.sequence as u32, word);
            self.owed = self.owed.saturating_sub(1);
        }
    }

    /// Gives back the count of messages inside descriptors. To be called when there is nothing to read, or before sleeping.
    #[inline]
    pub fn settle(&mut self) {
        if self.unreturned > 0 {
            let count = std::mem::take(&mut self.unreturned);
            self.put(0, u64::from(count) | RETURN_CREDIT << 48);
            self.owed = self.owed.saturating_sub(count.into());
        }
    }

    /// As [`Self::settle`], but only when the producer may be running short: more than half of its credits are out.
    #[inline]
    pub fn settle_if_short(&mut self) {
        if self.unreturned > 0 && self.owed * 2 > u64::from(self.own.entries()) {
            self.settle();
        }
    }

    #[inline]
    fn put(&mut self, high: u32, word: u64) {
        self.own.write(self.return_tail, 1, word);
        reach(Step::Return);
        self.own.publish(self.return_tail, high);
        self.return_tail += 1;
    }

    /// Wakes the producer if it sleeps for room; after releasing, on links whose producer may sleep.
    #[inline]
    pub fn wake(&mut self) -> WakeNeed {
        self.waker.wake(&self.own, &self.peer)
    }

    /// Announces that this end sleeps; look again with [`Self::ready`], then wait or take it back.
    pub fn prepare_sleep(&mut self, kinds: SleepKinds) -> Announced {
        self.sleeper.prepare(&self.own, &self.peer, kinds)
    }

    /// Where to wait after [`Self::prepare_sleep`] with [`SleepKinds::FUTEX`].
    #[must_use]
    pub fn wait_word(&self, announced: Announced) -> WaitWord {
        WaitWord::new(&self.peer, announced)
    }

    /// Ends the waits of this process's threads that sleep by [`Self::wait_word`]. One that has announced its sleep and does
    /// not sleep yet is missed: call again until all have left. Never blocks.
    #[cfg(not(loom))]
    pub fn rouse(&self) {
        crate::wait::rouse(&self.peer);
    }

    /// This end is awake again.
    pub fn awake(&mut self) {
        self.sleeper.awake(&self.own);
    }
}

/// Asks for the cache line of a word, without waiting for it.
#[inline(always)]
fn fetch(word: &AtomicU64) {
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    // SAFETY: a hint, which reads nothing into the program.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(std::ptr::from_ref(word).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri), not(loom))))]
    let _ = word;
}

/// Whether a pack may have that many messages in so many bytes, and begins where its words are aligned.
#[inline]
fn sound_pack(d: &Descriptor) -> bool {
    let (least, most) = (8 * u32::from(d.count), crate::pack::MAX_BYTES);
    (1..=crate::pack::MAX_MESSAGES).contains(&d.count)
        && (least..=most).contains(&d.length)
        && d.offset.is_multiple_of(8)
}

/// Both ends of a link on the heap of this process, for tests, models and fuzzing.
///
/// # Panics
/// When `entries` is no valid ring size.
#[cfg(not(loom))]
#[must_use]
pub fn pair_on_heap(entries: u32) -> (Producer, Consumer) {
    use crate::memory::Heap;
    use std::sync::Arc;
    let delivery = Arc::new(Heap::new(DeliveryBlock::bytes(entries).expect("a valid ring size")));
    let returns = Arc::new(Heap::new(ReturnBlock::bytes(entries).expect("a valid ring size")));
    let producer = Producer::new(
        DeliveryBlock::create(delivery.clone(), entries).expect("fits"),
        ReturnBlock::create(returns.clone(), entries).expect("fits"),
    );
    let consumer = Consumer::new(
        ReturnBlock::open(returns, entries).expect("was just made"),
        DeliveryBlock::open(delivery, entries).expect("was just made"),
    );
    (producer, consumer)
}

/// Both ends of a link in a model.
#[cfg(loom)]
#[must_use]
pub fn pair_on_heap(entries: u32) -> (Producer, Consumer) {
    let (delivery, delivery_peer) = DeliveryBlock::modelled(entries);
    let (returns, returns_peer) = ReturnBlock::modelled(entries);
    (Producer::new(delivery, returns_peer), Consumer::new(returns, delivery_peer))
}
