//! One device of raw frames as two datapaths: datagrams, and frames over TCP.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use insane_datapath::batch::{Outcome, Place, RxBatch, RxReport, TxBatch, TxReport};
use insane_datapath::raw::RawDatapath;
use insane_datapath::{Address, Armed, Capabilities, Datapath, DatapathError, Foreign, Lendable, Split, Stats};
use rustix::event::epoll;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::connections::{Connections, HOLDS, MAX_RECORD, StreamStats, Went, most, tcp};
use crate::{DatagramConfig, Datagrams, Opened};

/// How often [`Streams::arm`] looks for what came while it was at it, before it says that there is something.
const LOOKS: usize = 4;

/// What both ends share.
#[derive(Debug)]
struct Device<R> {
    datagrams: Datagrams<R>,
    /// Whether datagrams are wanted.
    wanted: bool,
    /// There while frames over TCP are wanted.
    connections: Option<Connections>,
    /// The most that there may be.
    most: usize,
    /// What they had counted when they were closed.
    counted: StreamStats,
    /// The device was looked at for what has come since frames over TCP were last asked for.
    looked: bool,
    /// Something may be there to be received over TCP that no segment announces any more.
    unread: bool,
}

impl<R: RawDatapath> Device<R> {
    /// Sees to what came and is due.
    fn serve(&mut self) -> u64 {
        if !std::mem::take(&mut self.looked) {
            self.datagrams.look_for_answers();
        }
        let now = self.datagrams.now();
        let Some(opened) = &mut self.datagrams.opened else { return now };
        if !self.wanted {
            // Nobody will ask for them.
            opened.came.clear();
        }
        if now >= opened.due.min(self.connections.as_ref().map_or(u64::MAX, Connections::due)) {
            opened.poll(now);
        }
        if let Some(connections) = self.connections.as_mut().filter(|_| opened.stirred) {
            connections.tend(&mut opened.engine, now);
            self.unread = true;
            // What is said by that goes with the next poll, and that is now.
            opened.poll(now);
            opened.stirred = false;
        }
        opened.outbox.flush(&mut self.datagrams.raw);
        now
    }

    /// Lets TCP say what it has to say after something was written or read.
    fn speak(&mut self, now: u64) {
        if let Some(opened) = &mut self.datagrams.opened {
            opened.poll(now);
            opened.outbox.flush(&mut self.datagrams.raw);
        }
    }

    /// Lets go of the device if nobody wants it any more.
    fn let_go(&mut self) {
        if !self.wanted && self.connections.is_none() {
            self.datagrams.close();
        }
    }

    fn listen(&mut self) -> Result<(), String> {
        let own = Datagrams::address(&self.datagrams);
        let (Some(Address::Ip(own)), Some(opened)) = (own, &mut self.datagrams.opened) else {
            return Err("it has no address".into());
        };
        let connections = Connections::new(&mut opened.engine, own, self.most).map_err(|e| e.to_string())?;
        self.connections = Some(connections);
        Ok(())
    }

    fn stream_stats(&self) -> StreamStats {
        self.connections.as_ref().map_or(self.counted, |connections| connections.stats)
    }
}

type Both<R> = Arc<Mutex<Device<R>>>;

fn lock<R>(device: &Both<R>) -> MutexGuard<'_, Device<R>> {
    // What a panic elsewhere has left is a device that works, or is found out to be lost.
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Over one device, datagrams and frames over TCP: both at the address and port of `config`. Both closed; the device is open while
/// either is. Its filter must let in what is for the address, TCP and questions for it included.
///
/// The two may be used by different threads, one of which then waits while the other is at it; meant is one thread that asks both, as
/// what comes for one may wait until the other is asked.
///
/// There are connections for so many `peers`, up to 512, and for 32 if they are fewer; each takes 512 KiB while it is there.
pub fn with_streams<R: RawDatapath>(raw: R, config: DatagramConfig, peers: usize) -> (SharedDatagrams<R>, Streams<R>) {
    let most = most(peers);
    let datagrams = Datagrams { tcp: Some(tcp(most)), ..Datagrams::new(raw, config) };
    let (wanted, connections, looked, unread, counted) = (false, None, false, false, StreamStats::default());
    let device = Arc::new(Mutex::new(Device { datagrams, wanted, connections, most, counted, looked, unread }));
    let datagrams = SharedDatagrams { device: Arc::clone(&device), wake: None, lends: Vec::new() };
    let streams = Streams { device, wake: None, stats: Stats::default() };
    (datagrams, streams)
}

/// A memory that the device lends, by a descriptor of this end's own.
#[derive(Debug)]
struct Lent {
    memory: OwnedFd,
    stride: u64,
    slots: u32,
    most: u32,
}

/// The datagrams of a device that also carries frames over TCP: as [`Datagrams`].
#[derive(Debug)]
pub struct SharedDatagrams<R: RawDatapath> {
    device: Both<R>,
    wake: Option<OwnedFd>,
    lends: Vec<Lent>,
}

impl<R: RawDatapath> SharedDatagrams<R> {
    /// Asks what carries the frames.
    pub fn with_raw<T>(&self, ask: impl FnOnce(&R) -> T) -> T {
        ask(lock(&self.device).datagrams.raw())
    }
}

fn duplicate(of: BorrowedFd<'_>) -> Result<OwnedFd, DatapathError> {
    of.try_clone_to_owned().map_err(|source| DatapathError::System { call: "fcntl", source })
}

impl<R: RawDatapath> Datapath for SharedDatagrams<R> {
    fn capabilities(&self) -> Capabilities {
        lock(&self.device).datagrams.capabilities()
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        let mut device = lock(&self.device);
        if device.wanted {
            return Ok(());
        }
        device.datagrams.open()?;
        let seen = || {
            let wake = device.datagrams.wake_handle().map(duplicate).transpose()?;
            let lends = device.datagrams.lends().into_iter().map(|Lendable { memory, stride, slots, most }| {
                duplicate(memory).map(|memory| Lent { memory, stride, slots, most })
            });
            lends.collect::<Result<Vec<_>, _>>().map(|lends| (wake, lends))
        };
        let seen = seen().inspect_err(|_| device.let_go())?;
        (self.wake, self.lends) = seen;
        device.wanted = true;
        Ok(())
    }

    fn address(&self) -> Option<Address> {
        let device = lock(&self.device);
        device.datagrams.address().filter(|_| device.wanted)
    }

    fn frame_limit(&mut self, to: Address) -> usize {
        lock(&self.device).datagrams.frame_limit(to)
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        let mut device = lock(&self.device);
        if device.wanted {
            return device.datagrams.transmit(batch);
        }
        let refused = batch.pending().len();
        batch.settle(refused, Outcome::Failed);
        TxReport { refused, ..TxReport::default() }
    }

    fn receive(&mut self, batch: &mut RxBatch, place: Option<&mut dyn Place>) -> RxReport {
        let mut device = lock(&self.device);
        if !device.wanted {
            return RxReport::default();
        }
        device.looked = true;
        device.datagrams.receive(batch, place)
    }

    fn split(&mut self, most: usize) -> Split {
        let mut device = lock(&self.device);
        let split = device.datagrams.split(most);
        // It is woken for what comes by its parts, too; without a descriptor for that it is to be polled.
        self.wake = device.datagrams.wake_handle().and_then(|wake| duplicate(wake).ok());
        split
    }

    fn lends(&self) -> Vec<Lendable<'_>> {
        let all = self.lends.iter().map(|Lent { memory, stride, slots, most }| {
            let (stride, slots, most) = (*stride, *slots, *most);
            Lendable { memory: memory.as_fd(), stride, slots, most }
        });
        all.collect()
    }

    fn wake_handle(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(AsFd::as_fd)
    }

    fn arm(&mut self) -> Armed {
        let armed = lock(&self.device).datagrams.arm();
        if armed == Armed::Sleep && self.wake.is_none() { Armed::Poll } else { armed }
    }

    fn lost(&mut self) -> Option<String> {
        lock(&self.device).datagrams.lost()
    }

    fn stats(&self) -> Stats {
        lock(&self.device).datagrams.stats()
    }

    fn close(&mut self) {
        let mut device = lock(&self.device);
        device.wanted = false;
        if let Some(opened) = &mut device.datagrams.opened {
            opened.came.clear();
        }
        device.let_go();
        (self.wake, self.lends) = (None, Vec::new());
    }
}

impl<R: RawDatapath> Drop for SharedDatagrams<R> {
    fn drop(&mut self) {
        self.close();
    }
}

/// What wakes who waits for frames over TCP: the device, and TCP's clock.
#[derive(Debug)]
struct Wake {
    both: OwnedFd,
    clock: OwnedFd,
}

impl Wake {
    fn new(device: BorrowedFd<'_>) -> Result<Self, DatapathError> {
        let failed = |call| move |e: rustix::io::Errno| DatapathError::System { call, source: e.into() };
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let clock = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed("timerfd_create"))?;
        let both = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll_create"))?;
        for fd in [device, clock.as_fd()] {
            epoll::add(&both, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(failed("epoll_ctl"))?;
        }
        Ok(Self { both, clock })
    }

    /// Rings in so many nanoseconds; `None`: not by itself.
    fn ring_in(&self, after: Option<u64>) {
        const SECOND: u64 = 1_000_000_000;
        // Zero would be never.
        let after = after.map_or(0, |after| after.max(1));
        let it_value = Timespec { tv_sec: (after / SECOND) as i64, tv_nsec: (after % SECOND) as _ };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let when = Itimerspec { it_interval, it_value };
        // It fails for no time that this makes.
        let _ = rustix::time::timerfd_settime(&self.clock, TimerfdTimerFlags::empty(), &when);
    }
}

/// Frames over TCP on a device of raw frames: whole, in order for each peer, none lost while a connection stands. Addresses are those
/// of the datagrams: a peer's IP address and the port at which it listens, the same number for UDP and TCP.
///
/// A connection is opened by the first frame for an address, and again when it has ended; frames that were on their way in it are lost
/// then, and a peer that cannot be reached is tried ten times a second at most: frames for it are unreachable meanwhile. Frames that
/// TCP has no room for stay pending, and the frames behind them in the batch with them, for at most half a second in which their peer takes
/// nothing: then they are unreachable until it takes something. So one that is gone does not hold up the others. What can be received
/// is asked for by anyone in need of an answer: [`Datapath::transmit`] with an empty batch, or [`Datapath::receive`], now and then.
///
/// What peers can take of this host is bounded: two connections for each peer that [`with_streams`] was told of, 64 at least, with
/// 512 KiB each, 4 of them from one address; then the one that was idle for longest makes room, which is counted as evicted. Each frame is copied twice on either side.
#[derive(Debug)]
pub struct Streams<R: RawDatapath> {
    device: Both<R>,
    wake: Option<Wake>,
    stats: Stats,
}

/// Says what became of connections since they were opened last. From any thread, and it never waits: while the device is used it says what
/// it said last.
pub type StreamCounts = Arc<dyn Fn() -> StreamStats + Send + Sync>;

impl<R: RawDatapath> Streams<R> {
    /// What became of connections since it was opened last.
    #[must_use]
    pub fn stream_stats(&self) -> StreamStats {
        lock(&self.device).stream_stats()
    }

    /// What says that also when this is used elsewhere.
    #[must_use]
    pub fn counts(&self) -> StreamCounts
    where
        R: 'static,
    {
        let (device, seen) = (Arc::clone(&self.device), Mutex::new(StreamStats::default()));
        Arc::new(move || {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if let Ok(device) = device.try_lock() {
                *seen = device.stream_stats();
            }
            *seen
        })
    }
}

impl<R: RawDatapath> Datapath for Streams<R> {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::plain(lock(&self.device).datagrams.capabilities().technology, MAX_RECORD);
        // By TCP's checksum.
        (can.detects_changes, can.foreign, can.holds) = (true, Foreign::Copies, HOLDS);
        can
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        let mut device = lock(&self.device);
        if device.connections.is_some() {
            return Ok(());
        }
        device.datagrams.open()?;
        let wake = device.datagrams.wake_handle().map(Wake::new).transpose();
        let technology = device.datagrams.capabilities().technology;
        let opened = wake.and_then(|wake| {
            device.listen().map_err(|reason| DatapathError::Unavailable { technology, reason }).map(|()| wake)
        });
        self.wake = opened.inspect_err(|_| device.let_go())?;
        (self.stats, device.unread) = (Stats::default(), false);
        Ok(())
    }

    fn address(&self) -> Option<Address> {
        let device = lock(&self.device);
        device.datagrams.address().filter(|_| device.connections.is_some())
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        let mut report = TxReport::default();
        let mut guard = lock(&self.device);
        let device = &mut *guard;
        let now = device.serve();
        let (Some(connections), Some(opened)) = (&mut device.connections, &mut device.datagrams.opened) else {
            report.refused = batch.pending().len();
            batch.settle(report.refused, Outcome::Failed);
            return report;
        };
        let (engine, mut wrote) = (&mut opened.engine, false);
        while let Some(frame) = batch.pending().first() {
            let bytes = frame.len() as u64;
            let Went::Settled(outcome) = connections.send(engine, batch, frame, now) else { break };
            batch.settle(1, outcome);
            wrote = true;
            if outcome == Outcome::Sent {
                report.sent += 1;
                (self.stats.sent_frames, self.stats.sent_bytes) =
                    (self.stats.sent_frames + 1, self.stats.sent_bytes + bytes);
            } else {
                report.refused += 1;
                self.stats.refused_frames += 1;
            }
        }
        report.pending = batch.pending().len();
        self.stats.busy += u64::from(report.pending > 0);
        if wrote || report.pending > 0 {
            device.speak(now);
        }
        report
    }

    fn receive(&mut self, batch: &mut RxBatch, _place: Option<&mut dyn Place>) -> RxReport {
        batch.landed.clear();
        batch.heads.clear();
        // Nothing was lent.
        batch.back.clear();
        let mut guard = lock(&self.device);
        let device = &mut *guard;
        let now = device.serve();
        let (Some(connections), Some(opened)) = (&mut device.connections, &mut device.datagrams.opened) else {
            return RxReport::default();
        };
        if !device.unread {
            return RxReport::default();
        }
        let report = connections.receive(&mut opened.engine, batch, now, &mut self.stats.received_bytes);
        self.stats.received_frames += report.frames as u64;
        device.unread = report.more;
        if report.frames > 0 {
            // There is room again, of which the peers are told.
            device.speak(now);
        }
        report
    }

    fn wake_handle(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(|wake| wake.both.as_fd())
    }

    fn arm(&mut self) -> Armed {
        let mut guard = lock(&self.device);
        let device = &mut *guard;
        for _ in 0..LOOKS {
            device.looked = false;
            device.serve();
            let (Some(connections), Some(opened)) = (&mut device.connections, &mut device.datagrams.opened) else {
                return Armed::Poll;
            };
            // What was found on the way is for those who want datagrams: they, too, must not sleep.
            if connections.is_ready(&mut opened.engine) || !opened.came.is_empty() {
                device.unread = true;
                return Armed::Ready;
            }
            let due = opened.due.min(connections.due());
            match device.datagrams.raw.arm() {
                Armed::Ready => {}
                Armed::Poll => return Armed::Poll,
                Armed::Sleep => {
                    let after = due.saturating_sub(device.datagrams.now());
                    let wake = self.wake.as_ref();
                    wake.into_iter().for_each(|wake| wake.ring_in((due < u64::MAX).then_some(after)));
                    return Armed::Sleep;
                }
            }
        }
        Armed::Ready
    }

    fn lost(&mut self) -> Option<String> {
        lock(&self.device).datagrams.lost()
    }

    fn stats(&self) -> Stats {
        self.stats
    }

    fn close(&mut self) {
        let mut guard = lock(&self.device);
        let device = &mut *guard;
        let now = device.datagrams.now();
        if let Some(connections) = device.connections.take() {
            device.counted = connections.stats;
            if let Some(Opened { engine, outbox, due, .. }) = &mut device.datagrams.opened {
                connections.close(engine, now, outbox);
                *due = 0;
                outbox.flush(&mut device.datagrams.raw);
            }
        }
        device.let_go();
        self.wake = None;
    }
}

impl<R: RawDatapath> Drop for Streams<R> {
    fn drop(&mut self) {
        self.close();
    }
}
