//! Each operation, and each way in which it can be refused, over real channels.

use insane_tests_control::{FIRST, SECOND, Served, client};
use insane_tests_host::{Host, Watchdog};
use insane_traffic::spec::{Change, PipelineSpec};
use insane_traffic_control::value::Value;
use insane_traffic_control::{Action, BearerId, Client, ClientError, Outcome, Stage, StageChange};
use serde_json::json;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

fn changes(text: &str) -> Vec<Change> {
    serde_json::from_str(text).expect("changes")
}

fn refused<T: std::fmt::Debug>(result: Result<T, ClientError>) -> (Outcome, String) {
    match result {
        Err(ClientError::Refused(refusal)) => (refusal.outcome, refusal.reason),
        other => panic!("not refused: {other:?}"),
    }
}

fn with_server(what: &'static str, test: impl FnOnce(&Client, &Host)) {
    let _watchdog = Watchdog::start(what, Duration::from_secs(60));
    let host = Host::start();
    let served = Served::start(&host);
    let session = host.session("client");
    test(&client(&session, LIMIT), &host);
    let left = served.stop();
    assert_eq!((left.counts.unreadable, left.subscriptions), (0, 0), "{:?}", left.counts);
}

#[test]
fn every_stage_is_added_modified_and_deleted() {
    with_server("every stage", |client, _| {
        assert_eq!(client.list().unwrap(), [FIRST, SECOND]);
        let steps = [
            r#"[{"op":"add-queue","queue":{"id":1,"kind":{"type":"codel"}}}]"#,
            r#"[{"op":"add-filter","filter":{"id":7,"match":{"dst_port":"5201-5204"},"to":{"type":"queue","queue":1}}}]"#,
            r#"[{"op":"modify-filter","filter":{"id":7,"match":{"proto":"17"},"to":{"type":"queue","queue":1}}}]"#,
            r#"[{"op":"modify-queue","id":1,"kind":{"type":"pie"}}]"#,
            r#"[{"op":"add-policer","queue":1,"policer":{"type":"srtcm","cir":"1mbit","cbs":"10k"}}]"#,
            r#"[{"op":"modify-policer","queue":1,"policer":{"type":"srtcm","cir":"2mbit","cbs":"10k"}}]"#,
            r#"[{"op":"delete-policer","queue":1}]"#,
            r#"[{"op":"add-shaper","queue":1,"shaper":{"type":"token-bucket","rate":"1mbit","burst":"6k"}}]"#,
            r#"[{"op":"modify-shaper","queue":1,"shaper":{"type":"token-bucket","rate":"2mbit","burst":"6k"}}]"#,
            r#"[{"op":"delete-shaper","queue":1}]"#,
            r#"[{"op":"set-scheduler","scheduler":{"type":"strict","order":[[0]]}}]"#,
            r#"[{"op":"set-pacer","pacer":{"type":"5g-bdp"}},{"op":"set-limit","limit":{"packets":500}}]"#,
            r#"[{"op":"delete-pacer"},{"op":"delete-filter","id":7},{"op":"delete-queue","id":1,"packets":"drop"}]"#,
        ];
        let mut expected: insane_traffic::Pipeline<Vec<u8>> =
            insane_traffic::Pipeline::new(&PipelineSpec::default(), 1).unwrap();
        for (n, step) in steps.iter().enumerate() {
            let generation = client.change(FIRST, &changes(step), Some(n as u64)).expect(step);
            expected.apply(insane_traffic::Time::ZERO, &changes(step), &mut ()).unwrap();
            let (pipeline, state) = client.show(FIRST).unwrap();
            assert_eq!((generation, state.pipeline.generation), (n as u64 + 1, n as u64 + 1));
            assert_eq!(pipeline, expected.spec(), "{step}");
        }
        assert_eq!(client.show(SECOND).unwrap().0, PipelineSpec::default(), "the other bearer is as it was");
    });
}

#[test]
fn what_cannot_be_is_refused_with_its_reason_and_changes_nothing() {
    with_server("refusals", |client, _| {
        let queue = r#"{"op":"add-queue","queue":{"id":1}},{"op":"add-filter","filter":{"id":1,"to":{"type":"queue","queue":1}}}"#;
        client.change(FIRST, &changes(&format!("[{queue}]")), None).unwrap();
        let before = client.show(FIRST).unwrap().0;
        let nobody = BearerId { rnti: 1, drb: 9 };
        let by_op = |op: &str, outcome: Outcome, text: &str| {
            // The first change could be made: all or none.
            let all = format!(r#"[{{"op":"add-queue","queue":{{"id":9}}}},{op}]"#);
            let (found, reason) = refused(client.change(FIRST, &changes(&all), None));
            assert_eq!(found, outcome, "{op}: {reason}");
            assert!(reason.contains(text), "{op}: {reason}");
            assert_eq!(client.show(FIRST).unwrap().0, before, "{op}");
        };
        by_op(r#"{"op":"delete-queue","id":1}"#, Outcome::InUse, "queue 1 is in use by filter 1");
        by_op(r#"{"op":"delete-queue","id":0}"#, Outcome::InUse, "default queue");
        by_op(r#"{"op":"delete-queue","id":77}"#, Outcome::Unknown, "no queue 77");
        by_op(r#"{"op":"add-queue","queue":{"id":1}}"#, Outcome::Exists, "queue 1 exists");
        by_op(r#"{"op":"delete-filter","id":5}"#, Outcome::Unknown, "no filter 5");
        by_op(r#"{"op":"delete-shaper","queue":1}"#, Outcome::Unknown, "no shaper of queue 1");
        by_op(r#"{"op":"delete-scheduler"}"#, Outcome::InUse, "set another one");
        by_op(r#"{"op":"add-queue","queue":{"id":10,"count":4096}}"#, Outcome::TooMany, "4097 queues");
        by_op(r#"{"op":"set-limit","limit":{"packets":0}}"#, Outcome::Invalid, "limit");
        by_op(r#"{"op":"set-pacer","pacer":{"type":"plugin","name":"none"}}"#, Outcome::Invalid, "none");
        let (outcome, reason) = refused(client.change(nobody, &changes(r#"[{"op":"delete-pacer"}]"#), None));
        assert_eq!((outcome, reason.as_str()), (Outcome::UnknownBearer, "there is no bearer 9 of RNTI 0x0001"));
        assert_eq!(refused(client.show(nobody)).0, Outcome::UnknownBearer);
        assert_eq!(refused(client.change(FIRST, &changes(r#"[{"op":"delete-pacer"}]"#), Some(9))).0, Outcome::Stale);
        assert_eq!(refused(client.change(FIRST, &[], None)).0, Outcome::Malformed);
        let newer = PipelineSpec { version: 9, ..PipelineSpec::default() };
        assert_eq!(refused(client.load(FIRST, &newer, false, None)).0, Outcome::Version);
        let stage = |action, stage, spec| {
            let spec = Value::from_json(spec).unwrap();
            refused(client.change_stages(FIRST, vec![StageChange::put(action, stage, 1, spec)], None))
        };
        let (outcome, reason) = stage(Action::Modify, Stage::Queue, json!({"kind": {"type": "codel", "targt": "5ms"}}));
        assert_eq!(outcome, Outcome::Malformed);
        assert!(reason.contains("targt"), "{reason}");
        assert_eq!(stage(Action::Add, Stage::Scheduler, json!({"type": "drr"})).0, Outcome::Exists);
        assert_eq!(stage(Action::Add, Stage::Filter, json!({"id": 2, "to": {"type": "drop"}})).0, Outcome::Malformed);
        assert_eq!(stage(Action::Unspecified, Stage::Queue, json!({})).0, Outcome::Unsupported);
        assert_eq!(client.show(FIRST).unwrap().0, before);
    });
}

#[test]
fn a_whole_pipeline_is_loaded_and_what_is_shown_of_a_thousand_queues_is_bounded() {
    with_server("loading", |client, _| {
        for name in ["fq-codel", "l4s", "slicing", "strict", "weighted", "fq-codel"] {
            let preset = PipelineSpec::preset(name).unwrap();
            client.load(FIRST, &preset, false, None).expect(name);
            let (pipeline, state) = client.show(FIRST).unwrap();
            assert_eq!(pipeline, preset, "{name}");
            assert!(state.pipeline.queues.len() <= insane_traffic_control::MAX_LISTED);
        }
        assert_eq!(client.show(FIRST).unwrap().1.left_out, 1024 - 64);
    });
}

#[test]
fn indications_come_at_the_period_until_the_subscription_ends() {
    with_server("indications", |client, _| {
        let period = Duration::from_millis(5);
        let mut subscription = client.subscribe(&[FIRST], period, Duration::from_millis(300)).unwrap();
        let began = std::time::Instant::now();
        let first = subscription.next(LIMIT).unwrap();
        let mut last = first.clone();
        // Longer than the lease: it is renewed on the way.
        while began.elapsed() < Duration::from_secs(1) {
            let next = subscription.next(LIMIT).unwrap();
            assert!(next.number > last.number && next.taken_ns >= last.taken_ns && next.sent_ns >= next.taken_ns);
            assert_eq!(next.bearers.iter().map(|b| b.bearer).collect::<Vec<_>>(), [FIRST]);
            last = next;
        }
        assert_eq!(subscription.restarts(), 0);
        // Each period has an indication or is counted: late ones are not made up for.
        let periods = (last.taken_ns - first.taken_ns) / 5_000_000;
        let counted = (last.number - first.number) + (last.late - first.late);
        assert!(counted.abs_diff(periods) <= 2, "{counted} of {periods} periods");
        drop(subscription);
        let mut all = client.subscribe(&[], period, Duration::from_millis(300)).unwrap();
        assert_eq!(all.next(LIMIT).unwrap().bearers.len(), 2);
    });
}

#[test]
fn subscriptions_are_checked_and_bounded() {
    with_server("bounds", |client, _| {
        let ms = Duration::from_millis;
        let refuse = |bearers: &[BearerId], period, lease| refused(client.subscribe(bearers, period, lease));
        assert_eq!(refuse(&[], Duration::from_micros(999), ms(500)).0, Outcome::Invalid);
        assert_eq!(refuse(&[], ms(61_000), ms(500)).0, Outcome::Invalid);
        assert_eq!(refuse(&[], ms(1), ms(9)).0, Outcome::Invalid);
        assert_eq!(refuse(&[], ms(1), ms(60_001)).0, Outcome::Invalid);
        assert_eq!(refuse(&[BearerId { rnti: 1, drb: 1 }], ms(1), ms(500)).0, Outcome::UnknownBearer);
        assert_eq!(refuse(&vec![FIRST; 65], ms(1), ms(500)).0, Outcome::TooMany);
        let mut held = Vec::new();
        for _ in 0..insane_traffic_control::MAX_SUBSCRIPTIONS {
            held.push(client.subscribe(&[FIRST], ms(50), ms(60_000)).unwrap());
        }
        assert_eq!(refuse(&[FIRST], ms(50), ms(500)).0, Outcome::TooMany);
        held.pop();
        held.push(client.subscribe(&[FIRST], ms(50), ms(60_000)).expect("one has made room"));
        for subscription in &mut held {
            subscription.next(LIMIT).expect("each gets its own");
        }
        held.clear();
        // The server has heard of all ends once it has answered what was asked after them.
        client.list().unwrap();
    });
}

#[test]
fn many_clients_are_answered_each_its_own() {
    with_server("many clients", |_, host| {
        std::thread::scope(|scope| {
            for n in 0..4_u32 {
                scope.spawn(move || {
                    let session = host.session("one of many");
                    let client = client(&session, LIMIT);
                    for round in 0..20 {
                        let id = 100 + n * 100 + round;
                        let add = format!(r#"[{{"op":"add-queue","queue":{{"id":{id}}}}}]"#);
                        client.change(FIRST, &changes(&add), None).unwrap();
                    }
                });
            }
        });
        let session = host.session("reader");
        let (pipeline, state) = client(&session, LIMIT).show(FIRST).unwrap();
        assert_eq!(pipeline.queues.iter().map(|q| q.count).sum::<u32>(), 81);
        assert_eq!(state.pipeline.generation, 80, "each change was made once");
    });
}

#[test]
fn without_a_server_it_says_so() {
    let host = Host::start();
    let session = host.session("client");
    let error = client(&session, Duration::from_millis(50)).list().unwrap_err();
    assert_eq!(error.to_string(), "nobody serves traffic control on `lab` in this domain");
}
