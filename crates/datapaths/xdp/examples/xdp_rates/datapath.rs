//! The datapath as one end.

use insane_datapath::batch::{RxBatch, TxBatch};
use insane_datapath::memory::{Piece, Slot};
use insane_datapath::{Address, Datapath};
use insane_datapath_xdp::{Attach, XdpConfig, XdpDatapath};

use crate::{DEVICE, MACS, Mover, NUMBER, number, template};

/// Both ways of using it.
pub(crate) struct Ours {
    xdp: XdpDatapath,
    /// Received frames are copied into slots.
    slots: bool,
    rx: RxBatch,
    to: Address,
    frame: &'static [u8],
    batch: TxBatch<'static>,
}

impl Ours {
    pub(crate) fn open(end: usize, size: usize, generic: bool, slots: bool) -> Self {
        let attach = if generic { Attach::Generic } else { Attach::Native };
        let mut xdp = XdpDatapath::new(XdpConfig { attach, ..XdpConfig::new(DEVICE) });
        xdp.open().unwrap_or_else(|error| panic!("{error}"));
        let bytes = xdp.capabilities().slot_bytes;
        let rx = RxBatch { free: (0..64).map(|id| Slot::owned(id, bytes)).collect(), limit: 64, ..RxBatch::default() };
        // As long as the program runs.
        let frame = Box::leak(template(end, size).into_boxed_slice());
        Self { xdp, slots, rx, to: Address::Ethernet(MACS[1 - end]), frame, batch: TxBatch::default() }
    }
}

impl Mover for Ours {
    fn send(&mut self, first: u64, count: usize) -> usize {
        self.batch.clear();
        for number in (first..).take(count) {
            let start = self.batch.buffer().len();
            self.batch.buffer().extend_from_slice(&self.frame[..NUMBER.end]);
            self.batch.buffer()[start + NUMBER.start..].copy_from_slice(&number.to_le_bytes());
            self.batch.commit(self.to, start, Some(Piece::of(&self.frame[NUMBER.end..])), number);
        }
        self.xdp.transmit(&mut self.batch).sent
    }

    fn receive(&mut self, see: &mut dyn FnMut(u64)) -> usize {
        let mut count = 0;
        let mut look = |frame: &[u8]| {
            if let Some(number) = number(frame) {
                see(number);
                count += 1;
            }
        };
        if self.slots {
            self.xdp.receive(&mut self.rx, None);
            for taken in self.rx.taken.drain(..) {
                taken.frames().for_each(&mut look);
                self.rx.free.push(taken.slot);
            }
        } else {
            self.xdp.receive_with(64, |received| look(received.first()));
        }
        count
    }
}
