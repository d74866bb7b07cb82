//! The ports of fragmented packets: only the first fragment has them, all of them should go the same way.

use crate::parse::{Address, Flow, Fragment};
use crate::table::{Table, Words};
use crate::time::{Span, Time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    src: Address,
    dst: Address,
    proto: u8,
    id: u32,
}

impl Words for Key {
    fn words(&self) -> [u64; 5] {
        let (src, dst) = (self.src.bits, self.dst.bits);
        let rest = u64::from(self.id) << 16 | u64::from(self.proto) << 1 | u64::from(self.src.v6);
        [(src >> 64) as u64, src as u64, (dst >> 64) as u64, dst as u64, rest]
    }
}

/// Remembers the ports of 1024 packets that are in pieces, each for at most 30 s (RFC 8200 §4.5 allows 60 s of
/// reassembly; what is not complete by then is lost anyway).
#[derive(Clone, Debug)]
pub(crate) struct Fragments {
    table: Table<Key, (u16, u16)>,
    /// Later fragments that were given the ports of their first.
    pub(crate) resolved: u64,
    /// Later fragments whose first was not seen before.
    pub(crate) unresolved: u64,
}

impl Fragments {
    pub(crate) const fn new(hash_key: [u64; 2]) -> Self {
        Self { table: Table::new(256, Span::from_secs(30), hash_key), resolved: 0, unresolved: 0 }
    }

    /// Learns the ports of a first fragment, fills in those of a later one.
    pub(crate) fn resolve(&mut self, now: Time, flow: &mut Flow) {
        let key = Key { src: flow.src, dst: flow.dst, proto: flow.proto, id: flow.fragment_id };
        match (flow.fragment, flow.ports) {
            (Fragment::First, Some(ports)) => self.table.insert(now, key, ports),
            (Fragment::Later, None) => {
                flow.ports = self.table.get(now, &key).copied();
                match flow.ports {
                    Some(_) => self.resolved += 1,
                    None => self.unresolved += 1,
                }
            }
            _ => {}
        }
    }
}
