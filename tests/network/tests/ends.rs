//! A runtime with a datapath that is slow to open: what it does before that is open, and what it leaves behind when it stops.

use insane::Session;
use insane_runtime::config::Config;
use insane_runtime::network::Poller;
use insane_runtime::server::Server;
use insane_tests_host::Watchdog;
use insane_tests_host::programs::{program, run};
use insane_tests_network::cables::{alone_on_plugin, plugin_template};
use insane_tests_network::{LIMIT, eventually, reliable, status};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(100);

/// One of them at a time: threads are counted.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The configuration of a runtime whose datapath takes so many milliseconds to open, in a folder.
fn slow_to_open(library: &Path, folder: &Path, ms: &str) -> Config {
    let mut config = alone_on_plugin(library, folder);
    let datapath = &mut config.network.get_or_insert_default().datapath[0];
    datapath.options.insert("hang_open".into(), ms.into());
    config
}

/// Starts a runtime by its own thread, or as one that is polled.
fn start(config: &Config, polled: bool) -> (Server, Option<Poller>) {
    if polled { Server::start_polled(config.clone()).unwrap() } else { (Server::start(config.clone()).unwrap(), None) }
}

/// How many threads of this process have this name.
fn threads(name: &str) -> usize {
    let names = std::fs::read_dir("/proc/self/task").unwrap();
    let names = names.filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).ok());
    names.filter(|is| is.trim_end() == name).count()
}

#[test]
fn a_runtime_that_stops_waits_for_a_datapath_that_is_being_opened_and_leaves_nothing_of_it() {
    let _alone = alone();
    let _watchdog = Watchdog::start("stops while it opens", TEST);
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = plugin_template(folder.path()) else { return };
    for polled in [false, true] {
        let config = slow_to_open(&library, folder.path(), "3000");
        let (server, poller) = start(&config, polled);
        let session = Session::builder("asks").socket(&config.runtime.socket).open().unwrap();
        let report = status(&session)["network"]["datapaths"][1].clone();
        assert_eq!((report["state"].as_str(), threads("insane-open")), (Some("absent"), 1), "{polled}: {report}");
        server.stop();
        assert_eq!(threads("insane-open"), 0, "{polled}");
        // It was opened all the same, and closed again: that takes the plug-in's socket away.
        drop(poller);
        assert!(!folder.path().join("end0").exists(), "{polled}");
    }
}

/// Messages from a source to a sink of this host.
fn talk(session: &Session) {
    let stream = session.stream(reliable()).unwrap();
    let (sink, source) = (stream.sink("c").unwrap(), stream.source("c").unwrap());
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    for n in 0..100u32 {
        source.send(&n.to_le_bytes()).unwrap();
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), n.to_le_bytes());
    }
}

/// A runtime that starts, by its own thread or as one that is polled, while something is done with a session of its host. Whether it did
/// not come to be before that was done, and what that came to.
fn while_it_starts<T>(config: &Config, polled: bool, act: impl FnOnce(&Session) -> T) -> (bool, T) {
    let is_started = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let starter = scope.spawn(|| {
            let started = start(config, polled);
            is_started.store(true, Ordering::SeqCst);
            started
        });
        let mut session = None;
        let opens = || {
            session = Session::builder("early").socket(&config.runtime.socket).open().ok();
            session.is_some()
        };
        assert!(eventually(opens), "no session");
        let came_to = act(&session.expect("just opened"));
        let early = !is_started.load(Ordering::SeqCst);
        let (server, poller) = starter.join().unwrap();
        server.stop();
        drop(poller);
        (early, came_to)
    })
}

/// The start waits for a second, which is enough, but perhaps not each time on a busy machine.
#[test]
fn sessions_are_served_while_the_start_waits_for_a_datapath() {
    let _alone = alone();
    let _watchdog = Watchdog::start("served meanwhile", TEST);
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = plugin_template(folder.path()) else { return };
    let config = slow_to_open(&library, folder.path(), "1500");
    for polled in [false, true] {
        assert!((0..10).any(|_| while_it_starts(&config, polled, talk).0), "polled: {polled}");
    }
}

/// As above, of one that is open in less than that second.
#[test]
fn who_asks_for_a_report_or_a_capture_at_once_waits_for_datapaths_that_are_soon_open() {
    let _alone = alone();
    let _watchdog = Watchdog::start("asks at once", TEST);
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = plugin_template(folder.path()) else { return };
    let config = slow_to_open(&library, folder.path(), "400");
    let insane = program("insane-cli", "insane");
    let state = |session: &Session| status(session)["network"]["datapaths"][1]["state"] == "open";
    let captured = |_: &Session| {
        let mut command = Command::new(&insane);
        command
            .arg("--socket")
            .arg(&config.runtime.socket)
            .args("capture --datapath plugin --seconds 0 -w -".split(' '));
        run(&mut command, LIMIT).code() == 0
    };
    for polled in [false, true] {
        assert!((0..10).any(|_| while_it_starts(&config, polled, state).1), "a report, polled: {polled}");
        assert!((0..10).any(|_| while_it_starts(&config, polled, captured).1), "a capture, polled: {polled}");
    }
}
