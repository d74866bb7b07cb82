//! `[control]`: who may change pipelines from outside, and how.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Config, ConfigError, fault};

/// How the control thread waits for requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlWait {
    /// It never sleeps, and takes a whole core.
    Spin,
    /// It looks for a short while, then sleeps.
    #[default]
    Adaptive,
    /// It sleeps at once.
    Sleep,
}

/// What happens if the INSANE runtime is not there when the lab starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Absent {
    /// The lab says so and runs; it tries again every second.
    #[default]
    Retry,
    /// The lab does not start.
    Fail,
}

/// `[control]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ControlSpec {
    /// The channels are below this name.
    pub prefix: String,
    /// The domain; the runtime's default if empty.
    pub domain: String,
    /// The runtime's socket; found as by every client if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// How requests are waited for.
    pub wait: ControlWait,
    /// What happens without a runtime.
    pub absent: Absent,
}

impl Default for ControlSpec {
    fn default() -> Self {
        Self {
            prefix: "ranlab".into(),
            domain: String::new(),
            socket: None,
            wait: ControlWait::default(),
            absent: Absent::default(),
        }
    }
}

impl Config {
    pub(super) fn check_control(&self) -> Result<(), ConfigError> {
        let Some(control) = &self.control else { return Ok(()) };
        let name = |text: &str, most| text.len() <= most && !text.chars().any(char::is_control);
        if control.prefix.is_empty() || !name(&control.prefix, 200) {
            return fault("control.prefix", "it is a name of 1 to 200 bytes without control characters");
        }
        if !name(&control.domain, 255) {
            return fault("control.domain", "it is a name of at most 255 bytes without control characters");
        }
        Ok(())
    }
}
