//! The session server: sockets, credentials and descriptors around [`crate::core`]. One thread, asleep unless something
//! happens; nothing it does waits for a client.

use crate::again;
use crate::capture;
use crate::config::{Config, Kind};
use crate::core::{Action, Conn, Core, Credentials};
use crate::doctor;
use crate::knob::Knob;
use crate::network::{Network, NetworkError, Openers, Over, Poller, Started, ToNetwork};
use crate::rebind;
use crate::watch::{self, Watch, attempt};
use insane_datapath::Datapath;
use insane_shm::counters::{CellCounts, CellState, Count, Counters};
use insane_shm::memory::{map_peer, whole_pages};
use insane_shm::socket::{Received, pair, peer_credentials, receive, send};
use insane_shm::steps::{Step, reach};
use insane_wire::control::{self, ToClient, ToRuntime, to_client, to_runtime};
use insane_wire::error::Code;
use insane_wire::qos::EffectiveQos;
use insane_wire::{MAX_CONTROL_BYTES, decode, encode};
use rustix::event::{EventfdFlags, epoll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const STOP: u64 = 0;
const LISTENER: u64 = 1;
const NETWORK: u64 = 2;
const FIRST: u64 = 3;

/// The name of the thread of the sessions, for who asks why it has ended.
const SESSIONS: &str = "sessions";

/// How many messages of one connection are taken before the others have their turn.
const BURST: usize = 64;

/// How many ended counts of sessions that are gone are kept for reports.
const HISTORY: usize = 4096;

/// The most counter cells that a session may bring: as many as the clients make, and some more. Each is read when the session
/// ends and for every report.
const MAX_SESSION_CELLS: u32 = 32_768;

/// How large one part of a report is.
const REPORT_PART: usize = 48 * 1024;

/// The server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is not valid.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// Another runtime serves this socket.
    #[error("another insaned is serving {path}; stop it, or set runtime.socket to another path")]
    Running {
        /// The socket.
        path: PathBuf,
    },
    /// The network side could not start.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The operating system refused something.
    #[error("{what} {path}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

/// A running server. Dropping it without [`Self::stop`] stops it too.
#[derive(Debug)]
pub struct Server {
    socket: PathBuf,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
    watch: Watch,
    openers: Option<Openers>,
}

#[derive(Debug)]
struct Connection {
    fd: OwnedFd,
    credentials: Credentials,
    /// Who has said no hello by then is closed.
    hello_by: Option<Instant>,
    unsent: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    /// What of its socket is waited for.
    watched: epoll::EventFlags,
    /// When to try again what its socket being writable does not say of, and after which pause.
    again: Option<(Instant, Duration)>,
    closing: bool,
    counters: Option<Counters>,
}

struct Shell {
    core: Core,
    epoll: OwnedFd,
    listener: OwnedFd,
    connections: BTreeMap<Conn, Connection>,
    next: Conn,
    started: Instant,
    history: VecDeque<CellCounts>,
    closed_slow: u64,
    knob: Knob,
    network: Option<Network>,
    /// What waits until that has begun.
    waiting: Vec<(Conn, Vec<u8>, Vec<OwnedFd>)>,
}

/// Where the server listens when the configuration does not say.
#[must_use]
pub fn default_socket() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|d| !d.is_empty()) {
        Some(dir) if !rustix::process::getuid().is_root() => Path::new(&dir).join("insane/insaned.sock"),
        _ => PathBuf::from("/run/insane/insaned.sock"),
    }
}

fn host_name(config: &Config) -> String {
    if config.runtime.host.is_empty() {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    } else {
        config.runtime.host.clone()
    }
}

impl Server {
    /// Starts a server on a thread of its own. Datapaths beside kernel UDP are opened by further threads: this blocks for a second at most
    /// until they are, and what takes longer comes when it is open. Sessions are served meanwhile; other hosts are spoken to then.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: Config) -> Result<Self, StartError> {
        Self::start_over(config, |_, datapath| datapath)
    }

    /// As [`Self::start`], with something put over each datapath that was opened, such as `insane_datapath::fault`: here, and on a
    /// thread of the server's over one that is opened later or again. Not called without a `[network]` section.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_over(
        config: Config,
        over: impl FnMut(Kind, Box<dyn Datapath>) -> Box<dyn Datapath> + Send + 'static,
    ) -> Result<Self, StartError> {
        let over: Over = Arc::new(Mutex::new(over));
        Self::start_all(config, &over, false).map(|(server, _)| server)
    }

    /// As [`Self::start`], but the network side has no thread: it does what it does when the caller polls it. `None` without a
    /// `[network]` section. Sessions have a thread all the same, and datapaths those that `network.thread` names; that one ended unasked
    /// [`Self::watch`] says.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_polled(config: Config) -> Result<(Self, Option<Poller>), StartError> {
        let over: Over = Arc::new(Mutex::new(|_, datapath| datapath));
        Self::start_all(config, &over, true)
    }

    fn start_all(config: Config, over: &Over, polled: bool) -> Result<(Self, Option<Poller>), StartError> {
        config.check()?;
        let path =
            if config.runtime.socket.as_os_str().is_empty() { default_socket() } else { config.runtime.socket.clone() };
        let system = |what| {
            let path = path.clone();
            move |e: Errno| StartError::System { what, path, source: e.into() }
        };
        let listener = listen(&path, config.runtime.mode().unwrap_or(0o660))?;
        let mut file = NewSocket(Some(path.clone()));
        let stop =
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system("eventfd for"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll for"))?;
        for (fd, data) in [(stop.as_fd(), STOP), (listener.as_fd(), LISTENER)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN)
                .map_err(system("epoll for"))?;
        }
        let host = host_name(&config);
        let knob = Knob::new(config.wait.cpu_latency_knob);
        let watch = Watch::default();
        let (mut core, mut next) = (Core::new(config.clone(), host.clone()), FIRST);
        let network = Network::start(&config, &mut core, &host, &mut next, over, (polled, &watch))?;
        let (network, mut poller, openers, begun) = match network {
            Some(Started { network, poller, openers, begun }) => (Some(network), poller, Some(openers), Some(begun)),
            None => (None, None, None, None),
        };
        if let Some(network) = &network {
            epoll::add(&epoll, network.fd(), epoll::EventData::new_u64(NETWORK), epoll::EventFlags::IN)
                .map_err(system("epoll for"))?;
        }
        let shell = Shell {
            core,
            epoll,
            listener,
            connections: BTreeMap::new(),
            next,
            started: Instant::now(),
            history: VecDeque::new(),
            closed_slow: 0,
            knob,
            network,
            waiting: Vec::new(),
        };
        tracing::info!(socket = %path.display(), "serving");
        let watched = watch.clone();
        let thread = std::thread::Builder::new()
            .name("insane-sessions".into())
            .spawn(move || watched.run(SESSIONS, || shell.run(&watched)))
            .map_err(|source| StartError::System { what: "thread for", path: path.clone(), source })?;
        file.0 = None;
        // By its thread, or by this one.
        poller.iter_mut().for_each(Poller::begin);
        if let Some(begun) = begun {
            let _ = begun.recv();
        }
        Ok((Self { socket: path, stop, thread: Some(thread), watch, openers }, poller))
    }

    /// The socket that it serves.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Says when it cannot serve any more, as no process that looks healthy should go on without: a daemon ends then; where the server is
    /// part of an application, that stops it and starts another. Local channels go on without it.
    #[must_use]
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Stops: tells the sessions, closes them, removes the socket. Local channels go on without it. Then waits for the threads that open
    /// datapaths, so that nothing is left of those; for five seconds if one does not come back, which then is logged and left alone.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.watch.stop();
            let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
            let _ = thread.join();
            let _ = std::fs::remove_file(&self.socket);
            drop(self.openers.take());
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// The file of a socket, removed if its server does not come to be.
struct NewSocket(Option<PathBuf>);

impl Drop for NewSocket {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Listens on a path; a socket that nobody serves any more is replaced, one that is served is not.
fn listen(path: &Path, mode: u32) -> Result<OwnedFd, StartError> {
    let system = |what: &'static str| {
        let path = path.to_owned();
        move |e: Errno| StartError::System { what, path, source: e.into() }
    };
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(|source| StartError::System {
            what: "directory of",
            path: path.to_owned(),
            source,
        })?;
    }
    let address = SocketAddrUnix::new(path).map_err(system("address"))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let new = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let probe = new().map_err(system("socket for"))?;
    match rustix::net::connect(&probe, &address) {
        Ok(()) | Err(Errno::AGAIN) => return Err(StartError::Running { path: path.to_owned() }),
        // A file that is no socket refuses connections too, and is somebody's.
        Err(Errno::CONNREFUSED) if is_socket(path) => {
            let _ = std::fs::remove_file(path);
        }
        Err(_) => {}
    }
    let serve = |at: &Path| {
        let listener = new()?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(at)?)?;
        rustix::fs::chmod(at, rustix::fs::Mode::from_raw_mode(mode))?;
        rustix::net::listen(&listener, 128)?;
        Ok(listener)
    };
    // Under another name first, so that whoever finds the socket can connect to it; directly where names are too long, or
    // the file system has no links. A link replaces nothing: of two that start at once, one is refused.
    let hidden = path.with_file_name(format!(".{}", std::process::id()));
    let _ = std::fs::remove_file(&hidden);
    let linked = serve(&hidden).and_then(|listener| rustix::fs::link(&hidden, path).map(|()| listener));
    let _ = std::fs::remove_file(&hidden);
    match linked {
        Err(Errno::EXIST) => Err(Errno::ADDRINUSE),
        Err(_) => serve(path),
        ok => ok,
    }
    .map_err(system("listen on"))
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket())
}

impl Shell {
    /// Serves until it is told to stop, or cannot any more; then the sessions are told.
    fn run(mut self, watch: &Watch) -> Result<(), String> {
        let ended = attempt(|| self.serve()).unwrap_or_else(|text| Err(watch::panicked(&text)));
        let failed = watch.failed().or_else(|| Some(watch::ended(SESSIONS, ended.as_ref().err()?)));
        self.stop_all(failed);
        ended
    }

    fn serve(&mut self) -> Result<(), String> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        loop {
            let timeout = self.next_time().map(|at| at.saturating_duration_since(Instant::now()));
            let timeout = timeout.map(|t| t.max(Duration::from_millis(1)));
            let timeout = timeout.and_then(|t| rustix::event::Timespec::try_from(t).ok());
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(format!("epoll: {e}")),
            }
            let ready: Vec<u64> = events.iter().map(|e| e.data.u64()).collect();
            if ready.contains(&STOP) {
                return Ok(());
            }
            for data in ready {
                match data {
                    LISTENER => self.accept(),
                    NETWORK => self.serve_network(),
                    conn => {
                        self.flush(conn);
                        self.read(conn);
                    }
                }
            }
            self.expire();
            self.retry();
            self.knob.want(self.core.has_sinks());
        }
    }

    /// Whether something is about the datapaths and waits until the network side has begun: of each connection the first.
    fn waits_for_network(&self, conn: Conn, message: &ToRuntime) -> bool {
        use to_runtime::Body::{Capture, Query, Rebind};
        matches!(&message.body, Some(Capture(_) | Query(_) | Rebind(_)))
            && self.network.as_ref().is_some_and(|network| !network.has_begun())
            && self.waiting.iter().all(|(other, ..)| *other != conn)
    }

    /// Answers who has asked before the network side had begun.
    fn answer_waiting(&mut self) {
        if self.network.as_ref().is_some_and(Network::has_begun) {
            for (conn, bytes, fds) in std::mem::take(&mut self.waiting) {
                self.message(conn, &bytes, fds);
            }
        }
    }

    fn serve_network(&mut self) {
        let actions = self.network.as_ref().map(|n| n.serve(&mut self.core)).unwrap_or_default();
        actions.into_iter().for_each(|action| self.act(action));
        self.answer_waiting();
    }

    /// Ends the network side, and tells the sessions why: what has failed, if something has. Even if this thread itself has.
    fn stop_all(&mut self, failed: Option<String>) {
        if let Some(network) = &mut self.network {
            network.stop();
        }
        tracing::info!(sessions = self.core.sessions.len(), "stopping");
        let reason = failed
            .map_or_else(|| "the runtime was told to stop".into(), |why| format!("the runtime has failed: {why}"));
        let body = to_client::Body::Stopping(control::Stopping { reason });
        let bytes = encode(&ToClient { request: 0, body: Some(body) });
        for connection in self.connections.values() {
            let _ = send(connection.fd.as_fd(), &bytes, &[]);
        }
    }

    /// When there is something to do though nothing happens.
    fn next_time(&self) -> Option<Instant> {
        let times = |c: &Connection| [c.hello_by, c.again.map(|(at, _)| at)].into_iter().flatten().min();
        self.connections.values().filter_map(times).min()
    }

    fn expire(&mut self) {
        let now = Instant::now();
        let late: Vec<Conn> =
            self.connections.iter().filter(|(_, c)| c.hello_by.is_some_and(|by| now >= by)).map(|(c, _)| *c).collect();
        for conn in late {
            tracing::warn!(conn, "no hello in time");
            self.drop_connection(conn);
        }
    }

    /// Tries again what takes a descriptor, where it is time to.
    fn retry(&mut self) {
        let now = Instant::now();
        let due = |c: &Connection| c.again.is_some_and(|(at, _)| now >= at);
        let due: Vec<Conn> = self.connections.iter().filter(|(_, c)| due(c)).map(|(conn, _)| *conn).collect();
        due.into_iter().for_each(|conn| self.flush(conn));
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..BURST {
            let fd = match rustix::net::accept_with(&self.listener, flags) {
                Ok(fd) => fd,
                Err(Errno::MFILE | Errno::NFILE) => {
                    tracing::error!("no descriptors left: raise the limit (LimitNOFILE)");
                    // The listener stays readable; a pause keeps this from spinning.
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
                Err(_) => return,
            };
            let credentials = match peer_credentials(fd.as_fd()) {
                Ok(who) => Credentials { pid: who.pid, uid: who.uid, gid: who.gid },
                Err(e) => {
                    tracing::error!(error = %e, "a connection whose credentials cannot be had, closed");
                    continue;
                }
            };
            // Twice the sessions: as many again may be on their way in or out. One user cannot take the places of all others.
            let quota = &self.core.config().quota;
            let of_user = self.connections.values().filter(|c| c.credentials.uid == credentials.uid).count();
            if self.connections.len() >= 2 * quota.sessions as usize || of_user >= quota.connections_per_user() {
                tracing::warn!(uid = credentials.uid, "too many connections");
                continue;
            }
            let conn = self.next;
            self.next += 1;
            let data = epoll::EventData::new_u64(conn);
            if epoll::add(&self.epoll, &fd, data, epoll::EventFlags::IN).is_err() {
                continue;
            }
            let wait = Duration::from_millis(self.core.config().runtime.hello_timeout_ms);
            self.connections.insert(
                conn,
                Connection {
                    fd,
                    credentials,
                    hello_by: Some(Instant::now() + wait),
                    unsent: VecDeque::new(),
                    watched: epoll::EventFlags::IN,
                    again: None,
                    closing: false,
                    counters: None,
                },
            );
        }
    }

    fn read(&mut self, conn: Conn) {
        for _ in 0..BURST {
            // Who does not take its answers is asked nothing more: what waits for it stays bounded.
            let taking = |c: &&Connection| !c.closing && c.unsent.is_empty();
            let Some(connection) = self.connections.get(&conn).filter(taking) else { return };
            match receive(connection.fd.as_fd(), MAX_CONTROL_BYTES) {
                Ok(Received::Message(bytes, fds)) => self.message(conn, &bytes, fds),
                Ok(Received::Nothing) => return,
                Ok(Received::End) | Err(_) => return self.drop_connection(conn),
                Ok(Received::Overlong) => {
                    self.core.tally.protocol_errors += 1;
                    return self.drop_connection(conn);
                }
                Ok(Received::Short) => {
                    tracing::error!(conn, "no descriptors left for what a session sent: it begins anew");
                    return self.drop_connection(conn);
                }
            }
        }
    }

    fn message(&mut self, conn: Conn, bytes: &[u8], fds: Vec<OwnedFd>) {
        let Some(credentials) = self.connections.get(&conn).map(|connection| connection.credentials) else { return };
        let message = match decode::<ToRuntime>(bytes) {
            Ok(message) => message,
            Err(e) => {
                tracing::warn!(conn, error = %e, "malformed message");
                self.core.tally.protocol_errors += 1;
                return self.drop_connection(conn);
            }
        };
        if self.waits_for_network(conn, &message) {
            return self.waiting.push((conn, bytes.to_vec(), fds));
        }
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        match &message.body {
            Some(to_runtime::Body::Hello(hello)) => {
                connection.hello_by = None;
                match counters(&fds, hello.counter_bytes) {
                    Ok(counters) => connection.counters = Some(counters),
                    Err(text) => {
                        let refused = control::Refused { code: Code::UntrustedMemory.number(), text };
                        let body = Some(to_client::Body::Refused(refused));
                        self.act(Action::Send(conn, ToClient { request: message.request, body }));
                        return self.act(Action::Close(conn));
                    }
                }
                tracing::debug!(conn, app = hello.app, uid = credentials.uid, "hello");
            }
            Some(to_runtime::Body::Capture(wanted)) => {
                let body = match capture::begin(wanted, fds, credentials, self.network.as_ref()) {
                    Ok(()) => {
                        connection.hello_by = None;
                        to_client::Body::Done(control::Done {})
                    }
                    Err((code, text)) => to_client::Body::Refused(control::Refused { code: code.number(), text }),
                };
                tracing::info!(conn, uid = credentials.uid, datapath = wanted.datapath, answer = ?body, "capture");
                return self.queue(conn, encode(&ToClient { request: message.request, body: Some(body) }), None);
            }
            Some(to_runtime::Body::Rebind(wanted)) => {
                tracing::info!(conn, uid = credentials.uid, ?wanted, "rebind");
                let asked = rebind::check(wanted, credentials, self.network.is_some());
                let body = match asked {
                    Ok(asked) => {
                        connection.hello_by = None;
                        return self.tell_network(ToNetwork::Rebind(conn, message.request, asked));
                    }
                    Err((code, text)) => to_client::Body::Refused(control::Refused { code: code.number(), text }),
                };
                return self.queue(conn, encode(&ToClient { request: message.request, body: Some(body) }), None);
            }
            Some(to_runtime::Body::Query(query)) if self.core.sessions.contains_key(&conn) => {
                let report = match query.what.as_str() {
                    "status" => Some(self.status(conn)),
                    "doctor" => Some(doctor::report(&self.core, conn, &self.datapaths(), &self.threads())),
                    _ => None,
                };
                if let Some(report) = report {
                    return self.send_report(conn, message.request, &report.to_string());
                }
            }
            _ => {}
        }
        reach(Step::Welcome);
        let domains = self.core.config().domains();
        let actions = self.core.request(conn, credentials, message, |domain| {
            domains.get(domain).is_some_and(|d| doctor::may_join(d, credentials))
        });
        for action in actions {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send(conn, message) => {
                if matches!(&message.body, Some(to_client::Body::FlowAdded(f)) if !f.producer) {
                    reach(Step::Match);
                }
                self.give(conn, message, None);
            }
            Action::Pair(a, to_a, b, to_b) => match pair() {
                Ok((one, two)) => {
                    self.give(a, to_a, Some(one));
                    self.give(b, to_b, Some(two));
                }
                Err(e) => {
                    tracing::error!(error = %e, "no socket pair for two sessions: one of them begins anew");
                    self.core.no_pair(a, b).into_iter().for_each(|action| self.act(action));
                }
            },
            Action::Close(conn) => {
                if let Some(connection) = self.connections.get_mut(&conn) {
                    connection.closing = true;
                }
                self.flush(conn);
            }
            Action::Announce(sink) => self.tell_network(ToNetwork::Announce(sink)),
            Action::Withdraw(sink) => self.tell_network(ToNetwork::Withdraw(sink)),
            Action::StreamClosed(domain, stream) => self.tell_network(ToNetwork::StreamClosed(domain, stream)),
        }
    }

    fn tell_network(&self, message: ToNetwork) {
        if let Some(network) = &self.network {
            network.tell(message);
        }
    }

    /// Gives a message to a session, which may be the network's.
    fn give(&mut self, conn: Conn, message: ToClient, fd: Option<OwnedFd>) {
        if self.core.is_network(conn) {
            self.tell_network(ToNetwork::Message(conn, message, fd));
        } else {
            self.queue(conn, encode(&message), fd);
        }
    }

    fn queue(&mut self, conn: Conn, bytes: Vec<u8>, fd: Option<OwnedFd>) {
        let limit = self.core.config().quota.unread_messages as usize;
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        connection.unsent.push_back((bytes, fd));
        if connection.unsent.len() > limit {
            self.closed_slow += 1;
            tracing::warn!(conn, "does not read its socket, closed");
            return self.drop_connection(conn);
        }
        self.flush(conn);
    }

    /// Sends what waits for a connection. What its socket has no room for waits for it to be writable. That is not all that can be in the
    /// way of a message with a descriptor: those under way are limited, too, and a socket that is writable would be told of without an end.
    /// Such a message is tried again by time, less and less often while nothing goes.
    fn flush(&mut self, conn: Conn) {
        let now = Instant::now();
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        if connection.again.is_some_and(|(at, _)| now < at) {
            return;
        }
        let (before, mut dead) = (connection.unsent.len(), false);
        while let Some((bytes, fd)) = connection.unsent.front() {
            let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
            match send(connection.fd.as_fd(), bytes, &fds) {
                Ok(true) => drop(connection.unsent.pop_front()),
                Ok(false) => break,
                Err(_) => {
                    dead = true;
                    break;
                }
            }
        }
        let last = connection.again.filter(|_| connection.unsent.len() == before);
        let pause = again::pause(last.map(|(_, pause)| pause));
        // Its end is told in any case, and where nothing else is waited for once.
        let (watched, again) = match connection.unsent.front() {
            None => (epoll::EventFlags::IN, None),
            Some((_, None)) => (epoll::EventFlags::OUT, None),
            Some((_, Some(_))) => (epoll::EventFlags::ET, Some((now + pause, pause))),
        };
        connection.again = again;
        if watched != connection.watched {
            connection.watched = watched;
            let _ = epoll::modify(&self.epoll, &connection.fd, epoll::EventData::new_u64(conn), watched);
        }
        if dead || (connection.closing && connection.unsent.is_empty()) {
            self.drop_connection(conn);
        }
    }

    fn drop_connection(&mut self, conn: Conn) {
        let Some(connection) = self.connections.remove(&conn) else { return };
        reach(Step::Forget);
        let cells = connection.counters.as_ref().map(Counters::live).unwrap_or_default();
        for cell in cells {
            if self.history.len() == HISTORY {
                self.history.pop_front();
            }
            self.history.push_back(CellCounts { ended: true, ..cell });
        }
        if let Some(session) = self.core.sessions.get(&conn) {
            tracing::info!(conn, app = session.app, pid = session.credentials.pid, "session lost");
        }
        for action in self.core.gone(conn) {
            self.act(action);
        }
    }

    fn send_report(&mut self, conn: Conn, request: u64, json: &str) {
        let mut rest = json;
        while !rest.is_empty() {
            let mut end = rest.len().min(REPORT_PART);
            while !rest.is_char_boundary(end) {
                end -= 1;
            }
            let (part, tail) = rest.split_at(end);
            let report = control::Report { json: part.to_owned(), more: !tail.is_empty() };
            let body = Some(to_client::Body::Report(report));
            self.queue(conn, encode(&ToClient { request, body }), None);
            rest = tail;
        }
    }

    /// What became of the datapaths that the configuration names, each in a word and a text.
    fn datapaths(&self) -> Vec<Value> {
        self.network.as_ref().map(Network::report_datapaths).unwrap_or_default()
    }

    /// The threads of the network side, each with what runs on it and where it is.
    fn threads(&self) -> Vec<Value> {
        self.network.as_ref().map(Network::report_threads).unwrap_or_default()
    }

    fn status(&self, asker: Conn) -> Value {
        let me = self.core.sessions.get(&asker);
        let all = me.is_some_and(|s| s.credentials.is_operator());
        let seen = |domain: &str| self.core.shows(asker, domain);
        let network = self.network.as_ref().map(Network::report).unwrap_or_default();
        // Towards a host that is away nothing is served.
        let is_reached = |peer: &str| {
            network["hosts"].as_array().into_iter().flatten().any(|h| h["name"] == peer && h["connected"] == true)
        };
        let sessions: Vec<Value> = self
            .core
            .sessions
            .iter()
            .filter(|(_, s)| seen(&s.domain))
            .map(|(conn, s)| {
                json!({
                    "session": s.id.to_string(), "app": s.app, "library": s.library, "domain": s.domain,
                    "pid": s.credentials.pid, "uid": s.credentials.uid,
                    "streams": s.streams(), "endpoints": s.endpoints(),
                    "counters": self.connections.get(conn).and_then(|c| c.counters.as_ref())
                        .or_else(|| self.network.as_ref().and_then(|n| n.counters(*conn)))
                        .map(|c| c.live().iter().map(cell).collect::<Vec<_>>()).unwrap_or_default(),
                })
            })
            .collect();
        let streams: Vec<Value> = self
            .core
            .streams
            .iter()
            .filter(|((d, _), _)| seen(d))
            .map(|((d, name), s)| {
                let channels: Vec<Value> = s.channels.iter().map(|(id, c)| json!({
                    "id": format!("{id:016x}"), "name": c.name,
                    "sources": c.sources.keys().map(ToString::to_string).collect::<Vec<_>>(),
                    "sinks": c.sinks.iter().map(|(k, (_, o))| json!({"sink": k.to_string(), "observer": o})).collect::<Vec<_>>(),
                })).collect();
                let others = self.core.towards(d, name).into_iter().filter(|e| is_reached(&e.peer));
                let served: Vec<Value> = std::iter::once(&s.ceiling).chain(others).map(effective).collect();
                json!({
                    "domain": d, "name": name, "qos": s.qos.canonical(), "sessions": s.sessions, "channels": channels,
                    "effective": served,
                })
            })
            .collect();
        let history: Vec<Value> = if all { self.history.iter().map(cell).collect() } else { Vec::new() };
        json!({
            "version": env!("CARGO_PKG_VERSION"), "uptime_s": self.started.elapsed().as_secs(),
            "sessions": sessions, "streams": streams, "ended": history, "counters": self.core.tally,
            "network": all.then_some(network),
            "closed_slow": self.closed_slow, "cpu_latency_knob": self.knob.text(),
        })
    }
}

fn effective(is: &EffectiveQos) -> Value {
    json!({
        "peer": is.peer, "datapath": is.datapath, "transport": is.transport,
        "qos": is.qos.unwrap_or_default().canonical(), "reasons": is.reasons,
    })
}

fn cell(c: &CellCounts) -> Value {
    let counts: serde_json::Map<String, Value> =
        Count::ALL.iter().filter(|k| c.get(**k) > 0).map(|k| (k.name().to_owned(), json!(c.get(*k)))).collect();
    let end = match c.state {
        CellState::Source => "source",
        CellState::Producing => "producing",
        CellState::Consuming => "consuming",
        _ => "unknown",
    };
    json!({
        "cell": c.index, "end": end, "ended": c.ended, "source": format!("{:032x}", c.epoch),
        "sink": (c.sink != 0).then(|| format!("{:032x}", c.sink)), "counts": counts,
    })
}

/// Checks and maps a session's counter memory.
fn counters(fds: &[OwnedFd], bytes: u64) -> Result<Counters, String> {
    let [fd] = fds else { return Err("a hello brings one descriptor, its counter memory".into()) };
    let limit = whole_pages(insane_shm::counters::bytes(MAX_SESSION_CELLS) as u64);
    let mapping = map_peer(fd.as_fd(), bytes, limit).map_err(|e| e.to_string())?;
    Counters::open(Arc::new(mapping)).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests;
