//! Links from local sources: the network is their consumer.

use insane_shm::link::{Broken, Consumer, Descriptor, FLAG_INLINE};
use insane_shm::pack::{MAX_COPIED, MAX_MESSAGE};
use insane_shm::segment::SegmentView;
use insane_wire::id::{Epoch, SinkId};
use insane_wire::keyed::Keyed;
use std::collections::VecDeque;

/// The most positions that are remembered of a sink that is gone, until its source's session has said where it ends.
const MOST_LATE: usize = 1 << 16;

/// A link from a session with sources.
#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) stream: String,
    pub(crate) reliable: bool,
    pub(crate) consumer: Consumer,
    pub(crate) segments: Vec<Option<SegmentView>>,
    pub(crate) mapped: u64,
    /// How many segments those are.
    pub(crate) maps: usize,
    pub(crate) sources: Keyed<u32, Source>,
    /// Flows of it may be over, or their sources have none.
    pub(crate) ending: bool,
    /// The session is gone: what is on the ring still goes.
    pub(crate) gone: bool,
    pub(crate) broken: Option<Broken>,
    pub(crate) pair: usize,
    pub(crate) number: u32,
    pub(crate) generation: u32,
    /// The entries of its ring.
    pub(crate) entries: u32,
    /// The bytes of slots that its session lets it keep, once that has said so.
    pub(crate) room: u64,
    /// Slots that are under way, and the bytes of the messages in them.
    pub(crate) out: u32,
    pub(crate) out_bytes: u64,
    pub(crate) armed: bool,
    /// Nothing is taken from it now: its one host has enough to do.
    pub(crate) held: bool,
    /// So many messages may be taken before it is looked at again whether it has.
    pub(crate) allowance: u64,
    /// Some were given back and its producer was not woken since.
    pub(crate) returned: bool,
}

/// What comes from one source.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) epoch: Epoch,
    /// One per host with sinks.
    pub(crate) routes: Vec<Route>,
    /// How many sinks ever joined: the low half.
    pub(crate) joins: u16,
}

/// The sinks of one host.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) host: usize,
    /// The flow, by its place at the host.
    pub(crate) flow: usize,
    /// The number, at the host, of the sink that joined last of those that the source knows of, modulo 256.
    pub(crate) joined: Option<u8>,
    pub(crate) sinks: Vec<Sink>,
}

/// One sink of another host, as a source's session knows it.
#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) id: SinkId,
    /// Nothing waits for it.
    pub(crate) observer: bool,
    /// Its account, by its place at the host.
    pub(crate) account: usize,
    /// The source's session has been told that it is attached.
    pub(crate) open: bool,
    /// Its number among those that joined, once it is open, and whether the source knows of it: what came before was not meant
    /// for it.
    pub(crate) join: u16,
    pub(crate) joined: bool,
    /// Its number at its host, modulo 256.
    pub(crate) number: u8,
    /// The first position of the ring that is not for it.
    pub(crate) end: Option<u64>,
    /// Its source gave it up.
    pub(crate) given_up: bool,
    /// Its source's session was told that it is gone, and has not said yet where that end is: what came since, by its position.
    pub(crate) detached: bool,
    pub(crate) late: VecDeque<(u64, u64)>,
}

/// The later of two numbers of sinks that joined.
pub(crate) fn later(known: Option<u8>, number: u8) -> u8 {
    known.filter(|known| number.wrapping_sub(*known) >= 128).unwrap_or(number)
}

impl Source {
    pub(crate) fn new(epoch: Epoch) -> Self {
        Self { epoch, routes: Vec::new(), joins: 0 }
    }

    /// Sees which sinks the source knew of when it emitted a message, and notes for which of them it may come too late.
    pub(crate) fn look(&mut self, d: &Descriptor, position: u64) {
        for Route { sinks, joined, .. } in &mut self.routes {
            for sink in sinks.iter_mut().filter(|s| s.open) {
                if !sink.joined && d.is_after(sink.join) {
                    sink.joined = true;
                    *joined = Some(later(*joined, sink.number));
                }
                if sink.joined && sink.detached && sink.end.is_none() && sink.late.len() < MOST_LATE {
                    sink.late.push_back((position, d.messages()));
                }
            }
        }
    }

    /// A sink is gone: where its messages end is the session's to say.
    pub(crate) fn detach(&mut self, id: SinkId) {
        let sinks = self.routes.iter_mut().flat_map(|r| r.sinks.iter_mut());
        sinks.filter(|s| s.id == id).for_each(|s| s.detached = true);
    }
}

impl Route {
    /// Whether a message at a position of the ring is for observers alone.
    pub(crate) fn is_watched(&self, position: u64) -> bool {
        self.sinks.iter().filter(|sink| sink.takes(position)).all(|sink| sink.observer)
    }
}

impl Sink {
    /// Whether it takes all that comes, or has not joined yet.
    pub(crate) fn is_steady(&self) -> bool {
        self.end.is_none() && !self.detached && (self.joined || !self.open)
    }

    /// Whether a message at a position of the ring is for it.
    pub(crate) fn takes(&self, position: u64) -> bool {
        self.joined && self.end.map_or(!self.detached, |end| position < end)
    }

    /// What was meant for it of what came when its end was not known, once that is.
    pub(crate) fn meant_late(&mut self) -> u64 {
        let Some(end) = self.end else { return 0 };
        let late = std::mem::take(&mut self.late);
        late.iter().filter(|(position, _)| *position < end).map(|(_, messages)| messages).sum()
    }
}

impl Intake {
    /// Whether a message is as most small ones are, with nothing said of it but its priority: best effort, inside its descriptor;
    /// reliable, in a slot.
    pub(crate) fn is_plain(&self, d: &Descriptor) -> bool {
        let there = if self.reliable { 0 } else { FLAG_INLINE };
        d.flags == there && d.deadline_ns == 0 && d.length <= MAX_COPIED
    }

    /// Whether a larger message of a reliable stream is as most are, in a slot, with nothing said of it but its priority.
    pub(crate) fn is_plain_larger(&self, d: &Descriptor) -> bool {
        self.reliable && d.flags == 0 && d.deadline_ns == 0 && (MAX_COPIED + 1..=MAX_MESSAGE).contains(&d.length)
    }

    /// Whether so much of a reliable link is under way that what observers of other hosts are late with may keep none of the rest: that
    /// is for those that messages are meant for. A slot may be twice as large as what lies in it.
    pub(crate) fn is_short(&self) -> bool {
        self.reliable && (self.out > self.entries / 2 || self.out_bytes > self.room / 4)
    }

    /// Whether what is on the ring from a source is for the same sinks.
    pub(crate) fn is_steady(&self, source: u32) -> bool {
        let mut routes = self.sources.get(&source).into_iter().flat_map(|s| s.routes.iter());
        routes.all(|r| r.sinks.iter().all(Sink::is_steady))
    }

    /// Lets the producer of a reliable stream know what was given back to it, if anything was.
    pub(crate) fn give_notice(&mut self) {
        if std::mem::take(&mut self.returned) && self.reliable {
            self.consumer.settle();
            self.consumer.wake();
        }
    }

    /// Whether nothing of it is in use any more.
    pub(crate) fn is_spent(&self) -> bool {
        (self.gone || self.broken.is_some())
            && self.out == 0
            && self.sources.is_empty()
            && (self.broken.is_some() || !self.consumer.ready())
    }
}
