//! More descriptors under way than a user may have: who is to be sent one waits, and the runtime sleeps meanwhile.

use insane_runtime::config::Config;
use insane_runtime::server::Server;
use insane_shm::socket::{Received, pair, receive, send};
use insane_tests_host::Watchdog;
use insane_tests_host::hostile::Raw;
use insane_tests_host::programs::{copy_program, run};
use insane_wire::control::to_client::Body;
use insane_wire::control::{self, ToRuntime, to_runtime};
use insane_wire::encode;
use insane_wire::id::SinkId;
use rustix::fd::AsFd;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The directory of the socket, for the process that is the test.
const FOLDER: &str = "INSANE_TEST_UNDER_WAY";

/// A user that no program is of, so that all descriptors that are under way for it are this test's.
const SOMEBODY: u32 = 61_284;

/// How many descriptors a process may have, and its user may have under way.
const LIMIT: u64 = 64;

#[test]
fn descriptors_that_nobody_takes_keep_no_core_busy() {
    let _watchdog = Watchdog::start("under way", Duration::from_secs(100));
    if let Some(folder) = std::env::var_os(FOLDER) {
        return with_few_descriptors(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let this = std::env::current_exe().unwrap();
    let mut command = if rustix::process::geteuid().is_root() {
        // The limit is none for root, and not every user can read where this was built.
        let copy = folder.path().join("test");
        copy_program(&this, &copy);
        chown(folder.path(), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={SOMEBODY}"), format!("--regid={SOMEBODY}")]);
        command.args(["--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]).arg(copy);
        command
    } else {
        Command::new(this)
    };
    command.args(["descriptors_that_nobody_takes_keep_no_core_busy", "--exact", "--nocapture"]);
    let said = run(command.env(FOLDER, folder.path()), Duration::from_secs(90));
    assert_eq!(said.code(), 0, "{}\n{}", said.out, said.err);
}

fn with_few_descriptors(folder: &Path) {
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) }).unwrap();
    let mut config = Config::default();
    config.runtime.socket = folder.join("s");
    let server = Server::start(config).unwrap();
    let (mut one, mut two) = (Raw::open(server.socket()).unwrap(), Raw::open(server.socket()).unwrap());
    // Sent to somebody who does not read them, eight in a message.
    let (from, to) = pair().unwrap();
    while send(from.as_fd(), b"some", &[from.as_fd(); 8]).unwrap() {}
    one.endpoint("channel", true).unwrap();
    // The answer comes after the pair.
    let channel = Some(control::Channel { name: Some("channel".into()), id: None });
    let sink = control::OpenSink { stream: two.number(), channel, sink: SinkId(1).to_bytes(), observer: false };
    let open = ToRuntime { request: 99, body: Some(to_runtime::Body::OpenSink(sink)) };
    assert!(send(two.socket.as_fd(), &encode(&open), &[]).unwrap());
    let (start, before) = (Instant::now(), time_of_sessions());
    std::thread::sleep(Duration::from_secs(2));
    let used = time_of_sessions() - before;
    assert!(used * 10 < start.elapsed(), "{used:?} of processor time in {:?}", start.elapsed());
    // What comes after the pair waits with it, and all of it comes once there is room.
    let mut taken = 0;
    while let Received::Message(_, fds) = receive(to.as_fd(), 16).unwrap() {
        taken += fds.len() as u64;
    }
    assert!(taken >= LIMIT, "{taken} were under way");
    for session in [&mut one, &mut two] {
        let (message, fds) = session.event().expect("a pair");
        assert!(matches!(message.body, Some(Body::Pair(_))) && fds.len() == 1, "{message:?}");
        let flow = session.event().expect("a flow").0;
        assert!(matches!(flow.body, Some(Body::FlowAdded(_))), "{flow:?}");
    }
    let (answer, _) = two.event().expect("an answer");
    assert!(answer.request == 99 && matches!(answer.body, Some(Body::SinkOpened(_))), "{answer:?}");
    // They are heard again.
    for session in [&mut one, &mut two] {
        let answer = session.ask(to_runtime::Body::Goodbye(control::Goodbye {}), &[]);
        assert!(matches!(answer, Ok(Body::Done(_))), "{answer:?}");
    }
    server.stop();
}

/// Processor time so far of the thread that serves sessions.
fn time_of_sessions() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_it = |task: &std::path::PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "insane-sessions")
    };
    let stat = std::fs::read_to_string(tasks.into_iter().find(is_it).expect("the thread").join("stat")).unwrap();
    // Ticks as a user and in the kernel: the 14th and 15th field, of which the name is the second.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap()
}
