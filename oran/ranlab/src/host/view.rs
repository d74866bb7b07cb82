//! Reading samples: what happened between two of them, and the live view of that on a terminal.

use std::fmt::Write;

use insane_traffic::stats::PipelineStats;

use super::lab::Sample;

/// What happened in one UE's bearer between two samples.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Row {
    /// When the interval ended, in seconds since the lab began.
    pub time_s: f64,
    /// The UE's identity.
    pub rnti: u16,
    /// The bearer's id.
    pub drb: u8,
    /// The downlink scheme in use at the end.
    pub mcs: u8,
    /// Delivered to the UE, in Mbit/s of IP packets.
    pub down_mbps: f64,
    /// Arrived from the UE, in Mbit/s of IP packets.
    pub up_mbps: f64,
    /// Bytes in the RLC's buffer at the end, downlink.
    pub rlc_bytes: u64,
    /// Packets in it.
    pub rlc_packets: u64,
    /// How long its first packet has been there, in milliseconds.
    pub rlc_head_ms: f64,
    /// Bytes in the pipeline's queues at the end.
    pub pipeline_bytes: u64,
    /// Bytes in the uplink's RLC buffer at the end.
    pub uplink_rlc_bytes: u64,
    /// Mean time of the packets delivered: in the pipeline, in milliseconds. Not a number if there were none.
    pub pipeline_ms: f64,
    /// In the RLC's buffer.
    pub rlc_ms: f64,
    /// On the radio, with HARQ and reordering.
    pub radio_ms: f64,
    /// Packets that the pipeline dropped.
    pub drops: u64,
    /// Packets that the pipeline's queues marked with ECN instead of dropping them.
    pub marks: u64,
    /// Packets that the RLC refused.
    pub overflows: u64,
    /// Part of all downlink resource blocks that this UE used, of 1.
    pub prb_used: f64,
    /// How late the lab was at worst, in milliseconds.
    pub late_ms: f64,
}

/// Packets that the queues of a pipeline marked, for whatever reason.
fn marks(pipeline: &PipelineStats) -> u64 {
    let of = |name| pipeline.queues.iter().filter_map(move |q| q.xstats.get_count(name)).sum::<u64>();
    of("ecn_mark") + of("ce_mark")
}

/// What happened between two samples, one row per bearer.
#[must_use]
pub fn rows(before: &Sample, after: &Sample) -> Vec<Row> {
    let secs = after.cell.time_ns.saturating_sub(before.cell.time_ns).max(1) as f64 / 1e9;
    let mut rows = Vec::new();
    for (old_ue, ue) in before.cell.ues.iter().zip(&after.cell.ues) {
        let prbs = after.cell.available_prbs[0].saturating_sub(before.cell.available_prbs[0]).max(1);
        let used = ue.downlink.aggr_prb.saturating_sub(old_ue.downlink.aggr_prb);
        for (old, new) in old_ue.bearers.iter().zip(&ue.bearers) {
            let mbps = |new: u64, old: u64| new.saturating_sub(old) as f64 * 8.0 / 1e6 / secs;
            let mean = |n: usize| new.sojourn[n].mean_ms_since(&old.sojourn[n]).unwrap_or(f64::NAN);
            rows.push(Row {
                time_s: after.cell.time_ns as f64 / 1e9,
                rnti: ue.rnti,
                drb: new.id,
                mcs: ue.downlink.mcs,
                down_mbps: mbps(new.delivered.bytes, old.delivered.bytes),
                up_mbps: mbps(new.received.bytes, old.received.bytes),
                rlc_bytes: new.rlc.txbuf_occ_bytes,
                rlc_packets: new.rlc.txbuf_occ_pkts,
                rlc_head_ms: new.rlc.head_sojourn_ns as f64 / 1e6,
                pipeline_bytes: new.pipeline.basic.backlog,
                uplink_rlc_bytes: new.uplink_rlc.txbuf_occ_bytes,
                pipeline_ms: mean(0),
                rlc_ms: mean(1),
                radio_ms: mean(2),
                drops: new.pipeline.basic.drops.saturating_sub(old.pipeline.basic.drops),
                marks: marks(&new.pipeline).saturating_sub(marks(&old.pipeline)),
                overflows: new.rlc.rxsdu_dd_pkts.saturating_sub(old.rlc.rxsdu_dd_pkts),
                prb_used: used as f64 / prbs as f64,
                late_ms: after.late_ns as f64 / 1e6,
            });
        }
    }
    rows
}

/// The view as text, each line ended by what clears the rest of a terminal's line.
#[must_use]
pub fn screen(rows: &[Row]) -> String {
    let mut text = String::from("\x1b[H");
    let time = rows.first().map_or(0.0, |r| r.time_s);
    let late = rows.first().map_or(0.0, |r| r.late_ms);
    let eol = "\x1b[K\n";
    // Writing to a String cannot fail.
    let _ = write!(text, "RAN lab  {time:7.1} s   at worst {late:.1} ms late{eol}{eol}");
    let _ = write!(
        text,
        "{:>6} {:>3} {:>3} {:>9} {:>9} {:>10} {:>8} {:>9} {:>9} {:>9} {:>6} {:>5}  {:<20}{eol}",
        "RNTI",
        "DRB",
        "MCS",
        "down Mb/s",
        "up Mb/s",
        "RLC bytes",
        "head ms",
        "pipe ms",
        "RLC ms",
        "radio ms",
        "drops",
        "PRB %",
        "resource blocks"
    );
    for row in rows {
        let bar = "#".repeat((row.prb_used.clamp(0.0, 1.0) * 20.0).round() as usize);
        let _ = write!(
            text,
            "{:#06x} {:>3} {:>3} {:>9.2} {:>9.2} {:>10} {:>8.1} {:>9} {:>9} {:>9} {:>6} {:>5.1}  [{bar:<20}]{eol}",
            row.rnti,
            row.drb,
            row.mcs,
            row.down_mbps,
            row.up_mbps,
            row.rlc_bytes,
            row.rlc_head_ms,
            ms(row.pipeline_ms),
            ms(row.rlc_ms),
            ms(row.radio_ms),
            row.drops + row.overflows,
            row.prb_used * 100.0,
        );
    }
    text.push_str("\x1b[J");
    text
}

fn ms(value: f64) -> String {
    if value.is_nan() { "-".into() } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::core::cell::Cell;
    use insane_traffic::Time;

    #[test]
    fn marks_of_all_queues_and_reasons_are_counted() {
        let cell = Cell::new(&Config::default()).unwrap();
        let mut pipeline = cell.stats().ues[0].bearers[0].pipeline.clone();
        assert_eq!(marks(&pipeline), 0);
        for name in ["ecn_mark", "ce_mark", "drops"] {
            let mut queue = pipeline.queues[0].clone();
            queue.xstats.count(name, 3);
            pipeline.queues.push(queue);
        }
        assert_eq!(marks(&pipeline), 6);
    }

    #[test]
    fn rows_are_what_happened_between_two_samples() {
        let mut cell = Cell::new(&Config::default()).unwrap();
        let sample = |cell: &Cell| Sample { cell: cell.stats(), late_ns: 2_000_000, undelivered: [0; 2] };
        let start = sample(&cell);
        for _ in 0..100 {
            cell.downlink(Time::ZERO, 0, &[0x45; 1250]);
        }
        cell.advance(Time::from_millis(1_000));
        let rows = rows(&start, &sample(&cell));
        assert_eq!(rows.len(), 1);
        let row = &rows[0];
        assert!((row.down_mbps - 1.0).abs() < 0.01, "{row:?}");
        assert!(row.rlc_ms > 5.0 && row.radio_ms >= 3.0 && row.pipeline_ms < 0.1, "{row:?}");
        assert!((0.01..0.05).contains(&row.prb_used), "{row:?}");
        let text = screen(&rows);
        assert!(text.contains("0x4601") && text.contains("2.0 ms late"), "{text}");
    }
}
