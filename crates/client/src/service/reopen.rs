//! What the service thread opens again at a runtime that is back, and what becomes of that which the runtime refuses then.
//!
//! A refusal that can pass, such as a quota that is used up, leaves everything as it is: local links go on, and the runtime is asked
//! again, less and less often. One that cannot closes what it is about. Either way the application gets an event, and the reason as
//! the error of calls that would wait, or find it closed.

use super::{Internal, RETRY, Service};
use crate::error::{Code, Error, Result};
use crate::session::{Endpoint, Event, lock};
use crate::stream::StreamShared;
use insane_wire::control::{self, to_client, to_runtime};
use insane_wire::id::{Epoch, SinkId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long after a refusal the runtime is asked again, at first; each time twice as long.
const AGAIN: Duration = Duration::from_millis(100);

/// The longest.
const AGAIN_AT_MOST: Duration = Duration::from_secs(5);

/// What the runtime has refused and is asked for again.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// When, after how long, and what: a stream, or an end of it.
    again: Vec<(Instant, Duration, Arc<StreamShared>, Option<Endpoint>)>,
    /// The runtime does not take the session back; after how long it asks again, and why.
    session: Option<(Duration, Error)>,
}

impl Refusals {
    /// When the runtime is asked next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.again.iter().map(|(at, ..)| *at).min()
    }

    /// The connection has ended: the next runtime is asked for everything.
    pub(super) fn forget(&mut self) {
        self.again.clear();
    }
}

/// Whether a refusal can pass without a change of the configuration or of what is asked for: something is used up, or another has it.
fn can_pass(code: Code) -> bool {
    matches!(
        code,
        Code::QuotaExceeded
            | Code::QosConflict
            | Code::ChannelIdTaken
            | Code::IdentityTaken
            | Code::ShuttingDown
            | Code::System
    )
}

fn later(wait: Duration) -> Duration {
    (wait * 2).min(AGAIN_AT_MOST)
}

impl Endpoint {
    pub(crate) fn stream(&self) -> &Arc<StreamShared> {
        match self {
            Self::Source { stream, .. } | Self::Sink { stream, .. } => stream,
        }
    }

    /// In words, for people.
    fn words(&self) -> String {
        let (kind, channel) = match self {
            Self::Source { channel, .. } => ("the source", channel),
            Self::Sink { channel, .. } => ("the sink", channel),
        };
        match &channel.name {
            Some(name) => format!("{kind} of channel `{name}`"),
            None => format!("{kind} of channel {:016x}", channel.id.unwrap_or(0)),
        }
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Source { epoch: a, .. }, Self::Source { epoch: b, .. }) => a == b,
            (Self::Sink { id: a, .. }, Self::Sink { id: b, .. }) => a == b,
            _ => false,
        }
    }

    /// Notes why it is refused. Whether it is for another reason than before.
    fn refuse(&self, why: &Error) -> bool {
        let before = match self {
            Self::Source { stream, number, .. } => stream.tx.visit().refuse(*number, why),
            Self::Sink { stream, id, .. } => {
                let mut rx = stream.rx.visit();
                let index = rx.sinks.iter().position(|s| s.as_ref().is_some_and(|s| s.id == *id));
                index.and_then(|index| rx.refuse_sink(index, why))
            }
        };
        before.as_ref() != Some(why)
    }

    /// It is open again. Whether it was refused.
    fn is_back(&self) -> bool {
        match self {
            Self::Source { stream, number, .. } => stream.tx.visit().is_back(*number),
            Self::Sink { stream, id, .. } => {
                let mut rx = stream.rx.visit();
                let index = rx.sinks.iter().position(|s| s.as_ref().is_some_and(|s| s.id == *id && s.open));
                index.is_some_and(|index| rx.refused.remove(&index).is_some())
            }
        }
    }
}

impl Service {
    pub(super) fn hello_answered(&mut self, request: u64, body: Result<to_client::Body>) {
        match body {
            Ok(to_client::Body::Welcome(welcome)) => {
                insane_shm::steps::reach(insane_shm::steps::Step::Reconnect);
                self.refusals.session = None;
                self.shared.welcomed(welcome.clone());
                let streams = lock(&self.shared.streams).clone();
                streams.into_iter().for_each(|stream| self.reopen_stream(stream, AGAIN));
                self.answer_opener(request, Ok(to_client::Body::Welcome(welcome)));
                self.check_ready();
            }
            Ok(other) => self.answer_opener(request, Err(crate::session::unexpected(&other))),
            Err(e) if request == self.first_hello => {
                self.answer_opener(request, Err(e));
                self.lost();
            }
            Err(e) => self.refused_session(e),
        }
    }

    /// Only the very first hello has somebody who waits for its answer.
    fn answer_opener(&self, request: u64, body: Result<to_client::Body>) {
        if request == self.first_hello {
            lock(&self.shared.answers).insert(request, body);
        }
    }

    /// Opens a stream, once more.
    fn reopen_stream(&mut self, stream: Arc<StreamShared>, wait: Duration) {
        let name = if stream.name == stream.qos.unnamed_stream() { String::new() } else { stream.name.clone() };
        let strict = stream.strict.load(Ordering::Relaxed);
        let body = control::OpenStream { name, qos: Some(stream.qos), strict };
        let id = self.shared.next_request();
        self.internal.insert(id, Internal::Stream(stream, wait));
        self.send(id, to_runtime::Body::OpenStream(body));
    }

    /// A stream is open again.
    pub(super) fn stream_is_back(&mut self, stream: &Arc<StreamShared>, opened: control::StreamOpened) {
        stream.number.store(opened.stream, Ordering::Release);
        if let Some(ceiling) = opened.ceiling {
            lock(&stream.effective).insert("local".into(), ceiling);
        }
        let was_refused = lock(&stream.refused).take().is_some();
        let ends = self.ends_of(stream);
        if was_refused {
            ends.iter().for_each(|end| {
                end.is_back();
            });
            self.say_back(stream);
        }
        ends.into_iter().for_each(|end| self.reopen(end, AGAIN));
    }

    fn say_back(&self, stream: &Arc<StreamShared>) {
        let effective = lock(&stream.effective).get("local").cloned().unwrap_or_default();
        self.shared.event(Event::QosChanged { stream: stream.name.clone(), effective, moved: None });
    }

    fn ends_of(&self, stream: &Arc<StreamShared>) -> Vec<Endpoint> {
        lock(&self.shared.endpoints).iter().filter(|end| Arc::ptr_eq(end.stream(), stream)).cloned().collect()
    }

    /// Opens a source or sink, once more.
    fn reopen(&mut self, end: Endpoint, wait: Duration) {
        let stream = end.stream().number.load(Ordering::Acquire);
        let body = match &end {
            Endpoint::Source { channel, epoch, .. } => to_runtime::Body::OpenSource(control::OpenSource {
                stream,
                channel: Some(channel.clone()),
                epoch: epoch.to_bytes(),
            }),
            Endpoint::Sink { channel, id, observer, .. } => to_runtime::Body::OpenSink(control::OpenSink {
                stream,
                channel: Some(channel.clone()),
                sink: id.to_bytes(),
                observer: *observer,
            }),
        };
        let id = self.shared.next_request();
        self.internal.insert(id, Internal::End(end, wait));
        self.send(id, body);
    }

    /// A source or sink is open again.
    pub(super) fn end_is_back(&self, end: &Endpoint) {
        if end.is_back() {
            self.say_back(end.stream());
        }
    }

    /// The runtime does not open a stream again.
    pub(super) fn refused_stream(&mut self, stream: &Arc<StreamShared>, error: Error, wait: Duration) {
        let retried = can_pass(error.code());
        let new = lock(&stream.refused).replace(error.clone()).as_ref() != Some(&error);
        let ends = self.ends_of(stream);
        for end in &ends {
            end.refuse(&error);
        }
        if retried {
            self.refusals.again.push((Instant::now() + wait, later(wait), stream.clone(), None));
        } else {
            ends.iter().for_each(|end| self.close_end(end));
        }
        // Each runtime says it once, and whenever it is for another reason.
        if new || wait == AGAIN {
            let (stream, end) = (stream.name.clone(), String::new());
            self.shared.event(Event::StreamRefused { stream, end, error, retried });
        }
    }

    /// The runtime does not open a source or sink again.
    pub(super) fn refused_end(&mut self, end: Endpoint, error: Error, wait: Duration) {
        if !self.is_there(&end) {
            return;
        }
        let retried = can_pass(error.code());
        let (stream, words) = (end.stream().clone(), end.words());
        let new = end.refuse(&error);
        if retried {
            self.refusals.again.push((Instant::now() + wait, later(wait), stream.clone(), Some(end)));
        } else {
            self.close_end(&end);
        }
        if new || wait == AGAIN {
            let stream = stream.name.clone();
            self.shared.event(Event::StreamRefused { stream, end: words, error, retried });
        }
    }

    /// Whether the application has a source or sink, or waits for it.
    fn is_there(&self, end: &Endpoint) -> bool {
        lock(&self.shared.endpoints).iter().any(|one| one.is(end))
    }

    /// Closes what is refused for good, as if the application had.
    fn close_end(&mut self, end: &Endpoint) {
        match end {
            Endpoint::Source { stream, epoch, number, .. } => self.close_source(stream, *number, *epoch),
            Endpoint::Sink { stream, id, .. } => {
                lock(&self.shared.endpoints).retain(|one| !one.is(end));
                let known = {
                    let mut rx = stream.rx.visit();
                    let index = rx.sinks.iter().position(|s| s.as_ref().is_some_and(|s| s.id == *id));
                    index.map(|index| rx.close_sink(index)).is_some()
                };
                if known {
                    self.peers.close_sink(stream, *id);
                }
            }
        }
    }

    /// Asks the runtime again for what it has refused, when it is time.
    pub(super) fn try_refused(&mut self) {
        if self.refusals.again.is_empty() || !self.ready {
            return;
        }
        let now = Instant::now();
        let (due, rest) = std::mem::take(&mut self.refusals.again).into_iter().partition(|(at, ..)| *at <= now);
        self.refusals.again = rest;
        for (_, wait, stream, end) in due {
            match end {
                None => self.reopen_stream(stream, wait),
                Some(end) if self.is_there(&end) => self.reopen(end, wait),
                Some(_) => {}
            }
        }
    }

    /// The runtime does not take the session back: that is said of each of its streams.
    fn refused_session(&mut self, error: Error) {
        // Another version may be installed again.
        let retried = can_pass(error.code()) || error.code() == Code::VersionMismatch;
        let before = self.refusals.session.take();
        let wait = before.as_ref().map_or(RETRY, |(wait, _)| later(*wait));
        let new = before.is_none_or(|(_, why)| why != error);
        self.lost();
        let streams = lock(&self.shared.streams).clone();
        for stream in streams {
            *lock(&stream.refused) = Some(error.clone());
            let ends = self.ends_of(&stream);
            for end in &ends {
                end.refuse(&error);
            }
            if !retried {
                ends.iter().for_each(|end| self.close_end(end));
            }
            if new {
                let (stream, end, error) = (stream.name.clone(), String::new(), error.clone());
                self.shared.event(Event::StreamRefused { stream, end, error, retried });
            }
        }
        self.retry_at = (retried && self.shutdown.is_none()).then(|| Instant::now() + wait);
        for (request, _) in std::mem::take(&mut self.parked) {
            lock(&self.shared.answers).insert(request, Err(error.clone()));
        }
        self.refusals.session = Some((wait, error));
    }

    /// Says to a request which number its stream has now: it may have been made while another runtime was there.
    pub(super) fn address(&self, body: &mut to_runtime::Body) -> Result<()> {
        if let Some((_, why)) = &self.refusals.session {
            return Err(why.clone());
        }
        let (source, sink, stream) = match body {
            to_runtime::Body::OpenSource(open) => (Epoch::from_bytes(&open.epoch), None, &mut open.stream),
            to_runtime::Body::OpenSink(open) => (None, SinkId::from_bytes(&open.sink), &mut open.stream),
            _ => return Ok(()),
        };
        let endpoints = lock(&self.shared.endpoints);
        let found = endpoints.iter().find(|end| match end {
            Endpoint::Source { epoch, .. } => Some(*epoch) == source,
            Endpoint::Sink { id, .. } => Some(*id) == sink,
        });
        let Some(end) = found else { return Ok(()) };
        end.stream().check_refusal()?;
        *stream = end.stream().number.load(Ordering::Acquire);
        Ok(())
    }

    /// Once everything is reopened, what the application asked meanwhile is sent.
    pub(super) fn check_ready(&mut self) {
        if self.ready || !self.internal.is_empty() || self.runtime.is_none() {
            return;
        }
        self.ready = true;
        if self.first_hello != 0 && lock(&self.shared.answers).contains_key(&self.first_hello) {
            // The very first hello: the session is only now being opened.
            self.first_hello = 0;
        } else {
            self.shared.event(Event::RuntimeBack);
        }
        for (request, body) in std::mem::take(&mut self.parked) {
            self.ask(request, body);
        }
    }
}
