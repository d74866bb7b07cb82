//! The header and its translation say the same.

mod common;

use std::mem::offset_of;
use std::process::Command;

use insane_traffic_plugin::{Kind, abi};

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
        "packet" Packet {
            bytes, flow, length, size, traffic_class, qfi, src_port, dst_port, src, dst, ip_version, protocol, dscp, ecn,
            has_flow, has_ports, reserved
        }
        "item" Item { arrived, queued_bytes, queued_packets, size, ecn, reserved }
        "rlc" Rlc { bytes, packets, desired_bytes, desired_rate }
        "view" View { context, packets, bytes, head_time }
        "classifier" ClassifierCalls { classify, queue_added, queue_removed }
        "policer" PolicerCalls { police }
        "queue" QueueCalls { arrives, departs, left }
        "scheduler" SchedulerCalls { add, remove, activate, deactivate, next, offer, sent }
        "shaper" ShaperCalls { ready, sent }
        "pacer" PacerCalls { admit, sent, report }
        "stage_table" Table { abi, size, kind, calls_size, name, create, modify, destroy, stats, calls }
    }
    text += &format!("ABI {}\nPASS {}\nDROP {}\n", abi::ABI, abi::PASS, abi::DROP);
    text += &format!("KEEP {}\nDISCARD {}\n", abi::KEEP, abi::DISCARD);
    text += &format!("MARK {}\nMARK_OR_DISCARD {}\n", abi::MARK, abi::MARK_OR_DISCARD);
    text += &format!("SENT {}\nDISCARDED {}\nREMOVED {}\n", abi::SENT, abi::DISCARDED, abi::REMOVED);
    text += &format!("EMPTY {}\nHELD_BACK {}\nkinds", abi::EMPTY, abi::HELD_BACK);
    Kind::ALL.iter().for_each(|kind| text += &format!(" {}", *kind as u32));
    text + "\n"
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
    let include = common::source("include/insane_traffic_stage.h");
    let line = ["-x", "c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"];
    assert!(Command::new("c++").args(line).arg(include).status().unwrap().success());
}
