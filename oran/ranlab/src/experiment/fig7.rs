//! Fig. 7: four greedy flows and a ping in one queue. First everything waits in the RLC's buffer; then the queue becomes a
//! CoDel and the pacer 5G-BDP.

use super::bench::{Bench, series, total};
use super::numbers::{Point, mean, quantile, sorted, within};
use super::{Lines, Plot, Report, Settings};
use crate::config::Config;
use crate::host::HostError;

/// What the xApp asks for: a CoDel with its default target and interval, and the pacer. Its horizon is what the longest gap
/// between two downlink slots of the default pattern takes, 2 ms.
const CHANGE: &str = r#"[{"op":"modify-queue","id":0,"kind":{"type":"codel"}},
    {"op":"set-pacer","pacer":{"type":"5g-bdp","horizon":"2ms"}}]"#;

/// How long after the change its effect is measured from: CoDel drops one packet at a time, and what had gathered in the
/// buffer before must be talked out of the senders first.
const SETTLE: f64 = 10.0;

struct Run {
    no_load: f64,
    settled_after: f64,
    vanilla: f64,
    vanilla_rlc: f64,
    after: f64,
    after_p99: f64,
    after_rlc: f64,
    before_mbps: f64,
    after_mbps: f64,
    late: Vec<f64>,
    plots: Vec<Plot>,
}

pub(super) fn run(settings: &Settings) -> Result<Report, HostError> {
    // The flows begin, the xApp acts, all ends.
    // The xApp acts when the buffer holds about what the paper's does, 1.5 to 2 MB.
    let times = if settings.quick { [4.0, 12.0, 34.0] } else { [5.0, 13.0, 63.0] };
    let mut runs = Vec::new();
    for _ in 0..settings.times() {
        runs.push(once(&settings.config, times)?);
    }
    let all = |of: fn(&Run) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
    let mut report = Report::of_a_change(times, CHANGE);
    report.set("measured_from_s_after_change", SETTLE);
    report.no_load("no-load RTT, mean", &all(|r| r.no_load)).paper("about 10 ms");
    report
        .figure("vanilla RTT, mean of the last 2 s", "ms", &all(|r| r.vanilla))
        .bar("> 250 ms", |v| v > 250.0)
        .paper("> 300 ms");
    report.figure("vanilla RLC buffer, mean of the last 2 s", "MB", &all(|r| r.vanilla_rlc)).paper("> 1.5 MB");
    report.figure("RTT with CoDel and 5G-BDP, mean", "ms", &all(|r| r.after)).paper("about 20 ms");
    report.figure("the same above no load", "ms", &all(|r| r.after - r.no_load)).bar("<= 11 ms", |v| v <= 11.0);
    report.figure("from the change until the RTT stays below 50 ms", "s", &all(|r| r.settled_after));
    report.figure("RTT with CoDel and 5G-BDP, 99 %", "ms", &all(|r| r.after_p99));
    report.figure("RLC buffer with CoDel and 5G-BDP, mean", "kB", &all(|r| r.after_rlc));
    report.figure("vanilla goodput of all flows", "Mbit/s", &all(|r| r.before_mbps)).paper("about 40 Mbit/s");
    report.figure("goodput with CoDel and 5G-BDP", "Mbit/s", &all(|r| r.after_mbps));
    report
        .figure("goodput given up", "%", &all(|r| 100.0 * (1.0 - r.after_mbps / r.before_mbps)))
        .bar("<= 2 %", |v| v <= 2.0)
        .paper("none");
    report.lateness(&runs.iter().map(|r| r.late.clone()).collect::<Vec<_>>());
    report.plots = runs.pop().map(|r| r.plots).unwrap_or_default();
    Ok(report)
}

fn once(config: &Config, [begin, act, end]: [f64; 3]) -> Result<Run, HostError> {
    let bench = Bench::new(config, 4)?;
    let ping = bench.ping(0.1, end)?;
    bench.until(begin);
    let flows = (0..4).map(|n| bench.greedy(n, end - begin, "cubic")).collect::<Result<Vec<_>, _>>()?;
    bench.until(act);
    let acted = bench.change(CHANGE)?;
    let flows: Vec<Vec<Point>> = flows.into_iter().map(super::bench::Greedy::finish).collect::<Result<_, _>>()?;
    let pings = ping.finish(30.0)?;
    let rows = bench.end();
    let all = total(&flows);
    let rlc = series(&rows, |r| r.rlc_bytes as f64);
    // From when the senders have adapted to before the first flow ends.
    let settled = within(&pings, acted + SETTLE, end - 1.0);
    let no_load = mean(&within(&pings, 0.0, begin));
    // The last second whose median is above what anyone would call a full buffer.
    let high = |second: &u32| {
        let from = acted + f64::from(*second);
        quantile(&sorted(&within(&pings, from, from + 1.0)), 0.5) > 50.0
    };
    let settled_after = (0..(end - acted) as u32).filter(high).max().map_or(0.0, |second| f64::from(second) + 1.0);
    let mut throughput: Lines = flows.iter().enumerate().map(|(n, f)| (format!("flow {}", n + 1), f.clone())).collect();
    throughput.insert("all".into(), all.clone());
    let one = |name: &str, line: Vec<Point>| Lines::from([(name.to_owned(), line)]);
    let plot = |title: &str, y: &str, lines| Plot {
        title: title.into(),
        y: y.into(),
        lines,
        marks: vec![acted],
        ..Plot::default()
    };
    let sojourn = Lines::from([
        ("RLC".to_owned(), series(&rows, |r| r.rlc_ms)),
        ("pipeline".to_owned(), series(&rows, |r| r.pipeline_ms)),
    ]);
    Ok(Run {
        no_load,
        settled_after,
        vanilla: mean(&within(&pings, acted - 2.0, acted)),
        vanilla_rlc: mean(&within(&rlc, acted - 2.0, acted)) / 1e6,
        after: mean(&settled),
        after_p99: quantile(&sorted(&settled), 0.99),
        after_rlc: mean(&within(&rlc, acted + SETTLE, end - 1.0)) / 1e3,
        before_mbps: mean(&within(&all, begin + 2.0, acted)),
        after_mbps: mean(&within(&all, acted + SETTLE, end - 1.0)),
        late: rows.iter().map(|r| r.late_ms).collect(),
        plots: vec![
            plot("7a: throughput", "Mbit/s", throughput),
            Plot { log: true, ..plot("7b: round trip of the ping", "ms", one("ping", pings)) },
            Plot { log: true, ..plot("7c: sojourn times", "ms", sojourn) },
            Plot { log: true, ..plot("7d: RLC buffer", "bytes", one("RLC", rlc)) },
        ],
    })
}
