//! UDP over the loopback addresses: the conformance suite, what the kernel refuses, IPv4 and IPv6.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use insane_datapath::batch::{Landing, Outcome, Peeked, Place, RxBatch, Then, TxBatch};
use insane_datapath::conformance::{Rig, all, pattern};
use insane_datapath::memory::Slot;
use insane_datapath::tap::Tap;
use insane_datapath::thread::{OnThread, PollingThread, Settings, Waiting};
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
    let config = UdpConfig { segmentation: false, joined_receive: false, lines: false, ..local("127.0.0.1") };
    all(|| rig(&config));
}

/// Both ends on one thread that waits so.
fn on_a_thread(waiting: Waiting) -> Rig {
    let thread = PollingThread::start(Settings { name: "polls".into(), core: None, waiting }).unwrap();
    let [a, b] = [(); 2].map(|()| OnThread::new(&thread, Box::new(open(local("127.0.0.1")))).unwrap());
    Rig { a: Box::new(a), b: Box::new(b) }
}

#[test]
fn conforms_on_a_thread_that_sleeps() {
    all(|| on_a_thread(Waiting::Sleep));
}

#[test]
fn conforms_on_a_thread_that_spins() {
    all(|| on_a_thread(Waiting::Spin));
}

/// Both ends on the same two threads.
fn on_two_threads(waiting: Waiting, address: &str) -> Rig {
    let [one, two] = threads(waiting);
    let [a, b] =
        [(); 2].map(|()| OnThread::spread(&one, std::slice::from_ref(&two), Box::new(open(local(address)))).unwrap());
    for end in [&a, &b] {
        assert_eq!((end.threads().received().len(), end.threads().short()), (2, None));
    }
    Rig { a: Box::new(a), b: Box::new(b) }
}

fn threads<const N: usize>(waiting: Waiting) -> [PollingThread; N] {
    [(); N].map(|()| PollingThread::start(Settings { name: "polls".into(), core: None, waiting }).unwrap())
}

#[test]
fn conforms_on_two_threads_that_sleep() {
    all(|| on_two_threads(Waiting::Sleep, "127.0.0.1"));
}

#[test]
fn conforms_on_two_threads_that_look_for_a_while() {
    let waiting = Waiting::Adaptive { least: Duration::ZERO, most: Duration::from_micros(50) };
    all(|| on_two_threads(waiting, "::1"));
}

/// Receives so many frames; the first byte and the number behind it of each, in the order in which they came.
fn numbers(datapath: &mut OnThread, count: usize) -> Vec<(Address, u64)> {
    let mut rx = RxBatch { free: (0..16).map(|id| Slot::owned(id, 65_536)).collect(), ..RxBatch::default() };
    let (mut numbers, start) = (Vec::new(), Instant::now());
    while numbers.len() < count {
        datapath.receive(&mut rx, None);
        for taken in rx.taken.drain(..) {
            let number = |frame: &[u8]| (taken.from, u64::from_le_bytes(frame.try_into().unwrap()));
            numbers.extend(taken.frames().map(number));
            rx.free.push(taken.slot);
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{} of {count}: {:?}", numbers.len(), datapath.stats());
    }
    numbers
}

#[test]
fn each_thread_receives_what_some_peers_send_in_their_order() {
    const EACH: u64 = 2000;
    let [one, two, three] = threads(Waiting::Sleep);
    let mut b = OnThread::spread(&one, &[two, three], Box::new(Tap::new(open(local("127.0.0.1"))))).unwrap();
    let to = b.address().unwrap();
    // One after the other, as hosts of one network are.
    let senders = ["127.1.0.1", "127.1.0.2", "127.1.0.3"];
    let Address::Ip(at) = to else { panic!("{to}") };
    let mut senders = senders.map(|ip| open(UdpConfig::new(SocketAddr::new(ip.parse().unwrap(), at.port()))));
    let mut got = Vec::new();
    for round in 0..EACH / 50 {
        for sender in &mut senders {
            let mut tx = TxBatch::default();
            (round * 50..(round + 1) * 50).for_each(|number| tx.frame(to, &number.to_le_bytes(), number));
            while !tx.is_done() {
                sender.transmit(&mut tx);
            }
        }
        got.extend(numbers(&mut b, 150));
    }
    for sender in &senders {
        let from: Vec<u64> = got.iter().filter(|(from, _)| Some(*from) == sender.address()).map(|(_, n)| *n).collect();
        assert!(from.iter().copied().eq(0..EACH), "out of order");
    }
    assert_eq!(b.threads().received(), [EACH; 3], "neighbours come by one thread after the other");
    let stats = b.stats();
    assert_eq!((stats.received_frames, stats.received_bytes), (3 * EACH, 3 * EACH * 8));
    // It goes on so when it was opened again.
    b.close();
    assert_eq!((b.stats().received_frames, b.threads().short()), (3 * EACH, None));
    b.open().unwrap();
    let Some(to) = b.address() else { panic!() };
    for sender in &mut senders {
        let mut tx = TxBatch::default();
        tx.frame(to, &7u64.to_le_bytes(), 0);
        assert_eq!(sender.transmit(&mut tx).sent, 1);
    }
    assert_eq!(numbers(&mut b, 3).len(), 3);
    let mut received = b.threads().received();
    received.sort_unstable();
    assert_eq!(received, [1, 1, 1]);
}

#[test]
fn over_ipv6_the_thread_is_chosen_by_address_and_port() {
    let [one, two] = threads(Waiting::Sleep);
    let mut b = OnThread::spread(&one, &[two], Box::new(open(local("::1")))).unwrap();
    let (to, mut expected) = (b.address().unwrap(), [0, 0]);
    let mut seen = std::collections::HashSet::new();
    for count in 0..64 {
        let mut sender = open(local("::1"));
        let Some(Address::Ip(from)) = sender.address() else { panic!() };
        // ::1 ends with 1.
        let part = (1 + usize::from(from.port())) % 2;
        expected[part] += 1;
        seen.insert(part);
        let mut tx = TxBatch::default();
        tx.frame(to, &1u64.to_le_bytes(), 0);
        assert_eq!(sender.transmit(&mut tx).sent, 1);
        numbers(&mut b, 1);
        assert_eq!(b.threads().received(), expected);
        if seen.len() == 2 && count > 4 {
            return;
        }
    }
    panic!("all 64 ports are odd, or all even");
}

#[test]
fn an_address_with_several_threads_is_nobody_elses() {
    let [one, two] = threads(Waiting::Sleep);
    let mut b = OnThread::spread(&one, &[two], Box::new(open(local("127.0.0.1")))).unwrap();
    let Some(Address::Ip(at)) = b.address() else { panic!() };
    let again = || UdpDatapath::new(UdpConfig::new(at)).open();
    assert!(again().unwrap_err().to_string().contains("bind"), "one more of its kind");
    b.close();
    again().unwrap();
    // What was a part is one as long as it is open.
    let mut whole = open(local("127.0.0.1"));
    let mut split = whole.split(1);
    assert_eq!((split.parts[0].address(), &split.short), (whole.address(), &None));
    split.parts[0].close();
    assert!(split.parts[0].open().is_err() && split.parts[0].address().is_none());
}

#[test]
fn what_each_thread_receives_is_captured() {
    let [one, two] = threads(Waiting::Spin);
    let tap = Tap::new(open(local("127.0.0.1")));
    let control = tap.control();
    let mut b = OnThread::spread(&one, &[two], Box::new(tap)).unwrap();
    let capture = control.start(256 << 20, "a test").unwrap();
    let Some(Address::Ip(at)) = b.address() else { panic!() };
    let mut senders =
        ["127.1.0.1", "127.1.0.2"].map(|ip| open(UdpConfig::new(SocketAddr::new(ip.parse().unwrap(), at.port()))));
    for _ in 0..200 {
        for sender in &mut senders {
            let mut tx = TxBatch::default();
            tx.frame(Address::Ip(at), &1u64.to_le_bytes(), 0);
            while !tx.is_done() {
                sender.transmit(&mut tx);
            }
        }
        numbers(&mut b, 2);
    }
    assert_eq!(b.threads().received(), [200, 200]);
    assert_eq!((capture.counts().captured, capture.counts().dropped), (400, 0));
    // The end of a part is not that of the capture.
    b.close();
    assert!(control.is_on());
    drop(b);
    assert!(!control.is_on());
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
        (self.seen % 2 == 1).then_some(Landing { memory, then: Then::default(), head_bytes: 8, token: self.seen })
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

/// Sends a frame of eight bytes to each address in turn, all in one batch.
fn send_numbers(from: &mut UdpDatapath, to: &[Address]) {
    let mut batch = TxBatch::default();
    for (n, &to) in to.iter().enumerate() {
        let first = batch.buffer().len();
        batch.buffer().extend_from_slice(&(n as u64).to_ne_bytes());
        batch.commit(to, first, None, n as u64);
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while !batch.is_done() && Instant::now() < deadline {
        from.transmit(&mut batch);
    }
    assert!(batch.frames().iter().all(|frame| frame.outcome == Outcome::Sent), "{:?}", batch.frames());
}

/// All numbers that are there, and from where.
fn take_numbers(at: &mut UdpDatapath, want: usize) -> Vec<(u64, Address)> {
    let free = (0..16).map(|id| Slot::owned(id, at.capabilities().slot_bytes)).collect();
    let mut batch = RxBatch { free, limit: 16, ..RxBatch::default() };
    let (mut all, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(10));
    while all.len() < want && Instant::now() < deadline {
        at.receive(&mut batch, None);
        for taken in std::mem::take(&mut batch.taken) {
            let bytes = &taken.slot.bytes()[..taken.len];
            all.extend(bytes.chunks(8).map(|n| (u64::from_ne_bytes(n.try_into().unwrap()), taken.from)));
            batch.free.push(taken.slot);
        }
    }
    all
}

#[test]
fn each_peer_is_sent_to_along_its_line() {
    for address in ["127.0.0.1", "::1"] {
        let (mut a, mut b, mut c) = (open(local(address)), open(local(address)), open(local(address)));
        let [at_a, at_b, at_c] = [&a, &b, &c].map(|end| end.address().unwrap());
        send_numbers(&mut a, &[at_b, at_c, at_b, at_b, at_c]);
        assert_eq!(a.lines(), 2, "{address}: this kernel has no lines, or they are not used");
        // Frames of both lines have the datapath's own address, and what is sent there comes to it, not to a line.
        assert_eq!(take_numbers(&mut b, 3), [(0, at_a), (2, at_a), (3, at_a)]);
        assert_eq!(take_numbers(&mut c, 2), [(1, at_a), (4, at_a)]);
        send_numbers(&mut b, &[at_a, at_a]);
        assert_eq!(take_numbers(&mut a, 2), [(0, at_b), (1, at_b)]);
        // A peer that is gone and one that comes after it at the same address: the line is as good as before.
        drop(b);
        send_numbers(&mut a, &[at_b, at_b]);
        let Address::Ip(bind) = at_b else { panic!("{at_b}") };
        let mut b = open(UdpConfig::new(bind));
        send_numbers(&mut a, &[at_b]);
        assert_eq!(take_numbers(&mut b, 1), [(0, at_a)]);
        a.close();
        assert_eq!(a.lines(), 0);
    }
}

#[test]
fn peers_without_a_line_are_sent_to_all_the_same() {
    let mut ends: Vec<_> = (0..80).map(|_| open(local("127.0.0.1"))).collect();
    let mut a = open(local("127.0.0.1"));
    let (from, to) = (a.address().unwrap(), ends.iter().map(|end| end.address().unwrap()).collect::<Vec<_>>());
    send_numbers(&mut a, &to);
    assert_eq!(a.lines(), 64);
    for (n, end) in ends.iter_mut().enumerate() {
        assert_eq!(take_numbers(end, 1), [(n as u64, from)]);
    }
    // One that is sent to for long takes over the line that was idle for longest.
    let last = *to.last().unwrap();
    (0..256).for_each(|_| send_numbers(&mut a, &[last]));
    let before = a.stats().calls;
    send_numbers(&mut a, &[last, to[1], last]);
    assert_eq!((a.lines(), a.stats().calls - before), (64, 3), "each goes along its line, in a call of its own");
}

#[test]
fn there_is_no_line_where_the_route_has_another_source() {
    let (mut a, mut b) = (open(local("127.0.0.2")), open(local("127.0.0.1")));
    let (from, to) = (a.address().unwrap(), b.address().unwrap());
    send_numbers(&mut a, &[to, to]);
    assert_eq!((a.lines(), take_numbers(&mut b, 2)), (0, vec![(0, from), (1, from)]));
    // Nor where the datapath has no address of its own, or is told to do without.
    for config in [local("0.0.0.0"), UdpConfig { lines: false, ..local("127.0.0.1") }] {
        let mut a = open(config);
        send_numbers(&mut a, &[to]);
        assert_eq!((a.lines(), take_numbers(&mut b, 1).len()), (0, 1));
    }
}

#[test]
fn who_was_sent_one_frame_at_a_time_misses_none_when_several_come_at_once() {
    let says: fn(&[u8]) -> usize = |_| 8;
    for (address, stride) in [("127.0.0.1", None), ("::1", None), ("127.0.0.1", Some(says)), ("::1", Some(says))] {
        let config = UdpConfig { stride, ..local(address) };
        let (mut a, mut b, mut c) = (open(local(address)), open(config), open(local(address)));
        let [at_a, at_b, at_c] = [&a, &b, &c].map(|end| end.address().unwrap());
        let free = (0..16).map(|id| Slot::owned(id, b.capabilities().slot_bytes)).collect();
        let mut batch = RxBatch { free, limit: 16, ..RxBatch::default() };
        let mut look = |b: &mut UdpDatapath| {
            let frames = b.receive(&mut batch, None).frames;
            let from: Vec<Address> = batch.taken.iter().map(|taken| taken.from).collect();
            batch.free.extend(batch.taken.drain(..).map(|taken| taken.slot));
            (frames, from)
        };
        for round in 0..3 {
            for n in 0..12 {
                send_numbers(&mut a, &[at_b]);
                assert_eq!(look(&mut b), (1, vec![at_a]), "{address}, round {round}, frame {n}");
                // Now and then it is looked whether there are more.
                assert!(n % 3 == 0 || look(&mut b) == (0, vec![]), "{address}, round {round}, frame {n}");
            }
            // From two senders, so that the kernel does not join them: the first alone, then all that were behind it at once.
            for _ in 0..3 {
                send_numbers(&mut a, &[at_b]);
                send_numbers(&mut c, &[at_b]);
            }
            assert_eq!(look(&mut b), (1, vec![at_a]));
            assert_eq!(look(&mut b), (5, vec![at_c, at_a, at_c, at_a, at_c]));
            assert_eq!(look(&mut b), (0, vec![]));
            // From one, so that they come joined.
            (0..6).for_each(|n| {
                send_numbers(&mut a, &[at_b]);
                assert_eq!(look(&mut b), (1, vec![at_a]), "{address}, round {round}, frame {n}");
            });
            send_numbers(&mut a, &[at_b; 5]);
            assert_eq!(look(&mut b), (5, vec![at_a]));
            assert_eq!(look(&mut b), (0, vec![]));
        }
    }
}
