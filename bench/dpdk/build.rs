//! Builds the calls into DPDK, most of which are inline functions in C, and links with it. Where there is no DPDK 22.11 with its
//! headers this program is absent from the comparison, and nothing else.

use std::process::Command;

/// What pkg-config says of DPDK.
fn flags(what: &str) -> Vec<String> {
    let said = Command::new("pkg-config").args([what, "libdpdk"]).output();
    let said = said.ok().filter(|output| output.status.success());
    let said = said.unwrap_or_else(|| panic!("there is no DPDK 22.11 to build with: scripts/setup dpdk"));
    String::from_utf8_lossy(&said.stdout).split_whitespace().map(str::to_owned).collect()
}

fn main() {
    println!("cargo::rerun-if-changed=src/port.c");
    let mut build = cc::Build::new();
    build.file("src/port.c").opt_level(2).std("gnu11").warnings(true);
    for flag in flags("--cflags") {
        // Its headers are not ours to be warned of.
        match flag.strip_prefix("-I") {
            Some(folder) => build.flag("-isystem").flag(folder),
            None => build.flag(&flag),
        };
    }
    build.compile("bench_dpdk_port");
    for flag in flags("--libs") {
        if let Some(library) = flag.strip_prefix("-l") {
            println!("cargo::rustc-link-lib=dylib={}", library.trim_start_matches(':'));
        } else {
            println!("cargo::rustc-link-arg={flag}");
        }
    }
}
