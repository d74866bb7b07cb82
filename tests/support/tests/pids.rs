//! A runtime in a PID namespace of its own, as in a container: applications outside of it are served, though it cannot tell which
//! processes they are.

use insane::{Qos, Session};
use insane_tests_host::programs::{Running, program};
use insane_tests_host::{Watchdog, reconcile};
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_runtime_in_a_pid_namespace_of_its_own_serves_applications_outside_of_it() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: PID namespaces, which only root can make");
        return;
    }
    let _watchdog = Watchdog::start("pids", Duration::from_secs(100));
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("insaned.sock");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(program("insaned", "insaned")).arg("--socket").arg(&socket);
    let mut runtime = Running::start(&mut command);
    let start = Instant::now();
    while !socket.exists() {
        assert!(start.elapsed() < LIMIT && !runtime.has_ended(), "{:?}", runtime.end(Duration::ZERO));
        std::thread::sleep(Duration::from_millis(5));
    }
    let session = |app: &str| Session::builder(app).socket(&socket).open().expect("a session");
    let (near, far) = (session("near"), session("far"));
    let (out, back) = (near.stream(Qos::default()).unwrap(), far.stream(Qos::default()).unwrap());
    let (source, sink) = (out.source("channel").unwrap(), back.sink("channel").unwrap());
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    for n in 0..100u64 {
        source.send(&n.to_le_bytes()).unwrap();
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), n.to_le_bytes());
    }
    reconcile([&near, &far], 100, 100);
    let status: serde_json::Value = serde_json::from_str(&near.report("status").unwrap()).unwrap();
    let pids: Vec<_> = status["sessions"].as_array().into_iter().flatten().map(|session| &session["pid"]).collect();
    assert_eq!(pids, [&serde_json::Value::Null; 2], "it has no number for them");
    let mut command = Command::new(program("insane-cli", "insane"));
    let said = insane_tests_host::programs::run(command.arg("--socket").arg(&socket).arg("status"), LIMIT);
    assert!(said.out.contains("pid unknown"), "{}{}", said.out, said.err);
}
