//! What the pipeline needs to know of a packet, and what it does with one that it drops.

use crate::time::Time;

/// The number of a queue. Queue 0 is the default queue: it always exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct QueueId(pub u32);

impl QueueId {
    /// The queue that takes everything no filter wants.
    pub const DEFAULT: Self = Self(0);

    /// As an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for QueueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Anything that can stand in a queue: bytes in a RAN, a slot descriptor in a runtime.
///
/// A packet without visible bytes (`bytes` empty) is never parsed nor marked; it is told apart by `class` and `flow`.
pub trait Packet: Send + 'static {
    /// Bytes that count against rates and limits.
    fn size(&self) -> u32;

    /// What can be read of the packet, from its first byte; empty where nothing may be parsed.
    fn bytes(&self) -> &[u8] {
        &[]
    }

    /// The same bytes for writing the ECN field; empty where the packet cannot be changed, it is then treated as Not-ECT.
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut []
    }

    /// A traffic class given by whoever hands the packet in (the runtime's QoS class); 0 if there is none.
    fn class(&self) -> u32 {
        0
    }

    /// The QoS flow identifier when it comes beside the packet and not in an SDAP header (0 to 63).
    fn qfi(&self) -> Option<u8> {
        None
    }

    /// A flow identity for the stochastic hash where there are no headers to hash.
    fn flow(&self) -> Option<u64> {
        None
    }
}

impl Packet for Vec<u8> {
    fn size(&self) -> u32 {
        u32::try_from(self.len()).unwrap_or(u32::MAX)
    }
    fn bytes(&self) -> &[u8] {
        self
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Packet for Box<[u8]> {
    fn size(&self) -> u32 {
        u32::try_from(self.len()).unwrap_or(u32::MAX)
    }
    fn bytes(&self) -> &[u8] {
        self
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// The ECN field of an IP header (RFC 3168; RFC 9331 for ECT(1) as the L4S identifier).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// The transport does not understand ECN, or the field cannot be written.
    #[default]
    NotEct = 0,
    /// ECT(1): an L4S transport.
    Ect1 = 1,
    /// ECT(0): a classic ECN transport.
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// From the two low bits of the traffic class octet.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// Whether a congestion signal may be a mark instead of a drop.
    #[must_use]
    pub const fn is_capable(self) -> bool {
        !matches!(self, Self::NotEct)
    }

    /// Whether RFC 9331 sends it to the low-latency queue: ECT(1) or CE.
    #[must_use]
    pub const fn is_l4s(self) -> bool {
        (self as u8) & 1 == 1
    }
}

/// What the pipeline remembers about a packet while it is queued.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// When it was handed in; sojourn times count from here, also through a change of queue.
    pub at: Time,
    /// Its size in bytes when it was handed in.
    pub size: u32,
    /// Its ECN field, kept up to date when it is marked.
    pub ecn: Ecn,
    /// Where its IP header starts, [`Self::NO_IP`] without one.
    pub(crate) ip_offset: u16,
    /// The filter that sent it here, as a slot and its generation, and what that filter wants to be told when it leaves.
    pub(crate) ticket: Ticket,
}

impl Meta {
    /// The `ip_offset` of a packet without an IP header.
    pub(crate) const NO_IP: u16 = u16::MAX;

    /// The description of a packet that no filter touched, as tests and plug-ins need it.
    #[must_use]
    pub const fn new(at: Time, size: u32, ecn: Ecn) -> Self {
        Self { at, size, ecn, ip_offset: Self::NO_IP, ticket: Ticket::NONE }
    }
}

/// What a classifier wants to hear again when the packet leaves: which filter, and a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// The serial number of the filter; 0 is none.
    pub(crate) filter: u32,
    /// The filter's own number (a hash bucket).
    pub(crate) tag: u32,
}

impl Ticket {
    pub(crate) const NONE: Self = Self { filter: 0, tag: 0 };
}

/// A packet in a queue.
#[derive(Debug)]
pub struct Queued<P> {
    /// The packet.
    pub packet: P,
    /// What is remembered about it.
    pub meta: Meta,
}

impl<P: Packet> Queued<P> {
    /// A packet as a queue of its own would hold it, its ECN field read as that of a plain IP packet.
    #[must_use]
    pub fn new(packet: P, at: Time) -> Self {
        let mut packet = packet;
        let ecn = crate::parse::ecn_at(packet.bytes_mut(), 0);
        let ip_offset = if ecn.is_some() { 0 } else { Meta::NO_IP };
        let meta = Meta { ip_offset, ..Meta::new(at, packet.size(), ecn.unwrap_or_default()) };
        Self { packet, meta }
    }

    /// Sets congestion experienced. Returns false, and changes nothing, if the packet is Not-ECT or cannot be written.
    pub fn mark(&mut self) -> bool {
        match self.meta.ecn {
            Ecn::NotEct => false,
            Ecn::Ce => true,
            Ecn::Ect0 | Ecn::Ect1 => {
                let done = crate::parse::set_ce(self.packet.bytes_mut(), usize::from(self.meta.ip_offset));
                if done {
                    self.meta.ecn = Ecn::Ce;
                }
                done
            }
        }
    }
}

/// Why a packet was dropped. Every packet that is not forwarded ends in exactly one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum DropReason {
    /// A filter says that such packets are dropped.
    Filter = 0,
    /// The policer's colour is one that its policy drops.
    Policer = 1,
    /// The queue holds as many packets as it may.
    QueuePackets = 2,
    /// The queue holds as many bytes as it may.
    QueueBytes = 3,
    /// The pipeline as a whole is full.
    PipelineLimit = 4,
    /// An AQM dropped it on arrival (RED, PIE).
    AqmEnqueue = 5,
    /// An AQM dropped it on its way out (CoDel, DualPI2).
    AqmDequeue = 6,
    /// A change of the pipeline asked for it.
    Change = 7,
    /// A plug-in refused or discarded it.
    Plugin = 8,
}

impl DropReason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Filter,
        Self::Policer,
        Self::QueuePackets,
        Self::QueueBytes,
        Self::PipelineLimit,
        Self::AqmEnqueue,
        Self::AqmDequeue,
        Self::Change,
        Self::Plugin,
    ];

    /// The name in statistics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Policer => "policer",
            Self::QueuePackets => "queue_packets",
            Self::QueueBytes => "queue_bytes",
            Self::PipelineLimit => "pipeline_limit",
            Self::AqmEnqueue => "aqm_enqueue",
            Self::AqmDequeue => "aqm_dequeue",
            Self::Change => "change",
            Self::Plugin => "plugin",
        }
    }
}

/// Where and why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The queue it was in or on its way to; the default queue's id if none had been chosen.
    pub queue: QueueId,
    /// Why.
    pub reason: DropReason,
}

/// Receives the packets that the pipeline drops, so that their owner gets the memory back.
///
/// `()` throws them away; any closure `FnMut(P, Dropped)` is one as well.
pub trait Drops<P> {
    /// Takes a dropped packet.
    fn dropped(&mut self, packet: P, what: Dropped);
}

impl<P> Drops<P> for () {
    fn dropped(&mut self, _packet: P, _what: Dropped) {}
}

impl<P, F: FnMut(P, Dropped)> Drops<P> for F {
    fn dropped(&mut self, packet: P, what: Dropped) {
        self(packet, what);
    }
}

/// What a queue tells the pipeline besides its return values.
pub trait Outlet<P> {
    /// The queue gives this packet up.
    fn dropped(&mut self, item: Queued<P>, reason: DropReason);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ecn_bits_are_those_of_rfc_3168() {
        assert_eq!([0, 1, 2, 3].map(Ecn::from_bits), [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce]);
        assert_eq!([0, 1, 2, 3].map(|b| Ecn::from_bits(b).is_l4s()), [false, true, false, true]);
    }

    #[test]
    fn drop_reasons_are_numbered_as_listed_and_named_apart() {
        let names: std::collections::HashSet<_> = DropReason::ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), DropReason::ALL.len());
        for (n, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, n);
        }
    }
}
