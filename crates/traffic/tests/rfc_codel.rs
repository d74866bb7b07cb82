//! CoDel against a reference model written straight from RFC 8289 §5.5 and §5.6: every drop, mark and departure.

#[path = "common/trace.rs"]
mod trace;

use std::collections::VecDeque;

use insane_traffic::queue::{Codel, Queue};
use insane_traffic::spec::{CodelSpec, QueueLimit};
use insane_traffic::{DropReason, Ecn, Outlet, Queued, Time};
use trace::{Event, Log};

const TARGET: f64 = 5e6;
const INTERVAL: f64 = 100e6;
const MAXPACKET: u64 = 1514;

#[derive(Clone, Copy)]
struct Packet {
    number: u32,
    tstamp: f64,
    size: u64,
    ecn: Ecn,
}

/// The RFC's class, times in nanoseconds.
#[derive(Default)]
struct Model {
    queue: VecDeque<Packet>,
    ecn: bool,
    first_above_time: f64,
    drop_next: f64,
    count: u32,
    lastcount: u32,
    dropping: bool,
    log: Log,
}

impl Model {
    fn bytes(&self) -> u64 {
        self.queue.iter().map(|p| p.size).sum()
    }

    fn control_law(t: f64, count: u32) -> f64 {
        t + (INTERVAL / f64::from(count).sqrt()).floor()
    }

    fn dodequeue(&mut self, now: f64) -> (Option<Packet>, bool) {
        let p = self.queue.pop_front();
        let mut ok_to_drop = false;
        if let Some(p) = p {
            let sojourn_time = now - p.tstamp;
            if sojourn_time < TARGET || self.bytes() <= MAXPACKET {
                self.first_above_time = 0.0;
            } else if self.first_above_time == 0.0 {
                self.first_above_time = now + INTERVAL;
            } else if now >= self.first_above_time {
                ok_to_drop = true;
            }
        } else {
            self.first_above_time = 0.0;
        }
        (p, ok_to_drop)
    }

    fn drop(&mut self, p: Packet) {
        self.log.0.push((p.number, 'd'));
    }

    fn can_mark(&self, p: Packet) -> bool {
        self.ecn && p.ecn != Ecn::NotEct
    }

    fn dequeue(&mut self, now: f64) {
        let (mut p, mut ok_to_drop) = self.dodequeue(now);
        if self.dropping {
            if !ok_to_drop {
                self.dropping = false;
            }
            while self.dropping && now >= self.drop_next {
                self.count += 1;
                if self.can_mark(p.unwrap()) {
                    p.as_mut().unwrap().ecn = Ecn::Ce;
                    self.drop_next = Self::control_law(self.drop_next, self.count);
                    break;
                }
                self.drop(p.unwrap());
                (p, ok_to_drop) = self.dodequeue(now);
                if ok_to_drop {
                    self.drop_next = Self::control_law(self.drop_next, self.count);
                } else {
                    self.dropping = false;
                }
            }
        } else if ok_to_drop {
            if self.can_mark(p.unwrap()) {
                p.as_mut().unwrap().ecn = Ecn::Ce;
            } else {
                self.drop(p.unwrap());
                (p, _) = self.dodequeue(now);
            }
            self.dropping = true;
            let delta = self.count - self.lastcount;
            self.count = 1;
            if delta > 1 && now - self.drop_next < 16.0 * INTERVAL {
                self.count = delta;
            }
            self.drop_next = Self::control_law(now, self.count);
            self.lastcount = self.count;
        }
        if let Some(p) = p {
            self.log.0.push((p.number, if p.ecn == Ecn::Ce { 'm' } else { 's' }));
        }
    }

    fn run(mut self, events: &[(u64, Event)]) -> Log {
        for &(at, event) in events {
            match event {
                Event::Arrive { number, size, ecn, .. } => {
                    self.queue.push_back(Packet { number, tstamp: at as f64, size: size.into(), ecn });
                }
                Event::Depart => self.dequeue(at as f64),
            }
        }
        self.log
    }
}

#[test]
fn codel_drops_what_rfc_8289_drops() {
    for ecn in [false, true] {
        let (mut drops, mut sent) = (0, 0);
        for seed in 0..60 {
            let events = trace::events(seed, 20_000, 400);
            let ours = trace::run(&mut Codel::new(CodelSpec { ecn, ..CodelSpec::default() }), &events);
            let model = Model { ecn, ..Model::default() }.run(&events);
            trace::same(&ours, &model, &format!("ecn {ecn}, seed {seed}"));
            drops += model.count('d');
            sent += model.count('s');
        }
        assert!(drops > 1_000 && sent > 100_000, "{drops} drops, {sent} sent: the traces test nothing");
    }
}

/// Counts what a queue gives up.
#[derive(Default)]
struct Refused(Vec<DropReason>);

impl Outlet<Vec<u8>> for Refused {
    fn dropped(&mut self, _item: Queued<Vec<u8>>, reason: DropReason) {
        self.0.push(reason);
    }
}

#[test]
fn a_head_that_waits_for_a_shaper_is_within_the_limit() {
    let limit = QueueLimit { packets: 2, ..QueueLimit::default() };
    let mut queue = Codel::new(CodelSpec { limit, ..CodelSpec::default() });
    let mut refused = Refused::default();
    let come = |queue: &mut Codel<Vec<u8>>, refused: &mut Refused| {
        queue.enqueue(Time::ZERO, Queued::new(vec![0; 100], Time::ZERO), refused);
    };
    come(&mut queue, &mut refused);
    assert_eq!(queue.head(Time::ZERO, &mut refused), Some(100));
    come(&mut queue, &mut refused);
    come(&mut queue, &mut refused);
    assert_eq!((queue.packets(), queue.bytes(), refused.0), (2, 200, vec![DropReason::QueuePackets]));
}
