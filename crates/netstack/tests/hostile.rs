//! Whatever comes in: nothing panics, memory is bounded, and every frame is in exactly one count.

mod frames;

use frames::{OURS, PEER, config, corpus, host, interface, reseal};
use insane_netstack::ether::{self, Tag};
use insane_netstack::tcp::TcpConfig;
use insane_netstack::{Arrival, Config, Engine, Interface, Mac};
use proptest::prelude::*;

/// Two interfaces, one of them on a VLAN, little room, TCP, a port, and something sent to the peer.
fn engine() -> Engine {
    let mut config: Config = config();
    let vlan = Interface {
        vlan: Some(7),
        priority: 3,
        ..Interface::new(Mac([2, 0, 0, 0, 0, 7]), vec!["10.7.0.1/24".parse().unwrap()])
    };
    config.interfaces.push(vlan);
    config.limits.neighbours = 8;
    config.limits.paths = 8;
    config.limits.waiting_packets = 4;
    config.limits.unfinished_packets = 6;
    config.limits.unfinished_bytes = 128 << 10;
    config.limits.smallest_fragment = 8;
    config.tcp = Some(TcpConfig { connections: 3, receive_bytes: 4096, send_bytes: 4096, ..TcpConfig::default() });
    let mut engine = Engine::new(&config).unwrap();
    let bound = engine.bind(None, 1000).unwrap();
    engine.tcp_listen(None, 80, 2).unwrap();
    let mut out = Vec::new();
    for six in [false, true] {
        engine.send(0, bound, (host(six, 2), 2000).into(), &[&[1; 1400]], &mut out).unwrap();
    }
    engine
}

/// What an attacker does to a frame.
#[derive(Debug, Clone)]
enum Change {
    Byte(usize, u8),
    Cut(usize),
    Grow(usize),
    Tag(u16),
    Insert(usize, Vec<u8>),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (0usize..120, any::<u8>()).prop_map(|(at, to)| Change::Byte(at, to)),
        1 => (0usize..120).prop_map(Change::Cut),
        1 => (0usize..2000).prop_map(Change::Grow),
        1 => any::<u16>().prop_map(Change::Tag),
        1 => (14usize..80, proptest::collection::vec(any::<u8>(), 0..16)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
    ]
}

fn apply(frame: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Byte(at, to) => {
            if let Some(byte) = frame.get_mut(*at) {
                *byte = *to;
            }
        }
        Change::Cut(len) => frame.truncate(*len),
        Change::Grow(len) => frame.resize(frame.len() + len, 0),
        Change::Tag(tag) => {
            let [a, b] = tag.to_be_bytes();
            frame.splice(12.min(frame.len())..12.min(frame.len()), [0x81, 0, a, b]);
        }
        Change::Insert(at, bytes) => {
            let at = (*at).min(frame.len());
            frame.splice(at..at, bytes.iter().copied());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn changed_frames_do_no_harm(
        list in proptest::collection::vec((any::<prop::sample::Index>(), proptest::collection::vec(change(), 0..5), any::<bool>(), 0u64..2_000_000_000), 1..80)
    ) {
        let corpus = corpus();
        let (mut engine, mut out, mut now) = (engine(), Vec::new(), 0);
        for (which, changes, seal, pause) in list {
            let mut frame = which.get(&corpus).clone();
            changes.iter().for_each(|change| apply(&mut frame, change));
            if seal {
                reseal(&mut frame);
            }
            now += pause;
            engine.receive(now, &Arrival::new(0, &frame), &mut out);
            if let Some(due) = engine.poll(now, &mut out) {
                prop_assert!(due >= now || engine.usage()[1] > 0, "{} {}", due, now);
            }
            let [neighbours, unfinished, waiting] = engine.usage();
            prop_assert!(neighbours <= 8 && unfinished <= 6 && waiting <= 4);
            prop_assert!(engine.stats().adds_up(), "{:?}", engine.stats());
        }
        // One frame makes no more than a few of ours.
        prop_assert!(out.len() <= 2000, "{}", out.len());
    }

    #[test]
    fn any_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u8..4) {
        let mut frame = bytes;
        if frame.len() > 14 {
            frame[..6].copy_from_slice(&OURS.0);
            frame[6..12].copy_from_slice(&PEER.0);
            let kind = [ether::ARP, ether::IPV4, ether::IPV6, ether::VLAN][usize::from(kind)];
            frame[12..14].copy_from_slice(&kind.to_be_bytes());
        }
        let mut engine = engine();
        engine.receive(1, &Arrival::new(0, &frame), &mut Vec::new());
        prop_assert!(engine.stats().adds_up());
    }
}

#[test]
fn every_value_of_every_byte_of_the_headers() {
    let mut engine = engine();
    let (mut now, mut out) = (0, Vec::new());
    for frame in corpus() {
        for at in 0..frame.len().min(90) {
            for value in 0..=255 {
                let mut frame = frame.clone();
                frame[at] = value;
                reseal(&mut frame);
                now += 1_000_000;
                engine.receive(now, &Arrival::new(0, &frame), &mut out);
            }
            out.clear();
        }
        engine.poll(now, &mut out);
        let [neighbours, unfinished, waiting] = engine.usage();
        assert!(neighbours <= 8 && unfinished <= 6 && waiting <= 4);
    }
    assert!(engine.stats().adds_up());
    // Most kinds of nonsense are met on the way.
    let met = engine.stats().drops().filter(|(_, count)| *count > 0).count();
    assert!(
        met >= 25,
        "{:?}",
        engine.stats().drops().filter(|(_, count)| *count == 0).map(|(r, _)| r).collect::<Vec<_>>()
    );
}

/// What becomes of a frame, in all detail.
fn said(engine: &mut Engine, device: u8, verified: bool, frame: &[u8]) -> String {
    let arrival = Arrival { verified, ..Arrival::new(device, frame) };
    format!("{:?}", engine.receive(1, &arrival, &mut Vec::new()))
}

#[test]
fn headers_like_those_before_mean_the_same_as_any_others() {
    let [mut after, mut alone] = [engine(), engine()];
    for six in [false, true] {
        let frame = |ports| frames::udp(host(six, 2), host(six, 1), ports, b"payload");
        let (before, other) = (frame((2000, 1000)), frame((2001, 1000)));
        let mut check = |frame: &[u8]| {
            for (device, verified) in [(0, false), (0, true), (1, false)] {
                assert!(said(&mut after, 0, false, &before).starts_with("Udp"));
                assert!(said(&mut alone, 0, false, &other).starts_with("Udp"));
                let [after, alone] = [&mut after, &mut alone].map(|engine| said(engine, device, verified, frame));
                assert_eq!(after, alone, "{frame:x?}");
            }
        };
        for at in 0..before.len() {
            for value in 0..=255 {
                let mut frame = before.clone();
                frame[at] = value;
                check(&frame);
                reseal(&mut frame);
                check(&frame);
            }
        }
        (0..before.len()).for_each(|len| check(&before[..len]));
        check(&[&before[..], &[0; 9]].concat());
    }
}

#[test]
fn headers_like_those_before_are_looked_at_anew_once_a_port_has_gone() {
    let mut engine = Engine::new(&config()).unwrap();
    let frame = frames::udp(host(false, 2), host(false, 1), (2000, 1000), b"payload");
    let first = engine.bind(None, 1000).unwrap();
    let known = |said: &str| said.split_once("from").map(|(binding, _)| binding.to_owned());
    let before = (0..3).map(|_| said(&mut engine, 0, false, &frame)).last().as_deref().and_then(known).unwrap();
    assert!(before.contains(&format!("{first:?}")), "{before}");
    assert!(engine.unbind(first));
    assert_eq!(said(&mut engine, 0, false, &frame), "Dropped(UdpPort)");
    let second = engine.bind(Some(host(false, 1)), 1000).unwrap();
    let after = known(&said(&mut engine, 0, false, &frame)).unwrap();
    assert!(after.contains(&format!("{second:?}")) && after != before, "{after}");
    assert!(engine.stats().adds_up());
}

#[test]
fn an_answer_is_not_much_larger_than_the_question() {
    for frame in corpus() {
        let (mut engine, mut out) = (engine(), Vec::new());
        engine.receive(1, &Arrival::new(0, &frame), &mut out);
        let answered: usize = out.iter().map(|(_, frame)| frame.len()).sum();
        // The peer is looked for at most once, and what has waited for it is not the peer's doing.
        assert!(answered <= 2 * frame.len() + 160 + 2 * 1442, "{} for {}", answered, frame.len());
    }
}

#[test]
fn tags_of_other_vlans_and_devices_are_refused() {
    let mut engine = engine();
    let mut out = Vec::new();
    let plain = frames::udp(host(false, 2), host(false, 1), (2000, 1000), b"x");
    let tagged = |vlan| frames::frame(OURS, Some(Tag { vlan, priority: 0 }), ether::IPV4, &[&plain[14..]]);
    let reason = |engine: &mut Engine, device, frame: &[u8], out: &mut Vec<_>| match engine.receive(
        1,
        &Arrival::new(device, frame),
        out,
    ) {
        insane_netstack::Received::Dropped(reason) => reason.name(),
        insane_netstack::Received::Udp(_) => "udp",
        _ => "other",
    };
    assert_eq!(reason(&mut engine, 0, &plain, &mut out), "udp");
    assert_eq!(reason(&mut engine, 0, &tagged(0), &mut out), "udp");
    assert_eq!(reason(&mut engine, 0, &tagged(9), &mut out), "unknown_vlan");
    // VLAN 7 is another interface, with another station.
    assert_eq!(reason(&mut engine, 0, &tagged(7), &mut out), "not_our_station");
    assert_eq!(reason(&mut engine, 5, &plain, &mut out), "unknown_device");
    let _ = interface;
}
