//! Fig. 9 and 10: a game and a greedy flow in one bearer. First without control; then with the xApp that watches the RLC and
//! acts when packets stay in its buffer for more than 10 ms.

use std::time::Duration;

use super::bench::{Bench, series};
use super::game::Played;
use super::numbers::{Point, mean, quantile, sorted, within};
use super::runtime::{Runtime, beside};
use super::{Lines, Plot, Report, Settings};
use crate::config::{Config, ControlWait};
use crate::host::HostError;

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

struct Run {
    no_load: f64,
    no_load_p99: f64,
    loaded_p99: f64,
    loaded_max: f64,
    mbps: f64,
    late: f64,
    acted_after: f64,
    lab_late: Vec<f64>,
    plots: Vec<Plot>,
}

pub(super) fn run(settings: &Settings) -> Result<Report, HostError> {
    // The greedy flow begins, all ends. The buffer needs its time to fill.
    let times = if settings.quick { [5.0, 30.0] } else { [10.0, 60.0] };
    let mut both: [Vec<Run>; 2] = [Vec::new(), Vec::new()];
    let guard = Guard::find()?;
    for _ in 0..settings.repetitions {
        both[0].push(once(&settings.config, times, &Guard::Nobody)?);
        both[1].push(once(&settings.config, times, &guard)?);
    }
    let of = |n: usize, f: fn(&Run) -> f64| both[n].iter().map(f).collect::<Vec<_>>();
    let mut report = Report::new();
    report.set("greedy_at_s", times[0]);
    report.set("end_s", times[1]);
    report.set("tick_ms", TICK_MS);
    report.set("late", "more than one tick after its instant, or never");
    report.set("trigger_ms", TRIGGER_MS);
    report.set("congestion_control", "cubic");
    report.set("change", CHANGE);
    report.set("xapp", guard.name());
    report.figure("no-load RTT of the game, mean", "ms", &of(1, |r| r.no_load)).paper("about 10 ms");
    report.figure("no-load RTT of the game, 99 %", "ms", &of(1, |r| r.no_load_p99));
    report.figure("without control: RTT 99 %", "ms", &of(0, |r| r.loaded_p99)).paper("up to 1.8 s");
    report.figure("without control: late ticks", "%", &of(0, |r| r.late)).paper("unplayable after 5 s");
    report.figure("without control: goodput of the greedy flow", "Mbit/s", &of(0, |r| r.mbps)).paper("40 Mbit/s");
    report.figure("xApp: from the flow's start to its change", "s", &of(1, |r| r.acted_after));
    report
        .figure("xApp: RTT 99 % from a second after the trigger", "ms", &of(1, |r| r.loaded_p99))
        .bar("<= 20 ms", |v| v <= 20.0)
        .paper("around 20 ms");
    report.figure("xApp: RTT at most", "ms", &of(1, |r| r.loaded_max));
    report.figure("xApp: late ticks", "%", &of(1, |r| r.late)).bar("<= 1 %", |v| v <= 1.0);
    report.figure("xApp: goodput of the greedy flow", "Mbit/s", &of(1, |r| r.mbps)).paper("30 Mbit/s");
    let lost: Vec<f64> = both[0].iter().zip(&both[1]).map(|(a, b)| 100.0 * (1.0 - b.mbps / a.mbps)).collect();
    report.figure("goodput given up", "%", &lost).bar("<= 5 %", |v| v <= 5.0).paper("25 %");
    let late: Vec<Vec<f64>> = both.iter().flatten().map(|r| r.lab_late.clone()).collect();
    report.lateness(&late);
    let [without, with] = both;
    report.plots = [without, with].into_iter().filter_map(|mut r| r.pop()).flat_map(|r| r.plots).collect();
    Ok(report)
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
    let own = std::env::current_exe().map_err(|e| HostError::new("own program", e))?;
    let own = own.to_string_lossy().into_owned();
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
    let settled = acted.map_or(begin + (end - begin) / 2.0, |at| at + 1.0);
    let loaded = sorted(&within(&trips, settled, end - 0.5));
    let calm = within(&trips, 1.0, begin);
    let (late, ticks) = played.late(begin - started, settled - started, end - 0.5 - started, played.tick_ms);
    let what = if matches!(guard, Guard::Nobody) { "without control" } else { "with the xApp" };
    let line = |title: &str, y: &str, log: bool, name: &str, points: Vec<Point>| Plot {
        title: format!("{title}, {what}"),
        y: y.into(),
        log,
        lines: Lines::from([(name.to_owned(), points)]),
        marks: acted.into_iter().collect(),
    };
    Ok(Run {
        no_load: mean(&calm),
        no_load_p99: quantile(&sorted(&calm), 0.99),
        loaded_p99: quantile(&loaded, 0.99),
        loaded_max: quantile(&loaded, 1.0),
        mbps: mean(&within(&flow, settled + 1.0, end - 1.0)),
        late: if ticks == 0 { f64::NAN } else { 100.0 * late as f64 / ticks as f64 },
        acted_after: acted.map_or(f64::NAN, |at| at - begin),
        lab_late: rows.iter().map(|r| r.late_ms).collect(),
        plots: vec![
            line("9a: throughput", "Mbit/s", false, "greedy flow", flow),
            line("9c: round trip of the game", "ms", true, "game", trips),
            line("10: RLC buffer", "bytes", true, "RLC", series(&rows, |r| r.rlc_bytes as f64)),
            line("10: sojourn in the RLC", "ms", true, "RLC", series(&rows, |r| r.rlc_ms)),
            line("10: resource blocks unused", "%", false, "unused", series(&rows, |r| 100.0 * (1.0 - r.prb_used))),
            line("10: packets dropped", "packets in 100 ms", false, "drops", series(&rows, |r| r.drops as f64)),
        ],
    })
}
