//! The sending end of a flow.

use std::collections::VecDeque;
use std::time::Duration;

use insane_wire::frame::control::Account;
use insane_wire::frame::record::Message;

use crate::config::{FlowSpec, Outgoing};
use crate::counts::Counts;
use crate::payloads::{BUNDLE_WORD, Fit, Rest};
use crate::shares::Shares;

/// Where a flow is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Not accepted yet in this connection.
    Opening,
    /// Messages may go.
    Open,
    /// The peer will not have it.
    Refused,
    /// All has been sent; the last account is awaited.
    Closing,
}

/// A part of a message to be sent, or of a bundle: then `index` is that of the part's first message. A whole message is the
/// part from 0 to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) index: u64,
    pub(crate) offset: u32,
    pub(crate) len: u32,
    /// Of a bundle: how many messages.
    pub(crate) count: u16,
}

impl Span {
    /// All of a message that is no bundle.
    fn whole(index: u64, len: u32) -> Self {
        Self { index, offset: 0, len, count: 0 }
    }
}

/// How much of what is next has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone {
    /// Bytes of it, as it lies with its owner.
    pub(crate) len: u32,
    /// Of a bundle: how many messages.
    pub(crate) count: u16,
    /// Of a bundle: the bytes of their payloads.
    pub(crate) payload: u32,
}

/// What goes next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Next {
    pub(crate) message: Outgoing,
    pub(crate) span: Span,
    /// Of a bundle: how many messages of it may go.
    pub(crate) most: u16,
    from: From,
}

#[derive(Debug, Clone, Copy)]
enum From {
    Resend,
    Current,
    Waiting,
}

#[derive(Debug)]
pub(crate) struct OutFlow {
    pub(crate) spec: FlowSpec,
    pub(crate) state: State,
    /// Without a number in the flow.
    pub(crate) waiting: VecDeque<Outgoing>,
    /// How many messages these are, those in bundles counted one by one.
    waiting_messages: u64,
    /// Reliable: sent at least in part, and not covered by the cursor, with the index of each, or of its first message.
    flying: VecDeque<(u64, Outgoing)>,
    /// How many messages these are.
    flying_messages: u64,
    next_index: u64,
    /// Sent in part: up to where.
    current: Option<(Outgoing, Span)>,
    resend: VecDeque<Span>,
    /// What the peer allowed when it accepted the flow. By what it has allowed since it has handed on, and needs no more.
    granted: u64,
    pub(crate) limit_index: u64,
    pub(crate) limit_bytes: u64,
    carried: u64,
    /// Of this connection.
    account: Account,
    /// Of what has ended otherwise, or in earlier connections.
    past: Counts,
    /// The same and the account, by which sinks its source knew of.
    pub(crate) shares: Shares,
    pub(crate) closing: bool,
    /// Best effort: how many messages there were at the last tick, and how many the peer was told of.
    ticked: u64,
    told: u64,
    /// Whether it is in the path's round.
    pub(crate) queued: bool,
}

impl OutFlow {
    pub(crate) fn new(spec: FlowSpec) -> Self {
        Self {
            spec,
            state: State::Opening,
            waiting: VecDeque::new(),
            waiting_messages: 0,
            flying: VecDeque::new(),
            flying_messages: 0,
            next_index: 0,
            current: None,
            resend: VecDeque::new(),
            granted: 0,
            limit_index: 0,
            limit_bytes: 0,
            carried: 0,
            account: Account::default(),
            past: Counts::default(),
            shares: Shares::default(),
            closing: false,
            ticked: 0,
            told: 0,
            queued: false,
        }
    }

    pub(crate) fn accept(&mut self, message: Outgoing) {
        self.past.accepted += message.messages();
        self.waiting_messages += message.messages();
        self.waiting.push_back(message);
    }

    /// Whether a message that is given to it could go at once: best effort, with nothing before it.
    #[inline]
    pub(crate) fn goes_at_once(&self) -> bool {
        let open = self.state == State::Open && !self.closing && !self.spec.reliable;
        open && !self.has_something() && self.credit() > 0
    }

    /// It was given a message that has gone at once, whole, under the index that [`Self::end`] said ([`Self::goes_at_once`]).
    #[inline]
    pub(crate) fn went_at_once(&mut self, message: &Outgoing) {
        self.past.accepted += 1;
        self.shares.goes(self.next_index, message.joined);
        self.next_index += 1;
        self.carried += u64::from(message.len);
    }

    /// Whether something of it can go now.
    pub(crate) fn goes_on(&self) -> bool {
        self.state == State::Open && (self.current.is_some() || !self.resend.is_empty() || self.credit() > 0)
    }

    fn next_waiting(&mut self) -> Option<Outgoing> {
        let message = self.waiting.pop_front()?;
        self.waiting_messages -= message.messages();
        Some(message)
    }

    /// The number at the source of the first message that this flow can still carry.
    pub(crate) fn first_sequence(&self) -> u64 {
        self.oldest().unwrap_or(self.spec.first)
    }

    /// The number at the source of the first message that the sinks are not known to have.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.flying.front().map(|(_, message)| message).or(self.waiting.front()).map(|message| message.sequence)
    }

    /// Messages that have not gone.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting_messages + self.rest()
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = self.past;
        counts.waiting = self.waiting();
        counts.delivered += self.account.delivered;
        counts.lost += self.account.lost;
        counts.dropped += self.account.dropped;
        counts.expired += self.account.expired;
        counts.under_way = if self.spec.reliable {
            self.flying_messages - self.rest()
        } else {
            self.next_index - self.account.settled
        };
        counts
    }

    /// The index of the first message that is not covered by the cursor.
    fn base(&self) -> u64 {
        self.flying.front().map_or(self.next_index, |(index, _)| *index)
    }

    /// What is left of a message or bundle that flies from one of its messages on.
    fn flies(&self, index: u64) -> Option<Outgoing> {
        let at = self.flying.partition_point(|(first, _)| *first <= index).checked_sub(1)?;
        let (first, message) = *self.flying.get(at)?;
        let before = index - first;
        let left = u16::try_from(message.messages().checked_sub(before)?).ok().filter(|left| *left > 0)?;
        let bundle = if message.bundle > 0 { left } else { 0 };
        Some(Outgoing { sequence: message.sequence + before, bundle, ..message })
    }

    /// Messages of a bundle that has gone in part only. They have no index yet.
    fn rest(&self) -> u64 {
        self.current.map_or(0, |(message, _)| message.bundle.into())
    }

    /// Whether something waits to be sent, if only for credit.
    pub(crate) fn has_something(&self) -> bool {
        self.current.is_some() || !self.resend.is_empty() || !self.waiting.is_empty()
    }

    /// Whether what goes next is a part of a message that fits no frame of so many bytes.
    pub(crate) fn is_in_parts(&self, limit: usize) -> bool {
        let next = self.current.as_ref().map(|(message, _)| message).or(self.waiting.front());
        self.resend.is_empty() && next.is_some_and(|next| next.bundle == 0 && next.len as usize > limit)
    }

    /// The next part of the message that is being sent, if that has more than so many bytes left and nothing goes before it.
    #[inline]
    pub(crate) fn next_part(&self, index: u64, size: u32) -> Option<Next> {
        let (message, span) = self.current.filter(|(message, _)| message.bundle == 0)?;
        let goes = self.state == State::Open && self.resend.is_empty() && span.index == index && span.len > size;
        goes.then_some(Next { message, span, most: 0, from: From::Current })
    }

    /// What is left of the bundle that is being sent, if it is more than one message and nothing goes before it.
    #[inline]
    pub(crate) fn next_of_bundle(&self) -> Option<Next> {
        let goes = self.state == State::Open && self.resend.is_empty();
        self.rest_of_current().filter(|next| goes && next.message.bundle > 1)
    }

    /// The next message, if it has so many bytes, no deadline and no times, these priority and `joined`, and nothing goes before it.
    #[inline]
    pub(crate) fn next_like(&self, size: u32, (priority, joined): (u8, u8)) -> Option<Next> {
        let goes = self.state == State::Open && self.resend.is_empty() && self.current.is_none() && self.credit() > 0;
        let message = self.waiting.front().copied().filter(|_| goes)?;
        let plain = message.deadline.is_none() && message.timestamp_ns == 0 && message.launch_ns == 0;
        let like = plain && (message.priority & 15, message.joined) == (priority, joined);
        let span = Span { index: self.next_index, offset: 0, len: size, count: 0 };
        let next = Next { message, span, most: 0, from: From::Waiting };
        (like && message.bundle == 0 && message.len == size).then_some(next)
    }

    /// What is left of what is being sent, if it may go now: only a bundle's messages take credit one by one.
    #[inline]
    fn rest_of_current(&self) -> Option<Next> {
        let (message, span) = self.current?;
        let most = self.most_of(&message);
        (message.bundle == 0 || most > 0).then_some(Next { message, span, most, from: From::Current })
    }

    /// How many messages may go now that have no index yet, as far as credit is concerned.
    #[inline]
    fn credit(&self) -> u64 {
        if self.carried < self.limit_bytes { self.limit_index.saturating_sub(self.next_index) } else { 0 }
    }

    /// How many messages of so many bytes may go before the credit of bytes is used up.
    #[inline]
    pub(crate) fn most_of_bytes(&self, bytes: u32) -> u64 {
        self.limit_bytes.saturating_sub(self.carried).div_ceil(u64::from(bytes.max(1)))
    }

    /// How many messages of a bundle may go now.
    #[inline]
    fn most_of(&self, message: &Outgoing) -> u16 {
        message.bundle.min(u16::try_from(self.credit()).unwrap_or(u16::MAX))
    }

    /// What goes next, without taking it. Expired messages are taken out and given to `expired`.
    pub(crate) fn peek(&mut self, now: Duration, mut expired: impl FnMut(Outgoing)) -> Option<Next> {
        if self.state != State::Open {
            return None;
        }
        while let Some(&span) = self.resend.front() {
            if let Some(message) = self.flies(span.index).filter(|message| message.bundle > 0 || span.count == 0) {
                return Some(Next { message, span, most: span.count, from: From::Resend });
            }
            // The cursor has covered it meanwhile, or its bundle was cut, and the cursor has covered some of its messages perhaps.
            self.resend.pop_front();
            for index in (span.index..span.index + u64::from(span.count)).rev() {
                let one = self.flies(index).filter(|one| one.bundle == 0);
                one.into_iter().for_each(|one| self.resend.push_front(Span::whole(index, one.len)));
            }
        }
        if self.current.is_some() {
            return self.rest_of_current();
        }
        while let Some(&message) = self.waiting.front() {
            if message.deadline.is_some_and(|deadline| deadline <= now) {
                self.next_waiting();
                self.past.expired += message.messages();
                self.shares.add(message.joined, |share| share.expired += message.messages());
                expired(message);
                continue;
            }
            if self.credit() == 0 {
                return None;
            }
            let span = Span { index: self.next_index, offset: 0, len: message.len, count: message.bundle };
            return Some(Next { message, span, most: self.most_of(&message), from: From::Waiting });
        }
        None
    }

    /// So much from the beginning of what [`OutFlow::peek`] said has gone. Says whether that was the message's end.
    pub(crate) fn took(&mut self, next: &Next, gone: Gone) -> bool {
        let Span { index, offset, len, count } = next.span;
        let messages = u64::from(gone.count);
        let left = Span {
            index: index + messages,
            offset: offset + gone.len,
            len: len - gone.len,
            count: count.saturating_sub(gone.count),
        };
        let bundle = next.message.bundle > 0;
        match next.from {
            From::Resend => {
                self.resend.pop_front();
                if left.len > 0 {
                    self.resend.push_front(left);
                }
                return false;
            }
            From::Current => {}
            From::Waiting => {
                self.next_waiting();
                if !self.spec.reliable {
                    self.shares.goes(index, next.message.joined);
                } else {
                    self.flying.push_back((index, next.message));
                    self.flying_messages += next.message.messages();
                }
                if !bundle {
                    self.next_index += 1;
                    self.carried += u64::from(next.message.len);
                }
            }
        }
        if bundle {
            self.next_index += messages;
            self.carried += u64::from(gone.payload);
        }
        // The rest of a bundle is a bundle.
        let Outgoing { sequence, bundle, .. } = next.message;
        let rest = Outgoing { sequence: sequence + messages, bundle: bundle - gone.count, ..next.message };
        let over = left.len == 0 || (bundle > 0 && rest.bundle == 0);
        self.current = (!over).then_some((rest, left));
        over
    }

    /// Cuts the reliable bundle that is next, as [`OutFlow::peek`] said, into its messages: one of them does not fit a frame any more,
    /// and as a message it can go in parts. `fit` says, as if there were no room, what the first of what is left of the bundle takes. Says
    /// whether it was done.
    pub(crate) fn cut(&mut self, next: &Next, mut fit: impl FnMut(u64, Rest) -> Option<Fit>) -> bool {
        let flies = match next.from {
            From::Waiting => None,
            From::Current | From::Resend => {
                let at = self.flying.partition_point(|(first, _)| *first <= next.span.index).checked_sub(1);
                at.and_then(|at| Some((at, *self.flying.get(at)?)))
            }
        };
        let whole = flies.map_or(next.message, |(_, (_, message))| message);
        let (mut ones, mut rest) = (Vec::with_capacity(whole.bundle.into()), Rest { offset: 0, count: whole.bundle });
        while rest.count > 0 {
            let Some(first) = fit(whole.token, rest) else { return false };
            let sequence = whole.sequence + ones.len() as u64;
            rest.count -= 1;
            let (base, more) = (rest.offset + BUNDLE_WORD, rest.count > 0);
            ones.push(Outgoing { sequence, len: first.first, base, more, bundle: 0, ..whole });
            rest.offset += first.len;
        }
        let Some((at, (index, _))) = flies else {
            self.waiting.pop_front();
            ones.into_iter().rev().for_each(|one| self.waiting.push_front(one));
            return true;
        };
        // Those that have gone keep their index, the others get theirs when they go.
        let left = self.current.take_if(|(_, span)| span.index >= index && span.index < index + whole.messages());
        let gone = left.map_or(ones.len(), |(_, span)| (span.index - index) as usize);
        let later = ones.split_off(gone);
        self.flying_messages -= later.len() as u64;
        self.waiting_messages += later.len() as u64;
        later.into_iter().rev().for_each(|one| self.waiting.push_front(one));
        let after = self.flying.split_off(at + 1);
        self.flying.pop_back();
        self.flying.extend((index..).zip(ones).chain(after));
        true
    }

    /// A part was lost on the way.
    pub(crate) fn lost(&mut self, span: Span) {
        if self.spec.reliable && span.index + u64::from(span.count.max(1)) > self.base() {
            self.resend.push_back(span);
        }
    }

    /// Whether the sinks have what flies first, and the peer waits for nothing of it. They may have it from an earlier flow or connection:
    /// then the cursor covers what this one has brought in part only, or not yet, and the peer hands nothing on before it has the rest.
    fn is_first_done(&self, cursor: u64) -> bool {
        let handed_on = self.limit_index - self.granted;
        let first = self.flying.front();
        first.is_some_and(|(index, message)| last(message) <= cursor && index + message.messages() <= handed_on)
    }

    /// The sinks have everything up to and with this number at the source.
    pub(crate) fn confirm(&mut self, cursor: u64, mut done: impl FnMut(Outgoing)) {
        while let Some((index, front)) = self.flying.front().copied().filter(|_| self.is_first_done(cursor)) {
            let within = index..index + front.messages();
            if self.current.is_some_and(|(_, span)| within.contains(&span.index)) {
                self.current = None;
            }
            self.flying.pop_front();
            self.flying_messages -= front.messages();
            self.past.delivered += front.messages();
            done(front);
        }
    }

    /// The peer has accepted the flow, with credit of messages and bytes: what its sinks have already needs not be sent.
    pub(crate) fn opened(&mut self, cursor: u64, credit: (u64, u64), mut done: impl FnMut(Outgoing)) {
        self.state = State::Open;
        (self.limit_index, self.limit_bytes) = credit;
        self.granted = self.limit_index;
        if !self.spec.reliable {
            return;
        }
        while let Some(front) = self.waiting.front().copied().filter(|front| last(front) <= cursor) {
            self.next_waiting();
            self.past.delivered += front.messages();
            done(front);
        }
    }

    /// Takes an account of a best-effort flow: a later one, or one that was asked for. One that cannot be is passed over.
    pub(crate) fn settle(&mut self, account: &Account) {
        let sum = [account.delivered, account.lost, account.dropped, account.expired];
        let sum = sum.iter().try_fold(0u64, |sum, &count| sum.checked_add(count));
        let known = account.settled <= self.next_index && sum == Some(account.settled);
        if self.spec.reliable || !known {
            return;
        }
        if account.settled >= self.account.settled {
            self.account = *account;
        } else {
            self.shares.answered(account);
        }
        self.shares.settle(&self.account);
    }

    /// Whether nothing is left but to close it.
    pub(crate) fn is_through(&self) -> bool {
        self.waiting.is_empty() && self.current.is_none() && self.flying.is_empty() && self.shares.are_clear()
    }

    /// Called now and then: whether the peer is to be asked whose some of what it has counted is.
    pub(crate) fn asks(&mut self) -> bool {
        self.shares.tick(&self.account) && self.state == State::Open
    }

    /// Called now and then: whether the peer is to be told how many messages there were, because the last may be lost and
    /// nothing that comes after will show it.
    pub(crate) fn tick(&mut self) -> bool {
        // What is left of a bundle has no index yet, and may be waiting for the credit of what was lost.
        let halfway = self.current.is_some_and(|(message, _)| message.bundle == 0);
        let paused = self.next_index == self.ticked && !halfway;
        self.ticked = self.next_index;
        let tell = self.state == State::Open && paused && self.in_doubt() && self.told < self.next_index;
        if tell {
            self.told = self.next_index;
        }
        tell
    }

    /// Whether it is not known of some messages what became of them.
    pub(crate) fn in_doubt(&self) -> bool {
        !self.spec.reliable && self.next_index > self.account.settled
    }

    /// Whether best-effort messages wait.
    pub(crate) fn may_be_stale(&self) -> bool {
        !self.spec.reliable && !self.waiting.is_empty()
    }

    /// Drops the best-effort messages that wait; each goes to `dropped`.
    pub(crate) fn drop_waiting(&mut self, mut dropped: impl FnMut(Outgoing)) {
        while self.may_be_stale() {
            let Some(message) = self.next_waiting() else { break };
            self.past.lost += message.messages();
            self.shares.add(message.joined, |share| share.lost += message.messages());
            dropped(message);
        }
    }

    /// How many messages were sent in this connection.
    pub(crate) fn end(&self) -> u64 {
        self.next_index
    }

    /// The connection is gone. What a reliable flow has not confirmed is to be sent again; of a best-effort flow it is
    /// unknown what became of it. `lost` is given a message whose sending was under way.
    pub(crate) fn reset(&mut self, mut lost: impl FnMut(Outgoing)) {
        let counts = self.counts();
        if self.spec.reliable {
            while let Some((_, message)) = self.flying.pop_back() {
                self.waiting_messages += message.messages();
                self.waiting.push_front(message);
            }
        } else {
            let unconfirmed = counts.unconfirmed + counts.under_way + self.rest();
            self.past = Counts { unconfirmed, under_way: 0, waiting: 0, ..counts };
            self.shares.reset(&self.account, self.next_index);
            if let Some((message, _)) = self.current {
                self.shares.add(message.joined, |share| share.unconfirmed += u64::from(message.bundle));
                lost(message);
            }
        }
        (self.flying_messages, self.next_index, self.carried) = (0, 0, 0);
        (self.granted, self.limit_index, self.limit_bytes) = (0, 0, 0);
        (self.ticked, self.told) = (0, 0);
        self.account = Account::default();
        self.current = None;
        self.resend.clear();
        if self.state != State::Refused {
            self.state = State::Opening;
        }
    }

    /// Reliable: takes out everything that is not confirmed, in order.
    pub(crate) fn take_back(&mut self) -> Vec<Outgoing> {
        if !self.spec.reliable {
            return Vec::new();
        }
        (self.waiting_messages, self.flying_messages, self.current) = (0, 0, None);
        self.flying.drain(..).map(|(_, message)| message).chain(self.waiting.drain(..)).collect()
    }

    /// Gives up everything that is not delivered; each goes to `lost`.
    pub(crate) fn abandon(&mut self, mut lost: impl FnMut(Outgoing)) {
        let rest = self.rest();
        if let Some((message, _)) = self.current.take().filter(|_| !self.spec.reliable) {
            self.past.unconfirmed += rest;
            self.shares.add(message.joined, |share| share.unconfirmed += rest);
            lost(message);
        }
        (self.waiting_messages, self.flying_messages) = (0, 0);
        for message in self.flying.drain(..).map(|(_, message)| message).chain(self.waiting.drain(..)) {
            self.past.unconfirmed += message.messages();
            self.shares.add(message.joined, |share| share.unconfirmed += message.messages());
            lost(message);
        }
        self.resend.clear();
        self.closing = true;
    }
}

/// The number at the source of the last message of what was given.
fn last(message: &Outgoing) -> u64 {
    message.sequence + message.messages() - 1
}

/// What a frame says of a message.
pub(crate) fn on_the_wire(flow: u32, index: u64, message: &Outgoing, now: Duration) -> Message {
    let left = message.deadline.map(|deadline| deadline.saturating_sub(now).as_micros());
    Message {
        flow,
        index: index as u32,
        sequence: message.sequence,
        joined: message.joined,
        // A lifetime that rounds to nothing must not read as endless.
        lifetime_us: left.map_or(0, |left| u32::try_from(left).unwrap_or(u32::MAX).max(1)),
        priority: message.priority & 15,
        timestamp_ns: message.timestamp_ns,
        launch_ns: message.launch_ns,
    }
}
