//! UDP over the loopback addresses: the conformance suite, what the kernel refuses, IPv4 and IPv6.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use insane_datapath::batch::{Landing, Outcome, Peeked, Place, RxBatch, TxBatch};
use insane_datapath::conformance::{Rig, all, pattern};
use insane_datapath::memory::Slot;
use insane_datapath::tap::Tap;
use insane_datapath::{Address, Datapath};
use insane_datapath_udp::{UdpConfig, UdpDatapath};

fn open(config: UdpConfig) -> UdpDatapath {
    let mut udp = UdpDatapath::new(config);
    udp.open().expect("it opens");
    udp
}

fn local(address: &str) -> UdpConfig {
    UdpConfig::new(SocketAddr::new(address.parse().unwrap(), 0))
}

fn rig(config: &UdpConfig) -> Rig {
    Rig { a: Box::new(open(config.clone())), b: Box::new(open(config.clone())) }
}

#[test]
fn conforms_over_ipv4() {
    all(|| rig(&local("127.0.0.1")));
}

#[test]
fn conforms_over_ipv6() {
    all(|| rig(&local("::1")));
}

#[test]
fn conforms_without_offloads() {
    let config = UdpConfig { segmentation: false, joined_receive: false, ..local("127.0.0.1") };
    all(|| rig(&config));
}

#[test]
fn conforms_while_it_is_captured() {
    // A capture ends when it is dropped: they are kept until the end.
    let mut captures = Vec::new();
    all(|| {
        let [a, b] = [(); 2].map(|()| Tap::new(open(local("127.0.0.1"))));
        captures.extend([&a, &b].map(|tap| tap.control().start(256 << 20, "a test").unwrap()));
        Rig { a: Box::new(a), b: Box::new(b) }
    });
    let sent = captures.iter().step_by(2).map(|capture| capture.counts().captured).sum::<u64>();
    let received = captures.iter().skip(1).step_by(2).map(|capture| capture.counts().captured).sum::<u64>();
    assert!(sent > 1000 && received > 1000, "{sent} {received}");
    assert_eq!(captures.iter().map(|capture| capture.counts().dropped).sum::<u64>(), 0);
}

#[test]
fn frames_of_one_size_travel_joined() {
    let (mut a, mut b) = (open(local("127.0.0.1")), open(local("127.0.0.1")));
    let to = b.address().unwrap();
    let mut tx = TxBatch::default();
    for number in 0..60 {
        tx.frame(to, &pattern(number, 1080), number);
    }
    assert_eq!(a.transmit(&mut tx).sent, 60);
    assert_eq!(a.stats().calls, 1);
    let mut rx = RxBatch { free: vec![Slot::owned(1, 65_536)], ..RxBatch::default() };
    let start = Instant::now();
    while b.receive(&mut rx, None).frames == 0 {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    let taken = &rx.taken[0];
    assert_eq!((taken.frames().count(), taken.stride), (60, 1080));
    assert!(taken.frames().enumerate().all(|(number, frame)| frame == pattern(number as u64, 1080)));
}

/// Wants every second piece elsewhere.
struct EverySecond {
    memory: Vec<u8>,
    seen: u64,
}

impl Place for EverySecond {
    fn expects(&self) -> bool {
        true
    }

    fn place(&mut self, peeked: Peeked<'_>) -> Option<Landing<'_>> {
        self.seen = u64::from(peeked.head[0]);
        let memory = &mut self.memory[..];
        (self.seen % 2 == 1).then_some(Landing { memory, head_bytes: 8, token: self.seen })
    }
}

#[test]
fn what_landed_comes_before_what_was_taken_in_each_batch() {
    let config = UdpConfig { joined_receive: false, ..local("127.0.0.1") };
    let (mut a, mut b) = (open(config.clone()), open(config));
    let to = b.address().unwrap();
    let mut tx = TxBatch::default();
    for number in 0..8u8 {
        tx.frame(to, &[number; 100], u64::from(number));
    }
    assert_eq!(a.transmit(&mut tx).sent, 8);
    let free = (0..8).map(|name| Slot::owned(name, 65_536)).collect();
    let mut rx = RxBatch { free, ..RxBatch::default() };
    let mut place = EverySecond { memory: vec![0; 1000], seen: 0 };
    let (mut order, start) = (Vec::new(), Instant::now());
    while order.len() < 8 {
        b.receive(&mut rx, Some(&mut place));
        order.extend(rx.landed.drain(..).map(|landed| landed.token));
        order.extend(rx.taken.drain(..).map(|taken| u64::from(taken.frames().next().unwrap()[0])));
        assert!(start.elapsed() < Duration::from_secs(10), "{order:?}");
    }
    assert_eq!(order, (0..8).collect::<Vec<u64>>());
}

#[test]
fn as_many_frames_as_it_says_are_one_piece() {
    for len in [64, 1080, 1472] {
        let (mut a, mut b) = (open(local("127.0.0.1")), open(local("127.0.0.1")));
        let (to, piece) = (b.address().unwrap(), a.capabilities().joined(len));
        assert!(piece > 40, "{piece}");
        let mut tx = TxBatch::default();
        tx.buffer().resize(len * (piece + 1), 7);
        tx.commit_alike(to, 0, len, false);
        assert_eq!(a.transmit(&mut tx).sent, piece + 1);
        let free = (0..4).map(|name| Slot::owned(name, 65_536)).collect();
        let mut rx = RxBatch { free, ..RxBatch::default() };
        let (mut frames, start) = (0, Instant::now());
        while frames <= piece {
            frames += b.receive(&mut rx, None).frames;
            assert!(start.elapsed() < Duration::from_secs(10), "{frames} of {piece}");
        }
        assert_eq!(rx.taken.iter().map(|taken| taken.frames().len()).collect::<Vec<_>>(), [piece, 1]);
    }
    let plain = open(UdpConfig { segmentation: false, ..local("127.0.0.1") });
    assert_eq!(plain.capabilities().joined(1080), 1);
}

#[test]
fn a_frame_that_may_be_padded_joins_its_neighbours() {
    let (mut a, mut b) = (open(local("127.0.0.1")), open(local("127.0.0.1")));
    let to = b.address().unwrap();
    let mut tx = TxBatch::default();
    for (number, len) in [1000, 1000, 900, 1000, 900].into_iter().enumerate() {
        tx.frame(to, &pattern(number as u64, len), 0);
        tx.allow_padding();
    }
    assert_eq!((a.transmit(&mut tx).sent, a.stats().calls), (5, 1));
    let mut rx = RxBatch { free: vec![Slot::owned(1, 65_536)], ..RxBatch::default() };
    let start = Instant::now();
    while b.receive(&mut rx, None).frames == 0 {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    let lengths: Vec<usize> = rx.taken[0].frames().map(<[u8]>::len).collect();
    // The one in the middle was filled up, the last was not.
    assert_eq!(lengths, [1000, 1000, 1000, 1000, 900]);
    let padded = rx.taken[0].frames().nth(2).unwrap();
    assert_eq!((&padded[..900], &padded[900..]), (&pattern(2, 900)[..], &[0; 100][..]));
}

#[test]
fn what_the_kernel_gives_less_of_is_said() {
    let huge = UdpConfig { receive_buffer: 1 << 30, ..local("127.0.0.1") };
    // With CAP_NET_ADMIN the kernel gives what is asked for; then there is nothing to say.
    let udp = open(huge);
    let raised = udp.notes().iter().any(|note| note.contains("receive buffer"));
    let modest = open(UdpConfig { receive_buffer: 64 << 10, send_buffer: 64 << 10, ..local("127.0.0.1") });
    assert!(modest.notes().is_empty(), "{:?}", modest.notes());
    if !rustix::process::geteuid().is_root() {
        assert!(raised, "{:?}", udp.notes());
    }
}

#[test]
fn a_missing_address_or_interface_is_a_clear_error() {
    let error = UdpDatapath::new(local("192.0.2.77")).open().unwrap_err().to_string();
    assert!(error.starts_with("bind: "), "{error}");
    let nowhere = UdpConfig { interface: Some("no-such-if0".into()), ..local("127.0.0.1") };
    let error = UdpDatapath::new(nowhere).open().unwrap_err().to_string();
    assert!(error.contains("SO_BINDTODEVICE"), "{error}");
}

#[test]
fn addresses_of_the_other_family_are_unreachable_and_hold_nothing_up() {
    let (mut a, b) = (open(local("127.0.0.1")), open(local("127.0.0.1")));
    let mut tx = TxBatch::default();
    tx.frame(b.address().unwrap(), b"one", 1);
    tx.frame(Address::Ip("[::1]:9".parse().unwrap()), b"two", 2);
    tx.frame(Address::Port(3), b"three", 3);
    tx.frame(b.address().unwrap(), b"four", 4);
    let report = a.transmit(&mut tx);
    assert_eq!((report.sent, report.refused, report.pending), (2, 2, 0));
    let outcomes: Vec<_> = tx.frames().iter().map(|frame| frame.outcome).collect();
    assert_eq!(outcomes, [Outcome::Sent, Outcome::Unreachable, Outcome::Unreachable, Outcome::Sent]);
}

#[test]
fn a_port_that_nobody_listens_on_stops_nothing() {
    let mut a = open(local("127.0.0.1"));
    let gone = open(local("127.0.0.1")).address().unwrap();
    for _ in 0..10 {
        let mut tx = TxBatch::default();
        tx.frame(gone, &pattern(1, 100), 1);
        tx.frame(gone, &pattern(2, 100), 2);
        assert_eq!(a.transmit(&mut tx).sent, 2);
    }
}
