//! Stage 4 from an object, with a round robin beside it that knows the same and takes over where an answer cannot be.

use std::ffi::c_void;

use insane_traffic::schedule::{self, QueueView, RoundRobin};
use insane_traffic::spec::SchedulerSpec;
use insane_traffic::stats::StatMap;
use insane_traffic::{QueueId, Time};

use super::{QueueSet, queue_id};
use crate::abi;
use crate::stage::{Instance, SchedulerCalls};

/// A scheduler.
#[derive(Debug)]
pub(crate) struct Scheduler {
    stage: Instance,
    calls: SchedulerCalls,
    known: QueueSet,
    /// The queues that may be chosen.
    active: QueueSet,
    fallback: RoundRobin,
    /// The answer that holds until something happens.
    chosen: Option<QueueId>,
    /// Refusals since a packet left.
    refusals: usize,
    faults: u64,
}

impl Scheduler {
    pub(crate) fn new(stage: Instance, calls: SchedulerCalls) -> Self {
        Self {
            stage,
            calls,
            known: QueueSet::default(),
            active: QueueSet::default(),
            fallback: RoundRobin::default(),
            chosen: None,
            refusals: 0,
            faults: 0,
        }
    }

    fn activate(&mut self, queue: QueueId) {
        if !self.known.contains(queue) {
            return;
        }
        self.chosen = None;
        self.active.insert(queue);
        schedule::Scheduler::activate(&mut self.fallback, queue);
        // SAFETY: the stage lives.
        unsafe { (self.calls.activate)(self.stage.raw(), queue.0) };
    }

    fn deactivate(&mut self, queue: QueueId, why: u32) {
        self.chosen = None;
        self.fallback.emptied(queue);
        if self.active.remove(queue) {
            // SAFETY: the stage lives.
            unsafe { (self.calls.deactivate)(self.stage.raw(), queue.0, why) };
        }
    }
}

use schedule::Scheduler as _;

/// The view behind a `View`'s context.
///
/// # Safety
/// `context` is what [`Scheduler::next`] put into the view, and that call still runs.
unsafe fn queues<'a>(context: *const c_void) -> &'a dyn QueueView {
    // SAFETY: the caller's promise: it points to a reference on the stack of `next`.
    unsafe { *context.cast::<&'a dyn QueueView>() }
}

unsafe extern "C" fn packets(context: *const c_void, queue: u32) -> u64 {
    // SAFETY: the header's contract: the first argument is the view's context, and the view is not kept.
    unsafe { queues(context) }.packets(QueueId(queue)) as u64
}

unsafe extern "C" fn bytes(context: *const c_void, queue: u32) -> u64 {
    // SAFETY: as above.
    unsafe { queues(context) }.bytes(QueueId(queue))
}

unsafe extern "C" fn head_time(context: *const c_void, queue: u32) -> u64 {
    // SAFETY: as above.
    unsafe { queues(context) }.head_time(QueueId(queue)).map_or(abi::UNKNOWN, Time::nanos)
}

impl schedule::Scheduler for Scheduler {
    fn add(&mut self, queue: QueueId) {
        self.fallback.add(queue);
        if self.known.insert(queue) {
            // SAFETY: the stage lives.
            unsafe { (self.calls.add)(self.stage.raw(), queue.0) };
        }
    }

    fn remove(&mut self, queue: QueueId) {
        self.chosen = None;
        self.active.remove(queue);
        self.fallback.remove(queue);
        if self.known.remove(queue) {
            // SAFETY: the stage lives.
            unsafe { (self.calls.remove)(self.stage.raw(), queue.0) };
        }
    }

    fn activate(&mut self, queue: QueueId) {
        Self::activate(self, queue);
    }

    fn next(&mut self, now: Time, view: &dyn QueueView) -> Option<QueueId> {
        if self.active.count == 0 {
            return None;
        }
        if self.chosen.is_none() {
            let context = (&raw const view).cast();
            let told = abi::View { context, packets, bytes, head_time };
            // SAFETY: the stage lives, and the view lives through the call.
            let answer = unsafe { (self.calls.next)(self.stage.raw(), now.nanos(), &raw const told) };
            self.chosen = queue_id(answer).filter(|queue| self.active.contains(*queue));
            if self.chosen.is_none() {
                self.faults += 1;
                self.chosen = self.fallback.next(now, view);
            }
        }
        self.chosen
    }

    fn offer(&mut self, queue: QueueId, size: u32) -> bool {
        let Some(offer) = self.calls.offer else { return true };
        // SAFETY: the stage lives.
        if unsafe { offer(self.stage.raw(), queue.0, size) } != 0 {
            return true;
        }
        // Below what the pipeline itself takes for a fault, so that no time is lost.
        if self.refusals >= 2 * self.known.count + 32 {
            self.faults += 1;
            return true;
        }
        self.refusals += 1;
        self.chosen = None;
        false
    }

    fn sent(&mut self, queue: QueueId, size: u32) {
        self.chosen = None;
        self.refusals = 0;
        self.fallback.sent(queue, size);
        // SAFETY: the stage lives.
        unsafe { (self.calls.sent)(self.stage.raw(), queue.0, size) };
    }

    fn emptied(&mut self, queue: QueueId) {
        self.deactivate(queue, abi::EMPTY);
    }

    fn block(&mut self, queue: QueueId) {
        self.deactivate(queue, abi::HELD_BACK);
    }

    fn unblock(&mut self, queue: QueueId) {
        Self::activate(self, queue);
    }

    fn modify(&mut self, spec: &SchedulerSpec) -> bool {
        let SchedulerSpec::Plugin { name, options } = spec else { return false };
        self.chosen = None;
        self.stage.modify(name, options)
    }

    fn stats(&self, out: &mut StatMap) {
        self.stage.stats(&[("faults", self.faults)], out);
    }
}
