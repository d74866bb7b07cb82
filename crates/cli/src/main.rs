//! The command line of INSANE: measure, publish, listen, look.
#![forbid(unsafe_code)]

/// Prints a line. Where nobody reads any more, the command ends with that as its failure, and does not panic.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        writeln!(std::io::stdout(), $($text)*)?
    }};
}

mod beside;
mod capture;
mod common;
mod data;
mod look;
mod metrics;
mod perf;
mod ping;
mod rebind;
mod tc;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Documented: scripts may rely on it.
const EXIT_CODES: &str = "Exit codes: 0 done; 1 it failed, such as no runtime, a refusal or nobody in time; 2 called in a way \
                          that cannot be. A failure is one line on standard error, with --json one object on standard output too.";

/// Talk to the INSANE runtime of this host.
#[derive(Debug, Parser)]
#[command(name = "insane", version, after_help = EXIT_CODES, arg_required_else_help = false)]
struct Arguments {
    /// The runtime's socket; found by itself without it (INSANE_SOCKET, the user's runtime directory, the system's path).
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<std::path::PathBuf>,
    /// The domain to join.
    #[arg(long, global = true, value_name = "NAME", value_parser = common::parse_name)]
    domain: Option<String>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure the round trip to a `pong`.
    Ping(ping::Ping),
    /// Answer every `ping`, until interrupted.
    Pong(ping::Pong),
    /// Measure how much goes one way: a `source` and any number of `sink`s.
    #[command(subcommand, arg_required_else_help = false)]
    Perf(perf::Perf),
    /// Emit messages: arguments, files, or the lines of standard input.
    Pub(data::Pub),
    /// Print messages of a channel.
    Sub(data::Sub),
    /// Show sessions, streams, channels and their counts.
    Status(look::Status),
    /// Print or serve what `status` counts as metrics for Prometheus.
    Metrics(metrics::Metrics),
    /// Capture what goes through a datapath, for Wireshark.
    Capture(capture::Capture),
    /// Move streams to another datapath while they run.
    Rebind(rebind::Rebind),
    /// Check this host and look for what is odd.
    Doctor(look::Doctor),
    /// Work on configuration files of the runtime.
    #[command(subcommand, arg_required_else_help = false)]
    Config(look::ConfigCommand),
    /// Show and change the traffic pipelines of a RAN, such as the RAN lab's.
    #[command(subcommand, arg_required_else_help = false)]
    Tc(tc::Tc),
}

fn main() -> ExitCode {
    let arguments: Arguments = match insane_arguments::parse() {
        Ok(arguments) => arguments,
        Err(text) => {
            let json = insane_arguments::has_flag(std::env::args_os(), "--json");
            return fail(&common::Failure::usage(text), json);
        }
    };
    let domain = arguments.domain.unwrap_or_default();
    let context = common::Context { socket: arguments.socket, domain, json: arguments.json };
    let result = match arguments.command {
        Command::Ping(ping) => ping.run(&context),
        Command::Pong(pong) => pong.run(&context),
        Command::Perf(perf) => perf.run(&context),
        Command::Pub(publish) => publish.run(&context),
        Command::Sub(sub) => sub.run(&context),
        Command::Status(status) => status.run(&context),
        Command::Metrics(metrics) => metrics.run(&context),
        Command::Capture(capture) => capture.run(&context),
        Command::Rebind(rebind) => rebind.run(&context),
        Command::Doctor(doctor) => doctor.run(&context),
        Command::Config(config) => config.run(&context),
        Command::Tc(tc) => tc.run(&context),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => fail(&failure, context.json),
    }
}

/// Says in one line why, and in JSON where that was asked for.
fn fail(failure: &common::Failure, json: bool) -> ExitCode {
    use std::io::Write;
    let text = insane_arguments::flat(&failure.text);
    // Whoever closed the other end does not read it: there is nobody to tell.
    if json {
        let object = serde_json::json!({"error": {"code": failure.number, "text": text}});
        let _ = writeln!(std::io::stdout(), "{object}");
    }
    let _ = writeln!(std::io::stderr(), "insane: {text}");
    ExitCode::from(if failure.usage { 2 } else { 1 })
}
