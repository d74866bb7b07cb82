//! The cells of a kill matrix, run by a few threads, and what a report says of them.

use crate::cell::Slots;
use crate::process::abort;
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Cells that run at once: they mostly sleep, and two cores are enough.
const WORKERS: usize = 3;

/// What a cell is called.
#[derive(Debug)]
pub struct Named {
    /// The label of its step.
    pub step: &'static str,
    /// Who is held there.
    pub holder: &'static str,
    /// Who is killed.
    pub victims: Vec<&'static str>,
    /// Whether its streams are reliable.
    pub reliable: bool,
}

/// What came of cells.
#[derive(Debug, Default)]
pub struct Rounds {
    /// A value for each.
    pub cells: Vec<Value>,
    /// What was lost or owned twice.
    pub slots: Slots,
}

impl Rounds {
    /// Runs cells, all that there are; those that fail are told at once.
    ///
    /// # Panics
    /// When running one does.
    pub fn run<C: Send>(
        &mut self,
        cells: Vec<C>,
        named: impl Fn(&C) -> Named + Sync,
        run: impl Fn(&C, &mut Slots) -> Result<(), String> + Sync,
    ) {
        let (cells, all) = (Mutex::new(cells), Mutex::new(self));
        let work = || {
            loop {
                let next = cells.lock().expect("nobody panics with it").pop();
                let Some(cell) = next else { return };
                let (mut slots, start) = (Slots::default(), Instant::now());
                let result = run(&cell, &mut slots);
                let ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
                let Named { step, holder, victims, reliable } = named(&cell);
                if let Err(text) = &result {
                    let kind = if reliable { "reliable" } else { "best effort" };
                    eprintln!("{step} held by {holder}, {kind}, {} killed: {text}", victims.join(" and "));
                }
                let (ok, detail) = (result.is_ok(), result.err().unwrap_or_default());
                let mut all = all.lock().expect("nobody panics with it");
                all.cells.push(json!({
                    "step": step, "holder": holder, "victim": victims.join("+"), "ok": ok, "detail": detail, "ms": ms,
                    "reliable": reliable,
                }));
                all.slots.lost += slots.lost;
                all.slots.doubly += slots.doubly;
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(work);
            }
        });
    }

    /// How many did not hold.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.cells.iter().filter(|c| c["ok"] != true).count()
    }

    /// How many parties were killed.
    #[must_use]
    pub fn kills(&self) -> usize {
        self.cells.iter().map(|c| c["victim"].as_str().unwrap_or_default().split('+').count()).sum()
    }

    /// Every cell held, and no slot was lost or owned twice.
    ///
    /// # Panics
    /// Otherwise.
    pub fn hold(&self) {
        assert_eq!(self.failed(), 0, "of {} cells", self.cells.len());
        assert_eq!((self.slots.lost, self.slots.doubly), (0, 0));
    }
}

/// Ends the process if what is returned still is there after so long.
#[must_use]
pub fn watch(limit: Duration) -> Sender<()> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            abort(&format!("the kill matrix has not finished within {limit:?}"));
        }
    });
    sender
}

/// A baseline of what is started twice: one that is not the same twice could not be one.
pub fn baseline<B>(settled: impl Fn(Option<&B>) -> B) -> B {
    let first = settled(None);
    settled(Some(&first));
    first
}

/// How often the whole is run: what the variable says, else `default`.
#[must_use]
pub fn repeat(default: u32) -> u32 {
    std::env::var("INSANE_REPEAT").ok().and_then(|r| r.parse().ok()).unwrap_or(default)
}

/// Whether a step is to be run: all are, unless the variable names one.
#[must_use]
pub fn is_asked(step: &str) -> bool {
    std::env::var("INSANE_STEP").map_or(true, |only| only == step)
}

/// Leaves the report of a soak test where the runner of those wants it.
///
/// # Panics
/// When it cannot be written.
pub fn leave(report: &Value) {
    if let Ok(path) = std::env::var("INSANE_SOAK_REPORT") {
        std::fs::write(path, format!("{report}\n")).expect("the report");
    }
}
