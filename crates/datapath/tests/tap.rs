//! A tap that is on passes the suite, captures every frame as it was, and never lets the datapath wait for its writer.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use insane_datapath::batch::{Outcome, Place, RxBatch, RxReport, Taken, TxBatch, TxReport};
use insane_datapath::conformance::{Rig, all, pattern};
use insane_datapath::loopback::Hub;
use insane_datapath::memory::Slot;
use insane_datapath::pcapng::{self, PACKET, SECTION, STATISTICS};
use insane_datapath::raw::{Body, Front, InPlace, RawDatapath};
use insane_datapath::tap::{Capture, Ended, Refused, Tap};
use insane_datapath::{Address, Capabilities, Datapath, DatapathError, Stats};

/// More than any test here needs.
const ROOM: usize = 64 << 20;

/// A datapath that gives back what it was given, from where it went: datagrams, or frames if it is `raw`.
#[derive(Default)]
struct Mirror {
    own: Option<Address>,
    raw: bool,
    frames: Vec<(Address, Vec<u8>)>,
    /// For how many frames it turns out to have room, each time that all are put together; then for any number. It tries twice a call.
    room: VecDeque<usize>,
}

/// A frame in two buffers.
struct Halves<'a>(&'a [u8]);

impl InPlace for Halves<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn first(&self) -> &[u8] {
        &self.0[..self.0.len() / 2]
    }

    fn copy_to(&self, range: core::ops::Range<usize>, out: &mut [u8]) -> usize {
        let bytes = &self.0[range];
        out[..bytes.len()].copy_from_slice(bytes);
        bytes.len()
    }
}

impl Datapath for Mirror {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::plain("mirror", 2048);
        can.needs_packet_engine = self.raw;
        can
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        Ok(())
    }

    fn address(&self) -> Option<Address> {
        self.own
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        let mut report = TxReport::default();
        while let Some(frame) = batch.pending().first() {
            let mut bytes = Vec::new();
            batch.copy_to(frame, &mut bytes);
            let to = frame.to;
            let outcome = if bytes.len() > 2048 { Outcome::TooLarge } else { Outcome::Sent };
            if outcome == Outcome::Sent {
                self.frames.push((to, bytes));
            }
            batch.settle(1, outcome);
            report.sent += usize::from(outcome == Outcome::Sent);
        }
        report
    }

    fn receive(&mut self, batch: &mut RxBatch, _: Option<&mut dyn Place>) -> RxReport {
        let mut report = RxReport::default();
        for (from, bytes) in self.frames.drain(..) {
            let mut slot = batch.free.pop().expect("enough slots");
            slot.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
            // As two frames of one length.
            batch.taken.push(Taken { slot, len: bytes.len(), stride: bytes.len().div_ceil(2), from });
            report.frames += 2;
        }
        report
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }

    fn close(&mut self) {}
}

impl RawDatapath for Mirror {
    fn transmit_behind(&mut self, batch: &mut TxBatch<'_>, front: &mut dyn Front) -> TxReport {
        let mut report = TxReport::default();
        for _ in 0..2 {
            let mut built = Vec::new();
            for frame in batch.pending() {
                let mut body = Vec::new();
                batch.copy_to(frame, &mut body);
                let room = front.room(frame, &body).expect("room");
                let mut space = vec![0; room];
                let outcome = match front.write(frame, &mut space, &mut |see| body.chunks(3).for_each(&mut *see)) {
                    Ok(()) => Outcome::Sent,
                    Err(outcome) => outcome,
                };
                built.push((frame.to, [space, body].concat(), outcome));
            }
            for (to, bytes, outcome) in built.into_iter().take(self.room.pop_front().unwrap_or(usize::MAX)) {
                batch.settle(1, outcome);
                if outcome == Outcome::Sent {
                    report.sent += 1;
                    self.frames.push((to, bytes));
                }
            }
        }
        report
    }

    fn receive_in_place(&mut self, _: usize, see: &mut dyn FnMut(&dyn InPlace) -> bool) -> RxReport {
        let frames = self.frames.len();
        for (_, bytes) in self.frames.drain(..) {
            assert!(see(&Halves(&bytes)), "whoever looks here wants all");
        }
        RxReport { frames, more: false }
    }
}

/// Writes `<` and the body's length, and refuses what is empty.
struct Lengths;

impl Front for Lengths {
    fn room(&mut self, _: &insane_datapath::batch::TxFrame<'_>, _: &[u8]) -> Result<usize, Outcome> {
        Ok(2)
    }

    fn write(
        &mut self,
        frame: &insane_datapath::batch::TxFrame<'_>,
        front: &mut [u8],
        body: &mut Body<'_>,
    ) -> Result<(), Outcome> {
        let mut len = 0;
        body(&mut |piece| len += piece.len());
        front.copy_from_slice(&[b'<', len as u8]);
        if frame.is_empty() { Err(Outcome::Failed) } else { Ok(()) }
    }
}

/// As [`Lengths`], but each time that a frame is put together it writes another first byte.
struct Counted(u8);

impl Front for Counted {
    fn room(&mut self, frame: &insane_datapath::batch::TxFrame<'_>, head: &[u8]) -> Result<usize, Outcome> {
        Lengths.room(frame, head)
    }

    fn write(
        &mut self,
        frame: &insane_datapath::batch::TxFrame<'_>,
        front: &mut [u8],
        body: &mut Body<'_>,
    ) -> Result<(), Outcome> {
        Lengths.write(frame, front, body)?;
        (front[0], self.0) = (self.0, self.0 + 1);
        Ok(())
    }
}

/// All that was captured: the direction and the bytes of each frame.
fn taken(capture: &Capture) -> Vec<(u8, Vec<u8>)> {
    let mut found = Vec::new();
    while let Ok(Some(chunk)) = capture.next(Duration::ZERO) {
        let mut rest = &chunk[..];
        while let Some((kind, block)) = pcapng::block(rest).expect("blocks") {
            assert_eq!(kind, PACKET);
            let len = u32::from_le_bytes(block[20..24].try_into().unwrap()) as usize;
            let direction = block[28 + len.next_multiple_of(4) + 4];
            found.push((direction, block[28..28 + len].to_vec()));
            rest = &rest[block.len()..];
        }
        assert!(rest.is_empty());
    }
    found
}

fn slots(count: u64) -> RxBatch {
    RxBatch { free: (0..count).map(|id| Slot::owned(id, 4096)).collect(), ..RxBatch::default() }
}

#[test]
fn a_tap_conforms_off_and_on() {
    all(|| {
        let hub = Hub::default();
        let [mut a, mut b] = [1, 2].map(|port| Tap::new(hub.port(port)));
        a.open().unwrap();
        b.open().unwrap();
        Rig { a: Box::new(a), b: Box::new(b) }
    });
    // A capture ends when it is dropped: they are kept until the end.
    let mut captures = Vec::new();
    all(|| {
        let hub = Hub::default();
        let [mut a, mut b] = [1, 2].map(|port| Tap::new(hub.port(port)));
        a.open().unwrap();
        b.open().unwrap();
        captures.extend([&a, &b].map(|tap| tap.control().start(ROOM, "a test").unwrap()));
        Rig { a: Box::new(a), b: Box::new(b) }
    });
    assert!(captures.iter().map(|capture| capture.counts().captured).sum::<u64>() > 1000);
    assert_eq!(captures.iter().map(|capture| capture.counts().dropped).sum::<u64>(), 0);
}

#[test]
fn frames_without_addresses_that_others_know_are_captured_bare() {
    let hub = Hub::default();
    let (mut a, mut b) = (Tap::new(hub.port(1)), Tap::new(hub.port(2)));
    a.open().unwrap();
    b.open().unwrap();
    let [sends, receives] = [&a, &b].map(|tap| tap.control().start(ROOM, "a test").unwrap());
    let mut tx = TxBatch::default();
    tx.frame(Address::Port(2), &pattern(1, 64), 0);
    // Refused, so not captured.
    tx.frame(Address::Port(3), &pattern(2, 64), 0);
    a.transmit(&mut tx);
    // Nothing new.
    a.transmit(&mut tx);
    b.receive(&mut RxBatch { free: vec![Slot::owned(0, 65_536)], ..RxBatch::default() }, None);
    assert_eq!(taken(&sends), [(2, pattern(1, 64))]);
    assert_eq!(taken(&receives), [(1, pattern(1, 64))]);
}

#[test]
fn datagrams_stand_behind_headers_with_their_addresses() {
    for (own, peer) in [("10.0.0.1:7400", "10.0.0.2:7401"), ("[fd00::1]:7400", "[fd00::2]:7401")] {
        let [own, peer] = [own, peer].map(|text| text.parse::<SocketAddr>().unwrap());
        let mut tap = Tap::new(Mirror { own: Some(Address::Ip(own)), ..Mirror::default() });
        let capture = tap.control().start(ROOM, "a test").unwrap();
        let mut tx = TxBatch::default();
        tx.frame(Address::Ip(peer), b"abcd", 0);
        tx.frame(Address::Ip(peer), &[0; 3000], 0);
        assert_eq!(tap.transmit(&mut tx).sent, 1);
        assert_eq!(tap.receive(&mut slots(2), None).frames, 2);
        let found = taken(&capture);
        let ip = if own.is_ipv4() { 20 } else { 40 };
        let shown: Vec<_> = found.iter().map(|(way, bytes)| (*way, &bytes[ip + 8..])).collect();
        assert_eq!(shown, [(2, &b"abcd"[..]), (1, b"ab"), (1, b"cd")]);
        let ports = |bytes: &[u8]| [0, 2].map(|at| u16::from_be_bytes([bytes[ip + at], bytes[ip + at + 1]]));
        assert_eq!((ports(&found[0].1), ports(&found[1].1)), ([7400, 7401], [7401, 7400]));
        assert!(found.iter().all(|(_, bytes)| bytes[0] >> 4 == if ip == 20 { 4 } else { 6 }));
    }
}

#[test]
fn whole_frames_are_captured_with_what_the_engine_put_before_them() {
    let mut tap = Tap::new(Mirror { raw: true, ..Mirror::default() });
    let capture = tap.control().start(ROOM, "a test").unwrap();
    let mut tx = TxBatch::default();
    for body in [&b"hello"[..], b"", b"you"] {
        tx.frame(Address::Port(1), body, 0);
    }
    assert_eq!(tap.transmit_behind(&mut tx, &mut Lengths).sent, 2);
    let mut seen = 0;
    tap.receive_in_place(16, &mut |_| {
        seen += 1;
        true
    });
    let wanted = [(2, b"<\x05hello".to_vec()), (2, b"<\x03you".to_vec())];
    let back: Vec<_> = wanted.iter().map(|(_, bytes)| (1, bytes.clone())).collect();
    assert_eq!((taken(&capture), seen), ([&wanted[..], &back].concat(), 2));
}

#[test]
fn a_frame_that_there_was_no_room_for_is_captured_once_when_it_is_sent() {
    let mut tap = Tap::new(Mirror { raw: true, room: [0, 0, 1, 0, 0, 0, 2].into(), ..Mirror::default() });
    let capture = tap.control().start(ROOM, "a test").unwrap();
    let mut tx = TxBatch::default();
    for body in [&b"one"[..], b"", b"two", b"three", b"four"] {
        tx.frame(Address::Port(1), body, 0);
    }
    let (mut front, mut counts) = (Counted(0), Vec::new());
    for sent in [0, 1, 0, 3] {
        assert_eq!(tap.transmit_behind(&mut tx, &mut front).sent, sent);
        counts.push(capture.counts().captured);
    }
    assert_eq!(counts, [0, 1, 1, 4]);
    let captured = taken(&capture);
    let bodies: Vec<_> = captured.iter().map(|(_, bytes)| &bytes[2..]).collect();
    assert_eq!(bodies, [&b"one"[..], b"two", b"three", b"four"]);
    // As it was when it was sent, and not as it had been put together before.
    let sent: Vec<_> = tap.inner().frames.iter().map(|(_, bytes)| (2, bytes.clone())).collect();
    assert!(captured == sent && sent[0].1[0] > 4, "{captured:?} {sent:?}");
}

#[test]
fn a_writer_that_does_not_come_costs_frames_of_the_capture_and_nothing_else() {
    let hub = Hub::default();
    let (mut a, mut b) = (Tap::new(hub.port(1)), hub.port(2));
    a.open().unwrap();
    b.open().unwrap();
    let capture = a.control().start(4096, "a test").unwrap();
    let mut rx = RxBatch { free: vec![Slot::owned(0, 65_536)], ..RxBatch::default() };
    for number in 0..100 {
        let mut tx = TxBatch::default();
        tx.frame(Address::Port(2), &pattern(number, 1000), 0);
        assert_eq!(a.transmit(&mut tx).sent, 1);
        assert_eq!(b.receive(&mut rx, None).frames, 1);
        rx.free.extend(rx.taken.drain(..).map(|taken| taken.slot));
    }
    let counts = capture.counts();
    assert_eq!(counts.captured + counts.dropped, 100);
    assert!((4..10).contains(&counts.captured), "{counts:?}");
    assert_eq!(taken(&capture).len() as u64, counts.captured);
    // There is room again.
    let mut tx = TxBatch::default();
    tx.frame(Address::Port(2), b"again", 0);
    a.transmit(&mut tx);
    assert_eq!(taken(&capture), [(2, b"again".to_vec())]);
    let trailer = capture.trailer();
    assert_eq!(
        pcapng::block(&trailer).unwrap().map(|(kind, block)| (kind, pcapng::dropped(block))),
        Some((STATISTICS, Some(counts.dropped)))
    );
}

#[test]
fn one_capture_at_a_time_which_ends_with_its_end_or_the_datapath() {
    let hub = Hub::default();
    let mut tap = Tap::new(hub.port(1));
    tap.open().unwrap();
    let control = tap.control();
    let first = control.start(ROOM, "a test").unwrap();
    assert_eq!(control.start(ROOM, "a test").err(), Some(Refused::Busy));
    let by = || control.running().map(|running| running.by);
    assert!(control.is_on() && by().as_deref() == Some("a test"));
    first.stop();
    assert!(!control.is_on() && by().is_none());
    let second = control.start(ROOM, "another").unwrap();
    // What the first one's end does is no end of the second.
    drop(first);
    assert!(control.is_on() && by().as_deref() == Some("another"));
    assert_eq!(second.next(Duration::ZERO), Ok(None));
    let header = second.header("a test", "hub", "port 1");
    assert_eq!(pcapng::block(&header).unwrap().map(|(kind, _)| kind), Some(SECTION));
    drop(tap);
    assert_eq!((second.next(Duration::ZERO), control.running()), (Err(Ended), None));
}

#[test]
fn who_finds_a_capture_busy_costs_it_no_frame() {
    use std::sync::atomic::{AtomicBool, Ordering};
    const FRAMES: u64 = 20_000;
    let mut tap = Tap::new(Mirror { own: Some(Address::Port(1)), ..Mirror::default() });
    let control = tap.control();
    let first = control.start(ROOM, "the first").unwrap();
    first.stop();
    let capture = control.start(ROOM, "a test").unwrap();
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (begun, done) = (&begun, &done);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(control.start(ROOM, "another").err(), Some(Refused::Busy));
                first.stop();
                begun.store(true, Ordering::Relaxed);
            }
        });
        while !begun.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        for number in 0..FRAMES {
            let mut tx = TxBatch::default();
            tx.frame(Address::Port(2), &pattern(number, 64), 0);
            tap.transmit(&mut tx);
        }
        done.store(true, Ordering::Relaxed);
    });
    let counts = capture.counts();
    assert_eq!((counts.captured, counts.dropped), (FRAMES, 0));
}
