//! A session as the network's domain sees it: its end of the pair is played here.

mod lent;

use super::*;
use crate::network::lanes::FlowId;
use crate::network::outlet::{Arrived, Found};
use insane_shm::counters::{CellState, CellWriter, Count};
use insane_shm::link::{Delivery, Descriptor, Fate};
use insane_shm::slab::MAX_OF_PEER;
use insane_shm::socket::send;
use insane_wire::frame::record::Message;

const EPOCH: Epoch = Epoch(7);
const SINK: SinkId = SinkId(9);
const SESSION: SessionId = SessionId(11);
const FLOW: FlowId = FlowId { lane: 0, number: 1 };

/// A session with a sink that takes a link when it is told to, answers every flow, and checks what it is asked as the library does.
pub(crate) struct Player {
    socket: OwnedFd,
    entries: u32,
    /// Links that were offered and are not taken yet, with their memory.
    offered: Vec<(u32, OwnedFd)>,
    open: Vec<(u32, Vec<u8>)>,
    taken: HashMap<u32, Taken>,
    /// The numbers of the messages that were taken.
    pub(crate) seen: Vec<u64>,
}

/// A link that a session has taken.
struct Taken {
    consumer: Consumer,
    counters: Counters,
    flows: Vec<Counted>,
}

/// A flow as its session counts it: until the end that it is told.
struct Counted {
    key: (u32, Vec<u8>),
    cell: CellWriter,
    closed: bool,
    end: Option<u64>,
}

impl Player {
    /// With its end of the pair, and so many entries in a link.
    pub(crate) fn new(socket: OwnedFd, entries: u32) -> Self {
        Self { socket, entries, offered: Vec::new(), open: Vec::new(), taken: HashMap::new(), seen: Vec::new() }
    }

    fn say(&self, link: u32, body: Body, fds: &[BorrowedFd<'_>]) {
        let bytes = encode(&ToPeer { link, body: Some(body) });
        assert!(send(self.socket.as_fd(), &bytes, fds).unwrap());
    }

    /// Takes the links.
    pub(crate) fn accept(&mut self) {
        for (link, memory) in std::mem::take(&mut self.offered) {
            let bytes = ReturnBlock::bytes(self.entries).unwrap();
            let returns = Arc::new(SharedMemory::create("returns", bytes, false, true).unwrap());
            let own = ReturnBlock::create(returns.clone(), self.entries).unwrap();
            let needs = DeliveryBlock::bytes(self.entries).unwrap() as u64;
            let memory = Arc::new(map_peer(memory.as_fd(), needs, whole_pages(needs)).unwrap());
            let theirs = DeliveryBlock::open(memory, self.entries).unwrap();
            let cells = Arc::new(SharedMemory::create("counters", counter_bytes(4), false, false).unwrap());
            let counters = Counters::create(cells.clone(), 4).unwrap();
            let accept = peer::LinkAccept { counter_bytes: Backing::len(&*cells) as u64 };
            self.say(link, Body::LinkAccept(accept), &[returns.fd(), cells.fd()]);
            self.taken.insert(link, Taken { consumer: Consumer::new(own, theirs), counters, flows: Vec::new() });
        }
    }

    /// Refuses them.
    fn refuse(&mut self) {
        for (link, _) in std::mem::take(&mut self.offered) {
            self.say(link, Body::LinkRefuse(insane_wire::peer::Refuse::default()), &[]);
        }
    }

    /// Closes its sinks.
    pub(crate) fn close(&mut self) {
        for (source, sink) in std::mem::take(&mut self.open) {
            self.say(LINK, Body::FlowClose(peer::FlowRef { source, sink }), &[]);
        }
    }

    /// Closes one of its sinks, and waits for its flow's end.
    fn leave(&mut self, sink: SinkId) {
        for flow in self.taken.values_mut().flat_map(|taken| &mut taken.flows).filter(|f| f.key.1 == sink.to_bytes()) {
            flow.closed = true;
        }
        for (source, sink) in self.open.iter().filter(|(_, open)| *open == sink.to_bytes()).cloned() {
            self.say(LINK, Body::FlowClose(peer::FlowRef { source, sink }), &[]);
        }
    }

    /// Takes what is on its links, counts it for each flow that has not ended there, and gives it back. How much it was.
    pub(crate) fn take(&mut self) -> usize {
        let Self { taken, seen, .. } = self;
        let mut took = 0;
        for Taken { consumer, flows, .. } in taken.values_mut() {
            while let Some(Delivery { descriptor: d, position, .. }) = consumer.poll().unwrap() {
                for flow in flows.iter().filter(|f| f.key.0 == d.source && f.end.is_none_or(|end| position < end)) {
                    flow.cell.add(if flow.closed { Count::SinkClosed } else { Count::Delivered }, d.messages());
                }
                seen.extend((d.sequence..).take(d.messages() as usize));
                consumer.release(&d, Fate::AsCounted);
                took += 1;
            }
            consumer.settle();
        }
        took
    }

    /// Reads what there is and answers it.
    pub(crate) fn read(&mut self) {
        while let Received::Message(bytes, fds) = receive(self.socket.as_fd(), MAX_CONTROL_BYTES).unwrap() {
            let ToPeer { link, body } = decode(&bytes).unwrap();
            match body.unwrap() {
                Body::LinkOffer(_) => self.offered.extend(fds.into_iter().next().map(|fd| (link, fd))),
                Body::FlowOpen(flow) => {
                    let key = (flow.source, flow.sink.clone());
                    assert!(!self.open.contains(&key), "a flow of source {} that cannot be", flow.source);
                    self.open.push(key.clone());
                    let Taken { counters, flows, .. } = self.taken.get_mut(&link).unwrap();
                    let (cell, epoch) = (flows.len() as u32 % 4, Epoch::from_bytes(&flow.epoch).unwrap().0);
                    let writer = counters.start(cell, CellState::Consuming, epoch, sink_of(&key).0).unwrap();
                    flows.push(Counted { key, cell: writer, closed: false, end: None });
                    let opened = peer::FlowOpened { source: flow.source, sink: flow.sink, cell, ..Default::default() };
                    self.say(link, Body::FlowOpened(opened), &[]);
                }
                Body::FlowClosed(flow) => {
                    let (before, key) = (self.open.len(), (flow.source, flow.sink));
                    self.open.retain(|open| *open != key);
                    assert!(self.open.len() < before, "the end of a flow that was not opened");
                    let flows = self.taken.values_mut().flat_map(|taken| &mut taken.flows);
                    flows.filter(|f| f.key == key).for_each(|f| f.end = Some(flow.position));
                }
                Body::SegmentAdd(add) => {
                    let consumer = &mut self.taken.get_mut(&link).unwrap().consumer;
                    consumer.add_segment(add.segment as u16, add.slots, add.stride);
                    self.say(link, Body::SegmentAck(peer::SegmentRef { segment: add.segment }), &[]);
                }
                _ => {}
            }
        }
    }
}

fn sink_of(key: &(u32, Vec<u8>)) -> SinkId {
    SinkId::from_bytes(&key.1).unwrap()
}

/// The link of a session with one.
const OTHER: SinkId = SinkId(10);
const LINK: u32 = 1;

/// A domain, a session of it, and what lets both say everything that they have to.
struct Rig {
    domain: Domain,
    player: Player,
}

impl Rig {
    fn new() -> Self {
        let config = Config::default();
        let mut domain = Domain::new(1, "default".into(), &config, Pages::without_thread()).unwrap();
        let (ours, socket) = insane_shm::socket::pair().unwrap();
        let pair = insane_wire::control::Pair { peer: SESSION.to_bytes(), ..Default::default() };
        domain.add_pair(&pair, ours).unwrap();
        Self { domain, player: Player::new(socket, config.quota.link_entries) }
    }

    fn talk(&mut self) {
        for _ in 0..4 {
            self.player.read();
            self.domain.read_pair(0).unwrap();
        }
    }

    /// A source of another host begins: its place.
    fn begins(&mut self) -> usize {
        let mut remote = Remote::new(EPOCH, 0, "stream".into(), 3, true);
        remote.flow = Some(FLOW);
        self.domain.add_remote(remote)
    }

    /// The core has matched it with the sink.
    fn matched(&mut self) {
        self.matched_with(SINK);
    }

    fn matched_with(&mut self, sink: SinkId) {
        let (epoch, sink, peer) = (EPOCH.to_bytes(), sink.to_bytes(), SESSION.to_bytes());
        self.domain.flow_added(&Flow { epoch, sink, peer, channel: 3, ..Default::default() }).unwrap();
    }

    /// Its sink is attached, and has its number, 1, from the host of the source.
    fn attach(&mut self, source: usize) {
        self.matched();
        self.talk();
        self.player.accept();
        self.talk();
        self.domain.remotes[source].as_mut().unwrap().taps[0].number = Some(1);
    }

    /// A best-effort source of another host begins, with two sinks on one link whose numbers its host has given, 1 and 2: its place.
    fn two_sinks(&mut self) -> usize {
        let source = self.domain.add_remote(Remote::new(EPOCH, 0, "stream".into(), 3, false));
        [SINK, OTHER].into_iter().for_each(|sink| self.matched_with(sink));
        self.talk();
        self.player.accept();
        self.talk();
        let taps = self.domain.remotes[source].as_mut().unwrap().taps.iter_mut().enumerate();
        taps.for_each(|(n, tap)| tap.number = Some(n as u32 + 1));
        source
    }

    /// Another session has an observer of the source: the pair with it, and its end.
    fn watcher(&mut self) -> (usize, Player) {
        let (ours, socket) = insane_shm::socket::pair().unwrap();
        let watcher = SessionId(12);
        let pair = insane_wire::control::Pair { peer: watcher.to_bytes(), ..Default::default() };
        let at = self.domain.add_pair(&pair, ours).unwrap();
        let player = Player::new(socket, Config::default().quota.link_entries);
        let (epoch, sink, peer) = (EPOCH.to_bytes(), OTHER.to_bytes(), watcher.to_bytes());
        let flow = Flow { epoch, sink, peer, channel: 3, observer: true, ..Default::default() };
        self.domain.flow_added(&flow).unwrap();
        (at, player)
    }

    /// The session takes all there is, and what comes then. How much that was, and the credit to be given.
    fn drains(&mut self) -> (u64, Vec<(usize, FlowId, u32, u64)>) {
        let (mut took, mut found) = (0, Found::default());
        loop {
            let more = self.player.take() as u64;
            took += more;
            if !self.domain.tend(&mut found) && more == 0 {
                return (took, found.gone);
            }
        }
    }

    /// Its host sends no more of it.
    fn ends(&mut self, source: usize) {
        self.domain.remotes[source].as_mut().unwrap().ending = true;
        self.domain.tend(&mut Found::default());
        assert!(self.domain.remotes[source].take().unwrap().is_over());
    }
}

#[test]
fn who_refuses_a_link_gets_nothing_of_it_and_keeps_no_source_waiting() {
    let mut rig = Rig::new();
    let source = rig.begins();
    rig.matched();
    rig.player.read();
    rig.player.refuse();
    rig.talk();
    assert!(rig.domain.outlets.iter().all(Option::is_none));
    let taps = rig.domain.remotes[source].as_ref().unwrap().taps.iter().map(|tap| (tap.outlet, tap.state));
    assert_eq!(taps.collect::<Vec<_>>(), [(None, TapState::Closed)]);
    rig.ends(source);
}

#[test]
fn a_source_that_ends_and_begins_anew_asks_a_sink_once_whenever_its_session_takes_the_link() {
    for moment in 0..5 {
        let mut rig = Rig::new();
        let at = |rig: &mut Rig, now: usize| {
            rig.talk();
            if now == moment {
                rig.player.accept();
            }
            rig.talk();
        };
        let old = rig.begins();
        rig.matched();
        at(&mut rig, 0);
        rig.ends(old);
        at(&mut rig, 1);
        // In the place of the old one, and not matched yet: the core is still to hear of it.
        let new = rig.begins();
        assert_eq!(new, old);
        at(&mut rig, 2);
        rig.matched();
        at(&mut rig, 3);
        at(&mut rig, 4);
        rig.player.accept();
        rig.talk();
        let number = rig.domain.remotes[new].as_ref().unwrap().number;
        assert_eq!(rig.player.open, [(number, SINK.to_bytes())], "taken at moment {moment}");
        let attached = rig.domain.remotes[new].as_ref().unwrap().taps.iter().map(|tap| (tap.sink, tap.state));
        assert_eq!(attached.collect::<Vec<_>>(), [(SINK, TapState::Open)], "taken at moment {moment}");
    }
}

#[test]
fn what_was_put_together_before_a_sink_joined_is_not_for_it() {
    let mut rig = Rig::new();
    let source = rig.two_sinks();
    let domain = &mut rig.domain;
    // Received together; the source came to know of the other sink after the second.
    for (sequence, joined) in [(1, 1), (2, 1), (3, 2)] {
        let d = Descriptor { sequence, joined, ..Descriptor::default() };
        assert!(domain.deliver(source, d, &Arrived::Bytes(&[7; 300]), 3 - sequence as usize));
    }
    domain.hand_out_gathered();
    let given = domain.remotes[source].as_ref().unwrap().taps.iter().map(|tap| (tap.sink, tap.given));
    assert_eq!(given.collect::<Vec<_>>(), [(SINK, 3), (OTHER, 1)]);
}

#[test]
fn who_closes_a_sink_of_another_session_ends_nothing() {
    let mut rig = Rig::new();
    let source = rig.two_sinks();
    let (ours, socket) = insane_shm::socket::pair().unwrap();
    let (thief, its) = (SessionId(12), SinkId(13));
    let pair = insane_wire::control::Pair { peer: thief.to_bytes(), ..Default::default() };
    let at = rig.domain.add_pair(&pair, ours).unwrap();
    let mut player = Player::new(socket, Config::default().quota.link_entries);
    let (epoch, sink, peer) = (EPOCH.to_bytes(), its.to_bytes(), thief.to_bytes());
    rig.domain.flow_added(&Flow { epoch, sink, peer, channel: 3, ..Default::default() }).unwrap();
    let talk = |rig: &mut Rig, player: &mut Player| {
        player.read();
        rig.domain.read_pair(at).unwrap();
    };
    talk(&mut rig, &mut player);
    player.accept();
    (0..3).for_each(|_| talk(&mut rig, &mut player));
    let open = |rig: &Rig| {
        let taps = rig.domain.remotes[source].as_ref().unwrap().taps.iter();
        taps.filter(|t| t.state == TapState::Open).map(|t| t.sink).collect::<Vec<_>>()
    };
    assert_eq!(open(&rig), [SINK, OTHER, its]);
    let number = rig.domain.remotes[source].as_ref().unwrap().number;
    for sink in [SINK, OTHER] {
        let close = peer::FlowRef { source: number, sink: sink.to_bytes() };
        player.say(LINK, Body::FlowClose(close), &[]);
    }
    rig.domain.read_pair(at).unwrap();
    assert_eq!(open(&rig), [SINK, OTHER, its]);
    // Its own it may close.
    player.close();
    rig.domain.read_pair(at).unwrap();
    assert_eq!(open(&rig), [SINK, OTHER]);
}

#[test]
fn who_gives_the_network_segments_without_end_is_refused() {
    let offer = |rig: &mut Rig, link| {
        let entries = rig.player.entries;
        let memory = SharedMemory::create("d", DeliveryBlock::bytes(entries).unwrap(), false, true).unwrap();
        let memory = Arc::new(memory);
        DeliveryBlock::create(memory.clone(), entries).unwrap();
        let body = peer::LinkOffer { stream: "stream".into(), entries, reliable: false, layout: LAYOUT };
        rig.player.say(link, Body::LinkOffer(body), &[memory.fd()]);
        rig.domain.read_pair(0)
    };
    // A page of memory, under as many numbers as there are.
    let page = insane_shm::segment::Segment::create(Geometry::checked(4096, 1).unwrap(), false).unwrap();
    let add = |rig: &mut Rig, segment| {
        let body = peer::SegmentAdd { segment, stride: 4096, slots: 1, headroom: 0, bytes: page.bytes() };
        rig.player.say(LINK, Body::SegmentAdd(body), &[page.fd()]);
        rig.player.read();
        rig.domain.read_pair(0)
    };
    let mut rig = Rig::new();
    offer(&mut rig, LINK).unwrap();
    (0..MAX_OF_PEER as u32).for_each(|segment| add(&mut rig, segment).unwrap());
    // What was taken away does not count.
    rig.player.say(LINK, Body::SegmentRemove(peer::SegmentRef { segment: 7 }), &[]);
    add(&mut rig, 7).unwrap();
    let text = add(&mut rig, MAX_OF_PEER as u32).unwrap_err();
    assert!(text.contains("one more segment"), "{text}");
    let mut rig = Rig::new();
    offer(&mut rig, LINK).unwrap();
    let text = offer(&mut rig, LINK + 1).unwrap_err();
    assert!(text.contains("second"), "{text}");
}

#[test]
fn what_the_network_maps_of_a_session_is_bounded_with_all_its_streams() {
    let segment = insane_shm::segment::Segment::create(Geometry::checked(4096, 4).unwrap(), false).unwrap();
    let mut rig = Rig::new();
    // Twice as much may be mapped.
    rig.domain.session_memory = segment.bytes();
    for link in 0..3 {
        let entries = rig.player.entries;
        let memory = Arc::new(SharedMemory::create("d", DeliveryBlock::bytes(entries).unwrap(), false, true).unwrap());
        DeliveryBlock::create(memory.clone(), entries).unwrap();
        let offer = peer::LinkOffer { stream: format!("{link}"), entries, reliable: false, layout: LAYOUT };
        rig.player.say(LINK + link, Body::LinkOffer(offer), &[memory.fd()]);
        rig.domain.read_pair(0).unwrap();
        let add = peer::SegmentAdd { segment: 0, stride: 4096, slots: 4, headroom: 0, bytes: segment.bytes() };
        rig.player.say(LINK + link, Body::SegmentAdd(add), &[segment.fd()]);
        rig.player.read();
        match rig.domain.read_pair(0) {
            Ok(()) => assert!(link < 2),
            Err(text) => assert!(link == 2 && text.contains("quota.memory_mib_per_session"), "{link}: {text}"),
        }
    }
}

#[test]
fn a_message_is_handed_on_at_once_to_the_only_open_sink_that_has_room() {
    let mut rig = Rig::new();
    let source = rig.two_sinks();
    let Rig { domain, .. } = &mut rig;
    let came = std::cell::Cell::new(0);
    let comes = |domain: &mut Domain, len: usize, change: fn(&mut Message)| {
        came.set(came.get() + 1);
        let sequence = came.get();
        let mut message = Message { sequence, priority: 5, joined: 2, ..Message::default() };
        change(&mut message);
        let (before, payload) = (domain.outlets[0].as_ref().unwrap().position(), [7; 65]);
        let at_once = domain.hand_on_at_once(source, &message, &payload[..len]);
        assert_eq!(domain.outlets[0].as_ref().unwrap().position(), before + u64::from(at_once));
        if !at_once {
            let d = Descriptor { sequence, priority: 5, joined: 2, ..Descriptor::default() };
            assert!(domain.deliver(source, d, &Arrived::Bytes(&payload[..len]), 0));
        }
        at_once
    };
    // The source does not know of them yet, and then of two.
    assert!(!comes(domain, 64, |_| ()) && !comes(domain, 64, |_| ()));
    domain.end_tap(0, source, SINK);
    assert!(comes(domain, 64, |_| ()) && comes(domain, 0, |_| ()) && comes(domain, 1, |_| ()));
    assert!(!domain.hand_on_at_once(source, &Message { sequence: 6, joined: 2, ..Message::default() }, &[7; 65]));
    for change in
        [|m: &mut Message| m.lifetime_us = 1, |m: &mut Message| m.timestamp_ns = 1, |m: &mut Message| m.launch_ns = 1]
    {
        assert!(!comes(domain, 8, change));
    }
    // Until the link is full.
    let entries = u64::from(Config::default().quota.link_entries);
    while domain.outlets[0].as_ref().unwrap().position() < entries {
        assert!(comes(domain, 64, |_| ()));
    }
    assert!(!comes(domain, 64, |_| ()));
    let remote = domain.remotes[source].as_mut().unwrap();
    assert_eq!(remote.last, came.get());
    let mut reports: Vec<_> = remote.reports(Duration::ZERO).map(|r| (r.sink, r.sink_closed, r.sink_full)).collect();
    reports.sort_unstable();
    // The first had two before it was closed.
    assert_eq!(reports, [(SINK.to_bytes(), came.get() - 2, 0), (OTHER.to_bytes(), 0, 1)]);
    domain.end_tap(0, source, OTHER);
    assert!(!comes(domain, 64, |_| ()));
}

#[test]
fn small_reliable_messages_wait_for_a_full_link_in_bounded_memory_and_in_order() {
    let mut rig = Rig::new();
    let source = rig.begins();
    rig.attach(source);
    let Rig { domain, .. } = &mut rig;
    let mut sequence = 0;
    let mut comes = |domain: &mut Domain, len: usize| {
        sequence += 1;
        let d = Descriptor { sequence, joined: 1, ..Descriptor::default() };
        domain.deliver(source, d, &Arrived::Bytes(&[7; 64][..len]), 0)
    };
    let entries = u64::from(Config::default().quota.link_entries);
    // As long as the link has room, they are in it.
    (0..entries).for_each(|n| assert!(comes(domain, 64 * usize::from(n % 2 == 0))));
    assert_eq!((domain.outlets[0].as_ref().unwrap().position(), domain.slab.bytes()), (entries, 0));
    // Then they are in the domain's memory, until there is none; what is empty waits for those before it.
    domain.memory_limit = 1 << 20;
    while comes(domain, 64) {}
    assert!((1..=1 << 20).contains(&domain.slab.bytes()), "{}", domain.slab.bytes());
    assert!(!comes(domain, 0) && !comes(domain, 64) && !comes(domain, 0));
    domain.memory_limit = 2 << 20;
    let mut found = Found::default();
    domain.tend(&mut found);
    assert_eq!(found.gone, [(0, FLOW, 4, 128)]);
    assert!(!domain.remotes[source].as_ref().unwrap().is_stalled());
    let waiting = domain.outlets[0].as_ref().unwrap().waiting();
    assert!(waiting.into_iter().eq(entries + 1..=sequence), "{sequence}");
}

#[test]
fn an_observer_that_takes_nothing_holds_up_no_reliable_source() {
    // Beside a sink of another session, and alone.
    for beside in [true, false] {
        let mut rig = Rig::new();
        let (source, entries) = (rig.begins(), u64::from(Config::default().quota.link_entries));
        if beside {
            rig.attach(source);
        }
        let (at, mut player) = rig.watcher();
        let mut read = |domain: &mut Domain| {
            for _ in 0..3 {
                player.read();
                player.accept();
                domain.read_pair(at).unwrap();
            }
        };
        read(&mut rig.domain);
        for tap in &mut rig.domain.remotes[source].as_mut().unwrap().taps {
            tap.number = Some(1);
        }
        let all = 2 * entries + 100;
        let mut found = Found::default();
        for sequence in 1..=all {
            // Some go inside their descriptors, some in slots, of which its session is told.
            let d = Descriptor { sequence, joined: 1, ..Descriptor::default() };
            let payload = &[7; 300][..if sequence % 2 == 0 { 300 } else { 20 }];
            assert!(rig.domain.deliver(source, d, &Arrived::Bytes(payload), 0), "{sequence}");
            if sequence == 2 {
                rig.talk();
                read(&mut rig.domain);
            }
            rig.player.take();
            rig.domain.tend(&mut found);
        }
        let remote = rig.domain.remotes[source].as_ref().unwrap();
        assert_eq!((remote.cursor, remote.last, remote.is_stalled()), (all, all, false), "{beside}");
        assert!(rig.domain.outlets.iter().flatten().all(|outlet| !outlet.is_behind()), "{beside}");
        let given: Vec<_> = remote.taps.iter().map(|tap| (tap.observer, tap.given)).collect();
        let watched = (true, entries);
        assert_eq!(given, if beside { vec![(false, all), watched] } else { vec![watched] });
        // What it had no room for is counted for it alone.
        let remote = rig.domain.remotes[source].as_mut().unwrap();
        let reports: Vec<_> = remote.reports(Duration::ZERO).map(|r| (r.delivered, r.sink_full)).collect();
        let watched = (0, all - entries);
        assert_eq!(reports, if beside { vec![(all, 0), watched] } else { vec![watched] });
    }
}

#[test]
fn an_observer_that_maps_nothing_keeps_no_more_memory_than_a_link_may_hold() {
    let mut rig = Rig::new();
    let source = rig.begins();
    let (at, mut player) = rig.watcher();
    for _ in 0..2 {
        player.read();
        player.accept();
        rig.domain.read_pair(at).unwrap();
    }
    rig.domain.remotes[source].as_mut().unwrap().taps[0].number = Some(1);
    rig.domain.memory_limit = 16 << 20;
    let mut found = Found::default();
    for sequence in 1..=1000 {
        let d = Descriptor { sequence, joined: 1, ..Descriptor::default() };
        assert!(rig.domain.deliver(source, d, &Arrived::Bytes(&[7; 20_000]), 0), "{sequence}");
        rig.domain.tend(&mut found);
    }
    let waiting = rig.domain.outlets[0].as_ref().unwrap().waiting().len() as u64;
    assert!(waiting > 0 && waiting * 20_000 <= rig.domain.link_cap(), "{waiting} wait");
    assert_eq!(rig.domain.slab.in_use(), waiting);
}

/// The sink that messages wait for memory for closes, and another one joins.
#[test]
fn what_comes_behind_what_waits_for_memory_is_for_who_joined_meanwhile() {
    let mut rig = Rig::new();
    let source = rig.begins();
    [SINK, OTHER].into_iter().for_each(|sink| rig.matched_with(sink));
    rig.talk();
    rig.player.accept();
    rig.talk();
    let remote = rig.domain.remotes[source].as_mut().unwrap();
    (1..).zip(&mut remote.taps).for_each(|(number, tap)| tap.number = Some(number));
    let comes = |domain: &mut Domain, sequence: u64| {
        let d = Descriptor { sequence, joined: sequence as u16, ..Descriptor::default() };
        domain.deliver(source, d, &Arrived::Bytes(&[7; 300]), 0)
    };
    rig.domain.memory_limit = 0;
    assert!(!comes(&mut rig.domain, 1));
    rig.player.leave(SINK);
    rig.talk();
    assert!(!comes(&mut rig.domain, 2), "it is for nobody");
    rig.domain.memory_limit = 1 << 20;
    rig.domain.tend(&mut Found::default());
    let given = rig.domain.remotes[source].as_ref().unwrap().taps.iter().map(|tap| (tap.sink, tap.given));
    assert_eq!(given.collect::<Vec<_>>(), [(SINK, 0), (OTHER, 1)]);
}

#[test]
fn a_path_is_told_of_the_sources_alone_whose_sinks_have_got_further() {
    let mut domain = Rig::new().domain;
    let flow = |number| FlowId { lane: 0, number };
    for number in 0..500 {
        let epoch = Epoch(u128::from(number) + 1);
        let source = domain.add_remote(Remote::new(epoch, 0, "stream".into(), 3, number % 100 != 0));
        domain.remotes[source].as_mut().unwrap().flow = Some(flow(number));
    }
    let told = |domain: &mut Domain| {
        let mut found = Found::default();
        domain.tend(&mut found);
        found.cursors
    };
    // Best-effort ones have no cursor.
    assert_eq!(told(&mut domain).len(), 495);
    (0..100).for_each(|_| assert_eq!(told(&mut domain), []));
    domain.remotes[7].as_mut().unwrap().last = 9;
    domain.remotes[8].as_mut().unwrap().flow = Some(flow(1000));
    assert_eq!(told(&mut domain), [(0, flow(7), 9), (0, flow(1000), 0)]);
    domain.remotes[9].as_mut().unwrap().flow = None;
    assert_eq!(told(&mut domain), []);
}

#[test]
fn a_session_that_counts_what_it_was_not_given_ends_its_own_link_alone() {
    let mut rig = Rig::new();
    let source = rig.domain.add_remote(Remote::new(EPOCH, 0, "stream".into(), 3, false));
    rig.attach(source);
    // The first waits for its segment to be mapped, and the others behind it: more than the link has room for.
    let comes = u64::from(Config::default().quota.link_entries) + 10;
    for sequence in 1..=comes {
        let d = Descriptor { sequence, joined: 1, ..Descriptor::default() };
        assert!(rig.domain.deliver(source, d, &Arrived::Bytes(&[7; 300][..if sequence == 1 { 300 } else { 8 }]), 0));
    }
    rig.domain.tend(&mut Found::default());
    // It has had them all, it says, before one of them is on its link.
    rig.player.taken[&LINK].flows[0].cell.add(Count::Delivered, u64::MAX / 2);
    rig.domain.tend(&mut Found::default());
    rig.talk();
    rig.domain.tend(&mut Found::default());
    let given = rig.domain.remotes[source].as_ref().unwrap().taps[0].given;
    assert_eq!(given, comes - 10, "those without room were dropped");
    rig.domain.end_pair(0);
    let remote = rig.domain.remotes[source].as_mut().unwrap();
    let reports: Vec<_> = remote.reports(Duration::ZERO).map(|r| (r.delivered, r.sink_full, r.unconfirmed)).collect();
    assert_eq!(reports, [(comes, 10, 0)]);
}

#[test]
fn what_waits_for_a_sink_that_closes_is_counted_and_holds_up_nobody() {
    for others in [false, true] {
        let mut rig = Rig::new();
        let source = rig.begins();
        let sinks = if others { &[SINK, OTHER][..] } else { &[SINK] };
        sinks.iter().for_each(|sink| rig.matched_with(*sink));
        rig.talk();
        rig.player.accept();
        rig.talk();
        let entries = u64::from(Config::default().quota.link_entries);
        let remote = rig.domain.remotes[source].as_mut().unwrap();
        (1..).zip(&mut remote.taps).for_each(|(number, tap)| tap.number = Some(number));
        for sequence in 1..=entries + 5 {
            let d = Descriptor { sequence, joined: 2, ..Descriptor::default() };
            assert!(rig.domain.deliver(source, d, &Arrived::Bytes(&[7; 8]), 0));
        }
        // Its session knows the memory of what waits, and closes it while the link is full.
        rig.talk();
        rig.player.leave(SINK);
        rig.talk();
        let waiting = |rig: &Rig| rig.domain.outlets[0].as_ref().unwrap().waiting().len();
        assert_eq!((waiting(&rig), rig.domain.slab.in_use()), if others { (5, 5) } else { (0, 0) });
        let remote = rig.domain.remotes[source].as_mut().unwrap();
        let given: Vec<_> = remote.taps.iter().map(|tap| tap.given).collect();
        assert_eq!(given, [entries, entries + 5][..sinks.len()]);
        // What came before is counted by its session, and what comes later is late.
        let (took, _) = rig.drains();
        assert_eq!((took, waiting(&rig), rig.domain.slab.in_use()), (if others { entries + 5 } else { entries }, 0, 0));
        let remote = rig.domain.remotes[source].as_mut().unwrap();
        assert_eq!((remote.cursor, remote.is_awaited()), (entries + 5, false));
        let told: Vec<_> = remote.reports(Duration::ZERO).map(|r| (r.delivered, r.sink_closed)).collect();
        assert_eq!(told, [(0, entries + 5), (entries + 5, 0)][..sinks.len()]);
        rig.ends(source);
    }
}

#[test]
fn what_a_session_has_no_memory_of_yet_is_not_for_a_sink_that_closes() {
    let mut rig = Rig::new();
    let source = rig.two_sinks();
    for sequence in 1..=3 {
        let d = Descriptor { sequence, joined: 2, ..Descriptor::default() };
        assert!(rig.domain.deliver(source, d, &Arrived::Bytes(&[7; 300]), 0));
    }
    for (sink, left) in [(SINK, 3), (OTHER, 0)] {
        assert_eq!(rig.domain.slab.in_use(), 3);
        rig.player.leave(sink);
        rig.domain.read_pair(0).unwrap();
        assert_eq!(
            (rig.domain.outlets[0].as_ref().unwrap().waiting().len(), rig.domain.slab.in_use()),
            (left, left as u64)
        );
    }
    rig.talk();
    assert_eq!(rig.player.take(), 0);
    let remote = rig.domain.remotes[source].as_mut().unwrap();
    assert!(!remote.is_awaited());
    assert_eq!(remote.reports(Duration::ZERO).map(|r| r.sink_closed).collect::<Vec<_>>(), [3, 3]);
    rig.ends(source);
}

#[test]
fn a_session_closes_sinks_of_its_own_alone() {
    const INTRUDER: SessionId = SessionId(12);
    let mut rig = Rig::new();
    let source = rig.two_sinks();
    let (ours, socket) = insane_shm::socket::pair().unwrap();
    let pair = insane_wire::control::Pair { peer: INTRUDER.to_bytes(), ..Default::default() };
    rig.domain.add_pair(&pair, ours).unwrap();
    let mut intruder = Player::new(socket, Config::default().quota.link_entries);
    let (epoch, sink, peer) = (EPOCH.to_bytes(), SinkId(13).to_bytes(), INTRUDER.to_bytes());
    rig.domain.flow_added(&Flow { epoch, sink, peer, channel: 3, ..Default::default() }).unwrap();
    for _ in 0..2 {
        intruder.read();
        intruder.accept();
        rig.domain.read_pair(1).unwrap();
    }
    intruder.read();
    intruder.open.push((intruder.open[0].0, SINK.to_bytes()));
    intruder.close();
    rig.domain.read_pair(1).unwrap();
    let states = rig.domain.remotes[source].as_ref().unwrap().taps.iter().map(|tap| tap.state);
    assert_eq!(states.collect::<Vec<_>>(), [TapState::Open, TapState::Open, TapState::Closed]);
}

#[test]
fn a_message_of_a_source_that_is_forgotten_holds_no_memory() {
    let mut rig = Rig::new();
    let source = rig.begins();
    rig.domain.remotes[source] = None;
    let slot = rig.domain.take_slot(1 << 20).unwrap();
    assert!(rig.domain.deliver(source, Descriptor::default(), &Arrived::Slot(slot, 1 << 20), 0));
    assert_eq!(rig.domain.slab.in_use(), 0);
}

#[test]
fn empty_reliable_messages_wait_for_a_full_link_in_bounded_memory() {
    let mut rig = Rig::new();
    let source = rig.begins();
    rig.attach(source);
    rig.domain.memory_limit = 1 << 20;
    let comes = |domain: &mut Domain, sequence: u64| {
        let d = Descriptor { sequence, joined: 1, ..Descriptor::default() };
        domain.deliver(source, d, &Arrived::Bytes(&[]), 0)
    };
    let entries = u64::from(Config::default().quota.link_entries);
    let most = entries + (1 << 20) / insane_shm::segment::MIN_STRIDE;
    let came = (1..2 * most).take_while(|sequence| comes(&mut rig.domain, *sequence)).count() as u64 + 1;
    assert!((entries + 2..=most + 1).contains(&came), "{came} came");
    assert!(rig.domain.slab.bytes() <= 1 << 20);
    // They need no memory any more once they are on the link, and the one that had none says so when it has left.
    let (took, gone) = rig.drains();
    assert_eq!((took, gone, rig.domain.slab.in_use()), (came, vec![(0, FLOW, 1, 0)], 0));
}
