//! Two network namespaces with a cable between them, made by a test and gone with it.
#![allow(dead_code, reason = "each test uses a part of it")]

use insane_datapath::conformance::{self as suite, End, Rig};
use insane_datapath::{Datapath, DatapathError};
use insane_datapath_xdp::{Attach, XdpConfig, XdpDatapath};
use insane_tests_namespaces::{Namespaces, has_af_xdp};

/// The interface's name at both ends.
pub(crate) const DEVICE: &str = "veth0";

/// The MAC address of an end.
pub(crate) const fn mac(end: usize) -> [u8; 6] {
    [2, 0x98, 0, 0, 0, 1 + end as u8]
}

/// Two namespaces with a veth pair between them: 10.98.0.1 and fd98::1 at one end, 10.98.0.2 and fd98::2 at the other.
pub(crate) struct Cable(pub(crate) Namespaces);

impl Cable {
    /// `None` where namespaces or AF_XDP sockets cannot be made; then it has said so.
    pub(crate) fn new(mtu: u32, queues: u32) -> Option<Self> {
        Self::with_queues(mtu, queues, queues)
    }

    /// The same, with so many queues to receive and to send by at each end.
    pub(crate) fn with_queues(mtu: u32, receive: u32, send: u32) -> Option<Self> {
        let q = format!("numrxqueues {receive} numtxqueues {send}");
        let namespaces = Namespaces::new(["xa", "xb"], |names| {
            let [a, b] = names;
            let mut steps = vec![format!(
                "link add {DEVICE} netns {a} mtu {mtu} {q} type veth peer name {DEVICE} netns {b} mtu {mtu} {q}"
            )];
            for (end, name) in names.iter().enumerate() {
                let (host, mac) = (end + 1, mac(end).map(|byte| format!("{byte:02x}")).join(":"));
                steps.extend([
                    format!("-n {name} link set {DEVICE} address {mac}"),
                    format!("-n {name} addr add 10.98.0.{host}/24 dev {DEVICE}"),
                    format!("-n {name} addr add fd98::{host}/64 dev {DEVICE} nodad"),
                    format!("-n {name} link set {DEVICE} up"),
                    format!("-n {name} link set lo up"),
                ]);
            }
            steps
        })?;
        has_af_xdp().then_some(Self(namespaces))
    }

    /// A datapath on one end, or why there is none.
    pub(crate) fn try_open(&self, end: usize, config: &XdpConfig) -> Result<XdpDatapath, DatapathError> {
        self.0.inside(end, || {
            let mut xdp = XdpDatapath::new(config.clone());
            xdp.open().map(|()| xdp)
        })
    }

    /// A datapath on one end.
    pub(crate) fn open(&self, end: usize, config: &XdpConfig) -> XdpDatapath {
        self.try_open(end, config).unwrap_or_else(|error| panic!("it opens: {error}"))
    }

    /// Datapaths on both ends.
    pub(crate) fn rig(&self, config: &XdpConfig) -> Rig {
        Rig { a: Box::new(self.open(0, config)), b: Box::new(self.open(1, config)) }
    }

    /// The suite but for outcomes, with rigs on this cable.
    pub(crate) fn conform(&self, rig: impl FnMut() -> Rig) {
        let mut reopen = |end: End, datapath: &mut dyn Datapath| {
            self.0.inside(usize::from(end == End::B), || datapath.open().expect("it opens again"));
        };
        suite::all_over_a_cable(rig, &mut reopen, &mut |end, up| self.set_up(end, up));
    }

    /// Sets the link of one end up or down.
    pub(crate) fn set_up(&self, end: usize, up: bool) {
        let state = if up { "up" } else { "down" };
        self.0.ip(end, &format!("link set {DEVICE} {state}")).expect("it can be set");
    }

    /// What `ip link show` says of an end.
    pub(crate) fn show(&self, end: usize) -> String {
        self.0.ip(end, &format!("link show dev {DEVICE}")).expect("it is there")
    }
}

/// The default configuration for an end, attached like this.
pub(crate) fn config(attach: Attach) -> XdpConfig {
    XdpConfig { attach, frames: 1024, ..XdpConfig::new(DEVICE) }
}
