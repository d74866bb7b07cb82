//! What a person is told of a stream that gets less than was asked for.

use insane::{Qos, Timing};
use insane_tests_host::programs::{Said, program, run};
use insane_tests_host::{Host, Watchdog};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

/// What is said of `timing=sensitive` on one host.
const WHY: &str = "timing=sensitive: between sessions of one host messages do not wait for a time-aware gate, they are delivered \
                   at once";

#[test]
fn the_command_line_says_why_a_stream_gets_less() {
    let _watchdog = Watchdog::start("reasons", Duration::from_secs(100));
    let host = Host::start();
    let insane = |arguments: &str| -> Said {
        let mut command = Command::new(program("insane-cli", "insane"));
        run(command.arg("--socket").arg(host.socket()).args(arguments.split(' ')), LIMIT)
    };
    // Who opens the stream is told at once; with all that was asked for there is nothing to tell.
    let less = insane("sub c --duration 0.05 --qos timing=sensitive");
    assert!(less.err.lines().any(|line| line == format!("insane: {WHY}")), "{}", less.err);
    let all = insane("sub c --duration 0.05 --qos reliability=reliable");
    assert!(!all.err.contains("timing"), "{}", all.err);
    // And so is who looks at the host while it is open.
    let session = host.session("reasons");
    let mut sensitive = Qos::default();
    sensitive.set_timing(Timing::Sensitive);
    let _streams =
        [session.stream_named("less", sensitive).unwrap(), session.stream_named("all", Qos::default()).unwrap()];
    let status = insane("status").out;
    let of = |stream: &str| -> Vec<&str> {
        let first = format!("  {stream} (domain default, 1 sessions)");
        let lines = status.lines().skip_while(|line| *line != first).skip(1);
        lines.take_while(|line| line.starts_with("    ")).map(str::trim_start).collect()
    };
    assert_eq!(of("less"), ["towards local: shm over shm", WHY], "{status}");
    assert_eq!(of("all"), ["towards local: shm over shm"], "{status}");
}
