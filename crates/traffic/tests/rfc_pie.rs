//! PIE against a reference model of RFC 8033 (§4 and §5) with a timer of its own: every drop, mark and departure.

#[path = "common/trace.rs"]
mod trace;

use std::collections::VecDeque;

use insane_traffic::queue::Pie;
use insane_traffic::spec::{PieSpec, QueueLimit};
use insane_traffic::{Ecn, Rng};
use trace::{Event, Log};

const QDELAY_REF: f64 = 0.015;
const T_UPDATE: f64 = 0.015;
const MAX_BURST: f64 = 0.150;
const MEAN_PKTSIZE: u64 = 1000;

struct Model {
    queue: VecDeque<(u32, f64, u64, Ecn)>,
    ecn: bool,
    enhanced: bool,
    limit: usize,
    rng: Rng,
    drop_prob: f64,
    accu_prob: f64,
    qdelay_old: f64,
    burst_allowance: f64,
    log: Log,
}

impl Model {
    fn current_qdelay(&self, now: f64) -> f64 {
        self.queue.front().map_or(0.0, |p| now - p.1)
    }

    fn drop_early(&mut self) -> bool {
        let bytes: u64 = self.queue.iter().map(|p| p.2).sum();
        if (self.qdelay_old < QDELAY_REF / 2.0 && self.drop_prob < 0.2) || bytes <= 2 * MEAN_PKTSIZE {
            return false;
        }
        if self.enhanced {
            if self.drop_prob == 0.0 {
                self.accu_prob = 0.0;
            }
            self.accu_prob += self.drop_prob;
            if self.accu_prob < 0.85 {
                return false;
            }
            if self.accu_prob >= 8.5 {
                return true;
            }
        }
        self.rng.unit() < self.drop_prob
    }

    fn enqueue(&mut self, now: f64, number: u32, size: u64, ecn: Ecn) {
        let half = QDELAY_REF / 2.0;
        if self.drop_prob == 0.0 && self.current_qdelay(now) < half && self.qdelay_old < half {
            self.burst_allowance = MAX_BURST;
        }
        let mut ecn = ecn;
        if self.burst_allowance <= 0.0 && self.drop_early() {
            self.accu_prob = 0.0;
            if self.ecn && self.drop_prob < 0.1 && ecn != Ecn::NotEct {
                ecn = Ecn::Ce;
            } else {
                self.log.0.push((number, 'd'));
                return;
            }
        }
        if self.queue.len() >= self.limit {
            self.log.0.push((number, 'd'));
        } else {
            self.queue.push_back((number, now, size, ecn));
        }
    }

    /// The timer.
    fn calculate_drop_prob(&mut self, now: f64) {
        let qdelay = self.current_qdelay(now);
        let mut p = 0.125 * (qdelay - QDELAY_REF) + 1.25 * (qdelay - self.qdelay_old);
        if self.drop_prob < 0.000_001 {
            p /= 2048.0;
        } else if self.drop_prob < 0.000_01 {
            p /= 512.0;
        } else if self.drop_prob < 0.000_1 {
            p /= 128.0;
        } else if self.drop_prob < 0.001 {
            p /= 32.0;
        } else if self.drop_prob < 0.01 {
            p /= 8.0;
        } else if self.drop_prob < 0.1 {
            p /= 2.0;
        }
        if self.enhanced && self.drop_prob >= 0.1 && p > 0.02 {
            p = 0.02;
        }
        self.drop_prob += p;
        if qdelay == 0.0 && self.qdelay_old == 0.0 {
            self.drop_prob *= 0.98;
        }
        self.drop_prob = self.drop_prob.clamp(0.0, 1.0);
        self.qdelay_old = qdelay;
        // The allowance is a multiple of the period; what rounding leaves of it is nothing.
        self.burst_allowance =
            if self.burst_allowance < 1.5 * T_UPDATE { 0.0 } else { self.burst_allowance - T_UPDATE };
    }

    fn run(mut self, events: &[(u64, Event)]) -> Self {
        let mut timer = events[0].0 + 15_000_000;
        for &(at, event) in events {
            while timer <= at {
                self.calculate_drop_prob(timer as f64 / 1e9);
                timer += 15_000_000;
            }
            match event {
                Event::Arrive { number, size, ecn, .. } => self.enqueue(at as f64 / 1e9, number, size.into(), ecn),
                Event::Depart => {
                    if let Some((number, _, _, ecn)) = self.queue.pop_front() {
                        self.log.0.push((number, if ecn == Ecn::Ce { 'm' } else { 's' }));
                    }
                }
            }
        }
        self
    }
}

#[test]
fn pie_drops_and_marks_what_rfc_8033_does() {
    for (ecn, enhanced) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut drops, mut marks, mut sent) = (0, 0, 0);
        for seed in 0..40 {
            let events = trace::events(seed, 20_000, 600);
            let limit = QueueLimit { packets: 400, ..QueueLimit::default() };
            let mut queue = Pie::new(PieSpec { limit, ecn, enhanced, ..PieSpec::default() }, seed);
            let ours = trace::run(&mut queue, &events);
            let model = Model {
                queue: VecDeque::new(),
                ecn,
                enhanced,
                limit: 400,
                rng: Rng::new(seed),
                drop_prob: 0.0,
                accu_prob: 0.0,
                qdelay_old: 0.0,
                burst_allowance: MAX_BURST,
                log: Log::default(),
            };
            let model = model.run(&events);
            trace::same(&ours, &model.log, &format!("ecn {ecn}, enhanced {enhanced}, seed {seed}"));
            assert!((queue.probability() - model.drop_prob).abs() < 1e-6, "seed {seed}");
            drops += model.log.count('d');
            marks += model.log.count('m');
            sent += model.log.count('s');
        }
        assert!(drops > 1_000 && sent > 100_000 && marks > 1_000, "{drops} drops, {marks} marks, {sent} sent");
    }
}

#[test]
fn after_a_long_pause_the_probability_is_gone() {
    use insane_traffic::queue::Queue;
    use insane_traffic::{Queued, Time};
    let mut queue = Pie::new(PieSpec::default(), 1);
    trace::run(&mut queue, &trace::events(3, 5_000, 600));
    while queue.shed().is_some() {}
    let later = Time::from_millis(100_000_000);
    queue.enqueue(later, Queued::new(trace::packet(1, 100, Ecn::NotEct, 1), later), &mut Log::default());
    assert!(queue.probability() < 1e-9, "{}", queue.probability());
}
