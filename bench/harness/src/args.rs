//! The command line that every system program understands.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// The part a process plays in an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Answers every message (experiment `rtt`).
    RttServer,
    /// Sends a message, awaits its answer, measures (experiment `rtt`).
    RttClient,
    /// Sends as fast as it can (experiment `oneway`).
    OnewaySource,
    /// Reads every byte of every message, measures (experiment `oneway`).
    OnewaySink,
    /// Sends each message to all sinks, measures CPU time (experiment `fanout`).
    FanoutSource,
    /// One of `--sinks` sinks; reads every byte, measures its rate (experiment `fanout`).
    FanoutSink,
    /// Fills one large message, emits it and awaits the sink's word that it read it, measures (experiment `large`).
    LargeSource,
    /// Reads every byte of a large message and says so (experiment `large`).
    LargeSink,
    /// Opens and closes what the variant names, once per sample (experiment `open`).
    Open,
    /// Sends to itself and takes what came, by one thread; measures what its calls take (experiment `calls`).
    Calls,
    /// Both ends and the helpers of both hosts in one thread; measures what each takes of a round trip (experiment `turns`).
    Turns,
    /// Sends at a steady pace and has its stream moved to and fro; tells when (experiment `rebind`).
    RebindSource,
    /// Takes what comes and tells of the pauses in it, and of the machine's own stalls (experiment `rebind`).
    RebindSink,
    /// One of `--sinks` applications of the first host; sends to its counterpart as fast as it can (experiments `apps`, `threads`).
    AppSource,
    /// One of `--sinks` applications of the second host; reads every byte, measures its rate and everybody's CPU time (experiments
    /// `apps`, `threads`).
    AppSink,
    /// A helper process that the mode asked for (a media driver, a runtime).
    Aux,
    /// Prints what the program can do, as one JSON line, and ends.
    Describe,
}

/// How an end waits for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Waiting {
    /// Polls and never sleeps.
    Spin,
    /// Polls for a while, then sleeps.
    Adaptive,
    /// Sleeps at once; the other end wakes it.
    Sleep,
}

impl Waiting {
    /// The word used in rows and on the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::Adaptive => "adaptive",
            Self::Sleep => "sleep",
        }
    }
}

/// Where the two ends of a repetition are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Placement {
    /// On one host.
    Local,
    /// On two hosts: network namespaces that a veth pair joins.
    Veth,
}

impl Placement {
    /// The word used in rows and on the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Veth => "veth",
        }
    }
}

/// One process of one repetition.
#[derive(Clone, Debug, Parser)]
#[command(about = "One process of one repetition of the comparison suite; see bench/README.md")]
pub struct Args {
    /// The part that this process plays.
    #[arg(value_enum)]
    pub role: Role,
    /// Cores this process may run on, for example 2 or 0,1,3.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub core: Vec<usize>,
    /// A directory of this repetition alone, where the processes find each other.
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Message size in bytes.
    #[arg(long, default_value_t = 64, value_parser = payload_bytes)]
    pub payload: usize,
    /// How this end waits.
    #[arg(long, value_enum, default_value = "spin")]
    pub waiting: Waiting,
    /// A variant of the system, one of those that `describe` lists; empty for the plain one.
    #[arg(long, default_value = "")]
    pub variant: String,
    /// Measured messages at most (rtt, large).
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub count: u64,
    /// Messages before measuring starts.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    pub warmup: u64,
    /// Length of the measured window in seconds; rtt ends at `--count` or here, whichever comes first.
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    pub seconds: f64,
    /// Number of sinks (fanout), or of applications on each host (apps, threads).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub sinks: u32,
    /// Which sink or application this is, from 0 (fanout, apps, threads); with two hosts, which helper (aux): 1 is that of the other
    /// end's host, 0 and all further ones are on that of the active end.
    #[arg(long, default_value_t = 0)]
    pub index: u32,
    /// Where the two ends are.
    #[arg(long, value_enum, default_value = "local")]
    pub placement: Placement,
    /// The address of this process's host.
    #[arg(long, default_value = "127.0.0.1")]
    pub own: Ipv4Addr,
    /// The address of the other end's host.
    #[arg(long, default_value = "127.0.0.1")]
    pub peer: Ipv4Addr,
    /// This helper has its core to itself (aux): it may spin.
    #[arg(long)]
    pub alone: bool,
    /// So many threads of the second host's helper poll its network (apps, threads). Helpers whose threads have their cores to themselves
    /// poll without end then. 0: one thread, that waits as the class says.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=16))]
    pub polling: u32,
    /// So many of the processes that `go` names, from the first on, are helpers (apps, threads).
    #[arg(long, default_value_t = 0)]
    pub helpers: usize,
    /// Streams move between datapaths while they run (rebind).
    #[arg(long)]
    pub moves: bool,
    /// Cores of the repetition whose stalls are to be told (rebind).
    #[arg(long, value_delimiter = ',')]
    pub watch: Vec<usize>,
}

impl Args {
    /// Which of the two hosts this process is on: 0 is that of the active end (clients, sources), 1 the other. 0 for
    /// all of them where there is one host.
    #[must_use]
    pub fn host(&self) -> u32 {
        match (self.placement, self.role) {
            (Placement::Local, _) => 0,
            (Placement::Veth, Role::Aux) => u32::from(self.index == 1),
            (
                Placement::Veth,
                Role::RttServer
                | Role::OnewaySink
                | Role::FanoutSink
                | Role::LargeSink
                | Role::RebindSink
                | Role::AppSink,
            ) => 1,
            (Placement::Veth, _) => 0,
        }
    }

    /// Whether the two ends are on two hosts.
    #[must_use]
    pub fn two_hosts(&self) -> bool {
        self.placement == Placement::Veth
    }
}

/// Payloads hold at least an 8-byte sequence number and are whole words, so that reading all of it is well defined.
fn payload_bytes(text: &str) -> Result<usize, String> {
    let bytes: usize = text.parse().map_err(|_| format!("'{text}' is not a number of bytes"))?;
    if !(8..=1 << 30).contains(&bytes) || !bytes.is_multiple_of(8) {
        return Err(format!("{bytes} is not a multiple of 8 between 8 and 1073741824"));
    }
    Ok(bytes)
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= 3600.0 => Ok(s),
        _ => Err(format!("'{text}' is not a number of seconds above 0 and up to 3600")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_contract_is_understood() {
        let line = "prog fanout-sink --core 0,1,3 --dir /tmp/x --payload 1024 --waiting sleep --variant v \
                    --count 5 --warmup 6 --seconds 0.25 --sinks 8 --index 7";
        let args = Args::try_parse_from(line.split_whitespace()).expect("a valid line");
        assert_eq!(args.role, Role::FanoutSink);
        assert_eq!(args.core, [0, 1, 3]);
        assert_eq!(args.waiting, Waiting::Sleep);
        assert_eq!((args.payload, args.count, args.warmup, args.sinks, args.index), (1024, 5, 6, 8, 7));
        assert_eq!((args.placement, args.own, args.peer), (Placement::Local, Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST));
    }

    #[test]
    fn two_hosts_are_understood_and_each_role_has_its_own() {
        let host = |role: &str| {
            let line = format!("prog {role} --placement veth --own 10.0.0.1 --peer 10.0.0.2");
            let args = Args::try_parse_from(line.split_whitespace()).expect("a valid line");
            assert!(args.two_hosts() && args.own != args.peer);
            args.host()
        };
        assert_eq!(["rtt-client", "oneway-source", "aux --index 0", "rebind-source"].map(host), [0; 4]);
        assert_eq!(["rtt-server", "oneway-sink", "aux --index 1", "rebind-sink --watch 0,1"].map(host), [1; 4]);
        assert_eq!(host("app-source --index 3 --polling 1 --helpers 2"), 0);
        assert_eq!(["app-sink --index 0 --polling 3", "aux --index 3 --polling 3"].map(host), [1, 0]);
    }

    #[test]
    fn bad_values_are_refused() {
        for bad in [
            "prog rtt-client --payload 7",
            "prog rtt-client --payload 65",
            "prog rtt-client --payload many",
            "prog rtt-client --count 0",
            "prog rtt-client --seconds 0",
            "prog rtt-client --seconds nan",
            "prog rtt-client --waiting nap",
            "prog rtt-client --core x",
            "prog fanout-source --sinks 0",
            "prog aux --polling 17",
            "prog rtt-client --placement moon",
            "prog rtt-client --own somewhere",
            "prog no-such-role",
            "prog",
        ] {
            assert!(Args::try_parse_from(bad.split_whitespace()).is_err(), "accepted: {bad}");
        }
    }
}
