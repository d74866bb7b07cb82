//! The numbers of a status report as metrics: what each is called, and with which labels it comes.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// The two text formats there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// OpenMetrics 1.0, <https://prometheus.io/docs/specs/om/open_metrics_spec/>.
    OpenMetrics,
    /// The text format of Prometheus before it, 0.0.4: the one that node_exporter reads from files.
    Prometheus,
}

impl Format {
    /// As HTTP names it.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
        }
    }
}

type Labels = Vec<(&'static str, String)>;

/// One number of a report: its key, and what it is as a metric.
#[derive(Debug, Clone, Copy)]
struct Row {
    key: &'static str,
    name: &'static str,
    counts: bool,
    unit: Option<(&'static str, u64)>,
    help: &'static str,
}

impl Row {
    /// The unit and how many of what the report says make one of it.
    const fn of(self, unit: &'static str, parts: u64) -> Self {
        Self { unit: Some((unit, parts)), ..self }
    }
}

/// What only rises.
const fn count(key: &'static str, name: &'static str, help: &'static str) -> Row {
    Row { key, name, counts: true, unit: None, help }
}

/// What rises and falls.
const fn gauge(key: &'static str, name: &'static str, help: &'static str) -> Row {
    Row { key, name, counts: false, unit: None, help }
}

const RUNTIME: &[Row] = &[
    gauge("/uptime_s", "uptime", "How long the runtime has run").of("seconds", 1),
    count(
        "/closed_slow",
        "closed_slow_sessions",
        "Sessions closed because they did not read what the runtime told them",
    ),
    count("/counters/sessions_opened", "opened_sessions", "Sessions that were taken in"),
    count("/counters/sessions_lost", "lost_sessions", "Sessions that ended without a goodbye"),
    count("/counters/refused", "refused_requests", "Requests of sessions that were refused"),
    count("/counters/protocol_errors", "protocol_errors", "Connections of sessions that broke the protocol"),
    count("/counters/flows_matched", "matched_flows", "Flows from a source to a sink that were matched"),
    count("/counters/pairs_made", "made_pairs", "Pairs of sessions that were joined"),
    count("/counters/pairs_resumed", "resumed_pairs", "Pairs that both ends brought back after a restart"),
    gauge("/network/under_way", "underway_messages", "Messages of other hosts that are not whole yet"),
    gauge("/network/rebind_requests", "rebind_requests", "Requests to move streams that are in force"),
    count("/network/unknown_senders", "unknown_sender_frames", "Frames from senders that are no host known here"),
    count("/network/refused", "refused_words", "What other hosts asked for and were refused"),
];

/// Of each domain: its memory for what other hosts send.
const MEMORY: &[Row] = &[
    gauge("/slots", "receive_used_slots", "Slots in which something has arrived that was not given back yet"),
    gauge("/bytes", "receive_used", "What these slots take").of("bytes", 1),
    gauge("/copied_bytes", "receive_copied", "Copies of messages that wait for others before them").of("bytes", 1),
    gauge("/segment_bytes", "receive_segments", "Memory for what arrives, used or not").of("bytes", 1),
    gauge("/most_bytes", "receive_most", "The most that this memory may be, and the copies as much again")
        .of("bytes", 1),
];

const DATAPATH: &[Row] = &[
    count("/losses", "datapath_losses", "How often the datapath failed after it was open"),
    gauge("/tries", "datapath_tries", "How often it was tried to open it again since"),
    gauge("/final", "datapath_needs_restart", "Whether nothing opens it again before the runtime restarts"),
    gauge("/capture/seconds", "capture_age", "How long the capture of the datapath runs").of("seconds", 1),
    gauge("/capture/frames", "capture_frames", "Frames that the capture has taken"),
    gauge("/capture/dropped", "capture_dropped_frames", "Frames that the capture had no room for"),
];

const PORT: &[Row] = &[
    count("/sent_frames", "datapath_sent_frames", "Frames sent"),
    count("/received_frames", "datapath_received_frames", "Frames received"),
    count("/calls", "datapath_calls", "System calls or doorbells it took"),
    count("/overruns", "datapath_overruns", "Frames lost because nobody took them in time"),
    count("/dropped", "datapath_dropped_frames", "Frames dropped"),
    count("/refused_frames", "datapath_refused_frames", "Frames that the network below refused"),
    count("/placed", "datapath_placed_frames", "Frames received straight into their message"),
    count("/busy", "datapath_busy", "How often the network below had no room"),
    count("/connections/opened", "datapath_opened_connections", "TCP connections that this host opened"),
    count("/connections/accepted", "datapath_accepted_connections", "TCP connections that other hosts opened"),
    count(
        "/connections/ended",
        "datapath_ended_connections",
        "TCP connections that the other host or the network ended",
    ),
    count(
        "/connections/evicted",
        "datapath_evicted_connections",
        "TCP connections ended here to make room for another one",
    ),
    count(
        "/connections/replaced",
        "datapath_replaced_connections",
        "TCP connections ended here as their host has opened another one",
    ),
    count(
        "/connections/hostile",
        "datapath_hostile_connections",
        "TCP connections ended here as no host speaks like that",
    ),
    count("/connections/stalled", "datapath_stalled_frames", "Frames refused as their host took nothing over TCP"),
    gauge("/lent", "datapath_lent_slots", "Slots of the datapath's memory that sinks hold"),
];

const HOST: &[Row] = &[
    gauge("/connected", "host_connected", "Whether the host is connected"),
    count("/losses", "host_losses", "How often the host was lost"),
    count("/moves", "host_left_paths", "Streams that left a path to the host for another"),
    count("/moved/count", "host_moved_streams", "Moves of streams to another path that the host has accepted"),
    gauge("/moved/last_us", "host_last_move", "How long the last of these took").of("seconds", 1_000_000),
    gauge("/moved/mean_us", "host_mean_move", "How long they took on average").of("seconds", 1_000_000),
    gauge("/moved/most_us", "host_longest_move", "How long the longest took").of("seconds", 1_000_000),
    gauge("/sinks", "host_sinks", "Sinks on the host that sources here may have"),
    gauge("/flows_out", "host_outgoing_flows", "Flows to the host"),
    gauge("/flows_in", "host_incoming_flows", "Flows from the host"),
    gauge("/pending", "host_pending_messages", "Messages for the host whose fate is not known yet"),
    count("/foreign", "host_foreign_frames", "Frames of another run of the host or for another runtime"),
    count("/mismatched", "host_mismatched_flows", "Flows that were not what their source was announced as"),
    count("/stray", "host_stray_frames", "Frames that belong to nothing"),
    gauge("/in_flight", "host_in_flight", "What is not acknowledged on the first path").of("bytes", 1),
    gauge("/window", "host_window", "What may be in flight on the first path").of("bytes", 1),
];

const PATH: &[Row] = &[
    gauge("/connected", "path_connected", "Whether the path is connected"),
    gauge("/hold_ms", "path_hold", "How long the path has to stand before streams come back to it").of("seconds", 1000),
    gauge("/flows_out", "path_outgoing_flows", "Flows to the host by the path"),
    gauge("/rtt_us", "path_round_trip", "Smoothed round trip").of("seconds", 1_000_000),
    count("/sent_frames", "path_sent_frames", "Frames sent"),
    count("/received_frames", "path_received_frames", "Frames received"),
    count("/lost_frames", "path_lost_frames", "Frames sent that were lost"),
    count("/connections", "path_connections", "How often the path was connected"),
    gauge("/frame_bytes", "path_frame", "The largest frame that is sent").of("bytes", 1),
    gauge("/most_frame_bytes", "path_largest_frame", "The largest frame that the interfaces take").of("bytes", 1),
    count("/duplicates", "path_duplicate_frames", "Frames that came twice"),
    count("/foreign", "path_foreign_frames", "Frames of another run of the host or for another runtime"),
    count("/malformed", "path_malformed_frames", "Frames that were no frames"),
    count("/stray", "path_stray_frames", "Frames that belong to nothing"),
    count("/overtaken", "path_overtaken_messages", "Best-effort messages that later ones overtook on the network"),
    count("/refused", "path_refused_messages", "Messages that there was no room for"),
];

const DIRECTORY: &[Row] = &[
    gauge("/hosts", "directory_hosts", "Hosts that the directory knows"),
    count("/refused", "directory_refused", "Entries of others that were refused"),
    count("/beacons/sent", "directory_sent_beacons", "Beacons sent"),
    count("/beacons/failed", "directory_failed_beacons", "Beacons that could not be sent"),
    count("/beacons/heard", "directory_heard_beacons", "Beacons heard"),
    count("/beacons/refused", "directory_refused_beacons", "Beacons of others that were refused"),
];

const CONNECTION: &[Row] = &[
    gauge("/open", "directory_connection_open", "Whether the directory's connection is open"),
    count("/tries", "directory_connection_tries", "How often it was tried to open it"),
    count("/failures", "directory_connection_failures", "How often that failed"),
];

const SESSION: &[Row] = &[
    gauge("/streams", "session_streams", "Streams that the session has open"),
    gauge("/endpoints", "session_endpoints", "Sources and sinks that the session has"),
];

const STREAM: &[Row] = &[gauge("/sessions", "stream_sessions", "Sessions that have the stream open")];

/// The counts of a flow's end; the words of the accounting law.
const CELL: &[Row] = &[
    count("/counts/emitted", "emitted_messages", "Messages that the source emitted"),
    count("/counts/intended", "intended_messages", "Messages meant for the sink when they were emitted"),
    count("/counts/delivered", "delivered_messages", "Messages handed to the application"),
    count("/counts/sink_full", "sink_full_messages", "Messages dropped because there was no room"),
    count("/counts/expired", "expired_messages", "Messages past their deadline"),
    count("/counts/unconfirmed", "unconfirmed_messages", "Messages whose peer was lost before their fate was known"),
    count("/counts/sink_closed", "sink_closed_messages", "Messages that came after the sink was closed"),
    count("/counts/invalid", "invalid_messages", "Messages that the checks of the sink's session refused"),
    count("/counts/no_sink", "no_sink_messages", "Messages emitted when there was no sink"),
    count("/counts/dropped", "dropped_messages", "Messages dropped for another reason, such as a loss on the network"),
    count("/counts/bytes", "payload", "Payload emitted by a source or delivered to a sink").of("bytes", 1),
];

const EFFECTIVE: &str = "Which datapath and transport serve a stream towards a host, and why no better one";
const DATAPATHS: &str = "The datapaths that the configuration names; the reason says why one is absent";

/// A metric and its series.
#[derive(Debug)]
struct Family {
    row: Row,
    info: bool,
    /// In whole parts of the unit. The text formats allow no series twice: those with the same labels are summed.
    series: BTreeMap<Labels, u64>,
}

/// All that a report has, in the order in which it is written.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    families: Vec<Family>,
    left_out: u64,
}

/// A text of a report, as [`crate::look`] shows it.
fn word(value: &Value, key: &str) -> String {
    crate::look::text(value, key)
}

fn words(value: &Value, labels: &[(&'static str, &str)]) -> Labels {
    labels.iter().map(|(label, key)| (*label, word(value, key))).collect()
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_bool().map(u64::from))
}

impl Metrics {
    /// Everything in a status report that is a number, and what serves its streams. `own` is the session that asked: it
    /// is not told of, as it is another one each time. Of the series no more than `most` are kept; those of single flows
    /// are the last.
    pub(super) fn new(status: &Value, own: &str, most: usize) -> Self {
        let mut metrics = Self::default();
        let list = crate::look::list;
        metrics.info(
            "runtime",
            "The runtime of this host",
            words(status, &[("version", "version"), ("cpu_latency_knob", "cpu_latency_knob")]),
        );
        metrics.rows(RUNTIME, status, &Labels::new());
        let network = &status["network"];
        for memory in list(network, "memory") {
            metrics.rows(MEMORY, memory, &words(memory, &[("domain", "domain")]));
        }
        for datapath in list(network, "datapaths") {
            let labels = words(datapath, &[("datapath", "kind"), ("interface", "interface"), ("address", "address")]);
            let open = gauge("", "datapath_open", "Whether the datapath is open");
            metrics.add(open, labels.clone(), u64::from(datapath["state"] == "open"));
            metrics.rows(DATAPATH, datapath, &labels);
            let more = words(datapath, &[("state", "state"), ("reason", "reason"), ("lost", "lost")]);
            metrics.info("datapath", DATAPATHS, labels.into_iter().chain(more).collect());
        }
        for port in list(network, "ports") {
            metrics.rows(PORT, port, &words(port, &[("datapath", "name")]));
        }
        for host in list(network, "hosts") {
            let labels = [("host", word(host, "name")), ("host_address", word(host, "address"))];
            metrics.rows(HOST, host, &labels);
            for path in list(host, "paths") {
                let more = words(path, &[("datapath", "datapath"), ("address", "address")]);
                metrics.rows(PATH, path, &labels.iter().cloned().chain(more).collect::<Labels>());
            }
        }
        let directory = &network["directory"];
        metrics.rows(DIRECTORY, directory, &Labels::new());
        for way in list(directory, "connections") {
            metrics.rows(
                CONNECTION,
                way,
                &words(way, &[("kind", "kind"), ("address", "address"), ("interface", "interface")]),
            );
        }
        metrics.streams(status);
        metrics.flows(status, own);
        metrics.keep(most);
        metrics
    }

    fn streams(&mut self, status: &Value) {
        for stream in crate::look::list(status, "streams") {
            let labels = words(stream, &[("domain", "domain"), ("stream", "name")]);
            self.rows(STREAM, stream, &labels);
            for is in crate::look::list(stream, "effective") {
                let keys = [("peer", "peer"), ("datapath", "datapath"), ("transport", "transport"), ("qos", "qos")];
                let reasons = crate::look::list(is, "reasons").iter().filter_map(crate::look::plain);
                let reason = ("reason", reasons.collect::<Vec<_>>().join("; "));
                let labels = labels.iter().cloned().chain(words(is, &keys)).chain([reason]);
                self.info("effective_qos", EFFECTIVE, labels.collect());
            }
            for channel in crate::look::list(stream, "channels") {
                let labels: Labels = labels.iter().cloned().chain([("channel", channel_name(channel))]).collect();
                for (key, name, help) in [
                    (
                        "sources",
                        "channel_sources",
                        "Sources that are known here: this host's, and those of other hosts that have sinks here",
                    ),
                    ("sinks", "channel_sinks", "Sinks that sources of this host may have, observers too"),
                ] {
                    self.add(gauge("", name, help), labels.clone(), crate::look::list(channel, key).len() as u64);
                }
            }
        }
    }

    /// What each session has, and the counts of its ends of flows; then those of flows that have ended.
    fn flows(&mut self, status: &Value, own: &str) {
        let places = places(status);
        let sessions = crate::look::list(status, "sessions").iter().filter(|s| word(s, "session") != own);
        for session in sessions.clone() {
            let labels = words(session, &[("session", "session"), ("app", "app"), ("domain", "domain")]);
            self.rows(SESSION, session, &labels);
            let numbers = [("pid", "pid"), ("uid", "uid")]
                .map(|(label, key)| (label, number(&session[key]).map_or_else(String::new, |n| n.to_string())));
            let labels = labels.into_iter().chain(words(session, &[("library", "library")])).chain(numbers);
            self.info("session", "The sessions of this host", labels.collect());
        }
        for ended in crate::look::list(status, "ended") {
            let labels = words(ended, &[("end", "end")]);
            self.add(gauge("", "ended_flows", "Flows that have ended and are remembered"), labels.clone(), 1);
            // Of those the oldest are forgotten: what they counted falls then.
            for row in CELL {
                if let Some(value) = ended.pointer(row.key).and_then(number) {
                    let (key, help) = (
                        row.key.trim_start_matches("/counts/").to_owned(),
                        "What these have counted, by count; payload in bytes",
                    );
                    self.add(
                        gauge("", "ended_counts", help),
                        labels.iter().cloned().chain([("count", key)]).collect(),
                        value,
                    );
                }
            }
        }
        for session in sessions {
            for cell in crate::look::list(session, "counters") {
                let place = places.get(cell["source"].as_str().unwrap_or_default());
                let [stream, channel] = place.cloned().unwrap_or_default();
                let mut labels = words(session, &[("domain", "domain")]);
                labels.extend([("stream", stream), ("channel", channel)]);
                labels.extend(words(session, &[("session", "session"), ("app", "app")]));
                // A flow that comes back counts in another cell, and the one that has ended is used again: a sum of both would fall then.
                let place = number(&cell["cell"]).map_or_else(String::new, |n| n.to_string());
                labels.extend(words(cell, &[("end", "end"), ("source", "source"), ("sink", "sink")]));
                labels.push(("cell", place));
                self.rows(CELL, cell, &labels);
            }
        }
    }

    fn rows(&mut self, rows: &[Row], value: &Value, labels: &[(&'static str, String)]) {
        for row in rows {
            if let Some(number) = value.pointer(row.key).and_then(number) {
                self.add(*row, labels.to_vec(), number);
            }
        }
    }

    fn info(&mut self, name: &'static str, help: &'static str, labels: Labels) {
        self.family(gauge("", name, help), true).series.insert(labels, 1);
    }

    fn add(&mut self, row: Row, labels: Labels, value: u64) {
        let sum = self.family(row, false).series.entry(labels).or_default();
        *sum = sum.saturating_add(value);
    }

    fn family(&mut self, row: Row, info: bool) -> &mut Family {
        let at = self.families.iter().position(|f| f.row.name == row.name && f.info == info).unwrap_or_else(|| {
            self.families.push(Family { row, info, series: BTreeMap::new() });
            self.families.len() - 1
        });
        &mut self.families[at]
    }

    /// Leaves out what is beyond so many series, at least one, and says how many: in the last of them.
    fn keep(&mut self, most: usize) {
        let mut room = most.saturating_sub(1);
        for family in &mut self.families {
            let excess = family.series.len().saturating_sub(room);
            for _ in 0..excess {
                family.series.pop_last();
            }
            room -= family.series.len();
            self.left_out += excess as u64;
        }
        self.families.retain(|family| !family.series.is_empty());
        let help = "Series that are not here because there are more than may be";
        self.add(gauge("", "left_out_series", help), Labels::new(), self.left_out);
    }

    /// As text.
    pub(super) fn text(self, format: Format) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("insane");
        registry.register_collector(Box::new(self));
        let mut out = String::new();
        match format {
            Format::OpenMetrics => text::encode(&mut out, &registry)?,
            Format::Prometheus => prometheus_text::encode(&mut out, &registry)?,
        }
        Ok(out)
    }
}

/// A channel's name, or its id if it has none.
fn channel_name(channel: &Value) -> String {
    crate::look::plain(&channel["name"]).unwrap_or_else(|| word(channel, "id"))
}

/// The stream and the channel of every source.
fn places(status: &Value) -> BTreeMap<&str, [String; 2]> {
    let mut places = BTreeMap::new();
    for stream in crate::look::list(status, "streams") {
        for channel in crate::look::list(stream, "channels") {
            for source in crate::look::list(channel, "sources").iter().filter_map(Value::as_str) {
                places.insert(source, [word(stream, "name"), channel_name(channel)]);
            }
        }
    }
    places
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for Family { row, info, series } in &self.families {
            let kind = match (info, row.counts) {
                (true, _) => MetricType::Info,
                (false, true) => MetricType::Counter,
                (false, false) => MetricType::Gauge,
            };
            let unit = row.unit.map(|(unit, _)| Unit::Other(unit.into()));
            let mut metric = encoder.encode_descriptor(row.name, row.help, unit.as_ref(), kind)?;
            for (labels, value) in series {
                if *info {
                    metric.encode_info(labels)?;
                    continue;
                }
                let at = metric.encode_family(labels)?;
                match (row.counts, row.unit) {
                    (true, _) => ConstCounter::new(*value).encode(at)?,
                    (false, Some((_, parts))) if parts > 1 => {
                        ConstGauge::new(*value as f64 / parts as f64).encode(at)?
                    }
                    (false, _) => ConstGauge::new(*value).encode(at)?,
                }
            }
        }
        Ok(())
    }
}
