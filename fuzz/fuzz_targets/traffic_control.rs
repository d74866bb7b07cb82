//! The server of traffic control under whatever clients send: it never panics, and the pipelines' books are in order.
#![no_main]

use insane_traffic::PipelineSpec;
use insane_traffic_control::{BearerId, Desk, MAX_SUBSCRIPTIONS, StandIn};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fuzz_target!(|data: &[u8]| {
    let time = Arc::new(AtomicU64::new(1));
    let clock = Arc::clone(&time);
    let mut desk = Desk::new(9, move || clock.load(Ordering::Relaxed));
    let bearer = BearerId { rnti: 1, drb: 1 };
    let mut bearers = StandIn::new(&[bearer], &PipelineSpec::default()).expect("a pipeline");
    bearers.enqueue(bearer, vec![0x45; 60]);
    let mut rest = data;
    // Each piece: how long after the one before in milliseconds, how long, and the message.
    while let [wait, low, high, tail @ ..] = rest {
        time.fetch_add(u64::from(*wait) * 1_000_000, Ordering::Relaxed);
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let (message, next) = tail.split_at(length.min(tail.len()));
        rest = next;
        let _ = desk.request(message, &mut bearers);
        desk.turn(&mut bearers, |channel, _| channel % 2 == 0);
        assert!(desk.subscriptions() <= MAX_SUBSCRIPTIONS);
        bearers.audit().expect("the books are in order");
    }
});
