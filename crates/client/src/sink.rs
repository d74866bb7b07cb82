//! Sinks: the consuming ends of channels, by blocking call, polling, callback and async.

use crate::batch::Batch;
use crate::error::{Code, Error, Result};
use crate::fork;
use crate::message::{Copies, CopyCounts, RawMessage};
use crate::options::{SinkOptions, Wait};
use crate::rx::{Queue, Rx, RxSink, Tasks};
use crate::spin::{Crowd, Others, Spin};
use crate::stream::{Channel, StreamShared};
use insane_shm::biased::BiasedGuard;
use insane_shm::hogs::Hogs;
use insane_shm::wait::{MAX_WAIT_WORDS, wait_any};
use insane_wire::control::{self, to_client, to_runtime};
use insane_wire::id::{ChannelId, SinkId};
use std::future::Future;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// How often a spinning sink looks with the stream's lock in its hand, and how often it takes the lock before it looks at the
/// clock.
const LOOKS: u32 = 64;
const TURNS: u32 = 8;

/// Yields in vain before a sleeping sink leaves it.
const GIVE_WAY: u32 = 4;
/// Sleeps between two trials.
const SLEEPS_PER_TRIAL: u32 = 64;

/// How often a callback's thread looks for messages of a sink that the runtime refuses.
const REFUSED: Duration = Duration::from_millis(20);

/// The consuming end of a channel. Usable from any thread; dropping it closes it.
#[derive(Debug)]
pub struct Sink {
    pub(crate) stream: Arc<StreamShared>,
    pub(crate) index: usize,
    id: SinkId,
    channel: ChannelId,
    wait: Wait,
    forks: u32,
    /// See [`Sink::gives_way`]: up to [`GIVE_WAY`] yields are left, or sleeps until the next trial count down from the top.
    way: AtomicU32,
    crowd: Crowd,
    pub(crate) hogs: Hogs,
    copies: Option<Arc<Copies>>,
}

/// A message, borrowed: read it in place, then drop it to give the memory back.
#[derive(Debug)]
pub struct Message<'a> {
    sink: &'a Sink,
    raw: ManuallyDrop<RawMessage>,
}

impl<'a> Message<'a> {
    #[inline]
    fn new(sink: &'a Sink, raw: RawMessage) -> Self {
        Self { sink, raw: ManuallyDrop::new(raw) }
    }
}

impl Deref for Message<'_> {
    type Target = RawMessage;
    fn deref(&self) -> &RawMessage {
        &self.raw
    }
}

impl Drop for Message<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: it is taken out once, here.
        self.sink.give_back(unsafe { ManuallyDrop::take(&mut self.raw) });
    }
}

impl Sink {
    pub(crate) fn open(stream: Arc<StreamShared>, channel: Channel<'_>, options: SinkOptions) -> Result<Self> {
        let session = stream.session.clone();
        session.check()?;
        stream.check_refusal()?;
        let id = SinkId::random();
        let channel_id = channel.id(&session.domain(), &stream.name)?;
        let copies = options.scattered.then(|| Arc::new(Copies::default()));
        let index = {
            let mut rx = stream.rx.visit();
            let sink = RxSink {
                id,
                queue: Queue::default(),
                open: true,
                flows: 0,
                interrupt: Arc::new(AtomicU32::new(0)),
                tasks: Tasks::default(),
                copies: copies.clone(),
            };
            rx.add_sink(sink)
        };
        let this = Self {
            stream,
            index,
            id,
            channel: channel_id,
            wait: options.wait,
            forks: fork::count(),
            way: AtomicU32::new(0),
            crowd: Crowd::default(),
            hogs: Hogs::default(),
            copies,
        };
        session.remember(crate::session::Endpoint::Sink {
            stream: this.stream.clone(),
            channel: channel.message(),
            id,
            observer: options.observer,
        });
        let body = to_runtime::Body::OpenSink(control::OpenSink {
            stream: this.stream.number.load(Ordering::Acquire),
            channel: Some(channel.message()),
            sink: id.to_bytes(),
            observer: options.observer,
        });
        // On any failure `this` is dropped, which closes what was opened.
        match session.ask(body)? {
            to_client::Body::SinkOpened(opened) => {
                let stream = &this.stream;
                session.wait_until(Duration::from_secs(1), || {
                    stream.rx.visit().sinks[index].as_ref().is_none_or(|s| s.flows >= opened.flows)
                });
                Ok(this)
            }
            other => Err(crate::session::unexpected(&other)),
        }
    }

    /// The channel's id.
    #[must_use]
    pub fn channel(&self) -> ChannelId {
        self.channel
    }

    /// The sink's identity.
    #[must_use]
    pub fn id(&self) -> SinkId {
        self.id
    }

    /// What was counted of copies of its messages' payloads; all zero unless it was opened with [`SinkOptions::scattered`].
    #[must_use]
    pub fn copies(&self) -> CopyCounts {
        self.copies.as_ref().map(|copies| copies.get()).unwrap_or_default()
    }

    #[inline]
    fn check(&self) -> Result<()> {
        if self.forks == fork::count() { Ok(()) } else { Err(Code::Forked.into()) }
    }

    fn is_open(&self) -> bool {
        self.check().is_ok() && self.stream.rx.visit().is_open(self.index, self.id)
    }

    /// Takes the next message, waiting for one for ever, as the sink's options say.
    ///
    /// # Errors
    /// [`Code::Closed`], [`Code::Forked`].
    #[inline(always)]
    pub fn consume(&self) -> Result<Message<'_>> {
        self.next(None).map(|raw| Message::new(self, raw))
    }

    /// Takes the next message, waiting for one at most `timeout`.
    ///
    /// # Errors
    /// [`Code::Timeout`], [`Code::Closed`], [`Code::Forked`].
    pub fn consume_timeout(&self, timeout: Duration) -> Result<Message<'_>> {
        self.next(Some(timeout)).map(|raw| Message::new(self, raw))
    }

    /// Takes the next message if there is one. Never blocks.
    ///
    /// # Errors
    /// [`Code::Closed`], [`Code::Forked`].
    #[inline(always)]
    pub fn try_consume(&self) -> Result<Option<Message<'_>>> {
        Ok(self.try_next()?.map(|raw| Message::new(self, raw)))
    }

    /// As [`Self::try_consume`], for bindings that keep messages by themselves.
    ///
    /// # Safety
    /// The message must be given back to this sink by [`Self::release`], and not be used once the sink was dropped.
    ///
    /// # Errors
    /// As [`Self::try_consume`].
    #[inline(always)]
    pub unsafe fn try_raw(&self) -> Result<Option<RawMessage>> {
        self.try_next()
    }

    #[inline(always)]
    fn try_next(&self) -> Result<Option<RawMessage>> {
        self.check()?;
        let mut rx = self.stream.rx.lock();
        if let Some(message) = rx.take_small(self.index) {
            return Ok(Some(message));
        }
        let taken = rx.take(self.index);
        self.stream.unlock(rx);
        taken
    }

    /// Watches for a small message for a fraction of a microsecond: what mostly comes, in the way that takes least.
    #[inline(always)]
    fn watch(&self) -> Option<RawMessage> {
        for _ in 0..TURNS {
            let mut rx = self.stream.rx.lock();
            // Where threads share the stream, others want the lock as well.
            if !BiasedGuard::is_fast(&rx) {
                return None;
            }
            if rx.look(self.index, LOOKS) {
                return rx.take_small(self.index);
            }
        }
        None
    }

    /// Does something with the receiving half of the stream.
    #[inline(always)]
    fn locked<T>(&self, take: impl FnOnce(&mut Rx) -> Result<T>) -> Result<T> {
        self.check()?;
        let mut rx = self.stream.rx.lock();
        let taken = take(&mut rx);
        self.stream.unlock(rx);
        taken
    }

    /// Calls `f` with the messages that are there, in order, at most `most`, and gives them back after the last; where messages
    /// are small and many this costs a fraction of what taking them one by one does. Returns how many there were: 0 if none,
    /// and not all that are there if there are very many, or some with a deadline. They count as delivered before the first
    /// call. Never blocks; `f` may do what it likes with this sink and others.
    ///
    /// # Errors
    /// [`Code::Closed`], [`Code::Forked`].
    #[inline]
    pub fn try_each(&self, most: usize, mut f: impl FnMut(&RawMessage)) -> Result<usize> {
        let mut batch = Batch::new();
        self.locked(|rx| rx.take_batch(self.index, most, &mut batch))?;
        Ok(self.hand_out(&mut batch, &mut f))
    }

    /// As [`Self::try_each`], after waiting for a message, as the sink's options say, at most `timeout`; `None` waits for ever.
    ///
    /// # Errors
    /// [`Code::Timeout`], [`Code::Closed`], [`Code::Forked`].
    #[inline]
    pub fn consume_each(
        &self,
        most: usize,
        timeout: Option<Duration>,
        mut f: impl FnMut(&RawMessage),
    ) -> Result<usize> {
        let mut batch = Batch::new();
        let mut take = |rx: &mut Rx| Ok(rx.take_batch(self.index, most, &mut batch)?.then_some(()));
        if most > 0 && self.locked(&mut take)?.is_none() {
            self.wait_for(timeout, &mut take)?;
        }
        Ok(self.hand_out(&mut batch, &mut f))
    }

    #[inline(always)]
    fn hand_out(&self, batch: &mut Batch, f: &mut impl FnMut(&RawMessage)) -> usize {
        /// What was taken is given back, also when `f` panics.
        struct Taken<'a>(&'a Sink, &'a mut Batch);
        impl Drop for Taken<'_> {
            #[inline]
            fn drop(&mut self) {
                // A forked child does not have the memory to give back to.
                if self.1.is_lent() && self.0.forks == fork::count() {
                    self.0.stream.rx.lock().give_back(self.1);
                }
            }
        }
        let taken = Taken(self, batch);
        taken.1.each(f)
    }

    /// Gives back a message that [`Self::try_raw`], [`Self::consume_raw`] or [`Self::poll_raw`] of this sink gave. Never blocks.
    #[inline]
    pub fn release(&self, message: RawMessage) {
        self.give_back(message);
    }

    #[inline]
    fn give_back(&self, message: RawMessage) {
        // A forked child does not have the memory to give back to.
        if self.forks == fork::count() {
            self.stream.rx.lock().release(message);
        }
    }

    /// As [`Self::consume_timeout`], for bindings that keep messages by themselves. `None` waits for ever.
    ///
    /// # Safety
    /// As [`Self::try_raw`].
    ///
    /// # Errors
    /// As [`Self::consume_timeout`].
    #[inline(always)]
    pub unsafe fn consume_raw(&self, timeout: Option<Duration>) -> Result<RawMessage> {
        self.next(timeout)
    }

    #[inline(always)]
    fn next(&self, timeout: Option<Duration>) -> Result<RawMessage> {
        if let Some(message) = self.try_next()? {
            return Ok(message);
        }
        if self.wait != Wait::Sleep
            && !self.crowd.is_known()
            && let Some(message) = self.watch()
        {
            return Ok(message);
        }
        self.wait_for(timeout, &mut |rx| rx.take(self.index))
    }

    /// Looks for a message until one is there, for a fraction of a microsecond at most. The lock is held for a few looks at a
    /// time: a look costs a load then, and the message is taken without another lock. The session's own thread gets its turn
    /// between.
    #[inline]
    fn look<T>(&self, take: &mut impl FnMut(&mut Rx) -> Result<Option<T>>) -> Result<Option<T>> {
        self.check()?;
        for _ in 0..TURNS {
            let mut rx = self.stream.rx.lock();
            // Where threads share the stream, others want the lock as well.
            let alone = BiasedGuard::is_fast(&rx);
            if alone && !rx.look(self.index, LOOKS) {
                drop(rx);
                // Who sends may be the other hardware thread of this core, from which looking without rest takes a half.
                std::hint::spin_loop();
                continue;
            }
            let taken = take(&mut rx);
            self.stream.unlock(rx);
            if !matches!(taken, Ok(None)) {
                return taken;
            }
            if !alone {
                std::hint::spin_loop();
            }
        }
        Ok(None)
    }

    #[cold]
    #[inline(never)]
    fn wait_for<T>(&self, timeout: Option<Duration>, take: &mut impl FnMut(&mut Rx) -> Result<Option<T>>) -> Result<T> {
        let others = self.others();
        let hogs = self.wait != Wait::Spin && others.are_hogs();
        let wait = if self.wait == Wait::Adaptive && (hogs || self.crowd.is_there()) { Wait::Sleep } else { self.wait };
        // The clock costs more than a look at the ring, and most waits end within a few looks.
        if wait != Wait::Sleep
            && let Some(message) = self.look(take)?
        {
            return Ok(message);
        }
        if wait == Wait::Sleep
            && !hogs
            && self.gives_way(&others)
            && let Some(message) = self.locked(&mut *take)?
        {
            self.way.store(GIVE_WAY, Ordering::Relaxed);
            return Ok(message);
        }
        let start = Instant::now();
        let mut left = timeout;
        let mut spin = Spin::new();
        loop {
            if left == Some(Duration::ZERO) {
                return Err(Code::Timeout.into());
            }
            let spins = match wait {
                Wait::Spin => true,
                Wait::Adaptive => spin.goes_on(&others),
                Wait::Sleep => false,
            };
            if !spins {
                if wait == Wait::Adaptive {
                    self.crowd.tried(spin.is_wanted());
                }
                self.sleep(left);
                if wait == Wait::Adaptive {
                    spin = Spin::new();
                }
            }
            let found = if wait == Wait::Sleep { self.locked(&mut *take)? } else { self.look(take)? };
            if let Some(message) = found {
                if spins && wait == Wait::Adaptive {
                    self.crowd.tried(false);
                }
                return Ok(message);
            }
            left = timeout.map(|t| t.saturating_sub(start.elapsed()));
        }
    }

    /// What is known of others on the core of whoever waits here.
    fn others(&self) -> Others<'_, impl Fn() -> u64> {
        Others { hogs: &self.hogs, done: || self.stream.rx.lock().taken() }
    }

    /// Lets others have the core for once before a sleep, where others want it. If sinks share a core with their source or
    /// with each other, messages gather meanwhile: eight sinks that slept after each message took an eighth of what they take
    /// so. Alone on a core it only keeps the core from its rest, so it is tried now and then.
    fn gives_way(&self, others: &Others<'_, impl Fn() -> u64>) -> bool {
        let way = self.way.load(Ordering::Relaxed);
        let (mut next, give) = match way {
            0 => (u32::MAX, true),
            1..=GIVE_WAY => (way - 1, true),
            _ if way < u32::MAX - SLEEPS_PER_TRIAL => (0, false),
            _ => (way - 1, false),
        };
        if give && others.give_way() {
            next = GIVE_WAY;
        }
        self.way.store(next, Ordering::Relaxed);
        give
    }

    /// Sleeps until something may have come. Any return is only a hint.
    fn sleep(&self, timeout: Option<Duration>) {
        let Some(sleep) = self.stream.rx.lock().announce(self.index) else { return };
        // More links than one thread can sleep on: look at the rest in slices.
        let slice = (sleep.words.len() > MAX_WAIT_WORDS).then_some(Duration::from_millis(1));
        let timeout = match (timeout, slice) {
            (Some(t), Some(s)) => Some(t.min(s)),
            (t, s) => t.or(s),
        };
        wait_any(&sleep.words, timeout);
        self.stream.rx.lock().awake(&sleep);
    }

    /// Whether a message is there to be consumed now. Never blocks.
    ///
    /// # Errors
    /// [`Code::Closed`], [`Code::Forked`].
    pub fn has_message(&self) -> Result<bool> {
        self.locked(|rx| rx.has(self.index))
    }

    pub(crate) fn announce(&self) -> Option<crate::rx::Sleep> {
        self.stream.rx.lock().announce(self.index)
    }

    pub(crate) fn awake(&self, sleep: &crate::rx::Sleep) {
        self.stream.rx.lock().awake(sleep);
    }

    /// Ends the waits of other threads on this sink for once: they look again and go on waiting.
    pub fn interrupt(&self) {
        self.stream.rx.visit().interrupt();
        self.stream.session.ring();
    }

    /// The next message, as a future for any executor.
    pub fn receive(&self) -> Receive<'_> {
        Receive { sink: self, number: None }
    }

    /// As [`Self::receive`], for bindings: takes the next message, or has the context's waker woken when there may be one.
    ///
    /// # Safety
    /// As [`Self::try_raw`].
    ///
    /// # Errors
    /// [`Code::Closed`], [`Code::Forked`].
    pub unsafe fn poll_raw(&self, cx: &Context<'_>) -> Poll<Result<RawMessage>> {
        self.poll_next(cx, |tasks, waker| tasks.wait_unnumbered(waker))
    }

    /// `wait` notes the waker, and returns one that is not needed any more.
    fn poll_next(
        &self,
        cx: &Context<'_>,
        mut wait: impl FnMut(&mut Tasks, Waker) -> Option<Waker>,
    ) -> Poll<Result<RawMessage>> {
        loop {
            if let Some(raw) = self.try_next()? {
                return Poll::Ready(Ok(raw));
            }
            self.stream.session.ensure_bells(&self.stream, true);
            // Cloning and dropping one may run anything, which may want the lock.
            let mut waker = Some(cx.waker().clone());
            let mut rx = self.stream.rx.lock();
            if let Some(me) = rx.sinks[self.index].as_mut().filter(|me| me.open)
                && let Some(mine) = waker.take()
            {
                waker = wait(&mut me.tasks, mine);
            }
            let quiet = rx.arm(self.index);
            drop(rx);
            drop(waker);
            if quiet {
                return Poll::Pending;
            }
        }
    }

    /// Calls `f` for every message from a thread of its own, until the returned guard is dropped or the sink is closed.
    ///
    /// # Errors
    /// [`Code::System`] when no thread can be started.
    pub fn on_message(self, mut f: impl FnMut(&RawMessage) + Send + 'static) -> Result<Callback> {
        let sink = Arc::new(self);
        let inner = sink.clone();
        let thread = std::thread::Builder::new()
            .name("insane-callback".into())
            .spawn(move || {
                loop {
                    match inner.consume_each(usize::MAX, None, &mut f) {
                        Ok(_) => {}
                        // The runtime refuses it, and may take it back.
                        Err(_) if inner.is_open() => std::thread::sleep(REFUSED),
                        Err(_) => return,
                    }
                }
            })
            .map_err(|e| Error::new(Code::System, e.to_string()))?;
        Ok(Callback { sink, thread: Some(thread) })
    }

    /// Closes the sink: what it has not consumed is counted as `sink_closed`. Waiters return [`Code::Closed`].
    pub fn close(&self) {
        if self.check().is_err() {
            return;
        }
        if self.stream.rx.visit().close_sink(self.index) {
            self.stream.session.close_sink(&self.stream, self.index, self.id);
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.close();
        // In a forked child the lock may be held by a thread that is not there.
        if self.check().is_ok() {
            self.stream.rx.visit().leave_place(self.index);
        }
    }
}

/// A sink whose messages go to a callback. Dropping it closes the sink and waits for the callback to return.
#[derive(Debug)]
pub struct Callback {
    sink: Arc<Sink>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Callback {
    /// The sink.
    #[must_use]
    pub fn sink(&self) -> &Sink {
        &self.sink
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        self.sink.close();
        let Some(thread) = self.thread.take() else { return };
        if self.sink.check().is_err() {
            // A forked child does not have the thread.
            std::mem::forget(thread);
        } else if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

/// The future of [`Sink::receive`].
#[derive(Debug)]
#[must_use]
pub struct Receive<'a> {
    sink: &'a Sink,
    /// Its number among the tasks that wait, once it has waited.
    number: Option<u64>,
}

impl<'a> Future for Receive<'a> {
    type Output = Result<Message<'a>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { sink, number } = self.get_mut();
        let polled = sink.poll_next(cx, |tasks, waker| {
            let (mine, old) = tasks.wait(*number, waker);
            *number = Some(mine);
            old
        });
        polled.map(|raw| raw.map(|raw| Message::new(sink, raw)))
    }
}

impl Drop for Receive<'_> {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that is not there.
        let Some(number) = self.number.filter(|_| self.sink.check().is_ok()) else { return };
        let mut rx = self.sink.stream.rx.lock();
        let waker = rx.sinks[self.sink.index].as_mut().and_then(|me| me.tasks.leave(number));
        drop(rx);
        drop(waker);
    }
}
