//! What the benches of the pipeline share: packets that go in a circle, processor time as what is measured, and the figures
//! as a file.
//!
//! Processor time of the thread, not the time of day: what else the machine does is not the pipeline's. It still shares
//! caches with others, so that figures that count come from a quiet machine.

use std::collections::VecDeque;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{Criterion, Throughput};
use insane_traffic::{Dequeued, Pipeline, PipelineSpec, Plugins, RlcStatus, Span, Time};

/// Six stages, none of which ever refuses or delays: what is measured is their work, not their decisions.
const SIX_STAGES: &str = r#"
    version = 1
    [[filter]]
    id = 1
    match = { dst_port = "5201", proto = 17 }
    to = { type = "queue", queue = 1 }
    [[filter]]
    id = 2
    match = { dst_port = "5202", proto = 17 }
    to = { type = "queue", queue = 2 }
    [[filter]]
    id = 3
    match = { src = "10.0.0.0/8", dst_port = "5203" }
    to = { type = "queue", queue = 3 }
    [[queue]]
    id = 0
    count = 4
    kind = { type = "codel", target = "5ms", ecn = true }
    policer = { type = "trtcm", cir = "100gbit", cbs = "1g", pir = "100gbit", pbs = "1g" }
    shaper = { type = "token-bucket", rate = "100gbit", burst = "1g" }
    [scheduler]
    type = "drr"
    [pacer]
    type = "5g-bdp"
    min = "1g"
    max = "2g"
"#;

/// Nanoseconds that a packet through six stages and four queues may take.
pub(crate) const SIX_STAGES_BAR: f64 = 200.0;

/// The six stages.
pub(crate) fn six_stages() -> PipelineSpec {
    PipelineSpec::from_toml(SIX_STAGES).unwrap()
}

/// Processor time of the thread that measures.
struct OwnTime;

impl Measurement for OwnTime {
    type Intermediate = Duration;
    type Value = Duration;
    fn start(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
    }
    fn end(&self, began: Duration) -> Duration {
        self.start().saturating_sub(began)
    }
    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }
    fn zero(&self) -> Duration {
        Duration::ZERO
    }
    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }
    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// UDP packets of 1500 bytes from `flows` flows. A quarter of the flows each has the ports 5200 to 5203 and the DSCP 0 to 3.
fn packets(count: usize, flows: usize) -> VecDeque<Box<[u8]>> {
    let packet = |n: usize| {
        let flow = (n % flows) as u32;
        let mut bytes = vec![0_u8; 1500];
        bytes[..4].copy_from_slice(&[0x45, (flow as u8 % 4) << 2 | 2, 0x05, 0xdc]);
        bytes[8..10].copy_from_slice(&[64, 17]);
        bytes[12..16].copy_from_slice(&(0x0a00_0000 + flow / 4).to_be_bytes());
        bytes[16..20].copy_from_slice(&[10, 0, 1, 1]);
        bytes[20..22].copy_from_slice(&(40_000 + (flow % 20_000) as u16).to_be_bytes());
        bytes[22..24].copy_from_slice(&(5_200 + (flow % 4) as u16).to_be_bytes());
        bytes.into_boxed_slice()
    };
    (0..count).map(packet).collect()
}

/// A pipeline and packets that go through it again and again, so that no allocation is measured. Between a packet's way in
/// and its way out the others go by, so that its headers have to be fetched anew, as in a RAN.
struct Circle {
    pipeline: Pipeline<Box<[u8]>>,
    outside: VecDeque<Box<[u8]>>,
    now: Time,
    turns: u64,
}

impl Circle {
    /// `queued` packets inside, as many outside.
    fn new(spec: &PipelineSpec, plugins: Option<Arc<dyn Plugins<Box<[u8]>>>>, queued: usize, flows: usize) -> Self {
        let mut pipeline = Pipeline::with_plugins(spec, 7, plugins).unwrap();
        let mut outside = packets(2 * queued, flows);
        for packet in outside.drain(..queued) {
            pipeline.enqueue(Time::ZERO, packet, &mut ()).unwrap();
        }
        Self { pipeline, outside, now: Time::ZERO, turns: 0 }
    }

    /// One packet in, one packet out.
    fn turn(&mut self) {
        // 10 Mpps: sojourn times stay below CoDel's target.
        self.now += Span::from_nanos(100);
        self.turns += 1;
        if self.turns.is_multiple_of(1_000) {
            self.pipeline.report(self.now, &RlcStatus { bytes: 100_000, ..RlcStatus::default() });
        }
        let packet = self.outside.pop_front().unwrap();
        self.pipeline.enqueue(self.now, packet, &mut ()).unwrap();
        match self.pipeline.dequeue(self.now, &mut ()) {
            Dequeued::Packet(packet, _) => self.outside.push_back(black_box(packet)),
            other => panic!("{other:?}"),
        }
    }
}

/// One pipeline to measure.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) spec: PipelineSpec,
    pub(crate) plugins: Option<Arc<dyn Plugins<Box<[u8]>>>>,
    /// Packets inside, and the flows that they are of.
    pub(crate) queued: usize,
    pub(crate) flows: usize,
    /// Nanoseconds that a packet may take, if there is such a bar.
    pub(crate) bar: Option<f64>,
}

/// Measures the cases and writes the figures to `out/traffic/FILE.json`: nanoseconds for one packet in and one out, the mean
/// and its interval of 95 %, and the bars. Cases that the command line leaves out are left out there.
pub(crate) fn measure(file: &str, cases: &[Case]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let folder = root.join("out/traffic");
    let mut criterion = Criterion::default()
        .with_measurement(OwnTime)
        .output_directory(&folder.join("criterion"))
        .configure_from_args();
    let began = SystemTime::now();
    let mut group = criterion.benchmark_group(file);
    group.throughput(Throughput::Elements(1));
    for case in cases {
        let mut circle = Circle::new(&case.spec, case.plugins.clone(), case.queued, case.flows);
        group.bench_function(case.name, |b| b.iter(|| circle.turn()));
        circle.pipeline.audit().unwrap();
        let drops = circle.pipeline.stats().basic.drops;
        assert_eq!(drops, 0, "{}: a case that drops measures something else", case.name);
    }
    group.finish();
    criterion.final_summary();
    let estimates = |case: &Case| folder.join("criterion").join(file).join(case.name).join("new/estimates.json");
    let figures: Vec<_> = cases.iter().filter_map(|case| figure(case, &estimates(case), began)).collect();
    // None: the command line asked for no measurement, but for a test or a list.
    if !figures.is_empty() {
        let text = serde_json::json!({
            "what": "processor time for one packet of 1500 bytes into a pipeline and one out, one core",
            "cpus": std::thread::available_parallelism().map_or(0, usize::from),
            "figures": figures,
        });
        let path = folder.join(file).with_extension("json");
        std::fs::write(&path, format!("{text:#}\n")).unwrap();
        println!("figures: {}", path.display());
    }
}

/// What Criterion found of a case in this run.
fn figure(case: &Case, estimates: &Path, began: SystemTime) -> Option<serde_json::Value> {
    std::fs::metadata(estimates).and_then(|m| m.modified()).ok().filter(|at| *at >= began)?;
    let found: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(estimates).unwrap()).unwrap();
    let mean = &found["mean"];
    let ns = mean["point_estimate"].as_f64().unwrap();
    let interval = &mean["confidence_interval"];
    let met = case.bar.map(|bar| ns <= bar);
    if let Some(bar) = case.bar {
        println!("{}: {ns:.0} ns, {} (bar: {bar:.0} ns)", case.name, if ns <= bar { "met" } else { "NOT MET" });
    }
    Some(serde_json::json!({
        "name": case.name,
        "value": ns,
        "range": [interval["lower_bound"], interval["upper_bound"]],
        "unit": "ns",
        "bar": case.bar,
        "met": met,
    }))
}
