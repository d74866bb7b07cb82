//! Datagrams over AF_XDP, by the packet engine: the conformance suite for a station of INSANE's own beside the kernel's on the
//! same interface, and what the engine adds.

mod common;

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Cable, DEVICE, config};
use insane_datagrams::{DatagramConfig, Datagrams, Streams, station_of, with_streams};
use insane_datapath::batch::{Outcome, RxBatch, TxBatch};
use insane_datapath::conformance::{Rig, pattern};
use insane_datapath::memory::Slot;
use insane_datapath::{Address, Datapath, DatapathError};
use insane_datapath_xdp::{Attach, Filter, Vlan, XdpConfig, XdpDatapath};
use insane_netstack::Prefix;
use insane_tests_namespaces::{ethtool, leave_tags};

const PATIENCE: Duration = Duration::from_secs(20);

/// The ends' own addresses, which the kernel does not know.
const OWN: [[&str; 2]; 2] = [["10.98.0.101/24", "10.98.0.102/24"], ["fd98::101/64", "fd98::102/64"]];

const PORT: u16 = 7400;

/// A station with an address of its own, in the VLAN of the filter.
fn station(on: &XdpConfig, own: &str) -> (XdpDatapath, DatagramConfig) {
    let address: Prefix = own.parse().expect("a prefix");
    let station = station_of(address.address);
    let filter = Filter {
        ethertypes: vec![],
        udp_ports: vec![],
        station: Some(station),
        addresses: vec![address.address],
        vlan: if on.filter.vlan == Vlan::Any { Vlan::Untagged } else { on.filter.vlan },
    };
    let vlan = if let Vlan::Tagged(number) = filter.vlan { Some(number) } else { None };
    let raw = XdpDatapath::new(XdpConfig { filter, ..on.clone() });
    (raw, DatagramConfig { address, port: PORT, gateway: None, vlan })
}

/// Its datagrams.
fn datagrams(on: &XdpConfig, own: &str) -> Datagrams<XdpDatapath> {
    let (raw, config) = station(on, own);
    Datagrams::new(raw, config)
}

/// Frames over its TCP, open.
fn streams(cable: &Cable, end: usize, on: &XdpConfig, own: &str) -> Streams<XdpDatapath> {
    cable.0.inside(end, || {
        let (raw, config) = station(on, own);
        let (_, mut streams) = with_streams(raw, config, 2);
        streams.open().unwrap_or_else(|e| panic!("it opens: {e}"));
        streams
    })
}

/// Where the filter may run, in VLAN 7.
fn in_vlan(attach: Attach) -> XdpConfig {
    let on = config(attach);
    XdpConfig { filter: Filter { vlan: Vlan::Tagged(7), ..on.filter }, ..on }
}

/// A cable whose ends leave tags in the frames.
fn tagged_cable(mtu: u32) -> Option<Cable> {
    let cable = Cable::new(mtu, 1)?;
    for end in [0, 1] {
        cable.0.inside(end, || leave_tags(DEVICE)).expect("it can be told");
    }
    Some(cable)
}

fn open(cable: &Cable, end: usize, on: &XdpConfig, own: &str) -> Datagrams<XdpDatapath> {
    cable.0.inside(end, || {
        let mut datagrams = datagrams(on, own);
        datagrams.open().unwrap_or_else(|e| panic!("it opens: {e}"));
        datagrams
    })
}

fn slots(datapath: &dyn Datapath) -> RxBatch {
    let bytes = datapath.capabilities().slot_bytes;
    RxBatch { free: (0..64).map(|id| Slot::owned(id, bytes)).collect(), ..RxBatch::default() }
}

/// Both ends send until each has heard the other: from then on they know each other's station.
fn meet(rig: &mut Rig) {
    let (mut came, start) = ([false; 2], Instant::now());
    while came != [true; 2] {
        let to = [rig.b.address(), rig.a.address()].map(|address| address.expect("it is open"));
        for (end, datapath) in [&mut rig.a, &mut rig.b].into_iter().enumerate() {
            let (mut tx, mut rx) = (TxBatch::default(), slots(&**datapath));
            tx.frame(to[end], b"hello", 0);
            datapath.transmit(&mut tx);
            came[end] |= datapath.receive(&mut rx, None).frames > 0;
        }
        assert!(start.elapsed() < PATIENCE, "they never met: {:?} {:?}", rig.a.stats(), rig.b.stats());
    }
    // What is still on its way is not the suite's.
    let quiet = Instant::now();
    while quiet.elapsed() < Duration::from_millis(30) {
        for datapath in [&mut rig.a, &mut rig.b] {
            let mut rx = slots(&**datapath);
            datapath.transmit(&mut TxBatch::default());
            datapath.receive(&mut rx, None);
        }
    }
}

fn rig(cable: &Cable, on: &XdpConfig, own: [&str; 2]) -> Rig {
    let [a, b] = [0, 1].map(|end| Box::new(open(cable, end, on, own[end])));
    let mut rig = Rig { a, b };
    meet(&mut rig);
    rig
}

#[test]
fn conforms_over_ipv4() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    cable.conform(|| rig(&cable, &config(Attach::NativeOrGeneric), OWN[0]));
}

#[test]
fn conforms_over_ipv6() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    cable.conform(|| rig(&cable, &config(Attach::NativeOrGeneric), OWN[1]));
}

#[test]
fn conforms_with_jumbo_frames_before_the_stack() {
    let Some(cable) = Cable::new(9000, 1) else { return };
    cable.conform(|| rig(&cable, &config(Attach::Generic), OWN[0]));
}

#[test]
fn conforms_in_a_vlan() {
    let Some(cable) = tagged_cable(1500) else { return };
    cable.conform(|| rig(&cable, &in_vlan(Attach::NativeOrGeneric), OWN[0]));
}

/// Frames over TCP pass the same suite: lost links, peers that start anew, sleepers and all.
#[test]
fn streams_conform_over_ipv4_and_ipv6() {
    for own in OWN {
        let Some(cable) = Cable::new(1500, 1) else { return };
        let on = config(Attach::NativeOrGeneric);
        cable.conform(|| {
            let [a, b] = [0, 1].map(|end| Box::new(streams(&cable, end, &on, own[end])));
            let mut rig = Rig { a, b };
            meet(&mut rig);
            rig
        });
    }
}

#[test]
fn streams_conform_with_jumbo_frames_in_a_vlan() {
    let Some(cable) = tagged_cable(9000) else { return };
    cable.conform(|| {
        let [a, b] = [0, 1].map(|end| Box::new(streams(&cable, end, &in_vlan(Attach::Generic), OWN[0][end])));
        let mut rig = Rig { a, b };
        meet(&mut rig);
        rig
    });
}

/// The kernel's TCP is a peer as any other, whoever opens the connection, if it speaks as peers do: a record that says where it listens,
/// and then frames with their lengths.
#[test]
fn streams_meet_the_tcp_of_the_kernel() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    let mut station = streams(&cable, 1, &config(Attach::NativeOrGeneric), OWN[0][1]);
    // What a cable of this kind leaves to the interface would otherwise be done by nobody.
    const WHOLE_CHECKSUMS: u32 = 0x17;
    cable.0.inside(0, || ethtool(DEVICE, WHOLE_CHECKSUMS, 0)).expect("it can be told");
    let listener = cable.0.inside(0, || std::net::TcpListener::bind(("10.98.0.1", PORT)).expect("a port"));
    let record = |bytes: &[u8]| [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat();
    let preface = record(&[&b"INSA\x01\x00"[..], &PORT.to_le_bytes()].concat());
    let (kernel, own) = (Address::Ip(listener.local_addr().expect("it is bound")), station.address());
    let Some(Address::Ip(own)) = own else { panic!("it is open") };
    let big = pattern(3, 16_000);
    let said = [&preface[..], &record(b"first"), &record(&big)].concat();
    // The kernel connects, sends, and takes what the station says in a connection of its own: it knows of none to that address.
    let client = cable.0.inside(0, || {
        std::thread::spawn(move || {
            use std::io::Write;
            let mut client = std::net::TcpStream::connect(own).expect("it is taken");
            client.write_all(&said).expect("it is open");
            client
        })
    });
    let (mut rx, mut got, start) = (slots(&station), Vec::new(), Instant::now());
    while got.len() < 2 {
        station.receive(&mut rx, None);
        for taken in rx.taken.drain(..) {
            assert_eq!(taken.from, kernel);
            got.extend(taken.frames().map(<[u8]>::to_vec));
            rx.free.push(taken.slot);
        }
        assert!(start.elapsed() < PATIENCE, "{} frames came: {:?}", got.len(), station.stream_stats());
    }
    assert_eq!(got, [b"first".to_vec(), big.clone()]);
    // When its connection has ended, the station opens one.
    drop(client.join().expect("it was sent"));
    while station.stream_stats().ended == 0 {
        station.receive(&mut rx, None);
        assert!(start.elapsed() < PATIENCE, "nobody noticed");
    }
    let server = std::thread::spawn(move || {
        use std::io::Read;
        let (mut server, peer) = listener.accept().expect("it connects");
        let mut heard = vec![0; 12 + 4 + 16_000];
        server.read_exact(&mut heard).expect("all of it");
        (peer.ip(), heard)
    });
    let mut tx = TxBatch::default();
    tx.frame(kernel, &big, 0);
    while !server.is_finished() {
        station.transmit(&mut tx);
        station.receive(&mut rx, None);
        assert!(start.elapsed() < PATIENCE, "the kernel does not hear it: {:?}", station.stream_stats());
    }
    assert_eq!(server.join().expect("it was heard"), (own.ip(), [preface, record(&big)].concat()));
}

#[test]
fn every_datagram_has_an_outcome() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    let on = config(Attach::NativeOrGeneric);
    let mut rig = rig(&cable, &on, OWN[0]);
    let limit = rig.a.capabilities().max_frame;
    assert_eq!(limit, 1500 - 28);
    let (to, before) = (rig.b.address().expect("it is open"), [rig.a.stats(), rig.b.stats()]);
    let mut tx = TxBatch::default();
    tx.frame(to, &pattern(1, limit), 11);
    tx.frame(to, &pattern(1, limit + 1), 12);
    tx.frame(Address::Ethernet([2; 6]), &pattern(1, 100), 13);
    // There is no gateway.
    tx.frame(Address::Ip("192.0.2.1:7400".parse().expect("an address")), &pattern(1, 100), 14);
    tx.frame(to, &pattern(2, 0), 15);
    tx.frame(to, &pattern(2, 100), 16);
    let report = rig.a.transmit(&mut tx);
    let outcomes: Vec<Outcome> = tx.frames().iter().map(|frame| frame.outcome).collect();
    use Outcome::{Sent, TooLarge, Unreachable};
    assert_eq!(outcomes, [Sent, TooLarge, Unreachable, Unreachable, Sent, Sent]);
    assert_eq!((report.sent, report.refused, report.pending), (3, 3, 0));
    let (mut rx, mut got, start) = (slots(&*rig.b), Vec::new(), Instant::now());
    while got.len() < 2 {
        rig.b.receive(&mut rx, None);
        for taken in rx.taken.drain(..) {
            assert_eq!(taken.from, rig.a.address().expect("it is open"));
            got.extend(taken.frames().map(<[u8]>::to_vec));
            rx.free.push(taken.slot);
        }
        assert!(start.elapsed() < PATIENCE, "{} of 2 came", got.len());
    }
    assert_eq!(got, [pattern(1, limit), pattern(2, 100)]);
    let after = [rig.a.stats(), rig.b.stats()];
    assert_eq!((after[0].sent_frames - before[0].sent_frames, after[0].refused_frames), (3, 3));
    assert_eq!(after[1].received_frames - before[1].received_frames, 2);
}

/// The first datagrams wait for the neighbour's answer and then go, in order; whoever sends need not receive for that.
#[test]
fn the_first_datagrams_wait_for_the_neighbour() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    let on = config(Attach::NativeOrGeneric);
    for own in OWN {
        let [mut a, mut b] = [0, 1].map(|end| open(&cable, end, &on, own[end]));
        let (to, mut tx) = (b.address().expect("it is open"), TxBatch::default());
        (0..50).for_each(|number| tx.frame(to, &pattern(number, 200), number));
        let (mut rx, mut got, start) = (slots(&b), Vec::new(), Instant::now());
        while got.len() < 50 {
            a.transmit(&mut tx);
            assert!(tx.is_done(), "nothing is held up meanwhile");
            b.receive(&mut rx, None);
            for taken in rx.taken.drain(..) {
                got.extend(taken.frames().map(<[u8]>::to_vec));
                rx.free.push(taken.slot);
            }
            assert!(start.elapsed() < PATIENCE, "{} of 50 came", got.len());
        }
        assert!(got.iter().enumerate().all(|(number, frame)| *frame == pattern(number as u64, 200)), "out of order");
        // A neighbour that does not answer holds nobody else up, and is said to be out of reach in the end.
        let nobody = if own[0].contains(':') { "[fd98::199]:7400" } else { "10.98.0.199:7400" };
        let nobody = Address::Ip(nobody.parse().expect("an address"));
        loop {
            let mut tx = TxBatch::default();
            tx.frame(nobody, b"anybody?", 0);
            tx.frame(to, b"hello", 1);
            a.transmit(&mut tx);
            assert_eq!(tx.frames()[1].outcome, Outcome::Sent);
            if tx.frames()[0].outcome == Outcome::Unreachable {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "the silent neighbour is still waited for");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Beside the kernel on one interface: it finds the station, pings it and talks to its port; its own address answers as ever.
#[test]
fn the_kernel_is_a_neighbour_like_any_other() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    let mut b = open(&cable, 1, &config(Attach::NativeOrGeneric), OWN[0][1]);
    let ping = |to: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", cable.0.name(0), "ping", "-n", "-q", "-c", "5", "-i", "0.02", "-W", "10", to]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("ping")
    };
    let mut rx = slots(&b);
    for to in ["10.98.0.102", "10.98.0.2"] {
        let mut child = ping(to);
        let status = loop {
            b.receive(&mut rx, None);
            if let Some(status) = child.try_wait().expect("it can be waited for") {
                break status;
            }
        };
        assert!(status.success(), "{to} does not answer");
    }
    let socket = cable.0.inside(0, || std::net::UdpSocket::bind("10.98.0.1:0").expect("a port"));
    socket.set_nonblocking(true).expect("it can be");
    let own = Address::Ip(socket.local_addr().expect("it is bound"));
    let (mut tx, mut heard, start) = (TxBatch::default(), [0; 64], Instant::now());
    tx.frame(own, b"from the engine", 0);
    let from: SocketAddr = loop {
        b.transmit(&mut tx);
        b.receive(&mut rx, None);
        if let Ok((len, from)) = socket.recv_from(&mut heard) {
            assert_eq!(&heard[..len], b"from the engine");
            break from;
        }
        assert!(start.elapsed() < PATIENCE, "the kernel never got it: {:?}", b.engine_stats());
    };
    assert_eq!(Some(Address::Ip(from)), b.address());
}

/// The kernel has a VLAN on the other end of the cable: it finds the station and pings it there, with packets as large as those of the
/// link. Of another VLAN the station hears nothing, and what has no tag is the kernel's as ever.
#[test]
fn the_kernel_pings_a_station_in_a_vlan() {
    for attach in [Attach::Native, Attach::Generic] {
        let Some(cable) = tagged_cable(1500) else { return };
        let [_seven, _eight] = [7, 8].map(|vlan| {
            let (name, address) = (format!("vlan{vlan}"), format!("10.99.{vlan}.1/24"));
            insane_tests_namespaces::Vlan::new(&cable.0, 0, DEVICE, vlan, (&name, &address))
        });
        // Whoever asks for it in VLAN 8 asks for the same address.
        cable.0.ip(0, "route add 10.99.7.102/32 dev vlan8 table 8").expect("a route");
        cable.0.ip(0, "rule add from 10.99.8.1 table 8").expect("a rule");
        let mut b = open(&cable, 1, &in_vlan(attach), "10.99.7.102/24");
        let mut rx = slots(&b);
        let mut ping = |arguments: &str| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", cable.0.name(0), "ping", "-n", "-q"]).args(arguments.split(' '));
            let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("ping");
            loop {
                b.receive(&mut rx, None);
                if let Some(status) = child.try_wait().expect("it can be waited for") {
                    return status.success();
                }
            }
        };
        assert!(ping("-c 5 -i 0.02 -W 10 10.99.7.102"), "{attach:?}");
        assert!(ping("-c 2 -i 0.02 -W 10 -M do -s 1472 10.99.7.102"), "{attach:?}: the largest packets");
        assert!(ping("-c 2 -i 0.02 -W 10 10.98.0.2"), "{attach:?}: what has no tag");
        assert!(!ping("-c 1 -W 1 -I 10.99.8.1 10.99.7.102"), "{attach:?}: it answers in another VLAN");
    }
}

#[test]
fn what_cannot_be_opened_says_why() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    // What takes tags off before they are seen has no VLANs.
    let error = cable.0.inside(0, || datagrams(&in_vlan(Attach::Generic), OWN[0][0]).open().unwrap_err().to_string());
    assert!(error.contains("none is of VLAN 7: `ethtool -K veth0 rxvlan off`"), "{error}");
    let error = cable.0.inside(0, || datagrams(&XdpConfig::new("nowhere0"), OWN[0][0]).open().unwrap_err());
    assert!(matches!(&error, DatapathError::Unavailable { technology: "xdp", reason } if reason.contains("nowhere0")));
    // A whole network is no host's address.
    let on = config(Attach::NativeOrGeneric);
    let error = cable.0.inside(0, || datagrams(&on, "10.98.0.0/24").open().unwrap_err().to_string());
    assert!(error.contains("10.98.0.0/24 is no address that a host can have"), "{error}");
}
