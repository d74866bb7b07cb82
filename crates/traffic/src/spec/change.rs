//! The changes that can be made to a live pipeline, one stage at a time or several at once.

use serde::{Deserialize, Serialize};

use super::{FilterSpec, LimitSpec, PacerSpec, PolicerSpec, QueueKind, QueueSpec, SchedulerSpec, ShaperSpec};
use crate::packet::QueueId;

/// What becomes of the packets of a queue that is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Leftover {
    /// They go to the end of the default queue, in their order and with their arrival times.
    #[default]
    Rehome,
    /// They are dropped, counted as `change`.
    Drop,
}

/// What becomes of the filters, policers and schedulers that name a queue that is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum References {
    /// Nothing: as long as there are any the queue is in use, and deleting it is an error.
    #[default]
    Refuse,
    /// Filters to it are deleted, redirections to it become drops, schedulers forget it.
    Remove,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Change {
    /// Adds a filter to the classifier.
    AddFilter {
        /// The filter.
        filter: FilterSpec,
    },
    /// Replaces the filter of the same id.
    ModifyFilter {
        /// The filter.
        filter: FilterSpec,
    },
    /// Deletes a filter.
    DeleteFilter {
        /// Its id.
        id: u32,
    },
    /// Adds a queue, or `count` of them, with policer and shaper if given.
    AddQueue {
        /// The queue.
        queue: QueueSpec,
    },
    /// Gives a queue other parameters, or makes it one of another kind. No packet is dropped, not even where the new limit
    /// is below what is queued.
    ModifyQueue {
        /// Which queue.
        id: QueueId,
        /// What it becomes.
        kind: QueueKind,
    },
    /// Deletes a queue with its policer and shaper.
    DeleteQueue {
        /// Which queue.
        id: QueueId,
        /// What becomes of its packets.
        #[serde(default)]
        packets: Leftover,
        /// What becomes of those who name it.
        #[serde(default)]
        references: References,
    },
    /// Gives a queue a policer.
    AddPolicer {
        /// Which queue.
        queue: QueueId,
        /// The policer.
        policer: PolicerSpec,
    },
    /// Changes or replaces a queue's policer.
    ModifyPolicer {
        /// Which queue.
        queue: QueueId,
        /// The policer.
        policer: PolicerSpec,
    },
    /// Takes a queue's policer away.
    DeletePolicer {
        /// Which queue.
        queue: QueueId,
    },
    /// Gives a queue a shaper.
    AddShaper {
        /// Which queue.
        queue: QueueId,
        /// The shaper.
        shaper: ShaperSpec,
    },
    /// Changes or replaces a queue's shaper.
    ModifyShaper {
        /// Which queue.
        queue: QueueId,
        /// The shaper.
        shaper: ShaperSpec,
    },
    /// Takes a queue's shaper away.
    DeleteShaper {
        /// Which queue.
        queue: QueueId,
    },
    /// Changes or replaces the scheduler.
    SetScheduler {
        /// The scheduler.
        scheduler: SchedulerSpec,
    },
    /// Refused always: a pipeline cannot be without a scheduler. Here so that every stage answers every verb.
    DeleteScheduler {},
    /// Changes or replaces the pacer.
    SetPacer {
        /// The pacer.
        pacer: PacerSpec,
    },
    /// Takes the pacer away: everything passes.
    DeletePacer {},
    /// Changes what the pipeline may hold.
    SetLimit {
        /// The limit.
        limit: LimitSpec,
    },
}
