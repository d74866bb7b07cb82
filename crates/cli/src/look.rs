//! `insane status`, `doctor` and `config`: looking at the runtime.

use crate::common::{Context, Failure, Outcome};
use insane::{Code, Session};
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
    /// Print the shipped file, in which every key is explained; with --json its keys and values.
    Default,
}

fn report(context: &Context, what: &str) -> Result<Value, Failure> {
    asked(&context.session(&format!("insane {what}"))?, what)
}

/// A report that a session has asked for.
pub(crate) fn asked(session: &Session, what: &str) -> Result<Value, Failure> {
    let text = session.report(what)?;
    serde_json::from_str(&text).map_err(|e| Failure {
        number: Code::Protocol.number(),
        text: e.to_string(),
        usage: false,
    })
}

/// A text of a report. Others have put it there: to a terminal it is to say nothing.
pub(crate) fn plain(value: &Value) -> Option<String> {
    value.as_str().map(|text| text.chars().filter(|c| !c.is_control()).collect())
}

pub(crate) fn text(value: &Value, key: &str) -> String {
    plain(&value[key]).unwrap_or_default()
}

pub(crate) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
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
            say!("{status}");
            return Ok(());
        }
        say!("insaned {}, up {} s", text(&status, "version"), status["uptime_s"]);
        say!("\nsessions");
        for s in list(&status, "sessions") {
            say!(
                "  {:<24} pid {:<8} uid {:<6} domain {:<12} {} streams, {} endpoints, {}",
                text(s, "app"),
                pid(s),
                s["uid"],
                text(s, "domain"),
                s["streams"],
                s["endpoints"],
                text(s, "library")
            );
        }
        say!("\nstreams");
        for s in list(&status, "streams") {
            say!("  {} (domain {}, {} sessions)", text(s, "name"), text(s, "domain"), s["sessions"]);
            for e in list(s, "effective") {
                say!("    towards {}: {} over {}", text(e, "peer"), text(e, "datapath"), text(e, "transport"));
                for reason in list(e, "reasons") {
                    say!("      {}", plain(reason).unwrap_or_default());
                }
            }
            for c in list(s, "channels") {
                let name = plain(&c["name"]).unwrap_or_else(|| "(by id)".to_owned());
                say!(
                    "    {name} {}: {} sources, {} sinks",
                    text(c, "id"),
                    list(c, "sources").len(),
                    list(c, "sinks").len()
                );
            }
        }
        network(&status["network"])?;
        say!("\ncounts");
        let now = list(&status, "sessions").iter().flat_map(|s| list(s, "counters"));
        for cell in now.chain(list(&status, "ended")) {
            let counts: Vec<String> =
                cell["counts"].as_object().into_iter().flatten().map(|(k, v)| format!("{k} {v}")).collect();
            let short = |id: String| id.chars().take(8).collect::<String>();
            let sink = plain(&cell["sink"]).map_or_else(|| "-".to_owned(), short);
            say!(
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

/// The datapaths and the other hosts, if there are any.
fn network(network: &Value) -> Outcome {
    if list(network, "datapaths").is_empty() {
        return Ok(());
    }
    say!("\nnetwork");
    for d in list(network, "datapaths") {
        say!("  {} at {}: {}: {}", text(d, "kind"), text(d, "address"), text(d, "state"), text(d, "text"));
        if !text(d, "lost").is_empty() {
            say!("    lost {} times, the last because: {}", d["losses"], text(d, "lost"));
        }
        let (capture, number) = (&d["capture"], |key| d["capture"][key].as_u64().unwrap_or(0));
        if capture.is_object() {
            let [seconds, frames, dropped] = ["seconds", "frames", "dropped"].map(number);
            say!("    captured by {} for {seconds} s: {frames} frames, {dropped} dropped", text(capture, "by"));
        }
    }
    for t in list(network, "threads") {
        let runs: Vec<&str> = list(t, "runs").iter().filter_map(Value::as_str).collect();
        let runs = if runs.is_empty() { String::new() } else { format!(", runs {}", runs.join(", ")) };
        say!("  thread {}: {}{runs}", text(t, "name"), text(t, "text"));
    }
    for memory in list(network, "memory").iter().filter_map(memory_in_words) {
        say!("  {memory}");
    }
    for h in list(network, "hosts") {
        let paths = list(h, "paths").iter().map(path_in_words);
        say!("  host {}: {}", text(h, "name"), paths.collect::<Vec<_>>().join(", "));
        if let Some(moves) = moves_in_words(&h["moved"]) {
            say!("    {moves}");
        }
    }
    Ok(())
}

/// What a domain has of the memory for what other hosts send, if it has ever needed any.
fn memory_in_words(memory: &Value) -> Option<String> {
    let [slots, bytes, copied, segments, most] =
        ["slots", "bytes", "copied_bytes", "segment_bytes", "most_bytes"].map(|key| memory[key].as_u64().unwrap_or(0));
    let kib = |bytes: u64| bytes.div_ceil(1024);
    let copies = if copied > 0 { format!(", copies of {} KiB that wait", kib(copied)) } else { String::new() };
    let words = format!(
        "memory of domain {}: {slots} slots with {} KiB in use of {} KiB, at most {} KiB{copies}",
        text(memory, "domain"),
        kib(bytes),
        kib(segments),
        kib(most)
    );
    (segments + copied > 0).then_some(words)
}

/// A session's process id. The runtime cannot know that of a process in another PID namespace.
fn pid(session: &Value) -> String {
    session["pid"].as_u64().map_or_else(|| "unknown".to_owned(), |pid| pid.to_string())
}

/// How long it took streams to move to other paths to a host, if any did.
fn moves_in_words(moved: &Value) -> Option<String> {
    let [count, last, mean, most] =
        ["count", "last_us", "mean_us", "most_us"].map(|key| moved[key].as_u64().unwrap_or(0));
    let times = format!("streams moved {count} times: the last in {last} us, {mean} us on average, {most} us at most");
    (count > 0).then_some(times)
}

/// A path to another host, and what it carries.
fn path_in_words(path: &Value) -> String {
    let [size, most] = ["frame_bytes", "most_frame_bytes"].map(|key| path[key].as_u64().unwrap_or(0));
    let state = match path["connected"] == true {
        true if size < most => {
            format!("connected, frames of {size} bytes: those of up to {most} that the interfaces take do not pass")
        }
        true => format!("connected, frames of {size} bytes"),
        false => "not connected".to_owned(),
    };
    let held = path["hold_ms"]
        .as_u64()
        .filter(|hold| *hold > 0)
        .map(|hold| format!(", lost before: streams come back when it has stood for {} s", hold as f64 / 1000.0));
    format!("{} {} {state}{}", text(path, "datapath"), text(path, "address"), held.unwrap_or_default())
}

impl Doctor {
    pub(crate) fn run(&self, context: &Context) -> Outcome {
        let report = report(context, "doctor")?;
        if context.json {
            say!("{report}");
        } else {
            for check in list(&report, "checks") {
                say!("{:<5} {:<12} {}", text(check, "state"), text(check, "check"), text(check, "text"));
                if !text(check, "hint").is_empty() {
                    say!("      {}", text(check, "hint"));
                }
            }
        }
        Ok(())
    }
}

impl ConfigCommand {
    pub(crate) fn run(&self, context: &Context) -> Outcome {
        match self {
            Self::Default if context.json => {
                // Every key with its value; what explains them is comments, which JSON has not.
                let config = Config::parse(DEFAULT_FILE).map_err(|why| Failure::usage(why.to_string()))?;
                say!("{}", serde_json::to_value(&config).map_err(|why| Failure::usage(why.to_string()))?);
                Ok(())
            }
            Self::Default => {
                say!("{}", DEFAULT_FILE.trim_end());
                Ok(())
            }
            Self::Check { file } => {
                let refuse = |why| Failure::usage(format!("<FILE> is '{}': {why}", file.display()));
                Config::load(file).map_err(refuse)?;
                if context.json {
                    say!("{}", serde_json::json!({"valid": true}));
                } else {
                    say!("{} is valid", file.display());
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_of_reports_say_nothing_to_the_terminal() {
        let report = json!({"library": "\u{1b}]0;gone\u{7}\u{9b}2Jru\nst/1", "pid": 7, "name": null});
        assert_eq!(text(&report, "library"), "]0;gone2Jrust/1");
        assert_eq!(
            (text(&report, "pid"), text(&report, "none"), plain(&report["name"])),
            (String::new(), String::new(), None)
        );
    }

    #[test]
    fn a_process_that_the_runtime_cannot_see_is_unknown() {
        assert_eq!([json!({"pid": 7}), json!({"pid": null})].map(|session| pid(&session)), ["7", "unknown"]);
    }

    #[test]
    fn a_path_that_carries_less_than_the_interfaces_take_says_so() {
        let path = |connected: bool, size: u32| {
            let path = serde_json::json!({
                "datapath": "udp", "address": "10.0.0.2:7400", "connected": connected, "frame_bytes": size, "most_frame_bytes": 8968,
            });
            path_in_words(&path)
        };
        assert_eq!(path(false, 1472), "udp 10.0.0.2:7400 not connected");
        assert_eq!(path(true, 8968), "udp 10.0.0.2:7400 connected, frames of 8968 bytes");
        let less = "frames of 1472 bytes: those of up to 8968 that the interfaces take do not pass";
        assert_eq!(path(true, 1472), format!("udp 10.0.0.2:7400 connected, {less}"));
    }

    #[test]
    fn how_long_moves_took_is_said_once_there_were_some() {
        let moved = |count: u64| json!({"count": count, "last_us": 310, "mean_us": 400, "most_us": 1200});
        assert_eq!((moves_in_words(&moved(0)), moves_in_words(&Value::Null)), (None, None));
        let words = "streams moved 3 times: the last in 310 us, 400 us on average, 1200 us at most";
        assert_eq!(moves_in_words(&moved(3)).as_deref(), Some(words));
    }

    #[test]
    fn the_memory_for_what_arrives_is_told_once_there_is_some() {
        let memory = |segments: u64, copied: u64| {
            memory_in_words(&json!({
                "domain": "blue", "slots": 2, "bytes": 8192, "copied_bytes": copied, "segment_bytes": segments, "most_bytes": 4 << 20,
            }))
        };
        assert_eq!(memory(0, 0), None);
        let words = "memory of domain blue: 2 slots with 8 KiB in use of 1024 KiB, at most 4096 KiB";
        assert_eq!(memory(1 << 20, 0).as_deref(), Some(words));
        assert_eq!(memory(1 << 20, 1500), Some(format!("{words}, copies of 2 KiB that wait")));
    }

    #[test]
    fn a_path_that_streams_do_not_come_back_to_yet_says_so() {
        let path = |hold: u64| {
            path_in_words(&json!({"datapath": "xdp", "address": "10.0.0.2:7400", "connected": true, "hold_ms": hold}))
        };
        assert_eq!(path(0), "xdp 10.0.0.2:7400 connected, frames of 0 bytes");
        let held = "lost before: streams come back when it has stood for 2.5 s";
        assert_eq!(path(2500), format!("xdp 10.0.0.2:7400 connected, frames of 0 bytes, {held}"));
    }
}
