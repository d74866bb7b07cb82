//! Packets in = out + dropped by reason + queued, at every instant, whatever the stages from outside answer and however they
//! come and go. By default some hundred thousand operations; `INSANE_TRAFFIC_OPS=50000000` for a long run.

#[path = "common/chaos.rs"]
mod chaos;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use insane_traffic::spec::{Change, PacerSpec, PolicerSpec, QueueKind, QueueLimit, SchedulerSpec, ShaperSpec, Size};
use insane_traffic::{Dequeued, DropReason, Dropped, Packet, Pipeline, PipelineSpec, RlcStatus, Span, SpecError, Time};
use insane_traffic_plugin::Registry;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const OPS_PER_CASE: usize = if cfg!(miri) { 60 } else { 1_000 };

fn cases() -> u32 {
    let default = if cfg!(miri) { 240 } else { 600_000 };
    let ops = std::env::var("INSANE_TRAFFIC_OPS").map_or(default, |n| n.parse::<usize>().expect("a number"));
    u32::try_from(2 * ops / OPS_PER_CASE).expect("a sensible number of operations").max(1)
}

/// A packet whose end is noticed.
struct Counted {
    bytes: Vec<u8>,
    alive: Rc<Cell<u64>>,
}

// SAFETY: for this test only: packets never leave its thread, and the trait asks for `Send`.
unsafe impl Send for Counted {}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.set(self.alive.get() - 1);
    }
}

impl Packet for Counted {
    fn size(&self) -> u32 {
        self.bytes.len() as u32
    }
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
    fn flow(&self) -> Option<u64> {
        Some(u64::from(self.bytes[1]))
    }
}

const SPEC: &str = "
    version = 1
    limit = { packets = 200, bytes = '100k', overflow = 'fattest' }
    scheduler = { type = 'plugin', name = 'chaos', options = '1' }
    pacer = { type = 'plugin', name = 'chaos', options = '2' }
    [[filter]]
    id = 1
    to = { type = 'plugin', name = 'chaos', options = '3' }
    [[queue]]
    id = 0
    count = 3
    kind = { type = 'plugin', name = 'chaos', options = '4' }
    policer = { type = 'plugin', name = 'chaos', options = '5' }
    shaper = { type = 'plugin', name = 'chaos', options = '6' }
";

fn change(number: u32) -> Change {
    let (name, options) = ("chaos".to_owned(), (number / 7).to_string());
    let queue = number % 5;
    let limit = QueueLimit { packets: 1 + number % 90, bytes: Size(1 << 20) };
    let kind = match number / 11 % 3 {
        0 => QueueKind::Fifo { limit },
        _ => QueueKind::Plugin { name: name.clone(), options: options.clone(), limit },
    };
    let text = |text: String| from_text(&text);
    match number / 5 % 14 {
        0 => text(format!("op = 'add-queue'\nqueue = {{ id = {queue} }}")),
        1 | 2 => Change::ModifyQueue { id: insane_traffic::QueueId(queue), kind },
        3 => {
            let packets = if number.is_multiple_of(2) { "drop" } else { "rehome" };
            text(format!("op = 'delete-queue'\nid = {queue}\npackets = '{packets}'\nreferences = 'remove'"))
        }
        4 => Change::SetScheduler { scheduler: SchedulerSpec::Plugin { name, options } },
        5 => Change::SetScheduler { scheduler: SchedulerSpec::RoundRobin {} },
        6 => Change::SetPacer { pacer: PacerSpec::Plugin { name, options } },
        7 => Change::DeletePacer {},
        8 => {
            Change::AddPolicer { queue: insane_traffic::QueueId(queue), policer: PolicerSpec::Plugin { name, options } }
        }
        9 => Change::DeletePolicer { queue: insane_traffic::QueueId(queue) },
        10 => {
            Change::ModifyShaper { queue: insane_traffic::QueueId(queue), shaper: ShaperSpec::Plugin { name, options } }
        }
        11 => text(format!(
            "op = 'modify-filter'\nfilter = {{ id = 1, to = {{ type = 'plugin', name = 'chaos', options = '{options}' }} }}"
        )),
        12 => Change::DeleteShaper { queue: insane_traffic::QueueId(queue) },
        _ => Change::SetPacer { pacer: PacerSpec::Plugin { name, options: "no number".into() } },
    }
}

fn from_text(text: &str) -> Change {
    toml::from_str(text).unwrap()
}

fn run(seed: u64, ops: &[(u8, u32)], seen: &mut BTreeMap<&'static str, u64>) {
    let registry = Registry::new(Vec::new());
    // SAFETY: the tables are what the header asks for, and static.
    unsafe { registry.link(&chaos::TABLES.each_ref()) }.unwrap();
    let registry = Arc::new(registry);
    let spec = PipelineSpec::from_toml(SPEC).unwrap();
    let mut pipeline = Pipeline::with_plugins(&spec, seed, Some(registry.clone())).unwrap();
    let alive = Rc::new(Cell::new(0_u64));
    let (dropped, discarded) = (Cell::new(0_u64), Cell::new(0_u64));
    let mut out = |packet: Counted, what: Dropped| {
        dropped.set(dropped.get() + 1);
        if what.reason == DropReason::Plugin {
            discarded.set(discarded.get() + 1);
        }
        drop(packet);
    };
    let (mut now, mut arrived, mut sent, mut changes, mut refused) = (Time::ZERO, 0, 0, 0, 0);
    for &(op, number) in ops {
        match op % 16 {
            0..=7 => {
                let mut bytes = vec![0; 60 + number as usize % 1_400];
                (bytes[0], bytes[1]) = (0x45, number as u8);
                let length = (bytes.len() as u16).to_be_bytes();
                bytes[2..4].copy_from_slice(&length);
                alive.set(alive.get() + 1);
                arrived += 1;
                let _queue = pipeline.enqueue(now, Counted { bytes, alive: alive.clone() }, &mut out);
            }
            8..=11 => match pipeline.dequeue(now, &mut out) {
                Dequeued::Packet(..) => sent += 1,
                Dequeued::Wait(until) => {
                    assert!(until > now && until <= now + Span::from_secs(1), "{now:?} {until:?}");
                    if number.is_multiple_of(4) {
                        now = until;
                    }
                }
                Dequeued::Empty => assert_eq!(pipeline.packets(), 0),
            },
            12 => now += Span::from_nanos(number.into()),
            13 => pipeline.report(now, &RlcStatus { bytes: number.into(), ..RlcStatus::default() }),
            14 => match pipeline.apply(now, &[change(number)], &mut out) {
                Ok(_) => changes += 1,
                Err(SpecError::Plugin { text, .. }) => {
                    assert_eq!(text, "the options are no seed");
                    refused += 1;
                }
                Err(_) => {}
            },
            _ => {
                let stats = pipeline.stats();
                assert_eq!(stats.basic.drops, dropped.get());
                let queues = stats.queues.iter().flat_map(|q| [Some(&q.xstats), q.police.as_ref(), q.shaper.as_ref()]);
                for map in queues.flatten().chain([&stats.scheduler, &stats.pacer]) {
                    let names: Vec<&str> = map.iter().map(|(name, _)| name).collect();
                    let apart: std::collections::HashSet<_> = names.iter().collect();
                    assert!(apart.len() == names.len() && names.len() < 80, "{names:?}");
                }
            }
        }
        pipeline.audit().unwrap();
        assert_eq!(arrived, sent + dropped.get() + pipeline.packets());
        assert_eq!(alive.get(), pipeline.packets(), "packets that exist are those that are queued");
    }
    let stats = pipeline.stats();
    let faults = stats.scheduler.get_count("faults").unwrap_or(0);
    let of = |map: &insane_traffic::stats::StatMap| map.get_count("faults").unwrap_or(0);
    let counts = [
        ("sent", sent),
        ("discarded", discarded.get()),
        ("changes", changes),
        ("refused changes", refused),
        ("scheduler's faults", faults),
        ("pacer's faults", of(&stats.pacer)),
        ("classifier's faults", stats.filters.iter().map(|f| of(&f.xstats)).sum()),
        ("queues' faults", stats.queues.iter().map(|q| of(&q.xstats)).sum()),
        ("policers' faults", stats.queues.iter().filter_map(|q| q.police.as_ref()).map(of).sum()),
        ("shapers' faults", stats.queues.iter().filter_map(|q| q.shaper.as_ref()).map(of).sum()),
    ];
    counts.into_iter().for_each(|(what, n)| *seen.entry(what).or_default() += n);
    // Every packet that is still there can be had.
    for _ in 0..100_000 {
        match pipeline.dequeue(now, &mut out) {
            Dequeued::Packet(..) => {}
            Dequeued::Wait(until) => now = until,
            Dequeued::Empty => break,
        }
    }
    assert_eq!((pipeline.packets(), alive.get()), (0, 0), "no answer keeps a packet for ever");
    drop(pipeline);
    assert_eq!(registry.list()[0].in_use, 0, "every stage is destroyed");
}

#[test]
fn no_answer_of_a_stage_loses_a_packet() {
    let config = Config { cases: cases(), failure_persistence: None, max_shrink_iters: 5_000, ..Config::default() };
    let ops = prop::collection::vec(any::<(u8, u32)>(), 1..OPS_PER_CASE);
    let seen = RefCell::new(BTreeMap::new());
    TestRunner::new(config)
        .run(&(any::<u64>(), ops), |(seed, ops)| {
            run(seed, &ops, &mut seen.borrow_mut());
            Ok(())
        })
        .unwrap();
    // The test would prove little if some of this never happened.
    let seen = seen.into_inner();
    println!("{seen:?}");
    let expected = ["scheduler's", "pacer's", "classifier's", "queues'", "policers'", "shapers'"];
    let faults = expected.iter().map(|of| format!("{of} faults"));
    let others = ["sent", "changes", "refused changes", "discarded"].map(str::to_owned);
    for what in faults.chain(others).filter(|_| !cfg!(miri)) {
        assert!(seen.get(&*what).copied().unwrap_or(0) > 0, "no case of: {what}");
    }
}
