//! Two engines over a link that loses, repeats, delays and changes frames, by a seed and a clock of its own.

mod frames;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use frames::{OURS, PEER, host, interface};
use insane_netstack::tcp::{TcpConfig, TcpError, TcpState};
use insane_netstack::{Arrival, Config, Engine, Received};
use proptest::prelude::*;

/// Of 1000 frames.
#[derive(Debug, Clone, Copy)]
struct Faults {
    lost: u64,
    repeated: u64,
    delayed: u64,
    changed: u64,
}

/// When, which in order, to whom, what.
type UnderWay = Reverse<(u64, u64, usize, Vec<u8>)>;

struct Link {
    engines: [Engine; 2],
    under_way: BinaryHeap<UnderWay>,
    now: u64,
    random: u64,
    faults: Faults,
    count: u64,
    /// Datagrams that have come, per end.
    got: [Vec<Vec<u8>>; 2],
}

impl Link {
    fn new(seed: u64, faults: Faults) -> Self {
        let engine = |n: u8, mac| {
            let mut config = Config::new(vec![interface(n, mac)], seed);
            config.tcp = Some(TcpConfig { connections: 4, ..TcpConfig::default() });
            Engine::new(&config).unwrap()
        };
        let engines = [engine(1, OURS), engine(2, PEER)];
        Self {
            engines,
            under_way: BinaryHeap::new(),
            now: 0,
            random: seed | 1,
            faults,
            count: 0,
            got: Default::default(),
        }
    }

    fn chance(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) % 1000
    }

    fn push(&mut self, from: usize, out: Vec<(u8, Vec<u8>)>) {
        for (_, mut frame) in out {
            if self.chance() < self.faults.lost {
                continue;
            }
            if self.chance() < self.faults.changed {
                let at = self.chance() as usize % frame.len();
                frame[at] ^= 1 << (self.chance() % 8);
            }
            let copies = 1 + u64::from(self.chance() < self.faults.repeated);
            for _ in 0..copies {
                let extra = if self.chance() < self.faults.delayed { self.chance() * 2000 } else { 0 };
                self.count += 1;
                self.under_way.push(Reverse((self.now + 50_000 + extra, self.count, 1 - from, frame.clone())));
            }
        }
    }

    fn poll(&mut self, end: usize) -> Option<u64> {
        let mut out = Vec::new();
        let due = self.engines[end].poll(self.now, &mut out);
        self.push(end, out);
        due
    }

    /// Lets time pass until something happens.
    fn step(&mut self) {
        let dues = [self.poll(0), self.poll(1)];
        let next = self.under_way.peek().map(|Reverse((at, ..))| *at);
        let due = dues.into_iter().flatten().chain(next).min().unwrap_or(self.now + 1_000_000);
        self.now = due.max(self.now + 1);
        while self.under_way.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            let Some(Reverse((_, _, end, frame))) = self.under_way.pop() else { break };
            let mut out = Vec::new();
            if let Received::Udp(datagram) = self.engines[end].receive(self.now, &Arrival::new(0, &frame), &mut out) {
                self.got[end].push(datagram.payload.bytes(&frame).to_vec());
            }
            self.push(end, out);
        }
    }
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(seed | 1) >> 3) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn streams_arrive_whole_over_a_bad_link(
        seed: u64, lost in 0u64..40, repeated in 0u64..30, delayed in 0u64..100, changed in 0u64..5, six: bool
    ) {
        let mut link = Link::new(seed, Faults { lost, repeated, delayed, changed });
        let listener = link.engines[1].tcp_listen(None, 80, 1).unwrap();
        let first = link.engines[0].tcp_connect(0, (host(six, 2), 80).into()).unwrap();
        let bytes = content(seed, 100_000);
        let (mut second, mut sent, mut got, mut closed) = (None, 0, Vec::new(), false);
        let mut buffer = [0; 4096];
        for _ in 0..200_000 {
            if sent < bytes.len() && link.engines[0].tcp_state(first) != Ok(TcpState::Opening) {
                sent += link.engines[0].tcp_send(first, &bytes[sent..]).unwrap();
            }
            if sent == bytes.len() && !closed {
                link.engines[0].tcp_close(first).unwrap();
                closed = true;
            }
            let now = link.now;
            second = second.or_else(|| link.engines[1].tcp_accept(now, listener));
            if let Some(second) = second {
                match link.engines[1].tcp_receive(second, &mut buffer) {
                    Ok(len) => got.extend_from_slice(&buffer[..len]),
                    Err(TcpError::Ended) => break,
                    Err(error) => prop_assert!(false, "{}", error),
                }
            }
            link.step();
        }
        prop_assert_eq!(got.len(), bytes.len());
        prop_assert!(got == bytes);
        prop_assert!(link.engines.iter().all(|engine| engine.stats().adds_up()));
    }

    #[test]
    fn datagrams_arrive_as_they_were_sent_or_not_at_all(
        seed: u64, lost in 0u64..50, repeated in 0u64..50, delayed in 0u64..200, changed in 0u64..20, six: bool,
        sizes in proptest::collection::vec(0usize..20_000, 1..40)
    ) {
        datagrams(seed, Faults { lost, repeated, delayed, changed }, six, &sizes)?;
    }

    #[test]
    fn reordering_and_repetition_lose_nothing(
        seed: u64, repeated in 0u64..50, delayed in 0u64..200, six: bool,
        sizes in proptest::collection::vec(0usize..20_000, 1..=8)
    ) {
        let missing = datagrams(seed, Faults { lost: 0, repeated, delayed, changed: 0 }, six, &sizes)?;
        prop_assert_eq!(missing, 0);
    }
}

/// Whether a datagram is one that was sent but for changes that UDP's checksum cannot see: a bit that was set and another, in the same
/// place of another 16-bit word, that was cleared. Of large datagrams two fragments may be changed, and one in 32 such pairs is of that kind.
fn is_hidden(sent: &[u8], got: &[u8]) -> bool {
    let changed = sent.iter().zip(got).map(|(sent, got)| (sent ^ got).count_ones()).sum::<u32>();
    let same_sum = insane_netstack::checksum::of(sent) == insane_netstack::checksum::of(got);
    sent.len() == got.len() && (2..=4).contains(&changed) && same_sum
}

/// Sends datagrams of these sizes; how many have not arrived.
fn datagrams(seed: u64, faults: Faults, six: bool, sizes: &[usize]) -> Result<usize, TestCaseError> {
    let mut link = Link::new(seed, faults);
    let from = link.engines[0].bind(None, 1000).unwrap();
    link.engines[1].bind(None, 2000).unwrap();
    let mut sent = Vec::new();
    for (n, size) in sizes.iter().enumerate() {
        let mut bytes = content(seed.wrapping_add(n as u64 * 2), *size);
        bytes.extend_from_slice(&(n as u32).to_le_bytes());
        let (mut out, now) = (Vec::new(), link.now);
        // A neighbour that was asked for in vain is a loss like others.
        let _ = link.engines[0].send(now, from, (host(six, 2), 2000).into(), &[&bytes], &mut out);
        link.push(0, out);
        sent.push(bytes);
        link.step();
    }
    for _ in 0..3000 {
        link.step();
    }
    for got in &link.got[1] {
        let found = sent.contains(got) || sent.iter().any(|sent| is_hidden(sent, got));
        prop_assert!(found, "{} bytes that nobody sent", got.len());
    }
    prop_assert!(link.engines.iter().all(|engine| engine.stats().adds_up()));
    Ok(sent.iter().filter(|sent| !link.got[1].contains(sent)).count())
}

#[test]
fn a_peer_that_never_closes_holds_no_place_for_ever() {
    const SECOND: u64 = 1_000_000_000;
    let mut link = Link::new(7, Faults { lost: 0, repeated: 0, delayed: 0, changed: 0 });
    let listener = link.engines[1].tcp_listen(None, 80, 1).unwrap();
    let first = link.engines[0].tcp_connect(0, (host(false, 2), 80).into()).unwrap();
    let second = loop {
        link.step();
        if let Some(second) = link.engines[1].tcp_accept(link.now, listener) {
            break second;
        }
        assert!(link.now < SECOND, "it does not open");
    };
    // All other places are taken.
    for _ in 0..3 {
        link.engines[0].tcp_connect(0, (host(false, 9), 80).into()).unwrap();
    }
    link.engines[0].tcp_send(first, b"last words").unwrap();
    link.engines[0].tcp_release(first);
    let connect = |link: &mut Link| link.engines[0].tcp_connect(link.now, (host(false, 2), 80).into());
    while link.now < 14 * SECOND {
        link.step();
    }
    // The peer may have more to say for as long as it may be silent.
    assert_eq!(connect(&mut link), Err(TcpError::Full));
    let mut buffer = [0; 32];
    assert_eq!(link.engines[1].tcp_receive(second, &mut buffer), Ok(10));
    assert_eq!(link.engines[1].tcp_state(second), Ok(TcpState::PeerClosed));
    while link.now < 17 * SECOND {
        link.step();
    }
    assert_eq!(link.engines[1].tcp_state(second), Ok(TcpState::Closed));
    assert!(connect(&mut link).is_ok());
}
