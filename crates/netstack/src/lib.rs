//! The packet engine: what stands between a datapath that moves raw Ethernet frames and those who want datagrams or
//! streams.
//!
//! Purpose: Ethernet with one VLAN tag, ARP and neighbour discovery, routes, IPv4 and IPv6 with fragments, ICMP, path MTUs
//! and UDP, in code of this crate; TCP by smoltcp behind the same [`Engine`] ([`tcp`]). Frames go in as bytes with the time,
//! frames come out through [`Emit`]; a datapath that gathers payload itself asks for the bytes that stand in front of it
//! ([`Engine::header`]). Non-purpose: this crate opens no device, reads no clock and owns no frame's memory; it is no router,
//! keeps no multicast membership (IGMP, MLD), asks for no address (DHCP, router advertisements) and tries none out before it
//! uses it (duplicate address detection): addresses and routes are configured. It does not send to itself.
//!
//! Layer: above nothing. Used by the datapaths that carry raw frames. An [`Engine`] belongs to one thread at a time; no call
//! waits. Time is a `u64` in nanoseconds since any fixed moment and never goes back.
//!
//! What comes from outside is hostile: every length is checked before it is used, all tables have a fixed number of places
//! that are taken when the engine is made, and everything that is dropped is counted by its [`Reason`]. Receiving and sending
//! a UDP datagram that fits its path allocates nothing (test: the_datagram_path_allocates_nothing).
//!
//! Sources: RFC 768, 791, 792, 826, 919, 1071, 1122, 1191, 3021, 4291, 4443, 4861, 5095, 5227, 5722, 6864, 6946, 6980, 7739,
//! 8200, 8201, IEEE 802.3 and 802.1Q.
//!
//! ```
//! use insane_netstack::{Arrival, Config, Engine, Interface, Mac, Received, SendError};
//!
//! let host = |n: u8| {
//!     let address = format!("10.0.0.{n}/24").parse().unwrap();
//!     Engine::new(&Config::new(vec![Interface::new(Mac([2, 0, 0, 0, 0, n]), vec![address])], 7)).unwrap()
//! };
//! let (mut a, mut b) = (host(1), host(2));
//! let from = a.bind(None, 1000).unwrap();
//! b.bind(None, 2000).unwrap();
//!
//! // The first datagram waits until the neighbour has said where it is.
//! let mut wire = Vec::new();
//! a.send(0, from, "10.0.0.2:2000".parse().unwrap(), &[b"hel", b"lo"], &mut wire).unwrap();
//! let (mut question, mut answer) = (std::mem::take(&mut wire), Vec::new());
//! b.receive(1, &Arrival::new(0, &question.remove(0).1), &mut answer);
//! a.receive(2, &Arrival::new(0, &answer.remove(0).1), &mut wire);
//!
//! let frame = wire.remove(0).1;
//! let Received::Udp(datagram) = b.receive(3, &Arrival::new(0, &frame), &mut answer) else { panic!("it arrives") };
//! assert_eq!(datagram.payload.bytes(&frame), b"hello");
//! assert_eq!(datagram.from, "10.0.0.1:1000".parse().unwrap());
//! ```
#![forbid(unsafe_code)]

pub mod arp;
pub mod checksum;
mod config;
mod emit;
mod engine;
pub mod ether;
mod flow;
pub mod icmp;
pub mod ip;
pub mod nd;
mod neighbour;
pub mod path;
mod ports;
mod rate;
mod reassembly;
pub mod route;
mod stats;
mod table;
pub mod tcp;
pub mod udp;
mod waiting;

pub use config::{Config, ConfigError, Interface, Limits};
pub use emit::Emit;
pub use engine::{Arrival, Datagram, Engine, Payload, Received, Report};
pub use ether::Mac;
pub use flow::{Flow, HEADROOM, Header, NoRoom, SendError};
pub use ports::{BindError, Binding};
pub use rate::Rate;
pub use route::{Prefix, Route};
pub use stats::{Reason, Stats};
