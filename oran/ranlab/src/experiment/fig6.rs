//! Fig. 6: slices of flows by filters, round robin and a shaper.

use super::bench::{Bench, Greedy, series};
use super::numbers::{Point, mean, within};
use super::{Lines, Plot, Report, Settings};
use crate::config::Config;
use crate::host::HostError;

/// Flow 1 stays in the default queue, flows 2 to 4 get another; round robin, paced. The queues hold as many packets as the RLC did before:
/// what slices alone show is shares, and a greedy flow that loses a window full of packets delivers nothing for seconds, whatever its
/// share.
const HALVES: &str = r#"[{"op":"set-limit","limit":{"packets":65536}},
    {"op":"modify-queue","id":0,"kind":{"type":"fifo","limit":{"packets":65536}}},
    {"op":"add-queue","queue":{"id":1,"kind":{"type":"fifo","limit":{"packets":65536}}}},
    {"op":"add-filter","filter":{"id":1,"match":{"proto":"6","src_port":"5202-5204"},"to":{"type":"queue","queue":1}}},
    {"op":"set-scheduler","scheduler":{"type":"round-robin"}},
    {"op":"set-pacer","pacer":{"type":"5g-bdp"}}]"#;

/// Flows 1 to 3 get a queue with a shaper; queues as long as above.
const SHAPED: &str = r#"[{"op":"set-limit","limit":{"packets":65536}},
    {"op":"modify-queue","id":0,"kind":{"type":"fifo","limit":{"packets":65536}}},
    {"op":"add-queue","queue":{"id":1,"kind":{"type":"fifo","limit":{"packets":65536}},
        "shaper":{"type":"token-bucket","rate":"15mbit","burst":"16k"}}},
    {"op":"add-filter","filter":{"id":1,"match":{"proto":"6","src_port":"5201-5203"},"to":{"type":"queue","queue":1}}},
    {"op":"set-scheduler","scheduler":{"type":"round-robin"}},
    {"op":"set-pacer","pacer":{"type":"5g-bdp"}}]"#;

struct Run {
    no_load: f64,
    /// Mean goodput of each flow after the change.
    after: Vec<f64>,
    /// Bytes of IP packets that left each of the two queues after the change, in Mbit/s.
    queues: [f64; 2],
    loaded_rtt: f64,
    late: Vec<f64>,
    plots: Vec<Plot>,
}

fn runs(settings: &Settings, change: &str, title: &str) -> Result<(Report, Vec<Run>), HostError> {
    let times = if settings.quick { [3.0, 8.0, 24.0] } else { [5.0, 10.0, 40.0] };
    let runs =
        (0..settings.times()).map(|_| once(&settings.config, times, change, title)).collect::<Result<Vec<_>, _>>()?;
    let mut report = Report::of_a_change(times, change);
    let of = |f: fn(&Run) -> f64| runs.iter().map(f).collect::<Vec<_>>();
    report.no_load("no-load RTT, mean", &of(|r| r.no_load)).paper("about 10 ms");
    Ok((report, runs))
}

pub(super) fn halves(settings: &Settings) -> Result<Report, HostError> {
    let (mut report, mut runs) = runs(settings, HALVES, "6a")?;
    let of = |f: fn(&Run) -> f64| runs.iter().map(f).collect::<Vec<_>>();
    report.figure("flow 1", "Mbit/s", &of(|r| r.after[0])).paper("20 Mbit/s");
    report.figure("flows 2 to 4", "Mbit/s", &of(|r| r.after[1..].iter().sum())).paper("20 Mbit/s");
    report
        .figure("share of flow 1", "%", &of(|r| 100.0 * r.after[0] / r.after.iter().sum::<f64>()))
        .bar("50 % +- 3", |v| (v - 50.0).abs() <= 3.0)
        .paper("50 %");
    report.figure(
        "share of queue 0, by the pipeline's count",
        "%",
        &of(|r| 100.0 * r.queues[0] / (r.queues[0] + r.queues[1])),
    );
    report
        .figure("RTT of a ping beside flow 1, mean", "ms", &of(|r| r.loaded_rtt))
        .paper("not shown: slicing alone cures no delay");
    report.lateness(&runs.iter().map(|r| r.late.clone()).collect::<Vec<_>>());
    report.plots = runs.pop().map(|r| r.plots).unwrap_or_default();
    Ok(report)
}

pub(super) fn shaped(settings: &Settings) -> Result<Report, HostError> {
    let (mut report, mut runs) = runs(settings, SHAPED, "6b")?;
    let of = |f: fn(&Run) -> f64| runs.iter().map(f).collect::<Vec<_>>();
    report
        .figure("flows 1 to 3, IP packets as the shaper counts", "Mbit/s", &of(|r| r.queues[1]))
        .bar("15 Mbit/s +- 3 %", |v| (v / 15.0 - 1.0).abs() <= 0.03)
        .paper("15 Mbit/s");
    report.figure("flows 1 to 3, goodput", "Mbit/s", &of(|r| r.after[..3].iter().sum()));
    report.figure("flow 4, goodput", "Mbit/s", &of(|r| r.after[3])).paper("25 Mbit/s");
    report.figure("all flows, goodput", "Mbit/s", &of(|r| r.after.iter().sum())).paper("about 40 Mbit/s");
    report
        .figure("RTT of a ping beside flow 4, mean", "ms", &of(|r| r.loaded_rtt))
        .paper("not shown: slicing alone cures no delay");
    report.lateness(&runs.iter().map(|r| r.late.clone()).collect::<Vec<_>>());
    report.plots = runs.pop().map(|r| r.plots).unwrap_or_default();
    Ok(report)
}

/// Bytes that left queue 0 and queue 1.
fn forwarded(bench: &Bench) -> Result<(f64, [f64; 2]), HostError> {
    let (now, bearer) = bench.look()?;
    let queues = &bearer.pipeline.queues;
    let bytes = |id| queues.iter().find(|q| q.id == id).map_or(0.0, |q| q.basic.bytes as f64);
    Ok((now, [bytes(0), bytes(1)]))
}

fn once(config: &Config, [begin, act, end]: [f64; 3], change: &str, title: &str) -> Result<Run, HostError> {
    let bench = Bench::new(config, 4)?;
    let ping = bench.ping(0.1, end)?;
    bench.until(begin);
    let flows = (0..4).map(|n| bench.greedy(n, end - begin, "cubic")).collect::<Result<Vec<_>, _>>()?;
    bench.until(act);
    let acted = bench.change(change)?;
    // What the RLC holds from before must have drained.
    bench.until(acted + 3.0);
    let (from, first) = forwarded(&bench)?;
    bench.until(end - 1.0);
    let (to, second) = forwarded(&bench)?;
    let flows: Vec<Vec<Point>> = flows.into_iter().map(Greedy::finish).collect::<Result<_, _>>()?;
    let pings = ping.finish(30.0)?;
    let rows = bench.end();
    let lines: Lines = flows.iter().enumerate().map(|(n, f)| (format!("flow {}", n + 1), f.clone())).collect();
    let rlc = Lines::from([("RLC".to_owned(), series(&rows, |r| r.rlc_bytes as f64))]);
    let plot = |what: &str, y: &str, lines| Plot {
        title: format!("{title}: {what}"),
        y: y.into(),
        lines,
        marks: vec![acted],
        ..Plot::default()
    };
    Ok(Run {
        no_load: mean(&within(&pings, 0.0, begin)),
        after: flows.iter().map(|f| mean(&within(f, acted + 3.0, end - 1.0))).collect(),
        queues: [0, 1].map(|n| (second[n] - first[n]) * 8.0 / 1e6 / (to - from)),
        loaded_rtt: mean(&within(&pings, acted + 3.0, end - 1.0)),
        late: rows.iter().map(|r| r.late_ms).collect(),
        plots: vec![
            plot("throughput", "Mbit/s", lines),
            plot("round trip of a ping", "ms", Lines::from([("ping".to_owned(), pings)])),
            Plot { log: true, ..plot("RLC buffer", "bytes", rlc) },
        ],
    })
}
