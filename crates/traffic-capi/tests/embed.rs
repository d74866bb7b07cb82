//! The header, a C program that uses it, and the library that it promises.

use std::path::{Path, PathBuf};
use std::process::Command;

// Makes cargo build the library for this test; nothing of it is used from Rust.
use insane_tc as _;

/// Where cargo put the shared object: beside the folder of this test's program.
fn built() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(1).unwrap().to_owned()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

#[test]
fn a_c_program_moves_packets_through_a_pipeline() {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("SKIPPED: there is no C compiler");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let work = std::env::temp_dir().join(format!("insane-tc-{}", std::process::id()));
    std::fs::create_dir_all(&work).unwrap();
    // The program looks for the name inside the library, which cargo's file does not have.
    let library = built().join("libinsane_tc.so");
    for name in ["libinsane_tc.so", "libinsane_tc.so.0"] {
        std::fs::copy(&library, work.join(name)).unwrap();
    }
    let program = work.join("embed");
    run(Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root.join("include"))
        .arg(root.join("tests/embed.c"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&work)
        .arg("-linsane_tc"));
    let text = run(Command::new(&program).env("LD_LIBRARY_PATH", &work));
    std::fs::remove_dir_all(&work).unwrap();
    assert!(text.contains("all checks passed"), "{text}");
}

#[test]
fn the_header_promises_what_the_library_has() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(root.join("include/insane_tc.h")).unwrap();
    let source = std::fs::read_to_string(root.join("src/lib.rs")).unwrap();
    let calls = |text: &str, before: &str| {
        let mut found: Vec<String> = text
            .split("insane_tc_")
            .zip(text.split("insane_tc_").skip(1))
            .filter(|(left, _)| left.ends_with(before))
            .filter_map(|(_, right)| right.split_once('(').map(|(name, _)| name.to_owned()))
            .filter(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
            .collect();
        found.sort();
        found.dedup();
        found
    };
    let defined = calls(&source, "extern \"C\" fn ");
    assert_eq!(defined.len(), 11);
    for name in &defined {
        assert!(header.contains(&format!("insane_tc_{name}(")), "{name} is not in the header");
    }
    for (name, value) in [("INVALID", -1), ("NO_BEARER", -2), ("EXISTS", -3), ("REFUSED", -4), ("DROPPED", -5)] {
        assert!(header.contains(&format!("#define INSANE_TC_{name} ({value})")), "{name}");
    }
}
