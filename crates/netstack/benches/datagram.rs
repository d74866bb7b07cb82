//! What a datagram costs, one core: its header written in front of a payload, and its frame taken apart, both with the
//! checksum over the payload and without.
//!
//! `cargo bench -p insane-netstack`.

#![allow(missing_docs, reason = "criterion's macro makes a public function")]

#[path = "../tests/frames/mod.rs"]
mod frames;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use frames::{OURS, PEER, config, host};
use insane_netstack::arp::Operation;
use insane_netstack::{Arrival, Engine};

fn datagrams(c: &mut Criterion) {
    let mut engine = Engine::new(&config()).expect("it can be");
    let bound = engine.bind(None, 1000).expect("it is free");
    let mut out = Vec::new();
    let know = frames::arp(Operation::Request, PEER, "10.0.0.2", "10.0.0.1", OURS);
    engine.receive(0, &Arrival::new(0, &know), &mut out);
    let mut flow = engine.flow(bound, (host(false, 2), 2000).into());
    let mut memory = vec![7; 2048];
    let mut group = c.benchmark_group("datagram");
    group.throughput(Throughput::Elements(1));
    for size in [64, 1400] {
        group.bench_function(BenchmarkId::new("header, checksum", size), |b| {
            b.iter(|| {
                let header = engine.header(1, &mut flow, size, &mut out).expect("it is known");
                header.write_in_front(black_box(&mut memory), 128).expect("there is room")
            });
        });
        group.bench_function(BenchmarkId::new("header, offload", size), |b| {
            b.iter(|| {
                let mut header = engine.header(1, &mut flow, size, &mut out).expect("it is known");
                header.offload();
                memory[128 - header.bytes().len()..128].copy_from_slice(header.bytes());
                black_box(&mut memory);
            });
        });
        let frame = frames::udp(host(false, 2), host(false, 1), (2000, 1000), &vec![5; size]);
        for (name, verified) in [("receive, checksum", false), ("receive, verified", true)] {
            group.bench_function(BenchmarkId::new(name, size), |b| {
                let arrival = Arrival { verified, ..Arrival::new(0, &frame) };
                b.iter(|| {
                    matches!(engine.receive(1, black_box(&arrival), &mut out), insane_netstack::Received::Udp(_))
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, datagrams);
criterion_main!(benches);
