//! What the engine sends by itself: questions for neighbours, answers, datagrams that had to wait for a neighbour.

use insane_datapath::batch::TxBatch;
use insane_datapath::{Address, Datapath};
use insane_netstack::Emit;

/// The most frames that wait for the datapath.
const MOST: usize = 512;

/// Frames of the engine's own on their way to the datapath: the engine speaks while the datapath is in use.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    frames: TxBatch<'static>,
}

impl Emit for Outbox {
    fn emit(&mut self, _device: u8, pieces: &[&[u8]]) -> bool {
        if self.frames.pending().len() >= MOST {
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
