//! Larger messages that follow each other at once share a slot, in which they are written and read: nothing of what applications
//! see changes.

use insane::{Buffer, Code, Qos, RawMessage, Session, Sink, SinkOptions, Source, Wait};
use insane_tests_host::{Host, Watchdog, payload, reconcile};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Runs of larger ones of all sizes that are packed, with small ones, empty ones and such as are never packed between.
fn length(n: u64) -> usize {
    match n % 61 {
        60 => 2049,
        20..24 => (n % 65) as usize,
        31 => 5000,
        40..60 => 1024,
        m => 65 + (m * m * 29 % 1984) as usize,
    }
}

fn filled(source: &Source, n: u64) -> Buffer<'_> {
    // Some are borrowed longer than they are emitted.
    let spare = if n.is_multiple_of(5) { 40 } else { 0 };
    let mut buffer = source.buffer(length(n) + spare).unwrap();
    buffer.truncate(length(n));
    buffer.copy_from_slice(&payload(n, length(n)));
    buffer
}

/// Emits messages from `n` on, one or two, in one of the ways that there are. How many; 0: there was no room.
fn emit(source: &Source, n: u64, last: u64) -> u64 {
    let bytes = payload(n, length(n));
    match n % 13 {
        0 => return u64::from(source.try_send(&bytes).unwrap().is_some()),
        1..=4 => return u64::from(source.try_send_more(&bytes).unwrap().is_some()),
        _ if source.wait_for_room(Duration::ZERO).is_err() => return 0,
        5 => drop(filled(source, n)),
        6 if n < last => {
            // The piece that was lent first goes last, or not at all.
            let (second, first) = (filled(source, n + 1), filled(source, n));
            source.emit_more(first).unwrap();
            if n.is_multiple_of(2) {
                source.wait_for_room(LIMIT).unwrap();
                source.emit_more(second).unwrap();
                return 2;
            }
            return 1;
        }
        7 => {
            source.emit_within(filled(source, n), LIMIT).unwrap();
            return 1;
        }
        8 => {
            source.emit(filled(source, n)).unwrap();
            return 1;
        }
        _ => {}
    }
    source.emit_more(filled(source, n)).unwrap();
    1
}

fn check(message: &RawMessage, n: u64) {
    assert_eq!((message.sequence(), message.len()), (n, length(n)));
    assert_eq!(message.to_vec(), payload(n, length(n)), "message {n}");
    if let Some(slice) = message.as_slice() {
        assert_eq!(slice, payload(n, length(n)));
    }
}

/// Takes messages up to number `last`, `most` at once.
fn take_all(sink: &Sink, last: u64, most: usize) {
    let mut next = 1;
    let mut kept = Vec::new();
    while next <= last {
        if most == 1 {
            let message = sink.consume_timeout(LIMIT).unwrap();
            check(&message, next);
            next += 1;
            // Some are kept for a while, and given back in another order.
            if next.is_multiple_of(7) {
                kept.push(message);
            }
            if kept.len() > 20 {
                kept.swap_remove((next % 20) as usize);
            }
        } else {
            sink.consume_each(most, Some(LIMIT), |message| {
                check(message, next);
                next += 1;
            })
            .unwrap();
        }
    }
}

#[test]
fn every_message_comes_once_and_in_order() {
    let _watchdog = Watchdog::start("wide", LIMIT);
    let host = Host::start();
    let (a, b, c) = (host.session("source"), host.session("sink"), host.session("two sinks"));
    let sleeping = SinkOptions { wait: Wait::Sleep, ..SinkOptions::default() };
    let one = b.stream(Qos::default()).unwrap().sink_with("wide", sleeping.clone()).unwrap();
    let stream = c.stream(Qos::default()).unwrap();
    let (two, three) = (stream.sink("wide").unwrap(), stream.sink_with("wide", sleeping).unwrap());
    let source = a.stream(Qos::default()).unwrap().source("wide").unwrap();
    assert_eq!(source.wait_for_sinks(3, LIMIT), 3);
    let last = 20_000;
    std::thread::scope(|scope| {
        for (sink, most) in [(&one, 64), (&two, 1), (&three, usize::MAX)] {
            scope.spawn(move || take_all(sink, last, most));
        }
        let mut n = 1;
        while n <= last {
            match emit(&source, n, last) {
                0 => source.wait_for_room(LIMIT).unwrap(),
                sent => n += sent,
            }
        }
        source.flush().unwrap();
    });
    let audit = a.stream(Qos::default()).unwrap().audit();
    assert_eq!((audit.held, audit.lost, audit.doubly_owned), (0, 0, 0));
    reconcile([&a, &b, &c], 3 * last, 3 * last);
}

/// A source and a sink, and how many messages it took until larger ones are packed.
fn warmed(host: &Host) -> (Session, Session, Source, Sink, u64) {
    let (a, b) = (host.session("source"), host.session("sink"));
    let sink = b.stream(Qos::default()).unwrap().sink("wide").unwrap();
    let source = a.stream(Qos::default()).unwrap().source("wide").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let mut sent = 0;
    loop {
        source.send_more(&[7; 500]).unwrap();
        sent += 1;
        let waits = sink.try_consume().unwrap().is_none();
        source.flush().unwrap();
        if waits {
            assert_eq!(sink.consume_timeout(LIMIT).unwrap().sequence(), sent);
            return (a, b, source, sink, sent);
        }
        assert!(sent < 10, "they are never packed");
    }
}

#[test]
fn messages_of_a_batch_lie_in_one_slot_until_the_last_is_released() {
    let _watchdog = Watchdog::start("one slot", LIMIT);
    let host = Host::start();
    let (a, b, source, sink, warm) = warmed(&host);
    let stream = a.stream(Qos::default()).unwrap();
    let mut sent = warm;
    for round in 0..10u64 {
        for n in 0..8u64 {
            let mut buffer = source.buffer(1000).unwrap();
            buffer.copy_from_slice(&payload(n, 1000));
            source.emit_more(buffer).unwrap();
        }
        source.flush().unwrap();
        assert_eq!(stream.audit().held, 1);
        if round % 2 == 0 {
            let mut seen = 0;
            let mut each = |message: &RawMessage| {
                assert_eq!((message.sequence(), message.to_vec()), (sent + seen + 1, payload(seen, 1000)));
                assert_eq!(stream.audit().held, 1, "it is read where it was written");
                seen += 1;
            };
            while sink.try_each(8, &mut each).unwrap() > 0 {}
            assert_eq!(seen, 8);
        } else {
            let held: Vec<_> = (0..8).map(|_| sink.consume_timeout(LIMIT).unwrap()).collect();
            let ends = |m: &insane::Message<'_>| m.as_ptr() as usize;
            assert!(held.windows(2).all(|m| ends(&m[1]) == ends(&m[0]) + 1008));
            for (n, message) in held.iter().enumerate() {
                assert_eq!(message.to_vec(), payload(n as u64, 1000));
            }
            let mut held = held;
            while held.len() > 1 {
                held.swap_remove(held.len() / 2);
                assert_eq!(stream.audit().held, 1);
            }
        }
        sent += 8;
        let audit = stream.audit();
        assert_eq!((audit.held, audit.lost, audit.doubly_owned), (0, 0, 0));
    }
    reconcile([&a, &b], sent, sent);
}

#[test]
fn a_buffer_outlives_the_pack_that_it_is_a_piece_of() {
    let _watchdog = Watchdog::start("pieces", LIMIT);
    let host = Host::start();
    let (a, b, source, sink, warm) = warmed(&host);
    let stream = a.stream(Qos::default()).unwrap();
    let other = stream.source("wide").unwrap();
    assert_eq!(other.wait_for_sinks(1, LIMIT), 1);
    let expect = |n: u64, len: usize| assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), payload(n, len));
    let fill = |n: u64, len: usize| {
        let mut buffer = source.buffer(len).unwrap();
        buffer.copy_from_slice(&payload(n, len));
        buffer
    };
    // Two messages wait, the third's buffer is a piece of their pack.
    let wait = || {
        for n in 1..=2 {
            source.emit_more(fill(n, 700)).unwrap();
        }
    };
    wait();
    let piece = fill(3, 800);
    source.flush().unwrap();
    (1..=2).for_each(|n| expect(n, 700));
    assert!(sink.try_consume().unwrap().is_none() && stream.audit().held == 1, "the buffer holds the slot");
    source.emit(piece).unwrap();
    expect(3, 800);
    assert_eq!(stream.audit().held, 0);
    // Given back, before and after its pack has gone.
    for early in [false, true] {
        wait();
        let piece = fill(3, 800);
        if early {
            drop(piece);
            source.flush().unwrap();
        } else {
            source.flush().unwrap();
            drop(piece);
        }
        (1..=2).for_each(|n| expect(n, 700));
        assert_eq!(stream.audit().held, 0);
    }
    // Emitted by another source of the stream, which has a pack of its own or none.
    for more in [false, true] {
        wait();
        let piece = fill(3, 800);
        if more {
            other.emit_more(piece).unwrap()
        } else {
            other.emit(piece).unwrap()
        };
        other.flush().unwrap();
        source.flush().unwrap();
        (1..=2).for_each(|n| expect(n, 700));
        expect(3, 800);
        assert_eq!(stream.audit().held, 0);
    }
    // Its source is closed: an error, and nothing is lost.
    wait();
    let piece = fill(3, 800);
    source.close();
    assert_eq!(source.emit_more(piece).unwrap_err().code(), Code::Closed);
    (1..=2).for_each(|n| expect(n, 700));
    let audit = stream.audit();
    assert_eq!((audit.held, audit.lost, audit.doubly_owned), (0, 0, 0));
    reconcile([&a, &b], warm + 15, warm + 15);
}
