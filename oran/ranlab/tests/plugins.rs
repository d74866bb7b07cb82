//! The lab with stages from shared objects that its configuration names.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use insane_ranlab::config::Config;
use insane_ranlab::core::cell::{Cell, Side};
use insane_ranlab::host::lab::Lab;
use insane_ranlab::host::{impossible, plugins};
use insane_traffic::spec::{FilterSpec, MatchSpec, TargetSpec};
use insane_traffic::{Change, Time};
use tempfile::TempDir;

/// Builds the example of a classifier in C; `None` without a compiler, which is said.
fn by_dscp() -> Option<TempDir> {
    let crate_ = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/traffic-plugin");
    let folder = tempfile::tempdir().unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-I"])
        .args([crate_.join("include"), crate_.join("examples/by_dscp.c")])
        .arg("-o")
        .arg(folder.path().join("by_dscp.so"))
        .status();
    let Ok(status) = built else {
        println!("SKIPPED: there is no C compiler");
        return None;
    };
    assert!(status.success());
    Some(folder)
}

fn file(folder: &TempDir, options: &str) -> String {
    let folder = folder.path().display();
    format!(
        r#"
        version = 1
        [plugins]
        directories = ["{folder}"]
        objects = ["by_dscp.so"]
        [[ue]]
        [[ue.bearer]]
        id = 1
        [ue.bearer.pipeline]
        version = 1
        filter = [{{ id = 1, to = {{ type = "plugin", name = "by-dscp", options = "{options}" }} }}]
        queue = [{{ id = 0 }}, {{ id = 1 }}]
        scheduler = {{ type = "strict", order = [[1]] }}
        pacer = {{ type = "5g-bdp" }}
        "#
    )
}

fn packet(dscp: u8) -> [u8; 1_000] {
    let mut bytes = [0; 1_000];
    bytes[..4].copy_from_slice(&[0x45, dscp << 2, 0x03, 0xe8]);
    bytes[8..10].copy_from_slice(&[64, 17]);
    bytes
}

#[test]
fn a_bearers_classifier_comes_from_an_object_that_the_file_names() {
    let Some(folder) = by_dscp() else { return };
    let config = Config::parse(&file(&folder, "46=1")).unwrap();
    assert!(
        Cell::new(&config).unwrap_err().to_string().contains("by-dscp"),
        "nothing is loaded without being asked for"
    );
    let registry = plugins::load(&config).unwrap();
    let mut cell = Cell::with_plugins(&config, Some(registry.clone())).unwrap();
    for n in 0..500 {
        cell.downlink(Time::ZERO, 0, &packet(if n < 400 { 0 } else { 46 }));
    }
    cell.advance(Time::from_millis(10));
    let unload = || registry.unload("by_dscp.so");
    assert!(unload().unwrap_err().to_string().contains("in use"));
    // The classifier goes while packets are queued behind its decisions.
    cell.change(0x4601, 1, &[Change::DeleteFilter { id: 1 }]).unwrap();
    unload().unwrap();
    cell.advance(Time::from_millis(500));
    cell.audit().unwrap();
    let arrived = std::iter::from_fn(|| cell.pop()).map(|d| {
        assert_eq!(d.to, Side::Ue(0));
        d.pdu.bytes[1] >> 2
    });
    let order: Vec<u8> = arrived.collect();
    assert_eq!(order.len(), 500, "no packet is lost");
    // The pacer lets a few go before the first of the others comes; after those the marked ones go first.
    let last_marked = order.iter().rposition(|dscp| *dscp == 46).unwrap();
    assert!(last_marked < 200, "{last_marked}");
}

#[test]
fn the_program_says_what_is_wrong_with_an_object_or_its_options() {
    let Some(folder) = by_dscp() else { return };
    let place = folder.path().join("lab.toml");
    let check = |text: &str| {
        std::fs::write(&place, text).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_ranlab")).arg("check").arg(&place).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), error.is_empty(), "{error}");
        error
    };
    assert_eq!(check(&file(&folder, "46=1")), "");
    let error = check(&file(&folder, "dscp"));
    assert!(error.contains("plug-in `by-dscp`: `dscp` is no DSCP=QUEUE"), "{error}");
    let error = check(&file(&folder, "46=1").replace("objects = [\"by_dscp.so\"]", ""));
    assert!(error.contains("no classifier of this name is loaded"), "{error}");
    let error = check(&file(&folder, "46=1").replace("\"by_dscp.so\"", "\"/bin/sh\""));
    assert!(error.contains("it lies outside of the plug-in directories"), "{error}");
    std::fs::set_permissions(folder.path().join("by_dscp.so"), std::fs::Permissions::from_mode(0o666)).unwrap();
    let error = check(&file(&folder, "46=1"));
    assert!(error.contains("by_dscp.so") && error.contains("chmod go-w"), "{error}");
}

#[test]
fn a_lab_that_runs_loads_uses_and_unloads_an_object() {
    let Some(folder) = by_dscp() else { return };
    if let Some(why) = impossible() {
        println!("SKIPPED: {why}");
        return;
    }
    let text = format!("version = 1\n[plugins]\ndirectories = [\"{}\"]", folder.path().display());
    let lab = Lab::start(&Config::parse(&text).unwrap(), None).unwrap();
    let to = TargetSpec::Plugin { name: "by-dscp".into(), options: "46=0".into() };
    let filter = FilterSpec { id: 1, priority: 1, matches: MatchSpec::default(), to };
    let add = [Change::AddFilter { filter }];
    let error = lab.change(0x4601, 1, &add).unwrap_err().to_string();
    assert!(error.contains("no classifier of this name is loaded"), "{error}");
    lab.plugins.load("by_dscp.so").unwrap();
    lab.change(0x4601, 1, &add).unwrap();
    assert!(lab.plugins.unload("by_dscp.so").unwrap_err().to_string().contains("in use"));
    lab.change(0x4601, 1, &[Change::DeleteFilter { id: 1 }]).unwrap();
    lab.plugins.unload("by_dscp.so").unwrap();
}
