//! What the engine answers to what, frame by frame.

mod frames;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use frames::{OURS, PEER, arp, config, discovery, echo, host, icmp, interface, packet, pieces, udp};
use insane_netstack::arp::{Arp, Operation};
use insane_netstack::ether::{self, Ethernet};
use insane_netstack::icmp::{Message, Problem};
use insane_netstack::ip::{self, Ip};
use insane_netstack::nd::{self, Discovery};
use insane_netstack::{
    Arrival, BindError, Config, ConfigError, Emit, Engine, Interface, Mac, Payload, Prefix, Rate, Reason, Received,
    Route, SendError,
};

const SECOND: u64 = 1_000_000_000;
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 3]);
type Frames = Vec<(u8, Vec<u8>)>;

fn engine() -> Engine {
    Engine::new(&config()).unwrap()
}

fn to(six: bool, n: u8, port: u16) -> SocketAddr {
    SocketAddr::new(host(six, n), port)
}

/// What becomes of a frame, by name.
fn take(engine: &mut Engine, now: u64, frame: &[u8], out: &mut Frames) -> &'static str {
    match engine.receive(now, &Arrival::new(0, frame), out) {
        Received::Udp(_) => "udp",
        Received::Tcp => "tcp",
        Received::Problem(_) => "problem",
        Received::Done => "done",
        Received::Held => "held",
        Received::Dropped(reason) => reason.name(),
        _ => "?",
    }
}

/// An engine that knows where its peer is.
fn acquainted() -> Engine {
    let mut engine = engine();
    let mut out = Vec::new();
    let (IpAddr::V6(us), IpAddr::V6(peer)) = (host(true, 1), host(true, 2)) else { unreachable!() };
    assert_eq!(take(&mut engine, 0, &arp(Operation::Request, PEER, "10.0.0.2", "10.0.0.1", OURS), &mut out), "done");
    let ask = Discovery::Solicitation { target: us, station: Some(PEER) };
    assert_eq!(take(&mut engine, 0, &discovery(peer, nd::group_of(us), 255, &ask), &mut out), "done");
    engine
}

/// The IP packet in a frame.
fn parse(frame: &[u8]) -> (Ethernet, Ip, &[u8]) {
    let (ethernet, at) = Ethernet::parse(frame).unwrap();
    let packet = &frame[at..];
    let ip = if ethernet.kind == ether::IPV4 { Ip::parse_v4(packet) } else { Ip::parse_v6(packet) }.unwrap();
    (ethernet, ip, &packet[ip.header..ip.end])
}

fn message(frame: &[u8]) -> (Message, &[u8]) {
    let (_, ip, payload) = parse(frame);
    (Message::parse(ip.from, ip.to, payload).unwrap(), &payload[8..])
}

#[test]
fn questions_for_us_are_answered_and_others_not() {
    let (mut engine, mut out) = (engine(), Frames::new());
    take(&mut engine, 0, &arp(Operation::Request, PEER, "10.0.0.2", "10.0.0.1", Mac::BROADCAST), &mut out);
    let (ethernet, at) = Ethernet::parse(&out[0].1).unwrap();
    let answer = Arp::parse(&out[0].1[at..]).unwrap();
    assert_eq!((ethernet.to, ethernet.from), (PEER, OURS));
    assert_eq!((answer.operation, answer.sender, answer.target), (Operation::Reply, OURS, PEER));
    assert_eq!((answer.sender_ip.to_string(), answer.target_ip.to_string()), ("10.0.0.1".into(), "10.0.0.2".into()));
    out.clear();
    for (frame, what) in [
        (arp(Operation::Request, PEER, "10.0.0.2", "10.0.0.7", Mac::BROADCAST), "not_our_neighbour"),
        (arp(Operation::Request, OTHER, "10.0.0.3", "10.0.0.1", Mac::BROADCAST), "arp_spoofed"),
        (arp(Operation::Request, PEER, "10.9.0.3", "10.0.0.1", Mac::BROADCAST), "arp_spoofed"),
        (arp(Operation::Request, PEER, "10.0.0.255", "10.0.0.1", Mac::BROADCAST), "arp_spoofed"),
        (arp(Operation::Request, PEER, "10.0.0.1", "10.0.0.1", Mac::BROADCAST), "address_conflict"),
        (arp(Operation::Reply, PEER, "10.0.0.8", "10.0.0.1", OURS), "arp_unsolicited"),
        (arp(Operation::Request, PEER, "10.0.0.8", "10.0.0.8", Mac::BROADCAST), "arp_unsolicited"),
        (arp(Operation::Reply, PEER, "10.0.0.8", "10.0.0.8", Mac::BROADCAST), "arp_unsolicited"),
    ] {
        assert_eq!(take(&mut engine, 1, &frame, &mut out), what);
    }
    assert_eq!((out.len(), engine.usage()[0]), (0, 1));
    // Somebody who tries out our address is told; nothing is learnt from it.
    assert_eq!(
        take(&mut engine, 1, &arp(Operation::Request, PEER, "0.0.0.0", "10.0.0.1", Mac::BROADCAST), &mut out),
        "done"
    );
    assert_eq!((out.len(), engine.usage()[0]), (1, 1));
}

#[test]
fn packets_wait_for_their_neighbour_in_order_and_within_bounds() {
    let mut config = config();
    config.limits.waiting_per_neighbour = 3;
    let (mut engine, mut out) = (Engine::new(&config).unwrap(), Frames::new());
    let bound = engine.bind(None, 1000).unwrap();
    for n in 0..5u8 {
        engine.send(0, bound, to(false, 2, 2000), &[&[n; 4]], &mut out).unwrap();
    }
    assert_eq!((out.len(), engine.usage()[2], engine.stats().dropped(Reason::WaitingFull)), (1, 3, 2));
    let mut flow = engine.flow(bound, to(false, 2, 2000));
    assert_eq!(engine.header(0, &mut flow, 4, &mut out).err(), Some(SendError::Resolving));
    out.clear();
    assert_eq!(take(&mut engine, 1, &arp(Operation::Reply, PEER, "10.0.0.2", "10.0.0.1", OURS), &mut out), "done");
    let sent: Vec<u8> = out.iter().map(|(_, frame)| *frame.last().unwrap()).collect();
    assert_eq!((sent, engine.usage()[2]), (vec![2, 3, 4], 0));
    assert!(engine.header(1, &mut flow, 4, &mut out).is_ok());
    // Nobody answers: what waits is dropped, and counted.
    engine.send(1, bound, to(false, 7, 2000), &[b"x"], &mut out).unwrap();
    let mut now = 1;
    while let Some(due) = engine.poll(now, &mut out).filter(|due| *due < 20 * SECOND) {
        now = due;
    }
    assert_eq!((engine.usage()[2], engine.stats().dropped(Reason::NeighbourSilent)), (0, 1));
}

#[test]
fn a_flow_follows_its_neighbour_to_another_station() {
    let (mut engine, mut out) = (acquainted(), Frames::new());
    let bound = engine.bind(None, 1000).unwrap();
    let mut flow = engine.flow(bound, to(false, 2, 2000));
    let station = |header: insane_netstack::Header| Ethernet::parse(header.bytes()).unwrap().0.to;
    assert_eq!(station(engine.header(1, &mut flow, 1, &mut out).unwrap()), PEER);
    let mut moved = arp(Operation::Request, OTHER, "10.0.0.2", "10.0.0.2", Mac::BROADCAST);
    moved[6..12].copy_from_slice(&OTHER.0);
    assert_eq!(take(&mut engine, 2, &moved, &mut out), "done");
    assert_eq!(station(engine.header(3, &mut flow, 1, &mut out).unwrap()), OTHER);
    assert!(engine.unbind(bound));
    assert_eq!(engine.header(4, &mut flow, 1, &mut out).err(), Some(SendError::NotBound));
}

#[test]
fn neighbour_discovery_keeps_the_rules() {
    let (mut engine, mut out) = (engine(), Frames::new());
    let (IpAddr::V6(us), IpAddr::V6(peer)) = (host(true, 1), host(true, 2)) else { unreachable!() };
    let (group, any) = (nd::group_of(us), Ipv6Addr::UNSPECIFIED);
    let ask = Discovery::Solicitation { target: us, station: Some(PEER) };
    let bare = Discovery::Solicitation { target: us, station: None };
    let told = |target| Discovery::Advertisement { target, station: Some(PEER), solicited: false, overrides: true };
    for (frame, what) in [
        (discovery(peer, group, 254, &ask), "discovery_malformed"),
        (discovery(any, group, 255, &ask), "discovery_malformed"),
        (discovery("fd99::1".parse().unwrap(), group, 255, &ask), "discovery_malformed"),
        (
            discovery(peer, group, 255, &Discovery::Solicitation { target: us, station: Some(OTHER) }),
            "discovery_malformed",
        ),
        (
            discovery(peer, group, 255, &Discovery::Solicitation { target: peer, station: Some(PEER) }),
            "not_our_neighbour",
        ),
        (discovery(peer, us, 255, &told(peer)), "discovery_unsolicited"),
        (discovery(peer, us, 255, &told(us)), "address_conflict"),
    ] {
        assert_eq!(take(&mut engine, 0, &frame, &mut out), what);
    }
    assert_eq!((out.len(), engine.usage()[0]), (0, 0));
    assert_eq!(take(&mut engine, 0, &discovery(peer, group, 255, &ask), &mut out), "done");
    let (ethernet, ip, payload) = parse(&out[0].1);
    let IpAddr::V6(from) = ip.from else { unreachable!() };
    let answer = Discovery::parse(from, peer, ip.hop_limit, payload).unwrap();
    let expected = Discovery::Advertisement { target: us, station: Some(OURS), solicited: true, overrides: true };
    assert_eq!((ethernet.to, answer), (PEER, expected));
    // Somebody tries out our address: all are told whose it is.
    assert_eq!(take(&mut engine, 0, &discovery(any, group, 255, &bare), &mut out), "done");
    let (ethernet, ip, _) = parse(&out[1].1);
    assert_eq!((ethernet.to, ip.to), (Mac([0x33, 0x33, 0, 0, 0, 1]), "ff02::1".parse::<IpAddr>().unwrap()));
}

#[test]
fn errors_are_never_sent_about_errors_groups_and_too_often() {
    let mut config = config();
    config.limits.errors = Rate { per_second: 10, burst: 3 };
    let (mut engine, mut out) = (Engine::new(&config).unwrap(), Frames::new());
    take(&mut engine, 0, &arp(Operation::Request, PEER, "10.0.0.2", "10.0.0.1", OURS), &mut out);
    out.clear();
    let (us, peer) = (host(false, 1), host(false, 2));
    let closed = udp(peer, us, (2000, 9), b"anybody?");
    assert_eq!(take(&mut engine, 0, &closed, &mut out), "udp_port");
    let (error, quote) = message(&out[0].1);
    assert_eq!((error, quote), (Message::Error(Problem::Port), &closed[14..]));
    out.clear();
    let mut to_all = closed.clone();
    to_all[..6].copy_from_slice(&[0xff; 6]);
    for (frame, what) in [
        (udp(peer, frames::ip("10.0.0.255"), (2000, 9), b"x"), "udp_port"),
        (udp(peer, frames::ip("255.255.255.255"), (2000, 9), b"x"), "udp_port"),
        (udp(peer, frames::ip("224.0.0.1"), (2000, 9), b"x"), "not_our_group"),
        (udp(frames::ip("10.0.0.255"), us, (2000, 9), b"x"), "bad_source"),
        (udp(frames::ip("224.0.0.9"), us, (2000, 9), b"x"), "bad_source"),
        (udp(frames::ip("127.0.0.1"), us, (2000, 9), b"x"), "bad_source"),
        (udp(us, us, (2000, 9), b"x"), "bad_source"),
        (udp(peer, frames::ip("10.0.0.77"), (2000, 9), b"x"), "not_our_address"),
        (to_all, "not_our_address"),
        (echo(peer, frames::ip("10.0.0.255"), b"x"), "echo_refused"),
        (icmp(peer, us, [3, 3], [0; 4], &closed[14..]), "icmp_foreign"),
        (icmp(peer, us, [99, 0], [0; 4], b"x"), "icmp_unknown"),
    ] {
        assert_eq!(take(&mut engine, 0, &frame, &mut out), what);
    }
    assert_eq!(out, []);
    assert_eq!(take(&mut engine, 0, &packet(peer, us, 99, 64, None, b"x"), &mut out), "unknown_protocol");
    assert_eq!(message(&out[0].1).0, Message::Error(Problem::Protocol));
    for _ in 0..10 {
        take(&mut engine, 0, &closed, &mut out);
    }
    assert_eq!((out.len(), engine.stats().errors, engine.stats().dropped(Reason::ErrorLimited)), (2, 3, 9));
    assert!(engine.stats().adds_up());
}

#[test]
fn path_mtus_are_believed_for_what_was_sent_only() {
    for six in [false, true] {
        let (mut engine, mut out) = (acquainted(), Frames::new());
        let (us, peer, router) = (host(six, 1), host(six, 2), host(six, 9));
        let bound = engine.bind(None, 1000).unwrap();
        let least: u16 = if six { 1280 } else { 552 };
        let report = |from: IpAddr, peer: IpAddr, port: u16, len: usize, mtu: u16| {
            let sent = udp(us, peer, (port, 2000), &vec![0; len]);
            let [a, b] = mtu.to_be_bytes();
            let kind = if six { [2, 0] } else { [3, 4] };
            icmp(router, from, kind, [0, 0, a, b], &sent[14..14 + if six { 60 } else { 28 }])
        };
        // Nothing went there yet.
        assert_eq!(take(&mut engine, 0, &report(us, peer, 1000, 1400, 1300), &mut out), "icmp_foreign");
        engine.send(0, bound, SocketAddr::new(peer, 2000), &[&[0; 1400]], &mut out).unwrap();
        let before = engine.limit(0, SocketAddr::new(peer, 2000));
        for (frame, what) in [
            (report(us, peer, 1001, 1400, 1300), "icmp_foreign"),
            (report(us, host(six, 3), 1000, 1400, 1300), "icmp_foreign"),
            (report(us, peer, 1000, 1400, least - 1), "mtu_implausible"),
            (report(us, peer, 1000, 1400, 1499), "mtu_implausible"),
            (report(us, peer, 1000, 1200, 1300), "mtu_implausible"),
        ] {
            assert_eq!(take(&mut engine, 0, &frame, &mut out), what, "{six}");
        }
        assert_eq!(engine.limit(0, SocketAddr::new(peer, 2000)), before);
        let Received::Problem(found) =
            engine.receive(0, &Arrival::new(0, &report(us, peer, 1000, 1400, 1300)), &mut out)
        else {
            panic!("it is believed")
        };
        assert_eq!((found.binding, found.problem, found.reporter), (Some(bound), Problem::TooBig(1300), router));
        let headers = if six { 48 } else { 28 };
        assert_eq!(engine.limit(1, SocketAddr::new(peer, 2000)), Some(1300 - headers));
        assert_eq!(engine.limit(601 * SECOND, SocketAddr::new(peer, 2000)), before);
    }
}

#[test]
fn what_is_too_large_is_refused_or_cut() {
    let (mut engine, mut out) = (acquainted(), Frames::new());
    let bound = engine.bind(None, 1000).unwrap();
    for (six, most) in [(false, 1472), (true, 1452)] {
        let mut flow = engine.flow(bound, to(six, 2, 2000));
        assert!(engine.header(0, &mut flow, most, &mut out).is_ok());
        let refused = engine.header(0, &mut flow, most + 1, &mut out);
        assert_eq!(refused.err(), Some(SendError::TooLarge { limit: most }));
        out.clear();
        engine.send(0, bound, to(six, 2, 2000), &[&[1; 3000], &[2; 1000]], &mut out).unwrap();
        let mut other = Engine::new(&Config::new(vec![interface(2, PEER)], 1)).unwrap();
        other.bind(None, 2000).unwrap();
        let mut answers = Frames::new();
        assert_eq!(out.len(), 3);
        for (n, (_, frame)) in out.iter().enumerate() {
            assert!(frame.len() <= 1514, "{}", frame.len());
            let got = other.receive(0, &Arrival::new(0, frame), &mut answers);
            match got {
                Received::Held => assert!(n < 2),
                Received::Udp(datagram) => {
                    let Payload::Whole(bytes) = datagram.payload else { panic!("it came in pieces") };
                    assert_eq!((n, bytes), (2, &[&[1; 3000][..], &[2; 1000]].concat()[..]));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn an_unfinished_packet_is_reported_when_its_time_is_over() {
    for six in [false, true] {
        let (mut engine, mut out) = (acquainted(), Frames::new());
        let (us, peer) = (host(six, 1), host(six, 2));
        let parts = pieces(peer, us, 77, &[3; 2000], 1000);
        assert_eq!(take(&mut engine, SECOND, &parts[0], &mut out), "held");
        let patience = if six { 60 } else { 30 };
        assert_eq!(engine.poll(SECOND, &mut out), Some((1 + patience) * SECOND));
        assert_eq!(out, []);
        engine.poll((1 + patience) * SECOND, &mut out);
        // The peer was not heard of for so long that it is asked after as well.
        let errors: Vec<_> = out.iter().filter(|(_, frame)| frame[12..14] != [8, 6]).collect();
        let (error, quote) = message(&errors[0].1);
        assert_eq!((error, quote.len()), (Message::Error(Problem::Reassembly), if six { 48 } else { 28 }));
        assert_eq!(engine.stats().dropped(Reason::ReassemblyTimeout), 1);
        // Without its start nobody is told.
        assert_eq!(take(&mut engine, 100 * SECOND, &parts[1], &mut out), "held");
        out.clear();
        engine.poll(200 * SECOND, &mut out);
        assert!(out.iter().all(|(_, frame)| frame.len() < 60 || frame[20] == 58), "{out:?}");
        assert_eq!((engine.usage()[1], engine.stats().errors), (0, 1));
    }
}

#[test]
fn packets_beyond_the_link_go_to_the_gateway() {
    let mut config = config();
    let prefix = |text: &str| text.parse::<Prefix>().unwrap();
    config.interfaces.push(Interface {
        device: 4,
        vlan: Some(70),
        priority: 5,
        ..Interface::new(Mac([2, 0, 0, 0, 0, 7]), vec![prefix("10.7.0.1/24")])
    });
    for (net, gateway, interface) in [("0.0.0.0/0", "10.0.0.2", 0), ("172.16.0.0/12", "10.7.0.9", 1)] {
        config.routes.push(Route { to: prefix(net), gateway: Some(frames::ip(gateway)), interface, metric: 0 });
    }
    let (mut engine, mut out) = (Engine::new(&config).unwrap(), Frames::new());
    take(&mut engine, 0, &arp(Operation::Request, PEER, "10.0.0.2", "10.0.0.1", OURS), &mut out);
    out.clear();
    let bound = engine.bind(None, 1000).unwrap();
    engine.send(0, bound, "198.51.100.7:9".parse().unwrap(), &[b"far"], &mut out).unwrap();
    let (ethernet, ip, _) = parse(&out[0].1);
    assert_eq!((ethernet.to, ip.from.to_string(), ip.to.to_string()), (PEER, "10.0.0.1".into(), "198.51.100.7".into()));
    out.clear();
    engine.send(0, bound, "172.16.5.5:9".parse().unwrap(), &[b"other"], &mut out).unwrap();
    let (ethernet, at) = Ethernet::parse(&out[0].1).unwrap();
    let question = Arp::parse(&out[0].1[at..]).unwrap();
    assert_eq!(
        (out[0].0, question.target_ip.to_string(), question.sender_ip.to_string()),
        (4, "10.7.0.9".into(), "10.7.0.1".into())
    );
    assert_eq!(ethernet.tag.map(|tag| (tag.vlan, tag.priority)), Some((70, 5)));
    // No way: to ourselves, to the other family without addresses, to all of a network that is not ours.
    for to in ["10.0.0.1:9", "0.0.0.0:9", "127.0.0.1:9", "[::1]:9"] {
        assert_eq!(engine.send(0, bound, to.parse().unwrap(), &[b"x"], &mut out), Err(SendError::NoRoute), "{to}");
    }
    let only = engine.bind(Some(host(false, 1)), 7).unwrap();
    assert_eq!(engine.send(0, only, to(true, 2, 9), &[b"x"], &mut out), Err(SendError::NotBound));
    assert_eq!(engine.bind(Some(frames::ip("10.0.0.9")), 8), Err(BindError::NotOurs(frames::ip("10.0.0.9"))));
}

#[test]
fn broadcasts_and_groups_are_sent_and_taken() {
    let mut config = config();
    config.interfaces[0].groups.push(frames::ip("239.1.2.3"));
    let (mut engine, mut out) = (Engine::new(&config).unwrap(), Frames::new());
    let bound = engine.bind(None, 1000).unwrap();
    for (to, station) in [
        ("10.0.0.255:9", Mac::BROADCAST),
        ("255.255.255.255:9", Mac::BROADCAST),
        ("239.1.2.3:9", Mac([1, 0, 0x5e, 1, 2, 3])),
        ("[ff02::77]:9", Mac([0x33, 0x33, 0, 0, 0, 0x77])),
    ] {
        engine.send(0, bound, to.parse().unwrap(), &[b"all"], &mut out).unwrap();
        assert_eq!(parse(&out.pop().unwrap().1).0.to, station, "{to}");
    }
    for group in ["239.1.2.3", "10.0.0.255", "255.255.255.255"] {
        let frame = udp(host(false, 2), frames::ip(group), (2000, 1000), b"x");
        assert_eq!(take(&mut engine, 0, &frame, &mut out), "udp", "{group}");
    }
    assert_eq!(
        take(&mut engine, 0, &udp(host(false, 2), frames::ip("239.1.2.4"), (2000, 1000), b"x"), &mut out),
        "not_our_group"
    );
}

#[test]
fn a_device_can_check_and_make_the_checksum() {
    let (mut engine, mut out) = (acquainted(), Frames::new());
    let bound = engine.bind(None, 1000).unwrap();
    for six in [false, true] {
        let mut frame = udp(host(six, 2), host(six, 1), (2000, 1000), b"hello");
        let last = frame.len() - 1;
        frame[last] ^= 1;
        assert_eq!(take(&mut engine, 0, &frame, &mut out), "udp_checksum");
        let arrival = Arrival { verified: true, ..Arrival::new(0, &frame) };
        assert!(matches!(engine.receive(0, &arrival, &mut out), Received::Udp(_)));
        let mut flow = engine.flow(bound, to(six, 2, 2000));
        let mut header = engine.header(0, &mut flow, 5, &mut out).unwrap();
        header.offload();
        // What a device does: it sums up from the UDP header on, the field with the pseudo-header's sum among it.
        let udp_at = header.bytes().len() - 8;
        let sum = insane_netstack::checksum::of(&[&header.bytes()[udp_at..], b"hello"].concat());
        let mut by_device = header.bytes().to_vec();
        by_device[udp_at + 6..].copy_from_slice(&sum.to_be_bytes());
        header.checksum([&b"he"[..], b"llo"]);
        assert_eq!(header.bytes(), by_device);
    }
}

#[test]
fn a_datapath_that_takes_nothing_loses_and_counts() {
    struct Shut;
    impl Emit for Shut {
        fn emit(&mut self, _device: u8, _pieces: &[&[u8]]) -> bool {
            false
        }
    }
    let mut engine = acquainted();
    let bound = engine.bind(None, 1000).unwrap();
    assert_eq!(engine.send(0, bound, to(false, 2, 9), &[b"x"], &mut Shut), Err(SendError::Full));
    assert_eq!(engine.stats().dropped(Reason::OutputFull), 1);
}

#[test]
fn addresses_are_announced_to_those_who_know_them() {
    let (mut moved, mut out) = (Engine::new(&Config::new(vec![interface(2, OTHER)], 1)).unwrap(), Frames::new());
    assert_eq!(moved.addresses().count(), 3);
    moved.announce(0, &mut out);
    assert_eq!(out.len(), 3);
    let (mut engine, mut answers) = (acquainted(), Frames::new());
    let bound = engine.bind(None, 1000).unwrap();
    let taken: Vec<_> = out.iter().map(|(_, frame)| take(&mut engine, 0, frame, &mut answers)).collect();
    assert_eq!(taken, ["done", "done", "discovery_unsolicited"]);
    for six in [false, true] {
        let mut flow = engine.flow(bound, to(six, 2, 2000));
        let header = engine.header(1, &mut flow, 1, &mut answers).unwrap();
        assert_eq!(Ethernet::parse(header.bytes()).unwrap().0.to, OTHER);
    }
}

#[test]
fn an_engine_may_go_to_another_thread() {
    let mut engine = engine();
    let answered = std::thread::spawn(move || engine.poll(0, &mut Frames::new()));
    assert_eq!(answered.join().unwrap(), None);
}

#[test]
fn configurations_that_cannot_be() {
    let change = |change: fn(&mut Config)| {
        let mut config = config();
        change(&mut config);
        Engine::new(&config).err()
    };
    let address = |text: &str| text.parse::<Prefix>().unwrap();
    assert_eq!(change(|_| ()), None);
    assert_eq!(change(|c| c.interfaces.clear()), Some(ConfigError::Interfaces(0)));
    assert!(matches!(change(|c| c.interfaces[0].mac = Mac::BROADCAST), Some(ConfigError::Station { .. })));
    assert_eq!(change(|c| c.interfaces[0].vlan = Some(4095)), Some(ConfigError::Vlan(0)));
    assert_eq!(change(|c| c.interfaces[0].priority = 1), Some(ConfigError::Vlan(0)));
    assert_eq!(change(|c| c.interfaces.push(c.interfaces[0].clone())), Some(ConfigError::Duplicate(1)));
    assert!(matches!(change(|c| c.interfaces[0].mtu = 1279), Some(ConfigError::Mtu { least: 1280, .. })));
    let bad = change(|c| c.interfaces[0].addresses.push("10.0.0.255/24".parse().unwrap()));
    assert_eq!(bad, Some(ConfigError::Address { interface: 0, address: address("10.0.0.255/24") }));
    let route = change(|c| {
        let to = "0.0.0.0/0".parse().unwrap();
        c.routes.push(Route { to, gateway: None, interface: 1, metric: 0 });
    });
    assert_eq!(route, Some(ConfigError::Route(0)));
    let _ = ip::UDP;
}

#[test]
fn answers_to_strangers_never_push_out_a_neighbour_in_use() {
    use insane_netstack::tcp::TcpConfig;
    const QUESTIONS: u32 = 10_000;
    let us = host(true, 1);
    let stranger = |n: u32| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 1, (n >> 16) as u16, n as u16));
    type Question = (&'static str, fn(IpAddr, IpAddr, u32) -> Vec<u8>);
    let questions: [Question; 5] = [
        ("an echo", |from, us, _| echo(from, us, b"x")),
        ("a closed port", |from, us, _| udp(from, us, (2000, 9), b"x")),
        ("a reset", |from, us, n| frames::segment(from, us, (3000, 81), n, 0, 2)),
        ("a connection", |from, us, n| frames::segment(from, us, (3000, 80), n, 0, 2)),
        ("a packet never finished", |from, us, n| pieces(from, us, n, &[3; 2000], 1000).swap_remove(0)),
    ];
    for (what, question) in questions {
        let mut config = config();
        config.limits.neighbours = 8;
        config.limits.errors = Rate { per_second: 100_000, burst: 1000 };
        config.tcp = Some(TcpConfig { connections: 4, receive_bytes: 4096, send_bytes: 4096, ..TcpConfig::default() });
        let (mut engine, mut out) = (Engine::new(&config).unwrap(), Frames::new());
        engine.tcp_listen(None, 80, 4).unwrap();
        let bound = engine.bind(None, 1000).unwrap();
        let mut flow = engine.flow(bound, to(false, 2, 2000));
        assert_eq!(engine.header(0, &mut flow, 4, &mut out).err(), Some(SendError::Resolving));
        take(&mut engine, 0, &arp(Operation::Reply, PEER, "10.0.0.2", "10.0.0.1", OURS), &mut out);
        out.clear();
        for n in 1..=QUESTIONS {
            let now = u64::from(n) * 1_000_000;
            let mut frame = question(stranger(n), us, n);
            frame[6..12].copy_from_slice(&OTHER.0);
            take(&mut engine, now, &frame, &mut out);
            engine.poll(now, &mut out);
            assert!(engine.header(now, &mut flow, 4, &mut out).is_ok(), "{what}: after {n}");
        }
        // Packets that were never finished are told of then.
        let late = 75 * SECOND;
        engine.poll(late, &mut out);
        assert!(engine.header(late, &mut flow, 4, &mut out).is_ok(), "{what}: at last");
        assert_eq!((engine.usage()[0], engine.usage()[2]), (1, 0), "{what}");
        // Who asks is answered, at the station that asked.
        let least = if what.starts_with("an echo") { QUESTIONS as usize } else { 4 };
        assert!(out.len() >= least || what.ends_with("finished"), "{what}: {} answers", out.len());
        assert!(out.iter().all(|(_, frame)| frame[..6] == OTHER.0), "{what}");
        assert!(engine.stats().adds_up());
    }
}

#[test]
fn nobody_else_sends_from_an_address_of_ours_on_any_link() {
    let mut config = config();
    let prefix = |text: &str| text.parse::<Prefix>().unwrap();
    let nets = vec![prefix("10.7.0.1/24"), prefix("fd07::1/64"), prefix("fe80::7/64")];
    config.interfaces.push(Interface { device: 4, ..Interface::new(Mac([2, 0, 0, 0, 0, 7]), nets) });
    let (mut engine, mut out) = (Engine::new(&config).unwrap(), Frames::new());
    engine.bind(None, 1000).unwrap();
    for (from, what) in [
        ("10.0.0.1", "bad_source"),
        ("10.7.0.1", "bad_source"),
        ("10.7.0.255", "bad_source"),
        ("10.7.0.2", "udp"),
        ("fd07::1", "bad_source"),
        ("fd07::2", "udp"),
        // On each link somebody may have the same address of that link.
        ("fe80::7", "udp"),
    ] {
        let from = frames::ip(from);
        assert_eq!(
            take(&mut engine, 0, &udp(from, host(from.is_ipv6(), 1), (2000, 1000), b"x"), &mut out),
            what,
            "{from}"
        );
    }
}

#[test]
fn who_opens_with_tiny_segments_opens_nothing() {
    let mut config = config();
    config.tcp = Some(insane_netstack::tcp::TcpConfig::default());
    let opens = |options: &[u8]| {
        let mut frame = frames::segment(host(false, 2), host(false, 1), (3000, 80), 1, 0, 2);
        frame.extend_from_slice(options);
        let len = (frame.len() - 14) as u16;
        frame[16..18].copy_from_slice(&len.to_be_bytes());
        frame[46] = 0x50 + (options.len() as u8 / 4) * 0x10;
        frames::reseal(&mut frame);
        let (mut engine, mut out) = (Engine::new(&config).unwrap(), Frames::new());
        engine.tcp_listen(None, 80, 1).unwrap();
        let what = take(&mut engine, 0, &frame, &mut out);
        engine.poll(0, &mut out);
        (what, out.len())
    };
    for tiny in [[2, 4, 0, 0], [2, 4, 0, 1], [2, 4, 0, 47]] {
        assert_eq!(opens(&tiny), ("tcp_tiny", 0));
        assert_eq!(opens(&[&[1, 1, 3, 3, 7, 1, 1, 1][..], &tiny].concat()), ("tcp_tiny", 0));
    }
    // Nothing behind the end of the options is one, and what is cut off is none.
    let fine: [&[u8]; 5] = [&[], &[2, 4, 0, 48], &[2, 4, 5, 180], &[0, 0, 0, 0, 2, 4, 0, 1], &[1, 1, 1, 1]];
    for options in fine {
        assert_eq!(opens(options), ("tcp", 1), "{options:?}");
    }
}
