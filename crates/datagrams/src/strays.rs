//! What comes by a part of a device and is not for that: all but plain datagrams for the port goes to the one engine that answers, keeps
//! connections and puts packets together.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use insane_datapath::thread::Bell;
use insane_netstack::ether::{self, Ethernet};
use insane_netstack::ip::{Ip, UDP};
use rustix::event::epoll;

/// The most frames that wait for the engine, and so the most memory: of jumbo frames 2 MiB.
const MOST: usize = 256;

/// Frames on their way from parts to the engine. Never waits for either for longer than it takes to move them.
#[derive(Debug)]
pub(crate) struct Strays {
    frames: Mutex<VecDeque<Vec<u8>>>,
    /// There are some; set after they are.
    waiting: AtomicBool,
    lost: AtomicU64,
    bell: Bell,
}

impl Strays {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a frame over; without room it is lost, and counted.
    pub(crate) fn give(&self, frame: &[u8]) {
        let mut frames = self.lock();
        if frames.len() >= MOST {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        frames.push_back(frame.to_vec());
        drop(frames);
        // Before the ringing: who clears the bell looks at it afterwards.
        if !self.waiting.swap(true, Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    /// All that there are.
    pub(crate) fn take(&self) -> VecDeque<Vec<u8>> {
        if !self.waiting.load(Ordering::Relaxed) {
            return VecDeque::new();
        }
        self.waiting.store(false, Ordering::SeqCst);
        core::mem::take(&mut *self.lock())
    }

    /// Those that were lost since it was asked.
    pub(crate) fn take_lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }
}

/// The engine's end.
#[derive(Debug)]
pub(crate) struct Taking {
    pub(crate) strays: Arc<Strays>,
    /// The device, and what comes by its parts.
    wake: Option<OwnedFd>,
}

impl Taking {
    /// For a device with this wake handle.
    ///
    /// # Errors
    /// The operating system's, for want of descriptors.
    pub(crate) fn new(device: Option<BorrowedFd<'_>>) -> std::io::Result<Self> {
        let bell = Bell::new()?;
        let both = |device| -> std::io::Result<OwnedFd> {
            let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for fd in [device, bell.as_fd()] {
                epoll::add(&both, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
            }
            Ok(both)
        };
        let wake = device.map(both).transpose()?;
        let (frames, waiting, lost) = (Mutex::default(), AtomicBool::new(false), AtomicU64::new(0));
        Ok(Self { strays: Arc::new(Strays { frames, waiting, lost, bell }), wake })
    }

    pub(crate) fn wake_handle(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(AsFd::as_fd)
    }

    /// Before a sleep: whether there are some already.
    pub(crate) fn arm(&self) -> bool {
        self.strays.bell.clear();
        self.strays.waiting.load(Ordering::SeqCst)
    }
}

/// Whether a frame is a datagram for a port by itself, and no piece of one.
pub(crate) fn is_datagram(frame: &[u8], port: u16) -> bool {
    let datagram = || {
        let (ethernet, at) = Ethernet::parse(frame).ok()?;
        let packet = frame.get(at..)?;
        let ip = match ethernet.kind {
            ether::IPV4 => Ip::parse_v4(packet).ok()?,
            ether::IPV6 => Ip::parse_v6(packet).ok()?,
            _ => return None,
        };
        let to = packet.get(ip.header + 2..ip.header + 4)?;
        Some(ip.protocol == UDP && ip.fragment.is_none() && !ip.extended && to == port.to_be_bytes())
    };
    datagram().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use insane_netstack::Mac;
    use insane_netstack::ether::Tag;
    use insane_netstack::ip::{Fragment, Head, TCP};

    /// A packet of a protocol to a port, or a piece of one.
    fn frame(from: &str, to: &str, protocol: u8, port: u16, fragment: Option<Fragment>, vlan: Option<u16>) -> Vec<u8> {
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        let head = Head { from, to, protocol, hop_limit: 64, class: 0, payload: 16, fragment };
        let mut frame = vec![0; 18 + 48 + 16];
        let kind = if from.is_ipv4() { ether::IPV4 } else { ether::IPV6 };
        let tag = vlan.map(|vlan| Tag { vlan, priority: 0 });
        let ethernet = Ethernet { to: Mac([2; 6]), from: Mac([4; 6]), tag, kind };
        let mut at = ethernet.write(&mut frame);
        at += head.write(&mut frame[at..]);
        frame[at..at + 4].copy_from_slice(&[[0x1c, 0xe9], port.to_be_bytes()].concat());
        frame.truncate(at + 16);
        frame
    }

    #[test]
    fn whole_datagrams_for_the_port_are_the_parts_and_all_else_is_the_engines() {
        let four = ("10.0.0.1", "10.0.0.2");
        let six = ("fd00::1", "fd00::2");
        for (from, to) in [four, six] {
            for vlan in [None, Some(7)] {
                assert!(is_datagram(&frame(from, to, UDP, 7400, None, vlan), 7400));
                assert!(!is_datagram(&frame(from, to, UDP, 7401, None, vlan), 7400), "of another port");
                assert!(!is_datagram(&frame(from, to, TCP, 7400, None, vlan), 7400));
            }
            let whole = frame(from, to, UDP, 7400, None, None);
            assert!((0..whole.len() - 16).all(|len| !is_datagram(&whole[..len], 7400)), "cut short");
            for (offset, more) in [(0, true), (16, false)] {
                let piece = Some(Fragment { ident: 7, offset, more });
                assert!(!is_datagram(&frame(from, to, UDP, 7400, piece, None), 7400), "a piece at {offset}");
            }
        }
        let mut arp = frame(four.0, four.1, UDP, 7400, None, None);
        arp[12..14].copy_from_slice(&ether::ARP.to_be_bytes());
        assert!(!is_datagram(&arp, 7400));
    }

    #[test]
    fn no_more_wait_than_there_is_room_for_and_those_that_are_lost_are_counted() {
        let taking = Taking::new(None).unwrap();
        assert!(!taking.arm() && taking.strays.take().is_empty());
        (0..MOST + 3).for_each(|number| taking.strays.give(&number.to_le_bytes()));
        assert!(taking.arm());
        let all = taking.strays.take();
        assert!(
            all.iter().map(Vec::as_slice).eq((0..MOST)
                .map(usize::to_le_bytes)
                .collect::<Vec<_>>()
                .iter()
                .map(|b| &b[..]))
        );
        assert_eq!((taking.strays.take_lost(), taking.strays.take_lost()), (3, 0));
        assert!(!taking.arm() && taking.strays.take().is_empty());
    }
}
