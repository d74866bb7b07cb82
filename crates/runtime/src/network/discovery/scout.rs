//! Scouting: each runtime says now and then, by multicast on the interfaces that the configuration names, that it is there and
//! at which port its directory listens. Nobody answers, and no address is in what is said: it is where the datagram came from, on
//! that interface. So nothing that a stranger sends can make this host send anything anywhere else.

use crate::network::NetworkError;
use rustix::event::{PollFd, PollFlags, Timespec};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a beacon begins with: its kind and version.
const MAGIC: [u8; 8] = *b"INSANEd1";

/// The longest beacon.
const MAX_BEACON: usize = 8 + 16 + 2 + 1 + crate::config::MAX_REALM;

/// How often it is said: at first, and later.
const OFTEN: Duration = Duration::from_millis(500);
const SELDOM: Duration = Duration::from_secs(2);

/// How many times it is said often.
const OFTEN_COUNT: u32 = 10;

/// The least time between two beacons, when strangers ask for more by being new.
const LEAST: Duration = Duration::from_millis(100);

/// The most strangers that are remembered as not new.
const MAX_KNOWN: usize = 1024;

/// "I am here."
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Beacon {
    /// The sender's run.
    pub(crate) run: u128,
    /// The port that its directory listens on, at the address that the beacon comes from.
    pub(crate) port: u16,
    /// Its realm.
    pub(crate) realm: String,
}

impl Beacon {
    /// Its bytes: magic, run, port, length of the realm, realm; little-endian.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.run.to_le_bytes());
        bytes.extend(self.port.to_le_bytes());
        bytes.push(u8::try_from(self.realm.len()).unwrap_or(u8::MAX));
        bytes.extend(self.realm.as_bytes());
        bytes
    }

    /// `None`: these bytes are no beacon.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (run, rest) = rest.split_first_chunk::<16>()?;
        let (port, rest) = rest.split_first_chunk::<2>()?;
        let (len, realm) = rest.split_first()?;
        let port = u16::from_le_bytes(*port);
        let fits = usize::from(*len) == realm.len() && realm.len() <= crate::config::MAX_REALM && port != 0;
        let realm = fits.then(|| std::str::from_utf8(realm).ok()).flatten()?;
        Some(Self { run: u128::from_le_bytes(*run), port, realm: realm.to_owned() })
    }
}

/// What has been sent and heard.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sent: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) heard: AtomicU64,
    pub(crate) refused: AtomicU64,
}

/// One interface.
#[derive(Debug)]
struct Interface {
    name: String,
    /// Bound to the interface and the group.
    hears: Socket,
    /// Bound to the interface, connected to the group.
    says: Socket,
    /// The port of the directory at this interface's address; without one the host is not announced here.
    port: Option<u16>,
    own: Ipv4Addr,
}

impl Interface {
    fn open(name: &str, group: SocketAddrV4, listen: &[SocketAddr]) -> std::io::Result<Self> {
        let socket = || -> std::io::Result<Socket> {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
            // First of all: nothing must ever leave by another interface.
            socket.bind_device(Some(name.as_bytes()))?;
            socket.set_nonblocking(true)?;
            socket.set_multicast_ttl_v4(1)?;
            Ok(socket)
        };
        let hears = socket()?;
        let index = rustix::net::netdevice::name_to_index(&hears, name)?;
        hears.set_reuse_address(true)?;
        hears.bind(&SocketAddr::V4(group).into())?;
        hears.join_multicast_v4_n(group.ip(), &InterfaceIndexOrAddress::Index(index))?;
        let says = socket()?;
        says.connect(&SocketAddr::V4(group).into())?;
        let Some(own) = says.local_addr()?.as_socket_ipv4().map(|a| *a.ip()) else {
            return Err(std::io::Error::other("the interface has no IPv4 address"));
        };
        let port = listen.iter().find(|l| l.ip() == IpAddr::V4(own)).map(SocketAddr::port);
        if port.is_none() {
            tracing::warn!(interface = name, %own, "scouting: the directory does not listen at this interface's address");
        }
        Ok(Self { name: name.to_owned(), hears, says, port, own })
    }
}

/// The sockets of all named interfaces.
#[derive(Debug)]
pub(crate) struct Scout {
    interfaces: Vec<Interface>,
    run: u128,
    realm: String,
}

/// Somebody was heard: the interface, who, and where its directory listens.
pub(crate) type Sighting = (String, u128, SocketAddr);

impl Scout {
    /// Opens a pair of sockets on each interface.
    pub(crate) fn open(
        names: &[String],
        group: SocketAddrV4,
        listen: &[SocketAddr],
        run: u128,
        realm: &str,
    ) -> Result<Self, NetworkError> {
        let open = |name: &String| {
            Interface::open(name, group, listen).map_err(|source| NetworkError::Scouting { name: name.clone(), source })
        };
        let interfaces = names.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { interfaces, run, realm: realm.to_owned() })
    }

    /// The interfaces by their addresses.
    pub(crate) fn addresses(&self) -> Vec<(IpAddr, String)> {
        self.interfaces.iter().map(|i| (i.own.into(), i.name.clone())).collect()
    }

    /// Says and hears until it is told to stop, at the latest half a second later.
    pub(crate) fn run(self, stop: &AtomicBool, counts: &Counts, mut sighted: impl FnMut(Sighting)) {
        let mut known = BTreeSet::new();
        let (mut said, mut last, mut due) = (0u32, None::<Instant>, Instant::now());
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now >= due {
                self.say(counts);
                said = said.saturating_add(1);
                last = Some(now);
                due = now + if said < OFTEN_COUNT { OFTEN } else { SELDOM };
            }
            let wait = due.saturating_duration_since(now).min(Duration::from_millis(500));
            let mut fds: Vec<PollFd<'_>> =
                self.interfaces.iter().map(|i| PollFd::new(&i.hears, PollFlags::IN)).collect();
            let _ = rustix::event::poll(&mut fds, Timespec::try_from(wait).ok().as_ref());
            for interface in &self.interfaces {
                let new = self.hear(interface, counts, &mut known, &mut sighted);
                if new {
                    // It is to hear of this one without waiting long.
                    due = due.min(last.map_or(now, |last| last + LEAST).max(now));
                }
            }
        }
    }

    fn say(&self, counts: &Counts) {
        for interface in &self.interfaces {
            let Some(port) = interface.port else { continue };
            let beacon = Beacon { run: self.run, port, realm: self.realm.clone() };
            let sent = interface.says.send(&beacon.encode()).is_ok();
            if sent { &counts.sent } else { &counts.failed }.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes what has come, a bounded number of datagrams. Whether somebody new is among them.
    fn hear(
        &self,
        interface: &Interface,
        counts: &Counts,
        known: &mut BTreeSet<(u128, SocketAddr)>,
        sighted: &mut impl FnMut(Sighting),
    ) -> bool {
        let mut new = false;
        let mut bytes = [0u8; MAX_BEACON + 1];
        for _ in 0..64 {
            let (len, from) =
                match rustix::net::recvfrom(&interface.hears, &mut bytes[..], rustix::net::RecvFlags::empty()) {
                    Ok((len, _, from)) => (len, from.and_then(|from| SocketAddr::try_from(from).ok())),
                    Err(_) => break,
                };
            counts.heard.fetch_add(1, Ordering::Relaxed);
            let beacon = Beacon::decode(&bytes[..len.min(bytes.len())]).filter(|b| b.realm == self.realm);
            let (Some(beacon), Some(from)) = (beacon, from) else {
                counts.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let at = SocketAddr::new(from.ip(), beacon.port);
            let own = beacon.run == self.run;
            if own || (from.ip() == IpAddr::V4(interface.own) && Some(beacon.port) == interface.port) {
                continue;
            }
            if known.len() < MAX_KNOWN {
                new |= known.insert((beacon.run, at));
            }
            sighted((interface.name.clone(), beacon.run, at));
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn beacons_come_back_the_same(run: u128, port in 1u16.., realm in "[a-z]{1,64}") {
            let beacon = Beacon { run, port, realm };
            prop_assert!(beacon.encode().len() <= MAX_BEACON);
            prop_assert_eq!(Beacon::decode(&beacon.encode()), Some(beacon));
        }

        #[test]
        fn other_bytes_are_refused_or_mean_themselves(mut bytes: Vec<u8>, magic: bool) {
            if magic {
                bytes.splice(0..0, MAGIC);
            }
            if let Some(beacon) = Beacon::decode(&bytes) {
                prop_assert_eq!(beacon.encode(), bytes);
            }
        }
    }

    #[test]
    fn a_beacon_that_is_cut_or_too_long_is_none() {
        let bytes = Beacon { run: 7, port: 9, realm: "lab".into() }.encode();
        (0..bytes.len()).for_each(|len| assert_eq!(Beacon::decode(&bytes[..len]), None));
        assert_eq!(Beacon::decode(&[bytes.clone(), vec![0]].concat()), None);
        assert_eq!(Beacon::decode(&Beacon { run: 7, port: 0, realm: "lab".into() }.encode()), None);
    }
}
