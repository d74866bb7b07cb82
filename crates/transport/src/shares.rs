//! What ended otherwise than delivered of an outgoing flow, by which sinks its source knew of when it emitted it: a sink is charged with
//! nothing that was under way before it joined.

use std::collections::VecDeque;

use insane_wire::frame::control::Account;

use crate::counts::Share;
use crate::path::{End, Event, Path, release};

/// So many places where sinks joined may be undecided at a time. Those that join after so many others may be charged with what went
/// before them.
const MOST: usize = 64;

/// The most that the receiver is asked about at a time.
pub(crate) const ASKED: usize = 16;

/// For so many ticks an answer is waited for, once the receiver has said more than was asked. One of an earlier version gives none.
const PATIENCE: u32 = 20;

/// Where the messages begin that say another number than those before.
#[derive(Debug)]
struct Join {
    at: u64,
    joined: u8,
    /// What had become of the messages before it.
    before: Option<Account>,
    waited: u32,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// What nobody has taken yet, each number once.
    ended: Vec<Share>,
    /// Best effort: what the message said that got its index last.
    last: Option<u8>,
    /// Best effort: what the first message says of which it is not known what became of it.
    first: u8,
    joins: VecDeque<Join>,
    /// How much of the receiver's account was shared out.
    shared: Account,
    /// The receiver is about to be asked.
    asking: bool,
}

impl Shares {
    /// Messages that said `joined` ended.
    pub(crate) fn add(&mut self, joined: u8, note: impl FnOnce(&mut Share)) {
        let known = self.ended.iter().position(|share| share.joined == joined);
        let at = known.unwrap_or_else(|| {
            self.ended.push(Share { joined, ..Share::default() });
            self.ended.len() - 1
        });
        if let Some(share) = self.ended.get_mut(at) {
            note(share);
        }
    }

    /// What ended since this was asked last.
    pub(crate) fn take(&mut self) -> Vec<Share> {
        core::mem::take(&mut self.ended)
    }

    /// A message of a best-effort flow gets its index.
    #[inline]
    pub(crate) fn goes(&mut self, index: u64, joined: u8) {
        if self.last != Some(joined) {
            self.turn(index, joined);
        }
    }

    fn turn(&mut self, index: u64, joined: u8) {
        match self.last.replace(joined) {
            None => self.first = joined,
            Some(_) if self.joins.len() < MOST => {
                self.joins.push_back(Join { at: index, joined, before: None, waited: 0 });
            }
            Some(_) => self.joins.back_mut().into_iter().for_each(|join| join.joined = joined),
        }
    }

    /// Takes an account of the receiver's that is older than the last, if it was asked for.
    pub(crate) fn answered(&mut self, account: &Account) {
        let asked = self.joins.iter_mut().find(|join| join.at == account.settled);
        asked.into_iter().for_each(|join| join.before = Some(*account));
    }

    /// Shares out the receiver's latest account, as far as it is known what is whose.
    pub(crate) fn settle(&mut self, latest: &Account) {
        while let Some(join) = self.joins.front() {
            let (at, joined) = (join.at, join.joined);
            let upto = if latest.settled <= at { Some(*latest) } else { join.before };
            match upto {
                Some(upto) => self.share(&upto),
                // The sinks that joined later are charged too, as all would be.
                None if join.waited >= PATIENCE => {}
                None => return,
            }
            if latest.settled < at {
                return;
            }
            self.joins.pop_front();
            self.first = joined;
        }
        self.share(latest);
    }

    fn share(&mut self, upto: &Account) {
        let before = core::mem::replace(&mut self.shared, *upto);
        let lost = upto.lost.saturating_sub(before.lost);
        let dropped = upto.dropped.saturating_sub(before.dropped);
        let expired = upto.expired.saturating_sub(before.expired);
        if lost + dropped + expired > 0 {
            self.add(self.first, |share| {
                share.lost += lost;
                share.dropped += dropped;
                share.expired += expired;
            });
        }
    }

    /// Says where the receiver's account is asked for, in as far as there is room. Whether there was any; `None` if nothing is asked.
    pub(crate) fn ask(&mut self, say: impl FnMut(u64) -> bool) -> Option<bool> {
        self.asking = false;
        let mut asks = self.asks().peekable();
        asks.peek()?;
        // What finds none is asked with the next tick.
        Some(asks.map(say).take_while(|said| *said).count() > 0)
    }

    fn asks(&self) -> impl Iterator<Item = u64> + '_ {
        self.joins.iter().filter(|join| join.before.is_none()).map(|join| join.at).take(ASKED)
    }

    /// Whether it is known whose everything is that the receiver has said.
    pub(crate) fn are_clear(&self) -> bool {
        self.joins.is_empty()
    }

    /// Called now and then: whether the receiver is to be asked.
    pub(crate) fn tick(&mut self, latest: &Account) -> bool {
        for join in self.joins.iter_mut().filter(|join| latest.settled > join.at) {
            join.waited += 1;
        }
        self.settle(latest);
        let asks = !self.asking && self.asks().next().is_some();
        self.asking |= asks;
        asks
    }

    /// The connection is gone after so many messages: nothing more will be known of those that the latest account does not have, nor whose
    /// all is that it has. Those that were there before are charged with that.
    pub(crate) fn reset(&mut self, latest: &Account, end: u64) {
        self.settle(latest);
        self.share(latest);
        let (mut from, mut joined) = (latest.settled, self.first);
        let joins = core::mem::take(&mut self.joins);
        for (to, next) in joins.iter().map(|join| (join.at, join.joined)).chain([(end, 0)]) {
            if to > from {
                self.add(joined, |share| share.unconfirmed += to - from);
                from = to;
            }
            joined = next;
        }
        let ended = core::mem::take(&mut self.ended);
        *self = Self { ended, ..Self::default() };
    }
}

impl Path {
    /// What ended of a flow's messages since this was asked last, otherwise than delivered, by which sinks its source knew of; and whether
    /// that is all: what the receiver says of messages from before and after a sink joined comes when it is known whose it is.
    #[must_use]
    pub fn take_shares(&mut self, flow: u32) -> (Vec<Share>, bool) {
        self.out.get_mut(&flow).map_or((Vec::new(), true), |out| (out.shares.take(), out.shares.are_clear()))
    }

    pub(crate) fn finish(&mut self, flow: u32) {
        if let Some(mut out) = self.out.remove(&flow) {
            // Of what the last account does not say nothing will be known.
            let events = &mut self.events;
            out.reset(|lost| release(events, flow, &lost, End::Unconfirmed));
            let shares = out.shares.take().into_iter();
            self.events.extend(shares.map(|share| Event::Shared { flow, share }));
            self.events.push_back(Event::Closed { flow, counts: out.counts() });
        }
    }
}
