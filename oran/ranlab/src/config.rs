//! The configuration: one TOML file, unknown keys refused; `default.toml` explains every key.

use insane_traffic::classify::Matcher;
use insane_traffic::spec::{Duration, MatchSpec, Size};
use insane_traffic::{PipelineSpec, Span};
use serde::{Deserialize, Serialize};

use crate::core::channel::McsSpec;
use crate::core::pdcp::SnLength;
use crate::core::phy::McsTable;
use crate::core::rlc::RlcMode;
use crate::core::slots::Pattern;

/// The version of the file format.
pub const CONFIG_VERSION: u32 = 1;
/// The shipped file: the defaults, with every key explained.
pub const DEFAULT_TOML: &str = include_str!("../default.toml");
/// How many UEs there may be.
pub const MAX_UES: usize = 32;
/// How many bearers a UE may have (TS 38.331: maxDRB is 29).
pub const MAX_BEARERS: usize = 29;

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
    /// What the core marks with which QoS flow identifier, first match wins.
    #[serde(default, rename = "qos_rule")]
    pub qos_rules: Vec<QosRule>,
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
            qos_rules: Vec::new(),
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

    /// Checks every value.
    ///
    /// # Errors
    /// The first that cannot be.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.version != CONFIG_VERSION {
            return fault("version", format!("{} is not known, this release reads {CONFIG_VERSION}", self.version));
        }
        self.check_carrier()?;
        for (key, radio) in [("downlink", &self.downlink), ("uplink", &self.uplink)] {
            radio.check(key)?;
        }
        self.check_times()?;
        for rule in &self.qos_rules {
            Matcher::new(&rule.matches)
                .map_err(|e| ConfigError::Value { key: "qos_rule.match".into(), fault: e.to_string() })?;
            check_qfi("qos_rule.qfi", rule.qfi)?;
        }
        if self.ues.is_empty() || self.ues.len() > MAX_UES {
            return fault("ue", format!("there must be 1 to {MAX_UES}"));
        }
        for (n, ue) in self.ues.iter().enumerate() {
            self.check_ue(ue)?;
            if self.ues[..n].iter().any(|o| o.name == ue.name || o.rnti == ue.rnti) {
                return fault("ue", format!("two have the name {} or the RNTI {:#06x}", ue.name, ue.rnti));
            }
        }
        Ok(())
    }

    fn check_carrier(&self) -> Result<(), ConfigError> {
        let c = &self.carrier;
        self.pattern()?;
        if !(1..=275).contains(&c.prbs) {
            return fault("carrier.prbs", "it must be 1 to 275");
        }
        if !(62_500..=1_000_000).contains(&c.slot.0.nanos()) {
            return fault("carrier.slot", "it must be 62.5us to 1ms");
        }
        if c.reserved.iter().any(|&s| s >= c.frame_slots) {
            return fault("carrier.reserved", format!("a frame has slots 0 to {}", c.frame_slots.saturating_sub(1)));
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), ConfigError> {
        let long = Span::from_secs(10);
        for (key, time) in [
            ("grant.request", self.grant.request),
            ("grant.idle", self.grant.idle),
            ("feedback.delay", self.feedback.delay),
            ("wan.delay", self.wan.delay),
            ("rlc.reordering", self.rlc.reordering),
            ("feedback.period", self.feedback.period),
        ] {
            if time.0 > long {
                return fault(key, "it must be 10s or less");
            }
        }
        if self.feedback.period.0 < Span::from_micros(100) {
            return fault("feedback.period", "it must be 100us or more");
        }
        if self.rlc.reordering.0 < Span::from_millis(1) {
            return fault("rlc.reordering", "it must be 1ms or more");
        }
        if !(2_000..=1 << 30).contains(&self.rlc.limit.0) {
            return fault("rlc.limit", "it must be 2000 bytes to 1g");
        }
        if self.rlc.limit_packets == 0 || self.wan.limit_packets == 0 {
            return fault("rlc.limit_packets and wan.limit_packets", "they must be 1 or more");
        }
        if !(576..=9_000).contains(&self.host.mtu) {
            return fault("host.mtu", "it must be 576 to 9000");
        }
        let cc = &self.host.congestion_control;
        if cc.len() > 15 || !cc.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return fault("host.congestion_control", "it must be a name of at most 15 letters, digits and _");
        }
        Ok(())
    }

    fn check_ue(&self, ue: &UeSpec) -> Result<(), ConfigError> {
        let fits = (1..=8).contains(&ue.name.len()) && ue.name.chars().all(|c| c.is_ascii_alphanumeric());
        if !fits || ue.name == "srv" || ue.name == "core" {
            return fault("ue.name", "it must be 1 to 8 letters and digits, and not srv or core");
        }
        check_qfi("ue.qfi", ue.qfi)?;
        for (key, mcs, radio) in [("ue.mcs", &ue.mcs, &self.downlink), ("ue.uplink_mcs", &ue.uplink_mcs, &self.uplink)]
        {
            if let Some(wrong) = mcs.as_ref().and_then(|m| m.fault(radio.table.last())) {
                return fault(key, wrong);
            }
        }
        if ue.bearers.is_empty() || ue.bearers.len() > MAX_BEARERS {
            return fault("ue.bearer", format!("there must be 1 to {MAX_BEARERS}"));
        }
        let mut taken = std::collections::HashSet::new();
        for (n, bearer) in ue.bearers.iter().enumerate() {
            if !(1..=32).contains(&bearer.id) || ue.bearers[..n].iter().any(|o| o.id == bearer.id) {
                return fault("ue.bearer.id", format!("{} is not 1 to 32 or there twice", bearer.id));
            }
            for &qfi in &bearer.qfi {
                check_qfi("ue.bearer.qfi", qfi)?;
                if !taken.insert(qfi) {
                    return fault("ue.bearer.qfi", format!("{qfi} is mapped twice"));
                }
            }
            let spec = bearer.spec()?;
            insane_traffic::Pipeline::<Vec<u8>>::new(&spec, 0)
                .map_err(|e| ConfigError::Value { key: "ue.bearer.pipeline".into(), fault: e.to_string() })?;
        }
        Ok(())
    }
}

fn check_qfi(key: &str, qfi: u8) -> Result<(), ConfigError> {
    if qfi > 63 { fault(key, format!("{qfi} is not 0 to 63")) } else { Ok(()) }
}

impl Radio {
    fn check(&self, key: &str) -> Result<(), ConfigError> {
        if let Some(wrong) = self.mcs.fault(self.table.last()) {
            return fault(format!("{key}.mcs"), wrong);
        }
        if !(1..=14).contains(&self.symbols) || self.mixed_symbols > 14 {
            return fault(format!("{key}.symbols"), "a slot has 1 to 14 symbols");
        }
        if !(1..=4).contains(&self.layers) {
            return fault(format!("{key}.layers"), "there are 1 to 4");
        }
        let taken = u32::from(self.dmrs) + u32::from(self.overhead);
        if taken >= 12 * u32::from(self.symbols) {
            return fault(format!("{key}.dmrs"), "reference signals and overhead take the whole block");
        }
        if self.delay.0 > Span::from_secs(1) {
            return fault(format!("{key}.delay"), "it must be 1s or less");
        }
        let h = &self.harq;
        // NaN is in no range.
        if !(0.0..=0.9).contains(&h.bler) || !(0.0..=0.9).contains(&h.bler_again) {
            return fault(format!("{key}.harq.bler"), "it must be 0 to 0.9");
        }
        if !(1..=16).contains(&h.transmissions) || !(1..=32).contains(&h.processes) {
            return fault(format!("{key}.harq"), "there are 1 to 16 transmissions and 1 to 32 processes");
        }
        if h.delay.0 > Span::from_secs(1) {
            return fault(format!("{key}.harq.delay"), "it must be 1s or less");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
