//! A source that takes segments away which its sink still reads, or speaks of those that it took away, that sends lists of a
//! message's pieces, or gives more of anything than anybody needs.

use insane::{Event, Qos, Session, Sink, SinkOptions};
use insane_shm::link::{DeliveryBlock, Descriptor, FLAG_SCATTERED, Producer, ReturnBlock};
use insane_shm::memory::{SharedMemory, map_peer};
use insane_shm::ring::LAYOUT;
use insane_shm::scatter::{Place, bytes_for, write};
use insane_shm::segment::{Geometry, Segment};
use insane_shm::slab::MAX_OF_PEER;
use insane_tests_host::hostile::{Raw, next, say};
use insane_tests_host::{Host, Watchdog, reconcile_cells};
use insane_wire::peer::{self, ToPeer, to_peer::Body};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);
const SAID: &[u8] = b"what a slot holds that is about to be taken away";

/// A raw source with one segment of four slots that its sink has mapped, and a flow to the sink.
struct Liar {
    raw: Raw,
    socket: OwnedFd,
    segment: Segment,
    producer: Producer,
}

fn answer(socket: &OwnedFd, wanted: impl Fn(&Body) -> bool) -> (Body, Vec<OwnedFd>) {
    loop {
        let (message, fds) = next::<ToPeer>(socket.as_fd(), LIMIT).expect("the sink's session answers");
        if let Some(body) = message.body.filter(&wanted) {
            return (body, fds);
        }
    }
}

impl Liar {
    fn join(host: &Host, channel: &str) -> Self {
        let mut raw = Raw::open(&host.socket()).unwrap();
        let epoch = raw.endpoint(channel, true).unwrap();
        let (pairs, sinks) = raw.pairs(Duration::from_millis(300));
        let (socket, sink) = (pairs.into_iter().next().unwrap(), sinks[0].clone());
        let bytes = DeliveryBlock::bytes(raw.entries).unwrap();
        let memory = Arc::new(SharedMemory::create("d", bytes, false, true).unwrap());
        let own = DeliveryBlock::create(memory.clone(), raw.entries).unwrap();
        let (stream, entries) = (raw.stream().to_owned(), raw.entries);
        let offer = peer::LinkOffer { stream, entries, reliable: false, layout: LAYOUT };
        say(&socket, 1, Body::LinkOffer(offer), &[memory.fd()]).unwrap();
        let (_, fds) = answer(&socket, |b| matches!(b, Body::LinkAccept(_)));
        let returns = Arc::new(map_peer(fds[0].as_fd(), 0, u64::MAX).unwrap());
        let producer = Producer::new(own, ReturnBlock::open(returns, entries).unwrap());
        let segment = Segment::create(Geometry::checked(4096, 4).unwrap(), false).unwrap();
        let mut this = Self { raw, socket, segment, producer };
        this.add();
        let open = peer::FlowOpen { source: 0, epoch, sink, channel: 0, strict: false };
        say(&this.socket, 1, Body::FlowOpen(open), &[]).unwrap();
        answer(&this.socket, |b| matches!(b, Body::FlowOpened(_)));
        this
    }

    fn add(&mut self) {
        let bytes = self.segment.bytes();
        let add = peer::SegmentAdd { segment: 0, stride: 4096, slots: 4, headroom: 0, bytes };
        say(&self.socket, 1, Body::SegmentAdd(add), &[self.segment.fd()]).unwrap();
        answer(&self.socket, |b| matches!(b, Body::SegmentAck(_)));
        self.producer.add_segment(0, 4);
    }

    fn take_away(&self, segment: u32) {
        say(&self.socket, 1, Body::SegmentRemove(peer::SegmentRef { segment }), &[]).unwrap();
    }

    fn send(&mut self, sequence: u64, slot: u32) {
        let to = self.segment.slot(slot);
        // SAFETY: the slot has 4096 bytes, and this process alone writes to it.
        unsafe { std::ptr::copy_nonoverlapping(SAID.as_ptr(), to.as_ptr(), SAID.len()) };
        let length = u32::try_from(SAID.len()).unwrap();
        self.producer.push(&Descriptor { sequence, slot, length, count: 1, joined: 1, ..Descriptor::default() }, &[]);
        self.producer.wake();
    }

    /// Puts bytes into a slot and says that they are the list of a message's pieces.
    fn send_list(&mut self, sequence: u64, list: &[u8]) {
        let to = self.segment.slot(0);
        // SAFETY: the slot has 4096 bytes, and this process alone writes to it.
        unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), to.as_ptr(), list.len()) };
        let (length, flags) = (u32::try_from(list.len()).unwrap(), FLAG_SCATTERED);
        self.producer.push(&Descriptor { sequence, length, flags, count: 1, joined: 1, ..Descriptor::default() }, &[]);
        self.producer.wake();
    }
}

fn list(places: &[Place]) -> Vec<u8> {
    let mut bytes = vec![0; bytes_for(places.len())];
    assert_eq!(write(places, &mut bytes), Some(bytes.len()));
    bytes
}

fn broken(session: &Session) -> String {
    let end = Instant::now() + LIMIT;
    loop {
        match session.next_event() {
            Some(Event::PeerBroken { text, .. }) => return text,
            Some(_) => {}
            None => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(Instant::now() < end, "the sink's session is told nothing");
    }
}

fn sink(host: &Host, channel: &str) -> (Session, Sink) {
    let session = host.session("sink");
    let sink = session.stream(Qos::default()).unwrap().sink(channel).unwrap();
    (session, sink)
}

/// An honest source on the same channel is heard after all that, and its message is accounted for at both ends. What the liar
/// sent is in the counts of the sink's session alone.
fn others_go_on_and_reconcile(host: &Host, channel: &str, (theirs, sink): (&Session, &Sink)) {
    let session = host.session("honest");
    let source = session.stream(Qos::default()).unwrap().source(channel).unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    source.send(&[7; 1000]).unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), [7; 1000]);
    let epoch = source.epoch().0;
    let cells = || session.counts().into_iter().chain(theirs.counts()).filter(|c| c.epoch == epoch).collect();
    reconcile_cells(cells, 1, 1);
}

#[test]
fn a_segment_that_is_read_cannot_be_taken_away() {
    let _watchdog = Watchdog::start("withdraw", LIMIT);
    let host = Host::start();
    let (session, sink) = sink(&host, "read");
    let mut liar = Liar::join(&host, "read");
    liar.send(1, 2);
    let held = sink.consume_timeout(LIMIT).unwrap();
    liar.take_away(0);
    let text = broken(&session);
    assert!(text.contains("segment 0") && text.contains("1 messages are out"), "{text}");
    drop(liar);
    // It stays mapped as long as the application reads it, whatever its owner does.
    assert_eq!(held.to_vec(), SAID);
    drop(held);
    assert!(sink.try_consume().unwrap().is_none());
    others_go_on_and_reconcile(&host, "read", (&session, &sink));
}

#[test]
fn what_was_taken_away_is_not_spoken_of() {
    let _watchdog = Watchdog::start("spoken of", LIMIT);
    let host = Host::start();
    for (round, named) in [(0, "slot 1"), (1, "not there")] {
        let channel = format!("spoken{round}");
        let (session, sink) = sink(&host, &channel);
        let mut liar = Liar::join(&host, &channel);
        // Nothing of it is out: it may go, come again and be used.
        liar.take_away(0);
        liar.add();
        liar.send(1, 3);
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), SAID);
        liar.take_away(0);
        if round == 0 {
            std::thread::sleep(Duration::from_millis(50));
            liar.send(2, 1);
            let _ = sink.consume_timeout(Duration::from_millis(200));
        } else {
            liar.take_away(0);
        }
        let text = broken(&session);
        assert!(text.contains(named), "{text}");
        others_go_on_and_reconcile(&host, &channel, (&session, &sink));
    }
}

/// Nobody but the network sends lists. A session that does is not believed, whatever the list says and whether or not the sink
/// takes some: who has not asked for them reads a message in one piece.
#[test]
fn a_session_that_sends_a_list_of_pieces_breaks_its_link() {
    let _watchdog = Watchdog::start("lists", 2 * LIMIT);
    let host = Host::start();
    let place = |slot, offset, length| Place { segment: 0, slot, offset, length };
    let right = list(&[place(1, 5, 7), place(2, 0, 4096)]);
    // Hardly anything is mapped, and it is said to be half a megabyte.
    let overlapping = list(&[place(3, 0, 4096); 126]);
    for (n, (what, list)) in [("right", &right), ("overlapping", &overlapping)].into_iter().enumerate() {
        for scattered in [false, true] {
            let channel = format!("lists{n}{scattered}");
            let session = host.session("sink");
            let stream = session.stream(Qos::default()).unwrap();
            let options = SinkOptions { scattered, ..SinkOptions::default() };
            let sink = stream.sink_with(&channel, options).unwrap();
            let mut liar = Liar::join(&host, &channel);
            liar.send_list(1, list);
            let got = sink.consume_timeout(Duration::from_millis(50)).map(|m| m.len());
            assert!(got.is_err(), "{what}, scattered {scattered}: {got:?}");
            let text = broken(&session);
            assert!(text.contains("not there"), "{what}: {text}");
            others_go_on_and_reconcile(&host, &channel, (&session, &sink));
        }
    }
}

#[test]
fn a_second_link_for_a_stream_ends_both() {
    let _watchdog = Watchdog::start("second link", LIMIT);
    let host = Host::start();
    let (session, sink) = sink(&host, "second");
    let liar = Liar::join(&host, "second");
    let (stream, entries) = (liar.raw.stream().to_owned(), liar.raw.entries);
    let memory = SharedMemory::create("d", DeliveryBlock::bytes(entries).unwrap(), false, true).unwrap();
    let offer = peer::LinkOffer { stream, entries, reliable: false, layout: LAYOUT };
    say(&liar.socket, 2, Body::LinkOffer(offer), &[memory.fd()]).unwrap();
    let text = broken(&session);
    assert!(text.contains("second"), "{text}");
    others_go_on_and_reconcile(&host, "second", (&session, &sink));
}

/// A page of memory under as many numbers as there are: a process that maps it each time has no mappings left for itself.
#[test]
fn who_gives_segments_without_end_is_stopped_long_before_the_kernel_stops_its_peer() {
    let _watchdog = Watchdog::start("segments", 2 * LIMIT);
    let host = Host::start();
    let (session, sink) = sink(&host, "segments");
    let liar = Liar::join(&host, "segments");
    let page = Segment::create(Geometry::checked(4096, 1).unwrap(), false).unwrap();
    // It has one already.
    for segment in 1..=MAX_OF_PEER as u32 {
        let add = peer::SegmentAdd { segment, stride: 4096, slots: 1, headroom: 0, bytes: page.bytes() };
        say(&liar.socket, 1, Body::SegmentAdd(add), &[page.fd()]).unwrap();
        if segment < MAX_OF_PEER as u32 {
            answer(&liar.socket, |b| matches!(b, Body::SegmentAck(_)));
        }
    }
    let text = broken(&session);
    assert!(text.contains("one more segment"), "{text}");
    others_go_on_and_reconcile(&host, "segments", (&session, &sink));
}

/// One stream's segments may have twice what a session may own, or those of all its streams together.
#[test]
fn who_gives_more_memory_with_all_its_streams_than_it_may_own_is_cut_off_with_the_reason() {
    let _watchdog = Watchdog::start("all streams", LIMIT);
    let host = Host::with(|config| config.quota.memory_mib_per_session = 2);
    let (session, sink) = sink(&host, "all");
    let other = session.stream_named("other", Qos::default()).unwrap();
    let liar = Liar::join(&host, "all");
    let entries = liar.raw.entries;
    let memory = Arc::new(SharedMemory::create("d", DeliveryBlock::bytes(entries).unwrap(), false, true).unwrap());
    DeliveryBlock::create(memory.clone(), entries).unwrap();
    let offer = peer::LinkOffer { stream: other.name().to_owned(), entries, reliable: false, layout: LAYOUT };
    say(&liar.socket, 2, Body::LinkOffer(offer), &[memory.fd()]).unwrap();
    answer(&liar.socket, |b| matches!(b, Body::LinkAccept(_)));
    let large = Segment::create(Geometry::checked(4096, 600).unwrap(), false).unwrap();
    for link in [1, 2] {
        let add = peer::SegmentAdd { segment: 1, stride: 4096, slots: 600, headroom: 0, bytes: large.bytes() };
        say(&liar.socket, link, Body::SegmentAdd(add), &[large.fd()]).unwrap();
        if link == 1 {
            answer(&liar.socket, |b| matches!(b, Body::SegmentAck(_)));
        }
    }
    let text = broken(&session);
    assert!(text.contains("quota.memory_mib_per_session"), "{text}");
    others_go_on_and_reconcile(&host, "all", (&session, &sink));
}
