//! A game and a greedy flow in one bearer, first without control, then with the xApp that watches the RLC and acts when packets
//! stay in its buffer for more than 10 ms: the runs that Fig. 9 and Fig. 10 are two views of.

use std::rc::Rc;
use std::time::Duration;

use super::bench::Bench;
use super::game::Played;
use super::numbers::{Point, mean, within};
use super::runtime::{Runtime, beside, own_program};
use super::{Report, Runs, Settings, kept};
use crate::config::{Config, ControlWait};
use crate::host::HostError;
use crate::host::view::Row;

/// What the xApp asks for when it acts: the pacer, a CoDel of its own for the greedy flow.
const CHANGE: &str = r#"[{"op":"set-pacer","pacer":{"type":"5g-bdp"}},
    {"op":"add-queue","queue":{"id":1,"kind":{"type":"codel"}}},
    {"op":"add-filter","filter":{"id":1,"match":{"proto":"6","src_port":"5201"},"to":{"type":"queue","queue":1}}}]"#;

/// The sojourn in the RLC's buffer at which the xApp acts, in milliseconds, and how often it looks.
const TRIGGER_MS: f64 = 10.0;
const LOOK: Duration = Duration::from_millis(5);
/// The game's tick in milliseconds, and its port.
const TICK_MS: u64 = 33;
const PORT: &str = "7777";

/// The repetitions without control and with the xApp, in pairs.
#[derive(Debug)]
pub(super) struct Both {
    /// When the greedy flow begins and when all ends, in seconds.
    pub(super) times: [f64; 2],
    pub(super) without: Vec<Run>,
    pub(super) with: Vec<Run>,
    xapp: &'static str,
}

/// One run. Instants are seconds of the lab's clock.
#[derive(Debug)]
pub(super) struct Run {
    /// When the xApp's change was in force, if it made one.
    pub(super) acted: Option<f64>,
    /// From when on the effect of the change is measured, or the same part of a run without one.
    pub(super) settled: f64,
    /// Round trips of the game in milliseconds.
    pub(super) trips: Vec<Point>,
    /// Goodput of the greedy flow in Mbit/s.
    pub(super) flow: Vec<Point>,
    /// Ticks that were late while the flow ran, of 100.
    pub(super) late: f64,
    pub(super) rows: Vec<Row>,
}

impl Run {
    /// How late the lab was, in milliseconds.
    pub(super) fn lab_late(&self) -> Vec<f64> {
        self.rows.iter().map(|r| r.late_ms).collect()
    }

    /// The mean round trip of the game before the greedy flow.
    pub(super) fn no_load(&self, times: [f64; 2]) -> f64 {
        mean(&within(&self.trips, 1.0, times[0]))
    }
}

impl Both {
    /// The runs of these settings; those that there are already, if there are.
    pub(super) fn of(settings: &Settings, runs: &mut Runs) -> Result<Rc<Self>, HostError> {
        kept(&mut runs.game, settings, || Self::make(settings))
    }

    fn make(settings: &Settings) -> Result<Self, HostError> {
        // The buffer needs its time to fill.
        let times = if settings.quick { [5.0, 30.0] } else { [10.0, 60.0] };
        let guard = Guard::find()?;
        let mut both = Self { times, without: Vec::new(), with: Vec::new(), xapp: guard.name() };
        for _ in 0..settings.times() {
            both.without.push(once(&settings.config, times, &Guard::Nobody)?);
            both.with.push(once(&settings.config, times, &guard)?);
        }
        Ok(both)
    }

    /// A report that says how these runs were made.
    pub(super) fn report(&self) -> Report {
        let mut report = Report::new();
        report.set("greedy_at_s", self.times[0]);
        report.set("end_s", self.times[1]);
        report.set("tick_ms", TICK_MS);
        report.set("late", "more than one tick after its instant, or never");
        report.set("trigger_ms", TRIGGER_MS);
        report.set("congestion_control", "cubic");
        report.set("change", CHANGE);
        report.set("xapp", self.xapp);
        report
    }

    /// The last run without control and the last with the xApp, which are drawn, and what they are.
    pub(super) fn last(&self) -> impl Iterator<Item = (&Run, &'static str)> {
        let runs = [(self.without.last(), "without control"), (self.with.last(), "with the xApp")];
        runs.into_iter().filter_map(|(run, what)| Some((run?, what)))
    }

    /// How late the lab was in each run.
    pub(super) fn lateness(&self) -> Vec<Vec<f64>> {
        self.without.iter().chain(&self.with).map(Run::lab_late).collect()
    }
}

/// Who watches and acts.
enum Guard {
    /// Nobody: the lab without control.
    Nobody,
    /// This program itself.
    Here,
    /// The xApp `game_guard.py`, a process of its own that talks to the lab through INSANE.
    XApp { runtime: Runtime, python: String, script: String },
}

impl Guard {
    /// The xApp if RANLAB_XAPP says where it is, run by RANLAB_PYTHON or `python3`.
    fn find() -> Result<Self, HostError> {
        let Ok(script) = std::env::var("RANLAB_XAPP") else { return Ok(Self::Here) };
        let python = std::env::var("RANLAB_PYTHON").unwrap_or_else(|_| "python3".into());
        Ok(Self::XApp { runtime: Runtime::start()?, python, script })
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::Here => "the experiment's own program, in the lab's process",
            Self::XApp { .. } => "game_guard.py, a process of its own, through INSANE",
        }
    }

    /// The lab's configuration.
    fn configure(&self, config: &Config) -> Config {
        match self {
            Self::XApp { runtime, .. } => runtime.serve(config, ControlWait::Adaptive),
            _ => config.clone(),
        }
    }
}

/// Runs the xApp; when its change was in force, on CLOCK_MONOTONIC, or nothing if it did not act.
fn run_xapp(python: &str, script: &str, socket: &str, prefix: &str, seconds: f64) -> Result<Option<u64>, HostError> {
    let text = seconds.to_string();
    let line = [python, script, "--lab", prefix, "--socket", socket, "--greedy-port", "5201", "--seconds", &text];
    let said = beside(&line, &[], Duration::from_secs_f64(seconds + 30.0))?;
    let said: serde_json::Value = serde_json::from_str(&said).map_err(|e| HostError::new("xApp", e))?;
    Ok(said["done_ns"].as_u64())
}

/// Looks at the RLC until packets stay too long, then acts; when that was, or nothing if it never came to it.
fn xapp(bench: &Bench, until: f64) -> Result<Option<f64>, HostError> {
    while bench.now() < until {
        let (_, bearer) = bench.look()?;
        if bearer.rlc.head_sojourn_ns as f64 / 1e6 > TRIGGER_MS {
            return bench.change(CHANGE).map(Some);
        }
        std::thread::sleep(LOOK);
    }
    Ok(None)
}

fn once(config: &Config, [begin, end]: [f64; 2], guard: &Guard) -> Result<Run, HostError> {
    let config = guard.configure(config);
    let bench = Bench::new(&config, 1)?;
    let own = own_program()?;
    let (tick, seconds) = (TICK_MS.to_string(), (end + 2.0).ceil().to_string());
    let _server = bench.in_server(&[&own, "game-server", "--port", PORT, "--tick", &tick, "--seconds", &seconds])?;
    let started = bench.now();
    let address = crate::host::namespaces::SERVER;
    let client = bench.in_ue(&[&own, "game", address, "--port", PORT, "--tick", &tick, "--seconds", &seconds])?;
    let (greedy, acted) = std::thread::scope(|scope| {
        let watching = match guard {
            Guard::XApp { runtime, python, script } => {
                let prefix = config.control.as_ref().map_or("", |c| c.prefix.as_str());
                let socket = runtime.socket();
                Some(scope.spawn(move || run_xapp(python, script, &socket.to_string_lossy(), prefix, end)))
            }
            _ => None,
        };
        bench.until(begin);
        let greedy = bench.greedy(0, end - begin, "cubic")?;
        let acted = match (guard, watching) {
            (Guard::Here, _) => xapp(&bench, end)?,
            (_, Some(watching)) => {
                let done = watching.join().map_err(|_| HostError::new("xApp", "its thread panicked"))??;
                let ago = |done| insane_traffic_control::now_ns().saturating_sub(done) as f64 / 1e9;
                done.map(|done| bench.now() - ago(done))
            }
            _ => None,
        };
        Ok::<_, HostError>((greedy, acted))
    })?;
    let flow = greedy.finish()?;
    let text = client.finish(Duration::from_secs(60))?;
    let played: Played = serde_json::from_str(&text).map_err(|e| HostError::new("game", e))?;
    let rows = bench.end();
    // The client's clock began a few milliseconds after the program was started.
    let trips: Vec<Point> = played.states.iter().map(|(_, at, ms)| [at + started, *ms]).collect();
    // On a machine that does something else packets may stay too long before the flow is there.
    let settled = acted.map_or(begin + (end - begin) / 2.0, |at| at.max(begin) + 1.0);
    let (late, ticks) = played.late(begin - started, settled - started, end - 0.5 - started, played.tick_ms);
    let late = if ticks == 0 { f64::NAN } else { 100.0 * late as f64 / ticks as f64 };
    Ok(Run { acted, settled, trips, flow, late, rows })
}
