//! What a packet costs: all six stages at 4 queues, and FQ-CoDel at 1024 flows, one core, enqueue and dequeue together.
//!
//! `cargo bench -p insane-traffic`. Packets are moved in a circle so that no allocation is measured; between a packet's way
//! in and its way out the others go by, so that its headers have to be fetched anew, as in a RAN.

#![allow(missing_docs, reason = "criterion's macro makes a public function")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use insane_traffic::{Dequeued, Pipeline, PipelineSpec, RlcStatus, Span, Time};

/// Six stages, none of which ever refuses or delays: what is measured is their work, not their decisions.
const SIX_STAGES: &str = r#"
    version = 1
    [[filter]]
    id = 1
    match = { dst_port = "5201", proto = 17 }
    to = { type = "queue", queue = 1 }
    [[filter]]
    id = 2
    match = { dst_port = "5202", proto = 17 }
    to = { type = "queue", queue = 2 }
    [[filter]]
    id = 3
    match = { src = "10.0.0.0/8", dst_port = "5203" }
    to = { type = "queue", queue = 3 }
    [[queue]]
    id = 0
    count = 4
    kind = { type = "codel", target = "5ms", ecn = true }
    policer = { type = "trtcm", cir = "100gbit", cbs = "1g", pir = "100gbit", pbs = "1g" }
    shaper = { type = "token-bucket", rate = "100gbit", burst = "1g" }
    [scheduler]
    type = "drr"
    [pacer]
    type = "5g-bdp"
    min = "1g"
    max = "2g"
"#;

/// UDP packets of 1500 bytes from `flows` flows.
fn packets(count: usize, flows: usize) -> Vec<Box<[u8]>> {
    let packet = |n: usize| {
        let flow = (n % flows) as u32;
        let mut bytes = vec![0_u8; 1500];
        bytes[..4].copy_from_slice(&[0x45, 2, 0x05, 0xdc]);
        bytes[8..10].copy_from_slice(&[64, 17]);
        bytes[12..16].copy_from_slice(&(0x0a00_0000 + flow / 4).to_be_bytes());
        bytes[16..20].copy_from_slice(&[10, 0, 1, 1]);
        bytes[20..22].copy_from_slice(&(40_000 + (flow % 20_000) as u16).to_be_bytes());
        bytes[22..24].copy_from_slice(&(5_200 + (flow % 4) as u16).to_be_bytes());
        bytes.into_boxed_slice()
    };
    (0..count).map(packet).collect()
}

struct Circle {
    pipeline: Pipeline<Box<[u8]>>,
    outside: std::collections::VecDeque<Box<[u8]>>,
    now: Time,
    turns: u64,
}

impl Circle {
    /// `queued` packets inside, as many outside.
    fn new(spec: &PipelineSpec, queued: usize, flows: usize) -> Self {
        let mut pipeline = Pipeline::new(spec, 7).unwrap();
        let mut outside: std::collections::VecDeque<_> = packets(2 * queued, flows).into();
        for packet in outside.drain(..queued) {
            pipeline.enqueue(Time::ZERO, packet, &mut ()).unwrap();
        }
        Self { pipeline, outside, now: Time::ZERO, turns: 0 }
    }

    /// One packet in, one packet out.
    fn turn(&mut self) {
        // 10 Mpps: sojourn times stay below CoDel's target.
        self.now += Span::from_nanos(100);
        self.turns += 1;
        if self.turns.is_multiple_of(1_000) {
            self.pipeline.report(self.now, &RlcStatus { bytes: 100_000, ..RlcStatus::default() });
        }
        let packet = self.outside.pop_front().unwrap();
        self.pipeline.enqueue(self.now, packet, &mut ()).unwrap();
        match self.pipeline.dequeue(self.now, &mut ()) {
            Dequeued::Packet(packet, _) => self.outside.push_back(black_box(packet)),
            other => panic!("{other:?}"),
        }
    }
}

fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("per_packet");
    group.throughput(Throughput::Elements(1));
    let mut case = |name: &str, spec: PipelineSpec, queued: usize, flows: usize| {
        let mut circle = Circle::new(&spec, queued, flows);
        group.bench_function(name, |b| b.iter(|| circle.turn()));
        circle.pipeline.audit().unwrap();
        assert_eq!(circle.pipeline.stats().basic.drops, 0, "a case that drops measures something else");
    };
    case("six_stages_4_queues", PipelineSpec::from_toml(SIX_STAGES).unwrap(), 256, 16);
    let mut fq_codel = PipelineSpec::preset("fq-codel").unwrap();
    fq_codel.pacer = PipelineSpec::from_toml(SIX_STAGES).unwrap().pacer;
    case("fq_codel_1024_flows", fq_codel.clone(), 4_096, 16_384);
    let six = PipelineSpec::from_toml(SIX_STAGES).unwrap();
    let mut full = fq_codel;
    full.queues[0].policer = six.queues[0].policer.clone();
    full.queues[0].shaper = six.queues[0].shaper.clone();
    case("fq_codel_1024_flows_policed_and_shaped", full, 4_096, 16_384);
    case("one_fifo", PipelineSpec::default(), 256, 16);
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
