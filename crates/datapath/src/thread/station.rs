//! What a datapath has on its polling thread, and what both sides of it see.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::batch::{RxBatch, Taken, TxBatch};
use crate::memory::Slot;
use crate::{Armed, Capabilities, Datapath, Stats};

use super::wait::Bell;

/// How many batches of frames wait for the thread, or are being sent by it, at most.
pub(super) const BATCHES: usize = 4;

/// Slots to receive into: as many pieces wait for the user at most.
pub(super) const SLOTS: usize = 64;

/// Frames that were sent or refused, and how many of them were refused.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) batch: TxBatch<'static>,
    pub(super) refused: usize,
}

/// What the user sees of the datapath without asking its thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mirror {
    pub(super) can: Capabilities,
    pub(super) stats: Stats,
}

/// What both sides see.
pub(super) struct Shared {
    /// Locked by the thread while it looks at it or sleeps on it, and by the user for what is rare.
    pub(super) station: Mutex<Station>,
    /// The user waits for the station, or has it: the thread leaves it alone.
    pub(super) wanted: AtomicU32,
    /// It is open; only changed with the station.
    pub(super) open: AtomicBool,
    mirror: Mutex<Mirror>,
    /// The user sleeps, or is about to.
    pub(super) armed: AtomicBool,
    /// The bell was rung, and not cleared.
    pub(super) rung: AtomicBool,
    pub(super) bell: Bell,
    /// The user has frames to send, and found no batch to be filled.
    pub(super) full: AtomicBool,
    /// The thread sleeps without a slot to receive into.
    pub(super) starved: AtomicBool,
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(station: Station) -> std::io::Result<Self> {
        let mirror = Mutex::new(station.mirror());
        let off = || AtomicBool::new(false);
        Ok(Self {
            open: AtomicBool::new(station.inner.address().is_some()),
            station: Mutex::new(station),
            wanted: AtomicU32::new(0),
            mirror,
            armed: off(),
            rung: off(),
            bell: Bell::new()?,
            full: off(),
            starved: off(),
        })
    }

    pub(super) fn mirror(&self) -> MutexGuard<'_, Mirror> {
        self.mirror.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the user if it sleeps, or is about to, and there is something to `tell`, or it waits for batches to come back.
    fn wake(&self, tell: bool) {
        // What there is for the user was put before this fence, and is looked for after that of `OnThread::arm`: either that finds it,
        // or this finds `armed`. Relaxed: the fences order it.
        fence(Ordering::SeqCst);
        let tell = tell || self.full.load(Ordering::Relaxed);
        if tell && self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::Relaxed) {
            self.bell.ring();
            // After it: who clears the bell because of this finds it rung. Release, for `OnThread::clear_bell`.
            self.rung.store(true, Ordering::Release);
        }
    }
}

/// See the module's head.
pub(super) struct Station {
    pub(super) inner: Box<dyn Datapath>,
    pub(super) rx: RxBatch,
    /// What is being sent, and how many of its frames were refused.
    sending: Option<(TxBatch<'static>, usize)>,
    pub(super) to_send: Receiver<TxBatch<'static>>,
    pub(super) settled: SyncSender<Settled>,
    pub(super) filled: SyncSender<Taken>,
    pub(super) emptied: Receiver<Slot>,
}

impl Station {
    pub(super) fn new(
        inner: Box<dyn Datapath>,
        to_send: Receiver<TxBatch<'static>>,
        settled: SyncSender<Settled>,
        filled: SyncSender<Taken>,
        emptied: Receiver<Slot>,
    ) -> Self {
        let mut station = Self { inner, rx: RxBatch::default(), sending: None, to_send, settled, filled, emptied };
        station.make_slots();
        station
    }

    /// Slots of the size that the technology wants now, in place of those that there are. All are here.
    pub(super) fn make_slots(&mut self) {
        let bytes = self.inner.capabilities().slot_bytes;
        if self.rx.free.first().is_none_or(|slot| slot.len() != bytes) {
            self.rx.free = (0..SLOTS as u64).map(|id| Slot::owned(id, bytes)).collect();
        }
    }

    pub(super) fn mirror(&self) -> Mirror {
        Mirror { can: self.inner.capabilities(), stats: self.inner.stats() }
    }

    /// Sends and receives what there is, a bounded number of batches. Returns whether there was something.
    pub(super) fn turn(&mut self, shared: &Shared) -> bool {
        let (sent, refused) = self.send();
        let got = self.receive();
        let busy = sent || got;
        if busy {
            // Before the user can see what it is about.
            *shared.mirror() = self.mirror();
        }
        for taken in self.rx.taken.drain(..) {
            // It has room for as many as there are slots.
            let _ = self.filled.try_send(taken);
        }
        if busy {
            shared.wake(got || refused);
        }
        busy
    }

    /// Hands batches to the technology. Returns whether frames went, or were refused; and whether the user must hear of any.
    pub(super) fn send(&mut self) -> (bool, bool) {
        let (mut went, mut tell) = (false, false);
        for _ in 0..BATCHES {
            let Some((mut batch, before)) = self.next_to_send() else { break };
            let report = self.inner.transmit(&mut batch);
            went |= report.sent + report.refused > 0;
            let refused = before + report.refused;
            if !batch.is_done() {
                self.sending = Some((batch, refused));
                break;
            }
            tell |= refused > 0;
            // It has room for as many as there are batches.
            let _ = self.settled.try_send(Settled { batch, refused });
        }
        (went, tell)
    }

    /// The batch that is being sent, or the next.
    pub(super) fn next_to_send(&mut self) -> Option<(TxBatch<'static>, usize)> {
        self.sending.take().or_else(|| self.to_send.try_recv().ok().map(|batch| (batch, 0)))
    }

    fn receive(&mut self) -> bool {
        self.take_slots();
        !self.rx.free.is_empty() && self.inner.receive(&mut self.rx, None).frames > 0
    }

    /// Takes slots that the user has emptied.
    fn take_slots(&mut self) {
        self.rx.free.extend(self.emptied.try_iter());
    }

    /// Before the thread sleeps, and after it has said so: whether there is something to do now ([`Armed::Ready`]), or the technology
    /// may wake it, or cannot.
    pub(super) fn prepare_sleep(&mut self, shared: &Shared) -> Armed {
        if self.sending.is_none() {
            self.sending = self.next_to_send();
            if self.sending.is_some() {
                return Armed::Ready;
            }
        }
        if self.rx.free.is_empty() {
            // As in `Shared::wake`: slots are given back before the fence of `OnThread::receive`, and looked for after this one.
            shared.starved.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            self.take_slots();
            return if self.rx.free.is_empty() { Armed::Sleep } else { Armed::Ready };
        }
        self.inner.arm()
    }

    /// Whether it waits for the technology to take frames.
    pub(super) const fn is_held_up(&self) -> bool {
        self.sending.is_some()
    }
}
