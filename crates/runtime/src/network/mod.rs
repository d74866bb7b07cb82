//! The network side of the runtime: channels between hosts.
//!
//! Purpose: one thread that carries what local sources emit to the hosts that have sinks, and what arrives to the local sinks.
//! On the shared-memory side it is a session like any other, one per domain: the core matches the sinks and sources of other
//! hosts with those of this one, and the thread speaks the peers' protocol with the sessions (`insane_wire::peer`). Towards other
//! hosts it is an `insane_transport::Path` each and datapath: kernel UDP, over which they find and hear each other, and what both
//! have beside it. Non-purpose: what is matched with what is the core's;
//! what is sent again and when is the path's.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `hub` | the thread: its loop, its timers, its sleep |
//! | `ports` | the datapaths: opened, or absent for a reason |
//! | `reopen` | what becomes of them when they go, and how they come back |
//! | `host` | one other host: its paths, the flows to and from it |
//! | `lanes`, `moves` | the paths to a host; which stream takes which, and how it moves |
//! | `damping` | when streams come back to what was lost |
//! | `domain` | one domain: pairs with sessions, segments, counters |
//! | `matches` | which flows to other hosts sessions may open |
//! | `intake` | links from local sources: what is under way to other hosts |
//! | `egress` | what goes first |
//! | `lag` | which hosts hold a reliable source up |
//! | `poller` | all of that without a thread |
//! | `outlet` | links to local sinks: what has arrived |
//! | `pages` | what takes long about memory, beside the thread |
//! | `scatter` | large messages that stay in the frames in which they arrived |
//! | `directory` | who has which sinks |
//! | `long_words` | what another host says in more than one frame |
//! | `threads` | which threads there are, and on which core each is |
//! | `discovery` | which hosts there are |
//! | `stand` | the thread's state between a made-up host and made-up sessions, for tests and fuzzing |

mod account;
mod addresses;
mod alone;
mod burst;
mod control;
mod damping;
mod directory;
// Without Zenoh nobody calls much of it.
#[cfg_attr(not(feature = "zenoh"), allow(dead_code))]
mod discovery;
mod domain;
mod egress;
mod events;
mod gather;
mod host;
mod hub;
mod intake;
mod kept;
mod lag;
mod lanes;
mod later;
mod links;
mod long_words;
mod marked;
mod matches;
mod memory;
mod moves;
mod order;
mod outlet;
mod pages;
mod patience;
mod poller;
mod ports;
mod reopen;
mod roster;
mod scatter;
#[cfg(any(test, feature = "fuzz"))]
pub mod stand;
mod threads;
mod words;

#[cfg(feature = "fuzz")]
pub use discovery::heard;
pub use poller::Poller;
pub(crate) use ports::Over;
pub(crate) use reopen::Openers;

use crate::config::Config;
use crate::core::{Action, Conn, Core, Credentials};
use crate::network::pages::Pages;
use crate::network::threads::{Thread, Threads};
use crate::rebind::Asked;
use crate::watch::Watch;
use insane_datapath::tap;
use insane_datapath::thread::{Bell, pin};
use insane_wire::control::{self as session, ToClient, ToRuntime, to_client, to_runtime};
use insane_wire::host as wire;
use insane_wire::id::{Epoch, SessionId, SinkId};
use insane_wire::qos::{EffectiveQos, Qos};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// What the server tells the network thread.
#[derive(Debug)]
pub(crate) enum ToNetwork {
    /// What a session is told, with its descriptor.
    Message(Conn, ToClient, Option<OwnedFd>),
    /// A local session has a sink.
    Announce(wire::Announce),
    /// It is closed.
    Withdraw(SinkId),
    /// Nobody has a stream of a domain open any more: what did not fit it may fit what comes.
    StreamClosed(String, String),
    /// A datapath is open again, or at last: its ports with their numbers, and what was chosen.
    Opened(Vec<(usize, ports::Port)>, String),
    /// Ports of these numbers could not be opened, and why, if that is not what was said last.
    NotOpened(Vec<usize>, String),
    /// The directory has found a host.
    Found(SocketAddr),
    /// The directory has it no more.
    Gone(SocketAddr),
    /// Streams are to go over another datapath.
    Rebind(Conn, u64, Asked),
    /// To end.
    Stop,
}

/// What the network thread asks of the server.
#[derive(Debug)]
pub(crate) enum FromNetwork {
    /// A sink of another host takes part.
    OpenSink(Conn, u64, wire::Announce),
    /// A source of another host takes part.
    OpenSource(Conn, u64, wire::Source),
    /// What a session asks.
    Request(Conn, ToRuntime),
    /// What a session's stream gets towards a host.
    Effective(SessionId, String, EffectiveQos, Option<u64>),
    /// No host has this name any more.
    HostForgotten(String),
    /// A host of this name refuses a sink of this one, for these reasons.
    Refused(SinkId, String, Vec<String>),
    /// What was refused under `strict` of a source here and a sink of another host, whose session that is, can be had now.
    Again(Conn, Epoch, SinkId),
    /// A host that had refused a sink of this one serves its stream.
    Served(SinkId, EffectiveQos),
    /// What is answered to one who has asked beside the sessions.
    Answer(Conn, ToClient),
    /// The pair of a domain's session with this one has ended, for want of something here.
    PairLost(Conn, SessionId),
}

impl FromNetwork {
    /// Asks the core, which refuses what it refuses any session.
    fn apply(self, core: &mut Core, who: Credentials) -> Vec<Action> {
        match self {
            Self::OpenSink(conn, request, sink) => {
                let qos = sink.qos.unwrap_or_default();
                open(core, (conn, who), request, &sink.stream, qos, |stream| {
                    to_runtime::Body::OpenSink(session::OpenSink {
                        stream,
                        channel: Some(channel_of(sink.channel, sink.name.clone())),
                        sink: sink.sink.clone(),
                        observer: sink.observer,
                    })
                })
            }
            Self::OpenSource(conn, request, source) => {
                let qos = source.qos.unwrap_or_default();
                open(core, (conn, who), request, &source.stream, qos, |stream| {
                    to_runtime::Body::OpenSource(session::OpenSource {
                        stream,
                        channel: Some(channel_of(source.channel, source.name.clone())),
                        epoch: source.epoch.clone(),
                    })
                })
            }
            Self::Request(conn, message) => core.request(conn, who, message, |_| true),
            Self::Effective(session, stream, effective, moved_us) => {
                core.effective(session, &stream, effective, moved_us)
            }
            Self::HostForgotten(host) => {
                core.forget_host(&host);
                Vec::new()
            }
            Self::Refused(sink, host, reasons) => core.refused(sink, &host, reasons),
            Self::Again(conn, epoch, sink) => core.match_again(conn, epoch, sink),
            Self::Served(sink, effective) => core.served(sink, effective),
            Self::Answer(conn, message) => vec![Action::Send(conn, message)],
            Self::PairLost(conn, session) => core.pair_lost(conn, session).into_iter().collect(),
        }
    }
}

/// Opens a stream for the network's session and then what is in it.
fn open(
    core: &mut Core,
    (conn, who): (Conn, Credentials),
    request: u64,
    stream: &str,
    qos: Qos,
    body: impl FnOnce(u32) -> to_runtime::Body,
) -> Vec<Action> {
    let open = session::OpenStream { name: stream.to_owned(), qos: Some(qos), strict: false };
    let open = ToRuntime { request, body: Some(to_runtime::Body::OpenStream(open)) };
    let mut actions = core.request(conn, who, open, |_| true);
    let number = actions.iter().find_map(|a| match a {
        Action::Send(c, ToClient { body: Some(to_client::Body::StreamOpened(o)), .. }) if *c == conn => Some(o.stream),
        _ => None,
    });
    if let Some(number) = number {
        let message = ToRuntime { request, body: Some(body(number)) };
        actions.extend(core.request(conn, who, message, |_| true));
    }
    actions
}

/// The network side could not start.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The datapath.
    #[error("network.listen: {0}")]
    Datapath(#[from] insane_datapath::DatapathError),
    /// Memory or descriptors.
    #[error(transparent)]
    Memory(#[from] insane_shm::ShmError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The scheduler.
    #[error("network.scheduler: {0}")]
    Scheduler(#[from] insane_traffic::SpecError),
    /// An interface that is to be scouted on.
    #[error("network.directory.interfaces: {name}: {source}")]
    Scouting {
        /// Its name.
        name: String,
        /// What is wrong with it.
        source: std::io::Error,
    },
    /// A directory is asked for, and this build has none.
    #[error("network.directory: this build is without Zenoh; name the hosts in network.peers")]
    NoDirectory,
    /// The operating system refused something.
    #[error("network: {0}")]
    System(#[from] std::io::Error),
}

impl From<rustix::io::Errno> for NetworkError {
    fn from(e: rustix::io::Errno) -> Self {
        Self::System(e.into())
    }
}

/// The name of the network's own thread, in reports.
const OWN: &str = "network";

/// The server's end of the network thread.
#[derive(Debug)]
pub(crate) struct Network {
    to: Sender<ToNetwork>,
    to_bell: Bell,
    from: Receiver<FromNetwork>,
    from_bell: Bell,
    report: Arc<Mutex<serde_json::Value>>,
    credentials: Credentials,
    domains: Vec<(Conn, insane_shm::counters::Counters)>,
    thread: Option<JoinHandle<()>>,
    threads: Vec<Thread>,
    discovery: Option<discovery::Discovery>,
    states: ports::States,
    has_begun: Arc<AtomicBool>,
}

/// The network side has it until it has begun: until each datapath is open, or was tried, or takes long.
pub(crate) struct Begins {
    has_begun: Arc<AtomicBool>,
    bell: Bell,
    _to_starter: Sender<()>,
}

impl Drop for Begins {
    fn drop(&mut self) {
        self.has_begun.store(true, Ordering::Release);
        self.bell.ring();
    }
}

/// A network side: the server's end, what polls it if no thread does, and who opens datapaths, to be ended after the rest.
pub(crate) struct Started {
    pub(crate) network: Network,
    pub(crate) poller: Option<Poller>,
    pub(crate) openers: Openers,
    /// It is cut off when the network side has begun.
    pub(crate) begun: Receiver<()>,
}

impl Network {
    /// Opens the datapaths, or begins to, adds the network's sessions to the core and starts the thread, unless it is to be polled. `None` without a
    /// `[network]` section.
    pub(crate) fn start(
        config: &Config,
        core: &mut Core,
        host: &str,
        next: &mut Conn,
        over: &Over,
        (polled, watch): (bool, &Watch),
    ) -> Result<Option<Started>, NetworkError> {
        let Some(settings) = config.network.clone() else { return Ok(None) };
        let (polling, mut threads) = Threads::start(&settings, watch)?;
        let runs = polling.rest(&settings);
        let ports::All { ports, states, openings } =
            ports::open(&settings, config.domains().len() == 1, over, &polling)?;
        let states = Arc::new(Mutex::new(states));
        let credentials = Credentials {
            pid: Some(std::process::id()),
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
        };
        // Not by the network's thread, which may have a core of its own.
        let pages = Pages::start()?;
        let mut domains = Vec::new();
        for name in config.domains().into_keys() {
            let conn = *next;
            *next += 1;
            core.attach(conn, &name, credentials);
            domains.push(domain::Domain::new(conn, name, config, pages.clone())?);
        }
        let counters = domains.iter().map(|d| (d.conn, d.counters())).collect();
        let (to, inbox) = channel();
        let (outbox, from) = channel();
        let (to_bell, from_bell) = (Bell::new()?, Bell::new()?);
        let report = Arc::new(Mutex::new(serde_json::Value::Null));
        // Not by this thread, which is to serve, nor by the network's: opening blocks.
        let (openers, tried) = Openers::start(openings, &states, &(to.clone(), to_bell.clone()))?;
        let ends =
            hub::Ends { inbox, bell: to_bell.clone(), outbox, out_bell: from_bell.clone(), report: report.clone() };
        let run = insane_wire::id::SessionId::random().0;
        let discovery = discovery::Discovery::start(&settings, run, (to.clone(), to_bell.clone()))?;
        let core = settings.core;
        let orders = openers.orders();
        let mut hub = hub::Hub::new(settings, (host.to_owned(), run), (ports, states.clone(), orders), domains, ends)?;
        // Whoever asks before the thread has had its first turn gets a report, too.
        hub.publish();
        let has_begun = Arc::new(AtomicBool::new(false));
        let (to_starter, begun) = channel();
        let begins = Begins { has_begun: has_begun.clone(), bell: from_bell.clone(), _to_starter: to_starter };
        let (thread, poller, own) = if polled {
            (None, Some(Poller::new(hub, tried, begins)), Thread::of_owner(OWN, runs, core))
        } else {
            let ((tell, told), watch) = (channel(), watch.clone());
            let thread = std::thread::Builder::new().name("insane-network".into()).spawn(move || {
                // Who asked waits for that.
                let _ = tell.send(usize::try_from(core).map_or(Ok(()), pin));
                watch.run(OWN, || {
                    hub.begin(&tried);
                    drop(begins);
                    hub.run();
                    Ok(())
                });
            })?;
            let pinned = told.recv().map_err(|_| std::io::Error::other("the network thread does not start"))?;
            (Some(thread), None, Thread::new(OWN, runs, core, pinned.as_ref().copied()))
        };
        threads.insert(0, own);
        let domains = counters;
        let network = Self {
            to,
            to_bell,
            from,
            from_bell,
            report,
            credentials,
            domains,
            thread,
            threads,
            discovery,
            states,
            has_begun,
        };
        Ok(Some(Started { network, poller, openers, begun }))
    }

    /// Readable when [`Self::serve`] has something to do.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.from_bell.as_fd()
    }

    /// Whether it speaks to other hosts; before, what it says of datapaths is not the last word. [`Self::fd`] is readable when it begins.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Acquire)
    }

    pub(crate) fn tell(&self, message: ToNetwork) {
        // It ends only when it is told to.
        let _ = self.to.send(message);
        self.to_bell.ring();
    }

    /// Does what the thread has asked of the core.
    pub(crate) fn serve(&self, core: &mut Core) -> Vec<Action> {
        self.from_bell.clear();
        let mut actions = Vec::new();
        while let Ok(message) = self.from.try_recv() {
            actions.extend(message.apply(core, self.credentials));
        }
        actions
    }

    /// What the network has to say in a status report.
    pub(crate) fn report(&self) -> serde_json::Value {
        let mut report = self.report.lock().map(|r| r.clone()).unwrap_or_default();
        if let Some(report) = report.as_object_mut() {
            report.insert("datapaths".into(), self.report_datapaths().into());
            report.insert("threads".into(), self.report_threads().into());
        }
        if let (Some(report), Some(discovery)) = (report.as_object_mut(), &self.discovery) {
            report.insert("directory".into(), discovery.report());
        }
        report
    }

    /// What became of the datapaths that the configuration names, for reports.
    pub(crate) fn report_datapaths(&self) -> Vec<serde_json::Value> {
        self.datapaths().iter().map(ports::State::report).collect()
    }

    /// The threads, for reports.
    pub(crate) fn report_threads(&self) -> Vec<serde_json::Value> {
        self.threads.iter().map(Thread::report).collect()
    }

    /// What became of the datapaths that the configuration names.
    pub(crate) fn datapaths(&self) -> Vec<ports::State> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// By what a datapath is captured, and what is known of it; `None` if none of this kind is open.
    pub(crate) fn tap(&self, kind: &str) -> Option<(tap::Control, ports::State)> {
        let open = |state: ports::State| Some((state.tap.clone()?, state));
        self.datapaths().into_iter().filter(|state| state.via.name() == kind).find_map(open)
    }

    /// The counters of one of the network's sessions.
    pub(crate) fn counters(&self, conn: Conn) -> Option<&insane_shm::counters::Counters> {
        self.domains.iter().find(|(c, _)| *c == conn).map(|(_, counters)| counters)
    }

    /// Ends the thread; the other hosts hear of it.
    pub(crate) fn stop(&mut self) {
        if let Some(mut discovery) = self.discovery.take() {
            discovery.stop();
        }
        self.tell(ToNetwork::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A channel by its name if it has one. The receiving core hashes the name itself; that it comes to the same id was checked
/// when it was heard.
fn channel_of(id: u64, name: Option<String>) -> session::Channel {
    match name {
        Some(name) => session::Channel { name: Some(name), id: None },
        None => session::Channel { name: None, id: Some(id) },
    }
}
