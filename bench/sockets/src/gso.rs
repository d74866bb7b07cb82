//! Runs of datagrams in one system call: the kernel cuts what is sent (UDP_SEGMENT) and hands over what belongs together
//! joined (UDP_GRO). A message longer than a datagram of the usual MTU is a run of its own, whose last datagram is shorter.
#![allow(unsafe_code)]

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use anyhow::Result;
use bench_harness::{Tally, stamp};
use rustix::net::sockopt;

/// The most payload of one datagram over IPv4 and an MTU of 1500 bytes.
pub const SEGMENT: usize = 1472;
/// The most bytes of one call: the length of a datagram over IPv4.
const MOST_BYTES: usize = 65_507;
/// The most datagrams of one call that every kernel takes.
const MOST_DATAGRAMS: usize = 64;
/// Room for the longest run that the kernel joins.
pub const JOINED_BYTES: usize = 65_536;
/// What may be on its way of runs, in bytes of payload: a part of the receiver's buffer, which also holds the kernel's records.
pub const WINDOW_BYTES: usize = 2 << 20;
/// How long a sender waits for its receiver's word.
pub const WORD: Duration = Duration::from_millis(20);

/// Asked of the kernel for a socket's buffer; what it grants depends on the machine's limit and our rights.
const SOCKET_BUFFER: usize = 8 << 20;

/// Gives a socket room for what may be on its way to it.
///
/// # Errors
/// The socket refuses.
pub fn make_room(socket: &UdpSocket) -> io::Result<()> {
    if sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER).is_err() {
        sockopt::set_socket_recv_buffer_size(socket, SOCKET_BUFFER)?;
    }
    Ok(())
}

/// How many messages of `payload` bytes, each a datagram, one call takes.
#[must_use]
pub fn messages_of_a_call(payload: usize) -> usize {
    (MOST_BYTES / payload).min(MOST_DATAGRAMS)
}

fn set(socket: BorrowedFd<'_>, name: libc::c_int, value: usize) -> io::Result<()> {
    let value = libc::c_int::try_from(value).map_err(io::Error::other)?;
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is an int that lives through the call.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, name, (&raw const value).cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets the kernel hand over runs of datagrams joined.
///
/// # Errors
/// The kernel does not know it.
pub fn join(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::UDP_GRO, 1)
}

/// Lets the kernel cut what is sent into datagrams for messages of `payload` bytes.
///
/// # Errors
/// The kernel does not know it.
pub fn cut(socket: BorrowedFd<'_>, payload: usize) -> io::Result<()> {
    set(socket, libc::UDP_SEGMENT, payload.min(SEGMENT))
}

/// What is sent by one call, or by a few if the message is longer than that.
#[derive(Debug)]
pub struct Run {
    bytes: Vec<u8>,
    payload: usize,
    filled: usize,
    call: usize,
}

impl Run {
    /// An empty run of messages of `payload` bytes: as many as one call takes, or one.
    #[must_use]
    pub fn new(payload: usize) -> Self {
        let (messages, call) = if payload <= SEGMENT {
            let messages = messages_of_a_call(payload);
            (messages, messages * payload)
        } else {
            (1, (MOST_BYTES / SEGMENT).min(MOST_DATAGRAMS) * SEGMENT)
        };
        Self { bytes: vec![0; messages * payload], payload, filled: 0, call }
    }

    /// Writes message `n` into it; whether it is full now and has to be sent.
    #[inline]
    pub fn add(&mut self, n: u64) -> bool {
        stamp(&mut self.bytes[self.filled..self.filled + self.payload], n);
        self.filled += self.payload;
        let full = self.filled == self.bytes.len();
        if full {
            self.filled = 0;
        }
        full
    }

    /// How many messages a full run has.
    #[must_use]
    pub fn messages(&self) -> u64 {
        (self.bytes.len() / self.payload) as u64
    }

    /// What each call sends of a full run.
    pub fn calls(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks(self.call)
    }
}

/// Puts messages together again. What lacks a piece is no message, and the next one's number tells of it.
#[derive(Debug)]
pub struct Joiner {
    payload: usize,
    begun: Vec<u8>,
}

impl Joiner {
    /// For messages of `payload` bytes.
    #[must_use]
    pub fn new(payload: usize) -> Self {
        Self { payload, begun: Vec::with_capacity(payload) }
    }

    /// Books what one call received.
    ///
    /// # Errors
    /// A damaged or reordered message.
    #[inline]
    pub fn take(&mut self, came: &[u8], tally: &mut Tally) -> Result<()> {
        if self.payload <= SEGMENT {
            // A rest is a message of another length, which the tally refuses.
            return came.chunks(self.payload).try_for_each(|message| tally.take(message));
        }
        let ends = !came.len().is_multiple_of(SEGMENT);
        if ends && self.begun.is_empty() && came.len() == self.payload {
            return tally.take(came);
        }
        if self.begun.len() + came.len() <= self.payload {
            self.begun.extend_from_slice(came);
        }
        if ends {
            let whole = self.begun.len() == self.payload;
            let taken = if whole { tally.take(&self.begun) } else { Ok(()) };
            self.begun.clear();
            return taken;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(payload: usize, messages: u64) -> Vec<Vec<u8>> {
        let mut run = Run::new(payload);
        (0..messages)
            .flat_map(|n| if run.add(n) { run.calls().map(<[u8]>::to_vec).collect() } else { Vec::new() })
            .collect()
    }

    #[test]
    fn what_is_cut_is_put_together_again() {
        for (payload, messages) in [(64, 128), (1024, 126), (8192, 5), (65_536, 3)] {
            let (mut joiner, mut tally) = (Joiner::new(payload), Tally::new(payload));
            for piece in pieces(payload, messages) {
                assert!(piece.len() <= MOST_BYTES && piece.len().div_ceil(payload.min(SEGMENT)) <= MOST_DATAGRAMS);
                joiner.take(&piece, &mut tally).expect("intact");
            }
            assert_eq!((tally.received, tally.lost), (messages, 0), "{payload} B");
        }
    }

    #[test]
    fn a_missing_piece_is_one_lost_message() {
        let (mut joiner, mut tally) = (Joiner::new(65_536), Tally::new(65_536));
        for (at, piece) in pieces(65_536, 4).iter().enumerate() {
            if at != 2 {
                joiner.take(piece, &mut tally).expect("intact");
            }
        }
        assert_eq!((tally.received, tally.lost), (3, 1));
    }
}
