//! `insane status`, `doctor` and `config`: looking at the runtime.

use crate::common::{Context, Failure, Outcome};
use insane::Code;
use insane_runtime::config::{Config, DEFAULT_FILE};
use serde_json::Value;
use std::path::PathBuf;

/// Show sessions, streams, channels and their counts.
#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    /// Show the counts of flows that have ended too.
    #[arg(long)]
    ended: bool,
}

/// Check this host and look for what is odd.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {}

/// Work on configuration files of the runtime.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a file and say what is wrong with it.
    Check {
        /// The file.
        file: PathBuf,
    },
    /// Print the shipped file, in which every key is explained.
    Default,
}

fn report(context: &Context, what: &str) -> Result<Value, Failure> {
    let session = context.session(&format!("insane {what}"))?;
    let text = session.report(what)?;
    serde_json::from_str(&text).map_err(|e| Failure {
        number: Code::Protocol.number(),
        text: e.to_string(),
        usage: false,
    })
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("")
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

impl Status {
    pub(crate) fn run(&self, context: &Context) -> Outcome {
        let mut status = report(context, "status")?;
        if !self.ended
            && let Some(map) = status.as_object_mut()
        {
            map.remove("ended");
        }
        if context.json {
            println!("{status}");
            return Ok(());
        }
        println!("insaned {}, up {} s", text(&status, "version"), status["uptime_s"]);
        println!("\nsessions");
        for s in list(&status, "sessions") {
            println!(
                "  {:<24} pid {:<8} uid {:<6} domain {:<12} {} streams, {} endpoints, {}",
                text(s, "app"),
                s["pid"],
                s["uid"],
                text(s, "domain"),
                s["streams"],
                s["endpoints"],
                text(s, "library")
            );
        }
        println!("\nstreams");
        for s in list(&status, "streams") {
            println!("  {} (domain {}, {} sessions)", text(s, "name"), text(s, "domain"), s["sessions"]);
            for e in list(s, "effective") {
                println!("    towards {}: {} over {}", text(e, "peer"), text(e, "datapath"), text(e, "transport"));
                for reason in list(e, "reasons") {
                    println!("      {}", reason.as_str().unwrap_or(""));
                }
            }
            for c in list(s, "channels") {
                let name = c["name"].as_str().unwrap_or("(by id)");
                println!(
                    "    {name} {}: {} sources, {} sinks",
                    text(c, "id"),
                    list(c, "sources").len(),
                    list(c, "sinks").len()
                );
            }
        }
        println!("\ncounts");
        let now = list(&status, "sessions").iter().flat_map(|s| list(s, "counters"));
        for cell in now.chain(list(&status, "ended")) {
            let counts: Vec<String> =
                cell["counts"].as_object().into_iter().flatten().map(|(k, v)| format!("{k} {v}")).collect();
            let short = |id: &str| id.chars().take(8).collect::<String>();
            let sink = cell["sink"].as_str().map_or_else(|| "-".to_owned(), short);
            println!(
                "  {:<9} source {} sink {:<8} {}",
                text(cell, "end"),
                short(text(cell, "source")),
                sink,
                counts.join(", ")
            );
        }
        Ok(())
    }
}

impl Doctor {
    pub(crate) fn run(&self, context: &Context) -> Outcome {
        let report = report(context, "doctor")?;
        if context.json {
            println!("{report}");
        } else {
            for check in list(&report, "checks") {
                println!("{:<5} {:<12} {}", text(check, "state"), text(check, "check"), text(check, "text"));
                if !text(check, "hint").is_empty() {
                    println!("      {}", text(check, "hint"));
                }
            }
        }
        Ok(())
    }
}

impl ConfigCommand {
    pub(crate) fn run(&self, context: &Context) -> Outcome {
        match self {
            Self::Default => {
                print!("{DEFAULT_FILE}");
                Ok(())
            }
            Self::Check { file } => {
                let refuse = |why| Failure::usage(format!("<FILE> is '{}': {why}", file.display()));
                Config::load(file).map_err(refuse)?;
                if context.json {
                    println!("{}", serde_json::json!({"valid": true}));
                } else {
                    println!("{} is valid", file.display());
                }
                Ok(())
            }
        }
    }
}
