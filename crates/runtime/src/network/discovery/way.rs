//! How a session with Zenoh reaches the network, as settings: everything that Zenoh would do of its own accord is off. It looks
//! for nobody, and connects to nobody but the one address that it is given.

use std::net::{IpAddr, SocketAddr};

/// A connection is lost when nothing has come over it for so long, in milliseconds; a quarter of it between signs of life.
const LEASE_MS: u64 = 3000;

/// How long a connection may take to be made or accepted, in milliseconds.
const OPEN_MS: u64 = 1500;

/// What a session is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Role {
    /// Others connect to these addresses; a router also connects to others.
    Listener {
        /// Where.
        listen: Vec<SocketAddr>,
        /// The other routers, if it is one.
        router: Option<Vec<SocketAddr>>,
    },
    /// It connects to one address.
    Connector(SocketAddr),
}

/// How it reaches the network.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    pub(crate) role: Role,
    /// The only interface that it may use.
    pub(crate) interface: Option<String>,
    /// Interfaces by their addresses: without another word an address is used on its interface alone.
    pub(crate) bound: Vec<(IpAddr, String)>,
}

impl Way {
    pub(crate) fn endpoints(&self, addresses: &[SocketAddr]) -> String {
        let own = |address: &SocketAddr| self.bound.iter().find(|(ip, _)| *ip == address.ip()).map(|(_, name)| name);
        let on = |address| self.interface.as_ref().or_else(|| own(address)).map(|name| format!("#iface={name}"));
        let list: Vec<String> =
            addresses.iter().map(|address| format!("tcp/{address}{}", on(address).unwrap_or_default())).collect();
        serde_json::Value::from(list).to_string()
    }

    /// Every key that matters, whatever Zenoh's defaults are.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let (mode, listen, connect) = match &self.role {
            Role::Listener { listen, router: None } => ("peer", listen.clone(), Vec::new()),
            Role::Listener { listen, router: Some(others) } => ("router", listen.clone(), others.clone()),
            Role::Connector(address) => ("client", Vec::new(), vec![*address]),
        };
        let connector = mode == "client";
        vec![
            ("mode", format!("\"{mode}\"")),
            ("connect/endpoints", self.endpoints(&connect)),
            // A connector tries once, and is tried again by its owner; a router's own connections are Zenoh's to try again.
            ("connect/timeout_ms", if connector { "0" } else { "-1" }.to_owned()),
            ("connect/exit_on_failure", connector.to_string()),
            ("connect/retry", "{ period_init_ms: 500, period_max_ms: 4000, period_increase_factor: 2 }".to_owned()),
            // Said for connectors too, or Zenoh has a default for it.
            ("listen/endpoints", self.endpoints(&listen)),
            ("listen/timeout_ms", "0".to_owned()),
            ("listen/exit_on_failure", "true".to_owned()),
            ("scouting/multicast/enabled", "false".to_owned()),
            ("scouting/gossip/enabled", "false".to_owned()),
            ("adminspace/enabled", "false".to_owned()),
            ("timestamping/enabled", "false".to_owned()),
            ("open/return_conditions/connect_scouted", "false".to_owned()),
            ("transport/unicast/open_timeout", OPEN_MS.to_string()),
            ("transport/unicast/accept_timeout", OPEN_MS.to_string()),
            ("transport/unicast/accept_pending", "64".to_owned()),
            ("transport/unicast/max_sessions", "512".to_owned()),
            ("transport/unicast/max_links", "1".to_owned()),
            ("transport/link/tx/lease", LEASE_MS.to_string()),
            ("transport/link/tx/keep_alive", "4".to_owned()),
            ("transport/link/rx/max_message_size", "65536".to_owned()),
        ]
    }
}
