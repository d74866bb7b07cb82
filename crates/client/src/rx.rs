//! The receiving half of a stream: links from sessions with sources, and this session's sinks. Private memory, behind the
//! stream's biased lock.

use crate::blocks::Pool;
use crate::cursors::Cursors;
use crate::error::{Error, Result};
use crate::message::{Copies, Extra, Origin, Pack, PackRef, RawMessage, Scattered, Taken};
use crate::session::Shared;
use insane_shm::counters::{CellWriter, Count};
use insane_shm::link::{
    Broken, Consumer, Descriptor, FLAG_COPIED, FLAG_INLINE, FLAG_LAUNCH_TIME, FLAG_PACKED, FLAG_SCATTERED, Fate,
};
use insane_shm::pack::{MAX_MESSAGES, PackReader, Packed};
use insane_shm::segment::SegmentView;
use insane_wire::id::{Epoch, SinkId};
use rustix::fd::{AsFd, OwnedFd};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

/// How much of a payload in a slot is asked for when its descriptor is read, in bytes.
pub(crate) const AHEAD: usize = 1024;

mod lag;
mod late;
mod made;
mod maps;
mod places;
mod queue;
mod release;
mod sleep;
mod tasks;

pub(crate) use lag::{One, Tally};
pub(crate) use late::Late;
use made::{lies_in_a_pack, piece, raw};
pub(crate) use maps::Maps;
pub(crate) use queue::Queue;
use queue::{Room, Wanted, is_past};
pub(crate) use sleep::Sleep;
use sleep::{WaitingSet, nudge_for};
pub(crate) use tasks::Tasks;

/// The state behind the lock.
#[derive(Debug, Default)]
pub(crate) struct Rx {
    pub(crate) links: Vec<Option<RxLink>>,
    pub(crate) sinks: Vec<Option<RxSink>>,
    /// Places of `sinks` whose handle is gone. As long as there is one, nobody else gets its sink's place, closed or not.
    left: Vec<usize>,
    /// What is kept of the messages that sinks have.
    taken: Pool<Taken>,
    /// What is kept of the packs that they came in.
    pub(crate) packs: Pool<Pack>,
    /// The link whose turn was last.
    pub(crate) next: usize,
    /// The number of the next sleep.
    next_sleep: u64,
    generation: u32,
    /// Wakers are to be called: the service thread is to be told.
    pub(crate) alarm: bool,
    /// Wakers to be called once the lock is free: they may take locks of their own, such as an interpreter's.
    pub(crate) wakers: Arc<Mutex<Vec<Waker>>>,
    /// Cells of flows that went with their link, to be ended by the service thread.
    pub(crate) ended: Vec<u32>,
    /// The wait sets that look at this stream.
    sets: Vec<WaitingSet>,
    /// How far sinks have come with sources whose link has ended.
    pub(crate) cursors: Cursors,
    /// Why the runtime has not opened sinks again, by their places.
    pub(crate) refused: HashMap<usize, Error>,
}

/// One link from a session with sources.
#[derive(Debug)]
pub(crate) struct RxLink {
    pub(crate) consumer: Consumer,
    pub(crate) segments: Vec<Option<SegmentView>>,
    /// How many those are.
    pub(crate) maps: Maps,
    pub(crate) flows: HashMap<u32, RxFlow>,
    /// A pack whose messages were not all taken.
    pub(crate) pack: Option<Unpacking>,
    /// The pack of the message that was taken last, if it came in one.
    opened: Option<PackRef>,
    /// The flow of the last message: sources mostly come in runs.
    pub(crate) recent: Option<(u32, usize, Epoch, CellWriter)>,
    /// The same on a link that keeps cursors, which has no other short cut.
    kept: Option<Kept>,
    pub(crate) reliable: bool,
    /// Whether it is from the runtime, for the sources of other hosts.
    network: bool,
    /// Whether it is that, on a reliable stream: then it is known how far its sinks are.
    keeps: bool,
    pub(crate) trusted: bool,
    pub(crate) peer_gone: bool,
    pub(crate) broken: Option<Broken>,
    pub(crate) bell: Option<Arc<OwnedFd>>,
    /// Whether the service thread listens to the bell.
    pub(crate) watched: bool,
    /// Whoever is to ring the bell has closed it.
    pub(crate) deaf: bool,
    generation: u32,
    /// Messages that the application or a sink's queue has.
    pub(crate) out: u64,
    /// How many bytes of slots the producer lets it keep at most, as far as that has said so; how many messages in queues do.
    pub(crate) room: u64,
    queued: u64,
    /// The sleeps that were announced on it and are not over.
    asleep: SmallVec<[u64; 4]>,
    /// Sleeps with lower numbers are to end.
    roused: u64,
    armed: bool,
    /// The sinks of sources that have given them up, by their places: what waits for them is to go when others want the room.
    given_up: Vec<(u32, usize, SinkId)>,
    /// The session, whose service thread hears of a broken link.
    session: Arc<Shared>,
}

/// A pack of which messages are to be taken.
#[derive(Debug)]
pub(crate) struct Unpacking {
    /// Its descriptor, with number and place of the next message.
    next: Descriptor,
    offset: u32,
    position: u64,
    /// Where it begins.
    base: NonNull<u8>,
    reader: PackReader,
    pack: PackRef,
}

// SAFETY: the memory is only read, in a segment that stays mapped while the pack is out.
unsafe impl Send for Unpacking {}

/// The flow of the last message, and how far it is.
#[derive(Debug)]
struct Kept {
    source: u32,
    sink: usize,
    epoch: Epoch,
    cell: CellWriter,
    last: u64,
}

/// What arrives from one source.
#[derive(Debug)]
pub(crate) struct RxFlow {
    pub(crate) epoch: Epoch,
    /// On a link that keeps cursors: the number of the last message that went to the sinks, unless the short cut knows better.
    last: u64,
    pub(crate) sinks: Vec<FlowSink>,
    /// How many sinks ever joined: the low half.
    pub(crate) joins: u16,
}

/// One sink of a flow.
#[derive(Debug)]
pub(crate) struct FlowSink {
    pub(crate) index: usize,
    pub(crate) id: SinkId,
    pub(crate) cell: CellWriter,
    /// The first position of the ring that is not for it.
    pub(crate) end: Option<u64>,
    /// The number of the last message that it had by another link, or that was not for it.
    pub(crate) cursor: u64,
    /// Its number among those that joined.
    pub(crate) join: u16,
    /// The source knows of it: what has come from there since was meant for it, and nothing before.
    pub(crate) joined: bool,
    /// It is closed, and its source has not said up to where its messages were still meant for it: those that came.
    pub(crate) late: Late,
    /// Reliable: what it has of the source, but for what went by the short cut of those that are alone.
    pub(crate) has: Tally,
}

impl FlowSink {
    /// A message came after it was closed.
    fn came_late(&mut self, position: u64, over: bool) {
        if over || self.end.is_some() {
            self.cell.add(Count::SinkClosed, 1);
            return;
        }
        let forgotten = self.late.add(position);
        if forgotten > 0 {
            self.cell.add(Count::SinkClosed, forgotten);
        }
    }

    /// What was meant for it ends before a position of the ring.
    pub(crate) fn end_at(&mut self, end: u64) {
        let late = std::mem::take(&mut self.late);
        self.cell.add(Count::SinkClosed, late.before(end));
        self.end = Some(end);
    }
}

impl RxFlow {
    pub(crate) fn new(epoch: Epoch) -> Self {
        Self { epoch, last: 0, sinks: Vec::new(), joins: 0 }
    }

    fn cursor(&self, sink: &FlowSink) -> u64 {
        sink.cursor.max(self.last)
    }
}

/// One sink.
#[derive(Debug)]
pub(crate) struct RxSink {
    pub(crate) id: SinkId,
    pub(crate) queue: Queue,
    pub(crate) open: bool,
    pub(crate) flows: u32,
    pub(crate) interrupt: Arc<AtomicU32>,
    pub(crate) tasks: Tasks,
    /// It takes messages as lists of pieces, and counts what was copied.
    pub(crate) copies: Option<Arc<Copies>>,
}

impl RxLink {
    /// The short cut for runs of messages is to be looked up again.
    pub(crate) fn forget_recent(&mut self) {
        self.recent = None;
        if let Some(kept) = self.kept.take()
            && let Some(flow) = self.flows.get_mut(&kept.source)
        {
            flow.last = flow.last.max(kept.last);
        }
    }

    /// The peer broke the protocol: nothing is read from the link any more, and the service thread is told.
    #[cold]
    pub(crate) fn break_off(&mut self, broken: Broken, packs: &mut Pool<Pack>) {
        self.broken = Some(broken);
        if let Some(open) = self.pack.take()
            && open.pack.abandon(packs)
        {
            self.out -= 1;
        }
        self.session.ring();
    }

    /// Takes the next message: of the pack that is open, or of the ring. Of a pack's message the descriptor has the number
    /// and the place. Never blocks.
    #[inline(always)]
    fn next(&mut self, at: usize, packs: &mut Pool<Pack>) -> Result<Option<(Descriptor, u64)>, Broken> {
        if self.pack.is_none() {
            match self.consumer.poll_descriptor() {
                Ok(Some((d, position))) if d.flags & FLAG_PACKED != 0 => self.unpack(d, position, at, packs)?,
                other => return other,
            }
        }
        self.next_packed()
    }

    #[inline]
    pub(crate) fn unpack(
        &mut self,
        d: Descriptor,
        position: u64,
        at: usize,
        packs: &mut Pool<Pack>,
    ) -> Result<(), Broken> {
        let segment = self.segments.get(usize::from(d.segment)).and_then(Option::as_ref);
        let base = segment.and_then(|s| s.locate(d.slot, d.offset, d.length)).ok_or_else(|| Broken::of(&d))?;
        // SAFETY: INV-LINK-4: so many bytes are there, aligned; the segment stays mapped while the pack is out.
        let reader = unsafe { PackReader::of(base, &d) };
        let epoch = self.flows.get(&d.source).map_or(Epoch(0), |flow| flow.epoch);
        let pack = PackRef::open(packs, Origin::new(&d, epoch, at, self.generation, self.trusted), d.sequence);
        self.out += 1;
        self.pack = Some(Unpacking { next: d, offset: d.offset, position, base, reader, pack });
        Ok(())
    }

    #[inline(always)]
    fn next_packed(&mut self) -> Result<Option<(Descriptor, u64)>, Broken> {
        let Some(open) = &self.pack else { return Ok(None) };
        let (next, offset, position, pack) = (open.next, open.offset, open.position, open.pack);
        let found = self.step().ok_or_else(|| Broken::of(&next))?;
        self.opened = Some(pack);
        Ok(Some((Descriptor { offset: offset + found.offset, length: found.length, ..next }, position)))
    }

    /// Takes the next message off the pack that is open. `None`: the pack lies.
    #[inline(always)]
    fn step(&mut self) -> Option<Packed> {
        let open = self.pack.as_mut()?;
        let found = open.reader.next()?.ok()?;
        open.next.sequence = open.next.sequence.wrapping_add(1);
        open.pack.state().out += 1;
        if open.reader.left() == 0 {
            open.pack.state().open = false;
            self.pack = None;
        }
        Some(found)
    }

    /// The source's epoch and where to count a message, if it is of the source that the last one came from and for this sink
    /// alone. On a link that keeps cursors it is noted as the last.
    #[inline(always)]
    fn short_cut(&mut self, d: &Descriptor, sink: usize) -> Option<(Epoch, &CellWriter)> {
        if let Some((source, index, epoch, cell)) = &self.recent {
            return (*source == d.source && *index == sink).then_some((*epoch, cell));
        }
        let kept = self.kept.as_mut().filter(|kept| kept.source == d.source && kept.sink == sink)?;
        kept.last = kept.last.max(d.sequence);
        Some((kept.epoch, &kept.cell))
    }

    /// Whether a message is there.
    #[inline]
    pub(crate) fn ready(&self) -> bool {
        self.pack.is_some() || self.consumer.ready()
    }

    /// The position of the next descriptor of which messages are to be taken.
    pub(crate) fn position(&self) -> u64 {
        self.pack.as_ref().map_or_else(|| self.consumer.position(), |open| open.position)
    }

    /// Gives a message back that is not given to the application.
    fn refuse(&mut self, packs: &mut Pool<Pack>, d: &Descriptor, fate: Fate) {
        match self.opened {
            Some(pack) if d.flags & FLAG_PACKED != 0 => {
                if let Some((sequence, fate)) = pack.done(d.sequence, fate) {
                    pack.give_back(packs);
                    self.out -= 1;
                    self.release(&Descriptor { sequence, ..*d }, fate);
                }
            }
            _ => self.release(d, fate),
        }
    }

    #[inline]
    pub(crate) fn release(&mut self, descriptor: &Descriptor, fate: Fate) {
        self.consumer.release(descriptor, fate);
        self.gave_back();
    }

    /// Something was given back: a producer that sleeps for room is woken.
    #[inline]
    pub(crate) fn gave_back(&mut self) {
        if self.reliable {
            self.consumer.settle();
            self.consumer.wake();
        }
    }

    /// Whether nothing new comes from it.
    pub(crate) fn is_over(&self) -> bool {
        self.peer_gone || self.broken.is_some()
    }

    /// Whether no bell rings for it.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_over() || self.deaf
    }

    /// Takes the rings of its bell, or notes that it is the one that will not ring any more.
    pub(crate) fn silence(&mut self, over: Option<&Arc<OwnedFd>>) {
        let Some(bell) = &self.bell else { return };
        self.deaf |= over.is_some_and(|over| Arc::ptr_eq(bell, over));
        insane_shm::doorbell::silence(bell.as_fd());
    }

    /// The number by which the link is told from others that had its place.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether nothing of it is in use any more. One that is broken keeps its place until its peer is cut off, which names it by that.
    pub(crate) fn is_spent(&self) -> bool {
        self.peer_gone && self.out == 0 && self.asleep.is_empty() && (self.broken.is_some() || !self.ready())
    }
}

/// Now, in nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn now_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

impl Rx {
    /// Takes the sink's next message if there is one link and it is a small one from the source that the last one came from:
    /// what a control loop does, in one straight line. `None`: [`Self::take`] knows.
    #[inline(always)]
    pub(crate) fn take_small(&mut self, sink: usize) -> Option<RawMessage> {
        let Some(Some(me)) = self.sinks.get(sink) else { return None };
        let [Some(link)] = &mut self.links[..] else { return None };
        if !me.open || !me.queue.is_empty() || link.pack.is_some() || link.broken.is_some() {
            return None;
        }
        let (source, index, epoch, cell) = link.recent.as_ref()?;
        if *index != sink {
            return None;
        }
        let small = link.consumer.poll_small(*source)?;
        cell.add(Count::Delivered, 1);
        cell.add(Count::Bytes, u64::from(small.length));
        link.out += 1;
        let (mut place, inside) = piece(&mut self.taken);
        // SAFETY: INV-BLOCK-1: it is this message's alone.
        let taken = unsafe { place.as_mut() };
        small.copy(&mut taken.inside.0);
        taken.lies_at(inside);
        taken.length = small.length;
        taken.sequence = small.sequence();
        taken.flags = FLAG_INLINE;
        taken.comes_from(Origin {
            channel: small.channel(),
            timestamp_ns: small.timestamp_ns(),
            epoch: *epoch,
            slot: 0,
            source: *source,
            link: 0,
            generation: link.generation,
            segment: 0,
            priority: small.priority(),
            trusted: link.trusted,
        });
        insane_shm::steps::reach(insane_shm::steps::Step::Hold);
        Some(RawMessage(place))
    }

    /// Takes the sink's next message: from its queue, or from a link, round robin. Never blocks.
    ///
    /// # Errors
    /// [`crate::Code::Closed`].
    #[inline(always)]
    pub(crate) fn take(&mut self, sink: usize) -> Result<Option<RawMessage>> {
        // The usual case in one straight line: one more message of the source that the last one came from.
        if let Some(Some(me)) = self.sinks.get(sink)
            && me.open
            && me.queue.is_empty()
        {
            let count = self.links.len();
            self.next = if self.next + 1 >= count { 0 } else { self.next + 1 };
            if let Some(Some(link)) = self.links.get_mut(self.next)
                && link.broken.is_none()
            {
                if link.pack.is_some() {
                    return self.take_packed(sink);
                }
                match link.consumer.poll_descriptor() {
                    Ok(Some((d, position))) => {
                        if d.deadline_ns == 0
                            && d.flags & (FLAG_PACKED | FLAG_SCATTERED | FLAG_COPIED) == 0
                            && let Some((epoch, cell)) = link.short_cut(&d, sink)
                        {
                            cell.add(Count::Delivered, 1);
                            cell.add(Count::Bytes, u64::from(d.length));
                            link.out += 1;
                            let message = raw(link, &mut self.taken, self.next, &d, position, epoch, None);
                            insane_shm::steps::reach(insane_shm::steps::Step::Hold);
                            return Ok(Some(message));
                        }
                        return self.take_other(self.next, &d, position, sink);
                    }
                    Ok(None) => {
                        link.consumer.settle_if_short();
                        if count == 1 && self.refused.is_empty() {
                            return Ok(None);
                        }
                    }
                    Err(broken) => link.break_off(broken, &mut self.packs),
                }
            }
        }
        self.take_slowly(sink)
    }

    /// One more message of the pack that is open on the link whose turn it is.
    #[inline(never)]
    fn take_packed(&mut self, sink: usize) -> Result<Option<RawMessage>> {
        let Some(Some(link)) = self.links.get_mut(self.next) else { return self.take_slowly(sink) };
        if let Some(open) = &link.pack
            && let (next, base, pack) = (&open.next, open.base, open.pack)
            && next.deadline_ns == 0
            && link.recent.as_ref().is_some_and(|(source, index, ..)| *source == next.source && *index == sink)
            && let (sequence, flags) = (next.sequence, next.flags)
            && let Some(found) = link.step()
            && let Some((.., cell)) = &link.recent
        {
            cell.add(Count::Delivered, 1);
            cell.add(Count::Bytes, u64::from(found.length));
            let (mut place, inside) = piece(&mut self.taken);
            // SAFETY: INV-BLOCK-1: it is this message's alone.
            let taken = unsafe { place.as_mut() };
            // SAFETY: INV-PACK-2: the reader has checked it.
            let there = unsafe { base.add(found.offset as usize) };
            lies_in_a_pack(taken, there, found.length, inside);
            taken.length = found.length;
            taken.sequence = sequence;
            taken.flags = flags;
            taken.comes_in(pack);
            insane_shm::steps::reach(insane_shm::steps::Step::Hold);
            return Ok(Some(RawMessage(place)));
        }
        // Also when the pack lies: its reader says so again.
        match self.poll(self.next, Wanted::By(sink)) {
            Polled::Mine(message) => Ok(Some(self.deliver(message))),
            _ => self.take_slowly(sink),
        }
    }

    /// A descriptor that begins a pack, or whose messages have to be looked up where they go.
    #[inline(never)]
    fn take_other(&mut self, at: usize, d: &Descriptor, position: u64, sink: usize) -> Result<Option<RawMessage>> {
        if d.flags & FLAG_PACKED != 0 {
            if let Some(Some(link)) = self.links.get_mut(at)
                && let Err(broken) = link.unpack(*d, position, at, &mut self.packs)
            {
                link.break_off(broken, &mut self.packs);
                return self.take_slowly(sink);
            }
            return self.take_packed(sink);
        }
        match self.route(at, d, position, Wanted::By(sink)) {
            Polled::Mine(message) => Ok(Some(self.deliver(message))),
            _ => self.take_slowly(sink),
        }
    }

    #[inline(never)]
    fn take_slowly(&mut self, sink: usize) -> Result<Option<RawMessage>> {
        if self.waits(sink)?
            && let Some(message) = self.pop_from(sink)
        {
            return Ok(Some(self.deliver(message)));
        }
        let count = self.links.len();
        for _ in 0..count {
            self.next = if self.next + 1 >= count { 0 } else { self.next + 1 };
            // A bounded burst for others on the same link, then the next link has its turn.
            for _ in 0..64 {
                match self.poll(self.next, Wanted::By(sink)) {
                    Polled::Mine(message) => return Ok(Some(self.deliver(message))),
                    Polled::Others => {}
                    Polled::Nothing => break,
                }
            }
        }
        self.nothing(sink)
    }

    /// How many descriptors were taken from the links that there are.
    pub(crate) fn taken(&self) -> u64 {
        self.links.iter().flatten().map(|link| link.consumer.position()).sum()
    }

    /// Looks so many times whether something may be there for the sink: with one link that costs a load each.
    #[inline(always)]
    pub(crate) fn look(&mut self, sink: usize, looks: u32) -> bool {
        let waits = self.sinks.get(sink).and_then(Option::as_ref).is_some_and(|s| s.open && s.queue.is_empty());
        let [Some(link)] = &mut self.links[..] else { return true };
        if !(waits && self.refused.is_empty())
            || link.pack.is_some()
            || link.broken.is_some()
            || link.consumer.look(looks)
        {
            return true;
        }
        link.consumer.settle_if_short();
        false
    }

    /// Counts a message as delivered; the last thing before the application has it.
    fn deliver(&mut self, mut message: RawMessage) -> RawMessage {
        if let Some(cell) = message.get_mut().extra.as_mut().and_then(|e| e.cell.take()) {
            cell.add(Count::Delivered, 1);
            cell.add(Count::Bytes, u64::from(message.get().length));
        }
        insane_shm::steps::reach(insane_shm::steps::Step::Hold);
        message
    }

    /// Takes one descriptor of a link and hands it to its sinks' queues, or straight to the sink that wants it when it is its alone.
    fn poll(&mut self, at: usize, wanted: Wanted) -> Polled {
        let Some(link) = self.links[at].as_mut() else { return Polled::Nothing };
        if link.broken.is_some() {
            return Polled::Nothing;
        }
        match link.next(at, &mut self.packs) {
            Ok(Some((d, position))) => self.route(at, &d, position, wanted),
            Ok(None) => {
                link.consumer.settle_if_short();
                Polled::Nothing
            }
            Err(broken) => {
                link.break_off(broken, &mut self.packs);
                Polled::Nothing
            }
        }
    }

    fn route(&mut self, at: usize, d: &Descriptor, position: u64, by: Wanted) -> Polled {
        let Some(link) = self.links[at].as_mut() else { return Polled::Nothing };
        let wanted = by.sink();
        let room = Room::of(link);
        // A reliable source waits for the slowest.
        let bounded = !link.reliable && by != Wanted::All && room.is_short() && link.is_shared(&self.sinks);
        let deadline_ns = if d.flags & FLAG_LAUNCH_TIME == 0 { d.deadline_ns } else { 0 };
        let late = is_past(deadline_ns);
        let (mut takers, mut epoch) = (Vec::new(), Epoch(0));
        if link.keeps {
            link.forget_recent();
        }
        let fate = if late { Fate::Expired } else { Fate::Dropped };
        if let Some(flow) = link.flows.get_mut(&d.source) {
            epoch = flow.epoch;
            if link.keeps {
                flow.last = flow.last.max(d.sequence.saturating_add(d.messages().saturating_sub(1)));
            }
            flow.sinks.iter_mut().for_each(|s| s.joined |= d.is_after(s.join));
            let is_for = |s: &FlowSink| {
                s.joined && s.end.is_none_or(|end| position < end) && (s.cursor == 0 || d.sequence > s.cursor)
            };
            for sink in flow.sinks.iter_mut().filter(|s| is_for(s)) {
                let open =
                    self.sinks.get(sink.index).and_then(Option::as_ref).is_some_and(|s| s.open && s.id == sink.id);
                if !open {
                    sink.came_late(position, link.peer_gone);
                } else if late {
                    sink.cell.add(Count::Expired, 1);
                } else if bounded && wanted != Some(sink.index) && room.is_used_up(&self.sinks, sink.index) {
                    sink.cell.add(Count::SinkFull, 1);
                } else {
                    takers.push((sink.index, sink.cell.clone(), link.reliable.then(|| sink.has.one())));
                }
            }
            if let ([one], [(_, cell, _)], None) =
                (&flow.sinks[..], &takers[..], flow.sinks.first().and_then(|s| s.end))
            {
                if link.keeps {
                    let (source, sink, cell, last) = (d.source, one.index, cell.clone(), flow.last);
                    link.kept = Some(Kept { source, sink, epoch, cell, last });
                } else {
                    link.recent = Some((d.source, one.index, epoch, cell.clone()));
                }
            }
        }
        if takers.is_empty() {
            link.refuse(&mut self.packs, d, fate);
            return Polled::Others;
        }
        let mut scattered = None;
        if d.flags & FLAG_SCATTERED != 0 {
            // Only the network has something that lies in several places, and only for those who asked for it.
            let asked = |index: usize| self.sinks[index].as_ref().is_some_and(|sink| sink.copies.is_some());
            let right = link.network && takers.iter().all(|(index, ..)| asked(*index));
            match right.then(|| Scattered::read(&link.segments, d)).flatten() {
                Some(read) => scattered = Some(Arc::new(read)),
                None => {
                    link.break_off(Broken::of(d), &mut self.packs);
                    return Polled::Nothing;
                }
            }
        }
        for copies in takers.iter().filter_map(|(index, ..)| self.sinks[*index].as_ref()?.copies.as_ref()) {
            copies.note(scattered.as_deref(), d.flags);
        }
        if d.flags & FLAG_PACKED == 0 {
            link.out += 1;
        }

        if let [(index, cell, kept)] = &mut takers[..]
            && wanted == Some(*index)
            && self.sinks[*index].as_ref().is_some_and(|s| s.queue.is_empty())
        {
            let copies = self.sinks[*index].as_ref().and_then(|sink| sink.copies.clone());
            let kept = kept.take();
            let extra = Extra { cell: Some(cell.clone()), shared: None, deadline_ns, scattered, copies, _kept: kept };
            return Polled::Mine(raw(link, &mut self.taken, at, d, position, epoch, Some(Box::new(extra))));
        }
        let shared = (takers.len() > 1).then(|| Arc::new(AtomicU32::new(takers.len() as u32)));
        // Whoever takes finds its own; others may sleep.
        nudge_for(&mut self.sets, takers.iter().map(|(index, ..)| *index).filter(|index| wanted != Some(*index)));
        for (index, cell, kept) in takers {
            let copies = self.sinks[index].as_ref().and_then(|sink| sink.copies.clone());
            let (cell, shared, scattered) = (Some(cell), shared.clone(), scattered.clone());
            let extra = Extra { cell, shared, deadline_ns, scattered, copies, _kept: kept };
            let Some(link) = self.links[at].as_mut() else { break };
            let message = raw(link, &mut self.taken, at, d, position, epoch, Some(Box::new(extra)));
            self.push_to(index, message, (at, d));
        }
        let mine = wanted.and_then(|wanted| self.pop_from(wanted));
        mine.map_or(Polled::Others, Polled::Mine)
    }

    /// The other end of a link is gone: it says nothing any more of where its messages ended.
    pub(crate) fn bereave(&mut self, at: usize) {
        let Some(link) = self.links[at].as_mut() else { return };
        link.peer_gone = true;
        for sink in link.flows.values_mut().flat_map(|f| f.sinks.iter_mut()).filter(|s| !s.late.is_empty()) {
            sink.end_at(u64::MAX);
        }
    }

    /// Unmaps a link that nothing uses any more.
    pub(crate) fn sweep(&mut self, at: usize) {
        if self.links[at].as_ref().is_some_and(RxLink::is_spent)
            && let Some(link) = self.links[at].take()
        {
            self.ended.extend(link.flows.values().flat_map(|f| f.sinks.iter().map(|s| s.cell.index())));
        }
    }

    /// Adds a link; returns its place.
    pub(crate) fn add_link(
        &mut self,
        consumer: Consumer,
        (reliable, network): (bool, bool),
        trusted: bool,
        session: Arc<Shared>,
    ) -> usize {
        self.generation = self.generation.wrapping_add(1);
        let link = RxLink {
            consumer,
            segments: Vec::new(),
            maps: Maps::new(session.clone(), network),
            flows: HashMap::new(),
            pack: None,
            opened: None,
            recent: None,
            kept: None,
            reliable,
            network,
            keeps: reliable && network,
            trusted,
            peer_gone: false,
            broken: None,
            bell: None,
            watched: false,
            deaf: false,
            generation: self.generation,
            out: 0,
            room: u64::MAX,
            queued: 0,
            asleep: SmallVec::new(),
            roused: 0,
            armed: false,
            given_up: Vec::new(),
            session,
        };
        let at = self.links.iter().position(Option::is_none).unwrap_or(self.links.len());
        if at == self.links.len() {
            self.links.push(None);
        }
        self.links[at] = Some(link);
        at
    }

    /// Moves what is on a link into its sinks' queues, up to `position`, and ends the flows that end there. For the service
    /// thread: nobody may be polling.
    pub(crate) fn drain_to(&mut self, at: usize, position: u64) {
        // An honest producer has no more than this on the ring; another one does not keep this thread here.
        let most = self.links[at].as_ref().map_or(0, |l| l.consumer.entries()) * u32::from(MAX_MESSAGES);
        for _ in 0..most {
            if self.links[at].as_ref().is_none_or(|l| l.position() >= position) {
                break;
            }
            if matches!(self.poll(at, Wanted::All), Polled::Nothing) {
                break;
            }
        }
    }

    /// Removes flows that have ended and whose last message was taken. Returns the cells to end.
    pub(crate) fn prune(&mut self, at: usize) -> Vec<u32> {
        let mut cells = Vec::new();
        let Some(link) = self.links[at].as_mut() else { return cells };
        link.forget_recent();
        let head = link.position();
        for flow in link.flows.values_mut() {
            let (epoch, last) = (flow.epoch, flow.last);
            flow.sinks.retain(|s| {
                let over = s.end.is_some_and(|end| head >= end);
                if over {
                    cells.push(s.cell.index());
                    if link.keeps {
                        self.cursors.put(epoch, s.id, s.cursor.max(last));
                    }
                }
                !over
            });
        }
        link.flows.retain(|_, f| !f.sinks.is_empty());
        cells
    }

    /// A link from the runtime has ended: what is on it goes to the queues, before anything that another link brings, and how far
    /// its sinks are is remembered.
    pub(crate) fn remember_cursors(&mut self, at: usize) {
        if self.links[at].as_ref().is_none_or(|l| !l.keeps) {
            return;
        }
        self.drain_to(at, u64::MAX);
        let Some(link) = self.links[at].as_mut() else { return };
        link.forget_recent();
        for flow in link.flows.values() {
            flow.sinks.iter().for_each(|s| self.cursors.put(flow.epoch, s.id, flow.cursor(s)));
        }
    }

    /// The number of the last message of a source that a sink has had, for a flow that begins on a link; 0 for none. Links that
    /// had the flow before are emptied: whoever begins it anew has ended it there, or is the next runtime.
    pub(crate) fn cursor_for(&mut self, at: usize, epoch: Epoch, sink: SinkId) -> u64 {
        if self.links[at].as_ref().is_none_or(|l| !l.keeps) {
            return 0;
        }
        for other in (0..self.links.len()).filter(|other| *other != at) {
            let had = |l: &RxLink| l.keeps && l.flows.values().any(|f| f.epoch == epoch);
            if self.links[other].as_ref().is_some_and(had) {
                self.remember_cursors(other);
            }
        }
        let Some(link) = self.links[at].as_mut() else { return 0 };
        link.forget_recent();
        let here = link.flows.values().filter(|f| f.epoch == epoch).map(|f| f.last).max();
        self.cursors.get(epoch, sink).max(here.unwrap_or(0))
    }

    /// Closes a sink: what waits in its queue is counted and given back. Whether it was open.
    pub(crate) fn close_sink(&mut self, index: usize) -> bool {
        let Some(sink) = self.sinks.get_mut(index).and_then(Option::as_mut).filter(|s| s.open) else { return false };
        sink.open = false;
        sink.interrupt.fetch_add(1, Ordering::Release);
        insane_shm::wait::wake_own(&sink.interrupt);
        crate::session::lock(&self.wakers).extend(sink.tasks.take());
        self.rouse();
        self.nudge();
        while let Some(message) = self.pop_from(index) {
            if let Some(cell) = message.get().extra.as_ref().and_then(|e| e.cell.as_ref()) {
                cell.add(Count::SinkClosed, 1);
            }
            self.release_as(message, Fate::Dropped);
        }
        for link in self.links.iter_mut().flatten() {
            link.forget_recent();
        }
        true
    }

    /// Moves what is on the links into their sinks' queues, a bounded burst each. Links with nothing cost one look.
    pub(crate) fn gather(&mut self) {
        for at in 0..self.links.len() {
            for _ in 0..64 {
                if matches!(self.poll(at, Wanted::Any), Polled::Nothing) {
                    break;
                }
            }
        }
    }
}

#[derive(Debug)]
enum Polled {
    Mine(RawMessage),
    Others,
    Nothing,
}

#[cfg(test)]
mod tests;
