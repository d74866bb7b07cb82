//! Packets in = out + dropped by reason + queued, at every instant, under random traffic and reconfiguration.
//!
//! By default about three million operations; `INSANE_TRAFFIC_OPS=50000000` for a long run.

#[path = "common/machine.rs"]
mod machine;

use std::cell::RefCell;
use std::collections::BTreeMap;

use insane_traffic::DropReason;
use machine::{Machine, Op};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const OPS_PER_CASE: usize = 2_000;

fn cases() -> u32 {
    let ops =
        std::env::var("INSANE_TRAFFIC_OPS").map_or(3_000_000, |n| n.parse::<usize>().expect("a number of operations"));
    u32::try_from(2 * ops / OPS_PER_CASE).expect("a sensible number of operations").max(1)
}

#[test]
fn packets_in_are_out_or_dropped_or_queued_at_every_instant() {
    let config = Config { cases: cases(), failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let ops = prop::collection::vec(any::<Op>(), 1..OPS_PER_CASE);
    let seen = RefCell::new(BTreeMap::<&'static str, u64>::new());
    TestRunner::new(config)
        .run(&(any::<u64>(), ops), |(seed, ops)| {
            let mut machine = Machine::new(seed);
            ops.into_iter().for_each(|op| machine.step(op));
            machine.finish().into_iter().for_each(|(what, n)| *seen.borrow_mut().entry(what).or_default() += n);
            Ok(())
        })
        .unwrap();
    // The test would prove little if some of this never happened.
    let seen = seen.into_inner();
    println!("{seen:?}");
    let reasons = DropReason::ALL.iter().filter(|r| **r != DropReason::Plugin).map(|r| r.name());
    for what in reasons.chain(["sent", "changes", "refused changes"]) {
        assert!(seen.get(what).copied().unwrap_or(0) > 0, "no case of: {what}");
    }
}
