//! The producing end: pushes descriptors, takes back what comes over the return ring. Invariants: [`crate::link`].

use super::descriptor::{RETURN_CREDIT, RETURN_SLOT};
use super::{
    Broken, DELIVERY_WORDS, DESCRIPTOR_WORDS, DeliveryBlock, Descriptor, Fate, INLINE_BYTES, ReturnBlock, Returned,
};
use super::{FLAG_INLINE, FLAG_PACKED};
use crate::mutate::{Mutation, left_out};
use crate::steps::{Step, reach};
use crate::sync::{AtomicU64, Ordering};
use crate::wait::{Announced, SleepKinds, Sleeper, WaitWord, WakeNeed, Waker};

/// What a link holds of one slot.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    /// How often.
    times: u32,
    /// The low half of the position of the descriptor that named it last.
    last: u32,
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
    held: Vec<Box<[Held]>>,
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
        self.held[at] = vec![Held::default(); slots as usize].into_boxed_slice();
    }

    /// Forgets a segment, so that its number can be used again.
    ///
    /// # Panics
    /// When the link holds a slot of it: an error of this library, not of a peer.
    pub fn remove_segment(&mut self, segment: u16) {
        if let Some(held) = self.held.get_mut(usize::from(segment)) {
            assert!(held.iter().all(|h| h.times == 0), "a segment with slots on a link");
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

    /// Entries of its ring.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.own.entries()
    }

    /// Descriptors that are out.
    #[must_use]
    pub fn out(&self) -> u64 {
        u64::from(self.entries()) - self.credit
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
            let held = &mut self.held[usize::from(descriptor.segment)][descriptor.slot as usize];
            *held = Held { times: held.times + 1, last: at as u32 };
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
        let last = u64::from(descriptor.count) << 16 | u64::from(descriptor.joined) << 32;
        write(7, u64::from(descriptor.priority) | last);
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
                if held.times == 0 && !left_out(Mutation::ReturnHeld) {
                    return Err(Broken::NotHeld { segment, slot: low });
                }
                held.times = held.times.wrapping_sub(1);
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
                for _ in 0..std::mem::take(&mut held.times) {
                    hold(u16::try_from(segment).unwrap_or(u16::MAX), slot as u32);
                }
            }
        }
        self.inline_out = 0;
        self.credit = u64::from(self.own.entries());
    }

    /// Whether the slot that the descriptor at `position` named has not come back since. A slot that was named again later is that
    /// later descriptor's.
    #[must_use]
    pub fn is_out(&self, segment: u16, slot: u32, position: u64) -> bool {
        let held = self.held.get(usize::from(segment)).and_then(|s| s.get(slot as usize));
        held.is_some_and(|h| h.times > 0 && h.last == position as u32)
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

    /// The sources, with the segments, of the slots that have not come back, as far as the delivery ring shows them: this side's own
    /// memory (INV-LINK-5). Those that the consumer keeps while later ones come back are written over in the end.
    pub fn kept(&self) -> impl Iterator<Item = (u32, u16)> + '_ {
        let oldest = self.tail.saturating_sub(u64::from(self.own.entries()));
        (oldest..self.tail).filter_map(|at| {
            let origin = self.own.word(at, 6);
            let (segment, flags) = ((origin >> 32) as u16, (origin >> 48) as u16);
            let out = flags & FLAG_INLINE == 0 && self.is_out(segment, self.own.word(at, 5) as u32, at);
            out.then_some((origin as u32, segment))
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
        let is_it = |at: &u64| {
            let origin = self.own.word(*at, 6);
            self.own.word(*at, 5) as u32 == slot
                && (origin >> 32) as u16 == segment
                && (origin >> 48) as u16 & FLAG_INLINE == 0
                && u64::from(sequence.wrapping_sub(self.own.word(*at, 2) as u32)) < self.messages_at(*at)
        };
        // Most slots were named once, and where is known: a search for each of a ring full of them would take its square.
        let held = self.held.get(usize::from(segment)).and_then(|slots| slots.get(slot as usize));
        let last = held.and_then(|held| self.tail.checked_sub((self.tail as u32).wrapping_sub(held.last).into()));
        let last = last.filter(|at| (oldest..self.tail).contains(at) && is_it(at));
        last.or_else(|| (oldest..self.tail).rev().find(is_it)).map(|at| {
            let before = u64::from(sequence.wrapping_sub(self.own.word(at, 2) as u32));
            (self.own.word(at, 6) as u32, (self.messages_at(at) - before) as u32)
        })
    }

    /// How many holds the link has on all slots; for audits.
    #[must_use]
    pub fn holds(&self) -> u64 {
        self.held.iter().flat_map(|s| s.iter()).map(|h| u64::from(h.times)).sum()
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

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use super::*;
    use crate::link::Consumer;
    use crate::memory::Heap;
    use std::sync::Arc;
    use std::time::Duration;

    /// Processor time for the fates of a ring full of messages in slots that all come back as expired.
    fn fates(entries: u32) -> Duration {
        let delivery = Arc::new(Heap::new(DeliveryBlock::bytes(entries).unwrap()));
        let returns = Arc::new(Heap::new(ReturnBlock::bytes(entries).unwrap()));
        let own = DeliveryBlock::create(delivery.clone(), entries).unwrap();
        let back = ReturnBlock::create(returns.clone(), entries).unwrap();
        let mut producer = Producer::new(own, ReturnBlock::open(returns, entries).unwrap());
        let mut consumer = Consumer::new(back, DeliveryBlock::open(delivery, entries).unwrap());
        producer.add_segment(0, entries);
        consumer.add_segment(0, entries, 128);
        for slot in 0..entries {
            let sequence = u64::from(slot) + 1;
            producer
                .push(&Descriptor { slot, sequence, length: 100, source: 7, count: 1, ..Descriptor::default() }, &[]);
        }
        while let Some(delivery) = consumer.poll().unwrap() {
            consumer.release(&delivery.descriptor, Fate::Expired);
        }
        consumer.settle();
        let mut all = Vec::new();
        producer.reclaim(|returned| all.push(returned)).unwrap();
        assert_eq!(all.len(), entries as usize);
        let now = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let begun = now();
        for returned in all {
            let Returned::Slot { segment, slot, fate: Fate::Expired, sequence } = returned else {
                panic!("{returned:?}")
            };
            assert_eq!(producer.source_of(segment, slot, sequence), Some((7, 1)));
        }
        Duration::try_from(now() - begun).unwrap()
    }

    #[test]
    fn the_sources_of_a_ring_full_of_expired_messages_are_found_at_once() {
        let least = |entries| (0..3).map(|_| fates(entries)).min().unwrap();
        let (few, many) = (least(1 << 10), least(1 << 14));
        // 16 times as many, and far from 256 times the time.
        assert!(many < few * 64, "{few:?} for a thousand, {many:?} for 16 times as many");
    }
}
