//! A VLAN of the kernel's on a cable: its own, or, where this kernel has none (CONFIG_VLAN_8021Q), an interface behind a switch of ours
//! that puts the tag on what leaves by the cable and takes it off what comes.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::{Namespaces, leave_tags};

/// Where a frame's type is, behind two addresses.
const ADDRESSES: usize = 12;

/// The largest frame, with room to spare.
const MOST: usize = 16_384;

/// An interface of the kernel's in a VLAN of another one; gone when dropped.
#[derive(Debug)]
pub struct Vlan {
    stop: Arc<AtomicBool>,
    switch: Vec<JoinHandle<()>>,
}

impl Vlan {
    /// An interface of this name and address, in a VLAN on `device`, both of the namespace `at`; `device` leaves tags in its frames
    /// from now on.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new(namespaces: &Namespaces, at: usize, device: &str, number: u16, (name, address): (&str, &str)) -> Self {
        namespaces.inside(at, || leave_tags(device)).expect("it can be told");
        let ip = |step: &str| namespaces.ip(at, step);
        let mut this = Self { stop: Arc::default(), switch: Vec::new() };
        let made = ip(&format!("link add link {device} name {name} type vlan id {number}"));
        if made.as_ref().is_err_and(|said| said.contains("Unknown device type")) {
            let port = format!("{name}p");
            ip(&format!("link add {name} type veth peer name {port}")).expect("a cable to the switch");
            // The port is nobody's: the kernel is to say and answer nothing there.
            for what in ["addrgenmode none", "arp off", "up"] {
                ip(&format!("link set {port} {what}")).expect("it can be set");
            }
            let [inner, outer] = [port.as_str(), device]
                .map(|device| namespaces.inside(at, || packets(device)).map(Arc::new).expect("a socket"));
            for (from, to, outwards) in [(&inner, &outer, true), (&outer, &inner, false)] {
                let (from, to, stop) = (Arc::clone(from), Arc::clone(to), Arc::clone(&this.stop));
                this.switch.push(std::thread::spawn(move || pass(&from, &to, number, outwards, &stop)));
            }
        } else {
            made.expect("a VLAN");
        }
        ip(&format!("addr add {address} dev {name}")).expect("an address");
        ip(&format!("link set {name} up")).expect("it can be set");
        this
    }
}

impl Drop for Vlan {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.switch.drain(..).for_each(|thread| thread.join().unwrap_or(()));
    }
}

fn option<T>(socket: &OwnedFd, level: i32, name: i32, value: T) -> io::Result<()> {
    let (at, len) = ((&raw const value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the value lives through the call, and its size is given.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, at, len) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// All frames that come by an interface, with what the kernel knows of them, and none that leave.
fn packets(device: &str) -> io::Result<OwnedFd> {
    const ALL: u16 = (libc::ETH_P_ALL as u16).to_be();
    const IGNORE_OUTGOING: i32 = 23;
    // SAFETY: no pointers.
    let raw = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    option(&socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1_i32)?;
    option(&socket, libc::SOL_PACKET, IGNORE_OUTGOING, 1_i32)?;
    let patience = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
    option(&socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, patience)?;
    let index = rustix::net::netdevice::name_to_index(&socket, device)?;
    // What is for a station that the kernel does not know, too.
    // SAFETY: all zeros are a packet_mreq.
    let mut all: libc::packet_mreq = unsafe { zeroed() };
    (all.mr_ifindex, all.mr_type) = (index as i32, libc::PACKET_MR_PROMISC as u16);
    option(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, all)?;
    // SAFETY: all zeros are a sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    (address.sll_family, address.sll_protocol, address.sll_ifindex) = (libc::AF_PACKET as u16, ALL, index as i32);
    let (at, len) = ((&raw const address).cast(), size_of::<libc::sockaddr_ll>() as libc::socklen_t);
    // SAFETY: a sockaddr_ll that lives through the call, with its size.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), at, len) };
    if bound == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

/// The next frame without its tag, and the number in that.
fn next(socket: &OwnedFd, frame: &mut [u8]) -> Option<(usize, Option<u16>)> {
    let mut control = [0_u64; 16];
    let mut piece = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
    // SAFETY: all zeros are a msghdr.
    let mut message: libc::msghdr = unsafe { zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control) as _);
    // SAFETY: the message names a frame and control memory with their sizes, and all of it lives through the call.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
    let len = usize::try_from(len).ok()?;
    // SAFETY: the kernel has filled the message's control memory.
    let head = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() }?;
    if (head.cmsg_level, head.cmsg_type) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
        return Some((len, None));
    }
    // SAFETY: that is followed by its data, of this type; it may be unaligned.
    let known = unsafe { libc::CMSG_DATA(head).cast::<libc::tpacket_auxdata>().read_unaligned() };
    let tagged = known.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
    Some((len, tagged.then_some(known.tp_vlan_tci & 0x0fff)))
}

/// Passes frames on: with the tag on them, or those that had it.
fn pass(from: &OwnedFd, to: &OwnedFd, number: u16, outwards: bool, stop: &AtomicBool) {
    let mut frame = vec![0; MOST];
    while !stop.load(Ordering::Relaxed) {
        let Some((len, tag)) = next(from, &mut frame) else { continue };
        let mut whole = frame[..len].to_vec();
        match (outwards, tag) {
            (true, None) if len > ADDRESSES => {
                let [a, b] = number.to_be_bytes();
                whole.splice(ADDRESSES..ADDRESSES, [0x81, 0x00, a, b]);
            }
            (false, Some(found)) if found == number => {}
            _ => continue,
        }
        // What has no room is lost, as in any switch.
        let _ = rustix::io::write(to, &whole);
    }
}
