//! What every datapath must bear: bursts, sleepers, ends that close in the middle of it, links that go down.

use std::time::{Duration, Instant};

use super::{Form, PATIENCE, Quiet, Rig, batch, collect, counts, exchange, pattern, target, wait_readable};
use crate::batch::{Outcome, TxBatch};
use crate::{Address, Armed, Datapath};

/// One end of a [`Rig`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The one that sends.
    A,
    /// The one that receives.
    B,
}

/// Opens an end again, where it belongs.
pub type Reopen<'a> = &'a mut dyn FnMut(End, &mut dyn Datapath);

/// The number that a frame of the suite has, checked against its pattern.
fn number(body: &[u8]) -> u64 {
    let number = u64::from_le_bytes(body[..8].try_into().expect("a frame with a number"));
    assert!(*body == pattern(number, body.len()), "frame {number} is not what was sent");
    number
}

/// Receives until nothing comes any more; the numbers of what came.
fn drain(rig: &mut Rig) -> Vec<u64> {
    let (mut rx, form) = (batch(&*rig.b, 16), Form::of(rig));
    let (mut numbers, mut quiet, start) = (Vec::new(), Quiet::new(), Instant::now());
    while !quiet.is_over() {
        // Whoever has sent goes on being asked, as by a runtime: what it has taken may wait for an answer.
        rig.a.transmit(&mut TxBatch::default());
        quiet.note(rig.b.receive(&mut rx, None).frames > 0);
        for taken in rx.taken.drain(..) {
            numbers.extend(taken.frames().map(|frame| number(&form.unwrap(frame))));
            rx.free.push(taken.slot);
        }
        assert!(start.elapsed() < PATIENCE, "something comes for ever");
    }
    assert_eq!(rx.free.len(), 16, "slots are missing");
    numbers
}

/// Sends a frame again and again until one arrives: a link or a peer may take its time to be there.
fn reach(rig: &mut Rig, first: u64) {
    let (to, form) = (target(rig), Form::of(rig));
    let (mut rx, start, mut next) = (batch(&*rig.b, 16), Instant::now(), first);
    loop {
        let mut tx = TxBatch::default();
        form.add(&mut tx, to, &pattern(next, 100), 0);
        next += 1;
        rig.a.transmit(&mut tx);
        let sent = Instant::now();
        while sent.elapsed() < Duration::from_millis(10) {
            rig.b.receive(&mut rx, None);
            for taken in rx.taken.drain(..) {
                let numbers: Vec<u64> = taken.frames().map(|frame| number(&form.unwrap(frame))).collect();
                rx.free.push(taken.slot);
                if numbers.iter().any(|number| *number >= first) {
                    drain(rig);
                    return;
                }
            }
        }
        assert!(start.elapsed() < PATIENCE, "it is not reached any more: {}", counts(rig));
    }
}

/// Exchanges frames of which each must arrive.
fn exchange_some(rig: &mut Rig, first: u64, count: u64) {
    let (to, form) = (target(rig), Form::of(rig));
    let mut tx = TxBatch::default();
    for number in first..first + count {
        form.add(&mut tx, to, &pattern(number, 200), 0);
    }
    let got: Vec<u64> = exchange(rig, &mut tx, count as usize).iter().map(|body| number(body)).collect();
    assert_eq!(got, (first..first + count).collect::<Vec<_>>());
}

/// Every sleep ends with a frame, whether it comes before or after arming.
///
/// # Panics
/// When the datapath breaks its contract; as all of these.
pub fn a_sleeper_is_woken_every_time(rig: &mut Rig) {
    let (to, form) = (target(rig), Form::of(rig));
    let Some(handle) = rig.b.wake_handle() else { return };
    let handle = handle.try_clone_to_owned().expect("a handle can be duplicated");
    let (go, goes) = std::sync::mpsc::channel();
    let (tell, told) = std::sync::mpsc::channel();
    let sleeper = std::thread::spawn(move || {
        while goes.recv().is_ok() {
            let _ = tell.send(wait_readable(&handle));
        }
    });
    for round in 0..300u64 {
        let mut tx = TxBatch::default();
        form.add(&mut tx, to, &pattern(round, 64), 0);
        let early = round % 3 == 0;
        while early && !tx.is_done() {
            rig.a.transmit(&mut tx);
        }
        let armed = rig.b.arm();
        assert_ne!(armed, Armed::Poll, "there is a handle");
        if armed == Armed::Sleep {
            go.send(()).expect("the sleeper is there");
            if round % 3 == 1 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        while !tx.is_done() {
            rig.a.transmit(&mut tx);
        }
        if armed == Armed::Sleep {
            assert_eq!(told.recv_timeout(PATIENCE), Ok(true), "the sleeper was not woken in round {round}");
        }
        assert_eq!(collect(rig, 1), [pattern(round, 64)]);
    }
    drop(go);
    sleeper.join().expect("the sleeper ends");
}

/// More than all rings and buffers hold: what arrives is whole, in order and not repeated, and afterwards all is as before.
pub fn bursts_beyond_all_room_do_no_harm(rig: &mut Rig) {
    const FRAMES: u64 = 20_000;
    let (to, form) = (target(rig), Form::of(rig));
    for round in 0..3 {
        let mut tx = TxBatch::default();
        for number in 0..FRAMES {
            form.add(&mut tx, to, &pattern(number, 64 + number as usize % 100), 0);
        }
        // As far as it goes without anybody receiving.
        let (mut idle, mut before) = (0, tx.pending().len());
        while !tx.is_done() && idle < 100 {
            rig.a.transmit(&mut tx);
            idle = if tx.pending().len() < before { 0 } else { idle + 1 };
            before = tx.pending().len();
        }
        let went = FRAMES as usize - tx.pending().len();
        let numbers = drain(rig);
        assert!(!numbers.is_empty() && numbers.len() <= went, "{} of {went} frames came", numbers.len());
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "frames were reordered or repeated");
        exchange_some(rig, FRAMES * (round + 2), 300);
    }
}

/// Sends `batches` of ten frames that may be lost: no call fails.
fn send_to_nobody(rig: &mut Rig, (to, form): (Address, Form), first: u64, batches: u32) {
    for _ in 0..batches {
        let mut tx = TxBatch::default();
        for number in 0..10 {
            form.add(&mut tx, to, &pattern(first + number, 100), 0);
        }
        rig.a.transmit(&mut tx);
        assert!(tx.frames().iter().all(|frame| frame.outcome != Outcome::Failed), "{:?}", tx.frames()[0].outcome);
    }
}

/// A peer that closes and opens again is reached again; what is sent to it meanwhile holds nothing up.
pub fn a_peer_that_restarts_is_reached_again(rig: &mut Rig, reopen: Reopen<'_>) {
    for round in 0..5u64 {
        let first = round * 1_000_000;
        exchange_some(rig, first, 50);
        let (to, form) = (target(rig), Form::of(rig));
        rig.b.close();
        send_to_nobody(rig, (to, form), first + 1000, 20);
        reopen(End::B, &mut *rig.b);
        reach(rig, first + 2000);
    }
    exchange_some(rig, u64::MAX / 2, 50);
}

/// Either end may be closed with frames on their way: none is sent afterwards, every slot stays the caller's, and it opens
/// again.
pub fn closing_under_load_ends_it(rig: &mut Rig, reopen: Reopen<'_>) {
    for round in 0..6u64 {
        let first = round * 1_000_000;
        let (to, form) = (target(rig), Form::of(rig));
        let mut rx = batch(&*rig.b, 16);
        let mut tx = TxBatch::default();
        for number in 0..5000 {
            form.add(&mut tx, to, &pattern(first + number, 700), 0);
        }
        for _ in 0..=round {
            rig.a.transmit(&mut tx);
            rig.b.receive(&mut rx, None);
        }
        let end = if round % 2 == 0 { End::A } else { End::B };
        if end == End::A {
            rig.a.close();
            let pending = tx.pending().len();
            let report = rig.a.transmit(&mut tx);
            assert_eq!((report.sent, report.refused, report.pending), (0, pending, 0));
        } else {
            rig.b.arm();
            rig.b.close();
            rig.a.transmit(&mut tx);
            assert_eq!(rig.b.receive(&mut rx, None).frames, 0);
        }
        let mut slots: Vec<u64> =
            rx.free.iter().chain(rx.taken.iter().map(|taken| &taken.slot)).map(crate::memory::Slot::id).collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..16).collect::<Vec<_>>(), "a slot is missing or twice there");
        match end {
            End::A => reopen(end, &mut *rig.a),
            End::B => reopen(end, &mut *rig.b),
        }
        reach(rig, first + 10_000);
    }
    exchange_some(rig, u64::MAX / 2, 50);
}

/// While a link is down frames are lost or refused, and no call waits; when it is up again they arrive again.
pub fn a_link_that_went_down_comes_back(rig: &mut Rig, set_up: &mut dyn FnMut(bool)) {
    for round in 0..3u64 {
        let first = round * 1_000_000;
        exchange_some(rig, first, 50);
        let (to, form) = (target(rig), Form::of(rig));
        set_up(false);
        send_to_nobody(rig, (to, form), first + 1000, 50);
        let armed = rig.b.arm();
        assert!(rig.b.wake_handle().is_none() || armed != Armed::Poll);
        set_up(true);
        reach(rig, first + 2000);
    }
    exchange_some(rig, u64::MAX / 2, 50);
}
