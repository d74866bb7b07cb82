//! Every labelled step, at every party that executes it: the party is held there under load, and each party is killed in
//! turn, and two at once at random. `INSANE_REPEAT=n` runs the whole n times.

use insane_shm::steps::Step;
use insane_tests_killmatrix::cell::{World, build, root, run};
use insane_tests_killmatrix::rounds::{Named, Rounds, baseline, is_asked, leave, repeat, watch};
use insane_tests_killmatrix::table::{Party, RELIABLE_TABLE, Row, TABLE};
use serde_json::{Value, json};
use std::time::Duration;

/// Double kills of one round.
const DOUBLES: usize = 12;

/// A small generator, seeded and printed, for the double kills.
fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 33) as usize
}

/// A row, whether its streams are reliable, and who is killed.
type Cell = (Row, bool, Vec<Party>);

fn cells(seed: u64, reliable: bool) -> Vec<Cell> {
    let rows: Vec<Row> = TABLE.iter().chain(if reliable { RELIABLE_TABLE } else { &[] }).copied().collect();
    let singles = rows.iter().flat_map(|row| Party::ALL.into_iter().map(move |victim| (*row, reliable, vec![victim])));
    let mut cells: Vec<_> = singles.collect();
    let mut state = seed | 1;
    for _ in 0..DOUBLES {
        let row = rows[random(&mut state) % rows.len()];
        let spared = random(&mut state) % 3;
        let victims = Party::ALL.into_iter().enumerate().filter(|(i, _)| *i != spared).map(|(_, p)| p).collect();
        cells.push((row, reliable, victims));
    }
    cells
}

fn named((row, reliable, victims): &Cell) -> Named {
    let victims = victims.iter().map(|v| v.name()).collect();
    Named { step: row.0, holder: row.1.name(), victims, reliable: *reliable }
}

#[test]
fn the_table_names_every_step() {
    for step in of_one_host() {
        assert!(TABLE.iter().any(|(label, ..)| *label == step.label()), "{} has no row", step.label());
    }
    for (label, ..) in TABLE {
        assert!(of_one_host().any(|s| s.label() == *label), "{label} is no step");
    }
}

/// The steps of one host; those between two are another test's.
fn of_one_host() -> impl Iterator<Item = &'static Step> {
    Step::ALL.iter().filter(|s| !Step::NETWORK.contains(s))
}

#[test]
fn whoever_dies_takes_nothing_with_it() {
    all(repeat(1));
}

#[test]
#[ignore = "the whole matrix ten times takes some six minutes"]
fn soak_whoever_dies_takes_nothing_with_it() {
    leave(&all(repeat(10)));
}

/// Runs every cell `repeat` times. Returns the sums.
fn all(repeat: u32) -> Value {
    let seed = std::env::var("INSANE_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 | 12_345);
    println!("INSANE_SEED={seed}");
    let programs = build();
    let _watch = watch(Duration::from_secs(400) * repeat);
    let baselines = [false, true].map(|reliable| {
        baseline(|known| {
            let mut world = World::start(&programs, reliable, None).expect("a world");
            world.settle(known).expect("a world without kills holds, and is the same twice")
        })
    });
    let mut rounds = Rounds::default();
    for i in 0..repeat {
        let seed = seed.wrapping_add(u64::from(i) * 7919);
        let mut cells: Vec<Cell> = [false, true].into_iter().flat_map(|reliable| cells(seed, reliable)).collect();
        cells.retain(|(row, ..)| is_asked(row.0));
        rounds.run(cells, named, |(row, reliable, victims), slots| {
            run(&programs, row, *reliable, victims, &baselines[usize::from(*reliable)], slots)
        });
    }
    let (kills, failed, slots) = (rounds.kills(), rounds.failed(), rounds.slots);
    let report = json!({
        "steps": of_one_host().count(), "parties": Party::ALL.len(), "kills": kills, "slots_lost": slots.lost,
        "slots_doubly_owned": slots.doubly, "seed": seed, "repeat": repeat, "cells": rounds.cells,
    });
    std::fs::create_dir_all(root().join("out")).expect("out/");
    std::fs::write(root().join("out/kill-matrix.json"), format!("{report:#}\n")).expect("out/kill-matrix.json");
    println!("{} cells, {kills} kills, {failed} failed", rounds.cells.len());
    rounds.hold();
    json!({
        "cells": rounds.cells.len(), "kills": kills, "failed": failed, "slots_lost": slots.lost,
        "slots_doubly_owned": slots.doubly, "seed": seed,
    })
}
