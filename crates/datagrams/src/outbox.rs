//! What the engine sends by itself: questions for neighbours, answers, datagrams that had to wait for a neighbour.

use insane_datapath::batch::TxBatch;
use insane_datapath::{Address, Datapath};
use insane_netstack::Emit;

/// The most frames that are kept: those that wait for the datapath, and those before them that have gone, which the batch lets go of
/// with the last of all.
const MOST: usize = 512;

/// Of these TCP takes so many: the rest is for what cannot be said later.
const MOST_SEGMENTS: usize = MOST / 2;

/// Frames of the engine's own on their way to the datapath: the engine speaks while the datapath is in use.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    frames: TxBatch<'static>,
}

impl Emit for Outbox {
    fn emit(&mut self, _device: u8, pieces: &[&[u8]]) -> bool {
        if self.frames.frames().len() >= MOST {
            return false;
        }
        let start = self.frames.buffer().len();
        pieces.iter().for_each(|piece| self.frames.buffer().extend_from_slice(piece));
        let mut to = [0; 6];
        if let Some(destination) = self.frames.buffer().get(start..start + 6) {
            to.copy_from_slice(destination);
        }
        self.frames.commit(Address::Ethernet(to), start, None, 0);
        true
    }

    fn room(&self) -> usize {
        MOST_SEGMENTS.saturating_sub(self.frames.frames().len())
    }
}

impl Outbox {
    /// Whether nothing waits for the datapath.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_done()
    }

    /// Hands over what there is. Whether all has gone: what has not goes first the next time.
    pub(crate) fn flush(&mut self, raw: &mut dyn Datapath) -> bool {
        if !self.frames.is_done() {
            raw.transmit(&mut self.frames);
        }
        let done = self.frames.is_done();
        if done {
            self.frames.clear();
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use insane_datapath::batch::{Outcome, Place, RxBatch, RxReport, TxReport};
    use insane_datapath::{Capabilities, DatapathError, Stats};

    /// A device that takes one frame with each call.
    #[derive(Default)]
    struct Slow {
        took: usize,
    }

    impl Datapath for Slow {
        fn capabilities(&self) -> Capabilities {
            Capabilities::plain("slow", 1514)
        }

        fn open(&mut self) -> Result<(), DatapathError> {
            Ok(())
        }

        fn address(&self) -> Option<Address> {
            None
        }

        fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
            let sent = batch.pending().len().min(1);
            batch.settle(sent, Outcome::Sent);
            self.took += sent;
            TxReport { sent, refused: 0, pending: batch.pending().len() }
        }

        fn receive(&mut self, _: &mut RxBatch, _: Option<&mut dyn Place>) -> RxReport {
            RxReport::default()
        }

        fn stats(&self) -> Stats {
            Stats::default()
        }

        fn close(&mut self) {}
    }

    #[test]
    fn a_device_that_is_slower_than_the_engine_for_ever_costs_frames_and_no_memory() {
        let (mut outbox, mut slow, mut taken) = (Outbox::default(), Slow::default(), 0);
        for _ in 0..20 * MOST {
            taken += (0..2).filter(|_| outbox.emit(0, &[&[2; 14], &[0; 46]])).count();
            outbox.flush(&mut slow);
            assert!(outbox.frames.frames().len() <= MOST, "{}", outbox.frames.frames().len());
            assert!(outbox.frames.buffer().len() <= MOST * 60, "{}", outbox.frames.buffer().len());
        }
        // What was taken is sent, and what was not is the engine's to count.
        let waits = outbox.frames.pending().len();
        assert!(taken < 30 * MOST && slow.took + waits == taken, "{taken} {waits} {}", slow.took);
        while !outbox.flush(&mut slow) {}
        assert!(outbox.is_empty() && slow.took == taken && outbox.emit(0, &[&[2; 60]]));
    }
}
