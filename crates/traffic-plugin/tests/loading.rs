//! Objects come and go while packets flow, and what must not be loaded is refused with a reason.

mod common;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use common::{cc, example, folder, no_compiler, object, packet, registry};
use insane_traffic::spec::Change;
use insane_traffic::{Dequeued, Draft, Dropped, Pipeline, PipelineSpec, Plan, QueueId, Span, SpecError, Time};
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
        // Another file under the same path, or the same file with other bytes in it: what is loaded is not disturbed.
        numbered(&folder, "next.so", version);
        let (next, place) = (folder.path().join("next.so"), folder.path().join("numbered.so"));
        if version % 2 == 0 {
            std::fs::rename(next, place).unwrap();
        } else {
            std::fs::copy(next, place).unwrap();
        }
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
    std::fs::remove_file(folder.path().join("numbered.so")).unwrap();
    pipeline.apply(Time::ZERO, &changes("[[change]]\nop = 'delete-policer'\nqueue = 0"), &mut ()).unwrap();
    registry.unload("numbered.so").unwrap();
}

/// What the thread that moves packets is asked for: what it needs to plan elsewhere, or to make a change.
enum Request {
    Draft(Sender<Draft<Vec<u8>>>),
    Commit(Box<Plan<Vec<u8>>>, Sender<Result<u64, SpecError>>),
}

/// Moves packets until nobody asks any more. Returns how many came out of which queue and how many were dropped.
fn mover(mut pipeline: Pipeline<Vec<u8>>, requests: &Receiver<Request>) -> ([u64; 2], u64) {
    let (mut now, mut arrived, mut out, mut dropped) = (Time::ZERO, 0_u64, [0_u64; 2], 0_u64);
    loop {
        let mut count = |_packet, _what: Dropped| dropped += 1;
        for _ in 0..32 {
            now += Span::from_micros(10);
            arrived += 1;
            let _queue = pipeline.enqueue(now, packet(46 * (arrived % 2) as u8, 0, 200), &mut count);
            // Now and then some stay for a while.
            while pipeline.packets() > arrived % 50
                && let Dequeued::Packet(_, queue) = pipeline.dequeue(now, &mut count)
            {
                out[queue.index()] += 1;
            }
        }
        match requests.try_recv() {
            Ok(Request::Draft(to)) => to.send(pipeline.draft()).unwrap(),
            Ok(Request::Commit(plan, to)) => to.send(pipeline.commit(now, *plan, &mut count)).unwrap(),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => break,
        }
        pipeline.audit().unwrap();
        assert_eq!(arrived, out[0] + out[1] + dropped + pipeline.packets());
    }
    (out, dropped)
}

#[test]
fn objects_come_and_go_while_packets_flow_and_none_is_lost() {
    if no_compiler() {
        return;
    }
    let folder = folder();
    let registry = by_dscp(&folder);
    example("red_line", &folder);
    let live = pipeline(TWO_QUEUES, &registry).unwrap();
    let (requests, inbox) = channel();
    let moving = std::thread::spawn(move || mover(live, &inbox));
    let apply = |changes: &[Change]| {
        let (to, draft) = channel();
        requests.send(Request::Draft(to)).unwrap();
        let plan = draft.recv().unwrap().plan(changes)?;
        let (to, done) = channel();
        requests.send(Request::Commit(Box::new(plan), to)).unwrap();
        done.recv().unwrap()
    };
    let queue = |kind: &str| changes(&format!("[[change]]\nop = 'modify-queue'\nid = 1\nkind = {kind}"));
    let red_line = "{ type = 'plugin', name = 'red-line', options = 'line_us=1000000' }";
    assert!(apply(&queue(red_line)).unwrap_err().to_string().contains("there is none"));
    for round in 0..20 {
        registry.load("by_dscp.so").unwrap();
        registry.load("red_line.so").unwrap();
        apply(&[queue(red_line), filter("add", "46=1")].concat()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
        if round % 2 == 0 {
            registry.replace("red_line.so").unwrap();
            apply(&queue(red_line)).unwrap();
        }
        let error = apply(&queue("{ type = 'plugin', name = 'red-line', options = 'line=3' }")).unwrap_err();
        assert_eq!(error.to_string(), "plug-in `red-line`: `line=3` is not known; there is line_us");
        assert!(matches!(registry.unload("red_line.so"), Err(LoadError::InUse { .. })));
        apply(&[queue("{ type = 'fifo' }"), changes("[[change]]\nop = 'delete-filter'\nid = 1")].concat()).unwrap();
        registry.unload("red_line.so").unwrap();
        registry.unload("by_dscp.so").unwrap();
        assert_eq!(registry.list(), []);
    }
    drop(requests);
    let (out, dropped) = moving.join().unwrap();
    assert!(out[0] > 0 && out[1] > 0, "{out:?}");
    assert_eq!(dropped, 0, "no change asked for a drop");
}

#[test]
fn a_queue_in_rust_keeps_the_delay_below_its_line() {
    let folder = folder();
    let registry = registry(&folder);
    example("red_line", &folder);
    registry.load("red_line.so").unwrap();
    let kind = "{ type = 'plugin', name = 'red-line', options = 'line_us=5000', limit = { packets = 100 } }";
    let mut pipeline = pipeline(&format!("version = 1\n[[queue]]\nid = 0\nkind = {kind}"), &registry).unwrap();
    let mut reasons = Vec::new();
    let mut drops = |_packet, what: Dropped| reasons.push(what.reason.name());
    // Twice as many packets as leave, the second half of them ECN-capable: these are marked, and the limit stops them.
    let mut marked = 0;
    for n in 0..2_000_u64 {
        let now = Time::from_micros(500 * n);
        let ecn = if n < 1_000 { 0 } else { 2 };
        let _queue = pipeline.enqueue(now, packet(0, ecn, 200), &mut drops);
        if n % 2 == 0
            && let Dequeued::Packet(packet, _) = pipeline.dequeue(now, &mut drops)
        {
            marked += u64::from(packet[1] & 3 == 3);
        }
        if n == 999 {
            assert!(pipeline.packets() <= 11, "{} packets of 0.5 ms each", pipeline.packets());
        }
        pipeline.audit().unwrap();
    }
    let stats = &pipeline.stats().queues[0];
    let count = |name: &str| stats.xstats.get_count(name).unwrap();
    let names: Vec<&str> = stats.xstats.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["plugin", "faults", "discarded", "ecn_mark", "refused", "line_ns", "sent", "worst_ns"]);
    assert_eq!((count("faults"), count("sent")), (0, stats.basic.packets));
    // A packet may be marked and not have left yet.
    assert!(marked > 100 && count("ecn_mark") - marked <= 1, "{marked} {}", count("ecn_mark"));
    let of = |name: &str| reasons.iter().filter(|r| **r == name).count() as u64;
    assert_eq!((of("plugin"), of("queue_packets")), (count("discarded"), count("refused")));
    assert!(of("plugin") > 100 && of("queue_packets") > 100, "{} {}", of("plugin"), of("queue_packets"));
}
