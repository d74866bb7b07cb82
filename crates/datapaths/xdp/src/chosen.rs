//! What an opened datapath is made of, and what it counts beyond the trait: for `doctor`, the log and tests.

use core::fmt;
use std::time::Duration;

/// Where the filter runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attached {
    /// In the driver.
    Native,
    /// Before the kernel's stack.
    Generic,
}

/// What was chosen when a datapath was opened, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chosen {
    /// The interface's name.
    pub interface: String,
    /// Its driver.
    pub driver: String,
    /// Where the filter runs.
    pub attached: Attached,
    /// Whether the driver leaves frames where they are; otherwise the kernel copies each once.
    pub zero_copy: bool,
    /// Whether a frame can lie in several buffers.
    pub several_buffers: bool,
    /// The size of a buffer in bytes.
    pub buffer_bytes: usize,
    /// The largest frame in bytes.
    pub max_frame: usize,
    /// The queues, those that send first.
    pub queues: Vec<u32>,
    /// The buffers of each queue.
    pub buffers: u32,
    /// How long opening waited for what another process still had.
    pub waited: Duration,
    /// How often it found it busy.
    pub busy: u32,
    /// The reasons: what was refused, and what was taken instead.
    pub notes: Vec<String>,
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interface, driver, max_frame, buffers, buffer_bytes, .. } = self;
        let place = match self.attached {
            Attached::Native => "in the driver",
            Attached::Generic => "before the kernel's stack",
        };
        let copy = if self.zero_copy { "no copy" } else { "one copy by the kernel" };
        let several = if self.several_buffers { ", several to a frame" } else { "" };
        write!(
            f,
            "{interface} ({driver}): filter {place}, {copy}, {} queue(s) of {buffers} buffers of {buffer_bytes} bytes{several}, \
             frames of up to {max_frame} bytes",
            self.queues.len()
        )?;
        if !self.waited.is_zero() {
            write!(f, "; waited {} ms for another process's end (busy {} times)", self.waited.as_millis(), self.busy)?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "; {note}"))
    }
}

/// Where the UMEM's frames of an interface are. `free` and the others but `all` add up to `all`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameCounts {
    /// All there are.
    pub all: u32,
    /// Ready to be written and sent.
    pub free: u32,
    /// In fill rings: to be received into.
    pub fill: u32,
    /// In receive rings: received, not read yet.
    pub receive: u32,
    /// In send rings: written, not sent yet.
    pub send: u32,
    /// In completion rings: sent, not taken back yet.
    pub completion: u32,
    /// Between the rings: what the kernel or the device is working on, or keeps for the next frame.
    pub kernel: u32,
    /// Received and lent where they lie.
    pub lent: u32,
}

impl FrameCounts {
    /// The sum of all places.
    #[must_use]
    pub const fn sum(&self) -> u32 {
        self.free + self.fill + self.receive + self.send + self.completion + self.kernel + self.lent
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.all += other.all;
        self.free += other.free;
        self.fill += other.fill;
        self.receive += other.receive;
        self.send += other.send;
        self.completion += other.completion;
        self.kernel += other.kernel;
        self.lent += other.lent;
    }
}

/// What is counted beyond [`insane_datapath::Stats`] since a datapath was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct XdpCounts {
    /// Frames reported as sent that the device dropped then: it was full, or its link had just gone.
    pub dropped_by_device: u64,
    /// Received frames that found the receive ring full.
    pub ring_full: u64,
    /// Received frames that the kernel dropped for another reason: there was no buffer, or not enough.
    pub no_buffer: u64,
    /// Descriptors that the kernel refused. More than zero is an error of this crate.
    pub invalid: u64,
    /// Addresses in the kernel's rings that it did not have. More than zero is an error of the kernel or the driver.
    pub lies: u64,
    /// Times that the interface was found down.
    pub downs: u64,
}
