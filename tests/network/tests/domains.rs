//! Two domains that share one interface and one datapath: channels of the same name carry each domain's messages to its own sinks,
//! and never another's. Without root or what the datapath takes: SKIPPED.

use insane::{Qos, Session};
use insane_runtime::config::{Config, Domain};
use insane_tests_host::Watchdog;
use insane_tests_network::cables::{
    Cables, accelerated, dpdk_object, ends, goes_over, on_dpdk, on_plugin, plugin_template, unsparing,
};
use insane_tests_network::{ENDS, LIMIT, at_the_source, eventually, law, network_count, reliable};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(120);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");
const DOMAINS: [&str; 2] = ["red", "blue"];

/// A message that says whose it is.
fn message(domain: &str, from: usize, number: usize, len: usize) -> Vec<u8> {
    let mut bytes = format!("{domain} {from} {number} ").into_bytes();
    bytes.resize(bytes.len() + len, domain.as_bytes()[0]);
    bytes
}

/// Both domains' sessions of a host together: every message that they emitted for the other host is in exactly one count.
fn law_of_both(sessions: &[Session]) -> bool {
    let (intended, at_source, report) =
        sessions.iter().map(at_the_source).fold((0, 0, None), |sum, one| (sum.0 + one.0, sum.1 + one.1, Some(one.2)));
    let ended: u64 = ENDS.iter().map(|name| network_count(report.as_ref().expect("a session"), name)).sum();
    intended > 0 && intended == at_source + ended
}

fn apart(datapath: &str, qos: fn(Qos) -> Qos, config: &dyn Fn(&mut Config, usize)) {
    let Some(cables) = Cables::new() else { return };
    let hosts = [0, 1].map(|end| {
        cables.runtime(PROGRAM, end, |new| {
            for name in DOMAINS {
                new.domains.insert(name.into(), Domain { all_users: true, ..Domain::default() });
            }
            config(new, end);
        })
    });
    let sessions = [0, 1].map(|host| DOMAINS.map(|domain| hosts[host].session_in(domain, domain)));
    for base in [reliable(), Qos::default()] {
        // Of each domain one channel each way, named as the other domain names its own.
        let mut all = Vec::new();
        for from in 0..2 {
            for (n, domain) in DOMAINS.iter().enumerate() {
                let made = ends(&sessions[from][n], &sessions[1 - from][n], qos(base), ["there", "back"][from]);
                goes_over(&made.0, ["host-1", "host-0"][from], datapath);
                all.push((from, *domain, made));
            }
        }
        for number in 0..100 {
            let len = [0, 100, 1400, 5000, 70_000][number % 5];
            for (from, domain, (_, source, _)) in &all {
                source.send(&message(domain, *from, number, len)).unwrap();
            }
            for (from, domain, (_, _, sink)) in &all {
                let got = sink.consume_timeout(LIMIT);
                let got = got.unwrap_or_else(|e| panic!("{domain}, {number}: {e}; {}", law(&sessions[*from][0])));
                assert!(got.to_vec() == message(domain, *from, number, len), "{domain} from {from}: message {number}");
            }
        }
        for of_host in &sessions {
            assert!(eventually(|| law_of_both(of_host)), "{} {}", law(&of_host[0]), law(&of_host[1]));
        }
        for (from, domain, (_, _, sink)) in &all {
            let more = sink.consume_timeout(Duration::from_millis(20)).ok().map(|message| message.to_vec());
            assert!(more.is_none(), "{domain} from {from} has more than was sent to it: {:?}", more.map(|m| m.len()));
        }
    }
}

#[test]
fn two_domains_on_one_interface_are_apart_over_xdp() {
    let _watchdog = Watchdog::start("domains over xdp", TEST);
    apart("xdp", accelerated, &|_, _| ());
}

#[test]
fn two_domains_on_one_interface_are_apart_over_dpdk() {
    let _watchdog = Watchdog::start("domains over dpdk", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    apart("dpdk", unsparing, &|config, _| on_dpdk(config, &library));
}

#[test]
fn two_domains_are_apart_over_a_plugin() {
    let _watchdog = Watchdog::start("domains over a plug-in", TEST);
    let folder = tempfile::tempdir().expect("a folder");
    let Some(library) = plugin_template(folder.path()) else { return };
    apart("plugin", accelerated, &|config, end| on_plugin(config, &library, folder.path(), end));
}
