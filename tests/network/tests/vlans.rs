//! Two runtimes whose datapaths are in a VLAN, in network namespaces. Without root or what the datapath takes: SKIPPED.

use insane::Qos;
use insane_runtime::config::Config;
use insane_tests_host::Watchdog;
use insane_tests_namespaces::{Vlan, leave_tags};
use insane_tests_network::cables::{Cables, accelerated, dpdk_object, ends, goes_over, on_dpdk, towards, unsparing};
use insane_tests_network::{LIMIT, eventually, law, law_holds, reliable, status};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

/// Streams go over the datapath between stations in one VLAN, in which the kernel of the first end pings the second's station; with
/// another VLAN at one end, they go over UDP and say why.
fn in_a_vlan(datapath: &str, qos: fn(Qos) -> Qos, config: &dyn Fn(&mut Config)) {
    let Some(cables) = Cables::new() else { return };
    cables.0.inside(1, || leave_tags("veth1")).expect("it can be told");
    let _vlan = Vlan::new(&cables.0, 0, "veth1", 7, ("vlan7", "10.94.0.1/24"));
    let runtime = |end: usize, vlan: u16| {
        cables.runtime(PROGRAM, end, |all| {
            config(all);
            let one = &mut all.network.get_or_insert_default().datapath[0];
            (one.address, one.vlan) = (format!("10.94.0.10{end}/24"), vlan);
        })
    };
    let one = runtime(0, 7);
    let a = one.session("one");
    {
        let two = runtime(1, 7);
        let b = two.session("two");
        // It may take longer to open than a start waits for it.
        let text = || status(&a)["network"]["datapaths"][1]["text"].as_str().unwrap_or_default().to_owned();
        assert!(eventually(|| text().ends_with("; in VLAN 7")), "{}", text());
        for kind in [Qos::default(), reliable()] {
            let (stream, source, sink) = ends(&a, &b, qos(kind), "c");
            goes_over(&stream, "host-1", datapath);
            for len in [1, 1400, 65_536] {
                let payload: Vec<u8> = (0..len).map(|i: usize| (i * 31 + len) as u8).collect();
                source.send(&payload).unwrap();
                let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{len}: {e}; {}", law(&a)));
                assert!(message.to_vec() == payload, "{len} bytes");
            }
        }
        cables.ping("10.94.0.101").unwrap();
        // What has no tag is the kernel's.
        cables.ping("10.96.0.2").unwrap();
        assert!(eventually(|| law_holds(&a)), "{}", law(&a));
    }
    let two = runtime(1, 8);
    let b = two.session("two");
    let (stream, source, sink) = ends(&a, &b, qos(Qos::default()), "apart");
    // Until the silence is noticed it may seem that the path stands.
    goes_over(&stream, "host-1", "udp");
    let effective = towards(&stream, "host-1");
    assert!(effective.reasons[0].contains(&format!("host-0 does not reach host-1 over {datapath}")), "{effective:?}");
    source.send(b"by the kernel").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"by the kernel");
}

#[test]
fn streams_go_over_xdp_in_a_vlan() {
    let _watchdog = Watchdog::start("vlan, xdp", TEST);
    in_a_vlan("xdp", accelerated, &|_| ());
}

#[test]
fn streams_go_over_dpdk_in_a_vlan() {
    let _watchdog = Watchdog::start("vlan, dpdk", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    in_a_vlan("dpdk", unsparing, &|config| on_dpdk(config, &library));
}
