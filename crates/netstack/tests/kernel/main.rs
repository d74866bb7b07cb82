//! The engine and the kernel of Linux, with a cable between them: each is the other's oracle.
//!
//! Needs root, for network namespaces that each test makes and removes; otherwise SKIPPED.

#[allow(unreachable_pub, reason = "a file of this test alone")]
mod net;
mod seen;
#[allow(unreachable_pub, reason = "a file of this test alone")]
mod streams;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use insane_netstack::icmp::Problem;
use insane_netstack::{Reason, SendError};
use net::{Cable, FAR, Host, KERNEL, V4, V6};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, socket_with, sockopt};

fn address(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().expect("an address"), port)
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + len * 7 + i / 251) as u8).collect()
}

/// Sizes of payloads: all small ones, all around what goes in one, two and three packets, some of the others, the largest.
fn sizes() -> Vec<usize> {
    let around = [1452, 1472, 2896, 2920, 2960, 4440].into_iter().flat_map(|size| size - 4..size + 10);
    let spread = (0..65_500).step_by(1499);
    let mut all: Vec<usize> = (0..=128).chain(around).chain(spread).chain([65_000, 65_506, 65_507]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn the_kernel_finds_the_engine_and_pings_it_in_all_sizes() {
    let Some(cable) = Cable::new(false) else { return };
    let mut host = Host::new(&cable, |_| ());
    for (ip, family) in [(V4, "-4"), (V6, "-6")] {
        for size in [0, 1, 56, 1452, 1453, 1472, 1473, 8000, 20_000, 60_000] {
            let ping = cable.start(0, &format!("ping {family} -n -c 2 -i 0.05 -W 10 -s {size} {ip}"));
            let output = host.while_runs(ping);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && text.contains(" 0% packet loss"), "{size}: {text} {:?}", host.drops());
        }
    }
    // By ARP and by neighbour discovery, under the station that the engine has.
    for ip in [V4, V6] {
        let known = cable.ip(0, &format!("neigh show {ip} dev veth0"));
        assert!(known.contains(&net::MAC.to_string()), "{known}");
    }
    let stats = host.engine.stats();
    assert_eq!((stats.echoes, stats.adds_up()), (40, true), "{stats:?}");
}

#[test]
fn the_kernel_pings_the_address_of_the_link() {
    let Some(cable) = Cable::new(false) else { return };
    let mut host = Host::new(&cable, |_| ());
    let own = insane_netstack::nd::link_local(net::MAC);
    for size in [56, 5000] {
        let ping = cable.start(0, &format!("ping -6 -n -c 2 -i 0.05 -W 10 -s {size} {own}%veth0"));
        let output = host.while_runs(ping);
        assert!(output.status.success(), "{} {:?}", String::from_utf8_lossy(&output.stdout), host.drops());
    }
}

/// Who answered a datagram to this port with an ICMP message, and its type and code.
fn answer(listener: &OwnedFd, port: u16) -> Option<(IpAddr, u8, u8)> {
    let mut buffer = [0; 2048];
    while let Ok((len, _, from)) = rustix::net::recvfrom(listener, &mut buffer[..], RecvFlags::empty()) {
        let from = SocketAddr::try_from(from?).expect("an address of the family").ip();
        // IPv4's header comes with it, IPv6's does not; the datagram's own follows the message's eight bytes.
        let (skip, quoted) = if from.is_ipv4() { (20, 20) } else { (0, 40) };
        let message = &buffer[skip..len];
        if message.get(8 + quoted + 2..8 + quoted + 4) == Some(&port.to_be_bytes()[..]) {
            return Some((from, message[0], message[1]));
        }
    }
    None
}

/// As traceroute does it: datagrams to closed ports that may take one more hop each time. The router says where they end, and then
/// the engine itself.
#[test]
fn the_kernel_traces_the_way_to_the_engine() {
    let Some(cable) = Cable::new(true) else { return };
    let mut host = Host::new(&cable, |_| ());
    let routes = [
        (V4, FAR[0], "10.97.0.1", ipproto::ICMP, (11, 0), (3, 3)),
        (V6, FAR[1], "fd97::1", ipproto::ICMPV6, (3, 0), (1, 4)),
    ];
    for (ours, far, router, protocol, expired, no_port) in routes {
        let family = if protocol == ipproto::ICMP { AddressFamily::INET } else { AddressFamily::INET6 };
        let listener = cable.inside(2, || {
            socket_with(family, SocketType::RAW, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, Some(protocol))
                .expect("root may listen")
        });
        let socket = cable.udp(2, &address(far, 0).to_string(), None);
        for hops in 1..=4_u8 {
            if family == AddressFamily::INET {
                socket.set_ttl(hops.into()).expect("it may");
            } else {
                sockopt::set_ipv6_unicast_hops(&socket, Some(hops)).expect("it may");
            }
            let port = 33_434 + u16::from(hops);
            socket.send_to(&content(32), address(ours, port)).expect("it goes");
            let mut found = None;
            host.until("somebody answers", |_| {
                found = answer(&listener, port);
                found.is_some()
            });
            let (from, (kind, code)) = if hops == 1 { (router, expired) } else { (ours, no_port) };
            assert_eq!(found, Some((from.parse().expect("an address"), kind, code)), "{hops} hops to {ours}");
        }
    }
    assert_eq!(host.engine.stats().dropped(Reason::UdpPort), 6);
}

#[test]
fn datagrams_of_all_sizes_cross_both_ways() {
    let Some(cable) = Cable::new(false) else { return };
    let mut host = Host::new(&cable, |_| ());
    let bound = host.engine.bind(None, 4000).expect("it is free");
    for (ours, kernels) in [(V4, KERNEL[0]), (V6, KERNEL[1])] {
        let bind = address(kernels, 4001).to_string();
        let socket = cable.udp(0, &bind, Some(address(ours, 4000)));
        let mut buffer = vec![0; 65_536];
        for size in sizes() {
            let sent = content(size);
            let now = host.wire.now();
            host.engine
                .send(now, bound, address(kernels, 4001), &[&sent[..size / 3], &sent[size / 3..]], &mut host.wire)
                .expect("it goes");
            host.until("the kernel gets a datagram", |_| match socket.recv(&mut buffer) {
                Ok(len) => {
                    assert!(buffer[..len] == sent, "{size}");
                    true
                }
                Err(_) => false,
            });
            socket.send(&sent).expect("it goes");
            host.until("the engine gets a datagram", |host| !host.got.is_empty());
            let got = host.got.remove(0);
            assert_eq!((got.binding, got.from), (bound, address(kernels, 4001)));
            assert!(got.payload == sent, "{size}");
        }
    }
    assert!(host.engine.stats().adds_up() && host.got.is_empty());
    let sent = content(65_508);
    let now = host.wire.now();
    let refused = host.engine.send(now, bound, address(KERNEL[0], 4001), &[&sent], &mut host.wire);
    assert_eq!(refused, Err(SendError::TooLarge { limit: 65_507 }));
}

#[test]
fn datagrams_with_headers_in_front_arrive() {
    let Some(cable) = Cable::new(false) else { return };
    let mut host = Host::new(&cable, |_| ());
    let bound = host.engine.bind(None, 4000).expect("it is free");
    for (kernels, most) in [(KERNEL[0], 1472), (KERNEL[1], 1452)] {
        let socket = cable.udp(0, &address(kernels, 4001).to_string(), None);
        let mut flow = host.engine.flow(bound, address(kernels, 4001));
        let mut memory = vec![0; 2048];
        for size in [0, 1, 2, 3, 17, 64, 1000, most - 1, most] {
            let payload = content(size);
            memory[128..128 + size].copy_from_slice(&payload);
            let mut header = None;
            host.until("the neighbour is known", |host| {
                let now = host.wire.now();
                match host.engine.header(now, &mut flow, size, &mut host.wire) {
                    Err(SendError::Resolving) => {}
                    other => header = Some(other.expect("it can go")),
                }
                header.is_some()
            });
            let frame = header.expect("just set").write_in_front(&mut memory, 128).expect("there is room");
            host.wire.put(&memory[frame]);
            let mut buffer = [0; 2048];
            host.until("the kernel gets it", |_| {
                socket.recv_from(&mut buffer).is_ok_and(|(len, _)| buffer[..len] == payload)
            });
        }
        let now = host.wire.now();
        let refused = host.engine.header(now, &mut flow, most + 1, &mut host.wire);
        assert_eq!(refused.err(), Some(SendError::TooLarge { limit: most }));
    }
}

#[test]
fn closed_ports_are_reported_both_ways() {
    let Some(cable) = Cable::new(false) else { return };
    let mut host = Host::new(&cable, |_| ());
    let bound = host.engine.bind(None, 4000).expect("it is free");
    for (ours, kernels) in [(V4, KERNEL[0]), (V6, KERNEL[1])] {
        let socket = cable.udp(0, &address(kernels, 0).to_string(), Some(address(ours, 4999)));
        socket.send(b"is there anybody?").expect("it goes");
        let mut refused = false;
        host.until("the kernel's socket is refused", |_| {
            let answer = socket.recv(&mut [0; 16]);
            refused |= answer.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
            refused
        });
        let now = host.wire.now();
        host.engine.send(now, bound, address(kernels, 4998), &[b"and there?"], &mut host.wire).expect("it goes");
        host.until("the kernel refuses", |host| !host.reports.is_empty());
        let report = host.reports.remove(0);
        assert_eq!((report.binding, report.problem, report.to), (Some(bound), Problem::Port, address(kernels, 4998)));
    }
    assert_eq!(host.engine.stats().dropped(Reason::UdpPort), 2);
}

#[test]
fn the_paths_mtu_is_learnt_from_the_kernel() {
    let Some(cable) = Cable::new(true) else { return };
    let mut host = Host::new(&cable, |_| ());
    let bound = host.engine.bind(None, 4000).expect("it is free");
    for (far, headers) in FAR.into_iter().zip([28, 48]) {
        let to = address(far, 4001);
        let socket = cable.udp(2, &to.to_string(), None);
        let now = host.wire.now();
        assert_eq!(host.engine.limit(now, to), Some(1500 - headers));
        let mut flow = host.engine.flow(bound, to);
        let mut memory = vec![7; 2048];
        // Too large for the second link; the router says so.
        let mut sent = 0;
        host.until("the limit falls", |host| {
            let now = host.wire.now();
            if sent < 20
                && let Ok(header) = host.engine.header(now, &mut flow, 1500 - headers, &mut host.wire)
            {
                let frame = header.write_in_front(&mut memory, 128).expect("there is room");
                host.wire.put(&memory[frame]);
                sent += 1;
            }
            host.engine.limit(now, to) == Some(1400 - headers)
        });
        let report = host.reports.remove(0);
        assert_eq!((report.problem, report.binding), (Problem::TooBig(1400), Some(bound)));
        // Flows know it too; what fits goes through, what does not goes in pieces of the right size.
        let now = host.wire.now();
        let refused = host.engine.header(now, &mut flow, 1401 - headers, &mut host.wire).err();
        assert_eq!(refused, Some(SendError::TooLarge { limit: 1400 - headers }));
        for size in [1400 - headers, 1500 - headers, 20_000] {
            let payload = content(size);
            let now = host.wire.now();
            host.engine.send(now, bound, to, &[&payload], &mut host.wire).expect("it goes");
            let mut buffer = vec![0; 65_536];
            host.until("it arrives far away", |_| socket.recv(&mut buffer).is_ok_and(|len| buffer[..len] == payload));
        }
        host.reports.clear();
    }
}
