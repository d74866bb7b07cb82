//! Receiving: shown where it lies, or copied once to where it belongs.

use core::cell::Cell;
use core::ops::Range;

use insane_datapath::Address;
use insane_datapath::batch::{Place, RxBatch, RxReport, Taken, land};
use insane_datapath::memory::Slot;
use insane_datapath::raw::InPlace;

use crate::PluginDatapath;
use crate::abi::BURST;
use crate::port::{Arrived, Lends};

/// A frame that is shown.
struct Seen<'a> {
    arrived: &'a Arrived,
    /// What it may be lent out of, and what the port was opened as.
    lends: Option<(&'a Lends, u64)>,
    lent: Cell<Option<u32>>,
}

impl Seen<'_> {
    fn bytes(&self) -> &[u8] {
        self.arrived.bytes()
    }
}

impl InPlace for Seen<'_> {
    fn len(&self) -> usize {
        self.bytes().len()
    }

    fn first(&self) -> &[u8] {
        self.bytes()
    }

    fn lend(&self, range: Range<usize>) -> Option<Slot> {
        let (lends, number) = self.lends.filter(|_| self.lent.get().is_none())?;
        // SAFETY: who shows it keeps its handle until the slot comes back, or gives it up when the port is closed.
        let slot = unsafe { self.arrived.lend(lends, number, range)? };
        self.lent.set(slot.place().map(|place| place.slot));
        Some(slot)
    }

    fn copy_to(&self, range: Range<usize>, out: &mut [u8]) -> usize {
        let bytes = self.bytes().get(range.start..range.end.min(self.bytes().len())).unwrap_or(&[]);
        let count = bytes.len().min(out.len());
        out[..count].copy_from_slice(&bytes[..count]);
        count
    }
}

/// What became of a frame that was shown.
enum Shown {
    /// It was taken, and there may be another.
    Taken,
    /// It was taken, and was the last.
    Last,
    /// It could not be used.
    Spoiled,
}

impl PluginDatapath {
    pub(crate) fn receive_while(&mut self, limit: usize, see: &mut dyn FnMut(&dyn InPlace) -> bool) -> RxReport {
        self.show(limit, || true, |arrived| if see(arrived) { Shown::Taken } else { Shown::Last })
    }

    /// Shows up to `limit` frames as long as `ready` says so.
    fn show(
        &mut self,
        limit: usize,
        mut ready: impl FnMut() -> bool,
        mut see: impl FnMut(&Seen<'_>) -> Shown,
    ) -> RxReport {
        let mut report = RxReport::default();
        self.flush();
        let (mut seen, mut goes_on, mut asks, mut fault) = (0, true, true, None);
        let Some(opened) = &mut self.opened else { return report };
        while goes_on && seen < limit && ready() {
            if opened.held.is_empty() && asks {
                let most = (limit - seen).min(BURST);
                match self.port.receive(most, opened.info.max_frame, &mut opened.held) {
                    // Fewer than there was room for: there are no more.
                    Ok(came) => asks = came == most,
                    // What came before a fault is shown all the same, and nothing more is asked for.
                    Err(found) => (asks, fault) = (false, Some(found)),
                }
            }
            let Some(arrived) = opened.held.pop_front() else { break };
            seen += 1;
            let lends = opened.info.lends.as_ref().filter(|lends| opened.lent.len() < lends.most as usize);
            let lends = lends.map(|lends| (lends, opened.number));
            let seen_frame = Seen { arrived: &arrived, lends, lent: Cell::new(None) };
            let shown = see(&seen_frame);
            let lent = seen_frame.lent.get();
            goes_on = matches!(shown, Shown::Taken | Shown::Spoiled);
            if matches!(shown, Shown::Spoiled) {
                self.stats.spoiled += 1;
            } else {
                report.frames += 1;
                self.stats.received_frames += 1;
                self.stats.received_bytes += arrived.bytes().len() as u64;
            }
            match lent {
                Some(place) => drop(opened.lent.insert(place, arrived.handle())),
                None => opened.done.push(arrived.handle()),
            }
        }
        self.port.release(&mut opened.done);
        report.more = !opened.held.is_empty() || (seen > 0 && seen == limit);
        if let Some(fault) = fault {
            self.fail(fault);
        }
        report
    }

    /// Takes back what was lent; what was lent by others, or before it was opened anew, is let go of.
    pub(crate) fn take_back_lent(&mut self, lent: &mut Vec<Slot>) {
        let Some(opened) = &mut self.opened else { return lent.clear() };
        for slot in lent.drain(..) {
            if let Some(place) = slot.place().filter(|_| slot.id() == opened.number) {
                drop(slot);
                opened.done.extend(opened.lent.remove(&place.slot));
            }
        }
        self.port.release(&mut opened.done);
    }

    pub(crate) fn receive_batch(&mut self, batch: &mut RxBatch, mut place: Option<&mut dyn Place>) -> RxReport {
        batch.landed.clear();
        batch.heads.clear();
        let RxBatch { free, taken, landed, heads, limit, .. } = batch;
        let (limit, mut placed) = (*limit, 0);
        // A frame is looked at only when there is a slot for it: once shown it cannot go back.
        let free = core::cell::RefCell::new(free);
        let report = self.show(
            limit,
            || !free.borrow().is_empty(),
            |arrived| {
                let bytes = arrived.bytes();
                let mut from = [0; 6];
                from.copy_from_slice(&bytes[6..12]);
                let from = Address::Ethernet(from);
                if let Some(place) = place.as_deref_mut().filter(|place| place.expects() && taken.is_empty())
                    && let Some(one) = land(bytes, from, place, heads)
                {
                    landed.push(one);
                    placed += 1;
                    return Shown::Taken;
                }
                let Some(mut slot) = free.borrow_mut().pop() else { return Shown::Spoiled };
                let len = bytes.len();
                let Some(to) = slot.bytes_mut().get_mut(..len) else {
                    free.borrow_mut().push(slot);
                    return Shown::Spoiled;
                };
                to.copy_from_slice(bytes);
                taken.push(Taken { slot, len, stride: len, from });
                Shown::Taken
            },
        );
        self.stats.placed += placed;
        report
    }
}
