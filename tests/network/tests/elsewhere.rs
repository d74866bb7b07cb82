//! Three hosts on one switch, of which the third has no sink of a channel: nothing of it goes there. Without root: SKIPPED.

use insane::{Qos, Session, Sink, Source};
use insane_tests_host::{Watchdog, account};
use insane_tests_namespaces::Namespaces;
use insane_tests_network::{LIMIT, Process, config, eventually, law, law_holds, reliable, status};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;

const TEST: Duration = Duration::from_secs(120);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

const HOSTS: usize = 3;

/// How many messages go at a time, and how long each is.
const MESSAGES: u32 = 2000;
const LENGTH: usize = 1000;

/// Hosts on one switch.
struct Hosts(Namespaces);

impl Hosts {
    /// `None` where namespaces cannot be made; then it has said so.
    fn new() -> Option<Self> {
        let namespaces = Namespaces::new(["e0", "e1", "e2", "ew"], |names| {
            let (hosts, switch) = (&names[..HOSTS], &names[HOSTS]);
            let mut steps = vec![
                format!("-n {switch} link add switch type bridge mcast_snooping 0"),
                format!("-n {switch} link set switch up"),
            ];
            for (at, host) in hosts.iter().enumerate() {
                steps.push(format!("link add veth0 netns {host} type veth peer name port{at} netns {switch}"));
                steps.push(format!("-n {switch} link set port{at} master switch up"));
                steps.push(format!("-n {host} addr add 10.93.0.{}/24 dev veth0", at + 1));
                steps.push(format!("-n {host} link set veth0 up"));
            }
            steps
        })?;
        Some(Self(namespaces))
    }

    fn runtimes(&self) -> [Process; HOSTS] {
        let addresses = [1, 2, 3].map(|host| SocketAddr::from(([10, 93, 0, host], 7400)));
        [0, 1, 2].map(|at| {
            let mut config = config(&format!("host-{at}"), addresses[at], &addresses);
            config.network.get_or_insert_default().interface = "veth0".into();
            Process::start(PROGRAM, Some(self.0.name(at)), &config)
        })
    }

    /// How many bytes a host's interface has received, by its kernel's count.
    fn received(&self, at: usize) -> u64 {
        let said = self.0.ip(at, "-s -j link show dev veth0").expect("it is there");
        let said: Value = serde_json::from_str(&said).expect("JSON");
        said[0]["stats64"]["rx"]["bytes"].as_u64().unwrap_or_else(|| panic!("no count: {said}"))
    }
}

/// A number that a runtime has of another one.
fn of_host(session: &Session, host: &str, name: &str) -> Option<u64> {
    let report = status(session);
    let hosts = report["network"]["hosts"].as_array()?;
    hosts.iter().find(|one| one["name"] == host)?[name].as_u64()
}

/// Sends messages, of which each is awaited at all sinks.
fn pass(source: &Source, sinks: &[&Sink], session: &Session) {
    for number in 0..MESSAGES {
        let mut payload = vec![number as u8; LENGTH];
        payload[..4].copy_from_slice(&number.to_le_bytes());
        source.send(&payload).unwrap();
        for (at, sink) in sinks.iter().enumerate() {
            let came = sink.consume_timeout(LIMIT).map(|message| message.to_vec());
            assert!(came.as_ref() == Ok(&payload), "sink {at}, {number}: {:?}, {}", came.err(), law(session));
        }
    }
}

/// While messages go to the second host, the third, which takes part in the same stream, hears nothing of them; it does from when it has a
/// sink until that is closed.
fn goes_where_a_sink_is(qos: Qos) {
    let _watchdog = Watchdog::start("elsewhere", TEST);
    let Some(lab) = Hosts::new() else { return };
    let runtimes = lab.runtimes();
    let [a, b, c] = [0, 1, 2].map(|at| runtimes[at].session(["source", "sink", "elsewhere"][at]));
    let [from, to, third] = [&a, &b, &c].map(|session| session.stream(qos).unwrap());
    let (sink, other) = (to.sink("c").unwrap(), third.sink("other").unwrap());
    let (source, beside) = (from.source("c").unwrap(), from.source("other").unwrap());
    assert_eq!((source.wait_for_sinks(1, LIMIT), beside.wait_for_sinks(1, LIMIT)), (1, 1), "{}", law(&a));
    let flows =
        |out, into| (of_host(&a, "host-2", "flows_out"), of_host(&c, "host-0", "flows_in")) == (Some(out), Some(into));
    let all = u64::from(MESSAGES) * LENGTH as u64;
    for round in 0..2 {
        let before = lab.received(2);
        pass(&source, &[&sink], &a);
        let came = lab.received(2) - before;
        // It hears the others' signs of life, and that is all.
        assert!(came < all / 20, "round {round}: {came} bytes of {all} came where there is no sink; {}", law(&a));
        // It is there, and hears what is for it.
        beside.send(b"for the third").unwrap();
        assert_eq!(other.consume_timeout(LIMIT).unwrap().to_vec(), b"for the third");
        assert!(eventually(|| flows(1, 1)), "round {round}: {}, {}", law(&a), law(&c));

        let (late, before) = (third.sink("c").unwrap(), lab.received(2));
        assert_eq!(source.wait_for_sinks(2, LIMIT), 2, "{}", law(&a));
        pass(&source, &[&sink, &late], &a);
        let came = lab.received(2) - before;
        assert!(came > all, "round {round}: {came} bytes of {all} came where there is a sink; {}", law(&a));
        assert!(eventually(|| flows(2, 2)), "round {round}: {}, {}", law(&a), law(&c));
        drop(late);
        assert!(eventually(|| source.sinks() == 1 && flows(1, 1)), "round {round}: {}, {}", law(&a), law(&c));
    }
    let intended = 2 * (3 * u64::from(MESSAGES) + 1);
    assert_eq!(account(&a.counts()).intended, intended, "{}", law(&a));
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

#[test]
fn a_host_without_a_sink_of_a_channel_gets_none_of_its_messages() {
    goes_where_a_sink_is(Qos::default());
}

#[test]
fn nor_any_of_a_reliable_stream() {
    goes_where_a_sink_is(reliable());
}
