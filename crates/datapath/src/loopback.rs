//! A network inside one process: ports of a hub, for tests and for a runtime that talks to itself.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::batch::{Outcome, Place, RxBatch, RxReport, Taken, TxBatch, TxReport};
use crate::{Address, Capabilities, Datapath, DatapathError, Stats};

/// The largest frame of a hub in bytes.
pub const MAX_FRAME: usize = 65_528;

/// How many frames wait at a port before senders find it busy.
const QUEUE: usize = 1024;

/// The ports' queues: who sent what.
type Ports = HashMap<u32, VecDeque<(u32, Vec<u8>)>>;

/// Connects ports. Clones are the same hub.
#[derive(Debug, Clone, Default)]
pub struct Hub {
    ports: Arc<Mutex<Ports>>,
}

impl Hub {
    /// A port, closed. One number may be open once.
    #[must_use]
    pub fn port(&self, number: u32) -> Loopback {
        Loopback { hub: self.clone(), number, open: false, stats: Stats::default() }
    }

    fn ports(&self) -> MutexGuard<'_, Ports> {
        // A queue is never left half changed, so a panic elsewhere does not spoil it.
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A port of a [`Hub`].
#[derive(Debug)]
pub struct Loopback {
    hub: Hub,
    number: u32,
    open: bool,
    stats: Stats,
}

impl Datapath for Loopback {
    fn capabilities(&self) -> Capabilities {
        Capabilities { detects_changes: true, ..Capabilities::plain("loopback", MAX_FRAME) }
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        if self.open {
            return Ok(());
        }
        let mut ports = self.hub.ports();
        if ports.contains_key(&self.number) {
            let reason = format!("port {} of this hub is open already", self.number);
            return Err(DatapathError::Unavailable { technology: "loopback", reason });
        }
        ports.insert(self.number, VecDeque::new());
        drop(ports);
        self.open = true;
        Ok(())
    }

    fn address(&self) -> Option<Address> {
        self.open.then_some(Address::Port(self.number))
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        let mut report = TxReport::default();
        let mut ports = self.hub.ports();
        while let Some(frame) = batch.pending().first() {
            let outcome = if !self.open {
                Outcome::Failed
            } else if frame.len() > MAX_FRAME {
                Outcome::TooLarge
            } else if let Address::Port(to) = frame.to
                && let Some(queue) = ports.get_mut(&to)
            {
                if queue.len() >= QUEUE {
                    self.stats.busy += 1;
                    break;
                }
                let mut bytes = Vec::with_capacity(frame.len());
                batch.copy_to(frame, &mut bytes);
                self.stats.sent_frames += 1;
                self.stats.sent_bytes += bytes.len() as u64;
                queue.push_back((self.number, bytes));
                Outcome::Sent
            } else {
                Outcome::Unreachable
            };
            batch.settle(1, outcome);
            if outcome == Outcome::Sent {
                report.sent += 1;
            } else {
                report.refused += 1;
                self.stats.refused_frames += 1;
            }
        }
        self.stats.calls += 1;
        report.pending = batch.pending().len();
        report
    }

    fn receive(&mut self, batch: &mut RxBatch, _place: Option<&mut dyn Place>) -> RxReport {
        batch.landed.clear();
        batch.heads.clear();
        let mut report = RxReport::default();
        let mut ports = self.hub.ports();
        let Some(queue) = ports.get_mut(&self.number).filter(|_| self.open) else { return report };
        while report.frames < batch.limit && !queue.is_empty() {
            let Some(mut slot) = batch.free.pop() else { break };
            let Some((from, bytes)) = queue.pop_front() else { break };
            let Some(to) = slot.bytes_mut().get_mut(..bytes.len()) else {
                self.stats.spoiled += 1;
                batch.free.push(slot);
                continue;
            };
            to.copy_from_slice(&bytes);
            self.stats.received_frames += 1;
            self.stats.received_bytes += bytes.len() as u64;
            report.frames += 1;
            batch.taken.push(Taken { slot, len: bytes.len(), stride: bytes.len().max(1), from: Address::Port(from) });
        }
        report.more = !queue.is_empty();
        report
    }

    fn stats(&self) -> Stats {
        self.stats
    }

    fn close(&mut self) {
        if self.open {
            self.hub.ports().remove(&self.number);
            self.open = false;
        }
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.close();
    }
}
