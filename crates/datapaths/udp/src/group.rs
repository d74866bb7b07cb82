//! Several sockets at one address (`SO_REUSEPORT`), each to be received from by a thread of its own.
//!
//! The first is bound as one that shares its address with nobody, and only then made one of a group: a second runtime at the address is
//! refused, as it is where there is one socket. Who else is of the same user, and asks for it, could join the group: that one could read
//! this process's memory as well.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use insane_datapath::{DatapathError, Split};
use rustix::net::{self, sockopt};

use crate::socket::system;
use crate::{UdpDatapath, socket, sys};

impl UdpDatapath {
    /// Has up to `most` further sockets receive beside the first.
    pub(crate) fn split_sockets(&mut self, most: usize) -> Split {
        let (Some(first), Some(address)) = (&self.socket, self.address) else { return Split::default() };
        let mut split = Split::default();
        if let Err(e) = sockopt::set_socket_reuseport(first, true) {
            split.short = Some(format!("one socket receives: SO_REUSEPORT: {e}"));
            return split;
        }
        while split.parts.len() < most {
            match self.further(address) {
                Ok(part) => split.parts.push(Box::new(part)),
                Err(e) => {
                    split.short = Some(format!("no further socket: {e}"));
                    break;
                }
            }
        }
        let sockets = u32::try_from(split.parts.len() + 1).unwrap_or(u32::MAX);
        // Where the kernel does not let us say how, it spreads them by a hash of both addresses and ports.
        let _ = sys::spread_by_sender(first.as_fd(), sockets, address.is_ipv4());
        split
    }

    /// One more socket at the address, set up as the first is.
    fn further(&self, address: SocketAddr) -> Result<Self, DatapathError> {
        let mut part = Self::new(self.config.clone());
        let socket = socket::new(&part.config)?;
        (part.holds, part.notes) = socket::size_buffers(&socket, &part.config);
        part.set_options(&socket);
        sockopt::set_socket_reuseport(&socket, true).map_err(system("SO_REUSEPORT"))?;
        net::bind(&socket, &address).map_err(system("bind"))?;
        (part.address, part.index, part.is_part) = (Some(address), self.index, true);
        part.socket = Some(socket);
        Ok(part)
    }
}
