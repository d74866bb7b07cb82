//! Objects for tests, built when they are needed.
#![allow(dead_code, reason = "every test has a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use insane_traffic_plugin::Registry;
use tempfile::TempDir;

/// Whether objects in C cannot be built; says so.
pub(crate) fn no_compiler() -> bool {
    let missing = Command::new("cc").arg("--version").output().is_err();
    if missing {
        println!("SKIPPED: there is no C compiler");
    }
    missing
}

/// A file of this crate.
pub(crate) fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A folder for objects that nobody else may write to.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Objects of one folder.
pub(crate) fn registry(folder: &TempDir) -> Arc<Registry> {
    Arc::new(Registry::new(vec![folder.path().to_owned()]))
}

/// Builds a C file.
pub(crate) fn cc(source: &Path, target: &Path, flags: &[&str]) {
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(self::source("include"))
        .args(flags)
        .arg(source)
        .arg("-o")
        .arg(target)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Builds an object.
pub(crate) fn object(source: &str, target: &Path, flags: &[&str]) {
    let flags: Vec<&str> = ["-shared", "-fPIC"].into_iter().chain(flags.iter().copied()).collect();
    cc(&self::source(source), target, &flags);
}

/// Puts an example in Rust into a folder.
pub(crate) fn example(name: &str, folder: &TempDir) -> PathBuf {
    // This program is in PROFILE/deps, and examples are in PROFILE/examples. `cargo test` builds them, but not if it is
    // asked for this test alone.
    let program = std::env::current_exe().unwrap();
    let profile = program.ancestors().nth(2).unwrap();
    let built = profile.join("examples").join(format!("lib{name}.so"));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--offline", "--package", "insane-traffic-plugin", "--example", name]);
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).arg("--target-dir").arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let output = cargo.output().unwrap();
    assert!(output.status.success() || built.exists(), "{}", String::from_utf8_lossy(&output.stderr));
    let target = folder.path().join(format!("{name}.so"));
    std::fs::copy(built, &target).unwrap();
    target
}

/// An IPv4 packet of UDP.
pub(crate) fn packet(dscp: u8, ecn: u8, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size.max(28)];
    let length = (bytes.len() as u16).to_be_bytes();
    bytes[..2].copy_from_slice(&[0x45, dscp << 2 | ecn]);
    bytes[2..4].copy_from_slice(&length);
    bytes[8..10].copy_from_slice(&[64, 17]);
    bytes[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[20..24].copy_from_slice(&[0x14, 0x51, 0x14, 0x51]);
    bytes
}
