//! What waits in the sinks' queues, and is looked at once more before it is handed out: it may have waited past its deadline.

use super::{Rx, now_ns};
use crate::error::{Code, Error, Result};
use crate::message::RawMessage;
use insane_shm::counters::Count;
use insane_shm::link::Fate;
use insane_wire::id::SinkId;

/// Whether a deadline in these nanoseconds is past; 0 is none, for which no clock is read.
#[inline]
pub(super) fn is_past(deadline_ns: u64) -> bool {
    deadline_ns != 0 && now_ns() > deadline_ns
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
            let Some(message) = me.queue.pop_front() else { return Ok(false) };
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
