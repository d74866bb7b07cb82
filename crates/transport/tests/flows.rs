//! Flows beside each other on an undisturbed path: turns, refusals, credit, deadlines.

mod sim;

use std::collections::VecDeque;
use std::time::Duration;

use insane_transport::{Config, End, Event, FlowSpec, Outgoing, Path, Payloads, SendError, Store};
use sim::{MS, Weather, World};

struct Nothing;

impl Payloads for Nothing {
    fn copy(&mut self, _token: u64, _offset: u32, len: u32, out: &mut Vec<u8>) {
        out.resize(out.len() + len as usize, 0);
    }
}

impl Store for Nothing {
    fn reserve(&mut self, _flow: u32, _bytes: u32, _urgent: bool) -> Option<u64> {
        None
    }
    fn fill(&mut self, _slot: u64, _at: u32, _bytes: &[u8]) {}
    fn hold(&mut self, _flow: u32, _bytes: &[u8]) -> Option<u64> {
        Some(0)
    }
    fn copy_out(&self, _slot: u64, _at: u32, _len: u32, _out: &mut Vec<u8>) {}
}

/// Two paths and what the second is told; every flow is accepted, or refused.
struct Pair {
    ends: [Path; 2],
    now: Duration,
    accept: bool,
    /// The flows of the messages that arrived, in order.
    arrived: Vec<u32>,
    told: Vec<Event>,
}

impl Pair {
    fn new(config: Config) -> Self {
        let now = MS * 10;
        let ends = [Path::new(config, 1, now), Path::new(config, 2, now)];
        Self { ends, now, accept: true, arrived: Vec::new(), told: Vec::new() }
    }

    /// Lets `frames` frames go each way at most, then a millisecond pass.
    fn step(&mut self, frames: usize) {
        self.exchange(frames);
        self.now += MS;
    }

    /// Lets `frames` frames go each way at most, all at once.
    fn exchange(&mut self, frames: usize) {
        for (from, to) in [(0, 1), (1, 0)] {
            for _ in 0..frames {
                let mut frame = Vec::new();
                let Some(built) = self.ends[from].transmit(self.now, &mut frame, &mut Nothing) else { break };
                frame.resize(built.len, 0);
                assert_eq!(self.ends[to].receive(self.now, &frame, 0, &mut Nothing).result, Ok(()));
                while let Some(event) = self.ends[to].event() {
                    match event {
                        Event::Requested { open, .. } if self.accept => self.ends[to].accept(open.flow, 0),
                        Event::Requested { open, .. } => self.ends[to].refuse(open.flow, 1),
                        Event::Message { flow, .. } => self.arrived.push(flow),
                        other => self.told.push(other),
                    }
                }
            }
        }
        while let Some(event) = self.ends[0].event() {
            self.told.push(event);
        }
    }

    /// Sends a message at once, if it can go so; whether that was done.
    fn at_once(&mut self, flow: u32, message: &Outgoing) -> bool {
        let (mut frame, before) = (vec![7], self.ends[0].counts(flow));
        let fill = |out: &mut Vec<u8>| out.resize(out.len() + message.len as usize, 9);
        let built = self.ends[0].send_at_once(self.now, flow, message, &mut frame, fill);
        match built {
            Some(len) => {
                assert_eq!(
                    self.ends[1].receive_alone(self.now, &frame[1..]).map(|row| (row.count, row.len)),
                    Some((1, message.len as usize))
                );
                assert_eq!(frame.len(), 1 + len);
            }
            None => assert_eq!((frame, self.ends[0].counts(flow)), (vec![7], before), "something was done"),
        }
        built.is_some()
    }

    /// What goes from the first to the second does not arrive.
    fn lose(&mut self) {
        let mut frame = Vec::new();
        while self.ends[0].transmit(self.now, &mut frame, &mut Nothing).is_some() {
            frame.clear();
        }
    }

    /// Whether the second end has heard of a flow's end, and the first what became of its messages: how many were lost.
    fn end_of(&self, flow: u32) -> (bool, Option<u64>) {
        let ended = self.told.iter().any(|event| matches!(event, Event::Ended { flow: one, .. } if *one == flow));
        let closed = self.told.iter().find_map(|event| match event {
            Event::Closed { flow: one, counts } if *one == flow => Some(counts.lost),
            _ => None,
        });
        (ended, closed)
    }

    fn open(&mut self, epoch: u128, reliable: bool) -> u32 {
        self.ends[0].open(FlowSpec { domain: 1, epoch, channel: 1, reliable, first: 1 })
    }
}

fn message(sequence: u64, len: u32) -> Outgoing {
    Outgoing { token: sequence, sequence, len, ..Outgoing::default() }
}

#[test]
fn a_busy_flow_lets_others_have_their_turn() {
    let mut pair = Pair::new(Config { dedicated: true, ..Config::default() });
    let (busy, quiet) = (pair.open(1, true), pair.open(2, true));
    (0..20).for_each(|_| pair.step(4));
    for sequence in 1..=4000 {
        assert_eq!(pair.ends[0].send(busy, message(sequence, 64)), Ok(()));
    }
    assert_eq!(pair.ends[0].send(quiet, message(1, 64)), Ok(()));
    pair.step(3);
    assert!(pair.arrived.contains(&quiet), "it waits behind {} messages", pair.arrived.len());
}

#[test]
fn a_refused_flow_costs_the_receiver_nothing() {
    let config = Config { flows: 4, ..Config::default() };
    let mut pair = Pair::new(config);
    pair.accept = false;
    for epoch in 1..100 {
        let flow = pair.open(epoch, true);
        (0..20).for_each(|_| pair.step(4));
        assert!(pair.told.contains(&Event::Refused { flow, status: 1 }), "flow {flow}");
        pair.ends[0].close(flow);
    }
}

/// Whenever a flow is closed on its way to being open: before its opening has left, while that is under way, before it was
/// answered, or while the answer is under way. In the end neither side has it.
#[test]
fn a_flow_that_is_closed_before_it_is_open_ends_at_both_ends() {
    for reliable in [false, true] {
        for frames in 0..12 {
            let mut pair = Pair::new(Config { flows: 1, ..Config::default() });
            (0..20).for_each(|_| pair.step(4));
            let flow = pair.open(1, reliable);
            let mut requested = false;
            let (mut late, mut left) = (Vec::new(), frames);
            // One frame at a time, the last of them held back until everything is over.
            for (from, to) in [(0, 1), (1, 0)].into_iter().cycle().take(frames + 1) {
                let mut frame = Vec::new();
                let Some(built) = pair.ends[from].transmit(pair.now, &mut frame, &mut Nothing) else { continue };
                frame.resize(built.len, 0);
                left = left.saturating_sub(1);
                if left == 0 {
                    late.push((to, frame));
                    break;
                }
                assert_eq!(pair.ends[to].receive(pair.now, &frame, 0, &mut Nothing).result, Ok(()));
                while let Some(event) = pair.ends[1].event() {
                    if let Event::Requested { open, .. } = event {
                        requested = true;
                        pair.ends[1].accept(open.flow, 0);
                    }
                }
            }
            pair.ends[0].close(flow);
            (0..200).for_each(|_| pair.step(4));
            for (to, frame) in late {
                let _ = pair.ends[to].receive(pair.now, &frame, 0, &mut Nothing);
            }
            (0..200).for_each(|_| pair.step(4));
            let count = |is_it: fn(&Event) -> bool| pair.told.iter().filter(|e| is_it(e)).count();
            let (ended, closed) =
                (count(|e| matches!(e, Event::Ended { .. })), count(|e| matches!(e, Event::Closed { .. })));
            assert_eq!(closed, 1, "{reliable} after {frames} frames");
            assert!(ended >= usize::from(requested), "{reliable} after {frames} frames: {:?}", pair.told);
            // Where there is room for one there is room for the next.
            let next = pair.open(2, reliable);
            (0..200).for_each(|_| pair.step(4));
            assert!(
                pair.told.contains(&Event::Accepted { flow: next }),
                "{reliable} after {frames} frames: one end still has it"
            );
        }
    }
}

/// What comes after a flow, such as the same source's over another path, waits for its end.
#[test]
fn a_flow_that_has_brought_everything_ends_without_any_time_passing() {
    for (reliable, loses) in [(false, false), (true, false), (false, true)] {
        let mut pair = Pair::new(Config { dedicated: true, ..Config::default() });
        let flow = pair.open(1, reliable);
        (0..20).for_each(|_| pair.step(4));
        for sequence in 1..=10 {
            assert_eq!(pair.ends[0].send(flow, message(sequence, 64)), Ok(()));
        }
        if reliable {
            // It goes on until the sinks are known to have everything.
            pair.step(100);
            pair.ends[1].consumed(flow, 10, 640);
            pair.ends[1].advance(flow, 10);
            (0..20).for_each(|_| pair.step(4));
        }
        if loses {
            pair.lose();
        }
        pair.ends[0].close(flow);
        (0..4).for_each(|_| pair.exchange(100));
        assert_eq!(pair.arrived.len(), if loses { 0 } else { 10 });
        assert_eq!(pair.end_of(flow), if loses { (false, None) } else { (true, Some(0)) }, "reliable: {reliable}");
        (0..400).for_each(|_| pair.step(4));
        assert_eq!(pair.end_of(flow), (true, Some(if loses { 10 } else { 0 })), "reliable: {reliable}");
    }
}

#[test]
fn without_credit_nothing_goes_and_nothing_is_lost() {
    let mut pair = Pair::new(Config { credit_messages: 5, queue_messages: 20, ..Config::default() });
    let flow = pair.open(1, true);
    for sequence in 1..=20 {
        assert_eq!(pair.ends[0].send(flow, message(sequence, 10)), Ok(()));
    }
    assert_eq!(pair.ends[0].send(flow, message(21, 10)), Err(SendError::Full));
    (0..100).for_each(|_| pair.step(4));
    assert_eq!(pair.arrived.len(), 5);
    pair.ends[1].consumed(flow, 3, 30);
    (0..100).for_each(|_| pair.step(4));
    assert_eq!(pair.arrived.len(), 8);
    let counts = pair.ends[0].counts(flow).unwrap();
    assert_eq!((counts.waiting, counts.under_way, counts.delivered), (12, 8, 0));
    // What the sinks have is the sender's again.
    pair.ends[1].consumed(flow, 3, 30);
    pair.ends[1].advance(flow, 6);
    (0..100).for_each(|_| pair.step(4));
    let released = |event: &&Event| matches!(event, Event::Released { end: End::Delivered, .. });
    assert_eq!(pair.told.iter().filter(released).count(), 6);
}

#[test]
fn a_message_past_its_deadline_is_not_sent() {
    let mut pair = Pair::new(Config::default());
    let flow = pair.open(1, false);
    let late = Outgoing { deadline: Some(pair.now), ..message(1, 10) };
    assert_eq!(pair.ends[0].send(flow, late), Ok(()));
    assert_eq!(pair.ends[0].send(flow, message(2, 10)), Ok(()));
    (0..200).for_each(|_| pair.step(4));
    let counts = pair.ends[0].counts(flow).unwrap();
    assert_eq!((pair.arrived.len(), counts.expired, counts.delivered, counts.under_way), (1, 1, 1, 0));
    assert!(pair.told.contains(&Event::Released { flow, token: 1, end: End::Expired }));
}

#[test]
fn who_was_held_up_itself_drops_nothing_before_it_has_listened() {
    let mut pair = Pair::new(Config { silence: MS * 10_000, ..Config::default() });
    let flow = pair.open(1, false);
    (0..20).for_each(|_| pair.step(4));
    assert_eq!(pair.ends[0].send(flow, message(1, 1000)), Ok(()));
    pair.step(4);
    // The thread gets no core; what the peer has said meanwhile is read after what waits was looked at.
    pair.now += MS * 700;
    for sequence in 2..=300 {
        assert_eq!(pair.ends[0].send(flow, message(sequence, 1000)), Ok(()));
    }
    (0..2000).for_each(|_| pair.step(4));
    let counts = pair.ends[0].counts(flow).unwrap();
    assert!(counts.balance() && (counts.delivered, counts.dropped) == (300, 0), "{counts:?}");
}

#[test]
fn while_nothing_comes_best_effort_messages_do_not_grow_old() {
    for (stale, kept) in [(500, 0), (0, 400)] {
        let mut pair = Pair::new(Config { stale: MS * stale, silence: MS * 10_000, ..Config::default() });
        let (best, reliable) = (pair.open(1, false), pair.open(2, true));
        (0..20).for_each(|_| pair.step(4));
        // The link is cut: what is sent goes nowhere.
        let cut = |pair: &mut Pair, millis: u32| {
            for _ in 0..millis {
                while pair.ends[0].transmit(pair.now, &mut Vec::new(), &mut Nothing).is_some() {}
                pair.now += MS;
            }
        };
        for sequence in 1..=500 {
            assert_eq!(pair.ends[0].send(best, message(sequence, 1000)), Ok(()));
        }
        assert_eq!(pair.ends[0].send(reliable, message(1, 1000)), Ok(()));
        cut(&mut pair, 400);
        let early = pair.ends[0].counts(best).unwrap();
        assert!(early.waiting >= 400 && early.balance(), "they wait for an answer: {early:?}");
        cut(&mut pair, 200);
        let counts = pair.ends[0].counts(best).unwrap();
        assert!(counts.balance() && counts.waiting.min(400) == kept, "{counts:?}");
        assert!(kept > 0 || counts.lost >= early.waiting, "{counts:?}");
        // Mended: what is emitted then arrives at once, and of the old ones what was under way at most.
        pair.ends[1].on_time(pair.now);
        (0..20).for_each(|_| pair.step(50));
        assert_eq!(pair.ends[0].send(best, message(501, 1000)), Ok(()));
        (0..2000).for_each(|_| pair.step(50));
        let dropped = |event: &&Event| matches!(event, Event::Released { end: End::Dropped, .. });
        let late = pair.arrived.iter().filter(|flow| **flow == best).count();
        assert_eq!(pair.told.iter().filter(dropped).count() as u64, early.waiting * u64::from(kept == 0));
        assert!(late >= 1 && (late < 100) == (kept == 0), "{late} came");
        assert_eq!(pair.arrived.iter().filter(|flow| **flow == reliable).count(), 1, "reliable ones wait");
        let counts = pair.ends[0].counts(best).unwrap();
        assert!(counts.balance() && (counts.waiting, counts.under_way) == (0, 0), "{counts:?}");
    }
}

#[test]
fn an_abandoned_flow_gives_everything_back() {
    let mut world = World::new(Config::default(), 3, Weather::default());
    world.hosts[0].source(1, 7, true, VecDeque::from(vec![100; 60]));
    world.hosts[1].sink(1, true);
    world.hosts[1].stalled = true;
    world.hosts[0].reopen(0);
    let later = world.now + MS * 500;
    world.run(later + MS * 10, |world| world.now >= later);
    let flow = world.hosts[0].flow_of(0).unwrap();
    world.hosts[0].path.abandon(flow);
    let limit = world.now + MS * 2000;
    world.run(limit, |world| world.hosts[0].flow_of(0).is_none());
    assert_eq!(world.hosts[0].sources[0].ends.get(&End::Unconfirmed), Some(&60));
}

/// What a reliable flow was given and the sinks are not known to have can be given to another one; a best-effort flow has no such.
#[test]
fn what_is_taken_back_can_be_given_to_another_flow() {
    let given: Vec<u64> = (1..=20).collect();
    let sequences = |back: &[Outgoing]| back.iter().map(|message| message.sequence).collect::<Vec<u64>>();
    let mut pair = Pair::new(Config::default());
    let flow = pair.open(1, true);
    given.iter().for_each(|sequence| pair.ends[0].send(flow, message(*sequence, 900)).unwrap());
    (0..100).for_each(|_| pair.step(4));
    // All have arrived; the sinks have said so of three.
    assert_eq!(pair.arrived.len(), 20);
    pair.ends[1].consumed(flow, 3, 3 * 900);
    pair.ends[1].advance(flow, 3);
    (0..100).for_each(|_| pair.step(4));
    pair.told.clear();
    let back = pair.ends[0].take_back(flow);
    assert_eq!(sequences(&back), given[3..]);
    let again = pair.open(2, true);
    back.into_iter().for_each(|message| pair.ends[0].send(again, message).unwrap());
    (0..100).for_each(|_| pair.step(4));
    assert_eq!(pair.arrived.len(), 20 + 17);
    assert!(pair.told.iter().any(|event| matches!(event, Event::Closed { flow: ended, .. } if *ended == flow)));
    assert!(
        !pair.told.iter().any(|event| matches!(event, Event::Released { .. })),
        "it is under way again, not released"
    );
    // Without a connection the flow ends at once.
    let mut pair = Pair::new(Config::default());
    let flow = pair.open(1, true);
    given.iter().for_each(|sequence| pair.ends[0].send(flow, message(*sequence, 900)).unwrap());
    assert_eq!(sequences(&pair.ends[0].take_back(flow)), given);
    assert!(matches!(pair.ends[0].event(), Some(Event::Closed { flow: ended, .. }) if ended == flow));
    let flow = pair.open(2, false);
    pair.ends[0].send(flow, message(1, 900)).unwrap();
    assert!(pair.ends[0].take_back(flow).is_empty());
}

/// Who takes a connection for lost gets another one, and its flows go on.
#[test]
fn a_connection_that_is_given_up_is_sought_anew() {
    let mut world = World::new(Config::default(), 5, Weather::default());
    world.hosts[0].source(1, 7, true, VecDeque::from(vec![100; 60]));
    world.hosts[1].sink(1, true);
    world.hosts[0].reopen(0);
    let first = world.now + MS * 50;
    world.run(first + MS, |world| world.now >= first);
    assert!(world.hosts[0].path.is_connected());
    let connections = world.hosts[0].path.stats().connections;
    let now = world.now;
    world.hosts[0].path.disconnect(now);
    assert!(!world.hosts[0].path.is_connected());
    let limit = world.now + MS * 2000;
    world.run(limit, |world| world.hosts[0].path.is_connected());
    assert_eq!(world.hosts[0].path.stats().connections, connections + 1);
}

/// Questions and answers: what is said beside them goes with them. Once it is quiet all of it was said.
#[test]
fn a_question_and_its_answer_are_a_frame_each() {
    for reliable in [false, true] {
        let config = Config { dedicated: true, ..Config::default() };
        let mut now = MS * 10;
        let mut ends = [Path::new(config, 1, now), Path::new(config, 2, now)];
        let flows =
            [0, 1].map(|end: usize| ends[end].open(FlowSpec { domain: 1, epoch: 1, channel: 1, reliable, first: 1 }));
        // Everything that there is to send goes from one end to the other; how many messages that was.
        let go = |ends: &mut [Path; 2], from: usize, now: Duration| {
            let mut messages = 0;
            let mut frame = Vec::new();
            while let Some(built) = ends[from].transmit(now, &mut frame, &mut Nothing) {
                frame.resize(built.len, 0);
                assert_eq!(ends[1 - from].receive(now, &frame, 0, &mut Nothing).result, Ok(()));
                frame.clear();
            }
            while let Some(event) = ends[1 - from].event() {
                match event {
                    Event::Requested { open, .. } => ends[1 - from].accept(open.flow, 0),
                    Event::Message { flow, message, .. } => {
                        messages += 1;
                        ends[1 - from].consumed(flow, 1, 64);
                        ends[1 - from].advance(flow, u64::from(message.index) + 1);
                    }
                    _ => {}
                }
            }
            messages
        };
        for turn in 0..40 {
            go(&mut ends, turn % 2, now);
            now += MS;
        }
        let before = ends.each_ref().map(|end| end.stats().sent_frames);
        const ROUNDS: u64 = 1000;
        for sequence in 1..=ROUNDS {
            for end in 0..2 {
                assert_eq!(ends[end].send(flows[end], message(sequence, 64)), Ok(()));
                assert_eq!(go(&mut ends, end, now), 1);
                now += Duration::from_micros(10);
            }
        }
        for end in 0..2 {
            let frames = ends[end].stats().sent_frames - before[end];
            assert!((ROUNDS..=ROUNDS + ROUNDS / 20).contains(&frames), "{frames} frames, reliable: {reliable}");
        }
        for turn in 0..8 {
            go(&mut ends, turn % 2, now);
            now += MS;
        }
        for end in 0..2 {
            let counts = ends[end].counts(flows[end]).unwrap();
            assert_eq!((counts.delivered, counts.under_way), (ROUNDS, 0), "reliable: {reliable}");
        }
    }
}

/// Of a reliable flow nothing is lost when frames become too small for the messages of a bundle: those go in parts.
#[test]
fn bundles_whose_messages_no_longer_fit_a_frame_are_cut() {
    let mut frames = 0;
    for after in 0..40 {
        let config = Config { frame_limit: 1472, dedicated: true, ..Config::default() };
        let mut world = World::new(config, 3 + after, Weather { lose: after % 4, ..Weather::default() });
        world.hosts[0].source(1, 7, true, VecDeque::from(vec![1400; 400]));
        world.hosts[1].sink(1, true);
        world.hosts[0].reopen(0);
        world.run(MS * 1000, |world| world.hosts[0].longest_bundled == 1400);
        (0..after).for_each(|_| world.step());
        assert!(!world.hosts[0].idle(), "it is over before frames become smaller");
        world.hosts[0].resize(512);
        world.run(MS * 60_000, |world| world.hosts.iter().all(sim::Host::idle));
        assert_eq!(world.hosts[1].sinks[&1].seen, (1..=400).collect::<Vec<_>>());
        assert_eq!(world.hosts[0].sources[0].ends, [(End::Delivered, 400)].into());
        frames += world.hosts[1].path.stats().received_frames;
    }
    assert!(
        frames > 2 * 40 * 400,
        "{frames}: a message of 1400 bytes takes four frames of 512, and most came after that"
    );
}

#[test]
fn a_message_goes_at_once_only_if_nothing_goes_before_it_or_with_it() {
    let config = Config { dedicated: true, copy_bytes: 900, credit_messages: 40, ..Config::default() };
    let mut pair = Pair::new(config);
    let [best, other, reliable] = [(7, false), (8, false), (9, true)]
        .map(|(epoch, reliable)| pair.ends[0].open(FlowSpec { domain: 1, epoch, channel: 3, reliable, first: 1 }));
    assert!(!pair.at_once(best, &message(1, 10)), "there is no connection");
    (0..20).for_each(|_| pair.step(100));
    let plain = message(1, 10);
    assert!(!pair.at_once(reliable, &plain), "it may have to be sent again");
    assert!(!pair.at_once(99, &plain), "there is no such flow");
    assert!(!pair.at_once(best, &message(1, 901)), "it is not for copying");
    let deadline = Some(pair.now + MS);
    for odd in [
        Outgoing { bundle: 1, ..plain },
        Outgoing { deadline, ..plain },
        Outgoing { timestamp_ns: 1, ..plain },
        Outgoing { launch_ns: 1, ..plain },
    ] {
        assert!(!pair.at_once(best, &odd), "{odd:?}");
    }
    assert!(pair.at_once(best, &plain));
    // Another's message waits, then one of its own: it may neither overtake nor be sent with the other.
    assert_eq!(pair.ends[0].send(other, message(1, 10)), Ok(()));
    assert!(!pair.at_once(best, &message(2, 10)), "it is another's turn");
    (0..20).for_each(|_| pair.step(100));
    assert!(pair.at_once(best, &message(2, 10)));
    assert_eq!(pair.ends[0].send(best, message(3, 10)), Ok(()));
    assert!(!pair.at_once(best, &message(4, 10)), "one of its own waits");
    (0..20).for_each(|_| pair.step(100));
    // Credit is used up by what nobody has consumed.
    let sent = (4..100).take_while(|sequence| pair.at_once(best, &message(*sequence, 10))).count();
    assert_eq!(sent, 40 - 3);
    let counts = pair.ends[0].counts(best).unwrap();
    assert!(counts.balance() && counts.accepted == 40, "{counts:?}");
    assert_eq!((counts.waiting, counts.under_way + counts.delivered), (0, 40), "{counts:?}");
    // What is to be said goes first; so does what closes the flow.
    pair.ends[0].close(best);
    assert!(!pair.at_once(best, &message(41, 10)), "it is closed");
    (0..200).for_each(|_| pair.step(100));
    assert_eq!(pair.ends[0].counts(best), None);
    let closed = pair.told.iter().find_map(|event| match event {
        Event::Closed { flow, counts } if *flow == best => Some(*counts),
        _ => None,
    });
    assert_eq!(closed.map(|counts| (counts.accepted, counts.delivered)), Some((40, 40)));
}

#[test]
fn a_path_that_rests_says_when_it_does_not() {
    [false, true].into_iter().for_each(looks_when_it_does_not_rest);
}

/// Sends 50 messages, past the queues with `alone`, and looks at a path only when it does not rest.
fn looks_when_it_does_not_rest(alone: bool) {
    let mut pair = Pair::new(Config::default());
    (0..20).for_each(|_| pair.step(100));
    let flow = pair.ends[0].open(FlowSpec { domain: 1, epoch: 7, channel: 3, reliable: false, first: 1 });
    (0..20).for_each(|_| pair.step(100));
    // Whoever looks at it only when it does not rest, or at the time it says, misses nothing: here for the answers to what it sends.
    let (mut looks, mut frames) = (0, 0);
    for sequence in 1..=50 {
        let one = message(sequence, 64);
        if alone {
            let (now, mut frame) = (pair.now, Vec::new());
            assert!(
                pair.ends[0].send_at_once(now, flow, &one, &mut frame, |out| out.resize(out.len() + 64, 7)).is_some()
            );
            let row = pair.ends[1].receive_alone(now, &frame).unwrap();
            assert_eq!((row.len, row.message.sequence), (64, sequence));
            pair.ends[1].consumed(row.flow, 1, 64);
            frames += 1;
        } else {
            assert_eq!(pair.ends[0].send(flow, one), Ok(()));
        }
        for _ in 0..1000 {
            pair.now += Duration::from_micros(20);
            for (from, to) in [(0, 1), (1, 0)] {
                if pair.ends[from].rests(pair.now) {
                    assert_eq!(pair.ends[from].transmit(pair.now, &mut Vec::new(), &mut Nothing), None);
                    continue;
                }
                looks += 1;
                let mut frame = Vec::new();
                while let Some(built) = pair.ends[from].transmit(pair.now, &mut frame, &mut Nothing) {
                    frames += 1;
                    frame.resize(built.len, 0);
                    assert_eq!(pair.ends[to].receive(pair.now, &frame, 0, &mut Nothing).result, Ok(()));
                    while let Some(event) = pair.ends[to].event() {
                        if let Event::Message { flow, .. } = event {
                            pair.ends[to].consumed(flow, 1, 64);
                        }
                    }
                    frame.clear();
                }
            }
        }
        while pair.ends[0].event().is_some() {}
    }
    let counts = pair.ends[0].counts(flow).unwrap();
    assert_eq!((counts.delivered, counts.under_way), (50, 0), "{counts:?}");
    assert_eq!(pair.ends[0].stats().lost_frames + pair.ends[0].stats().probes, 0);
    assert!(frames >= 100 && looks < 20_000, "{frames} frames in {looks} looks of 100,000");
}

/// The network lets one frame overtake another: what nobody has taken yet is put in order, and what comes after a later one was taken
/// counts as lost. Each message has a frame of its own.
#[test]
fn best_effort_messages_stay_in_order_though_frames_do_not() {
    let len = 1000;
    let mut pair = Pair::new(Config { dedicated: true, ..Config::default() });
    pair.step(10);
    let flow = pair.open(1, false);
    pair.step(10);
    let mut sequences = Vec::new();
    let mut sent = |pair: &mut Pair, count: usize| -> Vec<Vec<u8>> {
        let frames = (0..count).map(|_| {
            sequences.push(());
            assert_eq!(pair.ends[0].send(flow, message(sequences.len() as u64, len)), Ok(()));
            let mut frame = Vec::new();
            let built = pair.ends[0].transmit(pair.now, &mut frame, &mut Nothing).expect("a frame");
            frame.resize(built.len, 0);
            frame
        });
        frames.collect()
    };
    let come = |pair: &mut Pair, frames: &[Vec<u8>], order: &[usize]| {
        for at in order {
            assert_eq!(pair.ends[1].receive(pair.now, &frames[*at], *at as u64, &mut Nothing).result, Ok(()));
        }
        let mut came = Vec::new();
        while let Some(event) = pair.ends[1].event() {
            match event {
                Event::Message { message, .. } => came.push(message.sequence),
                other => pair.told.push(other),
            }
        }
        came
    };
    let frames = sent(&mut pair, 4);
    assert_eq!(come(&mut pair, &frames, &[2, 0, 3, 1]), [1, 2, 3, 4], "they came together");
    let frames = sent(&mut pair, 3);
    assert_eq!(come(&mut pair, &frames, &[0, 2]), [5, 7]);
    assert_eq!(come(&mut pair, &frames, &[1]), [0; 0], "7 was taken");
    assert_eq!(pair.ends[1].stats().overtaken, 1);
    let frames = sent(&mut pair, 1);
    assert_eq!(come(&mut pair, &frames, &[0]), [8]);
    pair.ends[0].close(flow);
    for _ in 0..500 {
        pair.step(10);
    }
    assert_eq!(pair.end_of(flow), (true, Some(1)), "{:?}", pair.told);
}
