//! A reliable source with sinks on several hosts gives up those that hold it up, and no others.

use insane::{Event, Session, Sink, SourceOptions};
use insane_shm::counters::Count;
use insane_tests_host::Watchdog;
use insane_tests_namespaces::Namespaces;
use insane_tests_network::{
    LIMIT, Process, config, eventually, hosts, law, law_holds, network_count, reliable, status,
};
use std::thread::JoinHandle;
use std::time::Duration;

const TEST: Duration = Duration::from_secs(100);
const MESSAGES: u32 = 3000;

/// Less than the messages that are emitted, at each end.
const ENTRIES: u32 = 64;

fn payload(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(75)
}

/// Sees to it that a sink gets all of these messages, in order, each once.
fn takes_all(sink: Sink) -> JoinHandle<Sink> {
    std::thread::spawn(move || {
        for number in 0..MESSAGES {
            let came = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("message {number}: {e}"));
            assert_eq!(came.to_vec(), payload(number), "message {number}");
        }
        assert!(sink.consume_timeout(Duration::from_millis(100)).is_err(), "one came twice");
        sink
    })
}

/// A source in the first of three sessions on hosts of their own, a sink in the third that takes everything, and sinks in others on the
/// second host, of which the first takes nothing.
fn check(a: &Session, stuck: &[&Session], c: &Session) {
    let to = a.stream(reliable()).unwrap();
    let options = SourceOptions { deadline: Duration::from_millis(400), ..SourceOptions::default() };
    let source = to.source_with("lags", options).unwrap();
    let sinks: Vec<Sink> = stuck.iter().map(|b| b.stream(reliable()).unwrap().sink("lags").unwrap()).collect();
    let reads = c.stream(reliable()).unwrap().sink("lags").unwrap();
    assert_eq!(source.wait_for_sinks(sinks.len() + 1, LIMIT), sinks.len() + 1, "{}", law(a));
    let reader = takes_all(reads);
    for number in 0..MESSAGES {
        source.send(&payload(number)).unwrap();
    }
    let reads = reader.join().unwrap_or_else(|_| panic!("{}", law(a)));
    assert_eq!(source.sinks(), 1, "{}", law(a));
    let mut given_up: Vec<_> = Vec::new();
    for event in a.events() {
        if let Event::SinkGivenUp { sink, .. } = event {
            given_up.push(sink);
        }
    }
    let mut expected: Vec<_> = sinks.iter().map(Sink::id).collect();
    given_up.sort_unstable();
    expected.sort_unstable();
    assert_eq!(given_up, expected, "{} is to stay", reads.id());
    // All is accounted for, what the others had and what was not known of them, and no slot is kept for them.
    assert!(eventually(|| law_holds(a)), "{}", law(a));
    assert!(network_count(&status(a), "unconfirmed") > 0, "{}", law(a));
    let delivered = |session: &Session| session.counts().iter().map(|cell| cell.get(Count::Delivered)).sum::<u64>();
    assert_eq!(delivered(c), u64::from(MESSAGES));
    assert!(eventually(|| to.audit().held == 0), "{:?}", to.audit());
    // What they have is whole and in order, and then nothing comes.
    for sink in &sinks {
        let mut next = None;
        while let Ok(message) = sink.consume_timeout(Duration::from_millis(500)) {
            let number = u32::from_le_bytes(message.to_vec()[..4].try_into().unwrap());
            assert!(
                message.to_vec() == payload(number) && next.is_none_or(|next| next == number),
                "{number}, {next:?}"
            );
            next = Some(number + 1);
        }
        assert!(next.is_some_and(|next| next < MESSAGES), "{next:?}");
    }
    // The other host has heard that the flow has ended: one that joins there now has another.
    let joins = stuck[0].stream(reliable()).unwrap().sink("lags").unwrap();
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2, "{}", law(a));
    source.send(&payload(MESSAGES)).unwrap();
    for sink in [&joins, &reads] {
        let came = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{e}: {}", law(a)));
        assert_eq!(came.to_vec(), payload(MESSAGES));
    }
    assert!(eventually(|| law_holds(a)), "{}", law(a));
}

#[test]
fn a_host_that_takes_nothing_is_given_up_and_another_loses_nothing() {
    let _watchdog = Watchdog::start("lagging host", TEST);
    let hosts = hosts(3, |_, config| config.quota.link_entries = ENTRIES);
    let (a, b, c) = (hosts[0].session("source"), hosts[1].session("stuck"), hosts[2].session("reads"));
    check(&a, &[&b], &c);
}

/// What is known of a host is how far all of its sinks are together.
#[test]
fn of_a_host_that_holds_a_source_up_all_sinks_are_given_up() {
    let _watchdog = Watchdog::start("lagging sinks", TEST);
    let hosts = hosts(3, |_, config| config.quota.link_entries = ENTRIES);
    let (a, c) = (hosts[0].session("source"), hosts[2].session("reads"));
    let (b, d) = (hosts[1].session("stuck"), hosts[1].session("beside"));
    check(&a, &[&b, &d], &c);
}

/// The same over cables, in a network namespace each. Without root: SKIPPED.
#[test]
fn a_host_at_the_end_of_a_cable_that_takes_nothing_is_given_up_and_another_loses_nothing() {
    let _watchdog = Watchdog::start("lagging cable", TEST);
    let made = Namespaces::new(["la", "lb", "lc"], |[a, b, c]| {
        let mut steps = Vec::new();
        for (net, (device, there)) in (1..).zip([("veth1", b), ("veth2", c)]) {
            steps.push(format!("link add {device} netns {a} type veth peer name veth0 netns {there}"));
            for (end, (name, device)) in (1..).zip([(a, device), (there, "veth0")]) {
                steps.push(format!("-n {name} addr add 10.98.{net}.{end}/24 dev {device}"));
                steps.push(format!("-n {name} link set {device} up"));
            }
        }
        // They are known by one address each, over whichever cable.
        steps.push(format!("-n {a} link set lo up"));
        steps.push(format!("-n {a} addr add 10.98.0.1/32 dev lo"));
        steps.push(format!("-n {b} route add 10.98.0.1 via 10.98.1.1"));
        steps.push(format!("-n {c} route add 10.98.0.1 via 10.98.2.1"));
        steps
    });
    let Some(namespaces) = made else { return };
    let addresses = ["10.98.0.1:7400", "10.98.1.2:7400", "10.98.2.2:7400"].map(|a| a.parse().unwrap());
    let processes = [0, 1, 2].map(|at| {
        // The two at the ends do not know each other.
        let known = if at == 0 { addresses.to_vec() } else { vec![addresses[0], addresses[at]] };
        let mut config = config(&format!("host-{at}"), addresses[at], &known);
        config.quota.link_entries = ENTRIES;
        Process::start(env!("CARGO_BIN_EXE_runtime"), Some(namespaces.name(at)), &config)
    });
    let [a, b, c] = [0, 1, 2].map(|at| processes[at].session(["source", "stuck", "reads"][at]));
    check(&a, &[&b], &c);
}
