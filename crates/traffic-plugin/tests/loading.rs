//! Objects come and go while packets flow, and what must not be loaded is refused with a reason.

mod common;

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex};

use common::{cc, example, folder, no_compiler, object, packet, registry, source};
use insane_traffic::spec::Change;
use insane_traffic::{Dequeued, Dropped, Pipeline, PipelineSpec, Plan, QueueId, Span, SpecError, Time};
use insane_traffic_plugin::{Kind, LoadError, Registry};
use tempfile::TempDir;

const TWO_QUEUES: &str = "version = 1\n[[queue]]\nid = 0\ncount = 2";

fn pipeline(text: &str, registry: &Arc<Registry>) -> Result<Pipeline<Vec<u8>>, SpecError> {
    Pipeline::with_plugins(&PipelineSpec::from_toml(text)?, 7, Some(registry.clone()))
}

fn changes(text: &str) -> Vec<Change> {
    #[derive(serde::Deserialize)]
    struct File {
        change: Vec<Change>,
    }
    toml::from_str::<File>(text).unwrap().change
}

fn by_dscp(folder: &TempDir) -> Arc<Registry> {
    object("examples/by_dscp.c", &folder.path().join("by_dscp.so"), &[]);
    registry(folder)
}

fn filter(op: &str, options: &str) -> Vec<Change> {
    changes(&format!(
        "[[change]]\nop = '{op}-filter'\nfilter = {{ id = 1, to = {{ type = 'plugin', name = 'by-dscp', options = '{options}' }} }}"
    ))
}

/// The queue that takes a packet.
fn queue_of(pipeline: &mut Pipeline<Vec<u8>>, dscp: u8) -> QueueId {
    let queue = pipeline.enqueue(Time::ZERO, packet(dscp, 0, 100), &mut ()).unwrap();
    assert!(matches!(pipeline.dequeue(Time::ZERO, &mut ()), Dequeued::Packet(_, q) if q == queue));
    queue
}

#[test]
fn a_classifier_in_c_is_named_in_the_file_and_in_changes() {
    if no_compiler() {
        return;
    }
    let folder = folder();
    let registry = by_dscp(&folder);
    let named = "\n[[filter]]\nid = 1\nto = { type = 'plugin', name = 'by-dscp', options = '46=1' }";
    let error = pipeline(&(TWO_QUEUES.to_owned() + named), &registry).unwrap_err().to_string();
    assert_eq!(error, "plug-in `by-dscp`: no classifier of this name is loaded; there is none");
    let loaded = registry.load("by_dscp.so").unwrap();
    assert_eq!(loaded.stages, [(Kind::Classifier, "by-dscp".to_owned())]);
    let mut pipeline = pipeline(&(TWO_QUEUES.to_owned() + named), &registry).unwrap();
    assert_eq!((queue_of(&mut pipeline, 46), queue_of(&mut pipeline, 10)), (QueueId(1), QueueId(0)));

    // It is modified and keeps its state, which its statistics show.
    pipeline.apply(Time::ZERO, &filter("modify", "10=1"), &mut ()).unwrap();
    assert_eq!((queue_of(&mut pipeline, 46), queue_of(&mut pipeline, 10)), (QueueId(0), QueueId(1)));
    let stats = pipeline.stats();
    assert_eq!(stats.filters[0].xstats.get_count("chosen"), Some(2));
    assert_eq!(stats.filters[0].xstats.get_count("faults"), Some(0));

    // What it says of wrong options is what the user gets, and nothing has changed.
    let error = pipeline.apply(Time::ZERO, &filter("modify", "99=1"), &mut ()).unwrap_err().to_string();
    let reason = "`99=1` is no DSCP=QUEUE with a DSCP of 0 to 63 and a queue of 0 to 65535";
    assert_eq!(error, format!("plug-in `by-dscp`: {reason}"));
    assert_eq!(queue_of(&mut pipeline, 10), QueueId(1));

    // A queue that does not exist is a fault, and the default queue takes the packet.
    pipeline.apply(Time::ZERO, &filter("modify", "10=9"), &mut ()).unwrap();
    assert_eq!(queue_of(&mut pipeline, 10), QueueId(0));
    assert_eq!(pipeline.stats().filters[0].xstats.get_count("faults"), Some(1));

    // The pipeline as a file names it still.
    assert!(pipeline.spec().to_toml().unwrap().contains("by-dscp"));
    pipeline.audit().unwrap();
}

#[test]
fn an_object_stays_until_its_last_stage_is_gone() {
    if no_compiler() {
        return;
    }
    let folder = folder();
    let registry = by_dscp(&folder);
    let mut pipeline = pipeline(TWO_QUEUES, &registry).unwrap();
    assert_eq!(registry.unload("by_dscp.so"), Err(LoadError::NotLoaded));
    let path = registry.load("by_dscp.so").unwrap().path;
    let again = registry.load("by_dscp.so").unwrap_err();
    assert!(matches!(&again, LoadError::Exists { name, .. } if name == "by-dscp"), "{again}");

    pipeline.apply(Time::ZERO, &filter("add", "46=1"), &mut ()).unwrap();
    assert_eq!(registry.unload("by_dscp.so"), Err(LoadError::InUse { stages: 1 }));
    assert_eq!(queue_of(&mut pipeline, 46), QueueId(1));
    let delete = changes("[[change]]\nop = 'delete-filter'\nid = 1");
    pipeline.apply(Time::ZERO, &delete, &mut ()).unwrap();
    // A plan that was not committed has its stages, too.
    let plan = pipeline.draft().plan(&filter("add", "")).unwrap();
    assert_eq!(registry.unload(&path), Err(LoadError::InUse { stages: 1 }));
    drop(plan);
    registry.unload(&path).unwrap();
    assert_eq!(registry.list(), []);
    assert!(pipeline.apply(Time::ZERO, &filter("add", ""), &mut ()).is_err());
    registry.load("by_dscp.so").unwrap();
    pipeline.apply(Time::ZERO, &filter("add", ""), &mut ()).unwrap();
}

/// A policer whose only statistic is the number that it was built with.
fn numbered(folder: &TempDir, name: &str, number: u32) {
    let text = format!(
        "#include <insane_traffic_stage.h>
         static void *create(const char *o, char *e, size_t c) {{ (void)o, (void)e, (void)c; static int s; return &s; }}
         static void destroy(void *s) {{ (void)s; }}
         static void stats(const void *s, insane_traffic_emit emit, void *c) {{ (void)s; emit(c, \"number\", {number}); }}
         static int64_t police(void *s, uint64_t n, const insane_traffic_packet *p)
         {{ (void)s, (void)n, (void)p; return INSANE_TRAFFIC_PASS; }}
         static const insane_traffic_policer calls = {{ .police = police }};
         static const insane_traffic_stage_table table = {{ .abi = INSANE_TRAFFIC_STAGE_ABI, .size = sizeof table,
             .kind = INSANE_TRAFFIC_POLICER, .calls_size = sizeof calls, .name = \"numbered\", .create = create,
             .destroy = destroy, .stats = stats, .calls.policer = &calls }};
         const insane_traffic_stage_table *insane_traffic_stage(uint32_t n) {{ return n == 0 ? &table : NULL; }}"
    );
    let source = folder.path().join("numbered.c");
    std::fs::write(&source, text).unwrap();
    cc(&source, &folder.path().join(name), &["-shared", "-fPIC"]);
}

#[test]
fn a_new_version_takes_over_when_a_change_says_so() {
    if no_compiler() {
        return;
    }
    let folder = folder();
    let registry = registry(&folder);
    numbered(&folder, "numbered.so", 1);
    registry.load("numbered.so").unwrap();
    let policed = "version = 1\n[[queue]]\nid = 0\npolicer = { type = 'plugin', name = 'numbered' }";
    let mut pipeline = pipeline(policed, &registry).unwrap();
    let number = |pipeline: &Pipeline<Vec<u8>>| {
        pipeline.stats().queues[0].police.as_ref().and_then(|p| p.get_count("number")).unwrap()
    };
    pipeline.enqueue(Time::ZERO, packet(0, 0, 100), &mut ()).unwrap();
    let modify =
        changes("[[change]]\nop = 'modify-policer'\nqueue = 0\npolicer = { type = 'plugin', name = 'numbered' }");
    for version in 2..=4 {
        // The same path, and in half of the cases the same file with other bytes in it: what is loaded is not disturbed.
        if version % 2 == 0 {
            std::fs::remove_file(folder.path().join("numbered.so")).unwrap();
        }
        numbered(&folder, "numbered.so", version);
        assert_eq!(number(&pipeline), u64::from(version) - 1);
        registry.replace("numbered.so").unwrap();
        assert_eq!(number(&pipeline), u64::from(version) - 1);
        let list = registry.list();
        assert_eq!(list.iter().map(|o| (o.in_use, o.replaced)).collect::<Vec<_>>(), [(1, true), (0, false)]);
        pipeline.apply(Time::ZERO, &modify, &mut ()).unwrap();
        assert_eq!(number(&pipeline), u64::from(version));
        let list = registry.list();
        assert_eq!(list.iter().map(|o| (o.in_use, o.replaced)).collect::<Vec<_>>(), [(1, false)]);
    }
    // A file that is cut short while it is loaded is a crash for a loader that maps it.
    std::fs::File::options().write(true).open(folder.path().join("numbered.so")).unwrap().set_len(0).unwrap();
    pipeline.enqueue(Time::ZERO, packet(0, 0, 100), &mut ()).unwrap();
    assert_eq!((number(&pipeline), pipeline.packets()), (4, 2));
}
