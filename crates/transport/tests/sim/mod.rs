//! Two hosts, a network that does what a seed says, and the clients whose memory outlives their runtimes.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::LazyLock;
use std::time::Duration;

use insane_transport::{
    Alike, Config, Counts, End, Event, Fit, FlowSpec, Gather, Landings, Lies, Outgoing, Path, Payloads, Rest, Row,
    SendError, Store,
};
use insane_wire::frame::record::{MAX_BUNDLE, MAX_BUNDLED, bundle_prefix};

pub(crate) const MS: Duration = Duration::from_millis(1);

/// SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n.max(1)
    }

    pub(crate) fn percent(&mut self, p: u64) -> bool {
        self.below(100) < p
    }
}

/// What the network does, in percent of frames.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Weather {
    pub(crate) lose: u64,
    pub(crate) repeat: u64,
    pub(crate) delay: u64,
    /// How many change places with one of the seven before them that arrive at the same time.
    pub(crate) mix: u64,
    pub(crate) change: u64,
    /// How often, in percent, the link is cut or a runtime killed, per 100 ms of the first two seconds.
    pub(crate) cut: u64,
    pub(crate) kill: u64,
    /// How often, in percent, the frames that a host may send become larger or smaller, per millisecond.
    pub(crate) resize: u64,
}

/// What payloads are cut out of: as long as a prime, so that no size of frame or slot comes again in it.
static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = Random(0x1a5e);
    (0..65_521).map(|_| random.next() as u8).collect()
});

/// The payload of a message from a place on, in pieces: anybody can tell what it should be.
fn payload(epoch: u128, sequence: u64, from: u32, len: u32) -> impl Iterator<Item = &'static [u8]> {
    let start = Random(sequence ^ epoch as u64).next() % NOISE.len() as u64;
    let (mut at, mut left) = ((start as usize + from as usize) % NOISE.len(), len as usize);
    std::iter::from_fn(move || {
        let piece = &NOISE[at..(at + left).min(NOISE.len())];
        (at, left) = (0, left - piece.len());
        (!piece.is_empty()).then_some(piece)
    })
}

/// Puts the payload of a message from a place on behind what is there.
fn put_payload(out: &mut Vec<u8>, epoch: u128, sequence: u64, from: u32, len: u32) {
    payload(epoch, sequence, from, len).for_each(|piece| out.extend_from_slice(piece));
}

/// Whether this is the whole payload of a message.
fn is_payload(epoch: u128, sequence: u64, mut bytes: &[u8]) -> bool {
    payload(epoch, sequence, 0, bytes.len() as u32).all(|piece| {
        let (is, rest) = bytes.split_at(piece.len());
        bytes = rest;
        is == piece
    })
}

/// The messages of sources by token: what a client's segment would hold.
#[derive(Debug, Default)]
struct Payloads1 {
    sizes: HashMap<u64, (u128, u64, u32)>,
    /// Of those that are bundles: the sizes of their messages.
    bundles: HashMap<u64, Vec<u32>>,
}

/// Messages that follow each other, as a bundle has them.
fn bundle(epoch: u128, first: u64, sizes: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (sequence, &len) in (first..).zip(sizes) {
        bytes.extend_from_slice(&u64::from(len).to_le_bytes());
        put_payload(&mut bytes, epoch, sequence, 0, len);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    bytes
}

/// Frames that were built, with what was left where it lies.
pub(crate) fn whole(out: &[u8], alike: &Alike, payloads: &mut dyn Payloads) -> Vec<Vec<u8>> {
    let heads = out.chunks(alike.in_buffer());
    let frames: Vec<_> = (0..)
        .zip(heads)
        .map(|(n, head)| {
            let mut frame = head.to_vec();
            if let Some(Gather { token, offset, len }) = alike.gather {
                payloads.copy(token, offset + n * alike.every, len, &mut frame);
            }
            assert_eq!(frame.len(), alike.len);
            frame
        })
        .collect();
    assert_eq!(frames.len(), alike.frames);
    frames
}

impl Payloads for Payloads1 {
    fn copy(&mut self, token: u64, offset: u32, len: u32, out: &mut Vec<u8>) {
        let (epoch, sequence, _) = self.sizes[&token];
        match self.bundles.get(&token) {
            Some(sizes) => {
                out.extend_from_slice(&bundle(epoch, sequence, sizes)[offset as usize..(offset + len) as usize]);
            }
            None => put_payload(out, epoch, sequence, offset, len),
        }
    }

    fn bundle(&mut self, token: u64, rest: Rest, room: u32, most: u16) -> Option<Fit> {
        let (epoch, sequence, _) = self.sizes[&token];
        let sizes = &self.bundles[&token];
        let left = &sizes[sizes.len() - usize::from(rest.count)..];
        let bytes = bundle(epoch, sequence, sizes);
        let (len, count) = bundle_prefix(&bytes[rest.offset as usize..], room as usize, most)?;
        let len = if count == 0 { 8 + left[0].next_multiple_of(8) } else { len as u32 };
        Some(Fit { count, len, payload: left[..usize::from(count)].iter().sum(), first: left[0] })
    }
}

/// A source: a client of the sending host.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) epoch: u128,
    pub(crate) domain: u32,
    pub(crate) reliable: bool,
    /// Messages still to be emitted: sizes.
    pub(crate) todo: VecDeque<u32>,
    next: u64,
    /// Reliable: not confirmed. Best effort: given to the runtime.
    retained: BTreeMap<u64, u32>,
    flow: Option<u32>,
    pub(crate) refused: u64,
    pub(crate) emitted: u64,
    /// Of paths that are gone.
    pub(crate) past: Counts,
    pub(crate) ends: HashMap<End, u64>,
}

/// A sink: a client of the receiving host. Its cursor outlives the runtime.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    pub(crate) reliable: bool,
    pub(crate) seen: Vec<u64>,
    pub(crate) cursor: u64,
    /// Handed over by the runtime and not consumed: flow, sequence, bytes.
    link: VecDeque<(u32, u64, u64)>,
    once: BTreeSet<u64>,
}

/// One host's runtime with its clients.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) path: Path,
    config: Config,
    pub(crate) sources: Vec<Source>,
    pub(crate) sinks: HashMap<u128, Sink>,
    flows: HashMap<u32, u128>,
    payloads: Payloads1,
    next_token: u64,
    /// The longest message that was given as a part of a bundle, in bytes.
    pub(crate) longest_bundled: u32,
    pub(crate) memory: Memory,
    pub(crate) lost: u64,
    pub(crate) stalled: bool,
    pub(crate) placed: u64,
    /// Of them, those that held the end of one message and the beginning of another.
    pub(crate) joined: usize,
    pub(crate) strays: u64,
    pub(crate) rows: u64,
    /// When it was last looked at, and what has gone at once since.
    now: Duration,
    at_once: Vec<Vec<u8>>,
    /// How many messages went at once, and how many were taken that came alone.
    pub(crate) alone: [u64; 2],
    /// Its clients emit a message now and then, by itself.
    pub(crate) spares: bool,
}

/// The receiver's memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) frames: HashMap<u64, (Vec<u8>, u32)>,
    pub(crate) slots: HashMap<u64, Vec<u8>>,
    next: u64,
    pub(crate) most_slots: usize,
    pub(crate) refused: u64,
    pub(crate) most_held: usize,
    pub(crate) refused_to_hold: u64,
}

impl Store for Memory {
    fn reserve(&mut self, _flow: u32, bytes: u32, urgent: bool) -> Option<u64> {
        if !urgent && self.slots.len() >= self.most_slots {
            self.refused += 1;
            return None;
        }
        self.next += 1;
        self.slots.insert(self.next, vec![0xee; bytes as usize]);
        Some(self.next)
    }

    fn fill(&mut self, slot: u64, at: u32, bytes: &[u8]) {
        let slot = self.slots.get_mut(&slot).expect("a slot that was reserved");
        slot[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn hold(&mut self, _flow: u32, bytes: &[u8]) -> Option<u64> {
        if self.frames.len() >= self.most_held {
            self.refused_to_hold += 1;
            return None;
        }
        self.next += 1;
        self.frames.insert(self.next, (bytes.to_vec(), 1));
        Some(self.next)
    }

    fn copy_out(&self, slot: u64, at: u32, len: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.slots[&slot][at as usize..(at + len) as usize]);
    }
}

impl Memory {
    /// Takes out what an event's payload is.
    fn take(&mut self, lies: Lies) -> Vec<u8> {
        match lies {
            Lies::Slot { slot, len } => {
                let mut bytes = self.slots.remove(&slot).expect("a slot is given back once");
                bytes.truncate(if len == 0 { bytes.len() } else { len as usize });
                bytes
            }
            Lies::Frame { token, at, len } => {
                let frame = self.frames.get_mut(&token).expect("a frame is kept while it is needed");
                let bytes = frame.0[at..at + len].to_vec();
                frame.1 = frame.1.checked_sub(1).expect("no more references than were said");
                if frame.1 == 0 {
                    self.frames.remove(&token);
                }
                bytes
            }
        }
    }
}

impl Host {
    pub(crate) fn new(config: Config, seed: u64, now: Duration) -> Self {
        Self {
            path: Path::new(config, seed, now),
            config,
            sources: Vec::new(),
            sinks: HashMap::new(),
            flows: HashMap::new(),
            payloads: Payloads1::default(),
            next_token: 1,
            longest_bundled: 0,
            memory: Memory { most_slots: 12, most_held: 48, ..Memory::default() },
            lost: 0,
            stalled: false,
            placed: 0,
            joined: 0,
            strays: 0,
            rows: 0,
            now,
            at_once: Vec::new(),
            alone: [0; 2],
            spares: false,
        }
    }

    pub(crate) fn source(&mut self, epoch: u128, domain: u32, reliable: bool, todo: VecDeque<u32>) {
        let ends = HashMap::new();
        let (retained, past) = (BTreeMap::new(), Counts::default());
        let source =
            Source { epoch, domain, reliable, todo, next: 1, retained, flow: None, refused: 0, emitted: 0, past, ends };
        self.sources.push(source);
    }

    pub(crate) fn sink(&mut self, epoch: u128, reliable: bool) {
        self.sinks.insert(epoch, Sink { reliable, ..Sink::default() });
    }

    /// The runtime is killed and started anew; its clients come back with what they have.
    pub(crate) fn restart(&mut self, seed: u64, now: Duration, random: &mut Random) {
        for source in &mut self.sources {
            if let Some(counts) = source.flow.take().and_then(|flow| self.path.counts(flow)) {
                assert!(counts.balance(), "{counts:?}");
                source.past.delivered += counts.delivered;
                source.past.unconfirmed += counts.unconfirmed + counts.under_way + counts.waiting;
                source.past.lost += counts.lost;
                source.past.dropped += counts.dropped;
            }
        }
        self.path = Path::new(self.config, seed, now);
        self.flows.clear();
        self.payloads.sizes.clear();
        let Memory { most_slots, most_held, .. } = self.memory;
        self.memory = Memory { most_slots, most_held, ..Memory::default() };
        for sink in self.sinks.values_mut() {
            // What lay in the links may or may not be read still.
            if random.percent(50) {
                sink.link.clear();
            }
            while let Some((_, sequence, _)) = sink.link.pop_front() {
                sink.consume(sequence);
            }
        }
        for n in 0..self.sources.len() {
            if !self.sources[n].reliable {
                self.sources[n].retained.clear();
            }
            self.reopen(n);
        }
    }

    pub(crate) fn reopen(&mut self, n: usize) {
        let source = &mut self.sources[n];
        let first = source.retained.keys().next().copied().unwrap_or(source.next);
        let spec =
            FlowSpec { domain: source.domain, epoch: source.epoch, channel: 5, reliable: source.reliable, first };
        let flow = self.path.open(spec);
        source.flow = Some(flow);
        let again: Vec<(u64, u32)> = source.retained.iter().map(|(sequence, len)| (*sequence, *len)).collect();
        for (sequence, len) in again {
            assert_eq!(self.give(n, flow, sequence, len), Ok(()));
        }
    }

    /// Frames of so many bytes may be sent from now on.
    pub(crate) fn resize(&mut self, bytes: usize) {
        self.config.frame_limit = bytes;
        self.path.set_frame_limit(bytes);
    }

    fn give(&mut self, n: usize, flow: u32, sequence: u64, len: u32) -> Result<(), SendError> {
        let token = self.next_token;
        // Of those that may be alike none has one.
        let timestamp_ns = if len.is_multiple_of(8) { 0 } else { sequence & 1 };
        let message = Outgoing { token, len, sequence, timestamp_ns, ..Outgoing::default() };
        self.path.send(flow, message)?;
        self.next_token += 1;
        self.payloads.sizes.insert(token, (self.sources[n].epoch, sequence, len));
        Ok(())
    }

    /// Gives a flow a message that goes at once, if it can.
    fn give_at_once(&mut self, n: usize, flow: u32, sequence: u64, len: u32) -> bool {
        let (message, epoch) = (Outgoing { len, sequence, ..Outgoing::default() }, self.sources[n].epoch);
        let (mut frame, before) = (Vec::new(), self.path.counts(flow));
        let fill = |out: &mut Vec<u8>| put_payload(out, epoch, sequence, 0, len);
        let Some(built) = self.path.send_at_once(self.now, flow, &message, &mut frame, fill) else {
            assert!(frame.is_empty() && self.path.counts(flow) == before, "something was done");
            return false;
        };
        assert!(built == frame.len() && built <= self.config.frame_limit && !self.sources[n].reliable);
        self.at_once.push(frame);
        self.alone[0] += 1;
        true
    }

    /// Gives a flow the messages that are next as one; how many those were. Now and then one is longer than a frame.
    fn give_bundle(&mut self, n: usize, flow: u32, most: usize) -> Option<Result<u16, SendError>> {
        let source = &self.sources[n];
        let whole = match source.next {
            next if next.is_multiple_of(256) => MAX_BUNDLED,
            _ => self.path.whole_bytes(),
        };
        let small = source.todo.iter().take_while(|len| **len <= whole.min(MAX_BUNDLED));
        let sizes: Vec<u32> = small.take(most.min(MAX_BUNDLE.into())).copied().collect();
        let count = sizes.len() as u16;
        if count == 0 {
            return None;
        }
        let (epoch, sequence, token) = (source.epoch, source.next, self.next_token);
        let len = bundle(epoch, sequence, &sizes).len() as u32;
        let message = Outgoing { token, len, sequence, bundle: count, ..Outgoing::default() };
        if let Err(why) = self.path.send(flow, message) {
            return Some(Err(why));
        }
        self.next_token += 1;
        self.longest_bundled = sizes.iter().copied().chain([self.longest_bundled]).max().unwrap_or(0);
        self.payloads.sizes.insert(token, (epoch, sequence, len));
        self.payloads.bundles.insert(token, sizes);
        Some(Ok(count))
    }

    /// Clients emit and consume.
    pub(crate) fn clients(&mut self, random: &mut Random) {
        for n in 0..self.sources.len() {
            let Some(flow) = self.sources[n].flow else { continue };
            let most = if self.spares { u64::from(random.percent(20)) } else { random.below(12) };
            for _ in 0..most {
                let source = &self.sources[n];
                // A reliable source waits when it has as much out as its slots allow.
                if source.reliable && source.retained.len() >= 64 {
                    break;
                }
                if !self.spares && random.percent(50) {
                    match self.give_bundle(n, flow, 1 + random.below(64) as usize) {
                        Some(Ok(count)) => {
                            let source = &mut self.sources[n];
                            for _ in 0..count {
                                let len = source.todo.pop_front().expect("it was given");
                                source.retained.insert(source.next, len);
                                source.next += 1;
                            }
                            source.emitted += u64::from(count);
                            continue;
                        }
                        Some(Err(SendError::Full)) | None => {}
                        Some(Err(e)) => panic!("{e}"),
                    }
                }
                let source = &self.sources[n];
                let (Some(&len), sequence) = (source.todo.front(), source.next) else { break };
                if random.percent(50) && self.give_at_once(n, flow, sequence, len) {
                    let source = &mut self.sources[n];
                    *source.ends.entry(End::Sent).or_default() += 1;
                    source.emitted += 1;
                    source.todo.pop_front();
                    source.next += 1;
                    continue;
                }
                let given = self.give(n, flow, sequence, len);
                let source = &mut self.sources[n];
                match given {
                    Ok(()) => {
                        source.retained.insert(sequence, len);
                        source.emitted += 1;
                    }
                    Err(SendError::Full) if source.reliable => break,
                    Err(SendError::Full) => source.refused += 1,
                    Err(e) => panic!("{e}"),
                }
                source.todo.pop_front();
                source.next += 1;
            }
        }
        if self.stalled {
            return;
        }
        for sink in self.sinks.values_mut() {
            for _ in 0..random.below(20) {
                let Some((flow, sequence, bytes)) = sink.link.pop_front() else { break };
                sink.consume(sequence);
                self.path.consumed(flow, 1, bytes);
                self.path.advance(flow, sink.cursor);
            }
        }
    }

    /// The runtime puts a message on the link to its sink. After a connection has begun anew a bundle is sent whole.
    fn hand_over(&mut self, epoch: u128, item: (u32, u64, u64)) {
        let sink = self.sinks.get_mut(&epoch).expect("a sink that was accepted");
        if sink.reliable && item.1 <= sink.handed() {
            self.path.consumed(item.0, 1, item.2);
        } else {
            sink.link.push_back(item);
        }
    }

    pub(crate) fn events(&mut self) {
        while let Some(event) = self.path.event() {
            match event {
                Event::Requested { open, .. } => match self.sinks.get(&open.epoch) {
                    Some(sink) => {
                        self.path.accept(open.flow, sink.handed());
                        self.flows.insert(open.flow, open.epoch);
                    }
                    None => self.path.refuse(open.flow, 1),
                },
                Event::Message { flow, message, lies } => {
                    let bytes = self.memory.take(lies);
                    let epoch = self.flows[&flow];
                    assert!(is_payload(epoch, message.sequence, &bytes), "message {} is changed", message.sequence);
                    // What was given as a part of a bundle has no times, also when it travels alone.
                    assert!([0, message.sequence & 1].contains(&message.timestamp_ns));
                    self.hand_over(epoch, (flow, message.sequence, bytes.len() as u64));
                }
                Event::Bundle { flow, message, count, lies } => {
                    let bytes = self.memory.take(lies);
                    let epoch = self.flows[&flow];
                    let mut rest = &bytes[..];
                    for sequence in message.sequence..message.sequence + u64::from(count) {
                        let len = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
                        assert!(is_payload(epoch, sequence, &rest[8..8 + len]), "message {sequence} is changed");
                        rest = &rest[8 + len.next_multiple_of(8)..];
                        self.hand_over(epoch, (flow, sequence, len as u64));
                    }
                    assert!(rest.is_empty());
                }
                Event::Discard(lies) => drop(self.memory.take(lies)),
                Event::Released { flow, token, end } => {
                    let source = self.sources.iter_mut().find(|source| source.flow == Some(flow)).expect("its source");
                    let (_, sequence, _) = self.payloads.sizes[&token];
                    let count = self.payloads.bundles.get(&token).map_or(1, |sizes| sizes.len() as u64);
                    *source.ends.entry(end).or_default() += count;
                    for sequence in sequence..sequence + count {
                        assert!(source.retained.remove(&sequence).is_some(), "{sequence} is released twice");
                    }
                }
                Event::Lost(_) => self.lost += 1,
                Event::Closed { flow, counts } => {
                    let source = self.sources.iter_mut().find(|source| source.flow == Some(flow)).expect("its source");
                    assert!(counts.balance() && counts.waiting == 0 && counts.under_way == 0, "{counts:?}");
                    source.past.delivered += counts.delivered;
                    source.past.lost += counts.lost;
                    source.past.dropped += counts.dropped;
                    source.past.unconfirmed += counts.unconfirmed;
                    source.flow = None;
                }
                Event::Ended { flow, .. } => {
                    self.flows.remove(&flow);
                    // Messages of an ended flow may still be in links; their credit is worth nothing.
                }
                _ => {}
            }
        }
    }

    /// The frames that go now, whole.
    pub(crate) fn frames(&mut self, now: Duration) -> Vec<Vec<u8>> {
        let (mut out, mut frames) = (Vec::new(), core::mem::take(&mut self.at_once));
        self.now = now;
        while let Some(built) = self.path.transmit(now, &mut out, &mut self.payloads) {
            let one = Alike { frames: 1, len: built.len, gather: built.gather, every: 0, may_pad: built.may_pad };
            frames.extend(whole(&core::mem::take(&mut out), &one, &mut self.payloads));
            assert!(built.len <= self.config.frame_limit);
            // Runs of frames that are alike, of all lengths.
            let most = self.next_token as usize % 70;
            if let Some(alike) = self.path.transmit_alike(now, &mut out, &mut self.payloads, most) {
                assert!(alike.frames <= most && alike.len <= self.config.frame_limit);
                frames.extend(whole(&core::mem::take(&mut out), &alike, &mut self.payloads));
            }
            assert!(frames.len() < 100_000, "no end of frames");
        }
        frames
    }

    pub(crate) fn arrive(&mut self, now: Duration, frame: Vec<u8>) {
        self.now = now;
        self.memory.next += 1;
        let token = self.memory.next;
        if token.is_multiple_of(2)
            && let Some(row) = self.path.receive_alone(now, &frame)
        {
            assert_eq!(row.count, 1);
            self.alone[1] += 1;
            self.take_row(&row, &frame, frame.len());
            return;
        }
        let receipt = self.path.receive(now, &frame, token, &mut self.memory);
        if receipt.kept > 0 {
            self.memory.frames.insert(token, (frame, receipt.kept));
        }
    }

    /// Receives those of the frames behind the first, which was received, that are like it; how many.
    pub(crate) fn arrive_alike(&mut self, now: Duration, frames: &[Vec<u8>]) -> usize {
        let stride = frames[0].len();
        let alike = frames[1..].iter().take_while(|frame| frame.len() == stride);
        let rest = alike.map(Vec::as_slice).collect::<Vec<_>>().concat();
        let Some(row) = self.path.receive_alike(now, &frames[0], &rest, stride) else { return 0 };
        self.rows += 1;
        self.take_row(&row, &rest, stride);
        row.count.into()
    }

    fn take_row(&mut self, row: &Row, frames: &[u8], stride: usize) {
        let epoch = self.flows[&row.flow];
        for (message, at) in row.messages(stride) {
            let is = &frames[at..at + row.len];
            assert!(is_payload(epoch, message.sequence, is), "message {} is changed", message.sequence);
            self.hand_over(epoch, (row.flow, message.sequence, row.len as u64));
        }
    }

    /// Receives frames that came at one instant as a datapath with joined receive does, which places payloads by the head of
    /// the first: up to four pieces, all of them before the path has any. Says how many frames it took.
    pub(crate) fn arrive_joined(&mut self, now: Duration, frames: &[Vec<u8>], random: &mut Random) -> usize {
        let (mut batch, mut pieces, mut at) = (Landings::default(), Vec::new(), 0);
        let most = random.below(8).min(4) as usize;
        while at < frames.len() && pieces.len() < most {
            let longest = 1 + random.below(64) as usize;
            let end = frames.len().min(at + longest);
            let Some((count, piece)) = self.land(now, &frames[at..end], &mut batch) else { break };
            pieces.push(piece);
            at += count;
        }
        for Landed { heads, tails, number } in pieces {
            self.path.receive_run(now, (&heads, &tails), number, &mut batch, &mut self.memory);
            self.placed += 1;
        }
        for stray in batch.finish() {
            self.strays += 1;
            self.arrive(now, stray.frame);
        }
        at
    }

    /// Receives the first piece of these frames to where it belongs; says how many frames those are.
    fn land(&mut self, now: Duration, frames: &[Vec<u8>], batch: &mut Landings) -> Option<(usize, Landed)> {
        let stride = frames[0].len();
        let mut run = Vec::new();
        for (n, frame) in frames.iter().enumerate().take_while(|(_, frame)| frame.len() <= stride) {
            run.push(frame.clone());
            // A sender fills up what is a little shorter, if others follow.
            let follows = frames.get(n + 1).is_some_and(|next| next.len() <= stride);
            if frame.len() < stride {
                if !follows || frame.len() < stride / 4 * 3 {
                    break;
                }
                run[n].resize(stride, 0);
            }
        }
        let len = run.iter().map(Vec::len).sum();
        let head = &run[0][..stride.min(128)];
        let landing = self.path.place(now, head, len, stride, &mut self.memory, batch)?;
        if run[run.len() - 1].len() < landing.head_bytes {
            return None;
        }
        let (mut heads, mut tails, mut regions) = (Vec::new(), Vec::new(), batch.regions(&landing).iter());
        let (mut slot, mut at, mut end) = (0, 0, 0);
        for frame in &run {
            let (head, body) = frame.split_at(landing.head_bytes);
            heads.extend_from_slice(head);
            if at == end && !body.is_empty() {
                let region = regions.next().expect("a region for each frame");
                (slot, at, end) = (region.slot, region.at, region.at + region.bytes);
            }
            let (body, tail) = body.split_at(body.len().min((end - at) as usize));
            self.memory.fill(slot, at, body);
            at += body.len() as u32;
            tails.extend_from_slice(tail);
        }
        self.joined += usize::from(batch.regions(&landing).len() > 1);
        assert!(at == end && regions.next().is_none());
        Some((run.len(), Landed { heads, tails, number: landing.number }))
    }

    pub(crate) fn balance(&self) {
        for source in &self.sources {
            if let Some(counts) = source.flow.and_then(|flow| self.path.counts(flow)) {
                assert!(counts.balance(), "{counts:?}");
            }
        }
        assert!(self.memory.frames.len() <= 3 * 4096, "memory of frames is not bounded");
        assert!(self.memory.slots.len() <= self.memory.most_slots + self.flows.len());
    }

    pub(crate) fn idle(&self) -> bool {
        self.sources.iter().all(|source| source.todo.is_empty() && source.retained.is_empty())
            && self.sinks.values().all(|sink| sink.link.is_empty())
    }

    pub(crate) fn flow_of(&self, n: usize) -> Option<u32> {
        self.sources[n].flow
    }
}

/// What was received to a landing: the heads of its frames, and what had no room there.
struct Landed {
    heads: Vec<u8>,
    tails: Vec<u8>,
    number: usize,
}

impl Sink {
    /// What the runtime that survives its sinks' clients has put on their link already.
    fn handed(&self) -> u64 {
        self.link.iter().map(|item| item.1).max().unwrap_or(0).max(self.cursor)
    }

    fn consume(&mut self, sequence: u64) {
        assert!(self.once.insert(sequence), "message {sequence} came twice");
        if self.reliable {
            assert_eq!(sequence, self.cursor + 1, "messages are out of order or missing");
        }
        self.cursor = self.cursor.max(sequence);
        self.seen.push(sequence);
    }
}

/// The network between two hosts.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) hosts: [Host; 2],
    pub(crate) random: Random,
    pub(crate) weather: Weather,
    /// What is larger than so many bytes is dropped without a word.
    pub(crate) carries: usize,
    /// Arrival, order, to whom, what.
    wire: BTreeMap<(Duration, u64), (usize, Vec<u8>)>,
    pub(crate) sent: u64,
    pub(crate) cut_until: Duration,
    next_clients: Duration,
    pub(crate) kills: u64,
    pub(crate) cuts: u64,
    next_event: Duration,
}

impl World {
    pub(crate) fn new(config: Config, seed: u64, weather: Weather) -> Self {
        let mut random = Random(seed);
        let now = MS * 10;
        let hosts = [Host::new(config, random.next(), now), Host::new(config, random.next(), now)];
        Self {
            now,
            hosts,
            random,
            weather,
            carries: usize::MAX,
            wire: BTreeMap::new(),
            sent: 0,
            cut_until: Duration::ZERO,
            next_clients: now,
            kills: 0,
            cuts: 0,
            next_event: now + MS * 100,
        }
    }

    fn post(&mut self, to: usize, frame: Vec<u8>) {
        let w = self.weather;
        if frame.len() > self.carries || self.now < self.cut_until || self.random.percent(w.lose) {
            return;
        }
        let copies = if self.random.percent(w.repeat) { 2 } else { 1 };
        for _ in 0..copies {
            let mut frame = frame.clone();
            if self.random.percent(w.change) {
                let at = self.random.below(frame.len() as u64) as usize;
                frame[at] ^= 1 << self.random.below(8);
            }
            let jitter = if self.random.percent(w.delay) {
                self.random.below(20_000)
            } else {
                self.random.below(if w.delay > 0 { 50 } else { 1 })
            };
            let at = self.now + Duration::from_micros(100 + jitter);
            self.sent += 1;
            self.wire.insert((at, self.sent), (to, frame));
        }
    }

    /// One step of the world: whatever is due next.
    pub(crate) fn step(&mut self) {
        for n in 0..2 {
            for frame in self.hosts[n].frames(self.now) {
                self.post(1 - n, frame);
            }
            self.hosts[n].events();
        }
        let mut next = self.next_clients;
        if let Some(((at, _), _)) = self.wire.first_key_value() {
            next = next.min(*at);
        }
        for host in &mut self.hosts {
            if let Some(at) = host.path.timeout() {
                next = next.min(at);
            }
        }
        self.now = next.max(self.now + Duration::from_micros(1));
        let mut came = [Vec::new(), Vec::new()];
        while let Some(entry) = self.wire.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (to, frame) = entry.remove();
            came[to].push(frame);
        }
        for (host, mut frames) in self.hosts.iter_mut().zip(came) {
            for later in 1..frames.len() {
                if self.weather.mix > 0 && self.random.percent(self.weather.mix) {
                    frames.swap(later, later.saturating_sub(1 + self.random.below(7) as usize));
                }
            }
            let mut at = 0;
            while at < frames.len() {
                let joined = host.arrive_joined(self.now, &frames[at..], &mut self.random);
                if joined == 0 {
                    host.arrive(self.now, frames[at].clone());
                }
                at += joined.max(1);
                host.events();
                if joined == 0 && self.random.percent(70) {
                    at += host.arrive_alike(self.now, &frames[at - 1..]);
                    host.events();
                }
            }
        }
        if self.next_clients <= self.now {
            self.next_clients = self.now + MS;
            for n in 0..2 {
                self.hosts[n].clients(&mut self.random);
                self.hosts[n].events();
                self.hosts[n].balance();
                if self.weather.resize > 0 && self.random.percent(self.weather.resize) {
                    self.hosts[n].resize([512, 1472, 9000][self.random.below(3) as usize]);
                }
            }
            self.disasters();
        }
    }

    fn disasters(&mut self) {
        if self.now < self.next_event || self.now > MS * 2000 {
            return;
        }
        self.next_event = self.now + MS * 100;
        if self.random.percent(self.weather.cut) {
            self.cuts += 1;
            self.cut_until = self.now + MS * (50 + self.random.below(4000) as u32);
        }
        if self.random.percent(self.weather.kill) {
            self.kills += 1;
            let who = self.random.below(2) as usize;
            let seed = self.random.next();
            self.hosts[who].restart(seed, self.now, &mut self.random);
        }
    }

    /// Runs until `done`, or panics after `limit` of virtual time.
    pub(crate) fn run(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            self.step();
            if self.now >= limit {
                for host in &self.hosts {
                    for source in &host.sources {
                        let counts = source.flow.map(|flow| (flow, host.path.counts(flow)));
                        eprintln!("{:?} {} todo, {} retained", counts, source.todo.len(), source.retained.len());
                    }
                    for (epoch, sink) in &host.sinks {
                        eprintln!(
                            "sink {epoch}: {} seen, cursor {}, link {}",
                            sink.seen.len(),
                            sink.cursor,
                            sink.link.len()
                        );
                    }
                    eprintln!("{} slots, {} frames", host.memory.slots.len(), host.memory.frames.len());
                }
                panic!("not done after {limit:?}: {:?}", self.hosts.each_ref().map(|h| h.path.stats()));
            }
        }
    }
}
