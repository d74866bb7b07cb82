//! Servers and clients that die, stop or talk nonsense.

use insane::{Qos, Reliability, SourceOptions};
use insane_tests_control::{FIRST, PREFIX, Process, SECOND, Served, client};
use insane_tests_host::{Host, Watchdog};
use insane_traffic::PipelineSpec;
use insane_traffic::spec::Change;
use insane_traffic_control::messages::{self, Request, request::Body};
use insane_traffic_control::value::{Kind, List, Value};
use insane_traffic_control::{ClientError, VERSION};
use prost::Message;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

fn pacer() -> Vec<Change> {
    serde_json::from_str(r#"[{"op":"set-pacer","pacer":{"type":"5g-bdp"}}]"#).expect("changes")
}

#[test]
fn a_server_that_dies_and_returns_is_found_again_and_indications_go_on() {
    let _watchdog = Watchdog::start("a server that returns", Duration::from_secs(100));
    let host = Host::start();
    let mut server = Process::start(&host);
    let session = host.session("xapp");
    let client = client(&session, Duration::from_secs(5));
    client.change(FIRST, &pacer(), None).unwrap();
    let mut subscription = client.subscribe(&[], Duration::from_millis(5), Duration::from_millis(300)).unwrap();
    let seen = subscription.next(LIMIT).unwrap();
    assert_eq!(seen.bearers[0].pipeline.generation, 1);
    for round in 1..=2 {
        server.kill();
        // The dead one's last indications may still be there; then none come.
        let silent = Instant::now();
        while subscription.next(Duration::from_millis(200)).is_ok() {
            assert!(silent.elapsed() < LIMIT, "indications of a dead server");
        }
        server = Process::start(&host);
        let next = subscription.next(LIMIT).expect("indications of the new server");
        assert_eq!((next.bearers.len(), next.bearers[0].pipeline.generation), (2, 0), "its pipelines are new");
        assert_eq!(subscription.restarts(), round);
    }
    assert_eq!(client.change(SECOND, &pacer(), Some(0)).unwrap(), 1);
}

#[test]
fn a_server_that_stands_still_is_a_timeout_and_what_was_asked_is_done_once() {
    let _watchdog = Watchdog::start("a server that stands still", Duration::from_secs(60));
    let host = Host::start();
    let server = Process::start(&host);
    let session = host.session("xapp");
    let client = client(&session, Duration::from_millis(900));
    assert_eq!(client.change(FIRST, &pacer(), None).unwrap(), 1);
    server.freeze(true);
    // Longer than it waits for a reply before it asks again: the request is there several times.
    assert_eq!(client.change(FIRST, &pacer(), None), Err(ClientError::Timeout));
    server.freeze(false);
    let began = Instant::now();
    let generation = loop {
        match client.show(FIRST) {
            Ok((_, state)) if state.pipeline.generation > 1 => break state.pipeline.generation,
            _ => assert!(began.elapsed() < LIMIT, "the request is lost"),
        }
    };
    assert_eq!(generation, 2);
    assert_eq!(client.show(FIRST).unwrap().1.pipeline.generation, 2);
}

#[test]
fn the_runtimes_restart_leaves_control_as_it_is() {
    let _watchdog = Watchdog::start("the runtime's restart", Duration::from_secs(60));
    let mut host = Host::start();
    let served = Served::start(&host);
    let session = host.session("xapp");
    let client = client(&session, LIMIT);
    let mut subscription = client.subscribe(&[FIRST], Duration::from_millis(5), Duration::from_secs(1)).unwrap();
    let before = subscription.next(LIMIT).unwrap();
    host.restart();
    assert_eq!(client.change(FIRST, &pacer(), None).unwrap(), 1);
    loop {
        let next = subscription.next(LIMIT).expect("they go on");
        if next.bearers[0].pipeline.generation == 1 {
            assert!(next.number > before.number);
            break;
        }
    }
    assert_eq!(subscription.restarts(), 0);
    drop(subscription);
    drop(served.stop());
}

/// Plays an xApp that is killed: it goes without a word, by leaving its process with its subscription.
#[test]
fn the_subscription_of_a_client_that_dies_ends_with_its_lease() {
    let _watchdog = Watchdog::start("a client that dies", Duration::from_secs(60));
    let host = Host::start();
    let served = Served::start(&host);
    let session = host.session("xapp");
    let client = client(&session, LIMIT);
    let lease = Duration::from_millis(200);
    let mut subscription = client.subscribe(&[FIRST], Duration::from_millis(2), lease).unwrap();
    let first = subscription.next(LIMIT).unwrap();
    assert!(first.number >= 1);
    // It is never renewed, and never told to end.
    std::mem::forget(subscription);
    let began = Instant::now();
    // All places can be taken again once it has ended.
    let all = loop {
        let taken: Result<Vec<_>, _> = (0..insane_traffic_control::MAX_SUBSCRIPTIONS)
            .map(|_| client.subscribe(&[SECOND], Duration::from_secs(1), Duration::from_secs(30)))
            .collect();
        match taken {
            Ok(all) => break all,
            Err(ClientError::Refused(_)) => assert!(began.elapsed() < LIMIT, "the lease does not end"),
            Err(e) => panic!("{e}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    drop(all);
    client.list().unwrap();
    let left = served.stop();
    assert_eq!((left.counts.expired, left.subscriptions), (1, 0));
}

#[test]
fn hostile_messages_change_nothing_and_others_are_served() {
    let _watchdog = Watchdog::start("hostile messages", Duration::from_secs(60));
    let host = Host::start();
    let served = Served::start(&host);
    let hostile = host.session("hostile");
    let mut reliable = Qos::default();
    reliable.set_reliability(Reliability::Reliable);
    let stream = hostile.stream(reliable).unwrap();
    let source = stream.source_with(format!("{PREFIX}/request").as_str(), SourceOptions::default()).unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let deep = |depth| {
        let inner = |inner, _| Value { kind: Some(Kind::List(List { items: vec![inner] })) };
        (0..depth).fold(Value::default(), inner)
    };
    let mut number = 0;
    let mut request = |version, body| {
        number += 1;
        Request { version, client: 7, number, sent_ns: 0, body }
    };
    let load = |value| Body::Load(messages::Load { bearer: Some(FIRST), pipeline: Some(value), ..Default::default() });
    let mut garbage: Vec<Vec<u8>> = vec![Vec::new(), vec![0; 100], vec![0xff; 5_000], vec![0; (1 << 20) + 1]];
    garbage.push(request(VERSION, Some(load(deep(40)))).encode_to_vec());
    garbage.push(request(VERSION + 1, Some(load(deep(3)))).encode_to_vec());
    garbage.push(request(VERSION, None).encode_to_vec());
    garbage.push(request(VERSION, Some(Body::Show(messages::Show { bearer: None }))).encode_to_vec());
    let count = garbage.len() as u64;
    for message in &garbage {
        source.send(message).unwrap();
    }
    // Nobody reads the replies to these; a good client has its own.
    let session = host.session("good");
    let good = client(&session, LIMIT);
    assert_eq!(good.show(FIRST).unwrap().0, PipelineSpec::default());
    assert_eq!(good.change(FIRST, &pacer(), Some(0)).unwrap(), 1);
    let left = served.stop();
    left.bearers.audit().unwrap();
    assert_eq!(left.counts.unreadable + left.counts.refused + left.counts.done, count + 2);
    assert!(left.counts.unreadable >= 2 && left.counts.refused >= 3, "{:?}", left.counts);
}
