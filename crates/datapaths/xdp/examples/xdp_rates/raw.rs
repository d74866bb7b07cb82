//! A bare AF_XDP loop: what the technology can do. Everything that comes to queue 0 is taken; nothing is checked or copied.

use std::mem::size_of;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SendFlags, SocketType, bind, send, socket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::{DEVICE, Mover, NUMBER, number, template};

const FRAMES: u32 = 4096;
const RING: u32 = FRAMES / 2;

#[repr(C)]
#[derive(Clone, Copy)]
struct Descriptor {
    address: u64,
    len: u32,
    options: u32,
}

/// A ring of entries of one kind; `next` is this side's index.
struct Ring<T> {
    producer: *const AtomicU32,
    consumer: *const AtomicU32,
    entries: *mut T,
    next: u32,
}

impl<T: Copy> Ring<T> {
    fn map(fd: &OwnedFd, at: u64, offsets: &XdpRingOffset) -> Self {
        let len = offsets.desc as usize + RING as usize * size_of::<T>();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping; it is never taken away.
        let base = unsafe { mmap(ptr::null_mut(), len, rights, MapFlags::SHARED | MapFlags::POPULATE, fd, at) };
        let base = base.expect("a ring").cast::<u8>();
        let index = |offset: u64| base.wrapping_add(offset as usize).cast::<AtomicU32>().cast_const();
        let entries = base.wrapping_add(offsets.desc as usize).cast();
        Self { producer: index(offsets.producer), consumer: index(offsets.consumer), entries, next: 0 }
    }

    fn entry(&self, ahead: u32) -> *mut T {
        self.entries.wrapping_add((self.next.wrapping_add(ahead) & (RING - 1)) as usize)
    }

    fn came(&self) -> u32 {
        // SAFETY: the word is in the mapping.
        unsafe { &*self.producer }.load(Ordering::Acquire).wrapping_sub(self.next)
    }

    fn waiting(&self) -> u32 {
        // SAFETY: the word is in the mapping.
        self.next.wrapping_sub(unsafe { &*self.consumer }.load(Ordering::Acquire))
    }

    fn get(&self, ahead: u32) -> T {
        // SAFETY: the entry is in the mapping and has come.
        unsafe { self.entry(ahead).read() }
    }

    fn put(&self, ahead: u32, entry: T) {
        // SAFETY: the entry is in the mapping and there is room.
        unsafe { self.entry(ahead).write(entry) };
    }

    fn produced(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
        // SAFETY: the word is in the mapping.
        unsafe { &*self.producer }.store(self.next, Ordering::Release);
    }

    fn consumed(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
        // SAFETY: the word is in the mapping.
        unsafe { &*self.consumer }.store(self.next, Ordering::Release);
    }
}

/// A socket with its rings and memory.
pub(crate) struct Raw {
    fd: OwnedFd,
    base: *mut u8,
    chunk: usize,
    size: usize,
    fill: Ring<u64>,
    completion: Ring<u64>,
    rx: Ring<Descriptor>,
    tx: Ring<Descriptor>,
    free: Vec<u64>,
    _link: OwnedFd,
}

fn bpf(command: libc::c_long, words: &mut [u32]) -> OwnedFd {
    // SAFETY: what the addresses among the words lead to lives through the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, words.as_mut_ptr(), size_of_val(words)) };
    assert!(result >= 0, "bpf {command}: {}", std::io::Error::last_os_error());
    // SAFETY: all commands used here but one return a new descriptor; that one returns 0 and is not called this way.
    unsafe { OwnedFd::from_raw_fd(result as i32) }
}

/// A program that takes everything, attached to the device; and the map of sockets.
fn attach(index: u32, generic: bool) -> (OwnedFd, OwnedFd) {
    let map = bpf(0, &mut [17, 4, 4, 4]);
    let fd = map.as_raw_fd() as u64;
    // r2 = queue; r1 = map; r3 = XDP_PASS; redirect_map; exit
    let code: [u64; 6] = [0x0010_1261, fd << 32 | 0x1118, 0, 0x0000_0002_0000_03b7, 0x0000_0033_0000_0085, 0x95];
    let (licence, code_at) = (c"GPL".as_ptr().addr() as u64, code.as_ptr().addr() as u64);
    let halves = |word: u64| [word as u32, (word >> 32) as u32];
    let ([c0, c1], [l0, l1]) = (halves(code_at), halves(licence));
    let program = bpf(5, &mut [6, 6, c0, c1, l0, l1, 0, 0, 0, 0, 0, 1 << 5, 0, 0, 0, 0, 0, 37]);
    let link = bpf(28, &mut [program.as_raw_fd() as u32, index, 37, if generic { 2 } else { 4 }]);
    (map, link)
}

impl Raw {
    pub(crate) fn open(end: usize, size: usize, generic: bool) -> Self {
        let chunk = if size > 1500 { 4096 } else { 2048 };
        let len = FRAMES as usize * chunk;
        let how = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping; it is never taken away.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, how) };
        let base = base.expect("memory").cast::<u8>();
        let fd = socket(AddressFamily::XDP, SocketType::RAW, None).expect("a socket");
        let index = rustix::net::netdevice::name_to_index(&fd, DEVICE);
        let index = index.or_else(|_| {
            let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
            rustix::net::netdevice::name_to_index(&any, DEVICE)
        });
        let index = index.expect("the device");
        let umem = XdpUmemReg {
            addr: base.addr() as u64,
            len: len as u64,
            chunk_size: chunk as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&fd, umem).expect("the memory");
        sockopt::set_xdp_umem_fill_ring_size(&fd, RING).expect("a ring");
        sockopt::set_xdp_umem_completion_ring_size(&fd, RING).expect("a ring");
        sockopt::set_xdp_rx_ring_size(&fd, RING).expect("a ring");
        sockopt::set_xdp_tx_ring_size(&fd, RING).expect("a ring");
        let offsets = sockopt::xdp_mmap_offsets(&fd).expect("offsets");
        let mut fill = Ring::<u64>::map(&fd, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr);
        let (map, link) = attach(index, generic);
        for frame in 0..RING {
            fill.put(frame, u64::from(frame) * chunk as u64);
        }
        fill.produced(RING);
        let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP | SocketAddrXdpFlags::XDP_COPY;
        if size > chunk {
            flags |= SocketAddrXdpFlags::XDP_USE_SG;
        }
        let start = Instant::now();
        while let Err(error) = bind(&fd, &SocketAddrXdp::new(flags, index, 0)) {
            assert!(start.elapsed() < Duration::from_secs(3), "bind: {error}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let (key, value) = (0u32, fd.as_raw_fd() as u32);
        let [k0, k1] = [(&raw const key).addr() as u32, ((&raw const key).addr() >> 32) as u32];
        let [v0, v1] = [(&raw const value).addr() as u32, ((&raw const value).addr() >> 32) as u32];
        let mut words = [map.as_raw_fd() as u32, 0, k0, k1, v0, v1, 0, 0];
        // SAFETY: key and value live through the call.
        let put = unsafe { libc::syscall(libc::SYS_bpf, 2, words.as_mut_ptr(), size_of_val(&words)) };
        assert_eq!(put, 0, "the map: {}", std::io::Error::last_os_error());
        let completion = Ring::map(&fd, XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr);
        let rx = Ring::map(&fd, XDP_PGOFF_RX_RING, &offsets.rx);
        let tx = Ring::map(&fd, XDP_PGOFF_TX_RING, &offsets.tx);
        let frame = template(end, size);
        let free: Vec<u64> = (RING..FRAMES).map(|frame| u64::from(frame) * chunk as u64).collect();
        for address in &free {
            let bytes = &frame[..size.min(chunk)];
            // SAFETY: the frame is in the memory, and the kernel does not have it.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), base.add(*address as usize), bytes.len()) };
        }
        Self { fd, base, chunk, size, fill, completion, rx, tx, free, _link: link }
    }

    fn kick(&self) {
        // Each call sends a part of what is there, or drops one.
        for _ in 0..64 {
            if self.tx.waiting() == 0 {
                break;
            }
            let _ = send(&self.fd, &[], SendFlags::DONTWAIT);
        }
    }
}

impl Mover for Raw {
    fn send(&mut self, first: u64, count: usize) -> usize {
        let came = self.completion.came();
        for n in 0..came {
            self.free.push(self.completion.get(n));
        }
        self.completion.consumed(came);
        let each = self.size.div_ceil(self.chunk);
        let room = (RING - self.tx.waiting()) as usize;
        let count = count.min(self.free.len() / each).min(room / each);
        let mut at = 0;
        for next in (first..).take(count) {
            let mut rest = self.size;
            for part in 0..each {
                let address = self.free.pop().expect("counted above");
                if part == 0 {
                    let to = self.base.wrapping_add(address as usize + NUMBER.start);
                    // SAFETY: the number is in the frame, and the kernel does not have it.
                    unsafe { to.cast::<[u8; 8]>().write(next.to_le_bytes()) };
                }
                let len = rest.min(self.chunk);
                rest -= len;
                self.tx.put(at, Descriptor { address, len: len as u32, options: u32::from(rest > 0) });
                at += 1;
            }
        }
        self.tx.produced(at);
        self.kick();
        count
    }

    fn receive(&mut self, see: &mut dyn FnMut(u64)) -> usize {
        let came = self.rx.came().min(128);
        let (mut count, mut begins) = (0, true);
        for n in 0..came {
            let Descriptor { address, len, options } = self.rx.get(n);
            if begins {
                // SAFETY: the frame is in the memory, and the kernel has given it away.
                let head = unsafe { std::slice::from_raw_parts(self.base.add(address as usize), len as usize) };
                if let Some(number) = number(head) {
                    see(number);
                    count += 1;
                }
            }
            begins = options & 1 == 0;
            self.fill.put(n, address / self.chunk as u64 * self.chunk as u64);
        }
        self.rx.consumed(came);
        self.fill.produced(came);
        count
    }
}
