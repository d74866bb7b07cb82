//! What peers and runtimes send to a client: it is decoded or refused, and what was decoded encodes to something that
//! decodes to the same.
#![no_main]

use insane_wire::control::ToClient;
use insane_wire::peer::ToPeer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(message) = insane_wire::decode::<ToPeer>(data) {
        assert_eq!(insane_wire::decode::<ToPeer>(&insane_wire::encode(&message)), Ok(message));
    }
    if let Ok(message) = insane_wire::decode::<ToClient>(data) {
        assert_eq!(insane_wire::decode::<ToClient>(&insane_wire::encode(&message)), Ok(message));
    }
});
