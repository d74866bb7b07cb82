//! Objects for tests, built when they are needed.
#![allow(dead_code, reason = "every test has a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

use insane_datapath_plugin::{LoadError, Plugin, PluginDatapath};
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

/// An object made from `tests/objects/bad.c`, with the fault of this name.
pub(crate) fn bad(folder: &TempDir, fault: &str) -> Result<Plugin, LoadError> {
    let path = folder.path().join(format!("{fault}.so"));
    cc(&source("tests/objects/bad.c"), &path, &["-shared", "-fPIC", &format!("-DBAD={fault}")]);
    Plugin::load(path)
}

/// The template, built as its maker would: a copy of its folder and the header, and its own Makefile.
pub(crate) fn template(folder: &TempDir) -> Plugin {
    let path = folder.path();
    for file in ["examples/unix_frames/Makefile", "examples/unix_frames/unix_frames.c", "include/insane_datapath.h"] {
        let name = Path::new(file).file_name().unwrap();
        std::fs::copy(source(file), path.join(name)).unwrap();
    }
    let output = Command::new("make").arg("INCLUDE=.").current_dir(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Plugin::load(path.join("unix_frames.so")).unwrap()
}

/// A port of the template's, closed: `end` is 0 or 1, and the other end is its peer.
pub(crate) fn port(plugin: Plugin, folder: &TempDir, end: usize, mtu: &str) -> PluginDatapath {
    let place = |end: usize| folder.path().join(format!("end{end}")).to_string_lossy().into_owned();
    let address = format!("02:99:00:00:00:0{}", end + 1);
    plugin.port(&[("path", &place(end)), ("peer", &place(1 - end)), ("address", &address), ("mtu", mtu)]).unwrap()
}
