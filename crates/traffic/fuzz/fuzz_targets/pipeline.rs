//! Any sequence of traffic, time, reports and changes: the machine of the property test, driven by coverage.
#![no_main]

#[path = "../../tests/common/machine.rs"]
mod machine;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut machine = machine::Machine::new(1);
    for op in bytes.chunks_exact(5).take(2_000) {
        machine.step((op[0], u32::from_le_bytes([op[1], op[2], op[3], op[4]])));
    }
    machine.finish();
});
