//! Table III and Fig. 15: one greedy flow while the modulation and coding scheme changes, under several controls, by numbers.

use super::bench::series;
use super::numbers::{mean, quantile, sorted};
use super::schemes::{All, CUBIC, Path, Run, begin, each, middle};
use super::{Lines, Plot, Report, Runs, Settings};
use crate::host::HostError;

pub(super) fn run(settings: &Settings, runs: &mut Runs) -> Result<Report, HostError> {
    let all = All::of(settings, runs)?;
    let mut report = all.report();
    let mut plots = [Lines::new(), Lines::new()];
    for path in &all.paths {
        figures(&mut report, path);
    }
    for (control, runs) in all.paths.first().into_iter().flat_map(|path| &path.controls) {
        if let Some(last) = runs.last() {
            plots[0].insert(control.name.into(), last.flow.clone());
            plots[1].insert("index".into(), series(&last.rows, |r| r.mcs.into()));
        }
    }
    report.lateness(&all.lateness());
    let titles = [("goodput", "Mbit/s"), ("12: scheme", "index")];
    report.plots = titles
        .into_iter()
        .zip(plots)
        .map(|((title, y), lines)| Plot {
            title: title.into(),
            y: y.into(),
            lines,
            marks: vec![begin()],
            ..Plot::default()
        })
        .collect();
    Ok(report)
}

fn rtt(run: &Run) -> f64 {
    mean(&run.loaded())
}

fn figures(report: &mut Report, path: &Path) {
    let all = &path.controls;
    let paper_path = path.suffix.is_empty();
    let best = all.iter().map(|(_, runs)| middle(runs, Run::goodput)).fold(f64::NAN, f64::max);
    let cubic = all.iter().find(|(c, _)| *c == CUBIC).map_or(f64::NAN, |(_, runs)| middle(runs, Run::used));
    for (control, runs) in all {
        let name = |what: &str| format!("{}: {what}{}", control.name, path.suffix);
        let ours = paper_path && control.judged();
        let [mbps, delay, prbs] = if paper_path { control.paper } else { [""; 3] };
        report.no_load(&name("no-load RTT"), &each(runs, Run::no_load)).paper("10 ms");
        let figure = report.figure(&name("goodput"), "Mbit/s", &each(runs, Run::goodput)).paper(mbps);
        if ours {
            figure.bar(format!(">= 95 % of the best, {best:.1}"), |v| v >= 0.95 * best);
        }
        report.figure(&name("RTT, mean"), "ms", &each(runs, rtt)).paper(delay);
        let above = each(runs, |r| rtt(r) - r.no_load());
        let figure = report.figure(&name("RTT above no load, mean"), "ms", &above);
        if ours {
            figure.bar("<= 5 ms", |v| v <= 5.0);
        }
        // Of all packets of the bearer, which are the greedy flow's but for ten a second.
        let sojourn = each(runs, |r| mean(&r.of(|r| r.pipeline_ms + r.rlc_ms)));
        report.figure(&name("time of the flow's packets in pipeline and RLC"), "ms", &sojourn);
        report.figure(&name("RTT, 99 %"), "ms", &each(runs, |r| quantile(&sorted(&r.loaded()), 0.99)));
        let figure = report.figure(&name("resource blocks used"), "%", &each(runs, Run::used)).paper(prbs);
        if ours {
            figure.bar(format!(">= cubic's less 4, {:.1}", cubic - 4.0), |v| v >= cubic - 4.0);
        }
        let most = each(runs, |r| quantile(&sorted(&r.of(|r| r.rlc_bytes as f64)), 1.0) / 1e3);
        report.figure(&name("RLC buffer at most"), "kB", &most);
    }
}

/// Fig. 15.
pub(super) fn delay_against_use(settings: &Settings, runs: &mut Runs) -> Result<Report, HostError> {
    let all = All::of(settings, runs)?;
    let mut report = all.report();
    let (mut points, mut trips) = (Lines::new(), Lines::new());
    for (control, runs) in all.paths.first().into_iter().flat_map(|path| &path.controls) {
        let name = |what: &str| format!("{}: {what}", control.name);
        report.no_load(&name("no-load RTT"), &each(runs, Run::no_load)).paper("10 ms, the best that there is");
        report.figure(&name("RTT, mean"), "ms", &each(runs, rtt)).paper(control.paper[1]);
        report.figure(&name("resource blocks used"), "%", &each(runs, Run::used)).paper(control.paper[2]);
        points.insert(control.name.into(), runs.iter().map(|r| [r.used(), rtt(r)]).collect());
        trips.insert(control.name.into(), runs.last().map(|r| r.trips.clone()).unwrap_or_default());
    }
    report.lateness(&all.lateness());
    report.plots = vec![
        Plot {
            title: "15a: mean delay against use, a point for each repetition".into(),
            x: "% of the resource blocks".into(),
            y: "ms".into(),
            log: true,
            points: true,
            lines: points,
            ..Plot::default()
        },
        Plot {
            title: "15b: round trip of a ping".into(),
            y: "ms".into(),
            log: true,
            lines: trips,
            marks: vec![begin()],
            ..Plot::default()
        },
    ];
    Ok(report)
}
