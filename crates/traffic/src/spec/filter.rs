//! The filters of a pipeline file.

use serde::{Deserialize, Serialize};

use super::{AddressSet, NumberSet};
use crate::packet::QueueId;

/// Which header a filter looks at when there are several inside each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// The innermost that can be read: the flow inside a tunnel.
    #[default]
    Inner,
    /// The outermost.
    Outer,
}

/// Which parts of fragmented packets a filter matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FragmentMatch {
    /// Whole packets only.
    No,
    /// First fragments only.
    First,
    /// Later fragments only.
    Later,
    /// Any fragment.
    Any,
}

/// Bytes that a packet must have at a place (rte_flow's RAW item): the way to classify unstructured PDUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawSpec {
    /// Where, counted from the PDU's first byte (after an SDAP header).
    pub offset: u16,
    /// The bytes in hexadecimal.
    pub value: String,
    /// Which bits of them count, in hexadecimal; all if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<String>,
}

/// What a packet must be. Fields left out match everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MatchSpec {
    /// Which header the address, port, protocol, DSCP and ECN fields look at.
    #[serde(skip_serializing_if = "is_inner")]
    pub layer: Layer,
    /// IP version: 4 or 6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u8>,
    /// Source addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src: Option<AddressSet>,
    /// Destination addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst: Option<AddressSet>,
    /// Source ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_port: Option<NumberSet>,
    /// Destination ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_port: Option<NumberSet>,
    /// Transport protocols by number: 6 TCP, 17 UDP, 1 ICMP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proto: Option<NumberSet>,
    /// Differentiated services code points.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dscp: Option<NumberSet>,
    /// ECN fields: 0 Not-ECT, 1 ECT(1), 2 ECT(0), 3 CE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecn: Option<NumberSet>,
    /// Fragments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragment: Option<FragmentMatch>,
    /// Whether the packet is a tunnel that could be looked into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<bool>,
    /// Ethernet types, after VLAN tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ether_type: Option<NumberSet>,
    /// Ethernet source address, `aa:bb:cc:dd:ee:ff`, with an optional mask after a slash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eth_src: Option<String>,
    /// Ethernet destination address, written like `eth_src`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eth_dst: Option<String>,
    /// VLAN identifiers of the outer tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<NumberSet>,
    /// QoS flow identifiers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qfi: Option<NumberSet>,
    /// Traffic classes that came with the packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<NumberSet>,
    /// Sizes in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<NumberSet>,
    /// Bytes at places.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub raw: Vec<RawSpec>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
const fn is_inner(layer: &Layer) -> bool {
    matches!(layer, Layer::Inner)
}

/// Where matching packets go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum TargetSpec {
    /// One queue.
    Queue {
        /// Which.
        queue: QueueId,
    },
    /// Nowhere: they are dropped.
    Drop {},
    /// A classifier from a shared object chooses.
    Plugin {
        /// Its name.
        name: String,
        /// Text handed to it.
        #[serde(default)]
        options: String,
    },
}

/// One filter of the classifier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterSpec {
    /// Its id, unique among the filters.
    pub id: u32,
    /// Lower numbers are tried first; equal ones in the order of their ids.
    #[serde(default = "default_priority")]
    pub priority: u32,
    /// What it matches; everything if left out.
    #[serde(default, rename = "match")]
    pub matches: MatchSpec,
    /// Where matching packets go.
    pub to: TargetSpec,
}

const fn default_priority() -> u32 {
    1_000
}

impl FilterSpec {
    pub(super) fn validate(&self) -> Result<(), super::SpecError> {
        crate::classify::Matcher::new(&self.matches).map(drop)
    }
}
