//! Taking frames.

use std::collections::VecDeque;
use std::time::Duration;

use insane_wire::frame::control::{Ack, Ask, Close, Closed, Credit, FlowAck, FlowOpen};
use insane_wire::frame::record::{Message, Part, Place, Record, Records, bundled};
use insane_wire::frame::{CHECKED, FrameError, Header, MAX_COUNTER, SEALED, followers, parse};
use insane_wire::reassembly::{GivenUp, Key, Reassembler, Refused};

use crate::inflow::{InFlow, Verdict, Whole};
use crate::landing::{Head, Run};
use crate::outflow::State;
use crate::path::{End, Event, Lies, LostReason, Path, Peer, Receipt, Rejected, Row, Store, release};
use crate::transmit::Content;

/// A frame is lost when so many later ones have arrived. RFC 9002 §6.1.1 says 3; time ([`Rtt::reordering`](crate::rtt::Rtt)) finds
/// a loss nearly as soon, and does not mistake reordering for it.
const OVERTAKEN: u64 = 32;

/// See [`FlowAck::status`].
const REFUSED_NO_ROOM: u8 = 3;

/// Where a payload is.
enum Payload<'a> {
    InFrame { token: u64, at: usize, bytes: &'a [u8] },
    Placed,
}

/// What came of one record of data.
enum Taken {
    /// Nothing refers to the frame.
    Done,
    /// An event refers to the frame.
    Kept,
    /// The frame must come again.
    NoRoom,
}

impl Path {
    /// Takes a frame that came from this peer's address. `token` is the caller's name for the memory that it lies in;
    /// [`Receipt::kept`] says how often events will refer to it.
    pub fn receive(&mut self, now: Duration, bytes: &[u8], token: u64, store: &mut dyn Store) -> Receipt {
        let mut kept = 0;
        self.stir();
        let result = self.receive_frame(now, bytes, token, store, &mut kept);
        Receipt { kept, result }
    }

    fn receive_frame(
        &mut self,
        now: Duration,
        bytes: &[u8],
        token: u64,
        store: &mut dyn Store,
        kept: &mut u32,
    ) -> Result<(), Rejected> {
        let (header, records) = parse(bytes).inspect_err(|_| self.stats.malformed += 1)?;
        if self.config.checked && header.flags & CHECKED == 0 {
            self.stats.malformed += 1;
            return Err(FrameError::Flags { found: header.flags }.into());
        }
        if header.flags & SEALED != 0 {
            self.stats.foreign += 1;
            return Err(Rejected::Sealed);
        }
        if header.connection == 0 {
            return self.receive_hello(now, records);
        }
        self.admit(now, &header)?;
        let (mut eliciting, mut no_room, mut bye) = (false, false, false);
        for record in records {
            let record = record.inspect_err(|_| self.stats.malformed += 1)?;
            eliciting |= !matches!(record, Record::Ack(_));
            match record {
                Record::Message(message, place) => {
                    let payload =
                        Payload::InFrame { token, at: place.at, bytes: bytes.get(place.range()).unwrap_or(&[]) };
                    match self.data(now, header.domain, message, None, payload, store) {
                        Taken::Kept => *kept += 1,
                        Taken::NoRoom => no_room = true,
                        Taken::Done => {}
                    }
                }
                Record::Fragment(message, part, place) => {
                    let payload =
                        Payload::InFrame { token, at: place.at, bytes: bytes.get(place.range()).unwrap_or(&[]) };
                    let taken = self.data(now, header.domain, message, Some((part, place.len as u32)), payload, store);
                    no_room |= matches!(taken, Taken::NoRoom);
                }
                Record::Bundle(message, count, place) => {
                    let (more, all) = self.bundle(header.domain, message, count, token, (place, bytes), store);
                    *kept += more;
                    no_room |= !all;
                }
                Record::Ack(ack) => self.acknowledged(now, &ack),
                Record::FlowOpen(open) => no_room |= !self.opened(header.domain, open),
                Record::FlowAck(ack) => self.answered(&ack),
                Record::Credit(credit) => self.credited(&credit),
                Record::Close(close) => no_room |= !self.told(now, &close),
                Record::Closed(closed) => self.has_closed(&closed),
                Record::Ask(ask) => self.asked(now, &ask),
                Record::Bye => bye = true,
                Record::Hello(_) | Record::Ping | Record::Unknown(_) => {}
            }
        }
        if no_room {
            self.stats.refused += 1;
            return Err(Rejected::NoRoom);
        }
        self.taken(now, header.counter, eliciting);
        if bye {
            self.lose(now, LostReason::Ended);
        }
        Ok(())
    }

    /// Takes frames that lie behind one that was just taken by [`Path::receive`], one every `stride` bytes of `rest`, as long as they
    /// are like it: each with the next message of its flow, whole, and nothing else. `before` is that frame. What it returns is to be
    /// handled before any event. `None`: the next frame is to be received by itself.
    pub fn receive_alike(&mut self, now: Duration, before: &[u8], rest: &[u8], stride: usize) -> Option<Row> {
        let (head, header, message, len) = self.read_lone(before)?;
        let count = u16::try_from(followers(&head, rest, stride)).unwrap_or(u16::MAX);
        // It was taken, and nothing came after it.
        if count == 0 || self.seen.largest() != header.counter {
            return None;
        }
        let message = Message { index: message.index + 1, sequence: message.sequence + 1, ..message };
        self.take_row(now, &header, message, count, len)
    }

    /// Whether a frame, of which nothing was looked at yet, says that it is of this connection and that one which was sent before it has not
    /// come: who has received others with it may look for that one first, for messages of best-effort flows are not handed on after later
    /// ones.
    #[must_use]
    pub fn is_early(&self, frame: &[u8]) -> bool {
        let is_next = |head: &Header| head.counter <= self.seen.largest() + 1;
        let connection = self.peer.map(|peer| peer.receive);
        Header::read(frame).is_ok_and(|head| Some(head.connection) == connection && !is_next(&head))
    }

    fn receive_hello(&mut self, now: Duration, records: Records<'_>) -> Result<(), Rejected> {
        let mut heard = false;
        for record in records {
            if let Record::Hello(hello) = record.inspect_err(|_| self.stats.malformed += 1)? {
                heard |= self.hello(now, &hello);
            }
        }
        if !heard {
            self.stats.foreign += 1;
            return Err(Rejected::Foreign);
        }
        Ok(())
    }

    /// Whether a frame is of this connection and new.
    fn admit(&mut self, now: Duration, header: &Header) -> Result<Peer, Rejected> {
        let Some(peer) = self.peer.filter(|peer| peer.receive == header.connection) else {
            self.stats.foreign += 1;
            // It may be of a peer that does not know that this side has begun anew.
            self.hello_soon(now);
            return Err(Rejected::Foreign);
        };
        if header.counter > MAX_COUNTER {
            self.stats.malformed += 1;
            return Err(FrameError::Counter { found: header.counter }.into());
        }
        if !self.seen.is_new(header.counter) {
            self.stats.duplicates += 1;
            return Err(Rejected::Duplicate);
        }
        Ok(peer)
    }

    fn taken(&mut self, now: Duration, counter: u64, eliciting: bool) {
        self.stats.received_frames += 1;
        self.last_heard = now;
        if counter > self.seen.largest() {
            self.largest_at = now;
        }
        let in_order = self.seen.add(counter);
        if eliciting {
            self.note_arrivals(now, 1, in_order);
        }
    }

    pub(crate) fn key(incoming: &InFlow, index: u64) -> Key {
        Key { domain: incoming.domain, source: incoming.source, message: index }
    }

    /// Takes a run as if it were one fragment.
    pub(crate) fn book(&mut self, now: Duration, run: Run, store: &mut dyn Store) {
        let Run { head: Head { header, message, part, .. }, bytes, frames, .. } = run;
        let counters = header.counter..header.counter.saturating_add(frames);
        if frames > 1 && counters.clone().any(|counter| !self.seen.is_new(counter)) {
            // Some were here before.
            return run.each().for_each(|run| self.book(now, run, store));
        }
        if self.admit(now, &header).is_ok() {
            match self.data(now, header.domain, message, Some((part, bytes)), Payload::Placed, store) {
                Taken::NoRoom => self.stats.refused += frames,
                Taken::Done | Taken::Kept => counters.for_each(|counter| self.taken(now, counter, true)),
            }
        }
    }

    fn data(
        &mut self,
        now: Duration,
        domain: u32,
        message: Message,
        part: Option<(Part, u32)>,
        payload: Payload<'_>,
        store: &mut dyn Store,
    ) -> Taken {
        let flow = message.flow;
        let Some(incoming) = self.incoming.get_mut(&flow).filter(|incoming| incoming.domain == domain) else {
            self.stats.stray += 1;
            return Taken::Done;
        };
        self.parts_lately = part.is_some();
        let index = incoming.index(message.index);
        match incoming.judge(index) {
            Verdict::Old => return Taken::Done,
            Verdict::Beyond => {
                self.stats.stray += 1;
                return Taken::Done;
            }
            Verdict::Take => {}
        }
        let whole = match (part, &payload) {
            (Some((part, _)), _) => part.total.into(),
            (None, Payload::InFrame { bytes, .. }) => bytes.len() as u64,
            (None, Payload::Placed) => 0,
        };
        if incoming.open.reliable && !incoming.has_credit(whole, whole) {
            self.stats.stray += 1;
            return Taken::Done;
        }
        let (events, mut in_frame) = (&mut self.events, &[][..]);
        let lies = match (part, payload) {
            (None, Payload::InFrame { token, at, bytes }) => {
                forget_parts(&mut self.unfinished, events, incoming, (index, 1));
                in_frame = bytes;
                Lies::Frame { token, at, len: bytes.len() }
            }
            (None, Payload::Placed) => return Taken::Done,
            (Some((part, len)), payload) => {
                let (key, keep) = (Self::key(incoming, index), incoming.open.reliable);
                let urgent = incoming.waits_for(index);
                match self.unfinished.offer(now, key, part, len, keep, |bytes| store.reserve(flow, bytes, urgent)) {
                    Ok(placed) => {
                        if let Payload::InFrame { bytes, .. } = payload {
                            store.fill(placed.slot, placed.at, bytes);
                        }
                        incoming.partly(index);
                        if !placed.complete {
                            self.ticking |= incoming.needs_ticks();
                            self.clear_given_up();
                            return Taken::Done;
                        }
                        Lies::Slot { slot: placed.slot, len: part.total }
                    }
                    Err(Refused::Malformed | Refused::Contradicts) => {
                        self.stats.malformed += 1;
                        return Taken::Done;
                    }
                    Err(_) if keep => return Taken::NoRoom,
                    Err(_) => {
                        if let Some(slot) = self.unfinished.forget(key) {
                            events.push_back(Event::Discard(Lies::Slot { slot, len: 0 }));
                        }
                        incoming.given_up(index, true);
                        self.ticking |= incoming.needs_ticks();
                        self.clear_given_up();
                        return Taken::Done;
                    }
                }
            }
        };
        let mut became = Whole::HandedOn;
        if incoming.is_late(index) {
            let Some(at) = incoming.place(flow, index, 1, events) else {
                self.stats.overtaken += 1;
                incoming.given_up(index, false);
                if matches!(lies, Lies::Slot { .. }) {
                    events.push_back(Event::Discard(lies));
                }
                self.clear_given_up();
                return Taken::Done;
            };
            incoming.came(index, 1);
            events.insert(at, Event::Message { flow, message, lies });
        } else {
            let hold = || store.hold(flow, in_frame);
            became = incoming.whole(index, message, lies, hold, |message, lies| {
                events.push_back(Event::Message { flow, message, lies });
            });
        }
        self.ticking |= incoming.needs_ticks();
        self.clear_given_up();
        match (became, lies) {
            (Whole::NoRoom, _) => Taken::NoRoom,
            (Whole::HandedOn, Lies::Frame { .. }) => Taken::Kept,
            _ => Taken::Done,
        }
    }

    /// Takes messages that follow each other, which lie in a frame; how many events refer to it, and whether there was room for all.
    fn bundle(
        &mut self,
        domain: u32,
        message: Message,
        count: u16,
        token: u64,
        (place, frame): (Place, &[u8]),
        store: &mut dyn Store,
    ) -> (u32, bool) {
        let flow = message.flow;
        let Some(incoming) = self.incoming.get_mut(&flow).filter(|incoming| incoming.domain == domain) else {
            self.stats.stray += 1;
            return (0, true);
        };
        self.parts_lately = false;
        let (first, events) = (incoming.index(message.index), &mut self.events);
        let lies = Lies::Frame { token, at: place.at, len: place.len };
        let all = Event::Bundle { flow, message, count, lies };
        if incoming.open.reliable {
            let waited = core::cell::RefCell::new(events);
            let hand_on = |message, lies| waited.borrow_mut().push_back(Event::Message { flow, message, lies });
            let sizes = bundled(frame, place).map(|payload| payload.len as u64);
            let bytes = sizes.fold((0, 0), |(all, largest): (u64, u64), one| (all + one, largest.max(one)));
            if incoming.came_next((first, count), bytes, || waited.borrow_mut().push_back(all), hand_on) {
                forget_parts(&mut self.unfinished, waited.into_inner(), incoming, (first, count));
                return (1, true);
            }
            // Something of it is missing before it, or is there: each for itself.
            return self.each_of_bundle(message, first, token, (place, frame), store);
        }
        match incoming.judge_all(first, count) {
            Verdict::Take => {}
            // If some of them are not known to be lost yet, they will be.
            Verdict::Old => return (0, true),
            Verdict::Beyond => {
                self.stats.stray += 1;
                return (0, true);
            }
        }
        if incoming.is_late(first) {
            let Some(at) = incoming.place(flow, first, count, events) else {
                self.stats.overtaken += u64::from(count);
                (first..first + u64::from(count)).for_each(|index| incoming.given_up(index, false));
                return (0, true);
            };
            events.insert(at, all);
        } else {
            events.push_back(all);
        }
        incoming.came(first, count);
        self.ticking |= incoming.needs_ticks();
        (1, true)
    }

    /// Takes the messages of a bundle of a reliable flow one by one, as if each had come in a record of its own; how many events
    /// refer to the frame, and whether there was room for all.
    fn each_of_bundle(
        &mut self,
        head: Message,
        first: u64,
        token: u64,
        (place, frame): (Place, &[u8]),
        store: &mut dyn Store,
    ) -> (u32, bool) {
        let flow = head.flow;
        let Some(incoming) = self.incoming.get_mut(&flow) else { return (0, true) };
        let (events, mut kept) = (&mut self.events, 0);
        for ((index, sequence), payload) in (first..).zip(head.sequence..).zip(bundled(frame, place)) {
            let len = payload.len as u64;
            match incoming.judge(index) {
                Verdict::Take if incoming.has_credit(len, len) => {}
                Verdict::Old => continue,
                Verdict::Take | Verdict::Beyond => {
                    self.stats.stray += 1;
                    continue;
                }
            }
            forget_parts(&mut self.unfinished, events, incoming, (index, 1));
            let message = Message { index: index as u32, sequence, ..head };
            let lies = Lies::Frame { token, at: payload.at, len: payload.len };
            let hold = || store.hold(flow, frame.get(payload.range()).unwrap_or(&[]));
            let became = incoming.whole(index, message, lies, hold, |message, lies| {
                events.push_back(Event::Message { flow, message, lies });
            });
            match became {
                Whole::HandedOn => kept += 1,
                Whole::Held => {}
                // Nor is there for those after it.
                Whole::NoRoom => return (kept, false),
            }
        }
        (kept, true)
    }

    fn clear_given_up(&mut self) {
        while let Some(gone) = self.unfinished.given_up() {
            self.was_given_up(gone);
        }
    }

    pub(crate) fn was_given_up(&mut self, gone: GivenUp) {
        self.events.push_back(Event::Discard(Lies::Slot { slot: gone.slot, len: 0 }));
        if let Some(incoming) = self.incoming.values_mut().find(|incoming| incoming.source == gone.key.source) {
            incoming.given_up(gone.key.message, !gone.timed_out);
            self.ticking |= incoming.needs_ticks();
        }
    }

    /// False if there is no room for the flow yet.
    fn opened(&mut self, domain: u32, open: FlowOpen) -> bool {
        if let Some(incoming) = self.incoming.get(&open.flow) {
            if incoming.domain != domain {
                self.stats.stray += 1;
                return true;
            }
            // A repetition. While the user has not answered, the answer is still to come.
            if incoming.accepted || incoming.refused != 0 {
                self.say_answer(open.flow);
            }
            return true;
        }
        if self.ended.contains_key(&open.flow) || self.closed_account(open.flow).is_some() {
            return true;
        }
        if self.has_many_ended() {
            return false;
        }
        let source = self.new_source();
        let mut incoming = InFlow::new(open, domain, source);
        if self.incoming.len() >= self.config.flows {
            // Answered at once, so that a flood costs nothing; the entry goes with the answer's acknowledgement.
            incoming.refused = REFUSED_NO_ROOM;
            return self.incoming.len() < self.config.flows * 2 && {
                self.incoming.insert(open.flow, incoming);
                self.say_answer(open.flow);
                true
            };
        }
        self.incoming.insert(open.flow, incoming);
        self.events.push_back(Event::Requested { domain, open });
        true
    }

    fn answered(&mut self, ack: &FlowAck) {
        let flow = ack.flow;
        let Some(out) = self.out.get_mut(&flow).filter(|out| out.state == State::Opening) else { return };
        if ack.status != 0 {
            out.state = State::Refused;
            self.events.push_back(Event::Refused { flow, status: ack.status });
        } else {
            let events = &mut self.events;
            let credit = (u64::from(ack.limit_index), ack.limit_bytes);
            out.opened(ack.cursor, credit, |done| release(events, flow, &done, End::Delivered));
            self.events.push_back(Event::Accepted { flow });
            self.schedule(flow);
        }
        self.try_close(flow);
    }

    fn credited(&mut self, credit: &Credit) {
        let flow = credit.flow;
        let Some(out) = self.out.get_mut(&flow) else { return };
        if !matches!(out.state, State::Open | State::Closing) {
            return;
        }
        // Numbers only rise, so a late record changes nothing.
        let ahead = credit.limit_index.wrapping_sub(out.limit_index as u32);
        if ahead < 1 << 31 {
            out.limit_index += u64::from(ahead);
        }
        out.limit_bytes = out.limit_bytes.max(credit.limit_bytes);
        let events = &mut self.events;
        if out.spec.reliable {
            out.confirm(credit.account.cursor, |done| release(events, flow, &done, End::Delivered));
        } else {
            out.settle(&credit.account);
        }
        self.schedule(flow);
        self.try_close(flow);
    }

    /// False if there is no room for the flow's end yet.
    fn told(&mut self, now: Duration, close: &Close) -> bool {
        let flow = close.flow;
        if let Some(incoming) = self.incoming.get_mut(&flow) {
            incoming.told(close.end);
            if close.last {
                incoming.end = Some(close.end);
            }
            if incoming.is_complete() {
                // Whatever comes after this flow need not wait.
                self.end_incoming(flow);
                return true;
            }
            self.tick_soon(now);
        } else if close.last && !self.ended.contains_key(&flow) {
            if self.has_many_ended() {
                return false;
            }
            // It was never heard of, and if it is after this, it has ended; or that is so long ago that its account is forgotten.
            let account = self.closed_account(flow).unwrap_or_default();
            self.say_closed(flow, account);
        }
        true
    }

    /// Soon, not at once: what was sent before may still be on its way.
    fn tick_soon(&mut self, now: Duration) {
        if !self.ticking {
            self.next_tick = now + self.rtt.reordering();
        }
        self.ticking = true;
    }

    fn asked(&mut self, now: Duration, ask: &Ask) {
        let Some(incoming) = self.incoming.get_mut(&ask.flow) else { return };
        if incoming.ask(ask.at) {
            self.credit_now(ask.flow);
        } else {
            self.tick_soon(now);
        }
    }

    fn has_closed(&mut self, closed: &Closed) {
        if let Some(out) = self.out.get_mut(&closed.flow).filter(|out| out.state == State::Closing) {
            out.settle(&closed.account);
            self.finish(closed.flow);
        }
    }

    fn acknowledged(&mut self, now: Duration, ack: &Ack<'_>) {
        // Of what was never sent the peer has a frame of somebody else's: what is said besides is as true as ever.
        let sent = |range: &(u64, u64)| range.1 < self.counter;
        self.stats.malformed += u64::from(!ack.ranges().all(|range| sent(&range)));
        let Some((_, largest)) = ack.ranges().find(sent) else { return };
        let used_up = !self.congestion.has_room() || self.congestion.in_flight() * 2 > self.congestion.window();
        let (mut newest, mut answered) = (None, Vec::new());
        for (first, last) in ack.ranges().skip_while(|range| range.1 > largest) {
            let from = self.sent.partition_point(|sent| sent.counter < first);
            for sent in self.sent.iter_mut().skip(from).take_while(|sent| sent.counter <= last) {
                if sent.done {
                    continue;
                }
                sent.done = true;
                self.unheard -= usize::from(sent.quiet);
                let answers = |content: &&Content| matches!(content, Content::Answer(_) | Content::Closed(_));
                answered.extend(sent.contents.iter().filter(answers));
                if sent.counter == largest {
                    newest = Some(sent.at);
                }
                self.congestion.acknowledged(sent.bytes as usize, used_up);
            }
        }
        answered.into_iter().for_each(|answer| self.has_answer(answer));
        self.largest_acked = self.largest_acked.max(largest);
        if let Some(at) = newest {
            let held = Duration::from_micros(u64::from(ack.delay_us)).min(self.config.ack_delay * 2);
            let whole = now.saturating_sub(at);
            let sample = whole.checked_sub(held).filter(|rest| !rest.is_zero()).unwrap_or(whole);
            self.rtt.sample(sample);
            self.congestion.delay(now, sample, self.rtt.smoothed());
            self.backoff = 0;
        }
        self.find_losses(now);
        if self.sizes.waits() {
            self.answered_size(now, ack, largest);
        }
    }

    /// The peer has heard of frames while a question of sizes has no answer yet.
    #[cold]
    fn answered_size(&mut self, now: Duration, ack: &Ack<'_>, largest: u64) {
        if ack.ranges().any(|(first, last)| self.sizes.is_question(first..=last)) {
            self.sizes.passes(now);
            self.tell_size();
        } else {
            self.sizes.arrived(now, largest, self.rtt.reordering());
        }
        self.plan_aside();
    }

    /// The peer has heard this: what was kept for it is not needed any more.
    fn has_answer(&mut self, answer: Content) {
        match answer {
            Content::Answer(flow) => {
                let Some(incoming) = self.incoming.get_mut(&flow) else { return };
                incoming.answering = false;
                // Nothing is kept of what was refused.
                if incoming.refused != 0 {
                    self.incoming.remove(&flow);
                }
            }
            Content::Closed(flow) => {
                if let Some(account) = self.ended.remove(&flow) {
                    self.remember_closed(flow, account);
                }
            }
            _ => {}
        }
    }

    /// Takes for lost what was overtaken by enough frames or time.
    pub(crate) fn find_losses(&mut self, now: Duration) {
        let patience = self.rtt.reordering();
        self.loss_at = None;
        let mut at = 0;
        while let Some(sent) = self.sent.get(at).filter(|sent| sent.counter < self.largest_acked) {
            if !sent.done {
                let due = sent.at + patience;
                if self.largest_acked - sent.counter >= OVERTAKEN || due <= now {
                    let (bytes, sent_at) = (sent.bytes as usize, sent.at);
                    self.congestion.lost(now, bytes, sent_at);
                    // What is given up is no more in flight, so it is not to be forgotten twice.
                    self.requeue(at);
                } else {
                    self.loss_at = Some(self.loss_at.map_or(due, |loss: Duration| loss.min(due)));
                }
            }
            at += 1;
        }
        self.trim();
    }

    /// A frame that was not answered for long: its contents go again.
    pub(crate) fn give_up_frame(&mut self, at: usize) {
        if let Some(sent) = self.sent.get(at) {
            self.congestion.forget(sent.bytes as usize);
            self.requeue(at);
        }
    }

    fn requeue(&mut self, at: usize) {
        let Some(sent) = self.sent.get_mut(at) else { return };
        sent.done = true;
        self.unheard -= usize::from(sent.quiet);
        self.stats.lost_frames += 1;
        self.sizes.doubt(self.last_poll, sent.bytes as usize);
        let mut contents = core::mem::take(&mut sent.contents);
        for &content in &contents {
            match content {
                Content::Span(flow, span) => {
                    if let Some(out) = self.out.get_mut(&flow) {
                        out.lost(span);
                    }
                    self.schedule(flow);
                }
                Content::Ping | Content::Bye => {}
                // What was said last was not heard.
                Content::Credit(flow) => self.credit_now(flow),
                // If it has no meaning any more, that is seen when it is built.
                other => self.control.push_back(other),
            }
        }
        contents.clear();
        if self.spare.len() < 4096 {
            self.spare.push(contents);
        }
    }

    /// Forgets frames from the front of which all is known.
    pub(crate) fn trim(&mut self) {
        while self.sent.front().is_some_and(|sent| sent.done) {
            let Some(mut sent) = self.sent.pop_front() else { break };
            sent.contents.clear();
            if sent.contents.capacity() > 0 && self.spare.len() < 4096 {
                self.spare.push(sent.contents);
            }
        }
    }
}

/// So many messages that follow each other are whole. If they were sent in parts before, those are not needed any more; a reliable flow's
/// would be kept for ever.
#[inline]
pub(crate) fn forget_parts(
    unfinished: &mut Reassembler,
    events: &mut VecDeque<Event>,
    incoming: &InFlow,
    (first, count): (u64, u16),
) {
    if incoming.may_have_parts(first) {
        let slots = (first..first + u64::from(count)).filter_map(|index| unfinished.forget(Path::key(incoming, index)));
        events.extend(slots.map(|slot| Event::Discard(Lies::Slot { slot, len: 0 })));
    }
}
