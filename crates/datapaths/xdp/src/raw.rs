//! What a packet engine sees of this datapath: the contract's [`RawDatapath`], over `transmit_behind` and `receive_with`.

use core::cell::Cell;
use core::ops::Range;

use insane_datapath::batch::{Outcome, RxReport, TxBatch, TxFrame, TxReport};
use insane_datapath::memory::Slot;
use insane_datapath::raw::{self, InPlace, RawDatapath, RawSplit};

use crate::XdpDatapath;
use crate::gather::{Body, Front, Received};

/// The contract's front as this crate's.
struct Bridge<'a>(&'a mut dyn raw::Front);

impl Front for Bridge<'_> {
    fn room(&mut self, frame: &TxFrame<'_>, head: &[u8]) -> Result<usize, Outcome> {
        self.0.room(frame, head)
    }

    fn write(&mut self, frame: &TxFrame<'_>, front: &mut [u8], body: &Body<'_>) -> Result<(), Outcome> {
        self.0.write(frame, front, &mut |see| body.parts().for_each(&mut *see))
    }
}

impl InPlace for Received<'_> {
    fn len(&self) -> usize {
        Received::len(self)
    }

    fn first(&self) -> &[u8] {
        Received::first(self)
    }

    fn copy_to(&self, range: Range<usize>, out: &mut [u8]) -> usize {
        Received::copy_to(self, range, out)
    }

    fn lend(&self, range: Range<usize>) -> Option<Slot> {
        Received::lend(self, range)
    }
}

impl RawDatapath for XdpDatapath {
    fn transmit_behind(&mut self, batch: &mut TxBatch<'_>, front: &mut dyn raw::Front) -> TxReport {
        self.send_batch(batch, &mut Bridge(front))
    }

    fn receive_in_place(&mut self, limit: usize, see: &mut dyn FnMut(&dyn InPlace) -> bool) -> RxReport {
        let goes_on = Cell::new(true);
        self.receive_while(limit, || goes_on.get(), |received| goes_on.set(see(received)))
    }

    fn split_raw(&mut self, most: usize) -> RawSplit {
        self.split_queues(most)
    }

    fn take_back(&mut self, lent: &mut Vec<Slot>) {
        self.take_back_lent(lent);
    }
}
