//! Sockets as the datapath wants them: that never wait, whose frames IP never cuts, on the interface that is configured.

use std::os::fd::{AsFd, OwnedFd};

use insane_datapath::DatapathError;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

use crate::{UdpConfig, sys};

pub(crate) fn system(call: &'static str) -> impl Fn(rustix::io::Errno) -> DatapathError {
    move |e| DatapathError::System { call, source: e.into() }
}

/// One that is not bound yet.
pub(crate) fn new(config: &UdpConfig) -> Result<OwnedFd, DatapathError> {
    let family = if config.bind.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(family, SocketType::DGRAM, flags, None).map_err(system("socket"))?;
    // Never cut by IP: a lost fragment costs the whole, and the runtime cuts by itself.
    if config.bind.is_ipv4() {
        sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO).map_err(system("IP_MTU_DISCOVER"))?;
    } else {
        sockopt::set_ipv6_v6only(&socket, true).map_err(system("IPV6_V6ONLY"))?;
        sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO).map_err(system("IPV6_MTU_DISCOVER"))?;
    }
    if let Some(interface) = &config.interface {
        sys::bind_to_interface(socket.as_fd(), interface)
            .map_err(|source| DatapathError::System { call: "SO_BINDTODEVICE", source })?;
    }
    Ok(socket)
}

/// Asks for a send buffer, with force where that is allowed; says how many bytes it has.
pub(crate) fn size_send_buffer(socket: &OwnedFd, bytes: usize) -> usize {
    if sockopt::set_socket_send_buffer_size_force(socket, bytes).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, bytes);
    }
    // The kernel doubles what it is asked for, for its own needs, and says the double.
    sockopt::socket_send_buffer_size(socket).unwrap_or(0) / 2
}

/// As [`size_send_buffer`], for what it receives.
fn size_receive_buffer(socket: &OwnedFd, bytes: usize) -> usize {
    if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, bytes);
    }
    sockopt::socket_recv_buffer_size(socket).unwrap_or(0) / 2
}

/// Sizes both buffers; gives what the kernel lets lie in the receive buffer, by its own count, and says what is missing.
pub(crate) fn size_buffers(socket: &OwnedFd, config: &UdpConfig) -> (usize, Vec<String>) {
    let receive = size_receive_buffer(socket, config.receive_buffer);
    let send = size_send_buffer(socket, config.send_buffer);
    let both =
        [("receive", "rmem_max", config.receive_buffer, receive), ("send", "wmem_max", config.send_buffer, send)];
    let missing = both.into_iter().filter(|&(_, _, asked, given)| given < asked);
    let note = |(what, limit, asked, given)| {
        format!(
            "the {what} buffer has {given} bytes instead of {asked}: raise net.core.{limit} or give the runtime CAP_NET_ADMIN"
        )
    };
    (2 * receive, missing.map(note).collect())
}
