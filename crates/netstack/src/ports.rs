//! Which UDP ports are bound, and by whom.

use std::net::IpAddr;

/// A bound port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Binding(pub(crate) u32);

/// Why a port cannot be bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Somebody has bound it, for this address or for all.
    #[error("port {0} is bound already")]
    InUse(u16),
    /// No interface has this address.
    #[error("{0} is no address of an interface")]
    NotOurs(IpAddr),
    /// There are as many as the configuration allows, or no port is free.
    #[error("no further port can be bound: the limit is reached")]
    Full,
}

#[derive(Debug, Clone, Copy)]
struct Bound {
    port: u16,
    address: Option<IpAddr>,
    binding: Binding,
}

/// The ports that the system chooses from (RFC 6335 §6).
const DYNAMIC: core::ops::RangeInclusive<u16> = 49_152..=65_535;

#[derive(Debug)]
pub(crate) struct Ports {
    /// By port.
    bound: Vec<Bound>,
    limit: usize,
    next: u32,
    dynamic: u16,
}

impl Ports {
    pub(crate) fn new(limit: usize, seed: u64) -> Self {
        let dynamic = DYNAMIC.start() + (seed % 16_384) as u16;
        Self { bound: Vec::new(), limit, next: 0, dynamic }
    }

    fn of_port(&self, port: u16) -> &[Bound] {
        let start = self.bound.partition_point(|bound| bound.port < port);
        let rest = self.bound.get(start..).unwrap_or(&[]);
        let len = rest.iter().take_while(|bound| bound.port == port).count();
        rest.get(..len).unwrap_or(&[])
    }

    /// Binds a port; 0 stands for any that is free.
    pub(crate) fn bind(&mut self, address: Option<IpAddr>, port: u16) -> Result<(Binding, u16), BindError> {
        if self.bound.len() >= self.limit {
            return Err(BindError::Full);
        }
        let clashes = |port: u16| {
            let same = |bound: &Bound| bound.address.is_none() || address.is_none() || bound.address == address;
            self.of_port(port).iter().any(same)
        };
        let port = if port == 0 {
            let count = DYNAMIC.len() as u16;
            let nth = |n: u16| DYNAMIC.start() + (self.dynamic - DYNAMIC.start() + n) % count;
            (0..count).map(nth).find(|port| !clashes(*port)).ok_or(BindError::Full)?
        } else if clashes(port) {
            return Err(BindError::InUse(port));
        } else {
            port
        };
        if DYNAMIC.contains(&port) {
            self.dynamic = if port == u16::MAX { *DYNAMIC.start() } else { port + 1 };
        }
        self.next = self.next.wrapping_add(1);
        let binding = Binding(self.next);
        let at = self.bound.partition_point(|bound| bound.port < port);
        self.bound.insert(at, Bound { port, address, binding });
        Ok((binding, port))
    }

    pub(crate) fn unbind(&mut self, binding: Binding) -> bool {
        let before = self.bound.len();
        self.bound.retain(|bound| bound.binding != binding);
        self.bound.len() < before
    }

    /// Who has bound a port for an address.
    #[inline]
    pub(crate) fn find(&self, address: IpAddr, port: u16) -> Option<Binding> {
        let bound = self.of_port(port).iter();
        bound.filter(|bound| bound.address.is_none_or(|own| own == address)).map(|bound| bound.binding).next()
    }

    /// Who has bound a port for a group's or for all hosts' packets: whoever has bound it for all addresses, else the first.
    pub(crate) fn find_any(&self, port: u16) -> Option<Binding> {
        let bound = self.of_port(port);
        bound.iter().find(|bound| bound.address.is_none()).or(bound.first()).map(|bound| bound.binding)
    }

    pub(crate) fn get(&self, binding: Binding) -> Option<(Option<IpAddr>, u16)> {
        self.bound.iter().find(|bound| bound.binding == binding).map(|bound| (bound.address, bound.port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_bound_once_for_an_address() {
        let mut ports = Ports::new(4, 1);
        let [a, b] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let (first, _) = ports.bind(Some(a), 7).unwrap();
        let (second, _) = ports.bind(Some(b), 7).unwrap();
        assert_eq!(ports.bind(None, 7), Err(BindError::InUse(7)));
        assert_eq!(ports.bind(Some(a), 7), Err(BindError::InUse(7)));
        let (all, _) = ports.bind(None, 9).unwrap();
        assert_eq!([ports.find(a, 7), ports.find(b, 7), ports.find(a, 9)], [first, second, all].map(Some));
        assert_eq!((ports.find(a, 8), ports.get(second)), (None, Some((Some(b), 7))));
        assert!(ports.unbind(first) && !ports.unbind(first) && ports.find(a, 7).is_none());
        let (_, one) = ports.bind(None, 0).unwrap();
        assert!(DYNAMIC.contains(&one));
        let (_, two) = ports.bind(None, 0).unwrap();
        assert_ne!(one, two);
        assert_eq!(ports.bind(None, 0), Err(BindError::Full));
    }
}
