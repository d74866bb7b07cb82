//! F1-U's downlink data delivery status (TS 38.425 §5.5.2.2): how a distributed unit tells a central unit what became of
//! the packets that it was given, and how many more it wants.

/// PDU type 1 of the NR user plane protocol.
const PDU_TYPE: u8 = 1;
/// How many lost ranges a frame may carry, which is what one octet can count.
pub const MAX_RANGES: usize = 255;

/// A delivery status. Sequence numbers are 24 bits wide on the wire, and higher bits are cut off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveryStatus {
    /// Nothing more will come about this bearer.
    pub final_frame: bool,
    /// Bytes that the central unit may send beyond the highest transmitted packet.
    pub desired_buffer: u32,
    /// Bytes per second that the bearer wants, if it says.
    pub desired_rate: Option<u32>,
    /// Ranges of NR-U sequence numbers that did not arrive, first and last.
    pub lost: Vec<(u32, u32)>,
    /// The highest PDCP sequence number up to which all is delivered to the UE.
    pub delivered: Option<u32>,
    /// The highest PDCP sequence number that was given to the radio.
    pub transmitted: Option<u32>,
    /// Why: a cause of §5.5.3.
    pub cause: Option<u8>,
}

/// Why a frame is not a delivery status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum F1uError {
    /// It ends before what it says it carries.
    #[error("the frame ends before what it says it carries")]
    Short,
    /// Another kind of PDU.
    #[error("PDU type {0} is not a delivery status")]
    Type(u8),
    /// More bytes than padding may be, or padding that is not zero.
    #[error("the frame is longer than what it says it carries")]
    Long,
    /// Optional information that this decoder cannot skip, because its length is not known.
    #[error("the frame announces optional information that is not understood: {0:#04x}")]
    Unknown(u8),
}

fn put24(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_be_bytes()[1..]);
}

impl DeliveryStatus {
    /// The frame: a multiple of four bytes less what a GTP-U extension header adds (length octet and next type), as §5.5.3
    /// asks of padding.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let lost = &self.lost[..self.lost.len().min(MAX_RANGES)];
        let flag = |set: bool, bit: u8| if set { 1 << bit } else { 0_u8 };
        let mut out = vec![
            PDU_TYPE << 4
                | flag(self.transmitted.is_some(), 3)
                | flag(self.delivered.is_some(), 2)
                | flag(self.final_frame, 1)
                | flag(!lost.is_empty(), 0),
            flag(self.desired_rate.is_some(), 3) | flag(self.cause.is_some(), 0),
        ];
        out.extend_from_slice(&self.desired_buffer.to_be_bytes());
        if let Some(rate) = self.desired_rate {
            out.extend_from_slice(&rate.to_be_bytes());
        }
        if !lost.is_empty() {
            out.push(lost.len() as u8);
            for &(first, last) in lost {
                put24(&mut out, first);
                put24(&mut out, last);
            }
        }
        if let Some(sn) = self.delivered {
            put24(&mut out, sn);
        }
        if let Some(sn) = self.transmitted {
            put24(&mut out, sn);
        }
        out.extend(self.cause);
        while out.len() % 4 != 2 {
            out.push(0);
        }
        out
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// What is wrong with it; nothing in it is believed then.
    pub fn decode(frame: &[u8]) -> Result<Self, F1uError> {
        let mut rest = frame;
        let mut take = |n: usize| {
            let (head, tail) = rest.split_at_checked(n).ok_or(F1uError::Short)?;
            rest = tail;
            Ok::<u32, F1uError>(head.iter().fold(0, |all, &b| all << 8 | u32::from(b)))
        };
        let first = take(1)?;
        let kind = (first >> 4) as u8;
        if kind != PDU_TYPE {
            return Err(F1uError::Type(kind));
        }
        let second = take(1)?;
        // Retransmitted, delivered retransmitted and out-of-sequence ranges: this lab does not send them, and later
        // releases moved what follows them.
        if second & 0b1_0110 != 0 {
            return Err(F1uError::Unknown(second as u8));
        }
        let desired_buffer = take(4)?;
        let mut optional = |flags: u32, bit: u32, n: usize| match flags >> bit & 1 {
            1 => take(n).map(Some),
            _ => Ok(None),
        };
        let desired_rate = optional(second, 3, 4)?;
        let ranges = optional(first, 0, 1)?.unwrap_or(0);
        let mut lost = Vec::new();
        for _ in 0..ranges {
            let range = (optional(1, 0, 3)?, optional(1, 0, 3)?);
            lost.extend(range.0.zip(range.1));
        }
        let delivered = optional(first, 2, 3)?;
        let transmitted = optional(first, 3, 3)?;
        let cause = optional(second, 0, 1)?.map(|c| c as u8);
        if rest.len() > 3 || rest.iter().any(|&b| b != 0) {
            return Err(F1uError::Long);
        }
        Ok(Self { final_frame: first >> 1 & 1 == 1, desired_buffer, desired_rate, lost, delivered, transmitted, cause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn status() -> impl Strategy<Value = DeliveryStatus> {
        let sn = 0..1_u32 << 24;
        (
            any::<bool>(),
            any::<u32>(),
            any::<Option<u32>>(),
            prop::collection::vec((sn.clone(), sn.clone()), 0..5),
            prop::option::of(sn.clone()),
            prop::option::of(sn),
            any::<Option<u8>>(),
        )
            .prop_map(|(final_frame, desired_buffer, desired_rate, lost, delivered, transmitted, cause)| {
                DeliveryStatus { final_frame, desired_buffer, desired_rate, lost, delivered, transmitted, cause }
            })
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(status in status()) {
            prop_assert_eq!(DeliveryStatus::decode(&status.encode()), Ok(status));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(status) = DeliveryStatus::decode(&bytes) {
                prop_assert_eq!(DeliveryStatus::decode(&status.encode()), Ok(status));
            }
        }

        #[test]
        fn cut_frames_are_refused_or_lose_only_padding(status in status(), cut in 1_usize..8) {
            let frame = status.encode();
            let shorter = &frame[..frame.len().saturating_sub(cut)];
            prop_assert!(DeliveryStatus::decode(shorter).map_or(true, |read| read == status && cut <= 3));
        }
    }

    #[test]
    fn a_frame_has_the_octets_of_the_standard() {
        let status = DeliveryStatus {
            desired_buffer: 0x0001_0203,
            desired_rate: Some(5_000_000),
            delivered: Some(0x0a0b0c),
            transmitted: Some(0x0a0b0d),
            ..DeliveryStatus::default()
        };
        let expected = [0x1c, 0x08, 0, 1, 2, 3, 0x00, 0x4c, 0x4b, 0x40, 0x0a, 0x0b, 0x0c, 0x0a, 0x0b, 0x0d, 0, 0];
        assert_eq!(status.encode(), expected);
    }

    #[test]
    fn other_types_and_unknown_information_are_refused() {
        assert_eq!(DeliveryStatus::decode(&[0x00; 6]), Err(F1uError::Type(0)));
        assert_eq!(DeliveryStatus::decode(&[0x10, 0x04, 0, 0, 0, 0]), Err(F1uError::Unknown(4)));
        assert_eq!(DeliveryStatus::decode(&[0x10, 0x00, 0, 0, 0, 0, 1]), Err(F1uError::Long));
        assert_eq!(DeliveryStatus::decode(&[]), Err(F1uError::Short));
    }
}
