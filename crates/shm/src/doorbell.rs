//! Doorbells: sockets that wake whoever waits for a link together with other things (architecture §3, waiting).
//!
//! The consumer makes the pair of sockets, keeps the end that becomes readable and gives the producer the other.

use crate::ShmError;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// The most rings that are taken at once. Who rings more often wakes the listener again, and nobody else.
const MOST_RINGS: usize = 64;

/// A bell: the end that becomes readable, and the one that rings.
///
/// # Errors
/// [`ShmError::System`]: no descriptors left.
pub fn pair() -> Result<(OwnedFd, OwnedFd), ShmError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // A stream, so that one call takes many rings and knows whether it took all.
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(ShmError::system("socketpair"))
}

/// The end that rings. Without a bell, as long as none has come, ringing does nothing.
#[derive(Debug, Default)]
pub struct Doorbell(Option<OwnedFd>);

impl Doorbell {
    /// The consumer's bell has come. It rings at once: who armed before may have been looked for already, when there was
    /// nothing to ring, and is not looked for twice.
    pub fn install(&mut self, bell: Option<OwnedFd>) {
        self.0 = bell;
        self.ring();
    }

    /// Makes the other end readable. Never blocks.
    #[cold]
    pub fn ring(&self) {
        if let Some(bell) = &self.0 {
            // A full buffer means that the listener has bytes to read, and so is awake.
            let _ = rustix::net::send(bell, b"!", SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }
}

/// Takes the rings that made a bell readable, a bounded number. Never blocks. `false`: the end that rings is gone.
pub fn silence(bell: BorrowedFd<'_>) -> bool {
    take_rings(bell).is_some()
}

/// As [`silence`]; how many rings there were. `None`: the end that rings is gone.
pub fn take_rings(bell: BorrowedFd<'_>) -> Option<usize> {
    let mut rings = [0u8; MOST_RINGS];
    match rustix::net::recv(bell, &mut rings[..], RecvFlags::DONTWAIT) {
        Ok((0, _)) => None,
        Ok((taken, _)) => Some(taken),
        Err(Errno::AGAIN | Errno::INTR) => Some(0),
        Err(_) => None,
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn a_late_bell_rings_at_once_and_a_flood_is_taken_in_parts() {
        let (ours, theirs) = pair().unwrap();
        let mut bell = Doorbell::default();
        bell.ring();
        bell.install(Some(theirs));
        let readable = |timeout: i64| {
            let mut fds = [rustix::event::PollFd::new(&ours, rustix::event::PollFlags::IN)];
            let timeout = rustix::event::Timespec { tv_sec: timeout, tv_nsec: 0 };
            rustix::event::poll(&mut fds, Some(&timeout)).unwrap() == 1
        };
        assert!(readable(10), "a bell that was asked for late");
        assert!(silence(ours.as_fd()) && !readable(0));
        (0..=MOST_RINGS).for_each(|_| bell.ring());
        assert!(take_rings(ours.as_fd()) == Some(MOST_RINGS) && readable(10), "one more ring than is taken at once");
        assert!(silence(ours.as_fd()) && !readable(0));
        drop(bell);
        assert_eq!(take_rings(ours.as_fd()), None);
        assert!(!silence(ours.as_fd()), "the end that rings is gone");
    }
}
