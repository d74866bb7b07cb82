//! Two hosts with somebody between them who sees all their frames and floods both, while streams run: as strangers, with frames that
//! went before, with other headers, in other domains.

use insane::{Qos, Session, Sink, Source, SourceOptions};
use insane_runtime::config::Domain;
use insane_tests_host::{Watchdog, payload};
use insane_tests_network::{
    Ends, LIMIT, Process, Random, config, eventually, free_addresses, gives_back_all, law, law_holds, network_count,
    reliable, status,
};
use insane_wire::frame::record::{Message, Record};
use insane_wire::frame::{FrameBuilder, Header, domain_id, parse};
use serde_json::Value;
use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");
const TEST: Duration = Duration::from_secs(120);

/// How many datagrams each host is flooded with, and the most that may become of its memory meanwhile.
const FLOOD: u64 = 40_000;
const MOST_KIB: u64 = 8 << 10;

/// How many of them are of a foreign domain under numbers of frames that are still to come: fewer than the runs that are remembered.
const NEW: u64 = 40;

/// Where a flow's frames come from, as their receiver sees it.
struct Face {
    socket: UdpSocket,
    /// Who takes what is sent from here.
    to: SocketAddr,
    /// The last frames of the connection that went that way, and how many hellos.
    seen: Mutex<VecDeque<Vec<u8>>>,
    hellos: AtomicU64,
}

impl Face {
    fn new(address: SocketAddr, to: SocketAddr) -> Self {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        Self { socket, to, seen: Mutex::default(), hellos: AtomicU64::new(0) }
    }

    /// Hands on what comes to this one from the other one, until it is over.
    fn hand_on(&self, from: &Self, over: &AtomicBool) {
        let mut bytes = vec![0; 1 << 16];
        while !over.load(Ordering::Relaxed) {
            let Ok(len) = from.socket.recv(&mut bytes) else { continue };
            if Header::read(&bytes[..len]).is_ok_and(|header| header.connection == 0) {
                self.hellos.fetch_add(1, Ordering::Relaxed);
            } else {
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.push_back(bytes[..len].to_vec());
                if seen.len() > 2000 {
                    seen.pop_front();
                }
            }
            let _ = self.socket.send_to(&bytes[..len], self.to);
        }
    }

    /// One of the last frames, of which the receiver and the sender have long known what became: one that was lost and is changed here
    /// would take its place.
    fn captured(&self, random: &mut Random) -> Option<Vec<u8>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let at = random.below(seen.len() as u64 / 2 + 1) as usize;
        seen.get(at).cloned()
    }

    /// A data flow that some frame was of.
    fn flow(&self) -> Option<(Header, u32)> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().rev().find_map(|frame| {
            let (header, mut records) = parse(frame).ok().filter(|(header, _)| header.domain != 0)?;
            let flow = records.find_map(|record| match record {
                Ok(Record::Message(message, _) | Record::Bundle(message, ..)) => Some(message.flow),
                _ => None,
            })?;
            Some((header, flow))
        })
    }

    fn send(&self, frame: &[u8]) {
        self.socket.send_to(frame, self.to).unwrap();
    }
}

/// What a host was flooded with.
#[derive(Debug, Default)]
struct Sent {
    strangers: u64,
    /// As from the other host: exactly as it came before, in another domain, with another field of the header, of another connection.
    others: u64,
    /// Of a flow that stands, under new numbers, in a domain that its host serves or in none.
    foreign: u64,
    bytes: u64,
}

/// Floods a host, as a stranger and as the other host, as fast as its streams go on.
fn flood(face: &Face, seed: u64, with_new: bool, comes: &AtomicU64) -> Sent {
    let (mut random, mut sent) = (Random(seed), Sent::default());
    let stranger = UdpSocket::bind((face.to.ip(), 0)).unwrap();
    let base = with_new.then(|| face.flow().expect("a flow"));
    let mut waited = 0;
    for n in 0..FLOOD {
        let Some(mut frame) = face.captured(&mut random) else { continue };
        let kind = random.below(8);
        match kind {
            0 => frame = (0..1 + random.below(1471)).map(|_| random.below(256) as u8).collect(),
            1 | 2 => {}
            // In another domain: one that is served, one that is not, none.
            3 => frame[8..12].copy_from_slice(&other_domain(random.below(3)).to_le_bytes()),
            4 => (12..16).for_each(|at| frame[at] ^= 1 + random.below(255) as u8),
            // Any field, but for the number: that is one of those that came before, or above all.
            5 | 6 => {
                let (at, len) = [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (6, 2), (12, 4), (24, 4), (28, 4)]
                    [random.below(9) as usize];
                (at..at + len).for_each(|at| frame[at] = random.below(256) as u8);
            }
            _ => frame[23] |= 0x80,
        }
        sent.bytes += frame.len() as u64;
        if kind == 0 || (kind == 1 && n % 2 == 0) {
            sent.strangers += 1;
            stranger.send_to(&frame, face.to).unwrap();
        } else {
            sent.others += 1;
            face.send(&frame);
        }
        if let Some(base) = base.filter(|_| n % (FLOOD / NEW) == 0) {
            sent.foreign += 1;
            let frame = foreign(&base, sent.foreign);
            sent.bytes += frame.len() as u64;
            face.send(&frame);
        }
        // Streams run beside it from its beginning to its end.
        if n % 64 == 63 {
            let before = comes.load(Ordering::Relaxed);
            while comes.load(Ordering::Relaxed) == before && waited < 10_000 {
                waited += 1;
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }
    sent
}

fn other_domain(which: u64) -> u32 {
    [domain_id("red"), domain_id("elsewhere"), 0][which as usize]
}

/// A message of a flow that stands, which is its next or far from it, in a domain that is not the flow's.
fn foreign((header, flow): &(Header, u32), n: u64) -> Vec<u8> {
    let header = Header { domain: other_domain(n % 3), counter: header.counter + (1 << 30) + n, ..*header };
    let mut bytes = Vec::new();
    let mut frame = FrameBuilder::new(&mut bytes, header, 1472);
    let message = Message { flow: *flow, index: n as u32 * 100, sequence: n * 100 + 1, ..Message::default() };
    assert!(frame.message(&message, &[0xee; 100]));
    frame.finish();
    bytes
}

fn emit(source: &Source, sizes: &[usize], over: &AtomicBool) -> u64 {
    let mut n = 0;
    while !over.load(Ordering::Relaxed) {
        n += 1;
        source.send(&payload(n, sizes[n as usize % sizes.len()])).unwrap();
        std::thread::sleep(Duration::from_micros(300));
    }
    n
}

/// Takes what comes until it is over and nothing has come for a while: each once, in order, as it was sent; all of them if none may be
/// missing.
fn take(sink: &Sink, all: bool, over: &AtomicBool, comes: &AtomicU64) -> u64 {
    let (mut count, mut last) = (0, 0);
    loop {
        match sink.consume_timeout(Duration::from_millis(1500)) {
            Ok(message) => {
                let n = message.sequence();
                assert!(if all { n == last + 1 } else { n > last }, "{n} after {last}");
                let bytes = message.to_vec();
                assert!(bytes == payload(n, bytes.len()), "message {n} is not what was sent");
                (count, last) = (count + 1, n);
                comes.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) if over.load(Ordering::Relaxed) => return count,
            Err(_) => {}
        }
    }
}

/// What became of the frames that a runtime received: those that were taken, and those that were dropped, by why.
fn frames(status: &Value) -> [(&'static str, u64); 7] {
    let of = |name| (name, status["network"]["hosts"][0][name].as_u64().expect("a number"));
    let strangers = status["network"]["unknown_senders"].as_u64().expect("a number");
    let [received, duplicates, foreign] = ["received_frames", "duplicates", "foreign"].map(of);
    [received, duplicates, foreign, of("malformed"), of("refused"), of("stray"), ("strangers", strangers)]
}

fn of_datapath(status: &Value, name: &str) -> u64 {
    status["network"]["datapath"][name].as_u64().expect("a number")
}

#[test]
fn a_flood_from_between_two_hosts_costs_their_streams_nothing_and_is_counted() {
    let _watchdog = Watchdog::start("flood", TEST);
    let addresses = free_addresses(4);
    let processes = [0, 1].map(|at| {
        let mut config = config(&format!("host-{at}"), addresses[at], &[addresses[2 + at]]);
        for name in ["blue", "red"] {
            config.domains.insert(name.into(), Domain::default());
        }
        let network = config.network.get_or_insert_default();
        // Whoever is kept from its core is not taken for lost.
        (network.memory_mib, network.silence_ms) = (4, 20_000);
        Process::start(PROGRAM, None, &config)
    });
    // What one host knows as the other.
    let faces = [0, 1].map(|at| Face::new(addresses[2 + at], addresses[at]));
    let (over, flooded, comes) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        scope.spawn(|| faces[0].hand_on(&faces[1], &over));
        scope.spawn(|| faces[1].hand_on(&faces[0], &over));
        let (a, b) = (processes[0].session_in("blue", "source"), processes[1].session_in("blue", "sink"));
        let apart = processes[1].session_in("red", "apart");
        let stays_empty = [reliable(), Qos::default()].map(|qos| apart.stream(qos).unwrap().sink("c").unwrap());
        let pair = |qos: Qos| {
            let (from, to) = (a.stream(qos).unwrap(), b.stream(qos).unwrap());
            let patient = SourceOptions { deadline: LIMIT, ..SourceOptions::default() };
            let (source, sink) = (from.source_with("c", patient).unwrap(), to.sink("c").unwrap());
            assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
            (source, sink)
        };
        let (whole, best) = (pair(reliable()), pair(Qos::default()));
        let emitted = AtomicBool::new(false);
        std::thread::scope(|inner| {
            let _emitted = Ends(&emitted);
            let _flooded = Ends(&flooded);
            let (flooded, emitted, comes) = (&flooded, &emitted, &comes);
            let ends = [(&whole, &[64, 300, 5000][..], true), (&best, &[64, 300, 1200][..], false)];
            let sources = ends.map(|((source, _), sizes, _)| inner.spawn(move || emit(source, sizes, flooded)));
            let takers = ends.map(|((_, sink), _, all)| inner.spawn(move || take(sink, all, emitted, comes)));
            assert!(eventually(|| comes.load(Ordering::Relaxed) > 2000), "{}", law(&a));
            let holds = || processes.each_ref().map(|process| process.holds().resident_kib);
            let before = holds();
            let floods = [0, 1].map(|at| {
                let face = &faces[at];
                inner.spawn(move || flood(face, 7 + at as u64, at == 1, comes))
            });
            let (mut most, streams) = (before, comes.load(Ordering::Relaxed));
            while floods.iter().any(|flood| !flood.is_finished()) {
                most = [0, 1].map(|at| most[at].max(holds()[at]));
                std::thread::sleep(Duration::from_millis(20));
            }
            let sent = floods.map(|flood| flood.join().unwrap());
            let during = comes.load(Ordering::Relaxed) - streams;
            flooded.store(true, Ordering::Relaxed);
            let emitted_each = sources.map(|source| source.join().unwrap());
            emitted.store(true, Ordering::Relaxed);
            let seen = takers.map(|taker| taker.join().unwrap());
            most = [0, 1].map(|at| most[at].max(holds()[at]));

            // All of the reliable stream, and of both what is counted.
            assert_eq!(seen[0], emitted_each[0], "{}", law(&a));
            assert!(eventually(|| law_holds(&a)), "{}", law(&a));
            let [intended, delivered] = [emitted_each.iter().sum::<u64>(), seen.iter().sum()];
            assert_eq!(insane_tests_host::account(&a.counts()).intended, intended, "{}", law(&a));
            assert_eq!(network_count(&status(&a), "delivered"), delivered, "{}", law(&a));
            assert!(seen[1] > emitted_each[1] / 4 && during > 100, "{seen:?} of {emitted_each:?}, {during} meanwhile");
            assert!(stays_empty.iter().all(|sink| sink.try_consume().unwrap().is_none()), "another domain's came");
            is_accounted_for(&b, &sent[1], &faces[1].hellos);
            let strangers = frames(&status(&a))[6].1;
            assert!(strangers > 0 && strangers <= sent[0].strangers, "{strangers} of {sent:?}");
            for at in 0..2 {
                let grown = most[at].saturating_sub(before[at]);
                assert!(grown < MOST_KIB, "{grown} KiB of {sent:?}");
            }
            assert!(sent[1].bytes / 1024 > 2 * MOST_KIB, "{sent:?}");
            [&a, &b].into_iter().for_each(gives_back_all);
        });
    });
}

/// Each frame that the runtime received was taken or dropped under one count, and of the flood no more is missing than the socket's
/// buffer had no room for.
fn is_accounted_for(session: &Session, sent: &Sent, hellos_sent: &AtomicU64) {
    // The report that says how many it had no room for is newer than the last of the flood.
    let newest = || {
        let report = status(session);
        let counts = frames(&report).map(|(_, count)| count);
        (report, counts)
    };
    let (mut report, mut counts) = newest();
    let settled = || {
        std::thread::sleep(Duration::from_millis(300));
        let before = counts;
        (report, counts) = newest();
        before[1..] == counts[1..]
    };
    assert!(eventually(settled), "{report}");
    let text = format!("{:?}, {sent:?}, {}", frames(&report), report["network"]);
    let [taken, duplicates, foreign, malformed, refused, stray, strangers] = counts;
    let forged = duplicates + foreign + malformed;
    let (received, missing) = (of_datapath(&report, "received_frames"), of_datapath(&report, "overruns"));
    // Hellos are neither taken nor dropped.
    let hellos =
        received.checked_sub(taken + forged + refused + strangers).unwrap_or_else(|| panic!("counted twice: {text}"));
    let hellos_sent = hellos_sent.load(Ordering::Relaxed);
    assert!(hellos <= hellos_sent, "{hellos} frames are in no count, {hellos_sent} were hellos: {text}");
    assert!(strangers <= sent.strangers && stray <= sent.foreign, "{text}");
    assert!(duplicates.min(foreign).min(malformed) > FLOOD / 100 && stray > 0, "{text}");
    assert!(forged <= sent.others, "{text}");
    assert!(
        sent.strangers + sent.others + sent.foreign <= strangers + forged + stray + missing,
        "{missing} had no room: {text}"
    );
}
