//! Putting messages together again.
//!
//! A [`Reassembler`] holds no payload. It is told of each fragment (which message, which part) and says where in the
//! message's one contiguous slot those bytes belong; the caller owns the slots. So a datapath can ask before it reads the
//! payload from its socket ([`Reassembler::where_to`]), and the kernel's copy is the only one.
//!
//! A message comes out whole or not at all. What is unfinished is bounded in bytes and in number, per source and per domain,
//! and given up when nothing has come for it for some time. The clock is the caller's: a [`Duration`] since any fixed moment.
//!
//! The caller must not offer fragments of messages that have ended already: they would begin anew.
//!
//! ```
//! use core::time::Duration;
//! use insane_wire::{frame::record::Part, reassembly::{Key, Limits, Reassembler}};
//!
//! let mut unfinished = Reassembler::new(Limits::default());
//! let key = Key { domain: 1, source: 2, message: 3 };
//! let now = Duration::from_secs(1);
//! let first = unfinished.offer(now, key, Part { total: 3000, offset: 1500 }, 1500, false, |_bytes| Some(77)).unwrap();
//! assert_eq!((first.slot, first.at, first.complete), (77, 1500, false));
//! let last = unfinished.offer(now, key, Part { total: 3000, offset: 0 }, 1500, false, |_| None).unwrap();
//! assert!(last.complete);
//! ```

use std::collections::hash_map::Entry;
use std::time::Duration;

use crate::frame::MAX_MESSAGE_BYTES;
use crate::frame::record::Part;
use crate::keyed::{Key as HashKey, Keyed};

/// A message under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Its domain.
    pub domain: u32,
    /// Its source: any number by which the caller knows it.
    pub source: u64,
    /// The message's number there. Of two messages of a source the one with the smaller number is the older.
    pub message: u64,
}

/// What may be unfinished at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes per source. At least one message of the largest size must fit.
    pub source_bytes: u64,
    /// Messages per source.
    pub source_messages: u32,
    /// Bytes per domain.
    pub domain_bytes: u64,
    /// Messages per domain.
    pub domain_messages: u32,
    /// Separate runs of bytes within one message.
    pub runs: usize,
    /// How long nothing may come for a message before it is given up.
    pub patience: Duration,
}

impl Default for Limits {
    /// 256 MiB and 256 messages per source, 1 GiB and 4096 messages per domain, 4096 runs, two seconds.
    fn default() -> Self {
        Self {
            source_bytes: 256 << 20,
            source_messages: 256,
            domain_bytes: 1 << 30,
            domain_messages: 4096,
            runs: 4096,
            patience: Duration::from_secs(2),
        }
    }
}

/// Where a fragment's bytes belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// The message's slot, as the caller named it.
    pub slot: u64,
    /// Where in the message, in bytes.
    pub at: u32,
    /// How many of the bytes are new; 0 for a duplicate, which need not be written.
    pub fresh: u32,
    /// The message is whole with these bytes: its slot is the caller's again and the reassembler knows it no more.
    pub complete: bool,
}

/// Why a fragment was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// It reaches beyond its message, or the message is over the limit.
    #[error("the fragment does not lie in its message")]
    Malformed,
    /// Fragments of one message say different lengths.
    #[error("the fragment contradicts an earlier one of its message")]
    Contradicts,
    /// The source has too much unfinished.
    #[error("the source has too much unfinished")]
    SourceFull,
    /// The domain has too much unfinished.
    #[error("the domain has too much unfinished")]
    DomainFull,
    /// The message has too many holes.
    #[error("the message has too many holes")]
    TooManyRuns,
    /// The caller has no slot for it.
    #[error("there is no slot for the message")]
    NoSlot,
}

/// A message that was given up; its slot is the caller's again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenUp {
    /// Which.
    pub key: Key,
    /// Its slot.
    pub slot: u64,
    /// Nothing came in time; otherwise it made room for a newer one of its source.
    pub timed_out: bool,
}

#[derive(Debug)]
struct Unfinished {
    total: u32,
    slot: u64,
    /// Whether a message may not be given up: its fragments were acknowledged.
    keep: bool,
    received: u32,
    /// Byte ranges that are there, sorted, none touching another.
    runs: Vec<(u32, u32)>,
    touched: Duration,
}

#[derive(Debug, Default, Clone, Copy)]
struct Load {
    bytes: u64,
    messages: u32,
}

/// The unfinished messages of one receiver. Bounded by its [`Limits`]; see the module's head.
#[derive(Debug)]
pub struct Reassembler {
    limits: Limits,
    unfinished: Keyed<Key, Unfinished>,
    domains: Keyed<u32, Load>,
    sources: Keyed<(u32, u64), Load>,
    given_up: Vec<GivenUp>,
    /// No message times out before this.
    quiet_until: Duration,
    spare_runs: Vec<Vec<(u32, u32)>>,
}

impl Reassembler {
    /// Nothing unfinished.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let key = HashKey::random();
        Self {
            limits,
            unfinished: Keyed::with_hasher(key),
            domains: Keyed::with_hasher(key),
            sources: Keyed::with_hasher(key),
            given_up: Vec::new(),
            quiet_until: Duration::MAX,
            spare_runs: Vec::new(),
        }
    }

    /// How many messages are unfinished.
    #[must_use]
    pub fn len(&self) -> usize {
        self.unfinished.len()
    }

    /// Whether nothing is unfinished.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.unfinished.is_empty()
    }

    /// The slot of a message under way, if all of `offset..offset + len` is still missing there: bytes may then be written to
    /// it before their headers are known, as long as [`Reassembler::offer`] is asked for those that did arrive.
    #[must_use]
    pub fn where_to(&self, key: Key, offset: u32, len: u32) -> Option<u64> {
        let (slot, missing) = self.missing(key, offset)?;
        (len <= missing).then_some(slot)
    }

    /// The slot of a message under way, and how many bytes are missing there from `offset` on before one that is not.
    #[must_use]
    pub fn missing(&self, key: Key, offset: u32) -> Option<(u64, u32)> {
        let one = self.unfinished.get(&key).filter(|one| offset <= one.total)?;
        let next = one.runs.get(one.runs.partition_point(|run| run.1 <= offset));
        Some((one.slot, next.map_or(one.total, |run| run.0).saturating_sub(offset)))
    }

    /// Makes a message known before the first of its fragments is read, so that [`Reassembler::where_to`] has an answer. One
    /// that is known already stays as it is.
    ///
    /// # Errors
    /// [`Refused`], as [`Reassembler::offer`].
    pub fn expect(
        &mut self,
        now: Duration,
        key: Key,
        total: u32,
        keep: bool,
        slot: impl FnOnce(u32) -> Option<u64>,
    ) -> Result<(), Refused> {
        if total > MAX_MESSAGE_BYTES || total == 0 {
            return Err(Refused::Malformed);
        }
        if !self.unfinished.contains_key(&key) {
            self.make_room(key, total)?;
            let slot = slot(total).ok_or(Refused::NoSlot)?;
            self.begin(now, key, total, slot, keep);
        }
        Ok(())
    }

    /// Takes a fragment of `len` bytes: says where it belongs and records that it is there.
    ///
    /// For the first fragment of a message `slot` is asked for one that can hold so many bytes. With `keep` the message is
    /// given up by [`Reassembler::forget`] alone: neither for a newer one nor by time. To make room for a message of a source,
    /// older ones of the same source that may be given up are; see [`Reassembler::given_up`].
    ///
    /// # Errors
    /// [`Refused`]: nothing changed; the fragment is to be counted as dropped, and not acknowledged.
    pub fn offer(
        &mut self,
        now: Duration,
        key: Key,
        part: Part,
        len: u32,
        keep: bool,
        slot: impl FnOnce(u32) -> Option<u64>,
    ) -> Result<Placed, Refused> {
        let end = part.offset.checked_add(len).filter(|&end| end <= part.total && len > 0).ok_or(Refused::Malformed)?;
        self.expect(now, key, part.total, keep, slot)?;
        let Entry::Occupied(mut entry) = self.unfinished.entry(key) else { return Err(Refused::NoSlot) };
        let one = entry.get_mut();
        if one.total != part.total {
            return Err(Refused::Contradicts);
        }
        let fresh = add_run(&mut one.runs, part.offset, end, self.limits.runs)?;
        one.received += fresh;
        if fresh > 0 {
            one.touched = now;
        }
        let placed = Placed { slot: one.slot, at: part.offset, fresh, complete: one.received == one.total };
        if placed.complete {
            let one = entry.remove();
            self.unload(key, one);
        }
        Ok(placed)
    }

    /// Gives a message up, because its flow has ended or its sender has given it up. Returns its slot.
    pub fn forget(&mut self, key: Key) -> Option<u64> {
        let one = self.unfinished.remove(&key)?;
        let slot = one.slot;
        self.unload(key, one);
        Some(slot)
    }

    /// Gives up everything of a source; it is then to be taken from [`Reassembler::given_up`].
    pub fn forget_source(&mut self, domain: u32, source: u64) {
        let keys: Vec<Key> =
            self.unfinished.keys().filter(|key| key.domain == domain && key.source == source).copied().collect();
        for key in keys {
            self.give_up(key, false);
        }
    }

    /// The next message that was given up without the caller having named it.
    pub fn given_up(&mut self) -> Option<GivenUp> {
        self.given_up.pop()
    }

    /// When [`Reassembler::expire`] is to be called next, at the latest.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        (!self.unfinished.is_empty() && self.quiet_until < Duration::MAX).then_some(self.quiet_until)
    }

    /// Gives up what has waited too long; it is then to be taken from [`Reassembler::given_up`]. Cheap when nothing can have.
    pub fn expire(&mut self, now: Duration) {
        if now < self.quiet_until || self.unfinished.is_empty() {
            return;
        }
        let patience = self.limits.patience;
        let late = |one: &Unfinished| !one.keep && one.touched.saturating_add(patience) <= now;
        let keys: Vec<Key> = self.unfinished.iter().filter(|(_, one)| late(one)).map(|(key, _)| *key).collect();
        for key in keys {
            self.give_up(key, true);
        }
        let waiting = self.unfinished.values().filter(|one| !one.keep);
        let next = waiting.map(|one| one.touched.saturating_add(patience)).min();
        self.quiet_until = next.unwrap_or(Duration::MAX);
    }

    fn begin(&mut self, now: Duration, key: Key, total: u32, slot: u64, keep: bool) {
        let runs = self.spare_runs.pop().unwrap_or_default();
        self.unfinished.insert(key, Unfinished { total, slot, keep, received: 0, runs, touched: now });
        for load in
            [self.domains.entry(key.domain).or_default(), self.sources.entry((key.domain, key.source)).or_default()]
        {
            load.bytes += u64::from(total);
            load.messages += 1;
        }
        if !keep {
            self.quiet_until = self.quiet_until.min(now.saturating_add(self.limits.patience));
        }
    }

    fn unload(&mut self, key: Key, mut one: Unfinished) {
        let total = u64::from(one.total);
        if let Entry::Occupied(mut load) = self.domains.entry(key.domain) {
            load.get_mut().bytes -= total;
            load.get_mut().messages -= 1;
            if load.get().messages == 0 {
                load.remove();
            }
        }
        if let Entry::Occupied(mut load) = self.sources.entry((key.domain, key.source)) {
            load.get_mut().bytes -= total;
            load.get_mut().messages -= 1;
            if load.get().messages == 0 {
                load.remove();
            }
        }
        if self.spare_runs.len() < 16 && one.runs.capacity() <= 64 {
            one.runs.clear();
            self.spare_runs.push(one.runs);
        }
    }

    fn give_up(&mut self, key: Key, timed_out: bool) {
        if let Some(slot) = self.forget(key) {
            self.given_up.push(GivenUp { key, slot, timed_out });
        }
    }

    /// Sees that a message of `total` bytes fits, giving up older ones of its source if they may be.
    fn make_room(&mut self, key: Key, total: u32) -> Result<(), Refused> {
        loop {
            let fits = |load: Option<&Load>, bytes: u64, messages: u32| {
                let load = load.copied().unwrap_or_default();
                load.bytes + u64::from(total) <= bytes && load.messages < messages
            };
            let source = self.sources.get(&(key.domain, key.source));
            let full = if !fits(source, self.limits.source_bytes, self.limits.source_messages) {
                Refused::SourceFull
            } else if !fits(self.domains.get(&key.domain), self.limits.domain_bytes, self.limits.domain_messages) {
                Refused::DomainFull
            } else {
                return Ok(());
            };
            let same_source = |other: &Key| other.domain == key.domain && other.source == key.source;
            let older = self.unfinished.iter().filter(|(other, one)| same_source(other) && !one.keep && **other < key);
            let oldest = older.map(|(other, _)| *other).min().ok_or(full)?;
            self.give_up(oldest, false);
        }
    }
}

/// Adds a range to sorted, separate ranges; says how many bytes of it were not there.
fn add_run(runs: &mut Vec<(u32, u32)>, start: u32, end: u32, most: usize) -> Result<u32, Refused> {
    // In order, which is nearly always: the last run grows.
    if let Some(last) = runs.last_mut()
        && last.1 == start
    {
        last.1 = end;
        return Ok(end - start);
    }
    let from = runs.partition_point(|run| run.1 < start);
    let upto = runs.partition_point(|run| run.0 <= end);
    let Some(touched) = runs.get(from..upto).filter(|touched| !touched.is_empty()) else {
        if runs.len() >= most {
            return Err(Refused::TooManyRuns);
        }
        runs.insert(from, (start, end));
        return Ok(end - start);
    };
    let known: u32 = touched.iter().map(|run| run.1.min(end).saturating_sub(run.0.max(start))).sum();
    let low = touched.first().map_or(start, |run| run.0.min(start));
    let high = touched.last().map_or(end, |run| run.1.max(end));
    runs.drain(from + 1..upto);
    if let Some(run) = runs.get_mut(from) {
        *run = (low, high);
    }
    Ok(end - start - known)
}
