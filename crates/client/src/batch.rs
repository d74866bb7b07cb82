//! Many messages taken by a sink at once: one lock for all of them, and of a pack one count and one return. Small messages of a
//! pack are copied together, larger ones are handed out where they lie.

use crate::error::Result;
use crate::message::{Origin, RawMessage, Taken};
use crate::rx::{AHEAD, Rx, RxLink, RxSink};
use insane_shm::counters::Count;
use insane_shm::link::{Broken, Descriptor, FLAG_PACKED, FLAG_WIDE, Fate};
use insane_shm::pack::{MAX_COPIED, MAX_MESSAGE, MAX_MESSAGES, PackReader};
use insane_shm::segment::{copy_into, prefetch};
use insane_shm::steps::{Step, reach};
use smallvec::SmallVec;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// The longest pack that is taken whole, in bytes: as long as this library makes them. Others are taken message by message.
const ROOM: usize = crate::tx::PACK_BYTES as usize;

/// How many messages outside packs are taken at once: enough to make the lock cheap, few enough to leave slots to others.
const SINGLES: usize = 32;

/// What one look at the links brought.
#[derive(Debug)]
pub(crate) struct Batch {
    /// A pack's bytes: written by [`Rx::take_pack`], as many as its descriptor says.
    room: MaybeUninit<[u64; ROOM / 8]>,
    pack: Option<Whole>,
    /// Messages in slots of one source, to be given back after use, and what they have in common.
    slots: SmallVec<[Lent; MAX_MESSAGES as usize]>,
    common: Origin,
    /// Whether these are all messages of one pack, which is given back once.
    wide: bool,
    /// Messages that came otherwise, to be released after use.
    singles: SmallVec<[RawMessage; SINGLES]>,
}

/// A message in a slot. It was counted as delivered.
#[derive(Debug, Clone, Copy)]
struct Lent {
    base: NonNull<u8>,
    sequence: u64,
    timestamp_ns: u64,
    length: u32,
    slot: u32,
    segment: u16,
    priority: u8,
}

/// A pack of which this process has a copy. It was counted as delivered, and the slot was given back.
#[derive(Debug)]
struct Whole {
    origin: Origin,
    sequence: u64,
    flags: u16,
    length: u32,
    count: u16,
}

impl Batch {
    pub(crate) fn new() -> Self {
        let (slots, singles) = (SmallVec::new(), SmallVec::new());
        Self { room: MaybeUninit::uninit(), pack: None, slots, common: Origin::default(), wide: false, singles }
    }

    /// Whether something of it is to be given back.
    #[inline(always)]
    pub(crate) fn is_lent(&self) -> bool {
        !(self.slots.is_empty() && self.singles.is_empty())
    }

    /// The beginning of the copy.
    fn base(&mut self) -> NonNull<u8> {
        NonNull::new(self.room.as_mut_ptr().cast()).unwrap_or(NonNull::dangling())
    }

    /// Calls `f` with every message, in order. Returns how many there were. Messages outside packs are still to be given back,
    /// by [`Rx::give_back`].
    #[inline(always)]
    pub(crate) fn each(&mut self, f: &mut impl FnMut(&RawMessage)) -> usize {
        let mut count = self.singles.len() + self.slots.len();
        if let Some(pack) = self.pack.take() {
            count += usize::from(pack.count);
            self.each_of_pack(&pack, f);
        }
        if !self.slots.is_empty() {
            self.each_in_a_slot(f);
        }
        for message in &self.singles {
            f(message);
        }
        count
    }

    #[inline(always)]
    fn each_in_a_slot(&self, f: &mut impl FnMut(&RawMessage)) {
        let mut taken = Taken::default();
        let place = NonNull::from(&mut taken);
        for lent in &self.slots {
            let Lent { base, sequence, timestamp_ns, length, slot, segment, priority } = *lent;
            {
                // SAFETY: `taken` lives until the end of this call, and no message has it at the moment.
                let taken = unsafe { &mut *place.as_ptr() };
                taken.lies_at(base);
                taken.sequence = sequence;
                taken.length = length;
                taken.comes_from(Origin { timestamp_ns, slot, segment, priority, ..self.common });
            }
            f(&RawMessage(place));
        }
    }

    #[inline(always)]
    fn each_of_pack(&mut self, pack: &Whole, f: &mut impl FnMut(&RawMessage)) {
        let base = self.base();
        let mut taken = Taken::default();
        taken.flags = pack.flags;
        taken.sequence = pack.sequence;
        taken.comes_with(NonNull::from(&pack.origin));
        let place = NonNull::from(&mut taken);
        // SAFETY: INV-PACK-2: `take_pack` copied as many bytes, which are this process's own.
        let mut reader = unsafe { PackReader::new(base, pack.length, pack.count, MAX_COPIED) };
        // `take_pack` has read it to the end without a fault.
        while let Some(Ok(found)) = reader.next() {
            // SAFETY: INV-PACK-2: it lies in the pack.
            let there = unsafe { base.add(found.offset as usize) };
            {
                // SAFETY: `taken` lives until the end of this call, and no message has it at the moment.
                let taken = unsafe { &mut *place.as_ptr() };
                taken.lies_at(there);
                taken.length = found.length;
            }
            f(&RawMessage(place));
            // SAFETY: as above.
            unsafe { &mut *place.as_ptr() }.sequence += 1;
        }
    }
}

impl Rx {
    /// Takes what is there for the sink: a pack, or some other messages, at most `most`. Whether there was anything. Never
    /// blocks.
    ///
    /// # Errors
    /// [`crate::Code::Closed`].
    #[inline(always)]
    pub(crate) fn take_batch(&mut self, sink: usize, most: usize, batch: &mut Batch) -> Result<bool> {
        if self.take_pack(sink, most, batch) || self.take_slots(sink, most, batch) {
            return Ok(true);
        }
        self.take_singles(sink, most, batch)
    }

    /// Takes messages in slots from the link whose turn it is, as long as they are of the source that the last one came from
    /// and for this sink alone. Whether there were any; of others [`Self::take`] knows.
    #[inline(never)]
    fn take_slots(&mut self, sink: usize, most: usize, batch: &mut Batch) -> bool {
        let at = self.following();
        let Some(link) = usual(&self.sinks, &mut self.links, sink, at) else { return false };
        let Some((source, _, epoch, cell)) = link.recent.as_ref().filter(|(_, index, ..)| *index == sink) else {
            return false;
        };
        let mut bytes = 0;
        while batch.slots.len() < most.min(SINGLES) {
            let Some(found) = link.consumer.poll_slot(*source) else { break };
            // Of a source all messages are of one channel, if it is honest.
            let segment = link.segments.get(usize::from(found.segment)).and_then(Option::as_ref);
            let there = segment.and_then(|s| s.locate(found.slot, found.offset, found.length));
            let (base, length) = there.map_or((NonNull::dangling(), 0), |base| (base, found.length));
            prefetch(base, (length as usize).min(AHEAD));
            if batch.slots.is_empty() {
                batch.common = Origin {
                    channel: found.channel,
                    epoch: *epoch,
                    source: *source,
                    link: at as u32,
                    generation: link.generation(),
                    trusted: link.trusted,
                    ..Origin::default()
                };
            }
            let Descriptor { sequence, timestamp_ns, priority, segment, slot, .. } = found;
            batch.slots.push(Lent { base, sequence, timestamp_ns, length, slot, segment, priority });
            bytes += u64::from(length);
            reach(Step::Hold);
        }
        let count = batch.slots.len();
        if count == 0 {
            return false;
        }
        cell.add(Count::Delivered, count as u64);
        cell.add(Count::Bytes, bytes);
        link.out += count as u64;
        self.next = at;
        true
    }

    /// Gives back what a batch was lent.
    pub(crate) fn give_back(&mut self, batch: &mut Batch) {
        for message in batch.singles.drain(..) {
            self.release_slowly(message);
        }
        let at = batch.common.link as usize;
        let Some(Some(link)) = self.links.get_mut(at).filter(|_| !batch.slots.is_empty()) else { return };
        if link.generation() == batch.common.generation {
            // Of a pack one return is for all.
            let returns = if batch.wide { 1 } else { batch.slots.len() };
            link.out -= returns as u64;
            for lent in &batch.slots[..returns] {
                link.consumer.release_slot(lent.segment, lent.slot, lent.sequence as u32);
            }
            link.gave_back();
            if link.is_over() {
                self.sweep(at);
            }
        }
        batch.slots.clear();
        batch.wide = false;
    }

    #[inline(never)]
    fn take_singles(&mut self, sink: usize, most: usize, batch: &mut Batch) -> Result<bool> {
        while batch.singles.len() < most.min(SINGLES) {
            match self.take(sink) {
                Ok(Some(message)) => {
                    // While one with a deadline is used, the next one may expire.
                    let expires = message.get().extra.as_ref().is_some_and(|extra| extra.deadline_ns != 0);
                    batch.singles.push(message);
                    if expires {
                        break;
                    }
                }
                Ok(None) => break,
                // What was taken before is handed out first; the next call says it again.
                Err(_) if !batch.singles.is_empty() => break,
                Err(e) => return Err(e),
            }
            if self.pack_is_next() {
                break;
            }
        }
        Ok(!batch.singles.is_empty())
    }

    /// Whether the next message that [`Self::take_pack`] would look at begins a pack.
    fn pack_is_next(&self) -> bool {
        let Some(Some(link)) = self.links.get(self.following()) else { return false };
        link.pack.is_none() && link.broken.is_none() && link.consumer.packed_is_next()
    }

    /// Takes a pack as a whole, if the link whose turn it is has one that is for this sink alone.
    #[inline(always)]
    fn take_pack(&mut self, sink: usize, most: usize, batch: &mut Batch) -> bool {
        let at = self.following();
        let next = usual(&self.sinks, &mut self.links, sink, at).filter(|l| l.consumer.packed_is_next());
        let Some(link) = next else { return false };
        self.next = at;
        let (d, position) = match link.consumer.poll_descriptor() {
            Ok(Some((d, position))) if d.flags & FLAG_PACKED != 0 => (d, position),
            Ok(None) => return false,
            // It was a pack a moment ago, and nobody who is honest writes to it after that.
            Ok(Some((d, _))) => {
                link.break_off(Broken::of(&d), &mut self.packs);
                return false;
            }
            Err(broken) => {
                link.break_off(broken, &mut self.packs);
                return false;
            }
        };
        let wide = d.flags & FLAG_WIDE != 0;
        let recent = link.recent.as_ref().filter(|(source, index, ..)| *source == d.source && *index == sink);
        let fits = d.deadline_ns == 0 && usize::from(d.count) <= most && (wide || d.length as usize <= ROOM);
        let Some((_, _, epoch, cell)) = recent.filter(|_| fits) else { return self.one_by_one(&d, position, at) };
        let segment = link.segments.get(usize::from(d.segment)).and_then(Option::as_ref);
        let there = segment.and_then(|s| s.locate(d.slot, d.offset, d.length)).ok_or(Unfit::Lies);
        let bytes = match there.and_then(|there| if wide { spread(there, &d, batch) } else { copy(there, &d, batch) }) {
            Ok(bytes) => bytes,
            Err(Unfit::Mixed) => return self.one_by_one(&d, position, at),
            Err(Unfit::Lies) => {
                link.break_off(Broken::of(&d), &mut self.packs);
                return false;
            }
        };
        cell.add(Count::Delivered, u64::from(d.count));
        cell.add(Count::Bytes, bytes);
        let origin = Origin::new(&d, *epoch, at, link.generation(), link.trusted);
        reach(Step::Hold);
        if wide {
            (batch.common, batch.wide) = (origin, true);
            link.out += 1;
        } else {
            batch.pack = Some(Whole { origin, sequence: d.sequence, flags: d.flags, length: d.length, count: d.count });
            link.release(&d, Fate::AsCounted);
        }
        true
    }

    /// A pack whose messages are taken one by one. The caller goes on with that.
    #[cold]
    fn one_by_one(&mut self, d: &Descriptor, position: u64, at: usize) -> bool {
        if let Some(Some(link)) = self.links.get_mut(at)
            && let Err(broken) = link.unpack(*d, position, at, &mut self.packs)
        {
            link.break_off(broken, &mut self.packs);
        }
        self.next = self.preceding(at);
        false
    }

    #[inline(always)]
    fn following(&self) -> usize {
        if self.next + 1 >= self.links.len() { 0 } else { self.next + 1 }
    }

    /// The turn after which `at` follows.
    fn preceding(&self, at: usize) -> usize {
        if at == 0 { self.links.len().saturating_sub(1) } else { at - 1 }
    }
}

/// A link from which many messages may be taken at once: the sink has no others, and nothing of the link is half taken.
#[inline(always)]
fn usual<'a>(
    sinks: &[Option<RxSink>],
    links: &'a mut [Option<RxLink>],
    sink: usize,
    at: usize,
) -> Option<&'a mut RxLink> {
    let me = sinks.get(sink)?.as_ref()?;
    let link = links.get_mut(at)?.as_mut()?;
    (me.open && me.queue.is_empty() && link.pack.is_none() && link.broken.is_none()).then_some(link)
}

/// Why a pack is not taken whole.
#[derive(Debug, Clone, Copy)]
enum Unfit {
    /// There are small messages beside larger ones.
    Mixed,
    /// Its lengths go past its end.
    Lies,
}

/// Copies a pack of small messages and reads it to its end. Returns the bytes of its payloads.
#[inline(always)]
fn copy(there: NonNull<u8>, d: &Descriptor, batch: &mut Batch) -> Result<u64, Unfit> {
    let base = batch.base();
    let length = d.length as usize;
    if length > ROOM {
        return Err(Unfit::Lies);
    }
    // SAFETY: the room has as many bytes, which are this batch's alone; they need not be anything to be written to.
    let to = unsafe { std::slice::from_raw_parts_mut(base.as_ptr().cast::<MaybeUninit<u8>>(), length) };
    // SAFETY: INV-LINK-4: `locate` has checked that so many bytes are mapped there.
    unsafe { copy_into(there, to) };
    // SAFETY: INV-PACK-2: so many bytes were written, aligned to eight.
    let mut reader = unsafe { PackReader::new(base, d.length, d.count, MAX_COPIED) };
    let mut bytes = 0;
    while let Some(found) = reader.next() {
        bytes += u64::from(found.map_err(|_| Unfit::Lies)?.length);
    }
    Ok(bytes)
}

/// Finds out where the messages of a pack of larger ones lie. Returns the bytes of their payloads.
#[inline(always)]
fn spread(there: NonNull<u8>, d: &Descriptor, batch: &mut Batch) -> Result<u64, Unfit> {
    // They are mostly of one size: so the lengths are on their way before the first of them has come.
    let stride = (d.length / u32::from(d.count.max(1))) as usize;
    for at in (0..d.length as usize).step_by(stride.max(64)) {
        // SAFETY: `locate` has checked that these bytes are mapped.
        prefetch(unsafe { there.add(at) }, AHEAD);
    }
    // SAFETY: INV-PACK-2: as above, aligned, and mapped while the pack is out.
    let mut reader = unsafe { PackReader::new(there, d.length, d.count, MAX_MESSAGE) };
    let (mut bytes, mut sequence) = (0, d.sequence);
    while let Some(found) = reader.next() {
        let unfit = match found {
            Ok(found) if found.length > MAX_COPIED => {
                // SAFETY: INV-PACK-2: the reader has checked it.
                let base = unsafe { there.add(found.offset as usize) };
                bytes += u64::from(found.length);
                let Descriptor { timestamp_ns, priority, segment, slot, .. } = *d;
                batch.slots.push(Lent { base, sequence, timestamp_ns, length: found.length, slot, segment, priority });
                sequence = sequence.wrapping_add(1);
                continue;
            }
            Ok(_) => Unfit::Mixed,
            Err(_) => Unfit::Lies,
        };
        batch.slots.clear();
        return Err(unfit);
    }
    Ok(bytes)
}
