//! Bare UDP with segmentation offload: what the kernel can do.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::{Seen, Watch};

/// Messages larger than a datagram of the usual MTU are sent as runs of datagrams of this size.
const SEGMENT: usize = 1440;

fn option(socket: &UdpSocket, name: libc::c_int, value: libc::c_int) {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is an int that lives through the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, name, (&raw const value).cast(), len) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

pub(crate) fn run(here: SocketAddr, there: SocketAddr, size: usize, receive: bool, seconds: f64) -> Seen {
    let socket = UdpSocket::bind(here).expect("a socket");
    for buffer in [
        rustix::net::sockopt::set_socket_recv_buffer_size_force,
        rustix::net::sockopt::set_socket_send_buffer_size_force,
    ] {
        buffer(&socket, 4 << 20).expect("a buffer");
    }
    let segment = size.min(SEGMENT);
    if receive {
        option(&socket, libc::UDP_GRO, 1);
        return receive_all(&socket, size);
    }
    option(&socket, libc::UDP_SEGMENT, segment as libc::c_int);
    socket.connect(there).expect("a route");
    let buffer = vec![7u8; segment * 64.min(65_000 / segment)];
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        let _ = socket.send(&buffer);
    }
    Seen { messages: 0, bytes: 0, time: start.elapsed(), lost: 0 }
}

fn receive_all(socket: &UdpSocket, size: usize) -> Seen {
    socket.set_nonblocking(true).expect("a socket that does not wait");
    let (mut buffer, mut watch, mut bytes) = (vec![0u8; 65_536], Watch::new(), 0u64);
    loop {
        match socket.recv(&mut buffer) {
            Ok(len) => {
                bytes += len as u64;
                watch.tick();
            }
            Err(_) if watch.over() => break,
            Err(_) => {}
        }
    }
    Seen { messages: bytes / size as u64, bytes, time: watch.time().max(Duration::from_millis(1)), lost: 0 }
}
