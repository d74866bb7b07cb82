//! The threads of a runtime's network side: on which core each is, which datapath runs on which, and how it waits.

use insane::{Qos, Session};
use insane_runtime::config::{Config, Thread, Waits};
use insane_tests_host::{Watchdog, payload};
use insane_tests_network::{
    LIMIT, Process, eventually, free_addresses, hosts, law, law_holds, network_count, reliable, status, two_with,
};
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// More cores than any machine that runs this has.
const NO_CORE: i32 = 1023;

/// One of them at a time: threads are counted.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a report says of the network side's own thread.
fn own(session: &Session) -> Value {
    status(session)["network"]["threads"][0].clone()
}

/// The cores on which threads of this process with a name may be, each as the kernel words it.
fn cores(name: &str) -> Vec<String> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let status = threads.filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join("status")).ok());
    let named = status.filter(|text| text.lines().any(|line| line.strip_prefix("Name:\t") == Some(name)));
    let cores =
        |text: String| text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t").map(str::to_owned));
    named.filter_map(cores).collect()
}

#[test]
fn the_network_thread_is_on_its_core_and_a_core_that_is_not_there_is_said_and_does_no_harm() {
    let _alone = alone();
    let _watchdog = Watchdog::start("threads", Duration::from_secs(60));
    let all = std::fs::read_to_string("/proc/self/status").unwrap();
    let all = all.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t")).unwrap();
    let first = all.split(['-', ',']).next().unwrap();
    let wanted = [first.parse().unwrap(), NO_CORE, -1];
    let hosts = hosts(3, |at, config| config.network.get_or_insert_default().core = wanted[at]);
    let sessions: Vec<Session> = hosts.iter().map(|host| host.session("asks")).collect();
    let said: Vec<Value> = sessions.iter().map(own).collect();
    assert_eq!((&said[0]["state"], &said[0]["text"]), (&"ok".into(), &format!("on core {first}").into()));
    assert_eq!(said[1]["state"], "warn");
    assert!(said[1]["text"].as_str().unwrap().contains(&format!("core {NO_CORE} is not among those")), "{}", said[1]);
    assert_eq!((&said[2]["state"], &said[2]["text"]), (&"ok".into(), &"on any core".into()));
    let mut are = cores("insane-network");
    are.sort_unstable();
    let mut expected = [first, all, all].map(str::to_owned);
    expected.sort_unstable();
    assert_eq!(are, expected);
    let doctor: Value = serde_json::from_str(&sessions[1].report("doctor").unwrap()).unwrap();
    let checks = doctor["checks"].as_array().unwrap().iter().find(|check| check["check"] == "thread").unwrap();
    assert_eq!(checks["state"], "warn", "{checks}");
}

/// Kernel UDP on a thread of its own, which waits so.
fn threaded(config: &mut Config, wait: Waits) {
    let thread = Thread { datapaths: vec!["udp".into()], wait, ..Thread::default() };
    config.network.get_or_insert_default().thread.push(thread);
}

/// A question each way of these sizes and its answer, and then more at once both ways than the queues between the threads hold.
fn talk(near: &Session, far: &Session, qos: Qos) {
    const AT_ONCE: u64 = 3000;
    let (a, b) = (near.stream(qos).unwrap(), far.stream(qos).unwrap());
    let (there, back) = (b.sink("there").unwrap(), a.sink("back").unwrap());
    let (out, reply) = (a.source("there").unwrap(), b.source("back").unwrap());
    assert_eq!((out.wait_for_sinks(1, LIMIT), reply.wait_for_sinks(1, LIMIT)), (1, 1));
    for len in [0, 1, 64, 1000, 1472, 5000, 70_000, 1 << 20] {
        out.send(&payload(1, len)).unwrap();
        let message = there.consume_timeout(LIMIT).unwrap().to_vec();
        assert!(message == payload(1, len), "{len} bytes differ");
        reply.send(&message).unwrap();
        assert!(back.consume_timeout(LIMIT).unwrap().to_vec() == message, "{len} bytes differ on the way back");
    }
    if qos == reliable() {
        std::thread::scope(|scope| {
            for (source, sink) in [(&out, &there), (&reply, &back)] {
                scope.spawn(move || {
                    for n in 0..AT_ONCE {
                        source.send(&payload(n, 1000)).unwrap();
                    }
                });
                scope.spawn(move || {
                    for n in 0..AT_ONCE {
                        assert!(sink.consume_timeout(LIMIT).unwrap().to_vec() == payload(n, 1000), "message {n}");
                    }
                });
            }
        });
    }
    for session in [near, far] {
        assert!(eventually(|| law_holds(session)), "{}", law(session));
    }
}

#[test]
fn udp_on_a_thread_of_its_own_carries_messages_both_ways_however_that_waits() {
    let _alone = alone();
    let _watchdog = Watchdog::start("udp on a thread", Duration::from_secs(100));
    for wait in [Waits::Adaptive, Waits::Sleep, Waits::Spin] {
        let mut hosts = hosts(2, |_, config| threaded(config, wait));
        let (near, far) = (hosts[0].session("near"), hosts[1].session("far"));
        let said = status(&near)["network"]["threads"].clone();
        assert_eq!((&said[0]["runs"], &said[1]["runs"]), (&serde_json::json!([]), &serde_json::json!(["udp"])));
        for qos in [Qos::default(), reliable()] {
            talk(&near, &far, qos);
        }
        drop(far);
        // Its address is free at once, and the thread gone with it.
        hosts[1].restart();
        talk(&near, &hosts[1].session("far again"), reliable());
        drop(hosts);
        assert_eq!(cores("insane-poll-0"), [""; 0], "{wait:?}: a thread is left");
    }
}

/// Addresses for a host and for `threads` peers of it of which each comes by another one of its threads: they are chosen by the sum of
/// address and port.
fn spread_addresses(threads: usize) -> (SocketAddr, Vec<SocketAddr>) {
    let all = free_addresses(1 + 12 * threads);
    let part = |address: &SocketAddr| {
        let IpAddr::V4(ip) = address.ip() else { panic!("{address}") };
        (ip.to_bits() as usize + usize::from(address.port())) % threads
    };
    let of = |at| *all[1..].iter().find(|address| part(address) == at).expect("ports of all kinds");
    (all[0], (0..threads).map(of).collect())
}

/// What a host says of its kernel UDP.
fn udp(session: &Session) -> Value {
    status(session)["network"]["datapaths"][0].clone()
}

/// Each peer sends on a channel of its own, all at once, and the host answers on others. All is delivered once, in order, and counted: of
/// the peers' for the time of this number.
fn everybody_talks_to(host: &Session, peers: &[Session], time: u64) {
    const EACH: u64 = 3000;
    std::thread::scope(|scope| {
        for (at, peer) in peers.iter().enumerate() {
            let (near, far) = (host.stream(reliable()).unwrap(), peer.stream(reliable()).unwrap());
            let [there, back] = ["there", "back"].map(|way| format!("{way} {at}"));
            let (sink, answers) = (near.sink(there.as_str()).unwrap(), far.sink(back.as_str()).unwrap());
            let (source, reply) = (far.source(there.as_str()).unwrap(), near.source(back.as_str()).unwrap());
            assert_eq!((source.wait_for_sinks(1, LIMIT), reply.wait_for_sinks(1, LIMIT)), (1, 1));
            scope.spawn(move || {
                for n in 0..EACH {
                    source.send(&payload(n, 1000)).unwrap();
                    if n % 100 == 99 {
                        assert!(answers.consume_timeout(LIMIT).unwrap().to_vec() == payload(n, 70_000), "answer {n}");
                    }
                }
                assert!(answers.try_consume().unwrap().is_none(), "an answer too many");
            });
            scope.spawn(move || {
                for n in 0..EACH {
                    assert!(sink.consume_timeout(LIMIT).unwrap().to_vec() == payload(n, 1000), "message {n} of {at}");
                    if n % 100 == 99 {
                        reply.send(&payload(n, 70_000)).unwrap();
                    }
                }
                assert!(sink.try_consume().unwrap().is_none(), "a message of {at} too many");
            });
        }
    });
    for (session, sent) in peers.iter().map(|peer| (peer, time * EACH)).chain([(host, EACH / 100 * peers.len() as u64)])
    {
        assert!(eventually(|| law_holds(session)), "{}", law(session));
        let delivered = || network_count(&status(session), "delivered");
        assert!(eventually(|| delivered() == sent), "{sent} were sent; {}", law(session));
    }
}

#[test]
fn several_threads_receive_what_several_hosts_send_to_one_datapath() {
    let _alone = alone();
    let _watchdog = Watchdog::start("several threads", Duration::from_secs(100));
    for (threads, wait) in [(2, Waits::Adaptive), (3, Waits::Sleep)] {
        let (home, others) = spread_addresses(threads);
        let mut hosts = hosts(1 + threads, |at, config| {
            let network = config.network.get_or_insert_default();
            (network.listen, network.peers) = match at {
                0 => (home, others.clone()),
                _ => (others[at - 1], vec![home]),
            };
            (0..if at == 0 { threads } else { 0 }).for_each(|_| threaded(config, wait));
        });
        // Nobody else gets the address, though it has several sockets.
        let refused = std::net::UdpSocket::bind(home).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse);
        let peers: Vec<Session> = hosts[1..].iter().map(|peer| peer.session("peer")).collect();
        for time in 1..=2 {
            let host = hosts[0].session("home");
            everybody_talks_to(&host, &peers, time);
            let said = udp(&host);
            assert_eq!(said["text"], format!("kernel UDP; received by {threads} threads"));
            let received: Vec<u64> =
                said["threads"]["received"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
            assert!(received.len() == threads && received.iter().all(|frames| *frames > 100), "{received:?}");
            let runs: Vec<Value> = status(&host)["network"]["threads"].as_array().unwrap().clone();
            assert_eq!(runs.len(), 1 + threads);
            assert!(runs[1..].iter().all(|thread| thread["runs"] == serde_json::json!(["udp"])), "{runs:?}");
            let one: usize = (0..threads).map(|at| cores(&format!("insane-poll-{at}")).len()).sum();
            assert_eq!(one, threads);
            drop(host);
            if time == 1 {
                hosts[0].restart();
            }
        }
        drop((peers, hosts));
        assert_eq!(cores("insane-poll-1"), [""; 0], "a thread is left");
    }
}

#[test]
fn an_idle_host_costs_next_to_nothing_with_a_thread_for_its_datapath() {
    let _alone = alone();
    let _watchdog = Watchdog::start("idle threads", Duration::from_secs(60));
    let hosts = two_with(env!("CARGO_BIN_EXE_runtime"), |config| threaded(config, Waits::Adaptive));
    let [near, far] = hosts.each_ref().map(|host| host.session("says little"));
    talk(&near, &far, Qos::default());
    // What was said is over, and what is left are signs of life.
    std::thread::sleep(Duration::from_secs(1));
    let before = hosts.each_ref().map(Process::ticks);
    let span = Duration::from_secs(20);
    std::thread::sleep(span);
    for (host, before) in hosts.iter().zip(before) {
        let ticks = host.ticks() - before;
        println!("{} ms of CPU in {span:?}", ticks * 10);
        assert!(u128::from(ticks) * 10 * 100 < span.as_millis(), "{ticks} ticks of 10 ms in {span:?}");
    }
}
