//! What filters can tell apart: every field, in every kind of PDU, in and outside tunnels; and what garbage comes to.

#[path = "common/wire.rs"]
mod wire;

use insane_traffic::parse::{Headers, PduFormat, Shape, parse};
use insane_traffic::{Change, Pipeline, PipelineSpec, QueueId, Time};
use wire::{TCP, UDP, ethernet, extension, fragment6, gtp_u, ipv4, ipv4_with, ipv6, tcp, udp};

/// A pipeline with one filter that sends what it matches to queue 1.
fn filtering(pdu: &str, matches: &str) -> Pipeline<Vec<u8>> {
    let text = format!(
        "version = 1\npdu = {pdu}\nqueue = [{{ id = 0 }}, {{ id = 1 }}]\n\
         filter = [{{ id = 1, match = {matches}, to = {{ type = \"queue\", queue = 1 }} }}]"
    );
    Pipeline::new(&PipelineSpec::from_toml(&text).unwrap_or_else(|e| panic!("{text}: {e}")), 1).unwrap()
}

/// Whether a filter matches a packet.
fn matches(pdu: &str, filter: &str, packet: &[u8]) -> bool {
    let mut pipeline = filtering(pdu, filter);
    pipeline.enqueue(Time::ZERO, packet.to_vec(), &mut ()).unwrap() == QueueId(1)
}

const IP: &str = "{ type = \"ip\" }";
const SERVER: [u8; 4] = [10, 1, 2, 3];
const UE: [u8; 4] = [192, 168, 0, 7];

#[test]
fn every_field_of_the_five_tuple_with_ranges_prefixes_and_wildcards() {
    let packet = ipv4_with(SERVER.into(), UE.into(), TCP, 46 << 2 | 1, 0, 0, &tcp(5201, 40_000, b"x"));
    for (filter, fits) in [
        ("{}", true),
        ("{ src = \"10.1.2.3\" }", true),
        ("{ src = \"10.0.0.0/8\", dst = \"*\" }", true),
        ("{ src = \"11.0.0.0/8\" }", false),
        ("{ src = \"10.1.2.0-10.1.2.9\" }", true),
        ("{ src = \"10.1.2.4-10.1.2.9\" }", false),
        ("{ dst = \"192.168.0.0/29\" }", true),
        ("{ dst = \"192.168.0.8/29\" }", false),
        ("{ src_port = 5201 }", true),
        ("{ src_port = \"5200-5210\", dst_port = \"*\" }", true),
        ("{ dst_port = 5201 }", false),
        ("{ dst_port = \"1,2,40000\" }", true),
        ("{ proto = 6 }", true),
        ("{ proto = 17 }", false),
        ("{ proto = \"6,17\", version = 4 }", true),
        ("{ version = 6 }", false),
        ("{ dscp = 46 }", true),
        ("{ dscp = \"0-45\" }", false),
        ("{ ecn = 1 }", true),
        ("{ ecn = \"0,2,3\" }", false),
        ("{ size = \"0-100\" }", true),
        ("{ size = \"1000-1500\" }", false),
        ("{ fragment = \"no\", tunnel = false }", true),
        ("{ src = \"10.1.2.3\", dst = \"192.168.0.7\", src_port = 5201, dst_port = 40000, proto = 6 }", true),
        ("{ src = \"10.1.2.3\", dst = \"192.168.0.7\", src_port = 5201, dst_port = 40001, proto = 6 }", false),
    ] {
        assert_eq!(matches(IP, filter, &packet), fits, "{filter}");
    }
}

#[test]
fn ipv6_with_extension_headers() {
    let (src, dst) = ("2001:db8::1".parse().unwrap(), "2001:db8:1::2".parse().unwrap());
    let inner = extension(43, &extension(60, &extension(UDP, &udp(53, 4000, b"x"))));
    let packet = ipv6(src, dst, 0, 46 << 2 | 2, &inner);
    for (filter, fits) in [
        ("{ version = 6, src_port = 53, dst_port = 4000, proto = 17 }", true),
        ("{ src = \"2001:db8::/32\", dst = \"2001:db8:1::2\" }", true),
        ("{ src = \"10.0.0.0/8\" }", false),
        ("{ dscp = 46, ecn = 2 }", true),
        ("{ src_port = 54 }", false),
    ] {
        assert_eq!(matches(IP, filter, &packet), fits, "{filter}");
    }
}

#[test]
fn sdap_header_and_qos_flow_identifier() {
    let packet = ipv4(SERVER, UE, UDP, &udp(1, 2, b"x"));
    let with_header = [&[0xc5][..], &packet].concat();
    let sdap = "{ type = \"ip\", sdap_header = true }";
    assert!(matches(sdap, "{ qfi = 5, dst_port = 2 }", &with_header));
    assert!(!matches(sdap, "{ qfi = 6 }", &with_header));
    assert!(!matches(IP, "{ qfi = 5 }", &packet), "no header, no identifier");
    // Without the header being announced, it makes garbage of the packet.
    assert!(!matches(IP, "{ dst_port = 2 }", &with_header));
}

#[test]
fn ethernet_pdus_with_vlan_tags() {
    let (dst, src) = ([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 1]);
    let ip = ipv4(SERVER, UE, UDP, &udp(7, 8, b"x"));
    let tagged = ethernet(dst, src, &[100, 200], 0x0800, &ip);
    let arp = ethernet([255; 6], src, &[], 0x0806, &[0; 28]);
    let pdu = "{ type = \"ethernet\" }";
    for (filter, on_tagged, on_arp) in [
        ("{ ether_type = 0x0800, vlan = 100 }", true, false),
        ("{ ether_type = 0x0806 }", false, true),
        ("{ vlan = 200 }", false, false),
        ("{ eth_src = \"02:00:00:00:00:01\" }", true, true),
        ("{ eth_dst = \"02:00:00:00:00:00/ff:ff:ff:ff:ff:00\" }", true, false),
        ("{ eth_dst = \"01:00:00:00:00:00/01:00:00:00:00:00\" }", false, true),
        ("{ src_port = 7, src = \"10.0.0.0/8\" }", true, false),
    ] {
        assert_eq!(matches(pdu, filter, &tagged), on_tagged, "{filter}");
        assert_eq!(matches(pdu, filter, &arp), on_arp, "{filter}");
    }
}

#[test]
fn unstructured_pdus_by_their_bytes() {
    let pdu = "{ type = \"unstructured\" }";
    let packet = [0x01, 0xab, 0xcd, 0x7f];
    assert!(matches(pdu, "{ raw = [{ offset = 1, value = \"abcd\" }] }", &packet));
    assert!(matches(
        pdu,
        "{ raw = [{ offset = 3, value = \"70\", mask = \"f0\" }, { offset = 0, value = \"01\" }] }",
        &packet
    ));
    assert!(!matches(pdu, "{ raw = [{ offset = 3, value = \"7fff\" }] }", &packet), "beyond the end");
    assert!(!matches(pdu, "{ dst_port = \"*\" }", &packet), "it has no ports");
    let with_header = [&[0x09][..], &packet].concat();
    let sdap = "{ type = \"unstructured\", sdap_header = true }";
    assert!(matches(sdap, "{ qfi = 9, raw = [{ offset = 0, value = \"01\" }] }", &with_header));
}

#[test]
fn tunnels_are_looked_into() {
    let inner = ipv4([172, 16, 0, 1], [172, 16, 0, 2], TCP, &tcp(443, 50_000, b"x"));
    let inner6 = ipv6("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap(), TCP, 0, &tcp(443, 50_000, b"x"));
    let frame = ethernet([2; 6], [4; 6], &[], 0x0800, &inner);
    let gre_key = [&[0x20, 0, 0x08, 0x00, 0, 0, 0, 7][..], &inner].concat();
    let vxlan = [&[8, 0, 0, 0, 0, 0, 1, 0][..], &frame].concat();
    let geneve = [&[1, 0, 0x65, 0x58, 0, 0, 1, 0, 9, 9, 9, 9][..], &frame].concat();
    let tunnels = [
        ipv4(SERVER, UE, 4, &inner),
        ipv4(SERVER, UE, 41, &inner6),
        ipv4(SERVER, UE, 47, &gre_key),
        ipv4(SERVER, UE, UDP, &udp(2152, 2152, &gtp_u(None, &inner))),
        ipv4(SERVER, UE, UDP, &udp(2152, 2152, &gtp_u(Some(5), &inner))),
        ipv4(SERVER, UE, UDP, &udp(9999, 4789, &vxlan)),
        ipv4(SERVER, UE, UDP, &udp(9999, 6081, &geneve)),
        // A tunnel in a tunnel.
        ipv4(SERVER, UE, UDP, &udp(2152, 2152, &gtp_u(Some(5), &ipv4([1, 1, 1, 1], [2, 2, 2, 2], 4, &inner)))),
    ];
    for (n, tunnel) in tunnels.iter().enumerate() {
        assert!(matches(IP, "{ src_port = 443, dst_port = 50000, proto = 6, tunnel = true }", tunnel), "{n}");
        assert!(matches(IP, "{ layer = \"outer\", src = \"10.1.2.3\" }", tunnel), "{n}");
        assert!(!matches(IP, "{ src = \"10.1.2.3\" }", tunnel), "{n}: the outer address is not the flow's");
    }
    // What only looks like a tunnel is an ordinary packet.
    let fake = ipv4(SERVER, UE, UDP, &udp(2152, 2152, b"not a G-PDU"));
    assert!(matches(IP, "{ src = \"10.1.2.3\", dst_port = 2152, tunnel = false }", &fake));
    // Encrypted tunnels stay closed; their SPI tells flows apart for the hash.
    let esp = ipv4(SERVER, UE, 50, &[0, 0, 0, 9, 0, 0, 0, 1]);
    assert!(matches(IP, "{ proto = 50, tunnel = false }", &esp));
    assert_eq!(parse(&esp, PduFormat::default()).inner().spi, 9);
}

#[test]
fn of_what_is_no_packet_no_header_is_kept() {
    let nothing = Headers::default();
    let read = |bytes: &[u8]| parse(bytes, PduFormat::default());
    // Its IP header is whole; the transport header after it is cut short.
    let cut = ipv4(SERVER, UE, 6, &[1, 2, 3]);
    assert_eq!((read(&cut).shape, read(&cut).outer), (Shape::Garbage, nothing.outer));
    assert_eq!(*read(&cut).inner(), nothing.outer);
    // The same inside a tunnel: the tunnel's own header is the innermost that can be read.
    let tunnel = ipv4(SERVER, UE, 4, &cut);
    assert_eq!((read(&tunnel).shape, read(&tunnel).tunnels), (Shape::Ip, 0));
    assert_eq!(*read(&tunnel).inner(), read(&tunnel).outer);
}

#[test]
fn tunnels_are_followed_a_bounded_number_of_times() {
    let mut packet = ipv4([9, 9, 9, 9], UE, UDP, &udp(1, 2, b"x"));
    for _ in 0..200 {
        packet = ipv4(SERVER, UE, 4, &packet);
    }
    assert_eq!(parse(&packet, PduFormat::default()).tunnels, insane_traffic::parse::MAX_TUNNELS);
}

#[test]
fn fragments_follow_their_first() {
    let mut pipeline = filtering(IP, "{ dst_port = 5201 }");
    let whole = udp(1000, 5201, &[7; 64]);
    let part = |at: usize, to: usize, more: bool| {
        ipv4_with(SERVER.into(), UE.into(), UDP, 0, 0, u16::from(more) << 13 | (at / 8) as u16, &whole[at..to])
    };
    let mut queue_of = |packet: Vec<u8>| pipeline.enqueue(Time::ZERO, packet, &mut ()).unwrap();
    assert_eq!(queue_of(part(8, 16, true)), QueueId(0), "the first has not come yet");
    assert_eq!(queue_of(part(0, 8, true)), QueueId(1));
    assert_eq!(queue_of(part(8, 16, true)), QueueId(1));
    assert_eq!(queue_of(part(16, 72, false)), QueueId(1));
    let (src, dst) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
    let part6 = |offset, more, bytes: &[u8]| ipv6(src, dst, 44, 0, &fragment6(UDP, offset, more, 77, bytes));
    assert_eq!(queue_of(part6(0, true, &whole[..16])), QueueId(1));
    assert_eq!(queue_of(part6(2, false, &whole[16..])), QueueId(1));
    let stats = pipeline.stats().classifier;
    assert_eq!(stats.get_count("fragments_resolved"), Some(3));
    assert_eq!(stats.get_count("fragments_unresolved"), Some(1));
}

#[test]
fn the_parts_of_a_packet_stay_together_in_the_hash() {
    let text = "version = 1\nqueue = [{ id = 0, count = 64 }]\nfilter = [{ id = 1, to = { type = \"hash\" } }]";
    let mut pipeline: Pipeline<Vec<u8>> = Pipeline::new(&PipelineSpec::from_toml(text).unwrap(), 5).unwrap();
    let whole = udp(1000, 5201, &[7; 64]);
    let first = ipv4_with(SERVER.into(), UE.into(), UDP, 0, 0, 0x2000, &whole[..16]);
    let later = ipv4_with(SERVER.into(), UE.into(), UDP, 0, 0, 2, &whole[16..]);
    let queue = pipeline.enqueue(Time::ZERO, later.clone(), &mut ());
    assert_eq!(pipeline.enqueue(Time::ZERO, first, &mut ()), queue);
    assert_eq!(pipeline.enqueue(Time::ZERO, later, &mut ()), queue);
}

#[test]
fn garbage_goes_to_the_default_queue() {
    let udp_packet = ipv4(SERVER, UE, UDP, &udp(1, 2, b"hello"));
    let mut garbage: Vec<Vec<u8>> = (0..udp_packet.len()).map(|n| udp_packet[..n].to_vec()).collect();
    let broken = |at: usize, value: u8| {
        let mut packet = udp_packet.clone();
        packet[at] = value;
        packet
    };
    garbage.push(broken(0, 0x44)); // a header of 16 bytes
    garbage.push(broken(0, 0x4f)); // a header longer than the packet
    garbage.push(broken(0, 0x55)); // IP version 5
    garbage.push(broken(2, 0xff)); // longer than what is there
    garbage.push(broken(3, 19)); // shorter than its header
    garbage.push(ipv4(SERVER, UE, TCP, &[0; 13])); // half a TCP header
    garbage.push(ipv6("::1".parse().unwrap(), "::2".parse().unwrap(), 0, 0, &[6, 200, 0, 0, 0, 0, 0, 0]));
    let endless = (0..20).fold(udp(1, 2, b""), |inner, _| extension(60, &inner));
    garbage.push(ipv6("::1".parse().unwrap(), "::2".parse().unwrap(), 60, 0, &endless));
    for packet in garbage {
        assert_eq!(parse(&packet, PduFormat::default()).shape, Shape::Garbage, "{packet:02x?}");
        for to in ["{ type = \"hash\" }", "{ type = \"l4s\", l4s = 1, classic = 2 }"] {
            let text = format!("version = 1\nqueue = [{{ id = 0, count = 3 }}]\nfilter = [{{ id = 1, to = {to} }}]");
            let mut pipeline: Pipeline<Vec<u8>> = Pipeline::new(&PipelineSpec::from_toml(&text).unwrap(), 5).unwrap();
            assert_eq!(pipeline.enqueue(Time::ZERO, packet.clone(), &mut ()), Ok(QueueId(0)));
        }
        assert!(!matches(IP, "{ proto = \"*\" }", &packet));
    }
}

#[test]
fn filters_are_tried_by_priority_and_counted() {
    let text = r#"
        version = 1
        queue = [{ id = 0, count = 4 }]
        [[filter]]
        id = 1
        priority = 30
        to = { type = "queue", queue = 1 }
        [[filter]]
        id = 2
        priority = 20
        match = { proto = 17 }
        to = { type = "queue", queue = 2 }
        [[filter]]
        id = 3
        priority = 10
        match = { dst_port = 9 }
        to = { type = "drop" }
    "#;
    let mut pipeline: Pipeline<Vec<u8>> = Pipeline::new(&PipelineSpec::from_toml(text).unwrap(), 1).unwrap();
    let mut send = |proto, inner: &[u8]| pipeline.enqueue(Time::ZERO, ipv4(SERVER, UE, proto, inner), &mut ());
    assert_eq!(send(UDP, &udp(1, 2, b"")), Ok(QueueId(2)));
    assert_eq!(send(TCP, &tcp(1, 2, b"")), Ok(QueueId(1)));
    assert_eq!(send(UDP, &udp(1, 9, b"")), Err(insane_traffic::DropReason::Filter));
    let counts: Vec<(u32, u64)> = pipeline.stats().filters.iter().map(|f| (f.id, f.packets)).collect();
    assert_eq!(counts, [(3, 1), (2, 1), (1, 1)]);
}

#[test]
fn dns_answers_tell_whose_packets_come() {
    let mut pipeline = filtering(IP, "{ server_name = [\"*.game.example\", \"cdn.example\"] }");
    let answer = |name: &str, aliases, address: [u8; 4]| {
        ipv4([8, 8, 8, 8], UE, UDP, &udp(53, 3333, &wire::dns_response(name, aliases, &[address.into()])))
    };
    let mut queue_of = |packet: Vec<u8>| pipeline.enqueue(Time::ZERO, packet, &mut ()).unwrap();
    queue_of(answer("eu.Game.example", 2, [1, 1, 1, 1]));
    queue_of(answer("cdn.example", 0, [2, 2, 2, 2]));
    queue_of(answer("other.example", 0, [3, 3, 3, 3]));
    assert_eq!(queue_of(ipv4([1, 1, 1, 1], UE, UDP, &udp(444, 9, b"x"))), QueueId(1));
    assert_eq!(queue_of(ipv4([2, 2, 2, 2], UE, TCP, &tcp(443, 9, b"x"))), QueueId(1));
    assert_eq!(queue_of(ipv4([3, 3, 3, 3], UE, TCP, &tcp(443, 9, b"x"))), QueueId(0));
    assert_eq!(queue_of(ipv4([4, 4, 4, 4], UE, TCP, &tcp(443, 9, b"x"))), QueueId(0));
    assert_eq!(pipeline.stats().classifier.get_count("dns_names"), Some(3));
}

#[test]
fn tls_greetings_of_the_other_direction_tell_whose_connection_it_is() {
    let mut pipeline = filtering(IP, "{ server_name = [\"play.example\"] }");
    let uplink = |port, payload: &[u8]| ipv4(UE, SERVER, TCP, &tcp(port, 443, payload));
    let downlink = |port| ipv4(SERVER, UE, TCP, &tcp(443, port, b"x"));
    let hello = wire::client_hello("Play.example", 10);
    pipeline.observe(Time::ZERO, &uplink(1000, &hello));
    // A greeting in three segments, as those with large keys are.
    let long = wire::client_hello("play.example", 2_000);
    [&long[..1200], &long[1200..2000], &long[2000..]]
        .iter()
        .for_each(|part| pipeline.observe(Time::ZERO, &uplink(1001, part)));
    pipeline.observe(Time::ZERO, &uplink(1002, &wire::client_hello("work.example", 0)));
    let mut queue_of = |port| pipeline.enqueue(Time::ZERO, downlink(port), &mut ()).unwrap();
    assert_eq!([1000, 1001, 1002, 1003].map(&mut queue_of), [QueueId(1), QueueId(1), QueueId(0), QueueId(0)]);
}

#[test]
fn hints_are_bounded_whatever_is_announced() {
    let mut pipeline = filtering(IP, "{ server_name = [\"x.example\"] }");
    for n in 0..100_000_u32 {
        let dns = wire::dns_response("x.example", 0, &[n.into()]);
        pipeline.observe(Time::ZERO, &ipv4([8, 8, 8, 8], UE, UDP, &udp(53, 3333, &dns)));
        let hello = &wire::client_hello("x.example", 3_000)[..1_000];
        pipeline.observe(Time::ZERO, &ipv4(UE, n.to_be_bytes(), TCP, &tcp(n as u16, 443, hello)));
    }
    let stats = pipeline.stats().classifier;
    assert!(stats.get_count("hints_by_address").unwrap() <= 2_048);
    assert!(stats.get_count("hints_evicted").unwrap() > 0);
}

#[test]
fn qos_flows_classes_and_turns_choose_queues() {
    let text = |to: &str| {
        format!(
            "version = 1\npdu = {{ sdap_header = true }}\nqueue = [{{ id = 0, count = 4 }}]\nfilter = [{{ id = 1, to = {to} }}]"
        )
    };
    let mut by_qfi: Pipeline<Vec<u8>> = Pipeline::new(
        &PipelineSpec::from_toml(&text(
            "{ type = \"qfi\", map = [{ qfi = \"1-3\", queue = 1 }, { qfi = 9, queue = 2 }] }",
        ))
        .unwrap(),
        1,
    )
    .unwrap();
    let queues = [2, 9, 40].map(|qfi| by_qfi.enqueue(Time::ZERO, vec![qfi, 0], &mut ()).unwrap().0);
    assert_eq!(queues, [1, 2, 0]);
    let mut turns: Pipeline<Vec<u8>> =
        Pipeline::new(&PipelineSpec::from_toml(&text("{ type = \"round-robin\", queues = \"1-3\" }")).unwrap(), 1)
            .unwrap();
    let queues = [(); 5].map(|()| turns.enqueue(Time::ZERO, vec![0], &mut ()).unwrap().0);
    assert_eq!(queues, [1, 2, 3, 1, 2]);
    // A queue that comes later is in the round; so is the absence of one that is deleted.
    let delete = Change::DeleteQueue {
        id: QueueId(2),
        packets: Default::default(),
        references: insane_traffic::spec::References::Remove,
    };
    turns.apply(Time::ZERO, &[delete], &mut ()).unwrap();
    let queues = [(); 3].map(|()| turns.enqueue(Time::ZERO, vec![0], &mut ()).unwrap().0);
    assert_eq!(queues, [3, 1, 3]);
}

#[test]
fn marking_keeps_the_checksum_of_the_outermost_header_right() {
    use insane_traffic::{Ecn, Queued};
    for tos in 0..=255_u8 {
        for options in [0, 8] {
            let packet = ipv4_with(SERVER.into(), UE.into(), UDP, tos, options, 0, &udp(1, 2, b"x"));
            let mut item = Queued::new(packet.clone(), Time::ZERO);
            let capable = tos & 3 != 0;
            assert_eq!(item.mark(), capable);
            assert_eq!(item.packet[1], if capable { tos | 3 } else { tos });
            assert_eq!(wire::checksum(&item.packet[..20 + options]), 0, "tos {tos}");
            assert_eq!(&item.packet[20 + options..], &packet[20 + options..]);
        }
    }
    let packet = ipv6("::1".parse().unwrap(), "::2".parse().unwrap(), UDP, 46 << 2 | 1, &udp(1, 2, b"x"));
    let mut item = Queued::new(packet, Time::ZERO);
    assert!(item.mark() && item.meta.ecn == Ecn::Ce);
    assert_eq!(parse(&item.packet, PduFormat::default()).outer.ecn, Ecn::Ce);
    assert_eq!(parse(&item.packet, PduFormat::default()).outer.dscp, 46);
}
