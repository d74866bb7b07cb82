//! How the ends find each other: the listening end leaves its port in a file of the repetition's directory.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

fn port_file(dir: &Path, index: u32) -> PathBuf {
    dir.join(format!("port-{index}"))
}

/// Tells the port of end `index`; done before that end says `ready`.
///
/// # Errors
/// The directory cannot be written.
pub fn tell_port(dir: &Path, index: u32, port: u16) -> Result<()> {
    fs::write(port_file(dir, index), port.to_string()).context("leaving the port for the other end")
}

/// The port of end `index`, which is ready.
///
/// # Errors
/// It never told.
pub fn learn_port(dir: &Path, index: u32) -> Result<u16> {
    let text = fs::read_to_string(port_file(dir, index)).context("the other end left no port")?;
    text.parse().with_context(|| format!("'{text}' is not a port"))
}
