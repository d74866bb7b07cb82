//! What a datapath has on its polling thread, and what both sides of it see.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::batch::{RxBatch, Taken, TxBatch};
use crate::loopback::Hub;
use crate::memory::Slot;
use crate::{Armed, Capabilities, Datapath, Stats};

use super::wait::Bell;

/// How many batches of frames wait for the thread, or are being sent by it, at most.
pub(super) const BATCHES: usize = 4;

/// Slots to receive into, of each part: as many pieces of it wait for the user at most.
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

/// How the user is woken, by whichever thread has something for it.
#[derive(Debug)]
pub(super) struct User {
    /// It sleeps, or is about to.
    pub(super) armed: AtomicBool,
    /// The bell was rung, and not cleared.
    pub(super) rung: AtomicBool,
    pub(super) bell: Bell,
    /// It has frames to send, and found no batch to be filled.
    pub(super) full: AtomicBool,
}

impl User {
    pub(super) fn new() -> std::io::Result<Self> {
        let off = || AtomicBool::new(false);
        Ok(Self { armed: off(), rung: off(), bell: Bell::new()?, full: off() })
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

/// What both sides see of a part.
pub(super) struct Shared {
    /// Locked by the thread while it looks at it or sleeps on it, and by the user for what is rare.
    pub(super) station: Mutex<Station>,
    /// The user waits for the station, or has it: the thread leaves it alone.
    pub(super) wanted: AtomicU32,
    /// It is open; only changed with the station.
    pub(super) open: AtomicBool,
    mirror: Mutex<Mirror>,
    /// The user asks whether it was lost.
    asked: AtomicBool,
    /// The answer to what was asked last.
    lost: Mutex<Option<String>>,
    pub(super) user: Arc<User>,
    /// The thread sleeps without a slot to receive into.
    pub(super) starved: AtomicBool,
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(station: Station, user: &Arc<User>) -> Self {
        let mirror = Mutex::new(station.mirror());
        Self {
            open: AtomicBool::new(station.inner.address().is_some()),
            station: Mutex::new(station),
            wanted: AtomicU32::new(0),
            mirror,
            asked: AtomicBool::new(false),
            lost: Mutex::new(None),
            user: user.clone(),
            starved: AtomicBool::new(false),
        }
    }

    pub(super) fn mirror(&self) -> MutexGuard<'_, Mirror> {
        self.mirror.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self) -> MutexGuard<'_, Option<String>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the thread, which is to be woken for it, whether the technology has lost it. Returns what it said to the question before.
    pub(super) fn ask_lost(&self) -> Option<String> {
        // Relaxed: the thread is woken after it, as in `Roster::wake`.
        self.asked.store(true, Ordering::Relaxed);
        self.answer().clone()
    }

    /// Forgets a question and its answer: it is another one that is open now.
    pub(super) fn ask_anew(&self) {
        self.asked.store(false, Ordering::Relaxed);
        *self.answer() = None;
    }
}

/// See the module's head.
pub(super) struct Station {
    pub(super) inner: Box<dyn Datapath>,
    pub(super) rx: RxBatch,
    /// What is being sent, and how many of its frames were refused.
    sending: Option<(TxBatch<'static>, usize)>,
    /// What is to be sent, and where it goes afterwards; only the first part sends.
    pub(super) out: Option<(Receiver<TxBatch<'static>>, SyncSender<Settled>)>,
    /// Which part it is.
    part: usize,
    /// What came by all parts, each with its number.
    filled: SyncSender<(usize, Taken)>,
    pub(super) emptied: Receiver<Slot>,
}

impl Station {
    pub(super) fn new(
        inner: Box<dyn Datapath>,
        out: Option<(Receiver<TxBatch<'static>>, SyncSender<Settled>)>,
        (part, filled): (usize, SyncSender<(usize, Taken)>),
        emptied: Receiver<Slot>,
    ) -> Self {
        let mut station = Self { inner, rx: RxBatch::default(), sending: None, out, part, filled, emptied };
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
        if shared.asked.load(Ordering::Relaxed) {
            self.answer(shared);
        }
        let (sent, refused) = self.send();
        let got = self.receive();
        let busy = sent || got;
        if busy {
            // Before the user can see what it is about.
            *shared.mirror() = self.mirror();
        }
        for taken in self.rx.taken.drain(..) {
            // It has room for as many as there are slots.
            let _ = self.filled.try_send((self.part, taken));
        }
        if busy {
            shared.user.wake(got || refused);
        }
        busy
    }

    /// Closes the technology; what it has counted stays to be seen.
    pub(super) fn shut(&mut self, shared: &Shared) {
        shared.open.store(false, Ordering::SeqCst);
        *shared.mirror() = self.mirror();
        self.inner.close();
    }

    /// Drops the technology with all that it has, whoever keeps the station for longer.
    pub(super) fn end(&mut self) {
        // In its place something that has nothing, and that nobody opens.
        self.inner = Box::new(Hub::default().port(0));
    }

    /// Says whether it was lost.
    fn answer(&mut self, shared: &Shared) {
        // Before it is looked: who asks meanwhile is answered again.
        shared.asked.store(false, Ordering::Relaxed);
        let lost = self.inner.lost();
        *shared.answer() = lost;
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
            let _ = self.out.as_ref().map(|(_, settled)| settled.try_send(Settled { batch, refused }));
        }
        (went, tell)
    }

    /// The batch that is being sent, or the next.
    pub(super) fn next_to_send(&mut self) -> Option<(TxBatch<'static>, usize)> {
        let next = || self.out.as_ref()?.0.try_recv().ok().map(|batch| (batch, 0));
        self.sending.take().or_else(next)
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
        if shared.asked.load(Ordering::Relaxed) {
            return Armed::Ready;
        }
        if self.sending.is_none() {
            self.sending = self.next_to_send();
            if self.sending.is_some() {
                return Armed::Ready;
            }
        }
        if self.rx.free.is_empty() {
            // As in `User::wake`: slots are given back before the fence of `OnThread::receive`, and looked for after this one.
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
