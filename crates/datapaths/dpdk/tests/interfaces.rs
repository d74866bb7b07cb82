//! DPDK on interfaces of the kernel's: AF_PACKET and AF_XDP on a veth pair between two network namespaces, and a tap, beside the
//! kernel's own traffic.

mod common;

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use common::{PATIENCE, dpdk, serial, slots, station};
use insane_datagrams::{DatagramConfig, Datagrams, station_of};
use insane_datapath::batch::{RxBatch, TxBatch};
use insane_datapath::conformance::{self as suite, End, Form, Rig, pattern};
use insane_datapath::memory::Slot;
use insane_datapath::{Address, Armed, Datapath, Foreign};
use insane_datapath_dpdk::{Dpdk, DpdkConfig};
use insane_datapath_plugin::PluginDatapath;
use insane_tests_namespaces::{Namespaces, Vlan, run};

const DEVICE: &str = "veth0";

/// Two namespaces with a veth pair between them, on which the kernel has 10.96.0.1 and 10.96.0.2 and says nothing by itself.
fn cable(mtu: u32) -> Option<Namespaces> {
    Namespaces::new(["da", "db"], |names| {
        let [a, b] = names;
        let mut steps =
            vec![format!("link add {DEVICE} netns {a} mtu {mtu} type veth peer name {DEVICE} netns {b} mtu {mtu}")];
        for (end, name) in names.iter().enumerate() {
            steps.extend([
                format!("-n {name} link set {DEVICE} addrgenmode none"),
                format!("-n {name} addr add 10.96.0.{}/24 dev {DEVICE}", end + 1),
                format!("-n {name} link set {DEVICE} up"),
                format!("-n {name} link set lo up"),
            ]);
        }
        steps
    })
}

fn port(dpdk: Dpdk, driver: &str, station: [u8; 6]) -> PluginDatapath {
    let device = format!("{driver}{},iface={DEVICE}", serial());
    dpdk.port(&DpdkConfig { station: Some(station), ..DpdkConfig::new(device) }).expect("a configuration that can be")
}

fn open(dpdk: Dpdk, cable: &Namespaces, end: usize) -> Box<PluginDatapath> {
    open_by(dpdk, "net_af_packet", cable, end)
}

fn open_by(dpdk: Dpdk, driver: &str, cable: &Namespaces, end: usize) -> Box<PluginDatapath> {
    cable.inside(end, || {
        let mut port = port(dpdk, driver, station(end));
        port.open().unwrap_or_else(|e| panic!("it opens: {e}"));
        Box::new(port)
    })
}

fn conform(mtu: u32) {
    let Some(dpdk) = dpdk() else { return };
    let Some(cable) = cable(mtu) else { return };
    let rig = || Rig { a: open(dpdk, &cable, 0), b: open(dpdk, &cable, 1) };
    let mut reopen = |end: End, datapath: &mut dyn Datapath| {
        cable.inside(usize::from(end == End::B), || datapath.open().expect("it opens again"));
    };
    suite::every_frame_has_an_outcome(&mut rig());
    suite::all_over_a_cable(rig, &mut reopen, &mut |end, up| {
        let state = if up { "up" } else { "down" };
        cable.ip(end, &format!("link set {DEVICE} {state}")).expect("it can be set");
    });
}

#[test]
fn conforms_over_af_packet() {
    conform(1500);
}

#[test]
fn conforms_over_af_packet_with_jumbo_frames() {
    conform(9000);
}

/// Behind a tap that captures, and behind a fault injector, which does what it counts.
#[test]
fn conforms_over_af_packet_behind_the_wrappers() {
    let Some(dpdk) = dpdk() else { return };
    let Some(cable) = cable(1500) else { return };
    let rig = || Rig { a: open(dpdk, &cable, 0), b: open(dpdk, &cable, 1) };
    let reopen = |end: End, datapath: &mut dyn Datapath| {
        cable.inside(usize::from(end == End::B), || datapath.open().expect("it opens again"));
    };
    suite::all_behind_a_tap(rig, &mut { reopen });
    suite::all_behind_a_fault_injector(rig, &mut { reopen });
}

/// Both ends of the cable are in one namespace, and so is whoever closes them: the driver takes its program off the interface of that
/// number in the namespace of the thread that closes the port.
#[test]
fn conforms_over_af_xdp() {
    if !insane_tests_namespaces::has_af_xdp() {
        return;
    }
    let Some(dpdk) = dpdk() else { return };
    let Some(cable) = Namespaces::new(["dx"], |[name]| {
        let mut steps = vec![format!("-n {name} link add veth0 type veth peer name veth1")];
        for device in ["veth0", "veth1"] {
            steps.push(format!("-n {name} link set {device} addrgenmode none"));
            steps.push(format!("-n {name} link set {device} up"));
        }
        steps
    }) else {
        return;
    };
    let open = |end: usize| {
        let device = format!("net_af_xdp{},iface=veth{end}", serial());
        let config = DpdkConfig { station: Some(station(end)), ..DpdkConfig::new(device) };
        let mut port = dpdk.port(&config).expect("a configuration that can be");
        port.open().unwrap_or_else(|e| panic!("it opens: {e}"));
        Box::new(port)
    };
    cable.inside(0, || {
        let rig = || Rig { a: open(0), b: open(1) };
        suite::every_frame_has_an_outcome(&mut rig());
        suite::all_over_a_cable(rig, &mut suite::open_again, &mut |end, up| {
            let state = if up { "up" } else { "down" };
            cable.ip(0, &format!("link set veth{end} {state}")).expect("it can be set");
        });
    });
}

/// A port waits for a queue that another socket has for a moment, as the kernel lets go of a closed one's later: here that of a port
/// which closes half a second after the other began to open.
#[test]
fn a_queue_that_is_still_busy_is_waited_for() {
    if !insane_tests_namespaces::has_af_xdp() {
        return;
    }
    let Some(dpdk) = dpdk() else { return };
    let Some(cable) = cable(1500) else { return };
    let before = open_by(dpdk, "net_af_xdp", &cable, 0);
    let port = std::thread::scope(|scope| {
        let next = scope.spawn(|| open_by(dpdk, "net_af_xdp", &cable, 0));
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert!(!next.is_finished(), "it has opened beside the other");
        cable.inside(0, || drop(before));
        next.join().expect("it opens once the other has closed")
    });
    let mut rig = Rig { a: open_by(dpdk, "net_af_xdp", &cable, 1), b: port };
    suite::frames_arrive_whole(&mut rig);
    let Rig { a, b } = rig;
    cable.inside(1, || drop(a));
    cable.inside(0, || drop(b));
}

/// Runs a ping from a namespace to the end.
fn ping(cable: &Namespaces, from: usize, to: &str) -> Child {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", cable.name(from), "ping", "-n", "-q", "-c", "5", "-i", "0.02", "-W", "10", to]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("ping")
}

fn datagrams(raw: PluginDatapath, address: &str) -> Datagrams<PluginDatapath> {
    Datagrams::new(
        raw,
        DatagramConfig { address: address.parse().expect("a prefix"), port: 7400, gateway: None, vlan: None },
    )
}

/// The kernel finds the station behind DPDK, pings it, and gets its datagrams; the kernel's own address on that interface answers
/// as ever, and the interface keeps its MAC address.
fn kernel_is_a_neighbour(driver: &str, foreign: Foreign, kernel_too: bool) {
    let Some(dpdk) = dpdk() else { return };
    let Some(cable) = cable(1500) else { return };
    let own = "10.96.0.102/24";
    let before = cable.ip(1, &format!("link show dev {DEVICE}")).expect("it is there");
    let mut b = cable.inside(1, || {
        let raw = port(dpdk, driver, station_of("10.96.0.102".parse().expect("an address")));
        let mut b = datagrams(raw, own);
        b.open().unwrap_or_else(|e| panic!("it opens: {e}"));
        b
    });
    assert_eq!(b.raw().capabilities().foreign, foreign);
    let mut rx = slots(&b);
    for to in ["10.96.0.102", "10.96.0.2"] {
        if to == "10.96.0.2" && !kernel_too {
            continue;
        }
        let mut child = ping(&cable, 0, to);
        let status = loop {
            b.receive(&mut rx, None);
            if let Some(status) = child.try_wait().expect("it can be waited for") {
                break status;
            }
        };
        assert!(status.success(), "{to} does not answer: {:?} {:?}", b.raw().stats(), b.engine_stats());
    }
    let socket = cable.inside(0, || std::net::UdpSocket::bind("10.96.0.1:0").expect("a port"));
    socket.set_nonblocking(true).expect("it can be");
    let (mut tx, mut heard, start) = (TxBatch::default(), [0; 64], Instant::now());
    tx.frame(Address::Ip(socket.local_addr().expect("it is bound")), b"from the engine", 0);
    loop {
        b.transmit(&mut tx);
        b.receive(&mut rx, None);
        if let Ok((len, from)) = socket.recv_from(&mut heard) {
            assert_eq!((&heard[..len], Some(Address::Ip(from))), (&b"from the engine"[..], b.address()));
            break;
        }
        assert!(start.elapsed() < PATIENCE, "the kernel never got it: {:?}", b.engine_stats());
    }
    let mac = |text: &str| text.split("link/ether ").nth(1).map(|rest| rest[..17].to_owned());
    let now = cable.ip(1, &format!("link show dev {DEVICE}")).expect("it is there");
    assert!(mac(&now).is_some() && mac(&now) == mac(&before), "{before}\n{now}");
}

#[test]
fn the_kernel_pings_a_station_on_af_packet() {
    kernel_is_a_neighbour("net_af_packet", Foreign::Gathers, true);
}

/// In a VLAN that the kernel has at the other end of the cable, with packets as large as the link's; in no other.
#[test]
fn the_kernel_pings_a_station_in_a_vlan() {
    let Some(dpdk) = dpdk() else { return };
    let Some(cable) = cable(1500) else { return };
    let _vlan = Vlan::new(&cable, 0, DEVICE, 7, ("vlan7", "10.99.7.1/24"));
    // Whether received frames are to lie where they can be shown makes no difference.
    for (vlan, answers, lend) in
        [(Some(7), true, true), (Some(8), false, true), (None, false, true), (None, false, false)]
    {
        let mut b = cable.inside(1, || {
            let own = "10.99.7.102".parse().expect("an address");
            let device = format!("net_af_packet{},iface={DEVICE}", serial());
            let config =
                DpdkConfig { station: Some(station_of(own)), tagged: vlan.is_some(), lend, ..DpdkConfig::new(device) };
            let address = insane_netstack::Prefix::new(own, 24);
            let raw = dpdk.port(&config).expect("a configuration that can be");
            let mut b = Datagrams::new(raw, DatagramConfig { address, port: 7400, gateway: None, vlan });
            b.open().unwrap_or_else(|e| panic!("it opens: {e}"));
            b
        });
        assert_eq!(b.capabilities().max_frame, 1500 - 28);
        let mut rx = slots(&b);
        for size in ["56", "1472"] {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", cable.name(0), "ping", "-n", "-q", "-c", "3", "-i", "0.02", "-M", "do"]);
            command.args(["-s", size, "-W", if answers { "10" } else { "1" }, "10.99.7.102"]).stdout(Stdio::null());
            let mut child = command.stdin(Stdio::null()).spawn().expect("ping");
            let status = loop {
                b.receive(&mut rx, None);
                if let Some(status) = child.try_wait().expect("it can be waited for") {
                    break status;
                }
            };
            assert_eq!(status.success(), answers, "{vlan:?}, {size} bytes: {:?}", b.engine_stats());
        }
        if vlan.is_none() {
            let stats = b.engine_stats().expect("it has an engine");
            assert_eq!((stats.emitted, stats.echoes), (0, 0), "another network's question was answered: {stats:?}");
        }
        cable.ip(0, "neigh flush dev vlan7").expect("neighbours can be forgotten");
    }
}

/// The kernel keeps frames and gives none of them on: the ring is full, and stays so. Whoever sends is told so by each call instead of
/// being kept, and when there is room again the rest goes.
#[test]
fn a_full_ring_keeps_nobody() {
    let Some(dpdk) = dpdk() else { return };
    let Some(cable) = cable(1500) else { return };
    let in_first = |program: &str| run("ip", &format!("netns exec {} {program}", cable.name(0)));
    for framecnt in [16, 512] {
        in_first(&format!("tc qdisc add dev {DEVICE} root tbf rate 8bit burst 3000 limit 100000000"))
            .expect("a shaper");
        let open = |end: usize, more: &str| {
            cable.inside(end, || {
                let device = format!("net_af_packet{},iface={DEVICE}{more}", serial());
                let config = DpdkConfig { station: Some(station(end)), ..DpdkConfig::new(device) };
                let mut port = dpdk.port(&config).expect("a configuration that can be");
                port.open().unwrap_or_else(|e| panic!("it opens: {e}"));
                Box::new(port)
            })
        };
        // Past the shaper, as it is by default, nothing is kept.
        let mut rig = Rig { a: open(0, &format!(",qdisc_bypass=0,framecnt={framecnt}")), b: open(1, "") };
        let (to, form, mut tx) = (rig.b.address().expect("it is open"), Form::of(&rig), TxBatch::default());
        (0..2000).for_each(|number| form.add(&mut tx, to, &pattern(number, 1400), number));
        let (mut full, mut before) = (0, 0);
        while full < 1000 {
            let report = rig.a.transmit(&mut tx);
            assert!(report.pending > 0 && report.refused == 0, "all of it went: {report:?}");
            before += report.sent;
            full = if report.sent == 0 { full + 1 } else { 0 };
        }
        let kept = in_first(&format!("tc -s qdisc show dev {DEVICE}")).expect("what it keeps");
        assert!(before > 0 && kept.contains("backlog") && !kept.contains("backlog 0b 0p"), "{before} sent: {kept}");
        in_first(&format!("tc qdisc del dev {DEVICE} root")).expect("room");
        let start = Instant::now();
        while !tx.is_done() {
            assert_eq!(rig.a.transmit(&mut tx).refused, 0);
            assert!(start.elapsed() < PATIENCE, "{} wait: {:?}", tx.pending().len(), rig.a.stats());
        }
    }
}

/// DPDK's AF_XDP takes all that comes by its queue, so the kernel has the interface no more.
#[test]
fn the_kernel_pings_a_station_on_af_xdp() {
    if !insane_tests_namespaces::has_af_xdp() {
        return;
    }
    kernel_is_a_neighbour("net_af_xdp", Foreign::Copies, false);
}

/// AF_PACKET's socket wakes a sleeper; also once its interface has been down, of which the socket is told as of an error.
#[test]
fn a_sleeper_is_woken_by_af_packet() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let Some(dpdk) = dpdk() else { return };
    let Some(cable) = cable(1500) else { return };
    let (a, b) = (open(dpdk, &cable, 0), open(dpdk, &cable, 1));
    assert!(b.describe().contains("it wakes sleepers"), "{}", b.describe());
    let mut rig = Rig { a, b };
    let (to, form) = (rig.b.address().expect("it is open"), Form::of(&rig));
    let handle = rig.b.wake_handle().expect("a handle").try_clone_to_owned().expect("it can be duplicated");
    let mut rx = slots(&*rig.b);
    for down in [false, true] {
        if down {
            for state in ["down", "up"] {
                cable.ip(1, &format!("link set {DEVICE} {state}")).expect("it can be set");
            }
        }
        let start = Instant::now();
        let asleep = |ms: i64| {
            let some = Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 };
            poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&some)) == Ok(0)
        };
        // Whatever came before, it is quiet at last.
        while !(rig.b.arm() == Armed::Sleep && asleep(50)) {
            rig.b.receive(&mut rx, None);
            rx.taken.drain(..).for_each(|taken| rx.free.push(taken.slot));
            assert!(start.elapsed() < PATIENCE, "it is never quiet, down: {down}");
        }
        let mut woken = false;
        while !woken {
            let mut tx = TxBatch::default();
            form.add(&mut tx, to, &pattern(1, 100), 0);
            rig.a.transmit(&mut tx);
            woken = !asleep(200);
            assert!(start.elapsed() < PATIENCE, "nothing wakes it, down: {down}");
        }
    }
}

/// A port's socket is found among the files of the process while users of other ports duplicate and close theirs.
#[test]
fn a_port_finds_its_own_socket_whatever_becomes_of_others() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let Some(dpdk) = dpdk() else { return };
    let (Some(cable), Some(other)) = (cable(1500), cable(1500)) else { return };
    let mut a: Box<dyn Datapath> = open(dpdk, &cable, 0);
    let bystander = open(dpdk, &other, 0);
    let handle = bystander.wake_handle().expect("a handle").try_clone_to_owned().expect("it can be duplicated");
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let some: Vec<_> = (0..7).map(|_| handle.try_clone().expect("it can be duplicated")).collect();
                std::thread::sleep(std::time::Duration::from_micros(300));
                drop(some);
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
        });
        // The thread ends also when this fails.
        let rounds = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..12 {
                let mut rig = Rig { a, b: open(dpdk, &cable, 1) };
                let (to, form) = (rig.b.address().expect("it is open"), Form::of(&rig));
                let (mut tx, start) = (TxBatch::default(), Instant::now());
                let mut rx = slots(&*rig.b);
                let woken = |rig: &Rig| {
                    let some = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                    let handle = rig.b.wake_handle().expect("a handle");
                    poll(&mut [PollFd::from_borrowed_fd(handle, PollFlags::IN)], Some(&some)) == Ok(1)
                };
                while rig.b.arm() != Armed::Sleep || woken(&rig) {
                    rig.b.receive(&mut rx, None);
                    rx.taken.drain(..).for_each(|taken| rx.free.push(taken.slot));
                    assert!(start.elapsed() < PATIENCE, "it is never quiet, round {round}");
                }
                form.add(&mut tx, to, &pattern(1, 100), 0);
                while !woken(&rig) {
                    rig.a.transmit(&mut tx);
                    assert!(start.elapsed() < PATIENCE, "nothing wakes it, round {round}");
                }
                a = rig.a;
            }
        }));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        rounds.unwrap_or_else(|why| std::panic::resume_unwind(why));
    });
}

/// The sockets among a process's files, by the numbers that `ls -l` has of them.
fn sockets(files: &str) -> Vec<&str> {
    files.split("socket:[").skip(1).filter_map(|rest| rest.split(']').next()).collect()
}

/// A process that is started while a port is open does not get its socket, which would live on there and take the frames of the next
/// port on the interface, or keep its queue from it.
#[test]
fn what_is_started_meanwhile_inherits_no_socket() {
    let Some(dpdk) = dpdk() else { return };
    let Some(cable) = cable(1500) else { return };
    let list = |of: String| {
        let said = Command::new("ls").args(["-l", &of]).output().expect("ls");
        String::from_utf8_lossy(&said.stdout).into_owned()
    };
    let own = || list(format!("/proc/{}/fd/", std::process::id()));
    for driver in ["net_af_packet", "net_af_xdp"] {
        if driver == "net_af_xdp" && !insane_tests_namespaces::has_af_xdp() {
            continue;
        }
        let before = own();
        let port = open_by(dpdk, driver, &cable, 0);
        let after = own();
        let all: Vec<&str> = sockets(&after).into_iter().filter(|one| !sockets(&before).contains(one)).collect();
        assert!(!all.is_empty(), "{driver} has no socket: {after}");
        // Others' sockets are inherited as long as they are being made.
        let start = Instant::now();
        loop {
            let files = list("/proc/self/fd/".into());
            assert!(files.contains("/proc/"), "{files}");
            if !sockets(&files).iter().any(|one| all.contains(one)) {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{driver}: of {all:?} in {files}");
        }
        cable.inside(0, || drop(port));
    }
}

/// A port with an interrupt wakes its sleeper: the kernel pings, and whoever has the port sleeps between the packets.
#[test]
fn a_sleeper_is_woken_by_a_tap() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let Some(dpdk) = dpdk() else { return };
    let Some(cable) = cable(1500) else { return };
    let mut tap = cable.inside(0, || {
        let device = format!("net_tap{},iface=tap0", serial());
        let config = DpdkConfig { station: Some(station(0)), ..DpdkConfig::new(device) };
        let mut tap = datagrams(dpdk.port(&config).expect("a configuration that can be"), "10.95.0.2/24");
        tap.open().unwrap_or_else(|e| panic!("it opens: {e}"));
        tap
    });
    cable.ip(0, "addr add 10.95.0.1/24 dev tap0").expect("an address");
    cable.ip(0, "link set tap0 up").expect("it comes up");
    let text = tap.raw().describe();
    assert!(text.contains("(net_tap)") && text.contains("it wakes sleepers"), "{text}");
    let handle = tap.wake_handle().expect("a handle").try_clone_to_owned().expect("it can be duplicated");
    let mut rx = RxBatch { free: (0..8).map(|id| Slot::owned(id, 2000)).collect(), ..RxBatch::default() };
    let (mut child, mut woken, start) = (ping(&cable, 0, "10.95.0.2"), 0, Instant::now());
    let status = loop {
        tap.receive(&mut rx, None);
        if tap.arm() == Armed::Sleep {
            let some = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
            woken += u32::from(poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&some)) == Ok(1));
        }
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            break status;
        }
        assert!(start.elapsed() < PATIENCE, "ping never ends");
    };
    assert!(status.success() && woken >= 3, "{status}, woken {woken} times: {:?}", tap.engine_stats());
}
