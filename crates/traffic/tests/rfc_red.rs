//! RED against a reference model of Floyd and Jacobson 1993 (Figure 2) with the gentle region: every drop, mark and
//! departure.

#[path = "common/trace.rs"]
mod trace;

use std::collections::VecDeque;

use insane_traffic::queue::Red;
use insane_traffic::spec::{Rate, RedSpec, Size};
use insane_traffic::{Ecn, Rng};
use trace::{Event, Log};

struct Model {
    queue: VecDeque<(u32, u64, Ecn)>,
    rng: Rng,
    gentle: bool,
    ecn: bool,
    avg: f64,
    count: f64,
    q_time: f64,
    log: Log,
}

const MIN: f64 = 15_000.0;
const MAX: f64 = 45_000.0;
const MAX_P: f64 = 0.05;
const W: f64 = 0.01;
/// Seconds that a 1000-byte packet takes at 10 Mbit/s.
const S: f64 = 1000.0 * 8.0 / 10e6;

impl Model {
    fn arrive(&mut self, now: f64, number: u32, size: u64, mut ecn: Ecn) {
        if self.queue.is_empty() {
            let m = (now - self.q_time) / S;
            self.avg *= (1.0 - W).powf(m);
        } else {
            let q: u64 = self.queue.iter().map(|p| p.1).sum();
            self.avg += W * (q as f64 - self.avg);
        }
        let mut drop = false;
        if self.avg < MIN {
            self.count = -1.0;
        } else if self.avg >= MAX && !(self.gentle && self.avg < 2.0 * MAX) {
            self.count = 0.0;
            drop = true;
        } else {
            let pb = if self.avg < MAX {
                MAX_P * (self.avg - MIN) / (MAX - MIN)
            } else {
                MAX_P + (1.0 - MAX_P) * (self.avg - MAX) / MAX
            };
            self.count += 1.0;
            let pa = if self.count * pb >= 1.0 { 1.0 } else { pb / (1.0 - self.count * pb) };
            if self.rng.unit() < pa {
                self.count = 0.0;
                if self.ecn && ecn != Ecn::NotEct {
                    ecn = Ecn::Ce;
                } else {
                    drop = true;
                }
            }
        }
        if drop {
            self.log.0.push((number, 'd'));
            if self.queue.is_empty() {
                self.q_time = now;
            }
        } else {
            self.queue.push_back((number, size, ecn));
        }
    }

    fn depart(&mut self, now: f64) {
        let Some((number, _, ecn)) = self.queue.pop_front() else { return };
        self.log.0.push((number, if ecn == Ecn::Ce { 'm' } else { 's' }));
        if self.queue.is_empty() {
            self.q_time = now;
        }
    }
}

#[test]
fn red_drops_and_marks_what_the_paper_does() {
    for (gentle, ecn) in [(false, false), (true, false), (true, true)] {
        let (mut drops, mut marks, mut sent) = (0, 0, 0);
        for seed in 0..40 {
            let events = trace::events(seed, 20_000, 400);
            let spec = RedSpec {
                min: Size(15_000),
                max: Size(45_000),
                probability: MAX_P,
                weight: W,
                bandwidth: Rate(10_000_000),
                gentle,
                ecn,
                ..RedSpec::default()
            };
            let ours = trace::run(&mut Red::new(spec, seed), &events);
            let (queue, rng, log) = (VecDeque::new(), Rng::new(seed), Log::default());
            let mut model = Model { queue, rng, gentle, ecn, avg: 0.0, count: -1.0, q_time: 0.0, log };
            for &(at, event) in &events {
                let now = at as f64 / 1e9;
                match event {
                    Event::Arrive { number, size, ecn, .. } => model.arrive(now, number, size.into(), ecn),
                    Event::Depart => model.depart(now),
                }
            }
            trace::same(&ours, &model.log, &format!("gentle {gentle}, ecn {ecn}, seed {seed}"));
            drops += model.log.count('d');
            marks += model.log.count('m');
            sent += model.log.count('s');
        }
        assert!(drops > 1_000 && marks > 1_000 && sent > 100_000, "{drops} drops, {marks} marks, {sent} sent");
    }
}
