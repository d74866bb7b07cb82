//! This host's side of everything with one other host: the connection, its flows, and the calls of its user.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use insane_wire::fragment::whole_limit;
use insane_wire::frame::FrameError;
use insane_wire::frame::control::{Account, FlowAck, FlowOpen, Hello};
use insane_wire::frame::record::Message;
use insane_wire::keyed::{Key, Keyed};
use insane_wire::reassembly::Reassembler;

use crate::config::{Config, FlowSpec, Outgoing};
use crate::congestion::Congestion;
use crate::counts::{Counts, PathStats, Share};
use crate::inflow::{InFlow, Saying};
use crate::landing::Guesses;
use crate::outflow::{OutFlow, State};
use crate::rtt::Rtt;
use crate::seen::Seen;
use crate::sizes::Sizes;
use crate::transmit::{Content, Pattern, Sent};
use crate::turns::Turns;

/// How often flows are looked after whose messages are in doubt.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// How long after the last hello the next may go.
pub(crate) const HELLO_GAP: Duration = Duration::from_millis(20);

/// How often a hello is repeated that is not answered, and how often once nothing has come for [`GONE`]: a peer that is away for good
/// costs little, and one that is back says hello itself.
const HELLO_REPEAT: Duration = Duration::from_millis(100);
const HELLO_SELDOM: Duration = Duration::from_secs(1);
const GONE: Duration = Duration::from_secs(60);

/// Credit goes with frames that go anyway this part of an acknowledgement's delay after the last did.
const CREDIT_GAP: u32 = 16;

/// That of reliable flows goes by itself after this part of it.
const CREDIT_RELIABLE: u32 = 8;

/// How many former incarnations of the peer are known never to come back.
const RETIRED: usize = 16;

/// How many closed flows' accounts are kept to be said again after the peer has had them.
const CLOSED: usize = 1024;

/// Where a message's payload lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lies {
    /// In the frame that was received under this token, from byte `at` on.
    Frame {
        /// The token.
        token: u64,
        /// The first byte in the frame.
        at: usize,
        /// How many bytes.
        len: usize,
    },
    /// In a slot of the store, from its first byte on.
    Slot {
        /// The slot.
        slot: u64,
        /// How many bytes.
        len: u32,
    },
}

impl Lies {
    pub(crate) fn bytes(&self) -> u64 {
        match *self {
            Self::Frame { len, .. } => len as u64,
            Self::Slot { len, .. } => len.into(),
        }
    }
}

/// How a message's stay with the sender ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// Reliable: the sinks have it.
    Delivered,
    /// Best effort: it has gone; the flow's [`Counts`] say later what became of it.
    Sent,
    /// Its deadline passed before it was sent.
    Expired,
    /// Best effort: nothing had come from the peer for [`Config::stale`], and it was not sent.
    Dropped,
    /// The flow or connection ended first.
    Unconfirmed,
}

/// Why a connection is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LostReason {
    /// Nothing has come for [`Config::silence`].
    Silent,
    /// The peer has begun anew.
    Restarted,
    /// The peer has said goodbye.
    Ended,
}

/// What the user is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The connection stands; outgoing flows are opened by themselves.
    Connected {
        /// The peer's host.
        host: u128,
    },
    /// It is lost. Incoming flows have ended, outgoing ones wait for the next connection.
    Lost(LostReason),
    /// The peer wants to send: answer with [`Path::accept`] or [`Path::refuse`].
    Requested {
        /// The domain's number.
        domain: u32,
        /// What it wants to send; `flow` names it from now on.
        open: FlowOpen,
    },
    /// An incoming flow has ended.
    Ended {
        /// Which.
        flow: u32,
        /// What became of its messages.
        account: Account,
    },
    /// A message has arrived; its memory is the user's.
    Message {
        /// The incoming flow.
        flow: u32,
        /// Its header.
        message: Message,
        /// Its payload.
        lies: Lies,
    },
    /// Messages of a flow that follow each other have arrived, as a bundle has them
    /// ([`insane_wire::frame::record::Record::Bundle`]); their memory is the user's.
    Bundle {
        /// The incoming flow.
        flow: u32,
        /// The header of the first.
        message: Message,
        /// How many.
        count: u16,
        /// Where they are: always in a frame.
        lies: Lies,
    },
    /// Memory that was kept for a message that will not come: it is the user's again.
    Discard(Lies),
    /// The peer has accepted an outgoing flow.
    Accepted {
        /// Which.
        flow: u32,
    },
    /// The peer will not have an outgoing flow; see [`FlowAck::status`]. Close it, or open another later.
    Refused {
        /// Which.
        flow: u32,
        /// Why.
        status: u8,
    },
    /// A message's payload is the user's again, once the frames that were built before are sent.
    Released {
        /// The outgoing flow.
        flow: u32,
        /// The payload.
        token: u64,
        /// How it ended.
        end: End,
    },
    /// What ended of an outgoing flow's messages that was not taken by [`Path::take_shares`], before [`Event::Closed`].
    Shared {
        /// Which.
        flow: u32,
        /// Of those that knew of the same sinks.
        share: Share,
    },
    /// An outgoing flow that was closed has ended.
    Closed {
        /// Which.
        flow: u32,
        /// The last of its counts.
        counts: Counts,
    },
    /// It has become known what passes: less than both interfaces take, or another size than was said last.
    FrameSize {
        /// The largest frame that arrives at the peer, in bytes.
        passes: usize,
        /// The largest that the interfaces take, in bytes; the same once all of it passes again.
        most: usize,
    },
}

/// Why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SendError {
    /// As many wait as may.
    #[error("the flow has as many messages waiting as it may")]
    Full,
    /// There is no such flow, or it is closed.
    #[error("there is no such flow, or it is closed")]
    NoFlow,
    /// It is longer than a message may be.
    #[error("the message is longer than 128 MiB")]
    TooLong,
}

/// Why a frame was not taken. All are counted in [`PathStats`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Rejected {
    /// It is no frame.
    #[error(transparent)]
    Malformed(#[from] FrameError),
    /// It is of no connection that stands.
    #[error("the frame is of another connection")]
    Foreign,
    /// It came before.
    #[error("the frame came before")]
    Duplicate,
    /// There was no room for something in it; it will be sent again.
    #[error("there was no room for the frame's messages")]
    NoRoom,
    /// It is sealed, which this version cannot open.
    #[error("the frame is sealed with a key that is not known here")]
    Sealed,
}

/// What became of a received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// How many [`Lies::Frame`]s with its token there are among the events now, each in exactly one [`Event::Message`] or
    /// [`Event::Bundle`]. When they were taken its memory is the user's again.
    pub kept: u32,
    /// Whether it was taken.
    pub result: Result<(), Rejected>,
}

/// Messages of a flow that follow each other and have come in frames that are alike, each whole in one of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The incoming flow.
    pub flow: u32,
    /// The header of the first; index and sequence rise by one with each.
    pub message: Message,
    /// How many.
    pub count: u16,
    /// Where each payload begins in its frame.
    pub at: usize,
    /// How many bytes each payload has.
    pub len: usize,
}

impl Row {
    /// The header and the place in `frames` of each message, where the frames lie one every `stride` bytes.
    pub fn messages(&self, stride: usize) -> impl Iterator<Item = (Message, usize)> + use<> {
        let Self { message, at, .. } = *self;
        (0..u32::from(self.count)).map(move |n| {
            let (index, sequence) = (message.index.wrapping_add(n), message.sequence + u64::from(n));
            (Message { index, sequence, ..message }, n as usize * stride + at)
        })
    }
}

/// The receiver's memory for messages of more than one frame.
pub trait Store {
    /// A slot for a message of `bytes` bytes of an incoming flow; `None` if there is none now.
    ///
    /// With `urgent` a reliable flow stands still until this message is there, while later ones may hold slots already. A
    /// store must keep room for one such message per flow; others it may refuse at any time, they are sent again.
    fn reserve(&mut self, flow: u32, bytes: u32, urgent: bool) -> Option<u64>;

    /// Writes a fragment's payload to its place in a slot.
    fn fill(&mut self, slot: u64, at: u32, bytes: &[u8]);

    /// Keeps a copy of a message of a reliable flow that waits for those before it; the token under which it lies alone, as
    /// [`Lies::Frame`] names it, from then on until its [`Event::Message`] or [`Event::Discard`]. Not one of a frame that is being
    /// received. `None` if there is no room now: it is sent again. A message that nothing is missing before is not asked for, so a
    /// store that keeps none only makes flows slow.
    fn hold(&mut self, flow: u32, bytes: &[u8]) -> Option<u64>;

    /// Appends what lies in a slot to `out`: the payload of a frame that was received to a place where it does not belong.
    fn copy_out(&self, slot: u64, at: u32, len: u32, out: &mut Vec<u8>);
}

/// Payload that the datapath gathers from where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gather {
    /// The message's token.
    pub token: u64,
    /// The first byte of its payload that goes.
    pub offset: u32,
    /// How many bytes go.
    pub len: u32,
}

/// A frame that was built at the end of the caller's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Built {
    /// Its length in bytes, with what follows the buffer.
    pub len: usize,
    /// The payload that follows what is in the buffer.
    pub gather: Option<Gather>,
    /// The datapath may add zeros to its end, so that it travels joined with those before and after it. Not said of parts of
    /// messages of more than 256 KiB: what follows those is not placed before it is read.
    pub may_pad: bool,
}

/// Frames of one length that were built one after the other at the end of the caller's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alike {
    /// How many.
    pub frames: usize,
    /// The length of each in bytes, with what follows the buffer.
    pub len: usize,
    /// The payload of the first that follows what is in the buffer, which has the beginnings of the frames one after the other.
    pub gather: Option<Gather>,
    /// From where the payload of one begins to where that of the next does, in bytes: all of it follows what is in the buffer, or none.
    pub every: u32,
    /// As [`Built::may_pad`].
    pub may_pad: bool,
}

impl Alike {
    /// How many bytes of each are in the buffer.
    #[must_use]
    pub fn in_buffer(&self) -> usize {
        self.len - self.gather.map_or(0, |gather| gather.len as usize)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) incarnation: u64,
    pub(crate) max_frame: u32,
    pub(crate) send: u32,
    pub(crate) receive: u32,
}

/// See the crate's head. Not shared between threads.
#[derive(Debug)]
pub struct Path {
    pub(crate) config: Config,
    pub(crate) own: u64,
    random: u64,
    pub(crate) peer: Option<Peer>,
    /// Whom to echo: the latest incarnation heard, adopted or not.
    pub(crate) heard: u64,
    retired: VecDeque<u64>,
    pub(crate) hello_due: Option<Duration>,
    /// When a frame is due that stands beside all others: a hello, or a question of sizes. `MAX` for never.
    pub(crate) aside: Duration,
    pub(crate) sizes: Sizes,
    pub(crate) hello_last: Option<Duration>,
    pub(crate) counter: u64,
    pub(crate) seen: Seen,
    pub(crate) sent: VecDeque<Sent>,
    /// How many of them are quiet and not done.
    pub(crate) unheard: usize,
    pub(crate) spare: Vec<Vec<Content>>,
    pub(crate) largest_acked: u64,
    pub(crate) unacked: u32,
    pub(crate) largest_at: Duration,
    pub(crate) ack_due: Option<Duration>,
    /// Incoming flows whose credit goes with the next frame, and when it goes by itself.
    pub(crate) credits: VecDeque<u32>,
    pub(crate) credit_due: Option<Duration>,
    credit_said: Duration,
    pub(crate) rtt: Rtt,
    pub(crate) congestion: Congestion,
    pub(crate) backoff: u32,
    pub(crate) probes: u32,
    pub(crate) loss_at: Option<Duration>,
    pub(crate) last_heard: Duration,
    pub(crate) last_sent: Duration,
    pub(crate) last_poll: Duration,
    /// Until when nothing is due, unless something happens before: whatever may change what is due sets it back.
    pub(crate) quiet_until: Duration,
    pub(crate) next_tick: Duration,
    pub(crate) ticking: bool,
    pub(crate) out: Keyed<u32, OutFlow>,
    pub(crate) turns: Turns,
    next_flow: u32,
    pub(crate) incoming: Keyed<u32, InFlow>,
    next_source: u64,
    /// The accounts of incoming flows that have ended, until the peer has them; then they are among the closed ones.
    pub(crate) ended: Keyed<u32, Account>,
    closed: VecDeque<(u32, Account)>,
    pub(crate) control: VecDeque<Content>,
    pub(crate) unfinished: Reassembler,
    pub(crate) guesses: Guesses,
    pub(crate) parts_lately: bool,
    /// The last frame was a part of a message of which more follows.
    pub(crate) in_parts: bool,
    pub(crate) pattern: Pattern,
    pub(crate) events: VecDeque<Event>,
    pub(crate) stats: PathStats,
}

impl Path {
    /// A path that will say hello at once. `seed` must be unpredictable and different for every path and process: it makes
    /// the incarnations.
    #[must_use]
    pub fn new(config: Config, seed: u64, now: Duration) -> Self {
        let mut path = Self {
            own: 0,
            random: seed,
            peer: None,
            heard: 0,
            retired: VecDeque::new(),
            hello_due: Some(now),
            aside: now,
            sizes: Sizes::new(config.frame_limit),
            hello_last: None,
            counter: 1,
            seen: Seen::default(),
            sent: VecDeque::new(),
            unheard: 0,
            spare: Vec::new(),
            largest_acked: 0,
            unacked: 0,
            largest_at: now,
            ack_due: None,
            credits: VecDeque::new(),
            credit_due: None,
            credit_said: now,
            rtt: Rtt::default(),
            congestion: Congestion::new(config.dedicated, config.frame_limit),
            backoff: 0,
            probes: 0,
            loss_at: None,
            last_heard: now,
            last_sent: now,
            last_poll: now,
            quiet_until: Duration::ZERO,
            next_tick: now,
            ticking: false,
            out: Keyed::with_hasher(Key::new(seed.rotate_left(17))),
            turns: Turns::default(),
            next_flow: 1,
            incoming: Keyed::with_hasher(Key::new(seed.rotate_left(41))),
            next_source: 0,
            ended: Keyed::with_hasher(Key::new(seed.rotate_left(29))),
            closed: VecDeque::new(),
            control: VecDeque::new(),
            unfinished: Reassembler::new(config.reassembly),
            guesses: Guesses::default(),
            parts_lately: false,
            in_parts: false,
            pattern: Pattern::default(),
            events: VecDeque::new(),
            stats: PathStats::default(),
            config,
        };
        path.own = path.draw();
        path
    }

    /// A number for the peer, from which it does not learn those that the keys of the maps are made of.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.random);
        hasher.finish().max(1)
    }

    /// Whether the connection stands.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.peer.is_some()
    }

    /// The next event. To be taken until there is none, after every other call.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What the path has counted.
    #[must_use]
    pub fn stats(&self) -> PathStats {
        PathStats {
            in_flight: self.congestion.in_flight(),
            window: self.congestion.window(),
            rtt_us: u64::try_from(self.rtt.smoothed().as_micros()).unwrap_or(u64::MAX),
            frame_bytes: self.sizes.using() as u64,
            most_frame_bytes: self.sizes.most() as u64,
            ..self.stats
        }
    }

    /// The datapath's limit to this peer has changed, in bytes.
    pub fn set_frame_limit(&mut self, bytes: usize) {
        self.config.frame_limit = bytes;
        self.sizes.set_limit(self.last_poll, self.interfaces());
        self.congestion.set_frame(self.sizes.usual());
        self.plan_aside();
        self.stir();
    }

    /// The largest frame that the interfaces of both ends take, in bytes.
    fn interfaces(&self) -> usize {
        self.config.frame_limit.min(self.peer.map_or(usize::MAX, |peer| peer.max_frame as usize))
    }

    /// From the next connection on the peer is told that frames of up to so many bytes come in here.
    pub fn set_max_frame(&mut self, bytes: u32) {
        self.config.max_frame = bytes;
    }

    /// From now on payloads of up to so many bytes are copied into frames ([`Config::copy_bytes`]).
    pub fn set_copy_bytes(&mut self, bytes: u32) {
        self.config.copy_bytes = bytes;
    }

    /// The longest message that travels in one frame now, in bytes, if nothing is said of it but its priority.
    #[must_use]
    pub fn whole_bytes(&self) -> u32 {
        u32::try_from(whole_limit(self.frame_limit(), &Message::default())).unwrap_or(u32::MAX)
    }

    /// The largest frame that goes to the peer now, in bytes.
    #[inline]
    pub(crate) fn frame_limit(&self) -> usize {
        self.sizes.using()
    }

    /// Opens an outgoing flow. Messages may be given at once; they go when the peer has accepted it.
    pub fn open(&mut self, spec: FlowSpec) -> u32 {
        let flow = self.next_flow;
        self.next_flow = self.next_flow.wrapping_add(1).max(1);
        self.out.insert(flow, OutFlow::new(spec));
        self.stir();
        if self.peer.is_some() {
            self.control.push_back(Content::Open(flow));
        }
        flow
    }

    /// Gives a message to a flow.
    ///
    /// # Errors
    /// [`SendError`]: the message was not taken and is in no count.
    pub fn send(&mut self, flow: u32, message: Outgoing) -> Result<(), SendError> {
        if message.len > insane_wire::frame::MAX_MESSAGE_BYTES {
            return Err(SendError::TooLong);
        }
        let out = self.out.get_mut(&flow).filter(|out| !out.closing).ok_or(SendError::NoFlow)?;
        if out.waiting.len() >= self.config.queue_messages {
            return Err(SendError::Full);
        }
        out.accept(message);
        self.schedule(flow);
        Ok(())
    }

    pub(crate) fn schedule(&mut self, flow: u32) {
        let has_turn = |out: &&mut OutFlow| !out.queued && out.state == State::Open && out.has_something();
        if let Some(out) = self.out.get_mut(&flow).filter(has_turn) {
            out.queued = true;
            self.turns.add(flow);
            self.stir();
        }
    }

    /// What became of a flow's messages so far. `None` after it has closed.
    #[must_use]
    pub fn counts(&self, flow: u32) -> Option<Counts> {
        self.out.get(&flow).map(OutFlow::counts)
    }

    /// Ends a flow when everything that was given is done; [`Event::Closed`] says so.
    pub fn close(&mut self, flow: u32) {
        if let Some(out) = self.out.get_mut(&flow) {
            out.closing = true;
        }
        self.try_close(flow);
    }

    /// Ends a flow at once: what is not delivered is released as unconfirmed.
    pub fn abandon(&mut self, flow: u32) {
        let Some(out) = self.out.get_mut(&flow) else { return };
        let events = &mut self.events;
        out.abandon(|lost| release(events, flow, &lost, End::Unconfirmed));
        self.try_close(flow);
    }

    /// Takes back what a reliable flow was given and the sinks are not known to have, in order, to be given to another path's;
    /// the flow ends. What it has of that is counted nowhere any more, and not released. Of a best-effort flow, which has no
    /// such messages, nothing is taken back: it is abandoned.
    pub fn take_back(&mut self, flow: u32) -> Vec<Outgoing> {
        let Some(out) = self.out.get_mut(&flow) else { return Vec::new() };
        let back = out.take_back();
        self.abandon(flow);
        back
    }

    /// Says goodbye to the peer's runtime in the next frames when a flow is through.
    pub(crate) fn try_close(&mut self, flow: u32) {
        let Some(out) = self.out.get_mut(&flow).filter(|out| out.closing && out.is_through()) else { return };
        self.quiet_until = Duration::ZERO;
        match out.state {
            State::Closing => {}
            // One that is not accepted yet may be by now: the peer is told in any case.
            State::Open | State::Opening if self.peer.is_some() => {
                out.state = State::Closing;
                self.control.push_back(Content::Close(flow));
            }
            // The peer knows nothing of it.
            State::Opening | State::Refused | State::Open => self.finish(flow),
        }
    }

    /// Accepts an incoming flow: its messages after number `cursor` of its source are wanted. Those of a bundle come all, if the last
    /// of them is: the user passes over those that it had.
    pub fn accept(&mut self, flow: u32, cursor: u64) {
        if let Some(incoming) = self.incoming.get_mut(&flow).filter(|incoming| !incoming.accepted) {
            incoming.accept(cursor, self.config.credit_messages, self.config.credit_bytes);
            self.say_answer(flow);
        }
    }

    /// Refuses an incoming flow with a status (see [`FlowAck::status`]).
    pub fn refuse(&mut self, flow: u32, status: u8) {
        if let Some(incoming) = self.incoming.get_mut(&flow).filter(|incoming| !incoming.accepted) {
            incoming.refused = status.max(1);
            self.say_answer(flow);
        }
    }

    /// The sinks of an incoming flow have everything up to and with this number of its source, by whichever flow it came. The sender keeps
    /// what has not left the receiver's memory yet as a part of this one ([`Path::consumed`]).
    pub fn advance(&mut self, flow: u32, cursor: u64) {
        if let Some(incoming) = self.incoming.get_mut(&flow).filter(|incoming| incoming.accepted) {
            incoming.advance(cursor);
            self.credit_soon(flow);
        }
    }

    /// Messages of an incoming flow have left the receiver's memory: as many more may come. Of a reliable flow each message counts, also
    /// one that the sinks had already; more than it has brought is not credited.
    pub fn consumed(&mut self, flow: u32, messages: u32, bytes: u64) {
        if let Some(incoming) = self.incoming.get_mut(&flow).filter(|incoming| incoming.accepted) {
            incoming.give(messages, bytes);
            self.credit_soon(flow);
        }
    }

    /// Credit and account of a flow are to be said: at once if the sender may soon have to wait for them, otherwise with a frame
    /// that goes anyway, or when they are due. A frame of their own for each message, and one that acknowledges it, would be
    /// most of what small messages cost.
    pub(crate) fn credit_soon(&mut self, flow: u32) {
        let Some(incoming) = self.incoming.get_mut(&flow).filter(|one| one.dirty) else { return };
        if incoming.is_urgent(self.config.credit_messages, self.config.credit_bytes) {
            self.credit_now(flow);
        } else if incoming.saying == Saying::Nothing {
            incoming.saying = Saying::Soon;
            self.credits.push_back(flow);
            // Somebody may wait to hear that a reliable message is delivered.
            let part = if incoming.open.reliable { CREDIT_RELIABLE } else { 1 };
            let due = self.last_poll + self.config.ack_delay / part;
            self.credit_due = Some(self.credit_due.map_or(due, |at| at.min(due)));
            self.stir_at(due);
        }
    }

    /// Credit and account of a flow go with the next frame.
    pub(crate) fn credit_now(&mut self, flow: u32) {
        if let Some(incoming) = self.incoming.get_mut(&flow).filter(|one| one.saying != Saying::Now) {
            incoming.saying = Saying::Now;
            self.control.push_back(Content::Credit(flow));
            self.stir();
        }
    }

    /// What can wait no longer, or need not because a frame goes (`going`), is said with the next one.
    pub(crate) fn credits_due(&mut self, now: Duration, going: bool) {
        let Some(due) = self.credit_due else { return };
        // Not with each of many frames of a stream that goes the other way.
        if now < due && !(going && now >= self.credit_said + self.config.ack_delay / CREDIT_GAP) {
            return;
        }
        self.credit_said = now;
        self.credit_due = None;
        while let Some(flow) = self.credits.pop_front() {
            if self.incoming.get(&flow).is_some_and(|one| one.saying == Saying::Soon) {
                self.credit_now(flow);
            }
        }
    }

    /// Whether [`Path::place`] is likely to have an answer: the last message that came was in parts.
    #[must_use]
    pub fn expects_fragments(&self) -> bool {
        self.parts_lately
    }

    /// The peer's runtime is to forget this one: flows are abandoned by the user before, if they are to be.
    pub fn goodbye(&mut self) {
        if self.peer.is_some() {
            self.control.push_front(Content::Bye);
            self.stir();
        }
    }

    /// Takes a hello. See ADR 10 for why a stale one does no harm. False: it is of nobody that is there.
    pub(crate) fn hello(&mut self, now: Duration, hello: &Hello) -> bool {
        if self.retired.contains(&hello.incarnation) || hello.incarnation == self.own {
            return false;
        }
        let known = self.peer.is_some_and(|peer| peer.incarnation == hello.incarnation);
        self.heard = hello.incarnation;
        if hello.echo != self.own {
            // It does not know this side: tell it.
            self.hello_soon(now);
            return true;
        }
        if known {
            self.last_heard = now;
            if !hello.adopted {
                self.hello_soon(now);
            }
            return true;
        }
        if let Some(former) = self.peer {
            self.retired.push_back(former.incarnation);
            if self.retired.len() > RETIRED {
                self.retired.pop_front();
            }
            self.reset(LostReason::Restarted);
        }
        self.connect(now, hello);
        true
    }

    fn connect(&mut self, now: Duration, hello: &Hello) {
        self.peer = Some(Peer {
            incarnation: hello.incarnation,
            max_frame: hello.max_frame,
            send: Hello::connection(hello.incarnation, self.own),
            receive: Hello::connection(self.own, hello.incarnation),
        });
        (self.last_heard, self.last_sent) = (now, now);
        self.stats.connections += 1;
        self.hello_last = None;
        self.hello_due = (!hello.adopted).then_some(now);
        self.sizes.begin(now, self.interfaces());
        self.plan_aside();
        self.events.push_back(Event::Connected { host: hello.host });
        let mut flows: Vec<u32> = self.out.keys().copied().collect();
        flows.sort_unstable();
        self.control.extend(flows.into_iter().map(Content::Open));
    }

    pub(crate) fn hello_soon(&mut self, now: Duration) {
        let at = self.hello_last.map_or(now, |last| last + HELLO_GAP).max(now);
        self.hello_due = Some(self.hello_due.map_or(at, |due| due.min(at)));
        self.plan_aside();
    }

    /// Something has changed that decides when a frame beside all others is due.
    pub(crate) fn plan_aside(&mut self) {
        self.aside = self.hello_due.unwrap_or(Duration::MAX).min(self.sizes.frame_due());
    }

    /// When the hello that was just sent is to be repeated.
    pub(crate) fn hello_sent(&mut self, now: Duration) {
        self.hello_last = Some(now);
        let gap = if now.saturating_sub(self.last_heard) < GONE { HELLO_REPEAT } else { HELLO_SELDOM };
        self.hello_due = self.peer.is_none().then(|| now + gap);
        self.plan_aside();
    }

    /// The user has reasons to take the connection for lost: [`Event::Lost`] follows, and a new one is sought. Does nothing
    /// without a connection.
    pub fn disconnect(&mut self, now: Duration) {
        if self.peer.is_some() {
            self.lose(now, LostReason::Ended);
        }
    }

    /// The connection is lost by this side's judgement: the next is under another incarnation.
    pub(crate) fn lose(&mut self, now: Duration, reason: LostReason) {
        self.stir();
        self.reset(reason);
        self.own = self.draw();
        self.hello_due = Some(now);
        self.plan_aside();
    }

    /// Forgets everything of the connection.
    fn reset(&mut self, reason: LostReason) {
        self.peer = None;
        self.sizes.end();
        self.counter = 1;
        self.seen = Seen::default();
        self.sent.clear();
        self.unheard = 0;
        (self.largest_acked, self.unacked, self.backoff, self.probes) = (0, 0, 0, 0);
        (self.ack_due, self.credit_due, self.loss_at) = (None, None, None);
        self.credits.clear();
        self.rtt = Rtt::default();
        self.congestion = Congestion::new(self.config.dedicated, self.sizes.usual());
        self.turns.clear();
        let flows: Vec<u32> = self.incoming.keys().copied().collect();
        for flow in flows {
            self.end_incoming(flow);
        }
        self.control.clear();
        // The next connection numbers its flows anew.
        self.ended.clear();
        self.closed.clear();
        let events = &mut self.events;
        events.push_back(Event::Lost(reason));
        let mut through = Vec::new();
        for (&flow, out) in &mut self.out {
            out.queued = false;
            out.reset(|lost| release(events, flow, &lost, End::Unconfirmed));
            if out.closing && out.is_through() {
                through.push(flow);
            }
        }
        for flow in through {
            self.finish(flow);
        }
    }

    pub(crate) fn end_incoming(&mut self, flow: u32) {
        let Some(mut incoming) = self.incoming.remove(&flow) else { return };
        self.drop_guesses_of(flow);
        self.unfinished.forget_source(incoming.domain, incoming.source);
        while let Some(gone) = self.unfinished.given_up() {
            self.events.push_back(Event::Discard(Lies::Slot { slot: gone.slot, len: 0 }));
        }
        self.events.extend(incoming.take_held().into_iter().map(Event::Discard));
        self.events.push_back(Event::Ended { flow, account: incoming.account() });
        self.say_closed(flow, incoming.account());
    }

    /// The peer is told of a flow's end until it has heard it.
    pub(crate) fn say_closed(&mut self, flow: u32, account: Account) {
        self.ended.insert(flow, account);
        self.control.push_back(Content::Closed(flow));
    }

    /// Whether the peer has heard so little of what became of its flows that it is to hear it before there are others.
    pub(crate) fn has_many_ended(&self) -> bool {
        self.ended.len() >= self.config.flows + CLOSED
    }

    /// The last account of an incoming flow that has ended and of which the peer has heard that, as long as it is remembered.
    pub(crate) fn closed_account(&self, flow: u32) -> Option<Account> {
        self.closed.iter().find(|closed| closed.0 == flow).map(|closed| closed.1)
    }

    pub(crate) fn remember_closed(&mut self, flow: u32, account: Account) {
        self.closed.push_back((flow, account));
        if self.closed.len() > CLOSED {
            self.closed.pop_front();
        }
    }

    /// The answer to a flow's opening goes, unless it is on its way: it goes until the peer has it, however often that asks.
    pub(crate) fn say_answer(&mut self, flow: u32) {
        if let Some(incoming) = self.incoming.get_mut(&flow).filter(|incoming| !incoming.answering) {
            incoming.answering = true;
            self.control.push_back(Content::Answer(flow));
            self.stir();
        }
    }

    pub(crate) fn new_source(&mut self) -> u64 {
        self.next_source += 1;
        self.next_source
    }

    pub(crate) fn answer(&self, flow: u32) -> Option<FlowAck> {
        let incoming = self.incoming.get(&flow)?;
        Some(FlowAck {
            flow,
            status: incoming.refused,
            cursor: incoming.account().cursor,
            limit_index: incoming.limit_index as u32,
            limit_bytes: incoming.limit_bytes,
        })
    }
}

/// A message has ended: its payload is its owner's again, unless others need it that were cut out of the same bundle.
pub(crate) fn release(events: &mut VecDeque<Event>, flow: u32, message: &Outgoing, end: End) {
    if let Some(token) = message.releases() {
        events.push_back(Event::Released { flow, token, end });
    }
}
