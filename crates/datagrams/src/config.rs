//! What datagrams over raw frames are set up with.

use std::net::IpAddr;

use insane_netstack::Prefix;

/// Who this end is on its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramConfig {
    /// Its IP address with the prefix of its link. No other host or interface has it: the kernel knows nothing of it.
    pub address: Prefix,
    /// Its UDP port, not 0.
    pub port: u16,
    /// Who passes packets on to hosts that are not on the link; of the address's family. `None`: they are not reached.
    pub gateway: Option<IpAddr>,
    /// The VLAN in which all this holds, 1 to 4094: what is sent has its tag, and what has another tag or none is not looked at.
    /// `None`: frames without a tag.
    pub vlan: Option<u16>,
}

/// The MAC address of a station that is told no other: of the range that is administered locally (IEEE 802 §8.4), and another
/// one for each IPv4 address, so that the hosts of a link do not get the same. For IPv6 it follows from all of the address.
#[must_use]
pub fn station_of(address: IpAddr) -> [u8; 6] {
    let [a, b, c, d] = match address {
        IpAddr::V4(address) => address.octets(),
        // FNV-1a: hosts of one link differ in any of its bytes.
        IpAddr::V6(address) => {
            let hash = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
            address.octets().iter().fold(0x811c_9dc5, hash).to_be_bytes()
        }
    };
    [0x02, if address.is_ipv4() { 0x49 } else { 0x4a }, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::station_of;

    #[test]
    fn stations_are_local_and_differ_as_their_addresses_do() {
        let of = |text: &str| station_of(text.parse().unwrap());
        assert_eq!(of("10.1.2.3"), [2, 0x49, 10, 1, 2, 3]);
        assert_ne!(of("fd00::1"), of("fd00::2"));
        // Locally administered, and one station's.
        assert!([of("10.1.2.3"), of("fd00::1")].iter().all(|mac| mac[0] & 3 == 2));
    }
}
