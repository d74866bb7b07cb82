//! How a UDP datapath is set up.

use std::net::SocketAddr;
use std::time::Duration;

/// What a UDP datapath is opened with.
#[derive(Debug, Clone)]
pub struct UdpConfig {
    /// The address and port that it sends from and receives on. IPv4 or IPv6; port 0 lets the kernel choose.
    pub bind: SocketAddr,
    /// The only interface that it uses. Without one the kernel routes by the peer's address.
    pub interface: Option<String>,
    /// The size in bytes asked for the socket's receive buffer.
    pub receive_buffer: usize,
    /// The size in bytes asked for the socket's send buffer.
    pub send_buffer: usize,
    /// What `SO_BUSY_POLL` (socket(7)) is set to: a receive that finds nothing polls the device, once, as it never waits; who sleeps on
    /// the handle polls it for so long where the system does that (`net.core.busy_poll`). `None` leaves the system's default.
    pub busy_poll: Option<Duration>,
    /// Whether frames of one size are handed to the kernel as one piece (UDP_SEGMENT), where it can.
    pub segmentation: bool,
    /// Whether the kernel may hand over frames of one size as one piece (UDP_GRO), where it can.
    pub joined_receive: bool,
    /// Whether each peer is sent to through a socket that is connected to it, where the kernel can.
    pub lines: bool,
    /// How far apart the frames lie in bytes that are one frame, or several that the kernel has joined, if frames say that themselves:
    /// at least 1, at most how many bytes there are. Who gets one frame at a time then need not ask the kernel, which answers a call
    /// that does not ask sooner.
    pub stride: Option<fn(&[u8]) -> usize>,
}

impl UdpConfig {
    /// Buffers of 4 MiB, both offloads, lines, no busy polling.
    #[must_use]
    pub const fn new(bind: SocketAddr) -> Self {
        Self {
            bind,
            interface: None,
            receive_buffer: 4 << 20,
            send_buffer: 4 << 20,
            busy_poll: None,
            segmentation: true,
            joined_receive: true,
            lines: true,
            stride: None,
        }
    }
}
