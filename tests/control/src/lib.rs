//! What the tests of traffic control share: a server in a thread, and one in a process.

use insane_tests_host::Host;
use insane_tests_host::programs::program;
use insane_traffic::PipelineSpec;
use insane_traffic_control::{BearerId, Client, ClientOptions, Control, ControlOptions, DeskCounts, StandIn};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The bearers of both servers.
pub const FIRST: BearerId = BearerId { rnti: 0x4601, drb: 1 };
/// As above.
pub const SECOND: BearerId = BearerId { rnti: 0x4601, drb: 2 };
/// Where they serve.
pub const PREFIX: &str = "lab";

/// What a server in a thread left.
#[derive(Debug)]
pub struct Left {
    /// Its bearers.
    pub bearers: StandIn,
    /// What it counted.
    pub counts: DeskCounts,
    /// Subscriptions at its end.
    pub subscriptions: usize,
}

/// A server in a thread.
#[derive(Debug)]
pub struct Served {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Left>>,
}

impl Served {
    /// Starts one with both bearers, once its channels are open.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn start(host: &Host) -> Self {
        let session = host.session("server");
        let mut control = Control::open(&session, &ControlOptions::new(PREFIX)).expect("the channels");
        let mut bearers = StandIn::new(&[FIRST, SECOND], &PipelineSpec::default()).expect("a pipeline");
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let serve = move || {
            control.serve(&mut bearers, &ended).expect("it serves");
            bearers.audit().expect("the books are in order");
            drop(session);
            Left { bearers, counts: control.counts(), subscriptions: control.subscriptions() }
        };
        Self { stop, thread: Some(std::thread::spawn(serve)) }
    }

    /// Stops it.
    ///
    /// # Panics
    /// When it panicked.
    #[must_use]
    pub fn stop(mut self) -> Left {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("it was started").join().expect("the server does not panic")
    }
}

/// A server in a process, killed when dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts one, once it serves.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn start(host: &Host) -> Self {
        let mut command = Command::new(program("insane-tests-control", "stand-in"));
        command.arg(PREFIX).arg(host.socket()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the stand-in starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("it says when it is ready");
        assert_eq!(line, "ready\n");
        Self(child)
    }

    /// Kills it at once.
    ///
    /// # Panics
    /// When it cannot.
    pub fn kill(&mut self) {
        self.0.kill().expect("it can be killed");
        self.0.wait().expect("it has ended");
    }

    /// Stops it where it is, or lets it go on.
    ///
    /// # Panics
    /// When it is gone.
    pub fn freeze(&self, frozen: bool) {
        use rustix::process::{Pid, Signal, kill_process};
        let pid = Pid::from_raw(self.0.id().cast_signed()).expect("a process");
        kill_process(pid, if frozen { Signal::STOP } else { Signal::CONT }).expect("it is there");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A client with a limit of its own.
///
/// # Panics
/// When its channels cannot be opened.
#[must_use]
pub fn client(session: &insane::Session, timeout: Duration) -> Client {
    Client::open(session, &ClientOptions { timeout, ..ClientOptions::new(PREFIX) }).expect("the channels")
}
