//! A daemon that is told to stop, as `systemctl stop` and Ctrl-C do: it ends in good order, and what is local goes on.

use insane::{Event, Qos, Session};
use insane_tests_host::programs::{Running, program};
use insane_tests_host::{Watchdog, reconcile};
use rustix::process::Signal;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_daemon_that_is_told_to_stop_ends_in_good_order_and_local_messages_go_on() {
    let _watchdog = Watchdog::start("signals", Duration::from_secs(100));
    for signal in [Signal::TERM, Signal::INT] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("insaned.sock");
        let mut command = std::process::Command::new(program("insaned", "insaned"));
        let mut daemon = Running::start(command.arg("--socket").arg(&socket));
        until("it has no socket", || {
            assert!(!daemon.has_ended(), "{signal:?}: it has ended");
            socket.exists()
        });
        let [near, far] = ["near", "far"].map(|app| Session::builder(app).socket(&socket).open().unwrap());
        let (out, back) = (near.stream(Qos::default()).unwrap(), far.stream(Qos::default()).unwrap());
        let (source, sink) = (out.source("channel").unwrap(), back.sink("channel").unwrap());
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
        let mut sent = 0u64;
        let mut cross = || {
            source.send(&sent.to_le_bytes()).unwrap();
            assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), sent.to_le_bytes(), "{signal:?}");
            sent += 1;
        };
        (0..100).for_each(|_| cross());
        daemon.signal(signal);
        // Messages flow all the while that it stops.
        let (mut lost, start) = ([false; 2], Instant::now());
        while lost != [true; 2] || !daemon.has_ended() {
            assert!(start.elapsed() < LIMIT, "{signal:?}: the applications heard of it: {lost:?}");
            cross();
            for (session, lost) in [&near, &far].into_iter().zip(&mut lost) {
                *lost |= session.next_event().is_some_and(|event| event == Event::RuntimeLost);
            }
        }
        let said = daemon.end(LIMIT);
        assert_eq!(said.code(), 0, "{signal:?}: {said:?}");
        assert!(!socket.exists(), "{signal:?}: its socket is left");
        (0..100).for_each(|_| cross());
        reconcile([&near, &far], sent, sent);
    }
}
