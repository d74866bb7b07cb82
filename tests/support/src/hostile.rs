//! A session that speaks the raw protocol and keeps none of its promises.

use insane_shm::counters::{Counters, bytes as counter_bytes};
use insane_shm::memory::{Backing, SharedMemory};
use insane_shm::socket::{Received, receive, send};
use insane_wire::control::{self, ToClient, ToRuntime, to_client, to_runtime};
use insane_wire::peer::{ToPeer, to_peer};
use insane_wire::{MAX_CONTROL_BYTES, PROTOCOL, decode, encode};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// A message with its descriptors.
pub type Letter<M> = (M, Vec<OwnedFd>);

/// Connects to a runtime and says nothing.
///
/// # Errors
/// As the kernel says.
pub fn connect(path: &Path) -> Result<OwnedFd, rustix::io::Errno> {
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}

/// Takes the next message of a socket, waiting for it.
pub fn next<M: prost::Message + Default>(socket: BorrowedFd<'_>, limit: Duration) -> Option<Letter<M>> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        match receive(socket, MAX_CONTROL_BYTES) {
            Ok(Received::Message(bytes, fds)) => return Some((decode(&bytes).ok()?, fds)),
            Ok(Received::Nothing) => std::thread::sleep(Duration::from_millis(1)),
            _ => return None,
        }
    }
    None
}

/// A session.
#[derive(Debug)]
pub struct Raw {
    /// Its socket to the runtime.
    pub socket: OwnedFd,
    /// Its counter memory.
    pub memory: Arc<SharedMemory>,
    /// Its counters.
    pub counters: Counters,
    request: u64,
    events: VecDeque<Letter<ToClient>>,
    /// Entries of a link.
    pub entries: u32,
    stream: (u32, String),
}

impl Raw {
    /// Says hello, and opens the unnamed stream.
    ///
    /// # Errors
    /// What the runtime answered instead of a welcome.
    pub fn open(path: &Path) -> Result<Self, String> {
        let socket = connect(path).map_err(|e| e.to_string())?;
        let memory = SharedMemory::create("hostile", counter_bytes(1024), false, false).map_err(|e| e.to_string())?;
        let memory = Arc::new(memory);
        let counters = Counters::create(memory.clone(), 1024).map_err(|e| e.to_string())?;
        let hello = control::Hello {
            protocol_min: PROTOCOL,
            protocol_max: PROTOCOL,
            app: "hostile".into(),
            library: "raw".into(),
            domain: String::new(),
            session: insane_wire::id::SessionId::random().to_bytes(),
            pairs: Vec::new(),
            counter_bytes: memory.len() as u64,
        };
        let stream = (0, String::new());
        let mut raw = Self { socket, memory, counters, request: 0, events: VecDeque::new(), entries: 0, stream };
        let fd = raw.memory.clone();
        match raw.ask(to_runtime::Body::Hello(hello), &[fd.fd()])? {
            to_client::Body::Welcome(welcome) => raw.entries = welcome.limits.map_or(0, |l| l.link_entries),
            other => return Err(format!("{other:?}")),
        }
        let open =
            control::OpenStream { name: String::new(), qos: Some(insane_wire::qos::Qos::default()), strict: false };
        match raw.ask(to_runtime::Body::OpenStream(open), &[])? {
            to_client::Body::StreamOpened(opened) => raw.stream = (opened.stream, opened.name),
            other => return Err(format!("{other:?}")),
        }
        Ok(raw)
    }

    /// The stream's name.
    #[must_use]
    pub fn stream(&self) -> &str {
        &self.stream.1
    }

    /// The stream's number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.stream.0
    }

    /// Asks, and waits for the answer; events are kept.
    ///
    /// # Errors
    /// When there is none.
    pub fn ask(&mut self, body: to_runtime::Body, fds: &[BorrowedFd<'_>]) -> Result<to_client::Body, String> {
        self.request += 1;
        let bytes = encode(&ToRuntime { request: self.request, body: Some(body) });
        send(self.socket.as_fd(), &bytes, fds).map_err(|e| e.to_string())?;
        loop {
            let (message, fds) = next::<ToClient>(self.socket.as_fd(), PATIENCE).ok_or("no answer")?;
            match message.body {
                Some(body) if message.request == self.request => return Ok(body),
                _ => self.events.push_back((message, fds)),
            }
        }
    }

    /// Opens a sink, or a source, of a channel. Returns its identity.
    ///
    /// # Errors
    /// What the runtime answered.
    pub fn endpoint(&mut self, channel: &str, source: bool) -> Result<Vec<u8>, String> {
        let channel = Some(control::Channel { name: Some(channel.into()), id: None });
        let (stream, id) = (self.stream.0, insane_wire::id::SinkId::random().to_bytes());
        let body = if source {
            to_runtime::Body::OpenSource(control::OpenSource { stream, channel, epoch: id.clone() })
        } else {
            to_runtime::Body::OpenSink(control::OpenSink { stream, channel, sink: id.clone(), observer: false })
        };
        match self.ask(body, &[])? {
            to_client::Body::SourceOpened(_) | to_client::Body::SinkOpened(_) => Ok(id),
            other => Err(format!("{other:?}")),
        }
    }

    /// The next event.
    pub fn event(&mut self) -> Option<Letter<ToClient>> {
        self.events.pop_front().or_else(|| next(self.socket.as_fd(), PATIENCE))
    }

    /// The sockets of the pairs that came by now, and the sinks of flows that this session is to produce.
    pub fn pairs(&mut self, wait: Duration) -> (Vec<OwnedFd>, Vec<Vec<u8>>) {
        let (mut pairs, mut sinks, end) = (Vec::new(), Vec::new(), Instant::now() + wait);
        while Instant::now() < end {
            let letter = self.events.pop_front().or_else(|| next(self.socket.as_fd(), Duration::from_millis(20)));
            match letter {
                Some((ToClient { body: Some(to_client::Body::Pair(_)), .. }, fds)) => pairs.extend(fds),
                Some((ToClient { body: Some(to_client::Body::FlowAdded(f)), .. }, _)) => sinks.push(f.sink),
                _ => {}
            }
        }
        (pairs, sinks)
    }
}

/// Says something to a peer.
///
/// # Errors
/// When it is gone, or does not read.
pub fn say(socket: &OwnedFd, link: u32, body: to_peer::Body, fds: &[BorrowedFd<'_>]) -> Result<(), String> {
    match send(socket.as_fd(), &encode(&ToPeer { link, body: Some(body) }), fds) {
        Ok(true) => Ok(()),
        Ok(false) => Err("the peer does not read".into()),
        Err(e) => Err(e.to_string()),
    }
}

/// A small generator of numbers.
pub fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Writes random bytes all over memory that this process owns; `sparse` leaves most words as they are.
pub fn scribble(memory: &SharedMemory, state: &mut u64, sparse: bool) {
    for word in 0..memory.len() / 8 {
        let value = random(state);
        if sparse && !value.is_multiple_of(7) {
            continue;
        }
        // SAFETY: the offset is within the mapping, which is writable and 8-byte aligned.
        let at = unsafe { memory.base().cast::<u64>().add(word) };
        // SAFETY: as above; peers read these words as atomics only, so a volatile store races with nothing of this process.
        unsafe { at.as_ptr().write_volatile(value >> 1) };
    }
}
