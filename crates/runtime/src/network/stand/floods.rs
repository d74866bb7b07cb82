//! A host that says more than there is to say, or hears nothing: what is kept of it is bounded.

use super::*;
use insane_wire::encode;
use insane_wire::host::{self as wire, ToHost, to_host::Body};
use insane_wire::id::channel_id;
use std::sync::atomic::{AtomicUsize, Ordering};

const MANY: u64 = 100;

fn word(body: Body) -> Vec<u8> {
    encode(&ToHost { body: Some(body) })
}

/// Names that are none, as the domain, the stream and the channel.
fn misnomers() -> [(String, String, Option<String>); 6] {
    let (long, domain, stream) = ("x".repeat(16 << 10), "default".to_owned(), stream_name(0).to_owned());
    [
        (domain.clone(), long.clone(), None),
        (long.clone(), stream.clone(), None),
        (domain.clone(), stream.clone(), Some(long)),
        (domain.clone(), "\u{1b}[2J".into(), None),
        (domain.clone(), stream, Some(String::new())),
        (domain, String::new(), None),
    ]
}

#[test]
fn sinks_and_sources_under_names_that_are_none_are_not_kept() {
    let mut stand = Stand::new();
    let mut strays = 0;
    for (n, (domain, stream, name)) in (0..MANY).flat_map(|n| misnomers().map(|names| (n, names))) {
        let id = name.as_ref().map_or(5, |name| channel_id(&domain, &stream, name).0);
        strays += 2;
        let sink = u128::from(strays).to_le_bytes().to_vec();
        let announced = wire::Announce { domain, stream, name, channel: id, sink: sink.clone(), ..Default::default() };
        let wire::Announce { domain, stream, name, .. } = announced.clone();
        stand.say(&word(Body::Announce(announced)));
        let about = wire::Source { epoch: sink, domain, stream, name, channel: id, ..Default::default() };
        stand.say(&word(Body::Source(about)));
        stand.pass(Duration::from_millis(10));
        assert_eq!((stand.holds().sum(), stand.strays()), (0, strays), "{n}: {stand:?}");
    }
    assert!(stand.is_connected() && !stand.hub.directory.knows(0));
}

#[test]
fn a_connection_has_one_control_flow() {
    let mut stand = Stand::new();
    let first = stand.hub.hosts[0].control_in;
    for epoch in 2..2 + u128::from(MANY) {
        let spec = FlowSpec { domain: CONTROL.0, epoch, channel: CONTROL.1, reliable: true, first: 1 };
        stand.peer.open(spec);
        stand.settle();
    }
    stand.pass(Duration::from_secs(1));
    assert_eq!((stand.hub.hosts[0].control_in, stand.strays()), (first, MANY));
    // And the one is heard.
    let (domain, stream) = ("default".to_owned(), stream_name(0).to_owned());
    let sink = vec![3; 16];
    stand.say(&word(Body::Announce(wire::Announce { domain, stream, channel: 5, sink, ..Default::default() })));
    assert_eq!((stand.holds().in_the_core, stand.strays()), (1, MANY));
    // So is that of the next connection.
    stand.restart();
    assert!(stand.hub.hosts[0].control_in.is_some());
}

#[test]
fn a_host_that_takes_nothing_that_is_said_to_it_is_left() {
    let mut stand = Stand::new();
    let say = |hub: &mut Hub| {
        let Hub { hosts, underway, .. } = hub;
        hosts[0].say_as(Body::Ready(wire::Ready { answer: true, ..Default::default() }), underway).is_some()
    };
    let mut said = 0;
    while say(&mut stand.hub) {
        said += 1;
        assert!(said < 2 << 20, "it is said more and more");
    }
    // What finds no room leaves nothing behind, and does not go missing among what is said later.
    let held = stand.hub.underway.len();
    assert!(!say(&mut stand.hub) && stand.hub.underway.len() == held);
    assert_eq!(stand.hub.hosts[0].lost, 0);
    stand.pass(Duration::from_millis(100));
    assert_eq!(stand.hub.hosts[0].lost, 1);
    stand.connect();
    stand.pass(Duration::from_secs(5));
    assert!(stand.is_connected() && say(&mut stand.hub), "it is met again");
    stand.pass(Duration::from_secs(1));
    assert_eq!((stand.holds().under_way, stand.hub.hosts[0].lost), (0, 1));
}

/// A datapath that has no room, and counts how often it is tried.
struct Full(Arc<AtomicUsize>);

impl Datapath for Full {
    fn capabilities(&self) -> Capabilities {
        Capabilities::plain("full", MAX_FRAME)
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        Ok(())
    }

    fn address(&self) -> Option<Address> {
        None
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        self.0.fetch_add(1, Ordering::Relaxed);
        TxReport { pending: batch.pending().len(), ..TxReport::default() }
    }

    fn receive(&mut self, _: &mut RxBatch, _: Option<&mut dyn Place>) -> RxReport {
        RxReport::default()
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }

    fn close(&mut self) {}
}

/// While a datapath has no room, the thread has nothing to do but to try it again after a while, whatever waits for it.
#[test]
fn a_datapath_without_room_is_slept_for_between_two_attempts() {
    let mut stand = Stand::new();
    let tries = Arc::new(AtomicUsize::new(0));
    let wire = std::mem::replace(&mut stand.hub.ports[0].datapath, Box::new(Full(tries.clone())));
    // More than a burst.
    let Hub { hosts, underway, .. } = &mut stand.hub;
    for _ in 0..2000 {
        hosts[0]
            .say_as(Body::Ready(wire::Ready { answer: true, ..Default::default() }), underway)
            .expect("room for it");
    }
    let mut busy = Vec::new();
    for _ in 0..10 {
        stand.now += Duration::from_micros(100);
        busy.push(stand.hub.turn(stand.now));
        let before = tries.load(Ordering::Relaxed);
        assert!(before == busy.len() && !stand.hub.ports[0].tx.is_done(), "{before} attempts with {busy:?}");
    }
    assert!(!busy[2..].contains(&true), "{busy:?}");
    assert_eq!(stand.hub.idle_for(stand.now), Duration::from_micros(100));
    // It has room again, and all arrives.
    stand.hub.ports[0].datapath = wire;
    stand.pass(Duration::from_secs(1));
    assert_eq!((stand.holds().under_way, stand.hub.hosts[0].lost), (0, 0));
}

#[test]
fn what_is_kept_of_refused_sinks_goes_with_them() {
    let mut stand = Stand::new();
    let refuse = |stand: &mut Stand, sink: [u8; 16]| {
        stand.say(&word(Body::Refused(wire::Refused { sink: sink.to_vec(), reasons: Vec::new() })));
    };
    for sink in 1..=u8::MAX {
        stand.sink(0, [sink; 16], 5, true);
        refuse(&mut stand, [sink; 16]);
        assert_eq!(stand.hub.hosts[0].refused.len(), 1, "{sink}");
        stand.sink(0, [sink; 16], 5, false);
        // It was said before it was heard that the sink is gone; of others nobody has heard at all.
        refuse(&mut stand, [sink; 16]);
        refuse(&mut stand, [0; 16]);
        assert_eq!(stand.hub.hosts[0].refused.len(), 0, "{sink}");
    }
}
