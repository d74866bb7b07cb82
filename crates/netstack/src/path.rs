//! What is known of the ways to destinations: the largest packet that gets there (RFC 1191, RFC 8201).
//!
//! A destination is known here once something of ours went there; routers' words about others are not listened to. An entry
//! lasts ten minutes from the last lowering, then the link's own MTU is tried again.

use std::net::IpAddr;

use crate::table::Table;

/// The least MTU that is believed of an IPv4 path. RFC 791 allows 68, which no link of today has, and which would make
/// 30 packets out of one; the kernel of Linux draws the line at the same place.
pub const V4_LEAST: u32 = 552;
/// The least MTU that an IPv6 path has (RFC 8200 §5).
pub const V6_LEAST: u32 = 1280;
/// How long a lowered MTU is kept, in nanoseconds (RFC 1191 §6.3).
pub const KEPT_NS: u64 = 600_000_000_000;

/// MTUs that links have, for routers that say only "too big" (RFC 1191 §7.1).
const PLATEAUS: [u32; 9] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 552, 0];

#[derive(Debug)]
struct Known {
    /// The MTU in bytes, and until when it is believed.
    mtu: Option<(u32, u64)>,
    used: u64,
    ident: u32,
}

/// The destinations to which something went.
#[derive(Debug)]
pub(crate) struct Paths {
    known: Table<IpAddr, Known>,
    secret: u64,
    count: u32,
}

impl Paths {
    pub(crate) fn new(capacity: usize, secret: u64) -> Self {
        Self { known: Table::new(capacity, secret), secret, count: 0 }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// The largest packet to a destination over a link with this MTU.
    pub(crate) fn mtu(&self, now: u64, to: IpAddr, link: u32) -> u32 {
        let lowered = self.known.get(&to).and_then(|known| known.mtu).filter(|(_, until)| now < *until);
        lowered.map_or(link, |(mtu, _)| mtu.min(link))
    }

    /// Until when that answer holds, if nobody lowers it.
    pub(crate) fn holds_until(&self, now: u64, to: IpAddr) -> u64 {
        let until = self.known.get(&to).and_then(|known| known.mtu).map_or(u64::MAX, |(_, until)| until);
        if until > now { until } else { u64::MAX }
    }

    /// Something of ours goes there. The table being full, the destination that was not used for longest is forgotten, of
    /// those with nothing learnt first.
    pub(crate) fn touch(&mut self, now: u64, to: IpAddr) {
        if let Some(known) = self.known.get_mut(&to) {
            known.used = now;
            return;
        }
        if self.known.len() == self.known.capacity() {
            let lowered = |known: &Known| known.mtu.is_some_and(|(_, until)| now < until);
            let oldest = self.known.iter().min_by_key(|(_, _, known)| (lowered(known), known.used));
            if let Some(place) = oldest.map(|(place, _, _)| place) {
                self.known.remove(place);
            }
        }
        let ident = self.scrambled(to);
        self.known.insert(to, Known { mtu: None, used: now, ident });
    }

    /// A router says that a packet of `sent` bytes was too large for a link of `mtu` bytes. Whether that is so plausible
    /// that it was taken: something went there, the packet was larger than the link, and the link is none that cannot be.
    pub(crate) fn lower(&mut self, now: u64, to: IpAddr, sent: u32, mtu: u32) -> bool {
        let least = if to.is_ipv4() { V4_LEAST } else { V6_LEAST };
        let mtu = if mtu == 0 && to.is_ipv4() {
            PLATEAUS.into_iter().find(|plateau| *plateau < sent).unwrap_or(0)
        } else {
            mtu
        };
        if mtu < least || sent <= mtu {
            return false;
        }
        let Some(known) = self.known.get_mut(&to) else { return false };
        if known.mtu.is_some_and(|(old, until)| now < until && old < mtu) {
            return false;
        }
        known.mtu = Some((mtu, now.saturating_add(KEPT_NS)));
        true
    }

    /// Whether something of ours went there lately.
    pub(crate) fn is_known(&self, to: IpAddr) -> bool {
        self.known.find(&to).is_some()
    }

    /// A number for a packet that goes in pieces: another one each time for one destination, from a start that nobody
    /// outside knows (RFC 7739).
    pub(crate) fn ident(&mut self, to: IpAddr) -> u32 {
        if let Some(known) = self.known.get_mut(&to) {
            known.ident = known.ident.wrapping_add(1);
            return known.ident;
        }
        self.scrambled(to)
    }

    fn scrambled(&mut self, to: IpAddr) -> u32 {
        use std::hash::BuildHasher;
        self.count = self.count.wrapping_add(1);
        let start = crate::table::Secret(!self.secret).hash_one(to) as u32;
        start.wrapping_add(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn mtus_are_lowered_for_known_destinations_and_forgotten_in_time() {
        let mut paths = Paths::new(8, 1);
        let to = ip("10.0.0.1");
        assert!(!paths.lower(0, to, 1500, 1400));
        paths.touch(0, to);
        assert!(paths.lower(0, to, 1500, 1400));
        assert_eq!(
            (paths.mtu(1, to, 1500), paths.mtu(1, to, 1200), paths.mtu(1, ip("10.0.0.2"), 1500)),
            (1400, 1200, 1500)
        );
        assert_eq!((paths.mtu(KEPT_NS, to, 1500), paths.holds_until(1, to)), (1500, KEPT_NS));
        // Not raised by a router, nor for a packet that would have fitted, nor to what cannot be.
        for (sent, mtu) in [(1500, 1450), (1399, 1399), (1500, 551), (1500, 1500)] {
            assert!(!paths.lower(1, to, sent, mtu), "{sent} {mtu}");
        }
        assert!(paths.lower(1, to, 1400, 0));
        assert_eq!(paths.mtu(2, to, 1500), 1006);
        let six = ip("fd00::1");
        paths.touch(0, six);
        assert!(!paths.lower(0, six, 1500, 1279) && !paths.lower(0, six, 1500, 0) && paths.lower(0, six, 1500, 1280));
    }

    #[test]
    fn the_table_is_bounded_and_keeps_what_was_learnt() {
        let mut paths = Paths::new(4, 1);
        paths.touch(0, ip("10.0.0.1"));
        assert!(paths.lower(0, ip("10.0.0.1"), 1500, 1400));
        for host in 2..100 {
            paths.touch(u64::from(host), IpAddr::from([10, 0, 0, host]));
        }
        assert_eq!((paths.len(), paths.mtu(100, ip("10.0.0.1"), 1500)), (4, 1400));
        assert!(paths.is_known(ip("10.0.0.99")) && !paths.is_known(ip("10.0.0.50")));
    }

    #[test]
    fn numbers_of_packets_do_not_repeat_soon() {
        let mut paths = Paths::new(4, 1);
        paths.touch(0, ip("10.0.0.1"));
        for to in ["10.0.0.1", "10.0.0.2"] {
            let mut idents: Vec<u16> = (0..1000).map(|_| paths.ident(ip(to)) as u16).collect();
            idents.sort_unstable();
            idents.dedup();
            assert_eq!(idents.len(), 1000);
        }
    }
}
