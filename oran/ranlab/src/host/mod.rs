//! The lab on a real machine: network namespaces, TUN devices, programs in them, and the real clock.
//!
//! ```text
//!  namespace srv            namespace core              this program             namespace ue1, ue2, …
//!  program ─ veth s0 ════ veth c0 ─ routes ─ TUN gnb ──▶ cell ──▶ TUN ran0 ─ program
//! ```

mod control;
pub mod lab;
pub mod namespaces;
pub mod plugins;
pub mod process;
pub mod sys;
pub mod trace;
pub mod view;

use std::fmt;

/// Why the lab cannot run, or stopped.
#[derive(Debug)]
pub struct HostError(String);

impl HostError {
    /// What was attempted and what came of it.
    pub fn new(what: impl fmt::Display, error: impl fmt::Display) -> Self {
        Self(format!("{what}: {error}"))
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HostError {}

/// Why nothing of this works for this user on this machine, if so.
#[must_use]
pub fn impossible() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("namespaces and TUN devices need root".into());
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        return Some("there is no /dev/net/tun".into());
    }
    process::find("ip").is_none().then(|| "there is no `ip`: install iproute2".into())
}
