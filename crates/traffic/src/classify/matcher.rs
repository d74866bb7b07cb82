//! A filter's match, ready to be tried on packets.

use super::PacketView;
use crate::parse::{Flow, Fragment, Shape};
use crate::spec::{FragmentMatch, Layer, MatchSpec, SpecError};

/// An Ethernet address and which bits of it count.
#[derive(Clone, Copy, Debug)]
struct Mac {
    value: u64,
    mask: u64,
}

impl Mac {
    fn parse(what: &str, text: &str) -> Result<Self, SpecError> {
        let number = |text: &str| -> Option<u64> {
            let parts: Vec<&str> = text.trim().split([':', '-']).collect();
            if parts.len() != 6 || parts.iter().any(|p| p.len() != 2) {
                return None;
            }
            parts.iter().try_fold(0, |all, part| Some(all << 8 | u64::from(u8::from_str_radix(part, 16).ok()?)))
        };
        let (value, mask) = text.split_once('/').unwrap_or((text, "ff:ff:ff:ff:ff:ff"));
        let both = number(value).zip(number(mask));
        let expected = "it must be like 02:00:00:00:00:01, with a mask after a slash if wanted";
        both.map(|(value, mask)| Self { value, mask }).ok_or_else(|| SpecError::invalid(what, text, expected))
    }

    fn matches(self, address: [u8; 6]) -> bool {
        let [a, b, c, d, e, f] = address;
        let number = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        (number ^ self.value) & self.mask == 0
    }
}

#[derive(Clone, Debug)]
struct Raw {
    offset: usize,
    value: Vec<u8>,
    mask: Vec<u8>,
}

/// The longest raw match in bytes.
const MAX_RAW: usize = 64;

impl Raw {
    fn matches(&self, pdu: &[u8]) -> bool {
        let Some(bytes) = pdu.get(self.offset..self.offset + self.value.len()) else { return false };
        bytes.iter().zip(&self.value).zip(&self.mask).all(|((b, v), m)| (b ^ v) & m == 0)
    }
}

fn hex(what: &str, text: &str) -> Result<Vec<u8>, SpecError> {
    let digits: Option<Vec<u8>> = text.chars().filter(|c| *c != ' ').map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    digits
        .filter(|d| d.len() % 2 == 0 && !d.is_empty() && d.len() <= 2 * MAX_RAW)
        .map(|d| d.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
        .ok_or_else(|| SpecError::invalid(what, text, "it must be 1 to 64 bytes in hexadecimal"))
}

/// A [`MatchSpec`] in the form that is fast to try.
#[derive(Clone, Debug)]
pub struct Matcher {
    spec: MatchSpec,
    eth_src: Option<Mac>,
    eth_dst: Option<Mac>,
    raw: Vec<Raw>,
    /// Whether fields beside the packet are looked at.
    beside: bool,
    /// Whether IP or transport fields are looked at.
    ip: bool,
    /// Whether Ethernet fields are looked at.
    ethernet: bool,
}

impl Matcher {
    /// Prepares a match.
    ///
    /// # Errors
    /// An Ethernet address or raw bytes that cannot be read, or an IP version that does not exist.
    pub fn new(spec: &MatchSpec) -> Result<Self, SpecError> {
        if let Some(version) = spec.version
            && version != 4
            && version != 6
        {
            return Err(SpecError::invalid("match.version", version, "it must be 4 or 6"));
        }
        let mac = |what: &str, text: &Option<String>| text.as_deref().map(|t| Mac::parse(what, t)).transpose();
        let raw = spec.raw.iter().map(|r| {
            let value = hex("match.raw.value", &r.value)?;
            let mask = r.mask.as_deref().map_or_else(|| Ok(vec![0xff; value.len()]), |m| hex("match.raw.mask", m))?;
            if mask.len() != value.len() {
                let expected = "it must be as long as value";
                return Err(SpecError::invalid("match.raw.mask", r.mask.clone().unwrap_or_default(), expected));
            }
            Ok(Raw { offset: r.offset.into(), value, mask })
        });
        let ports = spec.src_port.is_some() || spec.dst_port.is_some();
        let addresses = spec.src.is_some() || spec.dst.is_some() || spec.version.is_some();
        let fields = spec.proto.is_some() || spec.dscp.is_some() || spec.ecn.is_some();
        Ok(Self {
            eth_src: mac("match.eth_src", &spec.eth_src)?,
            eth_dst: mac("match.eth_dst", &spec.eth_dst)?,
            raw: raw.collect::<Result<_, _>>()?,
            beside: spec.class.is_some() || spec.size.is_some() || spec.qfi.is_some(),
            ip: ports || addresses || fields || spec.fragment.is_some() || spec.tunnel.is_some(),
            ethernet: spec.ether_type.is_some()
                || spec.vlan.is_some()
                || spec.eth_src.is_some()
                || spec.eth_dst.is_some(),
            spec: spec.clone(),
        })
    }

    /// The server names of which one must fit.
    #[must_use]
    pub fn server_names(&self) -> &[String] {
        &self.spec.server_name
    }

    /// Whether it needs the packet's headers to be read.
    #[must_use]
    pub fn needs_headers(&self) -> bool {
        self.ip || self.ethernet || !self.spec.server_name.is_empty() || !self.raw.is_empty() || self.spec.qfi.is_some()
    }

    /// Whether a packet matches, server names aside.
    #[must_use]
    pub fn matches(&self, packet: &PacketView<'_>) -> bool {
        (!self.beside || self.matches_beside(packet))
            && (!self.ip || self.matches_ip(packet))
            && (!self.ethernet || self.matches_ethernet(packet))
            && (self.raw.is_empty() || self.matches_raw(packet))
    }

    fn matches_beside(&self, packet: &PacketView<'_>) -> bool {
        let spec = &self.spec;
        spec.class.as_ref().is_none_or(|s| s.contains(packet.class))
            && spec.size.as_ref().is_none_or(|s| s.contains(packet.size))
            && spec.qfi.as_ref().is_none_or(|s| packet.qfi.is_some_and(|qfi| s.contains(qfi.into())))
    }

    fn matches_ip(&self, packet: &PacketView<'_>) -> bool {
        let headers = packet.headers;
        if headers.shape != Shape::Ip {
            return false;
        }
        let spec = &self.spec;
        let flow: &Flow = match spec.layer {
            Layer::Inner => headers.inner(),
            Layer::Outer => &headers.outer,
        };
        let port = |set: &Option<crate::spec::NumberSet>, port: Option<u16>| {
            set.as_ref().is_none_or(|s| port.is_some_and(|p| s.contains(p.into())))
        };
        port(&spec.dst_port, flow.ports.map(|p| p.1))
            && port(&spec.src_port, flow.ports.map(|p| p.0))
            && spec.proto.as_ref().is_none_or(|s| s.contains(flow.proto.into()))
            && spec.src.as_ref().is_none_or(|s| s.contains(flow.src))
            && spec.dst.as_ref().is_none_or(|s| s.contains(flow.dst))
            && spec.version.is_none_or(|v| (v == 6) == flow.src.v6)
            && spec.dscp.as_ref().is_none_or(|s| s.contains(flow.dscp.into()))
            && spec.ecn.as_ref().is_none_or(|s| s.contains(flow.ecn as u32))
            && spec.fragment.is_none_or(|f| fragment_fits(f, flow.fragment))
            && spec.tunnel.is_none_or(|t| t == (headers.tunnels > 0))
    }

    fn matches_ethernet(&self, packet: &PacketView<'_>) -> bool {
        let Some(ethernet) = packet.headers.ethernet else { return false };
        let spec = &self.spec;
        spec.ether_type.as_ref().is_none_or(|s| s.contains(ethernet.ether_type.into()))
            && spec.vlan.as_ref().is_none_or(|s| ethernet.vlan.is_some_and(|v| s.contains(v.into())))
            && self.eth_src.is_none_or(|m| m.matches(ethernet.src))
            && self.eth_dst.is_none_or(|m| m.matches(ethernet.dst))
    }

    fn matches_raw(&self, packet: &PacketView<'_>) -> bool {
        let pdu = packet.bytes.get(usize::from(packet.headers.pdu)..).unwrap_or_default();
        packet.headers.shape != Shape::Garbage && self.raw.iter().all(|r| r.matches(pdu))
    }
}

const fn fragment_fits(wanted: FragmentMatch, found: Fragment) -> bool {
    match wanted {
        FragmentMatch::No => matches!(found, Fragment::No),
        FragmentMatch::First => matches!(found, Fragment::First),
        FragmentMatch::Later => matches!(found, Fragment::Later),
        FragmentMatch::Any => !matches!(found, Fragment::No),
    }
}
