//! A host that is reached over two datapaths of one kind besides UDP: one has an IPv4 address, the other an IPv6 one.

use super::sources::{Speaker, announce};
use super::tests::{attached, source, word};
use super::*;
use crate::config::Via;
use crate::network::lanes::{HOME, Lanes};
use crate::network::moves::Whose;
use crate::rebind::Asked;
use insane_shm::segment::Geometry;
use insane_wire::host as wire;
use insane_wire::qos::Acceleration;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

fn accelerated() -> Qos {
    let mut qos = Qos::default();
    qos.set_acceleration(Acceleration::Preferred);
    qos
}

/// The host's end of one of them.
struct Beside {
    address: Address,
    to_host: Frames,
    from_host: Frames,
    path: Path,
    memory: Slots,
    heard: Vec<Vec<u8>>,
}

/// What the host puts messages of several frames together in.
#[derive(Default)]
struct Slots(Vec<Vec<u8>>);

impl Store for Slots {
    fn reserve(&mut self, _flow: u32, bytes: u32, _urgent: bool) -> Option<u64> {
        self.0.push(vec![0; bytes as usize]);
        Some(self.0.len() as u64 - 1)
    }

    fn fill(&mut self, slot: u64, at: u32, bytes: &[u8]) {
        self.0[slot as usize][at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn hold(&mut self, _flow: u32, _bytes: &[u8]) -> Option<u64> {
        None
    }

    fn copy_out(&self, slot: u64, at: u32, len: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0[slot as usize][at as usize..][..len as usize]);
    }
}

impl Beside {
    /// Opens one in the runtime of a stand.
    fn new(stand: &mut Stand, own: &str, there: &str) -> Self {
        let [own, address] = [own, there].map(|text| Address::Ip(text.parse().unwrap()));
        let path = Path::new(stand.peer_config, stand.hub.ports.len() as u64 + 1, stand.now);
        let (to_host, from_host) = (Frames::default(), Frames::default());
        let beside = Self { address, to_host, from_host, path, memory: Slots::default(), heard: Vec::new() };
        stand.hub.ports.push(beside.port(own));
        beside
    }

    /// The runtime's end.
    fn port(&self, own: Address) -> Port {
        Port::new(Kind::Xdp, Box::new(self.wire(own)))
    }

    fn wire(&self, own: Address) -> Wire {
        let (to_host, from_host) = (self.to_host.clone(), self.from_host.clone());
        Wire { own, to_host, from_host, stats: Stats::default() }
    }

    /// Takes what is sent to it, and answers.
    fn turn(&mut self, now: Duration) {
        let arrived = std::mem::take(&mut *self.to_host.lock().unwrap());
        for (token, (_, frame)) in arrived.into_iter().enumerate() {
            self.path.receive(now, &frame, token as u64, &mut self.memory);
            self.events(&frame);
        }
        self.path.on_time(now);
        self.events(&[]);
        let mut bytes = Vec::new();
        while self.path.transmit(now, &mut bytes, &mut Said::default()).is_some() {
            self.from_host.lock().unwrap().push_back((self.address, std::mem::take(&mut bytes)));
        }
    }

    fn events(&mut self, frame: &[u8]) {
        while let Some(event) = self.path.event() {
            match event {
                Event::Requested { open, .. } => self.path.accept(open.flow, 0),
                Event::Message { flow, message, lies } => {
                    self.heard.push(match lies {
                        Lies::Frame { at, len, .. } => frame[at..at + len].to_vec(),
                        Lies::Slot { slot, .. } => std::mem::take(&mut self.memory.0[slot as usize]),
                    });
                    self.path.advance(flow, message.sequence);
                    self.path.consumed(flow, 1, 0);
                }
                _ => {}
            }
        }
    }
}

fn pass(stand: &mut Stand, besides: &mut [Beside]) {
    for _ in 0..50 {
        stand.pass(Duration::from_millis(5));
        besides.iter_mut().for_each(|beside| beside.turn(stand.now));
    }
}

#[test]
fn a_stream_whose_datapath_fails_goes_over_the_other_of_its_kind() {
    for number in [0, 1] {
        let mut stand = Stand::new();
        stand.hub.lost(0, stand.now);
        let mut besides = [("192.0.2.1:7", "192.0.2.2:7"), ("[2001:db8::1]:7", "[2001:db8::2]:7")]
            .map(|(own, there)| Beside::new(&mut stand, own, there));
        let config = path_config(&stand.hub.settings, stand.hub.run, MAX_FRAME, true);
        stand.hub.hosts[0].lanes = Lanes::new(3, stand.peer_address, Path::new(config, 3, stand.now), stand.now);
        stand.restart();
        let reach =
            besides.each_ref().map(|beside| wire::Reach { kind: "xdp".into(), address: beside.address.to_string() });
        stand.hub.offered(0, &reach, stand.now);
        pass(&mut stand, &mut besides);
        assert!((HOME..3).all(|lane| stand.hub.hosts[0].lanes.is_up(lane)), "both stand");
        stand.hub.requests.add(Asked { stream: None, host: None, kind: Some(Kind::Xdp) }).unwrap();
        announce(&mut stand, number, 1, 5);
        let mut speaker = Speaker::new(&mut stand, number, 4, 5);
        speaker.open(&mut stand, 0, 4, 1, 5);
        pass(&mut stand, &mut besides);
        speaker.emit(0, b"first");
        pass(&mut stand, &mut besides);
        let lanes = |stand: &Stand| {
            let open = stand.hub.hosts[0].flows.iter().flatten().filter(|flow| !flow.closing);
            open.map(|flow| flow.number.lane).collect::<Vec<_>>()
        };
        assert_eq!((lanes(&stand), besides[0].heard.len()), (vec![1], 1), "{number}");
        // Nothing comes or goes there any more; the other, which stands, has what the stream needs.
        let now = stand.now;
        stand.hub.hosts[0].lanes.path(1).unwrap().disconnect(now);
        pass(&mut stand, &mut besides[1..]);
        speaker.emit(0, b"second");
        pass(&mut stand, &mut besides[1..]);
        assert_eq!((lanes(&stand), &besides[1].heard[..]), (vec![2], &[b"second".to_vec()][..]), "{number}");
        assert_eq!(stand.hub.hosts[0].moves, 1, "and stays there");
    }
}

/// The datapath goes, and comes back; or comes for the first time.
#[test]
fn a_datapath_that_comes_back_has_its_streams_again() {
    for (number, late) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut stand = Stand::new();
        stand.hub.lost(0, stand.now);
        let (own, there) = ("192.0.2.1:7", "192.0.2.2:7");
        let mut besides = [Beside::new(&mut stand, own, there)];
        let own = Address::Ip(own.parse().unwrap());
        if late {
            stand.hub.ports[1] = Port::absent(Kind::Xdp, "it comes later".into());
        }
        let config = path_config(&stand.hub.settings, stand.hub.run, MAX_FRAME, true);
        stand.hub.hosts[0].lanes = Lanes::new(2, stand.peer_address, Path::new(config, 3, stand.now), stand.now);
        stand.restart();
        stand.hub.hosts[0].offers = Some(vec![wire::Reach { kind: "xdp".into(), address: there.into() }]);
        stand.hub.requests.add(Asked { stream: None, host: None, kind: Some(Kind::Xdp) }).unwrap();
        pass(&mut stand, &mut besides);
        announce(&mut stand, number, 1, 5);
        let mut speaker = Speaker::new(&mut stand, number, 4, 5);
        speaker.open(&mut stand, 0, 4, 1, 5);
        pass(&mut stand, &mut besides);
        let lanes = |stand: &Stand| {
            let open = stand.hub.hosts[0].flows.iter().flatten().filter(|flow| !flow.closing);
            open.map(|flow| flow.number.lane).collect::<Vec<_>>()
        };
        assert_eq!(lanes(&stand), [usize::from(!late)], "{number}");
        for round in 0..3 {
            if !late || round > 0 {
                let now = stand.now;
                stand.hub.port_lost(1, "it was taken away".into(), now);
                pass(&mut stand, &mut []);
            }
            assert_eq!(lanes(&stand), [HOME], "{number}, {round}");
            let why = |stand: &Stand| {
                stand.hub.choose(0, "any", accelerated(), Whose::Running(HOME)).effective.reasons.join("; ")
            };
            let said = if late && round == 0 { "has no xdp: it comes later" } else { "has no xdp: it was taken away" };
            assert!(why(&stand).contains(said), "{}", why(&stand));
            // What the host says meanwhile does not end the path, and is remembered.
            stand.hub.hosts[0].offers = Some(vec![wire::Reach { kind: "xdp".into(), address: there.into() }]);
            pass(&mut stand, &mut []);
            let before = stand.heard.len();
            let port = besides[0].port(own);
            stand.hub.opened(vec![(1, port)], "it is back");
            // How long it takes depends on how often the datapath was lost.
            for _ in 0..if late { 4 << round } else { 8 << round } {
                pass(&mut stand, &mut besides);
            }
            assert_eq!((lanes(&stand), why(&stand)), (vec![1], String::new()), "{number}, {round}");
            let hello = |word: &Vec<u8>| {
                let body = insane_wire::decode::<wire::ToHost>(word).ok().and_then(|word| word.body);
                let reach = if let Some(wire::to_host::Body::Hello(hello)) = body { hello.reach } else { Vec::new() };
                reach.iter().any(|one| one.address == own.to_string())
            };
            assert!(stand.heard[before..].iter().any(hello), "the host is told");
            speaker.emit(0, b"by it");
            pass(&mut stand, &mut besides);
            assert_eq!(besides[0].heard.len(), round + 1);
        }
    }
}

/// A stand whose host has just offered a datapath beside UDP.
fn offered_beside() -> (Stand, [Beside; 1]) {
    let mut stand = Stand::new();
    stand.hub.lost(0, stand.now);
    let (own, there) = ("192.0.2.1:7", "192.0.2.2:7");
    let besides = [Beside::new(&mut stand, own, there)];
    let config = path_config(&stand.hub.settings, stand.hub.run, MAX_FRAME, true);
    stand.hub.hosts[0].lanes = Lanes::new(2, stand.peer_address, Path::new(config, 3, stand.now), stand.now);
    stand.restart();
    stand.hub.offered(0, &[wire::Reach { kind: "xdp".into(), address: there.into() }], stand.now);
    (stand, besides)
}

/// The path is lost by which a source was to go on, while its flow over another stands, which then ends as it was to.
#[test]
fn a_source_whose_next_path_is_lost_goes_on_when_its_flow_before_has_ended() {
    let (mut stand, mut besides) = offered_beside();
    pass(&mut stand, &mut besides);
    stand.sink(1, [1; 16], 5, true);
    let about = source(1, 4, 5);
    stand.say(&about);
    let _players = attached(&mut stand);
    let epoch = u128::from_le_bytes([4; 16]);
    stand.open("default", epoch, 5, true);
    let none = wire::Ready { epoch: vec![4; 16], sink: vec![1; 16], join: 0, answer: true };
    stand.say(&word(wire::to_host::Body::Ready(none)));
    pass(&mut stand, &mut besides);
    let state = |stand: &Stand| {
        let one = &stand.hub.hosts[0];
        let remotes = stand.hub.domains[0].remotes.iter().flatten();
        (one.incoming.len(), one.requested.len(), remotes.map(|r| (r.number, r.ending)).collect::<Vec<_>>())
    };
    let (accepted, asked, known) = state(&stand);
    assert_eq!((accepted, asked, known.len()), (1, 0, 1));
    // It is about to move.
    stand.say(&about);
    let domain = stand.hub.domains[0].number;
    besides[0].path.open(FlowSpec { domain, epoch, channel: 5, reliable: true, first: 1 });
    pass(&mut stand, &mut besides);
    assert_eq!(state(&stand), (1, 1, known.clone()));
    let now = stand.now;
    stand.hub.hosts[0].lanes.path(1).unwrap().disconnect(now);
    stand.hub.events(0, now, None);
    let before = *stand.flows.last().unwrap();
    stand.peer.close(before);
    pass(&mut stand, &mut []);
    assert_eq!(state(&stand), (0, 0, known.clone()), "it is waited for");
    // Now its host has found that out, too.
    let Ok(wire::ToHost { body: Some(wire::to_host::Body::Source(said)) }) = insane_wire::decode(&about) else {
        panic!()
    };
    stand.say(&word(wire::to_host::Body::Source(wire::Source { gone: true, ..said })));
    stand.open("default", epoch, 5, true);
    pass(&mut stand, &mut []);
    assert_eq!(state(&stand), (1, 0, known));
    let last = *stand.flows.last().unwrap();
    stand.peer.close(last);
    pass(&mut stand, &mut []);
    assert_eq!(state(&stand), (0, 0, Vec::new()), "that was its end");
}

/// The lanes of the flows that are open.
fn open_lanes(stand: &Stand) -> Vec<usize> {
    let open = stand.hub.hosts[0].flows.iter().flatten().filter(|flow| !flow.closing);
    open.map(|flow| flow.number.lane).collect()
}

/// A stand whose streams are asked to go over a datapath beside UDP, with a session of this number that has a source there.
fn beside(number: u64) -> (Stand, [Beside; 1], Speaker) {
    let (mut stand, mut besides) = offered_beside();
    stand.hub.requests.add(Asked { stream: None, host: None, kind: Some(Kind::Xdp) }).unwrap();
    pass(&mut stand, &mut besides);
    announce(&mut stand, number, 1, 5);
    let mut speaker = Speaker::new(&mut stand, number, 4, 5);
    speaker.open(&mut stand, 0, 4, 1, 5);
    pass(&mut stand, &mut besides);
    assert_eq!(open_lanes(&stand), [1], "{number}");
    (stand, besides, speaker)
}

/// The path beside UDP is lost, and stands again as soon as the ends have found each other.
fn flap(stand: &mut Stand, besides: &mut [Beside]) {
    let now = stand.now;
    for path in [stand.hub.hosts[0].lanes.path(1).unwrap(), &mut besides[0].path] {
        path.disconnect(now);
    }
    stand.hub.events(0, now, None);
    assert_eq!(open_lanes(stand), [HOME], "what is lost is left at once");
    for _ in 0..100 {
        stand.pass(Duration::from_millis(5));
        besides.iter_mut().for_each(|beside| beside.turn(stand.now));
        if stand.hub.hosts[0].lanes.is_up(1) {
            return;
        }
    }
    panic!("it does not stand again");
}

/// How long it takes until the stream is back.
fn comes_back_in(stand: &mut Stand, besides: &mut [Beside]) -> Duration {
    let (start, limit) = (stand.now, Duration::from_secs(100));
    while open_lanes(stand) != [1] {
        stand.pass(Duration::from_millis(5));
        besides.iter_mut().for_each(|beside| beside.turn(stand.now));
        assert!(stand.now - start < limit, "it does not come back");
    }
    stand.now - start
}

#[test]
fn streams_come_back_to_what_flaps_later_and_later_and_soon_again_once_it_stood() {
    for number in [0, 1] {
        let (mut stand, mut besides, mut speaker) = beside(number);
        stand.hub.settings.return_most_ms = 8000;
        let reason = |stand: &Stand| {
            stand.hub.choose(0, "any", accelerated(), Whose::Running(HOME)).effective.reasons.join("; ")
        };
        let slack = Duration::from_millis(100);
        // It is lost each time as soon as the stream is back.
        for (round, seconds) in [1, 2, 4, 8, 8].into_iter().enumerate() {
            flap(&mut stand, &mut besides);
            assert_eq!(open_lanes(&stand), [HOME], "{number}, {round}");
            assert!(
                reason(&stand).contains("here reaches there over xdp again, and streams come back"),
                "{}",
                reason(&stand)
            );
            let (hold, took) = (Duration::from_secs(seconds), comes_back_in(&mut stand, &mut besides));
            assert!(took > hold - slack && took < hold + slack, "{number}, {round}: {took:?}");
            assert_eq!(reason(&stand), "");
            speaker.emit(0, b"by it");
            pass(&mut stand, &mut besides);
            assert_eq!(besides[0].heard.len(), round + 1, "{number}");
        }
        // It flaps far faster than the stream comes back, which stays where it is.
        let before = stand.hub.hosts[0].moves;
        for _ in 0..20 {
            flap(&mut stand, &mut besides);
            pass(&mut stand, &mut besides);
        }
        assert_eq!((stand.hub.hosts[0].moves, open_lanes(&stand)), (before + 1, vec![HOME]), "{number}");
        // It has stood for as long as streams are held off at most after they were back.
        comes_back_in(&mut stand, &mut besides);
        (0..40).for_each(|_| pass(&mut stand, &mut besides));
        flap(&mut stand, &mut besides);
        let took = comes_back_in(&mut stand, &mut besides);
        assert!(took < Duration::from_secs(1) + slack, "{number}: {took:?}");
    }
}

#[test]
fn who_opens_a_stream_asks_for_a_move_or_restarts_does_not_wait_for_what_flaps() {
    for number in [0, 1] {
        let (mut stand, mut besides, mut speaker) = beside(number);
        let held = |stand: &mut Stand, besides: &mut [Beside]| {
            flap(stand, besides);
            pass(stand, besides);
            assert!(stand.hub.hosts[0].lanes.is_held(1) && open_lanes(stand).contains(&HOME), "{number}");
        };
        held(&mut stand, &mut besides);
        let moved = stand.hub.rebind_as_asked(Asked { stream: None, host: None, kind: Some(Kind::Xdp) }).unwrap();
        assert_eq!((moved.moving, open_lanes(&stand)), (1, vec![1]), "{number}: it was asked for");
        pass(&mut stand, &mut besides);
        assert_eq!(open_lanes(&stand), [1], "{number}: it stays");
        // Another runtime of the host: of that one it is not known that anything flaps.
        held(&mut stand, &mut besides);
        let hello = wire::Hello {
            host: "there".into(),
            run: 77u128.to_le_bytes().to_vec(),
            reach: vec![wire::Reach { kind: "xdp".into(), address: besides[0].address.to_string() }],
            ..wire::Hello::default()
        };
        stand.say(&word(wire::to_host::Body::Hello(hello)));
        pass(&mut stand, &mut besides);
        assert_eq!(open_lanes(&stand), [1], "{number}: it is another runtime's");
        // A source that opens takes what stands, and the one that was there waits.
        held(&mut stand, &mut besides);
        announce(&mut stand, number, 2, 6);
        stand.source(number, [6; 16], 6, true);
        speaker.open(&mut stand, 1, 6, 2, 6);
        pass(&mut stand, &mut besides);
        let mut lanes = open_lanes(&stand);
        lanes.sort_unstable();
        assert_eq!(lanes, [HOME, 1], "{number}: it opens");
        assert_eq!(stand.hub.choose(0, "any", accelerated(), Whose::New).via, Via::of(Kind::Xdp), "and under strict");
    }
}

#[test]
fn how_long_a_move_takes_is_from_the_decision_until_the_other_host_goes_along() {
    for number in [0, 1] {
        let (mut stand, mut besides, _speaker) = beside(number);
        let times = |stand: &Stand| (stand.hub.hosts[0].move_times.count, stand.hub.hosts[0].move_times.last);
        assert_eq!(times(&stand), (0, Duration::ZERO), "{number}: it was opened there");
        let now = stand.now;
        for path in [stand.hub.hosts[0].lanes.path(1).unwrap(), &mut besides[0].path] {
            path.disconnect(now);
        }
        stand.hub.events(0, now, None);
        assert_eq!((open_lanes(&stand), stand.hub.hosts[0].moves, times(&stand).0), (vec![HOME], 1, 0), "{number}");
        // The host is busy with something else for a while.
        for _ in 0..20 {
            stand.now += Duration::from_millis(20);
            stand.turns(false);
        }
        assert_eq!(times(&stand).0, 0, "{number}");
        pass(&mut stand, &mut besides);
        let (count, took) = times(&stand);
        assert!(count == 1 && took > Duration::from_millis(400) && took < stand.now - now, "{number}: {took:?}");
        // If the host is lost meanwhile that was no pause of a move.
        comes_back_in(&mut stand, &mut besides);
        pass(&mut stand, &mut besides);
        let now = stand.now;
        stand.hub.hosts[0].lanes.path(1).unwrap().disconnect(now);
        stand.hub.events(0, now, None);
        let before = times(&stand).0;
        stand.hub.hosts[0].lanes.path(HOME).unwrap().disconnect(now);
        stand.hub.events(0, now, None);
        stand.pass(Duration::from_secs(1));
        assert_eq!(times(&stand).0, before, "{number}");
    }
}

/// A datapath that takes payload from where it lies: how much it was given so, and how many frames it has room for.
struct Gathers {
    wire: Wire,
    apart: Arc<AtomicUsize>,
    room: Arc<AtomicUsize>,
}

impl Datapath for Gathers {
    fn capabilities(&self) -> Capabilities {
        self.wire.capabilities()
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        self.wire.open()
    }

    fn address(&self) -> Option<Address> {
        self.wire.address()
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        let takes = batch.pending().len().min(self.room.load(Relaxed));
        let mut taken = TxBatch::default();
        for frame in &batch.pending()[..takes] {
            self.apart.fetch_add(frame.piece.map_or(0, |piece| piece.len()), Relaxed);
            let mut bytes = Vec::new();
            batch.copy_to(frame, &mut bytes);
            taken.frame(frame.to, &bytes, 0);
        }
        self.wire.transmit(&mut taken);
        batch.settle(takes, Outcome::Sent);
        self.room.fetch_sub(takes, Relaxed);
        TxReport { sent: takes, pending: batch.pending().len(), ..TxReport::default() }
    }

    fn receive(&mut self, batch: &mut RxBatch, place: Option<&mut dyn Place>) -> RxReport {
        self.wire.receive(batch, place)
    }

    fn stats(&self) -> Stats {
        self.wire.stats()
    }

    fn close(&mut self) {}
}

/// Short messages share frames; long ones, and the parts of those that take several, are read by the datapath where they lie. What it
/// had no room for when they were given back is what it was.
#[test]
fn payload_that_a_datapath_can_gather_is_not_copied_before() {
    let mut stand = Stand::new();
    stand.hub.lost(0, stand.now);
    let (own, there) = ("192.0.2.1:7", "192.0.2.2:7");
    let mut besides = [Beside::new(&mut stand, own, there)];
    let (apart, room) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(usize::MAX)));
    let wire = besides[0].wire(Address::Ip(own.parse().unwrap()));
    stand.hub.ports[1] = Port::new(Kind::Xdp, Box::new(Gathers { wire, apart: apart.clone(), room: room.clone() }));
    let config = path_config(&stand.hub.settings, stand.hub.run, MAX_FRAME, true);
    stand.hub.hosts[0].lanes = Lanes::new(2, stand.peer_address, Path::new(config, 3, stand.now), stand.now);
    stand.restart();
    let reach = [wire::Reach { kind: "xdp".into(), address: there.into() }];
    stand.hub.offered(0, &reach, stand.now);
    pass(&mut stand, &mut besides);
    stand.hub.requests.add(Asked { stream: None, host: None, kind: Some(Kind::Xdp) }).unwrap();
    announce(&mut stand, 0, 1, 5);
    let mut speaker = Speaker::new(&mut stand, 0, 4, 5);
    speaker.open(&mut stand, 0, 4, 1, 5);
    let mut slab = speaker.with_memory(&mut stand, Geometry::checked(1 << 16, 16).unwrap());
    pass(&mut stand, &mut besides);
    let half = MAX_FRAME / 2;
    let message = |n: u8, len: usize| (0..len).map(|at| (at % 251) as u8 ^ n).collect::<Vec<_>>();
    let mut sent = Vec::new();
    for (n, len) in [(1, half - 100), (2, half + 100), (3, 10 * MAX_FRAME)] {
        sent.push(message(n, len));
        speaker.emit_in(&mut slab, 0, &sent[sent.len() - 1]);
        pass(&mut stand, &mut besides);
    }
    assert_eq!(besides[0].heard, sent);
    let expected = sent[1].len() + sent[2].len();
    assert_eq!(apart.load(Relaxed), expected, "the first is short");
    // There is room for three frames of ten, and when there is for the others nobody has their payload any more.
    room.store(3, Relaxed);
    sent.push(message(4, 10 * MAX_FRAME));
    speaker.emit_in(&mut slab, 0, &sent[3]);
    pass(&mut stand, &mut besides);
    assert_eq!(speaker.holds(), 0);
    let intakes = stand.hub.domains.iter_mut().flat_map(|domain| domain.intakes.iter_mut().flatten());
    intakes.for_each(|intake| intake.segments.clear());
    room.store(usize::MAX, Relaxed);
    pass(&mut stand, &mut besides);
    assert_eq!(besides[0].heard, sent);
    let of_last = apart.load(Relaxed) - expected;
    assert!((2 * half..4 * MAX_FRAME).contains(&of_last), "{of_last} bytes of the three that went at once");
}
