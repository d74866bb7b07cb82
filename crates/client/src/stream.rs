//! Streams: named sets of quality requirements. Channels exist only within one.

use crate::error::{Code, Error, Result};
use crate::options::{SinkOptions, SourceOptions};
use crate::rx::Rx;
use crate::session::{Endpoint, Shared, lock};
use crate::sink::Sink;
use crate::source::Source;
use crate::tx::Tx;
use insane_shm::biased::{BiasedGuard, BiasedLock};
use insane_wire::id::{ChannelId, channel_id, valid_name};
use insane_wire::qos::{EffectiveQos, Qos, Reliability};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};

/// What all handles on a stream of a session share.
#[derive(Debug)]
pub(crate) struct StreamShared {
    pub(crate) session: Arc<Shared>,
    pub(crate) name: String,
    pub(crate) qos: Qos,
    pub(crate) strict: AtomicBool,
    pub(crate) reliable: bool,
    /// The stream's number at the runtime; another one after the runtime's restart, and 0 as long as it is not open there.
    pub(crate) number: AtomicU32,
    pub(crate) open: AtomicBool,
    pub(crate) tx: BiasedLock<Tx>,
    pub(crate) rx: BiasedLock<Rx>,
    pub(crate) effective: Mutex<BTreeMap<String, EffectiveQos>>,
    /// Why the runtime has not opened it again.
    pub(crate) refused: Mutex<Option<Error>>,
    wakers: Arc<Mutex<Vec<std::task::Waker>>>,
}

/// A channel by its name, or by a plain 64-bit id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel<'a> {
    /// By name; the id is a frozen hash of it.
    Name(&'a str),
    /// By id. Mixing an id and a name of that id is refused.
    Id(u64),
}

impl<'a> From<&'a str> for Channel<'a> {
    fn from(name: &'a str) -> Self {
        Self::Name(name)
    }
}

impl<'a> From<&'a String> for Channel<'a> {
    fn from(name: &'a String) -> Self {
        Self::Name(name)
    }
}

impl From<u64> for Channel<'_> {
    fn from(id: u64) -> Self {
        Self::Id(id)
    }
}

impl Channel<'_> {
    pub(crate) fn id(&self, domain: &str, stream: &str) -> Result<ChannelId> {
        match self {
            Self::Name(name) if !valid_name(name) => Err(Error::new(Code::InvalidName, format!("channel `{name}`"))),
            Self::Name(name) => Ok(channel_id(domain, stream, name)),
            Self::Id(id) => Ok(ChannelId(*id)),
        }
    }

    pub(crate) fn message(&self) -> insane_wire::control::Channel {
        match self {
            Self::Name(name) => insane_wire::control::Channel { name: Some((*name).to_owned()), id: None },
            Self::Id(id) => insane_wire::control::Channel { name: None, id: Some(*id) },
        }
    }
}

/// A handle on a stream. Cheap to clone, usable from any thread; the stream closes with the session.
#[derive(Debug, Clone)]
pub struct Stream {
    pub(crate) shared: Arc<StreamShared>,
}

impl Stream {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// What it asks for.
    #[must_use]
    pub fn qos(&self) -> Qos {
        self.shared.qos
    }

    /// What is served towards each peer, with a reason for every downgrade. The entry `local` is this host's ceiling.
    #[must_use]
    pub fn effective_qos(&self) -> Vec<EffectiveQos> {
        crate::session::lock(&self.shared.effective).values().cloned().collect()
    }

    /// Opens a source with default options. Blocks for the answer of the runtime, and until the sinks that exist already are
    /// in its view (at most a second).
    ///
    /// # Errors
    /// [`Code::InvalidName`], [`Code::ChannelIdTaken`], [`Code::QuotaExceeded`], [`Code::RuntimeLost`], [`Code::Forked`];
    /// [`Code::NoBuffer`] when what the session's streams have in use leaves too little of its memory (`quota.memory_mib_per_session`),
    /// of which a stream may have half, for one message of the size that the options say.
    pub fn source<'a>(&self, channel: impl Into<Channel<'a>>) -> Result<Source> {
        self.source_with(channel, SourceOptions::default())
    }

    /// Opens a source.
    ///
    /// # Errors
    /// As [`Self::source`]; [`Code::MessageTooLarge`] when no message may be as large as the options say.
    pub fn source_with<'a>(&self, channel: impl Into<Channel<'a>>, options: SourceOptions) -> Result<Source> {
        Source::open(self.shared.clone(), channel.into(), options)
    }

    /// Opens a sink with default options. Blocks for the answer of the runtime, and until the sources that exist already
    /// know it (at most a second).
    ///
    /// The sinks of a stream share the session's links, and the room on them (`quota.link_entries`, and a part of the source's memory).
    /// Best effort: one that takes nothing has half of a link, two of unlike channels have a third each, and so on. What comes for them then is
    /// lost to them alone, and counted as `sink_full` (ADR 32); sources that ask for room have half of the link. Reliable: sources wait for
    /// the slowest up to their deadline, and then give that up (ADR 38). Messages that the application keeps leave that much less
    /// for all.
    ///
    /// # Errors
    /// As [`Self::source`], without [`Code::NoBuffer`].
    pub fn sink<'a>(&self, channel: impl Into<Channel<'a>>) -> Result<Sink> {
        self.sink_with(channel, SinkOptions::default())
    }

    /// Opens a sink.
    ///
    /// # Errors
    /// As [`Self::sink`].
    pub fn sink_with<'a>(&self, channel: impl Into<Channel<'a>>, options: SinkOptions) -> Result<Sink> {
        Sink::open(self.shared.clone(), channel.into(), options)
    }

    /// How many cursors of sinks with sources that had ended were forgotten for others. Of more than a thousand such sources, what
    /// the oldest sent last may come a second time if they go on after the runtime was lost.
    #[must_use]
    pub fn cursors_forgotten(&self) -> u64 {
        self.shared.rx.visit().cursors.forgotten()
    }

    /// How many records the session has of the stream's sources, sinks and flows, open and closed: for tests.
    #[must_use]
    pub fn records(&self) -> usize {
        let mine = |end: &&Endpoint| Arc::ptr_eq(end.stream(), &self.shared);
        let endpoints = lock(&self.shared.session.endpoints).iter().filter(mine).count();
        let answers = lock(&self.shared.session.answers).len();
        let tx = self.shared.tx.visit().records();
        endpoints + answers + tx + self.shared.rx.visit().records()
    }

    /// Counts every slot of the stream once: for tests.
    #[must_use]
    pub fn audit(&self) -> insane_shm::slab::Audit {
        let mut tx = self.shared.tx.visit();
        tx.reclaim_all();
        tx.slab.audit()
    }
}

impl StreamShared {
    /// Gives the lock of the receiving half back, and tells the service thread if wakers are to be called.
    #[inline(always)]
    pub(crate) fn unlock(&self, mut rx: BiasedGuard<'_, Rx>) {
        let alarm = std::mem::take(&mut rx.alarm);
        drop(rx);
        if alarm {
            self.session.ring();
        }
    }

    /// Calls the wakers that were put aside while the lock was held.
    pub(crate) fn call_wakers(&self) {
        let wakers = std::mem::take(&mut *crate::session::lock(&self.wakers));
        wakers.into_iter().for_each(std::task::Waker::wake);
    }

    pub(crate) fn new(session: Arc<Shared>, name: String, qos: Qos, strict: bool, number: u32) -> Self {
        let share = session.limits().memory_bytes / 2;
        let mut tx = Tx { share, session_bytes: session.segment_bytes.clone(), ..Tx::default() };
        tx.share_out();
        let rx = Rx::default();
        Self {
            wakers: rx.wakers.clone(),
            session,
            name,
            qos,
            strict: AtomicBool::new(strict),
            reliable: qos.reliability() == Reliability::Reliable,
            number: AtomicU32::new(number),
            open: AtomicBool::new(true),
            tx: BiasedLock::new(tx),
            rx: BiasedLock::new(rx),
            effective: Mutex::new(BTreeMap::new()),
            refused: Mutex::new(None),
        }
    }

    /// Fails with the runtime's reason if it has not opened the stream again.
    pub(crate) fn check_refusal(&self) -> Result<()> {
        lock(&self.refused).clone().map_or(Ok(()), Err)
    }

    /// What the session's limits allow the stream now.
    pub(crate) fn share_anew(&self) {
        let share = self.session.limits().memory_bytes / 2;
        let mut tx = self.tx.visit();
        if tx.share != share {
            tx.share = share;
            tx.share_out();
        }
    }
}
