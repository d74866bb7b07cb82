//! What must not be loaded is refused with a reason, and nothing changes.

mod common;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use common::{example, folder, no_compiler, object, registry};
use insane_traffic_plugin::{LoadError, Registry};

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn bad_objects_are_refused_with_the_reason() {
    if no_compiler() {
        return;
    }
    let folder = folder();
    let registry = registry(&folder);
    for (bad, reason) in [
        ("NO_SYMBOL", "it does not define insane_traffic_stage: it is no object with stages"),
        ("VERSION", "it was built for version 7 of insane_traffic_stage.h; this release takes version 1"),
        ("SIZE", "the table has 56 bytes instead of 64: it was built with another insane_traffic_stage.h"),
        ("CALLS_SIZE", "the calls of policer `fine` has 24 bytes instead of 8: it was built with another"),
        ("KIND", "a stage is of kind 9; there are 1 (classifier) to 6 (pacer)"),
        ("NULL_CALL", "policer `fine` has NULL for `police`"),
        ("NULL_CREATE", "policer `fine` has NULL for `create`"),
        ("NULL_CALLS", "policer `fine` has NULL for `calls`"),
        ("NAME", "a stage's name must be 1 to 64 of"),
        ("NO_NAME", "a stage's name must be 1 to 64 of"),
        ("LONG_NAME", "a stage's name must be 1 to 64 of"),
        ("NO_STAGES", "it offers no stage: insane_traffic_stage(0) is NULL"),
        ("ENDLESS", "it offers policer `fine` twice; insane_traffic_stage(n) is NULL after the last"),
        ("UNRESOLVED", "bad.so: undefined symbol: no_such_function_anywhere"),
    ] {
        object("tests/objects/bad.c", &folder.path().join("bad.so"), &[&format!("-DBAD={bad}")]);
        let error = registry.load("bad.so").expect_err(bad).to_string();
        assert!(error.contains(reason), "{bad}: {error}");
        assert_eq!(registry.list(), [], "{bad}");
    }
    // The same file without a fault is fine, so each refusal was for what it says.
    object("tests/objects/bad.c", &folder.path().join("bad.so"), &["-DBAD=0"]);
    registry.load("bad.so").unwrap();
}

#[test]
fn what_is_no_whole_object_is_refused() {
    let folder = folder();
    let registry = registry(&folder);
    let whole = std::fs::read(example("red_line", &folder)).unwrap();
    let place = folder.path().join("cut.so");
    let mut refused = 0;
    for part in 0..100 {
        let length = if part < 60 { part * 4 } else { whole.len() * (part - 60) / 40 };
        std::fs::write(&place, &whole[..length]).unwrap();
        // The section table at the end of a file is for debuggers alone; a file without it is whole.
        match registry.load("cut.so") {
            Ok(_) => registry.unload("cut.so").unwrap(),
            Err(error) => {
                assert!(matches!(error, LoadError::Format(_)), "{length}: {error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 60, "{refused}");
    for (text, reason) in [(&b"#!/bin/sh\n"[..], "no shared object"), (&b"\x7fELF\x01\x01\x01"[..], "cut short")] {
        std::fs::write(&place, text).unwrap();
        let error = registry.load("cut.so").unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("cut.so"), "{error}");
    }
}

#[test]
fn only_files_that_nobody_else_could_have_written_are_loaded() {
    let folder = folder();
    let file = example("red_line", &folder);
    let registry = registry(&folder);
    let refused = |asked: &Path, reason: &str| {
        let error = registry.load(asked).unwrap_err();
        assert!(matches!(error, LoadError::Distrust(_)), "{error}");
        assert!(error.to_string().contains(reason), "{reason}: {error}");
    };
    for bad in [0o775, 0o757, 0o777] {
        mode(&file, bad);
        refused(&file, "red_line.so may be written by others");
        mode(&file, 0o755);
        mode(folder.path(), bad);
        refused(&file, "may be written by others");
        mode(folder.path(), 0o700);
    }
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&file, Some(65_534), None).unwrap();
        refused(&file, "belongs to user 65534; it must be root's or this process's user's (0)");
        std::os::unix::fs::chown(&file, Some(0), None).unwrap();
        std::os::unix::fs::chown(folder.path(), Some(65_534), None).unwrap();
        refused(&file, "belongs to user 65534");
        std::os::unix::fs::chown(folder.path(), Some(0), None).unwrap();
    }
    refused(Path::new("other.so"), "there is no such file in any plug-in directory");
    refused(Path::new("/no/such/file.so"), "No such file");
    refused(Path::new("../red_line.so"), "may only lead down");
    refused(Path::new("./red_line.so"), "may only lead down");
    refused(folder.path(), "it is no regular file");
    // A link is followed, and what counts is where it leads.
    let outside = common::folder();
    let other = outside.path().join("red_line.so");
    std::fs::copy(&file, &other).unwrap();
    refused(&other, "it lies outside of the plug-in directories");
    symlink(&other, folder.path().join("link.so")).unwrap();
    refused(Path::new("link.so"), "it lies outside of the plug-in directories");
    rustix::fs::mkfifoat(rustix::fs::CWD, folder.path().join("pipe.so"), rustix::fs::Mode::from(0o600)).unwrap();
    refused(Path::new("pipe.so"), "it is no regular file");
    let large = std::fs::File::create(folder.path().join("large.so")).unwrap();
    large.set_len(1 << 30).unwrap();
    refused(Path::new("large.so"), "at most 67108864 are loaded");
    assert!(Registry::new(Vec::new()).load(&file).unwrap_err().to_string().contains("directories (none)"));
    // And one that is as it should be is loaded, by its path and by its name.
    let loaded = registry.load(&file).unwrap();
    assert_eq!(loaded.path, std::fs::canonicalize(&file).unwrap());
    registry.unload("red_line.so").unwrap();
    symlink(&file, folder.path().join("inside.so")).unwrap();
    registry.load("inside.so").unwrap();
}
