//! DPDK's environment does not start: a process of its own, as it is tried once in each.

mod common;

use insane_datapath::{Datapath, DatapathError};
use insane_datapath_dpdk::DpdkConfig;

/// More memory than an address space has.
const TOO_MUCH: &str = "--no-huge -m 200000000 --no-pci";

#[test]
fn why_dpdk_did_not_start_is_said_each_time_and_for_good() {
    let Some(dpdk) = common::dpdk() else { return };
    let ask = |eal: Option<&str>| -> DatapathError {
        let config = DpdkConfig { eal: eal.map(str::to_owned), ..DpdkConfig::new("net_null0") };
        let mut port = dpdk.port(&config).expect("a configuration that can be");
        port.open().expect_err("it does not start")
    };
    let first = ask(Some(TOO_MUCH));
    let said = first.to_string();
    assert!(first.is_final(), "{said}");
    assert!(said.contains(&format!(" does not start with \"{TOO_MUCH}\": ")), "{said}");
    let end = "): said when DPDK was started in this process; restart the runtime after mending it";
    assert!(said.ends_with(end), "{said}");
    // Who asks again, or for what would have worked, hears the same.
    for eal in [Some(TOO_MUCH), None] {
        let again = ask(eal);
        assert!(again.is_final(), "{again}");
        assert_eq!(again.to_string(), said);
    }
}
