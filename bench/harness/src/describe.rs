//! What a system program says about itself.

use serde::Serialize;

use crate::{Placement, Waiting};

/// One thing that the program can be asked to do.
#[derive(Clone, Debug, Serialize)]
pub struct Mode {
    /// `rtt`, `oneway`, `fanout`, `large`, `open`, `rebind`, `apps`, `threads`, `calls` or `turns`.
    pub experiment: &'static str,
    /// The waiting class.
    pub waiting: &'static str,
    /// Empty for the plain way.
    pub variant: &'static str,
    /// `shm`, `datagram` or `reliable`.
    pub transport: &'static str,
    /// Whether a helper process (role `aux`) must run first, on a core of its own if `aux_core`.
    pub aux: bool,
    /// Whether that helper burns a core, so that the mode is left out where no core is spare.
    pub aux_core: bool,
    /// `local`, or `veth`: between two hosts.
    pub placement: &'static str,
    /// The largest payload in bytes; 0 for any.
    pub most_bytes: usize,
    /// The only payloads to measure, in bytes; empty for all.
    #[serde(skip_serializing_if = "<[usize]>::is_empty")]
    pub payloads: &'static [usize],
    /// Payloads that a full run measures besides, in bytes.
    #[serde(skip_serializing_if = "<[usize]>::is_empty")]
    pub also: &'static [usize],
    /// Whether it says something only where both ends and both hosts' helpers have a core each.
    pub four_cores: bool,
}

impl Mode {
    /// A plain mode without a helper process.
    #[must_use]
    pub fn new(experiment: &'static str, waiting: Waiting, transport: &'static str) -> Self {
        Self {
            experiment,
            waiting: waiting.word(),
            variant: "",
            transport,
            aux: false,
            aux_core: false,
            placement: Placement::Local.word(),
            most_bytes: 0,
            payloads: &[],
            also: &[],
            four_cores: false,
        }
    }

    /// The same between two hosts.
    #[must_use]
    pub fn veth(mut self) -> Self {
        self.placement = Placement::Veth.word();
        self
    }

    /// The same for payloads of up to so many bytes.
    #[must_use]
    pub fn most_bytes(mut self, bytes: usize) -> Self {
        self.most_bytes = bytes;
        self
    }

    /// The same for these payloads alone.
    #[must_use]
    pub fn payloads(mut self, bytes: &'static [usize]) -> Self {
        self.payloads = bytes;
        self
    }

    /// The same for these payloads besides, in a full run.
    #[must_use]
    pub fn also(mut self, bytes: &'static [usize]) -> Self {
        self.also = bytes;
        self
    }

    /// The same where both ends and both hosts' helpers have a core each, or not at all.
    #[must_use]
    pub fn four_cores(mut self) -> Self {
        self.four_cores = true;
        self
    }

    /// The same with a helper process, on each host if there are two.
    #[must_use]
    pub fn aux(mut self) -> Self {
        self.aux = true;
        self
    }

    /// The same as a named variant.
    #[must_use]
    pub fn variant(mut self, name: &'static str) -> Self {
        self.variant = name;
        self
    }

    /// The same with a helper process on a core of its own.
    #[must_use]
    pub fn aux_core(mut self) -> Self {
        self.aux = true;
        self.aux_core = true;
        self
    }
}

/// A class that the system does not have, and why; shown in the report.
#[derive(Clone, Debug, Serialize)]
pub struct Absent {
    /// The experiment, or `*`.
    pub experiment: &'static str,
    /// The waiting class, or `*`.
    pub waiting: &'static str,
    /// Why.
    pub reason: &'static str,
}

/// The answer to `describe`.
#[derive(Clone, Debug, Serialize)]
pub struct Description {
    /// The system's name in rows.
    pub system: String,
    /// The language in rows.
    pub language: &'static str,
    /// The version of what is measured.
    pub version: String,
    /// What it can do.
    pub modes: Vec<Mode>,
    /// What it cannot do.
    pub absent: Vec<Absent>,
}
