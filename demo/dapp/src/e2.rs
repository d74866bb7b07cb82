//! The two PDUs of the demo, as bytes, and the fields that differ from one message to the next.

/// RICindication of RAN function 146, SN 7, encoded by an independent implementation of E2AP (pycrate).
const INDICATION: &str = "00054080b6000007001d00050003fd0000000500020092000f000100001b00020007001c0001000019000504000000\
    00001a0080868084000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f3031\
    32333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b\
    6c6d6e6f707172737475767778797a7b7c7d7e7f80818283";

/// RICcontrolRequest of the same RAN function.
const CONTROL: &str = "00040039000005001d00050003fd0000000500020092001600050400000000001700151402000000000000000100000005\
    000000640000000015000140";

/// Where the RICindicationSN is in an indication: two octets of aligned PER.
const SN: std::ops::Range<usize> = 32..34;
/// Where the instance of the RICrequestID is in a control request, by which an xApp is known: two octets.
const INSTANCE: std::ops::Range<usize> = 14..16;
/// Where an xApp puts the SN that it answers: the end of the RICcontrolHeader, whose content is the RAN function's own affair.
const ANSWERED: std::ops::Range<usize> = 29..31;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let value = |d: u8| (d as char).to_digit(16).unwrap_or(0) as u8;
    digits.chunks_exact(2).map(|d| value(d[0]) << 4 | value(d[1])).collect()
}

/// Makes indications and reads the control requests that answer them.
#[derive(Debug)]
pub(crate) struct E2 {
    indication: Vec<u8>,
    control: Vec<u8>,
}

/// A control request: who sends it, and which indication it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) instance: u16,
    pub(crate) sn: u16,
}

impl E2 {
    pub(crate) fn new() -> Self {
        Self { indication: bytes(INDICATION), control: bytes(CONTROL) }
    }

    /// The indication with a sequence number.
    pub(crate) fn indication(&mut self, sn: u16) -> &[u8] {
        self.indication[SN].copy_from_slice(&sn.to_be_bytes());
        &self.indication
    }

    /// `None` when the bytes are not the demo's control request in everything but the two fields.
    pub(crate) fn control(&mut self, pdu: &[u8]) -> Option<Control> {
        let field = |range: std::ops::Range<usize>| Some(u16::from_be_bytes(pdu.get(range)?.try_into().ok()?));
        let control = Control { instance: field(INSTANCE)?, sn: field(ANSWERED)? };
        self.control[INSTANCE].copy_from_slice(&control.instance.to_be_bytes());
        self.control[ANSWERED].copy_from_slice(&control.sn.to_be_bytes());
        (self.control == pdu).then_some(control)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_two_fields_of_the_golden_pdus_change() {
        let mut e2 = E2::new();
        assert_eq!(e2.indication(7), bytes(INDICATION));
        let other = e2.indication(0x1234).to_vec();
        let differ: Vec<usize> = (0..other.len()).filter(|i| other[*i] != bytes(INDICATION)[*i]).collect();
        assert_eq!(differ, [32, 33]);
        // What stands before the field: id-RICindicationSN, criticality, length.
        assert_eq!(other[28..32], [0x00, 0x1b, 0x00, 0x02]);
        let golden = bytes(CONTROL);
        assert_eq!(e2.control(&golden), Some(Control { instance: 0, sn: 0 }));
        assert_eq!((&golden[7..11], &golden[22..27]), (&[0, 0x1d, 0, 5][..], &[0, 0x16, 0, 5, 4][..]));
        let mut second = golden.clone();
        second[15] = 1;
        second[30] = 9;
        assert_eq!(e2.control(&second), Some(Control { instance: 1, sn: 9 }));
        second[40] ^= 1;
        assert_eq!(e2.control(&second), None);
        assert_eq!(e2.control(&golden[..20]), None);
    }
}
