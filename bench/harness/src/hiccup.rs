//! The machine's own stalls: a thread on each core that wants to run every half millisecond, before everybody else, and notes when
//! it could not. What a hypervisor or an interrupt takes from everybody is told apart by it from what a system under test does.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};

use crate::sys::{self, now_ns, pin, sleep_until};

/// How often a core is looked at.
const EVERY_NS: u64 = 500_000;
/// What is later than this is a stall.
const STALL_NS: u64 = 200_000;

/// Stalls as they are found: when a thread was due, and when it ran.
#[derive(Debug, Default)]
pub struct Hiccups(Arc<Mutex<Vec<(u64, u64)>>>);

/// Watches one core for as long as the process lives; says first whether it can.
fn watch(core: usize, found: Arc<Mutex<Vec<(u64, u64)>>>) -> Receiver<std::io::Result<()>> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let can = pin(&[core]).and_then(|()| sys::before_everybody());
        let cannot = can.is_err();
        // Nobody listens any more when another core could not be watched.
        let _ = tell.send(can);
        if cannot {
            return;
        }
        let mut due = now_ns() + EVERY_NS;
        loop {
            sleep_until(due);
            let now = now_ns();
            if now - due > STALL_NS {
                found.lock().unwrap_or_else(PoisonError::into_inner).push((due, now));
            }
            due = now.max(due) + EVERY_NS;
        }
    });
    told
}

impl Hiccups {
    /// Watches these cores from now on.
    ///
    /// # Errors
    /// A core that is not there, or no right to run before everybody (CAP_SYS_NICE).
    pub fn watch(cores: &[usize]) -> Result<Self> {
        let hiccups = Self::default();
        for core in cores {
            let told = watch(*core, hiccups.0.clone()).recv().context("the thread that watches a core ended")?;
            told.with_context(|| format!("watching core {core}"))?;
        }
        Ok(hiccups)
    }

    /// The stalls so far, of all cores, as nanoseconds of the monotonic clock; in order for each core.
    #[must_use]
    pub fn stalls(&self) -> Vec<(u64, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_is_not_there_is_an_error() {
        assert!(Hiccups::watch(&[100_000]).is_err());
    }
}
