//! Every labelled step of the network thread, on either of two hosts: its runtime is held there under load, and that runtime is
//! killed, or another party, or both runtimes. `INSANE_REPEAT=n` runs the whole n times, `INSANE_STEP` one step alone.

use insane_shm::steps::Step;
use insane_tests_killmatrix::cell::{Programs, Slots, build, root};
use insane_tests_killmatrix::hosts::{Footprint, Hosts, Part, Row, TABLE, run};
use insane_tests_killmatrix::process::abort;
use serde_json::{Value, json};
use std::io::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Cells that run at once.
const WORKERS: usize = 3;

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

struct Round<'a> {
    programs: &'a Programs,
    /// Of best-effort streams, and of reliable ones.
    baselines: [Footprint; 2],
    cells: Mutex<Vec<Cell>>,
    results: Mutex<(Vec<Value>, Slots)>,
}

impl Round<'_> {
    fn work(&self) {
        loop {
            let next = self.cells.lock().unwrap().pop();
            let Some((row, at, reliable, victims)) = next else { return };
            let (mut slots, start) = (Slots::default(), Instant::now());
            let baseline = &self.baselines[usize::from(reliable)];
            let result = run(self.programs, &row, at, reliable, &victims, baseline, &mut slots);
            let victims: Vec<_> = victims.iter().map(|v| v.name()).collect();
            let ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
            let (holder, detail) = (Part::ALL[at].name(), result.as_ref().err().cloned().unwrap_or_default());
            if result.is_err() {
                let kind = if reliable { "reliable" } else { "best effort" };
                eprintln!("{} held by the {holder}, {kind}, {} killed: {detail}", row.0, victims.join(" and "));
            }
            let cell = json!({
                "step": row.0, "holder": holder, "victim": victims.join("+"), "ok": result.is_ok(), "detail": detail,
                "ms": ms, "reliable": reliable,
            });
            let mut results = self.results.lock().unwrap();
            results.0.push(cell);
            results.1.lost += slots.lost;
            results.1.doubly += slots.doubly;
        }
    }
}

#[test]
fn the_table_names_every_step_of_the_network() {
    let labels: Vec<&str> = TABLE.iter().map(|(label, ..)| *label).collect();
    assert_eq!(labels, Step::NETWORK.iter().map(|s| s.label()).collect::<Vec<_>>());
}

#[test]
fn whoever_dies_between_two_hosts_takes_nothing_with_it() {
    all(std::env::var("INSANE_REPEAT").ok().and_then(|r| r.parse().ok()).unwrap_or(1));
}

#[test]
#[ignore = "the whole matrix ten times takes some ten minutes"]
fn soak_whoever_dies_between_two_hosts_takes_nothing_with_it() {
    let report = all(std::env::var("INSANE_REPEAT").ok().and_then(|r| r.parse().ok()).unwrap_or(10));
    if let Ok(path) = std::env::var("INSANE_SOAK_REPORT") {
        std::fs::write(path, format!("{report}\n")).expect("the report");
    }
}

/// Runs every cell `repeat` times. Returns the sums.
fn all(repeat: usize) -> Value {
    let programs = build();
    let limit = Duration::from_secs(400) * u32::try_from(repeat).expect("a few");
    let (_ends, ended) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        if ended.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            abort(&format!("the kill matrix of two hosts has not finished within {limit:?}"));
        }
    });
    // Twice: a baseline that is not the same twice could not be one.
    let baselines = [false, true].map(|reliable| {
        let mut hosts = Hosts::start(&programs, reliable, None).expect("two hosts");
        let baseline = hosts.settle(None).expect("hosts without kills hold");
        drop(hosts);
        let mut again = Hosts::start(&programs, reliable, None).expect("two hosts");
        again.settle(Some(&baseline)).expect("the baseline is the same twice");
        baseline
    });
    let only = std::env::var("INSANE_STEP").ok();
    let (mut all, mut slots) = (Vec::<Value>::new(), Slots::default());
    for number in 0..repeat {
        let mut cells = cells(number);
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
        let failed = all.iter().filter(|c| c["ok"] != true).count();
        let _ = writeln!(
            std::io::stderr(),
            "progress: round {} of {repeat}, {} cells, {failed} failed",
            number + 1,
            all.len()
        );
    }
    let failed = all.iter().filter(|c| c["ok"] != true).count();
    let kills: usize = all.iter().map(|c| c["victim"].as_str().unwrap_or_default().split('+').count()).sum();
    let sums = json!({
        "steps": Step::NETWORK.len(), "parties": Part::ALL.len(), "cells": all.len(), "kills": kills, "failed": failed,
        "slots_lost": slots.lost, "slots_doubly_owned": slots.doubly, "repeat": repeat,
    });
    write(&sums, &all);
    println!("{sums}");
    assert_eq!(failed, 0, "of {} cells", all.len());
    assert_eq!((slots.lost, slots.doubly), (0, 0));
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
