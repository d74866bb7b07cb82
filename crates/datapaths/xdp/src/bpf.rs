//! The map of sockets, the program and its link to an interface: `bpf(2)`, which no safe crate offers as it is needed.
//!
//! Invariants:
//! - `INV-BPF-1` Every structure handed to the call is `repr(C)`, as long as is said, without padding between its fields, and
//!   zero where the kernel expects zero.
//! - `INV-BPF-2` Every address in one is of memory that lives through the call and is as large as the structure says.
//! - `INV-BPF-3` What the call returns as a descriptor is a new one that nobody else has.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::asm::Instruction;

// Commands.
const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE: libc::c_long = 2;
const MAP_DELETE: libc::c_long = 3;
const PROGRAM_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const LINK_DETACH: libc::c_long = 34;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROGRAM_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
/// The program can be given frames of several buffers (Linux 5.18).
const HAS_FRAGMENTS: u32 = 1 << 5;
const LICENCE: &core::ffi::CStr = c"GPL";
/// What programs and maps are called in lists of them.
const NAME: [u8; 16] = *b"insane\0\0\0\0\0\0\0\0\0\0";

/// Where a program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the driver.
    Native = 1 << 2,
    /// Before the kernel's stack.
    Generic = 1 << 1,
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
    flags: u32,
    inner: u32,
    node: u32,
    name: [u8; 16],
}

#[repr(C)]
struct MapElement {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// The call itself.
fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: INV-BPF-1 and INV-BPF-2.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn bpf_descriptor<T>(command: libc::c_long, attributes: &mut T) -> io::Result<OwnedFd> {
    let descriptor = bpf(command, attributes)?;
    let descriptor = i32::try_from(descriptor).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: INV-BPF-3.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn number(descriptor: BorrowedFd<'_>) -> u32 {
    // A borrowed descriptor is never negative.
    descriptor.as_raw_fd().cast_unsigned()
}

fn address<T>(of: *const T) -> u64 {
    of.addr() as u64
}

/// A map from a queue's number to its socket, for queues below `queues`.
pub(crate) fn new_map(queues: u32) -> io::Result<OwnedFd> {
    let mut attributes = MapCreate {
        kind: MAP_TYPE_XSKMAP,
        key_size: 4,
        value_size: 4,
        entries: queues,
        flags: 0,
        inner: 0,
        node: 0,
        name: NAME,
    };
    bpf_descriptor(MAP_CREATE, &mut attributes)
}

/// Puts a socket into the map.
pub(crate) fn put(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let value = number(socket);
    let mut attributes = MapElement {
        map: number(map),
        padding: 0,
        key: address(&raw const queue),
        value: address(&raw const value),
        flags: 0,
    };
    bpf(MAP_UPDATE, &mut attributes).map(drop)
}

/// Takes a queue's socket out of the map: frames for it go to the kernel from now on.
pub(crate) fn remove(map: BorrowedFd<'_>, queue: u32) -> io::Result<()> {
    let mut attributes =
        MapElement { map: number(map), padding: 0, key: address(&raw const queue), value: 0, flags: 0 };
    bpf(MAP_DELETE, &mut attributes).map(drop)
}

/// Loads a program. `log` gets what the verifier says if it refuses.
pub(crate) fn load(program: &[Instruction], fragments: bool, log: &mut String) -> io::Result<OwnedFd> {
    match load_with(program, fragments, &mut []) {
        Err(e) if e.raw_os_error() != Some(libc::EPERM) => {
            let mut text = vec![0u8; 256 << 10];
            let result = load_with(program, fragments, &mut text);
            let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
            *log = String::from_utf8_lossy(&text[..end]).into_owned();
            // Without a log it was refused, so it is with one; if not, all is well.
            result
        }
        result => result,
    }
}

fn load_with(program: &[Instruction], fragments: bool, log: &mut [u8]) -> io::Result<OwnedFd> {
    let code: Vec<u8> = program.iter().flat_map(|instruction| instruction.bytes()).collect();
    let mut attributes = ProgramLoad {
        kind: PROGRAM_TYPE_XDP,
        instruction_count: program.len() as u32,
        instructions: address(code.as_ptr()),
        licence: address(LICENCE.as_ptr()),
        log_level: u32::from(!log.is_empty()),
        log_size: log.len() as u32,
        log: if log.is_empty() { 0 } else { address(log.as_mut_ptr().cast_const()) },
        kernel_version: 0,
        flags: if fragments { HAS_FRAGMENTS } else { 0 },
        name: NAME,
        interface: 0,
        expected_attach_type: ATTACH_TYPE_XDP,
    };
    bpf_descriptor(PROGRAM_LOAD, &mut attributes)
}

/// Attaches a program to an interface for as long as the descriptor that comes back is open: it leaves with its process,
/// however that ends.
pub(crate) fn attach(program: BorrowedFd<'_>, interface: u32, place: Place) -> io::Result<OwnedFd> {
    let mut attributes =
        LinkCreate { program: number(program), interface, attach_type: ATTACH_TYPE_XDP, flags: place as u32 };
    bpf_descriptor(LINK_CREATE, &mut attributes)
}

/// Takes the program off the interface now, even if a child that was just forked still has the descriptor (Linux 5.11).
pub(crate) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    bpf(LINK_DETACH, &mut [number(link)]).map(drop)
}

/// Runs a program on a frame, once, and says what it returned. The frame has at least 14 bytes.
#[cfg(test)]
pub(crate) fn test_run(program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<u32> {
    const TEST_RUN: libc::c_long = 10;
    #[repr(C)]
    struct TestRun {
        program: u32,
        result: u32,
        in_size: u32,
        out_size: u32,
        input: u64,
        output: u64,
        repeat: u32,
        duration: u32,
        // The context, the flags, the core and the batch, of which none is used.
        rest: [u64; 5],
    }
    let mut attributes = TestRun {
        program: number(program),
        result: 0,
        in_size: frame.len() as u32,
        out_size: 0,
        input: address(frame.as_ptr()),
        output: 0,
        repeat: 1,
        duration: 0,
        rest: [0; 5],
    };
    bpf(TEST_RUN, &mut attributes)?;
    Ok(attributes.result)
}
