//! The FQ-CoDel preset's stages against a reference model of RFC 8290: the order of every departure and drop.

#[path = "common/trace.rs"]
mod trace;

use std::collections::VecDeque;

use insane_traffic::{Ecn, Pipeline, PipelineSpec, Time};
use trace::{Event, Log};

const FLOWS: usize = 8;
const QUANTUM: i64 = 1514;
const LIMIT: usize = 300;
const SPEC: &str = r#"
    version = 1
    limit = { packets = 300, overflow = "fattest" }
    filter = [{ id = 1, to = { type = "hash" } }]
    queue = [{ id = 0, count = 8, kind = { type = "codel", ecn = true } }]
    scheduler = { type = "fq-codel" }
"#;

#[derive(Clone, Copy)]
struct Packet {
    number: u32,
    tstamp: f64,
    size: u64,
    ecn: Ecn,
}

/// One flow queue with its CoDel state (RFC 8289).
#[derive(Default)]
struct Flow {
    queue: VecDeque<Packet>,
    credits: i64,
    first_above_time: f64,
    drop_next: f64,
    count: u32,
    lastcount: u32,
    dropping: bool,
}

impl Flow {
    fn bytes(&self) -> u64 {
        self.queue.iter().map(|p| p.size).sum()
    }

    fn dodequeue(&mut self, now: f64) -> (Option<Packet>, bool) {
        let Some(p) = self.queue.pop_front() else {
            self.first_above_time = 0.0;
            return (None, false);
        };
        if now - p.tstamp < 5e6 || self.bytes() <= 1514 {
            self.first_above_time = 0.0;
            return (Some(p), false);
        }
        if self.first_above_time == 0.0 {
            self.first_above_time = now + 100e6;
            return (Some(p), false);
        }
        (Some(p), now >= self.first_above_time)
    }

    fn codel(&mut self, now: f64, log: &mut Log) -> Option<Packet> {
        let law = |t: f64, count: u32| t + (100e6 / f64::from(count).sqrt()).floor();
        let (mut p, mut ok) = self.dodequeue(now);
        if self.dropping {
            self.dropping = ok;
            while self.dropping && now >= self.drop_next {
                self.count += 1;
                let victim = p.as_mut().unwrap();
                if victim.ecn != Ecn::NotEct {
                    victim.ecn = Ecn::Ce;
                    self.drop_next = law(self.drop_next, self.count);
                    return p;
                }
                log.0.push((victim.number, 'd'));
                (p, ok) = self.dodequeue(now);
                self.dropping = ok;
                if ok {
                    self.drop_next = law(self.drop_next, self.count);
                }
            }
        } else if ok {
            let victim = p.as_mut().unwrap();
            if victim.ecn != Ecn::NotEct {
                victim.ecn = Ecn::Ce;
            } else {
                log.0.push((victim.number, 'd'));
                (p, _) = self.dodequeue(now);
            }
            self.dropping = true;
            let delta = self.count - self.lastcount;
            self.count = if delta > 1 && now - self.drop_next < 1600e6 { delta } else { 1 };
            self.drop_next = law(now, self.count);
            self.lastcount = self.count;
        }
        p
    }
}

#[derive(Default)]
struct Model {
    flows: Vec<Flow>,
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    log: Log,
}

impl Model {
    fn enqueue(&mut self, flow: usize, packet: Packet) {
        self.flows[flow].queue.push_back(packet);
        if !self.new.contains(&flow) && !self.old.contains(&flow) {
            self.new.push_back(flow);
            self.flows[flow].credits = QUANTUM;
        }
        // RFC 8290 §4.1.3: over the limit, half of the fattest queue's packets go, from its head, at most 64.
        while self.flows.iter().map(|f| f.queue.len()).sum::<usize>() > LIMIT {
            let most = self.flows.iter().map(Flow::bytes).max().unwrap();
            let fattest = self.flows.iter_mut().find(|f| f.bytes() == most).unwrap();
            for _ in 0..(fattest.queue.len() / 2).clamp(1, 64) {
                self.log.0.push((fattest.queue.pop_front().unwrap().number, 'd'));
            }
        }
    }

    /// RFC 8290 §4.2.
    fn dequeue(&mut self, now: f64) {
        loop {
            let from_new = !self.new.is_empty();
            let list = if from_new { &mut self.new } else { &mut self.old };
            let Some(&flow) = list.front() else { return };
            if self.flows[flow].credits <= 0 {
                self.flows[flow].credits += QUANTUM;
                list.pop_front();
                self.old.push_back(flow);
                continue;
            }
            if let Some(p) = self.flows[flow].codel(now, &mut self.log) {
                self.flows[flow].credits -= p.size as i64;
                self.log.0.push((p.number, if p.ecn == Ecn::Ce { 'm' } else { 's' }));
                return;
            }
            list.pop_front();
            if from_new {
                self.old.push_back(flow);
            }
        }
    }
}

#[test]
fn fq_codel_serves_and_drops_as_rfc_8290_does() {
    let (mut drops, mut overlimits) = (0, 0);
    for seed in 0..60 {
        let mut pipeline: Pipeline<Vec<u8>> = Pipeline::new(&PipelineSpec::from_toml(SPEC).unwrap(), seed).unwrap();
        let mut model = Model { flows: (0..FLOWS).map(|_| Flow::default()).collect(), ..Model::default() };
        let mut ours = Log::default();
        for (at, event) in trace::events(seed, 20_000, 400) {
            let now = Time::from_nanos(at);
            let mut dropped = |p: Vec<u8>, _| ours.0.push((trace::number(&p), 'd'));
            match event {
                Event::Arrive { number, size, ecn, flow } => {
                    let packet = trace::packet(number, size, ecn, flow);
                    // The hash is the pipeline's own; which flow it chooses is not the RFC's business.
                    let flow = pipeline.enqueue(now, packet, &mut dropped).unwrap().index();
                    model.enqueue(flow, Packet { number, tstamp: at as f64, size: size.into(), ecn });
                }
                Event::Depart => {
                    if let Some(packet) = pipeline.dequeue(now, &mut dropped).packet() {
                        ours.sent(&packet);
                    }
                    model.dequeue(at as f64);
                }
            }
        }
        trace::same(&ours, &model.log, &format!("seed {seed}"));
        pipeline.audit().unwrap();
        drops += model.log.count('d');
        overlimits += pipeline.stats().dropped.get_count("pipeline_limit").unwrap();
    }
    assert!(drops > 1_000 && overlimits > 1_000, "{drops} drops, {overlimits} over the limit: the traces test nothing");
}
