//! What the engine counts: every frame that comes in ends in exactly one count.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident, $text:literal, $frame:literal;)*) => {
        /// Why something was dropped. The number of a reason is its place in [`Stats::drops`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name in metrics.
            #[must_use]
            pub const fn name(self) -> &'static str { match self { $(Self::$name => $text,)* } }

            /// Whether it is the end of a frame that came in. Others count messages of our own, or unfinished datagrams.
            #[must_use]
            pub const fn ends_a_frame(self) -> bool { match self { $(Self::$name => $frame,)* } }
        }
    };
}

reasons! {
    /// Shorter than its headers say, or than they must be.
    Truncated, "truncated", true;
    /// A frame with a length where Ethernet II has a type, or a type that is not known here.
    UnknownType, "unknown_type", true;
    /// It is for another station.
    NotOurStation, "not_our_station", true;
    /// It came from a group address, or from our own.
    BadStation, "bad_station", true;
    /// It came on a device without an interface.
    UnknownDevice, "unknown_device", true;
    /// It has a VLAN tag that no interface of its device has.
    UnknownVlan, "unknown_vlan", true;
    /// It has more than one VLAN tag.
    StackedVlan, "stacked_vlan", true;
    /// An ARP packet that is not about Ethernet and IPv4.
    ArpMalformed, "arp_malformed", true;
    /// An ARP packet whose sender contradicts the frame, is no host of the link or is not one host.
    ArpSpoofed, "arp_spoofed", true;
    /// An ARP answer or announcement of an unknown host that was not asked for.
    ArpUnsolicited, "arp_unsolicited", true;
    /// Somebody else says to have one of our addresses.
    AddressConflict, "address_conflict", true;
    /// An ARP request or a neighbour solicitation for somebody else.
    NotOurNeighbour, "not_our_neighbour", true;
    /// No room for a neighbour.
    NeighboursFull, "neighbours_full", true;
    /// A neighbour discovery message against a rule of RFC 4861 §7.1: hop limit, code, target, options.
    DiscoveryMalformed, "discovery_malformed", true;
    /// A neighbour advertisement of an unknown host or one that changes nothing.
    DiscoveryUnsolicited, "discovery_unsolicited", true;
    /// A router's advertisement, solicitation or redirect: routes are configured.
    RouterMessage, "router_message", true;
    /// An IP header with a wrong version, length or reserved bit.
    IpMalformed, "ip_malformed", true;
    /// An IPv4 header whose checksum is wrong.
    IpChecksum, "ip_checksum", true;
    /// It asks for a way of its own (source routes of IPv4, routing headers of IPv6).
    SourceRouted, "source_routed", true;
    /// It comes from an address that no packet may come from, or from one of ours.
    BadSource, "bad_source", true;
    /// It is for another host's address.
    NotOurAddress, "not_our_address", true;
    /// It is for a group that nobody here has joined.
    NotOurGroup, "not_our_group", true;
    /// An IPv6 option that asks to be dropped if not known, or too many extension headers.
    BadExtension, "bad_extension", true;
    /// A protocol that is not served.
    UnknownProtocol, "unknown_protocol", true;
    /// A fragment that reaches beyond the largest packet, or has a length that fragments do not have.
    FragmentMalformed, "fragment_malformed", true;
    /// A fragment too small for any link in use.
    FragmentTiny, "fragment_tiny", true;
    /// A fragment that contradicts another one of its packet, which is dropped as a whole.
    FragmentOverlap, "fragment_overlap", true;
    /// A fragment of a packet that was dropped already.
    FragmentOfDropped, "fragment_of_dropped", true;
    /// A fragment for which there is no room although others were given up: its packet is larger than a source's share.
    FragmentsFull, "fragments_full", true;
    /// A packet with too many holes.
    FragmentHoles, "fragment_holes", true;
    /// A UDP header that contradicts its packet.
    UdpMalformed, "udp_malformed", true;
    /// A UDP datagram whose checksum is wrong, or missing on IPv6.
    UdpChecksum, "udp_checksum", true;
    /// A UDP datagram to a port that nobody has bound.
    UdpPort, "udp_port", true;
    /// TCP while there is no TCP here.
    TcpOff, "tcp_off", true;
    /// A TCP segment for which there was no room.
    TcpFull, "tcp_full", true;
    /// A TCP segment that opens a connection in which we should send tiny segments.
    TcpTiny, "tcp_tiny", true;
    /// An ICMP message that is cut off or has a wrong checksum.
    IcmpMalformed, "icmp_malformed", true;
    /// An ICMP message of a kind that nothing here needs.
    IcmpUnknown, "icmp_unknown", true;
    /// An ICMP error about a packet that was not sent from here.
    IcmpForeign, "icmp_foreign", true;
    /// A path MTU below the least that a path has, or above what was known.
    MtuImplausible, "mtu_implausible", true;
    /// An echo request to a group, or from a host that answers cannot go to.
    EchoRefused, "echo_refused", true;
    /// More echo requests than are answered.
    EchoLimited, "echo_limited", true;
    /// An error that was not sent because too many were.
    ErrorLimited, "error_limited", false;
    /// An unfinished packet that got no more fragments in time.
    ReassemblyTimeout, "reassembly_timeout", false;
    /// An unfinished packet that made room for a newer one.
    ReassemblyEvicted, "reassembly_evicted", false;
    /// A packet of ours that waited for a neighbour who did not answer.
    NeighbourSilent, "neighbour_silent", false;
    /// A packet of ours that would have had to wait for a neighbour where there was no room.
    WaitingFull, "waiting_full", false;
    /// A packet of ours with no route to its destination.
    NoRoute, "no_route", false;
    /// A frame of ours that the datapath did not take.
    OutputFull, "output_full", false;
}

/// What an engine has counted. Counts only rise.
///
/// `received = udp + tcp + control + held + Σ drops whose reason ends a frame`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Frames that came in.
    pub received: u64,
    /// Those with which a UDP datagram was delivered.
    pub udp: u64,
    /// Those with a TCP segment, handed to TCP.
    pub tcp: u64,
    /// Those of the engine's own protocols: ARP, neighbour discovery, ICMP.
    pub control: u64,
    /// Fragments that wait for others.
    pub held: u64,
    /// Frames that the engine has emitted itself: answers, solicitations, TCP, datagrams in fragments.
    pub emitted: u64,
    /// Headers given for frames that the datapath builds.
    pub headers: u64,
    /// ICMP errors sent.
    pub errors: u64,
    /// Echo requests answered.
    pub echoes: u64,
    drops: [u64; Reason::ALL.len()],
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            received: 0,
            udp: 0,
            tcp: 0,
            control: 0,
            held: 0,
            emitted: 0,
            headers: 0,
            errors: 0,
            echoes: 0,
            drops: [0; Reason::ALL.len()],
        }
    }
}

impl Stats {
    /// How often something was dropped for this reason.
    #[must_use]
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.drops.get(reason as usize).copied().unwrap_or(0)
    }

    /// All reasons with their counts.
    pub fn drops(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL.iter().copied().zip(self.drops.iter().copied())
    }

    /// Whether every frame that came in is in exactly one count.
    #[must_use]
    pub fn adds_up(&self) -> bool {
        let dropped: u64 = self.drops().filter(|(reason, _)| reason.ends_a_frame()).map(|(_, count)| count).sum();
        self.received == self.udp + self.tcp + self.control + self.held + dropped
    }

    #[inline]
    pub(crate) fn drop(&mut self, reason: Reason) {
        if let Some(count) = self.drops.get_mut(reason as usize) {
            *count += 1;
        }
    }
}
