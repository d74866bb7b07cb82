//! Several applications on each of two hosts: who talks to whom, and by which runtime.

use std::net::SocketAddr;
use std::ops::Range;

use bench_harness::{Absent, Args, Mode, Role, Waiting};

use crate::{PORT, bypass};

/// Whether this process is one of several applications.
pub(crate) fn is_one(args: &Args) -> bool {
    matches!(args.role, Role::AppSource | Role::AppSink)
}

/// The number of this process's runtime, or of the runtime that it is: 0 on the first host, 1 and more on the other, whose
/// applications take them in turns.
pub(crate) fn runtime(args: &Args) -> u32 {
    match args.role {
        Role::Aux if args.two_hosts() => args.index,
        Role::AppSink => 1 + args.index % args.polling.max(1),
        _ => args.host(),
    }
}

/// Where this runtime is, and where those of the other host are.
pub(crate) fn addresses(args: &Args) -> (SocketAddr, Vec<SocketAddr>) {
    // The first of the second host has the port of the only one.
    let port = |number: u32| PORT + number.saturating_sub(1) as u16;
    let own = (args.own, port(args.index)).into();
    let peers = if args.index == 0 { 1..=args.polling.max(1) } else { 0..=0 };
    (own, peers.map(|number| (args.peer, port(number)).into()).collect())
}

/// The channel of this process's messages, and its sinks.
pub(crate) fn flow(args: &Args) -> (String, Range<u32>) {
    if is_one(args) {
        (format!("flow-{}", args.index), args.index..args.index + 1)
    } else {
        ("flow".into(), 0..args.sinks)
    }
}

/// What can be measured here.
pub(crate) fn modes() -> Vec<Mode> {
    let of = |experiment| Mode::new(experiment, Waiting::Adaptive, "datagram").veth();
    vec![of("apps"), of("apps").variant(bypass::XDP), of("apps").variant(bypass::XDP_PACED), of("threads")]
}

/// What cannot be.
pub(crate) fn absent() -> Option<Absent> {
    let reason = "several polling threads on one datapath of a runtime, or over AF_XDP: a datapath has one thread, and of an \
                  interface's AF_XDP one runtime has all; what is measured are runtimes beside each other over kernel UDP";
    Some(Absent { experiment: "threads", waiting: "*", reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn args(line: &str) -> Args {
        let line = format!("prog {line} --placement veth --own 10.0.0.1 --peer 10.0.0.2");
        Args::try_parse_from(line.split_whitespace()).expect("a valid line")
    }

    #[test]
    fn applications_of_the_second_host_are_spread_over_its_runtimes() {
        let of = |index| runtime(&args(&format!("app-sink --sinks 3 --polling 2 --index {index}")));
        assert_eq!([0, 1, 2].map(of), [1, 2, 1]);
        assert_eq!(runtime(&args("app-source --sinks 3 --polling 2 --index 2")), 0);
        assert_eq!(["rtt-client", "rtt-server", "aux --index 1"].map(|line| runtime(&args(line))), [0, 1, 1]);
    }

    #[test]
    fn the_first_host_knows_all_runtimes_of_the_second_and_they_know_it() {
        let of = |line: &str| {
            let (own, peers) = addresses(&args(line));
            let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
            (own.to_string(), peers.join(" "))
        };
        let found = of("aux --index 0 --polling 3");
        assert_eq!(found, ("10.0.0.1:7400".into(), "10.0.0.2:7400 10.0.0.2:7401 10.0.0.2:7402".into()));
        assert_eq!(of("aux --index 3 --polling 3"), ("10.0.0.1:7402".into(), "10.0.0.2:7400".into()));
        for index in [0, 1] {
            assert_eq!(of(&format!("aux --index {index}")), ("10.0.0.1:7400".into(), "10.0.0.2:7400".into()));
        }
    }

    #[test]
    fn each_pair_has_its_own_channel_and_a_fan_out_one_for_all() {
        assert_eq!(flow(&args("app-source --sinks 8 --index 5")), ("flow-5".into(), 5..6));
        assert_eq!(flow(&args("fanout-source --sinks 8")), ("flow".into(), 0..8));
    }
}
