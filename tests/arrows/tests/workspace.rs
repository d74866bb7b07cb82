//! The workspace as it is, held against the rules of this crate.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::Path;

use cargo_metadata::{MetadataCommand, Package};
use insane_tests_arrows::{SANS_IO, crates, faults};

/// Features that a test asks for by name, and nothing that is installed has.
const FOR_TESTS: [&str; 5] = ["faults", "hooks", "mutate", "steps", "test-hooks"];

/// The features that a package has when nobody asks for any.
fn by_default(package: &Package) -> BTreeSet<String> {
    let (mut found, mut open) = (BTreeSet::new(), vec!["default".to_owned()]);
    while let Some(one) = open.pop() {
        open.extend(package.features.get(&one).into_iter().flatten().filter(|f| !found.contains(*f)).cloned());
        found.insert(one);
    }
    found
}

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

#[test]
fn what_is_for_tests_is_never_built_unasked() {
    let metadata = MetadataCommand::new().current_dir(here()).no_deps().exec().expect("cargo describes the workspace");
    let mut known = BTreeSet::new();
    for package in &metadata.packages {
        let asked = package.dependencies.iter().filter(|d| d.path.is_some()).flat_map(|d| d.features.iter().cloned());
        for feature in asked.chain(by_default(package)) {
            let last = feature.rsplit('/').next().unwrap_or_default();
            assert!(!FOR_TESTS.contains(&last), "{} has {feature} unasked", package.name);
        }
        known.extend(package.features.keys().filter(|f| FOR_TESTS.contains(&f.as_str())).cloned());
    }
    assert_eq!(known.len(), FOR_TESTS.len(), "of {FOR_TESTS:?} there are {known:?}");
}
