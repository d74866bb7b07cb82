//! The server's state machine under whatever clients send: it never panics, nothing is changed by half, and what it keeps
//! is bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use insane_traffic::PipelineSpec;
use insane_traffic_control::messages::{self, Request, StageChange, request::Body};
use insane_traffic_control::replies::{Indication, Reply};
use insane_traffic_control::value::{Field, Kind, List, Map, Value};
use insane_traffic_control::{BearerId, Bearers, Desk, MAX_SUBSCRIPTIONS, Outcome, StandIn, VERSION};
use proptest::prelude::*;
use prost::Message;

const BEARER: BearerId = BearerId { rnti: 1, drb: 1 };

fn value() -> impl Strategy<Value = Value> {
    const WORDS: &[&str] =
        &["type", "fifo", "codel", "id", "queue", "kind", "to", "match", "5ms", "1mbit", "version", "x"];
    let leaf = prop_oneof![
        Just(None),
        (0_u64..5_000).prop_map(|n| Some(Kind::Count(n))),
        any::<i64>().prop_map(|n| Some(Kind::Signed(n))),
        any::<f64>().prop_map(|n| Some(Kind::Real(n))),
        prop::sample::select(WORDS).prop_map(|t| Some(Kind::Text(t.into()))),
        any::<bool>().prop_map(|b| Some(Kind::Flag(b))),
    ];
    let leaf = leaf.prop_map(|kind| Value { kind });
    leaf.prop_recursive(4, 24, 4, move |inner| {
        let field = (prop::sample::select(WORDS), inner.clone())
            .prop_map(|(name, value)| Field { name: name.into(), value: Some(value) });
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(|items| Value { kind: Some(Kind::List(List { items })) }),
            prop::collection::vec(field, 0..4).prop_map(|fields| Value { kind: Some(Kind::Map(Map { fields })) }),
        ]
    })
}

fn bearer() -> impl Strategy<Value = Option<BearerId>> {
    prop_oneof![
        Just(None),
        Just(Some(BEARER)),
        any::<(u32, u32)>().prop_map(|(rnti, drb)| Some(BearerId { rnti, drb }))
    ]
}

fn change() -> impl Strategy<Value = StageChange> {
    const GOOD: &[&str] = &[
        r#"{"op":"add-queue","queue":{"id":1}}"#,
        r#"{"op":"add-filter","filter":{"id":1,"to":{"type":"queue","queue":1}}}"#,
        r#"{"op":"delete-queue","id":1}"#,
        r#"{"op":"delete-filter","id":1}"#,
        r#"{"op":"set-pacer","pacer":{"type":"5g-bdp"}}"#,
    ];
    let good = prop::sample::select(GOOD);
    let good = good.prop_map(|text| StageChange::from_change(&serde_json::from_str(text).unwrap()).unwrap());
    let any = (-1..9_i32, -1..9_i32, any::<u32>(), prop::option::of(value()), any::<bool>(), any::<bool>()).prop_map(
        |(action, stage, id, spec, drop_packets, remove_references)| StageChange {
            action,
            stage,
            id,
            spec,
            drop_packets,
            remove_references,
        },
    );
    prop_oneof![good, any]
}

fn body() -> impl Strategy<Value = Option<Body>> {
    prop_oneof![
        Just(None),
        Just(Some(Body::List(messages::List {}))),
        bearer().prop_map(|bearer| Some(Body::Show(messages::Show { bearer }))),
        (bearer(), prop::collection::vec(change(), 0..4), prop::option::of(0..5_u64)).prop_map(
            |(bearer, changes, generation)| Some(Body::Change(messages::Change { bearer, changes, generation }))
        ),
        (bearer(), prop::option::of(value())).prop_map(|(bearer, pipeline)| {
            Some(Body::Load(messages::Load { bearer, pipeline, drop_packets: true, generation: None }))
        }),
        (prop::collection::vec(bearer(), 0..3), any::<u32>(), 0..70_000_u32, any::<u64>(), any::<bool>()).prop_map(
            |(bearers, period, lease_ms, subscription, fresh)| {
                let bearers = bearers.into_iter().flatten().collect();
                let (period_us, subscription) = (period % 5_000, if fresh { 0 } else { subscription });
                Some(Body::Subscribe(messages::Subscribe { bearers, period_us, lease_ms, subscription }))
            }
        ),
        any::<u64>().prop_map(|s| Some(Body::Unsubscribe(messages::Unsubscribe { subscription: s }))),
    ]
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    (0..3_u32, 0..3_u64, 0..50_u64, body()).prop_map(|(version, client, number, body)| {
        let version = if version == 0 { 0 } else { VERSION };
        Request { version, client, number, sent_ns: 1, body }.encode_to_vec()
    })
}

fn message() -> impl Strategy<Value = Vec<u8>> {
    let cut = (request(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(mut bytes, at, new)| {
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = new;
        }
        bytes
    });
    prop_oneof![4 => request(), 2 => cut, 1 => prop::collection::vec(any::<u8>(), 0..200)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 300 }))]

    #[test]
    fn whatever_comes_is_answered_in_order_or_counted(
        messages in prop::collection::vec((message(), 0..20_000_000_u64), 1..40),
    ) {
        let time = Arc::new(AtomicU64::new(1));
        let clock = Arc::clone(&time);
        let mut desk = Desk::new(9, move || clock.load(Ordering::Relaxed));
        let mut bearers = StandIn::new(&[BEARER], &PipelineSpec::default()).unwrap();
        bearers.enqueue(BEARER, vec![0x45; 60]);
        for (bytes, wait) in &messages {
            time.fetch_add(*wait, Ordering::Relaxed);
            let before = (bearers.pipeline(BEARER).unwrap(), desk.counts());
            let reply = desk.request(bytes, &mut bearers);
            let readable = Request::decode(&bytes[..]).is_ok();
            prop_assert_eq!(readable, reply.is_some());
            if let Some(reply) = reply {
                let reply = Reply::decode(&reply[..]).unwrap();
                prop_assert_eq!(reply.version, VERSION);
                prop_assert_eq!(reply.outcome() == Outcome::Done, reply.reason.is_empty());
                if desk.counts().refused > before.1.refused {
                    prop_assert_eq!(&bearers.pipeline(BEARER).unwrap(), &before.0);
                }
            }
            prop_assert!(desk.subscriptions() <= MAX_SUBSCRIPTIONS);
            desk.turn(&mut bearers, |channel, bytes| {
                let indication = Indication::decode(bytes).unwrap();
                assert!(channel < MAX_SUBSCRIPTIONS && indication.subscription != 0 && indication.sent_ns > 0);
                wait % 3 != 0
            });
            bearers.audit().unwrap();
        }
        let counts = desk.counts();
        prop_assert!(counts.done + counts.refused + counts.unreadable <= messages.len() as u64);
        // With nobody to renew them all subscriptions end.
        time.fetch_add(61_000_000_000, Ordering::Relaxed);
        desk.turn(&mut bearers, |_, _| true);
        prop_assert_eq!((desk.subscriptions(), desk.due_ns()), (0, None));
    }

    #[test]
    fn messages_are_read_back_as_they_were(body in body(), version in any::<u32>(), client in any::<u64>()) {
        let request = Request { version, client, number: 3, sent_ns: 4, body };
        let bytes = request.encode_to_vec();
        // Numbers that are none are equal to nothing, not even to themselves.
        prop_assert_eq!(Request::decode(&bytes[..]).unwrap().encode_to_vec(), bytes);
    }
}

#[test]
fn a_request_that_comes_again_is_done_once() {
    let mut desk = Desk::new(9, || 5);
    let mut bearers = StandIn::new(&[BEARER], &PipelineSpec::default()).unwrap();
    let add =
        StageChange::from_change(&serde_json::from_str(r#"{"op":"add-queue","queue":{"id":1}}"#).unwrap()).unwrap();
    let change = messages::Change { bearer: Some(BEARER), changes: vec![add], generation: None };
    let mut request = Request { version: VERSION, client: 1, number: 1, sent_ns: 1, body: Some(Body::Change(change)) };
    let first = desk.request(&request.encode_to_vec(), &mut bearers).unwrap();
    assert_eq!(desk.request(&request.encode_to_vec(), &mut bearers).unwrap(), first);
    request.number = 2;
    let again = Reply::decode(&desk.request(&request.encode_to_vec(), &mut bearers).unwrap()[..]).unwrap();
    assert_eq!((again.outcome(), again.reason.contains("exists already")), (Outcome::Exists, true));
}

#[test]
fn periods_that_went_by_are_counted_and_not_made_up_for() {
    let time = Arc::new(AtomicU64::new(1_000_000));
    let clock = Arc::clone(&time);
    let mut desk = Desk::new(9, move || clock.load(Ordering::Relaxed));
    let mut bearers = StandIn::new(&[BEARER], &PipelineSpec::default()).unwrap();
    let subscribe = messages::Subscribe { bearers: vec![BEARER], period_us: 1_000, lease_ms: 60_000, subscription: 0 };
    let request =
        Request { version: VERSION, client: 1, number: 1, sent_ns: 1, body: Some(Body::Subscribe(subscribe)) };
    desk.request(&request.encode_to_vec(), &mut bearers).unwrap();
    let mut seen = Vec::new();
    for (step, room) in [(1, true), (1, false), (5, true), (1, true)] {
        time.fetch_add(step * 1_000_000, Ordering::Relaxed);
        desk.turn(&mut bearers, |_, bytes| {
            let i = Indication::decode(bytes).unwrap();
            seen.push((i.number, i.late, i.dropped));
            room
        });
    }
    assert_eq!(seen, [(1, 0, 0), (2, 0, 0), (3, 4, 1), (4, 4, 1)]);
    assert_eq!((desk.counts().indications, desk.counts().late, desk.counts().dropped), (3, 4, 1));
}
