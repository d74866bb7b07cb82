//! The runtime's state machine under whatever clients send: it never panics, and nothing is left when all are gone.
#![no_main]

use insane_runtime::config::Config;
use insane_runtime::core::{Core, Credentials};
use insane_wire::control::ToRuntime;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut core = Core::new(Config::default(), "fuzz".into());
    let mut rest = data;
    // Each piece: which of four connections, how long, and the message.
    while let [conn, len, tail @ ..] = rest {
        let (message, next) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = next;
        let conn = u64::from(conn % 4);
        match insane_wire::decode::<ToRuntime>(message) {
            Ok(message) => {
                let who = Credentials { pid: Some(1), uid: conn as u32 % 2, gid: 0 };
                core.request(conn, who, message, |_| true);
            }
            Err(_) => drop(core.gone(conn)),
        }
    }
    for conn in 0..4 {
        core.gone(conn);
    }
    assert!(core.is_empty());
});
