//! What a packet engine needs: headers written in front of frames in the UMEM, and received frames shown where they lie.

mod common;

use std::time::{Duration, Instant};

use common::{Cable, config, mac};
use insane_datapath::batch::{Outcome, TxBatch, TxFrame};
use insane_datapath::conformance::pattern;
use insane_datapath::memory::Piece;
use insane_datapath::{Address, Datapath};
use insane_datapath_xdp::{Attach, Body, Front, MOST_FRONT, XdpDatapath};

/// An Ethernet header, a number and a sum over what follows: what an engine with checksums does.
struct Engine {
    before: usize,
    count: u8,
}

fn sum<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u32 {
    parts.flatten().fold(7, |sum, byte| sum.rotate_left(5) ^ u32::from(*byte))
}

impl Front for Engine {
    fn room(&mut self, frame: &TxFrame<'_>, _head: &[u8]) -> Result<usize, Outcome> {
        match frame.to {
            Address::Port(1) => Ok(self.before),
            _ => Err(Outcome::Unreachable),
        }
    }

    fn write(&mut self, frame: &TxFrame<'_>, front: &mut [u8], body: &Body<'_>) -> Result<(), Outcome> {
        assert_eq!(body.parts().map(<[u8]>::len).sum::<usize>(), frame.len());
        if frame.cookie == 13 {
            return Err(Outcome::Failed);
        }
        front.fill(self.count);
        front[..14].copy_from_slice(&[&mac(1)[..], &mac(0), &[0x88, 0xb5]].concat());
        front[14..18].copy_from_slice(&sum(body.parts()).to_be_bytes());
        self.count += 1;
        Ok(())
    }
}

/// Receives where frames lie, until there are so many; copies of them.
fn receive(xdp: &mut XdpDatapath, count: usize) -> Vec<Vec<u8>> {
    let (mut got, start) = (Vec::new(), Instant::now());
    while got.len() < count {
        xdp.receive_with(3, |received| {
            assert_eq!((received.queue, received.from()), (0, Address::Ethernet(mac(0))));
            let whole = received.parts().collect::<Vec<_>>().concat();
            assert_eq!((received.len(), received.is_empty()), (whole.len(), false));
            assert!(whole.starts_with(received.first()));
            // Any range of it can be copied, whatever buffers it lies in.
            for range in [0..whole.len(), 18..whole.len(), 5..30, 3000..5000, whole.len()..whole.len() + 9] {
                let mut copy = vec![0; range.len()];
                let copied = received.copy_to(range.clone(), &mut copy);
                let expected = &whole[range.start.min(whole.len())..range.end.min(whole.len())];
                assert_eq!((&copy[..copied], copied), (expected, expected.len()));
            }
            got.push(whole);
        });
        assert!(start.elapsed() < Duration::from_secs(20), "of {count} frames {} have come", got.len());
    }
    got
}

#[test]
fn headers_stand_in_front_and_payload_is_summed_where_it_is_sent_from() {
    for (mtu, before) in [(1500, 18), (1500, 42), (9000, 18), (9000, 62), (9000, MOST_FRONT)] {
        let Some(cable) = Cable::new(mtu, 1) else { return };
        let on = config(Attach::NativeOrGeneric);
        let (mut a, mut b) = (cable.open(0, &on), cable.open(1, &on));
        let limit = a.frame_limit(Address::Port(1)) - before;
        // Around the borders of buffers, in head alone, in piece alone and in both.
        let around: Vec<usize> = [4096, 8192].iter().flat_map(|at| (at - before - 2)..(at - before + 2)).collect();
        let lens =
            [0, 1, 41, 42, 43, 100, limit - 1, limit].into_iter().chain(around.into_iter().filter(|len| *len <= limit));
        let payload = pattern(3, limit);
        let mut expected = Vec::new();
        let mut tx = TxBatch::default();
        for (n, len) in lens.enumerate() {
            let head = [0, len / 2, len][n % 3];
            let start = tx.buffer().len();
            tx.buffer().extend_from_slice(&payload[..head]);
            tx.commit(Address::Port(1), start, Some(Piece::of(&payload[head..len])), 0);
            expected.push(payload[..len].to_vec());
        }
        let mut engine = Engine { before, count: 0 };
        assert_eq!(a.transmit_behind(&mut tx, &mut engine).sent, expected.len());
        for (n, (frame, body)) in receive(&mut b, expected.len()).iter().zip(&expected).enumerate() {
            let (front, rest) = frame.split_at(before);
            assert_eq!(rest[..body.len()], body[..], "frame {n} with {} bytes behind {before}", body.len());
            // Ethernet's least frame, filled up with zeros.
            assert_eq!(frame.len(), (before + body.len()).max(60));
            assert!(rest[body.len()..].iter().all(|byte| *byte == 0));
            assert_eq!(front[14..18], sum([&body[..]].into_iter()).to_be_bytes());
            assert!(front[18..].iter().all(|byte| *byte == n as u8));
        }
    }
}

#[test]
fn what_an_engine_refuses_is_refused_and_costs_no_buffer() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    let on = config(Attach::NativeOrGeneric);
    let (mut a, mut b) = (cable.open(0, &on), cable.open(1, &on));
    let free = a.frames().free;
    for _ in 0..2000 {
        let mut tx = TxBatch::default();
        let bytes = pattern(1, 1500);
        for (to, len, cookie) in [(2, 50, 0), (1, 50, 13), (1, 1497, 0), (1, 50, 1)] {
            tx.frame(Address::Port(to), &bytes[..len], cookie);
        }
        let mut engine = Engine { before: 18, count: 0 };
        let report = a.transmit_behind(&mut tx, &mut engine);
        assert_eq!((report.sent, report.refused, report.pending), (1, 3, 0));
        let outcomes: Vec<Outcome> = tx.frames().iter().map(|frame| frame.outcome).collect();
        assert_eq!(outcomes, [Outcome::Unreachable, Outcome::Failed, Outcome::TooLarge, Outcome::Sent]);
        receive(&mut b, 1);
    }
    let counts = a.frames();
    assert_eq!((counts.free + counts.completion, counts.sum()), (free, on.frames), "{counts:?}");
    let mut tx = TxBatch::default();
    tx.frame(Address::Port(1), b"x", 0);
    let mut greedy = Engine { before: MOST_FRONT + 1, count: 0 };
    assert_eq!(a.transmit_behind(&mut tx, &mut greedy).refused, 1);
}

#[test]
fn what_is_no_ethernet_frame_never_reaches_the_kernel() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    let on = config(Attach::NativeOrGeneric);
    let (mut a, mut b) = (cable.open(0, &on), cable.open(1, &on));
    let frame = [&mac(1)[..], &mac(0), &[0x88, 0xb5], b"hello"].concat();
    // Every buffer has been used for something that must not be sent again as filling.
    let mut secret = frame.clone();
    secret.resize(200, 0xee);
    let mut tx = TxBatch::default();
    (0..on.frames / 2).for_each(|_| tx.frame(Address::Ethernet(mac(1)), &secret, 0));
    assert_eq!(a.transmit(&mut tx).pending, 0);
    let mut last = Instant::now();
    while last.elapsed() < Duration::from_millis(200) {
        if b.receive_with(64, |_| {}).frames > 0 {
            last = Instant::now();
        }
    }
    let mut tx = TxBatch::default();
    for len in 0..14 {
        tx.frame(Address::Ethernet(mac(1)), &frame[..len], 0);
    }
    tx.frame(Address::Ip("10.98.0.2:7".parse().expect("an address")), &frame, 0);
    tx.frame(Address::Port(1), &frame, 0);
    for len in [14, 15, 19] {
        tx.frame(Address::Ethernet(mac(1)), &frame[..len], 0);
    }
    let report = a.transmit(&mut tx);
    assert_eq!((report.sent, report.refused), (3, 16));
    assert!(tx.frames()[..14].iter().all(|frame| frame.outcome == Outcome::Failed));
    assert!(tx.frames()[14..16].iter().all(|frame| frame.outcome == Outcome::Unreachable));
    for (got, len) in receive(&mut b, 3).iter().zip([14, 15, 19]) {
        let mut expected = frame[..len].to_vec();
        expected.resize(60, 0);
        assert_eq!(*got, expected);
    }
}
