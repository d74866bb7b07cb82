//! What a packet costs if stages of its pipeline are from shared objects: six stages at 4 queues, one core.
//!
//! `make bench-traffic`, or `cargo bench -p insane-traffic-plugin --bench objects [-- NAME]`; figures in
//! out/traffic/objects.json.

#[path = "../../traffic/benches/circle/mod.rs"]
mod circle;
#[path = "../tests/common/mod.rs"]
mod common;

use circle::{Case, SIX_STAGES_BAR, measure, six_stages};
use common::{example, folder, no_compiler, object, registry};
use insane_traffic::PipelineSpec;

/// The classifier in C in place of the filters.
const CLASSIFIER: &str = r#"
    version = 1
    [[filter]]
    id = 1
    to = { type = "plugin", name = "by-dscp", options = "0=0 1=1 2=2 3=3" }
    [[queue]]
    id = 0
    count = 4
"#;
/// The queue in Rust in place of CoDel.
const QUEUE: &str = r#"
    version = 1
    [[queue]]
    id = 0
    kind = { type = "plugin", name = "red-line", options = "line_us=5000" }
"#;

fn main() {
    let (folder, own) = (folder(), six_stages());
    let registry = registry(&folder);
    registry.load(example("red_line", &folder)).unwrap();
    let mut queue = own.clone();
    queue.queues[0].kind = PipelineSpec::from_toml(QUEUE).unwrap().queues[0].kind.clone();
    let mut specs = vec![("stages_of_this_library", own.clone()), ("queue_from_an_object", queue.clone())];
    if !no_compiler() {
        object("examples/by_dscp.c", &folder.path().join("by_dscp.so"), &["-O2"]);
        registry.load("by_dscp.so").unwrap();
        let filters = PipelineSpec::from_toml(CLASSIFIER).unwrap().filters;
        specs.push(("classifier_from_an_object", PipelineSpec { filters: filters.clone(), ..own }));
        specs.push(("classifier_and_queue_from_objects", PipelineSpec { filters, ..queue }));
    }
    let case = |(name, spec)| {
        let bar = Some(SIX_STAGES_BAR);
        Case { name, spec, plugins: Some(registry.clone()), queued: 256, flows: 16, bar }
    };
    measure("objects", &specs.into_iter().map(case).collect::<Vec<_>>());
}
