//! Observers are sinks beside those that messages are meant for: they see what goes, and hold nobody up.

use insane::{Qos, Reliability, Session, Sink, SinkOptions, SourceOptions};
use insane_tests_host::{Host, Watchdog, reconcile};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const SIZE: usize = 1000;

fn payload(number: u32) -> Vec<u8> {
    let mut bytes = vec![number as u8; SIZE];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn observer(session: &Session, qos: Qos) -> Sink {
    session.stream(qos).unwrap().sink_with("seen", SinkOptions { observer: true, ..SinkOptions::default() }).unwrap()
}

/// Beside a sink that takes every message: one observer reads along and sees them all, another takes none until the end, which costs
/// it messages and nobody else anything.
#[test]
fn an_observer_sees_what_goes_and_holds_nobody_up() {
    const MESSAGES: u32 = 3000;
    let _watchdog = Watchdog::start("observers", LIMIT);
    for reliability in [Reliability::BestEffort, Reliability::Reliable] {
        let mut qos = Qos::default();
        qos.set_reliability(reliability);
        let host = Host::start();
        let [a, b, c, d] = ["source", "sink", "reads", "sleeps"].map(|name| host.session(name));
        let (reads, sleeps) = (observer(&c, qos), observer(&d, qos));
        let stream = a.stream(qos).unwrap();
        // Whoever would be waited for would be waited for too long.
        let options = SourceOptions { deadline: LIMIT, ..SourceOptions::default() };
        let source = stream.source_with("seen", options).unwrap();
        let sink = b.stream(qos).unwrap().sink("seen").unwrap();
        // One of the three is meant; the others look on as soon as they see something.
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
        let (mut first, mut seen) = (0, [false; 2]);
        while seen != [true; 2] {
            source.send(&payload(first)).unwrap();
            assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), payload(first));
            std::thread::sleep(Duration::from_millis(5));
            for (seen, looks) in seen.iter_mut().zip([&reads, &sleeps]) {
                *seen |= std::iter::from_fn(|| looks.try_consume().unwrap()).count() > 0;
            }
            first += 1;
        }
        assert_eq!(source.sinks(), 1);
        for number in first..first + MESSAGES {
            let token = source.send(&payload(number)).unwrap();
            assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), payload(number));
            assert_eq!(reads.consume_timeout(LIMIT).unwrap().to_vec(), payload(number));
            let outcome = source.outcome(token).unwrap();
            assert!(outcome.is_final() && (outcome.intended, outcome.delivered) == (1, 1), "{number}: {outcome:?}");
        }
        // What the other one still has is whole and in order, and is not all of it.
        let mut kept = Vec::new();
        while let Some(message) = sleeps.try_consume().unwrap() {
            let bytes = message.to_vec();
            let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            assert_eq!(bytes, payload(number));
            kept.push(number);
        }
        assert!(kept.is_sorted() && !kept.is_empty() && kept.len() < MESSAGES as usize, "{} of them", kept.len());
        let audit = stream.audit();
        assert_eq!((audit.held, audit.lost, audit.doubly_owned), (0, 0, 0), "{audit:?}");
        let all = u64::from(first + MESSAGES);
        reconcile([&a, &b], all, all);
    }
}
