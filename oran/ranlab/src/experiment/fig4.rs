//! Fig. 4: the downlink's delay by sublayer without load, and the latency of control and indication messages between the lab
//! and an xApp, each a process of its own, through INSANE at a period of 1 ms.

use std::time::Duration;

use super::bench::Bench;
use super::numbers::{Point, mean, quantile, sorted};
use super::probe::Probed;
use super::runtime::{Runtime, beside, own_program};
use super::{Lines, Plot, Report, Settings};
use crate::config::{Config, ControlWait};
use crate::core::stats::Spread;
use crate::host::HostError;

const PERIOD: Duration = Duration::from_millis(1);
/// How the lab's control thread and the xApp wait: its name, and the bar of the medians in microseconds.
const WAITS: [(ControlWait, &str, f64); 2] =
    [(ControlWait::Adaptive, "adaptive", 40.0), (ControlWait::Spin, "spin", 10.0)];
/// Points of a line in the plot.
const POINTS: usize = 2_000;

struct Run {
    probed: Probed,
    /// Mean times in the sublayers of a ping without load, in milliseconds: pipeline, RLC, radio.
    layers: [f64; 3],
    /// Its mean round trip, in milliseconds.
    no_load: f64,
    lab_late: Vec<f64>,
}

pub(super) fn run(settings: &Settings) -> Result<Report, HostError> {
    let count = if settings.quick { 3_000 } else { 20_000 };
    let runtime = Runtime::start()?;
    let mut report = Report::new();
    report.set("period_us", PERIOD.as_micros() as u64);
    report.set("messages", count - count / 10);
    report.set("processes", "the lab, the xApp and the INSANE runtime are three; no E2AP and no RIC between them");
    let mut lines: [Lines; 2] = [Lines::new(), Lines::new()];
    let mut late = Vec::new();
    for (wait, name, most) in WAITS {
        let config = runtime.serve(&settings.config, wait);
        let runs = (0..settings.times()).map(|_| once(&config, &runtime, name, count));
        let runs = runs.collect::<Result<Vec<_>, _>>()?;
        report.no_load(&format!("{name}: no-load RTT, mean"), &runs.iter().map(|r| r.no_load).collect::<Vec<_>>());
        if wait == ControlWait::Adaptive {
            let layer = |n: usize| runs.iter().map(|r| r.layers[n]).collect::<Vec<_>>();
            report.figure("no load: time in the pipeline, mean", "ms", &layer(0)).paper("a 25th of the RLC's");
            report.figure("no load: time in the RLC, mean", "ms", &layer(1)).paper("most of the whole");
            report.figure("no load: on the radio, mean", "ms", &layer(2));
        }
        let micros = |part: f64, of: fn(&Probed) -> &Vec<u64>| {
            let one = |run: &Run| quantile(&sorted(&micros(of(&run.probed))), part);
            runs.iter().map(one).collect::<Vec<_>>()
        };
        let bar = format!("<= {most} us");
        for (what, of, paper) in [
            ("control, xApp to lab", (|p| &p.control) as fn(&Probed) -> &Vec<u64>, "71 us through FlexRIC"),
            ("indication, lab to xApp", |p| &p.indication, "67 us through FlexRIC"),
        ] {
            let figure = report.figure(&format!("{name}: {what}, median"), "us", &micros(0.5, of));
            figure.bar(&bar, |v| v <= most).paper(paper);
            report.figure(&format!("{name}: {what}, 99 %"), "us", &micros(0.99, of));
        }
        for (what, of) in [
            ("xApp to change in force", (|p| &p.in_force) as fn(&Probed) -> &Vec<u64>),
            ("look at the counters to xApp", |p| &p.since_look),
        ] {
            report.figure(&format!("{name}: {what}, median"), "us", &micros(0.5, of));
            report.figure(&format!("{name}: {what}, 99 %"), "us", &micros(0.99, of));
        }
        let counts = |of: fn(&Probed) -> u64| runs.iter().map(|r| of(&r.probed) as f64).collect::<Vec<_>>();
        report.figure(&format!("{name}: periods without indication"), "periods", &counts(|p| p.late));
        report.figure(&format!("{name}: indications dropped"), "messages", &counts(|p| p.dropped));
        if let Some(last) = runs.last() {
            lines[0].insert(name.into(), line(&last.probed.control));
            lines[1].insert(name.into(), line(&last.probed.indication));
        }
        late.extend(runs.into_iter().map(|r| r.lab_late));
    }
    report.lateness(&late);
    let titles = ["4b: control, xApp to lab", "4b: indication, lab to xApp"];
    let plot = |(title, lines): (&str, Lines)| Plot {
        title: title.into(),
        y: "us".into(),
        log: true,
        lines,
        ..Plot::default()
    };
    report.plots = titles.into_iter().zip(lines).map(plot).collect();
    Ok(report)
}

fn micros(nanos: &[u64]) -> Vec<f64> {
    nanos.iter().map(|n| *n as f64 / 1e3).collect()
}

/// A line of not too many points.
fn line(nanos: &[u64]) -> Vec<Point> {
    let step = nanos.len().div_ceil(POINTS).max(1);
    let point = |(n, v): (usize, f64)| [n as f64 * PERIOD.as_secs_f64(), v];
    micros(nanos).into_iter().enumerate().map(point).step_by(step).collect()
}

fn once(config: &Config, runtime: &Runtime, wait: &str, count: u32) -> Result<Run, HostError> {
    let bench = Bench::new(config, 0)?;
    let own = own_program()?;
    let socket = runtime.socket();
    let socket = socket.to_string_lossy();
    let prefix = config.control.as_ref().map_or("", |c| c.prefix.as_str());
    let (period, count_text) = (PERIOD.as_micros().to_string(), count.to_string());
    let seconds = PERIOD * count + Duration::from_secs(1);
    let ping = bench.ping(0.05, seconds.as_secs_f64())?;
    let (_, before) = bench.look()?;
    let line = [
        &own,
        "probe",
        "--socket",
        &socket,
        "--prefix",
        prefix,
        "--wait",
        wait,
        "--period",
        &period,
        "--count",
        &count_text,
    ];
    let text = beside(&line, &[], seconds * 4 + Duration::from_secs(20))?;
    let probed: Probed = serde_json::from_str(&text).map_err(|e| HostError::new("probe", e))?;
    let (_, after) = bench.look()?;
    let trips: Vec<f64> = ping.finish(seconds.as_secs_f64() + 10.0)?.iter().map(|p| p[1]).collect();
    let layer = |n: usize| {
        let (a, b): (&Spread, &Spread) = (&before.sojourn[n], &after.sojourn[n]);
        b.mean_ms_since(a).unwrap_or(f64::NAN)
    };
    let layers = [layer(0), layer(1), layer(2)];
    Ok(Run { probed, layers, no_load: mean(&trips), lab_late: bench.end().iter().map(|r| r.late_ms).collect() })
}
