//! Takes the Rust of the front door out of it, so that a test runs it as it stands there.

fn main() {
    let readme = "../../README.md";
    println!("cargo::rerun-if-changed={readme}");
    let text = std::fs::read_to_string(readme).expect("README.md");
    let block = text.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block of Rust");
    let out = std::env::var_os("OUT_DIR").expect("a folder");
    std::fs::write(std::path::Path::new(&out).join("readme.rs"), format!("{{\n{block}}}\n")).expect("readme.rs");
}
