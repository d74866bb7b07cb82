//! Finding other runtimes: a thread that says over Eclipse Zenoh that this one is there, hears of the others, and tells the
//! network thread which hosts there are. Who has which sinks, two runtimes tell each other over their path.
//!
//! Nothing here is on the data path. Each connection is made by this thread, to an address that the configuration names or from
//! which a beacon came on an interface that it names; Zenoh itself looks for nobody.

#[cfg(feature = "fuzz")]
pub mod heard;
mod presence;
mod scout;
#[cfg(not(feature = "zenoh"))]
#[path = "absent.rs"]
mod session;
#[cfg(feature = "zenoh")]
mod session;
mod way;

pub(crate) use presence::MAX_HOSTS;

use crate::config::Network as Settings;
use crate::network::{Bell, NetworkError, ToNetwork};
use presence::{Entry, Presence};
use scout::{Counts, Scout};
use serde_json::{Value, json};
use session::Session;
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use way::{Role, Way};

/// What may wait to be read by the thread.
const MOST_WORDS: usize = 4096;

/// How often connections are looked after, and the report is written.
const TICK: Duration = Duration::from_millis(250);

/// Changes are told together, so that a directory that flaps costs the network thread little.
const GATHER: Duration = Duration::from_millis(20);

/// Between two tries of one connection: at first, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));

/// A runtime that was seen by scouting is forgotten when neither it nor its connection has been heard of for so long.
const FORGOTTEN: Duration = Duration::from_secs(15);

/// Connections that are being made at once.
const MOST_OPENING: usize = 8;

/// What the thread is told.
pub(crate) enum Word {
    /// Zenoh has an entry, or has it no more.
    Entry {
        /// The session that says so.
        session: u64,
        /// Its key.
        key: String,
        /// Whether it is there.
        there: bool,
    },
    /// A session was opened, or not.
    Opened(u64, Result<Session, String>),
    /// A runtime was seen by scouting.
    Sighted(scout::Sighting),
    /// To end.
    Stop,
}

/// How a session with Zenoh stands.
#[derive(Debug)]
enum State {
    Idle,
    Opening,
    Open(Session),
}

/// A session with Zenoh, or one that is to be.
#[derive(Debug)]
struct Contact {
    /// Its session's number. Each session has one of its own, so that late words of an old one are known as such.
    number: u64,
    way: Way,
    /// When it was last seen by scouting; configured ones are not seen.
    seen: Option<Instant>,
    state: State,
    opened_at: Instant,
    next_try: Instant,
    backoff: Duration,
    tries: u64,
    failures: u64,
    error: String,
}

impl Contact {
    fn new(way: Way, seen: Option<Instant>) -> Self {
        let now = Instant::now();
        Self {
            number: 0,
            way,
            seen,
            state: State::Idle,
            opened_at: now,
            next_try: now,
            backoff: BACKOFF.0,
            tries: 0,
            failures: 0,
            error: String::new(),
        }
    }

    fn failed(&mut self, why: String) {
        self.state = State::Idle;
        self.failures += 1;
        self.error = why.chars().filter(|c| !c.is_control()).take(200).collect();
        self.next_try = Instant::now() + self.backoff;
        self.backoff = (self.backoff * 2).min(BACKOFF.1);
    }

    fn report(&self) -> Value {
        let (kind, at) = match &self.way.role {
            Role::Listener { listen, router } => {
                let kind = if router.is_some() { "router" } else { "listen" };
                (kind, listen.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
            }
            Role::Connector(address) => ("connect", address.to_string()),
        };
        json!({
            "kind": kind, "address": at, "interface": self.way.interface, "scouted": self.seen.is_some(),
            "open": matches!(self.state, State::Open(_)), "tries": self.tries, "failures": self.failures,
            "error": self.error,
        })
    }
}

/// The server's end of the thread.
#[derive(Debug)]
pub(crate) struct Discovery {
    to: SyncSender<Word>,
    stop: Arc<AtomicBool>,
    report: Arc<Mutex<Value>>,
    threads: Vec<JoinHandle<()>>,
}

impl Discovery {
    /// Starts the thread, and the scout if interfaces are named. `None` without a `[network.directory]` section.
    pub(crate) fn start(
        settings: &Settings,
        run: u128,
        network: (Sender<ToNetwork>, Bell),
    ) -> Result<Option<Self>, NetworkError> {
        let Some(directory) = &settings.directory else { return Ok(None) };
        if cfg!(not(feature = "zenoh")) {
            return Err(NetworkError::NoDirectory);
        }
        let (to, inbox) = sync_channel(MOST_WORDS);
        let stop = Arc::new(AtomicBool::new(false));
        let report = Arc::new(Mutex::new(Value::Null));
        let counts = Arc::new(Counts::default());
        let mut threads = Vec::new();
        let mut bound = Vec::new();
        if !directory.interfaces.is_empty() {
            let (names, group) = (&directory.interfaces, directory.scout);
            let scout = Scout::open(names, group, &directory.listen, run, &directory.realm)?;
            bound = scout.addresses();
            let (stop, counts, to) = (stop.clone(), counts.clone(), to.clone());
            let sighted = move |sighting| drop(to.try_send(Word::Sighted(sighting)));
            let run = move || scout.run(&stop, &counts, sighted);
            threads.push(std::thread::Builder::new().name("insane-scout".into()).spawn(run)?);
        }
        let seeker = Seeker::new(settings, (run, bound), (inbox, to.clone()), network, counts, report.clone());
        let run = move || seeker.run();
        threads.push(std::thread::Builder::new().name("insane-directory".into()).spawn(run)?);
        Ok(Some(Self { to, stop, report, threads }))
    }

    /// What it has to say in a status report.
    pub(crate) fn report(&self) -> Value {
        self.report.lock().map(|r| r.clone()).unwrap_or_default()
    }

    /// Ends it; the others see that this runtime is gone. Waits two seconds at most for Zenoh.
    pub(crate) fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.to.send(Word::Stop);
        let start = Instant::now();
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && start.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(2));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The thread.
struct Seeker {
    settings: Settings,
    own: Entry,
    realm: String,
    inbox: Receiver<Word>,
    to: SyncSender<Word>,
    network: (Sender<ToNetwork>, Bell),
    presence: Presence,
    contacts: Vec<Contact>,
    next_number: u64,
    counts: Arc<Counts>,
    report: Arc<Mutex<Value>>,
}

impl Seeker {
    fn new(
        settings: &Settings,
        (run, bound): (u128, Vec<(IpAddr, String)>),
        (inbox, to): (Receiver<Word>, SyncSender<Word>),
        network: (Sender<ToNetwork>, Bell),
        counts: Arc<Counts>,
        report: Arc<Mutex<Value>>,
    ) -> Self {
        let directory = settings.directory.clone().unwrap_or_default();
        let own = Entry { run, address: settings.listen };
        let presence = Presence::new(directory.realm.clone(), own);
        let mut seeker = Self {
            settings: settings.clone(),
            own,
            realm: directory.realm,
            inbox,
            to,
            network,
            presence,
            contacts: Vec::new(),
            next_number: 0,
            counts,
            report,
        };
        let interface = (!settings.interface.is_empty()).then(|| settings.interface.clone());
        let router = directory.router.then(|| directory.connect.clone());
        if router.is_none() {
            for address in directory.connect {
                seeker
                    .add(Way { role: Role::Connector(address), interface: interface.clone(), bound: Vec::new() }, None);
            }
        }
        if !directory.listen.is_empty() {
            seeker.add(Way { role: Role::Listener { listen: directory.listen, router }, interface, bound }, None);
        }
        seeker
    }

    fn add(&mut self, way: Way, seen: Option<Instant>) {
        self.contacts.push(Contact::new(way, seen));
    }

    fn run(mut self) {
        let mut tick = Instant::now();
        let mut gather = None::<Instant>;
        loop {
            let now = Instant::now();
            if now >= tick {
                tick = now + TICK;
                gather = Some(now);
                self.tend(now);
            }
            if gather.is_some_and(|at| at <= now) {
                gather = None;
                self.tell();
                self.write_report();
            }
            let next = gather.map_or(tick, |at| at.min(tick));
            match self.inbox.recv_timeout(next.saturating_duration_since(now)) {
                Ok(Word::Entry { session, key, there }) => {
                    // What a session says while it is opened comes before the word that it is.
                    if self.contacts.iter().any(|l| l.number == session) {
                        self.presence.hear(session, &key, there);
                    }
                    gather.get_or_insert(now + GATHER);
                }
                Ok(Word::Opened(number, result)) => {
                    self.opened(number, result);
                    gather.get_or_insert(now);
                }
                Ok(Word::Sighted(sighting)) => self.sighted(sighting),
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Word::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        for contact in self.contacts {
            if let State::Open(session) = contact.state {
                session.close();
            }
        }
    }

    /// A runtime was seen. The one with the smaller run connects, so that two do not connect twice.
    fn sighted(&mut self, (interface, run, address): scout::Sighting) {
        if self.own.run >= run {
            return;
        }
        let now = Instant::now();
        let seen = self.contacts.iter().filter(|l| l.seen.is_some()).count();
        let known = self.contacts.iter_mut().find(|l| l.way.role == Role::Connector(address));
        match known {
            Some(contact) if contact.seen.is_some() => contact.seen = Some(now),
            Some(_) => {}
            None if seen >= MAX_HOSTS => {
                self.presence.refuse(&address, "too many runtimes seen by scouting");
            }
            None => {
                tracing::debug!(interface, %address, "directory: seen by scouting");
                self.add(
                    Way { role: Role::Connector(address), interface: Some(interface), bound: Vec::new() },
                    Some(now),
                );
                self.tend(now);
            }
        }
    }

    fn opened(&mut self, number: u64, result: Result<Session, String>) {
        let Some(contact) = self.contacts.iter_mut().find(|l| l.number == number) else {
            return result.into_iter().for_each(close_elsewhere);
        };
        match result {
            Ok(session) => {
                contact.state = State::Open(session);
                contact.opened_at = Instant::now();
                contact.error.clear();
            }
            Err(why) => {
                tracing::debug!(way = ?contact.way, why, "directory: not opened");
                contact.failed(why);
                self.presence.forget(number);
            }
        }
    }

    /// Looks after the sessions: opens those that are to be open, ends those that have lost their other end.
    fn tend(&mut self, now: Instant) {
        self.contacts.retain(|contact| {
            let forgotten = contact.seen.is_some_and(|seen| now.saturating_duration_since(seen) >= FORGOTTEN);
            !(forgotten && matches!(contact.state, State::Idle))
        });
        let mut opening = self.contacts.iter().filter(|l| matches!(l.state, State::Opening)).count();
        let next_number = &mut self.next_number;
        let mut new_number = || {
            *next_number += 1;
            *next_number
        };
        for contact in &mut self.contacts {
            if let State::Open(session) = &mut contact.state {
                let connector = matches!(contact.way.role, Role::Connector(_));
                if connector && !session.is_connected() {
                    let old = std::mem::replace(&mut contact.state, State::Idle);
                    self.presence.forget(contact.number);
                    if let State::Open(session) = old {
                        close_elsewhere(session);
                    }
                    contact.failed("the connection was lost".into());
                } else if session.missed.load(Ordering::Relaxed) {
                    self.presence.forget(contact.number);
                    contact.number = new_number();
                    if let Err(why) = session.listen(contact.number, &self.realm, &self.to) {
                        tracing::warn!(why, "directory: listening anew");
                    }
                } else if now.saturating_duration_since(contact.opened_at) > BACKOFF.1 {
                    contact.backoff = BACKOFF.0;
                }
                continue;
            }
            if matches!(contact.state, State::Opening) || now < contact.next_try || opening >= MOST_OPENING {
                continue;
            }
            contact.tries += 1;
            contact.number = new_number();
            let (way, number, realm) = (contact.way.clone(), contact.number, self.realm.clone());
            let (own, to) = (self.own, self.to.clone());
            let open = move || {
                let result = Session::open(&way, number, &realm, own, &to);
                let _ = to.send(Word::Opened(number, result));
            };
            match std::thread::Builder::new().name("insane-dir-open".into()).spawn(open) {
                Ok(_) => {
                    opening += 1;
                    contact.state = State::Opening;
                }
                Err(e) => contact.failed(e.to_string()),
            }
        }
    }

    /// Tells the network thread what has changed.
    fn tell(&mut self) {
        let (listen, interface) = (self.settings.listen, &self.settings.interface);
        let (found, gone) = self.presence.changes(|address| reachable(listen, interface, address));
        if found.is_empty() && gone.is_empty() {
            return;
        }
        let words = found.iter().map(|a| ToNetwork::Found(*a)).chain(gone.iter().map(|a| ToNetwork::Gone(*a)));
        words.for_each(|word| drop(self.network.0.send(word)));
        self.network.1.ring();
    }

    fn write_report(&self) {
        let read = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        let contacts: Vec<Value> = self.contacts.iter().map(Contact::report).collect();
        let value = json!({
            "realm": self.realm, "run": format!("{:032x}", self.own.run), "hosts": self.presence.len(), "connections": contacts,
            "refused": self.presence.refused, "last_refusal": self.presence.reason,
            "beacons": {
                "sent": read(&self.counts.sent), "failed": read(&self.counts.failed),
                "heard": read(&self.counts.heard), "refused": read(&self.counts.refused),
            },
        });
        if let Ok(mut shared) = self.report.lock() {
            *shared = value;
        }
    }
}

/// Closing waits for Zenoh, and the thread does not wait for that.
fn close_elsewhere(session: Session) {
    let _ = std::thread::Builder::new().name("insane-dir-close".into()).spawn(move || session.close());
}

/// Whether what is sent to a host leaves by the interface of `network.listen`: the kernel is asked for its route, nothing is sent.
fn reachable(listen: SocketAddr, interface: &str, to: SocketAddr) -> Result<(), String> {
    let ask = || -> std::io::Result<Option<SocketAddr>> {
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
        if !interface.is_empty() {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        socket.connect(&to.into())?;
        Ok(socket.local_addr()?.as_socket())
    };
    let from = ask().map_err(|e| format!("no way to it: {e}"))?;
    // On its one interface the address does not matter; on loopback all addresses are one host's.
    let fits = !interface.is_empty() || from.is_some_and(|f| f.ip() == listen.ip()) || listen.ip().is_loopback();
    if fits {
        Ok(())
    } else {
        Err("the route to it does not begin at network.listen; network.interface says which".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_what_can_be_reached() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(reachable(at("127.0.0.1:7400"), "", at("127.0.0.2:7400")), Ok(()));
        assert_eq!(reachable(at("127.0.0.2:7400"), "lo", at("127.0.0.1:7400")), Ok(()));
        assert!(reachable(at("192.0.2.1:7400"), "", at("127.0.0.1:7400")).unwrap_err().contains("does not begin"));
        assert!(reachable(at("127.0.0.1:7400"), "none-such", at("127.0.0.1:7400")).unwrap_err().contains("no way"));
    }
}
