//! Frames whose header is not one of the connection that stands, of each kind and by each way in: they do nothing but count.

use insane_wire::frame::record::Records;
use insane_wire::frame::{CHECKED, checksum, lone_head};

use super::*;
use crate::counts::PathStats;
use crate::landing::Landings;

/// What is spoiled in a frame's header.
struct Case {
    what: &'static str,
    /// The counter that says so.
    counter: &'static str,
    /// Whether the connection has its number then: what it was made from comes under another.
    uses_up: bool,
    /// Whether a payload has its place all the same: what is wrong is looked at later.
    lands: bool,
    /// Of the first and of the second of two.
    spoil: fn(&mut [u8], &Known, u64),
}

/// What is known of the connection.
struct Known {
    /// The field in frames that the receiver sends.
    other_way: u32,
    /// The largest number that came.
    largest: u64,
    /// One that never came, before so many that it counts as seen.
    forgotten: u64,
}

const CASES: &[Case] = &[
    case("another protocol", "malformed", |frame, _, _| frame[0] = b'J'),
    case("another version", "malformed", |frame, _, _| frame[1] = 2),
    case("an unknown flag", "malformed", |frame, _, _| frame[2] = 4),
    case("a reserved bit", "malformed", |frame, _, _| frame[3] = 1),
    landing("longer than it is", "malformed", |frame, _, _| {
        let length = frame.len() as u16 + 8;
        put(frame, 4, &length.to_le_bytes());
    }),
    case("shorter than a header", "malformed", |frame, _, _| put(frame, 4, &31u16.to_le_bytes())),
    case("another check", "malformed", |frame, _, _| {
        frame[2] = CHECKED;
        let check = checksum(&[frame]) ^ 1;
        put(frame, 28, &check.to_le_bytes());
    }),
    case("sealed under a key", "foreign", |frame, _, _| (frame[2], frame[6]) = (SEALED, 1)),
    case("no connection", "foreign", |frame, _, _| put(frame, 12, &[0; 4])),
    case("another connection", "foreign", |frame, _, _| frame[15] ^= 0x80),
    case("another connection under the last number", "foreign", |frame, known, n| {
        frame[12] ^= 2;
        put(frame, 16, &(known.largest + n).to_le_bytes());
    }),
    case("the connection's other way", "foreign", |frame, known, _| put(frame, 12, &known.other_way.to_le_bytes())),
    landing("no number", "duplicates", |frame, _, _| put(frame, 16, &[0; 8])),
    landing("numbers that came", "duplicates", |frame, known, n| {
        put(frame, 16, &(known.largest - 1 + n).to_le_bytes());
    }),
    landing("a number from long ago", "duplicates", |frame, known, _| put(frame, 16, &known.forgotten.to_le_bytes())),
    case("numbers that none comes to", "malformed", |frame, _, n| put(frame, 16, &(MAX_COUNTER + 1 + n).to_le_bytes())),
    Case { uses_up: true, ..case("another domain", "stray", |frame, _, _| put(frame, 8, &2u32.to_le_bytes())) },
    Case { uses_up: true, ..case("no domain", "stray", |frame, _, _| put(frame, 8, &[0; 4])) },
];

const fn case(what: &'static str, counter: &'static str, spoil: fn(&mut [u8], &Known, u64)) -> Case {
    Case { what, counter, uses_up: false, lands: false, spoil }
}

const fn landing(what: &'static str, counter: &'static str, spoil: fn(&mut [u8], &Known, u64)) -> Case {
    Case { lands: true, ..case(what, counter, spoil) }
}

fn put(frame: &mut [u8], at: usize, bytes: &[u8]) {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
}

/// What is dropped is counted under one of these.
fn dropped(stats: &PathStats) -> [(&'static str, u64); 6] {
    [
        ("duplicates", stats.duplicates),
        ("foreign", stats.foreign),
        ("malformed", stats.malformed),
        ("stray", stats.stray),
        ("overtaken", stats.overtaken),
        ("refused", stats.refused),
    ]
}

/// Slots that hold what was written to them.
#[derive(Default)]
struct Slots(BTreeMap<u64, Vec<u8>>, u64);

impl Store for Slots {
    fn reserve(&mut self, _flow: u32, bytes: u32, _urgent: bool) -> Option<u64> {
        self.1 += 1;
        self.0.insert(self.1, vec![0xaa; bytes as usize]);
        Some(self.1)
    }
    fn fill(&mut self, slot: u64, at: u32, bytes: &[u8]) {
        put(self.0.get_mut(&slot).expect("a slot that is there"), at as usize, bytes);
    }
    fn hold(&mut self, _flow: u32, _bytes: &[u8]) -> Option<u64> {
        None
    }
    fn copy_out(&self, slot: u64, at: u32, len: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0[&slot][at as usize..(at + len) as usize]);
    }
}

/// A connection that stands, and a flow whose messages are all zeros.
struct Standing {
    pair: Pair,
    flow: u32,
    sent: u64,
    slots: Slots,
    case: String,
}

impl Standing {
    fn new(config: Config, reliable: bool, case: String) -> Self {
        let mut pair = Pair::new(config);
        let flow = pair.open(1, reliable);
        (0..20).for_each(|_| pair.step());
        let mut standing = Self { pair, flow, sent: 0, slots: Slots::default(), case };
        standing.goes_on();
        standing
    }

    /// Frames of numbers that leave gaps, more than are remembered: the first of these, and what else is known.
    fn known(&mut self) -> Known {
        let forgotten = self.pair.ends[0].counter;
        for gap in (0..70).map(|_| 1).chain([0; 4]) {
            self.pair.ends[0].counter += gap;
            let ping = self.pair.by_hand(|frame| {
                frame.ping();
            });
            self.pair.arrive(1, &ping);
        }
        let receiver = &self.pair.ends[1];
        let other_way = receiver.peer.expect("a connection").send;
        Known { other_way, largest: receiver.seen.largest(), forgotten }
    }

    /// The frames of one more message.
    fn frames(&mut self, len: u32) -> Vec<Vec<u8>> {
        self.sent += 1;
        self.pair.send_of(self.flow, self.sent, len);
        self.pair.frames(0)
    }

    /// The same frame under the sender's next number.
    fn again(&mut self, frame: &[u8]) -> Vec<u8> {
        let (mut frame, end) = (frame.to_vec(), &mut self.pair.ends[0]);
        put(&mut frame, 16, &end.counter.to_le_bytes());
        end.counter += 1;
        frame
    }

    /// The receiver takes a frame, alone if it can.
    fn take(&mut self, frame: &[u8]) {
        let (now, receiver) = (self.pair.now, &mut self.pair.ends[1]);
        assert_eq!(receiver.receive_alone(now, frame), None, "{}", self.case);
        receiver.receive(now, frame, 0, &mut self.slots);
    }

    /// The receiver takes frames whose payloads were received to where the first one's belongs; whether there is a place for that.
    fn land(&mut self, frames: &[Vec<u8>]) -> bool {
        let (now, receiver, slots) = (self.pair.now, &mut self.pair.ends[1], &mut self.slots);
        let (stride, mut batch) = (frames[0].len(), Landings::default());
        let len = stride * frames.len();
        let Some(landing) = receiver.place(now, &frames[0], len, stride, slots, &mut batch) else { return false };
        let [region] = *batch.regions(&landing) else { panic!("one message, one region") };
        let mut heads = Vec::new();
        for (at, frame) in (region.at..).step_by(stride - landing.head_bytes).zip(frames) {
            heads.extend_from_slice(&frame[..landing.head_bytes]);
            slots.fill(region.slot, at, &frame[landing.head_bytes..]);
        }
        receiver.receive_run(now, (&heads, &[]), landing.number, &mut batch, slots);
        for stray in batch.finish() {
            receiver.receive(now, &stray.frame, 0, slots);
        }
        true
    }

    /// So many more messages have come, each once, in order and unchanged, as those that were sent; nothing else has.
    fn came(&mut self, messages: u64) {
        let (mut expected, flow) = (self.sent - messages, self.flow);
        for event in self.receiver_is_told() {
            match event {
                Event::Message { flow: of, message, .. } => {
                    expected += 1;
                    assert_eq!((of, message.sequence), (flow, expected), "{}", self.case);
                    self.pair.ends[1].consumed(flow, 1, 1 << 20);
                    self.pair.ends[1].advance(flow, expected);
                }
                other => panic!("{}: {other:?}", self.case),
            }
        }
        assert_eq!(expected, self.sent, "{}", self.case);
    }

    /// The receiver's events; the payloads of messages are looked at.
    fn receiver_is_told(&mut self) -> Vec<Event> {
        let events: Vec<_> = std::iter::from_fn(|| self.pair.ends[1].event()).collect();
        for event in &events {
            if let Event::Message { lies: Lies::Slot { slot, len }, .. } = *event {
                let payload = self.slots.0.remove(&slot).expect("a slot that is there");
                assert!(payload.len() == len as usize && payload.iter().all(|&byte| byte == 0), "{}", self.case);
            }
        }
        events
    }

    /// Two more messages arrive, a small one and a large one, and the sender hears of these and all before.
    fn goes_on(&mut self) {
        for len in [64, 5000] {
            for frame in self.frames(len) {
                self.pair.ends[1].receive(self.pair.now, &frame, 0, &mut self.slots);
            }
            self.came(1);
        }
        (0..20).for_each(|_| self.pair.step());
        let counts = self.pair.ends[0].counts(self.flow).expect("a flow");
        assert!(counts.balance() && counts.delivered == self.sent, "{}: {counts:?}", self.case);
        let lost = |event: &Event| matches!(event, Event::Lost(_) | Event::Ended { .. });
        assert!(!self.pair.told.iter().any(lost), "{}", self.case);
    }

    /// What was dropped since then: so many frames, all under this counter.
    fn counted(&self, before: &PathStats, counter: &str, frames: u64) {
        for ((name, was), (_, is)) in dropped(before).into_iter().zip(dropped(&self.pair.ends[1].stats())) {
            let expected = if name == counter { frames } else { 0 };
            assert_eq!(is - was, expected, "{}: {name}", self.case);
        }
    }
}

/// How frames come in: by themselves, or with others that they are taken with.
const WAYS: [&str; 4] = ["alone", "alike", "placed", "placed behind one that belongs there"];

#[test]
fn a_frame_with_a_wrong_header_is_dropped_and_counted_once_and_its_flow_goes_on() {
    for (case, reliable, way) in CASES.iter().flat_map(|case| (0..8).map(move |n| (case, n % 2 == 0, n / 2))) {
        let text = format!("{}, {}, reliable: {reliable}", case.what, WAYS[way]);
        let mut standing = Standing::new(Config::default(), reliable, text);
        let known = standing.known();
        // Messages that come whole, or one that comes in parts of which the first is taken.
        let mut good =
            if way < 2 { (0..2).flat_map(|_| standing.frames(64)).collect::<Vec<_>>() } else { standing.frames(5000) };
        assert_eq!(good.len(), if way < 2 { 2 } else { 4 });
        assert_eq!(lone_head(&good[0]).is_some(), way < 2);
        let first = if way == 3 { vec![good.remove(0)] } else { Vec::new() };
        let mut bad = good[..2].to_vec();
        for (frame, n) in bad.iter_mut().zip(0..) {
            let payload = Records::peek(frame).expect("a record").2;
            frame[payload.range()].fill(0xee);
            (case.spoil)(frame, &known, n);
        }
        let before = standing.pair.ends[1].stats();
        let mut placed = false;
        if way < 2 {
            standing.take(&bad[0]);
            if way == 1 {
                let row = standing.pair.ends[1].receive_alike(standing.pair.now, &bad[0], &bad[1], bad[1].len());
                assert_eq!(row, None, "{}", standing.case);
            }
            standing.take(&bad[1]);
        } else {
            placed = standing.land(&[&first[..], &bad].concat());
            if !placed {
                bad.iter().for_each(|frame| standing.take(frame));
            }
        }
        assert_eq!(placed, way == 3 || (way == 2 && case.lands), "{}", standing.case);
        standing.counted(&before, case.counter, 2);
        assert_eq!(standing.pair.ends[1].event(), None, "{}", standing.case);
        for frame in good {
            let frame = if case.uses_up { standing.again(&frame) } else { frame };
            standing.pair.ends[1].receive(standing.pair.now, &frame, 0, &mut standing.slots);
        }
        standing.came(if way < 2 { 2 } else { 1 });
        standing.goes_on();
        standing.counted(&before, case.counter, 2);
    }
}

/// Somebody who has seen frames of the connection sends others under numbers that are far from coming.
#[test]
fn numbers_that_somebody_else_has_used_stop_no_flow() {
    for (reliable, ahead) in [(true, 1 << 30), (false, 1 << 30), (true, 1 << 40), (false, 1 << 40)] {
        let mut standing = Standing::new(Config::default(), reliable, format!("reliable: {reliable}, {ahead}"));
        let known = standing.known();
        let mut frame = standing.frames(64).remove(0);
        standing.pair.ends[1].receive(standing.pair.now, &frame, 0, &mut standing.slots);
        standing.came(1);
        put(&mut frame, 8, &2u32.to_le_bytes());
        let before = standing.pair.ends[1].stats();
        for n in 0..100 {
            put(&mut frame, 16, &(known.largest + ahead + n).to_le_bytes());
            standing.take(&frame);
        }
        standing.counted(&before, "stray", 100);
        assert_eq!(standing.pair.ends[1].event(), None, "{}", standing.case);
        for _ in 0..20 {
            standing.goes_on();
        }
        let sender = standing.pair.ends[0].stats();
        assert_eq!((sender.in_flight, sender.lost_frames, sender.probes), (0, 0, 0), "{}", standing.case);
    }
}

/// Of the records that are of a domain, those that a row or a place knows nothing of.
#[test]
fn a_bundle_or_an_opening_of_another_domain_is_dropped_and_counted_once() {
    for (reliable, opens) in [(true, true), (true, false), (false, true), (false, false)] {
        let case = format!("reliable: {reliable}, opens: {opens}");
        let mut standing = Standing::new(Config::default(), reliable, case);
        let (flow, sequence) = (standing.flow, standing.sent + 1);
        let mut frame = standing.pair.by_hand(|frame| {
            let message = Message { flow, index: standing.sent as u32, sequence, ..Message::default() };
            assert!(if opens {
                frame.flow_open(&FlowOpen { flow, reliable, epoch: 1, channel: 1, first: 1 })
            } else {
                frame.bundle_from(&message, 2, 32, |out| {
                    (0..2).for_each(|_| out.extend_from_slice(&[8, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7]));
                })
            });
        });
        put(&mut frame, 8, &2u32.to_le_bytes());
        let before = standing.pair.ends[1].stats();
        standing.take(&frame);
        standing.counted(&before, "stray", 1);
        assert_eq!(standing.pair.ends[1].event(), None, "{}", standing.case);
        let answers = |content: &&crate::transmit::Content| matches!(content, crate::transmit::Content::Answer(_));
        assert_eq!(standing.pair.ends[1].control.iter().filter(answers).count(), 0, "{}", standing.case);
        standing.goes_on();
        standing.counted(&before, "stray", 1);
    }
}

#[test]
fn a_frame_that_comes_again_is_dropped_and_counted_once() {
    for reliable in [true, false] {
        let mut standing = Standing::new(Config::default(), reliable, format!("reliable: {reliable}"));
        let whole = standing.frames(64);
        let parts = standing.frames(5000);
        let all = [whole, parts].concat();
        for frame in &all {
            standing.pair.ends[1].receive(standing.pair.now, frame, 0, &mut standing.slots);
        }
        standing.came(2);
        let before = standing.pair.ends[1].stats();
        for _ in 0..2 {
            all.iter().for_each(|frame| standing.take(frame));
            assert!(!standing.land(&all[1..3]), "nothing of it is missing");
        }
        assert_eq!(standing.pair.ends[1].event(), None);
        standing.counted(&before, "duplicates", 2 * all.len() as u64);
        standing.goes_on();
        standing.counted(&before, "duplicates", 2 * all.len() as u64);
    }
}

#[test]
fn on_a_connection_with_checks_a_frame_without_one_or_with_a_wrong_one_is_dropped_and_counted_once() {
    let config = Config { checked: true, ..Config::default() };
    let mut standing = Standing::new(config, true, "checked".to_owned());
    let good = standing.frames(64).remove(0);
    let checked = |mut frame: Vec<u8>| {
        let check = checksum(&[&frame]);
        put(&mut frame, 28, &check.to_le_bytes());
        frame
    };
    let changed = |at: usize, bit: u8| {
        let mut frame = good.clone();
        frame[at] ^= bit;
        frame
    };
    let unchecked = changed(2, CHECKED);
    let mut bare = unchecked.clone();
    put(&mut bare, 28, &[0; 4]);
    // The check is right again where it is made anew: what else is wrong is seen then.
    let all = [
        ("malformed", unchecked),
        ("malformed", bare),
        ("malformed", changed(good.len() - 1, 1)),
        ("malformed", changed(28, 1)),
        ("malformed", changed(16, 0x40)),
        ("foreign", checked(changed(12, 2))),
        ("foreign", checked(changed(2, SEALED))),
        ("stray", checked(changed(8, 2))),
    ];
    for (counter, frame) in all {
        let before = standing.pair.ends[1].stats();
        standing.take(&frame);
        standing.counted(&before, counter, 1);
        assert_eq!(standing.pair.ends[1].event(), None);
    }
    let again = standing.again(&good);
    standing.pair.ends[1].receive(standing.pair.now, &checked(again), 0, &mut standing.slots);
    standing.came(1);
    standing.goes_on();
}

#[test]
fn a_hello_of_nobody_that_is_there_is_dropped_and_counted_once() {
    let mut standing = Standing::new(Config::default(), true, "hello".to_owned());
    let hello = |hello: &Hello| {
        let mut bytes = Vec::new();
        let mut frame = FrameBuilder::new(&mut bytes, Header { counter: 1, ..Header::default() }, 512);
        assert!(frame.hello(hello));
        frame.finish();
        bytes
    };
    let own = standing.pair.ends[1].own;
    let mut former = Hello { incarnation: standing.pair.ends[0].own, echo: own, max_frame: 1472, ..Hello::default() };
    // It begins anew, and its earlier hello comes once more; and one of the receiver itself.
    let now = standing.pair.now;
    standing.pair.ends[0].disconnect(now);
    (0..200).for_each(|_| standing.pair.step());
    assert_eq!(standing.pair.ends[1].stats().connections, 2);
    standing.pair.told.clear();
    let current = standing.pair.ends[0].own;
    former.echo = standing.pair.ends[1].own;
    let mirrored = Hello { incarnation: former.echo, echo: current, ..former };
    for wrong in [former, mirrored] {
        let before = standing.pair.ends[1].stats();
        standing.take(&hello(&wrong));
        standing.counted(&before, "foreign", 1);
        assert_eq!((standing.pair.ends[1].event(), standing.pair.ends[1].is_connected()), (None, true));
    }
    // Its own comes again without harm.
    let before = standing.pair.ends[1].stats();
    standing.take(&hello(&Hello { incarnation: current, ..former }));
    standing.counted(&before, "none", 0);
    assert_eq!(standing.pair.ends[1].event(), None);
    standing.goes_on();
}
