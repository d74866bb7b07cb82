//! The daemon where something does not go as it should: a datapath that is never open, a thread that ends. Without a C compiler: SKIPPED.

use insane::Session;
use insane_runtime::config::{Config, Datapath, Kind, Thread};
use insane_tests_host::Watchdog;
use insane_tests_host::hostile::{Raw, connect, next};
use insane_tests_host::programs::{Running, program};
use insane_tests_network::cables::plugin_template;
use insane_tests_network::{LIMIT, config, eventually, free_addresses, reliable, status};
use insane_wire::control::{Stopping, ToClient, to_client};
use rustix::fd::AsFd;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const TEST: Duration = Duration::from_secs(60);

/// The daemon with this configuration, its socket and file in a folder, and a session.
fn start(folder: &Path, mut config: Config, change: impl FnOnce(&mut Command)) -> (Running, Session) {
    config.runtime.socket = folder.join("s");
    let file = folder.join("insaned.toml");
    std::fs::write(&file, config.to_toml()).unwrap();
    let mut command = Command::new(program("insaned", "insaned"));
    command.arg("--config").arg(&file);
    change(&mut command);
    let mut daemon = Running::start(&mut command);
    assert!(eventually(|| config.runtime.socket.exists() || daemon.has_ended()));
    let session = Session::builder("session").socket(&config.runtime.socket).open();
    (daemon, session.unwrap_or_else(|e| panic!("{e}")))
}

/// Why a runtime that is gone said that it goes.
fn last_words(session: &Raw) -> String {
    while let Some((message, _)) = next::<ToClient>(session.socket.as_fd(), LIMIT) {
        if let Some(to_client::Body::Stopping(Stopping { reason })) = message.body {
            return reason;
        }
    }
    "nothing".into()
}

#[test]
fn a_datapath_that_is_never_open_keeps_nobody_from_local_channels_and_the_daemon_ends_when_told() {
    let _watchdog = Watchdog::start("never open", TEST);
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = plugin_template(folder.path()) else { return };
    let address = free_addresses(1);
    let mut config = config("host-0", address[0], &address);
    let place = |end: &str| folder.path().join(end).display().to_string();
    let hangs = ("hang_open", "1000000000".into());
    let options = [("path", place("end0")), ("peer", place("end1")), ("address", "02:99:00:00:00:01".into()), hangs];
    config.network.get_or_insert_default().datapath = vec![Datapath {
        kind: Kind::Plugin,
        library: library.display().to_string(),
        address: "10.0.0.101/24".into(),
        options: options.map(|(key, value)| (key.to_owned(), value)).into(),
        ..Datapath::default()
    }];
    let (daemon, session) = start(folder.path(), config, |_| ());
    let stream = session.stream(reliable()).unwrap();
    let sink = stream.sink("c").unwrap();
    let source = stream.source("c").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    source.send(b"local").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"local");
    let report = status(&session)["network"]["datapaths"][1].clone();
    assert_eq!(report["text"].as_str(), Some("it is being opened"), "{report}");
    let raw = Raw::open(&folder.path().join("s")).unwrap();
    daemon.signal(Signal::TERM);
    let said = daemon.end(LIMIT);
    assert_eq!(said.code(), 0, "{said:?}");
    assert_eq!(last_words(&raw), "the runtime was told to stop");
    assert!(said.err.contains("the runtime ends while its datapath is still being opened"), "{said:?}");
    assert!(!folder.path().join("s").exists());
}

/// An object of this source, to be loaded into the daemon. `None` where there is no C compiler; then it has said so.
fn preloaded(folder: &Path, text: &str) -> Option<PathBuf> {
    let (source, object) = (folder.join("breaks.c"), folder.join("breaks.so"));
    std::fs::write(&source, text).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&object).arg(&source).status();
    if !built.is_ok_and(|status| status.success()) {
        println!("SKIPPED: there is no C compiler");
        return None;
    }
    Some(object)
}

/// Whether it ends. Whatever happens wakes the thread of its sessions, which only then meets what a signal has done: somebody connects,
/// again and again, as nobody knows when the signal has come.
fn ends_when_woken(daemon: &mut Running, folder: &Path) -> bool {
    eventually(|| {
        let _ = connect(&folder.join("s"));
        daemon.has_ended()
    })
}

/// Loaded into the daemon: at a signal, its epoll descriptors become something that cannot be waited for.
const BREAKS_EPOLL: &str = r#"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static void breaks(int signal)
{
    (void)signal;
    int other = open("/dev/null", O_RDONLY);
    for (int n = 0; n < 256; n++) {
        char name[64], is[64] = "";
        snprintf(name, sizeof name, "/proc/self/fd/%d", n);
        if (readlink(name, is, sizeof is - 1) > 0 && strcmp(is, "anon_inode:[eventpoll]") == 0)
            dup2(other, n);
    }
}
__attribute__((constructor)) static void begin(void)
{
    signal(SIGUSR1, breaks);
}
"#;

#[test]
fn a_daemon_whose_session_thread_cannot_go_on_ends_with_a_reason() {
    let _watchdog = Watchdog::start("a thread ends", TEST);
    let folder = tempfile::tempdir().unwrap();
    let Some(object) = preloaded(folder.path(), BREAKS_EPOLL) else { return };
    let (mut daemon, session) = start(folder.path(), Config::default(), |command| {
        command.env("LD_PRELOAD", &object);
    });
    let raw = Raw::open(&folder.path().join("s")).unwrap();
    daemon.signal(Signal::USR1);
    assert!(ends_when_woken(&mut daemon, folder.path()), "it goes on");
    drop(session);
    let said = daemon.end(LIMIT);
    assert_eq!(said.code(), 1, "{said:?}");
    assert!(said.err.contains("insaned: the sessions thread has ended: epoll: "), "{said:?}");
    let last = last_words(&raw);
    assert!(last.starts_with("the runtime has failed: the sessions thread has ended: epoll: "), "{last}");
    assert!(!folder.path().join("s").exists());
}

/// Loaded into the daemon: after a signal, a thread is once not told the time, which none in Rust outlives: it panics.
const BREAKS_CLOCK: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile sig_atomic_t broken;
static const char *whose;
static void breaks(int signal)
{
    (void)signal;
    broken = 1;
}
__attribute__((constructor)) static void begin(void)
{
    whose = getenv("BREAKS_CLOCK_OF");
    signal(SIGUSR1, breaks);
}
int clock_gettime(clockid_t clock, struct timespec *now)
{
    char name[16] = "";
    if (broken && clock == CLOCK_MONOTONIC && prctl(PR_GET_NAME, name) == 0 && strcmp(name, whose) == 0) {
        broken = 0;
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_clock_gettime, clock, now);
}
"#;

/// A thread of the daemon panics, which is known to the kernel by the first name and to who asks by the second.
fn panics(thread: &str, known_as: &str) {
    let folder = tempfile::tempdir().unwrap();
    let Some(object) = preloaded(folder.path(), BREAKS_CLOCK) else { return };
    let address = free_addresses(1);
    let mut config = config("host-0", address[0], &address);
    let row = Thread { datapaths: vec!["udp".into()], ..Thread::default() };
    config.network.get_or_insert_default().thread.push(row);
    let (mut daemon, session) = start(folder.path(), config, |command| {
        command.env("LD_PRELOAD", &object).env("BREAKS_CLOCK_OF", thread);
    });
    let raw = Raw::open(&folder.path().join("s")).unwrap();
    let report = status(&session)["network"]["threads"][1].clone();
    assert_eq!((report["name"].as_str(), &report["runs"]), (Some("polling 0"), &serde_json::json!(["udp"])));
    daemon.signal(Signal::USR1);
    assert!(ends_when_woken(&mut daemon, folder.path()), "it goes on without {thread}");
    drop(session);
    let said = daemon.end(LIMIT);
    assert_eq!(said.code(), 1, "{said:?}");
    let why = format!("the {known_as} thread has ended: it panicked: ");
    assert!(said.err.contains(&format!("insaned: {why}")), "{said:?}");
    let last = last_words(&raw);
    assert!(last.starts_with(&format!("the runtime has failed: {why}")), "{last}");
    assert!(!folder.path().join("s").exists());
}

#[test]
fn a_daemon_whose_polling_thread_has_ended_ends_with_a_reason() {
    let _watchdog = Watchdog::start("a polling thread ends", TEST);
    panics("insane-poll-0", "polling 0");
}

#[test]
fn a_daemon_whose_session_or_network_thread_panics_ends_with_a_reason_that_its_sessions_hear() {
    let _watchdog = Watchdog::start("a thread panics", TEST);
    panics("insane-sessions", "sessions");
    panics("insane-network", "network");
}
