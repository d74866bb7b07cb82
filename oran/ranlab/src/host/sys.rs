#![allow(unsafe_code)]
//! The three system calls that have no safe wrapper.

use std::ffi::c_short;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// `struct ifreq` as TUNSETIFF reads it: a name and flags.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: c_short,
    rest: [u8; 22],
}

/// Creates the TUN device `name` in a network namespace and attaches to it; it lives as long as the file. Reads and writes
/// are whole IP packets and never block.
///
/// # Errors
/// What the kernel says: no such namespace, no right, no driver.
pub fn open_tun(namespace: &str, name: &str) -> io::Result<File> {
    let at = format!("/run/netns/{namespace}");
    let mut request = InterfaceRequest { name: [0; libc::IFNAMSIZ], flags: 0, rest: [0; 22] };
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    request.flags = (libc::IFF_TUN | libc::IFF_NO_PI) as c_short;
    // A thread of its own, because a namespace is the thread's.
    let attach = move || {
        let namespace = File::open(at)?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        let device = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
        // SAFETY: TUNSETIFF reads an ifreq, which `request` is by its layout, and the kernel writes back within it.
        let done = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(device) }
    };
    std::thread::spawn(attach).join().map_err(|_| io::Error::other("the thread that opens the device panicked"))?
}

/// Asks the kernel to run this thread before ordinary ones.
///
/// # Errors
/// There is no right to do so.
pub fn realtime() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 10 };
    // SAFETY: `parameters` is valid for the length of the call, and 0 is this thread.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes a program end when the thread that started it ends, however that came about.
pub fn die_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec nothing but one prctl, which is async-signal-safe, takes place.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            Ok(())
        });
    }
}
