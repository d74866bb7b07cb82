//! Fig. 10: a game beside a greedy flow, as the RAN sees it: what the RLC holds, for how long, what of the carrier is left
//! unused, and what is dropped.

use super::bench::series;
use super::guarded::{Both, Run};
use super::numbers::{mean, quantile, sorted, within};
use super::{Column, Lines, Plot, Report, Runs, Settings};
use crate::host::HostError;
use crate::host::view::Row;

/// A figure of one run.
type Of = fn(&Run, [f64; 2]) -> f64;

/// What of the carrier must be in use for an interval to count as full, of 1.
const FULL: f64 = 0.98;

/// A quantity of the intervals from the effect of the change to the end.
fn loaded(run: &Run, times: [f64; 2], of: fn(&Row) -> f64) -> Vec<f64> {
    within(&series(&run.rows, of), run.settled, times[1] - 0.5)
}

fn most(values: &[f64]) -> f64 {
    quantile(&sorted(values), 1.0)
}

/// What the RLC holds, in kB.
fn held(row: &Row) -> f64 {
    row.rlc_bytes as f64 / 1e3
}

/// Resource blocks unused, in percent.
fn unused(row: &Row) -> f64 {
    100.0 * (1.0 - row.prb_used)
}

/// What part of the dropped packets was dropped while the carrier was full, in percent; not a number if none was dropped.
fn dropped_while_full(rows: &[Row]) -> f64 {
    let drops = |rows: &mut dyn Iterator<Item = &Row>| rows.map(|r| r.drops as f64).sum::<f64>();
    100.0 * drops(&mut rows.iter().filter(|r| r.prb_used >= FULL)) / drops(&mut rows.iter())
}

pub(super) fn run(settings: &Settings, runs: &mut Runs) -> Result<Report, HostError> {
    let both = Both::of(settings, runs)?;
    let times = both.times;
    let mut report = both.report();
    report.set("full_carrier", FULL);
    for (what, runs, paper) in [
        ("without control", &both.without, ["10 MB", "1.8 s", "none once the buffer holds"]),
        ("xApp", &both.with, ["", "never above 20 ms", "some: goodput falls by 25 %"]),
    ] {
        let of = |of: Of| runs.iter().map(|r| of(r, times)).collect::<Vec<_>>();
        let name = |text: &str| format!("{what}: {text}");
        report.no_load(&name("no-load RTT of the game, mean"), &of(Run::no_load)).paper("about 10 ms");
        let bytes = [of(|r, t| mean(&loaded(r, t, held))), of(|r, t| most(&loaded(r, t, held)))];
        report.figure(&name("RLC buffer, mean"), "kB", &bytes[0]);
        report.figure(&name("RLC buffer, at most"), "kB", &bytes[1]).paper(paper[0]);
        // The mean of each interval; the first packet's wait is what the xApp acts on.
        report.figure(&name("sojourn in the RLC, mean"), "ms", &of(|r, t| mean(&loaded(r, t, |r| r.rlc_ms))));
        let figure =
            report.figure(&name("sojourn in the RLC, at most"), "ms", &of(|r, t| most(&loaded(r, t, |r| r.rlc_ms))));
        if what == "xApp" {
            figure.bar("<= 20 ms", |v| v <= 20.0);
        }
        figure.paper(paper[1]);
        report.figure(&name("sojourn in the pipeline, mean"), "ms", &of(|r, t| mean(&loaded(r, t, |r| r.pipeline_ms))));
        report
            .figure(&name("resource blocks unused, mean"), "%", &of(|r, t| mean(&loaded(r, t, unused))))
            .paper(paper[2]);
        report.figure(
            &name("packets dropped by the pipeline"),
            "packets",
            &of(|r, _| r.rows.iter().map(|r| r.drops as f64).sum()),
        );
        report.figure(
            &name("packets that the RLC refused"),
            "packets",
            &of(|r, _| r.rows.iter().map(|r| r.overflows as f64).sum()),
        );
    }
    report
        .figure(
            "xApp: drops while the carrier was full",
            "%",
            &both.with.iter().map(|r| dropped_while_full(&r.rows)).collect::<Vec<_>>(),
        )
        .paper("they coincide");
    report.lateness(&both.lateness());
    report.plots = both.last().flat_map(|(run, what)| plots(run, what)).collect();
    Ok(report)
}

fn plots(run: &Run, what: &str) -> [Plot; 4] {
    let plot = |title: &str, y: &str, log: bool, lines: &[Column<'_>]| Plot {
        title: format!("10: {title}, {what}"),
        y: y.into(),
        log,
        lines: lines.iter().map(|(name, of)| ((*name).to_owned(), series(&run.rows, of))).collect::<Lines>(),
        marks: run.acted.into_iter().collect(),
        ..Plot::default()
    };
    [
        plot("buffers", "bytes", true, &[("RLC", |r| r.rlc_bytes as f64), ("pipeline", |r| r.pipeline_bytes as f64)]),
        plot("sojourn", "ms", true, &[("RLC", |r| r.rlc_ms), ("pipeline", |r| r.pipeline_ms)]),
        plot("resource blocks unused", "%", false, &[("unused", unused)]),
        plot(
            "packets dropped",
            "packets in 100 ms",
            false,
            &[("pipeline", |r| r.drops as f64), ("RLC", |r| r.overflows as f64)],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_told_apart_by_the_carriers_use() {
        let row = |prb_used, drops| Row { prb_used, drops, ..Row::default() };
        assert_eq!(dropped_while_full(&[row(1.0, 3), row(0.5, 1), row(0.99, 0)]), 75.0);
        assert!(dropped_while_full(&[row(1.0, 0)]).is_nan(), "no drops, no part of them");
        assert!((unused(&row(0.75, 0)) - 25.0).abs() < 1e-9);
    }
}
