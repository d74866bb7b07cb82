//! Observers on other hosts than a source's: they see what goes, and hold up nobody, wherever the sinks are.

use insane::{Session, Sink, SinkOptions, SourceOptions};
use insane_shm::counters::Count;
use insane_tests_host::Watchdog;
use insane_tests_network::{LIMIT, at_the_source, eventually, hosts, law, network_count, reliable};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(100);
const SIZE: usize = 1000;

fn payload(number: u32) -> Vec<u8> {
    let mut bytes = vec![number as u8; SIZE];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn observer(session: &Session) -> Sink {
    let options = SinkOptions { observer: true, ..SinkOptions::default() };
    session.stream(reliable()).unwrap().sink_with("seen", options).unwrap()
}

/// A reliable stream between two hosts; an observer that takes nothing until the end is beside the sink, and another on a third host:
/// that costs them messages and nobody else anything.
#[test]
fn observers_on_other_hosts_hold_no_reliable_sink_up() {
    // More than a link has entries, at each end.
    const MESSAGES: u32 = 6000;
    let _watchdog = Watchdog::start("observers", TEST);
    let hosts = hosts(3, |_, _| ());
    let a = hosts[0].session("source");
    let (b, beside, third) = (hosts[1].session("sink"), hosts[1].session("beside"), hosts[2].session("third"));
    let sleeping = [observer(&beside), observer(&third)];
    // Whoever would be waited for would be waited for too long.
    let options = SourceOptions { deadline: LIMIT, ..SourceOptions::default() };
    let source = a.stream(reliable()).unwrap().source_with("seen", options).unwrap();
    let sink = b.stream(reliable()).unwrap().sink("seen").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1, "{}", law(&a));
    let (mut first, mut seen) = (0, [false; 2]);
    while seen != [true; 2] {
        source.send(&payload(first)).unwrap();
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), payload(first));
        std::thread::sleep(Duration::from_millis(5));
        for (seen, looks) in seen.iter_mut().zip(&sleeping) {
            *seen |= std::iter::from_fn(|| looks.try_consume().unwrap()).count() > 0;
        }
        first += 1;
    }
    assert_eq!(source.sinks(), 1);
    for number in first..first + MESSAGES {
        source.send(&payload(number)).unwrap();
        let came = sink.consume_timeout(LIMIT).map(|message| message.to_vec());
        assert_eq!(came.ok(), Some(payload(number)), "{number}: {}", law(&a));
    }
    assert_eq!(source.sinks(), 1, "it is not given up");
    // What the others still have is whole and in order, and is not all of it.
    for looks in sleeping {
        let mut kept = Vec::new();
        while let Some(message) = looks.try_consume().unwrap() {
            let bytes = message.to_vec();
            let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            assert_eq!(bytes, payload(number));
            kept.push(number);
        }
        assert!(kept.is_sorted() && !kept.is_empty() && kept.len() < MESSAGES as usize, "{} of them", kept.len());
    }
    // Each message is meant for one of them; the runtime counts for each what its session has counted.
    let all = u64::from(first + MESSAGES);
    let had = |session: &Session| session.counts().iter().map(|cell| cell.get(Count::Delivered)).sum::<u64>();
    let agrees = || {
        let (intended, at_source, report) = at_the_source(&a);
        let seen = [&b, &beside, &third].map(had);
        (intended, at_source, seen[0]) == (all, 0, all)
            && network_count(&report, "delivered") == seen.iter().sum::<u64>()
            && network_count(&report, "sink_full") > 0
    };
    assert!(eventually(agrees), "{all}: {}", law(&a));
}
