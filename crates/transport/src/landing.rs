//! Payloads that are received straight to where they belong.

use std::time::Duration;

use insane_wire::frame::record::{Message, Part, Place, Records};
use insane_wire::frame::{Header, MAX_COUNTER};
use insane_wire::reassembly::Key;

use crate::inflow::Verdict;
use crate::path::{Event, Lies, Path, Store};

/// Messages of up to so many bytes travel joined with those before and after them, in pieces that hold the end of one and the beginning of
/// the next. Of larger ones a piece that ends with its message is no matter.
pub(crate) const JOINED: u32 = 256 << 10;

/// The most messages that one landing is for.
pub const MOST_REGIONS: usize = 9;

/// After a guess was wrong, so many pieces are not placed by one.
const DOUBT: u8 = 32;

/// The head of a frame of one fragment, whose payload may be elsewhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) header: Header,
    pub(crate) message: Message,
    pub(crate) part: Part,
    pub(crate) place: Place,
}

impl Head {
    /// Whether there is nothing in the frame but `head_bytes` of head and `size` bytes of payload, of the message's byte `at` on.
    fn is_alone(&self, head_bytes: usize, at: u32, size: u32) -> bool {
        // Bytes behind the fragment are padding, or another record.
        self.place.at == head_bytes
            && self.place.len == size as usize
            && usize::from(self.header.length) == head_bytes + size as usize
            && self.part.offset == at
    }
}

/// Frames one after the other whose payloads are one piece of one message, where they belong.
#[derive(Debug)]
pub(crate) struct Run {
    /// That of the first.
    pub(crate) head: Head,
    pub(crate) bytes: u32,
    /// How many bytes were missing from the first on.
    missing: u32,
    pub(crate) frames: u64,
}

impl Run {
    /// Takes the next frame, if it follows. Frames of other sizes begin a run of their own, but for the last.
    fn takes(&mut self, next: &Head, size: u32) -> bool {
        let (first, frame) = (&self.head, self.head.place.len as u32);
        let follows = next.header.counter == first.header.counter.wrapping_add(self.frames)
            && next.header.domain == first.header.domain
            && next.message.flow == first.message.flow
            && next.message.index == first.message.index
            && next.part.total == first.part.total
            && u64::from(next.part.offset) == u64::from(first.part.offset) + u64::from(self.bytes)
            && size <= frame
            && u64::from(self.bytes) == u64::from(frame) * self.frames
            && u64::from(self.bytes) + u64::from(size) <= u64::from(self.missing);
        if follows {
            self.bytes += size;
            self.frames += 1;
        }
        follows
    }

    /// The run's frames, each by itself.
    pub(crate) fn each(self) -> impl Iterator<Item = Self> {
        let Self { head, bytes, missing, frames } = self;
        let size = u32::try_from(head.place.len).unwrap_or(u32::MAX).max(1);
        (0..frames).zip((0..bytes).step_by(size as usize)).map(move |(n, at)| {
            let header = Header { counter: head.header.counter.saturating_add(n), ..head.header };
            let part = Part { offset: head.part.offset + at, ..head.part };
            Self { head: Head { header, part, ..head }, bytes: size.min(bytes - at), missing, frames: 1 }
        })
    }
}

/// Bytes of a slot of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// The slot.
    pub slot: u64,
    /// The first byte.
    pub at: u32,
    /// How many.
    pub bytes: u32,
}

impl Region {
    /// Whether both are about some of the same bytes.
    fn meets(&self, other: &Self) -> bool {
        let end = |one: &Self| one.at.saturating_add(one.bytes);
        self.slot == other.slot && self.at < end(other) && other.at < end(self)
    }
}

/// Where payloads that are about to be received belong; only [`Path::place`] makes one. [`Landings::regions`] has the places: payloads
/// follow each other in them, each region begins with a frame, and what of a frame has no room in its region is filling, and goes elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landing {
    /// The bytes at the start of each frame that are no payload.
    pub head_bytes: usize,
    /// Its number in its batch, for [`Path::receive_run`].
    pub number: usize,
    /// All bytes of the frames, and those from one to the next.
    len: usize,
    stride: usize,
    /// Its regions: the first's number, and that behind the last.
    regions: (usize, usize),
}

/// The landings of one batch: of all that is received before a path has any of it ([`Path::receive_run`]).
///
/// Only the head of the first frame of each was certain: others may be strays, whose bytes lie where they do not belong until the
/// path has them. So no two landings meet, and what strayed is handed out when all have been looked at: taking a stray may write
/// to where another lies.
///
/// One batch serves all paths that share a [`Store`]. Kept, it allocates nothing once it has grown, but for strays.
#[derive(Debug, Default)]
pub struct Landings {
    all: Vec<Landing>,
    regions: Vec<Region>,
    strays: Vec<Stray>,
    /// How many batches there were before.
    round: u64,
}

/// A frame whose payload was received to where it does not belong, put together again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    /// The number of the landing that it was received to: its path is that landing's.
    pub number: usize,
    /// All of its bytes.
    pub frame: Vec<u8>,
}

impl Landings {
    /// Where the payloads of a landing of this batch belong, in turn: at least one region, at most [`MOST_REGIONS`], each of another slot.
    #[must_use]
    pub fn regions(&self, landing: &Landing) -> &[Region] {
        self.regions.get(landing.regions.0..landing.regions.1).unwrap_or(&[])
    }

    /// Ends the batch: each path has been given what was received to its landings. What strayed is to be given to
    /// [`Path::receive`]; after that come the frames that arrived after the batch, and events.
    #[must_use]
    pub fn finish(&mut self) -> Vec<Stray> {
        self.all.clear();
        self.regions.clear();
        self.round += 1;
        core::mem::take(&mut self.strays)
    }

    /// Adds a landing for the regions that were added last, unless it meets another of the batch; these are gone then.
    fn add(&mut self, landing: Landing) -> Option<Landing> {
        let (before, own) = self.regions.split_at(landing.regions.0.min(self.regions.len()));
        if own.iter().any(|own| before.iter().any(|other| other.meets(own))) {
            self.regions.truncate(landing.regions.0);
            return None;
        }
        let landing = Landing { number: self.all.len(), ..landing };
        self.all.push(landing);
        Some(landing)
    }
}

/// A slot for a message of which nothing is known but that it is likely to come next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guess {
    flow: u32,
    index: u64,
    bytes: u32,
    slot: u64,
    /// The batch that it was made in.
    round: u64,
}

/// What messages are likely to follow, and where they go.
#[derive(Debug, Default)]
pub(crate) struct Guesses {
    all: Vec<Guess>,
    /// How many pieces are still to go without one.
    doubt: u8,
}

impl Guesses {
    fn find(&self, flow: u32, index: u64, bytes: u32) -> Option<usize> {
        self.all.iter().position(|one| (one.flow, one.index, one.bytes) == (flow, index, bytes))
    }
}

/// The frames of a piece.
#[derive(Debug, Clone, Copy)]
struct Frames {
    count: usize,
    /// The payload bytes of each but the last, and of the last.
    payload: u32,
    last: u32,
}

impl Frames {
    fn of(len: usize, stride: usize, head_bytes: usize) -> Option<Self> {
        let count = len.div_ceil(stride.max(1));
        let last = len.checked_sub(count.checked_sub(1)? * stride)?;
        let payload = |frame: usize| u32::try_from(frame.checked_sub(head_bytes)?).ok();
        Some(Self { count, payload: payload(stride)?, last: payload(last)? })
    }

    fn bytes(&self) -> Option<u32> {
        let before = u32::try_from(self.count.checked_sub(1)?).ok()?.checked_mul(self.payload)?;
        before.checked_add(self.last).filter(|&bytes| bytes > 0)
    }
}

impl Path {
    /// The fragment that a frame's head speaks of.
    fn read_head(&self, head: &[u8]) -> Option<Head> {
        // A check cannot be made before everything is read.
        let plain = |header: &Header| header.flags == 0 && header.counter <= MAX_COUNTER && !self.config.checked;
        let header = Header::read(head).ok().filter(plain)?;
        self.peer.filter(|peer| peer.receive == header.connection)?;
        let (message, part, place) = Records::peek(head)?;
        Some(Head { header, message, part: part?, place })
    }

    /// Where the payload of frames that are about to be received belongs, by the head of the first: for datapaths that place
    /// ([`Path::receive_run`] takes the heads afterwards). `len` are all bytes of the frames, `stride` those from one to the
    /// next. A message that was not known is given a slot. If there is more than is missing of it, the next of its flow are taken to be
    /// as long, and to follow. `None` if they are for no slot, or for too many, or for bytes that another landing of the batch is for.
    pub fn place(
        &mut self,
        now: Duration,
        head: &[u8],
        len: usize,
        stride: usize,
        store: &mut dyn Store,
        batch: &mut Landings,
    ) -> Option<Landing> {
        let Head { header, message, part, place } = self.read_head(head)?;
        let (flow, head_bytes) = (message.flow, place.at);
        self.stir();
        self.drop_guesses(|guess| guess.round != batch.round);
        let incoming = self.incoming.get(&flow).filter(|incoming| incoming.domain == header.domain)?;
        let index = incoming.index(message.index);
        let (key, keep, urgent) = (Self::key(incoming, index), incoming.open.reliable, incoming.waits_for(index));
        let frames = Frames::of(len, stride, head_bytes)?;
        let missing = part.total.checked_sub(part.offset).filter(|&missing| missing > 0)?;
        let (all, payload) = (frames.bytes()?, frames.payload);
        let others = all > missing;
        let alike = part.total <= JOINED && place.len as u64 == u64::from(payload.min(missing));
        if incoming.judge(index) != Verdict::Take || (others && !(alike && self.may_guess())) {
            return None;
        }
        let guess = self.guesses.find(flow, index, part.total);
        self.expect(now, (key, part.total, keep), guess, |bytes| store.reserve(flow, bytes, urgent))?;
        if let Some(incoming) = self.incoming.get_mut(&flow) {
            incoming.partly(index);
            self.ticking |= incoming.needs_ticks();
        }
        let own = all.min(missing);
        let slot = self.unfinished.where_to(key, part.offset, own)?;
        let first = batch.regions.len();
        batch.regions.push(Region { slot, at: part.offset, bytes: own });
        if others {
            let count = frames.count - missing.div_ceil(payload) as usize;
            let rest = Frames { count, ..frames };
            if self.place_next((flow, key, part.total), rest, store, batch).is_none() {
                batch.regions.truncate(first);
                return None;
            }
        }
        batch.add(Landing { head_bytes, number: 0, len, stride, regions: (first, batch.regions.len()) })
    }

    /// Makes a message known before its first part is taken, unless it is: in the slot of the `guess` that it would come, which is none
    /// any more then, or else in one that `reserve` has.
    fn expect(
        &mut self,
        now: Duration,
        (key, total, keep): (Key, u32, bool),
        guess: Option<usize>,
        reserve: impl FnOnce(u32) -> Option<u64>,
    ) -> Option<()> {
        let Self { unfinished, guesses, .. } = self;
        let slot = |bytes| match guess {
            Some(at) => Some(guesses.all.swap_remove(at).slot),
            None => reserve(bytes),
        };
        unfinished.expect(now, key, total, keep, slot).ok()
    }

    /// Adds regions for the frames that follow the end of a message of `total` bytes.
    fn place_next(
        &mut self,
        (flow, mut key, total): (u32, Key, u32),
        mut rest: Frames,
        store: &mut dyn Store,
        batch: &mut Landings,
    ) -> Option<()> {
        let each = total.div_ceil(rest.payload) as usize;
        for _ in 1..MOST_REGIONS {
            key.message += 1;
            let frames = Frames { count: each.min(rest.count), ..rest };
            rest.count -= frames.count;
            let bytes = if rest.count == 0 { frames.bytes()? } else { total };
            let incoming = self.incoming.get(&flow)?;
            // One that ends here and is filled up is for nobody's sake: nothing follows it.
            if bytes > total || incoming.judge(key.message) != Verdict::Take {
                return None;
            }
            let slot = match self.unfinished.missing(key, 0) {
                Some((slot, missing)) if missing >= bytes => slot,
                Some(_) => return None,
                None => match self.guesses.find(flow, key.message, total).and_then(|at| self.guesses.all.get(at)) {
                    Some(guess) => guess.slot,
                    None => {
                        let slot = store.reserve(flow, total, false)?;
                        let guess = Guess { flow, index: key.message, bytes: total, slot, round: batch.round };
                        self.guesses.all.push(guess);
                        slot
                    }
                },
            };
            batch.regions.push(Region { slot, at: 0, bytes });
            if rest.count == 0 {
                return Some(());
            }
        }
        None
    }

    /// Whether what follows may be guessed: not for some time after it was wrong.
    fn may_guess(&mut self) -> bool {
        let may = self.guesses.doubt == 0;
        self.guesses.doubt = self.guesses.doubt.saturating_sub(1);
        may
    }

    /// Gives back the slots of guesses that were wrong; whether there were any.
    pub(crate) fn drop_guesses(&mut self, is_wrong: impl Fn(&Guess) -> bool) -> bool {
        let before = self.guesses.all.len();
        let events = &mut self.events;
        self.guesses.all.retain(|guess| {
            let wrong = is_wrong(guess);
            if wrong {
                events.push_back(Event::Discard(Lies::Slot { slot: guess.slot, len: 0 }));
            }
            !wrong
        });
        self.guesses.all.len() < before
    }

    /// Gives back the slots of guesses about a flow.
    pub(crate) fn drop_guesses_of(&mut self, flow: u32) {
        self.drop_guesses(|guess| guess.flow == flow);
    }

    /// Takes frames whose payloads were received straight to a [`Landing`] of this path, by its number: `heads` are their heads, one after
    /// the other, and `tails` what had no room in the regions. Only the first head was certain; frames that turn out not to belong where
    /// they lie (others came between, or one is missing) are put together and come out of [`Landings::finish`]. Events must not be handled
    /// before that, for they may give slots away.
    pub fn receive_run(
        &mut self,
        now: Duration,
        (heads, tails): (&[u8], &[u8]),
        number: usize,
        batch: &mut Landings,
        store: &mut dyn Store,
    ) {
        let Some(&landing) = batch.all.get(number) else { return };
        self.stir();
        let Landing { head_bytes, len, stride, .. } = landing;
        let (mut regions, mut tails) = (landing.regions.0..landing.regions.1, tails);
        let (mut region, mut done) = (Region { slot: 0, at: 0, bytes: 0 }, 0);
        let mut run = None::<Run>;
        let (mut rest, mut left) = (heads, len);
        while let Some((bytes, others)) = rest.split_at_checked(head_bytes).filter(|_| !rest.is_empty()) {
            // The last may be a head alone, which needs none.
            if done == region.bytes
                && let Some(&next) = regions.next().and_then(|at| batch.regions.get(at))
            {
                (region, done) = (next, 0);
                run.take().into_iter().for_each(|run| self.book(now, run, store));
            }
            let frame = left.min(stride);
            let whole = u32::try_from(frame.saturating_sub(head_bytes)).unwrap_or(0);
            let (at, size) = (region.at.saturating_add(done), whole.min(region.bytes - done));
            let tail;
            (tail, tails) = tails.split_at_checked((whole - size) as usize).unwrap_or((tails, &[]));
            (rest, left, done) = (others, left - frame, done + size);
            let head = self.read_head(bytes).filter(|head| head.is_alone(head_bytes, at, size));
            // What follows is known by the head alone; what begins has to be looked up.
            let follows = |run: &mut Run| head.as_ref().is_some_and(|head| run.takes(head, size));
            if !run.as_mut().is_some_and(follows) {
                run.take().into_iter().for_each(|run| self.book(now, run, store));
                run = head.and_then(|head| self.begins(now, &head, region.slot, size));
                if run.is_none() {
                    let mut frame = bytes.to_vec();
                    store.copy_out(region.slot, at, size, &mut frame);
                    frame.extend_from_slice(tail);
                    batch.strays.push(Stray { number, frame });
                }
            }
        }
        run.into_iter().for_each(|run| self.book(now, run, store));
        // What was to follow has been seen to do so, or it has not.
        let own = batch.regions.get(landing.regions.0 + 1..landing.regions.1).unwrap_or(&[]);
        if !own.is_empty() && self.drop_guesses(|guess| own.iter().any(|region| region.slot == guess.slot)) {
            self.guesses.doubt = DOUBT;
        }
    }

    /// The run that begins with a frame; `None` if its payload does not belong to that slot.
    fn begins(&mut self, now: Duration, head: &Head, slot: u64, size: u32) -> Option<Run> {
        let (flow, total) = (head.message.flow, head.part.total);
        let incoming = self.incoming.get(&flow).filter(|one| one.domain == head.header.domain)?;
        let index = incoming.index(head.message.index);
        if incoming.judge(index) != Verdict::Take {
            return None;
        }
        let (key, keep) = (Self::key(incoming, index), incoming.open.reliable);
        // It was guessed to come, and here it is.
        let here = |&at: &usize| self.guesses.all.get(at).is_some_and(|guess| guess.slot == slot);
        if let Some(guess) = self.guesses.find(flow, index, total).filter(here) {
            self.expect(now, (key, total, keep), Some(guess), |_| None)?;
            if let Some(incoming) = self.incoming.get_mut(&flow).filter(|_| keep) {
                incoming.partly(index);
            }
        }
        let (there, missing) = self.unfinished.missing(key, head.part.offset)?;
        let belongs = there == slot && size <= missing;
        belongs.then_some(Run { head: *head, bytes: size, missing, frames: 1 })
    }
}
