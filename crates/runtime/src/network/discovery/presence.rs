//! Which runtimes the directory says are there: values in, changes out; no input, output or clock of its own. Everything that
//! comes in is a stranger's: bounded, checked, and refused with a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// The most hosts that the directory may name.
pub(crate) const MAX_HOSTS: usize = 256;

/// The most entries that one session may hold: a host that begins anew has two for a while.
const MAX_ENTRIES: usize = 2 * MAX_HOSTS;

/// The longest key of an entry: prefix, realm, run, address.
const MAX_KEY: usize = 192;

/// What the keys of this version begin with.
const PREFIX: &str = "insane/directory/1";

/// That one runtime is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    /// Drawn at random when it began.
    pub(crate) run: u128,
    /// The address of its datapath.
    pub(crate) address: SocketAddr,
}

impl Entry {
    /// Its key in the directory.
    pub(crate) fn key(self, realm: &str) -> String {
        format!("{PREFIX}/{realm}/{:032x}/{}", self.run, self.address)
    }

    /// The entry of a key.
    pub(crate) fn parse(key: &str, realm: &str) -> Result<Self, &'static str> {
        if key.len() > MAX_KEY {
            return Err("a key that is too long");
        }
        let rest = key.strip_prefix(PREFIX).and_then(|k| k.strip_prefix('/')?.strip_prefix(realm)?.strip_prefix('/'));
        let (run, address) = rest.and_then(|rest| rest.split_once('/')).ok_or("a key of another kind")?;
        let digits = run.len() == 32 && run.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase());
        let run = digits.then(|| u128::from_str_radix(run, 16).ok()).flatten().ok_or("a run that is no number")?;
        let address = address.parse().map_err(|_| "an address that is none")?;
        Ok(Self { run, address })
    }
}

/// The expression that all keys of a realm fit.
pub(crate) fn all_keys(realm: &str) -> String {
    format!("{PREFIX}/{realm}/*/*")
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Presence {
    realm: String,
    own: Entry,
    /// By the session that told of them.
    sessions: BTreeMap<u64, BTreeSet<Entry>>,
    /// The hosts that others have been told of.
    told: BTreeSet<SocketAddr>,
    /// Those that were not let in.
    denied: BTreeSet<SocketAddr>,
    /// What was refused, and why last.
    pub(crate) refused: u64,
    pub(crate) reason: String,
}

impl Presence {
    pub(crate) fn new(realm: String, own: Entry) -> Self {
        Self {
            realm,
            own,
            sessions: BTreeMap::new(),
            told: BTreeSet::new(),
            denied: BTreeSet::new(),
            refused: 0,
            reason: String::new(),
        }
    }

    /// Notes that something was refused.
    pub(crate) fn refuse(&mut self, what: &dyn std::fmt::Display, why: &str) {
        self.refused += 1;
        let what: String = what.to_string().chars().take(80).filter(|c| !c.is_control()).collect();
        self.reason = format!("{what}: {why}");
    }

    /// A session says that an entry is there, or no more.
    pub(crate) fn hear(&mut self, session: u64, key: &str, there: bool) {
        let checked = Entry::parse(key, &self.realm).and_then(|entry| self.check(session, entry, there));
        match checked {
            Ok(None) => {}
            Ok(Some(entry)) if there => {
                self.sessions.entry(session).or_default().insert(entry);
            }
            Ok(Some(entry)) => {
                self.sessions.get_mut(&session).map(|entries| entries.remove(&entry));
            }
            Err(why) => self.refuse(&key, why),
        }
    }

    /// `None`: it is this runtime's own.
    fn check(&self, session: u64, entry: Entry, there: bool) -> Result<Option<Entry>, &'static str> {
        if entry.run == self.own.run {
            return Ok(None);
        }
        if !there {
            return Ok(Some(entry));
        }
        let (ip, own) = (entry.address.ip(), self.own.address);
        let nowhere = match ip {
            IpAddr::V4(ip) => ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast(),
            IpAddr::V6(ip) => ip.is_unspecified() || ip.is_multicast(),
        };
        if nowhere || entry.address.port() == 0 {
            return Err("no address of a host");
        }
        if entry.address == own {
            return Err("this host's own address");
        }
        if ip.is_ipv4() != own.is_ipv4() {
            return Err("not of the family of network.listen");
        }
        if ip.is_loopback() != own.ip().is_loopback() {
            return Err("not to be reached from network.listen");
        }
        let entries = self.sessions.get(&session);
        if entries.is_some_and(|t| t.len() >= MAX_ENTRIES && !t.contains(&entry)) {
            return Err("too many entries of one session");
        }
        let hosts = self.hosts();
        if hosts.len() >= MAX_HOSTS && !hosts.contains(&entry.address) {
            return Err("too many hosts");
        }
        Ok(Some(entry))
    }

    /// A session has ended: what it told of is told by the others alone.
    pub(crate) fn forget(&mut self, session: u64) {
        self.sessions.remove(&session);
    }

    fn hosts(&self) -> BTreeSet<SocketAddr> {
        self.sessions.values().flatten().map(|entry| entry.address).collect()
    }

    /// How many hosts are there.
    pub(crate) fn len(&self) -> usize {
        self.told.len()
    }

    /// What has changed since the last time: hosts found that `admit` lets in, and hosts gone. One that is not let in is
    /// looked at again the next time.
    pub(crate) fn changes(
        &mut self,
        mut admit: impl FnMut(SocketAddr) -> Result<(), String>,
    ) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
        let hosts = self.hosts();
        let gone: Vec<_> = self.told.difference(&hosts).copied().collect();
        self.told.retain(|address| hosts.contains(address));
        self.denied.retain(|address| hosts.contains(address));
        let mut found = Vec::new();
        for address in hosts.difference(&self.told.clone()) {
            match admit(*address) {
                Ok(()) => {
                    self.denied.remove(address);
                    found.push(*address);
                }
                Err(why) if self.denied.insert(*address) => self.refuse(address, &why),
                Err(_) => {}
            }
        }
        self.told.extend(&found);
        (found, gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn presence() -> Presence {
        Presence::new("lab".into(), Entry { run: 1, address: at("10.0.0.1:7400") })
    }

    fn key(run: u128, address: &str) -> String {
        Entry { run, address: at(address) }.key("lab")
    }

    #[test]
    fn a_host_is_there_as_long_as_any_session_says_so() {
        let mut presence = presence();
        presence.hear(1, &key(2, "10.0.0.2:7400"), true);
        presence.hear(2, &key(2, "10.0.0.2:7400"), true);
        assert_eq!(presence.changes(|_| Ok(())), (vec![at("10.0.0.2:7400")], vec![]));
        assert_eq!(presence.changes(|_| Ok(())), (vec![], vec![]));
        presence.hear(1, &key(2, "10.0.0.2:7400"), false);
        assert_eq!(presence.changes(|_| Ok(())), (vec![], vec![]));
        // It begins anew before its old entry has gone.
        presence.hear(1, &key(3, "10.0.0.2:7400"), true);
        presence.forget(2);
        assert_eq!(presence.changes(|_| Ok(())), (vec![], vec![]));
        presence.forget(1);
        assert_eq!(presence.changes(|_| Ok(())), (vec![], vec![at("10.0.0.2:7400")]));
    }

    #[test]
    fn what_is_no_host_is_refused_with_a_reason() {
        for (wrong, reason) in [
            (key(2, "0.0.0.0:7400"), "no address"),
            (key(2, "224.0.0.1:7400"), "no address"),
            (key(2, "255.255.255.255:7400"), "no address"),
            (key(2, "10.0.0.2:0"), "no address"),
            (key(2, "10.0.0.1:7400"), "own address"),
            (key(2, "[fd00::1]:7400"), "family"),
            (key(2, "127.0.0.1:7400"), "not to be reached"),
            (key(2, "10.0.0.2:7400").replace("lab", "elsewhere"), "another kind"),
            (key(2, "10.0.0.2:7400").replace('2', "g"), "no number"),
            (key(2, "10.0.0.2:7400") + "/more", "an address that is none"),
            ("x".repeat(500), "too long"),
        ] {
            let mut presence = presence();
            presence.hear(1, &wrong, true);
            assert_eq!(presence.refused, 1, "{wrong}");
            assert!(presence.reason.contains(reason), "{wrong}: {}", presence.reason);
            assert_eq!(presence.changes(|_| Ok(())), (vec![], vec![]));
        }
        // Its own is neither.
        let mut presence = presence();
        presence.hear(1, &key(1, "10.0.0.1:7400"), true);
        assert_eq!((presence.refused, presence.changes(|_| Ok(()))), (0, (vec![], vec![])));
    }

    #[test]
    fn one_that_cannot_be_reached_is_looked_at_again() {
        let mut presence = presence();
        presence.hear(1, &key(2, "10.0.0.2:7400"), true);
        for _ in 0..3 {
            assert_eq!(presence.changes(|_| Err("no route".into())), (vec![], vec![]));
        }
        assert_eq!(presence.refused, 1);
        assert!(presence.reason.contains("no route"));
        assert_eq!(presence.changes(|_| Ok(())).0.len(), 1);
    }

    #[test]
    fn a_flood_is_bounded() {
        let mut presence = presence();
        for run in 0..100_000u32 {
            let ip = std::net::Ipv4Addr::from(0x0a01_0000 + run);
            presence.hear(u64::from(run % 3), &key(2 + u128::from(run), &format!("{ip}:7400")), true);
        }
        assert_eq!(presence.changes(|_| Ok(())).0.len(), MAX_HOSTS);
        assert_eq!(presence.refused, 100_000 - MAX_HOSTS as u64);
        // Many runs of one host are bounded too.
        (0..10_000).for_each(|run| presence.hear(1, &key(1_000_000 + run, "10.1.0.1:7400"), true));
        assert!(presence.sessions.values().all(|entries| entries.len() <= MAX_ENTRIES));
    }

    proptest! {
        #[test]
        fn any_key_is_refused_or_comes_back_the_same(key in "\\PC{0,220}", run: u128, ip: [u8; 4], port: u16) {
            if let Ok(entry) = Entry::parse(&key, "lab") {
                prop_assert_eq!(entry.key("lab"), key);
            }
            let entry = Entry { run, address: SocketAddr::from((ip, port)) };
            prop_assert_eq!(Entry::parse(&entry.key("lab"), "lab"), Ok(entry));
        }
    }
}
