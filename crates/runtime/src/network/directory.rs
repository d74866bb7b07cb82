//! Who has which sinks, across hosts. One trait, so that the network thread does not know how they tell each other. Which hosts
//! there are is `discovery`'s to say.

use insane_wire::host::{self, to_host};
use insane_wire::id::SinkId;
use insane_wire::qos::Reliability;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The most sinks that one host may announce, those that are another's among them.
const MAX_SINKS: usize = 65_536;

/// No time at which a sink goes, yet.
const LISTED: Duration = Duration::MAX;

/// What has changed on other hosts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change {
    /// A host has a sink.
    Added {
        /// Which host.
        host: usize,
        /// The sink.
        sink: host::Announce,
    },
    /// It has it no more, or is gone.
    Removed {
        /// Which host.
        host: usize,
        /// The sink.
        sink: SinkId,
    },
}

/// A directory. Not shared between threads; nothing here waits.
pub(crate) trait Directory: Send + std::fmt::Debug {
    /// This host has a sink.
    fn announce(&mut self, sink: &host::Announce);
    /// It has it no more.
    fn withdraw(&mut self, sink: SinkId);
    /// What this host has said of a sink that it has.
    fn own(&self, sink: SinkId) -> Option<&host::Announce>;
    /// There is one host more; it is the last.
    fn host_added(&mut self);
    /// Whether it is said elsewhere than on its path that a host is there: then one that is lost is waited for.
    fn list(&mut self, host: usize, listed: bool, now: Duration);
    /// Whether that was said.
    fn lists(&self, host: usize) -> bool;
    /// Whether anything of a host is known.
    fn knows(&self, host: usize) -> bool;
    /// The connection to a host stands; what is to be said over its control flow begins anew.
    fn connected(&mut self, host: usize);
    /// It is lost.
    fn lost(&mut self, host: usize, now: Duration);
    /// A host has said something over its control flow.
    fn heard(&mut self, host: usize, body: &to_host::Body, now: Duration);
    /// The next thing to be said to a host over its control flow.
    fn outgoing(&mut self) -> Option<(usize, to_host::Body)>;
    /// The next change.
    fn change(&mut self) -> Option<Change>;
    /// Does what is due, and says when it is to be called next.
    fn on_time(&mut self, now: Duration) -> Option<Duration>;
}

#[derive(Debug)]
struct Known {
    announced: host::Announce,
    /// Its host was lost; unless it is announced again it goes at that time. [`LISTED`]: not as long as others say that its host
    /// is there.
    goes: Option<Duration>,
}

/// Which of a host's runtimes spoke last.
#[derive(Debug, Clone, Copy, Default)]
struct Spoke {
    run: Option<[u8; 16]>,
    /// It had spoken in the connection before, too.
    again: bool,
}

/// Each host tells every other what it has, over the control flows.
#[derive(Debug)]
pub(crate) struct Told {
    own: BTreeMap<SinkId, host::Announce>,
    hosts: Vec<BTreeMap<SinkId, Known>>,
    /// What hosts announce that is another's: one that began anew at another address is there before the old one is known to be lost.
    claims: Vec<BTreeMap<SinkId, host::Announce>>,
    connected: Vec<bool>,
    listed: Vec<bool>,
    spoke: Vec<Spoke>,
    outgoing: VecDeque<(usize, to_host::Body)>,
    changes: VecDeque<Change>,
    patience: Duration,
    /// Some of what hosts announced may go in time.
    leaving: bool,
}

impl Told {
    /// A directory of so many other hosts. Sinks of reliable streams outlive the loss of their host for `patience`, which begins
    /// when it is not listed either.
    pub(crate) fn new(hosts: usize, patience: Duration) -> Self {
        Self {
            own: BTreeMap::new(),
            hosts: (0..hosts).map(|_| BTreeMap::new()).collect(),
            claims: vec![BTreeMap::new(); hosts],
            connected: vec![false; hosts],
            listed: vec![false; hosts],
            spoke: vec![Spoke::default(); hosts],
            outgoing: VecDeque::new(),
            changes: VecDeque::new(),
            patience,
            leaving: false,
        }
    }

    fn tell_all(&mut self, body: &to_host::Body) {
        let connected = self.connected.iter().enumerate().filter(|(_, c)| **c);
        self.outgoing.extend(connected.map(|(host, _)| (host, body.clone())));
    }

    /// A host has named all of its sinks. A runtime that lived on knows them all, so the others were closed meanwhile. One that began
    /// anew does not: their sessions may be about to come back to it.
    fn all_named(&mut self, host: usize) {
        if !self.spoke[host].again {
            return;
        }
        let gone: Vec<SinkId> = self.hosts[host].iter().filter(|(_, k)| k.goes.is_some()).map(|(s, _)| *s).collect();
        gone.into_iter().for_each(|sink| self.remove(host, sink));
    }

    /// A host has a sink no more: it is another's that announces it, if there is one.
    fn remove(&mut self, host: usize, sink: SinkId) {
        if self.take_away(host, sink)
            && let Some((next, announced)) =
                self.claims.iter_mut().enumerate().find_map(|(next, claims)| Some((next, claims.remove(&sink)?)))
        {
            self.add(next, sink, announced);
        }
    }

    fn take_away(&mut self, host: usize, sink: SinkId) -> bool {
        let was = self.hosts[host].remove(&sink).is_some();
        if was {
            self.changes.push_back(Change::Removed { host, sink });
        }
        was
    }

    fn add(&mut self, host: usize, sink: SinkId, announced: host::Announce) {
        self.hosts[host].insert(sink, Known { announced: announced.clone(), goes: None });
        self.changes.push_back(Change::Added { host, sink: announced });
    }

    /// A host announces a sink that is another's: it is its at once if that one is lost, and otherwise when it is.
    fn claim(&mut self, host: usize, sink: SinkId, announced: host::Announce) {
        let owner = self.hosts.iter().position(|known| known.contains_key(&sink));
        self.claims[host].insert(sink, announced);
        match owner.filter(|owner| !self.connected[*owner] && self.hosts[*owner][&sink].goes.is_some()) {
            Some(owner) => self.remove(owner, sink),
            None => tracing::warn!(host, %sink, "announcement put off: the sink is another host's"),
        }
    }

    /// Ends what outlives no loss, and sets a time for the rest.
    fn unsettle(&mut self, host: usize, goes: Duration) {
        let mut gone = Vec::new();
        for (sink, known) in &mut self.hosts[host] {
            if known.announced.qos.unwrap_or_default().reliability() == Reliability::Reliable {
                let before = known.goes.filter(|_| goes != LISTED);
                known.goes = Some(before.map_or(goes, |before| before.min(goes)));
                self.leaving = true;
            } else {
                gone.push(*sink);
            }
        }
        gone.into_iter().for_each(|sink| self.remove(host, sink));
    }
}

impl Directory for Told {
    fn announce(&mut self, sink: &host::Announce) {
        let Some(id) = SinkId::from_bytes(&sink.sink) else { return };
        self.own.insert(id, sink.clone());
        self.tell_all(&to_host::Body::Announce(sink.clone()));
    }

    fn withdraw(&mut self, sink: SinkId) {
        if self.own.remove(&sink).is_some() {
            self.tell_all(&to_host::Body::Withdraw(host::Withdraw { sink: sink.to_bytes() }));
        }
    }

    fn own(&self, sink: SinkId) -> Option<&host::Announce> {
        self.own.get(&sink)
    }

    fn host_added(&mut self) {
        self.hosts.push(BTreeMap::new());
        self.claims.push(BTreeMap::new());
        self.connected.push(false);
        self.listed.push(false);
        self.spoke.push(Spoke::default());
    }

    fn list(&mut self, host: usize, listed: bool, now: Duration) {
        self.listed[host] = listed;
        if self.connected[host] {
            return;
        }
        let goes = now + self.patience;
        for at in self.hosts[host].values_mut().filter_map(|known| known.goes.as_mut()) {
            *at = if listed { LISTED } else { goes.min(*at) };
            self.leaving = true;
        }
    }

    fn lists(&self, host: usize) -> bool {
        self.listed[host]
    }

    fn knows(&self, host: usize) -> bool {
        !self.hosts[host].is_empty() || !self.claims[host].is_empty()
    }

    fn connected(&mut self, host: usize) {
        self.connected[host] = true;
        self.outgoing.retain(|(h, _)| *h != host);
        let all = self.own.values().cloned().map(to_host::Body::Announce);
        self.outgoing.extend(all.map(|body| (host, body)));
        self.outgoing.push_back((host, to_host::Body::Snapshot(host::Snapshot {})));
    }

    fn lost(&mut self, host: usize, now: Duration) {
        self.connected[host] = false;
        self.outgoing.retain(|(h, _)| *h != host);
        self.claims[host].clear();
        self.unsettle(host, if self.listed[host] { LISTED } else { now + self.patience });
        let claimed = self.claims.iter().flat_map(|claims| claims.keys().copied());
        let elsewhere: Vec<SinkId> = claimed.filter(|sink| self.hosts[host].contains_key(sink)).collect();
        elsewhere.into_iter().for_each(|sink| self.remove(host, sink));
    }

    fn heard(&mut self, host: usize, body: &to_host::Body, now: Duration) {
        match body {
            to_host::Body::Hello(hello) => {
                let run = <[u8; 16]>::try_from(&hello.run[..]).ok();
                self.spoke[host] = Spoke { run, again: run.is_some() && run == self.spoke[host].run };
                // It is heard: what it does not name again has no more time because it is listed.
                self.unsettle(host, now + self.patience);
            }
            to_host::Body::Snapshot(_) => self.all_named(host),
            to_host::Body::Announce(announced) => {
                let Some(sink) = SinkId::from_bytes(&announced.sink) else { return };
                if self.own.contains_key(&sink) || self.hosts[host].len() + self.claims[host].len() >= MAX_SINKS {
                    tracing::warn!(host, %sink, "announcement refused: the sink is this host's, or there are too many");
                    return;
                }
                let elsewhere = |(h, known): (usize, &BTreeMap<SinkId, Known>)| h != host && known.contains_key(&sink);
                if self.hosts.iter().enumerate().any(elsewhere) {
                    return self.claim(host, sink, announced.clone());
                }
                if self.hosts[host].get(&sink).is_some_and(|k| k.announced != *announced) {
                    self.take_away(host, sink);
                }
                if let Some(known) = self.hosts[host].get_mut(&sink) {
                    known.goes = None;
                } else {
                    self.add(host, sink, announced.clone());
                }
            }
            to_host::Body::Withdraw(withdrawn) => {
                if let Some(sink) = SinkId::from_bytes(&withdrawn.sink) {
                    self.claims[host].remove(&sink);
                    self.remove(host, sink);
                }
            }
            _ => {}
        }
    }

    fn outgoing(&mut self) -> Option<(usize, to_host::Body)> {
        self.outgoing.pop_front()
    }

    fn change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    fn on_time(&mut self, now: Duration) -> Option<Duration> {
        // Asked every millisecond, and there may be thousands.
        if !self.leaving {
            return None;
        }
        for host in 0..self.hosts.len() {
            let due: Vec<SinkId> =
                self.hosts[host].iter().filter(|(_, k)| k.goes.is_some_and(|at| at <= now)).map(|(s, _)| *s).collect();
            due.into_iter().for_each(|sink| self.remove(host, sink));
        }
        let times = self.hosts.iter().flat_map(|h| h.values().filter_map(|k| k.goes));
        let next = times.filter(|at| *at != LISTED).min();
        self.leaving = next.is_some();
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use insane_wire::qos::Qos;

    fn announce(reliable: bool) -> host::Announce {
        let mut qos = Qos::default();
        if reliable {
            qos.set_reliability(Reliability::Reliable);
        }
        let sink = SinkId::random().to_bytes();
        host::Announce { stream: "s".into(), qos: Some(qos), channel: 3, sink, ..host::Announce::default() }
    }

    fn said(directory: &mut Told) -> Vec<(usize, to_host::Body)> {
        std::iter::from_fn(|| directory.outgoing()).collect()
    }

    #[test]
    fn a_host_that_connects_hears_of_all_sinks_and_then_of_changes() {
        let mut directory = Told::new(2, Duration::ZERO);
        let (one, two) = (announce(false), announce(false));
        directory.announce(&one);
        assert!(said(&mut directory).is_empty());
        directory.connected(1);
        let snapshot = to_host::Body::Snapshot(host::Snapshot {});
        assert_eq!(said(&mut directory), [(1, to_host::Body::Announce(one.clone())), (1, snapshot)]);
        directory.announce(&two);
        directory.withdraw(SinkId::from_bytes(&one.sink).unwrap());
        assert_eq!(said(&mut directory).len(), 2);
    }

    #[test]
    fn best_effort_sinks_go_with_their_host_and_reliable_ones_after_a_while() {
        let (mut directory, now) = (Told::new(2, Duration::from_secs(5)), Duration::from_secs(100));
        let (plain, reliable) = (announce(false), announce(true));
        for sink in [&plain, &reliable] {
            directory.heard(0, &to_host::Body::Announce(sink.clone()), now);
        }
        // The same sink from elsewhere is nobody's, as long as its host is there.
        directory.heard(1, &to_host::Body::Announce(plain.clone()), now);
        assert_eq!(std::iter::from_fn(|| directory.change()).count(), 2);
        directory.lost(0, now);
        let removed =
            |sink: &host::Announce| Change::Removed { host: 0, sink: SinkId::from_bytes(&sink.sink).unwrap() };
        assert_eq!(directory.change(), Some(removed(&plain)));
        assert_eq!(directory.change(), Some(Change::Added { host: 1, sink: plain.clone() }));
        assert_eq!(directory.change(), None);
        assert_eq!(directory.on_time(now), Some(now + Duration::from_secs(5)));
        directory.heard(0, &to_host::Body::Announce(reliable.clone()), now);
        assert_eq!(directory.on_time(now + Duration::from_secs(6)), None);
        directory.lost(0, now);
        directory.on_time(now + Duration::from_secs(6));
        assert_eq!(directory.change(), Some(removed(&reliable)));
    }

    #[test]
    fn the_patience_with_a_lost_host_begins_when_it_is_not_listed_either() {
        let (patience, now) = (Duration::from_secs(5), Duration::from_secs(100));
        let (plain, reliable) = (announce(false), announce(true));
        for listed_first in [true, false] {
            let mut directory = Told::new(1, patience);
            directory.connected(0);
            for sink in [&plain, &reliable] {
                directory.heard(0, &to_host::Body::Announce(sink.clone()), now);
            }
            assert_eq!(std::iter::from_fn(|| directory.change()).count(), 2);
            let removed =
                |sink: &host::Announce| Change::Removed { host: 0, sink: SinkId::from_bytes(&sink.sink).unwrap() };
            // It may be found again after it was lost.
            let found = now + patience / 2;
            if listed_first {
                directory.list(0, true, now);
            }
            directory.lost(0, now);
            assert_eq!((directory.change(), directory.change()), (Some(removed(&plain)), None));
            if !listed_first {
                assert_eq!(directory.on_time(found), Some(now + patience));
                directory.list(0, true, found);
            }
            let late = now + patience * 100;
            assert_eq!((directory.on_time(late), directory.change()), (None, None), "{listed_first}");
            directory.list(0, false, late);
            assert_eq!((directory.on_time(late), directory.change()), (Some(late + patience), None));
            directory.on_time(late + patience);
            assert_eq!(directory.change(), Some(removed(&reliable)));
        }
    }

    #[test]
    fn a_listed_host_that_is_heard_again_has_the_patience_for_what_it_does_not_name() {
        let (patience, now) = (Duration::from_secs(5), Duration::from_secs(100));
        let hello = |run: u8| to_host::Body::Hello(host::Hello { run: vec![run; 16], ..host::Hello::default() });
        let mut directory = Told::new(1, patience);
        let sink = announce(true);
        directory.list(0, true, now);
        directory.connected(0);
        directory.heard(0, &hello(1), now);
        directory.heard(0, &to_host::Body::Announce(sink), now);
        assert!(matches!(directory.change(), Some(Change::Added { .. })));
        directory.lost(0, now);
        let late = now + patience * 100;
        directory.connected(0);
        directory.heard(0, &hello(2), late);
        // That its new runtime is listed says nothing of the sessions of the old one.
        directory.list(0, true, late);
        assert_eq!((directory.on_time(late), directory.change()), (Some(late + patience), None));
        directory.on_time(late + patience);
        assert!(matches!(directory.change(), Some(Change::Removed { .. })));
    }

    #[test]
    fn a_sink_that_is_named_by_another_host_is_its_once_the_first_has_lost_it() {
        let (patience, now) = (Duration::from_secs(5), Duration::from_secs(100));
        for (reliable, lost_first) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut directory = Told::new(2, patience);
            let sink = announce(reliable);
            let said = to_host::Body::Announce(sink.clone());
            (0..2).for_each(|host| directory.connected(host));
            directory.heard(0, &said, now);
            let added = |host| Some(Change::Added { host, sink: sink.clone() });
            assert_eq!(directory.change(), added(0));
            if !lost_first {
                directory.heard(1, &said, now);
                assert_eq!(directory.change(), None, "its host is there");
            }
            directory.lost(0, now);
            if lost_first {
                directory.heard(1, &said, now);
            }
            let removed = |host| Some(Change::Removed { host, sink: SinkId::from_bytes(&sink.sink).unwrap() });
            assert_eq!([directory.change(), directory.change()], [removed(0), added(1)], "{reliable} {lost_first}");
            directory.on_time(now + patience * 2);
            assert_eq!(directory.change(), None);
            // The first is there again and names it: that is for later, unless it takes it back.
            directory.connected(0);
            directory.heard(0, &said, now);
            assert_eq!(directory.change(), None);
            if reliable {
                let id = SinkId::from_bytes(&sink.sink).unwrap().to_bytes();
                directory.heard(0, &to_host::Body::Withdraw(host::Withdraw { sink: id }), now);
            }
            directory.heard(1, &to_host::Body::Withdraw(host::Withdraw { sink: sink.sink.clone() }), now);
            assert_eq!([directory.change(), directory.change()], [removed(1), added(0).filter(|_| !reliable)]);
            assert_eq!((directory.knows(0), directory.knows(1)), (!reliable, false));
        }
    }

    #[test]
    fn a_host_that_is_lost_wants_nothing_of_what_is_anothers() {
        let (mut directory, now) = (Told::new(2, Duration::from_secs(5)), Duration::from_secs(100));
        let said = to_host::Body::Announce(announce(true));
        (0..2).for_each(|host| directory.heard(host, &said, now));
        assert!(matches!(directory.change(), Some(Change::Added { host: 0, .. })));
        directory.lost(1, now);
        directory.lost(0, now);
        directory.on_time(now + Duration::from_secs(6));
        assert!(matches!(directory.change(), Some(Change::Removed { host: 0, .. })));
        assert_eq!(directory.change(), None);
    }

    #[test]
    fn a_sink_that_closed_while_its_host_was_lost_goes_when_that_has_named_all_and_not_with_another_runtime() {
        let (patience, now) = (Duration::from_secs(5), Duration::from_secs(100));
        let hello = |run: u8| to_host::Body::Hello(host::Hello { run: vec![run; 16], ..host::Hello::default() });
        let snapshot = to_host::Body::Snapshot(host::Snapshot {});
        for same in [true, false] {
            let mut directory = Told::new(1, patience);
            let (stays, closes) = (announce(true), announce(true));
            let said = [&stays, &closes].map(|sink| to_host::Body::Announce(sink.clone()));
            for body in [&hello(1), &said[0], &said[1], &snapshot] {
                directory.heard(0, body, now);
            }
            assert_eq!(std::iter::from_fn(|| directory.change()).count(), 2);
            directory.lost(0, now);
            for body in [&hello(if same { 1 } else { 2 }), &said[0]] {
                directory.heard(0, body, now);
            }
            assert_eq!(directory.change(), None, "it may still be named");
            directory.heard(0, &snapshot, now);
            let gone = Change::Removed { host: 0, sink: SinkId::from_bytes(&closes.sink).unwrap() };
            assert_eq!(directory.change(), same.then(|| gone.clone()));
            // Its session may come back to the other runtime for so long.
            assert_eq!(directory.on_time(now), (!same).then(|| now + patience));
            directory.on_time(now + patience);
            assert_eq!(directory.change(), (!same).then_some(gone));
            assert_eq!((directory.change(), directory.hosts[0].len()), (None, 1));
        }
    }
}
