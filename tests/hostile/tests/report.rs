//! Reports: one that does not fit one message of the protocol, and what the doctor finds odd.

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

#[test]
fn the_doctor_finds_a_misspelt_channel_and_no_question_and_answer() {
    let _watchdog = Watchdog::start("doctor", Duration::from_secs(60));
    let host = Host::start();
    let (one, two) = (host.session("one"), host.session("two"));
    let (a, b) = (one.stream(Qos::default()).unwrap(), two.stream(Qos::default()).unwrap());
    let (_ask, _heard) = (a.source("echo/ping").unwrap(), a.sink("echo/pong").unwrap());
    let (_sent, _meant) = (a.source("telemetry").unwrap(), b.sink("telemetery").unwrap());
    let (_both, _ends) = (a.source("whole").unwrap(), b.sink("whole").unwrap());
    let _near = b.sink("whale").unwrap();
    let report: serde_json::Value = serde_json::from_str(&one.report("doctor").unwrap()).expect("whole JSON");
    let names = report["checks"].as_array().into_iter().flatten().filter(|c| c["check"] == "names");
    let texts: Vec<_> = names.map(|c| c["text"].as_str().unwrap_or_default()).collect();
    assert_eq!(texts, ["`telemetry` and `telemetery` are spelt nearly alike"]);
}
