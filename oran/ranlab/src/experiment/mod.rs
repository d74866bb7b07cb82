//! The experiments of the TC-RAN paper, each one function, on real TCP with unmodified programs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::host::{HostError, impossible, process};

mod bench;
pub mod echo;
mod fig1;
mod fig10;
mod fig13;
mod fig4;
mod fig6;
mod fig7;
mod fig9;
pub mod footprint;
pub mod game;
mod guarded;
pub mod numbers;
pub mod probe;
mod runtime;
mod scalable;
mod schemes;
mod table2;
mod table3;

/// How an experiment is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Repetitions; each experiment's own number if not given.
    pub repetitions: Option<u32>,
    /// Short phases instead of the paper's.
    pub quick: bool,
    /// The lab's configuration.
    pub config: Config,
}

impl Settings {
    fn times(&self) -> u32 {
        self.repetitions.unwrap_or(1)
    }
}

/// Runs that several experiments look at: made for the first of them and kept for the others, if their settings are the same.
#[derive(Debug, Default)]
pub struct Runs {
    game: Option<(Settings, Rc<guarded::Both>)>,
    schemes: Option<(Settings, Rc<schemes::All>)>,
}

/// What is kept if it is of these settings, else what is made now.
fn kept<T>(
    place: &mut Option<(Settings, Rc<T>)>,
    settings: &Settings,
    make: impl FnOnce() -> Result<T, HostError>,
) -> Result<Rc<T>, HostError> {
    if let Some((of, there)) = place
        && of == settings
    {
        return Ok(Rc::clone(there));
    }
    let made = Rc::new(make()?);
    *place = Some((settings.clone(), Rc::clone(&made)));
    Ok(made)
}

/// One figure of an experiment beside what it should be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Its name.
    pub name: String,
    /// The median of the repetitions.
    pub value: f64,
    /// The smallest and the largest of the repetitions.
    pub range: [f64; 2],
    /// Its unit.
    pub unit: String,
    /// What it must be, if it must be anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar: Option<String>,
    /// Whether the median is that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
    /// What the paper has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper: Option<String>,
    /// The mean round trip without load in the runs that it is from, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_load_rtt_ms: Option<f64>,
}

/// A line of a plot: its name, and what it shows of a row of the trace.
type Column<'a> = (&'a str, fn(&crate::host::view::Row) -> f64);

/// Lines in a plot, by their labels: points of x and y.
pub type Lines = BTreeMap<String, Vec<[f64; 2]>>;

/// One plot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// Its title.
    pub title: String,
    /// What is on the x axis; the time in seconds if nothing is said.
    #[serde(default)]
    pub x: String,
    /// What is on the y axis.
    pub y: String,
    /// Whether the y axis is logarithmic.
    pub log: bool,
    /// Whether the points are unconnected.
    #[serde(default)]
    pub points: bool,
    /// The lines.
    pub lines: Lines,
    /// Instants to mark.
    pub marks: Vec<f64>,
}

/// What an experiment found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its name.
    pub experiment: String,
    /// What it shows.
    pub title: String,
    /// How it was run.
    pub settings: BTreeMap<String, serde_json::Value>,
    /// Its figures.
    pub figures: Vec<Figure>,
    /// Plots of the last repetition.
    pub plots: Vec<Plot>,
    /// The round trip without load of the figures that are added next.
    #[serde(skip)]
    no_load: Option<f64>,
}

/// An experiment.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Its name, by the paper's figure.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Repetitions with short phases, and with the paper's.
    pub repetitions: [u32; 2],
    run: fn(&Settings, &mut Runs) -> Result<Report, HostError>,
}

/// Repetitions unless told otherwise.
const FEW: [u32; 2] = [1, 5];

/// All of them. Those that look at the same runs are neighbours.
pub const EXPERIMENTS: [Experiment; 12] = [
    Experiment {
        name: "fig1",
        title: "Both directions loaded at once (RRUL), without and with a pipeline in the downlink",
        repetitions: FEW,
        run: |settings, _| fig1::run(settings),
    },
    Experiment {
        name: "fig4",
        title: "Delay by sublayer, and control and indication latency between an xApp and the lab",
        repetitions: FEW,
        run: |settings, _| fig4::run(settings),
    },
    Experiment {
        name: "table2",
        title: "CPU and memory that the pipeline adds, without load and with four greedy flows",
        // The paper's is a mean of ten.
        repetitions: [2, 10],
        run: |settings, _| table2::run(settings),
    },
    Experiment {
        name: "fig7",
        title: "CoDel and 5G-BDP: ping in the queue of four greedy flows, before and after",
        repetitions: FEW,
        run: |settings, _| fig7::run(settings),
    },
    Experiment {
        name: "fig6a",
        title: "Slicing: flow 1 against flows 2 to 4, half each",
        repetitions: FEW,
        run: |settings, _| fig6::halves(settings),
    },
    Experiment {
        name: "fig6b",
        title: "Slicing: flows 1 to 3 held to 15 Mbit/s",
        repetitions: FEW,
        run: |settings, _| fig6::shaped(settings),
    },
    Experiment {
        name: "fig9",
        title: "A game beside a greedy flow, without and with the xApp that reacts",
        repetitions: FEW,
        run: fig9::run,
    },
    Experiment {
        name: "fig10",
        title: "The same as the RAN sees it: RLC buffer, sojourn, unused resource blocks, drops",
        repetitions: FEW,
        run: fig10::run,
    },
    Experiment {
        name: "table3",
        title: "One greedy flow while the scheme changes, under several controls",
        repetitions: FEW,
        run: table3::run,
    },
    Experiment {
        name: "fig13",
        title: "The same as the RAN sees it: cubic and BBR without a pipeline",
        repetitions: FEW,
        run: |settings, runs| fig13::run(settings, runs, &fig13::CONGESTION),
    },
    Experiment {
        name: "fig14",
        title: "The same as the RAN sees it: a scalable control that is marked, and FQ-CoDel",
        repetitions: FEW,
        run: |settings, runs| fig13::run(settings, runs, &fig13::PIPELINES),
    },
    Experiment {
        name: "fig15",
        title: "The same in one picture: delay against resource blocks used, and round trips",
        repetitions: FEW,
        run: table3::delay_against_use,
    },
];

/// Why no experiment can be run here, if so.
#[must_use]
pub fn missing() -> Option<String> {
    impossible().or_else(|| {
        let absent: Vec<&str> = ["iperf3", "ping"].into_iter().filter(|p| process::find(p).is_none()).collect();
        (!absent.is_empty()).then(|| format!("not installed: {} (packages iperf3, iputils-ping)", absent.join(", ")))
    })
}

/// Takes back what this process changed of the machine for its experiments, namespaces aside, for one that is about to end
/// without unwinding.
pub fn abandon() {
    scalable::abandon();
}

impl Experiment {
    /// Runs it and writes its figures to `name.json` in a folder, which is made if need be.
    ///
    /// # Errors
    /// What kept it from running, or the file from being written.
    pub fn run(&self, settings: &Settings, runs: &mut Runs, folder: &Path) -> Result<(Report, PathBuf), HostError> {
        if let Some(why) = missing() {
            return Err(HostError::new(self.name, why));
        }
        let own = self.repetitions[usize::from(!settings.quick)];
        let settings = &Settings { repetitions: settings.repetitions.or(Some(own)), ..settings.clone() };
        let mut report = (self.run)(settings, runs)?;
        self.name.clone_into(&mut report.experiment);
        self.title.clone_into(&mut report.title);
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let lab = serde_json::to_value(&settings.config).map_err(|e| HostError::new("configuration", e))?;
        for (key, value) in [
            ("lab", lab),
            ("quick", settings.quick.into()),
            ("repetitions", settings.times().into()),
            ("kernel", kernel.trim().into()),
            ("cpus", std::thread::available_parallelism().map_or(0, usize::from).into()),
        ] {
            report.settings.insert(key.into(), value);
        }
        let path = folder.join(format!("{}.json", self.name));
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(folder)?;
            std::fs::write(&path, serde_json::to_string_pretty(&report)? + "\n")
        };
        write().map_err(|e| HostError::new(path.display(), e))?;
        Ok((report, path))
    }
}

impl Report {
    /// A report without figures yet.
    fn new() -> Self {
        Self {
            experiment: String::new(),
            title: String::new(),
            settings: BTreeMap::new(),
            figures: Vec::new(),
            plots: Vec::new(),
            no_load: None,
        }
    }

    /// A report of runs in which four cubic flows begin, the pipeline is changed, and all ends, at these seconds.
    fn of_a_change(times: [f64; 3], change: &str) -> Self {
        let mut report = Self::new();
        report.set("flows_at_s", times[0]);
        report.set("change_at_s", times[1]);
        report.set("end_s", times[2]);
        report.set("flows", 4);
        report.set("congestion_control", "cubic");
        report.set("change", change);
        report
    }

    fn set(&mut self, key: &str, value: impl Into<serde_json::Value>) {
        self.settings.insert(key.into(), value.into());
    }

    /// Adds the round trips without load of some runs; the figures that follow are from these runs.
    fn no_load(&mut self, name: &str, values: &[f64]) -> &mut Figure {
        self.no_load = Some(numbers::median(values)).filter(|v| !v.is_nan());
        self.figure(name, "ms", values)
    }

    /// Adds how late the lab was, at worst in each interval: what the machine, not the experiment, is to blame for.
    fn lateness(&mut self, runs: &[Vec<f64>]) {
        let part = |part: f64| runs.iter().map(|r| numbers::quantile(&numbers::sorted(r), part)).collect::<Vec<_>>();
        self.figure("lab late, at worst in 100 ms, median", "ms", &part(0.5));
        self.figure("lab late, at worst in 100 ms, 99 %", "ms", &part(0.99));
        self.figure("lab late, at worst", "ms", &part(1.0));
    }

    /// Adds a figure from its values in the repetitions.
    fn figure(&mut self, name: &str, unit: &str, values: &[f64]) -> &mut Figure {
        let sorted = numbers::sorted(values);
        let range = [sorted.first(), sorted.last()].map(|v| v.copied().unwrap_or(f64::NAN));
        let value = numbers::quantile(&sorted, 0.5);
        self.figures.push(Figure {
            name: name.into(),
            value,
            range,
            unit: unit.into(),
            bar: None,
            met: None,
            paper: None,
            no_load_rtt_ms: self.no_load,
        });
        let last = self.figures.len() - 1;
        &mut self.figures[last]
    }
}

impl Figure {
    fn bar(&mut self, text: impl Into<String>, met: impl Fn(f64) -> bool) -> &mut Self {
        self.bar = Some(text.into());
        self.met = Some(met(self.value));
        self
    }

    fn paper(&mut self, text: &str) -> &mut Self {
        self.paper = Some(text.to_owned()).filter(|text| !text.is_empty());
        self
    }
}

/// The figures as a table.
impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}: {}", self.experiment, self.title)?;
        for figure in &self.figures {
            let mark = match figure.met {
                Some(true) => "met",
                Some(false) => "NOT MET",
                None => "",
            };
            let [low, high] = figure.range;
            writeln!(
                f,
                "  {:<46} {:>9.2} {:<7} [{low:.2} .. {high:.2}]  {} {mark}{}",
                figure.name,
                figure.value,
                figure.unit,
                figure.bar.as_deref().unwrap_or(""),
                figure.paper.as_ref().map(|p| format!("  (paper: {p})")).unwrap_or_default(),
            )?;
        }
        Ok(())
    }
}
