//! Runtimes that find each other: no list of peers, only directories that are connected, on loopback addresses.

use insane::{Qos, Session, Sink, Source};
use insane_runtime::config::{Config, Directory};
use insane_tests_host::Watchdog;
use insane_tests_network::{
    LIMIT, Process, Random, config, eventually, free_addresses, free_ports, law, law_holds, status, within,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const TEST: Duration = Duration::from_secs(50);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

/// A runtime whose directory listens and connects so.
fn runtime(name: &str, listen: &[SocketAddr], connect: &[SocketAddr], change: impl FnOnce(&mut Config)) -> Process {
    let mut config = config(name, free_addresses(1)[0], &[]);
    let network = config.network.get_or_insert_default();
    network.patience_ms = 500;
    network.directory = Some(Directory { listen: listen.to_vec(), connect: connect.to_vec(), ..Directory::default() });
    change(&mut config);
    Process::start(PROGRAM, None, &config)
}

fn directory(session: &Session) -> Value {
    status(session)["network"]["directory"].clone()
}

fn source(session: &Session, channel: &str) -> Source {
    session.stream(Qos::default()).unwrap().source(channel).unwrap()
}

fn sink(session: &Session, channel: &str) -> Sink {
    session.stream(Qos::default()).unwrap().sink(channel).unwrap()
}

#[test]
fn runtimes_find_each_other_without_a_list_of_peers() {
    let _watchdog = Watchdog::start("found", TEST);
    let ports = free_ports(2);
    // One that listens, one that connects, and one that connects before there is anybody, and hears of the first through it.
    let three = runtime("three", &[], &ports[1..], |_| ());
    let two = runtime("two", &ports[1..], &ports[..1], |_| ());
    let one = runtime("one", &ports[..1], &[], |_| ());
    let sessions = [&one, &two, &three].map(|host| host.session("app"));
    let source = source(&sessions[0], "c");
    let near = sink(&sessions[1], "c");
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1, "{}", directory(&sessions[0]));
    source.send(b"found").unwrap();
    assert_eq!(near.consume_timeout(LIMIT).unwrap().to_vec(), b"found");
    // A chain of runtimes that are no routers passes on for those that connect to it, and no further.
    let far = sink(&sessions[2], "c");
    let from_two = self::source(&sessions[1], "d");
    let to_three = sink(&sessions[2], "d");
    assert_eq!(from_two.wait_for_sinks(1, LIMIT), 1, "{}", directory(&sessions[1]));
    from_two.send(b"further").unwrap();
    assert_eq!(to_three.consume_timeout(LIMIT).unwrap().to_vec(), b"further");
    drop(far);
    assert!(eventually(|| law_holds(&sessions[0])), "{}", law(&sessions[0]));
    let report = directory(&sessions[2]);
    assert!(report["connections"][0]["tries"].as_u64() >= Some(1), "{report}");
    assert_eq!(report["refused"], 0, "{report}");
}

#[test]
fn those_that_connect_to_one_runtime_find_each_other() {
    let _watchdog = Watchdog::start("star", TEST);
    let ports = free_ports(1);
    let middle = runtime("middle", &ports, &[], |_| ());
    let (one, two) = (runtime("one", &[], &ports, |_| ()), runtime("two", &[], &ports, |_| ()));
    let (a, b) = (one.session("a"), two.session("b"));
    let (source, sink) = (source(&a, "c"), sink(&b, "c"));
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1, "{}", directory(&a));
    // Who introduced them is gone: what is carried between them does not care.
    drop(middle);
    assert!(eventually(|| directory(&a)["hosts"] == 0), "{}", directory(&a));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(source.sinks(), 1);
    source.send(b"still").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"still");
}

#[test]
fn routers_pass_on_between_their_runtimes() {
    let _watchdog = Watchdog::start("routers", TEST);
    let ports = free_ports(2);
    let router = |config: &mut Config| {
        let directory = config.network.as_mut().and_then(|n| n.directory.as_mut());
        directory.unwrap().router = true;
    };
    let _first = runtime("router-1", &ports[..1], &[], router);
    let _second = runtime("router-2", &ports[1..], &ports[..1], router);
    let (one, two) = (runtime("one", &[], &ports[..1], |_| ()), runtime("two", &[], &ports[1..], |_| ()));
    let (a, b) = (one.session("a"), two.session("b"));
    let (source, sink) = (source(&a, "c"), sink(&b, "c"));
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1, "{}", directory(&a));
    source.send(b"routed").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"routed");
}

#[test]
fn realms_and_domains_do_not_see_each_other() {
    let _watchdog = Watchdog::start("realms", TEST);
    let ports = free_ports(1);
    let in_realm = |realm: &str| {
        let realm = realm.to_owned();
        move |config: &mut Config| {
            for domain in ["red", "blue"] {
                config.domains.insert(domain.into(), insane_runtime::config::Domain::default());
            }
            let directory = config.network.as_mut().and_then(|n| n.directory.as_mut());
            directory.unwrap().realm = realm;
        }
    };
    let one = runtime("one", &ports, &[], in_realm("lab"));
    let two = runtime("two", &[], &ports, in_realm("lab"));
    let three = runtime("three", &[], &ports, in_realm("lab-2"));
    let red = two.session_in("red", "red");
    let (red_source, blue_sink) = (source(&red, "c"), sink(&one.session_in("blue", "blue"), "c"));
    let elsewhere = three.session_in("red", "red");
    let _hidden = sink(&elsewhere, "c");
    let red_there = one.session_in("red", "red");
    let red_sink = sink(&red_there, "c");
    assert_eq!(red_source.wait_for_sinks(1, LIMIT), 1, "{}", directory(&red));
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(red_source.sinks(), 1, "one sink of the same domain and realm, of three");
    red_source.send(b"red").unwrap();
    assert_eq!(red_sink.consume_timeout(LIMIT).unwrap().to_vec(), b"red");
    assert!(blue_sink.consume_timeout(Duration::from_millis(300)).is_err());
    assert_eq!(status(&elsewhere)["network"]["directory"]["hosts"], 0);
}

#[test]
fn a_name_and_the_id_it_hashes_to_do_not_meet_and_the_reason_is_told() {
    let _watchdog = Watchdog::start("collision", TEST);
    let ports = free_ports(1);
    let (one, two) = (runtime("one", &ports, &[], |_| ()), runtime("two", &[], &ports, |_| ()));
    let (a, b) = (one.session("a"), two.session("b"));
    let (by_name, other) = (source(&a, "c"), source(&a, "d"));
    let id = by_name.channel();
    let stream = b.stream(Qos::default()).unwrap();
    let _by_id = stream.sink(id.0).unwrap();
    let _fits = sink(&b, "d");
    assert_eq!(other.wait_for_sinks(1, LIMIT), 1, "{}", directory(&a));
    let refusal = || status(&a)["network"]["last_refusal"].as_str().unwrap_or_default().to_owned();
    assert!(eventually(|| refusal().contains("belongs to")), "{}", status(&a)["network"]);
    assert!(refusal().contains("two"), "which host it is: {}", refusal());
    assert_eq!(by_name.sinks(), 0);
}

#[test]
fn a_killed_runtime_that_was_found_is_noticed_within_two_seconds_and_costs_nothing_later() {
    let _watchdog = Watchdog::start("killed", TEST);
    let ports = free_ports(1);
    let one = runtime("one", &ports, &[], |_| ());
    let mut two = runtime("two", &[], &ports, |_| ());
    let (a, b) = (one.session("a"), two.session("b"));
    let (source, sink) = (source(&a, "c"), sink(&b, "c"));
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1, "{}", directory(&a));
    two.kill();
    let killed = Instant::now();
    assert!(within(Duration::from_secs(10), || source.sinks() == 0));
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(2), "noticed after {took:?}");
    let host = || status(&a)["network"]["hosts"][0].clone();
    assert!(eventually(|| host()["known"] == "dormant"), "{}", host());
    let sent = || host()["sent_frames"].as_u64();
    let before = sent();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(sent(), before, "nothing is sent to a host that is gone");
    // It comes back, at the same place.
    two.again();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1, "{}", directory(&a));
    source.send(b"again").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"again");
    assert_eq!(status(&a)["network"]["hosts"].as_array().map(Vec::len), Some(1));
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

#[test]
fn hosts_join_and_leave_and_no_sink_is_stale_and_none_is_missed() {
    const CHANNELS: usize = 200;
    let _watchdog = Watchdog::start("joining and leaving", Duration::from_secs(90));
    let seed = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0x9e37_79b9_7f4a_7c15);
    println!("SEED={seed}");
    let mut random = Random(seed);
    let ports = free_ports(3);
    let others = |at: usize| ports.iter().copied().filter(|p| *p != ports[at]).collect::<Vec<_>>();
    let mut hosts: Vec<Process> =
        (0..3).map(|at| runtime(&format!("host-{at}"), &ports[at..=at], &others(at), |_| ())).collect();
    let mut there = [true; 3];
    let sessions: Vec<Session> = hosts.iter().map(|h| h.session("app")).collect();
    let streams: Vec<_> = sessions.iter().map(|s| s.stream(Qos::default()).unwrap()).collect();
    let sources: Vec<Source> =
        (0..CHANNELS).map(|c| streams[c % 3].source(format!("channel-{c}").as_str()).unwrap()).collect();
    let mut sinks: BTreeMap<(usize, usize), Sink> = BTreeMap::new();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(12) {
        let at = random.below(3) as usize;
        if random.below(400) == 0 {
            there[at] = !there[at];
            if there[at] { hosts[at].again() } else { hosts[at].kill() }
        }
        let channel = random.below(CHANNELS as u64) as usize;
        // With its runtime away a session cannot open anything; it may close.
        let closed = sinks.remove(&(at, channel)).is_some();
        let opened = (!closed && there[at]).then(|| streams[at].sink(format!("channel-{channel}").as_str()));
        if let Some(Ok(sink)) = opened {
            sinks.insert((at, channel), sink);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    (0..3).filter(|at| !there[*at]).for_each(|at| hosts[at].again());
    println!("settling with {} sinks", sinks.len());
    let settled = Instant::now();
    for (channel, source) in sources.iter().enumerate() {
        let count = sinks.keys().filter(|(_, c)| *c == channel).count();
        assert!(
            within(LIMIT, || source.sinks() == count),
            "channel {channel}: {} sinks of {count}; {}",
            source.sinks(),
            law(&sessions[channel % 3])
        );
    }
    println!("settled after {:?}", settled.elapsed());
    for sink in sinks.values() {
        while sink.try_consume().is_ok_and(|m| m.is_some()) {}
    }
    for (channel, source) in sources.iter().enumerate() {
        source.send(&channel.to_le_bytes()).unwrap();
    }
    for ((at, channel), sink) in &sinks {
        let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("channel {channel} at host {at}: {e}"));
        assert_eq!(message.to_vec(), channel.to_le_bytes());
    }
}
