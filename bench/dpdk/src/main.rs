//! Bare DPDK: a port on each host, one Ethernet frame per message, or a run of frames for one that is longer than the usual MTU. What
//! INSANE over DPDK is compared with, with the same drivers, their same options, and the memory that needs no hugepages.
//!
//! `memif` is a socket in the repetition's directory, `af-packet` and `af-xdp` are the second cable.

mod port;

use anyhow::{Result, bail};
use bench_harness::frames::End;
use bench_harness::{Absent, Args, Consumer, Description, Echoer, Mode, Pinger, Producer, System, Waiting, cable};

use port::Port;

const MEMIF: &str = "memif";
const AF_PACKET: &str = "af-packet";
const AF_XDP: &str = "af-xdp";

struct Dpdk;

/// The device of an end, as `--vdev` takes it.
fn device(args: &Args) -> Result<String> {
    match args.variant.as_str() {
        MEMIF => {
            // The second host's end is there first.
            let role = if args.host() == 1 { "server" } else { "client" };
            let socket = args.dir.join("memif");
            Ok(format!("net_memif0,role={role},socket={},socket-abstract=no", socket.display()))
        }
        AF_PACKET => Ok(format!("net_af_packet0,iface={}", cable::DEVICE)),
        AF_XDP => Ok(format!("net_af_xdp0,iface={}", cable::DEVICE)),
        other => bail!("no variant '{other}'"),
    }
}

fn open(args: &Args, waits: bool) -> Result<End<Port>> {
    if !args.two_hosts() {
        bail!("it takes two hosts");
    }
    let core = args.core.first().copied().unwrap_or_default();
    let vdev = format!("--vdev={}", device(args)?);
    let list = ["bench", "--no-huge", "-m", "256", "--no-pci", "--no-telemetry", "--no-shconf", "--log-level=3"];
    let mut list: Vec<String> = list.map(str::to_owned).into();
    list.extend([format!("--lcores=0@{core}"), vdev]);
    let port = Port::open(&list, args.waiting)?;
    if waits {
        port.await_link()?;
    }
    Ok(End::new(args, port))
}

impl System for Dpdk {
    fn describe() -> Description {
        let mut modes = Vec::new();
        for waiting in [Waiting::Spin, Waiting::Adaptive] {
            let of = |experiment, variant| Mode::new(experiment, waiting, "frames").variant(variant).veth();
            modes.extend([MEMIF, AF_PACKET, AF_XDP].map(|variant| of("rtt", variant)));
            let one_way = of("oneway", MEMIF).payloads(&[64, 1024, 8192]);
            // Rates of what spins are compared with what needs four cores for that.
            modes.push(if waiting == Waiting::Spin { one_way.four_cores() } else { one_way });
        }
        let reason = "these drivers of DPDK can only be polled";
        Description {
            system: "dpdk".into(),
            language: "rust",
            version: "22.11 or later".into(),
            modes,
            absent: vec![Absent { experiment: "*", waiting: "sleep", reason }],
        }
    }

    fn pinger(args: &Args) -> Result<impl Pinger> {
        open(args, true)
    }

    fn echoer(args: &Args) -> Result<impl Echoer> {
        open(args, false)
    }

    fn producer(args: &Args) -> Result<impl Producer> {
        open(args, true)
    }

    fn consumer(args: &Args) -> Result<impl Consumer> {
        open(args, false)
    }
}

fn main() -> Result<()> {
    bench_harness::main::<Dpdk>()
}
