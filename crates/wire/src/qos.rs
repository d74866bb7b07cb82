//! Quality of service: what a stream asks for, and what it effectively gets per peer (INSANE paper §5.2; architecture
//! §5 adds reliability).

/// Whether a stream asks for an accelerated datapath (INSANE paper §5.2, "datapath acceleration").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Acceleration {
    /// The kernel's network stack will do.
    None = 0,
    /// Kernel bypass where a host offers it.
    Preferred = 1,
}

/// Whether resource use is a concern (INSANE paper §5.2, "resource consumption").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Resources {
    /// Do not spend whole cores.
    Frugal = 0,
    /// Cores may be spent on polling.
    Unlimited = 1,
}

/// Time sensitivity (INSANE paper §5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Timing {
    /// First in, first out.
    BestEffort = 0,
    /// Scheduled by a time-aware gate (IEEE 802.1Qbv) where frames leave the host.
    Sensitive = 1,
}

/// Whether the middleware makes sure of delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Reliability {
    /// A message that does not fit is dropped and counted.
    BestEffort = 0,
    /// The source waits for room, up to its deadline; over the network messages are sent again.
    Reliable = 1,
}

/// What a stream asks for. The contract of a stream: all its users name the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Qos {
    /// Datapath acceleration.
    #[prost(enumeration = "Acceleration", tag = "1")]
    pub acceleration: i32,
    /// Resource consumption.
    #[prost(enumeration = "Resources", tag = "2")]
    pub resources: i32,
    /// Time sensitivity.
    #[prost(enumeration = "Timing", tag = "3")]
    pub timing: i32,
    /// Reliability.
    #[prost(enumeration = "Reliability", tag = "4")]
    pub reliability: i32,
}

impl Qos {
    /// The canonical text of the fields that are not at their default: `acceleration=preferred,reliability=reliable`;
    /// empty when all are. Frozen: the name of an unnamed stream is made of it ([`Self::unnamed_stream`]).
    #[must_use]
    pub fn canonical(&self) -> String {
        let mut parts = Vec::new();
        if self.acceleration() == Acceleration::Preferred {
            parts.push("acceleration=preferred");
        }
        if self.resources() == Resources::Unlimited {
            parts.push("resources=unlimited");
        }
        if self.timing() == Timing::Sensitive {
            parts.push("timing=sensitive");
        }
        if self.reliability() == Reliability::Reliable {
            parts.push("reliability=reliable");
        }
        parts.join(",")
    }

    /// The name of a stream that was opened without one: `qos:` and the canonical text.
    #[must_use]
    pub fn unnamed_stream(&self) -> String {
        format!("qos:{}", self.canonical())
    }

    /// Whether every field holds a value that this version knows.
    #[must_use]
    pub fn is_known(&self) -> bool {
        Acceleration::try_from(self.acceleration).is_ok()
            && Resources::try_from(self.resources).is_ok()
            && Timing::try_from(self.timing).is_ok()
            && Reliability::try_from(self.reliability).is_ok()
    }

    /// Reads the canonical text, or a part of it, as the command line takes it.
    ///
    /// # Errors
    /// The text of what is not understood, with what is.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut qos = Self::default();
        for part in text.split(',').filter(|p| !p.trim().is_empty()) {
            match part.trim() {
                "acceleration=none" => qos.set_acceleration(Acceleration::None),
                "acceleration=preferred" => qos.set_acceleration(Acceleration::Preferred),
                "resources=frugal" => qos.set_resources(Resources::Frugal),
                "resources=unlimited" => qos.set_resources(Resources::Unlimited),
                "timing=best-effort" => qos.set_timing(Timing::BestEffort),
                "timing=sensitive" => qos.set_timing(Timing::Sensitive),
                "reliability=best-effort" => qos.set_reliability(Reliability::BestEffort),
                "reliability=reliable" => qos.set_reliability(Reliability::Reliable),
                other => {
                    return Err(format!(
                        "unknown QoS `{other}`: use acceleration=none|preferred, resources=frugal|unlimited, \
                         timing=best-effort|sensitive, reliability=best-effort|reliable, separated by commas"
                    ));
                }
            }
        }
        Ok(qos)
    }
}

/// What a stream gets towards one peer, with a reason for every downgrade.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct EffectiveQos {
    /// The QoS that is served.
    #[prost(message, optional, tag = "1")]
    pub qos: Option<Qos>,
    /// The datapath in use: `shm` between sessions of one host; [`REFUSED`] if there is none.
    #[prost(string, tag = "2")]
    pub datapath: String,
    /// The transport in use: `shm` between sessions of one host, else `datagram`, `reliable`, `tcp`, `sctp`.
    #[prost(string, tag = "3")]
    pub transport: String,
    /// The peer: a host's name, or `local` for this host's ceiling.
    #[prost(string, tag = "4")]
    pub peer: String,
    /// A reason per downgrade, in words an operator understands; empty when all that was asked for is served.
    #[prost(string, repeated, tag = "5")]
    pub reasons: Vec<String>,
}

/// Datapath and transport towards a peer that is refused under `strict`.
pub const REFUSED: &str = "none";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_text_is_frozen_and_reads_back() {
        assert_eq!(Qos::default().unnamed_stream(), "qos:");
        let mut all = Qos::default();
        all.set_acceleration(Acceleration::Preferred);
        all.set_resources(Resources::Unlimited);
        all.set_timing(Timing::Sensitive);
        all.set_reliability(Reliability::Reliable);
        assert_eq!(all.canonical(), "acceleration=preferred,resources=unlimited,timing=sensitive,reliability=reliable");
        assert_eq!(Qos::parse(&all.canonical()).unwrap(), all);
        assert!(Qos::parse("speed=11").unwrap_err().contains("speed=11"));
    }
}
