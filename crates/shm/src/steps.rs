//! Labelled steps (feature `steps`): a test holds the process at the n-th passing of one of them and then kills whom it
//! likes. Without the feature every call is empty.
//!
//! The environment variable `INSANE_HOLD` names the step and the count, as in `publish:1000`: at the thousandth passing
//! the whole process stops itself (SIGSTOP), which its parent sees by `waitpid(WUNTRACED)`.

/// A step of a protocol between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Step {
    /// A slot was taken from the free list.
    Alloc = 0,
    /// The application has the buffer and has not emitted it.
    Fill,
    /// A descriptor's words are written, its sequence number is not.
    Publish,
    /// A descriptor is published, the sleeper was not looked for.
    Wake,
    /// A descriptor was read, nothing was counted.
    Pop,
    /// A message was counted and is in the application's hands.
    Hold,
    /// A return entry's words are written, its sequence number is not.
    Return,
    /// A returned slot was taken off the ring and is not yet on the free list.
    Drain,
    /// A new segment is made and not yet shared.
    Grow,
    /// A segment was given back and those who map it do not know yet.
    Shrink,
    /// Memory is mapped and not yet sealed.
    Seal,
    /// A link was offered.
    Attach,
    /// A link was taken and its taker has not yet said so.
    Accept,
    /// A flow got its counter cell and the source does not yet know.
    Flow,
    /// A sink is leaving.
    Detach,
    /// A consumer has said that it sleeps and has not looked again.
    Sleep,
    /// A client has found a new runtime and has not reopened its streams.
    Reconnect,
    /// The runtime has taken a session in and has not answered.
    Welcome,
    /// The runtime has matched a source and a sink and told only one of both.
    Match,
    /// The runtime has seen a session end and has not told the others.
    Forget,
    /// Frames for another host are made and not yet given to the datapath.
    Transmit,
    /// A message has left for another host or is acknowledged, and its slot is not yet given back to its source.
    Complete,
    /// A frame of another host was received and nothing in it was looked at.
    Receive,
    /// A message of another host lies in a slot and is on no link yet.
    Place,
    /// A sink was opened and the other hosts, or that of the source, do not know yet.
    Announce,
}

impl Step {
    /// Every step, in order.
    pub const ALL: &'static [Self] = &[
        Self::Alloc,
        Self::Fill,
        Self::Publish,
        Self::Wake,
        Self::Pop,
        Self::Hold,
        Self::Return,
        Self::Drain,
        Self::Grow,
        Self::Shrink,
        Self::Seal,
        Self::Attach,
        Self::Accept,
        Self::Flow,
        Self::Detach,
        Self::Sleep,
        Self::Reconnect,
        Self::Welcome,
        Self::Match,
        Self::Forget,
        Self::Transmit,
        Self::Complete,
        Self::Receive,
        Self::Place,
        Self::Announce,
    ];

    /// Those of the network thread of a runtime, which a host by itself never comes to.
    pub const NETWORK: &'static [Self] = &[Self::Transmit, Self::Complete, Self::Receive, Self::Place, Self::Announce];

    /// The label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::Fill => "fill",
            Self::Publish => "publish",
            Self::Wake => "wake",
            Self::Pop => "pop",
            Self::Hold => "hold",
            Self::Return => "return",
            Self::Drain => "drain",
            Self::Grow => "grow",
            Self::Shrink => "shrink",
            Self::Seal => "seal",
            Self::Attach => "attach",
            Self::Accept => "accept",
            Self::Flow => "flow",
            Self::Detach => "detach",
            Self::Sleep => "sleep",
            Self::Reconnect => "reconnect",
            Self::Welcome => "welcome",
            Self::Match => "match",
            Self::Forget => "forget",
            Self::Transmit => "transmit",
            Self::Complete => "complete",
            Self::Receive => "receive",
            Self::Place => "place",
            Self::Announce => "announce",
        }
    }
}

#[cfg(all(feature = "steps", not(loom)))]
mod hold {
    use super::Step;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Hold {
        step: Option<Step>,
        at: u64,
        passed: AtomicU64,
    }

    fn hold() -> &'static Hold {
        static HOLD: OnceLock<Hold> = OnceLock::new();
        HOLD.get_or_init(|| {
            let text = std::env::var("INSANE_HOLD").unwrap_or_default();
            let (label, at) = text.split_once(':').unwrap_or((text.as_str(), "1"));
            Hold {
                step: Step::ALL.iter().copied().find(|s| s.label() == label),
                at: at.parse().unwrap_or(1),
                passed: AtomicU64::new(0),
            }
        })
    }

    /// Passes a step; stops the process here if the test asked for it.
    pub fn reach(step: Step) {
        let hold = hold();
        if hold.step == Some(step) && hold.passed.fetch_add(1, Ordering::Relaxed) + 1 == hold.at {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
        }
    }
}

#[cfg(all(feature = "steps", not(loom)))]
pub use hold::reach;

/// Passes a step: nothing, in a build without the feature.
#[cfg(not(all(feature = "steps", not(loom))))]
#[inline(always)]
pub const fn reach(_step: Step) {}
