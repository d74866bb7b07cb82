//! What else takes `unsafe`: a socket option that no crate knows yet, and copying payload that another process may change.
//!
//! Invariants:
//! - `INV-SYS-1` A socket option's value lives through the call, and its size is given.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use insane_datapath::memory::Piece;

/// `XDP_MAX_TX_SKB_BUDGET`.
const SEND_BUDGET: libc::c_int = 9;

/// How many frames one call may send in copy mode.
pub(crate) fn set_send_budget(socket: BorrowedFd<'_>, frames: u32) -> io::Result<()> {
    let len = size_of::<u32>() as libc::socklen_t;
    let value = (&raw const frames).cast();
    // SAFETY: INV-SYS-1.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, SEND_BUDGET, value, len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Fills `out` from byte `at` of a piece on; the piece must have so many.
pub(crate) fn copy_from_piece(piece: &Piece<'_>, at: usize, out: &mut [u8]) {
    assert!(at.checked_add(out.len()).is_some_and(|end| end <= piece.len()));
    // SAFETY: INV-MEM-2 of the datapath crate for the source, of which so much is there; the target is borrowed mutably, so
    // it is other memory.
    unsafe {
        core::ptr::copy_nonoverlapping(piece.base().as_ptr().cast_const().add(at), out.as_mut_ptr(), out.len());
    }
}
