//! A wrapper by which what a datapath sends and receives can be captured while it works, as pcapng.
//!
//! Off, it costs one branch a batch, and over a boxed datapath one more dynamic call. On, it copies each frame into a bounded buffer that somebody else writes away
//! ([`Capture`]): the datapath's thread never waits for it, and what finds no room is not captured, and counted.
//!
//! Over a datapath of whole frames the capture has them as they are. Over one of datagrams it has them behind an IP and a UDP
//! header that say what the datagram's addresses were; the rest of these headers is made up, and a datagram that a kernel cut or
//! joined is shown as it was handed in. Over others, frames are bare.

use core::ops::Range;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::batch::{Outcome, Place, RxBatch, RxReport, TxBatch, TxFrame, TxReport};
use crate::memory::Slot;
use crate::pcapng::{self, Direction};
use crate::raw::{Body, Front, InPlace, RawDatapath, RawSplit};
use crate::{Address, Armed, Capabilities, Datapath, DatapathError, Lendable, Split, Stats};

/// Frames that were seen while a capture was on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Handed to the capture.
    pub captured: u64,
    /// Not captured for want of room: the writer was too slow.
    pub dropped: u64,
}

/// What both ends of a capture see.
#[derive(Debug, Default)]
struct Queue {
    /// Bytes that wait for the writer.
    bytes: AtomicUsize,
    captured: AtomicU64,
    dropped: AtomicU64,
}

impl Queue {
    fn counts(&self) -> Counts {
        let [captured, dropped] = [&self.captured, &self.dropped].map(|count| count.load(Ordering::Relaxed));
        Counts { captured, dropped }
    }
}

/// The datapath's end of a capture.
#[derive(Debug)]
struct Producer {
    chunks: Sender<Vec<u8>>,
    queue: Arc<Queue>,
    most_bytes: usize,
}

/// What reports say of a capture.
#[derive(Debug)]
struct Listed {
    by: String,
    since: Instant,
    queue: Arc<Queue>,
}

/// A capture that is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Who has it, as was said when it began.
    pub by: String,
    /// For how long it has been on.
    pub age: Duration,
    /// What was captured until now.
    pub counts: Counts,
}

#[derive(Debug)]
struct Shared {
    on: AtomicBool,
    link: AtomicU16,
    producer: Mutex<Option<Producer>>,
    /// Beside the producer, whose lock is held for moments only: a report, or somebody who finds a capture on, must not
    /// cost frames. Locked first, and for as long as a capture begins or ends.
    listed: Mutex<Option<Listed>>,
}

impl Shared {
    fn listed(&self) -> MutexGuard<'_, Option<Listed>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn produce(&self, by: Option<Producer>) {
        self.on.store(by.is_some(), Ordering::Relaxed);
        *self.producer.lock().unwrap_or_else(PoisonError::into_inner) = by;
    }
}

/// Turns captures on, from any thread. Clones are the same.
#[derive(Debug, Clone)]
pub struct Control {
    shared: Arc<Shared>,
}

/// Why a capture cannot begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is one already.
    #[error("it is being captured already")]
    Busy,
}

impl Control {
    /// Begins a capture; at most `most_bytes` wait for who writes it away, and `by` says for reports who that is. It ends when what is
    /// returned is dropped.
    ///
    /// # Errors
    /// [`Refused::Busy`]: one capture at a time.
    pub fn start(&self, most_bytes: usize, by: impl Into<String>) -> Result<Capture, Refused> {
        let mut listed = self.shared.listed();
        if listed.is_some() {
            return Err(Refused::Busy);
        }
        let (sender, chunks) = channel();
        let queue = Arc::new(Queue::default());
        *listed = Some(Listed { by: by.into(), since: Instant::now(), queue: queue.clone() });
        self.shared.produce(Some(Producer { chunks: sender, queue: queue.clone(), most_bytes }));
        Ok(Capture { shared: self.shared.clone(), chunks, queue })
    }

    /// Whether a capture is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.shared.on.load(Ordering::Relaxed)
    }

    /// The capture that is on, if one is.
    #[must_use]
    pub fn running(&self) -> Option<Running> {
        let listed = self.shared.listed();
        let Listed { by, since, queue } = listed.as_ref()?;
        Some(Running { by: by.clone(), age: since.elapsed(), counts: queue.counts() })
    }
}

/// The end of a capture where it is written away. One thread's at a time.
#[derive(Debug)]
pub struct Capture {
    shared: Arc<Shared>,
    chunks: Receiver<Vec<u8>>,
    queue: Arc<Queue>,
}

/// Nothing more will be captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended;

impl Capture {
    /// The blocks that the file begins with.
    #[must_use]
    pub fn header(&self, program: &str, name: &str, description: &str) -> Vec<u8> {
        let mut out = Vec::new();
        pcapng::section(&mut out, program);
        pcapng::interface(&mut out, self.shared.link.load(Ordering::Relaxed), name, description);
        out
    }

    /// The next blocks; `None` if there are none for so long. Waits.
    ///
    /// # Errors
    /// [`Ended`]: the datapath is gone, or the capture was stopped, and everything was taken.
    pub fn next(&self, patience: Duration) -> Result<Option<Vec<u8>>, Ended> {
        match self.chunks.recv_timeout(patience) {
            Ok(chunk) => {
                self.queue.bytes.fetch_sub(chunk.len(), Ordering::Relaxed);
                Ok(Some(chunk))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Ended),
        }
    }

    /// Captures no more; what was captured can still be taken. Stopping twice is no error.
    pub fn stop(&self) {
        let mut listed = self.shared.listed();
        // Another capture may have begun since this one was stopped.
        if listed.as_ref().is_some_and(|listed| Arc::ptr_eq(&listed.queue, &self.queue)) {
            self.shared.produce(None);
            *listed = None;
        }
    }

    /// What was captured until now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.queue.counts()
    }

    /// The block that the file ends with.
    #[must_use]
    pub fn trailer(&self) -> Vec<u8> {
        let (mut out, counts) = (Vec::new(), self.counts());
        pcapng::statistics(&mut out, now_ns(), counts.captured + counts.dropped, counts.dropped);
        out
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop();
    }
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX))
}

/// A datapath that can be captured.
#[derive(Debug)]
pub struct Tap<D> {
    inner: D,
    shared: Arc<Shared>,
    /// A frame in one piece.
    scratch: Vec<u8>,
    /// Over a part of what another one is over, with which the capture ends.
    part: bool,
}

impl<D> Tap<D> {
    /// What it is over.
    #[must_use]
    pub const fn inner(&self) -> &D {
        &self.inner
    }

    /// The handle by which a capture is begun.
    #[must_use]
    pub fn control(&self) -> Control {
        Control { shared: self.shared.clone() }
    }

    #[inline]
    fn is_on(&self) -> bool {
        self.shared.on.load(Ordering::Relaxed)
    }
}

impl<D: Datapath> Tap<D> {
    /// Over a datapath, open or not; off.
    #[must_use]
    pub fn new(inner: D) -> Self {
        let shared = Shared {
            on: AtomicBool::new(false),
            link: AtomicU16::new(0),
            producer: Mutex::new(None),
            listed: Mutex::new(None),
        };
        let tap = Self { inner, shared: Arc::new(shared), scratch: Vec::new(), part: false };
        tap.tell_link();
        tap
    }

    fn tell_link(&self) {
        let link = match self.inner.address() {
            _ if self.inner.capabilities().needs_packet_engine => pcapng::LINK_ETHERNET,
            Some(Address::Ip(_)) => pcapng::LINK_RAW_IP,
            Some(Address::Ethernet(_)) => pcapng::LINK_ETHERNET,
            _ => pcapng::LINK_USER,
        };
        self.shared.link.store(link, Ordering::Relaxed);
    }

    /// After a transmit: the frames of this call, which had no outcome before it, that were sent.
    fn sent(&mut self, batch: &TxBatch<'_>, first: usize) {
        let end = batch.frames().len() - batch.pending().len();
        let sent = || batch.frames()[first..end].iter().filter(|frame| frame.outcome == Outcome::Sent);
        let (count, bytes) = sent().fold((0, 0), |(count, bytes), frame| (count + 1, bytes + frame.len()));
        let Some(mut recorder) = Recorder::begin(&self.shared, count, bytes) else { return };
        let own = self.inner.address();
        for frame in sent() {
            self.scratch.clear();
            batch.copy_to(frame, &mut self.scratch);
            recorder.frame(Direction::Out, own, Some(frame.to), &self.scratch);
        }
        recorder.finish(&self.shared);
    }
}

/// Headers that are put before a datagram, in bytes at most.
const MOST_HEADERS: usize = 48;

/// The blocks of a batch in the making.
struct Recorder {
    chunk: Vec<u8>,
    ns: u64,
    count: u64,
    /// The writer is behind: its frames are only counted.
    full: bool,
}

impl Recorder {
    /// For a batch of so many frames and bytes, if they are known. `None` if there is nothing to capture.
    fn begin(shared: &Shared, count: usize, bytes: usize) -> Option<Self> {
        // Held by others for moments only: while a capture begins or ends, or another part hands over.
        let producer = shared.producer.lock().unwrap_or_else(PoisonError::into_inner);
        // Looked at first, so that a slow writer costs no copies. The last batches may go over the limit.
        let full = producer.as_ref().map(|to| to.queue.bytes.load(Ordering::Relaxed) >= to.most_bytes)?;
        drop(producer);
        let room = if full { 0 } else { bytes + count * (pcapng::PACKET_OVERHEAD + MOST_HEADERS) };
        Some(Self { chunk: Vec::with_capacity(room), ns: now_ns(), count: 0, full })
    }

    /// Hands over what there is. Never waits for the writer.
    fn finish(self, shared: &Shared) {
        let producer = shared.producer.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Producer { chunks, queue, .. }) = producer.as_ref().filter(|_| self.count > 0) else { return };
        if self.full {
            queue.dropped.fetch_add(self.count, Ordering::Relaxed);
            return;
        }
        queue.bytes.fetch_add(self.chunk.len(), Ordering::Relaxed);
        if chunks.send(self.chunk).is_ok() {
            queue.captured.fetch_add(self.count, Ordering::Relaxed);
        }
    }

    fn put(&mut self, direction: Direction, pieces: &[&[u8]]) {
        self.count += 1;
        if !self.full {
            pcapng::packet(&mut self.chunk, self.ns, direction, pieces);
        }
    }

    /// A frame as it is, or a datagram behind headers.
    fn frame(&mut self, direction: Direction, from: Option<Address>, to: Option<Address>, bytes: &[u8]) {
        match (from, to) {
            (Some(Address::Ip(from)), Some(Address::Ip(to))) => {
                let (headers, len) = headers(from, to, bytes);
                self.put(direction, &[&headers[..len], bytes]);
            }
            _ => self.put(direction, &[bytes]),
        }
    }
}

/// The ones' complement sum of some bytes, which begin at an even place.
fn sum(mut total: u32, bytes: &[u8]) -> u32 {
    for pair in bytes.chunks(2) {
        total += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        total = (total & 0xffff) + (total >> 16);
    }
    total
}

fn folded(total: u32) -> [u8; 2] {
    (!(((total & 0xffff) + (total >> 16)) as u16)).to_be_bytes()
}

/// IP and UDP headers for a datagram, and their length. Two families that do not fit each other are shown as IPv6.
fn headers(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> ([u8; MOST_HEADERS], usize) {
    let mut out = [0; MOST_HEADERS];
    let udp_len = u16::try_from(payload.len() + 8).unwrap_or(u16::MAX);
    let ip = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            out[..2].copy_from_slice(&[0x45, 0]);
            out[2..4].copy_from_slice(&udp_len.saturating_add(20).to_be_bytes());
            out[8..10].copy_from_slice(&[64, 17]);
            out[12..16].copy_from_slice(&from.octets());
            out[16..20].copy_from_slice(&to.octets());
            let check = folded(sum(0, &out[..20]));
            out[10..12].copy_from_slice(&check);
            20
        }
        (from, to) => {
            let six = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            out[0] = 0x60;
            out[4..6].copy_from_slice(&udp_len.to_be_bytes());
            out[6..8].copy_from_slice(&[17, 64]);
            out[8..24].copy_from_slice(&six(from).octets());
            out[24..40].copy_from_slice(&six(to).octets());
            40
        }
    };
    out[ip..ip + 2].copy_from_slice(&from.port().to_be_bytes());
    out[ip + 2..ip + 4].copy_from_slice(&to.port().to_be_bytes());
    out[ip + 4..ip + 6].copy_from_slice(&udp_len.to_be_bytes());
    if ip == 40 {
        // Over IPv4 none is allowed, over IPv6 it is not.
        let pseudo = sum(sum(17 + u32::from(udp_len), &out[8..40]), &out[ip..ip + 8]);
        let check = folded(sum(pseudo, payload));
        out[ip + 6..ip + 8].copy_from_slice(if check == [0, 0] { &[0xff, 0xff] } else { &check });
    }
    (out, ip + 8)
}

impl<D> Drop for Tap<D> {
    /// Who writes a capture away is told that nothing more comes.
    fn drop(&mut self) {
        if self.part {
            return;
        }
        let mut listed = self.shared.listed();
        self.shared.produce(None);
        *listed = None;
    }
}

impl<D: Datapath> Datapath for Tap<D> {
    fn capabilities(&self) -> Capabilities {
        let can = self.inner.capabilities();
        // What goes straight to its slot is not seen here.
        Capabilities { places: can.places && !self.is_on(), ..can }
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        self.inner.open()?;
        self.tell_link();
        Ok(())
    }

    fn address(&self) -> Option<Address> {
        self.inner.address()
    }

    fn frame_limit(&mut self, to: Address) -> usize {
        self.inner.frame_limit(to)
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        if !self.is_on() {
            return self.inner.transmit(batch);
        }
        let first = batch.frames().len() - batch.pending().len();
        let report = self.inner.transmit(batch);
        self.sent(batch, first);
        report
    }

    fn receive(&mut self, batch: &mut RxBatch, place: Option<&mut dyn Place>) -> RxReport {
        if !self.is_on() {
            return self.inner.receive(batch, place);
        }
        let first = batch.taken.len();
        let report = self.inner.receive(batch, None);
        let own = self.inner.address();
        let taken = batch.taken.get(first..).unwrap_or(&[]);
        let (count, bytes) = taken.iter().fold((0, 0), |(count, bytes), t| (count + t.frames().count(), bytes + t.len));
        if let Some(mut recorder) = Recorder::begin(&self.shared, count, bytes) {
            for one in taken {
                one.frames().for_each(|frame| recorder.frame(Direction::In, Some(one.from), own, frame));
            }
            recorder.finish(&self.shared);
        }
        report
    }

    fn split(&mut self, most: usize) -> Split {
        let Split { parts, short } = self.inner.split(most);
        let tapped = |inner| -> Box<dyn Datapath> {
            Box::new(Tap { inner, shared: self.shared.clone(), scratch: Vec::new(), part: true })
        };
        Split { parts: parts.into_iter().map(tapped).collect(), short }
    }

    fn lends(&self) -> Vec<Lendable<'_>> {
        self.inner.lends()
    }

    fn wake_handle(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wake_handle()
    }

    fn arm(&mut self) -> Armed {
        self.inner.arm()
    }

    fn lost(&mut self) -> Option<String> {
        self.inner.lost()
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn close(&mut self) {
        self.inner.close();
    }
}

/// A frame as it was put together: where its batch has it, and its bytes.
struct Written {
    frame: usize,
    bytes: Range<usize>,
}

fn place_of(frame: &TxFrame<'_>) -> usize {
    core::ptr::from_ref(frame).addr()
}

/// Sees what a packet engine writes, and what it writes it before. A frame that is put together need not be sent: a datapath may find out
/// only then that there is no room, and does it all over again.
struct Watched<'a> {
    front: &'a mut dyn Front,
    /// In the order of the batch.
    written: Vec<Written>,
    bytes: &'a mut Vec<u8>,
    /// Nobody is going to want the bytes.
    full: bool,
}

impl Front for Watched<'_> {
    fn room(&mut self, frame: &TxFrame<'_>, head: &[u8]) -> Result<usize, Outcome> {
        self.front.room(frame, head)
    }

    fn write(&mut self, frame: &TxFrame<'_>, front: &mut [u8], body: &mut Body<'_>) -> Result<(), Outcome> {
        let written = self.front.write(frame, front, body);
        if written.is_ok() {
            let place = place_of(frame);
            // What is put together again begins anew there.
            while let Some(last) = self.written.pop_if(|last| last.frame >= place) {
                self.bytes.truncate(last.bytes.start);
            }
            let start = self.bytes.len();
            if !self.full {
                self.bytes.extend_from_slice(front);
                // Shown to the front only if that asks.
                body(&mut |piece| self.bytes.extend_from_slice(piece));
            }
            self.written.push(Written { frame: place, bytes: start..self.bytes.len() });
        }
        written
    }
}

impl<D: RawDatapath> RawDatapath for Tap<D> {
    fn transmit_behind(&mut self, batch: &mut TxBatch<'_>, front: &mut dyn Front) -> TxReport {
        let recorder = self.is_on().then(|| Recorder::begin(&self.shared, 0, 0)).flatten();
        let Some(mut recorder) = recorder else { return self.inner.transmit_behind(batch, front) };
        self.scratch.clear();
        let mut watched = Watched { front, written: Vec::new(), bytes: &mut self.scratch, full: recorder.full };
        let first = batch.frames().len() - batch.pending().len();
        let report = self.inner.transmit_behind(batch, &mut watched);
        let (mut written, end) = (watched.written.into_iter().peekable(), batch.frames().len() - batch.pending().len());
        // What the front took over is sent and was not written: it comes by itself, later.
        for frame in batch.frames()[first..end].iter().filter(|frame| frame.outcome == Outcome::Sent) {
            let place = place_of(frame);
            while written.next_if(|one| one.frame < place).is_some() {}
            if let Some(one) = written.next_if(|one| one.frame == place) {
                recorder.put(Direction::Out, &[&self.scratch[one.bytes]]);
            }
        }
        recorder.finish(&self.shared);
        report
    }

    fn receive_in_place(&mut self, limit: usize, see: &mut dyn FnMut(&dyn InPlace) -> bool) -> RxReport {
        let recorder = self.is_on().then(|| Recorder::begin(&self.shared, 0, 0)).flatten();
        let Some(mut recorder) = recorder else { return self.inner.receive_in_place(limit, see) };
        let scratch = &mut self.scratch;
        let report = self.inner.receive_in_place(limit, &mut |frame| {
            if frame.first().len() == frame.len() {
                recorder.put(Direction::In, &[frame.first()]);
            } else {
                scratch.resize(frame.len(), 0);
                let len = frame.copy_to(0..frame.len(), scratch);
                recorder.put(Direction::In, &[&scratch[..len]]);
            }
            see(frame)
        });
        recorder.finish(&self.shared);
        report
    }

    fn split_raw(&mut self, most: usize) -> RawSplit {
        let RawSplit { parts, short } = self.inner.split_raw(most);
        let tapped = |inner| -> Box<dyn RawDatapath> {
            Box::new(Tap { inner, shared: self.shared.clone(), scratch: Vec::new(), part: true })
        };
        RawSplit { parts: parts.into_iter().map(tapped).collect(), short }
    }

    fn take_back(&mut self, lent: &mut Vec<Slot>) {
        self.inner.take_back(lent);
    }
}
