//! Several applications on each of two hosts: who talks to whom, and by which runtime.

use std::net::SocketAddr;
use std::ops::Range;

use bench_harness::{Absent, Args, Mode, Role, Waiting};
use insane_runtime::config::{Thread, Waits};

use crate::{PORT, bypass};

/// Whether this process is one of several applications.
pub(crate) fn is_one(args: &Args) -> bool {
    matches!(args.role, Role::AppSource | Role::AppSink)
}

/// How many runtimes the first host has: one; or, where several threads of the second one's poll, one for each application, since which
/// thread receives is decided by who has sent.
fn senders(args: &Args) -> u32 {
    u32::try_from(args.helpers).unwrap_or(u32::MAX).saturating_sub(1).max(1)
}

/// The number of this process's runtime, or of the runtime that it is: 1 is the second host's, 0 and all further ones the first one's,
/// whose applications take them in turns.
pub(crate) fn runtime(args: &Args) -> u32 {
    match args.role {
        Role::Aux if args.two_hosts() => args.index,
        Role::AppSource => numbers(args).nth((args.index % senders(args)) as usize).unwrap_or(0),
        _ => args.host(),
    }
}

/// Those of the first host.
fn numbers(args: &Args) -> impl Iterator<Item = u32> {
    std::iter::once(0).chain(2..=senders(args))
}

/// Where this runtime is, and where those of the other host are.
pub(crate) fn addresses(args: &Args) -> (SocketAddr, Vec<SocketAddr>) {
    // The first of each host has the port of the only one.
    let port = |number: u32| PORT + number.saturating_sub(1) as u16;
    let own = (args.own, port(args.index)).into();
    let peers = if args.index == 1 { numbers(args).collect() } else { vec![1] };
    (own, peers.into_iter().map(|number| (args.peer, port(number)).into()).collect())
}

/// The polling threads of the second host's runtime, where several are to be compared. They spin if each of them, and the network thread
/// before them, has a core to itself.
pub(crate) fn threads(args: &Args) -> Vec<Thread> {
    let count = if args.role == Role::Aux && args.index == 1 && senders(args) > 1 { args.polling } else { 0 };
    let thread = |at| Thread {
        datapaths: vec!["udp".into()],
        core: args.core.get(at).filter(|_| args.alone).and_then(|core| i32::try_from(*core).ok()).unwrap_or(-1),
        wait: if args.alone { Waits::Spin } else { Waits::Adaptive },
    };
    (1..=count as usize).map(thread).collect()
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
    let reason = "several polling threads over AF_XDP: they share its queues, and the cable has one; what is measured are those \
                  of kernel UDP";
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
    fn applications_of_the_first_host_have_a_runtime_each_where_threads_are_compared() {
        let of = |index| runtime(&args(&format!("app-source --sinks 3 --polling 2 --helpers 4 --index {index}")));
        assert_eq!([0, 1, 2].map(of), [0, 2, 3]);
        assert_eq!(runtime(&args("app-sink --sinks 3 --polling 2 --helpers 4 --index 2")), 1);
        let of = |index| runtime(&args(&format!("app-source --sinks 3 --polling 1 --helpers 2 --index {index}")));
        assert_eq!([0, 1, 2].map(of), [0; 3]);
        assert_eq!(["rtt-client", "rtt-server", "aux --index 1"].map(|line| runtime(&args(line))), [0, 1, 1]);
    }

    #[test]
    fn the_second_host_knows_all_runtimes_of_the_first_and_they_know_it() {
        let of = |line: &str| {
            let (own, peers) = addresses(&args(line));
            let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
            (own.to_string(), peers.join(" "))
        };
        let found = of("aux --index 1 --polling 3 --helpers 4");
        assert_eq!(found, ("10.0.0.1:7400".into(), "10.0.0.2:7400 10.0.0.2:7401 10.0.0.2:7402".into()));
        let found = of("aux --index 3 --polling 3 --helpers 4");
        assert_eq!(found, ("10.0.0.1:7402".into(), "10.0.0.2:7400".into()));
        for index in [0, 1] {
            assert_eq!(of(&format!("aux --index {index}")), ("10.0.0.1:7400".into(), "10.0.0.2:7400".into()));
        }
    }

    #[test]
    fn threads_are_the_second_hosts_and_spin_on_cores_of_their_own_where_there_are_enough() {
        let of = |line: &str| -> Vec<_> {
            threads(&args(line)).into_iter().map(|thread| (thread.core, thread.wait)).collect()
        };
        let found = of("aux --index 1 --polling 2 --helpers 4 --core 3,4,5 --alone");
        assert_eq!(found, [(4, Waits::Spin), (5, Waits::Spin)]);
        assert_eq!(of("aux --index 1 --polling 1 --helpers 4 --core 3"), [(-1, Waits::Adaptive)]);
        for none in ["aux --index 0 --polling 2 --helpers 4", "aux --index 1 --polling 1 --helpers 2", "aux --index 1"]
        {
            assert_eq!(of(none), []);
        }
    }

    #[test]
    fn each_pair_has_its_own_channel_and_a_fan_out_one_for_all() {
        assert_eq!(flow(&args("app-source --sinks 8 --index 5")), ("flow-5".into(), 5..6));
        assert_eq!(flow(&args("fanout-source --sinks 8")), ("flow".into(), 0..8));
    }
}
