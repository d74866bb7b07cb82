//! The runtime of INSANE on one host: it takes sessions in, keeps domains, streams, channels, sources and sinks, and
//! introduces every source's session to every sink's. It is not on the path of local data; what goes to other hosts and comes
//! from them is the network thread's.
//!
//! Purpose: the session server and the network side. Non-purpose: what is in frames (`insane-wire`), what is sent again
//! (`insane-transport`), how frames get to other hosts (`insane-datapath`). Without a `[network]` section no network socket is
//! opened. Layer: above all of these, below the daemon `insaned`.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `capture` | who may capture a datapath, and what writes a capture away |
//! | [`config`] | the configuration: every key, its default, its check |
//! | [`core`] | the state machine, without input or output |
//! | [`policy`] | requested QoS to effective QoS, as a table |
//! | `rebind` | who may move streams to another datapath, and what was asked for |
//! | [`server`] | sockets, credentials, descriptors around the core |
//! | [`network`] | channels to other hosts: one thread, if the configuration has a `[network]` section |
//! | [`doctor`] | what this host can do, and what is odd |
//! | [`watch`] | whether a server still serves |
//!
//! ```no_run
//! use insane_runtime::{config::Config, server::Server};
//!
//! let mut config = Config::default();
//! config.runtime.socket = "/tmp/insane-example.sock".into();
//! let server = Server::start(config).unwrap();
//! server.stop();
//! ```
#![forbid(unsafe_code)]

mod again;
mod capture;
pub mod config;
pub mod core;
pub mod doctor;
pub mod knob;
pub mod network;
pub mod policy;
mod rebind;
pub mod server;
pub mod watch;
