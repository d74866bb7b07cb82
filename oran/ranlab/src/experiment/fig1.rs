//! Fig. 1: the RRUL test (real-time response under load): four flows down and four up, each with a mark of its own, and
//! beside them a ping and UDP probes with three of the marks. First only the probes. The paper's shows stacks without a
//! pipeline; here also what one in the downlink is worth while the uplink, which has none, is as full as before.

use std::time::Duration;

use super::bench::{Bench, Flow, series, total};
use super::echo::Echoed;
use super::numbers::{Point, mean, quantile, sorted, within};
use super::runtime::own_program;
use super::{Lines, Plot, Report, Settings};
use crate::config::Config;
use crate::host::HostError;
use crate::host::namespaces::SERVER;
use crate::host::view::Row;

/// The marks of the flows: names and types of service. The probes have the first, the second and the last, as in flent's.
const MARKS: [(&str, u8); 4] = [("BE", 0x00), ("BK", 0x20), ("CS5", 0xa0), ("EF", 0xb8)];
const PROBES: [usize; 3] = [0, 1, 3];
/// The first UDP port of the probes.
const FIRST_PORT: u16 = 7_800;
const EVERY_MS: u64 = 50;
/// How long the flows take to fill what there is to fill.
const START: f64 = 3.0;

/// What is run: a name, the congestion control at both ends, the downlink's pipeline, and the paper's delay.
const CELLS: [(&str, &str, Option<&str>, &str); 4] = [
    ("BBRv1", "bbr", None, "hundreds of ms"),
    ("BBRv1, FQ-CoDel + 5G-BDP down", "bbr", Some("fq-codel"), ""),
    ("cubic", "cubic", None, ""),
    ("cubic, FQ-CoDel + 5G-BDP down", "cubic", Some("fq-codel"), ""),
];

struct Run {
    trips: Vec<Point>,
    /// In the order of [`PROBES`].
    probes: Vec<Echoed>,
    down: Vec<Vec<Point>>,
    up: Vec<Vec<Point>>,
    rows: Vec<Row>,
    /// When all flows are past their start, and when they end.
    window: [f64; 2],
    begin: f64,
}

impl Run {
    fn no_load(&self) -> f64 {
        mean(&within(&self.trips, 0.0, self.begin))
    }

    fn of(&self, points: &[Point]) -> Vec<f64> {
        sorted(&within(points, self.window[0], self.window[1]))
    }

    fn goodput(&self, flows: &[Vec<Point>]) -> f64 {
        mean(&self.of(&total(flows)))
    }

    /// The smallest flow's part of the largest's, in percent.
    fn evenness(&self, flows: &[Vec<Point>]) -> f64 {
        let each = sorted(&flows.iter().map(|flow| mean(&self.of(flow))).collect::<Vec<_>>());
        100.0 * quantile(&each, 0.0) / quantile(&each, 1.0)
    }
}

pub(super) fn run(settings: &Settings) -> Result<Report, HostError> {
    let times = if settings.quick { [5.0, 17.0] } else { [5.0, 60.0] };
    let mut report = Report::new();
    report.set("flows_at_s", times[0]);
    report.set("end_s", times[1]);
    report.set("measured_from_s", times[0] + START);
    report.set("flows", "four down and four up, TCP, marked BE, BK, CS5 and EF");
    report.set("probes", format!("ping, and UDP datagrams of 64 bytes marked BE, BK and EF, each every {EVERY_MS} ms"));
    report.set("marks", "all flows take the default bearer, as in the paper; FQ-CoDel does not look at marks either");
    let available = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    let mut late = Vec::new();
    for (name, congestion, preset, paper) in CELLS {
        if !available.split_whitespace().any(|one| one == congestion) {
            report.set(&format!("left out: {name}"), format!("this kernel does not have {congestion}"));
            continue;
        }
        let config = configure(&settings.config, congestion, preset);
        let runs = (0..settings.times()).map(|_| once(&config, congestion, times)).collect::<Result<Vec<_>, _>>()?;
        figures(&mut report, name, &runs, paper);
        late.extend(runs.iter().map(|run| run.rows.iter().map(|r| r.late_ms).collect()));
        if let Some(last) = runs.last() {
            report.plots.extend(plots(name, last));
        }
    }
    report.lateness(&late);
    Ok(report)
}

fn configure(base: &Config, congestion: &str, preset: Option<&str>) -> Config {
    let mut config = base.clone();
    config.host.congestion_control = congestion.into();
    if let Some(bearer) = config.ues.first_mut().and_then(|ue| ue.bearers.first_mut()) {
        (bearer.preset, bearer.pipeline) = (preset.map(Into::into), None);
    }
    config
}

fn figures(report: &mut Report, cell: &str, runs: &[Run], paper: &str) {
    let name = |what: &str| format!("{cell}: {what}");
    let of = |of: &dyn Fn(&Run) -> f64| runs.iter().map(of).collect::<Vec<_>>();
    report.no_load(&name("no-load RTT, mean"), &of(&Run::no_load)).paper("about 10 ms");
    report.figure(&name("ping under load, mean"), "ms", &of(&|r| mean(&r.of(&r.trips)))).paper(paper);
    report.figure(&name("ping under load, 99 %"), "ms", &of(&|r| quantile(&r.of(&r.trips), 0.99)));
    for (n, mark) in PROBES.into_iter().enumerate() {
        let what = format!("UDP marked {}, mean", MARKS[mark].0);
        report.figure(&name(&what), "ms", &of(&|r| mean(&r.of(&r.probes[n].trips)))).paper(paper);
    }
    let lost = of(&|r| mean(&r.probes.iter().map(Echoed::lost).collect::<Vec<_>>()));
    report.figure(&name("UDP probes lost"), "%", &lost);
    report.figure(&name("goodput down, four flows"), "Mbit/s", &of(&|r| r.goodput(&r.down)));
    report.figure(&name("goodput up, four flows"), "Mbit/s", &of(&|r| r.goodput(&r.up)));
    report.figure(&name("smallest flow of the largest, down"), "%", &of(&|r| r.evenness(&r.down)));
    report.figure(&name("smallest flow of the largest, up"), "%", &of(&|r| r.evenness(&r.up)));
    let buffer = |of: fn(&Row) -> f64| move |r: &Run| mean(&r.of(&series(&r.rows, of)));
    report.figure(&name("RLC buffer down, mean"), "kB", &of(&buffer(|r| r.rlc_bytes as f64 / 1e3)));
    report.figure(&name("RLC buffer up, mean"), "kB", &of(&buffer(|r| r.uplink_rlc_bytes as f64 / 1e3)));
}

fn once(config: &Config, congestion: &str, [begin, end]: [f64; 2]) -> Result<Run, HostError> {
    let marks = u16::try_from(MARKS.len()).unwrap_or(u16::MAX);
    let bench = Bench::new(config, 2 * marks)?;
    let own = own_program()?;
    let (seconds, every) = ((end.ceil() as u64).to_string(), EVERY_MS.to_string());
    let longer = (end.ceil() as u64 + 5).to_string();
    let mut servers = Vec::new();
    let mut probes = Vec::new();
    for (port, mark) in (FIRST_PORT..).zip(PROBES) {
        let (port, tos) = (port.to_string(), MARKS[mark].1.to_string());
        servers.push(bench.in_server(&[&own, "echo-server", "--port", &port, "--tos", &tos, "--seconds", &longer])?);
        let line = [&own, "echo", SERVER, "--port", &port, "--tos", &tos, "--every", &every, "--seconds", &seconds];
        probes.push((bench.now(), bench.in_ue(&line)?));
    }
    let ping = bench.ping(EVERY_MS as f64 / 1e3, end)?;
    bench.until(begin);
    let flows = |up: bool| {
        let flow = |(n, (_, tos)): (u16, (&str, u8))| {
            let server = if up { n + marks } else { n };
            bench.flow(Flow { server, seconds: end - begin, congestion, up, tos })
        };
        (0..marks).zip(MARKS).map(flow).collect::<Result<Vec<_>, _>>()
    };
    let (down, up) = (flows(false)?, flows(true)?);
    let down = down.into_iter().map(super::bench::Greedy::finish).collect::<Result<Vec<_>, _>>()?;
    let up = up.into_iter().map(super::bench::Greedy::finish).collect::<Result<Vec<_>, _>>()?;
    let trips = ping.finish(30.0)?;
    let echoed = |(started, program): (f64, crate::host::process::Running)| {
        let text = program.finish(Duration::from_secs(30))?;
        let mut echoed: Echoed = serde_json::from_str(&text).map_err(|e| HostError::new("echo", e))?;
        // The client's clock began a few milliseconds after the program was started.
        echoed.trips.iter_mut().for_each(|point| point[0] += started);
        Ok::<_, HostError>(echoed)
    };
    let probes = probes.into_iter().map(echoed).collect::<Result<Vec<_>, _>>()?;
    drop(servers);
    Ok(Run { trips, probes, down, up, rows: bench.end(), window: [begin + START, end - 1.0], begin })
}

fn plots(cell: &str, run: &Run) -> [Plot; 2] {
    let flows = Lines::from([("down".to_owned(), total(&run.down)), ("up".to_owned(), total(&run.up))]);
    let mut delays: Lines =
        PROBES.iter().zip(&run.probes).map(|(&mark, e)| (format!("UDP {}", MARKS[mark].0), e.trips.clone())).collect();
    delays.insert("ping".into(), run.trips.clone());
    let plot = |title: &str, y: &str, lines| Plot {
        title: format!("1: {title}, {cell}"),
        y: y.into(),
        log: y == "ms",
        lines,
        marks: vec![run.begin],
        ..Plot::default()
    };
    [plot("goodput", "Mbit/s", flows), plot("round trips", "ms", delays)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodput_is_all_flows_and_evenness_the_extremes_within_the_window() {
        let flow = |mbps: f64| vec![[1.0, 99.0], [2.0, mbps], [3.0, mbps], [4.0, 99.0]];
        let run = Run {
            trips: vec![[0.5, 10.0], [2.5, 30.0]],
            probes: Vec::new(),
            down: vec![flow(2.0), flow(8.0), flow(4.0)],
            up: Vec::new(),
            rows: Vec::new(),
            window: [2.0, 4.0],
            begin: 1.0,
        };
        assert_eq!(run.goodput(&run.down), 14.0);
        assert_eq!(run.evenness(&run.down), 25.0);
        assert_eq!(run.no_load(), 10.0);
        assert_eq!(run.of(&run.trips), [30.0]);
    }
}
