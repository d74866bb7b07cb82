//! Fig. 13 and 14: one greedy flow while the modulation and coding scheme changes, as the RAN sees it: what the RLC and the
//! pipeline hold, and how much of the carrier is used, while its capacity is low and when it has become high.

use super::bench::series;
use super::numbers::{mean, quantile, sorted, within};
use super::schemes::{All, BBR, CUBIC, Control, FQ_CODEL, Run, SCALABLE, begin, each};
use super::{Column, Lines, Plot, Report, Runs, Settings};
use crate::host::HostError;
use crate::host::view::Row;

/// What the two figures show: a control, and what the paper says of its buffer and of the resource blocks.
type Shown = [(Control, [&'static str; 2]); 2];

/// Fig. 13.
pub(super) const CONGESTION: Shown = [
    (CUBIC, ["2.5 MB", "all are used in the first 40 s, not all in the last 20 s"]),
    (BBR, ["", "some are unused all the time (BBRv2)"]),
];
/// Fig. 14.
pub(super) const PIPELINES: Shown = [
    (SCALABLE, ["", "many are unused, most of them in the last 20 s (Prague)"]),
    (FQ_CODEL, ["", "as Prague, but fewer unused"]),
];

/// The part of the profile with the high schemes, from its beginning: the last 6 of its 14 steps.
const HIGH: f64 = 8.0 / 14.0;

/// Splits a run where the channel becomes a good one.
fn parts(run: &Run) -> [[f64; 2]; 2] {
    let [from, to] = run.window;
    let end = to + 0.5;
    let split = begin() + HIGH * (end - begin());
    [[from, split], [split, to]]
}

fn unused(row: &Row) -> f64 {
    100.0 * (1.0 - row.prb_used)
}

pub(super) fn run(settings: &Settings, runs: &mut Runs, shown: &Shown) -> Result<Report, HostError> {
    let all = All::of(settings, runs)?;
    let mut report = all.report();
    for &(control, [buffer, blocks]) in shown {
        let Some(runs) = all.runs(control) else { continue };
        let name = |what: &str| format!("{}: {what}", control.name);
        let kb = |part: f64| each(runs, move |r| quantile(&sorted(&r.of(|r| r.rlc_bytes as f64 / 1e3)), part));
        report.no_load(&name("no-load RTT"), &each(runs, Run::no_load)).paper("10 ms");
        report.figure(&name("RLC buffer, median"), "kB", &kb(0.5));
        report.figure(&name("RLC buffer, at most"), "kB", &kb(1.0)).paper(buffer);
        for (n, part) in ["low schemes", "high schemes"].into_iter().enumerate() {
            let idle = each(runs, |r| {
                let [from, to] = parts(r)[n];
                mean(&within(&series(&r.rows, unused), from, to))
            });
            report.figure(&name(&format!("resource blocks unused, {part}")), "%", &idle).paper(blocks);
        }
        report.figure(&name("packets dropped"), "packets", &each(runs, |r| r.of(|r| r.drops as f64).iter().sum()));
        report.figure(&name("packets marked"), "packets", &each(runs, |r| r.of(|r| r.marks as f64).iter().sum()));
        if let Some(last) = runs.last() {
            report.plots.extend(plots(control, last));
        }
    }
    report.lateness(&all.lateness());
    Ok(report)
}

fn plots(control: Control, run: &Run) -> [Plot; 2] {
    let plot = |title: &str, y: &str, log: bool, lines: &[Column<'_>]| Plot {
        title: format!("{title}, {}", control.name),
        y: y.into(),
        log,
        lines: lines.iter().map(|(name, of)| ((*name).to_owned(), series(&run.rows, of))).collect::<Lines>(),
        marks: vec![begin()],
        ..Plot::default()
    };
    [
        plot("buffers", "bytes", true, &[("RLC", |r| r.rlc_bytes as f64), ("pipeline", |r| r.pipeline_bytes as f64)]),
        plot("resource blocks used", "%", false, &[("used", |r| 100.0 * r.prb_used)]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_split_where_the_high_schemes_begin() {
        // 14 steps of 5 s after 5 s: the ninth begins at 45 s.
        let run = Run { trips: Vec::new(), flow: Vec::new(), rows: Vec::new(), window: [6.0, 74.5] };
        let [[from, split], [again, to]] = parts(&run);
        assert!((split - 45.0).abs() < 1e-9 && (again - 45.0).abs() < 1e-9, "{split}");
        assert_eq!([from, to], [6.0, 74.5]);
    }
}
