//! A wrapper that spoils what is sent, by a seed: it loses, repeats, delays, changes and cuts, and counts what it did.
//!
//! Faults are on the sending side, so that each wrapper is one direction; both directions are two wrappers. What is injected
//! is known exactly ([`Control::injected`]): tests hold the counters of the system against it.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::batch::{Outcome, Place, RxBatch, RxReport, TxBatch, TxFrame, TxReport};
use crate::memory::Slot;
use crate::raw::{Front, InPlace, RawDatapath, RawSplit};
use crate::{Address, Armed, Capabilities, Datapath, DatapathError, Lendable, Split, Stats};

/// How often what happens to a frame, each in parts of a million.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Plan {
    /// It never arrives.
    pub lose_ppm: u32,
    /// It arrives twice.
    pub repeat_ppm: u32,
    /// It is held back until some later frames have gone.
    pub delay_ppm: u32,
    /// One of its bytes is changed.
    pub change_ppm: u32,
    /// Nothing goes through at all.
    pub cut: bool,
}

/// What was done so far, in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Injected {
    /// Frames that were handed in.
    pub seen: u64,
    /// Lost, with those that were held back when the datapath was closed.
    pub lost: u64,
    /// Sent twice.
    pub repeated: u64,
    /// Held back.
    pub delayed: u64,
    /// Changed.
    pub changed: u64,
    /// Lost because the link was cut, with those that were held back then.
    pub cut: u64,
    /// Taken over, and then refused by the datapath below: one for each time that it should have been sent.
    pub refused: u64,
}

#[derive(Debug, Default)]
struct Shared {
    plan: Plan,
    injected: Injected,
}

/// Changes the plan while the datapath works, from any thread.
#[derive(Debug, Clone, Default)]
pub struct Control {
    shared: Arc<Mutex<Shared>>,
}

impl Control {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this happens.
    pub fn set(&self, plan: Plan) {
        self.lock().plan = plan;
    }

    /// Cuts the link, or mends it.
    pub fn cut(&self, cut: bool) {
        self.lock().plan.cut = cut;
    }

    /// What was done so far.
    #[must_use]
    pub fn injected(&self) -> Injected {
        self.lock().injected
    }
}

/// A datapath that spoils what another one sends.
#[derive(Debug)]
pub struct Faulty<D> {
    inner: D,
    control: Control,
    random: u64,
    /// Held back: how many frames must go before, where to, what.
    held: VecDeque<(u32, Address, Vec<u8>)>,
    /// Taken over from the caller, not yet from the technology.
    out: TxBatch<'static>,
}

impl<D: Datapath> Faulty<D> {
    /// Wraps a datapath; the same seed and frames give the same faults.
    #[must_use]
    pub fn new(inner: D, plan: Plan, seed: u64) -> Self {
        let control = Control::default();
        control.set(plan);
        Self { inner, control, random: seed, held: VecDeque::new(), out: TxBatch::default() }
    }

    /// The handle by which the plan is changed.
    #[must_use]
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// A number below `below`, from a sequence that the seed decides (SplitMix64).
    fn random(&mut self, below: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let high = (z ^ (z >> 31)) >> 32;
        u32::try_from((high * u64::from(below)) >> 32).unwrap_or(0)
    }

    fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.random(1_000_000) < ppm
    }

    fn release(&mut self) {
        for held in &mut self.held {
            held.0 = held.0.saturating_sub(1);
        }
        while self.held.front().is_some_and(|held| held.0 == 0) {
            let Some((_, to, bytes)) = self.held.pop_front() else { break };
            let mut shared = self.control.lock();
            if shared.plan.cut {
                shared.injected.cut += 1;
            } else {
                self.out.frame(to, &bytes, 0);
            }
        }
    }

    /// Hands what was taken over to the datapath below; whether all of it has an outcome now.
    fn hand_over(&mut self) -> bool {
        if !self.out.is_done() {
            self.inner.transmit(&mut self.out);
        }
        let done = self.out.is_done();
        if done {
            self.forget();
        }
        done
    }

    /// Forgets what was taken over, and counts what the datapath below refused of it.
    fn forget(&mut self) {
        let refused = |frame: &&TxFrame<'_>| !matches!(frame.outcome, Outcome::Sent | Outcome::Pending);
        self.control.lock().injected.refused += self.out.frames().iter().filter(refused).count() as u64;
        self.out.clear();
    }

    /// Drops what has not gone yet; how many frames.
    fn drop_all(&mut self) -> u64 {
        let count = self.held.len() + self.out.pending().len();
        self.held.clear();
        self.forget();
        count as u64
    }

    fn spoil(&mut self, to: Address, mut bytes: Vec<u8>) {
        let plan = self.control.lock().plan;
        let lost = self.chance(plan.lose_ppm);
        let repeated = self.chance(plan.repeat_ppm);
        let delayed = self.chance(plan.delay_ppm);
        let changed = !bytes.is_empty() && self.chance(plan.change_ppm);
        let (at, flip) = (self.random(u32::try_from(bytes.len().max(1)).unwrap_or(1)) as usize, self.random(255) + 1);
        let after = 1 + self.random(8);
        let mut shared = self.control.lock();
        let injected = &mut shared.injected;
        injected.seen += 1;
        if plan.cut {
            injected.cut += 1;
            return;
        }
        if lost {
            injected.lost += 1;
            return;
        }
        injected.repeated += u64::from(repeated);
        injected.delayed += u64::from(delayed);
        injected.changed += u64::from(changed);
        drop(shared);
        if repeated {
            self.out.frame(to, &bytes, 0);
        }
        if changed && let Some(byte) = bytes.get_mut(at) {
            *byte ^= flip.to_le_bytes()[0];
        }
        if delayed {
            self.held.push_back((after, to, bytes));
        } else {
            self.out.frame(to, &bytes, 0);
        }
    }
}

impl<D: Datapath> Datapath for Faulty<D> {
    fn capabilities(&self) -> Capabilities {
        // Changes are made above whatever the technology checks.
        Capabilities { detects_changes: false, ..self.inner.capabilities() }
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        self.inner.open()
    }

    fn address(&self) -> Option<Address> {
        self.inner.address()
    }

    fn frame_limit(&mut self, to: Address) -> usize {
        self.inner.frame_limit(to)
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        let mut report = TxReport::default();
        if self.control.lock().plan.cut {
            // What was on its way is lost with the link.
            let cut = self.drop_all();
            self.control.lock().injected.cut += cut;
        }
        loop {
            // What was taken over earlier goes first; if it cannot, nothing more is taken.
            if !self.hand_over() {
                break;
            }
            let Some(frame) = batch.pending().first() else { break };
            if self.inner.address().is_none() || frame.len() > self.inner.capabilities().max_frame {
                let outcome = if self.inner.address().is_none() { Outcome::Failed } else { Outcome::TooLarge };
                batch.settle(1, outcome);
                report.refused += 1;
                continue;
            }
            let mut bytes = Vec::with_capacity(frame.len());
            batch.copy_to(frame, &mut bytes);
            let to = frame.to;
            batch.settle(1, Outcome::Sent);
            report.sent += 1;
            self.spoil(to, bytes);
            self.release();
        }
        report.pending = batch.pending().len();
        report
    }

    fn receive(&mut self, batch: &mut RxBatch, place: Option<&mut dyn Place>) -> RxReport {
        self.inner.receive(batch, place)
    }

    fn split(&mut self, most: usize) -> Split {
        self.inner.split(most)
    }

    fn lends(&self) -> Vec<Lendable<'_>> {
        self.inner.lends()
    }

    fn wake_handle(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wake_handle()
    }

    fn arm(&mut self) -> Armed {
        self.inner.arm()
    }

    fn lost(&mut self) -> Option<String> {
        self.inner.lost()
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn close(&mut self) {
        let lost = self.drop_all();
        self.control.lock().injected.lost += lost;
        self.inner.close();
    }
}

/// What goes out is spoiled with what stands in front of it; to the datapath below these are frames without anything in front.
impl<D: RawDatapath> RawDatapath for Faulty<D> {
    fn transmit_behind(&mut self, batch: &mut TxBatch<'_>, front: &mut dyn Front) -> TxReport {
        let (mut report, mut whole) = (TxReport::default(), TxBatch::default());
        while let Some(frame) = batch.pending().first() {
            // What was taken over must have gone first.
            if !self.hand_over() {
                break;
            }
            let outcome = match put_behind(batch, frame, front) {
                Ok(bytes) => {
                    let to = bytes.first_chunk::<6>().map_or([0; 6], |station| *station);
                    whole.clear();
                    whole.frame(Address::Ethernet(to), &bytes, 0);
                    self.transmit(&mut whole);
                    whole.frames().first().map_or(Outcome::Failed, |frame| frame.outcome)
                }
                Err(outcome) => outcome,
            };
            batch.settle(1, outcome);
            let sent = outcome == Outcome::Sent;
            (report.sent, report.refused) = (report.sent + usize::from(sent), report.refused + usize::from(!sent));
        }
        report.pending = batch.pending().len();
        report
    }

    fn receive_in_place(&mut self, limit: usize, see: &mut dyn FnMut(&dyn InPlace) -> bool) -> RxReport {
        self.inner.receive_in_place(limit, see)
    }

    fn split_raw(&mut self, most: usize) -> RawSplit {
        self.inner.split_raw(most)
    }

    fn take_back(&mut self, lent: &mut Vec<Slot>) {
        self.inner.take_back(lent);
    }
}

/// A frame with what `front` writes before it, in one piece.
fn put_behind(batch: &TxBatch<'_>, frame: &TxFrame<'_>, front: &mut dyn Front) -> Result<Vec<u8>, Outcome> {
    let room = front.room(frame, batch.head(frame))?;
    let mut bytes = vec![0; room];
    batch.copy_to(frame, &mut bytes);
    let (before, body) = bytes.split_at_mut(room);
    front.write(frame, before, &mut |show| show(body))?;
    Ok(bytes)
}
