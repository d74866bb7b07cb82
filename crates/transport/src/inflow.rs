//! The receiving end of a flow.

use std::collections::{BTreeMap, VecDeque};

use insane_wire::frame::MAX_FRAME_BYTES;
use insane_wire::frame::control::{Account, FlowOpen};
use insane_wire::frame::record::Message;

use crate::lapses::Lapses;
use crate::path::{Event, Lies};

/// How many messages of a best-effort flow may be in doubt: what comes later than so many others counts as lost.
const IN_DOUBT: usize = 8192;

/// What is known of a message of a best-effort flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Missing,
    /// Some of its fragments are there.
    Partly,
    Delivered,
    Lost,
    Dropped,
}

/// What to do with a message or fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Take,
    /// It was had before, or counted as lost.
    Old,
    /// Beyond its credit: the sender breaks the rules.
    Beyond,
}

/// What became of a message that is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whole {
    HandedOn,
    /// It waits for those before it, where it does not need its frame.
    Held,
    /// It would wait, and there is no room for that: it must come again.
    NoRoom,
}

/// Whether credit and account of a flow are about to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Saying {
    Nothing,
    /// With a frame that goes anyway, or when they are due.
    Soon,
    /// With the next frame.
    Now,
}

#[derive(Debug)]
pub(crate) struct InFlow {
    pub(crate) open: FlowOpen,
    pub(crate) domain: u32,
    /// By which the reassembler knows it.
    pub(crate) source: u64,
    pub(crate) accepted: bool,
    pub(crate) refused: u8,
    /// The answer to its opening waits to go, or is under way.
    pub(crate) answering: bool,
    /// Reliable: the next to hand on.
    next: u64,
    held: BTreeMap<u64, (Message, Lies)>,
    /// The bytes of those that lie in copies of their own, and the most there may be.
    held_bytes: u64,
    held_limit: u64,
    /// Reliable: the bytes of all messages that came, handed on or held, and of the largest of them.
    came_bytes: u64,
    largest: u64,
    /// Reliable: one past the largest index of which a part came.
    parts_end: u64,
    /// Best effort: from `account.settled` on.
    doubt: VecDeque<Known>,
    /// Best effort: one past the largest index that was seen at the last tick but one, and at the last.
    older: u64,
    newer: u64,
    /// Best effort, while something is in doubt: one past the largest index that is there.
    past: u64,
    account: Account,
    lapses: Lapses,
    /// The credit of messages that it was accepted with.
    granted: u64,
    pub(crate) limit_index: u64,
    pub(crate) limit_bytes: u64,
    /// Credit or account have changed since they were last said.
    pub(crate) dirty: bool,
    /// Whether they are about to be said.
    pub(crate) saying: Saying,
    /// What was said last: messages, bytes, and where the sinks are.
    said: (u64, u64, u64),
    pub(crate) end: Option<u64>,
}

impl InFlow {
    pub(crate) fn new(open: FlowOpen, domain: u32, source: u64) -> Self {
        Self {
            open,
            domain,
            source,
            accepted: false,
            refused: 0,
            answering: false,
            next: 0,
            held: BTreeMap::new(),
            held_bytes: 0,
            held_limit: 0,
            came_bytes: 0,
            largest: 0,
            parts_end: 0,
            doubt: VecDeque::new(),
            older: 0,
            newer: 0,
            past: 0,
            account: Account::default(),
            lapses: Lapses::default(),
            granted: 0,
            limit_index: 0,
            limit_bytes: 0,
            dirty: false,
            saying: Saying::Nothing,
            said: (0, 0, 0),
            end: None,
        }
    }

    pub(crate) fn account(&self) -> Account {
        self.account
    }

    pub(crate) fn accept(&mut self, cursor: u64, messages: u32, bytes: u64) {
        self.accepted = true;
        self.account.cursor = cursor;
        (self.granted, self.limit_index) = (messages.into(), messages.into());
        // Lost bytes of a best-effort flow are known to nobody here, so they cannot be given back.
        self.limit_bytes = if self.open.reliable { bytes } else { u64::MAX };
        // More than a sender that keeps its credit has under way.
        self.held_limit = bytes.saturating_add(2 * MAX_FRAME_BYTES as u64);
        self.said = (self.limit_index, self.limit_bytes, cursor);
    }

    /// Whether the sender may soon have to wait for what has not been said: of what it may have under way, a quarter. Who has
    /// ended is waited for by its user.
    pub(crate) fn is_urgent(&self, messages: u32, bytes: u64) -> bool {
        let (index, limit, cursor) = self.said;
        let quarter = u64::from(messages / 4).max(1);
        self.end.is_some()
            || self.limit_index - index >= quarter
            || self.account.cursor - cursor >= quarter
            || self.limit_bytes - limit >= (bytes / 4).max(1)
    }

    /// Credit and account are being said.
    pub(crate) fn say(&mut self) {
        (self.dirty, self.saying) = (false, Saying::Nothing);
        self.said = (self.limit_index, self.limit_bytes, self.account.cursor);
    }

    pub(crate) fn advance(&mut self, cursor: u64) {
        if cursor > self.account.cursor {
            self.account.cursor = cursor;
            self.dirty = true;
        }
    }

    pub(crate) fn give(&mut self, messages: u32, bytes: u64) {
        self.limit_index += u64::from(messages);
        if self.open.reliable {
            // By it the sender knows what was handed on. What its user still had of an earlier connection is none of that.
            self.limit_index = self.limit_index.min(self.next + self.granted);
        }
        self.limit_bytes = self.limit_bytes.saturating_add(bytes);
        self.dirty = true;
    }

    /// The whole number of an index whose low half is known: the one nearest to what is expected.
    pub(crate) fn index(&self, low: u32) -> u64 {
        let near = if self.open.reliable { self.next } else { self.account.settled };
        let ahead = low.wrapping_sub(near as u32);
        if ahead < 1 << 31 { near + u64::from(ahead) } else { near.saturating_sub(u64::from(ahead.wrapping_neg())) }
    }

    /// Whether a message is wanted.
    pub(crate) fn judge(&self, index: u64) -> Verdict {
        if !self.accepted || index >= self.limit_index {
            return Verdict::Beyond;
        }
        if self.open.reliable {
            let had = index < self.next || self.held.contains_key(&index);
            return if had { Verdict::Old } else { Verdict::Take };
        }
        let Some(at) = index.checked_sub(self.account.settled) else { return Verdict::Old };
        match self.doubt.get(at as usize) {
            None | Some(Known::Missing | Known::Partly) => Verdict::Take,
            Some(_) => Verdict::Old,
        }
    }

    /// Whether so many bytes more, of messages of which the largest has `largest`, are within the credit of bytes. A sender that keeps it
    /// begins one message, or what a frame has of a bundle, before it is used up; which that was is not known here: the largest perhaps.
    #[inline]
    pub(crate) fn has_credit(&self, bytes: u64, largest: u64) -> bool {
        let most = self.limit_bytes.saturating_add(MAX_FRAME_BYTES as u64).saturating_add(self.largest.max(largest));
        self.came_bytes + bytes <= most
    }

    #[inline]
    fn takes_credit(&mut self, bytes: u64, largest: u64) {
        self.came_bytes += bytes;
        self.largest = self.largest.max(largest);
    }

    /// Whether all of so many messages that follow each other are wanted.
    pub(crate) fn judge_all(&self, first: u64, count: u16) -> Verdict {
        let last = first.saturating_add(u64::from(count) - 1);
        match (self.judge(first), self.judge(last)) {
            // Nothing after it was seen: they are all new.
            (Verdict::Take, Verdict::Take) if first >= self.account.settled + self.doubt.len() as u64 => Verdict::Take,
            (Verdict::Beyond, _) | (_, Verdict::Beyond) => Verdict::Beyond,
            _ => (first..=last).map(|n| self.judge(n)).find(|v| *v != Verdict::Take).unwrap_or(Verdict::Take),
        }
    }

    /// So many messages of a best-effort flow that follow each other are there, all of them wanted.
    pub(crate) fn came(&mut self, first: u64, count: u16) {
        if first != self.account.settled || !self.doubt.is_empty() {
            let end = first + u64::from(count);
            (first..end).for_each(|index| self.know(index, Known::Delivered));
            self.past = self.past.max(end);
            return;
        }
        // In order, as mostly: nothing is in doubt.
        self.account.delivered += u64::from(count);
        self.account.settled += u64::from(count);
        self.newer = self.newer.max(self.account.settled);
        self.dirty = true;
    }

    /// Reliable: so many messages that follow each other, with so many bytes and the largest with so many of them, are the next, and what
    /// is held comes after them. Then they count as handed on, and so does, by `hand_on`, what waited for them.
    pub(crate) fn came_next(
        &mut self,
        (first, count): (u64, u16),
        (bytes, largest): (u64, u64),
        mut before: impl FnMut(),
        hand_on: impl FnMut(Message, Lies),
    ) -> bool {
        let end = first.saturating_add(count.into());
        let free = self.held.first_key_value().is_none_or(|(held, _)| *held >= end);
        let has_credit = self.has_credit(bytes, largest);
        if !self.accepted || first != self.next || end > self.limit_index || !free || !has_credit {
            return false;
        }
        self.takes_credit(bytes, largest);
        self.next = end;
        before();
        self.hand_on_held(hand_on);
        true
    }

    fn hand_on_held(&mut self, mut hand_on: impl FnMut(Message, Lies)) {
        while let Some((message, lies)) = self.held.remove(&self.next) {
            self.next += 1;
            if let Lies::Frame { len, .. } = lies {
                self.held_bytes -= len as u64;
            }
            hand_on(message, lies);
        }
    }

    /// Whether everything later waits for this message.
    pub(crate) fn waits_for(&self, index: u64) -> bool {
        self.open.reliable && index == self.next
    }

    /// A message is whole. It is handed on by `hand_on`: when those before it were (reliable), or at once. `hold` says where one that
    /// lies in a frame is kept until then, if there is room.
    pub(crate) fn whole(
        &mut self,
        index: u64,
        message: Message,
        lies: Lies,
        hold: impl FnOnce() -> Option<u64>,
        mut hand_on: impl FnMut(Message, Lies),
    ) -> Whole {
        if !self.open.reliable {
            self.came(index, 1);
            hand_on(message, lies);
            return Whole::HandedOn;
        }
        if index != self.next {
            let (mut lies, bytes) = (lies, lies.bytes());
            if let Lies::Frame { len, .. } = lies {
                // The rest of what is kept of it is small, and so many messages are allowed at a time.
                let fits = self.held_bytes + bytes <= self.held_limit;
                let Some(token) = fits.then(hold).flatten() else { return Whole::NoRoom };
                self.held_bytes += bytes;
                lies = Lies::Frame { token, at: 0, len };
            }
            self.takes_credit(bytes, bytes);
            self.held.insert(index, (message, lies));
            return Whole::Held;
        }
        self.takes_credit(lies.bytes(), lies.bytes());
        self.next += 1;
        hand_on(message, lies);
        self.hand_on_held(hand_on);
        Whole::HandedOn
    }

    /// A fragment of a message is there.
    pub(crate) fn partly(&mut self, index: u64) {
        if self.open.reliable {
            self.parts_end = self.parts_end.max(index + 1);
        } else {
            self.know(index, Known::Partly);
        }
    }

    /// Whether a part of this message of a reliable flow may be there, or of a later one.
    #[inline]
    pub(crate) fn may_have_parts(&self, index: u64) -> bool {
        index < self.parts_end
    }

    /// A message could not be kept, or was never completed.
    pub(crate) fn given_up(&mut self, index: u64, for_room: bool) {
        if !self.open.reliable && index >= self.account.settled {
            self.know(index, if for_room { Known::Dropped } else { Known::Lost });
        }
    }

    fn know(&mut self, index: u64, known: Known) {
        let Some(at) = index.checked_sub(self.account.settled).and_then(|at| usize::try_from(at).ok()) else { return };
        while self.doubt.len() <= at {
            self.doubt.push_back(Known::Missing);
        }
        if let Some(place) = self.doubt.get_mut(at) {
            *place = known;
        }
        self.newer = self.newer.max(index + 1);
        self.settle_front(0);
    }

    /// Settles from the front on: what is certain, and what is `certain_below` an index or too far behind.
    fn settle_front(&mut self, certain_below: u64) {
        while let Some(&known) = self.doubt.front() {
            let late = self.account.settled < certain_below || self.doubt.len() > IN_DOUBT;
            match known {
                Known::Delivered => self.account.delivered += 1,
                Known::Dropped => self.account.dropped += 1,
                Known::Lost => self.account.lost += 1,
                Known::Missing if late => self.account.lost += 1,
                // Its fragments are given up in their own time, which is reported by `given_up`.
                Known::Missing | Known::Partly => break,
            }
            if known != Known::Delivered {
                self.lapses.add(self.account.settled, known == Known::Dropped);
            }
            self.doubt.pop_front();
            self.account.settled += 1;
            self.limit_index += u64::from(matches!(known, Known::Missing | Known::Lost | Known::Dropped));
            self.dirty = true;
        }
    }

    /// The sender has sent so many messages in all.
    pub(crate) fn told(&mut self, end: u64) {
        let missing = end.saturating_sub(self.account.settled);
        // No more than the sender was allowed to send.
        if !self.open.reliable && end <= self.limit_index {
            while (self.doubt.len() as u64) < missing {
                self.doubt.push_back(Known::Missing);
            }
            self.newer = self.newer.max(end);
        }
    }

    /// The sender, which has sent so many messages, asks how it stands with them; whether that can be said. Of a reliable flow it cannot.
    pub(crate) fn ask(&mut self, at: u64) -> bool {
        if self.open.reliable || at > self.limit_index {
            return false;
        }
        self.told(at);
        self.lapses.ask(at);
        self.lapses.can_answer(self.account.settled)
    }

    /// What the sender asked, if it can be said by now.
    pub(crate) fn answer(&mut self) -> Option<Account> {
        self.lapses.answer(&self.account)
    }

    /// Called now and then: what was overtaken before the last call and has not come since is lost. Also ends the flow when
    /// the sender has, and says so.
    pub(crate) fn tick(&mut self) -> bool {
        if self.open.reliable {
            return self.end.is_some();
        }
        self.settle_front(self.older);
        (self.older, self.newer) = (self.newer, self.newer.max(self.account.settled));
        self.end.is_some_and(|end| self.account.settled >= end) && self.doubt.is_empty()
    }

    /// Best effort: what has come in part and was overtaken by a whole message, so that it is no use any more. It counts as lost.
    pub(crate) fn give_up_overtaken(&mut self) -> Vec<u64> {
        let settled = self.account.settled;
        let of = usize::try_from(self.past.saturating_sub(settled)).unwrap_or(usize::MAX).min(self.doubt.len());
        let late = self.doubt.iter_mut().take(of).zip(settled..).filter(|(known, _)| **known == Known::Partly);
        late.map(|(known, index)| {
            *known = Known::Lost;
            index
        })
        .collect()
    }

    /// Best effort: whether a later message is there already.
    pub(crate) fn is_late(&self, index: u64) -> bool {
        index < self.past
    }

    /// Best effort: where messages that come late belong among the events that nobody has taken yet, so that all stay in order; `None`
    /// if one after them was handed on.
    pub(crate) fn place(&self, of: u32, first: u64, count: u16, events: &VecDeque<Event>) -> Option<usize> {
        if events.is_empty() {
            return None;
        }
        let behind = (first + u64::from(count)).checked_sub(self.account.settled)?;
        let there = self.doubt.iter().skip(usize::try_from(behind).ok()?).filter(|known| **known == Known::Delivered);
        let mut there = there.count();
        for (at, event) in events.iter().enumerate().rev() {
            let (flow, message, count) = match event {
                Event::Message { flow, message, .. } => (*flow, message, 1),
                Event::Bundle { flow, message, count, .. } => (*flow, message, usize::from(*count)),
                _ => continue,
            };
            if flow == of && self.index(message.index) > first {
                there = there.checked_sub(count)?;
                if there == 0 {
                    return Some(at);
                }
            }
        }
        None
    }

    /// Whether the sender has ended the flow and nothing of it is on its way: there is nothing that it would wait for.
    pub(crate) fn is_complete(&self) -> bool {
        let upto = if self.open.reliable { self.next } else { self.account.settled };
        self.end.is_some_and(|end| upto >= end) && self.doubt.is_empty()
    }

    /// Whether ticks have something to do.
    pub(crate) fn needs_ticks(&self) -> bool {
        self.end.is_some() || !self.doubt.is_empty()
    }

    /// What is held and was not handed on.
    pub(crate) fn take_held(&mut self) -> Vec<Lies> {
        self.held_bytes = 0;
        core::mem::take(&mut self.held).into_values().map(|(_, lies)| lies).collect()
    }
}
