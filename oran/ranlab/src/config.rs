//! The configuration: one TOML file, unknown keys refused; `default.toml` explains every key.

use std::path::PathBuf;

use insane_traffic::spec::{Duration, MatchSpec, Size};
use insane_traffic::{PipelineSpec, Span};
use serde::{Deserialize, Serialize};

use crate::core::channel::McsSpec;
use crate::core::pdcp::SnLength;
use crate::core::phy::McsTable;
use crate::core::rlc::RlcMode;
use crate::core::slots::Pattern;

pub use control::{Absent, ControlSpec, ControlWait};

/// The version of the file format.
pub const CONFIG_VERSION: u32 = 1;
/// The shipped file: the defaults, with every key explained.
pub const DEFAULT_TOML: &str = include_str!("../default.toml");
/// How many UEs there may be.
pub const MAX_UES: usize = 32;
/// How many bearers a UE may have (TS 38.331: maxDRB is 29).
pub const MAX_BEARERS: usize = 29;

/// How many plug-in directories and objects there may be.
pub const MAX_PLUGINS: usize = 64;

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// It is not TOML, or has a key that does not exist, or a value of the wrong kind.
    #[error("{0}")]
    Syntax(String),
    /// A value that cannot be.
    #[error("{key}: {fault}")]
    Value {
        /// Where.
        key: String,
        /// What is wrong.
        fault: String,
    },
}

fn fault<T>(key: impl Into<String>, fault: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::Value { key: key.into(), fault: fault.into() })
}

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// [`CONFIG_VERSION`].
    pub version: u32,
    /// Decides everything random.
    #[serde(default = "one")]
    pub seed: u64,
    /// The carrier.
    #[serde(default)]
    pub carrier: Carrier,
    /// The downlink's radio.
    #[serde(default)]
    pub downlink: Radio,
    /// The uplink's radio.
    #[serde(default = "Radio::uplink")]
    pub uplink: Radio,
    /// How uplink transmission is granted.
    #[serde(default)]
    pub grant: GrantSpec,
    /// The RLC's buffers.
    #[serde(default)]
    pub rlc: RlcSpec,
    /// PDCP and SDAP.
    #[serde(default)]
    pub pdcp: PdcpSpec,
    /// How the pipeline learns of the RLC's state.
    #[serde(default)]
    pub feedback: FeedbackSpec,
    /// The way between core and server.
    #[serde(default)]
    pub wan: WanSpec,
    /// The namespaces and what runs in them.
    #[serde(default)]
    pub host: HostSpec,
    /// Where stages of pipelines may come from besides the library.
    #[serde(default)]
    pub plugins: PluginsSpec,
    /// What the core marks with which QoS flow identifier, first match wins.
    #[serde(default, rename = "qos_rule")]
    pub qos_rules: Vec<QosRule>,
    /// Control from other processes; none without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<ControlSpec>,
    /// The UEs.
    #[serde(default = "one_ue", rename = "ue")]
    pub ues: Vec<UeSpec>,
}

const fn one() -> u64 {
    1
}

fn one_ue() -> Vec<UeSpec> {
    vec![UeSpec::default()]
}

impl Default for Config {
    fn default() -> Self {
        Self {
            version: CONFIG_VERSION,
            seed: one(),
            carrier: Carrier::default(),
            downlink: Radio::default(),
            uplink: Radio::uplink(),
            grant: GrantSpec::default(),
            rlc: RlcSpec::default(),
            pdcp: PdcpSpec::default(),
            feedback: FeedbackSpec::default(),
            wan: WanSpec::default(),
            host: HostSpec::default(),
            plugins: PluginsSpec::default(),
            qos_rules: Vec::new(),
            control: None,
            ues: one_ue(),
        }
    }
}

/// `[carrier]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Carrier {
    /// Resource blocks.
    pub prbs: u16,
    /// Length of a slot.
    pub slot: Duration,
    /// The TDD pattern.
    pub tdd: String,
    /// Slots of a frame.
    pub frame_slots: u16,
    /// Downlink slots of each frame that carry no data.
    pub reserved: Vec<u16>,
}

impl Default for Carrier {
    fn default() -> Self {
        Self {
            prbs: 106,
            slot: Duration::micros(500),
            tdd: "DDDDDDDMUU".into(),
            frame_slots: 20,
            reserved: vec![0, 10],
        }
    }
}

/// `[downlink]` and `[uplink]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Radio {
    /// The table of modulation and coding schemes.
    pub table: McsTable,
    /// The scheme over time.
    pub mcs: McsSpec,
    /// Symbols of a slot with data or reference signals.
    pub symbols: u8,
    /// The same in a mixed slot; 0: it carries none.
    pub mixed_symbols: u8,
    /// Resource elements of reference signals per block.
    pub dmrs: u8,
    /// Resource elements of other overhead per block.
    pub overhead: u8,
    /// Layers.
    pub layers: u8,
    /// From the beginning of a slot to its packets at the other end.
    pub delay: Duration,
    /// Errors and their repair.
    pub harq: HarqSpec,
}

impl Radio {
    fn uplink() -> Self {
        Self {
            table: McsTable::Qam64,
            mcs: McsSpec::Fixed { index: 14 },
            symbols: 13,
            delay: Duration::micros(1_500),
            harq: HarqSpec { bler: 0.01, delay: Duration::millis(5), ..HarqSpec::default() },
            ..Self::default()
        }
    }
}

impl Default for Radio {
    fn default() -> Self {
        Self {
            table: McsTable::Qam256,
            mcs: McsSpec::Fixed { index: 10 },
            symbols: 13,
            mixed_symbols: 0,
            dmrs: 12,
            overhead: 0,
            layers: 1,
            delay: Duration::millis(3),
            harq: HarqSpec::default(),
        }
    }
}

/// `[downlink.harq]` and `[uplink.harq]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HarqSpec {
    /// Probability of an error in the first transmission of a block.
    pub bler: f64,
    /// Probability in later ones.
    pub bler_again: f64,
    /// From a transmission to the next.
    pub delay: Duration,
    /// Transmissions at most.
    pub transmissions: u8,
    /// Blocks under repair per UE at most.
    pub processes: u8,
}

impl Default for HarqSpec {
    fn default() -> Self {
        Self { bler: 0.1, bler_again: 0.01, delay: Duration::millis(4), transmissions: 4, processes: 16 }
    }
}

/// `[grant]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GrantSpec {
    /// From a scheduling request to its grant.
    pub request: Duration,
    /// A UE silent for so long must ask.
    pub idle: Duration,
}

impl Default for GrantSpec {
    fn default() -> Self {
        Self { request: Duration::millis(3), idle: Duration::millis(8) }
    }
}

/// `[rlc]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RlcSpec {
    /// What happens to what the HARQ gave up.
    pub mode: RlcMode,
    /// Bytes that a bearer's buffer may hold.
    pub limit: Size,
    /// Packets that it may hold.
    pub limit_packets: u32,
    /// How long a receiver waits for what is missing.
    pub reordering: Duration,
}

impl Default for RlcSpec {
    fn default() -> Self {
        Self {
            mode: RlcMode::Acknowledged,
            limit: Size(10_000_000),
            limit_packets: 65_536,
            reordering: Duration::millis(200),
        }
    }
}

/// `[pdcp]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PdcpSpec {
    /// Bits of the sequence number.
    pub sn_bits: SnLength,
    /// Whether packets carry the one-byte SDAP header on the radio.
    pub sdap_header: bool,
}

/// Which way the RLC's state takes to the pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feedback {
    /// Pipeline and RLC are one process: at once.
    #[default]
    Direct,
    /// As delivery status frames between a central and a distributed unit.
    F1u,
}

/// `[feedback]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FeedbackSpec {
    /// Which way.
    pub path: Feedback,
    /// How often.
    pub period: Duration,
    /// One-way delay between central and distributed unit; not used by `direct`.
    pub delay: Duration,
}

impl Default for FeedbackSpec {
    fn default() -> Self {
        Self { path: Feedback::Direct, period: Duration::millis(1), delay: Duration::micros(250) }
    }
}

/// `[wan]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WanSpec {
    /// One-way delay, in both directions.
    pub delay: Duration,
    /// Packets under way at most, per direction.
    pub limit_packets: u32,
}

impl Default for WanSpec {
    fn default() -> Self {
        Self { delay: Duration(Span::ZERO), limit_packets: 100_000 }
    }
}

/// `[host]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostSpec {
    /// The largest packet in bytes.
    pub mtu: u16,
    /// The largest socket buffer of TCP, both ways.
    pub tcp_buffer: Size,
    /// The congestion control of TCP, as `net.ipv4.tcp_congestion_control`; empty leaves the kernel's.
    pub congestion_control: String,
    /// Whether TCP asks for ECN.
    pub ecn: bool,
    /// Whether the thread that moves packets asks for the kernel's real-time scheduling.
    pub realtime: bool,
}

impl Default for HostSpec {
    fn default() -> Self {
        Self { mtu: 1_500, tcp_buffer: Size(32 << 20), congestion_control: "cubic".into(), ecn: false, realtime: true }
    }
}

/// `[plugins]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PluginsSpec {
    /// The directories that shared objects may come from.
    pub directories: Vec<PathBuf>,
    /// The shared objects that are loaded when the lab starts.
    pub objects: Vec<PathBuf>,
}

/// `[[qos_rule]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QosRule {
    /// Which downlink packets.
    #[serde(rename = "match")]
    pub matches: MatchSpec,
    /// What they are marked with.
    pub qfi: u8,
}

/// `[[ue]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UeSpec {
    /// Its name, unique.
    pub name: String,
    /// Its identity in the cell, unique.
    pub rnti: u16,
    /// The QoS flow of packets that no rule marks.
    pub qfi: u8,
    /// Its downlink scheme if not that of `[downlink]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcs: Option<McsSpec>,
    /// Its uplink scheme if not that of `[uplink]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uplink_mcs: Option<McsSpec>,
    /// Its bearers; the first is the default bearer.
    #[serde(rename = "bearer")]
    pub bearers: Vec<BearerSpec>,
}

impl Default for UeSpec {
    fn default() -> Self {
        Self {
            name: "ue1".into(),
            rnti: 0x4601,
            qfi: 9,
            mcs: None,
            uplink_mcs: None,
            bearers: vec![BearerSpec::default()],
        }
    }
}

/// `[[ue.bearer]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BearerSpec {
    /// Its id, unique in its UE.
    pub id: u8,
    /// The QoS flows mapped to it.
    pub qfi: Vec<u8>,
    /// Lower numbers are served first by the MAC.
    pub priority: u8,
    /// Its pipeline by name, one of the library's presets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// Its pipeline itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<PipelineSpec>,
}

impl Default for BearerSpec {
    fn default() -> Self {
        Self { id: 1, qfi: Vec::new(), priority: 10, preset: None, pipeline: None }
    }
}

impl BearerSpec {
    /// Its pipeline: the given one, the preset, or a single FIFO without pacer (vanilla).
    ///
    /// # Errors
    /// There is no such preset.
    pub fn spec(&self) -> Result<PipelineSpec, ConfigError> {
        match (&self.pipeline, &self.preset) {
            (Some(_), Some(_)) => fault("ue.bearer", "it has a preset and a pipeline; leave one out"),
            (Some(spec), None) => Ok(spec.clone()),
            (None, Some(name)) => PipelineSpec::preset(name)
                .map_err(|e| ConfigError::Value { key: "ue.bearer.preset".into(), fault: e.to_string() }),
            (None, None) => Ok(PipelineSpec::default()),
        }
    }
}

/// Gives `table` what it lacks of `defaults`; of its own it keeps everything. A scheme is one value, whatever its keys.
fn fill(table: &mut toml::Table, defaults: toml::Table) {
    for (key, value) in defaults {
        match (table.get_mut(&key), value) {
            (Some(toml::Value::Table(inner)), toml::Value::Table(value)) if key != "mcs" => fill(inner, value),
            (Some(_), _) => {}
            (None, value) => {
                table.insert(key, value);
            }
        }
    }
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The line that cannot be read, or the value that cannot be.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let syntax = |e: toml::de::Error| ConfigError::Syntax(e.to_string());
        let mut config: Self = toml::from_str(text).map_err(syntax)?;
        // The uplink's defaults are not those of its type, which are the downlink's.
        let mut raw: toml::Table = toml::from_str(text).map_err(syntax)?;
        if let Some(toml::Value::Table(mut given)) = raw.remove("uplink") {
            let defaults = toml::Table::try_from(Radio::uplink()).map_err(|e| ConfigError::Syntax(e.to_string()))?;
            fill(&mut given, defaults);
            config.uplink = given.try_into().map_err(syntax)?;
        }
        config.check()?;
        Ok(config)
    }

    /// The TDD pattern.
    ///
    /// # Errors
    /// It is none.
    pub fn pattern(&self) -> Result<Pattern, ConfigError> {
        let c = &self.carrier;
        Pattern::new(&c.tdd, c.slot.0, usize::from(c.frame_slots), &c.reserved).map_or_else(
            || fault("carrier.tdd", "it is 1 to 160 letters D, M or U, and a frame has 1 to 160 slots"),
            Ok,
        )
    }
}

mod check;
mod control;
#[cfg(test)]
mod tests;
