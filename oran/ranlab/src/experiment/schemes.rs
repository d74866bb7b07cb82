//! One greedy flow while the modulation and coding scheme changes, under several controls of delay: the runs that Table III and
//! Fig. 12 to 15 are views of.

use std::rc::Rc;

use insane_traffic::spec::Duration;

use super::bench::{Bench, series};
use super::numbers::{Point, mean, median, within};
use super::scalable::{self, Loaded};
use super::{Report, Runs, Settings, kept};
use crate::config::Config;
use crate::core::channel::{McsSpec, Step};
use crate::host::HostError;
use crate::host::view::Row;

/// The schemes, low ones first and then high ones, for equal times each.
const PROFILE: [u8; 14] = [6, 7, 8, 7, 9, 8, 10, 9, 12, 14, 16, 18, 17, 18];
/// When the greedy flow begins, in seconds.
const BEGIN: f64 = 5.0;

/// What is in the downlink before the RLC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pipe {
    /// Nothing: all waits in the RLC.
    Nothing,
    /// The preset FQ-CoDel, with the pacer.
    FqCodel,
    /// One queue for all that marks what stood in it for more than 5 ms, with the pacer.
    Marks,
}

/// One way to keep delay low.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Control {
    pub(super) name: &'static str,
    congestion: &'static str,
    pipe: Pipe,
    /// Goodput, mean delay, and resource blocks used.
    pub(super) paper: [&'static str; 3],
}

impl Control {
    /// Whether the pipeline that is judged is part of it.
    pub(super) fn judged(&self) -> bool {
        self.pipe == Pipe::FqCodel
    }
}

pub(super) const CUBIC: Control =
    Control { name: "cubic", congestion: "cubic", pipe: Pipe::Nothing, paper: ["42.30 Mbit/s", "210 ms", "86 %"] };
pub(super) const BBR: Control = Control {
    name: "BBRv1",
    congestion: "bbr",
    pipe: Pipe::Nothing,
    paper: ["44.60 Mbit/s with BBRv2", "30 ms with BBRv2", "83 % with BBRv2"],
};
pub(super) const SCALABLE: Control = Control {
    name: "DCTCP-like by BPF, marks + 5G-BDP",
    congestion: scalable::NAME,
    pipe: Pipe::Marks,
    paper: ["39.58 Mbit/s with Prague", "20 ms with Prague", "78 % with Prague"],
};
pub(super) const FQ_CODEL: Control = Control {
    name: "FQ-CoDel + 5G-BDP, cubic",
    congestion: "cubic",
    pipe: Pipe::FqCodel,
    paper: ["41.72 Mbit/s", "21 ms", "82 %"],
};

const CONTROLS: [Control; 4] = [CUBIC, BBR, SCALABLE, FQ_CODEL];

/// The pacer that both pipelines get.
const PACER: &str = r#"[{"op":"set-pacer","pacer":{"type":"5g-bdp","horizon":"2ms"}}]"#;
/// The queue that marks. CoDel's own law would need a standing queue of twice the threshold to do anything.
const MARKS: &str = r#"[{"op":"modify-queue","id":0,
        "kind":{"type":"codel","target":"10ms","ecn":true,"ce_threshold":"5ms"}},
    {"op":"set-pacer","pacer":{"type":"5g-bdp","horizon":"2ms"}}]"#;

/// All runs.
#[derive(Debug)]
pub(super) struct All {
    pub(super) step: f64,
    /// The runs over the paper's path, and over others.
    pub(super) paths: Vec<Path>,
    /// Controls that could not be run, and why.
    pub(super) absent: Vec<(&'static str, String)>,
}

/// The runs over one path.
#[derive(Debug)]
pub(super) struct Path {
    /// What is to be said of it behind a figure's name; nothing of the paper's.
    pub(super) suffix: &'static str,
    pub(super) controls: Vec<(Control, Vec<Run>)>,
}

/// One run. Instants are seconds of the lab's clock.
#[derive(Debug)]
pub(super) struct Run {
    /// Round trips of the ping in milliseconds.
    pub(super) trips: Vec<Point>,
    /// Goodput of the flow in Mbit/s.
    pub(super) flow: Vec<Point>,
    pub(super) rows: Vec<Row>,
    /// The part of the run in which the flow is past its start.
    pub(super) window: [f64; 2],
}

impl Run {
    /// Round trips with the flow.
    pub(super) fn loaded(&self) -> Vec<f64> {
        within(&self.trips, self.window[0], self.window[1])
    }

    /// The mean round trip before the flow.
    pub(super) fn no_load(&self) -> f64 {
        mean(&within(&self.trips, 0.0, BEGIN))
    }

    pub(super) fn goodput(&self) -> f64 {
        mean(&within(&self.flow, self.window[0], self.window[1]))
    }

    /// A quantity of the rows with the flow.
    pub(super) fn of(&self, of: fn(&Row) -> f64) -> Vec<f64> {
        within(&series(&self.rows, of), self.window[0], self.window[1])
    }

    /// Resource blocks used, in percent.
    pub(super) fn used(&self) -> f64 {
        100.0 * mean(&self.of(|r| r.prb_used))
    }
}

impl All {
    /// The runs of these settings; those that there are already, if there are.
    pub(super) fn of(settings: &Settings, runs: &mut Runs) -> Result<Rc<Self>, HostError> {
        kept(&mut runs.schemes, settings, || Self::make(settings))
    }

    fn make(settings: &Settings) -> Result<Self, HostError> {
        let step = if settings.quick { 2.0 } else { 5.0 };
        let (loaded, why) = match Loaded::load() {
            Ok(loaded) => (Some(loaded), String::new()),
            Err(why) => (None, why.to_string()),
        };
        let available = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        let available = available.unwrap_or_default();
        let mut all = Self { step, paths: Vec::new(), absent: Vec::new() };
        let mut present = Vec::new();
        for control in CONTROLS {
            if available.split_whitespace().any(|name| name == control.congestion) {
                present.push(control);
            } else if control == SCALABLE {
                all.absent.push((control.name, why.clone()));
            } else {
                all.absent.push((control.name, "this kernel does not have it".into()));
            }
        }
        // The paper's path first; a longer one is only reported.
        let paths: &[(u64, &str)] = if settings.quick { &[(0, "")] } else { &[(0, ""), (15, ", 30 ms of path added")] };
        for &(delay, suffix) in paths {
            let mut controls = Vec::new();
            for &control in &present {
                let config = configure(&settings.config, control, delay, step);
                let runs =
                    (0..settings.times()).map(|_| once(&config, control, step)).collect::<Result<Vec<_>, _>>()?;
                controls.push((control, runs));
            }
            all.paths.push(Path { suffix, controls });
        }
        // The flows with it have ended.
        drop(loaded);
        Ok(all)
    }

    /// A report that says how these runs were made.
    pub(super) fn report(&self) -> Report {
        let mut report = Report::new();
        report.set("profile", PROFILE.to_vec());
        report.set("step_s", self.step);
        report.set("pacer", PACER);
        report.set("marks", MARKS);
        report.set(
            "RTT above no load",
            "the ping's; below 0 is possible, because acknowledgements keep the uplink granted that a lone ping must ask for",
        );
        for (name, why) in &self.absent {
            report.set(&format!("left out: {name}"), why.clone());
        }
        report
    }

    /// The runs of one control over the paper's path.
    pub(super) fn runs(&self, control: Control) -> Option<&[Run]> {
        let path = self.paths.first()?;
        path.controls.iter().find(|(c, _)| *c == control).map(|(_, runs)| runs.as_slice())
    }

    /// How late the lab was in each run.
    pub(super) fn lateness(&self) -> Vec<Vec<f64>> {
        let runs = self.paths.iter().flat_map(|p| &p.controls).flat_map(|(_, runs)| runs);
        runs.map(|run| run.rows.iter().map(|r| r.late_ms).collect()).collect()
    }
}

/// A figure of each run.
pub(super) fn each(runs: &[Run], of: impl Fn(&Run) -> f64) -> Vec<f64> {
    runs.iter().map(of).collect()
}

/// The median of a figure.
pub(super) fn middle(runs: &[Run], of: impl Fn(&Run) -> f64) -> f64 {
    median(&each(runs, of))
}

/// When the flow begins.
pub(super) const fn begin() -> f64 {
    BEGIN
}

fn configure(base: &Config, control: Control, delay: u64, step: f64) -> Config {
    let mut config = base.clone();
    let ms = |secs: f64| Duration::millis((secs * 1e3) as u64);
    // The first scheme also while nothing but the ping is there.
    let lasts = |n: usize| ms(if n == 0 { BEGIN + step } else { step });
    let steps = PROFILE.iter().enumerate().map(|(n, &index)| Step { lasts: lasts(n), index }).collect();
    config.downlink.mcs = McsSpec::Profile { steps };
    config.wan.delay = Duration::millis(delay);
    if let Some(bearer) = config.ues.first_mut().and_then(|ue| ue.bearers.first_mut()) {
        let preset = (control.pipe == Pipe::FqCodel).then(|| "fq-codel".into());
        (bearer.preset, bearer.pipeline) = (preset, None);
    }
    if control.pipe == Pipe::Marks {
        // Both ends: the receiver must tell of each mark. iperf3 names a congestion control only after it has connected, so
        // that ECN is asked for by the namespaces.
        config.host.congestion_control = control.congestion.into();
        config.host.ecn = true;
    }
    config
}

fn once(config: &Config, control: Control, step: f64) -> Result<Run, HostError> {
    let end = BEGIN + step * PROFILE.len() as f64;
    let bench = Bench::new(config, 1)?;
    match control.pipe {
        Pipe::Nothing => 0.0,
        Pipe::FqCodel => bench.change(PACER)?,
        Pipe::Marks => bench.change(MARKS)?,
    };
    let ping = bench.ping(0.1, end)?;
    bench.until(BEGIN);
    let greedy = bench.greedy(0, end - BEGIN, control.congestion)?;
    let flow = greedy.finish()?;
    let trips = ping.finish(60.0)?;
    // The first second is the flow's start.
    Ok(Run { trips, flow, rows: bench.end(), window: [BEGIN + 1.0, end - 0.5] })
}
