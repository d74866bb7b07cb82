//! Frames over TCP on a cable in memory: the conformance suite, and what TCP adds.

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::{Wire, cable};
use insane_datagrams::{DatagramConfig, MAX_RECORD, SharedDatagrams, StreamStats, Streams, with_streams};
use insane_datapath::batch::{Outcome, RxBatch, TxBatch};
use insane_datapath::conformance::{self as suite, Rig, pattern};
use insane_datapath::fault::{Control, Faulty, Plan};
use insane_datapath::memory::Slot;
use insane_datapath::raw::RawDatapath;
use insane_datapath::{Address, Armed, Datapath};
use insane_netstack::tcp::{Connection, TcpConfig, TcpState};
use insane_netstack::{Arrival, Config, Engine, Interface, Mac};

const PATIENCE: Duration = Duration::from_secs(30);
const PORT: u16 = 7400;

fn config(end: usize) -> DatagramConfig {
    let address = format!("10.0.0.{}/24", end + 1).parse().expect("a prefix");
    DatagramConfig { address, port: PORT, gateway: None, vlan: None }
}

/// Where an end listens.
fn at(end: usize) -> SocketAddr {
    SocketAddr::new(config(end).address.address, PORT)
}

/// Frames over TCP on an end, open; nobody wants its datagrams.
fn streams<R: RawDatapath>(raw: R, end: usize) -> Streams<R> {
    streams_for(raw, end, 1)
}

/// As above, of a host with so many peers.
fn streams_for<R: RawDatapath>(raw: R, end: usize, peers: usize) -> Streams<R> {
    let (_, mut streams) = with_streams(raw, config(end), peers);
    streams.open().expect("it opens");
    streams
}

/// Both ends of a cable.
fn pair() -> [Streams<Wire>; 2] {
    let [a, b] = cable();
    [streams(a, 0), streams(b, 1)]
}

fn slots(datapath: &dyn Datapath, count: u64) -> RxBatch {
    let bytes = datapath.capabilities().slot_bytes;
    RxBatch { free: (0..count).map(|id| Slot::owned(id, bytes)).collect(), ..RxBatch::default() }
}

/// What there is to be received.
fn received(datapath: &mut dyn Datapath, rx: &mut RxBatch) -> Vec<Vec<u8>> {
    datapath.receive(rx, None);
    let taken: Vec<_> = rx.taken.drain(..).collect();
    let frames = taken.iter().flat_map(|taken| taken.frames().map(<[u8]>::to_vec)).collect();
    rx.free.extend(taken.into_iter().map(|taken| taken.slot));
    frames
}

/// Sends a batch, however long it takes, while the other end receives so many frames.
fn exchange(a: &mut dyn Datapath, b: &mut dyn Datapath, tx: &mut TxBatch<'_>, count: usize) -> Vec<Vec<u8>> {
    let (mut rx, mut got, start) = (slots(b, 16), Vec::new(), Instant::now());
    while got.len() < count || !tx.is_done() {
        a.transmit(tx);
        got.extend(received(b, &mut rx));
        assert!(start.elapsed() < PATIENCE, "{} of {count} have come: {:?} {:?}", got.len(), a.stats(), b.stats());
    }
    got
}

fn one(to: usize, bytes: &[u8]) -> TxBatch<'static> {
    let mut tx = TxBatch::default();
    tx.frame(Address::Ip(at(to)), bytes, 0);
    tx
}

/// Both ends send until each has heard the other.
fn meet(a: &mut dyn Datapath, b: &mut dyn Datapath) {
    let (mut heard, start) = ([false; 2], Instant::now());
    let mut rx = [slots(a, 16), slots(b, 16)];
    while heard != [true; 2] {
        a.transmit(&mut one(1, b"hello"));
        b.transmit(&mut one(0, b"hello"));
        heard[0] |= !received(a, &mut rx[0]).is_empty();
        heard[1] |= !received(b, &mut rx[1]).is_empty();
        assert!(start.elapsed() < PATIENCE, "they never met");
    }
    let quiet = Instant::now();
    while quiet.elapsed() < Duration::from_millis(30) {
        received(a, &mut rx[0]);
        received(b, &mut rx[1]);
    }
}

#[test]
fn conforms() {
    let mut rig = || {
        let [mut a, mut b] = pair();
        meet(&mut a, &mut b);
        Rig { a: Box::new(a), b: Box::new(b) }
    };
    suite::all_but_outcomes(&mut rig, &mut suite::open_again);
}

/// The device's own faults are TCP's to mend: whatever is lost, repeated, reordered or changed below, frames are whole and in order.
#[test]
fn frames_are_whole_and_in_order_whatever_the_device_does_to_them() {
    let plan = Plan { lose_ppm: 10_000, repeat_ppm: 5_000, delay_ppm: 5_000, change_ppm: 5_000, cut: false };
    let [a, b] = cable().map(|wire| Faulty::new(wire, plan, 7));
    let control = a.control();
    let [mut a, mut b] = [streams(a, 0), streams(b, 1)];
    const FRAMES: usize = 1500;
    let len = |number: usize| if number.is_multiple_of(10) { MAX_RECORD } else { 8 + number * 37 % 1400 };
    let mut tx = TxBatch::default();
    (0..FRAMES).for_each(|n| tx.frame(Address::Ip(at(1)), &pattern(n as u64, len(n)), n as u64));
    let (mut rx, mut got, start) = (slots(&b, 16), Vec::new(), Instant::now());
    // What its peer took nothing of for so long that it was refused is not expected.
    let taken = |tx: &TxBatch<'_>| -> Vec<usize> {
        let all = tx.frames().iter().filter(|frame| frame.outcome == Outcome::Sent);
        all.map(|frame| frame.cookie as usize).collect()
    };
    while !tx.is_done() || got.len() < taken(&tx).len() {
        a.transmit(&mut tx);
        got.extend(received(&mut b, &mut rx));
        assert!(start.elapsed() < PATIENCE, "{} have come: {:?} {:?}", got.len(), a.stats(), b.stats());
    }
    let taken = taken(&tx);
    assert!(got.len() == taken.len() && got.len() > FRAMES / 2, "{} of {} came", got.len(), taken.len());
    assert!(got.iter().zip(taken).all(|(frame, n)| *frame == pattern(n as u64, len(n))), "not as they were sent");
    let injected = control.injected();
    assert!(injected.lost > 5 && injected.changed > 2 && injected.delayed > 2, "{injected:?}");
    assert_eq!((a.stream_stats().opened, b.stream_stats().accepted), (1, 1), "{:?}", a.stream_stats());
}

#[test]
fn every_frame_has_an_outcome() {
    let [mut a, mut b] = pair();
    meet(&mut a, &mut b);
    let (to, before) = (Address::Ip(at(1)), a.stats());
    let mut tx = TxBatch::default();
    tx.frame(to, &pattern(1, MAX_RECORD), 0);
    tx.frame(to, &pattern(1, MAX_RECORD + 1), 0);
    tx.frame(Address::Ethernet([2; 6]), b"no station", 0);
    tx.frame(Address::Ip("192.0.2.1:7400".parse().expect("an address")), b"no gateway", 0);
    tx.frame(Address::Ip(at(0)), b"itself", 0);
    tx.frame(to, b"", 0);
    tx.frame(to, &pattern(2, 100), 0);
    assert_eq!(exchange(&mut a, &mut b, &mut tx, 2), [pattern(1, MAX_RECORD), pattern(2, 100)]);
    use Outcome::{Sent, TooLarge, Unreachable};
    let outcomes: Vec<Outcome> = tx.frames().iter().map(|frame| frame.outcome).collect();
    assert_eq!(outcomes, [Sent, TooLarge, Unreachable, Unreachable, Unreachable, Sent, Sent]);
    let after = a.stats();
    assert_eq!((after.sent_frames - before.sent_frames, after.refused_frames - before.refused_frames), (3, 4));
}

/// A peer is gone without a word and there again: the next frames open a connection anew, as it says that it knows of none.
#[test]
fn a_peer_that_starts_anew_is_connected_to_again() {
    let [a, b] = cable();
    let mut a = streams(a, 0);
    for round in 0..3_u64 {
        let cut = Faulty::new(b.clone(), Plan::default(), 1);
        let control: Control = cut.control();
        let mut peer = streams(cut, 1);
        let (mut rx, mut got, start) = (slots(&peer, 16), Vec::new(), Instant::now());
        while !got.contains(&pattern(round, 50)) {
            a.transmit(&mut one(1, &pattern(round, 50)));
            got.extend(received(&mut peer, &mut rx));
            assert!(start.elapsed() < PATIENCE, "it is not reached in round {round}: {:?}", a.stream_stats());
        }
        // It cannot say goodbye.
        control.cut(true);
        drop(peer);
    }
    let stats = a.stream_stats();
    assert!(stats.opened >= 3 && stats.ended >= 2, "{stats:?}");
}

/// Frames for a peer that does not answer wait a little, with those behind them; then they are refused, and the others go.
#[test]
fn a_peer_that_takes_nothing_holds_the_others_up_for_a_moment_only() {
    let [mut a, mut b] = pair();
    meet(&mut a, &mut b);
    let nobody = Address::Ip("10.0.0.77:7400".parse().expect("an address"));
    let mut tx = TxBatch::default();
    tx.frame(nobody, b"anybody?", 0);
    tx.frame(Address::Ip(at(1)), b"hello", 0);
    assert_eq!(a.transmit(&mut tx).pending, 2, "TCP has no room before the peer has answered");
    assert_eq!(exchange(&mut a, &mut b, &mut tx, 1), [b"hello"]);
    assert_eq!(tx.frames()[0].outcome, Outcome::Unreachable);
    assert_eq!(a.stream_stats().stalled, 1);
    // From then on it holds nobody up at all, also when TCP has given up and it is tried anew.
    let (tried, mut sent, mut got) = (a.stream_stats().opened, 0, 0);
    let (mut rx, start) = (slots(&b, 16), Instant::now());
    while a.stream_stats().opened == tried || got < sent {
        let mut tx = TxBatch::default();
        if a.stream_stats().opened == tried {
            tx.frame(nobody, b"anybody?", 0);
            tx.frame(Address::Ip(at(1)), b"hello", 0);
            sent += 1;
        }
        assert_eq!(a.transmit(&mut tx).pending, 0, "{:?}", a.stream_stats());
        got += received(&mut b, &mut rx).len();
        assert!(start.elapsed() < PATIENCE, "{got} of {sent}: {:?}", a.stream_stats());
        std::thread::sleep(Duration::from_millis(10));
    }
    // Nor does one that is there and reads nothing: what TCP has no room for is refused in the end.
    let mut tx = TxBatch::default();
    (0..100).for_each(|n| tx.frame(Address::Ip(at(1)), &pattern(n, MAX_RECORD), 0));
    let start = Instant::now();
    while !tx.is_done() {
        a.transmit(&mut tx);
        assert!(start.elapsed() < PATIENCE, "it waits for ever");
    }
    let sent = tx.frames().iter().filter(|frame| frame.outcome == Outcome::Sent).count();
    assert!((10..60).contains(&sent), "{sent} of 100 were taken");
    // What was taken comes, and then more.
    let got = exchange(&mut a, &mut b, &mut TxBatch::default(), sent);
    assert_eq!(got.len(), sent);
}

/// Both datapaths of a device, used as a runtime does: each sees its own alone, and neither sleeps over what the other has found.
#[test]
fn datagrams_and_streams_of_a_device_do_not_mix() {
    type Ends = (SharedDatagrams<Wire>, Streams<Wire>);
    let mut ends = [0, 1].into_iter().zip(cable()).map(|(end, wire)| {
        let (mut datagrams, mut streams): Ends = with_streams(wire, config(end), 1);
        datagrams.open().expect("it opens");
        streams.open().expect("it opens");
        (datagrams, streams)
    });
    let (mut a, mut b) = (ends.next().expect("two"), ends.next().expect("two"));
    let mut rx = [slots(&b.0, 64), slots(&b.1, 64)];
    let (mut datagrams, mut frames, start) = (Vec::new(), Vec::new(), Instant::now());
    let mut number = 0_u64;
    while datagrams.len() < 50 || frames.len() < 50 {
        a.0.transmit(&mut one(1, &pattern(2 * number, 60)));
        let mut tx = one(1, &pattern(2 * number + 1, 60));
        a.1.transmit(&mut tx);
        number += u64::from(tx.is_done());
        // Whichever is asked first takes all from the device.
        if number.is_multiple_of(2) {
            frames.extend(received(&mut b.1, &mut rx[1]));
        }
        datagrams.extend(received(&mut b.0, &mut rx[0]));
        frames.extend(received(&mut b.1, &mut rx[1]));
        assert!(start.elapsed() < PATIENCE, "{} datagrams and {} frames came", datagrams.len(), frames.len());
    }
    let numbers = |all: &[Vec<u8>]| -> Vec<u64> {
        all.iter().map(|frame| u64::from_le_bytes(frame[..8].try_into().expect("a number"))).collect()
    };
    assert!(numbers(&datagrams).iter().all(|number| number % 2 == 0), "a frame came as a datagram");
    let expected: Vec<u64> = (0..frames.len() as u64).map(|n| 2 * n + 1).collect();
    assert_eq!(numbers(&frames), expected);
    // With a datagram that arming the streams has found nobody sleeps.
    while a.1.receive(&mut slots(&a.1, 4), None).frames + b.1.receive(&mut rx[1], None).frames > 0 {}
    while !received(&mut b.0, &mut rx[0]).is_empty() {}
    a.0.transmit(&mut one(1, b"wake up"));
    let [mut armed_by, mut slept] = [None; 2];
    for _ in 0..2 {
        slept = Some(b.1.arm());
        armed_by = Some(b.0.arm());
    }
    assert!(slept == Some(Armed::Ready) && armed_by == Some(Armed::Ready), "{slept:?} {armed_by:?}");
    assert_eq!(received(&mut b.0, &mut rx[0]), [b"wake up"]);
    // One is closed, and the other goes on.
    b.0.close();
    assert_eq!((b.0.address(), b.1.address()), (None, Some(Address::Ip(at(1)))));
    assert_eq!(exchange(&mut a.1, &mut b.1, &mut one(1, b"still"), 1), [b"still"]);
    b.1.close();
    assert!(b.0.open().is_ok() && b.1.address().is_none());
    let (mut got, start) = (Vec::new(), Instant::now());
    while got.is_empty() {
        a.0.transmit(&mut one(1, b"still"));
        got = received(&mut b.0, &mut rx[0]);
        assert!(start.elapsed() < PATIENCE, "datagrams do not come any more");
    }
}

/// What was lost is sent again by who only sleeps and wakes: TCP's clock wakes it.
#[test]
fn the_clock_of_tcp_wakes_who_sleeps() {
    let [a, b] = cable();
    let faulty = Faulty::new(a, Plan::default(), 3);
    let control = faulty.control();
    let [mut a, mut b] = [Box::new(streams(faulty, 0)) as Box<dyn Datapath>, Box::new(streams(b, 1))];
    meet(&mut *a, &mut *b);
    control.cut(true);
    let mut tx = one(1, b"lost at first");
    while !tx.is_done() {
        a.transmit(&mut tx);
    }
    control.cut(false);
    let (mut rx, mut got, start) = ([slots(&*a, 4), slots(&*b, 4)], Vec::new(), Instant::now());
    while got.is_empty() {
        while a.arm() != Armed::Sleep {
            received(&mut *a, &mut rx[0]);
        }
        let handle = a.wake_handle().expect("it has one");
        let patience = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
        let mut asked = [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut asked, Some(&patience)), Ok(1), "nothing wakes it");
        got = received(&mut *b, &mut rx[1]);
        assert!(start.elapsed() < PATIENCE, "it never comes");
    }
    assert_eq!(got, [b"lost at first"]);
}

/// Hosts that speak TCP by an engine, at the other end of a cable, and do as a test says.
struct Strangers {
    wire: Wire,
    engines: Vec<Engine>,
    start: Instant,
}

impl Strangers {
    /// As many hosts, from 10.0.0.10 on.
    fn new(mut wire: Wire, count: u8) -> Self {
        wire.open().expect("it opens");
        let engines = (10..10 + count).map(|n| {
            let address = format!("10.0.0.{n}/24").parse().expect("a prefix");
            let mut config = Config::new(vec![Interface::new(Mac([2, 0, 0, 0, 0, 2]), vec![address])], u64::from(n));
            config.tcp = Some(TcpConfig { connections: 256, send_bytes: 64 << 10, ..TcpConfig::default() });
            Engine::new(&config).expect("an engine")
        });
        Self { wire, engines: engines.collect(), start: Instant::now() }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Lets all of them speak; with `hear` they see what came before, without it is lost.
    fn turn(&mut self, hear: bool) {
        let (now, mut frames) = (self.now(), Vec::new());
        self.wire.receive_in_place(256, &mut |frame| {
            frames.push(frame.first().to_vec());
            true
        });
        for engine in &mut self.engines {
            let mut out = Vec::new();
            for frame in frames.iter().filter(|_| hear) {
                engine.receive(now, &Arrival::new(0, frame), &mut out);
            }
            engine.poll(now, &mut out);
            let mut tx = TxBatch::default();
            out.iter().for_each(|(_, frame)| tx.frame(Address::Ethernet([2; 6]), frame, 0));
            self.wire.transmit(&mut tx);
        }
    }

    /// All of them send the host a datagram, which waits until it has said where it is.
    fn ask(&mut self) {
        let (now, mut tx) = (self.now(), TxBatch::default());
        for engine in &mut self.engines {
            let (from, mut out) = (engine.bind(None, PORT).expect("a port"), Vec::new());
            engine.send(now, from, at(0), &[b"where?"], &mut out).expect("it waits");
            out.iter().for_each(|(_, frame)| tx.frame(Address::Ethernet([2; 6]), frame, 0));
        }
        self.wire.transmit(&mut tx);
    }

    fn connect(&mut self, engine: usize) -> Connection {
        let now = self.now();
        self.engines[engine].tcp_connect(now, at(0)).expect("there is room")
    }

    fn state(&mut self, engine: usize, connection: Connection) -> TcpState {
        self.engines[engine].tcp_state(connection).expect("it is known")
    }
}

/// A host, and strangers at the other end of its cable.
fn against(count: u8) -> (Streams<Wire>, Strangers) {
    let [a, b] = cable();
    (streams(a, 0), Strangers::new(b, count))
}

/// Turns until something holds.
fn until(
    host: &mut Streams<Wire>,
    strangers: &mut Strangers,
    mut holds: impl FnMut(&mut Streams<Wire>, &mut Strangers) -> bool,
) -> Vec<Vec<u8>> {
    let (mut rx, start, mut got) = (slots(&*host, 16), Instant::now(), Vec::new());
    while !holds(host, strangers) {
        strangers.turn(true);
        got.extend(received(&mut *host, &mut rx));
        assert!(start.elapsed() < PATIENCE, "it does not come to that: {:?}", host.stream_stats());
    }
    got
}

/// A record as it goes over TCP.
fn record(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat()
}

/// How a peer begins that listens at port 7400.
fn preface() -> Vec<u8> {
    record(b"INSA\x01\x00\xe8\x1c")
}

#[test]
fn what_no_peer_sends_ends_its_connection_and_is_counted() {
    let spoiled = |first: &[u8]| [preface(), first.to_vec()].concat();
    let attacks: [(&str, Vec<u8>); 8] = [
        ("another name", record(b"HTTP\x01\x00\xe8\x1c")),
        ("another version", record(b"INSA\x02\x00\xe8\x1c")),
        ("port 0", record(b"INSA\x01\x00\x00\x00")),
        ("a first record of another length", record(b"INSA")),
        ("the length of a first record that never comes", 9_u32.to_le_bytes().to_vec()),
        ("nothing of ours", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("no length", spoiled(&0_u32.to_le_bytes())),
        ("more than any frame", spoiled(&(MAX_RECORD as u32 + 1).to_le_bytes())),
    ];
    let (mut host, mut strangers) = against(1);
    for (count, (name, bytes)) in attacks.iter().enumerate() {
        let connection = strangers.connect(0);
        until(&mut host, &mut strangers, |_, s| s.state(0, connection) == TcpState::Open);
        assert_eq!(strangers.engines[0].tcp_send(connection, bytes), Ok(bytes.len()));
        let got = until(&mut host, &mut strangers, |_, s| s.state(0, connection) == TcpState::Closed);
        assert_eq!((host.stream_stats().hostile, got.len()), (count as u64 + 1, 0), "{name}");
        strangers.engines[0].tcp_release(connection);
    }
    // Whoever keeps to it is heard, from the address that it has and the port that it says, whatever it sends in which pieces.
    let connection = strangers.connect(0);
    until(&mut host, &mut strangers, |_, s| s.state(0, connection) == TcpState::Open);
    for byte in [preface(), record(b"hello")].concat() {
        strangers.engines[0].tcp_send(connection, &[byte]).expect("it is open");
        strangers.turn(true);
    }
    let (mut rx, start) = (slots(&host, 4), Instant::now());
    while rx.taken.is_empty() {
        strangers.turn(true);
        host.receive(&mut rx, None);
        assert!(start.elapsed() < PATIENCE, "it is not heard");
    }
    let from = Address::Ip("10.0.0.10:7400".parse().expect("an address"));
    assert_eq!((rx.taken[0].bytes(), rx.taken[0].from), (&b"hello"[..], from));
}

#[test]
fn who_says_nothing_is_cut_off() {
    let (mut host, mut strangers) = against(1);
    let connection = strangers.connect(0);
    // A part of the first record is nothing either.
    until(&mut host, &mut strangers, |_, s| s.state(0, connection) == TcpState::Open);
    strangers.engines[0].tcp_send(connection, &preface()[..7]).expect("it is open");
    until(&mut host, &mut strangers, |_, s| s.state(0, connection) == TcpState::Closed);
    assert_eq!(host.stream_stats().hostile, 1);
}

/// However many connections a host opens, whoever it says it is: it has four, and those of others stay.
#[test]
fn a_host_that_opens_connections_without_end_costs_others_none_of_theirs() {
    let (mut host, mut strangers) = against(2);
    let say = |host: &mut Streams<Wire>, strangers: &mut Strangers, engine: usize, first: &[u8]| {
        let connection = strangers.connect(engine);
        until(host, strangers, |_, s| s.state(engine, connection) == TcpState::Open);
        assert_eq!(strangers.engines[engine].tcp_send(connection, first), Ok(first.len()));
        let before = host.stream_stats().accepted;
        until(host, strangers, |host, _| host.stream_stats().accepted >= before);
        connection
    };
    let good = say(&mut host, &mut strangers, 1, &preface());
    for port in 1..=100_u16 {
        let first = [&b"INSA\x01\x00"[..], &port.to_le_bytes()].concat();
        say(&mut host, &mut strangers, 0, &record(&first));
    }
    until(&mut host, &mut strangers, |host, _| host.stream_stats().evicted >= 96);
    let StreamStats { accepted, evicted, hostile, .. } = host.stream_stats();
    assert_eq!((accepted, evicted, hostile), (101, 96, 0));
    // The same peer, again and again, has one.
    for _ in 0..10 {
        say(&mut host, &mut strangers, 1, &preface());
    }
    until(&mut host, &mut strangers, |host, _| host.stream_stats().replaced >= 9);
    assert_eq!(strangers.state(1, good), TcpState::Closed);
}

/// Of forty peers each has two connections: the one that it opened, and the one that this host did at the same time. All stay, and one more
/// takes the place of one. Who is told of fewer peers has fewer places.
#[test]
fn forty_peers_keep_their_connections() {
    const PEERS: u8 = 40;
    for (told, kept) in [(40, 80), (0, 64)] {
        let [a, b] = cable();
        let (mut host, mut strangers) = (streams_for(a, 0, told), Strangers::new(b, PEERS));
        let counts = host.counts();
        let theirs: Vec<Connection> = (0..usize::from(PEERS))
            .map(|peer| {
                let connection = strangers.connect(peer);
                until(&mut host, &mut strangers, |_, s| s.state(peer, connection) == TcpState::Open);
                // It listens at another port than the host sends to: to the host those are two.
                let first = record(b"INSA\x01\x00\x01\x00");
                assert_eq!(strangers.engines[peer].tcp_send(connection, &first), Ok(first.len()));
                connection
            })
            .collect();
        until(&mut host, &mut strangers, |host, _| host.stream_stats().accepted == u64::from(PEERS));
        for peer in 0..PEERS {
            let to = SocketAddr::new([10, 0, 0, 10 + peer].into(), PORT);
            let mut tx = TxBatch::default();
            tx.frame(Address::Ip(to), b"hello", 0);
            host.transmit(&mut tx);
        }
        let StreamStats { opened, evicted, .. } = counts();
        assert_eq!((opened, evicted), (40, 80 - kept), "of a host with {told} peers");
        let closed = |s: &mut Strangers| {
            (0..theirs.len()).filter(|peer| s.state(*peer, theirs[*peer]) == TcpState::Closed).count() as u64
        };
        until(&mut host, &mut strangers, |_, s| closed(s) >= 80 - kept);
        assert_eq!(closed(&mut strangers), 80 - kept, "of a host with {told} peers");
    }
}

/// Connections that are begun and never finished take the places that are held ready, until TCP has lost its patience.
#[test]
fn half_open_connections_do_not_keep_others_out_for_ever() {
    let (mut host, mut strangers) = against(17);
    // They learn where the host is, and then hear nothing any more: of what opens a connection they send only the beginning.
    strangers.ask();
    until(&mut host, &mut strangers, |_, s| s.engines.iter().all(|engine| engine.usage()[2] == 0));
    for engine in 0..16 {
        strangers.connect(engine);
    }
    let (mut rx, begun) = (slots(&host, 4), Instant::now());
    while begun.elapsed() < Duration::from_millis(200) {
        strangers.turn(false);
        received(&mut host, &mut rx);
    }
    strangers.engines.drain(..16);
    let (mut connection, mut greeted) = (strangers.connect(0), false);
    let got = until(&mut host, &mut strangers, |host, s| {
        match s.state(0, connection) {
            TcpState::Open if !greeted => {
                assert!(begun.elapsed() > Duration::from_secs(3), "there was room all along");
                let all = [preface(), record(b"at last")].concat();
                greeted = s.engines[0].tcp_send(connection, &all) == Ok(all.len());
            }
            // There was no room for it.
            TcpState::Closed => {
                s.engines[0].tcp_release(connection);
                connection = s.connect(0);
            }
            _ => {}
        }
        host.stats().received_frames == 1
    });
    assert_eq!(got, [b"at last"]);
}
