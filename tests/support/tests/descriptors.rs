//! A process that has no descriptors left for what its peers send is served once it has some again.

use insane::{Qos, Reliability};
use insane_tests_host::programs::{Running, program};
use insane_tests_host::{Host, Watchdog};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn who_had_no_descriptors_for_a_link_has_it_once_there_are_some() {
    let _watchdog = Watchdog::start("descriptors", 4 * LIMIT);
    let (host, insane) = (Host::start(), program("insane-cli", "insane"));
    for (reliability, name) in [(Reliability::BestEffort, "best-effort"), (Reliability::Reliable, "reliable")] {
        let mut command = Command::new(&insane);
        let (mut qos, said) = (Qos::default(), format!("reliability={name}"));
        qos.set_reliability(reliability);
        command.args(["--json", "perf", "sink", "--silence", "60", "--qos", &said]).env("INSANE_SOCKET", host.socket());
        let sink = Running::start(&mut command);
        let session = host.session("source");
        let end = Instant::now() + LIMIT;
        while !session.report("status").unwrap().contains("\"perf\"") {
            assert!(Instant::now() < end, "there is no sink");
            std::thread::sleep(Duration::from_millis(10));
        }
        let open = std::fs::read_dir(format!("/proc/{}/fd", sink.id())).unwrap().count() as u64;
        let pid = Pid::from_raw(i32::try_from(sink.id()).unwrap());
        // The socket to the other session fits, and what comes over it does not.
        let few = Rlimit { current: Some(open + 1), ..getrlimit(Resource::Nofile) };
        let before = prlimit(pid, Resource::Nofile, few).unwrap();
        let stream = session.stream(qos).unwrap();
        let source = stream.source("perf").unwrap();
        assert_eq!(source.wait_for_sinks(1, Duration::from_secs(3)), 0);
        prlimit(pid, Resource::Nofile, before).unwrap();
        assert_eq!(
            source.wait_for_sinks(1, LIMIT),
            1,
            "{:?}",
            std::iter::from_fn(|| session.next_event()).collect::<Vec<_>>()
        );
        let tokens: Vec<_> = (0..10u64).map(|n| source.send(&n.to_le_bytes()).unwrap()).collect();
        while tokens.iter().any(|token| source.outcome(*token).unwrap().delivered == 0) {
            assert!(Instant::now() < end + LIMIT, "{:?}", source.outcome(tokens[9]));
            std::thread::sleep(Duration::from_millis(1));
        }
        sink.signal(Signal::INT);
        let said = sink.end(LIMIT);
        let said: serde_json::Value = serde_json::from_str(&said.out).expect("one line of JSON");
        assert!(said["received"] == 10 && said["lost"] == 0, "{said}");
    }
}
