//! `insane perf`: both ends agree on what went, whatever it went by, and a rate is kept.

use insane_tests_host::programs::{Running, Said, program, run};
use insane_tests_host::{Host, Watchdog};
use rustix::process::Signal;
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// What the source and the sink say.
fn perf(host: &Host, source: &str, sink: &str) -> [Value; 2] {
    let insane = program("insane-cli", "insane");
    let end = |arguments: String| -> Said {
        let mut command = Command::new(&insane);
        run(command.args(arguments.split_whitespace()).env("INSANE_SOCKET", host.socket()), LIMIT)
    };
    let said = std::thread::scope(|scope| {
        let sink = scope.spawn(|| end(format!("--json perf sink {sink}")));
        [end(format!("--json perf source {source}")), sink.join().unwrap()]
    });
    said.map(|said| figures(&said))
}

fn figures(said: &Said) -> Value {
    assert_eq!(said.code(), 0, "{said:?}");
    serde_json::from_str(&said.out).expect("one line of JSON")
}

#[test]
fn both_ends_agree() {
    let _watchdog = Watchdog::start("perf", 3 * LIMIT);
    let host = Host::start();
    for qos in ["", "--qos reliability=reliable"] {
        for size in ["64", "1K", "1M"] {
            let [source, sink] = perf(&host, &format!("--size {size} --duration 0.2 {qos}"), qos);
            let emitted = source["emitted"].as_u64().unwrap();
            assert!(emitted > 0 && sink["received"] == emitted && sink["lost"] == 0, "{qos} {size}: {source} {sink}");
            assert_eq!(source["sink_full"], 0, "it waits for room");
            assert_eq!(sink["bytes"], emitted * source["payload_bytes"].as_u64().unwrap());
            assert!(sink["seconds"].as_f64().unwrap() < source["seconds"].as_f64().unwrap() + 1.0, "{source} {sink}");
        }
    }
}

#[test]
fn a_rate_is_kept_from_the_first_message_on() {
    let _watchdog = Watchdog::start("perf at a rate", 3 * LIMIT);
    let host = Host::start();
    // A hundred a second for half a second: the fifty-first would be due at its end.
    let [source, sink] = perf(&host, "--rate 100 --duration 0.5", "");
    let emitted = source["emitted"].as_u64().unwrap();
    assert!((1..=51).contains(&emitted) && sink["received"] == emitted, "{source} {sink}");
    assert!(sink["seconds"].as_f64().unwrap() > 0.0 || emitted == 1, "{sink}");
    // The second message would be due long after the end.
    let [source, _] = perf(&host, "--rate 0.001 --duration 0.2", "");
    assert_eq!(source["emitted"], 1);
}

#[test]
fn a_duration_holds_though_little_comes() {
    let _watchdog = Watchdog::start("perf for a time", 3 * LIMIT);
    let host = Host::start();
    let [source, sink] = perf(&host, "--rate 20 --duration 3", "--duration 0.5 --silence 30");
    let (emitted, received) = (source["emitted"].as_u64().unwrap(), sink["received"].as_u64().unwrap());
    assert!(received > 0 && received < emitted, "{source} {sink}");
}

#[test]
fn who_is_interrupted_twice_at_once_says_what_came() {
    let _watchdog = Watchdog::start("perf interrupted", 3 * LIMIT);
    let (host, insane) = (Host::start(), program("insane-cli", "insane"));
    let mut sink = Command::new(&insane);
    sink.args(["--json", "perf", "sink", "--silence", "30"]).env("INSANE_SOCKET", host.socket());
    let sink = Running::start(&mut sink);
    let mut source = Command::new(&insane);
    source.args(["--json", "perf", "source", "--rate", "20", "--duration", "0.3"]).env("INSANE_SOCKET", host.socket());
    let emitted = figures(&run(&mut source, LIMIT))["emitted"].clone();
    // As `timeout` does: to the program, and to its group.
    sink.signal(Signal::INT);
    let first = Instant::now();
    std::thread::sleep(Duration::from_millis(5));
    // A machine that has kept this test from its cores for long would have it ended at once.
    if first.elapsed() < Duration::from_millis(100) {
        sink.signal(Signal::INT);
    }
    let said = figures(&sink.end(LIMIT));
    assert!(said["received"] == emitted && emitted.as_u64() > Some(0), "{said} {emitted}");
}

#[test]
fn each_message_has_a_file_of_its_own() {
    let _watchdog = Watchdog::start("sub --to", 3 * LIMIT);
    let (host, insane) = (Host::start(), program("insane-cli", "insane"));
    let dir = tempfile::tempdir().unwrap();
    let end =
        |arguments: &[&str]| run(Command::new(&insane).args(arguments).env("INSANE_SOCKET", host.socket()), LIMIT);
    std::thread::scope(|scope| {
        let sink = scope.spawn(|| end(&["sub", "x", "--count", "4", "--to", dir.path().to_str().unwrap()]));
        // Each is a source of its own, whose messages are counted from one on.
        for text in [["a1", "a2"], ["b1", "b2"]] {
            let said = end(&["pub", "x", text[0], text[1]]);
            assert_eq!(said.code(), 0, "{said:?}");
        }
        let said = sink.join().unwrap();
        assert_eq!(said.code(), 0, "{said:?}");
    });
    let files =
        std::fs::read_dir(dir.path()).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    let mut files: Vec<String> = files.collect();
    files.sort();
    assert_eq!(files, ["a1", "a2", "b1", "b2"]);
}

#[test]
fn a_loop_on_a_schedule_can_be_interrupted() {
    let _watchdog = Watchdog::start("ping on a schedule", 4 * LIMIT);
    let (host, insane) = (Host::start(), program("insane-cli", "insane"));
    let start = |arguments: &str| {
        let mut command = Command::new(&insane);
        Running::start(command.args(arguments.split_whitespace()).env("INSANE_SOCKET", host.socket()))
    };
    let (pong, begun) = (start("pong"), Instant::now());
    let said = figures(&start("--json ping --warm-up 0 --count 6 --interval 0.1 --timeout 20").end(LIMIT));
    assert!(begun.elapsed() >= Duration::from_millis(500), "five intervals between six rounds: {said}");
    assert!(said["count"].as_u64() >= Some(5), "{said}");
    // The second round would begin in an hour.
    let ping = start("--json ping --warm-up 0 --interval 3600 --timeout 20");
    std::thread::sleep(Duration::from_secs(1));
    ping.signal(Signal::INT);
    assert_eq!(figures(&ping.end(LIMIT))["count"], 1);
    pong.signal(Signal::INT);
    assert_eq!(pong.end(LIMIT).code(), 0);
}
