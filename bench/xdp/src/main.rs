//! Bare AF_XDP: a socket on each host's end of the second cable, one Ethernet frame per message, nothing else. What INSANE over
//! AF_XDP is compared with.
//!
//! The program takes every frame in the driver, as INSANE does where it can, and the kernel copies each (veth has no zero-copy).

mod bpf;
mod port;
mod ring;

use anyhow::{Result, bail};
use bench_harness::frames::End;
use bench_harness::{Args, Consumer, Description, Echoer, Mode, Pinger, Producer, System, Waiting};

use port::Port;

struct Xdp;

fn open(args: &Args) -> Result<End<Port>> {
    if !args.two_hosts() {
        bail!("it takes two hosts");
    }
    if !args.variant.is_empty() {
        bail!("no variant '{}'", args.variant);
    }
    Ok(End::new(args, Port::open(args.waiting)?))
}

impl System for Xdp {
    fn describe() -> Description {
        let of = |experiment, waiting| Mode::new(experiment, waiting, "frames").veth().payloads(&[64, 1024]);
        let both = |waiting| ["rtt", "oneway"].map(|experiment| of(experiment, waiting));
        // Rates of what spins are compared with what needs four cores for that.
        let spinning = [of("rtt", Waiting::Spin), of("oneway", Waiting::Spin).four_cores()];
        Description {
            system: "af-xdp".into(),
            language: "rust",
            version: "kernel".into(),
            modes: [spinning, both(Waiting::Adaptive)].concat(),
            absent: vec![],
        }
    }

    fn pinger(args: &Args) -> Result<impl Pinger> {
        open(args)
    }

    fn echoer(args: &Args) -> Result<impl Echoer> {
        open(args)
    }

    fn producer(args: &Args) -> Result<impl Producer> {
        open(args)
    }

    fn consumer(args: &Args) -> Result<impl Consumer> {
        open(args)
    }
}

fn main() -> Result<()> {
    bench_harness::main::<Xdp>()
}
