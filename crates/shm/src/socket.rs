//! Sequenced-packet Unix sockets that carry file descriptors: never blocking on sending, whole messages only.
//!
//! Invariants:
//! - `INV-SOCKET-1` What the kernel is given to write to lives through the call, and is of the size that it is told.

use crate::ShmError;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// The most descriptors that are taken with one message; a peer that sends more is refused and all are closed.
pub const MAX_FDS: usize = 8;

/// What a receive gave.
#[derive(Debug)]
pub enum Received {
    /// A whole message, and the descriptors that came with it.
    Message(Vec<u8>, Vec<OwnedFd>),
    /// Nothing there now.
    Nothing,
    /// The peer is gone.
    End,
    /// A message that was longer than the buffer or brought too many descriptors: it was dropped, and the peer is not to
    /// be trusted further.
    Overlong,
    /// A message whose descriptors this process had no room for: it was dropped, and the peer has done nothing wrong.
    Short,
}

/// A pair of connected sockets.
///
/// # Errors
/// [`ShmError::System`]: no descriptors left.
pub fn pair() -> Result<(OwnedFd, OwnedFd), ShmError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(ShmError::system("socketpair"))
}

/// Who made the other end of a socket, as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id; `None`: that process is in a PID namespace that this one's does not show.
    pub pid: Option<u32>,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Who made the other end of a socket.
///
/// # Errors
/// [`ShmError::System`]: no Unix socket.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> Result<PeerCredentials, ShmError> {
    // Not by rustix: a process of another PID namespace has the number 0 there, which its type for them cannot be.
    let mut who = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name, at) = (libc::SOL_SOCKET, libc::SO_PEERCRED, &raw mut who);
    // SAFETY: INV-SOCKET-1; a ucred and its size, both of this function.
    let done = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, at.cast(), &raw mut len) };
    if done != 0 {
        return Err(ShmError::System { call: "getsockopt", source: std::io::Error::last_os_error() });
    }
    Ok(PeerCredentials { pid: u32::try_from(who.pid).ok().filter(|pid| *pid > 0), uid: who.uid, gid: who.gid })
}

/// Sends one message whole, with descriptors. Never blocks: `Ok(false)` when the peer's buffer is full and nothing was sent.
///
/// # Errors
/// [`ShmError::System`] when the peer is gone.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<bool, ShmError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(ShmError::Limit {
            what: "descriptors of a message",
            needs: fds.len() as u64,
            limit: MAX_FDS as u64,
        });
    }
    loop {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::TOOMANYREFS) => return Ok(false),
            Err(e) => return Err(ShmError::system("sendmsg")(e)),
        }
    }
}

/// The most messages that wait for a peer to read.
const MAX_UNSENT: usize = 4096;

/// Messages that wait until the peer's buffer has room for them, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    unsent: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
}

/// The peer does not read its socket: too much waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it does not read its socket")]
pub struct Unread;

impl Outbox {
    /// Sends a message with descriptors, or keeps it until [`Self::flush`]. Never blocks. For a peer that is gone it does
    /// nothing: that end is seen when the socket is read.
    ///
    /// # Errors
    /// [`Unread`]; the message is lost, and the socket is to be closed.
    pub fn send(&mut self, socket: BorrowedFd<'_>, bytes: Vec<u8>, fds: &[BorrowedFd<'_>]) -> Result<(), Unread> {
        if self.unsent.is_empty() && !matches!(send(socket, &bytes, fds), Ok(false)) {
            return Ok(());
        }
        let kept: Result<Vec<OwnedFd>, _> = fds.iter().map(BorrowedFd::try_clone_to_owned).collect();
        match kept {
            Ok(fds) if self.unsent.len() < MAX_UNSENT => self.unsent.push_back((bytes, fds)),
            _ => return Err(Unread),
        }
        Ok(())
    }

    /// How many messages wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.unsent.len()
    }

    /// Sends what waits. Never blocks; whether all went.
    pub fn flush(&mut self, socket: BorrowedFd<'_>) -> bool {
        while let Some((bytes, fds)) = self.unsent.front() {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            match send(socket, bytes, &fds) {
                Ok(true) | Err(_) => drop(self.unsent.pop_front()),
                Ok(false) => return false,
            }
        }
        true
    }
}

/// Takes one message of at most `limit` bytes. Never blocks.
///
/// # Errors
/// [`ShmError::System`]; the socket is of no further use then.
pub fn receive(socket: BorrowedFd<'_>, limit: usize) -> Result<Received, ShmError> {
    let mut bytes = vec![0u8; limit];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
            Ok(message) => break message,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(Errno::CONNRESET) => return Ok(Received::End),
            Err(e) => return Err(ShmError::system("recvmsg")(e)),
        }
    };
    let mut fds = Vec::new();
    for item in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(list) = item {
            fds.extend(list);
        }
    }
    if message.flags.contains(rustix::net::ReturnFlags::TRUNC) {
        return Ok(Received::Overlong);
    }
    if message.flags.contains(rustix::net::ReturnFlags::CTRUNC) {
        // The kernel says the same of too many and of those that the process may not have.
        return Ok(if fds.len() >= MAX_FDS { Received::Overlong } else { Received::Short });
    }
    if message.bytes == 0 {
        return Ok(Received::End);
    }
    bytes.truncate(message.bytes);
    Ok(Received::Message(bytes, fds))
}
