//! What waits in the sinks' queues: how much that may be, and that it is looked at once more before it is handed out, as it may have
//! waited past its deadline.

use super::{Rx, RxSink, now_ns};
use crate::error::{Code, Error, Result};
use crate::message::RawMessage;
use insane_shm::counters::Count;
use insane_shm::link::Fate;
use insane_wire::id::SinkId;
use std::collections::VecDeque;

/// Whether a deadline in these nanoseconds is past; 0 is none, for which no clock is read.
#[inline]
pub(super) fn is_past(deadline_ns: u64) -> bool {
    deadline_ns != 0 && now_ns() > deadline_ns
}

/// What waits for one sink, in order.
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

    /// Adds a message, which keeps so many bytes.
    pub(super) fn push(&mut self, message: RawMessage, bytes: u64) {
        self.messages.push_back((message, bytes));
        self.bytes += bytes;
    }

    pub(super) fn front(&self) -> Option<&RawMessage> {
        self.messages.front().map(|(message, _)| message)
    }

    pub(super) fn pop(&mut self) -> Option<RawMessage> {
        let (message, bytes) = self.messages.pop_front()?;
        self.bytes -= bytes;
        Some(message)
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

/// What a link has: entries that are taken and those that are not, and how many bytes its messages may keep.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) out: u64,
    pub(super) rest: u64,
    pub(super) bytes: u64,
}

/// Whether the sink in this place is to get no more of a link's messages for now, as it has let so many wait that those of others would
/// find no room. As where switches share their buffers (Choudhury and Hahne's dynamic thresholds, 1998) its part may be as much as what is
/// left, so one sink that takes nothing has half of the link, two of unlike channels have a third each, and there always is a rest. A
/// session's only sink may have all.
pub(super) fn has_its_share(sinks: &[Option<RxSink>], index: usize, room: Room) -> bool {
    let (own, own_bytes) = sinks.get(index).and_then(Option::as_ref).map_or((0, 0), |sink| sink.queue.size());
    if own == 0 {
        return false;
    }
    let open = || sinks.iter().flatten().filter(|sink| sink.open).map(|sink| sink.queue.size());
    let (all, all_bytes) = open().fold((0, 0u64), |(n, bytes), one| (n + one.0, bytes + one.1));
    // A pack's messages wait by themselves and have one entry: what they are of all that wait, they are of the entries.
    let entries = room.out.saturating_mul(own) > room.rest.saturating_mul(all);
    (entries || own_bytes > room.bytes.saturating_sub(all_bytes)) && open().nth(1).is_some()
}

impl Rx {
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
            match me.queue.front() {
                None => return Ok(false),
                Some(message) if !late(message) => return Ok(true),
                Some(_) => {}
            }
            let Some(message) = me.queue.pop() else { return Ok(false) };
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
