//! A path over UDP on the loopback addresses: messages of all sizes up to 128 MiB arrive as they were, small ones in the frames
//! that came, large ones straight in their slots.

use std::array;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use insane_datapath::batch::{Landing, Peeked, Place, RxBatch, TxBatch};
use insane_datapath::memory::{Piece, Slot};
use insane_datapath::{Address, Datapath};
use insane_datapath_udp::{UdpConfig, UdpDatapath};
use insane_transport::{
    Config, Counts, Event, FlowSpec, Landings, Lies, MOST_REGIONS, Outgoing, Path, Payloads, Store,
};

struct Sources<'m>(&'m [Vec<u8>]);

impl Payloads for Sources<'_> {
    fn copy(&mut self, token: u64, offset: u32, len: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0[token as usize][offset as usize..(offset + len) as usize]);
    }
}

#[derive(Default)]
struct Slots {
    used: HashMap<u64, Vec<u8>>,
    next: u64,
    /// Bytes that were copied here instead of landing here.
    copied: u64,
}

impl Store for Slots {
    fn reserve(&mut self, _flow: u32, bytes: u32, _urgent: bool) -> Option<u64> {
        self.next += 1;
        self.used.insert(self.next, vec![0; bytes as usize]);
        Some(self.next)
    }

    fn fill(&mut self, slot: u64, at: u32, bytes: &[u8]) {
        self.copied += bytes.len() as u64;
        let slot = self.used.get_mut(&slot).expect("a slot that was reserved");
        slot[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn hold(&mut self, _flow: u32, _bytes: &[u8]) -> Option<u64> {
        None
    }

    fn copy_out(&self, slot: u64, at: u32, len: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.used[&slot][at as usize..(at + len) as usize]);
    }
}

struct Placer<'a> {
    path: &'a mut Path,
    slots: &'a mut Slots,
    now: Duration,
    landings: Landings,
}

impl Place for Placer<'_> {
    fn expects(&self) -> bool {
        self.path.expects_fragments()
    }

    fn place(&mut self, peeked: Peeked<'_>) -> Option<Landing<'_>> {
        let landing =
            self.path.place(self.now, peeked.head, peeked.len, peeked.stride, self.slots, &mut self.landings)?;
        let mut regions = self.landings.regions(&landing).iter();
        // No slot has the name of those that are not there.
        let names: [u64; MOST_REGIONS] =
            array::from_fn(|n| regions.as_slice().get(n).map_or(u64::MAX, |region| region.slot));
        let [memory, then @ ..] = self.slots.used.get_disjoint_mut(names.each_ref()).map(|slot| {
            let region = regions.next()?;
            slot?.get_mut(region.at as usize..(region.at + region.bytes) as usize)
        });
        Some(Landing { memory: memory?, then, head_bytes: landing.head_bytes, token: landing.number as u64 })
    }
}

struct End {
    udp: UdpDatapath,
    path: Path,
    slots: Slots,
    rx: RxBatch,
    got: Vec<Vec<u8>>,
    counts: Option<Counts>,
}

impl End {
    fn new(seed: u64, frame_limit: usize) -> Self {
        let mut config = UdpConfig::new("127.0.0.1:0".parse().expect("an address"));
        config.stride = Some(insane_wire::frame::stride);
        let mut udp = UdpDatapath::new(config);
        udp.open().expect("it opens");
        let config =
            Config { frame_limit, dedicated: true, credit_bytes: 2 << 20, credit_messages: 512, ..Config::default() };
        let free = (0..32).map(|id| Slot::owned(id, 65_536)).collect();
        let path = Path::new(config, seed, Duration::ZERO);
        let (slots, rx) = (Slots::default(), RxBatch { free, ..RxBatch::default() });
        Self { udp, path, slots, rx, got: Vec::new(), counts: None }
    }

    fn send<'m>(&mut self, now: Duration, to: Address, batch: &mut TxBatch<'m>, sources: &'m [Vec<u8>]) {
        if batch.is_done() {
            batch.clear();
            // Whole pieces of frames of 1464 bytes.
            while batch.frames().len() < 5 * 44 {
                let first = batch.buffer().len();
                let Some(built) = self.path.transmit(now, batch.buffer(), &mut Sources(sources)) else { break };
                let piece = built.gather.map(|part| {
                    Piece::of(&sources[part.token as usize][part.offset as usize..(part.offset + part.len) as usize])
                });
                batch.commit(to, first, piece, 0);
                if built.may_pad {
                    batch.allow_padding();
                }
            }
        }
        self.udp.transmit(batch);
        self.events(&[]);
    }

    fn take(&mut self, now: Duration) {
        let mut place = Placer { path: &mut self.path, slots: &mut self.slots, now, landings: Landings::default() };
        self.udp.receive(&mut self.rx, Some(&mut place));
        let mut landings = place.landings;
        for landed in core::mem::take(&mut self.rx.landed) {
            let read = (&self.rx.heads[landed.heads], &self.rx.heads[landed.tails]);
            self.path.receive_run(now, read, landed.token as usize, &mut landings, &mut self.slots);
        }
        for stray in landings.finish() {
            self.path.receive(now, &stray.frame, 0, &mut self.slots);
            self.events(&stray.frame);
        }
        self.events(&[]);
        for taken in core::mem::take(&mut self.rx.taken) {
            for frame in taken.frames() {
                // Best effort or in order, so no frame is kept for later.
                self.path.receive(now, frame, 0, &mut self.slots);
                self.events(frame);
            }
            self.rx.free.push(taken.slot);
        }
    }

    fn events(&mut self, frame: &[u8]) {
        while let Some(event) = self.path.event() {
            match event {
                Event::Requested { open, .. } => self.path.accept(open.flow, 0),
                Event::Message { flow, message, lies } => {
                    let bytes = match lies {
                        Lies::Slot { slot, .. } => self.slots.used.remove(&slot).expect("its slot"),
                        Lies::Frame { at, len, .. } => frame[at..at + len].to_vec(),
                    };
                    self.path.consumed(flow, 1, bytes.len() as u64);
                    self.path.advance(flow, message.sequence);
                    self.got.push(bytes);
                }
                Event::Discard(Lies::Slot { slot, .. }) => drop(self.slots.used.remove(&slot)),
                Event::Closed { counts, .. } => self.counts = Some(counts),
                _ => {}
            }
        }
    }
}

/// Sends messages one way until the flow has closed; says what arrived, how the sender counts it, and who received it.
fn carry(sources: &[Vec<u8>], reliable: bool, frame_limit: usize) -> (Vec<Vec<u8>>, Counts, End) {
    let (mut a, mut b) = (End::new(11, frame_limit), End::new(12, frame_limit));
    let [here, there] = [&a, &b].map(|end| end.udp.address().expect("it is open"));
    let flow = a.path.open(FlowSpec { domain: 1, epoch: 5, channel: 6, reliable, first: 1 });
    for (n, source) in sources.iter().enumerate() {
        let next =
            Outgoing { token: n as u64, len: source.len() as u32, sequence: n as u64 + 1, ..Outgoing::default() };
        a.path.send(flow, next).expect("there is room");
    }
    a.path.close(flow);
    let (mut to_b, mut to_a, start) = (TxBatch::default(), TxBatch::default(), Instant::now());
    while a.counts.is_none() {
        let now = start.elapsed();
        a.send(now, there, &mut to_b, sources);
        b.take(now);
        b.send(now, here, &mut to_a, &[]);
        a.take(now);
        assert!(now < Duration::from_secs(120), "{:?} {:?}", a.path.stats(), b.path.stats());
    }
    (core::mem::take(&mut b.got), a.counts.expect("it has closed"), b)
}

fn sizes(sizes: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
    let make = |(n, len): (usize, usize)| (0..len).map(|at| (at * 7 + at / 251 + n * 31) as u8).collect();
    sizes.into_iter().enumerate().map(make).collect()
}

#[test]
fn messages_of_all_sizes_arrive_as_they_were() {
    let sources = sizes((0..400).map(|n| [n, n * 8, n * 37, n * 211][n % 4]));
    for frame_limit in [512, 1472, 8972, 65_507] {
        let (got, counts, _) = carry(&sources, true, frame_limit);
        assert!(got == sources, "frames of {frame_limit} bytes");
        assert_eq!((counts.delivered, counts.accepted), (400, 400));
    }
}

#[test]
fn a_message_of_128_mib_arrives_and_is_hardly_copied() {
    let sources = sizes([128 << 20, 3, 5 << 20]);
    let (got, _, End { slots: Slots { copied, .. }, .. }) = carry(&sources, true, 1472);
    assert!(got == sources, "the messages are not what was sent");
    // What comes before the receiver has seen that fragments come, and strays.
    assert!(copied < 13 << 20, "{copied} bytes were copied a second time");
}

#[test]
fn messages_that_share_a_piece_are_hardly_copied() {
    // A message of 8 KB is six frames, one of 64 KB is 47, and a piece has up to 44.
    for (len, frames) in [(8192, 35), (65_536, 35)] {
        let sources = sizes([len; 400]);
        let (got, _, End { udp, slots, .. }) = carry(&sources, true, 1472);
        assert!(got == sources, "the messages are not what was sent");
        assert!(slots.copied < 50 * len as u64, "{} bytes of 400 messages were copied a second time", slots.copied);
        let stats = udp.stats();
        assert!(stats.received_frames > stats.placed * frames, "pieces are short: {stats:?}");
    }
}

#[test]
fn best_effort_messages_are_whole_or_counted() {
    let sources = sizes((0..300).map(|n| n * 1000));
    let (got, counts, _) = carry(&sources, false, 1472);
    assert!(got.iter().all(|message| sources.contains(message)), "a message is not what was sent");
    assert_eq!(counts.delivered, got.len() as u64);
    assert_eq!(counts.delivered + counts.lost + counts.dropped, 300, "{counts:?}");
}
