//! The wrappers that fit every datapath, over this one: taps see all and change nothing, and a fault injector does what it counts.

use std::time::Instant;

use super::{
    Form, PATIENCE, Quiet, Reopen, Rig, all_but_outcomes, batch, closing_ends_it, every_slot_comes_back, exchange,
    frames_arrive_whole, nothing_waits, order_is_kept_and_nothing_repeated, pattern, payload_is_gathered, target,
};
use crate::batch::TxBatch;
use crate::fault::{Faulty, Injected, Plan};
use crate::tap::Tap;

/// More than any check here captures.
const ROOM: usize = 64 << 20;

/// What goes through both taps, counted.
const FRAMES: u64 = 300;

/// Runs the suite as [`all_but_outcomes`] does, both ends behind taps that capture.
///
/// # Panics
/// When the datapath breaks its contract there, or frames are missing in the captures.
pub fn all_behind_a_tap(mut rig: impl FnMut() -> Rig, reopen: Reopen<'_>) {
    // A capture ends when it is dropped: they are kept until the end.
    let mut captures = Vec::new();
    let mut tapped = || {
        let Rig { a, b } = rig();
        let [a, b] = [a, b].map(Tap::new);
        captures.extend([&a, &b].map(|tap| tap.control().start(ROOM, "the suite").expect("nobody else captures")));
        Rig { a: Box::new(a), b: Box::new(b) }
    };
    all_but_outcomes(&mut tapped, reopen);
    let mut last = tapped();
    let (to, form, mut tx) = (target(&last), Form::of(&last), TxBatch::default());
    (0..FRAMES).for_each(|number| form.add(&mut tx, to, &pattern(number, 200), 0));
    exchange(&mut last, &mut tx, FRAMES as usize);
    // The end that receives may have been sent something else.
    let [.., a, b] = &captures[..] else { panic!("both ends are captured") };
    let captured = [a, b].map(|capture| capture.counts().captured);
    assert!(captured[0] == FRAMES && captured[1] >= FRAMES, "{captured:?} of {FRAMES} frames were captured");
    assert_eq!(captures.iter().map(|capture| capture.counts().dropped).sum::<u64>(), 0);
}

/// A datapath behind a fault injector that injects nothing passes the checks; one that injects does what it counts.
///
/// # Panics
/// When the datapath breaks its contract there, or what arrives does not fit what was injected.
pub fn all_behind_a_fault_injector(mut rig: impl FnMut() -> Rig, reopen: Reopen<'_>) {
    let mut faulty = |plan| {
        let Rig { a, b } = rig();
        let a = Faulty::new(a, plan, 7);
        let control = a.control();
        (Rig { a: Box::new(a), b }, control)
    };
    for check in [
        frames_arrive_whole,
        order_is_kept_and_nothing_repeated,
        payload_is_gathered,
        every_slot_comes_back,
        nothing_waits,
    ] {
        check(&mut faulty(Plan::default()).0);
    }
    closing_ends_it(faulty(Plan::default()).0, reopen);
    let plan = Plan { lose_ppm: 50_000, repeat_ppm: 50_000, delay_ppm: 50_000, change_ppm: 50_000, cut: false };
    let (mut rig, control) = faulty(plan);
    let (whole, spoiled) = through(&mut rig, 4000);
    let is = control.injected();
    assert_eq!((is.seen, is.refused), (4000, 0), "{is:?}");
    fits(&is, &whole, spoiled);
    control.cut(true);
    let (whole, spoiled) = through(&mut rig, 50);
    assert_eq!((whole.len() as u64 + spoiled, control.injected().seen), (0, 4050), "a cut link carries nothing");
}

/// What arrived is what was sent less what was lost and more what was repeated; at most the eight frames at the end are still held back.
/// A change may hit an address or a length, and such a frame does not arrive.
fn fits(is: &Injected, whole: &[u64], spoiled: u64) {
    for count in [is.lost, is.repeated, is.delayed, is.changed] {
        assert!((80..400).contains(&count), "{is:?}");
    }
    let expected = is.seen - is.lost + is.repeated - is.changed;
    let came = whole.len() as u64;
    // A changed number can by chance make another frame's pattern, and a change of what fills a frame up is none.
    assert!((expected - 8..=expected + 10).contains(&came), "{came} of {expected} whole frames came: {is:?}");
    assert!(spoiled <= is.changed && (spoiled > 0), "{spoiled} spoiled frames came: {is:?}");
    assert!(whole.windows(2).any(|pair| pair[0] > pair[1]), "nothing was reordered");
}

/// Sends numbered frames one by one. The numbers of those that came whole, in their order, and how many others came.
fn through(rig: &mut Rig, frames: u64) -> (Vec<u64>, u64) {
    const LEN: usize = 64;
    let (to, form) = (target(rig), Form::of(rig));
    let sent = |number: u64| {
        let mut bytes = Vec::new();
        form.begin(&mut bytes, LEN);
        [bytes, pattern(number, LEN)].concat()
    };
    let (mut rx, start) = (batch(&*rig.b, 16), Instant::now());
    let (mut whole, mut spoiled, mut next, mut quiet) = (Vec::new(), 0, 0, Quiet::new());
    while next < frames || !quiet.is_over() {
        let sends = next < frames;
        if sends {
            let mut tx = TxBatch::default();
            form.add(&mut tx, to, &pattern(next, LEN), 0);
            next += 1;
            while !tx.is_done() {
                rig.a.transmit(&mut tx);
            }
        } else {
            // Hands over what the datapath had no room for.
            rig.a.transmit(&mut TxBatch::default());
        }
        quiet.note(rig.b.receive(&mut rx, None).frames > 0 || sends);
        for taken in rx.taken.drain(..) {
            for frame in taken.frames() {
                let at = form.head_bytes();
                let number = frame.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
                match number {
                    Some(number) if *frame == sent(number) => whole.push(number),
                    _ => spoiled += 1,
                }
            }
            rx.free.push(taken.slot);
        }
        assert!(start.elapsed() < PATIENCE, "something comes for ever");
    }
    (whole, spoiled)
}
