//! Waiting for any of several sinks.

use crate::error::{Code, Error, Result};
use crate::fork;
use crate::rx::Rx;
use crate::sink::Sink;
use crate::spin::{Others, Spin};
use crate::stream::StreamShared;
use insane_shm::hogs::Hogs;
use insane_shm::wait::{MAX_WAIT_WORDS, wait_any as sleep_on};
use insane_wire::id::SinkId;
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Waits until one of the sinks has a message, at most `timeout` (for ever without one), and returns its index. The sinks are
/// looked at round robin from `start` on: pass the last index plus one, and a busy sink does not starve the others. Spins
/// for a short while, then sleeps.
///
/// # Errors
/// [`Code::Timeout`], [`Code::Closed`] when a sink was closed, [`Code::InvalidArgument`] without sinks, [`Code::Forked`].
pub fn wait_any(sinks: &[&Sink], start: usize, timeout: Option<Duration>) -> Result<usize> {
    if sinks.is_empty() {
        return Err(Error::new(Code::InvalidArgument, "no sinks to wait for"));
    }
    let done = || sinks.iter().map(|sink| sink.stream.rx.lock().taken()).sum();
    let others = Others { hogs: &sinks[0].hogs, done };
    let began = Instant::now();
    let mut spin = Spin::new();
    loop {
        for turn in 0..sinks.len() {
            let index = (start.wrapping_add(turn)) % sinks.len();
            if sinks[index].has_message()? {
                return Ok(index);
            }
        }
        let left = timeout.map(|t| t.saturating_sub(began.elapsed()));
        if left == Some(Duration::ZERO) {
            return Err(Code::Timeout.into());
        }
        if others.are_hogs() || !spin.goes_on(&others) {
            sleep(sinks, left);
            spin = Spin::new();
        }
    }
}

fn sleep(sinks: &[&Sink], timeout: Option<Duration>) {
    let mut sleeps = Vec::with_capacity(sinks.len());
    for sink in sinks {
        match sink.announce() {
            Some(sleep) => sleeps.push((*sink, sleep)),
            None => break,
        }
    }
    if sleeps.len() == sinks.len() {
        let words: Vec<_> = sleeps.iter().flat_map(|(_, s)| s.words.iter().cloned()).collect();
        // More links than one thread can sleep on: look at the rest in slices.
        let slice = (words.len() > MAX_WAIT_WORDS).then_some(Duration::from_millis(1));
        let timeout = match (timeout, slice) {
            (Some(t), Some(s)) => Some(t.min(s)),
            (t, s) => t.or(s),
        };
        sleep_on(&words, timeout);
    }
    for (sink, sleep) in sleeps {
        sink.awake(&sleep);
    }
}

/// Several sinks that one thread or one event loop serves, with one descriptor that becomes readable when any of them has a
/// message (architecture §3 rule 8).
///
/// ```no_run
/// # fn main() -> insane::Result<()> {
/// # let session = insane::Session::open("loop")?;
/// # let stream = session.stream(insane::Qos::default())?;
/// let sinks = [stream.sink("one")?, stream.sink("two")?];
/// let mut set = insane::WaitSet::new()?;
/// for sink in &sinks {
///     set.add(sink)?;
/// }
/// let mut ready = Vec::new();
/// loop {
///     set.wait(&mut ready, None)?;
///     for key in ready.drain(..) {
///         while let Some(message) = sinks[key].try_consume()? {
///             println!("{} bytes", message.len());
///         }
///     }
/// }
/// # }
/// ```
///
/// In an event loop of its own: [`Self::arm`] until it says `true`, then wait for the descriptor to become readable, then
/// [`Self::ready`]. For one thread at a time; sinks that are not in the set may be used by others meanwhile.
#[derive(Debug)]
pub struct WaitSet {
    epoll: OwnedFd,
    /// Written to by the service threads of its sinks' sessions.
    nudge: Arc<OwnedFd>,
    members: Vec<Option<Member>>,
    /// The streams of its members, once each.
    streams: Vec<Watched>,
    /// Where the next look begins, so that a busy sink does not starve the others.
    next: usize,
    hogs: Hogs,
    forks: u32,
}

#[derive(Debug)]
struct Member {
    stream: Arc<StreamShared>,
    index: usize,
    id: SinkId,
}

#[derive(Debug)]
struct Watched {
    stream: Arc<StreamShared>,
    /// The bells in the epoll, by place and generation of their links.
    bells: Vec<((usize, u32), OwnedFd)>,
}

impl AsFd for WaitSet {
    /// Readable when there may be something; valid as long as the set.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |e| Error::new(Code::System, format!("{what}: {e}"))
}

impl WaitSet {
    /// An empty set.
    ///
    /// # Errors
    /// [`Code::System`]: no descriptors are left.
    pub fn new() -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create"))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let nudge = Arc::new(rustix::event::eventfd(0, flags).map_err(system("eventfd"))?);
        epoll::add(&epoll, &nudge, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(system("epoll_ctl"))?;
        Ok(Self {
            epoll,
            nudge,
            members: Vec::new(),
            streams: Vec::new(),
            next: 0,
            hogs: Hogs::default(),
            forks: fork::count(),
        })
    }

    /// What is known of others on the core of whoever waits here.
    fn others(&self) -> Others<'_, impl Fn() -> u64> {
        Others { hogs: &self.hogs, done: || self.streams.iter().map(|w| w.stream.rx.lock().taken()).sum() }
    }

    fn check(&self) -> Result<()> {
        if self.forks == fork::count() { Ok(()) } else { Err(Code::Forked.into()) }
    }

    /// Adds a sink and returns its key; keys begin at 0, and those of removed sinks are given again. The set does not keep the
    /// sink open: one that is closed is reported as ready once more, and then removed.
    ///
    /// # Errors
    /// [`Code::Forked`]; [`Code::InvalidArgument`] when it is in the set already.
    pub fn add(&mut self, sink: &Sink) -> Result<usize> {
        self.check()?;
        let is = |m: &Member| Arc::ptr_eq(&m.stream, &sink.stream) && m.id == sink.id();
        if self.members.iter().flatten().any(is) {
            return Err(Error::new(Code::InvalidArgument, "the sink is in the set already"));
        }
        sink.stream.rx.visit().add_set(&self.nudge, sink.index);
        if !self.streams.iter().any(|w| Arc::ptr_eq(&w.stream, &sink.stream)) {
            self.streams.push(Watched { stream: sink.stream.clone(), bells: Vec::new() });
        }
        let member = Member { stream: sink.stream.clone(), index: sink.index, id: sink.id() };
        let key = self.members.iter().position(Option::is_none).unwrap_or(self.members.len());
        if key == self.members.len() {
            self.members.push(None);
        }
        self.members[key] = Some(member);
        // The event loop is to look: there may be something already.
        let _ = rustix::io::write(&*self.nudge, &1u64.to_ne_bytes());
        Ok(key)
    }

    /// Removes a sink by its key; a key without a sink changes nothing.
    pub fn remove(&mut self, key: usize) {
        let Some(member) = self.members.get_mut(key).and_then(Option::take) else { return };
        let is_its = |stream: &Arc<StreamShared>| Arc::ptr_eq(stream, &member.stream);
        if !member.stream.rx.visit().leave_set(&self.nudge, member.index) {
            // Closing a descriptor takes it out of the epoll only if no other of the same socket is open: the link has one.
            for (_, bell) in self.streams.iter().filter(|w| is_its(&w.stream)).flat_map(|w| &w.bells) {
                let _ = epoll::delete(&self.epoll, bell);
            }
            self.streams.retain(|w| !is_its(&w.stream));
        }
    }

    /// How many sinks are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.iter().flatten().count()
    }

    /// Whether no sink is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the keys of the sinks that have a message, in turns, and returns how many. A sink that was closed is among
    /// them once, and is removed; one that the runtime refuses ([`crate::Event::StreamRefused`]) is among them as long. Never blocks. Streams on which nothing has come cost one look per link.
    ///
    /// # Errors
    /// [`Code::Forked`].
    pub fn ready(&mut self, keys: &mut Vec<usize>) -> Result<usize> {
        self.check()?;
        let before = keys.len();
        for watched in &self.streams {
            let mut rx = watched.stream.rx.lock();
            rx.set_looks(&self.nudge);
            rx.gather();
            watched.stream.unlock(rx);
        }
        let (count, mut closed) = (self.members.len(), Vec::new());
        for turn in 0..count {
            let key = (self.next + turn) % count;
            let Some(member) = &self.members[key] else { continue };
            let mut rx = member.stream.rx.lock();
            match rx.queued(member.index, member.id) {
                Ok(true) => keys.push(key),
                Ok(false) => {}
                Err(_) => {
                    keys.push(key);
                    if !rx.is_open(member.index, member.id) {
                        closed.push(key);
                    }
                }
            }
        }
        self.next = if count == 0 { 0 } else { (self.next + 1) % count };
        closed.into_iter().for_each(|key| self.remove(key));
        Ok(keys.len() - before)
    }

    /// Prepares the descriptor: `true`, it becomes readable when something comes; `false`, something is there now, look with
    /// [`Self::ready`]. Never blocks, but for up to a second when a link is new.
    ///
    /// # Errors
    /// [`Code::Forked`], [`Code::System`].
    pub fn arm(&mut self) -> Result<bool> {
        self.check()?;
        let mut told = [0u8; 8];
        let _ = rustix::io::read(&*self.nudge, &mut told);
        for watched in &mut self.streams {
            watched.listen(self.epoll.as_fd(), &self.nudge)?;
        }
        let mut quiet = true;
        for member in self.members.iter().flatten() {
            let mut rx = member.stream.rx.lock();
            quiet &= matches!(rx.queued(member.index, member.id), Ok(false)) && rx.arm(member.index);
        }
        Ok(quiet)
    }

    /// Waits until a sink has a message, at most `timeout` (for ever without one), and appends the keys of all that have one.
    /// Spins for a short while, then sleeps. Returns how many.
    ///
    /// # Errors
    /// [`Code::Timeout`], [`Code::Forked`], [`Code::System`]; [`Code::InvalidArgument`] for an empty set without a timeout.
    pub fn wait(&mut self, keys: &mut Vec<usize>, timeout: Option<Duration>) -> Result<usize> {
        if timeout.is_none() && self.is_empty() {
            return Err(Error::new(Code::InvalidArgument, "an empty set would wait for ever"));
        }
        let began = Instant::now();
        let mut spin = Spin::new();
        loop {
            let found = self.ready(keys)?;
            if found > 0 {
                return Ok(found);
            }
            let waited = began.elapsed();
            if timeout.is_some_and(|t| waited >= t) {
                return Err(Code::Timeout.into());
            }
            let looks = {
                let others = self.others();
                !others.are_hogs() && spin.goes_on(&others)
            };
            if looks || !self.arm()? {
                std::hint::spin_loop();
                continue;
            }
            let left = timeout.map(|t| t.saturating_sub(began.elapsed()));
            let left = left.and_then(|t| rustix::event::Timespec::try_from(t).ok());
            let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
            // An interruption by a signal is as good a reason to look as any.
            let _ = poll(&mut fds, left.as_ref());
        }
    }
}

impl Watched {
    /// Takes what made the bells readable, and has the set, which is told by `nudge`, told of what others find for it.
    fn listen(&mut self, epoll: BorrowedFd<'_>, nudge: &Arc<OwnedFd>) -> Result<()> {
        // First, as that may wait: what is taken below is told to the others at once.
        self.stream.session.ensure_bells(&self.stream, false);
        let mut rang = false;
        for (place, bell) in &self.bells {
            match insane_shm::doorbell::take_rings(bell.as_fd()) {
                Some(rings) => rang |= rings > 0,
                None => self.deafen(*place),
            }
        }
        let mut rx = self.stream.rx.lock();
        rx.set_sleeps(nudge, rang);
        let listens = follow(&mut self.bells, &rx, epoll);
        self.stream.unlock(rx);
        listens
    }

    /// A bell that nobody rings any more is readable for ever: [`follow`] takes it out.
    fn deafen(&self, (at, generation): (usize, u32)) {
        let mut rx = self.stream.rx.lock();
        if let Some(link) = rx.links.get_mut(at).and_then(Option::as_mut).filter(|l| l.generation() == generation)
            && !std::mem::replace(&mut link.deaf, true)
        {
            self.stream.unlock(rx);
            // The service thread sees whether the peer is gone.
            self.stream.session.ring();
        }
    }
}

/// Puts the bells of new links into the epoll, and takes those of links that are gone out.
fn follow(bells: &mut Vec<((usize, u32), OwnedFd)>, rx: &Rx, epoll: BorrowedFd<'_>) -> Result<()> {
    let places: Vec<_> =
        rx.links.iter().enumerate().filter_map(|(at, l)| l.as_ref().map(|l| (at, l.generation(), l))).collect();
    // Closing a descriptor takes it out of the epoll only if no other of the same socket is open: the link has one.
    bells.retain(|(place, bell)| {
        let there = places.iter().any(|(at, generation, l)| (*at, *generation) == *place && !l.is_silent());
        if !there {
            let _ = epoll::delete(epoll, bell);
        }
        there
    });
    for (at, generation, link) in places {
        let known = bells.iter().any(|(place, _)| *place == (at, generation));
        if let (Some(bell), false, false) = (&link.bell, known, link.is_silent()) {
            let bell = bell.try_clone().map_err(|e| Error::new(Code::System, format!("dup: {e}")))?;
            epoll::add(epoll, &bell, epoll::EventData::new_u64(1), epoll::EventFlags::IN)
                .map_err(system("epoll_ctl"))?;
            bells.push(((at, generation), bell));
        }
    }
    Ok(())
}
