//! Building frames, and what is due by time.

use std::time::Duration;

use insane_wire::fragment::{Fragments, whole_limit};
use insane_wire::frame::control::{Ask, Close, Closed, Credit, FlowOpen, Hello};
use insane_wire::frame::record::{FRAGMENT_BYTES, MESSAGE_BYTES, Message, Part};
use insane_wire::frame::{CHECKED, FrameBuilder, HEADER_BYTES, Header, MIN_FRAME_LIMIT, next_message, next_part};

use crate::config::Outgoing;
use crate::congestion::Congestion;
use crate::landing::JOINED;
use crate::outflow::{Gone, Next, OutFlow, Span, State, on_the_wire};
use crate::path::{Alike, Built, End, Event, Gather, Lies, LostReason, Path, TICK, release};
use crate::payloads::{BUNDLE_WORD, Payloads, Rest};

/// Acknowledge at once after so many frames.
const ACK_EVERY: u32 = 16;

/// Messages of so many bytes share a record with others wherever that is possible.
const SMALL: u32 = 64;

/// What a record costs beside its payload, in bytes: messages without a payload use up a turn, too.
const OWN_BYTES: u32 = MESSAGE_BYTES as u32;

/// Frames that go after a time-out without regard to the window.
const PROBES: u32 = 2;

/// The most frames without data that may be under way: what is to be said beyond that waits for an answer, as a peer that never gives one
/// would have more and more of them kept.
const UNHEARD: usize = 8192;

/// What a frame carried that must be sent again if it is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Open(u32),
    Answer(u32),
    Credit(u32),
    Told(u32),
    Ask(u32),
    Close(u32),
    Closed(u32),
    Bye,
    Ping,
    Span(u32, Span),
}

/// A frame that was sent and is not acknowledged.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) counter: u64,
    pub(crate) at: Duration,
    pub(crate) bytes: u32,
    /// Acknowledged, or taken for lost.
    pub(crate) done: bool,
    /// There is no data in it, so that the window did not hold it back.
    pub(crate) quiet: bool,
    pub(crate) contents: Vec<Content>,
}

impl Sent {
    /// A frame of so many bytes with data in it, which was just sent.
    #[inline]
    fn new(counter: u64, at: Duration, len: usize, contents: Vec<Content>) -> Self {
        Self { counter, at, bytes: len as u32, done: false, quiet: false, contents }
    }
}

/// What frames that are alike carry one of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Each {
    /// Parts of one message.
    #[default]
    Part,
    /// Messages of one bundle.
    OfBundle,
    /// Messages of one flow, of these priority and `joined`.
    Message(u8, u8),
}

/// The last frame that was one part of a message, or one message, and nothing else: what follows is built after it.
#[derive(Debug, Default)]
pub(crate) struct Pattern {
    each: Each,
    /// When it was built, and for frames of which size.
    at: Duration,
    limit: usize,
    flow: u32,
    /// The message's number in its flow.
    index: u64,
    /// Bytes of payload; 0 for none.
    size: u32,
    /// It is gathered from where it lies.
    apart: bool,
    head: Vec<u8>,
}

impl Path {
    /// Builds the next frame at the end of `out`; `None` when there is nothing to send now. Small payloads are copied by
    /// `payloads`, one large one may have to be gathered behind what is in the buffer ([`Built::gather`]).
    pub fn transmit(&mut self, now: Duration, out: &mut Vec<u8>, payloads: &mut dyn Payloads) -> Option<Built> {
        if self.rests(now) {
            return None;
        }
        // Once for all frames of a batch.
        if now != self.last_poll {
            self.on_time(now);
        } else if let Some(Alike { len, gather, may_pad, .. }) = self.build_alike(now, out, payloads, 1) {
            return Some(Built { len, gather, may_pad });
        }
        if self.aside <= now {
            return Some(self.build_aside(now, out));
        }
        let Some(peer) = self.peer.filter(|_| !self.has_nothing(now)) else {
            self.nothing_follows();
            // A thread that is held up for longer than that is to find out ([`Path::on_time`]).
            let most = now + self.config.silence / 4;
            self.quiet_until = self.timeout().map_or(most, |at| at.min(most));
            return None;
        };
        let flags = if self.config.checked { CHECKED } else { 0 };
        let sent_us = now.as_micros() as u32;
        let header = Header { flags, connection: peer.send, counter: self.counter, sent_us, ..Header::default() };
        let (limit, start) = (self.frame_limit(), out.len());
        let mut frame = FrameBuilder::new(out, header, limit);
        let mut contents = self.spare.pop().unwrap_or_default();
        let mut data = self.may_send(now);
        let ack_now = self.ack_due.is_some_and(|due| due <= now);
        // With anything before it the part of a large message would be a shorter one, and not join the others.
        let apart = (self.unacked > 0 || self.credit_due.is_some() || self.has_control()) && self.sends_parts();
        let going = ack_now || self.has_control() || (data && !self.turns.is_empty() && !apart);
        self.credits_due(now, going);
        data &= !(apart && (going || self.has_control()));
        let acks = self.unacked > 0 && (going || self.has_control());
        if acks {
            let delay = u32::try_from(now.saturating_sub(self.largest_at).as_micros()).unwrap_or(u32::MAX);
            // Half the frame at most, so that everything else has room.
            frame.ack(delay, self.seen.to_tell().take((limit / 2 - 48) / 8));
        }
        let mut domain = None;
        if self.has_control() {
            self.add_control(&mut frame, &mut contents, &mut domain);
        }
        let before_data = frame.len();
        let (mut gather, mut large) = (None, false);
        self.nothing_follows();
        if data {
            (gather, large) = self.add_data(now, &mut frame, &mut contents, &mut domain, payloads);
        }
        let quiet = frame.len() == before_data;
        let heartbeat = self.probes > 0 || self.wants_heartbeat(now);
        if contents.is_empty() && gather.is_none() && domain.is_none() && heartbeat && frame.ping() {
            contents.push(Content::Ping);
        }
        if frame.is_empty() {
            frame.abandon();
            self.spare.push(contents);
            return None;
        }
        let len = frame.finish();
        // A frame of an acknowledgement alone is not acknowledged.
        let eliciting = !contents.is_empty() || domain.is_some();
        if acks {
            (self.unacked, self.ack_due) = (0, None);
        }
        if self.pattern.size > 0 {
            self.remember(now, limit, out.get(start..).unwrap_or(&[]));
        }
        self.register(now, len, (eliciting, quiet), contents);
        Some(Built { len, gather, may_pad: !large && !self.config.checked })
    }

    /// How many messages of a flow have not gone yet; 0 after it has closed.
    #[must_use]
    pub fn waiting(&self, flow: u32) -> u64 {
        self.out.get(&flow).map_or(0, OutFlow::waiting)
    }

    /// The number at the source of the first message of a flow that the sinks are not known to have; `None` if there is none.
    #[must_use]
    pub fn oldest(&self, flow: u32) -> Option<u64> {
        self.out.get(&flow).and_then(OutFlow::oldest)
    }

    /// As [`Self::waiting`], of a flow that can go on: of one that has no credit, or is not accepted yet, none.
    #[must_use]
    pub fn about_to_go(&self, flow: u32) -> u64 {
        self.out.get(&flow).filter(|out| out.goes_on()).map_or(0, OutFlow::waiting)
    }

    /// What goes next is no further part of a message, nor like the last frame.
    #[inline]
    pub(crate) fn nothing_follows(&mut self) {
        (self.in_parts, self.pattern.size) = (false, 0);
    }

    /// Something may be due earlier than it was, or at once.
    #[inline]
    pub(crate) fn stir(&mut self) {
        self.quiet_until = Duration::ZERO;
    }

    /// Something is due at that time, and nothing else has changed.
    #[inline]
    pub(crate) fn stir_at(&mut self, at: Duration) {
        self.quiet_until = self.quiet_until.min(at);
    }

    /// Whether there is nothing to send, nothing due and no event, so that [`Path::transmit`] would find nothing. Most looks find that, and
    /// that nothing has happened since the one before: it costs a few instructions then. `false` may be wrong, as long as nobody has
    /// called [`Path::transmit`].
    #[inline]
    pub fn rests(&mut self, now: Duration) -> bool {
        let rests = now < self.quiet_until && self.events.is_empty();
        if rests {
            self.last_poll = now;
        }
        rests
    }

    /// Whether there are events.
    #[inline]
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether there is neither data nor anything else to be said to the peer now: most looks find that.
    #[inline]
    fn has_nothing(&self, now: Duration) -> bool {
        !self.has_something(now) && !self.wants_heartbeat(now)
    }

    #[inline]
    fn wants_heartbeat(&self, now: Duration) -> bool {
        now.saturating_sub(self.last_sent) >= self.config.heartbeat && self.unheard < UNHEARD
    }

    /// Whether there is something to be said beside data, and it may be.
    #[inline]
    fn has_control(&self) -> bool {
        !self.control.is_empty() && (self.unheard < UNHEARD || self.probes > 0)
    }

    /// Whether something waits to go, or is due.
    #[inline]
    pub(crate) fn has_something(&self, now: Duration) -> bool {
        let is_due = |due: Option<Duration>| due.is_some_and(|due| due <= now);
        let waits = !self.turns.is_empty() || self.has_control() || self.probes > 0;
        waits || is_due(self.ack_due) || is_due(self.credit_due) || self.aside <= now
    }

    /// After [`Path::transmit`], at the same time, has built a frame: builds up to `most` more at the end of `out` that are like it,
    /// further parts of the same message or messages of the same bundle, of the same size, and nothing else with them. `None`: what
    /// goes next is not like it.
    pub fn transmit_alike(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
        payloads: &mut dyn Payloads,
        most: usize,
    ) -> Option<Alike> {
        if now == self.last_poll { self.build_alike(now, out, payloads, most) } else { None }
    }

    #[inline]
    fn build_alike(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
        payloads: &mut dyn Payloads,
        most: usize,
    ) -> Option<Alike> {
        let Pattern { each, at, limit, flow, index, size, apart, .. } = self.pattern;
        let is_due = |due: Option<Duration>| due.is_some_and(|due| due <= now);
        let others = self.turns.front() != Some(flow) || self.has_control();
        let due = is_due(self.ack_due) || is_due(self.credit_due) || self.aside <= now || self.probes > 0;
        if most == 0 || size == 0 || at != now || limit != self.frame_limit() || others || due || !self.may_send(now) {
            return None;
        }
        let own = if each == Each::OfBundle { BUNDLE_WORD } else { 0 };
        let len = self.pattern.head.len() + size as usize;
        let most = most.min(self.congestion.frames(len, self.in_parts));
        let turn = self.turns.left(own + size + OWN_BYTES) as usize;
        let most = u16::try_from(most.min(turn)).unwrap_or(u16::MAX);
        if let Each::Message(priority, joined) = each {
            let frames = self.build_messages(now, out, payloads, most, (priority, joined));
            return (frames > 0).then_some(Alike { frames, len, gather: None, every: size, may_pad: true });
        }
        let source = self.out.get_mut(&flow)?;
        let head = &self.pattern.head;
        let mut counter = self.counter;
        let start = out.len();
        let (next, count, may_pad) = if self.in_parts {
            let next = source.next_part(index, size)?;
            let Span { offset, len, .. } = next.span;
            // The last is another size.
            let count = u16::try_from((len - 1) / size).unwrap_or(u16::MAX).min(most);
            for n in 0..u32::from(count) {
                next_part(out, head, counter, offset + n * size);
                counter += 1;
                if apart {
                    continue;
                }
                let end = out.len() + size as usize;
                payloads.copy(next.message.token, next.message.base + offset + n * size, size, out);
                out.resize(end, 0);
            }
            (next, count, next.message.len <= JOINED)
        } else {
            let next = source.next_of_bundle()?;
            let Next { message, span, .. } = next;
            // Its last goes by itself: with it the bundle ends.
            let most = u64::from(most.min(next.most).min(message.bundle - 1)).min(source.most_of_bytes(size));
            let rest = Rest { offset: span.offset, count: message.bundle };
            let (mut index, mut sequence) = (span.index, message.sequence);
            let mut write_head = |out: &mut Vec<u8>| {
                next_message(out, head, counter, index as u32, sequence);
                (counter, index, sequence) = (counter + 1, index + 1, sequence + 1);
            };
            let count = if apart {
                let count = payloads.count_alike(message.token, rest, (size, most as u16));
                (0..count).for_each(|_| write_head(out));
                count
            } else {
                payloads.copy_alike(message.token, rest, (size, most as u16), out, &mut write_head)
            };
            (next, count, true)
        };
        let (stride, bundled) = (own + size, u16::from(!self.in_parts));
        if count == 0 || u32::from(count) * stride > next.span.len {
            out.truncate(start);
            return None;
        }
        let gone = Gone { len: u32::from(count) * stride, count: count * bundled, payload: u32::from(count) * size };
        source.took(&next, gone);
        let reliable = source.spec.reliable;
        let Outgoing { token, base, .. } = next.message;
        let gather = apart.then_some(Gather { token, offset: base + next.span.offset + own, len: size });
        self.turns.sent(gone.len + u32::from(count) * OWN_BYTES);
        for n in 0..u32::from(count) {
            let mut contents = self.spare.pop().unwrap_or_default();
            if reliable {
                let offset = next.span.offset + n * stride;
                let index = next.span.index + u64::from(n) * u64::from(bundled);
                contents.push(Content::Span(flow, Span { index, offset, len: stride, count: bundled }));
            }
            self.sent.push_back(Sent::new(self.counter, now, len, contents));
            self.counter += 1;
        }
        self.sent_alike(now, count.into(), len);
        Some(Alike { frames: count.into(), len, gather, every: stride, may_pad })
    }

    fn sent_alike(&mut self, now: Duration, frames: usize, len: usize) {
        self.stats.sent_frames += frames as u64;
        self.last_sent = now;
        self.congestion.sent(frames, len);
    }

    /// Builds frames of the next messages of the pattern's flow, as long as these are as its last frame's was; how many.
    fn build_messages(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
        payloads: &mut dyn Payloads,
        most: u16,
        like: (u8, u8),
    ) -> usize {
        let Pattern { flow, size, head, .. } = &self.pattern;
        let (flow, size, len) = (*flow, *size, head.len() + *size as usize);
        let Some(source) = self.out.get_mut(&flow) else { return 0 };
        let mut frames = 0;
        while frames < usize::from(most) {
            let Some(next) = source.next_like(size, like) else { break };
            let Next { message, span, .. } = next;
            next_message(out, head, self.counter, span.index as u32, message.sequence);
            let end = out.len() + size as usize;
            payloads.copy(message.token, message.base, size, out);
            out.resize(end, 0);
            source.took(&next, Gone { len: size, count: 0, payload: size });
            let mut contents = self.spare.pop().unwrap_or_default();
            if source.spec.reliable {
                contents.push(Content::Span(flow, span));
            } else {
                release(&mut self.events, flow, &message, End::Sent);
            }
            self.sent.push_back(Sent::new(self.counter, now, len, contents));
            self.counter += 1;
            frames += 1;
        }
        if frames > 0 {
            self.turns.sent((size + OWN_BYTES) * frames as u32);
            self.sent_alike(now, frames, len);
        }
        frames
    }

    /// Remembers a frame that was built if the next may be like it: if there is nothing in it but what the pattern says.
    fn remember(&mut self, now: Duration, limit: usize, frame: &[u8]) {
        let head = HEADER_BYTES + if self.in_parts { FRAGMENT_BYTES } else { MESSAGE_BYTES };
        let copied = if self.pattern.apart { 0 } else { self.pattern.size as usize };
        let alone = frame.len() == head + copied && !self.config.checked;
        (self.pattern.at, self.pattern.limit) = (now, limit);
        self.pattern.size = if alone { self.pattern.size } else { 0 };
        self.pattern.head.clear();
        self.pattern.head.extend_from_slice(frame.get(..head).unwrap_or(&[]));
    }

    pub(crate) fn register(
        &mut self,
        now: Duration,
        len: usize,
        (eliciting, quiet): (bool, bool),
        contents: Vec<Content>,
    ) {
        self.stats.sent_frames += 1;
        if eliciting {
            self.last_sent = now;
            self.probes = self.probes.saturating_sub(1);
            self.congestion.sent(1, len);
            self.unheard += usize::from(quiet);
            self.sent.push_back(Sent { quiet, ..Sent::new(self.counter, now, len, contents) });
        } else {
            self.spare.push(contents);
        }
        self.counter += 1;
    }

    /// Builds what is due beside all other frames: a hello, a question whether frames of a size pass, or the small frame that follows it.
    #[cold]
    fn build_aside(&mut self, now: Duration, out: &mut Vec<u8>) -> Built {
        self.nothing_follows();
        let hello = self.hello_due.is_some_and(|due| due <= now);
        let follows = !hello && self.sizes.take_follower();
        let bytes = if follows { Some(MIN_FRAME_LIMIT) } else { self.sizes.question(now).filter(|_| !hello) };
        let Some((peer, bytes)) = self.peer.zip(bytes) else { return self.build_hello(now, out) };
        let flags = if self.config.checked { CHECKED } else { 0 };
        let sent_us = now.as_micros() as u32;
        let header = Header { flags, connection: peer.send, counter: self.counter, sent_us, ..Header::default() };
        let mut frame = FrameBuilder::new(out, header, bytes);
        if follows {
            frame.ping();
            let (len, mut contents) = (frame.finish(), self.spare.pop().unwrap_or_default());
            contents.push(Content::Ping);
            self.register(now, len, (true, true), contents);
            self.plan_aside();
            return Built { len, gather: None, may_pad: false };
        }
        frame.ping_up_to(bytes);
        let len = frame.finish();
        // It is in no window and its loss is none of the link's: nothing is known of it but its number.
        self.sizes.asked(self.counter);
        self.counter += 1;
        self.stats.sent_frames += 1;
        self.aside = now;
        Built { len, gather: None, may_pad: false }
    }

    fn build_hello(&mut self, now: Duration, out: &mut Vec<u8>) -> Built {
        let flags = if self.config.checked { CHECKED } else { 0 };
        let mut frame = FrameBuilder::new(out, Header { flags, ..Header::default() }, MIN_FRAME_LIMIT);
        frame.hello(&Hello {
            host: self.config.host,
            incarnation: self.own,
            echo: self.peer.map_or(self.heard, |peer| if self.heard == 0 { peer.incarnation } else { self.heard }),
            max_frame: self.config.max_frame,
            adopted: self.peer.is_some_and(|peer| peer.incarnation == self.heard),
        });
        self.hello_sent(now);
        self.stats.sent_frames += 1;
        Built { len: frame.finish(), gather: None, may_pad: false }
    }

    /// The peer can hold so many bytes of what it has not taken yet: no more is under way, also on a dedicated link. It is forgotten with
    /// the connection.
    pub fn set_room(&mut self, bytes: u64) {
        self.congestion.set_room(bytes);
    }

    pub(crate) fn may_send(&mut self, now: Duration) -> bool {
        let has_room = |c: &mut Congestion| {
            c.has_room() && (c.pace(now, self.rtt.smoothed()) <= now || (self.in_parts && c.may_end_run()))
        };
        self.probes > 0 || has_room(&mut self.congestion)
    }

    /// Whether what goes next is a part of a message that is larger than a frame.
    fn sends_parts(&self) -> bool {
        let first = self.turns.front().and_then(|flow| self.out.get(&flow));
        first.is_some_and(|out| out.is_in_parts(self.frame_limit()))
    }

    /// Adds control records in their order, as long as they fit and are of one domain.
    fn add_control(&mut self, frame: &mut FrameBuilder<'_>, contents: &mut Vec<Content>, domain: &mut Option<u32>) {
        while let Some(&next) = self.control.front() {
            let added = match next {
                Content::Open(flow) => match self.out.get(&flow).filter(|out| out.state == State::Opening) {
                    Some(out) => {
                        let spec = out.spec;
                        if domain.is_some_and(|domain| domain != spec.domain) {
                            break;
                        }
                        let open = FlowOpen {
                            flow,
                            reliable: spec.reliable,
                            epoch: spec.epoch,
                            channel: spec.channel,
                            first: out.first_sequence(),
                        };
                        let added = frame.flow_open(&open);
                        if added {
                            *domain = Some(spec.domain);
                            frame.set_domain(spec.domain);
                        }
                        Some(added)
                    }
                    None => None,
                },
                Content::Answer(flow) => self.answer(flow).map(|answer| frame.flow_ack(&answer)),
                Content::Credit(flow) => self.incoming.get_mut(&flow).map(|incoming| {
                    let (limit_index, limit_bytes) = (incoming.limit_index as u32, incoming.limit_bytes);
                    let credit = |account| Credit { flow, limit_index, limit_bytes, account };
                    // One that finds no room is asked for again.
                    while let Some(account) = incoming.answer() {
                        if !frame.credit(&credit(account)) {
                            return false;
                        }
                    }
                    incoming.say();
                    frame.credit(&credit(incoming.account()))
                }),
                Content::Told(flow) => {
                    let out = self.out.get(&flow).filter(|out| out.state == State::Open);
                    out.map(|out| frame.close(&Close { flow, end: out.end(), last: false }))
                }
                Content::Ask(flow) => {
                    let out = self.out.get_mut(&flow).filter(|out| out.state == State::Open);
                    out.and_then(|out| out.shares.ask(|at| frame.ask(&Ask { flow, at })))
                }
                Content::Close(flow) => {
                    let out = self.out.get(&flow).filter(|out| out.state == State::Closing);
                    out.map(|out| frame.close(&Close { flow, end: out.end(), last: true }))
                }
                Content::Closed(flow) => {
                    let account = self.ended.get(&flow);
                    account.map(|&account| frame.closed(&Closed { flow, account }))
                }
                Content::Bye => Some(frame.bye()),
                Content::Ping | Content::Span(..) => None,
            };
            match added {
                Some(true) => contents.push(next),
                Some(false) => break,
                None => {}
            }
            self.control.pop_front();
        }
    }

    /// Adds messages of the flows in turn; says what is to be gathered behind the frame, and whether it has a part of a
    /// large message.
    fn add_data(
        &mut self,
        now: Duration,
        frame: &mut FrameBuilder<'_>,
        contents: &mut Vec<Content>,
        domain: &mut Option<u32>,
        payloads: &mut dyn Payloads,
    ) -> (Option<Gather>, bool) {
        let mut large = false;
        // The only message of the frame, whole and no part of a bundle: its size and flow, and what others are to be like.
        let (mut only, mut fresh) = (None, true);
        // A check is over the whole frame, so the whole frame must be at hand.
        let copy_bytes = if self.config.checked { u32::MAX } else { self.config.copy_bytes };
        while let Some(flow) = self.turns.front() {
            let events = &mut self.events;
            let Some(out) = self.out.get_mut(&flow) else {
                self.turns.has_nothing();
                continue;
            };
            let expired = |message: Outgoing| release(events, flow, &message, End::Expired);
            let Some(next) = out.peek(now, expired) else {
                out.queued = !self.turns.has_nothing();
                self.try_close(flow);
                continue;
            };
            if domain.is_some_and(|domain| domain != out.spec.domain) {
                // Its turn is in another frame.
                break;
            }
            let added = if next.message.bundle > 0 {
                match add_bundle(now, frame, flow, &next, copy_bytes, payloads) {
                    Bundled::Gone(gone, gather) => Some((gone, true, gather)),
                    Bundled::Full => None,
                    Bundled::TooLong(lost) => {
                        if out.spec.reliable && out.cut(&next, |token, rest| payloads.bundle(token, rest, 0, 1)) {
                            continue;
                        }
                        Some((lost, true, None))
                    }
                }
            } else {
                let added = add_message(now, frame, flow, &next, copy_bytes, payloads);
                added.map(|(len, more_alike, gather)| (Gone { len, count: 0, payload: len }, more_alike, gather))
            };
            let Some((gone, more_alike, gather)) = added else {
                // The frame is full. What does not even go into an empty one must not keep others waiting.
                if frame.is_empty() {
                    self.turns.pass();
                }
                if let Some((size, flow, each)) = only {
                    (self.pattern.each, self.pattern.size, self.pattern.flow) = (each, size, flow);
                    self.pattern.apart = false;
                }
                break;
            };
            large |= next.message.len > JOINED && next.message.bundle == 0;
            *domain = Some(out.spec.domain);
            frame.set_domain(out.spec.domain);
            if out.spec.reliable {
                contents.push(Content::Span(flow, Span { len: gone.len, count: gone.count, ..next.span }));
            }
            if !out.spec.reliable && !self.ticking {
                (self.ticking, self.next_tick) = (true, now + TICK);
            }
            let Outgoing { priority, joined, deadline, timestamp_ns, launch_ns, .. } = next.message;
            let plain = deadline.is_none() && timestamp_ns == 0 && launch_ns == 0 && gather.is_none();
            let whole = next.message.bundle == 0 && gone.len == next.message.len && gone.len.is_multiple_of(8);
            only = (only.is_none() && fresh && plain && whole).then_some((
                gone.len,
                flow,
                Each::Message(priority & 15, joined),
            ));
            fresh = false;
            let done = out.took(&next, gone);
            self.turns.sent(gone.len + OWN_BYTES);
            if done && !out.spec.reliable {
                release(&mut self.events, flow, &next.message, End::Sent);
            }
            // Nothing follows what is gathered, and of a bundle or message that goes in parts this is what there was room for.
            if gather.is_some() || (!done && gone.len < next.span.len) {
                self.in_parts = !done && next.message.bundle == 0;
                let alike = more_alike && (self.in_parts || gone.count == 1) && gone.payload.is_multiple_of(8);
                self.pattern.size = if alike { gone.payload } else { 0 };
                self.pattern.apart = gather.is_some();
                self.pattern.each = if self.in_parts { Each::Part } else { Each::OfBundle };
                (self.pattern.flow, self.pattern.index) = (flow, next.span.index);
                return (gather, large);
            }
        }
        (None, large)
    }

    /// Does what is due. Called by [`Path::transmit`] too.
    pub fn on_time(&mut self, now: Duration) {
        // A thread that was held up has not listened: the silence is its own.
        let held_up = now.saturating_sub(self.last_poll);
        if held_up > self.config.silence / 4 {
            self.last_heard = (self.last_heard + held_up).min(now);
        }
        self.last_poll = now;
        if self.peer.is_some() {
            if now.saturating_sub(self.last_heard) >= self.config.silence {
                self.lose(now, LostReason::Silent);
                return;
            }
            if self.loss_at.is_some_and(|at| at <= now) {
                self.find_losses(now);
            }
            if self.probe_at().is_some_and(|at| at <= now) {
                self.probe(now);
            }
            if self.sizes.due() <= now {
                self.sizes.on_time(now);
                self.tell_size();
            }
            self.plan_aside();
        }
        self.unfinished.expire(now);
        while let Some(gone) = self.unfinished.given_up() {
            self.was_given_up(gone);
        }
        if self.ticking && self.next_tick <= now {
            self.tick(now);
        }
    }

    /// If it has become known what passes, the window is made of that, and the user is told.
    pub(crate) fn tell_size(&mut self) {
        if self.sizes.take_news() {
            let (passes, most) = (self.sizes.using(), self.sizes.most());
            self.congestion.set_frame(passes);
            self.events.push_back(Event::FrameSize { passes, most });
        }
    }

    /// When no answer at all is a reason to ask again.
    fn probe_at(&self) -> Option<Duration> {
        let oldest = self.sent.iter().find(|sent| !sent.done)?;
        Some(oldest.at.max(self.last_sent) + self.rtt.timeout(self.config.ack_delay, self.backoff))
    }

    fn probe(&mut self, now: Duration) {
        self.stats.probes += 1;
        self.backoff += 1;
        self.probes = PROBES;
        if self.backoff >= 2 {
            self.congestion.collapsed();
        }
        // As many as go now, where no more may be under way.
        let most = if self.unheard < UNHEARD { 1 } else { PROBES };
        for _ in 0..most {
            if let Some(at) = self.sent.iter().position(|sent| !sent.done) {
                self.give_up_frame(at);
            }
        }
        self.last_sent = now;
        self.trim();
    }

    fn tick(&mut self, now: Duration) {
        // A thread that was held up may have from the peer what it has not read yet: the next tick knows.
        let late = now > self.next_tick + TICK;
        self.next_tick = now + TICK;
        let mut ended = Vec::new();
        self.ticking = false;
        let flows: Vec<u32> = self.incoming.keys().copied().collect();
        for flow in flows {
            let Some(incoming) = self.incoming.get_mut(&flow) else { continue };
            for index in incoming.give_up_overtaken() {
                if let Some(slot) = self.unfinished.forget(Self::key(incoming, index)) {
                    self.events.push_back(Event::Discard(Lies::Slot { slot, len: 0 }));
                }
            }
            if incoming.needs_ticks() && incoming.tick() {
                ended.push(flow);
            } else {
                self.ticking |= incoming.needs_ticks();
                self.credit_soon(flow);
            }
        }
        let mut clear = Vec::new();
        let stale = self.config.stale.max(2 * self.config.heartbeat);
        let stalled = !late && !self.config.stale.is_zero() && now.saturating_sub(self.last_heard) >= stale;
        for (&flow, out) in &mut self.out {
            if stalled {
                let events = &mut self.events;
                out.drop_waiting(|one| release(events, flow, &one, End::Dropped));
            }
            if out.tick() {
                self.control.push_back(Content::Told(flow));
            }
            if out.asks() {
                self.control.push_back(Content::Ask(flow));
            }
            clear.extend((out.closing && out.is_through() && out.state == State::Open).then_some(flow));
            self.ticking |= out.in_doubt() || out.may_be_stale() || !out.shares.are_clear();
        }
        clear.into_iter().for_each(|flow| self.try_close(flow));
        ended.into_iter().for_each(|flow| self.end_incoming(flow));
    }

    /// When [`Path::on_time`] or [`Path::transmit`] is to be called next, at the latest. May be in the past.
    #[must_use]
    pub fn timeout(&mut self) -> Option<Duration> {
        let mut at = Some(self.aside).filter(|due| *due < Duration::MAX);
        let mut sooner = |other: Option<Duration>| {
            if let Some(other) = other {
                at = Some(at.map_or(other, |at: Duration| at.min(other)));
            }
        };
        sooner(self.unfinished.timeout());
        sooner(self.ticking.then_some(self.next_tick));
        if self.peer.is_some() {
            sooner(Some(self.last_heard + self.config.silence));
            sooner((self.unheard < UNHEARD).then_some(self.last_sent + self.config.heartbeat));
            sooner(self.loss_at);
            sooner(self.probe_at());
            sooner(self.ack_due);
            sooner(self.credit_due);
            sooner(Some(self.sizes.due()).filter(|due| *due < Duration::MAX));
            if self.has_control() {
                sooner(Some(self.last_poll));
            }
            if !self.turns.is_empty() && self.congestion.has_room() {
                sooner(Some(self.congestion.pace(self.last_poll, self.rtt.smoothed())));
            }
        }
        at
    }

    /// Frames that elicit an acknowledgement have come.
    pub(crate) fn note_arrivals(&mut self, now: Duration, frames: u32, in_order: bool) {
        self.unacked += frames;
        let due = if in_order && self.unacked < ACK_EVERY { now + self.config.ack_delay } else { now };
        self.ack_due = Some(self.ack_due.map_or(due, |at| at.min(due)));
    }
}

/// What became of a bundle that was to be added to a frame.
enum Bundled {
    /// So much of it was added, and this is to be gathered.
    Gone(Gone, Option<Gather>),
    /// There is no room in this frame.
    Full,
    /// Frames have become smaller since its first message was taken for one that fits. What goes with that if nothing is done about it:
    /// best effort, it is lost, as those are that were sent and were too large.
    TooLong(Gone),
}

/// Adds as many messages of a bundle to a frame as fit.
fn add_bundle(
    now: Duration,
    frame: &mut FrameBuilder<'_>,
    flow: u32,
    next: &Next,
    copy_bytes: u32,
    payloads: &mut dyn Payloads,
) -> Bundled {
    let Next { message, span, .. } = next;
    let room = u32::try_from(frame.bundle_room()).unwrap_or(u32::MAX);
    let rest = Rest { offset: span.offset, count: message.bundle };
    let fit = payloads.bundle(message.token, rest, room, next.most);
    let Some(fit) = fit.filter(|fit| fit.len <= span.len && fit.count <= next.most) else {
        // It is none. Nobody gets it, and the peer counts what it misses as lost.
        return Bundled::Gone(Gone { len: span.len, count: message.bundle, payload: 0 }, None);
    };
    let head = on_the_wire(flow, span.index, message, now);
    // One that is not small is as well off by itself, with fewer bytes around it.
    if fit.count == 0 || (fit.count == 1 && fit.first > SMALL) {
        let (token, at, len) = (message.token, span.offset + BUNDLE_WORD, fit.first);
        let one = Gone { len: fit.len, count: 1, payload: len };
        return match add_whole(frame, &head, Gather { token, offset: at, len }, copy_bytes, payloads) {
            Some(gather) => Bundled::Gone(one, gather),
            None if frame.is_empty() => Bundled::TooLong(one),
            None => Bundled::Full,
        };
    }
    let fill = |out: &mut Vec<u8>| payloads.copy_bundle(message.token, rest, fit, out);
    if frame.bundle_from(&head, fit.count, fit.len as usize, fill) {
        return Bundled::Gone(Gone { len: fit.len, count: fit.count, payload: fit.payload }, None);
    }
    Bundled::Full
}

/// Adds a whole message to a frame if it fits; says what of it is to be gathered: all, or nothing.
fn add_whole(
    frame: &mut FrameBuilder<'_>,
    head: &Message,
    payload: Gather,
    copy_bytes: u32,
    payloads: &mut dyn Payloads,
) -> Option<Option<Gather>> {
    let Gather { token, offset, len } = payload;
    if len > copy_bytes {
        return frame.message_apart(head, len as usize).then_some(Some(payload));
    }
    frame.message_from(head, len as usize, |out| payloads.copy(token, offset, len, out)).then_some(None)
}

/// Adds what is next to a frame if it fits; says how many bytes of it went, whether more is to go in parts as long, and what is to be gathered.
fn add_message(
    now: Duration,
    frame: &mut FrameBuilder<'_>,
    flow: u32,
    next: &Next,
    copy_bytes: u32,
    payloads: &mut dyn Payloads,
) -> Option<(u32, bool, Option<Gather>)> {
    let Next { message, span, .. } = next;
    let head = on_the_wire(flow, span.index, message, now);
    let (len, token, base) = (message.len, message.token, message.base);
    let limit = frame.len() + frame.room();
    if span.len == len && len as usize <= whole_limit(limit, &head) {
        let payload = Gather { token, offset: base, len };
        return add_whole(frame, &head, payload, copy_bytes, payloads).map(|gather| (len, true, gather));
    }
    let size = Fragments::new(len, limit, &head)?.size();
    // To the end of the part that a fresh cut would have here, so that resent parts are of the same sizes.
    let most = size - span.offset % size;
    let taken = span.len.min(most).min(u32::try_from(frame.fragment_room(&head)).unwrap_or(0));
    // A frame that has something in it already is no place for a stump.
    if taken == 0 || (taken < span.len.min(most) && taken < size / 2) {
        return None;
    }
    let part = Part { total: len, offset: span.offset };
    if copy_bytes == u32::MAX {
        let added = frame
            .fragment_from(&head, part, taken as usize, |out| payloads.copy(token, base + span.offset, taken, out));
        return added.then_some((taken, taken == size, None));
    }
    frame.fragment_apart(&head, part, taken as usize).then_some((
        taken,
        taken == size,
        Some(Gather { token, offset: base + span.offset, len: taken }),
    ))
}
