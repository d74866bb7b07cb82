//! Reading packet headers: total functions over untrusted bytes, nothing allocated, every step bounded.
//!
//! What does not make sense is [`Shape::Garbage`] and goes to the default queue. Tunnels are followed a bounded number of
//! times; both the outermost and the innermost flow are kept.

mod ethernet;
mod ip;
mod tunnel;

pub(crate) mod dns;
pub(crate) mod tls;

use crate::packet::Ecn;

pub use ethernet::Ethernet;
pub use ip::{Address, Flow, Fragment};

/// How many headers within headers are followed.
pub const MAX_TUNNELS: u8 = 3;

/// What the bytes of a PDU session are (TS 23.501 §5.8.2: the PDU session types).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PduType {
    /// IPv4, IPv6 or both.
    #[default]
    Ip,
    /// Ethernet frames without preamble and checksum.
    Ethernet,
    /// Bytes without a known meaning.
    Unstructured,
}

/// How to read the packets of a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PduFormat {
    /// What the PDU is.
    #[serde(default, rename = "type")]
    pub pdu: PduType,
    /// Whether one byte of SDAP header (TS 37.324 §6.2.2) stands before it.
    #[serde(default)]
    pub sdap_header: bool,
}

/// What a packet turned out to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Not what its PDU type says, or cut short. No filter on header fields matches it.
    #[default]
    Garbage,
    /// An IP packet, perhaps inside an Ethernet frame.
    Ip,
    /// An Ethernet frame that carries something else.
    Ethernet,
    /// An unstructured PDU.
    Unstructured,
}

/// Everything that filters ask about a packet's headers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Headers {
    /// What the packet is.
    pub shape: Shape,
    /// The QoS flow identifier of the SDAP header.
    pub qfi: Option<u8>,
    /// The outermost Ethernet header.
    pub ethernet: Option<Ethernet>,
    /// The outermost IP header and its transport.
    pub outer: Flow,
    /// The innermost IP header and its transport where there is a tunnel.
    inside: Option<Flow>,
    /// How many tunnel headers were followed.
    pub tunnels: u8,
    /// Where the PDU starts: after the SDAP header.
    pub(crate) pdu: u8,
    /// Where the outermost IP header starts.
    pub(crate) ip_offset: Option<u16>,
    /// Where the innermost transport payload starts.
    pub(crate) payload: u16,
}

impl Headers {
    /// The innermost IP header and its transport: the only one without a tunnel.
    #[must_use]
    #[inline]
    pub fn inner(&self) -> &Flow {
        self.inside.as_ref().unwrap_or(&self.outer)
    }

    /// [`Self::inner`] for changing it.
    pub(crate) fn inner_mut(&mut self) -> &mut Flow {
        self.inside.as_mut().unwrap_or(&mut self.outer)
    }

    /// Reads the headers of `bytes` in place, for `self` is large; it is the default one before.
    #[inline]
    pub(crate) fn read(&mut self, bytes: &[u8], format: PduFormat) {
        let mut at = 0;
        if format.sdap_header {
            let Some(&first) = bytes.first() else { return };
            self.qfi = Some(first & 0x3f);
            at = 1;
            self.pdu = 1;
        }
        match format.pdu {
            PduType::Unstructured => self.shape = Shape::Unstructured,
            PduType::Ip => self.read_ip(bytes, at),
            PduType::Ethernet => {
                let Some((ethernet, next)) = ethernet::read(bytes, at) else { return };
                self.ethernet = Some(ethernet);
                if ethernet.carries_ip() {
                    self.read_ip(bytes, next);
                } else {
                    self.shape = Shape::Ethernet;
                }
            }
        }
    }

    fn read_ip(&mut self, bytes: &[u8], at: usize) {
        let Some(mut found) = ip::read(bytes, at, bytes.len(), &mut self.outer) else {
            self.outer = Flow::default();
            return;
        };
        self.shape = Shape::Ip;
        self.ip_offset = u16::try_from(at).ok();
        while self.tunnels < MAX_TUNNELS
            && let Some(at) = tunnel::inner_ip(bytes, self.inner(), &found)
        {
            let mut flow = Flow::default();
            let Some(inside) = ip::read(bytes, at, found.end, &mut flow) else { break };
            self.inside = Some(flow);
            self.tunnels += 1;
            found = inside;
        }
        self.payload = u16::try_from(found.payload).unwrap_or(u16::MAX);
    }
}

/// Reads the headers of `bytes`.
#[must_use]
pub fn parse(bytes: &[u8], format: PduFormat) -> Headers {
    let mut headers = Headers::default();
    headers.read(bytes, format);
    headers
}

/// The outermost IP header's offset and ECN field, without reading anything else: all that a pipeline without filters
/// needs.
#[must_use]
pub(crate) fn ecn_of(bytes: &[u8], format: PduFormat) -> Option<(u16, Ecn)> {
    let at = usize::from(format.sdap_header);
    let at = match format.pdu {
        PduType::Unstructured => return None,
        PduType::Ip => at,
        PduType::Ethernet => ethernet::read(bytes, at).filter(|(e, _)| e.carries_ip())?.1,
    };
    Some((u16::try_from(at).ok()?, ecn_at(bytes, at)?))
}

/// The ECN field of the IP header at `at`.
pub(crate) fn ecn_at(bytes: &[u8], at: usize) -> Option<Ecn> {
    match bytes.get(at)? >> 4 {
        4 if bytes.len() >= at + 20 => Some(Ecn::from_bits(bytes[at + 1])),
        6 if bytes.len() >= at + 40 => Some(Ecn::from_bits(bytes[at + 1] >> 4)),
        _ => None,
    }
}

/// Writes congestion experienced into the IP header at `at` and keeps an IPv4 header's checksum right (RFC 1624, eqn 3).
/// False, with nothing changed, if there is no such header or it is Not-ECT.
pub(crate) fn set_ce(bytes: &mut [u8], at: usize) -> bool {
    match ecn_at(bytes, at) {
        None | Some(Ecn::NotEct) => return false,
        Some(Ecn::Ce) => return true,
        Some(_) => {}
    }
    if bytes[at] >> 4 == 6 {
        bytes[at + 1] |= 0x30;
        return true;
    }
    let word = |b: &[u8], n: usize| u16::from_be_bytes([b[at + n], b[at + n + 1]]);
    let (before, checksum) = (word(bytes, 0), word(bytes, 10));
    bytes[at + 1] |= 3;
    let after = word(bytes, 0);
    let sum = u32::from(!checksum) + u32::from(!before) + u32::from(after);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let [high, low] = (!(sum as u16)).to_be_bytes();
    (bytes[at + 10], bytes[at + 11]) = (high, low);
    true
}

/// Two bytes, big-endian.
fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

/// Four bytes, big-endian.
fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}
