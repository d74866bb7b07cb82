//! Links from local sources: the network is their consumer.

use insane_shm::link::{Broken, Consumer, Descriptor, FLAG_INLINE};
use insane_shm::segment::SegmentView;
use insane_wire::id::{Epoch, SinkId};
use std::collections::HashMap;

/// A link from a session with sources.
#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) stream: String,
    pub(crate) reliable: bool,
    pub(crate) consumer: Consumer,
    pub(crate) segments: Vec<Option<SegmentView>>,
    pub(crate) mapped: u64,
    pub(crate) sources: HashMap<u32, Source>,
    /// The session is gone: what is on the ring still goes.
    pub(crate) gone: bool,
    pub(crate) broken: Option<Broken>,
    pub(crate) pair: usize,
    pub(crate) number: u32,
    pub(crate) generation: u32,
    /// Slots that are under way.
    pub(crate) out: u32,
    pub(crate) armed: bool,
    /// Nothing is taken from it now: its one host has enough to do.
    pub(crate) held: bool,
    /// Some were given back and its producer was not woken since.
    pub(crate) returned: bool,
}

/// What comes from one source.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) epoch: Epoch,
    /// One per host with sinks.
    pub(crate) routes: Vec<Route>,
}

/// The sinks of one host.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) host: usize,
    /// The flow, by its place at the host.
    pub(crate) flow: usize,
    pub(crate) sinks: Vec<Sink>,
}

/// One sink of another host, as a source's session knows it.
#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) id: SinkId,
    /// Its account, by its place at the host.
    pub(crate) account: usize,
    /// The source's session has been told that it is attached.
    pub(crate) open: bool,
    /// The first position of the ring that is not for it.
    pub(crate) end: Option<u64>,
}

impl Intake {
    /// Whether a message is as most small ones are: inside its descriptor, with nothing said of it but its priority.
    pub(crate) fn is_plain(&self, d: &Descriptor) -> bool {
        !self.reliable && d.flags == FLAG_INLINE && d.deadline_ns == 0
    }

    /// Whether what is on the ring from a source is for the same sinks.
    pub(crate) fn is_steady(&self, source: u32) -> bool {
        let mut routes = self.sources.get(&source).into_iter().flat_map(|s| s.routes.iter());
        routes.all(|r| r.sinks.iter().all(|s| s.end.is_none()))
    }

    /// Whether nothing of it is in use any more.
    pub(crate) fn is_spent(&self) -> bool {
        (self.gone || self.broken.is_some())
            && self.out == 0
            && self.sources.is_empty()
            && (self.broken.is_some() || !self.consumer.ready())
    }
}
