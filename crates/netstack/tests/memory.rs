//! What is allocated: nothing for a datagram, and nothing more however much hostile traffic comes.

mod frames;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use frames::{OURS, PEER, config, corpus, host, reseal};
use insane_netstack::arp::Operation;
use insane_netstack::tcp::TcpConfig;
use insane_netstack::{Arrival, Emit, Engine, Received};

struct Counting;

thread_local! {
    // Of this thread alone: the test's harness has others.
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

fn calls() -> u64 {
    CALLS.with(Cell::get)
}

fn live() -> i64 {
    LIVE.with(Cell::get)
}

// SAFETY: everything is the system's allocator's; what is counted beside it does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.with(|calls| calls.set(calls.get() + 1));
        LIVE.with(|live| live.set(live.get() + layout.size() as i64));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.with(|live| live.set(live.get() - layout.size() as i64));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Takes frames and keeps none.
struct Nowhere(u64);

impl Emit for Nowhere {
    fn emit(&mut self, _device: u8, _pieces: &[&[u8]]) -> bool {
        self.0 += 1;
        true
    }
}

#[test]
fn the_datagram_path_allocates_nothing() {
    let mut engine = Engine::new(&config()).unwrap();
    let bound = engine.bind(None, 1000).unwrap();
    let mut out = Nowhere(0);
    let know = frames::arp(Operation::Request, PEER, "10.0.0.2", "10.0.0.1", OURS);
    engine.receive(0, &Arrival::new(0, &know), &mut out);
    let arrives = frames::udp(host(false, 2), host(false, 1), (2000, 1000), &[5; 1000]);
    let parts = frames::pieces(host(false, 2), host(false, 1), 7, &[6; 4000], 1480);
    let to = (host(false, 2), 2000).into();
    let mut flow = engine.flow(bound, to);
    let mut memory = vec![0; 2048];
    let before = calls();
    let mut datagrams = 0;
    for n in 0..10_000u64 {
        let now = n * 10_000_000;
        datagrams += u64::from(matches!(engine.receive(now, &Arrival::new(0, &arrives), &mut out), Received::Udp(_)));
        let header = engine.header(now, &mut flow, 1000, &mut out);
        if let Ok(header) = header {
            header.write_in_front(&mut memory, 128).unwrap();
        }
        for part in &parts {
            datagrams += u64::from(matches!(engine.receive(now, &Arrival::new(0, part), &mut out), Received::Udp(_)));
        }
        let _ = engine.send(now, bound, to, &[&memory[..1500], &memory], &mut out);
        engine.poll(now, &mut out);
    }
    assert_eq!(calls() - before, 0);
    assert_eq!((datagrams, engine.stats().adds_up()), (20_000, true));
    assert!(out.0 > 2000, "{}", out.0);
}

#[test]
fn hostile_traffic_keeps_nothing() {
    let mut config = config();
    config.tcp = Some(TcpConfig { connections: 4, ..TcpConfig::default() });
    let mut engine = Engine::new(&config).unwrap();
    engine.bind(None, 1000).unwrap();
    engine.tcp_listen(None, 80, 4).unwrap();
    let mut out = Nowhere(0);
    let corpus = corpus();
    let mut random = 1u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize
    };
    let mut frame = Vec::with_capacity(4096);
    let before = live();
    for n in 0..200_000u64 {
        frame.clear();
        frame.extend_from_slice(&corpus[next() % corpus.len()]);
        // Other senders, addresses, numbers: what an attacker would fill tables with.
        for _ in 0..next() % 4 {
            let at = 6 + next() % frame.len().saturating_sub(6).clamp(1, 60);
            frame[at] = next() as u8;
        }
        reseal(&mut frame);
        engine.receive(n * 100_000, &Arrival::new(0, &frame), &mut out);
        if n % 16 == 0 {
            engine.poll(n * 100_000, &mut out);
        }
    }
    assert_eq!(live() - before, 0);
    assert!(engine.stats().adds_up());
}
