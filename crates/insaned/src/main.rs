//! The daemon of INSANE: reads the configuration, starts the session server, and ends in good order on a signal.
#![forbid(unsafe_code)]

use clap::Parser;
use insane_runtime::config::{Config, DEFAULT_FILE};
use insane_runtime::server::Server;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::PathBuf;
use std::process::ExitCode;

/// The runtime of INSANE on this host. Applications connect to its Unix socket; it opens no network port without a `[network]` section.
#[derive(Debug, Parser)]
#[command(name = "insaned", version)]
struct Arguments {
    /// The configuration file; the built-in defaults without it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration, say what is wrong with it, and end.
    #[arg(long)]
    check: bool,
    /// Print the configuration in force, and end.
    #[arg(long)]
    print_config: bool,
    /// Print the shipped configuration file with every key explained, and end.
    #[arg(long)]
    print_default_config: bool,
    /// Path of the socket, over the configuration's.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Log level, over the configuration's: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
}

fn configure(arguments: &Arguments) -> Result<Config, String> {
    let mut config = match &arguments.config {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
            Config::parse(&text).map_err(|e| format!("{}: {e}", path.display()))?
        }
        None => Config::default(),
    };
    if let Some(socket) = &arguments.socket {
        config.runtime.socket.clone_from(socket);
    }
    if let Some(log) = &arguments.log {
        config.runtime.log_level.clone_from(log);
    }
    config.check().map_err(|e| e.to_string())?;
    Ok(config)
}

fn log(config: &Config) {
    let filter = tracing_subscriber::EnvFilter::new(&config.runtime.log_level);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if config.runtime.log_format == "json" { builder.json().init() } else { builder.init() }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = match configure(&arguments) {
        Ok(config) => config,
        Err(text) => {
            eprintln!("insaned: {text}");
            return ExitCode::from(2);
        }
    };
    if arguments.print_default_config {
        print!("{DEFAULT_FILE}");
        return ExitCode::SUCCESS;
    }
    if arguments.print_config {
        print!("{}", config.to_toml());
        return ExitCode::SUCCESS;
    }
    if arguments.check {
        println!("the configuration is valid");
        return ExitCode::SUCCESS;
    }
    log(&config);
    // Before the server, so that a signal during its start is not lost.
    let signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]);
    match (signals, Server::start(config)) {
        (Ok(mut signals), Ok(server)) => {
            let signal = signals.forever().next();
            tracing::info!(signal, "told to stop");
            server.stop();
            ExitCode::SUCCESS
        }
        (Err(e), _) => {
            eprintln!("insaned: signals: {e}");
            ExitCode::FAILURE
        }
        (_, Err(e)) => {
            eprintln!("insaned: {e}");
            ExitCode::FAILURE
        }
    }
}
