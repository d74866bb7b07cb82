//! The sending half of a stream: its slots, its links to sessions with sinks, its sources. Private memory, behind the
//! stream's biased lock.

use crate::blocks::{Block, Pool};
use crate::error::{Code, Error, Result};
use crate::log::{Entry, Log};
use crate::revive::Parked;
use crate::session::Shared;
use insane_shm::counters::{CellWriter, Count, Counters, FINAL_AT_SINK};
use insane_shm::doorbell::Doorbell;
use insane_shm::link::{Broken, Descriptor, FLAG_TIMESTAMP, Fate, INLINE_BYTES, Producer, Returned};
use insane_shm::segment::Segment;
use insane_shm::slab::{Slab, SlotId, Told};
use insane_shm::wait::WakeNeed;
use insane_wire::id::SinkId;
use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

mod lag;
mod outcome;
mod pack;
mod places;
mod room;
#[cfg(feature = "faults")]
mod spoil;
#[cfg(test)]
mod tests;
#[cfg(not(feature = "faults"))]
mod unspoiled;

pub(crate) use lag::{Ask, Holder, Question, Taken};
pub use outcome::Outcome;
pub(crate) use pack::{PACK_BYTES, Pack, Packs, WIDE_BYTES};
pub(crate) use places::Places;
use room::Lead;
#[cfg(feature = "faults")]
pub(crate) use spoil::Faults;

/// How many drops and how many ended flows a source remembers for the outcome of its tokens.
const REMEMBERED: usize = 4096;

/// Returned slots are taken back at least after so many were lent: few enough that the slots in use stay in the caches, which
/// all slots of a segment would not, many enough that looking at the return ring costs nothing.
const TAKES_PER_RECLAIM: u32 = 32;

/// The state behind the lock.
#[derive(Debug, Default)]
pub(crate) struct Tx {
    pub(crate) slab: Slab,
    /// Where payloads that go inside their descriptors are written.
    pub(crate) blocks: Pool<Block>,
    pub(crate) links: Vec<Option<TxLink>>,
    pub(crate) sources: Vec<Option<TxSource>>,
    pub(crate) places: Places,
    /// What all segments of this stream together may take, in bytes.
    pub(crate) share: u64,
    /// What all segments of the session take.
    pub(crate) session_bytes: Arc<AtomicU64>,
    /// What one link may hold of it.
    pub(crate) link_cap: u64,
    /// Segments that some link may not have mapped yet.
    pub(crate) fresh: Vec<u16>,
    /// When other streams were asked last for what they do not need.
    pub(crate) asked_others: Option<Instant>,
    /// Whether there ever was a link that sinks share.
    pub(crate) shares: bool,
    /// Slots taken since returned ones were last taken back.
    pub(crate) takes: u32,
    /// Whether slots to pack small messages into are wanted, or were made; and slots for larger ones.
    pub(crate) packs: Packs,
    pub(crate) wide_packs: Packs,
    /// Why the runtime has not opened sources again, by their places.
    pub(crate) refused: HashMap<usize, Error>,
    /// What consumers were asked and have not answered, and how often they were.
    pub(crate) questions: Vec<Question>,
    pub(crate) questions_asked: u32,
}

/// One link to a session with sinks.
#[derive(Debug)]
pub(crate) struct TxLink {
    pub(crate) producer: Producer,
    /// What its consumer knows of the segments.
    pub(crate) told: Told,
    /// The consumer's counts, read-only.
    pub(crate) peer: Counters,
    pub(crate) doorbell: Doorbell,
    /// Bytes of slots that the link holds, and of those that are filled for it.
    pub(crate) held: u64,
    /// How far who waits for room may be ahead.
    lead: Lead,
    /// Credit that is set aside for packs which are being filled.
    reserved: u64,
    /// The least that its consumer was told it may keep, in bytes.
    pub(crate) room: u64,
    /// Best effort between sessions: the consumer sees to it that its sinks leave each other room.
    divides: bool,
    /// It does so and there were two: for ever, as the consumer hears later than this end that one is gone.
    shared: bool,
    pub(crate) room_sleepers: u32,
    /// Messages were put on it and whether its consumer sleeps was not looked at since.
    unwoken: bool,
    pub(crate) broken: Option<Broken>,
    /// Messages that came back with a fate and were not noted yet.
    fates: Vec<Returned>,
    /// Flows that were closed in good order while messages for them were still under way.
    pub(crate) closing: Vec<Closing>,
    /// Whether the consumer is the runtime, whose counts are taken over when it is gone.
    pub(crate) network: bool,
    /// On a reliable stream towards the runtime: what is under way.
    pub(crate) log: Option<Log>,
    /// The runtime is gone, and the flows wait for the next.
    pub(crate) parked: Option<Parked>,
    /// The parked link whose messages this one takes over.
    pub(crate) stands_for: Option<usize>,
    /// The session, whose service thread hears of a broken link.
    session: Arc<Shared>,
}

/// A closed flow whose sink has not counted everything yet. If its process dies first, the rest is unconfirmed.
#[derive(Debug)]
pub(crate) struct Closing {
    /// The source's number.
    pub(crate) source: u32,
    pub(crate) sink: SinkId,
    cell: CellWriter,
    peer_cell: u32,
    /// The numbers of its first and last message.
    span: (u64, u64),
    given: u64,
    before: u64,
}

/// One source.
#[derive(Debug)]
pub(crate) struct TxSource {
    /// By which others know it, who may do so for longer than it is there: unlike its place it is not used again.
    pub(crate) number: u32,
    pub(crate) channel: u64,
    pub(crate) sequence: u64,
    /// The priority of its messages.
    pub(crate) priority: u8,
    pub(crate) cell: CellWriter,
    pub(crate) routes: Vec<Route>,
    pub(crate) ended: VecDeque<EndedFlow>,
    /// Messages that wait for more of them. While there is a pack, every link of the routes has room for it.
    pub(crate) pack: Option<Pack>,
    /// Whether larger messages are to be packed: more were to come when the last one was emitted.
    pub(crate) batching: bool,
    /// How many packs in a row were closed before a piece of them that was lent came back: whoever fills several buffers at a
    /// time has nothing of packs.
    pub(crate) astray: u8,
    /// Reliable: after how long it gives up sinks that make no room, if it does.
    pub(crate) gives_up: Option<Duration>,
    /// What its tests do to its messages.
    #[cfg(feature = "faults")]
    pub(crate) faults: Option<Box<Faults>>,
}

/// The flows of one source over one link.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) link: usize,
    pub(crate) flows: Vec<TxFlow>,
    /// The number of the sink that joined last.
    pub(crate) joined: u16,
}

impl Route {
    /// Whether messages are meant for a sink of it, and not for observers alone.
    pub(crate) fn is_meant(&self) -> bool {
        self.flows.iter().any(|flow| !flow.observer)
    }
}

/// The source's end of one flow.
#[derive(Debug)]
pub(crate) struct TxFlow {
    pub(crate) sink: SinkId,
    pub(crate) cell: CellWriter,
    pub(crate) peer_cell: u32,
    pub(crate) observer: bool,
    /// The first message that is meant for it.
    pub(crate) start: u64,
    /// Messages that were put on the link, or on those that it took over from.
    pub(crate) given: u64,
    /// How many of them had ended before this link, and how many were known to have ended at any time.
    pub(crate) before: u64,
    pub(crate) known: u64,
    /// Messages that were not, newest last, and how many older ones are forgotten.
    drops: VecDeque<u64>,
    forgotten: u64,
    /// Messages that ended at the sink in another way than delivery.
    fates: VecDeque<(u32, Fate)>,
}

/// A flow that has ended: what a token can still ask of it.
#[derive(Debug)]
pub(crate) struct EndedFlow {
    pub(crate) flow: TxFlow,
    end: u64,
    pub(crate) finished: u64,
    /// The link on which its last messages may still be under way.
    pub(crate) link: Option<usize>,
    /// Its sink was given up: what has ended and was not taken there was dropped.
    given_up: bool,
}

/// The slot of a message and where it begins there, or none. In one word: what is written in parts and read as a whole waits until the parts, and all that
/// was written before them, have left the processor, and that is a payload on its way to another core's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(u64);

impl Place {
    /// No slot: the payload goes inside the descriptor.
    pub(crate) const NONE: Self = Self(u64::MAX);

    #[inline(always)]
    pub(crate) fn of(slot: SlotId) -> Self {
        Self(u64::from(slot.segment) << 32 | u64::from(slot.slot))
    }

    #[inline(always)]
    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// A piece of a pack, `offset` bytes from the slot's beginning: a multiple of eight, never 0, below 2^19.
    #[inline(always)]
    pub(crate) fn piece(slot: SlotId, offset: u32) -> Self {
        Self(Self::of(slot).0 | u64::from(offset / 8) << 48)
    }

    #[inline(always)]
    pub(crate) fn slot(self) -> Option<SlotId> {
        (!self.is_none()).then_some(SlotId { segment: (self.0 >> 32) as u16, slot: self.0 as u32 })
    }

    /// In bytes from the slot's beginning.
    #[inline(always)]
    pub(crate) fn offset(self) -> u32 {
        if self.is_none() { 0 } else { (self.0 >> 48) as u32 * 8 }
    }

    #[inline(always)]
    pub(crate) fn is_piece(self) -> bool {
        self.offset() > 0
    }
}

/// What is to be emitted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Emit<'a> {
    pub(crate) place: Place,
    /// The payload, if it goes inside the descriptor.
    pub(crate) inline: &'a [u8],
    pub(crate) length: u32,
    pub(crate) deadline_ns: u64,
    pub(crate) timestamp_ns: u64,
    pub(crate) priority: u8,
    /// More follows: sleepers are woken later.
    pub(crate) more: bool,
}

impl TxFlow {
    pub(crate) fn new(sink: SinkId, cell: CellWriter, peer_cell: u32, observer: bool, start: u64) -> Self {
        let (drops, fates) = (VecDeque::new(), VecDeque::new());
        Self { sink, cell, peer_cell, observer, start, given: 0, before: 0, known: 0, drops, forgotten: 0, fates }
    }

    /// Counts the messages of a descriptor as dropped.
    fn dropped(&mut self, descriptor: &Descriptor, why: Count) {
        let count = descriptor.messages();
        if !self.observer {
            self.cell.add(Count::Intended, count);
            self.cell.add(why, count);
        }
        for sequence in descriptor.sequence..descriptor.sequence + count {
            if self.drops.len() == REMEMBERED {
                self.drops.pop_front();
                self.forgotten += 1;
            }
            self.drops.push_back(sequence);
        }
    }

    /// Which of the messages that were put on the link this one is, from 1.
    pub(crate) fn ordinal(&self, sequence: u64) -> u64 {
        let before = self.drops.partition_point(|d| *d < sequence);
        (sequence + 1).saturating_sub(self.start + self.forgotten + before as u64)
    }

    /// The state of message `sequence`, given how many of the flow's messages are finished.
    fn state(&self, sequence: u64, finished: u64, over: bool, outcome: &mut Outcome) {
        if self.observer {
            return;
        }
        outcome.intended += 1;
        let before = self.drops.partition_point(|d| *d < sequence);
        if self.drops.get(before) == Some(&sequence) {
            outcome.dropped += 1;
            return;
        }
        match self.fates.iter().find(|(s, _)| *s == sequence as u32) {
            Some((_, Fate::Expired)) => outcome.expired += 1,
            Some((_, Fate::Dropped)) => outcome.dropped += 1,
            _ if self.ordinal(sequence) <= finished.saturating_sub(self.overtook(sequence)) => outcome.delivered += 1,
            _ if over => outcome.unconfirmed += 1,
            _ => outcome.pending += 1,
        }
    }

    /// How many messages after this one ended before it, as far as that is remembered: those that were late, or found no room, while it
    /// waited for its sink to take it.
    fn overtook(&self, sequence: u64) -> u64 {
        let later = |(s, _): &&(u32, Fate)| (s.wrapping_sub(sequence as u32) as i32) > 0;
        self.fates.iter().filter(later).count() as u64
    }
}

impl TxLink {
    /// `network`: towards the runtime. Then what is under way on a `reliable` stream is known.
    pub(crate) fn new(
        producer: Producer,
        peer: Counters,
        (network, reliable): (bool, bool),
        session: Arc<Shared>,
    ) -> Self {
        Self {
            producer,
            told: Told::default(),
            peer,
            doorbell: Doorbell::default(),
            held: 0,
            lead: Lead::default(),
            reserved: 0,
            room: u64::MAX,
            divides: !network && !reliable,
            shared: false,
            room_sleepers: 0,
            unwoken: false,
            broken: None,
            fates: Vec::new(),
            closing: Vec::new(),
            network,
            log: (network && reliable).then(Log::default),
            parked: None,
            stands_for: None,
            session,
        }
    }

    /// How many of the `given` messages of a flow its sink has counted. A cell that is another flow's by now was this one's
    /// until all was counted.
    pub(crate) fn finished(&self, sink: SinkId, peer_cell: u32, given: u64, before: u64) -> u64 {
        match self.peer.get(peer_cell) {
            Some(cell) if cell.sink == sink.0 => before + self.peer.finished(peer_cell).min(given - before),
            _ => given,
        }
    }

    /// As [`Self::finished`], of a flow that is open.
    pub(crate) fn finished_of(&self, flow: &TxFlow) -> u64 {
        (flow.before + self.peer.finished(flow.peer_cell).min(flow.given - flow.before)).max(flow.known)
    }

    /// Takes over what a runtime that is gone has counted of a flow: `messages` ended there. Its sinks have those of which it
    /// said nothing: it had given them back.
    pub(crate) fn take_over(&self, cell: &CellWriter, sink: SinkId, peer_cell: u32, messages: u64) {
        let mut left = messages;
        if let Some(counted) = self.peer.get(peer_cell).filter(|c| c.sink == sink.0) {
            for count in FINAL_AT_SINK.into_iter().filter(|c| *c != Count::Delivered) {
                let ended = counted.get(count).min(left);
                cell.add(count, ended);
                left -= ended;
            }
        }
        cell.add(Count::Delivered, left);
    }

    /// Remembers a flow that was closed, and forgets those that are finished meanwhile.
    fn close(&mut self, flow: Closing) {
        self.closing.push(flow);
        let closing = std::mem::take(&mut self.closing);
        let open = |f: &Closing| self.finished(f.sink, f.peer_cell, f.given, f.before) < f.given;
        self.closing = closing.into_iter().filter(open).collect();
    }

    /// Counts what the consumer, which is gone, had not counted of a flow as unconfirmed: one by one over the messages that
    /// the ring still shows, nothing is taken from a difference. Returns how many were finished.
    pub(crate) fn unconfirmed(&self, flow: &Closing) -> u64 {
        let finished = self.finished(flow.sink, flow.peer_cell, flow.given, flow.before);
        let (first, last) = flow.span;
        let mut ordinal = flow.given;
        if let Some(log) = &self.log {
            let is_of = |e: &&Entry| {
                let d = &e.descriptor;
                d.source == flow.source && (first..=last).contains(&d.sequence) && e.is_out(&self.producer)
            };
            let left = (log.iter().filter(is_of).count() as u64).min(flow.given - finished);
            flow.cell.add(Count::Unconfirmed, left);
            if self.network {
                self.take_over(&flow.cell, flow.sink, flow.peer_cell, flow.given - flow.before - left);
            }
            return flow.given - left;
        }
        if self.network {
            // A runtime gives messages back as soon as it has copied them, and counts them when the sink's host has told it. Of those
            // the ring shows the last only: it is used again.
            self.take_over(&flow.cell, flow.sink, flow.peer_cell, finished - flow.before);
            flow.cell.add(Count::Unconfirmed, flow.given - finished);
            return finished;
        }
        for (source, sequence) in self.producer.recent() {
            if ordinal <= finished {
                break;
            }
            if source == flow.source && (first..=last).contains(&sequence) {
                flow.cell.add(Count::Unconfirmed, 1);
                ordinal -= 1;
            }
        }
        finished
    }

    /// Takes back what the consumer returned. The link is marked broken when it lies.
    pub(crate) fn reclaim(&mut self, slab: &mut Slab) {
        let (before, held, fates) = (self.held, &mut self.held, &mut self.fates);
        let result = self.producer.reclaim(|returned| {
            let fate = match returned {
                Returned::Slot { segment, slot, fate, .. } => {
                    *held = held.saturating_sub(slab.stride(segment));
                    slab.unhold(SlotId { segment, slot });
                    fate
                }
                Returned::Credit { fate, .. } => fate,
            };
            if fate != Fate::AsCounted {
                fates.push(returned);
            }
        });
        if let Err(broken) = result
            && self.broken.replace(broken).is_none()
        {
            self.session.ring();
        }
        if let Some(log) = &mut self.log {
            log.trim(&self.producer);
            self.lead.follow(before, self.held);
        }
    }

    /// Whether it has room for a message in a slot of `bytes` (0: inside the descriptor), after taking back what was returned
    /// if need be.
    #[inline]
    fn has_room(&mut self, bytes: u64, cap: u64, slab: &mut Slab) -> bool {
        if self.fits(bytes, cap) {
            return true;
        }
        self.has_room_again(bytes, cap, slab)
    }

    #[inline(never)]
    fn has_room_again(&mut self, bytes: u64, cap: u64, slab: &mut Slab) -> bool {
        self.reclaim(slab);
        self.fits(bytes, cap)
    }

    #[inline(always)]
    fn fits(&self, bytes: u64, cap: u64) -> bool {
        self.producer.credit() > self.reserved && (self.held == 0 || self.held + bytes <= cap)
    }

    /// As [`Self::fits`], for who is to lose nothing.
    #[inline(always)]
    fn fits_for_all(&self, bytes: u64, cap: u64) -> bool {
        self.fits(bytes, cap.min(self.lead.for_one_of(bytes))) && (!self.shared || self.fits_in_half(bytes))
    }

    /// A pack is taken for as large as they come: whether one is open that has room is not known yet.
    #[inline(never)]
    fn fits_in_half(&self, bytes: u64) -> bool {
        let entries = self.producer.credit() > self.reserved + u64::from(self.producer.entries()) / 2;
        entries && (self.held == 0 || (self.held + bytes.max(WIDE_BYTES)).saturating_mul(2) <= self.room)
    }

    /// Puts one message on the link, or counts it as dropped for each of its `flows`. Whether it had to look what came back, for
    /// [`Tx::note_fates`].
    #[inline(always)]
    fn give(
        &mut self,
        flows: &mut [TxFlow],
        descriptor: &Descriptor,
        emit: &Emit<'_>,
        bytes: u64,
        cap: u64,
        slab: &mut Slab,
    ) -> bool {
        let full = !self.fits(bytes, cap);
        let room = !full || self.has_room_again(bytes, cap, slab);
        let mapped = emit.place.slot().is_none_or(|s| self.producer.is_mapped(s.segment));
        if !room || !mapped || self.broken.is_some() {
            let why = if self.broken.is_some() { Count::Dropped } else { Count::SinkFull };
            for flow in flows {
                flow.dropped(descriptor, why);
            }
            return full;
        }
        let count = descriptor.messages();
        // Counted before it is published: a sink never sees a message that was meant for nobody.
        for flow in flows {
            flow.given += count;
            if !flow.observer {
                flow.cell.add(Count::Intended, count);
            }
        }
        if let Some(slot) = emit.place.slot() {
            slab.hold(slot);
            self.held += bytes;
        }
        if let Some(log) = &mut self.log {
            log.put(&self.producer, descriptor, !emit.place.is_none(), emit.inline);
        }
        self.producer.push(descriptor, emit.inline);
        if emit.more {
            self.unwoken = true;
        } else {
            self.wake();
        }
        full
    }

    /// Wakes the consumer if it sleeps. Never blocks.
    #[inline]
    pub(crate) fn wake(&mut self) {
        self.unwoken = false;
        if self.producer.wake() == WakeNeed::Ring {
            self.doorbell.ring();
        }
    }
}

impl Tx {
    /// Whether a segment for packs is to be made.
    #[inline(always)]
    pub(crate) fn wants_packs(&self) -> bool {
        self.packs == Packs::Wanted || self.wide_packs == Packs::Wanted
    }

    /// There is one flow more on a link.
    pub(crate) fn note_sharing(&mut self, at: usize) {
        let mut sinks = self.flows_on(at).into_iter().map(|(_, sink, _)| sink);
        let several = sinks.next().is_some_and(|first| sinks.any(|other| other != first));
        if let Some(link) = self.links[at].as_mut().filter(|link| link.divides && several) {
            link.shared = true;
            self.shares = true;
        }
    }

    fn routes(&self, source: usize) -> impl Iterator<Item = &Route> {
        self.sources.get(source).and_then(Option::as_ref).into_iter().flat_map(|s| s.routes.iter())
    }

    /// Gives memory back that the application held: what was emitted lives on in the links' holds.
    #[inline]
    pub(crate) fn give_back(&mut self, base: NonNull<u8>, place: Place) {
        match place.slot() {
            Some(_) if place.is_piece() => self.take_back(place),
            Some(slot) => {
                self.slab.unhold(slot);
            }
            None => self.blocks.give_back(base.cast::<Block>()),
        }
    }

    /// Takes a slot, taking back returned ones when they run short. `None`: all are held.
    #[inline]
    pub(crate) fn take(&mut self, len: u64) -> Option<insane_shm::slab::Taken> {
        self.takes += 1;
        if self.takes >= TAKES_PER_RECLAIM || self.slab.available(len) == 0 {
            self.takes = 0;
            self.reclaim_all();
        }
        self.slab.take(len)
    }

    /// Gives back segments that hold nothing, of `bytes` bytes or more, but for those whose slots are for messages of `len` bytes.
    /// Returns them, to be dropped without the lock; none when they would not be as many bytes.
    pub(crate) fn make_room(&mut self, bytes: u64, len: u64) -> Vec<Arc<Segment>> {
        let spare = self.slab.spare(bytes, len);
        self.give_back_all(&spare)
    }

    /// Gives back segments that hold nothing, the largest first, until they are of `bytes` bytes; whatever their slots are for, but none that
    /// was made just now. Returns them, to be dropped without the lock.
    pub(crate) fn give_up_idle(&mut self, bytes: u64) -> Vec<Arc<Segment>> {
        self.note_mapped();
        let (numbers, _) = self.slab.largest_idle(bytes, |number, _| !self.fresh.contains(&number));
        self.give_back_all(&numbers)
    }

    fn give_back_all(&mut self, numbers: &[u16]) -> Vec<Arc<Segment>> {
        let mut segments = Vec::new();
        for &number in numbers {
            let Some(segment) = self.slab.give_back(number) else { continue };
            self.session_bytes.fetch_sub(segment.bytes(), Ordering::AcqRel);
            // They are made again when they are wanted again.
            match segment.geometry().stride {
                PACK_BYTES => self.packs = Packs::Unasked,
                WIDE_BYTES => self.wide_packs = Packs::Unasked,
                _ => {}
            }
            for link in self.links.iter_mut().flatten() {
                link.told.given_back(number, &mut link.producer);
            }
            self.fresh.retain(|fresh| *fresh != number);
            segments.push(segment);
        }
        segments
    }

    /// Adds a segment under a number of which no link still has to answer.
    pub(crate) fn add_segment(&mut self, segment: Arc<Segment>) -> Result<u16> {
        let Self { slab, links, .. } = self;
        let (slots, bytes) = (segment.geometry().slots, segment.bytes());
        let number = slab.add(segment, |n| !links.iter().flatten().any(|l| l.told.awaits(n)))?;
        // Nobody is there to answer, and nobody reads from it.
        for link in links.iter_mut().flatten().filter(|l| l.is_parked()) {
            link.producer.add_segment(number, slots);
        }
        self.session_bytes.fetch_add(bytes, Ordering::AcqRel);
        self.fresh.push(number);
        Ok(number)
    }

    /// Takes back what any link returned.
    pub(crate) fn reclaim_all(&mut self) {
        for link in self.links.iter_mut().flatten() {
            link.reclaim(&mut self.slab);
        }
        self.note_fates();
    }

    #[inline(never)]
    fn note_fates(&mut self) {
        (0..self.links.len()).for_each(|at| self.note_fates_of(at));
    }

    fn note_fates_of(&mut self, at: usize) {
        let fates = self.links[at].as_mut().map_or_else(Vec::new, |link| std::mem::take(&mut link.fates));
        fates.into_iter().for_each(|returned| self.note_fate(returned, at));
    }

    #[cold]
    fn note_fate(&mut self, returned: Returned, at: usize) {
        let Some(link) = self.links[at].as_ref() else { return };
        let at = link.stands_for.unwrap_or(at);
        let (source, sequence, fate) = match returned {
            Returned::Slot { segment, slot, fate, sequence } => {
                (link.producer.source_of(segment, slot, sequence), sequence, fate)
            }
            Returned::Credit { fate, sequence, source, .. } => (Some((source, 1)), sequence, fate),
        };
        let count = source.map_or(0, |(_, count)| count);
        let source = source.map(|(source, _)| source);
        let Some(source) = source.and_then(|number| self.source_mut(number)) else { return };
        let live = source.routes.iter_mut().filter(|r| r.link == at).flat_map(|r| r.flows.iter_mut());
        // A sink that closes says so before it gives back what it did not take.
        let ended = source.ended.iter_mut().filter(|e| e.link == Some(at)).map(|e| &mut e.flow);
        for flow in live.chain(ended) {
            for n in 0..count {
                if flow.fates.len() == REMEMBERED {
                    flow.fates.pop_front();
                }
                flow.fates.push_back((sequence.wrapping_add(n), fate));
            }
        }
    }

    /// Emits a small message of a source with one sink, as they mostly are, in one straight line; `None`: it takes the long way.
    #[inline(always)]
    pub(crate) fn emit_small(&mut self, index: usize, payload: &[u8]) -> Option<u64> {
        let Some(Some(source)) = self.sources.get_mut(index) else { return None };
        let TxSource {
            number,
            sequence,
            cell,
            routes,
            pack: None,
            #[cfg(feature = "faults")]
                faults: None,
            channel,
            priority,
            ..
        } = source
        else {
            return None;
        };
        let [route] = &mut routes[..] else { return None };
        let [flow] = &mut route.flows[..] else { return None };
        let Some(Some(link)) = self.links.get_mut(route.link) else { return None };
        if flow.observer || link.broken.is_some() || link.producer.credit() <= link.reserved {
            return None;
        }
        *sequence += 1;
        let length = payload.len() as u32;
        cell.add(Count::Emitted, 1);
        cell.add(Count::Bytes, length.into());
        // Counted before it is published: a sink never sees a message that was meant for nobody.
        flow.given += 1;
        flow.cell.add(Count::Intended, 1);
        let (channel, source, priority, joined) = (*channel, *number, *priority, route.joined);
        let short = Descriptor {
            channel,
            sequence: *sequence,
            length,
            source,
            priority,
            count: 1,
            joined,
            ..Descriptor::default()
        };
        link.producer.push(&short, payload);
        link.wake();
        Some(*sequence)
    }

    /// Emits one message to every sink in the source's view; links without room drop it and count that. Returns its number.
    /// The caller's own hold on the slot stays the caller's.
    #[inline(always)]
    pub(crate) fn emit(&mut self, index: usize, emit: &Emit<'_>) -> Result<u64> {
        let Some(Some(source)) = self.sources.get_mut(index) else {
            return Err(self.closed(index));
        };
        if source.pack.is_some() {
            return self.emit_after_pack(index, emit);
        }
        if source.routes.is_empty() {
            if let Some(why) = self.refused.get(&index) {
                return Err(why.clone());
            }
            source.cell.add(Count::NoSink, 1);
        }
        source.batching = emit.more;
        source.sequence += 1;
        let sequence = source.sequence;
        source.cell.add(Count::Emitted, 1);
        source.cell.add(Count::Bytes, u64::from(emit.length));
        let slot = emit.place.slot().unwrap_or(SlotId { segment: 0, slot: 0 });
        let mut descriptor = Descriptor {
            channel: source.channel,
            sequence,
            deadline_ns: emit.deadline_ns,
            timestamp_ns: emit.timestamp_ns,
            slot: slot.slot,
            offset: emit.place.offset(),
            length: emit.length,
            source: source.number,
            segment: slot.segment,
            flags: if emit.timestamp_ns != 0 { FLAG_TIMESTAMP } else { 0 },
            priority: emit.priority,
            count: 1,
            joined: 0,
        };
        let bytes = emit.place.slot().map_or(0, |s| self.slab.stride(s.segment));
        let mut full = false;
        for route in &mut source.routes {
            if let Some(Some(link)) = self.links.get_mut(route.link) {
                descriptor.joined = route.joined;
                #[cfg(feature = "faults")]
                if let Some(faults) = &mut source.faults
                    && let Some(looked) =
                        faults.take(link, route, (&descriptor, emit), (bytes, self.link_cap), &mut self.slab)
                {
                    full |= looked;
                    continue;
                }
                full |= link.give(&mut route.flows, &descriptor, emit, bytes, self.link_cap, &mut self.slab);
            }
        }
        if full {
            self.note_fates();
        }
        Ok(sequence)
    }

    /// Why a source is closed.
    #[cold]
    pub(crate) fn closed(&self, index: usize) -> Error {
        self.refused.get(&index).cloned().unwrap_or_else(|| Code::Closed.into())
    }

    #[cold]
    fn emit_after_pack(&mut self, index: usize, emit: &Emit<'_>) -> Result<u64> {
        self.close_pack(index, true);
        self.emit(index, emit)
    }

    /// Ends one flow on a link: nothing emitted from now on is for it. What is still on its way stays pending until the sink
    /// has counted it, or, when `lost`, is unconfirmed. Returns the cell to end.
    pub(crate) fn end_flow(&mut self, at: usize, number: u32, sink: SinkId, lost: bool) -> Option<CellWriter> {
        let index = self.place_of(number)?;
        let source = self.sources[index].as_ref()?;
        // Who is at the other end of a link has no say in the flows of others.
        let r = source.routes.iter().position(|r| r.link == at)?;
        let f = source.routes[r].flows.iter().position(|f| f.sink == sink)?;
        self.close_pack(index, false);
        self.let_go_on(index, at);
        let source = self.sources[index].as_mut()?;
        let flow = source.routes[r].flows.remove(f);
        let link = self.links[at].as_mut();
        let closing = Closing {
            source: number,
            sink,
            cell: flow.cell.clone(),
            peer_cell: flow.peer_cell,
            span: (flow.start, source.sequence),
            given: flow.given,
            before: flow.before,
        };
        let mut finished = flow.given;
        // Nobody is there to count the rest.
        let lost = lost || link.as_ref().is_some_and(|l| l.is_parked());
        match link {
            Some(link) if lost && !flow.observer => finished = link.unconfirmed(&closing),
            Some(link) if !flow.observer => link.close(closing),
            _ => {}
        }
        if source.routes[r].flows.is_empty() {
            source.routes.remove(r);
        }
        let cell = flow.cell.clone();
        if source.ended.len() == 64 {
            source.ended.pop_front();
        }
        let link = (!lost).then_some(at);
        source.ended.push_back(EndedFlow { flow, end: source.sequence, finished, link, given_up: false });
        Some(cell)
    }

    /// Ends a link whose consumer is gone: its flows, and its holds on slots.
    pub(crate) fn dissolve(&mut self, at: usize) -> Vec<CellWriter> {
        let mut cells = Vec::new();
        self.forget_questions(at);
        self.disinherit(at);
        for (number, sink, _) in self.flows_on(at) {
            cells.extend(self.end_flow(at, number, sink, true));
        }
        self.end_closing(at);
        if let Some(mut link) = self.links[at].take() {
            let slab = &mut self.slab;
            link.producer.dissolve(|segment, slot| {
                slab.unhold(SlotId { segment, slot });
            });
        }
        self.share_out();
        cells
    }

    /// The consumer of a link is gone: what was closed before ends now.
    pub(crate) fn end_closing(&mut self, at: usize) {
        let Some(link) = self.links[at].as_mut() else { return };
        for flow in std::mem::take(&mut link.closing) {
            let finished = self.links[at].as_ref().map_or(flow.given, |link| link.unconfirmed(&flow));
            let source = self.source_mut(flow.source);
            for ended in source.into_iter().flat_map(|s| s.ended.iter_mut()) {
                if ended.link == Some(at) && ended.flow.sink == flow.sink {
                    ended.finished = finished;
                }
            }
        }
        for ended in self.sources.iter_mut().flatten().flat_map(|s| s.ended.iter_mut()) {
            if ended.link == Some(at) {
                ended.link = None;
            }
        }
    }

    /// Sets what one link may hold: with all of them full, one part is left for the application.
    pub(crate) fn share_out(&mut self) {
        // What was set aside for packs was a part of the old shares.
        for index in 0..self.sources.len() {
            self.close_pack(index, false);
        }
        let links = self.links.iter().flatten().count() as u64;
        self.link_cap = self.share / (links + 1);
    }
}

/// Whether a payload goes inside its descriptor.
#[inline]
pub(crate) fn goes_inside(len: usize, reliable: bool) -> bool {
    // A reliable message keeps a slot (architecture §3 rule 9), but an empty one has nothing to keep.
    len <= INLINE_BYTES && (!reliable || len == 0)
}
