//! Flows from the host to sinks of this one.

use super::*;
use crate::network::lanes::HOME;
use crate::network::marked::Looker;

/// The host's flow of a source goes to a sink that is attached, with its number.
fn goes_to(stand: &mut Stand, number: u64, epoch: u8, sink: u8) {
    let ready = wire::Ready { epoch: vec![epoch; 16], sink: vec![sink; 16], join: 1, answer: true };
    stand.say(&word(Body::Ready(ready)));
    stand.open("default", u128::from_le_bytes([epoch; 16]), 5, number % 2 == 1);
}

#[test]
fn a_host_that_sends_empty_messages_to_a_stopped_sink_is_held() {
    let mut stand = Stand::new();
    stand.sink(1, [1; 16], 5, true);
    stand.say(&source(1, 4, 5));
    let mut players = attached(&mut stand);
    goes_to(&mut stand, 1, 4, 1);
    assert_eq!(stand.hub.hosts[0].incoming.len(), 1);
    stand.hub.domains[0].memory_limit = 1 << 20;
    let (flow, mut sent) = (stand.flows[0], 0);
    // As a runtime does: what is not gone waits, and then its sources do.
    for _ in 0..200 {
        while stand.peer.waiting(flow) < 2048 && sent < 60_000 {
            let next = Outgoing { token: sent + 1000, sequence: sent + 1, joined: 1, ..Outgoing::default() };
            stand.peer.send(flow, next).expect("room for what waits");
            sent += 1;
        }
        stand.pass(Duration::from_millis(10));
    }
    assert!((4096..30_000).contains(&sent), "{sent} sent");
    let mut took = 0;
    for _ in 0..200 {
        players.iter_mut().for_each(Player::read);
        took += players.iter_mut().map(Player::take).sum::<usize>() as u64;
        stand.pass(Duration::from_millis(10));
    }
    assert_eq!((took, stand.peer.waiting(flow)), (sent, 0));
}

/// A stream that moves away, and back before its first flow is through, has two flows on one path, and the path lets flows take turns.
#[test]
fn a_best_effort_flow_waits_for_the_one_before_it_on_the_same_path() {
    let mut stand = Stand::new();
    stand.sink(0, [1; 16], 5, true);
    stand.say(&source(0, 4, 5));
    let mut players = attached(&mut stand);
    goes_to(&mut stand, 0, 4, 1);
    stand.say(&source(0, 4, 5));
    let first = stand.flows[0];
    let domain = insane_wire::frame::domain_id("default");
    let epoch = u128::from_le_bytes([4; 16]);
    let second = stand.peer.open(FlowSpec { domain, epoch, channel: 5, reliable: false, first: 1 });
    // Of each more than goes at once.
    for sequence in 1..=600 {
        let token = sequence + 1000;
        stand.said.0.insert(token, vec![7; 1000]);
        let next = Outgoing { token, len: 1000, sequence, joined: 1, ..Outgoing::default() };
        stand.peer.send(if sequence <= 300 { first } else { second }, next).expect("room for what waits");
    }
    stand.peer.close(first);
    for _ in 0..50 {
        stand.pass(Duration::from_millis(10));
        for player in &mut players {
            player.read();
            player.take();
        }
    }
    assert!(players[0].seen.iter().copied().eq(1..=600), "{:?}", players[0].seen);
    // All of them are counted, and the second goes on.
    let awaited = stand.hub.domains[0].remotes.iter().flatten().any(|remote| remote.is_awaited());
    assert_eq!((given(&stand, 4), awaited, stand.hub.hosts[0].incoming.len()), (Some(600), false, 1));
}

/// How many messages went to the first sink of a source, if it is known.
fn given(stand: &Stand, epoch: u8) -> Option<u64> {
    let mut remotes = stand.hub.domains[0].remotes.iter().flatten();
    remotes.find(|r| r.epoch.to_bytes() == [epoch; 16]).map(|r| r.taps.iter().map(|t| t.given).sum())
}

#[test]
fn a_flow_does_not_outlive_the_source_that_it_is_of() {
    let mut stand = Stand::new();
    stand.sink(0, [1; 16], 5, true);
    stand.say(&source(0, 4, 5));
    let mut players = attached(&mut stand);
    goes_to(&mut stand, 0, 4, 1);
    assert_eq!(stand.hub.hosts[0].incoming.len(), 1);
    // It says that it is another runtime, in the connection in which it opened the flow.
    stand.say(&word(Body::Hello(wire::Hello { host: "there".into(), run: vec![8; 16], ..Default::default() })));
    for _ in 0..4 {
        players.iter_mut().for_each(Player::read);
        stand.pass(Duration::from_millis(10));
    }
    assert_eq!(given(&stand, 4), None);
    // Another in its place.
    stand.say(&source(0, 6, 5));
    for _ in 0..4 {
        players.iter_mut().for_each(Player::read);
        stand.pass(Duration::from_millis(10));
    }
    goes_to(&mut stand, 0, 6, 1);
    for sequence in 1..=8 {
        let (len, token) = (1 << 20, 1000 + sequence);
        stand.said.0.insert(token, vec![7; 1 << 20]);
        let next = Outgoing { token, len, sequence, joined: 1, ..Outgoing::default() };
        stand.peer.send(stand.flows[0], next).expect("room for what waits");
        stand.pass(Duration::from_millis(100));
        assert_eq!((given(&stand, 6), stand.hub.domains[0].slab.in_use()), (Some(0), 0));
    }
    stand.give(1, &[7; 8]);
    assert_eq!(stand.hub.hosts[0].incoming.len(), 1);
}

#[test]
fn a_flow_that_overtakes_the_first_word_of_another_runtime_waits_for_it() {
    let mut stand = Stand::new();
    stand.sink(1, [1; 16], 5, true);
    stand.say(&source(1, 4, 5));
    let mut players = attached(&mut stand);
    goes_to(&mut stand, 1, 4, 1);
    let flow_of = |stand: &Stand| {
        let remotes: Vec<_> = stand.hub.domains[0].remotes.iter().flatten().map(|r| (r.number, r.flow)).collect();
        (remotes, stand.hub.hosts[0].incoming.len())
    };
    let (before, 1) = flow_of(&stand) else { panic!("{stand:?}") };
    stand.greets = false;
    stand.restart();
    stand.open("default", u128::from_le_bytes([4; 16]), 5, true);
    stand.pass(Duration::from_millis(10));
    assert_eq!(flow_of(&stand), (vec![(before[0].0, None)], 0));
    stand.greet();
    stand.say(&source(1, 4, 5));
    for _ in 0..8 {
        players.iter_mut().for_each(Player::read);
        stand.pass(Duration::from_millis(10));
    }
    let ready = wire::Ready { epoch: vec![4; 16], sink: vec![1; 16], join: 1, answer: true };
    stand.say(&word(Body::Ready(ready)));
    let (now, 1) = flow_of(&stand) else { panic!("{stand:?}") };
    assert!(now.len() == 1 && now[0].0 != before[0].0 && now[0].1.is_some(), "{now:?}");
    let next = Outgoing { token: 1000, sequence: 1, joined: 1, ..Outgoing::default() };
    stand.peer.send(stand.flows[0], next).expect("room for what waits");
    for _ in 0..4 {
        stand.pass(Duration::from_millis(10));
        assert!(players.iter_mut().map(Player::take).sum::<usize>() <= 1);
    }
    assert_eq!(stand.hub.domains[0].remotes.iter().flatten().map(|r| r.cursor).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_flow_that_no_word_is_said_of_again_goes_on_with_its_source() {
    let mut stand = Stand::new();
    stand.sink(1, [1; 16], 5, true);
    stand.say(&source(1, 4, 5));
    let _players = attached(&mut stand);
    goes_to(&mut stand, 1, 4, 1);
    // The same runtime, with a source that is closed and has messages left: those are not told of again.
    stand.peer.disconnect(stand.now);
    stand.connect();
    stand.pass(Duration::from_millis(10));
    assert_eq!((stand.hub.hosts[0].incoming.len(), stand.hub.hosts[0].requested.len()), (1, 0));
}

#[test]
fn what_waits_for_a_lost_frame_takes_as_much_memory_as_it_is_large_and_no_more_than_it_may() {
    for (most, lives) in [(16 << 20, true), (16 << 20, false), (6000, true)] {
        let mut stand = Stand::new();
        stand.sink(1, [1; 16], 5, true);
        stand.say(&source(1, 4, 5));
        let mut players = attached(&mut stand);
        goes_to(&mut stand, 1, 4, 1);
        stand.hub.domains[0].waiting.most = most;
        let (flow, all) = (stand.flows[0], 600);
        for n in 1..=all {
            stand.said.0.insert(n + 1000, vec![7; 8]);
            let next = Outgoing { token: n + 1000, sequence: n, len: 8, joined: 1, ..Outgoing::default() };
            stand.peer.send(flow, next).expect("room for what waits");
        }
        // The first frame is lost.
        stand.now += Duration::from_millis(1);
        stand.host_turn();
        assert!(stand.from_host.lock().unwrap().pop_front().is_some_and(|(_, frame)| frame.len() > MAX_FRAME / 2));
        while stand.hub.turn(stand.now) {}
        let held = |stand: &Stand| (stand.hub.hosts[0].kept.len() as u64, stand.hub.domains[0].waiting.bytes);
        let refused = |stand: &Stand| stand.hub.hosts[0].lanes.get(HOME).map_or(0, |lane| lane.path.stats().refused);
        let (messages, bytes) = held(&stand);
        assert_eq!(bytes, messages * (8 + 256));
        if most > 1 << 20 {
            assert!(messages > all / 2 && refused(&stand) == 0, "{messages}");
        } else {
            assert!((1..=most / 2).contains(&bytes) && refused(&stand) > 0, "{bytes}");
        }
        if !lives {
            stand.end();
            assert_eq!((held(&stand), stand.holds()), ((0, 0), Holds::default()));
            continue;
        }
        let mut took = 0;
        for _ in 0..200 {
            players.iter_mut().for_each(Player::read);
            took += players.iter_mut().map(Player::take).sum::<usize>() as u64;
            stand.pass(Duration::from_millis(10));
        }
        assert_eq!((took, given(&stand, 4), held(&stand)), (all, Some(all), (0, 0)));
        assert_eq!(stand.hub.domains[0].remotes.iter().flatten().map(|r| r.last).max(), Some(all));
    }
}

/// Its session was told, and is told when it gets what it asked for: not a second time in between, and also by another connection.
#[test]
fn a_refusal_is_known_until_the_sink_is_served_whatever_becomes_of_the_connection() {
    let mut stand = Stand::new();
    stand.sink(1, [1; 16], 5, true);
    let refuse = word(Body::Refused(wire::Refused { sink: vec![1; 16], reasons: vec!["none".into()] }));
    stand.say(&refuse);
    assert_eq!(stand.hub.hosts[0].refused.len(), 1);
    stand.restart();
    assert_eq!((stand.is_connected(), stand.hub.hosts[0].lost, stand.hub.hosts[0].refused.len()), (true, 1, 1));
    stand.say(&refuse);
    assert_eq!(stand.hub.hosts[0].refused.len(), 1);
    stand.say(&source(1, 4, 5));
    let _players = attached(&mut stand);
    goes_to(&mut stand, 1, 4, 1);
    assert_eq!(stand.hub.hosts[0].refused.len(), 0);
}

#[test]
fn messages_that_are_received_together_are_handed_on_as_they_were_sent() {
    // Each in a frame of its own; several in each; two in each, of parts.
    for (len, all) in [(1500, 12), (8, 400), (3000, 6)] {
        let mut stand = Stand::new();
        stand.sink(0, [1; 16], 5, true);
        stand.say(&source(0, 4, 5));
        let mut players = attached(&mut stand);
        goes_to(&mut stand, 0, 4, 1);
        let flow = stand.flows[0];
        for n in 1..=all {
            stand.said.0.insert(n + 1000, vec![7; len as usize]);
            let next = Outgoing { token: n + 1000, sequence: n, len, joined: 1, ..Outgoing::default() };
            stand.peer.send(flow, next).expect("room for what waits");
        }
        stand.now += Duration::from_millis(1);
        stand.host_turn();
        // One is lost, and the others come as the network pleases: a stranger's among them, and what is no frame.
        let frames = {
            let mut queue = stand.from_host.lock().unwrap();
            let frames = queue.len();
            assert!((6..15).contains(&frames), "{frames}");
            let stranger = (Address::Ip(STRANGER.into()), vec![1; 40]);
            let none = (queue[0].0, vec![1; 40]);
            queue.remove(4);
            queue.make_contiguous()[1..].reverse();
            queue.make_contiguous().rotate_left(2);
            queue.insert(3, stranger);
            queue.insert(6, none);
            frames
        };
        let free = stand.hub.ports[HOME].rx.free.len();
        assert!(stand.hub.ports[HOME].rx.limit > frames, "they are received together");
        while stand.hub.turn(stand.now) {}
        let stats = stand.hub.hosts[0].lanes.get(HOME).map(|lane| lane.path.stats()).unwrap();
        assert_eq!((stats.overtaken, stats.duplicates, stats.malformed, stand.strangers()), (0, 0, 1, 1), "{len}");
        assert_eq!((stand.hub.coming, stand.hub.ports[HOME].rx.free.len()), (0, free), "their slots are free again");
        for _ in 0..40 {
            players.iter_mut().for_each(Player::read);
            players[0].take();
            stand.pass(Duration::from_millis(50));
        }
        let seen = &players[0].seen;
        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
        let counts = stand.peer.counts(flow).unwrap();
        assert!(counts.balance() && counts.under_way == 0, "{counts:?}");
        assert_eq!((counts.delivered, counts.lost), (seen.len() as u64, all - seen.len() as u64));
        // No more than were in the lost frame.
        assert!((1..=all.div_ceil(frames as u64 - 1) + 1).contains(&counts.lost), "{counts:?}");
    }
}

#[test]
fn sources_of_which_nothing_comes_and_their_links_are_not_looked_at() {
    for number in [0, 1] {
        let mut stand = Stand::new();
        stand.sink(number, [1; 16], 5, true);
        stand.say(&source(number, 4, 5));
        let mut players = attached(&mut stand);
        goes_to(&mut stand, number, 4, 1);
        // Whoever is waited for at first has not come back by then.
        stand.pass(Duration::from_millis(stand.hub.settings.patience_ms + 100));
        let looked_at = |stand: &Stand, looker| stand.hub.domains[0].remotes.marked(looker).count();
        let all = |stand: &Stand| {
            let links = stand.hub.domains[0].outlets.marked(Looker::Links).count();
            (looked_at(stand, Looker::Links), looked_at(stand, Looker::Chores), links)
        };
        assert_eq!((all(&stand), stand.hub.reports_at()), ((0, 0, 0), None));
        let next = Outgoing { token: 1000, sequence: 1, joined: 1, ..Outgoing::default() };
        stand.peer.send(stand.flows[0], next).expect("room for what waits");
        stand.pass(Duration::from_millis(50));
        // As long as its sink has not counted it.
        assert_eq!((all(&stand).0, all(&stand).2, stand.hub.domains[0].is_awaited()), (1, 1, true));
        assert_eq!(players.iter_mut().map(Player::take).sum::<usize>(), 1);
        stand.heard.clear();
        stand.pass(Duration::from_millis(50));
        let reports = stand.heard.iter().filter(|said| {
            matches!(decode::<wire::ToHost>(said).unwrap().body, Some(Body::Report(report)) if report.delivered == 1)
        });
        assert_eq!(reports.count(), 1);
        assert_eq!((all(&stand), stand.hub.domains[0].is_awaited()), ((0, 0, 0), false));
        // It ends, and is forgotten.
        stand.peer.close(stand.flows[0]);
        for _ in 0..8 {
            players.iter_mut().for_each(Player::read);
            stand.pass(Duration::from_millis(50));
        }
        assert_eq!((all(&stand), stand.holds().sources), ((0, 0, 0), 0));
    }
}

#[test]
fn a_flow_of_a_domain_that_is_not_served_is_refused_and_counted_and_others_go_on() {
    let mut stand = Stand::new();
    stand.sink(0, [1; 16], 5, true);
    stand.say(&source(0, 4, 5));
    let mut players = attached(&mut stand);
    let foreign = |stand: &Stand| stand.hub.report()["hosts"][0]["foreign"].as_u64();
    let holds = stand.holds();
    // The source and channel are those of a sink that is attached, in its own domain.
    for n in 1..=6 {
        stand.open("elsewhere", u128::from_le_bytes([4; 16]), 5, n % 2 == 0);
        stand.give(stand.flows.len() - 1, b"foreign");
        stand.pass(Duration::from_millis(100));
        assert_eq!((foreign(&stand), stand.holds(), stand.strays()), (Some(n), holds, 0));
    }
    goes_to(&mut stand, 0, 4, 1);
    let token = stand.next_token + 1;
    (stand.next_token, _) = (token, stand.said.0.insert(token, b"own".to_vec()));
    let own = *stand.flows.last().expect("the last one opened");
    stand.peer.send(own, Outgoing { token, len: 3, sequence: 1, joined: 1, ..Outgoing::default() }).expect("room");
    stand.pass(Duration::from_millis(100));
    for player in &mut players {
        player.read();
        player.take();
    }
    assert_eq!((&players[0].seen[..], foreign(&stand), stand.strays()), (&[1][..], Some(6), 0));
}

#[test]
fn a_flow_that_is_not_what_its_source_was_announced_as_is_refused() {
    // Of a best-effort source and of a reliable one; opened before a sink is attached, and after.
    for (number, attaches_first) in [(0, false), (0, true), (1, false), (1, true)] {
        let mut stand = Stand::new();
        stand.sink(number, [1; 16], 5, true);
        stand.say(&source(number, 4, 5));
        let (epoch, is_reliable) = (u128::from_le_bytes([4; 16]), number % 2 == 1);
        let mut players = if attaches_first { attached(&mut stand) } else { Vec::new() };
        let ready = wire::Ready { epoch: vec![4; 16], sink: vec![1; 16], join: 1, answer: true };
        if attaches_first {
            stand.say(&word(Body::Ready(ready.clone())));
        }
        for wrong in 1..=3 {
            stand.open("default", epoch, 5, !is_reliable);
            let one = &stand.hub.hosts[0];
            assert_eq!(
                (one.incoming.len(), one.requested.len(), one.mismatched),
                (0, 0, wrong),
                "{number} {attaches_first}"
            );
        }
        assert_eq!(stand.hub.report()["hosts"][0]["mismatched"], 3);
        // They bring nothing, and the right one is taken.
        for flow in 0..3 {
            stand.give(flow, &[7; 8]);
        }
        stand.open("default", epoch, 5, is_reliable);
        if !attaches_first {
            players = attached(&mut stand);
            stand.say(&word(Body::Ready(ready)));
        }
        let right = stand.flows[3];
        stand.said.0.insert(1000, vec![7; 8]);
        let next = Outgoing { token: 1000, len: 8, sequence: 1, joined: 1, ..Outgoing::default() };
        stand.peer.send(right, next).expect("room for what waits");
        for _ in 0..20 {
            players.iter_mut().for_each(Player::read);
            let _: usize = players.iter_mut().map(Player::take).sum();
            stand.pass(Duration::from_millis(10));
        }
        let seen: Vec<_> = players.iter().flat_map(|player| player.seen.iter().copied()).collect();
        let one = &stand.hub.hosts[0];
        assert_eq!((seen, one.incoming.len(), one.mismatched), (vec![1], 1, 3), "{number} {attaches_first}");
    }
}

#[test]
fn words_come_over_a_reliable_flow_alone() {
    let mut stand = Stand::new();
    stand.greets = false;
    stand.incarnations += 1;
    stand.peer = Path::new(stand.peer_config, 70, stand.now);
    stand.control = None;
    for _ in 0..10 {
        stand.settle();
        stand.now += Duration::from_millis(50);
    }
    assert!(stand.is_connected());
    let control = stand.control.take().expect("it was opened");
    assert!(stand.hub.hosts[0].control_in.is_some());
    stand.peer.close(control);
    stand.pass(Duration::from_millis(100));
    assert_eq!((stand.hub.hosts[0].control_in, stand.strays()), (None, 0));
    let spec = FlowSpec { domain: CONTROL.0, epoch: 2, channel: CONTROL.1, reliable: false, first: 1 };
    stand.peer.open(spec);
    stand.pass(Duration::from_millis(100));
    assert_eq!((stand.hub.hosts[0].control_in, stand.strays()), (None, 1));
}
