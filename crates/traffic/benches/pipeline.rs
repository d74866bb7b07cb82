//! What a packet costs: all six stages at 4 queues, and FQ-CoDel at 1024 flows, one core, enqueue and dequeue together.
//!
//! `make bench-traffic`, or `cargo bench -p insane-traffic --bench pipeline [-- NAME]`; figures in out/traffic/pipeline.json.

mod circle;

use circle::{Case, SIX_STAGES_BAR, measure, six_stages};
use insane_traffic::PipelineSpec;

/// Nanoseconds that a packet through FQ-CoDel of 1024 flows may take.
const FQ_CODEL_BAR: f64 = 300.0;

fn main() {
    let six = six_stages();
    let mut fq_codel = PipelineSpec::preset("fq-codel").unwrap();
    fq_codel.pacer = six.pacer.clone();
    let mut full = fq_codel.clone();
    full.queues[0].policer = six.queues[0].policer.clone();
    full.queues[0].shaper = six.queues[0].shaper.clone();
    let case = |name, spec, queued, flows, bar| Case { name, spec, plugins: None, queued, flows, bar };
    measure(
        "pipeline",
        &[
            case("six_stages_4_queues", six, 256, 16, Some(SIX_STAGES_BAR)),
            case("fq_codel_1024_flows", fq_codel, 4_096, 16_384, Some(FQ_CODEL_BAR)),
            case("fq_codel_1024_flows_policed_and_shaped", full, 4_096, 16_384, Some(FQ_CODEL_BAR)),
            case("one_fifo", PipelineSpec::default(), 256, 16, None),
        ],
    );
}
