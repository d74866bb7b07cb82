//! The system calls that no safe crate offers as they are needed: `sendmmsg` with a segment size of its own for each
//! message, `recvmmsg` and `recvmsg` into memory that is named by address, and three socket options (see ADR 11).
//!
//! Invariants:
//! - `INV-UDP-1` Every address in an `iovec` is of memory that stays mapped during the call: a batch's own bytes, a piece
//!   (`INV-MEM-2`), a free slot (`INV-MEM-1`) or a landing that is borrowed mutably.
//! - `INV-UDP-2` Headers point to `iovec`s, names and control buffers that are owned by the same [`Messages`] and are not
//!   moved between [`Messages::push`] and the call: the vectors were given their room before the first push, and never
//!   grow over it.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

/// The most messages of one call.
pub(crate) const MAX_MESSAGES: usize = 16;

/// The most pieces of all messages of one call, and the kernel's limit for one message.
pub(crate) const MAX_PIECES: usize = 1024;

/// Room for two control messages of four bytes each.
const CONTROL_BYTES: usize = 64;

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

/// The messages of one call.
pub(crate) struct Messages {
    headers: Vec<libc::mmsghdr>,
    iovecs: Vec<libc::iovec>,
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<Control>,
}

// SAFETY: INV-UDP-2, the pointers inside lead to its own memory, or are used in the call alone that follows their setting.
unsafe impl Send for Messages {}

impl core::fmt::Debug for Messages {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Messages({} in {} pieces)", self.headers.len(), self.iovecs.len())
    }
}

/// What a message is for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Role<'a> {
    Receive,
    /// It is sent to an address, or along the line that the socket is, in segments of so many bytes if given.
    Send {
        to: Option<&'a SocketAddr>,
        segment: Option<u16>,
    },
}

/// One received message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrived {
    /// Its whole length, also of what did not fit when [`libc::MSG_TRUNC`] was asked for.
    pub(crate) len: usize,
    pub(crate) truncated: bool,
    pub(crate) from: Option<SocketAddr>,
    /// The size of the frames that the kernel joined, if it did.
    pub(crate) segment: Option<usize>,
    /// How many datagrams the socket's buffer has dropped since it was opened, if the kernel says.
    pub(crate) overruns: Option<u32>,
}

impl Messages {
    pub(crate) fn new() -> Self {
        Self {
            headers: Vec::with_capacity(MAX_MESSAGES),
            iovecs: Vec::with_capacity(MAX_PIECES),
            names: Vec::with_capacity(MAX_MESSAGES),
            controls: Vec::with_capacity(MAX_MESSAGES),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.headers.clear();
        self.iovecs.clear();
        self.names.clear();
        self.controls.clear();
    }

    /// Keeps the first `count` messages, of which each has one piece; of others none may be kept.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.headers.truncate(count);
        self.iovecs.truncate(count);
        self.names.truncate(count);
        self.controls.truncate(count);
    }

    /// Whether there is a message `n` whose only piece is this memory, if all before it have one piece.
    pub(crate) fn leads_to(&self, n: usize, memory: &[u8]) -> bool {
        let one = self.headers.get(n).is_some_and(|header| header.msg_hdr.msg_iovlen == 1);
        let piece = self.iovecs.get(n).map(|piece| (piece.iov_base.cast_const().cast(), piece.iov_len));
        one && piece == Some((memory.as_ptr(), memory.len()))
    }

    /// Pieces that are left for further messages.
    pub(crate) fn room(&self) -> usize {
        if self.headers.len() < MAX_MESSAGES { MAX_PIECES - self.iovecs.len() } else { 0 }
    }

    /// Adds a piece to the message that the next [`Messages::push`] makes. Adjoining pieces become one.
    pub(crate) fn piece(&mut self, base: *const u8, len: usize, first: bool) {
        assert!(self.iovecs.len() < MAX_PIECES);
        if !first
            && let Some(last) = self.iovecs.last_mut()
            && last.iov_base.cast_const().cast::<u8>().wrapping_add(last.iov_len) == base
        {
            last.iov_len += len;
            return;
        }
        self.iovecs.push(libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len });
    }

    /// How many pieces there are; what [`Messages::push`] is told.
    pub(crate) fn pieces(&self) -> usize {
        self.iovecs.len()
    }

    /// Makes a message of the pieces from `first` on.
    pub(crate) fn push(&mut self, first: usize, role: Role<'_>) {
        assert!(self.headers.len() < MAX_MESSAGES && first <= self.iovecs.len());
        // SAFETY: all of these are plain data of the C library, for which zero is a value.
        let (mut header, mut name) = unsafe { (zeroed::<libc::mmsghdr>(), zeroed::<libc::sockaddr_storage>()) };
        let mut control = Control([0; CONTROL_BYTES]);
        let message = &mut header.msg_hdr;
        message.msg_namelen = match role {
            Role::Receive => size_of::<libc::sockaddr_storage>() as libc::socklen_t,
            Role::Send { to: Some(to), .. } => write_name(to, &mut name),
            Role::Send { to: None, .. } => 0,
        };
        message.msg_controllen = match role {
            Role::Receive => CONTROL_BYTES as _,
            Role::Send { segment: Some(size), .. } => write_segment(size, &mut control) as _,
            Role::Send { segment: None, .. } => 0,
        };
        self.names.push(name);
        self.controls.push(control);
        let at = self.headers.len();
        if message.msg_namelen > 0 {
            message.msg_name = (&raw mut self.names[at]).cast();
        }
        if message.msg_controllen > 0 {
            message.msg_control = (&raw mut self.controls[at]).cast();
        }
        message.msg_iov = self.iovecs.as_mut_ptr().wrapping_add(first);
        message.msg_iovlen = (self.iovecs.len() - first) as _;
        self.headers.push(header);
    }

    /// Sends them from number `from` on, without waiting; says how many went. A single one goes by the call that has the least to look
    /// at: `send` takes a tenth less time than `sendmmsg`.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>, from: usize) -> io::Result<usize> {
        let headers = &mut self.headers[from..];
        if let [one] = headers {
            let message = &one.msg_hdr;
            let plain = message.msg_namelen == 0 && message.msg_controllen == 0 && message.msg_iovlen == 1;
            let sent = if plain {
                // SAFETY: INV-UDP-2, there is one `iovec`; INV-UDP-1.
                unsafe {
                    let piece = message.msg_iov.read();
                    libc::send(socket.as_raw_fd(), piece.iov_base, piece.iov_len, libc::MSG_DONTWAIT)
                }
            } else {
                // SAFETY: INV-UDP-1 and INV-UDP-2.
                unsafe { libc::sendmsg(socket.as_raw_fd(), message, libc::MSG_DONTWAIT) }
            };
            return if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(1) };
        }
        let count = headers.len() as libc::c_uint;
        // SAFETY: INV-UDP-1 and INV-UDP-2.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Receives into them without waiting; says how many came, 0 if nothing is there. Into a single one by the call that looks for no
    /// other: a quarter less time.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>, flags: libc::c_int) -> io::Result<usize> {
        if let [one] = &mut self.headers[..] {
            let (fd, flags) = (socket.as_raw_fd(), flags | libc::MSG_DONTWAIT);
            // SAFETY: INV-UDP-1 and INV-UDP-2.
            let came = unsafe { libc::recvmsg(fd, &raw mut one.msg_hdr, flags) };
            return match libc::c_uint::try_from(came) {
                Ok(len) => {
                    one.msg_len = len;
                    Ok(1)
                }
                Err(_) => nothing_or_error(),
            };
        }
        let (count, flags) = (self.headers.len() as libc::c_uint, flags | libc::MSG_DONTWAIT);
        let (fd, headers) = (socket.as_raw_fd(), self.headers.as_mut_ptr());
        // SAFETY: INV-UDP-1 and INV-UDP-2; no time-out is given.
        let came = unsafe { libc::recvmmsg(fd, headers, count, flags, core::ptr::null_mut()) };
        match usize::try_from(came) {
            Ok(came) => Ok(came),
            Err(_) => nothing_or_error(),
        }
    }

    /// What came as message `n` of the last call.
    pub(crate) fn arrived(&self, n: usize) -> Arrived {
        let header = &self.headers[n];
        let (mut segment, mut overruns) = (None, None);
        // SAFETY: the kernel wrote the control length; the buffer is `controls[n]` (INV-UDP-2).
        let mut at = unsafe { libc::CMSG_FIRSTHDR(&raw const header.msg_hdr) };
        while !at.is_null() {
            // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give headers that lie in the buffer whole.
            let cmsg = unsafe { at.read_unaligned() };
            // SAFETY: as above; both kinds carry four bytes, and the length says that they are there.
            let data = unsafe { libc::CMSG_DATA(at) };
            let whole = cmsg.cmsg_len >= cmsg_len(4);
            if whole && cmsg.cmsg_level == libc::SOL_UDP && cmsg.cmsg_type == libc::UDP_GRO {
                // SAFETY: four bytes, see above.
                segment = usize::try_from(unsafe { data.cast::<i32>().read_unaligned() }).ok().filter(|&s| s > 0);
            } else if whole && cmsg.cmsg_level == libc::SOL_SOCKET && cmsg.cmsg_type == libc::SO_RXQ_OVFL {
                // SAFETY: four bytes, see above.
                overruns = Some(unsafe { data.cast::<u32>().read_unaligned() });
            }
            // SAFETY: as CMSG_FIRSTHDR.
            at = unsafe { libc::CMSG_NXTHDR(&raw const header.msg_hdr, at) };
        }
        let truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        Arrived { len: header.msg_len as usize, truncated, from: read_name(&self.names[n]), segment, overruns }
    }
}

/// Receives a single datagram into this memory without waiting, and nothing of what the kernel could say about it but its length and
/// its sender; `None` if nothing is there. A third less time than [`Messages::receive`] into one.
pub(crate) fn receive_single(
    socket: BorrowedFd<'_>,
    memory: &mut [u8],
) -> io::Result<Option<(usize, Option<SocketAddr>)>> {
    // SAFETY: plain data of the C library, for which zero is a value.
    let mut name = unsafe { zeroed::<libc::sockaddr_storage>() };
    let mut name_len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
    let (into, len) = (memory.as_mut_ptr().cast(), memory.len());
    // SAFETY: the memory is borrowed mutably, the name and its length live through the call.
    let came = unsafe { libc::recvfrom(fd, into, len, flags, (&raw mut name).cast(), &raw mut name_len) };
    match usize::try_from(came) {
        Ok(len) => Ok(Some((len, read_name(&name)))),
        Err(_) => nothing_or_error().map(|_| None),
    }
}

/// What the last call's refusal to receive means.
fn nothing_or_error() -> io::Result<usize> {
    match io::Error::last_os_error() {
        e if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
        e => Err(e),
    }
}

fn cmsg_len(data: u32) -> usize {
    // SAFETY: CMSG_LEN only computes.
    unsafe { libc::CMSG_LEN(data) as usize }
}

/// Writes the control message that says the size of the segments; says how long it is.
fn write_segment(size: u16, control: &mut Control) -> usize {
    let head = libc::cmsghdr { cmsg_len: cmsg_len(2) as _, cmsg_level: libc::SOL_UDP, cmsg_type: libc::UDP_SEGMENT };
    let base = control.0.as_mut_ptr();
    // SAFETY: the buffer is 64 bytes, aligned for a header.
    unsafe { base.cast::<libc::cmsghdr>().write(head) };
    let data = cmsg_len(0);
    control.0[data..data + 2].copy_from_slice(&size.to_ne_bytes());
    // SAFETY: CMSG_SPACE only computes.
    unsafe { libc::CMSG_SPACE(2) as usize }
}

fn write_name(address: &SocketAddr, name: &mut libc::sockaddr_storage) -> libc::socklen_t {
    let to = &raw mut *name;
    match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is as large and as aligned as every socket address.
            unsafe { to.cast::<libc::sockaddr_in>().write(raw) };
            size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { to.cast::<libc::sockaddr_in6>().write(raw) };
            size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }
}

fn read_name(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let from = &raw const *name;
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the storage holds an address of the family that it says.
            let raw = unsafe { from.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
            Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(raw.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { from.cast::<libc::sockaddr_in6>().read() };
            let (ip, port) = (Ipv6Addr::from(raw.sin6_addr.s6_addr), u16::from_be(raw.sin6_port));
            // A flow label is no part of who somebody is.
            Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, raw.sin6_scope_id)))
        }
        _ => None,
    }
}

/// A socket option of the size of an int.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SocketOption {
    /// The kernel may hand over datagrams of one length and sender joined.
    Gro,
    /// It says how many datagrams the socket's buffer has dropped.
    CountOverruns,
    /// How long, in microseconds, a call that finds nothing polls the device.
    BusyPoll,
}

impl SocketOption {
    /// Its level and name.
    const fn place(self) -> (libc::c_int, libc::c_int) {
        match self {
            Self::Gro => (libc::SOL_UDP, libc::UDP_GRO),
            Self::CountOverruns => (libc::SOL_SOCKET, libc::SO_RXQ_OVFL),
            Self::BusyPoll => (libc::SOL_SOCKET, libc::SO_BUSY_POLL),
        }
    }
}

pub(crate) fn set(socket: BorrowedFd<'_>, option: SocketOption, value: libc::c_int) -> io::Result<()> {
    let (level, name) = option.place();
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is an int that lives through the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What an option is.
#[cfg(test)]
pub(crate) fn get(socket: BorrowedFd<'_>, option: SocketOption) -> io::Result<libc::c_int> {
    let (level, name) = option.place();
    let (mut value, mut len) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the value is an int, its length is given, and both live through the call.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Binds a socket to an interface: nothing goes out or comes in by another.
pub(crate) fn bind_to_interface(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let (fd, len) = (socket.as_raw_fd(), name.len() as libc::socklen_t);
    // SAFETY: the name's bytes live through the call, and their number is given.
    let result = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name.as_ptr().cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has the sockets of a group (`SO_REUSEPORT`), of which this is one, receive by who sent it: all of one address and port by one of them,
/// neighbours by one after the other. Without it the kernel does so by a hash, in which few peers may well share one of several sockets.
pub(crate) fn spread_by_sender(socket: BorrowedFd<'_>, sockets: u32, is_v4: bool) -> io::Result<()> {
    // From here on offsets are from the IP header on (SKF_NET_OFF of linux/filter.h); the program is shown what follows the UDP header.
    const NET: u32 = -0x0010_0000_i32 as u32;
    let op = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut program = Vec::new();
    if is_v4 {
        program.extend([
            // X is how long the header is, and A the port after it.
            op(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, NET),
            op(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, NET),
            op(libc::BPF_MISC | libc::BPF_TAX, 0),
            op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NET + 12),
        ]);
    } else {
        // The last four bytes of the address; and the port, where no other header is before it.
        let udp = libc::sock_filter { jt: 1, ..op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 17) };
        program.extend([
            op(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, NET + 6),
            udp,
            op(libc::BPF_JMP | libc::BPF_JA, 2),
            op(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, NET + 40),
            op(libc::BPF_MISC | libc::BPF_TAX, 0),
            op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NET + 20),
        ]);
    }
    program.extend([
        op(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X, 0),
        op(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, sockets),
        op(libc::BPF_RET | libc::BPF_A, 0),
    ]);
    let len = u16::try_from(program.len()).unwrap_or(u16::MAX);
    let value = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    let (fd, name) = (socket.as_raw_fd(), libc::SO_ATTACH_REUSEPORT_CBPF);
    let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: the program and what says where it is live through the call, which copies them.
    let result = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const value).cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
