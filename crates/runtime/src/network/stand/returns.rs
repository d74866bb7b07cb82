//! What goes for good and what comes back: names that hosts use and use no more, and hosts that are somewhere else now.

use super::tests::{attached, reliable_qos, source, word};
use super::*;
use crate::network::account::Account;
use crate::network::domain::tests::Player;
use crate::network::later;
use insane_wire::decode;
use insane_wire::host::{self as wire, ToHost, to_host::Body};
use insane_wire::id::{Epoch, SinkId};

fn sink_on(stream: &str, sink: u8, qos: Qos) -> Body {
    let (domain, stream, qos, sink) = ("default".to_owned(), stream.to_owned(), Some(qos), vec![sink; 16]);
    Body::Announce(wire::Announce { domain, stream, qos, channel: 5, sink, ..Default::default() })
}

fn gone(sink: u8) -> Body {
    Body::Withdraw(wire::Withdraw { sink: vec![sink; 16] })
}

#[test]
fn streams_of_which_hosts_have_no_sink_any_more_are_closed() {
    let mut stand = Stand::new();
    let own = stand.core.streams.len();
    for number in 0..1000 {
        let name = format!("stream {number}");
        stand.say(&word(sink_on(&name, 3, reliable_qos())));
        assert_eq!((stand.core.streams.len(), stand.holds().in_the_core), (own + 1, 1), "{name}");
        stand.say(&word(gone(3)));
    }
    assert_eq!((stand.core.streams.len(), stand.core.sessions[&NETWORK].streams()), (own, 0));
    // Of another QoS now.
    stand.say(&word(sink_on("stream 7", 3, Qos::default())));
    assert_eq!((stand.core.streams.len(), stand.hub.refusals), (own + 1, 0));
}

#[test]
fn a_sink_that_did_not_fit_takes_part_once_what_it_did_not_fit_is_gone() {
    let mut stand = Stand::new();
    // Here this stream is best effort, for two sessions.
    stand.say(&word(sink_on(stream_name(0), 3, reliable_qos())));
    stand.say(&word(sink_on(stream_name(0), 4, reliable_qos())));
    assert_eq!((stand.hub.refusals, stand.holds().in_the_core), (2, 0));
    stand.goes(0);
    stand.say(&word(gone(4)));
    assert_eq!((stand.hub.refusals, stand.holds().in_the_core), (2, 0));
    stand.goes(2);
    assert_eq!((stand.hub.refusals, stand.holds().in_the_core), (2, 1));
    // Now it is its own stream, which a session is refused.
    stand.comes(0);
    assert!(!stand.streams.contains_key(&SESSIONS));
    stand.say(&word(gone(3)));
    assert_eq!(stand.holds(), Holds::default());
}

/// A host at another address, which has no path here: what it says is said for it.
fn another(stand: &mut Stand) -> usize {
    stand.hub.found(SocketAddr::from(([127, 0, 0, 3], 7400)));
    stand.hub.hosts.len() - 1
}

/// The host is gone without a word, for longer than it may be silent, but not for as long as it is waited for.
fn falls_silent(stand: &mut Stand) {
    let settings = &stand.hub.settings;
    let until = stand.now + Duration::from_millis(settings.silence_ms) + Duration::from_secs(1);
    assert!(settings.patience_ms > settings.silence_ms + 1000);
    while stand.now < until {
        stand.now += Duration::from_millis(200);
        stand.turns(false);
    }
    assert!(!stand.hub.hosts[0].is_connected());
}

#[test]
fn the_sinks_of_a_host_that_is_somewhere_else_now_take_part_once_it_is_lost_where_it_was() {
    for lost_first in [false, true] {
        let mut stand = Stand::new();
        let moved = another(&mut stand);
        let sink = sink_on(stream_name(1), 3, reliable_qos());
        stand.say(&word(sink.clone()));
        let at = |stand: &Stand| stand.hub.sinks.values().map(|sink| sink.host).collect::<Vec<_>>();
        assert_eq!(at(&stand), [0]);
        if lost_first {
            falls_silent(&mut stand);
        }
        let now = stand.now;
        stand.hub.take_word(moved, now, sink);
        if !lost_first {
            assert_eq!(at(&stand), [0], "its host is there");
            falls_silent(&mut stand);
        }
        stand.pass(Duration::from_millis(100));
        assert_eq!((at(&stand), stand.holds().in_the_core), (vec![moved], 1), "{lost_first}");
    }
}

#[test]
fn a_sink_that_is_somewhere_else_now_waits_until_its_sources_have_let_go_of_it_where_it_was() {
    let mut stand = Stand::new();
    let moved = another(&mut stand);
    let sink = sink_on(stream_name(1), 3, reliable_qos());
    stand.say(&word(sink.clone()));
    let id = *stand.hub.sinks.keys().next().unwrap();
    // A source of a session that answers nothing.
    let domain = &mut stand.hub.domains[0];
    domain.intakes.push(None);
    let cell = domain.cells.start(Epoch(4), id).unwrap();
    stand.hub.hosts[0].add_account(Account::new(0, id, (0, 0), true, cell));
    falls_silent(&mut stand);
    let now = stand.now;
    stand.hub.take_word(moved, now, sink);
    stand.pass(Duration::from_millis(100));
    assert_eq!((stand.hub.sinks.len(), stand.hub.later.len(), stand.holds().in_the_core), (0, 1, 0));
    stand.hub.hosts[0].accounts[0].iter_mut().for_each(|account| account.closing = true);
    stand.pass(Duration::from_millis(100));
    assert_eq!((stand.hub.sinks[&id].host, stand.hub.later.len(), stand.holds().in_the_core), (moved, 0, 1));
}

#[test]
fn a_source_of_a_host_that_is_somewhere_else_now_goes_on_once_it_is_lost_where_it_was() {
    for (number, lost_first) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut stand = Stand::new();
        let moved = another(&mut stand);
        stand.sink(number, [1; 16], 5, true);
        let about = source(number, 4, 5);
        stand.say(&about);
        let mut players = attached(&mut stand);
        let at = |stand: &Stand| {
            let remotes = stand.hub.domains[0].remotes.iter().flatten();
            remotes.map(|r| (r.host, r.closing, r.taps.len())).collect::<Vec<_>>()
        };
        assert_eq!(at(&stand), [(0, false, 1)]);
        if lost_first {
            falls_silent(&mut stand);
        }
        let (now, about) = (stand.now, decode::<ToHost>(&about).unwrap().body.unwrap());
        stand.hub.take_word(moved, now, about);
        if !lost_first {
            stand.pass(Duration::from_millis(100));
            assert_eq!(at(&stand), [(0, false, 1)], "its host is there");
            falls_silent(&mut stand);
        }
        for _ in 0..4 {
            players.iter_mut().for_each(Player::read);
            stand.now += Duration::from_millis(20);
            stand.turns(false);
        }
        assert_eq!((at(&stand), stand.holds().in_the_core), (vec![(moved, false, 1)], 1), "{number} {lost_first}");
    }
}

/// What the host has heard of a sink's messages: under which number, and how many of them were delivered.
fn reported(stand: &Stand) -> Vec<(u32, u64)> {
    let report = |bytes: &Vec<u8>| match decode::<ToHost>(bytes).unwrap().body {
        Some(Body::Report(report)) => Some((report.join, report.delivered)),
        _ => None,
    };
    stand.heard.iter().filter_map(report).collect()
}

/// The host, which knows that the sink joined source 4 under this number, sends messages of that by its flow, or by a new one.
fn sends(stand: &mut Stand, join: u32, sequences: std::ops::RangeInclusive<u64>) {
    let ready = wire::Ready { epoch: vec![4; 16], sink: vec![1; 16], join, answer: true };
    stand.say(&word(Body::Ready(ready)));
    if stand.flows.is_empty() {
        stand.open("default", u128::from_le_bytes([4; 16]), 5, true);
    }
    let flow = stand.flows[0];
    for sequence in sequences {
        let token = sequence + 10_000;
        stand.said.0.insert(token, vec![7; 8]);
        let next = Outgoing { token, sequence, len: 8, joined: join as u8, ..Outgoing::default() };
        stand.peer.send(flow, next).expect("room for what waits");
    }
    stand.pass(Duration::from_millis(50));
}

/// The same two runtimes find each other again, after the connection was cut for longer than a host may be silent.
pub(super) fn meet_again(stand: &mut Stand) {
    stand.flows.drain(..).chain(stand.control.take()).for_each(|flow| stand.peer.abandon(flow));
    stand.connect();
    assert!(stand.is_connected());
}

#[test]
fn the_tallies_of_a_sink_that_was_given_up_begin_anew_with_its_next_number() {
    for next in [1, 257] {
        let mut stand = Stand::new();
        stand.sink(1, [1; 16], 5, true);
        stand.say(&source(1, 4, 5));
        let mut players = attached(&mut stand);
        sends(&mut stand, 1, 1..=3);
        assert_eq!(players[0].take(), 3);
        stand.pass(Duration::from_millis(50));
        assert_eq!(reported(&stand).last(), Some(&(1, 3)));
        // These are given to the sink, and not counted when the connection is cut.
        sends(&mut stand, 1, 4..=5);
        falls_silent(&mut stand);
        meet_again(&mut stand);
        stand.say(&source(1, 4, 5));
        stand.heard.clear();
        // The host has given the sink up meanwhile, or not: then it has the number that it had.
        sends(&mut stand, next, 6..=9);
        let before = if next == 1 { 3 } else { 0 };
        assert!(reported(&stand).iter().all(|report| report.1 <= before || report.0 != next), "{:?}", reported(&stand));
        assert_eq!(players[0].take(), 6);
        stand.pass(Duration::from_millis(50));
        let all = if next == 1 { 9 } else { 4 };
        assert_eq!(reported(&stand).last(), Some(&(next, all)));
        sends(&mut stand, next, 10..=10);
        assert_eq!(players[0].take(), 1);
        stand.pass(Duration::from_millis(50));
        assert_eq!(reported(&stand).last(), Some(&(next, all + 1)), "{next}");
    }
}

#[test]
fn when_a_source_ends_only_claims_of_it_are_heard_again() {
    let mut stand = Stand::new();
    let moved = another(&mut stand);
    let now = stand.now;
    for epoch in 1..=200 {
        let about = source(0, epoch, 5);
        stand.say(&about);
        // Said more than once, as of a source that moves.
        for _ in 0..2 {
            let about = decode::<ToHost>(&about).unwrap().body.unwrap();
            stand.hub.take_word(moved, now, about);
        }
    }
    stand.pass(Duration::from_millis(100));
    let remotes = |stand: &Stand, host| {
        let remotes = stand.hub.domains[0].remotes.iter().flatten();
        remotes.filter(|r| r.host == host).map(|r| r.flows).collect::<Vec<_>>()
    };
    assert_eq!((remotes(&stand, 0).len(), remotes(&stand, moved), stand.hub.again), (200, vec![], 0));
    assert_eq!(stand.hub.hosts[moved].claims.len(), 200);
    stand.say(&word(Body::Ended(wire::Ended { epoch: vec![7; 16] })));
    stand.pass(Duration::from_millis(100));
    assert_eq!((remotes(&stand, 0).len(), remotes(&stand, moved), stand.hub.again), (199, vec![2], 2));
    // All of them when their host is lost.
    falls_silent(&mut stand);
    stand.pass(Duration::from_millis(100));
    assert_eq!((remotes(&stand, 0).len(), remotes(&stand, moved).len()), (0, 200));
    assert!(stand.hub.again <= 2 * 2 * 200, "{}", stand.hub.again);
}

#[test]
fn sinks_whose_turn_has_not_come_are_looked_at_few_at_a_time_whatever_is_said() {
    let mut stand = Stand::new();
    let all = 4 * later::AT_ONCE as u128;
    // Sources of a session that answers nothing have all of them still.
    stand.hub.domains[0].intakes.push(None);
    let places: Vec<usize> = (1..=all)
        .map(|n| {
            let cell = stand.hub.domains[0].cells.start(Epoch(4), SinkId(n)).unwrap();
            stand.hub.hosts[0].add_account(Account::new(0, SinkId(n), (0, 0), true, cell))
        })
        .collect();
    let announced = |n: u128| {
        let Body::Announce(sink) = sink_on(stream_name(1), 3, reliable_qos()) else { unreachable!() };
        Body::Announce(wire::Announce { sink: n.to_le_bytes().to_vec(), ..sink })
    };
    let now = stand.now;
    for n in 1..=all {
        stand.hub.take_word(0, now, announced(n));
    }
    assert_eq!((stand.hub.later.len() as u128, stand.hub.again), (all, 0), "each was looked at once");
    for turns in 1..=8 {
        stand.hub.offer_later();
        assert_eq!(stand.hub.again, turns * later::AT_ONCE);
    }
    for at in places {
        stand.hub.hosts[0].accounts[at].iter_mut().for_each(|account| account.closing = true);
    }
    (0..4).for_each(|_| stand.hub.offer_later());
    assert_eq!((stand.hub.later.len(), stand.hub.sinks.len() as u128), (0, all));
}

#[test]
fn a_lost_host_that_the_directory_still_has_is_not_given_up() {
    for listed in [true, false] {
        let mut stand = Stand::new();
        let there = SocketAddr::from(([127, 0, 0, 2], 7400));
        stand.hub.found(there);
        stand.sink(1, [1; 16], 5, true);
        // It has a sink, and a source for one here.
        stand.say(&word(sink_on(stream_name(1), 3, reliable_qos())));
        stand.say(&source(1, 4, 5));
        let _players = attached(&mut stand);
        let holds = |stand: &Stand| {
            let remotes = stand.hub.domains[0].remotes.iter().flatten().filter(|r| !r.closing).count();
            (stand.hub.sinks.len(), remotes)
        };
        assert_eq!(holds(&stand), (1, 1));
        let patience = Duration::from_millis(stand.hub.settings.patience_ms + 1000);
        let waits = |stand: &mut Stand| {
            let until = stand.now + patience;
            while stand.now < until {
                stand.now += Duration::from_millis(200);
                stand.turns(false);
            }
        };
        if !listed {
            stand.hub.gone(there);
        }
        falls_silent(&mut stand);
        waits(&mut stand);
        assert_eq!(holds(&stand), if listed { (1, 1) } else { (0, 0) });
        stand.hub.gone(there);
        waits(&mut stand);
        assert_eq!(holds(&stand), (0, 0));
    }
}
