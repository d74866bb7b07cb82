//! The L4S preset's stages against a reference model of RFC 9332 (Appendix A.1 and A.2) with its own timer and the
//! weighted scheduler of Linux' dualpi2: the order of every departure, mark and drop.

#[path = "common/trace.rs"]
mod trace;

use std::collections::VecDeque;

use insane_traffic::{Ecn, Pipeline, PipelineSpec, Time};
use trace::{Event, Log};

const SPEC: &str = r#"
    version = 1
    filter = [{ id = 1, to = { type = "l4s", l4s = 1, classic = 0 } }]
    scheduler = { type = "conditional", high = [1] }
    [[queue]]
    id = 0
    kind = { type = "dualpi2", pair = "x", role = "classic", limit = { packets = 3000, bytes = "300k" } }
    [[queue]]
    id = 1
    kind = { type = "dualpi2", pair = "x", role = "l4s", limit = { packets = 3000, bytes = "300k" } }
"#;

const TARGET: f64 = 0.015;
const TUPDATE_NS: u64 = 16_000_000;
const ALPHA: f64 = 0.16;
const BETA: f64 = 3.2;
const K: f64 = 2.0;
const MIN_TH: f64 = 0.000_8;
const RANGE: f64 = 0.000_4;
const MTU: u64 = 1514;
const LIMIT: u64 = 300 << 10;

#[derive(Clone, Copy)]
struct Packet {
    number: u32,
    time: f64,
    size: u64,
    ecn: Ecn,
}

#[derive(Default)]
struct Side {
    queue: VecDeque<Packet>,
    count: f64,
}

impl Side {
    fn bytes(&self) -> u64 {
        self.queue.iter().map(|p| p.size).sum()
    }
    fn time(&self, now: f64) -> f64 {
        self.queue.front().map_or(0.0, |p| now - p.time)
    }
    fn recur(&mut self, likelihood: f64) -> bool {
        self.count += likelihood;
        if self.count > 1.0 {
            self.count -= 1.0;
            return true;
        }
        false
    }
}

#[derive(Default)]
struct Model {
    l: Side,
    c: Side,
    p: f64,
    prevq: f64,
    credit: f64,
    log: Log,
}

impl Model {
    fn update(&mut self, now: f64) {
        let curq = self.l.time(now).max(self.c.time(now));
        self.p = (self.p + ALPHA * (curq - TARGET) + BETA * (curq - self.prevq)).clamp(0.0, 1.0);
        self.prevq = curq;
    }

    fn enqueue(&mut self, packet: Packet) {
        if self.l.bytes() + self.c.bytes() + packet.size > LIMIT {
            self.log.0.push((packet.number, 'd'));
        } else if packet.ecn as u8 & 1 == 1 {
            self.l.queue.push_back(packet);
        } else {
            self.c.queue.push_back(packet);
        }
    }

    fn laqm(&self, delay: f64, queued: usize) -> f64 {
        if queued <= 1 { 0.0 } else { ((delay - MIN_TH) / RANGE).clamp(0.0, 1.0) }
    }

    fn dequeue(&mut self, now: f64) {
        loop {
            let (has_l, has_c) = (!self.l.queue.is_empty(), !self.c.queue.is_empty());
            if !has_l && !has_c {
                // Linux: c_protection_credit starts one packet in favour of L.
                self.credit = 1514.0 * (10.0 - 90.0);
                return;
            }
            let from_l = has_l && (!has_c || self.credit <= 0.0);
            let few = self.l.bytes() + self.c.bytes() < 2 * MTU;
            let p = if few { 0.0 } else { self.p };
            let (p_c, p_cl) = (p * p, K * p);
            let queued = self.l.queue.len();
            let side = if from_l { &mut self.l } else { &mut self.c };
            let mut packet = side.queue.pop_front().unwrap();
            let mut dropped = false;
            let mut mark = false;
            if from_l {
                if p_cl < 1.0 {
                    let p_l = self.laqm(now - packet.time, queued).max(p_cl);
                    mark = self.l.recur(p_l);
                } else if self.l.recur(p_c) {
                    dropped = true;
                } else {
                    mark = self.l.recur(p_cl);
                }
            } else if self.c.recur(p_c) {
                dropped = packet.ecn == Ecn::NotEct || p_c >= 0.25;
                mark = !dropped;
            }
            if dropped {
                self.log.0.push((packet.number, 'd'));
                continue;
            }
            if mark {
                packet.ecn = Ecn::Ce;
            }
            if has_l && has_c {
                self.credit += packet.size as f64 * if from_l { 10.0 } else { -90.0 };
            }
            self.log.0.push((packet.number, if packet.ecn == Ecn::Ce { 'm' } else { 's' }));
            return;
        }
    }
}

#[test]
fn dualpi2_signals_as_rfc_9332_does() {
    let (mut drops, mut marks, mut sent) = (0, 0, 0);
    for seed in 0..60 {
        let mut pipeline: Pipeline<Vec<u8>> = Pipeline::new(&PipelineSpec::from_toml(SPEC).unwrap(), seed).unwrap();
        let mut model = Model { credit: 1514.0 * -80.0, ..Model::default() };
        let mut ours = Log::default();
        let events = trace::events(seed, 20_000, 300);
        let mut timer = events[0].0 + TUPDATE_NS;
        for (at, event) in events {
            let (now, seconds) = (Time::from_nanos(at), at as f64 / 1e9);
            while timer <= at {
                model.update(timer as f64 / 1e9);
                timer += TUPDATE_NS;
            }
            let mut dropped = |p: Vec<u8>, _| ours.0.push((trace::number(&p), 'd'));
            match event {
                Event::Arrive { number, size, ecn, flow } => {
                    let _ = pipeline.enqueue(now, trace::packet(number, size, ecn, flow), &mut dropped);
                    model.enqueue(Packet { number, time: seconds, size: size.into(), ecn });
                }
                Event::Depart => {
                    if let Some(packet) = pipeline.dequeue(now, &mut dropped).packet() {
                        ours.sent(&packet);
                    }
                    model.dequeue(seconds);
                }
            }
        }
        trace::same(&ours, &model.log, &format!("seed {seed}"));
        drops += model.log.count('d');
        marks += model.log.count('m');
        sent += model.log.count('s');
    }
    assert!(drops > 1_000 && marks > 10_000 && sent > 50_000, "{drops} drops, {marks} marks, {sent} sent");
}
