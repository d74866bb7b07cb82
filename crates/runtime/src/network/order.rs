//! Batches that the network has brought out of order. What is handed on cannot be taken back, so a best-effort message that comes after a
//! later one counts as lost; but frames that were received together can be taken in the order in which they were sent. The look for
//! that begins with a frame that comes before one that should have come already, once in a batch: one in order is not looked at.

use crate::network::hub::Hub;
use crate::network::ports::Port;
use insane_datapath::batch::Taken;
use insane_wire::frame::Header;
use std::collections::HashMap;
use std::time::Duration;

/// A frame of a batch: its host, its number among the frames of that host's connection, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    host: usize,
    counter: u64,
    taken: usize,
    from: usize,
}

impl Hub {
    /// Whether a frame comes before one that should have come already, and what else was received with it may have to be put in order.
    pub(crate) fn is_early(&mut self, (host, lane): (usize, usize), frame: &[u8]) -> bool {
        self.sorts && self.hosts[host].lanes.path(lane).is_some_and(|path| path.is_early(frame))
    }

    /// What is left of a batch, of the first piece from byte `done` on: each frame by itself, as they were sent. `None` if they lie so.
    fn as_sent(&mut self, port: usize, first: &Taken, done: usize, rest: &[Taken]) -> Option<Vec<Place>> {
        self.sorts = false;
        let (mut places, mut last, mut in_order) = (Vec::new(), HashMap::new(), true);
        for (taken, one) in std::iter::once(first).chain(rest).enumerate() {
            let Some(host) = self.by_address.find(port, one.from) else { continue };
            let stride = one.stride.max(1);
            for from in (if taken == 0 { done } else { 0 }..one.bytes().len()).step_by(stride) {
                let last = last.entry(host).or_insert(0);
                // What is no frame stays behind the one before it.
                let counter = Header::read(one.bytes().get(from..).unwrap_or(&[])).map_or(*last, |head| head.counter);
                in_order &= counter >= *last;
                *last = counter;
                places.push(Place { host, counter, taken, from });
            }
        }
        places.sort_unstable();
        (!in_order).then_some(places)
    }

    /// Takes what was received together, in the order in which it was sent.
    pub(crate) fn take_batch(&mut self, now: Duration, port: usize, all: &mut Vec<Taken>) {
        self.coming = 0;
        for taken in all.iter() {
            self.received += taken.len;
            self.coming += taken.count();
        }
        self.sorts = self.coming > 1;
        let mut rest = all.drain(..);
        while let Some(taken) = rest.next() {
            let Some(host) = self.by_address.find(port, taken.from) else {
                self.coming -= taken.count();
                self.unknown += taken.count() as u64;
                self.give_back(port, taken);
                continue;
            };
            let lent = taken.slot.place().is_some();
            let early = if lent {
                self.is_early((host, port), taken.bytes()).then_some(0)
            } else {
                self.frames(now, (host, port), taken.bytes(), taken.stride)
            };
            if let Some(done) = early {
                if let Some(places) = self.as_sent(port, &taken, done, rest.as_slice()) {
                    let left = std::iter::once(taken).chain(rest).collect();
                    return self.take_as_sent(now, port, places, left, done);
                }
                if !lent {
                    let bytes = taken.bytes().get(done..).unwrap_or(&[]);
                    self.frames(now, (host, port), bytes, taken.stride);
                }
            }
            if lent {
                self.coming -= 1;
                self.lent(now, (host, port), taken);
            } else {
                self.give_back(port, taken);
            }
        }
    }

    /// Takes these frames of what is left of a batch, of the first piece from byte `done` on; others are of nobody.
    fn take_as_sent(&mut self, now: Duration, port: usize, places: Vec<Place>, all: Vec<Taken>, done: usize) {
        let before = all.first().map_or(0, |first| done / first.stride.max(1));
        let left = all.iter().map(Taken::count).sum::<usize>() - before;
        self.unknown += (left - places.len()) as u64;
        self.coming = places.len();
        let mut all: Vec<Option<Taken>> = all.into_iter().map(Some).collect();
        for Place { host, taken, from, .. } in places {
            self.coming -= 1;
            if let Some(lent) = all[taken].take_if(|one| one.slot.place().is_some()) {
                self.lent(now, (host, port), lent);
            } else if let Some(one) = &all[taken] {
                let frame = one.bytes().get(from..).unwrap_or(&[]);
                self.frame(now, (host, port), &frame[..frame.len().min(one.stride)], None);
            }
        }
        all.into_iter().flatten().for_each(|one| self.give_back(port, one));
    }

    /// Takes a frame that is lent: what is kept of it keeps it.
    fn lent(&mut self, now: Duration, (host, port): (usize, usize), taken: Taken) {
        let Port { loans, lender, .. } = &mut self.ports[port];
        let loan = loans.lend(taken.slot, *lender);
        self.frame(now, (host, port), loan.bytes(), Some(&loan));
    }

    /// Nothing refers to what was received any more.
    fn give_back(&mut self, port: usize, taken: Taken) {
        if taken.slot.place().is_some() {
            let Port { loans, lender, .. } = &mut self.ports[port];
            drop(loans.lend(taken.slot, *lender));
        } else {
            self.ports[port].rx.free.push(taken.slot);
        }
    }
}
