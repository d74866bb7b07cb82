//! Handles on sinks: what is closed stays closed, and everybody who waits is woken.

use insane::{Code, Message, Qos, Reliability, Sink, SinkOptions, SourceOptions, Wait};
use insane_shm::counters::Count;
use insane_tests_host::{Host, Watchdog, reconcile};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

fn until(done: impl Fn() -> bool) {
    while !done() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_closed_sink_has_nothing_of_the_next_one() {
    let _watchdog = Watchdog::start("closed", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("sources"), host.session("sinks"));
    let (to, from) = (a.stream(Qos::default()).unwrap(), b.stream(Qos::default()).unwrap());
    let (one, two) = (to.source("one").unwrap(), to.source("two").unwrap());
    let first = from.sink("one").unwrap();
    assert_eq!(one.wait_for_sinks(1, LIMIT), 1);
    one.send(b"1").unwrap();
    assert_eq!(first.consume_timeout(LIMIT).unwrap().to_vec(), b"1");
    first.close();
    let second = from.sink("two").unwrap();
    assert_eq!(two.wait_for_sinks(1, LIMIT), 1);
    two.send(b"2").unwrap();
    assert_eq!(first.try_consume().unwrap_err().code(), Code::Closed);
    assert_eq!(first.consume_timeout(LIMIT).unwrap_err().code(), Code::Closed);
    assert_eq!(first.has_message().unwrap_err().code(), Code::Closed);
    assert_eq!(first.try_each(9, |m| panic!("{m:?}")).unwrap_err().code(), Code::Closed);
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(pin!(first.receive()).poll(&mut context), Poll::Ready(Err(e)) if e.code() == Code::Closed));
    first.close();
    assert_eq!(second.consume_timeout(LIMIT).unwrap().to_vec(), b"2");
    drop(first);
    two.send(b"3").unwrap();
    assert_eq!(second.consume_timeout(LIMIT).unwrap().to_vec(), b"3");
    until(|| one.sinks() == 0);
    assert_eq!(two.sinks(), 1);
    reconcile([&a, &b], 3, 3);
}

#[test]
fn a_callback_that_ends_leaves_the_next_sink_alone() {
    let _watchdog = Watchdog::start("callback", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("sources"), host.session("sinks"));
    let (to, from) = (a.stream(Qos::default()).unwrap(), b.stream(Qos::default()).unwrap());
    let (one, two) = (to.source("one").unwrap(), to.source("two").unwrap());
    let ((called, calls), (go, gate)) = (mpsc::channel(), mpsc::channel::<()>());
    let callback = from.sink("one").unwrap().on_message(move |_| {
        called.send(()).unwrap();
        gate.recv().unwrap();
    });
    let callback = callback.unwrap();
    assert_eq!(one.wait_for_sinks(1, LIMIT), 1);
    one.send(b"1").unwrap();
    calls.recv_timeout(LIMIT).unwrap();
    // It is closed, and its last call is still to return.
    let closer = std::thread::spawn(move || drop(callback));
    until(|| one.sinks() == 0);
    std::thread::sleep(Duration::from_millis(50));
    let second = from.sink("two").unwrap();
    assert_eq!(two.wait_for_sinks(1, LIMIT), 1);
    go.send(()).unwrap();
    closer.join().unwrap();
    two.send(b"2").unwrap();
    assert_eq!(second.consume_timeout(LIMIT).unwrap().to_vec(), b"2");
    reconcile([&a, &b], 2, 2);
}

#[test]
fn threads_that_emit_at_once_on_a_reliable_stream_lose_nothing() {
    const THREADS: u64 = 8;
    const EACH: u64 = 500;
    let _watchdog = Watchdog::start("threads", LIMIT);
    let host = Host::with(|c| c.quota.link_entries = 4);
    let mut qos = Qos::default();
    qos.set_reliability(Reliability::Reliable);
    for wait in [Wait::Adaptive, Wait::Spin] {
        let (a, b) = (host.session("source"), host.session("sink"));
        let sink = b.stream(qos).unwrap().sink("many").unwrap();
        let options = SourceOptions { wait, deadline: LIMIT, ..SourceOptions::default() };
        let source = a.stream(qos).unwrap().source_with("many", options).unwrap();
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        source.send(&[7; 100]).unwrap();
                    }
                });
            }
            for n in 1..=THREADS * EACH {
                assert_eq!(sink.consume_timeout(LIMIT).unwrap().sequence(), n);
                if n % 4 == 0 {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        assert_eq!(a.counts().iter().map(|cell| cell.get(Count::SinkFull)).sum::<u64>(), 0);
        reconcile([&a, &b], THREADS * EACH, THREADS * EACH);
    }
}

/// Counts how often a task is woken.
#[derive(Default)]
struct Counts(AtomicU32);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn every_task_that_waits_on_a_sink_is_woken() {
    let _watchdog = Watchdog::start("tasks", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    let source = a.stream(Qos::default()).unwrap().source("t").unwrap();
    let sink = b.stream(Qos::default()).unwrap().sink("t").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    for round in 0..20u64 {
        let counts = [Arc::new(Counts::default()), Arc::new(Counts::default())];
        let mut futures = [Box::pin(sink.receive()), Box::pin(sink.receive())];
        for (future, counts) in futures.iter_mut().zip(&counts) {
            let waker = counts.clone().into();
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        source.send(b"first").unwrap();
        source.send(b"second").unwrap();
        until(|| counts.iter().all(|c| c.0.load(Ordering::Relaxed) > 0));
        for (n, future) in (1..).zip(&mut futures) {
            let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Ready(Ok(m)) if m.sequence() == 2 * round + n));
        }
    }
    reconcile([&a, &b], 40, 40);
}

/// A task that has a message, as its executor drops it: with its last waker.
struct Has {
    _message: Mutex<Message<'static>>,
}

impl Wake for Has {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn the_last_waker_of_a_task_may_have_messages() {
    let _watchdog = Watchdog::start("wakers", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    let (to, from) = (a.stream(Qos::default()).unwrap(), b.stream(Qos::default()).unwrap());
    let sink: &'static Sink = Box::leak(Box::new(from.sink("w").unwrap()));
    let source = to.source("w").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let (mut sent, mut rounds) = (0, [true, false].into_iter().peekable());
    while let Some(again) = rounds.peek().copied() {
        source.send(&[3; 100]).unwrap();
        sent += 1;
        let message = sink.consume_timeout(LIMIT).unwrap();
        let waker = Arc::new(Has { _message: Mutex::new(message) }).into();
        let mut future = Box::pin(sink.receive());
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        // It may be woken for nothing, by a ring that comes late: then it is dropped with what it has.
        if to.audit().held == 0 {
            continue;
        }
        rounds.next();
        if again {
            // Another task polls it from now on.
            assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        drop(future);
        // A ring that came late may have taken the waker just before, and drops it on its own thread.
        until(|| to.audit().held == 0);
    }
    reconcile([&a, &b], sent, sent);
}

/// A name as C has it after `INSANE`: `_SINK_FULL` of `SinkFull`.
fn in_c(name: &str) -> String {
    let mut c = String::new();
    for letter in name.chars() {
        c.extend(letter.is_uppercase().then_some('_'));
        c.push(letter.to_ascii_uppercase());
    }
    c
}

#[test]
fn errors_have_the_same_numbers_in_c() {
    let path = format!("{}/../../crates/capi/include/insane.h", env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(path).unwrap();
    let (_, after) = header.split_once("enum insane_code {").expect("the enum");
    let (body, _) = after.split_once('}').expect("its end");
    let named: Vec<&str> = body.split(',').map(str::trim).collect();
    let codes: Vec<String> =
        Code::ALL.iter().map(|code| format!("INSANE{} = {}", in_c(code.name()), code.number())).collect();
    assert_eq!(named, codes);
}

/// The processor time that the calling thread takes while it waits a second for a message that does not come.
fn time_of_waiting(wait: Wait, sink: &Sink) -> Duration {
    let spent = || {
        let at = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(at.tv_sec.unsigned_abs(), at.tv_nsec.unsigned_abs() as u32)
    };
    let before = spent();
    assert_eq!(sink.consume_timeout(Duration::from_secs(1)).unwrap_err().code(), Code::Timeout, "{wait:?}");
    spent() - before
}

#[test]
fn a_sink_that_spins_takes_the_core_and_the_others_leave_it() {
    let _watchdog = Watchdog::start("waits", LIMIT);
    let host = Host::start();
    let session = host.session("waits");
    let stream = session.stream(Qos::default()).unwrap();
    let [adaptive, spin, sleep] = [Wait::Adaptive, Wait::Spin, Wait::Sleep].map(|wait| {
        let sink = stream.sink_with("c", SinkOptions { wait, ..SinkOptions::default() }).unwrap();
        time_of_waiting(wait, &sink)
    });
    // Compared with each other only: how much of a core there is depends on who else is on the machine.
    for (other, name) in [(sleep, "sleep"), (adaptive, "adaptive")] {
        assert!(spin >= other * 10, "spin took {spin:?} of a second, {name} {other:?}");
    }
}

#[test]
fn events_have_the_same_numbers_in_all_languages() {
    let numbers: Vec<u32> = insane::Event::ALL.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=numbers.len() as u32).collect::<Vec<_>>());
    assert_eq!(insane::Event::RuntimeLost.name(), "RuntimeLost");
    let read = |path| std::fs::read_to_string(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let (header, stub, guide) =
        (read("crates/capi/include/insane.h"), read("python/insane/_native.pyi"), read("docs/guide/README.md"));
    for (number, name) in insane::Event::ALL {
        let c = in_c(name);
        assert!(header.contains(&format!("INSANE_EVENT{c} = {number}")), "{name} in C");
        assert!(stub.contains(&format!("{number} {name}")), "{name} in Python");
        assert!(guide.contains(&format!("{number} `{name}`")), "{name} in the guide");
    }
    assert_eq!(header.matches(" INSANE_EVENT_").count(), numbers.len());
}
