//! Every labelled step, at every party that executes it: the party is held there under load, and each party is killed in
//! turn, and two at once at random. `INSANE_REPEAT=n` runs the whole n times.

use insane_shm::steps::Step;
use insane_tests_killmatrix::cell::{Footprint, Programs, Slots, World, build, root, run};
use insane_tests_killmatrix::process::abort;
use insane_tests_killmatrix::table::{Party, RELIABLE_TABLE, Row, TABLE};
use serde_json::{Value, json};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Cells that run at once: they mostly sleep, and two cores are enough.
const WORKERS: usize = 3;

/// Double kills of one round.
const DOUBLES: usize = 12;

fn watch(limit: Duration) -> std::sync::mpsc::Sender<()> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        if receiver.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            abort(&format!("the kill matrix has not finished within {limit:?}"));
        }
    });
    sender
}

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

struct Round<'a> {
    programs: &'a Programs,
    /// Of a world of best-effort streams, and of one of reliable ones.
    baselines: [Footprint; 2],
    cells: Mutex<Vec<Cell>>,
    results: Mutex<(Vec<Value>, Slots)>,
}

impl Round<'_> {
    fn work(&self) {
        loop {
            let next = self.cells.lock().unwrap().pop();
            let Some((row, reliable, victims)) = next else { return };
            let (mut slots, start) = (Slots::default(), Instant::now());
            let baseline = &self.baselines[usize::from(reliable)];
            let result = run(self.programs, &row, reliable, &victims, baseline, &mut slots);
            let victims: Vec<_> = victims.iter().map(|v| v.name()).collect();
            let ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
            if let Err(text) = &result {
                let kind = if reliable { "reliable" } else { "best effort" };
                eprintln!("{} held by {}, {}, {} killed: {text}", row.0, row.1.name(), kind, victims.join(" and "));
            }
            let detail = result.as_ref().err().cloned().unwrap_or_default();
            let cell = json!({
                "step": row.0, "holder": row.1.name(), "victim": victims.join("+"), "ok": result.is_ok(),
                "detail": detail, "ms": ms, "reliable": reliable,
            });
            let mut results = self.results.lock().unwrap();
            results.0.push(cell);
            results.1.lost += slots.lost;
            results.1.doubly += slots.doubly;
        }
    }
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
    all(std::env::var("INSANE_REPEAT").ok().and_then(|r| r.parse().ok()).unwrap_or(1));
}

#[test]
#[ignore = "the whole matrix ten times takes some six minutes"]
fn soak_whoever_dies_takes_nothing_with_it() {
    let report = all(std::env::var("INSANE_REPEAT").ok().and_then(|r| r.parse().ok()).unwrap_or(10));
    if let Ok(path) = std::env::var("INSANE_SOAK_REPORT") {
        std::fs::write(path, format!("{report}\n")).expect("the report");
    }
}

/// Runs every cell `repeat` times. Returns the sums.
fn all(repeat: u32) -> Value {
    let seed = std::env::var("INSANE_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 | 12_345);
    println!("INSANE_SEED={seed}");
    let programs = build();
    let _watch = watch(Duration::from_secs(400) * repeat);
    let only = std::env::var("INSANE_STEP").ok();
    // Twice: a baseline that is not the same twice could not be one.
    let baselines = [false, true].map(|reliable| {
        let mut world = World::start(&programs, reliable, None).expect("a world");
        let baseline = world.settle(None).expect("a world without kills holds");
        drop(world);
        let mut again = World::start(&programs, reliable, None).expect("a world");
        again.settle(Some(&baseline)).expect("the baseline is the same twice");
        baseline
    });
    let (mut all, mut slots) = (Vec::<Value>::new(), Slots::default());
    for i in 0..repeat {
        let seed = seed.wrapping_add(u64::from(i) * 7919);
        let mut cells: Vec<Cell> = [false, true].into_iter().flat_map(|reliable| cells(seed, reliable)).collect();
        cells.retain(|(row, ..)| only.as_ref().is_none_or(|o| o == row.0));
        let round = Round { programs: &programs, baselines, cells: Mutex::new(cells), results: Mutex::default() };
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| round.work());
            }
        });
        let (cells, found) = round.results.into_inner().unwrap();
        all.extend(cells);
        slots.lost += found.lost;
        slots.doubly += found.doubly;
    }
    let failed: Vec<&Value> = all.iter().filter(|c| c["ok"] != true).collect();
    let kills: usize = all.iter().map(|c| c["victim"].as_str().unwrap_or_default().split('+').count()).sum();
    let report = json!({
        "steps": of_one_host().count(), "parties": Party::ALL.len(), "kills": kills, "slots_lost": slots.lost,
        "slots_doubly_owned": slots.doubly, "seed": seed, "repeat": repeat, "cells": all,
    });
    std::fs::create_dir_all(root().join("out")).expect("out/");
    std::fs::write(root().join("out/kill-matrix.json"), format!("{report:#}\n")).expect("out/kill-matrix.json");
    println!("{} cells, {kills} kills, {} failed", all.len(), failed.len());
    assert!(failed.is_empty(), "{} of {} cells failed", failed.len(), all.len());
    assert_eq!((slots.lost, slots.doubly), (0, 0));
    json!({
        "cells": all.len(), "kills": kills, "failed": failed.len(), "slots_lost": slots.lost,
        "slots_doubly_owned": slots.doubly, "seed": seed,
    })
}
