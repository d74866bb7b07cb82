//! The stand itself: a hub whose other hosts are made up.

mod flows;
mod late;

use super::*;
use crate::network::domain::tests::Player;
use insane_shm::socket::{Received, receive};
use insane_wire::host::{ToHost, to_host::Body};
use insane_wire::peer::{SegmentRef, ToPeer, to_peer};
use insane_wire::{MAX_CONTROL_BYTES, decode};
use rustix::fd::AsFd;

pub(super) fn reliable_qos() -> Qos {
    let mut qos = Qos::default();
    qos.set_reliability(Reliability::Reliable);
    qos
}

pub(super) fn word(body: Body) -> Vec<u8> {
    encode(&ToHost { body: Some(body) })
}

fn announce(sink: u8, channel: u64) -> Vec<u8> {
    let stream = stream_name(0).to_owned();
    let sink = vec![sink; 16];
    let qos = Some(Qos::default());
    word(Body::Announce(wire::Announce { domain: "default".into(), stream, qos, channel, sink, ..Default::default() }))
}

#[test]
fn what_a_host_says_is_acted_on_and_forgotten_with_it() {
    let mut stand = Stand::new();
    assert!(stand.is_connected());
    stand.say(&announce(3, 5));
    assert_eq!((stand.holds().sinks, stand.holds().in_the_core, stand.strays()), (2, 1, 0));
    let stream = stream_name(0).to_owned();
    let about = wire::Source { epoch: vec![4; 16], domain: "default".into(), stream, channel: 6, ..Default::default() };
    stand.say(&word(Body::Source(about)));
    assert_eq!((stand.holds().sources, stand.holds().in_the_core), (1, 2));
    stand.end();
    assert_eq!((stand.holds(), stand.is_connected()), (Holds::default(), false));
}

#[test]
fn a_hello_that_is_said_again_ends_no_sink() {
    let mut stand = Stand::new();
    let hello =
        |run: u8| word(Body::Hello(wire::Hello { host: "there".into(), run: vec![run; 16], ..Default::default() }));
    stand.say(&hello(8));
    stand.say(&announce(3, 5));
    let before = stand.holds();
    assert_eq!(before.in_the_core, 1);
    stand.say(&hello(8));
    stand.pass(Duration::from_secs(1));
    assert_eq!((stand.holds(), stand.strays()), (before, 0));
    // Of another runtime it is news.
    stand.say(&hello(9));
    assert_eq!(stand.holds().in_the_core, 0);
}

#[test]
fn words_that_are_malformed_unknown_or_about_nothing_are_counted() {
    let mut stand = Stand::new();
    // Malformed; of a newer version, with a field that is not known yet; a channel whose name has another id.
    let misnamed = wire::Announce { name: Some("x".into()), channel: 1, sink: vec![9; 16], ..Default::default() };
    for (count, bytes) in [&b"\xff\xff"[..], &[0xfa, 0x01, 0x00], &word(Body::Announce(misnamed))].iter().enumerate() {
        assert_eq!(stand.strays(), count as u64);
        stand.say(bytes);
    }
    assert_eq!((stand.strays(), stand.holds()), (3, Holds::default()));
    assert!(stand.is_connected());
    stand.frame(b"hello", true);
    assert_eq!(stand.strangers(), 1);
}

#[test]
fn words_that_are_longer_than_a_frame_are_heard() {
    let mut stand = Stand::new();
    let (stream, sinks) = (stream_name(1).to_owned(), (0..600u16).map(|n| [n.to_le_bytes(); 8].concat()).collect());
    let qos = Some(reliable_qos());
    let epoch = vec![4; 16];
    let about = wire::Source { epoch, domain: "default".into(), stream, qos, channel: 6, sinks, ..Default::default() };
    let long = word(Body::Source(about));
    assert!(long.len() > 2 * MAX_FRAME, "{}", long.len());
    stand.say(&long);
    stand.pass(Duration::from_secs(1));
    assert_eq!((stand.holds().sources, stand.holds().under_way, stand.strays()), (1, 0, 0), "{stand:?}");
    // And so is what is said after it.
    stand.say(&announce(3, 5));
    assert_eq!(stand.holds().sinks, 2);
}

#[test]
fn a_host_that_restarts_is_heard_again() {
    let mut stand = Stand::new();
    stand.say(&announce(3, 5));
    stand.restart();
    assert!(stand.is_connected());
    stand.say(&announce(4, 5));
    stand.pass(Duration::from_secs(1));
    assert_eq!(stand.holds().sinks, 2);
    stand.end();
    assert_eq!(stand.holds(), Holds::default());
}

/// The host is about to send what a source emits on a channel of session `number`'s stream.
pub(super) fn source(number: u64, epoch: u8, channel: u64) -> Vec<u8> {
    let (domain, stream) = ("default".to_owned(), stream_name(number).to_owned());
    let qos = Some(if number % 2 == 1 { reliable_qos() } else { Qos::default() });
    word(Body::Source(wire::Source { epoch: vec![epoch; 16], domain, stream, qos, channel, ..Default::default() }))
}

#[test]
fn a_flow_waits_no_longer_for_a_sink_that_is_gone() {
    for its_session_lives in [false, true] {
        let mut stand = Stand::new();
        for (number, sink) in [(1, 1), (3, 2)] {
            stand.sink(number, [sink; 16], 5, true);
        }
        stand.say(&source(1, 4, 5));
        let mut players = attached(&mut stand);
        stand.open("default", u128::from_le_bytes([4; 16]), 5, true);
        // The host says of one of the two that it has no number yet, and of the other nothing.
        let ready = wire::Ready { epoch: vec![4; 16], sink: vec![1; 16], join: 0, answer: true };
        stand.say(&word(Body::Ready(ready)));
        let flows = |stand: &Stand| (stand.hub.hosts[0].requested.len(), stand.hub.hosts[0].incoming.len());
        assert_eq!(flows(&stand), (1, 0));
        if its_session_lives {
            players[1].close();
        } else {
            players.truncate(1);
        }
        stand.pass(Duration::from_millis(10));
        assert_eq!(flows(&stand), (0, 1), "{its_session_lives}");
    }
}

#[test]
fn a_host_hears_of_changes_before_what_is_read_after_them() {
    let mut stand = Stand::new();
    stand.sink(0, [1; 16], 5, true);
    stand.sink(0, [2; 16], 6, true);
    stand.say(&source(0, 4, 5));
    let socket = stand.ends.pop().expect("a pair").1;
    let mut player = Player::new(socket, Config::default().quota.link_entries);
    player.read();
    player.accept();
    stand.pass(Duration::from_millis(10));
    // In one batch: a sink opens, one is attached, and one closes, for which all that sessions have said is read.
    let stream = stand.streams[&SESSIONS];
    let channel = Some(session::Channel { name: None, id: Some(5) });
    let open = session::OpenSink { stream, channel, sink: vec![3; 16], observer: false };
    stand.ask(SESSIONS, to_runtime::Body::OpenSink(open));
    stand.ask(SESSIONS, to_runtime::Body::CloseSink(session::CloseSink { sink: vec![2; 16] }));
    player.read();
    stand.heard.clear();
    stand.settle();
    let told = |bytes: &Vec<u8>| match decode::<ToHost>(bytes).expect("a word").body {
        Some(Body::Announce(announced)) => Some(("announced", announced.sink[0])),
        Some(Body::Ready(ready)) => Some(("attached", ready.sink[0])),
        Some(Body::Withdraw(withdrawn)) => Some(("withdrawn", withdrawn.sink[0])),
        _ => None,
    };
    let heard: Vec<_> = stand.heard.iter().filter_map(told).collect();
    assert_eq!(heard, [("announced", 3), ("attached", 1), ("withdrawn", 2)]);
}

#[test]
fn what_a_session_had_no_room_for_comes_when_it_has_read() {
    let mut stand = Stand::new();
    stand.sink(0, [1; 16], 5, true);
    stand.say(&source(0, 4, 5));
    let pair = stand.hub.domains[0].pairs.iter_mut().flatten().next().expect("a pair");
    // More than a socket takes: it has room for some hundreds.
    let all = 2000;
    (0..all).for_each(|segment| pair.send(1, to_peer::Body::SegmentRemove(SegmentRef { segment }), &[]));
    let mut arrived = Vec::new();
    for round in 0.. {
        let before = arrived.len();
        while let Received::Message(bytes, _) = receive(stand.ends[0].1.as_fd(), MAX_CONTROL_BYTES).expect("a pair") {
            if let Some(to_peer::Body::SegmentRemove(gone)) = decode::<ToPeer>(&bytes).expect("a message").body {
                arrived.push(gone.segment);
            }
        }
        if arrived.len() == before {
            break;
        }
        assert!(round > 0 || arrived.len() < all as usize, "the socket took all");
        stand.pass(Duration::from_millis(10));
    }
    assert!(arrived.iter().copied().eq(0..all), "{} of {all} came", arrived.len());
}

/// How often the thread would look at everything in so much time.
fn looks(stand: &mut Stand, time: Duration) -> usize {
    let until = stand.now + time;
    let mut looks = 0;
    while stand.now < until {
        // A wait of none is a look that takes some time.
        stand.now += stand.hub.idle_for(stand.now).max(Duration::from_micros(1));
        stand.hub.turn(stand.now);
        looks += 1;
        stand.host_turn();
    }
    looks
}

#[test]
fn a_session_that_does_not_read_is_looked_at_less_and_less_often() {
    let mut stand = Stand::new();
    stand.sink(0, [1; 16], 5, true);
    stand.say(&source(0, 4, 5));
    stand.pass(Duration::from_secs(1));
    let before = looks(&mut stand, Duration::from_secs(100));
    let all = 2000;
    let pair = stand.hub.domains[0].pairs.iter_mut().flatten().next().expect("a pair");
    (0..all).for_each(|segment| pair.send(1, to_peer::Body::SegmentRemove(SegmentRef { segment }), &[]));
    // Twice: the waits have grown then, and stay as they are.
    for _ in 0..2 {
        let more = looks(&mut stand, Duration::from_secs(100)).saturating_sub(before);
        assert!((500..1000).contains(&more), "{more} looks more than {before}");
    }
    // It reads again: the wait that has begun is the last.
    let mut arrived = 0;
    for round in 0..100 {
        while let Received::Message(..) = receive(stand.ends[0].1.as_fd(), MAX_CONTROL_BYTES).expect("a pair") {
            arrived += 1;
        }
        looks(&mut stand, Duration::from_millis(if round == 0 { 150 } else { 5 }));
    }
    assert!(arrived > all, "{arrived} came");
    assert!(looks(&mut stand, Duration::from_secs(100)) <= before + 10);
}

#[test]
fn a_configured_host_that_is_away_is_called_once_a_second_and_found_again() {
    let mut stand = Stand::new();
    stand.end();
    let calls = |stand: &mut Stand, seconds: u64| {
        let until = stand.now + Duration::from_secs(seconds);
        let mut calls = 0;
        while stand.now < until {
            stand.now += Duration::from_millis(20);
            stand.hub.turn(stand.now);
            calls += std::mem::take(&mut *stand.to_host.lock().unwrap()).len();
        }
        calls
    };
    let often = calls(&mut stand, 20);
    assert!((150..=200).contains(&often), "{often} calls in 20 s");
    calls(&mut stand, 60);
    let seldom = calls(&mut stand, 20);
    assert!((15..=20).contains(&seldom), "{seldom} calls in 20 s");
    // It has never gone: it waits for a call, and says nothing by itself until then.
    let before = stand.now;
    while !stand.is_connected() && stand.now < before + Duration::from_secs(5) {
        stand.now += Duration::from_millis(20);
        stand.hub.turn(stand.now);
        let called = !stand.to_host.lock().unwrap().is_empty();
        if called || stand.peer.is_connected() {
            stand.host_turn();
        }
    }
    let took = stand.now - before;
    assert!(stand.is_connected() && took < Duration::from_millis(1200), "{took:?}");
    // One that is another says hello by itself, and is heard at once.
    stand.end();
    calls(&mut stand, 80);
    let before = stand.now;
    stand.restart();
    assert!(stand.is_connected() && stand.now - before < Duration::from_millis(200), "{:?}", stand.now - before);
}

/// The sessions that have a link take it, and their sinks are attached.
pub(super) fn attached(stand: &mut Stand) -> Vec<Player> {
    stand.ends.sort_by_key(|(conn, _)| *conn);
    let entries = Config::default().quota.link_entries;
    let ends = std::mem::take(&mut stand.ends).into_iter();
    let mut players: Vec<Player> = ends.map(|(_, socket)| Player::new(socket, entries)).collect();
    for _ in 0..4 {
        players.iter_mut().for_each(Player::read);
        players.iter_mut().for_each(Player::accept);
        stand.pass(Duration::from_millis(10));
    }
    players
}

#[test]
fn a_source_whose_flow_ends_before_its_opening_came_is_not_waited_for() {
    let mut stand = Stand::new();
    stand.say(&source(0, 4, 5));
    // The opening never leaves.
    let flow = stand.peer.open(FlowSpec { domain: 0, epoch: 4, channel: 5, reliable: false, first: 1 });
    stand.peer.close(flow);
    stand.pass(Duration::from_secs(1));
    assert_eq!(stand.holds().sources, 1);
    stand.say(&word(Body::Ended(wire::Ended { epoch: vec![4; 16] })));
    stand.pass(Duration::from_secs(1));
    assert_eq!((stand.holds(), stand.strays()), (Holds::default(), 0));
}

#[test]
fn a_flow_that_overtakes_the_words_about_it_and_the_one_before_ends_by_itself() {
    // It is accepted before these words come, or waits for its sink until after them.
    for accepted in [true, false] {
        let mut stand = Stand::new();
        stand.sink(0, [1; 16], 5, true);
        stand.say(&source(0, 4, 5));
        let mut players = attached(&mut stand);
        let ready = wire::Ready { epoch: vec![4; 16], sink: vec![1; 16], join: 0, answer: true };
        let ready = word(Body::Ready(ready));
        if accepted {
            stand.say(&ready);
        }
        // The one that was announced is never seen; this one is the next.
        stand.open("default", u128::from_le_bytes([4; 16]), 5, false);
        stand.say(&word(Body::Ended(wire::Ended { epoch: vec![4; 16] })));
        stand.pass(Duration::from_millis(10));
        stand.say(&source(0, 4, 5));
        if !accepted {
            stand.say(&ready);
        }
        stand.pass(Duration::from_secs(1));
        assert_eq!((stand.holds().sources, stand.hub.hosts[0].incoming.len()), (1, 1), "{accepted}");
        stand.close(0);
        for _ in 0..4 {
            players.iter_mut().for_each(Player::read);
            stand.pass(Duration::from_secs(1));
        }
        assert_eq!((stand.holds().sources, stand.hub.hosts[0].incoming.len()), (0, 0), "{stand:?}");
    }
}
