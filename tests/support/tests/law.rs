//! Every system test that moves messages reconciles what was emitted, counted and seen.

use std::path::Path;

/// The functions of a source file that are tests: name and text.
fn tests(text: &str) -> Vec<(String, String)> {
    let parts = text.split("\n#[test]\n").skip(1);
    let ends = |part: &str| part.find("\n}\n").map_or(part.len(), |at| at + 2);
    let named = parts.map(|part| (part.split("fn ").nth(1), &part[..ends(part)]));
    named.map(|(n, t)| (n.and_then(|n| n.split('(').next()).unwrap_or_default().to_owned(), t.to_owned())).collect()
}

#[test]
fn every_system_test_that_moves_messages_reconciles_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // Between hosts the runtimes' counts are a part of it: insane_tests_network::law_holds, where a test's flows allow it.
    let folders = std::fs::read_dir(&root).expect("tests/").flatten().filter(|f| f.file_name() != "network");
    let sources = folders.filter_map(|f| std::fs::read_dir(f.path().join("tests")).ok()).flatten().flatten();
    let (mut moving, mut without) = (0, Vec::new());
    for source in sources.map(|s| s.path()).filter(|p| p.extension().is_some_and(|e| e == "rs")) {
        for (name, text) in tests(&std::fs::read_to_string(&source).expect("a source file")) {
            let consumes = [".consume", ".try_consume", ".receive()", ".on_message("].iter().any(|c| text.contains(c));
            let moves = consumes && [".send(", ".emit"].iter().any(|c| text.contains(c));
            moving += u32::from(moves);
            if moves && !text.contains("reconcile") {
                without.push(format!("{}: {name}", source.display()));
            }
        }
    }
    assert!(moving >= 10, "{moving} tests were found");
    assert!(without.is_empty(), "without insane_tests_host::reconcile:\n{}", without.join("\n"));
}
