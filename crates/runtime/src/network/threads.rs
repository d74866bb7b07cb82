//! Which threads the network side has, on which core each is, and which datapaths it runs.

use crate::config::{self, Waits, names};
use crate::watch::Watch;
use insane_datapath::thread::{PinError, PollingThread, Settings, Waiting};
use serde_json::{Value, json};
use std::time::Duration;

/// A thread, for reports.
#[derive(Debug, Clone)]
pub(crate) struct Thread {
    name: String,
    /// The datapaths that it runs.
    runs: Vec<String>,
    /// Where it is and how it waits, or why it is not where it should be.
    is: Result<String, String>,
}

impl Thread {
    /// One that was to be on `core` alone unless that is below 0. That it is not is logged, no more.
    pub(crate) fn new(name: &str, runs: Vec<String>, core: i32, pinned: Result<(), &PinError>) -> Self {
        let is = match pinned {
            Ok(()) if core < 0 => Ok("on any core".to_owned()),
            Ok(()) => Ok(format!("on core {core}")),
            Err(e) => Err(format!("on any core: {e}")),
        };
        if let Err(why) = &is {
            tracing::warn!(thread = name, why, "thread not on its core");
        }
        Self { name: name.to_owned(), runs, is }
    }

    /// The owner's of a network side that is polled: where that is, is the owner's affair.
    pub(crate) fn of_owner(name: &str, runs: Vec<String>, core: i32) -> Self {
        let is = match core {
            ..0 => Ok("polled by its owner".to_owned()),
            _ => Err(format!("polled by its owner, who alone says on which core: not on core {core}")),
        };
        Self { name: name.to_owned(), runs, is }
    }

    /// For a report.
    pub(crate) fn report(&self) -> Value {
        let (state, text) = match &self.is {
            Ok(text) => ("ok", text),
            Err(text) => ("warn", text),
        };
        json!({"name": self.name, "runs": self.runs, "state": state, "text": text})
    }
}

/// The polling threads beside the network's own, with the names of the datapaths that each runs. They end with their datapaths. One that
/// ends before takes them with it for good, so that the server counts as failed, whatever else it could do.
#[derive(Debug, Default)]
pub(crate) struct Threads(Vec<(Vec<String>, PollingThread)>);

impl Threads {
    /// Starts what the configuration names; and what reports say of each.
    pub(crate) fn start(settings: &config::Network, watch: &Watch) -> std::io::Result<(Self, Vec<Thread>)> {
        let (mut all, mut reported) = (Self::default(), Vec::new());
        for (at, row) in settings.thread.iter().enumerate() {
            let (waiting, how) = match row.wait {
                Waits::Spin => (Waiting::Spin, "spins"),
                Waits::Sleep => (Waiting::Sleep, "sleeps"),
                Waits::Adaptive => {
                    let [least, most] = [settings.spin_us, settings.spin_most_us].map(Duration::from_micros);
                    (Waiting::Adaptive { least, most }, "adaptive")
                }
            };
            let (name, core) = (format!("polling {at}"), usize::try_from(row.core).ok());
            let (watch, own) = (watch.clone(), name.clone());
            let settings = Settings { name: format!("insane-poll-{at}"), core, waiting };
            let thread = PollingThread::start_under(settings, move |work| {
                watch.run(&own, || {
                    work();
                    Ok(())
                });
            })?;
            let mut is = Thread::new(&name, row.datapaths.clone(), row.core, thread.pinned());
            let (Ok(text) | Err(text)) = &mut is.is;
            *text = format!("{how}, {text}");
            reported.push(is);
            all.0.push((row.datapaths.clone(), thread));
        }
        Ok((all, reported))
    }

    /// Those that run a datapath, in the configuration's order; none for the network's own.
    pub(crate) fn of(&self, datapath: &str) -> Vec<PollingThread> {
        let runs = |names: &Vec<String>| names.iter().any(|name| name == datapath);
        self.0.iter().filter(|(names, _)| runs(names)).map(|(_, thread)| thread.clone()).collect()
    }

    /// The datapaths that the network's own thread runs.
    pub(crate) fn rest(&self, settings: &config::Network) -> Vec<String> {
        names(settings).filter(|name| self.of(name).is_empty()).map(str::to_owned).collect()
    }
}
