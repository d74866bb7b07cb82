//! INSANE over DPDK: poll-mode drivers of network cards (by vfio-pci), and ports in software such as memif and AF_PACKET.
//!
//! Purpose: to find `libinsane_dpdk.so`, the one part of INSANE that is linked to DPDK, when it is wanted, and to make a datapath of
//! one of DPDK's ports ([`Dpdk::port`]). Where that object or DPDK is missing, the reason is an error and nothing else happens.
//! Non-purpose: what is in the frames, which is the packet engine's.
//!
//! Layer: a datapath; the object's source is in `c`, behind the interface of `insane-datapath-plugin`. No unsafe code here. A port
//! belongs to one thread at a time, which polls it; DPDK gets no thread of its own but the ones that it starts itself.
//!
//! DPDK's environment starts once in a process, with the first port that is opened. That it did not, and that another port wants other
//! arguments, is an error for good ([`DatapathError::Final`]) that says that the runtime must restart.
//!
//! ```
//! use insane_datapath_dpdk::{Dpdk, DpdkConfig};
//!
//! let error = Dpdk::load("/usr/lib/insane/no-such-object.so").unwrap_err().to_string();
//! assert!(error.starts_with("dpdk is not available here: "), "{error}");
//! # let _ = DpdkConfig::new("net_af_packet0,iface=eth1");
//! ```
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use insane_datapath::DatapathError;
use insane_datapath_plugin::{Plugin, PluginDatapath};

/// The object's file name.
pub const OBJECT: &str = "libinsane_dpdk.so";

/// The technology's name.
pub const NAME: &str = "dpdk";

/// What a DPDK datapath is opened with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DpdkConfig {
    /// A virtual device with its arguments, as DPDK's `--vdev` takes it (`net_af_packet0,iface=eth1`,
    /// `net_memif0,role=server,socket=/run/insane/memif`), or the PCI address of a card that is bound to vfio-pci (`0000:01:00.0`).
    pub device: String,
    /// The MAC address under which it receives, beside the kernel's where that has the interface too; `None` for the device's own.
    pub station: Option<[u8; 6]>,
    /// The largest payload of an Ethernet frame in bytes, 68 to 9000; `None` for the interface's MTU, or 1500 where there is none.
    pub mtu: Option<u16>,
    /// Arguments for DPDK's environment, apart by spaces; the same for all ports of a process. `None`: for a virtual device
    /// `--no-huge -m 256 --no-pci`, for a card `--in-memory --single-file-segments`, which takes hugepages.
    pub eal: Option<String>,
    /// Buffers, 256 to 262,144. Half of them receive, half send.
    pub buffers: u32,
    /// Entries of each ring of a card, 64 to 8192; rounded to what it can have.
    pub ring: u16,
    /// Queues to receive by, up to 16; 0: as many as the device's own arguments say, or, where it spreads frames over them by their
    /// addresses (RSS over UDP/IP), as many as it has, up to 4, and else one. All are read in turn, each whenever its turn comes; frames
    /// are sent by one. Fewer than were asked for, and why, is said by `describe`. AF_PACKET, AF_XDP, vhost and virtio-user are told the
    /// number if their arguments say none.
    pub queues: u8,
    /// The IP address and UDP port of what comes. With several queues, a device that takes such a rule (`rte_flow`) is asked to spread
    /// that over them; all else comes as it did. Whether it does is said by `describe`.
    pub steer: Option<SocketAddr>,
    /// Whether a card's receive interrupts may be relied on. Some drivers offer them where they never come: the 82574's by MSI-X, for
    /// one, which takes `--vfio-intr=msi` among the arguments. The example `cards` tells. Without them it can only be polled.
    pub interrupts: bool,
    /// Whether frames have a VLAN tag: its four bytes are not taken from the MTU's payload then.
    pub tagged: bool,
    /// Whether received frames may be lent where they lie ([`insane_datapath::Datapath::lends`]), up to half of the buffers that receive.
    /// Only of drivers in software that copy what they receive (memif without zero-copy, AF_PACKET, tap); others lend nothing.
    pub lend: bool,
}

impl DpdkConfig {
    /// A device with its own address and MTU, as many queues as it offers, 4096 buffers and rings of 1024 entries, polled, for frames without tags, nothing lent.
    #[must_use]
    pub fn new(device: impl Into<String>) -> Self {
        Self {
            device: device.into(),
            station: None,
            mtu: None,
            eal: None,
            buffers: 4096,
            ring: 1024,
            queues: 0,
            steer: None,
            interrupts: false,
            tagged: false,
            lend: false,
        }
    }
}

/// DPDK, found and loaded.
#[derive(Debug, Clone, Copy)]
pub struct Dpdk(Plugin);

impl Dpdk {
    /// Loads the object from an absolute path; see [`Plugin::load`] for what is asked of the file. Any thread may call it; reads files.
    ///
    /// # Errors
    /// [`DatapathError::Unavailable`]: the object or DPDK's libraries are not there, or the object is none of this release.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, DatapathError> {
        let unavailable = |reason| DatapathError::Unavailable { technology: NAME, reason };
        let plugin = Plugin::load(path.as_ref()).map_err(|e| unavailable(e.to_string()))?;
        if plugin.name() == NAME {
            Ok(Self(plugin))
        } else {
            Err(unavailable(format!("{} is the datapath {}", plugin.path().display(), plugin.name())))
        }
    }

    /// One of DPDK's ports, closed. It is a datapath with raw frames.
    ///
    /// # Errors
    /// [`DatapathError::Unavailable`]: the configuration cannot be. That a device is not there is said when it is opened.
    pub fn port(&self, config: &DpdkConfig) -> Result<PluginDatapath, DatapathError> {
        let mut options = vec![("device", config.device.clone())];
        options.push(("buffers", config.buffers.to_string()));
        options.push(("ring", config.ring.to_string()));
        options.push(("queues", config.queues.to_string()));
        if let Some(steer) = config.steer {
            options.push(("steer", steer.to_string()));
        }
        options.push(("interrupts", if config.interrupts { "yes" } else { "no" }.to_owned()));
        options.push(("tagged", if config.tagged { "yes" } else { "no" }.to_owned()));
        if config.lend {
            options.push(("lend", "yes".to_owned()));
        }
        if let Some(station) = config.station {
            options.push(("address", insane_datapath::Address::Ethernet(station).to_string()));
        }
        if let Some(mtu) = config.mtu {
            options.push(("mtu", mtu.to_string()));
        }
        if let Some(eal) = &config.eal {
            options.push(("eal", eal.clone()));
        }
        let options: Vec<(&str, &str)> = options.iter().map(|(key, value)| (*key, value.as_str())).collect();
        self.0.port(&options)
    }
}

/// Where the object is looked for: beside this program, and in `../lib/insane` from there, as `make install` puts it.
#[must_use]
pub fn usual_places() -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    let folder = program.as_deref().and_then(Path::parent);
    let places = folder.map(|folder| [folder.join("../lib/insane").join(OBJECT), folder.join(OBJECT)]);
    places.into_iter().flatten().collect()
}
