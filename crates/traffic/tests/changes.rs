//! Changing a live pipeline: nothing is lost that the change did not ask for, all or nothing, and every refusal says why.

use insane_traffic::spec::{Leftover, QueueKind, References};
use insane_traffic::{Change, Dequeued, DropReason, Pipeline, PipelineSpec, QueueId, SpecError, Time};

fn pipeline(text: &str) -> Pipeline<Vec<u8>> {
    Pipeline::new(&PipelineSpec::from_toml(text).unwrap(), 1).unwrap()
}

fn change(text: &str) -> Change {
    toml::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn fill(pipeline: &mut Pipeline<Vec<u8>>, count: u8, at: Time) {
    (0..count).for_each(|n| {
        pipeline.enqueue(at, vec![n; 100], &mut ()).unwrap();
    });
}

fn drain(pipeline: &mut Pipeline<Vec<u8>>, now: Time) -> Vec<u8> {
    std::iter::from_fn(|| pipeline.dequeue(now, &mut ()).packet()).map(|p| p[0]).collect()
}

#[test]
fn a_queue_becomes_another_kind_with_its_packets_in_order_and_their_times() {
    let kinds = [
        "kind = { type = 'codel' }",
        "kind = { type = 'red' }",
        "kind = { type = 'pie' }",
        "kind = { type = 'dualpi2', pair = 'x', role = 'l4s' }",
        "kind = { type = 'dualpi2', pair = 'y', role = 'l4s' }",
        "kind = { type = 'dualpi2', pair = 'y', role = 'classic' }",
        "kind = { type = 'fifo' }",
    ];
    let mut pipeline = pipeline("version = 1\n[[queue]]\nid = 0");
    fill(&mut pipeline, 50, Time::from_millis(10));
    for kind in kinds {
        pipeline
            .apply(Time::from_millis(20), &[change(&format!("op = 'modify-queue'\nid = 0\n{kind}"))], &mut ())
            .unwrap();
        assert_eq!(pipeline.packets(), 50);
        pipeline.audit().unwrap();
    }
    let first = pipeline.dequeue(Time::from_millis(30), &mut ());
    assert_eq!(first, Dequeued::Packet(vec![0; 100], QueueId(0)));
    assert_eq!(pipeline.stats().queues[0].last_sojourn_ns, 20_000_000, "it has been waiting since it came");
    assert_eq!(drain(&mut pipeline, Time::from_millis(30)), (1..50).collect::<Vec<u8>>());
}

#[test]
fn a_lower_limit_drops_nothing_that_is_queued() {
    let mut pipeline = pipeline("version = 1\n[[queue]]\nid = 0");
    fill(&mut pipeline, 50, Time::ZERO);
    let lower = [
        change("op = 'modify-queue'\nid = 0\nkind = { type = 'fifo', limit = { packets = 10 } }"),
        change("op = 'set-limit'\nlimit = { packets = 5 }"),
    ];
    pipeline.apply(Time::ZERO, &lower, &mut ()).unwrap();
    assert_eq!(pipeline.packets(), 50);
    assert_eq!(pipeline.enqueue(Time::ZERO, vec![0], &mut ()), Err(DropReason::PipelineLimit));
    assert_eq!(drain(&mut pipeline, Time::ZERO), (0..50).collect::<Vec<u8>>());
}

#[test]
fn schedulers_are_exchanged_under_load() {
    let mut pipeline =
        pipeline("version = 1\nqueue = [{ id = 0, count = 4 }]\nfilter = [{ id = 1, to = { type = 'round-robin' } }]");
    let kinds = [
        "'drr'",
        "'strict'\norder = [[3]]",
        "'conditional'\nhigh = [1]",
        "'conditional'\nhigh = [2]\nprotection = { time-shift = { shift = '50ms' } }",
        "'weighted'\nweights = [{ queue = 1, weight = 3 }]",
        "'fq-codel'",
        "'round-robin'",
    ];
    for kind in kinds {
        fill(&mut pipeline, 40, Time::ZERO);
        (0..10).for_each(|_| assert!(pipeline.dequeue(Time::ZERO, &mut ()).packet().is_some()));
        pipeline
            .apply(Time::ZERO, &[change(&format!("op = 'set-scheduler'\n[scheduler]\ntype = {kind}"))], &mut ())
            .unwrap();
        let mut rest = drain(&mut pipeline, Time::ZERO);
        rest.sort_unstable();
        rest.dedup();
        assert_eq!(rest.len(), 30, "{kind}");
    }
}

#[test]
fn a_shaper_that_is_taken_away_lets_go_at_once() {
    let mut pipeline =
        pipeline("version = 1\n[[queue]]\nid = 0\nshaper = { type = 'token-bucket', rate = '8kbit', burst = '100' }");
    fill(&mut pipeline, 3, Time::ZERO);
    assert!(pipeline.dequeue(Time::ZERO, &mut ()).packet().is_some());
    assert_eq!(pipeline.dequeue(Time::ZERO, &mut ()), Dequeued::Wait(Time::from_millis(100)));
    let faster = "op = 'modify-shaper'\nqueue = 0\nshaper = { type = 'token-bucket', rate = '80kbit', burst = '100' }";
    pipeline.apply(Time::ZERO, &[change(faster)], &mut ()).unwrap();
    assert_eq!(
        pipeline.dequeue(Time::ZERO, &mut ()),
        Dequeued::Wait(Time::from_millis(10)),
        "the debt stays, the rate is new"
    );
    pipeline.apply(Time::ZERO, &[change("op = 'delete-shaper'\nqueue = 0")], &mut ()).unwrap();
    assert_eq!(drain(&mut pipeline, Time::ZERO), [1, 2]);
}

#[test]
fn a_batch_is_all_or_nothing() {
    let mut pipeline = pipeline("version = 1\n[[queue]]\nid = 0");
    let before = pipeline.spec();
    let batch = [
        change("op = 'add-queue'\nqueue = { id = 1 }"),
        change("op = 'set-scheduler'\nscheduler = { type = 'drr' }"),
        change("op = 'add-filter'\nfilter = { id = 1, to = { type = 'queue', queue = 2 } }"),
    ];
    let refused = pipeline.apply(Time::ZERO, &batch, &mut ());
    assert_eq!(refused.unwrap_err().to_string(), "there is no queue 2");
    assert_eq!((pipeline.spec(), pipeline.generation()), (before, 0));
    // What is wrong only in between is right as a whole: the filter's queue comes after it.
    let batch = [
        change("op = 'add-filter'\nfilter = { id = 1, to = { type = 'queue', queue = 1 } }"),
        change("op = 'add-queue'\nqueue = { id = 1 }"),
    ];
    assert_eq!(pipeline.apply(Time::ZERO, &batch, &mut ()), Ok(1));
}

#[test]
fn plans_are_made_elsewhere_and_are_for_one_generation() {
    let mut pipeline = pipeline("version = 1\n[[queue]]\nid = 0");
    let draft = pipeline.draft();
    let add = [change("op = 'add-queue'\nqueue = { id = 1, count = 1000, kind = { type = 'codel' } }")];
    let plan = std::thread::spawn(move || draft.plan(&add).unwrap()).join().unwrap();
    let late = pipeline.draft().plan(&[change("op = 'delete-pacer'")]).unwrap();
    assert_eq!(pipeline.commit(Time::ZERO, plan, &mut ()), Ok(1));
    assert_eq!(pipeline.commit(Time::ZERO, late, &mut ()), Err(SpecError::Stale { planned: 0, current: 1 }));
    assert_eq!(pipeline.spec().queues.len(), 2);
}

#[test]
fn what_is_in_use_is_not_deleted() {
    let mut pipeline = pipeline(
        "version = 1\nqueue = [{ id = 0, policer = { type = 'srtcm', cir = '1mbit', cbs = '1k', colours = { red = { redirect = 1 } } } }, \
         { id = 1 }, { id = 2 }, { id = 3 }, { id = 4 }]\n\
         filter = [{ id = 9, to = { type = 'class', queues = [0, 3] } }]\nscheduler = { type = 'strict', order = [[2]] }",
    );
    let before = pipeline.spec();
    for (id, by) in [
        (0, "every packet that no filter wants; the default queue cannot be deleted"),
        (1, "the policer of queue 0"),
        (2, "the scheduler"),
        (3, "filter 9"),
    ] {
        let delete = Change::DeleteQueue { id: QueueId(id), packets: Leftover::Rehome, references: References::Refuse };
        let refused = pipeline.apply(Time::ZERO, &[delete], &mut ()).unwrap_err();
        assert_eq!(refused, SpecError::InUse { what: format!("queue {id}"), by: by.into() });
        assert_eq!(pipeline.spec(), before);
    }
    // Asked to, the deletion takes the references with it: the redirection becomes a drop, the rest forgets the queue.
    for id in 1..5 {
        let delete = Change::DeleteQueue { id: QueueId(id), packets: Leftover::Rehome, references: References::Remove };
        pipeline.apply(Time::ZERO, &[delete], &mut ()).unwrap();
    }
    let after = pipeline.spec().to_toml().unwrap();
    assert!(
        after.contains("red = \"drop\"") && after.contains("order = []") && after.contains("queues = [0, 0]"),
        "{after}"
    );
}

#[test]
fn a_deleted_queue_drops_its_packets_only_if_asked() {
    let two =
        "version = 1\nqueue = [{ id = 0 }, { id = 1 }]\nfilter = [{ id = 1, to = { type = 'queue', queue = 1 } }]";
    for packets in [Leftover::Rehome, Leftover::Drop] {
        let mut pipeline = pipeline(two);
        fill(&mut pipeline, 5, Time::ZERO);
        let mut lost = Vec::new();
        let delete = Change::DeleteQueue { id: QueueId(1), packets, references: References::Remove };
        pipeline.apply(Time::ZERO, &[delete], &mut |p: Vec<u8>, what| lost.push((p[0], what))).unwrap();
        pipeline.audit().unwrap();
        let kept = drain(&mut pipeline, Time::ZERO);
        match packets {
            Leftover::Rehome => assert_eq!((kept, lost.len()), (vec![0, 1, 2, 3, 4], 0)),
            Leftover::Drop => {
                assert_eq!((kept.len(), lost.len()), (0, 5));
                assert!(lost.iter().all(|(_, what)| what.reason == DropReason::Change && what.queue == QueueId(1)));
            }
        }
    }
}

#[test]
fn a_pair_of_coupled_queues_changes_together_or_not_at_all() {
    let mut pipeline = Pipeline::<Vec<u8>>::new(&PipelineSpec::preset("l4s").unwrap(), 1).unwrap();
    let kind = |role: &str| format!("kind = {{ type = 'dualpi2', pair = 'l4s', role = '{role}', target = '10ms' }}");
    let one = change(&format!("op = 'modify-queue'\nid = 0\n{}", kind("classic")));
    let other = change(&format!("op = 'modify-queue'\nid = 1\n{}", kind("l4s")));
    assert!(matches!(pipeline.apply(Time::ZERO, std::slice::from_ref(&one), &mut ()), Err(SpecError::Invalid { .. })));
    assert_eq!(pipeline.apply(Time::ZERO, &[one, other], &mut ()), Ok(1));
}

#[test]
fn files_that_make_no_sense_are_refused_with_the_reason() {
    let queue = "version = 1\n[[queue]]\nid = 0\n";
    for (text, reason) in [
        ("version = 2\n[[queue]]\nid = 0", "pipeline version 2 is not supported; this release reads version 1"),
        ("[[queue]]\nid = 0", "missing field `version`"),
        ("version = 1\nqueue = []", "there is no queue 0, the default queue"),
        ("version = 1\n[[queue]]\nid = 0\nspeed = 1", "unknown field `speed`"),
        ("version = 1\n[[queue]]\nid = 0\nkind = { type = 'codel', traget = '5ms' }", "unknown field `traget`"),
        ("version = 1\n[[queue]]\nid = 0\nkind = { type = 'codle' }", "unknown variant `codle`"),
        ("version = 1\n[[queue]]\nid = 0\nkind = { type = 'codel', target = '5' }", "is not a time with its unit"),
        (
            "version = 1\n[[queue]]\nid = 0\nkind = { type = 'codel', target = '0ms' }",
            "target is 0s; it must be above 0",
        ),
        ("version = 1\n[[queue]]\nid = 0\ncount = 0", "count must be at least 1"),
        ("version = 1\n[[queue]]\nid = 65535\ncount = 2", "all ids below 65536"),
        ("version = 1\nqueue = [{ id = 0 }, { id = 0 }]", "queue 0 exists already"),
        ("version = 1\n[[queue]]\nid = 0\nkind = { type = 'fifo', limit = { packets = 0 } }", "limit.packets is 0"),
        ("version = 1\n[[queue]]\nid = 0\nkind = { type = 'red', probability = 2.0 }", "red.probability is 2"),
        ("version = 1\n[[queue]]\nid = 0\nkind = { type = 'pie', alpha = nan }", "pie.alpha is NaN"),
        (
            "version = 1\n[[queue]]\nid = 0\nshaper = { type = 'token-bucket', rate = 0, burst = 1 }",
            "shaper.rate is 0bit",
        ),
        (
            "version = 1\n[[queue]]\nid = 0\npolicer = { type = 'trtcm', cir = '2mbit', cbs = 1, pir = '1mbit', pbs = 1 }",
            "pir",
        ),
        (
            "version = 1\n[[queue]]\nid = 0\nkind = { type = 'plugin', name = 'x' }",
            "plug-in `x`: no such queue is loaded",
        ),
        (
            &format!("{queue}[[filter]]\nid = 1\nmatch = {{ dst_port = 'x' }}\nto = {{ type = 'drop' }}"),
            "`x` is not a number",
        ),
        (
            &format!("{queue}[[filter]]\nid = 1\nmatch = {{ src = '10.0.0.0/40' }}\nto = {{ type = 'drop' }}"),
            "is not an address",
        ),
        (
            &format!("{queue}[[filter]]\nid = 1\nmatch = {{ eth_src = '1:2' }}\nto = {{ type = 'drop' }}"),
            "match.eth_src is 1:2",
        ),
        (&format!("{queue}[[filter]]\nid = 1\nto = {{ type = 'hash', queues = '0-9' }}"), "there is no queue 1"),
        (&format!("{queue}[scheduler]\ntype = 'drr'\nquantum = 10"), "scheduler.quantum is 10; it must be 256"),
        (&format!("{queue}[scheduler]\ntype = 'strict'\norder = [[0], [0]]"), "naming a queue twice"),
        (
            &format!("{queue}[scheduler]\ntype = 'weighted'\nweights = [{{ queue = 0, weight = 0 }}]"),
            "weight of queue 0 is 0",
        ),
        (&format!("{queue}[scheduler]\ntype = 'round-robin'\nquantum = 3"), "unknown field `quantum`"),
        (&format!("{queue}[pacer]\ntype = '5g-bdp'\nmin = '1b'"), "min must be at least mtu"),
    ] {
        let spec = PipelineSpec::from_toml(text).and_then(|spec| Pipeline::<Vec<u8>>::new(&spec, 1).map(drop));
        let error = spec.expect_err(text).to_string();
        assert!(error.contains(reason), "{text}\n{error}");
    }
}

#[test]
fn a_whole_pipeline_moves_between_threads() {
    let mut pipeline = pipeline("version = 1\n[[queue]]\nid = 0");
    fill(&mut pipeline, 3, Time::ZERO);
    let got = std::thread::spawn(move || drain(&mut pipeline, Time::ZERO)).join().unwrap();
    assert_eq!(got, [0, 1, 2]);
}

#[test]
fn changes_and_statistics_travel_as_json() {
    let mut pipeline = Pipeline::<Vec<u8>>::new(&PipelineSpec::preset("slicing").unwrap(), 1).unwrap();
    let kind = QueueKind::default();
    let changes = [Change::ModifyQueue { id: QueueId(1), kind }, change("op = 'set-pacer'\npacer = { type = 'dql' }")];
    let text = serde_json::to_string(&changes).unwrap();
    assert_eq!(serde_json::from_str::<[Change; 2]>(&text).unwrap(), changes);
    pipeline.apply(Time::ZERO, &changes, &mut ()).unwrap();
    fill(&mut pipeline, 5, Time::ZERO);
    drain(&mut pipeline, Time::ZERO);
    let stats = pipeline.stats();
    let text = serde_json::to_string(&stats).unwrap();
    assert_eq!(serde_json::from_str::<insane_traffic::PipelineStats>(&text).unwrap(), stats);
    let spec = pipeline.spec();
    let text = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<PipelineSpec>(&text).unwrap(), spec);
}
