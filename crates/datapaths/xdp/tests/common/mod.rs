//! Two network namespaces with a cable between them, made by a test and gone with it.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::fs::File;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use insane_datapath::conformance::Rig;
use insane_datapath::{Datapath, DatapathError};
use insane_datapath_xdp::{Attach, XdpConfig, XdpDatapath};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The interface's name at both ends.
pub(crate) const DEVICE: &str = "veth0";

/// Runs `ip`.
pub(crate) fn ip(arguments: &str) -> Result<String, String> {
    let output = Command::new("ip").args(arguments.split(' ')).stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("ip: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// The MAC address of an end.
pub(crate) const fn mac(end: usize) -> [u8; 6] {
    [2, 0x98, 0, 0, 0, 1 + end as u8]
}

/// Two namespaces with a veth pair between them: 10.98.0.1 and fd98::1 at one end, 10.98.0.2 and fd98::2 at the other.
pub(crate) struct Cable {
    pub(crate) names: [String; 2],
}

impl Cable {
    /// `None` where namespaces or AF_XDP sockets cannot be made; then it has said so.
    pub(crate) fn new(mtu: u32, queues: u32) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: network namespaces and AF_XDP, which take root");
            return None;
        }
        let socket = rustix::net::socket(rustix::net::AddressFamily::XDP, rustix::net::SocketType::RAW, None);
        if let Err(error) = socket {
            println!("SKIPPED: AF_XDP sockets cannot be made here: {error}");
            return None;
        }
        let id = format!("{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let cable = Self { names: [format!("insxa{id}"), format!("insxb{id}")] };
        let [a, b] = &cable.names;
        let q = format!("numrxqueues {queues} numtxqueues {queues}");
        let mut steps = vec![
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("link add {DEVICE} netns {a} mtu {mtu} {q} type veth peer name {DEVICE} netns {b} mtu {mtu} {q}"),
        ];
        for (end, name) in cable.names.iter().enumerate() {
            let (host, [x, y, z, u, v, w]) = (end + 1, mac(end));
            steps.extend([
                format!("-n {name} link set {DEVICE} address {x:02x}:{y:02x}:{z:02x}:{u:02x}:{v:02x}:{w:02x}"),
                format!("-n {name} addr add 10.98.0.{host}/24 dev {DEVICE}"),
                format!("-n {name} addr add fd98::{host}/64 dev {DEVICE} nodad"),
                format!("-n {name} link set {DEVICE} up"),
                format!("-n {name} link set lo up"),
            ]);
        }
        for step in &steps {
            if let Err(error) = ip(step) {
                println!("SKIPPED: network namespaces cannot be made here: {error}");
                return None;
            }
        }
        Some(cable)
    }

    /// Does something inside a namespace, in a thread of its own. A socket stays in the namespace in which it was made.
    pub(crate) fn inside<R: Send>(&self, end: usize, act: impl FnOnce() -> R + Send) -> R {
        let file = File::open(format!("/run/netns/{}", self.names[end])).expect("the namespace");
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter it");
                act()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A datapath on one end, or why there is none.
    pub(crate) fn try_open(&self, end: usize, config: &XdpConfig) -> Result<XdpDatapath, DatapathError> {
        self.inside(end, || {
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

    /// Sets the link of one end up or down.
    pub(crate) fn set_up(&self, end: usize, up: bool) {
        let state = if up { "up" } else { "down" };
        ip(&format!("-n {} link set {DEVICE} {state}", self.names[end])).expect("it can be set");
    }

    /// What `ip link show` says of an end.
    pub(crate) fn show(&self, end: usize) -> String {
        ip(&format!("-n {} link show dev {DEVICE}", self.names[end])).expect("it is there")
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// The default configuration for an end, attached like this.
pub(crate) fn config(attach: Attach) -> XdpConfig {
    XdpConfig { attach, frames: 1024, ..XdpConfig::new(DEVICE) }
}
