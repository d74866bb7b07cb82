//! What the tests of the network side share: hosts that know each other, on loopback addresses.

use insane_runtime::config::Config;
use insane_tests_host::Host;
use serde_json::Value;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// How long anything may take that has no limit of its own.
pub const LIMIT: Duration = Duration::from_secs(25);

/// Addresses with ports that are free now.
///
/// # Panics
/// When there are none.
#[must_use]
pub fn free_addresses(count: usize) -> Vec<SocketAddr> {
    let sockets: Vec<UdpSocket> = (0..count).map(|_| UdpSocket::bind("127.0.0.1:0").expect("a free port")).collect();
    sockets.iter().map(|s| s.local_addr().expect("an address")).collect()
}

/// Runtimes that know each other.
#[must_use]
pub fn hosts(count: usize, change: impl Fn(usize, &mut Config)) -> Vec<Host> {
    let addresses = free_addresses(count);
    (0..count)
        .map(|at| {
            Host::with(|config| {
                config.runtime.host = format!("host-{at}");
                let network = config.network.get_or_insert_default();
                network.listen = addresses[at];
                network.peers = addresses.iter().copied().filter(|a| *a != addresses[at]).collect();
                change(at, config);
            })
        })
        .collect()
}

/// Waits until something holds, at most [`LIMIT`].
pub fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    within(LIMIT, &mut holds)
}

/// Waits until something holds, at most so long.
pub fn within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < limit {
        if holds() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    holds()
}

/// A runtime's report.
///
/// # Panics
/// When it gives none.
#[must_use]
pub fn status(session: &insane::Session) -> Value {
    serde_json::from_str(&session.report("status").expect("a report")).expect("JSON")
}

/// The sum of one count over the cells of the network's sessions in a report.
#[must_use]
pub fn network_count(status: &Value, name: &str) -> u64 {
    let sessions = status["sessions"].as_array().into_iter().flatten().filter(|s| s["app"] == "network");
    let cells = sessions.flat_map(|s| s["counters"].as_array().into_iter().flatten());
    cells.filter_map(|c| c["counts"][name].as_u64()).sum()
}
