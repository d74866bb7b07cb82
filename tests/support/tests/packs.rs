//! Small messages that follow each other at once share a slot: nothing of what applications see changes.

use insane::{Code, Outcome, Qos, Session, Sink, SinkId, SinkOptions, Source, Token, Wait};
use insane_shm::counters::Count;
use insane_tests_host::{Host, Watchdog, payload};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A payload by which a message is known.
/// Small ones, some that are none, some that go into slots of their own.
fn length(n: u64) -> usize {
    match n % 41 {
        40 => 300,
        17 => 65,
        3 => 0,
        m => (m as usize * 13) % 65,
    }
}

/// Emits message `n` in one of the ways that there are; `false`: there was no room.
fn emit(source: &Source, n: u64) -> bool {
    let bytes = payload(n, length(n));
    match n % 7 {
        0 => source.try_send(&bytes).unwrap().is_some(),
        1..=4 => source.try_send_more(&bytes).unwrap().is_some(),
        _ => {
            if source.wait_for_room(Duration::ZERO).is_err() {
                return false;
            }
            let mut buffer = source.buffer(bytes.len()).unwrap();
            buffer.copy_from_slice(&bytes);
            if n % 7 == 5 {
                source.emit_more(buffer).unwrap()
            } else {
                source.emit(buffer).unwrap()
            };
            true
        }
    }
}

fn check(sink: &Sink, n: u64) {
    let message = sink.consume_timeout(LIMIT).unwrap();
    assert_eq!((message.sequence(), message.len()), (n, length(n)));
    assert_eq!(message.to_vec(), payload(n, length(n)), "message {n}");
    if let Some(slice) = message.as_slice() {
        assert_eq!(slice, payload(n, length(n)));
    }
}

/// Sends until small messages are packed: the first of them make the slots for that.
fn warm_up(source: &Source, sinks: &[&Sink]) -> u64 {
    for n in 1..=4 {
        source.send_more(b"warm").unwrap();
        source.flush().unwrap();
        for sink in sinks {
            assert_eq!(sink.consume_timeout(LIMIT).unwrap().sequence(), n);
        }
    }
    4
}

/// The accounting law: what the source's application emitted, to how many sinks in all, and what each sink's application saw.
fn reconcile(sessions: &[&Session], emitted: u64, seen: &[(SinkId, u64)], dropped: u64) {
    let total = seen.iter().map(|(_, n)| n).sum::<u64>();
    insane_tests_host::reconcile(sessions.iter().copied(), total + dropped, total);
    let cells: Vec<_> = sessions.iter().flat_map(|s| s.counts()).collect();
    let sources = cells.iter().filter(|c| c.get(Count::Emitted) > 0);
    assert_eq!(sources.map(|c| c.get(Count::Emitted)).sum::<u64>(), emitted);
    for (id, seen) in seen {
        let of = cells.iter().filter(|c| c.sink == id.0).map(|c| c.get(Count::Delivered));
        assert_eq!(of.sum::<u64>(), *seen, "{id:?}");
    }
}

#[test]
fn every_message_arrives_once_and_in_order() {
    let _watchdog = Watchdog::start("packs", LIMIT);
    let host = Host::start();
    let (a, b, c) = (host.session("source"), host.session("sink"), host.session("two sinks"));
    let wait = |wait| SinkOptions { wait, ..SinkOptions::default() };
    let one = b.stream(Qos::default()).unwrap().sink_with("packs", wait(Wait::Sleep)).unwrap();
    let stream = c.stream(Qos::default()).unwrap();
    let (two, three) = (stream.sink("packs").unwrap(), stream.sink_with("packs", wait(Wait::Sleep)).unwrap());
    let source = a.stream(Qos::default()).unwrap().source("packs").unwrap();
    assert_eq!(source.wait_for_sinks(3, LIMIT), 3);
    let count: u64 = 20_000;
    std::thread::scope(|scope| {
        for sink in [&one, &two, &three] {
            scope.spawn(move || (1..=count).for_each(|n| check(sink, n)));
        }
        for n in 1..=count {
            while !emit(&source, n) {
                source.wait_for_room(LIMIT).unwrap();
            }
        }
        source.flush().unwrap();
    });
    assert_eq!(a.stream(Qos::default()).unwrap().audit().held, 0);
    reconcile(&[&a, &b, &c], count, &[(one.id(), count), (two.id(), count), (three.id(), count)], 0);
}

#[test]
fn messages_of_a_pack_are_released_in_any_order_and_by_any_thread() {
    let _watchdog = Watchdog::start("order", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    let sink = b.stream(Qos::default()).unwrap().sink("order").unwrap();
    let source = a.stream(Qos::default()).unwrap().source("order").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let first = warm_up(&source, &[&sink]) + 1;
    for round in 0..20u64 {
        for n in 0..40u64 {
            source.send_more(&payload(n, 33)).unwrap();
        }
        source.flush().unwrap();
        let mut held: Vec<_> = (0..40).map(|_| sink.consume_timeout(LIMIT).unwrap()).collect();
        assert_eq!(held[0].sequence(), first + round * 40);
        assert!(a.stream(Qos::default()).unwrap().audit().held > 0, "they lie in a slot");
        let other = held.split_off(20);
        std::thread::scope(|scope| {
            scope.spawn(move || drop(other));
        });
        for (n, message) in held.iter().enumerate() {
            assert_eq!(message.to_vec(), payload(n as u64, 33));
        }
        while held.len() > 1 {
            held.swap_remove(held.len() / 2);
        }
        assert!(a.stream(Qos::default()).unwrap().audit().held > 0, "one of them is still held");
        drop(held);
        let audit = a.stream(Qos::default()).unwrap().audit();
        assert_eq!((audit.held, audit.lost, audit.doubly_owned), (0, 0, 0));
    }
}

fn outcome(source: &Source, token: Token) -> Outcome {
    source.outcome(token).unwrap()
}

#[test]
fn a_sink_that_closes_in_the_middle_of_a_pack_is_counted() {
    let _watchdog = Watchdog::start("closing", LIMIT);
    let host = Host::start();
    let (a, b, c) = (host.session("source"), host.session("closing"), host.session("staying"));
    let closing = b.stream(Qos::default()).unwrap().sink("close").unwrap();
    let staying = c.stream(Qos::default()).unwrap().sink("close").unwrap();
    let source = a.stream(Qos::default()).unwrap().source("close").unwrap();
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
    let warm = warm_up(&source, &[&closing, &staying]);
    let tokens: Vec<Token> = (0..30u64).map(|n| source.send_more(&payload(n, 20)).unwrap()).collect();
    source.flush().unwrap();
    for _ in 0..10 {
        drop(closing.consume_timeout(LIMIT).unwrap());
    }
    assert_eq!(outcome(&source, tokens[9]).delivered, 1, "the other has not looked yet");
    assert_eq!(outcome(&source, tokens[10]).pending, 2);
    let id = closing.id();
    drop(closing);
    for n in 0..30 {
        assert_eq!(staying.consume_timeout(LIMIT).unwrap().sequence(), warm + n + 1);
    }
    // A sink that is not there any more was not meant: the next messages are the other's alone.
    let last = source.send(b"last").unwrap();
    drop(staying.consume_timeout(LIMIT).unwrap());
    assert_eq!(outcome(&source, last).intended, 1);
    for (n, token) in tokens.iter().enumerate() {
        let outcome = outcome(&source, *token);
        let delivered = if n < 10 { 2 } else { 1 };
        assert!(outcome.is_final() && outcome.delivered == delivered, "{n}: {outcome:?}");
        assert_eq!(outcome.dropped, 2 - delivered, "{n}: {outcome:?}");
    }
    assert_eq!(a.stream(Qos::default()).unwrap().audit().held, 0);
    reconcile(&[&a, &b, &c], warm + 31, &[(id, warm + 10), (staying.id(), warm + 31)], 20);
}

#[test]
fn a_new_sink_gets_what_is_emitted_after_it_came() {
    let _watchdog = Watchdog::start("joining", LIMIT);
    let host = Host::start();
    let (a, b, c) = (host.session("source"), host.session("first"), host.session("second"));
    let first = b.stream(Qos::default()).unwrap().sink("join").unwrap();
    let source = a.stream(Qos::default()).unwrap().source("join").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let warm = warm_up(&source, &[&first]);
    for n in 0..5u64 {
        source.send_more(&payload(n, 8)).unwrap();
    }
    let second = c.stream(Qos::default()).unwrap().sink("join").unwrap();
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
    // What waited was sent when the other one came, to whom it was meant for.
    for n in 0..5 {
        assert_eq!(first.consume_timeout(LIMIT).unwrap().sequence(), warm + n + 1);
    }
    source.send(b"both").unwrap();
    assert_eq!(first.consume_timeout(LIMIT).unwrap().sequence(), warm + 6);
    assert_eq!(second.consume_timeout(LIMIT).unwrap().sequence(), warm + 6);
    reconcile(&[&a, &b, &c], warm + 6, &[(first.id(), warm + 6), (second.id(), 1)], 0);
}

#[test]
fn asking_for_the_outcome_and_closing_send_what_waits() {
    let _watchdog = Watchdog::start("ends", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    let sink = b.stream(Qos::default()).unwrap().sink("ends").unwrap();
    let source = a.stream(Qos::default()).unwrap().source("ends").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let warm = warm_up(&source, &[&sink]);
    let token = source.send_more(b"waits").unwrap();
    assert!(sink.try_consume().unwrap().is_none(), "it waits for more");
    assert_eq!(outcome(&source, token).pending, 1);
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().sequence(), warm + 1);
    assert_eq!(outcome(&source, token).delivered, 1);
    for n in 0..3u64 {
        source.send_more(&payload(n, 8)).unwrap();
    }
    drop(source);
    for n in 0..3 {
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().sequence(), warm + 2 + n);
    }
    assert_eq!(a.stream(Qos::default()).unwrap().audit().held, 0);
    reconcile(&[&a, &b], warm + 4, &[(sink.id(), warm + 4)], 0);
}

#[test]
fn without_room_nothing_is_emitted_or_lost() {
    let _watchdog = Watchdog::start("full", LIMIT);
    let host = Host::with(|config| config.quota.link_entries = 16);
    let (a, b) = (host.session("source"), host.session("sink"));
    let sink = b.stream(Qos::default()).unwrap().sink("full").unwrap();
    let source = a.stream(Qos::default()).unwrap().source("full").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let mut sent = warm_up(&source, &[&sink]);
    let before = sent;
    for len in [8usize, 500] {
        let start = sent;
        while source.try_send_more(&payload(sent, len)).unwrap().is_some() {
            sent += 1;
            assert!(sent < 100_000, "the link has 16 entries");
        }
        assert!(len == 500 || sent - start > 100, "{} small ones in 16 entries", sent - start);
        // And again, and in every other way.
        assert!(source.try_send(&payload(0, len)).unwrap().is_none());
        assert_eq!(source.wait_for_room(Duration::from_millis(1)).unwrap_err().code(), Code::Timeout);
        for n in start..sent {
            assert_eq!(sink.consume_timeout(LIMIT).unwrap().sequence(), n + 1);
        }
        assert!(sink.try_consume().unwrap().is_none());
        source.wait_for_room(LIMIT).unwrap();
    }
    assert!(sent > before);
    assert_eq!(a.stream(Qos::default()).unwrap().audit().held, 0);
    reconcile(&[&a, &b], sent, &[(sink.id(), sent)], 0);
}

/// Who asks for room before it emits has half of a link that sinks share: what it emits is refused by none, also by one that takes nothing.
#[test]
fn who_asks_for_room_loses_nothing_beside_a_sink_that_takes_nothing() {
    let _watchdog = Watchdog::start("half", LIMIT);
    let host = Host::with(|config| {
        config.quota.link_entries = 64;
        (config.quota.memory_mib_per_session, config.quota.message_mib) = (16, 1);
    });
    for (len, more) in [(8usize, false), (8, true), (500, false), (500, true), (60_000, false)] {
        let what = format!("{len} bytes, more {more}");
        let (a, b) = (host.session("source"), host.session("sinks"));
        let (stream, sinks) = (a.stream(Qos::default()).unwrap(), b.stream(Qos::default()).unwrap());
        let [reads, sleeps] = ["reads", "sleeps"].map(|channel| sinks.sink(channel).unwrap());
        let sources = ["reads", "sleeps"].map(|channel| stream.source(channel).unwrap());
        assert!(sources.iter().all(|source| source.wait_for_sinks(1, LIMIT) == 1));
        let mut sent = [0, 0];
        for round in 0..2000u64 {
            for (source, sent) in sources.iter().zip(&mut sent) {
                let message = payload(round, len);
                let token = if more { source.try_send_more(&message) } else { source.try_send(&message) };
                *sent += u64::from(token.unwrap().is_some());
            }
            // Now and then it does not come to taking them.
            while round % 32 > 3 && reads.try_consume().unwrap().is_some() {}
        }
        sources.iter().for_each(|source| source.flush().unwrap());
        while reads.try_consume().unwrap().is_some() {}
        while sleeps.try_consume().unwrap().is_some() {}
        assert!(sent.iter().all(|sent| (15..2000).contains(sent)), "{what}: {sent:?}");
        let counts = || a.counts().into_iter().chain(b.counts());
        assert_eq!(counts().map(|cell| cell.get(Count::SinkFull)).sum::<u64>(), 0, "{what}: {sent:?}");
        let all = sent[0] + sent[1];
        reconcile(&[&a, &b], all, &[(reads.id(), sent[0]), (sleeps.id(), sent[1])], 0);
    }
}
