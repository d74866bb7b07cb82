//! Any text as a pipeline file and as changes: what is accepted can be built, written and read back.
#![no_main]

use insane_traffic::{Change, Pipeline, PipelineSpec, Time};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(spec) = PipelineSpec::from_toml(text) {
        let again = PipelineSpec::from_toml(&spec.to_toml().unwrap()).unwrap();
        assert_eq!(again, spec);
        // Thousands of queues are allowed, but there is nothing new in them.
        let queues: u64 = spec.queues.iter().map(|q| u64::from(q.count)).sum();
        if queues < 100
            && let Ok(pipeline) = Pipeline::<Vec<u8>>::new(&spec, 1)
        {
            pipeline.audit().unwrap();
        }
    }
    if let Ok(changes) = serde_json::from_str::<Vec<Change>>(text) {
        let mut pipeline = Pipeline::<Vec<u8>>::new(&PipelineSpec::preset("l4s").unwrap(), 1).unwrap();
        let before = pipeline.spec();
        if pipeline.apply(Time::ZERO, &changes, &mut ()).is_err() {
            assert_eq!(pipeline.spec(), before);
        }
        pipeline.audit().unwrap();
    }
});
