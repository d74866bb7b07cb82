//! The header and its translation say the same.

mod common;

use std::mem::offset_of;
use std::process::Command;

use insane_datapath_plugin::abi;

/// What `tests/objects/layout.c` prints, from the Rust side.
fn expected() -> String {
    let mut text = String::new();
    macro_rules! layout {
        ($($name:literal $type:ident { $($field:ident),+ })+) => {$(
            text += &format!("{} {}\n", $name, size_of::<abi::$type>());
            $(text += &format!("{}.{} {}\n", $name, stringify!($field), offset_of!(abi::$type, $field));)+
        )+};
    }
    layout! {
        "option" Choice { key, value }
        "info" Info { size, flags, max_frame, burst, gather_from, wake_fd, address, reserved, lend_fd, lend_stride, lend_slots,
            lend_most, lend_memory }
        "stats" Stats { size, reserved, overruns, dropped, calls }
        "buffer" Buffer { handle, data, capacity, reserved }
        "outgoing" Outgoing { handle, length, payload_length, payload }
        "incoming" Incoming { handle, data, length, reserved }
        "table" Table {
            abi, size, name, create, destroy, open, close, reserve, send, receive, release, arm, limit, stats, describe
        }
    }
    text += &format!("ABI {}\nBURST {}\n", abi::ABI, abi::BURST);
    text += &format!("DOWN {}\nFAILED {}\nSLEEP {}\nREADY {}\n", abi::DOWN, abi::FAILED, abi::SLEEP, abi::READY);
    text + &format!("POLL {}\nGATHERS {}\nLENDS {}\nFINAL {}\n", abi::POLL, abi::GATHERS, abi::LENDS, abi::FINAL)
}

#[test]
fn the_header_and_its_translation_put_everything_in_the_same_places() {
    if common::no_compiler() {
        return;
    }
    let folder = common::folder();
    let program = folder.path().join("layout");
    common::cc(&common::source("tests/objects/layout.c"), &program, &[]);
    let output = Command::new(&program).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected());
}

#[test]
fn the_header_is_cxx_too() {
    if common::no_compiler() || Command::new("c++").arg("--version").output().is_err() {
        println!("SKIPPED: there is no C++ compiler");
        return;
    }
    let include = common::source("include/insane_datapath.h");
    let line = ["-x", "c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"];
    assert!(Command::new("c++").args(line).arg(include).status().unwrap().success());
}
