//! Where packets go next: prefixes of links and of networks behind gateways, the longest match first.

use std::net::IpAddr;

/// The addresses whose first bits are those of one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    /// An address in it.
    pub address: IpAddr,
    /// How many bits count.
    pub bits: u8,
}

impl Prefix {
    /// A prefix. More bits than the address has count as all.
    #[must_use]
    pub fn new(address: IpAddr, bits: u8) -> Self {
        Self { address, bits: bits.min(width(address)) }
    }

    /// Whether an address lies in it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differing = u32::from(own) ^ u32::from(other);
                differing.checked_shr(32 - u32::from(self.bits.min(32))).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differing = u128::from(own) ^ u128::from(other);
                differing.checked_shr(128 - u32::from(self.bits.min(128))).unwrap_or(0) == 0
            }
            _ => false,
        }
    }

    /// Whether an address stands for all hosts of this link, or for the link itself: no host has it (RFC 919; not in /31
    /// and /32, RFC 3021).
    #[must_use]
    pub fn is_edge(&self, address: IpAddr) -> bool {
        let IpAddr::V4(other) = address else { return false };
        if self.bits > 30 || !self.contains(address) {
            return false;
        }
        let host = u32::MAX >> self.bits;
        matches!(u32::from(other) & host, 0) || u32::from(other) & host == host
    }

    /// Whether an address stands for all hosts of this link.
    #[must_use]
    pub fn is_broadcast(&self, address: IpAddr) -> bool {
        let IpAddr::V4(other) = address else { return false };
        let host = u32::MAX.checked_shr(u32::from(self.bits)).unwrap_or(0);
        self.is_edge(address) && u32::from(other) & host == host
    }
}

impl core::fmt::Display for Prefix {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl core::str::FromStr for Prefix {
    type Err = PrefixError;

    /// Reads `10.0.0.0/24` or `fd00::/64`; without a length it is one address.
    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| PrefixError)?;
        let bits = bits.map_or(Ok(width(address)), str::parse).map_err(|_| PrefixError)?;
        if bits > width(address) { Err(PrefixError) } else { Ok(Self { address, bits }) }
    }
}

/// A text that is no prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a prefix is an IP address, a slash and the number of bits that count, such as 10.0.0.0/24")]
pub struct PrefixError;

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// A way to the addresses of a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// To where.
    pub to: Prefix,
    /// Who passes packets on; `None` if the hosts are on the link themselves.
    pub gateway: Option<IpAddr>,
    /// The interface, by its place in the configuration.
    pub interface: u8,
    /// Of two routes with equally long prefixes the one with the smaller metric is taken.
    pub metric: u32,
}

/// Routes, the longest prefix first.
#[derive(Debug, Clone, Default)]
pub struct Routes {
    routes: Vec<Route>,
}

/// The most routes that a table has.
pub const MAX_ROUTES: usize = 1024;

impl Routes {
    /// Adds a route, in the place of one to the same prefix over the same interface with the same metric. `false` if there are [`MAX_ROUTES`]
    /// already, or if the gateway is of another family than the prefix.
    pub fn add(&mut self, route: Route) -> bool {
        if route.gateway.is_some_and(|gateway| gateway.is_ipv4() != route.to.address.is_ipv4()) {
            return false;
        }
        let same = |old: &&mut Route| {
            old.to.bits == route.to.bits
                && old.to.contains(route.to.address)
                && (old.metric, old.interface) == (route.metric, route.interface)
        };
        if let Some(old) = self.routes.iter_mut().find(same) {
            *old = route;
            return true;
        }
        if self.routes.len() >= MAX_ROUTES {
            return false;
        }
        let order = |route: &Route| (core::cmp::Reverse(route.to.bits), route.metric);
        let at = self.routes.partition_point(|old| order(old) <= order(&route));
        self.routes.insert(at, route);
        true
    }

    /// Takes a route out; whether it was there.
    pub fn remove(&mut self, route: &Route) -> bool {
        let before = self.routes.len();
        self.routes.retain(|old| old != route);
        self.routes.len() < before
    }

    /// The route to an address; with `interface`, over that one alone. Walks the table: its users keep the answer.
    #[must_use]
    pub fn find(&self, to: IpAddr, interface: Option<u8>) -> Option<&Route> {
        let over = |route: &&Route| interface.is_none_or(|interface| route.interface == interface);
        self.routes.iter().filter(over).find(|route| route.to.contains(to))
    }

    /// All routes, in the order in which they are tried.
    #[must_use]
    pub fn all(&self) -> &[Route] {
        &self.routes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn route(to: &str, gateway: Option<&str>, interface: u8, metric: u32) -> Route {
        Route { to: to.parse().unwrap(), gateway: gateway.map(|gateway| gateway.parse().unwrap()), interface, metric }
    }

    #[test]
    fn the_longest_prefix_wins_then_the_metric() {
        let mut routes = Routes::default();
        for route in [
            route("0.0.0.0/0", Some("10.0.0.9"), 0, 5),
            route("10.0.0.0/24", None, 0, 0),
            route("10.0.0.128/25", Some("10.0.0.7"), 1, 9),
            route("0.0.0.0/0", Some("10.0.0.8"), 1, 1),
            route("::/0", Some("fe80::1"), 0, 0),
            route("fd00::/64", None, 1, 0),
        ] {
            assert!(routes.add(route));
        }
        let find =
            |to: &str| routes.find(to.parse().unwrap(), None).map(|r| (r.gateway.map(|g| g.to_string()), r.interface));
        assert_eq!(find("10.0.0.5"), Some((None, 0)));
        assert_eq!(find("10.0.0.200"), Some((Some("10.0.0.7".into()), 1)));
        assert_eq!(find("8.8.8.8"), Some((Some("10.0.0.8".into()), 1)));
        assert_eq!(find("fd00::7"), Some((None, 1)));
        assert_eq!(find("2001:db8::1"), Some((Some("fe80::1".into()), 0)));
        let over_0 = routes.find("8.8.8.8".parse().unwrap(), Some(0)).unwrap();
        assert_eq!((over_0.interface, over_0.metric), (0, 5));
        assert!(!routes.add(route("10.0.0.0/8", Some("fe80::1"), 0, 0)));
        let before = routes.all().len();
        assert!(routes.add(route("10.0.0.129/25", Some("10.0.0.6"), 1, 9)));
        assert_eq!(routes.all().len(), before);
        let gone = route("fd00::/64", None, 1, 0);
        assert!(routes.remove(&gone) && !routes.remove(&gone));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut routes = Routes::default();
        let added = (0..2000u32).filter(|n| routes.add(route(&format!("10.{}.{}.0/24", n / 256, n % 256), None, 0, 0)));
        assert_eq!(added.count(), MAX_ROUTES);
    }

    #[test]
    fn edges_of_a_link() {
        let prefix: Prefix = "10.0.0.77/24".parse().unwrap();
        let edge = |text: &str| (prefix.is_edge(text.parse().unwrap()), prefix.is_broadcast(text.parse().unwrap()));
        assert_eq!([edge("10.0.0.0"), edge("10.0.0.255")], [(true, false), (true, true)]);
        assert_eq!([edge("10.0.0.1"), edge("10.0.1.255")], [(false, false), (false, false)]);
        let pair: Prefix = "10.0.0.0/31".parse().unwrap();
        assert!(!pair.is_edge("10.0.0.1".parse().unwrap()) && !pair.is_broadcast("10.0.0.1".parse().unwrap()));
        assert!("10.0.0.0/33".parse::<Prefix>().is_err() && "x/8".parse::<Prefix>().is_err());
    }

    proptest! {
        #[test]
        fn containment_is_equality_of_the_first_bits(a: u32, b: u32, six_a: u128, six_b: u128, bits in 0u8..=128) {
            let four = |n: u32| IpAddr::from(n.to_be_bytes());
            let six = |n: u128| IpAddr::from(n.to_be_bytes());
            let narrow = bits.min(32);
            let equal = (0..narrow).all(|bit| (a ^ b) >> (31 - bit) & 1 == 0);
            prop_assert_eq!(Prefix::new(four(a), narrow).contains(four(b)), equal);
            let equal = (0..bits).all(|bit| (six_a ^ six_b) >> (127 - bit) & 1 == 0);
            prop_assert_eq!(Prefix::new(six(six_a), bits).contains(six(six_b)), equal);
            prop_assert!(Prefix::new(six(six_a), bits).contains(six(six_a)));
            prop_assert!(!Prefix::new(four(a), 0).contains(six(six_a)));
        }
    }
}
