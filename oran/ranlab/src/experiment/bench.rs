//! What all experiments need: a lab whose samples are kept, ping, greedy flows, and one clock for all.

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use insane_traffic::spec::Change;

use super::numbers::Point;
use crate::config::Config;
use crate::core::stats::BearerStats;
use crate::host::HostError;
use crate::host::lab::{Lab, Sample};
use crate::host::namespaces::SERVER;
use crate::host::process::Running;
use crate::host::view::{Row, rows};

/// The first port of the greedy flows; flow n has this plus n.
pub(super) const FIRST_PORT: u16 = 5201;

/// A lab, its samples, and the servers of the greedy flows.
pub(super) struct Bench {
    lab: Option<Lab>,
    kept: Arc<Mutex<Vec<Row>>>,
    keeper: Option<JoinHandle<()>>,
    servers: Vec<Running>,
    /// The first UE's identity and its first bearer's id.
    bearer: (u16, u8),
    /// The wall clock, in seconds, when the lab's clock was zero.
    epoch: f64,
}

/// A greedy flow: one TCP connection that sends as fast as it may.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow<'a> {
    /// Which of the servers has it, from 0.
    pub(super) server: u16,
    pub(super) seconds: f64,
    pub(super) congestion: &'a str,
    /// From the UE to the server, and not the other way.
    pub(super) up: bool,
    /// Its packets' type of service.
    pub(super) tos: u8,
}

/// A greedy flow that runs.
pub(super) struct Greedy {
    started: f64,
    seconds: f64,
    up: bool,
    client: Running,
}

/// A ping that runs.
pub(super) struct Ping {
    epoch: f64,
    program: Running,
}

impl Bench {
    /// A lab with servers for `flows` greedy flows; the state of its bearer is kept every 100 ms.
    pub(super) fn new(config: &Config, flows: u16) -> Result<Self, HostError> {
        Self::start(config, flows, Some(Duration::from_millis(100)))
    }

    /// The same without rows: nobody looks at the lab but when it is asked.
    pub(super) fn unwatched(config: &Config, flows: u16) -> Result<Self, HostError> {
        Self::start(config, flows, None)
    }

    fn start(config: &Config, flows: u16, every: Option<Duration>) -> Result<Self, HostError> {
        let bearer = config.ues.first().and_then(|ue| Some((ue.rnti, ue.bearers.first()?.id)));
        let bearer = bearer.ok_or_else(|| HostError::new("configuration", "it has no UE with a bearer"))?;
        let (to, inbox) = sync_channel(256);
        let lab = Lab::start(config, every.map(|every| (every, to)))?;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch = (wall.as_secs_f64()) - lab.elapsed().as_secs_f64();
        let kept = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&kept);
        let keeper = std::thread::spawn(move || {
            let mut before: Option<Box<Sample>> = None;
            for sample in inbox {
                if let (Some(before), Ok(mut kept)) = (&before, into.lock()) {
                    kept.extend(rows(before, &sample));
                }
                before = Some(sample);
            }
        });
        let server = |n: u16| {
            let port = (FIRST_PORT + n).to_string();
            // What arrives of a flow from the UE only its server knows.
            Running::start(lab.namespaces.server(), &["iperf3", "-s", "-p", &port, "-i", "0.1", "-J"])
        };
        let servers = (0..flows).map(server).collect::<Result<_, _>>()?;
        std::thread::sleep(Duration::from_millis(300));
        Ok(Self { lab: Some(lab), kept, keeper: Some(keeper), servers, bearer, epoch })
    }

    fn lab(&self) -> Result<&Lab, HostError> {
        self.lab.as_ref().ok_or_else(|| HostError::new("lab", "it has ended"))
    }

    /// The lab's clock in seconds.
    pub(super) fn now(&self) -> f64 {
        self.lab.as_ref().map_or(0.0, |lab| lab.elapsed().as_secs_f64())
    }

    /// Waits for an instant of the lab's clock.
    pub(super) fn until(&self, instant: f64) {
        let left = instant - self.now();
        if left > 0.0 {
            std::thread::sleep(Duration::from_secs_f64(left));
        }
    }

    /// Starts to ping the server from the UE for so many seconds.
    pub(super) fn ping(&self, every: f64, seconds: f64) -> Result<Ping, HostError> {
        let (every, seconds) = (every.to_string(), (seconds.ceil() as u64).to_string());
        let line = ["ping", "-D", "-n", "-i", &every, "-w", &seconds, SERVER];
        Ok(Ping { epoch: self.epoch, program: self.in_ue(&line)? })
    }

    /// Starts a program in the UE's namespace.
    pub(super) fn in_ue(&self, line: &[&str]) -> Result<Running, HostError> {
        Running::start(self.lab()?.namespaces.ue(0), line)
    }

    /// Starts a program in the server's namespace.
    pub(super) fn in_server(&self, line: &[&str]) -> Result<Running, HostError> {
        Running::start(self.lab()?.namespaces.server(), line)
    }

    /// Starts greedy downlink flow `n` (from 0) for so many seconds.
    pub(super) fn greedy(&self, n: u16, seconds: f64, congestion: &str) -> Result<Greedy, HostError> {
        self.flow(Flow { server: n, seconds, congestion, up: false, tos: 0 })
    }

    /// Starts a greedy flow.
    pub(super) fn flow(&self, flow: Flow<'_>) -> Result<Greedy, HostError> {
        let (port, secs) = ((FIRST_PORT + flow.server).to_string(), (flow.seconds.ceil() as u64).to_string());
        let (tos, way) = (flow.tos.to_string(), if flow.up { "--get-server-output" } else { "-R" });
        let line = ["iperf3", "-c", SERVER, "-p", &port, way, "-t", &secs, "-i", "0.1", "-J", "-C", flow.congestion];
        let client = self.in_ue(&[&line[..], &["-S", &tos]].concat())?;
        Ok(Greedy { started: self.now(), seconds: flow.seconds, up: flow.up, client })
    }

    /// Changes the bearer's pipeline by the changes of a JSON text; when that was done.
    pub(super) fn change(&self, json: &str) -> Result<f64, HostError> {
        let changes: Vec<Change> = serde_json::from_str(json).map_err(|e| HostError::new("change", e))?;
        self.lab()?.change(self.bearer.0, self.bearer.1, &changes)?;
        Ok(self.now())
    }

    /// The lab's clock in seconds and the state of the bearer.
    pub(super) fn look(&self) -> Result<(f64, BearerStats), HostError> {
        let cell = self.lab()?.sample()?.cell;
        let bearer = cell.bearer(self.bearer.0, self.bearer.1).cloned();
        bearer.map(|b| (cell.time_ns as f64 / 1e9, b)).ok_or_else(|| HostError::new("sample", "the bearer is gone"))
    }

    /// Ends the lab; the rows of its bearer.
    pub(super) fn end(mut self) -> Vec<Row> {
        self.servers.clear();
        self.lab = None;
        if let Some(keeper) = self.keeper.take() {
            // It ends with the lab; what it kept counts even if it panicked.
            let _ = keeper.join();
        }
        let kept = self.kept.lock().map(|kept| kept.clone()).unwrap_or_default();
        kept.into_iter().filter(|row| (row.rnti, row.drb) == self.bearer).collect()
    }
}

impl Ping {
    /// Waits for its end; round trips in milliseconds at the instants of their ends.
    pub(super) fn finish(self, limit: f64) -> Result<Vec<Point>, HostError> {
        let text = self.program.finish(Duration::from_secs_f64(limit))?;
        let points: Vec<Point> = text.lines().filter_map(parse_ping).map(|[at, ms]| [at - self.epoch, ms]).collect();
        if points.is_empty() { Err(HostError::new("ping", "not one answer")) } else { Ok(points) }
    }
}

/// `[1700000000.123456] 64 bytes from 10.44.0.1: icmp_seq=1 ttl=63 time=10.9 ms`
fn parse_ping(line: &str) -> Option<Point> {
    let at = line.strip_prefix('[')?.split_once(']')?.0.parse().ok()?;
    let ms = line.split_once("time=")?.1.split_once(' ')?.0.parse().ok()?;
    Some([at, ms])
}

impl Greedy {
    /// Waits for its end; its goodput in Mbit/s by tenths of seconds, as the receiver has it.
    pub(super) fn finish(self) -> Result<Vec<Point>, HostError> {
        let text = self.client.finish(Duration::from_secs_f64(self.seconds + 40.0))?;
        parse_iperf(&text, self.started, self.up)
    }
}

fn parse_iperf(text: &str, started: f64, up: bool) -> Result<Vec<Point>, HostError> {
    let json: serde_json::Value = serde_json::from_str(text).map_err(|e| HostError::new("iperf3", e))?;
    if let Some(error) = json["error"].as_str() {
        return Err(HostError::new("iperf3", error));
    }
    let receiver = if up { &json["server_output_json"] } else { &json };
    let Some(intervals) = receiver["intervals"].as_array() else {
        return Err(HostError::new("iperf3", "its report has no intervals"));
    };
    let point = |interval: &serde_json::Value| {
        let sum = &interval["sum"];
        Some([started + sum["end"].as_f64()?, sum["bits_per_second"].as_f64()? / 1e6])
    };
    Ok(intervals.iter().filter_map(point).collect())
}

/// Lines of a plot from rows.
pub(super) fn series(rows: &[Row], of: impl Fn(&Row) -> f64) -> Vec<Point> {
    rows.iter().map(|row| [row.time_s, of(row)]).filter(|p| !p[1].is_nan()).collect()
}

/// The sum of flows over time; their intervals end at about the same instants.
pub(super) fn total(flows: &[Vec<Point>]) -> Vec<Point> {
    let Some(first) = flows.first() else { return Vec::new() };
    let at = |flow: &Vec<Point>, n: usize| flow.get(n).map_or(0.0, |p| p[1]);
    first.iter().enumerate().map(|(n, p)| [p[0], flows.iter().map(|flow| at(flow, n)).sum()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_lines_are_read_and_others_are_not() {
        let line = "[1700000000.250000] 64 bytes from 10.44.0.1: icmp_seq=1 ttl=63 time=10.9 ms";
        assert_eq!(parse_ping(line), Some([1_700_000_000.25, 10.9]));
        for other in ["PING 10.44.0.1 (10.44.0.1) 56(84) bytes of data.", "", "[x] time=1 ms", "rtt min/avg = 1"] {
            assert_eq!(parse_ping(other), None);
        }
    }

    #[test]
    fn reports_of_iperf_are_read_and_its_errors_are_errors() {
        let text = r#"{"intervals":[{"sum":{"start":0,"end":0.1,"bits_per_second":2e6}},{"sum":{}}]}"#;
        assert_eq!(parse_iperf(text, 1.0, false).unwrap(), [[1.1, 2.0]]);
        assert!(parse_iperf(r#"{"error":"refused"}"#, 0.0, false).unwrap_err().to_string().contains("refused"));
        assert!(parse_iperf("nothing", 0.0, false).is_err());
        assert!(parse_iperf("{}", 0.0, false).is_err());
        let up = format!(r#"{{"intervals":[],"server_output_json":{text}}}"#);
        assert_eq!(parse_iperf(&up, 1.0, true).unwrap(), [[1.1, 2.0]], "what the server got");
        assert!(parse_iperf(text, 1.0, true).is_err());
    }

    #[test]
    fn totals_add_flows_and_take_a_missing_end_for_nothing() {
        let flows = [vec![[1.0, 5.0], [2.0, 5.0]], vec![[1.0, 7.0]]];
        assert_eq!(total(&flows), [[1.0, 12.0], [2.0, 5.0]]);
    }
}
