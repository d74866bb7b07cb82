//! What anyone on the network may say of runtimes, taken in without a network: for fuzzing.

use super::presence::{self, Entry, Presence};
use super::scout::Beacon;
use std::net::SocketAddr;

/// The most hosts that may be there.
pub const MAX_HOSTS: usize = presence::MAX_HOSTS;

/// The most characters of a reason: those of what was refused, and why.
pub const MAX_REASON: usize = 80 + 64;

const REALM: &str = "lab";

/// What a beacon says: its port, and the bytes by which this runtime would say the same. `None`: it is none.
#[must_use]
pub fn beacon(bytes: &[u8]) -> Option<(u16, Vec<u8>)> {
    Beacon::decode(bytes).map(|beacon| (beacon.port, beacon.encode()))
}

/// The key of an entry.
#[must_use]
pub fn key(run: u128, address: SocketAddr) -> String {
    Entry { run, address }.key(REALM)
}

/// Which runtimes a directory says are there.
#[derive(Debug)]
pub struct Heard(Presence);

impl Heard {
    /// What a runtime of this run and address has heard at first.
    #[must_use]
    pub fn new(run: u128, address: SocketAddr) -> Self {
        Self(Presence::new(REALM.into(), Entry { run, address }))
    }

    /// A session says that an entry is there, or no more.
    pub fn hear(&mut self, session: u64, key: &str, there: bool) {
        self.0.hear(session, key, there);
    }

    /// A session has ended.
    pub fn forget(&mut self, session: u64) {
        self.0.forget(session);
    }

    /// The hosts that are new, of those that `admits` lets in, and those that are gone.
    pub fn changes(&mut self, admits: impl Fn(SocketAddr) -> bool) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
        self.0.changes(|address| if admits(address) { Ok(()) } else { Err("no route".into()) })
    }

    /// How many are there.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How much was refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.0.refused
    }

    /// What was refused last, and why.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.0.reason
    }
}
