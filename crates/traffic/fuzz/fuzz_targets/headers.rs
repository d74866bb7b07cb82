//! Any bytes as a packet of any format: reading never panics, and marking changes two bits and a checksum at most.
#![no_main]

use insane_traffic::parse::{PduFormat, PduType, parse};
use insane_traffic::{Ecn, Queued, Time};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for pdu in [PduType::Ip, PduType::Ethernet, PduType::Unstructured] {
        for sdap_header in [false, true] {
            let _ = parse(bytes, PduFormat { pdu, sdap_header });
        }
    }
    let mut item = Queued::new(bytes.to_vec(), Time::ZERO);
    let before = item.meta.ecn;
    let marked = item.mark();
    assert_eq!(marked, before != Ecn::NotEct);
    assert_eq!(item.packet.len(), bytes.len());
    let changed = item.packet.iter().zip(bytes).enumerate().filter(|(_, (a, b))| a != b);
    changed.for_each(|(at, _)| assert!(marked && matches!(at, 1 | 10 | 11), "byte {at} changed"));
});
