//! A peer that says anything on a connection that stands: nothing breaks, memory is bounded and given back once, and the
//! accounts of what goes the other way balance.
#![no_main]

use std::collections::HashMap;
use std::time::Duration;

use insane_transport::{Config, Event, Fit, FlowSpec, Landings, Lies, MOST_REGIONS, Outgoing, Path, Payloads, Rest, Store};
use insane_wire::frame::control::Hello;
use insane_wire::frame::record::{Record, Records};
use insane_wire::frame::{FrameBuilder, HEADER_BYTES, Header, LONE_BYTES, lone_head, next_message, parse};
use libfuzzer_sys::fuzz_target;

/// The bundle whose messages fit a frame only while those are large, and how large these messages are.
const LARGER: u64 = 22;
const LARGER_BYTES: u32 = 1000;

struct Zeros;

impl Payloads for Zeros {
    fn copy(&mut self, _token: u64, _offset: u32, len: u32, out: &mut Vec<u8>) {
        out.resize(out.len() + len as usize, 0);
    }

    /// Empty messages, or larger ones.
    fn bundle(&mut self, token: u64, rest: Rest, room: u32, most: u16) -> Option<Fit> {
        let first = if token == LARGER { LARGER_BYTES } else { 0 };
        let stride = 8 + first;
        let count = (room / stride).min(most.min(rest.count).into());
        Some(Fit { count: count as u16, len: count.max(1) * stride, payload: count * first, first })
    }
}

/// So many frames that are like one that carries a message alone; none if it does not.
fn followers_of(frame: &[u8], count: u8) -> Vec<u8> {
    let mut more = Vec::new();
    let Some((head, _)) = lone_head(frame) else { return more };
    let (header, Some((message, ..))) = (Header::read(&head), Records::peek(&head)) else { return more };
    for n in 1..=u64::from(count) {
        let (counter, index) = (header.map_or(0, |header| header.counter) + n, message.index.wrapping_add(n as u32));
        next_message(&mut more, &head, counter, index, message.sequence + n);
        more.extend_from_slice(&frame[LONE_BYTES..]);
    }
    more
}

/// The tokens of copies of messages that wait.
const HELD: u64 = 1 << 63;

#[derive(Default)]
struct Slots {
    sizes: HashMap<u64, u32>,
    /// The sizes of copies of messages that wait.
    held: HashMap<u64, usize>,
    next: u64,
}

impl Store for Slots {
    fn reserve(&mut self, _flow: u32, bytes: u32, _urgent: bool) -> Option<u64> {
        self.next += 1;
        self.sizes.insert(self.next, bytes);
        Some(self.next)
    }

    fn fill(&mut self, slot: u64, at: u32, bytes: &[u8]) {
        assert!(at as usize + bytes.len() <= self.sizes[&slot] as usize);
    }

    fn hold(&mut self, _flow: u32, bytes: &[u8]) -> Option<u64> {
        if self.held.len() >= 64 {
            return None;
        }
        self.next += 1;
        self.held.insert(self.next | HELD, bytes.len());
        Some(self.next | HELD)
    }

    fn copy_out(&self, slot: u64, at: u32, len: u32, _out: &mut Vec<u8>) {
        assert!(at + len <= self.sizes[&slot]);
    }
}

/// The heads of so many frames, of which the first is a part of a message: the rest of it, and the next, in parts of `size` bytes.
fn heads_of(first: &[u8], count: usize, size: u32) -> Vec<u8> {
    let word = |at: usize| u32::from_le_bytes(first[at..at + 4].try_into().expect("four bytes"));
    let [index, total, begin] = [8, 24, 28].map(|at| word(HEADER_BYTES + at));
    let (mut all, mut index, mut offset) = (Vec::new(), index, begin);
    for n in 0..count as u64 {
        let mut head = first.to_vec();
        if n > 0 {
            let length = size.min(total.saturating_sub(offset)) as u16;
            let counter = u64::from_le_bytes(head[16..24].try_into().expect("eight bytes")) + n;
            head[4..6].copy_from_slice(&(first.len() as u16 + length).to_le_bytes());
            head[16..24].copy_from_slice(&counter.to_le_bytes());
            let record = &mut head[HEADER_BYTES..];
            record[2..4].copy_from_slice(&length.to_le_bytes());
            record[8..12].copy_from_slice(&index.to_le_bytes());
            record[28..32].copy_from_slice(&offset.to_le_bytes());
        }
        all.extend_from_slice(&head);
        offset = offset.saturating_add(size);
        if offset >= total {
            (index, offset) = (index.wrapping_add(1), 0);
        }
    }
    all
}

fuzz_target!(|data: &[u8]| {
    let mut now = Duration::from_secs(1);
    let mut path = Path::new(Config { flows: 8, ..Config::default() }, 1, now);
    let mut out = Vec::new();
    path.transmit(now, &mut out, &mut Zeros);
    let Some(Ok(Record::Hello(theirs))) = parse(&out).ok().and_then(|(_, mut records)| records.next()) else { return };
    let mine = Hello { host: 2, incarnation: 99, echo: theirs.incarnation, max_frame: 65_507, adopted: true };
    let mut hello = Vec::new();
    let mut frame = FrameBuilder::new(&mut hello, Header::default(), 512);
    frame.hello(&mine);
    frame.finish();
    let (mut slots, mut frames) = (Slots::default(), HashMap::<u64, u32>::new());
    assert_eq!(path.receive(now, &hello, 0, &mut slots).result, Ok(()));
    assert!(path.is_connected());
    let connection = Hello::connection(theirs.incarnation, 99);
    let flows = [true, false].map(|reliable| {
        let flow = path.open(FlowSpec { domain: 1, epoch: 5, channel: 6, reliable, first: 1 });
        for sequence in 1..=20 {
            let len = (sequence * 300) as u32;
            assert_eq!(path.send(flow, Outgoing { token: sequence, len, sequence, ..Outgoing::default() }), Ok(()));
        }
        let bundle = Outgoing { token: 21, len: 64 * 8, sequence: 21, bundle: 64, ..Outgoing::default() };
        assert_eq!(path.send(flow, bundle), Ok(()));
        let (token, sequence, len) = (LARGER, 85, 30 * (8 + LARGER_BYTES));
        let larger = Outgoing { token, len, sequence, bundle: 30, ..Outgoing::default() };
        assert_eq!(path.send(flow, larger), Ok(()));
        flow
    });
    let mut rest = data;
    let mut token = 0;
    while let [kind, step, size, tail @ ..] = rest {
        let (records, tail) = tail.split_at(usize::from(*size).min(tail.len()));
        rest = tail;
        now += Duration::from_micros(u64::from(*step) * u64::from(*step));
        path.set_frame_limit(if kind & 2 == 0 { 1472 } else { 512 });
        token += 1;
        let length = (HEADER_BYTES + records.len()) as u16;
        let header = Header { length, connection, domain: 1, counter: token, ..Header::default() };
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend_from_slice(records);
        let peek = Records::peek(&bytes).map(|(.., place)| place.at);
        let head_bytes = peek.filter(|&at| kind & 1 != 0 && at < bytes.len());
        let mut batch = Landings::default();
        let count = 1 + usize::from(kind >> 4);
        let landing = path.place(now, &bytes, bytes.len() * count, bytes.len(), &mut slots, &mut batch);
        let landing = landing.filter(|_| head_bytes.is_some());
        if let Some(landing) = landing {
            let regions = batch.regions(&landing);
            assert!(!regions.is_empty() && regions.len() <= MOST_REGIONS);
            assert!(regions.iter().all(|region| region.at + region.bytes <= slots.sizes[&region.slot]));
            let heads = heads_of(&bytes[..landing.head_bytes], count, (bytes.len() - landing.head_bytes) as u32);
            let tails = vec![0; bytes.len() * usize::from(kind >> 3 & 1) * MOST_REGIONS];
            path.receive_run(now, (&heads, &tails), landing.number, &mut batch, &mut slots);
            token += count as u64 - 1;
            for stray in batch.finish() {
                let _ = path.receive(now, &stray.frame, token, &mut slots);
            }
        } else {
            let alone = if kind & 4 == 0 { None } else { path.receive_alone(now, &bytes) };
            if let Some(row) = alone {
                assert!(row.count == 1 && row.at + row.len <= bytes.len());
            } else {
                let receipt = path.receive(now, &bytes, token, &mut slots);
                if receipt.kept > 0 {
                    frames.insert(token, receipt.kept);
                }
            }
            // Frames that are like it, up to one that is not.
            let more = followers_of(&bytes, kind >> 4);
            if let Some(row) = path.receive_alike(now, &bytes, &more, bytes.len()) {
                assert!(row.count <= u16::from(kind >> 4) && row.at + row.len <= bytes.len());
                token += u64::from(row.count);
            }
        }
        while let Some(event) = path.event() {
            match event {
                Event::Requested { open, .. } => path.accept(open.flow, 0),
                Event::Message { lies, .. } | Event::Bundle { lies, .. } | Event::Discard(lies) => match lies {
                    Lies::Slot { slot, .. } => assert!(slots.sizes.remove(&slot).is_some(), "a slot came back twice"),
                    Lies::Frame { token, at, len } if token & HELD != 0 => {
                        assert_eq!((at, slots.held.remove(&token)), (0, Some(len)), "a copy came back twice, or changed");
                    }
                    Lies::Frame { token, .. } => {
                        let left = frames.get_mut(&token).expect("a frame that is kept");
                        *left = left.checked_sub(1).expect("no more references than were said");
                    }
                },
                _ => {}
            }
        }
        for _ in 0..8 {
            out.clear();
            if path.transmit(now, &mut out, &mut Zeros).is_none() {
                break;
            }
        }
        for counts in flows.iter().filter_map(|flow| path.counts(*flow)) {
            assert!(counts.balance(), "{counts:?}");
        }
    }
});
