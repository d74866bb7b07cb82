//! Receiving: checked where it lies, copied once.

use core::ops::Range;
use std::net::SocketAddr;

use insane_datapath::Address;
use insane_datapath::batch::{Place, RxBatch, RxReport, Taken, land};
use insane_datapath::raw::{InPlace, RawDatapath, Whole};
use insane_netstack::{Arrival, Payload, Received};

use crate::strays::is_datagram;
use crate::{Datagrams, Opened, nanoseconds};

/// The most datagrams that are kept while an answer is looked for.
const MOST_CAME: usize = 256;

/// Frames that are looked at for an answer by one call.
const LOOK: usize = 64;

/// Of so many looks one sees to what is due, whatever it has found.
const SELDOM: u32 = 32;

/// Room for a frame of `len` bytes behind those before it, if they are from the same sender and as long: as kernel UDP joins
/// what it received, so that the receiver can look at frames that are alike at once. The last of them may be shorter. Whoever gets room
/// fills it.
pub(crate) fn behind(before: Option<&mut Taken>, from: Address, len: usize) -> Option<&mut [u8]> {
    let before = before.filter(|before| before.from == from && before.slot.place().is_none())?;
    let at = before.len;
    // After a shorter one nothing can follow.
    let follows = (1..=before.stride).contains(&len) && at.is_multiple_of(before.stride);
    let room = before.slot.bytes_mut().get_mut(at..at + len).filter(|_| follows)?;
    before.len += len;
    Some(room)
}

/// Puts a datagram behind those before it, if it can be there.
fn join(before: Option<&mut Taken>, from: Address, payload: &[u8]) -> bool {
    let room = behind(before, from, payload.len());
    room.map(|room| room.copy_from_slice(payload)).is_some()
}

impl Opened {
    /// Gives a frame to the engine, and the payload of a datagram for us to `take`.
    /// With the payload comes where it lies in the frame, if it lies there alone.
    fn arrived(
        &mut self,
        now: impl FnOnce() -> u64,
        frame: &dyn InPlace,
        port: u16,
        take: impl FnOnce(SocketAddr, &[u8], Option<Range<usize>>),
    ) {
        let Self { engine, outbox, scratch, binding, gives, .. } = self;
        let alone = frame.first().len() == frame.len();
        let bytes = if alone {
            frame.first()
        } else {
            // The checksum is over all of it, and the engine wants one piece: a jumbo frame costs a copy more.
            scratch.resize(frame.len(), 0);
            frame.copy_to(0..frame.len(), scratch);
            scratch
        };
        let arrival = Arrival::new(0, bytes);
        let received = match engine.receive_alike(&arrival) {
            Some(datagram) => Received::Udp(datagram),
            None => {
                if let Some(strays) = gives.as_ref().filter(|_| !is_datagram(bytes, port)) {
                    strays.give(bytes);
                    return;
                }
                engine.receive(now(), &arrival, outbox)
            }
        };
        if let Received::Udp(datagram) = received
            && datagram.binding == *binding
        {
            let place = match &datagram.payload {
                Payload::Frame(range) if alone => Some(range.clone()),
                _ => None,
            };
            take(datagram.from, datagram.payload.bytes(bytes), place);
        } else {
            // A piece of a packet, or what a neighbour says, changes when the engine has something to do: it is asked next time.
            // So does a segment of TCP, whose connections are looked at then.
            self.due = 0;
        }
    }
}

impl Opened {
    /// Gives a frame to the engine, and keeps the payload of a datagram for the next receive. `false` if there was no room for it.
    fn keep(&mut self, now: u64, frame: &dyn InPlace, port: u16) -> bool {
        let mut came = None;
        self.arrived(|| now, frame, port, |from, payload, _| came = Some((from, payload.to_vec())));
        let Some(came) = came else { return true };
        let room = self.came.len() < MOST_CAME;
        if room {
            self.came.push_back(came);
        }
        room
    }
}

impl<R: RawDatapath> Datagrams<R> {
    /// Looks at what has come for the sake of what waits to be sent. Datagrams are kept for the next receive.
    pub(crate) fn look_for_answers(&mut self) {
        self.take_strays();
        let (now, port) = (self.now(), self.config.port);
        let Some(opened) = &mut self.opened else { return };
        let overruns = &mut self.stats.overruns;
        self.raw.receive_in_place(LOOK, &mut |frame| {
            *overruns += u64::from(!opened.keep(now, frame, port));
            true
        });
    }

    /// Gives the engine what has come by parts and is not for them.
    fn take_strays(&mut self) {
        let (now, port) = (self.now(), self.config.port);
        let Some(opened) = &mut self.opened else { return };
        let Some(strays) = opened.takes.as_ref().map(|takes| takes.strays.clone()) else { return };
        for frame in strays.take() {
            self.stats.overruns += u64::from(!opened.keep(now, &Whole(&frame), port));
        }
        self.stats.overruns += strays.take_lost();
    }

    pub(crate) fn receive_batch(&mut self, batch: &mut RxBatch, mut place: Option<&mut dyn Place>) -> RxReport {
        batch.landed.clear();
        batch.heads.clear();
        self.raw.take_back(&mut batch.back);
        self.take_strays();
        let port = self.config.port;
        let mut report = RxReport::default();
        let start = self.start;
        let mut clock = None;
        let mut now = || *clock.get_or_insert_with(|| nanoseconds(start));
        let Some(opened) = &mut self.opened else { return report };
        let stats = &mut self.stats;
        let RxBatch { free, taken, landed, heads, limit, lend, .. } = batch;
        // What is lent is taken, in its turn; so nothing lands.
        let mut place = place.take().filter(|_| !*lend);
        let (before, frames) = (taken.len(), opened.joined);
        let (limit, most) = (*limit, limit.saturating_mul(frames));
        // What was kept is older than what the device has.
        while taken.len() - before < limit
            && let Some(mut slot) = free.pop_if(|_| !opened.came.is_empty())
            && let Some((from, payload)) = opened.came.pop_front()
        {
            let Some(to) = slot.bytes_mut().get_mut(..payload.len()).filter(|_| !payload.is_empty()) else {
                stats.spoiled += 1;
                free.push(slot);
                continue;
            };
            to.copy_from_slice(&payload);
            let len = payload.len();
            taken.push(Taken { slot, len, stride: len, from: Address::Ip(from) });
            (report.frames, stats.received_frames) = (report.frames + 1, stats.received_frames + 1);
            stats.received_bytes += len as u64;
        }
        // What landed is before what was taken, so with something taken nothing may land any more; and what was shown cannot
        // go back, so there must be a slot for it.
        let goes_on = |place: &mut Option<&mut dyn Place>, pieces: [usize; 2], frames: usize, free: usize| {
            let lands = place.as_deref_mut().is_some_and(|place| place.expects());
            let [taken, landed] = pieces;
            taken + landed < limit && frames < most && free > 0 && !(lands && taken > 0)
        };
        if !goes_on(&mut place, [taken.len() - before, 0], report.frames, free.len()) {
            report.more = !free.is_empty();
            return report;
        }
        let (left, mut full) = (most - report.frames, false);
        let below = self.raw.receive_in_place(left, &mut |frame| {
            opened.arrived(&mut now, frame, port, |from, payload, lies| {
                let (from, len) = (Address::Ip(from), payload.len());
                let wanted = place.as_deref_mut().filter(|place| place.expects() && taken.len() == before);
                if let Some(slot) = lies.filter(|_| *lend && len > 0).and_then(|lies| frame.lend(lies)) {
                    taken.push(Taken { slot, len, stride: len, from });
                } else if let Some(one) = wanted.and_then(|place| land(payload, from, place, heads)) {
                    landed.push(one);
                    stats.placed += 1;
                } else if !join(taken.get_mut(before..).and_then(|new| new.last_mut()), from, payload) {
                    let fits = |slot: &mut insane_datapath::memory::Slot| slot.len() >= len && len > 0;
                    let Some(mut slot) = free.pop_if(fits) else {
                        stats.spoiled += 1;
                        return;
                    };
                    slot.bytes_mut()[..len].copy_from_slice(payload);
                    taken.push(Taken { slot, len, stride: len, from });
                }
                (report.frames, stats.received_frames) = (report.frames + 1, stats.received_frames + 1);
                stats.received_bytes += len as u64;
            });
            full = !goes_on(&mut place, [taken.len() - before, landed.len()], report.frames, free.len());
            !full
        });
        report.more = below.more || full;
        let brings = report.frames + below.frames > 0;
        let after = std::mem::replace(&mut self.brought, brings) && !brings;
        self.looks = self.looks.wrapping_add(1);
        // What is due comes after what has come: with the next look, which finds nothing. Who looks again and again need not look at the
        // clock each time.
        if after || self.looks.is_multiple_of(SELDOM) {
            let now = now();
            self.tick(now);
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use insane_datapath::batch::{TxBatch, TxReport};
    use insane_datapath::memory::Slot;
    use insane_datapath::raw::Front;
    use insane_datapath::{Capabilities, Datapath, DatapathError, Stats};
    use insane_netstack::Mac;
    use insane_netstack::ether::{self, Ethernet};
    use insane_netstack::ip::{Fragment, Head, UDP};

    use super::*;
    use crate::DatagramConfig;

    const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];

    /// A device with frames that have come, and nobody at the other end.
    #[derive(Default)]
    struct Device(Vec<Vec<u8>>);

    impl Datapath for Device {
        fn capabilities(&self) -> Capabilities {
            let mut can = Capabilities::plain("test", 1514);
            can.needs_packet_engine = true;
            can
        }

        fn open(&mut self) -> Result<(), DatapathError> {
            Ok(())
        }

        fn address(&self) -> Option<Address> {
            Some(Address::Ethernet(OURS))
        }

        fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
            batch.settle(batch.pending().len(), insane_datapath::batch::Outcome::Sent);
            TxReport::default()
        }

        fn receive(&mut self, _: &mut RxBatch, _: Option<&mut dyn Place>) -> RxReport {
            RxReport::default()
        }

        fn stats(&self) -> Stats {
            Stats::default()
        }

        fn close(&mut self) {}
    }

    impl RawDatapath for Device {
        fn transmit_behind(&mut self, batch: &mut TxBatch<'_>, _: &mut dyn Front) -> TxReport {
            self.transmit(batch)
        }

        fn receive_in_place(&mut self, _: usize, see: &mut dyn FnMut(&dyn InPlace) -> bool) -> RxReport {
            let mut report = RxReport::default();
            for frame in self.0.drain(..) {
                see(&Whole(&frame));
                report.frames += 1;
            }
            report
        }
    }

    #[test]
    fn what_a_frame_makes_due_is_done_without_a_send() {
        let address = "10.0.0.1/24".parse().unwrap();
        let config = DatagramConfig { address, port: 7400, gateway: None, vlan: None };
        let mut datagrams = Datagrams::new(Device::default(), config);
        datagrams.open().unwrap();
        datagrams.arm();
        // The first piece of a datagram, and no other.
        let fragment = Some(Fragment { ident: 7, offset: 0, more: true });
        let (from, to) = ([10, 0, 0, 2].into(), [10, 0, 0, 1].into());
        let head = Head { from, to, protocol: UDP, hop_limit: 64, class: 0, payload: 800, fragment };
        let mut frame = vec![0; 14 + 20 + 800];
        let ethernet = Ethernet { to: Mac(OURS), from: Mac([2, 0, 0, 0, 0, 2]), tag: None, kind: ether::IPV4 };
        let at = ethernet.write(&mut frame);
        head.write(&mut frame[at..]);
        datagrams.raw.0.push(frame);
        let mut batch = RxBatch { free: vec![Slot::owned(0, 2048)], ..RxBatch::default() };
        assert_eq!(datagrams.receive(&mut batch, None).frames, 0);
        datagrams.arm();
        let unfinished = |datagrams: &Datagrams<Device>| datagrams.opened.as_ref().unwrap().engine.usage()[1];
        assert_eq!(unfinished(&datagrams), 1);
        // Its time is over.
        datagrams.start = datagrams.start.checked_sub(Duration::from_secs(31)).expect("the machine runs for longer");
        datagrams.arm();
        assert_eq!(unfinished(&datagrams), 0);
    }

    #[test]
    fn datagrams_are_joined_with_those_that_are_as_long_from_the_same_sender() {
        let [one, other] = [1, 2].map(|n| Address::Ip(([10, 0, 0, n], 7400).into()));
        let mut taken = vec![];
        let mut come = |from, payload: &[u8]| {
            if !join(taken.last_mut(), from, payload) {
                let mut slot = Slot::owned(0, 20);
                slot.bytes_mut()[..payload.len()].copy_from_slice(payload);
                taken.push(Taken { slot, len: payload.len(), stride: payload.len(), from });
            }
        };
        // A shorter one is the last; a longer one, one of another sender, and one for which there is no room begin anew.
        for payload in [b"first..", b"second."] {
            come(one, payload);
        }
        come(one, b"short");
        come(one, b"short");
        come(one, b"longer");
        come(other, b"longer");
        (0..4).for_each(|_| come(other, b"more.."));
        let seen: Vec<(_, Vec<_>)> = taken.iter().map(|taken| (taken.from, taken.frames().collect())).collect();
        let expected: [(_, &[&[u8]]); 5] = [
            (one, &[b"first..", b"second.", b"short"]),
            (one, &[b"short"]),
            (one, &[b"longer"]),
            (other, &[b"longer", b"more..", b"more.."]),
            (other, &[b"more..", b"more.."]),
        ];
        assert_eq!(seen, expected.map(|(from, frames)| (from, frames.to_vec())));
    }
}
