use super::*;

fn head(six: bool, payload: u16, fragment: Option<Fragment>) -> Head {
    let [from, to] = if six { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] };
    Head {
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        protocol: UDP,
        hop_limit: 64,
        class: 0xb8,
        payload,
        fragment,
    }
}

fn packet(head: &Head) -> Vec<u8> {
    let mut bytes = vec![0; head.len() + usize::from(head.payload)];
    assert_eq!(head.write(&mut bytes), head.len());
    bytes
}

fn parse(bytes: &[u8]) -> Result<Ip, Reason> {
    if bytes[0] >> 4 == 4 { Ip::parse_v4(bytes) } else { Ip::parse_v6(bytes) }
}

#[test]
fn a_known_ipv4_header() {
    // The example of many textbooks, its checksum 0xb861.
    let bytes = [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
    let head = Head {
        from: "192.168.0.1".parse().unwrap(),
        to: "192.168.0.199".parse().unwrap(),
        protocol: UDP,
        hop_limit: 64,
        class: 0,
        payload: 95,
        fragment: None,
    };
    assert_eq!(packet(&head)[..20], bytes);
}

#[test]
fn headers_are_read_as_they_were_written() {
    for six in [false, true] {
        for fragment in [None, Some(Fragment { ident: 0xbeef, offset: 1480, more: true })] {
            let head = head(six, 24, fragment);
            let mut bytes = packet(&head);
            bytes.extend_from_slice(b"padding");
            let ip = parse(&bytes).unwrap();
            assert_eq!((ip.from, ip.to, ip.protocol, ip.hop_limit), (head.from, head.to, UDP, 64));
            assert_eq!((ip.header, ip.end, ip.fragment), (head.len(), head.len() + 24, fragment));
            assert_eq!(ip.dont_fragment, six || fragment.is_none());
            for len in 0..ip.end {
                assert!(matches!(parse_or_cut(&bytes[..len], six), Err(Reason::Truncated)), "{len}");
            }
        }
    }
}

fn parse_or_cut(bytes: &[u8], six: bool) -> Result<Ip, Reason> {
    if six { Ip::parse_v6(bytes) } else { Ip::parse_v4(bytes) }
}

#[test]
fn ipv4_headers_that_cannot_be() {
    let good = packet(&head(false, 24, None));
    let reseal = |bytes: &mut [u8]| {
        bytes[10..12].fill(0);
        let sum = checksum::of(&bytes[..20]);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    };
    for (at, value, reason) in [
        (0, 0x65, Reason::IpMalformed),
        (0, 0x44, Reason::IpMalformed),
        (3, 19, Reason::IpMalformed),
        (2, 1, Reason::Truncated),
        (6, 0xc0, Reason::IpMalformed),
    ] {
        let mut bytes = good.clone();
        bytes[at] = value;
        reseal(&mut bytes);
        assert_eq!(Ip::parse_v4(&bytes), Err(reason), "{at}");
    }
    let mut bytes = good;
    bytes[8] ^= 1;
    assert_eq!(Ip::parse_v4(&bytes), Err(Reason::IpChecksum));
}

/// A packet with these options, its checksum right.
fn with_options(options: &[u8]) -> Vec<u8> {
    let mut bytes = packet(&head(false, 8, None));
    bytes.splice(20..20, options.iter().copied());
    let len = bytes.len() as u16;
    bytes[0] = 0x45 + (options.len() / 4) as u8;
    bytes[2..4].copy_from_slice(&len.to_be_bytes());
    bytes[10..12].fill(0);
    let sum = checksum::of(&bytes[..20 + options.len()]);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes
}

#[test]
fn options_are_passed_over_but_for_source_routes() {
    assert_eq!(Ip::parse_v4(&with_options(&[148, 4, 0, 0])).unwrap().header, 24);
    assert_eq!(Ip::parse_v4(&with_options(&[1, 1, 0, 99])).unwrap().header, 24);
    assert_eq!(Ip::parse_v4(&with_options(&[1, 131, 3, 4])), Err(Reason::SourceRouted));
    assert_eq!(Ip::parse_v4(&with_options(&[137, 3, 4, 0])), Err(Reason::SourceRouted));
    assert_eq!(Ip::parse_v4(&with_options(&[7, 0, 0, 0])), Err(Reason::IpMalformed));
    assert_eq!(Ip::parse_v4(&with_options(&[7, 9, 0, 0])), Err(Reason::IpMalformed));
}

/// An IPv6 packet with these extension headers before eight bytes of UDP.
fn extended(first: u8, headers: &[&[u8]]) -> Vec<u8> {
    let mut bytes = packet(&head(true, 8, None));
    let headers = headers.concat();
    bytes[6] = first;
    bytes[5] += headers.len() as u8;
    bytes.splice(40..40, headers);
    bytes
}

#[test]
fn extension_headers_are_walked() {
    let pad: &[u8] = &[UDP, 0, 1, 4, 0, 0, 0, 0];
    let pad_then = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let atomic: &[u8] = &[UDP, 0, 0, 0, 1, 2, 3, 4];
    for (first, headers) in [
        (HOP_BY_HOP, &[pad][..]),
        (HOP_BY_HOP, &[&pad_then(DESTINATION)[..], pad]),
        (ROUTING, &[&[UDP, 0, 4, 0, 0, 0, 0, 0][..]]),
        (FRAGMENT, &[atomic]),
        (DESTINATION, &[&pad_then(FRAGMENT)[..], atomic]),
    ] {
        let ip = Ip::parse_v6(&extended(first, headers)).unwrap();
        let len: usize = headers.iter().map(|header| header.len()).sum();
        assert_eq!((ip.protocol, ip.header, ip.fragment, ip.extended), (UDP, 40 + len, None, true));
    }
    let none: &[&[u8]] = &[];
    for (first, headers, reason) in [
        (HOP_BY_HOP, &[&pad_then(HOP_BY_HOP)[..], pad][..], Reason::BadExtension),
        (DESTINATION, &[&[UDP, 0, 0x5e, 4, 0, 0, 0, 0][..]], Reason::BadExtension),
        (DESTINATION, &[&[UDP, 0, 1, 5, 0, 0, 0, 0][..]], Reason::IpMalformed),
        (DESTINATION, &[&[UDP, 9, 1, 4, 0, 0, 0, 0][..]], Reason::Truncated),
        (ROUTING, &[&[UDP, 0, 0, 1, 0, 0, 0, 0][..]], Reason::SourceRouted),
        (NOTHING, none, Reason::UnknownProtocol),
        (DESTINATION, &[&pad_then(DESTINATION)[..]; 9], Reason::BadExtension),
    ] {
        assert_eq!(Ip::parse_v6(&extended(first, headers)), Err(reason));
    }
}
