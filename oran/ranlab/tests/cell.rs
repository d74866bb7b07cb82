//! The cell on a virtual clock: latencies, rates, fairness and order.

use insane_ranlab::config::Config;
use insane_ranlab::core::cell::{Cell, Side};
use insane_traffic::{Span, Time};

fn cell(text: &str) -> Cell {
    Cell::new(&Config::parse(&format!("version = 1\n{text}")).unwrap()).unwrap()
}

/// An IPv4 UDP packet to a port, with a number in it.
fn packet(size: usize, port: u16, number: u32) -> Vec<u8> {
    let mut bytes = vec![0; size.max(32)];
    bytes[0] = 0x45;
    bytes[2..4].copy_from_slice(&(size as u16).to_be_bytes());
    bytes[8] = 64;
    bytes[9] = 17;
    bytes[22..24].copy_from_slice(&port.to_be_bytes());
    bytes[28..32].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[28..32].try_into().unwrap())
}

/// Offers packets of 1500 bytes to each UE at `rate` bit/s each for `secs` seconds; bytes that reached each UE in the last
/// second.
fn load(cell: &mut Cell, rate: f64, secs: u64) -> Vec<u64> {
    let mut delivered = vec![0; cell.ue_count()];
    let gap = Span::from_nanos((12_000.0 / rate * 1e9) as u64);
    let (mut at, mut n) = (Time::ZERO, 0);
    while at < Time::from_millis(secs * 1000) {
        cell.advance(at);
        (0..cell.ue_count()).for_each(|ue| cell.downlink(at, ue, &packet(1500, 5201, n)));
        n += 1;
        at += gap;
        while let Some(out) = cell.pop() {
            if let Side::Ue(ue) = out.to
                && out.at >= Time::from_millis(secs * 1000 - 1000)
            {
                delivered[ue] += out.pdu.bytes.len() as u64;
            }
        }
    }
    delivered
}

#[test]
fn a_full_carrier_gives_the_rate_that_its_blocks_allow() {
    let mut one = cell("");
    let bits = load(&mut one, 80e6, 4)[0] * 8;
    // 12 downlink slots of 4867 bytes in 10 ms; each block takes 1 + 0.1 + 0.001 slots, and headers 0.6 %.
    let expected = 1200.0 * 4867.0 * 8.0 / 1.101 * 0.994;
    assert!((bits as f64 / expected - 1.0).abs() < 0.02, "{bits} of {expected}");
    one.audit().unwrap();
    let stats = one.stats();
    let used = stats.ues[0].downlink.aggr_prb as f64 / stats.available_prbs[0] as f64;
    assert!(used > 0.98, "{used}");
}

#[test]
fn the_rate_follows_the_scheme() {
    let text = "[downlink.harq]\nbler = 0.0\n[downlink.mcs]\ntype = \"fixed\"\nindex = 18";
    let bits = load(&mut cell(text), 120e6, 3)[0] * 8;
    let expected = 1200.0 * 9222.0 * 8.0 * 0.994;
    assert!((bits as f64 / expected - 1.0).abs() < 0.02, "{bits} of {expected}");
}

/// Round trips in milliseconds of a packet now and then, answered by the UE at once.
fn round_trips(cell: &mut Cell, count: u32, gap: Span) -> Vec<f64> {
    let mut trips = Vec::new();
    let mut at = Time::from_millis(5);
    for n in 0..count {
        cell.advance(at);
        cell.downlink(at, 0, &packet(84, 1, n));
        let sent = at;
        at += gap;
        while cell.now() < at {
            cell.advance(cell.next_event().unwrap_or(at).min(at));
            while let Some(out) = cell.pop() {
                match out.to {
                    Side::Ue(ue) => cell.uplink(out.at, ue, &out.pdu.bytes),
                    Side::Server => trips.push(out.at.since(sent).secs_f64() * 1e3),
                }
            }
        }
    }
    trips
}

#[test]
fn the_round_trip_without_load_is_about_ten_milliseconds() {
    let mut one = cell("[downlink.harq]\nbler = 0.0\n[uplink.harq]\nbler = 0.0");
    let trips = round_trips(&mut one, 1_000, Span::from_micros(50_130));
    let mean = trips.iter().sum::<f64>() / trips.len() as f64;
    assert_eq!(trips.len(), 1_000);
    assert!((8.0..12.0).contains(&mean), "{mean}");
    // 3 ms down, 3 ms for the grant and 1.5 ms up at least; a period of waiting more at most.
    assert!(trips.iter().all(|t| (7.5..14.0).contains(t)), "{trips:?}");
}

#[test]
fn wide_area_delay_comes_on_top_twice() {
    let near = round_trips(&mut cell(""), 200, Span::from_micros(100_130));
    let far = round_trips(&mut cell("[wan]\ndelay = \"20ms\""), 200, Span::from_micros(100_130));
    let mean = |trips: &[f64]| trips.iter().sum::<f64>() / trips.len() as f64;
    assert!((mean(&far) - mean(&near) - 40.0).abs() < 1.0, "{} {}", mean(&far), mean(&near));
}

#[test]
fn errors_delay_packets_but_neither_lose_nor_reorder_them() {
    let mut one = cell("[downlink.harq]\nbler = 0.5\nbler_again = 0.5\ntransmissions = 2");
    let mut seen = Vec::new();
    for n in 0..4_000 {
        let at = Time::from_micros(u64::from(n) * 1_000);
        one.advance(at);
        one.downlink(at, 0, &packet(900, 1, n));
        seen.extend(std::iter::from_fn(|| one.pop()).map(|out| number(&out.pdu.bytes)));
    }
    one.advance(Time::from_millis(6_000));
    seen.extend(std::iter::from_fn(|| one.pop()).map(|out| number(&out.pdu.bytes)));
    assert_eq!(seen, (0..4_000).collect::<Vec<_>>());
    let stats = one.stats();
    assert!(stats.ues[0].downlink.given_up > 100 && stats.ues[0].bearers[0].rlc.txpdu_retx_pkts > 100);
    one.audit().unwrap();
}

#[test]
fn without_acknowledgements_what_the_harq_gives_up_is_lost_and_counted() {
    let mut one =
        cell("[rlc]\nmode = \"unacknowledged\"\n[downlink.harq]\nbler = 0.5\nbler_again = 0.5\ntransmissions = 2");
    let mut seen = Vec::new();
    for n in 0..2_000 {
        let at = Time::from_millis(u64::from(n));
        one.advance(at);
        one.downlink(at, 0, &packet(900, 1, n));
        seen.extend(std::iter::from_fn(|| one.pop()).map(|out| number(&out.pdu.bytes)));
    }
    one.advance(Time::from_millis(20_000));
    seen.extend(std::iter::from_fn(|| one.pop()).map(|out| number(&out.pdu.bytes)));
    assert!(seen.is_sorted());
    let lost = one.stats().ues[0].bearers[0].lost[0];
    assert!(lost > 100, "{lost}");
    assert_eq!(seen.len() as u64 + lost, 2_000);
    one.audit().unwrap();
}

#[test]
fn ues_share_resource_blocks_evenly_and_rates_by_their_schemes() {
    let text = r#"
        [[ue]]
        name = "a"
        rnti = 1
        mcs = { type = "fixed", index = 6 }
        [[ue]]
        name = "b"
        rnti = 2
        mcs = { type = "fixed", index = 18 }
        [[ue]]
        name = "c"
        rnti = 3
        mcs = { type = "fixed", index = 18 }
    "#;
    let mut three = cell(text);
    let bytes = load(&mut three, 40e6, 4);
    let stats = three.stats();
    let prbs: Vec<f64> = stats.ues.iter().map(|u| u.downlink.aggr_prb as f64).collect();
    assert!(prbs.iter().all(|p| (p / prbs[0] - 1.0).abs() < 0.05), "{prbs:?}");
    let ratio = bytes[1] as f64 / bytes[0] as f64;
    assert!((ratio / (9222.0 / 3201.0) - 1.0).abs() < 0.1, "{ratio}");
    assert!((bytes[1] as f64 / bytes[2] as f64 - 1.0).abs() < 0.05);
    three.audit().unwrap();
}

#[test]
fn what_one_ue_does_not_need_others_get() {
    let text = "[[ue]]\nname = \"a\"\nrnti = 1\n[[ue]]\nname = \"b\"\nrnti = 2";
    let mut two = cell(text);
    let (mut at, mut got) = (Time::ZERO, [0_u64; 2]);
    for n in 0..20_000 {
        two.advance(at);
        two.downlink(at, 0, &packet(1500, 1, n));
        if n % 20 == 0 {
            two.downlink(at, 1, &packet(500, 1, n));
        }
        at += Span::from_micros(150);
        for out in std::iter::from_fn(|| two.pop()) {
            if let Side::Ue(ue) = out.to {
                got[ue] += out.pdu.bytes.len() as u64;
            }
        }
    }
    // 500 bytes each 3 ms are 1.33 Mbit/s: all of it arrives, and the greedy one has the rest of about 42.
    let rate = |ue: usize| got[ue] as f64 * 8.0 / 3.0 / 1e6;
    assert!((rate(1) - 1.33).abs() < 0.05 && rate(0) > 36.0, "{} {}", rate(0), rate(1));
}

#[test]
fn qos_flows_go_to_their_bearers_and_the_better_one_overtakes() {
    let text = r#"
        [[qos_rule]]
        match = { dst_port = "7000" }
        qfi = 5
        [[ue]]
        [[ue.bearer]]
        id = 1
        [[ue.bearer]]
        id = 2
        qfi = [5]
        priority = 1
    "#;
    let mut one = cell(text);
    for n in 0..2_000 {
        one.downlink(Time::ZERO, 0, &packet(1500, 5201, n));
    }
    one.advance(Time::from_millis(50));
    one.downlink(one.now(), 0, &packet(100, 7000, 9_999));
    one.advance(Time::from_millis(70));
    let seen: Vec<u32> = std::iter::from_fn(|| one.pop()).map(|out| number(&out.pdu.bytes)).collect();
    assert!(seen.contains(&9_999) && seen.len() < 300, "{}", seen.len());
    let bearers = &one.stats().ues[0].bearers;
    assert_eq!((bearers[0].pipeline.packets_in, bearers[1].pipeline.packets_in), (2_000, 1));
}

const PACED: &str = r#"
    [[ue]]
    [[ue.bearer]]
    id = 1
    [ue.bearer.pipeline]
    version = 1
    queue = [{ id = 0 }]
    pacer = { type = "5g-bdp" }
"#;

#[test]
fn the_pacer_keeps_the_rlc_short_and_the_carrier_full_by_either_path() {
    for path in ["direct", "f1u"] {
        let mut vanilla = cell("");
        let full = load(&mut vanilla, 60e6, 4)[0];
        let mut paced = cell(&format!("[feedback]\npath = \"{path}\"\n{PACED}"));
        let got = load(&mut paced, 60e6, 4)[0];
        assert!(got as f64 >= full as f64 * 0.98, "{path}: {got} of {full}");
        let bearer = paced.stats().bearer(0x4601, 1).unwrap().clone();
        assert!(bearer.rlc.txbuf_occ_bytes <= 30_000, "{path}: {}", bearer.rlc.txbuf_occ_bytes);
        assert!(bearer.sojourn[1].mean_ms_since(&Default::default()).unwrap() < 6.0, "{path}: {:?}", bearer.sojourn);
        assert!(vanilla.stats().bearer(0x4601, 1).unwrap().rlc.txbuf_occ_bytes > 5_000_000);
        assert_eq!(bearer.status_frames[0] > 3_000, path == "f1u");
        assert_eq!(bearer.status_frames[1], 0);
        paced.audit().unwrap();
    }
}

#[test]
fn late_turns_of_the_clock_lose_no_slot() {
    let run = |step: u64| {
        let mut one = cell("");
        for n in 0..20_000 {
            one.downlink(Time::ZERO, 0, &packet(1500, 1, n % 7));
        }
        (1..=2_000 / step).for_each(|n| one.advance(Time::from_millis(n * step)));
        let out: Vec<_> = std::iter::from_fn(|| one.pop()).map(|o| (o.at, o.pdu.bytes.len())).collect();
        (out, one.stats())
    };
    assert_eq!(run(1), run(100), "the same whether the clock is turned often or seldom");
}

#[test]
fn a_bearer_that_does_not_exist_is_an_error_and_nothing_changes() {
    let mut one = cell("");
    assert!(one.change(0x4601, 2, &[]).unwrap_err().to_string().contains("no bearer 2"));
    assert!(one.change(1, 1, &[]).is_err());
    assert_eq!(one.change(0x4601, 1, &[]).unwrap(), 1);
    one.downlink(Time::ZERO, 7, &[1, 2, 3]);
    one.uplink(Time::ZERO, 7, &[1, 2, 3]);
    one.advance(Time::from_millis(100));
    assert!(one.pop().is_none());
}
