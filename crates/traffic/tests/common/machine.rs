//! A machine that does what a list of numbers says to a pipeline, and keeps its own books about every packet. The property
//! test and a fuzz target share it.
#![allow(unreachable_pub, reason = "a module in two crates")]

use std::collections::HashMap;

use insane_traffic::spec::{
    BdpSpec, CodelSpec, ColourAction, Colours, DqlSpec, Dualpi2Spec, FilterSpec, Leftover, LimitSpec, MatchSpec,
    NumberSet, Overflow, PacerSpec, PairRole, PieSpec, PolicerSpec, Protection, QfiSpec, QueueKind, QueueLimit,
    QueueSpec, Rate, RedSpec, References, SchedulerSpec, ShaperSpec, Size, TargetSpec, WeightSpec,
};
use insane_traffic::{
    Change, Dequeued, DropReason, Dropped, Packet, Pipeline, PipelineSpec, QueueId, RlcStatus, Span, Time,
};

/// A packet that knows which one it is.
#[derive(Debug, PartialEq, Eq)]
pub struct Numbered {
    pub number: u64,
    pub bytes: Vec<u8>,
    pub class: u32,
}

impl Packet for Numbered {
    fn size(&self) -> u32 {
        self.bytes.len() as u32
    }
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
    fn class(&self) -> u32 {
        self.class
    }
    fn qfi(&self) -> Option<u8> {
        Some((self.class % 64) as u8)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Queued,
    Sent,
    Dropped(DropReason),
}

/// One step: what to do, and a number that decides how.
pub type Op = (u8, u32);

pub struct Machine {
    pub pipeline: Pipeline<Numbered>,
    pub now: Time,
    fates: HashMap<u64, Fate>,
    next: u64,
    changes: u64,
    refused: u64,
}

/// A packet of one of many shapes: whole or cut short, IPv4 or garbage, any ECN field, fragments among them.
fn packet_bytes(n: u32) -> Vec<u8> {
    let len = [0, 1, 28, 64, 300, 1000, 1500, 9000][(n >> 3) as usize % 8];
    let mut bytes = vec![0; len];
    if len >= 28 && n % 8 != 7 {
        let total = u16::try_from(len).unwrap().to_be_bytes();
        bytes[..4].copy_from_slice(&[0x45, (n >> 6) as u8, total[0], total[1]]);
        bytes[6] = [0, 0, 0, 0x20, 0, 0, 0, 0][(n >> 9) as usize % 8];
        bytes[9] = [6, 17][(n >> 12) as usize % 2];
        bytes[12..20].copy_from_slice(&[10, 0, 0, (n >> 13) as u8 % 8, 10, 0, 1, 1]);
        bytes[20..24].copy_from_slice(&[0, (n >> 16) as u8 % 16, 0x14, 0x51]);
        if bytes[9] == 6 && len >= 40 {
            bytes[32] = 0x50;
        }
    }
    bytes
}

fn queue(n: u32) -> QueueId {
    QueueId(n % 10)
}

fn limit(n: u32) -> QueueLimit {
    QueueLimit { packets: 1 + n % 200, bytes: Size(u64::from(1 + n % 100_000)) }
}

fn kind(n: u32) -> QueueKind {
    let ecn = n & 64 != 0;
    match n % 7 {
        0 => QueueKind::Fifo { limit: limit(n >> 8) },
        1 => QueueKind::Codel(CodelSpec { limit: limit(n >> 8), ecn, ..CodelSpec::default() }),
        2 => QueueKind::Codel(CodelSpec { ecn, ..CodelSpec::default() }),
        3 => QueueKind::Red(RedSpec { min: Size(2000), max: Size(9000), ecn, ..RedSpec::default() }),
        4 => QueueKind::Pie(PieSpec { ecn, enhanced: n & 128 != 0, ..PieSpec::default() }),
        5 => QueueKind::Dualpi2(Dualpi2Spec::new(["a", "b"][(n >> 8) as usize % 2], PairRole::L4s)),
        _ => QueueKind::Dualpi2(Dualpi2Spec::new(["a", "b"][(n >> 8) as usize % 2], PairRole::Classic)),
    }
}

fn policer(n: u32) -> PolicerSpec {
    let yellow = if n & 1 == 0 { ColourAction::Pass } else { ColourAction::Redirect(queue(n >> 4)) };
    let colours = Colours { yellow, ..Colours::default() };
    let (cir, cbs) = (Rate(u64::from(n % 50_000_000)), Size(u64::from(1 + n % 20_000)));
    if n & 2 == 0 {
        PolicerSpec::Srtcm { cir, cbs, ebs: Size(3000), colours, colour_aware: n & 8 != 0 }
    } else {
        PolicerSpec::Trtcm { cir, cbs, pir: Rate(cir.0 * 2), pbs: Size(9000), colours, colour_aware: n & 8 != 0 }
    }
}

fn shaper(n: u32) -> ShaperSpec {
    ShaperSpec::TokenBucket { rate: Rate(u64::from(1 + n % 100_000_000)), burst: Size(u64::from(1 + n % 20_000)) }
}

fn scheduler(n: u32) -> SchedulerSpec {
    let weights = vec![WeightSpec { queue: queue(n >> 4), weight: 1 + (n >> 8) % 20 }];
    match n % 7 {
        0 => SchedulerSpec::RoundRobin {},
        1 => SchedulerSpec::Drr { quantum: 256 + n % 3000, weights },
        2 => SchedulerSpec::Strict { order: vec![vec![queue(n >> 4)], vec![QueueId(0)]] },
        3 => SchedulerSpec::Conditional { high: vec![queue(n >> 4)], protection: Protection::default() },
        4 => SchedulerSpec::Conditional {
            high: vec![queue(n >> 4)],
            protection: Protection::TimeShift { shift: "50ms".parse().unwrap() },
        },
        5 => SchedulerSpec::Weighted { weights },
        _ => SchedulerSpec::FqCodel { quantum: 256 + n % 3000 },
    }
}

fn pacer(n: u32) -> PacerSpec {
    match n % 3 {
        0 => PacerSpec::None {},
        1 => PacerSpec::Dql(DqlSpec::default()),
        _ => PacerSpec::Bdp(BdpSpec::default()),
    }
}

fn filter(n: u32) -> FilterSpec {
    let to = match (n >> 3) % 8 {
        0 => TargetSpec::Drop {},
        1 => TargetSpec::Hash { queues: None },
        2 => TargetSpec::Hash { queues: Some(NumberSet::range(0, n % 10)) },
        3 => TargetSpec::RoundRobin { queues: None },
        4 => TargetSpec::Qfi { map: vec![QfiSpec { qfi: NumberSet::range(0, 20), queue: queue(n >> 6) }] },
        5 => TargetSpec::Class { queues: vec![queue(n >> 6), queue(n >> 10)] },
        6 => TargetSpec::L4s { l4s: queue(n >> 6), classic: queue(n >> 10) },
        _ => TargetSpec::Queue { queue: queue(n >> 6) },
    };
    let mut matches = MatchSpec::default();
    match (n >> 14) % 6 {
        0 => matches.src_port = Some(NumberSet::range(0, (n >> 17) % 16)),
        1 => matches.ecn = Some(NumberSet::from((n >> 17) % 4)),
        2 => matches.src = Some("10.0.0.0/30".parse().unwrap()),
        3 => matches.class = Some(NumberSet::range(0, (n >> 17) % 8)),
        4 => matches.server_name = vec!["*.example.com".into()],
        _ => {}
    }
    FilterSpec { id: n % 5, priority: (n >> 20) % 3, matches, to }
}

fn change(n: u32) -> Change {
    let m = n.wrapping_mul(0x9e37_79b9);
    match n % 20 {
        0 => Change::AddFilter { filter: filter(m) },
        1 => Change::ModifyFilter { filter: filter(m) },
        2 => Change::DeleteFilter { id: m % 5 },
        3 | 4 => Change::AddQueue { queue: QueueSpec::new(queue(m >> 3), kind(m)) },
        5 | 6 => Change::ModifyQueue { id: queue(m >> 3), kind: kind(m) },
        7 | 8 => Change::DeleteQueue {
            id: queue(m >> 3),
            packets: if m & 1 == 0 { Leftover::Rehome } else { Leftover::Drop },
            references: if m & 6 == 0 { References::Refuse } else { References::Remove },
        },
        9 => Change::AddPolicer { queue: queue(m >> 20), policer: policer(m) },
        10 => Change::ModifyPolicer { queue: queue(m >> 20), policer: policer(m) },
        11 => Change::DeletePolicer { queue: queue(m >> 20) },
        12 => Change::AddShaper { queue: queue(m >> 20), shaper: shaper(m) },
        13 => Change::ModifyShaper { queue: queue(m >> 20), shaper: shaper(m) },
        14 => Change::DeleteShaper { queue: queue(m >> 20) },
        15 | 16 => Change::SetScheduler { scheduler: scheduler(m) },
        17 => Change::SetPacer { pacer: pacer(m) },
        18 => [Change::DeletePacer {}, Change::DeleteScheduler {}][m as usize % 2].clone(),
        _ => Change::SetLimit {
            limit: LimitSpec {
                packets: 1 + m % 500,
                bytes: Size(u64::from(1_000 + m % 500_000)),
                overflow: if m & 1 == 0 { Overflow::Tail } else { Overflow::Fattest },
            },
        },
    }
}

impl Machine {
    pub fn new(seed: u64) -> Self {
        let mut spec = PipelineSpec::default();
        spec.queues.push(QueueSpec { count: 3, ..QueueSpec::new(QueueId(1), QueueKind::default()) });
        spec.limit.packets = 400;
        let pipeline = Pipeline::new(&spec, seed).unwrap();
        Self { pipeline, now: Time::ZERO, fates: HashMap::new(), next: 0, changes: 0, refused: 0 }
    }

    /// Does one step and checks the books after it.
    pub fn step(&mut self, (op, n): Op) {
        match op % 16 {
            0..=6 => self.enqueue(n),
            7..=11 => {
                self.dequeue();
            }
            12 => self.now += Span::from_nanos(u64::from(n % 20_000_000)),
            13 => self.report(n),
            14 => self.pipeline.observe(self.now, &packet_bytes(n)),
            _ => self.change(n),
        }
        self.pipeline.audit().unwrap();
    }

    fn enqueue(&mut self, n: u32) {
        let number = self.next;
        self.next += 1;
        self.fates.insert(number, Fate::Queued);
        let packet = Numbered { number, bytes: packet_bytes(n), class: n >> 27 };
        let fates = &mut self.fates;
        let taken = self.pipeline.enqueue(self.now, packet, &mut |p: Numbered, what: Dropped| lost(fates, &p, what));
        if let Err(reason) = taken {
            assert_eq!(self.fates[&number], Fate::Dropped(reason));
        }
    }

    fn dequeue(&mut self) -> bool {
        let fates = &mut self.fates;
        match self.pipeline.dequeue(self.now, &mut |p: Numbered, what: Dropped| lost(fates, &p, what)) {
            Dequeued::Packet(packet, _) => {
                assert_eq!(
                    self.fates.insert(packet.number, Fate::Sent),
                    Some(Fate::Queued),
                    "sent twice or from nowhere"
                );
                true
            }
            Dequeued::Wait(until) => {
                assert!(until > self.now, "a wait that is over already would be a busy loop");
                assert!(self.pipeline.packets() > 0);
                false
            }
            Dequeued::Empty => {
                assert_eq!(self.pipeline.packets(), 0);
                false
            }
        }
    }

    fn report(&mut self, n: u32) {
        let status = RlcStatus {
            bytes: u64::from(n % 50_000),
            desired_bytes: (n & 1 == 0).then_some(u64::from(n >> 8)),
            desired_rate: (n & 2 == 0).then_some(u64::from(n)),
            ..RlcStatus::default()
        };
        self.pipeline.report(self.now, &status);
    }

    fn change(&mut self, n: u32) {
        let changes: Vec<Change> = (0..1 + n % 3).map(|k| change(n.rotate_left(7 * k) >> 2)).collect();
        let may_drop = changes.iter().any(|c| matches!(c, Change::DeleteQueue { packets: Leftover::Drop, .. }));
        let (spec, generation) = (self.pipeline.spec(), self.pipeline.generation());
        let held = (self.pipeline.packets(), self.pipeline.bytes());
        let fates = &mut self.fates;
        let mut dropped = 0;
        let done = self.pipeline.apply(self.now, &changes, &mut |p: Numbered, what: Dropped| {
            assert_eq!(what.reason, DropReason::Change);
            dropped += 1;
            lost(fates, &p, what);
        });
        if let Ok(new) = done {
            assert_eq!(new, generation + 1);
            self.changes += 1;
        } else {
            assert_eq!((self.pipeline.spec(), self.pipeline.generation()), (spec, generation));
            self.refused += 1;
        }
        if done.is_err() || !may_drop {
            assert_eq!((dropped, self.pipeline.packets(), self.pipeline.bytes()), (0, held.0, held.1));
        }
        // What the pipeline says it is can be built anew.
        let spec = self.pipeline.spec();
        assert_eq!(Pipeline::<Numbered>::new(&spec, 1).unwrap().spec(), spec);
    }

    /// Lets everything out: nothing may be stuck, and every packet must have had exactly one fate. Returns how many packets
    /// had which.
    pub fn finish(mut self) -> HashMap<&'static str, u64> {
        let mut idle = 0;
        while self.pipeline.packets() > 0 {
            if !self.dequeue() {
                let wake = self.pipeline.wake_at();
                let Some(wake) = wake.or((self.pipeline.packets() == 0).then_some(self.now)) else {
                    panic!("{} packets are stuck", self.pipeline.packets());
                };
                self.now = self.now.max(wake);
                self.pipeline.report(self.now, &RlcStatus::default());
                idle += 1;
                assert!(idle < 1_000_000, "{} packets never leave", self.pipeline.packets());
            }
        }
        self.pipeline.audit().unwrap();
        let stats = self.pipeline.stats();
        let mut sent = 0;
        let mut dropped: HashMap<&'static str, u64> = HashMap::new();
        for fate in self.fates.values() {
            match fate {
                Fate::Queued => panic!("a packet was lost"),
                Fate::Sent => sent += 1,
                Fate::Dropped(reason) => *dropped.entry(reason.name()).or_default() += 1,
            }
        }
        assert_eq!(stats.basic.packets, sent);
        for (name, value) in stats.dropped.iter() {
            assert_eq!(value, &insane_traffic::stats::Value::Count(dropped.get(name).copied().unwrap_or(0)), "{name}");
        }
        dropped.insert("sent", sent);
        dropped.insert("changes", self.changes);
        dropped.insert("refused changes", self.refused);
        dropped
    }
}

fn lost(fates: &mut HashMap<u64, Fate>, packet: &Numbered, what: Dropped) {
    let before = fates.insert(packet.number, Fate::Dropped(what.reason));
    assert_eq!(before, Some(Fate::Queued), "dropped twice or from nowhere");
}
