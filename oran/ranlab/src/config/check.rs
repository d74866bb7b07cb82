//! What the values of a configuration may be.

use insane_traffic::Span;
use insane_traffic::classify::Matcher;

use super::{
    CONFIG_VERSION, Config, ConfigError, MAX_BEARERS, MAX_PLUGINS, MAX_UES, PluginsSpec, Radio, UeSpec, fault,
};

impl Config {
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
        self.plugins.check()?;
        self.check_control()?;
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
            bearer
                .spec()?
                .check()
                .map_err(|e| ConfigError::Value { key: "ue.bearer.pipeline".into(), fault: e.to_string() })?;
        }
        Ok(())
    }
}

impl PluginsSpec {
    fn check(&self) -> Result<(), ConfigError> {
        if self.directories.len() > MAX_PLUGINS || self.objects.len() > MAX_PLUGINS {
            return fault("plugins", format!("there may be at most {MAX_PLUGINS} directories and objects"));
        }
        if let Some(directory) = self.directories.iter().find(|d| !d.is_absolute()) {
            return fault("plugins.directories", format!("{} must begin with a slash", directory.display()));
        }
        if self.directories.is_empty() && !self.objects.is_empty() {
            return fault("plugins.directories", "it must name the directory that the objects lie in");
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
