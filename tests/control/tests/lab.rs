//! The RAN lab under control from outside. Needs root and TUN devices, as the lab does.

use insane_tests_control::{FIRST, client};
use insane_tests_host::programs::{program, run};
use insane_tests_host::{Host, Watchdog};
use insane_traffic::PipelineSpec;
use insane_traffic::spec::Change;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

/// Says why a test is skipped, if it is.
fn skipped() -> bool {
    let possible = rustix::process::geteuid().is_root() && std::path::Path::new("/dev/net/tun").exists();
    if !possible {
        println!("SKIPPED: namespaces and TUN devices need root");
    }
    !possible
}

/// A configuration file with control over the channels `lab/...`.
fn file(host: &Host, folder: &tempfile::TempDir, more: &str) -> PathBuf {
    let path = folder.path().join("lab.toml");
    let socket = host.socket();
    let text = format!("version = 1\n[control]\nprefix = \"lab\"\nsocket = \"{}\"\n{more}\n", socket.display());
    std::fs::write(&path, text).expect("a file");
    path
}

struct Lab(Child);

impl Lab {
    fn start(config: &std::path::Path, line: &[&str]) -> Self {
        let mut command = Command::new(program("insane-ranlab", "ranlab"));
        command.arg("run").arg(config).arg("--").args(line).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().expect("the lab starts"))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Asked to end, so that its namespaces go too; it may have ended already.
        if let Some(pid) = rustix::process::Pid::from_raw(self.0.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

#[test]
fn pipelines_are_controlled_from_outside_while_packets_flow() {
    if skipped() {
        return;
    }
    let _watchdog = Watchdog::start("the lab under control", Duration::from_secs(120));
    let (host, folder) = (Host::start(), tempfile::tempdir().expect("a folder"));
    let mut lab = Lab::start(&file(&host, &folder, ""), &["ping", "-n", "-i", "0.02", "-c", "150", "{server}"]);
    let session = host.session("xapp");
    let client = client(&session, LIMIT);
    assert_eq!(client.list().expect("the lab serves"), [FIRST]);
    let mut subscription = client.subscribe(&[], Duration::from_millis(1), Duration::from_secs(2)).expect("a place");
    let mut expected = 0;
    for name in ["fq-codel", "slicing", "l4s"] {
        expected =
            client.load(FIRST, &PipelineSpec::preset(name).expect("a preset"), false, Some(expected)).expect(name);
        let changes: Vec<Change> = serde_json::from_str(r#"[{"op":"set-pacer","pacer":{"type":"5g-bdp"}}]"#).unwrap();
        expected = client.change(FIRST, &changes, Some(expected)).expect(name);
        let until = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until {
            subscription.next(LIMIT).expect("an indication");
        }
    }
    let (pipeline, state) = client.show(FIRST).expect("it is shown");
    assert_eq!((pipeline, state.pipeline.generation), (PipelineSpec::preset("l4s").unwrap(), 6));
    assert!(state.pipeline.basic.packets > 10 && state.rlc.txpdu_pkts > 10, "{state:?}");
    assert_eq!(state.pipeline.basic.drops, 0, "no packet was lost to a change");
    let refused = client.change(FIRST, &[Change::DeleteFilter { id: 99 }], None).unwrap_err().to_string();
    assert_eq!(refused, "there is no filter 99");
    let status = insane_tests_host::programs::wait(&mut lab.0, Duration::from_secs(60)).expect("ping ends");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut lab.0.stdout.take().expect("its output"), &mut said).expect("text");
    assert!(status.success() && said.contains(" 0% packet loss"), "{said}");
}

#[test]
fn without_a_runtime_the_lab_does_what_its_configuration_says() {
    if skipped() {
        return;
    }
    let _watchdog = Watchdog::start("the lab without a runtime", Duration::from_secs(120));
    let (mut host, folder) = (Host::start(), tempfile::tempdir().expect("a folder"));
    host.stop();
    let ranlab = program("insane-ranlab", "ranlab");
    let mut command = Command::new(&ranlab);
    command.arg("run").arg(file(&host, &folder, "absent = \"fail\"")).args(["--", "true"]);
    let said = run(&mut command, LIMIT);
    assert_eq!((said.code(), said.err.contains("control: no INSANE runtime")), (1, true), "{said:?}");
    let lab = Lab::start(&file(&host, &folder, "absent = \"retry\""), &["sleep", "60"]);
    std::thread::sleep(Duration::from_millis(500));
    host.restart();
    let session = host.session("xapp");
    assert_eq!(client(&session, LIMIT).list().expect("the lab has found the runtime"), [FIRST]);
    drop(lab);
    let mut wrong = Command::new(&ranlab);
    wrong.arg("check").arg(file(&host, &folder, "absent = \"never\""));
    let said = run(&mut wrong, LIMIT);
    assert_eq!((said.code(), said.err.contains("absent")), (1, true), "{said:?}");
}
