//! A packet on its way through the lab.

use insane_traffic::{Packet, Time};

/// A packet of a PDU session: its bytes, its QoS flow, and when it passed where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pdu {
    /// The bytes, an IP packet.
    pub bytes: Box<[u8]>,
    /// Its QoS flow identifier, 0 to 63.
    pub qfi: u8,
    /// When it entered the lab.
    pub entered: Time,
    /// When it came to the bearer (downlink: to the pipeline).
    pub at_bearer: Time,
    /// When it entered the RLC buffer.
    pub at_rlc: Time,
    /// When its last byte left the RLC buffer.
    pub left_rlc: Time,
}

impl Pdu {
    /// A packet that enters now.
    #[must_use]
    pub fn new(bytes: Box<[u8]>, qfi: u8, now: Time) -> Self {
        Self { bytes, qfi, entered: now, at_bearer: now, at_rlc: now, left_rlc: now }
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        u32::try_from(self.bytes.len()).unwrap_or(u32::MAX)
    }

    /// Whether it has no bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl Packet for Box<Pdu> {
    fn size(&self) -> u32 {
        self.len()
    }
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
    fn qfi(&self) -> Option<u8> {
        Some(self.qfi)
    }
}
