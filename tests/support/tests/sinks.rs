//! Handles on sinks: what is closed stays closed.

use insane::{Code, Qos, Reliability, SourceOptions, Wait};
use insane_shm::counters::Count;
use insane_tests_host::{Host, Watchdog, reconcile};
use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
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
