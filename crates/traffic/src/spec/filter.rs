//! The filters of a pipeline file.

use serde::{Deserialize, Serialize};

use super::{AddressSet, NumberSet, SpecError};
use crate::packet::QueueId;

/// How many server names a filter may have.
const MAX_NAMES: usize = 64;

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
    /// Names of the server that the flow has to do with, as DNS answers and TLS greetings told them: a name, or `*.` and a
    /// name for everything below it. One of them must fit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub server_name: Vec<String>,
    /// Bytes at places.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub raw: Vec<RawSpec>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
const fn is_inner(layer: &Layer) -> bool {
    matches!(layer, Layer::Inner)
}

/// QoS flows of one queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QfiSpec {
    /// The identifiers, 0 to 63.
    pub qfi: NumberSet,
    /// Their queue.
    pub queue: QueueId,
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
    /// Spread by a keyed hash of the flow.
    Hash {
        /// The queues; all if left out, also those that come later.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        queues: Option<NumberSet>,
    },
    /// Each packet to the next queue.
    RoundRobin {
        /// The queues; all if left out, also those that come later.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        queues: Option<NumberSet>,
    },
    /// By QoS flow identifier; packets with none of these are left to the next filter.
    Qfi {
        /// Which goes where.
        map: Vec<QfiSpec>,
    },
    /// By the traffic class that came with the packet: class n to the n-th queue.
    Class {
        /// The queues.
        queues: Vec<QueueId>,
    },
    /// By L4S identifier (RFC 9331): ECT(1) and CE, and all other IP packets.
    L4s {
        /// The low-latency queue.
        l4s: QueueId,
        /// The classic queue.
        classic: QueueId,
    },
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
    pub(super) fn validate(&self) -> Result<(), SpecError> {
        crate::classify::Matcher::new(&self.matches)?;
        let names = &self.matches.server_name;
        if names.len() > MAX_NAMES || names.iter().any(|n| n.is_empty() || n.len() > 253) {
            let expected = "it may have at most 64 names of 1 to 253 characters";
            return Err(SpecError::invalid("match.server_name", format!("{} names", names.len()), expected));
        }
        match &self.to {
            TargetSpec::Plugin { name, options } => super::validate::plugin(name, options),
            TargetSpec::Qfi { map } if map.len() > 64 || map.iter().any(|m| m.qfi.max() > 63) => {
                let expected = "it may have at most 64 entries with identifiers of 0 to 63";
                Err(SpecError::invalid("to.map", format!("{} entries", map.len()), expected))
            }
            TargetSpec::Class { queues } if queues.is_empty() || queues.len() > 1_024 => {
                Err(SpecError::invalid("to.queues", format!("{} queues", queues.len()), "it must have 1 to 1024"))
            }
            TargetSpec::Hash { queues: Some(set) } | TargetSpec::RoundRobin { queues: Some(set) }
                if set.max() >= super::MAX_QUEUES =>
            {
                Err(SpecError::invalid("to.queues", set, "ids are below 65536; leave it out for all queues"))
            }
            _ => Ok(()),
        }
    }
}
