//! Links to local sinks: the network is their producer, and what arrived lies in segments of the domain.

mod backlog;
mod link;
mod tap;

use self::link::Pushed;
use crate::network::domain::{Domain, Note};
use crate::network::gather::Lined;
use crate::network::lanes::FlowId;
use crate::network::marked::Looker;
use crate::network::scatter::{List, Loan, Making, Parts, is_making};
use insane_shm::counters::Counters;
use insane_shm::doorbell::Doorbell;
use insane_shm::link::{
    Broken, Descriptor, FLAG_COPIED, FLAG_PACKED, FLAG_SCATTERED, FLAG_WIDE, INLINE_BYTES, Producer, later_join,
};
use insane_shm::memory::SharedMemory;
use insane_shm::pack::MAX_COPIED;
use insane_shm::segment::Segment;
use insane_shm::slab::{SlotId, Told, geometry_for, stride_for};
use insane_shm::steps::{Step, reach};
use insane_wire::frame::record::{Message, Place, bundle_longest, bundled};
use insane_wire::host::Report;
use insane_wire::id::{Epoch, SinkId};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// So many sinks of one source are looked through for closed ones.
const MANY_TAPS: usize = 256;

/// So many messages that may be dropped wait on a link for its session to know the segments that they lie in.
const MOST_UNMAPPED: usize = 4096;

/// The size of a new segment, in bytes, for messages that are smaller.
const SEGMENT_BYTES: u64 = 4 << 20;

/// A segment takes at most this part of what a domain may have, unless one message needs more.
const SIZES: u64 = 16;

/// The least time between two times that segments are given back: making others takes this thread a millisecond or more, and
/// where arrivals of several sizes fill the memory they would take it from each other with every message.
const GIVE_BACK_EVERY: Duration = Duration::from_millis(100);

/// How often a source's host is told what became of its messages while they come: with each message it would cost two frames
/// more. What must not wait (cursors of reliable flows, credit) goes on the path by itself.
const REPORTS: Duration = Duration::from_millis(10);

/// A link to a session with sinks.
#[derive(Debug)]
pub(crate) struct Outlet {
    pub(crate) stream: String,
    pub(crate) reliable: bool,
    pub(crate) pair: usize,
    pub(crate) number: u32,
    /// Before it is accepted: the memory to make the producer of.
    pub(crate) offered: Option<Arc<SharedMemory>>,
    pub(crate) producer: Option<Producer>,
    /// The session's counts, read-only.
    pub(crate) counters: Option<Counters>,
    pub(crate) doorbell: Doorbell,
    /// What its session knows of the segments.
    pub(crate) told: Told,
    /// Flows to be opened once it is accepted: the source's number, for its place may be another's by then, the sink, the channel.
    pub(crate) waiting: Vec<(u32, SinkId, u64)>,
    pub(crate) asked: HashSet<(u32, SinkId)>,
    /// Some of its sinks want messages scattered: its session knows the memories that datapaths lend out of.
    pub(crate) scattered: bool,
    /// Frames that it holds by lists, in all and by the list's slot.
    pub(crate) lent: u32,
    lists: HashMap<SlotId, u32>,
    /// Bytes of slots that it holds.
    held: u64,
    /// What is to be put on it when there is room, or when its session has mapped the segment.
    backlog: VecDeque<Waiting>,
    unwoken: bool,
    pub(crate) broken: Option<Broken>,
}

#[derive(Debug)]
struct Waiting {
    descriptor: Descriptor,
    inline: Vec<u8>,
    slot: Option<SlotId>,
    /// How many frames go with it, if it is a list.
    frames: u32,
    /// The sinks that it was given to and may still be dropped for: of reliable messages the observers.
    sinks: Vec<SinkId>,
    /// Reliable: it was given to one that is to lose nothing.
    needed: bool,
}

/// Where a sink is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TapState {
    /// Its session has not said yet that it is attached.
    Opening,
    /// What arrives is for it.
    Open,
    /// It is closed, or its session is gone.
    Closed,
}

/// A local sink of a remote source.
#[derive(Debug)]
pub(crate) struct Tap {
    pub(crate) sink: SinkId,
    pub(crate) outlet: Option<usize>,
    pub(crate) state: TapState,
    /// Nothing waits for it: neither its source nor what is for others.
    pub(crate) observer: bool,
    /// It takes messages as lists of where their pieces lie.
    pub(crate) scattered: bool,
    /// The flow's cell in the counters of the sink's session.
    pub(crate) cell: u32,
    /// Its number among the sinks that joined the source on its link.
    pub(crate) join: u16,
    /// Its number among those of this host, once the source's host has given it one; and whether the source knows of
    /// it, so that what comes is for it.
    pub(crate) number: Option<u32>,
    joined: bool,
    /// The source's host has said whether it has a number for it.
    pub(crate) answered: bool,
    /// Messages that were given to its link.
    pub(crate) given: u64,
    finished: u64,
    /// Reliable, and no observer: the numbers at the source of those that are not finished.
    sequences: VecDeque<u64>,
    /// Messages that came after it was closed.
    late: u64,
    /// Messages for which this thread had no room.
    full: u64,
    /// The number of the last message that it had before it was attached here, by another link; and how many of those came.
    pub(crate) cursor: u64,
    had: u64,
    report: Report,
    told: Report,
    /// What of the report was for accounts that have ended at the source's host, and how many of those given were.
    before: Report,
    owed: u64,
}

/// A source of another host.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) epoch: Epoch,
    /// Its number on the links, never used twice.
    pub(crate) number: u32,
    pub(crate) host: usize,
    pub(crate) stream: String,
    pub(crate) channel: u64,
    pub(crate) reliable: bool,
    /// Flows that its host has opened or is about to, and not ended. A source may begin its next before the last has ended.
    pub(crate) flows: u32,
    /// A flow was lost with its path, and its host has not said yet that it goes on by another.
    pub(crate) astray: bool,
    /// Since when its host is lost.
    pub(crate) orphaned: Option<std::time::Duration>,
    /// The flow on one of the host's paths.
    pub(crate) flow: Option<FlowId>,
    /// The number of the last message that was handed on, and of the last that all sinks have.
    pub(crate) last: u64,
    pub(crate) cursor: u64,
    /// Of which flow the path was told that last.
    told_cursor: Option<(FlowId, u64)>,
    pub(crate) taps: Vec<Tap>,
    /// Reliable: the sinks that its host knows to be attached, and since when they are waited for.
    pub(crate) expected: (Vec<SinkId>, std::time::Duration),
    /// Reliable: messages for which there was no memory.
    stalled: VecDeque<(Descriptor, Vec<u8>)>,
    /// It has ended; what its sinks have not counted is still waited for.
    pub(crate) closing: bool,
    /// It is to be closed once everything is on its links.
    pub(crate) ending: bool,
    /// Its host was lost and has counted everything as unconfirmed: nobody wants to know more.
    pub(crate) mute: bool,
    /// When its host was last told what became of its messages.
    told_at: Option<Duration>,
}

/// What was found on the links to local sinks, for the paths of those sources: by host and flow.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Messages and bytes that have left the network's memory.
    pub(crate) gone: Vec<(usize, FlowId, u32, u64)>,
    /// How far the sinks of reliable sources are, where that is news.
    pub(crate) cursors: Vec<(usize, FlowId, u64)>,
}

/// A message that has arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Arrived<'a> {
    /// In memory that is the caller's.
    Bytes(&'a [u8]),
    /// In a frame that is lent, for sinks that want it there ([`Domain::arrived`]).
    Lent(&'a [u8], &'a Arc<Loan>),
    /// In a slot of the domain, which is given with it, or under the name of one that is in the making ([`is_making`]).
    Slot(SlotId, u32),
}

impl Remote {
    pub(crate) fn new(epoch: Epoch, host: usize, stream: String, channel: u64, reliable: bool) -> Self {
        Self {
            epoch,
            number: 0,
            host,
            stream,
            channel,
            reliable,
            flows: 1,
            astray: false,
            orphaned: None,
            flow: None,
            last: 0,
            cursor: 0,
            told_cursor: None,
            taps: Vec::new(),
            expected: (Vec::new(), std::time::Duration::ZERO),
            stalled: VecDeque::new(),
            closing: false,
            ending: false,
            mute: false,
            told_at: None,
        }
    }

    pub(crate) fn add_tap(&mut self, sink: SinkId, outlet: usize, observer: bool) {
        // Those that are closed and have had their last word, once there are many.
        if self.taps.len() >= MANY_TAPS {
            let over = |t: &Tap| t.state == TapState::Closed && t.finished >= t.given && t.report == t.told;
            self.taps.retain(|t| !over(t));
        }
        let report = Report { epoch: self.epoch.to_bytes(), sink: sink.to_bytes(), ..Report::default() };
        self.taps.push(Tap {
            sink,
            outlet: Some(outlet),
            state: TapState::Opening,
            observer,
            scattered: false,
            cell: 0,
            join: 0,
            number: None,
            // One that comes back to its source by this runtime was let in by the one before.
            joined: self.expected.0.contains(&sink),
            answered: false,
            given: 0,
            finished: 0,
            sequences: VecDeque::new(),
            late: 0,
            full: 0,
            cursor: 0,
            had: 0,
            told: report.clone(),
            report,
            before: Report::default(),
            owed: 0,
        });
    }

    /// Sees which sinks the source knew of when it emitted what comes now.
    fn see(&mut self, joined: u16) {
        for tap in self.taps.iter_mut().filter(|t| !t.joined && t.state != TapState::Opening) {
            tap.joined = tap.number.is_some_and(|number| (joined as u8).wrapping_sub(number as u8) < 128);
        }
    }

    /// Whether what comes can be handed to everyone who is to have it.
    pub(crate) fn is_attached(&self) -> bool {
        let expected = &self.expected.0;
        let is_there = |s: &SinkId| self.taps.iter().any(|t| t.sink == *s && t.state != TapState::Opening);
        // A message may come at once that was emitted for one that had its number from what was here before.
        let mut open = self.taps.iter().filter(|t| t.state == TapState::Open).peekable();
        open.peek().is_some() && open.all(|t| t.answered || t.joined) && expected.iter().all(is_there)
    }

    /// Whether all of its sinks on a link take messages as lists.
    pub(crate) fn is_scattered(&self, outlet: usize) -> bool {
        let mut open =
            self.taps.iter().filter(|t| t.outlet == Some(outlet) && t.state == TapState::Open && t.joined).peekable();
        open.peek().is_some() && open.all(|t| t.scattered)
    }

    /// What the path of its flow is to be told of its sinks, if that is news.
    pub(crate) fn take_cursor(&mut self) -> Option<(FlowId, u64)> {
        let flow = self.flow.filter(|_| self.reliable)?;
        let news = Some((flow, self.cursor)).filter(|now| self.told_cursor != Some(*now));
        self.told_cursor = news.or(self.told_cursor);
        news
    }

    /// Whether messages of it wait for memory.
    pub(crate) fn is_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Whether nothing more will come of it.
    pub(crate) fn is_over(&self) -> bool {
        let told = self.mute || self.news().next().is_none();
        self.closing && told && self.taps.iter().all(|t| t.outlet.is_none() || t.finished >= t.given)
    }

    fn news(&self) -> impl Iterator<Item = &Tap> {
        self.taps.iter().filter(|t| t.report != t.told)
    }

    /// When its host is to be told what it does not know yet: at once if that is the last word about it or a sink, or the first
    /// for a while.
    pub(crate) fn reports_at(&self) -> Option<Duration> {
        if self.mute || self.news().next().is_none() {
            return None;
        }
        let last = self.closing || self.ending || self.news().any(|t| t.state == TapState::Closed);
        Some(self.told_at.filter(|_| !last).map_or(Duration::ZERO, |at| at + REPORTS))
    }

    /// What is to be told to the source's host.
    pub(crate) fn reports(&mut self, now: Duration) -> impl Iterator<Item = Report> + '_ {
        self.told_at = Some(now);
        self.taps.iter_mut().filter(|t| t.report != t.told).map(Tap::tell)
    }

    /// Everything is to be told again: the host may not have heard it.
    pub(crate) fn tell_again(&mut self) {
        for tap in &mut self.taps {
            tap.told = Report { epoch: Vec::new(), ..tap.told.clone() };
        }
    }

    /// Whether its links need not be tended before something happens to it here.
    fn rests(&self) -> bool {
        self.stalled.is_empty() && !self.is_awaited() && self.ending == self.closing
    }

    /// Whether nobody will want to know anything of it before something happens to it here, and it is not waited for.
    pub(crate) fn needs_no_chores(&self) -> bool {
        let waits = self.orphaned.is_some() || !self.expected.0.is_empty();
        !waits && !self.ending && !self.closing && (self.mute || self.news().next().is_none())
    }

    /// Whether some sink has messages that it has not counted.
    pub(crate) fn is_awaited(&self) -> bool {
        self.taps.iter().any(|t| t.outlet.is_some() && t.finished < t.given)
    }
}

impl Domain {
    /// A slot for a message of `len` bytes, after growing if need be. It is held once.
    pub(crate) fn take_slot(&mut self, len: u32) -> Option<SlotId> {
        let len = u64::from(len).max(1);
        if self.slab.available(len) == 0 {
            let slab = &mut self.slab;
            for outlet in self.outlets.marked_mut(Looker::Links) {
                outlet.reclaim(slab);
            }
        }
        if self.slab.available(len) == 0 {
            self.grow(len);
        }
        // Better too large a slot than none.
        self.slab.take_any(len).map(|taken| taken.id)
    }

    fn give_back(&mut self, number: u16) {
        let Some(segment) = self.slab.give_back(number) else { return };
        self.pages.let_go(segment);
        for outlet in self.outlets.iter_mut().flatten() {
            if let Some(producer) = &mut outlet.producer {
                outlet.told.given_back(number, producer);
            }
        }
    }

    /// Adds a segment within the limit, for which segments without holds are given back if need be.
    fn grow(&mut self, len: u64) {
        let Some(stride) = stride_for(len) else { return };
        let mut left = self.memory_limit.saturating_sub(self.slab.bytes());
        let rested = self.gave_back.is_none_or(|at| at.elapsed() >= GIVE_BACK_EVERY);
        if left < stride && rested {
            for number in self.slab.spare(stride - left, len) {
                self.give_back(number);
                self.gave_back = Some(Instant::now());
            }
            left = self.memory_limit.saturating_sub(self.slab.bytes());
        }
        if left < stride {
            return;
        }
        // However little there is, messages of many sizes find some.
        let target = SEGMENT_BYTES.min(self.memory_limit / SIZES).max(stride).min(left);
        let Ok(geometry) = geometry_for(len, target) else { return };
        let huge = self.huge_pages && geometry.bytes() >= insane_shm::memory::HUGE_PAGE as u64;
        let made =
            Segment::create_bare(geometry, huge).or_else(|_| Segment::create_bare(geometry, false)).map(Arc::new);
        made.iter().for_each(|segment| self.pages.fault_in(segment));
        let outlets = &self.outlets;
        let usable = |n| !outlets.iter().flatten().any(|o| o.told.awaits(n));
        match made.and_then(|segment| self.slab.add(segment, usable)) {
            Ok(_) => (0..self.outlets.len()).for_each(|at| self.send_segments(at)),
            Err(e) => tracing::warn!(domain = self.name, error = %e, "no memory for what arrives"),
        }
    }

    /// Hands a message to the local sinks of its source, or counts it as dropped for each of them. Returns whether it has left
    /// the network's own memory. `coming` says of how many frames it is known that they come next.
    pub(crate) fn deliver(&mut self, source: usize, mut d: Descriptor, arrived: &Arrived<'_>, coming: usize) -> bool {
        let made: Vec<u8>;
        let mut parts = None;
        let mut arrived = *arrived;
        match arrived {
            Arrived::Slot(slot, _) if is_making(slot) => match self.take_making(slot) {
                Some(Making::Frames(total, frames)) => parts = Some((total, frames)),
                Some(Making::Slot(total, slot)) => arrived = Arrived::Slot(slot, total),
                Some(Making::Heap(bytes)) => {
                    made = bytes;
                    arrived = Arrived::Bytes(&made);
                }
                None => return true,
            },
            Arrived::Lent(bytes, loan) => {
                parts = Parts::whole(bytes, loan).map(|whole| (bytes.len() as u32, whole));
                arrived = Arrived::Bytes(bytes);
            }
            Arrived::Bytes(_) | Arrived::Slot(..) => {}
        }
        if let (Arrived::Slot(slot, _), None) = (arrived, &parts) {
            d.flags |= self.copies_into(slot);
        }
        let Some(remote) = self.remotes[source].as_mut() else {
            if let (Arrived::Slot(slot, _), None) = (arrived, &parts) {
                self.slab.unhold(slot);
            }
            return true;
        };
        d.source = remote.number;
        let (reliable, again) = (remote.reliable, remote.reliable && d.sequence <= remote.last);
        remote.last = remote.last.max(d.sequence);
        let held = match arrived {
            Arrived::Slot(..) if parts.is_some() => None,
            Arrived::Slot(slot, len) => {
                d.length = len;
                Some(slot)
            }
            Arrived::Bytes(bytes) | Arrived::Lent(bytes, _) => {
                d.length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                None
            }
        };
        // The connection has begun anew, and what was under way comes a second time.
        if again {
            held.map(|slot| self.slab.unhold(slot));
            return true;
        }
        self.hand_out_older(source, d.joined);
        if let Some(remote) = self.remotes[source].as_mut().filter(|r| r.stalled.is_empty()) {
            remote.see(d.joined);
        }
        // Nobody is to get it: what it was is counted, and its memory is free at once. Behind what waits for memory it is not known yet who
        // is: sinks that joined meanwhile are seen in their turn.
        if reliable && !self.is_behind(source) && self.is_unwanted(source, d.sequence) {
            self.hand_out(source, &mut d, &[], held);
            return true;
        }
        if let Some((total, parts)) = parts {
            return self.deliver_parts(source, d, total, parts);
        }
        // Those before it wait for memory: so does it, and its slot may be what they wait for.
        if let Some(slot) = held.filter(|_| self.is_behind(source)) {
            let bytes = self.slab.written(slot, 0, d.length).unwrap_or(&[]).to_vec();
            self.slab.unhold(slot);
            d.flags |= FLAG_COPIED;
            return self.no_memory(source, d, bytes);
        }
        match arrived {
            Arrived::Bytes(bytes) if !reliable && self.gather(source, &d, bytes, coming) => return true,
            // What came before it of any source goes first.
            _ => self.hand_out_gathered(),
        }
        let mut inside: &[u8] = &[];
        let mut slot = held;
        if let Arrived::Bytes(bytes) = arrived {
            let packed = d.flags & FLAG_PACKED != 0;
            let behind = self.is_behind(source);
            let small = !packed && !behind && bytes.len() <= INLINE_BYTES;
            // On a link without room a reliable one waits in a slot, an empty one too: the domain's memory bounds how many do.
            if small && (!reliable || self.has_room(source, d.sequence)) {
                inside = bytes;
            } else {
                slot = if behind { None } else { self.take_slot(d.length) };
                let Some(slot) = slot else { return self.no_memory(source, d, bytes.to_vec()) };
                if let Some(to) = self.slab.bytes_mut(slot, 0, d.length) {
                    to.copy_from_slice(bytes);
                }
                match packed {
                    true if bundle_longest(bytes) > MAX_COPIED => d.flags |= FLAG_WIDE,
                    false if d.length > 0 => d.flags |= FLAG_COPIED,
                    _ => {}
                }
            }
        }
        self.hand_out(source, &mut d, inside, slot);
        true
    }

    /// Hands the messages of a bundle to the local sinks of their source, as [`Self::deliver`] does: together, unless each is confirmed by
    /// itself, as those of a reliable source, or some stays in the frame, which is lent. How many have left the network's own memory,
    /// and their bytes.
    pub(crate) fn deliver_bundle(
        &mut self,
        source: usize,
        mut d: Descriptor,
        (bundle, count): (&[u8], u16),
        loan: Option<&Arc<Loan>>,
        coming: usize,
    ) -> (u32, u64) {
        let payloads = || {
            let places = bundled(bundle, Place { at: 0, len: bundle.len() });
            places.map(|place| bundle.get(place.range()).unwrap_or(&[]))
        };
        let stays = |payload| matches!(self.arrived(source, payload, loan), Arrived::Lent(..));
        if !self.is_reliable(source) && (loan.is_none() || !payloads().any(stays)) {
            (d.flags, d.count) = (d.flags | FLAG_PACKED, count);
            let taken = self.deliver(source, d, &Arrived::Bytes(bundle), coming);
            return if taken { (count.into(), bundle.len() as u64) } else { (0, 0) };
        }
        let (mut messages, mut bytes) = (0, 0);
        for payload in payloads() {
            if self.deliver(source, d, &self.arrived(source, payload, loan), 0) {
                (messages, bytes) = (messages + 1, bytes + payload.len() as u64);
            }
            d.sequence = d.sequence.wrapping_add(1);
        }
        (messages, bytes)
    }

    /// Hands a message that came alone, small, best effort, with nothing said of it but its priority, to the only open sink of its
    /// source. `false`, with nothing done: there is not one alone that takes it and has room, and it is for [`Self::deliver`].
    pub(crate) fn hand_on_at_once(&mut self, source: usize, message: &Message, payload: &[u8]) -> bool {
        let Self { remotes, outlets, gathering, .. } = self;
        let Some(remote) = remotes[source].as_mut().filter(|r| !r.reliable && !r.is_stalled()) else { return false };
        let mut open = remote.taps.iter_mut().filter(|tap| tap.state != TapState::Closed);
        let (Some(tap), None) = (open.next(), open.next()) else { return false };
        let plain = payload.len() <= INLINE_BYTES && message.is_plain() && gathering.is_none();
        let Some(outlet) = tap.outlet.and_then(|at| outlets[at].as_mut()) else { return false };
        if !plain || !tap.wants(message.sequence) || !outlet.has_room() {
            return false;
        }
        let Some(producer) = outlet.producer.as_mut() else { return false };
        let Message { sequence, priority, .. } = *message;
        let (channel, source, joined) = (remote.channel, remote.number, tap.join);
        producer.push(&Descriptor { channel, sequence, source, priority, joined, ..Descriptor::default() }, payload);
        outlet.unwoken = true;
        remote.last = remote.last.max(sequence);
        tap.given += 1;
        let closed = remote.taps.iter_mut().filter(|tap| tap.state == TapState::Closed && tap.joined);
        closed.for_each(|tap| tap.came_late(1));
        true
    }

    /// Hands messages of one best-effort source that follow each other, and are of one length, to its local sinks, as
    /// [`Self::deliver`] does with each; how many have left the network's own memory.
    pub(crate) fn deliver_row(&mut self, source: usize, mut d: Descriptor, mut lined: Lined<'_>, coming: usize) -> u32 {
        let mut taken = 0;
        while lined.count() > 0 {
            let more = self.gather_more(source, &d, &mut lined);
            d.sequence = d.sequence.wrapping_add(more.into());
            taken += u32::from(more);
            if lined.count() > 0 {
                let coming = coming.saturating_add(usize::from(lined.count()) - 1);
                for payload in lined.take(1) {
                    taken += u32::from(self.deliver(source, d, &Arrived::Bytes(payload), coming));
                }
                d.sequence = d.sequence.wrapping_add(1);
            }
        }
        taken
    }

    /// Whether a source of another host is reliable.
    pub(crate) fn is_reliable(&self, source: usize) -> bool {
        self.remotes[source].as_ref().is_some_and(|remote| remote.reliable)
    }

    /// Whether messages of a source wait for memory.
    pub(crate) fn is_behind(&self, source: usize) -> bool {
        self.remotes[source].as_ref().is_some_and(Remote::is_stalled)
    }

    fn is_unwanted(&self, source: usize, sequence: u64) -> bool {
        self.remotes[source].as_ref().is_some_and(|r| !r.taps.iter().any(|t| t.wants(sequence)))
    }

    /// Whether all links on which a reliable message of a source may have to wait have room for it without a slot.
    fn has_room(&self, source: usize, sequence: u64) -> bool {
        let taps = self.remotes[source].iter().flat_map(|remote| &remote.taps);
        let mut outlets = taps.filter(|t| t.needs(sequence)).filter_map(|t| self.outlets[t.outlet?].as_ref());
        outlets.all(Outlet::has_room)
    }

    /// There is no memory for a message: it waits if it is reliable and not for observers alone, else it is dropped. Returns whether it
    /// has left this memory.
    pub(crate) fn no_memory(&mut self, source: usize, d: Descriptor, bytes: Vec<u8>) -> bool {
        let Some(remote) = self.remotes[source].as_mut() else { return true };
        if remote.reliable && (remote.is_stalled() || remote.taps.iter().any(|tap| tap.needs(d.sequence))) {
            remote.stalled.push_back((d, bytes));
            return false;
        }
        for tap in &mut remote.taps {
            match tap.state {
                TapState::Open if tap.joined => tap.found_full(d.messages()),
                TapState::Closed if tap.joined => tap.came_late(d.messages()),
                _ => {}
            }
        }
        true
    }

    /// The links to which a message of a source goes.
    pub(crate) fn takers(&self, source: usize, sequence: u64) -> SmallVec<[usize; 8]> {
        let mut outlets = SmallVec::new();
        for tap in self.remotes[source].iter().flat_map(|remote| &remote.taps).filter(|tap| tap.wants(sequence)) {
            outlets.extend(tap.outlet.filter(|o| !outlets.contains(o)));
        }
        outlets
    }

    /// Puts a message on the links of its sinks; the slot's own hold ends here.
    pub(crate) fn hand_out(&mut self, source: usize, d: &mut Descriptor, inside: &[u8], slot: Option<SlotId>) {
        self.hand_out_as(source, d, inside, slot, None);
    }

    /// As [`Self::hand_out`], to some of the links as a list, on which the domain keeps its own hold.
    pub(crate) fn hand_out_as(
        &mut self,
        source: usize,
        d: &mut Descriptor,
        inside: &[u8],
        slot: Option<SlotId>,
        list: Option<&List>,
    ) {
        if let Some(slot) = slot {
            (d.segment, d.slot) = (slot.segment, slot.slot);
            reach(Step::Place);
        }
        let cap = self.link_cap();
        let Some(remote) = self.remotes[source].as_mut() else { return };
        let mut outlets = SmallVec::<[usize; 8]>::new();
        for tap in &mut remote.taps {
            match tap.state {
                TapState::Open if tap.wants(d.sequence) => {
                    outlets.extend(tap.outlet.filter(|o| !outlets.contains(o)));
                }
                TapState::Open if tap.joined => tap.came_again(d.messages()),
                TapState::Closed if tap.joined => tap.came_late(d.messages()),
                _ => {}
            }
        }
        // Not moved: a wide copy of what was just written waits until all that was written before it has left for the cache.
        for &at in &outlets {
            let Some(outlet) = self.outlets[at].as_mut() else { continue };
            // All that are open.
            let open = remote.taps.iter().filter(|t| t.outlet == Some(at) && t.state == TapState::Open && t.joined);
            let last = open.map(|t| t.join).reduce(later_join);
            d.joined = last.unwrap_or(0);
            let (mut one, mut held) = (*d, (slot, 0));
            if let Some(list) = list.filter(|list| list.outlets.contains(&at)) {
                (one.flags, held) = (d.flags & !FLAG_COPIED | FLAG_SCATTERED, (Some(list.slot), list.frames));
                (one.segment, one.slot, one.length) = (list.slot.segment, list.slot.slot, list.length);
            } else if one.flags & FLAG_COPIED != 0 && !(outlet.scattered && remote.is_scattered(at)) {
                one.flags &= !FLAG_COPIED;
            }
            let (one, slot) = (&one, held.0);
            let mut pushed = Pushed::NotMapped;
            let stride = slot.map_or(0, |slot| self.slab.stride(slot.segment));
            if outlet.backlog.is_empty() {
                pushed = outlet.push(one, inside, held, cap, &mut self.slab);
            }
            // Nothing waits for room that only observers are short of.
            let needed = outlet.reliable && remote.taps.iter().any(|t| t.needs(d.sequence) && t.outlet == Some(at));
            let waits = match pushed {
                Pushed::Done => false,
                // Who maps nothing keeps no more of the memory for that than a link may hold.
                Pushed::NotMapped => needed || outlet.backlog.len() < MOST_UNMAPPED && outlet.could_hold(stride, cap),
                Pushed::NoRoom => needed,
            };
            if waits {
                slot.into_iter().for_each(|slot| self.slab.hold(slot));
                let is_given = |t: &&Tap| t.wants(d.sequence) && t.outlet == Some(at);
                let given = remote.taps.iter().filter(is_given);
                let sinks = given.filter(|t| !outlet.reliable || t.observer).map(|t| t.sink).collect();
                let ((slot, frames), inline) = (held, inside.to_vec());
                outlet.backlog.push_back(Waiting { descriptor: *one, inline, slot, frames, sinks, needed });
            }
            for tap in remote.taps.iter_mut().filter(|t| t.wants(d.sequence) && t.outlet == Some(at)) {
                if pushed == Pushed::Done || waits {
                    tap.given += d.messages();
                    if remote.reliable && !tap.observer {
                        tap.sequences.push_back(d.sequence);
                    }
                } else {
                    tap.found_full(d.messages());
                }
            }
        }
        if let Some(slot) = slot {
            self.slab.unhold(slot);
        }
    }

    /// Looks after the links to local sinks: takes back, puts on, wakes, reads what the sinks have counted. Returns whether anything
    /// happened.
    pub(crate) fn tend(&mut self, found: &mut Found) -> bool {
        let mut busy = false;
        self.sweep_lists();
        let mut from = 0;
        while let Some(at) = self.outlets.next(Looker::Links, from) {
            from = at + 1;
            if let Some(outlet) = self.outlets[at].as_mut() {
                busy |= outlet.reclaim(&mut self.slab) > 0;
                busy |= outlet.is_behind() && self.flush_backlog(at);
            }
            if self.outlets[at].as_ref().is_none_or(Outlet::rests) {
                self.outlets.rest(Looker::Links, at);
            }
        }
        let mut from = 0;
        while let Some(source) = self.remotes.next(Looker::Links, from) {
            from = source + 1;
            let (mut messages, mut bytes) = (0, 0u64);
            while let Some((mut d, payload)) = self.remotes[source].as_mut().and_then(|r| r.stalled.pop_front()) {
                let Some(remote) = self.remotes[source].as_mut() else { break };
                remote.see(d.joined);
                // What is empty needs memory to wait in alone.
                let bare = payload.is_empty() && self.has_room(source, d.sequence);
                let slot = if bare { None } else { self.take_slot(d.length) };
                let Some(remote) = self.remotes[source].as_mut() else { break };
                if slot.is_none() && !bare {
                    remote.stalled.push_front((d, payload));
                    break;
                }
                if let Some(to) = slot.and_then(|slot| self.slab.bytes_mut(slot, 0, d.length)) {
                    to.copy_from_slice(&payload);
                }
                self.hand_out(source, &mut d, &[], slot);
                (messages, bytes) = (messages + 1, bytes + u64::from(d.length));
            }
            let Some(remote) = self.remotes[source].as_mut() else {
                self.remotes.rest(Looker::Links, source);
                continue;
            };
            if messages > 0 {
                found.gone.extend(remote.flow.map(|flow| (remote.host, flow, messages, bytes)));
                busy = true;
            }
            for tap in &mut remote.taps {
                let outlet = tap.outlet.and_then(|o| self.outlets[o].as_ref());
                if let Some(counters) = outlet.and_then(|o| o.counters.as_ref()) {
                    let before = tap.finished;
                    tap.look(remote.epoch, counters);
                    busy |= tap.finished != before;
                }
            }
            if remote.reliable {
                // What is stalled was handed to nobody.
                let last = remote.stalled.front().map_or(remote.last, |(d, _)| d.sequence.saturating_sub(1));
                let open = remote.taps.iter().filter(|t| t.state != TapState::Opening && t.outlet.is_some());
                let first = open.filter_map(|t| t.sequences.front()).min();
                remote.cursor = remote.cursor.max(first.map_or(last, |s| (s - 1).min(last)));
            }
            found.cursors.extend(remote.take_cursor().map(|(flow, cursor)| (remote.host, flow, cursor)));
            if remote.ending && !remote.closing && self.is_through(source) {
                self.close_remote(source);
            }
            if self.remotes[source].as_ref().is_some_and(Remote::rests) {
                self.remotes.rest(Looker::Links, source);
            }
        }
        self.wake_sinks();
        busy
    }

    /// Wakes the sessions that sleep on links on which something was put. Returns whether anything was.
    pub(crate) fn wake_sinks(&mut self) -> bool {
        let put = self.outlets.marked_mut(Looker::Links).filter(|outlet| outlet.unwoken);
        put.map(Outlet::wake).count() > 0
    }

    fn is_through(&self, source: usize) -> bool {
        let Some(remote) = self.remotes[source].as_ref() else { return true };
        let behind = |o: usize| self.outlets[o].as_ref().is_some_and(Outlet::is_behind);
        remote.stalled.is_empty() && !remote.taps.iter().filter_map(|t| t.outlet).any(behind)
    }

    /// Ends a link whose session is gone: its holds, and what its sinks had not counted.
    pub(crate) fn dissolve(&mut self, at: usize) {
        let Some(mut outlet) = self.outlets[at].take() else { return };
        self.links -= 1;
        self.scatter_no_more(&outlet);
        for (source, remote) in self.remotes.iter_mut().enumerate() {
            let Some(remote) = remote else { continue };
            for tap in remote.taps.iter_mut().filter(|t| t.outlet == Some(at)) {
                if let Some(counters) = &outlet.counters {
                    tap.look(remote.epoch, counters);
                }
                tap.is_lost();
                (tap.state, tap.outlet) = (TapState::Closed, None);
                self.notes.push(Note::Left { source });
            }
        }
        for waiting in outlet.backlog.drain(..) {
            waiting.slot.map(|slot| self.slab.unhold(slot));
        }
        if let Some(producer) = outlet.producer.as_mut() {
            producer.dissolve(|segment, slot| {
                self.slab.unhold(SlotId { segment, slot });
            });
        }
    }
}
