//! Beacons and the keys of a directory that come from anyone: what is understood says what its bytes say, hosts are found and gone in
//! turns, none is where no host can be, and what is remembered and told of it is bounded.
#![no_main]

use std::collections::BTreeSet;
use std::net::SocketAddr;

use insane_runtime::network::heard::{Heard, MAX_HOSTS, MAX_REASON, beacon, key};
use libfuzzer_sys::fuzz_target;

const OWN: ([u8; 4], u16) = ([10, 0, 0, 1], 7400);

fuzz_target!(|data: &[u8]| {
    if let Some((port, bytes)) = beacon(data) {
        assert!(port != 0 && bytes == data, "a beacon means something else than it says");
    }
    let own = SocketAddr::from(OWN);
    let (mut heard, mut there, mut rest) = (Heard::new(1, own), BTreeSet::new(), data);
    while let [what, session, len, tail @ ..] = rest {
        let (given, next) = tail.split_at(tail.len().min(usize::from(*len)));
        rest = next;
        let (session, refused) = (u64::from(session % 4), heard.refused());
        match what % 8 {
            // As it came.
            0 | 1 => heard.hear(session, &String::from_utf8_lossy(given), what & 16 == 0),
            // A key as there may be, of which a part is changed.
            2..=5 => {
                let at = |n: usize| given.get(n).copied().unwrap_or(n as u8 + 1);
                let address = SocketAddr::from(([10, 0, at(0), at(1)], 7400 + u16::from(at(2) & 3)));
                let mut key = key(u128::from(at(3) % 4), address).into_bytes();
                for pair in given.get(4..).unwrap_or(&[]).chunks_exact(2) {
                    let place = usize::from(pair[0]) % key.len();
                    key[place] = pair[1];
                }
                heard.hear(session, &String::from_utf8_lossy(&key), what & 16 == 0);
            }
            6 => heard.forget(session),
            _ => {
                let denied = given.first().copied().unwrap_or(0);
                let admits = |address: SocketAddr| denied & 1 == 0 || address.port() & 1 == 0;
                let (found, gone) = heard.changes(admits);
                for address in &gone {
                    assert!(there.remove(address), "{address} is gone and was not there");
                }
                for address in &found {
                    assert!(admits(*address) && there.insert(*address), "{address} is found twice");
                    let ip = address.ip();
                    assert!(ip.is_ipv4() && *address != own && address.port() != 0);
                    assert!(!ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback());
                }
                assert!(there.len() == heard.len() && there.len() <= MAX_HOSTS);
            }
        }
        assert!(heard.refused() >= refused);
        let reason = heard.reason();
        assert!(reason.chars().count() <= MAX_REASON && !reason.chars().any(char::is_control), "{reason:?}");
    }
    (0..4).for_each(|session| heard.forget(session));
    let (found, gone) = heard.changes(|_| true);
    assert!(found.is_empty() && gone.len() == there.len() && heard.is_empty(), "{found:?}, {gone:?}");
});
