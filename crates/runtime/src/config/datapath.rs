//! `[[network.datapath]]`: datapaths beside kernel UDP, and `[[network.policy]]`: which streams go over which.

use super::{ConfigError, Network};
use insane_netstack::{Mac, Prefix};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A kind of datapath, as the configuration, reports and other hosts name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// Kernel UDP: always there, at `network.listen`.
    Udp,
    /// `AF_XDP`, with the packet engine.
    Xdp,
    /// DPDK, with the packet engine.
    Dpdk,
    /// Somebody's own, from a shared object (`insane_datapath.h`), with the packet engine.
    Plugin,
}

impl Kind {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Udp, Self::Xdp, Self::Dpdk, Self::Plugin];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Xdp => "xdp",
            Self::Dpdk => "dpdk",
            Self::Plugin => "plugin",
        }
    }

    /// The kind of a name; `None` for one that this version does not know.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether it is what a stream with acceleration asks for.
    #[must_use]
    pub const fn is_accelerated(self) -> bool {
        !matches!(self, Self::Udp)
    }
}

/// A way to another host: a kind of datapath, and whether what is reliable goes over its TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Via {
    /// The datapath.
    pub kind: Kind,
    /// Over TCP of the packet engine, rather than in datagrams.
    pub tcp: bool,
}

impl Via {
    /// In datagrams.
    #[must_use]
    pub const fn of(kind: Kind) -> Self {
        Self { kind, tcp: false }
    }

    /// Over TCP.
    #[must_use]
    pub const fn tcp_of(kind: Kind) -> Self {
        Self { kind, tcp: true }
    }

    /// Its name in reports and for other hosts. Runtimes that know of no TCP pass over names with it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match (self.kind, self.tcp) {
            (kind, false) => kind.name(),
            (Kind::Udp, true) => "udp+tcp",
            (Kind::Xdp, true) => "xdp+tcp",
            (Kind::Dpdk, true) => "dpdk+tcp",
            (Kind::Plugin, true) => "plugin+tcp",
        }
    }
}

impl std::fmt::Display for Via {
    /// For people.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.kind.name(), if self.tcp { " with TCP" } else { "" })
    }
}

/// One `[[network.datapath]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Datapath {
    /// Which technology.
    pub kind: Kind,
    /// The interface, by name.
    pub interface: String,
    /// The datapath's own IP address with the length of its network's prefix: `10.0.0.102/24`.
    pub address: String,
    /// Its UDP port.
    pub port: u16,
    /// The MAC address of its own; empty for one that follows from the IP address.
    pub station: String,
    /// Whether it also has TCP, at the same port number, by which reliable streams may go.
    pub tcp: bool,
    /// Who passes packets on to hosts of other networks; empty: they are not reached.
    pub gateway: String,
    /// The VLAN in which it is, 1 to 4094; 0 for frames without a tag.
    pub vlan: u16,
    /// The largest packet of DPDK's port in bytes, 1280 to 9000; 0 for the interface's, or 1500 where there is none.
    pub mtu: u16,
    /// Where frames are taken: `auto`, `native`, `generic`.
    pub mode: Mode,
    /// Whether the driver may be asked to leave frames where they are.
    pub zero_copy: bool,
    /// The interface's receive queues that are taken; empty for all.
    pub queues: Vec<u32>,
    /// Queues by which DPDK's port receives, 1 to 16; 0 for as many as the device offers.
    pub queue_count: u8,
    /// Buffers of each queue.
    pub frames: u32,
    /// Whether sinks that ask for it may read large messages where their frames arrived, in the interface's receive memory. Only where the
    /// runtime has one domain; see the guide for who sees what.
    pub lend: bool,
    /// DPDK's device: a virtual one with its arguments, or a PCI address; empty: AF_PACKET on `interface`.
    pub device: String,
    /// Whether the interrupts of DPDK's card may be relied on.
    pub interrupts: bool,
    /// Arguments for DPDK's environment; empty: by the kind of device.
    pub eal: String,
    /// The path of the plug-in's object, or of `libinsane_dpdk.so`; empty for that: the usual places.
    pub library: String,
    /// What the plug-in is told, by the names that it knows.
    pub options: BTreeMap<String, String>,
}

/// Where an interface's frames are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// In the driver, or, if it cannot, before the kernel's stack.
    #[default]
    Auto,
    /// In the driver alone.
    Native,
    /// Before the kernel's stack.
    Generic,
}

impl Default for Datapath {
    fn default() -> Self {
        Self {
            kind: Kind::Xdp,
            interface: String::new(),
            address: String::new(),
            port: 7400,
            station: String::new(),
            tcp: false,
            gateway: String::new(),
            vlan: 0,
            mtu: 0,
            mode: Mode::Auto,
            zero_copy: true,
            queues: Vec::new(),
            queue_count: 0,
            frames: 4096,
            lend: true,
            device: String::new(),
            interrupts: false,
            eal: String::new(),
            library: String::new(),
            options: BTreeMap::new(),
        }
    }
}

/// One row of `[[network.policy]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// The fields that a stream's QoS must have, as `acceleration=preferred,reliability=reliable`; empty for every stream.
    pub when: String,
    /// The datapaths to be used, the best first; the last is `udp`.
    pub datapaths: Vec<Kind>,
    /// What makes streams reliable that ask for it: `reliable`, `tcp`.
    pub transport: Transport,
}

/// What makes a stream reliable between hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// The runtime's own.
    #[default]
    Reliable,
    /// TCP of a datapath that has it ([`Datapath::tcp`]), below the runtime's own.
    Tcp,
}

/// The most datapaths beside UDP.
const MOST: usize = 8;

/// The greatest number of a VLAN (IEEE 802.1Q table 9-2: 4095 is reserved).
const MOST_VLAN: u16 = 4094;

/// What a port's MTU may be: no less than IPv6 needs (RFC 8200, section 5), no more than the packet engine carries.
const MTU: std::ops::RangeInclusive<u16> = 1280..=9000;

/// The most receive queues that are named.
const MOST_QUEUES: usize = 64;

/// The most by which DPDK's port receives.
const MOST_DPDK_QUEUES: u8 = 16;

/// The arguments of DPDK's devices that name an interface of the kernel's: of AF_PACKET, AF_XDP and tap, of pcap, and of tap again.
const INTERFACE_KEYS: [&str; 4] = ["iface", "rx_iface", "tx_iface", "remote"];

/// A MAC address of one station, in six pairs of hexadecimal digits with colons.
fn station(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2 && part.bytes().all(|c| c.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    (parts.next().is_none() && Mac(mac).is_station()).then_some(mac)
}

impl Datapath {
    /// Its address with the prefix of its network.
    #[must_use]
    pub fn prefix(&self) -> Option<Prefix> {
        let own: Prefix = self.address.parse().ok().filter(|_| self.address.contains('/'))?;
        let at = own.address;
        let special = at.is_unspecified() || at.is_multicast() || at.is_loopback() || own.is_edge(at);
        (!special && own.bits > 0).then_some(own)
    }

    /// The MAC address of its own, given or made.
    #[must_use]
    pub fn mac(&self) -> Option<[u8; 6]> {
        match self.station.as_str() {
            "" => self.prefix().map(|own| insane_datagrams::station_of(own.address)),
            text => station(text),
        }
    }

    /// Its VLAN; `None` for frames without a tag.
    #[must_use]
    pub fn tag(&self) -> Option<u16> {
        (self.vlan != 0).then_some(self.vlan)
    }

    /// A key that has nothing to say for this kind, or contradicts another: the key, its value, what it takes.
    fn foreign(&self) -> Option<(&'static str, String, &'static str)> {
        let quoted = |text: &str| format!("\"{text}\"");
        let own = [Kind::Dpdk, Kind::Plugin].contains(&self.kind);
        let plugin = self.kind == Kind::Plugin;
        let texts = [("device", &self.device), ("eal", &self.eal)];
        let first = texts.into_iter().find(|(_, value)| !value.is_empty());
        if let Some((key, value)) = first.filter(|_| self.kind != Kind::Dpdk) {
            return Some((key, quoted(value), "nothing: it is for kind = \"dpdk\""));
        }
        if self.interrupts && self.kind != Kind::Dpdk {
            return Some(("interrupts", "true".into(), "nothing: it is for kind = \"dpdk\""));
        }
        if self.queue_count != 0 && self.kind != Kind::Dpdk {
            let takes = "nothing: it is for kind = \"dpdk\"; for kind = \"xdp\" queues names them";
            return Some(("queue_count", self.queue_count.to_string(), takes));
        }
        if self.mtu != 0 && self.kind != Kind::Dpdk {
            return Some(("mtu", self.mtu.to_string(), "nothing: it is for kind = \"dpdk\""));
        }
        if !self.library.is_empty() && !own {
            return Some(("library", quoted(&self.library), "nothing: it is for kind = \"dpdk\" and \"plugin\""));
        }
        if !self.options.is_empty() && !plugin {
            return Some(("options", format!("{:?}", self.options), "nothing: it is for kind = \"plugin\""));
        }
        if !own {
            return None;
        }
        if !self.device.is_empty() && !self.interface.is_empty() {
            return Some(("device", quoted(&self.device), "nothing, or a device instead of an interface"));
        }
        if plugin && !self.library.starts_with('/') {
            return Some(("library", quoted(&self.library), "the absolute path of the plug-in's shared object"));
        }
        if !self.library.is_empty() && !self.library.starts_with('/') {
            return Some(("library", quoted(&self.library), "an absolute path, or nothing"));
        }
        if plugin && !self.interface.is_empty() {
            return Some(("interface", quoted(&self.interface), "nothing: options tell the plug-in where it is"));
        }
        if plugin && !self.station.is_empty() {
            return Some(("station", quoted(&self.station), "nothing: the plug-in says its own"));
        }
        let odd = |text: &String| text.contains('\0');
        if self.options.iter().any(|(key, value)| odd(key) || odd(value)) {
            return Some(("options", format!("{:?}", self.options), "texts without a NUL"));
        }
        if self.mode != Mode::Auto {
            return Some(("mode", format!("{:?}", self.mode).to_lowercase(), "nothing: it is for kind = \"xdp\""));
        }
        if !self.queues.is_empty() {
            let takes = "nothing: it is for kind = \"xdp\"; for kind = \"dpdk\" queue_count says how many";
            return Some(("queues", format!("{:?}", self.queues), takes));
        }
        if !self.zero_copy {
            return Some(("zero_copy", "false".into(), "nothing: it is for kind = \"xdp\""));
        }
        if plugin && self.frames != Self::default().frames {
            return Some(("frames", self.frames.to_string(), "nothing: it is for kind = \"xdp\" and \"dpdk\""));
        }
        (self.frames < 256).then(|| ("frames", self.frames.to_string(), "a power of two from 256 to 65536"))
    }

    /// What no other datapath may have: its interface or device; of a plug-in, its object.
    #[must_use]
    pub fn place(&self) -> &str {
        if self.kind == Kind::Plugin {
            return &self.library;
        }
        if self.interface.is_empty() { self.device.split(',').next().unwrap_or_default() } else { &self.interface }
    }

    /// Whether it is DPDK on a card, by its PCI address, and not a port in software.
    fn is_card(&self) -> bool {
        // As in `0000:01:00.0`; no device in software has colons in its name.
        self.kind == Kind::Dpdk && self.interface.is_empty() && self.place().contains(':')
    }

    /// The interfaces whose frames it takes or that it makes: its own, or those that the arguments of DPDK's device name.
    fn interfaces(&self) -> impl Iterator<Item = &str> {
        let own = (!self.interface.is_empty()).then_some(self.interface.as_str());
        let arguments = self.device.split(',').skip(1).filter_map(|argument| argument.split_once('='));
        let named = arguments.filter(|(key, _)| INTERFACE_KEYS.contains(&key.trim())).map(|(_, name)| name.trim());
        own.into_iter().chain(named)
    }

    fn check(&self, at: usize, network: &Network) -> Result<(), ConfigError> {
        let refuse = |key: &str, value: &dyn std::fmt::Display, takes| {
            let key = format!("network.datapath[{at}].{key}");
            Err(ConfigError::Value { key, value: value.to_string(), takes })
        };
        if self.kind == Kind::Udp {
            return refuse("kind", &"\"udp\"", "xdp, dpdk or plugin: kernel UDP is always there, at network.listen");
        }
        if let Some((key, value, takes)) = self.foreign() {
            return refuse(key, &value, takes);
        }
        let odd = |c: char| c.is_whitespace() || c.is_control() || "/:,#;?".contains(c);
        let named = self.kind != Kind::Plugin && (self.device.is_empty() || !self.interface.is_empty());
        if named && (self.interface.is_empty() || self.interface.len() > 15 || self.interface.contains(odd)) {
            return refuse("interface", &format!("\"{}\"", self.interface), "an interface's name, at most 15 bytes");
        }
        let Some(own) = self.prefix() else {
            let takes = "an IP address of its own with the length of its network's prefix, such as 10.0.0.102/24";
            return refuse("address", &format!("\"{}\"", self.address), takes);
        };
        if own.address == network.listen.ip() {
            return refuse(
                "address",
                &self.address,
                "an address that is not the kernel's: network.listen has this one",
            );
        }
        if self.port == 0 {
            return refuse("port", &self.port, "1 to 65535");
        }
        if self.mac().is_none() {
            return refuse("station", &self.station, "a MAC address of one station, such as 02:49:0a:00:00:66");
        }
        if !self.gateway.is_empty() {
            let by = self.gateway.parse::<IpAddr>().ok();
            if by.is_none_or(|by| by.is_ipv4() != own.address.is_ipv4() || !own.contains(by) || by == own.address) {
                return refuse("gateway", &self.gateway, "another address of the same network, or nothing");
            }
        }
        if self.vlan > MOST_VLAN {
            return refuse("vlan", &self.vlan, "a VLAN's number from 1 to 4094, or 0 for frames without a tag");
        }
        if self.mtu != 0 && !MTU.contains(&self.mtu) {
            return refuse("mtu", &self.mtu, "1280 to 9000 bytes, or 0 for the interface's");
        }
        let twice = |(n, queue): (usize, &u32)| self.queues[..n].contains(queue);
        if self.queues.len() > MOST_QUEUES || self.queues.iter().enumerate().any(twice) {
            return refuse("queues", &format!("{:?}", self.queues), "numbers of receive queues, each once, at most 64");
        }
        if self.queue_count > MOST_DPDK_QUEUES {
            return refuse("queue_count", &self.queue_count, "1 to 16 queues, or 0 for as many as the device offers");
        }
        if !self.frames.is_power_of_two() || !(64..=65_536).contains(&self.frames) {
            return refuse("frames", &self.frames, "a power of two from 64 to 65536");
        }
        Ok(())
    }
}

/// Checks all datapaths: each by itself, and that no two want the same interface, address or station.
pub(super) fn check(network: &Network) -> Result<(), ConfigError> {
    let all = &network.datapath;
    if all.len() > MOST {
        let (key, value) = ("network.datapath".into(), all.len().to_string());
        return Err(ConfigError::Value { key, value, takes: "at most 8 datapaths" });
    }
    for (at, one) in all.iter().enumerate() {
        one.check(at, network)?;
        let refuse = |key: &str, value: &str, takes| {
            let (key, value) = (format!("network.datapath[{at}].{key}"), value.to_owned());
            Err(ConfigError::Value { key, value, takes })
        };
        for other in &all[..at] {
            // One program at a time is attached to an interface, so two datapaths cannot share its queues between them.
            if other.place() == one.place() && (one.kind != Kind::Plugin || other.options == one.options) {
                return refuse(
                    match (one.kind, one.interface.is_empty()) {
                        (Kind::Plugin, _) => "options",
                        (_, true) => "device",
                        _ => "interface",
                    },
                    one.place(),
                    "one that no other datapath has: a queue has one owner",
                );
            }
            // Nor can they if one names it as the interface and the other among the arguments of its device.
            if one.interfaces().any(|name| other.interfaces().any(|taken| taken == name)) {
                let (key, value) =
                    if one.interface.is_empty() { ("device", &one.device) } else { ("interface", &one.interface) };
                return refuse(
                    key,
                    value,
                    "an interface that no other datapath has, by whichever key: a queue has one owner",
                );
            }
            if [other.kind, one.kind] == [Kind::Dpdk; 2] {
                if (&other.eal, &other.library) != (&one.eal, &one.library) {
                    return refuse("eal", &one.eal, "the same for all: DPDK starts once in a process");
                }
                // Without it cards and ports in software start DPDK each in its way.
                if one.eal.is_empty() && other.is_card() != one.is_card() {
                    let takes = "arguments that fit a card and a port in software, the same for both: DPDK starts once in a process";
                    return refuse("eal", &one.eal, takes);
                }
            }
            if other.prefix().map(|p| p.address) == one.prefix().map(|p| p.address) {
                return refuse("address", &one.address, "an address that no other datapath has");
            }
            if other.mac() == one.mac() {
                return refuse("station", &one.station, "a station that no other datapath has");
            }
        }
    }
    for (at, row) in network.policy.iter().enumerate() {
        let key = |key: &str| format!("network.policy[{at}].{key}");
        let has_tcp = |one: &Datapath| one.tcp && row.datapaths.contains(&one.kind);
        if row.transport == Transport::Tcp && !all.iter().any(has_tcp) {
            let takes = "reliable, or tcp if a network.datapath of a kind that the row names has tcp = true";
            return Err(ConfigError::Value { key: key("transport"), value: "\"tcp\"".into(), takes });
        }
        if row.datapaths.last() != Some(&Kind::Udp) {
            let value = format!("{:?}", row.datapaths.iter().map(|kind| kind.name()).collect::<Vec<_>>());
            let takes = "a list that ends with \"udp\", which is always there";
            return Err(ConfigError::Value { key: key("datapaths"), value, takes });
        }
        if row.datapaths.iter().enumerate().any(|(n, kind)| row.datapaths[..n].contains(kind)) {
            let value = row.datapaths.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
            return Err(ConfigError::Value { key: key("datapaths"), value, takes: "each datapath once" });
        }
    }
    crate::policy::Table::new(&network.policy).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    const ONE: &str = "[[network.datapath]]\nkind = \"xdp\"\ninterface = \"eth0\"\naddress = \"10.0.0.102/24\"\n";

    fn parse(rest: &str) -> Result<Config, String> {
        Config::parse(&format!("[network]\nlisten = \"10.0.0.2:7400\"\n{rest}")).map_err(|e| e.to_string())
    }

    #[test]
    fn tcp_is_asked_for_where_there_is_some() {
        let row = |kinds: &str, transport: &str| {
            let first =
                format!("when = \"reliability=reliable\"\ndatapaths = [{kinds}]\ntransport = \"{transport}\"\n");
            format!("[[network.policy]]\n{first}[[network.policy]]\ndatapaths = [\"udp\"]\n")
        };
        let tcp = format!("{ONE}tcp = true\n");
        let both = parse(&(tcp.clone() + &row("\"xdp\", \"udp\"", "tcp"))).unwrap();
        let network = both.network.as_ref().unwrap();
        assert!(network.datapath[0].tcp && network.policy[0].transport == super::Transport::Tcp);
        assert_eq!(Config::parse(&both.to_toml()).unwrap(), both);
        assert!(!parse(ONE).unwrap().network.unwrap().datapath[0].tcp, "it costs nothing unless it is asked for");
        for (datapath, kinds) in
            [(ONE, "\"xdp\", \"udp\""), (&tcp, "\"dpdk\", \"udp\""), (&tcp, "\"udp\""), ("", "\"udp\"")]
        {
            let error = parse(&(datapath.to_owned() + &row(kinds, "tcp"))).unwrap_err();
            assert!(error.contains("network.policy[0].transport") && error.contains("tcp = true"), "{error}");
            assert!(parse(&(datapath.to_owned() + &row(kinds, "reliable"))).is_ok());
        }
        let error = parse(&(tcp + &row("\"xdp\", \"udp\"", "sctp"))).unwrap_err();
        assert!(error.contains("sctp") && error.contains("`reliable` or `tcp`"), "{error}");
    }

    #[test]
    fn a_datapath_is_read_and_written() {
        let config = parse(ONE).unwrap();
        let one = &config.network.as_ref().unwrap().datapath[0];
        assert_eq!((one.port, one.mac()), (7400, Some([2, 0x49, 10, 0, 0, 102])));
        assert_eq!(Config::parse(&config.to_toml()).unwrap(), config);
        let two = parse(&format!("{ONE}station = \"02:00:00:00:00:7F\"\nmode = \"generic\"\ngateway = \"10.0.0.1\""))
            .unwrap();
        assert_eq!(two.network.unwrap().datapath[0].mac(), Some([2, 0, 0, 0, 0, 0x7f]));
        for (vlan, tag) in [(0, None), (1, Some(1)), (4094, Some(4094))] {
            let config = parse(&format!("{ONE}vlan = {vlan}")).unwrap();
            assert_eq!(config.network.unwrap().datapath[0].tag(), tag);
        }
        for place in [
            "interface = \"eth1\"\nmtu = 9000",
            "device = \"net_tap0\"\nqueue_count = 16",
            "device = \"0000:01:00.0\"\neal = \"--in-memory\"\nlibrary = \"/opt/x.so\"",
        ] {
            let config = parse(&(ONE.to_owned() + &dpdk(place))).unwrap();
            assert_eq!(Config::parse(&config.to_toml()).unwrap(), config);
            assert!(place.contains(config.network.unwrap().datapath[1].place()));
        }
    }

    fn dpdk(rest: &str) -> String {
        format!("[[network.datapath]]\nkind = \"dpdk\"\naddress = \"10.0.0.103/24\"\n{rest}\n")
    }

    fn plugin(rest: &str) -> String {
        format!("[[network.datapath]]\nkind = \"plugin\"\naddress = \"10.0.0.104/24\"\n{rest}\n")
    }

    #[test]
    fn plugins_have_options_of_their_own() {
        let one = plugin("library = \"/opt/frames.so\"\noptions = { path = \"/run/a\", mtu = \"9000\" }");
        let config = parse(&one).unwrap();
        assert_eq!(Config::parse(&config.to_toml()).unwrap(), config);
        let datapath = &config.network.as_ref().unwrap().datapath[0];
        assert_eq!((datapath.place(), datapath.options["mtu"].as_str()), ("/opt/frames.so", "9000"));
        // Two ports of one plug-in are apart by what they are told.
        let other = one.replace("104", "105").replace("/run/a", "/run/b");
        parse(&(one + &other)).unwrap();
    }

    #[test]
    fn contradictions_and_odd_values_are_refused_by_key() {
        for (bad, key) in [
            ("[[network.datapath]]\nkind = \"udp\"", "kernel UDP is always there"),
            ("[[network.datapath]]\nkind = \"rdma\"", "rdma"),
            ("[[network.datapath]]\nkind = \"dpdk\"", "network.datapath[0].interface"),
            (&format!("{ONE}interrupts = true"), "network.datapath[0].interrupts"),
            (&format!("{ONE}eal = \"--no-huge\""), "network.datapath[0].eal"),
            (&format!("{ONE}library = \"/x.so\""), "network.datapath[0].library"),
            (&format!("{ONE}[network.datapath.options]\nmtu = \"9000\""), "network.datapath[0].options"),
            (&plugin("library = \"x.so\""), "network.datapath[0].library"),
            (&plugin(""), "network.datapath[0].library"),
            (&plugin("library = \"/x.so\"\ninterface = \"eth0\""), "network.datapath[0].interface"),
            (&plugin("library = \"/x.so\"\nstation = \"02:00:00:00:00:01\""), "network.datapath[0].station"),
            (&plugin("library = \"/x.so\"\ndevice = \"net_null0\""), "network.datapath[0].device"),
            (&plugin("library = \"/x.so\"\noptions = { mtu = 9000 }"), "expected a string"),
            (
                &(plugin("library = \"/x.so\"") + &plugin("library = \"/x.so\"").replace("104", "105")),
                "network.datapath[1].options",
            ),
            (&format!("{ONE}device = \"net_null0\""), "it is for kind = \"dpdk\""),
            (&dpdk("device = \"net_null0\"\ninterface = \"eth0\""), "a device instead of an interface"),
            (&dpdk("interface = \"eth0\"\nlibrary = \"x.so\""), "network.datapath[0].library"),
            (&dpdk("interface = \"eth0\"\nmode = \"native\""), "network.datapath[0].mode"),
            (&dpdk("interface = \"eth0\"\nqueues = [1]"), "for kind = \"dpdk\" queue_count says how many"),
            (
                &dpdk("interface = \"eth0\"\nqueue_count = 17"),
                "network.datapath[0].queue_count = 17: it takes 1 to 16 queues",
            ),
            (&format!("{ONE}queue_count = 2"), "network.datapath[0].queue_count = 2: it takes nothing"),
            (&plugin("library = \"/x.so\"\nqueue_count = 2"), "network.datapath[0].queue_count = 2: it takes nothing"),
            (&dpdk("interface = \"eth0\"\nframes = 64"), "network.datapath[0].frames"),
            (&dpdk("interface = \"eth0\"\nzero_copy = false"), "network.datapath[0].zero_copy"),
            (&plugin("library = \"/x.so\"\nframes = 512"), "network.datapath[0].frames"),
            (&plugin("library = \"/x.so\"\nzero_copy = false"), "network.datapath[0].zero_copy"),
            (&format!("{ONE}{}", dpdk("interface = \"eth0\"")), "network.datapath[1].interface"),
            (
                &format!("{}{}", dpdk("device = \"net_a,x=1\""), dpdk("device = \"net_a,x=2\"")),
                "network.datapath[1].device",
            ),
            (
                &format!("{ONE}{}", dpdk("device = \"net_af_packet0,iface=eth0,qdisc_bypass=0\"")),
                "network.datapath[1].device = net_af_packet0,iface=eth0,qdisc_bypass=0: it takes an interface that no other",
            ),
            (
                &format!("{}{ONE}", dpdk("device = \"net_af_xdp0,start_queue=1,iface=eth0\"")),
                "network.datapath[1].interface = eth0: it takes an interface that no other",
            ),
            (
                &format!(
                    "{}{}",
                    dpdk("device = \"net_af_xdp0,iface=eth1\""),
                    dpdk("device = \"net_pcap0,rx_iface=eth1\"")
                ),
                "network.datapath[1].device",
            ),
            (
                &format!("{}{}", dpdk("device = \"net_a\""), dpdk("device = \"net_b\"\neal = \"-m 64\"")),
                "DPDK starts once",
            ),
            (
                &format!("{}{}", dpdk("device = \"0000:01:00.0\""), dpdk("device = \"net_memif0,socket=/run/m\"")),
                "network.datapath[1].eal = : it takes arguments that fit a card and a port in software",
            ),
            ("[[network.datapath]]\nkind = \"xdp\"", "network.datapath[0].interface"),
            ("[[network.datapath]]\ninterface = \"eth0\"", "network.datapath[0].address"),
            ("[[network.datapath]]\ninterface = \"eth0\"\naddress = \"10.0.0.102\"", "10.0.0.102/24"),
            ("[[network.datapath]]\ninterface = \"eth0\"\naddress = \"10.0.0.255/24\"", "network.datapath[0].address"),
            ("[[network.datapath]]\ninterface = \"eth0\"\naddress = \"10.0.0.2/24\"", "network.listen has this one"),
            (&format!("{ONE}port = 0"), "network.datapath[0].port"),
            (&format!("{ONE}station = \"01:00:00:00:00:01\""), "network.datapath[0].station"),
            (&format!("{ONE}station = \"2:0:0:0:0:1\""), "network.datapath[0].station"),
            (&format!("{ONE}gateway = \"10.0.1.1\""), "network.datapath[0].gateway"),
            (&format!("{ONE}queues = [0, 1, 0]"), "network.datapath[0].queues"),
            (&format!("{ONE}vlan = 4095"), "network.datapath[0].vlan = 4095: it takes a VLAN's number from 1 to 4094"),
            (
                &format!("{ONE}mtu = 9000"),
                "network.datapath[0].mtu = 9000: it takes nothing: it is for kind = \"dpdk\"",
            ),
            (&dpdk("device = \"net_null0\"\nmtu = 1279"), "network.datapath[0].mtu = 1279: it takes 1280 to 9000"),
            (&dpdk("device = \"net_null0\"\nmtu = 9001"), "network.datapath[0].mtu = 9001: it takes 1280 to 9000"),
            (&format!("{ONE}vlan = -1"), "line 7, column 8: invalid value"),
            (&format!("{ONE}vlan = 70000"), "line 7, column 8: invalid value"),
            (&format!("{ONE}frames = 1000"), "network.datapath[0].frames"),
            (&format!("{ONE}mode = \"fast\""), "fast"),
            (&format!("{ONE}adress = \"x\""), "did you mean `address`"),
            (&format!("{ONE}{ONE}"), "network.datapath[1].interface"),
            (&format!("{ONE}{}", ONE.replace("eth0", "eth1")), "network.datapath[1].address"),
            (
                &format!("{ONE}{}station = \"02:49:0a:00:00:66\"", ONE.replace("eth0", "eth1").replace("102", "103")),
                "network.datapath[1].station",
            ),
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.contains(key), "{bad}: {error}");
        }
    }

    #[test]
    fn devices_on_several_interfaces_are_several() {
        let two = dpdk("device = \"net_af_packet1,iface=eth1\"").replace("103", "104");
        let all = format!("{ONE}{}{two}", dpdk("device = \"net_af_packet0,iface=eth2\""));
        assert_eq!(parse(&all).unwrap().network.unwrap().datapath.len(), 3);
    }

    #[test]
    fn a_policy_is_checked_when_it_is_read() {
        let row =
            |when: &str, datapaths: &str| format!("[[network.policy]]\nwhen = \"{when}\"\ndatapaths = {datapaths}\n");
        let all = row("", "[\"udp\"]");
        for (bad, key) in [
            (row("", "[]"), "network.policy[0].datapaths"),
            (row("", "[\"xdp\"]"), "ends with \"udp\""),
            (row("", "[\"xdp\", \"xdp\", \"udp\"]"), "each datapath once"),
            (row("", "[\"tcp\", \"udp\"]"), "tcp"),
            (row("speed=11", "[\"udp\"]") + &all, "network.policy[0].when"),
            (row("acceleration=none,acceleration=preferred", "[\"udp\"]") + &all, "network.policy[0].when"),
            (row("acceleration=none", "[\"udp\"]"), "no row is for acceleration=preferred"),
            (all.clone() + &row("reliability=reliable", "[\"xdp\", \"udp\"]"), "network.policy[1].when"),
        ] {
            let error = parse(&bad).unwrap_err();
            assert!(error.contains(key), "{bad}: {error}");
        }
        let good = row("acceleration=preferred,reliability=reliable", "[\"xdp\", \"udp\"]") + &all;
        let config = parse(&good).unwrap();
        assert_eq!(Config::parse(&config.to_toml()).unwrap(), config);
    }
}
