//! A socket on the first queue of the second cable, with its memory (the UMEM) and its four rings. One half of the frames receives,
//! the other half sends.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench_harness::frames::Frames;
use bench_harness::{ADAPTIVE_SPIN, Waiting, cable};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SendFlags, SocketType, bind, netdevice, send, socket, sockopt};

use crate::bpf;
use crate::ring::{Descriptor, ENTRIES, Ring};

/// Bytes of a frame of the UMEM.
const FRAME: usize = 2048;
const FRAMES: u32 = 2 * ENTRIES;
/// A queue that another process just had is busy for up to a second.
const BUSY: Duration = Duration::from_secs(3);
/// The most frames that one look takes.
const BURST: u32 = 64;
/// How long a sleeper sleeps before it looks again; a frame wakes it before.
const SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Everything of one end.
pub struct Port {
    socket: OwnedFd,
    memory: NonNull<u8>,
    fill: Ring<u64>,
    completion: Ring<u64>,
    rx: Ring<Descriptor>,
    tx: Ring<Descriptor>,
    /// Frames to send in.
    free: Vec<u64>,
    /// Frames that were put into the ring and not handed over yet.
    put: u32,
    waiting: Waiting,
    /// Since when nothing has come.
    since: Option<Instant>,
    _link: OwnedFd,
}

/// Repeats what another process's end may still keep busy.
fn patiently<T>(what: &str, mut attempt: impl FnMut() -> io::Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && start.elapsed() < BUSY => {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other.context(what.to_owned()),
        }
    }
}

impl Port {
    /// Takes the host's end of the second cable.
    pub fn open(waiting: Waiting) -> Result<Self> {
        let len = FRAMES as usize * FRAME;
        let (rights, how) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
        // SAFETY: a new mapping, which nothing else knows of and which is never taken away.
        let memory = unsafe { mmap_anonymous(ptr::null_mut(), len, rights, how) }.context("memory")?;
        let Some(memory) = NonNull::new(memory.cast::<u8>()) else { bail!("memory at address 0") };
        let fd = socket(AddressFamily::XDP, SocketType::RAW, None).context("an AF_XDP socket")?;
        let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
        let index = netdevice::name_to_index(&any, cable::DEVICE).context(cable::DEVICE)?;
        let umem = XdpUmemReg {
            addr: memory.as_ptr().addr() as u64,
            len: len as u64,
            chunk_size: FRAME as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&fd, umem).context("XDP_UMEM_REG")?;
        sockopt::set_xdp_umem_fill_ring_size(&fd, ENTRIES)?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, ENTRIES)?;
        sockopt::set_xdp_rx_ring_size(&fd, ENTRIES)?;
        sockopt::set_xdp_tx_ring_size(&fd, ENTRIES)?;
        let offsets = sockopt::xdp_mmap_offsets(&fd)?;
        let mut fill = Ring::map(&fd, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr)?;
        let map = bpf::map().context("a map of sockets")?;
        let program = bpf::load(&map).context("the program")?;
        let link = patiently("attaching the program", || bpf::attach(&program, index))?;
        for frame in 0..ENTRIES {
            fill.put(frame, u64::from(frame) * FRAME as u64);
        }
        fill.produced(ENTRIES);
        let flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP | SocketAddrXdpFlags::XDP_COPY;
        patiently("binding the first queue", || Ok(bind(&fd, &SocketAddrXdp::new(flags, index, 0))?))?;
        bpf::put(&map, &fd).context("the map")?;
        Ok(Self {
            completion: Ring::map(&fd, XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr)?,
            rx: Ring::map(&fd, XDP_PGOFF_RX_RING, &offsets.rx)?,
            tx: Ring::map(&fd, XDP_PGOFF_TX_RING, &offsets.tx)?,
            free: (ENTRIES..FRAMES).map(|frame| u64::from(frame) * FRAME as u64).collect(),
            put: 0,
            socket: fd,
            memory,
            fill,
            waiting,
            since: None,
            _link: link,
        })
    }

    #[inline]
    fn wait(&mut self) -> Result<()> {
        let sleeps = match self.waiting {
            Waiting::Spin => false,
            Waiting::Adaptive => self.since.get_or_insert_with(Instant::now).elapsed() > ADAPTIVE_SPIN,
            Waiting::Sleep => true,
        };
        if sleeps {
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&SLEEP)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e).context("poll"),
            }
        }
        Ok(())
    }
}

impl Frames for Port {
    #[inline]
    fn put(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        if self.free.is_empty() {
            let came = self.completion.came();
            self.free.extend((0..came).map(|n| self.completion.get(n)));
            self.completion.consumed(came);
        }
        // With as many frames to send in as the ring has entries there is always one for it.
        let Some(address) = self.free.pop() else { return false };
        // SAFETY: the frame is whole within the memory, and nobody else has it: it was free.
        let frame = unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().add(address as usize), FRAME) };
        write(&mut frame[..len]);
        self.tx.put(self.put, Descriptor { address, len: len as u32, options: 0 });
        self.put += 1;
        true
    }

    #[inline]
    fn flush(&mut self) -> Result<()> {
        self.tx.produced(std::mem::take(&mut self.put));
        // One call sends a part of what is there.
        while self.tx.waiting() > 0 {
            match send(&self.socket, &[], SendFlags::DONTWAIT) {
                Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {}
                Err(e) => return Err(e).context("sending"),
            }
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self, mut see: impl FnMut(&[u8]) -> Result<()>) -> Result<u32> {
        let came = self.rx.came().min(BURST);
        if came == 0 {
            self.wait()?;
            return Ok(0);
        }
        self.since = None;
        let mut seen = Ok(());
        for n in 0..came {
            let Descriptor { address, len, .. } = self.rx.get(n);
            // SAFETY: the kernel has written the frame, whole within the memory, and has given it away.
            let frame = unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(address as usize), len as usize) };
            if seen.is_ok() {
                seen = see(frame);
            }
            self.fill.put(n, address / FRAME as u64 * FRAME as u64);
        }
        self.rx.consumed(came);
        self.fill.produced(came);
        seen.map(|()| came)
    }
}
