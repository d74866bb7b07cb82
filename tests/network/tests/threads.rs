//! The threads of a runtime's network side: on which core each is, which datapath runs on which, and how it waits.

use insane::{Qos, Session};
use insane_runtime::config::{Config, Thread, Waits};
use insane_tests_host::{Watchdog, payload};
use insane_tests_network::{LIMIT, Process, eventually, hosts, law, law_holds, reliable, status, two_with};
use serde_json::Value;
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
