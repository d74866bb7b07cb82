//! The pipeline: the six stages in a row, changed one by one while packets flow.
//!
//! ```text
//!  enqueue ─▶ classifier ─▶ policer ─▶ queue ═▶ scheduler ─▶ shaper ─▶ pacer ─▶ dequeue
//!             (filters)     (per queue)          (over all)  (per queue) (over all) ▲
//!                                                                       report ─────┘
//! ```
//!
//! Everything is counted where it happens: at every instant the packets handed in are those forwarded, those dropped by
//! reason and those queued ([`Pipeline::audit`]).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::Arc;

use crate::classify::ClassifierStage;
use crate::pace::{Pacer, RlcStatus};
use crate::packet::{DropReason, Packet, QueueId};
use crate::schedule::Scheduler;
use crate::spec::{Layout, LimitSpec, PipelineSpec, SpecError};
use crate::time::Time;

mod build;
mod commit;
mod egress;
mod ingress;
mod kinds;
mod load;
mod report;
mod slots;

pub use build::{PluginError, Plugins};
pub use commit::{Draft, Plan};

use build::Couplings;
use slots::Slots;

/// What a pipeline answers when it is asked for a packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Dequeued<P> {
    /// This packet, from this queue.
    Packet(P, QueueId),
    /// Packets are there, but none may leave before this instant, unless a report comes earlier.
    Wait(Time),
    /// There are none.
    Empty,
}

impl<P> Dequeued<P> {
    /// The packet, if there is one.
    #[must_use]
    pub fn packet(self) -> Option<P> {
        match self {
            Self::Packet(packet, _) => Some(packet),
            Self::Wait(_) | Self::Empty => None,
        }
    }
}

/// Packets and bytes counted together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Volume {
    packets: u64,
    bytes: u64,
}

impl Volume {
    const fn add(&mut self, size: u32) {
        self.packets += 1;
        self.bytes += size as u64;
    }

    const fn sub(&mut self, other: Self) {
        self.packets -= other.packets;
        self.bytes -= other.bytes;
    }
}

/// A live pipeline over packets `P`. One thread at a time uses it; nothing in it blocks, and only changes allocate more
/// than the queues' own growth.
pub struct Pipeline<P> {
    layout: Layout,
    generation: u64,
    seed: [u64; 2],
    plugins: Option<Arc<dyn Plugins<P>>>,
    limit: LimitSpec,
    couplings: Couplings,
    classifier: ClassifierStage,
    slots: Slots<P>,
    scheduler: Box<dyn Scheduler>,
    pacer: Box<dyn Pacer>,
    /// When queues that a shaper holds back may go on.
    timers: BinaryHeap<Reverse<(Time, u32)>>,
    /// Until when the pacer asked to wait.
    pacer_wait: Option<Time>,
    arrived: Volume,
    forwarded: Volume,
    held: Volume,
    dropped: [Volume; DropReason::ALL.len()],
    overlimits: u64,
    requeues: u64,
    maxpacket: u32,
    scheduler_faults: u64,
}

impl<P> fmt::Debug for Pipeline<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("generation", &self.generation)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}

impl<P: Packet> Pipeline<P> {
    /// A pipeline as `spec` describes it. `seed` decides all that is random in it: the flows' hash and the AQMs' drops; use
    /// one that senders do not know.
    ///
    /// # Errors
    /// What in the pipeline is out of range, names something that does not exist, or asks for a plug-in.
    pub fn new(spec: &PipelineSpec, seed: u64) -> Result<Self, SpecError> {
        Self::with_plugins(spec, seed, None)
    }

    /// A pipeline whose stages may come from shared objects.
    ///
    /// # Errors
    /// As for [`Self::new`], and a plug-in that is not loaded or does not take its options.
    pub fn with_plugins(
        spec: &PipelineSpec,
        seed: u64,
        plugins: Option<Arc<dyn Plugins<P>>>,
    ) -> Result<Self, SpecError> {
        let layout = Layout::new(spec)?;
        let mut rng = crate::random::Rng::new(seed);
        let seed = [rng.bits(), rng.bits()];
        build::pipeline(layout, seed, plugins)
    }

    /// The pipeline as it is now, as a file would have it.
    #[must_use]
    pub fn spec(&self) -> PipelineSpec {
        self.layout.to_spec()
    }

    /// How many changes were committed; a plan made for an earlier generation is refused.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Packets queued.
    #[must_use]
    pub const fn packets(&self) -> u64 {
        self.held.packets
    }

    /// Bytes queued.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.held.bytes
    }

    /// Tells the pacer the state of the buffer that the pipeline feeds.
    pub fn report(&mut self, now: Time, status: &RlcStatus) {
        self.pacer.report(now, status);
        self.pacer_wait = None;
    }

    /// Shows the classifier a packet of the other direction, in the same format: TLS greetings go uplink, and DNS answers
    /// may come another way. It is read only if a filter asks for server names, and never queued.
    pub fn observe(&mut self, now: Time, bytes: &[u8]) {
        let headers = crate::parse::parse(bytes, self.layout.pdu);
        self.classifier.observe(now, &headers, bytes);
    }

    /// When it is worth asking for a packet again though nothing arrives and no report comes. `None`: never.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        match (timer, self.pacer_wait) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}
