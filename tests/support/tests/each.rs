//! Messages that are taken together: nothing of what applications see differs from taking them one by one.

use insane::{Code, Qos, RawMessage, Reliability, Session, Sink, SinkOptions, Source, Wait};
use insane_shm::counters::Count;
use insane_tests_host::{Host, Watchdog, payload, reconcile};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Mostly small ones in runs, which are packed; now and then a large one between them.
fn length(n: u64) -> usize {
    match n % 97 {
        96 => 900,
        50..60 => 65 + (n % 3) as usize,
        m => (m as usize * 13) % 65,
    }
}

/// A source that never loses for want of room, and ends its batches at odd places.
fn send_all(source: &Source, numbers: std::ops::RangeInclusive<u64>) {
    for n in numbers {
        let bytes = payload(n, length(n));
        let last = n % 37 == 0 || n % 11 == 3;
        loop {
            let sent = if last { source.try_send(&bytes) } else { source.try_send_more(&bytes) };
            if sent.unwrap().is_some() {
                break;
            }
            source.wait_for_room(LIMIT).unwrap();
        }
    }
    source.flush().unwrap();
}

fn check(message: &RawMessage, n: u64) {
    assert_eq!((message.sequence(), message.len()), (n, length(n)));
    assert_eq!(message.to_vec(), payload(n, length(n)), "message {n}");
    if let Some(slice) = message.as_slice() {
        assert_eq!(slice, payload(n, length(n)));
    }
}

/// Takes messages up to number `last`, `most` at once, with other ways of taking them between.
fn take_all(sink: &Sink, last: u64, most: usize) {
    let mut next = 1;
    let mut turn = 0u64;
    while next <= last {
        turn += 1;
        let before = next;
        let each = |message: &RawMessage| {
            check(message, next);
            next += 1;
        };
        let count = match turn % 5 {
            0 => sink.try_each(most, each).unwrap(),
            1 => {
                let message = sink.consume_timeout(LIMIT).unwrap();
                check(&message, next);
                next += 1;
                1
            }
            _ => sink.consume_each(most, Some(LIMIT), each).unwrap(),
        };
        assert!(count as u64 == next - before && count <= most.max(1));
    }
    assert_eq!(sink.try_each(most, |_| panic!("there is no more")).unwrap(), 0);
}

#[test]
fn every_message_comes_once_and_in_order() {
    let _watchdog = Watchdog::start("each", LIMIT);
    let host = Host::start();
    let (a, b, c) = (host.session("source"), host.session("sink"), host.session("two sinks"));
    let sleeping = SinkOptions { wait: Wait::Sleep, ..SinkOptions::default() };
    let one = b.stream(Qos::default()).unwrap().sink_with("each", sleeping.clone()).unwrap();
    let stream = c.stream(Qos::default()).unwrap();
    let (two, three) = (stream.sink("each").unwrap(), stream.sink_with("each", sleeping).unwrap());
    let source = a.stream(Qos::default()).unwrap().source("each").unwrap();
    assert_eq!(source.wait_for_sinks(3, LIMIT), 3);
    let last = 30_000;
    std::thread::scope(|scope| {
        for (sink, most) in [(&one, 64), (&two, 1), (&three, usize::MAX)] {
            scope.spawn(move || take_all(sink, last, most));
        }
        send_all(&source, 1..=last);
    });
    let audit = a.stream(Qos::default()).unwrap().audit();
    assert_eq!((audit.held, audit.lost, audit.doubly_owned), (0, 0, 0));
    reconcile([&a, &b, &c], 3 * last, 3 * last);
    let bytes: u64 = (1..=last).map(|n| length(n) as u64).sum();
    for sink in [&one, &two, &three] {
        let cells = [&b, &c].map(Session::counts).concat();
        let of = |count| cells.iter().filter(|cell| cell.sink == sink.id().0).map(|cell| cell.get(count)).sum::<u64>();
        assert_eq!((of(Count::Delivered), of(Count::Bytes)), (last, bytes));
    }
}

#[test]
fn a_pack_for_one_sink_goes_back_before_it_is_used() {
    let _watchdog = Watchdog::start("goes back", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    let sink = b.stream(Qos::default()).unwrap().sink("back").unwrap();
    let stream = a.stream(Qos::default()).unwrap();
    let source = stream.source("back").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    for n in 1..=3 {
        source.send_more(b"warm").unwrap();
        source.flush().unwrap();
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().sequence(), n);
    }
    for round in 0..3u64 {
        let tokens: Vec<_> = (0..40).map(|n| source.send_more(&payload(n, 33)).unwrap()).collect();
        source.flush().unwrap();
        assert!(stream.audit().held > 0, "they lie in a slot");
        let mut seen = 0;
        let count = sink
            .try_each(64, |message| {
                assert_eq!(message.to_vec(), payload(seen, 33));
                assert_eq!(message.sequence(), 4 + round * 40 + seen);
                assert_eq!(message.channel(), sink.channel().0);
                assert_eq!(stream.audit().held, 0, "this process has a copy");
                seen += 1;
            })
            .unwrap();
        assert_eq!(count, 40);
        for token in tokens {
            let outcome = source.outcome(token).unwrap();
            assert!(outcome.is_final() && outcome.delivered == 1, "{outcome:?}");
        }
    }
    reconcile([&a, &b], 123, 123);
}

#[test]
fn what_was_taken_is_given_back_when_the_function_panics() {
    let _watchdog = Watchdog::start("panics", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    let mut qos = Qos::default();
    qos.set_reliability(Reliability::Reliable);
    let sink = b.stream(qos).unwrap().sink("panics").unwrap();
    let source = a.stream(qos).unwrap().source("panics").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    for n in 0..10 {
        source.send(&payload(n, 40)).unwrap();
    }
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut seen = 0;
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        sink.consume_each(64, Some(LIMIT), |_| {
            seen += 1;
            assert!(seen < 4, "enough");
        })
    }));
    std::panic::set_hook(hook);
    assert!(caught.is_err() && seen == 4);
    assert_eq!(a.stream(qos).unwrap().audit().held, 0);
    source.send(b"goes on").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"goes on");
    reconcile([&a, &b], 11, 11);
}

#[test]
fn messages_with_a_deadline_come_one_by_one() {
    let _watchdog = Watchdog::start("deadlines", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    let sink = b.stream(Qos::default()).unwrap().sink("deadlines").unwrap();
    let source = a.stream(Qos::default()).unwrap().source("deadlines").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let within = Duration::from_millis(200);
    for _ in 0..3 {
        source.emit_within(source.buffer(8).unwrap(), within).unwrap();
    }
    // While the first is used the others expire: they were not taken with it.
    let count = sink.consume_each(64, Some(LIMIT), |_| std::thread::sleep(2 * within)).unwrap();
    assert_eq!(count, 1);
    assert_eq!(sink.try_each(64, |_| panic!("it has expired")).unwrap(), 0);
    let counts = b.counts();
    let of = |count| counts.iter().filter(|c| c.sink == sink.id().0).map(|c| c.get(count)).sum::<u64>();
    assert_eq!((of(Count::Delivered), of(Count::Expired)), (1, 2));
    reconcile([&a, &b], 3, 1);
}

#[test]
fn a_wait_may_be_longer_than_time_lasts() {
    let _watchdog = Watchdog::start("for ever", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    let source = a.stream(Qos::default()).unwrap().source("for ever").unwrap();
    let sink = b.stream(Qos::default()).unwrap().sink("for ever").unwrap();
    assert_eq!(source.wait_for_sinks(1, Duration::MAX), 1);
    source.wait_for_room(Duration::MAX).unwrap();
    source.send(b"one").unwrap();
    source.send(b"two").unwrap();
    assert_eq!(sink.consume_timeout(Duration::MAX).unwrap().to_vec(), b"one");
    assert_eq!(sink.consume_each(8, Some(Duration::MAX), |m| assert_eq!(m.to_vec(), b"two")).unwrap(), 1);
    reconcile([&a, &b], 2, 2);
}

#[test]
fn waiting_ends_as_it_does_for_one_message() {
    let _watchdog = Watchdog::start("waiting", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    for wait in [Wait::Spin, Wait::Adaptive, Wait::Sleep] {
        let options = SinkOptions { wait, ..SinkOptions::default() };
        let sink = b.stream(Qos::default()).unwrap().sink_with("waiting", options).unwrap();
        let none = |_: &RawMessage| panic!("nothing was emitted");
        let timeout = sink.consume_each(8, Some(Duration::from_millis(2)), none).unwrap_err();
        assert_eq!(timeout.code(), Code::Timeout, "{wait:?}");
        assert_eq!(sink.consume_each(0, None, none).unwrap(), 0, "none at most: nothing to wait for");
        sink.close();
        assert_eq!(sink.consume_each(8, None, none).unwrap_err().code(), Code::Closed);
        assert_eq!(sink.try_each(8, none).unwrap_err().code(), Code::Closed);
    }
    reconcile([&a, &b], 0, 0);
}
