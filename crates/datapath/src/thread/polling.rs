//! The thread itself: it looks at its datapaths one after the other, and sleeps on all of them.

use core::sync::atomic::{AtomicBool, Ordering, fence};
use core::time::Duration;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Armed, Datapath};

use super::core::{PinError, pin};
use super::station::{Shared, Station};
use super::wait::{Bell, Looking, Waiting};

/// How long it sleeps at least and at most while a technology cannot wake it.
const BLIND: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(1));

/// How long it sleeps while a technology is too busy to take frames.
const HELD_UP: Duration = Duration::from_micros(100);

/// Where and how a thread polls.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its name, of which the kernel shows 15 bytes.
    pub name: String,
    /// The only core that it is on; `None` for any that it may use.
    pub core: Option<usize>,
    /// How it waits.
    pub waiting: Waiting,
}

/// What the thread and those who have datapaths on it see.
#[derive(Debug)]
pub(super) struct Roster {
    members: Mutex<Vec<Arc<Shared>>>,
    changed: AtomicBool,
    stopping: AtomicBool,
    /// It sleeps, or is about to.
    asleep: AtomicBool,
    bell: Bell,
}

impl Roster {
    fn members(&self) -> MutexGuard<'_, Vec<Arc<Shared>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Shared>>)) {
        change(&mut self.members());
        self.changed.store(true, Ordering::SeqCst);
        self.bell.ring();
    }

    pub(super) fn add(&self, member: &Arc<Shared>) {
        self.change(|members| members.push(member.clone()));
    }

    pub(super) fn remove(&self, member: &Arc<Shared>) {
        self.change(|members| members.retain(|other| !Arc::ptr_eq(other, member)));
    }

    /// There is something to do, of which the thread is told if it sleeps.
    pub(super) fn wake(&self) {
        // As in `User::wake`, the other way: what there is was put before this fence, and is looked for after that of `Looks::sleep`.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            self.bell.ring();
        }
    }

    /// Does something with a station, which its thread lets go of for that: waits for a turn of that thread at most.
    pub(super) fn with<T>(&self, member: &Shared, work: impl FnOnce(&mut Station) -> T) -> T {
        member.wanted.fetch_add(1, Ordering::SeqCst);
        self.bell.ring();
        let result = work(&mut member.station.lock().unwrap_or_else(PoisonError::into_inner));
        member.wanted.fetch_sub(1, Ordering::SeqCst);
        self.bell.ring();
        result
    }
}

#[derive(Debug)]
struct Running {
    roster: Arc<Roster>,
    thread: Option<JoinHandle<()>>,
    pinned: Result<(), PinError>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.roster.stopping.store(true, Ordering::SeqCst);
        self.roster.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A thread that polls the datapaths that are put on it ([`super::OnThread`]). It ends, and is waited for, when the last of its clones and
/// of its datapaths is dropped. May be used by any thread.
#[derive(Debug, Clone)]
pub struct PollingThread(Arc<Running>);

impl PollingThread {
    /// Starts it. Waits until it runs.
    ///
    /// # Errors
    /// The operating system's, for want of threads or descriptors. That the thread cannot be on its core is none: [`Self::pinned`].
    pub fn start(settings: Settings) -> io::Result<Self> {
        Self::start_under(settings, |work| work())
    }

    /// As [`Self::start`]; what the thread does it does by `run`, which so learns when it ends, and how: it panics if a datapath does.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn start_under(settings: Settings, run: impl FnOnce(Box<dyn FnOnce()>) + Send + 'static) -> io::Result<Self> {
        let roster = Arc::new(Roster {
            members: Mutex::new(Vec::new()),
            changed: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            bell: Bell::new()?,
        });
        let (tell, told) = std::sync::mpsc::channel();
        let (of_thread, Settings { name, core, waiting }) = (roster.clone(), settings);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            // Who started it waits for that.
            let _ = tell.send(core.map_or(Ok(()), pin));
            run(Box::new(move || Looks::new(of_thread, waiting).run()));
        })?;
        let pinned = told.recv().map_err(|_| io::Error::other("the thread does not start"))?;
        Ok(Self(Arc::new(Running { roster, thread: Some(thread), pinned })))
    }

    /// Whether it is on its core, or why not.
    ///
    /// # Errors
    /// [`PinError`]; it is then on any core.
    pub fn pinned(&self) -> Result<(), &PinError> {
        self.0.pinned.as_ref().copied()
    }

    pub(super) fn roster(&self) -> &Roster {
        &self.0.roster
    }

    /// Whether it has ended, which it does before its time only if a datapath panics.
    pub(super) fn has_ended(&self) -> bool {
        self.0.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

/// What the thread itself has.
struct Looks {
    roster: Arc<Roster>,
    members: Vec<Arc<Shared>>,
    waiting: Waiting,
    looking: Looking,
    /// How long it sleeps while a technology cannot wake it.
    blind: Duration,
}

/// The station of a member, unless its user wants it.
fn station(member: &Shared) -> Option<MutexGuard<'_, Station>> {
    if member.wanted.load(Ordering::SeqCst) > 0 || !member.open.load(Ordering::SeqCst) {
        return None;
    }
    match member.station.try_lock() {
        Ok(station) => Some(station),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Looks {
    fn new(roster: Arc<Roster>, waiting: Waiting) -> Self {
        let looking = match waiting {
            Waiting::Adaptive { least, most } => Looking::new(least, most),
            Waiting::Spin | Waiting::Sleep => Looking::new(Duration::ZERO, Duration::ZERO),
        };
        Self { roster, members: Vec::new(), waiting, looking, blind: BLIND.0 }
    }

    fn run(mut self) {
        let mut busy_at = Instant::now();
        while !self.roster.stopping.load(Ordering::SeqCst) {
            if self.roster.changed.swap(false, Ordering::SeqCst) {
                self.members.clone_from(&self.roster.members());
            }
            let mut busy = false;
            for member in &self.members {
                busy |= station(member).is_some_and(|mut station| station.turn(member));
            }
            if busy {
                (busy_at, self.blind) = (Instant::now(), BLIND.0);
            } else if self.may_sleep(busy_at) {
                let woken = self.sleep();
                self.looking.slept(busy_at.elapsed(), woken);
            } else if self.waiting == Waiting::Spin {
                core::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    fn may_sleep(&self, busy_at: Instant) -> bool {
        match self.waiting {
            // Without anything to look at nobody spins.
            Waiting::Spin => !self.members.iter().any(|member| member.open.load(Ordering::SeqCst)),
            Waiting::Adaptive { .. } | Waiting::Sleep => busy_at.elapsed() >= self.looking.time(),
        }
    }

    /// Sleeps until there may be something to do. Returns whether it was woken.
    fn sleep(&mut self) -> bool {
        let Self { roster, members, blind, .. } = self;
        roster.asleep.store(true, Ordering::Relaxed);
        // See `Roster::wake`.
        fence(Ordering::SeqCst);
        // Theirs for the whole sleep, so that no handle is closed in it: who wants one rings the bell first.
        let mut stations: Vec<_> =
            members.iter().filter_map(|member| Some((station(member)?, member, Armed::Sleep))).collect();
        let mut timeout = None;
        let mut at_most = |time: Duration| timeout = Some(timeout.map_or(time, |other: Duration| other.min(time)));
        for (station, member, armed) in &mut stations {
            *armed = station.prepare_sleep(member);
            match armed {
                Armed::Ready => at_most(Duration::ZERO),
                Armed::Poll => {
                    at_most(*blind);
                    *blind = (*blind * 2).min(BLIND.1);
                }
                Armed::Sleep => {}
            }
            if station.is_held_up() {
                at_most(HELD_UP);
            }
        }
        // The handle of one that has no slot to receive into would be readable all the time.
        let waits = stations.iter().filter(|(station, _, armed)| *armed == Armed::Sleep && !station.rx.free.is_empty());
        let handles = waits.filter_map(|(station, ..)| station.inner.wake_handle());
        let of = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut waited: Vec<PollFd<'_>> = std::iter::once(roster.bell.as_fd()).chain(handles).map(of).collect();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // A signal ends it early, no more.
        let woken = poll(&mut waited, timeout.as_ref()).is_ok_and(|ready| ready > 0);
        if waited.first().is_some_and(|bell| !bell.revents().is_empty()) {
            roster.bell.clear();
        }
        drop(waited);
        roster.asleep.store(false, Ordering::Relaxed);
        stations.iter().for_each(|(_, member, _)| member.starved.store(false, Ordering::Relaxed));
        woken
    }
}
