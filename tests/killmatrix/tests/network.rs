//! Every labelled step of the network thread, on either of two hosts: its runtime is held there under load, and that runtime is
//! killed, or another party, or both runtimes. `INSANE_REPEAT=n` runs the whole n times, `INSANE_STEP` one step alone.

use insane_shm::steps::Step;
use insane_tests_killmatrix::cell::{build, root};
use insane_tests_killmatrix::hosts::{Hosts, Part, Row, TABLE, run};
use insane_tests_killmatrix::rounds::{Named, Rounds, baseline, is_asked, leave, repeat, watch};
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;

/// A row, the host whose runtime is held, whether the streams are reliable, and who is killed.
type Cell = (Row, usize, bool, Vec<Part>);

/// Each row, host and kind with the held runtime killed, and with another party, or both runtimes: which, goes round.
fn cells(round: usize) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (number, row) in TABLE.iter().enumerate() {
        for (at, reliable) in [(0, false), (0, true), (1, false), (1, true)] {
            let others = [vec![Part::Source], vec![Part::Sink], vec![Part::ALL[1 - at]], vec![Part::Near, Part::Far]];
            let other = others[(round + number + at + 2 * usize::from(reliable)) % others.len()].clone();
            cells.extend([vec![Part::ALL[at]], other].map(|victims| (*row, at, reliable, victims)));
        }
    }
    cells
}

fn named((row, at, reliable, victims): &Cell) -> Named {
    let victims = victims.iter().map(|v| v.name()).collect();
    Named { step: row.0, holder: Part::ALL[*at].name(), victims, reliable: *reliable }
}

#[test]
fn the_table_names_every_step_of_the_network() {
    let labels: Vec<&str> = TABLE.iter().map(|(label, ..)| *label).collect();
    assert_eq!(labels, Step::NETWORK.iter().map(|s| s.label()).collect::<Vec<_>>());
}

#[test]
fn whoever_dies_between_two_hosts_takes_nothing_with_it() {
    all(repeat(1));
}

#[test]
#[ignore = "the whole matrix ten times takes some ten minutes"]
fn soak_whoever_dies_between_two_hosts_takes_nothing_with_it() {
    leave(&all(repeat(10)));
}

/// Runs every cell `repeat` times. Returns the sums.
fn all(repeat: u32) -> Value {
    let programs = build();
    let _watch = watch(Duration::from_secs(400) * repeat);
    let baselines = [false, true].map(|reliable| {
        baseline(|known| {
            let mut hosts = Hosts::start(&programs, reliable, None).expect("two hosts");
            hosts.settle(known).expect("hosts without kills hold, and are the same twice")
        })
    });
    let mut rounds = Rounds::default();
    for number in 0..repeat {
        let mut cells = cells(number as usize);
        cells.retain(|(row, ..)| is_asked(row.0));
        rounds.run(cells, named, |(row, at, reliable, victims), slots| {
            run(&programs, row, *at, *reliable, victims, &baselines[usize::from(*reliable)], slots)
        });
        let (count, failed) = (rounds.cells.len(), rounds.failed());
        let _ =
            writeln!(std::io::stderr(), "progress: round {} of {repeat}, {count} cells, {failed} failed", number + 1);
    }
    let sums = json!({
        "steps": Step::NETWORK.len(), "parties": Part::ALL.len(), "cells": rounds.cells.len(), "kills": rounds.kills(),
        "failed": rounds.failed(), "slots_lost": rounds.slots.lost, "slots_doubly_owned": rounds.slots.doubly,
        "repeat": repeat,
    });
    write(&sums, &rounds.cells);
    println!("{sums}");
    rounds.hold();
    sums
}

/// Puts the report beside that of one host, which the other test has written before.
fn write(sums: &Value, cells: &[Value]) {
    let path = root().join("out/kill-matrix.json");
    let mut whole: Value = std::fs::read_to_string(&path)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_else(|| json!({}));
    whole["network"] = sums.clone();
    whole["network"]["cells"] = cells.into();
    std::fs::create_dir_all(root().join("out")).expect("out/");
    std::fs::write(path, format!("{whole:#}\n")).expect("out/kill-matrix.json");
}
