//! Sinks that join a source while it emits, beside others of the same session: what is for each begins with one message, and
//! both ends count from that on.

use insane::{Qos, Reliability, Session, Sink, Source, Stream};
use insane_tests_host::{Host, Watchdog, account, payload, reconcile};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const JOINS: u64 = 200;

/// Emits as fast as there is room, small messages in packs, alone and in slots of their own, until told to stop.
fn emit(source: &Source, over: &AtomicBool) -> u64 {
    let mut n = 0;
    while !over.load(Ordering::Acquire) {
        n += 1;
        let bytes = payload(n, if n % 7 == 0 { 200 } else { 16 });
        while (if n % 5 == 0 { source.try_send(&bytes) } else { source.try_send_more(&bytes) }).unwrap().is_none() {
            source.wait_for_room(LIMIT).unwrap();
        }
    }
    source.flush().unwrap();
    n
}

/// Takes what follows without a gap, until nothing has come for a while or `most` have. Returns how many.
fn take(sink: &Sink, most: u64) -> u64 {
    let (mut seen, mut last) = (0, None);
    while seen < most {
        let Ok(message) = sink.consume_timeout(Duration::from_millis(500)) else { break };
        let number = message.sequence();
        assert!(last.is_none_or(|last| number == last + 1), "{number} came after {last:?}");
        (seen, last) = (seen + 1, Some(number));
    }
    seen
}

fn check(stream: impl Fn(&Session) -> Stream) {
    let host = Host::start();
    let (a, b) = (host.session("source"), host.session("sinks"));
    let source = stream(&a).source("joins").unwrap();
    let sinks = stream(&b);
    let always = sinks.sink("joins").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let over = AtomicBool::new(false);
    let (emitted, seen) = std::thread::scope(|scope| {
        let emitting = scope.spawn(|| emit(&source, &over));
        let taking = scope.spawn(|| take(&always, u64::MAX));
        let mut seen = 0;
        for join in 0..JOINS {
            let sink = sinks.sink("joins").unwrap();
            // Now and then it is closed before anything came.
            if join % 10 != 9 {
                let came = take(&sink, 20);
                assert_eq!(came, 20, "join {join}");
                seen += came;
            }
        }
        over.store(true, Ordering::Release);
        let emitted = emitting.join().unwrap();
        let always = taking.join().unwrap();
        assert_eq!(always, emitted);
        (emitted, seen + always)
    });
    let intended = account(&a.counts()).intended;
    assert!(intended > emitted, "nothing was meant for those that joined");
    reconcile([&a, &b], intended, seen);
}

#[test]
fn what_is_for_a_sink_begins_where_its_source_counts_from() {
    let _watchdog = Watchdog::start("joins", LIMIT);
    check(|session| session.stream(Qos::default()).unwrap());
}

#[test]
fn it_does_so_on_reliable_streams() {
    let _watchdog = Watchdog::start("reliable joins", LIMIT);
    let mut qos = Qos::default();
    qos.set_reliability(Reliability::Reliable);
    check(move |session| session.stream(qos).unwrap());
}
