//! Datapaths on polling threads: the suite however the thread waits, what is refused late, sleepers, slots, and the end.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use insane_datapath::batch::{Outcome, RxBatch, TxBatch};
use insane_datapath::conformance::{self as suite, Rig, pattern};
use insane_datapath::loopback::Hub;
use insane_datapath::memory::{Piece, Slot};
use insane_datapath::thread::{OnThread, PollingThread, Settings, Waiting};
use insane_datapath::{Address, Armed, Datapath, fault};

const PATIENCE: Duration = Duration::from_secs(20);

const ADAPTIVE: Waiting = Waiting::Adaptive { least: Duration::ZERO, most: Duration::from_micros(50) };

fn thread(waiting: Waiting) -> PollingThread {
    PollingThread::start(Settings { name: "polls".into(), core: None, waiting }).unwrap()
}

/// A port of a hub, open, on a thread.
fn port(hub: &Hub, number: u32, thread: &PollingThread) -> OnThread {
    let mut port = OnThread::new(thread, Box::new(hub.port(number))).unwrap();
    port.open().unwrap();
    port
}

fn rx() -> RxBatch {
    RxBatch { free: (0..16).map(|id| Slot::owned(id, 65_536)).collect(), ..RxBatch::default() }
}

/// Two ports on one thread.
fn rig(waiting: Waiting) -> Rig {
    let (hub, thread) = (Hub::default(), thread(waiting));
    Rig { a: Box::new(port(&hub, 1, &thread)), b: Box::new(port(&hub, 2, &thread)) }
}

#[test]
fn what_is_on_a_thread_that_sleeps_conforms() {
    suite::all(|| rig(Waiting::Sleep));
}

#[test]
fn what_is_on_a_thread_that_spins_conforms() {
    suite::all(|| rig(Waiting::Spin));
}

#[test]
fn what_is_on_an_adaptive_thread_conforms() {
    suite::all(|| rig(ADAPTIVE));
}

#[test]
fn ends_on_threads_of_their_own_conform() {
    suite::all(|| {
        let hub = Hub::default();
        let [a, b] = [(1, Waiting::Spin), (2, Waiting::Sleep)].map(|(at, waiting)| port(&hub, at, &thread(waiting)));
        Rig { a: Box::new(a), b: Box::new(b) }
    });
}

#[test]
fn a_fault_injector_over_or_under_a_thread_conforms() {
    suite::all_behind_a_fault_injector(|| rig(ADAPTIVE), &mut suite::open_again);
    suite::all(|| {
        let (hub, thread) = (Hub::default(), thread(Waiting::Sleep));
        let faulty = |at| fault::Faulty::new(hub.port(at), fault::Plan::default(), 7);
        let [a, b] = [1, 2].map(|at| {
            let mut port = OnThread::new(&thread, Box::new(faulty(at))).unwrap();
            port.open().unwrap();
            port
        });
        Rig { a: Box::new(a), b: Box::new(b) }
    });
}

/// Waits until the handle is readable.
fn woken(datapath: &OnThread) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let handle = datapath.wake_handle().unwrap();
    matches!(poll(&mut [PollFd::from_borrowed_fd(handle.as_fd(), PollFlags::IN)], Some(&patience)), Ok(1))
}

#[test]
fn what_is_refused_after_it_went_is_said_later_and_ends_a_sleep() {
    for waiting in [Waiting::Sleep, Waiting::Spin] {
        let (hub, thread) = (Hub::default(), thread(waiting));
        let (mut a, mut b) = (port(&hub, 1, &thread), port(&hub, 2, &thread));
        let mut tx = TxBatch::default();
        for to in [2, 9, 9, 2, 8] {
            tx.frame(Address::Port(to), b"frame", 0);
        }
        assert_eq!(a.hand_over(&mut tx).sent, 5);
        assert!(tx.frames().is_empty() && tx.is_done(), "the batch was taken, and this is another");
        let mut refused = Vec::new();
        let start = Instant::now();
        while refused.is_empty() {
            if a.arm() == Armed::Sleep {
                assert!(woken(&a), "{waiting:?}: nobody was told");
            }
            a.refused_later(&mut refused);
            assert!(start.elapsed() < PATIENCE, "{waiting:?}");
        }
        refused.sort_unstable_by_key(|(to, _)| *to);
        assert_eq!(refused, [8, 9].map(|to| (Address::Port(to), Outcome::Unreachable)));
        refused.clear();
        a.refused_later(&mut refused);
        assert!(refused.is_empty(), "it is said once");
        assert_eq!((a.stats().sent_frames, a.stats().sent_bytes, a.stats().refused_frames), (2, 10, 3));
        let (mut rx, mut came) = (rx(), 0);
        while came < 2 {
            came += b.receive(&mut rx, None).frames;
            assert!(start.elapsed() < PATIENCE, "{waiting:?}");
        }
    }
}

#[test]
fn who_found_the_thread_behind_is_woken_when_it_is_not() {
    let (hub, thread) = (Hub::default(), thread(Waiting::Sleep));
    let (mut a, mut b) = (port(&hub, 1, &thread), port(&hub, 2, &thread));
    // Nobody takes them: the loopback is full, then the slots of the thread, then its queue.
    let start = Instant::now();
    let mut fill = || {
        let mut tx = TxBatch::default();
        (0..256).for_each(|number| tx.frame(Address::Port(2), b"frame", number));
        assert!(start.elapsed() < PATIENCE);
        a.transmit(&mut tx).pending == 0
    };
    let mut last = Instant::now();
    while last.elapsed() < Duration::from_millis(100) {
        if fill() {
            last = Instant::now();
        }
    }
    assert_eq!(a.arm(), Armed::Sleep);
    let (mut rx, mut came) = (rx(), 0);
    while came < 256 * 4 {
        came += b.receive(&mut rx, None).frames;
        rx.free.extend(rx.taken.drain(..).map(|taken| taken.slot));
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(woken(&a), "nobody was told");
    assert_eq!((a.arm(), a.arm()), (Armed::Ready, Armed::Sleep), "it is said once that there is room");
}

#[test]
fn payload_of_the_callers_is_copied_before_its_frame_has_an_outcome() {
    let (hub, thread) = (Hub::default(), thread(Waiting::Sleep));
    let (mut a, mut b) = (port(&hub, 1, &thread), port(&hub, 2, &thread));
    let payload: &'static [u8] = b"payload";
    let mut tx = TxBatch::default();
    tx.commit(Address::Port(2), 0, Some(Piece::of(payload)), 3);
    assert_eq!(a.hand_over(&mut tx).sent, 1);
    assert_eq!((tx.frames()[0].cookie, tx.frames()[0].outcome), (3, Outcome::Sent), "the batch stays");
    let (mut rx, start) = (rx(), Instant::now());
    while b.receive(&mut rx, None).frames == 0 {
        assert!(start.elapsed() < PATIENCE);
    }
    assert_eq!(rx.taken[0].bytes(), payload);
}

#[test]
fn slots_over_other_memory_are_copied_into_and_stay_where_they_are() {
    let (hub, thread) = (Hub::default(), thread(ADAPTIVE));
    let (mut a, mut b) = (port(&hub, 1, &thread), port(&hub, 2, &thread));
    // Too small for the first frame, which is lost alone.
    for bytes in [pattern(1, 600), pattern(2, 500)] {
        let mut tx = TxBatch::default();
        tx.frame(Address::Port(2), &bytes, 0);
        assert_eq!(a.transmit(&mut tx).sent, 1);
    }
    let slot = Slot::owned(7, 512);
    let at = slot.bytes().as_ptr();
    let (mut rx, start) = (RxBatch { free: vec![slot], ..RxBatch::default() }, Instant::now());
    while b.receive(&mut rx, None).frames == 0 {
        assert!(start.elapsed() < PATIENCE);
    }
    let taken = &rx.taken[0];
    assert_eq!((taken.slot.id(), taken.bytes(), taken.slot.bytes().as_ptr()), (7, &pattern(2, 500)[..], at));
    assert_eq!(b.stats().spoiled, 1);
}

#[test]
fn the_last_words_go_when_it_is_closed_and_nothing_goes_afterwards() {
    let (hub, thread) = (Hub::default(), thread(Waiting::Sleep));
    let mut b = hub.port(2);
    b.open().unwrap();
    for round in 0..50 {
        let mut a = port(&hub, 1, &thread);
        let mut tx = TxBatch::default();
        (0..20).for_each(|number| tx.frame(Address::Port(2), &pattern(number, 64), number));
        assert_eq!(a.hand_over(&mut tx).sent, 20);
        a.close();
        // The loopback has it all by now.
        let (mut rx, mut came) = (rx(), 0);
        while b.receive(&mut rx, None).frames > 0 {
            came += rx.taken.len();
            rx.free.extend(rx.taken.drain(..).map(|taken| taken.slot));
        }
        assert_eq!(came, 20, "round {round}");
        tx.frame(Address::Port(2), b"late", 0);
        assert_eq!((a.hand_over(&mut tx).refused, tx.frames()[0].outcome), (1, Outcome::Failed));
    }
}

/// Two ends exchange one frame again and again, each asleep without a limit until it comes: a waking that is missed ends the test.
#[test]
fn no_waking_is_missed_however_close_it_is_to_going_to_sleep() {
    // Two threads that spin take the cores of those who wait for them.
    for (waiting, rounds) in [(Waiting::Sleep, 10_000), (ADAPTIVE, 5_000), (Waiting::Spin, 500)] {
        let hub = Hub::default();
        let ends = [1, 2].map(|at| port(&hub, at, &thread(waiting)));
        let [a, b] = ends.map(|mut end| {
            move |turn: u64, to: u32| {
                let mut rx = rx();
                for round in 0..rounds {
                    if round % 2 == turn {
                        let mut tx = TxBatch::default();
                        tx.frame(Address::Port(to), &round.to_le_bytes(), 0);
                        assert_eq!(end.hand_over(&mut tx).sent, 1);
                        // At another moment of the other side's each time.
                        (0..round * 7 % 300).for_each(|_| core::hint::spin_loop());
                        continue;
                    }
                    while end.receive(&mut rx, None).frames == 0 {
                        assert!(end.arm() == Armed::Ready || woken(&end), "{waiting:?}: missed in round {round}");
                    }
                    let taken = rx.taken.pop().unwrap();
                    assert_eq!(taken.bytes(), round.to_le_bytes());
                    rx.free.push(taken.slot);
                }
            }
        });
        let (mut a, mut b) = (a, b);
        std::thread::scope(|scope| {
            scope.spawn(move || a(0, 2));
            scope.spawn(move || b(1, 1));
        });
    }
}
