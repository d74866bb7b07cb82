use super::super::Place;
use super::super::tests::{ENTRIES, emit_one, source_and_sink};
use super::*;
use crate::faults::Injected;
use insane_shm::link::{Consumer, Fate};

const HOUR: Duration = Duration::from_secs(3600);

fn inject(tx: &mut Tx, plan: Plan, seed: u64) -> Control {
    let control = Control::default();
    control.set(plan);
    tx.spoil(0, Faults::new(control.clone(), seed)).unwrap();
    control
}

/// The numbers of what has come.
fn take_all(consumer: &mut Consumer) -> Vec<u64> {
    let mut came = Vec::new();
    while let Some(delivery) = consumer.poll().unwrap() {
        came.push(delivery.descriptor.sequence);
        consumer.release(&delivery.descriptor, Fate::AsCounted);
    }
    consumer.settle();
    came
}

fn count(tx: &Tx, count: Count) -> u64 {
    tx.sources[0].as_ref().unwrap().routes[0].flows[0].cell.value(count)
}

/// The numbers of what is lost of many messages, the first `without` of them without a plan.
fn lost(seed: u64, without: u64) -> Vec<u64> {
    const MESSAGES: u64 = 5000;
    let (mut tx, mut consumer) = source_and_sink();
    let lossy = Plan { lose_ppm: 50_000, ..Plan::default() };
    let control = inject(&mut tx, Plan::default(), seed);
    let mut lost = Vec::new();
    for n in 1..=MESSAGES {
        if n == without + 1 {
            control.set(lossy);
        }
        assert_eq!(emit_one(&mut tx, 0), n);
        if take_all(&mut consumer).is_empty() {
            lost.push(n);
        }
    }
    let injected = control.injected();
    assert_eq!(injected, Injected { seen: MESSAGES, lost: lost.len() as u64, ..Injected::default() });
    assert_eq!((count(&tx, Count::Intended), count(&tx, Count::SinkFull)), (MESSAGES, lost.len() as u64));
    lost
}

#[test]
fn a_seed_decides_which_messages_are_lost_whatever_plan_there_was_before() {
    let all = lost(7, 0);
    assert!((150..350).contains(&all.len()), "{} of 5000 at five in a hundred", all.len());
    assert_eq!(all, lost(7, 0));
    assert_ne!(all, lost(8, 0));
    let later: Vec<u64> = all.into_iter().filter(|n| *n > 1000).collect();
    assert_eq!(later, lost(7, 1000));
}

#[test]
fn what_is_held_back_has_its_place_on_the_link_and_goes_in_order() {
    let (mut tx, mut consumer) = source_and_sink();
    let late = Plan { delay_ppm: 1_000_000, delay: HOUR, ..Plan::default() };
    let control = inject(&mut tx, late, 1);
    assert!(tx.emit_small(0, b"short cut").is_none());
    emit_one(&mut tx, 0);
    control.set(Plan::default());
    // What follows would be in time and waits all the same.
    for n in 2..=u64::from(ENTRIES) {
        assert!(tx.has_room(0, Place::NONE), "{n}");
        emit_one(&mut tx, 0);
    }
    assert!(!tx.has_room(0, Place::NONE));
    emit_one(&mut tx, 0);
    assert_eq!((count(&tx, Count::SinkFull), take_all(&mut consumer)), (1, vec![]));
    let number = tx.sources[0].as_ref().unwrap().number;
    tx.let_go(number, Instant::now());
    assert_eq!(take_all(&mut consumer), []);
    control.cut(true);
    tx.let_go(number, Instant::now() + 2 * HOUR);
    assert_eq!(take_all(&mut consumer), []);
    control.cut(false);
    tx.let_go(number, Instant::now() + 2 * HOUR);
    assert_eq!(take_all(&mut consumer), (1..=u64::from(ENTRIES)).collect::<Vec<_>>());
    let seen = u64::from(ENTRIES) + 1;
    assert_eq!(control.injected(), Injected { seen, delayed: 1, ..Injected::default() });
    // Nothing is set aside any more.
    assert!(tx.has_room(0, Place::NONE));
    assert_eq!(tx.links[0].as_ref().unwrap().reserved, 0);
}

#[test]
fn what_is_held_back_goes_when_its_flow_ends_and_is_unconfirmed_when_its_sink_is_lost() {
    for lost in [false, true] {
        let (mut tx, mut consumer) = source_and_sink();
        let late = Plan { delay_ppm: 1_000_000, delay: HOUR, ..Plan::default() };
        inject(&mut tx, late, 1);
        (1..=3).for_each(|n| assert_eq!(emit_one(&mut tx, 0), n));
        assert_eq!(take_all(&mut consumer), []);
        let flow = &tx.sources[0].as_ref().unwrap().routes[0].flows[0];
        let (cell, sink) = (flow.cell.clone(), flow.sink);
        if lost {
            tx.dissolve(0);
        } else {
            tx.end_flow(0, 0, sink, false).unwrap();
            assert_eq!(take_all(&mut consumer), [1, 2, 3]);
        }
        let unconfirmed = if lost { 3 } else { 0 };
        assert_eq!((cell.value(Count::Intended), cell.value(Count::Unconfirmed)), (3, unconfirmed));
        let faults = tx.sources[0].as_ref().unwrap().faults.as_ref().unwrap();
        assert!(faults.links.is_empty(), "{faults:?}");
    }
}

#[test]
fn who_asks_for_room_waits_instead_of_losing() {
    let (mut tx, mut consumer) = source_and_sink();
    let plan = Plan { lose_ppm: 300_000, delay: Duration::ZERO, ..Plan::default() };
    let control = inject(&mut tx, plan, 5);
    let mut full = 0;
    for n in 1..=1000 {
        while !tx.has_room(0, Place::NONE) {
            full += 1;
        }
        assert_eq!((emit_one(&mut tx, 0), take_all(&mut consumer)), (n, vec![n]));
    }
    assert!(full > 200, "{full}");
    assert_eq!(control.injected(), Injected { seen: 1000, full, ..Injected::default() });
    // Once for a message, though it is asked often.
    control.set(Plan { lose_ppm: 1_000_000, delay: HOUR, ..plan });
    (0..10).for_each(|_| assert!(!tx.has_room(0, Place::NONE)));
    assert_eq!(control.injected().full, full + 1);
    control.set(Plan::default());
    assert!(tx.has_room(0, Place::NONE));
}

#[test]
fn links_to_the_runtime_are_left_alone() {
    let (mut tx, mut consumer) = source_and_sink();
    tx.links[0].as_mut().unwrap().network = true;
    let control = inject(&mut tx, Plan { lose_ppm: 1_000_000, cut: true, ..Plan::default() }, 1);
    assert!(tx.has_room(0, Place::NONE) && tx.full_links(0, Place::NONE).is_empty());
    assert_eq!((emit_one(&mut tx, 0), take_all(&mut consumer)), (1, vec![1]));
    assert_eq!(control.injected(), Injected::default());
}

#[test]
fn the_thread_that_lets_messages_go_ends_with_the_plan() {
    let (mut tx, _consumer) = source_and_sink();
    let control = inject(&mut tx, Plan::default(), 1);
    let timer = std::thread::spawn(move || control.keep_time(&std::sync::Weak::new(), 0));
    inject(&mut tx, Plan::default(), 2);
    timer.join().unwrap();
}
