//! The service thread of a session: it talks to the runtime and to peers, so that the application's threads do not have to.
//! Asleep unless something happens; not on the path of data.

use crate::error::{Code, Error, Result};
use crate::fork::Guarded;
use crate::peers::Peers;
use crate::session::{Command, Endpoint, Event, Shared, find_socket, lock};
use crate::stream::StreamShared;
use insane_shm::socket::{Received, receive, send};
use insane_wire::control::{self, ToClient, ToRuntime, to_client, to_runtime};
use insane_wire::id::Epoch;
use insane_wire::qos::REFUSED;
use insane_wire::{MAX_CONTROL_BYTES, PROTOCOL, decode, encode};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

mod reopen;

use reopen::Refusals;

const BELL: u64 = 0;
const RUNTIME: u64 = 1;
/// Event data from here on belong to [`Peers`].
pub(crate) const FIRST_PEER: u64 = 2;

/// How long between two tries to reach a runtime that is gone.
const RETRY: Duration = Duration::from_millis(50);

/// How long it waits before it connects anew when this process lacked descriptors or memory.
const SHORT_RETRY: Duration = Duration::from_secs(1);

/// How long between two tries to end sleeps that are to end.
const ROUSE: Duration = Duration::from_millis(1);

/// What an answer of the runtime is for, when no thread of the application waits for it.
#[derive(Debug)]
enum Internal {
    Hello,
    /// A stream that is opened again; if the runtime refuses it and that can pass, after how long once more.
    Stream(Arc<StreamShared>, Duration),
    /// The same of a source or sink.
    End(Endpoint, Duration),
    /// Nothing is to be done with it.
    Told,
}

/// The thread's state.
#[derive(Debug)]
pub(crate) struct Service {
    shared: Arc<Shared>,
    epoll: Arc<OwnedFd>,
    runtime: Option<Guarded>,
    /// Messages that the runtime's socket had no room for.
    unsent: VecDeque<Vec<u8>>,
    internal: HashMap<u64, Internal>,
    /// Requests of the application that wait for a reconnect.
    parked: VecDeque<(u64, to_runtime::Body)>,
    asked: Vec<u64>,
    /// The parts so far of a report, which come in one piece after the other, and the request that it answers.
    report: Option<(u64, String)>,
    ready: bool,
    first_hello: u64,
    retry_at: Option<Instant>,
    refusals: Refusals,
    peers: Peers,
    shutdown: Option<Instant>,
}

/// Connects to a runtime, at `path` or where [`find_socket`] says, and says nothing. Where it was found, and the connection.
///
/// # Errors
/// `NotPermitted` and `RuntimeNotFound`.
pub fn connect_first(path: Option<&Path>) -> Result<(PathBuf, OwnedFd)> {
    let paths = path.map_or_else(find_socket, |p| vec![p.to_owned()]);
    let mut tried = Vec::new();
    for path in paths {
        match connect(&path) {
            Ok(fd) => return Ok((path, fd)),
            Err(Errno::ACCESS | Errno::PERM) => {
                return Err(Error::new(
                    Code::NotPermitted,
                    format!("the socket {} is not open to this user", path.display()),
                ));
            }
            Err(e) => tried.push(format!("{}: {e}", path.display())),
        }
    }
    Err(Error::new(Code::RuntimeNotFound, tried.join("; ")))
}

fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}

pub(crate) fn watch(epoll: BorrowedFd<'_>, fd: BorrowedFd<'_>, data: u64) -> Result<()> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN)
        .map_err(|e| Error::new(Code::System, format!("epoll_ctl: {e}")))
}

impl Service {
    /// The service over a fresh connection; says hello. Returns the number of that request.
    pub(crate) fn new(shared: Arc<Shared>, connection: OwnedFd) -> Result<(Self, u64)> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|e| Error::new(Code::System, format!("epoll_create: {e}")))?;
        let epoll = Arc::new(epoll);
        watch(epoll.as_fd(), shared.bell.as_fd(), BELL)?;
        let mut service = Self {
            peers: Peers::new(shared.clone(), epoll.clone()),
            shared,
            epoll,
            runtime: None,
            unsent: VecDeque::new(),
            internal: HashMap::new(),
            parked: VecDeque::new(),
            asked: Vec::new(),
            report: None,
            ready: false,
            first_hello: 0,
            retry_at: None,
            refusals: Refusals::default(),
            shutdown: None,
        };
        service.adopt(connection)?;
        let hello = *service.internal.keys().next().unwrap_or(&0);
        service.first_hello = hello;
        Ok((service, hello))
    }

    fn adopt(&mut self, connection: OwnedFd) -> Result<()> {
        watch(self.epoll.as_fd(), connection.as_fd(), RUNTIME)?;
        self.runtime = Some(Guarded::new(connection));
        let hello = control::Hello {
            protocol_min: PROTOCOL,
            protocol_max: PROTOCOL,
            app: self.shared.app.clone(),
            library: concat!("rust/", env!("CARGO_PKG_VERSION")).into(),
            domain: self.shared.wanted_domain.clone(),
            session: self.shared.id.to_bytes(),
            pairs: self.peers.claims(),
            counter_bytes: insane_shm::memory::Backing::len(&*self.shared.counter_memory) as u64,
        };
        let request = self.shared.next_request();
        self.internal.insert(request, Internal::Hello);
        let message = ToRuntime { request, body: Some(to_runtime::Body::Hello(hello)) };
        let fds = [self.shared.counter_memory.fd()];
        let socket = self.runtime.as_ref().map(Guarded::as_fd);
        if !socket.is_some_and(|s| matches!(send(s, &encode(&message), &fds), Ok(true))) {
            self.lost();
        }
        Ok(())
    }

    /// Runs until the session is closed.
    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        while !self.finished() {
            let timeout = self.timeout();
            events.clear();
            match epoll::wait(&*self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
            let ready: Vec<u64> = events.iter().map(|e: &epoll::Event| e.data.u64()).collect();
            for data in ready {
                match data {
                    BELL => self.bell(),
                    RUNTIME => self.read_runtime(),
                    data => self.peers.ready(data),
                }
            }
            self.peers.tidy();
            self.start_anew_if_short();
            // Only then is the runtime told of it.
            if self.ready {
                for (stream, number, epoch) in self.peers.closable() {
                    self.close_source(&stream, number, epoch);
                }
            }
            self.flush();
            if self.retry_at.is_some_and(|at| Instant::now() >= at) {
                self.reconnect();
            }
            self.try_refused();
            self.call_wakers();
            self.rouse();
            self.shared.notify();
        }
        self.shared.closed.store(true, Ordering::Release);
        for stream in lock(&self.shared.streams).iter() {
            stream.open.store(false, Ordering::Release);
            let mut rx = stream.rx.visit();
            for index in 0..rx.sinks.len() {
                rx.close_sink(index);
            }
        }
        self.peers.close_all();
        self.call_wakers();
        for _ in 0..1000 {
            if !self.rouse() {
                break;
            }
            std::thread::sleep(ROUSE);
        }
        // Streams hold the session and the session its streams: cut the circle.
        lock(&self.shared.endpoints).clear();
        lock(&self.shared.streams).clear();
        self.shared.notify();
    }

    fn call_wakers(&self) {
        let streams = lock(&self.shared.streams).clone();
        streams.iter().for_each(|s| s.call_wakers());
    }

    /// Ends what is left of sleeps that are to end. Returns whether there are any.
    fn rouse(&self) -> bool {
        if !self.shared.rousing.swap(false, Ordering::AcqRel) {
            return false;
        }
        let streams = lock(&self.shared.streams).clone();
        let any = streams.iter().filter(|s| s.rx.visit().rouse_again()).count() > 0;
        if any {
            self.shared.rousing.store(true, Ordering::Release);
        }
        any
    }

    fn finished(&self) -> bool {
        self.shutdown.is_some_and(|deadline| Instant::now() >= deadline || !self.peers.is_closing())
    }

    fn timeout(&self) -> Option<rustix::event::Timespec> {
        let rouse = self.shared.rousing.load(Ordering::Acquire).then(|| Instant::now() + ROUSE);
        let again = self.refusals.next();
        let next = [self.retry_at, self.shutdown, self.peers.retry_at(), rouse, again].into_iter().flatten().min()?;
        let left = next.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        rustix::event::Timespec::try_from(left).ok()
    }

    fn bell(&mut self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(self.shared.bell.as_fd(), &mut count);
        loop {
            let Some(command) = lock(&self.shared.commands).pop_front() else { break };
            match command {
                Command::Ask(request, body) => self.ask(request, body),
                Command::Forget(request) => self.forget(request),
                Command::CloseSink(stream, id) => {
                    // Its links end before the runtime withdraws it: whoever hears of that may send what is not meant for it any more.
                    self.peers.close_sink(&stream, id);
                    self.tell(to_runtime::Body::CloseSink(control::CloseSink { sink: id.to_bytes() }));
                }
                Command::CloseSource(stream, number, epoch) => {
                    // What it has emitted needs it until there is a runtime again.
                    if !self.peers.close_later(&stream, number, epoch) {
                        self.close_source(&stream, number, epoch);
                    }
                }
                Command::ShareSegment(stream) => self.peers.share_segments(&stream),
                Command::GiveUp(stream, source, links) => self.peers.give_up(&stream, source, &links),
                Command::AskWhoLags(stream, asks) => self.peers.ask_who_lags(&stream, &asks),
                Command::EnsureBells(stream, watched) => self.peers.ensure_bells(&stream, watched),
                Command::Shutdown => self.begin_shutdown(),
            }
        }
        self.peers.close_broken();
    }

    fn close_source(&mut self, stream: &Arc<StreamShared>, number: u32, epoch: Epoch) {
        lock(&self.shared.endpoints).retain(|e| !matches!(e, Endpoint::Source { epoch: i, .. } if *i == epoch));
        self.tell(to_runtime::Body::CloseSource(control::CloseSource { epoch: epoch.to_bytes() }));
        self.peers.close_source(stream, number);
    }

    fn begin_shutdown(&mut self) {
        self.shutdown = Some(Instant::now() + Duration::from_millis(500));
        let streams = lock(&self.shared.streams).clone();
        for stream in streams {
            stream.open.store(false, Ordering::Release);
            let sinks: Vec<_> = {
                let mut rx = stream.rx.visit();
                for index in 0..rx.sinks.len() {
                    rx.close_sink(index);
                }
                rx.sinks.iter().flatten().map(|s| s.id).collect()
            };
            for id in sinks {
                self.peers.close_sink(&stream, id);
            }
            let numbers = stream.tx.visit().numbers();
            for number in numbers {
                self.peers.close_source(&stream, number);
            }
        }
        self.tell(to_runtime::Body::Goodbye(control::Goodbye {}));
    }

    /// Sends a request whose answer is of no interest. Without a connection it is not needed: the next hello tells all.
    fn tell(&mut self, body: to_runtime::Body) {
        if self.ready {
            let request = self.shared.next_request();
            self.internal.insert(request, Internal::Told);
            self.send(request, body);
        }
    }

    fn ask(&mut self, request: u64, mut body: to_runtime::Body) {
        if let Err(why) = self.address(&mut body) {
            lock(&self.shared.answers).insert(request, Err(why));
        } else if self.ready {
            self.asked.push(request);
            self.send(request, body);
        } else {
            self.parked.push_back((request, body));
        }
    }

    /// Nobody waits for an answer any more, which may be there, be about to come, or come of the next runtime.
    fn forget(&mut self, request: u64) {
        lock(&self.shared.answers).remove(&request);
        self.parked.retain(|(number, _)| *number != request);
        if let Some(at) = self.asked.iter().position(|number| *number == request) {
            self.asked.swap_remove(at);
            self.internal.insert(request, Internal::Told);
        }
    }

    fn send(&mut self, request: u64, body: to_runtime::Body) {
        self.unsent.push_back(encode(&ToRuntime { request, body: Some(body) }));
        self.flush();
    }

    fn flush(&mut self) {
        while let (Some(socket), Some(bytes)) = (self.runtime.as_ref(), self.unsent.front()) {
            match send(socket.as_fd(), bytes, &[]) {
                Ok(true) => drop(self.unsent.pop_front()),
                // The runtime reads at its own pace; it is asked again when it has said something, or by the timer.
                Ok(false) => {
                    self.retry_at = Some(Instant::now() + Duration::from_millis(2));
                    return;
                }
                Err(_) => return self.lost(),
            }
        }
    }

    fn lost(&mut self) {
        self.runtime = None;
        self.peers.runtime_lost();
        self.unsent.clear();
        self.internal.clear();
        self.report = None;
        self.refusals.forget();
        // Whatever has the same number at the next runtime is another.
        self.shared.runtimes.fetch_add(1, Ordering::AcqRel);
        lock(&self.shared.streams).iter().for_each(|s| s.number.store(0, Ordering::Release));
        let was_ready = std::mem::replace(&mut self.ready, false);
        for request in std::mem::take(&mut self.asked) {
            lock(&self.shared.answers).insert(request, Err(Code::RuntimeLost.into()));
        }
        if lock(&self.shared.welcome).is_none() {
            lock(&self.shared.answers).entry(self.first_hello).or_insert(Err(Code::RuntimeLost.into()));
        }
        if was_ready {
            self.shared.event(Event::RuntimeLost);
        }
        self.retry_at = self.shutdown.is_none().then(|| Instant::now() + RETRY);
    }

    /// A pair has ended for want of something here. The runtime makes another one for who comes anew and has it no more.
    fn start_anew_if_short(&mut self) {
        if std::mem::take(&mut self.peers.short) && self.runtime.is_some() && self.shutdown.is_none() {
            self.lost();
            self.retry_at = Some(Instant::now() + SHORT_RETRY);
        }
    }

    fn reconnect(&mut self) {
        self.retry_at = None;
        if self.runtime.is_some() {
            return self.flush();
        }
        match connect(&self.shared.socket) {
            Ok(fd) => {
                if self.adopt(fd).is_err() {
                    self.lost();
                }
            }
            Err(_) => self.retry_at = Some(Instant::now() + RETRY),
        }
    }

    fn read_runtime(&mut self) {
        // Bounded, so that a flood does not keep the peers waiting; what is left wakes the next round.
        for _ in 0..256 {
            let Some(socket) = self.runtime.as_ref() else { return };
            let (bytes, fds) = match receive(socket.as_fd(), MAX_CONTROL_BYTES) {
                Ok(Received::Message(bytes, fds)) => (bytes, fds),
                Ok(Received::Nothing) => return,
                Ok(Received::End | Received::Overlong | Received::Short) | Err(_) => return self.lost(),
            };
            match decode::<ToClient>(&bytes) {
                Ok(ToClient { request, body: Some(body) }) => self.take(request, body, fds),
                // A newer runtime's event that this version does not know.
                Ok(ToClient { body: None, .. }) => {}
                Err(_) => return self.lost(),
            }
        }
    }

    fn take(&mut self, request: u64, body: to_client::Body, fds: Vec<OwnedFd>) {
        if request != 0 {
            return self.answer(request, body);
        }
        match body {
            to_client::Body::Pair(pair) => self.peers.add(&pair, fds),
            to_client::Body::FlowAdded(flow) if flow.producer => self.peers.flow_added(&flow),
            to_client::Body::QosChanged(changed) => self.qos_changed(changed),
            // The consumer's side of a flow is opened by its producer; ends of flows travel between the peers.
            _ => {}
        }
    }

    fn qos_changed(&mut self, changed: control::QosChanged) {
        let streams = lock(&self.shared.streams);
        let stream = streams.iter().find(|s| changed.stream != 0 && s.number.load(Ordering::Relaxed) == changed.stream);
        if let (Some(stream), Some(effective)) = (stream, changed.effective) {
            lock(&stream.effective).insert(effective.peer.clone(), effective.clone());
            let stream = stream.name.clone();
            self.shared.event(if effective.datapath == REFUSED {
                Event::QosRefused { stream, effective }
            } else {
                Event::QosChanged { stream, effective, moved: changed.moved_us.map(Duration::from_micros) }
            });
        }
    }

    fn answer(&mut self, request: u64, body: to_client::Body) {
        let body = match body {
            to_client::Body::Refused(refused) => {
                let code = Code::from_number(refused.code).unwrap_or(Code::Protocol);
                Err(Error::new(code, refused.text))
            }
            body => Ok(body),
        };
        match self.internal.remove(&request) {
            None => {
                let body = match body {
                    Ok(to_client::Body::Report(part)) => {
                        // What came of one that nobody waits for any more is no part of this.
                        let before = self.report.take().filter(|(of, _)| *of == request);
                        let json = before.map_or_else(String::new, |(_, json)| json) + &part.json;
                        if part.more {
                            self.report = Some((request, json));
                            return;
                        }
                        Ok(to_client::Body::Report(control::Report { json, more: false }))
                    }
                    body => body,
                };
                self.asked.retain(|r| *r != request);
                lock(&self.shared.answers).insert(request, body);
            }
            Some(Internal::Hello) => self.hello_answered(request, body),
            Some(Internal::Stream(stream, wait)) => {
                match body {
                    Ok(to_client::Body::StreamOpened(opened)) => self.stream_is_back(&stream, opened),
                    Ok(other) => self.refused_stream(&stream, crate::session::unexpected(&other), wait),
                    Err(e) => self.refused_stream(&stream, e, wait),
                }
                self.check_ready();
            }
            Some(Internal::End(end, wait)) => {
                match body {
                    Ok(_) => self.end_is_back(&end),
                    Err(e) => self.refused_end(end, e, wait),
                }
                self.check_ready();
            }
            Some(Internal::Told) => {
                if matches!(&body, Ok(to_client::Body::Report(part)) if part.more) {
                    self.internal.insert(request, Internal::Told);
                }
                self.check_ready();
            }
        }
    }
}
