//! The workspace as it is, held against the rules of this crate.
#![forbid(unsafe_code)]

use std::path::Path;

use insane_tests_arrows::{SANS_IO, crates, faults};

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_dependency_points_up() {
    let found = crates(here()).expect("cargo describes the workspace");
    // A test over nothing would pass: this crate at least is there, and so is the one above all others.
    assert!(found.iter().any(|one| one.folder == "tests/arrows"), "{found:?}");
    assert!(found.iter().any(|one| one.folder == "crates/shm"), "{found:?}");
    let faults = faults(&found);
    assert!(faults.is_empty(), "forbidden dependencies:\n{}", faults.join("\n"));
}

#[test]
fn sans_io_crates_forbid_unsafe_code() {
    let root = here().parent().and_then(Path::parent).expect("the repository's root");
    let present: Vec<_> = SANS_IO.iter().filter(|folder| root.join(folder).exists()).collect();
    assert!(!present.is_empty());
    for folder in present {
        let path = root.join(folder).join("src/lib.rs");
        let text = std::fs::read_to_string(&path).expect("a readable lib.rs");
        assert!(text.contains("#![forbid(unsafe_code)]"), "{} allows unsafe code", path.display());
    }
}
