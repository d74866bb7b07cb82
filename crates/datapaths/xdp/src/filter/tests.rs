//! The program against a second description of the filter, by the kernel's own test run: on packets made by hand, cut short at
//! every length, and made at random.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::*;
use crate::asm::listing;
use crate::bpf;

/// What a filter takes, written down without regard to speed.
fn takes(filter: &Filter, frame: &[u8]) -> Option<bool> {
    let half = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let mut at = 12;
    let mut ethertype = half(at)?;
    if filter.vlan == Vlan::Untagged && ethertype == 0x8100 && half(at + 2)? & 0x0fff == 0 {
        at += 4;
        ethertype = half(at)?;
    }
    let tags = match filter.vlan {
        Vlan::Untagged if ETHERTYPES_VLAN.contains(&ethertype) => return Some(false),
        Vlan::Untagged => 0,
        Vlan::Tagged(_) if !ETHERTYPES_VLAN.contains(&ethertype) => return Some(false),
        Vlan::Tagged(number) if half(at + 2)? & 0x0fff != number => return Some(false),
        Vlan::Tagged(_) => 1,
        Vlan::Any => 2,
    };
    for _ in 0..tags {
        if ETHERTYPES_VLAN.contains(&ethertype) {
            at += 4;
            ethertype = half(at)?;
        }
    }
    if filter.station.is_some_and(|station| frame[..6] == station) || filter.ethertypes.contains(&ethertype) {
        return Some(true);
    }
    let body = frame.get(at + 2..)?;
    let any_of = |v4: bool| filter.addresses.iter().any(|address| address.is_ipv4() == v4);
    let ours = |bytes: &[u8]| {
        filter.addresses.iter().any(|address| match address {
            IpAddr::V4(address) => address.octets() == bytes,
            IpAddr::V6(address) => address.octets() == bytes,
        })
    };
    let port = |at: usize| {
        let bytes = [*body.get(at + 2)?, *body.get(at + 3)?];
        body.get(at..at + 4)?;
        Some(filter.udp_ports.contains(&u16::from_be_bytes(bytes)))
    };
    match ethertype {
        0x0806 if filter.station.is_some() => {
            let body = body.get(..28)?;
            Some(body[..6] == [0, 1, 8, 0, 6, 4] && ours(&body[24..28]))
        }
        0x0800 => {
            let header = body.get(..20)?;
            let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
            let length = usize::from(header[0] & 0x0f) * 4;
            if header[9] != 17 || fragment || length < 20 || any_of(true) && !ours(&header[16..20]) {
                return Some(false);
            }
            port(length)
        }
        0x86dd => {
            let header = body.get(..40)?;
            match header[6] {
                17 if any_of(false) && !ours(&header[24..40]) => Some(false),
                17 => port(40),
                58 if filter.station.is_some() => {
                    let solicitation = body.get(40..64)?;
                    Some(solicitation[0] == 135 && ours(&solicitation[8..24]))
                }
                _ => Some(false),
            }
        }
        _ => Some(false),
    }
}

/// A program in the kernel, with a socket in its map at queue 0, which is where test runs come from.
struct Loaded {
    program: OwnedFd,
    _map: OwnedFd,
    _socket: OwnedFd,
}

impl Loaded {
    /// `None` where programs cannot be loaded; then it has said so.
    fn new(filter: &Filter) -> Option<Self> {
        use rustix::net::{AddressFamily, SocketType, socket};
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: programs in the kernel, which only root can load");
            return None;
        }
        let socket = match socket(AddressFamily::XDP, SocketType::RAW, None) {
            Ok(socket) => socket,
            Err(error) => {
                println!("SKIPPED: AF_XDP sockets cannot be made here: {error}");
                return None;
            }
        };
        let map = bpf::new_map(1).unwrap();
        bpf::put(map.as_fd(), 0, socket.as_fd()).unwrap();
        let code = program(filter, map.as_raw_fd()).unwrap();
        let mut log = String::new();
        let program = bpf::load(&code, true, &mut log).unwrap_or_else(|e| panic!("{e}\n{}\n{log}", listing(&code)));
        Some(Self { program, _map: map, _socket: socket })
    }

    fn check(&self, filter: &Filter, frame: &[u8], what: &str) -> bool {
        let result = bpf::test_run(self.program.as_fd(), frame).unwrap();
        let expected = takes(filter, frame).unwrap_or(false);
        let verdict = if expected { XDP_REDIRECT } else { XDP_PASS as u32 };
        assert_eq!(result, verdict, "{what} of {} bytes under {filter:?}: {frame:02x?}", frame.len());
        expected
    }
}

const STATION: [u8; 6] = [2, 0, 0, 0, 0, 9];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 8];
const GROUP: [u8; 6] = [0xff; 6];

fn ethernet(to: [u8; 6], tags: &[u16], ethertype: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = [to, OTHER].concat();
    for (n, tag) in tags.iter().enumerate() {
        frame.extend_from_slice(&ETHERTYPES_VLAN[(n + 1) % 2 * usize::from(tags.len() > 1)].to_be_bytes());
        frame.extend_from_slice(&(tag | 0xa000).to_be_bytes());
    }
    frame.extend_from_slice(&ethertype.to_be_bytes());
    frame.extend_from_slice(body);
    frame
}

fn udp(port: u16) -> Vec<u8> {
    [&[0x11, 0x22][..], &port.to_be_bytes(), &[0, 12, 0, 0], b"data"].concat()
}

fn ipv4(words: u8, fragment: u16, protocol: u8, to: [u8; 4], body: &[u8]) -> Vec<u8> {
    let mut header = vec![0x40 | words, 0, 0, 0, 0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1];
    header[6..8].copy_from_slice(&fragment.to_be_bytes());
    header.extend_from_slice(&to);
    header.resize(usize::from(words) * 4, 1);
    header.truncate(usize::from(words.max(5)) * 4);
    header.extend_from_slice(body);
    header
}

fn ipv6(next: u8, to: [u8; 16], body: &[u8]) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0, 0, 8, next, 64];
    header.extend_from_slice(&[0xfd; 16]);
    header.extend_from_slice(&to);
    header.extend_from_slice(body);
    header
}

fn arp(target: [u8; 4]) -> Vec<u8> {
    let mut body = vec![0, 1, 8, 0, 6, 4, 0, 1];
    body.extend_from_slice(&OTHER);
    body.extend_from_slice(&[10, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    body.extend_from_slice(&target);
    body
}

fn solicitation(kind: u8, target: [u8; 16]) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target, &[1, 1, 2, 3, 4, 5, 6, 7]].concat()
}

const V4: [u8; 4] = [10, 0, 0, 7];
const V6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];

/// The packets by hand, with their names.
fn packets() -> Vec<(&'static str, Vec<u8>)> {
    let mut strange_arp = arp(V4);
    strange_arp[1] = 6;
    let mut near = V6;
    near[8] = 1;
    let datagram = |to| ipv4(5, 0x4000, 17, to, &udp(8080));
    vec![
        ("own ethertype", ethernet(GROUP, &[], 0x88b5, b"hello")),
        ("own ethertype, one tag", ethernet(GROUP, &[7], 0x88b5, b"hello")),
        ("own ethertype, another tag", ethernet(GROUP, &[8], 0x88b5, b"hello")),
        ("own ethertype, two tags", ethernet(GROUP, &[7, 9], 0x88b5, b"hello")),
        ("own ethertype, three tags", ethernet(GROUP, &[7, 9, 1], 0x88b5, b"hello")),
        ("another ethertype", ethernet(GROUP, &[], 0x88b6, b"hello")),
        ("to the station", ethernet(STATION, &[], 0x0800, b"anything")),
        ("to the station, tagged", ethernet(STATION, &[7], 0x0800, b"anything")),
        ("nearly to the station", ethernet([2, 0, 0, 0, 1, 9], &[], 0x0800, b"anything")),
        ("to another, from the station", [&OTHER[..], &STATION, &[0x08, 0x00]].concat()),
        ("datagram", ethernet(OTHER, &[], 0x0800, &datagram(V4))),
        ("tagged datagram", ethernet(OTHER, &[7], 0x0800, &datagram(V4))),
        ("datagram for another address", ethernet(OTHER, &[], 0x0800, &datagram([10, 0, 0, 8]))),
        ("datagram to another port", ethernet(OTHER, &[], 0x0800, &ipv4(5, 0, 17, V4, &udp(8081)))),
        ("datagram with options", ethernet(OTHER, &[], 0x0800, &ipv4(15, 0, 17, V4, &udp(8080)))),
        ("datagram with a short header", ethernet(OTHER, &[], 0x0800, &ipv4(4, 0, 17, V4, &udp(8080)))),
        ("first fragment", ethernet(OTHER, &[], 0x0800, &ipv4(5, 0x2000, 17, V4, &udp(8080)))),
        ("last fragment", ethernet(OTHER, &[], 0x0800, &ipv4(5, 0x0010, 17, V4, &udp(8080)))),
        ("TCP", ethernet(OTHER, &[], 0x0800, &ipv4(5, 0, 6, V4, &udp(8080)))),
        ("ICMP", ethernet(OTHER, &[], 0x0800, &ipv4(5, 0, 1, V4, b"echo"))),
        ("IPv6 datagram", ethernet(OTHER, &[], 0x86dd, &ipv6(17, V6, &udp(9090)))),
        ("IPv6 datagram, two tags", ethernet(OTHER, &[7, 8], 0x86dd, &ipv6(17, V6, &udp(9090)))),
        ("IPv6 datagram for another address", ethernet(OTHER, &[], 0x86dd, &ipv6(17, near, &udp(9090)))),
        ("IPv6 datagram to another port", ethernet(OTHER, &[], 0x86dd, &ipv6(17, V6, &udp(1)))),
        ("IPv6 with an extension", ethernet(OTHER, &[], 0x86dd, &ipv6(0, V6, &udp(8080)))),
        ("solicitation", ethernet(GROUP, &[], 0x86dd, &ipv6(58, V6, &solicitation(135, V6)))),
        ("solicitation for another", ethernet(GROUP, &[], 0x86dd, &ipv6(58, V6, &solicitation(135, near)))),
        ("advertisement", ethernet(GROUP, &[], 0x86dd, &ipv6(58, V6, &solicitation(136, V6)))),
        ("ARP for us", ethernet(GROUP, &[], 0x0806, &arp(V4))),
        ("tagged ARP for us", ethernet(GROUP, &[7], 0x0806, &arp(V4))),
        ("ARP for us with a priority", ethernet(GROUP, &[0], 0x0806, &arp(V4))),
        ("datagram with a priority", ethernet(OTHER, &[0], 0x0800, &datagram(V4))),
        ("to the station with a priority", ethernet(STATION, &[0], 0x0800, b"anything")),
        ("priority and a tag", ethernet(STATION, &[0], 0x8100, &[&[0, 7, 8, 0][..], &datagram(V4)].concat())),
        ("ARP for another", ethernet(GROUP, &[], 0x0806, &arp([10, 0, 0, 8]))),
        ("ARP of another technology", ethernet(GROUP, &[], 0x0806, &strange_arp)),
    ]
}

fn filters() -> Vec<Filter> {
    let none = Filter { ethertypes: Vec::new(), ..Filter::default() };
    let addresses = vec![IpAddr::from(V4), IpAddr::from([10, 1, 2, 3]), IpAddr::from(V6), IpAddr::from([9; 16])];
    let ports = vec![8080, 9090];
    let mut filters = Vec::new();
    for vlan in [Vlan::Any, Vlan::Untagged, Vlan::Tagged(7), Vlan::Tagged(4094)] {
        filters.extend([
            Filter { vlan, ..Filter::default() },
            Filter { vlan, udp_ports: ports.clone(), ..none.clone() },
            Filter { vlan, udp_ports: ports.clone(), addresses: addresses.clone(), ..none.clone() },
            Filter { vlan, udp_ports: ports.clone(), addresses: addresses[2..].to_vec(), ..none.clone() },
            Filter { vlan, station: Some(STATION), ..none.clone() },
            Filter { vlan, station: Some(STATION), addresses: addresses.clone(), ..none.clone() },
            Filter {
                vlan,
                ethertypes: vec![0x88b5, 0x88b7],
                station: Some(STATION),
                udp_ports: ports.clone(),
                addresses: addresses.clone(),
            },
        ]);
    }
    filters
}

#[test]
fn packets_made_by_hand_go_where_they_belong_at_every_length() {
    let (mut taken, mut runs) = (0, 0);
    for filter in filters() {
        let Some(loaded) = Loaded::new(&filter) else { return };
        for (what, packet) in packets() {
            for len in 14..=packet.len() {
                taken += u32::from(loaded.check(&filter, &packet[..len], what));
                runs += 1;
            }
        }
    }
    assert!((500..runs / 2).contains(&taken), "{taken} of {runs} were taken");
}

#[test]
fn a_tag_with_a_priority_alone_is_no_vlan() {
    let station = Filter { station: Some(STATION), addresses: vec![V4.into()], ..Filter::default() };
    for (vlan, expected) in [(Vlan::Untagged, true), (Vlan::Any, true), (Vlan::Tagged(7), false)] {
        let filter = Filter { vlan, udp_ports: vec![8080], ..station.clone() };
        let Some(loaded) = Loaded::new(&filter) else { return };
        for (what, packet) in packets().iter().filter(|(what, _)| what.ends_with("with a priority")) {
            assert_eq!(packet[12..16], [0x81, 0, 0xa0, 0]);
            assert_eq!(loaded.check(&filter, packet, what), expected, "{what} under {vlan:?}");
        }
    }
}

#[test]
fn packets_made_at_random_go_where_they_belong() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below
    };
    let (filters, packets) = (filters(), packets());
    let mut taken = 0;
    for filter in &filters {
        let Some(loaded) = Loaded::new(filter) else { return };
        for _ in 0..2000 {
            let mut packet = packets[random(packets.len())].1.clone();
            for _ in 0..random(4) {
                let at = random(packet.len().min(60));
                packet[at] = [0, 0xff, packet[at] ^ 1, packet[at].wrapping_add(1), random(256) as u8][random(5)];
            }
            packet.truncate(14 + random(packet.len() - 13));
            taken += u32::from(loaded.check(filter, &packet, "a random packet"));
        }
    }
    assert!(taken > 1000, "only {taken} were taken");
}

#[test]
fn the_largest_filter_loads() {
    let filter = Filter {
        ethertypes: (0x9000..).take(Filter::MOST).collect(),
        udp_ports: (1000..).take(Filter::MOST).collect(),
        station: Some(STATION),
        addresses: (0..Filter::MOST as u8).map(|n| IpAddr::from([n; 16])).collect(),
        vlan: Vlan::Any,
    };
    assert_eq!(fault(&filter), None);
    let Some(loaded) = Loaded::new(&filter) else { return };
    let last = ethernet(OTHER, &[7, 8], 0x86dd, &ipv6(17, [31; 16], &udp(1031)));
    assert!(loaded.check(&filter, &last, "the last address and port"));
}

#[test]
fn without_a_socket_for_the_queue_everything_passes() {
    let filter = Filter::default();
    if Loaded::new(&filter).is_none() {
        return;
    }
    let map = bpf::new_map(4).unwrap();
    let program = bpf::load(&program(&filter, map.as_raw_fd()).unwrap(), false, &mut String::new()).unwrap();
    let frame = ethernet(OTHER, &[], 0x88b5, &[0; 46]);
    assert_eq!(bpf::test_run(program.as_fd(), &frame).unwrap(), XDP_PASS as u32);
}

#[test]
fn filters_that_make_no_sense_are_refused_with_a_reason() {
    let empty = Filter { ethertypes: Vec::new(), ..Filter::default() };
    for (filter, part) in [
        (empty.clone(), "takes no frame"),
        (Filter { udp_ports: vec![1; Filter::MOST + 1], ..empty.clone() }, "33 UDP ports"),
        (Filter { ethertypes: vec![100], ..empty.clone() }, "0x0064 is no ethertype"),
        (Filter { vlan: Vlan::Tagged(4095), ..Filter::default() }, "1 to 4094"),
        (Filter { station: Some(GROUP), ..empty.clone() }, "of a group"),
        (Filter { station: Some([0; 6]), ..empty }, "zero"),
    ] {
        let reason = fault(&filter).unwrap();
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn the_listing_is_the_program() {
    let filter = Filter { ethertypes: Vec::new(), udp_ports: vec![8080], vlan: Vlan::Untagged, ..Filter::default() };
    let code = listing(&program(&filter, 5).unwrap());
    let text = include_str!("../filter.rs");
    if cfg!(target_endian = "little") {
        let documented: Vec<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("//! "))
            .filter(|line| line.get(..4).is_some_and(|head| head.ends_with(':') && head[2..3].parse::<u8>().is_ok()))
            .map(|line| format!("{}{}", &line[..5], line[5..].split("  ").next().unwrap_or("").trim_end()))
            .collect();
        assert_eq!(documented.join("\n").trim(), code.trim());
    }
}
