//! The daemon of INSANE: reads the configuration, starts the session server, and ends in good order on a signal.
#![forbid(unsafe_code)]

use clap::Parser;
use insane_runtime::config::{Config, DEFAULT_FILE};
use insane_runtime::server::Server;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Documented: service managers may rely on it.
const EXIT_CODES: &str = "Exit codes: 0 done, or told to stop; 1 it could not serve; 2 called in a way that cannot be, or with a \
                          configuration that is wrong. A failure is one line on standard error.";

/// The runtime of INSANE on this host. Applications connect to its Unix socket; it opens no network port without a
/// `[network]` section.
#[derive(Debug, Parser)]
#[command(name = "insaned", version, after_help = EXIT_CODES)]
struct Arguments {
    /// The configuration file; the built-in defaults without it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration, say what is wrong with it, and end.
    #[arg(long, conflicts_with_all = ["print_config", "print_default_config"])]
    check: bool,
    /// Print the configuration in force, and end.
    #[arg(long, conflicts_with = "print_default_config")]
    print_config: bool,
    /// Print the shipped configuration file with every key explained, and end.
    #[arg(long, conflicts_with_all = ["config", "socket", "log"])]
    print_default_config: bool,
    /// Path of the socket, over the configuration's. Where neither names one, INSANE_SOCKET does, as for applications.
    #[arg(long, value_name = "PATH", value_parser = parse_socket)]
    socket: Option<PathBuf>,
    /// Log level, over the configuration's: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", value_parser = ["error", "warn", "info", "debug", "trace"])]
    log: Option<String>,
}

fn parse_socket(text: &str) -> Result<PathBuf, String> {
    let fits = !text.is_empty() && text.len() <= 107;
    fits.then(|| text.into()).ok_or_else(|| "it takes a path of 1 to 107 bytes".to_owned())
}

fn configure(arguments: &Arguments) -> Result<Config, String> {
    let mut config = match &arguments.config {
        Some(path) => Config::load(path).map_err(|why| format!("--config <FILE> is '{}': {why}", path.display()))?,
        None => Config::default(),
    };
    if let Some(socket) = &arguments.socket {
        config.runtime.socket.clone_from(socket);
    } else if config.runtime.socket.as_os_str().is_empty()
        && let Ok(socket) = std::env::var("INSANE_SOCKET")
        && !socket.is_empty()
    {
        config.runtime.socket = parse_socket(&socket).map_err(|why| format!("INSANE_SOCKET is '{socket}': {why}"))?;
    }
    if let Some(log) = &arguments.log {
        config.runtime.log_level.clone_from(log);
    }
    config.check().map_err(|e| e.to_string())?;
    Ok(config)
}

fn log(config: &Config) {
    // What Zenoh thinks worth telling is for those who look for something: connections that fail are in the status report.
    let level = config.runtime.log_level.as_str();
    let quiet = if ["warn", "info"].contains(&level) { ",zenoh=error" } else { "" };
    let filter = tracing_subscriber::EnvFilter::new(format!("{level}{quiet}"));
    // A journal or a file is not to be full of colours.
    let colours = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    if config.runtime.log_format == "json" { builder.json().init() } else { builder.init() }
}

fn print(text: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("insaned: standard output: {e}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    let arguments: Result<Arguments, String> = insane_arguments::parse();
    let configured = arguments.and_then(|arguments| configure(&arguments).map(|config| (arguments, config)));
    let (arguments, config) = match configured {
        Ok(both) => both,
        Err(text) => {
            eprintln!("insaned: {}", insane_arguments::flat(&text));
            return ExitCode::from(2);
        }
    };
    if arguments.print_default_config {
        return print(DEFAULT_FILE);
    }
    if arguments.print_config {
        return print(&config.to_toml());
    }
    if arguments.check {
        return print("the configuration is valid\n");
    }
    log(&config);
    match serve(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("insaned: {}", insane_arguments::flat(&text));
            ExitCode::FAILURE
        }
    }
}

/// Serves until a signal says to stop.
///
/// # Errors
/// Why it cannot, or cannot any more: who looks after services starts it again, and sessions come back.
fn serve(config: Config) -> Result<(), String> {
    // Before the server, so that a signal during its start is not lost.
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map_err(|e| format!("signals: {e}"))?;
    let server = Server::start(config).map_err(|e| e.to_string())?;
    let (watch, handle) = (server.watch(), signals.handle());
    std::thread::Builder::new()
        .name("insane-watch".into())
        .spawn(move || {
            if watch.wait().is_some() {
                handle.close();
            }
        })
        .map_err(|e| format!("a thread: {e}"))?;
    let signal = signals.forever().next();
    let failed = server.watch().failed();
    signal.into_iter().for_each(|signal| tracing::info!(signal, "told to stop"));
    server.stop();
    failed.map_or(Ok(()), Err)
}
