//! A whole path over the UDP datapath: this is how a runtime puts the two together.

use std::array;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use insane_datapath::batch::{Landing, Peeked, Place, RxBatch, TxBatch};
use insane_datapath::memory::{Piece, Slot};
use insane_datapath::{Address, Datapath};
use insane_datapath_udp::{UdpConfig, UdpDatapath};
use insane_transport::{Config, Event, FlowSpec, Landings, Lies, MOST_REGIONS, Outgoing, Path, Payloads, Store};

use crate::{Seen, Watch};

/// Every payload is the same memory: what is measured is not filling it.
struct Payload<'m>(&'m [u8]);

impl Payloads for Payload<'_> {
    fn copy(&mut self, _token: u64, offset: u32, len: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0[offset as usize..offset as usize + len as usize]);
    }
}

/// Slots for messages of several frames, used again and again.
#[derive(Default)]
struct Pool {
    used: HashMap<u64, Vec<u8>>,
    free: Vec<Vec<u8>>,
    next: u64,
}

impl Store for Pool {
    fn reserve(&mut self, _flow: u32, bytes: u32, urgent: bool) -> Option<u64> {
        if self.used.len() >= 512 && !urgent {
            return None;
        }
        let mut slot = self.free.pop().unwrap_or_default();
        slot.resize(bytes as usize, 0);
        self.next += 1;
        self.used.insert(self.next, slot);
        Some(self.next)
    }

    fn fill(&mut self, slot: u64, at: u32, bytes: &[u8]) {
        if let Some(slot) = self.used.get_mut(&slot) {
            slot[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn hold(&mut self, _flow: u32, _bytes: &[u8]) -> Option<u64> {
        None
    }

    fn copy_out(&self, slot: u64, at: u32, len: u32, out: &mut Vec<u8>) {
        if let Some(slot) = self.used.get(&slot) {
            out.extend_from_slice(&slot[at as usize..(at + len) as usize]);
        }
    }
}

impl Pool {
    fn give_back(&mut self, slot: u64) {
        self.free.extend(self.used.remove(&slot));
    }
}

/// Tells the datapath where payloads belong.
struct Placer<'a> {
    path: &'a mut Path,
    pool: &'a mut Pool,
    now: Duration,
    landings: &'a mut Landings,
}

impl Place for Placer<'_> {
    fn expects(&self) -> bool {
        self.path.expects_fragments()
    }

    fn place(&mut self, peeked: Peeked<'_>) -> Option<Landing<'_>> {
        let landing = self.path.place(self.now, peeked.head, peeked.len, peeked.stride, self.pool, self.landings)?;
        let mut regions = self.landings.regions(&landing).iter();
        // No slot has the name of those that are not there.
        let names: [u64; MOST_REGIONS] =
            array::from_fn(|n| regions.as_slice().get(n).map_or(u64::MAX, |region| region.slot));
        let [memory, then @ ..] = self.pool.used.get_disjoint_mut(names.each_ref()).map(|slot| {
            let region = regions.next()?;
            slot?.get_mut(region.at as usize..(region.at + region.bytes) as usize)
        });
        Some(Landing { memory: memory?, then, head_bytes: landing.head_bytes, token: landing.number as u64 })
    }
}

struct End {
    udp: UdpDatapath,
    path: Path,
    pool: Pool,
    rx: RxBatch,
    landings: Landings,
    start: Instant,
    peer: Address,
    seen: Seen,
    watch: Watch,
    released: u64,
    accepted: bool,
}

pub(crate) fn run(here: SocketAddr, there: SocketAddr, size: usize, receive: bool, seconds: f64) -> Seen {
    let mut udp = UdpDatapath::new(UdpConfig::new(here));
    udp.open().expect("it opens");
    let peer = Address::Ip(there);
    let config = Config {
        frame_limit: udp.frame_limit(peer),
        dedicated: true,
        // What the socket's buffer can hold, so that credit alone keeps it from running over.
        credit_bytes: (3 << 20).max(size as u64),
        credit_messages: 16_384,
        queue_messages: 65_536,
        ..Config::default()
    };
    let rx = RxBatch { free: (0..64).map(|id| Slot::owned(id, 65_536)).collect(), limit: 4, ..RxBatch::default() };
    let (start, seed) = (Instant::now(), u64::from(std::process::id()) << 20 | u64::from(receive));
    let seen = Seen { messages: 0, bytes: 0, time: Duration::ZERO, lost: 0 };
    let path = Path::new(config, seed, Duration::ZERO);
    let pool = Pool::default();
    let landings = Landings::default();
    let mut end =
        End { udp, path, pool, rx, landings, start, peer, seen, watch: Watch::new(), released: 0, accepted: false };
    let memory = vec![7u8; size];
    let mut batch = TxBatch::default();
    if receive {
        while !end.watch.over() {
            end.take();
            end.send(&mut batch, &memory);
        }
        end.seen.time = end.watch.time();
        return end.seen;
    }
    let flow = end.path.open(FlowSpec { domain: 7, epoch: 1, channel: 1, reliable: true, first: 1 });
    let mut sequence = 0u64;
    while end.start.elapsed().as_secs_f64() < seconds + 0.2 {
        for _ in 0..512 {
            let next =
                Outgoing { token: sequence + 1, len: size as u32, sequence: sequence + 1, ..Outgoing::default() };
            if sequence - end.released > 32_768 || end.path.send(flow, next).is_err() {
                break;
            }
            sequence += 1;
        }
        end.send(&mut batch, &memory);
        end.take();
    }
    eprintln!("sender {:?} {:?}", end.path.stats(), end.udp.stats());
    end.seen
}

impl End {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Builds frames and sends them, until there are none or the datapath is busy.
    fn send<'m>(&mut self, batch: &mut TxBatch<'m>, memory: &'m [u8]) {
        let now = self.now();
        if batch.is_done() {
            batch.clear();
            while batch.frames().len() < 256 {
                let first = batch.buffer().len();
                let Some(built) = self.path.transmit(now, batch.buffer(), &mut Payload(memory)) else { break };
                let piece = built
                    .gather
                    .map(|part| Piece::of(&memory[part.offset as usize..(part.offset + part.len) as usize]));
                batch.commit(self.peer, first, piece, 0);
                if built.may_pad {
                    batch.allow_padding();
                }
            }
        }
        self.udp.transmit(batch);
        self.events();
    }

    /// Receives what is there.
    fn take(&mut self) {
        let now = self.now();
        let mut place = Placer { path: &mut self.path, pool: &mut self.pool, now, landings: &mut self.landings };
        self.udp.receive(&mut self.rx, Some(&mut place));
        for landed in core::mem::take(&mut self.rx.landed) {
            let read = (&self.rx.heads[landed.heads], &self.rx.heads[landed.tails]);
            self.path.receive_run(now, read, landed.token as usize, &mut self.landings, &mut self.pool);
        }
        for stray in self.landings.finish() {
            self.path.receive(now, &stray.frame, 0, &mut self.pool);
        }
        self.events();
        for taken in core::mem::take(&mut self.rx.taken) {
            for frame in taken.frames() {
                self.path.receive(now, frame, taken.slot.id(), &mut self.pool);
            }
            self.events();
            self.rx.free.push(taken.slot);
        }
    }

    /// A receiver takes every message as soon as it comes; a sender only counts.
    fn events(&mut self) {
        let mut got = None;
        let (mut messages, mut bytes) = (0u32, 0u64);
        while let Some(event) = self.path.event() {
            match event {
                Event::Requested { open, .. } => self.path.accept(open.flow, 0),
                Event::Accepted { .. } => self.accepted = true,
                Event::Message { flow, message, lies } => {
                    self.seen.messages += 1;
                    messages += 1;
                    bytes += match lies {
                        Lies::Slot { slot, len } => {
                            self.pool.give_back(slot);
                            u64::from(len)
                        }
                        Lies::Frame { len, .. } => len as u64,
                    };
                    got = Some((flow, message.sequence));
                }
                Event::Discard(Lies::Slot { slot, .. }) => self.pool.give_back(slot),
                Event::Released { .. } => self.released += 1,
                _ => {}
            }
        }
        if let Some((flow, sequence)) = got {
            self.seen.bytes += bytes;
            self.watch.tick();
            self.path.advance(flow, sequence);
            self.path.consumed(flow, messages, bytes);
        }
    }
}
