//! Ports with several receive queues: all are read, each address's frames stay in order, and what waits for a port waits for all of them.

mod common;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Instant;

use common::{PATIENCE, conform_while_both_live, dpdk, serial, slots, station, wait_for_links};
use insane_datagrams::{DatagramConfig, Datagrams, station_of};
use insane_datapath::conformance::{self as suite, Rig};
use insane_datapath::{Address, Armed, Datapath};
use insane_datapath_dpdk::{Dpdk, DpdkConfig};
use insane_datapath_plugin::PluginDatapath;
use insane_netstack::Prefix;
use insane_tests_namespaces::{Namespaces, ethtool};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const DEVICE: &str = "veth0";

/// Whether checksums are left to the interface (linux/ethtool.h).
const ETHTOOL_STXCSUM: u32 = 0x17;

/// Two namespaces with a veth pair of two queues each way between them, on which the kernel has 10.94.0.1 and 10.94.0.2, and finishes its
/// checksums itself.
fn cable() -> Option<Namespaces> {
    let cable = two_namespaces()?;
    cable.inside(0, || ethtool(DEVICE, ETHTOOL_STXCSUM, 0)).expect("it can be told");
    Some(cable)
}

fn two_namespaces() -> Option<Namespaces> {
    Namespaces::new(["qa", "qb"], |names| {
        let [a, b] = names;
        let queues = "numrxqueues 2 numtxqueues 2";
        let mut steps =
            vec![format!("link add {DEVICE} netns {a} {queues} type veth peer name {DEVICE} netns {b} {queues}")];
        for (end, name) in names.iter().enumerate() {
            steps.extend([
                format!("-n {name} link set {DEVICE} addrgenmode none"),
                format!("-n {name} addr add 10.94.0.{}/24 dev {DEVICE}", end + 1),
                format!("-n {name} link set {DEVICE} up"),
                format!("-n {name} link set lo up"),
            ]);
        }
        steps
    })
}

/// A port with an engine over it, open, at 10.94.0.101 or 102, on this namespace's interface.
fn engine(dpdk: Dpdk, device: String, end: usize, udp: u16) -> Datagrams<PluginDatapath> {
    let own = format!("10.94.0.{}", 101 + end).parse().expect("an address");
    let config = DpdkConfig {
        station: Some(station_of(own)),
        queues: 2,
        steer: Some((own, udp).into()),
        ..DpdkConfig::new(device)
    };
    let raw = dpdk.port(&config).expect("a configuration that can be");
    let address = Prefix::new(own, 24);
    let mut engine = Datagrams::new(raw, DatagramConfig { address, port: udp, gateway: None, vlan: None });
    engine.open().unwrap_or_else(|e| panic!("it opens: {e}"));
    engine
}

/// How many frames each queue of a port has brought, as it says itself.
fn came(text: &str) -> Vec<u64> {
    let counts = text.split("frames by its queues: ").nth(1).unwrap_or("0, 0");
    counts.split(", ").map(|count| count.parse().expect("a count")).collect()
}

/// The kernel sends from many ports, whose datagrams come by both queues, and those of each port in order. Who waits is woken by
/// either, if `wakes` says that the port can do that.
fn come_by_both(cable: &Namespaces, port: &mut Datagrams<PluginDatapath>, wakes: bool) {
    let text = port.raw().describe();
    assert!(text.contains(", 2 queues") && came(&text) == [0, 0], "{text}");
    assert_eq!(port.wake_handle().is_some(), wakes, "{text}");
    let Some(Address::Ip(to)) = port.address() else { panic!("it is open") };
    let senders: Vec<UdpSocket> =
        cable.inside(0, || (0..16).map(|_| UdpSocket::bind("10.94.0.1:0").expect("a port")).collect());
    let (mut rx, mut last, start) = (slots(port), BTreeMap::new(), Instant::now());
    let mut got = 0;
    // The kernel asks for the neighbour first, and keeps few datagrams meanwhile.
    while got == 0 {
        senders[0].send_to(b"?", to).expect("it sends");
        std::thread::sleep(std::time::Duration::from_millis(1));
        port.receive(&mut rx, None);
        got = rx.taken.len();
        rx.taken.drain(..).for_each(|taken| rx.free.push(taken.slot));
        assert!(start.elapsed() < PATIENCE, "nothing comes: {:?}", port.engine_stats());
    }
    for sender in senders.iter().filter(|_| wakes) {
        let handle = port.wake_handle().expect("a handle").try_clone_to_owned().expect("it can be duplicated");
        while port.arm() != Armed::Sleep {
            port.receive(&mut rx, None);
            rx.taken.drain(..).for_each(|taken| rx.free.push(taken.slot));
            assert!(start.elapsed() < PATIENCE, "it is never quiet");
        }
        sender.send_to(b"wake", to).expect("it sends");
        let some = Timespec { tv_sec: 5, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&some)), Ok(1), "nothing wakes it");
        got = 0;
        while got == 0 {
            port.receive(&mut rx, None);
            got = rx.taken.drain(..).map(|taken| rx.free.push(taken.slot)).count();
            assert!(start.elapsed() < PATIENCE, "what woke it does not come");
        }
    }
    let mut number = 0u32;
    for round in 0..200 {
        let burst = if round % 2 == 0 { 1 } else { 3 };
        for _ in 0..burst {
            number += 1;
            for sender in &senders {
                sender.send_to(&number.to_le_bytes(), to).expect("it sends");
            }
        }
        let mut left = senders.len() * burst;
        while left > 0 {
            port.receive(&mut rx, None);
            for taken in rx.taken.drain(..) {
                for frame in taken.frames().filter(|frame| frame.len() == 4) {
                    let said = u32::from_le_bytes(frame[..4].try_into().expect("four bytes"));
                    let before = last.insert(taken.from, said).unwrap_or(0);
                    assert!(before < said, "{:?} said {said} after {before}", taken.from);
                    left -= 1;
                }
                rx.free.push(taken.slot);
            }
            assert!(start.elapsed() < PATIENCE, "{left} are missing in round {round}: {}", port.raw().describe());
        }
    }
    let text = port.raw().describe();
    assert!(came(&text).iter().all(|count| *count > 100), "{text}");
}

/// A veth pair has no channels that can be counted, so that DPDK's AF_XDP has one queue there: it opens with that, and says so.
#[test]
fn af_xdp_has_the_queues_that_its_interface_has() {
    if !insane_tests_namespaces::has_af_xdp() {
        return;
    }
    let (Some(dpdk), Some(cable)) = (dpdk(), cable()) else { return };
    // The driver takes its program off in the namespace of the thread that closes the port.
    cable.inside(1, || {
        let port = engine(dpdk, format!("net_af_xdp{},iface={DEVICE}", serial()), 1, 7400);
        let text = port.raw().describe();
        assert!(text.contains(", one queue and not 2: it has no more,"), "{text}");
    });
}

/// The kernel chooses a tap's queue by the flow. A rule takes the kernel's `cls_flower`: with it or without, all comes.
#[test]
fn frames_come_by_both_queues_of_a_tap_in_order() {
    let (Some(dpdk), Some(cable)) = (dpdk(), cable()) else { return };
    cable.ip(0, &format!("addr flush dev {DEVICE}")).expect("it has no address");
    let mut port = cable.inside(0, || engine(dpdk, format!("net_tap{},iface=tap0", serial()), 1, 7400));
    cable.ip(0, "addr add 10.94.0.1/24 dev tap0").expect("an address");
    cable.ip(0, "link set tap0 up").expect("it comes up");
    come_by_both(&cable, &mut port, true);
    let text = port.raw().describe();
    assert!(text.contains(", 2 queues, of which who sends chooses, "), "{text}");
    assert!(text.contains("flow rule"), "{text}");
}

/// The program that sends by two queues, built when it is first asked for.
fn two_queues() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer/two_queues.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("two_queues");
        let output = Command::new("pkg-config").args(["--cflags", "--libs", "libdpdk"]).output().expect("pkg-config");
        let libraries = String::from_utf8(output.stdout).expect("text");
        let built = Command::new("cc").arg(source).arg("-o").arg(&program).args(libraries.split_whitespace()).status();
        assert!(built.expect("a compiler").success(), "it builds");
        program
    })
}

/// A process that ends with this.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Frames of a program of somebody else's.
const FRAMES: usize = 20_000;

/// Starts that, with a device that reaches the end with number 1.
fn start(device: &str) -> Peer {
    let mut command = Command::new(two_queues());
    command.args([device, &Address::Ethernet(station(1)).to_string(), &FRAMES.to_string()]);
    Peer(command.stdin(Stdio::piped()).spawn().expect("it starts"))
}

/// What it sends by two queues comes by two, and each queue's in order. The port is open.
fn take_from_two(port: &mut PluginDatapath, mut peer: Peer) {
    peer.0.stdin.as_mut().expect("it is asked").write_all(b"g").expect("it hears");
    let (mut rx, mut next, start) = (slots(port), [0u32; 2], Instant::now());
    while next.iter().sum::<u32>() < FRAMES as u32 {
        port.receive(&mut rx, None);
        for taken in rx.taken.drain(..) {
            for frame in taken.frames().filter(|frame| frame[12..14] == [0x88, 0xb5]) {
                let said = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().expect("four bytes"));
                let queue = said(14) as usize;
                assert_eq!(said(18), next[queue], "by queue {queue}");
                next[queue] += 1;
            }
            rx.free.push(taken.slot);
        }
        assert_eq!(peer.0.try_wait().expect("it can be waited for"), None, "it ends early");
        assert!(start.elapsed() < PATIENCE, "{next:?} came: {}", port.describe());
    }
    let text = port.describe();
    assert!(came(&text).iter().all(|count| *count >= FRAMES as u64 / 2), "{text}");
    // The port goes first.
    port.close();
}

fn plain(dpdk: Dpdk, device: String, end: usize) -> PluginDatapath {
    let config = DpdkConfig { station: Some(station(end)), queues: 2, ..DpdkConfig::new(device) };
    dpdk.port(&config).expect("a configuration that can be")
}

#[test]
fn frames_come_by_both_queues_of_memif_in_order() {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("memif").display().to_string();
    let mut port = plain(dpdk, format!("net_memif{},role=server,socket={socket}", serial()), 1);
    port.open().expect("it opens");
    assert!(port.describe().contains(", 2 queues, of which who sends chooses,"), "{}", port.describe());
    take_from_two(&mut port, start(&format!("net_memif0,role=client,socket={socket},socket-abstract=no")));
}

#[test]
fn frames_come_by_both_queues_of_vhost_in_order() {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("vhost").display().to_string();
    let mut port = plain(dpdk, format!("net_vhost{},iface={socket}", serial()), 1);
    port.open().expect("it opens");
    take_from_two(&mut port, start(&format!("net_virtio_user0,path={socket},queues=2")));
}

#[test]
fn frames_come_by_both_queues_of_virtio_user_in_order() {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("vhost").display().to_string();
    let peer = start(&format!("net_vhost0,iface={socket},queues=2"));
    let mut port = plain(dpdk, format!("net_virtio_user{},path={socket}", serial()), 1);
    let start = Instant::now();
    while let Err(e) = port.open() {
        assert!(start.elapsed() < PATIENCE, "it does not open: {e}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    take_from_two(&mut port, peer);
}

/// Two ends with two queues each, of which a sender uses the first.
#[test]
fn conforms_with_two_queues_of_memif() {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let rig = || {
        let place = folder.path().join(serial().to_string());
        let device = |role: &str| format!("net_memif{},role={role},socket={}", serial(), place.display());
        let (mut b, mut a) = (plain(dpdk, device("server"), 1), plain(dpdk, device("client"), 0));
        b.open().expect("the server opens");
        a.open().expect("the client opens");
        wait_for_links(&mut [&mut a, &mut b]);
        Rig { a: Box::new(a), b: Box::new(b) }
    };
    suite::all_but_outcomes(&mut { rig }, &mut common::reopen_memif);
}

#[test]
fn conforms_with_two_queues_of_virtio_user() {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let rig = || {
        let place = folder.path().join(serial().to_string());
        let mut b = plain(dpdk, format!("net_vhost{},iface={}", serial(), place.display()), 1);
        let mut a = plain(dpdk, format!("net_virtio_user{},path={}", serial(), place.display()), 0);
        b.open().expect("vhost opens");
        a.open().expect("virtio-user opens");
        assert!(a.describe().contains(", 2 queues,"), "{}", a.describe());
        wait_for_links(&mut [&mut a, &mut b]);
        Rig { a: Box::new(a), b: Box::new(b) }
    };
    conform_while_both_live(rig, &mut common::reopen_memif);
}

/// How many queues there are follows from what is asked for and what the device has, and is said with the reason.
#[test]
fn how_many_queues_there_are_and_why_is_said() {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let memif = format!("role=server,socket={}", folder.path().join("memif").display());
    for (name, rest, queues, said) in [
        // Of DPDK's drivers in software, this one says that it has RSS.
        ("net_null", "", 0, "4 queues by RSS over UDP/IP"),
        ("net_null", "", 1, "one queue"),
        ("net_null", "", 16, "16 queues by RSS over UDP/IP"),
        ("net_ring", "", 0, "one queue"),
        ("net_ring", "", 2, "one queue and not 2: it has no RSS over UDP/IP"),
        ("net_memif", &memif, 0, "one queue"),
        ("net_memif", &memif, 3, "3 queues, of which who sends chooses"),
    ] {
        let device = format!("{name}{},{rest}", serial());
        let steer = Some("10.94.0.9:7400".parse().expect("an address"));
        let config = DpdkConfig { queues, steer, station: Some(station(0)), ..DpdkConfig::new(device) };
        let mut port = dpdk.port(&config).expect("it can be");
        port.open().unwrap_or_else(|e| panic!("{name} opens: {e}"));
        let text = port.describe();
        assert!(text.contains(&format!(", MTU 1500, {said},")), "{name}, {queues}: {text}");
        // Where there is one queue, there is nothing to steer to; where there are several, it is said why nothing is.
        let several = !said.starts_with("one");
        assert_eq!(text.contains(", no flow rule: the device takes none"), several, "{text}");
    }
    let error = dpdk.port(&DpdkConfig { queues: 17, ..DpdkConfig::new("net_null0") }).expect_err("it is too many");
    assert!(error.to_string().contains("queues must be 0 to 16: 17"), "{error}");
}

/// With several queues, AF_PACKET's driver puts a full one's frames into another, from where they overtake it: it has one.
#[test]
fn af_packet_keeps_to_one_queue() {
    let (Some(dpdk), Some(cable)) = (dpdk(), cable()) else { return };
    cable.inside(0, || {
        let open = |more: &str| {
            let device = format!("net_af_packet{},iface={DEVICE}{more}", serial());
            let mut port = dpdk.port(&DpdkConfig { queues: 2, ..DpdkConfig::new(device) }).expect("it can be");
            port.open().map(|()| port.describe()).map_err(|e| e.to_string())
        };
        let text = open("").expect("it opens");
        assert!(text.contains(", one queue and not 2: its driver lets frames overtake others"), "{text}");
        let error = open(",qpairs=2").expect_err("a queue would not be read");
        assert!(error.contains("has one queue, and qpairs is 2: its driver lets frames overtake"), "{error}");
        // What was refused has left nothing of its own.
        open("").expect("it opens again");
    });
}
