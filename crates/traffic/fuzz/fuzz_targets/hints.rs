//! Any bytes as the payload of DNS and TLS packets: the pipeline learns or does not, within its bounds.
#![no_main]

use insane_traffic::{Pipeline, PipelineSpec, Time};
use libfuzzer_sys::fuzz_target;

const SPEC: &str = "version = 1\nqueue = [{ id = 0 }, { id = 1 }]\n\
    filter = [{ id = 1, match = { server_name = ['*.example'] }, to = { type = 'queue', queue = 1 } }]";

fn packet(proto: u8, transport: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 20];
    let total = (20 + transport.len() + payload.len()).min(65_535) as u16;
    out[0] = 0x45;
    out[2..4].copy_from_slice(&total.to_be_bytes());
    out[9] = proto;
    out.extend(transport);
    out.extend(payload);
    out.truncate(total.into());
    out
}

fuzz_target!(|bytes: &[u8]| {
    let mut pipeline: Pipeline<Vec<u8>> = Pipeline::new(&PipelineSpec::from_toml(SPEC).unwrap(), 1).unwrap();
    let dns = [0, 53, 1, 1, 0, 8, 0, 0];
    pipeline.observe(Time::ZERO, &packet(17, &dns, bytes));
    let tcp = [1, 1, 1, 187, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0];
    // In two segments, cut where the first byte says.
    let cut = bytes.first().map_or(0, |&b| usize::from(b)).min(bytes.len());
    pipeline.observe(Time::ZERO, &packet(6, &tcp, &bytes[..cut]));
    pipeline.observe(Time::ZERO, &packet(6, &tcp, &bytes[cut..]));
    let _ = pipeline.enqueue(Time::ZERO, packet(6, &tcp, bytes), &mut ());
    pipeline.audit().unwrap();
});
