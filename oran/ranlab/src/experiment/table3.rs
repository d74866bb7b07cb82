//! Table III and Fig. 12 to 15: one greedy flow while the modulation and coding scheme changes, under several controls.

use insane_traffic::spec::Duration;

use super::bench::{Bench, series};
use super::numbers::{Point, mean, quantile, sorted, within};
use super::{Lines, Plot, Report, Settings};
use crate::config::Config;
use crate::core::channel::{McsSpec, Step};
use crate::host::HostError;

/// The schemes, low ones first and then high ones, for equal times each.
const PROFILE: [u8; 14] = [6, 7, 8, 7, 9, 8, 10, 9, 12, 14, 16, 18, 17, 18];

/// One way to keep delay low.
#[derive(Clone, Copy)]
struct Control {
    name: &'static str,
    congestion: &'static str,
    preset: Option<&'static str>,
    paper: [&'static str; 3],
}

const CONTROLS: [Control; 3] = [
    Control { name: "cubic", congestion: "cubic", preset: None, paper: ["42.30 Mbit/s", "210 ms", "86 %"] },
    Control {
        name: "BBRv1",
        congestion: "bbr",
        preset: None,
        paper: ["44.60 Mbit/s with BBRv2", "30 ms with BBRv2", ""],
    },
    Control {
        name: "FQ-CoDel + 5G-BDP, cubic",
        congestion: "cubic",
        preset: Some("fq-codel"),
        paper: ["41.72 Mbit/s", "21 ms", "82 %"],
    },
];

/// The pacer that the preset gets.
const PACER: &str = r#"[{"op":"set-pacer","pacer":{"type":"5g-bdp","horizon":"2ms"}}]"#;

struct Run {
    no_load: f64,
    rtt: f64,
    rtt_p99: f64,
    mbps: f64,
    prbs: f64,
    rlc_max: f64,
    sojourn: f64,
    late: Vec<f64>,
    trips: Vec<Point>,
    flow: Vec<Point>,
    mcs: Vec<Point>,
}

pub(super) fn run(settings: &Settings) -> Result<Report, HostError> {
    let step = if settings.quick { 2.0 } else { 5.0 };
    let begin = 5.0;
    let mut report = Report::new();
    report.set("profile", PROFILE.to_vec());
    report.set("step_s", step);
    report.set("pacer", PACER);
    report.set(
        "RTT above no load",
        "the ping's; below 0 is possible, because acknowledgements keep the uplink granted that a lone ping must ask for",
    );
    let available = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    // The paper's path first; a longer one is only reported.
    let paths: &[(u64, &str)] = if settings.quick { &[(0, "")] } else { &[(0, ""), (15, ", 30 ms of path added")] };
    let (mut late, mut plots) = (Vec::new(), [Lines::new(), Lines::new(), Lines::new()]);
    for &(delay, suffix) in paths {
        let mut all: Vec<(Control, Vec<Run>)> = Vec::new();
        for control in CONTROLS {
            if !available.split_whitespace().any(|name| name == control.congestion) {
                report.set(&format!("left out: {}{suffix}", control.name), "this kernel does not have it");
                continue;
            }
            let config = configure(&settings.config, control, delay, begin, step);
            let runs = (0..settings.repetitions)
                .map(|_| once(&config, control, begin, step))
                .collect::<Result<Vec<_>, _>>()?;
            late.extend(runs.iter().map(|r| r.late.clone()));
            if let Some(last) = runs.last().filter(|_| delay == 0) {
                plots[0].insert(control.name.into(), last.trips.clone());
                plots[1].insert(control.name.into(), last.flow.clone());
                plots[2].insert("index".into(), last.mcs.clone());
            }
            all.push((control, runs));
        }
        figures(&mut report, &all, suffix, delay == 0);
    }
    report.lateness(&late);
    let titles = [("15: round trip of a ping", "ms"), ("15: goodput", "Mbit/s"), ("12: scheme", "index")];
    report.plots = titles
        .into_iter()
        .zip(plots)
        .map(|((title, y), lines)| Plot { title: title.into(), y: y.into(), log: y == "ms", lines, marks: vec![begin] })
        .collect();
    Ok(report)
}

fn configure(base: &Config, control: Control, delay: u64, begin: f64, step: f64) -> Config {
    let mut config = base.clone();
    let ms = |secs: f64| Duration::millis((secs * 1e3) as u64);
    // The first scheme also while nothing but the ping is there.
    let lasts = |n: usize| ms(if n == 0 { begin + step } else { step });
    let steps = PROFILE.iter().enumerate().map(|(n, &index)| Step { lasts: lasts(n), index }).collect();
    config.downlink.mcs = McsSpec::Profile { steps };
    config.wan.delay = Duration::millis(delay);
    if let Some(bearer) = config.ues.first_mut().and_then(|ue| ue.bearers.first_mut()) {
        (bearer.preset, bearer.pipeline) = (control.preset.map(Into::into), None);
    }
    config
}

fn figures(report: &mut Report, all: &[(Control, Vec<Run>)], suffix: &str, judged: bool) {
    let of = |runs: &[Run], f: fn(&Run) -> f64| runs.iter().map(f).collect::<Vec<_>>();
    let median = |runs: &[Run], f: fn(&Run) -> f64| quantile(&sorted(&of(runs, f)), 0.5);
    let best = all.iter().map(|(_, runs)| median(runs, |r| r.mbps)).fold(f64::NAN, f64::max);
    let cubic = all.iter().find(|(c, _)| c.name == "cubic").map_or(f64::NAN, |(_, runs)| median(runs, |r| r.prbs));
    for (control, runs) in all {
        let name = |what: &str| format!("{}: {what}{suffix}", control.name);
        let ours = judged && control.preset.is_some();
        let [mbps, rtt, prbs] = control.paper;
        let figure = report.figure(&name("goodput"), "Mbit/s", &of(runs, |r| r.mbps)).paper(mbps);
        if ours {
            figure.bar(format!(">= 95 % of the best, {best:.1}"), |v| v >= 0.95 * best);
        }
        report.figure(&name("no-load RTT"), "ms", &of(runs, |r| r.no_load));
        report.figure(&name("RTT, mean"), "ms", &of(runs, |r| r.rtt)).paper(rtt);
        let figure = report.figure(&name("RTT above no load, mean"), "ms", &of(runs, |r| r.rtt - r.no_load));
        if ours {
            figure.bar("<= 5 ms", |v| v <= 5.0);
        }
        report.figure(&name("time of the flow's packets in pipeline and RLC"), "ms", &of(runs, |r| r.sojourn));
        report.figure(&name("RTT, 99 %"), "ms", &of(runs, |r| r.rtt_p99));
        let figure = report.figure(&name("resource blocks used"), "%", &of(runs, |r| r.prbs)).paper(prbs);
        if ours {
            figure.bar(format!(">= cubic's less 4, {:.1}", cubic - 4.0), |v| v >= cubic - 4.0);
        }
        report.figure(&name("RLC buffer at most"), "kB", &of(runs, |r| r.rlc_max));
    }
}

fn once(config: &Config, control: Control, begin: f64, step: f64) -> Result<Run, HostError> {
    let end = begin + step * PROFILE.len() as f64;
    let bench = Bench::new(config, 1)?;
    if control.preset.is_some() {
        bench.change(PACER)?;
    }
    let ping = bench.ping(0.1, end)?;
    bench.until(begin);
    let greedy = bench.greedy(0, end - begin, control.congestion)?;
    let flow = greedy.finish()?;
    let trips = ping.finish(60.0)?;
    let rows = bench.end();
    // The first second is the flow's start.
    let (from, to) = (begin + 1.0, end - 0.5);
    let loaded = within(&trips, from, to);
    let of = |f: fn(&crate::host::view::Row) -> f64| within(&series(&rows, f), from, to);
    Ok(Run {
        no_load: mean(&within(&trips, 0.0, begin)),
        rtt: mean(&loaded),
        rtt_p99: quantile(&sorted(&loaded), 0.99),
        mbps: mean(&within(&flow, from, to)),
        prbs: 100.0 * mean(&of(|r| r.prb_used)),
        rlc_max: of(|r| r.rlc_bytes as f64).into_iter().fold(0.0, f64::max) / 1e3,
        // Of all packets of the bearer, which are the greedy flow's but for ten a second.
        sojourn: mean(&of(|r| r.pipeline_ms + r.rlc_ms)),
        late: rows.iter().map(|r| r.late_ms).collect(),
        mcs: series(&rows, |r| r.mcs.into()),
        trips,
        flow,
    })
}
