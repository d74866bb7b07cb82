//! The consuming end: takes descriptors and checks them, gives back. Invariants: [`crate::link`].

use super::descriptor::{RETURN_CREDIT, RETURN_SLOT};
use super::{Broken, DELIVERY_WORDS, DESCRIPTOR_WORDS, DeliveryBlock, Descriptor, Fate, INLINE_BYTES, ReturnBlock};
use super::{FLAG_INLINE, FLAG_PACKED, FLAG_SCATTERED, FLAG_TIMESTAMP};
use crate::segment::prefetch;
use crate::steps::{Step, reach};
use crate::sync::{AtomicU64, Ordering};
use crate::wait::{Announced, SleepKinds, Sleeper, WaitWord, WakeNeed, Waker};
use std::ptr::NonNull;

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
            prefetch(NonNull::from(&words[DESCRIPTOR_WORDS]).cast(), 1);
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

    /// Takes the next message if it is as most larger ones are: from `source`, alone in a slot that is there, without a deadline.
    /// `None`: nothing is there, or something else, for which there is [`Self::poll_descriptor`]. Never blocks.
    #[inline(always)]
    pub fn poll_slot(&mut self, source: u32) -> Option<Descriptor> {
        let words = self.peer.words(self.head);
        let length = DeliveryBlock::read_in(words, self.head)?;
        let d = describe(words, length);
        let usual = d.source == source && d.flags & !FLAG_TIMESTAMP == 0 && d.deadline_ns == 0;
        if !usual || self.owed > self.own.mask() || !self.goes_out(&d) {
            return None;
        }
        reach(Step::Pop);
        self.head += 1;
        self.owed += 1;
        Some(d)
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
        let descriptor = describe(words, length);
        // What this end keeps for a peer is bounded by the link's credit, whatever the peer does (INV-LINK-1).
        if self.owed > self.own.mask() {
            return Err(Broken::NoCredit { owed: self.owed, entries: self.own.entries() });
        }
        self.head += 1;
        self.owed += 1;
        let sound = match descriptor.flags & (FLAG_INLINE | FLAG_PACKED | FLAG_SCATTERED) {
            FLAG_INLINE => length as usize <= INLINE_BYTES,
            // Of what a list says, the reader checks every word ([`crate::scatter`]).
            0 | FLAG_SCATTERED => self.goes_out(&descriptor),
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

    /// Gives back a slot of which nothing else is to be said. Never fails (INV-LINK-1).
    #[inline(always)]
    pub fn release_slot(&mut self, segment: u16, slot: u32, sequence: u32) {
        self.release_place(segment, slot, sequence, Fate::AsCounted);
    }

    #[inline(always)]
    fn release_place(&mut self, segment: u16, slot: u32, sequence: u32, fate: Fate) {
        if let Some(Some(there)) = self.segments.get_mut(usize::from(segment)) {
            there.out = there.out.saturating_sub(1);
        }
        let word = u64::from(slot) | u64::from(segment) << 32 | RETURN_SLOT << 48 | (fate as u64) << 56;
        self.put(sequence, word);
        self.owed = self.owed.saturating_sub(1);
    }

    /// Gives a message back, or a pack once all of its messages are done with: then a `fate` says that of the message with the
    /// descriptor's number and all after it. Never fails (INV-LINK-1).
    #[inline]
    pub fn release(&mut self, d: &Descriptor, fate: Fate) {
        let ordinary = fate == Fate::AsCounted;
        if d.flags & FLAG_INLINE == 0 {
            self.release_place(d.segment, d.slot, d.sequence as u32, fate);
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

/// What the words of an entry of the ring say, each read once; its length came with word 0. Nothing of it was checked.
#[inline(always)]
fn describe(words: &[AtomicU64; DELIVERY_WORDS], length: u32) -> Descriptor {
    // Relaxed: `read_in` acquired them; a hostile writer may have changed them since, so the copies are checked.
    let word = |i: usize| words[i].load(Ordering::Relaxed);
    let (place, origin, last) = (word(5), word(6), word(7));
    Descriptor {
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
        joined: (last >> 32) as u16,
    }
}

/// Whether a pack may have that many messages in so many bytes, and begins where its words are aligned.
#[inline]
fn sound_pack(d: &Descriptor) -> bool {
    let (least, most) = (8 * u32::from(d.count), crate::pack::MAX_BYTES);
    (1..=crate::pack::MAX_MESSAGES).contains(&d.count)
        && (least..=most).contains(&d.length)
        && d.offset.is_multiple_of(8)
}
