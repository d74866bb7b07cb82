//! The program that takes every frame of an interface's first queue, and the map of sockets that it looks into: `bpf(2)`.

use std::ffi::c_long;
use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const MAP_CREATE: c_long = 0;
const MAP_UPDATE: c_long = 2;
const PROGRAM_LOAD: c_long = 5;
const LINK_CREATE: c_long = 28;
const TYPE_XSKMAP: u32 = 17;
const TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// In the driver.
const NATIVE: u32 = 1 << 2;

/// The call itself. `words` are the command's structure.
fn bpf(command: c_long, words: &mut [u32]) -> io::Result<c_long> {
    // SAFETY: the words are writable and so long; what the addresses among them lead to lives through the call, see the callers.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, words.as_mut_ptr(), size_of_val(words)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn descriptor(command: c_long, words: &mut [u32]) -> io::Result<OwnedFd> {
    let fd = i32::try_from(bpf(command, words)?).map_err(io::Error::other)?;
    // SAFETY: these commands return a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn halves<T>(at: *const T) -> [u32; 2] {
    let word = at.addr() as u64;
    [word as u32, (word >> 32) as u32]
}

/// A map with room for one socket.
pub fn map() -> io::Result<OwnedFd> {
    descriptor(MAP_CREATE, &mut [TYPE_XSKMAP, 4, 4, 1])
}

/// Loads a program that gives every frame to the map's socket of its queue, or else to the kernel.
pub fn load(map: &OwnedFd) -> io::Result<OwnedFd> {
    let map = map.as_raw_fd() as u64;
    // r2 = the queue; r1 = the map (two); r3 = XDP_PASS; bpf_redirect_map; exit.
    let code: [u64; 6] = [0x0010_1261, map << 32 | 0x1118, 0, 0x0000_0002_0000_03b7, 0x0000_0033_0000_0085, 0x95];
    let ([c0, c1], [l0, l1]) = (halves(code.as_ptr()), halves(c"GPL".as_ptr()));
    let mut words = [TYPE_XDP, code.len() as u32, c0, c1, l0, l1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ATTACH_XDP];
    descriptor(PROGRAM_LOAD, &mut words)
}

/// Attaches a program in an interface's driver for as long as the descriptor is open.
pub fn attach(program: &OwnedFd, interface: u32) -> io::Result<OwnedFd> {
    descriptor(LINK_CREATE, &mut [program.as_raw_fd() as u32, interface, ATTACH_XDP, NATIVE])
}

/// Puts a socket into the map, for the first queue.
pub fn put(map: &OwnedFd, socket: &OwnedFd) -> io::Result<()> {
    let (key, value) = (0u32, socket.as_raw_fd() as u32);
    let ([k0, k1], [v0, v1]) = (halves(&raw const key), halves(&raw const value));
    bpf(MAP_UPDATE, &mut [map.as_raw_fd() as u32, 0, k0, k1, v0, v1, 0, 0]).map(drop)
}
