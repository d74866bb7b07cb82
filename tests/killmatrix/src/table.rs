//! Which party executes which step, at which passing it is held, and what has to be done for it to come by.

/// A party.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party {
    /// The process with the source.
    Source,
    /// The process with the first of both sinks.
    Sink,
    /// The runtime.
    Runtime,
}

impl Party {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Source, Self::Sink, Self::Runtime];

    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Sink => "sink",
            Self::Runtime => "runtime",
        }
    }
}

/// What makes the step come by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// The load alone, or the set-up.
    Load,
    /// The sink closes and opens again.
    Reopen,
    /// The source emits a message for which it gives segments back.
    Reshape,
    /// The runtime is restarted.
    Restart,
    /// One more sink joins.
    Join,
    /// One more sink joins and its process is killed.
    Leave,
    /// The sink is stopped, so that a reliable source runs out of room.
    Choke,
}

/// What only a reliable stream has: a source that sleeps for room.
pub const RELIABLE_TABLE: &[Row] = &[("sleep", Party::Source, 1, Trigger::Choke)];

/// A row: a step, who is held there, at which passing, and what makes it come by.
pub type Row = (&'static str, Party, u32, Trigger);

/// Every step of `insane_shm::steps::Step` at every party that can execute it. What is not here cannot be: only a producer
/// takes, fills, publishes, wakes, drains, grows, shrinks and offers (here the source's process), only a consumer pops, holds, returns,
/// sleeps on a best-effort stream, accepts, opens flows and detaches (the sink's), and only the runtime welcomes, matches and
/// forgets. The runtime of one host owns no memory, so it seals none, and it reconnects to nobody.
///
/// The passing is chosen so that the step is passed under load and after the set-up where that is possible. The source has
/// sealed its counters, its first segment and the delivery ring to the first sink when it seals its fourth memory, the ring
/// to the second. The runtime has had three messages of each of five sessions and has matched three flows when the next sink
/// joins.
pub const TABLE: &[Row] = &[
    ("alloc", Party::Source, 400, Trigger::Load),
    ("fill", Party::Source, 400, Trigger::Load),
    ("publish", Party::Source, 400, Trigger::Load),
    ("wake", Party::Source, 400, Trigger::Load),
    ("drain", Party::Source, 400, Trigger::Load),
    ("grow", Party::Source, 2, Trigger::Load),
    ("shrink", Party::Source, 1, Trigger::Reshape),
    ("seal", Party::Source, 4, Trigger::Load),
    ("attach", Party::Source, 2, Trigger::Load),
    ("reconnect", Party::Source, 2, Trigger::Restart),
    ("pop", Party::Sink, 400, Trigger::Load),
    ("hold", Party::Sink, 400, Trigger::Load),
    ("return", Party::Sink, 200, Trigger::Load),
    ("sleep", Party::Sink, 20, Trigger::Load),
    ("seal", Party::Sink, 2, Trigger::Load),
    ("accept", Party::Sink, 1, Trigger::Load),
    ("flow", Party::Sink, 1, Trigger::Load),
    ("detach", Party::Sink, 1, Trigger::Reopen),
    ("reconnect", Party::Sink, 2, Trigger::Restart),
    ("welcome", Party::Runtime, 16, Trigger::Join),
    ("match", Party::Runtime, 4, Trigger::Join),
    ("forget", Party::Runtime, 1, Trigger::Leave),
];
