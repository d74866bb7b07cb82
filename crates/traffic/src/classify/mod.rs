//! Stage 1, the classifier: which queue a packet goes to.
//!
//! The stage is a list of filters, lowest priority number first. A filter is a match (rte_flow's vocabulary: every field
//! that is given must fit) and a target: a queue, a drop, or a [`Classifier`] that chooses among queues. The first filter
//! that decides wins; what none wants goes to the default queue.

use crate::packet::QueueId;
use crate::parse::Headers;
use crate::spec::TargetSpec;
use crate::stats::StatMap;
use crate::time::Time;

mod fragments;
mod hash;
mod hints;
mod matcher;
mod simple;
mod stage;

pub use hash::Hash;
pub use matcher::Matcher;
pub use simple::{ByClass, ByL4s, ByQfi, RoundRobin};
pub(crate) use stage::{Action, ClassifierStage, Filter, Routed};

/// What a classifier or a policer may look at.
#[derive(Clone, Copy, Debug)]
pub struct PacketView<'a> {
    /// The packet's visible bytes.
    pub bytes: &'a [u8],
    /// Its size in bytes.
    pub size: u32,
    /// The traffic class that came with it.
    pub class: u32,
    /// Its QoS flow identifier, from beside it or from its SDAP header.
    pub qfi: Option<u8>,
    /// The flow identity that came with it.
    pub flow: Option<u64>,
    /// Its headers.
    pub headers: &'a Headers,
}

/// What a classifier makes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No opinion: the next filter is asked.
    Pass,
    /// It goes to this queue.
    Queue(QueueId),
    /// It goes to this queue, and [`Classifier::left`] is to be called with the number when it has left.
    Tracked(QueueId, u32),
    /// It is dropped.
    Drop,
}

/// Chooses a queue.
pub trait Classifier: Send {
    /// Chooses for one packet. Called for every packet that the filter's match lets through.
    fn classify(&mut self, now: Time, packet: &PacketView<'_>) -> Decision;

    /// A queue exists from now on. Called for all existing queues when the classifier is put in place.
    fn queue_added(&mut self, _queue: QueueId) {}

    /// A queue is gone; its packets, if any were left, stand in `moved_to`.
    fn queue_removed(&mut self, _queue: QueueId, _moved_to: QueueId) {}

    /// A packet for which [`Decision::Tracked`] was answered has left the pipeline.
    fn left(&mut self, _tag: u32) {}

    /// Takes new parameters and the queues that there are, and keeps its state; false if the parameters are for another
    /// kind of classifier.
    fn modify(&mut self, _to: &TargetSpec, _queues: &[QueueId]) -> bool {
        false
    }

    /// Adds its statistics.
    fn stats(&self, _out: &mut StatMap) {}
}
