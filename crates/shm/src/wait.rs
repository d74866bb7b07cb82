//! Sleeping and waking across processes, with a system call of the waker only when the other side said that it sleeps.
//!
//! The protocol is the same in both directions of a link: a consumer sleeps for descriptors, a producer for room. Each side
//! owns two words in its own control memory: `sleep`, which says whether it sleeps, and `wake`, on which the *other* side
//! sleeps and which it counts up to wake it. Everyone writes only its own memory and sleeps on a read-only mapping.
//!
//! ```text
//!  sleeper                                         waker
//!  seen := peer.wake                               publish
//!  own.sleep := (n+1) futex                        fence SeqCst          (once per batch)
//!  fence SeqCst                                    if peer.sleep says so, and not woken for this n already:
//!  look again; if there is something, do not sleep     own.wake += 1; futex_wake(own.wake)
//!  futex_wait(peer.wake, seen)
//!  own.sleep := (n+1) awake
//! ```
//!
//! Invariants:
//! - `INV-WAIT-1` Either the waker sees `sleep` set, or the sleeper's second look sees what was published: the two SeqCst
//!   fences order (store sleep, look) against (publish, load sleep).
//! - `INV-WAIT-2` `seen` is read before `sleep` is set, so a wake-up between the two looks makes `futex_wait` return at once.
//! - `INV-WAIT-3` The waker gives one wake-up per sleep (`n`), so a sleeper that is slow to run costs one system call.
//! - `INV-WAIT-4` All words of the peer are hints: false ones cost this side a system call or a spurious return, never more.

use crate::mutate::{Mutation, left_out};
use crate::ring::{Block, Head};
use crate::sync::{AtomicU32, Ordering, fence};
use std::ptr::NonNull;
use std::sync::Arc;
#[cfg(loom)]
use std::time::Duration;

/// How the threads of a side sleep: the two low bits of its `sleep` word. Several threads may sleep in both ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SleepKinds(u32);

impl SleepKinds {
    /// On the peer's `wake` word.
    pub const FUTEX: Self = Self(1);
    /// In an epoll set: the peer leaves a byte on the doorbell socket.
    pub const DOORBELL: Self = Self(2);

    /// Both of two ways.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What a waker must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeNeed {
    /// Nothing: the peer is awake, or was woken already, or has just been woken by futex.
    Nothing,
    /// Leave a byte on the peer's doorbell.
    Ring,
}

/// This side's part in waking the peer. Keeps what it needs in private memory.
#[derive(Debug, Default)]
pub(crate) struct Waker {
    woken: u32,
    /// Wake-ups given, for the tests and the counters.
    pub(crate) wakes: u64,
}

impl Waker {
    /// To be called after publishing, once per batch. Makes a system call only if the peer sleeps.
    #[inline]
    pub(crate) fn wake<const A: usize, const B: usize>(&mut self, own: &Block<A>, peer: &Block<B>) -> WakeNeed {
        if !left_out(Mutation::WakerFence) {
            // INV-WAIT-1; pairs with: the fence in `Sleeper::prepare`.
            fence(Ordering::SeqCst);
        }
        let word = peer.head().sleep.0.load(Ordering::Relaxed);
        if word & 3 == 0 || word == self.woken {
            return WakeNeed::Nothing;
        }
        self.wake_slowly(own.head(), word)
    }

    #[cold]
    fn wake_slowly(&mut self, own: &Head, word: u32) -> WakeNeed {
        self.woken = word;
        self.wakes += 1;
        if word & SleepKinds::FUTEX.0 != 0 {
            // Relaxed: the futex call orders it for the sleeper; only this side writes the word.
            let count = own.wake.0.load(Ordering::Relaxed);
            own.wake.0.store(count.wrapping_add(1), Ordering::Relaxed);
            wake_all(own);
        }
        if word & SleepKinds::DOORBELL.0 != 0 { WakeNeed::Ring } else { WakeNeed::Nothing }
    }
}

/// This side's part in sleeping.
#[derive(Debug, Default)]
pub(crate) struct Sleeper {
    count: u32,
}

/// A sleep that was announced and not yet begun.
#[derive(Debug, Clone, Copy)]
pub struct Announced {
    seen: u32,
}

impl Sleeper {
    /// Announces a sleep; the caller looks again after it and then either waits or calls [`Self::awake`].
    pub(crate) fn prepare<const A: usize, const B: usize>(
        &mut self,
        own: &Block<A>,
        peer: &Block<B>,
        kinds: SleepKinds,
    ) -> Announced {
        // INV-WAIT-2. Acquire keeps the load before the announcement.
        let seen = peer.head().wake.0.load(Ordering::Acquire);
        self.count = self.count.wrapping_add(1);
        own.head().sleep.0.store(self.count << 2 | kinds.0, Ordering::Relaxed);
        if !left_out(Mutation::SleeperFence) {
            // INV-WAIT-1; pairs with: the fence in `Waker::wake`.
            fence(Ordering::SeqCst);
        }
        crate::steps::reach(crate::steps::Step::Sleep);
        Announced { seen }
    }

    /// Takes the announcement back: after waking, or when the second look found something.
    pub(crate) fn awake<const A: usize>(&mut self, own: &Block<A>) {
        own.head().sleep.0.store(self.count << 2, Ordering::Relaxed);
    }
}

/// Where a thread sleeps: a word and what it held. It keeps the memory of the word alive, so that the link may go meanwhile.
#[derive(Debug, Clone)]
pub struct WaitWord {
    word: NonNull<AtomicU32>,
    seen: u32,
    /// Only threads of this process wake it, which is cheaper.
    #[cfg(not(loom))]
    own: bool,
    #[cfg(loom)]
    model: NonNull<ModelFutex>,
    _alive: Arc<dyn std::any::Any + Send + Sync>,
}

// SAFETY: the word is atomic and lives as long as this value.
unsafe impl Send for WaitWord {}
// SAFETY: as above.
unsafe impl Sync for WaitWord {}

impl WaitWord {
    pub(crate) fn new<const B: usize>(peer: &Block<B>, announced: Announced) -> Self {
        Self {
            word: NonNull::from(&peer.head().wake.0),
            seen: announced.seen,
            #[cfg(not(loom))]
            own: false,
            #[cfg(loom)]
            model: NonNull::from(&peer.head().model),
            _alive: peer.backing(),
        }
    }

    /// A word of this process, by which its other threads end a wait with [`wake_own`]; `seen` is read before the caller's
    /// second look.
    #[cfg(not(loom))]
    #[must_use]
    pub fn interrupt(word: &Arc<AtomicU32>, seen: u32) -> Self {
        Self { word: NonNull::from(&**word), seen, own: true, _alive: word.clone() }
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: `_alive` keeps it.
        unsafe { self.word.as_ref() }
    }
}

/// How a wait ended. Any of these is only a hint to look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// A word changed, a wake-up came, or a signal was handled.
    MaybeReady,
    /// The time ran out.
    TimedOut,
}

#[cfg(not(loom))]
mod real {
    use super::{Head, WaitWord, Woken};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    /// The most words one thread waits on at once (the kernel's FUTEX_WAITV_MAX).
    pub const MAX_WAIT_WORDS: usize = 128;

    #[repr(C)]
    struct FutexWaitv {
        val: u64,
        uaddr: u64,
        flags: u32,
        reserved: u32,
    }

    const FEW: usize = 4;

    /// FUTEX2_SIZE_U32 of the kernel's interface.
    const SIZE_U32: u32 = 2;
    /// FUTEX2_PRIVATE: not for words that are shared between processes.
    const PRIVATE: u32 = 128;

    pub(super) fn wake_all(head: &Head) {
        wake(&head.wake.0, libc::FUTEX_WAKE);
    }

    /// Wakes all threads of this process that sleep on a word of its own. Never blocks.
    pub fn wake_own(word: &AtomicU32) {
        wake(word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG);
    }

    fn wake(word: &AtomicU32, operation: i32) {
        // SAFETY: FUTEX_WAKE only uses the address, which is that of a live reference.
        unsafe {
            libc::syscall(libc::SYS_futex, word.as_ptr(), operation, i32::MAX, 0usize, 0usize, 0u32);
        }
    }

    /// Sleeps until one of `words` no longer holds what was seen, a wake-up comes or `timeout` has passed; for ever
    /// without one. At most [`MAX_WAIT_WORDS`] words; the rest is not looked at.
    pub fn wait_any(words: &[WaitWord], timeout: Option<Duration>) -> Woken {
        if let [one] = words {
            return wait_one(one, timeout);
        }
        if words.is_empty() {
            return Woken::MaybeReady;
        }
        let entry = |w: &WaitWord| FutexWaitv {
            val: u64::from(w.seen),
            uaddr: w.word().as_ptr() as u64,
            flags: if w.own { SIZE_U32 | PRIVATE } else { SIZE_U32 },
            reserved: 0,
        };
        // A sink mostly waits for few.
        let (few, many): ([FutexWaitv; FEW], Vec<FutexWaitv>);
        let list = if words.len() <= FEW {
            few = std::array::from_fn(|i| entry(words.get(i).unwrap_or(&words[0])));
            &few[..words.len()]
        } else {
            many = words.iter().take(MAX_WAIT_WORDS).map(entry).collect();
            &many[..]
        };
        let deadline = timeout.map(absolute);
        // SAFETY: the list and the time outlive the call; the kernel only reads the words, which are live references.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_futex_waitv,
                list.as_ptr(),
                u32::try_from(list.len()).unwrap_or(0),
                0u32,
                deadline.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
                libc::CLOCK_MONOTONIC,
            )
        };
        if rc >= 0 {
            return Woken::MaybeReady;
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::ETIMEDOUT) => Woken::TimedOut,
            // Old kernels and strict sandboxes lack the call: sleep in short slices on the first word instead.
            Some(libc::ENOSYS | libc::EPERM | libc::EINVAL) => wait_in_slices(words, timeout),
            _ => Woken::MaybeReady,
        }
    }

    fn wait_one(word: &WaitWord, timeout: Option<Duration>) -> Woken {
        let relative = timeout.map(to_timespec);
        // SAFETY: the time outlives the call; the kernel only reads the word, which is a live reference.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.word().as_ptr(),
                if word.own { libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG } else { libc::FUTEX_WAIT },
                word.seen,
                relative.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
                0usize,
                0u32,
            )
        };
        if rc < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ETIMEDOUT) {
            return Woken::TimedOut;
        }
        Woken::MaybeReady
    }

    fn wait_in_slices(words: &[WaitWord], timeout: Option<Duration>) -> Woken {
        const SLICE: Duration = Duration::from_millis(1);
        let start = std::time::Instant::now();
        loop {
            if words.iter().any(|w| w.word().load(Ordering::Relaxed) != w.seen) {
                return Woken::MaybeReady;
            }
            if timeout.is_some_and(|t| start.elapsed() >= t) {
                return Woken::TimedOut;
            }
            if let Some(first) = words.first() {
                wait_one(first, Some(SLICE));
            }
        }
    }

    fn to_timespec(t: Duration) -> libc::timespec {
        libc::timespec { tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(t.subsec_nanos()) }
    }

    fn absolute(after: Duration) -> libc::timespec {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let nanos = now.tv_nsec + i64::from(after.subsec_nanos());
        let secs = now.tv_sec.saturating_add(i64::try_from(after.as_secs()).unwrap_or(i64::MAX));
        libc::timespec { tv_sec: secs.saturating_add(nanos / 1_000_000_000), tv_nsec: nanos % 1_000_000_000 }
    }
}

/// Ends the waits of this process's own threads on the peer's wake word, by which the peer wakes them. A thread that has
/// announced its sleep and does not sleep yet is missed: who must reach it calls again until it has left.
#[cfg(not(loom))]
pub(crate) fn rouse<const B: usize>(peer: &Block<B>) {
    wake_all(peer.head());
}

#[cfg(not(loom))]
use real::wake_all;
#[cfg(not(loom))]
pub use real::{MAX_WAIT_WORDS, wait_any, wake_own};

/// The model's futex: the check of the word and the going to sleep are one step, as in the kernel.
#[cfg(loom)]
#[derive(Debug, Default)]
pub struct ModelFutex {
    lock: loom::sync::Mutex<()>,
    queue: loom::sync::Condvar,
}

#[cfg(loom)]
fn wake_all(head: &Head) {
    let _held = head.model.lock.lock().unwrap();
    head.model.queue.notify_all();
}

/// Sleeps on the first word, in a model.
#[cfg(loom)]
pub fn wait_any(words: &[WaitWord], _timeout: Option<Duration>) -> Woken {
    let w = &words[0];
    // SAFETY: `_alive` keeps it.
    let model = unsafe { w.model.as_ref() };
    let held = model.lock.lock().unwrap();
    if w.word().load(Ordering::Relaxed) == w.seen {
        drop(model.queue.wait(held).unwrap());
    }
    Woken::MaybeReady
}
