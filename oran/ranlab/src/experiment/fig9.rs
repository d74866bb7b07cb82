//! Fig. 9: a game beside a greedy flow, as the network sees it: goodput and round trips.

use super::guarded::{Both, Run};
use super::numbers::{Point, mean, quantile, sorted, within};
use super::{Lines, Plot, Report, Runs, Settings};
use crate::host::HostError;

/// A figure of one run.
type Of = fn(&Run, [f64; 2]) -> f64;

fn loaded(run: &Run, times: [f64; 2]) -> Vec<f64> {
    sorted(&within(&run.trips, run.settled, times[1] - 0.5))
}

fn mbps(run: &Run, times: [f64; 2]) -> f64 {
    mean(&within(&run.flow, run.settled + 1.0, times[1] - 1.0))
}

pub(super) fn run(settings: &Settings, runs: &mut Runs) -> Result<Report, HostError> {
    let both = Both::of(settings, runs)?;
    let times = both.times;
    let without = |of: Of| both.without.iter().map(|r| of(r, times)).collect::<Vec<_>>();
    let with = |of: Of| both.with.iter().map(|r| of(r, times)).collect::<Vec<_>>();
    let p99: Of = |r, times| quantile(&loaded(r, times), 0.99);
    let calm: Of = |r, times| quantile(&sorted(&within(&r.trips, 1.0, times[0])), 0.99);
    let mut report = both.report();
    report.no_load("without control: no-load RTT of the game, mean", &without(Run::no_load)).paper("about 10 ms");
    report.figure("without control: RTT 99 %", "ms", &without(p99)).paper("up to 1.8 s");
    report.figure("without control: late ticks", "%", &without(|r, _| r.late)).paper("unplayable after 5 s");
    report.figure("without control: goodput of the greedy flow", "Mbit/s", &without(mbps)).paper("40 Mbit/s");
    report.no_load("xApp: no-load RTT of the game, mean", &with(Run::no_load)).paper("about 10 ms");
    report.figure("xApp: no-load RTT of the game, 99 %", "ms", &with(calm));
    let acted: Of = |r, times| r.acted.map_or(f64::NAN, |at| at - times[0]);
    report.figure("xApp: from the flow's start to its change", "s", &with(acted));
    report
        .figure("xApp: RTT 99 % from a second after the change", "ms", &with(p99))
        .bar("<= 20 ms", |v| v <= 20.0)
        .paper("around 20 ms");
    report.figure("xApp: RTT at most", "ms", &with(|r, times| quantile(&loaded(r, times), 1.0)));
    report.figure("xApp: late ticks", "%", &with(|r, _| r.late)).bar("<= 1 %", |v| v <= 1.0);
    report.figure("xApp: goodput of the greedy flow", "Mbit/s", &with(mbps)).paper("30 Mbit/s");
    let lost: Vec<f64> = without(mbps).iter().zip(with(mbps)).map(|(a, b)| 100.0 * (1.0 - b / a)).collect();
    report.figure("goodput given up", "%", &lost).bar("<= 5 %", |v| v <= 5.0).paper("25 %");
    report.lateness(&both.lateness());
    report.plots = both.last().flat_map(|(run, what)| plots(run, what)).collect();
    Ok(report)
}

fn plots(run: &Run, what: &str) -> [Plot; 2] {
    let plot = |title: &str, y: &str, name: &str, points: &[Point]| Plot {
        title: format!("{title}, {what}"),
        y: y.into(),
        log: y == "ms",
        lines: Lines::from([(name.to_owned(), points.to_vec())]),
        marks: run.acted.into_iter().collect(),
        ..Plot::default()
    };
    [
        plot("9a: throughput", "Mbit/s", "greedy flow", &run.flow),
        plot("9c: round trip of the game", "ms", "game", &run.trips),
    ]
}
