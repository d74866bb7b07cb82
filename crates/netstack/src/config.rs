//! What an engine is made from.

use std::net::{IpAddr, Ipv6Addr};

use crate::ether::{Mac, Tag};
use crate::ip::{V4_BYTES, V6_BYTES};
use crate::nd;
use crate::path;
use crate::rate::Rate;
use crate::route::{Prefix, Route};
use crate::tcp::TcpConfig;

/// Addresses on a link. Interfaces have the numbers of their places in [`Config::interfaces`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// The device that its frames come from and go to: any number by which the caller knows it.
    pub device: u8,
    /// Its station.
    pub mac: Mac,
    /// The VLAN in which it is, 1 to 4094; `None` for frames without a tag (and those whose tag names no VLAN).
    pub vlan: Option<u16>,
    /// The priority in the tags of what it sends, 0 to 7. Without a VLAN only 0, with which there is no tag.
    pub priority: u8,
    /// The largest IP packet of its link in bytes.
    pub mtu: u16,
    /// Its addresses, each with the prefix of the link. One with an IPv6 address also has the link-local address that
    /// follows from its station.
    pub addresses: Vec<Prefix>,
    /// Groups whose packets it takes. Nobody is told of it: switches that listen to who joins have to be configured.
    pub groups: Vec<IpAddr>,
}

impl Interface {
    /// One on device 0 without a VLAN, with an MTU of 1500 bytes.
    #[must_use]
    pub fn new(mac: Mac, addresses: Vec<Prefix>) -> Self {
        Self { device: 0, mac, vlan: None, priority: 0, mtu: 1500, addresses, groups: Vec::new() }
    }
}

/// How much of everything there may be. All memory for it is taken when the engine is made, but for [`Limits::ports`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Neighbours that are known.
    pub neighbours: usize,
    /// Destinations whose path is known.
    pub paths: usize,
    /// Bound UDP ports.
    pub ports: usize,
    /// Packets that wait for a neighbour, in all.
    pub waiting_packets: usize,
    /// Their bytes, in all.
    pub waiting_bytes: usize,
    /// Packets that wait for one neighbour; a newer one then pushes out the oldest.
    pub waiting_per_neighbour: usize,
    /// Packets that are unfinished, in all.
    pub unfinished_packets: usize,
    /// Their bytes, in all, in whole blocks of 2 KiB per packet.
    pub unfinished_bytes: usize,
    /// Unfinished packets of one source; a newer one then pushes out its oldest, as in all.
    pub source_packets: usize,
    /// Their bytes.
    pub source_bytes: usize,
    /// The smallest payload in bytes of a fragment that is not its packet's last. No link in use cuts smaller ones than
    /// the default.
    pub smallest_fragment: u16,
    /// ICMP errors that are sent.
    pub errors: Rate,
    /// Echo requests that are answered.
    pub echoes: Rate,
    /// After how many nanoseconds a neighbour is asked for the second time; then it doubles.
    pub retry_ns: u64,
}

impl Default for Limits {
    /// 512 neighbours, 1024 paths and ports; 64 packets of 512 KiB wait, 8 per neighbour; 64 packets of 2 MiB are
    /// unfinished, 16 of 1 MiB per source, pieces of at least 256 bytes; 100 errors and 10 000 echoes a second; a second.
    fn default() -> Self {
        Self {
            neighbours: 512,
            paths: 1024,
            ports: 1024,
            waiting_packets: 64,
            waiting_bytes: 512 << 10,
            waiting_per_neighbour: 8,
            unfinished_packets: 64,
            unfinished_bytes: 2 << 20,
            source_packets: 16,
            source_bytes: 1 << 20,
            smallest_fragment: 256,
            errors: Rate { per_second: 100, burst: 20 },
            echoes: Rate { per_second: 10_000, burst: 1000 },
            retry_ns: 1_000_000_000,
        }
    }
}

/// What an engine is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Its interfaces: at least one, at most 64.
    pub interfaces: Vec<Interface>,
    /// Its routes, beside those to the links of its interfaces.
    pub routes: Vec<Route>,
    /// The hop limit of what it sends.
    pub hop_limit: u8,
    /// A number that nobody outside can guess: it decides where packets' numbers begin, and TCP's.
    pub seed: u64,
    /// How much of everything there may be.
    pub limits: Limits,
    /// TCP; `None` for none.
    pub tcp: Option<TcpConfig>,
}

impl Config {
    /// One with these interfaces, no further routes and no TCP.
    #[must_use]
    pub fn new(interfaces: Vec<Interface>, seed: u64) -> Self {
        Self { interfaces, routes: Vec::new(), hop_limit: 64, seed, limits: Limits::default(), tcp: None }
    }
}

/// Why an engine cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// None, or more than 64.
    #[error("an engine has 1 to 64 interfaces, not {0}")]
    Interfaces(usize),
    /// The station is a group's or all zeros.
    #[error("interface {interface}: {mac} is no address of one station")]
    Station {
        /// Which interface.
        interface: usize,
        /// Its station.
        mac: Mac,
    },
    /// The VLAN or the priority cannot be.
    #[error("interface {0}: a VLAN is 1 to 4094, a priority 0 to 7, and a priority needs a VLAN")]
    Vlan(usize),
    /// Another interface has the same VLAN of the same device.
    #[error("interface {0}: another interface has the same device and VLAN")]
    Duplicate(usize),
    /// The MTU is below what its addresses need.
    #[error("interface {interface}: an MTU of {mtu} bytes is below the least, {least}")]
    Mtu {
        /// Which interface.
        interface: usize,
        /// Its MTU.
        mtu: u16,
        /// The least.
        least: u16,
    },
    /// An address that no host can have.
    #[error("interface {interface}: {address} is no address that a host can have")]
    Address {
        /// Which interface.
        interface: usize,
        /// The address.
        address: Prefix,
    },
    /// A route over an interface that is not there, to a gateway of the other family, or one too many.
    #[error("route {0}: its interface is not there, its gateway is of the other family, or there are too many routes")]
    Route(usize),
}

/// An interface as the engine keeps it.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) device: u8,
    pub(crate) mac: Mac,
    pub(crate) vlan: Option<u16>,
    pub(crate) tag: Option<Tag>,
    pub(crate) mtu: u32,
    pub(crate) addresses: Vec<Prefix>,
    pub(crate) groups: Vec<IpAddr>,
}

impl Link {
    /// Checks an interface and makes it ready for use.
    pub(crate) fn new(number: usize, interface: &Interface) -> Result<Self, ConfigError> {
        if !interface.mac.is_station() {
            return Err(ConfigError::Station { interface: number, mac: interface.mac });
        }
        let tagged = interface.vlan.is_some_and(|vlan| (1..=4094).contains(&vlan));
        if interface.vlan.is_some() != tagged || interface.priority > 7 || interface.priority > 0 && !tagged {
            return Err(ConfigError::Vlan(number));
        }
        let mut addresses = interface.addresses.clone();
        let mut groups = interface.groups.clone();
        let six = addresses.iter().any(|prefix| prefix.address.is_ipv6());
        let least = if six { path::V6_LEAST } else { path::V4_LEAST } as u16;
        if interface.mtu < least {
            return Err(ConfigError::Mtu { interface: number, mtu: interface.mtu, least });
        }
        if let Some(prefix) = addresses.iter().find(|prefix| !can_be_ours(prefix)) {
            return Err(ConfigError::Address { interface: number, address: *prefix });
        }
        if six {
            let own = Prefix::new(nd::link_local(interface.mac).into(), 64);
            if addresses.iter().all(|prefix| prefix.address != own.address) {
                addresses.push(own);
            }
            groups.push(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into());
            for prefix in &addresses {
                if let IpAddr::V6(address) = prefix.address {
                    groups.push(nd::group_of(address).into());
                }
            }
        }
        Ok(Self {
            device: interface.device,
            mac: interface.mac,
            vlan: interface.vlan,
            tag: interface.vlan.map(|vlan| Tag { vlan, priority: interface.priority }),
            mtu: u32::from(interface.mtu),
            addresses,
            groups,
        })
    }

    /// Whether an address is one of its own.
    #[inline]
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|prefix| prefix.address == address)
    }

    /// The own address whose link another address is on.
    pub(crate) fn beside(&self, address: IpAddr) -> Option<IpAddr> {
        let on_link = |prefix: &&Prefix| prefix.contains(address) && !prefix.is_edge(address);
        self.addresses.iter().find(on_link).map(|prefix| prefix.address)
    }

    /// Whether an address stands for all hosts of the link.
    pub(crate) fn is_broadcast(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(four) => four.is_broadcast() || self.addresses.iter().any(|prefix| prefix.is_broadcast(address)),
            IpAddr::V6(_) => false,
        }
    }

    /// The own address from which something is sent by way of a neighbour.
    pub(crate) fn source(&self, to: IpAddr, by: IpAddr) -> Option<IpAddr> {
        let local = |address: IpAddr| matches!(address, IpAddr::V6(six) if nd::is_link_local(six));
        let multicast_local =
            |address: IpAddr| matches!(address, IpAddr::V6(six) if six.segments()[0] & 0xff0f == 0xff02);
        let wants_local = local(to) || multicast_local(to);
        let mut of_family =
            self.addresses.iter().map(|prefix| prefix.address).filter(|own| own.is_ipv4() == to.is_ipv4());
        let beside = self.beside(by).filter(|own| local(*own) == wants_local);
        beside.or_else(|| of_family.clone().find(|own| local(*own) == wants_local)).or_else(|| of_family.next())
    }

    /// The header bytes of an IP packet without its fragment header.
    pub(crate) const fn ip_header(to: IpAddr) -> u32 {
        if to.is_ipv4() { V4_BYTES as u32 } else { V6_BYTES as u32 }
    }
}

fn can_be_ours(prefix: &Prefix) -> bool {
    let address = prefix.address;
    let broadcast = matches!(address, IpAddr::V4(four) if four.is_broadcast());
    !(address.is_multicast()
        || address.is_unspecified()
        || address.is_loopback()
        || broadcast
        || prefix.is_edge(address))
}
