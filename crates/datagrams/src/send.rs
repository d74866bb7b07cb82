//! Sending: headers in front of payload that lies in the device's memory already.

use std::collections::HashMap;
use std::net::SocketAddr;

use insane_datapath::Address;
use insane_datapath::batch::{Outcome, TxBatch, TxFrame, TxReport};
use insane_datapath::raw::{Body, Front, RawDatapath};
use insane_netstack::{Binding, Emit, Engine, Flow, Header, SendError};

use crate::outbox::Outbox;
use crate::{Datagrams, Opened};

/// So many destinations are remembered; then they are looked up anew.
const MOST_FLOWS: usize = 1024;

/// Flows by destination. The one that was used last is found without a look at the others: frames come in batches for one host.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    all: Vec<Flow>,
    places: HashMap<SocketAddr, usize>,
    last: usize,
}

impl Flows {
    fn find(&mut self, to: SocketAddr, make: impl FnOnce() -> Flow) -> Option<&mut Flow> {
        if self.all.get(self.last).is_none_or(|flow| flow.to() != to) {
            // Those of strangers must not add up.
            if self.all.len() >= MOST_FLOWS && !self.places.contains_key(&to) {
                self.all.clear();
                self.places.clear();
            }
            let all = &mut self.all;
            self.last = *self.places.entry(to).or_insert_with(|| {
                all.push(make());
                all.len() - 1
            });
        }
        self.all.get_mut(self.last)
    }
}

/// Writes the engine's headers.
struct Headers<'a> {
    engine: &'a mut Engine,
    flows: &'a mut Flows,
    binding: Binding,
    outbox: &'a mut Outbox,
    scratch: &'a mut Vec<u8>,
    now: u64,
    /// The header of the frame that is being built.
    header: Option<Header>,
}

fn outcome(error: SendError) -> Outcome {
    match error {
        SendError::TooLarge { .. } => Outcome::TooLarge,
        // As in the kernel what there is no room for is lost: who wants it sends it again.
        _ => Outcome::Unreachable,
    }
}

impl Headers<'_> {
    /// Lets a copy of a datagram wait in the engine for its neighbour's answer.
    fn park(&mut self, to: SocketAddr, frame: &TxFrame<'_>, head: &[u8]) -> Outcome {
        self.scratch.clear();
        if let Some(piece) = &frame.piece {
            piece.copy_to(self.scratch);
        }
        match self.engine.send(self.now, self.binding, to, &[head, self.scratch], self.outbox) {
            Ok(()) => Outcome::Sent,
            Err(error) => outcome(error),
        }
    }
}

impl Front for Headers<'_> {
    fn room(&mut self, frame: &TxFrame<'_>, head: &[u8]) -> Result<usize, Outcome> {
        let Address::Ip(to) = frame.to else { return Err(Outcome::Unreachable) };
        let (engine, binding) = (&mut *self.engine, self.binding);
        let flow = self.flows.find(to, || engine.flow(binding, to)).ok_or(Outcome::Failed)?;
        match engine.header(self.now, flow, frame.len(), self.outbox) {
            Ok(header) => {
                let before = header.bytes().len();
                self.header = Some(header);
                Ok(before)
            }
            Err(SendError::Resolving) => match engine.limit(self.now, to) {
                Some(limit) if frame.len() > limit => Err(Outcome::TooLarge),
                _ => Err(self.park(to, frame, head)),
            },
            Err(error) => Err(outcome(error)),
        }
    }

    fn write(&mut self, _frame: &TxFrame<'_>, front: &mut [u8], body: &mut Body<'_>) -> Result<(), Outcome> {
        let mut header = self.header.take().ok_or(Outcome::Failed)?;
        header.checksum_of(body);
        front.copy_from_slice(header.bytes());
        Ok(())
    }
}

impl<R: RawDatapath> Datagrams<R> {
    /// Lets the engine do what is due, and hands over what it has to say. Whether the device has taken all of that.
    pub(crate) fn tick(&mut self, now: u64) -> bool {
        let Some(opened) = &mut self.opened else { return true };
        if now >= opened.due {
            opened.poll(now);
        }
        opened.outbox.flush(&mut self.raw)
    }

    pub(crate) fn send_batch(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        let mut report = TxReport::default();
        let idle = |opened: &Opened| opened.engine.usage()[2] == 0 && opened.outbox.is_empty();
        if batch.is_done() && self.opened.as_ref().is_none_or(idle) {
            return report;
        }
        // Something waits for a neighbour, and whoever sends need not receive.
        if self.opened.as_ref().is_some_and(|opened| opened.engine.usage()[2] > 0) {
            self.look_for_answers();
        }
        // What waited goes before what comes after it.
        let now = self.now();
        if !self.tick(now) {
            report.pending = batch.pending().len();
            return report;
        }
        let before = batch.frames().len() - batch.pending().len();
        if let Some(Opened { engine, binding, flows, outbox, scratch, .. }) = &mut self.opened {
            let mut front = Headers { engine, flows, binding: *binding, outbox, scratch, now, header: None };
            report = self.raw.transmit_behind(batch, &mut front);
        } else {
            report.refused = batch.pending().len();
            batch.settle(report.refused, Outcome::Failed);
        }
        self.stats.busy += u64::from(report.pending > 0);
        self.stats.refused_frames += report.refused as u64;
        let done = &batch.frames()[before..];
        for frame in done.iter().filter(|frame| frame.outcome == Outcome::Sent) {
            self.stats.sent_frames += 1;
            self.stats.sent_bytes += frame.len() as u64;
        }
        if let Some(opened) = &mut self.opened {
            // A question may have been put, which is to be repeated. What TCP could not say for want of room is due all the same.
            opened.due = opened.due.min(opened.engine.due(now).unwrap_or(u64::MAX));
            opened.outbox.flush(&mut self.raw);
        }
        report
    }
}

impl Opened {
    pub(crate) fn poll(&mut self, now: u64) {
        self.stirred = true;
        self.due = self.engine.poll(now, &mut self.outbox).unwrap_or(u64::MAX);
        if self.outbox.room() == 0 {
            // TCP may have more to say, of which its own clock knows nothing.
            self.due = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::common::cable;
    use crate::{DatagramConfig, Datagrams};
    use insane_datapath::batch::TxBatch;
    use insane_datapath::{Address, Datapath};
    use insane_netstack::Emit;

    /// Segments that found no room are known to no clock of TCP's: only that it is asked again at once brings them out.
    #[test]
    fn a_datagram_does_not_make_tcp_wait_that_had_no_room_for_all() {
        let [wire, _other_end] = cable();
        let address = "10.0.0.1/24".parse().unwrap();
        let mut datagrams = Datagrams::new(wire, DatagramConfig { address, port: 7400, gateway: None, vlan: None });
        datagrams.open().unwrap();
        let opened = datagrams.opened.as_mut().unwrap();
        while opened.outbox.room() > 0 {
            assert!(opened.outbox.emit(0, &[&[2; 60]]));
        }
        opened.due = 0;
        let mut tx = TxBatch::default();
        tx.frame(Address::Ip("10.0.0.2:7400".parse().unwrap()), b"it goes between", 0);
        assert_eq!(datagrams.transmit(&mut tx).sent, 1);
        let (due, now) = (datagrams.opened.as_ref().unwrap().due, datagrams.now());
        assert!(due <= now, "it waits for {} ns", due - now);
    }
}
