//! Faults on the links between a source and the sinks of its host, for the tests of applications (feature `faults`).
//!
//! The runtime is not on the path between two applications of one host, so nothing between them can lose a message for a test.
//! Here the source does it itself, by a plan and a seed: [`Source::inject`]. What was done is known exactly
//! ([`Control::injected`]), and what is lost is counted where a full link's drops are, so that the accounts of the application still
//! balance. A source without a plan works as ever.
//!
//! A plan makes nothing happen that a link cannot do: it has no room, or its messages are late. So no message comes twice, or
//! changed, or out of order, and a reliable stream loses nothing; who wants to see how a loop takes bytes that are wrong emits some.
//!
//! Sinks on other hosts are not concerned, nor are observers that have a session of their own: those see what was emitted.
//! Messages of a source with a plan go one by one: none waits for others to share a slot with.
//!
//! ```no_run
//! use insane::faults::Plan;
//! use insane::{Qos, Session};
//!
//! # fn main() -> insane::Result<()> {
//! let session = Session::open("test")?;
//! let source = session.stream(Qos::default())?.source("indications")?;
//! // One message of a hundred is lost, always the same ones.
//! let faults = source.inject(Plan { lose_ppm: 10_000, ..Plan::default() }, 42)?;
//! // ... the loop under test runs ...
//! faults.cut(true);
//! // ... and goes on without its indications ...
//! faults.set(Plan::default());
//! println!("{:?}", faults.injected());
//! # Ok(())
//! # }
//! ```

use crate::error::{Code, Error, Result};
use crate::source::Source;
use crate::stream::StreamShared;
use crate::tx::Faults;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often what happens, each in parts of a million. The default plan does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// A message finds the link full. On a best-effort stream it is lost to the sinks there, and counted as `sink_full`. Who asks for
    /// room first loses nothing there either and finds none for [`Self::delay`] instead: every emit on a reliable stream,
    /// [`Source::try_send`], [`Source::wait_for_room`]. What a reliable source does at its deadline it does
    /// when the delay is longer.
    pub lose_ppm: u32,
    /// A message is held back for [`Self::delay`]. Those of the same source that follow wait behind it: they stay in order.
    pub delay_ppm: u32,
    /// How long the two last.
    pub delay: Duration,
    /// A call that borrows memory is told that there is none, as if sinks held all: [`Source::buffer`] and [`Source::send`] fail with
    /// [`Code::NoBuffer`], [`Source::try_send`] returns `None`. Nothing was emitted.
    pub refuse_ppm: u32,
    /// No message goes on a link: on a best-effort stream all are lost, and for who asks for room there is none until it is mended. What
    /// was held back stays so.
    pub cut: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self { lose_ppm: 0, delay_ppm: 0, delay: Duration::from_millis(1), refuse_ppm: 0, cut: false }
    }
}

/// What was done so far. A message to two sinks counts twice, as in the counts of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Injected {
    /// Messages that were meant for sinks of this host.
    pub seen: u64,
    /// Lost.
    pub lost: u64,
    /// Lost because the links were cut.
    pub cut: u64,
    /// Held back, without those that had to wait behind them.
    pub delayed: u64,
    /// How often a link had no room for [`Plan::delay`], instead of losing a message.
    pub full: u64,
    /// Calls that were told that there is no memory.
    pub refused: u64,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) plan: Plan,
    pub(crate) injected: Injected,
    /// When the first message that is held back is to go.
    pub(crate) due: Option<Instant>,
    /// The source is gone, or has another plan.
    pub(crate) over: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Changes the plan while the source works, from any thread. The faults go on when it is dropped.
#[derive(Debug, Clone, Default)]
pub struct Control {
    shared: Arc<Shared>,
}

impl Control {
    /// Taken after the stream's lock if both are.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the thread that lets messages go.
    pub(crate) fn ring(&self) {
        self.shared.changed.notify_all();
    }

    /// From the next message on this happens. The numbers that decide are drawn for each message whatever the plan: the messages
    /// that a plan hits are the same ones whatever plans there were before.
    pub fn set(&self, plan: Plan) {
        self.change(|p| *p = plan);
    }

    /// Cuts the links, or mends them.
    pub fn cut(&self, cut: bool) {
        self.change(|plan| plan.cut = cut);
    }

    fn change(&self, change: impl FnOnce(&mut Plan)) {
        let mut state = self.lock();
        change(&mut state.plan);
        // What was held back at a cut may have to go.
        state.due = Some(Instant::now());
        self.ring();
    }

    /// What happens now.
    #[must_use]
    pub fn plan(&self) -> Plan {
        self.lock().plan
    }

    /// What was done so far.
    #[must_use]
    pub fn injected(&self) -> Injected {
        self.lock().injected
    }

    /// Lets messages go when they are due, until the source is gone: nobody may call it any more.
    pub(crate) fn keep_time(&self, stream: &Weak<StreamShared>, number: u32) {
        let mut state = self.lock();
        loop {
            let left = state.due.map(|due| due.saturating_duration_since(Instant::now()));
            let changed = &self.shared.changed;
            state = match left {
                _ if state.over => return,
                None => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) if !left.is_zero() => {
                    changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    state.due = None;
                    drop(state);
                    let Some(stream) = stream.upgrade() else { return };
                    stream.tx.visit().let_go(number, Instant::now());
                    drop(stream);
                    self.lock()
                }
            };
        }
    }
}

/// Numbers that a seed decides (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// The `nth` sequence of a seed: none is a part of another that is near.
    pub(crate) fn new(seed: u64, nth: u64) -> Self {
        Self(Self(seed ^ Self(nth).next()).next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below a million.
    pub(crate) fn part(&mut self) -> u32 {
        (((self.next() >> 32) * 1_000_000) >> 32) as u32
    }
}

impl Source {
    /// From the next message on, the links to the sinks of this host do what the plan says; an earlier plan ends, and what it
    /// held back goes. The same seed and messages give the same faults: each link has a sequence of its own, in the order in which the
    /// links came to have sinks of the source.
    ///
    /// # Errors
    /// [`Code::Closed`], [`Code::Forked`]; [`Code::System`] when there can be no thread for what is to be held back.
    pub fn inject(&self, plan: Plan, seed: u64) -> Result<Control> {
        self.check()?;
        let control = Control::default();
        control.set(plan);
        let faults = Faults::new(control.clone(), seed);
        let (timer, stream, number) = (control.clone(), Arc::downgrade(&self.stream), self.number);
        std::thread::Builder::new()
            .name("insane-faults".into())
            .spawn(move || timer.keep_time(&stream, number))
            .map_err(|e| Error::new(Code::System, e.to_string()))?;
        self.stream.tx.visit().spoil(self.index, faults)?;
        Ok(control)
    }
}
