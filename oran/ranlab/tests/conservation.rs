//! Packets in = out + dropped by reason + queued, at every instant, under random traffic, radio and reconfiguration.

use insane_ranlab::config::Config;
use insane_ranlab::core::cell::{Cell, Side};
use insane_traffic::spec::Change;
use insane_traffic::{Span, Time};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Down { ue: usize, size: usize, port: u16, burst: u8 },
    Up { ue: usize, size: usize },
    Turn { micros: u32 },
    Change { which: usize },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..3_usize, 1..3000_usize, 0..4_u16, 1..40_u8)
            .prop_map(|(ue, size, port, burst)| Op::Down { ue, size, port, burst }),
        2 => (0..3_usize, 1..3000_usize).prop_map(|(ue, size)| Op::Up { ue, size }),
        4 => (0..4_000_u32).prop_map(|micros| Op::Turn { micros }),
        1 => (0..CHANGES.len()).prop_map(|which| Op::Change { which }),
    ]
}

/// Changes as a control message would carry them; some are refused, depending on what was before.
const CHANGES: [&str; 9] = [
    r#"{"op":"set-pacer","pacer":{"type":"5g-bdp"}}"#,
    r#"{"op":"set-pacer","pacer":{"type":"dql"}}"#,
    r#"{"op":"delete-pacer"}"#,
    r#"{"op":"add-queue","queue":{"id":1,"kind":{"type":"codel","limit":{"packets":50}}}}"#,
    r#"{"op":"delete-queue","id":1,"references":"remove"}"#,
    r#"{"op":"delete-queue","id":1,"packets":"drop","references":"remove"}"#,
    r#"{"op":"add-filter","filter":{"id":1,"match":{"dst_port":"2-3"},"to":{"type":"queue","queue":1}}}"#,
    r#"{"op":"add-shaper","queue":1,"shaper":{"type":"token-bucket","rate":"2mbit","burst":"8k"}}"#,
    r#"{"op":"modify-queue","id":0,"kind":{"type":"pie","limit":{"packets":30}}}"#,
];

fn config() -> impl Strategy<Value = Config> {
    let radio = (0.0..0.9_f64, 0.0..0.9_f64, 1..5_u8, 0..27_u8, 1..17_u8);
    (any::<u64>(), radio, any::<bool>(), any::<bool>(), 0..30_u32, 3_000..200_000_u32, 0..3_u8).prop_map(
        |(seed, (bler, again, transmissions, index, processes), am, f1u, wan, limit, mixed)| {
            let mode = if am { "acknowledged" } else { "unacknowledged" };
            let path = if f1u { "f1u" } else { "direct" };
            let text = format!(
                r#"
                version = 1
                seed = {}
                [downlink]
                mcs = {{ type = "walk", min = 0, max = 27, start = {index}, every = "5ms" }}
                mixed_symbols = {}
                harq = {{ bler = {bler}, bler_again = {again}, transmissions = {transmissions}, processes = {processes} }}
                [uplink.harq]
                bler = {again}
                transmissions = {transmissions}
                [rlc]
                mode = "{mode}"
                limit = {limit}
                reordering = "30ms"
                [feedback]
                path = "{path}"
                [wan]
                delay = "{wan}ms"
                limit_packets = 60
                [[qos_rule]]
                match = {{ dst_port = "1" }}
                qfi = 3
                [[ue]]
                name = "a"
                rnti = 1
                [[ue.bearer]]
                id = 1
                [[ue.bearer]]
                id = 2
                qfi = [3]
                preset = "fq-codel"
                [[ue]]
                name = "b"
                rnti = 2
                [[ue]]
                name = "c"
                rnti = 3
                "#,
                seed >> 1,
                mixed * 3,
            );
            Config::parse(&text).expect("a configuration")
        },
    )
}

fn packet(size: usize, port: u16) -> Vec<u8> {
    let mut bytes = vec![0; size];
    // Short ones are garbage, which is as good a packet as any.
    if size >= 28 {
        bytes[0] = 0x45;
        bytes[2..4].copy_from_slice(&(size as u16).to_be_bytes());
        bytes[9] = 17;
        bytes[22..24].copy_from_slice(&port.to_be_bytes());
    }
    bytes
}

/// What was seen at least once over all cases; a property that never meets a drop proves little.
#[derive(Default, Debug)]
struct Seen {
    delivered: u64,
    received: u64,
    overflow: u64,
    lost: u64,
    wan_full: u64,
    aqm: u64,
    changes: u64,
}

/// Packets in pipelines and RLC buffers.
fn held(cell: &Cell) -> u64 {
    let stats = cell.stats();
    let of = |b: &insane_ranlab::core::stats::BearerStats| {
        b.pipeline.basic.qlen + b.rlc.txbuf_occ_pkts + b.uplink_rlc.txbuf_occ_pkts
    };
    stats.ues.iter().flat_map(|u| &u.bearers).map(of).sum()
}

fn run(config: &Config, ops: &[Op], seen: &mut Seen) -> Result<(), TestCaseError> {
    let mut cell = Cell::new(config).expect("a cell");
    let mut out = [0_u64; 2];
    let took = |cell: &mut Cell, out: &mut [u64; 2]| {
        while let Some(delivery) = cell.pop() {
            out[usize::from(delivery.to == Side::Server)] += 1;
        }
    };
    let mut now = Time::ZERO;
    for op in ops {
        match *op {
            Op::Down { ue, size, port, burst } => {
                (0..burst).for_each(|_| cell.downlink(now, ue, &packet(size, port)));
            }
            Op::Up { ue, size } => cell.uplink(now, ue, &packet(size, 9)),
            Op::Turn { micros } => {
                now += Span::from_micros(micros.into());
                cell.advance(now);
                took(&mut cell, &mut out);
            }
            Op::Change { which } => {
                let change: Change = serde_json::from_str(CHANGES[which]).expect("a change");
                seen.changes += u64::from(cell.change(1, 1, &[change]).is_ok());
            }
        }
        prop_assert_eq!(cell.audit(), Ok(()));
    }
    // Given time, everything that was not dropped comes out. A wide area and a HARQ of their longest and the timers of
    // the receivers are over within a second.
    for _ in 0..600 {
        let quiet = held(&cell) == 0;
        now += Span::from_millis(if quiet { 1_000 } else { 100 });
        cell.advance(now);
        if quiet && held(&cell) == 0 {
            break;
        }
    }
    took(&mut cell, &mut out);
    prop_assert_eq!(cell.audit(), Ok(()));
    let stats = cell.stats();
    let bearers = || stats.ues.iter().flat_map(|u| &u.bearers);
    prop_assert_eq!(out[0], bearers().map(|b| b.delivered.packets).sum::<u64>());
    prop_assert_eq!(out[1] + stats.wan_drops[1], bearers().map(|b| b.received.packets).sum::<u64>());
    for bearer in bearers() {
        prop_assert_eq!(bearer.pipeline.basic.qlen + bearer.rlc.txbuf_occ_pkts + bearer.uplink_rlc.txbuf_occ_pkts, 0);
        let gone = bearer.delivered.packets + bearer.lost[0] + bearer.rlc.rxsdu_dd_pkts + bearer.pipeline.basic.drops;
        prop_assert_eq!(bearer.pipeline.packets_in, gone);
        seen.overflow += bearer.rlc.rxsdu_dd_pkts;
        seen.lost += bearer.lost[0];
        seen.aqm += bearer.pipeline.basic.drops;
    }
    seen.delivered += out[0];
    seen.received += out[1];
    seen.wan_full += stats.wan_drops[0];
    Ok(())
}

#[test]
fn packets_in_are_out_or_dropped_for_a_reason_or_queued_at_every_instant() {
    let seen = std::cell::RefCell::new(Seen::default());
    let settings = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
    proptest::test_runner::TestRunner::new(settings)
        .run(&(config(), prop::collection::vec(op(), 1..300)), |(config, ops)| {
            run(&config, &ops, &mut seen.borrow_mut())
        })
        .unwrap();
    let seen = seen.into_inner();
    println!("{seen:?}");
    let Seen { delivered, received, overflow, lost, wan_full, aqm, changes } = seen;
    assert!([delivered, received, overflow, lost, wan_full, aqm, changes].iter().all(|n| *n > 0));
}
