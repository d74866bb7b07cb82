//! Sessions: an application's connection to the runtime of its host.

use crate::cells::Cells;
use crate::error::{Code, Error, Result};
use crate::fork::{self, Guarded};
use crate::service::Service;
use crate::stream::{Stream, StreamShared};
use crate::tx::Ask;
use insane_shm::counters::Counters;
use insane_shm::memory::SharedMemory;
use insane_wire::control::{self, Limits, to_client, to_runtime};
use insane_wire::id::{Epoch, SessionId, SinkId, valid_name};
use insane_wire::qos::{EffectiveQos, Qos};
use rustix::event::EventfdFlags;
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Cells of a session's counter memory: one per source and one per flow, at either end.
const CELLS: u32 = 16_384;

/// How long an answer of the runtime is waited for; a restart of it fits in.
const PATIENCE: Duration = Duration::from_secs(5);

/// A lock whose holder cannot leave a half-made value behind: poisoning is of no interest.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub(crate) fn unexpected(body: &to_client::Body) -> Error {
    Error::new(Code::Protocol, format!("unexpected answer {body:?}"))
}

/// What the runtime is told again after its restart.
#[derive(Debug, Clone)]
pub(crate) enum Endpoint {
    Source { stream: Arc<StreamShared>, channel: control::Channel, epoch: Epoch, number: u32 },
    Sink { stream: Arc<StreamShared>, channel: control::Channel, id: SinkId, observer: bool },
}

/// What the application asks of the service thread. Sources are named by their numbers: by then their places may be others'.
#[derive(Debug)]
pub(crate) enum Command {
    Ask(u64, to_runtime::Body),
    /// Nobody waits for the answer any more.
    Forget(u64),
    CloseSink(Arc<StreamShared>, SinkId),
    CloseSource(Arc<StreamShared>, u32, Epoch),
    ShareSegment(Arc<StreamShared>),
    GiveUp(Arc<StreamShared>, u32, Vec<usize>),
    AskWhoLags(Arc<StreamShared>, Vec<Ask>),
    /// Whether the service thread is to listen to them.
    EnsureBells(Arc<StreamShared>, bool),
    Shutdown,
}

/// Something that the library tells the application of its own accord.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The runtime was lost; local channels go on and the library reconnects.
    RuntimeLost,
    /// The runtime is back and everything is reopened that it does not refuse ([`Self::StreamRefused`]).
    RuntimeBack,
    /// The effective QoS of a stream towards a peer changed; towards `local`, it or an end of it is open again that was refused.
    QosChanged {
        /// The stream's name.
        stream: String,
        /// What is served now.
        effective: EffectiveQos,
        /// What this session emits on the stream has moved to that datapath, for the host that `effective` names as its peer: for how long
        /// at most messages waited for that, in steps of a microsecond. When a move begins it is `None`, and so it is of any other change;
        /// then this event comes again with the pause.
        moved: Option<Duration>,
    },
    /// A peer session is gone.
    PeerLost {
        /// Its application's name.
        app: String,
    },
    /// A peer broke the protocol of a link; the links with it were closed.
    PeerBroken {
        /// Its application's name.
        app: String,
        /// What it did.
        text: String,
    },
    /// A reliable source gave a sink up that made no room before the deadline.
    SinkGivenUp {
        /// The stream's name.
        stream: String,
        /// The sink.
        sink: SinkId,
    },
    /// A stream under `strict` asks for more than this host and another have in common: sources and sinks of the two do not meet, until
    /// a [`Self::QosChanged`] says that they do.
    QosRefused {
        /// The stream's name.
        stream: String,
        /// The host as its `peer`, and the reasons; its datapath is `none`.
        effective: EffectiveQos,
    },
    /// The runtime does not open a stream again after its restart, or a source or sink of it. Calls on what is refused fail with the
    /// reason where they would wait.
    StreamRefused {
        /// The stream's name.
        stream: String,
        /// The source or sink, in words; empty if it is the whole stream.
        end: String,
        /// The reason.
        error: Error,
        /// Whether it is tried again; if not, the sources and sinks that this is about are closed.
        retried: bool,
    },
}

impl Event {
    /// The numbers and names of all events, for bindings that list them.
    pub const ALL: &'static [(u32, &'static str)] = &[
        (1, "RuntimeLost"),
        (2, "RuntimeBack"),
        (3, "QosChanged"),
        (4, "PeerLost"),
        (5, "PeerBroken"),
        (6, "SinkGivenUp"),
        (7, "QosRefused"),
        (8, "StreamRefused"),
    ];

    /// Its number, the same in Rust, C and Python.
    #[must_use]
    pub const fn number(&self) -> u32 {
        match self {
            Self::RuntimeLost => 1,
            Self::RuntimeBack => 2,
            Self::QosChanged { .. } => 3,
            Self::PeerLost { .. } => 4,
            Self::PeerBroken { .. } => 5,
            Self::SinkGivenUp { .. } => 6,
            Self::QosRefused { .. } => 7,
            Self::StreamRefused { .. } => 8,
        }
    }

    /// Its name, the same in Rust, C and Python.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        Self::ALL[self.number() as usize - 1].1
    }
}

impl Event {
    /// The stream that it is about, if it is about one.
    #[must_use]
    pub fn stream(&self) -> Option<&str> {
        match self {
            Self::QosChanged { stream, .. }
            | Self::SinkGivenUp { stream, .. }
            | Self::QosRefused { stream, .. }
            | Self::StreamRefused { stream, .. } => Some(stream),
            _ => None,
        }
    }

    /// The host that it is about, or `local`, if what a stream gets has changed or was refused.
    #[must_use]
    pub fn peer(&self) -> Option<&str> {
        match self {
            Self::QosChanged { effective, .. } | Self::QosRefused { effective, .. } => Some(&effective.peer),
            _ => None,
        }
    }

    /// The pause of a move that is over ([`Self::QosChanged`]).
    #[must_use]
    pub const fn moved(&self) -> Option<Duration> {
        match self {
            Self::QosChanged { moved, .. } => *moved,
            _ => None,
        }
    }
}

/// What has happened, in words for an operator.
impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::RuntimeLost => f.write_str("the runtime is lost; local channels go on and the library reconnects"),
            Self::RuntimeBack => f.write_str("the runtime is back and everything is reopened that it does not refuse"),
            Self::QosChanged { stream, effective: e, moved } => {
                let qos = e.qos.unwrap_or_default().canonical();
                write!(f, "stream `{stream}` towards {}: {}/{} {qos}", e.peer, e.datapath, e.transport)?;
                if let Some(moved) = moved {
                    write!(f, ", moved in {} us", moved.as_micros())?;
                }
                if e.reasons.is_empty() { Ok(()) } else { write!(f, ": {}", e.reasons.join("; ")) }
            }
            Self::PeerLost { app } => write!(f, "the session of `{app}` is gone"),
            Self::PeerBroken { app, text } => write!(f, "`{app}` broke the protocol and was cut off: {text}"),
            Self::SinkGivenUp { stream, sink } => {
                write!(f, "stream `{stream}` gave sink {sink} up: it made no room before the deadline")
            }
            Self::QosRefused { stream, effective: e } => {
                write!(f, "stream `{stream}` does not go to {}: {}", e.peer, e.reasons.join("; "))
            }
            Self::StreamRefused { stream, end, error, retried } => {
                let what = if end.is_empty() { "it".into() } else { end.clone() };
                let then = if *retried { "it is tried again" } else { "what was open of it is closed" };
                write!(f, "stream `{stream}`: the runtime does not open {what} again, {error}; {then}")
            }
        }
    }
}

/// What handles, streams and the service thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: SessionId,
    pub(crate) app: String,
    pub(crate) wanted_domain: String,
    pub(crate) socket: PathBuf,
    pub(crate) counter_memory: Arc<SharedMemory>,
    cells: Mutex<Cells>,
    pub(crate) commands: Mutex<VecDeque<Command>>,
    pub(crate) bell: Guarded,
    pub(crate) answers: Mutex<HashMap<u64, Result<to_client::Body>>>,
    next_request: AtomicU64,
    version: Mutex<u64>,
    changed: Condvar,
    pub(crate) welcome: Mutex<Option<control::Welcome>>,
    limits: Mutex<Limits>,
    pub(crate) streams: Mutex<Vec<Arc<StreamShared>>>,
    /// Held by who makes a segment for a stream, and taken before the lock of any.
    pub(crate) growing: Mutex<()>,
    /// What all segments of the session's streams together take, in bytes. Changed with the lock of the stream.
    pub(crate) segment_bytes: Arc<AtomicU64>,
    pub(crate) endpoints: Mutex<Vec<Endpoint>>,
    events: Mutex<VecDeque<Event>>,
    /// Sleeps are to end, and the service thread sees to it.
    pub(crate) rousing: AtomicBool,
    pub(crate) closed: AtomicBool,
    /// How many connections with a runtime have ended.
    pub(crate) runtimes: AtomicU64,
    /// Segments of peers that are mapped.
    pub(crate) maps: AtomicUsize,
    forks: u32,
}

impl Shared {
    /// One without a runtime or a service thread.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Arc<Self> {
        let memory = SharedMemory::create("insane-counters", insane_shm::counters::bytes(4), false, false);
        let memory = Arc::new(memory.expect("memory"));
        let counters = Counters::create(memory.clone(), 4).expect("counters");
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        Arc::new(Self::new(("test".into(), String::new(), PathBuf::new()), memory, counters, bell))
    }

    fn new(
        (app, wanted_domain, socket): (String, String, PathBuf),
        counter_memory: Arc<SharedMemory>,
        counters: Counters,
        bell: rustix::fd::OwnedFd,
    ) -> Self {
        Self {
            id: SessionId::random(),
            app,
            wanted_domain,
            socket,
            counter_memory,
            cells: Mutex::new(Cells::new(counters)),
            commands: Mutex::new(VecDeque::new()),
            bell: Guarded::new(bell),
            answers: Mutex::new(HashMap::new()),
            next_request: AtomicU64::new(1),
            version: Mutex::new(0),
            changed: Condvar::new(),
            welcome: Mutex::new(None),
            limits: Mutex::new(Limits::default()),
            streams: Mutex::new(Vec::new()),
            growing: Mutex::new(()),
            segment_bytes: Arc::default(),
            endpoints: Mutex::new(Vec::new()),
            events: Mutex::new(VecDeque::new()),
            closed: AtomicBool::new(false),
            runtimes: AtomicU64::new(0),
            rousing: AtomicBool::new(false),
            maps: AtomicUsize::new(0),
            forks: fork::count(),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.forks != fork::count() {
            return Err(Code::Forked.into());
        }
        if self.closed.load(Ordering::Acquire) { Err(Code::Closed.into()) } else { Ok(()) }
    }

    pub(crate) fn limits(&self) -> Limits {
        *lock(&self.limits)
    }

    pub(crate) fn domain(&self) -> String {
        lock(&self.welcome).as_ref().map(|w| w.domain.clone()).unwrap_or_default()
    }

    pub(crate) fn cells(&self) -> MutexGuard<'_, Cells> {
        lock(&self.cells)
    }

    pub(crate) fn remember(&self, endpoint: Endpoint) {
        lock(&self.endpoints).push(endpoint);
    }

    pub(crate) fn command(&self, command: Command) {
        lock(&self.commands).push_back(command);
        self.ring();
    }

    pub(crate) fn ring(&self) {
        // Fails only when the count is at its top, and then the service thread is awake.
        let _ = rustix::io::write(self.bell.as_fd(), &1u64.to_ne_bytes());
    }

    /// Tells everyone who waits for a change to look again. Not to be called with a stream's lock held.
    pub(crate) fn notify(&self) {
        *lock(&self.version) += 1;
        self.changed.notify_all();
    }

    /// Waits until `done`, at most `timeout`.
    pub(crate) fn wait_until(&self, timeout: Duration, mut done: impl FnMut() -> bool) -> bool {
        let began = Instant::now();
        loop {
            let seen = *lock(&self.version);
            if done() {
                return true;
            }
            let mut version = lock(&self.version);
            while *version == seen {
                // No end is computed: the sum of now and a very long time would be more than an instant can be.
                let left = timeout.saturating_sub(began.elapsed());
                if left.is_zero() {
                    return false;
                }
                version = self.changed.wait_timeout(version, left).map_or_else(|e| e.into_inner().0, |(v, _)| v);
            }
        }
    }

    /// Asks the runtime and waits for its answer.
    pub(crate) fn ask(&self, body: to_runtime::Body) -> Result<to_client::Body> {
        self.check()?;
        let request = self.next_request();
        self.command(Command::Ask(request, body));
        let mut answer = None;
        self.wait_until(PATIENCE, || {
            answer = lock(&self.answers).remove(&request);
            answer.is_some() || self.closed.load(Ordering::Acquire)
        });
        match answer {
            Some(answer) => answer,
            None if self.closed.load(Ordering::Acquire) => Err(Code::Closed.into()),
            None => {
                self.command(Command::Forget(request));
                Err(Error::new(Code::RuntimeLost, "no answer within 5 s"))
            }
        }
    }

    pub(crate) fn next_request(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn event(&self, event: Event) {
        let mut events = lock(&self.events);
        // Bounded: who never asks loses the oldest.
        if events.len() == 1024 {
            events.pop_front();
        }
        events.push_back(event);
    }

    pub(crate) fn welcomed(&self, welcome: control::Welcome) {
        if let Some(limits) = welcome.limits {
            *lock(&self.limits) = limits;
        }
        *lock(&self.welcome) = Some(welcome);
        let streams = lock(&self.streams).clone();
        streams.iter().for_each(|stream| stream.share_anew());
    }

    pub(crate) fn close_sink(&self, stream: &Arc<StreamShared>, index: usize, id: SinkId) {
        lock(&self.endpoints).retain(|e| !matches!(e, Endpoint::Sink { id: i, .. } if *i == id));
        self.command(Command::CloseSink(stream.clone(), id));
        self.wait_until(Duration::from_millis(500), || stream.rx.visit().sinks[index].is_none());
    }

    pub(crate) fn close_source(&self, stream: &Arc<StreamShared>, number: u32, epoch: Epoch) {
        self.command(Command::CloseSource(stream.clone(), number, epoch));
        self.wait_until(Duration::from_millis(500), || stream.tx.visit().source(number).is_none());
    }

    /// Waits until all the stream's links have mapped a segment that they were told of, at most a second.
    pub(crate) fn await_mapped(&self, stream: &Arc<StreamShared>, number: u16) {
        self.wait_until(Duration::from_secs(1), || {
            stream.tx.visit().links.iter().flatten().all(|l| l.producer.is_mapped(number))
        });
    }

    /// Tells the stream's links which segments there are and which are gone. Does not wait.
    pub(crate) fn tell_segments(&self, stream: &Arc<StreamShared>) {
        self.command(Command::ShareSegment(stream.clone()));
    }

    pub(crate) fn give_up(&self, stream: &Arc<StreamShared>, source: u32, links: &[usize]) {
        self.command(Command::GiveUp(stream.clone(), source, links.to_vec()));
        self.wait_until(Duration::from_millis(500), || {
            let tx = stream.tx.visit();
            let routes = tx.source(source).map(|s| &s.routes);
            routes.is_none_or(|r| !r.iter().any(|r| links.contains(&r.link)))
        });
    }

    /// Asks the consumers of links who holds a source up. Does not wait.
    pub(crate) fn ask_who_lags(&self, stream: &Arc<StreamShared>, asks: Vec<Ask>) {
        self.command(Command::AskWhoLags(stream.clone(), asks));
    }

    pub(crate) fn ensure_bells(&self, stream: &Arc<StreamShared>, watched: bool) {
        let has = |l: &crate::rx::RxLink| l.is_silent() || l.bell.is_some() && (l.watched || !watched);
        let all = |s: &StreamShared| s.rx.visit().links.iter().flatten().all(has);
        if !all(stream) {
            self.command(Command::EnsureBells(stream.clone(), watched));
            self.wait_until(Duration::from_secs(1), || all(stream));
        }
    }
}

/// How to open a session.
#[derive(Debug, Clone)]
pub struct SessionBuilder {
    app: String,
    domain: String,
    socket: Option<PathBuf>,
}

impl SessionBuilder {
    /// The domain to join; the runtime's default without it.
    #[must_use]
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = domain.into();
        self
    }

    /// The runtime's socket; found by itself without it ([`find_socket`]).
    #[must_use]
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(path.into());
        self
    }

    /// Opens the session. Blocks for the answer of the runtime, at most five seconds.
    ///
    /// # Errors
    /// [`Code::RuntimeNotFound`], [`Code::NotPermitted`], [`Code::VersionMismatch`], [`Code::InvalidName`],
    /// [`Code::QuotaExceeded`], [`Code::System`].
    pub fn open(self) -> Result<Session> {
        if !valid_name(&self.app) {
            return Err(Error::new(Code::InvalidName, format!("application `{}`", self.app)));
        }
        if !self.domain.is_empty() && !valid_name(&self.domain) {
            return Err(Error::new(Code::InvalidName, format!("domain `{}`", self.domain)));
        }
        let (socket, connection) = crate::service::connect_first(self.socket.as_deref())?;
        let memory = SharedMemory::create("insane-counters", insane_shm::counters::bytes(CELLS), false, false)?;
        let memory = Arc::new(memory);
        let counters = Counters::create(memory.clone(), CELLS)?;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::new(Code::System, format!("eventfd: {e}")))?;
        let shared = Arc::new(Shared::new((self.app, self.domain, socket), memory, counters, bell));
        let (service, hello) = Service::new(shared.clone(), connection)?;
        let thread = std::thread::Builder::new()
            .name("insane-service".into())
            .spawn(move || service.run())
            .map_err(|e| Error::new(Code::System, e.to_string()))?;
        let session = Session { shared, thread: Some(thread) };
        let mut answer = None;
        session.shared.wait_until(PATIENCE, || {
            answer = lock(&session.shared.answers).remove(&hello);
            answer.is_some()
        });
        match answer {
            Some(Ok(_)) => Ok(session),
            Some(Err(e)) => Err(e),
            None => Err(Error::new(Code::Timeout, "the runtime did not answer within 5 s")),
        }
    }
}

/// One application's connection to the runtime of its host. Usable from any thread; dropping it closes it.
#[derive(Debug)]
pub struct Session {
    pub(crate) shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Session {
    /// Opens a session with the runtime of this host under the application's name.
    ///
    /// # Errors
    /// As [`SessionBuilder::open`].
    pub fn open(app: impl Into<String>) -> Result<Self> {
        Self::builder(app).open()
    }

    /// A session to be opened with more than a name.
    pub fn builder(app: impl Into<String>) -> SessionBuilder {
        SessionBuilder { app: app.into(), domain: String::new(), socket: None }
    }

    /// The session's identity.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.shared.id
    }

    /// The domain that was joined.
    #[must_use]
    pub fn domain(&self) -> String {
        self.shared.domain()
    }

    /// How often its own thread has looked after it: for tests.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        *lock(&self.shared.version)
    }

    /// Opens the stream of this QoS that has no other name. Applications that ask for the same QoS share it.
    ///
    /// # Errors
    /// As [`Self::stream_with`].
    pub fn stream(&self, qos: Qos) -> Result<Stream> {
        self.stream_with("", qos, false)
    }

    /// Opens a stream by name. Blocks for the answer of the runtime.
    ///
    /// # Errors
    /// As [`Self::stream_with`].
    pub fn stream_named(&self, name: &str, qos: Qos) -> Result<Stream> {
        self.stream_with(name, qos, false)
    }

    /// Opens a stream; an empty name stands for the one made of the QoS. Under `strict` a QoS that cannot be served is
    /// refused rather than downgraded: for all of the session's handles on the stream, from the first that asks for it on.
    ///
    /// # Errors
    /// [`Code::InvalidName`], [`Code::QosConflict`], [`Code::QosUnavailable`], [`Code::QuotaExceeded`],
    /// [`Code::RuntimeLost`], [`Code::Forked`].
    pub fn stream_with(&self, name: &str, qos: Qos, strict: bool) -> Result<Stream> {
        self.shared.check()?;
        if !name.is_empty() && !valid_name(name) {
            return Err(Error::new(Code::InvalidName, format!("stream `{name}`")));
        }
        let full = if name.is_empty() { qos.unnamed_stream() } else { name.to_owned() };
        let known = lock(&self.shared.streams).iter().find(|s| s.name == full).cloned();
        if let Some(shared) = known {
            if shared.qos != qos {
                return Err(Error::new(Code::QosConflict, format!("stream `{full}`")));
            }
            shared.check_refusal()?;
            if !strict || shared.strict.load(Ordering::Relaxed) {
                return Ok(Stream { shared });
            }
        }
        let open = control::OpenStream { name: name.to_owned(), qos: Some(qos), strict };
        loop {
            let runtimes = self.shared.runtimes.load(Ordering::Acquire);
            let opened = match self.shared.ask(to_runtime::Body::OpenStream(open.clone()))? {
                to_client::Body::StreamOpened(opened) => opened,
                other => return Err(unexpected(&other)),
            };
            let mut streams = lock(&self.shared.streams);
            // The number may be that of a runtime that is gone, and the next was not told of a stream that is not among these.
            if self.shared.runtimes.load(Ordering::Acquire) == runtimes {
                if let Some(shared) = streams.iter().find(|s| s.name == opened.name).cloned() {
                    shared.strict.fetch_or(strict, Ordering::Relaxed);
                    return Ok(Stream { shared });
                }
                let shared = Arc::new(StreamShared::new(self.shared.clone(), opened.name, qos, strict, opened.stream));
                if let Some(ceiling) = opened.ceiling {
                    lock(&shared.effective).insert("local".into(), ceiling);
                }
                streams.push(shared.clone());
                return Ok(Stream { shared });
            }
        }
    }

    /// A report of the runtime as JSON text: `status` or `doctor`. Blocks for the answer.
    ///
    /// # Errors
    /// [`Code::RuntimeLost`], [`Code::InvalidArgument`], [`Code::Forked`].
    pub fn report(&self, what: &str) -> Result<String> {
        match self.shared.ask(to_runtime::Body::Query(control::Query { what: what.to_owned() }))? {
            to_client::Body::Report(report) => Ok(report.json),
            other => Err(unexpected(&other)),
        }
    }

    /// Takes the events that came since the last call. Never blocks.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        lock(&self.shared.events).drain(..).collect()
    }

    /// Takes the oldest event that was not taken yet. Never blocks.
    #[must_use]
    pub fn next_event(&self) -> Option<Event> {
        lock(&self.shared.events).pop_front()
    }

    /// The counts of this session's flows, as anyone else sees them too. None in a forked child, which has no part of them.
    #[must_use]
    pub fn counts(&self) -> Vec<insane_shm::counters::CellCounts> {
        if self.shared.forks != fork::count() {
            return Vec::new();
        }
        self.shared.cells().counters.live()
    }

    /// Closes the session in good order. Handles that are left return [`Code::Closed`].
    pub fn close(mut self) {
        self.shut();
    }

    fn shut(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.shared.forks != fork::count() {
            // A child has no service thread; its handle is the parent's.
            std::mem::forget(thread);
            return;
        }
        self.shared.command(Command::Shutdown);
        let _ = thread.join();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shut();
    }
}

/// Where the runtime's socket is looked for, in order: `INSANE_SOCKET` alone if it is set, else the user's runtime
/// directory, then the system's path. Never an abstract name.
#[must_use]
pub fn find_socket() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("INSANE_SOCKET").filter(|p| !p.is_empty()) {
        return vec![PathBuf::from(path)];
    }
    let user = std::env::var_os("XDG_RUNTIME_DIR").filter(|p| !p.is_empty());
    let user = user.map(|dir| Path::new(&dir).join("insane/insaned.sock"));
    user.into_iter().chain([PathBuf::from("/run/insane/insaned.sock")]).collect()
}
