//! Runtimes in network namespaces that look for each other by multicast, on one of two cables: on the other nothing is ever sent.
//! Without root: SKIPPED.

use insane::{Qos, Session};
use insane_runtime::config::Directory;
use insane_tests_host::Watchdog;
use insane_tests_namespaces::{Namespaces, enter};
use insane_tests_network::{LIMIT, Process, config, eventually, status, within};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const TEST: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

/// All of Ethernet's protocols, `ETH_P_ALL` in the byte order of the network.
const ALL: NonZeroU32 = NonZeroU32::new(3u16.to_be() as u32).unwrap();

/// The Ethernet address of one of a host's interfaces.
fn hardware(net: u8, at: usize) -> [u8; 6] {
    [2, 0, 0, 0, net, u8::try_from(at).unwrap()]
}

/// Namespaces whose `named0` are on one switch and whose `other0` are on another. The default route is by `other0`.
struct Lab(Namespaces);

/// The hosts of the lab.
const HOSTS: usize = 3;

impl Lab {
    /// `None` where namespaces cannot be made; then it has said so.
    fn new() -> Option<Self> {
        let namespaces = Namespaces::new(["s0", "s1", "s2", "sw"], |names| {
            let (hosts, w) = (&names[..HOSTS], &names[HOSTS]);
            let mut steps = Vec::new();
            for cable in ["named", "other"] {
                steps.push(format!("-n {w} link add {cable} type bridge mcast_snooping 0"));
                steps.push(format!("-n {w} link set {cable} up"));
            }
            for (i, n) in hosts.iter().enumerate() {
                steps.push(format!("-n {n} link set lo up"));
                for (cable, net) in [("named", 97u8), ("other", 98)] {
                    steps.push(format!("link add {cable}0 netns {n} type veth peer name {cable}{i} netns {w}"));
                    steps.push(format!("-n {w} link set {cable}{i} master {cable} up"));
                    // No address of IPv6: the kernel would say something about it of its own accord.
                    let own = hardware(net, i).map(|b| format!("{b:02x}")).join(":");
                    steps.push(format!("-n {n} link set {cable}0 address {own} addrgenmode none up"));
                    steps.push(format!("-n {n} addr add 10.{net}.0.{}/24 dev {cable}0", i + 1));
                }
                steps.push(format!("-n {n} route add default via 10.98.0.250 dev other0"));
                // Who the gateway is need not be asked for: a packet that goes astray would be seen.
                steps.push(format!("-n {n} neigh add 10.98.0.250 lladdr 02:00:00:00:00:fa dev other0"));
            }
            steps
        })?;
        Some(Self(namespaces))
    }

    /// A runtime that looks for others on `named0`.
    fn runtime(&self, at: usize, interface: &str) -> Process {
        let ip = format!("10.97.0.{}", at + 1);
        let mut config = config(&format!("host-{at}"), format!("{ip}:7400").parse().unwrap(), &[]);
        let network = config.network.get_or_insert_default();
        network.patience_ms = 500;
        interface.clone_into(&mut network.interface);
        network.directory = Some(Directory {
            listen: vec![format!("{ip}:7402").parse().unwrap()],
            interfaces: vec!["named0".into()],
            ..Directory::default()
        });
        Process::start(PROGRAM, Some(self.0.name(at)), &config)
    }
}

/// What a host sends by one interface, known by the address that its frames come from.
struct Capture {
    stop: Arc<AtomicBool>,
    frames: Arc<Mutex<Vec<Vec<u8>>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Capture {
    fn start(namespace: &str, from: [u8; 6]) -> Self {
        let (stop, frames) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (seen, ended) = (frames.clone(), stop.clone());
        let namespace = namespace.to_owned();
        let thread = std::thread::spawn(move || {
            enter(&namespace);
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let all = Protocol::from_raw(ALL);
            let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(all)).unwrap();
            ready.send(()).unwrap();
            let mut bytes = [0u8; 2048];
            while !ended.load(Ordering::Relaxed) {
                match rustix::net::recv(&socket, &mut bytes[..], RecvFlags::empty()) {
                    Ok((len, _)) if bytes[..len].get(6..12) == Some(&from[..]) => {
                        seen.lock().unwrap().push(bytes[..len].to_vec());
                    }
                    Ok(_) => {}
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        is_ready.recv().unwrap();
        Self { stop, frames, thread: Some(thread) }
    }

    fn frames(&self) -> Vec<Vec<u8>> {
        self.frames.lock().unwrap().clone()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn directory(session: &Session) -> serde_json::Value {
    status(session)["network"]["directory"].clone()
}

#[test]
fn runtimes_find_each_other_on_the_named_interface_and_nothing_is_sent_on_another() {
    let _watchdog = Watchdog::start("scouting", TEST);
    let Some(lab) = Lab::new() else { return };
    let other = [0, 1, 2].map(|i| Capture::start(lab.0.name(i), hardware(98, i)));
    let named = Capture::start(lab.0.name(0), hardware(97, 0));
    // With `network.interface` and without.
    let runtimes = [lab.runtime(0, "named0"), lab.runtime(1, "named0"), lab.runtime(2, "")];
    let sessions = [0, 1, 2].map(|i| runtimes[i].session("app"));
    let streams = sessions.each_ref().map(|s| s.stream(Qos::default()).unwrap());
    let sinks = [1, 2].map(|i| streams[i].sink("c").unwrap());
    let source = streams[0].source("c").unwrap();
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2, "{}", directory(&sessions[0]));
    source.send(b"found").unwrap();
    for sink in &sinks {
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"found");
    }
    // A stranger on the named cable would have them talk to somebody to whom the way is the other one.
    lab.0.ip(1, "addr add 10.99.0.9/32 dev named0").unwrap();
    lab.0.ip(1, "route add 239.255.74.0/32 dev named0").unwrap();
    lab.0.inside(1, || {
        let socket = UdpSocket::bind("10.99.0.9:0").unwrap();
        let group: SocketAddr = (Ipv4Addr::new(239, 255, 74, 0), 7401).into();
        let beacon = [&b"INSANEd1"[..], &[0xff; 16], &7402u16.to_le_bytes(), &[7], b"default"].concat();
        for _ in 0..40 {
            socket.send_to(&beacon, group).unwrap();
            socket.send_to(b"INSANEd1 and nothing else", group).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    assert!(directory(&sessions[0])["beacons"]["heard"].as_u64() > Some(0), "{}", directory(&sessions[0]));
    // The named cable is cut: what waits to be sent must not look for another way.
    lab.0.ip(0, "link set named0 down").unwrap();
    let cut = Instant::now();
    source.send(b"for nobody").unwrap();
    assert!(within(Duration::from_secs(10), || source.sinks() == 0), "{}", status(&sessions[0])["network"]);
    assert!(cut.elapsed() < Duration::from_secs(3), "noticed after {:?}", cut.elapsed());
    std::thread::sleep(Duration::from_secs(4));
    lab.0.ip(0, "link set named0 up").unwrap();
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2, "{}", directory(&sessions[0]));
    source.send(b"again").unwrap();
    for sink in &sinks {
        assert!(eventually(|| sink.consume_timeout(LIMIT).unwrap().to_vec() == b"again"));
    }
    assert!(!named.frames().is_empty(), "the capture sees what there is");
    for (at, capture) in other.iter().enumerate() {
        let frames = capture.frames();
        assert!(frames.is_empty(), "host {at} sent {} frames there: {:02x?}", frames.len(), frames[0]);
    }
}
