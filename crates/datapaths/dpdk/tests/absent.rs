//! Without the object, or without DPDK, there is no datapath and a reason, and nothing else happens.

use std::path::Path;
use std::process::Command;

use insane_datapath::DatapathError;
use insane_datapath_dpdk::Dpdk;

fn refused(path: &Path, reason: &str) {
    let error = Dpdk::load(path).unwrap_err();
    assert!(matches!(&error, DatapathError::Unavailable { technology: "dpdk", .. }), "{error}");
    assert!(error.to_string().contains(reason), "{error}");
}

#[test]
fn without_the_object_the_reason_is_said() {
    refused(
        Path::new("/no/such/folder/libinsane_dpdk.so"),
        "/no/such/folder/libinsane_dpdk.so: No such file or directory",
    );
    refused(Path::new("libinsane_dpdk.so"), "is not an absolute path");
}

/// As on a machine on which DPDK was removed: the object is there, a library that it needs is not.
#[test]
fn without_dpdks_libraries_the_reason_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let cc = |arguments: &[&str]| {
        let done = Command::new("cc").current_dir(folder.path()).args(["-shared", "-fPIC"]).args(arguments).status();
        done.is_ok_and(|status| status.success())
    };
    std::fs::write(folder.path().join("eal.c"), "int rte_eal_init(void) { return 0; }\n").expect("a file");
    std::fs::write(
        folder.path().join("object.c"),
        "int rte_eal_init(void);\nint go(void) { return rte_eal_init(); }\n",
    )
    .expect("a file");
    if !cc(&["-Wl,-soname,librte_eal_gone.so.23", "-o", "libeal.so", "eal.c"]) {
        println!("SKIPPED: there is no C compiler");
        return;
    }
    assert!(cc(&["-o", "object.so", "object.c", "-L.", "-leal"]));
    refused(&folder.path().join("object.so"), "librte_eal_gone.so.23: cannot open shared object file");
}

/// Nothing but the object is linked to DPDK: what a program is linked to is mapped when it starts.
#[test]
fn this_program_has_no_part_of_dpdk() {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("it can be read");
    assert!(maps.contains("libc.so") && !maps.contains("librte_"), "{maps}");
}
