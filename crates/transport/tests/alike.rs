//! Frames that are built as a run are those that would have been built one by one, and what is taken as a row is what would have been taken
//! one by one.

mod sim;

use std::collections::HashMap;
use std::time::Duration;

use insane_transport::{Alike, Config, Event, Fit, FlowSpec, Lies, Outgoing, Path, Payloads, Rest, Store};
use insane_wire::frame::record::{Place, bundle_prefix, bundled};
use sim::{MS, Random, whole};

/// Payloads by token, as they lie with their owner.
#[derive(Default)]
struct Memory(HashMap<u64, Vec<u8>>);

impl Payloads for Memory {
    fn copy(&mut self, token: u64, offset: u32, len: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0[&token][offset as usize..(offset + len) as usize]);
    }

    fn bundle(&mut self, token: u64, rest: Rest, room: u32, most: u16) -> Option<Fit> {
        let bytes = &self.0[&token][rest.offset as usize..];
        let first = u64::from_le_bytes(*bytes.first_chunk()?) as u32;
        let (len, count) = bundle_prefix(bytes, room as usize, most)?;
        let payload = bundled(bytes, Place { at: 0, len }).map(|place| place.len as u32).sum();
        let len = if count == 0 { 8 + first.next_multiple_of(8) } else { len as u32 };
        Some(Fit { count, len, payload, first })
    }
}

impl Store for Memory {
    fn reserve(&mut self, _flow: u32, _bytes: u32, _urgent: bool) -> Option<u64> {
        Some(0)
    }
    fn fill(&mut self, _slot: u64, _at: u32, _bytes: &[u8]) {}
    fn hold(&mut self, _flow: u32, _bytes: &[u8]) -> Option<u64> {
        None
    }
    fn copy_out(&self, _slot: u64, _at: u32, _len: u32, _out: &mut Vec<u8>) {}
}

/// A sender, its peer, and all that the sender has sent, with what may be padded.
struct Twin {
    path: Path,
    peer: Path,
    memory: Memory,
    sent: Vec<(Vec<u8>, bool)>,
    runs: usize,
    /// How many frames have payload that was left where it lies.
    apart: usize,
    /// What the peer's user has: flow, sequence, and the payload if it lay in a frame.
    taken: Vec<(u32, u64, Vec<u8>)>,
    rows: usize,
}

impl Twin {
    fn new(config: Config) -> Self {
        let [path, peer] = [1, 2].map(|seed| Path::new(config, seed, MS * 10));
        Self { path, peer, memory: Memory::default(), sent: Vec::new(), runs: 0, apart: 0, taken: Vec::new(), rows: 0 }
    }

    /// All frames that go now; as runs of up to `most`, if that is not 0.
    fn send(&mut self, now: Duration, most: usize) -> Vec<Vec<u8>> {
        let (first, mut out) = (self.sent.len(), Vec::new());
        while let Some(built) = self.path.transmit(now, &mut out, &mut self.memory) {
            let one = Alike { frames: 1, len: built.len, gather: built.gather, every: 0, may_pad: built.may_pad };
            let frame = whole(&std::mem::take(&mut out), &one, &mut self.memory).remove(0);
            self.sent.push((frame, built.may_pad));
            self.apart += usize::from(one.gather.is_some());
            if let Some(alike) = self.path.transmit_alike(now, &mut out, &mut self.memory, most) {
                assert!((1..=most).contains(&alike.frames));
                let frames = whole(&std::mem::take(&mut out), &alike, &mut self.memory);
                self.sent.extend(frames.into_iter().map(|frame| (frame, alike.may_pad)));
                self.runs += usize::from(alike.frames > 1);
                self.apart += alike.frames * usize::from(alike.gather.is_some());
            }
        }
        self.sent[first..].iter().map(|(frame, _)| frame.clone()).collect()
    }

    /// The peer's user handles what came with a frame.
    fn events(&mut self, frame: &[u8]) {
        while let Some(event) = self.peer.event() {
            match event {
                Event::Requested { open, .. } => self.peer.accept(open.flow, 0),
                Event::Message { flow, message, lies } => {
                    let bytes = if let Lies::Frame { at, len, .. } = lies { &frame[at..at + len] } else { &[] };
                    self.take(flow, message.sequence, bytes);
                }
                Event::Bundle { flow, message, count, lies } => {
                    let Lies::Frame { at, len, .. } = lies else { panic!("a bundle is in a frame") };
                    let places = bundled(frame, Place { at, len }).take(count.into());
                    (message.sequence..)
                        .zip(places)
                        .for_each(|(sequence, place)| self.take(flow, sequence, &frame[place.range()]));
                }
                _ => {}
            }
        }
    }

    fn take(&mut self, flow: u32, sequence: u64, bytes: &[u8]) {
        self.peer.consumed(flow, 1, 4096);
        self.peer.advance(flow, sequence);
        self.taken.push((flow, sequence, bytes.to_vec()));
    }

    /// The peer takes frames of one length, one by one or in rows; those may be longer than what was sent.
    fn receive(&mut self, now: Duration, frames: &[Vec<u8>], (rows, padding): (bool, usize)) {
        let stride = frames[0].len() + padding;
        let padding = vec![0xff; padding];
        let all = frames.iter().flat_map(|frame| [frame.as_slice(), &padding]).collect::<Vec<_>>().concat();
        let mut at = 0;
        while at < all.len() {
            let frame = &all[at..at + stride];
            let _ = self.peer.receive(now, frame, 0, &mut self.memory);
            self.events(frame);
            at += stride;
            if let Some(row) = rows.then(|| self.peer.receive_alike(now, frame, &all[at..], stride)).flatten() {
                for (message, place) in row.messages(stride) {
                    self.take(row.flow, message.sequence, &all[at + place..at + place + row.len]);
                }
                at += usize::from(row.count) * stride;
                self.rows += 1;
                self.events(&[]);
            }
        }
    }

    /// A millisecond: everything goes, and what comes is taken at once, by who builds runs in rows.
    fn step(&mut self, now: Duration, most: usize, padding: usize) {
        let mut back = Vec::new();
        while self.peer.transmit(now, &mut back, &mut self.memory).is_some() {
            let _ = self.path.receive(now, &std::mem::take(&mut back), 0, &mut self.memory);
        }
        while self.path.event().is_some() {}
        let frames = self.send(now, most);
        for alike in frames.chunk_by(|one, next| one.len() == next.len()) {
            self.receive(now, alike, (most > 0, padding));
        }
    }
}

/// Messages of a bundle: mostly alike.
fn bundle(random: &mut Random) -> (Vec<u8>, u16) {
    let count = 1 + random.below(63) as u16;
    let size = [8, 64, 256, 512, 1000, 1024, 1100, 1400][random.below(8) as usize];
    let (mut bytes, odd) = (Vec::new(), random.percent(30));
    for n in 0..count {
        let len = if odd && random.percent(10) { 1 + random.below(1400) as usize } else { size };
        bytes.extend_from_slice(&(len as u64).to_le_bytes());
        bytes.resize(bytes.len() + len, n as u8);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    (bytes, count)
}

#[test]
fn runs_and_rows_are_what_goes_and_comes_one_by_one() {
    let (mut runs, mut rows, mut frames, mut apart) = (0, 0, 0, 0);
    for seed in 1..=300 {
        let mut random = Random(seed);
        let config = Config {
            dedicated: random.percent(30),
            copy_bytes: if random.percent(50) { u32::MAX } else { 700 },
            credit_bytes: if random.percent(30) { 100_000 } else { 4 << 20 },
            credit_messages: if random.percent(30) { 50 } else { 16_384 },
            ..Config::default()
        };
        let mut twins = [Twin::new(config), Twin::new(config)];
        let mut flows = Vec::new();
        for n in 0..1 + random.below(3) {
            let spec =
                FlowSpec { domain: 1, epoch: u128::from(n) + 7, channel: n, reliable: random.percent(40), first: 1 };
            flows.push((twins.each_mut().map(|twin| twin.path.open(spec))[0], 1u64));
        }
        let mut token = 0;
        for ms in 0..40 {
            for (flow, sequence) in &mut flows {
                for _ in 0..random.below(4) {
                    let (mut messages, bundle) = match random.below(5) {
                        0 => (vec![vec![token as u8; random.below(100_000) as usize]], 0),
                        // Some of them of another size, or of another priority.
                        1 => {
                            // The last are a little more than a frame holds: parts of two of them share one.
                            let size = [0, 64, 1000, 1024, 1100, 1400, 1500, 1600][random.below(8) as usize];
                            let odd = random.percent(30);
                            let mut size = || size + if odd && random.percent(10) { random.below(8) } else { 0 };
                            ((0..40).map(|n| vec![n; size() as usize]).collect(), 0)
                        }
                        _ => {
                            let (bytes, count) = bundle(&mut random);
                            (vec![bytes], count)
                        }
                    };
                    for bytes in messages.drain(..) {
                        token += 1;
                        let (len, priority) = (bytes.len() as u32, u8::from(bundle == 0 && random.percent(2)));
                        let next =
                            Outgoing { token, len, sequence: *sequence, bundle, priority, ..Outgoing::default() };
                        *sequence += u64::from(bundle.max(1));
                        for twin in &mut twins {
                            twin.memory.0.insert(token, bytes.clone());
                            twin.path.send(*flow, next).unwrap();
                        }
                    }
                }
            }
            let (now, most) = (MS * (10 + ms), 1 + random.below(100) as usize);
            let padding = if random.percent(20) { 8 * random.below(4) as usize } else { 0 };
            for (twin, most) in twins.iter_mut().zip([0, most]) {
                twin.step(now, most, padding);
            }
            let [one, other] = &twins;
            assert_eq!(one.sent.len(), other.sent.len(), "seed {seed}, {ms} ms");
            assert_eq!(one.path.stats(), other.path.stats(), "seed {seed}, {ms} ms");
            assert_eq!(one.peer.stats(), other.peer.stats(), "seed {seed}, {ms} ms");
        }
        let [one, other] = &twins;
        assert!(one.sent == other.sent, "seed {seed}: other frames");
        assert!(one.taken == other.taken, "seed {seed}: other messages");
        assert_eq!((one.runs, one.rows), (0, 0));
        assert_eq!(one.apart, other.apart, "seed {seed}");
        (runs, rows, frames) = (runs + other.runs, rows + other.rows, frames + one.sent.len());
        apart += other.apart;
    }
    assert!(runs > 1000 && rows > 1000 && frames > 50_000, "{runs} runs, {rows} rows, {frames} frames");
    assert!(apart > 10_000, "{apart} of them with payload where it lies");
}

#[test]
fn what_is_left_of_a_part_that_was_cut_short_sets_no_size_for_those_that_follow() {
    for size in [1480, 1500, 1600, 2000] {
        let config = Config { copy_bytes: u32::MAX, ..Config::default() };
        let mut twins = [0, 64].map(|most| (Twin::new(config), most));
        for (twin, most) in &mut twins {
            let flow = twin.path.open(FlowSpec { domain: 1, epoch: 7, channel: 1, reliable: false, first: 1 });
            twin.step(MS * 10, *most, 0);
            twin.step(MS * 11, *most, 0);
            for token in 1..=40 {
                twin.memory.0.insert(token, vec![token as u8; size]);
                let next = Outgoing { token, len: size as u32, sequence: token, ..Outgoing::default() };
                twin.path.send(flow, next).unwrap();
            }
            (12..40).for_each(|ms| twin.step(MS * ms, *most, 0));
        }
        let [one, other] = twins.map(|(twin, _)| twin.sent.iter().map(|(frame, _)| frame.len()).collect::<Vec<_>>());
        assert_eq!(one, other, "{size}");
        assert!(one.len() <= 2 * 40 + 20, "{} frames of {size}", one.len());
    }
}
