//! The lab on this machine: programs in namespaces talk through it, and whatever ends it, nothing is left behind. Needs root.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use insane_ranlab::experiment::game::Played;
use insane_ranlab::host::impossible;

const RANLAB: &str = env!("CARGO_BIN_EXE_ranlab");

/// Says why a test is skipped, if it is.
fn skipped() -> bool {
    let why = impossible();
    if let Some(why) = &why {
        println!("SKIPPED: {why}");
    }
    why.is_some()
}

/// The namespaces of the lab that is process `pid`.
fn namespaces(pid: u32) -> Vec<String> {
    let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = names.map(|e| e.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("rl-{pid}-"))).collect()
}

/// Runs the lab to its end, and checks that its namespaces are gone.
fn run(arguments: &[&str]) -> Output {
    let child = Command::new(RANLAB)
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let pid = child.id();
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(namespaces(pid), Vec::<String>::new());
    output
}

#[test]
fn a_game_is_played_through_the_lab_and_the_trace_says_so() {
    if skipped() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.parquet");
    let serve = format!("{RANLAB} game-server --seconds 20");
    let play = [RANLAB, "game", "{server}", "--seconds", "3"];
    let line = ["run", "-", "--serve", &serve, "--trace", trace.to_str().unwrap(), "--"];
    let output = run(&[&line[..], &play].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    let played: Played = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {error}"));
    assert!(played.states.len() > 30, "{}", played.states.len());
    // Physics of the lab: 3 ms down and 1.5 ms up at least. Not of each trip: what a thread reads that woke late may have
    // been there before, counts as such, and so seems to have been faster by as much as that was late.
    let mut trips: Vec<f64> = played.states.iter().map(|s| s.2).collect();
    trips.sort_by(f64::total_cmp);
    let median = trips[trips.len() / 2];
    assert!(median >= 4.5, "{median}, from {} to {}", trips[0], trips[trips.len() - 1]);
    let bytes = std::fs::read(&trace).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
}

#[test]
fn the_programs_exit_code_is_the_labs() {
    if skipped() {
        return;
    }
    assert_eq!(run(&["run", "-", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(run(&["run", "-", "--in", "ue9", "--", "true"]).status.code(), Some(1));
}

/// Starts a lab without a program and waits until it stands.
fn standing() -> Child {
    let mut child = Command::new(RANLAB).args(["run", "-"]).stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("namespace"), "{line}");
    assert_eq!(namespaces(child.id()).len(), 3);
    child
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn a_signal_ends_the_lab_and_its_namespaces() {
    if skipped() {
        return;
    }
    for kind in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let mut child = standing();
        signal(&child, kind);
        assert!(child.wait().unwrap().success());
        assert_eq!(namespaces(child.id()), Vec::<String>::new());
    }
}

#[test]
fn what_a_killed_lab_left_the_next_one_removes() {
    if skipped() {
        return;
    }
    let mut child = standing();
    signal(&child, rustix::process::Signal::KILL);
    child.wait().unwrap();
    assert_eq!(namespaces(child.id()).len(), 3);
    let mut other = standing();
    let until = Instant::now() + Duration::from_secs(60);
    while !namespaces(child.id()).is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(namespaces(child.id()), Vec::<String>::new());
    assert_eq!(namespaces(other.id()).len(), 3, "those of one that lives are left alone");
    signal(&other, rustix::process::Signal::TERM);
    other.wait().unwrap();
}
