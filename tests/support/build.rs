//! Takes the Rust of the front door and of the guide out of them, so that tests run it as it stands there.

/// The first block of Rust after a mark becomes the file `name`.
fn take(document: &str, mark: &str, name: &str) {
    println!("cargo::rerun-if-changed={document}");
    let text = std::fs::read_to_string(document).expect(document);
    let rest = text.split(mark).nth(1).expect(mark);
    let block = rest.split("```").next().expect("its end");
    let out = std::env::var_os("OUT_DIR").expect("a folder");
    std::fs::write(std::path::Path::new(&out).join(name), format!("{{\n{block}}}\n")).expect(name);
}

fn main() {
    take("../../README.md", "```rust\n", "readme.rs");
    take("../../docs/guide/README.md", "<!-- test: the_guide_loses_what_it_says -->\n```rust\n", "faults.rs");
}
