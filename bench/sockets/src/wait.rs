//! Waiting for a socket: by polling, by polling and then sleeping, by sleeping.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use bench_harness::{ADAPTIVE_SPIN, Stop, Waiting};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, ioctl_fionbio};

/// Sets the socket's mode for the class: only a sleeping end lets the kernel block it.
///
/// # Errors
/// The socket refuses.
pub fn prepare(socket: &impl AsFd, waiting: Waiting) -> io::Result<()> {
    Ok(ioctl_fionbio(socket, waiting != Waiting::Sleep)?)
}

/// Repeats a socket call until it has an answer, waiting as the class says. `None` when told to stop.
///
/// # Errors
/// What the call itself reports.
#[inline]
pub fn until_ready<T>(
    socket: &impl AsFd,
    waiting: Waiting,
    events: PollFlags,
    stop: Option<&Stop>,
    mut call: impl FnMut() -> Result<T, Errno>,
) -> io::Result<Option<T>> {
    let mut since: Option<Instant> = None;
    loop {
        match call() {
            Ok(value) => return Ok(Some(value)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                if stop.is_some_and(Stop::requested) {
                    return Ok(None);
                }
                if waiting == Waiting::Adaptive && since.get_or_insert_with(Instant::now).elapsed() > ADAPTIVE_SPIN {
                    poll(&mut [PollFd::new(socket, events)], None)?;
                    since = None;
                }
            }
            Err(e) => return Err(e.into()),
        }
    }
}
