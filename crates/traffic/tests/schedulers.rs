//! The schedulers against textbook models and their known bounds.

use std::collections::VecDeque;

use insane_traffic::schedule::{Conditional, Drr, FqCodel, QueueView, RoundRobin, Scheduler, Strict, Weighted};
use insane_traffic::spec::{Protection, WeightSpec};
use insane_traffic::{QueueId, Rng, Span, Time};

/// Queues of packets, each a size and a time of arrival, and the scheduler over them.
struct Bench<S> {
    scheduler: S,
    queues: Queues,
    steps: u64,
}

#[derive(Default)]
struct Queues(Vec<VecDeque<(u32, Time)>>);

impl QueueView for Queues {
    fn packets(&self, queue: QueueId) -> usize {
        self.0[queue.index()].len()
    }
    fn bytes(&self, queue: QueueId) -> u64 {
        self.0[queue.index()].iter().map(|p| u64::from(p.0)).sum()
    }
    fn head_time(&self, queue: QueueId) -> Option<Time> {
        self.0[queue.index()].front().map(|p| p.1)
    }
}

impl<S: Scheduler> Bench<S> {
    fn new(mut scheduler: S, queues: u32) -> Self {
        (0..queues).for_each(|q| scheduler.add(QueueId(q)));
        Self { scheduler, queues: Queues((0..queues).map(|_| VecDeque::new()).collect()), steps: 0 }
    }

    fn push(&mut self, queue: usize, size: u32, at: Time) {
        self.queues.0[queue].push_back((size, at));
        if self.queues.0[queue].len() == 1 {
            self.scheduler.activate(QueueId(queue as u32));
        }
    }

    fn pull(&mut self) -> Option<(usize, u32)> {
        loop {
            self.steps += 1;
            let queue = self.scheduler.next(Time::ZERO, &self.queues)?;
            // Asking again gives the same answer: a shaper or pacer may have said no.
            assert_eq!(self.scheduler.next(Time::ZERO, &self.queues), Some(queue));
            let Some(&(size, _)) = self.queues.0[queue.index()].front() else {
                self.scheduler.emptied(queue);
                continue;
            };
            if !self.scheduler.offer(queue, size) {
                continue;
            }
            assert!(self.scheduler.offer(queue, size), "what may leave may still leave when asked again");
            self.queues.0[queue.index()].pop_front();
            self.scheduler.sent(queue, size);
            return Some((queue.index(), size));
        }
    }
}

#[test]
fn round_robin_is_one_packet_per_queue_and_turn() {
    let mut bench = Bench::new(RoundRobin::default(), 5);
    for queue in 0..5 {
        (0..=queue).for_each(|_| bench.push(queue, 100, Time::ZERO));
    }
    let order: Vec<usize> = std::iter::from_fn(|| bench.pull().map(|p| p.0)).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 1, 2, 3, 4, 2, 3, 4, 3, 4, 4]);
}

/// Shreedhar and Varghese's algorithm, word for word.
struct DrrModel {
    active: VecDeque<usize>,
    deficit: Vec<i64>,
    quantum: Vec<i64>,
    in_turn: bool,
}

impl DrrModel {
    fn serve(&mut self, queues: &mut [VecDeque<u32>]) -> Option<usize> {
        for (queue, packets) in queues.iter().enumerate() {
            if !packets.is_empty() && !self.active.contains(&queue) {
                self.active.push_back(queue);
            }
        }
        loop {
            let queue = *self.active.front()?;
            let Some(&head) = queues[queue].front() else {
                self.deficit[queue] = 0;
                self.active.pop_front();
                self.in_turn = false;
                continue;
            };
            if !self.in_turn {
                self.deficit[queue] += self.quantum[queue];
                self.in_turn = true;
            }
            if i64::from(head) <= self.deficit[queue] {
                self.deficit[queue] -= i64::from(head);
                queues[queue].pop_front();
                return Some(queue);
            }
            self.active.rotate_left(1);
            self.in_turn = false;
        }
    }
}

#[test]
fn drr_serves_as_shreedhar_and_varghese_do() {
    for quantum in [256, 500, 1514, 9000] {
        for seed in 0..10 {
            let weights = [WeightSpec { queue: QueueId(1), weight: 3 }];
            let mut bench = Bench::new(Drr::new(quantum, &weights), 4);
            let mut rng = Rng::new(seed);
            let quantum = i64::from(quantum);
            let mut model = DrrModel {
                active: VecDeque::new(),
                deficit: vec![0; 4],
                quantum: vec![quantum, 3 * quantum, quantum, quantum],
                in_turn: false,
            };
            let mut queues = vec![VecDeque::new(); 4];
            for n in 0..20_000 {
                if rng.bits() % 100 < 50 {
                    let (queue, size) = ((rng.bits() % 4) as usize, 60 + (rng.bits() % 1455) as u32);
                    bench.push(queue, size, Time::ZERO);
                    queues[queue].push_back(size);
                    if !model.active.contains(&queue) {
                        model.active.push_back(queue);
                    }
                } else {
                    assert_eq!(
                        bench.pull().map(|p| p.0),
                        model.serve(&mut queues),
                        "quantum {quantum}, seed {seed}, {n}"
                    );
                }
            }
        }
    }
}

/// Pushes and pulls at random; `check` sees the queues before each pull and what was pulled.
fn random<S: Scheduler>(bench: &mut Bench<S>, seed: u64, mut check: impl FnMut(&Queues, usize)) {
    let mut rng = Rng::new(seed);
    let mut now = Time::ZERO;
    for _ in 0..20_000 {
        now += Span::from_micros(rng.bits() % 20_000);
        if rng.bits() % 100 < 52 {
            let (queue, size) = ((rng.bits() % 4) as usize, 60 + (rng.bits() % 1455) as u32);
            bench.push(queue, size, now);
            continue;
        }
        let before = Queues(bench.queues.0.clone());
        match bench.pull() {
            Some((queue, _)) => check(&before, queue),
            None => assert!(before.0.iter().all(VecDeque::is_empty), "packets wait and nobody is served"),
        }
    }
}

#[test]
fn strict_priority_never_serves_a_level_while_one_above_waits() {
    let level = [2, 1, 1, 0];
    for seed in 0..10 {
        let mut bench = Bench::new(Strict::new(&[vec![QueueId(3)], vec![QueueId(1), QueueId(2)]]), 4);
        let mut passed_over = [0; 4];
        random(&mut bench, seed, |queues, served| {
            let waiting = || (0..4).filter(|&q| !queues.0[q].is_empty());
            assert!(waiting().all(|q| level[q] >= level[served]));
            // Within the middle level neither is passed over for long.
            if level[served] == 1 {
                let other = 3 - served;
                passed_over[served] = 0;
                passed_over[other] = if queues.0[other].is_empty() { 0 } else { passed_over[other] + 1 };
                assert!(passed_over[other] <= 2);
            }
        });
    }
}

#[test]
fn a_changed_order_of_priorities_holds_at_once() {
    use insane_traffic::spec::SchedulerSpec;
    let mut bench = Bench::new(Strict::new(&[vec![QueueId(0)]]), 2);
    (0..2).for_each(|q| (0..3).for_each(|_| bench.push(q, 100, Time::ZERO)));
    assert_eq!(bench.pull(), Some((0, 100)));
    assert!(bench.scheduler.modify(&SchedulerSpec::Strict { order: vec![vec![QueueId(1)], vec![QueueId(0)]] }));
    let order: Vec<usize> = std::iter::from_fn(|| bench.pull().map(|p| p.0)).collect();
    assert_eq!(order, [1, 1, 1, 0, 0]);
}

#[test]
fn weighted_fairness_stays_within_its_bound() {
    // Goyal, Vin and Cheng, theorem 1: over any interval in which both have packets, the bytes served per weight differ by
    // at most one largest packet per weight each.
    let weights = [1.0, 2.0, 5.0];
    let specs = [WeightSpec { queue: QueueId(1), weight: 2 }, WeightSpec { queue: QueueId(2), weight: 5 }];
    for seed in 0..10 {
        let mut rng = Rng::new(seed);
        let mut bench = Bench::new(Weighted::new(&specs), 3);
        (0..3).for_each(|q| (0..6_000).for_each(|_| bench.push(q, 60 + (rng.bits() % 1455) as u32, Time::ZERO)));
        let mut served = [0.0; 3];
        let (mut low, mut high) = ([[0.0_f64; 3]; 3], [[0.0_f64; 3]; 3]);
        while bench.queues.0.iter().all(|q| !q.is_empty()) {
            let (queue, size) = bench.pull().unwrap();
            served[queue] += f64::from(size) / weights[queue];
            for (a, b) in [(0, 1), (0, 2), (1, 2)] {
                let difference = served[a] - served[b];
                low[a][b] = low[a][b].min(difference);
                high[a][b] = high[a][b].max(difference);
                let bound = 1514.0 / weights[a] + 1514.0 / weights[b];
                assert!(high[a][b] - low[a][b] <= bound + 1e-3, "seed {seed}: queues {a} and {b}");
            }
        }
    }
}

#[test]
fn conditional_priority_leaves_the_others_their_share() {
    for percent in [10, 30, 50] {
        let mut bench = Bench::new(Conditional::new(&[QueueId(1)], Protection::Share { percent }), 2);
        (0..2).for_each(|q| (0..40_000).for_each(|_| bench.push(q, 1000, Time::ZERO)));
        let low = (0..40_000).filter(|_| bench.pull().unwrap().0 == 0).count();
        let share = low as f64 / 400.0;
        assert!((share - f64::from(percent)).abs() < 1.0, "{percent} %: {share}");
    }
    // Alone, each side gets everything.
    let mut bench = Bench::new(Conditional::new(&[QueueId(1)], Protection::default()), 2);
    (0..100).for_each(|_| bench.push(0, 1000, Time::ZERO));
    assert!((0..100).all(|_| bench.pull() == Some((0, 1000))));
}

#[test]
fn time_shifted_priority_serves_the_high_side_unless_the_low_one_waited_longer_by_the_shift() {
    let shift = Span::from_millis(50);
    for seed in 0..10 {
        let protection = Protection::TimeShift { shift: "50ms".parse().unwrap() };
        let mut bench = Bench::new(Conditional::new(&[QueueId(1)], protection), 4);
        random(&mut bench, seed, |queues, served| {
            let head = |q: usize| queues.0[q].front().map(|p| p.1);
            let low = [0, 2, 3].into_iter().filter_map(head).max();
            if let (Some(high), Some(low)) = (head(1), low) {
                // The heads of the low queues differ; what holds for the youngest holds for all.
                if high - shift <= [0, 2, 3].into_iter().filter_map(head).min().unwrap() {
                    assert_eq!(served, 1);
                } else if high - shift > low {
                    assert_ne!(served, 1);
                }
            }
        });
    }
}

#[test]
fn packets_of_many_quanta_cost_no_time() {
    let huge = 128 << 20;
    let mut drr = Bench::new(Drr::new(256, &[]), 100);
    let mut fq = Bench::new(FqCodel::new(256), 100);
    for queue in 0..100 {
        for size in [huge, 9000, huge - 1] {
            drr.push(queue, size, Time::ZERO);
            fq.push(queue, size, Time::ZERO);
        }
    }
    assert_eq!((0..300).filter(|_| drr.pull().is_some() && fq.pull().is_some()).count(), 300);
    // Without the rounds that are skipped, a packet of 128 MiB is half a million turns of each queue.
    assert!(drr.steps < 100_000, "{}", drr.steps);
}

#[test]
fn a_blocked_queue_comes_back_where_it_was() {
    let kinds: Vec<Box<dyn Scheduler>> = vec![
        Box::new(RoundRobin::default()),
        Box::new(Drr::new(1514, &[])),
        Box::new(Strict::new(&[vec![QueueId(0)]])),
        Box::new(Conditional::new(&[QueueId(0)], Protection::default())),
        Box::new(Weighted::new(&[])),
        Box::new(FqCodel::new(1514)),
    ];
    for mut scheduler in kinds {
        let mut queues = Queues(vec![VecDeque::new(), VecDeque::new()]);
        for queue in 0..2 {
            scheduler.add(QueueId(queue));
            queues.0[queue as usize].extend([(100, Time::ZERO); 3]);
            scheduler.activate(QueueId(queue));
        }
        scheduler.block(QueueId(0));
        for _ in 0..3 {
            assert_eq!(scheduler.next(Time::ZERO, &queues), Some(QueueId(1)));
            assert!(scheduler.offer(QueueId(1), 100));
            queues.0[1].pop_front();
            scheduler.sent(QueueId(1), 100);
        }
        scheduler.emptied(QueueId(1));
        // FQ-CoDel looks once more at a queue that was new when it ran empty.
        if scheduler.next(Time::ZERO, &queues) == Some(QueueId(1)) {
            scheduler.emptied(QueueId(1));
        }
        assert_eq!(scheduler.next(Time::ZERO, &queues), None, "blocked is not served");
        scheduler.unblock(QueueId(0));
        assert_eq!(scheduler.next(Time::ZERO, &queues), Some(QueueId(0)));
        scheduler.remove(QueueId(0));
        assert_eq!(scheduler.next(Time::ZERO, &queues), None);
    }
}
