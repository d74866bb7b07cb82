//! Threads that poll: on which core, how they wait, and a wrapper that runs any datapath on one ([`OnThread`]).
//!
//! A thread of its own does a datapath's system calls, or its packet engine's work, beside the thread that uses it. One thread may run
//! several datapaths. It pays where a core is left for it; otherwise it costs two more wake-ups a message. Several threads may run one
//! datapath if that can be split ([`Datapath::split`]): the first sends, and all receive, each what some addresses send.
//!
//! What goes between the two threads goes through bounded queues (`std::sync::mpsc`) of batches of frames and of slots, which are moved
//! and not copied: a batch by [`Datapath::hand_over`], and the memory of slots that were allocated as such ([`Slot::owned`]). What else
//! there is to ask of the datapath waits for a turn of the thread: microseconds, or as long as it takes to wake it. Whether it was lost is
//! asked all the time, and waits for nothing: the answer is what the thread has found since the question before.
//!
//! What such a datapath cannot do:
//! - It does not say at once what the technology refuses. Frames have gone ([`Outcome::Sent`]) when the thread has them; those that are refused
//!   then come by [`Datapath::refused_later`]. Frames that are larger than any may be are refused at once.
//! - Nothing lands ([`Capabilities::places`] is `false`) and nothing is lent: the thread receives into slots of its own, before anybody
//!   knows whose it is. So payload is copied once more than it might be.

mod core;
mod polling;
mod spread;
mod station;
mod wait;

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::batch::{Outcome, Place, RxBatch, RxReport, Taken, TxBatch, TxReport};
use crate::memory::Slot;
use crate::{Address, Armed, Capabilities, Datapath, DatapathError, Foreign, Split, Stats};

pub use self::core::{PinError, pin};
pub use self::polling::{PollingThread, Settings};
pub use self::spread::Spread;
pub use self::wait::{Bell, Looking, Waiting};

use self::station::{BATCHES, SLOTS, Settled, Shared, Station, User};

/// The most frames, and the bytes after which no more follow, that are copied together for the thread.
const TOGETHER: (usize, usize) = (256, 1 << 20);

/// What is said of a datapath whose thread is no more, which is so after a panic alone.
const ENDED: &str = "its polling thread has ended, and comes back with the runtime's next start";

/// What of a datapath is on one thread.
#[derive(Debug)]
struct Part {
    thread: PollingThread,
    shared: Arc<Shared>,
    emptied: SyncSender<Slot>,
}

impl Part {
    fn with<T>(&self, work: impl FnOnce(&mut Station) -> T) -> T {
        self.thread.roster().with(&self.shared, work)
    }
}

/// A datapath that works on polling threads. What it is over is dropped with it, before `drop` returns, which waits for a turn of each
/// thread at most.
pub struct OnThread {
    threads: Vec<PollingThread>,
    user: Arc<User>,
    /// The datapath itself, on the first thread, and what it was split into, on others.
    first: Part,
    others: Vec<Part>,
    spread: Spread,
    address: Option<Address>,
    to_send: SyncSender<TxBatch<'static>>,
    settled: Receiver<Settled>,
    spare: Vec<TxBatch<'static>>,
    fill: SyncSender<(usize, Taken)>,
    filled: Receiver<(usize, Taken)>,
    /// What was received, by which part, and seen when there was no slot for it, or by who wanted to sleep.
    next: Option<(usize, Taken)>,
    /// What of the counts is counted on this side: frames that went, or were refused, as the user knows, and that were received.
    own: Stats,
    /// What is still to be said.
    refused: HashSet<(Address, Outcome)>,
}

impl ::core::fmt::Debug for OnThread {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("OnThread").field("address", &self.address).finish_non_exhaustive()
    }
}

impl OnThread {
    /// Puts a datapath, open or not, on a thread. Takes as much memory as 64 of its slots.
    ///
    /// # Errors
    /// The operating system's, for want of descriptors, and of a thread that has ended; the datapath is dropped.
    pub fn new(thread: &PollingThread, inner: Box<dyn Datapath>) -> std::io::Result<Self> {
        Self::spread(thread, &[], inner)
    }

    /// As [`Self::new`], and splits it, whenever it is opened, over as many further threads as there are and it can be split over
    /// ([`Self::threads`]). Takes as much memory for each.
    ///
    /// # Errors
    /// As for [`Self::new`]. That it cannot be split over all of them is none.
    pub fn spread(
        thread: &PollingThread,
        further: &[PollingThread],
        inner: Box<dyn Datapath>,
    ) -> std::io::Result<Self> {
        if thread.has_ended() {
            return Err(std::io::Error::other(ENDED));
        }
        let threads: Vec<_> = [thread].into_iter().chain(further).cloned().collect();
        let address = inner.address();
        let (to_send, to_thread) = sync_channel(BATCHES);
        let (settle, settled) = sync_channel(BATCHES);
        let (fill, filled) = sync_channel(SLOTS * threads.len());
        let (emptied, give_back) = sync_channel(SLOTS);
        let user = Arc::new(User::new()?);
        let station = Station::new(inner, Some((to_thread, settle)), (0, fill.clone()), give_back);
        let first = Part { thread: thread.clone(), shared: Arc::new(Shared::new(station, &user)), emptied };
        let mut on = Self {
            spread: Spread::new(threads.len(), &first.shared),
            threads,
            user,
            first,
            others: Vec::new(),
            address,
            to_send,
            settled,
            spare: (0..BATCHES).map(|_| TxBatch::default()).collect(),
            fill,
            filled,
            next: None,
            own: Stats::default(),
            refused: HashSet::new(),
        };
        if address.is_some() {
            // Before its thread has it: nobody looks at it yet.
            on.split();
        }
        thread.roster().add(&on.first.shared);
        Ok(on)
    }

    /// What the threads do that it is on: to be asked by any thread, for as long as it is wanted.
    #[must_use]
    pub fn threads(&self) -> Spread {
        self.spread.clone()
    }

    /// Splits what is open over the other threads.
    fn split(&mut self) {
        self.others.clear();
        let further = self.threads.get(1..).unwrap_or(&[]);
        let live: Vec<_> = further.iter().filter(|thread| !thread.has_ended()).cloned().collect();
        let Split { parts, short } = match live.len() {
            0 => Split::default(),
            most => self.first.with(|station| station.inner.split(most)),
        };
        for (inner, thread) in parts.into_iter().zip(&live) {
            let (emptied, give_back) = sync_channel(SLOTS);
            let filled = (1 + self.others.len(), self.fill.clone());
            let shared = Arc::new(Shared::new(Station::new(inner, None, filled, give_back), &self.user));
            thread.roster().add(&shared);
            self.others.push(Part { thread: thread.clone(), shared, emptied });
        }
        let short = short.or_else(|| (live.len() < further.len()).then(|| ENDED.to_owned()));
        self.spread.now(self.parts().map(|part| part.shared.clone()).collect(), short);
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.first).chain(&self.others)
    }

    fn with<T>(&self, work: impl FnOnce(&mut Station) -> T) -> T {
        self.first.with(work)
    }

    /// Takes batches back that have gone, and notes what of them was refused.
    fn take_settled(&mut self) {
        while let Ok(Settled { batch, refused }) = self.settled.try_recv() {
            self.take_back(batch, refused);
        }
    }

    fn take_back(&mut self, mut batch: TxBatch<'static>, refused: usize) {
        if refused > 0 {
            let frames = batch.frames().iter().filter(|frame| !matches!(frame.outcome, Outcome::Sent));
            for frame in frames {
                self.own.sent_frames -= 1;
                self.own.sent_bytes -= frame.len() as u64;
                self.own.refused_frames += 1;
                self.refused.insert((frame.to, frame.outcome));
            }
        }
        batch.clear();
        self.spare.push(batch);
    }

    /// A batch to be filled, if the thread is not behind with all of them.
    fn spare(&mut self) -> Option<TxBatch<'static>> {
        self.take_settled();
        let full = self.spare.is_empty();
        self.own.busy += u64::from(full);
        // Relaxed: `arm` orders it before what it looks for.
        self.user.full.store(full, Ordering::Relaxed);
        self.spare.pop()
    }

    /// Gives the thread a batch of `frames` pending frames with so many bytes.
    fn give(&mut self, batch: TxBatch<'static>, frames: usize, bytes: usize) {
        self.own.sent_frames += frames as u64;
        self.own.sent_bytes += bytes as u64;
        // It has room for as many as there are batches.
        let _ = self.to_send.try_send(batch);
        self.first.thread.roster().wake();
    }

    fn refuse(&mut self, batch: &mut TxBatch<'_>, count: usize, outcome: Outcome) -> usize {
        batch.settle(count, outcome);
        self.own.refused_frames += count as u64;
        count
    }

    /// Copies the first pending frames, up to one that is larger than any may be. Returns how many, with how many bytes.
    fn copy(batch: &TxBatch<'_>, most: usize, out: &mut TxBatch<'static>) -> (usize, usize) {
        let (mut frames, mut bytes) = (0, 0);
        let fit = batch.pending().iter().take_while(|frame| frame.len() <= most);
        for frame in fit.take(TOGETHER.0) {
            let start = out.buffer().len();
            batch.copy_to(frame, out.buffer());
            out.commit(frame.to, start, None, frame.cookie);
            if frame.may_pad {
                out.allow_padding();
            }
            (frames, bytes) = (frames + 1, bytes + frame.len());
            if bytes >= TOGETHER.1 {
                break;
            }
        }
        (frames, bytes)
    }

    /// Whether something was received that the user has not taken.
    fn has_more(&mut self) -> bool {
        if self.next.is_none() {
            self.next = self.filled.try_recv().ok();
        }
        self.next.is_some()
    }

    /// Puts what was received into a slot of the user's: the memory is exchanged, or, where that is not ours to give, copied. `false` if
    /// it does not fit.
    fn put(slot: &mut Slot, taken: &mut Taken) -> bool {
        if slot.exchange(&mut taken.slot) {
            return true;
        }
        let to = slot.bytes_mut().get_mut(..taken.len);
        to.map(|to| to.copy_from_slice(taken.bytes())).is_some()
    }

    fn clear_bell(&self) {
        // Acquire: with the store after the ringing.
        if self.user.rung.swap(false, Ordering::Acquire) {
            self.user.bell.clear();
        }
    }
}

impl Datapath for OnThread {
    fn capabilities(&self) -> Capabilities {
        let can = self.first.shared.mirror().can;
        Capabilities { places: false, foreign: Foreign::Copies, ..can }
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        if self.address.is_some() {
            return Ok(());
        }
        let technology = self.capabilities().technology;
        if self.first.thread.has_ended() {
            return Err(DatapathError::Unavailable { technology, reason: ENDED.into() });
        }
        let shared = &self.first.shared;
        self.address = self.with(|station| {
            station.inner.open()?;
            station.make_slots();
            *shared.mirror() = station.mirror();
            shared.ask_anew();
            shared.open.store(true, Ordering::SeqCst);
            Ok::<_, DatapathError>(station.inner.address())
        })?;
        self.split();
        self.own = Stats::default();
        self.refused.clear();
        self.user.full.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn address(&self) -> Option<Address> {
        self.address
    }

    fn frame_limit(&mut self, to: Address) -> usize {
        self.with(|station| station.inner.frame_limit(to))
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        let (mut report, most) = (TxReport::default(), self.capabilities().max_frame);
        while let Some(first) = batch.pending().first() {
            if self.address.is_none() {
                report.refused += self.refuse(batch, batch.pending().len(), Outcome::Failed);
            } else if first.len() > most {
                report.refused += self.refuse(batch, 1, Outcome::TooLarge);
            } else {
                let Some(mut copy) = self.spare() else { break };
                let (frames, bytes) = Self::copy(batch, most, &mut copy);
                self.give(copy, frames, bytes);
                batch.settle(frames, Outcome::Sent);
                report.sent += frames;
            }
        }
        report.pending = batch.pending().len();
        report
    }

    fn hand_over(&mut self, batch: &mut TxBatch<'static>) -> TxReport {
        // Payload of the caller's is the caller's again when its frame has an outcome.
        let whole = batch.pending().len() == batch.frames().len() && !batch.is_done();
        if self.address.is_none() || !whole || batch.frames().iter().any(|frame| frame.piece.is_some()) {
            return self.transmit(batch);
        }
        let (sent, bytes) = (batch.pending().len(), batch.pending().iter().map(|frame| frame.len()).sum());
        let Some(spare) = self.spare() else { return TxReport { pending: sent, ..TxReport::default() } };
        let whole = ::core::mem::replace(batch, spare);
        self.give(whole, sent, bytes);
        TxReport { sent, ..TxReport::default() }
    }

    fn refused_later(&mut self, refused: &mut Vec<(Address, Outcome)>) {
        self.take_settled();
        refused.extend(self.refused.drain());
    }

    fn receive(&mut self, batch: &mut RxBatch, _place: Option<&mut dyn Place>) -> RxReport {
        batch.landed.clear();
        batch.heads.clear();
        batch.back.clear();
        let (mut report, mut pieces) = (RxReport::default(), 0);
        while pieces < batch.limit && self.has_more() {
            let Some(mut slot) = batch.free.pop() else { break };
            let Some((part, mut taken)) = self.next.take() else { break };
            if Self::put(&mut slot, &mut taken) {
                let (len, stride, from) = (taken.len, taken.stride, taken.from);
                let whole = Taken { slot, len, stride, from };
                report.frames += whole.count();
                self.own.received_bytes += len as u64;
                batch.taken.push(whole);
                pieces += 1;
            } else {
                self.own.spoiled += 1;
                batch.free.push(slot);
            }
            // It has room for as many as there are slots.
            let _ = self.parts().nth(part).map(|part| part.emptied.try_send(taken.slot));
        }
        self.own.received_frames += report.frames as u64;
        if pieces > 0 {
            // See `Station::prepare_sleep`.
            fence(Ordering::SeqCst);
            let starved = |part: &&Part| part.shared.starved.swap(false, Ordering::Relaxed);
            self.parts().filter(starved).for_each(|part| part.thread.roster().wake());
        }
        report.more = self.has_more();
        report
    }

    fn wake_handle(&self) -> Option<BorrowedFd<'_>> {
        Some(self.user.bell.as_fd())
    }

    fn arm(&mut self) -> Armed {
        self.clear_bell();
        self.user.armed.store(true, Ordering::Relaxed);
        // See `User::wake`.
        fence(Ordering::SeqCst);
        self.take_settled();
        // Said once: who does not send after that has thought better of it.
        let goes_on = !self.spare.is_empty() && self.user.full.swap(false, Ordering::Relaxed);
        if self.refused.is_empty() && !goes_on && !self.has_more() {
            return Armed::Sleep;
        }
        self.user.armed.store(false, Ordering::Relaxed);
        Armed::Ready
    }

    fn lost(&mut self) -> Option<String> {
        if self.parts().any(|part| part.thread.has_ended()) {
            return Some(ENDED.into());
        }
        if self.address.is_none() {
            // Its thread does not look at what is closed.
            return self.with(|station| station.inner.lost());
        }
        self.parts().find_map(|part| {
            let lost = part.shared.ask_lost();
            part.thread.roster().wake();
            lost
        })
    }

    fn stats(&self) -> Stats {
        let own = &self.own;
        let is = self.parts().map(|part| part.shared.mirror().stats).fold(Stats::default(), |all, one| all + one);
        Stats {
            sent_frames: own.sent_frames,
            sent_bytes: own.sent_bytes,
            refused_frames: own.refused_frames,
            received_frames: own.received_frames,
            received_bytes: own.received_bytes,
            busy: is.busy + own.busy,
            spoiled: is.spoiled + own.spoiled,
            ..is
        }
    }

    fn close(&mut self) {
        if self.address.take().is_none() {
            return;
        }
        for Part { thread, shared, .. } in &self.others {
            thread.roster().remove(shared);
        }
        self.others.iter().for_each(|part| {
            part.with(|station| {
                station.shut(&part.shared);
                // Another one has slots of its own.
                station.rx.free.clear();
            });
        });
        let shared = self.first.shared.clone();
        let left: Vec<_> = self.with(|station| {
            // What the technology takes at once goes: the last words are among it.
            station.send();
            station.shut(&shared);
            std::iter::from_fn(|| station.next_to_send()).collect()
        });
        for (mut batch, refused) in left {
            let rest = batch.pending().len();
            batch.settle(rest, Outcome::Failed);
            self.take_back(batch, refused + rest);
        }
        self.take_settled();
        // What was received and not taken is gone, as it is from a socket that is closed; its slots are used again.
        let rest = self.next.take().into_iter().chain(self.filled.try_iter());
        let rest: Vec<Slot> = rest.filter(|(part, _)| *part == 0).map(|(_, taken)| taken.slot).collect();
        self.with(|station| {
            let emptied: Vec<Slot> = station.emptied.try_iter().collect();
            station.rx.free.extend(emptied.into_iter().chain(rest));
        });
    }
}

impl Drop for OnThread {
    fn drop(&mut self) {
        self.close();
        self.first.thread.roster().remove(&self.first.shared);
        // Now, and not when the thread has seen that it is off its list, or who asks for counts lets go of them.
        self.parts().for_each(|part| part.with(Station::end));
    }
}
