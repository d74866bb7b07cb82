//! Applications on one host talk through shared memory.

use insane::{Channel, Code, Event, Qos, Reliability, SinkOptions, SourceOptions, Wait, WhenFull};
use insane_tests_host::{Host, Watchdog, reconcile, reconcile_cells};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

fn reliable() -> Qos {
    let mut qos = Qos::default();
    qos.set_reliability(Reliability::Reliable);
    qos
}

#[test]
fn a_message_of_every_size_arrives_whole() {
    let _watchdog = Watchdog::start("sizes", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    for qos in [Qos::default(), reliable()] {
        let sink = b.stream(qos).unwrap().sink("sizes").unwrap();
        let source = a.stream(qos).unwrap().source("sizes").unwrap();
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
        for len in [0usize, 1, 7, 8, 63, 64, 65, 255, 256, 257, 1024, 4096, 65_000, 1 << 20, (5 << 20) + 3] {
            let payload: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
            let token = source.send(&payload).unwrap();
            let message = sink.consume_timeout(LIMIT).unwrap();
            assert_eq!((message.len(), message.sequence()), (len, token.0));
            assert!(message.to_vec() == payload, "{len} bytes differ");
            assert_eq!(message.source(), source.epoch());
            drop(message);
            let outcome = source.outcome(token).unwrap();
            assert!(outcome.is_final() && outcome.delivered == 1 && outcome.intended == 1, "{outcome:?}");
        }
        let audit = a.stream(qos).unwrap().audit();
        assert_eq!((audit.held, audit.lost, audit.doubly_owned), (0, 0, 0), "{audit:?}");
    }
    reconcile([&a, &b], 30, 30);
}

#[test]
fn one_session_has_both_ends() {
    let _watchdog = Watchdog::start("own", LIMIT);
    let host = Host::start();
    let session = host.session("both");
    let stream = session.stream(Qos::default()).unwrap();
    let (first, second) = (stream.sink("loop").unwrap(), stream.sink("loop").unwrap());
    let source = stream.source("loop").unwrap();
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
    for i in 0..100u32 {
        source.send(&[i as u8; 200]).unwrap();
    }
    for i in 0..100u32 {
        assert_eq!(first.consume_timeout(LIMIT).unwrap().to_vec(), [i as u8; 200]);
        assert_eq!(second.consume_timeout(LIMIT).unwrap().to_vec(), [i as u8; 200]);
    }
    assert_eq!(stream.audit().held, 0);
    reconcile([&session], 200, 200);
}

#[test]
fn a_full_link_drops_alone_and_counts() {
    let _watchdog = Watchdog::start("full", LIMIT);
    let host = Host::with(|c| c.quota.link_entries = 64);
    let (a, b, c) = (host.session("source"), host.session("reads"), host.session("sleeps"));
    let reads = b.stream(Qos::default()).unwrap().sink("flood").unwrap();
    let sleeps = c.stream(Qos::default()).unwrap().sink("flood").unwrap();
    let source = a.stream(Qos::default()).unwrap().source("flood").unwrap();
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
    let mut last = source.send(&[0; 300]).unwrap();
    for i in 1..1000u32 {
        reads.consume_timeout(LIMIT).unwrap();
        last = source.send(&i.to_le_bytes().repeat(75)).unwrap();
    }
    reads.consume_timeout(LIMIT).unwrap();
    let outcome = source.outcome(last).unwrap();
    assert_eq!((outcome.delivered, outcome.dropped), (1, 1), "{outcome:?}");
    let mut seen = 0;
    while sleeps.try_consume().unwrap().is_some() {
        seen += 1;
    }
    assert_eq!(seen, 64, "the sleeping sink keeps what its link holds");
    reconcile([&a, &b, &c], 2000, 1064);
}

#[test]
fn sinks_of_one_session_share_the_room_on_their_link() {
    let _watchdog = Watchdog::start("share", LIMIT);
    let host = Host::with(|c| c.quota.link_entries = 64);
    let (a, b) = (host.session("source"), host.session("sinks"));
    let sinks = b.stream(Qos::default()).unwrap();
    let [reads, sleeps] = [(); 2].map(|()| sinks.sink("shared").unwrap());
    let source = a.stream(Qos::default()).unwrap().source("shared").unwrap();
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
    let send = |count: u8| {
        for i in 0..count {
            source.send(&[i; 300]).unwrap();
        }
    };
    let take = |sink: &insane::Sink| std::iter::from_fn(|| sink.try_consume().unwrap().map(drop)).count();
    send(64);
    assert_eq!(take(&reads), 64);
    send(64);
    assert_eq!(take(&reads), 0, "the other has the room");
    assert_eq!(take(&sleeps), 64);
    send(64);
    assert_eq!([&reads, &sleeps].map(take), [64, 64]);
    reconcile([&a, &b], 384, 256);
}

#[test]
fn a_reliable_source_waits_and_then_does_what_it_was_told() {
    let _watchdog = Watchdog::start("reliable", LIMIT);
    let host = Host::with(|c| c.quota.link_entries = 16);
    let (a, b) = (host.session("source"), host.session("sink"));
    let stream = a.stream(reliable()).unwrap();
    let sink = b.stream(reliable()).unwrap().sink("r").unwrap();
    for (when_full, deadline) in [(WhenFull::Fail, 50), (WhenFull::DropSink, 50)] {
        let deadline = Duration::from_millis(deadline);
        let source =
            stream.source_with("r", SourceOptions { when_full, deadline, ..SourceOptions::default() }).unwrap();
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
        for i in 0..16u8 {
            source.send(&[i; 100]).unwrap();
        }
        let result = source.send(&[16; 100]);
        if when_full == WhenFull::Fail {
            assert_eq!(result.unwrap_err().code(), Code::SinkFull);
            assert_eq!(source.sinks(), 1);
        } else {
            result.unwrap();
            assert_eq!(source.sinks(), 0);
            let event = a.next_event().expect("it is told of");
            assert!(matches!(event, Event::SinkGivenUp { .. }), "{event:?}");
            assert_eq!((event.number(), event.name()), (6, "SinkGivenUp"));
            assert!(event.to_string().contains("gave sink"), "{event}");
        }
        for i in 0..16u8 {
            assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), [i; 100]);
        }
    }
    // With a reader nothing is lost, however slow it is.
    let source = stream.source("r").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let reader = std::thread::spawn(move || {
        for i in 0..2000u32 {
            let message = sink.consume_timeout(LIMIT).unwrap();
            assert_eq!(message.to_vec(), i.to_le_bytes());
            if i.is_multiple_of(97) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    for i in 0..2000u32 {
        source.send(&i.to_le_bytes()).unwrap();
    }
    reader.join().unwrap();
    // Twice sixteen, and two thousand; the one that gave its only sink up was meant for nobody by then.
    reconcile([&a, &b], 2032, 2032);
}

#[test]
fn names_are_checked_and_conflicts_refused() {
    let _watchdog = Watchdog::start("names", LIMIT);
    let host = Host::start();
    let session = host.session("names");
    let stream = session.stream_named("control", Qos::default()).unwrap();
    assert_eq!(stream.name(), "control");
    let other = host.session("other");
    assert_eq!(other.stream_named("control", reliable()).unwrap_err().code(), Code::QosConflict);
    assert_eq!(session.stream_named("a\nb", Qos::default()).unwrap_err().code(), Code::InvalidName);
    assert_eq!(session.stream_named("qos:x", Qos::default()).unwrap_err().code(), Code::InvalidName);
    assert_eq!(stream.sink("").unwrap_err().code(), Code::InvalidName);
    let named = stream.sink("one").unwrap();
    let clash = stream.sink(Channel::Id(named.channel().0)).unwrap_err();
    assert_eq!(clash.code(), Code::ChannelIdTaken);
    let mut sensitive = Qos::default();
    sensitive.set_timing(insane::Timing::Sensitive);
    assert_eq!(session.stream_with("tsn", sensitive, true).unwrap_err().code(), Code::QosUnavailable);
    let effective = session.stream_named("tsn", sensitive).unwrap().effective_qos();
    assert!(effective[0].datapath == "shm" && effective[0].reasons.len() == 1, "{effective:?}");
    // That it is open is no reason to give less than what is insisted on.
    assert_eq!(session.stream_with("tsn", sensitive, true).unwrap_err().code(), Code::QosUnavailable);
    assert_eq!(session.stream_with("control", Qos::default(), true).unwrap().name(), "control");
    assert_eq!(host.builder("x").domain("nowhere").open().unwrap_err().code(), Code::NotPermitted);
}

#[test]
fn late_messages_expire_and_closed_sinks_are_counted() {
    let _watchdog = Watchdog::start("expire", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    let sink = b.stream(Qos::default()).unwrap().sink("late").unwrap();
    let source = a.stream(Qos::default()).unwrap().source("late").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let emit = |within| {
        let mut buffer = source.buffer(100).unwrap();
        buffer.fill(1);
        source.emit_within(buffer, within).unwrap()
    };
    let late = emit(Duration::from_nanos(1));
    let good = emit(LIMIT);
    std::thread::sleep(Duration::from_millis(1));
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().sequence(), good.0);
    let outcome = source.outcome(late).unwrap();
    assert_eq!((outcome.expired, outcome.delivered), (1, 0), "{outcome:?}");
    assert_eq!(source.outcome(good).unwrap().delivered, 1);
    for _ in 0..10 {
        emit(LIMIT);
    }
    sink.close();
    assert_eq!(sink.consume().unwrap_err().code(), Code::Closed);
    source.wait_for_sinks(0, LIMIT);
    reconcile([&a, &b], 12, 1);
    assert_eq!(source.sinks(), 0);
    assert_eq!(a.stream(Qos::default()).unwrap().audit().held, 0);
}

#[test]
fn a_message_that_waits_at_its_sink_past_its_deadline_expires() {
    let _watchdog = Watchdog::start("expire-queued", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    let stream = b.stream(Qos::default()).unwrap();
    let (one, two) = (stream.sink("late").unwrap(), stream.sink("late").unwrap());
    let source = a.stream(Qos::default()).unwrap().source("late").unwrap();
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
    let emit = |within| {
        let mut buffer = source.buffer(100).unwrap();
        buffer.fill(1);
        source.emit_within(buffer, within).unwrap()
    };
    let within = Duration::from_millis(500);
    let (began, late) = (Instant::now(), emit(within));
    // It comes in time, and is moved to both sinks' queues.
    assert!(one.has_message().unwrap() || began.elapsed() > within);
    while began.elapsed() <= within + Duration::from_millis(10) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!one.has_message().unwrap(), "what is late is not to be had");
    let good = emit(LIMIT);
    assert_eq!(two.consume_timeout(LIMIT).unwrap().sequence(), good.0);
    assert_eq!(one.try_each(9, |m| assert_eq!(m.sequence(), good.0)).unwrap(), 1);
    let outcome = source.outcome(late).unwrap();
    assert_eq!((outcome.expired, outcome.delivered), (2, 0), "{outcome:?}");
    assert_eq!(source.outcome(good).unwrap().delivered, 2);
    reconcile([&a, &b], 4, 2);
}

#[test]
fn waiting_in_every_way_gets_every_message() {
    let _watchdog = Watchdog::start("waiting", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    for wait in [Wait::Sleep, Wait::Adaptive] {
        let options = SinkOptions { wait, ..SinkOptions::default() };
        let there = b.stream(Qos::default()).unwrap().sink_with("there", options.clone()).unwrap();
        let back = b.stream(Qos::default()).unwrap().source("back").unwrap();
        let here = a.stream(Qos::default()).unwrap().sink_with("back", options).unwrap();
        let out = a.stream(Qos::default()).unwrap().source("there").unwrap();
        assert_eq!((out.wait_for_sinks(1, LIMIT), back.wait_for_sinks(1, LIMIT)), (1, 1));
        let echo = std::thread::spawn(move || {
            for _ in 0..2000 {
                let message = there.consume_timeout(LIMIT).unwrap();
                back.send(&message.to_vec()).unwrap();
            }
        });
        for i in 0..2000u32 {
            out.send(&i.to_le_bytes()).unwrap();
            assert_eq!(here.consume_timeout(LIMIT).unwrap().to_vec(), i.to_le_bytes());
        }
        echo.join().unwrap();
    }
    reconcile([&a, &b], 8000, 8000);
}

#[test]
fn the_future_and_the_callback_get_messages() {
    let _watchdog = Watchdog::start("async", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    let source = a.stream(Qos::default()).unwrap().source("f").unwrap();
    let sink = b.stream(Qos::default()).unwrap().sink("f").unwrap();
    let counted = b.stream(Qos::default()).unwrap().sink("f").unwrap();
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
    let (sender, receiver) = std::sync::mpsc::channel();
    let callback = counted.on_message(move |m| sender.send(m.to_vec()).unwrap()).unwrap();
    let writer = std::thread::spawn(move || {
        for i in 0..200u8 {
            source.send(&[i; 90]).unwrap();
            if i.is_multiple_of(10) {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        source
    });
    for i in 0..200u8 {
        assert_eq!(block_on(sink.receive()).unwrap().to_vec(), [i; 90]);
        assert_eq!(receiver.recv_timeout(LIMIT).unwrap(), [i; 90]);
    }
    drop(callback);
    drop(writer.join().unwrap());
    reconcile([&a, &b], 400, 400);
}

/// The smallest executor: parks this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park_timeout(LIMIT),
        }
    }
}

#[test]
fn a_restart_of_the_runtime_leaves_local_channels_alone() {
    let _watchdog = Watchdog::start("restart", LIMIT);
    let mut host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    let sink = b.stream(Qos::default()).unwrap().sink("on").unwrap();
    let source = a.stream(Qos::default()).unwrap().source("on").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let mut past = Vec::new();
    for round in 0..3u32 {
        host.stop();
        for i in 0..100u32 {
            source.send(&(round * 100 + i).to_le_bytes()).unwrap();
            assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), (round * 100 + i).to_le_bytes());
        }
        host.restart();
        // A new session finds the old source, and the old sink is not matched twice.
        let late = host.session("late");
        let other = late.stream(Qos::default()).unwrap().sink("on").unwrap();
        assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
        source.send(b"both").unwrap();
        assert_eq!(other.consume_timeout(LIMIT).unwrap().to_vec(), b"both");
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"both");
        drop(other);
        past.extend(late.counts());
        late.close();
        while source.sinks() > 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(sink.try_consume().unwrap().is_none());
    }
    let cells = || [&a, &b].into_iter().flat_map(insane::Session::counts).chain(past.iter().cloned()).collect();
    reconcile_cells(cells, 306, 306);
}

#[test]
fn more_to_come_is_seen_at_once_and_wakes_when_it_is_flushed() {
    let _watchdog = Watchdog::start("more", LIMIT);
    let host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    let options = SinkOptions { wait: Wait::Sleep, ..SinkOptions::default() };
    let sink = b.stream(Qos::default()).unwrap().sink_with("more", options).unwrap();
    let source = a.stream(Qos::default()).unwrap().source("more").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    // Who looks finds it, nobody has flushed.
    source.emit_more(source.buffer(8).unwrap()).unwrap();
    assert_eq!(sink.try_consume().unwrap().expect("it is on the link").sequence(), 1);
    for round in 0..300u64 {
        let sleeper = std::thread::scope(|scope| {
            let sink = &sink;
            let waiting = scope
                .spawn(move || (0..4).map(|_| sink.consume_timeout(LIMIT).unwrap().sequence()).collect::<Vec<u64>>());
            for len in [8, 300, 0] {
                source.emit_more(source.buffer(len).unwrap()).unwrap();
            }
            // The last one wakes in any of three ways.
            match round % 3 {
                0 => source.emit(source.buffer(8).unwrap()).map(drop).unwrap(),
                1 => source.send(b"last").map(drop).unwrap(),
                _ => {
                    source.emit_more(source.buffer(100).unwrap()).unwrap();
                    source.flush().unwrap();
                }
            }
            waiting.join().unwrap()
        });
        assert_eq!(sleeper, (round * 4 + 2..round * 4 + 6).collect::<Vec<_>>());
    }
    // A source that goes away flushes.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| sink.consume_timeout(LIMIT).map(|m| m.len()));
        source.emit_more(source.buffer(77).unwrap()).unwrap();
        drop(source);
        assert_eq!(waiting.join().unwrap().unwrap(), 77);
    });
    reconcile([&a, &b], 1202, 1202);
}

#[test]
fn a_buffer_of_another_stream_is_refused_and_not_lost() {
    let _watchdog = Watchdog::start("foreign buffer", LIMIT);
    let host = Host::start();
    let session = host.session("both");
    let (one, other) = (session.stream(Qos::default()).unwrap(), session.stream(reliable()).unwrap());
    let (a, b) = (one.source("x").unwrap(), other.source("x").unwrap());
    for len in [8, 300] {
        let buffer = a.buffer(len).unwrap();
        assert_eq!(b.emit(buffer).unwrap_err().code(), Code::InvalidArgument);
    }
    assert_eq!((one.audit().held, other.audit().held), (0, 0));
}

/// Large messages fill a link's memory long before its entries.
#[test]
fn who_waits_for_room_loses_no_large_message() {
    let _watchdog = Watchdog::start("large room", LIMIT);
    let host = Host::with(|c| c.quota.memory_mib_per_session = 64);
    let (a, b) = (host.session("source"), host.session("sink"));
    let sink = b.stream(Qos::default()).unwrap().sink("large").unwrap();
    let options = SourceOptions { message_bytes: 4 << 20, ..SourceOptions::default() };
    let source = a.stream(Qos::default()).unwrap().source_with("large", options).unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let count = 200u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=count {
                let message = sink.consume_timeout(LIMIT).unwrap();
                assert_eq!((message.sequence(), message.len()), (n, 4 << 20));
                // It takes its time: the source is quicker.
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        for _ in 1..=count {
            let buffer = loop {
                match source.buffer(4 << 20) {
                    Ok(buffer) => break buffer,
                    Err(e) => assert_eq!(e.code(), Code::NoBuffer),
                }
                std::thread::yield_now();
            };
            source.wait_for_room(LIMIT).unwrap();
            source.emit(buffer).unwrap();
        }
    });
    reconcile([&a, &b], count, count);
}
