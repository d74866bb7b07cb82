//! Sources: the producing ends of channels, and the buffers that they lend.

use crate::error::{Code, Error, Result};
use crate::fork;
use crate::options::{SourceOptions, Wait, WhenFull};
use crate::rx::now_ns;
use crate::spin::Spin;
use crate::stream::{Channel, StreamShared};
use crate::tx::{Emit, Outcome, PACK_BYTES, Packs, Place, Tx, TxSource, WIDE_BYTES, goes_inside};
use insane_shm::biased::BiasedGuard;
use insane_shm::counters::CellState;
use insane_shm::link::INLINE_BYTES;
use insane_shm::pack::MAX_MESSAGE;
use insane_shm::slab::{Taken, stride_for};
use insane_wire::control::{self, to_client, to_runtime};
use insane_wire::id::{ChannelId, Epoch, SinkId};
use std::mem::{forget, replace};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

mod room;

/// The producing end of a channel. Usable from any thread; dropping it closes it.
#[derive(Debug)]
pub struct Source {
    pub(crate) stream: Arc<StreamShared>,
    /// Its place in the stream, which is its own as long as this handle lives, and its number, which is for ever.
    pub(crate) index: usize,
    pub(crate) number: u32,
    epoch: Epoch,
    channel: ChannelId,
    options: SourceOptions,
    /// Whether small messages may wait for more of them: on best-effort streams, where none has a time stamp of its own.
    packs: bool,
    /// What a message of the usual size takes of a link's memory, in bytes; 0 inside descriptors.
    room: u64,
    forks: u32,
}

/// The number of an emitted message, by which its outcome can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// A message's memory, not tied to its source by a lifetime: for bindings. Give it to [`Source::emit_raw`] or
/// [`Source::discard_raw`]; a slot that is in neither is lost to the stream until the session ends.
#[derive(Debug)]
pub struct RawBuffer {
    base: NonNull<u8>,
    /// The slot, or none for a block of this process's own whose bytes go inside the descriptor.
    place: Place,
    capacity: usize,
}

// SAFETY: the address is that of a slot or block which this buffer alone holds, and which the stream keeps.
unsafe impl Send for RawBuffer {}

impl RawBuffer {
    /// The first byte. The address stays until the buffer is emitted or discarded.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// How many bytes may be written; at least as many as were asked for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline]
    fn in_a_block(tx: &mut Tx) -> Self {
        Self { base: tx.blocks.lend().cast(), place: Place::NONE, capacity: INLINE_BYTES }
    }

    #[inline]
    fn in_slot(taken: &Taken) -> Self {
        Self { base: taken.base, place: Place::of(taken.id), capacity: taken.capacity as usize }
    }
}

/// A message's memory, borrowed from a source: write into it, then emit it. Dropping it gives the memory back.
#[derive(Debug)]
pub struct Buffer<'a> {
    source: &'a Source,
    raw: RawBuffer,
    len: usize,
}

impl Deref for Buffer<'_> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: INV-SLAB-2, INV-BLOCK-1: this buffer alone holds the memory, which has at least `len` bytes.
        unsafe { std::slice::from_raw_parts(self.raw.base.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and no sink was told of the slot yet.
        unsafe { std::slice::from_raw_parts_mut(self.raw.base.as_ptr(), self.len) }
    }
}

impl Buffer<'_> {
    /// Shortens the message to be emitted to `len` bytes; more than it has changes nothing.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Drop for Buffer<'_> {
    #[inline]
    fn drop(&mut self) {
        self.source.give_back(&self.raw);
    }
}

/// What of a buffer goes inside its descriptor: all, if it lies in no slot.
///
/// # Safety
/// The buffer was not given back, and `len` is no more than its capacity.
#[inline]
unsafe fn inside(raw: &RawBuffer, len: usize) -> &[u8] {
    if !raw.place.is_none() {
        return &[];
    }
    // SAFETY: INV-BLOCK-1: the block is this buffer's alone and has `capacity` bytes.
    unsafe { std::slice::from_raw_parts(raw.base.as_ptr(), len) }
}

impl Source {
    pub(crate) fn open(stream: Arc<StreamShared>, channel: Channel<'_>, options: SourceOptions) -> Result<Self> {
        let session = stream.session.clone();
        session.check()?;
        stream.check_refusal()?;
        let epoch = Epoch::random();
        let id = channel.id(&session.domain(), &stream.name)?;
        let cell = session.cells().start(CellState::Source, epoch, SinkId(0))?;
        let gives_up = (options.when_full == WhenFull::DropSink).then_some(options.deadline);
        let source = TxSource { gives_up, ..TxSource::new(id.0, options.priority, cell) };
        let (index, number) = stream.tx.visit().add_source(source);
        let packs = !stream.reliable && !options.timestamps;
        let inside = goes_inside(options.message_bytes, stream.reliable);
        let room = if inside { 0 } else { stride_for(options.message_bytes as u64).unwrap_or(0) };
        let this = Self { stream, index, number, epoch, channel: id, options, packs, room, forks: fork::count() };
        if !inside {
            this.ensure_slots(this.options.message_bytes)?;
        }
        session.remember(crate::session::Endpoint::Source {
            stream: this.stream.clone(),
            channel: channel.message(),
            epoch,
            number,
        });
        let body = to_runtime::Body::OpenSource(control::OpenSource {
            stream: this.stream.number.load(Ordering::Acquire),
            channel: Some(channel.message()),
            epoch: epoch.to_bytes(),
        });
        // On any failure `this` is dropped, which closes what was opened.
        match session.ask(body)? {
            to_client::Body::SourceOpened(opened) => {
                this.wait_for_sinks(opened.flows as usize, Duration::from_secs(1));
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

    /// The source's epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// How many sinks are in the source's view now: a message emitted now is meant for them. Observers are none.
    #[must_use]
    pub fn sinks(&self) -> usize {
        let tx = self.stream.tx.visit();
        let flows = tx.sources[self.index].iter().flat_map(|s| &s.routes).flat_map(|r| &r.flows);
        flows.filter(|flow| !flow.observer).count()
    }

    /// Waits until at least `count` sinks are in the source's view, at most `timeout`. Returns how many are.
    pub fn wait_for_sinks(&self, count: usize, timeout: Duration) -> usize {
        self.stream.session.wait_until(timeout, || self.sinks() >= count);
        self.sinks()
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.forks == fork::count() { Ok(()) } else { Err(Code::Forked.into()) }
    }

    /// Borrows memory for a message of `len` bytes. On a best-effort stream it does not wait for sinks; on a reliable one it
    /// waits up to the source's deadline. The first buffer of a new size makes a segment, which takes time.
    ///
    /// # Errors
    /// [`Code::NoBuffer`] when all are held, [`Code::MessageTooLarge`], [`Code::Forked`].
    #[inline]
    pub fn buffer(&self, len: usize) -> Result<Buffer<'_>> {
        Ok(Buffer { raw: self.borrow(len)?, source: self, len })
    }

    /// As [`Self::buffer`], for bindings.
    ///
    /// # Safety
    /// The buffer must be given back to a source of the same stream, by [`Self::emit_raw`], [`Self::emit_raw_more`] or
    /// [`Self::discard_raw`], and its address is good only as long as it was not and a source of the stream lives.
    ///
    /// # Errors
    /// As [`Self::buffer`].
    #[inline]
    pub unsafe fn raw_buffer(&self, len: usize) -> Result<RawBuffer> {
        self.borrow(len)
    }

    #[inline]
    fn borrow(&self, len: usize) -> Result<RawBuffer> {
        self.check()?;
        let mut tx = self.stream.tx.lock();
        if tx.refuses(self.index) {
            return Err(Code::NoBuffer.into());
        }
        if goes_inside(len, self.stream.reliable) {
            return Ok(RawBuffer::in_a_block(&mut tx));
        }
        if self.packs
            && len <= MAX_MESSAGE as usize
            && let Some((base, place)) = tx.lend_piece(self.index, len as u32)
        {
            return Ok(RawBuffer { base, place, capacity: len });
        }
        if let Some(taken) = tx.take(len as u64) {
            return Ok(RawBuffer::in_slot(&taken));
        }
        drop(tx);
        self.buffer_slowly(len)
    }

    #[cold]
    fn buffer_slowly(&self, len: usize) -> Result<RawBuffer> {
        let start = Instant::now();
        loop {
            let grown = self.ensure_slots(len);
            // Better too large a slot than none.
            if let Some(taken) = self.stream.tx.lock().slab.take_any(len as u64) {
                return Ok(RawBuffer::in_slot(&taken));
            }
            match grown {
                Err(e) if !self.stream.reliable || e.code() != Code::NoBuffer => return Err(e),
                grown if start.elapsed() >= self.options.deadline && !self.waits_for_runtime() => {
                    return Err(grown.err().unwrap_or_else(|| Code::NoBuffer.into()));
                }
                // Slots come back over several links; which one is first cannot be known.
                _ => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }

    /// Whether a full link is one that waits for the next runtime, whose sinks are not to be given up: the library's own patience
    /// is the bound then.
    #[cold]
    fn waits_for_runtime(&self) -> bool {
        self.options.when_full == WhenFull::DropSink && self.stream.tx.lock().has_parked()
    }

    /// Gives memory back without emitting it.
    #[inline]
    pub fn discard_raw(&self, raw: RawBuffer) {
        self.give_back(&raw);
    }

    #[inline]
    fn give_back(&self, raw: &RawBuffer) {
        if self.forks == fork::count() {
            self.stream.tx.lock().give_back(raw.base, raw.place);
        }
    }

    /// Emits a message to every sink of the channel and returns its token. The memory is no longer the caller's.
    ///
    /// Best effort: never blocks; a sink without room drops the message and that is counted. Reliable: waits for room up to
    /// the deadline of the source's options, then does what they say.
    ///
    /// # Errors
    /// [`Code::Closed`], [`Code::SinkFull`] (reliable with [`WhenFull::Fail`]), [`Code::Forked`].
    #[inline]
    pub fn emit(&self, buffer: Buffer<'_>) -> Result<Token> {
        self.check_own(&buffer)?;
        let token = self.emit_held(&buffer.raw, buffer.len, 0, false);
        forget(buffer);
        token
    }

    /// As [`Self::emit`], and says that more follows at once: the message may wait for the next [`Self::emit`],
    /// [`Self::send`] or [`Self::flush`]. On best-effort streams messages of up to 2048 bytes are packed, some fifty of 64 bytes
    /// and sixty of a kilobyte into one slot, and a full pack leaves at once; those of more than 64 bytes only if no sink is on
    /// another host. Others are seen by sinks that spin; those that sleep are woken by the last of the batch: looking for sleepers
    /// makes the processor wait for its own stores to be seen, which is most of what emitting a small message costs. The first
    /// message that is packed makes a segment, which takes time.
    ///
    /// Fill one buffer at a time: messages whose buffers were borrowed before the last one was emitted go by themselves.
    ///
    /// # Errors
    /// As [`Self::emit`].
    #[inline]
    pub fn emit_more(&self, buffer: Buffer<'_>) -> Result<Token> {
        self.check_own(&buffer)?;
        let token = self.emit_held(&buffer.raw, buffer.len, 0, true);
        forget(buffer);
        token
    }

    /// Ends a batch: what waits is sent, and the sinks that sleep and have messages from [`Self::emit_more`] or
    /// [`Self::send_more`] are woken. Never blocks.
    ///
    /// # Errors
    /// [`Code::Closed`], [`Code::Forked`].
    pub fn flush(&self) -> Result<()> {
        self.check()?;
        let mut tx = self.stream.tx.lock();
        tx.flush(self.index);
        if tx.sources[self.index].is_some() { Ok(()) } else { Err(tx.closed(self.index)) }
    }

    /// As [`Self::emit`]; the message is worthless `within` from now and expires, counted, if it is not consumed by then.
    ///
    /// # Errors
    /// As [`Self::emit`].
    pub fn emit_within(&self, buffer: Buffer<'_>, within: Duration) -> Result<Token> {
        let deadline = now_ns().saturating_add(u64::try_from(within.as_nanos()).unwrap_or(u64::MAX));
        self.check_own(&buffer)?;
        let token = self.emit_held(&buffer.raw, buffer.len, deadline, false);
        forget(buffer);
        token
    }

    /// Copies `payload` into a buffer and emits it.
    ///
    /// # Errors
    /// As [`Self::buffer`] and [`Self::emit`].
    #[inline]
    pub fn send(&self, payload: &[u8]) -> Result<Token> {
        self.send_small(payload, false)
    }

    /// As [`Self::send`], and says that more follows at once, as [`Self::emit_more`] does.
    ///
    /// # Errors
    /// As [`Self::send`].
    #[inline]
    pub fn send_more(&self, payload: &[u8]) -> Result<Token> {
        self.send_small(payload, true)
    }

    /// As [`Self::send`], unless a sink has no room for the message now: then nothing is emitted, and `None` is returned. Never
    /// waits for sinks, on reliable streams neither.
    ///
    /// # Errors
    /// As [`Self::send`], without [`Code::NoBuffer`] and [`Code::SinkFull`].
    #[inline]
    pub fn try_send(&self, payload: &[u8]) -> Result<Option<Token>> {
        self.try_small(payload, false)
    }

    /// As [`Self::try_send`], and says that more follows at once, as [`Self::emit_more`] does.
    ///
    /// # Errors
    /// As [`Self::try_send`].
    #[inline]
    pub fn try_send_more(&self, payload: &[u8]) -> Result<Option<Token>> {
        self.try_small(payload, true)
    }

    #[inline(always)]
    fn send_small(&self, payload: &[u8], more: bool) -> Result<Token> {
        if payload.len() > INLINE_BYTES || self.stream.reliable {
            self.check()?;
            if let Some(sequence) = self.pack_larger(payload, more, |_, _| false) {
                return Ok(Token(sequence));
            }
            let mut buffer = self.buffer(payload.len())?;
            buffer.copy_from_slice(payload);
            let token = self.emit_held(&buffer.raw, buffer.len, 0, more);
            forget(buffer);
            return token;
        }
        self.check()?;
        insane_shm::steps::reach(insane_shm::steps::Step::Fill);
        let mut tx = self.stream.tx.lock();
        if tx.refuses(self.index) {
            return Err(Code::NoBuffer.into());
        }
        if let Some(sequence) = self.pack(&mut tx, payload, more) {
            return Ok(Token(sequence));
        }
        self.emit_alone(tx, payload, more)
    }

    #[inline(always)]
    fn try_small(&self, payload: &[u8], more: bool) -> Result<Option<Token>> {
        if payload.len() > INLINE_BYTES || self.stream.reliable {
            return self.try_large(payload, more);
        }
        self.check()?;
        insane_shm::steps::reach(insane_shm::steps::Step::Fill);
        let mut tx = self.stream.tx.lock();
        if tx.refuses(self.index) {
            return Ok(None);
        }
        if !tx.is_short(self.index)
            && let Some(sequence) = self.pack(&mut tx, payload, more)
        {
            return Ok(Some(Token(sequence)));
        }
        if !tx.has_room(self.index, Place::NONE) {
            // Who sleeps makes no room.
            tx.flush(self.index);
            return Ok(None);
        }
        self.emit_alone(tx, payload, more).map(Some)
    }

    /// Emits a small message inside a descriptor of its own.
    #[inline(always)]
    fn emit_alone(&self, mut tx: BiasedGuard<'_, Tx>, payload: &[u8], more: bool) -> Result<Token> {
        if self.packs
            && !more
            && let Some(sequence) = tx.emit_small(self.index, payload)
        {
            return Ok(Token(sequence));
        }
        let token = tx.emit(self.index, &self.small(payload, more)).map(Token);
        if tx.wants_packs() {
            drop(tx);
            self.make_packs();
        }
        token
    }

    /// Puts a small message to others that wait, or makes it the first that does.
    #[inline(always)]
    fn pack(&self, tx: &mut Tx, payload: &[u8], more: bool) -> Option<u64> {
        if !self.packs {
            return None;
        }
        let sequence = tx.append(self.index, payload, more);
        if sequence.is_some() || !more || !tx.open_pack(self.index) {
            return sequence;
        }
        tx.append(self.index, payload, more)
    }

    /// Puts a larger message to others that wait, or makes it the first that does, if the source emits in batches and its links are not
    /// `short`.
    #[inline(always)]
    fn pack_larger(&self, payload: &[u8], more: bool, short: impl FnOnce(&mut Tx, usize) -> bool) -> Option<u64> {
        let len = payload.len();
        if !self.packs || len > MAX_MESSAGE as usize || len <= INLINE_BYTES {
            return None;
        }
        let mut tx = self.stream.tx.lock();
        if short(&mut tx, self.index) {
            return None;
        }
        let (base, place) = tx.lend_piece(self.index, len as u32)?;
        // SAFETY: INV-PACK-1: the piece has as many bytes and was lent to this call alone.
        unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), base.as_ptr(), len) };
        insane_shm::steps::reach(insane_shm::steps::Step::Fill);
        tx.commit_piece(self.index, place, len as u32, more)
    }

    #[inline(always)]
    fn small<'a>(&self, payload: &'a [u8], more: bool) -> Emit<'a> {
        Emit {
            place: Place::NONE,
            inline: payload,
            length: payload.len() as u32,
            deadline_ns: 0,
            timestamp_ns: self.timestamp(),
            priority: self.options.priority,
            more,
        }
    }

    /// Makes a segment for packs, once; without one, messages go by themselves as before.
    #[cold]
    fn make_packs(&self) {
        let wanted = |packs: &mut Packs| *packs == Packs::Wanted && replace(packs, Packs::Made) == Packs::Wanted;
        let (small, wide) = {
            let mut tx = self.stream.tx.lock();
            (wanted(&mut tx.packs), wanted(&mut tx.wide_packs))
        };
        for (_, bytes) in [(small, PACK_BYTES), (wide, WIDE_BYTES)].into_iter().filter(|(wanted, _)| *wanted) {
            let _ = self.ensure_slots(bytes as usize);
        }
    }

    #[inline(never)]
    fn try_large(&self, payload: &[u8], more: bool) -> Result<Option<Token>> {
        self.check()?;
        let len = payload.len();
        if let Some(sequence) = self.pack_larger(payload, more, Tx::is_short) {
            return Ok(Some(Token(sequence)));
        }
        let Some(raw) = self.try_borrow(len)? else { return Ok(None) };
        let mut buffer = Buffer { raw, source: self, len };
        buffer.copy_from_slice(payload);
        // Without room the buffer is given back.
        let Some(token) = self.try_emit_held(&buffer.raw, len, more) else { return Ok(None) };
        forget(buffer);
        token.map(Some)
    }

    /// As [`Self::borrow`], of memory that is free now; `None`: none is.
    fn try_borrow(&self, len: usize) -> Result<Option<RawBuffer>> {
        let mut tx = self.stream.tx.lock();
        if tx.refuses(self.index) {
            return Ok(None);
        }
        if goes_inside(len, self.stream.reliable) {
            return Ok(Some(RawBuffer::in_a_block(&mut tx)));
        }
        let mut taken = tx.take(len as u64);
        drop(tx);
        if taken.is_none() {
            match self.ensure_slots(len) {
                Err(e) if e.code() == Code::NoBuffer => {}
                grown => grown?,
            }
            // Better too large a slot than none.
            taken = self.stream.tx.lock().slab.take_any(len as u64);
        }
        Ok(taken.map(|taken| RawBuffer::in_slot(&taken)))
    }

    /// Emits what a buffer with a slot holds and gives the buffer back, if every sink has room; `None`: nothing happened.
    fn try_emit_held(&self, raw: &RawBuffer, len: usize, more: bool) -> Option<Result<Token>> {
        let mut tx = self.stream.tx.lock();
        let place = if len == 0 { Place::NONE } else { raw.place };
        if !tx.has_room(self.index, place) {
            // Who sleeps makes no room.
            tx.flush(self.index);
            return None;
        }
        let (timestamp_ns, priority) = (self.timestamp(), self.options.priority);
        // SAFETY: the caller's buffer, of which `len` bytes are within its capacity.
        let (length, inline) = (len as u32, unsafe { inside(raw, len) });
        insane_shm::steps::reach(insane_shm::steps::Step::Fill);
        let emit = Emit { place, inline, length, deadline_ns: 0, timestamp_ns, priority, more };
        let sequence = tx.emit(self.index, &emit);
        if self.stream.reliable {
            tx.tend_logs(self.index);
        }
        tx.give_back(raw.base, raw.place);
        Some(sequence.map(Token))
    }

    /// As [`Self::raw_buffer`], but where that would wait for sinks, `None`: for bindings that give up a lock of their own before
    /// they wait.
    ///
    /// # Safety
    /// As [`Self::raw_buffer`].
    ///
    /// # Errors
    /// As [`Self::raw_buffer`].
    pub unsafe fn try_raw_buffer(&self, len: usize) -> Result<Option<RawBuffer>> {
        self.check()?;
        if self.stream.reliable { self.try_borrow(len) } else { self.borrow(len).map(Some) }
    }

    /// As [`Self::emit_raw`] without a deadline, or with `more` as [`Self::emit_raw_more`], but where that would wait for sinks, the buffer
    /// comes back instead.
    ///
    /// # Errors
    /// As [`Self::emit_raw`].
    pub fn try_emit_raw(
        &self,
        raw: RawBuffer,
        len: usize,
        more: bool,
    ) -> Result<std::result::Result<Token, RawBuffer>> {
        self.check()?;
        if !self.stream.reliable || len > raw.capacity {
            return self.emit_held(&raw, len, 0, more).map(Ok);
        }
        self.try_emit_held(&raw, len, more).map_or(Ok(Err(raw)), |token| token.map(Ok))
    }

    /// Emits `len` bytes of a raw buffer; `deadline_ns` of CLOCK_MONOTONIC, 0 for none.
    ///
    /// # Errors
    /// As [`Self::emit`], and [`Code::BufferOverrun`]. The buffer is given back in any case.
    #[inline]
    pub fn emit_raw(&self, raw: RawBuffer, len: usize, deadline_ns: u64) -> Result<Token> {
        self.emit_held(&raw, len, deadline_ns, false)
    }

    /// As [`Self::emit_raw`] without a deadline, and says that more follows at once, as [`Self::emit_more`] does.
    ///
    /// # Errors
    /// As [`Self::emit_raw`].
    #[inline]
    pub fn emit_raw_more(&self, raw: RawBuffer, len: usize) -> Result<Token> {
        self.emit_held(&raw, len, 0, true)
    }

    #[inline(always)]
    fn timestamp(&self) -> u64 {
        if self.options.timestamps { now_ns() } else { 0 }
    }

    /// Emits what a buffer holds and gives the buffer back, whatever comes of it.
    #[inline]
    fn emit_held(&self, raw: &RawBuffer, len: usize, deadline_ns: u64, more: bool) -> Result<Token> {
        self.check()?;
        if len > raw.capacity {
            return Err(self.overrun(raw, len));
        }
        insane_shm::steps::reach(insane_shm::steps::Step::Fill);
        // What a batch of larger messages does, in one straight line.
        if raw.place.is_piece()
            && deadline_ns == 0
            && let Some(sequence) = self.stream.tx.lock().commit_piece(self.index, raw.place, len as u32, more)
        {
            return Ok(Token(sequence));
        }
        self.emit_other(raw, len, deadline_ns, more)
    }

    /// As [`Self::emit_held`], of any message.
    #[inline(never)]
    fn emit_other(&self, raw: &RawBuffer, len: usize, deadline_ns: u64, more: bool) -> Result<Token> {
        // SAFETY: the caller's buffer, of which `len` bytes are within its capacity.
        let inline: &[u8] = unsafe { inside(raw, len) };
        // An empty message has no use for a slot.
        let place = if len == 0 { Place::NONE } else { raw.place };
        let (length, timestamp_ns, priority) = (len as u32, self.timestamp(), self.options.priority);
        let emit = Emit { place, inline, length, deadline_ns, timestamp_ns, priority, more };
        let mut tx = self.stream.tx.lock();
        if raw.place.is_piece() {
            tx.part(raw.place);
        } else if raw.place.is_none()
            && deadline_ns == 0
            && let Some(sequence) = self.pack(&mut tx, inline, more)
        {
            tx.give_back(raw.base, Place::NONE);
            return Ok(Token(sequence));
        }
        if self.stream.reliable && !tx.has_room(self.index, place) {
            drop(tx);
            tx = self.await_room(place).inspect_err(|_| self.give_back(raw))?;
        }
        let token = tx.emit(self.index, &emit).map(Token);
        if self.stream.reliable {
            tx.tend_logs(self.index);
        }
        tx.give_back(raw.base, raw.place);
        if tx.wants_packs() {
            drop(tx);
            self.make_packs();
        }
        token
    }

    /// A buffer of another stream is in another slab: it is given back there, by being dropped.
    #[inline]
    fn check_own(&self, buffer: &Buffer<'_>) -> Result<()> {
        if Arc::ptr_eq(&self.stream, &buffer.source.stream) {
            return Ok(());
        }
        Err(Error::new(Code::InvalidArgument, "the buffer is from a source of another stream"))
    }

    #[cold]
    fn overrun(&self, raw: &RawBuffer, len: usize) -> Error {
        self.give_back(raw);
        Error::new(Code::BufferOverrun, format!("{len} bytes in a buffer of {}", raw.capacity))
    }

    /// Waits until a message of up to [`SourceOptions::message_bytes`] emitted now would be dropped by no sink, at most `timeout`: for
    /// sources on best-effort streams that would rather wait than lose. Spins for a while, then looks every 50 microseconds: the sinks of a
    /// best-effort stream do not wake their sources.
    ///
    /// # Errors
    /// [`Code::Timeout`], [`Code::Forked`].
    #[inline]
    pub fn wait_for_room(&self, timeout: Duration) -> Result<()> {
        self.check()?;
        if self.stream.tx.lock().has_room_for(self.index, self.room) {
            return Ok(());
        }
        self.room_comes(timeout)
    }

    #[inline(never)]
    fn room_comes(&self, timeout: Duration) -> Result<()> {
        // Who sleeps makes no room.
        self.stream.tx.lock().flush(self.index);
        let start = Instant::now();
        let mut spin = Spin::new();
        while !self.stream.tx.lock().has_room_for(self.index, self.room) {
            if start.elapsed() >= timeout {
                return Err(Code::Timeout.into());
            }
            match self.options.wait {
                Wait::Spin => std::hint::spin_loop(),
                Wait::Adaptive if spin.rests() => {}
                Wait::Adaptive | Wait::Sleep => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        Ok(())
    }

    /// How many intended sinks of a message are in each state. Never blocks.
    ///
    /// # Errors
    /// [`Code::UnknownToken`] for a token that is not of this source, or too old.
    pub fn outcome(&self, token: Token) -> Result<Outcome> {
        self.check()?;
        self.stream.tx.lock().outcome(self.index, token.0)
    }

    /// Closes the source: sinks still get what was emitted. On a reliable stream whose runtime is gone that is when there is one
    /// again, if the session is not closed before.
    pub fn close(&self) {
        if self.check().is_err() {
            return;
        }
        let open = {
            let mut tx = self.stream.tx.visit();
            tx.flush(self.index);
            tx.sources[self.index].is_some()
        };
        if open {
            self.stream.session.close_source(&self.stream, self.number, self.epoch);
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.close();
        // In a forked child the lock may be held by a thread that is not there.
        if self.check().is_ok() {
            self.stream.tx.visit().leave_place(self.index);
        }
    }
}
