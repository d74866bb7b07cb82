//! What a sink has of a message: its payload's place, where it came from, and what the link is to be told afterwards.

use crate::blocks::{Block, Pool};
use crate::rx::One;
use insane_shm::counters::CellWriter;
use insane_shm::link::{Descriptor, FLAG_COPIED, FLAG_INLINE, FLAG_PACKED, Fate};
use insane_shm::pack::MAX_COPIED;
use insane_shm::scatter;
use insane_shm::segment::SegmentView;
use insane_wire::id::Epoch;
use smallvec::SmallVec;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A message taken by a sink and not yet released: what [`crate::Message`] borrows, and what bindings get from
/// [`crate::Sink::try_raw`].
#[derive(Debug)]
pub struct RawMessage(pub(crate) NonNull<Taken>);

// SAFETY: INV-BLOCK-1, and `base` points into a segment that the link keeps mapped until the message is released, from any
// thread.
unsafe impl Send for RawMessage {}
// SAFETY: as above; a message that is shared is only read.
unsafe impl Sync for RawMessage {}

/// What the stream keeps of a message while a sink has it. Written once and never moved: the stores of a structure that is
/// built and then copied cannot be forwarded to the loads of the copy, which took a third of the time of a message.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Taken {
    /// The payload, if it came inside its descriptor or in a pack.
    pub(crate) inside: Block,
    /// The payload: in a slot, or in `inside`.
    base: NonNull<u8>,
    pub(crate) sequence: u64,
    /// Where it came from: `own`, or that of the pack that it came in.
    origin: NonNull<Origin>,
    pub(crate) length: u32,
    pub(crate) flags: u16,
    /// The pack that it came in, if its flags say so.
    pub(crate) pack: PackRef,
    pub(crate) extra: Option<Box<Extra>>,
    own: Origin,
}

// SAFETY: as for messages.
unsafe impl Send for Taken {}

/// What the messages of a pack have in common, and any other message has for itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) channel: u64,
    pub(crate) timestamp_ns: u64,
    pub(crate) epoch: Epoch,
    pub(crate) slot: u32,
    pub(crate) source: u32,
    pub(crate) link: u32,
    pub(crate) generation: u32,
    pub(crate) segment: u16,
    pub(crate) priority: u8,
    pub(crate) trusted: bool,
}

impl Default for Origin {
    fn default() -> Self {
        Self {
            channel: 0,
            timestamp_ns: 0,
            epoch: Epoch(0),
            slot: 0,
            source: 0,
            link: 0,
            generation: 0,
            segment: 0,
            priority: 0,
            trusted: false,
        }
    }
}

impl Origin {
    #[inline(always)]
    pub(crate) fn new(d: &Descriptor, epoch: Epoch, link: usize, generation: u32, trusted: bool) -> Self {
        Self {
            channel: d.channel,
            timestamp_ns: d.timestamp_ns,
            epoch,
            slot: d.slot,
            source: d.source,
            link: link as u32,
            generation,
            segment: d.segment,
            priority: d.priority,
            trusted,
        }
    }
}

impl Default for Taken {
    fn default() -> Self {
        Self {
            inside: Block::default(),
            base: NonNull::dangling(),
            sequence: 0,
            origin: NonNull::dangling(),
            length: 0,
            flags: 0,
            pack: PackRef(NonNull::dangling()),
            extra: None,
            own: Origin::default(),
        }
    }
}

/// What only some messages have.
#[derive(Debug)]
pub(crate) struct Extra {
    /// Where it is to be counted, until it is.
    pub(crate) cell: Option<CellWriter>,
    /// Set when several sinks of this session share the message: how many still have it.
    pub(crate) shared: Option<Arc<AtomicU32>>,
    /// Past this it is worthless: nanoseconds of CLOCK_MONOTONIC, 0 for never.
    pub(crate) deadline_ns: u64,
    /// Where it lies, if it stayed in its frames.
    pub(crate) scattered: Option<Arc<Scattered>>,
    /// Where its copies are counted, if its sink wants to know.
    pub(crate) copies: Option<Arc<Copies>>,
    /// Reliable: where it counts as kept by its sink.
    pub(crate) _kept: Option<One>,
}

/// A message that lies in the frames in which it came, mostly in several places.
#[derive(Debug)]
pub(crate) struct Scattered {
    /// Its length in bytes: the sum of theirs.
    pub(crate) length: u32,
    pub(crate) pieces: Box<[(NonNull<u8>, u32)]>,
    /// All of it in one place, once somebody has asked for that.
    whole: OnceLock<Box<[u8]>>,
    /// They stay mapped for as long as this is there (INV-SCATTER-2).
    _views: SmallVec<[SegmentView; 2]>,
}

// SAFETY: the pieces point into segments that stay mapped, and are only read.
unsafe impl Send for Scattered {}
// SAFETY: as above.
unsafe impl Sync for Scattered {}

impl Scattered {
    /// Reads the list that a descriptor names. `None`: it says what cannot be.
    pub(crate) fn read(segments: &[Option<SegmentView>], d: &Descriptor) -> Option<Self> {
        let view = |segment: u16| segments.get(usize::from(segment)).and_then(Option::as_ref);
        let (length, places) = scatter::read(view(d.segment)?, d.slot, d.offset, d.length)?;
        let (mut views, mut last) = (SmallVec::<[SegmentView; 2]>::new(), None);
        let pieces = places.iter().map(|place| {
            let view = view(place.segment)?;
            if last.replace(place.segment) != Some(place.segment) {
                views.push(view.clone());
            }
            Some((view.locate(place.slot, place.offset, place.length)?, place.length))
        });
        let pieces = pieces.collect::<Option<_>>()?;
        Some(Self { length, pieces, whole: OnceLock::new(), _views: views })
    }

    /// Where all of it lies, if that is in one place.
    pub(crate) fn only(&self) -> Option<NonNull<u8>> {
        if let [(base, _)] = *self.pieces { Some(base) } else { None }
    }

    /// Copies it out, each byte read once, as much as there is room for.
    fn copy_out(&self, to: &mut [u8]) {
        let mut rest = to;
        for (base, length) in &self.pieces {
            let (now, later) = rest.split_at_mut((*length as usize).min(rest.len()));
            // SAFETY: INV-SCATTER-1: so many bytes lie there, in a segment that stays mapped.
            unsafe { insane_shm::segment::copy_out(*base, now) };
            rest = later;
        }
    }

    fn whole(&self, copies: Option<&Copies>) -> &[u8] {
        self.whole.get_or_init(|| {
            let mut all = vec![0; self.length as usize].into_boxed_slice();
            self.copy_out(&mut all);
            copies.into_iter().for_each(|copies| add(&copies.here, 1));
            all
        })
    }
}

/// Counts; of nothing else is said anything by that, so Relaxed.
fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

impl Copies {
    /// A message has come for a sink.
    pub(crate) fn note(&self, scattered: Option<&Scattered>, flags: u16) {
        if let Some(scattered) = scattered {
            add(&self.scattered, 1);
            add(&self.pieces, scattered.pieces.len() as u64);
        }
        add(&self.before, u64::from(flags & FLAG_COPIED != 0));
    }

    pub(crate) fn get(&self) -> CopyCounts {
        let [scattered, pieces, runtime, here] =
            [&self.scattered, &self.pieces, &self.before, &self.here].map(|count| count.load(Ordering::Relaxed));
        CopyCounts { scattered, pieces, runtime, here }
    }
}

/// What is counted of the copies of a sink's messages.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    scattered: AtomicU64,
    pieces: AtomicU64,
    before: AtomicU64,
    here: AtomicU64,
}

/// How often user code of this host, the runtime's and this library's, has copied the payloads of a sink's messages, which was opened
/// with [`crate::SinkOptions::scattered`]. Small messages that travel inside their descriptors or several to a slot are copied in any
/// case and are not counted, nor is what the application copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyCounts {
    /// Messages that were left in the frames in which they came, in one piece or in several.
    pub scattered: u64,
    /// How many pieces these had together.
    pub pieces: u64,
    /// Messages of which the runtime had copied the payload, or some of it, before it came here.
    pub runtime: u64,
    /// Messages that were copied together in this process, because the payload was asked for as one.
    pub here: u64,
}

impl CopyCounts {
    /// All copies by user code.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.runtime + self.here
    }
}

/// A piece of a message: bytes that lie in one place.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'m> {
    base: NonNull<u8>,
    length: u32,
    trusted: bool,
    message: PhantomData<&'m RawMessage>,
}

// SAFETY: it points to what a message borrows, and is only read.
unsafe impl Send for Piece<'_> {}
// SAFETY: as above.
unsafe impl Sync for Piece<'_> {}

impl<'m> Piece<'m> {
    /// Its length in bytes; at least 1, unless the message is empty.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether it has no bytes: the one piece of an empty message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Its address. It stays readable until the message is released; its bytes may change while they are read if the peer is hostile.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// Copies it out, each byte read once; the number of bytes copied is the shorter of both lengths.
    pub fn read(&self, to: &mut [u8]) -> usize {
        let n = to.len().min(self.len());
        // SAFETY: INV-LINK-4 and INV-SCATTER-1: `length` bytes lie there for as long as the message is borrowed.
        unsafe { insane_shm::segment::copy_out(self.base, &mut to[..n]) };
        n
    }

    /// It as a slice, of peers that the configuration trusts not to write to a message after emitting it; see
    /// [`RawMessage::as_slice`].
    #[must_use]
    pub fn as_slice(&self) -> Option<&'m [u8]> {
        // SAFETY: as in `read`; the bytes are this process's own, or a trusted peer's, who does not write.
        self.trusted.then(|| unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) })
    }
}

/// The pieces of a message, in order.
#[derive(Debug, Clone)]
pub struct Pieces<'m> {
    rest: &'m [(NonNull<u8>, u32)],
    only: Option<Piece<'m>>,
    trusted: bool,
}

impl<'m> Iterator for Pieces<'m> {
    type Item = Piece<'m>;

    fn next(&mut self) -> Option<Piece<'m>> {
        if let Some(only) = self.only.take() {
            return Some(only);
        }
        let ((base, length), rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(Piece { base: *base, length: *length, trusted: self.trusted, message: PhantomData })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.rest.len() + usize::from(self.only.is_some());
        (count, Some(count))
    }
}

impl ExactSizeIterator for Pieces<'_> {}

/// A pack of which messages are out, or are to be taken.
#[derive(Debug, Default)]
pub(crate) struct Pack {
    origin: Origin,
    state: PackState,
}

/// What becomes of a pack; reached with the stream's lock held.
#[derive(Debug, Default)]
pub(crate) struct PackState {
    /// Messages that were taken and not released.
    pub(crate) out: u32,
    /// Whether there are messages to be taken.
    pub(crate) open: bool,
    /// The number of its first message.
    first: u64,
    /// The first message that ended in another way than delivery, and how.
    fate: Option<(u64, Fate)>,
}

/// A piece of the stream's pool of packs that is lent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackRef(NonNull<Pack>);

// SAFETY: INV-BLOCK-1; what changes of it is reached with the stream's lock held only.
unsafe impl Send for PackRef {}

impl PackRef {
    pub(crate) fn open(packs: &mut Pool<Pack>, origin: Origin, first: u64) -> Self {
        let mut pack = packs.lend();
        // SAFETY: INV-BLOCK-1: it is lent, and nobody else has heard of it.
        *unsafe { pack.as_mut() } = Pack { origin, state: PackState { out: 0, open: true, first, fate: None } };
        Self(pack)
    }

    #[inline(always)]
    fn origin(self) -> NonNull<Origin> {
        // SAFETY: INV-BLOCK-1: it is lent.
        let origin = unsafe { &raw mut (*self.0.as_ptr()).origin };
        NonNull::new(origin).unwrap_or(NonNull::dangling())
    }

    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // One at a time: each use ends within its line.
    pub(crate) fn state(&self) -> &mut PackState {
        // SAFETY: INV-BLOCK-1: it is lent; messages read its origin only.
        let state = unsafe { &raw mut (*self.0.as_ptr()).state };
        // SAFETY: as above, and the caller has the stream's lock.
        unsafe { &mut *state }
    }

    /// One of its messages is done with. After the last: what the producer is to be told, and it is to be given back.
    #[inline(always)]
    pub(crate) fn done(self, sequence: u64, fate: Fate) -> Option<(u64, Fate)> {
        let pack = self.state();
        if fate != Fate::AsCounted && pack.fate.is_none_or(|(first, _)| sequence < first) {
            pack.fate = Some((sequence, fate));
        }
        pack.out -= 1;
        (pack.out == 0 && !pack.open).then(|| pack.fate.unwrap_or((pack.first, Fate::AsCounted)))
    }

    pub(crate) fn give_back(self, packs: &mut Pool<Pack>) {
        packs.give_back(self.0);
    }

    /// No more of its messages are taken. Returns whether that was the end of it.
    pub(crate) fn abandon(self, packs: &mut Pool<Pack>) -> bool {
        self.state().open = false;
        let over = self.state().out == 0;
        if over {
            self.give_back(packs);
        }
        over
    }
}

impl Taken {
    /// The payload is in a slot.
    #[inline(always)]
    pub(crate) fn lies_at(&mut self, base: NonNull<u8>) {
        self.base = base;
    }

    /// It came by itself.
    #[inline(always)]
    pub(crate) fn comes_from(&mut self, origin: Origin) {
        self.own = origin;
        self.origin = NonNull::from(&self.own);
    }

    /// It came with others that were taken together, and lives no longer than what they have in common.
    #[inline(always)]
    pub(crate) fn comes_with(&mut self, origin: NonNull<Origin>) {
        self.origin = origin;
    }

    /// It came in a pack.
    #[inline(always)]
    pub(crate) fn comes_in(&mut self, pack: PackRef) {
        self.pack = pack;
        self.origin = pack.origin();
    }

    #[inline(always)]
    pub(crate) fn origin(&self) -> &Origin {
        // SAFETY: INV-BLOCK-1: both this and the pack that it came in are lent until the message is released.
        unsafe { self.origin.as_ref() }
    }

    /// What the link is told when the message is given back.
    #[inline(always)]
    pub(crate) fn descriptor(&self) -> Descriptor {
        let origin = self.origin();
        Descriptor {
            sequence: self.sequence,
            slot: origin.slot,
            source: origin.source,
            segment: origin.segment,
            flags: self.flags,
            ..Descriptor::default()
        }
    }
}

impl RawMessage {
    #[inline(always)]
    pub(crate) fn get(&self) -> &Taken {
        // SAFETY: INV-BLOCK-1: it is lent to this message.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self) -> &mut Taken {
        // SAFETY: INV-BLOCK-1: it is lent to this message alone.
        unsafe { self.0.as_mut() }
    }

    /// The channel's id.
    #[must_use]
    pub fn channel(&self) -> u64 {
        self.get().origin().channel
    }

    /// The message's number at its source, from 1.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.get().sequence
    }

    /// The source's epoch.
    #[must_use]
    pub fn source(&self) -> Epoch {
        self.get().origin().epoch
    }

    /// When it was emitted, in nanoseconds of CLOCK_MONOTONIC, if its source says so.
    #[must_use]
    pub fn timestamp_ns(&self) -> Option<u64> {
        let at = self.get().origin().timestamp_ns;
        (at != 0).then_some(at)
    }

    /// Its priority.
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.get().origin().priority
    }

    /// The bytes of payload.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.get().length as usize
    }

    /// Whether it has no payload.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its pieces, if it lies in several places.
    fn scattered(&self) -> Option<&Scattered> {
        self.get().extra.as_ref()?.scattered.as_deref().filter(|scattered| scattered.only().is_none())
    }

    /// All of it in one place, if it came in several: copied together, once.
    #[inline]
    fn together(&self) -> Option<&[u8]> {
        let copies = self.get().extra.as_ref()?.copies.as_deref();
        Some(self.scattered()?.whole(copies))
    }

    /// The pieces in which the payload lies, in order: one, unless the sink was opened with [`crate::SinkOptions::scattered`] and the
    /// message came as several. Nothing is copied.
    #[must_use]
    pub fn pieces(&self) -> Pieces<'_> {
        let trusted = self.is_private() || self.get().origin().trusted;
        if let Some(scattered) = self.scattered() {
            return Pieces { rest: &scattered.pieces, only: None, trusted };
        }
        let (base, length) = (self.get().base, self.get().length);
        Pieces { rest: &[], only: Some(Piece { base, length, trusted, message: PhantomData }), trusted }
    }

    /// All of the payload as one piece. A message of several is copied together for that, once, which is counted; so do
    /// [`Self::as_ptr`] and [`Self::as_slice`].
    #[must_use]
    pub fn contiguous(&self) -> Piece<'_> {
        let together = self.together();
        let trusted = together.is_some() || self.is_private() || self.get().origin().trusted;
        let base = together.map_or(self.get().base, |all| NonNull::from(all).cast());
        Piece { base, length: self.get().length, trusted, message: PhantomData }
    }

    /// How often user code of this host has copied the payload up to now: 0 or 1 times by the runtime, and once in this process if a
    /// message of several pieces was copied together. Only known of messages of a sink that was opened with
    /// [`crate::SinkOptions::scattered`]; else 0.
    #[must_use]
    pub fn copies(&self) -> u32 {
        let here = self.scattered().is_some_and(|scattered| scattered.whole.get().is_some());
        u32::from(self.get().flags & FLAG_COPIED != 0) + u32::from(here)
    }

    /// The address of the payload. It stays readable until the message is released; its bytes may change while they are
    /// read if the peer is hostile, except those of a message of up to 64 bytes on a best-effort stream: these are a copy.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        if let Some(all) = self.together() {
            return all.as_ptr();
        }
        self.get().base.as_ptr()
    }

    /// Copies the payload out, each byte read once; the number of bytes copied is the shorter of both lengths. What the caller copies
    /// by itself is not counted, wherever it lies.
    pub fn read(&self, to: &mut [u8]) -> usize {
        let n = to.len().min(self.len());
        if let Some(scattered) = self.scattered() {
            scattered.copy_out(&mut to[..n]);
            return n;
        }
        // SAFETY: INV-LINK-4: `length` bytes from here lie in a mapped segment, or in a block.
        unsafe { insane_shm::segment::copy_out(self.get().base, &mut to[..n]) };
        n
    }

    /// A copy of the payload.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.read(&mut bytes);
        bytes
    }

    /// The payload as a slice: only of messages that came inside their descriptor (they were copied out already) and of
    /// peers that the configuration trusts not to write to a message after emitting it. Else `None`: use [`Self::read`].
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> Option<&[u8]> {
        // What was copied together is this process's own.
        if let Some(all) = self.together() {
            return Some(all);
        }
        if !self.is_private() && !self.get().origin().trusted {
            return None;
        }
        // SAFETY: INV-LINK-4 for the length; the bytes are this process's own copy, or a trusted peer's, who does not write.
        Some(unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) })
    }

    /// Whether the payload is this process's own copy.
    #[inline]
    fn is_private(&self) -> bool {
        let taken = self.get();
        let copied = taken.flags & FLAG_PACKED != 0 && taken.length <= MAX_COPIED;
        taken.flags & FLAG_INLINE != 0 || copied || taken.length == 0
    }
}
