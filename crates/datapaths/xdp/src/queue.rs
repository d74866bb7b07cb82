//! One queue of an interface: a socket, its four rings and its share of the UMEM's frames.

use core::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use insane_datapath::batch::Outcome;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpStatistics, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with};

use crate::FrameCounts;
use crate::gather::Gather;
use crate::rings::{CONTINUED, Consumer, Descriptor, Producer};
use crate::umem::{For, Frame, Ledger, Umem};

/// The most buffers of a frame: what the kernel's own packets can have.
pub(crate) const MOST_PARTS: usize = 16;

/// Ethernet's least frame without its checksum, in bytes. Shorter ones are filled up with zeros.
pub(crate) const LEAST_FRAME: usize = 60;

/// What one call of the kernel may send at most, asked for; 32 is its own limit.
const SEND_BUDGET: u32 = 256;

/// The size in bytes asked for the socket's send buffer, in which frames count that were copied and are on their way.
const SEND_BUFFER: usize = 4 << 20;

/// A received frame's part: a buffer and which of its bytes.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) frame: Frame,
    pub(crate) bytes: Range<usize>,
}

/// What came of a call to the kernel to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Kick {
    /// Frames that the device dropped.
    pub(crate) dropped: u64,
    /// The interface is down, gone or has no carrier, perhaps.
    pub(crate) doubt: bool,
    /// Some is left, for which the kernel has to be called again.
    pub(crate) left: bool,
}

/// Why a frame was not put into the send ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no room now.
    Full,
    /// It can never go like this.
    Never(Outcome),
}

/// One queue, bound or not yet.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) number: u32,
    pub(crate) calls: u64,
    /// What the kernel said that cannot be: an address that it did not have.
    pub(crate) lies: u64,
    socket: OwnedFd,
    umem: Arc<Umem>,
    ledger: Ledger,
    free: Vec<Frame>,
    parts: Vec<Part>,
    /// Its memory's place among those that may be lent out of, and the most frames that are lent at a time.
    lends: Option<(u16, u32)>,
    fill: Producer<u64>,
    completion: Consumer<u64>,
    receive: Consumer<Descriptor>,
    send: Producer<Descriptor>,
}

impl Queue {
    /// A socket with rings for these frames, half of which are given to the kernel to receive into. The first one of an
    /// interface registers the memory.
    pub(crate) fn new(umem: &Arc<Umem>, number: u32, mut frames: Vec<Frame>, first: bool) -> Result<Self, Errno> {
        let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        if first {
            sockopt::set_xdp_umem_reg(
                &socket,
                XdpUmemReg {
                    addr: umem.address(),
                    len: umem.len() as u64,
                    chunk_size: umem.frame_bytes() as u32,
                    headroom: 0,
                    flags: XdpUmemRegFlags::empty(),
                    tx_metadata_len: 0,
                },
            )?;
        }
        // Half receives and half sends, so each ring has room for all that can be in it.
        let count = (frames.len() / 2) as u32;
        sockopt::set_xdp_umem_fill_ring_size(&socket, count)?;
        sockopt::set_xdp_umem_completion_ring_size(&socket, count)?;
        sockopt::set_xdp_rx_ring_size(&socket, count)?;
        sockopt::set_xdp_tx_ring_size(&socket, count)?;
        if sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER).is_err() {
            let _ = sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER);
        }
        // Linux 6.17 knows it; without it a burst takes more calls.
        let _ = crate::sys::set_send_budget(socket.as_fd(), SEND_BUDGET.min(count));
        let offsets = sockopt::xdp_mmap_offsets(&socket)?;
        let ledger = Ledger::new(umem.frame_bytes(), &frames);
        let io = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::INVAL);
        let fd = socket.as_fd();
        let mut queue = Self {
            number,
            calls: 0,
            lies: 0,
            umem: Arc::clone(umem),
            ledger,
            free: frames.split_off(frames.len() / 2),
            parts: Vec::with_capacity(MOST_PARTS),
            lends: None,
            fill: Producer::map(fd, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, count).map_err(io)?,
            completion: Consumer::map(fd, XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, count).map_err(io)?,
            receive: Consumer::map(fd, XDP_PGOFF_RX_RING, &offsets.rx, count).map_err(io)?,
            send: Producer::map(fd, XDP_PGOFF_TX_RING, &offsets.tx, count).map_err(io)?,
            socket,
        };
        for frame in frames {
            queue.fill.push(queue.ledger.give(frame, For::Receiving));
        }
        queue.fill.publish();
        Ok(queue)
    }

    /// Binds the socket to its queue, with memory and rights of its own or those of the socket that it shares memory with.
    pub(crate) fn bind(
        &self,
        interface: u32,
        flags: SocketAddrXdpFlags,
        shared: Option<BorrowedFd<'_>>,
    ) -> Result<(), Errno> {
        match shared {
            None => bind(&self.socket, &SocketAddrXdp::new(flags, interface, self.number)),
            Some(shared_umem_fd) => {
                // The kernel takes all else from the other socket.
                let addr = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, interface, self.number);
                bind(&self.socket, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd })
            }
        }
    }

    /// Its frames may be lent, up to `most` at a time; `memory` is the place of theirs.
    pub(crate) fn lend_out_of(&mut self, memory: u16, most: u32) {
        self.lends = Some((memory, most));
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the driver leaves frames where they are.
    pub(crate) fn is_zero_copy(&self) -> bool {
        let options = sockopt::xdp_options(&self.socket);
        options.is_ok_and(|o| o.contains(rustix::net::xdp::XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    /// Whether its interface was taken away: the kernel leaves this error at a socket that it has unbound for that, and at no other.
    /// It is given out once, so the caller remembers.
    pub(crate) fn has_lost_its_interface(&self) -> bool {
        matches!(sockopt::socket_error(&self.socket), Ok(Err(Errno::NETDOWN)))
    }

    pub(crate) fn statistics(&self) -> Option<XdpStatistics> {
        sockopt::xdp_statistics(&self.socket).ok()
    }

    /// Where all its frames are.
    pub(crate) fn frames(&self) -> FrameCounts {
        let (all, receiving, sending) = self.ledger.counts();
        let (fill, receive) = (self.fill.used(), self.receive.used());
        let (send, completion) = (self.send.used(), self.completion.used());
        FrameCounts {
            all,
            free: self.free.len() as u32,
            fill,
            receive,
            send,
            completion,
            lent: self.ledger.lent(),
            kernel: (receiving + sending).saturating_sub(fill + receive + send + completion),
        }
    }
}

/// Sending.
impl Queue {
    /// Takes back the frames that were sent. Done before each batch, so that those are used again which are still in the cache.
    pub(crate) fn reap(&mut self) {
        while let Some(address) = self.completion.peek(0) {
            self.completion.advance(1);
            match self.ledger.take_back(address, For::Sending) {
                Some((frame, _)) => self.free.push(frame),
                None => self.lies += 1,
            }
        }
        self.completion.release();
    }

    /// Puts a frame of `len` bytes into the send ring; `write` gets its memory, in one piece for each buffer, and may refuse.
    pub(crate) fn put(
        &mut self,
        len: usize,
        write: impl FnOnce(&mut Gather<'_>) -> Result<(), Outcome>,
    ) -> Result<(), Refusal> {
        let size = self.umem.frame_bytes();
        let len = len.max(LEAST_FRAME);
        let count = len.div_ceil(size);
        if count > MOST_PARTS {
            return Err(Refusal::Never(Outcome::TooLarge));
        }
        if self.free.len() < count {
            self.reap();
        }
        if self.free.len() < count || (self.send.room(count as u32) as usize) < count {
            return Err(Refusal::Full);
        }
        let first = self.free.len() - count;
        // Until it is written they are free.
        let mut gather = Gather::new(&self.umem, self.free.get_mut(first..).unwrap_or(&mut []), len);
        write(&mut gather).map_err(Refusal::Never)?;
        let mut rest = len;
        for frame in self.free.drain(first..) {
            let part = rest.min(size);
            rest -= part;
            let address = self.ledger.give(frame, For::Sending);
            let options = if rest > 0 { CONTINUED } else { 0 };
            self.send.push(Descriptor { address, len: part as u32, options });
        }
        Ok(())
    }

    /// Shows the kernel what was put, and has it sent as far as it will.
    pub(crate) fn kick(&mut self) -> Kick {
        self.send.publish();
        let ring = &self.send;
        let (kick, calls) = call_until_sent(
            || match ring.used() {
                some if some > 0 && ring.needs_wakeup() => some,
                _ => 0,
            },
            || send(&self.socket, &[], SendFlags::DONTWAIT).map(drop),
        );
        self.calls += calls;
        kick
    }
}

/// Calls the kernel as long as that sends something; says what came of it, and how often it was called. `waiting` says how much a call
/// is needed for.
fn call_until_sent(waiting: impl Fn() -> u32, mut call: impl FnMut() -> Result<(), Errno>) -> (Kick, u64) {
    let (mut kick, mut calls, mut full) = (Kick::default(), 0, false);
    let mut left = waiting();
    // Each call sends some, or drops one, or ends it.
    for _ in 0..left.saturating_add(8) {
        if left == 0 {
            break;
        }
        calls += 1;
        let answer = call();
        let before = core::mem::replace(&mut left, waiting());
        match answer {
            // The driver has taken all, or will look by itself.
            Ok(()) | Err(Errno::INTR) => full = false,
            // The device dropped a frame; the ring's index shows it with the next call.
            Err(Errno::BUSY) => {
                kick.dropped += 1;
                continue;
            }
            // It has done its part for one call, or has no memory for more, or the device is full.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => full = true,
            Err(_) => kick.doubt = true,
        }
        if left >= before {
            break;
        }
    }
    kick.doubt |= kick.dropped > 0;
    kick.left = left > 0 && full;
    (kick, calls)
}

/// Receiving.
impl Queue {
    /// The memory and the place there of the frame that was taken, if it may be lent: it lies in one buffer, and enough are left.
    pub(crate) fn may_lend(&self) -> Option<(u16, u32)> {
        let (memory, most) = self.lends?;
        let [part] = &self.parts[..] else { return None };
        (self.ledger.lent() < most).then(|| (memory, self.ledger.place(&part.frame)))
    }

    /// The frame that was taken is lent.
    pub(crate) fn lend_taken(&mut self) {
        for part in self.parts.drain(..) {
            self.ledger.give(part.frame, For::Lent);
        }
    }

    /// Takes back a frame that was lent, by its place; the kernel gets it with the next [`Queue::settle`].
    pub(crate) fn take_back(&mut self, place: u32) {
        if let Some(frame) = self.ledger.returned(place) {
            self.fill.push(self.ledger.give(frame, For::Receiving));
        }
    }

    /// Takes the next whole frame out of the receive ring. Its parts stay until [`Queue::give_back`].
    pub(crate) fn take(&mut self) -> bool {
        self.give_back();
        let mut count = 1;
        // The last buffer of a frame must have come too.
        loop {
            match self.receive.peek(count - 1) {
                Some(descriptor) if descriptor.options & CONTINUED != 0 => count += 1,
                Some(_) => break,
                None => return false,
            }
        }
        for n in 0..count {
            let Some(descriptor) = self.receive.peek(n) else { break };
            match self.ledger.take_back(descriptor.address, For::Receiving) {
                Some((frame, at)) => {
                    let end = at.saturating_add(descriptor.len as usize).min(self.umem.frame_bytes());
                    self.parts.push(Part { frame, bytes: at.min(end)..end });
                }
                None => self.lies += 1,
            }
        }
        self.receive.advance(count);
        true
    }

    /// The parts of the frame that was taken last.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Whether frames of it are lent: then the memory must stay mapped.
    pub(crate) fn is_lent(&self) -> bool {
        self.ledger.lent() > 0
    }

    /// Gives the buffers of the frame that was taken to the kernel again.
    pub(crate) fn give_back(&mut self) {
        // All that receives fits the ring at once.
        for part in self.parts.drain(..) {
            self.fill.push(self.ledger.give(part.frame, For::Receiving));
        }
    }

    /// Whether another frame has come.
    pub(crate) fn has_more(&mut self) -> bool {
        self.receive.peek(0).is_some()
    }

    /// Shows the kernel how far the rings were used, and wakes it where it asks for it.
    pub(crate) fn settle(&mut self) {
        self.give_back();
        self.receive.release();
        self.fill.publish();
        if self.fill.needs_wakeup() {
            self.calls += 1;
            // Nothing is read: the call has the driver look at its queue. That there is nothing is no error.
            let _ = recv(&self.socket, &mut [0u8; 0][..], RecvFlags::DONTWAIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Calls with these answers, each of which takes so many frames off a ring of 100.
    fn scripted(answers: &[(Result<(), Errno>, u32)]) -> (Kick, u64, u32) {
        let (ring, mut answers) = (Cell::new(100), answers.iter());
        let (kick, calls) = call_until_sent(
            || ring.get(),
            || {
                let (answer, taken) = *answers.next().expect("it is called in vain");
                ring.set(ring.get() - taken);
                answer
            },
        );
        (kick, calls, ring.get())
    }

    #[test]
    fn what_a_full_device_leaves_is_known_to_be_left() {
        let full = (Err(Errno::AGAIN), 0);
        let kick = |dropped, doubt, left| Kick { dropped, doubt, left };
        assert_eq!(scripted(&[(Ok(()), 32), (Ok(()), 68)]), (kick(0, false, false), 2, 0));
        assert_eq!(scripted(&[(Err(Errno::AGAIN), 32), full]), (kick(0, false, true), 2, 68));
        assert_eq!(scripted(&[full]), (kick(0, false, true), 1, 100));
        assert_eq!(
            scripted(&[(Err(Errno::AGAIN), 99), (Err(Errno::BUSY), 0), (Ok(()), 1)]),
            (kick(1, true, false), 3, 0)
        );
        assert_eq!(scripted(&[(Err(Errno::NETDOWN), 0)]), (kick(0, true, false), 1, 100));
        // A driver that sends from the ring itself does so later, without being asked again.
        assert_eq!(scripted(&[(Ok(()), 0)]), (kick(0, false, false), 1, 100));
    }
}
