//! The loopback, bare and behind a fault injector that injects nothing, passes the suite; the injector does what it says.

use insane_datapath::batch::{RxBatch, TxBatch};
use insane_datapath::conformance::{self as suite, Rig, all, pattern};
use insane_datapath::fault::{Faulty, Plan};
use insane_datapath::loopback::Hub;
use insane_datapath::memory::Slot;
use insane_datapath::{Address, Datapath};

#[test]
fn loopback_conforms() {
    all(|| {
        let hub = Hub::default();
        let (mut a, mut b) = (hub.port(1), hub.port(2));
        a.open().unwrap();
        b.open().unwrap();
        Rig { a: Box::new(a), b: Box::new(b) }
    });
}

#[test]
fn a_fault_injector_that_injects_nothing_conforms() {
    suite::all_behind_a_fault_injector(
        || {
            let hub = Hub::default();
            let (mut a, mut b) = (hub.port(1), hub.port(2));
            a.open().unwrap();
            b.open().unwrap();
            Rig { a: Box::new(a), b: Box::new(b) }
        },
        &mut suite::open_again,
    );
}

/// Sends numbered frames through a plan and returns the numbers that arrived whole, with what was injected.
fn through(plan: Plan, seed: u64, frames: u64) -> (Vec<u64>, u64, insane_datapath::fault::Injected) {
    let hub = Hub::default();
    let (mut a, mut b) = (Faulty::new(hub.port(1), plan, seed), hub.port(2));
    a.open().unwrap();
    b.open().unwrap();
    let mut rx = RxBatch { free: (0..16).map(|id| Slot::owned(id, 65_536)).collect(), ..RxBatch::default() };
    let (mut whole, mut spoiled) = (Vec::new(), 0);
    for number in 0..frames {
        let mut tx = TxBatch::default();
        tx.frame(Address::Port(2), &pattern(number, 64), 0);
        assert_eq!(a.transmit(&mut tx).sent, 1);
        while b.receive(&mut rx, None).frames > 0 {
            for taken in rx.taken.drain(..) {
                let frame = taken.frames().next().unwrap();
                let claimed = u64::from_le_bytes(frame[..8].try_into().unwrap());
                if frame == pattern(claimed, 64) {
                    whole.push(claimed)
                } else {
                    spoiled += 1
                }
                rx.free.push(taken.slot);
            }
        }
    }
    (whole, spoiled, a.control().injected())
}

#[test]
fn faults_are_counted_exactly_and_repeat_by_seed() {
    let plan = Plan { lose_ppm: 50_000, repeat_ppm: 50_000, delay_ppm: 50_000, change_ppm: 50_000, cut: false };
    let (whole, spoiled, injected) = through(plan, 7, 5000);
    assert_eq!(injected.seen, 5000);
    for count in [injected.lost, injected.repeated, injected.delayed, injected.changed] {
        assert!((100..500).contains(&count), "{injected:?}");
    }
    // At most the eight frames at the end are still held back.
    let arrived = whole.len() as u64 + spoiled;
    let expected = injected.seen - injected.lost + injected.repeated;
    assert!(arrived <= expected && expected - arrived <= 8, "{arrived} of {expected}");
    // A changed number can by chance make another frame's pattern; of some 30 changed numbers hardly more than one does.
    assert!((injected.changed - 10..=injected.changed).contains(&spoiled), "{spoiled} of {injected:?}");
    assert!(whole.windows(2).any(|pair| pair[0] > pair[1]), "nothing was reordered");
    assert_eq!(through(plan, 7, 5000), (whole.clone(), spoiled, injected));
    assert_ne!(through(plan, 8, 5000).0, whole);
}

#[test]
fn a_cut_link_carries_nothing_until_it_is_mended() {
    let (whole, _, injected) = through(Plan { cut: true, ..Plan::default() }, 1, 50);
    assert_eq!((whole.len(), injected.cut, injected.seen), (0, 50, 50));
}

/// What has arrived.
fn arrived(b: &mut dyn Datapath) -> u64 {
    let mut rx = RxBatch { free: (0..16).map(|id| Slot::owned(id, 65_536)).collect(), ..RxBatch::default() };
    let mut count = 0;
    while b.receive(&mut rx, None).frames > 0 {
        count += rx.taken.len() as u64;
        rx.free.extend(rx.taken.drain(..).map(|taken| taken.slot));
    }
    count
}

#[test]
fn what_is_held_back_is_cut_with_the_link_lost_with_its_end_and_counted() {
    let hub = Hub::default();
    let plan = Plan { delay_ppm: 1_000_000, ..Plan::default() };
    let (mut a, mut b) = (Faulty::new(hub.port(1), plan, 3), hub.port(2));
    a.open().unwrap();
    b.open().unwrap();
    let control = a.control();
    let mut send = |a: &mut dyn Datapath, to: u32| {
        let mut tx = TxBatch::default();
        (0..100).for_each(|_| tx.frame(Address::Port(to), b"frame", 0));
        a.transmit(&mut tx);
        arrived(&mut b)
    };
    let mut came = send(&mut a, 2);
    let held = 100 - came;
    assert!(held > 0, "nothing is held back: the test would show nothing");
    control.cut(true);
    assert_eq!((send(&mut a, 2), control.injected().cut), (0, 100 + held));
    control.cut(false);
    // What the technology refuses afterwards is known too: nobody is at that port.
    control.set(Plan::default());
    came += send(&mut a, 9);
    assert_eq!((came, control.injected().refused), (100 - held, 100));
    control.set(plan);
    came += send(&mut a, 2);
    a.close();
    let is = control.injected();
    assert!(is.lost > 0, "{is:?}");
    assert_eq!(is.seen, came + is.lost + is.cut + is.refused, "{is:?}");
}
