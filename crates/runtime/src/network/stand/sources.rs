//! Sessions with sources whose links are played here: what they say of their flows, and of those of others.

use super::*;
use crate::network::links::ENOUGH;
use insane_shm::counters::Count;
use insane_shm::link::{DeliveryBlock, Descriptor, Producer, ReturnBlock};
use insane_shm::memory::{SharedMemory, map_peer};
use insane_shm::ring::LAYOUT;
use insane_shm::segment::{Geometry, Segment};
use insane_shm::slab::Slab;
use insane_shm::socket::{Received, receive, send};
use insane_wire::host::{self as wire, ToHost, to_host::Body};
use insane_wire::id::{Epoch, SinkId};
use insane_wire::peer::{self, ToPeer, to_peer};
use insane_wire::{MAX_CONTROL_BYTES, decode, encode};
use rustix::fd::{AsFd, BorrowedFd};

const LINK: u32 = 1;
const VICTIM: u8 = 0x11;
const OTHER: u8 = 0x22;

fn reliability(number: u64) -> Qos {
    let mut qos = Qos::default();
    if number % 2 == 1 {
        qos.set_reliability(Reliability::Reliable);
    }
    qos
}

/// The host has a sink for the stream of a session.
pub(super) fn announce(stand: &mut Stand, number: u64, sink: u8, channel: u64) {
    announce_as(stand, number, sink, channel, false);
}

fn announce_as(stand: &mut Stand, number: u64, sink: u8, channel: u64, observer: bool) {
    let announced = wire::Announce {
        domain: "default".into(),
        stream: stream_name(number).to_owned(),
        qos: Some(reliability(number)),
        channel,
        sink: vec![sink; 16],
        observer,
        ..Default::default()
    };
    stand.say(&encode(&ToHost { body: Some(Body::Announce(announced)) }));
}

/// A session that emits over a link, and says what it wants.
pub(super) struct Speaker {
    socket: OwnedFd,
    producer: Producer,
    sequence: u64,
    /// The sinks of flows that were opened, with the numbers under which they joined, and of those that were not to be.
    opened: Vec<(Vec<u8>, u16)>,
    closed: Vec<Vec<u8>>,
    /// The answers to who holds a source up.
    lagging: Vec<(u32, Vec<Vec<u8>>)>,
}

impl Speaker {
    /// A session with a source on a channel for which the host has a sink: so it has a pair.
    pub(super) fn new(stand: &mut Stand, number: u64, epoch: u8, channel: u64) -> Self {
        stand.source(number, [epoch; 16], channel, true);
        let at = stand.ends.iter().position(|(conn, _)| *conn == SESSIONS + number).expect("a pair");
        let socket = stand.ends.swap_remove(at).1;
        let entries = Config::default().quota.link_entries;
        let memory = SharedMemory::create("delivery", DeliveryBlock::bytes(entries).unwrap(), false, true).unwrap();
        let memory = Arc::new(memory);
        let own = DeliveryBlock::create(memory.clone(), entries).unwrap();
        let (stream, reliable) = (stream_name(number).to_owned(), number % 2 == 1);
        let offer = peer::LinkOffer { stream, entries, reliable, layout: LAYOUT };
        say(&socket, to_peer::Body::LinkOffer(offer), &[memory.fd()]);
        stand.settle();
        let Received::Message(bytes, fds) = receive(socket.as_fd(), MAX_CONTROL_BYTES).unwrap() else {
            panic!("the link was not taken")
        };
        assert!(matches!(decode::<ToPeer>(&bytes).unwrap().body, Some(to_peer::Body::LinkAccept(_))));
        let returns = Arc::new(map_peer(fds[0].as_fd(), 0, u64::MAX).unwrap());
        let producer = Producer::new(own, ReturnBlock::open(returns, entries).unwrap());
        Self { socket, producer, sequence: 0, opened: Vec::new(), closed: Vec::new(), lagging: Vec::new() }
    }

    /// Wants a flow, as the source of this number on its link.
    fn want(&self, source: u32, epoch: u8, sink: u8, channel: u64) {
        let (epoch, sink) = (vec![epoch; 16], vec![sink; 16]);
        say(&self.socket, to_peer::Body::FlowOpen(peer::FlowOpen { source, epoch, sink, channel, strict: false }), &[]);
    }

    fn end(&self, source: u32, sink: u8) {
        self.end_as(source, sink, false);
    }

    fn end_as(&self, source: u32, sink: u8, given_up: bool) {
        let position = self.producer.position();
        let closed = peer::FlowClosed { source, sink: vec![sink; 16], position, given_up };
        say(&self.socket, to_peer::Body::FlowClosed(closed), &[]);
    }

    fn read(&mut self) {
        while let Received::Message(bytes, _) = receive(self.socket.as_fd(), MAX_CONTROL_BYTES).unwrap() {
            match decode::<ToPeer>(&bytes).unwrap().body {
                Some(to_peer::Body::FlowOpened(flow)) => self.opened.push((flow.sink, flow.join as u16)),
                Some(to_peer::Body::FlowClose(flow)) => self.closed.push(flow.sink),
                Some(to_peer::Body::FlowLagging(answer)) => self.lagging.push((answer.number, answer.sinks)),
                _ => {}
            }
        }
    }

    /// Opens a flow to a sink that its host has attached.
    pub(super) fn open(&mut self, stand: &mut Stand, source: u32, epoch: u8, sink: u8, channel: u64) {
        self.want(source, epoch, sink, channel);
        stand.settle();
        attach(stand, epoch, sink);
        self.read();
        assert_eq!(self.opened.last().map(|(is, _)| is[0]), Some(sink), "{stand:?}");
    }

    /// Emits a message for all of its sinks.
    pub(super) fn emit(&mut self, source: u32, payload: &[u8]) {
        let d = self.next(source, payload);
        self.producer.push(&d, payload);
    }

    fn next(&mut self, source: u32, payload: &[u8]) -> Descriptor {
        self.sequence += 1;
        let joined = self.opened.iter().map(|(_, join)| *join).max().unwrap_or(0);
        let (sequence, length) = (self.sequence, payload.len() as u32);
        Descriptor { source, sequence, length, count: 1, joined, ..Descriptor::default() }
    }

    /// Gives the runtime memory to read.
    pub(super) fn with_memory(&mut self, stand: &mut Stand, geometry: Geometry) -> Slab {
        let (segment, mut slab) = (Arc::new(Segment::create(geometry, false).unwrap()), Slab::default());
        let Geometry { stride, slots } = geometry;
        let number = slab.add(segment.clone(), |_| true).unwrap();
        let add = peer::SegmentAdd { segment: number.into(), stride, slots, ..Default::default() };
        say(&self.socket, to_peer::Body::SegmentAdd(add), &[segment.fd()]);
        stand.settle();
        self.producer.add_segment(number, slots);
        slab
    }

    /// How many slots are not given back.
    pub(super) fn holds(&mut self) -> u64 {
        self.producer.reclaim(|_| ()).unwrap();
        self.producer.holds()
    }

    /// Emits a message that lies in a slot of its own.
    pub(super) fn emit_in(&mut self, slab: &mut Slab, source: u32, payload: &[u8]) {
        let (id, d) = (slab.take_any(payload.len() as u64).unwrap().id, self.next(source, payload));
        slab.bytes_mut(id, 0, d.length).unwrap().copy_from_slice(payload);
        self.producer.push(&Descriptor { segment: id.segment, slot: id.slot, ..d }, &[]);
    }
}

fn say(socket: &OwnedFd, body: to_peer::Body, fds: &[BorrowedFd<'_>]) {
    assert!(send(socket.as_fd(), &encode(&ToPeer { link: LINK, body: Some(body) }), fds).unwrap());
}

/// The host says that a sink can get what a source emits, and takes the number that it is given.
fn attach(stand: &mut Stand, epoch: u8, sink: u8) {
    let word = |join| {
        let ready = wire::Ready { epoch: vec![epoch; 16], sink: vec![sink; 16], join, answer: false };
        encode(&ToHost { body: Some(Body::Ready(ready)) })
    };
    stand.say(&word(0));
    let key = (Epoch(u128::from_le_bytes([epoch; 16])), SinkId(u128::from_le_bytes([sink; 16])));
    let one = &stand.hub.hosts[0];
    let number = one.accounts[one.by_key[&key]].as_ref().expect("an account").number;
    stand.say(&word(number));
}

/// A session of this number that has a flow to the host's one sink, with its stand.
fn speaking(number: u64) -> (Stand, Speaker) {
    let mut stand = Stand::new();
    announce(&mut stand, number, 1, 5);
    let mut session = Speaker::new(&mut stand, number, VICTIM, 5);
    session.open(&mut stand, 0, VICTIM, 1, 5);
    (stand, session)
}

/// Whether each source's messages go to a flow of its own.
fn routes_are_right(stand: &Stand) -> bool {
    let intakes = stand.hub.domains[0].intakes.iter().enumerate();
    let mut routes = intakes.filter_map(|(link, intake)| Some((link, intake.as_ref()?))).flat_map(|(link, intake)| {
        intake
            .sources
            .iter()
            .flat_map(move |(number, of)| of.routes.iter().map(move |route| (link, *number, of, route)))
    });
    routes.all(|(link, number, of, route)| {
        let flow = stand.hub.hosts[0].flows[route.flow].as_ref();
        flow.is_some_and(|flow| (flow.epoch, flow.from) == (of.epoch, (0, link, number)))
    })
}

#[test]
fn a_session_cannot_end_or_redirect_the_flow_of_another() {
    for number in [0, 1] {
        let mut stand = Stand::new();
        announce(&mut stand, number, 1, 5);
        announce(&mut stand, number, 2, 6);
        let mut victim = Speaker::new(&mut stand, number, VICTIM, 5);
        let mut other = Speaker::new(&mut stand, number + 2, OTHER, 6);
        victim.open(&mut stand, 0, VICTIM, 1, 5);
        victim.emit(0, b"before");
        stand.pass(Duration::from_millis(100));
        // Its own sink with the other's source, and the other's sink, in its own name and in the other's.
        for (epoch, sink, channel) in [(VICTIM, 2, 6), (VICTIM, 1, 5), (OTHER, 1, 5)] {
            other.want(9, epoch, sink, channel);
            stand.pass(Duration::from_millis(10));
            assert!(routes_are_right(&stand), "{epoch} {sink}");
            other.end(9, sink);
            stand.pass(Duration::from_millis(10));
        }
        other.read();
        assert_eq!(other.closed, [[2; 16], [1; 16], [1; 16]], "it is told that there is no such flow");
        victim.emit(0, b"after");
        stand.pass(Duration::from_millis(100));
        let heard = |payload: &[u8]| stand.heard.iter().filter(|bytes| *bytes == payload).count();
        assert_eq!((heard(b"before"), heard(b"after")), (1, 1), "{number}");
        victim.read();
        assert!(victim.closed.is_empty());
    }
}

#[test]
fn a_source_with_two_numbers_gets_into_no_flow_of_another() {
    let mut stand = Stand::new();
    for (sink, channel) in [(1, 5), (2, 6), (3, 6)] {
        announce(&mut stand, 0, sink, channel);
    }
    let mut other = Speaker::new(&mut stand, 2, OTHER, 6);
    other.open(&mut stand, 0, OTHER, 2, 6);
    other.open(&mut stand, 1, OTHER, 3, 6);
    other.end(0, 2);
    stand.pass(Duration::from_secs(1));
    // Their place is free, and the next takes it.
    let mut victim = Speaker::new(&mut stand, 0, VICTIM, 5);
    victim.open(&mut stand, 0, VICTIM, 1, 5);
    assert!(routes_are_right(&stand));
    other.emit(1, b"its own");
    victim.emit(0, b"the victim's");
    stand.pass(Duration::from_millis(100));
    assert!(stand.heard.iter().any(|bytes| bytes == b"the victim's"));
}

#[test]
fn a_flow_that_is_opened_before_the_core_was_heard_is_not_lost() {
    for rung in [true, false] {
        let mut stand = Stand::new();
        announce(&mut stand, 0, 1, 5);
        announce(&mut stand, 0, 2, 6);
        let mut session = Speaker::new(&mut stand, 0, OTHER, 6);
        // Its word is read before the core's, which is there, and of which this thread may have been told when it looked for what
        // there is, or may not.
        session.want(0, VICTIM, 1, 5);
        let channel = Some(session::Channel { name: None, id: Some(5) });
        let open = session::OpenSource { stream: stand.streams[&SESSIONS], channel, epoch: vec![VICTIM; 16] };
        stand.ask(SESSIONS, to_runtime::Body::OpenSource(open));
        if !rung {
            stand.bell.clear();
        }
        stand.settle();
        attach(&mut stand, VICTIM, 1);
        session.read();
        assert_eq!((session.opened.len(), session.closed.len()), (1, 0), "{rung}");
        // What is closed may not be opened again.
        stand.source(0, [VICTIM; 16], 5, false);
        session.end(0, 1);
        stand.pass(Duration::from_secs(1));
        session.want(0, VICTIM, 1, 5);
        stand.pass(Duration::from_millis(10));
        session.read();
        assert_eq!((session.opened.len(), session.closed.len()), (1, 1), "{rung}");
    }
}

#[test]
fn a_link_is_held_when_its_host_has_enough_and_seldom_asked_whether_it_has() {
    let (mut stand, mut session) = speaking(0);
    let intake = |stand: &Stand| {
        let intake = stand.hub.domains[0].intakes.iter().flatten().next().expect("a link");
        (intake.held, intake.allowance, intake.consumer.ready())
    };
    for _ in 0..100 {
        session.emit(0, b"one by one");
        stand.settle();
    }
    let heard = stand.heard.iter().filter(|bytes| *bytes == b"one by one").count();
    assert_eq!((heard, intake(&stand)), (100, (false, ENOUGH - 100, false)));
    // The host says nothing any more, and so gets no more than may be under way.
    let now = stand.now;
    for _ in 0..10_000 {
        session.producer.reclaim(|_| {}).expect("an honest consumer");
        if session.producer.credit() > 0 {
            session.emit(0, b"at once");
        }
        stand.hub.turn(now);
    }
    assert_eq!(intake(&stand), (true, 0, true));
    let host = &stand.hub.hosts[0];
    let waits = host.lanes.waiting(host.flows[0].as_ref().expect("a flow").number);
    assert!((ENOUGH..=ENOUGH + 1).contains(&waits), "{waits}");
    // It speaks again.
    stand.pass(Duration::from_secs(1));
    assert!(matches!(intake(&stand), (false, 1.., false)), "{:?}", intake(&stand));
}

#[test]
fn what_a_host_reports_of_a_sink_that_was_given_up_is_not_counted_for_the_next() {
    let (mut stand, mut session) = speaking(1);
    let account = |stand: &Stand| {
        let one = &stand.hub.hosts[0];
        let key = (Epoch(u128::from_le_bytes([VICTIM; 16])), SinkId(u128::from_le_bytes([1; 16])));
        let account = one.accounts[*one.by_key.get(&key)?].as_ref()?;
        let cell = stand.hub.domains[0].cells.counters.get(account.cell.index()).expect("its cell");
        Some((account.number, cell.get(Count::Delivered)))
    };
    let report = |stand: &mut Stand, join, delivered| {
        let (epoch, sink) = (vec![VICTIM; 16], vec![1; 16]);
        let report = wire::Report { epoch, sink, delivered, join, ..Default::default() };
        stand.say(&encode(&ToHost { body: Some(Body::Report(report)) }));
    };
    (0..5).for_each(|_| session.emit(0, b"old"));
    stand.pass(Duration::from_millis(50));
    let (first, _) = account(&stand).expect("an account");
    report(&mut stand, first, 3);
    assert_eq!(account(&stand), Some((first, 3)));
    // The host is cut off for so long that its sink is given up, and its source's session lets go of it.
    let until =
        stand.now + Duration::from_millis(stand.hub.settings.patience_ms + stand.hub.settings.silence_ms + 2000);
    while stand.now < until {
        stand.now += Duration::from_millis(200);
        stand.turns(false);
    }
    session.read();
    assert_eq!(session.closed, [[1; 16]]);
    session.end(0, 1);
    for _ in 0..10 {
        stand.now += Duration::from_millis(200);
        stand.turns(false);
    }
    assert_eq!(account(&stand), None);
    // It is there again, with the same runtime and what that has counted since its sink was attached.
    super::returns::meet_again(&mut stand);
    announce(&mut stand, 1, 1, 5);
    session.opened.clear();
    session.open(&mut stand, 0, VICTIM, 1, 5);
    (0..5).for_each(|_| session.emit(0, b"new"));
    stand.pass(Duration::from_millis(50));
    let (second, _) = account(&stand).expect("an account");
    assert_ne!(first, second);
    report(&mut stand, first, 5);
    assert_eq!(account(&stand), Some((second, 0)), "the old account's");
    report(&mut stand, second, 2);
    assert_eq!(account(&stand), Some((second, 2)));
    // A host of an older version does not say whose they are.
    report(&mut stand, 0, 4);
    assert_eq!(account(&stand), Some((second, 4)));
}

#[test]
fn a_link_is_searched_for_flows_that_are_over_only_if_there_may_be_some() {
    let (mut stand, mut session) = speaking(0);
    stand.pass(Duration::from_millis(10));
    let intake = |stand: &Stand| {
        let intake = stand.hub.domains[0].intakes.iter().flatten().next().expect("a link");
        (intake.sources.len(), intake.ending)
    };
    assert_eq!(intake(&stand), (1, false));
    // The end is read before what was emitted before it was taken, and a later one than there is is waited for.
    session.emit(0, b"the last");
    session.end(0, 1);
    stand.pass(Duration::from_millis(10));
    assert!(stand.heard.iter().any(|bytes| bytes == b"the last"));
    assert_eq!(intake(&stand), (0, false));
    announce(&mut stand, 0, 2, 5);
    session.open(&mut stand, 1, VICTIM, 2, 5);
    let position = session.producer.position() + 1;
    let closed = peer::FlowClosed { source: 1, sink: vec![2; 16], position, given_up: false };
    say(&session.socket, to_peer::Body::FlowClosed(closed), &[]);
    stand.pass(Duration::from_millis(10));
    assert_eq!(intake(&stand), (1, true));
    session.emit(1, b"the very last");
    stand.pass(Duration::from_millis(10));
    assert_eq!(intake(&stand), (0, false));
}

#[test]
fn what_is_kept_of_sinks_that_were_attached_to_sources_that_have_ended_is_bounded() {
    let (mut stand, mut session) = speaking(0);
    for epoch in (1..=u8::MAX).filter(|epoch| *epoch != VICTIM) {
        let number = epoch.into();
        stand.source(0, [epoch; 16], 5, true);
        session.open(&mut stand, number, epoch, 1, 5);
        session.end(number, 1);
        stand.source(0, [epoch; 16], 5, false);
        stand.pass(Duration::from_millis(10));
    }
    let one = &stand.hub.hosts[0];
    assert_eq!((one.flows.iter().flatten().count(), one.accounts.iter().flatten().count()), (1, 1));
    assert!(one.ready.len() < 100, "{}", one.ready.len());
    let key = |epoch: u8| (SinkId(u128::from_le_bytes([1; 16])), Epoch(u128::from_le_bytes([epoch; 16])));
    assert!(one.ready.contains(&key(VICTIM)), "its source is there");
    // A source that was forgotten has its sink again: its host is told of it, and says again what is attached.
    assert!(!one.ready.contains(&key(1)));
    stand.heard.clear();
    stand.source(0, [1; 16], 5, true);
    session.open(&mut stand, 1000, 1, 1, 5);
    let about = |bytes: &Vec<u8>| match decode::<ToHost>(bytes).ok()?.body {
        Some(Body::Source(about)) => Some(about.epoch),
        _ => None,
    };
    assert_eq!(stand.heard.iter().filter_map(about).collect::<Vec<_>>(), [[1; 16]]);
}

#[test]
fn what_observers_of_a_silent_host_are_to_have_keeps_half_of_a_reliable_link_at_most() {
    let entries = u64::from(Config::default().quota.link_entries);
    // By messages, and by the bytes that its session lets a link keep.
    for room in [None, Some(1 << 20)] {
        for observer in [true, false] {
            let mut stand = Stand::new();
            announce_as(&mut stand, 1, 1, 5, observer);
            let mut session = Speaker::new(&mut stand, 1, VICTIM, 5);
            session.open(&mut stand, 0, VICTIM, 1, 5);
            let (count, stride) = if room.is_some() { (100, 16 << 10) } else { (entries * 3 / 4, 256) };
            let mut slab = session.with_memory(&mut stand, Geometry::checked(stride, count as u32).unwrap());
            if let Some(bytes) = room {
                say(&session.socket, to_peer::Body::LinkRoom(peer::LinkRoom { bytes }), &[]);
                stand.settle();
            }
            for _ in 0..count {
                session.emit_in(&mut slab, 0, &vec![7; stride as usize]);
                stand.turns(false);
            }
            let most = room.map_or(entries / 2, |bytes| bytes / 4 / stride) + 1;
            assert_eq!(session.holds(), if observer { most } else { count }, "{room:?}");
            let counted = stand.hub.domains[0].cells.counters.get(0).unwrap().get(Count::SinkFull);
            assert_eq!(counted, if observer { count - most } else { 0 });
        }
    }
}

/// A session asks who of its source's sinks holds it up, gives the one up that is named, and has its slots back though the host says
/// nothing.
#[test]
fn what_is_kept_for_a_sink_that_was_given_up_is_its_sources_again() {
    const COUNT: u64 = 40;
    let (mut stand, mut session) = speaking(1);
    let mut slab = session.with_memory(&mut stand, Geometry::checked(4096, COUNT as u32 + 1).unwrap());
    let ask = |session: &Speaker, stand: &mut Stand, number, sinks: &[u8]| {
        let sinks = sinks.iter().map(|sink| vec![*sink; 16]).collect();
        say(&session.socket, to_peer::Body::FlowLag(peer::FlowLag { source: 0, number, sinks }), &[]);
        stand.turns(false);
    };
    // With nothing under way nobody is late.
    ask(&session, &mut stand, 1, &[1]);
    (0..COUNT).for_each(|_| session.emit_in(&mut slab, 0, &[7; 3000]));
    stand.turns(false);
    assert_eq!(session.holds(), COUNT);
    // Who is not asked about has taken something, and of others nothing is known here.
    [(2, &[9][..]), (3, &[]), (4, &[9, 1])].into_iter().for_each(|(n, sinks)| ask(&session, &mut stand, n, sinks));
    session.read();
    let none = Vec::new;
    assert_eq!(session.lagging, [(1, none()), (2, none()), (3, none()), (4, vec![vec![1; 16]])]);
    let account = |stand: &Stand, count| stand.hub.domains[0].cells.counters.get(0).unwrap().get(count);
    assert_eq!(account(&stand, Count::Unconfirmed), 0);
    session.end_as(0, 1, true);
    (0..3).for_each(|_| stand.turns(false));
    assert_eq!((session.holds(), account(&stand, Count::Unconfirmed)), (0, COUNT));
    assert!(session.closed.is_empty(), "it is the session that has given the sink up");
    // The host, which comes back to it, is told that the flow has ended, and nothing of it is left.
    stand.pass(Duration::from_secs(1));
    let host = &stand.hub.hosts[0];
    assert!(host.flows.iter().all(Option::is_none) && host.accounts.iter().all(Option::is_none));
    // The sink may join again.
    session.opened.clear();
    session.open(&mut stand, 0, VICTIM, 1, 5);
    stand.heard.clear();
    session.emit_in(&mut slab, 0, b"again");
    stand.pass(Duration::from_millis(100));
    assert!(stand.heard.iter().any(|bytes| bytes == b"again"));
}
