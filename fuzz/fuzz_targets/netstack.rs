//! Frames of any kind at any time: nothing panics, every frame is in one count, and every table keeps its bound.
#![no_main]

use insane_netstack::tcp::TcpConfig;
use insane_netstack::{Arrival, Engine};
use libfuzzer_sys::fuzz_target;

#[path = "../../crates/netstack/tests/frames/mod.rs"]
mod frames;

fuzz_target!(|data: &[u8]| {
    let mut config = frames::config();
    config.limits.neighbours = 6;
    config.limits.paths = 6;
    config.limits.waiting_packets = 3;
    config.limits.unfinished_packets = 4;
    config.limits.unfinished_bytes = 96 << 10;
    config.limits.smallest_fragment = 8;
    config.tcp = Some(TcpConfig { connections: 3, receive_bytes: 2048, send_bytes: 2048, ..TcpConfig::default() });
    let Ok(mut engine) = Engine::new(&config) else { return };
    let Ok(bound) = engine.bind(None, 1000) else { return };
    let Ok(listener) = engine.tcp_listen(None, 80, 2) else { return };
    let corpus = frames::corpus();
    let (mut now, mut rest, mut out) = (0u64, data, Vec::new());
    // Each operation: what, how much later, then its own bytes.
    while let [what, pause, len, tail @ ..] = rest {
        let (own, next) = tail.split_at(tail.len().min(usize::from(*len)));
        rest = next;
        now += u64::from(*pause) * 50_000_000;
        let mut frame = match what % 8 {
            // A well-formed frame with some bytes changed: pairs of place and value.
            0..=3 => {
                let mut frame = corpus[own.first().map_or(0, |first| usize::from(*first)) % corpus.len()].clone();
                for pair in own.get(1..).unwrap_or(&[]).chunks_exact(2) {
                    let at = usize::from(pair[0]) % frame.len();
                    frame[at] = pair[1];
                }
                frame
            }
            4 | 5 => own.to_vec(),
            6 => {
                let to = (frames::host(own.len() % 2 == 1, own.first().copied().unwrap_or(2)), 2000).into();
                let _ = engine.send(now, bound, to, &[own, &[0; 2000]], &mut out);
                let mut flow = engine.flow(bound, to);
                let _ = engine.header(now, &mut flow, own.len(), &mut out);
                continue;
            }
            _ => {
                if let Some(connection) = engine.tcp_accept(now, listener) {
                    let _ = engine.tcp_send(connection, own);
                    let _ = engine.tcp_receive(connection, &mut [0; 64]);
                    engine.tcp_release(connection);
                }
                continue;
            }
        };
        if what & 0x80 == 0 {
            frames::reseal(&mut frame);
        }
        engine.receive(now, &Arrival::new(0, &frame), &mut out);
        engine.poll(now, &mut out);
        let [neighbours, unfinished, waiting] = engine.usage();
        assert!(neighbours <= 6 && unfinished <= 4 && waiting <= 3);
        assert!(engine.stats().adds_up());
        out.clear();
    }
});
