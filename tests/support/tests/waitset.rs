//! One descriptor for many sinks.

use insane::{Code, Message, Qos, Reliability, Sink, SinkOptions, Wait, WaitSet};
use insane_tests_host::{Host, Watchdog, reconcile, reconcile_cells};
use rustix::event::{PollFd, PollFlags, poll};
use std::future::Future;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

fn sleeping() -> SinkOptions {
    SinkOptions { wait: Wait::Sleep, ..SinkOptions::default() }
}

/// What an event loop does: arms until that holds, waits for the descriptor, looks. Returns the keys, and how often it slept.
fn one_turn(set: &mut WaitSet, slept: &mut u64) -> Vec<usize> {
    let mut keys = Vec::new();
    loop {
        if set.ready(&mut keys).unwrap() > 0 {
            return keys;
        }
        if set.arm().unwrap() {
            let mut fds = [PollFd::new(&*set, PollFlags::IN)];
            poll(&mut fds, None).unwrap();
            *slept += 1;
        }
    }
}

fn sequences(sink: &Sink) -> Vec<u64> {
    std::iter::from_fn(|| sink.try_consume().unwrap().map(|m: Message<'_>| m.sequence())).collect()
}

#[test]
fn an_event_loop_misses_nothing() {
    let _watchdog = Watchdog::start("event loop", LIMIT);
    let host = Host::start();
    let mut reliable = Qos::default();
    reliable.set_reliability(Reliability::Reliable);
    for qos in [Qos::default(), reliable] {
        let (a, b) = (host.session("asks"), host.session("answers"));
        let (to, from) = (a.stream(qos).unwrap(), b.stream(qos).unwrap());
        let sink = from.sink_with("question", sleeping()).unwrap();
        let question = to.source("question").unwrap();
        let heard = to.sink_with("answer", sleeping()).unwrap();
        let answer = from.source("answer").unwrap();
        assert!(question.wait_for_sinks(1, LIMIT) == 1 && answer.wait_for_sinks(1, LIMIT) == 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut set, mut slept, mut next) = (WaitSet::new().unwrap(), 0, 1);
                assert_eq!(set.add(&sink).unwrap(), 0);
                while next <= 3000 {
                    assert_eq!(one_turn(&mut set, &mut slept), [0]);
                    for sequence in sequences(&sink) {
                        assert_eq!(sequence, next);
                        next += 1;
                        answer.send(&sequence.to_le_bytes()).unwrap();
                    }
                }
                assert!(slept > 1000, "a loop that never sleeps shows nothing: {slept}");
            });
            for n in 1..=3000u64 {
                if n % 7 == 0 {
                    std::thread::sleep(Duration::from_micros(n % 90));
                }
                question.send(&n.to_le_bytes()).unwrap();
                assert_eq!(heard.consume_timeout(LIMIT).unwrap().to_vec(), n.to_le_bytes());
            }
        });
        reconcile([&a, &b], 6000, 6000);
    }
}

#[test]
fn of_a_hundred_sinks_the_busy_ones_are_served_in_turns() {
    let _watchdog = Watchdog::start("hundred", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("sources"), host.session("sinks"));
    let (to, from) = (a.stream(Qos::default()).unwrap(), b.stream(Qos::default()).unwrap());
    let sinks: Vec<Sink> = (0..100).map(|i| from.sink(format!("c{i}").as_str()).unwrap()).collect();
    let mut set = WaitSet::new().unwrap();
    for (i, sink) in sinks.iter().enumerate() {
        assert_eq!(set.add(sink).unwrap(), i);
    }
    assert_eq!(set.add(&sinks[3]).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(set.len(), 100);
    let (flood, rare) = (to.source("c10").unwrap(), to.source("c90").unwrap());
    assert!(flood.wait_for_sinks(1, LIMIT) == 1 && rare.wait_for_sinks(1, LIMIT) == 1);
    let (mut seen, mut turns, mut keys) = ([0u64; 2], 0, Vec::new());
    for round in 0..200u64 {
        for _ in 0..50 {
            flood.send(b"flood").unwrap();
        }
        rare.send(&round.to_le_bytes()).unwrap();
        while seen[1] <= round {
            turns += 1;
            set.wait(&mut keys, Some(LIMIT)).unwrap();
            for key in keys.drain(..) {
                // One message of each sink at a time: the flood does not hold the other one up.
                let message = sinks[key].try_consume().unwrap().expect("it was said to be ready");
                let which = usize::from(key == 90);
                assert!(key == 90 || key == 10, "{key} has nothing");
                seen[which] += 1;
                assert_eq!(message.sequence(), seen[which]);
            }
        }
        // Both share a link, which holds a thousand: the flood is read before it drops the rare one.
        seen[0] += sequences(&sinks[10]).len() as u64;
    }
    assert!(turns <= 400, "the rare message waits for one turn, not for the flood: {turns}");
    set.remove(10);
    set.remove(10);
    assert_eq!(set.len(), 99);
    rare.send(b"last").unwrap();
    assert_eq!(set.wait(&mut keys, Some(LIMIT)).unwrap(), 1);
    assert_eq!(sequences(&sinks[90]), [201]);
    reconcile([&a, &b], 200 * 51 + 1, seen[0] + seen[1] + 1);
}

#[test]
fn a_set_sees_what_joins_and_what_leaves() {
    let _watchdog = Watchdog::start("joins", LIMIT);
    let host = Host::start();
    let b = host.session("sinks");
    let from = b.stream(Qos::default()).unwrap();
    let (one, two) = (from.sink("one").unwrap(), from.sink("two").unwrap());
    let mut set = WaitSet::new().unwrap();
    let mut keys = Vec::new();
    assert_eq!(set.wait(&mut keys, None).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(set.wait(&mut keys, Some(Duration::from_millis(5))).unwrap_err().code(), Code::Timeout);
    assert_eq!((set.add(&one).unwrap(), set.add(&two).unwrap()), (0, 1));
    let mut past = Vec::new();
    for _ in 0..20 {
        // The source's session comes while the loop sleeps, and is gone again in the next round.
        let (late, counts) = std::thread::scope(|scope| {
            let turn = scope.spawn(|| one_turn(&mut set, &mut 0));
            let a = host.session("late");
            let source = a.stream(Qos::default()).unwrap().source("two").unwrap();
            source.send(b"late").unwrap();
            let keys = turn.join().unwrap();
            drop(source);
            let counts = a.counts();
            a.close();
            (keys, counts)
        });
        past.extend(counts);
        assert_eq!(late, [1]);
        assert_eq!(two.try_consume().unwrap().unwrap().to_vec(), b"late");
    }
    // A sink that is closed while the loop sleeps is told of once.
    std::thread::scope(|scope| {
        let turn = scope.spawn(|| one_turn(&mut set, &mut 0));
        std::thread::sleep(Duration::from_millis(20));
        one.close();
        assert_eq!(turn.join().unwrap(), [0]);
    });
    assert_eq!(set.len(), 1);
    assert_eq!(set.wait(&mut keys, Some(Duration::from_millis(5))).unwrap_err().code(), Code::Timeout);
    reconcile_cells(|| b.counts().into_iter().chain(past.iter().cloned()).collect(), 20, 20);
}

fn readable(set: &WaitSet) -> bool {
    let mut fds = [PollFd::new(set, PollFlags::IN)];
    poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

/// Arms a set that has nothing.
fn arm(set: &mut WaitSet) {
    while !set.arm().unwrap() {
        assert_eq!(set.ready(&mut Vec::new()).unwrap(), 0);
    }
}

#[test]
fn of_two_sets_on_one_stream_both_wake() {
    let _watchdog = Watchdog::start("two sets", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("sources"), host.session("sinks"));
    let (to, from) = (a.stream(Qos::default()).unwrap(), b.stream(Qos::default()).unwrap());
    let (one, two) = (from.sink("one").unwrap(), from.sink("two").unwrap());
    let (first, second) = (to.source("one").unwrap(), to.source("two").unwrap());
    assert!(first.wait_for_sinks(1, LIMIT) == 1 && second.wait_for_sinks(1, LIMIT) == 1);
    let (mut busy, mut waits) = (WaitSet::new().unwrap(), WaitSet::new().unwrap());
    assert_eq!((busy.add(&one).unwrap(), waits.add(&two).unwrap()), (0, 0));
    let mut keys = Vec::new();
    // A new bell rings once when it comes.
    arm(&mut busy);
    while !readable(&busy) {
        std::thread::yield_now();
    }
    // Who looks for its own messages takes those of others off the link, and arms with what had rung for them.
    for way in 0..4 {
        arm(&mut busy);
        arm(&mut waits);
        assert!(!readable(&busy) && !readable(&waits));
        second.send(b"second").unwrap();
        match way {
            0 => assert!(one.try_consume().unwrap().is_none()),
            1 => assert!(!one.has_message().unwrap()),
            2 => assert_eq!(busy.ready(&mut keys).unwrap(), 0),
            _ => assert_eq!(one.try_each(9, |_| ()).unwrap(), 0),
        }
        arm(&mut busy);
        assert!(readable(&waits), "{way}: its message has come");
        assert_eq!(waits.ready(&mut keys).unwrap(), 1);
        assert_eq!(sequences(&two).len(), 1);
        keys.clear();
    }
    // It takes what had rung, and leaves what is for others on the link.
    arm(&mut busy);
    arm(&mut waits);
    first.send(b"first").unwrap();
    second.send(b"second").unwrap();
    assert!(!busy.arm().unwrap());
    assert_eq!(one.try_consume().unwrap().unwrap().to_vec(), b"first");
    assert!(readable(&waits), "its message has come");
    assert_eq!(waits.ready(&mut keys).unwrap(), 1);
    assert_eq!(sequences(&two), [5]);
    // Nobody is woken without a reason.
    arm(&mut busy);
    arm(&mut waits);
    assert!(!readable(&busy));
    reconcile([&a, &b], 6, 6);
}

/// Says that it was called; with a gate, it returns when that is opened.
struct Told(Sender<()>, Option<Mutex<Receiver<()>>>);

impl std::task::Wake for Told {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
        if let Some(gate) = &self.1 {
            let _ = gate.lock().unwrap().recv();
        }
    }
}

#[test]
fn a_set_and_a_task_on_one_stream_both_wake() {
    let _watchdog = Watchdog::start("a set and a task", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("sources"), host.session("sinks"));
    let (to, from) = (a.stream(Qos::default()).unwrap(), b.stream(Qos::default()).unwrap());
    let (one, two) = (from.sink("one").unwrap(), from.sink("two").unwrap());
    let source = to.source("two").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let mut busy = WaitSet::new().unwrap();
    busy.add(&one).unwrap();
    for way in 0..4 {
        arm(&mut busy);
        // The session's own thread is busy with another waker, so that it does not hear the bell before the set does.
        let ((called, calls), (open, gate)) = (channel(), channel());
        let waker = Arc::new(Told(called, Some(Mutex::new(gate)))).into();
        let held = from.sink("held").unwrap();
        let mut holds = Box::pin(held.receive());
        assert!(holds.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        std::thread::scope(|scope| {
            scope.spawn(|| held.close());
            calls.recv_timeout(LIMIT).unwrap();
            let (woken, wakes) = channel();
            let waker = Arc::new(Told(woken, None)).into();
            let mut context = Context::from_waker(&waker);
            let mut future = Box::pin(two.receive());
            assert!(future.as_mut().poll(&mut context).is_pending());
            source.send(b"second").unwrap();
            match way {
                0 => assert!(!one.has_message().unwrap()),
                1 => assert_eq!(busy.ready(&mut Vec::new()).unwrap(), 0),
                2 => assert!(one.try_consume().unwrap().is_none()),
                _ => {}
            }
            assert_eq!(busy.arm().unwrap(), way < 3);
            open.send(()).unwrap();
            wakes.recv_timeout(LIMIT).unwrap();
            let polled = future.as_mut().poll(&mut context);
            assert!(matches!(polled, Poll::Ready(Ok(m)) if m.to_vec() == b"second"));
        });
    }
    reconcile([&a, &b], 4, 4);
}

/// The link of the stream goes on, for another sink, and so does its bell.
#[test]
fn a_set_hears_nothing_of_a_stream_that_it_has_left() {
    let _watchdog = Watchdog::start("a stream that was left", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("sources"), host.session("sinks"));
    let streams = ["kept", "left"].map(|name| b.stream_named(name, Qos::default()).unwrap());
    let sinks = [("kept", 0), ("leaves", 1), ("stays", 1)].map(|(name, of)| streams[of].sink(name).unwrap());
    let source = a.stream_named("left", Qos::default()).unwrap().source("stays").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let mut set = WaitSet::new().unwrap();
    assert_eq!((set.add(&sinks[0]).unwrap(), set.add(&sinks[1]).unwrap()), (0, 1));
    // A new bell rings once when it comes.
    arm(&mut set);
    while !readable(&set) {
        std::thread::yield_now();
    }
    for round in 0..3 {
        // What has rung while nobody listened is heard once.
        arm(&mut set);
        while readable(&set) {
            arm(&mut set);
        }
        set.remove(1);
        source.send(b"for another").unwrap();
        while !sinks[2].has_message().unwrap() {
            std::thread::yield_now();
        }
        assert!(!readable(&set), "round {round}");
        assert_eq!(sequences(&sinks[2]).len(), 1);
        // It can have it again.
        assert_eq!(set.add(&sinks[1]).unwrap(), 1);
    }
}
