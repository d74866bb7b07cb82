//! A cable in memory: a device of raw frames at each end.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use insane_datapath::batch::{Outcome, Place, RxBatch, RxReport, TxBatch, TxReport};
use insane_datapath::raw::{Front, InPlace, RawDatapath, Whole};
use insane_datapath::{Address, Armed, Capabilities, Datapath, DatapathError, Stats};
use rustix::event::{EventfdFlags, eventfd};

/// The largest frame: with an MTU of 1500.
const MAX_FRAME: usize = 1514;

/// So many frames wait at an end; what comes then is lost, as in a ring.
const QUEUE: usize = 1024;

/// What has come to an end and was not received yet.
#[derive(Debug)]
struct Queue {
    open: bool,
    frames: VecDeque<Vec<u8>>,
    wake: OwnedFd,
}

/// An end of a cable.
#[derive(Debug)]
pub(crate) struct Wire {
    queues: [Arc<Mutex<Queue>>; 2],
    end: usize,
    wake: OwnedFd,
    open: bool,
}

/// Both ends of a cable, closed. Clones of an end are the same place: one of them may be open.
pub(crate) fn cable() -> [Wire; 2] {
    let queues = [0, 1].map(|_| {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        Arc::new(Mutex::new(Queue { open: false, frames: VecDeque::new(), wake }))
    });
    [0, 1].map(|end| Wire::new(queues.clone(), end))
}

impl Wire {
    fn new(queues: [Arc<Mutex<Queue>>; 2], end: usize) -> Self {
        let wake = queues[end].lock().expect("no panic").wake.try_clone().expect("a descriptor");
        Self { queues, end, wake, open: false }
    }

    fn queue(&self, end: usize) -> MutexGuard<'_, Queue> {
        self.queues[end].lock().expect("no panic")
    }
}

impl Clone for Wire {
    fn clone(&self) -> Self {
        Self::new(self.queues.clone(), self.end)
    }
}

impl Datapath for Wire {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::plain("wire", MAX_FRAME);
        can.needs_packet_engine = true;
        can
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        self.open = true;
        self.queue(self.end).open = true;
        Ok(())
    }

    fn address(&self) -> Option<Address> {
        self.open.then_some(Address::Ethernet([2, 0, 0, 0, 0, 1 + self.end as u8]))
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        let mut report = TxReport::default();
        while let Some(frame) = batch.pending().first() {
            let mut bytes = Vec::new();
            batch.copy_to(frame, &mut bytes);
            let outcome = if bytes.len() > MAX_FRAME { Outcome::TooLarge } else { Outcome::Sent };
            let mut peer = self.queue(1 - self.end);
            if outcome == Outcome::Sent && peer.open && peer.frames.len() < QUEUE {
                peer.frames.push_back(bytes);
                rustix::io::write(&peer.wake, &1_u64.to_ne_bytes()).expect("it is not full");
            }
            drop(peer);
            batch.settle(1, outcome);
            let sent = usize::from(outcome == Outcome::Sent);
            (report.sent, report.refused) = (report.sent + sent, report.refused + 1 - sent);
        }
        report
    }

    fn receive(&mut self, _: &mut RxBatch, _: Option<&mut dyn Place>) -> RxReport {
        unreachable!("the engine looks at frames where they lie")
    }

    fn wake_handle(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }

    fn arm(&mut self) -> Armed {
        let queue = self.queue(self.end);
        let _ = rustix::io::read(&queue.wake, &mut [0; 8]);
        if queue.frames.is_empty() { Armed::Sleep } else { Armed::Ready }
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }

    fn close(&mut self) {
        if std::mem::take(&mut self.open) {
            let mut queue = self.queue(self.end);
            queue.open = false;
            queue.frames.clear();
        }
    }
}

impl RawDatapath for Wire {
    fn transmit_behind(&mut self, batch: &mut TxBatch<'_>, front: &mut dyn Front) -> TxReport {
        let mut report = TxReport::default();
        while let Some(frame) = batch.pending().first() {
            let outcome = front.room(frame, batch.head(frame)).and_then(|room| {
                let mut bytes = vec![0; room];
                batch.copy_to(frame, &mut bytes);
                let (before, body) = bytes.split_at_mut(room);
                front.write(frame, before, &mut |show| show(body))?;
                let mut whole = TxBatch::default();
                whole.frame(frame.to, &bytes, 0);
                self.transmit(&mut whole);
                Ok(whole.frames()[0].outcome)
            });
            let outcome = outcome.unwrap_or_else(|outcome| outcome);
            batch.settle(1, outcome);
            let sent = usize::from(outcome == Outcome::Sent);
            (report.sent, report.refused) = (report.sent + sent, report.refused + 1 - sent);
        }
        report
    }

    fn receive_in_place(&mut self, limit: usize, see: &mut dyn FnMut(&dyn InPlace) -> bool) -> RxReport {
        let mut report = RxReport::default();
        while self.open && report.frames < limit {
            let Some(frame) = self.queue(self.end).frames.pop_front() else { return report };
            report.frames += 1;
            if !see(&Whole(&frame)) {
                break;
            }
        }
        report.more = true;
        report
    }
}
