//! The rights that the shipped drop-in for systemd gives are what the datapaths take, and no more: `insaned` with exactly these, as
//! another user. And what becomes of streams when one is gone while they run. Without root, or what the datapath takes: SKIPPED.

use insane::{Qos, Reliability};
use insane_runtime::config::Config;
use insane_tests_host::Watchdog;
use insane_tests_host::programs::{copy_program, program, run};
use insane_tests_network::cables::{Cables, accelerated, dpdk_object, ends, goes_over, on_dpdk};
use insane_tests_network::load::{are_whole, flows, numbers, take_the_rest};
use insane_tests_network::{LIMIT, eventually, reliable, status};
use serde_json::Value;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(180);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

/// How many bytes anybody may lock where nothing else is said: systemd's default.
const LOCKED: u32 = 8 << 20;

/// The user and group `nobody`.
const NOBODY: u32 = 65_534;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).expect("it is in the repository")
}

/// What the drop-in says of a key.
fn granted(key: &str) -> Vec<String> {
    let text = read("packaging/systemd/datapaths.conf");
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).expect("it is there").to_owned();
    line.split(' ').map(str::to_owned).collect()
}

/// `insaned` as another user with some capabilities and no others; killed when dropped.
struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
}

impl Daemon {
    /// At an end of cables. `locked` is how many bytes it may lock without CAP_IPC_LOCK.
    fn start(cables: &Cables, end: usize, capabilities: &[&str], locked: u32, change: &dyn Fn(&mut Config)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        // Where that user can read it.
        let daemon = folder.path().join("insaned");
        copy_program(&program("insaned", "insaned"), &daemon);
        let mut config = Cables::config(end);
        change(&mut config);
        config.runtime.socket = folder.path().join("insaned.sock");
        let file = folder.path().join("insaned.toml");
        std::fs::write(&file, config.to_toml()).expect("it is written");
        for path in [folder.path(), &daemon, &file] {
            chown(path, Some(NOBODY), Some(NOBODY)).expect("root may give it away");
        }
        let names = capabilities.iter().map(|name| name.trim_start_matches("CAP_").to_lowercase());
        let set = names.fold("-all".to_owned(), |set, name| format!("{set},+{name}"));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", cables.0.name(end), "prlimit", &format!("--memlock={locked}:{locked}")]);
        command.args(["setpriv", "--no-new-privs", "--clear-groups"]);
        command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]);
        command.args(["bounding-set", "inh-caps", "ambient-caps"].map(|kind| format!("--{kind}={set}")));
        command.arg(&daemon).arg("--config").arg(&file).stdin(Stdio::null()).stderr(Stdio::null());
        Self { child: command.spawn().expect("it starts"), folder }
    }

    /// A session with it, once it serves.
    fn session(&self, app: &str) -> insane::Session {
        let socket = self.folder.path().join("insaned.sock");
        let mut session = None;
        eventually(|| {
            session = insane::Session::builder(app).socket(&socket).open().ok();
            session.is_some()
        });
        session.expect("a session")
    }

    /// How many bytes it may lock from now on, [`LOCKED`] at most. Root may not say that of another user's process everywhere, its user
    /// may.
    fn may_lock(&self, bytes: u32) {
        let mut command = Command::new("setpriv");
        command.args(["--clear-groups", &format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "prlimit"]);
        command.arg(format!("--pid={}", self.child.id())).arg(format!("--memlock={bytes}:{LOCKED}"));
        let said = run(&mut command, LIMIT);
        assert_eq!(said.code(), 0, "{said:?}");
    }

    /// What it says of its datapath beside UDP: its state and the text.
    fn says(&mut self) -> (String, String) {
        let mut found = Value::Null;
        let socket = self.folder.path().join("insaned.sock");
        let known = eventually(|| {
            let session = insane::Session::builder("operator").socket(&socket).open().ok();
            let report = session.and_then(|session| session.report("status").ok());
            let report: Value = report.and_then(|report| serde_json::from_str(&report).ok()).unwrap_or_default();
            found = report["network"]["datapaths"][1].clone();
            !found.is_null()
        });
        assert!(known, "it does not serve: {:?}", self.child.try_wait());
        let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        (text("state"), text("text"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// With all of some capabilities the datapath opens and the kernel at the other end pings its station; without any of them it is
/// absent, and says what is missing. `locked` is how many bytes may be locked without a capability.
fn takes(
    (cables, locked): (&Cables, u32),
    capabilities: &[&str],
    change: &dyn Fn(&mut Config),
    missing: &dyn Fn(&str) -> &'static str,
) {
    let mut with = Daemon::start(cables, 1, capabilities, locked, change);
    let (state, text) = with.says();
    assert_eq!(state, "open", "with {capabilities:?}: {text}");
    cables.ping("10.96.0.101").unwrap();
    drop(with);
    for without in capabilities {
        let others: Vec<&str> = capabilities.iter().copied().filter(|one| one != without).collect();
        let (state, text) = Daemon::start(cables, 1, &others, locked, change).says();
        assert_eq!(state, "absent", "without {without}: {text}");
        assert!(text.contains(without) && text.contains(missing(without)), "without {without}: {text}");
    }
}

#[test]
fn what_the_drop_in_gives_is_what_xdp_takes() {
    let _watchdog = Watchdog::start("rights, xdp", TEST);
    let Some(cables) = Cables::new() else { return };
    let granted = granted("AmbientCapabilities");
    let capabilities: Vec<&str> = granted.iter().map(String::as_str).collect();
    takes((&cables, 0), &capabilities, &|_| (), &|without| match without {
        "CAP_IPC_LOCK" => "raise RLIMIT_MEMLOCK",
        _ => "the kernel refused",
    });
    // Few enough buffers need none.
    let others: Vec<&str> = capabilities.iter().copied().filter(|one| *one != "CAP_IPC_LOCK").collect();
    let (state, text) = Daemon::start(&cables, 1, &others, LOCKED, &|config| {
        config.network.get_or_insert_default().datapath[0].frames = 512;
    })
    .says();
    assert_eq!(state, "open", "{text}");
}

#[test]
fn dpdk_on_an_interface_takes_a_part_of_the_drop_in_and_memif_nothing() {
    let _watchdog = Watchdog::start("rights, dpdk", TEST);
    let Some(object) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    let Some(cables) = Cables::new() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let library = folder.path().join("libinsane_dpdk.so");
    std::fs::copy(object, &library).expect("it is copied");
    chown(folder.path(), Some(NOBODY), Some(NOBODY)).expect("root may give it away");
    takes(
        (&cables, LOCKED),
        &["CAP_NET_RAW", "CAP_NET_ADMIN"],
        &|config| on_dpdk(config, &library),
        &|_| "which takes",
    );
    let memif = |config: &mut Config| {
        on_dpdk(config, &library);
        let one = &mut config.network.get_or_insert_default().datapath[0];
        let device = format!("net_memif0,role=server,socket={}/memif,socket-abstract=no", folder.path().display());
        (one.interface, one.device) = (String::new(), device);
    };
    let (state, text) = Daemon::start(&cables, 1, &[], 0, &memif).says();
    assert_eq!(state, "open", "{text}");
}

/// Streams go over UDP while the right is missing, without a loss if they are reliable, and come back with it.
#[test]
fn a_right_that_is_gone_when_an_interface_is_made_again_under_a_stream_is_said_and_costs_the_datapath_alone() {
    let _watchdog = Watchdog::start("rights, gone", TEST);
    let Some(cables) = Cables::new() else { return };
    let granted = granted("AmbientCapabilities");
    let capabilities: Vec<&str> = granted.iter().map(String::as_str).filter(|one| *one != "CAP_IPC_LOCK").collect();
    let daemon = Daemon::start(&cables, 0, &capabilities, LOCKED, &|config| {
        config.network.get_or_insert_default().datapath[0].frames = 512;
    });
    let two = cables.runtime(PROGRAM, 1, |_| ());
    let (a, b) = (daemon.session("source"), two.session("sink"));
    for qos in [reliable(), Qos::default()].map(accelerated) {
        let (stream, source, sink) = ends(&a, &b, qos, "c");
        goes_over(&stream, "host-1", "xdp");
        let reliable = qos.reliability() == Reliability::Reliable;
        let (sent, mut got) = numbers(&source, &sink, reliable, |seen| {
            flows(seen, &a);
            daemon.may_lock(0);
            cables.take_away("veth1");
            goes_over(&stream, "host-1", "udp");
            cables.make_again("veth1");
            let said = || status(&a)["network"]["datapaths"][1]["text"].as_str().unwrap_or_default().to_owned();
            assert!(eventually(|| said().contains("raise RLIMIT_MEMLOCK")), "{}", said());
            let doctor = a.report("doctor").unwrap();
            assert!(doctor.contains("absent") && doctor.contains("raise RLIMIT_MEMLOCK"), "{doctor}");
            flows(seen, &a);
            goes_over(&stream, "host-1", "udp");
            daemon.may_lock(LOCKED);
            goes_over(&stream, "host-1", "xdp");
            flows(seen, &a);
        });
        take_the_rest(&sink, &mut got, &a);
        are_whole(sent, &got, reliable, &a);
    }
}

/// What systemd has to say of the unit with the drop-in, and that the guide shows that.
#[test]
fn systemd_takes_the_unit_with_the_drop_in() {
    let _watchdog = Watchdog::start("units", TEST);
    let drop_in = read("packaging/systemd/datapaths.conf");
    let keys = drop_in.split_once("[Service]").expect("a section").1;
    let guide = read("docs/guide/datapaths.md");
    assert!(guide.contains(&format!("```ini\n[Service]{keys}```")), "the guide shows another drop-in");
    assert_eq!(granted("AmbientCapabilities"), granted("CapabilityBoundingSet"));
    let folder = tempfile::tempdir().expect("a folder");
    let unit = folder.path().join("insaned.service");
    // It looks whether there is such a program.
    std::fs::write(&unit, read("packaging/systemd/insaned.service").replace("/usr/bin/insaned", "/bin/true")).unwrap();
    let beside = folder.path().join("insaned.service.d");
    std::fs::create_dir(&beside).unwrap();
    std::fs::write(beside.join("datapaths.conf"), &drop_in).unwrap();
    let mut command = Command::new("systemd-analyze");
    if command.arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("SKIPPED: systemd-analyze is not there");
        return;
    }
    let verify = || run(Command::new("systemd-analyze").arg("verify").arg(&unit), LIMIT);
    let said = verify();
    assert!(said.code() == 0 && said.err.is_empty(), "{said:?}");
    // It does read the drop-in.
    std::fs::write(beside.join("datapaths.conf"), drop_in.replace("AmbientCapabilities", "AmbientCapability")).unwrap();
    assert!(verify().err.contains("AmbientCapability"), "{:?}", verify());
}

/// A card's group is a file below `/dev/vfio`, which the unit hides. Whoever has no card keeps it hidden.
#[test]
fn the_unit_hides_devices_and_says_what_a_card_takes() {
    assert!(read("packaging/systemd/insaned.service").lines().any(|line| line == "PrivateDevices=true"));
    let drop_in = read("packaging/systemd/datapaths.conf");
    let mut lines = drop_in.lines().filter(|line| line.contains("PrivateDevices"));
    assert!(lines.all(|line| line.starts_with("# A card by vfio-pci takes PrivateDevices=no")), "{drop_in}");
    for text in [&drop_in, &read("docs/guide/datapaths.md")] {
        assert!(text.contains("PrivateDevices=no"), "{text}");
    }
}
