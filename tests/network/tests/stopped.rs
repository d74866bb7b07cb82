//! A session that is stopped while a sink of another host, for which it has a source, goes and comes back.

use insane::{Qos, Sink};
use insane_shm::counters::Count;
use insane_tests_host::Watchdog;
use insane_tests_network::{
    ENDS, LIMIT, Process, at_the_source, config, eventually, free_addresses, law, network_count, reliable, within,
};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(100);

/// An application with a source, in a process of its own.
struct Emitter {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Emitter {
    fn start(host: &Process, kind: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_emitter"));
        command.arg(host.socket()).arg(kind).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, to, from }
    }

    /// Has it do something; the numbers that it says.
    fn ask(&mut self, what: &str) -> Vec<u64> {
        writeln!(self.to, "{what}").expect("it lives");
        let mut line = String::new();
        self.from.read_line(&mut line).expect("it lives");
        line.split_whitespace().map(|n| n.parse().expect("a number")).collect()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).expect("it lives");
    }
}

impl Drop for Emitter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes what comes within a while; how much that was, and whether `wanted` was among it.
fn take(sink: &Sink, wanted: &[u8], limit: Duration) -> (u64, bool) {
    let mut seen = 0;
    while let Ok(message) = sink.consume_timeout(limit) {
        seen += 1;
        if message.to_vec() == wanted {
            return (seen, true);
        }
    }
    (seen, false)
}

fn check(kind: &str, qos: Qos) {
    let addresses = free_addresses(2);
    let hosts = [0, 1].map(|at| {
        let mut config = config(&format!("host-{at}"), addresses[at], &addresses);
        let network = config.network.get_or_insert_default();
        // Sinks of reliable streams are gone soon, too.
        network.patience_ms = 1000;
        Process::start(env!("CARGO_BIN_EXE_runtime"), None, &config)
    });
    let (a, b) = (hosts[0].session("beside"), hosts[1].session("sink"));
    let sink = b.stream(qos).unwrap().sink("stopped").unwrap();
    let beside = a.stream(qos).unwrap().source("stopped").unwrap();
    assert_eq!(beside.wait_for_sinks(1, LIMIT), 1);
    let mut emitter = Emitter::start(&hosts[0], kind);
    assert_eq!(emitter.ask("wait 1"), [1]);
    let (mut emitted, mut seen) = (emitter.ask("emit 1")[0], 0);
    let mut takes = |wanted: &[u8], limit| {
        let (more, found) = take(&sink, wanted, limit);
        seen += more;
        found
    };
    assert!(takes(b"from the emitter", LIMIT));
    emitter.signal(Signal::STOP);
    // The other host is silent until its sinks are gone.
    hosts[1].hold();
    assert!(eventually(|| beside.sinks() == 0), "the sink does not go: {}", law(&a));
    hosts[1].go_on();
    // The one that is stopped has let go of nothing, and that is nobody else's concern.
    assert_eq!(beside.wait_for_sinks(1, LIMIT), 1, "{}", law(&a));
    let from_beside = || beside.send(b"from beside").map(|_| 1).unwrap();
    let came = within(LIMIT, || {
        emitted += from_beside();
        takes(b"from beside", Duration::from_millis(20))
    });
    assert!(came, "{}", law(&a));
    emitter.signal(Signal::CONT);
    let came = within(LIMIT, || {
        emitted += emitter.ask("emit 1")[0];
        takes(b"from the emitter", Duration::from_millis(20))
    });
    assert!(came, "who was stopped does without the sink: {}", law(&a));
    // Both go on.
    emitted += from_beside();
    assert!(takes(b"from beside", LIMIT));
    while takes(b"", Duration::from_millis(300)) {}
    let mut law_of_both = || {
        let theirs = emitter.ask("counts");
        let (intended, at_source, report) = at_the_source(&a);
        let ended: u64 = ENDS.iter().map(|name| network_count(&report, name)).sum();
        intended + theirs[0] == at_source + theirs[1] + ended && intended + theirs[0] <= emitted
    };
    assert!(eventually(&mut law_of_both), "{emitted} emitted, {}", law(&a));
    let delivered = || b.counts().iter().map(|cell| cell.get(Count::Delivered)).sum::<u64>();
    assert!(eventually(|| delivered() == seen), "{} counted, {seen} seen", delivered());
}

#[test]
fn a_session_that_was_stopped_gets_a_sink_that_was_gone_and_keeps_it_from_nobody() {
    let _watchdog = Watchdog::start("stopped", TEST);
    check("best-effort", Qos::default());
}

#[test]
fn a_session_that_was_stopped_gets_a_reliable_sink_that_was_gone() {
    let _watchdog = Watchdog::start("stopped-reliable", TEST);
    check("reliable", reliable());
}
