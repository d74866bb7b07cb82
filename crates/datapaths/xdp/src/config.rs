//! How an AF_XDP datapath is set up.

use std::net::IpAddr;
use std::time::Duration;

/// The ethertype of the range that the standard leaves to everyone for their own use, and the default of a filter.
pub const LOCAL_ETHERTYPE: u16 = 0x88b5;

/// What an AF_XDP datapath is opened with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpConfig {
    /// The interface, by its name. It must be up when frames are to flow; it need not be to be opened.
    pub interface: String,
    /// Its receive queues that are taken. It is sent by those of them that the interface sends by too, of which there must be one.
    pub queues: Queues,
    /// Which frames are taken; the kernel gets all others.
    pub filter: Filter,
    /// The largest payload of an Ethernet frame in bytes; `None` for the interface's MTU when it is opened.
    pub mtu: Option<u16>,
    /// Which ways of attaching may be used.
    pub attach: Attach,
    /// Whether the driver may be asked to leave frames where they are.
    pub zero_copy: bool,
    /// The UMEM frames of each queue. Half of them receive, half send. A power of two, from 64 to 65,536.
    pub frames: u32,
    /// Whether received frames may be lent where they lie ([`insane_datapath::Datapath::lends`]): each queue's receive memory is then
    /// a sealed memfd, and up to half of it is lent at a time. Memory that is sent from is never shown to anybody.
    pub lend: bool,
    /// How long opening waits for a queue that another process, which may just have ended, still has.
    pub patience: Duration,
}

impl XdpConfig {
    /// All queues of an interface, frames with [`LOCAL_ETHERTYPE`], the best that the driver offers, 4096 frames a queue,
    /// three seconds of patience, and nothing lent.
    #[must_use]
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            queues: Queues::All,
            filter: Filter::default(),
            mtu: None,
            attach: Attach::NativeOrGeneric,
            zero_copy: true,
            frames: 4096,
            lend: false,
            patience: Duration::from_secs(3),
        }
    }
}

/// Which receive queues of an interface are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Queues {
    /// All that it has when it is opened.
    All,
    /// These, by number. What comes to another one goes to the kernel.
    These(Vec<u32>),
}

/// Where the filter may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// In the driver, or, if it cannot, before the kernel's stack.
    NativeOrGeneric,
    /// In the driver alone.
    Native,
    /// Before the kernel's stack.
    Generic,
}

/// Which frames are INSANE's: those that one of the rules takes. At most [`Filter::MOST`] entries a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// Frames with one of these ethertypes.
    pub ethertypes: Vec<u16>,
    /// UDP datagrams over IPv4 or IPv6 to one of these ports: whole ones, and for IPv6 those without extension headers.
    pub udp_ports: Vec<u16>,
    /// A MAC address of INSANE's own, beside the interface's: all frames to it, ARP requests and neighbour solicitations for
    /// one of `addresses`. The interface is told to let them in.
    pub station: Option<[u8; 6]>,
    /// The IP addresses of INSANE's own. Where there are some of a family, its UDP datagrams must be for one of them too.
    pub addresses: Vec<IpAddr>,
    /// The VLAN in which all this holds.
    pub vlan: Vlan,
}

impl Filter {
    /// The most entries of a list.
    pub const MOST: usize = 32;
}

impl Default for Filter {
    /// Frames with [`LOCAL_ETHERTYPE`], with or without VLAN tags.
    fn default() -> Self {
        Self {
            ethertypes: vec![LOCAL_ETHERTYPE],
            udp_ports: Vec::new(),
            station: None,
            addresses: Vec::new(),
            vlan: Vlan::Any,
        }
    }
}

/// Which VLANs a filter sees. A tag that the interface takes off frames before they are seen is none, so with [`Vlan::Tagged`] such an
/// interface is not opened: `ethtool -K DEVICE rxvlan off`. Another veth that gives its tags beside the frames does the same:
/// `ethtool -K PEER txvlan off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vlan {
    /// Frames without a tag, or with one or two.
    Any,
    /// Frames without a tag, or with one that says a priority alone (number 0). Where the interface takes tags off, frames of all VLANs
    /// seem to have none; that is noted in [`crate::Chosen::notes`].
    Untagged,
    /// Frames whose outer tag has this number, 1 to 4094.
    Tagged(u16),
}
