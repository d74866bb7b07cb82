//! The examples of the front door run as they stand there.

use insane_tests_host::programs::{Said, program, run};
use insane_tests_host::{Host, Watchdog};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// The block that a test of this name runs.
fn block(test: &str) -> String {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = std::fs::read_to_string(readme).expect("README.md");
    let rest = text.split(&format!("<!-- test: {test} -->\n```\n")).nth(1).expect("the block").to_owned();
    rest.split("```").next().unwrap_or_default().to_owned()
}

/// Runs lines of a shell with the programs of the workspace, and ends what they left in the background.
fn shell(lines: &str, socket: &Path) -> Said {
    let programs = [program("insane-cli", "insane"), program("insaned", "insaned")];
    let folders = programs.iter().filter_map(|p| p.parent()).map(Path::to_path_buf);
    let path =
        std::env::join_paths(folders.chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())));
    // Where the runtime listens is the test's affair: it must not meet one that serves this host.
    let socket_of_its_own = "insaned() { exec insaned --socket \"$INSANE_SOCKET\" \"$@\"; }";
    let end = "for job in $(jobs -p); do kill \"$job\"; done; wait";
    let script = format!("set -eu\n{socket_of_its_own}\n{lines}\n{end}\n");
    let mut command = Command::new("bash");
    command.args(["-c", &script]).env("INSANE_SOCKET", socket).env("PATH", path.expect("a path"));
    run(&mut command, LIMIT)
}

fn as_shown() -> Result<(), insane::Error> {
    include!(concat!(env!("OUT_DIR"), "/readme.rs"));
    Ok(())
}

#[test]
fn the_rust_example_runs() {
    let _watchdog = Watchdog::start("the example", LIMIT);
    let mut this = Command::new(std::env::current_exe().expect("this program"));
    // The example finds its runtime by the environment, which only a new process can be given safely.
    if std::env::var_os("INSANE_EXAMPLE").is_none() {
        let host = Host::start();
        this.args(["--exact", "the_rust_example_runs", "--nocapture"]);
        let said = run(this.env("INSANE_EXAMPLE", "1").env("INSANE_SOCKET", host.socket()), LIMIT);
        assert!(said.code() == 0 && said.out.contains("[104, 101, 108, 108, 111]"), "{said:?}");
        return;
    }
    as_shown().expect("it runs");
}

#[test]
fn the_runtime_starts_as_shown() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    let seen = "for i in $(seq 200); do [ -S \"$INSANE_SOCKET\" ] && break; sleep 0.02; done; insane status";
    let said = shell(&format!("{}\n{seen}", block("the_runtime_starts_as_shown")), &socket);
    assert!(said.code() == 0 && said.out.starts_with("insaned "), "{said:?}");
    assert!(!socket.exists(), "it was told to stop, and left its socket");
}

#[test]
fn the_commands_run_as_shown() {
    let _watchdog = Watchdog::start("the commands", 2 * LIMIT);
    let host = Host::start();
    let said = shell(&block("the_commands_run_as_shown"), &host.socket());
    assert_eq!(said.code(), 0, "{said:?}");
    // Of each command what tells that it did its work: ping, pong, sub, pub, status, doctor.
    for words in ["100000 round trips of 64 bytes, 0 lost", "answered 10", "\nhello\n", "1 emitted to 1 sinks"] {
        assert!(said.out.contains(words), "no {words:?}: {said:?}");
    }
    assert!(said.out.contains("\nsessions\n") && said.out.contains("ok    sealing"), "{said:?}");
}
