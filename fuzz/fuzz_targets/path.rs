//! A peer that says anything on a connection that stands, some of it in frames of which any field of the header is another: nothing
//! breaks, memory is bounded and given back once, what is not of the connection, of its flow's domain or came before does nothing, and
//! the accounts of what goes the other way balance.
#![no_main]

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use insane_transport::{
    Config, Event, Fit, FlowSpec, Landings, Lies, MOST_REGIONS, Outgoing, Path, Payloads, Rest, Store,
};
use insane_wire::frame::control::Hello;
use insane_wire::frame::record::{Record, Records};
use insane_wire::frame::{
    CHECKED, FrameBuilder, HEADER_BYTES, Header, LONE_BYTES, MAX_COUNTER, checksum, lone_head, next_message, parse,
};
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
        let counter = header.map_or(0, |header| header.counter).wrapping_add(n);
        let index = message.index.wrapping_add(n as u32);
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
            let counter = u64::from_le_bytes(head[16..24].try_into().expect("eight bytes")).wrapping_add(n);
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

/// The next bytes of the input; zeros behind its end.
fn next<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (bytes, behind) = rest.split_at(N.min(rest.len()));
    *rest = behind;
    let mut out = [0; N];
    out[..bytes.len()].copy_from_slice(bytes);
    out
}

/// Fields of a header that are others than the next frame's would be, and where they are: any, and often one alone.
fn odd_fields(rest: &mut &[u8], connection: u32, counter: u64) -> Vec<(usize, Vec<u8>)> {
    let ([which], mut fields) = (next(rest), Vec::new());
    let mut put = |at, bytes: &[u8]| fields.push((at, bytes.to_vec()));
    if which & 1 != 0 {
        put(2, &next::<1>(rest));
    }
    if which & 2 != 0 {
        put(8, &u32::from_le_bytes([next::<1>(rest)[0], 0, 0, 0]).to_le_bytes());
    }
    if which & 4 != 0 {
        let [other] = next(rest);
        let other = if other == 0 { 0 } else { connection ^ u32::from(other) };
        put(12, &other.to_le_bytes());
    }
    if which & 8 != 0 {
        // One that came lately, or any.
        let [back] = next(rest);
        let any = if back < 128 { counter.saturating_sub(back.into()) } else { u64::from_le_bytes(next(rest)) };
        put(16, &any.to_le_bytes());
    }
    if which & 16 != 0 {
        put(24, &next::<4>(rest));
    }
    if which & 32 != 0 {
        put(6, &next::<2>(rest));
    }
    if which & 64 != 0 {
        put(0, &next::<2>(rest));
        put(3, &next::<3>(rest));
    }
    if which & 128 != 0 {
        put(28, &next::<4>(rest));
    }
    fields
}

/// Gives a frame other fields. If it is to have a check that is not among them, that is right.
fn change(frame: &mut [u8], fields: &[(usize, Vec<u8>)]) {
    for (at, bytes) in fields {
        frame[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    let length = usize::from(u16::from_le_bytes([frame[4], frame[5]]));
    if frame[2] & CHECKED != 0 && length >= HEADER_BYTES && fields.iter().all(|(at, _)| *at != 28) {
        let check = checksum(&[&frame[..length.min(frame.len())]]);
        frame[28..32].copy_from_slice(&check.to_le_bytes());
    }
}

/// The incarnation that the path says in a frame, if it says hello.
fn said_hello(frame: &[u8]) -> Option<u64> {
    let (_, mut records) = parse(frame).ok()?;
    records.find_map(|record| if let Ok(Record::Hello(hello)) = record { Some(hello.incarnation) } else { None })
}

/// The hello of the peer's `incarnation`, which has heard that of the path.
fn hello(incarnation: u64, echo: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut frame = FrameBuilder::new(&mut bytes, Header::default(), 512);
    frame.hello(&Hello { host: 2, incarnation, echo, max_frame: 65_507, adopted: true });
    frame.finish();
    bytes
}

fuzz_target!(|data: &[u8]| {
    let mut now = Duration::from_secs(1);
    let mut path = Path::new(Config { flows: 8, ..Config::default() }, 1, now);
    let mut out = Vec::new();
    path.transmit(now, &mut out, &mut Zeros);
    // The incarnations of the path and of the peer.
    let (Some(mut theirs), mut own) = (said_hello(&out), 99) else { return };
    let (mut slots, mut frames) = (Slots::default(), HashMap::<u64, u32>::new());
    assert_eq!(path.receive(now, &hello(own, theirs), 0, &mut slots).result, Ok(()));
    assert!(path.is_connected());
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
    // The domains of the peer's flows, and the numbers of its frames that were taken one by one.
    let (mut domains, mut came) = (HashMap::<u32, u32>::new(), HashSet::<u64>::new());
    let mut rest = data;
    let mut token = 0;
    while let [kind, step, size, tail @ ..] = rest {
        let mut tail = tail;
        let connection = Hello::connection(theirs, own);
        let fields = if step & 0x80 == 0 { Vec::new() } else { odd_fields(&mut tail, connection, token + 1) };
        let (records, tail) = tail.split_at(usize::from(*size).min(tail.len()));
        rest = tail;
        let step = u64::from(step & 0x7f) * 2;
        now += Duration::from_micros(step * step);
        path.set_frame_limit(if kind & 2 == 0 { 1472 } else { 512 });
        token += 1;
        let length = (HEADER_BYTES + records.len()) as u16;
        let header = Header { length, connection, domain: 1, counter: token, ..Header::default() };
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend_from_slice(records);
        change(&mut bytes, &fields);
        let header = Header::read(&bytes);
        let before = path.stats();
        let is_new = |header: &Header| (1..=MAX_COUNTER).contains(&header.counter) && !came.contains(&header.counter);
        let its = header.is_ok_and(|header| header.connection == connection);
        let mut may_come = its && header.is_ok_and(|header| is_new(&header));
        let domain = header.map_or(0, |header| header.domain);
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
            // Those behind the first are new, if it is not.
            may_come = its;
            for stray in batch.finish() {
                let _ = path.receive(now, &stray.frame, token, &mut slots);
            }
        } else {
            let alone = if kind & 4 == 0 { None } else { path.receive_alone(now, &bytes) };
            if let Some(row) = alone {
                assert!(row.count == 1 && row.at + row.len <= bytes.len());
                assert!(
                    may_come && domains.get(&row.flow) == Some(&domain),
                    "a message of another connection or domain"
                );
            } else {
                let receipt = path.receive(now, &bytes, token, &mut slots);
                if receipt.kept > 0 {
                    frames.insert(token, receipt.kept);
                }
            }
            if path.stats().received_frames > before.received_frames {
                assert!(may_come, "a frame was taken that is of another connection, or came before");
                came.extend(header.map(|header| header.counter));
            }
            // Frames that are like it, up to one that is not.
            let more = followers_of(&bytes, kind >> 4);
            if let Some(row) = path.receive_alike(now, &bytes, &more, bytes.len()) {
                assert!(row.count <= u16::from(kind >> 4) && row.at + row.len <= bytes.len());
                assert!(its && domains.get(&row.flow) == Some(&domain), "messages of another connection or domain");
                may_come = true;
                let first = header.map_or(0, |header| header.counter) + 1;
                came.extend(first..first + u64::from(row.count));
                token += u64::from(row.count);
            }
        }
        while let Some(event) = path.event() {
            if let Event::Message { flow, .. } | Event::Bundle { flow, .. } = event {
                assert!(may_come && domains.get(&flow) == Some(&domain), "a message of another connection or domain");
            }
            match event {
                Event::Requested { domain, open } => {
                    domains.insert(open.flow, domain);
                    path.accept(open.flow, 0);
                }
                Event::Message { lies, .. } | Event::Bundle { lies, .. } | Event::Discard(lies) => match lies {
                    Lies::Slot { slot, .. } => assert!(slots.sizes.remove(&slot).is_some(), "a slot came back twice"),
                    Lies::Frame { token, at, len } if token & HELD != 0 => {
                        assert_eq!(
                            (at, slots.held.remove(&token)),
                            (0, Some(len)),
                            "a copy came back twice, or changed"
                        );
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
            theirs = said_hello(&out).unwrap_or(theirs);
        }
        if path.stats().connections > before.connections {
            // A peer that began anew said so.
            own = said_hello(&bytes).unwrap_or(own);
            came.clear();
        }
        if !path.is_connected() {
            // One that goes on answers.
            own += 1;
            let _ = path.receive(now, &hello(own, theirs), 0, &mut slots);
            came.clear();
        }
        for counts in flows.iter().filter_map(|flow| path.counts(*flow)) {
            assert!(counts.balance(), "{counts:?}");
        }
    }
});
