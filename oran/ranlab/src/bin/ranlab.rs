//! The RAN lab's program.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use insane_ranlab::config::{Config, DEFAULT_TOML};
use insane_ranlab::core::cell::Cell;
use insane_ranlab::experiment::probe::Probe;
use insane_ranlab::experiment::{self, EXPERIMENTS, Runs, Settings, echo, footprint, game};
use insane_ranlab::host::lab::{Lab, Sample};
use insane_ranlab::host::namespaces::{SERVER, abandon, address};
use insane_ranlab::host::process::{Running, in_namespace};
use insane_ranlab::host::sys::realtime;
use insane_ranlab::host::trace::Trace;
use insane_ranlab::host::{impossible, plugins, view};

/// A 5G user plane in user space that real programs talk through. Needs root: it makes network namespaces, and removes
/// them when it ends.
#[derive(Debug, Parser)]
#[command(name = "ranlab", version)]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the shipped configuration with every key explained.
    Config,
    /// Check a configuration, and say what is wrong with it. Shared objects that it names are loaded for that.
    Check {
        /// The file.
        file: PathBuf,
    },
    /// Run a program in a UE's namespace, with a lab between it and the server's. The program finds the addresses in
    /// RANLAB_SERVER and RANLAB_UE, and the namespaces in RANLAB_NS_SERVER and RANLAB_NS_UE.
    Run(RunArguments),
    /// Run experiments of the TC-RAN paper and write their figures.
    Experiment {
        /// Which; all of them if none is named.
        names: Vec<String>,
        /// Short phases, for a look.
        #[arg(long)]
        quick: bool,
        /// How often each is repeated, instead of its own number: with --quick 1, for table2 2; else 5, for table2 10.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
        repetitions: Option<u32>,
        /// The lab's configuration instead of the defaults; its first UE has the greedy flows.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// The folder for the figures.
        #[arg(long, default_value = "out/ranlab")]
        out: PathBuf,
    },
    /// Serve the game of the experiments.
    GameServer(Ticks),
    /// Send back what the UDP probes of the experiments send.
    EchoServer(EchoArguments),
    /// Be a UDP probe of the experiments; what was seen is printed as JSON.
    Echo {
        /// The server's address.
        server: String,
        #[command(flatten)]
        echo: EchoArguments,
        /// The period in milliseconds.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000))]
        every: u64,
    },
    /// Measure what a lab, or a pipeline alone, takes of processor and memory in this process; printed as JSON.
    Footprint(FootprintArguments),
    /// Be the xApp of the experiment fig4; the latencies that it saw are printed as JSON.
    Probe(ProbeArguments),
    /// Play the game of the experiments; what was seen is printed as JSON.
    Game {
        /// The server's address.
        server: String,
        #[command(flatten)]
        ticks: Ticks,
    },
}

#[derive(Debug, clap::Args)]
struct ProbeArguments {
    /// The runtime's socket.
    #[arg(long)]
    socket: PathBuf,
    /// The prefix of the lab's channels.
    #[arg(long, default_value = "ranlab")]
    prefix: String,
    /// How it waits: adaptive, spin or sleep.
    #[arg(long, default_value = "adaptive", value_parser = ["adaptive", "spin", "sleep"])]
    wait: String,
    /// The period in microseconds.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1_000..=1_000_000))]
    period: u64,
    /// How many periods.
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    count: u32,
}

#[derive(Debug, clap::Args)]
struct EchoArguments {
    /// The UDP port.
    #[arg(long, default_value_t = 7800)]
    port: u16,
    /// The type of service of what is sent.
    #[arg(long, default_value_t = 0)]
    tos: u8,
    /// How long.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
}

#[derive(Debug, clap::Args)]
struct FootprintArguments {
    /// The lab's configuration, as JSON.
    #[arg(long, value_name = "FILE", required_unless_present = "alone")]
    lab: Option<PathBuf>,
    /// When four greedy flows begin, in seconds.
    #[arg(long, default_value_t = 4.0)]
    begin: f64,
    /// When all ends.
    #[arg(long, default_value_t = 11.0)]
    end: f64,
    /// A pipeline alone, with packets of so many flows.
    #[arg(long, value_name = "FLOWS", conflicts_with = "lab", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    alone: Option<u32>,
}

#[derive(Debug, clap::Args)]
struct Ticks {
    /// The UDP port.
    #[arg(long, default_value_t = 7777)]
    port: u16,
    /// Length of a tick in milliseconds.
    #[arg(long, default_value_t = 33, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    tick: u64,
    /// How long.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
}

#[derive(Debug, Parser)]
struct RunArguments {
    /// The configuration; `-` for the defaults.
    file: PathBuf,
    /// In which UE's namespace, by name; the first if not given.
    #[arg(long = "in", value_name = "UE")]
    ue: Option<String>,
    /// A command line to run in the server's namespace meanwhile, such as "iperf3 -s". Can be given several times.
    #[arg(long, value_name = "COMMAND")]
    serve: Vec<String>,
    /// Stop after so many seconds even if the program still runs.
    #[arg(long)]
    seconds: Option<u64>,
    /// Write a trace, one row per bearer and interval, to this Parquet file.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The trace's interval in milliseconds.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(5..=10_000))]
    every: u64,
    /// Show the live view instead of the program's output, which goes to the file of --output or nowhere.
    #[arg(long)]
    live: bool,
    /// Where the program's output goes with --live.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The program and its arguments; `{server}` and `{ue}` in them become the addresses. Without one the lab runs until
    /// Ctrl-C.
    #[arg(last = true)]
    program: Vec<String>,
}

type Failure = Box<dyn std::error::Error>;

fn read(path: &Path) -> Result<Config, Failure> {
    if path == Path::new("-") {
        return Ok(Config::default());
    }
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(Config::parse(&text).map_err(|e| format!("{}: {e}", path.display()))?)
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Verb::Config => {
            print!("{DEFAULT_TOML}");
            Ok(ExitCode::SUCCESS)
        }
        Verb::Check { file } => read(&file).and_then(|config| {
            Cell::with_plugins(&config, Some(plugins::load(&config)?))
                .map_err(|e| format!("{}: {e}", file.display()))?;
            println!("{}: all well", file.display());
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Run(arguments) => run(&arguments),
        Verb::Experiment { names, quick, repetitions, config, out } => {
            let config = config.map_or(Ok(Config::default()), |path| read(&path));
            config.and_then(|config| experiment(&names, &Settings { repetitions, quick, config }, &out))
        }
        Verb::GameServer(Ticks { port, tick, seconds }) => {
            foreground();
            game::serve(port, Duration::from_millis(tick), Duration::from_secs(seconds))
                .map(|()| ExitCode::SUCCESS)
                .map_err(Into::into)
        }
        Verb::Game { server, ticks } => play(&server, &ticks),
        Verb::EchoServer(EchoArguments { port, tos, seconds }) => {
            foreground();
            echo::serve(port, tos, Duration::from_secs(seconds)).map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
        Verb::Echo { server, echo, every } => ask(&server, &echo, Duration::from_millis(every)),
        Verb::Footprint(arguments) => measure(&arguments),
        Verb::Probe(arguments) => probe(&arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("ranlab: {error}");
        ExitCode::FAILURE
    })
}

/// What measures delays runs before what runs in the background: its own delays are not the network's.
fn foreground() {
    if let Err(error) = realtime() {
        eprintln!("ranlab: no real-time scheduling, the machine's load counts as delay: {error}");
    }
}

fn probe(arguments: &ProbeArguments) -> Result<ExitCode, Failure> {
    let wait = match arguments.wait.as_str() {
        "spin" => insane::Wait::Spin,
        "sleep" => insane::Wait::Sleep,
        _ => insane::Wait::Adaptive,
    };
    let probe = Probe {
        socket: &arguments.socket,
        prefix: &arguments.prefix,
        wait,
        period: Duration::from_micros(arguments.period),
        count: arguments.count,
    };
    println!("{}", serde_json::to_string(&probe.run()?)?);
    Ok(ExitCode::SUCCESS)
}

fn play(server: &str, ticks: &Ticks) -> Result<ExitCode, Failure> {
    foreground();
    let played = game::play(server, ticks.port, Duration::from_millis(ticks.tick), Duration::from_secs(ticks.seconds))?;
    println!("{}", serde_json::to_string(&played)?);
    Ok(ExitCode::SUCCESS)
}

fn ask(server: &str, echo: &EchoArguments, every: Duration) -> Result<ExitCode, Failure> {
    foreground();
    let echoed = echo::ask(server, echo.port, echo.tos, every, Duration::from_secs(echo.seconds))?;
    println!("{}", serde_json::to_string(&echoed)?);
    Ok(ExitCode::SUCCESS)
}

fn measure(arguments: &FootprintArguments) -> Result<ExitCode, Failure> {
    let text = match (&arguments.lab, arguments.alone) {
        (Some(file), _) => {
            end_on_signal()?;
            let config: Config = serde_json::from_str(&std::fs::read_to_string(file)?)?;
            serde_json::to_string(&footprint::lab(&config, [arguments.begin, arguments.end])?)?
        }
        (None, flows) => serde_json::to_string(&footprint::alone(&footprint::six_stages()?, flows.unwrap_or(1))?)?,
    };
    println!("{text}");
    Ok(ExitCode::SUCCESS)
}

fn experiment(names: &[String], settings: &Settings, out: &Path) -> Result<ExitCode, Failure> {
    let known = || EXPERIMENTS.iter().map(|e| e.name).collect::<Vec<_>>().join(", ");
    if let Some(other) = names.iter().find(|name| EXPERIMENTS.iter().all(|e| e.name != name.as_str())) {
        return Err(format!("there is no experiment {other}; there are {}", known()).into());
    }
    end_on_signal()?;
    let chosen = EXPERIMENTS.iter().filter(|e| names.is_empty() || names.iter().any(|name| name == e.name));
    let (mut all_met, mut runs) = (true, Runs::default());
    for one in chosen {
        let (report, path) = one.run(settings, &mut runs, out)?;
        print!("{report}");
        println!("  written to {}", path.display());
        all_met &= report.figures.iter().all(|f| f.met != Some(false));
    }
    // A bar that was not met is a finding and no failure of the program.
    println!("{}", if all_met { "all bars met" } else { "not all bars met" });
    Ok(ExitCode::SUCCESS)
}

/// Ends the program on a signal, with its namespaces. Its children end with it.
fn end_on_signal() -> Result<(), Failure> {
    let mut signals = signal_hook::iterator::Signals::new(SIGNALS)?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            eprintln!("ranlab: interrupted, nothing more is written");
            abandon();
            experiment::abandon();
            std::process::exit(130);
        }
    });
    Ok(())
}

const SIGNALS: [i32; 3] = [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP];

fn stopped() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in SIGNALS {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

fn run(arguments: &RunArguments) -> Result<ExitCode, Failure> {
    let config = read(&arguments.file)?;
    let ue = match &arguments.ue {
        Some(name) => config.ues.iter().position(|u| u.name == *name).ok_or(format!("there is no UE {name}"))?,
        None => 0,
    };
    if let Some(why) = impossible() {
        return Err(why.into());
    }
    let stop = stopped()?;
    let (samples, inbox) = sync_channel(64);
    let lab = Lab::start(&config, Some((Duration::from_millis(arguments.every), samples)))?;
    let server = lab.namespaces.server();
    let _serving: Vec<Running> =
        arguments.serve.iter().map(|line| Running::start(server, &["sh", "-c", line])).collect::<Result<_, _>>()?;
    let mut child = start(arguments, &lab, ue)?;
    let mut watch = Watch::new(arguments)?;
    let until = arguments.seconds.map(|s| Instant::now() + Duration::from_secs(s));
    let code = loop {
        watch.turn(&inbox)?;
        if let Some(child) = &mut child
            && let Some(status) = child.try_wait()?
        {
            break ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1));
        }
        if stop.load(Ordering::Relaxed) || until.is_some_and(|until| Instant::now() >= until) {
            if let Some(child) = &mut child {
                // It may have ended meanwhile.
                let _ = child.kill();
                let _ = child.wait();
            }
            break ExitCode::SUCCESS;
        }
    };
    watch.end()?;
    Ok(code)
}

fn start(arguments: &RunArguments, lab: &Lab, ue: usize) -> Result<Option<std::process::Child>, Failure> {
    if arguments.program.is_empty() {
        let text = format!(
            "server {SERVER} in namespace {}\nUE {} in namespace {}; Ctrl-C to end\n",
            lab.namespaces.server(),
            address(ue),
            lab.namespaces.ue(ue)
        );
        // Nobody may be reading.
        let _ = std::io::stdout().write_all(text.as_bytes());
        return Ok(None);
    }
    let fill = |word: &String| OsString::from(word.replace("{server}", SERVER).replace("{ue}", &address(ue)));
    let line: Vec<OsString> = arguments.program.iter().map(fill).collect();
    let mut command = in_namespace(lab.namespaces.ue(ue), &line);
    command.env("RANLAB_SERVER", SERVER).env("RANLAB_UE", address(ue));
    command.env("RANLAB_NS_SERVER", lab.namespaces.server()).env("RANLAB_NS_UE", lab.namespaces.ue(ue));
    if arguments.live {
        let output = match &arguments.output {
            Some(path) => std::fs::File::create(path).map_err(|e| format!("{}: {e}", path.display()))?.into(),
            None => std::process::Stdio::null(),
        };
        command.stdout(output);
    }
    Ok(Some(command.spawn()?))
}

/// Reads the samples: the trace and the live view.
struct Watch {
    before: Option<Box<Sample>>,
    trace: Option<Trace>,
    live: bool,
    shown: Option<(Instant, Box<Sample>)>,
}

impl Watch {
    fn new(arguments: &RunArguments) -> Result<Self, Failure> {
        let trace = arguments.trace.as_deref().map(Trace::create).transpose()?;
        let live = arguments.live && std::io::stdout().is_terminal();
        if live {
            print!("\x1b[2J");
        }
        Ok(Self { before: None, trace, live, shown: None })
    }

    fn turn(&mut self, inbox: &Receiver<Box<Sample>>) -> Result<(), Failure> {
        let sample = match inbox.recv_timeout(Duration::from_millis(50)) {
            Ok(sample) => sample,
            Err(RecvTimeoutError::Timeout) => return Ok(()),
            Err(RecvTimeoutError::Disconnected) => return Err("the lab has ended".into()),
        };
        if let (Some(trace), Some(before)) = (&mut self.trace, &self.before) {
            view::rows(before, &sample).iter().try_for_each(|row| trace.push(row))?;
        }
        if self.live {
            match &self.shown {
                Some((at, _)) if at.elapsed() < Duration::from_millis(500) => {}
                Some((_, before)) => {
                    print!("{}", view::screen(&view::rows(before, &sample)));
                    std::io::stdout().flush()?;
                    self.shown = Some((Instant::now(), sample.clone()));
                }
                None => self.shown = Some((Instant::now(), sample.clone())),
            }
        }
        self.before = Some(sample);
        Ok(())
    }

    fn end(self) -> Result<(), Failure> {
        self.trace.map_or(Ok(()), |trace| trace.close().map_err(Into::into))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}
