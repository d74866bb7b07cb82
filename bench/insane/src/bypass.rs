//! Past the kernel's network stack: the variants in which streams ask for a datapath beside kernel UDP, which is then at the second
//! cable's ends (or, for memif, at a socket in the repetition's directory). Kernel UDP stays the runtimes' home on the first.

use anyhow::{Result, bail};
use bench_harness::{Absent, Args, Mode, Waiting, cable};
use insane::{Acceleration, Qos, Resources, Stream};
use insane_runtime::config::{Datapath, Kind};
use std::net::Ipv4Addr;
use std::time::Instant;

use crate::{MEETING, polled};

pub(crate) const XDP: &str = "xdp";
const MEMIF: &str = "dpdk-memif";
const AF_PACKET: &str = "dpdk-af-packet";
const DPDK_AF_XDP: &str = "dpdk-af-xdp";
/// The same, with sinks that take messages in the frames in which they came.
const XDP_SCATTERED: &str = "xdp-scattered";
const AF_PACKET_SCATTERED: &str = "dpdk-af-packet-scattered";

/// The same, with sources that send at a steady pace.
pub(crate) const XDP_PACED: &str = "xdp-paced";

/// Whether sources send at a steady pace.
pub(crate) fn is_paced(variant: &str) -> bool {
    variant == XDP_PACED
}

/// Whether sinks take messages as lists of pieces.
pub(crate) fn is_scattered(variant: &str) -> bool {
    [XDP_SCATTERED, AF_PACKET_SCATTERED].contains(&variant)
}

/// The kind of datapath that a variant asks for; `None` for one that asks for none.
pub(crate) fn kind(variant: &str) -> Option<Kind> {
    match variant {
        XDP | XDP_SCATTERED | XDP_PACED => Some(Kind::Xdp),
        MEMIF | AF_PACKET | DPDK_AF_XDP | AF_PACKET_SCATTERED => Some(Kind::Dpdk),
        _ => None,
    }
}

/// Asks for a kind, by what the shipped policy takes for it.
pub(crate) fn ask(qos: &mut Qos, kind: Kind) {
    qos.set_acceleration(Acceleration::Preferred);
    if kind == Kind::Dpdk {
        qos.set_resources(Resources::Unlimited);
    }
}

/// The datapath of a variant at this runtime's host.
pub(crate) fn datapath(args: &Args, variant: &str) -> Option<Datapath> {
    datapath_at(args, variant, args.host() as usize)
}

/// The datapath of a variant at a host.
pub(crate) fn datapath_at(args: &Args, variant: &str, host: usize) -> Option<Datapath> {
    let kind = kind(variant)?;
    let address = Ipv4Addr::new(10, 99, 0, 1 + host as u8);
    let mut datapath = Datapath { kind, address: format!("{address}/24"), ..Datapath::default() };
    match variant {
        MEMIF => {
            // The first host's runtime is there first, unless it is the end that asks.
            let role = if host == usize::from(polled::base(&args.variant).is_some()) { "server" } else { "client" };
            let socket = args.dir.join("memif");
            datapath.device = format!("net_memif{host},role={role},socket={},socket-abstract=no", socket.display());
        }
        DPDK_AF_XDP => datapath.device = format!("net_af_xdp0,iface={}", cable::DEVICE),
        _ => datapath.interface = cable::DEVICE.into(),
    }
    Some(datapath)
}

/// Waits until the stream goes to the other host by the datapath that was asked for.
///
/// # Errors
/// It does not, with the reasons that the runtime gives: what would be measured is something else.
pub(crate) fn await_path(stream: &Stream, kind: Kind) -> Result<()> {
    let start = Instant::now();
    loop {
        let mut peers = stream.effective_qos();
        peers.retain(|effective| effective.peer != "local");
        if !peers.is_empty() && peers.iter().all(|effective| effective.datapath == kind.name()) {
            return Ok(());
        }
        if start.elapsed() > MEETING / 4 {
            let said: Vec<String> = peers.iter().map(|e| format!("{}: {}", e.datapath, e.reasons.join("; "))).collect();
            bail!("the stream does not go over {}, but over {}", kind.name(), said.join(", "));
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Whether there is DPDK, as the runtime would look for it.
pub(crate) fn has_dpdk() -> bool {
    insane_datapath_dpdk::usual_places().iter().any(|place| place.exists())
}

/// Variants in which one process can have both hosts.
pub(crate) fn alone() -> impl Iterator<Item = &'static str> {
    std::iter::once("").chain(has_dpdk().then_some(MEMIF))
}

/// What can be measured here.
pub(crate) fn modes() -> Vec<Mode> {
    let mut modes = Vec::new();
    for waiting in [Waiting::Spin, Waiting::Adaptive] {
        let of = |experiment: &'static str, variant| {
            let mode = Mode::new(experiment, waiting, "datagram").variant(variant).veth();
            if waiting == Waiting::Spin { mode.four_cores() } else { mode }
        };
        modes.push(of("rtt", XDP));
        modes.push(of("oneway", XDP).payloads(&[64, 1024]));
        if has_dpdk() {
            modes.extend([MEMIF, AF_PACKET, DPDK_AF_XDP].map(|variant| of("rtt", variant)));
            modes.push(of("oneway", MEMIF).payloads(&[64, 1024, 8192]));
        }
    }
    for variant in [XDP_SCATTERED].into_iter().chain(has_dpdk().then_some(AF_PACKET_SCATTERED)) {
        modes.push(Mode::new("oneway", Waiting::Adaptive, "datagram").variant(variant).veth().payloads(&[65536]));
    }
    modes
}

/// What cannot be.
pub(crate) fn absent() -> Vec<Absent> {
    let reason = "over dpdk: libinsane_dpdk.so could not be built beside this program; it takes DPDK 22.11 with its headers \
                  (scripts/setup dpdk)";
    if has_dpdk() { vec![] } else { vec![Absent { experiment: "rtt and oneway", waiting: "*", reason }] }
}
