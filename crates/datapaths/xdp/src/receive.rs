//! Receiving: shown where it lies, or copied once to where it belongs.

use insane_datapath::batch::{Landed, PEEK_BYTES, Place, RxBatch, RxReport, Taken, land_with};
use insane_datapath::memory::Slot;

use crate::XdpDatapath;
use crate::gather::Received;

/// What is to be done with a frame that was shown.
enum Shown {
    /// It was taken; its buffers go back to the kernel.
    Taken,
    /// It could not be used.
    Spoiled,
}

impl XdpDatapath {
    /// Shows up to `limit` received frames where they lie, in order for each queue; each one's memory goes back to the kernel
    /// when `see` returns. Never waits.
    pub fn receive_with(&mut self, limit: usize, see: impl FnMut(&Received<'_>)) -> RxReport {
        self.receive_while(limit, || true, see)
    }

    /// As [`XdpDatapath::receive_with`], as long as `ready` says so.
    pub(crate) fn receive_while(
        &mut self,
        limit: usize,
        ready: impl FnMut() -> bool,
        mut see: impl FnMut(&Received<'_>),
    ) -> RxReport {
        self.show(limit, ready, |received| {
            see(received);
            Shown::Taken
        })
    }

    /// Shows frames as long as `ready` says so.
    fn show(
        &mut self,
        limit: usize,
        mut ready: impl FnMut() -> bool,
        mut see: impl FnMut(&Received<'_>) -> Shown,
    ) -> RxReport {
        if self.left {
            self.kick_all();
        }
        let mut report = RxReport::default();
        let Some(opened) = &mut self.opened else { return report };
        let count = opened.queues.len();
        let (mut stopped, mut seen) = (limit == 0, 0);
        for turn in 0..count {
            let at = (self.turn + turn) % count;
            let Some(queue) = opened.queues.get_mut(at) else { break };
            let number = queue.number;
            while !stopped {
                if seen >= limit || !ready() {
                    stopped = true;
                    self.turn = at;
                    break;
                }
                if !queue.take() {
                    break;
                }
                seen += 1;
                let received = Received::new(&opened.umem, queue.parts(), number, queue.may_lend());
                let shown = see(&received);
                let lent = received.is_lent();
                match shown {
                    Shown::Taken => {
                        report.frames += 1;
                        self.stats.received_frames += 1;
                        self.stats.received_bytes += received.len() as u64;
                    }
                    Shown::Spoiled => self.stats.spoiled += 1,
                }
                if lent {
                    queue.lend_taken();
                }
            }
            queue.settle();
        }
        report.more = stopped && opened.queues.iter_mut().any(crate::queue::Queue::has_more);
        // The others are first next time.
        self.turn = (self.turn + 1) % count.max(1);
        report
    }

    /// Takes back what was lent; what was lent by others, or before it was opened anew, is let go of.
    pub(crate) fn take_back_lent(&mut self, lent: &mut Vec<Slot>) {
        for slot in lent.drain(..) {
            let Some((opened, place)) = self.opened.as_mut().zip(slot.place()) else { continue };
            if slot.id() == opened.umem.number()
                && let Some(queue) = opened.queues.get_mut(usize::from(place.memory))
            {
                drop(slot);
                queue.take_back(place.slot);
            }
        }
    }

    pub(crate) fn receive_batch(&mut self, batch: &mut RxBatch, mut place: Option<&mut dyn Place>) -> RxReport {
        batch.landed.clear();
        batch.heads.clear();
        let RxBatch { free, taken, landed, heads, limit, .. } = batch;
        let (limit, mut placed) = (*limit, 0);
        // A frame is looked at only when there is a slot for it: once taken off the ring it cannot go back.
        let free = core::cell::RefCell::new(free);
        let report = self.show(
            limit,
            || !free.borrow().is_empty(),
            |received| {
                let len = received.len();
                if let Some(place) = place.as_deref_mut().filter(|place| place.expects())
                    && let Some(one) = land(received, len, place, heads)
                {
                    landed.push(one);
                    placed += 1;
                    return Shown::Taken;
                }
                let Some(mut slot) = free.borrow_mut().pop() else { return Shown::Spoiled };
                if len == 0 || slot.len() < len {
                    free.borrow_mut().push(slot);
                    return Shown::Spoiled;
                }
                received.copy_to(0..len, slot.bytes_mut());
                taken.push(Taken { slot, len, stride: len, from: received.from() });
                Shown::Taken
            },
        );
        self.stats.placed += placed;
        report
    }
}

/// Copies a frame to where its payload belongs, if it belongs somewhere.
fn land(received: &Received<'_>, len: usize, place: &mut dyn Place, heads: &mut Vec<u8>) -> Option<Landed> {
    let first = received.first();
    let head = first.get(..PEEK_BYTES).unwrap_or(first);
    land_with(head, len, received.from(), place, heads, |memory, at| {
        received.copy_to(at..len, memory);
    })
}
