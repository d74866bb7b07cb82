//! A report that does not fit one message of the protocol.

use insane::Qos;
use insane_tests_host::{Host, Watchdog};
use std::time::Duration;

#[test]
fn a_long_report_is_whole() {
    let _watchdog = Watchdog::start("report", Duration::from_secs(60));
    let host = Host::start();
    let session = host.session("many");
    let stream = session.stream(Qos::default()).unwrap();
    let sinks: Vec<_> = (0..500).map(|i| stream.sink(&format!("channel {i}")).unwrap()).collect();
    let report = session.report("status").unwrap();
    assert!(report.len() > 65_536, "{} bytes fit one message", report.len());
    let value: serde_json::Value = serde_json::from_str(&report).expect("whole JSON");
    assert_eq!(value["streams"][0]["channels"].as_array().map(Vec::len), Some(sinks.len()));
}
