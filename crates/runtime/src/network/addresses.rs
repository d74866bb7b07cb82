//! Whose an address is.

use insane_datapath::Address;
use std::cell::Cell;
use std::collections::HashMap;

/// Hosts by port and address there. Addresses come from the wire, so the hash is keyed and takes its time; most frames are of the
/// host that the one before was of, and that is known without it.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    all: HashMap<(usize, Address), usize>,
    last: Cell<Option<((usize, Address), usize)>>,
}

impl Addresses {
    /// The host's place.
    pub(crate) fn find(&self, port: usize, address: Address) -> Option<usize> {
        let asked = (port, address);
        if let Some((_, host)) = self.last.get().filter(|(last, _)| *last == asked) {
            return Some(host);
        }
        let host = *self.all.get(&asked)?;
        self.last.set(Some((asked, host)));
        Some(host)
    }

    pub(crate) fn insert(&mut self, port: usize, address: Address, host: usize) {
        self.last.take();
        self.all.insert((port, address), host);
    }

    /// Forgets a host's addresses: at one port, or at all.
    pub(crate) fn forget(&mut self, host: usize, port: Option<usize>) {
        self.last.take();
        self.all.retain(|(at, _), place| *place != host || port.is_some_and(|port| *at != port));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_last_is_forgotten_with_its_host() {
        let [one, other] = [1, 2].map(|n| Address::Ip(([10, 0, 0, n], 7400).into()));
        let mut addresses = Addresses::default();
        addresses.insert(0, one, 7);
        addresses.insert(1, one, 8);
        addresses.insert(1, other, 7);
        let all = |addresses: &Addresses| [(0, one), (0, one), (1, one), (1, other)].map(|(p, a)| addresses.find(p, a));
        assert_eq!(all(&addresses), [Some(7), Some(7), Some(8), Some(7)]);
        addresses.forget(7, Some(1));
        assert_eq!(all(&addresses), [Some(7), Some(7), Some(8), None]);
        addresses.insert(0, one, 9);
        assert_eq!(all(&addresses), [Some(9), Some(9), Some(8), None]);
        addresses.forget(8, None);
        assert_eq!(all(&addresses), [Some(9), Some(9), None, None]);
    }
}
