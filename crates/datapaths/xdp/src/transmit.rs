//! Sending: frames are put together in the UMEM, and the kernel is called once for all that fit.

use std::hash::{DefaultHasher, Hash, Hasher};

use insane_datapath::batch::{Outcome, TxBatch, TxFrame, TxReport};

use crate::XdpDatapath;
use crate::gather::{Front, Gather, MOST_FRONT};
use crate::queue::{Queue, Refusal};

impl XdpDatapath {
    /// As [`insane_datapath::Datapath::transmit`], with something in front of each frame that `front` writes straight into the
    /// UMEM: a packet engine's headers. Then [`TxFrame::to`] is `front`'s to understand, and the largest frame is counted with
    /// what stands in front. Never waits.
    pub fn transmit_behind(&mut self, batch: &mut TxBatch<'_>, front: &mut dyn Front) -> TxReport {
        self.send_batch(batch, front)
    }

    pub(crate) fn send_batch<F: Front + ?Sized>(&mut self, batch: &mut TxBatch<'_>, front: &mut F) -> TxReport {
        let mut report = TxReport::default();
        if batch.is_done() {
            return report;
        }
        if self.down && self.is_running() {
            self.down = false;
            self.kick_all();
        }
        let refuse_all = match &self.opened {
            None => Some(Outcome::Failed),
            Some(_) if self.down => Some(Outcome::Unreachable),
            Some(_) => None,
        };
        if let Some(outcome) = refuse_all {
            report.refused = batch.pending().len();
            self.stats.refused_frames += report.refused as u64;
            batch.settle(report.refused, outcome);
            return report;
        }
        let limit = self.opened.as_ref().map_or(0, |opened| opened.chosen.max_frame);
        self.opened.iter_mut().flat_map(|opened| &mut opened.queues).for_each(Queue::reap);
        let mut kicked = false;
        while let (Some(frame), Some(opened)) = (batch.pending().first(), &mut self.opened) {
            let at = queue_of(frame, opened.senders);
            let Some(queue) = opened.queues.get_mut(at) else { break };
            match put(queue, batch, frame, front, limit) {
                Ok(bytes) => {
                    batch.settle(1, Outcome::Sent);
                    report.sent += 1;
                    self.stats.sent_frames += 1;
                    self.stats.sent_bytes += bytes as u64;
                    kicked = false;
                }
                // The front has taken it over.
                Err(Refusal::Never(Outcome::Sent)) => {
                    batch.settle(1, Outcome::Sent);
                    report.sent += 1;
                }
                Err(Refusal::Never(outcome)) => {
                    batch.settle(1, outcome);
                    report.refused += 1;
                    self.stats.refused_frames += 1;
                }
                // What was put may go now and make room.
                Err(Refusal::Full) if !kicked => {
                    kicked = true;
                    self.kick_all();
                }
                Err(Refusal::Full) => {
                    self.stats.busy += 1;
                    break;
                }
            }
        }
        self.kick_all();
        report.pending = batch.pending().len();
        report
    }

    /// Has the kernel send what was put, and looks at the interface if that went badly.
    pub(crate) fn kick_all(&mut self) {
        let Some(opened) = &mut self.opened else { return };
        let mut doubt = false;
        self.left = false;
        for queue in &mut opened.queues {
            let kick = queue.kick();
            self.counts.dropped_by_device += kick.dropped;
            doubt |= kick.doubt;
            self.left |= kick.left;
        }
        if doubt && !self.down && !self.is_running() {
            // What is left goes when it is up again.
            self.down = true;
            self.counts.downs += 1;
        }
        self.left &= !self.down;
    }

    /// Whether the interface that was opened is there, up and has a carrier. One that was made again under its name is another, to
    /// which the sockets do not belong.
    fn is_running(&mut self) -> bool {
        !self.is_gone() && self.opened.as_ref().is_some_and(|opened| opened.interface.is_running().unwrap_or(false))
    }

    /// Whether the interface that was opened was taken away.
    pub(crate) fn is_gone(&mut self) -> bool {
        let mut queues = self.opened.iter().flat_map(|opened| &opened.queues);
        self.gone = self.gone || queues.any(Queue::has_lost_its_interface);
        self.gone
    }
}

/// Frames for one address all go by one queue, so that they stay in order.
fn queue_of(frame: &TxFrame<'_>, queues: usize) -> usize {
    if queues < 2 {
        return 0;
    }
    let mut hasher = DefaultHasher::new();
    frame.to.hash(&mut hasher);
    (hasher.finish() % queues as u64) as usize
}

/// Puts a frame, with what stands in front, into a queue's send ring; says how many bytes it has.
fn put<F: Front + ?Sized>(
    queue: &mut Queue,
    batch: &TxBatch<'_>,
    frame: &TxFrame<'_>,
    front: &mut F,
    limit: usize,
) -> Result<usize, Refusal> {
    let head = batch.head(frame);
    let before = front.room(frame, head).map_err(Refusal::Never)?;
    let len = before + frame.len();
    if len > limit {
        return Err(Refusal::Never(Outcome::TooLarge));
    }
    if before > MOST_FRONT {
        return Err(Refusal::Never(Outcome::Failed));
    }
    queue.put(len, |gather: &mut Gather<'_>| {
        gather.skip(before);
        gather.put(head);
        if let Some(piece) = &frame.piece {
            gather.put_piece(piece);
        }
        if before > 0 {
            let (space, body) = gather.split(before).ok_or(Outcome::Failed)?;
            front.write(frame, space, &body)?;
        }
        gather.finish();
        Ok(())
    })?;
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::XdpConfig;
    use insane_datapath::batch::RxBatch;
    use insane_datapath::{Armed, Datapath};
    use insane_tests_namespaces::{Namespaces, has_af_xdp};

    #[test]
    fn what_a_full_device_has_left_goes_without_another_frame() {
        let Some(cable) = Namespaces::new(["xl", "xr"], |[a, b]| {
            vec![
                format!("link add v0 netns {a} type veth peer name v0 netns {b}"),
                format!("-n {a} link set v0 up"),
                format!("-n {b} link set v0 up"),
            ]
        }) else {
            return;
        };
        if !has_af_xdp() {
            return;
        }
        cable.inside(0, || {
            let mut xdp = XdpDatapath::new(XdpConfig { frames: 64, ..XdpConfig::new("v0") });
            xdp.open().expect("it opens");
            for armed in [true, false] {
                // As a call leaves it that finds the device full.
                let opened = xdp.opened.as_mut().expect("it is open");
                assert_eq!(opened.queues[0].put(100, |_| Ok(())), Ok(()));
                xdp.left = true;
                if armed {
                    assert_eq!(xdp.arm(), Armed::Sleep);
                } else {
                    xdp.receive(&mut RxBatch::default(), None);
                }
                assert_eq!((xdp.frames().send, xdp.left), (0, false));
            }
        });
    }
}
