//! What a pipeline of 1,024 flows takes of memory, measured by the process's resident set.

use insane_traffic::{Packet, Pipeline, PipelineSpec, Rng, Time};

/// A descriptor: what the pipeline stores per packet is its own, not a payload.
struct Descriptor(u64);

impl Packet for Descriptor {
    fn size(&self) -> u32 {
        1000
    }
    fn flow(&self) -> Option<u64> {
        Some(self.0)
    }
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn a_thousand_flows_fit_into_twenty_megabytes_idle_full_and_after_bursts() {
    let before = resident();
    let mut pipeline: Pipeline<Descriptor> = Pipeline::new(&PipelineSpec::preset("fq-codel").unwrap(), 1).unwrap();
    let idle = resident() - before;
    let mut rng = Rng::new(1);
    for _ in 0..20_000 {
        pipeline.enqueue(Time::ZERO, Descriptor(rng.bits()), &mut ()).unwrap();
    }
    let full = resident() - before;
    assert_eq!(pipeline.packets(), 10_240);
    // One flow after the other sends ten thousand packets at once: no queue may keep the memory that this took.
    for flow in 0..300 {
        (0..10_000).for_each(|_| {
            pipeline.enqueue(Time::ZERO, Descriptor(flow), &mut ()).unwrap();
        });
    }
    let after = resident() - before;
    println!("idle {} KiB, full {} KiB, after bursts {} KiB", idle >> 10, full >> 10, after >> 10);
    assert!(idle.max(full).max(after) <= 20 << 20, "idle {idle}, full {full}, after bursts {after}");
}
