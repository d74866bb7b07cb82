//! What the network's own session of a domain has with those of applications: memory, bells, and a pair of sockets each.

use insane::{Event, Qos};
use insane_shm::link::DeliveryBlock;
use insane_shm::memory::SharedMemory;
use insane_shm::ring::LAYOUT;
use insane_tests_host::hostile::{Raw, say};
use insane_tests_host::{Watchdog, payload};
use insane_tests_network::{LIMIT, Process, config, eventually, free_addresses, hosts, law_holds, reliable};
use insane_wire::peer::{self, to_peer::Body};
use std::sync::Arc;
use std::time::Duration;

const TEST: Duration = Duration::from_secs(60);

#[test]
fn sinks_have_what_comes_though_it_is_more_than_a_session_may_own() {
    let _watchdog = Watchdog::start("memory of the network's", TEST);
    let hosts = hosts(2, |_, config| config.quota.memory_mib_per_session = 4);
    let (a, b) = (hosts[0].session("source"), hosts[1].session("sink"));
    let (source, sink) = (a.stream(reliable()).unwrap(), b.stream(reliable()).unwrap());
    let (source, sink) = (source.source("large").unwrap(), sink.sink("large").unwrap());
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let len = 500_000;
    let held: Vec<_> = (1..=40)
        .map(|n| {
            source.send(&payload(n, len)).unwrap();
            sink.consume_timeout(LIMIT).unwrap()
        })
        .collect();
    for (message, n) in held.iter().zip(1..) {
        assert!(message.to_vec() == payload(n, len), "message {n}");
    }
    drop(held);
    let broken = |event: Event| matches!(event, Event::PeerBroken { .. } | Event::PeerLost { .. });
    assert!(!std::iter::from_fn(|| b.next_event()).any(broken));
    assert!(eventually(|| law_holds(&a)), "{:?}", a.counts());
}

#[test]
fn a_session_that_keeps_the_bells_of_links_that_are_gone_takes_no_descriptors() {
    const LINKS: u32 = 16;
    let _watchdog = Watchdog::start("bells", TEST);
    let addresses = free_addresses(2);
    let program = env!("CARGO_BIN_EXE_runtime");
    let hosts =
        [0, 1].map(|at| Process::start(program, None, &config(&format!("host-{at}"), addresses[at], &addresses)));
    let session = hosts[1].session("sink");
    let sink = session.stream(Qos::default()).unwrap().sink("bells").unwrap();
    let round = || {
        let mut raw = Raw::open(&hosts[0].socket()).unwrap();
        raw.endpoint("bells", true).unwrap();
        let mut pair = Vec::new();
        assert!(eventually(|| {
            pair.append(&mut raw.pairs(Duration::from_millis(20)).0);
            !pair.is_empty()
        }));
        let bytes = DeliveryBlock::bytes(raw.entries).unwrap();
        let memory = Arc::new(SharedMemory::create("d", bytes, false, true).unwrap());
        DeliveryBlock::create(memory.clone(), raw.entries).unwrap();
        for link in 1..=LINKS {
            let offer =
                peer::LinkOffer { stream: format!("s{link}"), entries: raw.entries, reliable: false, layout: LAYOUT };
            say(&pair[0], link, Body::LinkOffer(offer), &[memory.fd()]).unwrap();
        }
        std::thread::sleep(Duration::from_millis(100));
        // Of no link: the pair ends.
        say(&pair[0], LINKS + 1, Body::SegmentAck(peer::SegmentRef { segment: 0 }), &[]).unwrap();
        // Unread, so that all that came over it is there still.
        pair
    };
    let mut kept = round();
    std::thread::sleep(Duration::from_millis(200));
    let before = hosts[0].holds().descriptors;
    for _ in 0..8 {
        kept.append(&mut round());
    }
    let now = || hosts[0].holds().descriptors;
    assert!(eventually(|| now() < before + LINKS as usize), "{before} before, {} now", now());
    // Others are served as ever.
    let other = hosts[0].session("source");
    let source = other.stream(Qos::default()).unwrap().source("bells").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    source.send(b"hello").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"hello");
    assert!(eventually(|| law_holds(&other)), "{:?}", other.counts());
    drop(kept);
}
