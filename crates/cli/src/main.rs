//! The command line of INSANE: measure, publish, listen, look.
#![forbid(unsafe_code)]

mod common;
mod data;
mod look;
mod perf;
mod ping;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Talk to the INSANE runtime of this host.
#[derive(Debug, Parser)]
#[command(name = "insane", version)]
struct Arguments {
    /// The runtime's socket; found by itself without it (INSANE_SOCKET, the user's runtime directory, the system's path).
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<std::path::PathBuf>,
    /// The domain to join.
    #[arg(long, global = true, default_value = "", value_name = "NAME")]
    domain: String,
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
    #[command(subcommand)]
    Perf(perf::Perf),
    /// Emit messages: arguments, files, or the lines of standard input.
    Pub(data::Pub),
    /// Print messages of a channel.
    Sub(data::Sub),
    /// Show sessions, streams, channels and their counts.
    Status(look::Status),
    /// Check this host and look for what is odd.
    Doctor(look::Doctor),
    /// Work on configuration files of the runtime.
    #[command(subcommand)]
    Config(look::ConfigCommand),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let context = common::Context { socket: arguments.socket, domain: arguments.domain, json: arguments.json };
    let result = match arguments.command {
        Command::Ping(ping) => ping.run(&context),
        Command::Pong(pong) => pong.run(&context),
        Command::Perf(perf) => perf.run(&context),
        Command::Pub(publish) => publish.run(&context),
        Command::Sub(sub) => sub.run(&context),
        Command::Status(status) => status.run(&context),
        Command::Doctor(doctor) => doctor.run(&context),
        Command::Config(config) => config.run(&context),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if context.json {
                println!("{}", serde_json::json!({"error": {"code": failure.number, "text": failure.text}}));
            }
            eprintln!("insane: {}", failure.text);
            ExitCode::from(if failure.usage { 2 } else { 1 })
        }
    }
}
