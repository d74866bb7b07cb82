//! What the lab says about itself, in the names of the RLC, MAC and PDCP service models.

use insane_traffic::stats::PipelineStats;
use serde::{Deserialize, Serialize};

use super::air::MacStats;
use super::rlc::RlcStats;

/// Packets and bytes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Tally {
    /// One packet more.
    pub const fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }
}

/// A sum of times, for means, and the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// How many.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub sum_ns: u64,
    /// The largest in nanoseconds, since the lab began.
    pub max_ns: u64,
}

impl Spread {
    /// One time more.
    pub fn add(&mut self, nanos: u64) {
        self.count += 1;
        self.sum_ns += nanos;
        self.max_ns = self.max_ns.max(nanos);
    }

    /// The mean in milliseconds of what came since `earlier`; `None` if nothing did.
    #[must_use]
    pub fn mean_ms_since(&self, earlier: &Self) -> Option<f64> {
        let count = self.count.saturating_sub(earlier.count);
        (count > 0).then(|| self.sum_ns.saturating_sub(earlier.sum_ns) as f64 / count as f64 / 1e6)
    }
}

/// One bearer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BearerStats {
    /// Its id.
    pub id: u8,
    /// The downlink pipeline.
    pub pipeline: PipelineStats,
    /// The downlink RLC.
    pub rlc: RlcStats,
    /// The uplink RLC.
    pub uplink_rlc: RlcStats,
    /// Downlink packets delivered to the UE.
    pub delivered: Tally,
    /// Uplink packets that arrived from the UE.
    pub received: Tally,
    /// Packets given up on the radio, downlink and uplink.
    pub lost: [u64; 2],
    /// Downlink times by sublayer: pipeline, RLC, radio.
    pub sojourn: [Spread; 3],
    /// Delivery status frames that reached the central unit, and those that it could not read.
    pub status_frames: [u64; 2],
}

/// One UE.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UeStats {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub rnti: u16,
    /// The downlink MAC.
    pub downlink: MacStats,
    /// The uplink MAC.
    pub uplink: MacStats,
    /// Its bearers.
    pub bearers: Vec<BearerStats>,
}

/// The whole cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellStats {
    /// The lab's time in nanoseconds.
    pub time_ns: u64,
    /// Slots processed.
    pub slots: u64,
    /// Resource blocks that there were: downlink, uplink.
    pub available_prbs: [u64; 2],
    /// Packets dropped because the wide area held too many: downlink, uplink.
    pub wan_drops: [u64; 2],
    /// The UEs.
    pub ues: Vec<UeStats>,
}

impl CellStats {
    /// A bearer by RNTI and id.
    #[must_use]
    pub fn bearer(&self, rnti: u16, id: u8) -> Option<&BearerStats> {
        self.ues.iter().find(|u| u.rnti == rnti)?.bearers.iter().find(|b| b.id == id)
    }
}
