//! On which core a runtime's network thread is, as it is configured.

use insane::Session;
use insane_tests_host::Watchdog;
use insane_tests_network::{hosts, status};
use serde_json::Value;
use std::time::Duration;

/// More cores than any machine that runs this has.
const NO_CORE: i32 = 1023;

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
