//! `insane capture` while two runtimes talk: what it writes is read by Wireshark with the project's dissector, and what it may and
//! may not. Traffic on loopback, and over AF_XDP between network namespaces; without root the latter: SKIPPED.

use insane::{Qos, Session};
use insane_datapath::pcapng::{self, PACKET, SECTION, STATISTICS};
use insane_runtime::config::Domain;
use insane_tests_host::programs::{Running, Said, copy_program, program, run};
use insane_tests_host::{Host, Watchdog};
use insane_tests_network::cables::{Cables, accelerated, ends};
use insane_tests_network::{LIMIT, Process, config, eventually, free_addresses, law, law_holds, status, two};
use rustix::process::Signal;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(90);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");
/// What is sent, and found in the capture.
const WORDS: &[u8] = b"what is said between two hosts";

fn capture(socket: &Path, datapath: &str, file: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(program("insane-cli", "insane"));
    command
        .arg("--json")
        .arg("--socket")
        .arg(socket)
        .args(["capture", "--datapath", datapath, "-w"])
        .arg(file)
        .args(more);
    command
}

/// A capture that has begun.
fn start(mut command: Command, file: &Path) -> Running {
    let mut begun = Running::start(&mut command);
    let is_there = || std::fs::metadata(file).is_ok_and(|m| m.len() > 0);
    if !eventually(|| is_there() || begun.has_ended()) || !is_there() {
        panic!("no capture: {}", begun.end(Duration::ZERO).err);
    }
    begun
}

fn summary(said: &Said) -> Value {
    assert_eq!(said.code(), 0, "{said:?}");
    serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"))
}

/// The kinds of a file's blocks; all of it must be blocks.
fn blocks(file: &Path) -> Vec<u32> {
    let bytes = std::fs::read(file).expect("a file");
    let (mut kinds, mut rest) = (Vec::new(), &bytes[..]);
    while let Some((kind, block)) = pcapng::block(rest).expect("a block") {
        kinds.push(kind);
        rest = &rest[block.len()..];
    }
    assert!(rest.is_empty(), "half a block at the end");
    kinds
}

fn packets(file: &Path) -> usize {
    blocks(file).iter().filter(|kind| **kind == PACKET).count()
}

/// What Wireshark shows of a file, a line each packet, if it is installed.
fn tshark(file: &Path, fields: &[&str]) -> Option<Vec<String>> {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!("SKIPPED: tshark is not installed (Debian: apt-get install tshark)");
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/wireshark/insane.lua");
    let mut command = Command::new("tshark");
    command.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(file);
    command.args([
        "-o",
        "udp.check_checksum:TRUE",
        "-o",
        "ip.check_checksum:TRUE",
        "-T",
        "fields",
        "-E",
        "occurrence=f",
    ]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().expect("tshark runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("Lua: "), "{errors}");
    Some(String::from_utf8_lossy(&output.stdout).lines().map(str::to_string).collect())
}

/// Messages cross until a capture has ended.
fn talk(pair: (&Session, &Session), qos: Qos, mut begun: Running) -> Said {
    let (_stream, source, sink) = ends(pair.0, pair.1, qos, "c");
    while !begun.has_ended() {
        source.send(WORDS).expect("it goes");
        let _ = sink.consume_timeout(Duration::from_millis(20));
    }
    let said = begun.end(LIMIT);
    assert!(eventually(|| law_holds(pair.0)), "{}", law(pair.0));
    said
}

/// What every capture shows.
fn shows_both_ways(file: &Path, interface: &str, frames: usize) -> Option<Vec<String>> {
    let fields = ["_ws.col.Protocol", "frame.interface_name", "frame.packet_flags_direction", "insane.payload"];
    let lines = tshark(file, &fields)?;
    assert_eq!(lines.len(), frames, "{lines:?}");
    assert!(lines.iter().all(|line| line.split('\t').nth(1) == Some(interface)), "{lines:?}");
    let hex: String = WORDS.iter().map(|byte| format!("{byte:02x}")).collect();
    for direction in ["0x00000001", "0x00000002"] {
        let so = |line: &&String| line.starts_with("INSANE\t") && line.split('\t').nth(2) == Some(direction);
        assert!(lines.iter().any(|line| so(&line)), "{direction} is not there: {lines:?}");
    }
    assert!(lines.iter().any(|line| line.contains(&hex)), "what was said is not there: {lines:?}");
    assert_eq!(tshark(file, &["_ws.expert.message"])?.iter().filter(|line| line.contains("hecksum")).count(), 0);
    Some(lines)
}

#[test]
fn wireshark_reads_what_two_runtimes_say_over_udp() {
    let _watchdog = Watchdog::start("capture", TEST);
    let [one, two] = two(PROGRAM);
    let (a, b) = (one.session("source"), two.session("sink"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("udp.pcapng");
    let begun = start(capture(&one.socket(), "udp", &file, &["--count", "60", "--seconds", "30"]), &file);
    let summary = summary(&talk((&a, &b), Qos::default(), begun));
    assert_eq!((summary["frames"].as_u64(), summary["dropped"].as_u64()), (Some(60), Some(0)), "{summary}");
    assert_eq!(summary["bytes"].as_u64(), std::fs::metadata(&file).ok().map(|m| m.len()));
    let kinds = blocks(&file);
    assert_eq!((kinds[0], kinds.last(), packets(&file)), (SECTION, Some(&STATISTICS), 60));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    // A captured interface is not the machine's: the datapath's name stands for it.
    let Some(lines) = shows_both_ways(&file, "udp", 60) else { return };
    assert!(lines.iter().all(|line| line.starts_with("INSANE")), "{lines:?}");
}

#[test]
fn wireshark_reads_whole_frames_of_xdp() {
    let _watchdog = Watchdog::start("capture", TEST);
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, |_| ()));
    let (a, b) = (one.session("source"), two.session("sink"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("xdp.pcapng");
    let begun = start(capture(&one.socket(), "xdp", &file, &["--count", "60", "--seconds", "30"]), &file);
    let summary = summary(&talk((&a, &b), accelerated(Qos::default()), begun));
    assert_eq!((summary["frames"].as_u64(), packets(&file)), (Some(60), 60), "{summary}");
    shows_both_ways(&file, "veth1", 60);
}

/// What is reported of the capture of kernel UDP.
fn on_udp(session: &Session) -> Value {
    status(session)["network"]["datapaths"][0]["capture"].clone()
}

/// The status shows the capture that a process has, with what it has captured.
fn is_shown(runtime: &Process, session: &Session, pid: u32) {
    assert!(eventually(|| on_udp(session)["frames"].as_u64() > Some(0)), "{}", on_udp(session));
    let (shown, user) = (on_udp(session), rustix::process::getuid().as_raw());
    assert_eq!((shown["by"].as_str(), &shown["dropped"]), (Some(&*format!("process {pid} of user {user}")), &0.into()));
    let mut command = Command::new(program("insane-cli", "insane"));
    let said = run(command.arg("--socket").arg(runtime.socket()).arg("status"), LIMIT);
    assert!(said.out.contains(&format!("    captured by process {pid} of user {user} for ")), "{said:?}");
    assert!(said.out.contains(" frames, 0 dropped"), "{said:?}");
}

#[test]
fn a_capture_ends_in_order_when_interrupted_and_when_its_time_is_over() {
    let _watchdog = Watchdog::start("capture", TEST);
    let [one, two] = two(PROGRAM);
    let (a, b) = (one.session("source"), two.session("sink"));
    let (_stream, source, sink) = ends(&a, &b, Qos::default(), "c");
    let dir = tempfile::tempdir().unwrap();
    for (name, signal, more) in [("interrupt", Some(Signal::INT), &[][..]), ("time", None, &["--seconds", "0.5"])] {
        let file = dir.path().join(name);
        let begun = start(capture(&one.socket(), "udp", &file, more), &file);
        if signal.is_some() {
            // Others have theirs after it, not beside it.
            let file = dir.path().join("beside");
            let beside = run(&mut capture(&one.socket(), "udp", &file, &[]), LIMIT);
            assert!(beside.code() == 1 && beside.err.contains("captured already"), "{beside:?}");
            assert!(!file.exists(), "a file is left of nothing");
        }
        source.send(WORDS).unwrap();
        sink.consume_timeout(LIMIT).unwrap();
        if let Some(signal) = signal {
            is_shown(&one, &a, begun.id());
            begun.signal(signal);
        }
        let summary = summary(&begun.end(LIMIT));
        assert_eq!(summary["frames"].as_u64(), Some(packets(&file) as u64), "{summary}");
        assert_eq!(blocks(&file).last(), Some(&STATISTICS));
    }
    assert!(eventually(|| on_udp(&a).is_null()), "it is still shown: {}", on_udp(&a));
    let mut to_output = Command::new(program("insane-cli", "insane"));
    to_output.arg("--socket").arg(one.socket()).args("capture --datapath udp -w - --seconds 0.2".split(' '));
    let output = to_output.stdin(Stdio::null()).output().expect("it runs");
    assert!(output.status.success() && output.stdout.starts_with(&SECTION.to_le_bytes()), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("none missing"), "{output:?}");
    source.send(WORDS).unwrap();
    sink.consume_timeout(LIMIT).unwrap();
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

#[test]
fn who_captures_and_dies_or_hangs_harms_nobody_and_of_a_runtime_that_dies_what_was_captured_remains() {
    let _watchdog = Watchdog::start("capture", TEST);
    let [mut one, two] = two(PROGRAM);
    let (a, b) = (one.session("source"), two.session("sink"));
    let (_stream, source, sink) = ends(&a, &b, Qos::default(), "c");
    let dir = tempfile::tempdir().unwrap();
    let cross = || {
        source.send(WORDS).unwrap();
        sink.consume_timeout(LIMIT).unwrap();
    };
    let begin = |one: &Process, name: &str| {
        let file = dir.path().join(name);
        (start(capture(&one.socket(), "udp", &file, &[]), &file), file)
    };
    // One that hangs: nothing waits for it.
    let (hangs, _) = begin(&one, "hangs");
    hangs.signal(Signal::STOP);
    (0..200).for_each(|_| cross());
    // One that is killed, and another can follow.
    hangs.signal(Signal::KILL);
    drop(hangs);
    let mut next = None;
    assert!(eventually(|| {
        let file = dir.path().join("probe");
        let said = run(&mut capture(&one.socket(), "udp", &file, &["--seconds", "0"]), LIMIT);
        let free = said.code() == 0;
        if free {
            next = Some(begin(&one, "next"));
        }
        free
    }));
    let (next, file) = next.expect("another capture");
    cross();
    assert!(eventually(|| std::fs::metadata(&file).is_ok_and(|m| m.len() > 400)));
    one.kill();
    let said = next.end(LIMIT);
    assert!(said.code() == 1 && said.out.contains("the runtime ended"), "{said:?}");
    assert!(packets(&file) > 0);
}

#[test]
fn a_user_of_a_domain_may_not_capture() {
    let _watchdog = Watchdog::start("capture", TEST);
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: to be another user takes root");
        return;
    }
    let addresses = free_addresses(2);
    let mut config = config("host-0", addresses[0], &addresses);
    config.runtime.socket_mode = "666".into();
    config.domains.insert("default".into(), Domain { all_users: true, ..Domain::default() });
    let runtime = Process::start(PROGRAM, None, &config);
    let _there = runtime.session("waits until it serves");
    let dir = tempfile::tempdir().unwrap();
    // Where another user can reach them.
    let insane = dir.path().join("insane");
    copy_program(&program("insane-cli", "insane"), &insane);
    let open = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    open(dir.path(), 0o777);
    open(runtime.socket().parent().unwrap(), 0o755);
    let as_nobody = |words: &str| {
        let mut command = Command::new(&insane);
        command
            .arg("--socket")
            .arg(runtime.socket())
            .args(words.split(' '))
            .current_dir(dir.path())
            .uid(65_534)
            .gid(65_534);
        run(&mut command, LIMIT)
    };
    assert_eq!(as_nobody("status").code(), 0, "the user is of the domain: {:?}", as_nobody("status"));
    let said = as_nobody("capture --datapath udp -w file --seconds 0");
    assert!(said.code() == 1 && said.err.contains("only root and the runtime's own user"), "{said:?}");
    assert!(!dir.path().join("file").exists(), "a file is left of nothing");
}

#[test]
fn what_cannot_be_captured_is_said_and_leaves_no_file() {
    let _watchdog = Watchdog::start("capture", TEST);
    let alone = Host::start();
    let [one, _two] = two(PROGRAM);
    let _there = one.session("waits until it serves");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    for (socket, datapath, says) in [
        (alone.socket(), "udp", "no [network] section"),
        (one.socket(), "xdp", "no datapath `xdp` is open here: udp is"),
    ] {
        let said = run(&mut capture(&socket, datapath, &file, &[]), LIMIT);
        assert!(said.code() == 2 && said.err.contains(says), "{said:?}");
        assert!(!file.exists(), "a file is left of nothing");
    }
    std::fs::write(&file, "somebody's").unwrap();
    let said = run(&mut capture(&one.socket(), "udp", &file, &["--seconds", "0"]), LIMIT);
    assert!(said.code() == 2 && said.err.contains("it exists already"), "{said:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "somebody's");
}
