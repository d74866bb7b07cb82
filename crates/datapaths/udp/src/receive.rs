//! Receiving: into slots, or, after a look at the head, straight to where the payload belongs.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use insane_datapath::Address;
use insane_datapath::batch::{Landed, Landing, PEEK_BYTES, Peeked, Place, RxBatch, RxReport, Taken};
use insane_datapath::memory::Slot;

use crate::sys::{Arrived, MAX_MESSAGES, MAX_PIECES, Messages, Role};
use crate::{SLOT_BYTES, UdpDatapath, sys};

/// How many slots the first call offers: most calls find little.
const FIRST: usize = 2;

/// After so many looks in a row that brought one frame each, a look is for one and no more, and the one after it for all there are.
const LONE: u8 = 4;

impl UdpDatapath {
    pub(crate) fn receive_batch(&mut self, batch: &mut RxBatch, mut place: Option<&mut dyn Place>) -> RxReport {
        batch.landed.clear();
        batch.heads.clear();
        let mut report = RxReport::default();
        let lone = self.lone >= LONE;
        let alone = lone && !self.left_open;
        let (mut pieces, mut want) = (0, if alone { 1 } else { FIRST });
        let before = batch.taken.len();
        if lone
            && !place.as_deref().is_some_and(Place::expects)
            && let Some(stride) = self.config.stride
        {
            // Several in a row are for the call that takes many.
            let most = if alone { 1 } else { 2 };
            while pieces < most.min(batch.limit) && report.frames <= pieces {
                match self.receive_single(batch, stride, &mut report) {
                    None => return report,
                    Some(false) => {
                        self.note_lone(report.frames, false);
                        return report;
                    }
                    Some(true) => pieces += 1,
                }
            }
            if alone && report.frames <= 1 {
                self.note_lone(report.frames, true);
                return report;
            }
            want = MAX_MESSAGES;
        }
        while pieces < batch.limit {
            if let Some(place) = place.as_deref_mut().filter(|place| place.expects()) {
                // What landed is before what was taken: the order within a batch is not said otherwise.
                if batch.taken.len() > before {
                    break;
                }
                match self.receive_placed(batch, place, &mut report) {
                    Some(true) => {
                        pieces += 1;
                        continue;
                    }
                    // Nothing there.
                    None => return report,
                    // Not wanted there: the next goes into a slot.
                    Some(false) => want = 1,
                }
            }
            let offered = want.min(batch.limit - pieces).min(MAX_MESSAGES);
            let Some((came, offered)) = self.receive_slots(batch, offered, &mut report) else { break };
            pieces += came;
            if came < offered || (alone && pieces == 1 && report.frames == 1) {
                self.note_lone(report.frames, came == offered);
                return report;
            }
            want = MAX_MESSAGES;
        }
        report.more = true;
        self.lone = 0;
        report
    }

    /// Notes how many frames a look has brought, and whether it has left it open if there were more.
    fn note_lone(&mut self, frames: usize, open: bool) {
        match frames {
            0 => {}
            1 => self.lone = self.lone.saturating_add(1),
            _ => self.lone = 0,
        }
        self.left_open = open;
    }

    /// Receives one piece into a slot; whether one came. `None` without a slot, or closed.
    fn receive_single(
        &mut self,
        batch: &mut RxBatch,
        stride: fn(&[u8]) -> usize,
        report: &mut RxReport,
    ) -> Option<bool> {
        let socket = self.socket.as_ref()?;
        let mut slot = batch.free.pop()?;
        self.stats.calls += 1;
        // An error is an answer to something that was sent, or the socket's end; either way nothing came.
        let Ok(Some((len, from))) = sys::receive_single(socket.as_fd(), slot.bytes_mut()) else {
            batch.free.push(slot);
            return Some(false);
        };
        let stride = stride(slot.bytes().get(..len).unwrap_or_default()).clamp(1, len.max(1));
        self.take(batch, slot, (len, stride), from, report);
        Some(true)
    }

    /// Notes what came, in frames of `stride` bytes; it is spoiled if nobody has sent it, or nothing.
    fn take(
        &mut self,
        batch: &mut RxBatch,
        slot: Slot,
        (len, stride): (usize, usize),
        from: Option<SocketAddr>,
        report: &mut RxReport,
    ) {
        let Some(from) = from.filter(|_| len > 0) else {
            self.stats.spoiled += 1;
            batch.free.push(slot);
            return;
        };
        let frames = len.div_ceil(stride);
        report.frames += frames;
        self.stats.received_frames += frames as u64;
        self.stats.received_bytes += len as u64;
        batch.taken.push(Taken { slot, len, stride, from: Address::Ip(from) });
    }

    /// Receives into up to `want` slots; says how many pieces came, and how many slots were offered. `None` without slots,
    /// or closed.
    fn receive_slots(&mut self, batch: &mut RxBatch, want: usize, report: &mut RxReport) -> Option<(usize, usize)> {
        let socket = self.socket.as_ref()?;
        // What was offered in vain before is offered again: most calls find nothing.
        self.into.truncate(std::mem::take(&mut self.offered).min(want));
        while self.filling.len() < want {
            let Some(mut slot) = batch.free.pop() else { break };
            debug_assert!(slot.len() >= SLOT_BYTES, "see Capabilities::slot_bytes");
            let (at, memory) = (self.filling.len(), slot.bytes_mut());
            if !self.into.leads_to(at, memory) {
                self.into.truncate(at);
                let first = self.into.pieces();
                self.into.piece(memory.as_mut_ptr(), memory.len(), true);
                self.into.push(first, Role::Receive);
            }
            self.filling.push(slot);
        }
        let offered = self.filling.len();
        if offered == 0 {
            return None;
        }
        self.into.truncate(offered);
        self.stats.calls += 1;
        // An error is an answer to something that was sent, or the socket's end; either way nothing came.
        let came = self.into.receive(socket.as_fd(), 0);
        self.offered = if came.as_ref().is_ok_and(|came| *came == 0) { offered } else { 0 };
        let came = came.unwrap_or(0);
        // Back in the order in which they are taken.
        batch.free.extend(self.filling.drain(came..).rev());
        let mut filled = std::mem::take(&mut self.filling);
        for (n, slot) in filled.drain(..).enumerate() {
            let arrived = self.into.arrived(n);
            count_overruns(&mut self.stats.overruns, &mut self.overruns, arrived);
            let stride = arrived.segment.unwrap_or(arrived.len).min(arrived.len);
            self.take(batch, slot, (arrived.len, stride), arrived.from.filter(|_| !arrived.truncated), report);
        }
        self.filling = filled;
        Some((came, offered))
    }

    /// Looks at the next piece and, if it is wanted elsewhere, receives it there. `Some(false)`: it is for a slot.
    fn receive_placed(&mut self, batch: &mut RxBatch, place: &mut dyn Place, report: &mut RxReport) -> Option<bool> {
        let socket = self.socket.as_ref()?;
        self.offered = 0;
        self.into.clear();
        self.into.piece(self.peeked.as_mut_ptr(), self.peeked.len(), true);
        self.into.push(0, Role::Receive);
        self.stats.calls += 1;
        let came = self.into.receive(socket.as_fd(), libc::MSG_PEEK | libc::MSG_TRUNC).unwrap_or(0);
        if came == 0 {
            return None;
        }
        let seen = self.into.arrived(0);
        let Some(from) = seen.from.filter(|_| seen.len > 0) else { return Some(false) };
        let stride = seen.segment.unwrap_or(seen.len).min(seen.len);
        let head = self.peeked.get(..seen.len.min(self.peeked.len())).unwrap_or(&[]);
        let peeked = Peeked { head, len: seen.len, stride, from: Address::Ip(from) };
        let Some(landing) = place.place(peeked) else { return Some(false) };
        let frames = seen.len.div_ceil(stride);
        let Some(plan) = plan(&mut self.into, batch, landing, seen.len, stride) else { return Some(false) };
        let Plan { heads, tails, head_bytes, token } = plan;
        self.stats.calls += 1;
        let came = self.into.receive(socket.as_fd(), 0).unwrap_or(0);
        if came == 0 {
            return None;
        }
        let got = self.into.arrived(0);
        count_overruns(&mut self.stats.overruns, &mut self.overruns, got);
        let same_head = batch.heads.get(heads.start..heads.start + head_bytes) == self.peeked.get(..head_bytes);
        if got.truncated || got.len != seen.len || got.from != Some(from) || !same_head {
            // What was peeked at is gone (a wrong checksum) and this is another: it lies where it does not belong.
            self.stats.spoiled += 1;
            batch.heads.truncate(heads.start);
            return Some(true);
        }
        report.frames += frames;
        self.stats.received_frames += frames as u64;
        self.stats.received_bytes += got.len as u64;
        self.stats.placed += 1;
        let from = Address::Ip(from);
        batch.landed.push(Landed { token, heads, tails, head_bytes, stride, len: got.len, from });
        Some(true)
    }
}

/// What [`plan`] planned.
struct Plan {
    heads: core::ops::Range<usize>,
    tails: core::ops::Range<usize>,
    head_bytes: usize,
    token: u64,
}

/// The kernel counts in 32 bits that wrap.
fn count_overruns(total: &mut u64, last: &mut u32, arrived: Arrived) {
    if let Some(now) = arrived.overruns {
        *total += u64::from(now.wrapping_sub(*last));
        *last = now;
    }
}

/// Makes one message that puts heads and payloads of `len` bytes of frames in turn where they belong.
fn plan(into: &mut Messages, batch: &mut RxBatch, landing: Landing<'_>, len: usize, stride: usize) -> Option<Plan> {
    let Landing { memory, then, head_bytes, token } = landing;
    let frames = len.div_ceil(stride);
    let last = len - (frames - 1) * stride;
    let fits = head_bytes > 0 && head_bytes < stride && head_bytes <= last && head_bytes <= PEEK_BYTES;
    // A head and a payload each, and a tail for each memory.
    if !fits || frames * 2 + then.len() > MAX_PIECES {
        return None;
    }
    let payload = |n: usize| (len - n * stride).min(stride) - head_bytes;
    let start = batch.heads.len();
    let tails = start + frames * head_bytes;
    // Each memory but the last may leave as much of a frame as that.
    let filling = then.iter().flatten().count() * (stride - head_bytes);
    batch.heads.resize(tails + filling, 0);
    into.clear();
    let (heads, mut filling) = batch.heads.get_mut(start..)?.split_at_mut(frames * head_bytes);
    let mut tail_bytes = 0;
    let mut memories = then.into_iter().flatten();
    let mut room = memory;
    for (n, head) in heads.chunks_mut(head_bytes).enumerate() {
        if room.is_empty() && payload(n) > 0 {
            room = memories.next()?;
        }
        let (body, rest) = room.split_at_mut(payload(n).min(room.len()));
        let short = payload(n) - body.len();
        room = rest;
        into.piece(head.as_mut_ptr(), head.len(), n == 0);
        if !body.is_empty() {
            into.piece(body.as_mut_ptr(), body.len(), false);
        }
        if short > 0 {
            let (tail, rest) = filling.split_at_mut_checked(short)?;
            into.piece(tail.as_mut_ptr(), tail.len(), false);
            (filling, tail_bytes) = (rest, tail_bytes + short);
        }
    }
    into.push(0, Role::Receive);
    Some(Plan { heads: start..tails, tails: tails..tails + tail_bytes, head_bytes, token })
}
