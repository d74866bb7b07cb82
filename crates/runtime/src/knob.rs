//! The CPU latency knob (`/dev/cpu_dma_latency`): while it is held, processors do not rest deeply, so that a sleeping sink
//! wakes sooner. It is machine-wide and costs power, so the runtime holds it, once for all sessions, only if the operator's
//! configuration allows it, and only while some session has a sink (the kernel's `Documentation/power/pm_qos_interface.rst`).

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

/// Where the kernel has it.
pub const DEVICE: &str = "/dev/cpu_dma_latency";

/// The knob, and whether it is held.
#[derive(Debug)]
pub struct Knob {
    allowed: bool,
    device: PathBuf,
    state: State,
}

#[derive(Debug)]
enum State {
    Free,
    /// Dropping the file lets go.
    Held {
        _open: File,
    },
    /// Tried, in vain; not tried again.
    Refused(String),
}

impl Knob {
    /// The knob of this machine.
    #[must_use]
    pub fn new(allowed: bool) -> Self {
        Self::at(DEVICE.into(), allowed)
    }

    fn at(device: PathBuf, allowed: bool) -> Self {
        Self { allowed, device, state: State::Free }
    }

    /// Holds it, or lets go. Failure is logged once, and is no reason not to serve. Never blocks.
    pub fn want(&mut self, wanted: bool) {
        match (&self.state, wanted && self.allowed) {
            (State::Free, true) => self.hold(),
            (State::Held { .. }, false) => {
                self.state = State::Free;
                tracing::info!("the CPU latency knob is let go");
            }
            _ => {}
        }
    }

    fn hold(&mut self) {
        // Four bytes: a latency of zero microseconds, until the file is closed.
        let opened = File::options().write(true).open(&self.device).and_then(|mut file| {
            file.write_all(&0u32.to_ne_bytes())?;
            Ok(file)
        });
        self.state = match opened {
            Ok(file) => {
                tracing::info!("the CPU latency knob is held");
                State::Held { _open: file }
            }
            Err(error) => {
                tracing::warn!(%error, device = %self.device.display(), "the CPU latency knob is not to be had");
                State::Refused(error.to_string())
            }
        };
    }

    /// Its state in a word or a few, for reports.
    #[must_use]
    pub fn text(&self) -> String {
        match &self.state {
            State::Held { .. } => "held".into(),
            State::Refused(why) => format!("refused: {why}"),
            State::Free if self.allowed => "free".into(),
            State::Free => "not allowed".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Knob;

    #[test]
    fn it_is_held_while_it_is_wanted_and_allowed() {
        let device = tempfile::NamedTempFile::new().unwrap();
        let mut off = Knob::at(device.path().into(), false);
        off.want(true);
        assert_eq!(off.text(), "not allowed");
        let mut knob = Knob::at(device.path().into(), true);
        assert_eq!(knob.text(), "free");
        knob.want(true);
        knob.want(true);
        assert_eq!((knob.text().as_str(), std::fs::read(device.path()).unwrap()), ("held", vec![0; 4]));
        knob.want(false);
        assert_eq!(knob.text(), "free");
        knob.want(true);
        assert_eq!(knob.text(), "held");
    }

    #[test]
    fn who_may_not_have_it_serves_all_the_same() {
        let mut knob = Knob::at("/nonexistent/knob".into(), true);
        knob.want(true);
        assert!(knob.text().starts_with("refused: "), "{}", knob.text());
    }
}
