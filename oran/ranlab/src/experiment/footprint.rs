//! What a lab and a pipeline take of processor and memory: measured in a process of its own, so that nothing of an earlier
//! run is counted.

use std::path::Path;
use std::time::Duration;

use insane_traffic::{Dequeued, Pipeline, PipelineSpec, RlcStatus, Span, Time};
use serde::{Deserialize, Serialize};

use super::bench::Bench;
use super::numbers::{Point, mean, within};
use crate::config::Config;
use crate::core::pdu::Pdu;
use crate::host::HostError;

/// The thread that moves packets.
const THREAD: &str = "ranlab-cell";
/// The first two seconds of the flows are their start.
const START: f64 = 2.0;

/// What the thread that moves packets took in a part of a run, and what the process held.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Seconds.
    pub seconds: f64,
    /// Nanoseconds of processor time.
    pub cpu_ns: u64,
    /// How often it slept and was woken.
    pub wakes: u64,
    /// Packets that came to the bearer in the downlink.
    pub packets: u64,
    /// Bytes of the process in memory, mean and at most.
    pub memory: [f64; 2],
}

impl Part {
    /// Of one core, in percent.
    #[must_use]
    pub fn cpu(&self) -> f64 {
        self.cpu_ns as f64 / 1e7 / self.seconds
    }
}

/// A lab without and with load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Footprint {
    /// Only a ping.
    pub idle: Part,
    /// Four greedy flows.
    pub full: Part,
    /// The mean round trip of the ping in the first part, in milliseconds.
    pub no_load_rtt_ms: f64,
}

/// A pipeline alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Alone {
    /// Flows.
    pub flows: u32,
    /// Bytes that it takes when it is empty.
    pub empty: f64,
    /// Bytes that it takes with its packets when no more fit in.
    pub filled: f64,
    /// How many packets these are, and their bytes.
    pub packets: [u64; 2],
    /// Nanoseconds of processor time for a packet to go in and another to come out, the median of many batches.
    pub packet_ns: f64,
}

fn failed(what: &str) -> impl Fn(std::io::Error) -> HostError + '_ {
    move |e| HostError::new(what, e)
}

/// Bytes of this process in memory.
fn memory() -> Result<u64, HostError> {
    let text = std::fs::read_to_string("/proc/self/status").map_err(failed("/proc/self/status"))?;
    parse_memory(&text).ok_or_else(|| HostError::new("/proc/self/status", "it does not say VmRSS"))
}

/// `VmRSS:     1234 kB`
fn parse_memory(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// The folder of a thread of this process below /proc.
fn thread(name: &str) -> Result<std::path::PathBuf, HostError> {
    let tasks = std::fs::read_dir("/proc/self/task").map_err(failed("/proc/self/task"))?;
    let is = |folder: &Path| std::fs::read_to_string(folder.join("comm")).is_ok_and(|comm| comm.trim() == name);
    let mut folders = tasks.flatten().map(|entry| entry.path());
    folders.find(|folder| is(folder)).ok_or_else(|| HostError::new(name, "there is no such thread"))
}

/// Nanoseconds that a thread was on a processor, and how often it slept.
fn thread_counts(folder: &Path) -> Result<[u64; 2], HostError> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).map_err(failed(name));
    let both = parse_schedstat(&read("schedstat")?).zip(parse_sleeps(&read("status")?));
    both.map(<[u64; 2]>::from).ok_or_else(|| HostError::new(folder.display(), "its counts cannot be read"))
}

/// `time_on_cpu time_waiting timeslices`
fn parse_schedstat(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// `voluntary_ctxt_switches: 123`
fn parse_sleeps(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
}

/// Watches a part of a run, from one instant of the lab's clock to another.
fn watch(bench: &Bench, folder: &Path, [from, to]: [f64; 2]) -> Result<Part, HostError> {
    bench.until(from);
    let came = || Ok::<_, HostError>(bench.look()?.1.pipeline.packets_in);
    let (packets, began, before) = (came()?, bench.now(), thread_counts(folder)?);
    let mut held = Vec::new();
    while bench.now() < to {
        held.push(memory()? as f64);
        std::thread::sleep(Duration::from_millis(100));
    }
    let (after, seconds) = (thread_counts(folder)?, bench.now() - began);
    let [cpu_ns, wakes] = [0, 1].map(|n| after[n].saturating_sub(before[n]));
    let most = held.iter().copied().fold(0.0, f64::max);
    Ok(Part { seconds, cpu_ns, wakes, packets: came()? - packets, memory: [mean(&held), most] })
}

/// Runs a lab: a ping, and from `begin` to `end` four greedy flows beside it. Blocks for that. The lab's state is looked at
/// only at the edges of the parts that are measured.
///
/// # Errors
/// What kept the lab or a program from running.
pub fn lab(config: &Config, [begin, end]: [f64; 2]) -> Result<Footprint, HostError> {
    let bench = Bench::unwatched(config, 4)?;
    let folder = thread(THREAD)?;
    let ping = bench.ping(0.1, end)?;
    let idle = watch(&bench, &folder, [1.0, begin])?;
    let flows = (0..4).map(|n| bench.greedy(n, end - begin, "cubic")).collect::<Result<Vec<_>, _>>()?;
    let full = watch(&bench, &folder, [begin + START, end - 0.5])?;
    for flow in flows {
        flow.finish()?;
    }
    let trips: Vec<Point> = ping.finish(30.0)?;
    Ok(Footprint { idle, full, no_load_rtt_ms: mean(&within(&trips, 0.0, begin)) })
}

/// Bytes of each packet of the pipeline alone.
const PACKET: usize = 1_500;
/// Packets of a batch, and batches: the first tenth is warm-up.
const BATCH: u32 = 10_000;
const BATCHES: usize = 60;

/// A UDP packet of one of the flows.
fn packet(flow: u32) -> Box<Pdu> {
    let mut bytes = vec![0_u8; PACKET];
    bytes[..4].copy_from_slice(&[0x45, 0, (PACKET >> 8) as u8, (PACKET & 0xff) as u8]);
    bytes[8..10].copy_from_slice(&[64, 17]);
    bytes[12..16].copy_from_slice(&(0x0a00_0000 + flow).to_be_bytes());
    bytes[16..20].copy_from_slice(&[10, 45, 0, 10]);
    bytes[20..24].copy_from_slice(&[0x9c, 0x40, 0x14, 0x51]);
    Box::new(Pdu::new(bytes.into_boxed_slice(), 9, Time::ZERO))
}

/// A pipeline alone, fed from `flows` flows: what it takes of memory, and how long a packet takes through it. Nothing is
/// ever dropped or held back but what does not fit in, so that every packet does the whole way.
///
/// # Errors
/// The pipeline is none, or loses a packet.
pub fn alone(spec: &PipelineSpec, flows: u32) -> Result<Alone, HostError> {
    let failed = |e: &dyn std::fmt::Display| HostError::new("pipeline", e);
    let mut alone = Alone { flows, ..Alone::default() };
    // The packets of the circle are not the pipeline's.
    let mut outside: std::collections::VecDeque<Box<Pdu>> = (0..4 * flows).map(|n| packet(n % flows)).collect();
    let before = memory()?;
    let mut pipeline: Pipeline<Box<Pdu>> = Pipeline::new(spec, 7).map_err(|e| failed(&e))?;
    let added = || Ok::<_, HostError>(memory()?.saturating_sub(before) as f64);
    alone.empty = added()?;
    alone.packet_ns = circle(&mut pipeline, &mut outside)?;
    let mut n = 0;
    while pipeline.packets() < u64::from(spec.limit.packets) {
        let fitted = pipeline.enqueue(Time::from_millis(100_000), packet(n % flows), &mut ()).is_ok();
        n += 1;
        if !fitted {
            break;
        }
    }
    alone.filled = added()?;
    alone.packets = [pipeline.packets(), pipeline.bytes()];
    Ok(alone)
}

/// Nanoseconds that this thread was on a processor: what else the machine does is not the pipeline's.
fn own_cpu() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Moves packets in a circle, half of them inside at any time; nanoseconds for one in and one out. The pipeline is empty
/// again afterwards, and the packets are outside: their memory is not freed for others.
fn circle(
    pipeline: &mut Pipeline<Box<Pdu>>,
    outside: &mut std::collections::VecDeque<Box<Pdu>>,
) -> Result<f64, HostError> {
    let lost = || HostError::new("pipeline", "it lost or withheld a packet that it should have given");
    let mut now = Time::ZERO;
    for _ in 0..outside.len() / 2 {
        let packet = outside.pop_front().ok_or_else(lost)?;
        pipeline.enqueue(now, packet, &mut ()).map_err(|_| lost())?;
    }
    let mut batches = Vec::with_capacity(BATCHES);
    for batch in 0..BATCHES {
        let began = own_cpu();
        for turn in 0..BATCH {
            // Ten million packets a second: sojourn times stay below CoDel's target.
            now += Span::from_nanos(100);
            if turn.is_multiple_of(1_000) {
                pipeline.report(now, &RlcStatus { bytes: 0, ..RlcStatus::default() });
            }
            let packet = outside.pop_front().ok_or_else(lost)?;
            pipeline.enqueue(now, packet, &mut ()).map_err(|_| lost())?;
            match pipeline.dequeue(now, &mut ()) {
                Dequeued::Packet(packet, _) => outside.push_back(packet),
                _ => return Err(lost()),
            }
        }
        if batch >= BATCHES / 10 {
            batches.push((own_cpu() - began) as f64 / f64::from(BATCH));
        }
    }
    while let Dequeued::Packet(packet, _) = pipeline.dequeue(now, &mut ()) {
        outside.push_back(packet);
    }
    Ok(super::numbers::median(&batches))
}

/// The pipeline of [`alone`]: FQ-CoDel of 1,024 flows with a policer and a shaper at every queue and a pacer, none of which
/// ever refuses or delays.
///
/// # Errors
/// The library has no such preset any more.
pub fn six_stages() -> Result<PipelineSpec, HostError> {
    let failed = |e: &dyn std::fmt::Display| HostError::new("pipeline", e);
    let mut spec = PipelineSpec::preset("fq-codel").map_err(|e| failed(&e))?;
    let wide = PipelineSpec::from_toml(WIDE).map_err(|e| failed(&e))?;
    for queue in &mut spec.queues {
        queue.policer = wide.queues.first().and_then(|q| q.policer.clone());
        queue.shaper = wide.queues.first().and_then(|q| q.shaper.clone());
    }
    spec.pacer = wide.pacer;
    Ok(spec)
}

const WIDE: &str = r#"
    version = 1
    [[queue]]
    id = 0
    policer = { type = "trtcm", cir = "100gbit", cbs = "1g", pir = "100gbit", pbs = "1g" }
    shaper = { type = "token-bucket", rate = "100gbit", burst = "1g" }
    [pacer]
    type = "5g-bdp"
    min = "1g"
    max = "2g"
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        assert_eq!(parse_memory("VmHWM:\t   9 kB\nVmRSS:\t   1234 kB\n"), Some(1_263_616));
        assert_eq!(parse_memory("VmSize: 3 kB"), None);
        assert_eq!(parse_schedstat("5006000 12 3\n"), Some(5_006_000));
        assert_eq!(parse_schedstat(""), None);
        let status = "Threads:\t3\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t9\n";
        assert_eq!(parse_sleeps(status), Some(150));
        assert_eq!(parse_sleeps("nonvoluntary_ctxt_switches:\t9\n"), None);
        assert!(memory().unwrap() > 100_000);
    }

    #[test]
    fn a_part_is_so_much_of_a_core() {
        let part = Part { seconds: 2.0, cpu_ns: 500_000_000, ..Part::default() };
        assert!((part.cpu() - 25.0).abs() < 1e-9);
    }

    #[test]
    fn a_pipeline_alone_holds_what_its_limit_says_and_no_more() {
        let mut spec = six_stages().unwrap();
        spec.limit.packets = 3_000;
        let alone = alone(&spec, 64).unwrap();
        assert_eq!(alone.packets, [3_000, 3_000 * PACKET as u64]);
        assert!(alone.filled >= 0.9 * (3_000 * PACKET) as f64 && alone.packet_ns > 0.0, "{alone:?}");
    }
}
