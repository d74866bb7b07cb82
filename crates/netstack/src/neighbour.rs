//! Which station has which address: one cache for ARP and neighbour discovery, with the states of RFC 4861 §7.3.2.
//!
//! An entry is made by a need of ours, or by a question that a neighbour asked us; nothing else makes one: to answer a packet is no
//! need, for whoever sent it can be answered. What neighbours cause never pushes out what we use. An address that is used is asked after again from time to time, by unicast, and
//! forgotten when nobody answers.

use std::net::IpAddr;

use crate::ether::Mac;
use crate::table::Table;

/// An interface, by its place in the configuration, and an address on its link.
pub(crate) type Key = (u8, IpAddr);

const SECOND: u64 = 1_000_000_000;
/// How long an answer is trusted.
const REACHABLE_NS: u64 = 30 * SECOND;
/// How long a stale entry is used before it is asked after.
const DELAY_NS: u64 = 5 * SECOND;
/// How many questions, the first of them at once.
const TRIES: u8 = 3;
/// How long nothing is asked after nobody answered.
const HOLD_OFF_NS: u64 = SECOND;
/// How long an entry that nobody uses stays.
const UNUSED_NS: u64 = 1200 * SECOND;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Asked, and nobody has answered yet; how often.
    Incomplete(u8),
    /// Heard of, until then.
    Reachable(u64),
    /// Known, but not heard of for some time.
    Stale,
    /// Used since.
    Delay,
    /// Asked by unicast; how often.
    Probe(u8),
    /// Nobody answered; not asked again until then.
    Failed,
}

#[derive(Debug)]
struct Neighbour {
    mac: Mac,
    state: State,
    /// When something is to be done; `u64::MAX` for never.
    due: u64,
    used: u64,
    /// Whether we needed it.
    ours: bool,
}

/// What is known of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Its station, to be asked for again at that time.
    Station(Mac, u64),
    /// Asked for already; the entry's place.
    Asked(usize),
    /// To be asked for now; the entry's place.
    Ask(usize),
    /// Nobody answered.
    Silent,
    /// There is no room.
    Full,
}

/// What somebody said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// A question to us, in which the asker says its station.
    Question(Mac),
    /// An answer or announcement.
    Answer {
        /// The station, if it says one.
        mac: Option<Mac>,
        /// Whether it answers a question; `None` if the protocol cannot tell.
        solicited: Option<bool>,
        /// Whether it replaces what is known.
        overrides: bool,
    },
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Learnt {
    /// What waits for the entry at this place can go.
    Resolved(usize),
    /// It was known, or is known now.
    Known,
    /// Nobody had asked.
    Unasked,
    /// There is no room.
    Full,
}

/// What is to be done about a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Ask, by unicast if a station is given.
    Ask(Option<Mac>),
    /// Drop what waits for it.
    Silent,
}

/// The cache.
#[derive(Debug)]
pub(crate) struct Neighbours {
    table: Table<Key, Neighbour>,
    retry_ns: u64,
    next: u64,
    /// Changes whenever an answer given before may no longer hold.
    pub(crate) generation: u64,
}

impl Neighbours {
    pub(crate) fn new(capacity: usize, retry_ns: u64, secret: u64) -> Self {
        Self { table: Table::new(capacity, secret), retry_ns, next: u64::MAX, generation: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    fn alarm(&mut self, at: u64) {
        self.next = self.next.min(at);
    }

    /// When [`Neighbours::due`] is to be asked next.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The station of an address that something is to be sent to.
    pub(crate) fn find(&mut self, now: u64, key: Key) -> Found {
        let Some(place) = self.table.find(&key) else { return self.begin(now, key) };
        let Some((_, one)) = self.table.at_mut(place) else { return Found::Full };
        one.used = now;
        one.ours = true;
        self.use_at(now, place)
    }

    /// The station of an address to which something is answered, if it is known: nobody is asked for it.
    pub(crate) fn known(&mut self, now: u64, key: Key) -> Option<Mac> {
        let place = self.table.find(&key)?;
        let (_, one) = self.table.at_mut(place)?;
        if matches!(one.state, State::Incomplete(_) | State::Failed) {
            return None;
        }
        match self.use_at(now, place) {
            Found::Station(station, _) => Some(station),
            _ => None,
        }
    }

    fn use_at(&mut self, now: u64, place: usize) -> Found {
        let retry = self.retry_ns;
        let Some((_, one)) = self.table.at_mut(place) else { return Found::Full };
        match one.state {
            State::Incomplete(_) => return Found::Asked(place),
            State::Failed if now < one.due => return Found::Silent,
            State::Failed => {
                (one.state, one.due) = (State::Incomplete(1), now.saturating_add(retry));
                let due = one.due;
                self.alarm(due);
                return Found::Ask(place);
            }
            State::Reachable(until) if now < until => return Found::Station(one.mac, until),
            State::Reachable(_) | State::Stale => {
                (one.state, one.due) = (State::Delay, now.saturating_add(DELAY_NS));
            }
            State::Delay | State::Probe(_) => {}
        }
        let (mac, due) = (one.mac, one.due);
        self.alarm(due);
        Found::Station(mac, due)
    }

    fn begin(&mut self, now: u64, key: Key) -> Found {
        if !self.make_room(now, true) {
            return Found::Full;
        }
        let due = now.saturating_add(self.retry_ns);
        let one = Neighbour { mac: Mac::default(), state: State::Incomplete(1), due, used: now, ours: true };
        self.alarm(due);
        self.table.insert(key, one).map_or(Found::Full, Found::Ask)
    }

    /// Sees to a free place. What we do not use goes first; for a neighbour's question nothing else does.
    fn make_room(&mut self, now: u64, ours: bool) -> bool {
        if self.table.len() < self.table.capacity() {
            return true;
        }
        let rank = |one: &Neighbour| match one.state {
            State::Failed => Some(0),
            State::Incomplete(_) => None,
            _ if !one.ours || one.used.saturating_add(UNUSED_NS) < now => Some(1),
            State::Stale => ours.then_some(2),
            State::Reachable(until) if until <= now => ours.then_some(2),
            _ => ours.then_some(3),
        };
        let victims = self.table.iter().filter_map(|(place, _, one)| Some((rank(one)?, one.used, place)));
        let Some((_, _, place)) = victims.min() else { return false };
        self.generation += 1;
        self.table.remove(place).is_some()
    }

    /// Takes in what was said about an address.
    pub(crate) fn hear(&mut self, now: u64, key: Key, said: Said) -> Learnt {
        let Some(place) = self.table.find(&key) else {
            let Said::Question(mac) = said else { return Learnt::Unasked };
            if !self.make_room(now, false) {
                return Learnt::Full;
            }
            let one = Neighbour { mac, state: State::Stale, due: u64::MAX, used: now, ours: false };
            return self.table.insert(key, one).map_or(Learnt::Full, |_| Learnt::Known);
        };
        let Some((_, one)) = self.table.at_mut(place) else { return Learnt::Full };
        let asked = matches!(one.state, State::Incomplete(_) | State::Delay | State::Probe(_));
        let (mac, solicited, overrides) = match said {
            Said::Question(mac) => (Some(mac), false, true),
            Said::Answer { mac, solicited, overrides } => (mac, solicited.unwrap_or(asked), overrides),
        };
        let unresolved = matches!(one.state, State::Incomplete(_) | State::Failed);
        let differs = mac.is_some_and(|mac| mac != one.mac);
        if unresolved && mac.is_none() {
            return Learnt::Unasked;
        }
        if !unresolved && differs && !overrides {
            // Somebody else answers for it: trust neither, ask again when it is used (RFC 4861 §7.2.5).
            if matches!(one.state, State::Reachable(_)) {
                (one.state, one.due) = (State::Stale, u64::MAX);
                self.generation += 1;
            }
            return Learnt::Known;
        }
        one.mac = mac.unwrap_or(one.mac);
        if solicited {
            (one.state, one.due) = (State::Reachable(now.saturating_add(REACHABLE_NS)), u64::MAX);
        } else if unresolved || differs {
            (one.state, one.due) = (State::Stale, u64::MAX);
        }
        if unresolved {
            return Learnt::Resolved(place);
        }
        if differs {
            self.generation += 1;
        }
        Learnt::Known
    }

    /// The next neighbour, from a place on, about which something is to be done now. To be asked until there is none; then
    /// [`Neighbours::settle`].
    pub(crate) fn due(&mut self, now: u64, from: usize) -> Option<(usize, Key, Due)> {
        if now < self.next {
            return None;
        }
        for place in from..self.table.capacity() {
            let Some((key, one)) = self.table.at_mut(place) else { continue };
            if now < one.due {
                continue;
            }
            match one.state {
                State::Incomplete(tries) if tries < TRIES => {
                    one.state = State::Incomplete(tries + 1);
                    one.due = now.saturating_add(self.retry_ns << tries);
                    return Some((place, key, Due::Ask(None)));
                }
                State::Incomplete(_) => {
                    (one.state, one.due) = (State::Failed, now.saturating_add(HOLD_OFF_NS));
                    return Some((place, key, Due::Silent));
                }
                State::Delay | State::Probe(0..TRIES) => {
                    let tries = if let State::Probe(tries) = one.state { tries } else { 0 };
                    (one.state, one.due) = (State::Probe(tries + 1), now.saturating_add(self.retry_ns));
                    return Some((place, key, Due::Ask(Some(one.mac))));
                }
                State::Probe(_) => {
                    self.generation += 1;
                    self.table.remove(place);
                }
                // Held off long enough: when the address is used again, it is asked for again.
                State::Failed => {
                    self.table.remove(place);
                }
                State::Reachable(_) | State::Stale => one.due = u64::MAX,
            }
        }
        None
    }

    /// Finds the time of the next [`Neighbours::due`].
    pub(crate) fn settle(&mut self, now: u64) {
        if now >= self.next {
            self.next = self.table.iter().map(|(_, _, one)| one.due).min().unwrap_or(u64::MAX);
        }
    }
}

#[cfg(test)]
mod tests;
