use super::series::{Format, Metrics as Series};
use super::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn status() -> Value {
    let cell = |cell: u32, source: &str, delivered: u64| json!({"cell": cell, "end": "consuming", "source": source, "sink": "cc", "counts": {"delivered": delivered}});
    json!({
        "version": "1", "uptime_s": 7, "cpu_latency_knob": "off", "closed_slow": 0, "counters": {"sessions_opened": 9_007_199_254_740_993_u64},
        "sessions": [
            {"session": "s", "app": "a\"\\\n", "domain": "d", "library": "rust", "pid": null, "uid": 0, "streams": 1, "endpoints": 2,
             "counters": [cell(0, "aa", 5), cell(1, "aa", 6), cell(2, "bb", 7)]},
            {"session": "mine", "app": "insane metrics", "domain": "d", "streams": 0, "endpoints": 0, "counters": []},
        ],
        "streams": [{"domain": "d", "name": "st", "sessions": 1,
            "channels": [{"id": "01", "name": "ch", "sources": ["aa"], "sinks": []}],
            "effective": [{"peer": "", "datapath": "udp", "transport": "datagram", "qos": "", "reasons": ["no xdp", "no dpdk"]}]}],
        "ended": [cell(0, "dd", 1), cell(1, "ee", 2)],
        "network": {"memory": [{"domain": "d", "slots": 2, "bytes": 8192, "copied_bytes": 0, "segment_bytes": 1048576, "most_bytes": 4194304}],
            "ports": [{"name": "udp", "connections": null}, {"name": "xdp+tcp", "connections": {"opened": 4, "evicted": 2}}], "hosts": [{"name": "far", "address": "10.0.0.2:7400", "connected": true, "moved": {"count": 1, "last_us": 1500}, "paths": []}]},
    })
}

fn lines(most: usize) -> Vec<String> {
    let text = Series::new(&status(), "mine", most).text(Format::OpenMetrics).unwrap();
    assert!(text.ends_with("# EOF\n"));
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn flows_say_where_they_belong_and_no_series_comes_twice() {
    let lines = lines(1000);
    let has = |line: &str| assert!(lines.iter().any(|l| l == line), "{line} is not in {lines:#?}");
    let labels = |stream: &str, channel: &str, source: &str, cell: u32| {
        format!(
            "{{domain=\"d\",stream=\"{stream}\",channel=\"{channel}\",session=\"s\",app=\"a\\\"\\\\\",end=\"consuming\",source=\"{source}\",sink=\"cc\",cell=\"{cell}\"}}"
        )
    };
    // A source that is on another host has no stream here.
    has(&format!("insane_delivered_messages_total{} 5", labels("st", "ch", "aa", 0)));
    has(&format!("insane_delivered_messages_total{} 6", labels("st", "ch", "aa", 1)));
    has(&format!("insane_delivered_messages_total{} 7", labels("", "", "bb", 2)));
    has("insane_ended_flows{end=\"consuming\"} 2");
    has("insane_ended_counts{end=\"consuming\",count=\"delivered\"} 3");
    has("insane_opened_sessions_total 9007199254740993");
    has("insane_receive_used_slots{domain=\"d\"} 2");
    has("insane_receive_used_bytes{domain=\"d\"} 8192");
    has("insane_datapath_opened_connections_total{datapath=\"xdp+tcp\"} 4");
    has("insane_datapath_evicted_connections_total{datapath=\"xdp+tcp\"} 2");
    has("insane_host_last_move_seconds{host=\"far\",host_address=\"10.0.0.2:7400\"} 0.0015");
    has(
        "insane_effective_qos_info{domain=\"d\",stream=\"st\",peer=\"\",datapath=\"udp\",transport=\"datagram\",qos=\"\",reason=\"no xdp; no dpdk\"} 1",
    );
    assert!(
        !lines.iter().any(|line| line.contains("insane metrics")),
        "who asks is another session each time: {lines:#?}"
    );
    let mut names: Vec<&str> = lines.iter().map(|line| line.rsplit_once(' ').unwrap().0).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn no_more_series_than_may_be_and_the_rest_is_counted() {
    let all = lines(1000);
    assert_eq!(all.last().map(String::as_str), Some("insane_left_out_series 0"));
    assert_eq!(lines(all.len()), all);
    let most = all.len() - 3;
    let less = lines(most);
    assert_eq!(less.last().map(String::as_str), Some("insane_left_out_series 3"));
    // Those of single flows go first.
    assert_eq!((less.len(), &less[..most - 1]), (most, &all[..most - 1]));
    assert_eq!(lines(1), [format!("insane_left_out_series {}", all.len() - 1)]);
}

/// The cell in which a flow counted first is another one's when that flow has counted on in a second cell.
#[test]
fn no_counter_falls_when_the_cell_of_a_flow_that_ended_is_used_again() {
    let counters = |status: &Value| -> BTreeMap<String, u64> {
        let text = Series::new(status, "mine", 1000).text(Format::OpenMetrics).unwrap();
        let flows = text.lines().filter(|line| line.starts_with("insane_delivered_messages_total"));
        flows
            .map(|line| line.rsplit_once(' ').unwrap())
            .map(|(name, n)| (name.to_owned(), n.parse().unwrap()))
            .collect()
    };
    let mut later = status();
    let before = counters(&later);
    let cell = &mut later["sessions"][0]["counters"][0];
    (cell["source"], cell["counts"]["delivered"]) = (json!("ff"), json!(1));
    let after = counters(&later);
    assert_eq!((before.len(), after.len()), (3, 3));
    let kept = before.iter().filter_map(|(name, count)| Some((count, after.get(name)?)));
    assert_eq!(kept.clone().count(), 2);
    assert!(kept.clone().all(|(before, after)| after >= before), "{before:?} {after:?}");
}

#[test]
fn nothing_listens_beyond_this_host_unless_it_is_said() {
    let listen = |text: &str, beyond| {
        let address = parse_address(text).unwrap();
        let metrics = Metrics { write: None, listen: Some(address), beyond_loopback: beyond, most_series: 1 };
        (address.to_string(), metrics.allow(address.ip()))
    };
    assert_eq!(listen("9464", false), ("127.0.0.1:9464".into(), Ok(())));
    assert_eq!(listen("[::1]:9464", false), ("[::1]:9464".into(), Ok(())));
    for address in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1"] {
        let why = listen(address, false).1.unwrap_err();
        assert!(why.contains("--beyond-loopback"), "{why}");
        assert_eq!(listen(address, true).1, Ok(()));
    }
    assert!(parse_address("localhost").is_err());
}

#[test]
fn a_file_is_replaced_as_a_whole_and_others_may_read_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("insane.prom");
    std::fs::write(&file, "old").unwrap();
    let old = std::fs::File::open(&file).unwrap();
    replace(&file, "new").unwrap();
    assert_eq!(std::io::read_to_string(old).unwrap(), "old", "who reads the old one reads it to its end");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o444, 0o444);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    assert!(replace(&folder.path().join("none/insane.prom"), "new").is_err());
}
