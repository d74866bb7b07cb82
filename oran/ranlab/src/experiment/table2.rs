//! Table II: what the pipeline adds to the lab's processor time and memory, without load and with four greedy flows; and what
//! a pipeline of 1,024 flows takes alone.

use std::time::Duration;

use super::footprint::{Alone, Footprint, Part};
use super::runtime::{beside, own_program};
use super::{Plot, Report, Settings};
use crate::config::Config;
use crate::host::HostError;

/// The pipeline that is added.
const PRESET: &str = "fq-codel";
/// Flows of the pipeline alone.
const FLOWS: u32 = 1_024;
const MB: f64 = 1e6;

pub(super) fn run(settings: &Settings) -> Result<Report, HostError> {
    // The flows begin, all ends.
    let times = if settings.quick { [4.0, 11.0] } else { [10.0, 40.0] };
    let (mut vanilla, mut piped, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..settings.times() {
        vanilla.push(lab(&with(&settings.config, None), times)?);
        piped.push(lab(&with(&settings.config, Some(PRESET)), times)?);
        alone.push(child::<Alone>(&["--alone", &FLOWS.to_string()], Duration::from_secs(120))?);
    }
    let mut report = Report::new();
    report.set("flows_at_s", times[0]);
    report.set("end_s", times[1]);
    report.set("pipeline", format!("the preset {PRESET}: 1,024 queues, and the pacer 5G-BDP"));
    report.set("cpu", "of one core, by the thread that moves packets: the user plane, not its control and no samples");
    report.set(
        "cpu for a packet",
        "system calls and wake-ups count with it, and how many there are depends on how packets come, in bursts or one by one; \
         what the pipeline itself takes is the figure of it alone",
    );
    report.set(
        "memory",
        "of the lab's process, VmRSS; with four flows and no pipeline their packets wait in the RLC's buffer",
    );
    report.set(
        "alone",
        "UDP packets of 1,500 bytes from 1,024 flows, every stage on, in a process of its own, one in and one out",
    );
    report.set(
        "paper",
        "no load: 603.877 to 623.313 MB (+3.22 %) and 4.024 to 4.028 % (+0.09 %) of the processor; four flows: +3.35 % and \
         5.436 to 5.759 % (+5.94 %). Its table has the two units the other way round, its text as here",
    );
    for (name, runs) in [("no pipeline", &vanilla), ("FQ-CoDel + 5G-BDP", &piped)] {
        let of = |of: fn(&Footprint) -> f64| runs.iter().map(of).collect::<Vec<_>>();
        report.no_load(&format!("{name}: no-load RTT, mean"), &of(|f| f.no_load_rtt_ms));
        report.figure(&format!("{name}: CPU, no load"), "%", &of(|f| f.idle.cpu()));
        report.figure(&format!("{name}: CPU, four flows"), "%", &of(|f| f.full.cpu()));
        report.figure(&format!("{name}: CPU for a packet, four flows"), "us", &of(|f| for_a_packet(&f.full)));
        let wakes = of(|f| f.full.wakes as f64 / f.full.packets as f64);
        report.figure(&format!("{name}: wake-ups for a packet, four flows"), "wakes", &wakes);
        report.figure(&format!("{name}: memory, no load"), "MB", &of(|f| f.idle.memory[0] / MB));
        report.figure(&format!("{name}: memory, four flows, mean"), "MB", &of(|f| f.full.memory[0] / MB));
        report.figure(&format!("{name}: memory, four flows, at most"), "MB", &of(|f| f.full.memory[1] / MB));
    }
    let added = |of: fn(&Footprint) -> f64| pairs(&vanilla, &piped, of, |a, b| b - a);
    let percent = |of: fn(&Footprint) -> f64| pairs(&vanilla, &piped, of, |a, b| 100.0 * (b / a - 1.0));
    report.figure("CPU added, no load", "%", &percent(|f| f.idle.cpu())).paper("0.09 %");
    report.figure("CPU added, four flows", "%", &percent(|f| f.full.cpu())).paper("5.94 %");
    report.figure("memory added, no load", "MB", &added(|f| f.idle.memory[0] / MB)).paper("19.4 MB, 3.22 %");
    report.figure("memory added, four flows", "MB", &added(|f| f.full.memory[0] / MB)).paper("20.2 MB, 3.35 %");
    let of = |of: fn(&Alone) -> f64| alone.iter().map(of).collect::<Vec<_>>();
    report.figure("1,024 flows alone: memory, empty", "MB", &of(|a| a.empty / MB));
    report
        .figure("1,024 flows alone: memory, packets and all, full", "MB", &of(|a| a.filled / MB))
        .bar("<= 20 MB", |v| v <= 20.0);
    report.figure("1,024 flows alone: packets when full", "packets", &of(|a| a.packets[0] as f64));
    report.figure("1,024 flows alone: for a packet", "ns", &of(|a| a.packet_ns)).bar("<= 200 ns", |v| v <= 200.0);
    report.plots = [
        ("CPU by repetition", "% of a core", (|part: &Part| part.cpu()) as fn(&Part) -> f64),
        ("memory by repetition", "MB", |part| part.memory[0] / MB),
    ]
    .into_iter()
    .map(|(title, y, of)| plot(title, y, [&vanilla, &piped], of))
    .collect();
    Ok(report)
}

/// Microseconds of the thread for a downlink packet, what acknowledgements took with it.
fn for_a_packet(part: &Part) -> f64 {
    part.cpu_ns as f64 / 1e3 / part.packets as f64
}

/// A figure of each pair of runs.
fn pairs(without: &[Footprint], with: &[Footprint], of: fn(&Footprint) -> f64, both: fn(f64, f64) -> f64) -> Vec<f64> {
    without.iter().zip(with).map(|(a, b)| both(of(a), of(b))).collect()
}

fn plot(title: &str, y: &str, [vanilla, piped]: [&[Footprint]; 2], of: fn(&Part) -> f64) -> Plot {
    let line = |runs: &[Footprint], part: fn(&Footprint) -> &Part| {
        runs.iter().enumerate().map(|(n, run)| [n as f64 + 1.0, of(part(run))]).collect()
    };
    let lines = [("no pipeline", vanilla), ("FQ-CoDel + 5G-BDP", piped)].into_iter().flat_map(|(name, runs)| {
        [
            (format!("{name}, no load"), line(runs, |f| &f.idle)),
            (format!("{name}, four flows"), line(runs, |f| &f.full)),
        ]
    });
    Plot {
        title: title.into(),
        x: "repetition".into(),
        y: y.into(),
        points: true,
        lines: lines.collect(),
        ..Plot::default()
    }
}

fn with(base: &Config, preset: Option<&str>) -> Config {
    let mut config = base.clone();
    if let Some(bearer) = config.ues.first_mut().and_then(|ue| ue.bearers.first_mut()) {
        (bearer.preset, bearer.pipeline) = (preset.map(Into::into), None);
    }
    config
}

fn lab(config: &Config, times: [f64; 2]) -> Result<Footprint, HostError> {
    let file = std::env::temp_dir().join(format!("ranlab-{}.json", std::process::id()));
    let text = serde_json::to_string(config).map_err(|e| HostError::new("configuration", e))?;
    std::fs::write(&file, text).map_err(|e| HostError::new(file.display(), e))?;
    let [begin, end] = times.map(|at| at.to_string());
    let line = ["--lab", &file.to_string_lossy(), "--begin", &begin, "--end", &end];
    let done = child(&line, Duration::from_secs_f64(times[1] + 60.0));
    // What is left of it is nobody's.
    let _ = std::fs::remove_file(&file);
    done
}

/// Runs this program once more to measure itself.
fn child<T: serde::de::DeserializeOwned>(line: &[&str], limit: Duration) -> Result<T, HostError> {
    let own = own_program()?;
    let text = beside(&[&[own.as_str(), "footprint"], line].concat(), &[], limit)?;
    serde_json::from_str(&text).map_err(|e| HostError::new("footprint", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_told_by_pairs() {
        let run = |cpu_ns| Footprint { idle: Part { seconds: 1.0, cpu_ns, ..Part::default() }, ..Footprint::default() };
        let (without, with) = ([run(100_000_000), run(200_000_000)], [run(110_000_000), run(200_000_000)]);
        let added = pairs(&without, &with, |f| f.idle.cpu(), |a, b| 100.0 * (b / a - 1.0));
        assert!((added[0] - 10.0).abs() < 1e-9 && added[1].abs() < 1e-9, "{added:?}");
    }

    #[test]
    fn a_packets_part_is_in_microseconds() {
        assert_eq!(for_a_packet(&Part { cpu_ns: 3_000_000, packets: 1_000, ..Part::default() }), 3.0);
    }
}
