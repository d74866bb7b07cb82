//! Sending: frames are put together in the plug-in's buffers, payload too where it does not gather it.

use insane_datapath::batch::{Outcome, TxBatch, TxFrame, TxReport};
use insane_datapath::memory::Piece;
use insane_datapath::raw::Front;

use crate::port::{Built, LEAST_FRAME, Room, Sent};
use crate::{Opened, PluginDatapath};

/// Payload that stays where it is is shown in pieces of so many bytes.
const SHOWN: usize = 2048;

/// What came of a group of frames.
enum Flushed {
    /// The plug-in has them all.
    All,
    /// It has no room for some.
    Busy,
    /// There is no link.
    Down,
    /// It is closed.
    Failed,
}

impl PluginDatapath {
    /// Hands over what waits from an earlier call.
    pub(crate) fn flush(&mut self) {
        self.hand_over();
    }

    fn hand_over(&mut self) -> Flushed {
        let Some(Opened { built, spare, .. }) = &mut self.opened else { return Flushed::Failed };
        while !built.is_empty() {
            match self.port.send(built) {
                Ok(Sent::Taken(0)) => return Flushed::Busy,
                Ok(Sent::Taken(_)) => {}
                Ok(Sent::Down) => {
                    spare.extend(built.drain(..).map(|frame| frame.room));
                    return Flushed::Down;
                }
                Err(fault) => {
                    self.fail(fault);
                    return Flushed::Failed;
                }
            }
        }
        Flushed::All
    }

    /// What was built and not taken is forgotten; how many frames that are.
    fn unbuild(&mut self) -> usize {
        let Some(Opened { built, spare, .. }) = &mut self.opened else { return 0 };
        let count = built.len();
        spare.extend(built.drain(..).map(|frame| frame.room));
        count
    }

    /// Sends the only frame of a batch, without the lists that several need. `None` if there are several, or something waits before it, or
    /// the plug-in has failed: nothing was done with the frame.
    fn send_one(&mut self, batch: &mut TxBatch<'_>, front: &mut Option<&mut dyn Front>) -> Option<TxReport> {
        let [frame] = batch.pending() else { return None };
        let Opened { info, spare, .. } = self.opened.as_mut().filter(|opened| opened.built.is_empty())?;
        if spare.is_empty()
            && let Err(fault) = self.port.reserve(1, info.max_frame, spare)
        {
            self.fail(fault);
            return None;
        }
        let Some(room) = spare.pop() else {
            self.stats.busy += 1;
            return Some(TxReport { pending: 1, ..TxReport::default() });
        };
        let gathers = info.gathers.then_some(info.gather_from);
        let (outcome, left) = match put(room, batch, frame, front, info.max_frame, gathers) {
            Ok(one) => match self.port.send_one(&one) {
                Ok(Sent::Taken(0)) => (Ok(Outcome::Pending), Some(one.room)),
                Ok(Sent::Taken(_)) => (Ok(Outcome::Sent), None),
                Ok(Sent::Down) => (Ok(Outcome::Unreachable), Some(one.room)),
                Err(fault) => (Err(fault), Some(one.room)),
            },
            Err((room, outcome)) => (Ok(outcome), Some(room)),
        };
        spare.extend(left);
        let mut report = TxReport::default();
        let outcome = outcome.unwrap_or_else(|fault| {
            self.fail(fault);
            Outcome::Failed
        });
        self.congested = outcome == Outcome::Pending;
        if self.congested {
            self.stats.busy += 1;
            report.pending = 1;
        } else {
            self.settle(batch, &mut report, 1, outcome);
        }
        Some(report)
    }

    pub(crate) fn send_batch(&mut self, batch: &mut TxBatch<'_>, mut front: Option<&mut dyn Front>) -> TxReport {
        if let Some(report) = self.send_one(batch, &mut front) {
            return report;
        }
        let mut report = TxReport::default();
        // What waits goes before what comes after it. Whether there is a link by now is for the next frames to find out.
        let mut state = match self.hand_over() {
            Flushed::Down => Flushed::All,
            state => state,
        };
        while !batch.is_done() {
            match state {
                Flushed::All => {}
                Flushed::Busy => {
                    self.stats.busy += 1;
                    break;
                }
                Flushed::Down | Flushed::Failed => {
                    let outcome = if matches!(state, Flushed::Down) { Outcome::Unreachable } else { Outcome::Failed };
                    self.settle(batch, &mut report, batch.pending().len(), outcome);
                    break;
                }
            }
            // After a call that found no room it is not worth building much.
            let most = if self.congested { 1 } else { usize::MAX };
            let (count, then) = self.build(batch, &mut front, most);
            state = self.hand_over();
            self.congested = matches!(state, Flushed::Busy);
            let outcome = match state {
                Flushed::All | Flushed::Busy => Outcome::Sent,
                Flushed::Down => Outcome::Unreachable,
                Flushed::Failed => Outcome::Failed,
            };
            match then {
                // The front may have taken the frame after those over, so it cannot be asked again: they wait here.
                Next::Refused(refused) => {
                    self.opened.iter_mut().flat_map(|opened| &mut opened.built).for_each(Built::own);
                    self.settle(batch, &mut report, count, outcome);
                    self.settle(batch, &mut report, 1, refused);
                }
                Next::More | Next::Busy => {
                    let left = self.unbuild();
                    self.settle(batch, &mut report, count - left, outcome);
                    if matches!(then, Next::Busy) && count == 0 && matches!(state, Flushed::All) {
                        state = Flushed::Busy;
                    }
                }
            }
        }
        report.pending = batch.pending().len();
        report
    }

    fn settle(&mut self, batch: &mut TxBatch<'_>, report: &mut TxReport, count: usize, outcome: Outcome) {
        if outcome == Outcome::Sent {
            report.sent += count;
            self.stats.sent_frames += count as u64;
            self.stats.sent_bytes += batch.pending().iter().take(count).map(|frame| frame.len() as u64).sum::<u64>();
        } else {
            report.refused += count;
            self.stats.refused_frames += count as u64;
        }
        batch.settle(count, outcome);
    }

    /// Builds frames, up to a burst and `most`: how many, and why it ended.
    fn build(&mut self, batch: &TxBatch<'_>, front: &mut Option<&mut dyn Front>, most: usize) -> (usize, Next) {
        let Some(Opened { info, spare, built, .. }) = &mut self.opened else { return (0, Next::Busy) };
        let (mut count, most) = (0, most.min(info.burst));
        for frame in batch.pending().iter().take(most) {
            if spare.is_empty() {
                let want = batch.pending().len().min(most) - count;
                if let Err(fault) = self.port.reserve(want, info.max_frame, spare) {
                    self.fail(fault);
                    return (count, Next::Busy);
                }
            }
            let Some(room) = spare.pop() else { return (count, Next::Busy) };
            let gathers = info.gathers.then_some(info.gather_from);
            match put(room, batch, frame, front, info.max_frame, gathers) {
                Ok(one) => {
                    built.push(one);
                    count += 1;
                }
                Err((room, outcome)) => {
                    spare.push(room);
                    return (count, Next::Refused(outcome));
                }
            }
        }
        (count, Next::More)
    }
}

/// What follows what was built.
enum Next {
    /// The next burst.
    More,
    /// A frame with this outcome.
    Refused(Outcome),
    /// Nothing: there is no room.
    Busy,
}

/// Shows payload that stays where it is.
fn show(payload: &Piece<'_>, see: &mut dyn FnMut(&[u8])) {
    let (mut shown, mut at) = ([0; SHOWN], 0);
    while at < payload.len() {
        let some = payload.copy_part(at, &mut shown);
        see(&shown[..some]);
        at += some;
    }
}

/// Puts a frame, with what stands in front, together in `room`; or gives the room back with the frame's outcome. `gathers`: payload of
/// at least so many bytes stays where it is.
fn put(
    mut room: Room,
    batch: &TxBatch<'_>,
    frame: &TxFrame<'_>,
    front: &mut Option<&mut dyn Front>,
    limit: usize,
    gathers: Option<usize>,
) -> Result<Built, (Room, Outcome)> {
    let head = batch.head(frame);
    let before = match front.as_mut().map_or(Ok(0), |front| front.room(frame, head)) {
        Ok(before) => before,
        Err(outcome) => return Err((room, outcome)),
    };
    let len = before.saturating_add(frame.len());
    if len > limit {
        return Err((room, Outcome::TooLarge));
    }
    let stays =
        frame.piece.filter(|piece| len >= LEAST_FRAME && gathers.is_some_and(|from| piece.len() >= from.max(1)));
    let behind = before + head.len();
    let bytes = room.bytes_mut();
    bytes[before..behind].copy_from_slice(head);
    let mut end = behind;
    if stays.is_none()
        && let Some(piece) = &frame.piece
    {
        end += piece.copy_part(0, &mut bytes[behind..len]);
    }
    if let Some(front) = front
        && before > 0
    {
        let (space, rest) = bytes.split_at_mut(before);
        let body = &rest[..end - before];
        let written = front.write(frame, space, &mut |see| {
            see(body);
            stays.iter().for_each(|piece| show(piece, see));
        });
        if let Err(outcome) = written {
            return Err((room, outcome));
        }
    }
    // Ethernet's least frame, as a network card would fill it up.
    if len < LEAST_FRAME {
        bytes[len..LEAST_FRAME].fill(0);
        end = LEAST_FRAME;
    }
    let payload = stays.map(|piece| (piece.base(), piece.len()));
    Ok(Built { room, len: end, payload })
}
