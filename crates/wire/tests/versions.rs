//! Fields that were added later: who does not know them passes them over, and who knows them takes their absence for nothing.

use insane_wire::{control, decode, encode, host, peer};

/// [`peer::FlowOpened`] before sinks had cursors.
#[derive(Clone, PartialEq, prost::Message)]
struct OldFlowOpened {
    #[prost(uint32, tag = "1")]
    source: u32,
    #[prost(bytes = "vec", tag = "2")]
    sink: Vec<u8>,
    #[prost(uint32, tag = "3")]
    cell: u32,
}

/// [`host::Source`] before it named its sinks.
#[derive(Clone, PartialEq, prost::Message)]
struct OldSource {
    #[prost(bytes = "vec", tag = "1")]
    epoch: Vec<u8>,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(string, tag = "3")]
    stream: String,
    #[prost(fixed64, tag = "5")]
    channel: u64,
}

#[test]
fn a_cursor_is_passed_over_by_who_keeps_none_and_is_nothing_from_them() {
    let old = OldFlowOpened { source: 3, sink: vec![9; 16], cell: 70_000 };
    let new: peer::FlowOpened = decode(&encode(&old)).unwrap();
    assert_eq!((new.source, new.cell, new.cursor), (3, 70_000, 0));
    let new = peer::FlowOpened { cursor: u64::MAX, ..new };
    assert_eq!(decode::<OldFlowOpened>(&encode(&new)).unwrap(), old);
}

#[test]
fn the_sinks_of_a_source_are_passed_over_too() {
    let old = OldSource { epoch: vec![1; 16], domain: "d".into(), stream: "s".into(), channel: 5 };
    let new: host::Source = decode(&encode(&old)).unwrap();
    assert!(new.sinks.is_empty() && new.stream == "s");
    let new = host::Source { sinks: vec![vec![2; 16]; 1024], ..new };
    assert_eq!(decode::<OldSource>(&encode(&new)).unwrap(), old);
}

#[test]
fn a_pair_is_no_runtimes_and_a_limit_is_none_unless_it_is_said() {
    let pair: control::Pair = decode(&encode(&control::Pair { trusted: true, ..control::Pair::default() })).unwrap();
    assert!(pair.trusted && !pair.network);
    let limits = control::Limits { streams: 7, ..control::Limits::default() };
    assert_eq!(decode::<control::Limits>(&encode(&limits)).unwrap().patience_ms, 0);
}

/// The numbers of the fields of a message of `host.rs`.
fn fields(name: &str) -> Vec<&'static str> {
    let source = include_str!("../src/host.rs");
    let (_, from) = source.split_once(&format!("pub struct {name} {{")).expect("there is such a message");
    let body = &from[..from.find('}').expect("it ends")];
    body.split("tag = \"").skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[test]
fn the_document_names_every_field_of_what_runtimes_tell_each_other() {
    let document = include_str!("../../../docs/wire-format.md");
    let names = ["Hello", "Announce", "Withdraw", "Snapshot", "Source", "Ready", "Report", "Refused", "Ended", "Room"];
    for (number, name) in (1..).zip(names) {
        let kind = format!("| {number} | {} | ", name.to_lowercase());
        let row = document.lines().find(|line| line.starts_with(&kind)).expect("it has a row");
        for field in fields(name) {
            assert!(row.contains(&format!("({field})")), "{name}: field {field}");
        }
    }
    assert_eq!((fields("Ready").len(), fields("Announce").len(), fields("Snapshot").len()), (4, 8, 0));
}
