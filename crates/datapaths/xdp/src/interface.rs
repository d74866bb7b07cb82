//! What is known of an interface and told to it: device requests and group memberships, by `ioctl` and `setsockopt`.
//!
//! Invariants:
//! - `INV-IF-1` A request's structure is the C library's, filled with a name that ends in a zero, and lives through the call;
//!   which field of its union is read follows from the request that filled it.
//! - `INV-IF-2` The memory that an ethtool request points to is a `repr(C)` structure of the size that its command has.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

const GET_DRIVER: u32 = 0x03;
const GET_FLAGS: u32 = 0x25;
/// Of the flags: tags are taken off frames that come.
const TAKES_TAGS_OFF: u32 = 1 << 8;
const GET_CHANNELS: u32 = 0x3c;
const SIOCETHTOOL: libc::c_ulong = 0x8946;

#[repr(C)]
struct Driver {
    command: u32,
    name: [u8; 32],
    /// Versions, the bus, and numbers of no interest here.
    rest: [u8; 32 + 32 + 32 + 32 + 12 + 20],
}

#[repr(C)]
struct Flags {
    command: u32,
    flags: u32,
}

#[repr(C)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    send: u32,
    other: u32,
    both: u32,
}

/// An interface, with a socket in its network namespace to ask by.
#[derive(Debug)]
pub(crate) struct Interface {
    socket: OwnedFd,
    name: String,
    pub(crate) index: u32,
}

impl Interface {
    /// The interface of this name in the calling thread's network namespace.
    pub(crate) fn find(name: &str) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let index = rustix::net::netdevice::name_to_index(&socket, name)?;
        Ok(Self { socket, name: name.to_owned(), index })
    }

    fn request(&self) -> io::Result<libc::ifreq> {
        // SAFETY: the structure is plain data of the C library, for which zero is a value.
        let mut request = unsafe { zeroed::<libc::ifreq>() };
        if self.name.len() >= request.ifr_name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in request.ifr_name.iter_mut().zip(self.name.bytes()) {
            *to = from as libc::c_char;
        }
        Ok(request)
    }

    fn ask(&self, what: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: INV-IF-1.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), what as _, &raw mut *request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Its MTU in bytes.
    pub(crate) fn mtu(&self) -> io::Result<usize> {
        let mut request = self.request()?;
        self.ask(libc::SIOCGIFMTU as _, &mut request)?;
        // SAFETY: INV-IF-1.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        usize::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Its MAC address; an error of the kind `Unsupported` if it is no Ethernet.
    pub(crate) fn mac(&self) -> io::Result<[u8; 6]> {
        let mut request = self.request()?;
        self.ask(libc::SIOCGIFHWADDR as _, &mut request)?;
        // SAFETY: INV-IF-1.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        if address.sa_family != libc::ARPHRD_ETHER {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(address.sa_data) {
            *to = from as u8;
        }
        Ok(mac)
    }

    /// Whether it is up and has a carrier.
    pub(crate) fn is_running(&self) -> io::Result<bool> {
        let mut request = self.request()?;
        self.ask(libc::SIOCGIFFLAGS as _, &mut request)?;
        // SAFETY: INV-IF-1.
        let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
        let wanted = libc::IFF_UP | libc::IFF_RUNNING;
        Ok(flags & wanted == wanted)
    }

    fn ethtool<T>(&self, value: &mut T) -> io::Result<()> {
        let mut request = self.request()?;
        request.ifr_ifru.ifru_data = (&raw mut *value).cast();
        // SAFETY (of what the kernel writes there): INV-IF-2.
        self.ask(SIOCETHTOOL, &mut request)
    }

    /// How many queues it has to receive by, and how many to send by; an error if it does not say.
    pub(crate) fn channels(&self) -> io::Result<(u32, u32)> {
        let mut channels = Channels { command: GET_CHANNELS, most: [0; 4], receive: 0, send: 0, other: 0, both: 0 };
        self.ethtool(&mut channels)?;
        let count = |alone: u32| alone.saturating_add(channels.both).max(1);
        Ok((count(channels.receive), count(channels.send)))
    }

    /// Whether it takes VLAN tags off frames before anybody sees them; not, if it does not say.
    pub(crate) fn takes_tags_off(&self) -> bool {
        let mut value = Flags { command: GET_FLAGS, flags: 0 };
        self.ethtool(&mut value).is_ok() && value.flags & TAKES_TAGS_OFF != 0
    }

    /// Its driver's name.
    pub(crate) fn driver(&self) -> String {
        let mut driver = Driver { command: GET_DRIVER, name: [0; 32], rest: [0; 160] };
        if self.ethtool(&mut driver).is_err() {
            return "unknown".into();
        }
        let end = driver.name.iter().position(|&byte| byte == 0).unwrap_or(driver.name.len());
        String::from_utf8_lossy(&driver.name[..end]).into_owned()
    }
}

/// Lets frames to a MAC address into an interface for as long as the socket is open.
pub(crate) fn let_in(socket: BorrowedFd<'_>, interface: u32, mac: [u8; 6]) -> io::Result<()> {
    let group = mac[0] & 1 == 1;
    let mut address = [0; 8];
    address[..6].copy_from_slice(&mac);
    let membership = libc::packet_mreq {
        mr_ifindex: i32::try_from(interface).map_err(|_| io::ErrorKind::InvalidInput)?,
        mr_type: if group { libc::PACKET_MR_MULTICAST } else { libc::PACKET_MR_UNICAST } as libc::c_ushort,
        mr_alen: 6,
        mr_address: address,
    };
    let (value, len) = ((&raw const membership).cast(), size_of::<libc::packet_mreq>() as libc::socklen_t);
    // SAFETY: the structure lives through the call, and its size is given.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, value, len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A socket that receives nothing, for memberships.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?)
}
