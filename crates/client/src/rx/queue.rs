//! What waits in the sinks' queues: how much that may be, and that it is looked at once more before it is handed out, as it may have
//! waited past its deadline.

use super::{FlowSink, Rx, RxLink, RxSink, now_ns};
use crate::error::{Code, Error, Result};
use crate::message::RawMessage;
use insane_shm::counters::Count;
use insane_shm::link::{Descriptor, FLAG_INLINE, FLAG_PACKED, Fate};
use insane_wire::id::SinkId;
use std::collections::VecDeque;

/// Whether a deadline in these nanoseconds is past; 0 is none, for which no clock is read.
#[inline]
pub(super) fn is_past(deadline_ns: u64) -> bool {
    deadline_ns != 0 && now_ns() > deadline_ns
}

/// What waits for one sink, in order: each message with how many bytes it keeps.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    messages: VecDeque<(RawMessage, u64)>,
    bytes: u64,
}

impl Queue {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// How many messages wait, and what they keep in bytes.
    fn size(&self) -> (u64, u64) {
        (self.messages.len() as u64, self.bytes)
    }
}

/// What a message is taken off a link for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// For this sink.
    By(usize),
    /// To see for whom there is something.
    Any,
    /// The link is to be emptied.
    All,
}

impl Wanted {
    pub(super) const fn sink(self) -> Option<usize> {
        match self {
            Self::By(sink) => Some(sink),
            Self::Any | Self::All => None,
        }
    }
}

/// How much of a link is taken: entries and those that are not, bytes that wait in queues and those that may yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    out: u64,
    rest: u64,
    queued: u64,
    left: u64,
}

impl Room {
    pub(super) fn of(link: &RxLink) -> Self {
        Self {
            out: link.out,
            rest: u64::from(link.consumer.entries()).saturating_sub(link.out),
            queued: link.queued,
            left: link.room.saturating_sub(link.queued),
        }
    }

    /// Whether less is left than is taken. Otherwise nobody has more than its share.
    pub(super) fn is_short(&self) -> bool {
        self.out > self.rest || self.queued > self.left
    }

    /// Whether the sink in this place is to get no more for now, as it has let so many messages wait that those of others would find
    /// no room. As where switches share their buffers (Choudhury and Hahne's dynamic thresholds, 1998) its part of what is taken may be
    /// as much as what is left, so one sink that takes nothing has half of the link, two of unlike channels have a third each, and there
    /// always is a rest.
    pub(super) fn is_used_up(&self, sinks: &[Option<RxSink>], index: usize) -> bool {
        let (own, own_bytes) = sinks.get(index).and_then(Option::as_ref).map_or((0, 0), |sink| sink.queue.size());
        let sizes = sinks.iter().flatten().map(|sink| sink.queue.size());
        let (all, all_bytes) = sizes.fold((0, 0u64), |(n, bytes), one| (n + one.0, bytes + one.1));
        // Messages of other links wait there too, and those of a pack have one entry: a sink's part of the link is its part of all.
        self.out.saturating_mul(own) > self.rest.saturating_mul(all)
            || self.queued.saturating_mul(own_bytes) > self.left.saturating_mul(all_bytes)
    }
}

impl RxLink {
    /// Whether messages on it may be for more than one sink. A source that asks for room before it emits knows by then that it shares it.
    pub(super) fn is_shared(&self, sinks: &[Option<RxSink>]) -> bool {
        let open = |s: &&FlowSink| {
            sinks.get(s.index).and_then(Option::as_ref).is_some_and(|sink| sink.open && sink.id == s.id)
        };
        let mut joined = self.flows.values().flat_map(|flow| &flow.sinks).filter(|s| s.joined).filter(open);
        joined.next().is_some_and(|first| joined.any(|other| other.index != first.index))
    }

    /// How many bytes a message keeps from others while it waits: its slot, or what it has of a pack's.
    fn keeps(&self, d: &Descriptor) -> u64 {
        let slot = || Some(self.segments.get(usize::from(d.segment))?.as_ref()?.geometry().stride);
        match d.flags & (FLAG_INLINE | FLAG_PACKED) {
            0 => slot().unwrap_or(0),
            FLAG_PACKED => d.length.into(),
            _ => 0,
        }
    }
}

impl Rx {
    /// Puts a message of a link, with its descriptor, into a sink's queue.
    pub(super) fn push_to(&mut self, index: usize, message: RawMessage, (at, d): (usize, &Descriptor)) {
        let Some(Some(sink)) = self.sinks.get_mut(index) else { return };
        let Some(Some(link)) = self.links.get_mut(at) else { return };
        let bytes = link.keeps(d);
        link.queued += bytes;
        sink.queue.bytes += bytes;
        sink.queue.messages.push_back((message, bytes));
        if !sink.tasks.is_empty() {
            crate::session::lock(&self.wakers).extend(sink.tasks.take());
            self.alarm = true;
        }
    }

    /// Takes the first message out of a sink's queue.
    pub(super) fn pop_from(&mut self, index: usize) -> Option<RawMessage> {
        let queue = &mut self.sinks.get_mut(index)?.as_mut()?.queue;
        let (message, bytes) = queue.messages.pop_front()?;
        queue.bytes -= bytes;
        let origin = message.get().origin();
        let link = self.links.get_mut(origin.link as usize).and_then(Option::as_mut);
        if let Some(link) = link.filter(|link| link.generation == origin.generation) {
            link.queued -= bytes;
        }
        Some(message)
    }

    /// Takes out of a sink's queue what has come from one source, over a link of this generation.
    pub(super) fn pull_from(&mut self, index: usize, (at, generation, source): (usize, u32, u32)) -> Vec<RawMessage> {
        let Some(Some(sink)) = self.sinks.get_mut(index) else { return Vec::new() };
        let is_its = |message: &RawMessage| {
            let origin = message.get().origin();
            (origin.link as usize, origin.generation, origin.source) == (at, generation, source)
        };
        let all = std::mem::take(&mut sink.queue.messages);
        let (pulled, left): (VecDeque<_>, VecDeque<_>) = all.into_iter().partition(|(message, _)| is_its(message));
        let bytes: u64 = pulled.iter().map(|(_, bytes)| bytes).sum();
        sink.queue.messages = left;
        sink.queue.bytes -= bytes;
        let link = self.links.get_mut(at).and_then(Option::as_mut);
        if let Some(link) = link.filter(|link| link.generation == generation) {
            link.queued -= bytes;
        }
        pulled.into_iter().map(|(message, _)| message).collect()
    }

    /// Whether a message waits for the sink, after moving what is on the links into queues, a bounded burst each.
    ///
    /// # Errors
    /// [`Code::Closed`].
    pub(crate) fn has(&mut self, sink: usize) -> Result<bool> {
        if self.waits(sink)? {
            return Ok(true);
        }
        self.gather();
        Ok(self.waits(sink)? || self.nothing::<bool>(sink)?.is_some())
    }

    /// What a call says that finds nothing: why, if the runtime does not open the sink again.
    #[cold]
    pub(super) fn nothing<T>(&self, sink: usize) -> Result<Option<T>> {
        self.refused.get(&sink).map_or(Ok(None), |why| Err(why.clone()))
    }

    /// Why a sink is closed.
    #[cold]
    fn closed(&self, sink: usize) -> Error {
        self.refused.get(&sink).cloned().unwrap_or_else(|| Code::Closed.into())
    }

    /// The runtime does not open a sink again, which may be closed for that: whoever waits looks again.
    /// The reason that there was before is returned.
    pub(crate) fn refuse_sink(&mut self, sink: usize, why: &Error) -> Option<Error> {
        let before = self.refused.insert(sink, why.clone());
        self.interrupt();
        before
    }

    /// Whether a sink is open.
    pub(crate) fn is_open(&self, sink: usize, id: SinkId) -> bool {
        self.sinks.get(sink).and_then(Option::as_ref).is_some_and(|s| s.open && s.id == id)
    }

    /// Whether a message that is not past its deadline waits in the sink's queue, once those that are were counted and given back.
    pub(super) fn waits(&mut self, sink: usize) -> Result<bool> {
        let late = |message: &RawMessage| message.get().extra.as_ref().is_some_and(|e| is_past(e.deadline_ns));
        loop {
            let Some(me) = self.sinks.get_mut(sink).and_then(Option::as_mut).filter(|s| s.open) else {
                return Err(self.closed(sink));
            };
            match me.queue.messages.front() {
                None => return Ok(false),
                Some((message, _)) if !late(message) => return Ok(true),
                Some(_) => {}
            }
            let Some(message) = self.pop_from(sink) else { return Ok(false) };
            if let Some(cell) = message.get().extra.as_ref().and_then(|e| e.cell.as_ref()) {
                cell.add(Count::Expired, 1);
            }
            self.release_as(message, Fate::Expired);
        }
    }

    /// Whether a message waits in the sink's queue; see [`Self::gather`].
    ///
    /// # Errors
    /// [`Code::Closed`].
    pub(crate) fn queued(&mut self, sink: usize, id: SinkId) -> Result<bool> {
        if !self.is_open(sink, id) {
            return Err(self.closed(sink));
        }
        Ok(self.waits(sink)? || self.nothing::<bool>(sink)?.is_some())
    }
}
