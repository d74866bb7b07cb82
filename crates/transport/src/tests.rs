//! What takes a connection's inside to be seen: numbers that a connection comes to only after very long, and what is kept of a peer.

use std::collections::BTreeMap;
use std::time::Duration;

use insane_wire::frame::control::{Close, FlowOpen, Hello};
use insane_wire::frame::record::{Message, Part};
use insane_wire::frame::{FrameBuilder, FrameError, Header, MAX_COUNTER, SEALED};

use crate::config::{Config, FlowSpec, Outgoing};
use crate::path::{End, Event, Lies, Path, Rejected, Store};
use crate::payloads::Payloads;

mod headers;
mod shares;

const MS: Duration = Duration::from_millis(1);

struct Nothing;

impl Payloads for Nothing {
    fn copy(&mut self, _token: u64, _offset: u32, len: u32, out: &mut Vec<u8>) {
        out.resize(out.len() + len as usize, 0);
    }
}

impl Store for Nothing {
    fn reserve(&mut self, _flow: u32, _bytes: u32, _urgent: bool) -> Option<u64> {
        Some(1)
    }
    fn fill(&mut self, _slot: u64, _at: u32, _bytes: &[u8]) {}
    fn hold(&mut self, _flow: u32, _bytes: &[u8]) -> Option<u64> {
        Some(0)
    }
    fn copy_out(&self, _slot: u64, _at: u32, _len: u32, _out: &mut Vec<u8>) {}
}

/// Two paths that are connected; the second accepts every flow.
struct Pair {
    ends: [Path; 2],
    now: Duration,
    told: Vec<Event>,
}

impl Pair {
    fn new(config: Config) -> Self {
        let mut pair = Self::apart(config);
        (0..20).for_each(|_| pair.step());
        assert!(pair.ends.iter().all(Path::is_connected));
        pair
    }

    fn apart(config: Config) -> Self {
        let now = MS * 10;
        Self { ends: [Path::new(config, 1, now), Path::new(config, 2, now)], now, told: Vec::new() }
    }

    /// Everything that one end has to send now.
    fn frames(&mut self, from: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut frame = Vec::new();
        while let Some(built) = self.ends[from].transmit(self.now, &mut frame, &mut Nothing) {
            frame.resize(built.len, 0);
            frames.push(core::mem::take(&mut frame));
        }
        frames
    }

    fn arrive(&mut self, to: usize, frame: &[u8]) {
        assert_eq!(self.ends[to].receive(self.now, frame, 0, &mut Nothing).result, Ok(()));
        self.events();
    }

    fn events(&mut self) {
        for end in &mut self.ends {
            while let Some(event) = end.event() {
                if let Event::Requested { open, .. } = event {
                    end.accept(open.flow, 0);
                }
                self.told.push(event);
            }
        }
    }

    /// Everything goes each way, then a millisecond passes.
    fn step(&mut self) {
        for (from, to) in [(0, 1), (1, 0)] {
            for frame in self.frames(from) {
                self.arrive(to, &frame);
            }
        }
        self.events();
        self.now += MS;
    }

    /// A frame of the first end with records that it would not write.
    fn by_hand(&mut self, write: impl FnOnce(&mut FrameBuilder<'_>)) -> Vec<u8> {
        let (mut bytes, end) = (Vec::new(), &mut self.ends[0]);
        let connection = end.peer.map_or(0, |peer| peer.send);
        let header = Header { domain: 1, connection, counter: end.counter, ..Header::default() };
        end.counter = end.counter.wrapping_add(1);
        let mut frame = FrameBuilder::new(&mut bytes, header, 65_528);
        write(&mut frame);
        frame.finish();
        bytes
    }

    fn open(&mut self, epoch: u128, reliable: bool) -> u32 {
        self.ends[0].open(FlowSpec { domain: 1, epoch, channel: 1, reliable, first: 1 })
    }

    fn send(&mut self, flow: u32, sequence: u64) {
        self.send_of(flow, sequence, 64);
    }

    fn send_of(&mut self, flow: u32, sequence: u64, len: u32) {
        let message = Outgoing { token: sequence, sequence, len, ..Outgoing::default() };
        assert_eq!(self.ends[0].send(flow, message), Ok(()));
    }
}

#[test]
fn after_four_thousand_million_frames_those_that_come_are_still_acknowledged() {
    let mut pair = Pair::new(Config::default());
    let flow = pair.open(1, false);
    (0..20).for_each(|_| pair.step());
    // As if all of them had come, without a gap.
    let most = u64::from(u32::MAX);
    pair.ends[1].seen.goes_on(most - pair.ends[1].seen.largest());
    pair.ends[0].counter = most + 1;
    for sequence in 1..=2 {
        pair.send(flow, sequence);
        for frame in pair.frames(0) {
            pair.arrive(1, &frame);
        }
    }
    assert_eq!(pair.ends[1].seen.runs().next(), Some((1, most + 2)));
    pair.now += MS;
    for frame in pair.frames(1) {
        pair.arrive(0, &frame);
    }
    assert_eq!(pair.ends[0].largest_acked, most + 2);
    assert!(pair.ends[1].timeout().is_some_and(|at| at > pair.now), "it is looked after without a pause");
    assert_eq!(pair.ends[0].stats().in_flight, 0);
}

/// However many flows end at once, each is told what became of its messages, also if that is lost on the way.
#[test]
fn flows_that_are_closed_together_all_end_with_their_accounts() {
    const FLOWS: u32 = 2000;
    for loses in [false, true] {
        let mut pair = Pair::new(Config { flows: 4096, ..Config::default() });
        let flows: Vec<u32> = (1..=FLOWS).map(|epoch| pair.open(epoch.into(), epoch % 2 == 0)).collect();
        (0..100).for_each(|_| pair.step());
        // Of the others nothing is under way: they have carried nothing.
        flows.iter().step_by(2).for_each(|flow| pair.send(*flow, 1));
        (0..100).for_each(|_| pair.step());
        flows.iter().for_each(|flow| pair.ends[0].close(*flow));
        for frame in pair.frames(0) {
            pair.arrive(1, &frame);
        }
        let ended = |event: &&Event| matches!(event, Event::Ended { .. });
        assert_eq!(pair.told.iter().filter(ended).count(), FLOWS as usize);
        let answers = pair.frames(1);
        for frame in answers.iter().skip(usize::from(loses)) {
            pair.arrive(0, frame);
        }
        (0..2000).for_each(|_| pair.step());
        let delivered = |event: &Event| match event {
            Event::Closed { counts, .. } => Some(counts.delivered),
            _ => None,
        };
        let delivered: Vec<u64> = pair.told.iter().filter_map(delivered).collect();
        assert_eq!((delivered.len(), delivered.iter().sum()), (FLOWS as usize, u64::from(FLOWS / 2)), "{loses}");
        assert!(pair.ends.iter().all(|end| end.out.is_empty() && end.incoming.is_empty()));
        assert!(pair.ends[1].ended.is_empty(), "it is kept though the peer has it");
    }
}

/// A link of 10 ms each way that is cut for half a second, or for one: a second later at least half as much is under way as before.
#[test]
fn after_a_cut_link_is_mended_the_window_opens_again() {
    for cut in [500, 1000] {
        let windows = windows_around_a_cut(cut);
        assert!(windows[0] > 400 * 1472, "{windows:?}");
        assert!(windows[1] >= windows[0] / 2, "{windows:?}");
    }
}

/// How much may be under way when the link is cut for so many milliseconds, and a second after it is mended.
fn windows_around_a_cut(cut_ms: u32) -> Vec<u64> {
    let mut pair = Pair::apart(Config { credit_bytes: 1 << 20, ..Config::default() });
    let flow = pair.open(1, true);
    let start = pair.now;
    let (mut wire, mut sequence, mut windows) = (std::collections::VecDeque::new(), 0, Vec::new());
    let (from_ms, to_ms) = (1000, 1000 + cut_ms);
    for half_ms in 0..=2 * (to_ms + 1000) {
        let cut = (from_ms..to_ms).contains(&(half_ms / 2));
        if half_ms == from_ms * 2 || half_ms == (to_ms + 1000) * 2 {
            windows.push(pair.ends[0].stats().window);
        }
        while pair.ends[0].waiting(flow) < 1000 {
            sequence += 1;
            pair.ends[0].send(flow, Outgoing { sequence, len: 1400, ..Outgoing::default() }).unwrap();
        }
        for from in 0..2 {
            let frames = pair.frames(from);
            wire.extend(frames.into_iter().filter(|_| !cut).map(|frame| (pair.now + MS * 10, 1 - from, frame)));
        }
        pair.now = start + MS * half_ms / 2;
        while wire.front().is_some_and(|(at, ..)| *at <= pair.now) {
            let (_, to, frame) = wire.pop_front().unwrap();
            assert_eq!(pair.ends[to].receive(pair.now, &frame, 0, &mut Nothing).result, Ok(()));
        }
        pair.ends[0].events.clear();
        while let Some(event) = pair.ends[1].event() {
            match event {
                Event::Requested { open, .. } => pair.ends[1].accept(open.flow, 0),
                Event::Message { message, .. } => {
                    pair.ends[1].consumed(flow, 1, 1400);
                    pair.ends[1].advance(flow, message.sequence);
                }
                _ => {}
            }
        }
    }
    windows
}

/// What the sinks have from an earlier flow or connection comes again, and their cursor may cover it when only a part of it has come, or
/// what carried it was lost. The peer waits for all of it before it hands on what follows.
#[test]
fn what_the_cursor_covers_before_it_has_come_is_brought_all_the_same() {
    // How long the message is, how many of its frames go before it is covered, and which of them is lost. The user may give credit of
    // before, too.
    for ((len, go, lost), early) in
        [(5000, 1, 9), (5000, 9, 1), (64, 9, 0)].into_iter().flat_map(|of| [(of, 0), (of, 5)])
    {
        let mut pair = Pair::new(Config::default());
        let flow = pair.open(1, true);
        (0..20).for_each(|_| pair.step());
        pair.ends[1].consumed(flow, early, 0);
        let one = |sequence, len| Outgoing { token: sequence, sequence, len, ..Outgoing::default() };
        pair.ends[0].send(flow, one(1, len)).unwrap();
        for n in 0..go {
            let mut frame = Vec::new();
            let Some(built) = pair.ends[0].transmit(pair.now, &mut frame, &mut Nothing) else { break };
            frame.resize(built.len, 0);
            if n != lost {
                pair.arrive(1, &frame);
            }
        }
        pair.ends[1].advance(flow, 1);
        let credit = pair.frames(1);
        assert!(!credit.is_empty());
        credit.iter().for_each(|frame| pair.arrive(0, frame));
        pair.told.clear();
        pair.ends[0].send(flow, one(2, 64)).unwrap();
        let (mut came, mut released) = (Vec::new(), Vec::new());
        for _ in 0..1000 {
            pair.step();
            for event in core::mem::take(&mut pair.told) {
                match event {
                    Event::Message { message, lies, .. } => {
                        came.push(message.sequence);
                        pair.ends[1].consumed(flow, 1, lies.bytes());
                        pair.ends[1].advance(flow, message.sequence);
                    }
                    Event::Released { token, end, .. } => released.push((token, end)),
                    _ => {}
                }
            }
        }
        let case = format!("{len} bytes, {go} frames, without number {lost}, {early} before");
        assert_eq!(came, [1, 2], "{case}");
        assert_eq!(released, [(1, End::Delivered), (2, End::Delivered)], "{case}");
    }
}

/// What is given up is not sent again, nor the rest of what went in part: the peer waits for neither, though it was told of it.
#[test]
fn a_reliable_flow_that_is_given_up_ends_at_both_ends_though_some_of_it_was_lost() {
    for (len, lost) in [(64, 0), (5000, 1)] {
        let mut pair = Pair::new(Config::default());
        let flow = pair.open(1, true);
        (0..20).for_each(|_| pair.step());
        (1..=3).for_each(|sequence| pair.send_of(flow, sequence, len));
        let mut frame = Vec::new();
        for n in 0..=lost {
            let built = pair.ends[0].transmit(pair.now, &mut frame, &mut Nothing).unwrap();
            frame.resize(built.len, 0);
            let frame = core::mem::take(&mut frame);
            if n != lost {
                pair.arrive(1, &frame);
            }
        }
        pair.told.clear();
        pair.ends[0].abandon(flow);
        (0..1000).for_each(|_| pair.step());
        let ended = pair.told.iter().filter(|event| matches!(event, Event::Ended { flow: of, .. } if *of == flow));
        assert_eq!(ended.count(), 1, "{len} bytes");
        let closed = pair.told.iter().find_map(|event| match event {
            Event::Closed { flow: of, counts } if *of == flow => Some(counts),
            _ => None,
        });
        assert!(closed.is_some_and(|counts| counts.unconfirmed == 3 && counts.balance()), "{len} bytes: {closed:?}");
    }
}

/// A peer that asks and asks and never acknowledges an answer: what is kept for it has an end, and it gets its answers when it hears again.
#[test]
fn what_is_kept_for_a_peer_that_acknowledges_nothing_has_an_end() {
    let mut pair = Pair::new(Config { flows: 64, credit_messages: 4, ..Config::default() });
    let flow = pair.open(1, false);
    (0..20).for_each(|_| pair.step());
    pair.told.clear();
    let opens = |n: u32| FlowOpen { flow: 100 + n, reliable: true, epoch: 7, channel: 1, first: 1 };
    let mut came = 0;
    for n in 0..10_000u32 {
        let frame = pair.by_hand(|frame| {
            // Ends of flows that were never there, openings that were accepted already, a flow that comes and goes.
            (0..90).for_each(|close| {
                frame.close(&Close { flow: 10_000 + n * 90 + close, end: 0, last: true });
            });
            (0..32).for_each(|open| {
                frame.flow_open(&opens(open));
            });
            frame.flow_open(&opens(200 + n));
            frame.close(&Close { flow: 300 + n, end: 0, last: true });
        });
        let data = pair.by_hand(|frame| {
            frame.message(&Message { flow, index: n, sequence: u64::from(n) + 1, ..Message::default() }, &[0; 64]);
        });
        let _ = pair.ends[1].receive(pair.now, &frame, 0, &mut Nothing);
        assert_eq!(pair.ends[1].receive(pair.now, &data, 0, &mut Nothing).result, Ok(()));
        while let Some(event) = pair.ends[1].event() {
            match event {
                Event::Requested { open, .. } => pair.ends[1].accept(open.flow, 0),
                Event::Message { flow, .. } => {
                    came += 1;
                    pair.ends[1].consumed(flow, 1, 64);
                }
                _ => {}
            }
        }
        // Nobody hears the answers.
        let answers = pair.frames(1);
        assert!(pair.ends[1].control.is_empty() || pair.ends[1].timeout().is_some_and(|at| at > pair.now), "it spins");
        assert!(answers.len() < 1000, "{} frames", answers.len());
        pair.now += MS;
        let end = &pair.ends[1];
        assert!(end.sent.len() <= 9000 && end.control.len() <= 5000 && end.ended.len() <= 5000, "after {n} ms");
    }
    assert_eq!(came, 10_000, "what it sends arrives all the same");
    // It hears again.
    pair.ends[0].on_time(pair.now);
    (0..3000).for_each(|_| pair.step());
    let end = &pair.ends[1];
    assert!(end.control.is_empty() && end.ended.is_empty() && end.sent.len() < 10, "{} frames", end.sent.len());
    let late = pair.open(2, true);
    (0..20).for_each(|_| pair.step());
    assert!(pair.told.contains(&Event::Accepted { flow: late }));
}

/// A sender that goes on beyond its credit of bytes: no more of it is held than the credit, a frame and a message.
#[test]
fn beyond_the_credit_of_bytes_nothing_is_held() {
    let mut pair = Pair::new(Config { credit_bytes: 10_000, ..Config::default() });
    let flow = pair.open(1, true);
    (0..20).for_each(|_| pair.step());
    let (mut held, payload) = (0, [7; 1000]);
    for index in 1..1000 {
        let sequence = u64::from(index) + 1;
        let frame = pair.by_hand(|frame| {
            frame.message(&Message { flow, index, sequence, ..Message::default() }, &payload);
        });
        let mut room = Room { left: usize::MAX, ..Room::default() };
        let receipt = pair.ends[1].receive(pair.now, &frame, 0, &mut room);
        assert_eq!((receipt.kept, receipt.result), (0, Ok(())), "it waits in a copy of its own");
        held += room.held.values().sum::<usize>();
    }
    assert!((10_000..=10_000 + 65_528 + 1000).contains(&held), "{held} bytes");
    assert_eq!(pair.ends[1].stats().stray as usize, 999 - held / 1000);
    // A bundle is no way around it.
    let after = pair.by_hand(|frame| {
        let message = Message { flow, index: 2000, sequence: 2001, ..Message::default() };
        frame.bundle_from(&message, 20, 20 * 1008, |out| {
            (0..20).for_each(|_| {
                out.extend_from_slice(&1000u64.to_le_bytes());
                out.extend_from_slice(&payload);
            });
        });
        frame.message(&Message { index: 3000, ..message }, &payload);
    });
    let before = pair.ends[1].stats().stray;
    assert_eq!(pair.ends[1].receive(pair.now, &after, 0, &mut Nothing).kept, 0);
    assert_eq!(pair.ends[1].stats().stray, before + 21);
}

/// Room for so many copies of messages that wait; the sizes of those that are there.
#[derive(Default)]
struct Room {
    left: usize,
    next: u64,
    held: BTreeMap<u64, usize>,
}

impl Store for Room {
    fn reserve(&mut self, _flow: u32, _bytes: u32, _urgent: bool) -> Option<u64> {
        None
    }
    fn fill(&mut self, _slot: u64, _at: u32, _bytes: &[u8]) {}
    fn hold(&mut self, _flow: u32, bytes: &[u8]) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        self.next += 1;
        self.held.insert(1000 + self.next, bytes.len());
        Some(1000 + self.next)
    }
    fn copy_out(&self, _slot: u64, _at: u32, _len: u32, _out: &mut Vec<u8>) {}
}

/// A peer that sends each small message with so much else that its frame is as large as frames get.
#[test]
fn a_small_message_that_waits_keeps_no_frame() {
    let mut pair = Pair::new(Config::default());
    let (flow, other) = (pair.open(1, true), pair.open(2, false));
    (0..20).for_each(|_| pair.step());
    let mut room = Room { left: 8, ..Room::default() };
    let (small, large) = ([7; 8], vec![0; 60_000]);
    let message = |index: u32| Message { flow, index, sequence: u64::from(index) + 1, ..Message::default() };
    // One by itself, and three as a bundle, of which the first is to be next.
    let frame = pair.by_hand(|frame| {
        frame.message(&message(3), &small);
        frame.message(&Message { flow: other, sequence: 1, ..Message::default() }, &large);
    });
    // What lies in the frame is for the event that is there now.
    assert_eq!(pair.ends[1].receive(pair.now, &frame, 5, &mut room).kept, 1);
    pair.events();
    assert_eq!(room.held.values().copied().collect::<Vec<_>>(), [8]);
    let frame = pair.by_hand(|frame| {
        frame.bundle_from(&message(1), 2, 2 * 16, |out| {
            (0..2).for_each(|_| {
                out.extend_from_slice(&8u64.to_le_bytes());
                out.extend_from_slice(&small);
            });
        });
    });
    assert_eq!(pair.ends[1].receive(pair.now, &frame, 6, &mut room).kept, 0);
    assert_eq!(room.held.len(), 3);
    let frame = pair.by_hand(|frame| {
        frame.message(&message(0), &small);
    });
    assert_eq!(pair.ends[1].receive(pair.now, &frame, 7, &mut room).kept, 1);
    pair.told.clear();
    pair.events();
    let came = pair.told.iter().map(|event| match event {
        Event::Message { message, lies: Lies::Frame { token, at, len }, .. } => {
            assert_eq!(room.held.remove(token), (*token != 7).then_some(*len));
            (message.sequence, *len, *token == 7 || *at == 0)
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(came.collect::<Vec<_>>(), [(1, 8, true), (2, 8, true), (3, 8, true), (4, 8, true)]);
    assert!(room.held.is_empty());
}

/// A receiver that can hold five messages, over a link that loses the first frame and now and then another.
#[test]
fn what_a_store_has_no_room_to_hold_comes_again() {
    let mut pair = Pair::new(Config::default());
    let flow = pair.open(1, true);
    (0..20).for_each(|_| pair.step());
    (1..=200).for_each(|sequence| pair.send_of(flow, sequence, 1000));
    let (mut room, mut came, mut sent) = (Room { left: 5, ..Room::default() }, Vec::new(), 0);
    for _ in 0..20_000 {
        for frame in pair.frames(0) {
            sent += 1;
            if sent % 16 != 1 {
                let receipt = pair.ends[1].receive(pair.now, &frame, 0, &mut room);
                assert!(matches!(receipt.result, Ok(()) | Err(Rejected::NoRoom)), "{receipt:?}");
            }
            while let Some(event) = pair.ends[1].event() {
                let Event::Message { message, lies: Lies::Frame { token, len, .. }, .. } = event else { continue };
                assert!(len == 1000 && (token == 0 || room.held.remove(&token) == Some(len)));
                room.left += usize::from(token != 0);
                came.push(message.sequence);
                pair.ends[1].consumed(flow, 1, 1000);
                pair.ends[1].advance(flow, message.sequence);
            }
        }
        for frame in pair.frames(1) {
            pair.arrive(0, &frame);
        }
        pair.now += MS;
        pair.ends.iter_mut().for_each(|end| end.on_time(pair.now));
    }
    assert!(came.iter().copied().eq(1..=200), "{came:?}");
    let counts = pair.ends[0].counts(flow).unwrap();
    assert!(counts.balance() && counts.delivered == 200, "{counts:?}");
    assert!(pair.ends[1].stats().refused > 0 && room.held.is_empty() && room.left == 5);
}

/// Frames have become smaller or larger meanwhile: a message that began in parts comes whole, in a frame with others or by itself, in a
/// bundle, next or later.
#[test]
fn the_parts_of_a_message_that_comes_whole_are_given_up() {
    for (way, first) in (0..3).flat_map(|way| [(way, 0u32), (way, 5)]) {
        let mut pair = Pair::new(Config::default());
        let flow = pair.open(1, true);
        (0..20).for_each(|_| pair.step());
        let message = Message { flow, index: first, sequence: u64::from(first) + 1, ..Message::default() };
        let part = pair.by_hand(|frame| {
            frame.fragment(&message, Part { total: 16, offset: 0 }, &[1; 8]);
        });
        pair.arrive(1, &part);
        assert_eq!(pair.ends[1].unfinished.len(), 1);
        let whole = pair.by_hand(|frame| {
            let all = match way {
                0 => frame.message(&message, &[1; 16]) && frame.ping(),
                1 => frame.message(&message, &[1; 16]),
                _ => frame.bundle_from(&message, 1, 24, |out| {
                    out.extend_from_slice(&16u64.to_le_bytes());
                    out.extend_from_slice(&[1; 16]);
                }),
            };
            assert!(all);
        });
        pair.told.clear();
        let row = if way == 1 { pair.ends[1].receive_alone(pair.now, &whole) } else { None };
        assert_eq!(row.is_some(), way == 1 && first == 0);
        if row.is_none() {
            pair.arrive(1, &whole);
        }
        pair.events();
        let discarded = Event::Discard(Lies::Slot { slot: 1, len: 0 });
        assert_eq!(pair.told.iter().filter(|event| **event == discarded).count(), 1, "way {way}, message {first}");
        assert!(pair.ends[1].unfinished.is_empty());
    }
}

#[test]
fn a_sealed_frame_is_refused_and_counted_whatever_is_in_it() {
    let mut pair = Pair::apart(Config::default());
    for connection in [0, 7] {
        let mut bytes = Vec::new();
        let header = Header { flags: SEALED, key: 1, connection, counter: 1, ..Header::default() };
        let mut frame = FrameBuilder::new(&mut bytes, header, 1472);
        frame.hello(&Hello { incarnation: 9, echo: pair.ends[1].own, max_frame: 1472, ..Hello::default() });
        frame.finish();
        bytes.extend_from_slice(&[0; 16]);
        let before = pair.ends[1].stats().foreign;
        let receipt = pair.ends[1].receive(pair.now, &bytes, 0, &mut Nothing);
        assert_eq!(receipt.result, Err(Rejected::Sealed), "connection {connection}");
        assert_eq!((pair.ends[1].stats().foreign, pair.ends[1].is_connected()), (before + 1, false));
    }
}

/// Whether it comes by itself, which has a way of its own, or among others.
#[test]
fn a_key_or_a_check_without_its_flag_is_refused_and_counted() {
    let mut pair = Pair::new(Config::default());
    let flow = pair.open(1, false);
    (0..20).for_each(|_| pair.step());
    let before = pair.ends[1].stats().malformed;
    for (count, at) in [6, 7, 28, 31].into_iter().enumerate() {
        let message = Message { flow, index: 0, sequence: 1, ..Message::default() };
        let mut bytes = pair.by_hand(|frame| {
            frame.message(&message, &[1; 8]);
        });
        bytes[at] = 1;
        assert!(pair.ends[1].receive_alone(pair.now, &bytes).is_none(), "byte {at}");
        let receipt = pair.ends[1].receive(pair.now, &bytes, 0, &mut Nothing);
        assert!(matches!(receipt.result, Err(Rejected::Malformed(FrameError::Unflagged { .. }))), "byte {at}");
        assert_eq!(pair.ends[1].stats().malformed, before + count as u64 + 1);
    }
}

/// What comes after the largest number that is taken does not overflow.
#[test]
fn a_frame_number_that_no_connection_comes_to_is_refused() {
    for (found, taken) in [(u64::MAX, false), (u64::MAX - 1, false), (MAX_COUNTER + 1, false), (MAX_COUNTER, true)] {
        let mut pair = Pair::new(Config::default());
        let flow = pair.open(1, false);
        (0..20).for_each(|_| pair.step());
        let after = if taken { found + 1 } else { pair.ends[1].seen.largest() + 1 };
        let [far, next] = [(0, found), (1, after)].map(|(index, counter)| {
            pair.ends[0].counter = counter;
            let message = Message { flow, index, sequence: u64::from(index) + 1, ..Message::default() };
            pair.by_hand(|frame| {
                frame.message(&message, &[1; 8]);
            })
        });
        let refused = Err(Rejected::Malformed(FrameError::Counter { found }));
        let receipt = pair.ends[1].receive(pair.now, &far, 0, &mut Nothing);
        assert_eq!(receipt.result, if taken { Ok(()) } else { refused });
        assert_eq!(pair.ends[1].stats().malformed, u64::from(!taken));
        pair.events();
        assert!(pair.ends[1].receive_alone(pair.now, &next).is_some(), "what is next is taken: {found}");
    }
}
